/* Slots of the op table: losses, the best symbols, and what an update does with gradients. */
#include "backends/cuda.h"

/* ---- loss and best symbols ---------------------------------------------------------------------
 */

/* The loss scale of a scalar block; NULL: there is none. */
static const float *loss_scale_of(const bt_view *scalars) {
    const float *s = btcu_floats(scalars);
    return s ? s + BT_SCALAR_LOSS_SCALE : NULL;
}

bt_status btcu_op_cross_entropy(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_CROSS_ENTROPY_LOGITS];
    const bt_cross_entropy_params *p = &call->p.cross_entropy;
    const btcu_cross_entropy a = {
        .logits = BTCU_MAT(BT_CROSS_ENTROPY_LOGITS),
        .bias = BTCU_MAT(BT_CROSS_ENTROPY_BIAS),
        .labels = BTCU_MAT(BT_CROSS_ENTROPY_LABELS),
        .loss = BTCU_MAT(BT_CROSS_ENTROPY_LOSS),
        .loss_scale = loss_scale_of(&call->t[BT_CROSS_ENTROPY_SCALARS]),
        .rows = z->rows,
        .cols = z->cols,
        .smoothing = (float)p->smoothing,
        .grad_scale = (float)p->grad_scale,
        .grad = p->grad,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_cross_entropy_run(&a, s->stream), "cross_entropy");
}

bt_status btcu_op_value_loss(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z];
    const bt_value_loss_params *p = &call->p.value_loss;
    const btcu_value_loss a = {
        .z = BTCU_MAT(BT_VALUE_LOSS_Z),
        .bias = BTCU_MAT(BT_VALUE_LOSS_BIAS),
        .target = BTCU_MAT(BT_VALUE_LOSS_TARGET),
        .loss = BTCU_MAT(BT_VALUE_LOSS_LOSS),
        .loss_scale = loss_scale_of(&call->t[BT_VALUE_LOSS_SCALARS]),
        .rows = z->rows,
        .cols = z->cols,
        .grad_scale = (float)p->grad_scale,
        .kind = (int)p->kind,
        .grad = p->grad,
    };
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_value_loss_run(&a, s->stream), "value_loss");
}

bt_status btcu_op_topk(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *z = &call->t[BT_TOPK_LOGITS];
    btcu_topk a = {
        .logits = BTCU_MAT(BT_TOPK_LOGITS),
        .bias = BTCU_MAT(BT_TOPK_BIAS),
        .value = BTCU_MAT(BT_TOPK_VALUE),
        .id = BTCU_MAT(BT_TOPK_ID),
        .rows = z->rows,
        .cols = z->cols,
        .k = call->t[BT_TOPK_VALUE].cols,
    };
    for (int i = 0; i < BT_TOPK_FORBID; i++) a.forbid[i] = call->p.topk.forbid[i];
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_topk_run(&a, s->stream), "topk");
}

/* ---- optimiser ---------------------------------------------------------------------------------
 */

bt_status btcu_op_sumsq(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_view *x = &call->t[BT_SUMSQ_X];
    BTCU_ENTER(dev, s);
    return btcu_check(
        dev, s, btcu_sumsq(btcu_floats(x), x->cols, BTCU_MAT(BT_SUMSQ_PART), s->stream), "sumsq");
}

bt_status btcu_op_update_scalars(bt_dev *dev, bt_stream *s, const bt_call *call) {
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s,
                      btcu_update_scalars(BTCU_MAT(BT_UPDATE_SCALARS_PART),
                                          call->t[BT_UPDATE_SCALARS_PART].rows,
                                          btcu_floats(&call->t[BT_UPDATE_SCALARS_SCALARS]),
                                          &call->p.update_scalars, s->stream),
                      "update_scalars");
}

static btcu_adamw adamw_of(const bt_adamw_params *p, const bt_view *scalars) {
    return (btcu_adamw){
        .scalars = btcu_floats(scalars),
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

bt_status btcu_op_adamw(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW_SCALARS]);
    a.g = BTCU_MAT(BT_ADAMW_G);
    a.w = BTCU_MAT(BT_ADAMW_W);
    a.m = BTCU_MAT(BT_ADAMW_M);
    a.v = BTCU_MAT(BT_ADAMW_V);
    a.cols = call->t[BT_ADAMW_G].cols;
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw_run(&a, s->stream), "adamw");
}

bt_status btcu_op_adamw_rows(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW_ROWS_SCALARS]);
    a.g = BTCU_MAT(BT_ADAMW_ROWS_G);
    a.index = BTCU_MAT(BT_ADAMW_ROWS_INDEX);
    a.w = BTCU_MAT(BT_ADAMW_ROWS_W);
    a.m = BTCU_MAT(BT_ADAMW_ROWS_M);
    a.v = BTCU_MAT(BT_ADAMW_ROWS_V);
    a.rows = call->t[BT_ADAMW_ROWS_W].rows;
    a.cols = call->t[BT_ADAMW_ROWS_W].cols;
    a.kept = call->t[BT_ADAMW_ROWS_G].rows;
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw_rows(&a, s->stream), "adamw_rows");
}

bt_status btcu_op_adamw8(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_adamw8 a = {
        .a = adamw_of(&call->p.adamw, &call->t[BT_ADAMW8_SCALARS]),
        .m = BTCU_MAT(BT_ADAMW8_M).p,
        .v = BTCU_MAT(BT_ADAMW8_V).p,
        .ms = btcu_floats(&call->t[BT_ADAMW8_MS]),
        .vs = btcu_floats(&call->t[BT_ADAMW8_VS]),
        .n = call->t[BT_ADAMW8_W].cols,
    };
    a.a.g = BTCU_MAT(BT_ADAMW8_G);
    a.a.index = BTCU_MAT(BT_ADAMW8_INDEX);
    a.a.w = BTCU_MAT(BT_ADAMW8_W);
    a.a.cols = call->t[BT_ADAMW8_G].cols;
    a.a.kept = call->t[BT_ADAMW8_G].rows;
    BTCU_ENTER(dev, s);
    return btcu_check(dev, s, btcu_adamw8_run(&a, s->stream), "adamw8");
}
