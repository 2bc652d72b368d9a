/* Where the time of an update goes: runs updates of a model on a traced device and prints, for each
 * op, calls, seconds, share, GFLOP/s, GB/s and the share of the roofline; the measured seconds
 * beside the predicted ones.
 *
 * usage: step [sweep|best|plan|pair|ops] [backend] [updates] [d ff heads layers vocab batch length
 *             precision]
 *        defaults: cpu 3 512 2048 8 6 32100 128 15 fp32; lengths are length +- a half on both sides
 * With `sweep`: budgets from the least that will do to plenty; of each plan the predicted and the
 * measured seconds an update (least of `updates` after one that warms; processor seconds with one
 * thread, which other programs disturb little), at the end the median error.
 * With `pair`: updates in fp32 and in `precision` in turn, seconds of each and their ratio, which
 * other programs disturb less than either. OMP_THREAD_LIMIT=1 gives one thread.
 * With `ops`: the same updates on the cpu backend and on `backend` in turn, and of each op the
 * seconds on both side by side: medians of the updates, and their ratio. */
#include <stdio.h>
#include <time.h>

#include "backends/registry.h"
#include "backends/trace.h"
#include "core/fit/rates.h"
#include "tests/kit.h"
#include "tests/model_kit.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t argument(int argc, char **argv, int i, int64_t fallback) {
    return i < argc ? atoll(argv[i]) : fallback;
}

/* The least seconds that the op's flops and bytes take (S. Williams et al., "Roofline", 2009), at
 * the speeds of a large product and of a large copy that the device measured when it was opened;
 * bytes are those that the op must move, each operand once. */
static double roofline(const bt_dev_info *info, const bt_trace_row *r) {
    const double product = r->flops / info->flops, move = r->bytes / info->bytes_per_s;
    return product > move ? product : move;
}

/* In the last column what share of an op's seconds its roofline is; over 100 where caches keep what
 * the op reads. */
static void print_rows(const bt_dev_info *info, const bt_trace_row *row, double seconds,
                       int64_t updates) {
    printf("large product %.1f GFLOP/s, large copy %.2f GB/s\n", info->flops / 1e9,
           info->bytes_per_s / 1e9);
    printf("%-16s %8s %10s %7s %9s %8s %9s\n", "op", "calls", "ms/update", "share", "GFLOP/s",
           "GB/s", "roofline");
    for (int op = 0; op < BT_OP_COUNT; op++) {
        const bt_trace_row *r = &row[op];
        if (r->calls == 0) continue;
        printf("%-16s %8.1f %10.2f %6.1f%% %9.1f %8.2f %8.1f%%\n", bti_op_info((bt_op)op)->name,
               (double)r->calls / (double)updates, 1e3 * r->seconds / (double)updates,
               100 * r->seconds / seconds, r->flops / r->seconds / 1e9, r->bytes / r->seconds / 1e9,
               100 * roofline(info, r) / r->seconds);
    }
}

/* The setup that the arguments from argv[1] on describe; target tokens of an update. */
static mk_setup setup_of(int argc, char **argv, int64_t *target) {
    static int64_t side[2][4096];
    int64_t batch = argument(argc, argv, 8, 128), length = argument(argc, argv, 9, 15);
    mk_setup s = mk_defaults();
    if (batch > 4096) batch = 4096;
    for (int64_t i = 0; i < batch; i++)
        for (int k = 0; k < 2; k++)
            side[k][i] = length - length / 2 + (i * 7 + k * 3) % (length + 1);
    *target = 0;
    for (int64_t i = 0; i < batch; i++) *target += side[1][i];
    s.backend = argc > 1 ? argv[1] : "cpu";
    s.model.d_model = argument(argc, argv, 3, 512);
    s.model.ff = argument(argc, argv, 4, 2048);
    s.model.heads = argument(argc, argv, 5, 8);
    s.model.encoder_layers = s.model.decoder_layers = argument(argc, argv, 6, 6);
    s.model.dropout = s.model.attention_dropout = s.model.activation_dropout =
        s.model.embedding_dropout = 0.1;
    s.vocab[0] = s.vocab[1] = argument(argc, argv, 7, 32100);
    s.sentence = mk_sentences(batch, side[0], side[1], s.vocab[0], 1);
    s.sentences = batch;
    for (int p = 0; p < BTI_PRECISION_COUNT && argc > 10; p++)
        if (strcmp(argv[10], bti_precision_name((bti_precision)p)) == 0)
            s.precision = (bti_precision)p;
    if (s.precision == BTI_PRECISION_FP16) s.engine.loss_scale = 1024;
    return s;
}

static void measure_rates(const mk_setup *s, bti_rates *rates) {
    bt_dev *dev = mk_device(s->backend, NULL);
    double start = now();
    bti_rates_default(&dev->info, rates);
    if (dev->info.flops > 0 && bti_rates_measure(dev, s->precision, rates) != BT_OK)
        printf("planned with rates as stated: %s\n", bt_last_error());
    printf("%s, %u threads; rates in %.3f s:", dev->info.name, dev->info.threads, now() - start);
    for (int i = 0; i < BTI_COST_KINDS; i++)
        printf(" %s %.3g", bti_cost_name[i], rates->seconds[i]);
    printf("\n");
    bti_device_close(dev);
}

static void run(int argc, char **argv) {
    int64_t updates = argument(argc, argv, 2, 3), target;
    mk_setup s = setup_of(argc, argv, &target);
    bti_rates rates;
    measure_rates(&s, &rates);
    s.plan.rates = &rates;
    s.backend = kit_str("trace:%s", s.backend);
    mk_model m = mk_open(&s);
    bti_update_result r;
    kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, 1, 1e-4, &r));
    bt_trace_row *row = bti_trace_rows(m.dev);
    memset(row, 0, BT_OP_COUNT * sizeof *row);
    bti_trace_options(m.dev)->time = 1;
    double start = now();
    for (int64_t u = 0; u < updates; u++)
        kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, u + 2, 1e-4, &r));
    double seconds = now() - start;
    printf("%lld parameters, %lld target tokens: %.3f s an update (predicted %.3f), %.0f target "
           "tokens/s, %.2f GiB planned\n",
           (long long)m.model->params.elements, (long long)target, seconds / (double)updates,
           m.plan->seconds, (double)(target * updates) / seconds,
           (double)m.plan->total / (1 << 30));
    print_rows(&m.dev->info, row, seconds, updates);
    mk_close(&m);
}

/* Seconds of this process; of the clock where it has several threads. */
static double processor(const bt_dev *dev) {
    struct timespec t;
    clock_gettime(dev->info.threads <= 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- planning ------------------------------------------------------------------------------- */

/* Seconds that the search takes from the least that will do to plenty. */
static void plan(int argc, char **argv) {
    int64_t target;
    mk_setup s = setup_of(argc, argv, &target);
    bti_workload w = mk_workload(s.sentence, s.sentences);
    bt_dev *dev = mk_device(s.backend, NULL);
    bti_model *model;
    bti_run_plan *p;
    kit_ok(bti_model_new(&s.model, s.vocab[0], s.vocab[1], BT_F32, &model));
    uint64_t least = 0, plenty = 0;
    for (int i = -1; i < 12; i++) {
        double x = i / 11.0, start = processor(dev);
        s.plan.budget = i < 0 ? 0 : least + (uint64_t)((double)(plenty - least) * x * x);
        kit_ok(bti_plan_search(model, dev->driver->planning, &dev->info, &w, 1024, &s.plan, &p));
        double spent = processor(dev) - start;
        if (i < 0) least = p->minimum;
        if (i < 0) plenty = p->total;
        printf(
            "%.3f s: %8.1f MiB of %8.1f, %lld micro-batches, %d layers %s, chunks of %lld, slices "
            "of %lld: %.3f s predicted\n",
            spent, (double)p->total / (1 << 20), (double)s.plan.budget / (1 << 20),
            (long long)p->micro_batches, p->choice.layers, bti_level_name[p->choice.level],
            (long long)p->choices.logit_rows, (long long)p->choices.slice_rows, p->seconds);
        bti_run_plan_free(p);
    }
    bti_model_free(model);
    bti_device_close(dev);
}

/* ---- sweep ----------------------------------------------------------------------------------- */

enum { BUDGETS = 12 };

/* Plans and runs; gives predicted over measured seconds. */
static double one_budget(const mk_setup *s, int64_t updates) {
    double start = now(), best = INFINITY;
    mk_model m = mk_open(s);
    double planning = now() - start;
    bti_update_result r;
    for (int64_t u = 0; u <= updates; u++) {
        double from = processor(m.dev);
        kit_ok(bti_engine_update(m.engine, s->sentence, s->sentences, u + 1, 1e-4, &r));
        double spent = processor(m.dev) - from;
        if (u > 0 && spent < best) best = spent;
    }
    double ratio = m.plan->seconds / best;
    printf("%8.1f MiB of %8.1f: %3lld micro-batches, recompute %s, chunks of %4lld: predicted %.3f "
           "measured %.3f ratio %.2f (opened in %.2f s)\n",
           (double)m.plan->total / (1 << 20), (double)s->plan.budget / (1 << 20),
           (long long)r.micro_batches,
           kit_str("%d %s, %d %s, slices of %d", m.plan->choice.layers,
                   bti_level_name[m.plan->choice.level], m.model->layers - m.plan->choice.layers,
                   bti_level_name[m.plan->choice.rest], (int)m.plan->choice.slice_rows),
           (long long)m.plan->choices.logit_rows, m.plan->seconds, best, ratio, planning);
    mk_close(&m);
    return ratio;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sweep(int argc, char **argv) {
    int64_t updates = argument(argc, argv, 2, 3), target;
    mk_setup s = setup_of(argc, argv, &target);
    bti_rates rates;
    double error[BUDGETS];
    measure_rates(&s, &rates);
    s.plan.rates = &rates;
    mk_model m = mk_open(&s);
    uint64_t least = m.plan->minimum, plenty = m.plan->total;
    mk_close(&m);
    for (int i = 0; i < BUDGETS; i++) {
        double x = (double)i / (BUDGETS - 1); /* closer together where they are tight */
        s.plan.budget = least + (uint64_t)((double)(plenty - least) * x * x);
        error[i] = fabs(one_budget(&s, updates) - 1);
    }
    qsort(error, BUDGETS, sizeof *error, ascending);
    printf("median error of the prediction %.1f %%, largest %.1f %%\n",
           50 * (error[BUDGETS / 2 - 1] + error[BUDGETS / 2]), 100 * error[BUDGETS - 1]);
}

/* ---- pair -------------------------------------------------------------------------------------
 */

static double one_update(mk_model *m, const mk_setup *s, int64_t u) {
    bti_update_result r;
    double from = processor(m->dev);
    kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, (uint64_t)u + 1, 1e-4, &r));
    return processor(m->dev) - from;
}

static double median(double *x, int64_t n) {
    qsort(x, (size_t)n, sizeof *x, ascending);
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

/* Updates in fp32 and in the precision asked for, in turn. */
static void pair(int argc, char **argv) {
    enum { MOST = 1000 };
    static double seconds[2][MOST], ratio[MOST];
    int64_t updates = argument(argc, argv, 2, 3), target;
    if (updates > MOST) updates = MOST;
    mk_setup half = setup_of(argc, argv, &target), wide = half;
    bti_rates rates;
    measure_rates(&half, &rates);
    half.plan.rates = wide.plan.rates = &rates;
    wide.precision = BTI_PRECISION_FP32;
    mk_model a = mk_open(&wide), b = mk_open(&half);
    for (int64_t u = 0; u <= updates; u++) {
        double s[2] = {one_update(&a, &wide, u), one_update(&b, &half, u)};
        if (u == 0) continue; /* it warms */
        for (int i = 0; i < 2; i++) seconds[i][u - 1] = s[i];
        ratio[u - 1] = s[1] / s[0];
    }
    printf("medians of %lld updates: fp32 %.3f s, %s %.3f s; of their ratios %.3f (%.3f to %.3f); "
           "%.2f and %.2f GiB planned\n",
           (long long)updates, median(seconds[0], updates), bti_precision_name(half.precision),
           median(seconds[1], updates), median(ratio, updates), ratio[0], ratio[updates - 1],
           (double)a.plan->total / (1 << 30), (double)b.plan->total / (1 << 30));
    mk_close(&a);
    mk_close(&b);
}

/* ---- ops --------------------------------------------------------------------------------------
 */

enum { MOST_UPDATES = 100 };
typedef struct op_seconds {
    double of[BT_OP_COUNT][MOST_UPDATES];
} op_seconds;

static void time_ops(mk_model *m, const mk_setup *s, int64_t u, op_seconds *out) {
    bt_trace_row *row = bti_trace_rows(m->dev);
    bti_update_result r;
    memset(row, 0, BT_OP_COUNT * sizeof *row);
    kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, (uint64_t)u + 2, 1e-4, &r));
    for (int op = 0; op < BT_OP_COUNT; op++) out->of[op][u] = row[op].seconds;
}

/* The same updates on the cpu backend and on another one in turn, op by op. */
static void ops(int argc, char **argv) {
    static op_seconds seconds[2];
    int64_t updates = argument(argc, argv, 2, 3), target;
    if (updates > MOST_UPDATES) updates = MOST_UPDATES;
    mk_setup s = setup_of(argc, argv, &target);
    const char *backend[2] = {"trace:cpu", kit_str("trace:%s", s.backend)};
    mk_model m[2];
    double total[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        bti_update_result r;
        s.backend = backend[k];
        m[k] = mk_open(&s);
        printf("%s: %s\n", backend[k], m[k].dev->info.name);
        kit_ok(bti_engine_update(m[k].engine, s.sentence, s.sentences, 1, 1e-4, &r));
        bti_trace_options(m[k].dev)->time = 1;
    }
    for (int64_t u = 0; u < updates; u++)
        for (int k = 0; k < 2; k++) time_ops(&m[k], &s, u, &seconds[k]);
    printf("%-16s %8s %12s %12s %7s\n", "op", "calls", "cpu ms", "ms", "ratio");
    for (int op = 0; op < BT_OP_COUNT; op++) {
        uint64_t calls = bti_trace_rows(m[1].dev)[op].calls;
        double t[2];
        for (int k = 0; k < 2; k++) total[k] += t[k] = median(seconds[k].of[op], updates);
        if (t[0] + t[1] > 0)
            printf("%-16s %8llu %12.3f %12.3f %7.2f\n", bti_op_info((bt_op)op)->name,
                   (unsigned long long)calls, 1e3 * t[0], 1e3 * t[1], t[1] / t[0]);
    }
    printf("%-16s %8s %12.3f %12.3f %7.2f\n", "all", "", 1e3 * total[0], 1e3 * total[1],
           total[1] / total[0]);
    for (int k = 0; k < 2; k++) mk_close(&m[k]);
}

/* ---- best -------------------------------------------------------------------------------------
 */

/* Measured seconds of one choice; 0: it does not fit. */
static double measure_choice(mk_setup *s, const bti_choice *c, int64_t updates) {
    s->plan.wanted = c;
    mk_model m = mk_open(s);
    int taken = c == NULL || memcmp(&m.plan->choice, c, sizeof *c) == 0;
    double best = INFINITY;
    bti_update_result r;
    for (int64_t u = 0; taken && u <= updates; u++) {
        double from = processor(m.dev);
        kit_ok(bti_engine_update(m.engine, s->sentence, s->sentences, u + 1, 1e-4, &r));
        double spent = processor(m.dev) - from;
        if (u > 0 && spent < best) best = spent;
    }
    mk_close(&m);
    s->plan.wanted = NULL;
    return taken ? best : 0;
}

/* The plan chosen beside measured ones of a grid, at a budget a quarter of the way to plenty. */
static void best(int argc, char **argv) {
    static const int64_t parts[] = {1, 2, 4, 8}, chunk[] = {1024, 128};
    int64_t updates = argument(argc, argv, 2, 3), target;
    mk_setup s = setup_of(argc, argv, &target);
    bti_rates rates;
    measure_rates(&s, &rates);
    s.plan.rates = &rates;
    mk_model m = mk_open(&s);
    s.plan.budget = m.plan->minimum + (m.plan->total - m.plan->minimum) / 4;
    int32_t layers = m.model->layers;
    mk_close(&m);
    double chosen = measure_choice(&s, NULL, updates), least = chosen;
    for (int i = 0; i < 4; i++)
        for (int level = 0; level < BTI_LEVEL_SEGMENTS; level++)
            for (int k = 0; k < 2; k++) {
                bti_choice c = {.parts = parts[i],
                                .level = (bti_level)level,
                                .layers = level ? layers : 0,
                                .logit_rows = chunk[k]};
                double t = measure_choice(&s, &c, updates);
                if (t == 0) continue;
                printf("%2lld micro-batches, %s, chunks of %4lld: %.3f s\n", (long long)parts[i],
                       bti_level_name[level], (long long)chunk[k], t);
                if (t < least) least = t;
            }
    double again = measure_choice(&s, NULL, updates); /* the machine may have changed meanwhile */
    if (again < chosen) chosen = again;
    printf("chosen %.3f s, best measured %.3f: %.1f %% more\n", chosen, least,
           100 * (chosen / least - 1));
}

static int saved_argc;
static char **saved_argv;
START_TEST(bench) {
    if (saved_argc > 1 && strcmp(saved_argv[1], "sweep") == 0)
        sweep(saved_argc - 1, saved_argv + 1);
    else if (saved_argc > 1 && strcmp(saved_argv[1], "best") == 0)
        best(saved_argc - 1, saved_argv + 1);
    else if (saved_argc > 1 && strcmp(saved_argv[1], "pair") == 0)
        pair(saved_argc - 1, saved_argv + 1);
    else if (saved_argc > 1 && strcmp(saved_argv[1], "plan") == 0)
        plan(saved_argc - 1, saved_argv + 1);
    else if (saved_argc > 1 && strcmp(saved_argv[1], "ops") == 0)
        ops(saved_argc - 1, saved_argv + 1);
    else
        run(saved_argc, saved_argv);
}
END_TEST
static void add(TCase *tc) { tcase_add_test(tc, bench); }

int main(int argc, char **argv) {
    saved_argc = argc;
    saved_argv = argv;
    return kit_main("step", add, argc, argv);
}
