/* Beam search over scripted scores: fault cases F1 and F2, an exhaustive search over small random
 * language models, and the rules one by one. */
#include "core/decode/beam.h"

#include "tests/kit.h"

/* A language model: fills log-probabilities of the next symbol after `length` ids. */
typedef struct model {
    void (*next)(const struct model *m, const int32_t *ids, int32_t length, float *log_prob);
    int32_t vocabulary;
    uint64_t seed;
} model;

#define MAX_LENGTH 64
#define MAX_ROWS 512
#define MAX_VOCABULARY 16
#define END 0

/* ---- what runs a search as the translator does ----------------------------------------------- */

typedef struct driver {
    bti_beam *beam;
    bti_beam_config cfg;
    int32_t ids[2][MAX_ROWS][MAX_LENGTH]; /* prefix of each row, followed through live.row */
    float log_prob[MAX_ROWS * MAX_VOCABULARY];
    int32_t id[MAX_ROWS * MAX_VOCABULARY];
    int32_t steps, rows; /* model steps and rows run */
} driver;

static driver shared_driver;

/* Best `candidates` of one row, best first, ties to the smaller id, then -infinity and -1. */
static void top(const driver *d, const float *all, int32_t vocabulary, float *log_prob,
                int32_t *id) {
    int taken[MAX_VOCABULARY] = {0};
    for (int32_t k = 0; k < d->cfg.candidates; k++) {
        int32_t best = -1;
        for (int32_t v = 0; v < vocabulary; v++)
            if (!taken[v] && all[v] > -INFINITY && (best < 0 || all[v] > all[best])) best = v;
        id[k] = best;
        log_prob[k] = best < 0 ? -INFINITY : all[best];
        if (best >= 0) taken[best] = 1;
    }
}

static void one_step(driver *d, const model *const *models) {
    bti_beam_live live = bti_beam_get_live(d->beam);
    ck_assert_int_le(live.count, MAX_ROWS);
    ck_assert_int_eq(live.step, d->steps);
    int from = (live.step + 1) % 2, to = live.step % 2;
    for (int32_t r = 0; r < live.count; r++) {
        float all[MAX_VOCABULARY];
        if (r > 0) ck_assert_int_ge(live.sentence[r], live.sentence[r - 1]);
        if (live.step == 0) {
            ck_assert_int_eq(live.last[r], -1);
            ck_assert_int_eq(live.row[r], -1);
        } else {
            ck_assert_int_ne(live.last[r], END);
            memcpy(d->ids[to][r], d->ids[from][live.row[r]], sizeof d->ids[to][r]);
            d->ids[to][r][live.step - 1] = live.last[r];
        }
        const model *m = models[live.sentence[r]];
        m->next(m, d->ids[to][r], live.step, all);
        size_t at = (size_t)r * (size_t)d->cfg.candidates;
        top(d, all, m->vocabulary, d->log_prob + at, d->id + at);
    }
    d->rows += live.count;
    d->steps++;
}

static driver *search(bti_beam_config cfg, const model *const *models, const int32_t *limits,
                      int32_t sentences) {
    driver *d = &shared_driver;
    d->cfg = cfg;
    d->steps = d->rows = 0;
    kit_ok(bti_beam_new(&cfg, &d->beam));
    uint64_t before = bti_alloc_count();
    kit_ok(bti_beam_start(d->beam, sentences, limits));
    while (bti_beam_get_live(d->beam).count > 0) {
        one_step(d, models);
        kit_ok(bti_beam_advance(d->beam, d->log_prob, d->id));
    }
    ck_assert_uint_eq(bti_alloc_count(), before);
    return d;
}

/* Results are sorted, without duplicates, each ended once: at the end or cut. */
static int32_t results(const driver *d, int32_t sentence, bti_hypothesis *out) {
    int32_t n = -1;
    kit_ok(bti_beam_results(d->beam, sentence, out, &n));
    ck_assert_int_ge(n, 1);
    ck_assert_int_le(n, d->cfg.nbest);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t t = 0; t < out[i].length; t++) ck_assert_int_ne(out[i].ids[t], END);
        int32_t counted = out[i].length + !out[i].cut;
        if (counted == 0) counted = 1; /* cut before any symbol */
        kit_near(out[i].score, out[i].log_prob / pow(counted, d->cfg.length_penalty), 1e-12);
        if (i > 0 && out[i].cut == out[i - 1].cut)
            ck_assert_double_le(out[i].score, out[i - 1].score);
        if (i > 0) ck_assert_int_ge(out[i].cut, out[i - 1].cut);
        for (int32_t j = 0; j < i; j++)
            ck_assert(out[i].length != out[j].length || out[i].cut != out[j].cut ||
                      memcmp(out[i].ids, out[j].ids, 4 * (size_t)out[i].length) != 0);
    }
    return n;
}

static void finish(driver *d) { bti_beam_free(d->beam); }

static bti_beam_config config(int32_t beam, int32_t vocabulary, double penalty, int32_t nbest) {
    return (bti_beam_config){.beam = beam,
                             .candidates = 2 * beam < vocabulary ? 2 * beam : vocabulary,
                             .end = END,
                             .length_penalty = penalty,
                             .nbest = nbest,
                             .max_sentences = 20,
                             .max_length = 50};
}

/* ---- models ---------------------------------------------------------------------------------- */

static void f2_script(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    (void)m, (void)ids;
    log_prob[0] = length == 0 ? logf(0.55f) : length < 3 ? -INFINITY : 0;
    log_prob[1] = length == 0 ? logf(0.45f) : length < 3 ? 0 : -INFINITY;
}

static void never_ends(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    (void)m, (void)ids, (void)length;
    log_prob[0] = -INFINITY;
    log_prob[1] = logf(0.6f);
    log_prob[2] = logf(0.4f);
}

/* The end comes third after the start, first after 1, second after 2; 3 leads nowhere. */
static void third_ends(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    (void)m;
    static const float table[4][4] = {
        {0.2f, 0.4f, 0.3f, 0.1f}, {0.8f, 0.1f, 0.1f, 0}, {0.4f, 0, 0.6f, 0}, {0, 0, 0, 0}};
    const float *p = table[length == 0 ? 0 : ids[length - 1]];
    for (int i = 0; i < 4; i++) log_prob[i] = logf(p[i]);
}

static void nothing(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    (void)ids, (void)length;
    for (int32_t i = 0; i < m->vocabulary; i++) log_prob[i] = -INFINITY;
}

static void all_equal(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    (void)ids, (void)length;
    for (int32_t i = 0; i < m->vocabulary; i++) log_prob[i] = logf(1.0f / (float)m->vocabulary);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Every prefix has its own distribution. */
static void random_model(const model *m, const int32_t *ids, int32_t length, float *log_prob) {
    uint64_t h = mix(m->seed + 0x9e3779b97f4a7c15u);
    for (int32_t i = 0; i < length; i++) h = mix(h * 31 + (uint64_t)ids[i] + 1);
    double weight[MAX_VOCABULARY], sum = 0;
    for (int32_t v = 0; v < m->vocabulary; v++) {
        h = mix(h + 0x9e3779b97f4a7c15u);
        sum += weight[v] = exp(4.0 * (double)(h >> 11) * 0x1p-53);
    }
    for (int32_t v = 0; v < m->vocabulary; v++) log_prob[v] = (float)log(weight[v] / sum);
}

/* ---- exhaustive search ----------------------------------------------------------------------- */

typedef struct hypothesis {
    int32_t ids[MAX_LENGTH], length, cut;
    double score;
} hypothesis;

typedef struct space {
    hypothesis all[1024];
    int32_t count;
} space;

static int by_score(const void *a, const void *b) {
    const hypothesis *x = a, *y = b;
    if (x->cut != y->cut) return x->cut - y->cut;
    return (x->score < y->score) - (x->score > y->score);
}

static void walk(space *sp, const model *m, double penalty, int32_t limit, int32_t *ids,
                 int32_t length, double log_prob) {
    float next[MAX_VOCABULARY];
    m->next(m, ids, length, next);
    for (int32_t v = 0; v < m->vocabulary; v++) {
        double sum = log_prob + (double)next[v];
        ids[length] = v;
        if (v == END || length + 1 == limit) {
            hypothesis *h = &sp->all[sp->count++];
            h->length = v == END ? length : limit;
            h->cut = v != END;
            h->score = sum / pow(length + 1, penalty);
            memcpy(h->ids, ids, 4 * (size_t)h->length);
        } else {
            walk(sp, m, penalty, limit, ids, length + 1, sum);
        }
    }
}

static void against_exhaustive(uint64_t seed, double penalty, int32_t nbest) {
    static space sp;
    const model m = {random_model, 4, seed}, *models[] = {&m};
    int32_t ids[MAX_LENGTH], limit = 5;
    sp.count = 0;
    walk(&sp, &m, penalty, limit, ids, 0, 0);
    ck_assert_int_eq(sp.count, 1 + 3 + 9 + 27 + 81 + 243);
    qsort(sp.all, (size_t)sp.count, sizeof sp.all[0], by_score);
    bti_beam_config cfg = config(324, 4, penalty, nbest); /* 81 x 4 candidates at most */
    bti_hypothesis out[324];
    driver *d = search(cfg, models, &limit, 1);
    int32_t n = results(d, 0, out);
    ck_assert_int_eq(n, nbest);
    for (int32_t i = 0; i < n; i++) {
        ck_assert_int_eq(out[i].cut, sp.all[i].cut);
        ck_assert_int_eq(out[i].length, sp.all[i].length);
        ck_assert_mem_eq(out[i].ids, sp.all[i].ids, 4 * (size_t)out[i].length);
        kit_near(out[i].score, sp.all[i].score, 1e-12);
    }
    finish(d);
}

START_TEST(a_beam_as_large_as_the_space_is_exhaustive) {
    static const double penalties[] = {0, 0.6, 1, 2};
    for (uint64_t seed = 1; seed <= 10; seed++)
        for (int p = 0; p < 4; p++) {
            against_exhaustive(seed, penalties[p], 1);
            against_exhaustive(seed, penalties[p], 7);
            against_exhaustive(seed, penalties[p], 130); /* 121 end, 9 of the cut ones follow */
        }
}
END_TEST

/* ---- case F2 --------------------------------------------------------------------------------- */

START_TEST(f2_penalty_decides) {
    const model m = {f2_script, 2, 0}, *models[] = {&m};
    bti_hypothesis out[2];
    int32_t limit = 50;
    driver *d = search(config(2, 2, 0, 1), models, &limit, 1);
    ck_assert_int_eq(results(d, 0, out), 1);
    ck_assert_int_eq(out[0].length, 0);
    ck_assert_int_eq(out[0].cut, 0);
    kit_near(out[0].score, -0.597837, 1e-6);
    ck_assert_int_eq(d->steps, 1); /* 0.45 can only fall */
    finish(d);

    static const int32_t xxx[] = {1, 1, 1};
    d = search(config(2, 2, 1, 2), models, &limit, 1);
    ck_assert_int_eq(results(d, 0, out), 2);
    ck_assert_int_eq(out[0].length, 3);
    ck_assert_mem_eq(out[0].ids, xxx, sizeof xxx);
    ck_assert_int_eq(out[0].cut, 0);
    kit_near(out[0].score, -0.199627, 1e-6);
    ck_assert_int_eq(out[1].length, 0);
    kit_near(out[1].score, -0.597837, 1e-6);
    ck_assert_int_eq(d->steps, 4);
    finish(d);
}
END_TEST

START_TEST(f2_no_end_is_cut_at_the_limit) {
    const model m = {never_ends, 3, 0}, *models[] = {&m};
    int32_t limit = 50;
    for (int penalty = 0; penalty < 2; penalty++) {
        bti_hypothesis out[4];
        driver *d = search(config(4, 3, penalty, 4), models, &limit, 1);
        ck_assert_int_eq(results(d, 0, out), 4);
        ck_assert_int_eq(d->steps, 50);
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(out[i].cut, 1);
            ck_assert_int_eq(out[i].length, 50);
        }
        kit_near(out[0].log_prob, 50 * log(0.6), 1e-5);
        kit_near(out[1].log_prob, 49 * log(0.6) + log(0.4), 1e-5);
        finish(d);
    }
}
END_TEST

/* ---- the rules one by one -------------------------------------------------------------------- */

/* The same sentence alone and among others, in any order: equal to the last bit. */
START_TEST(f1_neighbours_change_nothing) {
    enum { LINES = 20, NBEST = 3 };
    static const int32_t beams[] = {1, 5}, batches[] = {7, 20};
    static int32_t ids[LINES][NBEST][MAX_LENGTH];
    static bti_hypothesis alone[LINES][NBEST];
    model m[LINES];
    const model *pointer[LINES];
    int32_t limit[LINES], count[LINES];
    for (int32_t i = 0; i < LINES; i++) {
        m[i] = (model){random_model, 3 + i % 9, (uint64_t)i};
        limit[i] = 1 + (i * 37 + 11) % 50;
    }
    for (int p = 0; p < 2; p++) {
        bti_beam_config cfg = config(beams[p], 11, 0.6, p ? NBEST : 1);
        for (int32_t i = 0; i < LINES; i++) {
            pointer[0] = &m[i];
            driver *d = search(cfg, pointer, &limit[i], 1);
            count[i] = results(d, 0, alone[i]);
            for (int32_t j = 0; j < count[i]; j++)
                memcpy(ids[i][j], alone[i][j].ids, 4 * (size_t)alone[i][j].length);
            finish(d);
        }
        for (int c = 0; c < 4; c++) { /* two batch sizes, there and back */
            for (int32_t first = 0; first < LINES; first += batches[c / 2]) {
                int32_t n = LINES - first < batches[c / 2] ? LINES - first : batches[c / 2];
                int32_t line[LINES], limits[LINES];
                for (int32_t i = 0; i < n; i++) {
                    line[i] = c % 2 ? LINES - 1 - first - i : first + i;
                    pointer[i] = &m[line[i]];
                    limits[i] = limit[line[i]];
                }
                driver *d = search(cfg, pointer, limits, n);
                for (int32_t i = 0; i < n; i++) {
                    bti_hypothesis out[NBEST];
                    int32_t of = line[i];
                    ck_assert_int_eq(results(d, i, out), count[of]);
                    for (int32_t j = 0; j < count[of]; j++) {
                        ck_assert_int_eq(out[j].length, alone[of][j].length);
                        ck_assert_int_eq(out[j].cut, alone[of][j].cut);
                        ck_assert(out[j].score == alone[of][j].score);
                        ck_assert_mem_eq(out[j].ids, ids[of][j], 4 * (size_t)out[j].length);
                    }
                }
                finish(d);
            }
        }
    }
}
END_TEST

START_TEST(beam_one_is_greedy) {
    int32_t ended = 0;
    for (uint64_t seed = 0; seed < 50; seed++) {
        const model m = {random_model, 5, seed}, *models[] = {&m};
        int32_t ids[MAX_LENGTH], length = 0, limit = 12, best;
        do {
            float next[MAX_VOCABULARY];
            m.next(&m, ids, length, next);
            best = 0;
            for (int32_t v = 1; v < 5; v++)
                if (next[v] > next[best]) best = v;
            if (best != END) ids[length++] = best;
        } while (best != END && length < limit);
        bti_hypothesis out;
        driver *d = search(config(1, 5, 1, 1), models, &limit, 1);
        ck_assert_int_eq(results(d, 0, &out), 1);
        ck_assert_int_eq(out.length, length);
        ck_assert_int_eq(out.cut, best != END);
        ck_assert_mem_eq(out.ids, ids, 4 * (size_t)length);
        ck_assert_int_eq(d->steps, length + (best == END));
        ended += best == END;
        finish(d);
    }
    ck_assert_int_gt(ended, 10);
    ck_assert_int_lt(ended, 50);
}
END_TEST

/* An end that is not among the first `beam` candidates is dropped, as is what leads nowhere. */
START_TEST(an_end_beyond_the_beam_does_not_count) {
    const model m = {third_ends, 4, 0}, *models[] = {&m};
    bti_hypothesis out[3];
    int32_t limit = 6;
    driver *d = search(config(2, 4, 0, 2), models, &limit, 1);
    ck_assert_int_eq(results(d, 0, out), 2);
    ck_assert_int_eq(out[0].length, 1);
    ck_assert_int_eq(out[0].ids[0], 1);
    kit_near(out[0].score, log(0.4 * 0.8), 1e-6);
    /* Step 2: 1 end .32, 2 2 .18 stay, and 2 end .12 is third; so 2 2 end .072 is next. */
    ck_assert_int_eq(out[1].length, 2);
    ck_assert_int_eq(out[1].ids[0], 2);
    ck_assert_int_eq(out[1].ids[1], 2);
    kit_near(out[1].score, log(0.3 * 0.6 * 0.4), 1e-6);
    finish(d);

    d = search(config(3, 4, 0, 3), models, &limit, 1);
    ck_assert_int_eq(results(d, 0, out), 3);
    kit_near(out[1].score, log(0.2), 1e-6);
    ck_assert_int_eq(out[1].length, 0);
    kit_near(out[2].score, log(0.3 * 0.4), 1e-6);
    ck_assert_int_eq(out[2].length, 1);
    finish(d);
}
END_TEST

START_TEST(ties_go_to_the_smaller_row_then_id) {
    const model m = {all_equal, 4, 0}, *models[] = {&m, &m};
    static const int32_t limits[] = {2, 1};
    bti_hypothesis out[3];
    driver *d = search(config(3, 4, 0, 3), models, limits, 2);
    ck_assert_int_eq(results(d, 0, out), 3);
    /* End, 1, 2, 3; then 1 end, 1 1, 1 2 are the first three of nine equal ones. */
    ck_assert_int_eq(out[0].length, 0);
    ck_assert_int_eq(out[1].length, 1);
    ck_assert_int_eq(out[1].ids[0], 1);
    ck_assert_int_eq(out[1].cut, 0);
    ck_assert_int_eq(out[2].length, 2);
    ck_assert_int_eq(out[2].ids[0], 1);
    ck_assert_int_eq(out[2].ids[1], 1);
    ck_assert_int_eq(out[2].cut, 1);
    ck_assert_int_eq(results(d, 1, out), 3); /* limit 1: the end, then 1 and 2 cut */
    ck_assert_int_eq(out[0].cut, 0);
    ck_assert_int_eq(out[2].ids[0], 2);
    ck_assert_int_eq(out[2].cut, 1);
    ck_assert_int_eq(d->rows, 2 + 3);
    finish(d);
}
END_TEST

/* A row may give fewer candidates than asked for, or none. */
START_TEST(rows_without_candidates) {
    const model none = {nothing, 4, 0}, two = {never_ends, 3, 0}, *models[] = {&none, &two};
    static const int32_t limits[] = {9, 3};
    bti_hypothesis out[2];
    driver *d = search(config(2, 4, 1, 2), models, limits, 2);
    ck_assert_int_eq(results(d, 0, out), 1);
    ck_assert_int_eq(out[0].length, 0);
    ck_assert_int_eq(out[0].cut, 1);
    ck_assert(out[0].score == 0);
    ck_assert_int_eq(results(d, 1, out), 2);
    ck_assert_int_eq(out[0].length, 3);
    finish(d);
}
END_TEST

/* -1 is no candidate whatever stands beside it, and probability 0 is none whatever its id. */
START_TEST(candidates_that_are_none) {
    static const int32_t limit = 5, id[][2] = {{-1, 2}, {1, END}};
    static const float p[][2] = {{-0.1f, -0.7f}, {-0.2f, -INFINITY}};
    bti_beam_config cfg = config(2, 2, 0, 2);
    bti_beam *b = NULL;
    kit_ok(bti_beam_new(&cfg, &b));
    kit_ok(bti_beam_start(b, 1, &limit));
    for (int i = 0; i < 2; i++) {
        bti_hypothesis out[2];
        int32_t n = -1;
        kit_ok(bti_beam_advance(b, p[i], id[i]));
        bti_beam_live live = bti_beam_get_live(b);
        ck_assert_int_eq(live.count, 1);
        ck_assert_int_eq(live.last[0], i == 0 ? 2 : 1);
        kit_ok(bti_beam_results(b, 0, out, &n));
        ck_assert_int_eq(n, 0);
    }
    bti_beam_free(b);
}
END_TEST

/* Whether to go on is judged by the sentence's own limit: ln .3 / 2 < ln .55 < ln .3 / 3. */
START_TEST(own_limit_bounds_the_score) {
    static const int32_t limits[] = {2, 3}, id[] = {END, 1, END, 1};
    const float p[] = {logf(0.55f), logf(0.3f), logf(0.55f), logf(0.3f)};
    bti_beam_config cfg = config(2, 2, 1, 1);
    bti_beam *b = NULL;
    kit_ok(bti_beam_new(&cfg, &b));
    kit_ok(bti_beam_start(b, 2, limits));
    kit_ok(bti_beam_advance(b, p, id));
    bti_beam_live live = bti_beam_get_live(b);
    ck_assert_int_eq(live.count, 1);
    ck_assert_int_eq(live.sentence[0], 1);
    ck_assert_int_eq(live.row[0], 1);
    bti_beam_free(b);
}
END_TEST

START_TEST(numbers_that_are_none_are_refused) {
    static const int32_t limit = 5, id[] = {1, END}, none[] = {-1, -1};
    static const float good[] = {-0.4f, -1.1f},
                       bad[][2] = {{NAN, -1.0f}, {-1.0f, NAN}, {INFINITY, -1.0f}};
    bti_beam_config cfg = config(1, 2, 0, 1);
    bti_beam *b = NULL;
    kit_ok(bti_beam_new(&cfg, &b));
    kit_ok(bti_beam_start(b, 1, &limit));
    for (int i = 0; i < 3; i++) kit_fails(bti_beam_advance(b, bad[i], id), BT_ENUMERIC, "symbol 1");
    kit_fails(bti_beam_advance(b, bad[0], none), BT_ENUMERIC, "sentence 1");
    ck_assert_int_eq(bti_beam_get_live(b).step, 0); /* a refused step has not happened */
    kit_ok(bti_beam_advance(b, good, id));
    bti_beam_live live = bti_beam_get_live(b);
    ck_assert_int_eq(live.count, 1);
    ck_assert_int_eq(live.step, 1);
    ck_assert_int_eq(live.last[0], 1);
    ck_assert_int_eq(live.row[0], 0);
    bti_beam_free(b);
}
END_TEST

START_TEST(wrong_use_is_refused) {
    bti_beam *b = NULL;
    bti_beam_config good = config(4, 9, 1, 4), cfg = good;
    cfg.beam = 0;
    kit_fails(bti_beam_new(&cfg, &b), BT_EUSAGE, "beam 0");
    cfg = good, cfg.nbest = 5;
    kit_fails(bti_beam_new(&cfg, &b), BT_EUSAGE, "nbest 5");
    cfg = good, cfg.length_penalty = NAN;
    kit_fails(bti_beam_new(&cfg, &b), BT_EUSAGE, "length penalty");
    cfg = good, cfg.length_penalty = -1;
    kit_fails(bti_beam_new(&cfg, &b), BT_EUSAGE, "length penalty -1");
    cfg = good, cfg.max_sentences = INT32_MAX;
    kit_fails(bti_beam_new(&cfg, &b), BT_EUSAGE, "too many rows");
    cfg = good, cfg.beam = cfg.max_length = cfg.nbest = INT32_MAX, cfg.max_sentences = 1;
    kit_fails(bti_beam_new(&cfg, &b), BT_ENOMEM, "too much");
    ck_assert_ptr_null(b);

    kit_ok(bti_beam_new(&good, &b));
    int32_t limit[21] = {0}, n;
    bti_hypothesis out[4];
    kit_fails(bti_beam_start(b, 21, limit), BT_EINTERNAL, "room for 20");
    kit_fails(bti_beam_start(b, 1, limit), BT_EINTERNAL, "limit 0");
    limit[0] = 51;
    kit_fails(bti_beam_start(b, 1, limit), BT_EINTERNAL, "limit 51");
    kit_fails(bti_beam_results(b, 0, out, &n), BT_EINTERNAL, "no sentence 0");
    kit_ok(bti_beam_start(b, 0, limit));
    ck_assert_int_eq(bti_beam_get_live(b).count, 0);
    kit_ok(bti_beam_advance(b, NULL, NULL));
    bti_beam_free(b);
    bti_beam_free(NULL);
}
END_TEST

START_TEST(memory_is_taken_once) {
    bti_beam_config cfg = config(4, 9, 1, 4);
    bti_beam *b = NULL;
    int n = 1;
    for (;; n++) {
        bti_alloc_fail_at((uint64_t)n);
        bt_status s = bti_beam_new(&cfg, &b);
        bti_alloc_fail_at(0);
        if (s == BT_OK) break;
        ck_assert_int_eq(s, BT_ENOMEM);
        ck_assert_ptr_null(b);
    }
    ck_assert_int_eq(n, 2);
    bti_beam_free(b);
    uint64_t few = bti_beam_bytes(&cfg), trees = 2u * 20 * 50 * 4 * 4, texts = 20u * 4 * 50 * 4;
    ck_assert_uint_ge(few, trees + texts);
    cfg.max_length = 150;
    ck_assert_uint_eq(bti_beam_bytes(&cfg) - few, 2 * (trees + texts));
}
END_TEST

/* One search object serves many batches; nothing of the one before is left. */
START_TEST(starting_again_forgets) {
    bti_beam_config cfg = config(2, 2, 1, 2);
    bti_beam *b = NULL;
    static const int32_t limit[] = {4, 4}, id[] = {1, END, 1, END};
    static const float p[] = {-0.5f, -0.9f, -0.5f, -0.9f};
    kit_ok(bti_beam_new(&cfg, &b));
    for (int round = 0; round < 3; round++) {
        bti_hypothesis out[2];
        int32_t n = -1;
        kit_ok(bti_beam_start(b, 2, limit));
        kit_ok(bti_beam_results(b, 1, out, &n));
        ck_assert_int_eq(n, 0);
        kit_ok(bti_beam_advance(b, p, id));
        kit_ok(bti_beam_results(b, 1, out, &n));
        ck_assert_int_eq(n, 1);
        kit_near(out[0].score, -0.9, 1e-6);
        ck_assert_int_eq(bti_beam_get_live(b).count, 2);
    }
    bti_beam_free(b);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, f2_penalty_decides);
    tcase_add_test(tc, f2_no_end_is_cut_at_the_limit);
    tcase_add_test(tc, f1_neighbours_change_nothing);
    tcase_add_test(tc, a_beam_as_large_as_the_space_is_exhaustive);
    tcase_add_test(tc, beam_one_is_greedy);
    tcase_add_test(tc, an_end_beyond_the_beam_does_not_count);
    tcase_add_test(tc, ties_go_to_the_smaller_row_then_id);
    tcase_add_test(tc, rows_without_candidates);
    tcase_add_test(tc, candidates_that_are_none);
    tcase_add_test(tc, own_limit_bounds_the_score);
    tcase_add_test(tc, numbers_that_are_none_are_refused);
    tcase_add_test(tc, wrong_use_is_refused);
    tcase_add_test(tc, memory_is_taken_once);
    tcase_add_test(tc, starting_again_forgets);
}

int main(int argc, char **argv) { return kit_main("beam", add, argc, argv); }
