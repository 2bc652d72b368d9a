/* Beam search on the host.
 *
 * Live hypotheses are the leaves of one tree a sentence: level t holds the at most `beam` symbols
 * chosen at step t, each with the place of its parent on level t - 1. A hypothesis that ends is
 * traced back into a buffer of its sentence's pool, which keeps the nbest best. Sentences share
 * nothing but the order of rows, so that none can change another's result. Everything lies in one
 * block taken by bti_beam_new. */
#include "core/decode/beam.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"

/* One finished or cut hypothesis; its ids are at text + buffer * max_length. */
typedef struct entry {
    double score, log_prob;
    int32_t length, buffer;
    uint8_t cut;
} entry;

typedef struct candidate {
    double log_prob; /* of the extended hypothesis */
    int32_t row, id;
} candidate;

typedef struct sentence_state {
    int32_t limit;   /* symbols, end included */
    int32_t first;   /* its first row of `rows[now]` */
    int32_t live;    /* how many rows; 0: the sentence is done */
    int32_t entries; /* in its pool */
} sentence_state;

/* Rows of one step, as bti_beam_live shows them. */
typedef struct row_table {
    int32_t *sentence, *last, *row;
    double *log_prob;
    int32_t count;
} row_table;

struct bti_beam {
    bti_beam_config cfg;
    int32_t sentences, step;
    int now;                  /* which table has the live rows; the other one is being filled */
    row_table rows[2];        /* max_sentences * beam each */
    sentence_state *state;    /* max_sentences */
    candidate *best;          /* 2 * beam */
    int32_t *symbol, *parent; /* the trees: max_sentences x max_length x beam */
    entry *pool;              /* max_sentences x nbest, best first */
    int32_t *text;            /* max_sentences * nbest buffers of max_length */
};

/* ---- memory ------------------------------------------------------------------------------------
 */

/* Places `a * b * c` items in the block and moves *at past them; UINT64_MAX stands for too much. */
static void *place(char *base, uint64_t *at, uint64_t size, int32_t a, int32_t b, int32_t c) {
    uint64_t bytes = size, start = *at;
    if (__builtin_mul_overflow(bytes, (uint64_t)a, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)b, &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)c, &bytes) || bytes > UINT64_MAX - 16 ||
        __builtin_add_overflow(start, (bytes + 15) / 16 * 16, at)) {
        *at = UINT64_MAX;
        return NULL;
    }
    return base == NULL ? NULL : base + start;
}

/* The one description of the block: with base NULL it only counts. */
static uint64_t lay_out(bti_beam *b, const bti_beam_config *c, char *base) {
    uint64_t at = 0;
    place(base, &at, sizeof *b, 1, 1, 1);
    for (int i = 0; i < 2; i++) {
        b->rows[i].log_prob = place(base, &at, sizeof(double), c->max_sentences, c->beam, 1);
        b->rows[i].sentence = place(base, &at, sizeof(int32_t), c->max_sentences, c->beam, 1);
        b->rows[i].last = place(base, &at, sizeof(int32_t), c->max_sentences, c->beam, 1);
        b->rows[i].row = place(base, &at, sizeof(int32_t), c->max_sentences, c->beam, 1);
    }
    b->state = place(base, &at, sizeof *b->state, c->max_sentences, 1, 1);
    b->best = place(base, &at, sizeof *b->best, 2, c->beam, 1);
    b->symbol = place(base, &at, sizeof(int32_t), c->max_sentences, c->max_length, c->beam);
    b->parent = place(base, &at, sizeof(int32_t), c->max_sentences, c->max_length, c->beam);
    b->pool = place(base, &at, sizeof *b->pool, c->max_sentences, c->nbest, 1);
    b->text = place(base, &at, sizeof(int32_t), c->max_sentences, c->nbest, c->max_length);
    return at;
}

uint64_t bti_beam_bytes(const bti_beam_config *cfg) {
    bti_beam unused;
    return lay_out(&unused, cfg, NULL);
}

static bt_status check_config(const bti_beam_config *c) {
    if (c->beam < 1 || c->candidates < 1 || c->max_sentences < 1 || c->max_length < 1)
        return bti_fail(BT_EUSAGE,
                        "beam search: beam %d, candidates %d, sentences %d and length %d must be "
                        "at least 1",
                        (int)c->beam, (int)c->candidates, (int)c->max_sentences,
                        (int)c->max_length);
    if (c->nbest < 1 || c->nbest > c->beam)
        return bti_fail(BT_EUSAGE, "beam search: nbest %d must be 1 to the beam, %d", (int)c->nbest,
                        (int)c->beam);
    if (!(c->length_penalty >= 0) || isinf(c->length_penalty))
        return bti_fail(BT_EUSAGE, "beam search: length penalty %g must be 0 or more",
                        c->length_penalty);
    if ((int64_t)c->max_sentences * c->beam > INT32_MAX)
        return bti_fail(BT_EUSAGE, "beam search: %d sentences of beam %d are too many rows",
                        (int)c->max_sentences, (int)c->beam);
    return BT_OK;
}

bt_status bti_beam_new(const bti_beam_config *cfg, bti_beam **out) {
    BT_TRY(check_config(cfg));
    uint64_t bytes = bti_beam_bytes(cfg);
    if (bytes >= SIZE_MAX)
        return bti_fail(BT_ENOMEM, "beam search: beam %d, length %d and %d sentences are too much",
                        (int)cfg->beam, (int)cfg->max_length, (int)cfg->max_sentences);
    bti_beam *b = bti_alloc(1, (size_t)bytes);
    if (b == NULL) return BT_ENOMEM;
    lay_out(b, cfg, (char *)b);
    b->cfg = *cfg;
    *out = b;
    return BT_OK;
}

void bti_beam_free(bti_beam *b) { bti_free(b); }

/* ---- the pool of ended hypotheses --------------------------------------------------------------
 */

static entry *pool_of(const bti_beam *b, int32_t s) {
    return b->pool + (size_t)s * (size_t)b->cfg.nbest;
}

static int32_t *text_of(const bti_beam *b, const entry *e) {
    return b->text + (size_t)e->buffer * (size_t)b->cfg.max_length;
}

/* Place of level `step`, slot `slot` in the tree of sentence s. */
static size_t node(const bti_beam *b, int32_t s, int32_t step, int32_t slot) {
    return ((size_t)s * (size_t)b->cfg.max_length + (size_t)step) * (size_t)b->cfg.beam +
           (size_t)slot;
}

static double normalised(const bti_beam *b, double log_prob, int32_t length) {
    return log_prob / pow(length > 0 ? length : 1, b->cfg.length_penalty);
}

/* Anything that ended properly goes before what was cut; an equal that came earlier stays ahead. */
static int goes_before(const entry *x, const entry *y) {
    if (x->cut != y->cut) return x->cut < y->cut;
    return x->score > y->score;
}

/* Puts the hypothesis of `depth` symbols whose last one is `slot` of its level into the pool, if it
 * is among the nbest best. The buffer of the entry that falls out is used again. */
static void end_hypothesis(bti_beam *b, int32_t s, int32_t depth, int32_t slot, double log_prob,
                           uint8_t cut) {
    sentence_state *state = &b->state[s];
    entry *pool = pool_of(b, s);
    entry e = {.log_prob = log_prob, .length = depth, .cut = cut};
    e.score = normalised(b, log_prob, cut ? depth : depth + 1);
    int32_t at = state->entries;
    if (at == b->cfg.nbest && !goes_before(&e, &pool[--at])) return;
    if (state->entries < b->cfg.nbest) state->entries++;
    e.buffer = pool[at].buffer;
    for (; at > 0 && goes_before(&e, &pool[at - 1]); at--) pool[at] = pool[at - 1];
    pool[at] = e;
    int32_t *ids = text_of(b, &e);
    for (int32_t t = depth - 1; t >= 0; t--) {
        size_t n = node(b, s, t, slot);
        ids[t] = b->symbol[n];
        slot = b->parent[n];
    }
}

/* ---- the search --------------------------------------------------------------------------------
 */

bt_status bti_beam_start(bti_beam *b, int32_t sentences, const int32_t *max_length) {
    if (sentences < 0 || sentences > b->cfg.max_sentences)
        return bti_fail(BT_EINTERNAL, "beam search: %d sentences, room for %d", (int)sentences,
                        (int)b->cfg.max_sentences);
    for (int32_t s = 0; s < sentences; s++)
        if (max_length[s] < 1 || max_length[s] > b->cfg.max_length)
            return bti_fail(BT_EINTERNAL, "beam search: sentence %d has limit %d, not 1 to %d",
                            (int)s, (int)max_length[s], (int)b->cfg.max_length);
    b->sentences = sentences;
    b->step = 0;
    b->now = 0;
    row_table *rows = &b->rows[0];
    rows->count = sentences;
    for (int32_t s = 0; s < sentences; s++) {
        b->state[s] = (sentence_state){.limit = max_length[s], .first = s, .live = 1};
        rows->sentence[s] = s;
        rows->last[s] = -1;
        rows->row[s] = -1;
        rows->log_prob[s] = 0;
        for (int32_t i = 0; i < b->cfg.nbest; i++) pool_of(b, s)[i].buffer = s * b->cfg.nbest + i;
    }
    return BT_OK;
}

bti_beam_live bti_beam_get_live(const bti_beam *b) {
    const row_table *rows = &b->rows[b->now];
    return (bti_beam_live){.count = rows->count,
                           .sentence = rows->sentence,
                           .last = rows->last,
                           .row = rows->row,
                           .step = b->step};
}

/* Order of candidates: a tie goes to the smaller row, then to the smaller id. */
static int candidate_before(const candidate *x, const candidate *y) {
    if (x->log_prob != y->log_prob) return x->log_prob > y->log_prob;
    if (x->row != y->row) return x->row < y->row;
    return x->id < y->id;
}

/* Fills `best` with the first 2 * beam candidates of sentence s in order; how many there are.
 * Beam 1 looks at the first one only: it is greedy search, which is over when that one ends. */
static int32_t choose(bti_beam *b, int32_t s, const float *log_prob, const int32_t *id) {
    const sentence_state *state = &b->state[s];
    const row_table *rows = &b->rows[b->now];
    int32_t room = b->cfg.beam == 1 ? 1 : 2 * b->cfg.beam, n = 0;
    for (int32_t row = state->first; row < state->first + state->live; row++) {
        for (int32_t i = 0; i < b->cfg.candidates; i++) {
            size_t from = (size_t)row * (size_t)b->cfg.candidates + (size_t)i;
            if (id[from] < 0 || log_prob[from] == -INFINITY) continue;
            candidate c = {rows->log_prob[row] + (double)log_prob[from], row, id[from]};
            if (n == room && !candidate_before(&c, &b->best[n - 1])) continue;
            int32_t at = n < room ? n++ : n - 1;
            for (; at > 0 && candidate_before(&c, &b->best[at - 1]); at--)
                b->best[at] = b->best[at - 1];
            b->best[at] = c;
        }
    }
    return n;
}

/* Splits the n candidates into ended and live hypotheses; the live ones become the next rows from
 * next->count on, in order of log-probability. Gives how many. */
static int32_t extend(bti_beam *b, int32_t s, int32_t n, row_table *next) {
    int32_t live = 0;
    for (int32_t k = 0; k < n; k++) {
        const candidate *c = &b->best[k];
        int32_t slot = c->row - b->state[s].first;
        if (c->id == b->cfg.end) {
            if (k < b->cfg.beam) end_hypothesis(b, s, b->step, slot, c->log_prob, 0);
        } else if (live < b->cfg.beam) {
            int32_t row = next->count + live;
            b->symbol[node(b, s, b->step, live)] = c->id;
            b->parent[node(b, s, b->step, live)] = slot;
            next->sentence[row] = s;
            next->last[row] = c->id;
            next->row[row] = c->row;
            next->log_prob[row] = c->log_prob;
            live++;
        }
    }
    return live;
}

/* Can a hypothesis of this log-probability still come among the nbest? The sum only falls, so that
 * its score stays below the sum over the longest length. */
static int can_win(const bti_beam *b, int32_t s, double log_prob) {
    const sentence_state *state = &b->state[s];
    if (state->entries < b->cfg.nbest) return 1;
    return normalised(b, log_prob, state->limit) > pool_of(b, s)[b->cfg.nbest - 1].score;
}

static void cut_live(bti_beam *b, int32_t s, int32_t depth, const double *log_prob, int32_t count) {
    for (int32_t slot = 0; slot < count; slot++)
        end_hypothesis(b, s, depth, slot, log_prob[slot], 1);
}

static void advance_sentence(bti_beam *b, int32_t s, const float *log_prob, const int32_t *id,
                             row_table *next) {
    sentence_state *state = &b->state[s];
    int32_t n = choose(b, s, log_prob, id), live = 0;
    if (n == 0) { /* nothing may follow: what there is must do */
        cut_live(b, s, b->step, b->rows[b->now].log_prob + state->first, state->live);
    } else {
        live = extend(b, s, n, next);
        const double *sums = next->log_prob + next->count;
        if (b->step + 1 == state->limit) {
            cut_live(b, s, b->step + 1, sums, live);
            live = 0;
        } else if (live > 0 && !can_win(b, s, sums[0])) {
            live = 0;
        }
    }
    state->first = next->count;
    state->live = live;
    next->count += live;
}

static bt_status check_numbers(const bti_beam *b, const float *log_prob) {
    const row_table *rows = &b->rows[b->now];
    size_t each = (size_t)b->cfg.candidates;
    for (size_t i = 0; i < (size_t)rows->count * each; i++)
        if (isnan(log_prob[i]) || log_prob[i] == INFINITY)
            return bti_fail(BT_ENUMERIC,
                            "beam search: the model gives %g as a log-probability at symbol %d of "
                            "sentence %d; its weights or input are not finite",
                            (double)log_prob[i], (int)b->step + 1,
                            (int)rows->sentence[i / each] + 1);
    return BT_OK;
}

bt_status bti_beam_advance(bti_beam *b, const float *log_prob, const int32_t *id) {
    if (b->rows[b->now].count == 0) return BT_OK;
    BT_TRY(check_numbers(b, log_prob));
    row_table *next = &b->rows[!b->now];
    next->count = 0;
    for (int32_t s = 0; s < b->sentences; s++)
        if (b->state[s].live > 0) advance_sentence(b, s, log_prob, id, next);
    b->now = !b->now;
    b->step++;
    return BT_OK;
}

bt_status bti_beam_results(const bti_beam *b, int32_t sentence, bti_hypothesis *out,
                           int32_t *count) {
    if (sentence < 0 || sentence >= b->sentences)
        return bti_fail(BT_EINTERNAL, "beam search: no sentence %d of %d", (int)sentence,
                        (int)b->sentences);
    const entry *pool = pool_of(b, sentence);
    for (int32_t i = 0; i < b->state[sentence].entries; i++)
        out[i] = (bti_hypothesis){.ids = text_of(b, &pool[i]),
                                  .length = pool[i].length,
                                  .score = pool[i].score,
                                  .log_prob = pool[i].log_prob,
                                  .cut = pool[i].cut};
    *count = b->state[sentence].entries;
    return BT_OK;
}
