/* Attention in tiles of queries x keys with an online softmax; no n x n matrix exists.
 *
 * Lanes of a vector are queries: a tile's scores lie transposed (one row for each key, BTCPU_BQ
 * queries wide), so that maxima, sums and exponentials of the softmax run straight down the rows
 * and keys and values are read where they lie, one broadcast number at a time. All five products
 * are one register-blocked panel. A task is one sequence and head; tasks share no output, so that
 * their order does not matter. Memory traffic: q, k, v, o once per task, the rest stays in cache.
 * Half rows are widened into a thread's scratch, tile by tile. */
#ifndef BANTAM_CPU_ATTENTION_H
#define BANTAM_CPU_ATTENTION_H

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
static inline void run_panel(const panel *p, int64_t rows, int64_t lanes) {
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

static inline task make_task(const bt_attn_params *p, const int32_t *s, int64_t head,
                             int64_t cols) {
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
static inline int64_t visible(const task *t, int64_t q0, int64_t n) {
    const int64_t end = t->position + q0 + n;
    return t->p->causal && end < t->keys ? end : t->keys;
}

/* Lanes in use for n queries: whole vectors. */
static inline int64_t lanes_of(int64_t n) { return (n + BTCPU_VL - 1) / BTCPU_VL * BTCPU_VL; }

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
static inline rows head_rows(const bt_view *v, int64_t row, int64_t col, const int32_t *index,
                             int64_t n, int64_t d, float *to) {
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
static inline void transpose_in(rows from, int64_t n, int64_t d, float factor, float *to) {
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
static inline void transpose_out(const float *from, int64_t n, int64_t d, const float *factor,
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
static inline void mask_causal(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                               float *s) {
    const int64_t first = t->position + q0 - k0; /* lane i sees key j when j <= first + i */
    for (int64_t j = first + 1 > 0 ? first + 1 : 0; j < keys; j++) {
        const int64_t hidden = j - first < lanes ? j - first : lanes;
        for (int64_t i = 0; i < hidden; i++) s[j * BQ + i] = -INFINITY;
    }
}

/* w[e][i] = the random word of lane i and key 4 * quad + e. */
static inline void quad_words(const task *t, int64_t q0, int64_t quad, int64_t lanes, uint32_t *w) {
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

/* Threads worth having: one for each task, no second for less work than forking costs. */
static inline int task_parts(const bt_dev *dev, int64_t tasks, int64_t elements) {
    const int64_t most = (int64_t)dev->info.threads;
    if (elements < 4096) return 1;
    return (int)(tasks < most ? tasks : most);
}

#endif
