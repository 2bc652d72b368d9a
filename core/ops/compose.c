/* Fused ops out of plain ones, for devices that leave the slot empty. Each function here runs the
 * MUST slots of the same device on the same stream; the contract of the op holds, its bits may
 * differ from a fused kernel's. Parts are not counted as calls. */
#include "core/base/num.h"
#include "core/ops/ops.h"

#include "core/base/status.h"

/* Storage of a view of `rows` x `cols` without gaps. */
static uint64_t packed_bytes(const bt_view *like) {
    return (uint64_t)like->rows * (uint64_t)like->cols * bti_dtype_size(like->dtype);
}

/* ---- add_norm_fwd: t = drop(x + bias); r = res + t; y = norm(r) --------------------------------
 */

static bt_call fwd_drop(const bt_call *call, bt_view out) {
    bt_call c = {.op = BT_OP_BIAS_ACT_FWD};
    c.t[BT_BIAS_ACT_FWD_X] = call->t[BT_ADD_NORM_FWD_X];
    c.t[BT_BIAS_ACT_FWD_BIAS] = call->t[BT_ADD_NORM_FWD_BIAS];
    c.t[BT_BIAS_ACT_FWD_ROWPOS] = call->t[BT_ADD_NORM_FWD_ROWPOS];
    c.t[BT_BIAS_ACT_FWD_Y] = out;
    c.p.bias_act.act = BT_ACT_NONE;
    c.p.bias_act.drop = call->p.add_norm.drop;
    return c;
}

static bt_call fwd_add(bt_view x, bt_view y) {
    bt_call c = {.op = BT_OP_AXPBY};
    c.t[BT_AXPBY_X] = x;
    c.t[BT_AXPBY_Y] = y;
    c.p.axpby = (bt_axpby_params){1, 1};
    return c;
}

static bt_call fwd_norm(const bt_call *call) {
    bt_call c = {.op = BT_OP_NORM_FWD};
    c.t[BT_NORM_FWD_X] = call->t[BT_ADD_NORM_FWD_R];
    c.t[BT_NORM_FWD_GAMMA] = call->t[BT_ADD_NORM_FWD_GAMMA];
    c.t[BT_NORM_FWD_BETA] = call->t[BT_ADD_NORM_FWD_BETA];
    c.t[BT_NORM_FWD_Y] = call->t[BT_ADD_NORM_FWD_Y];
    c.t[BT_NORM_FWD_STATS] = call->t[BT_ADD_NORM_FWD_STATS];
    c.p.norm.eps = call->p.add_norm.eps;
    return c;
}

/* ---- add_norm_bwd: dr = norm_bwd(dy) + dres; dx = drop(dr), dbias its column sums ---------------
 */

static bt_call bwd_norm(const bt_call *call) {
    bt_call c = {.op = BT_OP_NORM_BWD};
    c.t[BT_NORM_BWD_DY] = call->t[BT_ADD_NORM_BWD_DY];
    c.t[BT_NORM_BWD_X] = call->t[BT_ADD_NORM_BWD_R];
    c.t[BT_NORM_BWD_STATS] = call->t[BT_ADD_NORM_BWD_STATS];
    c.t[BT_NORM_BWD_GAMMA] = call->t[BT_ADD_NORM_BWD_GAMMA];
    c.t[BT_NORM_BWD_DRES] = call->t[BT_ADD_NORM_BWD_DRES];
    c.t[BT_NORM_BWD_DX] = call->t[BT_ADD_NORM_BWD_DR];
    c.t[BT_NORM_BWD_DGAMMA] = call->t[BT_ADD_NORM_BWD_DGAMMA];
    c.t[BT_NORM_BWD_DBETA] = call->t[BT_ADD_NORM_BWD_DBETA];
    c.p.norm = (bt_norm_params){call->p.add_norm.eps, call->p.add_norm.beta};
    return c;
}

static bt_call bwd_drop(const bt_call *call) {
    bt_call c = {.op = BT_OP_BIAS_ACT_BWD};
    c.t[BT_BIAS_ACT_BWD_DY] = call->t[BT_ADD_NORM_BWD_DR];
    c.t[BT_BIAS_ACT_BWD_ROWPOS] = call->t[BT_ADD_NORM_BWD_ROWPOS];
    c.t[BT_BIAS_ACT_BWD_DX] = call->t[BT_ADD_NORM_BWD_DX];
    c.t[BT_BIAS_ACT_BWD_DBIAS] = call->t[BT_ADD_NORM_BWD_DBIAS];
    c.p.bias_act.act = BT_ACT_NONE;
    c.p.bias_act.drop = call->p.add_norm.drop;
    c.p.bias_act.beta = call->p.add_norm.beta;
    return c;
}

/* ---- scratch ----------------------------------------------------------------------------------
 */

/* The parts of a fused call in order (at most 3), `sum` standing for the forward's sum of branches.
 */
static int parts_of(const bt_call *call, bt_view sum, bt_call part[3]) {
    int n = 0;
    if (call->op == BT_OP_ADD_NORM_FWD) {
        bt_view r = call->t[BT_ADD_NORM_FWD_R];
        part[n++] = fwd_drop(call, sum);
        part[n++] = fwd_add(call->t[BT_ADD_NORM_FWD_RES], r);
        if (bti_view_present(&call->t[BT_ADD_NORM_FWD_GAMMA])) part[n++] = fwd_norm(call);
    } else {
        part[n++] = bwd_norm(call);
        if (bti_view_present(&call->t[BT_ADD_NORM_BWD_DX]) ||
            bti_view_present(&call->t[BT_ADD_NORM_BWD_DBIAS]))
            part[n++] = bwd_drop(call);
    }
    return n;
}

/* Bytes of the forward's own scratch. It holds drop(x + bias) when r takes over the storage of res;
 * whether it will is not known while planning, so it is always asked for. */
static uint64_t own_bytes(const bt_dev_info *info, const bt_call *call) {
    if (call->op != BT_OP_ADD_NORM_FWD) return 0;
    return bti_align_up(packed_bytes(&call->t[BT_ADD_NORM_FWD_X]), info->alignment);
}

uint64_t bti_compose_ws_bytes(const bt_planning *planning, const bt_dev_info *info,
                              const bt_call *call) {
    bt_call part[3];
    uint64_t most = 0;
    int n = parts_of(call, call->t[BT_ADD_NORM_FWD_R], part);
    for (int i = 0; i < n; i++) {
        uint64_t bytes = planning->ws_bytes(info, &part[i]);
        if (bytes > most) most = bytes;
    }
    return own_bytes(info, call) + most;
}

/* The call's scratch from byte `at` on. */
static bt_view ws_tail(const bt_view *ws, uint64_t at) {
    bt_view v = *ws;
    if (v.buf == NULL || (uint64_t)v.cols * sizeof(float) <= at) return (bt_view){0};
    v.off += at;
    v.cols -= (int64_t)(at / sizeof(float));
    v.ld = v.cols;
    return v;
}

static int overlap(const bt_call *call, int i, int j) {
    const bt_view *a = &call->t[i], *b = &call->t[j];
    return a->buf == b->buf && a->off < b->off + bti_op_extent(call, j) &&
           b->off < a->off + bti_op_extent(call, i);
}

bt_status bti_compose_run(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    if (call->op != BT_OP_ADD_NORM_FWD && call->op != BT_OP_ADD_NORM_BWD)
        return bti_fail(BT_EINTERNAL, "op %s has no composed form", bti_op_info(call->op)->name);
    bt_call part[3];
    uint64_t own = own_bytes(&dev->info, call);
    int in_res =
        call->op == BT_OP_ADD_NORM_FWD && overlap(call, BT_ADD_NORM_FWD_R, BT_ADD_NORM_FWD_RES);
    bt_view sum = call->t[BT_ADD_NORM_FWD_R];
    if (in_res) { /* r takes res over: the other branch waits in scratch */
        if (own > 0 && (call->ws.buf == NULL || (uint64_t)call->ws.cols * sizeof(float) < own))
            return bti_fail(BT_EINTERNAL, "op %s: less scratch than was asked for",
                            bti_op_info(call->op)->name);
        sum.buf = call->ws.buf;
        sum.off = call->ws.off;
        sum.ld = sum.cols;
    }
    int n = parts_of(call, sum, part);
    if (in_res) part[1] = fwd_add(sum, call->t[BT_ADD_NORM_FWD_R]);
    for (int i = 0; i < n; i++) {
        part[i].ws = ws_tail(&call->ws, own);
        BT_TRY(dev->op[part[i].op](dev, stream, &part[i]));
    }
    return BT_OK;
}
