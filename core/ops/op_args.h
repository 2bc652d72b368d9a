/* What each op computes: the contract of record, in the order of op_list.inc.
 *
 * An op is called with an array of operand views, one per BT_ARG line, and one parameter struct.
 * Common rules:
 * - Matrices are row-major; a view is rows x cols with a leading dimension ld >= cols. Vectors
 *   (bias, gamma, beta) are 1 x cols. R = rows, C = cols below.
 * - core/ops/ops.c has checked shapes, types and bounds before a slot is called; slots only
 *   compute. Zero rows are valid and do nothing (except what `beta` asks of gradients: an op with
 *   beta 0 and zero rows writes zeros).
 * - Parameter gradients (dbias, dgamma, dbeta, dtable) become beta * old + new; with beta 0 the
 *   old value is not read and may be NaN. beta is 0 or 1.
 * - Half data (fp16, bf16) is storage: values are widened to fp32 when read, all arithmetic is
 *   fp32, and a result is rounded once, to nearest even, when it is stored.
 * - Nothing is hidden: where a formula gives no finite number, neither does the op, and what does
 *   not depend on the spoilt value stays as it is. Two liberties: attention may spoil a sequence
 *   beyond what its masks hide, an update of parameters what else it writes.
 * - Sums run in an order fixed by shape and thread count; no float atomics.
 * - rowpos is int32, R x 2: the sentence's place in the update and the row's position in the
 *   sentence; with `drop.p` > 0 it is required. */
#ifndef BANTAM_OPS_OP_ARGS_H
#define BANTAM_OPS_OP_ARGS_H

#include "core/base/dtype.h"
#include "core/base/philox.h"

typedef enum bt_op {
#define BT_OP(name, NAME, slot) BT_OP_##NAME,
#include "core/ops/op_list.inc"
    BT_OP_COUNT
} bt_op;

/* Operand indices: BT_GEMM_A, BT_GEMM_B, BT_GEMM_C, BT_BIAS_ACT_FWD_X ... (each op counts from 0).
 */
#define BT_ARG(name, NAME, arg, ARG, role, need, type, alias) BT_##NAME##_##ARG,
#define BT_OP(name, NAME, slot) BT_##NAME##_END_OF_PREVIOUS_, BT_##NAME##_RESET_ = -1,
enum bt_operand_index {
    BT_OPERAND_FIRST_ = -1,
#include "core/ops/op_list.inc"
    BT_OPERAND_LAST_
};
#define BT_MAX_OPERANDS 11

/* Memory of a device; opaque to core. */
typedef struct bt_buf bt_buf;

/* A matrix in device memory: handle and byte offset, never a pointer that core may follow. */
typedef struct bt_view {
    bt_buf *buf; /* NULL while planning */
    size_t off;  /* bytes from the start of buf */
    int64_t rows;
    int64_t cols;
    int64_t ld; /* elements from one row to the next, >= cols and >= 1; 0: operand absent */
    bt_dtype dtype;
} bt_view;

/* Dropout of a row-wise op: element (row, col) is kept when its Philox word is at least
 * bti_drop_threshold(p), and then scaled by 1 / (1 - p). Counter: update, site, head 0, rowpos of
 * the row, col. In attention: update, site, head, place of the sequence, query position, key
 * index. p = 0 turns it off. */
typedef struct bt_drop {
    uint64_t seed;
    uint32_t update;
    uint32_t site;
    float p;
} bt_drop;

typedef enum bt_act { BT_ACT_NONE, BT_ACT_RELU, BT_ACT_GELU } bt_act; /* gelu: x Phi(x), erf form */

/* gemm: C = alpha op(A) op(B) + beta C, op(X) = X or its transpose. op(A) is m x k, op(B) k x n,
 * C m x n. beta 0: C is not read. alpha 0: A and B are not read. k = 0: C = beta C.
 * Accumulates in fp32 at least (fp64 for fp64).
 * Types: with `round` BT_F32 the three are of one type, fp32 or fp64. With a half type A, B and C
 * are each of that type or wide (fp32; in the oracle fp64): wide A and B are rounded to `round`, to
 * nearest even, before they are multiplied; products are summed wide; C is rounded once, at the
 * end, where it is half. So a product gives the same on devices that multiply halves and on those
 * that only store them. tf32: operands are fp32, and the device may multiply with 10 bits of
 * mantissa (info.tf32). Batched: for i < batch0, j < batch1 the matrices at element offsets i*X0 +
 * j*X1 from the views; batch counts of 0 mean 1. The C matrices of different (i, j) do not overlap.
 * stable_rows (trans_a 0, trans_b 1, no batch): the bits of each row of C depend on that row of A
 * (and of C, beta not 0) and on B only, never on how many rows there are, on the row's place or on
 * the number of threads. A device whose info.row_tile is not 0 keeps this in calls of exactly so
 * many rows, and gets no others. */
typedef struct bt_gemm_params {
    uint8_t trans_a, trans_b, stable_rows, tf32;
    bt_dtype round;
    double alpha, beta;
    int64_t batch0, batch1;
    int64_t a0, a1, b0, b1, c0, c1;
} bt_gemm_params;

/* bias_act_fwd: y = drop(act(x + bias)); y may be x. R x C; bias 1 x C or absent. */
/* bias_act_bwd: with u = x + bias and y = drop(act(u)): dx = d act/du (u) * drop(dy), and
 * dbias = beta dbias + column sums of dx. What is read: relu reads y only (y > 0 means kept and
 * active, so dx = dy / (1 - p) there and 0 elsewhere, no random numbers); gelu reads x and bias
 * (absent: 0) and rowpos when p > 0; none reads rowpos when p > 0. dx may be absent (only dbias is
 * wanted); dbias may be absent. dx may be dy, x or y. */
typedef struct bt_bias_act_params {
    bt_act act;
    bt_drop drop;
    double beta; /* bwd only */
} bt_bias_act_params;

/* norm_fwd: layer normalisation of each row, y = (x - mean) * rstd * gamma + beta,
 * rstd = 1 / sqrt(var + eps), var biased (1/C). stats R x 2: mean, rstd. y may be x.
 * norm_bwd: with g = dy * gamma and h = (x - mean) * rstd:
 *   dx = rstd * (g - mean_C(g) - h * mean_C(g * h)) + dres;  dres absent: 0.
 *   dgamma = beta dgamma + sum_R dy * h,  dbeta = beta dbeta + sum_R dy;  either may be absent.
 * dx may be dy, x or dres. */
typedef struct bt_norm_params {
    double eps;
    double beta; /* bwd only */
} bt_norm_params;

/* add_norm_fwd: r = res + drop(x + bias); when gamma is there, also y = norm(r), stats as in
 * norm_fwd (gamma, beta, y and stats come together or not at all). r may be x or res; y likewise,
 * but not the one that r is.
 * add_norm_bwd: dr = norm_bwd(dy; r, stats, gamma) + dres; dx = drop(dr) (absent: not wanted;
 * required with p > 0 when dbias is wanted);
 * dgamma, dbeta as norm_bwd; dbias = beta dbias + column sums of drop(dr). dr may be dy, r or
 * dres; dx likewise, but not the one that dr is. */
typedef struct bt_add_norm_params {
    double eps;
    double beta; /* bwd only */
    bt_drop drop;
} bt_add_norm_params;

/* Attention. q, o, do, dq: query rows x (heads * D); k, v, dk, dv: key rows x (heads * D), head h
 * in columns h*D .. h*D+D-1. seq is int32, one row of BT_SEQ_COLS per sequence. For query i of a
 * sequence (position p = query_pos + i) and key j < key_count (row key_row + j, or kidx[s][j] when
 * kidx is there), with causal only j <= p:
 *   s_ij = scale * q_i . k_j,  lse_i = log sum_j exp(s_ij),  P_ij = exp(s_ij - lse_i),
 *   o_i = sum_j drop(P_ij) v_j.
 * lse: query rows x heads. A query with no key gives o = 0, lse = -infinity and no gradient; one
 * that has keys, all of score -infinity, has no softmax: o is NaN.
 * attn_bwd: delta_i = do_i . o_i;  dP_ij = drop(do_i . v_j);  dS_ij = P_ij (dP_ij - delta_i);
 *   dq_i = scale sum_j dS_ij k_j;  dk_j = scale sum_i dS_ij q_i;  dv_j = sum_i drop(P_ij) do_i.
 * Sequences do not share rows in attn_bwd; every row of a sequence is overwritten, rows of no
 * sequence stay as they are. No n x n matrix is ever stored. (Online softmax: Milakov and
 * Gimelshein 2018; tiles: Dao et al. 2022.) */
enum bt_seq_col {
    BT_SEQ_QUERY_ROW,
    BT_SEQ_QUERY_COUNT,
    BT_SEQ_KEY_ROW,
    BT_SEQ_KEY_COUNT,
    BT_SEQ_PLACE,     /* the sentence's place in the update, for dropout */
    BT_SEQ_QUERY_POS, /* position of the first query, for causal and dropout */
    BT_SEQ_COLS
};
typedef struct bt_attn_params {
    int32_t heads;
    uint8_t causal;
    double scale;
    bt_drop drop;
} bt_attn_params;

/* embed_fwd: y_r = drop(scale * table[ids_r] + postab[position_r]); postab absent: 0.
 * ids R x 1; position is rowpos column 1.
 * embed_bwd: dtable[id] = beta dtable[id] + scale * sum of drop(dy_r) over rows r with that id;
 * with beta 0 rows of ids that do not occur become 0. order: R x 1, rows sorted by id, ties by row;
 * segs: (U+1) x 2, for each of the U distinct ids in ascending order (id, first index in order),
 * then (-1, R). Sums run in the order of `order`. */
typedef struct bt_embed_params {
    double scale;
    double beta; /* bwd only */
    bt_drop drop;
} bt_embed_params;

/* cross_entropy: z = logits + bias, p = softmax(z), V = C. labels R x 1. loss R x 2:
 *   loss[r][0] = (1 - s) * -log p[label] + s/V * sum_v -log p[v]    (smoothing mass s over all V)
 *   loss[r][1] = -log p[label]
 * With `grad`, logits become grad_scale * d loss[r][0] / d z = grad_scale * (p - q),
 * q_v = s/V + (1 - s) [v = label]; without, logits are left in any state. A negative label ignores
 * the row: loss 0, gradient 0. With `scalars` (1 x BT_SCALAR_COUNT) the gradient, not the loss, is
 * also multiplied by scalars[BT_SCALAR_LOSS_SCALE]. */
typedef struct bt_cross_entropy_params {
    double smoothing;
    double grad_scale;
    uint8_t grad;
} bt_cross_entropy_params;

/* value_loss: u = z + bias against the targets t, C values a row. loss R x 2, both columns
 * loss[r] = 1/C sum_c e(u, t), and with `grad` z becomes grad_scale / C * de/du, times
 * scalars[BT_SCALAR_LOSS_SCALE] where scalars (1 x BT_SCALAR_COUNT) is there; without, z is left in
 * any state.
 *   BT_VALUES_BINARY  e = max(u, 0) - t u + log(1 + exp(-|u|)),  de/du = sigmoid(u) - t:
 *                     binary cross-entropy of t in [0, 1] against sigmoid(u), safe for any u
 *   BT_VALUES_SQUARE  e = (u - t)^2,  de/du = 2 (u - t) */
typedef enum bt_values { BT_VALUES_BINARY, BT_VALUES_SQUARE } bt_values;
typedef struct bt_value_loss_params {
    bt_values kind;
    double grad_scale;
    uint8_t grad;
} bt_value_loss_params;

/* axpby: y = a x + b y, R x C; b 0: y is not read. x and y are of any two floating types. */
typedef struct bt_axpby_params {
    double a, b;
} bt_axpby_params;

/* gather: y_r = x[index_r]; index R x 1, rows of x; a negative one gives a row of zeros. */
typedef struct bt_gather_params {
    int32_t unused;
} bt_gather_params;

/* gate_fwd: y = s a + (1 - s) b with s = sigmoid(z + bias); all R x C, bias 1 x C or absent. y may
 * be a, b or z. gate_bwd: da = s dy, db = (1 - s) dy, dz = s (1 - s) (a - b) dy; each may be dy, a,
 * b or z, but no two the same. The gradient of the bias is the column sums of dz, see bias_act_bwd.
 */
typedef struct bt_gate_params {
    int32_t unused;
} bt_gate_params;

/* topk: the k = value.cols best entries of log_softmax(logits + bias) of each row, best first, ties
 * to the smaller id. value and id are R x k. Ids in `forbid` (-1: none) are never given, though
 * they take part in the softmax. Places that cannot be filled have value -infinity and id -1. A row
 * without a softmax (a NaN, an infinity, nothing but -infinity) has value NaN and id -1 throughout.
 */
#define BT_TOPK_FORBID 4
typedef struct bt_topk_params {
    int32_t forbid[BT_TOPK_FORBID];
} bt_topk_params;

/* sumsq: x is 1 x n, read in blocks of BT_SUMSQ_BLOCK; part is ceil(n / block) x 2, block b giving
 * (s, q) with sum of squares = s^2 q, s >= 0 scaled so that nothing overflows that need not
 * (s = max |x| for instance, q in [0, block]); a block with a NaN or infinity gives q = NaN. */
#define BT_SUMSQ_BLOCK 65536
typedef struct bt_sumsq_params {
    int32_t unused;
} bt_sumsq_params;

/* The scalar block of an update, 1 x BT_SCALAR_COUNT: what the host writes for each update, what
 * lives on the device from update to update, what update_scalars gives. */
enum bt_scalar {
    BT_SCALAR_LR,          /* learning rate of this update */
    BT_SCALAR_CLIP,        /* largest global norm; 0: no clipping */
    BT_SCALAR_CORRECTION1, /* 1 - beta1^t, t counting steps that were taken */
    BT_SCALAR_CORRECTION2, /* 1 - beta2^t */
    BT_SCALAR_LOSS_SCALE,  /* gradients of this update are this many times too large */
    BT_SCALAR_GOOD,        /* updates in a row that did not overflow, since the scale changed */
    BT_SCALAR_NORM,        /* global norm before clipping, loss scale removed */
    BT_SCALAR_FACTOR,      /* what adamw multiplies gradients by: clip and loss scale */
    BT_SCALAR_SKIP,        /* 1: a gradient is not finite, the step is not taken */
    BT_SCALAR_COUNT
};
#define BT_SCALAR_HOST_COUNT BT_SCALAR_LOSS_SCALE /* so many are the host's */
/* update_scalars: from all partial sums norm = sqrt(sum s^2 q) / loss_scale (computed without
 * overflow: 100 values of 1e20 give 1e21 in fp32), factor = min(1, clip / norm) / loss_scale
 * (clip 0: 1 / loss_scale), skip = norm not finite (factor then 0). Then, with growth_interval > 0,
 * the scale of the next update: after a skip loss_scale /= 2 and good = 0; else good += 1, and
 * where that reaches growth_interval, loss_scale = min(2 loss_scale, scale_max) and good = 0. With
 * growth_interval 0 both stay as they are. (Micikevicius et al. 2018.) */
typedef struct bt_update_scalars_params {
    int32_t growth_interval; /* < 2^24 */
    float scale_max;
} bt_update_scalars_params;

/* adamw over a flat range (all views 1 x n), one pass; with scalars.skip nothing is touched.
 *   g' = g * factor (+ weight_decay * w when not decoupled)
 *   m = beta1 m + (1 - beta1) g';  v = beta2 v + (1 - beta2) g'^2
 *   w = w * (1 - lr * weight_decay) (decoupled only) - lr * (m / c1) / (sqrt(v / c2) + eps)
 * (Kingma and Ba 2015; decoupled: Loshchilov and Hutter 2019; both as torch.optim has them.) */
/* adamw_rows: the same step over a table, V x C, whose gradient is compact: row k of g, K x C, is
 * the gradient of row index[k] of w, m and v; the gradient of every other row is zero. index: K x
 * 1, ascending. w, m and v may be a part of the table, its rows from first_row on: they are rows
 * first_row .. first_row + V - 1 to the index, whose other entries (of other parts, or padding
 * behind the last) are passed over, and their rows of g are not read. One pass over the table: w, m
 * and v are read and written once. */
typedef struct bt_adamw_params {
    double beta1, beta2, eps, weight_decay;
    uint8_t decoupled;
    int64_t first_row; /* adamw_rows, and adamw8 with an index */
} bt_adamw_params;

/* adamw8: the same step with moments in 8 bits. w, m and v are 1 x n, cut into blocks of
 * BT_ADAMW8_BLOCK (the last may be shorter); m and v are codes, ms and vs, 1 x blocks, hold for
 * each block its largest |m| and its largest v. A code c stands for
 *   m = ms sign(c) (|c| / 127)^4, the byte read as a signed number (-128 is never written),
 *   v = vs (c / 255)^4, the byte read as an unsigned number.
 * A step widens m and v, does what adamw does (w moves by the m and v of that arithmetic, before
 * they are rounded), then ms and vs become the largest new |m| and v of the block, and each code
 * the nearest one in the fourth root: |c| = floor(127 (|m| / ms)^(1/4) + 1/2), and so with 255 for
 * v; a v above 0 has code 1 at least, or the next step of its element would be divided by eps
 * alone. Blocks that are all 0 have scale 0 and codes 0. The fourth root keeps numbers down to 4e-9
 * (v: 2e-10) of the largest, with steps of 3 to 10 % (v: 1.6 to 5 %) in its upper two decades, like
 * the decimal tree of Dettmers et al. 2022 (8-bit optimizers via block-wise quantization), and
 * needs no table or search.
 * index (with first_row) as in adamw_rows, or absent: then g is 1 x n. With it g is K x C, w the
 * table's rows of C one after the other, V = n / C, and blocks run on from row to row. Each
 * element's arithmetic is adamw's; with scalars.skip nothing is touched. 16 bytes an element, 12
 * and those of g's rows with an index. */
#define BT_ADAMW8_BLOCK 256

typedef union bt_op_params {
    bt_gemm_params gemm;
    bt_bias_act_params bias_act;
    bt_norm_params norm;
    bt_add_norm_params add_norm;
    bt_attn_params attn;
    bt_embed_params embed;
    bt_cross_entropy_params cross_entropy;
    bt_value_loss_params value_loss;
    bt_axpby_params axpby;
    bt_gather_params gather;
    bt_gate_params gate;
    bt_topk_params topk;
    bt_sumsq_params sumsq;
    bt_update_scalars_params update_scalars;
    bt_adamw_params adamw;
} bt_op_params;

/* One call: the op, its operands by index, parameters, and scratch of at least ws_bytes (a view of
 * bytes: 1 x n fp32; buf NULL when none was asked for). Scratch content is undefined. */
typedef struct bt_call {
    bt_op op;
    bt_view t[BT_MAX_OPERANDS];
    bt_op_params p;
    bt_view ws;
} bt_call;

#endif
