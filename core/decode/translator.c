/* bt_translator: a checkpoint, a device and beam search; lines in, lines out.
 *
 * All device memory is taken on opening: weights, tables, the encoder's rows and the caches, for
 * batches bounded by sentences, source rows and cache rows. Lines of a call are sorted by length
 * into such batches; results leave in input order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/corpus.h"
#include "core/decode/beam.h"
#include "core/model/decode.h"
#include "core/train/checkpoint.h"
#include "core/train/session.h"

#define DEFAULT_BATCH 64
/* Tokens a sentence that room is planned for, beside one of full length. */
#define PLANNED_SOURCE 64
#define PLANNED_TARGET 48

struct bt_translator {
    bt_translate_options options;
    bti_run_config *cfg;
    bti_tokenizer *tokenizer[2];
    bti_special_ids special;
    bt_dev *dev;
    bti_model *model;
    bti_places places;
    bti_decode_staging staging;
    bti_decode_shape caps;
    bti_program *plan, *program;
    bti_arena arena;
    bti_tid *scratch;
    bti_beam *beam;
    int32_t forbid[BT_TOPK_FORBID];
    char *host;   /* staging */
    float *value; /* hypotheses x candidates */
    int32_t *id;
    int32_t *history[2]; /* hypotheses x steps: cache rows, of this step and of the one before */
    int32_t *source_row; /* where each sentence of the batch begins, and its rows */
    int32_t *source_count;
    int32_t *limit;
};

/* ---- opening -----------------------------------------------------------------------------------
 */

/* The newest of a folder's checkpoints and its model file. */
static bt_status find_model(const char *path, bti_checkpoint **out) {
    char *file = bti_path_join(path, "model.safetensors");
    bti_checkpoint *model = NULL, *newest = NULL;
    if (file == NULL) return BT_ENOMEM;
    int folder = bti_dir_exists(path);
    bt_status status = BT_OK;
    if (!folder) {
        status = bti_checkpoint_open(path, &model);
    } else {
        status = bti_checkpoint_newest(path, &newest);
        if (status == BT_OK && bti_file_exists(file) && bti_checkpoint_open(file, &model) != BT_OK)
            bti_log(BT_LOG_WARN, "passed over: %s", bt_last_error());
    }
    bti_free(file);
    if (status == BT_OK && model == NULL && newest == NULL)
        status = bti_fail(BT_EINPUT, "%s holds no model.safetensors and no checkpoint", path);
    if (model != NULL && newest != NULL && newest->info.update > model->info.update) {
        bti_checkpoint_close(model);
        model = NULL;
    }
    if (model != NULL) {
        bti_checkpoint_close(newest);
        newest = model;
    }
    if (status != BT_OK) {
        bti_checkpoint_close(newest);
        return status;
    }
    *out = newest;
    return BT_OK;
}

/* The copy beside the model where there is one, else the file that the run file names; it must be
 * the one that the model was trained with. */
static bt_status open_tokenizer(const bti_checkpoint *c, const bti_run_config *cfg, int side,
                                bti_tokenizer **out) {
    static const char *const copy[] = {"source.tokenizer", "target.tokenizer"};
    static const char *const words[] = {"source.words", "target.words"};
    bti_tokenizer_config t = cfg->tokenizer[side];
    char *folder = bti_path_dir(c->path);
    char *beside = folder ? bti_path_join(folder, copy[side]) : NULL;
    char *words_beside = folder ? bti_path_join(folder, words[side]) : NULL;
    bt_status status = beside == NULL || words_beside == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && bti_file_exists(beside)) t.model = beside;
    if (status == BT_OK && bti_file_exists(words_beside)) t.vocabulary = words_beside;
    if (status == BT_OK) status = bti_tokenizer_open(&t, out);
    if (status == BT_OK && (bti_tokenizer_checksum(*out) != c->info.tokenizer[side] ||
                            bti_tokenizer_size(*out) != c->info.vocab[side])) {
        status = bti_fail(BT_EINPUT,
                          "%s is not the tokeniser that %s was trained with: it has %lld symbols, "
                          "the model %lld, and another checksum",
                          t.model, c->path, (long long)bti_tokenizer_size(*out),
                          (long long)c->info.vocab[side]);
        bti_tokenizer_free(*out);
        *out = NULL;
    }
    bti_free(words_beside);
    bti_free(beside);
    bti_free(folder);
    return status;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static bti_decode_shape caps_for(const bt_translator *t, int64_t batch) {
    int64_t length = t->cfg->data.max_length, beam = t->options.beam;
    int64_t source = length + (batch - 1) * min64(length, PLANNED_SOURCE);
    int64_t cache = beam * (length + (batch - 1) * min64(length, PLANNED_TARGET));
    bti_decode_shape s = {.sentences = batch,
                          .source_rows = BTI_ROUND_TILE(source),
                          .hypotheses = batch * beam,
                          .hypothesis_rows = BTI_ROUND_TILE(batch * beam),
                          .steps = length,
                          .cache_rows = cache + BTI_DECODE_TILE,
                          .candidates = min64(2 * beam, t->model->vocab[1])};
    s.logit_rows = min64(s.hypothesis_rows, 8 * BTI_DECODE_TILE);
    return s;
}

/* Places and region sizes for batches of `batch`; the layout is in t->plan. */
static bt_status plan_batch(bt_translator *t, int64_t batch, uint64_t region[BTI_REGION_COUNT]) {
    const bt_dev_info *info = &t->dev->info;
    uint64_t align = info->alignment, heap = info->max_alloc / align * align;
    bti_decode_program unused;
    bti_layout layout;
    t->caps = caps_for(t, batch);
    BT_TRY(bti_params_place(&t->model->params, align, heap));
    bti_decode_staging_plan(&t->caps, align, &t->staging);
    t->places = (bti_places){.position_rows = t->cfg->data.max_length};
    memset(region, 0, BTI_REGION_COUNT * sizeof *region);
    region[BTI_REGION_WEIGHTS] = t->model->params.bytes;
    region[BTI_REGION_CONSTANT] =
        (uint64_t)(t->places.position_rows * t->model->cfg.d_model) * sizeof(float);
    region[BTI_REGION_STAGING] = t->staging.bytes;
    BT_TRY(bti_model_emit_decode(t->plan, t->model, &t->places, &t->staging, &t->caps, t->forbid,
                                 t->scratch, &unused));
    BT_TRY(
        bti_layout_make(t->plan, &(bti_layout_options){.alignment = align, .heap = heap}, &layout));
    region[BTI_REGION_DYNAMIC] = layout.bytes;
    return BT_OK;
}

/* The largest batch up to the one asked for that fits. */
static bt_status plan(bt_translator *t) {
    uint64_t budget, runtime, region[BTI_REGION_COUNT];
    char a[32], b[32];
    BT_TRY(bti_device_warm(t->dev, t->model, BTI_DECODE_TILE, BTI_DECODE_TILE));
    BT_TRY(bti_memory_budget(t->dev, t->options.memory, BTI_MEMORY_AUTO, &budget, &runtime));
    int64_t batch = t->options.batch ? t->options.batch : DEFAULT_BATCH;
    for (;; batch /= 2) {
        BT_TRY(plan_batch(t, batch, region));
        bti_arena_plan(&t->arena, region, &t->dev->info);
        if (t->arena.total + runtime <= budget) return BT_OK;
        if (batch == 1) break;
    }
    bti_format_bytes(t->arena.total + runtime, a);
    bti_format_bytes(budget, b);
    return bti_fail(BT_EFIT,
                    "translation does not fit in %s: one sentence of %lld symbols with "
                    "beam %d needs %s; a smaller beam needs less",
                    b, (long long)t->cfg->data.max_length, t->options.beam, a);
}

static bt_status upload(bt_translator *t, bti_region region, uint64_t address, const void *data,
                        uint64_t bytes) {
    bt_view v = bti_arena_at(&t->arena, region, address);
    BT_TRY(t->dev->ops->upload(t->dev, NULL, v.buf, v.off, data, bytes));
    return t->dev->ops->sync(t->dev, NULL);
}

static bt_status load(bt_translator *t, const bti_checkpoint *c) {
    const bti_params *p = &t->model->params;
    for (int32_t i = 0; i < p->count; i++) {
        const void *data;
        const bti_st_tensor *s = bti_st_find(c->file, p->param[i].name, &data);
        if (s->dtype != BT_F32)
            return bti_fail(BT_EINPUT, "%s: %s is not fp32", c->path, p->param[i].name);
        BT_TRY(upload(t, BTI_REGION_WEIGHTS, p->param[i].address, data,
                      (uint64_t)(p->param[i].rows * p->param[i].cols) * sizeof(float)));
    }
    uint64_t bytes = (uint64_t)(t->places.position_rows * t->model->cfg.d_model) * sizeof(float);
    void *table = bti_alloc(1, bytes);
    if (table == NULL) return BT_ENOMEM;
    bti_model_positions(t->model, t->places.position_rows, table);
    bt_status status = upload(t, BTI_REGION_CONSTANT, t->places.positions, table, bytes);
    bti_free(table);
    return status;
}

static bt_status take_host(bt_translator *t) {
    size_t hyps = (size_t)t->caps.hypothesis_rows, n = (size_t)t->caps.sentences;
    size_t steps = (size_t)t->caps.steps;
    bti_beam_config beam = {.beam = t->options.beam,
                            .candidates = (int32_t)t->caps.candidates,
                            .end = t->special.end,
                            .length_penalty = t->options.length_penalty,
                            .nbest = 1,
                            .max_sentences = (int32_t)t->caps.sentences,
                            .max_length = (int32_t)t->caps.steps};
    BT_TRY(bti_beam_new(&beam, &t->beam));
    t->value = bti_alloc(hyps * (size_t)t->caps.candidates, sizeof *t->value);
    t->id = bti_alloc(hyps * (size_t)t->caps.candidates, sizeof *t->id);
    t->history[0] = bti_alloc(hyps * steps, sizeof **t->history);
    t->history[1] = bti_alloc(hyps * steps, sizeof **t->history);
    t->source_row = bti_alloc(n, sizeof *t->source_row);
    t->source_count = bti_alloc(n, sizeof *t->source_count);
    t->limit = bti_alloc(n, sizeof *t->limit);
    if (t->value == NULL || t->id == NULL || t->history[0] == NULL || t->history[1] == NULL ||
        t->source_row == NULL || t->source_count == NULL || t->limit == NULL)
        return BT_ENOMEM;
    void *host;
    BT_TRY(t->dev->ops->host_alloc(t->dev, t->staging.bytes, &host));
    t->host = host;
    BT_TRY(bti_program_new("translation", t->dev->driver->planning, &t->dev->info, &t->program));
    return bti_program_reserve(t->program, t->plan);
}

static bt_status open_model(bt_translator *t, const bti_checkpoint *c) {
    BT_TRY(bti_run_config_parse(c->path, c->info.run, NULL, 0, &t->cfg));
    BT_TRY(open_tokenizer(c, t->cfg, 0, &t->tokenizer[0]));
    if (t->cfg->shared)
        t->tokenizer[1] = t->tokenizer[0];
    else
        BT_TRY(open_tokenizer(c, t->cfg, 1, &t->tokenizer[1]));
    t->special = bti_tokenizer_specials(t->tokenizer[1]);
    bti_special_ids s = t->special;
    int32_t forbid[BT_TOPK_FORBID] = {s.start == s.end ? -1 : s.start, s.pad == s.end ? -1 : s.pad,
                                      s.unk, -1};
    memcpy(t->forbid, forbid, sizeof forbid);
    BT_TRY(bti_model_new(&t->cfg->model, c->info.vocab[0], c->info.vocab[1], BT_F32, &t->model));
    BT_TRY(bti_checkpoint_match(c, t->model));
    t->scratch = bti_alloc(2 * (size_t)t->cfg->model.decoder_layers, sizeof *t->scratch);
    if (t->scratch == NULL) return BT_ENOMEM;
    BT_TRY(bti_device_choose(t->options.device, t->options.threads, &t->dev));
    BT_TRY(bti_program_new("translation", t->dev->driver->planning, &t->dev->info, &t->plan));
    BT_TRY(plan(t));
    BT_TRY(take_host(t));
    BT_TRY(bti_arena_take(&t->arena, t->dev));
    return load(t, c);
}

bt_status bt_translator_open(const char *model, const bt_translate_options *options,
                             bt_translator **out) {
    if (options->beam < 1 || options->batch < 0 || options->max_length < 0)
        return bti_fail(BT_EUSAGE, "beam must be at least 1, batch and max_length at least 0");
    bt_translator *t = bti_alloc(1, sizeof *t);
    if (t == NULL) return BT_ENOMEM;
    t->options = *options;
    bti_checkpoint *c = NULL;
    bt_status status = find_model(model, &c);
    if (status == BT_OK) status = open_model(t, c);
    bti_checkpoint_close(c);
    if (status != BT_OK) {
        bt_translator_free(t);
        return status;
    }
    *out = t;
    return BT_OK;
}

void bt_translator_free(bt_translator *t) {
    if (t == NULL) return;
    bti_beam_free(t->beam);
    bti_free(t->value);
    bti_free(t->id);
    bti_free(t->history[0]);
    bti_free(t->history[1]);
    bti_free(t->source_row);
    bti_free(t->source_count);
    bti_free(t->limit);
    if (t->dev != NULL) {
        t->dev->ops->host_free(t->dev, t->host);
        bti_arena_release(&t->arena);
    }
    bti_program_free(t->plan);
    bti_program_free(t->program);
    bti_free(t->scratch);
    bti_model_free(t->model);
    bti_device_close(t->dev);
    if (t->tokenizer[1] != t->tokenizer[0]) bti_tokenizer_free(t->tokenizer[1]);
    bti_tokenizer_free(t->tokenizer[0]);
    bti_run_config_free(t->cfg);
    bti_free(t);
}

/* ---- a batch -----------------------------------------------------------------------------------
 */

/* One line of a call. */
typedef struct line {
    bti_ids ids;  /* with the end symbol; none for a blank line */
    size_t index; /* in the call */
    char *text;   /* its translation, once done */
    double score;
} line;

static int32_t *table(bt_translator *t, int which) {
    return (int32_t *)(t->host + t->staging.at[which]);
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
static int64_t stage_source(bt_translator *t, line *const *lines, int64_t n) {
    int32_t *ids = table(t, BTI_DECODE_SOURCE_IDS), *rowpos = table(t, BTI_DECODE_SOURCE_ROWPOS);
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t count = lines[i]->ids.count;
        t->source_row[i] = (int32_t)row;
        t->source_count[i] = (int32_t)count;
        sequence(table(t, BTI_DECODE_SEQ_ENCODER) + i * BT_SEQ_COLS, row, count, row, count, 0);
        for (int64_t j = 0; j < count; j++, row++) {
            ids[row] = lines[i]->ids.id[j];
            rowpos[2 * row] = 0;
            rowpos[2 * row + 1] = (int32_t)j;
        }
    }
    fill_tile(ids, rowpos, row, BTI_ROUND_TILE(row));
    return BTI_ROUND_TILE(row);
}

/* Tables of a step: newest symbols, positions, and the cache rows that each hypothesis descends
 * from; this step's rows begin at `cache_row`. */
static void stage_step(bt_translator *t, const bti_beam_live *live, int64_t cache_row) {
    int32_t *ids = table(t, BTI_DECODE_IDS), *rowpos = table(t, BTI_DECODE_ROWPOS);
    int64_t steps = t->caps.steps, at = live->step;
    int32_t *old = t->history[(at + 1) % 2], *new = t->history[at % 2];
    for (int64_t i = 0; i < live->count; i++) {
        int32_t s = live->sentence[i], *rows = new + i *steps;
        ids[i] = live->last[i] < 0 ? t->special.start : live->last[i];
        rowpos[2 * i] = 0;
        rowpos[2 * i + 1] = (int32_t)at;
        if (live->row[i] >= 0) memcpy(rows, old + live->row[i] * steps, (size_t)at * sizeof *rows);
        rows[at] = (int32_t)(cache_row + i);
        sequence(table(t, BTI_DECODE_SEQ_SELF) + i * BT_SEQ_COLS, i, 1, 0, at + 1, at);
        sequence(table(t, BTI_DECODE_SEQ_CROSS) + i * BT_SEQ_COLS, i, 1, t->source_row[s],
                 t->source_count[s], at);
    }
    fill_tile(ids, rowpos, live->count, BTI_ROUND_TILE(live->count));
    memcpy(table(t, BTI_DECODE_KIDX), new, (size_t)(live->count * steps) * sizeof *new);
}

static bt_status run_step(bt_translator *t, const bti_beam_live *live, int64_t sentences,
                          int64_t source_rows, int64_t cache_row) {
    bti_decode_shape shape = t->caps;
    bti_decode_program p;
    shape.sentences = sentences;
    shape.source_rows = source_rows;
    shape.hypotheses = live->count;
    shape.hypothesis_rows = BTI_ROUND_TILE(live->count);
    shape.cache_row = cache_row;
    stage_step(t, live, cache_row);
    bt_view v = bti_arena_at(&t->arena, BTI_REGION_STAGING, 0);
    uint64_t used =
        t->staging.at[BTI_DECODE_KIDX] + (uint64_t)(live->count * t->caps.steps) * sizeof(int32_t);
    const bt_dev_ops *ops = t->dev->ops;
    BT_TRY(ops->upload(t->dev, NULL, v.buf, v.off, t->host, used));
    BT_TRY(bti_model_emit_decode(t->program, t->model, &t->places, &t->staging, &shape, t->forbid,
                                 t->scratch, &p));
    BT_TRY(bti_layout_take(t->program, t->plan));
    BT_TRY(bti_program_run(t->program, &t->arena, 0, live->step == 0 ? 0 : p.encode_ops,
                           t->program->ops, NULL));
    uint64_t bytes = (uint64_t)(live->count * shape.candidates) * sizeof(float);
    v = bti_arena_view(&t->arena, t->program, bti_all(t->program, p.value), 0);
    BT_TRY(ops->download(t->dev, NULL, t->value, v.buf, v.off, bytes));
    v = bti_arena_view(&t->arena, t->program, bti_all(t->program, p.id), 0);
    BT_TRY(ops->download(t->dev, NULL, t->id, v.buf, v.off, bytes));
    return ops->sync(t->dev, NULL);
}

static int64_t limit_of(const bt_translator *t, int64_t source) {
    int64_t limit = t->options.max_length ? t->options.max_length : 2 * source + 10;
    return min64(limit, t->caps.steps);
}

static bt_status run_batch(bt_translator *t, line *const *lines, int64_t n) {
    for (int64_t i = 0; i < n; i++) t->limit[i] = (int32_t)limit_of(t, lines[i]->ids.count);
    BT_TRY(bti_beam_start(t->beam, (int32_t)n, t->limit));
    int64_t source_rows = stage_source(t, lines, n), cache_row = 0;
    for (;;) {
        bti_beam_live live = bti_beam_get_live(t->beam);
        if (live.count == 0) break;
        if (t->options.stop != NULL && *t->options.stop)
            return bti_fail(BT_ESTOPPED, "stopped on request");
        BT_TRY(run_step(t, &live, n, source_rows, cache_row));
        cache_row += live.count;
        BT_TRY(bti_beam_advance(t->beam, t->value, t->id));
    }
    for (int64_t i = 0; i < n; i++) {
        bti_hypothesis best;
        int32_t count;
        BT_TRY(bti_beam_results(t->beam, (int32_t)i, &best, &count));
        lines[i]->score = best.score;
        BT_TRY(bti_tokenizer_decode(t->tokenizer[1], best.ids, best.length, &lines[i]->text));
    }
    return BT_OK;
}

/* ---- a call ------------------------------------------------------------------------------------
 */

/* Text with every byte that is not UTF-8 replaced by U+FFFD and 00 by a space; NULL in *out when
 * all is well. */
static bt_status repair(const char *text, size_t bytes, char **out, size_t *out_bytes) {
    *out = NULL;
    if (bti_utf8_check(text, bytes) == bytes) return BT_OK;
    char *fixed = bti_alloc(3 * bytes + 1, 1);
    if (fixed == NULL) return BT_ENOMEM;
    size_t n = 0, at = 0;
    while (at < bytes) {
        size_t good = bti_utf8_check(text + at, bytes - at);
        memcpy(fixed + n, text + at, good);
        n += good;
        at += good;
        if (at == bytes) break;
        if (text[at] == 0)
            fixed[n++] = ' ';
        else {
            memcpy(fixed + n, "\xEF\xBF\xBD", 3);
            n += 3;
        }
        at++;
    }
    *out = fixed;
    *out_bytes = n;
    return BT_OK;
}

static int blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return 0;
    return 1;
}

static bt_status encode_line(bt_translator *t, const char *text, line *l, int64_t *repaired,
                             int64_t *cut) {
    size_t bytes = strlen(text);
    char *fixed;
    BT_TRY(repair(text, bytes, &fixed, &bytes));
    if (fixed != NULL) (*repaired)++;
    const char *use = fixed ? fixed : text;
    bt_status status = BT_OK;
    if (!blank(use, bytes)) status = bti_tokenizer_encode(t->tokenizer[0], use, bytes, &l->ids);
    bti_free(fixed);
    BT_TRY(status);
    if (l->ids.count == 0) return BT_OK;
    BT_TRY(bti_ids_push(&l->ids, bti_tokenizer_specials(t->tokenizer[0]).end));
    if (l->ids.count > t->caps.steps) {
        l->ids.id[t->caps.steps - 1] = l->ids.id[l->ids.count - 1];
        l->ids.count = t->caps.steps;
        (*cut)++;
    }
    return BT_OK;
}

static int shorter(const void *a, const void *b) {
    const line *x = *(line *const *)a, *y = *(line *const *)b;
    if (x->ids.count != y->ids.count) return x->ids.count < y->ids.count ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Lines from `from` on that a batch takes: bounded by sentences, source rows and cache rows. */
static int64_t batch_size(const bt_translator *t, line *const *sorted, int64_t from, int64_t n) {
    int64_t source = 0, cache = 0, i = from;
    for (; i < n && i - from < t->caps.sentences; i++) {
        source += sorted[i]->ids.count;
        cache += t->options.beam * limit_of(t, sorted[i]->ids.count);
        if (i > from &&
            (source > t->caps.source_rows || cache + BTI_DECODE_TILE > t->caps.cache_rows))
            break;
    }
    return i - from;
}

/* Hands over what is done, in order, from *next on. */
static bt_status hand_over(line *lines, size_t count, size_t *next, bt_sink_fn sink, void *user) {
    for (; *next < count && lines[*next].text != NULL; (*next)++)
        BT_TRY(sink(user, *next, lines[*next].text, lines[*next].score));
    return BT_OK;
}

static bt_status translate_all(bt_translator *t, line *lines, line **sorted, size_t count,
                               bt_sink_fn sink, void *user) {
    size_t next = 0;
    int64_t n = 0;
    for (size_t i = 0; i < count; i++) {
        lines[i].index = i;
        if (lines[i].ids.count > 0)
            sorted[n++] = &lines[i];
        else if ((lines[i].text = bti_strdup("")) == NULL)
            return BT_ENOMEM;
    }
    qsort(sorted, (size_t)n, sizeof *sorted, shorter);
    BT_TRY(hand_over(lines, count, &next, sink, user));
    for (int64_t at = 0; at < n;) {
        int64_t take = batch_size(t, sorted, at, n);
        BT_TRY(run_batch(t, sorted + at, take));
        BT_TRY(hand_over(lines, count, &next, sink, user));
        at += take;
    }
    return BT_OK;
}

bt_status bt_translate(bt_translator *t, const char *const *text, size_t count, bt_sink_fn sink,
                       void *user) {
    int64_t repaired = 0, cut = 0;
    line *lines = bti_alloc(count, sizeof *lines);
    line **sorted = bti_alloc(count, sizeof *sorted);
    bt_status status = lines == NULL || sorted == NULL ? BT_ENOMEM : BT_OK;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = encode_line(t, text[i], &lines[i], &repaired, &cut);
    if (repaired > 0)
        bti_log(BT_LOG_WARN, "%lld lines are not UTF-8; wrong bytes are read as U+FFFD",
                (long long)repaired);
    if (cut > 0)
        bti_log(BT_LOG_WARN, "%lld lines are longer than data.max_length %lld and are cut",
                (long long)cut, (long long)t->caps.steps);
    if (status == BT_OK) status = translate_all(t, lines, sorted, count, sink, user);
    for (size_t i = 0; lines != NULL && i < count; i++) {
        bti_ids_free(&lines[i].ids);
        bti_free(lines[i].text);
    }
    bti_free(sorted);
    bti_free(lines);
    return status;
}
