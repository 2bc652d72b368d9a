/* Beam search on the host: hypotheses, scores and the rule that ends it. The caller runs the model
 * between bti_beam_get_live and bti_beam_advance, so that tests can script the scores. */
#ifndef BANTAM_DECODE_BEAM_H
#define BANTAM_DECODE_BEAM_H

#include <stdint.h>

#include "core/bantam.h"

typedef struct bti_beam_config {
    int32_t beam;          /* hypotheses kept, >= 1 */
    int32_t candidates;    /* best next symbols that a step gives for each hypothesis: 2 * beam, at
                              most the vocabulary */
    int32_t end;           /* end symbol */
    double length_penalty; /* score = sum of log-probabilities / length^penalty, length counts the
                              end symbol */
    int32_t nbest;         /* results a sentence, 1..beam */
    int32_t max_sentences; /* capacity */
    int32_t max_length;    /* largest length limit, end symbol included */
} bti_beam_config;

typedef struct bti_hypothesis {
    const int32_t *ids; /* without start and end symbol; the search's, until the next start */
    int32_t length;
    double score; /* normalised */
    double log_prob;
    uint8_t cut; /* the length limit ended it, not the end symbol */
} bti_hypothesis;

typedef struct bti_beam bti_beam;

/* All memory is taken here (bytes as bti_beam_bytes says). */
uint64_t bti_beam_bytes(const bti_beam_config *cfg);
bt_status bti_beam_new(const bti_beam_config *cfg, bti_beam **out);
void bti_beam_free(bti_beam *b);

/* Begins with `sentences` sentences of length limits max_length[i] (symbols, end included). */
bt_status bti_beam_start(bti_beam *b, int32_t sentences, const int32_t *max_length);

/* What the next model step must run: `count` live hypotheses in order of sentence. */
typedef struct bti_beam_live {
    int32_t count;
    const int32_t *sentence; /* of each */
    const int32_t *last;     /* its newest symbol; -1 at the first step: the start symbol */
    const int32_t *row;      /* its row in the step before (which it extends), -1 at the first:
                                cache indices of the new row = those of `row`, then the new one */
    int32_t step;            /* from 0 */
} bti_beam_live;
bti_beam_live bti_beam_get_live(const bti_beam *b);

/* Takes log-probabilities and ids, count x candidates, best first (id -1: none). Finished
 * hypotheses leave, a sentence ends when no live one can still beat its nbest-th finished one, or
 * at its limit. A NaN is BT_ENUMERIC. Afterwards live.count is 0 when all is done. */
bt_status bti_beam_advance(bti_beam *b, const float *log_prob, const int32_t *id);

/* Results of a sentence, best first; *count is at most nbest. */
bt_status bti_beam_results(const bti_beam *b, int32_t sentence, bti_hypothesis *out,
                           int32_t *count);

#endif
