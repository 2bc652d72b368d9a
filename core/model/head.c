/* Heads, and how those without a decoder come to one row for each example.
 *
 * Pooling is an attention with one query for each example, in the model's heads: for the mean its
 * scale is 0, so that all rows weigh alike; else the query is learned. The first row is gathered.
 */
#include "core/model/head.h"

#include <math.h>

#include "core/model/build.h"

/* ---- losses ------------------------------------------------------------------------------------
 */

/* By which gradients are multiplied. */
static bti_ref loss_scale(const bti_build *b) {
    return bti_all(b->p, b->step->training ? b->scalars : 0);
}

static void token_loss(bti_build *b, bti_ref z, int64_t at, bti_ref loss) {
    const bti_step *step = b->step;
    bti_ref labels = bti_all(b->p, b->table[0][BTI_TABLE_LABELS]);
    bti_emit(
        b->p, BT_OP_CROSS_ENTROPY,
        BTI_OPERANDS([BT_CROSS_ENTROPY_LOGITS] = z,
                     [BT_CROSS_ENTROPY_BIAS] = bti_weight(b, b->m->generator.b),
                     [BT_CROSS_ENTROPY_LABELS] = bti_rows(labels, at, z.rows),
                     [BT_CROSS_ENTROPY_SCALARS] = loss_scale(b), [BT_CROSS_ENTROPY_LOSS] = loss),
        &(bt_op_params){.cross_entropy = {.smoothing = step->smoothing,
                                          .grad_scale = step->grad_scale,
                                          .grad = step->training != 0}},
        0);
}

static void value_loss(bti_build *b, bt_values kind, bti_ref z, int64_t at, bti_ref loss) {
    const bti_step *step = b->step;
    bti_emit(
        b->p, BT_OP_VALUE_LOSS,
        BTI_OPERANDS([BT_VALUE_LOSS_Z] = z, [BT_VALUE_LOSS_BIAS] = bti_weight(b, b->m->generator.b),
                     [BT_VALUE_LOSS_TARGET] = bti_rows(bti_all(b->p, b->targets), at, z.rows),
                     [BT_VALUE_LOSS_SCALARS] = loss_scale(b), [BT_VALUE_LOSS_LOSS] = loss),
        &(bt_op_params){.value_loss = {.kind = kind,
                                       .grad_scale = step->grad_scale,
                                       .grad = step->training != 0}},
        0);
}

static void label_loss(bti_build *b, bti_ref z, int64_t at, bti_ref loss) {
    value_loss(b, BT_VALUES_BINARY, z, at, loss);
}

static void number_loss(bti_build *b, bti_ref z, int64_t at, bti_ref loss) {
    value_loss(b, BT_VALUES_SQUARE, z, at, loss);
}

static const bti_head heads[] = {
    [BTI_HEAD_DECODER] = {"decoder", BTI_TARGETS_TEXT, "target token", "nats", token_loss},
    [BTI_HEAD_CLASSIFICATION] = {"classification", BTI_TARGETS_CLASS, "example", "nats",
                                 token_loss},
    [BTI_HEAD_MULTILABEL] = {"multilabel", BTI_TARGETS_VALUES, "example", "nats", label_loss},
    [BTI_HEAD_REGRESSION] = {"regression", BTI_TARGETS_VALUES, "example", "square error",
                             number_loss},
};

const bti_head *bti_head_of(const bti_model_config *c) { return &heads[c->head]; }

/* ---- pooling -----------------------------------------------------------------------------------
 */

static bt_op_params pool_params(const bti_build *b) {
    const bti_model_config *c = &b->m->cfg;
    int learned = c->pooling == BTI_POOLING_ATTENTION;
    return (bt_op_params){
        .attn = {.heads = (int32_t)c->heads,
                 .scale = learned ? 1.0 / sqrt((double)(c->d_model / c->heads)) : 0}};
}

static double pool_pairs(const bti_build *b) { return (double)b->step->shape.rows[0]; }

/* Queries: the learned one for each example; of a mean any rows at all. */
static bti_ref pool_queries(bti_build *b) {
    bti_program *p = b->p;
    int64_t n = b->step->shape.sentences;
    if (b->m->cfg.pooling == BTI_POOLING_MEAN) return bti_rows(bti_all(p, b->memory[1]), 0, n);
    bti_ref rowpos = bti_all(p, b->table[0][BTI_TABLE_POOL_QUERY]);
    b->pooled_query =
        bti_activation_new(b, "pooling query", -1, BTI_CLASS_INPUT, n, b->m->cfg.d_model);
    bti_look_up(b, bti_weight(b, b->m->pool_query), bti_cols(rowpos, 1, 1), rowpos, (bti_ref){0},
                bti_all(p, b->pooled_query), 1, (bt_drop){0});
    return bti_all(p, b->pooled_query);
}

bti_tid bti_pool_fwd(bti_build *b) {
    bti_program *p = b->p;
    const bti_model_config *c = &b->m->cfg;
    int64_t n = b->step->shape.sentences;
    bti_ref x = bti_all(p, b->memory[1]);
    if (c->pooling == BTI_POOLING_FIRST) {
        b->pooled = bti_activation_new(b, "pooled", -1, BTI_CLASS_INPUT, n, c->d_model);
        bti_emit(p, BT_OP_GATHER,
                 BTI_OPERANDS([BT_GATHER_X] = x,
                              [BT_GATHER_INDEX] = bti_all(p, b->table[0][BTI_TABLE_POOL_FIRST]),
                              [BT_GATHER_Y] = bti_all(p, b->pooled)),
                 &(bt_op_params){0}, 0);
        return b->pooled;
    }
    bti_ref q = pool_queries(b);
    bt_op_params params = pool_params(b);
    b->pooled = bti_activation_new(b, "pooled", -1, BTI_CLASS_INPUT, n, c->d_model);
    b->pooled_lse =
        bti_tensor_new(p, "lse", -1, BTI_KIND_ACTIVATION, BTI_CLASS_STATS, b->acc, n, c->heads);
    bti_emit(p, BT_OP_ATTN_FWD,
             BTI_OPERANDS([BT_ATTN_FWD_Q] = q, [BT_ATTN_FWD_K] = x, [BT_ATTN_FWD_V] = x,
                          [BT_ATTN_FWD_SEQ] = bti_all(p, b->table[0][BTI_TABLE_SEQ_POOL]),
                          [BT_ATTN_FWD_O] = bti_all(p, b->pooled),
                          [BT_ATTN_FWD_LSE] = bti_all(p, b->pooled_lse)),
             &params, pool_pairs(b));
    return b->pooled;
}

/* Adds what comes through the keys, and gives the query its gradient. */
static void query_bwd(bti_build *b, bti_tid dq, bti_tid dk) {
    bti_program *p = b->p;
    bti_emit(p, BT_OP_AXPBY,
             BTI_OPERANDS([BT_AXPBY_X] = bti_all(p, dk), [BT_AXPBY_Y] = bti_all(p, b->dmemory[1])),
             &(bt_op_params){.axpby = {1, 1}}, 0);
    bti_rows_bwd(b, bti_all(p, dq), bti_all(p, b->table[0][BTI_TABLE_POOL_QUERY]),
                 b->table[0][BTI_TABLE_POOL_ORDER], b->table[0][BTI_TABLE_POOL_SEGS],
                 bti_grad(b, b->m->pool_query),
                 &(bt_op_params){.embed = {.scale = 1, .beta = bti_grad_beta(b)}});
}

void bti_pool_bwd(bti_build *b, bti_tid dpooled) {
    bti_program *p = b->p;
    const bti_model_config *c = &b->m->cfg;
    int64_t rows = b->step->shape.rows[0], n = b->step->shape.sentences;
    bti_ref x = bti_all(p, b->memory[1]);
    if (c->pooling == BTI_POOLING_FIRST) {
        bti_emit(p, BT_OP_GATHER,
                 BTI_OPERANDS([BT_GATHER_X] = bti_all(p, dpooled),
                              [BT_GATHER_INDEX] = bti_all(p, b->table[0][BTI_TABLE_POOL_BACK]),
                              [BT_GATHER_Y] = bti_all(p, b->dmemory[1])),
                 &(bt_op_params){0}, 0);
        return;
    }
    bt_op_params params = pool_params(b);
    bti_tid dq = bti_activation_new(b, "d pooling query", -1, BTI_CLASS_NONE, n, c->d_model);
    bti_tid dk = bti_activation_new(b, "d pooling keys", -1, BTI_CLASS_NONE, rows, c->d_model);
    bti_ref q = c->pooling == BTI_POOLING_MEAN ? bti_rows(x, 0, n) : bti_all(p, b->pooled_query);
    bti_emit(
        p, BT_OP_ATTN_BWD,
        BTI_OPERANDS(
            [BT_ATTN_BWD_Q] = q, [BT_ATTN_BWD_K] = x, [BT_ATTN_BWD_V] = x,
            [BT_ATTN_BWD_SEQ] = bti_all(p, b->table[0][BTI_TABLE_SEQ_POOL]),
            [BT_ATTN_BWD_O] = bti_all(p, b->pooled), [BT_ATTN_BWD_LSE] = bti_all(p, b->pooled_lse),
            [BT_ATTN_BWD_DO] = bti_all(p, dpooled), [BT_ATTN_BWD_DQ] = bti_all(p, dq),
            [BT_ATTN_BWD_DK] = bti_all(p, dk), [BT_ATTN_BWD_DV] = bti_all(p, b->dmemory[1])),
        &params, pool_pairs(b));
    if (c->pooling == BTI_POOLING_ATTENTION) query_bwd(b, dq, dk);
}
