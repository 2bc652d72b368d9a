/* Row-wise building blocks: pieces of rows as fp32 whatever their type, dropout of a chunk of
 * columns, and column sums in a fixed order. */
#ifndef BANTAM_CPU_ROWS_H
#define BANTAM_CPU_ROWS_H

#include "cpu/parallel.h"
#include "cpu/vec.h"

/* Columns of the chunk that starts at `col`, a multiple of BTCPU_WORDS. */
static inline int64_t btcpu_chunk(int64_t col, int64_t cols) {
    return cols - col < BTCPU_WORDS ? cols - col : BTCPU_WORDS;
}

/* ---- pieces of rows ---------------------------------------------------------------------------
 */

/* Kernels compute on fp32 pieces of rows, so that one source serves every type: fp32 data is read
 * and written where it lies, half data through a buffer in the nearest cache. */

static inline uint16_t *btcpu_half_at(const bt_view *v, int64_t row, int64_t col) {
    return btcpu_half(v) + row * v->ld + col;
}

/* n numbers from (row, col) on: where they lie, or widened into `buf`. */
static inline const float *btcpu_read(const bt_view *v, int64_t row, int64_t col, int64_t n,
                                      float *buf) {
    if (v->dtype == BT_F32) return btcpu_f32(v) + row * v->ld + col;
    BTCPU_FN(widen)(v->dtype, btcpu_half_at(v, row, col), buf, n);
    return buf;
}

/* The same numbers made in `to`, as a product with this `round` sees them. */
static inline void btcpu_read_rounded(const bt_view *v, bt_dtype round, int64_t row, int64_t col,
                                      int64_t n, float *to) {
    const float *from = btcpu_read(v, row, col, n, to);
    if (from != to) BTCPU_FN(round)(round, from, to, n);
}

/* Where the numbers from (row, col) on are made: where they will lie, or `buf`. */
static inline float *btcpu_target(const bt_view *v, int64_t row, int64_t col, float *buf) {
    return v->dtype == BT_F32 ? btcpu_f32(v) + row * v->ld + col : buf;
}

/* After btcpu_target: n numbers that were made in a buffer are rounded into the view. */
static inline void btcpu_write(const bt_view *v, int64_t row, int64_t col, int64_t n,
                               const float *made) {
    if (v->dtype != BT_F32) BTCPU_FN(narrow)(v->dtype, made, btcpu_half_at(v, row, col), n);
}

/* Row i of the `rows` that a part has in scratch of btcpu_row_floats; NULL without scratch. */
static inline float *btcpu_row_at(float *ws, int64_t cols, int rows, int part, int i) {
    return ws ? ws + (part * rows + i) * btcpu_round16(cols) : NULL;
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct btcpu_drop {
    const bt_drop *drop; /* NULL: off */
    uint32_t threshold;
    float scale;
    const int32_t *rowpos; /* R x 2 */
    int64_t ld;
} btcpu_drop;

static inline btcpu_drop btcpu_drop_of(const bt_drop *drop, const bt_view *rowpos) {
    if (!(drop->p > 0)) return (btcpu_drop){.scale = 1.0f};
    return (btcpu_drop){drop, bti_drop_threshold(drop->p), (float)(1.0 / (1.0 - (double)drop->p)),
                        btcpu_i32(rowpos), rowpos->ld};
}

/* y[i] = kept ? scale * x[i] : 0 for n <= BTCPU_WORDS channels from `col` on (a multiple of it); y
 * may be x. */
static inline void btcpu_drop_chunk(const btcpu_drop *d, int64_t row, int64_t col, int64_t n,
                                    const float *x, float *y) {
    uint32_t w[BTCPU_WORDS];
    btcpu_row_words(w, d->drop->seed, d->drop->update, d->drop->site, d->rowpos + row * d->ld, col,
                    n);
    const uint32_t threshold = d->threshold;
    const float scale = d->scale;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float kept = x[i] * scale; /* read in any case, or SSE2 gets a branch */
        y[i] = w[i] >= threshold ? kept : 0.0f;
    }
}

/* ---- column sums ----------------------------------------------------------------------------- */

/* A part adds rows into `block`; every BTCPU_SUM_ROWS rows the block goes into `total`, so that
 * rounding grows with the square root of both levels; in the end totals are added in the order of
 * parts. Row i of `block` belongs to sum i. */
#define BTCPU_SUM_ROWS 32

typedef struct btcpu_colsum {
    float *total, *block; /* sums x width each */
    int64_t width;
    int sums, rows;
} btcpu_colsum;

static inline btcpu_colsum btcpu_colsum_at(float *ws, int64_t cols, int sums, int part) {
    int64_t width = btcpu_round16(cols);
    float *total = ws + part * BTCPU_COLSUM_ROWS(sums) * width;
    return (btcpu_colsum){total, total + sums * width, width, sums, 0};
}

static inline void btcpu_colsum_begin(btcpu_colsum *s) {
    memset(s->total, 0, (size_t)(2 * s->sums * s->width) * sizeof(float));
}

static inline void btcpu_colsum_flush(btcpu_colsum *s) {
    int64_t n = s->sums * s->width;
    float *total = s->total, *block = s->block;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        total[i] += block[i];
        block[i] = 0.0f;
    }
    s->rows = 0;
}

/* After each row. */
static inline void btcpu_colsum_row(btcpu_colsum *s) {
    if (++s->rows == BTCPU_SUM_ROWS) btcpu_colsum_flush(s);
}

/* out = beta out + sum `which` of all parts; out NULL: not wanted. */
static inline void btcpu_colsum_finish(float *ws, int64_t cols, int sums, int parts, int which,
                                       double beta, float *out) {
    for (int p = 0; p < parts && out != NULL; p++) {
        const float *total = btcpu_colsum_at(ws, cols, sums, p).total + which * btcpu_round16(cols);
        if (p == 0 && beta == 0) {
            memcpy(out, total, (size_t)cols * sizeof(float));
        } else {
#pragma omp simd
            for (int64_t i = 0; i < cols; i++) out[i] += total[i];
        }
    }
}

#endif
