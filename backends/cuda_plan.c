/* The planning half of the cuda backend: scratch of each op, as an upper bound of what its kernels
 * ask for. Plain C, no vendor header: a laptop plans with it. Linked into libbantam and into the
 * module, so that both say the same.
 *
 * - Column sums (gradients of bias, gain and offset) go through partial sums over chunks of rows,
 *   added in order by a second kernel, since there are no float atomics.
 * - attn_bwd keeps delta (rows x heads) and passes twice over a sequence, by keys and by queries,
 *   so that no partial dq is stored. attn_fwd needs nothing.
 * - cross_entropy, norms and topk work in registers and shared memory.
 * - gemm in fp32: cuBLAS has its workspace with its handle, counted in runtime_bytes. */
#include "backends/cuda_plan.h"

/* Chunks that suffice whatever the number of rows; 1 at least. */
static int64_t most_chunks(int64_t cols) {
    const int64_t chunks = BTCU_CHUNK_FLOATS / (cols > 0 ? cols : 1);
    return chunks > BTCU_CHUNKS ? BTCU_CHUNKS : chunks > 1 ? chunks : 1;
}

int64_t btcu_chunk_rows(int64_t rows, int64_t cols) {
    const int64_t even = btcu_ceil_div(rows, most_chunks(cols));
    return even > BTCU_CHUNK_ROWS ? even : BTCU_CHUNK_ROWS;
}

/* Sums of `count` matrices like `v` over rows. */
static uint64_t column_bytes(const bt_view *v, uint64_t count) {
    const int64_t chunks = btcu_ceil_div(v->rows, BTCU_CHUNK_ROWS), most = most_chunks(v->cols);
    return count * (uint64_t)v->cols * sizeof(float) * (uint64_t)(chunks < most ? chunks : most);
}

static uint64_t cuda_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_view *t = call->t;
    (void)info;
    switch (call->op) {
    case BT_OP_BIAS_ACT_BWD:
        return t[BT_BIAS_ACT_BWD_DBIAS].ld > 0 ? column_bytes(&t[BT_BIAS_ACT_BWD_DY], 1) : 0;
    case BT_OP_NORM_BWD:
        return column_bytes(&t[BT_NORM_BWD_DY], 2);
    case BT_OP_ADD_NORM_BWD:
        return column_bytes(&t[BT_ADD_NORM_BWD_DY], 2);
    case BT_OP_ATTN_BWD: /* delta of each query and head */
        return (uint64_t)t[BT_ATTN_BWD_Q].rows * (uint64_t)call->p.attn.heads * sizeof(float);
    default:
        return 0;
    }
}

const bt_planning bti_planning_cuda = {
    .ws_bytes = cuda_ws_bytes,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};
