/* Cases of attention: mixed lengths, odd head sizes, causal or not, no keys at all, key rows by
 * index, dropout; forward and backward. */
#include "tests/conform.h"

typedef struct setup {
    int heads, width; /* of one head */
    int causal, dropped;
    double scale;
    int query_pos; /* of the first query of every sequence */
    int count;
    const int (*length)[2]; /* queries, keys */
} setup;

static bt_attn_params params(const setup *s) {
    bt_drop drop = {
        .seed = 0xFEDCBA9876543210u, .update = 5, .site = 9, .p = s->dropped ? 0.3f : 0};
    return (bt_attn_params){s->heads, (uint8_t)s->causal, s->scale, drop};
}

/* Sequences one after the other, one unused row of queries and of keys between them. */
static void sequences(cf_call *c, int operand, const setup *s, int64_t *queries, int64_t *keys,
                      int64_t *longest) {
    double *seq = cf_add(c, operand, s->count, BT_SEQ_COLS);
    *queries = *keys = *longest = 0;
    for (int i = 0; i < s->count; i++, seq += BT_SEQ_COLS) {
        seq[BT_SEQ_QUERY_ROW] = (double)*queries;
        seq[BT_SEQ_QUERY_COUNT] = s->length[i][0];
        seq[BT_SEQ_KEY_ROW] = (double)*keys;
        seq[BT_SEQ_KEY_COUNT] = s->length[i][1];
        seq[BT_SEQ_PLACE] = 3 + i;
        seq[BT_SEQ_QUERY_POS] = s->query_pos;
        *queries += s->length[i][0] + 1;
        *keys += s->length[i][1] + 1;
        if (s->length[i][1] > *longest) *longest = s->length[i][1];
    }
}

/* Marks the unused rows of an output: they keep what they hold. */
static void keep_gaps(cf_call *c, int operand, const setup *s, int side) {
    cf_operand *t = &c->t[operand];
    int64_t row = 0;
    for (int i = 0; i < s->count; i++) {
        row += s->length[i][side];
        for (int64_t k = 0; k < t->scols; k++) {
            t->x[row * t->scols + k] = 17;
            t->written[row * t->scols + k] = 0;
        }
        row++;
    }
}

static void describe(cf_call *c, bt_op op, const setup *s, const char *extra) {
    cf_begin(c, op, "%d sequences, first %d x %d, %d heads of %d, causal %d, dropout %d%s",
             s->count, s->length[0][0], s->length[0][1], s->heads, s->width, s->causal, s->dropped,
             extra);
    c->p.attn = params(s);
}

static void forward(cf_call *c, const setup *s, int with_lse) {
    int64_t queries, keys, longest, cols = s->heads * s->width;
    describe(c, BT_OP_ATTN_FWD, s, "");
    sequences(c, BT_ATTN_FWD_SEQ, s, &queries, &keys, &longest);
    cf_add(c, BT_ATTN_FWD_Q, queries, cols);
    cf_add(c, BT_ATTN_FWD_K, keys, cols);
    cf_add(c, BT_ATTN_FWD_V, keys, cols);
    cf_add(c, BT_ATTN_FWD_O, queries, cols);
    keep_gaps(c, BT_ATTN_FWD_O, s, 0);
    double n = (double)(longest + s->width), mag = 2 + s->scale * s->width;
    cf_bound(c, BT_ATTN_FWD_O, n, mag);
    if (!with_lse) return;
    cf_add(c, BT_ATTN_FWD_LSE, queries, s->heads);
    keep_gaps(c, BT_ATTN_FWD_LSE, s, 0);
    cf_bound(c, BT_ATTN_FWD_LSE, n, mag);
}

static void take_over(cf_call *c, int i, const cf_call *from, int j, const double *x) {
    const cf_operand *t = &from->t[j];
    double *y = cf_add(c, i, t->rows, t->cols);
    for (int64_t k = 0; k < t->rows * t->cols; k++) y[k] = cf_round(c, i, x[k]);
}

/* Exactly no gradient where there is no key, and at keys that no query sees. */
static void no_gradient(const cf_call *c) {
    cf_result got = cf_run(cf_device(), c, cf_type, 1, NULL);
    const cf_operand *seq = &c->t[BT_ATTN_BWD_SEQ];
    int64_t cols = c->t[BT_ATTN_BWD_Q].cols, seen = 0;
    for (int64_t s = 0; s < seq->rows; s++) {
        const double *row = seq->x + s * BT_SEQ_COLS;
        int64_t queries = (int64_t)row[BT_SEQ_QUERY_COUNT], keys = (int64_t)row[BT_SEQ_KEY_COUNT];
        const double *dq = got.y[BT_ATTN_BWD_DQ] + (int64_t)row[BT_SEQ_QUERY_ROW] * cols;
        const double *dk = got.y[BT_ATTN_BWD_DK] + (int64_t)row[BT_SEQ_KEY_ROW] * cols;
        const double *dv = got.y[BT_ATTN_BWD_DV] + (int64_t)row[BT_SEQ_KEY_ROW] * cols;
        for (int64_t k = 0; keys == 0 && k < queries * cols; k++, seen++)
            ck_assert_msg(dq[k] == 0, "attn_bwd (%s): gradient without a key: %g", c->what, dq[k]);
        int64_t visible = queries == 0 ? 0 : c->p.attn.causal ? queries : keys;
        for (int64_t k = visible * cols; k < keys * cols; k++, seen++)
            ck_assert_msg(dk[k] == 0 && dv[k] == 0, "attn_bwd (%s): gradient of an unseen key",
                          c->what);
    }
    ck_assert_msg(seen > 0, "nothing was tested");
}

/* Of the forward call f. */
static void backward_of(cf_call *c, const cf_call *f, const setup *s) {
    cf_result result = cf_oracle(f);
    int64_t queries, keys, longest, cols = s->heads * s->width;
    describe(c, BT_OP_ATTN_BWD, s, "");
    sequences(c, BT_ATTN_BWD_SEQ, s, &queries, &keys, &longest);
    take_over(c, BT_ATTN_BWD_Q, f, BT_ATTN_FWD_Q, f->t[BT_ATTN_FWD_Q].x);
    take_over(c, BT_ATTN_BWD_K, f, BT_ATTN_FWD_K, f->t[BT_ATTN_FWD_K].x);
    take_over(c, BT_ATTN_BWD_V, f, BT_ATTN_FWD_V, f->t[BT_ATTN_FWD_V].x);
    take_over(c, BT_ATTN_BWD_O, f, BT_ATTN_FWD_O, result.y[BT_ATTN_FWD_O]);
    take_over(c, BT_ATTN_BWD_LSE, f, BT_ATTN_FWD_LSE, result.y[BT_ATTN_FWD_LSE]);
    cf_add(c, BT_ATTN_BWD_DO, queries, cols);
    cf_add(c, BT_ATTN_BWD_DQ, queries, cols);
    cf_add(c, BT_ATTN_BWD_DK, keys, cols);
    cf_add(c, BT_ATTN_BWD_DV, keys, cols);
    keep_gaps(c, BT_ATTN_BWD_DQ, s, 0);
    keep_gaps(c, BT_ATTN_BWD_DK, s, 1);
    keep_gaps(c, BT_ATTN_BWD_DV, s, 1);
    double n = (double)(longest + s->width), mag = (2 + s->scale * s->width) * 8;
    cf_bound(c, BT_ATTN_BWD_DQ, n, mag * (1 + s->scale));
    cf_bound(c, BT_ATTN_BWD_DK, n + (double)queries, mag * (1 + s->scale));
    cf_bound(c, BT_ATTN_BWD_DV, n + (double)queries, mag);
}

static void backward(const setup *s, int unseen) {
    cf_call f, c;
    forward(&f, s, 1);
    backward_of(&c, &f, s);
    cf_check(&c);
    if (unseen) no_gradient(&c);
    cf_reset();
}

static const int mixed[][2] = {{1, 1},   {2, 3},   {3, 2}, {64, 63},
                               {63, 64}, {65, 65}, {7, 0}, {0, 5}};
static const int long_one[][2] = {{513, 513}, {1, 257}};
static const int many_keys[][2] = {{37, 2100}, {2, 1025}}; /* kernels may take them in spans */
static const int square[][2] = {{5, 5}, {64, 64}, {1, 1}, {127, 127}};
static const int empty[][2] = {{3, 0}};
static const int tiny[][2] = {{2, 4}, {2, 0}};
#define LENGTHS(x) (int)(sizeof x / sizeof x[0]), x

static const setup setups[] = {
    {1, 1, 0, 0, 1, 0, LENGTHS(mixed)},         {3, 5, 0, 1, 0.447, 0, LENGTHS(mixed)},
    {2, 64, 1, 0, 0.125, 0, LENGTHS(square)},   {2, 33, 1, 1, 0.174, 0, LENGTHS(square)},
    {1, 129, 0, 0, 0.088, 0, LENGTHS(mixed)},   {2, 7, 1, 0, 0.378, 0, LENGTHS(long_one)},
    {1, 8, 1, 0, 0.354, 3, LENGTHS(mixed)},     {2, 4, 1, 1, 0.5, 60, LENGTHS(mixed)},
    {1, 16, 0, 0, 10, 0, LENGTHS(square)}, /* scores of +-50: the maximum must be taken off */
    {4, 3, 0, 1, 0.577, 0, LENGTHS(empty)},     {1, 300, 0, 0, 0.058, 0, LENGTHS(tiny)},
    {1, 3, 0, 1, 0.577, 0, LENGTHS(many_keys)}, {2, 2, 1, 0, 0.7, 1020, LENGTHS(many_keys)},
};

static const int wide[][2] = {{3, 70}, {64, 65}, {0, 4}};
static const setup unseen_keys = {2, 5, 1, 0, 0.447, 0, LENGTHS(wide)};

/* One query a sequence, keys anywhere: what beam search asks for. */
static void by_index(int shared) {
    enum { BEAMS = 5, KEYS = 70, POOL = 40 };
    static const int length[BEAMS][2] = {{1, 1}, {1, 2}, {1, 70}, {1, 0}, {1, 64}};
    setup s = {3, 5, 1, 0, 0.447, 69, BEAMS, length};
    int64_t queries, keys, longest, cols = s.heads * s.width;
    cf_call c;
    describe(&c, BT_OP_ATTN_FWD, &s, shared ? ", shared keys by index" : ", keys by index");
    sequences(&c, BT_ATTN_FWD_SEQ, &s, &queries, &keys, &longest);
    cf_add(&c, BT_ATTN_FWD_Q, queries, cols);
    cf_add(&c, BT_ATTN_FWD_K, POOL, cols);
    cf_add(&c, BT_ATTN_FWD_V, POOL, cols);
    double *index = cf_add(&c, BT_ATTN_FWD_KIDX, BEAMS, KEYS);
    for (int i = 0; i < BEAMS * KEYS; i++)
        index[i] = i % KEYS < length[i / KEYS][1]
                       ? (double)(shared ? i % KEYS % POOL : cf_below(POOL))
                       : -1; /* beyond the count: never looked at */
    cf_add(&c, BT_ATTN_FWD_O, queries, cols);
    keep_gaps(&c, BT_ATTN_FWD_O, &s, 0);
    cf_bound(&c, BT_ATTN_FWD_O, (double)(longest + s.width), 4);
    cf_check(&c);
    cf_reset();
}

/* With v the unit matrix, o is drop(P): zero exactly where an entry is dropped or not seen. */
static void exact_mask(int keys, int causal) {
    const int length[1][2] = {{9, keys}};
    setup s = {2, keys, causal, 1, 0.1, 0, 1, length};
    cf_call c;
    forward(&c, &s, 1);
    cf_operand *v = &c.t[BT_ATTN_FWD_V];
    for (int64_t r = 0; r < v->rows; r++)
        for (int64_t k = 0; k < v->cols; k++) v->x[r * v->cols + k] = r == k % keys;
    c.t[BT_ATTN_FWD_O].exact_zero = 1;
    cf_result want = cf_oracle(&c);
    int64_t zeros = 0, seen = 0;
    for (int64_t i = 0; i < 9; i++)
        for (int64_t k = 0; k < v->cols; k++)
            if (!causal || k % keys <= i) {
                seen++;
                zeros += want.y[BT_ATTN_FWD_O][i * v->cols + k] == 0;
            }
    ck_assert_msg(zeros > 0 && zeros < seen, "dropout drops %lld of %lld", (long long)zeros,
                  (long long)seen);
    cf_check(&c);
    cf_reset();
}

/* A row with nothing to attend to gives zeros and no gradient, the row beside it is as if alone. */
static void masked_row(void) {
    setup s = {1, 4, 0, 0, 0.5, 0, LENGTHS(tiny)};
    cf_call c;
    forward(&c, &s, 1);
    cf_result got = cf_run(cf_device(), &c, cf_type, 1, NULL);
    const double *o = got.y[BT_ATTN_FWD_O], *lse = got.y[BT_ATTN_FWD_LSE];
    for (int i = 0; i < 4; i++) {
        ck_assert_msg(o[3 * 4 + i] == 0 && o[4 * 4 + i] == 0, "output of a masked row is not 0");
        ck_assert_msg(isfinite(o[i]) && isfinite(o[4 + i]),
                      "a row beside a masked one is not finite");
    }
    ck_assert_msg(lse[3] == -INFINITY && isfinite(lse[0]), "log-sum-exp of a masked row");
    cf_reset();
}

/* A score of -infinity is a probability of 0; nothing else than such scores is no softmax. */
static void infinite_scores(void) {
    static const int length[][2] = {{2, 1}, {2, 3}, {2, 70}};
    const setup s = {1, 4, 0, 0, 0.5, 0, LENGTHS(length)};
    cf_call c;
    forward(&c, &s, 1);
    double *q = c.t[BT_ATTN_FWD_Q].x, *k = c.t[BT_ATTN_FWD_K].x;
    for (int i = 0; i < 9 * 4; i++) q[i] = 1;
    for (int i = 0; i < 3 * 4; i++) k[i] = -INFINITY; /* sequence 0's, and the first of 1's */
    cf_check(&c);
    cf_result got = cf_run(cf_device(), &c, cf_type, 0, NULL);
    const double *o = got.y[BT_ATTN_FWD_O];
    ck_assert_msg(isnan(o[0]) && isnan(o[4]), "scores of -infinity alone give %g", o[0]);
    ck_assert_msg(isfinite(o[3 * 4]) && isfinite(o[6 * 4]), "a score of -infinity spoils its row");
    cf_reset();
}

/* A sequence gives the same bits alone and beside others. */
static void alone_or_together(const setup *s) {
    cf_call all, one;
    forward(&all, s, 1);
    cf_result together = cf_run(cf_device(), &all, cf_type, 0, NULL);
    for (int i = 0; i < s->count; i++) {
        one = all;
        const double *seq = all.t[BT_ATTN_FWD_SEQ].x + i * BT_SEQ_COLS;
        memcpy(cf_add(&one, BT_ATTN_FWD_SEQ, 1, BT_SEQ_COLS), seq, BT_SEQ_COLS * sizeof *seq);
        int64_t first = (int64_t)seq[BT_SEQ_QUERY_ROW], n = (int64_t)seq[BT_SEQ_QUERY_COUNT];
        for (int out = BT_ATTN_FWD_O; out <= BT_ATTN_FWD_LSE; out++) {
            int64_t cols = all.t[out].cols, rows = all.t[out].rows;
            double *x = cf_add(&one, out, rows, cols);
            for (int64_t k = 0; k < rows * cols; k++) x[k] = 17;
            memset(one.t[out].written, 0, (size_t)(rows * cols));
            memset(one.t[out].written + first * cols, 1, (size_t)(n * cols));
        }
        cf_result alone = cf_run(cf_device(), &one, cf_type, 0, NULL);
        for (int out = BT_ATTN_FWD_O; out <= BT_ATTN_FWD_LSE; out++) {
            int64_t cols = all.t[out].cols;
            ck_assert_msg(memcmp(alone.y[out] + first * cols, together.y[out] + first * cols,
                                 (size_t)(n * cols) * sizeof(double)) == 0,
                          "attn_fwd (%s): sequence %d has other bits alone", all.what, i);
        }
    }
    cf_reset();
}

/* Is this row of operand i one of sequence s's, as a query or as a key? */
static int has_row(const cf_call *c, int i, int64_t s, int64_t row) {
    static const uint32_t keys[] = {1u << BT_ATTN_FWD_K | 1u << BT_ATTN_FWD_V,
                                    1u << BT_ATTN_BWD_K | 1u << BT_ATTN_BWD_V |
                                        1u << BT_ATTN_BWD_DK | 1u << BT_ATTN_BWD_DV};
    const int is_key = keys[c->op == BT_OP_ATTN_BWD] >> i & 1;
    const double *seq = c->t[BT_ATTN_FWD_SEQ].x + s * BT_SEQ_COLS;
    const cf_operand *kidx = c->op == BT_OP_ATTN_FWD ? &c->t[BT_ATTN_FWD_KIDX] : NULL;
    if (is_key && kidx != NULL && kidx->present) {
        for (int64_t k = 0; k < (int64_t)seq[BT_SEQ_KEY_COUNT]; k++)
            if ((int64_t)kidx->x[s * kidx->scols + k] == row) return 1;
        return 0;
    }
    const int64_t first = (int64_t)seq[is_key ? BT_SEQ_KEY_ROW : BT_SEQ_QUERY_ROW];
    return row >= first &&
           row < first + (int64_t)seq[is_key ? BT_SEQ_KEY_COUNT : BT_SEQ_QUERY_COUNT];
}

int attention_meets(const cf_call *c, int i, int64_t row, int other, int64_t other_row) {
    for (int64_t s = 0; s < c->t[BT_ATTN_FWD_SEQ].rows; s++)
        if (has_row(c, i, s, row) && has_row(c, other, s, other_row)) return 1;
    return 0;
}

static int too_long(const setup *s) { return cf_is_half() && s->length[0][0] > 500; }

void case_attn_fwd(void) {
    cf_call c;
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++)
        for (int lse = 0; lse < 2 && !too_long(&setups[i]); lse++) {
            forward(&c, &setups[i], lse);
            cf_check(&c);
            cf_reset();
        }
    by_index(0);
    by_index(1);
    exact_mask(5, 0);
    exact_mask(64, 0);
    exact_mask(67, 1);
    masked_row();
    infinite_scores();
    alone_or_together(&setups[0]);
    alone_or_together(&setups[3]);
}

void case_attn_bwd(void) {
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++)
        if (!too_long(&setups[i])) backward(&setups[i], 0);
    backward(&setups[1], 1);
    backward(&setups[10], 1);
    backward(&unseen_keys, 1);
}

/* Of one query and one key or two: sums are short, however many sequences there are. */
void many_sequences(int count, int heads) {
    const int sequences = (count + heads - 1) / heads;
    int(*length)[2] = malloc((size_t)sequences * sizeof *length);
    ck_assert_ptr_nonnull(length);
    for (int i = 0; i < sequences; i++) length[i][0] = 1, length[i][1] = 1 + i % 2;
    setup s = {heads, 2, 0, 0, 0.7, 0, sequences, length};
    cf_call f, c;
    forward(&f, &s, 1);
    cf_check_once(&f);
    backward_of(&c, &f, &s);
    for (int i = BT_ATTN_BWD_DQ; i <= BT_ATTN_BWD_DV; i++) c.t[i].n = 4;
    cf_check_once(&c);
    cf_reset();
    free(length);
}
