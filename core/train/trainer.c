/* bt_train: a run from its first update, or from its newest checkpoint, to its end. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/engine/checkpoint.h"
#include "core/report/advice.h"
#include "core/run/precision.h"
#include "core/run/schedule.h"
#include "core/session/session.h"
#include "core/session/validation.h"
#include "core/train/log_json.h"
#include "core/train/output.h"
#include "core/train/plot.h"
#include "core/train/resume.h"

/* A run whose gradients are not finite this many times in a row cannot be saved by more updates. */
#define MAX_SKIPPED 20

typedef struct trainer {
    const bti_run_config *cfg;
    const bt_train_options *options;
    bti_session *s;
    bti_engine *engine;
    bti_log_json *log;
    char *run_text, *data_text;
    bti_sentence *sentence;     /* of one update */
    bti_validation *validation; /* NULL: the run does not validate */
    bti_checkpoint_info valid;  /* its fields of validation */
    double valid_loss, valid_score;
    int64_t done;            /* updates done */
    int64_t saved;           /* update of the newest checkpoint; -1: none */
    int64_t saved_validated; /* the last validation that it knows of */
    int owed;                /* a checkpoint was due and is not made yet */
    int cut;                 /* the validation of the last update was due, and stopped */
    int64_t skipped, skipped_in_row;
    uint64_t peak; /* bytes */
    int computes;  /* the first update was looked at */
    double rate;   /* target tokens a second, smoothed */
    double seconds_per_update;
} trainer;

/* Resident bytes of this process that no file backs, the measure of the plan. The kernel's own peak
 * (ru_maxrss) is another: it counts mapped files, the work before update 1 and even what the
 * program that started this one had. */
static uint64_t resident_bytes(void) {
    unsigned long long resident = 0, shared = 0;
    char text[128];
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    if (sscanf(text, "%*u %llu %llu", &resident, &shared) != 2 || shared > resident) return 0;
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Arena and what the driver says that this process holds beside it. */
static uint64_t device_bytes(const trainer *t) {
    bt_dev *dev = t->s->dev;
    bt_dev_info info = dev->info;
    if (dev->ops->query(dev, &info) != BT_OK) return 0; /* the next update tells */
    return t->engine->arena.total + info.runtime_bytes;
}

/* Most bytes in use after any update so far: an update takes nothing that it gives back. A driver,
 * which takes its time to answer, is asked in the first updates and seldom after. */
static uint64_t peak_bytes(trainer *t) {
    int asks = t->done <= 3 || t->done % 16 == 0;
    uint64_t bytes = t->s->dev->info.host_memory ? resident_bytes() : 0;
    if (bytes == 0 && (asks || t->peak == 0)) bytes = device_bytes(t);
    if (bytes > t->peak) t->peak = bytes;
    return t->peak;
}

/* ---- checkpoints -------------------------------------------------------------------------------
 */

static bti_checkpoint_info info_of(const trainer *t) {
    bti_checkpoint_info info = t->valid;
    info.update = t->done;
    info.steps = t->engine->steps;
    info.loss_scale = t->engine->loss_scale;
    info.good = t->engine->good;
    info.corpus = bti_examples_checksum(&t->s->train);
    if (t->s->held_out.count > 0) info.held_out = bti_examples_checksum(&t->s->held_out);
    info.run = t->run_text;
    info.data = t->data_text;
    for (int i = 0; i < 2; i++) {
        info.vocab[i] = t->s->model->vocab[i];
        info.tokenizer[i] = t->s->tokenizer[i] ? bti_tokenizer_checksum(t->s->tokenizer[i]) : 0;
    }
    return info;
}

static void report(const trainer *t, const bt_progress *p) {
    if (t->options->progress != NULL) t->options->progress(t->options->user, p);
}

static bt_status save(trainer *t) {
    t->owed = 0;
    if (t->saved == t->done && t->saved_validated == t->valid.validated) return BT_OK;
    BT_TRY(bti_log_json_flush(t->log)); /* updates that are in no log would not be written again */
    bti_checkpoint_info info = info_of(t);
    char *path = bti_checkpoint_path(t->cfg->output, t->done);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_checkpoint_save(t->engine, path, &info, 1);
    if (status == BT_OK) {
        t->saved = t->done;
        t->saved_validated = t->valid.validated;
        report(t, &(bt_progress){.kind = BT_PROGRESS_CHECKPOINT, .update = t->done, .path = path});
        status = bti_checkpoint_prune(t->cfg->output, t->done, t->cfg->checkpoint.keep);
    }
    bti_free(path);
    return status;
}

/* The weights alone, for use: OUT/model.safetensors, OUT/best.safetensors. */
static bt_status save_model(trainer *t, const char *name) {
    bti_checkpoint_info info = info_of(t);
    char *path = bti_path_join(t->cfg->output, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_checkpoint_save(t->engine, path, &info, 0);
    bti_free(path);
    return status;
}

/* ---- beginning ---------------------------------------------------------------------------------
 */

/* First values: the seed's, initial_model's where that has them. */
static bt_status first_values(trainer *t) {
    bti_session *s = t->s;
    if (s->initial == NULL) BT_TRY(bti_session_initial(s));
    if (s->initial == NULL || !bti_initial_is_whole(s->initial)) BT_TRY(bti_engine_init(t->engine));
    if (s->initial == NULL) return BT_OK;
    bt_status status = bti_initial_load(s->initial, t->engine);
    bti_initial_close(s->initial);
    s->initial = NULL;
    return status;
}

/* Scores of another kind are no measure of those to come. */
static void forget_scores(trainer *t, const char *what) {
    if (t->valid.best_update > 0)
        bti_log(BT_LOG_WARN,
                "%s is another from here on: the best validation so far, after update %lld, counts "
                "no longer",
                what, (long long)t->valid.best_update);
    t->valid.validated = t->valid.best_update = t->valid.worse = 0;
    t->valid.best = 0;
}

/* First values, or the newest checkpoint's. */
static bt_status begin(trainer *t) {
    bti_checkpoint *c = NULL;
    t->saved = -1;
    if (t->options->resume) BT_TRY(bti_checkpoint_newest(t->cfg->output, &c));
    if (c == NULL && t->options->resume) {
        BT_TRY(bti_output_check_models(t->cfg, t->validation != NULL));
        bti_log(BT_LOG_INFO, "no checkpoint in %s yet: starting", t->cfg->output);
    }
    if (c == NULL) return first_values(t);
    bti_resume_changes changes = {0};
    double scale = t->engine->loss_scale;
    bti_checkpoint_info here = info_of(t);
    bt_status status = bti_resume_check(t->cfg, c, &here, &changes);
    if (status == BT_OK) status = bti_checkpoint_load(c, t->engine, 1);
    if (status == BT_OK && changes.rescaled) status = bti_engine_set_scale(t->engine, scale, 0);
    if (status == BT_OK) {
        t->done = t->saved = c->info.update;
        t->valid = c->info;
        t->saved_validated = c->info.validated;
        if (changes.rescored != NULL) forget_scores(t, changes.rescored);
        bti_log(BT_LOG_INFO, "going on from %s, after update %lld", c->path, (long long)t->done);
    }
    bti_checkpoint_close(c);
    return status;
}

/* ---- updates -----------------------------------------------------------------------------------
 */

/* A gradient of fp16 is too large at times: that is how the loss scale is found. */
static void say_skip(const trainer *t, const bti_update_result *r) {
    if (t->engine->settings.scaling.growth_interval > 0)
        bti_log(BT_LOG_INFO,
                "update %lld: a gradient overflows; the step is skipped, the loss scale is %g now",
                (long long)t->done, r->loss_scale);
    else
        bti_log(BT_LOG_WARN, "update %lld: a gradient is not finite; the step is skipped",
                (long long)t->done);
}

static bt_status after_skip(trainer *t, const bti_update_result *r) {
    if (!r->skipped) {
        t->skipped_in_row = 0;
        return BT_OK;
    }
    t->skipped++;
    t->skipped_in_row++;
    if (r->rows[1] > 0) say_skip(t, r);
    if (r->loss_scale < 1)
        return bti_fail(BT_ENUMERIC,
                        "update %lld: gradients overflow fp16 even at loss scale %g; set "
                        "training.precision to bf16 or fp32, or lower optimizer.lr, and go on from "
                        "the last checkpoint",
                        (long long)t->done, 2 * r->loss_scale);
    if (t->skipped_in_row < MAX_SKIPPED) return BT_OK;
    return bti_fail(BT_ENUMERIC,
                    "update %lld: gradients were not finite in %d updates in a row; lower "
                    "%soptimizer.lr or lengthen schedule.warmup and go on from the last checkpoint",
                    (long long)t->done, MAX_SKIPPED,
                    r->loss_scale > 1 ? "training.loss_scale or " : "");
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
                             .loss_scale = r->loss_scale,
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
                             .loss_scale = record.loss_scale,
                             .skipped = t->skipped,
                             .seconds_left =
                                 t->seconds_per_update * (double)(t->s->last_update - t->done),
                             .valid_loss = t->valid_loss,
                             .valid_score = t->valid_score});
    return BT_OK;
}

static bt_status update(trainer *t) {
    const int64_t *pair;
    int64_t n, epoch;
    double start = bti_now();
    BT_TRY(bti_batcher_get(t->s->batcher, t->done + 1, &pair, &n, &epoch));
    for (int64_t i = 0; i < n; i++) bti_examples_get(&t->s->train, pair[i], &t->sentence[i]);
    /* The schedule counts steps taken: a skipped update does not move it. */
    double lr = bti_learning_rate(t->cfg, t->engine->steps + 1);
    bti_update_result r;
    BT_TRY(bti_engine_update(t->engine, t->sentence, n, t->done + 1, lr, &r));
    t->done++;
    if (!t->computes && r.rows[1] > 0 && r.loss == 0 && r.grad_norm == 0)
        bti_log(
            BT_LOG_WARN,
            "loss and gradient are exactly 0: nothing is learned; does the device (%s) compute?",
            t->s->dev->info.name);
    t->computes = 1;
    BT_TRY(tell(t, &r, epoch, lr, bti_now() - start));
    return after_skip(t, &r);
}

static int stopped(const trainer *t) { return t->options->stop != NULL && *t->options->stop; }

/* ---- validation --------------------------------------------------------------------- */

static void show_samples(const bti_validation_result *r) {
    for (int i = 0; i < BTI_SAMPLES; i++) {
        if (r->translation[i] == NULL) continue;
        bti_log(BT_LOG_INFO, "  %.160s\n    -> %.160s\n    == %.160s",
                r->source[i] ? r->source[i] : "", r->translation[i], r->reference[i]);
    }
}

static void say_validation(const trainer *t, const bti_validation_result *r, int best) {
    char scores[96];
    const bti_metrics *m = &r->metrics;
    if (bti_has_decoder(&t->cfg->model))
        snprintf(scores, sizeof scores, "perplexity %.3g, BLEU %.2f, chrF %.2f", r->perplexity,
                 r->bleu, r->chrf);
    else if (t->cfg->model.head == BTI_HEAD_REGRESSION)
        snprintf(scores, sizeof scores, "mean square error %.4g", m->mse);
    else
        snprintf(scores, sizeof scores, "accuracy %.4f, F1 %.4f", m->accuracy, m->f1);
    bti_log(BT_LOG_INFO, "update %lld: validation loss %.4f, %s in %.1f s%s", (long long)t->done,
            r->loss, scores, r->seconds, best ? ", best so far" : "");
}

static bt_status validate(trainer *t) {
    bti_validation_result r;
    BT_TRY(bti_validation_run(t->validation, &r));
    t->valid.validated = t->done;
    t->valid_loss = r.loss;
    t->valid_score = r.score;
    /* Not "r.score <= best": a NaN is no better. */
    int best = t->valid.best_update == 0 || r.score > t->valid.best;
    t->valid.worse = best ? 0 : t->valid.worse + 1;
    if (best) {
        t->valid.best = r.score;
        t->valid.best_update = t->done;
        BT_TRY(save_model(t, "best.safetensors"));
    }
    BT_TRY(bti_log_json_validation(t->log, &(bti_log_validation){.update = t->done,
                                                                 .loss = r.loss,
                                                                 .nll = r.nll,
                                                                 .perplexity = r.perplexity,
                                                                 .bleu = r.bleu,
                                                                 .chrf = r.chrf,
                                                                 .accuracy = r.metrics.accuracy,
                                                                 .f1 = r.metrics.f1,
                                                                 .mse = r.metrics.mse,
                                                                 .seconds = r.seconds}));
    say_validation(t, &r, best);
    show_samples(&r);
    report(t, &(bt_progress){.kind = BT_PROGRESS_VALIDATION,
                             .update = t->done,
                             .last_update = t->s->last_update,
                             .valid_loss = r.loss,
                             .valid_score = r.score,
                             .valid_is_best = best});
    return BT_OK;
}

static int due(int64_t every, int64_t update) { return every > 0 && update % every == 0; }

static int out_of_patience(const trainer *t) {
    int64_t patience = t->cfg->validation.patience;
    return t->validation != NULL && patience > 0 && t->valid.worse >= patience;
}

/* On its interval and at the end of the whole run. */
static int validation_due(const trainer *t) {
    if (t->validation == NULL || t->done == 0 || t->valid.validated == t->done) return 0;
    return t->done == t->s->run_end || due(t->cfg->validation.every, t->done);
}

/* What follows an update: validation, then a checkpoint that knows of it. A validation that a
 * signal cuts short is made again on resume. While one update after the other is skipped nothing is
 * learned: checkpoints wait, so that those from before are not pushed out. */
static bt_status follow_up(trainer *t) {
    t->cut = 0;
    if (validation_due(t)) {
        bt_status status = validate(t);
        if (status != BT_OK && status != BT_ESTOPPED) return status;
        t->cut = status == BT_ESTOPPED;
    }
    if (t->done > 0 && due(t->cfg->checkpoint.every, t->done)) t->owed = 1;
    return t->owed && t->skipped_in_row == 0 ? save(t) : BT_OK;
}

static bt_status run(trainer *t) {
    BT_TRY(follow_up(t));
    while (t->done < t->s->last_update && !stopped(t) && !out_of_patience(t)) {
        BT_TRY(update(t));
        BT_TRY(follow_up(t));
    }
    BT_TRY(save(t));
    BT_TRY(save_model(t, "model.safetensors"));
    if (t->cut)
        return bti_fail(BT_ESTOPPED,
                        "update %lld is done and saved, its validation is not made; --resume makes "
                        "it",
                        (long long)t->done);
    if (out_of_patience(t)) {
        bti_log(BT_LOG_INFO, "no better validation in %lld: done; the best was after update %lld",
                (long long)t->valid.worse, (long long)t->valid.best_update);
        return BT_OK;
    }
    if (t->done < t->s->last_update)
        return bti_fail(BT_ESTOPPED, "update %lld is done and saved; --resume goes on",
                        (long long)t->done);
    return BT_OK;
}

/* A device that fails ends the run: when, and what is safe. */
static bt_status with_what_is_safe(const trainer *t, bt_status status) {
    if (status != BT_EDEVICE) return status;
    if (t->saved < 0) return bti_fail_prefix(status, "after update %lld", (long long)t->done);
    return bti_fail(
        status,
        "after update %lld: %s; the checkpoint of update %lld is whole: --resume goes on "
        "from it, on any device",
        (long long)t->done, bt_last_error(), (long long)t->saved);
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bt_status open_engine(trainer *t, const bti_session_options *options) {
    bti_session *s = t->s;
    const bti_run_config *c = t->cfg;
    bti_engine_settings settings = {
        .start = s->tokenizer[1] ? bti_tokenizer_specials(s->tokenizer[1]).start : 0,
        .seed = c->training.seed,
        .smoothing = c->training.label_smoothing,
        .clip_norm = c->training.clip_norm,
        .adamw = {.beta1 = c->optimizer.beta1,
                  .beta2 = c->optimizer.beta2,
                  .eps = c->optimizer.eps,
                  .weight_decay = c->optimizer.weight_decay,
                  .decoupled = c->optimizer.kind == BTI_OPTIMIZER_ADAMW}};
    settings.loss_scale = bti_precision_scale(c, &settings.scaling);
    BT_TRY(bti_session_check(s));
    t->sentence = bti_alloc((size_t)s->workload.max_sentences, sizeof *t->sentence);
    if (t->sentence == NULL) return BT_ENOMEM;
    bt_status status;
    do {
        status = bti_engine_new(s->dev, s->model, s->plan, s->workload.max_sentences,
                                s->workload.max_rows[1], &settings, &t->engine);
    } while (status == BT_ENOMEM && bti_session_halve_heaps(s, options));
    BT_TRY(status);
    if (s->held_out.count == 0) return BT_OK;
    return bti_validation_open(c, &s->held_out, s->tokenizer[1], t->engine, s->decode_batch,
                               t->options->stop, &t->validation);
}

/* Opens the log, by which the folder is this run's alone; before a text is read only where it is
 * there already. */
static bt_status open_log(trainer *t, int make) {
    if (t->log != NULL) return BT_OK;
    char *path = bti_path_join(t->cfg->output, "log.jsonl");
    bt_status status = path == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && (make || bti_file_exists(path)))
        status = bti_log_json_open(path, &t->log);
    bti_free(path);
    return status;
}

/* Makes the folder and takes it. Another run may have been there since it was looked at. */
static bt_status take_output(trainer *t) {
    BT_TRY(bti_dir_make(t->cfg->output));
    BT_TRY(open_log(t, 1));
    return bti_output_check(t->cfg, t->run_text, t->options->resume);
}

/* What stands in it from the beginning, and its log, cut after what is done. */
static bt_status write_output(trainer *t) {
    BT_TRY(bti_output_write(t->s, t->run_text));
    return bti_log_json_cut(t->log, t->done, validation_due(t));
}

/* Pictures of the log, for people: a failure only says so. */
static void plot(const trainer *t) {
    char *log = bti_path_join(t->cfg->output, "log.jsonl");
    if (log == NULL || bti_plot_log(log, t->cfg->output) != BT_OK)
        bti_log(BT_LOG_WARN, "no plots: %s", bt_last_error());
    bti_free(log);
}

static void say_plan(const trainer *t) {
    const bti_run_plan *p = t->s->plan;
    const bti_corpus *c = t->s->corpus;
    char total[32], budget[32], longest[64] = "";
    if (c != NULL)
        snprintf(longest, sizeof longest, "; longest %s: line %lld",
                 bti_session_has_pairs(t->s) ? "pair" : "text",
                 (long long)bti_corpus_get_stats(c)->longest_line);
    bti_format_bytes(p->total, total);
    bti_format_bytes(p->budget, budget);
    int64_t frozen = bti_params_frozen(&t->s->model->params);
    if (frozen > 0) bti_log(BT_LOG_INFO, "%lld of the parameters are frozen", (long long)frozen);
    bti_log(BT_LOG_INFO,
            "%lld parameters on %s in %s; plan: %s of %s, %lld micro-batch%s an update, %d of %d "
            "layers recomputed, output in chunks of %lld rows%s",
            (long long)t->s->model->params.elements, t->s->dev->info.name,
            bti_precision_name(t->cfg->training.precision), total, budget,
            (long long)p->micro_batches, p->micro_batches == 1 ? "" : "es", p->choice.layers,
            t->s->model->layers, (long long)p->choices.logit_rows, longest);
}

bt_status bt_train(const bt_run *run_config, const bt_train_options *options) {
    static const bt_train_options defaults = {0};
    if (options == NULL) options = &defaults;
    trainer t = {.cfg = run_config, .options = options, .valid_loss = NAN, .valid_score = NAN};
    bti_session_options so = {.device = options->device,
                              .memory = options->memory,
                              .threads = options->threads,
                              .updates = options->updates,
                              .resume = options->resume,
                              .stop = options->stop};
    bt_status status = bti_run_config_print(t.cfg, &t.run_text);
    if (status == BT_OK) status = bti_output_check(t.cfg, t.run_text, options->resume);
    if (status == BT_OK) status = open_log(&t, 0);
    char *kept =
        options->resume && status == BT_OK ? bti_path_join(t.cfg->output, "plan.json") : NULL;
    so.kept = kept;
    if (status == BT_OK) status = bti_session_open(t.cfg, &so, &t.s);
    if (status == BT_OK) status = bti_examples_describe(&t.s->train, &t.data_text);
    if (status == BT_OK) status = open_engine(&t, &so);
    if (status == BT_OK && stopped(&t))
        status = bti_fail(BT_ESTOPPED, "nothing is written: update 1 has not begun");
    if (status == BT_OK) status = take_output(&t);
    if (status == BT_OK) status = begin(&t);
    if (status == BT_OK) status = write_output(&t);
    if (status == BT_OK) say_plan(&t);
    const int runs = status == BT_OK;
    if (runs) status = with_what_is_safe(&t, run(&t));
    /* What follows may fail too, and is not why the run ended. */
    char *why = status == BT_OK ? NULL : bti_strdup(bt_last_error());
    if (t.done > 0 && t.log != NULL) plot(&t);
    bti_log_json_close(t.log);
    bti_validation_close(t.validation);
    bti_engine_free(t.engine);
    bti_session_close(t.s);
    bti_free(t.sentence);
    bti_free(kept);
    bti_free(t.data_text);
    bti_free(t.run_text);
    if (why != NULL) bti_fail(status, "%s", why);
    bti_free(why);
    return status;
}
