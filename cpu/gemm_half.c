/* Products whose operands are rounded to half: slices of them are widened (or rounded and widened
 * again) into fp32 scratch, where OpenBLAS multiplies them as it does any others; C as halves is
 * made in a slice of scratch, too, and rounded once all of k is in.
 *
 * Slices of B follow each other while one of A is used. Beside the 2 m n k operations of a product
 * each element of A is made once for every BTCPU_SLICE columns (once altogether where k is one
 * slice), each of B once for every BTCPU_SLICE rows, each of C once. */
#include "cpu/rows.h"

/* Rows x cols from (row, col) of a view on, to or from fp32 scratch. */
typedef struct piece {
    const bt_view *v;
    int64_t row, col, rows, cols;
    bt_dtype round;
    float *at;
    int64_t ld;
} piece;

static void take_rows(const btcpu_part *part) {
    const piece *p = part->ctx;
    for (int64_t r = part->first; r < part->end; r++)
        btcpu_read_rounded(p->v, p->round, p->row + r, p->col, p->cols, p->at + r * p->ld);
}

static void widen_rows(const btcpu_part *part) {
    const piece *p = part->ctx;
    for (int64_t r = part->first; r < part->end; r++)
        btcpu_read(p->v, p->row + r, p->col, p->cols, p->at + r * p->ld);
}

static void narrow_rows(const btcpu_part *part) {
    const piece *p = part->ctx;
    for (int64_t r = part->first; r < part->end; r++)
        btcpu_write(p->v, p->row + r, p->col, p->cols, p->at + r * p->ld);
}

static void each_row(const bt_dev *dev, const piece *p, btcpu_part_fn fn) {
    btcpu_run_parts(dev, btcpu_parts(dev, p->rows * p->cols), p->rows, fn, p);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* [first, first + n) of the rows of op(A), the columns of op(B), or of what is summed over. */
typedef struct range {
    int64_t first, n;
} range;

/* Slice i of `count` as even ones of at most BTCPU_SLICE, all but the last a multiple of 16; n is 0
 * behind the last. */
static range slice_at(int64_t count, int64_t i) {
    const int64_t slices = (count + BTCPU_SLICE - 1) / BTCPU_SLICE;
    const int64_t each = btcpu_round16((count + slices - 1) / slices), first = i * each;
    const int64_t left = count - first;
    return (range){first, left < 0 ? 0 : left < each ? left : each};
}

/* An operand's slice in scratch. */
typedef struct operand {
    bt_view v;
    int trans;
    float *at;
    range outer, inner; /* what lies there: rows and columns of the view, or the other way round */
    int64_t ld;
} operand;

/* Has the rows `outer` x columns `inner` of the view in scratch; of its transpose with `trans`. */
static void take_slice(const bt_dev *dev, operand *o, bt_dtype round, range outer, range inner) {
    if (o->outer.first == outer.first && o->outer.n == outer.n && o->inner.first == inner.first &&
        o->inner.n == inner.n)
        return;
    const range rows = o->trans ? inner : outer, cols = o->trans ? outer : inner;
    o->outer = outer;
    o->inner = inner;
    o->ld = btcpu_slice_ld(cols.n);
    each_row(dev, &(piece){&o->v, rows.first, cols.first, rows.n, cols.n, round, o->at, o->ld},
             take_rows);
}

typedef struct product {
    const bt_dev *dev;
    const bt_gemm_params *p;
    operand a, b;
    bt_view c;
    int64_t k;
    float *c_at;
} product;

/* A slice of C, over all of k. */
static void make_slice(product *g, range rows, range cols) {
    const int half = btcpu_is_half(g->c.dtype);
    const float alpha = (float)g->p->alpha, beta = (float)g->p->beta;
    const int64_t ld = half ? btcpu_slice_ld(cols.n) : g->c.ld;
    float *c = btcpu_target(&g->c, rows.first, cols.first, g->c_at);
    const piece out = {&g->c, rows.first, cols.first, rows.n, cols.n, BT_F32, c, ld};
    if (half && beta != 0.0f) each_row(g->dev, &out, widen_rows);
    for (int64_t i = 0;; i++) {
        const range sum = slice_at(g->k, i);
        if (sum.n == 0) break;
        take_slice(g->dev, &g->a, g->p->round, rows, sum);
        take_slice(g->dev, &g->b, g->p->round, sum, cols);
        btcpu_sgemm(btcpu_gemm_threads(g->dev, rows.n, cols.n, sum.n), g->a.trans, g->b.trans,
                    rows.n, cols.n, sum.n, alpha, g->a.at, g->a.ld, g->b.at, g->b.ld,
                    i > 0 ? 1.0f : beta, c, ld);
    }
    if (half) each_row(g->dev, &out, narrow_rows);
}

void BTCPU_FN(gemm_half)(const bt_dev *dev, const bt_call *call, const bt_view t[3]) {
    const bt_gemm_params *p = &call->p.gemm;
    const int64_t m = t[BT_GEMM_C].rows, n = t[BT_GEMM_C].cols;
    const int64_t k = p->trans_a ? t[BT_GEMM_A].rows : t[BT_GEMM_A].cols;
    const int64_t sm = btcpu_slice_room(m), sn = btcpu_slice_room(n), sk = btcpu_slice_room(k);
    float *ws = btcpu_ws(call);
    product g = {.dev = dev,
                 .p = p,
                 .a = {.v = t[BT_GEMM_A], .trans = p->trans_a, .at = ws},
                 .b = {.v = t[BT_GEMM_B], .trans = p->trans_b, .at = ws + sm * sk},
                 .c = t[BT_GEMM_C],
                 .k = k,
                 .c_at = ws + sm * sk + sk * sn};
    for (int64_t i = 0;; i++) {
        const range rows = slice_at(m, i);
        if (rows.n == 0) break;
        for (int64_t j = 0;; j++) {
            const range cols = slice_at(n, j);
            if (cols.n == 0) break;
            make_slice(&g, rows, cols);
        }
    }
}
