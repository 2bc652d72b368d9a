/* The planning half of the cpu backend: scratch of each op and the fused slots. Linked into
 * libbantam and into the module, so that both say the same. Scratch depends on widths and thread
 * count, never on row counts, so it bounds all smaller calls. */
#include "backends/builtin.h"
#include "cpu/kernels.h"

/* A table row may leave the number open. */
static uint32_t threads_of(const bt_dev_info *info) { return info->threads ? info->threads : 1; }

static uint64_t attention_bytes(const bt_dev_info *info, const bt_call *call) {
    const int64_t heads = call->p.attn.heads > 0 ? call->p.attn.heads : 1;
    const int64_t d = call->t[0].cols / heads;
    const int64_t floats =
        call->op == BT_OP_ATTN_FWD ? btcpu_attn_fwd_floats(d) : btcpu_attn_bwd_floats(d);
    return (uint64_t)threads_of(info) * (uint64_t)floats * sizeof(float);
}

static uint64_t cpu_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_view *t = call->t;
    const uint32_t threads = threads_of(info);
    switch (call->op) {
    case BT_OP_BIAS_ACT_BWD:
        if (!btcpu_has(&t[BT_BIAS_ACT_BWD_DBIAS])) return 0;
        return btcpu_colsum_bytes(threads, t[BT_BIAS_ACT_BWD_DY].cols, 1);
    case BT_OP_NORM_BWD:
        return btcpu_colsum_bytes(threads, t[BT_NORM_BWD_DY].cols, 2);
    case BT_OP_ADD_NORM_BWD:
        return btcpu_colsum_bytes(threads, t[BT_ADD_NORM_BWD_DY].cols, 3);
    case BT_OP_ATTN_FWD:
    case BT_OP_ATTN_BWD:
        return attention_bytes(info, call);
    default:
        return 0;
    }
}

const bt_planning bti_planning_cpu = {
    .ws_bytes = cpu_ws_bytes,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};
