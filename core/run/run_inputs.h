/* The files that a run reads, whatever key names them: nothing that is written may be one. */
#ifndef BANTAM_RUN_RUN_INPUTS_H
#define BANTAM_RUN_RUN_INPUTS_H

#include "core/run/run_file.h"

/* Calls `each` for every path that the run file names (folders among them), for the run file (key
 * NULL) and for the files behind lists of features. What is not there or cannot be read is not
 * told of here. Ends at the first call that is not BT_OK, and returns it. */
typedef bt_status (*bti_run_input_fn)(void *user, const char *key, const char *path);
bt_status bti_run_inputs(const bti_run_config *cfg, bti_run_input_fn each, void *user);

#endif
