/* The planning half of the cpu backend: scratch of each op and the fused slots. Linked into
 * libbantam and into the module, so that both say the same. Scratch depends on widths and thread
 * count, that of half products also on rows up to a slice: it bounds all smaller calls. */
#include "backends/builtin.h"
#include "cpu/kernels.h"

/* A table row may leave the number open. */
static uint32_t threads_of(const bt_dev_info *info) { return info->threads ? info->threads : 1; }

static uint64_t attention_bytes(const bt_dev_info *info, const bt_call *call) {
    const int64_t heads = call->p.attn.heads > 0 ? call->p.attn.heads : 1;
    const int64_t d = call->t[0].cols / heads;
    const int64_t floats = call->op == BT_OP_ATTN_FWD
                               ? btcpu_attn_fwd_floats(d)
                               : btcpu_attn_bwd_floats(d, btcpu_is_half(call->t[0].dtype));
    return (uint64_t)threads_of(info) * (uint64_t)floats * sizeof(float);
}

/* Column sums and, of half data, rows widened. */
static uint64_t row_bytes(const bt_dev_info *info, const bt_view *data, int sums, int widened) {
    const int rows = BTCPU_COLSUM_ROWS(sums) + (btcpu_is_half(data->dtype) ? widened : 0);
    return (uint64_t)btcpu_row_floats(threads_of(info), data->cols, rows) * sizeof(float);
}

static uint64_t gemm_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_gemm_params *p = &call->p.gemm;
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const int64_t k = p->trans_a ? a->rows : a->cols;
    const int half_c = btcpu_is_half(c->dtype);
    if (p->round == BT_F32) return 0;
    const int64_t floats = p->stable_rows
                               ? btcpu_stable_floats(threads_of(info), c->rows, k, half_c)
                               : btcpu_gemm_half_floats(c->rows, c->cols, k, half_c);
    return (uint64_t)floats * sizeof(float);
}

static uint64_t cpu_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_view *t = call->t;
    switch (call->op) {
    case BT_OP_GEMM:
        return gemm_bytes(info, call);
    case BT_OP_BIAS_ACT_BWD:
        if (!btcpu_has(&t[BT_BIAS_ACT_BWD_DBIAS])) return 0;
        return row_bytes(info, &t[BT_BIAS_ACT_BWD_DY], 1, 0);
    case BT_OP_NORM_FWD:
        return row_bytes(info, &t[BT_NORM_FWD_X], 0, BTCPU_NORM_FWD_ROWS);
    case BT_OP_ADD_NORM_FWD:
        return row_bytes(info, &t[BT_ADD_NORM_FWD_X], 0, BTCPU_NORM_FWD_ROWS);
    case BT_OP_NORM_BWD:
        return row_bytes(info, &t[BT_NORM_BWD_DY], 2, BTCPU_NORM_BWD_ROWS);
    case BT_OP_ADD_NORM_BWD:
        return row_bytes(info, &t[BT_ADD_NORM_BWD_DY], 3, BTCPU_NORM_BWD_ROWS);
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
