/* bt_translator: a checkpoint, a device and beam search; lines in, lines out.
 *
 * All device memory is taken on opening: weights, tables, the encoder's rows and the caches, for
 * batches bounded by sentences, source rows and cache rows. Lines of a call are sorted by length
 * into such batches; results leave in input order. */
#include "core/decode/translator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/corpus.h"
#include "core/engine/checkpoint.h"
#include "core/engine/inputs.h"
#include "core/fit/device.h"
#include "core/model/head.h"

#define DEFAULT_BATCH 64
#define MAX_BEAM 1024 /* as validation.beam */

/* ---- opening ----------------------------------------------------------------------------- */

static bt_status find_model(const char *path, bti_checkpoint **out) {
    *out = NULL;
    if (!bti_dir_exists(path)) return bti_checkpoint_open(path, out);
    BT_TRY(bti_checkpoint_find(path, out));
    bti_log(BT_LOG_INFO, "%s, after update %lld", (*out)->path, (long long)(*out)->info.update);
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

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Losses run between translations, so that they share memory. */
static bt_status plan_losses(bt_translator *t, int64_t batch, uint64_t region[BTI_REGION_COUNT]) {
    bti_losses_config cfg = {.start = t->decoding.start,
                             .length = t->cfg->data.max_length,
                             .smoothing = t->cfg->training.label_smoothing};
    bti_losses_free(t->losses);
    t->losses = NULL;
    if (!t->with_losses) return BT_OK;
    BT_TRY(bti_losses_new(t->model, t->dev->driver->planning, &t->dev->info, &t->places, &cfg,
                          batch, &t->losses));
    region[BTI_REGION_STAGING] =
        max_u64(region[BTI_REGION_STAGING], bti_losses_staging_bytes(t->losses));
    region[BTI_REGION_DYNAMIC] =
        max_u64(region[BTI_REGION_DYNAMIC], bti_losses_dynamic_bytes(t->losses));
    return BT_OK;
}

/* Plans batches of `batch`: the decoder, places and the arena's sizes. */
static bt_status plan_batch(bt_translator *t, int64_t batch) {
    const bt_dev_info *info = &t->dev->info;
    uint64_t region[BTI_REGION_COUNT] = {0};
    bti_decoder_free(t->decoder);
    t->decoder = NULL;
    if (bti_has_decoder(&t->shape)) {
        BT_TRY(bti_decoder_new(t->model, t->dev->driver->planning, info, &t->places, 0,
                               &t->decoding, batch, &t->decoder));
        region[BTI_REGION_STAGING] = bti_decoder_staging_bytes(t->decoder);
        region[BTI_REGION_DYNAMIC] = bti_decoder_dynamic_bytes(t->decoder);
    }
    region[BTI_REGION_WEIGHTS] = t->model->params.bytes;
    region[BTI_REGION_CONSTANT] =
        (uint64_t)(t->places.position_rows * t->model->cfg.d_model) * sizeof(float);
    BT_TRY(plan_losses(t, batch, region));
    bti_arena_plan(&t->arena, region, info);
    return BT_OK;
}

/* The largest batch up to the one asked for that fits. */
static bt_status plan(bt_translator *t) {
    bti_budget memory;
    uint64_t need, align = t->dev->info.alignment;
    char a[32], b[32];
    BT_TRY(bti_params_place(&t->model->params, align, t->dev->info.max_alloc / align * align));
    t->places =
        (bti_places){.position_rows = bti_model_sinusoid_rows(t->model, t->cfg->data.max_length)};
    BT_TRY(bti_device_warm(t->dev, t->model, t->with_losses ? 4096 : 0, 256));
    BT_TRY(bti_memory_budget(t->dev, t->options.memory, BTI_MEMORY_AUTO, &memory));
    int64_t batch = t->options.batch ? t->options.batch : DEFAULT_BATCH;
    for (;; batch /= 2) {
        BT_TRY(plan_batch(t, batch));
        need = t->arena.total + memory.runtime;
        if (t->decoder != NULL) need += bti_decoder_host_bytes(t->decoder);
        if (t->losses != NULL) need += bti_losses_host_bytes(t->losses);
        if (need <= memory.limit) return BT_OK;
        if (batch == 1) break;
    }
    bti_format_bytes(need, a);
    bti_format_bytes(memory.limit, b);
    return bti_fail(
        BT_EFIT,
        "translation does not fit in %s: one sentence of %lld symbols with beam %d needs "
        "%s; a smaller beam needs less",
        b, (long long)t->cfg->data.max_length, t->options.beam, a);
}

static bt_status upload(bt_translator *t, bti_region region, uint64_t address, const void *data,
                        uint64_t bytes) {
    bt_view v = bti_arena_at(&t->arena, region, address);
    return bti_settle(t->dev, t->dev->ops->upload(t->dev, NULL, v.buf, v.off, data, bytes));
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
    if (bytes == 0) return BT_OK;
    void *table = bti_alloc(1, bytes);
    if (table == NULL) return BT_ENOMEM;
    bti_model_sinusoids(t->model, t->places.position_rows, table);
    bt_status status = upload(t, BTI_REGION_CONSTANT, t->places.positions, table, bytes);
    bti_free(table);
    return status;
}

/* ---- features ------------------------------------------------------------------------------ */

/* The file of a feature among "NAME=FILE" options; NULL: none is given. */
static const char *feature_file(const bt_translator *t, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < t->options.feature_count; i++)
        if (strncmp(t->options.features[i], name, n) == 0 && t->options.features[i][n] == '=')
            return t->options.features[i] + n + 1;
    return NULL;
}

/* Every option must name a feature of the model. */
static bt_status check_names(const bt_translator *t) {
    for (size_t i = 0; i < t->options.feature_count; i++) {
        const char *option = t->options.features[i];
        int known = 0;
        const char *file = strchr(option, '=');
        if (file == NULL || file[1] == 0)
            return bti_fail(BT_EUSAGE, "features: \"%s\": an option is written NAME=FILE", option);
        for (size_t k = 0; k < i; k++)
            if (strncmp(t->options.features[k], option, (size_t)(file + 1 - option)) == 0)
                return bti_fail(
                    BT_EUSAGE,
                    "features: \"%s\" and \"%s\": a feature has one file, perhaps a list "
                    "(.txt)",
                    t->options.features[k], option);
        for (int32_t f = 0; f < t->shape.features; f++) {
            size_t n = strlen(t->shape.feature[f].name);
            known |= strncmp(option, t->shape.feature[f].name, n) == 0 && option[n] == '=';
        }
        if (!known)
            return bti_fail(BT_EUSAGE, "features: \"%s\": the model has no such feature%s%s",
                            option, t->shape.features ? ", but " : "",
                            t->shape.features ? t->shape.feature[0].name : "");
    }
    return BT_OK;
}

/* Rows of a parameter of the checkpoint, 0 when it has none; *cols its columns. */
static int64_t rows_in(const bti_checkpoint *c, const char *name, int64_t *cols) {
    const void *data;
    const bti_st_tensor *s = bti_st_find(c->file, name, &data);
    *cols = s && s->dims == 2 ? s->shape[1] : 0;
    return s ? s->shape[0] : 0;
}

static bt_status open_feature(bt_translator *t, const bti_checkpoint *c, int32_t f) {
    bti_feature_config *m = &t->shape.feature[f];
    const char *file = feature_file(t, m->name);
    char name[96];
    int64_t cols;
    if (file == NULL)
        return bti_fail(BT_EUSAGE, "the model reads the feature %s: give its file, %s=FILE",
                        m->name, m->name);
    snprintf(name, sizeof name, "features.%.32s.projection.weight", m->name);
    rows_in(c, name, &m->width);
    bti_features_spec spec = {.name = m->name,
                              .files = &file,
                              .file_count = 1,
                              .width = m->width,
                              .stop = t->options.stop};
    BT_TRY(bti_features_open(&spec, &t->feature[f]));
    int64_t most = bti_features_get_stats(t->feature[f])->most_rows;
    snprintf(name, sizeof name, "features.%.32s.positions.weight", m->name);
    int64_t placed = rows_in(c, name, &cols);
    if (placed > 0 && most > placed)
        return bti_fail(BT_EINPUT, "feature %s: %s has %lld rows, the model has positions for %lld",
                        m->name, file, (long long)most, (long long)placed);
    if (placed > 0 || most > m->rows) m->rows = placed > 0 ? placed : most;
    return BT_OK;
}

static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const bt_translator *t = user;
    return bti_features_read(t->feature[feature], example, out);
}

bt_status bti_translator_match(const bt_translator *t, const char *path, int64_t count,
                               const char *units) {
    for (int32_t f = 0; f < t->shape.features; f++)
        BT_TRY(bti_features_match(t->feature[f], count, path, units));
    return BT_OK;
}

/* Of a model that reads features alone: as many of each, and rows that go together. */
static bt_status check_examples(const bt_translator *t) {
    int64_t n = bti_features_count(t->feature[0]);
    BT_TRY(bti_translator_match(t, bti_features_path(t->feature[0]), n, "examples"));
    for (int64_t i = 0; i < n; i++)
        BT_TRY(bti_inputs_check_rows(t->feature, (size_t)t->shape.features, t->shape.fusion, i,
                                     NULL, 0));
    return BT_OK;
}

static bt_status open_shape(bt_translator *t, const bti_checkpoint *c) {
    int64_t cols;
    t->shape = t->cfg->model;
    t->dense = (bti_dense){t, read_feature, NULL};
    if (!bti_has_decoder(&t->shape)) t->shape.outputs = rows_in(c, "head.weight", &cols);
    BT_TRY(check_names(t));
    for (int32_t f = 0; f < t->shape.features; f++) BT_TRY(open_feature(t, c, f));
    return t->tokenizer[0] == NULL && t->shape.features > 0 ? check_examples(t) : BT_OK;
}

bt_status bti_translator_check_source(const bt_translator *t, const char *source) {
    int reads = t->tokenizer[0] != NULL;
    if (reads == (source != NULL)) return BT_OK;
    return bti_fail(BT_EUSAGE, reads ? "the model reads text: give a source"
                                     : "the model reads no text: there is no source");
}

bt_status bti_translator_features(bt_translator *t, int64_t example, int32_t *rows,
                                  bti_sentence *s) {
    s->dense = &t->dense;
    s->example = example;
    s->rows = rows;
    for (int32_t f = 0; f < t->shape.features; f++) {
        int64_t count = bti_features_count(t->feature[f]);
        if (example >= count)
            return bti_fail(BT_EINPUT, "feature %s has %lld examples: none for line %lld",
                            t->shape.feature[f].name, (long long)count, (long long)example + 1);
        rows[f] = (int32_t)bti_features_rows(t->feature[f], example);
    }
    if (t->tokenizer[0] != NULL && s->count[0] == 0) return BT_OK; /* blank: nothing to mix with */
    return bti_inputs_check_rows(t->feature, (size_t)t->shape.features, t->shape.fusion, example,
                                 t->tokenizer[0] ? "the text" : NULL, s->count[0]);
}

size_t bt_translator_examples(const bt_translator *t) {
    return t->shape.features > 0 ? (size_t)bti_features_count(t->feature[0]) : 0;
}

int bt_translator_reads_text(const bt_translator *t) { return t->tokenizer[0] != NULL; }

/* ---- the model ----------------------------------------------------------------------------- */

static bt_status open_tokenizers(bt_translator *t, const bti_checkpoint *c) {
    int both = c->info.vocab[0] > 0 && c->info.vocab[1] > 0;
    for (int side = 0; side < 2; side++) {
        if (c->info.vocab[side] == 0 || (side == 1 && both && t->cfg->shared)) continue;
        BT_TRY(open_tokenizer(c, t->cfg, side, &t->tokenizer[side]));
    }
    if (both && t->cfg->shared) t->tokenizer[1] = t->tokenizer[0];
    return BT_OK;
}

static void set_decoding(bt_translator *t) {
    bti_special_ids s = bti_tokenizer_specials(t->tokenizer[1]);
    t->decoding = (bti_decoder_config){.beam = t->options.beam,
                                       .nbest = t->options.nbest,
                                       .length_penalty = t->options.length_penalty,
                                       .max_length = t->options.max_length,
                                       .length = t->cfg->data.max_length,
                                       .stop = t->options.stop};
    bti_decoder_specials(&t->decoding, s.start, s.end, s.unk, s.pad);
}

static bt_status open_model(bt_translator *t, const bti_checkpoint *c) {
    BT_TRY(bti_run_config_parse(c->path, c->info.run, NULL, 0, &t->cfg));
    if (!bti_has_decoder(&t->cfg->model) && !t->with_losses)
        return bti_fail(BT_EUSAGE, "%s writes no text: its head is %s; bantam predict asks it",
                        c->path, bti_head_of(&t->cfg->model)->name);
    BT_TRY(open_tokenizers(t, c));
    if (bti_has_decoder(&t->cfg->model)) set_decoding(t);
    BT_TRY(open_shape(t, c));
    BT_TRY(bti_model_new(&t->shape, c->info.vocab[0], c->info.vocab[1], BT_F32, &t->model));
    BT_TRY(bti_checkpoint_match(c, t->model));
    BT_TRY(bti_device_choose(t->options.device, t->options.threads, &t->dev));
    BT_TRY(plan(t));
    BT_TRY(bti_arena_take(&t->arena, t->dev));
    if (t->decoder != NULL) BT_TRY(bti_decoder_bind(t->decoder, &t->arena));
    if (t->losses != NULL) BT_TRY(bti_losses_bind(t->losses, &t->arena));
    return load(t, c);
}

bt_status bti_translator_open(const char *model, const bt_translate_options *options,
                              int with_losses, bt_translator **out) {
    if (options->beam < 1 || options->beam > MAX_BEAM)
        return bti_fail(BT_EUSAGE, "beam: %d is not a whole number from 1 to %d", options->beam,
                        MAX_BEAM);
    if (options->nbest < 0 || options->nbest > options->beam)
        return bti_fail(BT_EUSAGE, "n-best: %d is not a whole number from 1 to the beam, %d",
                        options->nbest, options->beam);
    if (options->batch < 0 || options->max_length < 0)
        return bti_fail(BT_EUSAGE, "batch and max_length must be at least 0");
    bt_translator *t = bti_alloc(1, sizeof *t);
    if (t == NULL) return BT_ENOMEM;
    t->options = *options;
    t->with_losses = with_losses;
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

bt_status bt_translator_open(const char *model, const bt_translate_options *options,
                             bt_translator **out) {
    return bti_translator_open(model, options, 0, out);
}

void bt_translator_free(bt_translator *t) {
    if (t == NULL) return;
    bti_losses_free(t->losses);
    bti_decoder_free(t->decoder);
    if (t->dev != NULL) bti_arena_release(&t->arena);
    bti_model_free(t->model);
    bti_device_close(t->dev);
    for (int f = 0; f < BTI_MAX_FEATURES; f++) bti_features_close(t->feature[f]);
    if (t->tokenizer[1] != t->tokenizer[0]) bti_tokenizer_free(t->tokenizer[1]);
    bti_tokenizer_free(t->tokenizer[0]);
    bti_run_config_free(t->cfg);
    bti_free(t);
}

/* ---- a call ------------------------------------------------------------------------------ */

typedef struct translation {
    char *text;
    double score;
} translation;

/* One line of a call. */
typedef struct line {
    bti_source source;  /* of ids; none for a blank line */
    bti_ids ids;        /* with the end symbol */
    bti_sentence input; /* with features: the whole example, and rows of each */
    int32_t rows[BTI_MAX_FEATURES];
    size_t index;      /* in the call */
    translation *best; /* once done, best first */
    int32_t count;     /* of them; 0: not done */
} line;

static bt_status line_make_room(line *l, int32_t count) {
    l->best = bti_alloc((size_t)count, sizeof *l->best);
    if (l->best == NULL) return BT_ENOMEM;
    l->count = count;
    return BT_OK;
}

static void line_free(line *l) {
    for (int32_t i = 0; i < l->count; i++) bti_free(l->best[i].text);
    bti_free(l->best);
    bti_ids_free(&l->ids);
}

/* Text with every byte that is not UTF-8 replaced by U+FFFD and 00 by a space; NULL in *out
 * when all is well. */
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

bt_status bti_translator_encode(const bt_translator *t, int side, const char *text, size_t bytes,
                                bti_ids *ids, int64_t *cut) {
    int64_t most = t->cfg->data.max_length;
    ids->count = 0;
    if (blank(text, bytes)) return BT_OK;
    BT_TRY(bti_tokenizer_encode(t->tokenizer[side], text, bytes, ids));
    if (ids->count == 0) return BT_OK;
    BT_TRY(bti_ids_push(ids, bti_tokenizer_specials(t->tokenizer[side]).end));
    if (ids->count > most) {
        ids->id[most - 1] = ids->id[ids->count - 1];
        ids->count = most;
        ++*cut;
    }
    return BT_OK;
}

static bt_status encode_line(bt_translator *t, const char *text, line *l, int64_t *repaired,
                             int64_t *cut) {
    if (t->tokenizer[0] == NULL) return BT_OK;
    size_t bytes = strlen(text);
    char *fixed;
    BT_TRY(repair(text, bytes, &fixed, &bytes));
    if (fixed != NULL) (*repaired)++;
    bt_status status = bti_translator_encode(t, 0, fixed ? fixed : text, bytes, &l->ids, cut);
    bti_free(fixed);
    int32_t unk = bti_tokenizer_specials(t->tokenizer[0]).unk;
    for (int64_t i = 0; i < l->ids.count - 1; i++) t->source_unknown += l->ids.id[i] == unk;
    if (l->ids.count > 0) t->source_tokens += l->ids.count - 1;
    return status;
}

static int shorter(const void *a, const void *b) {
    const line *x = *(line *const *)a, *y = *(line *const *)b;
    if (x->source.count != y->source.count) return x->source.count < y->source.count ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Text for another model, or prepared in another way, is told once. */
static void say_unknown(bt_translator *t) {
    double share =
        100.0 * (double)t->source_unknown / (double)(t->source_tokens + !t->source_tokens);
    if (share < 5 || t->said_unknown) return;
    t->said_unknown = 1;
    bti_log(BT_LOG_WARN, "%.1f %% of the source tokens so far are unknown to the tokeniser", share);
}

/* Hands over what is done, in order, from *next on. */
static bt_status hand_over(line *lines, size_t count, size_t *next, bt_sink_fn sink, void *user) {
    for (; *next < count && lines[*next].count > 0; (*next)++) {
        const line *l = &lines[*next];
        for (int32_t i = 0; i < l->count; i++)
            BT_TRY(sink(user, *next, l->best[i].text, l->best[i].score));
    }
    return BT_OK;
}

/* Lines of a call, and those that are not blank by length: as lines and as sources. */
typedef struct call {
    line *lines, **sorted;
    const bti_source **source;
    size_t count, next; /* next: first line not handed over */
    int64_t n;          /* lines that are not blank */
} call;

static bt_status translate_batch(bt_translator *t, call *c, int64_t at, int64_t take) {
    BT_TRY(bti_decoder_run(t->decoder, c->source + at, take, NULL));
    for (int64_t i = 0; i < take; i++) {
        line *l = c->sorted[at + i];
        const bti_hypothesis *h;
        int32_t count;
        BT_TRY(bti_decoder_results(t->decoder, i, &h, &count));
        BT_TRY(line_make_room(l, count));
        for (int32_t k = 0; k < count; k++) {
            l->best[k].score = h[k].score;
            BT_TRY(bti_tokenizer_decode(t->tokenizer[1], h[k].ids, h[k].length, &l->best[k].text));
        }
    }
    return BT_OK;
}

/* What a blank line gives. */
static bt_status translate_nothing(line *l) {
    BT_TRY(line_make_room(l, 1));
    l->best[0].text = bti_strdup("");
    return l->best[0].text == NULL ? BT_ENOMEM : BT_OK;
}

static bt_status translate_all(bt_translator *t, call *c, bt_sink_fn sink, void *user) {
    for (size_t i = 0; i < c->count; i++) {
        line *l = &c->lines[i];
        l->index = i;
        l->source = (bti_source){.ids = l->ids.id, .count = l->ids.count};
        int there = l->ids.count > 0 || t->tokenizer[0] == NULL;
        if (there && t->model->segments > 0) {
            l->input.ids[0] = l->ids.id;
            l->input.count[0] = l->ids.count;
            l->source.input = &l->input;
            BT_TRY(bti_translator_features(t, t->example + (int64_t)i, l->rows, &l->input));
        }
        if (there)
            c->sorted[c->n++] = l;
        else
            BT_TRY(translate_nothing(l));
    }
    qsort(c->sorted, (size_t)c->n, sizeof *c->sorted, shorter);
    for (int64_t i = 0; i < c->n; i++) c->source[i] = &c->sorted[i]->source;
    BT_TRY(hand_over(c->lines, c->count, &c->next, sink, user));
    for (int64_t at = 0; at < c->n;) {
        int64_t take = bti_decoder_batch(t->decoder, c->source, at, c->n);
        BT_TRY(translate_batch(t, c, at, take));
        BT_TRY(hand_over(c->lines, c->count, &c->next, sink, user));
        at += take;
    }
    return BT_OK;
}

bt_status bt_translate(bt_translator *t, const char *const *text, size_t count, bt_sink_fn sink,
                       void *user) {
    int64_t repaired = 0, cut = 0;
    call c = {.count = count,
              .lines = bti_alloc(count, sizeof *c.lines),
              .sorted = bti_alloc(count, sizeof *c.sorted),
              .source = bti_alloc(count, sizeof *c.source)};
    bt_status status = c.lines == NULL || c.sorted == NULL || c.source == NULL ? BT_ENOMEM : BT_OK;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = encode_line(t, text[i], &c.lines[i], &repaired, &cut);
    say_unknown(t);
    if (repaired > 0)
        bti_log(BT_LOG_WARN, "%lld lines are not UTF-8; wrong bytes are read as U+FFFD",
                (long long)repaired);
    if (cut > 0)
        bti_log(BT_LOG_WARN, "%lld lines are longer than data.max_length %lld and are cut",
                (long long)cut, (long long)t->cfg->data.max_length);
    if (status == BT_OK) status = translate_all(t, &c, sink, user);
    t->example += (int64_t)count;
    for (size_t i = 0; c.lines != NULL && i < count; i++) line_free(&c.lines[i]);
    bti_free(c.source);
    bti_free(c.sorted);
    bti_free(c.lines);
    return status;
}
