/* What the updates of a run look like: rows, sentences, pairs of tokens, as the planner wants them.
 * Counted from the text, or assumed. */
#ifndef BANTAM_SESSION_WORKLOAD_H
#define BANTAM_SESSION_WORKLOAD_H

#include "core/engine/examples.h"

/* Updates of a run, or of one like it with another batch or shorter sentences. */
typedef struct bti_updates {
    const bti_examples *examples; /* NULL: every pair has `lengths`, every feature its most rows */
    const bti_model *model;       /* what reads them */
    int64_t lengths[2];           /* source and target tokens, end symbols included */
    int64_t counted[2];           /* symbols of the tables whose rows are worth counting; 0: not */
    int32_t start;                /* what stands before the first target symbol */
    int64_t batch;
    bti_batch_unit unit;
    uint64_t seed;
    int64_t last;       /* updates of the run */
    int64_t max_length; /* sides are cut to so many tokens */
    int64_t most_pairs; /* 0, or a count ends when so many pairs have been looked at: for plans of
                           what might be */
    const volatile sig_atomic_t *stop; /* non-zero: counting ends with BT_ESTOPPED; may be NULL */
} bti_updates;

/* Counts the first updates. With a shorter max_length than the corpus has, updates are formed as
 * without. The caller clears the workload. */
bt_status bti_workload_measure(const bti_updates *u, bti_workload *out);

/* Counts the longest of other examples in, which run under the same caps. */
void bti_workload_add_longest(const bti_updates *u, const bti_examples *x, bti_workload *w);

/* Pairs that a limit of `max_length` tokens a side would cut, and the line of the first. */
int64_t bti_workload_touched(const bti_corpus *c, int64_t max_length, int64_t *first_line);

#endif
