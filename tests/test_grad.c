/* Central differences in double on the oracle for every op that has a backward pass: with the loss
 * L = sum of weight * output, the gradient that the backward op gives for dy = weight must be
 * (L(x + h) - L(x - h)) / 2h for every element of every input. */
#include "tests/conform.h"

#define H 1e-5
#define TOL 2e-8 /* rounding 1e-16 / H, and H^2 of the third derivative */

/* Weighted sum of an output of the forward call. */
static double loss_of(const cf_call *f, int out, const double *weight) {
    cf_result r = cf_oracle(f);
    const cf_operand *t = &f->t[out];
    double sum = 0;
    for (int64_t k = 0; k < t->srows * t->scols; k++)
        if (t->written[k]) sum += weight[k] * r.y[out][k];
    return sum;
}

/* Compares `grad`, the gradient of the loss by forward input `in`, with differences. Outputs of the
 * loss: `out` with `weight`, and `out2` with `weight2` unless that is NULL. */
static void differences(cf_call *f, int in, int out, const double *weight, int out2,
                        const double *weight2, const double *grad) {
    cf_operand *t = &f->t[in];
    const char *op = bti_op_info(f->op)->name, *name = bti_op_info(f->op)->operand[in].name;
    double largest = 0;
    for (int64_t k = 0; k < t->rows * t->cols; k++) {
        double x = t->x[k], side[2];
        for (int s = 0; s < 2; s++) {
            t->x[k] = s ? x + H : x - H;
            side[s] = loss_of(f, out, weight);
            if (weight2 != NULL) side[s] += loss_of(f, out2, weight2);
        }
        t->x[k] = x;
        double slope = (side[1] - side[0]) / (2 * H), tol = TOL * (1 + fabs(slope));
        if (!(fabs(slope - grad[k]) <= tol))
            ck_abort_msg("%s (%s): by %s[%lld]: %.12g, differences give %.12g", op, f->what, name,
                         (long long)k, grad[k], slope);
        if (fabs(slope) > largest) largest = fabs(slope);
    }
    ck_assert_msg(largest > 1e-3, "%s (%s): no slope by %s: nothing was tested", op, f->what, name);
}

/* Gives a backward operand the content of a forward one. */
static void carry(cf_call *b, int i, const cf_call *f, int j, const double *x) {
    const cf_operand *t = &f->t[j];
    if (!t->present) return;
    memcpy(cf_add(b, i, t->rows, t->cols), x, (size_t)(t->rows * t->cols) * sizeof *x);
}

static void carry_input(cf_call *b, int i, const cf_call *f, int j) {
    carry(b, i, f, j, f->t[j].x);
}

static bt_drop drop(int on) {
    return (bt_drop){.seed = 5, .update = 1, .site = 2, .p = on ? 0.3f : 0};
}

/* ---- ops ---------------------------------------------------------------------------------------
 */

START_TEST(bias_act) {
    cf_call f, b;
    int act = _i % 3, dropped = _i / 3;
    cf_begin(&f, BT_OP_BIAS_ACT_FWD, "act %d, dropout %d", act, dropped);
    f.p.bias_act = (bt_bias_act_params){.act = (bt_act)act, .drop = drop(dropped)};
    cf_add(&f, BT_BIAS_ACT_FWD_X, 5, 7);
    cf_add(&f, BT_BIAS_ACT_FWD_BIAS, 1, 7);
    cf_rowpos(&f, BT_BIAS_ACT_FWD_ROWPOS, 5);
    cf_add(&f, BT_BIAS_ACT_FWD_Y, 5, 7);
    cf_result y = cf_oracle(&f);
    cf_begin(&b, BT_OP_BIAS_ACT_BWD, "act %d", act);
    b.p.bias_act = f.p.bias_act;
    double *dy = cf_add(&b, BT_BIAS_ACT_BWD_DY, 5, 7);
    carry_input(&b, BT_BIAS_ACT_BWD_X, &f, BT_BIAS_ACT_FWD_X);
    carry_input(&b, BT_BIAS_ACT_BWD_BIAS, &f, BT_BIAS_ACT_FWD_BIAS);
    carry(&b, BT_BIAS_ACT_BWD_Y, &f, BT_BIAS_ACT_FWD_Y, y.y[BT_BIAS_ACT_FWD_Y]);
    carry_input(&b, BT_BIAS_ACT_BWD_ROWPOS, &f, BT_BIAS_ACT_FWD_ROWPOS);
    cf_add(&b, BT_BIAS_ACT_BWD_DX, 5, 7);
    cf_add(&b, BT_BIAS_ACT_BWD_DBIAS, 1, 7);
    cf_result g = cf_oracle(&b);
    differences(&f, BT_BIAS_ACT_FWD_X, BT_BIAS_ACT_FWD_Y, dy, 0, NULL, g.y[BT_BIAS_ACT_BWD_DX]);
    differences(&f, BT_BIAS_ACT_FWD_BIAS, BT_BIAS_ACT_FWD_Y, dy, 0, NULL,
                g.y[BT_BIAS_ACT_BWD_DBIAS]);
    cf_reset();
}
END_TEST

START_TEST(norm) {
    cf_call f, b;
    cf_begin(&f, BT_OP_NORM_FWD, "4 x 6");
    f.p.norm.eps = 1e-5;
    cf_add(&f, BT_NORM_FWD_X, 4, 6);
    cf_add(&f, BT_NORM_FWD_GAMMA, 1, 6);
    cf_add(&f, BT_NORM_FWD_BETA, 1, 6);
    cf_add(&f, BT_NORM_FWD_Y, 4, 6);
    cf_add(&f, BT_NORM_FWD_STATS, 4, 2);
    cf_result y = cf_oracle(&f);
    cf_begin(&b, BT_OP_NORM_BWD, "4 x 6");
    b.p.norm = f.p.norm;
    double *dy = cf_add(&b, BT_NORM_BWD_DY, 4, 6);
    carry_input(&b, BT_NORM_BWD_X, &f, BT_NORM_FWD_X);
    carry(&b, BT_NORM_BWD_STATS, &f, BT_NORM_FWD_STATS, y.y[BT_NORM_FWD_STATS]);
    carry_input(&b, BT_NORM_BWD_GAMMA, &f, BT_NORM_FWD_GAMMA);
    cf_add(&b, BT_NORM_BWD_DX, 4, 6);
    cf_add(&b, BT_NORM_BWD_DGAMMA, 1, 6);
    cf_add(&b, BT_NORM_BWD_DBETA, 1, 6);
    cf_result g = cf_oracle(&b);
    differences(&f, BT_NORM_FWD_X, BT_NORM_FWD_Y, dy, 0, NULL, g.y[BT_NORM_BWD_DX]);
    differences(&f, BT_NORM_FWD_GAMMA, BT_NORM_FWD_Y, dy, 0, NULL, g.y[BT_NORM_BWD_DGAMMA]);
    differences(&f, BT_NORM_FWD_BETA, BT_NORM_FWD_Y, dy, 0, NULL, g.y[BT_NORM_BWD_DBETA]);
    cf_reset();
}
END_TEST

/* Loss over both outputs: y with dy, and r, the residual stream, with dres. */
START_TEST(add_norm) {
    cf_call f, b;
    cf_begin(&f, BT_OP_ADD_NORM_FWD, "dropout %d", _i);
    f.p.add_norm = (bt_add_norm_params){.eps = 1e-5, .drop = drop(_i)};
    cf_add(&f, BT_ADD_NORM_FWD_X, 4, 6);
    cf_add(&f, BT_ADD_NORM_FWD_BIAS, 1, 6);
    cf_add(&f, BT_ADD_NORM_FWD_RES, 4, 6);
    cf_rowpos(&f, BT_ADD_NORM_FWD_ROWPOS, 4);
    cf_add(&f, BT_ADD_NORM_FWD_GAMMA, 1, 6);
    cf_add(&f, BT_ADD_NORM_FWD_BETA, 1, 6);
    cf_add(&f, BT_ADD_NORM_FWD_R, 4, 6);
    cf_add(&f, BT_ADD_NORM_FWD_Y, 4, 6);
    cf_add(&f, BT_ADD_NORM_FWD_STATS, 4, 2);
    cf_result y = cf_oracle(&f);
    cf_begin(&b, BT_OP_ADD_NORM_BWD, "dropout %d", _i);
    b.p.add_norm = f.p.add_norm;
    double *dy = cf_add(&b, BT_ADD_NORM_BWD_DY, 4, 6);
    double *dres = cf_add(&b, BT_ADD_NORM_BWD_DRES, 4, 6);
    carry(&b, BT_ADD_NORM_BWD_R, &f, BT_ADD_NORM_FWD_R, y.y[BT_ADD_NORM_FWD_R]);
    carry(&b, BT_ADD_NORM_BWD_STATS, &f, BT_ADD_NORM_FWD_STATS, y.y[BT_ADD_NORM_FWD_STATS]);
    carry_input(&b, BT_ADD_NORM_BWD_GAMMA, &f, BT_ADD_NORM_FWD_GAMMA);
    carry_input(&b, BT_ADD_NORM_BWD_ROWPOS, &f, BT_ADD_NORM_FWD_ROWPOS);
    cf_add(&b, BT_ADD_NORM_BWD_DR, 4, 6);
    cf_add(&b, BT_ADD_NORM_BWD_DX, 4, 6);
    cf_add(&b, BT_ADD_NORM_BWD_DGAMMA, 1, 6);
    cf_add(&b, BT_ADD_NORM_BWD_DBETA, 1, 6);
    cf_add(&b, BT_ADD_NORM_BWD_DBIAS, 1, 6);
    cf_result g = cf_oracle(&b);
    static const int pair[][2] = {{BT_ADD_NORM_FWD_RES, BT_ADD_NORM_BWD_DR},
                                  {BT_ADD_NORM_FWD_X, BT_ADD_NORM_BWD_DX},
                                  {BT_ADD_NORM_FWD_BIAS, BT_ADD_NORM_BWD_DBIAS},
                                  {BT_ADD_NORM_FWD_GAMMA, BT_ADD_NORM_BWD_DGAMMA},
                                  {BT_ADD_NORM_FWD_BETA, BT_ADD_NORM_BWD_DBETA}};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++)
        differences(&f, pair[i][0], BT_ADD_NORM_FWD_Y, dy, BT_ADD_NORM_FWD_R, dres,
                    g.y[pair[i][1]]);
    cf_reset();
}
END_TEST

/* Two sequences of different lengths, more keys than queries in one, two heads of 3. */
START_TEST(attention) {
    static const double seq[2][BT_SEQ_COLS] = {{0, 4, 0, 5, 0, 1}, {4, 3, 5, 3, 1, 0}};
    cf_call f, b;
    cf_begin(&f, BT_OP_ATTN_FWD, "causal %d, dropout %d", _i & 1, _i >> 1);
    f.p.attn = (bt_attn_params){2, (uint8_t)(_i & 1), 0.6, drop(_i >> 1)};
    cf_add(&f, BT_ATTN_FWD_Q, 7, 6);
    cf_add(&f, BT_ATTN_FWD_K, 8, 6);
    cf_add(&f, BT_ATTN_FWD_V, 8, 6);
    memcpy(cf_add(&f, BT_ATTN_FWD_SEQ, 2, BT_SEQ_COLS), seq, sizeof seq);
    cf_add(&f, BT_ATTN_FWD_O, 7, 6);
    cf_add(&f, BT_ATTN_FWD_LSE, 7, 2);
    cf_result y = cf_oracle(&f);
    cf_begin(&b, BT_OP_ATTN_BWD, "causal %d, dropout %d", _i & 1, _i >> 1);
    b.p.attn = f.p.attn;
    carry_input(&b, BT_ATTN_BWD_Q, &f, BT_ATTN_FWD_Q);
    carry_input(&b, BT_ATTN_BWD_K, &f, BT_ATTN_FWD_K);
    carry_input(&b, BT_ATTN_BWD_V, &f, BT_ATTN_FWD_V);
    carry_input(&b, BT_ATTN_BWD_SEQ, &f, BT_ATTN_FWD_SEQ);
    carry(&b, BT_ATTN_BWD_O, &f, BT_ATTN_FWD_O, y.y[BT_ATTN_FWD_O]);
    carry(&b, BT_ATTN_BWD_LSE, &f, BT_ATTN_FWD_LSE, y.y[BT_ATTN_FWD_LSE]);
    double *d_o = cf_add(&b, BT_ATTN_BWD_DO, 7, 6);
    cf_add(&b, BT_ATTN_BWD_DQ, 7, 6);
    cf_add(&b, BT_ATTN_BWD_DK, 8, 6);
    cf_add(&b, BT_ATTN_BWD_DV, 8, 6);
    cf_result g = cf_oracle(&b);
    differences(&f, BT_ATTN_FWD_Q, BT_ATTN_FWD_O, d_o, 0, NULL, g.y[BT_ATTN_BWD_DQ]);
    differences(&f, BT_ATTN_FWD_K, BT_ATTN_FWD_O, d_o, 0, NULL, g.y[BT_ATTN_BWD_DK]);
    differences(&f, BT_ATTN_FWD_V, BT_ATTN_FWD_O, d_o, 0, NULL, g.y[BT_ATTN_BWD_DV]);
    cf_reset();
}
END_TEST

/* order and segs of rows by their position, the second column of rowpos. */
static void plan_by_position(cf_call *b, const double *rowpos, int rows) {
    double order[16], segs[17][2];
    int n = 0, used = 0;
    for (int p = 0; p < 9; p++) {
        int first = n;
        for (int r = 0; r < rows; r++)
            if (rowpos[2 * r + 1] == p) order[n++] = r;
        if (n == first) continue;
        segs[used][0] = p;
        segs[used++][1] = first;
    }
    segs[used][0] = -1;
    segs[used++][1] = n;
    memcpy(cf_add(b, BT_EMBED_BWD_ORDER, rows, 1), order, (size_t)rows * sizeof *order);
    memcpy(cf_add(b, BT_EMBED_BWD_SEGS, used, 2), segs, (size_t)used * sizeof *segs);
}

START_TEST(embed) {
    static const double ids[6] = {2, 0, 2, 3, 2, 0}, order[6] = {1, 5, 0, 2, 4, 3},
                        segs[4][2] = {{0, 0}, {2, 2}, {3, 5}, {-1, 6}};
    cf_call f, b;
    cf_begin(&f, BT_OP_EMBED_FWD, "dropout %d", _i);
    f.p.embed = (bt_embed_params){.scale = 2.5, .drop = drop(_i)};
    cf_add(&f, BT_EMBED_FWD_TABLE, 5, 3);
    memcpy(cf_add(&f, BT_EMBED_FWD_IDS, 6, 1), ids, sizeof ids);
    cf_rowpos(&f, BT_EMBED_FWD_ROWPOS, 6);
    cf_add(&f, BT_EMBED_FWD_POSTAB, 9, 3);
    cf_add(&f, BT_EMBED_FWD_Y, 6, 3);
    cf_begin(&b, BT_OP_EMBED_BWD, "dropout %d", _i);
    b.p.embed = f.p.embed;
    double *dy = cf_add(&b, BT_EMBED_BWD_DY, 6, 3);
    carry_input(&b, BT_EMBED_BWD_ROWPOS, &f, BT_EMBED_FWD_ROWPOS);
    memcpy(cf_add(&b, BT_EMBED_BWD_ORDER, 6, 1), order, sizeof order);
    memcpy(cf_add(&b, BT_EMBED_BWD_SEGS, 4, 2), segs, sizeof segs);
    cf_add(&b, BT_EMBED_BWD_DTABLE, 5, 3);
    cf_result g = cf_oracle(&b);
    differences(&f, BT_EMBED_FWD_TABLE, BT_EMBED_FWD_Y, dy, 0, NULL, g.y[BT_EMBED_BWD_DTABLE]);
    /* By the table of positions: the same op with rows by position and a scale of 1. */
    plan_by_position(&b, f.t[BT_EMBED_FWD_ROWPOS].x, 6);
    b.p.embed.scale = 1;
    cf_add(&b, BT_EMBED_BWD_DTABLE, 9, 3);
    g = cf_oracle(&b);
    differences(&f, BT_EMBED_FWD_POSTAB, BT_EMBED_FWD_Y, dy, 0, NULL, g.y[BT_EMBED_BWD_DTABLE]);
    cf_reset();
}
END_TEST

/* The gradient of grad_scale * sum of loss[r][0]; a row with label -1 takes no part. */
START_TEST(cross_entropy) {
    static const double labels[4] = {3, -1, 0, 6};
    cf_call f;
    double weight[8];
    cf_begin(&f, BT_OP_CROSS_ENTROPY, "smoothing and bias %d", _i);
    f.p.cross_entropy = (bt_cross_entropy_params){_i ? 0.1 : 0, 0.25, 1};
    cf_add(&f, BT_CROSS_ENTROPY_LOGITS, 4, 7);
    if (_i) cf_add(&f, BT_CROSS_ENTROPY_BIAS, 1, 7);
    memcpy(cf_add(&f, BT_CROSS_ENTROPY_LABELS, 4, 1), labels, sizeof labels);
    cf_add(&f, BT_CROSS_ENTROPY_LOSS, 4, 2);
    for (int k = 0; k < 8; k++) weight[k] = k % 2 ? 0 : 0.25;
    double *grad = cf_oracle(&f).y[BT_CROSS_ENTROPY_LOGITS], dbias[7] = {0};
    differences(&f, BT_CROSS_ENTROPY_LOGITS, BT_CROSS_ENTROPY_LOSS, weight, 0, NULL, grad);
    for (int k = 0; k < 4 * 7; k++) dbias[k % 7] += grad[k]; /* what the trainer sums up */
    if (_i) differences(&f, BT_CROSS_ENTROPY_BIAS, BT_CROSS_ENTROPY_LOSS, weight, 0, NULL, dbias);
    cf_reset();
}
END_TEST

START_TEST(gate) {
    cf_call f, b;
    cf_begin(&f, BT_OP_GATE_FWD, "4 x 6");
    cf_add(&f, BT_GATE_FWD_A, 4, 6);
    cf_add(&f, BT_GATE_FWD_B, 4, 6);
    cf_add(&f, BT_GATE_FWD_Z, 4, 6);
    cf_add(&f, BT_GATE_FWD_BIAS, 1, 6);
    cf_add(&f, BT_GATE_FWD_Y, 4, 6);
    cf_begin(&b, BT_OP_GATE_BWD, "4 x 6");
    double *dy = cf_add(&b, BT_GATE_BWD_DY, 4, 6), dbias[6] = {0};
    carry_input(&b, BT_GATE_BWD_A, &f, BT_GATE_FWD_A);
    carry_input(&b, BT_GATE_BWD_B, &f, BT_GATE_FWD_B);
    carry_input(&b, BT_GATE_BWD_Z, &f, BT_GATE_FWD_Z);
    carry_input(&b, BT_GATE_BWD_BIAS, &f, BT_GATE_FWD_BIAS);
    for (int i = BT_GATE_BWD_DA; i <= BT_GATE_BWD_DZ; i++) cf_add(&b, i, 4, 6);
    cf_result g = cf_oracle(&b);
    for (int i = 0; i < 3; i++)
        differences(&f, BT_GATE_FWD_A + i, BT_GATE_FWD_Y, dy, 0, NULL, g.y[BT_GATE_BWD_DA + i]);
    for (int k = 0; k < 4 * 6; k++) dbias[k % 6] += g.y[BT_GATE_BWD_DZ][k];
    differences(&f, BT_GATE_FWD_BIAS, BT_GATE_FWD_Y, dy, 0, NULL, dbias);
    cf_reset();
}
END_TEST

START_TEST(value_loss) {
    cf_call f;
    double weight[8];
    cf_begin(&f, BT_OP_VALUE_LOSS, "kind %d", _i);
    f.p.value_loss = (bt_value_loss_params){(bt_values)_i, 0.25, 1};
    cf_add(&f, BT_VALUE_LOSS_Z, 4, 7);
    cf_add(&f, BT_VALUE_LOSS_BIAS, 1, 7);
    cf_add(&f, BT_VALUE_LOSS_TARGET, 4, 7);
    cf_add(&f, BT_VALUE_LOSS_LOSS, 4, 2);
    for (int k = 0; k < 8; k++) weight[k] = k % 2 ? 0 : 0.25;
    double *grad = cf_oracle(&f).y[BT_VALUE_LOSS_Z];
    differences(&f, BT_VALUE_LOSS_Z, BT_VALUE_LOSS_LOSS, weight, 0, NULL, grad);
    cf_reset();
}
END_TEST

/* C = alpha op(A) op(B): dA and dB are gemms with other transpositions. */
START_TEST(gemm) {
    static const int64_t m = 3, n = 4, k = 5;
    int ta = _i & 1, tb = _i >> 1;
    cf_call f, b;
    cf_begin(&f, BT_OP_GEMM, "trans %d %d", ta, tb);
    f.p.gemm = (bt_gemm_params){.trans_a = (uint8_t)ta, .trans_b = (uint8_t)tb, .alpha = 0.7};
    cf_add(&f, BT_GEMM_A, ta ? k : m, ta ? m : k);
    cf_add(&f, BT_GEMM_B, tb ? n : k, tb ? k : n);
    cf_add(&f, BT_GEMM_C, m, n);
    double dc[12];
    for (int i = 0; i < 12; i++) dc[i] = cf_uniform();
    /* dA = alpha dC op(B)', or its transpose; dB likewise. */
    cf_begin(&b, BT_OP_GEMM, "dA of trans %d %d", ta, tb);
    b.p.gemm = (bt_gemm_params){
        .trans_a = (uint8_t)(ta && tb), .trans_b = (uint8_t)(ta || !tb), .alpha = 0.7};
    if (ta) carry_input(&b, BT_GEMM_A, &f, BT_GEMM_B);
    memcpy(cf_add(&b, ta ? BT_GEMM_B : BT_GEMM_A, m, n), dc, sizeof dc);
    if (!ta) carry_input(&b, BT_GEMM_B, &f, BT_GEMM_B);
    cf_add(&b, BT_GEMM_C, f.t[BT_GEMM_A].rows, f.t[BT_GEMM_A].cols);
    differences(&f, BT_GEMM_A, BT_GEMM_C, dc, 0, NULL, cf_oracle(&b).y[BT_GEMM_C]);
    cf_begin(&b, BT_OP_GEMM, "dB of trans %d %d", ta, tb);
    b.p.gemm = (bt_gemm_params){
        .trans_a = (uint8_t)(tb || !ta), .trans_b = (uint8_t)(ta && tb), .alpha = 0.7};
    if (!tb) carry_input(&b, BT_GEMM_A, &f, BT_GEMM_A);
    memcpy(cf_add(&b, tb ? BT_GEMM_A : BT_GEMM_B, m, n), dc, sizeof dc);
    if (tb) carry_input(&b, BT_GEMM_B, &f, BT_GEMM_A);
    cf_add(&b, BT_GEMM_C, f.t[BT_GEMM_B].rows, f.t[BT_GEMM_B].cols);
    differences(&f, BT_GEMM_B, BT_GEMM_C, dc, 0, NULL, cf_oracle(&b).y[BT_GEMM_C]);
    cf_reset();
}
END_TEST

static void add(TCase *tc) {
    cf_type = BT_F64;
    tcase_add_loop_test(tc, gemm, 0, 4);
    tcase_add_loop_test(tc, bias_act, 0, 6);
    tcase_add_test(tc, norm);
    tcase_add_loop_test(tc, add_norm, 0, 2);
    tcase_add_loop_test(tc, attention, 0, 4);
    tcase_add_loop_test(tc, embed, 0, 2);
    tcase_add_loop_test(tc, cross_entropy, 0, 2);
    tcase_add_test(tc, gate);
    tcase_add_loop_test(tc, value_loss, 0, 2);
}

int main(int argc, char **argv) { return kit_main("grad", add, argc, argv); }
