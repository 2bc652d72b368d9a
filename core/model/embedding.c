/* Token embedding: drop(sqrt(d) table[id] + position), one table a side or one for both; positions
 * are sinusoids or the rows of a learned table of each side. */
#include <math.h>

#include "core/model/build.h"

static double scale_of(const bti_build *b) { return sqrt((double)b->m->cfg.d_model); }

static bt_drop drop_of(const bti_build *b, int side) {
    return bti_drop_at(b, b->m->cfg.embedding_dropout, side);
}

bti_ref bti_position_table(const bti_build *b, int side) {
    int32_t learned = b->m->positions[side];
    return learned < 0 ? bti_all(b->p, b->sinusoids) : bti_weight(b, learned);
}

bti_tid bti_embedding_fwd(bti_build *b, int side) {
    bti_tid y = bti_activation_new(b, side ? "target embedding" : "source embedding", -1,
                                   BTI_CLASS_INPUT, b->step->shape.rows[side], b->m->cfg.d_model);
    bti_look_up(b, bti_weight(b, b->m->embed[side]), bti_all(b->p, b->table[side][BTI_TABLE_IDS]),
                bti_rowpos(b, side), bti_position_table(b, side), bti_all(b->p, y), scale_of(b),
                drop_of(b, side));
    return y;
}

void bti_embedding_bwd(bti_build *b, int side, bti_tid dy) {
    int32_t w = b->m->embed[side], positions = b->m->positions[side];
    const bti_tid *table = b->table[side];
    bti_ref from = bti_all(b->p, dy), rowpos = bti_rowpos(b, side);
    double beta = b->step->first_micro_batch && !(b->table_written & 1ull << w) ? 0 : 1;
    bt_op_params params = {.embed = {.scale = scale_of(b), .beta = beta, .drop = drop_of(b, side)}};
    bti_rows_bwd(b, from, rowpos, table[BTI_TABLE_ORDER], table[BTI_TABLE_SEGS], bti_grad(b, w),
                 &params);
    b->table_written |= 1ull << w;
    if (positions < 0) return;
    params.embed.scale = 1; /* positions are added as they are */
    params.embed.beta = bti_grad_beta(b);
    bti_rows_bwd(b, from, rowpos, table[BTI_TABLE_POSITION_ORDER], table[BTI_TABLE_POSITION_SEGS],
                 bti_grad(b, positions), &params);
}
