/* How many distinct ids an update has, over the updates of a run: what compact gradients must have
 * room for. */
#ifndef BANTAM_SESSION_DISTINCT_H
#define BANTAM_SESSION_DISTINCT_H

#include "core/data/corpus.h"

typedef struct bti_distinct {
    uint32_t *last[2]; /* of each symbol: the update that had it last, from 1 */
    int32_t start;     /* what stands before the first target symbol */
    uint32_t update;
    int64_t found[2], most[2]; /* in this update; in any */
    int64_t seen;              /* ids looked at */
} bti_distinct;

/* One count at a time; bti_distinct_free also after a failure. A side with a vocabulary of 0 is not
 * counted. */
bt_status bti_distinct_new(const int64_t vocab[2], int32_t start, bti_distinct *out);
void bti_distinct_free(bti_distinct *d);
/* Begins the next update; then its pairs. */
void bti_distinct_update(bti_distinct *d);
void bti_distinct_pair(bti_distinct *d, const bti_corpus *c, int64_t pair);
/* The most of any update on a side; 0: not known, as it was not counted or there were too many ids
 * to look at. */
int64_t bti_distinct_most(const bti_distinct *d, int side);

#endif
