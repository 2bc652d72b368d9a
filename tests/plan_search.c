/* The search beside a plain loop over all choices of a grid, and any choice as it runs. */
#include <inttypes.h>

#include "backends/registry.h"
#include "core/fit/plan_file.h"
#include "core/fit/rates.h"
#include "tests/kit.h"
#include "tests/plan_parts.h"
#include "tests/watch.h"

static problem new_problem(int which) {
    static const int64_t source[] = {5, 3, 12, 7, 2}, target[] = {6, 8, 3, 14, 5};
    static const int64_t equal[] = {31, 31, 31};
    mk_setup s = mk_defaults();
    problem p = {.info = {.alignment = 64, .threads = 2}, .max_length = 40};
    const bti_sentence *x =
        which == 1 ? mk_sentences(3, equal, equal, 97, 1) : mk_sentences(5, source, target, 97, 1);
    s.model.d_model = which == 0 ? 64 : 16;
    s.model.ff = which == 0 ? 256 : 96;
    s.model.encoder_layers = which == 1 ? 4 : 2;
    s.model.decoder_layers = which == 2 ? 4 : 2;
    s.model.norm = which == 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = which == 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.dropout = s.model.activation_dropout = which == 2 ? 0 : 0.1;
    s.model.final_norm = which != 2;
    if (which == 2) s.vocab[0] = s.vocab[1] = 600;
    kit_ok(bti_model_new(&s.model, s.vocab[0], s.vocab[1], BT_F32, &p.model));
    p.w = mk_workload(x, which == 1 ? 3 : 5);
    p.planning = bti_backend_planning(which == 1 ? "ref" : "cpu");
    return p;
}

/* ---- every choice of a grid -------------------------------------------------------------------
 */

typedef struct tried {
    uint64_t total;
    double seconds;
} tried;

typedef struct grid {
    const problem *p;
    tried *all;
    size_t count;
} grid;

/* Emitted, laid out and counted, without a search. */
static void add_choice(grid *g, bti_choice c) {
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1, .wanted = &c};
    c.moments = BTI_MOMENTS_DEVICE;
    bti_run_plan *plan = plan_search(g->p, &o);
    ck_assert_int_eq(memcmp(&plan->choice, &c, sizeof c), 0);
    if (g->count % 1024 == 0) g->all = realloc(g->all, (g->count + 1024) * sizeof *g->all);
    g->all[g->count++] = (tried){plan->total, plan->seconds};
    bti_run_plan_free(plan);
}

/* Levels: one for all layers, two in any proportion, segments of two. */
static void add_levels(grid *g, bti_choice c) {
    int32_t layers = g->p->model->layers;
    add_choice(g, c);
    for (int level = 1; level <= BTI_LEVEL_SEGMENTS; level++)
        for (int rest = 0; rest < level && rest < BTI_LEVEL_SEGMENTS; rest++)
            for (int32_t n = 1; n <= layers; n++) {
                c.level = (bti_level)level;
                c.rest = (bti_level)rest;
                c.layers = n;
                c.segment = level == BTI_LEVEL_SEGMENTS ? 2 : 0;
                if (n < layers || rest == 0) add_choice(g, c);
            }
}

static grid every_choice(const problem *p) {
    static const int64_t chunk[] = {1024, 32, 1};
    grid g = {.p = p};
    int64_t n = p->w.max_sentences, part[] = {1, 2, n}, *rows = (int64_t *)p->w.max_rows;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            for (int slices = 1; slices <= 16; slices *= 16) {
                int64_t most = (rows[0] > rows[1] ? rows[0] : rows[1]) / part[i] + 1;
                bti_choice c = {.parts = part[i], .logit_rows = chunk[k]};
                if (slices > 1) c.slice_rows = (most + slices - 1) / slices;
                if (k == 0 || part[i] == n || (k == 1 && slices == 1)) add_levels(&g, c);
            }
    return g;
}

static int by_total(const void *a, const void *b) {
    const tried *x = a, *y = b;
    return x->total < y->total ? -1 : x->total > y->total;
}

/* At budgets from the least of the grid to plenty: a plan that fits, in nearly the least time of
 * all that fit; and the least is no more than the grid's. */
START_TEST(best_of_all) {
    enum { BUDGETS = 12 };
    problem p = new_problem(_i);
    grid g = every_choice(&p);
    double worst = 0;
    qsort(g.all, g.count, sizeof *g.all, by_total);
    for (int i = 0; i <= BUDGETS; i++) {
        double x = (double)i / BUDGETS;
        bti_plan_options o = {
            .force_recompute_layers = -1, .force_compact = -1, .moments = BTI_MOMENTS_DEVICE};
        o.budget = g.all[0].total +
                   (uint64_t)((double)(g.all[g.count - 1].total - g.all[0].total) * x * x);
        bti_run_plan *plan = plan_search(&p, &o);
        double best = INFINITY;
        for (size_t k = 0; k < g.count && g.all[k].total <= o.budget; k++)
            if (g.all[k].seconds < best) best = g.all[k].seconds;
        ck_assert_int_eq(plan->fits, 1);
        ck_assert_uint_le(plan->total, o.budget);
        ck_assert_uint_le(plan->minimum, g.all[0].total);
        ck_assert_msg(plan->seconds <= 1.02 * best, "%.3g s, the best of all takes %.3g",
                      plan->seconds, best);
        if (plan->seconds / best > worst) worst = plan->seconds / best;
        bti_run_plan_free(plan);
    }
    printf("plan: at %d budgets at most %.4f of the least time of %zu choices\n", BUDGETS + 1,
           worst, g.count);
    free(g.all);
    bti_model_free(p.model);
}
END_TEST

/* Just below the minimum nothing is found; at it something is, exactly as large. */
START_TEST(minimum_is_exact) {
    problem p = new_problem(_i);
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
    bti_run_plan *plan = plan_search(&p, &o);
    o.budget = plan->minimum;
    bti_run_plan_free(plan);
    plan = plan_search(&p, &o);
    ck_assert_int_eq(plan->fits, 1);
    ck_assert_uint_eq(plan->total, o.budget);
    bti_run_plan_free(plan);
    o.budget--;
    plan = plan_search(&p, &o);
    ck_assert_int_eq(plan->fits, 0);
    ck_assert_uint_eq(plan->total, plan->minimum);
    bti_run_plan_free(plan);
    bti_model_free(p.model);
}
END_TEST

/* ---- any combination --------------------------------------------------------------------------
 */

static uint64_t state;

static int64_t pick(int64_t least, int64_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((state >> 33) % (uint64_t)(most - least + 1));
}

static mk_setup random_setup(void) {
    static int64_t side[2][9];
    mk_setup s = mk_defaults();
    int64_t heads = pick(1, 4), n = pick(1, 7), longest = pick(1, 16), vocab = pick(8, 900);
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < n; k++) side[i][k] = pick(1, longest);
    s.model.heads = heads;
    s.model.d_model = heads * 2 * pick(1, 12);
    s.model.ff = pick(4, 160);
    s.model.encoder_layers = pick(1, 2);
    s.model.decoder_layers = pick(1, 2);
    s.model.norm = pick(0, 1) ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = pick(0, 1) ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.tie = (bti_tie)pick(0, 2);
    s.model.final_norm = (int)pick(0, 1);
    s.model.dropout = s.model.activation_dropout = pick(0, 1) ? 0.1 : 0;
    s.vocab[0] = s.vocab[1] = vocab;
    s.sentence = mk_sentences(n, side[0], side[1], vocab, state);
    s.sentences = n;
    s.plan.moments = (bti_moments)pick(BTI_MOMENTS_AUTO, BTI_MOMENTS_8BIT);
    s.apart = s.plan.moments == BTI_MOMENTS_HOST;
    return s;
}

/* A budget between the least and plenty. */
static uint64_t random_budget(const mk_setup *s, const char *backend) {
    bt_dev *dev = mk_device(backend, NULL);
    bti_workload w = mk_workload(s->sentence, s->sentences);
    bti_model *model;
    bti_run_plan *plan;
    kit_ok(bti_model_new(&s->model, s->vocab[0], s->vocab[1], BT_F32, &model));
    if (s->apart) dev->info.host_memory = 0;
    kit_ok(bti_plan_search(model, dev->driver->planning, &dev->info, &w, 20, &s->plan, &plan));
    uint64_t budget =
        plan->minimum + (uint64_t)pick(0, (int64_t)(plan->total - plan->minimum) + 64);
    bti_run_plan_free(plan);
    bti_model_free(model);
    bti_device_close(dev);
    return budget;
}

/* Counted bytes are the plan's, within the budget, and nothing is asked for once update 1 began. */
START_TEST(any_combination) {
    static const char *const backend[] = {"null", "null", "null", "ref", "far"};
#if defined(__SANITIZE_ADDRESS__)
    enum { RUNS = 30 };
#else
    enum { RUNS = 200 };
#endif
    state = 7;
    int64_t split = 0, sliced = 0, kept[BTI_MOMENTS_COUNT] = {0};
    for (int i = 0; i < RUNS; i++) {
        mk_setup s = random_setup();
        mk_watch watch = {0};
        s.backend = backend[i % 5];
        s.plan.budget = random_budget(&s, s.backend);
        s.watch = &watch;
        mk_model m = mk_open(&s);
        ck_assert_uint_le(m.plan->total, s.plan.budget);
        ck_assert_uint_eq(watch.bytes, m.plan->total);
        int64_t calls = watch.allocs + watch.host_allocs;
        uint64_t requests = bti_alloc_count();
        bti_update_result r;
        for (int64_t u = 1; u <= 2; u++)
            kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, u, 1e-3, &r));
        ck_assert_int_eq(watch.allocs + watch.host_allocs, calls);
        ck_assert_uint_eq(bti_alloc_count(), requests);
        split += r.micro_batches > 1;
        sliced += m.plan->choices.slice_rows > 0;
        kept[m.plan->choice.moments]++;
        mk_close(&m);
    }
    ck_assert_int_gt(split, RUNS / 10);
    ck_assert(sliced > 0 || RUNS < 200);
    for (int k = BTI_MOMENTS_DEVICE; k < BTI_MOMENTS_COUNT; k++) ck_assert_int_gt(kept[k], 0);
}
END_TEST

/* Ops stay inside their tensors in plans as they are found. */
START_TEST(found_and_watched) {
    state = 11 + (uint64_t)_i;
    for (int i = 0; i < 2; i++) {
        mk_setup s = random_setup();
        s.backend = _i ? "far" : "ref";
        s.sentences = s.sentences < 3 ? s.sentences : 3;
        s.plan.guard = 64; /* as the watched run has it, so that both have the same plan */
        s.plan.budget = random_budget(&s, s.backend);
        wt_result plain = wt_run(&s, 1, 0), watched = wt_run(&s, 1, 1);
        ck_assert_int_gt(watched.ops, 20);
        wt_same(&plain, &watched, 1);
        wt_free(&plain);
        wt_free(&watched);
    }
}
END_TEST

/* ---- what is kept -----------------------------------------------------------------------------
 */

/* A plan goes through its file unchanged, and is taken as it is where it fits. */
START_TEST(kept_plan) {
    problem p = new_problem(0);
    const char *path = kit_str("%s/plan.json", kit_tmpdir());
    bti_choice kept;
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
    bti_run_plan *plan = plan_search(&p, &o);
    o.budget = plan->minimum + (plan->total - plan->minimum) / 3;
    bti_run_plan_free(plan);
    plan = plan_search(&p, &o);
    const bt_dev_info device = {.name = "a device", .backend = "a", .driver = "1"};
    const bt_dev_info newer = {.name = "a device", .backend = "a", .driver = "2"};
    const bt_dev_info others[] = {{.name = "another", .backend = "a", .driver = "1"},
                                  {.name = "a device", .backend = "b", .driver = "1"}};
    kit_ok(bti_plan_file_write(path, &device, "fp32", plan));
    kit_ok(bti_plan_file_read(path, &newer, "fp32", p.model->layers, &kept));
    bti_plan_options again = {.force_recompute_layers = -1, .force_compact = -1, .wanted = &kept};
    bti_run_plan *same = plan_search(&p, &again);
    ck_assert_int_eq(memcmp(same->caps.rows, plan->caps.rows, sizeof plan->caps.rows), 0);
    ck_assert_int_eq(same->caps.sentences, plan->caps.sentences);
    ck_assert_int_eq(same->choices.logit_rows, plan->choices.logit_rows);
    ck_assert_int_eq(same->choices.slice_rows, plan->choices.slice_rows);
    ck_assert_mem_eq(same->choices.keep, plan->choices.keep,
                     (size_t)p.model->layers * sizeof *plan->choices.keep);
    ck_assert_uint_eq(same->total, plan->total);
    bti_run_plan_free(same);
    again.budget = plan->total - 1; /* it fits no more: another one does */
    same = plan_search(&p, &again);
    ck_assert_int_eq(same->fits, 1);
    ck_assert_uint_lt(same->total, plan->total);
    bti_run_plan_free(same);
    /* What no search offers, from a file that was damaged, is not taken: caps of 2^31 rows end at
     * the largest update, and pieces of a row are none. */
    bti_choice odd = kept;
    again.budget = 0;
    again.wanted = &odd;
    odd.sentences = odd.rows[0] = odd.rows[1] = INT32_MAX;
    same = plan_search(&p, &again);
    ck_assert_int_eq(same->fits, 1);
    for (int i = 0; i < 2; i++) ck_assert_int_le(same->caps.rows[i], p.w.max_rows[i]);
    bti_run_plan_free(same);
    odd.logit_rows = 1;
    same = plan_search(&p, &again);
    ck_assert(same->fits && !same->as_wanted);
    bti_run_plan_free(same);
    bti_run_plan_free(plan);
    for (int i = 0; i < 2; i++)
        kit_fails(bti_plan_file_read(path, &others[i], "fp32", p.model->layers, &kept), BT_EINPUT,
                  "another device");
    const char *const broken[] = {"", "{", "[]", "{\"device\": \"a device\", \"layers\": -1}"};
    for (int i = 0; i < 4; i++) {
        kit_write_text(path, broken[i]);
        kit_fails(bti_plan_file_read(path, &device, "fp32", p.model->layers, &kept), BT_EINPUT,
                  "no plan");
    }
    bti_model_free(p.model);
}
END_TEST

/* Rates are kept exactly; a broken file or another key are told apart. */
START_TEST(kept_rates) {
    const char *path = kit_str("%s/deeper/rates.json", kit_tmpdir());
    bti_rates a, b;
    double stated;
    bti_rates_default(&(bt_dev_info){.flops = 3e11, .bytes_per_s = 2e10}, &a);
    kit_ok(bti_rates_save(path, "key", 3e11, &a));
    kit_ok(bti_rates_load(path, "key", &stated, &b));
    ck_assert_mem_eq(&a, &b, sizeof a);
    kit_near(stated, 3e11, 0);
    kit_fails(bti_rates_load(path, "other", NULL, &b), BT_EINPUT, "does not hold");
    kit_ok(bti_rates_load(path, NULL, NULL, &b));
    kit_write_text(path, "{\"device\": \"key\", \"seconds\": {\"call\": 1e-6}}");
    kit_fails(bti_rates_load(path, "key", NULL, &b), BT_EINPUT, "does not hold");
    a.seconds[BTI_COST_CALL] = -1;
    kit_ok(bti_rates_save(path, "key", 3e11, &a));
    kit_fails(bti_rates_load(path, "key", NULL, &b), BT_EINPUT, "does not hold");
}
END_TEST

/* Of one key they hold whatever the device states today: a throttled card is planned for as before.
 */
START_TEST(rates_are_kept) {
    const char *cache = kit_tmpdir();
    char *set = getenv("XDG_CACHE_HOME"), *was = set ? strdup(set) : NULL;
    bt_dev *dev;
    bti_rates first, again;
    setenv("XDG_CACHE_HOME", cache, 1);
    kit_ok(bti_device_open("null", NULL, &dev)); /* as fast as calls are, so never twice the same */
    dev->info.flops = 1e9;
    bti_rates_get(dev, BTI_PRECISION_FP32, &first);
    dev->info.flops = 1e8;
    bti_rates_get(dev, BTI_PRECISION_FP32, &again);
    bti_device_close(dev);
    ck_assert_mem_eq(&first, &again, sizeof first);
    if (was)
        setenv("XDG_CACHE_HOME", was, 1);
    else
        unsetenv("XDG_CACHE_HOME");
    free(was);
}
END_TEST

/* More work never costs less, and every kind of it is counted. */
START_TEST(cost_grows) {
    bti_rates r;
    bti_rates_default(&(bt_dev_info){0}, &r);
    for (int i = 0; i < BTI_COST_KINDS; i++) ck_assert(r.seconds[i] > 0);
    mk_setup s = mk_defaults();
    s.backend = "null";
    s.model.dropout = 0.1;
    double last = 0;
    for (int64_t n = 1; n <= 4; n++) {
        int64_t lengths[] = {9, 9, 9, 9};
        s.sentence = mk_sentences(n, lengths, lengths, 97, 1);
        s.sentences = n;
        s.plan.force_recompute_layers = 0;
        mk_model m = mk_open(&s);
        bti_cost step, update;
        bti_program_cost(m.plan->step, &step);
        bti_program_cost(m.plan->update, &update);
        for (int i = 0; i < BTI_COST_KINDS; i++) /* no op copies to the host */
            ck_assert(i == BTI_COST_HOST_BYTE || step.amount[i] + update.amount[i] > 0);
        ck_assert(m.plan->seconds > last);
        last = m.plan->seconds;
        mk_close(&m);
    }
}
END_TEST

void add_plan_search(TCase *tc) {
    tcase_add_loop_test(tc, best_of_all, 0, 3);
    tcase_add_loop_test(tc, minimum_is_exact, 0, 3);
    tcase_add_test(tc, any_combination);
    tcase_add_loop_test(tc, found_and_watched, 0, 2);
    tcase_add_test(tc, kept_plan);
    tcase_add_test(tc, kept_rates);
    tcase_add_test(tc, rates_are_kept);
    tcase_add_test(tc, cost_grows);
}
