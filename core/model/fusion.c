/* The encoder's input where there is more than text: dense features, learned rows.
 *
 * It is made of segments, each with positions of its own. A feature's rows are projected to the
 * model's width (weight and bias), normed where that is asked for, and given their positions. Then
 *   concat  segments stand one after the other in each example's sequence
 *   add     x = x + feature, row by row; a feature of one row comes to every row
 *   gate    x = s x + (1 - s) feature, s = sigmoid(W [x; feature] + b): the gated multimodal unit
 *           (Arevalo et al. 2017)
 *   cross   features form a sequence that every encoder layer attends to between self attention and
 *           feed-forward, as the image-grounded text encoder of BLIP does (Li et al. 2022); such a
 *           layer is torch.nn.TransformerDecoderLayer without a causal mask
 * where x is the text, or the first feature where there is none. Segments of one sequence also get
 * their row of a type table, as BERT's do. What comes from outside has no gradient.
 *
 * Joined rows are put together in fp32 in one tensor, segment after segment, since looking rows up
 * by index wants a table, and are then brought into the order of examples by that look-up. */
#include <math.h>

#include "core/model/build.h"

int64_t bti_segment_rows(const bti_model *m, const bti_shape *shape, int32_t segment) {
    const bti_segment *s = &m->segment[segment];
    if (s->kind == BTI_SEGMENT_TOKENS) return shape->tokens;
    if (s->kind == BTI_SEGMENT_FEATURE) return shape->feature[s->feature];
    return shape->sentences * m->cfg.learned_rows;
}

void bti_shape_settle(const bti_model *m, bti_shape *shape) {
    for (int32_t i = 0; i < m->segments; i++) {
        const bti_segment *s = &m->segment[i];
        if (s->role != BTI_SEGMENT_MAIN) continue;
        if (s->kind == BTI_SEGMENT_TOKENS)
            shape->tokens = shape->rows[0];
        else
            shape->feature[s->feature] = shape->rows[0];
    }
}

int64_t bti_joined_rows(const bti_model *m, const bti_shape *shape) {
    int64_t rows = 0;
    for (int32_t i = 0; i < m->segments; i++)
        if (m->segment[i].role == BTI_SEGMENT_JOINED) rows += bti_segment_rows(m, shape, i);
    return rows;
}

static bti_ref table(const bti_build *b, int32_t i, bti_segment_table which) {
    return bti_all(b->p, b->segment[i][which]);
}

static bti_tid acc_new(bti_build *b, const char *name, bti_class cls, int64_t rows) {
    return bti_tensor_new(b->p, name, -1, BTI_KIND_ACTIVATION, cls, b->acc, rows,
                          b->m->cfg.d_model);
}

/* x += a row, in place. */
static void add_row(bti_build *b, bti_ref x, bti_ref row) {
    bti_emit(b->p, BT_OP_BIAS_ACT_FWD,
             BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = x, [BT_BIAS_ACT_FWD_BIAS] = row,
                          [BT_BIAS_ACT_FWD_Y] = x),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE}}, 0);
}

/* y = y + x, or y = x; types may differ. */
static void add_to(bti_build *b, bti_ref x, bti_ref y, int overwrite) {
    bti_emit(b->p, BT_OP_AXPBY, BTI_OPERANDS([BT_AXPBY_X] = x, [BT_AXPBY_Y] = y),
             &(bt_op_params){.axpby = {1, overwrite ? 0 : 1}}, 0);
}

/* The same rows in the other type: `x` itself where there is but one. */
static bti_tid convert(bti_build *b, bti_tid x, bt_dtype from, bt_dtype to, bti_class cls) {
    if (from == to) return x;
    bti_tid y = bti_tensor_new(b->p, "converted", -1, BTI_KIND_ACTIVATION, cls, to,
                               bti_tensor_rows(b->p, x), b->m->cfg.d_model);
    bti_emit(b->p, BT_OP_AXPBY,
             BTI_OPERANDS([BT_AXPBY_X] = bti_all(b->p, x), [BT_AXPBY_Y] = bti_all(b->p, y)),
             &(bt_op_params){.axpby = {1, 0}}, 0);
    return y;
}

/* ---- one segment -------------------------------------------------------------------------------
 */

static bti_ref positions_of(const bti_build *b, const bti_segment *s) {
    if (!s->has_positions) return (bti_ref){0};
    return s->positions < 0 ? bti_all(b->p, b->sinusoids) : bti_weight(b, s->positions);
}

/* Projection, norm and positions into `out`. A norm's input is kept. */
static void feature_fwd(bti_build *b, int32_t i, bti_ref out) {
    bti_program *p = b->p;
    const bti_segment *s = &b->m->segment[i];
    bti_ref x = table(b, i, BTI_SEGMENT_VALUES), w = bti_weight(b, s->projection.w);
    bti_ref rowpos = table(b, i, BTI_SEGMENT_ROWPOS), none = {0}, to = out;
    if (s->has_positions)
        bti_look_up(b, positions_of(b, s), bti_cols(rowpos, 1, 1), rowpos, none, out, 1,
                    (bt_drop){0});
    if (!s->has_norm) {
        bti_linear_add(b, x, w, out, s->has_positions);
        add_row(b, out, bti_weight(b, s->projection.b));
        return;
    }
    bti_fused *f = &b->fused[i];
    f->raw = acc_new(b, "projection", BTI_CLASS_INPUT, x.rows);
    f->stats = bti_tensor_new(p, "norm statistics", -1, BTI_KIND_ACTIVATION, BTI_CLASS_STATS,
                              b->acc, x.rows, 2);
    bti_linear_into(b, x, w, bti_all(p, f->raw));
    add_row(b, bti_all(p, f->raw), bti_weight(b, s->projection.b));
    if (s->has_positions) to = bti_all(p, acc_new(b, "norm", BTI_CLASS_INPUT, x.rows));
    bti_emit(p, BT_OP_NORM_FWD,
             BTI_OPERANDS([BT_NORM_FWD_X] = bti_all(p, f->raw),
                          [BT_NORM_FWD_GAMMA] = bti_weight(b, s->norm.w),
                          [BT_NORM_FWD_BETA] = bti_weight(b, s->norm.b), [BT_NORM_FWD_Y] = to,
                          [BT_NORM_FWD_STATS] = bti_all(p, f->stats)),
             &(bt_op_params){.norm = {.eps = b->m->cfg.norm_eps}}, 0);
    if (s->has_positions) add_to(b, to, out, 0);
}

static void feature_bwd(bti_build *b, int32_t i, bti_ref dy) {
    bti_program *p = b->p;
    const bti_segment *s = &b->m->segment[i];
    double beta = bti_grad_beta(b);
    if (s->has_norm) {
        bti_ref dx = bti_all(p, acc_new(b, "d projection", BTI_CLASS_NONE, dy.rows));
        bti_emit(p, BT_OP_NORM_BWD,
                 BTI_OPERANDS([BT_NORM_BWD_DY] = dy, [BT_NORM_BWD_X] = bti_all(p, b->fused[i].raw),
                              [BT_NORM_BWD_STATS] = bti_all(p, b->fused[i].stats),
                              [BT_NORM_BWD_GAMMA] = bti_weight(b, s->norm.w), [BT_NORM_BWD_DX] = dx,
                              [BT_NORM_BWD_DGAMMA] = bti_grad(b, s->norm.w),
                              [BT_NORM_BWD_DBETA] = bti_grad(b, s->norm.b)),
                 &(bt_op_params){.norm = {.eps = b->m->cfg.norm_eps, .beta = beta}}, 0);
        dy = dx;
    }
    bti_bias_grad(b, dy, bti_grad(b, s->projection.b), beta);
    bti_linear_dw(b, dy, table(b, i, BTI_SEGMENT_VALUES), bti_grad(b, s->projection.w), beta);
}

static double scale_of(const bti_build *b, const bti_segment *s) {
    return s->kind == BTI_SEGMENT_TOKENS ? sqrt((double)b->m->cfg.d_model) : 1;
}

static bti_ref type_of(const bti_build *b, const bti_segment *s) {
    return bti_rows(bti_weight(b, b->m->types), s->type, 1);
}

static void segment_fwd(bti_build *b, int32_t i, bti_ref out) {
    const bti_segment *s = &b->m->segment[i];
    if (s->kind == BTI_SEGMENT_FEATURE)
        feature_fwd(b, i, out);
    else
        bti_look_up(b, bti_weight(b, s->table), table(b, i, BTI_SEGMENT_IDS),
                    table(b, i, BTI_SEGMENT_ROWPOS), positions_of(b, s), out, scale_of(b, s),
                    (bt_drop){0});
    if (s->type >= 0) add_row(b, out, type_of(b, s));
}

static void segment_bwd(bti_build *b, int32_t i, bti_ref dy) {
    const bti_segment *s = &b->m->segment[i];
    bti_ref rowpos = table(b, i, BTI_SEGMENT_ROWPOS);
    const bti_tid *t = b->segment[i];
    double gb = bti_grad_beta(b);
    if (s->type >= 0 && bti_trains(b, b->m->types))
        bti_bias_grad(b, dy, bti_rows(bti_grad(b, b->m->types), s->type, 1), gb);
    if (s->has_positions && s->positions >= 0)
        bti_rows_bwd(b, dy, rowpos, t[BTI_SEGMENT_POSITION_ORDER], t[BTI_SEGMENT_POSITION_SEGS],
                     bti_grad(b, s->positions), &(bt_op_params){.embed = {.scale = 1, .beta = gb}});
    if (s->kind == BTI_SEGMENT_FEATURE) {
        feature_bwd(b, i, dy);
        return;
    }
    double beta = b->table_written & 1ull << s->table ? 1 : gb;
    bti_rows_bwd(b, dy, rowpos, t[BTI_SEGMENT_ORDER], t[BTI_SEGMENT_SEGS], bti_grad(b, s->table),
                 &(bt_op_params){.embed = {.scale = scale_of(b, s), .beta = beta}});
    b->table_written |= 1ull << s->table;
}

/* ---- joined rows -------------------------------------------------------------------------------
 */

/* Rows of the joined sequences and their dropout: the encoder's own, or those it attends to. */
typedef struct joined {
    bti_ref rowpos;
    bt_drop drop;
    int64_t rows;
} joined;

static joined joined_of(const bti_build *b) {
    const bti_model *m = b->m;
    int inside = m->cfg.fusion == BTI_FUSION_CROSS;
    int32_t site = inside ? 2 + 2 * m->layers * BTI_MAX_BLOCKS : 0;
    return (joined){.rowpos = inside ? bti_all(b->p, b->join[BTI_JOIN_ROWPOS]) : bti_rowpos(b, 0),
                    .drop = bti_drop_at(b, m->cfg.embedding_dropout, site),
                    .rows = inside ? bti_joined_rows(m, &b->step->shape) : b->step->shape.rows[0]};
}

static bti_tid join_fwd(bti_build *b) {
    bti_program *p = b->p;
    const bti_model *m = b->m;
    joined j = joined_of(b);
    bti_tid all = acc_new(b, "segments", BTI_CLASS_INPUT, bti_joined_rows(m, &b->step->shape));
    int64_t at = 0;
    for (int32_t i = 0; i < m->segments; i++) {
        if (m->segment[i].role != BTI_SEGMENT_JOINED) continue;
        int64_t n = bti_segment_rows(m, &b->step->shape, i);
        segment_fwd(b, i, bti_rows(bti_all(p, all), at, n));
        at += n;
    }
    bti_tid y = bti_activation_new(b, "encoder input", -1, BTI_CLASS_INPUT, j.rows, m->cfg.d_model);
    bti_look_up(b, bti_all(p, all), bti_rows(bti_all(p, b->join[BTI_JOIN_INDEX]), 0, j.rows),
                j.rowpos, (bti_ref){0}, bti_all(p, y), 1, j.drop);
    return y;
}

static void join_bwd(bti_build *b, bti_tid dy) {
    bti_program *p = b->p;
    const bti_model *m = b->m;
    joined j = joined_of(b);
    bti_tid all = acc_new(b, "d segments", BTI_CLASS_NONE, bti_joined_rows(m, &b->step->shape));
    bti_emit(p, BT_OP_EMBED_BWD,
             BTI_OPERANDS([BT_EMBED_BWD_DY] = bti_all(p, dy), [BT_EMBED_BWD_ROWPOS] = j.rowpos,
                          [BT_EMBED_BWD_ORDER] =
                              bti_rows(bti_all(p, b->join[BTI_JOIN_ORDER]), 0, j.rows),
                          [BT_EMBED_BWD_SEGS] = bti_all(p, b->join[BTI_JOIN_SEGS]),
                          [BT_EMBED_BWD_DTABLE] = bti_all(p, all)),
             &(bt_op_params){.embed = {.scale = 1, .drop = j.drop}}, 0);
    int64_t at = 0;
    for (int32_t i = 0; i < m->segments; i++) {
        if (m->segment[i].role != BTI_SEGMENT_JOINED) continue;
        int64_t n = bti_segment_rows(m, &b->step->shape, i);
        segment_bwd(b, i, bti_rows(bti_all(p, all), at, n));
        at += n;
    }
}

/* ---- rows mixed into others --------------------------------------------------------------------
 */

/* A feature's row for each row of the encoder. */
static bti_tid mixed_rows(bti_build *b, int32_t i) {
    bti_program *p = b->p;
    bti_tid u =
        acc_new(b, "projection", BTI_CLASS_INPUT, bti_segment_rows(b->m, &b->step->shape, i));
    segment_fwd(b, i, bti_all(p, u));
    bti_tid g = bti_activation_new(b, "feature", -1, BTI_CLASS_INPUT, b->step->shape.rows[0],
                                   b->m->cfg.d_model);
    bti_look_up(b, bti_all(p, u), table(b, i, BTI_SEGMENT_INDEX), bti_rowpos(b, 0), (bti_ref){0},
                bti_all(p, g), 1, (bt_drop){0});
    return g;
}

static void mixed_rows_bwd(bti_build *b, int32_t i, bti_tid dg) {
    bti_program *p = b->p;
    bti_tid du =
        acc_new(b, "d projection", BTI_CLASS_NONE, bti_segment_rows(b->m, &b->step->shape, i));
    bti_rows_bwd(b, bti_all(p, dg), bti_rowpos(b, 0), b->segment[i][BTI_SEGMENT_INDEX_ORDER],
                 b->segment[i][BTI_SEGMENT_INDEX_SEGS], bti_all(p, du),
                 &(bt_op_params){.embed = {.scale = 1}});
    segment_bwd(b, i, bti_all(p, du));
}

/* Halves of a gate's weight: what x and what the feature say. */
static bti_ref half(const bti_build *b, bti_ref w, int feature) {
    int64_t d = b->m->cfg.d_model;
    return bti_cols(w, feature ? d : 0, d);
}

static bti_tid gate_fwd(bti_build *b, int32_t i, bti_tid x, bti_tid g) {
    bti_program *p = b->p;
    const bti_segment *s = &b->m->segment[i];
    int64_t rows = bti_tensor_rows(p, x), d = b->m->cfg.d_model;
    bti_fused *f = &b->fused[i];
    bti_ref w = bti_weight(b, s->gate.w);
    f->x = x;
    f->g = g;
    f->z = bti_activation_new(b, "gate", -1, BTI_CLASS_INPUT, rows, d);
    bti_linear_into(b, bti_all(p, x), half(b, w, 0), bti_all(p, f->z));
    bti_linear_add(b, bti_all(p, g), half(b, w, 1), bti_all(p, f->z), 1);
    bti_tid y = bti_activation_new(b, "mixed", -1, BTI_CLASS_INPUT, rows, d);
    bti_emit(p, BT_OP_GATE_FWD,
             BTI_OPERANDS([BT_GATE_FWD_A] = bti_all(p, x), [BT_GATE_FWD_B] = bti_all(p, g),
                          [BT_GATE_FWD_Z] = bti_all(p, f->z),
                          [BT_GATE_FWD_BIAS] = bti_weight(b, s->gate.b),
                          [BT_GATE_FWD_Y] = bti_all(p, y)),
             &(bt_op_params){0}, 0);
    return y;
}

/* Gives the gradient of x, and that of the feature in *dg. */
static bti_tid gate_bwd(bti_build *b, int32_t i, bti_tid dy, bti_tid *dg) {
    bti_program *p = b->p;
    const bti_segment *s = &b->m->segment[i];
    const bti_fused *f = &b->fused[i];
    int64_t rows = bti_tensor_rows(p, dy), d = b->m->cfg.d_model;
    double beta = bti_grad_beta(b);
    bti_ref w = bti_weight(b, s->gate.w), dw = bti_grad(b, s->gate.w);
    bti_tid dx = bti_activation_new(b, "d mixed", -1, BTI_CLASS_NONE, rows, d);
    bti_tid dz = bti_activation_new(b, "d gate", -1, BTI_CLASS_NONE, rows, d);
    *dg = bti_activation_new(b, "d feature", -1, BTI_CLASS_NONE, rows, d);
    bti_emit(p, BT_OP_GATE_BWD,
             BTI_OPERANDS([BT_GATE_BWD_DY] = bti_all(p, dy), [BT_GATE_BWD_A] = bti_all(p, f->x),
                          [BT_GATE_BWD_B] = bti_all(p, f->g), [BT_GATE_BWD_Z] = bti_all(p, f->z),
                          [BT_GATE_BWD_BIAS] = bti_weight(b, s->gate.b),
                          [BT_GATE_BWD_DA] = bti_all(p, dx), [BT_GATE_BWD_DB] = bti_all(p, *dg),
                          [BT_GATE_BWD_DZ] = bti_all(p, dz)),
             &(bt_op_params){0}, 0);
    bti_ref z = bti_all(p, dz);
    bti_bias_grad(b, z, bti_grad(b, s->gate.b), beta);
    if (dw.id != 0) {
        bti_linear_dw(b, z, bti_all(p, f->x), half(b, dw, 0), beta);
        bti_linear_dw(b, z, bti_all(p, f->g), half(b, dw, 1), beta);
    }
    bti_linear_dx(b, z, half(b, w, 0), bti_all(p, dx), 1);
    bti_linear_dx(b, z, half(b, w, 1), bti_all(p, *dg), 1);
    return dx;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bti_tid dropped(bti_build *b, bti_tid x, int backward) {
    bti_program *p = b->p;
    bt_drop drop = bti_drop_at(b, b->m->cfg.embedding_dropout, 0);
    bti_ref rowpos = bti_rowpos(b, 0);
    if (!(drop.p > 0)) return x;
    bti_tid y =
        bti_activation_new(b, "encoder input", -1, backward ? BTI_CLASS_NONE : BTI_CLASS_INPUT,
                           bti_tensor_rows(p, x), b->m->cfg.d_model);
    bt_op_params params = {.bias_act = {.act = BT_ACT_NONE, .drop = drop}};
    if (backward)
        bti_emit(
            p, BT_OP_BIAS_ACT_BWD,
            BTI_OPERANDS([BT_BIAS_ACT_BWD_DY] = bti_all(p, x), [BT_BIAS_ACT_BWD_ROWPOS] = rowpos,
                         [BT_BIAS_ACT_BWD_DX] = bti_all(p, y)),
            &params, 0);
    else
        bti_emit(
            p, BT_OP_BIAS_ACT_FWD,
            BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = bti_all(p, x), [BT_BIAS_ACT_FWD_ROWPOS] = rowpos,
                         [BT_BIAS_ACT_FWD_Y] = bti_all(p, y)),
            &params, 0);
    return y;
}

static int32_t main_segment(const bti_model *m) {
    for (int32_t i = 0; i < m->segments; i++)
        if (m->segment[i].role == BTI_SEGMENT_MAIN) return i;
    return -1;
}

bti_tid bti_encoder_input(bti_build *b) {
    bti_program *p = b->p;
    const bti_model *m = b->m;
    if (m->segments == 0) return bti_embedding_fwd(b, 0);
    if (m->cfg.fusion == BTI_FUSION_CONCAT) return join_fwd(b);
    if (m->cfg.fusion == BTI_FUSION_CROSS) {
        b->memory[0] = join_fwd(b);
        bti_tensor_keep(p, b->memory[0]);
    }
    bti_tid x = acc_new(b, "encoder input", BTI_CLASS_INPUT, b->step->shape.rows[0]);
    segment_fwd(b, main_segment(m), bti_all(p, x));
    x = convert(b, x, b->acc, b->dtype, BTI_CLASS_INPUT);
    for (int32_t i = 0; i < m->segments; i++) {
        if (m->segment[i].role != BTI_SEGMENT_MIXED) continue;
        bti_tid g = mixed_rows(b, i);
        if (m->cfg.fusion == BTI_FUSION_GATE)
            x = gate_fwd(b, i, x, g);
        else
            add_to(b, bti_all(p, g), bti_all(p, x), 0);
    }
    return dropped(b, x, 0);
}

void bti_encoder_input_bwd(bti_build *b, bti_tid dy) {
    bti_program *p = b->p;
    const bti_model *m = b->m;
    if (m->segments == 0) {
        bti_embedding_bwd(b, 0, dy);
        return;
    }
    if (m->cfg.fusion == BTI_FUSION_CONCAT) {
        join_bwd(b, dy);
        return;
    }
    bti_tid dx = dropped(b, dy, 1);
    for (int32_t i = m->segments - 1; i >= 0; i--) {
        bti_tid dg = dx;
        if (m->segment[i].role != BTI_SEGMENT_MIXED) continue;
        if (m->cfg.fusion == BTI_FUSION_GATE) dx = gate_bwd(b, i, dx, &dg);
        mixed_rows_bwd(b, i, dg);
    }
    dx = convert(b, dx, b->dtype, b->acc, BTI_CLASS_NONE);
    segment_bwd(b, main_segment(m), bti_all(p, dx));
    if (m->cfg.fusion == BTI_FUSION_CROSS) join_bwd(b, b->dmemory[0]);
}
