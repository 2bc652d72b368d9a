/* Parts of the plan suite. */
#ifndef BANTAM_TESTS_PLAN_PARTS_H
#define BANTAM_TESTS_PLAN_PARTS_H

#include "tests/model_kit.h"

/* A model and its work, and what it is planned for. */
typedef struct problem {
    bti_model *model;
    bti_workload w;
    bt_dev_info info;
    const bt_planning *planning;
    int64_t max_length;
} problem;
bti_run_plan *plan_search(const problem *p, const bti_plan_options *o);

void add_plan_budget(TCase *tc);
void add_plan_levels(TCase *tc);
void add_plan_run(TCase *tc);
void add_plan_search(TCase *tc);

#endif
