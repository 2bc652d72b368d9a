/* Token embedding: drop(sqrt(d) table[id] + position), one table a side or one for both; positions
 * are sinusoids or the rows of a learned table of each side. */
#include <math.h>

#include "core/model/build.h"

static bt_op_params params_of(const bti_build *b, int side, double beta) {
    const bti_model_config *c = &b->m->cfg;
    return (bt_op_params){.embed = {.scale = sqrt((double)c->d_model),
                                    .beta = beta,
                                    .drop = bti_drop_at(b, c->embedding_dropout, side)}};
}

bti_ref bti_position_table(const bti_build *b, int side) {
    int32_t learned = b->m->positions[side];
    return learned < 0 ? bti_all(b->p, b->sinusoids) : bti_weight(b, learned);
}

bti_tid bti_embedding_fwd(bti_build *b, int side) {
    bti_program *p = b->p;
    const bti_tid *table = b->table[side];
    bti_tid y = bti_activation_new(b, side ? "target embedding" : "source embedding", -1,
                                   BTI_CLASS_INPUT, b->step->shape.rows[side], b->m->cfg.d_model);
    bt_op_params params = params_of(b, side, 0);
    bti_emit(p, BT_OP_EMBED_FWD,
             BTI_OPERANDS([BT_EMBED_FWD_TABLE] = bti_weight(b, b->m->embed[side]),
                          [BT_EMBED_FWD_IDS] = bti_all(p, table[BTI_TABLE_IDS]),
                          [BT_EMBED_FWD_ROWPOS] = bti_all(p, table[BTI_TABLE_ROWPOS]),
                          [BT_EMBED_FWD_POSTAB] = bti_position_table(b, side),
                          [BT_EMBED_FWD_Y] = bti_all(p, y)),
             &params, 0);
    return y;
}

/* Each row of a table's gradient is the sum over the rows of dy that `order` and `segs` give it. */
static void table_bwd(bti_build *b, int side, bti_tid dy, bti_table order, bti_table segs,
                      bti_ref dtable, const bt_op_params *params) {
    const bti_tid *table = b->table[side];
    if (dtable.id == 0) return;
    bti_emit(b->p, BT_OP_EMBED_BWD,
             BTI_OPERANDS([BT_EMBED_BWD_DY] = bti_all(b->p, dy),
                          [BT_EMBED_BWD_ROWPOS] = bti_all(b->p, table[BTI_TABLE_ROWPOS]),
                          [BT_EMBED_BWD_ORDER] = bti_all(b->p, table[order]),
                          [BT_EMBED_BWD_SEGS] = bti_all(b->p, table[segs]),
                          [BT_EMBED_BWD_DTABLE] = dtable),
             params, 0);
}

void bti_embedding_bwd(bti_build *b, int side, bti_tid dy) {
    int32_t w = b->m->embed[side], positions = b->m->positions[side];
    double beta = b->step->first_micro_batch && !(b->table_written & 1ull << w) ? 0 : 1;
    bt_op_params params = params_of(b, side, beta);
    table_bwd(b, side, dy, BTI_TABLE_ORDER, BTI_TABLE_SEGS, bti_grad(b, w), &params);
    b->table_written |= 1ull << w;
    if (positions < 0) return;
    params.embed.scale = 1; /* positions are added as they are */
    params.embed.beta = bti_grad_beta(b);
    table_bwd(b, side, dy, BTI_TABLE_POSITION_ORDER, BTI_TABLE_POSITION_SEGS,
              bti_grad(b, positions), &params);
}
