/* Shared by planner.c, which counts one choice, and plan_search.c, which picks one. */
#ifndef BANTAM_FIT_PLAN_SEARCH_H
#define BANTAM_FIT_PLAN_SEARCH_H

#include "core/fit/planner.h"

typedef struct bti_search {
    bti_model *m;
    const bti_workload *w;
    const bti_plan_options *opt;
    const bt_planning *planning;
    const bt_dev_info *info;
    bti_places places;
    bti_program *step, *mean, *update, *losses;
    bti_moments moments; /* never AUTO */
    uint32_t *keep, compact;
    uint64_t update_bytes;
    double update_seconds;
    bti_rates rates;
} bti_search;

/* Predicted times within it are alike; data sheets and rates are no better. */
#define BTI_PLAN_NEARLY 1.015

/* Caps for `parts` micro-batches of the largest update, as the options may force them. */
bti_shape bti_plan_caps(const bti_search *s, int64_t parts);
/* Those of a choice, which may come with its own: from a run that saw smaller updates they may cut
 * into more parts than it did, and grow then; beyond the largest update they are of no use. */
bti_shape bti_choice_caps(const bti_search *s, const bti_choice *c);
/* A mean micro-batch under these caps; gives how many of them make a mean update. */
double bti_plan_mean(const bti_search *s, const bti_shape *caps, bti_shape *out);
/* Layout options of the search's programs. */
bti_layout_options bti_plan_layout(const bti_search *s, const bti_run_plan *plan);
/* Bytes of all that does not depend on the choice but for these caps. */
uint64_t bti_plan_others(bti_search *s, const bti_run_plan *plan, const bti_shape *caps);
/* Emits, lays out, counts and predicts a choice. BT_EFIT when a tensor is larger than a heap. */
bt_status bti_plan_count(bti_search *s, const bti_choice *c, bti_run_plan *plan);
/* Puts the best choice of all into plan, counted: the fastest that fits the budget, or the smallest
 * one; sets minimum. */
bt_status bti_plan_pick(bti_search *s, bti_run_plan *plan);

#endif
