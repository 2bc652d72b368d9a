/* How a run fits: caps of a micro-batch, recomputation, rows of chunks and slices, where moments
 * lie. Every byte before anything is taken.
 *
 * The maths of an update never depends on the choice; time does. Of the choices within the budget
 * whose predicted time is within 1.5 % of the least, the one with the fewest micro-batches is
 * taken, then the one with the fewest bytes. What is searched is in plan_mix.h, how in
 * plan_search.c. */
#ifndef BANTAM_FIT_PLANNER_H
#define BANTAM_FIT_PLANNER_H

#include "core/fit/caps.h"
#include "core/model/levels.h"
#include "core/plan/cost.h"
#include "core/run/run_file.h"

/* One of the choices that are searched: how many micro-batches the largest update is cut into, what
 * layers keep, rows of a chunk of the output layer and of a slice of feed-forward blocks. */
typedef struct bti_choice {
    bti_moments moments; /* where they are kept */
    int64_t parts;
    int64_t sentences, rows[2]; /* caps of a choice that is kept; 0: what the parts need */
    bti_level level, rest; /* of the first `layers` layers, over both stacks, and of the others */
    int32_t layers;
    int32_t segment; /* layers of a segment, with level SEGMENTS */
    int64_t logit_rows;
    int64_t slice_rows; /* 0: whole */
} bti_choice;

typedef struct bti_plan_options {
    uint64_t budget;  /* bytes for arena and runtime; 0: no limit */
    uint64_t runtime; /* bytes held outside the arena */
    bti_recompute recompute;
    bti_moments moments;
    const bti_rates *rates; /* measured; NULL: what the device states */
    bti_layout_memo *memo;  /* borrowed, kept from search to search; may be NULL */
    const bti_choice
        *wanted; /* taken as it is where it fits, as from a plan kept; NULL: searched */
    /* Tests and experiments; 0 (rows, chunk) and -1 (layers, compact): searched. With layers forced
     * level (0: LAYERS), segment and slices are as given. */
    int64_t force_rows[2];
    int64_t force_logit_rows;
    int32_t force_recompute_layers;
    bti_level force_level;
    int32_t force_segment;
    int64_t force_slice_rows;
    int force_compact; /* sides as in bti_choices; -1: wherever they may be */
    uint64_t guard;    /* bytes behind every dynamic tensor */
    /* Validation: losses without gradients, and what its decoder needs of the dynamic region, which
     * it shares, and of staging, which it does not. */
    int validation;
    uint64_t decode_dynamic, decode_staging;
} bti_plan_options;

typedef enum bti_byte_kind {
    BTI_BYTES_WEIGHTS,
    BTI_BYTES_GRADIENTS,
    BTI_BYTES_OPTIMIZER,
    BTI_BYTES_ACTIVATIONS,
    BTI_BYTES_LOGITS,
    BTI_BYTES_WORKSPACE,
    BTI_BYTES_STAGING,
    BTI_BYTES_DECODE,
    BTI_BYTES_RUNTIME,
    BTI_BYTES_KINDS
} bti_byte_kind;
extern const char *const bti_byte_kind_name[BTI_BYTES_KINDS];

typedef struct bti_run_plan {
    int fits;
    /* Arena and runtime. minimum: least total of all choices; the total where none was searched. */
    uint64_t budget, total, minimum;
    uint64_t bytes[BTI_BYTES_KINDS]; /* sums to total */
    uint64_t region[BTI_REGION_COUNT];
    uint64_t heap;         /* bytes of a heap for places of parameters; 0: no limit */
    bti_shape caps;        /* of a micro-batch */
    bti_choice choice;     /* what was chosen, and as the model takes it: */
    bti_choices choices;   /* keep: owned */
    int64_t micro_batches; /* of the largest update */
    bti_places places;
    bti_program *step, *update; /* at the caps, laid out */
    bti_program *losses;        /* step without gradients, for validation; else NULL */
    uint64_t decode_staging;    /* where the decoder's tables begin in STAGING */
    bti_layout layout;          /* of step */
    uint64_t largest_bytes;     /* of the tensor that is largest where most is live */
    double seconds;             /* predicted, of a mean update */
    int as_wanted;              /* the choice that was asked for */
} bti_run_plan;

/* Places the model's parameters and searches. A run that cannot fit is not a failure here: `fits`
 * is 0 and the plan is the smallest one. `max_length` bounds positions. BT_EUSAGE: moments cannot
 * be kept as asked for on this device. */
bt_status bti_plan_search(bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                          const bti_workload *w, int64_t max_length,
                          const bti_plan_options *options, bti_run_plan **out);
/* Level of a layer, counted over both stacks. */
bti_level bti_run_plan_level(const bti_run_plan *p, int32_t layer);
void bti_run_plan_free(bti_run_plan *p);
/* BT_EFIT with the least bytes that would do, split by kind, when the plan does not fit. */
bt_status bti_run_plan_check(const bti_run_plan *p);

#endif
