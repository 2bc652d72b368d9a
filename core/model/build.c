/* What the files that emit the model share: tensors, products, places of parameters. */
#include "core/model/build.h"

bt_drop bti_drop_at(const bti_build *b, double p, int32_t site) {
    if (!b->step->training) p = 0;
    return (bt_drop){
        .seed = b->step->seed, .update = b->step->update, .site = (uint32_t)site, .p = (float)p};
}

bti_tid bti_activation_new(bti_build *b, const char *name, int32_t layer, bti_class cls,
                           int64_t rows, int64_t cols) {
    return bti_tensor_new(b->p, name, layer, BTI_KIND_ACTIVATION, cls, b->dtype, rows, cols);
}

static void gemm(bti_build *b, bti_ref a, int trans_a, bti_ref w, int trans_b, bti_ref c,
                 double beta) {
    bti_emit(b->p, BT_OP_GEMM, BTI_OPERANDS([BT_GEMM_A] = a, [BT_GEMM_B] = w, [BT_GEMM_C] = c),
             &(bt_op_params){.gemm = {.trans_a = (uint8_t)trans_a,
                                      .trans_b = (uint8_t)trans_b,
                                      .stable_rows = b->stable_rows,
                                      .tf32 = b->tf32,
                                      .round = b->round,
                                      .alpha = 1,
                                      .beta = beta}},
             0);
}

void bti_linear_into(bti_build *b, bti_ref x, bti_ref w, bti_ref y) {
    bti_linear_add(b, x, w, y, 0);
}

void bti_linear_add(bti_build *b, bti_ref x, bti_ref w, bti_ref y, double beta) {
    if (b->row_tile == 0) {
        gemm(b, x, 0, w, 1, y, beta);
        return;
    }
    bti_loop_begin(b->p);
    for (int64_t at = 0; at < x.rows; at += b->row_tile) {
        gemm(b, bti_rows(x, at, b->row_tile), 0, w, 1, bti_rows(y, at, b->row_tile), beta);
        bti_loop_next(b->p);
    }
    bti_loop_end(b->p);
}

bti_tid bti_linear(bti_build *b, bti_ref x, bti_ref w, const char *name, int32_t layer,
                   bti_class cls) {
    bti_tid y = bti_activation_new(b, name, layer, cls, x.rows, w.rows);
    bti_linear_into(b, x, w, bti_all(b->p, y));
    return y;
}

void bti_linear_dw(bti_build *b, bti_ref dy, bti_ref x, bti_ref dw, double beta) {
    if (dw.id != 0) gemm(b, dy, 1, x, 0, dw, beta);
}

void bti_linear_dx(bti_build *b, bti_ref dy, bti_ref w, bti_ref dx, double beta) {
    gemm(b, dy, 0, w, 0, dx, beta);
}

void bti_bias_grad(bti_build *b, bti_ref dy, bti_ref db, double beta) {
    if (db.id == 0) return;
    bti_emit(b->p, BT_OP_BIAS_ACT_BWD,
             BTI_OPERANDS([BT_BIAS_ACT_BWD_DY] = dy, [BT_BIAS_ACT_BWD_DBIAS] = db),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE, .beta = beta}}, 0);
}

void bti_look_up(bti_build *b, bti_ref table, bti_ref ids, bti_ref rowpos, bti_ref positions,
                 bti_ref y, double scale, bt_drop drop) {
    bti_emit(b->p, BT_OP_EMBED_FWD,
             BTI_OPERANDS([BT_EMBED_FWD_TABLE] = table, [BT_EMBED_FWD_IDS] = ids,
                          [BT_EMBED_FWD_ROWPOS] = rowpos, [BT_EMBED_FWD_POSTAB] = positions,
                          [BT_EMBED_FWD_Y] = y),
             &(bt_op_params){.embed = {.scale = scale, .drop = drop}}, 0);
}

void bti_rows_bwd(bti_build *b, bti_ref dy, bti_ref rowpos, bti_tid order, bti_tid segs,
                  bti_ref dtable, const bt_op_params *params) {
    if (dtable.id == 0) return;
    bti_emit(
        b->p, BT_OP_EMBED_BWD,
        BTI_OPERANDS([BT_EMBED_BWD_DY] = dy, [BT_EMBED_BWD_ROWPOS] = rowpos,
                     [BT_EMBED_BWD_ORDER] = bti_all(b->p, order),
                     [BT_EMBED_BWD_SEGS] = bti_all(b->p, segs), [BT_EMBED_BWD_DTABLE] = dtable),
        params, 0);
}

void bti_declare_parameters(bti_build *b, const bti_places *places) {
    bti_program *p = b->p;
    const bti_params *t = &b->m->params;
    for (int g = 0; g < 2; g++) {
        bti_region region = g ? BTI_REGION_GRADIENTS : BTI_REGION_WEIGHTS;
        for (int32_t i = 0; i < t->count; i++) {
            const bti_param *q = &t->param[i];
            int64_t rows = g == 0 ? q->rows : q->frozen ? 0 : q->grad_rows;
            bti_tid id = bti_tensor_fixed(p, q->name, region, g ? q->grad_address : q->address,
                                          t->dtype, rows, q->cols);
            if (i == 0 && g) b->grad0 = id;
            if (i == 0 && !g) b->weight0 = id;
        }
    }
    b->sinusoids = bti_tensor_fixed(p, "positions", BTI_REGION_CONSTANT, places->positions,
                                    t->dtype, places->position_rows, b->m->cfg.d_model);
}
