/* BLEU as sacreBLEU computes and signs it. */
#ifndef BANTAM_DECODE_SCORE_H
#define BANTAM_DECODE_SCORE_H

#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"

typedef struct bti_bleu {
    double score, precisions[4], brevity_penalty;
    int64_t hypothesis_length, reference_length, matches[4], totals[4];
} bti_bleu;

/* Corpus BLEU, 13a tokenisation, case kept, exponential smoothing (Post 2018). Lines are UTF-8. */
bt_status bti_bleu_corpus(const char *const *hypotheses, const char *const *references,
                          size_t count, bti_bleu *out);
/* "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:..." */
const char *bti_bleu_signature(void);

#endif
