#include "tests/model_kit.h"

#include "backends/registry.h"
#include "tests/far.h"
#include "tests/kit.h"

mk_setup mk_defaults(void) {
    return (mk_setup){.model = {.d_model = 32,
                                .ff = 64,
                                .heads = 4,
                                .encoder_layers = 2,
                                .decoder_layers = 2,
                                .final_norm = 1,
                                .norm_eps = 1e-5},
                      .vocab = {97, 97},
                      .dtype = BT_F32,
                      .plan = {.force_recompute_layers = -1, .force_compact = -1},
                      .engine = {.start = 1,
                                 .seed = 1,
                                 .smoothing = 0.1,
                                 .clip_norm = 1.0,
                                 .adamw = {.beta1 = 0.9, .beta2 = 0.98, .eps = 1e-9}}};
}

const bti_sentence *mk_sentences(int64_t n, const int64_t *source, const int64_t *target,
                                 int64_t vocab, uint64_t seed) {
    int64_t total = 0;
    for (int64_t i = 0; i < n; i++) total += source[i] + target[i];
    /* One block, handed to the kit as a string that lives to the end of the suite. */
    size_t bytes = (size_t)n * sizeof(bti_sentence) + (size_t)total * sizeof(int32_t);
    bti_sentence *s = (bti_sentence *)(uintptr_t)kit_str("%*s", (int)bytes, "");
    int32_t *ids = (int32_t *)(s + n);
    uint32_t at = 0;
    for (int64_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) {
            int64_t count = side ? target[i] : source[i];
            s[i].ids[side] = ids;
            s[i].count[side] = count;
            for (int64_t j = 0; j < count; j++, at++)
                *ids++ =
                    j == count - 1
                        ? 2
                        : 4 + (int32_t)(bti_philox(seed, at, 7, 0, 0).v[0] % (uint32_t)(vocab - 4));
        }
    return s;
}

/* Distinct ids of a side, and on the target side the symbol before the first. */
static int64_t count_distinct(const bti_sentence *s, int64_t n, int side) {
    int32_t most = 0;
    int64_t count = side;
    for (int pass = 0; pass < 2; pass++) {
        char *seen = pass ? calloc((size_t)most + 1, 1) : NULL;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < s[i].count[side] - side; j++) {
                int32_t id = s[i].ids[side][j];
                if (!pass && id > most) most = id;
                if (!pass || seen[id]) continue;
                seen[id] = 1;
                count++;
            }
        free(seen);
    }
    return count;
}

/* Rows of a sentence on a side; m NULL: of a model that reads text alone. */
static int64_t rows_of(const bti_model *m, const bti_sentence *s, int side) {
    return side == 0 && m != NULL ? bti_encoder_rows(m, s) : s->count[side];
}

static void count_segments(bti_workload *w, const bti_model *m, const bti_sentence *s, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (s[i].count[0] > w->tokens) w->tokens = s[i].count[0];
        w->mean_tokens += (double)s[i].count[0] / (double)n;
        for (int32_t f = 0; f < m->cfg.features; f++) {
            if (s[i].rows[f] > w->feature[f]) w->feature[f] = s[i].rows[f];
            w->mean_feature[f] += (double)s[i].rows[f] / (double)n;
        }
    }
}

bti_workload mk_workload(const bti_sentence *s, int64_t n) { return mk_workload_of(NULL, s, n); }

bti_workload mk_workload_of(const bti_model *m, const bti_sentence *s, int64_t n) {
    bti_workload w = {.max_sentences = n, .mean_sentences = (double)n};
    for (int64_t i = 0; i < n; i++) {
        double a = (double)rows_of(m, &s[i], 0), b = (double)s[i].count[1];
        for (int side = 0; side < 2; side++) {
            int64_t rows = rows_of(m, &s[i], side);
            w.max_rows[side] += rows;
            if (rows > w.longest[side]) w.longest[side] = rows;
        }
        w.mean_pairs[BTI_PAIRS_ENCODER] += a * a / (double)n;
        w.mean_pairs[BTI_PAIRS_DECODER] += b * (b + 1) / 2 / (double)n;
        w.mean_pairs[BTI_PAIRS_CROSS] += a * b / (double)n;
        if (m != NULL)
            w.mean_pairs[BTI_PAIRS_FUSION] += a * (double)bti_memory_rows(m, &s[i]) / (double)n;
    }
    if (m != NULL && m->segments > 0) count_segments(&w, m, s, n);
    /* The update itself; the kit's memory, as sentences are. */
    w.sample = (int64_t(*)[2])(uintptr_t)kit_str("%*s", (int)((size_t)n * sizeof *w.sample), "");
    for (int64_t i = 0; i < n; i++)
        for (int side = 0; side < 2; side++) w.sample[i][side] = rows_of(m, &s[i], side);
    w.sample_end[0] = n;
    w.samples = 1;
    for (int side = 0; side < 2; side++) {
        w.mean_rows[side] = (double)w.max_rows[side];
        w.max_distinct[side] = m == NULL || m->embed[side] >= 0 ? count_distinct(s, n, side) : 0;
    }
    return w;
}

/* ---- devices -----------------------------------------------------------------------------------
 */

static struct {
    mk_watch *watch;
    const bt_dev_ops *real;
    bt_dev_ops table;
} watched;

static bt_status watch_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    mk_watch *w = watched.watch;
    BT_TRY(watched.real->alloc(dev, bytes + w->margin, out));
    w->buffer[w->allocs] = *out;
    w->buffer_bytes[w->allocs++] = bytes;
    w->bytes += bytes;
    return BT_OK;
}

static void watch_free(bt_dev *dev, bt_buf *buf) {
    mk_watch *w = watched.watch;
    for (int64_t i = 0; i < w->allocs; i++) {
        if (w->buffer[i] != buf || buf == NULL) continue;
        w->bytes -= w->buffer_bytes[i];
        w->buffer[i] = NULL;
        w->freed++;
    }
    watched.real->free(dev, buf);
}

static bt_status watch_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    watched.watch->host_allocs++;
    return watched.real->host_alloc(dev, bytes, out);
}

int mk_there(void) {
    const bt_driver *driver;
    char reason[512] = "";
    int count = 0;
    if (strncmp(kit_backend(), "opencl", 6) != 0) return 1; /* all others must be there */
    if (bti_backend_driver("opencl", &driver) != BT_OK ||
        driver->probe(bti_host(), &count, reason, sizeof reason) != BT_OK)
        snprintf(reason, sizeof reason, "%s", bt_last_error());
    if (count == 0) kit_skip("the whole suite on opencl: %s", reason);
    return count > 0;
}

int mk_computes_in(bti_precision p) {
    bt_dev *dev = mk_device(kit_backend(), NULL);
    int has = bti_precision_has(&dev->info, p);
    bti_device_close(dev);
    if (!has)
        kit_skip("%s: the %s backend does not compute in it", bti_precision_name(p), kit_backend());
    return has;
}

bt_dev *mk_device(const char *backend, mk_watch *watch) {
    bt_dev *dev;
    if (strstr(backend, "far") != NULL) far_register();
    kit_ok(bti_device_open(backend, &(bt_open_options){0}, &dev));
    if (watch == NULL) return dev;
    watched.watch = watch;
    watched.real = dev->ops;
    watched.table = *dev->ops;
    watched.table.alloc = watch_alloc;
    watched.table.free = watch_free;
    watched.table.host_alloc = watch_host_alloc;
    dev->ops = &watched.table;
    return dev;
}

/* ---- models ------------------------------------------------------------------------------------
 */

/* The step of a plan with other classes kept. */
static void replan(mk_model *m, const mk_setup *setup) {
    bti_run_plan *plan = m->plan;
    bti_step step = {.model = m->model,
                     .places = &plan->places,
                     .shape = plan->caps,
                     .choices = plan->choices,
                     .training = 1,
                     .first_micro_batch = 1,
                     .grad_scale = 1};
    bti_layout_options o = {
        .alignment = m->dev->info.alignment, .heap = plan->heap, .guard = setup->plan.guard};
    bti_train_program unused;
    memcpy(plan->choices.keep, setup->keep, (size_t)m->model->layers * sizeof *setup->keep);
    kit_ok(bti_model_emit_step(plan->step, &step, &unused));
    kit_ok(bti_layout_make(plan->step, &o, &plan->layout));
    if (plan->region[BTI_REGION_DYNAMIC] < plan->layout.bytes)
        plan->region[BTI_REGION_DYNAMIC] = plan->layout.bytes;
}

mk_model mk_open(const mk_setup *setup) {
    mk_model m = {0};
    m.dev = mk_device(setup->backend ? setup->backend : kit_backend(), setup->watch);
    if (setup->apart) m.dev->info.host_memory = 0;
    if (setup->heap) m.dev->info.max_alloc = setup->heap;
    kit_ok(bti_model_new(&setup->model, setup->vocab[0], setup->vocab[1], setup->dtype, &m.model));
    bti_workload w = mk_workload_of(m.model, setup->sentence, setup->sentences);
    int64_t longest = w.longest[0] > w.longest[1] ? w.longest[0] : w.longest[1];
    if (setup->precision != BTI_PRECISION_FP32) bti_precision_set(setup->precision, m.model);
    size_t patterns = 0;
    while (patterns < 4 && setup->freeze[patterns] != NULL) patterns++;
    kit_ok(bti_model_freeze(m.model, setup->freeze, patterns));
    kit_ok(bti_plan_search(m.model, m.dev->driver->planning, &m.dev->info, &w, longest,
                           &setup->plan, &m.plan));
    kit_ok(bti_run_plan_check(m.plan));
    if (setup->keep != NULL) replan(&m, setup);
    kit_ok(bti_engine_new(m.dev, m.model, m.plan, w.max_sentences, w.max_rows[1], &setup->engine,
                          &m.engine));
    if (!setup->no_init) kit_ok(bti_engine_init(m.engine));
    return m;
}

void mk_close(mk_model *m) {
    bti_engine_free(m->engine);
    bti_run_plan_free(m->plan);
    bti_model_free(m->model);
    bti_device_close(m->dev);
    *m = (mk_model){0};
}

/* The compact gradient of parameter i, its rows at their ids. Rows behind the last id are zero. */
static void spread(mk_model *m, int32_t i, void *host, double *out) {
    const bti_param *p = &m->model->params.param[i];
    bt_dtype dtype = m->model->params.dtype;
    int side = m->model->embed[1] == i;
    const int32_t *index = m->engine->index[side];
    kit_ok(bti_engine_read(m->engine, BTI_REGION_GRADIENTS, i, 0, p->grad_rows * p->cols, host));
    memset(out, 0, (size_t)(p->rows * p->cols) * sizeof *out);
    for (int64_t k = 0; k < p->grad_rows; k++)
        for (int64_t j = 0; j < p->cols; j++) {
            double x = bti_load(host, dtype, k * p->cols + j);
            if (index[k] < p->rows)
                out[index[k] * p->cols + j] = x;
            else
                ck_assert_msg(x == 0, "row %d of the compact gradient of %s holds %g", (int)k,
                              p->name, x);
        }
}

double *mk_state(mk_model *m, bti_region region, int64_t *count) {
    const bti_params *t = &m->model->params;
    double *out = malloc((size_t)t->elements * sizeof *out);
    void *host = malloc((size_t)t->elements * sizeof(double));
    int64_t at = 0;
    for (int32_t i = 0; i < t->count; i++) {
        int64_t n = t->param[i].rows * t->param[i].cols;
        int there = region == BTI_REGION_WEIGHTS || !t->param[i].frozen;
        if (there && region == BTI_REGION_GRADIENTS && t->param[i].compact) {
            spread(m, i, host, out + at);
            at += n;
            continue;
        }
        if (there) kit_ok(bti_engine_read(m->engine, region, i, 0, n, host));
        for (int64_t j = 0; j < n; j++) out[at++] = there ? bti_load(host, t->dtype, j) : 0;
    }
    free(host);
    if (count) *count = at;
    return out;
}

double mk_relative(const double *a, const double *b, int64_t n) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = a[i] - b[i];
        diff += d * d;
        norm += b[i] * b[i];
    }
    double r = sqrt(diff) / (norm > 0 ? sqrt(norm) : 1);
    return r <= INFINITY ? r : INFINITY;
}
