/* Beam search on a device: sentences as ids in, hypotheses out.
 *
 * Planned like everything else: caps for batches bounded by sentences, source rows and cache rows,
 * a program at the caps, bytes of the dynamic and staging regions. It runs in an arena that
 * somebody else took: a translator's own, or the one of a training run, whose dynamic region it
 * shares. */
#ifndef BANTAM_DECODE_DECODER_H
#define BANTAM_DECODE_DECODER_H

#include "core/decode/beam.h"
#include "core/engine/engine.h"
#include "core/model/decode.h"

typedef struct bti_decoder_config {
    int32_t beam;
    int32_t nbest; /* hypotheses wanted of a sentence, at most the beam; 0: the best one */
    double length_penalty;
    int64_t max_length; /* symbols of a translation; 0: twice the source's and 10 more */
    int64_t length;     /* most ids of a sentence, either side, end symbol included */
    int32_t start, end;
    int32_t forbid[BT_TOPK_FORBID];    /* symbols never given; -1: none */
    const volatile sig_atomic_t *stop; /* non-zero: BT_ESTOPPED; may be NULL */
} bti_decoder_config;

/* Sets start and end, and forbids what is no text: the start, pad and unknown symbols (-1: none),
 * save where they are the end symbol. */
void bti_decoder_specials(bti_decoder_config *cfg, int32_t start, int32_t end, int32_t unk,
                          int32_t pad);

typedef struct bti_decoder bti_decoder;

/* Plans for batches of `batch` sentences. Parameters are placed already; `staging` is where the
 * decoder's tables begin in the STAGING region. */
bt_status bti_decoder_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                          const bti_places *places, uint64_t staging, const bti_decoder_config *cfg,
                          int64_t batch, bti_decoder **out);
void bti_decoder_free(bti_decoder *d);
/* Bytes of the dynamic and staging regions, and of host memory taken by bind. */
uint64_t bti_decoder_dynamic_bytes(const bti_decoder *d);
uint64_t bti_decoder_staging_bytes(const bti_decoder *d);
uint64_t bti_decoder_host_bytes(const bti_decoder *d);

/* Takes host memory; afterwards runs allocate nothing. The arena stays its owner's. */
bt_status bti_decoder_bind(bti_decoder *d, const bti_arena *arena);

typedef struct bti_source {
    const int32_t *ids;        /* the end symbol last */
    int64_t count;             /* 1 .. cfg->length; 0 where the encoder reads no text */
    const bti_sentence *input; /* for a model that reads more than text: the whole example */
} bti_source;

/* How many sentences from `from` on one batch takes, at least one. */
int64_t bti_decoder_batch(const bti_decoder *d, const bti_source *const *source, int64_t from,
                          int64_t n);
/* Translates one batch, as bti_decoder_batch gives it; best[i] (best may be NULL) is valid until
 * the next run. */
bt_status bti_decoder_run(bti_decoder *d, const bti_source *const *source, int64_t n,
                          bti_hypothesis *best);
/* The hypotheses of sentence i of that batch, at most nbest: those that ended, best first, then
 * those that the length limit cut. Valid until the next run or call. */
bt_status bti_decoder_results(bti_decoder *d, int64_t i, const bti_hypothesis **out,
                              int32_t *count);

#endif
