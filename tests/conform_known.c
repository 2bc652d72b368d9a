/* Answers that are known without the oracle: worked by hand, by a plain loop here, or by counting
 * random numbers. They hold the oracle itself to the contract. */
#include "core/base/philox.h"
#include "tests/conform.h"

static double tolerance(void) {
    return cf_type == BT_F64 ? 1e-12 : cf_type == BT_F32 ? 1e-6 : 1e-2;
}

/* Runs the call on the device under test; what it leaves in operand i. */
static const double *answer(const cf_call *c, int i) {
    return cf_run(cf_device(), c, cf_type, 1, NULL).y[i];
}

static void set(cf_call *c, int i, int64_t rows, int64_t cols, const double *x) {
    memcpy(cf_add(c, i, rows, cols), x, (size_t)(rows * cols) * sizeof *x);
}

static void expect(const char *what, const double *got, const double *want, int n) {
    for (int k = 0; k < n; k++)
        ck_assert_msg(fabs(got[k] - want[k]) <= tolerance() * (1 + fabs(want[k])),
                      "%s [%d]: %.9g, known to be %.9g", what, k, got[k], want[k]);
}

/* ---- products ----------------------------------------------------------------------------------
 */

static void gemm_by_loop(int how) {
    enum { M = 5, N = 6, K = 9 };
    int ta = how & 1, tb = how >> 1 & 1;
    double alpha = how >> 2 & 1 ? 2 : 1, beta = how >> 3 ? 2 : 0, want[M * N];
    cf_call c;
    cf_begin(&c, BT_OP_GEMM, "plain loop");
    c.p.gemm = (bt_gemm_params){.trans_a = (uint8_t)ta,
                                .trans_b = (uint8_t)tb,
                                .round = cf_is_half() ? cf_type : BT_F32,
                                .alpha = alpha,
                                .beta = beta};
    double *a = cf_add(&c, BT_GEMM_A, ta ? K : M, ta ? M : K);
    double *b = cf_add(&c, BT_GEMM_B, tb ? N : K, tb ? K : N);
    double *x = cf_add(&c, BT_GEMM_C, M, N);
    for (int k = 0; k < M * K; k++) a[k] = (double)(cf_below(9) - 4);
    for (int k = 0; k < N * K; k++) b[k] = (double)(cf_below(9) - 4);
    for (int k = 0; k < M * N; k++) x[k] = (double)(cf_below(9) - 4);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += a[ta ? k * M + i : i * K + k] * b[tb ? j * K + k : k * N + j];
            want[i * N + j] = alpha * sum + beta * x[i * N + j];
        }
    const double *y = answer(&c, BT_GEMM_C);
    for (int k = 0; k < M * N; k++) ck_assert_msg(y[k] == cf_round(&c, BT_GEMM_C, want[k]), "gemm");
}

/* ---- row-wise ops ------------------------------------------------------------------------------
 */

static void activations(void) {
    static const double x[4] = {-1, 0, 0.5, 1}, bias[4] = {0, 0, 0.5, -2},
                        want[3][4] = {
                            {-1, 0, 1, -1},
                            {0, 0, 1, 0},
                            {-0.158655253931457, 0, 0.841344746068543, -0.158655253931457}};
    for (int act = 0; act < 3; act++) {
        cf_call c;
        cf_begin(&c, BT_OP_BIAS_ACT_FWD, "known");
        c.p.bias_act.act = (bt_act)act;
        set(&c, BT_BIAS_ACT_FWD_X, 1, 4, x);
        set(&c, BT_BIAS_ACT_FWD_BIAS, 1, 4, bias);
        cf_add(&c, BT_BIAS_ACT_FWD_Y, 1, 4);
        expect("activation", answer(&c, BT_BIAS_ACT_FWD_Y), want[act], 4);
    }
}

/* (1, 2, 3, 4) has mean 2.5 and biased variance 1.25. */
static void norm(void) {
    static const double x[4] = {1, 2, 3, 4}, gamma[4] = {1, 2, 1, 1}, beta[4] = {0, 0, 0, 1},
                        want[4] = {-1.34164078649987, -0.894427190999916, 0.447213595499958,
                                   2.34164078649987},
                        stats[2] = {2.5, 0.894427190999916};
    cf_call c;
    cf_begin(&c, BT_OP_NORM_FWD, "known");
    set(&c, BT_NORM_FWD_X, 1, 4, x);
    set(&c, BT_NORM_FWD_GAMMA, 1, 4, gamma);
    set(&c, BT_NORM_FWD_BETA, 1, 4, beta);
    cf_add(&c, BT_NORM_FWD_Y, 1, 4);
    cf_add(&c, BT_NORM_FWD_STATS, 1, 2);
    expect("norm", answer(&c, BT_NORM_FWD_Y), want, 4);
    expect("norm's mean and 1 / deviation", answer(&c, BT_NORM_FWD_STATS), stats, 2);
    cf_begin(&c, BT_OP_ADD_NORM_FWD, "known"); /* the same row as 1 + (0, 1, 2, 3) */
    static const double branch[4] = {1, 1, 1, 1}, residual[4] = {0, 1, 2, 3};
    set(&c, BT_ADD_NORM_FWD_X, 1, 4, branch);
    set(&c, BT_ADD_NORM_FWD_RES, 1, 4, residual);
    set(&c, BT_ADD_NORM_FWD_GAMMA, 1, 4, gamma);
    set(&c, BT_ADD_NORM_FWD_BETA, 1, 4, beta);
    cf_add(&c, BT_ADD_NORM_FWD_R, 1, 4);
    cf_add(&c, BT_ADD_NORM_FWD_Y, 1, 4);
    cf_add(&c, BT_ADD_NORM_FWD_STATS, 1, 2);
    expect("residual", answer(&c, BT_ADD_NORM_FWD_R), x, 4);
    expect("residual with norm", answer(&c, BT_ADD_NORM_FWD_Y), want, 4);
}

/* relu's gradient passes where y > 0; beta 1 adds column sums to what is there. */
static void bias_gradient(void) {
    static const double dy[6] = {1, 2, 3, 4, 5, 6}, y[6] = {1, 0, 2, 0, 0, 3},
                        old[3] = {10, 20, 30}, dx[6] = {1, 0, 3, 0, 0, 6}, dbias[3] = {11, 20, 39};
    cf_call c;
    cf_begin(&c, BT_OP_BIAS_ACT_BWD, "known");
    c.p.bias_act = (bt_bias_act_params){.act = BT_ACT_RELU, .beta = 1};
    set(&c, BT_BIAS_ACT_BWD_DY, 2, 3, dy);
    set(&c, BT_BIAS_ACT_BWD_Y, 2, 3, y);
    cf_add(&c, BT_BIAS_ACT_BWD_DX, 2, 3);
    set(&c, BT_BIAS_ACT_BWD_DBIAS, 1, 3, old);
    expect("relu's gradient", answer(&c, BT_BIAS_ACT_BWD_DX), dx, 6);
    expect("gradient of the bias", answer(&c, BT_BIAS_ACT_BWD_DBIAS), dbias, 3);
}

static void rows_by_index(void) {
    static const double x[6] = {1, 2, 3, 4, 5, 6}, index[5] = {2, 0, 2, 1, -1},
                        want[10] = {5, 6, 1, 2, 5, 6, 3, 4, 0, 0};
    cf_call c;
    cf_begin(&c, BT_OP_GATHER, "known");
    set(&c, BT_GATHER_X, 3, 2, x);
    set(&c, BT_GATHER_INDEX, 5, 1, index);
    cf_add(&c, BT_GATHER_Y, 5, 2);
    expect("gather", answer(&c, BT_GATHER_Y), want, 10);
    cf_begin(&c, BT_OP_AXPBY, "known");
    c.p.axpby = (bt_axpby_params){2, -1};
    set(&c, BT_AXPBY_X, 3, 2, x);
    set(&c, BT_AXPBY_Y, 3, 2, want);
    static const double sum[6] = {-3, -2, 5, 6, 5, 6};
    expect("axpby", answer(&c, BT_AXPBY_Y), sum, 6);
}

static void embedding(void) {
    static const double table[4] = {1, 2, 3, 4}, pos[4] = {0, 0.5, -1, 0}, ids[2] = {1, 0},
                        rowpos[4] = {0, 0, 0, 1}, want[4] = {6, 8.5, 1, 4};
    cf_call c;
    cf_begin(&c, BT_OP_EMBED_FWD, "known");
    c.p.embed.scale = 2;
    set(&c, BT_EMBED_FWD_TABLE, 2, 2, table);
    set(&c, BT_EMBED_FWD_IDS, 2, 1, ids);
    set(&c, BT_EMBED_FWD_ROWPOS, 2, 2, rowpos);
    set(&c, BT_EMBED_FWD_POSTAB, 2, 2, pos);
    cf_add(&c, BT_EMBED_FWD_Y, 2, 2);
    expect("embedding", answer(&c, BT_EMBED_FWD_Y), want, 4);
}

/* A gate at ln 3 lets 3/4 of a through and 1/4 of b; one that is shut, b alone. */
static void gate(void) {
    static const double a[2] = {8, 8}, b[2] = {4, 4}, z[2] = {0.0986122886681098, -300},
                        bias[2] = {1, 0}, want[2] = {7, 4}, dy[2] = {16, 16}, da[2] = {12, 0},
                        db[2] = {4, 16}, dz[2] = {12, 0};
    cf_call c;
    cf_begin(&c, BT_OP_GATE_FWD, "known");
    set(&c, BT_GATE_FWD_A, 1, 2, a);
    set(&c, BT_GATE_FWD_B, 1, 2, b);
    set(&c, BT_GATE_FWD_Z, 1, 2, z);
    set(&c, BT_GATE_FWD_BIAS, 1, 2, bias);
    cf_add(&c, BT_GATE_FWD_Y, 1, 2);
    expect("gate", answer(&c, BT_GATE_FWD_Y), want, 2);
    cf_begin(&c, BT_OP_GATE_BWD, "known");
    set(&c, BT_GATE_BWD_DY, 1, 2, dy);
    set(&c, BT_GATE_BWD_A, 1, 2, a);
    set(&c, BT_GATE_BWD_B, 1, 2, b);
    set(&c, BT_GATE_BWD_Z, 1, 2, z);
    set(&c, BT_GATE_BWD_BIAS, 1, 2, bias);
    for (int i = BT_GATE_BWD_DA; i <= BT_GATE_BWD_DZ; i++) cf_add(&c, i, 1, 2);
    expect("gate's gradient by a", answer(&c, BT_GATE_BWD_DA), da, 2);
    expect("gate's gradient by b", answer(&c, BT_GATE_BWD_DB), db, 2);
    expect("gate's gradient by z", answer(&c, BT_GATE_BWD_DZ), dz, 2);
}

/* At 0 a sigmoid is 1/2: ln 2 whatever the target, and half the distance to it as the slope;
 * squares of 1 and 3 have mean 5. */
static void losses_of_values(void) {
    static const double zero[2] = {0, 0}, target[2] = {1, 0},
                        ln2[2] = {0.693147180559945, 0.693147180559945}, half[2] = {-0.5, 0.5},
                        z[2] = {2, -3}, square[2] = {5, 5}, slope[2] = {2, -6}, bias[2] = {0, 0},
                        want[2] = {1, 0};
    for (int kind = 0; kind < 2; kind++) {
        cf_call c;
        cf_begin(&c, BT_OP_VALUE_LOSS, "known");
        c.p.value_loss = (bt_value_loss_params){(bt_values)kind, 2, 1};
        set(&c, BT_VALUE_LOSS_Z, 1, 2, kind == BT_VALUES_BINARY ? zero : z);
        set(&c, BT_VALUE_LOSS_BIAS, 1, 2, bias);
        set(&c, BT_VALUE_LOSS_TARGET, 1, 2, kind == BT_VALUES_BINARY ? target : want);
        cf_add(&c, BT_VALUE_LOSS_LOSS, 1, 2);
        expect("loss of values", answer(&c, BT_VALUE_LOSS_LOSS), kind ? square : ln2, 2);
        expect("its gradient", answer(&c, BT_VALUE_LOSS_Z), kind ? slope : half, 2);
    }
}

/* With a scale of 0 all keys weigh alike: attention gives means, whatever the queries are. */
static void means(void) {
    static const double q[2] = {7, -9}, v[6] = {1, 2, 3, 4, 8, 6},
                        seq[2 * BT_SEQ_COLS] = {0, 1, 0, 2, 0, 0, 1, 1, 2, 1, 1, 0};
    const double want[4] = {2, 3, 8, 6}, lse[4] = {0.693147180559945, 0.693147180559945, 0, 0};
    cf_call c;
    cf_begin(&c, BT_OP_ATTN_FWD, "means");
    c.p.attn = (bt_attn_params){.heads = 2};
    double *queries = cf_add(&c, BT_ATTN_FWD_Q, 2, 2);
    for (int i = 0; i < 4; i++) queries[i] = q[i % 2];
    set(&c, BT_ATTN_FWD_K, 3, 2, v);
    set(&c, BT_ATTN_FWD_V, 3, 2, v);
    set(&c, BT_ATTN_FWD_SEQ, 2, BT_SEQ_COLS, seq);
    cf_add(&c, BT_ATTN_FWD_O, 2, 2);
    cf_add(&c, BT_ATTN_FWD_LSE, 2, 2);
    expect("means by attention", answer(&c, BT_ATTN_FWD_O), want, 4);
    expect("their log-sum-exp", answer(&c, BT_ATTN_FWD_LSE), lse, 4);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

/* Scores 0 and ln 3 give weights 1/4 and 3/4; the first query of a causal pair sees one key. */
static void attention(int causal) {
    static const double q[2] = {1, 1}, k[2] = {0, 2}, v[2] = {8, 4},
                        seq[BT_SEQ_COLS] = {0, 2, 0, 2, 0, 0};
    const double want[2] = {causal ? 8 : 5, 5}, l4 = 1.38629436111989,
                 lse[2] = {causal ? 0 : l4, l4};
    cf_call c;
    cf_begin(&c, BT_OP_ATTN_FWD, "known");
    c.p.attn = (bt_attn_params){1, (uint8_t)causal, 0.549306144334055, {0, 0, 0, 0}}; /* ln 3 / 2 */
    set(&c, BT_ATTN_FWD_Q, 2, 1, q);
    set(&c, BT_ATTN_FWD_K, 2, 1, k);
    set(&c, BT_ATTN_FWD_V, 2, 1, v);
    set(&c, BT_ATTN_FWD_SEQ, 1, BT_SEQ_COLS, seq);
    cf_add(&c, BT_ATTN_FWD_O, 2, 1);
    cf_add(&c, BT_ATTN_FWD_LSE, 2, 1);
    expect("attention", answer(&c, BT_ATTN_FWD_O), want, 2);
    expect("log-sum-exp", answer(&c, BT_ATTN_FWD_LSE), lse, 2);
}

/* ---- dropout -----------------------------------------------------------------------------------
 */

enum { SITE = 513, UPDATE = 70000 };
static const uint64_t seed = 0xA5A5A5A500C0FFEEu;

/* Whether an element is kept, from the fields of the counter one by one. */
static int kept(uint32_t head, uint32_t place, uint32_t position, uint32_t channel) {
    bt_philox4 r = bti_philox(seed, UPDATE, (uint32_t)SITE * 65536 + head, place,
                              position * 16384 + channel / 4);
    return (double)r.v[channel % 4] / 4294967296.0 >= (double)0.3f;
}

/* Rows: x = 1 everywhere, so y is the mask; its share of zeros is 0.3. */
static void row_masks(void) {
    enum { R = 40, C = 66 };
    cf_call c;
    cf_begin(&c, BT_OP_BIAS_ACT_FWD, "mask");
    c.p.bias_act.drop = (bt_drop){seed, UPDATE, SITE, 0.3f};
    double *x = cf_add(&c, BT_BIAS_ACT_FWD_X, R, C);
    for (int k = 0; k < R * C; k++) x[k] = 1;
    cf_rowpos(&c, BT_BIAS_ACT_FWD_ROWPOS, R);
    double *rowpos = c.t[BT_BIAS_ACT_FWD_ROWPOS].x;
    rowpos[0] = 12345; /* large fields */
    rowpos[1] = BT_PHILOX_MAX_POSITION;
    cf_add(&c, BT_BIAS_ACT_FWD_Y, R, C);
    const double *y = answer(&c, BT_BIAS_ACT_FWD_Y);
    int zeros = 0;
    for (int r = 0; r < R; r++)
        for (int k = 0; k < C; k++) {
            int keep = kept(0, (uint32_t)rowpos[2 * r], (uint32_t)rowpos[2 * r + 1], (uint32_t)k);
            double want = keep ? 1 / 0.7 : 0;
            zeros += !keep;
            ck_assert_msg(fabs(y[r * C + k] - want) <= tolerance() + 1e-7,
                          "mask of row %d, channel %d", r, k);
        }
    /* 2640 draws: 5 standard deviations are 0.045. */
    kit_near(zeros / (double)(R * C), 0.3, 0.045);
}

/* Attention: with q = 0 every weight is 1 / keys, with v the unit matrix o is the mask. */
static void attention_masks(void) {
    enum { Q = 6, KEYS = 37, HEADS = 2, POS = 1000, PLACE = 77 };
    cf_call c;
    cf_begin(&c, BT_OP_ATTN_FWD, "mask");
    c.p.attn = (bt_attn_params){HEADS, 0, 1, {seed, UPDATE, SITE, 0.3f}};
    double *q = cf_add(&c, BT_ATTN_FWD_Q, Q, HEADS * KEYS);
    cf_add(&c, BT_ATTN_FWD_K, KEYS, HEADS * KEYS);
    double *v = cf_add(&c, BT_ATTN_FWD_V, KEYS, HEADS * KEYS);
    static const double seq[BT_SEQ_COLS] = {0, Q, 0, KEYS, PLACE, POS};
    set(&c, BT_ATTN_FWD_SEQ, 1, BT_SEQ_COLS, seq);
    cf_add(&c, BT_ATTN_FWD_O, Q, HEADS * KEYS);
    memset(q, 0, Q * HEADS * KEYS * sizeof *q);
    for (int k = 0; k < KEYS * HEADS * KEYS; k++)
        v[k] = k / (HEADS * KEYS) == k % (HEADS * KEYS) % KEYS;
    const double *o = answer(&c, BT_ATTN_FWD_O);
    for (int i = 0; i < Q; i++)
        for (int h = 0; h < HEADS; h++)
            for (int k = 0; k < KEYS; k++) {
                double got = o[i * HEADS * KEYS + h * KEYS + k];
                double want =
                    kept((uint32_t)h, PLACE, (uint32_t)(POS + i), (uint32_t)k) ? 1 / 0.7 / KEYS : 0;
                ck_assert_msg(fabs(got - want) <= tolerance() / KEYS + 1e-7,
                              "mask of query %d, head %d, key %d", i, h, k);
            }
}

/* ---- decoding and optimiser ---------------------------------------------------------------------
 */

/* Of probabilities 1/2, 1/8, 1/8, 1/4 without symbol 0: 3, then 1 and 2 by their ids, then nothing.
 */
static void best_symbols(void) {
    static const double z[4] = {2.07944154167984, 0.693147180559945, 0.693147180559945,
                                1.38629436111989},
                        value[3] = {-1.38629436111989, -2.07944154167984, -2.07944154167984},
                        want[4] = {3, 1, 2, -1};
    cf_call c;
    cf_begin(&c, BT_OP_TOPK, "known");
    c.p.topk = (bt_topk_params){{0, -1, -1, -1}};
    set(&c, BT_TOPK_LOGITS, 1, 4, z);
    for (int k = 0; k < 4; k++)
        c.t[BT_TOPK_LOGITS].x[k] = cf_round(&c, BT_TOPK_LOGITS, c.t[BT_TOPK_LOGITS].x[k]);
    cf_add(&c, BT_TOPK_VALUE, 1, 4);
    cf_add(&c, BT_TOPK_ID, 1, 4);
    const double *got = answer(&c, BT_TOPK_VALUE), *id = answer(&c, BT_TOPK_ID);
    expect("top-k", got, value, 3);
    ck_assert_msg(got[3] == -INFINITY, "top-k fills a place that has no symbol");
    for (int k = 0; k < 4; k++) ck_assert_msg(id[k] == want[k], "top-k: id %d is %g", k, id[k]);
}

/* First steps from m = v = 0 move by lr, whatever the gradient's size. */
static void first_step(int decoupled) {
    static const double scalars[BT_SCALAR_COUNT] = {[BT_SCALAR_LR] = 0.125,
                                                    [BT_SCALAR_CORRECTION1] = 0.5,
                                                    [BT_SCALAR_CORRECTION2] = 0.25,
                                                    [BT_SCALAR_FACTOR] = 2};
    static const double g[2] = {1, -3}, w[2] = {1, 2}, zero[2] = {0, 0};
    /* coupled: g' = 2 g + w / 2 = 2.5, -5; decoupled: g' = 2, -6 and w (1 - 1/16) first */
    const double step[2] = {decoupled ? 2 : 2.5, decoupled ? -6 : -5},
                 left = decoupled ? 0.9375 : 1;
    const double want_w[2] = {left * 1 - 0.125, left * 2 + 0.125};
    const double want_m[2] = {0.5 * step[0], 0.5 * step[1]};
    const double want_v[2] = {0.25 * step[0] * step[0], 0.25 * step[1] * step[1]};
    cf_call c;
    cf_begin(&c, BT_OP_ADAMW, "known");
    c.p.adamw = (bt_adamw_params){0.5, 0.75, 0, 0.5, (uint8_t)decoupled, 0};
    set(&c, BT_ADAMW_G, 1, 2, g);
    set(&c, BT_ADAMW_SCALARS, 1, BT_SCALAR_COUNT, scalars);
    set(&c, BT_ADAMW_W, 1, 2, w);
    set(&c, BT_ADAMW_M, 1, 2, zero);
    set(&c, BT_ADAMW_V, 1, 2, zero);
    expect("weights after a step", answer(&c, BT_ADAMW_W), want_w, 2);
    expect("first moment", answer(&c, BT_ADAMW_M), want_m, 2);
    expect("second moment", answer(&c, BT_ADAMW_V), want_v, 2);
}

/* The middle row of three has a gradient; the others have momentum, which decays and moves them. */
static void step_of_rows(void) {
    static const double scalars[BT_SCALAR_COUNT] = {[BT_SCALAR_LR] = 0.5,
                                                    [BT_SCALAR_CORRECTION1] = 1,
                                                    [BT_SCALAR_CORRECTION2] = 1,
                                                    [BT_SCALAR_FACTOR] = 2};
    static const double g[2] = {3, 8}, index[2] = {1, 3}, w[3] = {1, 1, 1}, m[3] = {4, 0, -2},
                        v[3] = {4, 0, 16};
    /* g' = 0, 6, 0; m = m / 2 + g' / 2; v = v / 4 + 3/4 g'^2; w -= m / sqrt(v) / 2 */
    static const double want_m[3] = {2, 3, -1}, want_v[3] = {1, 27, 4};
    const double want_w[3] = {1 - 0.5 * 2, 1 - 0.5 * 3 / sqrt(27), 1 + 0.5 * 1 / 2};
    cf_call c;
    cf_begin(&c, BT_OP_ADAMW_ROWS, "known");
    c.p.adamw = (bt_adamw_params){0.5, 0.25, 0, 0, 1, 0};
    set(&c, BT_ADAMW_ROWS_G, 2, 1, g);
    set(&c, BT_ADAMW_ROWS_INDEX, 2, 1, index);
    set(&c, BT_ADAMW_ROWS_SCALARS, 1, BT_SCALAR_COUNT, scalars);
    set(&c, BT_ADAMW_ROWS_W, 3, 1, w);
    set(&c, BT_ADAMW_ROWS_M, 3, 1, m);
    set(&c, BT_ADAMW_ROWS_V, 3, 1, v);
    expect("weights of rows", answer(&c, BT_ADAMW_ROWS_W), want_w, 3);
    expect("first moment of rows", answer(&c, BT_ADAMW_ROWS_M), want_m, 3);
    expect("second moment of rows", answer(&c, BT_ADAMW_ROWS_V), want_v, 3);
}

/* Codes 127 and 255 are a block's largest; between them the fourth root is even; a v far below the
 * largest keeps code 1. The last two elements have no gradient, which the index says too. */
static void step_in_8_bits(int compact) {
    static const double scalars[BT_SCALAR_COUNT] = {[BT_SCALAR_LR] = 0.5,
                                                    [BT_SCALAR_CORRECTION1] = 1,
                                                    [BT_SCALAR_CORRECTION2] = 1,
                                                    [BT_SCALAR_FACTOR] = 2};
    static const double g[4] = {0, 4, 0, 0}, index[1] = {0}, w[4] = {1, 1, 1, 1},
                        m[4] = {127, 0, 256 - 127, 0}, v[4] = {255, 0, 255, 1}, ms = 2, vs = 4;
    /* m = 2, 0, -2, 0 and v = 4, 0, 4, 4 / 255^4; g' = 0, 8, 0, 0;
     * m = m / 2 + g' / 2 = 1, 4, -1, 0;  v = v / 4 + 3/4 g'^2 = 1, 48, 1, 1 / 255^4 */
    static const double want_m[4] = {90, 127, 256 - 90, 0}; /* 127 (1/4)^(1/4) = 89.8 */
    static const double want_v[4] = {97, 255, 97, 1};       /* 255 (1/48)^(1/4) = 96.9 */
    const double want_w[4] = {0.5, 1 - 2 / sqrt(48), 1.5, 1}, most_m = 4, most_v = 48;
    cf_call c;
    cf_begin(&c, BT_OP_ADAMW8, "known");
    c.p.adamw = (bt_adamw_params){0.5, 0.25, 0, 0, 1, 0};
    set(&c, BT_ADAMW8_G, 1, compact ? 2 : 4, g);
    if (compact) set(&c, BT_ADAMW8_INDEX, 1, 1, index);
    set(&c, BT_ADAMW8_SCALARS, 1, BT_SCALAR_COUNT, scalars);
    set(&c, BT_ADAMW8_W, 1, 4, w);
    set(&c, BT_ADAMW8_M, 1, 4, m);
    set(&c, BT_ADAMW8_MS, 1, 1, &ms);
    set(&c, BT_ADAMW8_V, 1, 4, v);
    set(&c, BT_ADAMW8_VS, 1, 1, &vs);
    expect("weights beside codes", answer(&c, BT_ADAMW8_W), want_w, 4);
    expect("scale of the first moment", answer(&c, BT_ADAMW8_MS), &most_m, 1);
    expect("scale of the second moment", answer(&c, BT_ADAMW8_VS), &most_v, 1);
    expect("codes of the first moment", answer(&c, BT_ADAMW8_M), want_m, 4);
    expect("codes of the second moment", answer(&c, BT_ADAMW8_V), want_v, 4);
}

void known_answers(void) {
    for (int how = 0; how < 16; how++) gemm_by_loop(how);
    activations();
    norm();
    bias_gradient();
    rows_by_index();
    embedding();
    gate();
    losses_of_values();
    means();
    attention(0);
    attention(1);
    row_masks();
    attention_masks();
    best_symbols();
    first_step(0);
    first_step(1);
    step_of_rows();
    step_in_8_bits(0);
    step_in_8_bits(1);
    cf_reset();
}
