#include "core/model/decode.h"

#include <math.h>
#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/model/build.h"

static void table_size(const bti_decode_shape *s, int table, int64_t *rows, int64_t *cols) {
    *cols = 1;
    *rows = s->hypotheses;
    switch (table) {
    case BTI_DECODE_SOURCE_IDS:
        *rows = s->source_rows;
        break;
    case BTI_DECODE_SOURCE_ROWPOS:
        *rows = s->source_rows;
        *cols = 2;
        break;
    case BTI_DECODE_SEQ_ENCODER:
        *rows = s->sentences;
        *cols = BT_SEQ_COLS;
        break;
    case BTI_DECODE_IDS:
        *rows = s->hypothesis_rows;
        break;
    case BTI_DECODE_ROWPOS:
        *rows = s->hypothesis_rows;
        *cols = 2;
        break;
    case BTI_DECODE_SEQ_CROSS:
        *rows = s->live_sentences;
        *cols = BT_SEQ_COLS;
        break;
    case BTI_DECODE_KIDX:
        *cols = s->steps;
        break;
    default:
        *cols = BT_SEQ_COLS;
        break;
    }
}

bti_shape bti_decode_source_shape(const bti_model *m, const bti_decode_shape *s) {
    bti_shape shape = {.sentences = s->sentences,
                       .rows = {s->source_rows, 0},
                       .distinct = {s->source_tokens, 0},
                       .longest = {s->source_tokens, 0},
                       .tokens = s->source_tokens};
    for (int i = 0; i < BTI_MAX_FEATURES; i++)
        shape.feature[i] = shape.feature_longest[i] = s->feature[i];
    bti_shape_settle(m, &shape);
    return shape;
}

/* The encoder's tables are a micro-batch's where it reads more than text. */
static int is_here(const bti_model *m, int t) {
    return m->segments == 0 || t > BTI_DECODE_SEQ_ENCODER;
}

void bti_decode_staging_plan(const bti_model *m, const bti_decode_shape *caps, uint64_t alignment,
                             bti_decode_staging *out) {
    memset(out, 0, sizeof *out);
    if (m->segments > 0) {
        bti_shape shape = bti_decode_source_shape(m, caps);
        bti_staging_plan(m, &shape, alignment, &out->source);
        out->bytes = out->source.bytes;
    }
    for (int t = 0; t < BTI_DECODE_TABLES; t++) {
        int64_t rows, cols;
        if (!is_here(m, t)) continue;
        table_size(caps, t, &rows, &cols);
        out->at[t] = out->bytes;
        out->bytes += (uint64_t)(rows * cols) * sizeof(int32_t);
        out->bytes = bti_align_up(out->bytes, alignment);
    }
}

typedef struct decoding {
    bti_build b;
    const bti_decode_shape *shape;
    bti_tid table[BTI_DECODE_TABLES];
    bti_decode_state state;
    bti_tid *cache, *cross;
} decoding;

static bti_tid embed(decoding *d, int side, bti_tid ids, bti_tid rowpos) {
    bti_program *p = d->b.p;
    const bti_model *m = d->b.m;
    bti_tid y = bti_tensor_new(p, "embedding", -1, BTI_KIND_ACTIVATION, BTI_CLASS_NONE, d->b.dtype,
                               bti_tensor_rows(p, ids), m->cfg.d_model);
    bti_look_up(&d->b, bti_weight(&d->b, m->embed[side]), bti_all(p, ids), bti_all(p, rowpos),
                bti_position_table(&d->b, side), bti_all(p, y), sqrt((double)m->cfg.d_model),
                (bt_drop){0});
    return y;
}

/* The encoder, then keys and values of its output for every decoder layer. */
static void encode(decoding *d) {
    bti_build *b = &d->b;
    bti_tid x, stats;
    bti_tid input;
    if (b->m->segments > 0) {
        input = bti_encoder_input(b);
    } else {
        b->table[0][BTI_TABLE_ROWPOS] = d->table[BTI_DECODE_SOURCE_ROWPOS];
        b->table[0][BTI_TABLE_SEQ_ENCODER] = d->table[BTI_DECODE_SEQ_ENCODER];
        input = embed(d, 0, d->table[BTI_DECODE_SOURCE_IDS], d->table[BTI_DECODE_SOURCE_ROWPOS]);
    }
    b->memory[1] = bti_stack_fwd(b, 0, input, &x, &stats);
    for (int32_t i = 0; i < (int32_t)b->m->cfg.decoder_layers; i++) {
        const bti_layer *l = &b->m->layer[b->m->cfg.encoder_layers + i];
        d->cross[i] = bti_cross_kv(b, l, &l->block[1]);
        bti_tensor_pin_always(b->p, d->cross[i]);
    }
}

/* Best symbols of each hypothesis, the output layer in chunks. */
static void best_symbols(decoding *d, bti_tid hidden, const int32_t *forbid,
                         bti_decode_program *out) {
    bti_build *b = &d->b;
    bti_program *p = b->p;
    int64_t rows = d->shape->hypothesis_rows, k = d->shape->candidates;
    int64_t chunk = d->shape->logit_rows < rows ? d->shape->logit_rows : rows;
    bt_op_params params = {.topk = {{0}}};
    memcpy(params.topk.forbid, forbid, sizeof params.topk.forbid);
    out->value = bti_tensor_new(p, "best log-probabilities", -1, BTI_KIND_DECODE, BTI_CLASS_NONE,
                                b->acc, rows, k);
    out->id =
        bti_tensor_new(p, "best symbols", -1, BTI_KIND_DECODE, BTI_CLASS_NONE, BT_I32, rows, k);
    bti_tensor_pin(p, out->value);
    bti_tensor_pin(p, out->id);
    bti_tid logits = bti_tensor_new(p, "logits", -1, BTI_KIND_LOGITS, BTI_CLASS_NONE, b->dtype,
                                    chunk, b->m->vocab[1]);
    bti_loop_begin(p);
    for (int64_t at = 0; at < rows; at += chunk) {
        int64_t n = rows - at < chunk ? rows - at : chunk;
        bti_ref z = bti_rows(bti_all(p, logits), 0, n);
        bti_emit(p, BT_OP_GEMM,
                 BTI_OPERANDS([BT_GEMM_A] = bti_rows(bti_all(p, hidden), at, n),
                              [BT_GEMM_B] = bti_weight(b, b->m->generator.w), [BT_GEMM_C] = z),
                 &(bt_op_params){.gemm = {.trans_b = 1, .stable_rows = 1, .alpha = 1}}, 0);
        bti_emit(
            p, BT_OP_TOPK,
            BTI_OPERANDS([BT_TOPK_LOGITS] = z, [BT_TOPK_BIAS] = bti_weight(b, b->m->generator.b),
                         [BT_TOPK_VALUE] = bti_rows(bti_all(p, out->value), at, n),
                         [BT_TOPK_ID] = bti_rows(bti_all(p, out->id), at, n)),
            &params, 0);
        bti_loop_next(p);
    }
    bti_loop_end(p);
}

static void step(decoding *d, const int32_t *forbid, bti_decode_program *out) {
    bti_build *b = &d->b;
    bti_tid x, stats;
    for (int32_t i = 0; i < (int32_t)b->m->cfg.decoder_layers; i++) {
        d->cache[i] = bti_tensor_new(b->p, "cache", -1, BTI_KIND_DECODE, BTI_CLASS_NONE, b->dtype,
                                     d->shape->cache_rows, 2 * b->m->cfg.d_model);
        bti_tensor_pin_always(b->p, d->cache[i]);
    }
    d->state = (bti_decode_state){.cache = d->cache,
                                  .cross = d->cross,
                                  .kidx = d->table[BTI_DECODE_KIDX],
                                  .seq_self = d->table[BTI_DECODE_SEQ_SELF],
                                  .seq_cross = d->table[BTI_DECODE_SEQ_CROSS],
                                  .cache_row = d->shape->cache_row};
    b->decode = &d->state;
    b->table[1][BTI_TABLE_ROWPOS] = d->table[BTI_DECODE_ROWPOS];
    bti_tid y = embed(d, 1, d->table[BTI_DECODE_IDS], d->table[BTI_DECODE_ROWPOS]);
    best_symbols(d, bti_stack_fwd(b, 1, y, &x, &stats), forbid, out);
}

bt_status bti_model_emit_decode(bti_program *p, const bti_model *m, const bti_places *places,
                                const bti_decode_staging *staging, const bti_decode_shape *shape,
                                const int32_t forbid[BT_TOPK_FORBID], bti_tid *scratch,
                                bti_decode_program *out) {
    const bti_step eval = {
        .model = m, .places = places, .shape = bti_decode_source_shape(m, shape)};
    /* In the parameters' type whatever training computed in: a translation of a checkpoint does not
     * depend on how its run, or the one that goes on from it, was computed. */
    decoding d = {.b = {.p = p,
                        .step = &eval,
                        .m = m,
                        .dtype = m->params.dtype,
                        .acc = bti_dtype_acc(m->params.dtype),
                        .stable_rows = 1,
                        .row_tile = p->info.row_tile},
                  .shape = shape,
                  .cache = scratch,
                  .cross = scratch + m->cfg.decoder_layers};
    bti_program_begin(p, NULL, m->layers);
    bti_declare_parameters(&d.b, places);
    for (int t = 0; t < BTI_DECODE_TABLES; t++) {
        int64_t rows, cols;
        if (!is_here(m, t)) continue;
        table_size(shape, t, &rows, &cols);
        d.table[t] =
            bti_tensor_fixed(p, "table", BTI_REGION_STAGING, staging->at[t], BT_I32, rows, cols);
    }
    memset(m->saved, 0, (size_t)m->layers * sizeof *m->saved);
    if (m->segments > 0) bti_declare_source(&d.b, &staging->source);
    encode(&d);
    out->encode_ops = p->ops;
    step(&d, forbid, out);
    return bti_program_end(p);
}
