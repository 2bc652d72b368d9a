/* Corpus BLEU and chrF as sacreBLEU computes and signs them, one pair of lines after the other. */
#ifndef BANTAM_DECODE_SCORE_H
#define BANTAM_DECODE_SCORE_H

#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"
#include "core/decode/ngrams.h"

/* ---- from counts to a score (bleu.c, chrf.c) ---- */

enum { BTI_BLEU_ORDER = 4, BTI_CHRF_CHARS = 6, BTI_CHRF_WORDS = 2 };

typedef struct bti_bleu {
    int64_t hypothesis_length, reference_length;
    int64_t matches[BTI_BLEU_ORDER], totals[BTI_BLEU_ORDER];
    double score, precisions[BTI_BLEU_ORDER], brevity_penalty; /* by bti_bleu_finish */
} bti_bleu;

/* Counts a pair of lines; b is zero-initialised at first. */
bt_status bti_bleu_add(bti_bleu *b, bti_ngrams *g, const bti_tokens *hypothesis,
                       const bti_tokens *reference);
void bti_bleu_finish(bti_bleu *b);

/* N-grams of each order: characters first, then words. */
typedef struct bti_chrf {
    int64_t hypothesis[BTI_CHRF_CHARS + BTI_CHRF_WORDS];
    int64_t reference[BTI_CHRF_CHARS + BTI_CHRF_WORDS];
    int64_t matches[BTI_CHRF_CHARS + BTI_CHRF_WORDS];
} bti_chrf;

/* Adds the n-grams up to `order` of a pair of lines to the orders from `first` on. */
bt_status bti_chrf_add(bti_chrf *c, bti_ngrams *g, const bti_tokens *hypothesis,
                       const bti_tokens *reference, int first, int order);
double bti_chrf_finish(const bti_chrf *c, int word_order);

/* ---- a corpus in the making (score.c) ---- */

typedef struct bti_scorer bti_scorer;

/* Options NULL: all defaults. BT_EUSAGE when they are not of those allowed. */
bt_status bti_scorer_open(const bt_score_options *options, bti_scorer **out);
/* Counts a pair of lines (UTF-8, no line ends), which need not last. After a failure the counts are
 * of no use. */
bt_status bti_scorer_add(bti_scorer *s, const char *hypothesis, size_t hypothesis_bytes,
                         const char *reference, size_t reference_bytes);
/* Forgets all pairs of lines, not the memory that they took. */
void bti_scorer_clear(bti_scorer *s);
void bti_scorer_finish(bti_scorer *s, bt_scores *out);
void bti_scorer_close(bti_scorer *s);

#endif
