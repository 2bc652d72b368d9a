/* Cases of the row-wise ops: bias and activation, norm, residual with norm, axpby, gather, gates.
 */
#include "tests/conform.h"

static bt_drop drop(float p) {
    return (bt_drop){.seed = 0x123456789ABCDEFu, .update = 7, .site = 3, .p = p};
}

/* Whether option set `option` of `count` is run at a shape: all of them at small shapes, two at
 * large ones, another two at each. */
static int picked(int option, int count, int shape) {
    int64_t cells = cf_shapes[shape].rows * cf_shapes[shape].cols;
    if (cells < 1000) return 1;
    return option == shape % count || option == (5 * shape + 3) % count;
}

/* ---- bias and activation -----------------------------------------------------------------------
 */

static const char *const act_name[] = {"none", "relu", "gelu"};

void case_bias_act_fwd(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 12; option++) {
            int64_t rows = cf_shapes[s].rows, cols = cf_shapes[s].cols;
            int act = option % 3, bias = option / 3 % 2, dropped = option / 6;
            if (!picked(option, 12, s)) continue;
            cf_begin(&c, BT_OP_BIAS_ACT_FWD, "%lld x %lld, %s, bias %d, dropout %d",
                     (long long)rows, (long long)cols, act_name[act], bias, dropped);
            c.p.bias_act =
                (bt_bias_act_params){.act = (bt_act)act, .drop = drop(dropped ? 0.3f : 0)};
            cf_add(&c, BT_BIAS_ACT_FWD_X, rows, cols);
            if (bias) cf_add(&c, BT_BIAS_ACT_FWD_BIAS, 1, cols);
            if (dropped || bias) cf_rowpos(&c, BT_BIAS_ACT_FWD_ROWPOS, rows);
            cf_add(&c, BT_BIAS_ACT_FWD_Y, rows, cols);
            c.t[BT_BIAS_ACT_FWD_Y].exact_zero = 1;
            cf_bound(&c, BT_BIAS_ACT_FWD_Y, 0, 1);
            cf_check(&c);
            cf_reset();
        }
    cf_begin(&c, BT_OP_BIAS_ACT_FWD, "what is dropped was not finite");
    c.p.bias_act = (bt_bias_act_params){.drop = drop(0.3f)};
    double *x = cf_add(&c, BT_BIAS_ACT_FWD_X, 5, 64);
    for (int k = 0; k < 5 * 64; k += 3) x[k] = k % 2 ? NAN : INFINITY;
    cf_rowpos(&c, BT_BIAS_ACT_FWD_ROWPOS, 5);
    cf_add(&c, BT_BIAS_ACT_FWD_Y, 5, 64);
    cf_bound(&c, BT_BIAS_ACT_FWD_Y, 0, 1);
    cf_check(&c);
    cf_reset();
}

static void bias_act_bwd_one(int64_t rows, int64_t cols, int option) {
    cf_call c;
    int act = option % 3, bias = option / 3 % 2, dropped = option / 6 % 2, outputs = option / 12;
    int beta = bias;
    cf_begin(&c, BT_OP_BIAS_ACT_BWD, "%lld x %lld, %s, bias %d, dropout %d, outputs %d",
             (long long)rows, (long long)cols, act_name[act], bias, dropped, outputs);
    c.p.bias_act =
        (bt_bias_act_params){.act = (bt_act)act, .drop = drop(dropped ? 0.3f : 0), .beta = beta};
    cf_add(&c, BT_BIAS_ACT_BWD_DY, rows, cols);
    if (act == BT_ACT_GELU || bias) cf_add(&c, BT_BIAS_ACT_BWD_X, rows, cols);
    if (bias) cf_add(&c, BT_BIAS_ACT_BWD_BIAS, 1, cols);
    if (act == BT_ACT_RELU || bias) {
        double *y = cf_add(&c, BT_BIAS_ACT_BWD_Y, rows, cols);
        for (int64_t k = 0; k < rows * cols; k++) y[k] = y[k] > 0.1 ? y[k] : 0;
    }
    if (dropped && act != BT_ACT_RELU) cf_rowpos(&c, BT_BIAS_ACT_BWD_ROWPOS, rows);
    if (outputs != 1) cf_add(&c, BT_BIAS_ACT_BWD_DX, rows, cols);
    if (outputs != 2) cf_add(&c, BT_BIAS_ACT_BWD_DBIAS, 1, cols);
    if (!beta && outputs != 2) cf_poison(&c, BT_BIAS_ACT_BWD_DBIAS);
    c.t[BT_BIAS_ACT_BWD_DX].exact_zero = act != BT_ACT_GELU;
    cf_bound(&c, BT_BIAS_ACT_BWD_DX, 0, 2);
    cf_bound(&c, BT_BIAS_ACT_BWD_DBIAS, (double)rows, 2);
    cf_check(&c);
    cf_reset();
}

void case_bias_act_bwd(void) {
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 36; option++)
            if (picked(option, 36, s))
                bias_act_bwd_one(cf_shapes[s].rows, cf_shapes[s].cols, option);
}

/* ---- norm --------------------------------------------------------------------------------------
 */

static double largest(const double *x, int64_t n, int64_t first, int64_t step) {
    double most = 0;
    for (int64_t k = first; k < n; k += step) most = fabs(x[k]) > most ? fabs(x[k]) : most;
    return most;
}

/* Values round `mean`: a variance by differences of squares fails there. */
static void shift(cf_call *c, int i, double mean) {
    cf_operand *t = &c->t[i];
    for (int64_t k = 0; k < t->rows * t->cols; k++) t->x[k] = cf_round(c, i, t->x[k] + mean);
}

static void norm_fwd_bounds(cf_call *c, int y, int stats, double mean) {
    cf_result want = cf_oracle(c);
    const cf_operand *t = &c->t[stats];
    double rstd = largest(want.y[stats], 2 * t->rows, 1, 2), cols = (double)c->t[y].cols;
    cf_bound(c, y, cols, 4 + 2 * rstd * (1 + mean));
    cf_bound(c, stats, cols, (1 + mean) * (1 + rstd * rstd));
}

static void norm_fwd_call(cf_call *c, int64_t rows, int64_t cols, double mean) {
    cf_begin(c, BT_OP_NORM_FWD, "%lld x %lld, mean %g", (long long)rows, (long long)cols, mean);
    c->p.norm.eps = 1e-5;
    cf_add(c, BT_NORM_FWD_X, rows, cols);
    shift(c, BT_NORM_FWD_X, mean);
    cf_add(c, BT_NORM_FWD_GAMMA, 1, cols);
    cf_add(c, BT_NORM_FWD_BETA, 1, cols);
    cf_add(c, BT_NORM_FWD_Y, rows, cols);
    cf_add(c, BT_NORM_FWD_STATS, rows, 2);
    norm_fwd_bounds(c, BT_NORM_FWD_Y, BT_NORM_FWD_STATS, mean);
}

void case_norm_fwd(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int m = 0; m < 2; m++) {
            norm_fwd_call(&c, cf_shapes[s].rows, cf_shapes[s].cols, m ? 100 : 0);
            cf_check(&c);
            cf_reset();
        }
}

/* Copies an operand's content into another call, rounded to the type there. */
static void take_over(cf_call *c, int i, int64_t rows, int64_t cols, const double *from) {
    double *x = cf_add(c, i, rows, cols);
    for (int64_t k = 0; k < rows * cols; k++) x[k] = cf_round(c, i, from[k]);
}

void case_norm_bwd(void) {
    cf_call f, c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 16; option++) {
            int64_t rows = cf_shapes[s].rows, cols = cf_shapes[s].cols;
            int beta = option & 1, dres = option >> 1 & 1, without = option >> 3 ? 1 + s % 3 : 0;
            double mean = option >> 2 & 1 ? 100 : 0;
            if (!picked(option, 16, s)) continue;
            norm_fwd_call(&f, rows, cols, mean);
            cf_result forward = cf_oracle(&f);
            const double *stats = forward.y[BT_NORM_FWD_STATS];
            double rstd = largest(stats, 2 * rows, 1, 2);
            cf_begin(&c, BT_OP_NORM_BWD, "%lld x %lld, beta %d, dres %d, mean %g, without %d",
                     (long long)rows, (long long)cols, beta, dres, mean, without);
            c.p.norm = (bt_norm_params){1e-5, beta};
            cf_add(&c, BT_NORM_BWD_DY, rows, cols);
            take_over(&c, BT_NORM_BWD_X, rows, cols, f.t[BT_NORM_FWD_X].x);
            take_over(&c, BT_NORM_BWD_STATS, rows, 2, stats);
            cf_add(&c, BT_NORM_BWD_GAMMA, 1, cols);
            if (dres) cf_add(&c, BT_NORM_BWD_DRES, rows, cols);
            cf_add(&c, BT_NORM_BWD_DX, rows, cols);
            if (!(without & 1)) cf_add(&c, BT_NORM_BWD_DGAMMA, 1, cols);
            if (!(without & 2)) cf_add(&c, BT_NORM_BWD_DBETA, 1, cols);
            if (!beta) cf_poison(&c, BT_NORM_BWD_DGAMMA);
            if (!beta) cf_poison(&c, BT_NORM_BWD_DBETA);
            cf_bound(&c, BT_NORM_BWD_DX, (double)cols, 4 * (1 + rstd) * (1 + mean));
            cf_bound(&c, BT_NORM_BWD_DGAMMA, (double)rows, 4 + 2 * rstd * (1 + mean));
            cf_bound(&c, BT_NORM_BWD_DBETA, (double)rows, 1);
            cf_check(&c);
            cf_reset();
        }
}

/* ---- residual, dropout and norm -----------------------------------------------------------------
 */

static void add_norm_fwd_call(cf_call *c, int64_t rows, int64_t cols, int option) {
    int norm = option & 1, bias = option >> 1 & 1, dropped = option >> 2;
    cf_begin(c, BT_OP_ADD_NORM_FWD, "%lld x %lld, norm %d, bias %d, dropout %d", (long long)rows,
             (long long)cols, norm, bias, dropped);
    c->p.add_norm = (bt_add_norm_params){.eps = 1e-5, .drop = drop(dropped ? 0.3f : 0)};
    cf_add(c, BT_ADD_NORM_FWD_X, rows, cols);
    if (bias) cf_add(c, BT_ADD_NORM_FWD_BIAS, 1, cols);
    cf_add(c, BT_ADD_NORM_FWD_RES, rows, cols);
    if (dropped) cf_rowpos(c, BT_ADD_NORM_FWD_ROWPOS, rows);
    cf_add(c, BT_ADD_NORM_FWD_R, rows, cols);
    cf_bound(c, BT_ADD_NORM_FWD_R, 0, 4);
    c->t[BT_ADD_NORM_FWD_R].mid = 2; /* composed: a branch is rounded before it is added */
    if (!norm) return;
    cf_add(c, BT_ADD_NORM_FWD_GAMMA, 1, cols);
    cf_add(c, BT_ADD_NORM_FWD_BETA, 1, cols);
    cf_add(c, BT_ADD_NORM_FWD_Y, rows, cols);
    cf_add(c, BT_ADD_NORM_FWD_STATS, rows, 2);
    norm_fwd_bounds(c, BT_ADD_NORM_FWD_Y, BT_ADD_NORM_FWD_STATS, 4);
    c->t[BT_ADD_NORM_FWD_Y].mid = c->t[BT_ADD_NORM_FWD_Y].mag; /* r is rounded before the norm */
    c->t[BT_ADD_NORM_FWD_STATS].mid = c->t[BT_ADD_NORM_FWD_STATS].mag;
}

void case_add_norm_fwd(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 8; option++) {
            if (!picked(option, 8, s)) continue;
            add_norm_fwd_call(&c, cf_shapes[s].rows, cf_shapes[s].cols, option);
            cf_check(&c);
            cf_reset();
        }
}

/* without: 1 has no dgamma, 2 no dbeta, 3 neither. */
static void add_norm_bwd_one(int64_t rows, int64_t cols, int option, int without) {
    cf_call f, c;
    int beta = option & 1, dres = option >> 1 & 1, dropped = option >> 2 & 1,
        outputs = option >> 3 & 3;
    add_norm_fwd_call(&f, rows, cols, 1);
    cf_result forward = cf_oracle(&f);
    const double *stats = forward.y[BT_ADD_NORM_FWD_STATS];
    double rstd = largest(stats, 2 * rows, 1, 2), mag = 8 * (1 + rstd);
    cf_begin(&c, BT_OP_ADD_NORM_BWD,
             "%lld x %lld, beta %d, dres %d, dropout %d, outputs %d, without %d", (long long)rows,
             (long long)cols, beta, dres, dropped, outputs, without);
    c.p.add_norm = (bt_add_norm_params){1e-5, beta, drop(dropped ? 0.3f : 0)};
    cf_add(&c, BT_ADD_NORM_BWD_DY, rows, cols);
    take_over(&c, BT_ADD_NORM_BWD_R, rows, cols, forward.y[BT_ADD_NORM_FWD_R]);
    take_over(&c, BT_ADD_NORM_BWD_STATS, rows, 2, stats);
    cf_add(&c, BT_ADD_NORM_BWD_GAMMA, 1, cols);
    if (dres) cf_add(&c, BT_ADD_NORM_BWD_DRES, rows, cols);
    if (dropped) cf_rowpos(&c, BT_ADD_NORM_BWD_ROWPOS, rows);
    cf_add(&c, BT_ADD_NORM_BWD_DR, rows, cols);
    if (!(without & 1)) cf_add(&c, BT_ADD_NORM_BWD_DGAMMA, 1, cols);
    if (!(without & 2)) cf_add(&c, BT_ADD_NORM_BWD_DBETA, 1, cols);
    if (outputs & 1 || dropped) cf_add(&c, BT_ADD_NORM_BWD_DX, rows, cols);
    if (outputs & 2) cf_add(&c, BT_ADD_NORM_BWD_DBIAS, 1, cols);
    if (!beta) cf_poison(&c, BT_ADD_NORM_BWD_DGAMMA);
    if (!beta) cf_poison(&c, BT_ADD_NORM_BWD_DBETA);
    if (!beta && outputs & 2) cf_poison(&c, BT_ADD_NORM_BWD_DBIAS);
    cf_bound(&c, BT_ADD_NORM_BWD_DR, (double)cols, mag);
    cf_bound(&c, BT_ADD_NORM_BWD_DX, (double)cols, 2 * mag);
    cf_bound(&c, BT_ADD_NORM_BWD_DGAMMA, (double)rows, 4 + 4 * rstd);
    cf_bound(&c, BT_ADD_NORM_BWD_DBETA, (double)rows, 1);
    cf_bound(&c, BT_ADD_NORM_BWD_DBIAS, (double)(rows + cols), 2 * mag);
    c.t[BT_ADD_NORM_BWD_DX].mid = mag; /* dr is rounded before dropout and column sums */
    c.t[BT_ADD_NORM_BWD_DBIAS].mid = mag * sqrt((double)rows);
    cf_check(&c);
    cf_reset();
}

void case_add_norm_bwd(void) {
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 64; option++)
            if (picked(option, 64, s))
                add_norm_bwd_one(cf_shapes[s].rows, cf_shapes[s].cols, option,
                                 option >> 5 ? 1 + s % 3 : 0);
}

/* ---- sums and rows ------------------------------------------------------------------------------
 */

void case_axpby(void) {
    static const bt_axpby_params ab[] = {{1, 1}, {1, 0}, {-0.5, 2}, {0.25, 0}};
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int option = 0; option < 4; option++)
            for (int t = 0; t < BT_DTYPE_COUNT; t++) { /* y in every type that the device has */
                if (!bti_dtype_is_float((bt_dtype)t) || !cf_has_type((bt_dtype)t)) continue;
                if ((t == BT_F64) != (cf_type == BT_F64)) continue;
                cf_begin(&c, BT_OP_AXPBY, "%lld x %lld, a %g, b %g, into %s",
                         (long long)cf_shapes[s].rows, (long long)cf_shapes[s].cols, ab[option].a,
                         ab[option].b, bti_dtype_name((bt_dtype)t));
                c.p.axpby = ab[option];
                c.t[BT_AXPBY_Y].own_type = 1;
                c.t[BT_AXPBY_Y].type = (bt_dtype)t;
                cf_add(&c, BT_AXPBY_X, cf_shapes[s].rows, cf_shapes[s].cols);
                cf_add(&c, BT_AXPBY_Y, cf_shapes[s].rows, cf_shapes[s].cols);
                if (ab[option].b == 0) cf_poison(&c, BT_AXPBY_Y);
                cf_bound(&c, BT_AXPBY_Y, 0, 3);
                cf_check(&c);
                cf_reset();
            }
}

void case_gather(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++) {
        int64_t rows = cf_shapes[s].rows, cols = cf_shapes[s].cols, from = 1 + cf_below(40);
        cf_begin(&c, BT_OP_GATHER, "%lld x %lld from %lld rows", (long long)rows, (long long)cols,
                 (long long)from);
        cf_add(&c, BT_GATHER_X, from, cols);
        double *index = cf_add(&c, BT_GATHER_INDEX, rows, 1);
        for (int64_t r = 0; r < rows; r++) index[r] = (double)cf_below(from + 1) - 1;
        cf_add(&c, BT_GATHER_Y, rows, cols);
        c.t[BT_GATHER_Y].exact = 1;
        cf_check(&c);
        cf_reset();
    }
}

/* ---- gates --------------------------------------------------------------------------------------
 */

/* Operand i with values far enough apart that some gates are shut. */
static void add_gate_input(cf_call *c, int i, int64_t rows, int64_t cols) {
    double *z = cf_add(c, i, rows, cols);
    for (int64_t k = 0; k < rows * cols; k++)
        z[k] = cf_round(c, i, k % 7 == 3 ? 200 * z[k] : 4 * z[k]);
}

void case_gate_fwd(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int bias = 0; bias < 2; bias++) {
            int64_t rows = cf_shapes[s].rows, cols = cf_shapes[s].cols;
            cf_begin(&c, BT_OP_GATE_FWD, "%lld x %lld, bias %d", (long long)rows, (long long)cols,
                     bias);
            cf_add(&c, BT_GATE_FWD_A, rows, cols);
            cf_add(&c, BT_GATE_FWD_B, rows, cols);
            add_gate_input(&c, BT_GATE_FWD_Z, rows, cols);
            if (bias) cf_add(&c, BT_GATE_FWD_BIAS, 1, cols);
            cf_add(&c, BT_GATE_FWD_Y, rows, cols);
            cf_bound(&c, BT_GATE_FWD_Y, 0, 3);
            cf_check(&c);
            cf_reset();
        }
}

void case_gate_bwd(void) {
    cf_call c;
    for (int s = 0; s < cf_shape_count; s++)
        for (int bias = 0; bias < 2; bias++) {
            int64_t rows = cf_shapes[s].rows, cols = cf_shapes[s].cols;
            cf_begin(&c, BT_OP_GATE_BWD, "%lld x %lld, bias %d", (long long)rows, (long long)cols,
                     bias);
            cf_add(&c, BT_GATE_BWD_DY, rows, cols);
            cf_add(&c, BT_GATE_BWD_A, rows, cols);
            cf_add(&c, BT_GATE_BWD_B, rows, cols);
            add_gate_input(&c, BT_GATE_BWD_Z, rows, cols);
            if (bias) cf_add(&c, BT_GATE_BWD_BIAS, 1, cols);
            for (int i = BT_GATE_BWD_DA; i <= BT_GATE_BWD_DZ; i++) {
                cf_add(&c, i, rows, cols);
                cf_bound(&c, i, 0, 3);
            }
            cf_check(&c);
            cf_reset();
        }
}
