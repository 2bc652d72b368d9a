#include "core/decode/decoder.h"

#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"

/* Tokens a sentence that room is planned for, beside one of full length. */
#define PLANNED_SOURCE 64
#define PLANNED_TARGET 48
#define LOGIT_ROWS 256

struct bti_decoder {
    bti_decoder_config cfg;
    const bti_model *model;
    bti_places places;
    bti_decode_staging staging; /* offsets in the region, `base` included */
    bti_staging source;         /* those of the encoder's tables, without it */
    uint64_t base;
    int64_t tile; /* of the device's stable rows; 0: none */
    bti_decode_shape caps;
    bti_layout layout;
    bti_program *plan, *program;
    bti_tid *scratch;
    const bti_arena *arena;
    bti_beam *beam;
    char *host;   /* staging */
    float *value; /* hypotheses x candidates; memory that the device copies to on its own */
    int32_t *id;
    int32_t *history[2]; /* hypotheses x steps: cache rows, of this step and of the one before */
    int32_t *source_row; /* where each sentence of the batch begins, and its rows */
    int32_t *source_count;
    int32_t *limit;
    bti_sentence *input; /* of the batch, and scratch to stage them, where there are segments */
    int32_t *sort;
    bti_hypothesis *result; /* nbest */
};

void bti_decoder_specials(bti_decoder_config *cfg, int32_t start, int32_t end, int32_t unk,
                          int32_t pad) {
    cfg->start = start;
    cfg->end = end;
    cfg->forbid[0] = start == end ? -1 : start;
    cfg->forbid[1] = pad == end ? -1 : pad;
    cfg->forbid[2] = unk == end ? -1 : unk;
    for (int i = 3; i < BT_TOPK_FORBID; i++) cfg->forbid[i] = -1;
}

/* With segments: every example may have as many rows of each feature as there can be; `tokens` is
 * what text may have. */
static void cap_segments(const bti_decoder *d, int64_t batch, int64_t tokens, bti_decode_shape *s) {
    const bti_model *m = d->model;
    int64_t joined = 0;
    if (m->segments == 0) return;
    s->source_tokens = m->vocab[0] > 0 ? tokens : 0;
    for (int32_t f = 0; f < m->cfg.features; f++) {
        s->feature[f] = bti_round_tile(batch * m->cfg.feature[f].rows, d->tile);
        joined += batch * m->cfg.feature[f].rows;
    }
    if (m->cfg.fusion == BTI_FUSION_CONCAT)
        s->source_rows = s->source_tokens + joined + batch * m->cfg.learned_rows;
    else
        s->source_rows = m->vocab[0] > 0 ? s->source_tokens : batch * m->cfg.feature[0].rows;
    if (m->vocab[0] > 0) /* where features are short, there may be more text */
        s->source_tokens = bti_min(s->source_rows, batch * d->cfg.length);
    s->source_rows = bti_round_tile(s->source_rows, d->tile);
}

static bti_decode_shape caps_for(const bti_decoder *d, int64_t batch) {
    int64_t length = d->cfg.length, beam = d->cfg.beam;
    int64_t source = length + (batch - 1) * bti_min(length, PLANNED_SOURCE);
    int64_t cache = beam * (length + (batch - 1) * bti_min(length, PLANNED_TARGET));
    bti_decode_shape s = {.sentences = batch,
                          .source_rows = bti_round_tile(source, d->tile),
                          .hypotheses = batch * beam,
                          .live_sentences = batch,
                          .hypothesis_rows = bti_round_tile(batch * beam, d->tile),
                          .steps = length,
                          .cache_rows = cache + d->tile,
                          .candidates = bti_min(2 * beam, d->model->vocab[1])};
    s.logit_rows = d->tile > 0 ? d->tile : bti_min(s.hypothesis_rows, LOGIT_ROWS);
    cap_segments(d, batch, source, &s);
    return s;
}

static int32_t nbest_of(const bti_decoder *d) { return d->cfg.nbest > 0 ? d->cfg.nbest : 1; }

static bti_beam_config beam_config(const bti_decoder *d) {
    return (bti_beam_config){.beam = d->cfg.beam,
                             .candidates = (int32_t)d->caps.candidates,
                             .end = d->cfg.end,
                             .length_penalty = d->cfg.length_penalty,
                             .nbest = nbest_of(d),
                             .max_sentences = (int32_t)d->caps.sentences,
                             .max_length = (int32_t)d->caps.steps};
}

bt_status bti_decoder_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                          const bti_places *places, uint64_t staging, const bti_decoder_config *cfg,
                          int64_t batch, bti_decoder **out) {
    uint64_t align = info->alignment;
    bti_decode_program unused;
    bt_status status;
    bti_decoder *d = bti_alloc(1, sizeof *d);
    if (d == NULL) return BT_ENOMEM;
    d->cfg = *cfg;
    d->model = m;
    d->places = *places;
    d->base = staging;
    d->tile = info->row_tile;
    d->caps = caps_for(d, batch);
    bti_decode_staging_plan(m, &d->caps, align, &d->staging);
    for (int i = 0; i < BTI_DECODE_TABLES; i++) d->staging.at[i] += staging;
    d->source = d->staging.source;
    bti_staging_shift(&d->staging.source, staging);
    d->scratch = bti_alloc(2 * (size_t)m->cfg.decoder_layers, sizeof *d->scratch);
    status =
        d->scratch == NULL ? BT_ENOMEM : bti_program_new("translation", planning, info, &d->plan);
    if (status == BT_OK)
        status = bti_model_emit_decode(d->plan, m, &d->places, &d->staging, &d->caps, cfg->forbid,
                                       d->scratch, &unused);
    if (status == BT_OK)
        status = bti_layout_make(
            d->plan,
            &(bti_layout_options){.alignment = align, .heap = info->max_alloc / align * align},
            &d->layout);
    if (status != BT_OK) {
        bti_decoder_free(d);
        return status;
    }
    *out = d;
    return BT_OK;
}

void bti_decoder_free(bti_decoder *d) {
    if (d == NULL) return;
    bti_beam_free(d->beam);
    if (d->arena != NULL) {
        bt_dev *dev = d->arena->dev;
        dev->ops->host_free(dev, d->host);
        dev->ops->host_free(dev, d->value);
        dev->ops->host_free(dev, d->id);
    }
    bti_free(d->history[0]);
    bti_free(d->history[1]);
    bti_free(d->source_row);
    bti_free(d->source_count);
    bti_free(d->limit);
    bti_free(d->input);
    bti_free(d->sort);
    bti_free(d->result);
    bti_program_free(d->plan);
    bti_program_free(d->program);
    bti_free(d->scratch);
    bti_free(d);
}

uint64_t bti_decoder_dynamic_bytes(const bti_decoder *d) { return d->layout.bytes; }
uint64_t bti_decoder_staging_bytes(const bti_decoder *d) { return d->staging.bytes; }

/* To stage what the encoder reads beside text. */
static uint64_t input_bytes(const bti_decoder *d) {
    if (d->model->segments == 0) return 0;
    return (uint64_t)d->caps.sentences * sizeof *d->input +
           ((uint64_t)d->caps.source_tokens + 65537) * sizeof *d->sort;
}

uint64_t bti_decoder_host_bytes(const bti_decoder *d) {
    bti_beam_config beam = beam_config(d);
    uint64_t hyps = (uint64_t)d->caps.hypothesis_rows;
    return bti_beam_bytes(&beam) + d->staging.bytes + hyps * (uint64_t)d->caps.candidates * 8 +
           2 * hyps * (uint64_t)d->caps.steps * 4 + (uint64_t)d->caps.sentences * 12 +
           (uint64_t)nbest_of(d) * sizeof *d->result + input_bytes(d);
}

/* What is copied to and from the device: `best` candidates come back at a time. */
static bt_status take_pinned(bti_decoder *d, size_t best) {
    bt_dev *dev = d->arena->dev;
    void *host, *value, *id;
    BT_TRY(dev->ops->host_alloc(dev, d->staging.bytes, &host));
    d->host = host;
    BT_TRY(dev->ops->host_alloc(dev, best * sizeof *d->value, &value));
    d->value = value;
    BT_TRY(dev->ops->host_alloc(dev, best * sizeof *d->id, &id));
    d->id = id;
    return BT_OK;
}

bt_status bti_decoder_bind(bti_decoder *d, const bti_arena *arena) {
    size_t hyps = (size_t)d->caps.hypothesis_rows, n = (size_t)d->caps.sentences;
    size_t steps = (size_t)d->caps.steps, best = hyps * (size_t)d->caps.candidates;
    bti_beam_config beam = beam_config(d);
    d->arena = arena;
    BT_TRY(bti_beam_new(&beam, &d->beam));
    d->history[0] = bti_alloc(hyps * steps, sizeof **d->history);
    d->history[1] = bti_alloc(hyps * steps, sizeof **d->history);
    d->source_row = bti_alloc(n, sizeof *d->source_row);
    d->source_count = bti_alloc(n, sizeof *d->source_count);
    d->limit = bti_alloc(n, sizeof *d->limit);
    d->result = bti_alloc((size_t)nbest_of(d), sizeof *d->result);
    if (d->history[0] == NULL || d->history[1] == NULL || d->source_row == NULL ||
        d->source_count == NULL || d->limit == NULL || d->result == NULL)
        return BT_ENOMEM;
    if (d->model->segments > 0) {
        d->input = bti_alloc(n, sizeof *d->input);
        d->sort = bti_alloc((size_t)d->caps.source_tokens + 65537, sizeof *d->sort);
        if (d->input == NULL || d->sort == NULL) return BT_ENOMEM;
    }
    BT_TRY(take_pinned(d, best));
    BT_TRY(bti_program_new("translation", d->plan->planning, &d->plan->info, &d->program));
    return bti_program_reserve(d->program, d->plan);
}

/* ---- a batch ----------------------------------------------------------------------------- */

static int64_t limit_of(const bti_decoder *d, int64_t source) {
    int64_t limit = d->cfg.max_length ? d->cfg.max_length : 2 * source + 10;
    if (source == 0 && d->cfg.max_length == 0) limit = d->caps.steps; /* no text to go by */
    return bti_min(limit, d->caps.steps);
}

int64_t bti_decoder_batch(const bti_decoder *d, const bti_source *const *source, int64_t from,
                          int64_t n) {
    int64_t rows = 0, cache = 0, i = from;
    for (; i < n && i - from < d->caps.sentences; i++) {
        rows += source[i]->input ? bti_encoder_rows(d->model, source[i]->input) : source[i]->count;
        cache += d->cfg.beam * limit_of(d, source[i]->count);
        if (i > from && (rows > d->caps.source_rows || cache + d->tile > d->caps.cache_rows)) break;
    }
    return i - from;
}

static int32_t *table(bti_decoder *d, int which) {
    return (int32_t *)(d->host + (d->staging.at[which] - d->base));
}

static void sequence(int32_t *seq, int64_t q_row, int64_t q_count, int64_t k_row, int64_t k_count,
                     int64_t position) {
    seq[BT_SEQ_QUERY_ROW] = (int32_t)q_row;
    seq[BT_SEQ_QUERY_COUNT] = (int32_t)q_count;
    seq[BT_SEQ_KEY_ROW] = (int32_t)k_row;
    seq[BT_SEQ_KEY_COUNT] = (int32_t)k_count;
    seq[BT_SEQ_PLACE] = 0;
    seq[BT_SEQ_QUERY_POS] = (int32_t)position;
}

/* Fills rows from .. to-1 that complete the last tile. */
static void fill_tile(int32_t *ids, int32_t *rowpos, int64_t from, int64_t to) {
    for (int64_t r = from; r < to; r++) ids[r] = rowpos[2 * r] = rowpos[2 * r + 1] = 0;
}

/* Tables of the encoder; gives the rows, whole tiles. */
static int64_t stage_source(bti_decoder *d, const bti_source *const *source, int64_t n) {
    int32_t *ids = table(d, BTI_DECODE_SOURCE_IDS), *rowpos = table(d, BTI_DECODE_SOURCE_ROWPOS);
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t count = source[i]->count;
        d->source_row[i] = (int32_t)row;
        d->source_count[i] = (int32_t)count;
        sequence(table(d, BTI_DECODE_SEQ_ENCODER) + i * BT_SEQ_COLS, row, count, row, count, 0);
        for (int64_t j = 0; j < count; j++, row++) {
            ids[row] = source[i]->ids[j];
            rowpos[2 * row] = 0;
            rowpos[2 * row + 1] = (int32_t)j;
        }
    }
    int64_t rows = bti_round_tile(row, d->tile);
    fill_tile(ids, rowpos, row, rows);
    return rows;
}

/* The same where the encoder reads more than text; `shape` gets its rows. Whole tiles are filled up
 * with rows that nobody reads: tables of zeros point somewhere. */
static bt_status stage_inputs(bti_decoder *d, const bti_source *const *source, int64_t n,
                              bti_decode_shape *shape) {
    bti_shape rows = {.sentences = n};
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) {
        d->input[i] = *source[i]->input;
        d->source_row[i] = (int32_t)row;
        d->source_count[i] = (int32_t)bti_encoder_rows(d->model, source[i]->input);
        row += d->source_count[i];
    }
    memset(d->host, 0, (size_t)d->source.bytes);
    BT_TRY(bti_stage_source(d->model, &d->source, d->input, n, 0, d->host, d->sort, &rows));
    shape->source_tokens = rows.tokens;
    for (int f = 0; f < BTI_MAX_FEATURES; f++)
        shape->feature[f] = bti_round_tile(rows.feature[f], d->tile);
    shape->source_rows = bti_round_tile(row, d->tile);
    return BT_OK;
}

/* Tables of a step: newest symbols, positions, and the cache rows that each hypothesis descends
 * from; this step's rows begin at `cache_row`. Gives how many sentences are live: their hypotheses
 * lie together. */
static int64_t stage_step(bti_decoder *d, const bti_beam_live *live, int64_t cache_row) {
    int32_t *ids = table(d, BTI_DECODE_IDS), *rowpos = table(d, BTI_DECODE_ROWPOS);
    int32_t *kidx = table(d, BTI_DECODE_KIDX), *cross = table(d, BTI_DECODE_SEQ_CROSS);
    int64_t steps = d->caps.steps, at = live->step, sentences = 0;
    int32_t *old = d->history[(at + 1) % 2], *new = d->history[at % 2];
    for (int64_t i = 0; i < live->count; i++) {
        int32_t s = live->sentence[i], *rows = new + i *steps;
        ids[i] = live->last[i] < 0 ? d->cfg.start : live->last[i];
        rowpos[2 * i] = 0;
        rowpos[2 * i + 1] = (int32_t)at;
        if (live->row[i] >= 0) memcpy(rows, old + live->row[i] * steps, (size_t)at * sizeof *rows);
        rows[at] = (int32_t)(cache_row + i);
        memcpy(kidx + i * (at + 1), rows, (size_t)(at + 1) * sizeof *rows);
        sequence(table(d, BTI_DECODE_SEQ_SELF) + i * BT_SEQ_COLS, i, 1, 0, at + 1, at);
        if (i == 0 || s != live->sentence[i - 1])
            sequence(cross + sentences++ * BT_SEQ_COLS, i, 0, d->source_row[s], d->source_count[s],
                     at);
        cross[(sentences - 1) * BT_SEQ_COLS + BT_SEQ_QUERY_COUNT]++;
    }
    fill_tile(ids, rowpos, live->count, bti_round_tile(live->count, d->tile));
    return sentences;
}

static bt_status enqueue_step(bti_decoder *d, const bti_beam_live *live,
                              const bti_decode_shape *source, int64_t cache_row) {
    bti_decode_shape shape = *source;
    bti_decode_program p;
    shape.hypotheses = live->count;
    shape.hypothesis_rows = bti_round_tile(live->count, d->tile);
    shape.cache_row = cache_row;
    shape.live_sentences = stage_step(d, live, cache_row);
    shape.steps = live->step + 1;
    bt_dev *dev = d->arena->dev;
    uint64_t from = live->step == 0 ? 0 : d->source.bytes; /* the encoder's are read once */
    bt_view v = bti_arena_at(d->arena, BTI_REGION_STAGING, d->base + from);
    uint64_t used = d->staging.at[BTI_DECODE_KIDX] - d->base +
                    (uint64_t)(live->count * shape.steps) * sizeof(int32_t);
    const bt_dev_ops *ops = dev->ops;
    BT_TRY(ops->upload(dev, NULL, v.buf, v.off, d->host + from, used - from));
    BT_TRY(bti_model_emit_decode(d->program, d->model, &d->places, &d->staging, &shape,
                                 d->cfg.forbid, d->scratch, &p));
    BT_TRY(bti_layout_take(d->program, d->plan));
    BT_TRY(bti_program_run(d->program, d->arena, 0, live->step == 0 ? 0 : p.encode_ops,
                           d->program->ops, NULL));
    uint64_t bytes = (uint64_t)(live->count * shape.candidates) * sizeof(float);
    v = bti_arena_view(d->arena, d->program, bti_all(d->program, p.value), 0);
    BT_TRY(ops->download(dev, NULL, d->value, v.buf, v.off, bytes));
    v = bti_arena_view(d->arena, d->program, bti_all(d->program, p.id), 0);
    return ops->download(dev, NULL, d->id, v.buf, v.off, bytes);
}

bt_status bti_decoder_run(bti_decoder *d, const bti_source *const *source, int64_t n,
                          bti_hypothesis *best) {
    for (int64_t i = 0; i < n; i++) d->limit[i] = (int32_t)limit_of(d, source[i]->count);
    BT_TRY(bti_beam_start(d->beam, (int32_t)n, d->limit));
    bti_decode_shape shape = d->caps;
    int64_t cache_row = 0;
    shape.sentences = n;
    if (d->model->segments > 0)
        BT_TRY(stage_inputs(d, source, n, &shape));
    else
        shape.source_rows = stage_source(d, source, n);
    for (;;) {
        bti_beam_live live = bti_beam_get_live(d->beam);
        if (live.count == 0) break;
        if (d->cfg.stop != NULL && *d->cfg.stop) return bti_fail(BT_ESTOPPED, "stopped on request");
        BT_TRY(bti_settle(d->arena->dev, NULL, enqueue_step(d, &live, &shape, cache_row)));
        cache_row += live.count;
        BT_TRY(bti_beam_advance(d->beam, d->value, d->id));
    }
    for (int64_t i = 0; i < n && best != NULL; i++) {
        const bti_hypothesis *result;
        int32_t count;
        BT_TRY(bti_decoder_results(d, i, &result, &count));
        best[i] = result[0];
    }
    return BT_OK;
}

bt_status bti_decoder_results(bti_decoder *d, int64_t i, const bti_hypothesis **out,
                              int32_t *count) {
    *out = d->result;
    return bti_beam_results(d->beam, (int32_t)i, d->result, count);
}
