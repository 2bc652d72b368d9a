/* The program of an update's end: norm of all gradients, scalars, optimiser step; over the flat
 * state regions, a piece for each heap, and over the tables whose gradients are compact. Moments of
 * the host come in more and smaller pieces, one for each turn of a bucket. */
#include "core/base/status.h"
#include "core/model/model.h"

static const char *const region_name[] = {"weights", "gradients", "moment 1", "moment 2"};

/* Elements of the piece of a region of `bytes` that begins at `at`. */
static int64_t piece_of(const bti_update_step *step, uint64_t at, uint64_t bytes) {
    uint64_t most = step->heap && step->heap < bytes - at ? step->heap : bytes - at;
    return (int64_t)(most / bti_dtype_size(step->model->params.dtype));
}

static int64_t blocks_of(int64_t n) { return (n + BT_SUMSQ_BLOCK - 1) / BT_SUMSQ_BLOCK; }

static bti_ref flat(bti_program *p, const bti_update_step *step, bti_region region, uint64_t at,
                    int64_t n) {
    return bti_all(
        p, bti_tensor_fixed(p, region_name[region], region, at, step->model->params.dtype, 1, n));
}

/* Sums of squares of gradients from `at` to `end`, a piece for each heap, into rows of `part` from
 * *row on; no part: only counts them. */
static void emit_sums(bti_program *p, const bti_update_step *step, uint64_t at, uint64_t end,
                      bti_tid part, int64_t *row) {
    uint64_t size = bti_dtype_size(step->model->params.dtype);
    for (int64_t n; at < end; at += (uint64_t)n * size) {
        n = piece_of(step, at, end);
        if (part)
            bti_emit(p, BT_OP_SUMSQ,
                     BTI_OPERANDS([BT_SUMSQ_X] = flat(p, step, BTI_REGION_GRADIENTS, at, n),
                                  [BT_SUMSQ_PART] = bti_rows(bti_all(p, part), *row, blocks_of(n))),
                     &(bt_op_params){0}, 0);
        *row += blocks_of(n);
    }
}

/* The same for all gradients. Each compact one begins a block of its own: its rows that no id has
 * are zero, so that the sums do not depend on how many there are. */
static int64_t emit_all_sums(bti_program *p, const bti_update_step *step, bti_tid part) {
    const bti_params *t = &step->model->params;
    int64_t row = 0;
    emit_sums(p, step, 0, t->dense_bytes, part, &row);
    for (int32_t i = 0; i < t->count; i++)
        if (t->param[i].compact)
            emit_sums(p, step, t->param[i].grad_address, t->param[i].grad_end, part, &row);
    return row;
}

static bti_tid emit_norm(bti_program *p, const bti_update_step *step) {
    bti_tid part =
        bti_tensor_new(p, "partial sums", -1, BTI_KIND_WORKSPACE, BTI_CLASS_NONE,
                       bti_dtype_acc(step->model->params.dtype), emit_all_sums(p, step, 0), 2);
    emit_all_sums(p, step, part);
    return part;
}

/* ---- the step ----------------------------------------------------------------------------------
 */

typedef struct emission {
    bti_program *p;
    const bti_update_step *step;
    bti_ref scalars;
    int pieces; /* so far */
} emission;

static bti_ref fixed(const emission *e, const char *name, bti_region region, uint64_t at,
                     bt_dtype dtype, int64_t rows, int64_t cols) {
    return bti_all(e->p, bti_tensor_fixed(e->p, name, region, at, dtype, rows, cols));
}

/* The moments of a piece of the weights at `at`: where that lies, or in the bucket whose turn it
 * is. */
static bti_ref moment(const emission *e, bti_region region, uint64_t at, int64_t rows,
                      int64_t cols) {
    const bti_moment_places *places = &e->step->places->moments;
    if (places->kind == BTI_MOMENTS_HOST) at = (uint64_t)(e->pieces % 2) * places->bucket;
    return fixed(e, region_name[region], region, at, e->step->model->params.dtype, rows, cols);
}

/* n weights at `at` with moments in 8 bits; `index` absent: g is as long. */
static void emit_8bit(emission *e, bti_ref g, bti_ref index, uint64_t at, int64_t n) {
    const bti_params *t = &e->step->model->params;
    bt_dtype acc = bti_dtype_acc(t->dtype);
    uint64_t code = bti_code_address(t, at);
    uint64_t scale = bti_scale_address(&e->step->places->moments, t, at);
    int64_t blocks = bti_moment_blocks(n);
    bti_emit(
        e->p, BT_OP_ADAMW8,
        BTI_OPERANDS([BT_ADAMW8_G] = g, [BT_ADAMW8_INDEX] = index, [BT_ADAMW8_SCALARS] = e->scalars,
                     [BT_ADAMW8_W] = flat(e->p, e->step, BTI_REGION_WEIGHTS, at, n),
                     [BT_ADAMW8_M] = fixed(e, "codes 1", BTI_REGION_MOMENT1, code, BT_U8, 1, n),
                     [BT_ADAMW8_MS] =
                         fixed(e, "scales 1", BTI_REGION_MOMENT1, scale, acc, 1, blocks),
                     [BT_ADAMW8_V] = fixed(e, "codes 2", BTI_REGION_MOMENT2, code, BT_U8, 1, n),
                     [BT_ADAMW8_VS] =
                         fixed(e, "scales 2", BTI_REGION_MOMENT2, scale, acc, 1, blocks)),
        &(bt_op_params){.adamw = e->step->adamw}, 0);
}

/* The flat part: a piece for each heap, no larger than a bucket where there are such. */
static void emit_dense(emission *e) {
    const bti_params *t = &e->step->model->params;
    uint64_t bucket = e->step->places->moments.bucket, size = bti_dtype_size(t->dtype);
    int64_t n;
    for (uint64_t at = 0; at < t->dense_bytes; at += (uint64_t)n * size, e->pieces++) {
        uint64_t heap = e->step->heap, end = heap ? (at / heap + 1) * heap : t->dense_bytes;
        if (end > t->dense_bytes) end = t->dense_bytes;
        n = (int64_t)((bucket && bucket < end - at ? bucket : end - at) / size);
        bti_ref g = flat(e->p, e->step, BTI_REGION_GRADIENTS, at, n);
        if (e->step->places->moments.kind == BTI_MOMENTS_8BIT) {
            emit_8bit(e, g, (bti_ref){0}, at, n);
            continue;
        }
        bti_emit(e->p, BT_OP_ADAMW,
                 BTI_OPERANDS([BT_ADAMW_G] = g, [BT_ADAMW_SCALARS] = e->scalars,
                              [BT_ADAMW_W] = flat(e->p, e->step, BTI_REGION_WEIGHTS, at, n),
                              [BT_ADAMW_M] = moment(e, BTI_REGION_MOMENT1, at, 1, n),
                              [BT_ADAMW_V] = moment(e, BTI_REGION_MOMENT2, at, 1, n)),
                 &(bt_op_params){.adamw = e->step->adamw}, 0);
    }
}

/* A table with a compact gradient: whole, or as many rows at a time as a bucket takes. */
static void emit_table(emission *e, int side) {
    const bti_params *t = &e->step->model->params;
    const bti_param *q = &t->param[e->step->model->embed[side]];
    const bti_moment_places *places = &e->step->places->moments;
    uint64_t row_bytes = (uint64_t)q->cols * bti_dtype_size(t->dtype);
    int64_t n = places->bucket ? (int64_t)(places->bucket / row_bytes) : q->rows;
    bti_ref w = fixed(e, q->name, BTI_REGION_WEIGHTS, q->address, t->dtype, q->rows, q->cols);
    bti_ref g =
        fixed(e, q->name, BTI_REGION_GRADIENTS, q->grad_address, t->dtype, q->grad_rows, q->cols);
    bti_ref index = fixed(e, "index", BTI_REGION_CONSTANT, e->step->places->index[side], BT_I32,
                          q->grad_rows, 1);
    if (places->kind == BTI_MOMENTS_8BIT) {
        emit_8bit(e, g, index, q->address, q->rows * q->cols);
        return;
    }
    for (int64_t row = 0; row < q->rows; row += n, e->pieces++) {
        bt_op_params p = {.adamw = e->step->adamw};
        uint64_t at = q->address + (uint64_t)row * row_bytes;
        if (n > q->rows - row) n = q->rows - row;
        p.adamw.first_row = row;
        bti_emit(e->p, BT_OP_ADAMW_ROWS,
                 BTI_OPERANDS([BT_ADAMW_ROWS_G] = g, [BT_ADAMW_ROWS_INDEX] = index,
                              [BT_ADAMW_ROWS_SCALARS] = e->scalars,
                              [BT_ADAMW_ROWS_W] = bti_rows(w, row, n),
                              [BT_ADAMW_ROWS_M] = moment(e, BTI_REGION_MOMENT1, at, n, q->cols),
                              [BT_ADAMW_ROWS_V] = moment(e, BTI_REGION_MOMENT2, at, n, q->cols)),
                 &p, 0);
    }
}

bt_status bti_model_emit_update(bti_program *p, const bti_update_step *step) {
    const bti_model *m = step->model;
    const bti_params *t = &m->params;
    bti_program_begin(p, NULL, 0);
    emission e = {.p = p, .step = step};
    e.scalars = fixed(&e, "scalars", BTI_REGION_CONSTANT, step->places->scalars,
                      bti_dtype_acc(t->dtype), 1, BT_SCALAR_COUNT);
    bti_tid part = emit_norm(p, step);
    bti_emit(p, BT_OP_UPDATE_SCALARS,
             BTI_OPERANDS([BT_UPDATE_SCALARS_PART] = bti_all(p, part), [BT_UPDATE_SCALARS_SCALARS] =
                                                                           e.scalars),
             &(bt_op_params){.update_scalars = step->scaling}, 0);
    emit_dense(&e);
    for (int side = 0; side < 2; side++)
        if (m->embed[side] >= 0 && t->param[m->embed[side]].compact) emit_table(&e, side);
    return bti_program_end(p);
}

/* ---- its pieces --------------------------------------------------------------------------------
 */

int32_t bti_update_first_piece(const bti_program *p) {
    int32_t k = 0;
    while (k < p->ops && p->op[k].op != BT_OP_ADAMW && p->op[k].op != BT_OP_ADAMW_ROWS) k++;
    return k;
}

bti_piece bti_update_piece(const bti_program *p, int32_t op) {
    const bti_op_record *o = &p->op[op];
    int rows = o->op == BT_OP_ADAMW_ROWS;
    const bti_ref *w = &o->t[rows ? BT_ADAMW_ROWS_W : BT_ADAMW_W];
    const bti_tensor *t = &p->tensor[w->id];
    uint64_t size = bti_dtype_size(t->dtype);
    return (bti_piece){.at = t->address + (uint64_t)(w->row * t->cols) * size,
                       .bytes = (uint64_t)(w->rows * w->cols) * size,
                       .moment = {o->t[rows ? BT_ADAMW_ROWS_M : BT_ADAMW_M],
                                  o->t[rows ? BT_ADAMW_ROWS_V : BT_ADAMW_V]}};
}
