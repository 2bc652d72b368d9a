/* Validation in a training run's own memory: losses and translations of the held-out text. */
#ifndef BANTAM_SESSION_VALIDATION_H
#define BANTAM_SESSION_VALIDATION_H

#include "core/decode/decoder.h"
#include "core/decode/metrics.h"
#include "core/engine/examples.h"

/* Does this run validate: it has held-out text and an interval. */
int bti_validates(const bti_run_config *cfg);

/* How translations are made: beam from the run file, length penalty 1. */
bti_decoder_config bti_validation_decoding(const bti_run_config *cfg, const bti_tokenizer *target,
                                           const volatile sig_atomic_t *stop);

typedef struct bti_validation bti_validation;

#define BTI_SAMPLES 3

typedef struct bti_validation_result {
    double loss, nll, perplexity; /* per target token; perplexity = exp(nll) */
    double bleu, chrf;            /* NaN without a decoder */
    bti_metrics metrics;
    double score; /* as validation.metric, larger is better (loss: its negative) */
    double seconds;
    /* A few lines spread over the text; owned by the validation, until its next run. source NULL:
     * there is no text to translate from; all NULL without a decoder. */
    const char *source[BTI_SAMPLES], *reference[BTI_SAMPLES], *translation[BTI_SAMPLES];
} bti_validation_result;

/* Host memory that it takes for n examples beside the decoder's: some thousand take no less than
 * any number of them; text stays in files. */
uint64_t bti_validation_host_bytes(const bti_model_config *m, int64_t n);

/* Takes what it needs; examples, tokeniser (NULL without a decoder) and engine are borrowed. The
 * plan was made for a decoder of `batch` sentences. */
bt_status bti_validation_open(const bti_run_config *cfg, const bti_examples *valid,
                              const bti_tokenizer *target, bti_engine *e, int64_t batch,
                              const volatile sig_atomic_t *stop, bti_validation **out);
void bti_validation_close(bti_validation *v);
/* BT_ESTOPPED when *stop became true. */
bt_status bti_validation_run(bti_validation *v, bti_validation_result *out);

#endif
