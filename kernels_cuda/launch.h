/* What backends/cuda*.c may call of the kernels: one launcher for each kernel or pair of kernels.
 * A launcher takes its operands (in one struct, where they are many) and a stream, enqueues, and
 * returns the error code of the launch; it never allocates, synchronises or prints. Shapes have
 * been checked by core/ops/ops.c. An operand that is absent has p NULL and ld 0; `type` is the
 * bt_dtype of the operands that core/ops/op_list.inc calls DATA, all others are fp32 or int32. */
#ifndef BANTAM_KERNELS_CUDA_LAUNCH_H
#define BANTAM_KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#include "core/ops/op_args.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A matrix on the device: ld elements from one row to the next. */
typedef struct btcu_mat {
    void *p;
    int64_t ld;
} btcu_mat;

/* Dropout as kernels want it: threshold and factor instead of a probability. */
typedef struct btcu_drop {
    uint32_t seed0, seed1, update, site, threshold;
    float keep; /* 1 / (1 - p) */
    int on;
} btcu_drop;

/* ---- elementwise.cu ----------------------------------------------------------------------------
 * Column sums: rows come in chunks of chunk_rows; `part` (chunks x cols fp32, tight) gets the sums
 * of each chunk, btcu_colsum adds them in order. */

typedef struct btcu_bias_act {
    btcu_mat x, bias, rowpos, y, dy, dx, part;
    int64_t rows, cols, chunk_rows;
    int act, type;
    btcu_drop drop;
} btcu_bias_act;
cudaError_t btcu_bias_act_fwd(const btcu_bias_act *a, cudaStream_t s);
cudaError_t btcu_bias_act_bwd(const btcu_bias_act *a, cudaStream_t s); /* dx and part */

typedef struct btcu_colsum {
    const float *part;
    float *out;
    int64_t chunks, cols;
    int add; /* to what is there */
} btcu_colsum;
cudaError_t btcu_colsum_run(const btcu_colsum *a, cudaStream_t s);

/* y = a x + b y, x and y of any floating type; b 0: y is not read. */
typedef struct btcu_axpby {
    btcu_mat x, y;
    int64_t rows, cols;
    float a, b;
    int x_type, y_type;
} btcu_axpby;
cudaError_t btcu_axpby_run(const btcu_axpby *a, cudaStream_t s);

/* y_r = x[index_r]: bits are copied; zeros where the index is negative. */
typedef struct btcu_gather {
    btcu_mat x, index, y;
    int64_t rows, cols;
    int type;
} btcu_gather;
cudaError_t btcu_gather_run(const btcu_gather *a, cudaStream_t s);

/* Forward: y of a, b and z; backward: da, db and dz of dy too (core/ops/op_args.h). */
typedef struct btcu_gate {
    btcu_mat dy, a, b, z, bias, y, da, db, dz;
    int64_t rows, cols;
    int type;
} btcu_gate;
cudaError_t btcu_gate_fwd(const btcu_gate *g, cudaStream_t s);
cudaError_t btcu_gate_bwd(const btcu_gate *g, cudaStream_t s);

/* y = beta y in batch0 x batch1 matrices, step0 and step1 elements apart; beta 0: y = 0, not read.
 */
typedef struct btcu_scale {
    btcu_mat y;
    int64_t rows, cols, batch0, batch1, step0, step1;
    float beta;
    int type;
} btcu_scale;
cudaError_t btcu_scale_run(const btcu_scale *a, cudaStream_t s);

/* out = a + b: shows at the start that kernels run on the device. */
cudaError_t btcu_add(int *out, int a, int b, cudaStream_t s);

/* ---- norm.cu -----------------------------------------------------------------------------------
 */

/* r present: r = res + drop(x + bias); y present: y = norm(r), or of x where there is no r. */
typedef struct btcu_norm_fwd {
    btcu_mat x, bias, res, rowpos, gamma, beta, r, y, stats;
    int64_t rows, cols;
    float eps;
    int type;
    btcu_drop drop;
} btcu_norm_fwd;
cudaError_t btcu_norm_fwd_run(const btcu_norm_fwd *a, cudaStream_t s);

/* Sums for dgamma to part[0], for dbeta to part[1], then dr and dx (see k_norm_bwd). */
typedef struct btcu_norm_bwd {
    btcu_mat dy, x, stats, gamma, dres, rowpos, dr, dx;
    float *part[2];
    int64_t rows, cols, chunk_rows;
    int type;
    btcu_drop drop;
} btcu_norm_bwd;
cudaError_t btcu_norm_bwd_params(const btcu_norm_bwd *a, cudaStream_t s);
cudaError_t btcu_norm_bwd_run(const btcu_norm_bwd *a, cudaStream_t s);

/* ---- attention.cu ------------------------------------------------------------------------------
 */

typedef struct btcu_attn {
    btcu_mat q, k, v, seq, kidx, o, lse, grad, dq, dk, dv;
    float *delta;                                   /* query rows x heads */
    int64_t query_rows, key_rows, sequences, width; /* width of a head */
    int heads, causal, type;
    float scale;
    btcu_drop drop;
} btcu_attn;
cudaError_t btcu_attn_fwd(const btcu_attn *a, cudaStream_t s);
cudaError_t btcu_attn_bwd(const btcu_attn *a, cudaStream_t s); /* delta, then dq, then dk and dv */

/* ---- embed.cu ----------------------------------------------------------------------------------
 */

typedef struct btcu_embed {
    btcu_mat table, ids, rowpos, postab, y, dy, order, segs; /* table: dtable in bwd */
    int64_t rows, cols, segments;
    float scale;
    int add, type;
    btcu_drop drop;
} btcu_embed;
cudaError_t btcu_embed_fwd(const btcu_embed *a, cudaStream_t s);
cudaError_t btcu_embed_bwd(const btcu_embed *a, cudaStream_t s);

/* ---- loss.cu -----------------------------------------------------------------------------------
 */

typedef struct btcu_cross_entropy {
    btcu_mat logits, bias, labels, loss;
    const float *loss_scale; /* on the device, multiplies the gradient; NULL: 1 */
    int64_t rows, cols;
    float smoothing, grad_scale;
    int grad;
} btcu_cross_entropy;
cudaError_t btcu_cross_entropy_run(const btcu_cross_entropy *a, cudaStream_t s);

typedef struct btcu_value_loss {
    btcu_mat z, bias, target, loss;
    const float *loss_scale; /* as above */
    int64_t rows, cols;
    float grad_scale;
    int kind, grad; /* bt_values */
} btcu_value_loss;
cudaError_t btcu_value_loss_run(const btcu_value_loss *a, cudaStream_t s);

typedef struct btcu_topk {
    btcu_mat logits, bias, value, id;
    int64_t rows, cols, k;
    int32_t forbid[BT_TOPK_FORBID];
} btcu_topk;
cudaError_t btcu_topk_run(const btcu_topk *a, cudaStream_t s);

/* ---- optimizer.cu ------------------------------------------------------------------------------
 */

cudaError_t btcu_sumsq(const float *x, int64_t n, btcu_mat part, cudaStream_t s);
cudaError_t btcu_update_scalars(btcu_mat part, int64_t parts, float *scalars,
                                const bt_update_scalars_params *p, cudaStream_t s);

typedef struct btcu_adamw {
    btcu_mat g, w, m, v; /* a flat range: 1 x cols */
    btcu_mat index;      /* adamw_rows: row k of g is for row index[k]; kept rows of g */
    const float *scalars;
    int64_t rows, cols, kept, first_row;
    float beta1, rest1, beta2, rest2, eps, decay; /* rest = 1 - beta, of the doubles */
    int decoupled;
} btcu_adamw;
cudaError_t btcu_adamw_run(const btcu_adamw *a, cudaStream_t s);
cudaError_t btcu_adamw_rows(const btcu_adamw *a, cudaStream_t s);

/* Of `a`: g (flat, or compact with index, kept and cols), w, the scalars and the parameters. */
typedef struct btcu_adamw8 {
    btcu_adamw a;
    uint8_t *m, *v;
    float *ms, *vs;
    int64_t n;
} btcu_adamw8;
cudaError_t btcu_adamw8_run(const btcu_adamw8 *a, cudaStream_t s);

/* ---- gemm.cu -----------------------------------------------------------------------------------
 */

/* C = alpha A B^T + beta C, A m x k, B n x k; each element is summed in the order of k, whatever m,
 * n and its place are. `round` BT_F32: all are fp32; else a, b and c are fp32 or `round` (half
 * set), fp32 operands are rounded to it, sums are fp32. */
typedef struct btcu_rows_gemm {
    btcu_mat a, b, c;
    int64_t m, n, k;
    float alpha, beta;
    int round, a_half, b_half, c_half;
} btcu_rows_gemm;
cudaError_t btcu_rows_gemm_run(const btcu_rows_gemm *a, cudaStream_t s);

/* y = x rounded to the type `round`, BT_F16 or BT_BF16; both are fp32. */
typedef struct btcu_round {
    btcu_mat x, y;
    int64_t rows, cols;
    int round;
} btcu_round;
cudaError_t btcu_round_run(const btcu_round *a, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
