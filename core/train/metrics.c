#include "core/train/metrics.h"

#include <math.h>

#include "core/base/status.h"

int64_t bti_metrics_class(const float *outputs, int64_t n) {
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
        if (outputs[k] > outputs[best]) best = k;
    return best;
}

/* Decisions of one class, or of all. */
typedef struct tally {
    int64_t hits, claimed, true_ones; /* said and so; said; so */
} tally;

/* 2 precision recall / (precision + recall) */
static double f1_of(const tally *t) {
    int64_t all = t->claimed + t->true_ones;
    return all > 0 ? 2.0 * (double)t->hits / (double)all : 0;
}

static bt_status classes(const bti_model_config *m, const bti_sentence *sentence, int64_t n,
                         const float *outputs, bti_metrics *out) {
    tally *t = bti_alloc((size_t)m->outputs, sizeof *t);
    int64_t right = 0, occur = 0;
    double sum = 0;
    if (t == NULL) return BT_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        int64_t is = sentence[i].ids[1][0];
        int64_t said = bti_metrics_class(outputs + i * m->outputs, m->outputs);
        t[said].claimed++;
        t[is].true_ones++;
        t[is].hits += said == is;
        right += said == is;
    }
    for (int64_t k = 0; k < m->outputs; k++) {
        if (t[k].claimed + t[k].true_ones == 0) continue;
        sum += f1_of(&t[k]);
        occur++;
    }
    bti_free(t);
    out->accuracy = (double)right / (double)n;
    out->f1 = occur > 0 ? sum / (double)occur : NAN;
    return BT_OK;
}

/* Labels above 1/2, that is outputs above 0; or squares of differences. */
static bt_status values(const bti_model_config *m, const bti_sentence *sentence, int64_t n,
                        const float *outputs, bti_metrics *out) {
    float *want = bti_alloc((size_t)m->outputs, sizeof *want);
    tally t = {0};
    int64_t right = 0;
    double squares = 0;
    if (want == NULL) return BT_ENOMEM;
    for (int64_t i = 0; i < n; i++) {
        const float *got = outputs + i * m->outputs;
        int same = 1;
        sentence[i].dense->values(sentence[i].dense->user, sentence[i].example, want);
        for (int64_t k = 0; k < m->outputs; k++) {
            int is = want[k] > 0.5f, said = got[k] > 0;
            double d = (double)got[k] - (double)want[k];
            t.claimed += said;
            t.true_ones += is;
            t.hits += is && said;
            same &= is == said;
            squares += d * d;
        }
        right += same;
    }
    bti_free(want);
    if (m->head == BTI_HEAD_REGRESSION) {
        out->mse = squares / (double)(n * m->outputs);
        return BT_OK;
    }
    out->accuracy = (double)right / (double)n;
    out->f1 = f1_of(&t);
    return BT_OK;
}

bt_status bti_metrics_of(const bti_model_config *m, const bti_sentence *sentence, int64_t n,
                         const float *outputs, bti_metrics *out) {
    *out = (bti_metrics){NAN, NAN, NAN};
    if (bti_has_decoder(m) || n == 0) return BT_OK;
    return m->head == BTI_HEAD_CLASSIFICATION ? classes(m, sentence, n, outputs, out)
                                              : values(m, sentence, n, outputs, out);
}
