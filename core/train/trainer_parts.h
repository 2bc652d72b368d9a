/* What the files of the loop share; nobody else includes this. */
#ifndef BANTAM_TRAIN_TRAINER_PARTS_H
#define BANTAM_TRAIN_TRAINER_PARTS_H

#include "core/engine/checkpoint.h"
#include "core/session/session.h"
#include "core/session/validation.h"
#include "core/train/log_json.h"

typedef struct bti_trainer {
    const bti_run_config *cfg;
    const bt_train_options *options;
    bti_session *s;
    bti_engine *engine;
    bti_log_json *log;
    char *run_text, *data_text;
    char *kept;                 /* the plan.json that the run goes on with; NULL: none */
    bti_sentence *sentence;     /* of one update */
    bti_validation *validation; /* NULL: the run does not validate */
    bti_checkpoint_info valid;  /* its fields of validation */
    int64_t done;               /* updates done */
    int64_t saved;              /* update of the newest checkpoint; -1: none */
    int64_t saved_validated;    /* the last validation that it knows of */
    int owed;                   /* a checkpoint was due and is not made yet */
    int cut;                    /* the validation of the last update was due, and stopped */
    int64_t skipped_in_row;
    int computes; /* the first update was looked at */
    double seconds_per_update;
    bt_progress progress; /* as it is reported; each event changes what it knows better */
} bti_trainer;

/* ---- trainer_report.c: what is told, logged and drawn ------------------------------------------
 */

/* What is known of the progress before the first update. */
void bti_trainer_begin_progress(bti_trainer *t);
/* Reports t->progress as it is now; `path` as in bt_progress. */
void bti_trainer_report(bti_trainer *t, bt_progress_kind kind, const char *path);
/* Logs and reports the update that is done. */
bt_status bti_trainer_tell(bti_trainer *t, const bti_update_result *r, int64_t epoch, double lr,
                           double seconds);
void bti_trainer_say_skip(const bti_trainer *t, const bti_update_result *r);
/* Its scores and samples. */
void bti_trainer_say_validation(const bti_trainer *t, const bti_validation_result *r, int best);
void bti_trainer_say_plan(const bti_trainer *t);
/* Pictures of the log, for people: a failure only says so. */
void bti_trainer_plot(const bti_trainer *t);

/* ---- trainer_state.c: the run and its folder ---------------------------------------------------
 */

/* First values, or the newest checkpoint's. */
bt_status bti_trainer_begin(bti_trainer *t);
/* A checkpoint of the newest update, unless it has one that knows of its validation. */
bt_status bti_trainer_save(bti_trainer *t);
/* The weights alone, for use: OUT/model.safetensors, OUT/best.safetensors. */
bt_status bti_trainer_save_model(bti_trainer *t, const char *name);
/* A device that fails ends the run: when, and what is safe. */
bt_status bti_trainer_with_what_is_safe(const bti_trainer *t, bt_status status);
/* Opens the log, by which the folder is this run's alone; before a text is read only where it is
 * there already (`make` 0). */
bt_status bti_trainer_open_log(bti_trainer *t, int make);
/* Makes the folder and takes it. Another run may have been there since it was looked at. */
bt_status bti_trainer_take_output(bti_trainer *t);
/* What stands in it from the beginning, and its log, cut after what is done: with `again` before
 * the validation of that update, which is made again. */
bt_status bti_trainer_write_output(bti_trainer *t, int again);

#endif
