/* How good the outputs of a head without a decoder are: the same numbers for validation, `bantam
 * predict --labels` and `bantam evaluate --labels`. */
#ifndef BANTAM_DECODE_METRICS_H
#define BANTAM_DECODE_METRICS_H

#include "core/engine/engine.h"

/* NaN where the head has no such number, or no example was seen. */
typedef struct bti_metrics {
    double accuracy; /* share of examples whose class, or whole set of labels, is right */
    double f1;       /* classes: mean over those that occur; labels: of all decisions together */
    double mse;      /* numbers: mean square of the differences */
} bti_metrics;

/* Counts over examples that come a block at a time, in memory that depends on the head alone. */
typedef struct bti_tally bti_tally;

/* Without any example yet. The configuration is borrowed. */
bt_status bti_tally_new(const bti_model_config *m, bti_tally **out);
void bti_tally_free(bti_tally *t);
void bti_tally_clear(bti_tally *t);
/* Adds n examples; outputs n x model.outputs before softmax or sigmoid. */
void bti_tally_add(bti_tally *t, const bti_sentence *sentence, int64_t n, const float *outputs);
bti_metrics bti_tally_metrics(const bti_tally *t);

/* The class of an example: its largest output, of equal ones the first. */
int64_t bti_metrics_class(const float *outputs, int64_t n);

#endif
