/* Attention in tiles of queries x keys with an online softmax; no n x n matrix exists.
 *
 * Lanes of a vector are queries: a tile's scores lie transposed (one row for each key, BTCPU_BQ
 * queries wide), so that maxima, sums and exponentials of the softmax run straight down the rows
 * and keys and values are read where they lie, one broadcast number at a time. All five products
 * are one register-blocked panel. A task is one sequence and head; tasks share no output, so that
 * their order does not matter. Memory traffic: q, k, v, o once per task, the rest stays in cache.
 */
#include "cpu/rows.h"

#define BQ BTCPU_BQ
#define BK BTCPU_BK

/* ---- the panel ------------------------------------------------------------------------------- */

#if BTCPU_VL == 16
#define PANEL_ROWS 8
#elif BTCPU_VL == 8
#define PANEL_ROWS 6
#else
#define PANEL_ROWS 4
#endif

/* out[r][l] (+)= sum_t x[r * rs + t * ts] * y[t * ys + l] */
typedef struct panel {
    const float *x;
    int64_t rs, ts;
    const float *y;
    int64_t ys, steps;
    float *out;
    int64_t os;
    int add;
} panel;

static inline __attribute__((always_inline)) void panel_block(const panel *p, const float *x,
                                                              const float *y, float *out,
                                                              int64_t os, int add, const int rows,
                                                              const int vectors) {
    btcpu_vf acc[PANEL_ROWS][2];
    const int64_t rs = p->rs, ts = p->ts, ys = p->ys;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            acc[r][v] = add ? btcpu_load(out + r * os + v * BTCPU_VL) : btcpu_splat(0.0f);
    }
    for (int64_t t = p->steps; t > 0; t--) {
        btcpu_vf yv[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) yv[v] = btcpu_load(y + v * BTCPU_VL);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            btcpu_vf xr = btcpu_splat(x[r * rs]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) acc[r][v] += xr * yv[v];
        }
        x += ts;
        y += ys;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) btcpu_store(out + r * os + v * BTCPU_VL, acc[r][v]);
    }
}

/* All rows of a strip of `vectors` (1 or 2) vectors. */
static inline __attribute__((always_inline)) void panel_strip(const panel *p, int64_t rows,
                                                              const float *y, float *out,
                                                              int64_t os, int add,
                                                              const int vectors) {
    int64_t r = 0;
    for (; r + PANEL_ROWS <= rows; r += PANEL_ROWS)
        panel_block(p, p->x + r * p->rs, y, out + r * os, os, add, PANEL_ROWS, vectors);
    for (; PANEL_ROWS > 4 && r + 4 <= rows; r += 4)
        panel_block(p, p->x + r * p->rs, y, out + r * os, os, add, 4, vectors);
    for (; r + 2 <= rows; r += 2)
        panel_block(p, p->x + r * p->rs, y, out + r * os, os, add, 2, vectors);
    for (; r < rows; r++) panel_block(p, p->x + r * p->rs, y, out + r * os, os, add, 1, vectors);
}

/* rows x lanes. Whole vectors of y are read beyond `lanes`; out is written for `lanes` only. */
static void run_panel(const panel *p, int64_t rows, int64_t lanes) {
    int64_t l = 0;
    for (; l + 2 * BTCPU_VL <= lanes; l += 2 * BTCPU_VL)
        panel_strip(p, rows, p->y + l, p->out + l, p->os, p->add, 2);
    for (; l + BTCPU_VL <= lanes; l += BTCPU_VL)
        panel_strip(p, rows, p->y + l, p->out + l, p->os, p->add, 1);
    if (l == lanes) return;
    float edge[BK * BTCPU_VL];
    for (int64_t r = 0; r < rows; r += BK) {
        const int64_t n = rows - r < BK ? rows - r : BK;
        panel part = *p;
        part.x += r * p->rs;
        panel_strip(&part, n, p->y + l, edge, BTCPU_VL, 0, 1);
        for (int64_t i = 0; i < n; i++) {
            float *out = p->out + (r + i) * p->os + l;
            for (int64_t j = 0; j < lanes - l; j++)
                out[j] = (p->add ? out[j] : 0.0f) + edge[i * BTCPU_VL + j];
        }
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* One sequence and head. */
typedef struct task {
    int64_t query_row, queries, key_row, keys, position, d, head_col;
    uint32_t head, place;
    const bt_attn_params *p;
    float keep_scale;
    uint32_t threshold;
} task;

static task make_task(const bt_attn_params *p, const int32_t *s, int64_t head, int64_t cols) {
    const int drop = p->drop.p > 0;
    return (task){.query_row = s[BT_SEQ_QUERY_ROW],
                  .queries = s[BT_SEQ_QUERY_COUNT],
                  .key_row = s[BT_SEQ_KEY_ROW],
                  .keys = s[BT_SEQ_KEY_COUNT],
                  .position = s[BT_SEQ_QUERY_POS],
                  .d = cols / p->heads,
                  .head_col = head * (cols / p->heads),
                  .head = (uint32_t)head,
                  .place = (uint32_t)s[BT_SEQ_PLACE],
                  .p = p,
                  .keep_scale = drop ? (float)(1.0 / (1.0 - (double)p->drop.p)) : 1.0f,
                  .threshold = drop ? bti_drop_threshold(p->drop.p) : 0};
}

/* Keys that the queries q0 .. q0 + n - 1 of the task see at most. */
static int64_t visible(const task *t, int64_t q0, int64_t n) {
    const int64_t end = t->position + q0 + n;
    return t->p->causal && end < t->keys ? end : t->keys;
}

/* Lanes in use for n queries: whole vectors. */
static int64_t lanes_of(int64_t n) { return (n + BTCPU_VL - 1) / BTCPU_VL * BTCPU_VL; }

typedef float four __attribute__((vector_size(16), may_alias));
typedef float four_any __attribute__((vector_size(16), may_alias, aligned(4)));

static inline void transpose4(four r[4]) {
    four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    four b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    four c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    four d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    r[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    r[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    r[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    r[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/* to[c][i] = factor * from[i][c] for n rows, four at a time; the last group repeats row n - 1. What
 * lies in lanes without a query does not matter: lanes never mix, and sums over queries stop at n.
 */
static void transpose_in(const float *from, int64_t ld, int64_t n, int64_t d, float factor,
                         float *to) {
    for (int64_t i = 0; i < n; i += 4) {
        const float *row[4];
        for (int64_t r = 0; r < 4; r++) row[r] = from + (i + r < n ? i + r : n - 1) * ld;
        int64_t c = 0;
        for (; c + 4 <= d; c += 4) {
            four q[4];
            for (int r = 0; r < 4; r++)
                q[r] = *(const four_any *)(const void *)(row[r] + c) * factor;
            transpose4(q);
            for (int r = 0; r < 4; r++) *(four *)(void *)(to + (c + r) * BQ + i) = q[r];
        }
        for (; c < d; c++)
            for (int r = 0; r < 4; r++) to[c * BQ + i + r] = factor * row[r][c];
    }
}

/* to[i][c] = factor[i] * from[c][i] for n rows. */
static void transpose_out(const float *from, int64_t n, int64_t d, const float *factor, float *to,
                          int64_t ld) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const four f = *(const four *)(const void *)(factor + i);
        int64_t c = 0;
        for (; c + 4 <= d; c += 4) {
            four q[4];
            for (int r = 0; r < 4; r++)
                q[r] = *(const four *)(const void *)(from + (c + r) * BQ + i) * f;
            transpose4(q);
            for (int r = 0; r < 4; r++) *(four_any *)(void *)(to + (i + r) * ld + c) = q[r];
        }
        for (; c < d; c++)
            for (int r = 0; r < 4; r++) to[(i + r) * ld + c] = factor[i + r] * from[c * BQ + i + r];
    }
    for (; i < n; i++)
        for (int64_t c = 0; c < d; c++) to[i * ld + c] = factor[i] * from[c * BQ + i];
}

/* Scores of keys that a query must not see become -infinity. */
static void mask_causal(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                        float *s) {
    const int64_t first = t->position + q0 - k0; /* lane i sees key j when j <= first + i */
    for (int64_t j = first + 1 > 0 ? first + 1 : 0; j < keys; j++) {
        const int64_t hidden = j - first < lanes ? j - first : lanes;
        for (int64_t i = 0; i < hidden; i++) s[j * BQ + i] = -INFINITY;
    }
}

/* w[e][i] = the random word of lane i and key 4 * quad + e. */
static void quad_words(const task *t, int64_t q0, int64_t quad, int64_t lanes, uint32_t *w) {
    const bt_drop *drop = &t->p->drop;
    const btcpu_vq zero = {0};
    for (int64_t i = 0; i < lanes; i += BTCPU_QL) {
        btcpu_vq position = (uint64_t)(t->position + q0 + i) + btcpu_iota();
        btcpu_vq c[4] = {zero + drop->update, zero + (drop->site << 16 | t->head), zero + t->place,
                         (position << 14) | (uint64_t)quad};
        btcpu_philox(c, drop->seed);
        for (int e = 0; e < 4; e++)
            *(btcpu_vwu *)(void *)(w + e * BQ + i) = __builtin_convertvector(c[e], btcpu_vw);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct fwd {
    const float *q, *k, *v;
    float *o, *lse;
    int64_t q_ld, k_ld, v_ld, o_ld, lse_ld;
    const bt_attn_params *p;
    const int32_t *seq, *index; /* index NULL: keys lie in order */
    int64_t seq_ld, index_ld, cols, floats;
    float *ws; /* floats for each thread */
} fwd;

/* A thread's scratch. */
typedef struct fwd_tile {
    float *qt, *ot, *key, *value, *s, *max, *sum, *scale;
} fwd_tile;

static fwd_tile fwd_tiles(float *ws, int64_t d) {
    const int64_t w = btcpu_round16(d);
    fwd_tile t = {.qt = ws};
    t.ot = t.qt + BQ * w;
    t.key = t.ot + BQ * w;
    t.value = t.key + BK * w;
    t.s = t.value + BK * w;
    t.max = t.s + BQ * BK;
    t.sum = t.max + BQ;
    t.scale = t.sum + BQ;
    return t;
}

/* Takes the tile's scores into the running maximum and sum, turns them into probabilities (up to
 * the final division) and gives in w->scale what older sums must be multiplied by. */
static void softmax_tile(const fwd_tile *w, int64_t keys, int64_t lanes) {
    float base[BQ], fresh[BQ];
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) fresh[i] = w->max[i];
    for (int64_t j = 0; j < keys; j++) {
        const float *s = w->s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) fresh[i] = s[i] > fresh[i] ? s[i] : fresh[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        base[i] = fresh[i] > -INFINITY ? fresh[i] : 0.0f;
        w->scale[i] = btcpu_exp(w->max[i] - base[i]);
        w->max[i] = fresh[i];
        fresh[i] = 0.0f;
    }
    for (int64_t j = 0; j < keys; j++) {
        float *s = w->s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float e = btcpu_exp(s[i] - base[i]);
            s[i] = e;
            fresh[i] += e;
        }
    }
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) w->sum[i] = w->sum[i] * w->scale[i] + fresh[i];
}

static void drop_tile(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                      float *s) {
    uint32_t words[4 * BQ];
    const uint32_t threshold = t->threshold;
    const float scale = t->keep_scale;
    for (int64_t j = 0; j < keys; j++) {
        if (j % 4 == 0) quad_words(t, q0, (k0 + j) / 4, lanes, words);
        const uint32_t *w = words + j % 4 * BQ;
        float *row = s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float kept = row[i] * scale; /* read in any case, or SSE2 gets a branch */
            row[i] = w[i] >= threshold ? kept : 0.0f;
        }
    }
}

/* Rows of a tile that an index scatters, brought together. */
static const float *gather_rows(const float *from, int64_t ld, const int32_t *index, int64_t n,
                                int64_t d, float *to) {
    const int64_t w = btcpu_round16(d);
    for (int64_t j = 0; j < n; j++)
        memcpy(to + j * w, from + index[j] * ld, (size_t)d * sizeof(float));
    return to;
}

/* Queries q0 .. q0 + n - 1 over all keys that they see. index: the sequence's key rows, or NULL. */
static void fwd_queries(const fwd *a, const task *t, int64_t q0, int64_t n, const int32_t *index,
                        const fwd_tile *w) {
    const int64_t lanes = lanes_of(n), end = visible(t, q0, n), d = t->d;
    transpose_in(a->q + (t->query_row + q0) * a->q_ld + t->head_col, a->q_ld, n, d,
                 (float)t->p->scale, w->qt);
    for (int64_t i = 0; i < lanes; i++) w->max[i] = -INFINITY, w->sum[i] = 0.0f;
    for (int64_t k0 = 0; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK;
        const float *k = a->k + t->head_col, *v = a->v + t->head_col;
        int64_t k_ld = a->k_ld, v_ld = a->v_ld;
        if (index) {
            k = gather_rows(k, k_ld, index + k0, keys, d, w->key);
            v = gather_rows(v, v_ld, index + k0, keys, d, w->value);
            k_ld = v_ld = btcpu_round16(d);
        } else {
            k += (t->key_row + k0) * k_ld;
            v += (t->key_row + k0) * v_ld;
        }
        run_panel(&(panel){k, k_ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        softmax_tile(w, keys, lanes);
        if (t->threshold) drop_tile(t, q0, k0, keys, lanes, w->s);
        for (int64_t c = 0; k0 > 0 && c < d; c++) {
            float *row = w->ot + c * BQ;
#pragma omp simd
            for (int64_t i = 0; i < lanes; i++) row[i] *= w->scale[i];
        }
        run_panel(&(panel){v, 1, v_ld, w->s, BQ, keys, w->ot, BQ, k0 > 0}, d, lanes);
    }
    if (end == 0) memset(w->ot, 0, (size_t)(d * BQ) * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (a->lse)
            a->lse[(t->query_row + q0 + i) * a->lse_ld + t->head] =
                w->sum[i] == 0.0f ? -INFINITY : w->max[i] + logf(w->sum[i]);
        w->scale[i] = w->sum[i] == 0.0f ? 0.0f : 1.0f / w->sum[i];
    }
    transpose_out(w->ot, n, d, w->scale, a->o + (t->query_row + q0) * a->o_ld + t->head_col,
                  a->o_ld);
}

/* Threads worth having: one for each task, no second for less work than forking costs. */
static int task_parts(const bt_dev *dev, int64_t tasks, int64_t elements) {
    const int64_t most = (int64_t)dev->info.threads;
    if (elements < 4096) return 1;
    return (int)(tasks < most ? tasks : most);
}

static void fwd_tasks(const btcpu_part *part) {
    const fwd *a = part->ctx;
    const bt_attn_params *p = a->p;
    const fwd_tile w = fwd_tiles(a->ws + part->slot * a->floats, a->cols / p->heads);
    for (int64_t i = part->first; i < part->end; i++) {
        const int64_t s = i / p->heads;
        const task one = make_task(p, a->seq + s * a->seq_ld, i % p->heads, a->cols);
        for (int64_t q0 = 0; q0 < one.queries; q0 += BQ)
            fwd_queries(a, &one, q0, one.queries - q0 < BQ ? one.queries - q0 : BQ,
                        a->index ? a->index + s * a->index_ld : NULL, &w);
    }
}

bt_status BTCPU_FN(attn_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t, *q = &t[BT_ATTN_FWD_Q], *seq = &t[BT_ATTN_FWD_SEQ];
    const bt_view *kidx = &t[BT_ATTN_FWD_KIDX];
    const bt_attn_params *p = &call->p.attn;
    const fwd a = {.q = btcpu_f32(q),
                   .k = btcpu_f32(&t[BT_ATTN_FWD_K]),
                   .v = btcpu_f32(&t[BT_ATTN_FWD_V]),
                   .o = btcpu_f32(&t[BT_ATTN_FWD_O]),
                   .lse = btcpu_f32(&t[BT_ATTN_FWD_LSE]),
                   .q_ld = q->ld,
                   .k_ld = t[BT_ATTN_FWD_K].ld,
                   .v_ld = t[BT_ATTN_FWD_V].ld,
                   .o_ld = t[BT_ATTN_FWD_O].ld,
                   .lse_ld = t[BT_ATTN_FWD_LSE].ld,
                   .p = p,
                   .seq = btcpu_i32(seq),
                   .index = btcpu_i32(kidx),
                   .seq_ld = seq->ld,
                   .index_ld = kidx->ld,
                   .cols = q->cols,
                   .floats = btcpu_attn_fwd_floats(q->cols / p->heads),
                   .ws = btcpu_ws(call)};
    const int64_t tasks = seq->rows * p->heads;
    btcpu_run_tasks(dev, task_parts(dev, tasks, q->rows * a.cols), tasks, 2, fwd_tasks, &a);
    return BT_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct bwd {
    const float *q, *k, *v, *o, *lse, *go;
    float *dq, *dk, *dv;
    int64_t q_ld, k_ld, v_ld, o_ld, lse_ld, go_ld, dq_ld, dk_ld, dv_ld;
    const bt_attn_params *p;
    const int32_t *seq;
    int64_t seq_ld, cols, floats;
    float *ws; /* floats for each thread */
} bwd;

typedef struct bwd_tile {
    float *qt, *got, *dqt; /* transposed: D x BQ */
    float *q, *go;         /* rows of whole vectors: BQ x w */
    float *s, *dp, *dropped, *lse, *delta, *scale;
    int64_t w;
} bwd_tile;

static bwd_tile bwd_tiles(float *ws, int64_t d) {
    bwd_tile t = {.qt = ws, .w = btcpu_round16(d)};
    t.got = t.qt + BQ * t.w;
    t.dqt = t.got + BQ * t.w;
    t.q = t.dqt + BQ * t.w;
    t.go = t.q + BQ * t.w;
    t.s = t.go + BQ * t.w;
    t.dp = t.s + BQ * BK;
    t.dropped = t.dp + BQ * BK;
    t.lse = t.dropped + BQ * BK;
    t.delta = t.lse + BQ;
    t.scale = t.delta + BQ;
    return t;
}

/* to[i] = factor * from[i], rows padded with 0 to w. */
static void copy_rows(const float *from, int64_t ld, int64_t n, int64_t d, float factor, float *to,
                      int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = from + i * ld;
        float *out = to + i * w;
#pragma omp simd
        for (int64_t c = 0; c < d; c++) out[c] = factor * row[c];
        for (int64_t c = d; c < w; c++) out[c] = 0.0f;
    }
}

/* What the keys of all tiles need of these queries. A lane without a query, or whose query sees no
 * key, gets log-sum-exp +infinity: all its probabilities are 0. */
static void load_queries(const bwd *a, const task *t, int64_t q0, int64_t n, const bwd_tile *w) {
    const int64_t row = t->query_row + q0, d = t->d;
    const float *q = a->q + row * a->q_ld + t->head_col;
    const float *go = a->go + row * a->go_ld + t->head_col;
    const float *o = a->o + row * a->o_ld + t->head_col;
    const float scale = (float)t->p->scale;
    transpose_in(q, a->q_ld, n, d, scale, w->qt);
    transpose_in(go, a->go_ld, n, d, 1.0f, w->got);
    copy_rows(q, a->q_ld, n, d, scale, w->q, w->w);
    copy_rows(go, a->go_ld, n, d, 1.0f, w->go, w->w);
    for (int64_t i = 0; i < lanes_of(n); i++) {
        float lse = -INFINITY, delta = 0.0f;
        if (i < n) {
            lse = a->lse[(row + i) * a->lse_ld + t->head];
#pragma omp simd reduction(+ : delta)
            for (int64_t c = 0; c < d; c++) delta += go[i * a->go_ld + c] * o[i * a->o_ld + c];
        }
        w->lse[i] = lse == -INFINITY ? INFINITY : lse;
        w->delta[i] = delta;
        w->scale[i] = scale;
    }
}

/* From scores and gradients of dropped probabilities: s = dS, dropped = drop(P). */
static void bwd_softmax(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                        const bwd_tile *w) {
    uint32_t words[4 * BQ];
    const float *lse = w->lse, *delta = w->delta;
    const uint32_t threshold = t->threshold;
    const float keep = t->keep_scale;
    for (int64_t j = 0; j < keys; j++) {
        float *s = w->s + j * BQ, *dropped = w->dropped + j * BQ;
        const float *dp = w->dp + j * BQ;
        if (threshold == 0) {
#pragma omp simd
            for (int64_t i = 0; i < lanes; i++) {
                float prob = btcpu_exp(s[i] - lse[i]);
                dropped[i] = prob;
                s[i] = prob * (dp[i] - delta[i]);
            }
            continue;
        }
        if (j % 4 == 0) quad_words(t, q0, (k0 + j) / 4, lanes, words);
        const uint32_t *word = words + j % 4 * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float prob = btcpu_exp(s[i] - lse[i]);
            float factor = word[i] >= threshold ? keep : 0.0f;
            dropped[i] = prob * factor;
            s[i] = prob * (dp[i] * factor - delta[i]);
        }
    }
}

static void bwd_queries(const bwd *a, const task *t, int64_t q0, int64_t n, const bwd_tile *w) {
    const int64_t lanes = lanes_of(n), end = visible(t, q0, n), d = t->d;
    load_queries(a, t, q0, n, w);
    for (int64_t k0 = 0; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK, row = t->key_row + k0;
        const float *k = a->k + row * a->k_ld + t->head_col;
        const float *v = a->v + row * a->v_ld + t->head_col;
        run_panel(&(panel){k, a->k_ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        run_panel(&(panel){v, a->v_ld, 1, w->got, BQ, d, w->dp, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        bwd_softmax(t, q0, k0, keys, lanes, w);
        run_panel(&(panel){w->dropped, BQ, 1, w->go, w->w, n, a->dv + row * a->dv_ld + t->head_col,
                           a->dv_ld, 1},
                  keys, d);
        run_panel(
            &(panel){w->s, BQ, 1, w->q, w->w, n, a->dk + row * a->dk_ld + t->head_col, a->dk_ld, 1},
            keys, d);
        run_panel(&(panel){k, 1, a->k_ld, w->s, BQ, keys, w->dqt, BQ, k0 > 0}, d, lanes);
    }
    if (end == 0) memset(w->dqt, 0, (size_t)(d * BQ) * sizeof(float));
    transpose_out(w->dqt, n, d, w->scale, a->dq + (t->query_row + q0) * a->dq_ld + t->head_col,
                  a->dq_ld);
}

static void bwd_tasks(const btcpu_part *part) {
    const bwd *a = part->ctx;
    const bt_attn_params *p = a->p;
    const int64_t d = a->cols / p->heads;
    const size_t bytes = (size_t)d * sizeof(float);
    const bwd_tile w = bwd_tiles(a->ws + part->slot * a->floats, d);
    for (int64_t i = part->first; i < part->end; i++) {
        const task one = make_task(p, a->seq + i / p->heads * a->seq_ld, i % p->heads, a->cols);
        for (int64_t j = one.key_row; j < one.key_row + one.keys; j++) {
            memset(a->dk + j * a->dk_ld + one.head_col, 0, bytes);
            memset(a->dv + j * a->dv_ld + one.head_col, 0, bytes);
        }
        for (int64_t q0 = 0; q0 < one.queries; q0 += BQ)
            bwd_queries(a, &one, q0, one.queries - q0 < BQ ? one.queries - q0 : BQ, &w);
    }
}

bt_status BTCPU_FN(attn_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t, *q = &t[BT_ATTN_BWD_Q], *seq = &t[BT_ATTN_BWD_SEQ];
    const bt_attn_params *p = &call->p.attn;
    const bwd a = {.q = btcpu_f32(q),
                   .k = btcpu_f32(&t[BT_ATTN_BWD_K]),
                   .v = btcpu_f32(&t[BT_ATTN_BWD_V]),
                   .o = btcpu_f32(&t[BT_ATTN_BWD_O]),
                   .lse = btcpu_f32(&t[BT_ATTN_BWD_LSE]),
                   .go = btcpu_f32(&t[BT_ATTN_BWD_DO]),
                   .dq = btcpu_f32(&t[BT_ATTN_BWD_DQ]),
                   .dk = btcpu_f32(&t[BT_ATTN_BWD_DK]),
                   .dv = btcpu_f32(&t[BT_ATTN_BWD_DV]),
                   .q_ld = q->ld,
                   .k_ld = t[BT_ATTN_BWD_K].ld,
                   .v_ld = t[BT_ATTN_BWD_V].ld,
                   .o_ld = t[BT_ATTN_BWD_O].ld,
                   .lse_ld = t[BT_ATTN_BWD_LSE].ld,
                   .go_ld = t[BT_ATTN_BWD_DO].ld,
                   .dq_ld = t[BT_ATTN_BWD_DQ].ld,
                   .dk_ld = t[BT_ATTN_BWD_DK].ld,
                   .dv_ld = t[BT_ATTN_BWD_DV].ld,
                   .p = p,
                   .seq = btcpu_i32(seq),
                   .seq_ld = seq->ld,
                   .cols = q->cols,
                   .floats = btcpu_attn_bwd_floats(q->cols / p->heads),
                   .ws = btcpu_ws(call)};
    const int64_t tasks = seq->rows * p->heads;
    btcpu_run_tasks(dev, task_parts(dev, tasks, q->rows * a.cols), tasks, 2, bwd_tasks, &a);
    return BT_OK;
}
