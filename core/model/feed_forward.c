/* Feed-forward block: linear2(drop(act(linear1(x)))).
 *
 * relu needs only its output in backward (positive means active and kept); gelu needs what went in.
 * Either way bias, activation and dropout are one pass. */
#include "core/model/build.h"

static bt_op_params act_params(const bti_build *b, const bti_block *k, double beta) {
    const bti_model_config *c = &b->m->cfg;
    return (bt_op_params){
        .bias_act = {.act = c->activation == BTI_ACTIVATION_RELU ? BT_ACT_RELU : BT_ACT_GELU,
                     .drop = bti_drop_at(b, c->activation_dropout, k->site),
                     .beta = beta}};
}

static bti_ref rowpos(const bti_build *b, const bti_layer *l) {
    return bti_all(b->p, b->table[l->decoder][BTI_TABLE_ROWPOS]);
}

bti_tid bti_ff_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x, bti_saved *s) {
    bti_program *p = b->p;
    bt_op_params params = act_params(b, k, 0);
    s->x = x;
    s->h0 = bti_linear(b, bti_all(p, x), bti_weight(b, k->in.w), "ff", l->index, BTI_CLASS_FF);
    s->h = bti_activation_new(b, "ff activation", l->index, BTI_CLASS_ACT, bti_tensor_rows(p, x),
                              b->m->cfg.ff);
    bti_emit(p, BT_OP_BIAS_ACT_FWD,
             BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = bti_all(p, s->h0),
                          [BT_BIAS_ACT_FWD_BIAS] = bti_weight(b, k->in.b),
                          [BT_BIAS_ACT_FWD_ROWPOS] = rowpos(b, l),
                          [BT_BIAS_ACT_FWD_Y] = bti_all(p, s->h)),
             &params, 0);
    return bti_linear(b, bti_all(p, s->h), bti_weight(b, k->out.w), "ff output", l->index,
                      BTI_CLASS_PROJ);
}

void bti_ff_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy, bti_saved *s,
                bti_tid dx, double beta) {
    bti_program *p = b->p;
    double gb = bti_grad_beta(b);
    bt_op_params params = act_params(b, k, gb);
    int relu = params.bias_act.act == BT_ACT_RELU;
    int through = dx != 0 || bti_trains(b, k->in.w), inside = through || bti_trains(b, k->in.b);
    if (!inside && !bti_trains(b, k->out.w)) return;
    bti_tid h = bti_trains(b, k->out.w) || relu ? bti_need(p, s->h) : 0;
    bti_tid h0 = relu || !inside ? 0 : bti_need(p, s->h0);
    bti_linear_dw(b, bti_all(p, dy), bti_all(p, h), bti_grad(b, k->out.w), gb);
    if (!inside) return;
    int64_t rows = bti_tensor_rows(p, dy), ff = b->m->cfg.ff;
    bti_tid dh = bti_activation_new(b, "d ff activation", l->index, BTI_CLASS_NONE, rows, ff);
    bti_linear_dx(b, bti_all(p, dy), bti_weight(b, k->out.w), bti_all(p, dh), 0);
    bti_tid dh0 = through ? bti_activation_new(b, "d ff", l->index, BTI_CLASS_NONE, rows, ff) : 0;
    bti_emit(p, BT_OP_BIAS_ACT_BWD,
             BTI_OPERANDS(
                 [BT_BIAS_ACT_BWD_DY] = bti_all(p, dh), [BT_BIAS_ACT_BWD_X] = bti_all(p, h0),
                 [BT_BIAS_ACT_BWD_BIAS] = relu ? (bti_ref){0} : bti_weight(b, k->in.b),
                 [BT_BIAS_ACT_BWD_Y] = relu ? bti_all(p, h) : (bti_ref){0},
                 [BT_BIAS_ACT_BWD_ROWPOS] = rowpos(b, l), [BT_BIAS_ACT_BWD_DX] = bti_all(p, dh0),
                 [BT_BIAS_ACT_BWD_DBIAS] = bti_grad(b, k->in.b)),
             &params, 0);
    if (bti_trains(b, k->in.w)) {
        bti_tid x = bti_need(p, s->x);
        bti_linear_dw(b, bti_all(p, dh0), bti_all(p, x), bti_grad(b, k->in.w), gb);
    }
    if (dx != 0) bti_linear_dx(b, bti_all(p, dh0), bti_weight(b, k->in.w), bti_all(p, dx), beta);
}
