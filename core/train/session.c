#include "core/train/session.h"

#include <stdio.h>
#include <string.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/unknown.h"
#include "core/train/distinct.h"
#include "core/train/rates.h"
#include "core/train/validation.h"

/* ---- text --------------------------------------------------------------------------------------
 */

static bti_corpus_config corpus_config(const bti_session *s) {
    const bti_run_config *c = s->cfg;
    return (bti_corpus_config){.source = c->data.train_source,
                               .target = c->data.train_target,
                               .max_length = c->data.max_length,
                               .overlong = c->data.overlong,
                               .stop = s->stop};
}

/* Trains the tokeniser of a side when its file is absent; a shared one sees both sides' text. */
static bt_status make_tokenizer(const bti_session *s, int side) {
    const bti_run_config *c = s->cfg;
    const bti_tokenizer_config *t = &c->tokenizer[side];
    const bti_files *files[2] = {&c->data.train_source, &c->data.train_target};
    char *file = bti_tokenizer_trained_file(t);
    if (file == NULL) return BT_ENOMEM;
    int there = bti_file_exists(file);
    if (!there && t->size > 0)
        bti_log(BT_LOG_INFO, "training a tokeniser of %lld pieces: %s", (long long)t->size, file);
    bti_free(file);
    if (there || t->size == 0) return BT_OK;
    bti_corpus_config corpus = corpus_config(s);
    BT_TRY(bti_corpus_check(&corpus));
    int first = c->shared ? 0 : side, last = c->shared ? 1 : side;
    const char **list = bti_alloc(files[0]->count + files[1]->count, sizeof *list);
    if (list == NULL) return BT_ENOMEM;
    size_t n = 0;
    for (int f = first; f <= last; f++)
        for (size_t i = 0; i < files[f]->count; i++) list[n++] = files[f]->path[i];
    bt_status status = bti_tokenizer_train(t, list, n);
    bti_free(list);
    return status;
}

static const char *const side_name[] = {"source", "target"};

/* Lines in which unknown characters are looked for. */
#define SAMPLE_LINES 20000

/* How much of a side its tokeniser does not know; of `tokens`, end symbols not counted. */
static void say_unknown(const bti_session *s, int side, int64_t unknown, int64_t tokens) {
    const bti_files *files = side ? &s->cfg->data.train_target : &s->cfg->data.train_source;
    double share = tokens > 0 ? 100.0 * (double)unknown / (double)tokens : 0;
    char *chars = NULL;
    if (unknown == 0) return;
    if (share >= 1) /* the text was read already: what fails here only shortens the message */
        (void)bti_unknown_sample(s->tokenizer[side], files, SAMPLE_LINES, &chars);
    bti_log(share >= 1 ? BT_LOG_WARN : BT_LOG_INFO,
            "%.*f %% of the %s tokens (%s%s) are unknown to the tokeniser%s%s", share >= 1 ? 1 : 3,
            share, side_name[side], files->path[0], files->count > 1 ? " and others" : "",
            chars && chars[0] ? "; most frequent characters of such: " : "", chars ? chars : "");
    bti_free(chars);
}

/* Does the tokeniser know nothing of a side but blanks? */
static int knows_nothing(const bti_session *s, int side) {
    int32_t unk = bti_tokenizer_specials(s->tokenizer[side]).unk;
    for (int64_t i = 0; i < bti_corpus_count(s->corpus); i++) {
        int64_t n;
        const int32_t *ids =
            side ? bti_corpus_target(s->corpus, i, &n) : bti_corpus_source(s->corpus, i, &n);
        for (int64_t k = 0; k < n - 1; k++) /* the last one is the end symbol */
            if (ids[k] != unk &&
                strcmp(bti_tokenizer_piece(s->tokenizer[side], ids[k]), "\xE2\x96\x81") != 0)
                return 0;
    }
    return 1;
}

/* A text of which nothing is known was made for another tokeniser. */
static bt_status check_unknown(const bti_session *s) {
    for (int side = 0; side < 2 && !s->cfg->data.allow_unknown; side++) {
        const bti_files *files = side ? &s->cfg->data.train_target : &s->cfg->data.train_source;
        if (knows_nothing(s, side))
            return bti_fail(BT_EINPUT,
                            "%s: all %s tokens are unknown to the tokeniser %s: is it the right "
                            "one? data.allow_unknown: true trains all the same",
                            files->path[0], side_name[side], s->cfg->tokenizer[side].model);
    }
    return BT_OK;
}

/* What was left out or cut, and how much the tokenisers do not know. */
static void say_text(const bti_session *s) {
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    const int64_t unknown[] = {c->source_unknown, c->target_unknown};
    const int64_t ids[] = {c->source_ids, c->target_ids};
    if (c->empty > 0)
        bti_log(BT_LOG_WARN, "%lld pairs skipped (empty side), first at line %lld",
                (long long)c->empty, (long long)c->first_empty_line);
    if (c->overlong > 0)
        bti_log(BT_LOG_WARN, "%lld pairs longer than data.max_length %lld %s, first at line %lld",
                (long long)c->overlong, (long long)s->cfg->data.max_length,
                s->cfg->data.overlong == BTI_OVERLONG_SKIP ? "skipped" : "cut",
                (long long)c->first_overlong_line);
    for (int i = 0; i < 2; i++) say_unknown(s, i, unknown[i], ids[i] - bti_corpus_count(s->corpus));
    bti_log(BT_LOG_INFO, "%lld pairs, %lld source and %lld target tokens",
            (long long)bti_corpus_count(s->corpus), (long long)c->source_ids,
            (long long)c->target_ids);
}

static bt_status open_valid(bti_session *s) {
    const bti_run_config *c = s->cfg;
    if (!bti_validates(c)) return BT_OK;
    bti_corpus_config valid = corpus_config(s);
    valid.source = c->data.valid_source;
    valid.target = c->data.valid_target;
    valid.overlong = BTI_OVERLONG_TRUNCATE;
    BT_TRY(bti_corpus_open(&valid, s->tokenizer[0], s->tokenizer[1], c->data.cache, &s->valid));
    if (bti_corpus_count(s->valid) == 0)
        return bti_fail(BT_EINPUT, "%s and %s hold no pair to validate on",
                        c->data.valid_source.path[0], c->data.valid_target.path[0]);
    return BT_OK;
}

bt_status bti_session_tokenizers(bti_session *s) {
    const bti_run_config *c = s->cfg;
    for (int side = 0; side < (c->shared ? 1 : 2); side++) {
        BT_TRY(make_tokenizer(s, side));
        BT_TRY(bti_tokenizer_open(&c->tokenizer[side], &s->tokenizer[side]));
    }
    if (c->shared) s->tokenizer[1] = s->tokenizer[0];
    return BT_OK;
}

static bt_status open_text(bti_session *s) {
    const bti_run_config *c = s->cfg;
    BT_TRY(bti_session_tokenizers(s));
    bti_corpus_config corpus = corpus_config(s);
    bti_log(BT_LOG_INFO, "reading %s and %s", c->data.train_source.path[0],
            c->data.train_target.path[0]);
    BT_TRY(bti_corpus_open(&corpus, s->tokenizer[0], s->tokenizer[1], c->data.cache, &s->corpus));
    if (bti_corpus_count(s->corpus) == 0)
        return bti_fail(BT_EINPUT, "%s and %s hold no pair to train on",
                        c->data.train_source.path[0], c->data.train_target.path[0]);
    say_text(s);
    BT_TRY(check_unknown(s));
    return bti_batcher_new(s->corpus, c->training.batch, c->training.batch_unit, c->training.seed,
                           &s->batcher);
}

/* ---- model -------------------------------------------------------------------------- */

static bt_status freeze(const bti_run_config *cfg, bti_model *m) {
    bt_status status = bti_model_freeze(m, cfg->freeze.name, cfg->freeze.count);
    return status == BT_OK ? status : bti_fail_prefix(status, "%s", cfg->path);
}

/* Names are known without the text: a wrong one is told before that is read. */
static bt_status check_freeze(const bti_run_config *cfg) {
    bti_model *m;
    if (cfg->freeze.count == 0) return BT_OK;
    BT_TRY(bti_model_new(&cfg->model, 1, 1, BT_F32, &m));
    bt_status status = freeze(cfg, m);
    bti_model_free(m);
    return status;
}

bt_status bti_session_initial(bti_session *s) {
    const bti_run_config *c = s->cfg;
    uint64_t tokenizer[2];
    if (c->initial_model == NULL) return BT_OK;
    BT_TRY(bti_initial_open(c->initial_model, c->initial_partial, s->model, &s->initial));
    bti_log(bti_initial_is_whole(s->initial) ? BT_LOG_INFO : BT_LOG_WARN, "first values: %s",
            bti_initial_text(s->initial));
    for (int i = 0; i < 2; i++) tokenizer[i] = bti_tokenizer_checksum(s->tokenizer[i]);
    bti_initial_compare(s->initial, c, tokenizer);
    return BT_OK;
}

static bt_status make_model(bti_session *s) {
    BT_TRY(bti_model_new(&s->cfg->model, bti_tokenizer_size(s->tokenizer[0]),
                         bti_tokenizer_size(s->tokenizer[1]), BT_F32, &s->model));
    return freeze(s->cfg, s->model);
}

/* ---- updates -----------------------------------------------------------------------------------
 */

static bt_status find_last_update(bti_session *s, int64_t asked) {
    int64_t last = s->cfg->training.updates;
    if (s->cfg->training.epochs > 0) {
        int64_t n = bti_batcher_updates(s->batcher, s->cfg->training.epochs);
        if (last == 0 || n < last) last = n;
    }
    if (last == 0)
        return bti_fail(BT_EUSAGE, "training.updates and training.epochs are both 0: give one, the "
                                   "run must end somewhere");
    s->run_end = last;
    s->last_update = asked > 0 && asked < last ? asked : last;
    return BT_OK;
}

/* Sizes of updates. Beyond the first SCANNED ones larger updates may come: the caps still hold,
 * since an update is cut into as many micro-batches as they ask for; what must be exact are the
 * longest sentence, known from the corpus, and the most sentences, distinct ids and target rows
 * that memory is sized for, which are bounded by batch and longest sentence then. */
#define SCANNED 200000

static bt_status scan(bti_session *s, int64_t updates, bti_distinct *distinct) {
    bti_workload *w = &s->workload;
    double sum[2] = {0, 0}, sentences = 0;
    for (int64_t u = 1; u <= updates; u++) {
        const int64_t *pair;
        int64_t n, epoch, rows[2] = {0, 0};
        BT_TRY(bti_batcher_get(s->batcher, u, &pair, &n, &epoch));
        bti_distinct_update(distinct);
        for (int64_t i = 0; i < n; i++) {
            int64_t a, b;
            bti_corpus_source(s->corpus, pair[i], &a);
            bti_corpus_target(s->corpus, pair[i], &b);
            bti_distinct_pair(distinct, s->corpus, pair[i]);
            rows[0] += a;
            rows[1] += b;
            w->mean_pairs[0] += (double)a * (double)a;
            w->mean_pairs[1] += (double)b * (double)(b + 1) / 2;
            w->mean_pairs[2] += (double)a * (double)b;
        }
        sentences += (double)n;
        if (n > w->max_sentences) w->max_sentences = n;
        for (int side = 0; side < 2; side++) {
            sum[side] += (double)rows[side];
            if (rows[side] > w->max_rows[side]) w->max_rows[side] = rows[side];
        }
    }
    for (int i = 0; i < 3; i++) w->mean_pairs[i] /= sentences;
    for (int side = 0; side < 2; side++) w->mean_rows[side] = sum[side] / (double)updates;
    w->mean_sentences = sentences / (double)updates;
    return BT_OK;
}

static bt_status measure_updates(bti_session *s) {
    const bti_corpus_stats *stats = bti_corpus_get_stats(s->corpus);
    int64_t scanned = s->last_update < SCANNED ? s->last_update : SCANNED;
    bti_workload *w = &s->workload;
    uint32_t compact = bti_model_may_compact(s->model);
    int64_t vocab[2] = {0, 0}; /* of the tables whose rows are worth counting */
    for (int i = 0; i < 2; i++)
        if (compact >> i & 1) vocab[i] = s->model->vocab[i];
    bti_distinct distinct;
    bt_status status =
        bti_distinct_new(vocab, bti_tokenizer_specials(s->tokenizer[1]).start, &distinct);
    if (status == BT_OK) status = scan(s, scanned, &distinct);
    for (int i = 0; i < 2; i++) w->max_distinct[i] = bti_distinct_most(&distinct, i);
    bti_distinct_free(&distinct);
    BT_TRY(status);
    w->longest[0] = stats->max_source;
    w->longest[1] = stats->max_target;
    if (s->valid != NULL) { /* validation runs under the same caps */
        const bti_corpus_stats *v = bti_corpus_get_stats(s->valid);
        if (v->max_source > w->longest[0]) w->longest[0] = v->max_source;
        if (v->max_target > w->longest[1]) w->longest[1] = v->max_target;
    }
    if (scanned < s->last_update) {
        int64_t batch = s->cfg->training.batch;
        for (int i = 0; i < 2; i++) w->max_distinct[i] = batch * w->longest[i];
        if (s->cfg->training.batch_unit == BTI_BATCH_SENTENCES) {
            w->max_rows[1] = batch * w->longest[1];
        } else {
            w->max_sentences = batch;
            w->max_rows[1] = batch > w->longest[1] ? batch : w->longest[1];
        }
    }
    return BT_OK;
}

/* ---- device ------------------------------------------------------------------------------------
 */

bt_status bti_device_choose(const char *device, int threads, bt_dev **out) {
    bt_open_options options = {.threads = threads};
    if (device != NULL && strcmp(device, "auto") != 0)
        return bti_device_open(device, &options, out);
    const char *const *name = bti_backend_names();
    char last[512] = "there is no backend";
    for (; *name != NULL; name++) {
        const bt_driver *driver;
        int count = 0;
        char reason[256] = "";
        if (bti_backend_for_tests(*name)) continue;
        if (bti_backend_driver(*name, &driver) != BT_OK) {
            snprintf(last, sizeof last, "%s", bt_last_error());
            continue;
        }
        if (driver->probe(bti_host(), &count, reason, sizeof reason) != BT_OK || count < 1) {
            snprintf(last, sizeof last, "%s: %s", *name, reason);
            continue;
        }
        if (bti_device_open(*name, &options, out) == BT_OK) return BT_OK;
        bti_log(BT_LOG_WARN, "%s cannot be used: %s", *name, bt_last_error());
    }
    return bti_fail(BT_EDEVICE, "no device can be used (%s); bantam devices tells more", last);
}

#define WARM_ROWS 4096

bt_status bti_device_warm(bt_dev *dev, const bti_model *m, int64_t rows, int64_t logit_rows) {
    int64_t d = m->cfg.d_model, wide = m->cfg.ff > 3 * d ? m->cfg.ff : 3 * d;
    bt_call call[6];
    if (dev->ops->warm == NULL) return BT_OK;
    memset(call, 0, sizeof call);
    for (int i = 0; i < 6; i++) {
        /* y = x w^T, dx = dy w, dw = dy^T x: for the widest layer, then for the output. A library
         * packs no more than some hundred of a weight's rows at a time in the first two. */
        int64_t r = i < 3 ? rows : logit_rows, n = i < 3 ? wide : m->vocab[1];
        if (i % 3 < 2 && n > WARM_ROWS) n = WARM_ROWS;
        int64_t shape[3][6] = {{r, d, n, d, r, n}, {r, n, n, d, r, d}, {r, n, r, d, n, d}};
        call[i].op = BT_OP_GEMM;
        for (int k = 0; k < 3; k++)
            call[i].t[k] = (bt_view){.rows = shape[i % 3][2 * k],
                                     .cols = shape[i % 3][2 * k + 1],
                                     .ld = shape[i % 3][2 * k + 1],
                                     .dtype = m->params.dtype};
        call[i].p.gemm = (bt_gemm_params){.alpha = 1, .trans_a = i % 3 == 2, .trans_b = i % 3 == 0};
    }
    return dev->ops->warm(dev, call, 6);
}

bt_status bti_memory_budget(bt_dev *dev, const char *memory, uint64_t limit, uint64_t *budget,
                            uint64_t *runtime) {
    bt_dev_info info = dev->info;
    BT_TRY(dev->ops->query(dev, &info));
    if (memory != NULL) BT_TRY(bti_parse_bytes(memory, &limit));
    if (limit == BTI_MEMORY_AUTO) {
        uint64_t reserve = info.total_bytes / 20;
        if (reserve < 256u << 20) reserve = 256u << 20;
        limit = info.free_bytes > reserve ? info.free_bytes - reserve : 1;
        limit += info.runtime_bytes;
    }
    *budget = limit;
    *runtime = info.runtime_bytes;
    return BT_OK;
}

/* Host memory that the engine takes after runtime was measured: staging, losses, programs, order of
 * rows; and a margin for stacks, the C library and what first values are read through. */
static uint64_t later_host_bytes(const bti_workload *w) {
    uint64_t rows = (uint64_t)(w->max_rows[0] + w->max_rows[1]);
    uint64_t ids = (uint64_t)(w->max_distinct[0] + w->max_distinct[1]);
    return rows * 64 + ids * 4 + (uint64_t)w->max_sentences * 128 + (16u << 20);
}

/* Adds what validation's decoder needs: the largest batch that the plan without it leaves room for,
 * or a single sentence. */
static bt_status plan_validation(bti_session *s, const bti_run_plan *alone,
                                 bti_plan_options *options) {
    const bt_planning *planning = s->dev->driver->planning;
    bti_decoder_config decoding = bti_validation_decoding(s->cfg, s->tokenizer[1], NULL);
    uint64_t dynamic = alone->region[BTI_REGION_DYNAMIC], runtime = options->runtime;
    for (s->decode_batch = 64;; s->decode_batch /= 2) {
        bti_decoder *d;
        BT_TRY(bti_decoder_new(s->model, planning, &s->dev->info, &alone->places, 0, &decoding,
                               s->decode_batch, &d));
        options->validation = 1;
        options->decode_dynamic = bti_decoder_dynamic_bytes(d);
        options->decode_staging = bti_decoder_staging_bytes(d);
        options->runtime = runtime + bti_decoder_host_bytes(d);
        bti_decoder_free(d);
        uint64_t more = options->decode_dynamic > dynamic ? options->decode_dynamic - dynamic : 0;
        more += options->decode_staging + options->runtime - runtime;
        if (alone->total + more <= options->budget || s->decode_batch == 1) return BT_OK;
    }
}

static bt_status make_plan(bti_session *s, const bti_session_options *o) {
    bti_plan_options options = {
        .recompute = s->cfg->memory.recompute, .force_recompute_layers = -1, .force_compact = -1};
    const bt_planning *planning = s->dev->driver->planning;
    const bti_workload *w = &s->workload;
    int64_t rows = w->max_rows[0] > w->max_rows[1] ? w->max_rows[0] : w->max_rows[1];
    int64_t length = s->cfg->data.max_length;
    BT_TRY(bti_device_warm(s->dev, s->model, rows < 4096 ? rows : 4096, 256));
    BT_TRY(bti_memory_budget(s->dev, o->memory, s->cfg->memory.limit, &options.budget,
                             &options.runtime));
    options.runtime += later_host_bytes(w);
    bti_rates rates;
    bti_rates_get(s->dev, &rates);
    options.rates = &rates;
    bti_run_plan *alone;
    BT_TRY(bti_plan_search(s->model, planning, &s->dev->info, w, length, &options, &alone));
    if (s->valid == NULL) {
        s->plan = alone;
        return BT_OK;
    }
    bt_status status = plan_validation(s, alone, &options);
    bti_run_plan_free(alone);
    BT_TRY(status);
    return bti_plan_search(s->model, planning, &s->dev->info, w, length, &options, &s->plan);
}

bt_status bti_session_open(const bti_run_config *cfg, const bti_session_options *options,
                           bti_session **out) {
    bti_session *s = bti_alloc(1, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    s->cfg = cfg;
    s->stop = options->stop;
    uint64_t unused;
    /* What can be refused at once is: a wrong device, size or name before any text is read. */
    bt_status status = options->memory ? bti_parse_bytes(options->memory, &unused) : BT_OK;
    if (status == BT_OK) status = bti_device_choose(options->device, options->threads, &s->dev);
    if (status == BT_OK) status = check_freeze(cfg);
    if (status == BT_OK) status = open_text(s);
    if (status == BT_OK) status = open_valid(s);
    if (status == BT_OK) status = make_model(s);
    if (status == BT_OK && !options->resume) status = bti_session_initial(s);
    if (status == BT_OK) status = find_last_update(s, options->updates);
    if (status == BT_OK) status = measure_updates(s);
    if (status == BT_OK) status = make_plan(s, options);
    if (status != BT_OK) {
        bti_session_close(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

void bti_session_close(bti_session *s) {
    if (s == NULL) return;
    bti_run_plan_free(s->plan);
    bti_initial_close(s->initial);
    bti_model_free(s->model);
    bti_device_close(s->dev);
    bti_batcher_free(s->batcher);
    bti_corpus_free(s->valid);
    bti_corpus_free(s->corpus);
    if (s->tokenizer[1] != s->tokenizer[0]) bti_tokenizer_free(s->tokenizer[1]);
    bti_tokenizer_free(s->tokenizer[0]);
    bti_free(s);
}
