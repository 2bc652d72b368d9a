/* OUT/plan.json: the choice of a run, so that what goes on with it sums in the same order. */
#ifndef BANTAM_TRAIN_PLAN_FILE_H
#define BANTAM_TRAIN_PLAN_FILE_H

#include "core/train/planner.h"

/* `device`: what the choice holds for; another one may do better with another. */
bt_status bti_plan_file_write(const char *path, const char *device, const bti_run_plan *plan);
/* BT_EINPUT when the file cannot be read, is broken, or is of another device. */
bt_status bti_plan_file_read(const char *path, const char *device, int32_t layers, bti_choice *out);

#endif
