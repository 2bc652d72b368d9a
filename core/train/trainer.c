/* bt_train: a run from its first update, or from its newest checkpoint, to its end. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/train/checkpoint.h"
#include "core/train/log_json.h"
#include "core/train/schedule.h"
#include "core/train/session.h"

/* A run whose gradients are not finite this many times in a row cannot be saved by more updates. */
#define MAX_SKIPPED 20

typedef struct trainer {
    const bti_run_config *cfg;
    const bt_train_options *options;
    bti_session *s;
    bti_engine *engine;
    bti_log_json *log;
    char *run_text;
    bti_sentence *sentence; /* of one update */
    int64_t done;           /* updates done */
    int64_t saved;          /* update of the newest checkpoint; -1: none */
    int64_t skipped, skipped_in_row;
    double rate; /* target tokens a second, smoothed */
    double seconds_per_update;
} trainer;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t peak_bytes(const trainer *t) {
    struct rusage r;
    if (!t->s->dev->info.host_memory || getrusage(RUSAGE_SELF, &r) != 0)
        return t->engine->arena.total + t->s->dev->info.runtime_bytes;
    return (uint64_t)r.ru_maxrss * 1024;
}

/* ---- checkpoints -------------------------------------------------------------------------------
 */

static bti_checkpoint_info info_of(const trainer *t) {
    bti_checkpoint_info info = {.update = t->done,
                                .steps = t->engine->steps,
                                .corpus = bti_corpus_checksum(t->s->corpus),
                                .run = t->run_text};
    for (int i = 0; i < 2; i++) {
        info.vocab[i] = t->s->model->vocab[i];
        info.tokenizer[i] = bti_tokenizer_checksum(t->s->tokenizer[i]);
    }
    return info;
}

static void report(const trainer *t, const bt_progress *p) {
    if (t->options->progress != NULL) t->options->progress(t->options->user, p);
}

static bt_status save(trainer *t) {
    if (t->saved == t->done) return BT_OK;
    bti_checkpoint_info info = info_of(t);
    char *path = bti_checkpoint_path(t->cfg->output, t->done);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_checkpoint_save(t->engine, path, &info, 1);
    if (status == BT_OK) {
        t->saved = t->done;
        report(t, &(bt_progress){.kind = BT_PROGRESS_CHECKPOINT, .update = t->done, .path = path});
        status = bti_checkpoint_prune(t->cfg->output, t->cfg->checkpoint.keep);
    }
    bti_free(path);
    return status;
}

/* The weights alone, for use: OUT/model.safetensors. */
static bt_status save_model(trainer *t) {
    bti_checkpoint_info info = info_of(t);
    char *path = bti_path_join(t->cfg->output, "model.safetensors");
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_checkpoint_save(t->engine, path, &info, 0);
    bti_free(path);
    return status;
}

/* ---- resume ------------------------------------------------------------------------------------
 */

#define REFUSE(what, there, here) \
    bti_fail(BT_EUSAGE, "%s cannot be resumed with another %s: it has %s, this run %s", c->path, \
             what, there, here)

/* What decides the loss curve must be as it was. */
static bt_status check_resume(const trainer *t, const bti_checkpoint *c) {
    static const char *const side[] = {"source tokeniser", "target tokeniser"};
    bti_checkpoint_info here = info_of(t);
    char a[32], b[32];
    for (int i = 0; i < 2; i++) {
        snprintf(a, sizeof a, "%016" PRIx64, c->info.tokenizer[i]);
        snprintf(b, sizeof b, "%016" PRIx64, here.tokenizer[i]);
        if (c->info.tokenizer[i] != here.tokenizer[i]) return REFUSE(side[i], a, b);
    }
    snprintf(a, sizeof a, "%016" PRIx64, c->info.corpus);
    snprintf(b, sizeof b, "%016" PRIx64, here.corpus);
    if (c->info.corpus != here.corpus) return REFUSE("training text", a, b);
    bti_run_config *old;
    BT_TRY(bti_run_config_parse(c->path, c->info.run, NULL, 0, &old));
    int64_t was[] = {old->training.batch, old->training.batch_unit, (int64_t)old->training.seed,
                     old->optimizer.kind};
    int64_t is[] = {t->cfg->training.batch, t->cfg->training.batch_unit,
                    (int64_t)t->cfg->training.seed, t->cfg->optimizer.kind};
    static const char *const key[] = {"training.batch", "training.batch_unit", "training.seed",
                                      "optimizer.kind"};
    bti_run_config_free(old);
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        snprintf(a, sizeof a, "%lld", (long long)was[i]);
        snprintf(b, sizeof b, "%lld", (long long)is[i]);
        if (was[i] != is[i]) return REFUSE(key[i], a, b);
    }
    return BT_OK;
}

/* First values, or the newest checkpoint's. */
static bt_status begin(trainer *t) {
    bti_checkpoint *c = NULL;
    t->saved = -1;
    BT_TRY(bti_checkpoint_newest(t->cfg->output, &c));
    if (c == NULL) {
        if (t->options->resume)
            bti_log(BT_LOG_INFO, "no checkpoint in %s yet: starting", t->cfg->output);
        return bti_engine_init(t->engine);
    }
    bt_status status = BT_OK;
    if (!t->options->resume)
        status = bti_fail(BT_EUSAGE,
                          "%s holds checkpoints of a run: use --resume to go on with it, or "
                          "another output",
                          t->cfg->output);
    if (status == BT_OK) status = check_resume(t, c);
    if (status == BT_OK) status = bti_checkpoint_load(c, t->engine, 1);
    if (status == BT_OK) {
        t->done = t->saved = c->info.update;
        bti_log(BT_LOG_INFO, "going on from %s, after update %lld", c->path, (long long)t->done);
    }
    bti_checkpoint_close(c);
    return status;
}

/* ---- updates -----------------------------------------------------------------------------------
 */

static bt_status after_skip(trainer *t, const bti_update_result *r) {
    if (!r->skipped) {
        t->skipped_in_row = 0;
        return BT_OK;
    }
    t->skipped++;
    t->skipped_in_row++;
    if (r->rows[1] > 0)
        bti_log(BT_LOG_WARN, "update %lld: a gradient is not finite; the step is skipped",
                (long long)t->done);
    if (t->skipped_in_row < MAX_SKIPPED) return BT_OK;
    return bti_fail(BT_ENUMERIC,
                    "update %lld: gradients were not finite in %d updates in a row; lower "
                    "optimizer.lr or lengthen schedule.warmup and go on from the last checkpoint",
                    (long long)t->done, MAX_SKIPPED);
}

static bt_status tell(trainer *t, const bti_update_result *r, int64_t epoch, double lr,
                      double seconds) {
    double rate = (double)r->rows[1] / seconds;
    t->rate = t->rate > 0 ? 0.9 * t->rate + 0.1 * rate : rate;
    t->seconds_per_update =
        t->seconds_per_update > 0 ? 0.9 * t->seconds_per_update + 0.1 * seconds : seconds;
    bti_log_record record = {.update = t->done,
                             .epoch = epoch,
                             .loss = r->rows[1] > 0 ? r->loss : NAN,
                             .grad_norm = r->grad_norm,
                             .lr = lr,
                             .target_tokens = r->rows[1],
                             .source_tokens = r->rows[0],
                             .micro_batches = r->micro_batches,
                             .tokens_per_s = rate,
                             .planned_bytes = t->s->plan->total,
                             .peak_bytes = peak_bytes(t),
                             .loss_scale = 1,
                             .skipped = r->skipped};
    BT_TRY(bti_log_json_write(t->log, &record));
    report(t, &(bt_progress){.kind = BT_PROGRESS_UPDATE,
                             .update = record.update,
                             .last_update = t->s->last_update,
                             .epoch = epoch,
                             .loss = record.loss,
                             .grad_norm = record.grad_norm,
                             .lr = lr,
                             .target_tokens = record.target_tokens,
                             .source_tokens = record.source_tokens,
                             .micro_batches = record.micro_batches,
                             .tokens_per_s = t->rate,
                             .planned_bytes = record.planned_bytes,
                             .peak_bytes = record.peak_bytes,
                             .loss_scale = 1,
                             .skipped = t->skipped,
                             .seconds_left =
                                 t->seconds_per_update * (double)(t->s->last_update - t->done),
                             .valid_loss = NAN,
                             .valid_score = NAN});
    return BT_OK;
}

static bt_status update(trainer *t) {
    const int64_t *pair;
    int64_t n, epoch;
    double start = now();
    BT_TRY(bti_batcher_get(t->s->batcher, t->done + 1, &pair, &n, &epoch));
    for (int64_t i = 0; i < n; i++) {
        bti_sentence *s = &t->sentence[i];
        s->ids[0] = bti_corpus_source(t->s->corpus, pair[i], &s->count[0]);
        s->ids[1] = bti_corpus_target(t->s->corpus, pair[i], &s->count[1]);
    }
    /* The schedule counts steps taken: a skipped update does not move it. */
    double lr = bti_learning_rate(t->cfg, t->engine->steps + 1);
    bti_update_result r;
    BT_TRY(bti_engine_update(t->engine, t->sentence, n, t->done + 1, lr, &r));
    t->done++;
    BT_TRY(tell(t, &r, epoch, lr, now() - start));
    return after_skip(t, &r);
}

static int stopped(const trainer *t) { return t->options->stop != NULL && *t->options->stop; }

static bt_status run(trainer *t) {
    int64_t every = t->cfg->checkpoint.every;
    while (t->done < t->s->last_update && !stopped(t)) {
        BT_TRY(update(t));
        if (every > 0 && t->done % every == 0) BT_TRY(save(t));
    }
    BT_TRY(save(t));
    BT_TRY(save_model(t));
    if (t->done < t->s->last_update)
        return bti_fail(BT_ESTOPPED, "stopped after update %lld; --resume goes on",
                        (long long)t->done);
    return BT_OK;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bt_status open_engine(trainer *t) {
    bti_session *s = t->s;
    const bti_run_config *c = t->cfg;
    bti_engine_settings settings = {
        .start = bti_tokenizer_specials(s->tokenizer[1]).start,
        .seed = c->training.seed,
        .smoothing = c->training.label_smoothing,
        .clip_norm = c->training.clip_norm,
        .adamw = {.beta1 = c->optimizer.beta1,
                  .beta2 = c->optimizer.beta2,
                  .eps = c->optimizer.eps,
                  .weight_decay = c->optimizer.weight_decay,
                  .decoupled = c->optimizer.kind == BTI_OPTIMIZER_ADAMW}};
    BT_TRY(bti_run_plan_check(s->plan));
    t->sentence = bti_alloc((size_t)s->workload.max_sentences, sizeof *t->sentence);
    if (t->sentence == NULL) return BT_ENOMEM;
    return bti_engine_new(s->dev, s->model, s->plan, s->workload.max_sentences,
                          s->workload.max_rows[1], &settings, &t->engine);
}

/* Tokenisers beside the model, so that the folder is all that translation needs. */
static bt_status copy_into(const char *folder, const char *name, const char *file) {
    char *path = bti_path_join(folder, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_file_copy(file, path);
    bti_free(path);
    return status;
}

static bt_status copy_tokenizers(const trainer *t) {
    static const char *const name[] = {"source.tokenizer", "target.tokenizer"};
    static const char *const words[] = {"source.words", "target.words"};
    for (int side = 0; side < (t->cfg->shared ? 1 : 2); side++) {
        const bti_tokenizer_config *c = &t->cfg->tokenizer[side];
        BT_TRY(copy_into(t->cfg->output, name[side], c->model));
        if (c->kind == BTI_TOKENIZER_SPACY)
            BT_TRY(copy_into(t->cfg->output, words[side], c->vocabulary));
    }
    return BT_OK;
}

static bt_status write_output(trainer *t) {
    BT_TRY(copy_tokenizers(t));
    char *path = bti_path_join(t->cfg->output, "run.yaml");
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_file_write(path, t->run_text, strlen(t->run_text));
    bti_free(path);
    BT_TRY(status);
    path = bti_path_join(t->cfg->output, "log.jsonl");
    if (path == NULL) return BT_ENOMEM;
    status = bti_log_json_open(path, t->done, &t->log);
    bti_free(path);
    return status;
}

static void say_plan(const trainer *t) {
    const bti_run_plan *p = t->s->plan;
    const bti_corpus_stats *c = bti_corpus_get_stats(t->s->corpus);
    char total[32], budget[32];
    bti_format_bytes(p->total, total);
    bti_format_bytes(p->budget, budget);
    bti_log(BT_LOG_INFO,
            "%lld parameters on %s; plan: %s of %s, %lld micro-batch%s an update, %d of %d layers "
            "recomputed, output in chunks of %lld rows; longest pair: line %lld",
            (long long)t->s->model->params.elements, t->s->dev->info.name, total, budget,
            (long long)p->micro_batches, p->micro_batches == 1 ? "" : "es", p->recompute_layers,
            t->s->model->layers, (long long)p->logit_rows, (long long)c->longest_line);
}

bt_status bt_train(const bt_run *run_config, const bt_train_options *options) {
    trainer t = {.cfg = run_config, .options = options};
    bti_session_options so = {.device = options->device,
                              .memory = options->memory,
                              .threads = options->threads,
                              .updates = options->updates};
    bt_status status = bti_run_config_print(t.cfg, &t.run_text);
    if (status == BT_OK) status = bti_session_open(t.cfg, &so, &t.s);
    if (status == BT_OK) status = open_engine(&t);
    if (status == BT_OK && stopped(&t))
        status = bti_fail(BT_ESTOPPED, "stopped before update 1; nothing is written");
    if (status == BT_OK) status = begin(&t);
    if (status == BT_OK) status = bti_dir_make(t.cfg->output);
    if (status == BT_OK) status = write_output(&t);
    if (status == BT_OK) say_plan(&t);
    if (status == BT_OK) status = run(&t);
    bti_log_json_close(t.log);
    bti_engine_free(t.engine);
    bti_session_close(t.s);
    bti_free(t.sentence);
    bti_free(t.run_text);
    return status;
}
