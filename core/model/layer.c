/* A layer: residual blocks and their norms, after (post) or before (pre) each block.
 *
 *   post: y = norm(x + drop(F(x)))            pre: y = x + drop(F(norm(x)))
 *
 * The residual sum and the norm that follows it are one op. In pre-norm layers the norm of block
 * i + 1 follows the sum of block i. A layer's last sum is an op of its own: it is what a layer can
 * be made again from, so it can be kept without its norm, and the norm without the last block. */
#include "core/model/build.h"

static bti_tid block_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x,
                         bti_saved *s) {
    if (k->kind == BTI_BLOCK_FF) return bti_ff_fwd(b, l, k, x, s);
    return b->decode ? bti_attention_step(b, l, k, x) : bti_attention_fwd(b, l, k, x, s);
}

static void block_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy,
                      bti_saved *s, bti_tid dx, double beta) {
    if (k->kind == BTI_BLOCK_FF)
        bti_ff_bwd(b, l, k, dy, s, dx, beta);
    else
        bti_attention_bwd(b, l, k, dy, s, dx, beta);
}

/* r = res + drop(f + bias of k); with a norm also y = norm(r). A sum alone ends a layer: its class
 * is INPUT. */
static bti_tid add_norm_fwd(bti_build *b, const bti_layer *l, const bti_block *k,
                            const bti_pair *norm, bti_tid f, bti_tid res, bti_saved *s,
                            bti_tid *r) {
    bti_program *p = b->p;
    const bti_model_config *c = &b->m->cfg;
    int64_t rows = bti_tensor_rows(p, f);
    bti_tid y = 0;
    *r = bti_activation_new(b, "residual", l->index, norm ? BTI_CLASS_NORM : BTI_CLASS_INPUT, rows,
                            c->d_model);
    if (norm != NULL) {
        y = bti_activation_new(b, "norm", l->index, BTI_CLASS_NORM, rows, c->d_model);
        s->stats = bti_tensor_new(p, "norm statistics", l->index, BTI_KIND_ACTIVATION,
                                  BTI_CLASS_STATS, b->acc, rows, 2);
    }
    s->r = *r;
    bti_emit(p, BT_OP_ADD_NORM_FWD,
             BTI_OPERANDS([BT_ADD_NORM_FWD_X] = bti_all(p, f),
                          [BT_ADD_NORM_FWD_BIAS] = bti_weight(b, k->out.b),
                          [BT_ADD_NORM_FWD_RES] = bti_all(p, res),
                          [BT_ADD_NORM_FWD_ROWPOS] = bti_rowpos(b, l->decoder),
                          [BT_ADD_NORM_FWD_GAMMA] = norm ? bti_weight(b, norm->w) : (bti_ref){0},
                          [BT_ADD_NORM_FWD_BETA] = norm ? bti_weight(b, norm->b) : (bti_ref){0},
                          [BT_ADD_NORM_FWD_R] = bti_all(p, *r), [BT_ADD_NORM_FWD_Y] = bti_all(p, y),
                          [BT_ADD_NORM_FWD_STATS] = norm ? bti_all(p, s->stats) : (bti_ref){0}),
             &(bt_op_params){
                 .add_norm = {.eps = c->norm_eps, .drop = bti_drop_at(b, c->dropout, k->site + 1)}},
             0);
    return y ? y : *r;
}

/* Backward of add_norm_fwd: dr is the gradient of the sum, the result that of f (which without
 * dropout is dr itself). `norm` is the one over the sum, `k` the block that f came from. */
static bti_tid add_norm_bwd(bti_build *b, const bti_layer *l, const bti_block *k,
                            const bti_pair *norm, bti_tid dy, bti_saved *s, bti_tid dres,
                            bti_tid *dr) {
    bti_program *p = b->p;
    const bti_model_config *c = &b->m->cfg;
    int64_t rows = bti_tensor_rows(p, dy);
    bt_drop drop = bti_drop_at(b, c->dropout, k->site + 1);
    bti_tid r = bti_need(p, s->r), stats = bti_need(p, s->stats);
    *dr = bti_activation_new(b, "d residual", l->index, BTI_CLASS_NONE, rows, c->d_model);
    bti_tid dx = drop.p > 0
                     ? bti_activation_new(b, "d block", l->index, BTI_CLASS_NONE, rows, c->d_model)
                     : 0;
    bti_emit(
        p, BT_OP_ADD_NORM_BWD,
        BTI_OPERANDS([BT_ADD_NORM_BWD_DY] = bti_all(p, dy), [BT_ADD_NORM_BWD_R] = bti_all(p, r),
                     [BT_ADD_NORM_BWD_STATS] = bti_all(p, stats),
                     [BT_ADD_NORM_BWD_GAMMA] = bti_weight(b, norm->w),
                     [BT_ADD_NORM_BWD_DRES] = bti_all(p, dres),
                     [BT_ADD_NORM_BWD_ROWPOS] = bti_rowpos(b, l->decoder),
                     [BT_ADD_NORM_BWD_DR] = bti_all(p, *dr), [BT_ADD_NORM_BWD_DX] = bti_all(p, dx),
                     [BT_ADD_NORM_BWD_DGAMMA] = bti_grad(b, norm->w),
                     [BT_ADD_NORM_BWD_DBETA] = bti_grad(b, norm->b),
                     [BT_ADD_NORM_BWD_DBIAS] = bti_grad(b, k->out.b)),
        &(bt_op_params){.add_norm = {.eps = c->norm_eps, .beta = bti_grad_beta(b), .drop = drop}},
        0);
    return dx ? dx : *dr;
}

bti_tid bti_norm_fwd(bti_build *b, const bti_pair *norm, bti_tid x, int32_t layer, bti_class cls,
                     bti_tid *stats) {
    bti_program *p = b->p;
    int64_t rows = bti_tensor_rows(p, x);
    bti_tid y = bti_activation_new(b, "norm", layer, cls, rows, b->m->cfg.d_model);
    *stats = bti_tensor_new(p, "norm statistics", layer, BTI_KIND_ACTIVATION, BTI_CLASS_STATS,
                            b->acc, rows, 2);
    bti_emit(
        p, BT_OP_NORM_FWD,
        BTI_OPERANDS([BT_NORM_FWD_X] = bti_all(p, x), [BT_NORM_FWD_GAMMA] = bti_weight(b, norm->w),
                     [BT_NORM_FWD_BETA] = bti_weight(b, norm->b), [BT_NORM_FWD_Y] = bti_all(p, y),
                     [BT_NORM_FWD_STATS] = bti_all(p, *stats)),
        &(bt_op_params){.norm = {.eps = b->m->cfg.norm_eps}}, 0);
    return y;
}

bti_tid bti_norm_bwd(bti_build *b, const bti_pair *norm, bti_tid dy, bti_tid x, bti_tid stats,
                     bti_tid dres, int32_t layer) {
    bti_program *p = b->p;
    bti_tid xn = bti_need(p, x), sn = bti_need(p, stats);
    bti_tid dx = bti_activation_new(b, "d norm input", layer, BTI_CLASS_NONE,
                                    bti_tensor_rows(p, dy), b->m->cfg.d_model);
    bti_emit(p, BT_OP_NORM_BWD,
             BTI_OPERANDS([BT_NORM_BWD_DY] = bti_all(p, dy), [BT_NORM_BWD_X] = bti_all(p, xn),
                          [BT_NORM_BWD_STATS] = bti_all(p, sn),
                          [BT_NORM_BWD_GAMMA] = bti_weight(b, norm->w),
                          [BT_NORM_BWD_DRES] = bti_all(p, dres), [BT_NORM_BWD_DX] = bti_all(p, dx),
                          [BT_NORM_BWD_DGAMMA] = bti_grad(b, norm->w),
                          [BT_NORM_BWD_DBETA] = bti_grad(b, norm->b)),
             &(bt_op_params){.norm = {.eps = b->m->cfg.norm_eps, .beta = bti_grad_beta(b)}}, 0);
    return dx;
}

bti_tid bti_layer_fwd(bti_build *b, const bti_layer *l, bti_tid x, bti_layer_saved *s) {
    int pre = b->m->cfg.norm == BTI_NORM_PRE, n = l->blocks;
    bti_tid res = x, in = x, r = x;
    bti_program_at(b->p, l->index, l->index);
    s->x = x;
    if (pre) in = bti_norm_fwd(b, &l->block[0].norm, x, l->index, BTI_CLASS_NORM, &s->stats0);
    for (int i = 0; i < n; i++) {
        const bti_block *k = &l->block[i];
        bti_tid f = block_fwd(b, l, k, in, &s->block[i]);
        const bti_pair *norm = i + 1 == n ? NULL : pre ? &l->block[i + 1].norm : &k->norm;
        in = add_norm_fwd(b, l, k, norm, f, res, &s->block[i], &r);
        res = pre ? r : in;
    }
    if (!pre)
        in = bti_norm_fwd(b, &l->block[n - 1].norm, r, l->index, BTI_CLASS_NORM,
                          &s->block[n - 1].stats);
    bti_program_at(b->p, -1, l->index + 1);
    return in;
}

/* Does anything below a block learn, so that the gradient of its input is wanted? */
static int more_below(const bti_build *b, const bti_layer *l, int block) {
    return b->m->lowest[l->decoder] < bti_unit(b->m, l, block);
}

static bti_tid post_bwd(bti_build *b, const bti_layer *l, bti_tid dy, bti_layer_saved *s) {
    for (int i = l->blocks - 1; i >= 0; i--) {
        const bti_block *k = &l->block[i];
        int more = more_below(b, l, i);
        bti_tid dr, df = add_norm_bwd(b, l, k, &k->norm, dy, &s->block[i], 0, &dr);
        block_bwd(b, l, k, df, &s->block[i], more ? dr : 0, 1);
        if (!more) return 0;
        dy = dr;
    }
    return dy;
}

/* Gradient of the last block's output from that of the layer, whose sum has no norm. */
static bti_tid last_sum_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy) {
    bti_program *p = b->p;
    bt_drop drop = bti_drop_at(b, b->m->cfg.dropout, k->site + 1);
    bti_tid df = drop.p > 0 ? bti_activation_new(b, "d block", l->index, BTI_CLASS_NONE,
                                                 bti_tensor_rows(p, dy), b->m->cfg.d_model)
                            : 0;
    if (df == 0 && !bti_trains(b, k->out.b)) return dy;
    bti_emit(
        p, BT_OP_BIAS_ACT_BWD,
        BTI_OPERANDS([BT_BIAS_ACT_BWD_DY] = bti_all(p, dy),
                     [BT_BIAS_ACT_BWD_ROWPOS] = bti_rowpos(b, l->decoder),
                     [BT_BIAS_ACT_BWD_DX] = bti_all(p, df),
                     [BT_BIAS_ACT_BWD_DBIAS] = bti_grad(b, k->out.b)),
        &(bt_op_params){.bias_act = {.act = BT_ACT_NONE, .drop = drop, .beta = bti_grad_beta(b)}},
        0);
    return df ? df : dy;
}

static bti_tid pre_bwd(bti_build *b, const bti_layer *l, bti_tid dy, bti_layer_saved *s) {
    bti_tid g = dy, df = last_sum_bwd(b, l, &l->block[l->blocks - 1], dy);
    for (int i = l->blocks - 1; i >= 0; i--) {
        const bti_block *k = &l->block[i];
        int more = more_below(b, l, i);
        bti_tid dn = 0, x = i == 0 ? s->x : s->block[i - 1].r;
        bti_tid stats = i == 0 ? s->stats0 : s->block[i - 1].stats;
        if (more || bti_trains(b, k->norm.w) || bti_trains(b, k->norm.b))
            dn = bti_activation_new(b, "d norm", l->index, BTI_CLASS_NONE,
                                    bti_tensor_rows(b->p, dy), b->m->cfg.d_model);
        block_bwd(b, l, k, df, &s->block[i], dn, 0);
        if (!more && dn != 0) bti_norm_bwd(b, &k->norm, dn, x, stats, 0, l->index);
        if (!more) return 0;
        if (i == 0) return bti_norm_bwd(b, &k->norm, dn, x, stats, g, l->index);
        bti_tid dr;
        df = add_norm_bwd(b, l, &l->block[i - 1], &k->norm, dn, &s->block[i - 1], g, &dr);
        g = dr;
    }
    return g;
}

bti_tid bti_layer_bwd(bti_build *b, const bti_layer *l, bti_tid dy, bti_layer_saved *s) {
    bti_program_at(b->p, l->index, l->index);
    dy = b->m->cfg.norm == BTI_NORM_PRE ? pre_bwd(b, l, dy, s) : post_bwd(b, l, dy, s);
    bti_program_at(b->p, -1, l->index);
    return dy;
}
