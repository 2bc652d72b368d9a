/* N-grams that two lines share. */
#ifndef BANTAM_DECODE_NGRAMS_H
#define BANTAM_DECODE_NGRAMS_H

#include "core/decode/tokenize.h"

/* The table behind it; reused for the next pair of lines, zero-initialised at first. */
typedef struct bti_ngrams {
    struct bti_ngram *table;
    size_t size; /* a power of two */
    uint64_t round;
    int64_t *number; /* of the tokens of a line */
    size_t number_room;
} bti_ngrams;

/* Adds to matches[n-1], n = 1 .. order, how many n-grams of the hypothesis are in the reference,
 * each at most as often as there. */
bt_status bti_ngrams_match(bti_ngrams *g, const bti_tokens *hypothesis, const bti_tokens *reference,
                           int order, int64_t *matches);
void bti_ngrams_free(bti_ngrams *g); /* what it holds */

#endif
