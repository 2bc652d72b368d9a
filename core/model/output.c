/* Output layer and cross-entropy in chunks of rows, inside the backward pass: a chunk's logits
 * become its losses and, in place, its gradient, which goes into the gradients of hidden rows,
 * weight and bias before the next chunk. No rows x vocabulary table ever exists. */
#include "core/model/build.h"

void bti_output(bti_build *b, bti_tid hidden, bti_tid *loss, bti_tid *dhidden) {
    bti_program *p = b->p;
    const bti_step *step = b->step;
    bti_pair gen = b->m->generator;
    int64_t rows = step->shape.rows[1], d = b->m->cfg.d_model, vocab = b->m->vocab[1];
    int64_t chunk = step->choices.logit_rows < rows ? step->choices.logit_rows : rows;
    bt_op_params ce = {.cross_entropy = {.smoothing = step->smoothing,
                                         .grad_scale = step->grad_scale,
                                         .grad = step->training != 0}};
    bti_tid scalars = step->training ? b->scalars : 0; /* the loss scale, for the gradient */
    *loss = bti_tensor_new(p, "losses", -1, BTI_KIND_ACTIVATION, BTI_CLASS_NONE, b->acc, rows, 2);
    bti_tensor_pin(p, *loss);
    bti_tid logits =
        bti_tensor_new(p, "logits", -1, BTI_KIND_LOGITS, BTI_CLASS_NONE, b->acc, chunk, vocab);
    int below = bti_model_learns(b->m, 1);
    if (step->training && below)
        *dhidden = bti_activation_new(b, "d decoder output", -1, BTI_CLASS_NONE, rows, d);
    bti_ref w = bti_weight(b, gen.w), h = bti_all(p, hidden);
    bti_ref labels = bti_all(p, b->table[0][BTI_TABLE_LABELS]);
    int64_t at = 0;
    bti_loop_begin(p);
    /* Without a row once all the same: the gradients want their first writer. */
    do {
        int64_t n = rows - at < chunk ? rows - at : chunk;
        bti_ref z = bti_rows(bti_all(p, logits), 0, n), hn = bti_rows(h, at, n);
        bti_linear_into(b, hn, w, z);
        bti_emit(p, BT_OP_CROSS_ENTROPY,
                 BTI_OPERANDS([BT_CROSS_ENTROPY_LOGITS] = z,
                              [BT_CROSS_ENTROPY_BIAS] = bti_weight(b, gen.b),
                              [BT_CROSS_ENTROPY_LABELS] = bti_rows(labels, at, n),
                              [BT_CROSS_ENTROPY_SCALARS] = bti_all(p, scalars),
                              [BT_CROSS_ENTROPY_LOSS] = bti_rows(bti_all(p, *loss), at, n)),
                 &ce, 0);
        if (step->training) {
            double beta = step->first_micro_batch && at == 0 ? 0 : 1;
            if (below) bti_linear_dx(b, z, w, bti_rows(bti_all(p, *dhidden), at, n), 0);
            bti_linear_dw(b, z, hn, bti_grad(b, gen.w), beta);
            bti_bias_grad(b, z, bti_grad(b, gen.b), beta);
        }
        bti_loop_next(p);
        at += chunk;
    } while (at < rows);
    bti_loop_end(p);
    b->table_written |= 1ull << gen.w;
}
