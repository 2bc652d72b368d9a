/* What of a run lasts: its values, checkpoints and folder. */

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/train/output.h"
#include "core/train/resume.h"
#include "core/train/trainer_parts.h"

/* ---- checkpoints -------------------------------------------------------------------------------
 */

static bti_checkpoint_info info_of(const bti_trainer *t) {
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

bt_status bti_trainer_save(bti_trainer *t) {
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
        bti_trainer_report(t, BT_PROGRESS_CHECKPOINT, path);
        status = bti_checkpoint_prune(t->cfg->output, t->done, t->cfg->checkpoint.keep);
    }
    bti_free(path);
    return status;
}

bt_status bti_trainer_save_model(bti_trainer *t, const char *name) {
    bti_checkpoint_info info = info_of(t);
    char *path = bti_path_join(t->cfg->output, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_checkpoint_save(t->engine, path, &info, 0);
    bti_free(path);
    return status;
}

bt_status bti_trainer_with_what_is_safe(const bti_trainer *t, bt_status status) {
    if (status != BT_EDEVICE) return status;
    if (t->saved < 0) return bti_fail_prefix(status, "after update %lld", (long long)t->done);
    return bti_fail(
        status,
        "after update %lld: %s; the checkpoint of update %lld is whole: --resume goes on "
        "from it, on any device",
        (long long)t->done, bt_last_error(), (long long)t->saved);
}

/* ---- beginning ---------------------------------------------------------------------------------
 */

/* First values: the seed's, initial_model's where that has them. */
static bt_status first_values(bti_trainer *t) {
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
static void forget_scores(bti_trainer *t, const char *what) {
    if (t->valid.best_update > 0)
        bti_log(BT_LOG_WARN,
                "%s is another from here on: the best validation so far, after update %lld, counts "
                "no longer",
                what, (long long)t->valid.best_update);
    t->valid.validated = t->valid.best_update = t->valid.worse = 0;
    t->valid.best = 0;
}

bt_status bti_trainer_begin(bti_trainer *t) {
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

/* ---- folder ------------------------------------------------------------------------------------
 */

bt_status bti_trainer_open_log(bti_trainer *t, int make) {
    if (t->log != NULL) return BT_OK;
    char *path = bti_path_join(t->cfg->output, "log.jsonl");
    bt_status status = path == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && (make || bti_file_exists(path)))
        status = bti_log_json_open(path, &t->log);
    bti_free(path);
    return status;
}

bt_status bti_trainer_take_output(bti_trainer *t) {
    BT_TRY(bti_dir_make(t->cfg->output));
    BT_TRY(bti_trainer_open_log(t, 1));
    return bti_output_check(t->cfg, t->run_text, t->options->resume);
}

bt_status bti_trainer_write_output(bti_trainer *t, int again) {
    BT_TRY(bti_output_write(t->s, t->run_text));
    return bti_log_json_cut(t->log, t->done, again);
}
