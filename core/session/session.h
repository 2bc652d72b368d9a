/* What a run needs before its memory is taken: tokenisers, token ids, model, device, plan. Shared
 * by `plan` and `train`. Of several devices the first one is taken on which the plan fits. */
#ifndef BANTAM_SESSION_SESSION_H
#define BANTAM_SESSION_SESSION_H

#include "core/engine/initial.h"
#include "core/fit/device.h"
#include "core/fit/rates.h"
#include "core/session/workload.h"

typedef struct bti_session {
    const bti_run_config *cfg;
    const volatile sig_atomic_t *stop;
    bti_tokenizer *tokenizer[2]; /* the same one when shared */
    bti_corpus *corpus, *valid;  /* NULL: no text is read; valid: or the run does not validate */
    bti_examples train, held_out;
    bti_batcher *batcher;
    int assumed;            /* nothing is read: every example is alike */
    int64_t lengths[2];     /* of every pair then */
    int64_t vocab[2];       /* symbols of each side; 0: no text there */
    bti_model_config shape; /* the run file's, with what the features and labels say */
    bt_dev *dev;
    const char *known; /* name of a device that is known from a table only; else NULL */
    bti_budget budget;
    bti_rates rates; /* measured on the device, unless it is known from a table only */
    bti_model *model;
    bti_run_plan *plan;
    bti_layout_memo *memo; /* of all plans that are asked for */
    bti_initial *initial;  /* the run file's initial_model, checked; else NULL */
    bti_workload workload;
    int64_t run_end;      /* last update of the run file */
    int64_t last_update;  /* where this one ends: options may stop it earlier */
    int64_t decode_batch; /* sentences that validation translates at once */
} bti_session;

typedef struct bti_session_options {
    const char *device, *memory; /* NULL: auto, the run file's limit */
    int known_devices;           /* `device` may name one that is known from a table only */
    int64_t lengths[2];          /* assumed tokens of every pair; 0: the text is read */
    int threads;
    const char *kept; /* the plan of the run that is gone on with, see plan_file.h; may be NULL */
    int64_t updates;  /* 0: as the run file says */
    int resume;       /* initial_model is not opened */
    const volatile sig_atomic_t *stop; /* non-zero: reading ends with BT_ESTOPPED; may be NULL */
} bti_session_options;

/* Opens everything and plans; trains tokenisers whose files are absent and whose size is given. A
 * plan that does not fit is no failure here. cfg is borrowed. */
bt_status bti_session_open(const bti_run_config *cfg, const bti_session_options *options,
                           bti_session **out);
void bti_session_close(bti_session *s);
/* Opens and checks the run file's initial_model where it has one, and says what was found. */
bt_status bti_session_initial(bti_session *s);
/* The part of it that opens the tokenisers, for a session that holds cfg and stop only. A side
 * without text gets none. */
bt_status bti_session_tokenizers(bti_session *s);

/* Do its examples have text on both sides? */
int bti_session_has_pairs(const bti_session *s);
/* What updates are made of: "pairs" of lines, "examples" where there are features, or "target
 * tokens". */
const char *bti_session_unit(const bti_session *s);

/* ---- plans of the session's run and of changed ones ---------------------------------------------
 */

/* With `m` in the place of the run's model. */
bti_updates bti_session_updates(const bti_session *s, const bti_model *m);
/* The updates' workload, with the validation text under the same caps. */
bt_status bti_session_workload(const bti_session *s, const bti_updates *u, bti_workload *out);
/* Plans a model and workload on the session's device: `options` has budget, runtime without host
 * memory that grows with the workload, and what is forced. Validation is planned in where the run
 * validates; *decode_batch (may be NULL) is what it translates at once. */
bt_status bti_session_plan(const bti_session *s, bti_model *m, const bti_workload *w,
                           int64_t max_length, const bti_plan_options *options,
                           int64_t *decode_batch, bti_run_plan **out);
bti_plan_options bti_session_plan_options(const bti_session *s);
/* For a device that refuses the plan's memory although so much is free: plans again for allocations
 * of half the size, options as at the opening. 1: the new plan fits; 0: it does not help, the last
 * error is as it was. */
int bti_session_halve_heaps(bti_session *s, const bti_session_options *options);

#endif
