#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/model/build.h"

/* ---- parameters -------------------------------------------------------------------------------
 */

static bt_status add_pair(bti_model *m, const char *prefix, const char *weight, const char *bias,
                          int dims, int64_t rows, int64_t cols, bti_init init, bti_pair *out) {
    char name[BTI_PARAM_NAME];
    snprintf(name, sizeof name, "%s%s", prefix, weight);
    out->w = bti_params_add(&m->params, name, dims, rows, cols, init);
    snprintf(name, sizeof name, "%s%s", prefix, bias);
    out->b = bti_params_add(&m->params, name, 1, 1, dims == 2 ? rows : cols, BTI_INIT_ZERO);
    return out->w < 0 || out->b < 0 ? BT_ENOMEM : BT_OK;
}

static bt_status add_norm(bti_model *m, const char *prefix, bti_pair *out) {
    return add_pair(m, prefix, "weight", "bias", 1, 1, m->cfg.d_model, BTI_INIT_ONE, out);
}

static bt_status add_attention(bti_model *m, const char *prefix, bti_block *k) {
    int64_t d = m->cfg.d_model;
    char out[88];
    snprintf(out, sizeof out, "%sout_proj.", prefix);
    BT_TRY(add_pair(m, prefix, "in_proj_weight", "in_proj_bias", 2, 3 * d, d, BTI_INIT_XAVIER,
                    &k->in));
    return add_pair(m, out, "weight", "bias", 2, d, d, BTI_INIT_XAVIER, &k->out);
}

static bt_status add_layer(bti_model *m, int decoder, int64_t i, bti_layer *l) {
    static const char *const attention[] = {"self_attn.", "multihead_attn."};
    int64_t d = m->cfg.d_model, ff = m->cfg.ff;
    char stem[40], name[64];
    snprintf(stem, sizeof stem, "transformer.%s.layers.%d.", decoder ? "decoder" : "encoder",
             (int)i);
    l->decoder = decoder;
    l->blocks = decoder ? 3 : 2;
    for (int n = 0; n < l->blocks; n++) {
        bti_block *k = &l->block[n];
        k->kind = n == l->blocks - 1 ? BTI_BLOCK_FF : n == 0 ? BTI_BLOCK_SELF : BTI_BLOCK_CROSS;
        k->site = 2 + 2 * (l->index * BTI_MAX_BLOCKS + n);
        if (k->kind != BTI_BLOCK_FF) {
            snprintf(name, sizeof name, "%s%s", stem, attention[n]);
            BT_TRY(add_attention(m, name, k));
            continue;
        }
        snprintf(name, sizeof name, "%slinear1.", stem);
        BT_TRY(add_pair(m, name, "weight", "bias", 2, ff, d, BTI_INIT_XAVIER, &k->in));
        snprintf(name, sizeof name, "%slinear2.", stem);
        BT_TRY(add_pair(m, name, "weight", "bias", 2, d, ff, BTI_INIT_XAVIER, &k->out));
    }
    for (int n = 0; n < l->blocks; n++) {
        snprintf(name, sizeof name, "%snorm%d.", stem, n + 1);
        BT_TRY(add_norm(m, name, &l->block[n].norm));
    }
    return BT_OK;
}

/* Tables first: their indices fit the bits of bti_build.table_written. */
static bt_status add_tables(bti_model *m) {
    const bti_model_config *c = &m->cfg;
    int64_t d = c->d_model;
    m->embed[0] =
        bti_params_add(&m->params, "src_embed.weight", 2, m->vocab[0], d, BTI_INIT_EMBEDDING);
    m->embed[1] = c->tie == BTI_TIE_ALL ? m->embed[0]
                                        : bti_params_add(&m->params, "tgt_embed.weight", 2,
                                                         m->vocab[1], d, BTI_INIT_EMBEDDING);
    m->generator.w = c->tie == BTI_TIE_NONE ? bti_params_add(&m->params, "generator.weight", 2,
                                                             m->vocab[1], d, BTI_INIT_XAVIER)
                                            : m->embed[1];
    m->generator.b = bti_params_add(&m->params, "generator.bias", 1, 1, m->vocab[1], BTI_INIT_ZERO);
    int bad = m->embed[0] < 0 || m->embed[1] < 0 || m->generator.w < 0 || m->generator.b < 0;
    return bad ? BT_ENOMEM : BT_OK;
}

static bt_status check(const bti_model_config *c, int64_t source_vocab, int64_t target_vocab) {
    if (c->d_model < 1 || c->heads < 1 || c->d_model % c->heads != 0)
        return bti_fail(BT_EUSAGE, "model.heads %lld does not divide model.d_model %lld",
                        (long long)c->heads, (long long)c->d_model);
    if (c->tie == BTI_TIE_ALL && source_vocab != target_vocab)
        return bti_fail(BT_EUSAGE,
                        "model.tie_embeddings all needs one vocabulary: source has %lld symbols, "
                        "target %lld; use target or none, or tokenizer.shared true",
                        (long long)source_vocab, (long long)target_vocab);
    return BT_OK;
}

bt_status bti_model_new(const bti_model_config *cfg, int64_t source_vocab, int64_t target_vocab,
                        bt_dtype dtype, bti_model **out) {
    BT_TRY(check(cfg, source_vocab, target_vocab));
    bti_model *m = bti_alloc(1, sizeof *m);
    if (m == NULL) return BT_ENOMEM;
    m->cfg = *cfg;
    m->vocab[0] = source_vocab;
    m->vocab[1] = target_vocab;
    m->params.dtype = dtype;
    m->layers = (int32_t)(cfg->encoder_layers + cfg->decoder_layers);
    m->layer = bti_alloc((size_t)m->layers, sizeof *m->layer);
    m->saved = bti_alloc((size_t)m->layers, sizeof *m->saved);
    bt_status status = m->layer == NULL || m->saved == NULL ? BT_ENOMEM : add_tables(m);
    for (int32_t i = 0; i < m->layers && status == BT_OK; i++) {
        int decoder = i >= cfg->encoder_layers;
        m->layer[i].index = i;
        status = add_layer(m, decoder, decoder ? i - cfg->encoder_layers : i, &m->layer[i]);
    }
    if (status == BT_OK && cfg->final_norm)
        status = add_norm(m, "transformer.encoder.norm.", &m->final_norm[0]);
    if (status == BT_OK && cfg->final_norm)
        status = add_norm(m, "transformer.decoder.norm.", &m->final_norm[1]);
    if (status != BT_OK) {
        bti_model_free(m);
        return status;
    }
    *out = m;
    return BT_OK;
}

void bti_model_free(bti_model *m) {
    if (m == NULL) return;
    bti_params_clear(&m->params);
    bti_free(m->layer);
    bti_free(m->saved);
    bti_free(m);
}

void bti_model_positions(const bti_model *m, int64_t rows, void *out) {
    int64_t d = m->cfg.d_model;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c++) {
            double angle = (double)r * exp(-log(1e4) * (double)(c / 2 * 2) / (double)d);
            bti_store(out, m->params.dtype, r * d + c, c % 2 ? cos(angle) : sin(angle));
        }
}

/* ---- staging ----------------------------------------------------------------------------------
 */

/* Rows and columns of a table for a shape. */
static void table_size(const bti_shape *s, int side, int table, int64_t *rows, int64_t *cols) {
    *cols = 1;
    switch (table) {
    case BTI_TABLE_IDS:
    case BTI_TABLE_ORDER:
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
    case BTI_TABLE_LABELS:
        *rows = s->rows[1];
        break;
    default:
        *rows = s->sentences;
        *cols = BT_SEQ_COLS;
        break;
    }
}

static int table_exists(int side, int table) { return side == 0 || table < BTI_TABLE_SIDED; }

void bti_staging_plan(const bti_shape *caps, uint64_t alignment, bti_staging *out) {
    uint64_t at = 0;
    memset(out, 0, sizeof *out);
    for (int side = 0; side < 2; side++)
        for (int t = 0; t < BTI_TABLE_COUNT; t++) {
            int64_t rows, cols;
            if (!table_exists(side, t)) continue;
            table_size(caps, side, t, &rows, &cols);
            out->at[side][t] = at;
            at += (uint64_t)(rows * cols) * sizeof(int32_t);
            at = (at + alignment - 1) / alignment * alignment;
        }
    out->bytes = at;
}

/* ---- emission ---------------------------------------------------------------------------------
 */

bt_drop bti_drop_at(const bti_build *b, double p, int32_t site) {
    if (!b->step->training) p = 0;
    return (bt_drop){
        .seed = b->step->seed, .update = b->step->update, .site = (uint32_t)site, .p = (float)p};
}

bti_tid bti_activation_new(bti_build *b, const char *name, int32_t layer, bti_class cls,
                           int64_t rows, int64_t cols) {
    return bti_tensor_new(b->p, name, layer, BTI_KIND_ACTIVATION, cls, b->dtype, rows, cols);
}

static void gemm(bti_build *b, bti_ref a, int trans_a, bti_ref w, int trans_b, bti_ref c,
                 double beta) {
    bti_emit(b->p, BT_OP_GEMM, BTI_OPERANDS([BT_GEMM_A] = a, [BT_GEMM_B] = w, [BT_GEMM_C] = c),
             &(bt_op_params){.gemm = {.trans_a = (uint8_t)trans_a,
                                      .trans_b = (uint8_t)trans_b,
                                      .alpha = 1,
                                      .beta = beta}},
             0);
}

void bti_linear_into(bti_build *b, bti_ref x, bti_ref w, bti_ref y) {
    if (b->row_tile == 0) {
        gemm(b, x, 0, w, 1, y, 0);
        return;
    }
    bti_loop_begin(b->p);
    for (int64_t at = 0; at < x.rows; at += b->row_tile) {
        gemm(b, bti_rows(x, at, b->row_tile), 0, w, 1, bti_rows(y, at, b->row_tile), 0);
        bti_loop_next(b->p);
    }
    bti_loop_end(b->p);
}

bti_tid bti_linear(bti_build *b, bti_ref x, bti_ref w, const char *name, int32_t layer,
                   bti_class cls) {
    bti_tid y = bti_activation_new(b, name, layer, cls, x.rows, w.rows);
    bti_linear_into(b, x, w, bti_all(b->p, y));
    return y;
}

void bti_linear_dw(bti_build *b, bti_ref dy, bti_ref x, bti_ref dw, double beta) {
    gemm(b, dy, 1, x, 0, dw, beta);
}

void bti_linear_dx(bti_build *b, bti_ref dy, bti_ref w, bti_ref dx, double beta) {
    gemm(b, dy, 0, w, 0, dx, beta);
}

void bti_bias_grad(bti_build *b, bti_ref dy, bti_ref db, double beta) {
    bti_emit(b->p, BT_OP_BIAS_ACT_BWD,
             BTI_OPERANDS([BT_BIAS_ACT_BWD_DY] = dy, [BT_BIAS_ACT_BWD_DBIAS] = db),
             &(bt_op_params){.bias_act = {.act = BT_ACT_NONE, .beta = beta}}, 0);
}

void bti_declare_parameters(bti_build *b, const bti_places *places) {
    bti_program *p = b->p;
    const bti_params *t = &b->m->params;
    for (int g = 0; g < 2; g++) {
        bti_region region = g ? BTI_REGION_GRADIENTS : BTI_REGION_WEIGHTS;
        for (int32_t i = 0; i < t->count; i++) {
            const bti_param *q = &t->param[i];
            bti_tid id =
                bti_tensor_fixed(p, q->name, region, q->address, t->dtype, q->rows, q->cols);
            if (i == 0 && g) b->grad0 = id;
            if (i == 0 && !g) b->weight0 = id;
        }
    }
    b->positions = bti_tensor_fixed(p, "positions", BTI_REGION_CONSTANT, places->positions,
                                    b->dtype, places->position_rows, b->m->cfg.d_model);
}

/* The integer tables of a micro-batch. */
static void declare_tables(bti_build *b, const bti_places *places) {
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < BTI_TABLE_COUNT; k++) {
            int64_t rows, cols;
            if (!table_exists(side, k)) continue;
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

static bti_tid stack_bwd(bti_build *b, int decoder, const final_norm *norm, bti_tid dy) {
    const bti_model *m = b->m;
    int32_t first, n = stack_of(m, decoder, &first);
    if (m->cfg.final_norm)
        dy = bti_norm_bwd(b, &m->final_norm[decoder], dy, norm->x, norm->stats, 0, -1);
    for (int32_t i = first + n - 1; i >= first; i--)
        dy = bti_layer_bwd(b, &m->layer[i], dy, &m->saved[i]);
    return dy;
}

static void backward(bti_build *b, const final_norm norm[2], bti_tid dhidden) {
    b->dmemory = bti_activation_new(b, "d encoder output", -1, BTI_CLASS_NONE,
                                    b->step->shape.rows[0], b->m->cfg.d_model);
    bti_embedding_bwd(b, 1, stack_bwd(b, 1, &norm[1], dhidden));
    bti_embedding_bwd(b, 0, stack_bwd(b, 0, &norm[0], b->dmemory));
}

bt_status bti_model_emit_step(bti_program *p, const bti_step *step, const uint32_t *keep,
                              bti_train_program *out) {
    const bti_model *m = step->model;
    bti_build b = {.p = p,
                   .step = step,
                   .m = m,
                   .dtype = m->params.dtype,
                   .acc = bti_dtype_acc(m->params.dtype)};
    final_norm norm[2] = {{0, 0}, {0, 0}};
    bti_tid loss = 0, dhidden = 0;
    bti_program_begin(p, keep, m->layers);
    bti_declare_parameters(&b, step->places);
    declare_tables(&b, step->places);
    memset(m->saved, 0, (size_t)m->layers * sizeof *m->saved);
    b.memory = bti_stack_fwd(&b, 0, bti_embedding_fwd(&b, 0), &norm[0].x, &norm[0].stats);
    bti_tid hidden = bti_stack_fwd(&b, 1, bti_embedding_fwd(&b, 1), &norm[1].x, &norm[1].stats);
    bti_output(&b, hidden, &loss, &dhidden);
    if (step->training) backward(&b, norm, dhidden);
    BT_TRY(bti_program_end(p));
    *out = (bti_train_program){.p = p, .loss = loss, .hidden = hidden};
    return BT_OK;
}

bt_status bti_model_emit_update(bti_program *p, const bti_update_step *step) {
    const bti_params *t = &step->model->params;
    static const char *const name[] = {"weights", "gradients", "moment 1", "moment 2"};
    bt_dtype acc = bti_dtype_acc(t->dtype);
    int64_t size = (int64_t)bti_dtype_size(t->dtype), total = (int64_t)t->bytes;
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
