/* chrF (Popovic 2015) and chrF++ (2017): the F score of the mean precision and the mean recall over
 * all orders that both sides have n-grams of. */
#include "core/decode/score.h"

#include "core/base/status.h"

/* How many times recall counts as much as precision. */
enum { BETA = 2 };

bt_status bti_chrf_add(bti_chrf *c, bti_ngrams *g, const bti_tokens *hypothesis,
                       const bti_tokens *reference, int first, int order) {
    int64_t h = (int64_t)hypothesis->count, r = (int64_t)reference->count;
    BT_TRY(bti_ngrams_match(g, hypothesis, reference, order, c->matches + first));
    /* Where a reference is too short for an order, the hypothesis does not count either. */
    for (int n = 0; n < order && n < r; n++) {
        c->reference[first + n] += r - n;
        if (n < h) c->hypothesis[first + n] += h - n;
    }
    return BT_OK;
}

double bti_chrf_finish(const bti_chrf *c, int word_order) {
    double precision = 0, recall = 0, factor = BETA * BETA;
    int orders = 0;
    for (int n = 0; n < BTI_CHRF_CHARS + word_order; n++) {
        if (c->hypothesis[n] == 0 || c->reference[n] == 0) continue;
        precision += (double)c->matches[n] / (double)c->hypothesis[n];
        recall += (double)c->matches[n] / (double)c->reference[n];
        orders++;
    }
    if (orders == 0 || precision + recall == 0) return 0;
    precision /= orders;
    recall /= orders;
    return 100 * (1 + factor) * precision * recall / (factor * precision + recall);
}
