/* Products in half precision. Operands that are not in the type that the device multiplies are
 * copied to scratch, a slice at a time (backends/cuda_plan.c): to half where cuBLAS multiplies
 * halves, to fp32 where it does not (compute capability below 5.0, for bf16 below 8.0), so that
 * both give the same but for the order of sums. */
#include "backends/cuda_blas.h"

/* cublasGemmEx knows products of fp16 from 5.0 on, of bf16 from 8.0 on. */
static int is_native(const btcu_dev *d, bt_dtype round) {
    return d->major >= (round == BT_BF16 ? 8 : 5);
}

/* A rectangle of a matrix in device memory. */
typedef struct area {
    char *p;
    int64_t ld;
    bt_dtype type;
} area;

static area area_of(const bt_view *v, int64_t batch) {
    char *p = (char *)btcu_mat_of(v).p + batch * (int64_t)btcu_size_of(v->dtype);
    return (area){p, v->ld, v->dtype};
}

static area part_of(area x, int64_t row, int64_t col) {
    x.p += (row * x.ld + col) * (int64_t)btcu_size_of(x.type);
    return x;
}

/* `to` becomes `from` in its type; fp32 from fp32: rounded to `round`. */
static cudaError_t copy_area(area from, area to, int64_t rows, int64_t cols, bt_dtype round,
                             cudaStream_t stream) {
    const btcu_mat x = {from.p, from.ld}, y = {to.p, to.ld};
    if (from.type == BT_F32 && to.type == BT_F32) {
        const btcu_round a = {x, y, rows, cols, (int)round};
        return btcu_round_run(&a, stream);
    }
    const btcu_axpby a = {.x = x,
                          .y = y,
                          .rows = rows,
                          .cols = cols,
                          .a = 1,
                          .x_type = (int)from.type,
                          .y_type = (int)to.type};
    return btcu_axpby_run(&a, stream);
}

/* A or B of one product. */
typedef struct operand {
    area whole, copy; /* copy: of a slice, in scratch */
    int copied, trans;
    int64_t row, col; /* of op(X), where the slice begins that the copy holds; -1: none yet */
} operand;

/* One product of a call, being done. */
typedef struct work {
    btcu_product p;
    btcu_slice s;
    operand a, b;
    area c, sums; /* sums: of a slice of C, in scratch, where they are rounded at the end */
    bt_dtype round;
    float alpha, beta;
} work;

/* Points `out` at rows x cols of op(X) from (row, col) on: the operand itself, or a copy, which is
 * made unless it is there. */
static cudaError_t take(operand *x, int64_t row, int64_t col, int64_t rows, int64_t cols,
                        bt_dtype round, cudaStream_t stream, area *out) {
    const area from = x->trans ? part_of(x->whole, col, row) : part_of(x->whole, row, col);
    *out = x->copied ? x->copy : from;
    if (!x->copied || (x->row == row && x->col == col)) return cudaSuccess;
    x->row = row;
    x->col = col;
    x->copy.ld = out->ld = btcu_copy_ld(x->trans ? rows : cols);
    return copy_area(from, *out, x->trans ? cols : rows, x->trans ? rows : cols, round, stream);
}

static cudaDataType cuda_type(bt_dtype type) {
    return type == BT_F32 ? CUDA_R_32F : type == BT_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasStatus_t multiply(btcu_dev *d, const work *w, const area x[3], int64_t m, int64_t n,
                               int64_t k, float beta) {
    const btcu_multiply_args args = {.a = x[0].p,
                                     .b = x[1].p,
                                     .c = x[2].p,
                                     .type = w->p.widened ? CUDA_R_32F : cuda_type(w->round),
                                     .c_type = cuda_type(x[2].type),
                                     .m = m,
                                     .n = n,
                                     .k = k,
                                     .lda = x[0].ld,
                                     .ldb = x[1].ld,
                                     .ldc = x[2].ld,
                                     .count = 1,
                                     .trans_a = w->a.trans,
                                     .trans_b = w->b.trans,
                                     .alpha = w->alpha,
                                     .beta = beta};
    return btcu_multiply(d, &args);
}

/* The slice of C from (i, j) on: the slices of the sum, one after the other. */
static bt_status sum_slices(btcu_dev *d, work *w, int64_t i, int64_t j) {
    bt_dev *dev = &d->base;
    cudaStream_t stream = d->own.stream;
    const int64_t m = btcu_least(w->s.m, w->p.m - i), n = btcu_least(w->s.n, w->p.n - j);
    const int apart = w->s.c_bytes > 0;
    const area c = part_of(w->c, i, j);
    area x[3] = {w->a.whole, w->b.whole, apart ? w->sums : c};
    bt_status status = BT_OK;
    for (int64_t l = 0; l < w->p.k && status == BT_OK; l += w->s.k) {
        const int64_t k = btcu_least(w->s.k, w->p.k - l);
        status = btcu_check(dev, &d->own, take(&w->a, i, l, m, k, w->round, stream, &x[0]),
                            "left operand of a product");
        if (status == BT_OK)
            status = btcu_check(dev, &d->own, take(&w->b, l, j, k, n, w->round, stream, &x[1]),
                                "right operand of a product");
        if (status == BT_OK)
            status = btcu_blas_check(dev,
                                     multiply(d, w, x, m, n, k,
                                              l > 0   ? 1.0f
                                              : apart ? 0.0f
                                                      : w->beta),
                                     "product");
    }
    if (status != BT_OK || !apart) return status;
    const btcu_axpby last = {.x = {x[2].p, x[2].ld},
                             .y = {c.p, c.ld},
                             .rows = m,
                             .cols = n,
                             .a = 1,
                             .b = w->beta,
                             .x_type = BT_F32,
                             .y_type = (int)c.type};
    return btcu_check(dev, &d->own, btcu_axpby_run(&last, stream), "rounding of a product");
}

/* One matrix of the batch, whose operands start so many elements after the views. */
static bt_status one_product(btcu_dev *d, const bt_call *call, int64_t a, int64_t b, int64_t c) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *t = call->t;
    work w = {.p = btcu_product_of(call, is_native(d, g->round)),
              .a = {.whole = area_of(&t[BT_GEMM_A], a), .trans = g->trans_a, .row = -1},
              .b = {.whole = area_of(&t[BT_GEMM_B], b), .trans = g->trans_b, .row = -1},
              .c = area_of(&t[BT_GEMM_C], c),
              .round = g->round,
              .alpha = (float)g->alpha,
              .beta = (float)g->beta};
    w.s = btcu_gemm_slice(&w.p);
    w.a.copied = w.p.a;
    w.b.copied = w.p.b;
    if (w.s.a_bytes + w.s.b_bytes + w.s.c_bytes > 0) {
        const bt_dtype type = w.p.widened ? BT_F32 : g->round;
        char *ws = call->ws.buf->p + call->ws.off;
        w.a.copy = (area){ws, 0, type};
        w.b.copy = (area){ws + w.s.a_bytes, 0, type};
        w.sums = (area){ws + w.s.a_bytes + w.s.b_bytes, btcu_copy_ld(w.s.n), BT_F32};
    }
    for (int64_t i = 0; i < w.p.m; i += w.s.m)
        for (int64_t j = 0; j < w.p.n; j += w.s.n) {
            bt_status status = sum_slices(d, &w, i, j);
            if (status != BT_OK) return status;
        }
    return BT_OK;
}

bt_status btcu_in_half(btcu_dev *d, const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const cublasMath_t mode = is_native(d, g->round) ? BTCU_HALF : BTCU_PLAIN;
    bt_status status = btcu_blas_check(&d->base, btcu_set_mode(d, mode), "mode");
    for (int64_t i = 0; i < btcu_count(g->batch0); i++)
        for (int64_t j = 0; j < btcu_count(g->batch1) && status == BT_OK; j++)
            status = one_product(d, call, i * g->a0 + j * g->a1, i * g->b0 + j * g->b1,
                                 i * g->c0 + j * g->c1);
    return status;
}
