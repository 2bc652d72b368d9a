/* A translator's dense inputs: the files of its options, checked against the model; targets. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/decode/translator.h"
#include "core/engine/inputs.h"
#include "core/model/head.h"

/* The file of a feature among "NAME=FILE" options; NULL: none is given. */
static const char *feature_file(const bt_translator *t, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < t->options.feature_count; i++)
        if (strncmp(t->options.features[i], name, n) == 0 && t->options.features[i][n] == '=')
            return t->options.features[i] + n + 1;
    return NULL;
}

/* Every option must name a feature of the model. */
static bt_status check_names(const bt_translator *t) {
    for (size_t i = 0; i < t->options.feature_count; i++) {
        const char *option = t->options.features[i];
        int known = 0;
        const char *file = strchr(option, '=');
        if (file == NULL || file[1] == 0)
            return bti_fail(BT_EUSAGE, "features: \"%s\": an option is written NAME=FILE", option);
        for (size_t k = 0; k < i; k++)
            if (strncmp(t->options.features[k], option, (size_t)(file + 1 - option)) == 0)
                return bti_fail(
                    BT_EUSAGE,
                    "features: \"%s\" and \"%s\": a feature has one file, perhaps a list "
                    "(.txt)",
                    t->options.features[k], option);
        for (int32_t f = 0; f < t->shape.features; f++) {
            size_t n = strlen(t->shape.feature[f].name);
            known |= strncmp(option, t->shape.feature[f].name, n) == 0 && option[n] == '=';
        }
        if (!known)
            return bti_fail(BT_EUSAGE, "features: \"%s\": the model has no such feature%s%s",
                            option, t->shape.features ? ", but " : "",
                            t->shape.features ? t->shape.feature[0].name : "");
    }
    return BT_OK;
}

/* Rows of a parameter of the checkpoint, 0 when it has none; *cols its columns. */
static int64_t rows_in(const bti_checkpoint *c, const char *name, int64_t *cols) {
    const void *data;
    const bti_st_tensor *s = bti_st_find(c->file, name, &data);
    *cols = s && s->dims == 2 ? s->shape[1] : 0;
    return s ? s->shape[0] : 0;
}

static bt_status open_feature(bt_translator *t, const bti_checkpoint *c, int32_t f) {
    bti_feature_config *m = &t->shape.feature[f];
    const char *file = feature_file(t, m->name);
    char name[96];
    int64_t cols;
    if (file == NULL)
        return bti_fail(BT_EUSAGE, "the model reads the feature %s: give its file, %s=FILE",
                        m->name, m->name);
    snprintf(name, sizeof name, "features.%.32s.projection.weight", m->name);
    rows_in(c, name, &m->width);
    bti_features_spec spec = {.name = m->name,
                              .files = &file,
                              .file_count = 1,
                              .width = m->width,
                              .stop = t->options.stop};
    BT_TRY(bti_features_open(&spec, &t->feature[f]));
    int64_t most = bti_features_get_stats(t->feature[f])->most_rows;
    snprintf(name, sizeof name, "features.%.32s.positions.weight", m->name);
    int64_t placed = rows_in(c, name, &cols);
    if (placed > 0 && most > placed)
        return bti_fail(BT_EINPUT, "feature %s: %s has %lld rows, the model has positions for %lld",
                        m->name, file, (long long)most, (long long)placed);
    if (placed > 0 || most > m->rows) m->rows = placed > 0 ? placed : most;
    return BT_OK;
}

static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const bt_translator *t = user;
    return bti_features_read(t->feature[feature], example, out);
}

/* Targets of an example; zeros where nothing is known. */
static void read_values(void *user, int64_t example, float *out) {
    const bt_translator *t = user;
    size_t n = (size_t)t->shape.outputs;
    int64_t count = 0;
    memset(out, 0, n * sizeof *out);
    if (t->labels == NULL) return;
    if (t->shape.head == BTI_HEAD_REGRESSION) {
        memcpy(out, bti_labels_numbers(t->labels, example), n * sizeof *out);
        return;
    }
    const int32_t *ids = bti_labels_ids(t->labels, example, &count);
    for (int64_t k = 0; k < count; k++) out[ids[k]] = 1;
}

bt_status bti_translator_match(const bt_translator *t, const char *path, int64_t count,
                               const char *units) {
    for (int32_t f = 0; f < t->shape.features; f++)
        BT_TRY(bti_features_match(t->feature[f], count, path, units));
    return BT_OK;
}

/* Of a model that reads features alone: as many of each, and rows that go together. */
static bt_status check_examples(const bt_translator *t) {
    int64_t n = bti_features_count(t->feature[0]);
    BT_TRY(bti_translator_match(t, bti_features_path(t->feature[0]), n, "examples"));
    for (int64_t i = 0; i < n; i++)
        BT_TRY(bti_inputs_check_rows(t->feature, (size_t)t->shape.features, t->shape.fusion, i,
                                     NULL, 0));
    return BT_OK;
}

bt_status bti_translator_open_shape(bt_translator *t, const bti_checkpoint *c) {
    int64_t cols;
    t->shape = t->cfg->model;
    t->dense = (bti_dense){t, read_feature, read_values};
    if (!bti_has_decoder(&t->shape)) t->shape.outputs = rows_in(c, "head.weight", &cols);
    BT_TRY(check_names(t));
    for (int32_t f = 0; f < t->shape.features; f++) BT_TRY(open_feature(t, c, f));
    return t->tokenizer[0] == NULL && t->shape.features > 0 ? check_examples(t) : BT_OK;
}

bt_status bti_translator_features(bt_translator *t, int64_t example, int32_t *rows,
                                  bti_sentence *s) {
    s->dense = &t->dense;
    s->example = example;
    s->rows = rows;
    for (int32_t f = 0; f < t->shape.features; f++) {
        int64_t count = bti_features_count(t->feature[f]);
        if (example >= count)
            return bti_fail(BT_EINPUT, "feature %s has %lld examples: none for line %lld",
                            t->shape.feature[f].name, (long long)count, (long long)example + 1);
        rows[f] = (int32_t)bti_features_rows(t->feature[f], example);
    }
    if (t->tokenizer[0] != NULL && s->count[0] == 0) return BT_OK; /* blank: nothing to mix with */
    return bti_inputs_check_rows(t->feature, (size_t)t->shape.features, t->shape.fusion, example,
                                 t->tokenizer[0] ? "the text" : NULL, s->count[0]);
}

size_t bt_translator_examples(const bt_translator *t) {
    return t->shape.features > 0 ? (size_t)bti_features_count(t->feature[0]) : 0;
}
