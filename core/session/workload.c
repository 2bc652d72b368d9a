#include "core/session/workload.h"

#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/session/distinct.h"

/* Updates that are looked at. Beyond them larger updates may come: the caps still hold, since an
 * update is cut into as many micro-batches as they ask for; what must be exact are the longest
 * sentence, known from the corpus, and the most sentences, distinct ids and target rows that memory
 * is sized for, which are bounded by batch and longest sentence then. */
#define SCANNED 200000

/* Sums over the updates looked at. */
typedef struct sums {
    double rows[2], sentences;
    int64_t updates, pairs;
} sums;

/* An example, with sides cut to max_length. */
static void get_example(const bti_updates *u, int64_t i, bti_sentence *s) {
    bti_examples_get(u->examples, i, s);
    for (int side = 0; side < 2; side++) s->count[side] = bti_min(s->count[side], u->max_length);
}

static void add_example(bti_workload *w, const bti_model *m, const bti_sentence *s, double times) {
    double a = (double)bti_encoder_rows(m, s), b = (double)s->count[1];
    w->mean_pairs[BTI_PAIRS_ENCODER] += times * a * a;
    w->mean_pairs[BTI_PAIRS_FUSION] += times * a * (double)bti_memory_rows(m, s);
    w->mean_tokens += times * (double)s->count[0];
    for (int32_t f = 0; f < m->cfg.features; f++) w->mean_feature[f] += times * (double)s->rows[f];
    if (!bti_has_decoder(&m->cfg)) return;
    w->mean_pairs[BTI_PAIRS_DECODER] += times * b * (b + 1) / 2;
    w->mean_pairs[BTI_PAIRS_CROSS] += times * a * b;
}

/* The most that an example has of each kind of row. */
static void add_longest(bti_workload *w, const bti_model *m, const bti_sentence *s) {
    w->longest[0] = bti_max(w->longest[0], bti_encoder_rows(m, s));
    w->longest[1] = bti_max(w->longest[1], s->count[1]);
    w->tokens = bti_max(w->tokens, s->count[0]);
    for (int32_t f = 0; f < m->cfg.features; f++)
        w->feature[f] = bti_max(w->feature[f], s->rows[f]);
}

static void add_update(bti_workload *w, sums *s, const int64_t rows[2], int64_t sentences) {
    for (int side = 0; side < 2; side++) {
        s->rows[side] += (double)rows[side];
        w->max_rows[side] = bti_max(w->max_rows[side], rows[side]);
    }
    s->sentences += (double)sentences;
    s->pairs += sentences;
    s->updates++;
    w->max_sentences = bti_max(w->max_sentences, sentences);
}

/* ---- samples ----------------------------------------------------------------------------------
 */

/* Updates that are remembered: some at even distances, and the largest of each side. */
typedef struct samples {
    int64_t (*rows[BTI_SAMPLED])[2];
    int64_t count[BTI_SAMPLED], capacity[BTI_SAMPLED];
    int64_t most[2];      /* rows of the largest ones, which come last */
    int64_t (*update)[2]; /* the one looked at */
    int64_t room;
} samples;
enum { EVEN = BTI_SAMPLED - 2 };

static void forget(samples *s) {
    for (int i = 0; i < BTI_SAMPLED; i++) bti_free(s->rows[i]);
    bti_free(s->update);
}

static bt_status make_room(int64_t (**rows)[2], int64_t *capacity, int64_t n) {
    if (n <= *capacity) return BT_OK;
    void *p = bti_realloc(*rows, (size_t)n, sizeof **rows);
    if (p == NULL) return BT_ENOMEM;
    *rows = p;
    *capacity = n;
    return BT_OK;
}

static bt_status remember(samples *s, int at, int64_t n) {
    BT_TRY(make_room(&s->rows[at], &s->capacity[at], n));
    memcpy(s->rows[at], s->update, (size_t)n * sizeof *s->update);
    s->count[at] = n;
    return BT_OK;
}

/* Update n of `last`, of `count` sentences and `sum` rows. */
static bt_status sample(samples *s, int64_t n, int64_t last, int64_t count, const int64_t sum[2]) {
    int64_t every = (last + EVEN - 1) / EVEN;
    if ((n - 1) % every == 0) BT_TRY(remember(s, (int)((n - 1) / every), count));
    for (int side = 0; side < 2; side++) {
        if (sum[side] <= s->most[side]) continue;
        s->most[side] = sum[side];
        BT_TRY(remember(s, EVEN + side, count));
    }
    return BT_OK;
}

/* One after the other into the workload. */
static bt_status join(const samples *s, bti_workload *w) {
    int64_t n = 0, at = 0;
    for (int i = 0; i < BTI_SAMPLED; i++) n += s->count[i];
    w->sample = bti_alloc((size_t)n, sizeof *w->sample);
    if (w->sample == NULL) return BT_ENOMEM;
    for (int i = 0; i < BTI_SAMPLED; i++) {
        if (s->count[i] == 0) continue;
        memcpy(w->sample + at, s->rows[i], (size_t)s->count[i] * sizeof *w->sample);
        at += s->count[i];
        w->sample_end[w->samples++] = at;
    }
    return BT_OK;
}

static bt_status scan(const bti_updates *u, bti_batcher *b, bti_distinct *distinct, bti_workload *w,
                      sums *s, samples *some) {
    const int64_t last = bti_min(u->last, SCANNED);
    for (int64_t n = 1; n <= last; n++) {
        const int64_t *pair;
        if (u->stop != NULL && *u->stop)
            return bti_fail(BT_ESTOPPED, "nothing is written: updates were being counted");
        if (u->most_pairs > 0 && s->pairs >= u->most_pairs) break;
        int64_t count, epoch, rows[2] = {0, 0};
        BT_TRY(bti_batcher_get(b, n, &pair, &count, &epoch));
        bti_distinct_update(distinct);
        BT_TRY(make_room(&some->update, &some->room, count));
        for (int64_t i = 0; i < count; i++) {
            bti_sentence x;
            get_example(u, pair[i], &x);
            if (u->examples->corpus != NULL)
                bti_distinct_pair(distinct, u->examples->corpus, pair[i]);
            some->update[i][0] = bti_encoder_rows(u->model, &x);
            some->update[i][1] = x.count[1];
            for (int side = 0; side < 2; side++) rows[side] += some->update[i][side];
            add_example(w, u->model, &x, 1);
        }
        add_update(w, s, rows, count);
        BT_TRY(sample(some, n, last, count, rows));
    }
    return BT_OK;
}

static bt_status measure_text(const bti_updates *u, bti_workload *w, sums *s) {
    bti_distinct distinct;
    bti_batcher *b;
    samples some = {0};
    BT_TRY(
        bti_batcher_new(u->examples->corpus, u->examples->count, u->batch, u->unit, u->seed, &b));
    bt_status status = bti_distinct_new(u->counted, u->start, &distinct);
    if (status == BT_OK) status = scan(u, b, &distinct, w, s, &some);
    if (status == BT_OK) status = join(&some, w);
    forget(&some);
    for (int i = 0; i < 2; i++) w->max_distinct[i] = bti_distinct_most(&distinct, i);
    bti_distinct_free(&distinct);
    bti_batcher_free(b);
    bti_workload_add_longest(u, u->examples, w);
    if (u->last <= SCANNED) return status;
    for (int i = 0; i < 2; i++) w->max_distinct[i] = u->batch * w->longest[i];
    if (u->unit == BTI_BATCH_SENTENCES) {
        w->max_rows[1] = u->batch * w->longest[1];
    } else {
        w->max_sentences = u->batch;
        w->max_rows[1] = bti_max(u->batch, w->longest[1]);
    }
    return status;
}

/* All updates are one: so many equal pairs. */
static bt_status measure_assumed(const bti_updates *u, bti_workload *w, sums *s) {
    const bti_model_config *c = &u->model->cfg;
    int64_t rows[2], n = u->batch;
    int32_t most[BTI_MAX_FEATURES];
    for (int32_t f = 0; f < c->features; f++) most[f] = (int32_t)c->feature[f].rows;
    bti_sentence x = {.rows = most};
    for (int side = 0; side < 2; side++) x.count[side] = bti_min(u->lengths[side], u->max_length);
    if (!bti_has_decoder(c)) x.count[1] = 1;
    add_longest(w, u->model, &x);
    if (u->unit == BTI_BATCH_TARGET_TOKENS) n = bti_max(1, u->batch / bti_max(1, w->longest[1]));
    for (int side = 0; side < 2; side++) rows[side] = n * w->longest[side];
    add_example(w, u->model, &x, (double)n);
    add_update(w, s, rows, n);
    w->alike = 1;
    return BT_OK;
}

void bti_workload_add_longest(const bti_updates *u, const bti_examples *x, bti_workload *w) {
    bti_updates part = *u;
    part.examples = x;
    for (int64_t i = 0; i < x->count; i++) {
        bti_sentence s;
        get_example(&part, i, &s);
        add_longest(w, u->model, &s);
    }
}

bt_status bti_workload_measure(const bti_updates *u, bti_workload *out) {
    bti_workload w = {0};
    sums s = {0};
    bt_status status = u->examples != NULL ? measure_text(u, &w, &s) : measure_assumed(u, &w, &s);
    if (status != BT_OK) {
        bti_workload_clear(&w);
        return status;
    }
    for (int i = 0; i < BTI_PAIRS; i++) w.mean_pairs[i] /= s.sentences;
    w.mean_tokens /= s.sentences;
    for (int f = 0; f < BTI_MAX_FEATURES; f++) w.mean_feature[f] /= s.sentences;
    for (int side = 0; side < 2; side++) w.mean_rows[side] = s.rows[side] / (double)s.updates;
    w.mean_sentences = s.sentences / (double)s.updates;
    *out = w;
    return BT_OK;
}

int64_t bti_workload_touched(const bti_corpus *c, int64_t max_length, int64_t *first_line) {
    int64_t touched = 0;
    for (int64_t i = 0; i < bti_corpus_count(c); i++) {
        int64_t x, y;
        bti_corpus_source(c, i, &x);
        bti_corpus_target(c, i, &y);
        if (x <= max_length && y <= max_length) continue;
        if (touched++ == 0) *first_line = bti_corpus_line(c, i);
    }
    return touched;
}
