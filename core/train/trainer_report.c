/* What a run tells: progress, notices, log lines, pictures. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "core/base/files.h"
#include "core/model/head.h"
#include "core/run/precision.h"
#include "core/train/plot.h"
#include "core/train/trainer_parts.h"

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
static uint64_t device_bytes(const bti_trainer *t) {
    bt_dev *dev = t->s->dev;
    bt_dev_info info = dev->info;
    if (dev->ops->query(dev, &info) != BT_OK) return 0; /* the next update tells */
    return t->engine->arena.total + info.runtime_bytes;
}

/* Most bytes in use after any update so far: an update takes nothing that it gives back. A driver,
 * which takes its time to answer, is asked in the first updates and seldom after. */
static uint64_t peak_bytes(bti_trainer *t) {
    int asks = t->done <= 3 || t->done % 16 == 0;
    uint64_t bytes = t->s->dev->info.host_memory ? resident_bytes() : 0;
    uint64_t *peak = &t->progress.peak_bytes;
    if (bytes == 0 && (asks || *peak == 0)) bytes = device_bytes(t);
    if (bytes > *peak) *peak = bytes;
    return *peak;
}

void bti_trainer_begin_progress(bti_trainer *t) {
    t->progress = (bt_progress){.last_update = t->s->last_update,
                                .loss = NAN,
                                .grad_norm = NAN,
                                .planned_bytes = t->s->plan->total,
                                .seconds_left = -1,
                                .valid_loss = NAN,
                                .valid_score = NAN,
                                .unit = bti_head_of(&t->s->model->cfg)->unit};
}

void bti_trainer_report(bti_trainer *t, bt_progress_kind kind, const char *path) {
    bt_progress *p = &t->progress;
    p->kind = kind;
    p->update = t->done;
    p->loss_scale = t->engine->loss_scale;
    p->skipped = t->done - t->engine->steps;
    p->path = path;
    if (t->options->progress != NULL) t->options->progress(t->options->user, p);
}

/* ---- updates -----------------------------------------------------------------------------------
 */

/* A gradient of fp16 is too large at times: that is how the loss scale is found. */
void bti_trainer_say_skip(const bti_trainer *t, const bti_update_result *r) {
    if (t->engine->settings.scaling.growth_interval > 0)
        bti_log(BT_LOG_INFO,
                "update %lld: a gradient overflows; the step is skipped, the loss scale is %g now",
                (long long)t->done, r->loss_scale);
    else
        bti_log(BT_LOG_WARN, "update %lld: a gradient is not finite; the step is skipped",
                (long long)t->done);
}

bt_status bti_trainer_tell(bti_trainer *t, const bti_update_result *r, int64_t epoch, double lr,
                           double seconds) {
    double rate = (double)r->rows[1] / seconds, *of = &t->seconds_per_update;
    bt_progress *p = &t->progress;
    *of = *of > 0 ? 0.9 * *of + 0.1 * seconds : seconds;
    p->epoch = epoch;
    p->loss = r->rows[1] > 0 ? r->loss : NAN;
    p->grad_norm = r->grad_norm;
    p->lr = lr;
    p->target_tokens = r->rows[1];
    p->source_tokens = r->rows[0];
    p->micro_batches = r->micro_batches;
    p->tokens_per_s = p->tokens_per_s > 0 ? 0.9 * p->tokens_per_s + 0.1 * rate : rate;
    p->seconds_left = *of * (double)(t->s->last_update - t->done);
    bti_log_record record = {.update = t->done,
                             .epoch = epoch,
                             .loss = p->loss,
                             .grad_norm = p->grad_norm,
                             .lr = lr,
                             .target_tokens = p->target_tokens,
                             .source_tokens = p->source_tokens,
                             .micro_batches = p->micro_batches,
                             .tokens_per_s = rate,
                             .planned_bytes = p->planned_bytes,
                             .peak_bytes = peak_bytes(t),
                             .loss_scale = r->loss_scale,
                             .skipped = r->skipped};
    BT_TRY(bti_log_json_write(t->log, &record));
    bti_trainer_report(t, BT_PROGRESS_UPDATE, NULL);
    return BT_OK;
}

/* ---- validation --------------------------------------------------------------------------------
 */

static void show_samples(const bti_validation_result *r) {
    for (int i = 0; i < BTI_SAMPLES; i++) {
        if (r->translation[i] == NULL) continue;
        bti_log(BT_LOG_INFO, "  %.160s\n    -> %.160s\n    == %.160s",
                r->source[i] ? r->source[i] : "", r->translation[i], r->reference[i]);
    }
}

void bti_trainer_say_validation(const bti_trainer *t, const bti_validation_result *r, int best) {
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
    show_samples(r);
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

void bti_trainer_plot(const bti_trainer *t) {
    char *log = bti_path_join(t->cfg->output, "log.jsonl");
    if (log == NULL || bti_plot_log(log, bti_head_of(&t->cfg->model), t->cfg->output) != BT_OK)
        bti_log(BT_LOG_WARN, "no plots: %s", bt_last_error());
    bti_free(log);
}

void bti_trainer_say_plan(const bti_trainer *t) {
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
