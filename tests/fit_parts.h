/* Parts of the suite `fit`: what a run needs, where it would fit, what is said when it does not. */
#ifndef BANTAM_TESTS_FIT_PARTS_H
#define BANTAM_TESTS_FIT_PARTS_H

#include "tests/crowd.h"
#include "tests/program_kit.h"

/* A run file loaded with overrides ("key=value", NULL ends them), and its plan as JSON
 * (json_decref) on a device (NULL: as the file says) within a limit (NULL: automatic), for assumed
 * pairs where source is above 0. */
typedef struct fit_ask {
    const char *yaml, *device, *memory;
    int64_t source, target;
    const char *sets[16];
} fit_ask;
bt_plan *fit_plan(const fit_ask *ask, bt_run **run);
void fit_discard(bt_plan *plan, bt_run *run);
json_t *fit_json(const fit_ask *ask);
/* The table of the same; the kit's. */
const char *fit_text(const fit_ask *ask);
/* A run of 2 + 2 layers of width 64 with 5,000 words a side, whose text is nowhere. */
const char *fit_no_text(void);

void add_fit_cases(TCase *tc);
void add_fit_map(TCase *tc);

#endif
