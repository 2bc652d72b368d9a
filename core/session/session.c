#include "core/session/session.h"

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/model/head.h"
#include "core/run/precision.h"
#include "core/session/session_parts.h"
#include "core/session/validation.h"

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
    bti_log(bti_initial_is_whole(s->initial) ? BT_LOG_INFO : BT_LOG_WARN, "initial weights: %s",
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
        /* Where only epochs end the run all are counted: schedules need their number from the first
         * update on. */
        BT_TRY(bti_batcher_updates(s->batcher, s->cfg->training.epochs, last, s->stop, &last));
    }
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
                     .stop = s->stop,
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

/* ---- the whole ---------------------------------------------------------------------------------
 */

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
    if (status == BT_OK)
        status = bti_session_next_device(s, &devices, &at, options->threads, known, &s->dev);
    if (status == BT_OK) status = check_metric(cfg);
    if (status == BT_OK) status = check_freeze(cfg);
    if (status == BT_OK) status = bti_session_read(s);
    if (status == BT_OK) status = make_model(s);
    if (status == BT_OK && !options->resume) status = bti_session_initial(s);
    if (status == BT_OK) status = find_last_update(s, options->updates);
    if (status == BT_OK) {
        bti_updates updates = bti_session_updates(s, s->model);
        status = bti_session_workload(s, &updates, &s->workload);
    }
    if (status == BT_OK) status = bti_session_plan_somewhere(s, options, &devices, at);
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

int bti_session_has_pairs(const bti_session *s) {
    return bti_session_has_text(s, 0) && bti_session_has_text(s, 1);
}

const char *bti_session_unit(const bti_session *s) {
    if (s->cfg->training.batch_unit != BTI_BATCH_SENTENCES) return "target tokens";
    return s->cfg->data.features.count > 0 ? "examples" : "pairs";
}
