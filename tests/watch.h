/* Updates under watch: after each op every byte of the device is compared with what it was, and
 * only what the op writes may differ; what has died is filled with NaN. */
#ifndef BANTAM_TESTS_WATCH_H
#define BANTAM_TESTS_WATCH_H

#include "tests/model_kit.h"

typedef struct wt_result {
    double loss[16], norm[16];
    double *gradients, *weights, *moments[2]; /* after the last update; malloc */
    int64_t count, ops, poisoned, in_place;
    int64_t micro_batches;
} wt_result;

/* `updates` updates over all sentences of the setup. With `watched`: guards, poison, comparison and
 * a margin past each allocation. */
wt_result wt_run(const mk_setup *setup, int updates, int watched);
void wt_free(wt_result *r);
/* Bit-equal losses, norms, gradients, weights and moments; the last three only. */
void wt_same(const wt_result *a, const wt_result *b, int updates);
void wt_same_state(const wt_result *a, const wt_result *b);
/* |a - b| <= tol |b|, false for NaN; the same of the first loss and norm, and of the norm of the
 * gradients' difference. */
int wt_near(double a, double b, double tol);
void wt_agree(const wt_result *a, const wt_result *b, double tol);

#endif
