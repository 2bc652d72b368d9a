/* Whether a run may go on from a checkpoint: what decides the loss curve must be as it was. */
#ifndef BANTAM_TRAIN_RESUME_H
#define BANTAM_TRAIN_RESUME_H

#include "core/engine/checkpoint.h"
#include "core/run/run_file.h"

/* What begins anew where the run goes on. */
typedef struct bti_resume_changes {
    int rescaled; /* the loss scale */
    const char
        *rescored; /* the best validation: what its score depends on and is another; or NULL */
} bti_resume_changes;

/* `here` is what a checkpoint of this run would hold. BT_EUSAGE lists all differences of the run
 * file, or of the training data, that forbid it; other changes are told. */
bt_status bti_resume_check(const bti_run_config *cfg, const bti_checkpoint *c,
                           const bti_checkpoint_info *here, bti_resume_changes *changes);

#endif
