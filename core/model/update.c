/* The program of an update's end: norm of all gradients, scalars, optimiser step; over the flat
 * state regions, a piece for each heap, and over the tables whose gradients are compact. */
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

static void emit_table(bti_program *p, const bti_update_step *step, int side, bti_ref scalars) {
    const bti_params *t = &step->model->params;
    const bti_param *q = &t->param[step->model->embed[side]];
    bti_ref state[4];
    for (int i = BTI_REGION_WEIGHTS; i <= BTI_REGION_MOMENT2; i++) {
        int g = i == BTI_REGION_GRADIENTS;
        state[i] =
            bti_all(p, bti_tensor_fixed(p, q->name, (bti_region)i, g ? q->grad_address : q->address,
                                        t->dtype, g ? q->grad_rows : q->rows, q->cols));
    }
    bti_tid index = bti_tensor_fixed(p, "index", BTI_REGION_CONSTANT, step->places->index[side],
                                     BT_I32, q->grad_rows, 1);
    bti_emit(p, BT_OP_ADAMW_ROWS,
             BTI_OPERANDS([BT_ADAMW_ROWS_G] = state[1], [BT_ADAMW_ROWS_INDEX] = bti_all(p, index),
                          [BT_ADAMW_ROWS_SCALARS] = scalars, [BT_ADAMW_ROWS_W] = state[0],
                          [BT_ADAMW_ROWS_M] = state[2], [BT_ADAMW_ROWS_V] = state[3]),
             &(bt_op_params){.adamw = step->adamw}, 0);
}

bt_status bti_model_emit_update(bti_program *p, const bti_update_step *step) {
    const bti_model *m = step->model;
    const bti_params *t = &m->params;
    int64_t n;
    bti_program_begin(p, NULL, 0);
    bti_ref scalars =
        bti_all(p, bti_tensor_fixed(p, "scalars", BTI_REGION_CONSTANT, step->places->scalars,
                                    bti_dtype_acc(t->dtype), 1, BT_SCALAR_COUNT));
    bti_tid part = emit_norm(p, step);
    bti_emit(p, BT_OP_UPDATE_SCALARS,
             BTI_OPERANDS([BT_UPDATE_SCALARS_PART] = bti_all(p, part), [BT_UPDATE_SCALARS_SCALARS] =
                                                                           scalars),
             &(bt_op_params){.update_scalars = step->scaling}, 0);
    for (uint64_t at = 0; at < t->dense_bytes; at += (uint64_t)n * bti_dtype_size(t->dtype)) {
        n = piece_of(step, at, t->dense_bytes);
        bti_ref state[4];
        for (int i = BTI_REGION_WEIGHTS; i <= BTI_REGION_MOMENT2; i++)
            state[i] = flat(p, step, (bti_region)i, at, n);
        bti_emit(
            p, BT_OP_ADAMW,
            BTI_OPERANDS([BT_ADAMW_G] = state[1], [BT_ADAMW_SCALARS] = scalars,
                         [BT_ADAMW_W] = state[0], [BT_ADAMW_M] = state[2], [BT_ADAMW_V] = state[3]),
            &(bt_op_params){.adamw = step->adamw}, 0);
    }
    for (int side = 0; side < 2; side++)
        if (m->embed[side] >= 0 && t->param[m->embed[side]].compact)
            emit_table(p, step, side, scalars);
    return bti_program_end(p);
}
