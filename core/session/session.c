#include "core/session/session.h"

#include <stdio.h>
#include <string.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/unknown.h"
#include "core/fit/plan_file.h"
#include "core/model/head.h"
#include "core/run/precision.h"
#include "core/session/validation.h"

/* ---- text --------------------------------------------------------------------------------------
 */

/* Is there text on a side, and does the model read or write it? */
static int has_text(const bti_session *s, int side) {
    const bti_run_config *c = s->cfg;
    if (side == 1) return bti_has_decoder(&c->model) && c->data.train_target.count > 0;
    return c->data.train_source.count > 0;
}

static bti_corpus_config corpus_config(const bti_session *s) {
    const bti_run_config *c = s->cfg;
    return (bti_corpus_config){.source = c->data.train_source,
                               .target = has_text(s, 1) ? c->data.train_target : (bti_files){0},
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
    BT_TRY(bti_corpus_check(&corpus, NULL));
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
        if (s->tokenizer[side] == NULL) continue;
        const bti_files *files = side ? &s->cfg->data.train_target : &s->cfg->data.train_source;
        if (knows_nothing(s, side))
            return bti_fail(BT_EINPUT,
                            "%s: all %s tokens are unknown to the tokeniser %s: is it the right "
                            "one? data.allow_unknown: true trains all the same",
                            files->path[0], side_name[side], s->cfg->tokenizer[side].model);
    }
    return BT_OK;
}

int bti_session_has_pairs(const bti_session *s) { return has_text(s, 0) && has_text(s, 1); }

const char *bti_session_unit(const bti_session *s) {
    if (s->cfg->training.batch_unit != BTI_BATCH_SENTENCES) return "target tokens";
    return s->cfg->data.features.count > 0 ? "examples" : "pairs";
}

/* What was left out or cut, and how much the tokenisers do not know. */
static void say_text(const bti_session *s) {
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    const char *unit = bti_session_has_pairs(s) ? "pairs" : "lines";
    const int64_t unknown[] = {c->source_unknown, c->target_unknown};
    const int64_t ids[] = {c->source_ids, c->target_ids};
    if (c->empty > 0)
        bti_log(BT_LOG_WARN, "%lld %s skipped (%s), first at line %lld", (long long)c->empty, unit,
                bti_session_has_pairs(s) ? "empty side" : "empty", (long long)c->first_empty_line);
    if (c->overlong > 0)
        bti_log(BT_LOG_WARN, "%lld %s longer than data.max_length %lld %s, first at line %lld",
                (long long)c->overlong, unit, (long long)s->cfg->data.max_length,
                s->cfg->data.overlong == BTI_OVERLONG_SKIP ? "skipped" : "cut",
                (long long)c->first_overlong_line);
    for (int i = 0; i < 2; i++)
        if (s->tokenizer[i] != NULL)
            say_unknown(s, i, unknown[i], ids[i] - bti_corpus_count(s->corpus));
    if (bti_session_has_pairs(s))
        bti_log(BT_LOG_INFO, "%lld pairs, %lld source and %lld target tokens",
                (long long)bti_corpus_count(s->corpus), (long long)c->source_ids,
                (long long)c->target_ids);
    else
        bti_log(BT_LOG_INFO, "%lld lines, %lld %s tokens", (long long)bti_corpus_count(s->corpus),
                (long long)(c->source_ids + c->target_ids), side_name[has_text(s, 1)]);
}

/* Texts of a part, of the sides that have any. */
static bt_status open_corpus(const bti_session *s, bti_corpus_config c, bti_corpus **out) {
    if (c.source.count + c.target.count == 0) return BT_OK;
    BT_TRY(bti_corpus_open(&c, s->tokenizer[0], s->tokenizer[1], s->cfg->data.cache, out));
    if (bti_corpus_count(*out) > 0) return BT_OK;
    const bti_files *files = bti_corpus_files(&c, c.source.count == 0);
    return bti_fail(BT_EINPUT, "%s holds no line to use", files->path[0]);
}

static bt_status open_valid(bti_session *s) {
    const bti_run_config *c = s->cfg;
    if (!bti_validates(c) || s->assumed) return BT_OK;
    bti_corpus_config valid = corpus_config(s);
    valid.source = c->data.valid_source;
    valid.target = has_text(s, 1) ? c->data.valid_target : (bti_files){0};
    valid.overlong = BTI_OVERLONG_TRUNCATE;
    BT_TRY(open_corpus(s, valid, &s->valid));
    return bti_examples_open(c, BTI_PART_VALID, s->valid, &s->train, s->stop, &s->held_out);
}

bt_status bti_session_tokenizers(bti_session *s) {
    const bti_run_config *c = s->cfg;
    int both = has_text(s, 0) && has_text(s, 1);
    for (int side = 0; side < 2; side++) {
        if (!has_text(s, side) || (side == 1 && both && c->shared)) continue;
        BT_TRY(make_tokenizer(s, side));
        BT_TRY(bti_tokenizer_open(&c->tokenizer[side], &s->tokenizer[side]));
    }
    if (both && c->shared) s->tokenizer[1] = s->tokenizer[0];
    return BT_OK;
}

/* Symbols of a side of whose text nothing is read: as many as its tokeniser's file has, or as the
 * run file says. */
static bt_status assume_vocabulary(bti_session *s, int side) {
    const bti_tokenizer_config *t = &s->cfg->tokenizer[side];
    char *file = bti_tokenizer_trained_file(t);
    if (file == NULL) return BT_ENOMEM;
    int there = bti_file_exists(file);
    bti_free(file);
    if (there) BT_TRY(bti_tokenizer_open(t, &s->tokenizer[side]));
    s->vocab[side] = there ? bti_tokenizer_size(s->tokenizer[side]) : t->size;
    if (s->vocab[side] > 0) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "%s is not there: give its number of symbols, tokenizer.size, to plan "
                    "without it",
                    t->model);
}

static bt_status assume_features(const bti_session *s) {
    const bti_model_config *m = &s->shape;
    for (int32_t f = 0; f < m->features; f++)
        if (m->feature[f].width == 0 || m->feature[f].rows == 0)
            return bti_fail(BT_EINPUT, "feature %s: give its width and max_rows to plan without %s",
                            m->feature[f].name, s->cfg->data.features.item[f].train.path[0]);
    if (m->head != BTI_HEAD_DECODER && m->outputs == 0)
        return bti_fail(BT_EINPUT, "give model.outputs to plan without labels");
    return BT_OK;
}

/* Nothing is read. */
static bt_status assume_examples(bti_session *s) {
    const bti_run_config *c = s->cfg;
    for (int side = 0; side < 2; side++) {
        if (!has_text(s, side)) s->lengths[side] = 0;
        if (has_text(s, side) && s->lengths[side] == 0)
            return bti_fail(BT_EUSAGE, "assumed pairs need %s tokens", side_name[side]);
    }
    for (int side = 0; side < 2; side++)
        if (s->lengths[side] > c->data.max_length)
            return bti_fail(BT_EUSAGE,
                            "assumed pairs of %lld source and %lld target tokens are longer than "
                            "data.max_length %lld",
                            (long long)s->lengths[0], (long long)s->lengths[1],
                            (long long)c->data.max_length);
    for (int side = 0; side < 2; side++)
        if (has_text(s, side) && !(side == 1 && c->shared && has_text(s, 0)))
            BT_TRY(assume_vocabulary(s, side));
    if (c->shared && has_text(s, 0) && has_text(s, 1)) {
        s->tokenizer[1] = s->tokenizer[0];
        s->vocab[1] = s->vocab[0];
    }
    return assume_features(s);
}

/* What only the files say of the model. */
static void take_shape(bti_session *s) {
    bti_model_config *m = &s->shape;
    for (int32_t f = 0; f < m->features; f++) {
        int64_t most = bti_examples_most_rows(&s->train, f);
        if (s->held_out.inputs.features > 0 && bti_examples_most_rows(&s->held_out, f) > most)
            most = bti_examples_most_rows(&s->held_out, f);
        m->feature[f].width = bti_features_width(s->train.inputs.feature[f]);
        if (m->feature[f].rows == 0) m->feature[f].rows = most;
    }
    if (m->head != BTI_HEAD_DECODER && m->outputs == 0) m->outputs = s->train.outputs;
}

static bt_status open_examples(bti_session *s) {
    const bti_run_config *c = s->cfg;
    s->shape = c->model;
    if (s->assumed) return assume_examples(s);
    BT_TRY(bti_session_tokenizers(s));
    for (int side = 0; side < 2; side++)
        s->vocab[side] = has_text(s, side) ? bti_tokenizer_size(s->tokenizer[side]) : 0;
    bti_corpus_config corpus = corpus_config(s);
    for (int side = 0; side < 2; side++)
        if (has_text(s, side))
            bti_log(BT_LOG_INFO, "reading %s", bti_corpus_files(&corpus, side)->path[0]);
    BT_TRY(open_corpus(s, corpus, &s->corpus));
    if (s->corpus != NULL) say_text(s);
    if (s->corpus != NULL) BT_TRY(check_unknown(s));
    BT_TRY(bti_examples_open(c, BTI_PART_TRAIN, s->corpus, NULL, s->stop, &s->train));
    if (s->train.count == 0) return bti_fail(BT_EINPUT, "%s: no example to train on", c->path);
    BT_TRY(open_valid(s));
    take_shape(s);
    return bti_batcher_of(s->corpus, s->train.count, c->training.batch, c->training.batch_unit,
                          c->training.seed, &s->batcher);
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
    bti_model_config shape = cfg->model; /* sizes are not known yet, and say nothing of names */
    for (int32_t f = 0; f < shape.features; f++) {
        if (shape.feature[f].width == 0) shape.feature[f].width = 1;
        if (shape.feature[f].rows == 0) shape.feature[f].rows = 2;
    }
    if (shape.outputs == 0) shape.outputs = 1;
    BT_TRY(bti_model_new(&shape, cfg->data.train_source.count > 0, 1, BT_F32, &m));
    bt_status status = freeze(cfg, m);
    bti_model_free(m);
    return status;
}

bt_status bti_session_initial(bti_session *s) {
    const bti_run_config *c = s->cfg;
    uint64_t tokenizer[2];
    /* Nothing to compare it with where not even a tokeniser is there. */
    int known = s->tokenizer[0] != NULL || s->tokenizer[1] != NULL || !s->assumed;
    if (c->initial_model == NULL || !known) return BT_OK;
    BT_TRY(bti_initial_open(c->initial_model, c->initial_partial, s->model, &s->initial));
    bti_log(bti_initial_is_whole(s->initial) ? BT_LOG_INFO : BT_LOG_WARN, "first values: %s",
            bti_initial_text(s->initial));
    for (int i = 0; i < 2; i++)
        tokenizer[i] = s->tokenizer[i] ? bti_tokenizer_checksum(s->tokenizer[i]) : 0;
    bti_initial_compare(s->initial, c, tokenizer);
    return BT_OK;
}

static bt_status make_model(bti_session *s) {
    BT_TRY(bti_model_new(&s->shape, s->vocab[0], s->vocab[1], BT_F32, &s->model));
    bti_precision_set(s->cfg->training.precision, s->model);
    return freeze(s->cfg, s->model);
}

/* ---- updates -----------------------------------------------------------------------------------
 */

static bt_status find_last_update(bti_session *s, int64_t asked) {
    int64_t last = s->cfg->training.updates;
    if (s->cfg->training.epochs > 0 && s->batcher == NULL) {
        if (last == 0) last = s->cfg->training.epochs; /* of a text that nobody has seen */
    } else if (s->cfg->training.epochs > 0) {
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

bti_updates bti_session_updates(const bti_session *s, const bti_model *m) {
    const bti_run_config *c = s->cfg;
    uint32_t compact = bti_model_may_compact(m);
    bti_updates u = {.examples = s->assumed ? NULL : &s->train,
                     .model = m,
                     .start = s->tokenizer[1] ? bti_tokenizer_specials(s->tokenizer[1]).start : 0,
                     .lengths = {s->lengths[0], s->lengths[1]},
                     .batch = c->training.batch,
                     .unit = c->training.batch_unit,
                     .seed = c->training.seed,
                     .last = s->run_end, /* the plan is the same wherever this part of it ends */
                     .max_length = c->data.max_length};
    for (int i = 0; i < 2; i++)
        if (compact >> i & 1) u.counted[i] = s->model->vocab[i];
    return u;
}

bt_status bti_session_workload(const bti_session *s, const bti_updates *u, bti_workload *out) {
    BT_TRY(bti_workload_measure(u, out));
    /* The held-out part runs under the same caps. */
    if (s->held_out.count > 0) bti_workload_add_longest(u, &s->held_out, out);
    return BT_OK;
}

/* ---- plans -------------------------------------------------------------------------------------
 */

/* Host memory that the engine takes after runtime was measured: staging, losses, programs, order of
 * rows; and a margin for stacks, the C library and what first values are read through. */
static uint64_t later_host_bytes(const bti_workload *w) {
    uint64_t rows = (uint64_t)(w->max_rows[0] + w->max_rows[1]);
    uint64_t ids = (uint64_t)(w->max_distinct[0] + w->max_distinct[1]);
    return rows * 64 + ids * 4 + (uint64_t)w->max_sentences * 128 + (16u << 20);
}

/* As translations of validation are made; of symbols that nobody has named where no tokeniser is
 * there. */
static bti_decoder_config decoding_of(const bti_session *s) {
    if (s->tokenizer[1] != NULL) return bti_validation_decoding(s->cfg, s->tokenizer[1], NULL);
    bti_decoder_config c = {.beam = (int32_t)s->cfg->validation.beam,
                            .length_penalty = 1,
                            .length = s->cfg->data.max_length};
    bti_decoder_specials(&c, 0, 1, 2, 3);
    return c;
}

/* Adds what validation's decoder needs: the largest batch that the plan without it leaves room for,
 * or a single sentence. */
static bt_status plan_validation(const bti_session *s, bti_model *m, int64_t length,
                                 const bti_run_plan *alone, int64_t *batch,
                                 bti_plan_options *options) {
    const bt_planning *planning = s->dev->driver->planning;
    bti_decoder_config decoding = decoding_of(s);
    uint64_t dynamic = alone->region[BTI_REGION_DYNAMIC], runtime = options->runtime;
    decoding.length = length;
    for (*batch = 64;; *batch /= 2) {
        bti_decoder *d;
        BT_TRY(
            bti_decoder_new(m, planning, &s->dev->info, &alone->places, 0, &decoding, *batch, &d));
        options->validation = 1;
        options->decode_dynamic = bti_decoder_dynamic_bytes(d);
        options->decode_staging = bti_decoder_staging_bytes(d);
        if (s->dev->info.host_memory) options->runtime = runtime + bti_decoder_host_bytes(d);
        bti_decoder_free(d);
        uint64_t more = options->decode_dynamic > dynamic ? options->decode_dynamic - dynamic : 0;
        more += options->decode_staging + options->runtime - runtime;
        if (alone->total + more <= options->budget || *batch == 1) return BT_OK;
    }
}

bt_status bti_session_plan(const bti_session *s, bti_model *m, const bti_workload *w,
                           int64_t max_length, const bti_plan_options *given, int64_t *decode_batch,
                           bti_run_plan **out) {
    const bt_planning *planning = s->dev->driver->planning;
    const bt_dev_info *info = &s->dev->info;
    bti_plan_options options = *given;
    bti_run_plan *alone;
    int64_t batch = 0;
    if (info->host_memory) options.runtime += later_host_bytes(w);
    BT_TRY(bti_plan_search(m, planning, info, w, max_length, &options, &alone));
    if (!bti_validates(s->cfg)) {
        *out = alone;
        return BT_OK;
    }
    bt_status status = BT_OK;
    if (bti_has_decoder(&m->cfg))
        status = plan_validation(s, m, max_length, alone, &batch, &options);
    options.validation = 1;
    bti_run_plan_free(alone);
    BT_TRY(status);
    if (decode_batch != NULL) *decode_batch = batch;
    return bti_plan_search(m, planning, info, w, max_length, &options, out);
}

bti_plan_options bti_session_plan_options(const bti_session *s) {
    return (bti_plan_options){.budget = s->budget.limit,
                              .runtime = s->budget.runtime,
                              .recompute = s->cfg->memory.recompute,
                              .moments = s->cfg->memory.optimizer_state,
                              .rates = s->known ? NULL : &s->rates,
                              .memo = s->memo,
                              .force_recompute_layers = -1,
                              .force_compact = -1};
}

/* The plan that the run began with; without a good one another is searched. */
static int read_kept(const bti_session *s, const char *path, bti_choice *out) {
    if (path == NULL || !bti_file_exists(path)) return 0;
    const char *precision = bti_precision_name(s->cfg->training.precision);
    if (bti_plan_file_read(path, s->dev->info.name, precision, s->model->layers, out) == BT_OK)
        return 1;
    bti_log(BT_LOG_WARN, "%s: the run is planned anew", bt_last_error());
    return 0;
}

/* Asks the device and plans. A device on which the plan cannot even be tried (a parameter larger
 * than an allocation) gives BT_EFIT. */
static bt_status make_plan(bti_session *s, const bti_session_options *o) {
    const bti_workload *w = &s->workload;
    int64_t rows = w->max_rows[0] > w->max_rows[1] ? w->max_rows[0] : w->max_rows[1];
    BT_TRY(bti_device_warm(s->dev, s->model, rows < 4096 ? rows : 4096, 256));
    BT_TRY(bti_memory_budget(s->dev, o->memory, s->cfg->memory.limit, &s->budget));
    if (s->known == NULL) bti_rates_get(s->dev, s->cfg->training.precision, &s->rates);
    bti_plan_options options = bti_session_plan_options(s);
    bti_choice kept;
    if (read_kept(s, o->kept, &kept)) options.wanted = &kept;
    return bti_session_plan(s, s->model, w, s->cfg->data.max_length, &options, &s->decode_batch,
                            &s->plan);
}

/* The next device that computes in the run's precision. */
static bt_status next_device(const bti_session *s, bti_device_list *l, int *at, int threads,
                             const char **known, bt_dev **out) {
    for (;;) {
        bt_dev *dev;
        BT_TRY(bti_device_next(l, at, threads, known, &dev));
        bt_status status = bti_precision_check(&dev->info, s->cfg->training.precision);
        if (status == BT_OK) {
            *out = dev;
            return BT_OK;
        }
        bti_device_close(dev);
        if (l->named) return status;
        snprintf(l->last, sizeof l->last, "%s", bt_last_error());
        bti_log(BT_LOG_WARN, "passed over: %s", l->last);
    }
}

/* Goes on to the devices behind the first one while the plan does not fit; when it fits on none,
 * the first one stays. */
static bt_status plan_somewhere(bti_session *s, const bti_session_options *o, bti_device_list *l,
                                int at) {
    bt_status status = make_plan(s, o);
    bti_session first = *s;
    char text[1024];
    if (status != BT_OK) snprintf(text, sizeof text, "%s", bt_last_error());
    while (at < l->count && (status == BT_EFIT || (status == BT_OK && !s->plan->fits))) {
        bti_session next = first;
        next.plan = NULL;
        const char **known = o->known_devices ? &next.known : NULL;
        if (next_device(s, l, &at, o->threads, known, &next.dev) != BT_OK) break;
        if (make_plan(&next, o) == BT_OK && next.plan->fits) {
            bti_log(BT_LOG_INFO, "the run fits on %s, not on %s", next.dev->info.name,
                    first.dev->info.name);
            bti_run_plan_free(first.plan);
            bti_device_close(first.dev);
            *s = next;
            return BT_OK;
        }
        bti_run_plan_free(next.plan);
        bti_device_close(next.dev);
    }
    return status == BT_OK ? BT_OK : bti_fail(status, "%s", text);
}

/* What decides which model is best must be a number that its head has. */
static bt_status check_metric(const bti_run_config *cfg) {
    bti_metric metric = cfg->validation.metric;
    bti_head_kind head = cfg->model.head;
    int of_text = metric == BTI_METRIC_BLEU || metric == BTI_METRIC_CHRF;
    if (!bti_validates(cfg) || metric == BTI_METRIC_LOSS) return BT_OK;
    if (head != BTI_HEAD_REGRESSION && of_text == bti_has_decoder(&cfg->model)) return BT_OK;
    return bti_fail(BT_EUSAGE, "%s: model.head %s has no such validation.metric: %s", cfg->path,
                    bti_head_of(&cfg->model)->name,
                    bti_has_decoder(&cfg->model)  ? "bleu, chrf or loss"
                    : head == BTI_HEAD_REGRESSION ? "loss"
                                                  : "accuracy, f1 or loss");
}

/* A run without text is planned from the sizes in its run file where its first file is not there:
 * only text has lengths that somebody must assume. */
static int absent(const bti_run_config *cfg) {
    const bti_feature_inputs *f = &cfg->data.features;
    return cfg->data.train_source.count + cfg->data.train_target.count == 0 && f->count > 0 &&
           !bti_file_exists(f->item[0].train.path[0]);
}

bt_status bti_session_open(const bti_run_config *cfg, const bti_session_options *options,
                           bti_session **out) {
    bti_session *s = bti_alloc(1, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    s->cfg = cfg;
    s->stop = options->stop;
    s->memo = bti_layout_memo_new();
    for (int side = 0; side < 2; side++) s->lengths[side] = options->lengths[side];
    s->assumed = s->lengths[0] > 0 || s->lengths[1] > 0 || (options->known_devices && absent(cfg));
    uint64_t unused;
    bti_device_list devices;
    int at = 0;
    const char **known = options->known_devices ? &s->known : NULL;
    bti_device_list_make(options->device, &devices);
    /* What can be refused at once is: a wrong device, size or name before any text is read. */
    bt_status status = s->memo == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && options->memory) status = bti_parse_bytes(options->memory, &unused);
    if (status == BT_OK) status = next_device(s, &devices, &at, options->threads, known, &s->dev);
    if (status == BT_OK) status = check_metric(cfg);
    if (status == BT_OK) status = check_freeze(cfg);
    if (status == BT_OK) status = open_examples(s);
    if (status == BT_OK) status = make_model(s);
    if (status == BT_OK && !options->resume) status = bti_session_initial(s);
    if (status == BT_OK) status = find_last_update(s, options->updates);
    if (status == BT_OK) {
        bti_updates updates = bti_session_updates(s, s->model);
        status = bti_session_workload(s, &updates, &s->workload);
    }
    if (status == BT_OK) status = plan_somewhere(s, options, &devices, at);
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
    bti_layout_memo_free(s->memo);
    bti_initial_close(s->initial);
    bti_workload_clear(&s->workload);
    bti_model_free(s->model);
    bti_device_close(s->dev);
    bti_batcher_free(s->batcher);
    bti_examples_close(&s->train);
    bti_examples_close(&s->held_out);
    bti_corpus_free(s->valid);
    bti_corpus_free(s->corpus);
    if (s->tokenizer[1] != s->tokenizer[0]) bti_tokenizer_free(s->tokenizer[1]);
    bti_tokenizer_free(s->tokenizer[0]);
    bti_free(s);
}
