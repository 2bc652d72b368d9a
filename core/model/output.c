/* Output layer and loss in chunks of rows, inside the backward pass: a chunk's logits become its
 * losses and, in place, its gradient, which goes into the gradients of hidden rows, weight and bias
 * before the next chunk. No rows x vocabulary table ever exists. */
#include "core/model/build.h"

/* Does anything that made the hidden rows learn? */
static int learns_below(const bti_model *m) {
    if (bti_has_decoder(&m->cfg)) return bti_model_learns(m, 1);
    return bti_model_learns(m, 0) || (m->pool_query >= 0 && !m->params.param[m->pool_query].frozen);
}

void bti_output(bti_build *b, bti_tid hidden, bti_tid *loss, bti_tid *dhidden) {
    bti_program *p = b->p;
    const bti_step *step = b->step;
    const bti_head *head = bti_head_of(&b->m->cfg);
    bti_pair gen = b->m->generator;
    int64_t rows = step->shape.rows[1], d = b->m->cfg.d_model, vocab = bti_model_outputs(b->m);
    int64_t chunk = step->choices.logit_rows < rows ? step->choices.logit_rows : rows;
    *loss = bti_tensor_new(p, "losses", -1, BTI_KIND_ACTIVATION, BTI_CLASS_NONE, b->acc, rows, 2);
    bti_tensor_pin(p, *loss);
    bti_tid logits =
        bti_tensor_new(p, "logits", -1, BTI_KIND_LOGITS, BTI_CLASS_NONE, b->acc, chunk, vocab);
    int below = learns_below(b->m);
    if (step->training && below)
        *dhidden =
            bti_activation_new(b, bti_has_decoder(&b->m->cfg) ? "d decoder output" : "d pooled", -1,
                               BTI_CLASS_NONE, rows, d);
    bti_ref w = bti_weight(b, gen.w), h = bti_all(p, hidden);
    int64_t at = 0;
    bti_loop_begin(p);
    /* Without a row once all the same: the gradients want their first writer. */
    do {
        int64_t n = rows - at < chunk ? rows - at : chunk;
        bti_ref z = bti_rows(bti_all(p, logits), 0, n), hn = bti_rows(h, at, n);
        bti_linear_into(b, hn, w, z);
        head->loss(b, z, at, bti_rows(bti_all(p, *loss), at, n));
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

bti_tid bti_outputs(bti_build *b, bti_tid hidden) {
    bti_program *p = b->p;
    int64_t rows = b->step->shape.rows[1], n = bti_model_outputs(b->m);
    bti_tid y = bti_tensor_new(p, "outputs", -1, BTI_KIND_LOGITS, BTI_CLASS_NONE, b->acc, rows, n);
    bti_linear_into(b, bti_all(p, hidden), bti_weight(b, b->m->generator.w), bti_all(p, y));
    bti_emit(p, BT_OP_BIAS_ACT_FWD,
             BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = bti_all(p, y),
                          [BT_BIAS_ACT_FWD_BIAS] = bti_weight(b, b->m->generator.b),
                          [BT_BIAS_ACT_FWD_Y] = bti_all(p, y)),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE}}, 0);
    bti_tensor_pin(p, y);
    return y;
}
