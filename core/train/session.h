/* What a run needs before its memory is taken: tokenisers, token ids, model, device, plan. Shared
 * by `plan` and `train`. */
#ifndef BANTAM_TRAIN_SESSION_H
#define BANTAM_TRAIN_SESSION_H

#include "core/train/initial.h"
#include "core/train/planner.h"

typedef struct bti_session {
    const bti_run_config *cfg;
    const volatile sig_atomic_t *stop;
    bti_tokenizer *tokenizer[2]; /* the same one when shared */
    bti_corpus *corpus, *valid;  /* valid: NULL when the run does not validate */
    bti_batcher *batcher;
    bt_dev *dev;
    bti_model *model;
    bti_run_plan *plan;
    bti_initial *initial; /* the run file's initial_model, checked; else NULL */
    bti_workload workload;
    int64_t run_end;      /* last update of the run file */
    int64_t last_update;  /* where this one ends: options may stop it earlier */
    int64_t decode_batch; /* sentences that validation translates at once */
} bti_session;

typedef struct bti_session_options {
    const char *device, *memory; /* NULL: auto, the run file's limit */
    int threads;
    int64_t updates;                   /* 0: as the run file says */
    int resume;                        /* initial_model is not opened */
    const volatile sig_atomic_t *stop; /* non-zero: reading ends with BT_ESTOPPED; may be NULL */
} bti_session_options;

/* Opens everything and plans; trains tokenisers whose files are absent and whose size is given. A
 * plan that does not fit is no failure here. cfg is borrowed. */
bt_status bti_session_open(const bti_run_config *cfg, const bti_session_options *options,
                           bti_session **out);
void bti_session_close(bti_session *s);
/* Opens and checks the run file's initial_model where it has one, and says what was found. */
bt_status bti_session_initial(bti_session *s);
/* The part of it that opens the tokenisers, for a session that holds cfg and stop only. */
bt_status bti_session_tokenizers(bti_session *s);

/* "auto" (NULL): the first backend, in order of preference, that has a device; else as named. */
bt_status bti_device_choose(const char *device, int threads, bt_dev **out);
/* Bytes that a run may use on the device, arena and what is held already together: `memory` as text
 * (NULL or "auto": all that is free, less a reserve of a twentieth of the device or 256 MiB,
 * whichever is more). Also gives the bytes held outside any arena. */
bt_status bti_memory_budget(bt_dev *dev, const char *memory, uint64_t limit, uint64_t *budget,
                            uint64_t *runtime);
/* Warms the device's libraries for products of up to `rows` rows of this model. */
bt_status bti_device_warm(bt_dev *dev, const bti_model *m, int64_t rows, int64_t logit_rows);

#endif
