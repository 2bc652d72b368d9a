/* The training log: one JSON line an update, in OUT/log.jsonl. */
#ifndef BANTAM_TRAIN_LOG_JSON_H
#define BANTAM_TRAIN_LOG_JSON_H

#include "core/base/status.h"

typedef struct bti_log_record {
    int64_t update, epoch;
    double
        loss; /* per target token of the update; NaN (null) when it was skipped for want of one */
    double grad_norm, lr;
    int64_t target_tokens, source_tokens, micro_batches;
    double tokens_per_s;
    uint64_t planned_bytes, peak_bytes;
    double loss_scale;
    int skipped;
} bti_log_record;

typedef struct bti_log_json bti_log_json;

/* Opens or makes the file, which is its run's alone until it is closed or the process ends:
 * BT_EUSAGE while another one has it. Nothing of it is changed yet. */
bt_status bti_log_json_open(const char *path, bti_log_json **out);
/* Cuts off what the run will write again: from the first line of an update above resume_update (0:
 * a new run, all of them), with `again` from the validation of that update too, and a last line
 * without its end. Other lines stay as they are, readable or not. */
bt_status bti_log_json_cut(bti_log_json *log, int64_t resume_update, int again);
/* What was written so far outlasts a power cut. */
bt_status bti_log_json_flush(bti_log_json *log);
void bti_log_json_close(bti_log_json *log);

/* A validation, logged after the line of its update. */
typedef struct bti_log_validation {
    int64_t update;
    double loss, nll, perplexity, bleu, chrf, seconds;
    double accuracy, f1, mse; /* logged where they are numbers */
} bti_log_validation;
bt_status bti_log_json_validation(bti_log_json *log, const bti_log_validation *record);

/* Appends one whole line by one write(2), so that a reader or a kill never meets half a one; when
 * only a part could be written it is taken back and the call is BT_EIO. Allocates nothing. Numbers
 * have 9 digits; NaN and infinity are null. */
bt_status bti_log_json_write(bti_log_json *log, const bti_log_record *record);

#endif
