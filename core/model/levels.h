/* Levels of recomputation: what a layer keeps of its forward pass; backward makes the rest again.
 */
#ifndef BANTAM_MODEL_LEVELS_H
#define BANTAM_MODEL_LEVELS_H

#include "core/model/model.h"

/* Each keeps a part of what the one before it keeps. Rows x d_model that an encoder layer keeps
 * (post-norm, relu, ff = 4 d_model), and which of its forward products run twice: */
typedef enum bti_level {
    BTI_LEVEL_NONE,     /* 12: everything is kept */
    BTI_LEVEL_CHEAP,    /* 10: norms, residual sums, gelu and dropout are made again */
    BTI_LEVEL_FF,       /*  6: linear1 too */
    BTI_LEVEL_BLOCKS,   /*  3: q, k, v too; kept are attention and what blocks give */
    BTI_LEVEL_LAYERS,   /*  1: only the layer's input is kept */
    BTI_LEVEL_SEGMENTS, /* 1/k: only every k-th input; layers below run once more for theirs */
    BTI_LEVEL_COUNT
} bti_level;

extern const char *const bti_level_name[BTI_LEVEL_COUNT];
/* Kept classes; of SEGMENTS those of a layer whose output is not kept. */
extern const uint32_t bti_level_keep[BTI_LEVEL_COUNT];

/* Puts layers from .. to-1 (counted over both stacks, the encoder first) on a level; keep has an
 * entry for each layer of the model and is left alone elsewhere. `segment` is k of SEGMENTS,
 * counted from `from` in each stack; the others ignore it. What layer `to` and the final norms read
 * is kept. */
void bti_level_fill(const bti_model *m, bti_level level, int32_t from, int32_t to, int32_t segment,
                    uint32_t *keep);

#endif
