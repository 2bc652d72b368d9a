/* Layer normalisation, alone and with what surrounds it in a Transformer: bias, dropout and the
 * residual. Forward moves each operand once (a row stays in the nearest cache between its passes);
 * backward reads each operand once and gives the column sums in the same pass. Rows of half data
 * are widened in scratch. */
#include "cpu/rows.h"

/* y = norm(x), stats[0..1] = mean, rstd. y may be x. */
static void norm_row(const float *x, const float *gamma, const float *beta, float *y, float *stats,
                     int64_t cols, double eps) {
    float sum = 0.0f, sq = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < cols; i++) sum += x[i];
    const float mean = sum / (float)cols;
#pragma omp simd reduction(+ : sq)
    for (int64_t i = 0; i < cols; i++) {
        float d = x[i] - mean;
        sq += d * d;
    }
    const float rstd = (float)(1.0 / sqrt((double)sq / (double)cols + eps));
#pragma omp simd
    for (int64_t i = 0; i < cols; i++) y[i] = (x[i] - mean) * rstd * gamma[i] + beta[i];
    stats[0] = mean;
    stats[1] = rstd;
}

static void norm_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_NORM_FWD_X], *y = &call->t[BT_NORM_FWD_Y];
    const bt_view *stats = &call->t[BT_NORM_FWD_STATS];
    const float *gamma = btcpu_f32(&call->t[BT_NORM_FWD_GAMMA]);
    const float *beta = btcpu_f32(&call->t[BT_NORM_FWD_BETA]);
    float *ps = btcpu_f32(stats);
    const int64_t cols = x->cols;
    float *buf = btcpu_row_at(btcpu_ws(call), cols, BTCPU_NORM_FWD_ROWS, part->slot, 0);
    for (int64_t r = part->first; r < part->end; r++) {
        float *to = btcpu_target(y, r, 0, buf);
        norm_row(btcpu_read(x, r, 0, cols, buf), gamma, beta, to, ps + r * stats->ld, cols,
                 call->p.norm.eps);
        btcpu_write(y, r, 0, cols, to);
    }
}

bt_status BTCPU_FN(norm_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_NORM_FWD_X];
    btcpu_run_parts(dev, btcpu_parts(dev, x->rows * x->cols), x->rows, norm_rows, call);
    return BT_OK;
}

static void add_norm_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *t = call->t, *x = &t[BT_ADD_NORM_FWD_X], *res = &t[BT_ADD_NORM_FWD_RES];
    const bt_view *r = &t[BT_ADD_NORM_FWD_R], *y = &t[BT_ADD_NORM_FWD_Y];
    const bt_view *stats = &t[BT_ADD_NORM_FWD_STATS];
    const float *bias = btcpu_f32(&t[BT_ADD_NORM_FWD_BIAS]);
    const float *gamma = btcpu_f32(&t[BT_ADD_NORM_FWD_GAMMA]);
    const float *beta = btcpu_f32(&t[BT_ADD_NORM_FWD_BETA]);
    float *ps = btcpu_f32(stats);
    const bt_add_norm_params *p = &call->p.add_norm;
    const btcpu_drop drop = btcpu_drop_of(&p->drop, &t[BT_ADD_NORM_FWD_ROWPOS]);
    const int64_t cols = x->cols;
    static const float zeros[BTCPU_WORDS];
    float add[BTCPU_WORDS], buf[BTCPU_WORDS];
    float *row = btcpu_row_at(btcpu_ws(call), cols, BTCPU_NORM_FWD_ROWS, part->slot, 0);
    for (int64_t i = part->first; i < part->end; i++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            const int64_t n = btcpu_chunk(c, cols);
            const float *b = bias ? bias + c : zeros, *from = btcpu_read(x, i, c, n, buf);
#pragma omp simd
            for (int64_t j = 0; j < n; j++) add[j] = from[j] + b[j];
            if (drop.drop) btcpu_drop_chunk(&drop, i, c, n, add, add);
            const float *old = btcpu_read(res, i, c, n, buf);
            float *sum = btcpu_target(r, i, c, buf);
#pragma omp simd
            for (int64_t j = 0; j < n; j++) sum[j] = old[j] + add[j];
            btcpu_write(r, i, c, n, sum);
        }
        if (!gamma) continue;
        float *to = btcpu_target(y, i, 0, row); /* of r as it is stored, as backward sees it */
        norm_row(btcpu_read(r, i, 0, cols, row), gamma, beta, to, ps + i * stats->ld, cols, p->eps);
        btcpu_write(y, i, 0, cols, to);
    }
}

bt_status BTCPU_FN(add_norm_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_ADD_NORM_FWD_X];
    btcpu_run_parts(dev, btcpu_parts(dev, x->rows * x->cols), x->rows, add_norm_rows, call);
    return BT_OK;
}

/* Operands of both backward ops; `dx` and `dbias` are add_norm's. */
typedef struct norm_bwd {
    const bt_view *dy, *x, *stats, *dres, *dr, *dx;
    const float *gamma;
    btcpu_drop drop;
    int sums;    /* dgamma, dbeta and, when wanted, dbias */
    float *ws;   /* column sums, then `rows` */
    float *rows; /* what half data is widened into; NULL: fp32 */
} norm_bwd;

/* One row; gives dr before it was rounded. Two passes: the two means, then everything else. dr may
 * be dy, x or dres. */
static const float *norm_bwd_row(const norm_bwd *a, int64_t r, int64_t cols, btcpu_colsum *sum,
                                 float *const buf[BTCPU_NORM_BWD_ROWS]) {
    const float *dy = btcpu_read(a->dy, r, 0, cols, buf[0]);
    const float *x = btcpu_read(a->x, r, 0, cols, buf[1]);
    const float *stats = btcpu_f32(a->stats) + r * a->stats->ld, *gamma = a->gamma;
    const float *dres = btcpu_has(a->dres) ? btcpu_read(a->dres, r, 0, cols, buf[2]) : NULL;
    float *dr = btcpu_target(a->dr, r, 0, buf[0]);
    const float mean = stats[0], rstd = stats[1];
    float sg = 0.0f, sgh = 0.0f;
#pragma omp simd reduction(+ : sg, sgh)
    for (int64_t i = 0; i < cols; i++) {
        float g = dy[i] * gamma[i];
        sg += g;
        sgh += g * ((x[i] - mean) * rstd);
    }
    sg /= (float)cols;
    sgh /= (float)cols;
    float *dgamma = sum->block, *dbeta = sum->block + sum->width;
    if (dres) {
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = dy[i], h = (x[i] - mean) * rstd;
            dgamma[i] += d * h;
            dbeta[i] += d;
            dr[i] = rstd * (d * gamma[i] - sg - h * sgh) + dres[i];
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            float d = dy[i], h = (x[i] - mean) * rstd;
            dgamma[i] += d * h;
            dbeta[i] += d;
            dr[i] = rstd * (d * gamma[i] - sg - h * sgh);
        }
    }
    btcpu_write(a->dr, r, 0, cols, dr);
    return dr;
}

/* dx = drop(dr) and dbias, from the row of dr just made. */
static void norm_bwd_branch(const norm_bwd *a, int64_t r, int64_t cols, const float *dr,
                            btcpu_colsum *sum) {
    float buf[BTCPU_WORDS];
    for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
        const int64_t n = btcpu_chunk(c, cols);
        const float *from = dr + c;
        if (btcpu_has(a->dx)) {
            float *to = btcpu_target(a->dx, r, c, buf);
            if (a->drop.drop)
                btcpu_drop_chunk(&a->drop, r, c, n, from, to);
            else
                memcpy(to, from, (size_t)n * sizeof(float));
            btcpu_write(a->dx, r, c, n, to);
            from = to;
        }
        if (a->sums < 3) continue;
        float *dbias = sum->block + 2 * sum->width + c;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) dbias[i] += from[i];
    }
}

static void norm_bwd_rows(const btcpu_part *part) {
    const norm_bwd *a = part->ctx;
    const int64_t cols = a->dy->cols;
    const int branch = btcpu_has(a->dx) || a->sums == 3;
    btcpu_colsum sum = btcpu_colsum_at(a->ws, cols, a->sums, part->slot);
    float *buf[BTCPU_NORM_BWD_ROWS];
    for (int i = 0; i < BTCPU_NORM_BWD_ROWS; i++)
        buf[i] = btcpu_row_at(a->rows, cols, BTCPU_NORM_BWD_ROWS, part->slot, i);
    btcpu_colsum_begin(&sum);
    for (int64_t r = part->first; r < part->end; r++) {
        const float *dr = norm_bwd_row(a, r, cols, &sum, buf);
        if (branch) norm_bwd_branch(a, r, cols, dr, &sum);
        btcpu_colsum_row(&sum);
    }
    btcpu_colsum_flush(&sum);
}

/* All rows; the number of parts that the sums lie in. */
static int norm_bwd_run(const bt_dev *dev, norm_bwd *a) {
    const int64_t cols = a->dy->cols;
    const int parts = btcpu_parts(dev, a->dy->rows * cols);
    if (btcpu_is_half(a->dy->dtype))
        a->rows = a->ws + btcpu_row_floats(dev->info.threads, cols, BTCPU_COLSUM_ROWS(a->sums));
    btcpu_run_parts(dev, parts, a->dy->rows, norm_bwd_rows, a);
    return parts;
}

bt_status BTCPU_FN(norm_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    static const bt_view absent;
    const bt_view *t = call->t;
    norm_bwd a = {.dy = &t[BT_NORM_BWD_DY],
                  .x = &t[BT_NORM_BWD_X],
                  .stats = &t[BT_NORM_BWD_STATS],
                  .dres = &t[BT_NORM_BWD_DRES],
                  .dr = &t[BT_NORM_BWD_DX],
                  .dx = &absent,
                  .gamma = btcpu_f32(&t[BT_NORM_BWD_GAMMA]),
                  .ws = btcpu_ws(call),
                  .sums = 2};
    const int64_t cols = a.dy->cols;
    const double beta = call->p.norm.beta;
    const int parts = norm_bwd_run(dev, &a);
    btcpu_colsum_finish(a.ws, cols, 2, parts, 0, beta, btcpu_f32(&t[BT_NORM_BWD_DGAMMA]));
    btcpu_colsum_finish(a.ws, cols, 2, parts, 1, beta, btcpu_f32(&t[BT_NORM_BWD_DBETA]));
    return BT_OK;
}

bt_status BTCPU_FN(add_norm_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t;
    const bt_add_norm_params *p = &call->p.add_norm;
    norm_bwd a = {.dy = &t[BT_ADD_NORM_BWD_DY],
                  .x = &t[BT_ADD_NORM_BWD_R],
                  .stats = &t[BT_ADD_NORM_BWD_STATS],
                  .dres = &t[BT_ADD_NORM_BWD_DRES],
                  .dr = &t[BT_ADD_NORM_BWD_DR],
                  .dx = &t[BT_ADD_NORM_BWD_DX],
                  .gamma = btcpu_f32(&t[BT_ADD_NORM_BWD_GAMMA]),
                  .drop = btcpu_drop_of(&p->drop, &t[BT_ADD_NORM_BWD_ROWPOS]),
                  .ws = btcpu_ws(call),
                  .sums = btcpu_has(&t[BT_ADD_NORM_BWD_DBIAS]) ? 3 : 2};
    const int64_t cols = a.dy->cols;
    const int parts = norm_bwd_run(dev, &a);
    btcpu_colsum_finish(a.ws, cols, a.sums, parts, 0, p->beta,
                        btcpu_f32(&t[BT_ADD_NORM_BWD_DGAMMA]));
    btcpu_colsum_finish(a.ws, cols, a.sums, parts, 1, p->beta,
                        btcpu_f32(&t[BT_ADD_NORM_BWD_DBETA]));
    if (a.sums == 3)
        btcpu_colsum_finish(a.ws, cols, 3, parts, 2, p->beta, btcpu_f32(&t[BT_ADD_NORM_BWD_DBIAS]));
    return BT_OK;
}
