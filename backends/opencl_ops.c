/* The op table: each slot packs arguments and enqueues one to four kernels of kernels_cl/. */
#include "backends/opencl.h"

/* ---- elementwise -------------------------------------------------------------------------------
 */

static bt_status op_bias_act_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *x = &t[BT_BIAS_ACT_FWD_X];
    btcl_launch l = btcl_begin_data(dev, BTCL_bias_act_fwd, x->dtype);
    btcl_view(&l, x);
    btcl_view(&l, &t[BT_BIAS_ACT_FWD_BIAS]);
    btcl_view(&l, &t[BT_BIAS_ACT_FWD_ROWPOS]);
    btcl_view(&l, &t[BT_BIAS_ACT_FWD_Y]);
    btcl_i64(&l, x->rows);
    btcl_i64(&l, x->cols);
    btcl_i32(&l, (int32_t)call->p.bias_act.act);
    btcl_drop(&l, &call->p.bias_act.drop);
    return btcl_go_wides(&l, s, x->rows, x->cols);
}

static bt_status op_bias_act_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *dy = &t[BT_BIAS_ACT_BWD_DY], *dbias = &t[BT_BIAS_ACT_BWD_DBIAS];
    const bt_view none = {0}, part = btcl_partial(call, dy->cols);
    const int sums = dbias->ld > 0;
    if (dy->rows > 0) {
        btcl_launch l = btcl_begin_data(dev, BTCL_bias_act_bwd, dy->dtype);
        btcl_view(&l, dy);
        btcl_view(&l, &t[BT_BIAS_ACT_BWD_X]);
        btcl_view(&l, &t[BT_BIAS_ACT_BWD_BIAS]);
        btcl_view(&l, &t[BT_BIAS_ACT_BWD_Y]);
        btcl_view(&l, &t[BT_BIAS_ACT_BWD_ROWPOS]);
        btcl_view(&l, &t[BT_BIAS_ACT_BWD_DX]);
        btcl_view(&l, sums ? &part : &none);
        btcl_i64(&l, dy->rows);
        btcl_i64(&l, dy->cols);
        btcl_i64(&l, btcl_chunk_rows(dy->rows));
        btcl_i32(&l, (int32_t)call->p.bias_act.act);
        btcl_drop(&l, &call->p.bias_act.drop);
        bt_status status = btcl_go(&l, s, btcl_column_groups(&l, dy->rows, dy->cols));
        if (status != BT_OK) return status;
    }
    return sums ? btcl_add_columns(dev, s, &part, 0, dy->rows, dy->cols, dbias, &none,
                                   call->p.bias_act.beta)
                : BT_OK;
}

bt_status btcl_axpby(bt_dev *dev, bt_stream *s, const bt_view *x, const bt_view *y,
                     bt_axpby_params p, bt_dtype round) {
    btcl_launch l = btcl_begin(dev, BTCL_axpby);
    btcl_any(&l, x);
    btcl_any(&l, y);
    btcl_i64(&l, x->rows);
    btcl_i64(&l, x->cols);
    btcl_f32(&l, p.a);
    btcl_f32(&l, p.b);
    btcl_i32(&l, (int32_t)btcl_type_of(round));
    return btcl_go_wides(&l, s, x->rows, x->cols);
}

static bt_status op_axpby(bt_dev *dev, bt_stream *s, const bt_call *call) {
    return btcl_axpby(dev, s, &call->t[BT_AXPBY_X], &call->t[BT_AXPBY_Y], call->p.axpby, BT_F32);
}

static bt_status op_gather(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *y = &call->t[BT_GATHER_Y];
    btcl_launch l = btcl_begin_data(dev, BTCL_gather, y->dtype);
    btcl_view(&l, &call->t[BT_GATHER_X]);
    btcl_view(&l, &call->t[BT_GATHER_INDEX]);
    btcl_view(&l, y);
    btcl_i64(&l, y->rows);
    btcl_i64(&l, y->cols);
    return btcl_go_wides(&l, s, y->rows, y->cols);
}

/* Both directions: all operands, then the size. */
static bt_status gate(bt_dev *dev, bt_stream *s, const bt_call *call, btcl_kernel which, int last) {
    btcl_launch l = btcl_begin_data(dev, which, call->t[last].dtype);
    for (int i = 0; i <= last; i++) btcl_view(&l, &call->t[i]);
    btcl_i64(&l, call->t[0].rows);
    btcl_i64(&l, call->t[0].cols);
    return btcl_go_wides(&l, s, call->t[0].rows, call->t[0].cols);
}

static bt_status op_gate_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    return gate(dev, s, call, BTCL_gate_fwd, BT_GATE_FWD_Y);
}

static bt_status op_gate_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    return gate(dev, s, call, BTCL_gate_bwd, BT_GATE_BWD_DZ);
}

/* ---- norm --------------------------------------------------------------------------------------
 */

static bt_status op_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *x = &t[BT_NORM_FWD_X], none = {0};
    const bt_drop no_drop = {0};
    btcl_launch l = btcl_begin_data(dev, BTCL_norm_fwd, x->dtype);
    btcl_view(&l, x);
    btcl_view(&l, &none);
    btcl_view(&l, &none);
    btcl_view(&l, &none);
    btcl_view(&l, &t[BT_NORM_FWD_GAMMA]);
    btcl_view(&l, &t[BT_NORM_FWD_BETA]);
    btcl_view(&l, &none);
    btcl_view(&l, &t[BT_NORM_FWD_Y]);
    btcl_view(&l, &t[BT_NORM_FWD_STATS]);
    btcl_i64(&l, x->cols);
    btcl_f32(&l, call->p.norm.eps);
    btcl_drop(&l, &no_drop);
    return btcl_go(&l, s, (uint64_t)x->rows);
}

static bt_status op_add_norm_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *x = &t[BT_ADD_NORM_FWD_X];
    btcl_launch l = btcl_begin_data(dev, BTCL_norm_fwd, x->dtype);
    btcl_view(&l, x);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_BIAS]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_RES]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_ROWPOS]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_GAMMA]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_BETA]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_R]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_Y]);
    btcl_view(&l, &t[BT_ADD_NORM_FWD_STATS]);
    btcl_i64(&l, x->cols);
    btcl_f32(&l, call->p.add_norm.eps);
    btcl_drop(&l, &call->p.add_norm.drop);
    return btcl_go(&l, s, (uint64_t)x->rows);
}

/* Views of a norm's backward pass; absent ones have ld 0. */
typedef struct norm_views {
    const bt_view *dy, *x, *stats, *gamma, *dres, *rowpos, *dr, *dx, *dgamma, *dbeta;
} norm_views;

static bt_status norm_bwd_params(bt_dev *dev, bt_stream *s, const norm_views *v,
                                 const bt_view *part, int64_t second) {
    const int64_t rows = v->dy->rows, cols = v->dy->cols;
    btcl_launch l = btcl_begin_data(dev, BTCL_norm_bwd_params, v->dy->dtype);
    btcl_view(&l, v->dy);
    btcl_view(&l, v->x);
    btcl_view(&l, v->stats);
    btcl_view(&l, part);
    btcl_i64(&l, second);
    btcl_i64(&l, rows);
    btcl_i64(&l, cols);
    btcl_i64(&l, btcl_chunk_rows(rows));
    return btcl_go(&l, s, btcl_column_groups(&l, rows, cols));
}

/* Parameter gradients first: dr and dx may lie where dy or x are. A group of one work-item takes a
 * chunk of rows and sums them itself; where groups run side by side, one takes one row. */
static bt_status norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call, const norm_views *v,
                          const bt_drop *drop, double beta) {
    const bt_view none = {0}, part = btcl_partial(call, v->dy->cols);
    const int64_t rows = v->dy->rows, cols = v->dy->cols, chunk = btcl_chunk_rows(rows);
    const int64_t second = btcl_ceil_div(rows, chunk) * cols;
    const int wanted = v->dgamma->ld > 0 || v->dbeta->ld > 0; /* frozen ones are absent */
    bt_status status = btcl_need(dev, btcl_type_of(v->dy->dtype));
    if (status != BT_OK) return status;
    btcl_launch l = btcl_begin_data(dev, BTCL_norm_bwd, v->dy->dtype);
    const int alone = btcl_group_of(&l) == 1;
    if (rows > 0 && wanted && !alone) status = norm_bwd_params(dev, s, v, &part, second);
    btcl_view(&l, v->dy);
    btcl_view(&l, v->x);
    btcl_view(&l, v->stats);
    btcl_view(&l, v->gamma);
    btcl_view(&l, v->dres);
    btcl_view(&l, v->rowpos);
    btcl_view(&l, v->dr);
    btcl_view(&l, v->dx);
    btcl_view(&l, wanted && alone && rows > 0 ? &part : &none);
    btcl_i64(&l, second);
    btcl_i64(&l, rows);
    btcl_i64(&l, cols);
    btcl_i64(&l, alone ? chunk : 1);
    btcl_drop(&l, drop);
    if (status == BT_OK)
        status = btcl_go(&l, s, (uint64_t)(alone ? btcl_ceil_div(rows, chunk) : rows));
    if (status == BT_OK && wanted)
        status = btcl_add_columns(dev, s, &part, second, rows, cols, v->dgamma, v->dbeta, beta);
    return status;
}

static bt_status op_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, none = {0};
    const bt_drop no_drop = {0};
    const norm_views v = {&t[BT_NORM_BWD_DY],     &t[BT_NORM_BWD_X],
                          &t[BT_NORM_BWD_STATS],  &t[BT_NORM_BWD_GAMMA],
                          &t[BT_NORM_BWD_DRES],   &none,
                          &t[BT_NORM_BWD_DX],     &none,
                          &t[BT_NORM_BWD_DGAMMA], &t[BT_NORM_BWD_DBETA]};
    return norm_bwd(dev, s, call, &v, &no_drop, call->p.norm.beta);
}

/* dbias is the column sums of drop(dr), which is dx, or dr where there is no dropout. */
static bt_status op_add_norm_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *dx = &t[BT_ADD_NORM_BWD_DX], *dbias = &t[BT_ADD_NORM_BWD_DBIAS];
    const norm_views v = {&t[BT_ADD_NORM_BWD_DY],     &t[BT_ADD_NORM_BWD_R],
                          &t[BT_ADD_NORM_BWD_STATS],  &t[BT_ADD_NORM_BWD_GAMMA],
                          &t[BT_ADD_NORM_BWD_DRES],   &t[BT_ADD_NORM_BWD_ROWPOS],
                          &t[BT_ADD_NORM_BWD_DR],     dx,
                          &t[BT_ADD_NORM_BWD_DGAMMA], &t[BT_ADD_NORM_BWD_DBETA]};
    const bt_add_norm_params *p = &call->p.add_norm;
    bt_status status = norm_bwd(dev, s, call, &v, &p->drop, p->beta);
    if (status != BT_OK || dbias->ld == 0) return status;
    bt_call sums = {.op = BT_OP_BIAS_ACT_BWD, .ws = call->ws};
    sums.t[BT_BIAS_ACT_BWD_DY] = dx->ld > 0 ? *dx : t[BT_ADD_NORM_BWD_DR];
    sums.t[BT_BIAS_ACT_BWD_DBIAS] = *dbias;
    sums.p.bias_act = (bt_bias_act_params){.act = BT_ACT_NONE, .beta = p->beta};
    return op_bias_act_bwd(dev, s, &sums);
}

/* ---- attention ---------------------------------------------------------------------------------
 */

#define TILE 32 /* queries, or keys, of a tile: kernels_cl/attention.cl */

/* Groups for each sequence and head: as many as a sequence of average length has tiles. */
static int64_t parts_of(int64_t rows, int64_t sequences) {
    const int64_t parts = sequences > 0 ? btcl_ceil_div(rows, sequences * TILE) : 1;
    return parts > 0 ? parts : 1;
}

static void put_attn(btcl_launch *l, const bt_attn_params *p, int64_t cols, int64_t parts) {
    btcl_i32(l, p->heads);
    btcl_i64(l, cols / p->heads);
    btcl_i32(l, p->causal);
    btcl_f32(l, p->scale);
    btcl_i64(l, parts);
    btcl_drop(l, &p->drop);
}

static bt_status op_attn_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *q = &t[BT_ATTN_FWD_Q], *seq = &t[BT_ATTN_FWD_SEQ];
    const int64_t parts = parts_of(q->rows, seq->rows);
    btcl_launch l = btcl_begin_data(dev, BTCL_attn_fwd, q->dtype);
    btcl_view(&l, q);
    btcl_view(&l, &t[BT_ATTN_FWD_K]);
    btcl_view(&l, &t[BT_ATTN_FWD_V]);
    btcl_view(&l, seq);
    btcl_view(&l, &t[BT_ATTN_FWD_KIDX]);
    btcl_view(&l, &t[BT_ATTN_FWD_O]);
    btcl_view(&l, &t[BT_ATTN_FWD_LSE]);
    put_attn(&l, &call->p.attn, q->cols, parts);
    return btcl_go(&l, s, (uint64_t)(seq->rows * call->p.attn.heads * parts));
}

static bt_status attn_delta(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *o = &call->t[BT_ATTN_BWD_O];
    const int64_t heads = call->p.attn.heads;
    btcl_launch l = btcl_begin_data(dev, BTCL_attn_delta, o->dtype);
    btcl_view(&l, o);
    btcl_view(&l, &call->t[BT_ATTN_BWD_DO]);
    btcl_base(&l, &call->ws);
    btcl_i64(&l, o->rows);
    btcl_i32(&l, (int32_t)heads);
    btcl_i64(&l, o->cols / heads);
    const int64_t group = l.status == BT_OK && l.dev->board->wide == 4 ? btcl_group_of(&l) : 1;
    return btcl_go(&l, s, btcl_groups_of(&l, o->rows * heads * (group < 8 ? group : 8)));
}

static void put_bwd(btcl_launch *l, const bt_call *call) {
    const bt_view *t = call->t;
    btcl_view(l, &t[BT_ATTN_BWD_Q]);
    btcl_view(l, &t[BT_ATTN_BWD_K]);
    btcl_view(l, &t[BT_ATTN_BWD_V]);
    btcl_view(l, &t[BT_ATTN_BWD_SEQ]);
    btcl_view(l, &t[BT_ATTN_BWD_LSE]);
    btcl_view(l, &t[BT_ATTN_BWD_DO]);
    btcl_base(l, &call->ws);
}

static bt_status op_attn_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *q = &t[BT_ATTN_BWD_Q], *k = &t[BT_ATTN_BWD_K];
    const bt_attn_params *p = &call->p.attn;
    const int64_t sequences = t[BT_ATTN_BWD_SEQ].rows;
    bt_status status = attn_delta(dev, s, call);
    if (status != BT_OK) return status;
    int64_t parts = parts_of(q->rows, sequences);
    btcl_launch l = btcl_begin_data(dev, BTCL_attn_bwd_q, q->dtype);
    put_bwd(&l, call);
    btcl_view(&l, &t[BT_ATTN_BWD_DQ]);
    put_attn(&l, p, q->cols, parts);
    status = btcl_go(&l, s, (uint64_t)(sequences * p->heads * parts));
    if (status != BT_OK) return status;
    parts = parts_of(k->rows, sequences);
    l = btcl_begin_data(dev, BTCL_attn_bwd_kv, q->dtype);
    put_bwd(&l, call);
    btcl_view(&l, &t[BT_ATTN_BWD_DK]);
    btcl_view(&l, &t[BT_ATTN_BWD_DV]);
    put_attn(&l, p, q->cols, parts);
    return btcl_go(&l, s, (uint64_t)(sequences * p->heads * parts));
}

/* ---- embedding ---------------------------------------------------------------------------------
 */

static bt_status op_embed_fwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *y = &t[BT_EMBED_FWD_Y];
    btcl_launch l = btcl_begin_data(dev, BTCL_embed_fwd, y->dtype);
    btcl_view(&l, &t[BT_EMBED_FWD_TABLE]);
    btcl_view(&l, &t[BT_EMBED_FWD_IDS]);
    btcl_view(&l, &t[BT_EMBED_FWD_ROWPOS]);
    btcl_view(&l, &t[BT_EMBED_FWD_POSTAB]);
    btcl_view(&l, y);
    btcl_i64(&l, y->rows);
    btcl_i64(&l, y->cols);
    btcl_f32(&l, call->p.embed.scale);
    btcl_drop(&l, &call->p.embed.drop);
    return btcl_go_wides(&l, s, y->rows, y->cols);
}

static bt_status op_embed_bwd(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *dtable = &t[BT_EMBED_BWD_DTABLE], *segs = &t[BT_EMBED_BWD_SEGS];
    if (call->p.embed.beta == 0) { /* rows of ids that do not occur become 0 */
        btcl_launch l = btcl_begin(dev, BTCL_zero);
        btcl_view(&l, dtable);
        btcl_i64(&l, dtable->rows);
        btcl_i64(&l, dtable->cols);
        bt_status status = btcl_go_wides(&l, s, dtable->rows, dtable->cols);
        if (status != BT_OK) return status;
    }
    btcl_launch l = btcl_begin_data(dev, BTCL_embed_bwd, t[BT_EMBED_BWD_DY].dtype);
    btcl_view(&l, &t[BT_EMBED_BWD_DY]);
    btcl_view(&l, &t[BT_EMBED_BWD_ROWPOS]);
    btcl_view(&l, &t[BT_EMBED_BWD_ORDER]);
    btcl_view(&l, segs);
    btcl_view(&l, dtable);
    btcl_i64(&l, dtable->cols);
    btcl_f32(&l, call->p.embed.scale);
    btcl_i32(&l, call->p.embed.beta != 0);
    btcl_drop(&l, &call->p.embed.drop);
    return btcl_go(&l, s, (uint64_t)(segs->rows - 1)); /* the last row closes the list */
}

/* ---- loss and best symbols ---------------------------------------------------------------------
 */

static bt_status op_cross_entropy(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *z = &t[BT_CROSS_ENTROPY_LOGITS];
    const bt_cross_entropy_params *p = &call->p.cross_entropy;
    btcl_launch l = btcl_begin(dev, BTCL_cross_entropy);
    btcl_view(&l, z);
    btcl_view(&l, &t[BT_CROSS_ENTROPY_BIAS]);
    btcl_view(&l, &t[BT_CROSS_ENTROPY_LABELS]);
    btcl_view(&l, &t[BT_CROSS_ENTROPY_SCALARS]);
    btcl_view(&l, &t[BT_CROSS_ENTROPY_LOSS]);
    btcl_i64(&l, z->cols);
    btcl_f32(&l, p->smoothing);
    btcl_f32(&l, p->grad_scale);
    btcl_i32(&l, p->grad);
    return btcl_go(&l, s, (uint64_t)z->rows);
}

static bt_status op_value_loss(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z];
    const bt_value_loss_params *p = &call->p.value_loss;
    btcl_launch l = btcl_begin(dev, BTCL_value_loss);
    for (int i = BT_VALUE_LOSS_Z; i <= BT_VALUE_LOSS_LOSS; i++) btcl_view(&l, &call->t[i]);
    btcl_i64(&l, z->cols);
    btcl_i32(&l, p->kind == BT_VALUES_BINARY);
    btcl_f32(&l, p->grad_scale);
    btcl_i32(&l, p->grad);
    return btcl_go(&l, s, (uint64_t)z->rows);
}

static bt_status op_topk(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *z = &t[BT_TOPK_LOGITS];
    btcl_launch l = btcl_begin(dev, BTCL_topk);
    btcl_view(&l, z);
    btcl_view(&l, &t[BT_TOPK_BIAS]);
    btcl_view(&l, &t[BT_TOPK_VALUE]);
    btcl_view(&l, &t[BT_TOPK_ID]);
    btcl_i64(&l, z->cols);
    btcl_i64(&l, t[BT_TOPK_VALUE].cols);
    btcl_arg(&l, sizeof call->p.topk.forbid, call->p.topk.forbid);
    return btcl_go(&l, s, (uint64_t)z->rows);
}

/* ---- optimiser ---------------------------------------------------------------------------------
 */

static bt_status op_sumsq(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_SUMSQ_X], *part = &call->t[BT_SUMSQ_PART];
    btcl_launch l = btcl_begin(dev, BTCL_sumsq);
    btcl_base(&l, x);
    btcl_i64(&l, x->cols);
    btcl_view(&l, part);
    return btcl_go(&l, s, (uint64_t)part->rows);
}

static bt_status op_update_scalars(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *part = &call->t[BT_UPDATE_SCALARS_PART];
    btcl_launch l = btcl_begin(dev, BTCL_update_scalars);
    btcl_view(&l, part);
    btcl_i64(&l, part->rows);
    btcl_base(&l, &call->t[BT_UPDATE_SCALARS_SCALARS]);
    btcl_i32(&l, call->p.update_scalars.growth_interval);
    btcl_f32(&l, (double)call->p.update_scalars.scale_max);
    return btcl_go(&l, s, 1);
}

static void put_adamw(btcl_launch *l, const bt_adamw_params *p) {
    btcl_f32(l, p->beta1);
    btcl_f32(l, 1 - p->beta1);
    btcl_f32(l, p->beta2);
    btcl_f32(l, 1 - p->beta2);
    btcl_f32(l, p->eps);
    btcl_f32(l, p->weight_decay);
    btcl_i32(l, p->decoupled);
}

static bt_status op_adamw(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const int64_t n = call->t[BT_ADAMW_G].cols;
    btcl_launch l = btcl_begin(dev, BTCL_adamw);
    for (int i = BT_ADAMW_G; i <= BT_ADAMW_V; i++) btcl_base(&l, &call->t[i]);
    btcl_i64(&l, n);
    put_adamw(&l, &call->p.adamw);
    return btcl_go_wides(&l, s, 1, n);
}

static bt_status op_adamw_rows(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *w = &t[BT_ADAMW_ROWS_W], *g = &t[BT_ADAMW_ROWS_G];
    btcl_launch l = btcl_begin(dev, BTCL_adamw_rows);
    btcl_view(&l, g);
    btcl_view(&l, &t[BT_ADAMW_ROWS_INDEX]);
    btcl_base(&l, &t[BT_ADAMW_ROWS_SCALARS]);
    btcl_view(&l, w);
    btcl_view(&l, &t[BT_ADAMW_ROWS_M]);
    btcl_view(&l, &t[BT_ADAMW_ROWS_V]);
    btcl_i64(&l, w->cols);
    btcl_i64(&l, g->rows);
    btcl_i64(&l, call->p.adamw.first_row);
    put_adamw(&l, &call->p.adamw);
    return btcl_go(&l, s, (uint64_t)w->rows);
}

static bt_status op_adamw8(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *t = call->t, *g = &t[BT_ADAMW8_G];
    btcl_launch l = btcl_begin(dev, BTCL_adamw8);
    btcl_view(&l, g);
    btcl_view(&l, &t[BT_ADAMW8_INDEX]);
    for (int i = BT_ADAMW8_SCALARS; i <= BT_ADAMW8_VS; i++) btcl_base(&l, &t[i]);
    btcl_i64(&l, t[BT_ADAMW8_W].cols);
    btcl_i64(&l, g->cols);
    btcl_i64(&l, t[BT_ADAMW8_INDEX].rows);
    btcl_i64(&l, call->p.adamw.first_row);
    put_adamw(&l, &call->p.adamw);
    return btcl_go(&l, s, (uint64_t)t[BT_ADAMW8_MS].cols);
}

#define op_gemm btcl_op_gemm
const bt_op_fn btcl_op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = op_##name,
#include "core/ops/op_list.inc"
};
