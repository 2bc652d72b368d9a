/* bt_predict: what a model without a decoder says of each example, in blocks, and how right it is
 * where labels are known. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/corpus.h"
#include "core/decode/translator.h"
#include "core/model/head.h"
#include "core/train/examples.h"
#include "core/train/metrics.h"

#define BLOCK 1024

typedef struct prediction {
    bt_translator *model;
    const bt_predict_options *options;
    bti_reader *text; /* NULL: the model reads none */
    bti_labels *labels;
    char **name; /* of classes, as the run had them; NULL: numbers */
    size_t names;
    bti_dense dense;
    int64_t done; /* examples */
    bti_loss_sum sum;
    bti_sentence sentence[BLOCK];
    bti_ids ids[BLOCK];
    int32_t rows[BLOCK][BTI_MAX_FEATURES];
    bti_sentence *all; /* with labels: of every example, and all outputs */
    float *outputs;
    int64_t room;
} prediction;

static const int32_t no_class = 0;

/* ---- labels ------------------------------------------------------------------------------------
 */

/* The names beside the model, one a line, in order of their numbers. */
static bt_status read_names(prediction *p, const char *path) {
    char *folder = bti_dir_exists(path) ? bti_strdup(path) : bti_path_dir(path);
    char *file = folder ? bti_path_join(folder, "labels.txt") : NULL;
    bti_reader *r = NULL;
    bt_status status = file == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && bti_file_exists(file)) status = bti_reader_open(file, &r);
    int64_t outputs = p->model->shape.outputs;
    if (r != NULL) p->name = bti_alloc((size_t)outputs, sizeof *p->name);
    if (r != NULL && p->name == NULL) status = BT_ENOMEM;
    while (status == BT_OK && r != NULL) {
        const char *line;
        size_t bytes;
        status = bti_reader_next(r, &line, &bytes);
        if (status != BT_OK || line == NULL) break;
        if ((int64_t)p->names == outputs) {
            status = bti_fail(BT_EINPUT, "%s names more than the model's %lld outputs", file,
                              (long long)outputs);
            break;
        }
        p->name[p->names] = bti_strdup(line);
        if (p->name[p->names++] == NULL) status = BT_ENOMEM;
    }
    bti_reader_close(r);
    bti_free(file);
    bti_free(folder);
    return status;
}

static bt_status open_labels(prediction *p) {
    const bti_model_config *m = &p->model->shape;
    bti_labels_spec spec = {.files = &p->options->labels,
                            .file_count = 1,
                            .kind = bti_label_kind_of(m->head),
                            .classes = (const char *const *)p->name,
                            .class_count = (int32_t)p->names};
    if (p->options->labels == NULL) return BT_OK;
    if (m->head == BTI_HEAD_REGRESSION) spec.width = m->outputs;
    BT_TRY(bti_labels_open(&spec, &p->labels));
    int64_t have = m->head == BTI_HEAD_REGRESSION ? bti_labels_width(p->labels)
                                                  : bti_labels_classes(p->labels);
    if (have <= m->outputs) return BT_OK;
    return bti_fail(BT_EINPUT, "%s has %lld labels, the model %lld", p->options->labels,
                    (long long)have, (long long)m->outputs);
}

/* Targets of an example; zeros where nothing is known. */
static void read_values(void *user, int64_t example, float *out) {
    const prediction *p = user;
    const bti_model_config *m = &p->model->shape;
    int64_t n = 0;
    memset(out, 0, (size_t)m->outputs * sizeof *out);
    if (p->labels == NULL) return;
    if (m->head == BTI_HEAD_REGRESSION) {
        memcpy(out, bti_labels_numbers(p->labels, example), (size_t)m->outputs * sizeof *out);
        return;
    }
    const int32_t *ids = bti_labels_ids(p->labels, example, &n);
    for (int64_t k = 0; k < n; k++) out[ids[k]] = 1;
}

static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const prediction *p = user;
    return bti_features_read(p->model->feature[feature], example, out);
}

/* ---- examples ----------------------------------------------------------------------------------
 */

/* The next line's ids: the end symbol alone for a blank one. *there: there was a line. */
static bt_status read_text(prediction *p, bti_ids *ids, int *there) {
    const char *line;
    size_t bytes;
    int64_t cut = 0;
    BT_TRY(bti_reader_next(p->text, &line, &bytes));
    *there = line != NULL;
    if (!*there) return BT_OK;
    BT_TRY(bti_translator_encode(p->model, 0, line, bytes, ids, &cut));
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
        s->dense = &p->dense;
        s->example = example;
        if (p->labels == NULL) continue;
        if (example >= bti_labels_count(p->labels))
            return bti_fail(BT_EINPUT, "%s has %lld labels, there are more examples",
                            p->options->labels, (long long)bti_labels_count(p->labels));
        if (p->model->shape.head == BTI_HEAD_CLASSIFICATION)
            s->ids[1] = bti_labels_ids(p->labels, example, &labels);
    }
    *count = n;
    return BT_OK;
}

/* ---- lines -------------------------------------------------------------------------------------
 */

static void add_name(bti_text *t, const prediction *p, int64_t k) {
    if (k < (int64_t)p->names)
        bti_text_add(t, "%s", p->name[k]);
    else
        bti_text_add(t, "%lld", (long long)k);
}

/* e^(z_k) over the sum of all, without overflow. */
static double probability(const float *z, int64_t n, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)z[i] - (double)z[k]);
    return 1 / sum;
}

static bt_status give_line(const prediction *p, const float *z, bt_line_fn sink, void *user) {
    const bti_model_config *m = &p->model->shape;
    bti_text t = {0};
    char *line;
    if (m->head == BTI_HEAD_CLASSIFICATION) {
        int64_t k = bti_metrics_class(z, m->outputs);
        add_name(&t, p, k);
        bti_text_add(&t, "\t%.6f", probability(z, m->outputs, k));
    }
    for (int64_t k = 0, given = 0; k < m->outputs; k++) {
        if (m->head == BTI_HEAD_REGRESSION) bti_text_add(&t, "%s%.9g", k ? " " : "", (double)z[k]);
        if (m->head != BTI_HEAD_MULTILABEL || !(z[k] > 0)) continue;
        bti_text_add(&t, "%s", given++ ? "\t" : "");
        add_name(&t, p, k);
        bti_text_add(&t, "\t%.6f", 1 / (1 + exp(-(double)z[k])));
    }
    bti_text_add(&t, "%s", "");
    BT_TRY(bti_text_take(&t, &line));
    bt_status status = sink(user, line);
    bti_free(line);
    return status;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static bt_status make_room(prediction *p, int64_t n) {
    if (n <= p->room) return BT_OK;
    int64_t room = 2 * n;
    void *all = bti_realloc(p->all, (size_t)room, sizeof *p->all);
    if (all == NULL) return BT_ENOMEM;
    p->all = all;
    void *outputs =
        bti_realloc(p->outputs, (size_t)(room * p->model->shape.outputs), sizeof *p->outputs);
    if (outputs == NULL) return BT_ENOMEM;
    p->outputs = outputs;
    p->room = room;
    return BT_OK;
}

static bt_status run(prediction *p, bt_line_fn sink, void *user) {
    int64_t n = 0, outputs = p->model->shape.outputs;
    for (;;) {
        if (p->options->stop != NULL && *p->options->stop)
            return bti_fail(BT_ESTOPPED, "stopped on request");
        BT_TRY(read_block(p, &n));
        if (n == 0) return BT_OK;
        int64_t at = p->labels != NULL ? p->done : 0; /* scores want all of them */
        BT_TRY(make_room(p, at + n));
        float *y = p->outputs + at * outputs;
        BT_TRY(bti_losses_run(p->model->losses, p->sentence, n, y, &p->sum));
        memcpy(p->all + at, p->sentence, (size_t)n * sizeof *p->all);
        for (int64_t i = 0; i < n && sink != NULL; i++)
            BT_TRY(give_line(p, y + i * outputs, sink, user));
        p->done += n;
    }
}

/* As many examples everywhere. */
static bt_status check_counts(const prediction *p) {
    for (int32_t f = 0; f < p->model->shape.features; f++)
        BT_TRY(bti_features_match(p->model->feature[f], p->done,
                                  p->text ? p->options->source : p->model->shape.feature[0].name,
                                  p->text ? "lines" : "examples"));
    if (p->labels == NULL) return BT_OK;
    return bti_labels_match(p->labels, p->done,
                            p->text ? p->options->source : p->model->shape.feature[0].name,
                            "examples");
}

static bt_status score(const prediction *p, bt_prediction_scores *out) {
    bti_metrics m = {NAN, NAN, NAN};
    int known = p->labels != NULL && p->done > 0;
    if (known) BT_TRY(bti_metrics_of(&p->model->shape, p->all, p->done, p->outputs, &m));
    *out = (bt_prediction_scores){.examples = p->done,
                                  .loss = known ? p->sum.loss / (double)p->sum.rows : NAN,
                                  .accuracy = m.accuracy,
                                  .f1 = m.f1,
                                  .mse = m.mse};
    return BT_OK;
}

static void prediction_free(prediction *p) {
    for (size_t i = 0; i < p->names; i++) bti_free(p->name[i]);
    for (int i = 0; i < BLOCK; i++) bti_ids_free(&p->ids[i]);
    bti_free(p->name);
    bti_free(p->all);
    bti_free(p->outputs);
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
        return bti_fail(BT_EUSAGE, "%s writes text: bantam translate asks it", model);
    int reads = p->model->tokenizer[0] != NULL;
    if (reads != (o->source != NULL))
        return bti_fail(BT_EUSAGE, reads ? "the model reads text: give a source"
                                         : "the model reads no text: there is no source");
    if (reads) BT_TRY(bti_reader_open(o->source, &p->text));
    BT_TRY(read_names(p, model));
    return open_labels(p);
}

bt_status bt_predict(const char *model, const bt_predict_options *options, bt_line_fn sink,
                     void *user, bt_prediction_scores *scores) {
    prediction *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    p->options = options;
    p->dense = (bti_dense){p, read_feature, read_values};
    bt_status status = open_all(p, model);
    if (status == BT_OK) status = run(p, sink, user);
    if (status == BT_OK) status = check_counts(p);
    if (status == BT_OK && scores != NULL) status = score(p, scores);
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

/* JSON has no NaN. */
static json_t *number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

bt_status bt_prediction_scores_json(const bt_prediction_scores *s, char **json) {
    json_t *root = json_pack("{s:I, s:o, s:o, s:o, s:o}", "examples", (json_int_t)s->examples,
                             "loss", number(s->loss), "accuracy", number(s->accuracy), "f1",
                             number(s->f1), "mse", number(s->mse));
    char *dump = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    char *copy = dump ? bti_strdup(dump) : NULL;
    json_decref(root);
    free(dump);
    if (copy == NULL) return bti_fail(BT_ENOMEM, "no host memory for JSON");
    *json = copy;
    return BT_OK;
}
