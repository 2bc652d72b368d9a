/* OUT/plan.json: the choice of a run, so that what goes on with it sums in the same order. */
#ifndef BANTAM_FIT_PLAN_FILE_H
#define BANTAM_FIT_PLAN_FILE_H

#include "core/fit/planner.h"

/* `device` (its backend and name) and `precision`: what the choice holds for; others may do better
 * with another. */
bt_status bti_plan_file_write(const char *path, const bt_dev_info *device, const char *precision,
                              const bti_run_plan *plan);
/* BT_EINPUT when the file cannot be read, is broken, or is of another device or precision. */
bt_status bti_plan_file_read(const char *path, const bt_dev_info *device, const char *precision,
                             int32_t layers, bti_choice *out);

#endif
