/* What layers cost at each level, measured on a program of few layers.
 *
 * A stack's layers are alike: what the first, a middle and the last one hold and take stands for
 * all. Bytes live at an op are what the layers below keep plus what the layer at work adds, so that
 * any mixture of levels adds up without being emitted: exact but for aliases and norms between
 * layers of unlike levels. */
#ifndef BANTAM_FIT_PLAN_PROFILE_H
#define BANTAM_FIT_PLAN_PROFILE_H

#include "core/fit/planner.h"

/* Where the program is while no layer is at work: below, between and above the stacks. */
enum { BTI_BELOW, BTI_BETWEEN, BTI_ABOVE, BTI_OUTSIDE };

typedef struct bti_profile {
    int usable;                   /* no tensor is larger than an allocation */
    int64_t *kept;                /* bytes that each layer keeps for backward */
    int64_t *peak;                /* most bytes live while a layer is at work, kept ones below it
                                     not counted */
    double *seconds;              /* of each layer in a mean micro-batch */
    int64_t outside[BTI_OUTSIDE]; /* most bytes live there, kept ones below not counted */
    double outside_seconds;
} bti_profile;

typedef struct bti_prober bti_prober;

typedef struct bti_probe {
    bti_shape caps, mean; /* bytes are counted at the caps, seconds for a mean micro-batch */
    const bti_places *places;
    bti_level level; /* of all layers */
    int32_t segment;
    int64_t slice_rows, logit_rows;
    uint32_t compact;
    int accumulates; /* gradients are added to */
    int edges;       /* level NONE, the layer below each on another one, which drops its norm */
} bti_probe;

bt_status bti_prober_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                         const bti_rates *rates, const bti_layout_options *layout,
                         bti_prober **out);
void bti_prober_free(bti_prober *p);
/* Fills a profile, whose arrays are the prober's: valid until it is freed. */
bt_status bti_prober_run(bti_prober *p, const bti_probe *probe, bti_profile *out);

#endif
