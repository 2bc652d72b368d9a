/* What to do about a run that does not fit: what is to blame, and the cheapest changes, each
 * planned to the end. */
#ifndef BANTAM_REPORT_ADVICE_H
#define BANTAM_REPORT_ADVICE_H

#include "core/report/what_if.h"

#define BTI_MOST_ADVICE 11

typedef struct bti_advice {
    char change[96]; /* "model.tie_embeddings: target" */
    char cost[128];  /* what it does to the run; "" when nothing but time */
    uint64_t frees;  /* of the least bytes; UINT64_MAX where a single allocation was too small */
    uint64_t needs;  /* least bytes with it alone */
    int fits;        /* alone */
} bti_advice;

typedef struct bti_advice_list {
    bti_advice item[BTI_MOST_ADVICE]; /* cheapest first: what costs the model least */
    int count;
    int enough;         /* so many, from the first on, fit together; 0: not even all of them */
    uint64_t together;  /* least bytes with those `enough`, or with all */
    int batch_does_not; /* a smaller batch frees nothing worth having */
    uint64_t least;     /* of the run as it is */
} bti_advice_list;

/* Plans the run with each change that applies to it, and lists those that free a worthwhile share
 * of the least bytes or make it fit alone. For a run that does not fit; takes a dozen searches
 * for the least. */
bt_status bti_advise(const bti_session *s, bti_advice_list *out);
/* One item as a sentence: "model.tie_embeddings: target frees 1.91 GiB (...)"; new string. */
char *bti_advice_text(const bti_advice *a);

typedef enum bti_blame_kind {
    BTI_BLAME_STATE,
    BTI_BLAME_GRADIENT, /* the same where the moments are not on the device */
    BTI_BLAME_RUNTIME,
    BTI_BLAME_TENSOR,
    BTI_BLAME_EXAMPLE /* the same, of an example with features */
} bti_blame_kind;
typedef struct bti_blame {
    const char *name; /* borrowed from the session */
    uint64_t bytes;
    int64_t rows, cols; /* 0 of the runtime */
    bti_blame_kind kind;
} bti_blame;
/* What needs most in the session's plan, with its bytes: a parameter with its gradient and moments,
 * what is held outside the arena, or, where more than that is live with it, the largest tensor of
 * the longest pair or example. */
bti_blame bti_blame_of(const bti_session *s);
/* "generator.weight, 250002 x 512: 1.91 GiB with its gradient and moments" */
void bti_blame_text(const bti_blame *b, char *out, size_t bytes);
/* Bytes of a parameter on the device, with its gradient and moments. */
uint64_t bti_param_state(const bti_params *t, int32_t i, bti_moments moments);

/* BT_OK, or why the run cannot begin on the session's device: the least bytes by kind, what is
 * free and who holds the rest, the line and tensor to blame, the cheapest changes. One line. */
bt_status bti_session_check(const bti_session *s);

#endif
