/* bt_predict: what a model without a decoder says of each example, in blocks, and how right it is
 * where labels are known. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/corpus.h"
#include "core/decode/metrics.h"
#include "core/decode/translator.h"
#include "core/engine/examples.h"
#include "core/model/head.h"

#define BLOCK 1024

typedef struct prediction {
    bt_translator *model;
    const bt_predict_options *options;
    bti_reader *text; /* NULL: the model reads none */
    bti_labels *labels;
    char **name; /* of classes and labels; NULL: the outputs are numbers */
    size_t names;
    int64_t done;      /* examples */
    bti_amends amends; /* of lines of the text */
    bti_loss_sum sum;
    bti_sentence sentence[BLOCK];
    bti_ids ids[BLOCK];
    int32_t rows[BLOCK][BTI_MAX_FEATURES];
    float *outputs;   /* of the examples of a block */
    bti_tally *tally; /* NULL: without labels */
} prediction;

static const int32_t no_class = 0;

/* ---- labels ------------------------------------------------------------------------------------
 */

static bt_status add_name(prediction *p, const char *name) {
    p->name[p->names] = bti_strdup(name);
    return p->name[p->names++] == NULL ? BT_ENOMEM : BT_OK;
}

static bt_status read_names(prediction *p, const char *file) {
    int64_t outputs = p->model->shape.outputs, lines = 0;
    bti_reader *r;
    const char *line;
    size_t bytes;
    BT_TRY(bti_reader_open(file, &r));
    bt_status status;
    while ((status = bti_reader_next(r, &line, &bytes)) == BT_OK && line != NULL)
        if (lines++ < outputs && (status = add_name(p, line)) != BT_OK) break;
    bti_reader_close(r);
    if (status == BT_OK && lines != outputs)
        status = bti_fail(BT_EINPUT,
                          "%s names %lld labels, the model beside it has %lld: it is another run's",
                          file, (long long)lines, (long long)outputs);
    return status;
}

/* Names of classes and labels in order of their numbers: those in the file beside the model, one a
 * line; without that file the numbers themselves. */
static bt_status open_names(prediction *p, const char *path) {
    const bti_model_config *m = &p->model->shape;
    char number[32];
    if (m->head == BTI_HEAD_REGRESSION) return BT_OK;
    p->name = bti_alloc((size_t)m->outputs, sizeof *p->name);
    char *folder = bti_dir_exists(path) ? bti_strdup(path) : bti_path_dir(path);
    char *file = folder ? bti_path_join(folder, "labels.txt") : NULL;
    bt_status status = p->name == NULL || file == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && bti_file_exists(file)) {
        status = read_names(p, file);
    } else {
        for (int64_t k = 0; k < m->outputs && status == BT_OK; k++) {
            snprintf(number, sizeof number, "%lld", (long long)k);
            status = add_name(p, number);
        }
    }
    bti_free(file);
    bti_free(folder);
    return status;
}

static bt_status open_labels(prediction *p) {
    const bti_model_config *m = &p->model->shape;
    int numbers = m->head == BTI_HEAD_REGRESSION;
    bti_labels_spec spec = {.files = &p->options->labels,
                            .file_count = 1,
                            .kind = bti_label_kind_of(m->head),
                            .classes = (const char *const *)p->name,
                            .class_count = (int32_t)p->names,
                            .width = numbers ? m->outputs : 0};
    return p->options->labels ? bti_labels_open(&spec, &p->labels) : BT_OK;
}

/* ---- examples ----------------------------------------------------------------------------------
 */

/* The next line's ids: the end symbol alone for a blank one. *there: there was a line. */
static bt_status read_text(prediction *p, bti_ids *ids, int *there) {
    const char *line;
    size_t bytes;
    BT_TRY(bti_reader_next(p->text, &line, &bytes));
    *there = line != NULL;
    if (!*there) return BT_OK;
    BT_TRY(bti_translator_encode(p->model, 0, line, bytes, ids, &p->amends));
    if (ids->count > 0) return BT_OK;
    return bti_ids_push(ids, bti_tokenizer_specials(p->model->tokenizer[0]).end);
}

static int64_t feature_examples(const prediction *p) {
    return p->model->shape.features > 0 ? bti_features_count(p->model->feature[0]) : INT64_MAX;
}

/* Fills sentences up to a block's worth; gives how many. */
static bt_status read_block(prediction *p, int64_t *count) {
    int64_t n = 0;
    for (; n < BLOCK; n++) {
        bti_sentence *s = &p->sentence[n];
        int64_t example = p->done + n, labels = 0;
        int there = example < feature_examples(p);
        *s = (bti_sentence){.count = {0, 1}, .ids = {NULL, &no_class}};
        if (p->text != NULL) BT_TRY(read_text(p, &p->ids[n], &there));
        if (!there) break;
        if (p->text != NULL) {
            s->ids[0] = p->ids[n].id;
            s->count[0] = p->ids[n].count;
        }
        BT_TRY(bti_translator_features(p->model, example, p->rows[n], s));
        if (p->labels != NULL && p->model->shape.head == BTI_HEAD_CLASSIFICATION)
            s->ids[1] = bti_labels_ids(p->labels, example, &labels);
    }
    *count = n;
    return BT_OK;
}

/* ---- lines -------------------------------------------------------------------------------------
 */

/* e^(z_k) over the sum of all, without overflow. */
static double probability(const float *z, int64_t n, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)z[i] - (double)z[k]);
    return 1 / sum;
}

static double label_probability(float z) { return 1 / (1 + exp(-(double)z)); }

static bt_status text_line(const prediction *p, const float *z, char **line) {
    const bti_model_config *m = &p->model->shape;
    bti_text t = {0};
    if (m->head == BTI_HEAD_CLASSIFICATION) {
        int64_t k = bti_metrics_class(z, m->outputs);
        bti_text_add(&t, "%s", p->name[k]);
        bti_text_add(&t, "\t%.6f", probability(z, m->outputs, k));
    }
    for (int64_t k = 0, given = 0; k < m->outputs; k++) {
        if (m->head == BTI_HEAD_REGRESSION) bti_text_add(&t, "%s%.9g", k ? " " : "", (double)z[k]);
        if (m->head != BTI_HEAD_MULTILABEL || !(z[k] > 0)) continue;
        bti_text_add(&t, "%s", given++ ? "\t" : "");
        bti_text_add(&t, "%s", p->name[k]);
        bti_text_add(&t, "\t%.6f", label_probability(z[k]));
    }
    bti_text_add(&t, "%s", "");
    return bti_text_take(&t, line);
}

static bt_status json_line(const prediction *p, int64_t example, const float *z, char **line) {
    const bti_model_config *m = &p->model->shape;
    json_t *root = json_pack("{s:I}", "example", (json_int_t)example), *list = json_array();
    for (int64_t k = 0; k < m->outputs; k++) {
        if (m->head == BTI_HEAD_REGRESSION)
            json_array_append_new(list, bti_json_number((double)z[k]));
        if (m->head == BTI_HEAD_MULTILABEL && z[k] > 0)
            json_array_append_new(list, json_pack("{s:s, s:f}", "label", p->name[k], "probability",
                                                  label_probability(z[k])));
    }
    if (m->head == BTI_HEAD_CLASSIFICATION) {
        int64_t k = bti_metrics_class(z, m->outputs);
        json_object_set_new(root, "class", json_string(p->name[k]));
        json_object_set_new(root, "probability", bti_json_number(probability(z, m->outputs, k)));
        json_decref(list);
    } else {
        json_object_set_new(root, m->head == BTI_HEAD_REGRESSION ? "values" : "labels", list);
    }
    return bti_json_take(root, JSON_REAL_PRECISION(9), line);
}

static bt_status give_line(const prediction *p, int64_t example, const float *z, bt_line_fn sink,
                           void *user) {
    char *line;
    BT_TRY(p->options->json ? json_line(p, example, z, &line) : text_line(p, z, &line));
    bt_status status = sink(user, line);
    bti_free(line);
    return status;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bt_status run(prediction *p, bt_line_fn sink, void *user) {
    int64_t n = 0, outputs = p->model->shape.outputs;
    for (;;) {
        if (p->options->stop != NULL && *p->options->stop)
            return bti_fail(BT_ESTOPPED, "stopped on request");
        p->amends = (bti_amends){0, 0};
        BT_TRY(read_block(p, &n));
        bti_translator_say_amends(p->model, "lines", &p->amends);
        if (n == 0) return BT_OK;
        BT_TRY(bti_losses_run(p->model->losses, p->sentence, n, p->outputs, &p->sum));
        if (p->tally != NULL) bti_tally_add(p->tally, p->sentence, n, p->outputs);
        for (int64_t i = 0; i < n && sink != NULL; i++)
            BT_TRY(give_line(p, p->done + i, p->outputs + i * outputs, sink, user));
        p->done += n;
    }
}

static int is_stdin(const char *path) { return path != NULL && strcmp(path, "-") == 0; }

/* As many examples everywhere, before the first line is given: what there is of text is counted,
 * where there is anything to compare it with. Text of standard input cannot be read twice. */
static bt_status check_counts(const prediction *p) {
    const char *path = p->options->source, *units = "lines";
    bti_corpus_config text = {.source = {(char **)(uintptr_t)&path, 1}, .stop = p->options->stop};
    int64_t n = 0;
    if (p->labels == NULL && (p->model->shape.features == 0 || is_stdin(path))) return BT_OK;
    if (is_stdin(path))
        return bti_fail(BT_EUSAGE,
                        "text that labels belong to is read twice: a file, not standard input");
    if (path != NULL) {
        BT_TRY(bti_corpus_check(&text, &n));
        BT_TRY(bti_translator_match(p->model, path, n, units));
    } else {
        path = bti_features_path(p->model->feature[0]);
        n = feature_examples(p);
        units = "examples";
    }
    return p->labels ? bti_labels_match(p->labels, n, path, units) : BT_OK;
}

static void score(const prediction *p, bt_prediction_scores *out) {
    bti_metrics m = {NAN, NAN, NAN};
    if (p->tally != NULL) m = bti_tally_metrics(p->tally);
    *out = (bt_prediction_scores){.examples = p->done,
                                  .loss = p->tally ? p->sum.loss / (double)p->sum.rows : NAN,
                                  .accuracy = m.accuracy,
                                  .f1 = m.f1,
                                  .mse = m.mse};
}

static void prediction_free(prediction *p) {
    for (size_t i = 0; i < p->names; i++) bti_free(p->name[i]);
    for (int i = 0; i < BLOCK; i++) bti_ids_free(&p->ids[i]);
    bti_free(p->name);
    bti_free(p->outputs);
    bti_tally_free(p->tally);
    bti_labels_close(p->labels);
    bti_reader_close(p->text);
    bt_translator_free(p->model);
    bti_free(p);
}

static bt_status open_all(prediction *p, const char *model) {
    const bt_predict_options *o = p->options;
    bt_translate_options t = BT_TRANSLATE_DEFAULTS;
    t.device = o->device;
    t.memory = o->memory;
    t.threads = o->threads;
    t.batch = o->batch;
    t.stop = o->stop;
    t.features = o->features;
    t.feature_count = o->feature_count;
    BT_TRY(bti_translator_open(model, &t, 1, &p->model));
    if (bti_has_decoder(&p->model->shape))
        return bti_fail(BT_EUSAGE,
                        "%s writes text: bantam translate asks it, and bantam evaluate "
                        "compares it with a reference",
                        model);
    BT_TRY(bti_translator_check_source(p->model, o->source));
    if (o->source != NULL) BT_TRY(bti_reader_open_until(o->source, o->stop, &p->text));
    BT_TRY(open_names(p, model));
    BT_TRY(open_labels(p));
    p->model->labels = p->labels;
    BT_TRY(check_counts(p));
    p->outputs = bti_alloc((size_t)(BLOCK * p->model->shape.outputs), sizeof *p->outputs);
    if (p->outputs == NULL) return BT_ENOMEM;
    return p->labels ? bti_tally_new(&p->model->shape, &p->tally) : BT_OK;
}

bt_status bt_predict(const char *model, const bt_predict_options *options, bt_line_fn sink,
                     void *user, bt_prediction_scores *scores) {
    static const bt_predict_options defaults = {0};
    if (options == NULL) options = &defaults;
    prediction *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    p->options = options;
    bt_status status = open_all(p, model);
    if (status == BT_OK) status = run(p, sink, user);
    if (status == BT_OK && is_stdin(options->source))
        status = bti_translator_match(p->model, "standard input", p->done, "lines");
    if (status == BT_OK && scores != NULL) score(p, scores);
    prediction_free(p);
    return status;
}

/* ---- scores ------------------------------------------------------------------------------------
 */

bt_status bt_prediction_scores_text(const bt_prediction_scores *s, char **text) {
    bti_text t = {0};
    bti_text_add(&t, "%lld examples", (long long)s->examples);
    if (isfinite(s->loss)) bti_text_add(&t, "  loss %.6f", s->loss);
    if (isfinite(s->accuracy)) bti_text_add(&t, "  accuracy %.4f", s->accuracy);
    if (isfinite(s->f1)) bti_text_add(&t, "  F1 %.4f", s->f1);
    if (isfinite(s->mse)) bti_text_add(&t, "  mean square error %.6g", s->mse);
    return bti_text_take(&t, text);
}

bt_status bt_prediction_scores_json(const bt_prediction_scores *s, char **json) {
    json_t *root =
        json_pack("{s:I, s:o, s:o, s:o, s:o}", "examples", (json_int_t)s->examples, "loss",
                  bti_json_number(s->loss), "accuracy", bti_json_number(s->accuracy), "f1",
                  bti_json_number(s->f1), "mse", bti_json_number(s->mse));
    return bti_json_take(root, JSON_INDENT(2), json);
}
