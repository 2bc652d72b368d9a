#include "core/decode/metrics.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"

/* Decisions of one class, or of all. */
typedef struct decisions {
    int64_t hits, claimed, true_ones; /* said and so; said; so */
} decisions;

struct bti_tally {
    const bti_model_config *m;
    int64_t examples, right;
    decisions *kind; /* of each class; of labels all together in the first */
    double squares;
    float *want; /* values of one example */
};

int64_t bti_metrics_class(const float *outputs, int64_t n) {
    int64_t best = 0;
    for (int64_t k = 1; k < n; k++)
        if (outputs[k] > outputs[best]) best = k;
    return best;
}

bt_status bti_tally_new(const bti_model_config *m, bti_tally **out) {
    bti_tally *t = bti_alloc(1, sizeof *t);
    if (t == NULL) return BT_ENOMEM;
    t->m = m;
    t->kind = bti_alloc((size_t)m->outputs, sizeof *t->kind);
    t->want = bti_alloc((size_t)m->outputs, sizeof *t->want);
    if (t->kind == NULL || t->want == NULL) {
        bti_tally_free(t);
        return BT_ENOMEM;
    }
    *out = t;
    return BT_OK;
}

void bti_tally_free(bti_tally *t) {
    if (t == NULL) return;
    bti_free(t->kind);
    bti_free(t->want);
    bti_free(t);
}

void bti_tally_clear(bti_tally *t) {
    memset(t->kind, 0, (size_t)t->m->outputs * sizeof *t->kind);
    t->examples = t->right = 0;
    t->squares = 0;
}

/* ---- one example -------------------------------------------------------------------------------
 */

static void add_class(bti_tally *t, int64_t is, const float *outputs) {
    int64_t said = bti_metrics_class(outputs, t->m->outputs);
    t->kind[said].claimed++;
    t->kind[is].true_ones++;
    t->kind[is].hits += said == is;
    t->right += said == is;
}

/* Labels above 1/2, that is outputs above 0. */
static void add_labels(bti_tally *t, const float *outputs) {
    int same = 1;
    for (int64_t k = 0; k < t->m->outputs; k++) {
        int is = t->want[k] > 0.5f, said = outputs[k] > 0;
        t->kind->claimed += said;
        t->kind->true_ones += is;
        t->kind->hits += is && said;
        same &= is == said;
    }
    t->right += same;
}

static void add_numbers(bti_tally *t, const float *outputs) {
    for (int64_t k = 0; k < t->m->outputs; k++) {
        double d = (double)outputs[k] - (double)t->want[k];
        t->squares += d * d;
    }
}

void bti_tally_add(bti_tally *t, const bti_sentence *sentence, int64_t n, const float *outputs) {
    for (int64_t i = 0; i < n; i++, outputs += t->m->outputs) {
        const bti_sentence *s = &sentence[i];
        if (t->m->head == BTI_HEAD_CLASSIFICATION) {
            add_class(t, s->ids[1][0], outputs);
            continue;
        }
        s->dense->values(s->dense->user, s->example, t->want);
        if (t->m->head == BTI_HEAD_REGRESSION)
            add_numbers(t, outputs);
        else
            add_labels(t, outputs);
    }
    t->examples += n;
}

/* ---- all of them -------------------------------------------------------------------------------
 */

/* 2 precision recall / (precision + recall) */
static double f1_of(const decisions *d) {
    int64_t all = d->claimed + d->true_ones;
    return all > 0 ? 2.0 * (double)d->hits / (double)all : 0;
}

/* Mean over the classes that were said or so. */
static double f1_of_classes(const bti_tally *t) {
    int64_t occur = 0;
    double sum = 0;
    for (int64_t k = 0; k < t->m->outputs; k++) {
        if (t->kind[k].claimed + t->kind[k].true_ones == 0) continue;
        sum += f1_of(&t->kind[k]);
        occur++;
    }
    return sum / (double)occur;
}

bti_metrics bti_tally_metrics(const bti_tally *t) {
    bti_metrics m = {NAN, NAN, NAN};
    double n = (double)t->examples;
    if (t->examples == 0) return m;
    if (t->m->head == BTI_HEAD_REGRESSION) {
        m.mse = t->squares / (n * (double)t->m->outputs);
        return m;
    }
    m.accuracy = (double)t->right / n;
    m.f1 = t->m->head == BTI_HEAD_CLASSIFICATION ? f1_of_classes(t) : f1_of(t->kind);
    return m;
}
