/* The program of an update's end: norm of all gradients, scalars, optimiser step, over the flat
 * state regions as far as parameters are trained, a piece for each heap. */
#include "core/base/status.h"
#include "core/model/model.h"

bt_status bti_model_emit_update(bti_program *p, const bti_update_step *step) {
    const bti_params *t = &step->model->params;
    static const char *const name[] = {"weights", "gradients", "moment 1", "moment 2"};
    bt_dtype acc = bti_dtype_acc(t->dtype);
    int64_t size = (int64_t)bti_dtype_size(t->dtype), total = (int64_t)t->trained;
    int64_t piece = step->heap ? (int64_t)step->heap : total, blocks = 0;
    bti_program_begin(p, NULL, 0);
    for (int64_t at = 0; at < total; at += piece)
        blocks += ((at + piece < total ? piece : total - at) / size + BT_SUMSQ_BLOCK - 1) /
                  BT_SUMSQ_BLOCK;
    bti_tid scalars = bti_tensor_fixed(p, "scalars", BTI_REGION_CONSTANT, step->places->scalars,
                                       acc, 1, BT_SCALAR_COUNT);
    bti_tid part =
        bti_tensor_new(p, "partial sums", -1, BTI_KIND_WORKSPACE, BTI_CLASS_NONE, acc, blocks, 2);
    int64_t row = 0;
    for (int64_t at = 0; at < total; at += piece) {
        int64_t n = (at + piece < total ? piece : total - at) / size;
        int64_t rows = (n + BT_SUMSQ_BLOCK - 1) / BT_SUMSQ_BLOCK;
        bti_tid g =
            bti_tensor_fixed(p, name[1], BTI_REGION_GRADIENTS, (uint64_t)at, t->dtype, 1, n);
        bti_emit(p, BT_OP_SUMSQ,
                 BTI_OPERANDS([BT_SUMSQ_X] = bti_all(p, g), [BT_SUMSQ_PART] = bti_rows(
                                                                bti_all(p, part), row, rows)),
                 &(bt_op_params){0}, 0);
        row += rows;
    }
    bti_emit(p, BT_OP_UPDATE_SCALARS,
             BTI_OPERANDS([BT_UPDATE_SCALARS_PART] = bti_all(p, part), [BT_UPDATE_SCALARS_SCALARS] =
                                                                           bti_all(p, scalars)),
             &(bt_op_params){0}, 0);
    for (int64_t at = 0; at < total; at += piece) {
        int64_t n = (at + piece < total ? piece : total - at) / size;
        bti_ref state[4];
        for (int i = 0; i < 4; i++)
            state[i] = bti_all(
                p, bti_tensor_fixed(p, name[i], (bti_region)i, (uint64_t)at, t->dtype, 1, n));
        bti_emit(
            p, BT_OP_ADAMW,
            BTI_OPERANDS([BT_ADAMW_G] = state[1], [BT_ADAMW_SCALARS] = bti_all(p, scalars),
                         [BT_ADAMW_W] = state[0], [BT_ADAMW_M] = state[2], [BT_ADAMW_V] = state[3]),
            &(bt_op_params){.adamw = step->adamw}, 0);
    }
    return bti_program_end(p);
}
