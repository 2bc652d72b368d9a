/* How good the outputs of a head without a decoder are. */
#ifndef BANTAM_TRAIN_METRICS_H
#define BANTAM_TRAIN_METRICS_H

#include "core/train/engine.h"

/* NaN where the head has no such number. */
typedef struct bti_metrics {
    double accuracy; /* share of examples whose class, or whole set of labels, is right */
    double f1;       /* classes: mean over those that occur; labels: of all decisions together */
    double mse;      /* numbers: mean square of the differences */
} bti_metrics;

/* Of n examples; outputs n x model.outputs before softmax or sigmoid. */
bt_status bti_metrics_of(const bti_model_config *m, const bti_sentence *sentence, int64_t n,
                         const float *outputs, bti_metrics *out);
/* The class of an example: its largest output, of equal ones the first. */
int64_t bti_metrics_class(const float *outputs, int64_t n);

#endif
