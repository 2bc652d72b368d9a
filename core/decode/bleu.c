/* Corpus BLEU with exponential smoothing (Post 2018). */
#include "core/decode/score.h"

#include <math.h>

#include "core/base/status.h"

bt_status bti_bleu_add(bti_bleu *b, bti_ngrams *g, const bti_tokens *hypothesis,
                       const bti_tokens *reference) {
    BT_TRY(bti_ngrams_match(g, hypothesis, reference, BTI_BLEU_ORDER, b->matches));
    int64_t h = (int64_t)hypothesis->count;
    for (int n = 0; n < BTI_BLEU_ORDER && n < h; n++) b->totals[n] += h - n;
    b->hypothesis_length += h;
    b->reference_length += (int64_t)reference->count;
    return BT_OK;
}

/* BLEU = BP exp(mean of log precisions); the k-th precision without a match becomes 1 / 2^k of a
 * match (exponential smoothing); no match at all, or an order without n-grams, gives 0. */
void bti_bleu_finish(bti_bleu *b) {
    double h = (double)b->hypothesis_length, r = (double)b->reference_length;
    double smooth = 1, sum = 0;
    b->brevity_penalty = h >= r ? 1 : h > 0 ? exp(1 - r / h) : 0;
    if (b->matches[0] == 0) return; /* then no longer n-gram matches either */
    for (int n = 0; n < BTI_BLEU_ORDER; n++) {
        if (b->totals[n] == 0) return;
        if (b->matches[n] == 0) smooth *= 2;
        double matches = b->matches[n] ? (double)b->matches[n] : 1 / smooth;
        b->precisions[n] = 100 * matches / (double)b->totals[n];
        sum += log(b->precisions[n]);
    }
    b->score = b->brevity_penalty * exp(sum / BTI_BLEU_ORDER);
}
