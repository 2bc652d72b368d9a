/* bt_translator: a checkpoint on a device, ready to translate or to be asked for losses.
 *
 * All device memory is taken on opening: weights, tables, the encoder's rows and the caches, for
 * batches bounded by sentences, source rows and cache rows. */
#include "core/decode/translator.h"

#include <stdio.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/num.h"
#include "core/base/status.h"
#include "core/engine/checkpoint.h"
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
        bti_max_u64(region[BTI_REGION_STAGING], bti_losses_staging_bytes(t->losses));
    region[BTI_REGION_DYNAMIC] =
        bti_max_u64(region[BTI_REGION_DYNAMIC], bti_losses_dynamic_bytes(t->losses));
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

/* Takes the first of several devices on which it fits; when it fits on none, what is said is of the
 * first. */
static bt_status plan_somewhere(bt_translator *t) {
    const char *what = bti_has_decoder(&t->shape) ? "translation" : "prediction";
    bti_device_list l;
    int at = 0;
    bti_device_list_make(t->options.device, &l);
    BT_TRY(bti_device_next(&l, &at, t->options.threads, NULL, &t->dev));
    bt_status status = plan(t);
    if (status != BT_EFIT) return status;
    char first[128], text[1024];
    snprintf(first, sizeof first, "%s", t->dev->info.name);
    snprintf(text, sizeof text, "%s", bt_last_error());
    for (bt_dev *next; at < l.count;) {
        if (bti_device_next(&l, &at, t->options.threads, NULL, &next) != BT_OK) break;
        bti_decoder_free(t->decoder);
        bti_losses_free(t->losses);
        t->decoder = NULL;
        t->losses = NULL;
        bti_device_close(t->dev);
        t->dev = next;
        if (plan(t) != BT_OK) continue;
        bti_log(BT_LOG_INFO, "%s fits on %s, not on %s", what, next->info.name, first);
        return BT_OK;
    }
    return bti_fail(BT_EFIT, "%s", text);
}

static bt_status upload(bt_translator *t, bti_region region, uint64_t address, const void *data,
                        uint64_t bytes) {
    bt_view v = bti_arena_at(&t->arena, region, address);
    return bti_settle(t->dev, NULL, t->dev->ops->upload(t->dev, NULL, v.buf, v.off, data, bytes));
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

/* ---- the model ----------------------------------------------------------------------------- */

bt_status bti_translator_check_source(const bt_translator *t, const char *source) {
    int reads = t->tokenizer[0] != NULL;
    if (reads == (source != NULL)) return BT_OK;
    return bti_fail(BT_EUSAGE, reads ? "the model reads text: give a source"
                                     : "the model reads no text: there is no source");
}

int bt_translator_reads_text(const bt_translator *t) { return t->tokenizer[0] != NULL; }

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
    BT_TRY(bti_translator_open_shape(t, c));
    BT_TRY(bti_model_new(&t->shape, c->info.vocab[0], c->info.vocab[1], BT_F32, &t->model));
    BT_TRY(bti_checkpoint_match(c, t->model));
    BT_TRY(plan_somewhere(t));
    BT_TRY(bti_arena_take(&t->arena, t->dev));
    if (t->decoder != NULL) BT_TRY(bti_decoder_bind(t->decoder, &t->arena));
    if (t->losses != NULL) BT_TRY(bti_losses_bind(t->losses, &t->arena));
    return load(t, c);
}

bt_status bti_translator_open(const char *model, const bt_translate_options *options,
                              int with_losses, bt_translator **out) {
    static const bt_translate_options defaults = BT_TRANSLATE_DEFAULTS;
    if (options == NULL) options = &defaults;
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
