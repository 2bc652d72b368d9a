/* The run file: YAML in, one struct out. run_keys.inc is the one list of keys: it feeds the reader,
 * --set, the effective file, the defaults and the manual. A wrong key or value is BT_EINPUT (in a
 * file, with file and line) or BT_EUSAGE (--set), and says what would be right. */
#ifndef BANTAM_RUN_RUN_FILE_H
#define BANTAM_RUN_RUN_FILE_H

#include "core/base/text.h"
#include "core/data/batcher.h"
#include "core/model/moments.h"

typedef enum bti_schedule_kind {
    BTI_SCHEDULE_INVERSE_SQRT,
    BTI_SCHEDULE_NOAM,
    BTI_SCHEDULE_LINEAR,
    BTI_SCHEDULE_COSINE,
    BTI_SCHEDULE_CONSTANT
} bti_schedule_kind;
typedef enum bti_optimizer_kind { BTI_OPTIMIZER_ADAM, BTI_OPTIMIZER_ADAMW } bti_optimizer_kind;
typedef enum bti_metric {
    BTI_METRIC_BLEU,
    BTI_METRIC_CHRF,
    BTI_METRIC_LOSS,
    BTI_METRIC_ACCURACY,
    BTI_METRIC_F1
} bti_metric;
typedef enum bti_precision {
    BTI_PRECISION_FP32,
    BTI_PRECISION_TF32,
    BTI_PRECISION_FP16,
    BTI_PRECISION_BF16,
    BTI_PRECISION_COUNT
} bti_precision;
/* recompute: auto lets the planner choose; the others are the levels that a layer may have by
 * itself, RECOMPUTE_NONE + level (core/model/levels.h). */
typedef enum bti_recompute {
    BTI_RECOMPUTE_AUTO,
    BTI_RECOMPUTE_NONE,
    BTI_RECOMPUTE_CHEAP,
    BTI_RECOMPUTE_FF,
    BTI_RECOMPUTE_BLOCKS,
    BTI_RECOMPUTE_LAYERS
} bti_recompute;

#define BTI_MEMORY_AUTO 0

typedef struct bti_names {
    char **name;
    size_t count;
} bti_names;

/* A dense input, see core/data/features.h. */
typedef struct bti_feature_input {
    char *name;
    bti_files train, valid;
    int64_t width, max_rows; /* 0: as the files say, any */
    int norm;
} bti_feature_input;

typedef struct bti_feature_inputs {
    bti_feature_input *item;
    size_t count;
} bti_feature_inputs;

typedef struct bti_run_config {
    char *path;   /* the run file; relative paths below are made relative to its folder on load */
    char *output; /* folder */
    struct {
        bti_files train_source, train_target, valid_source, valid_target; /* a side may lack */
        bti_feature_inputs features;
        bti_files train_labels, valid_labels;
        int64_t max_length;
        bti_overlong overlong;
        int allow_unknown;
        char *cache; /* folder of the token cache */
    } data;
    bti_tokenizer_config tokenizer[2]; /* source, target; the same when shared */
    int shared;
    bti_model_config model;
    char *initial_model; /* file or folder of weights to begin with; may be NULL */
    int initial_partial; /* it may lack some of the parameters or have others */
    bti_names freeze;    /* patterns of parameters that keep their values */
    struct {
        int64_t batch;
        bti_batch_unit batch_unit;
        int64_t updates, epochs; /* 0: no limit; the first one reached ends the run */
        double label_smoothing, clip_norm;
        uint64_t seed;
        bti_precision precision;
        double loss_scale, loss_scale_max;
        int64_t loss_scale_growth;
    } training;
    struct {
        bti_optimizer_kind kind;
        double lr, beta1, beta2, eps, weight_decay;
    } optimizer;
    struct {
        bti_schedule_kind kind;
        int64_t warmup;
    } schedule;
    struct {
        int64_t every, beam, patience;
        bti_metric metric;
    } validation;
    struct {
        int64_t every, keep;
    } checkpoint;
    struct {
        uint64_t limit; /* bytes; BTI_MEMORY_AUTO */
        bti_moments optimizer_state;
        bti_recompute recompute;
    } memory;
} bti_run_config;

/* Reads `path`, then applies "key.path=value" overrides in order; checks ranges and what must fit
 * together (heads divide d_model, warm-up not negative ...). */
bt_status bti_run_config_load(const char *path, const char *const *sets, size_t set_count,
                              bti_run_config **out);
/* The same from text already in memory (a checkpoint's copy); `name` stands for the file. */
bt_status bti_run_config_parse(const char *name, const char *text, const char *const *sets,
                               size_t set_count, bti_run_config **out);
void bti_run_config_free(bti_run_config *cfg);
/* The effective run file, all keys, absolute paths; new string. Reading it gives the same config.
 */
bt_status bti_run_config_print(const bti_run_config *cfg, char **text);
/* Calls `each` for every key whose values differ, with both as the printed file has them. */
typedef void (*bti_run_differ_fn)(void *user, const char *key, const char *was, const char *is);
bt_status bti_run_config_compare(const bti_run_config *was, const bti_run_config *is,
                                 bti_run_differ_fn each, void *user);
/* "11GiB", "8000MB", "512MiB", plain bytes; "auto" is BTI_MEMORY_AUTO. 0, negative or unreadable is
 * BT_EUSAGE. */
bt_status bti_parse_bytes(const char *text, uint64_t *bytes);

#endif
