/* What the examples of a run have beside text: dense features and labels, of the training part or
 * of the held-out one. */
#ifndef BANTAM_ENGINE_INPUTS_H
#define BANTAM_ENGINE_INPUTS_H

#include "core/data/features.h"
#include "core/data/labels.h"
#include "core/run/run_file.h"

typedef struct bti_inputs {
    bti_features **feature; /* in order of the run file */
    size_t features;
    bti_labels *labels; /* NULL: the run has none */
} bti_inputs;

typedef enum bti_part { BTI_PART_TRAIN, BTI_PART_VALID } bti_part;

/* Opens and checks all files of a part. Labels are of this kind, those of the training part as many
 * as model.outputs where that is given. With `train` (may be NULL) rows
 * are as wide as those of that part, labels of its classes, or of as many numbers. */
bt_status bti_inputs_open(const bti_run_config *cfg, bti_part part, bti_label_kind kind,
                          const bti_inputs *train, const volatile sig_atomic_t *stop,
                          bti_inputs *out);
/* As many examples everywhere, BT_EINPUT with both counts: as `path` has lines; with NULL there is
 * no text, and the labels or the first feature count. */
bt_status bti_inputs_match(const bti_inputs *in, const bti_run_config *cfg, bti_part part,
                           const char *path, int64_t lines);
/* What is mixed row by row (model.fusion add and gate) has as many rows as example i of the text
 * has ids, or of the first feature where there is no text (`text` NULL); or one row for all. Else
 * BT_EINPUT with file, example and both counts. `text` is the file, for messages. */
bt_status bti_inputs_check_rows(bti_features *const *feature, size_t features, bti_fusion fusion,
                                int64_t i, const char *text, int64_t ids);
int64_t bti_inputs_count(const bti_inputs *in); /* examples; 0 where there is nothing */
void bti_inputs_close(bti_inputs *in);

#endif
