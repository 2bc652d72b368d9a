/* What is always linked: built-in drivers and the planning halves of all backends. Seen by
 * registry.c and the files that define these; core asks the registry. */
#ifndef BANTAM_BACKENDS_BUILTIN_H
#define BANTAM_BACKENDS_BUILTIN_H

#include "backends/backend.h"

extern const bt_driver bti_driver_ref;  /* ref.c */
extern const bt_driver bti_driver_null; /* null.c */

extern const bt_planning bti_planning_ref;    /* ref.c */
extern const bt_planning bti_planning_null;   /* null.c */
extern const bt_planning bti_planning_cpu;    /* cpu_plan.c */
extern const bt_planning bti_planning_cuda;   /* cuda_plan.c */
extern const bt_planning bti_planning_opencl; /* opencl_plan.c */

#endif
