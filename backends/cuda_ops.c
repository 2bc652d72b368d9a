/* The op table: each slot packs arguments and enqueues one to four kernels of kernels_cuda/. */
#include "backends/cuda.h"

/* ---- arguments ---------------------------------------------------------------------------------
 */

btcu_mat btcu_mat_of(const bt_view *v) {
    return v->ld > 0 ? (btcu_mat){v->buf->p + v->off, v->ld} : (btcu_mat){NULL, 0};
}

static float *floats(const bt_view *v) { return btcu_mat_of(v).p; }

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
        .out = floats(out),
        .chunks = btcu_ceil_div(rows, btcu_chunk_rows(rows, out->cols)),
        .cols = out->cols,
        .add = beta != 0,
    };
    return btcu_check(dev, s, btcu_colsum_run(&a, s->stream), "column sums");
}

static float *scratch(const bt_call *call) {
    return call->ws.buf != NULL ? (float *)(void *)(call->ws.buf->p + call->ws.off) : NULL;
}

#define MAT(i) btcu_mat_of(&call->t[i])
#define ENTER(dev, s) \
    do { \
        const bt_status entered_ = btcu_enter(dev, &(s)); \
        if (entered_ != BT_OK) return entered_; \
    } while (0)

/* ---- elementwise -------------------------------------------------------------------------------
 */

static bt_status op_bias_act_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_BIAS_ACT_FWD_X];
    const btcu_bias_act a = {
        .x = MAT(BT_BIAS_ACT_FWD_X),
        .bias = MAT(BT_BIAS_ACT_FWD_BIAS),
        .rowpos = MAT(BT_BIAS_ACT_FWD_ROWPOS),
        .y = MAT(BT_BIAS_ACT_FWD_Y),
        .rows = x->rows,
        .cols = x->cols,
        .act = (int)call->p.bias_act.act,
        .type = (int)x->dtype,
        .drop = drop_of(&call->p.bias_act.drop),
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_bias_act_fwd(&a, s->stream), "bias_act_fwd");
}

static bt_status op_bias_act_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_BIAS_ACT_BWD_DY], *dbias = &call->t[BT_BIAS_ACT_BWD_DBIAS];
    btcu_bias_act a = {
        .x = MAT(BT_BIAS_ACT_BWD_X),
        .bias = MAT(BT_BIAS_ACT_BWD_BIAS),
        .rowpos = MAT(BT_BIAS_ACT_BWD_ROWPOS),
        .y = MAT(BT_BIAS_ACT_BWD_Y),
        .dy = MAT(BT_BIAS_ACT_BWD_DY),
        .dx = MAT(BT_BIAS_ACT_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .chunk_rows = btcu_chunk_rows(dy->rows, dy->cols),
        .act = (int)call->p.bias_act.act,
        .type = (int)dy->dtype,
        .drop = drop_of(&call->p.bias_act.drop),
    };
    if (dbias->ld > 0) a.part = (btcu_mat){scratch(call), dy->cols};
    ENTER(dev, s);
    bt_status status = btcu_check(dev, s, btcu_bias_act_bwd(&a, s->stream), "bias_act_bwd");
    if (status != BT_OK || dbias->ld == 0) return status;
    return add_columns(dev, s, scratch(call), dy->rows, dbias, call->p.bias_act.beta);
}

static bt_status op_axpby(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_AXPBY_X];
    const btcu_axpby a = {
        .x = MAT(BT_AXPBY_X),
        .y = MAT(BT_AXPBY_Y),
        .rows = x->rows,
        .cols = x->cols,
        .a = (float)call->p.axpby.a,
        .b = (float)call->p.axpby.b,
        .x_type = (int)x->dtype,
        .y_type = (int)call->t[BT_AXPBY_Y].dtype,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_axpby_run(&a, s->stream), "axpby");
}

static bt_status op_gather(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *y = &call->t[BT_GATHER_Y];
    const btcu_gather a = {
        .x = MAT(BT_GATHER_X),
        .index = MAT(BT_GATHER_INDEX),
        .y = MAT(BT_GATHER_Y),
        .rows = y->rows,
        .cols = y->cols,
        .type = (int)y->dtype,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_gather_run(&a, s->stream), "gather");
}

static bt_status op_gate_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_GATE_FWD_Z];
    const btcu_gate g = {
        .a = MAT(BT_GATE_FWD_A),
        .b = MAT(BT_GATE_FWD_B),
        .z = MAT(BT_GATE_FWD_Z),
        .bias = MAT(BT_GATE_FWD_BIAS),
        .y = MAT(BT_GATE_FWD_Y),
        .rows = z->rows,
        .cols = z->cols,
        .type = (int)z->dtype,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_gate_fwd(&g, s->stream), "gate_fwd");
}

static bt_status op_gate_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_GATE_BWD_Z];
    const btcu_gate g = {
        .dy = MAT(BT_GATE_BWD_DY),
        .a = MAT(BT_GATE_BWD_A),
        .b = MAT(BT_GATE_BWD_B),
        .z = MAT(BT_GATE_BWD_Z),
        .bias = MAT(BT_GATE_BWD_BIAS),
        .da = MAT(BT_GATE_BWD_DA),
        .db = MAT(BT_GATE_BWD_DB),
        .dz = MAT(BT_GATE_BWD_DZ),
        .rows = z->rows,
        .cols = z->cols,
        .type = (int)z->dtype,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_gate_bwd(&g, s->stream), "gate_bwd");
}

/* ---- norm --------------------------------------------------------------------------------------
 */

static bt_status op_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_NORM_FWD_X];
    const btcu_norm_fwd a = {
        .x = MAT(BT_NORM_FWD_X),
        .gamma = MAT(BT_NORM_FWD_GAMMA),
        .beta = MAT(BT_NORM_FWD_BETA),
        .y = MAT(BT_NORM_FWD_Y),
        .stats = MAT(BT_NORM_FWD_STATS),
        .rows = x->rows,
        .cols = x->cols,
        .eps = (float)call->p.norm.eps,
        .type = (int)x->dtype,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_norm_fwd_run(&a, s->stream), "norm_fwd");
}

static bt_status op_add_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_ADD_NORM_FWD_X];
    const btcu_norm_fwd a = {
        .x = MAT(BT_ADD_NORM_FWD_X),
        .bias = MAT(BT_ADD_NORM_FWD_BIAS),
        .res = MAT(BT_ADD_NORM_FWD_RES),
        .rowpos = MAT(BT_ADD_NORM_FWD_ROWPOS),
        .gamma = MAT(BT_ADD_NORM_FWD_GAMMA),
        .beta = MAT(BT_ADD_NORM_FWD_BETA),
        .r = MAT(BT_ADD_NORM_FWD_R),
        .y = MAT(BT_ADD_NORM_FWD_Y),
        .stats = MAT(BT_ADD_NORM_FWD_STATS),
        .rows = x->rows,
        .cols = x->cols,
        .eps = (float)call->p.add_norm.eps,
        .type = (int)x->dtype,
        .drop = drop_of(&call->p.add_norm.drop),
    };
    ENTER(dev, s);
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

static bt_status op_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_NORM_BWD_DY];
    btcu_norm_bwd a = {
        .dy = MAT(BT_NORM_BWD_DY),
        .x = MAT(BT_NORM_BWD_X),
        .stats = MAT(BT_NORM_BWD_STATS),
        .gamma = MAT(BT_NORM_BWD_GAMMA),
        .dres = MAT(BT_NORM_BWD_DRES),
        .dr = MAT(BT_NORM_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .type = (int)dy->dtype,
    };
    ENTER(dev, s);
    return norm_bwd(dev, s, &a, scratch(call), &call->t[BT_NORM_BWD_DGAMMA],
                    &call->t[BT_NORM_BWD_DBETA], call->p.norm.beta);
}

/* dbias is the column sums of drop(dr), which is dx, or dr where there is no dropout. */
static bt_status op_add_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *dy = &t[BT_ADD_NORM_BWD_DY], *dx = &t[BT_ADD_NORM_BWD_DX];
    const bt_add_norm_params *p = &call->p.add_norm;
    btcu_norm_bwd a = {
        .dy = MAT(BT_ADD_NORM_BWD_DY),
        .x = MAT(BT_ADD_NORM_BWD_R),
        .stats = MAT(BT_ADD_NORM_BWD_STATS),
        .gamma = MAT(BT_ADD_NORM_BWD_GAMMA),
        .dres = MAT(BT_ADD_NORM_BWD_DRES),
        .rowpos = MAT(BT_ADD_NORM_BWD_ROWPOS),
        .dr = MAT(BT_ADD_NORM_BWD_DR),
        .dx = MAT(BT_ADD_NORM_BWD_DX),
        .rows = dy->rows,
        .cols = dy->cols,
        .type = (int)dy->dtype,
        .drop = drop_of(&p->drop),
    };
    ENTER(dev, s);
    bt_status status = norm_bwd(dev, s, &a, scratch(call), &t[BT_ADD_NORM_BWD_DGAMMA],
                                &t[BT_ADD_NORM_BWD_DBETA], p->beta);
    if (status != BT_OK || t[BT_ADD_NORM_BWD_DBIAS].ld == 0) return status;
    bt_call sums = {.op = BT_OP_BIAS_ACT_BWD, .ws = call->ws};
    sums.t[BT_BIAS_ACT_BWD_DY] = dx->ld > 0 ? *dx : t[BT_ADD_NORM_BWD_DR];
    sums.t[BT_BIAS_ACT_BWD_DBIAS] = t[BT_ADD_NORM_BWD_DBIAS];
    sums.p.bias_act = (bt_bias_act_params){.act = BT_ACT_NONE, .beta = p->beta};
    return op_bias_act_bwd(dev, s, &sums);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

static bt_status op_attn_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_FWD_Q];
    const bt_attn_params *p = &call->p.attn;
    const btcu_attn a = {
        .q = MAT(BT_ATTN_FWD_Q),
        .k = MAT(BT_ATTN_FWD_K),
        .v = MAT(BT_ATTN_FWD_V),
        .seq = MAT(BT_ATTN_FWD_SEQ),
        .kidx = MAT(BT_ATTN_FWD_KIDX),
        .o = MAT(BT_ATTN_FWD_O),
        .lse = MAT(BT_ATTN_FWD_LSE),
        .query_rows = q->rows,
        .sequences = call->t[BT_ATTN_FWD_SEQ].rows,
        .width = q->cols / p->heads,
        .heads = p->heads,
        .causal = p->causal,
        .type = (int)q->dtype,
        .scale = (float)p->scale,
        .drop = drop_of(&p->drop),
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_attn_fwd(&a, s->stream), "attn_fwd");
}

static bt_status op_attn_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_BWD_Q];
    const bt_attn_params *p = &call->p.attn;
    const btcu_attn a = {
        .q = MAT(BT_ATTN_BWD_Q),
        .k = MAT(BT_ATTN_BWD_K),
        .v = MAT(BT_ATTN_BWD_V),
        .seq = MAT(BT_ATTN_BWD_SEQ),
        .o = MAT(BT_ATTN_BWD_O),
        .lse = MAT(BT_ATTN_BWD_LSE),
        .grad = MAT(BT_ATTN_BWD_DO),
        .dq = MAT(BT_ATTN_BWD_DQ),
        .dk = MAT(BT_ATTN_BWD_DK),
        .dv = MAT(BT_ATTN_BWD_DV),
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
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_attn_bwd(&a, s->stream), "attn_bwd");
}

/* ---- embedding ---------------------------------------------------------------------------------
 */

static bt_status op_embed_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *y = &call->t[BT_EMBED_FWD_Y];
    const btcu_embed a = {
        .table = MAT(BT_EMBED_FWD_TABLE),
        .ids = MAT(BT_EMBED_FWD_IDS),
        .rowpos = MAT(BT_EMBED_FWD_ROWPOS),
        .postab = MAT(BT_EMBED_FWD_POSTAB),
        .y = MAT(BT_EMBED_FWD_Y),
        .rows = y->rows,
        .cols = y->cols,
        .scale = (float)call->p.embed.scale,
        .type = (int)y->dtype,
        .drop = drop_of(&call->p.embed.drop),
    };
    ENTER(dev, s);
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

static bt_status op_embed_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *dy = &call->t[BT_EMBED_BWD_DY], *dtable = &call->t[BT_EMBED_BWD_DTABLE];
    const btcu_embed a = {
        .table = MAT(BT_EMBED_BWD_DTABLE),
        .rowpos = MAT(BT_EMBED_BWD_ROWPOS),
        .dy = MAT(BT_EMBED_BWD_DY),
        .order = MAT(BT_EMBED_BWD_ORDER),
        .segs = MAT(BT_EMBED_BWD_SEGS),
        .cols = dy->cols,
        .segments = call->t[BT_EMBED_BWD_SEGS].rows - 1, /* the last row closes the list */
        .scale = (float)call->p.embed.scale,
        .add = call->p.embed.beta != 0,
        .type = (int)dy->dtype,
        .drop = drop_of(&call->p.embed.drop),
    };
    ENTER(dev, s);
    bt_status status = a.add ? BT_OK : zero_table(dev, s, dtable);
    if (status != BT_OK) return status;
    return btcu_check(dev, s, btcu_embed_bwd(&a, s->stream), "embed_bwd");
}

/* ---- loss and best symbols ---------------------------------------------------------------------
 */

/* The loss scale of a scalar block; NULL: there is none. */
static const float *loss_scale_of(const bt_view *scalars) {
    const float *s = floats(scalars);
    return s ? s + BT_SCALAR_LOSS_SCALE : NULL;
}

static bt_status op_cross_entropy(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_CROSS_ENTROPY_LOGITS];
    const bt_cross_entropy_params *p = &call->p.cross_entropy;
    const btcu_cross_entropy a = {
        .logits = MAT(BT_CROSS_ENTROPY_LOGITS),
        .bias = MAT(BT_CROSS_ENTROPY_BIAS),
        .labels = MAT(BT_CROSS_ENTROPY_LABELS),
        .loss = MAT(BT_CROSS_ENTROPY_LOSS),
        .loss_scale = loss_scale_of(&call->t[BT_CROSS_ENTROPY_SCALARS]),
        .rows = z->rows,
        .cols = z->cols,
        .smoothing = (float)p->smoothing,
        .grad_scale = (float)p->grad_scale,
        .grad = p->grad,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_cross_entropy_run(&a, s->stream), "cross_entropy");
}

static bt_status op_value_loss(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z];
    const bt_value_loss_params *p = &call->p.value_loss;
    const btcu_value_loss a = {
        .z = MAT(BT_VALUE_LOSS_Z),
        .bias = MAT(BT_VALUE_LOSS_BIAS),
        .target = MAT(BT_VALUE_LOSS_TARGET),
        .loss = MAT(BT_VALUE_LOSS_LOSS),
        .loss_scale = loss_scale_of(&call->t[BT_VALUE_LOSS_SCALARS]),
        .rows = z->rows,
        .cols = z->cols,
        .grad_scale = (float)p->grad_scale,
        .kind = (int)p->kind,
        .grad = p->grad,
    };
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_value_loss_run(&a, s->stream), "value_loss");
}

static bt_status op_topk(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_TOPK_LOGITS];
    btcu_topk a = {
        .logits = MAT(BT_TOPK_LOGITS),
        .bias = MAT(BT_TOPK_BIAS),
        .value = MAT(BT_TOPK_VALUE),
        .id = MAT(BT_TOPK_ID),
        .rows = z->rows,
        .cols = z->cols,
        .k = call->t[BT_TOPK_VALUE].cols,
    };
    for (int i = 0; i < BT_TOPK_FORBID; i++) a.forbid[i] = call->p.topk.forbid[i];
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_topk_run(&a, s->stream), "topk");
}

/* ---- optimiser ---------------------------------------------------------------------------------
 */

static bt_status op_sumsq(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_SUMSQ_X];
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_sumsq(floats(x), x->cols, MAT(BT_SUMSQ_PART), s->stream),
                      "sumsq");
}

static bt_status op_update_scalars(bt_dev *dev, bt_stream *s, const bt_call *call) {
    ENTER(dev, s);
    return btcu_check(dev, s,
                      btcu_update_scalars(MAT(BT_UPDATE_SCALARS_PART),
                                          call->t[BT_UPDATE_SCALARS_PART].rows,
                                          floats(&call->t[BT_UPDATE_SCALARS_SCALARS]),
                                          &call->p.update_scalars, s->stream),
                      "update_scalars");
}

static btcu_adamw adamw_of(const bt_adamw_params *p, const bt_view *scalars) {
    return (btcu_adamw){
        .scalars = floats(scalars),
        .beta1 = (float)p->beta1,
        .rest1 = (float)(1 - p->beta1),
        .beta2 = (float)p->beta2,
        .rest2 = (float)(1 - p->beta2),
        .eps = (float)p->eps,
        .decay = (float)p->weight_decay,
        .decoupled = p->decoupled,
        .first_row = p->first_row,
    };
}

static bt_status op_adamw(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW_SCALARS]);
    a.g = MAT(BT_ADAMW_G);
    a.w = MAT(BT_ADAMW_W);
    a.m = MAT(BT_ADAMW_M);
    a.v = MAT(BT_ADAMW_V);
    a.cols = call->t[BT_ADAMW_G].cols;
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw_run(&a, s->stream), "adamw");
}

static bt_status op_adamw_rows(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW_ROWS_SCALARS]);
    a.g = MAT(BT_ADAMW_ROWS_G);
    a.index = MAT(BT_ADAMW_ROWS_INDEX);
    a.w = MAT(BT_ADAMW_ROWS_W);
    a.m = MAT(BT_ADAMW_ROWS_M);
    a.v = MAT(BT_ADAMW_ROWS_V);
    a.rows = call->t[BT_ADAMW_ROWS_W].rows;
    a.cols = call->t[BT_ADAMW_ROWS_W].cols;
    a.kept = call->t[BT_ADAMW_ROWS_G].rows;
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw_rows(&a, s->stream), "adamw_rows");
}

static bt_status op_adamw8(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw8 a = {
        .a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW8_SCALARS]),
        .m = MAT(BT_ADAMW8_M).p,
        .v = MAT(BT_ADAMW8_V).p,
        .ms = floats(&call->t[BT_ADAMW8_MS]),
        .vs = floats(&call->t[BT_ADAMW8_VS]),
        .n = call->t[BT_ADAMW8_W].cols,
    };
    a.a.g = MAT(BT_ADAMW8_G);
    a.a.index = MAT(BT_ADAMW8_INDEX);
    a.a.w = MAT(BT_ADAMW8_W);
    a.a.cols = call->t[BT_ADAMW8_G].cols;
    a.a.kept = call->t[BT_ADAMW8_G].rows;
    ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw8_run(&a, s->stream), "adamw8");
}

#define op_gemm btcu_op_gemm
const bt_op_fn btcu_op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = op_##name,
#include "core/ops/op_list.inc"
};
