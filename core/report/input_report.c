/* The features and labels of a run as text and JSON, for `bantam data check`. */
#include <inttypes.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/report/data_check.h"

static const char *const part_name[] = {"training", "validation"};
static const char *const kind_name[] = {"class", "set", "numbers"};
enum { CLASSES = 10 }; /* shown to people */

/* Least, most and mean of all numbers of labels. */
typedef struct range {
    double least, most, mean;
} range;

static range range_of(const bti_labels *l) {
    range r = {(double)bti_labels_numbers(l, 0)[0], (double)bti_labels_numbers(l, 0)[0], 0};
    int64_t n = bti_labels_count(l) * bti_labels_width(l);
    for (int64_t i = 0; i < n; i++) { /* examples lie one behind the other */
        double x = (double)bti_labels_numbers(l, 0)[i];
        if (x < r.least) r.least = x;
        if (x > r.most) r.most = x;
        r.mean += x / (double)n;
    }
    return r;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_feature(bti_text *out, const bti_features *f) {
    const bti_features_stats *s = bti_features_get_stats(f);
    bti_text_add(out,
                 "  %s: %" PRId64 " examples, rows of %" PRId64 " numbers from %.4g to %.4g (mean "
                 "%.4g)\n    rows of an example: %" PRId64,
                 bti_features_name(f), bti_features_count(f), bti_features_width(f), s->least,
                 s->most, s->mean, s->least_rows);
    if (s->most_rows > s->least_rows)
        bti_text_add(out, " to %" PRId64 " (mean %.1f), most in example %" PRId64, s->most_rows,
                     (double)s->rows / (double)bti_features_count(f), s->most_example + 1);
    bti_text_add(out, "\n");
}

static void add_labels(bti_text *out, const bti_labels *l, bti_label_kind kind) {
    int32_t classes = bti_labels_classes(l);
    bti_text_add(out, "  labels: %" PRId64 " examples, ", bti_labels_count(l));
    if (kind == BTI_LABEL_NUMBERS) {
        range r = range_of(l);
        bti_text_add(out, "%" PRId64 " numbers each, from %.4g to %.4g (mean %.4g)\n",
                     bti_labels_width(l), r.least, r.most, r.mean);
        return;
    }
    bti_text_add(out, "%" PRId32 " classes:", classes);
    for (int32_t c = 0; c < classes && c < CLASSES; c++)
        bti_text_add(out, "%s %s (%" PRId64 ")", c ? "," : "", bti_labels_class_name(l, c),
                     bti_labels_class_examples(l, c));
    bti_text_add(out, "%s\n", classes > CLASSES ? " ..." : "");
}

void bti_input_report(bti_text *out, const bti_data_check *c, bti_part part) {
    const bti_inputs *in = &c->inputs[part];
    if (in->features == 0 && in->labels == NULL) return;
    bti_text_add(out, "%s examples: %" PRId64 "\n", part_name[part], bti_inputs_count(in));
    for (size_t i = 0; i < in->features; i++) add_feature(out, in->feature[i]);
    if (in->labels != NULL) add_labels(out, in->labels, c->kind);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *feature_json(const bti_features *f) {
    const bti_features_stats *s = bti_features_get_stats(f);
    json_t *rows =
        json_pack("{s:I, s:I, s:f, s:I}", "least", (json_int_t)s->least_rows, "most",
                  (json_int_t)s->most_rows, "mean", (double)s->rows / (double)bti_features_count(f),
                  "most_example", (json_int_t)s->most_example + 1);
    json_t *values =
        json_pack("{s:f, s:f, s:f}", "least", s->least, "most", s->most, "mean", s->mean);
    return json_pack("{s:s, s:I, s:I, s:o, s:o}", "name", bti_features_name(f), "examples",
                     (json_int_t)bti_features_count(f), "width", (json_int_t)bti_features_width(f),
                     "rows", rows, "values", values);
}

static json_t *labels_json(const bti_labels *l, bti_label_kind kind) {
    json_t *classes = json_array(), *values = json_null();
    for (int32_t c = 0; c < bti_labels_classes(l); c++)
        json_array_append_new(classes,
                              json_pack("{s:s, s:I}", "name", bti_labels_class_name(l, c),
                                        "examples", (json_int_t)bti_labels_class_examples(l, c)));
    if (kind == BTI_LABEL_NUMBERS) {
        range r = range_of(l);
        values = json_pack("{s:f, s:f, s:f}", "least", r.least, "most", r.most, "mean", r.mean);
    }
    return json_pack("{s:s, s:I, s:o, s:I, s:o}", "kind", kind_name[kind], "examples",
                     (json_int_t)bti_labels_count(l), "classes", classes, "width",
                     (json_int_t)bti_labels_width(l), "values", values);
}

json_t *bti_input_json(const bti_data_check *c, bti_part part) {
    const bti_inputs *in = &c->inputs[part];
    json_t *features = json_array();
    for (size_t i = 0; i < in->features; i++)
        json_array_append_new(features, feature_json(in->feature[i]));
    return json_pack("{s:o, s:o}", "features", features, "labels",
                     in->labels ? labels_json(in->labels, c->kind) : json_null());
}
