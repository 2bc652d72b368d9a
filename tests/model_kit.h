/* Small models on any backend for tests: device, plan and engine in one. */
#ifndef BANTAM_TESTS_MODEL_KIT_H
#define BANTAM_TESTS_MODEL_KIT_H

#include <check.h>

#include "core/engine/engine.h"
#include "core/run/precision.h"

/* What was asked of a device since it was opened. One device is watched at a time. */
typedef struct mk_watch {
    uint64_t margin;           /* in: bytes that every allocation gets more than was asked for */
    uint64_t bytes;            /* asked for and not freed */
    int64_t allocs, freed;     /* buffers */
    int64_t host_allocs;       /* calls */
    bt_buf *buffer[64];        /* in order */
    uint64_t buffer_bytes[64]; /* asked for */
} mk_watch;

typedef struct mk_setup {
    const char *backend; /* NULL: kit_backend() */
    bti_model_config model;
    int64_t vocab[2];
    bt_dtype dtype; /* of the parameters */
    bti_precision precision;
    const bti_sentence *sentence; /* the plan bounds updates made of these */
    int64_t sentences;
    bti_plan_options plan;
    const uint32_t *keep; /* kept classes of each layer instead of the plan's; may be NULL */
    bti_engine_settings engine;
    char *freeze[4]; /* patterns, NULL behind the last */
    mk_watch *watch; /* may be NULL */
    int no_init;     /* weights stay zero */
    int apart;       /* the device says that its memory is its own, wherever that is */
    uint64_t heap;   /* and that it gives no more in one allocation; 0: as it is */
} mk_setup;

typedef struct mk_model {
    bt_dev *dev;
    bti_model *model;
    bti_run_plan *plan;
    bti_engine *engine;
} mk_model;

/* Defaults: d 32, 4 heads, ff 64, 2 + 2 layers, post-norm, relu, untied, no dropout; vocabulary 97;
 * fp32; Adam 0.9, 0.98, 1e-9; clip 1; smoothing 0.1; everything searched, no budget. */
mk_setup mk_defaults(void);
/* Deterministic sentences of `n` lengths each side (end symbol 2 last), ids 4 .. vocab-1; the
 * kit's. */
const bti_sentence *mk_sentences(int64_t n, const int64_t *source, const int64_t *target,
                                 int64_t vocab, uint64_t seed);
bti_workload mk_workload(const bti_sentence *s, int64_t n);
/* The same for a model that may read more than text. */
bti_workload mk_workload_of(const bti_model *m, const bti_sentence *s, int64_t n);
mk_model mk_open(const mk_setup *setup);
void mk_close(mk_model *m);
/* Is there a device of kit_backend()? Where an optional one is missing, skips and says why. */
int mk_there(void);
/* Does kit_backend()'s device compute in it? Where not, skips and says so. */
int mk_computes_in(bti_precision p);
/* The device only. */
bt_dev *mk_device(const char *backend, mk_watch *watch);
/* All elements of a state region as doubles, in parameter order, compact gradients at their ids,
 * zero where a frozen parameter has none; malloc. */
double *mk_state(mk_model *m, bti_region region, int64_t *count);
/* Largest |a - b| over the norm of b; NaN counts as infinite. */
double mk_relative(const double *a, const double *b, int64_t n);

#endif
