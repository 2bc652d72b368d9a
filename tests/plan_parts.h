/* Parts of the plan suite. */
#ifndef BANTAM_TESTS_PLAN_PARTS_H
#define BANTAM_TESTS_PLAN_PARTS_H

#include "tests/model_kit.h"

void add_plan_budget(TCase *tc);
void add_plan_levels(TCase *tc);
void add_plan_run(TCase *tc);
void add_plan_search(TCase *tc);

#endif
