/* Matrix products: what the contract settles without multiplying is done here, rows that must stand
 * alone in cpu/gemm_rows.c, the rest by OpenBLAS, small ones too (8 x 8 x 8 takes it 0.2 us, so
 * that loops of our own would gain nothing). */
#include "cpu/rows.h"

static void scale_matrix(float *c, int64_t m, int64_t n, int64_t ld, float beta) {
    for (int64_t i = 0; i < m; i++) {
        float *row = c + i * ld;
        if (beta == 0.0f) {
            memset(row, 0, (size_t)n * sizeof(float));
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) row[j] *= beta;
        }
    }
}

bt_status BTCPU_FN(gemm)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *a = &call->t[BT_GEMM_A], *b = &call->t[BT_GEMM_B], *c = &call->t[BT_GEMM_C];
    const bt_gemm_params *p = &call->p.gemm;
    const int64_t m = c->rows, n = c->cols, k = p->trans_a ? a->rows : a->cols;
    const float alpha = (float)p->alpha, beta = (float)p->beta;
    const int64_t batch0 = p->batch0 > 0 ? p->batch0 : 1, batch1 = p->batch1 > 0 ? p->batch1 : 1;
    const double work = 2.0 * (double)m * (double)n * (double)k;
    /* A thread more costs some microseconds. */
    const int threads = work < 5e5 ? 1 : (int)dev->info.threads;
    if (m == 0 || n == 0) return BT_OK;
    if (p->stable_rows && k > 0 && alpha != 0.0f) {
        BTCPU_FN(gemm_rows)(dev, call);
        return BT_OK;
    }
    for (int64_t i = 0; i < batch0; i++) {
        for (int64_t j = 0; j < batch1; j++) {
            float *pc = btcpu_f32(c) + i * p->c0 + j * p->c1;
            if (k == 0 || alpha == 0.0f) {
                if (beta != 1.0f) scale_matrix(pc, m, n, c->ld, beta);
                continue;
            }
            btcpu_sgemm(threads, p->trans_a, p->trans_b, m, n, k, alpha,
                        btcpu_f32(a) + i * p->a0 + j * p->a1, a->ld,
                        btcpu_f32(b) + i * p->b0 + j * p->b1, b->ld, beta, pc, c->ld);
        }
    }
    return BT_OK;
}
