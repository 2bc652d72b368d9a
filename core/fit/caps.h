/* What updates look like, and the caps of a micro-batch: how many sentences and rows it takes at
 * most, so that an update is cut into as many parts as are wanted. */
#ifndef BANTAM_FIT_CAPS_H
#define BANTAM_FIT_CAPS_H

#include "core/model/model.h"

/* Updates that a workload remembers. */
#define BTI_SAMPLED 18

/* What updates look like; [0] rows of the encoder, [1] of the decoder, or examples. */
typedef struct bti_workload {
    int64_t max_rows[2];     /* most rows of any update */
    int64_t max_sentences;   /* most sentences of any update */
    int64_t max_distinct[2]; /* most distinct ids of any update; 0: not counted, rows bound them */
    int64_t longest[2];      /* most rows of any sentence: the least that a cap can be */
    double mean_rows[2], mean_sentences; /* of an update */
    double mean_pairs[BTI_PAIRS];        /* attention pairs a sentence, as bti_shape */
    /* With segments, of a sentence: most source tokens and rows of each feature, and their means.
     */
    int64_t tokens, feature[BTI_MAX_FEATURES];
    double mean_tokens, mean_feature[BTI_MAX_FEATURES];
    int alike; /* there is one update, and every sentence of it has the rows of `longest` */
    /* Else some updates as they are, the largest among them: row counts of their sentences, one
     * update after the other. NULL: not known. Owned, see bti_workload_clear. */
    int64_t (*sample)[2];
    int64_t sample_end[BTI_SAMPLED]; /* where each ends in `sample` */
    int64_t samples;
} bti_workload;

/* Micro-batches that the updates that are known are cut into under these caps, at most and on
 * average; 0 when there are none. */
int64_t bti_workload_parts(const bti_workload *w, const bti_shape *caps, double *mean);
void bti_workload_clear(bti_workload *w);
/* Bytes of features in both slots of staging. */
uint64_t bti_feature_bytes(const bti_model *m, const bti_shape *caps);
/* Fills in what caps say of tokens and features, from their rows and sentences. */
void bti_workload_cap_segments(const bti_workload *w, const bti_model *m, bti_shape *caps);

/* How many sentences from `from` on form the next micro-batch: as many as the caps take, at least
 * one. counts[i] points to the two row counts of sentence i. */
int64_t bti_split_next(const bti_shape *caps, const int64_t (*counts)[2], int64_t from, int64_t n);

#endif
