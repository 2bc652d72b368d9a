/* The optimiser's moments: how they are kept, and where. Weights and gradients know nothing of it.
 */
#ifndef BANTAM_MODEL_MOMENTS_H
#define BANTAM_MODEL_MOMENTS_H

#include "core/model/params.h"

/* memory.optimizer_state, in the order of its words. */
typedef enum bti_moments {
    BTI_MOMENTS_AUTO, /* the planner chooses between the next two, which give the same bits */
    BTI_MOMENTS_DEVICE,
    BTI_MOMENTS_HOST, /* in host memory; they come to the device and go back in each update */
    BTI_MOMENTS_8BIT, /* on the device, as codes and scales (op adamw8) */
    BTI_MOMENTS_COUNT
} bti_moments;
extern const char *const bti_moments_name[BTI_MOMENTS_COUNT];

/* What lies in the region of each moment.
 * DEVICE: values, where the weights that are not frozen lie in theirs.
 * HOST: two buckets, in turn; the values lie so in host memory.
 * 8BIT: the code of each value, one byte, then a scale for each block, in the same order; blocks
 * begin where parameters do. */
typedef struct bti_moment_places {
    bti_moments kind;
    uint64_t bytes;      /* of the region of each */
    uint64_t bucket;     /* HOST: bytes of one */
    uint64_t scales;     /* 8BIT: where scales begin */
    uint64_t host_bytes; /* HOST: of both moments */
} bti_moment_places;

/* What places of parameters must be multiples of, so that blocks of codes begin with them. */
uint64_t bti_moments_alignment(bti_moments kind, bt_dtype dtype);
/* After bti_params_place with the same alignment and heap. */
void bti_moments_place(const bti_params *t, bti_moments kind, uint64_t alignment, uint64_t heap,
                       bti_moment_places *out);
/* Places of the code of the value that lies at `address` in DEVICE, and of its block's scale. */
static inline uint64_t bti_code_address(const bti_params *t, uint64_t address) {
    return address / bti_dtype_size(t->dtype);
}
uint64_t bti_scale_address(const bti_moment_places *at, const bti_params *t, uint64_t address);
/* Bytes of n values of one moment, where the kind keeps them on the device for good; HOST: 0. */
uint64_t bti_moment_bytes(bti_moments kind, const bti_params *t, int64_t n);
/* n values of a moment (0 or 1) from their codes and scales, and back: the host's side of op
 * adamw8. The first is the first of a block. */
void bti_moment_widen(bt_dtype type, int moment, const uint8_t *code, const void *scale, int64_t n,
                      void *values);
void bti_moment_narrow(bt_dtype type, int moment, const void *values, int64_t n, uint8_t *code,
                       void *scale);
/* Blocks of n values. */
int64_t bti_moment_blocks(int64_t n);

#endif
