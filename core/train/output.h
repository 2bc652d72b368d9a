/* The folder of a run: what stands in it before the first update. */
#ifndef BANTAM_TRAIN_OUTPUT_H
#define BANTAM_TRAIN_OUTPUT_H

#include "core/session/session.h"

/* A run that is there already is not written over: BT_EUSAGE where the folder holds a checkpoint.
 * No text need have been read. */
bt_status bti_output_check(const char *folder);
/* Makes the session's output folder where it is not there, and writes all that a model needs beside
 * its weights: tokenisers, names of classes, plan.json, and the effective run file, run_text, as
 * run.yaml. Each file is whole or as it was. */
bt_status bti_output_write(const bti_session *s, const char *run_text);

#endif
