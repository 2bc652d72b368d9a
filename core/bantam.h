/* Bantam: trains Transformers in the memory you have, on the device you have.
 *
 * The only public header. Handles are opaque; every call that can fail returns a bt_status, and
 * bt_last_error() has the text. The library never prints, exits or aborts; texts and JSON that it
 * returns are freed with bt_free. One handle is used by one thread at a time.
 *
 * For all calls:
 * - Out-parameters are for reading after BT_OK only.
 * - bt_free and every *_free take NULL.
 * - `options` may be NULL: all defaults.
 * - What is given need last for the call only, but for what is named beside a call.
 * - Callbacks run on the thread that made the call, but for BT_LOG_STALLED.
 * - Any call may return BT_ENOMEM, BT_EIO or BT_EINTERNAL; one that works on a device, BT_EDEVICE.
 */
#ifndef BANTAM_H
#define BANTAM_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BT_API __attribute__((visibility("default")))
#else
#define BT_API
#endif

#define BT_VERSION "0.1.0"

/* X(name, text) */
#define BT_STATUSES(X) \
    X(BT_OK, "done") \
    X(BT_EUSAGE, "wrong usage") \
    X(BT_EINPUT, "bad input") \
    X(BT_EFIT, "does not fit in memory") \
    X(BT_ENOMEM, "host allocation failed") \
    X(BT_EIO, "input or output failed") \
    X(BT_EDEVICE, "device failed") \
    X(BT_ENUMERIC, "numbers are not finite") \
    X(BT_ESTOPPED, "stopped on request") \
    X(BT_EINTERNAL, "internal error")

typedef enum bt_status {
#define X(e, t) e,
    BT_STATUSES(X)
#undef X
        BT_STATUS_COUNT
} bt_status;

/* Short text of a status ("bad input"). */
BT_API const char *bt_status_text(bt_status status);
/* What failed last in this thread; "" when nothing did. Owned by the library. */
BT_API const char *bt_last_error(void);

/* BT_LOG_STALLED comes from a thread of its own: a device does not answer, and the thread that
 * called it never returns. A program can do no better than to end itself, by _exit. */
typedef enum bt_log_level { BT_LOG_INFO, BT_LOG_WARN, BT_LOG_STALLED } bt_log_level;
typedef void (*bt_log_fn)(void *user, bt_log_level level, const char *text);
/* Where notices and warnings go from now on; NULL (the default) drops them. `user` must last as
 * long. Not thread-safe: set it first. */
BT_API void bt_set_log(bt_log_fn fn, void *user);

/* Frees what a bt_ function returned as text. */
BT_API void bt_free(void *p);

/* ---- Run files: what is learned, from what ----------------------------------------------------
 */

/* A run file with its overrides, checked. Constant once loaded. */
typedef struct bti_run_config bt_run;

/* Reads `path` and applies sets[0 .. set_count-1], "key.path=value" each, in order. BT_EINPUT names
 * file, line, key and what is allowed; a wrong override is BT_EUSAGE. */
BT_API bt_status bt_run_load(const char *path, const char *const *sets, size_t set_count,
                             bt_run **out);
BT_API void bt_run_free(bt_run *run);
/* The effective run file: every key, absolute paths. */
BT_API bt_status bt_run_text(const bt_run *run, char **text);
/* A file that is to be written (NULL: none) must be none that the run reads, the run file and what
 * lists of features name included: else BT_EUSAGE. */
BT_API bt_status bt_run_check_output(const bt_run *run, const char *path);
/* One line for each key that a run file may hold: key, default, what is allowed, meaning. */
BT_API bt_status bt_run_keys(char **text);

/* ---- Devices ------------------------------------------------------------------------------------
 * A device is named "auto", "cpu", "cuda:0", "opencl:1" ...; NULL is "auto". Of a list
 * ("cuda:1,cpu") and of "auto" the first usable one is taken; for a run, the first on which its
 * plan fits. Memory is "11GiB", "8000MB", plain bytes or "auto"; NULL is the run file's
 * memory.limit (translation: "auto").
 */

/* All backends but those for tests, and all devices, usable or not (then with the reason). In JSON
 * what a device does not have or does not tell is null: compute_capability, driver,
 * largest_work_group, and largest_allocation_bytes where there is no limit. */
BT_API bt_status bt_devices_text(char **text);
BT_API bt_status bt_devices_json(char **json);

/* ---- Plan: every byte of a run, before anything is allocated ------------------------------------
 */

/* Zero-initialised: all defaults. */
typedef struct bt_plan_options {
    const char *device; /* one that is here, or known by a table ("k80", see bt_devices_text); of a
                           list ("k80,rtx3090") the first on which the run fits */
    const char *memory;
    /* With either above 0 no text is read: every pair has so many source and target tokens, end
     * symbols included; 0 for a side that features take the place of. Vocabularies are those of
     * the tokenisers' files, or of tokenizer.size. */
    int64_t source_tokens, target_tokens;
} bt_plan_options;

typedef struct bt_plan bt_plan;

/* Plans the run. One that cannot fit is no failure here: the plan tells the least that would do and
 * the cheapest changes, each planned to the end. `run` must outlive the plan. */
BT_API bt_status bt_plan_make(const bt_run *run, const bt_plan_options *options, bt_plan **out);
BT_API void bt_plan_free(bt_plan *plan);
/* 1 or 0. */
BT_API int bt_plan_fits(const bt_plan *plan);
/* A table for people. */
BT_API bt_status bt_plan_text(const bt_plan *plan, char **text);
BT_API bt_status bt_plan_json(const bt_plan *plan, char **json);

/* The memory map, as one file that needs no other: time across, bytes up, a rectangle for each
 * tensor. HTML adds a table of the largest. All or nothing. */
BT_API bt_status bt_plan_svg(const bt_plan *plan, const char *path);
BT_API bt_status bt_plan_html(const bt_plan *plan, const char *path);

/* The largest training.batch whose updates fit in one micro-batch, at most the whole text; 0 when
 * none does. As text or JSON: what it needs, too. */
BT_API bt_status bt_plan_largest_batch(const bt_plan *plan, int64_t *batch);
BT_API bt_status bt_plan_largest_batch_text(const bt_plan *plan, char **text);
BT_API bt_status bt_plan_largest_batch_json(const bt_plan *plan, char **json);

/* Plans over budgets, from the least that fits to what needs no saving: text, JSON, and with `svg`
 * not NULL a curve of seconds an update over bytes in that file. */
BT_API bt_status bt_plan_sweep_text(const bt_plan *plan, const char *svg, char **text);
BT_API bt_status bt_plan_sweep_json(const bt_plan *plan, const char *svg, char **json);

/* ---- Training -----------------------------------------------------------------------------------
 */

typedef enum bt_progress_kind {
    BT_PROGRESS_UPDATE,     /* an update is done and logged */
    BT_PROGRESS_VALIDATION, /* valid_loss and valid_score are new */
    BT_PROGRESS_CHECKPOINT  /* `path` is complete on disk */
} bt_progress_kind;

/* The fields of a log line (also of OUT/log.jsonl), and what a progress display needs beside. Every
 * event has all of them, as they are then: of an update those of the newest. Before the first one
 * of the call loss and grad_norm are NaN, and what else it would tell is 0. Later versions may add
 * fields at the end. */
typedef struct bt_progress {
    bt_progress_kind kind;
    int64_t update, last_update; /* last_update: where the run ends, 0 when not known */
    int64_t epoch;               /* from 1 */
    double loss;                 /* per `unit`; NaN: the update had none */
    double grad_norm, lr;
    int64_t target_tokens, source_tokens, micro_batches; /* of this update */
    double tokens_per_s;                                 /* target tokens, or examples */
    uint64_t planned_bytes, peak_bytes;
    double loss_scale;   /* of the next update */
    int64_t skipped;     /* updates skipped so far in this run */
    double seconds_left; /* estimate; negative when not known */
    double valid_loss;   /* NaN before the first validation */
    double valid_score;  /* as validation.metric; NaN when not computed */
    int valid_is_best;   /* the newest validation is the best one so far */
    const char *path;    /* BT_PROGRESS_CHECKPOINT: the file; else NULL. Valid during the call */
    const char *unit;    /* what target_tokens counts: "target token", or "example" where the model
                            writes no text; for good */
} bt_progress;
typedef void (*bt_progress_fn)(void *user, const bt_progress *progress);

/* Zero-initialised: all defaults. */
typedef struct bt_train_options {
    const char *device, *memory;
    int resume;      /* go on from the newest complete checkpoint; without one, start */
    int64_t updates; /* stop after this many updates of the whole run; 0: as the run file says */
    int threads;     /* of the CPU; 0: automatic */
    const volatile sig_atomic_t
        *stop;               /* non-zero: checkpoint and return BT_ESTOPPED; may be NULL */
    bt_progress_fn progress; /* may be NULL */
    void *user;
} bt_train_options;

/* Trains to the end of the run, or until *stop. Writes the model, log.jsonl, checkpoints and the
 * effective run file into the run's output folder. Before update 1:
 *   BT_EUSAGE    the folder holds checkpoints and `resume` is 0, or its newest is of another run or
 *                of other training data; no such device, no such size of memory
 *   BT_EINPUT    text, tokenisers, features, labels or initial_model are at fault
 *   BT_EFIT      it does not fit: the text tells the least that would do, and what to change
 *   BT_EDEVICE   no device can be used
 *   BT_ESTOPPED  *stop was set
 * Later, when checkpoints that are there stay whole and `resume` goes on from the newest:
 *   BT_ENUMERIC  20 updates in a row had no finite gradient, fp16 overflows at loss scale 1, or a
 *                value to be saved is not finite
 *   BT_EDEVICE   the device failed
 *   BT_ESTOPPED  *stop was set: all that is done is saved */
BT_API bt_status bt_train(const bt_run *run, const bt_train_options *options);

/* ---- Translation --------------------------------------------------------------------------------
 */

/* Not zero-initialised: begin with BT_TRANSLATE_DEFAULTS. */
typedef struct bt_translate_options {
    const char *device, *memory;
    int beam;              /* 1 .. 1024 */
    double length_penalty; /* score = log-probability / length^penalty; 0: none */
    int64_t max_length;    /* symbols of a translation; 0: twice the source's length and 10 more, at
                              most the run's data.max_length */
    int batch;             /* sentences at once, at most; 0: as many as fit, 64 at most */
    int threads;           /* 0: automatic */
    const volatile sig_atomic_t *stop; /* non-zero: return BT_ESTOPPED; may be NULL */
    int nbest;                         /* hypotheses of a line, 1 .. beam; 0: the best one */
    const char *const *features;       /* files of dense features, "NAME=FILE" each */
    size_t feature_count;
} bt_translate_options;
#define BT_TRANSLATE_DEFAULTS \
    { NULL, NULL, 4, 1.0, 0, 0, 0, NULL, 1, NULL, 0 }

typedef struct bt_translator bt_translator;

/* `model`: a checkpoint file, or a run's output folder (its best, else its newest checkpoint).
 * Takes all memory that translation will need. *options->stop must outlive the translator.
 *   BT_EUSAGE   an option is out of its range; a feature that the model lacks, or one without file;
 *               the model writes no text (bt_predict asks it)
 *   BT_EINPUT   no model, a damaged one, or a tokeniser or features that do not belong to it
 *   BT_EFIT     one sentence does not fit
 *   BT_EDEVICE  no device can be used */
BT_API bt_status bt_translator_open(const char *model, const bt_translate_options *options,
                                    bt_translator **out);
BT_API void bt_translator_free(bt_translator *translator);

/* How many examples the feature files hold; 0: the model reads no features. The n-th line of all
 * calls of bt_translate goes with example n. */
BT_API size_t bt_translator_examples(const bt_translator *translator);
/* 1 or 0. A model that reads no text writes one for each example: give as many lines, whatever is
 * in them. */
BT_API int bt_translator_reads_text(const bt_translator *translator);

/* Takes one translation, without line end; `text` is valid during the call. Anything but BT_OK ends
 * bt_translate, which returns it. */
typedef bt_status (*bt_sink_fn)(void *user, size_t index, const char *text, double score);

/* Translates `count` lines (UTF-8, no line ends; what is not UTF-8 is read as U+FFFD with a
 * warning) and hands them to `sink` in input order, each as soon as it and all before it are done.
 * A blank line gives an empty one. With nbest > 1 the hypotheses of a line come one after the other
 * with the same index: those that ended, best first, then those that the length limit cut; there
 * may be fewer than nbest, never none. The first is what nbest 1 gives. What `sink` was given
 * before a failure stands:
 *   BT_EINPUT    more lines than examples, or rows of features that do not go with a line's tokens
 *   BT_ENUMERIC  a score is not a number
 *   BT_ESTOPPED  *stop was set */
BT_API bt_status bt_translate(bt_translator *translator, const char *const *lines, size_t count,
                              bt_sink_fn sink, void *user);

/* ---- Scores -------------------------------------------------------------------------------------
 */

/* Zero-initialised: all defaults. */
typedef struct bt_score_options {
    const char *tokenize; /* for BLEU: "13a" (the default), "none", "intl", "char" or "zh" */
    int lowercase;
    int chrf;       /* chrF as well */
    int word_order; /* of chrF: 0, or 2 for chrF++ */
} bt_score_options;

typedef struct bt_scores {
    double bleu, precisions[4]; /* 0 .. 100 */
    double brevity_penalty;
    int64_t hypothesis_length, reference_length; /* tokens */
    char bleu_signature[96];                     /* sacreBLEU's */
    double chrf;                                 /* 0 .. 100; NaN when not asked for */
    int chrf_word_order;
    char chrf_signature[96]; /* empty when not asked for */
} bt_scores;

/* BLEU, and chrF if asked for, of a file of hypotheses against one of references, line by line
 * (plain text or .gz, "-" is standard input; a CR before the line end is dropped, a last line
 * without end counts). Different line counts are BT_EINPUT with both counts; nothing is cut. A
 * file of any size takes the memory of its longest line. */
BT_API bt_status bt_score_files(const char *hypotheses, const char *references,
                                const bt_score_options *options, bt_scores *out);
/* The same of `count` pairs of lines in memory. */
BT_API bt_status bt_score_lines(const char *const *hypotheses, const char *const *references,
                                size_t count, const bt_score_options *options, bt_scores *out);
/* One line for each score, as sacreBLEU prints it; the last one without line end. */
BT_API bt_status bt_scores_text(const bt_scores *scores, char **text);
BT_API bt_status bt_scores_json(const bt_scores *scores, char **json);

/* ---- Prediction ---------------------------------------------------------------------------------
 */

/* Zero-initialised: all defaults. */
typedef struct bt_predict_options {
    const char *device, *memory;
    int threads, batch;          /* 0: automatic */
    const char *const *features; /* files of dense features, "NAME=FILE" each */
    size_t feature_count;
    const char *source; /* text, a line an example, of a model that reads any; else NULL */
    const char *labels; /* what would be right, as data.labels; NULL: not known */
    const volatile sig_atomic_t *stop; /* non-zero: return BT_ESTOPPED; may be NULL */
    int json;                          /* each line is a JSON object */
} bt_predict_options;

/* NaN: without labels, or the head has no such number. */
typedef struct bt_prediction_scores {
    int64_t examples;
    double loss, accuracy, f1, mse;
} bt_prediction_scores;

/* Takes one line, without line end; it is valid during the call. Anything but BT_OK ends the call
 * that made it, which returns it. */
typedef bt_status (*bt_line_fn)(void *user, const char *line);

/* One line for each example, of a model whose head has no decoder: its class, a tab and the
 * probability; label and probability of each label above 1/2, all between tabs; or its numbers
 * between blanks. With json it is {"example", "class", "probability"}, {"example", "labels":
 * [{"label", "probability"}]} or {"example", "values"}; examples count from 0. With labels `scores`
 * are the same numbers as those of validation. `sink` and `scores` may be NULL: `bantam evaluate`
 * wants scores alone. There must be as many examples of each feature, lines and labels: else
 * BT_EINPUT with both counts, before the first line (of text from standard input, "-", behind the
 * last one; with labels it is refused). Else it fails as bt_translator_open and bt_translate do; a
 * model that writes text is BT_EUSAGE. */
BT_API bt_status bt_predict(const char *model, const bt_predict_options *options, bt_line_fn sink,
                            void *user, bt_prediction_scores *scores);
BT_API bt_status bt_prediction_scores_text(const bt_prediction_scores *scores, char **text);
BT_API bt_status bt_prediction_scores_json(const bt_prediction_scores *scores, char **json);

/* ---- Vocabularies -------------------------------------------------------------------------------
 */

/* Zero-initialised: what is not set has its default. */
typedef struct bt_vocab_config {
    const char *kind;       /* "sentencepiece", "xlmr", "words" or "spacy" */
    const char *model;      /* the tokeniser's file */
    const char *vocabulary; /* spacy: its word list; NULL: MODEL.words, or none where that is not
                               there: all words are unknown then */
    int64_t size;           /* to train: pieces, or words at most */
    int64_t min_count;      /* to train, word lists: rarer words are left out; 0: 1 */
} bt_vocab_config;

/* Trains a tokeniser (spacy: the word list of one) on the lines of `files` and writes its file. */
BT_API bt_status bt_vocab_train(const bt_vocab_config *config, const char *const *files,
                                size_t count);

typedef struct bt_vocab bt_vocab;

BT_API bt_status bt_vocab_open(const bt_vocab_config *config, bt_vocab **out);
BT_API void bt_vocab_free(bt_vocab *vocab);
/* Kind, size, special symbols, checksum, and the first `pieces` pieces. */
BT_API bt_status bt_vocab_text(const bt_vocab *vocab, int64_t pieces, char **text);
BT_API bt_status bt_vocab_json(const bt_vocab *vocab, int64_t pieces, char **json);

/* One line for each line of `files` (plain or .gz, "-" is standard input; text that is not UTF-8 is
 * BT_EINPUT): its ids, or with `json` {"tokens": [...], "ids": [...]}. No special symbol is added.
 */
BT_API bt_status bt_vocab_encode(const bt_vocab *vocab, const char *const *files, size_t count,
                                 int json, bt_line_fn fn, void *user);
/* The text of each line of ids, special symbols left out. */
BT_API bt_status bt_vocab_decode(const bt_vocab *vocab, const char *const *files, size_t count,
                                 bt_line_fn fn, void *user);

/* ---- The text of a run --------------------------------------------------------------------------
 */

/* What the run's text and tokenisers make of each other: pairs, lengths, what data.max_length cuts,
 * the share of unknown tokens in each file, the longest pairs, pairs of the training text that are
 * in the validation text too, empty pairs. Trains tokenisers as bt_train would; reads the text
 * once, in memory that does not depend on the training text's size. */
BT_API bt_status bt_data_check_text(const bt_run *run, char **text);
BT_API bt_status bt_data_check_json(const bt_run *run, char **json);

/* ---- Evaluation ---------------------------------------------------------------------------------
 */

typedef struct bt_evaluation {
    int64_t lines;         /* pairs of lines, those with an empty side too */
    int64_t target_tokens; /* that the losses are of, end symbols included */
    double loss, nll;      /* per target token: as trained (with label smoothing), and plain */
    double perplexity;     /* exp(nll) */
    bt_scores scores;      /* BLEU and chrF of the translations of all lines */
} bt_evaluation;

/* Losses of the references and scores of the translations of a file, line by line (plain or .gz),
 * by a model with a decoder; others have bt_predict. `source` is NULL where the model reads
 * features alone. Bad text and different counts of lines and examples are BT_EINPUT, as in
 * training. */
BT_API bt_status bt_evaluate(const char *model, const char *source, const char *reference,
                             const bt_translate_options *options, bt_evaluation *out);
BT_API bt_status bt_evaluation_text(const bt_evaluation *evaluation, char **text);
BT_API bt_status bt_evaluation_json(const bt_evaluation *evaluation, char **json);

#ifdef __cplusplus
}
#endif
#endif
