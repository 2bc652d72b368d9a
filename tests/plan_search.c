/* The search beside a plain loop over all choices of a grid. */
#define STEP 1
#include <inttypes.h>

#include "backends/registry.h"
#include "tests/kit.h"
#include "tests/plan_parts.h"

typedef struct problem {
    bti_model *model;
    bti_workload w;
    bt_dev_info info;
    const bt_planning *planning;
} problem;

static problem new_problem(int which) {
    static const int64_t source[] = {5, 3, 12, 7, 2, 9, 4, 11}, target[] = {6, 8, 3, 14, 5, 10, 2, 7};
    static const int64_t equal[] = {31, 31, 31, 31};
    mk_setup s = mk_defaults();
    problem p = {.info = {.alignment = 64, .threads = 2}};
    const bti_sentence *x = which == 1 ? mk_sentences(4, equal, equal, 97, 1)
                                       : mk_sentences(8, source, target, 97, 1);
    s.model.d_model = which == 2 ? 16 : 64;
    s.model.ff = which == 2 ? 96 : 256;
    s.model.encoder_layers = which == 1 ? 3 : 2;
    s.model.decoder_layers = which == 2 ? 4 : 2;
    s.model.norm = which == 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = which == 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.dropout = s.model.activation_dropout = which == 2 ? 0 : 0.1;
    s.model.final_norm = which != 2;
    if (which == 2) s.vocab[0] = s.vocab[1] = 600;
    kit_ok(bti_model_new(&s.model, s.vocab[0], s.vocab[1], BT_F32, &p.model));
    p.w = mk_workload(x, which == 1 ? 4 : 8);
    p.planning = bti_backend_planning(which == 1 ? "ref" : "cpu");
    return p;
}

static bti_run_plan *search(const problem *p, const bti_plan_options *o) {
    bti_run_plan *plan;
    kit_ok(bti_plan_search(p->model, p->planning, &p->info, &p->w, 40, o, &plan));
    return plan;
}

/* ---- every choice of a grid -------------------------------------------------------------------- */

typedef struct tried {
    bti_choice choice;
    uint64_t total;
    double seconds;
} tried;

typedef struct grid {
    const problem *p;
    tried *all;
    size_t count;
} grid;

static void add_choice(grid *g, bti_choice c) {
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1, .wanted = &c};
    bti_run_plan *plan = search(g->p, &o);
    ck_assert_int_eq(memcmp(&plan->choice, &c, sizeof c), 0);
    if (g->count % 1024 == 0) g->all = realloc(g->all, (g->count + 1024) * sizeof *g->all);
    g->all[g->count++] = (tried){c, plan->total, plan->seconds};
    bti_run_plan_free(plan);
}

/* Levels: one for all layers, two in any proportion, segments. */
static void add_levels(grid *g, bti_choice c) {
    int32_t layers = g->p->model->layers;
    c.level = c.rest = BTI_LEVEL_NONE;
    c.layers = c.segment = 0;
    add_choice(g, c);
    for (int level = 1; level <= BTI_LEVEL_SEGMENTS; level++)
        for (int rest = 0; rest < level && rest < BTI_LEVEL_SEGMENTS; rest++)
            for (int32_t n = 1; n <= layers; n += STEP) {
                c.level = (bti_level)level;
                c.rest = (bti_level)rest;
                c.layers = n;
                c.segment = level == BTI_LEVEL_SEGMENTS ? 2 : 0;
                if (n < layers || rest == 0) add_choice(g, c);
            }
}

static grid every_choice(const problem *p) {
    static const int64_t chunk[] = {1024, 64, 32, 8, 1};
    grid g = {.p = p};
    int64_t n = p->w.max_sentences;
    for (int64_t parts = 1; parts <= n; parts++)
        for (int slice = 1; slice <= 16; slice *= 4)
            for (int i = 0; i < 5; i++) {
                if (parts < n && chunk[i] < 32) continue;
                int64_t rows = p->w.max_rows[0] > p->w.max_rows[1] ? p->w.max_rows[0] : p->w.max_rows[1];
                rows = rows / parts + 1;
                add_levels(&g, (bti_choice){.parts = parts,
                                            .logit_rows = chunk[i],
                                            .slice_rows = slice == 1 ? 0 : (rows + slice - 1) / slice});
            }
    return g;
}

static int by_total(const void *a, const void *b) {
    const tried *x = a, *y = b;
    return x->total < y->total ? -1 : x->total > y->total;
}

/* At budgets from the least of the grid to plenty: a plan that fits, in nearly the least time of all
 * that fit. */
START_TEST(best_of_all) {
    problem p = new_problem(_i);
    grid g = every_choice(&p);
    double worst = 0;
    qsort(g.all, g.count, sizeof *g.all, by_total);
    for (int i = 0; i <= 24; i++) {
        double x = i / 24.0;
        bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
        o.budget = g.all[0].total +
                   (uint64_t)((double)(g.all[g.count - 1].total - g.all[0].total) * x * x);
        bti_run_plan *plan = search(&p, &o);
        const tried *best = &g.all[0];
        for (size_t k = 0; k < g.count && g.all[k].total <= o.budget; k++)
            if (g.all[k].seconds < best->seconds) best = &g.all[k];
        ck_assert_int_eq(plan->fits, 1);
        ck_assert_uint_le(plan->total, o.budget);
        ck_assert_uint_le(plan->minimum, g.all[0].total);
        double ratio = plan->seconds / best->seconds;
        if (getenv("SHOW")) printf("%8d: %.4f (parts %d, %d %s %d %s /%d slice %d chunk %d = %d; best %d, %d %s %s /%d slice %d chunk %d = %d)\n", (int)o.budget, ratio,
           (int)plan->choice.parts,plan->choice.layers, bti_level_name[plan->choice.level],p.model->layers-plan->choice.layers, bti_level_name[plan->choice.rest],plan->choice.segment,(int)plan->choice.slice_rows,(int)plan->choice.logit_rows,(int)plan->total,
           (int)best->choice.parts,best->choice.layers, bti_level_name[best->choice.level], bti_level_name[best->choice.rest],best->choice.segment,(int)best->choice.slice_rows,(int)best->choice.logit_rows,(int)best->total);
        if (ratio > worst) worst = ratio;
        bti_run_plan_free(plan);
    }
    printf("plan: of %zu choices the best in time at 25 budgets; the plan found takes %.4f of it at most\n", g.count, worst);
    ck_assert(worst <= 1.02);
    free(g.all);
    bti_model_free(p.model);
}
END_TEST

void add_plan_search(TCase *tc) { tcase_add_loop_test(tc, best_of_all, 0, 3); }
