/* Losses of sentences under a model, without gradients, in an arena that somebody else took:
 * planned like the decoder, beside which it runs in turn. */
#ifndef BANTAM_DECODE_LOSSES_H
#define BANTAM_DECODE_LOSSES_H

#include "core/engine/engine.h"

typedef struct bti_losses_config {
    int32_t start;  /* symbol before the first target symbol */
    int64_t length; /* most ids of a sentence, either side, end symbol included */
    double smoothing;
} bti_losses_config;

typedef struct bti_losses bti_losses;

/* Plans for batches of `batch` sentences of usual length, or one of the longest. Parameters are
 * placed already. Tables begin where STAGING does: whoever shares it must not be at work. */
bt_status bti_losses_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                         const bti_places *places, const bti_losses_config *cfg, int64_t batch,
                         bti_losses **out);
void bti_losses_free(bti_losses *l);
/* Bytes of the dynamic and staging regions, and of host memory taken by bind. */
uint64_t bti_losses_dynamic_bytes(const bti_losses *l);
uint64_t bti_losses_staging_bytes(const bti_losses *l);
uint64_t bti_losses_host_bytes(const bti_losses *l);

/* Takes host memory; afterwards runs allocate nothing. */
bt_status bti_losses_bind(bti_losses *l, const bti_arena *arena);
/* Adds the losses of any number of sentences to *sum, in their order. `outputs` (may be NULL):
 * n x model.outputs of a head without a decoder. */
bt_status bti_losses_run(bti_losses *l, const bti_sentence *sentence, int64_t n, float *outputs,
                         bti_loss_sum *sum);

#endif
