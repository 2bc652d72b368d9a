/* Which pairs form update n: a function of data, batch, unit and seed only.
 *
 * Each epoch is a permutation of all pairs, keyed by seed and epoch, cut into updates in order; the
 * last update of an epoch may be smaller. The permutation is computed, not stored: memory is that
 * of one update, however long the text is. */
#ifndef BANTAM_DATA_BATCHER_H
#define BANTAM_DATA_BATCHER_H

#include "core/data/corpus.h"

typedef enum bti_batch_unit { BTI_BATCH_SENTENCES, BTI_BATCH_TARGET_TOKENS } bti_batch_unit;

typedef struct bti_batcher bti_batcher;

/* Of `count` examples. target_tokens: pairs are added while the sum stays within `batch`; at least
 * one. c NULL: each counts as one, as a sentence does. */
bt_status bti_batcher_new(const bti_corpus *c, int64_t count, int64_t batch, bti_batch_unit unit,
                          uint64_t seed, bti_batcher **out);
void bti_batcher_free(bti_batcher *b);

/* Pairs of update n (from 1), in place order, and its epoch (from 1). The array is the batcher's,
 * valid until the next call. Going forward one update at a time is cheap and allocates nothing. */
bt_status bti_batcher_get(bti_batcher *b, int64_t update, const int64_t **pairs, int64_t *count,
                          int64_t *epoch);
/* Updates of the first `epochs` epochs, `most` (0: no limit) where there are more. Tokens must be
 * gone through, as far as that; BT_ESTOPPED once *stop (may be NULL) is set meanwhile. */
bt_status bti_batcher_updates(bti_batcher *b, int64_t epochs, int64_t most,
                              const volatile sig_atomic_t *stop, int64_t *out);

#endif
