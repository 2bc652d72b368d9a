/* The planning half of the cuda backend: scratch of each op, as an upper bound of what its kernels
 * may ask for. Plain C, no vendor header: a laptop plans with it.
 *
 * There is no cuda backend in this version, so these bounds are what its kernels have to keep to:
 * - Column sums (gradients of bias, gain and offset) go through partial sums over blocks of rows,
 *   added in order by a second kernel, since there are no float atomics: COLSUM_BLOCKS blocks at
 *   most, and no more than COLSUM_FLOATS partial sums where columns alone keep a device busy.
 * - attn_bwd keeps delta (rows x heads) and passes twice over a sequence, by keys and by queries,
 * so that no partial dq is stored. attn_fwd needs nothing.
 * - cross_entropy, norms and topk work in registers and shared memory, a block of threads a row.
 * - gemm: cuBLAS has its workspace with its handle, counted in runtime_bytes.
 * - Half precision on devices without half products (compute capability below 5.0) widens tiles
 * into scratch; this version plans fp32 only. */
#include "backends/builtin.h"

/* As many as keep the largest of today's devices busy (132 multiprocessors), with some to spare. */
#define COLSUM_BLOCKS 160
#define COLSUM_FLOATS (1 << 21)

static uint64_t colsum_bytes(const bt_view *rows, uint64_t sums) {
    uint64_t cols = (uint64_t)(rows->cols > 0 ? rows->cols : 1), blocks = COLSUM_FLOATS / cols;
    if (blocks > COLSUM_BLOCKS) blocks = COLSUM_BLOCKS;
    if (blocks < 1) blocks = 1;
    if (blocks > (uint64_t)rows->rows) blocks = (uint64_t)rows->rows;
    return blocks * sums * cols * sizeof(float);
}

static uint64_t cuda_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_view *t = call->t;
    (void)info;
    switch (call->op) {
    case BT_OP_BIAS_ACT_BWD:
        if (t[BT_BIAS_ACT_BWD_DBIAS].ld == 0) return 0;
        return colsum_bytes(&t[BT_BIAS_ACT_BWD_DY], 1);
    case BT_OP_NORM_BWD:
        return colsum_bytes(&t[BT_NORM_BWD_DY], 2);
    case BT_OP_ADD_NORM_BWD:
        return colsum_bytes(&t[BT_ADD_NORM_BWD_DY], 3);
    case BT_OP_ATTN_BWD:
        return (uint64_t)t[BT_ATTN_BWD_Q].rows * (uint64_t)call->p.attn.heads * sizeof(float);
    default:
        return 0;
    }
}

const bt_planning bti_planning_cuda = {
    .ws_bytes = cuda_ws_bytes,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};
