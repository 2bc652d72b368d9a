/* The op table: each slot packs arguments and enqueues one to four kernels of kernels_cuda/. Those
 * of losses and of the update are in cuda_update.c. */
#include "backends/cuda.h"

/* ---- arguments ---------------------------------------------------------------------------------
 */

static btcu_drop drop_of(const bt_drop *drop) {
    return (btcu_drop){.seed0 = (uint32_t)drop->seed,
                       .seed1 = (uint32_t)(drop->seed >> 32),
                       .update = drop->update,
                       .site = drop->site,
                       .threshold = bti_drop_threshold(drop->p),
                       .keep = (float)(1 / (1 - (double)drop->p)),
                       .on = drop->p > 0};
}

/* Column sums of chunks of rows, `part` in the call's scratch, added up into `out`. Without rows
 * there is no scratch. */
static bt_status add_columns(bt_dev *dev, bt_stream *s, const float *part, int64_t rows,
                             const bt_view *out, double beta) {
    const btcu_colsum a = {
        .part = part,
        .out = btcu_floats(out),
        .chunks = btcu_ceil_div(rows, btcu_chunk_rows(rows, out->cols)),
        .cols = out->cols,
        .add = beta != 0,
    };
    return btcu_check(dev, s, btcu_colsum_run(&a, s->stream), "column sums");
}

static float *scratch(const bt_call *call) {
    return call->ws.buf != NULL ? (float *)(void *)(call->ws.buf->p + call->ws.off) : NULL;
}

/* ---- elementwise -------------------------------------------------------------------------------
 */

bt_status btcu_op_bias_act_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_BIAS_ACT_FWD_X];
    const btcu_bias_act a = {
        .x = BTCU_MAT(BT_BIAS_ACT_FWD_X),
        .bias = BTCU_MAT(BT_BIAS_ACT_FWD_BIAS),
        .rowpos = BTCU_MAT(BT_BIAS_ACT_FWD_ROWPOS),
        .y = BTCU_MAT(BT_BIAS_ACT_FWD_Y),
        .rows = x->rows,
        .cols = x->cols,
        .act = (int)call->p.bias_act.act,
        .type = (int)x->dtype,
        .drop = drop_of(&call->p.bias_act.drop),
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_bias_act_fwd(&a, s->stream), "bias_act_fwd");
}

bt_status btcu_op_bias_act_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_BIAS_ACT_BWD_DY], *dbias = &call->t[BT_BIAS_ACT_BWD_DBIAS];
    btcu_bias_act a = {
        .x = BTCU_MAT(BT_BIAS_ACT_BWD_X),
        .bias = BTCU_MAT(BT_BIAS_ACT_BWD_BIAS),
        .rowpos = BTCU_MAT(BT_BIAS_ACT_BWD_ROWPOS),
        .y = BTCU_MAT(BT_BIAS_ACT_BWD_Y),
        .dy = BTCU_MAT(BT_BIAS_ACT_BWD_DY),
        .dx = BTCU_MAT(BT_BIAS_ACT_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .chunk_rows = btcu_chunk_rows(dy->rows, dy->cols),
        .act = (int)call->p.bias_act.act,
        .type = (int)dy->dtype,
        .drop = drop_of(&call->p.bias_act.drop),
    };
    if (dbias->ld > 0) a.part = (btcu_mat){scratch(call), dy->cols};
    BTCU_ENTER(dev, s);
    bt_status status = btcu_check(dev, s, btcu_bias_act_bwd(&a, s->stream), "bias_act_bwd");
    if (status != BT_OK || dbias->ld == 0) return status;
    return add_columns(dev, s, scratch(call), dy->rows, dbias, call->p.bias_act.beta);
}

bt_status btcu_op_axpby(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_AXPBY_X];
    const btcu_axpby a = {
        .x = BTCU_MAT(BT_AXPBY_X),
        .y = BTCU_MAT(BT_AXPBY_Y),
        .rows = x->rows,
        .cols = x->cols,
        .a = (float)call->p.axpby.a,
        .b = (float)call->p.axpby.b,
        .x_type = (int)x->dtype,
        .y_type = (int)call->t[BT_AXPBY_Y].dtype,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_axpby_run(&a, s->stream), "axpby");
}

bt_status btcu_op_gather(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *y = &call->t[BT_GATHER_Y];
    const btcu_gather a = {
        .x = BTCU_MAT(BT_GATHER_X),
        .index = BTCU_MAT(BT_GATHER_INDEX),
        .y = BTCU_MAT(BT_GATHER_Y),
        .rows = y->rows,
        .cols = y->cols,
        .type = (int)y->dtype,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_gather_run(&a, s->stream), "gather");
}

bt_status btcu_op_gate_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_GATE_FWD_Z];
    const btcu_gate g = {
        .a = BTCU_MAT(BT_GATE_FWD_A),
        .b = BTCU_MAT(BT_GATE_FWD_B),
        .z = BTCU_MAT(BT_GATE_FWD_Z),
        .bias = BTCU_MAT(BT_GATE_FWD_BIAS),
        .y = BTCU_MAT(BT_GATE_FWD_Y),
        .rows = z->rows,
        .cols = z->cols,
        .type = (int)z->dtype,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_gate_fwd(&g, s->stream), "gate_fwd");
}

bt_status btcu_op_gate_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_GATE_BWD_Z];
    const btcu_gate g = {
        .dy = BTCU_MAT(BT_GATE_BWD_DY),
        .a = BTCU_MAT(BT_GATE_BWD_A),
        .b = BTCU_MAT(BT_GATE_BWD_B),
        .z = BTCU_MAT(BT_GATE_BWD_Z),
        .bias = BTCU_MAT(BT_GATE_BWD_BIAS),
        .da = BTCU_MAT(BT_GATE_BWD_DA),
        .db = BTCU_MAT(BT_GATE_BWD_DB),
        .dz = BTCU_MAT(BT_GATE_BWD_DZ),
        .rows = z->rows,
        .cols = z->cols,
        .type = (int)z->dtype,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_gate_bwd(&g, s->stream), "gate_bwd");
}

/* ---- norm --------------------------------------------------------------------------------------
 */

bt_status btcu_op_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_NORM_FWD_X];
    const btcu_norm_fwd a = {
        .x = BTCU_MAT(BT_NORM_FWD_X),
        .gamma = BTCU_MAT(BT_NORM_FWD_GAMMA),
        .beta = BTCU_MAT(BT_NORM_FWD_BETA),
        .y = BTCU_MAT(BT_NORM_FWD_Y),
        .stats = BTCU_MAT(BT_NORM_FWD_STATS),
        .rows = x->rows,
        .cols = x->cols,
        .eps = (float)call->p.norm.eps,
        .type = (int)x->dtype,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_norm_fwd_run(&a, s->stream), "norm_fwd");
}

bt_status btcu_op_add_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_ADD_NORM_FWD_X];
    const btcu_norm_fwd a = {
        .x = BTCU_MAT(BT_ADD_NORM_FWD_X),
        .bias = BTCU_MAT(BT_ADD_NORM_FWD_BIAS),
        .res = BTCU_MAT(BT_ADD_NORM_FWD_RES),
        .rowpos = BTCU_MAT(BT_ADD_NORM_FWD_ROWPOS),
        .gamma = BTCU_MAT(BT_ADD_NORM_FWD_GAMMA),
        .beta = BTCU_MAT(BT_ADD_NORM_FWD_BETA),
        .r = BTCU_MAT(BT_ADD_NORM_FWD_R),
        .y = BTCU_MAT(BT_ADD_NORM_FWD_Y),
        .stats = BTCU_MAT(BT_ADD_NORM_FWD_STATS),
        .rows = x->rows,
        .cols = x->cols,
        .eps = (float)call->p.add_norm.eps,
        .type = (int)x->dtype,
        .drop = drop_of(&call->p.add_norm.drop),
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_norm_fwd_run(&a, s->stream), "add_norm_fwd");
}

/* Parameter gradients first: dr and dx may lie where dy or x are. Frozen ones are absent. */
static bt_status norm_bwd(bt_dev *dev, bt_stream *s, btcu_norm_bwd *a, float *part,
                          const bt_view *dgamma, const bt_view *dbeta, double beta) {
    a->chunk_rows = btcu_chunk_rows(a->rows, a->cols);
    a->part[0] = part;
    a->part[1] = part ? part + btcu_ceil_div(a->rows, a->chunk_rows) * a->cols : NULL;
    bt_status status = BT_OK;
    if (dgamma->ld > 0 || dbeta->ld > 0)
        status = btcu_check(dev, s, btcu_norm_bwd_params(a, s->stream), "norm_bwd");
    if (status == BT_OK && dgamma->ld > 0)
        status = add_columns(dev, s, a->part[0], a->rows, dgamma, beta);
    if (status == BT_OK && dbeta->ld > 0)
        status = add_columns(dev, s, a->part[1], a->rows, dbeta, beta);
    if (status != BT_OK) return status;
    return btcu_check(dev, s, btcu_norm_bwd_run(a, s->stream), "norm_bwd");
}

bt_status btcu_op_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_NORM_BWD_DY];
    btcu_norm_bwd a = {
        .dy = BTCU_MAT(BT_NORM_BWD_DY),
        .x = BTCU_MAT(BT_NORM_BWD_X),
        .stats = BTCU_MAT(BT_NORM_BWD_STATS),
        .gamma = BTCU_MAT(BT_NORM_BWD_GAMMA),
        .dres = BTCU_MAT(BT_NORM_BWD_DRES),
        .dr = BTCU_MAT(BT_NORM_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .type = (int)dy->dtype,
    };
    BTCU_ENTER(dev, s);
    return norm_bwd(dev, s, &a, scratch(call), &call->t[BT_NORM_BWD_DGAMMA],
                    &call->t[BT_NORM_BWD_DBETA], call->p.norm.beta);
}

/* dbias is the column sums of drop(dr), which is dx, or dr where there is no dropout. */
bt_status btcu_op_add_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *dy = &t[BT_ADD_NORM_BWD_DY], *dx = &t[BT_ADD_NORM_BWD_DX];
    const bt_add_norm_params *p = &call->p.add_norm;
    btcu_norm_bwd a = {
        .dy = BTCU_MAT(BT_ADD_NORM_BWD_DY),
        .x = BTCU_MAT(BT_ADD_NORM_BWD_R),
        .stats = BTCU_MAT(BT_ADD_NORM_BWD_STATS),
        .gamma = BTCU_MAT(BT_ADD_NORM_BWD_GAMMA),
        .dres = BTCU_MAT(BT_ADD_NORM_BWD_DRES),
        .rowpos = BTCU_MAT(BT_ADD_NORM_BWD_ROWPOS),
        .dr = BTCU_MAT(BT_ADD_NORM_BWD_DR),
        .dx = BTCU_MAT(BT_ADD_NORM_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .type = (int)dy->dtype,
        .drop = drop_of(&p->drop),
    };
    BTCU_ENTER(dev, s);
    bt_status status = norm_bwd(dev, s, &a, scratch(call), &t[BT_ADD_NORM_BWD_DGAMMA],
                                &t[BT_ADD_NORM_BWD_DBETA], p->beta);
    if (status != BT_OK || t[BT_ADD_NORM_BWD_DBIAS].ld == 0) return status;
    bt_call sums = {.op = BT_OP_BIAS_ACT_BWD, .ws = call->ws};
    sums.t[BT_BIAS_ACT_BWD_DY] = dx->ld > 0 ? *dx : t[BT_ADD_NORM_BWD_DR];
    sums.t[BT_BIAS_ACT_BWD_DBIAS] = t[BT_ADD_NORM_BWD_DBIAS];
    sums.p.bias_act = (bt_bias_act_params){.act = BT_ACT_NONE, .beta = p->beta};
    return btcu_op_bias_act_bwd(dev, s, &sums);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

bt_status btcu_op_attn_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_FWD_Q];
    const bt_attn_params *p = &call->p.attn;
    const btcu_attn a = {
        .q = BTCU_MAT(BT_ATTN_FWD_Q),
        .k = BTCU_MAT(BT_ATTN_FWD_K),
        .v = BTCU_MAT(BT_ATTN_FWD_V),
        .seq = BTCU_MAT(BT_ATTN_FWD_SEQ),
        .kidx = BTCU_MAT(BT_ATTN_FWD_KIDX),
        .o = BTCU_MAT(BT_ATTN_FWD_O),
        .lse = BTCU_MAT(BT_ATTN_FWD_LSE),
        .query_rows = q->rows,
        .sequences = call->t[BT_ATTN_FWD_SEQ].rows,
        .width = q->cols / p->heads,
        .heads = p->heads,
        .causal = p->causal,
        .type = (int)q->dtype,
        .scale = (float)p->scale,
        .drop = drop_of(&p->drop),
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_attn_fwd(&a, s->stream), "attn_fwd");
}

bt_status btcu_op_attn_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_BWD_Q];
    const bt_attn_params *p = &call->p.attn;
    const btcu_attn a = {
        .q = BTCU_MAT(BT_ATTN_BWD_Q),
        .k = BTCU_MAT(BT_ATTN_BWD_K),
        .v = BTCU_MAT(BT_ATTN_BWD_V),
        .seq = BTCU_MAT(BT_ATTN_BWD_SEQ),
        .o = BTCU_MAT(BT_ATTN_BWD_O),
        .lse = BTCU_MAT(BT_ATTN_BWD_LSE),
        .grad = BTCU_MAT(BT_ATTN_BWD_DO),
        .dq = BTCU_MAT(BT_ATTN_BWD_DQ),
        .dk = BTCU_MAT(BT_ATTN_BWD_DK),
        .dv = BTCU_MAT(BT_ATTN_BWD_DV),
        .delta = scratch(call),
        .query_rows = q->rows,
        .key_rows = call->t[BT_ATTN_BWD_K].rows,
        .sequences = call->t[BT_ATTN_BWD_SEQ].rows,
        .width = q->cols / p->heads,
        .heads = p->heads,
        .causal = p->causal,
        .type = (int)q->dtype,
        .scale = (float)p->scale,
        .drop = drop_of(&p->drop),
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_attn_bwd(&a, s->stream), "attn_bwd");
}

/* ---- embedding ---------------------------------------------------------------------------------
 */

bt_status btcu_op_embed_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *y = &call->t[BT_EMBED_FWD_Y];
    const btcu_embed a = {
        .table = BTCU_MAT(BT_EMBED_FWD_TABLE),
        .ids = BTCU_MAT(BT_EMBED_FWD_IDS),
        .rowpos = BTCU_MAT(BT_EMBED_FWD_ROWPOS),
        .postab = BTCU_MAT(BT_EMBED_FWD_POSTAB),
        .y = BTCU_MAT(BT_EMBED_FWD_Y),
        .rows = y->rows,
        .cols = y->cols,
        .scale = (float)call->p.embed.scale,
        .type = (int)y->dtype,
        .drop = drop_of(&call->p.embed.drop),
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_embed_fwd(&a, s->stream), "embed_fwd");
}

/* Rows of ids that do not occur become 0 with beta 0. */
static bt_status zero_table(bt_dev *dev, bt_stream *s, const bt_view *table) {
    const btcu_scale a = {
        .y = btcu_mat_of(table),
        .rows = table->rows,
        .cols = table->cols,
        .batch0 = 1,
        .batch1 = 1,
        .type = (int)table->dtype,
    };
    return btcu_check(dev, s, btcu_scale_run(&a, s->stream), "embed_bwd");
}

bt_status btcu_op_embed_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_EMBED_BWD_DY], *dtable = &call->t[BT_EMBED_BWD_DTABLE];
    const btcu_embed a = {
        .table = BTCU_MAT(BT_EMBED_BWD_DTABLE),
        .rowpos = BTCU_MAT(BT_EMBED_BWD_ROWPOS),
        .dy = BTCU_MAT(BT_EMBED_BWD_DY),
        .order = BTCU_MAT(BT_EMBED_BWD_ORDER),
        .segs = BTCU_MAT(BT_EMBED_BWD_SEGS),
        .cols = dy->cols,
        .segments = call->t[BT_EMBED_BWD_SEGS].rows - 1, /* the last row closes the list */
        .scale = (float)call->p.embed.scale,
        .add = call->p.embed.beta != 0,
        .type = (int)dy->dtype,
        .drop = drop_of(&call->p.embed.drop),
    };
    BTCU_ENTER(dev, s);
    bt_status status = a.add ? BT_OK : zero_table(dev, s, dtable);
    if (status != BT_OK) return status;
    return btcu_check(dev, s, btcu_embed_bwd(&a, s->stream), "embed_bwd");
}

const bt_op_fn btcu_op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = btcu_op_##name,
#include "core/ops/op_list.inc"
};
