/* The examples of a part of a run: text, dense features and labels, brought together as the engine
 * reads them. A line that the corpus leaves out takes its features and labels along. */
#ifndef BANTAM_ENGINE_EXAMPLES_H
#define BANTAM_ENGINE_EXAMPLES_H

#include "core/engine/engine.h"
#include "core/engine/inputs.h"

typedef struct bti_examples {
    const bti_corpus *corpus; /* NULL: there is no text; borrowed */
    bti_inputs inputs;
    bti_head_kind head;
    int64_t count, outputs;
    int32_t *rows; /* of each feature of each line */
    bti_dense dense;
} bti_examples;

/* Opens the features and labels of a part; with `train` (may be NULL) of the same widths and
 * classes. They must go with the text line by line. `out` must not move afterwards. */
bt_status bti_examples_open(const bti_run_config *cfg, bti_part part, const bti_corpus *corpus,
                            const bti_examples *train, const volatile sig_atomic_t *stop,
                            bti_examples *out);
void bti_examples_close(bti_examples *x);
/* Example i; what it points to is owned by the examples. */
void bti_examples_get(const bti_examples *x, int64_t i, bti_sentence *out);
/* Its line, counted over all files from 1; without text its number. */
int64_t bti_examples_line(const bti_examples *x, int64_t i);
/* Most rows of each feature. */
int64_t bti_examples_most_rows(const bti_examples *x, int32_t feature);
/* Of text, features and labels, for resume: that of the text where there is nothing else. */
uint64_t bti_examples_checksum(const bti_examples *x);
/* Text, each feature and labels as a line "NAME: DESCRIPTION" with sizes and a checksum: what the
 * checksum above is of, in words. New text. */
bt_status bti_examples_describe(const bti_examples *x, char **text);

/* What labels are for a head. */
bti_label_kind bti_label_kind_of(bti_head_kind head);

#endif
