/* Whole models against PyTorch's values in double: losses, decoder output, every gradient, and the
 * parameters after three clipped AdamW updates. Made by tests/golden/make_golden.py, and for models
 * with dense features by make_fused.py. */
#include <dirent.h>
#include <jansson.h>

#include "backends/registry.h"
#include "core/base/safetensors.h"
#include "core/engine/initial.h"
#include "tests/kit.h"
#include "tests/model_kit.h"

typedef struct golden {
    json_t *root;
    bti_st_file *file;
    bti_sentence *sentence;
    int64_t sentences;
    mk_setup setup;
    /* Dense features: all their rows, and in which of them each example's begin. */
    float *feature[BTI_MAX_FEATURES];
    int64_t *begin[BTI_MAX_FEATURES];
    int32_t *rows; /* examples x BTI_MAX_FEATURES */
    float *values; /* examples x outputs */
    bti_dense dense;
} golden;

/* How a model is computed, and bounds relative to each tensor's norm (gradient: and of the norm of
 * all). In half types gradients are bound by their angle: each has a cosine of at least this with
 * PyTorch's. bf16, of 8 bits, puts some of relu's inputs on the other side of zero, where the
 * gradient jumps: among the few rows of these models one such unit turns a tensor by 1.3e-3. And
 * where a row is 8 wide, a sum of rounding errors is not small beside the values. */
typedef struct format {
    bt_dtype dtype;
    bti_precision precision;
    double loss, gradient, parameter, cosine, cosine_relu, cosine_narrow;
} format;

static int64_t integer(const golden *g, const char *key) {
    return json_integer_value(json_object_get(g->root, key));
}

static double real(json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static int64_t read_side(json_t *list, golden *g, int side) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *line = json_array_get(list, i);
        size_t n = json_array_size(line);
        int32_t *ids = malloc(n * sizeof *ids);
        for (size_t j = 0; j < n; j++)
            ids[j] = (int32_t)json_integer_value(json_array_get(line, j));
        g->sentence[i].ids[side] = ids;
        g->sentence[i].count[side] = (int64_t)n;
    }
    return (int64_t)json_array_size(list);
}

/* ---- dense features and heads ------------------------------------------------------------------
 */

/* The place of a setting's word among those of an enum. */
static int choice(const golden *g, const char *key, const char *const *words) {
    const char *word = json_string_value(json_object_get(g->root, key));
    int i = 0;
    if (word == NULL) return 0;
    while (strcmp(words[i], word) != 0) i++;
    return i;
}

static void read_targets(golden *g, json_t *list) {
    int64_t outputs = g->setup.model.outputs;
    g->values = calloc((size_t)(g->sentences * outputs), sizeof *g->values);
    for (int64_t i = 0; i < g->sentences; i++) {
        for (int64_t j = 0; j < outputs; j++)
            g->values[i * outputs + j] = (float)json_number_value(
                json_array_get(json_array_get(list, (size_t)i), (size_t)j));
        g->sentence[i].count[1] = 1;
    }
}

static void read_features(golden *g, json_t *list) {
    bti_model_config *m = &g->setup.model;
    g->rows = calloc((size_t)g->sentences * BTI_MAX_FEATURES, sizeof *g->rows);
    for (size_t f = 0; f < json_array_size(list); f++) {
        json_t *one = json_array_get(list, f), *rows = json_object_get(one, "rows");
        bti_feature_config *c = &m->feature[m->features++];
        *c = (bti_feature_config){.name = json_string_value(json_object_get(one, "name")),
                                  .width = json_integer_value(json_object_get(one, "width")),
                                  .norm = json_is_true(json_object_get(one, "norm"))};
        const void *data;
        const bti_st_tensor *t = bti_st_find(g->file, kit_str("feature.%s", c->name), &data);
        int64_t all = 0;
        ck_assert(t != NULL && t->dtype == BT_F32);
        g->begin[f] = calloc((size_t)g->sentences, sizeof **g->begin);
        for (int64_t i = 0; i < g->sentences; i++) {
            int64_t n = json_integer_value(json_array_get(rows, (size_t)i));
            g->begin[f][i] = all;
            g->rows[i * BTI_MAX_FEATURES + (int64_t)f] = (int32_t)n;
            all += n;
            if (n > c->rows) c->rows = n;
        }
        ck_assert_int_eq(t->shape[0], all);
        g->feature[f] = malloc((size_t)(all * c->width) * sizeof(float));
        memcpy(g->feature[f], data, (size_t)(all * c->width) * sizeof(float));
    }
}

static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const golden *g = user;
    int64_t width = g->setup.model.feature[feature].width;
    memcpy(out, g->feature[feature] + g->begin[feature][example] * width,
           (size_t)(g->rows[example * BTI_MAX_FEATURES + feature] * width) * sizeof *out);
    return BT_OK;
}

static void read_values(void *user, int64_t example, float *out) {
    const golden *g = user;
    int64_t n = g->setup.model.outputs;
    memcpy(out, g->values + example * n, (size_t)n * sizeof *out);
}

static void read_fusion(golden *g) {
    static const char *const fusions[] = {"concat", "add", "gate", "cross"};
    static const char *const heads[] = {"decoder", "classification", "multilabel", "regression"};
    static const char *const poolings[] = {"mean", "first", "attention"};
    static const char *const positions[] = {"sinusoid", "learned"};
    bti_model_config *m = &g->setup.model;
    json_t *list = json_object_get(g->root, "features");
    if (list == NULL) return;
    m->fusion = (bti_fusion)choice(g, "fusion", fusions);
    m->head = (bti_head_kind)choice(g, "head", heads);
    m->pooling = (bti_pooling)choice(g, "pooling", poolings);
    m->positions = (bti_positions)choice(g, "positions", positions);
    m->position_rows = integer(g, "position_rows");
    m->outputs = integer(g, "outputs");
    m->learned_rows = integer(g, "learned_rows");
    read_features(g, list);
    if (m->head == BTI_HEAD_MULTILABEL || m->head == BTI_HEAD_REGRESSION)
        read_targets(g, json_object_get(g->root, "target"));
}

/* The sentences know where this golden lies: it must not move any more. */
static void bind_features(golden *g) {
    g->dense = (bti_dense){g, read_feature, read_values};
    for (int64_t i = 0; i < g->sentences && g->rows != NULL; i++) {
        g->sentence[i].dense = &g->dense;
        g->sentence[i].example = i;
        g->sentence[i].rows = g->rows + i * BTI_MAX_FEATURES;
    }
}

/* ---- settings ----------------------------------------------------------------------------------
 */

static golden read_golden(const char *json, const char *tensors, const format *f) {
    golden g = {.root = json_load_file(json, 0, NULL), .setup = mk_defaults()};
    ck_assert_msg(g.root != NULL, "%s is not JSON", json);
    kit_ok(bti_st_open(tensors, BTI_ST_VERIFY, &g.file));
    json_t *source = json_object_get(g.root, "source"), *o = json_object_get(g.root, "optimizer");
    g.sentence = calloc(json_array_size(source), sizeof *g.sentence);
    g.sentences = read_side(source, &g, 0);
    read_side(json_object_get(g.root, "target"), &g, 1);
    json_t *betas = json_object_get(o, "betas");
    bti_model_config *m = &g.setup.model;
    m->d_model = integer(&g, "d_model");
    m->heads = integer(&g, "heads");
    m->ff = integer(&g, "ff");
    m->encoder_layers = m->decoder_layers = integer(&g, "layers");
    if (json_object_get(g.root, "encoder_layers") != NULL) {
        m->encoder_layers = integer(&g, "encoder_layers");
        m->decoder_layers = integer(&g, "decoder_layers");
    }
    const char *tie = json_string_value(json_object_get(g.root, "tie"));
    if (tie != NULL && strcmp(tie, "target") == 0) m->tie = BTI_TIE_TARGET;
    if (tie != NULL && strcmp(tie, "all") == 0) m->tie = BTI_TIE_ALL;
    m->norm = json_is_true(json_object_get(g.root, "norm_first")) ? BTI_NORM_PRE : BTI_NORM_POST;
    m->activation = strcmp(json_string_value(json_object_get(g.root, "activation")), "gelu") == 0
                        ? BTI_ACTIVATION_GELU
                        : BTI_ACTIVATION_RELU;
    m->norm_eps = real(g.root, "layer_norm_eps");
    json_t *vocab = json_object_get(g.root, "vocab");
    for (size_t i = 0; i < 2; i++)
        g.setup.vocab[i] =
            json_integer_value(json_is_array(vocab) ? json_array_get(vocab, i) : vocab);
    g.setup.dtype = f->dtype;
    g.setup.precision = f->precision;
    if (f->precision == BTI_PRECISION_FP16) g.setup.engine.loss_scale = 65536;
    g.setup.sentence = g.sentence;
    g.setup.sentences = g.sentences;
    g.setup.engine.start = (int32_t)integer(&g, "start");
    g.setup.engine.smoothing = real(g.root, "label_smoothing");
    g.setup.engine.clip_norm = real(o, "clip");
    g.setup.engine.adamw = (bt_adamw_params){.beta1 = json_number_value(json_array_get(betas, 0)),
                                             .beta2 = json_number_value(json_array_get(betas, 1)),
                                             .eps = real(o, "eps"),
                                             .weight_decay = real(o, "weight_decay"),
                                             .decoupled = 1};
    read_fusion(&g);
    return g;
}

static void free_golden(golden *g) {
    for (int64_t i = 0; i < g->sentences; i++)
        for (int side = 0; side < 2; side++) free((void *)(uintptr_t)g->sentence[i].ids[side]);
    free(g->sentence);
    for (int f = 0; f < BTI_MAX_FEATURES; f++) {
        free(g->feature[f]);
        free(g->begin[f]);
    }
    free(g->rows);
    free(g->values);
    json_decref(g->root);
    bti_st_close(g->file);
}

/* The golden tensor PREFIX.NAME as doubles; malloc. */
static double *golden_values(const golden *g, const char *prefix, const bti_param *p) {
    const void *data;
    const bti_st_tensor *t = bti_st_find(g->file, kit_str("%s.%s", prefix, p->name), &data);
    ck_assert_msg(t != NULL, "no %s.%s in the golden file", prefix, p->name);
    int64_t n = p->rows * p->cols;
    double *out = malloc((size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) out[i] = bti_load(data, t->dtype, i);
    return out;
}

/* The golden weights as a file of their own in double, loaded as initial_model: with the names of
 * the whole module, or of nn.Transformer alone. */
static void set_parameters(const golden *g, mk_model *m) {
    const bti_params *t = &m->model->params;
    const char *path = kit_str("%s/weights.safetensors", kit_tmpdir());
    bti_st_tensor *tensor = calloc((size_t)t->count, sizeof *tensor);
    size_t skip = g->setup.model.norm == BTI_NORM_PRE ? strlen("transformer.") : 0;
    bti_st_writer *w;
    bti_initial *initial;
    for (int32_t i = 0; i < t->count; i++) {
        const bti_param *p = &t->param[i];
        int inside = strncmp(p->name, "transformer.", 12) == 0;
        tensor[i] = (bti_st_tensor){.name = p->name + (inside ? skip : 0),
                                    .dtype = BT_F64,
                                    .dims = p->dims,
                                    .shape = {p->dims == 2 ? p->rows : p->cols, p->cols}};
    }
    kit_ok(bti_st_create(path, tensor, (size_t)t->count, NULL, 0, &w));
    for (int32_t i = 0; i < t->count; i++) {
        double *x = golden_values(g, "param", &t->param[i]);
        kit_ok(bti_st_write(w, x, (size_t)(t->param[i].rows * t->param[i].cols) * sizeof *x));
        free(x);
    }
    kit_ok(bti_st_finish(w));
    kit_ok(bti_initial_open(path, 0, m->model, &initial));
    ck_assert(bti_initial_is_whole(initial));
    kit_ok(bti_initial_load(initial, m->engine));
    bti_initial_close(initial);
    free(tensor);
}

/* Each tensor of a region is within `bound` of its norm. */
static void compare(const golden *g, mk_model *m, const char *prefix, bti_region region,
                    double bound) {
    const bti_params *t = &m->model->params;
    double *all = mk_state(m, region, NULL);
    int64_t at = 0;
    for (int32_t i = 0; i < t->count; i++) {
        int64_t n = t->param[i].rows * t->param[i].cols;
        double *want = golden_values(g, prefix, &t->param[i]);
        double off = mk_relative(all + at, want, n);
        ck_assert_msg(off <= bound, "%s.%s is off by %g of its norm, bound %g", prefix,
                      t->param[i].name, off, bound);
        free(want);
        at += n;
    }
    free(all);
}

static double square_of(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - (y ? y[i] : 0)) * (x[i] - (y ? y[i] : 0));
    return sum;
}

/* Each gradient has at least this cosine with PyTorch's: of two tensors x and y of equal length, 1
 * - |x - y|^2 / 2 |y|^2. One that all but cancels (these models have a norm whose gradient is a
 * 200th of what its elements have elsewhere) is compared with a tenth of the mean element. */
static void compare_angles(const golden *g, mk_model *m, double least) {
    const bti_params *t = &m->model->params;
    double *all = mk_state(m, BTI_REGION_GRADIENTS, NULL), whole = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < t->elements; i++) all[i] /= m->engine->loss_scale;
    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        for (int32_t i = 0; i < t->count; i++) {
            int64_t n = t->param[i].rows * t->param[i].cols;
            double *want = golden_values(g, "grad", &t->param[i]), own = square_of(want, NULL, n);
            double floor = whole * (double)n / (double)t->elements / 100;
            double angle = 1 - square_of(all + at, want, n) / 2 / fmax(own, floor);
            if (pass == 0)
                whole += own;
            else
                ck_assert_msg(angle >= least, "grad.%s: cosine %.6f, at least %g", t->param[i].name,
                              angle, least);
            free(want);
            at += n;
        }
    }
    free(all);
}

typedef struct gradient_check {
    const golden *g;
    mk_model *m;
    const format *format;
} gradient_check;

static bt_status check_gradients(void *user, bti_engine *e, int64_t update) {
    const gradient_check *c = user;
    const format *f = c->format;
    const bti_model_config *m = &c->g->setup.model;
    double least = m->activation == BTI_ACTIVATION_RELU ? f->cosine_relu : f->cosine;
    (void)e;
    if (update == 1 && f->cosine > 0)
        compare_angles(c->g, c->m, m->d_model < 16 ? f->cosine_narrow : least);
    else if (update == 1)
        compare(c->g, c->m, "grad", BTI_REGION_GRADIENTS, f->gradient);
    return BT_OK;
}

static void run_golden(const char *json, const char *tensors, const format *f,
                       const bti_plan_options *plan) {
    golden g = read_golden(json, tensors, f);
    mk_model m;
    gradient_check check = {&g, &m, f};
    bind_features(&g);
    g.setup.plan = *plan;
    g.setup.engine.before_step = check_gradients;
    g.setup.engine.user = &check;
    g.setup.no_init = 1;
    m = mk_open(&g.setup);
    set_parameters(&g, &m);
    json_t *loss = json_object_get(g.root, "loss");
    json_t *norm = json_object_get(g.root, "grad_norm_before_clip");
    double lr = real(json_object_get(g.root, "optimizer"), "lr");
    for (size_t u = 0; u < json_array_size(loss); u++) {
        bti_update_result r;
        kit_ok(bti_engine_update(m.engine, g.sentence, g.sentences, (int64_t)u + 1, lr, &r));
        double want = json_number_value(json_array_get(loss, u));
        kit_near(r.loss, want, f->loss * fabs(want));
        want = json_number_value(json_array_get(norm, u));
        kit_near(r.grad_norm, want, f->gradient * want);
        if (u == 0) kit_near(r.nll, real(g.root, "nll_first"), f->loss * r.nll);
        ck_assert_int_eq(r.skipped, 0);
    }
    compare(&g, &m, "after3", BTI_REGION_WEIGHTS, f->parameter);
    mk_close(&m);
    free_golden(&g);
}

/* Every model of a folder; gives how many. */
static int run_folder(const char *folder, const format *f, const bti_plan_options *plan) {
    DIR *d = opendir(folder);
    if (d == NULL) return 0;
    int count = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        size_t n = strlen(e->d_name);
        /* Fused models are of width 8, with 12 units inside: in half types one relu that rounding
         * puts on the other side of zero is a tenth of a tensor, and nothing is left to bound. */
        int fused = strncmp(e->d_name, "fused_", 6) == 0 && f->cosine == 0;
        int known = strncmp(e->d_name, "transformer_", 12) == 0 || fused;
        if (!known || strcmp(e->d_name + n - 5, ".json") != 0) continue;
        printf("golden: %s\n", e->d_name);
        run_golden(kit_str("%s/%s", folder, e->d_name),
                   kit_str("%s/%.*s.safetensors", folder, (int)n - 5, e->d_name), f, plan);
        count++;
    }
    closedir(d);
    return count;
}

static const format fp64 = {BT_F64, BTI_PRECISION_FP32, 1e-9, 1e-9, 1e-9, 0, 0, 0},
                    fp32 = {BT_F32, BTI_PRECISION_FP32, 2e-6, 2e-5, 1e-4, 0, 0, 0},
                    half[] = {
                        {BT_F32, BTI_PRECISION_FP16, 0x1p-10, 0x1p-8, 0.015, 0.9999, 0.9999,
                         0.9999},
                        {BT_F32, BTI_PRECISION_BF16, 0x1p-8, 0x1p-6, 0.03, 0.999, 0.998, 0.99}};

static void run_everywhere(const format *f, const bti_plan_options *plan) {
    ck_assert_int_gt(run_folder(kit_data("golden"), f, plan), 0);
    const char *shared = kit_shared("data/golden");
    if (shared == NULL)
        kit_skip("golden values of ../shared: the folder is absent");
    else
        ck_assert_int_gt(run_folder(shared, f, plan), 0);
}

/* Gradients of tables whole and, where they may be, compact. */
START_TEST(in_double) {
    bt_dev *dev = mk_device(kit_backend(), NULL);
    const int has_double = dev->info.dtypes >> BT_F64 & 1;
    bti_device_close(dev);
    if (!has_double) {
        kit_skip("golden values in double: the %s backend has no fp64", kit_backend());
        return;
    }
    run_everywhere(&fp64,
                   &(bti_plan_options){.force_recompute_layers = -1, .force_compact = _i ? 3 : 0});
}
END_TEST

START_TEST(in_single) { run_everywhere(&fp32, &(bti_plan_options){.force_recompute_layers = -1}); }
END_TEST

/* The tightest fit: a sentence a micro-batch, all recomputed from every second input, chunks of 3
 * rows, slices of 2. */
static const bti_plan_options tight = {.force_recompute_layers = 4,
                                       .force_level = BTI_LEVEL_SEGMENTS,
                                       .force_segment = 2,
                                       .force_logit_rows = 3,
                                       .force_slice_rows = 2,
                                       .force_rows = {1, 1},
                                       .force_compact = 3};

START_TEST(in_single_tight) { run_everywhere(&fp32, &tight); }
END_TEST

START_TEST(in_half) {
    const format *f = &half[_i / 2];
    if (!mk_computes_in(f->precision)) return;
    run_everywhere(f, _i % 2 ? &tight : &(bti_plan_options){.force_recompute_layers = -1});
}
END_TEST

static void add(TCase *tc) {
    if (!mk_there()) return;
    tcase_add_loop_test(tc, in_double, 0, 2);
    tcase_add_test(tc, in_single);
    tcase_add_test(tc, in_single_tight);
    tcase_add_loop_test(tc, in_half, 0, 4);
}

int main(int argc, char **argv) { return kit_main("golden", add, argc, argv); }
