/* bt_train: a run from its first update, or from its newest checkpoint, to its end. */
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/report/advice.h"
#include "core/run/precision.h"
#include "core/run/schedule.h"
#include "core/train/output.h"
#include "core/train/trainer_parts.h"

/* A run whose gradients are not finite this many times in a row cannot be saved by more updates. */
#define MAX_SKIPPED 20

/* ---- updates -----------------------------------------------------------------------------------
 */

static bt_status after_skip(bti_trainer *t, const bti_update_result *r) {
    if (!r->skipped) {
        t->skipped_in_row = 0;
        return BT_OK;
    }
    t->skipped_in_row++;
    if (r->rows[1] > 0) bti_trainer_say_skip(t, r);
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

static bt_status update(bti_trainer *t) {
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
    BT_TRY(bti_trainer_tell(t, &r, epoch, lr, bti_now() - start));
    return after_skip(t, &r);
}

static int stopped(const bti_trainer *t) { return t->options->stop != NULL && *t->options->stop; }

/* ---- validation --------------------------------------------------------------------------------
 */

static bt_status validate(bti_trainer *t) {
    bti_validation_result r;
    BT_TRY(bti_validation_run(t->validation, &r));
    t->valid.validated = t->done;
    t->progress.valid_loss = r.loss;
    t->progress.valid_score = r.score;
    /* Not "r.score <= best": a NaN is no better. */
    int best = t->valid.best_update == 0 || r.score > t->valid.best;
    t->valid.worse = best ? 0 : t->valid.worse + 1;
    if (best) {
        t->valid.best = r.score;
        t->valid.best_update = t->done;
        BT_TRY(bti_trainer_save_model(t, "best.safetensors"));
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
    bti_trainer_say_validation(t, &r, best);
    t->progress.valid_is_best = best;
    bti_trainer_report(t, BT_PROGRESS_VALIDATION, NULL);
    return BT_OK;
}

static int due(int64_t every, int64_t update) { return every > 0 && update % every == 0; }

static int out_of_patience(const bti_trainer *t) {
    int64_t patience = t->cfg->validation.patience;
    return t->validation != NULL && patience > 0 && t->valid.worse >= patience;
}

/* On its interval and at the end of the whole run. */
static int validation_due(const bti_trainer *t) {
    if (t->validation == NULL || t->done == 0 || t->valid.validated == t->done) return 0;
    return t->done == t->s->run_end || due(t->cfg->validation.every, t->done);
}

/* What follows an update: validation, then a checkpoint that knows of it. A validation that a
 * signal cuts short is made again on resume. While one update after the other is skipped nothing is
 * learned: checkpoints wait, so that those from before are not pushed out. */
static bt_status follow_up(bti_trainer *t) {
    t->cut = 0;
    if (validation_due(t)) {
        bt_status status = validate(t);
        if (status != BT_OK && status != BT_ESTOPPED) return status;
        t->cut = status == BT_ESTOPPED;
    }
    if (t->done > 0 && due(t->cfg->checkpoint.every, t->done)) t->owed = 1;
    return t->owed && t->skipped_in_row == 0 ? bti_trainer_save(t) : BT_OK;
}

static bt_status run(bti_trainer *t) {
    BT_TRY(follow_up(t));
    while (t->done < t->s->last_update && !stopped(t) && !out_of_patience(t)) {
        BT_TRY(update(t));
        BT_TRY(follow_up(t));
    }
    BT_TRY(bti_trainer_save(t));
    BT_TRY(bti_trainer_save_model(t, "model.safetensors"));
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

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bt_status open_engine(bti_trainer *t, const bti_session_options *options) {
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

/* All that comes before the first update. */
static bt_status prepare(bti_trainer *t) {
    const bt_train_options *o = t->options;
    bti_session_options so = {.device = o->device,
                              .memory = o->memory,
                              .threads = o->threads,
                              .updates = o->updates,
                              .resume = o->resume,
                              .stop = o->stop};
    BT_TRY(bti_run_config_print(t->cfg, &t->run_text));
    BT_TRY(bti_output_check(t->cfg, t->run_text, o->resume));
    BT_TRY(bti_trainer_open_log(t, 0));
    if (o->resume) so.kept = t->kept = bti_path_join(t->cfg->output, "plan.json");
    BT_TRY(bti_session_open(t->cfg, &so, &t->s));
    BT_TRY(bti_examples_describe(&t->s->train, &t->data_text));
    BT_TRY(open_engine(t, &so));
    bti_trainer_begin_progress(t);
    if (stopped(t)) return bti_fail(BT_ESTOPPED, "nothing is written: update 1 has not begun");
    BT_TRY(bti_trainer_take_output(t));
    BT_TRY(bti_trainer_begin(t));
    return bti_trainer_write_output(t, validation_due(t));
}

/* Draws and frees. What fails here is not why the run ended: the last error stays that one. */
static void finish(bti_trainer *t, bt_status status) {
    char *why = status == BT_OK ? NULL : bti_strdup(bt_last_error());
    if (t->done > 0 && t->log != NULL) bti_trainer_plot(t);
    bti_log_json_close(t->log);
    bti_validation_close(t->validation);
    bti_engine_free(t->engine);
    bti_session_close(t->s);
    bti_free(t->sentence);
    bti_free(t->kept);
    bti_free(t->data_text);
    bti_free(t->run_text);
    if (why != NULL) bti_fail(status, "%s", why);
    bti_free(why);
}

bt_status bt_train(const bt_run *run_config, const bt_train_options *options) {
    static const bt_train_options defaults = {0};
    bti_trainer t = {.cfg = run_config, .options = options ? options : &defaults};
    bt_status status = prepare(&t);
    if (status == BT_OK) {
        bti_trainer_say_plan(&t);
        status = bti_trainer_with_what_is_safe(&t, run(&t));
    }
    finish(&t, status);
    return status;
}
