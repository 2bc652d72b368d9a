/* A plan as its handle holds it, and what the files that show it share. */
#ifndef BANTAM_REPORT_PLAN_REPORT_H
#define BANTAM_REPORT_PLAN_REPORT_H

#include "core/session/session.h"

struct bt_plan {
    bti_session *session;
};

/* "6 + 6 layers, d 512, ff 2048, 8 heads, vocabulary 250,002 (3 embedding tables)" */
void bti_describe_model(const bti_session *s, char *out, size_t bytes);
/* Where it would run: "AMD EPYC 7B13", "Tesla K80, not here: planned from a table". */
void bti_describe_device(const bti_session *s, char *out, size_t bytes);
/* What is made again in backward: "nothing", "feed-forward and norms in 6 of 12 layers". */
void bti_describe_recompute(const bti_run_plan *p, int32_t layers, char *out, size_t bytes);
/* Level of one layer, as --json names it. */
const char *bti_recompute_level(const bti_run_plan *p, int32_t layer);

#endif
