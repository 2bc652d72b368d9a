/* The parameters of a model: names, shapes, places, first values. */
#ifndef BANTAM_MODEL_PARAMS_H
#define BANTAM_MODEL_PARAMS_H

#include "core/base/dtype.h"
#include "core/model/config.h"

typedef enum bti_init { BTI_INIT_ZERO, BTI_INIT_ONE, BTI_INIT_XAVIER, BTI_INIT_EMBEDDING } bti_init;

#define BTI_PARAM_NAME 112

typedef struct bti_param {
    char name[72];      /* as in torch.nn.Transformer, plus src_embed, tgt_embed, generator */
    int64_t rows, cols; /* vectors: 1 x cols */
    int dims;           /* 2, or 1 for vectors */
    bti_init init;
    uint64_t address;      /* bytes from the start of the weights and of each of the two moments */
    uint64_t grad_address; /* and of the gradients; the same where the gradient is not compact */
    uint64_t grad_end;     /* its end, up to the alignment: what is left over stays zero */
    int64_t grad_rows;     /* rows of its gradient: `rows`, or what a compact one has room for */
    int compact;           /* its gradient has a row for each distinct id of an update */
    int frozen;            /* keeps its value: it has no gradient and no moments */
} bti_param;

typedef struct bti_params {
    bti_param *param;
    int32_t count, capacity;
    int64_t elements;     /* parameters of the model */
    uint64_t bytes;       /* of the weights */
    uint64_t trained;     /* of each of the two moments: the weights that are not frozen */
    uint64_t dense_bytes; /* up to here gradients lie where weights and moments do */
    uint64_t grad_bytes;  /* of the gradients */
    bt_dtype dtype;
} bti_params;

/* Adds one; its index, -1 when out of memory. */
int32_t bti_params_add(bti_params *t, const char *name, int dims, int64_t rows, int64_t cols,
                       bti_init init);
/* The gradient of parameter i has room for `rows` rows only, the distinct ids of an update; `rows`
 * 0: it is whole again. */
void bti_params_compact(bti_params *t, int32_t i, int64_t rows);
/* Places: in all regions first the parameters with whole gradients, then those with compact ones;
 * frozen ones come last among the weights, and are nowhere else.
 * Places are multiples of `alignment` and cross no multiple of `heap` (0: no limit). */
bt_status bti_params_place(bti_params *t, uint64_t alignment, uint64_t heap);
int64_t bti_params_frozen(const bti_params *t);                 /* elements */
int32_t bti_params_find(const bti_params *t, const char *name); /* -1: none */
void bti_params_clear(bti_params *t);

/* First values of parameter i, elements from .. from + count - 1 (`from` a multiple of 4), into
 * `out` (of t->dtype): Xavier uniform
 * U(-a, a), a = sqrt(6 / (rows + cols)) (Glorot and Bengio 2010); embeddings N(0, 1/cols). From
 * Philox, counter (0, i, element), so the same on every device. */
void bti_params_init(const bti_params *t, int32_t i, uint64_t seed, int64_t from, int64_t count,
                     void *out);

#endif
