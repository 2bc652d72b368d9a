#include "core/engine/examples.h"

#include <inttypes.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/model/head.h"

bti_label_kind bti_label_kind_of(bti_head_kind head) {
    if (head == BTI_HEAD_MULTILABEL) return BTI_LABEL_SET;
    return head == BTI_HEAD_REGRESSION ? BTI_LABEL_NUMBERS : BTI_LABEL_CLASS;
}

/* ---- what the engine asks for ------------------------------------------------------------------
 */

static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const bti_examples *x = user;
    return bti_features_read(x->inputs.feature[feature], example, out);
}

/* Numbers as they are; of a set 1 for each of its labels and 0 for the others. */
static void read_values(void *user, int64_t example, float *out) {
    const bti_examples *x = user;
    size_t bytes = (size_t)x->outputs * sizeof *out;
    int64_t n;
    if (x->head == BTI_HEAD_REGRESSION) {
        memcpy(out, bti_labels_numbers(x->inputs.labels, example), bytes);
        return;
    }
    const int32_t *ids = bti_labels_ids(x->inputs.labels, example, &n);
    memset(out, 0, bytes);
    for (int64_t k = 0; k < n; k++) out[ids[k]] = 1;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

/* Lines of the text, the ones that were left out too. */
static int64_t lines_of(const bti_corpus *c) { return bti_corpus_get_stats(c)->lines; }

static bt_status match(const bti_run_config *cfg, bti_part part, const bti_examples *x) {
    const bti_files *source =
        part == BTI_PART_TRAIN ? &cfg->data.train_source : &cfg->data.valid_source;
    const bti_files *target =
        part == BTI_PART_TRAIN ? &cfg->data.train_target : &cfg->data.valid_target;
    const bti_files *text = source->count > 0 ? source : target;
    if (x->corpus == NULL) return bti_inputs_match(&x->inputs, cfg, part, NULL, 0);
    return bti_inputs_match(&x->inputs, cfg, part, text->path[0], lines_of(x->corpus));
}

static bt_status count_rows(bti_examples *x) {
    int64_t lines = bti_inputs_count(&x->inputs), features = (int64_t)x->inputs.features;
    if (features == 0) return BT_OK;
    x->rows = bti_alloc((size_t)(lines * features), sizeof *x->rows);
    if (x->rows == NULL) return BT_ENOMEM;
    for (int64_t i = 0; i < lines; i++)
        for (int64_t f = 0; f < features; f++)
            x->rows[i * features + f] = (int32_t)bti_features_rows(x->inputs.feature[f], i);
    return BT_OK;
}

/* What is mixed row by row must go together in every example that is used. */
static bt_status check_rows(const bti_run_config *cfg, bti_part part, const bti_examples *x) {
    const bti_files *source =
        part == BTI_PART_TRAIN ? &cfg->data.train_source : &cfg->data.valid_source;
    const char *text = x->corpus != NULL && source->count > 0 ? source->path[0] : NULL;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t ids = 0;
        if (text != NULL) bti_corpus_source(x->corpus, i, &ids);
        BT_TRY(bti_inputs_check_rows(x->inputs.feature, x->inputs.features, cfg->model.fusion,
                                     bti_examples_line(x, i) - 1, text, ids));
    }
    return BT_OK;
}

bt_status bti_examples_open(const bti_run_config *cfg, bti_part part, const bti_corpus *corpus,
                            const bti_examples *train, const volatile sig_atomic_t *stop,
                            bti_examples *out) {
    *out = (bti_examples){.corpus = corpus, .head = cfg->model.head};
    BT_TRY(bti_inputs_open(cfg, part, bti_label_kind_of(cfg->model.head),
                           train ? &train->inputs : NULL, stop, &out->inputs));
    const bti_labels *labels = out->inputs.labels;
    out->count = corpus ? bti_corpus_count(corpus) : bti_inputs_count(&out->inputs);
    if (labels != NULL)
        out->outputs = out->head == BTI_HEAD_REGRESSION ? bti_labels_width(labels)
                                                        : bti_labels_classes(labels);
    bt_status status = match(cfg, part, out);
    if (status == BT_OK) status = check_rows(cfg, part, out);
    if (status == BT_OK) status = count_rows(out);
    out->dense = (bti_dense){out, read_feature, read_values};
    if (status != BT_OK) bti_examples_close(out);
    return status;
}

void bti_examples_close(bti_examples *x) {
    bti_inputs_close(&x->inputs);
    bti_free(x->rows);
    *x = (bti_examples){0};
}

/* ---- examples ----------------------------------------------------------------------------------
 */

int64_t bti_examples_line(const bti_examples *x, int64_t i) {
    return x->corpus ? bti_corpus_line(x->corpus, i) : i + 1;
}

void bti_examples_get(const bti_examples *x, int64_t i, bti_sentence *out) {
    bti_sentence s = {.dense = &x->dense, .example = bti_examples_line(x, i) - 1};
    if (x->rows != NULL) s.rows = x->rows + s.example * (int64_t)x->inputs.features;
    if (x->corpus != NULL) {
        s.ids[0] = bti_corpus_source(x->corpus, i, &s.count[0]);
        s.ids[1] = bti_corpus_target(x->corpus, i, &s.count[1]);
    }
    if (x->head != BTI_HEAD_DECODER) {
        int64_t n;
        s.count[1] = 1;
        s.ids[1] = x->head == BTI_HEAD_CLASSIFICATION
                       ? bti_labels_ids(x->inputs.labels, s.example, &n)
                       : NULL;
    }
    *out = s;
}

int64_t bti_examples_most_rows(const bti_examples *x, int32_t feature) {
    return bti_features_get_stats(x->inputs.feature[feature])->most_rows;
}

uint64_t bti_examples_checksum(const bti_examples *x) {
    uint64_t sum = x->corpus ? bti_corpus_checksum(x->corpus) : 0;
    for (size_t f = 0; f < x->inputs.features; f++)
        sum = (sum ^ bti_features_checksum(x->inputs.feature[f])) * UINT64_C(0x100000001B3);
    if (x->inputs.labels != NULL)
        sum = (sum ^ bti_labels_checksum(x->inputs.labels)) * UINT64_C(0x100000001B3);
    return sum;
}

bt_status bti_examples_describe(const bti_examples *x, char **text) {
    const bti_labels *l = x->inputs.labels;
    bti_text t = {0};
    if (x->corpus != NULL)
        bti_text_add(&t, "text: %" PRId64 " lines, %" PRId64 " of use, checksum %016" PRIx64 "\n",
                     lines_of(x->corpus), bti_corpus_count(x->corpus),
                     bti_corpus_checksum(x->corpus));
    for (size_t f = 0; f < x->inputs.features; f++) {
        const bti_features *in = x->inputs.feature[f];
        bti_text_add(&t,
                     "feature %s: %" PRId64 " examples, %" PRId64 " rows of %" PRId64
                     " numbers, checksum %016" PRIx64 "\n",
                     bti_features_name(in), bti_features_count(in),
                     bti_features_get_stats(in)->rows, bti_features_width(in),
                     bti_features_checksum(in));
    }
    if (l != NULL)
        bti_text_add(&t, "labels: %" PRId64 " examples, %" PRId64 " %s, checksum %016" PRIx64 "\n",
                     bti_labels_count(l), x->outputs,
                     x->head == BTI_HEAD_REGRESSION ? "numbers each" : "classes",
                     bti_labels_checksum(l));
    return bti_text_take(&t, text);
}
