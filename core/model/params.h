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
    int frozen;       /* keeps its value: it has no gradient and no moments */
    uint64_t address; /* bytes from the start of each of the four state regions */
} bti_param;

typedef struct bti_params {
    bti_param *param;
    int32_t count, capacity;
    int64_t elements; /* parameters of the model */
    uint64_t bytes;   /* of the region of weights */
    uint64_t trained; /* of those of gradients and moments, which are its beginning */
    bt_dtype dtype;
} bti_params;

/* Adds one; its index, -1 when out of memory. Places are multiples of `alignment` and cross no
 * multiple of `heap` (0: no limit); the frozen ones come last. */
int32_t bti_params_add(bti_params *t, const char *name, int dims, int64_t rows, int64_t cols,
                       bti_init init);
bt_status bti_params_place(bti_params *t, uint64_t alignment, uint64_t heap);
int64_t bti_params_frozen(const bti_params *t);                 /* elements */
int32_t bti_params_find(const bti_params *t, const char *name); /* -1: none */
void bti_params_clear(bti_params *t);

/* First values of parameter i into `out` (rows x cols of t->dtype): Xavier uniform
 * U(-a, a), a = sqrt(6 / (rows + cols)) (Glorot and Bengio 2010); embeddings N(0, 1/cols). From
 * Philox, counter (0, i, element), so the same on every device. */
void bti_params_init(const bti_params *t, int32_t i, uint64_t seed, void *out);

#endif
