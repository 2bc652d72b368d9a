/* Attention blocks, over the sequence itself or over another: the encoder's output, or in an
 * encoder layer the features.
 *
 * The joint projection in_proj (3d x d, as torch has it) gives q, k and v in the columns of one
 * tensor; over the encoder its first d rows make q and the others k and v. Softmax does not see a
 * shift of the scores of one query, so the gradient of the key bias is exactly zero: it is never
 * computed, and its place in the gradient region keeps the zeros it was given at the start. */
#include <math.h>

#include "core/model/build.h"

static bt_op_params attn_params(const bti_build *b, const bti_layer *l, const bti_block *k) {
    const bti_model_config *c = &b->m->cfg;
    return (bt_op_params){.attn = {.heads = (int32_t)c->heads,
                                   .causal = k->kind == BTI_BLOCK_SELF && l->decoder,
                                   .scale = 1.0 / sqrt((double)(c->d_model / c->heads)),
                                   .drop = bti_drop_at(b, c->attention_dropout, k->site)}};
}

static int table_of(const bti_layer *l, const bti_block *k) {
    if (k->kind == BTI_BLOCK_CROSS) return l->decoder ? BTI_TABLE_SEQ_CROSS : BTI_TABLE_SEQ_FUSION;
    return l->decoder ? BTI_TABLE_SEQ_DECODER : BTI_TABLE_SEQ_ENCODER;
}

static double pairs_of(const bti_build *b, const bti_layer *l, const bti_block *k) {
    const double *pairs = b->step->shape.pairs;
    if (k->kind == BTI_BLOCK_CROSS) return pairs[l->decoder ? BTI_PAIRS_CROSS : BTI_PAIRS_FUSION];
    return pairs[l->decoder ? BTI_PAIRS_DECODER : BTI_PAIRS_ENCODER];
}

/* x w^T + bias: a projection and its bias, which the planner may put in place. */
static bti_tid projection(bti_build *b, bti_tid x, bti_ref w, bti_ref bias, const char *name,
                          int32_t layer) {
    bti_tid raw = bti_linear(b, bti_all(b->p, x), w, name, layer, BTI_CLASS_PROJ);
    bti_tid y = bti_activation_new(b, name, layer, BTI_CLASS_PROJ, bti_tensor_rows(b->p, raw),
                                   bti_tensor_cols(b->p, raw));
    bti_emit(b->p, BT_OP_BIAS_ACT_FWD,
             BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = bti_all(b->p, raw), [BT_BIAS_ACT_FWD_BIAS] = bias,
                          [BT_BIAS_ACT_FWD_Y] = bti_all(b->p, y)),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE}}, 0);
    return y;
}

bti_tid bti_cross_kv(bti_build *b, const bti_layer *l, const bti_block *k) {
    int64_t d = b->m->cfg.d_model;
    return projection(b, b->memory[l->decoder], bti_rows(bti_weight(b, k->in.w), d, 2 * d),
                      bti_cols(bti_weight(b, k->in.b), d, 2 * d), "kv", l->index);
}

/* q, k and v in the columns of the projections of a block. */
typedef struct qkv {
    bti_ref q, k, v;
} qkv;

static qkv split(const bti_build *b, const bti_block *k, bti_tid q, bti_tid kv) {
    int64_t d = b->m->cfg.d_model, at = k->kind == BTI_BLOCK_SELF ? d : 0;
    bti_ref a = bti_all(b->p, q), c = bti_all(b->p, kv);
    return (qkv){bti_cols(a, 0, d), bti_cols(c, at, d), bti_cols(c, at + d, d)};
}

bti_tid bti_attention_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x,
                          bti_saved *s) {
    bti_program *p = b->p;
    int64_t d = b->m->cfg.d_model, rows = bti_tensor_rows(p, x);
    bti_ref w = bti_weight(b, k->in.w), bias = bti_weight(b, k->in.b);
    s->x = x;
    if (k->kind == BTI_BLOCK_SELF) {
        s->q = s->kv = projection(b, x, w, bias, "qkv", l->index);
    } else {
        s->q = projection(b, x, bti_rows(w, 0, d), bti_cols(bias, 0, d), "q", l->index);
        s->kv = bti_cross_kv(b, l, k);
    }
    s->a = bti_activation_new(b, "attention", l->index, BTI_CLASS_ATTN, rows, d);
    s->lse = bti_tensor_new(p, "lse", l->index, BTI_KIND_ACTIVATION, BTI_CLASS_STATS, b->acc, rows,
                            b->m->cfg.heads);
    qkv t = split(b, k, s->q, s->kv);
    bt_op_params params = attn_params(b, l, k);
    bti_emit(
        p, BT_OP_ATTN_FWD,
        BTI_OPERANDS([BT_ATTN_FWD_Q] = t.q, [BT_ATTN_FWD_K] = t.k, [BT_ATTN_FWD_V] = t.v,
                     [BT_ATTN_FWD_SEQ] = bti_all(p, b->table[0][table_of(l, k)]),
                     [BT_ATTN_FWD_O] = bti_all(p, s->a), [BT_ATTN_FWD_LSE] = bti_all(p, s->lse)),
        &params, pairs_of(b, l, k));
    return bti_linear(b, bti_all(p, s->a), bti_weight(b, k->out.w), "attention output", l->index,
                      BTI_CLASS_BLOCK);
}

/* Gradients of the projections from those of q, k and v; the key bias has none. Over the encoder,
 * q comes from x and k and v from its output. */
static void projection_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_saved *s,
                           bti_tid dq, bti_tid dkv, bti_tid dx, double beta) {
    bti_program *p = b->p;
    int64_t d = b->m->cfg.d_model;
    double gb = bti_grad_beta(b);
    bti_ref w = bti_weight(b, k->in.w), dw = bti_grad(b, k->in.w), db = bti_grad(b, k->in.b);
    qkv g = split(b, k, dq, dkv);
    bti_bias_grad(b, g.q, bti_cols(db, 0, d), gb);
    bti_bias_grad(b, g.v, bti_cols(db, 2 * d, d), gb);
    int64_t of_x = k->kind == BTI_BLOCK_SELF ? 3 * d : d;
    if (dw.id != 0)
        bti_linear_dw(b, bti_all(p, dq), bti_all(p, bti_need(p, s->x)), bti_rows(dw, 0, of_x), gb);
    if (dx != 0) bti_linear_dx(b, bti_all(p, dq), bti_rows(w, 0, of_x), bti_all(p, dx), beta);
    if (k->kind == BTI_BLOCK_SELF) return;
    bti_linear_dw(b, bti_all(p, dkv), bti_all(p, b->memory[l->decoder]), bti_rows(dw, d, 2 * d),
                  gb);
    if (b->dmemory[l->decoder] == 0) return;
    bti_linear_dx(b, bti_all(p, dkv), bti_rows(w, d, 2 * d), bti_all(p, b->dmemory[l->decoder]),
                  b->memory_written[l->decoder] ? 1 : 0);
    b->memory_written[l->decoder] = 1;
}

void bti_attention_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy,
                       bti_saved *s, bti_tid dx, double beta) {
    bti_program *p = b->p;
    int64_t d = b->m->cfg.d_model;
    int inside = dx != 0 || bti_trains(b, k->in.w) || bti_trains(b, k->in.b) ||
                 (k->kind == BTI_BLOCK_CROSS && b->dmemory[l->decoder] != 0);
    if (!inside && !bti_trains(b, k->out.w)) return;
    bti_tid a = bti_need(p, s->a), lse = inside ? bti_need(p, s->lse) : 0;
    bti_tid q = inside ? bti_need(p, s->q) : 0, kv = inside ? bti_need(p, s->kv) : 0;
    bti_linear_dw(b, bti_all(p, dy), bti_all(p, a), bti_grad(b, k->out.w), bti_grad_beta(b));
    if (!inside) return;
    int64_t rows = bti_tensor_rows(p, q);
    bti_tid da = bti_activation_new(b, "d attention", l->index, BTI_CLASS_NONE, rows, d);
    bti_linear_dx(b, bti_all(p, dy), bti_weight(b, k->out.w), bti_all(p, da), 0);

    bti_tid dq =
        bti_activation_new(b, "d q", l->index, BTI_CLASS_NONE, rows, bti_tensor_cols(p, q));
    bti_tid dkv = dq;
    if (k->kind == BTI_BLOCK_CROSS)
        dkv =
            bti_activation_new(b, "d kv", l->index, BTI_CLASS_NONE, bti_tensor_rows(p, kv), 2 * d);
    qkv t = split(b, k, q, kv), g = split(b, k, dq, dkv);
    bt_op_params params = attn_params(b, l, k);
    bti_emit(p, BT_OP_ATTN_BWD,
             BTI_OPERANDS([BT_ATTN_BWD_Q] = t.q, [BT_ATTN_BWD_K] = t.k, [BT_ATTN_BWD_V] = t.v,
                          [BT_ATTN_BWD_SEQ] = bti_all(p, b->table[0][table_of(l, k)]),
                          [BT_ATTN_BWD_O] = bti_all(p, a), [BT_ATTN_BWD_LSE] = bti_all(p, lse),
                          [BT_ATTN_BWD_DO] = bti_all(p, da), [BT_ATTN_BWD_DQ] = g.q,
                          [BT_ATTN_BWD_DK] = g.k, [BT_ATTN_BWD_DV] = g.v),
             &params, pairs_of(b, l, k));
    projection_bwd(b, l, k, s, dq, dkv, dx, beta);
}

/* The rows of this step into the cache: keys and values with their bias. */
static void append_cache(bti_build *b, const bti_block *k, bti_tid x, bti_tid cache) {
    int64_t d = b->m->cfg.d_model, rows = bti_tensor_rows(b->p, x);
    bti_ref to = bti_rows(bti_all(b->p, cache), b->decode->cache_row, rows);
    bti_linear_into(b, bti_all(b->p, x), bti_rows(bti_weight(b, k->in.w), d, 2 * d), to);
    bti_emit(b->p, BT_OP_BIAS_ACT_FWD,
             BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = to,
                          [BT_BIAS_ACT_FWD_BIAS] = bti_cols(bti_weight(b, k->in.b), d, 2 * d),
                          [BT_BIAS_ACT_FWD_Y] = to),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE}}, 0);
}

bti_tid bti_attention_step(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x) {
    bti_program *p = b->p;
    const bti_decode_state *s = b->decode;
    int64_t d = b->m->cfg.d_model, rows = bti_tensor_rows(p, x);
    int at = l->index - (int)b->m->cfg.encoder_layers, self = k->kind == BTI_BLOCK_SELF;
    bti_tid kv = self ? s->cache[at] : s->cross[at];
    bti_tid q = projection(b, x, bti_rows(bti_weight(b, k->in.w), 0, d),
                           bti_cols(bti_weight(b, k->in.b), 0, d), "q", l->index);
    if (self) append_cache(b, k, x, kv);
    bti_tid a = bti_activation_new(b, "attention", l->index, BTI_CLASS_NONE, rows, d);
    bt_op_params params = attn_params(b, l, k);
    params.attn.causal = 0; /* the new row sees all that is before it */
    bti_ref keys = bti_all(p, kv);
    bti_emit(p, BT_OP_ATTN_FWD,
             BTI_OPERANDS([BT_ATTN_FWD_Q] = bti_all(p, q), [BT_ATTN_FWD_K] = bti_cols(keys, 0, d),
                          [BT_ATTN_FWD_V] = bti_cols(keys, d, d),
                          [BT_ATTN_FWD_SEQ] = bti_all(p, self ? s->seq_self : s->seq_cross),
                          [BT_ATTN_FWD_KIDX] = self ? bti_all(p, s->kidx) : (bti_ref){0},
                          [BT_ATTN_FWD_O] = bti_all(p, a)),
             &params, 0);
    return bti_linear(b, bti_all(p, a), bti_weight(b, k->out.w), "attention output", l->index,
                      BTI_CLASS_NONE);
}
