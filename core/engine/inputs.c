#include "core/engine/inputs.h"

#include <inttypes.h>
#include <stdio.h>

static const bti_files *label_files(const bti_run_config *cfg, bti_part part) {
    return part == BTI_PART_TRAIN ? &cfg->data.train_labels : &cfg->data.valid_labels;
}

static bt_status open_feature(const bti_run_config *cfg, bti_part part, size_t i,
                              const volatile sig_atomic_t *stop, bti_features **out) {
    char where[64];
    const bti_feature_input *input = &cfg->data.features.item[i];
    const bti_files *files = part == BTI_PART_TRAIN ? &input->train : &input->valid;
    bti_features_spec spec = {.name = input->name,
                              .files = (const char *const *)files->path,
                              .file_count = (int32_t)files->count,
                              .width = input->width,
                              .rows_max = (int32_t)input->max_rows,
                              .where = where,
                              .stop = stop};
    snprintf(where, sizeof where, "data.features.%zu", i);
    return bti_features_open(&spec, out);
}

static bt_status check_width(const bti_features *f, const bti_features *train) {
    if (bti_features_width(f) == bti_features_width(train)) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "feature %s: %s: rows are %" PRId64 " numbers wide, those of the training part "
                    "%" PRId64,
                    bti_features_name(f), bti_features_path(f), bti_features_width(f),
                    bti_features_width(train));
}

static bt_status open_labels(const bti_files *files, bti_label_kind kind, const bti_labels *known,
                             bti_labels **out) {
    int32_t classes = known && kind != BTI_LABEL_NUMBERS ? bti_labels_classes(known) : 0;
    const char **name = bti_alloc((size_t)classes, sizeof *name);
    if (name == NULL) return BT_ENOMEM;
    for (int32_t c = 0; c < classes; c++) name[c] = bti_labels_class_name(known, c);
    bti_labels_spec spec = {.files = (const char *const *)files->path,
                            .file_count = (int32_t)files->count,
                            .kind = kind,
                            .classes = classes ? name : NULL,
                            .class_count = classes,
                            .width = known ? bti_labels_width(known) : 0};
    bt_status s = bti_labels_open(&spec, out);
    bti_free(name);
    return s;
}

/* model.outputs, where it is given, is what the labels have. */
static bt_status check_outputs(const bti_run_config *cfg, bti_label_kind kind,
                               const bti_labels *l) {
    int64_t want = cfg->model.outputs, have;
    if (l == NULL || want == 0) return BT_OK;
    have = kind == BTI_LABEL_NUMBERS ? bti_labels_width(l) : bti_labels_classes(l);
    if (have == want) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "model.outputs is %" PRId64 ", the labels of %s have %" PRId64
                    ": leave it out, and it is as they say",
                    want, cfg->data.train_labels.path[0], have);
}

bt_status bti_inputs_open(const bti_run_config *cfg, bti_part part, bti_label_kind kind,
                          const bti_inputs *train, const volatile sig_atomic_t *stop,
                          bti_inputs *out) {
    bti_inputs in = {.feature = bti_alloc(cfg->data.features.count, sizeof *in.feature)};
    bt_status s = in.feature ? BT_OK : BT_ENOMEM;
    for (; in.features < cfg->data.features.count && s == BT_OK; in.features++)
        s = open_feature(cfg, part, in.features, stop, &in.feature[in.features]);
    for (size_t i = 0; i < in.features && train != NULL && s == BT_OK; i++)
        s = check_width(in.feature[i], train->feature[i]);
    const bti_files *labels = label_files(cfg, part);
    if (s == BT_OK && labels->count > 0)
        s = open_labels(labels, kind, train ? train->labels : NULL, &in.labels);
    if (s == BT_OK && part == BTI_PART_TRAIN) s = check_outputs(cfg, kind, in.labels);
    if (s != BT_OK) {
        bti_inputs_close(&in);
        return s;
    }
    *out = in;
    return BT_OK;
}

void bti_inputs_close(bti_inputs *in) {
    for (size_t i = 0; i < in->features; i++) bti_features_close(in->feature[i]);
    bti_free(in->feature);
    bti_labels_close(in->labels);
    *in = (bti_inputs){0};
}

int64_t bti_inputs_count(const bti_inputs *in) {
    if (in->labels != NULL) return bti_labels_count(in->labels);
    return in->features > 0 ? bti_features_count(in->feature[0]) : 0;
}

bt_status bti_inputs_match(const bti_inputs *in, const bti_run_config *cfg, bti_part part,
                           const char *path, int64_t lines) {
    const char *units = path ? "lines" : in->labels ? "labels" : "examples";
    if (path == NULL) {
        lines = bti_inputs_count(in);
        if (in->labels != NULL)
            path = label_files(cfg, part)->path[0];
        else if (in->features > 0)
            path = bti_features_name(in->feature[0]);
    } else if (in->labels != NULL) {
        BT_TRY(bti_labels_match(in->labels, lines, path, units));
    }
    for (size_t i = 0; i < in->features; i++)
        BT_TRY(bti_features_match(in->feature[i], lines, path, units));
    return BT_OK;
}

bt_status bti_inputs_check_rows(bti_features *const *feature, size_t features, bti_fusion fusion,
                                int64_t i, const char *text, int64_t ids) {
    int64_t want = text ? ids : features > 0 ? bti_features_rows(feature[0], i) : 0, example;
    char other[512];
    if (fusion != BTI_FUSION_ADD && fusion != BTI_FUSION_GATE) return BT_OK;
    for (size_t f = text == NULL; f < features; f++) {
        int64_t have = bti_features_rows(feature[f], i);
        if (have == 1 || have == want) continue;
        if (text != NULL)
            snprintf(other, sizeof other,
                     "line %" PRId64 " of %s has %" PRId64 " tokens, its end "
                     "included",
                     i + 1, text, want);
        else
            snprintf(other, sizeof other, "that of feature %s has %" PRId64,
                     bti_features_name(feature[0]), want);
        const char *file = bti_features_place(feature[f], i, &example);
        return bti_fail(BT_EINPUT,
                        "feature %s: %s: example %" PRId64 " has %" PRId64
                        " rows, %s: model.fusion "
                        "add and gate mix row by row, and want as many or one; concat and cross "
                        "take any number",
                        bti_features_name(feature[f]), file, example, have, other);
    }
    return BT_OK;
}
