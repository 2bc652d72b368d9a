#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/model/build.h"

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
    m->positions[0] = m->positions[1] = -1;
    for (int side = 0; side < 2 && c->positions == BTI_POSITIONS_LEARNED; side++) {
        m->positions[side] =
            bti_params_add(&m->params, side ? "tgt_positions.weight" : "src_positions.weight", 2,
                           c->position_rows, d, BTI_INIT_EMBEDDING);
        bad = bad || m->positions[side] < 0;
    }
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
    m->params.dtype = m->data = dtype;
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
    bti_model_find_lowest(m);
    *out = m;
    return BT_OK;
}

void bti_model_compute(bti_model *m, bt_dtype data, int tf32) {
    m->data = data;
    m->tf32 = tf32;
}

uint32_t bti_model_may_compact(const bti_model *m) {
    uint32_t sides = 0;
    for (int side = 0; side < 2; side++)
        if (m->embed[side] != m->embed[!side] && m->embed[side] != m->generator.w &&
            !m->params.param[m->embed[side]].frozen)
            sides |= 1u << side;
    return sides;
}

void bti_model_free(bti_model *m) {
    if (m == NULL) return;
    bti_params_clear(&m->params);
    bti_free(m->layer);
    bti_free(m->saved);
    bti_free(m);
}

int64_t bti_model_sinusoid_rows(const bti_model *m, int64_t max_length) {
    return m->cfg.positions == BTI_POSITIONS_LEARNED ? 0 : max_length;
}

void bti_model_sinusoids(const bti_model *m, int64_t rows, void *out) {
    int64_t d = m->cfg.d_model;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c++) {
            double angle = (double)r * exp(-log(1e4) * (double)(c / 2 * 2) / (double)d);
            bti_store(out, m->params.dtype, r * d + c, c % 2 ? cos(angle) : sin(angle));
        }
}
