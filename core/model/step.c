/* The program of a micro-batch: both stacks forward, the output in chunks, both stacks backward;
 * and the integer tables that it reads. */
#include <string.h>

#include "core/base/status.h"
#include "core/model/build.h"

/* Rows and columns of a table for a shape. */
static void table_size(const bti_shape *s, int side, int table, int64_t *rows, int64_t *cols) {
    *cols = 1;
    switch (table) {
    case BTI_TABLE_IDS:
    case BTI_TABLE_ORDER:
    case BTI_TABLE_POSITION_ORDER:
        *rows = s->rows[side];
        break;
    case BTI_TABLE_ROWPOS:
        *rows = s->rows[side];
        *cols = 2;
        break;
    case BTI_TABLE_SEGS:
        *rows = s->distinct[side] + 1;
        *cols = 2;
        break;
    case BTI_TABLE_POSITION_SEGS:
        *rows = s->longest[side] + 1;
        *cols = 2;
        break;
    case BTI_TABLE_LABELS:
        *rows = s->rows[1];
        break;
    default:
        *rows = s->sentences;
        *cols = BT_SEQ_COLS;
        break;
    }
}

static int table_exists(const bti_model *m, int side, int table) {
    if (table == BTI_TABLE_POSITION_ORDER || table == BTI_TABLE_POSITION_SEGS)
        return m->cfg.positions == BTI_POSITIONS_LEARNED;
    return side == 0 || table < BTI_TABLE_SIDED;
}

void bti_staging_plan(const bti_model *m, const bti_shape *caps, uint64_t alignment,
                      bti_staging *out) {
    uint64_t at = 0;
    memset(out, 0, sizeof *out);
    out->positions = m->cfg.positions == BTI_POSITIONS_LEARNED;
    for (int side = 0; side < 2; side++)
        for (int t = 0; t < BTI_TABLE_COUNT; t++) {
            int64_t rows, cols;
            if (!table_exists(m, side, t)) continue;
            table_size(caps, side, t, &rows, &cols);
            out->at[side][t] = at;
            at += (uint64_t)(rows * cols) * sizeof(int32_t);
            at = (at + alignment - 1) / alignment * alignment;
        }
    out->bytes = at;
}

/* The integer tables of a micro-batch. */
static void declare_tables(bti_build *b, const bti_places *places) {
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < BTI_TABLE_COUNT; k++) {
            int64_t rows, cols;
            if (!table_exists(b->m, side, k)) continue;
            table_size(&b->step->shape, side, k, &rows, &cols);
            b->table[side][k] = bti_tensor_fixed(b->p, "table", BTI_REGION_STAGING,
                                                 places->staging.at[side][k], BT_I32, rows, cols);
        }
}

/* Layers of a side: where they begin and how many. */
static int32_t stack_of(const bti_model *m, int decoder, int32_t *first) {
    int32_t encoder = (int32_t)m->cfg.encoder_layers;
    *first = decoder ? encoder : 0;
    return decoder ? m->layers - encoder : encoder;
}

bti_tid bti_stack_fwd(bti_build *b, int decoder, bti_tid x, bti_tid *norm_input,
                      bti_tid *norm_stats) {
    const bti_model *m = b->m;
    int32_t first, n = stack_of(m, decoder, &first);
    for (int32_t i = first; i < first + n; i++) x = bti_layer_fwd(b, &m->layer[i], x, &m->saved[i]);
    *norm_input = x;
    if (!m->cfg.final_norm) return x;
    return bti_norm_fwd(b, &m->final_norm[decoder], x, -1, BTI_CLASS_INPUT, norm_stats);
}

/* The final norm of a side in forward: what its backward needs. */
typedef struct final_norm {
    bti_tid x, stats;
} final_norm;

/* Backward through the stack of a side that learns, down to where nothing below learns: then the
 * result is 0, else the gradient of the embeddings. */
static bti_tid stack_bwd(bti_build *b, int decoder, const final_norm *norm, bti_tid dy) {
    const bti_model *m = b->m;
    int32_t first, n = stack_of(m, decoder, &first);
    if (m->cfg.final_norm)
        dy = bti_norm_bwd(b, &m->final_norm[decoder], dy, norm->x, norm->stats, 0, -1);
    for (int32_t i = first + n - 1; i >= first && dy != 0; i--) {
        const bti_layer *l = &m->layer[i];
        if (m->lowest[decoder] > bti_unit(m, l, l->blocks - 1)) return 0;
        dy = bti_layer_bwd(b, l, dy, &m->saved[i]);
    }
    return dy;
}

static void backward(bti_build *b, const final_norm norm[2], bti_tid dhidden) {
    if (!bti_model_learns(b->m, 1)) return;
    if (bti_model_learns(b->m, 0))
        b->dmemory = bti_activation_new(b, "d encoder output", -1, BTI_CLASS_NONE,
                                        b->step->shape.rows[0], b->m->cfg.d_model);
    bti_tid dy = stack_bwd(b, 1, &norm[1], dhidden);
    if (dy != 0) bti_embedding_bwd(b, 1, dy);
    if (b->dmemory != 0) dy = stack_bwd(b, 0, &norm[0], b->dmemory);
    if (b->dmemory != 0 && dy != 0) bti_embedding_bwd(b, 0, dy);
}

bt_status bti_model_emit_step(bti_program *p, const bti_step *step, bti_train_program *out) {
    const bti_model *m = step->model;
    bti_build b = {.p = p,
                   .step = step,
                   .m = m,
                   .dtype = m->data,
                   .acc = bti_dtype_acc(m->params.dtype),
                   .round = m->data == m->params.dtype ? BT_F32 : m->data,
                   .tf32 = (uint8_t)m->tf32};
    final_norm norm[2] = {{0, 0}, {0, 0}};
    bti_tid loss = 0, dhidden = 0;
    bti_program_begin(p, step->choices.keep, m->layers);
    bti_declare_parameters(&b, step->places);
    declare_tables(&b, step->places);
    b.scalars = bti_tensor_fixed(p, "scalars", BTI_REGION_CONSTANT, step->places->scalars, b.acc, 1,
                                 BT_SCALAR_COUNT);
    memset(m->saved, 0, (size_t)m->layers * sizeof *m->saved);
    b.memory = bti_stack_fwd(&b, 0, bti_embedding_fwd(&b, 0), &norm[0].x, &norm[0].stats);
    bti_tensor_keep(p, b.memory); /* every decoder layer reads it */
    bti_tid hidden = bti_stack_fwd(&b, 1, bti_embedding_fwd(&b, 1), &norm[1].x, &norm[1].stats);
    bti_output(&b, hidden, &loss, &dhidden);
    if (step->training) backward(&b, norm, dhidden);
    BT_TRY(bti_program_end(p));
    *out = (bti_train_program){.p = p, .loss = loss, .hidden = hidden};
    return BT_OK;
}
