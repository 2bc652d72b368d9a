/* What can be chosen: every mixture of levels, slices and chunks for a number of micro-batches,
 * with its estimated bytes and seconds. */
#ifndef BANTAM_FIT_PLAN_MIX_H
#define BANTAM_FIT_PLAN_MIX_H

#include "core/fit/plan_profile.h"
#include "core/fit/plan_search.h"

enum { BTI_CHUNKS = 11, BTI_SLICES = 5, BTI_SEGMENTS = 4, BTI_MIXED = BTI_LEVEL_SEGMENTS };

typedef struct bti_candidate {
    bti_choice choice;
    int64_t bytes; /* of the dynamic region */
    double seconds;
} bti_candidate;

/* Profiles for one number of micro-batches; filled when they are asked for. */
typedef struct bti_set {
    int64_t parts;
    bti_shape caps, mean;
    double mean_parts;
    double saved;   /* seconds that the first micro-batch saves by overwriting gradients */
    int64_t others; /* bytes outside the dynamic region */
    int64_t slice[BTI_SLICES], chunk[BTI_CHUNKS];
    int slices, chunks;
    bti_profile at[BTI_MIXED][BTI_SLICES], segments[BTI_SEGMENTS][BTI_SLICES], output[BTI_CHUNKS];
    bti_profile edge[BTI_SLICES]; /* of NONE above a layer of another level */
} bti_set;

typedef struct bti_mixer {
    bti_search *s;
    bti_prober *prober;
    /* Given each candidate of at most `limit` bytes. */
    void (*take)(void *user, const bti_candidate *c);
    void *user;
    int64_t limit;
} bti_mixer;

/* A set without profiles. */
void bti_set_begin(const bti_mixer *x, const bti_run_plan *plan, int64_t parts, bti_set *out);
/* All its profiles. */
bt_status bti_set_fill(bti_mixer *x, bti_set *t);
/* From a few of them: no candidate takes less time, and hardly one fewer bytes. */
bt_status bti_set_bounds(bti_mixer *x, bti_set *t, double *seconds, int64_t *bytes);
/* Gives every candidate to `take`. */
void bti_set_offer(bti_mixer *x, const bti_set *t);
/* Whether options fix levels and layers, and which. */
int bti_fixed_levels(const bti_search *s, bti_choice *out);

#endif
