/* Pairs of lines of a parallel text, tokenised on all cores and handed over in order. */
#ifndef BANTAM_DATA_LINE_PAIRS_H
#define BANTAM_DATA_LINE_PAIRS_H

#include "core/data/corpus.h"

typedef struct bti_encoded_pair {
    size_t file;         /* which pair of files */
    int64_t line;        /* in them, from 1 */
    const char *text[2]; /* without line ends, not closed by a NUL */
    size_t bytes[2];
    const int32_t *ids[2]; /* no end symbols; none on both sides where a side is blank, and none
                              of a side without files */
    int64_t count[2];
} bti_encoded_pair;

/* What it is given lasts until it returns; anything but BT_OK ends the reading. */
typedef bt_status (*bti_pair_fn)(void *user, const bti_encoded_pair *pair);

/* Calls fn on this thread, while others tokenise what comes next. Memory is bounded by the number
 * of cores and the longest line. The text has been checked (bti_corpus_check). */
bt_status bti_encode_pairs(const bti_corpus_config *cfg, const bti_tokenizer *const tokenizer[2],
                           bti_pair_fn fn, void *user);

/* BT_ESTOPPED once *cfg->stop is set. */
bt_status bti_corpus_stopped(const bti_corpus_config *cfg);

#endif
