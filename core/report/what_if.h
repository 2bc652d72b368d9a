/* What a changed run would need: the planner asked again with another model, vocabulary, precision,
 * batch, length or budget, on the session's device and text. Nothing is guessed. */
#ifndef BANTAM_REPORT_WHAT_IF_H
#define BANTAM_REPORT_WHAT_IF_H

#include "core/session/session.h"

typedef struct bti_what_if {
    bti_model_config model;
    int64_t vocab[2];
    bti_precision precision;
    bti_recompute recompute;
    bti_moments moments;
    int64_t batch, max_length;
    uint64_t budget;     /* of arena and runtime; 0: no limit */
    int least_only;      /* only `least` is wanted: much quicker */
    int one_micro_batch; /* an update is not split */
    int64_t logit_rows;  /* rows of a chunk of the output layer; 0: searched */
} bti_what_if;

typedef struct bti_needs {
    int fits;
    uint64_t total, least; /* bytes of arena and runtime; UINT64_MAX: not on this device at all */
    double seconds;        /* an update */
    int64_t micro_batches, logit_rows;
    int32_t recomputed; /* layers of which anything is made again */
    bti_level level;    /* the deepest */
} bti_needs;

/* Chunks of the output layer of so many rows are as small as is still fast: whether a batch fits is
 * asked with them, which is quicker than a search. */
enum { BTI_SMALL_CHUNK = 32 };

/* The session's own run and budget. */
bti_what_if bti_what_if_as_is(const bti_session *s);
bt_status bti_what_if_ask(const bti_session *s, const bti_what_if *w, bti_needs *out);

#endif
