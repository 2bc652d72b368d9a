/* Heads: what a model is asked for. One descriptor says all that the rest asks of one: whether a
 * decoder writes text, what its targets are, how its loss is emitted and what a loss counts. */
#ifndef BANTAM_MODEL_HEAD_H
#define BANTAM_MODEL_HEAD_H

#include "core/model/model.h"

struct bti_build;

typedef enum bti_targets {
    BTI_TARGETS_TEXT,  /* ids of a sentence, one a row of the decoder */
    BTI_TARGETS_CLASS, /* one id for each example */
    BTI_TARGETS_VALUES /* `outputs` numbers for each example */
} bti_targets;

typedef struct bti_head {
    const char *name; /* in the run file */
    bti_targets targets;
    const char *unit;    /* what a loss is one of: the mean is over these */
    const char *measure; /* what it is measured in */
    /* Loss of rows at .. at+z.rows-1 of the outputs into `loss`, z.rows x 2; with training z
     * becomes its gradient. */
    void (*loss)(struct bti_build *b, bti_ref z, int64_t at, bti_ref loss);
} bti_head;

const bti_head *bti_head_of(const bti_model_config *c);
#endif
