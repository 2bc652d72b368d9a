/* The folder of a run: what stands in it before the first update. */
#ifndef BANTAM_TRAIN_OUTPUT_H
#define BANTAM_TRAIN_OUTPUT_H

#include "core/session/session.h"

/* What must not be written over: BT_EUSAGE where one of the run's own files would take the place of
 * one that it reads (a tokeniser may be its own copy, and the run file our print of it), and,
 * unless it is gone on with, where the folder holds checkpoints or a model. No text need have been
 * read. */
bt_status bti_output_check(const bti_run_config *cfg, const char *run_text, int resume);
/* The same for the models alone: a run that begins must not leave another one's best.safetensors
 * for translation to find. With replaces_best it will write one itself. */
bt_status bti_output_check_models(const bti_run_config *cfg, int replaces_best);
/* Makes the session's output folder where it is not there, and writes all that a model needs beside
 * its weights: tokenisers, names of classes, plan.json, and the effective run file, run_text, as
 * run.yaml. Each file is whole or as it was. */
bt_status bti_output_write(const bti_session *s, const char *run_text);

#endif
