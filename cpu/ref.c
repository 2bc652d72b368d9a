/* Elements, dropout, gemm and the row-wise ops of the oracle; attention is in ref_attention.c,
 * embedding, loss and optimiser in ref_train.c. */
#include "cpu/ref.h"

#include <math.h>
#include <string.h>

/* ---- elements ---------------------------------------------------------------------------------
 */

btref_mat btref_operand(const btref_args *a, int i) {
    const bt_view *v = &a->call->t[i];
    return (btref_mat){a->p[i], v->dtype, v->rows, v->cols, v->ld};
}

void btref_get(double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n) {
    const char *p = m->p + (size_t)(row * m->ld + col) * bti_dtype_size(m->t);
    if (m->t == BT_F32) {
        const float *x = (const float *)(const void *)p;
        for (int64_t i = 0; i < n; i++) d[i] = (double)x[i];
    } else if (m->t == BT_F64) {
        memcpy(d, p, (size_t)n * sizeof *d);
    } else {
        for (int64_t i = 0; i < n; i++) d[i] = bti_load(p, m->t, i);
    }
}

void btref_put(const double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n) {
    char *p = m->p + (size_t)(row * m->ld + col) * bti_dtype_size(m->t);
    if (m->t == BT_F32) {
        float *x = (float *)(void *)p;
        for (int64_t i = 0; i < n; i++) x[i] = (float)d[i];
    } else if (m->t == BT_F64) {
        memcpy(p, d, (size_t)n * sizeof *d);
    } else {
        for (int64_t i = 0; i < n; i++) bti_store(p, m->t, i, d[i]);
    }
}

void btref_get_or_zero(double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n) {
    if (m->p != NULL)
        btref_get(d, m, row, col, n);
    else
        memset(d, 0, (size_t)n * sizeof *d);
}

void btref_put_grad(const double *sum, double beta, const btref_mat *m, int64_t row, int64_t col,
                    int64_t n) {
    double old[BTREF_BLOCK];
    if (beta == 0) {
        btref_put(sum, m, row, col, n);
        return;
    }
    btref_get(old, m, row, col, n);
    for (int64_t i = 0; i < n; i++) old[i] = beta * old[i] + sum[i];
    btref_put(old, m, row, col, n);
}

/* ---- dropout ----------------------------------------------------------------------------------
 */

void btref_drop(double *factor, const bt_drop *drop, uint32_t head, uint32_t place,
                uint32_t position, int64_t col, int64_t n) {
    uint32_t threshold = bti_drop_threshold(drop->p);
    double scale = 1 / (1 - (double)drop->p);
    bt_philox4 word = {{0}};
    for (int64_t i = 0; i < n; i++) {
        uint32_t channel = (uint32_t)(col + i);
        if (i == 0 || (channel & 3) == 0)
            word = bti_philox_quad(drop->seed, drop->update, drop->site, head, place, position,
                                   channel >> 2);
        factor[i] = word.v[channel & 3] >= threshold ? scale : 0;
    }
}

void btref_drop_row(double *factor, const bt_drop *drop, const btref_mat *rowpos, int64_t row,
                    int64_t col, int64_t n) {
    if (drop->p > 0) {
        btref_drop(factor, drop, 0, (uint32_t)btref_int(rowpos, row, 0),
                   (uint32_t)btref_int(rowpos, row, 1), col, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) factor[i] = 1;
}

/* A dropped element is 0 also where it was not finite. */
static double drop_one(double factor, double x) { return factor == 0 ? 0 : factor * x; }

/* Columns [0, cols) in blocks: `at` is the first column of a block, `n` its width. */
#define FOR_BLOCKS(at, n, cols) \
    for (int64_t at = 0, n = btref_min(BTREF_BLOCK, cols); at < (cols); \
         at += BTREF_BLOCK, n = btref_min(BTREF_BLOCK, (cols)-at))

/* ---- gemm -------------------------------------------------------------------------------------
 */

enum { MB = 32, NB = 64, KB = 128 }; /* blocks of C and of the sum, on the stack as doubles */

/* A wide operand as the product sees it. */
static void round_line(double *d, bt_dtype from, bt_dtype to, int64_t n) {
    uint16_t cell;
    if (to == BT_F32 || from == to) return;
    for (int64_t i = 0; i < n; i++) {
        bti_store(&cell, to, 0, d[i]);
        d[i] = bti_load(&cell, to, 0);
    }
}

/* Block [r0, r0 + rows) x [c0, c0 + cols) of op(X) into d, `ld` apart, rounded to `round`. */
static void get_block(double *d, int64_t ld, const btref_mat *x, int trans, bt_dtype round,
                      int64_t r0, int64_t c0, int64_t rows, int64_t cols) {
    double line[KB];
    for (int64_t r = 0; r < rows && !trans; r++) {
        btref_get(d + r * ld, x, r0 + r, c0, cols);
        round_line(d + r * ld, x->t, round, cols);
    }
    for (int64_t c = 0; c < cols && trans; c++) {
        btref_get(line, x, c0 + c, r0, rows);
        round_line(line, x->t, round, rows);
        for (int64_t r = 0; r < rows; r++) d[r * ld + c] = line[r];
    }
}

/* sum += A B for blocks of `m` x `k` and `k` x `n`. */
static void multiply(double *restrict sum, const double *restrict a, const double *restrict b,
                     int64_t m, int64_t n, int64_t k) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t l = 0; l < k; l++) {
            double x = a[i * KB + l];
            for (int64_t j = 0; j < n; j++) sum[i * NB + j] += x * b[l * NB + j];
        }
}

static void put_block(const double *sum, const bt_gemm_params *g, const btref_mat *c, int64_t i0,
                      int64_t j0, int64_t m, int64_t n) {
    double old[NB];
    for (int64_t i = 0; i < m; i++) {
        memset(old, 0, sizeof old);
        if (g->beta != 0) btref_get(old, c, i0 + i, j0, n);
        for (int64_t j = 0; j < n; j++)
            old[j] = (g->alpha != 0 ? g->alpha * sum[i * NB + j] : 0) +
                     (g->beta != 0 ? g->beta * old[j] : 0);
        btref_put(old, c, i0 + i, j0, n);
    }
}

static void gemm_one(const bt_gemm_params *g, const btref_mat *a, const btref_mat *b,
                     const btref_mat *c) {
    double sum[MB * NB], ablock[MB * KB], bblock[KB * NB];
    int64_t depth = g->alpha == 0 ? 0 : g->trans_a ? a->rows : a->cols;
    for (int64_t j0 = 0; j0 < c->cols; j0 += NB)
        for (int64_t i0 = 0; i0 < c->rows; i0 += MB) {
            int64_t m = btref_min(MB, c->rows - i0), n = btref_min(NB, c->cols - j0);
            memset(sum, 0, sizeof sum);
            for (int64_t k0 = 0; k0 < depth; k0 += KB) {
                int64_t k = btref_min(KB, depth - k0);
                get_block(ablock, KB, a, g->trans_a, g->round, i0, k0, m, k);
                get_block(bblock, NB, b, g->trans_b, g->round, k0, j0, k, n);
                multiply(sum, ablock, bblock, m, n, k);
            }
            put_block(sum, g, c, i0, j0, m, n);
        }
}

bt_status btref_gemm(const btref_args *args) {
    const bt_gemm_params *g = &args->call->p.gemm;
    btref_mat a = btref_operand(args, BT_GEMM_A), b = btref_operand(args, BT_GEMM_B),
              c = btref_operand(args, BT_GEMM_C);
    for (int64_t i = 0; i < (g->batch0 > 1 ? g->batch0 : 1); i++)
        for (int64_t j = 0; j < (g->batch1 > 1 ? g->batch1 : 1); j++) {
            btref_mat aij = a, bij = b, cij = c;
            aij.p += (size_t)(i * g->a0 + j * g->a1) * bti_dtype_size(a.t);
            bij.p += (size_t)(i * g->b0 + j * g->b1) * bti_dtype_size(b.t);
            cij.p += (size_t)(i * g->c0 + j * g->c1) * bti_dtype_size(c.t);
            gemm_one(g, &aij, &bij, &cij);
        }
    return BT_OK;
}

/* ---- bias and activation ----------------------------------------------------------------------
 */

static double act_value(bt_act act, double u) {
    if (act == BT_ACT_RELU) return u <= 0 ? 0 : u; /* NaN passes */
    if (act == BT_ACT_GELU) return u * 0.5 * erfc(-u * 0.70710678118654752440);
    return u;
}

/* Phi(u) + u phi(u) */
static double gelu_slope(double u) {
    return 0.5 * erfc(-u * 0.70710678118654752440) + u * 0.39894228040143267794 * exp(-0.5 * u * u);
}

bt_status btref_bias_act_fwd(const btref_args *a) {
    const bt_bias_act_params *p = &a->call->p.bias_act;
    btref_mat x = btref_operand(a, BT_BIAS_ACT_FWD_X),
              bias = btref_operand(a, BT_BIAS_ACT_FWD_BIAS),
              rowpos = btref_operand(a, BT_BIAS_ACT_FWD_ROWPOS),
              y = btref_operand(a, BT_BIAS_ACT_FWD_Y);
    double u[BTREF_BLOCK], b[BTREF_BLOCK], f[BTREF_BLOCK];
    for (int64_t r = 0; r < x.rows; r++) FOR_BLOCKS(at, n, x.cols) {
            btref_get(u, &x, r, at, n);
            btref_get_or_zero(b, &bias, 0, at, n);
            btref_drop_row(f, &p->drop, &rowpos, r, at, n);
            for (int64_t i = 0; i < n; i++) u[i] = drop_one(f[i], act_value(p->act, u[i] + b[i]));
            btref_put(u, &y, r, at, n);
        }
    return BT_OK;
}

typedef struct bwd_mats {
    btref_mat dy, x, bias, y, rowpos, dx, dbias;
} bwd_mats;

/* dx of n columns of a row. */
static void bias_act_slope(double *dx, const bt_bias_act_params *p, const bwd_mats *m, int64_t r,
                           int64_t at, int64_t n) {
    double f[BTREF_BLOCK], u[BTREF_BLOCK], b[BTREF_BLOCK];
    btref_get(dx, &m->dy, r, at, n);
    if (p->act == BT_ACT_RELU) {
        btref_get(u, &m->y, r, at, n);
        double scale = 1 / (1 - (double)p->drop.p);
        for (int64_t i = 0; i < n; i++) dx[i] = u[i] > 0 ? dx[i] * scale : 0;
        return;
    }
    btref_drop_row(f, &p->drop, &m->rowpos, r, at, n);
    if (p->act == BT_ACT_NONE) {
        for (int64_t i = 0; i < n; i++) dx[i] = drop_one(f[i], dx[i]);
        return;
    }
    btref_get(u, &m->x, r, at, n);
    btref_get_or_zero(b, &m->bias, 0, at, n);
    for (int64_t i = 0; i < n; i++) dx[i] = drop_one(f[i], dx[i]) * gelu_slope(u[i] + b[i]);
}

bt_status btref_bias_act_bwd(const btref_args *a) {
    const bt_bias_act_params *p = &a->call->p.bias_act;
    bwd_mats m = {btref_operand(a, BT_BIAS_ACT_BWD_DY),     btref_operand(a, BT_BIAS_ACT_BWD_X),
                  btref_operand(a, BT_BIAS_ACT_BWD_BIAS),   btref_operand(a, BT_BIAS_ACT_BWD_Y),
                  btref_operand(a, BT_BIAS_ACT_BWD_ROWPOS), btref_operand(a, BT_BIAS_ACT_BWD_DX),
                  btref_operand(a, BT_BIAS_ACT_BWD_DBIAS)};
    FOR_BLOCKS(at, n, m.dy.cols) { /* a block of columns for all rows: dbias needs no storage */
        double dx[BTREF_BLOCK], sum[BTREF_BLOCK] = {0};
        for (int64_t r = 0; r < m.dy.rows; r++) {
            bias_act_slope(dx, p, &m, r, at, n);
            for (int64_t i = 0; i < n; i++) sum[i] += dx[i];
            if (m.dx.p != NULL) btref_put(dx, &m.dx, r, at, n);
        }
        if (m.dbias.p != NULL) btref_put_grad(sum, p->beta, &m.dbias, 0, at, n);
    }
    return BT_OK;
}

/* ---- norm -------------------------------------------------------------------------------------
 */

static double row_mean(const btref_mat *x, int64_t r) {
    double u[BTREF_BLOCK], sum = 0;
    FOR_BLOCKS(at, n, x->cols) {
        btref_get(u, x, r, at, n);
        for (int64_t i = 0; i < n; i++) sum += u[i];
    }
    return sum / (double)x->cols;
}

static double row_variance(const btref_mat *x, int64_t r, double mean) {
    double u[BTREF_BLOCK], sum = 0;
    FOR_BLOCKS(at, n, x->cols) {
        btref_get(u, x, r, at, n);
        for (int64_t i = 0; i < n; i++) sum += (u[i] - mean) * (u[i] - mean);
    }
    return sum / (double)x->cols;
}

static void norm_rows(const btref_mat *x, const btref_mat *gamma, const btref_mat *beta,
                      const btref_mat *y, const btref_mat *stats, double eps) {
    double u[BTREF_BLOCK], g[BTREF_BLOCK], b[BTREF_BLOCK];
    for (int64_t r = 0; r < x->rows; r++) {
        double mean = row_mean(x, r);
        double rstd = 1 / sqrt(row_variance(x, r, mean) + eps);
        btref_put((const double[]){mean, rstd}, stats, r, 0, 2);
        FOR_BLOCKS(at, n, x->cols) {
            btref_get(u, x, r, at, n);
            btref_get(g, gamma, 0, at, n);
            btref_get(b, beta, 0, at, n);
            for (int64_t i = 0; i < n; i++) u[i] = (u[i] - mean) * rstd * g[i] + b[i];
            btref_put(u, y, r, at, n);
        }
    }
}

bt_status btref_norm_fwd(const btref_args *a) {
    btref_mat x = btref_operand(a, BT_NORM_FWD_X), gamma = btref_operand(a, BT_NORM_FWD_GAMMA),
              beta = btref_operand(a, BT_NORM_FWD_BETA), y = btref_operand(a, BT_NORM_FWD_Y),
              stats = btref_operand(a, BT_NORM_FWD_STATS);
    norm_rows(&x, &gamma, &beta, &y, &stats, a->call->p.norm.eps);
    return BT_OK;
}

typedef struct norm_mats {
    btref_mat dy, x, stats, gamma, dres, dx, dgamma, dbeta;
} norm_mats;

/* dgamma and dbeta: sums over rows, a block of columns at a time. */
static void norm_param_grads(const norm_mats *m, double grad_beta) {
    FOR_BLOCKS(at, n, m->x.cols) {
        double dy[BTREF_BLOCK], x[BTREF_BLOCK], dg[BTREF_BLOCK] = {0}, db[BTREF_BLOCK] = {0};
        for (int64_t r = 0; r < m->x.rows; r++) {
            double st[2];
            btref_get(st, &m->stats, r, 0, 2);
            btref_get(dy, &m->dy, r, at, n);
            btref_get(x, &m->x, r, at, n);
            for (int64_t i = 0; i < n; i++) {
                dg[i] += dy[i] * (x[i] - st[0]) * st[1];
                db[i] += dy[i];
            }
        }
        if (m->dgamma.p != NULL) btref_put_grad(dg, grad_beta, &m->dgamma, 0, at, n);
        if (m->dbeta.p != NULL) btref_put_grad(db, grad_beta, &m->dbeta, 0, at, n);
    }
}

/* dx = rstd (g - mean(g) - h mean(g h)) + dres of one row. */
static void norm_dx_row(const norm_mats *m, int64_t r) {
    double st[2], dy[BTREF_BLOCK], x[BTREF_BLOCK], gamma[BTREF_BLOCK], dres[BTREF_BLOCK];
    double sum_g = 0, sum_gh = 0, cols = (double)m->x.cols;
    btref_get(st, &m->stats, r, 0, 2);
    for (int pass = 0; pass < 2; pass++) FOR_BLOCKS(at, n, m->x.cols) {
            btref_get(dy, &m->dy, r, at, n);
            btref_get(x, &m->x, r, at, n);
            btref_get(gamma, &m->gamma, 0, at, n);
            btref_get_or_zero(dres, &m->dres, r, at, n);
            for (int64_t i = 0; i < n; i++) {
                double g = dy[i] * gamma[i], h = (x[i] - st[0]) * st[1];
                if (pass == 0) {
                    sum_g += g;
                    sum_gh += g * h;
                } else {
                    dy[i] = st[1] * (g - sum_g / cols - h * (sum_gh / cols)) + dres[i];
                }
            }
            if (pass == 1) btref_put(dy, &m->dx, r, at, n);
        }
}

static void norm_grads(const norm_mats *m, double grad_beta) {
    norm_param_grads(m, grad_beta); /* first: dx may take over the storage of dy or x */
    for (int64_t r = 0; r < m->x.rows; r++) norm_dx_row(m, r);
}

bt_status btref_norm_bwd(const btref_args *a) {
    norm_mats m = {btref_operand(a, BT_NORM_BWD_DY),     btref_operand(a, BT_NORM_BWD_X),
                   btref_operand(a, BT_NORM_BWD_STATS),  btref_operand(a, BT_NORM_BWD_GAMMA),
                   btref_operand(a, BT_NORM_BWD_DRES),   btref_operand(a, BT_NORM_BWD_DX),
                   btref_operand(a, BT_NORM_BWD_DGAMMA), btref_operand(a, BT_NORM_BWD_DBETA)};
    norm_grads(&m, a->call->p.norm.beta);
    return BT_OK;
}

/* ---- residual, dropout and norm ---------------------------------------------------------------
 */

bt_status btref_add_norm_fwd(const btref_args *a) {
    const bt_add_norm_params *p = &a->call->p.add_norm;
    btref_mat x = btref_operand(a, BT_ADD_NORM_FWD_X),
              bias = btref_operand(a, BT_ADD_NORM_FWD_BIAS),
              res = btref_operand(a, BT_ADD_NORM_FWD_RES),
              rowpos = btref_operand(a, BT_ADD_NORM_FWD_ROWPOS),
              r = btref_operand(a, BT_ADD_NORM_FWD_R);
    double u[BTREF_BLOCK], b[BTREF_BLOCK], f[BTREF_BLOCK], s[BTREF_BLOCK];
    for (int64_t row = 0; row < x.rows; row++) FOR_BLOCKS(at, n, x.cols) {
            btref_get(u, &x, row, at, n);
            btref_get(s, &res, row, at, n);
            btref_get_or_zero(b, &bias, 0, at, n);
            btref_drop_row(f, &p->drop, &rowpos, row, at, n);
            for (int64_t i = 0; i < n; i++) u[i] = s[i] + drop_one(f[i], u[i] + b[i]);
            btref_put(u, &r, row, at, n);
        }
    btref_mat gamma = btref_operand(a, BT_ADD_NORM_FWD_GAMMA);
    if (gamma.p == NULL) return BT_OK;
    btref_mat beta = btref_operand(a, BT_ADD_NORM_FWD_BETA),
              y = btref_operand(a, BT_ADD_NORM_FWD_Y),
              stats = btref_operand(a, BT_ADD_NORM_FWD_STATS);
    norm_rows(&r, &gamma, &beta, &y, &stats, p->eps);
    return BT_OK;
}

bt_status btref_add_norm_bwd(const btref_args *a) {
    const bt_add_norm_params *p = &a->call->p.add_norm;
    norm_mats m = {
        btref_operand(a, BT_ADD_NORM_BWD_DY),     btref_operand(a, BT_ADD_NORM_BWD_R),
        btref_operand(a, BT_ADD_NORM_BWD_STATS),  btref_operand(a, BT_ADD_NORM_BWD_GAMMA),
        btref_operand(a, BT_ADD_NORM_BWD_DRES),   btref_operand(a, BT_ADD_NORM_BWD_DR),
        btref_operand(a, BT_ADD_NORM_BWD_DGAMMA), btref_operand(a, BT_ADD_NORM_BWD_DBETA)};
    norm_grads(&m, p->beta);
    btref_mat rowpos = btref_operand(a, BT_ADD_NORM_BWD_ROWPOS),
              dx = btref_operand(a, BT_ADD_NORM_BWD_DX),
              dbias = btref_operand(a, BT_ADD_NORM_BWD_DBIAS);
    FOR_BLOCKS(at, n, m.x.cols) {
        double u[BTREF_BLOCK], f[BTREF_BLOCK], sum[BTREF_BLOCK] = {0};
        if (dx.p == NULL && dbias.p == NULL) break;
        for (int64_t row = 0; row < m.dx.rows; row++) {
            btref_get(u, &m.dx, row, at, n);
            btref_drop_row(f, &p->drop, &rowpos, row, at, n);
            for (int64_t i = 0; i < n; i++) sum[i] += u[i] = drop_one(f[i], u[i]);
            if (dx.p != NULL) btref_put(u, &dx, row, at, n);
        }
        if (dbias.p != NULL) btref_put_grad(sum, p->beta, &dbias, 0, at, n);
    }
    return BT_OK;
}

/* ---- sums and rows ----------------------------------------------------------------------------
 */

bt_status btref_axpby(const btref_args *a) {
    const bt_axpby_params *p = &a->call->p.axpby;
    btref_mat x = btref_operand(a, BT_AXPBY_X), y = btref_operand(a, BT_AXPBY_Y);
    double u[BTREF_BLOCK], v[BTREF_BLOCK] = {0};
    for (int64_t r = 0; r < x.rows; r++) FOR_BLOCKS(at, n, x.cols) {
            btref_get(u, &x, r, at, n);
            if (p->b != 0) btref_get(v, &y, r, at, n);
            for (int64_t i = 0; i < n; i++) u[i] = p->a * u[i] + (p->b != 0 ? p->b * v[i] : 0);
            btref_put(u, &y, r, at, n);
        }
    return BT_OK;
}

bt_status btref_gather(const btref_args *a) {
    btref_mat x = btref_operand(a, BT_GATHER_X), index = btref_operand(a, BT_GATHER_INDEX),
              y = btref_operand(a, BT_GATHER_Y);
    double u[BTREF_BLOCK];
    for (int64_t r = 0; r < y.rows; r++) {
        int32_t from = btref_int(&index, r, 0);
        if (from >= x.rows)
            return bti_fail(BT_EINTERNAL, "gather: row %lld asks for row %d of %lld", (long long)r,
                            from, (long long)x.rows);
        FOR_BLOCKS(at, n, y.cols) {
            memset(u, 0, sizeof u);
            if (from >= 0) btref_get(u, &x, from, at, n);
            btref_put(u, &y, r, at, n);
        }
    }
    return BT_OK;
}

/* ---- gate -------------------------------------------------------------------------------------
 */

/* s of columns at .. at+n-1 of a row. */
static void gate_at(double *s, const btref_mat *z, const btref_mat *bias, int64_t r, int64_t at,
                    int64_t n) {
    double b[BTREF_BLOCK];
    btref_get(s, z, r, at, n);
    btref_get_or_zero(b, bias, 0, at, n);
    for (int64_t i = 0; i < n; i++) s[i] = 1 / (1 + exp(-(s[i] + b[i])));
}

bt_status btref_gate_fwd(const btref_args *args) {
    btref_mat a = btref_operand(args, BT_GATE_FWD_A), b = btref_operand(args, BT_GATE_FWD_B),
              z = btref_operand(args, BT_GATE_FWD_Z), y = btref_operand(args, BT_GATE_FWD_Y),
              bias = btref_operand(args, BT_GATE_FWD_BIAS);
    double s[BTREF_BLOCK], u[BTREF_BLOCK], v[BTREF_BLOCK];
    for (int64_t r = 0; r < a.rows; r++) FOR_BLOCKS(at, n, a.cols) {
            gate_at(s, &z, &bias, r, at, n);
            btref_get(u, &a, r, at, n);
            btref_get(v, &b, r, at, n);
            for (int64_t i = 0; i < n; i++) u[i] = s[i] * u[i] + (1 - s[i]) * v[i];
            btref_put(u, &y, r, at, n);
        }
    return BT_OK;
}

bt_status btref_gate_bwd(const btref_args *args) {
    btref_mat dy = btref_operand(args, BT_GATE_BWD_DY), a = btref_operand(args, BT_GATE_BWD_A),
              b = btref_operand(args, BT_GATE_BWD_B), z = btref_operand(args, BT_GATE_BWD_Z),
              bias = btref_operand(args, BT_GATE_BWD_BIAS),
              da = btref_operand(args, BT_GATE_BWD_DA), db = btref_operand(args, BT_GATE_BWD_DB),
              dz = btref_operand(args, BT_GATE_BWD_DZ);
    double s[BTREF_BLOCK], g[BTREF_BLOCK], u[BTREF_BLOCK], v[BTREF_BLOCK];
    for (int64_t r = 0; r < dy.rows; r++) FOR_BLOCKS(at, n, dy.cols) {
            gate_at(s, &z, &bias, r, at, n);
            btref_get(g, &dy, r, at, n);
            btref_get(u, &a, r, at, n);
            btref_get(v, &b, r, at, n);
            for (int64_t i = 0; i < n; i++) {
                double slope = s[i] * (1 - s[i]) * (u[i] - v[i]) * g[i];
                u[i] = s[i] * g[i];
                v[i] = (1 - s[i]) * g[i];
                s[i] = slope;
            }
            btref_put(u, &da, r, at, n);
            btref_put(v, &db, r, at, n);
            btref_put(s, &dz, r, at, n);
        }
    return BT_OK;
}
