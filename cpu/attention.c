/* Attention in tiles of queries x keys with an online softmax; no n x n matrix exists.
 *
 * Lanes of a vector are queries: a tile's scores lie transposed (one row for each key, BTCPU_BQ
 * queries wide), so that maxima, sums and exponentials of the softmax run straight down the rows
 * and keys and values are read where they lie, one broadcast number at a time. All five products
 * are one register-blocked panel. A task is one sequence and head; tasks share no output, so that
 * their order does not matter. Memory traffic: q, k, v, o once per task, the rest stays in cache.
 * Half rows are widened into a thread's scratch, tile by tile. */
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

/* Rows of a head, fp32, `ld` apart. */
typedef struct rows {
    const float *p;
    int64_t ld;
} rows;

/* n rows of d columns from (row, col) on, or the rows row + index[i]: as they lie where that will
 * do, else brought together in `to` as fp32. */
static rows head_rows(const bt_view *v, int64_t row, int64_t col, const int32_t *index, int64_t n,
                      int64_t d, float *to) {
    if (v->dtype == BT_F32 && !index) return (rows){btcpu_f32(v) + row * v->ld + col, v->ld};
    const int64_t w = btcpu_round16(d);
    for (int64_t i = 0; i < n; i++) {
        float *line = to + i * w;
        const float *from = btcpu_read(v, index ? row + index[i] : row + i, col, d, line);
        if (from != line) memcpy(line, from, (size_t)d * sizeof(float));
    }
    return (rows){to, w};
}

/* to[c][i] = factor * from[i][c] for n rows, four at a time; the last group repeats row n - 1. What
 * lies in lanes without a query does not matter: lanes never mix, and sums over queries stop at n.
 */
static void transpose_in(rows from, int64_t n, int64_t d, float factor, float *to) {
    for (int64_t i = 0; i < n; i += 4) {
        const float *row[4];
        for (int64_t r = 0; r < 4; r++) row[r] = from.p + (i + r < n ? i + r : n - 1) * from.ld;
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

/* out[row + i][col + c] = factor[i] * from[c][i] for n rows; `buf` for n rows of halves. */
static void transpose_out(const float *from, int64_t n, int64_t d, const float *factor,
                          const bt_view *out, int64_t row, int64_t col, float *buf) {
    float *to = btcpu_target(out, row, col, buf);
    const int64_t ld = to == buf ? btcpu_round16(d) : out->ld;
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
    for (i = 0; i < n; i++) btcpu_write(out, row + i, col, d, to + i * ld);
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
    const bt_view *q, *k, *v, *o;
    float *lse; /* NULL: not wanted */
    int64_t lse_ld;
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

/* Queries q0 .. q0 + n - 1 over all keys that they see. index: the sequence's key rows, or NULL. */
static void fwd_queries(const fwd *a, const task *t, int64_t q0, int64_t n, const int32_t *index,
                        const fwd_tile *w) {
    const int64_t lanes = lanes_of(n), end = visible(t, q0, n), d = t->d;
    transpose_in(head_rows(a->q, t->query_row + q0, t->head_col, NULL, n, d, w->ot), n, d,
                 (float)t->p->scale, w->qt);
    for (int64_t i = 0; i < lanes; i++) w->max[i] = -INFINITY, w->sum[i] = 0.0f;
    for (int64_t k0 = 0; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK;
        const int32_t *at = index ? index + k0 : NULL;
        const int64_t base = index ? 0 : t->key_row + k0;
        const rows k = head_rows(a->k, base, t->head_col, at, keys, d, w->key);
        const rows v = head_rows(a->v, base, t->head_col, at, keys, d, w->value);
        run_panel(&(panel){k.p, k.ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        softmax_tile(w, keys, lanes);
        if (t->threshold) drop_tile(t, q0, k0, keys, lanes, w->s);
        for (int64_t c = 0; k0 > 0 && c < d; c++) {
            float *row = w->ot + c * BQ;
#pragma omp simd
            for (int64_t i = 0; i < lanes; i++) row[i] *= w->scale[i];
        }
        run_panel(&(panel){v.p, 1, v.ld, w->s, BQ, keys, w->ot, BQ, k0 > 0}, d, lanes);
    }
    if (end == 0) memset(w->ot, 0, (size_t)(d * BQ) * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (a->lse)
            a->lse[(t->query_row + q0 + i) * a->lse_ld + t->head] =
                w->sum[i] == 0.0f ? -INFINITY : w->max[i] + logf(w->sum[i]);
        w->scale[i] = w->sum[i] == 0.0f ? 0.0f : 1.0f / w->sum[i];
    }
    transpose_out(w->ot, n, d, w->scale, a->o, t->query_row + q0, t->head_col, w->qt);
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
    const fwd a = {.q = q,
                   .k = &t[BT_ATTN_FWD_K],
                   .v = &t[BT_ATTN_FWD_V],
                   .o = &t[BT_ATTN_FWD_O],
                   .lse = btcpu_f32(&t[BT_ATTN_FWD_LSE]),
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
    const bt_view *q, *k, *v, *o, *go, *dq, *dk, *dv;
    const float *lse;
    int64_t lse_ld;
    const bt_attn_params *p;
    const int32_t *seq;
    int64_t seq_ld, cols, floats;
    float *ws; /* floats for each thread */
} bwd;

typedef struct bwd_tile {
    float *qt, *got, *dqt; /* transposed: D x BQ */
    float *q, *go;         /* rows of whole vectors: BQ x w */
    float *s, *dp, *dropped, *lse, *delta, *scale;
    float *k, *v, *dk, *dv; /* of halves: BK rows, BTCPU_SPAN rows */
    int64_t w;
} bwd_tile;

static bwd_tile bwd_tiles(float *ws, int64_t d, int half) {
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
    if (half) {
        t.k = t.scale + 2 * BQ;
        t.v = t.k + BK * t.w;
        t.dk = t.v + BK * t.w;
        t.dv = t.dk + BTCPU_SPAN * t.w;
    }
    return t;
}

/* to[i] = factor * from[i], rows padded with 0 to w. to may be from. */
static void copy_rows(rows from, int64_t n, int64_t d, float factor, float *to, int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = from.p + i * from.ld;
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
    const rows q = head_rows(a->q, row, t->head_col, NULL, n, d, w->q);
    const rows go = head_rows(a->go, row, t->head_col, NULL, n, d, w->go);
    const rows o = head_rows(a->o, row, t->head_col, NULL, n, d, w->dqt);
    const float scale = (float)t->p->scale;
    transpose_in(q, n, d, scale, w->qt);
    transpose_in(go, n, d, 1.0f, w->got);
    copy_rows(q, n, d, scale, w->q, w->w);
    copy_rows(go, n, d, 1.0f, w->go, w->w);
    for (int64_t i = 0; i < lanes_of(n); i++) {
        float lse = -INFINITY, delta = 0.0f;
        if (i < n) {
            lse = a->lse[(row + i) * a->lse_ld + t->head];
#pragma omp simd reduction(+ : delta)
            for (int64_t c = 0; c < d; c++) delta += go.p[i * go.ld + c] * o.p[i * o.ld + c];
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

/* Keys `first` .. `end` - 1 of a task, and where the gradients of the first lie as fp32; NULL:
 * they are not wanted. */
typedef struct span {
    int64_t first, end;
    int dq; /* the gradients of the queries are wanted */
    float *dk, *dv;
    int64_t dk_ld, dv_ld;
} span;

/* Queries q0 .. q0 + n - 1 over the keys of a span that they see. */
static void bwd_queries(const bwd *a, const task *t, int64_t q0, int64_t n, const span *s,
                        const bwd_tile *w) {
    const int64_t lanes = lanes_of(n), seen = visible(t, q0, n), d = t->d;
    const int64_t end = seen < s->end ? seen : s->end;
    load_queries(a, t, q0, n, w);
    for (int64_t k0 = s->first; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK, row = t->key_row + k0;
        const rows k = head_rows(a->k, row, t->head_col, NULL, keys, d, w->k);
        const rows v = head_rows(a->v, row, t->head_col, NULL, keys, d, w->v);
        run_panel(&(panel){k.p, k.ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        run_panel(&(panel){v.p, v.ld, 1, w->got, BQ, d, w->dp, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        bwd_softmax(t, q0, k0, keys, lanes, w);
        if (s->dk) {
            float *dk = s->dk + (k0 - s->first) * s->dk_ld,
                  *dv = s->dv + (k0 - s->first) * s->dv_ld;
            run_panel(&(panel){w->dropped, BQ, 1, w->go, w->w, n, dv, s->dv_ld, 1}, keys, d);
            run_panel(&(panel){w->s, BQ, 1, w->q, w->w, n, dk, s->dk_ld, 1}, keys, d);
        }
        if (s->dq) run_panel(&(panel){k.p, 1, k.ld, w->s, BQ, keys, w->dqt, BQ, k0 > 0}, d, lanes);
    }
    if (!s->dq) return;
    if (end == 0) memset(w->dqt, 0, (size_t)(d * BQ) * sizeof(float));
    transpose_out(w->dqt, n, d, w->scale, a->dq, t->query_row + q0, t->head_col, w->qt);
}

static void bwd_span(const bwd *a, const task *t, const span *s, const bwd_tile *w) {
    for (int64_t i = 0; s->dk && i < s->end - s->first; i++) {
        memset(s->dk + i * s->dk_ld, 0, (size_t)t->d * sizeof(float));
        memset(s->dv + i * s->dv_ld, 0, (size_t)t->d * sizeof(float));
    }
    for (int64_t q0 = 0; q0 < t->queries; q0 += BQ)
        bwd_queries(a, t, q0, t->queries - q0 < BQ ? t->queries - q0 : BQ, s, w);
}

/* Gradients of keys and values are sums over all queries. fp32 ones grow where they will lie; of
 * halves a span of keys at a time is held in scratch. More keys than a span take the gradients of
 * the queries by themselves, for 7 products instead of 5. */
static void bwd_task(const bwd *a, const task *t, const bwd_tile *w) {
    const int half = btcpu_is_half(a->dk->dtype), whole = !half || t->keys <= BTCPU_SPAN;
    if (!whole) bwd_span(a, t, &(span){.end = t->keys, .dq = 1}, w);
    int64_t first = 0;
    do {
        const int64_t n = whole || t->keys - first < BTCPU_SPAN ? t->keys - first : BTCPU_SPAN;
        const int64_t row = t->key_row + first;
        const span s = {.first = first,
                        .end = first + n,
                        .dq = whole,
                        .dk = btcpu_target(a->dk, row, t->head_col, w->dk),
                        .dv = btcpu_target(a->dv, row, t->head_col, w->dv),
                        .dk_ld = half ? w->w : a->dk->ld,
                        .dv_ld = half ? w->w : a->dv->ld};
        bwd_span(a, t, &s, w);
        for (int64_t i = 0; i < n; i++) {
            btcpu_write(a->dk, row + i, t->head_col, t->d, s.dk + i * s.dk_ld);
            btcpu_write(a->dv, row + i, t->head_col, t->d, s.dv + i * s.dv_ld);
        }
        first += n;
    } while (first < t->keys);
}

static void bwd_tasks(const btcpu_part *part) {
    const bwd *a = part->ctx;
    const bt_attn_params *p = a->p;
    const bwd_tile w =
        bwd_tiles(a->ws + part->slot * a->floats, a->cols / p->heads, btcpu_is_half(a->dk->dtype));
    for (int64_t i = part->first; i < part->end; i++) {
        const task one = make_task(p, a->seq + i / p->heads * a->seq_ld, i % p->heads, a->cols);
        bwd_task(a, &one, &w);
    }
}

bt_status BTCPU_FN(attn_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t, *q = &t[BT_ATTN_BWD_Q], *seq = &t[BT_ATTN_BWD_SEQ];
    const bt_attn_params *p = &call->p.attn;
    const bwd a = {.q = q,
                   .k = &t[BT_ATTN_BWD_K],
                   .v = &t[BT_ATTN_BWD_V],
                   .o = &t[BT_ATTN_BWD_O],
                   .go = &t[BT_ATTN_BWD_DO],
                   .dq = &t[BT_ATTN_BWD_DQ],
                   .dk = &t[BT_ATTN_BWD_DK],
                   .dv = &t[BT_ATTN_BWD_DV],
                   .lse = btcpu_f32(&t[BT_ATTN_BWD_LSE]),
                   .lse_ld = t[BT_ATTN_BWD_LSE].ld,
                   .p = p,
                   .seq = btcpu_i32(seq),
                   .seq_ld = seq->ld,
                   .cols = q->cols,
                   .floats = btcpu_attn_bwd_floats(q->cols / p->heads, btcpu_is_half(q->dtype)),
                   .ws = btcpu_ws(call)};
    const int64_t tasks = seq->rows * p->heads;
    btcpu_run_tasks(dev, task_parts(dev, tasks, q->rows * a.cols), tasks, 2, bwd_tasks, &a);
    return BT_OK;
}
