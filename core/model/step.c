/* The program of a micro-batch: the stacks forward, the output in chunks, the stacks backward. */
#include <string.h>

#include "core/base/status.h"
#include "core/model/build.h"

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

/* From the output to the encoder's: through the decoder, or what pooled its rows. */
static void upper_bwd(bti_build *b, const final_norm *norm, bti_tid dhidden) {
    if (!bti_has_decoder(&b->m->cfg)) {
        bti_pool_bwd(b, dhidden);
        return;
    }
    bti_tid dy = stack_bwd(b, 1, norm, dhidden);
    if (dy != 0) bti_embedding_bwd(b, 1, dy);
}

static void backward(bti_build *b, const final_norm norm[2], bti_tid dhidden) {
    const bti_model *m = b->m;
    if (dhidden == 0) return;
    /* Pooling gives its query a gradient by way of the encoder's. */
    if (bti_model_learns(m, 0) || !bti_has_decoder(&m->cfg))
        b->dmemory[1] = bti_activation_new(b, "d encoder output", -1, BTI_CLASS_NONE,
                                           b->step->shape.rows[0], m->cfg.d_model);
    upper_bwd(b, &norm[1], dhidden);
    if (!bti_model_learns(m, 0)) return;
    if (b->memory[0] != 0 && m->lowest[0] == 0)
        b->dmemory[0] = bti_activation_new(b, "d features", -1, BTI_CLASS_NONE,
                                           bti_tensor_rows(b->p, b->memory[0]), m->cfg.d_model);
    bti_tid dy = stack_bwd(b, 0, &norm[0], b->dmemory[1]);
    if (dy != 0) bti_encoder_input_bwd(b, dy);
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
    bti_tid loss = 0, dhidden = 0, hidden, outputs = 0;
    bti_program_begin(p, step->choices.keep, m->layers);
    bti_declare_parameters(&b, step->places);
    bti_declare_tables(&b, &step->places->staging);
    b.scalars = bti_tensor_fixed(p, "scalars", BTI_REGION_CONSTANT, step->places->scalars, b.acc, 1,
                                 BT_SCALAR_COUNT);
    memset(m->saved, 0, (size_t)m->layers * sizeof *m->saved);
    b.memory[1] = bti_stack_fwd(&b, 0, bti_encoder_input(&b), &norm[0].x, &norm[0].stats);
    bti_tensor_keep(p, b.memory[1]); /* every decoder layer reads it */
    if (bti_has_decoder(&m->cfg))
        hidden = bti_stack_fwd(&b, 1, bti_embedding_fwd(&b, 1), &norm[1].x, &norm[1].stats);
    else
        hidden = bti_pool_fwd(&b);
    bti_output(&b, hidden, &loss, &dhidden);
    if (!step->training && !bti_has_decoder(&m->cfg)) outputs = bti_outputs(&b, hidden);
    if (step->training) backward(&b, norm, dhidden);
    BT_TRY(bti_program_end(p));
    *out = (bti_train_program){.p = p, .loss = loss, .outputs = outputs};
    return BT_OK;
}
