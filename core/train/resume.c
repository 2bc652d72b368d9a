#include "core/train/resume.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text.h"

/* ---- the run file ------------------------------------------------------------------------------
 */

/* Keys whose change would make another run of it, and keys that say nothing of what is learned;
 * training data and tokenisers have checksums. What is left may be changed, and is told. */
static const char *const fixed[] = {"model.d_model",
                                    "model.ff",
                                    "model.heads",
                                    "model.encoder_layers",
                                    "model.decoder_layers",
                                    "model.norm",
                                    "model.activation",
                                    "model.positions",
                                    "model.tie_embeddings",
                                    "model.final_norm",
                                    "model.norm_eps",
                                    "model.fusion",
                                    "model.learned_rows",
                                    "model.head",
                                    "model.pooling",
                                    "model.outputs",
                                    "training.batch",
                                    "training.batch_unit",
                                    "training.seed",
                                    "optimizer.kind",
                                    "freeze",
                                    NULL};
static const char *const outside[] = {
    "output",           "data.",           "tokenizer.", "memory.", "checkpoint.", "validation.",
    "training.updates", "training.epochs", "initial_",   NULL};

static int is_fixed(const bti_run_config *c, const char *key) {
    /* the rows of a table, when positions are learned */
    if (strcmp(key, "data.max_length") == 0) return c->model.positions == BTI_POSITIONS_LEARNED;
    for (const char *const *k = fixed; *k != NULL; k++)
        if (strcmp(*k, key) == 0) return 1;
    return 0;
}

/* The rate of these schedules falls until the last update. */
static int ends_rate(const bti_run_config *c, const char *key) {
    bti_schedule_kind kind = c->schedule.kind;
    return (kind == BTI_SCHEDULE_LINEAR || kind == BTI_SCHEDULE_COSINE) &&
           strcmp(key, "training.updates") == 0;
}

static int is_outside(const bti_run_config *c, const char *key) {
    if (ends_rate(c, key)) return 0;
    for (const char *const *k = outside; *k != NULL; k++)
        if (strncmp(*k, key, strlen(*k)) == 0) return 1;
    return 0;
}

/* Of two run files: what forbids to go on, as text. */
typedef struct difference {
    const bti_run_config *cfg;
    int fixed_only; /* else the other changes are told */
    bti_resume_changes changes;
    char text[512];
} difference;

/* Is a validation's score another with another value of it? */
static int moves_score(const bti_run_config *c, const char *key) {
    bti_metric metric = c->validation.metric;
    if (strcmp(key, "validation.metric") == 0) return 1;
    if (strcmp(key, "training.label_smoothing") == 0) return metric == BTI_METRIC_LOSS;
    return strcmp(key, "validation.beam") == 0 &&
           (metric == BTI_METRIC_BLEU || metric == BTI_METRIC_CHRF);
}

static void note_difference(void *user, const char *key, const char *was, const char *is) {
    difference *d = user;
    int is_same_run = !is_fixed(d->cfg, key);
    if (moves_score(d->cfg, key)) d->changes.rescored = key;
    if (is_same_run && is_outside(d->cfg, key)) return;
    if (is_same_run) {
        d->changes.rescaled |= strcmp(key, "training.precision") == 0;
        d->changes.rescaled |= strcmp(key, "training.loss_scale") == 0;
        if (!d->fixed_only) bti_log(BT_LOG_WARN, "%s is %s from here on; it was %s", key, is, was);
        return;
    }
    size_t used = strlen(d->text);
    snprintf(d->text + used, sizeof d->text - used, "%s%s %s (now %s)", used ? ", " : "", key, was,
             is);
}

static bt_status check_tokenizers(const bti_run_config *cfg, const bti_checkpoint *c,
                                  const bti_checkpoint_info *here) {
    static const char *const side[] = {"source", "target"};
    for (int i = 0; i < 2; i++)
        if (c->info.tokenizer[i] != here->tokenizer[i] || c->info.vocab[i] != here->vocab[i])
            return bti_fail(BT_EUSAGE,
                            "%s cannot be resumed with another %s tokeniser: it had %lld symbols "
                            "(checksum %016" PRIx64 "), %s has %lld (%016" PRIx64 ")",
                            c->path, side[i], (long long)c->info.vocab[i], c->info.tokenizer[i],
                            cfg->tokenizer[i].model, (long long)here->vocab[i], here->tokenizer[i]);
    return BT_OK;
}

/* ---- training data -----------------------------------------------------------------------------
 * As bti_examples_describe gives it: lines of "NAME: DESCRIPTION". */

/* Letters of the name, and of the whole line. */
static size_t name_of(const char *line) { return strcspn(line, ":\n"); }
static size_t line_of(const char *line) { return strcspn(line, "\n"); }
static const char *next_line(const char *line) {
    line += line_of(line);
    return *line ? line + 1 : line;
}

/* The line of this name, NULL: there is none. */
static const char *find(const char *text, const char *name, size_t bytes) {
    for (; *text; text = next_line(text))
        if (name_of(text) == bytes && strncmp(text, name, bytes) == 0) return text;
    return NULL;
}

/* The first file of a part of the data. */
static const char *file_of(const bti_run_config *cfg, const char *name, size_t bytes) {
    static const char feature[] = "feature ";
    const size_t skip = sizeof feature - 1;
    const bti_files *source = &cfg->data.train_source;
    if (strncmp(name, "labels", bytes) == 0) return cfg->data.train_labels.path[0];
    for (size_t i = 0; bytes > skip && i < cfg->data.features.count; i++) {
        const bti_feature_input *f = &cfg->data.features.item[i];
        if (strlen(f->name) == bytes - skip && strncmp(f->name, name + skip, bytes - skip) == 0)
            return f->train.path[0];
    }
    return source->count > 0 ? source->path[0] : cfg->data.train_target.path[0];
}

/* "NAME: DESCRIPTION (now DESCRIPTION, FILE)" for what has changed, "NAME: not there (now ...)"
 * and "... (now gone)" for what is there on one side only. */
static void list_changes(const bti_run_config *cfg, const char *was, const char *is,
                         bti_text *out) {
    for (const char *a = was; *a; a = next_line(a)) {
        size_t n = name_of(a);
        const char *b = find(is, a, n);
        if (b != NULL && line_of(a) == line_of(b) && strncmp(a, b, line_of(a)) == 0) continue;
        bti_text_add(out, "%s%.*s:%.*s (now", out->bytes ? "; " : "", (int)n, a,
                     (int)(line_of(a) - n - 1), a + n + 1);
        if (b != NULL)
            bti_text_add(out, "%.*s, %s)", (int)(line_of(b) - n - 1), b + n + 1,
                         file_of(cfg, b, n));
        else
            bti_text_add(out, " gone)");
    }
    for (const char *b = is; *b; b = next_line(b))
        if (find(was, b, name_of(b)) == NULL)
            bti_text_add(out, "%s%.*s: not there (now%.*s, %s)", out->bytes ? "; " : "",
                         (int)name_of(b), b, (int)(line_of(b) - name_of(b) - 1), b + name_of(b) + 1,
                         file_of(cfg, b, name_of(b)));
}

static bt_status check_data(const bti_run_config *cfg, const bti_checkpoint *c,
                            const bti_checkpoint_info *here) {
    bti_text list = {0};
    char *text;
    if (c->info.corpus == here->corpus) return BT_OK;
    if (c->info.data[0] == 0)
        return bti_fail(BT_EUSAGE,
                        "%s cannot be resumed with other training data: theirs have checksum "
                        "%016" PRIx64 ", those of %s %016" PRIx64,
                        c->path, c->info.corpus, cfg->path, here->corpus);
    list_changes(cfg, c->info.data, here->data, &list);
    BT_TRY(bti_text_take(&list, &text));
    bt_status status =
        bti_fail(BT_EUSAGE, "%s cannot be resumed with other training data: %s", c->path, text);
    bti_free(text);
    return status;
}

/* ---- all ---------------------------------------------------------------------------------------
 */

bt_status bti_resume_check(const bti_run_config *cfg, const bti_checkpoint *c,
                           const bti_checkpoint_info *here, bti_resume_changes *changes) {
    BT_TRY(check_tokenizers(cfg, c, here));
    difference d = {.cfg = cfg, .fixed_only = 1};
    bti_run_config *old;
    BT_TRY(bti_run_config_parse(c->path, c->info.run, NULL, 0, &old));
    bt_status status = bti_run_config_compare(old, cfg, note_difference, &d);
    if (status == BT_OK && d.text[0] != 0)
        status =
            bti_fail(BT_EUSAGE, "%s cannot be resumed as another run: it has %s", c->path, d.text);
    if (status == BT_OK) status = check_data(cfg, c, here);
    d.fixed_only = 0;
    if (status == BT_OK) status = bti_run_config_compare(old, cfg, note_difference, &d);
    bti_run_config_free(old);
    *changes = d.changes;
    if (c->info.held_out != 0 && here->held_out != 0 && c->info.held_out != here->held_out)
        changes->rescored = "the held-out text";
    return status;
}
