/* Products whose rows stand alone (stable_rows): C = alpha A B^T + beta C with A m x k, B n x k.
 *
 * Every element is a dot product of two rows as they lie in memory, so that nothing is packed and
 * nothing but the two rows decides its bits: k is cut into blocks of KBLOCK; in a block, lane v of
 * the sum takes the products v, v + VL, v + 2 VL ... in order; the lanes are added in a tree, then
 * the blocks in order. How many rows there are, and which thread takes them, changes where the
 * elements lie in a tile, never how one is made.
 *
 * A tile of ROWS x COLS sums in registers takes ROWS + COLS loads for ROWS * COLS multiply-adds.
 * Rows of B are outermost, PANEL at a time: B is read once from memory (4 n k bytes, all there is
 * to do for a few rows) and then from the second-level cache, a block of A from the first.
 *
 * Rounded operands: some rows of A are made anew in scratch for all threads, a panel's block of B
 * by each thread for itself; sums that will be halves are kept as fp32 until k is through. */
#include "cpu/rows.h"

/* With sums, rows of A and one row of B: 31 of 32 registers; 16 of 16; less without fused
 * multiply-add, whose product takes one, too. */
#if BTCPU_VL == 16
#define ROWS 6
#elif BTCPU_VL == 8
#define ROWS 3
#else
#define ROWS 2
#endif
#define COLS 4
#define KBLOCK BTCPU_STABLE_K
#define PANEL BTCPU_STABLE_N

#define INLINE static inline __attribute__((always_inline))

typedef float four __attribute__((vector_size(16)));
typedef float fouru __attribute__((vector_size(16), may_alias, aligned(4)));

/* m rows of A from a row of C on. */
typedef struct product {
    const float *a;
    const bt_view *b, *c;
    int64_t row, m, n, k, lda;
    float alpha, beta;
    bt_dtype round; /* BT_F32: operands are as they lie */
    float *ws;      /* `floats` for each thread: a block of B, a block of C */
    int64_t floats;
} product;

/* ---- the lanes of four sums ------------------------------------------------------------------ */

#if BTCPU_VL == 16
INLINE four add_lanes(const btcpu_vf s[COLS]) {
    btcpu_vf low = __builtin_shufflevector(s[0], s[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,
                                           21, 22, 23) +
                   __builtin_shufflevector(s[0], s[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                           28, 29, 30, 31);
    btcpu_vf high = __builtin_shufflevector(s[2], s[3], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,
                                            21, 22, 23) +
                    __builtin_shufflevector(s[2], s[3], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26,
                                            27, 28, 29, 30, 31);
    /* Four lanes of each: 0-3 of sum 0, 4-7 of sum 1 ... */
    btcpu_vf lanes = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19,
                                             24, 25, 26, 27) +
                     __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23,
                                             28, 29, 30, 31);
    lanes +=
        __builtin_shufflevector(lanes, lanes, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    lanes +=
        __builtin_shufflevector(lanes, lanes, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    return __builtin_shufflevector(lanes, lanes, 0, 4, 8, 12);
}
#elif BTCPU_VL == 8
INLINE four add_lanes(const btcpu_vf s[COLS]) {
    btcpu_vf low = __builtin_shufflevector(s[0], s[1], 0, 1, 2, 3, 8, 9, 10, 11) +
                   __builtin_shufflevector(s[0], s[1], 4, 5, 6, 7, 12, 13, 14, 15);
    btcpu_vf high = __builtin_shufflevector(s[2], s[3], 0, 1, 2, 3, 8, 9, 10, 11) +
                    __builtin_shufflevector(s[2], s[3], 4, 5, 6, 7, 12, 13, 14, 15);
    /* Two lanes of each: sums 0, 2 in the lower half, 1, 3 in the upper. */
    btcpu_vf two = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13) +
                   __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    two += __builtin_shufflevector(two, two, 1, 0, 3, 2, 5, 4, 7, 6);
    return __builtin_shufflevector(two, two, 0, 4, 2, 6);
}
#else
INLINE four add_lanes(const btcpu_vf s[COLS]) {
    btcpu_vf low = __builtin_shufflevector(s[0], s[1], 0, 1, 4, 5) +
                   __builtin_shufflevector(s[0], s[1], 2, 3, 6, 7);
    btcpu_vf high = __builtin_shufflevector(s[2], s[3], 0, 1, 4, 5) +
                    __builtin_shufflevector(s[2], s[3], 2, 3, 6, 7);
    return __builtin_shufflevector(low, high, 0, 2, 4, 6) +
           __builtin_shufflevector(low, high, 1, 3, 5, 7);
}
#endif

/* ---- a tile ---------------------------------------------------------------------------------- */

/* The first n < VL floats, the rest 0. */
INLINE btcpu_vf load_part(const float *p, int64_t n) {
    float part[BTCPU_VL] = {0};
    for (int64_t i = 0; i < n; i++) part[i] = p[i];
    return btcpu_load(part);
}

/* out[i][j] = a_i . b_j over k floats; `rows` is a constant wherever this is inlined. What lies
 * `ahead` of b is fetched for the next tile: with few rows memory sets the pace, and twice as many
 * bytes a second come (5 rows x 32,100 x 512: 1.35 ms, without 2.57). */
INLINE void tile(const int rows, const float *a, int64_t lda, const float *const b[COLS],
                 int64_t ahead, int64_t k, four out[ROWS]) {
    btcpu_vf sum[ROWS][COLS] = {{{0}}};
    int64_t l = 0;
    for (; l + BTCPU_VL <= k; l += BTCPU_VL) {
        btcpu_vf x[ROWS];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) x[i] = btcpu_load(a + i * lda + l);
#pragma GCC unroll 8
        for (int j = 0; j < COLS; j++) {
            const btcpu_vf w = btcpu_load(b[j] + l);
            __builtin_prefetch(b[j] + ahead + l);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) sum[i][j] = btcpu_madd(x[i], w, sum[i][j]);
        }
    }
    if (l < k) {
#pragma GCC unroll 8
        for (int j = 0; j < COLS; j++) {
            const btcpu_vf w = load_part(b[j] + l, k - l);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++)
                sum[i][j] = btcpu_madd(load_part(a + i * lda + l, k - l), w, sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) out[i] = add_lanes(sum[i]);
}

typedef void (*tile_fn)(const float *a, int64_t lda, const float *const b[COLS], int64_t ahead,
                        int64_t k, four out[ROWS]);

#define TILE(n) \
    static void tile_##n(const float *a, int64_t lda, const float *const b[COLS], int64_t ahead, \
                         int64_t k, four out[ROWS]) { \
        tile(n, a, lda, b, ahead, k, out); \
    }
TILE(1)
TILE(2)
#if ROWS >= 3
TILE(3)
#endif
#if ROWS >= 6
TILE(4)
TILE(5)
TILE(6)
#endif

static const tile_fn tiles[ROWS + 1] = {
    NULL,   tile_1, tile_2,
#if ROWS >= 3
    tile_3,
#endif
#if ROWS >= 6
    tile_4, tile_5, tile_6,
#endif
};

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A block of k of all rows of A against some rows of B. */
typedef struct block {
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc, n, k;
    int64_t more; /* rows of B that follow these in memory */
    float alpha, beta;
} block;

/* `rows` rows of A from i0 on. A group of COLS that passes the end of B reads its last row again.
 */
static void strip(const block *p, int64_t i0, int64_t rows) {
    const float alpha = p->alpha, beta = p->beta;
    four out[ROWS];
    for (int64_t j = 0; j < p->n; j += COLS) {
        const float *b[COLS];
        const int64_t cols = p->n - j < COLS ? p->n - j : COLS;
        for (int64_t q = 0; q < COLS; q++) b[q] = p->b + (j + (q < cols ? q : cols - 1)) * p->ldb;
        tiles[rows](p->a + i0 * p->lda, p->lda, b,
                    i0 == 0 && j + COLS < p->n + p->more ? COLS * p->ldb : 0, p->k, out);
        for (int64_t i = 0; i < rows; i++) {
            float *c = p->c + (i0 + i) * p->ldc + j;
            if (cols == COLS && beta == 0.0f) {
                *(fouru *)(void *)c = alpha * out[i];
                continue;
            }
            for (int64_t q = 0; q < cols; q++)
                c[q] = beta == 0.0f ? alpha * out[i][q] : alpha * out[i][q] + beta * c[q];
        }
    }
}

/* Rows of B from j on, k from l on, as fp32: where they lie, or made in `to`. */
static void take_block(const product *p, int64_t j, int64_t l, float *to, block *out) {
    const bt_view *b = p->b;
    if (p->round == BT_F32) {
        out->b = btcpu_f32(b) + j * b->ld + l;
        out->ldb = b->ld;
        out->more = p->n - j - out->n;
        return;
    }
    for (int64_t i = 0; i < out->n; i++)
        btcpu_read_rounded(b, p->round, j + i, l, out->k, to + i * KBLOCK);
    out->b = to;
    out->ldb = KBLOCK;
}

/* All of k for the columns j .. j + n - 1 of C; rows of A are spread evenly over the fewest tiles.
 * The first block brings in beta C, later ones add. */
static void panel(const product *p, int64_t j, int64_t n, float *ws) {
    const int half = btcpu_is_half(p->c->dtype), tall = (int)((p->m + ROWS - 1) / ROWS);
    float *made = ws ? ws + PANEL * KBLOCK : NULL;
    block one = {.lda = p->lda, .n = n, .alpha = p->alpha, .beta = p->beta};
    one.c = btcpu_target(p->c, p->row, j, made);
    one.ldc = half ? PANEL : p->c->ld;
    for (int64_t i = 0; half && p->beta != 0.0f && i < p->m; i++)
        btcpu_read(p->c, p->row + i, j, n, one.c + i * one.ldc);
    for (int64_t l = 0; l < p->k; l += KBLOCK) {
        one.k = p->k - l < KBLOCK ? p->k - l : KBLOCK;
        one.a = p->a + l;
        take_block(p, j, l, ws, &one);
        for (int t = 0; t < tall; t++) {
            const int64_t i = btcpu_first(p->m, t, tall);
            strip(&one, i, btcpu_first(p->m, t + 1, tall) - i);
        }
        one.beta = 1.0f;
    }
    for (int64_t i = 0; half && i < p->m; i++)
        btcpu_write(p->c, p->row + i, j, n, one.c + i * one.ldc);
}

/* Groups of COLS rows of B. */
static void groups(const btcpu_part *part) {
    const product *p = part->ctx;
    const int64_t last = part->end * COLS < p->n ? part->end * COLS : p->n;
    float *ws = p->ws ? p->ws + part->slot * p->floats : NULL;
    for (int64_t j = part->first * COLS; j < last; j += PANEL)
        panel(p, j, last - j < PANEL ? last - j : PANEL, ws);
}

static void run(const bt_dev *dev, const product *p) {
    const int64_t count = (p->n + COLS - 1) / COLS;
    const int parts = btcpu_gemm_threads(dev, p->m, p->n, p->k);
    btcpu_run_parts(dev, parts < count ? parts : (int)count, count, groups, p);
}

void BTCPU_FN(gemm_rows)(const bt_dev *dev, const bt_call *call) {
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const bt_gemm_params *g = &call->p.gemm;
    product p = {.a = btcpu_f32(a),
                 .b = &call->t[BT_GEMM_B],
                 .c = c,
                 .m = c->rows,
                 .n = c->cols,
                 .k = a->cols,
                 .lda = a->ld,
                 .alpha = (float)g->alpha,
                 .beta = (float)g->beta,
                 .round = g->round};
    if (g->round == BT_F32) {
        run(dev, &p);
        return;
    }
    float *rows = btcpu_ws(call);
    p.a = rows;
    p.lda = btcpu_round16(p.k);
    p.ws = rows + btcpu_stable_rows(c->rows) * p.lda;
    p.floats = btcpu_stable_thread_floats(c->rows, btcpu_is_half(c->dtype));
    for (; p.row < c->rows; p.row += p.m) {
        p.m = btcpu_stable_rows(c->rows - p.row);
        for (int64_t i = 0; i < p.m; i++)
            btcpu_read_rounded(a, g->round, p.row + i, 0, p.k, rows + i * p.lda);
        run(dev, &p);
    }
}
