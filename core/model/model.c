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

/* Encoder layers with cross attention. */
static int attends_to_features(const bti_model *m) {
    return m->segments > 0 && m->cfg.fusion == BTI_FUSION_CROSS;
}

static bt_status add_layer(bti_model *m, int decoder, int64_t i, bti_layer *l) {
    static const char *const attention[] = {"self_attn.", "multihead_attn."};
    int64_t d = m->cfg.d_model, ff = m->cfg.ff;
    char stem[40], name[64];
    snprintf(stem, sizeof stem, "transformer.%s.layers.%d.", decoder ? "decoder" : "encoder",
             (int)i);
    l->decoder = decoder;
    l->blocks = decoder || attends_to_features(m) ? 3 : 2;
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

/* The index of a new table of so many rows; -1 when there are none or memory is out. */
static int32_t add_table(bti_model *m, const char *name, int64_t rows, bti_init init) {
    return rows > 0 ? bti_params_add(&m->params, name, 2, rows, m->cfg.d_model, init) : -1;
}

/* Tables first: their indices fit the bits of bti_build.table_written. */
static bt_status add_tables(bti_model *m) {
    const bti_model_config *c = &m->cfg;
    const int text = bti_has_decoder(c), wanted[2] = {m->vocab[0] > 0, text};
    m->embed[0] = add_table(m, "src_embed.weight", m->vocab[0], BTI_INIT_EMBEDDING);
    m->embed[1] = c->tie == BTI_TIE_ALL
                      ? m->embed[0]
                      : add_table(m, "tgt_embed.weight", m->vocab[1], BTI_INIT_EMBEDDING);
    m->generator.w = c->tie != BTI_TIE_NONE
                         ? m->embed[1]
                         : add_table(m, text ? "generator.weight" : "head.weight",
                                     bti_model_outputs(m), BTI_INIT_XAVIER);
    m->generator.b = bti_params_add(&m->params, text ? "generator.bias" : "head.bias", 1, 1,
                                    bti_model_outputs(m), BTI_INIT_ZERO);
    int bad = m->generator.w < 0 || m->generator.b < 0;
    m->positions[0] = m->positions[1] = -1;
    for (int side = 0; side < 2; side++) {
        bad = bad || (wanted[side] && m->embed[side] < 0);
        if (!wanted[side] || c->positions != BTI_POSITIONS_LEARNED) continue;
        m->positions[side] = add_table(m, side ? "tgt_positions.weight" : "src_positions.weight",
                                       c->position_rows, BTI_INIT_EMBEDDING);
        bad = bad || m->positions[side] < 0;
    }
    return bad ? BT_ENOMEM : BT_OK;
}

/* ---- segments ----------------------------------------------------------------------------------
 */

static bt_status add_feature(bti_model *m, bti_segment *s) {
    const bti_feature_config *f = &m->cfg.feature[s->feature];
    int64_t d = m->cfg.d_model;
    char stem[48], name[72];
    snprintf(stem, sizeof stem, "features.%.32s.", f->name);
    snprintf(name, sizeof name, "%sprojection.", stem);
    BT_TRY(add_pair(m, name, "weight", "bias", 2, d, f->width, BTI_INIT_XAVIER, &s->projection));
    snprintf(name, sizeof name, "%snorm.", stem);
    if (s->has_norm) BT_TRY(add_norm(m, name, &s->norm));
    snprintf(name, sizeof name, "%spositions.weight", stem);
    if (s->has_positions && m->cfg.positions == BTI_POSITIONS_LEARNED) {
        s->positions = add_table(m, name, f->rows, BTI_INIT_EMBEDDING);
        if (s->positions < 0) return BT_ENOMEM;
    }
    snprintf(name, sizeof name, "%sgate.", stem);
    if (s->role != BTI_SEGMENT_MIXED || m->cfg.fusion != BTI_FUSION_GATE) return BT_OK;
    return add_pair(m, name, "weight", "bias", 2, d, 2 * d, BTI_INIT_XAVIER, &s->gate);
}

static bti_segment *new_segment(bti_model *m, bti_segment_kind kind, int32_t feature) {
    static const bti_pair none = {-1, -1};
    bti_segment *s = &m->segment[m->segments];
    int joins = m->cfg.fusion == BTI_FUSION_CONCAT;
    *s = (bti_segment){.kind = kind,
                       .feature = feature,
                       .table = -1,
                       .projection = none,
                       .norm = none,
                       .gate = none,
                       .positions = -1,
                       .type = -1};
    s->role = joins                               ? BTI_SEGMENT_JOINED
              : m->segments == 0                  ? BTI_SEGMENT_MAIN
              : m->cfg.fusion == BTI_FUSION_CROSS ? BTI_SEGMENT_JOINED
                                                  : BTI_SEGMENT_MIXED;
    m->segments++;
    return s;
}

/* A type for each segment of a sequence of several; learned rows need none. */
static bt_status add_types(bti_model *m) {
    int32_t types = 0;
    m->types = -1;
    for (int32_t i = 0; i < m->segments; i++)
        if (m->segment[i].role == BTI_SEGMENT_JOINED && m->segment[i].kind != BTI_SEGMENT_LEARNED)
            m->segment[i].type = types++;
    if (types < 2) {
        for (int32_t i = 0; i < m->segments; i++) m->segment[i].type = -1;
        return BT_OK;
    }
    m->types = add_table(m, "segments.weight", types, BTI_INIT_EMBEDDING);
    return m->types < 0 ? BT_ENOMEM : BT_OK;
}

/* Learned rows, then text, then features in their order; none where there is but text. */
static bt_status add_segments(bti_model *m) {
    const bti_model_config *c = &m->cfg;
    m->types = m->pool_query = -1;
    if (!bti_has_decoder(c) && c->pooling == BTI_POOLING_ATTENTION) {
        m->pool_query = add_table(m, "pooling.query", 1, BTI_INIT_EMBEDDING);
        if (m->pool_query < 0) return BT_ENOMEM;
    }
    if (c->features == 0 && c->learned_rows == 0) return BT_OK;
    if (c->learned_rows > 0) {
        bti_segment *s = new_segment(m, BTI_SEGMENT_LEARNED, -1);
        s->longest = c->learned_rows;
        s->table = add_table(m, "learned_rows.weight", c->learned_rows, BTI_INIT_EMBEDDING);
        if (s->table < 0) return BT_ENOMEM;
    }
    if (m->vocab[0] > 0) {
        bti_segment *s = new_segment(m, BTI_SEGMENT_TOKENS, -1);
        s->table = m->embed[0];
        s->has_positions = 1;
        s->positions = m->positions[0];
        s->longest = INT64_MAX;
    }
    for (int32_t i = 0; i < c->features; i++) {
        bti_segment *s = new_segment(m, BTI_SEGMENT_FEATURE, i);
        s->longest = c->feature[i].rows;
        s->has_norm = c->feature[i].norm;
        s->has_positions = s->role != BTI_SEGMENT_MIXED && c->feature[i].rows > 1;
        BT_TRY(add_feature(m, s));
    }
    return add_types(m);
}

int64_t bti_model_outputs(const bti_model *m) {
    return bti_has_decoder(&m->cfg) ? m->vocab[1] : m->cfg.outputs;
}

/* What has no table cannot be tied. */
static void settle_tie(bti_model *m) {
    if (!bti_has_decoder(&m->cfg))
        m->cfg.tie = BTI_TIE_NONE;
    else if (m->vocab[0] == 0 && m->cfg.tie == BTI_TIE_ALL)
        m->cfg.tie = BTI_TIE_TARGET;
}

static bt_status check(const bti_model_config *c, int64_t source_vocab, int64_t target_vocab) {
    if (c->d_model < 1 || c->heads < 1 || c->d_model % c->heads != 0)
        return bti_fail(BT_EUSAGE, "model.heads %lld does not divide model.d_model %lld",
                        (long long)c->heads, (long long)c->d_model);
    if (c->tie == BTI_TIE_ALL && source_vocab != target_vocab && source_vocab > 0 &&
        bti_has_decoder(c))
        return bti_fail(BT_EUSAGE,
                        "model.tie_embeddings all needs one vocabulary: source has %lld symbols, "
                        "target %lld; use target or none, or tokenizer.shared true",
                        (long long)source_vocab, (long long)target_vocab);
    if (source_vocab == 0 && c->features == 0)
        return bti_fail(BT_EUSAGE, "the encoder has nothing to read: neither text nor features");
    if (c->learned_rows > 0 && c->fusion != BTI_FUSION_CONCAT)
        return bti_fail(BT_EUSAGE, "model.learned_rows are rows of a sequence: they go with "
                                   "model.fusion concat");
    if (bti_has_decoder(c) != (c->decoder_layers > 0))
        return bti_fail(BT_EUSAGE, "model.head %s goes %s model.decoder_layers, which is %lld",
                        bti_head_of(c)->name, bti_has_decoder(c) ? "with" : "without",
                        (long long)c->decoder_layers);
    if (!bti_has_decoder(c) && c->outputs < 1)
        return bti_fail(BT_EUSAGE, "model.outputs is 0: how many %s?",
                        c->head == BTI_HEAD_REGRESSION ? "numbers are asked for"
                                                       : "labels are there");
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
    settle_tie(m);
    bt_status status = m->layer == NULL || m->saved == NULL ? BT_ENOMEM : add_tables(m);
    if (status == BT_OK) status = add_segments(m);
    for (int32_t i = 0; i < m->layers && status == BT_OK; i++) {
        int decoder = i >= cfg->encoder_layers;
        m->layer[i].index = i;
        status = add_layer(m, decoder, decoder ? i - cfg->encoder_layers : i, &m->layer[i]);
    }
    if (status == BT_OK && cfg->final_norm)
        status = add_norm(m, "transformer.encoder.norm.", &m->final_norm[0]);
    m->final_norm[1] = (bti_pair){-1, -1};
    if (status == BT_OK && cfg->final_norm && bti_has_decoder(cfg))
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
        if (m->embed[side] >= 0 && m->embed[side] != m->embed[!side] &&
            m->embed[side] != m->generator.w && !m->params.param[m->embed[side]].frozen)
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
    int64_t rows = m->vocab[0] > 0 || bti_has_decoder(&m->cfg) ? max_length : 0;
    for (int32_t i = 0; i < m->segments; i++)
        if (m->segment[i].kind == BTI_SEGMENT_FEATURE && m->segment[i].has_positions &&
            m->segment[i].longest > rows)
            rows = m->segment[i].longest;
    return m->cfg.positions == BTI_POSITIONS_LEARNED ? 0 : rows;
}

void bti_model_sinusoids(const bti_model *m, int64_t rows, void *out) {
    int64_t d = m->cfg.d_model;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < d; c++) {
            double angle = (double)r * exp(-log(1e4) * (double)(c / 2 * 2) / (double)d);
            bti_store(out, m->params.dtype, r * d + c, c % 2 ? cos(angle) : sin(angle));
        }
}
