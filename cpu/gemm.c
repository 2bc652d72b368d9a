/* Matrix products: what the contract settles without multiplying is done here, rows that must stand
 * alone in cpu/gemm_rows.c, products of halves in cpu/gemm_half.c, the rest by OpenBLAS, small ones
 * too (8 x 8 x 8 takes it 0.2 us, so that loops of our own would gain nothing). */
#include "cpu/rows.h"

static void scale_matrix(const bt_view *c, float beta) {
    float buf[BTCPU_WORDS];
    for (int64_t i = 0; i < c->rows; i++) {
        for (int64_t j = 0; j < c->cols; j += BTCPU_WORDS) {
            const int64_t n = btcpu_chunk(j, c->cols);
            const float *from = btcpu_read(c, i, j, n, buf);
            float *to = btcpu_target(c, i, j, buf);
            for (int64_t q = 0; beta != 0.0f && q < n; q++) to[q] = beta * from[q];
            if (beta == 0.0f) memset(to, 0, (size_t)n * sizeof(float));
            btcpu_write(c, i, j, n, to);
        }
    }
}

/* One matrix of the batch. */
static void multiply(const bt_dev *dev, const bt_call *call, const bt_view t[3]) {
    const bt_gemm_params *p = &call->p.gemm;
    const bt_view *a = &t[BT_GEMM_A], *b = &t[BT_GEMM_B], *c = &t[BT_GEMM_C];
    const int64_t k = p->trans_a ? a->rows : a->cols;
    if (k == 0 || p->alpha == 0) {
        if (p->beta != 1) scale_matrix(c, (float)p->beta);
    } else if (p->round != BT_F32) {
        BTCPU_FN(gemm_half)(dev, call, t);
    } else {
        btcpu_sgemm(btcpu_gemm_threads(dev, c->rows, c->cols, k), p->trans_a, p->trans_b, c->rows,
                    c->cols, k, (float)p->alpha, btcpu_f32(a), a->ld, btcpu_f32(b), b->ld,
                    (float)p->beta, btcpu_f32(c), c->ld);
    }
}

static bt_view moved(const bt_view *v, int64_t elements) {
    bt_view at = *v;
    at.off += (size_t)elements * btcpu_size(v->dtype);
    return at;
}

bt_status BTCPU_FN(gemm)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t;
    const bt_gemm_params *p = &call->p.gemm;
    const int64_t batch0 = p->batch0 > 0 ? p->batch0 : 1, batch1 = p->batch1 > 0 ? p->batch1 : 1;
    if (t[BT_GEMM_C].rows == 0 || t[BT_GEMM_C].cols == 0) return BT_OK;
    if (p->stable_rows && t[BT_GEMM_A].cols > 0 && p->alpha != 0) {
        BTCPU_FN(gemm_rows)(dev, call);
        return BT_OK;
    }
    for (int64_t i = 0; i < batch0; i++) {
        for (int64_t j = 0; j < batch1; j++) {
            const bt_view one[] = {moved(&t[BT_GEMM_A], i * p->a0 + j * p->a1),
                                   moved(&t[BT_GEMM_B], i * p->b0 + j * p->b1),
                                   moved(&t[BT_GEMM_C], i * p->c0 + j * p->c1)};
            multiply(dev, call, one);
        }
    }
    return BT_OK;
}
