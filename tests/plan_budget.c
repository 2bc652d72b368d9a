/* The search: budgets kept, nothing refused that would fit, bytes by kind, device capacity. */
#include <inttypes.h>

#include "backends/registry.h"
#include "tests/kit.h"
#include "tests/plan_parts.h"

static problem new_problem(int which) {
    static const int64_t source[] = {5, 3, 12, 7, 2, 9, 4, 11},
                         target[] = {6, 8, 3, 14, 5, 10, 2, 7};
    static const int64_t equal[] = {9, 9, 9, 9, 9, 9};
    mk_setup s = mk_defaults();
    problem p = {.info = {.alignment = 64, .threads = 2}, .max_length = 20};
    int64_t n = which % 3 == 1 ? 6 : which % 3 == 2 ? 1 : 8;
    const bti_sentence *x = which % 3 == 1 ? mk_sentences(n, equal, equal, 97, 1)
                                           : mk_sentences(n, source, target, 97, 1);
    s.model.norm = which & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = which & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.dropout = which & 4 ? 0.1 : 0;
    if (which == 5) s.vocab[1] = 2000;
    kit_ok(bti_model_new(&s.model, s.vocab[0], s.vocab[1], BT_F32, &p.model));
    p.w = mk_workload(x, n);
    p.planning = bti_backend_planning(which & 1 ? "cpu" : "ref");
    return p;
}

bti_run_plan *plan_search(const problem *p, const bti_plan_options *o) {
    bti_run_plan *plan;
    kit_ok(bti_plan_search(p->model, p->planning, &p->info, &p->w, p->max_length, o, &plan));
    return plan;
}

/* Bytes by kind are those of the regions, each within the total, and sum to it. */
static void check_bytes(const bti_run_plan *p) {
    uint64_t sum = 0, regions = 0;
    for (int i = 0; i < BTI_BYTES_KINDS; i++) {
        ck_assert_uint_le(p->bytes[i], p->total);
        sum += p->bytes[i];
    }
    for (int r = 0; r < BTI_REGION_COUNT; r++) regions += p->region[r];
    ck_assert_uint_eq(sum, p->total);
    ck_assert_uint_eq(regions + p->bytes[BTI_BYTES_RUNTIME], p->total);
    ck_assert_uint_ge(p->region[BTI_REGION_DYNAMIC], p->layout.bytes);
    uint64_t live = 0;
    for (int k = 0; k < BTI_KIND_COUNT; k++) live += p->layout.kind[k];
    ck_assert_uint_eq(live, p->layout.live);
}

/* Every combination of row caps, recomputed layers and chunk rows: the least total, and all. */
static uint64_t *all_totals(const problem *p, size_t *count) {
    static const int64_t chunk[] = {1, 2, 5, 16, 32, 64, 1024};
    int64_t n = p->w.max_sentences;
    uint64_t *total = malloc((size_t)(n * (p->model->layers + 1) * 7) * sizeof *total);
    *count = 0;
    for (int64_t parts = 1; parts <= n; parts++)
        for (int32_t r = 0; r <= p->model->layers; r++)
            for (int c = 0; c < 7; c++) {
                bti_plan_options o = {
                    .force_recompute_layers = r, .force_logit_rows = chunk[c], .force_compact = -1};
                for (int i = 0; i < 2; i++)
                    o.force_rows[i] = (p->w.max_rows[i] + parts - 1) / parts;
                bti_run_plan *plan = plan_search(p, &o);
                check_bytes(plan);
                total[(*count)++] = plan->total;
                bti_run_plan_free(plan);
            }
    return total;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* What some forced choice fits into, the search fits into; just below the least it refuses. */
START_TEST(never_refuses_what_fits) {
    problem p = new_problem(_i);
    size_t count;
    uint64_t *total = all_totals(&p, &count);
    qsort(total, count, sizeof *total, compare);
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
    for (size_t i = 0; i < count; i += i < 8 ? 1 : count / 24 + 1) {
        o.budget = total[i];
        bti_run_plan *plan = plan_search(&p, &o);
        ck_assert_msg(plan->fits,
                      "refused %" PRIu64 " bytes; least found %" PRIu64 ", forced %" PRIu64,
                      o.budget, plan->minimum, total[0]);
        ck_assert_uint_le(plan->total, o.budget);
        kit_ok(bti_run_plan_check(plan));
        check_bytes(plan);
        bti_run_plan_free(plan);
    }
    free(total);
    bti_model_free(p.model);
}
END_TEST

/* From the minimum to plenty: never above the budget; below it: refused, with the split. */
START_TEST(budgets) {
    problem p = new_problem(_i);
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1, .runtime = 12345};
    bti_run_plan *most = plan_search(&p, &o);
    uint64_t minimum = most->minimum, plenty = most->total;
    ck_assert_uint_le(minimum, plenty);
    double seconds = INFINITY;
    for (int i = 0; i <= 16; i++) {
        o.budget = minimum + (plenty - minimum) * (uint64_t)i / 16;
        bti_run_plan *plan = plan_search(&p, &o);
        ck_assert_int_eq(plan->fits, 1);
        ck_assert_uint_le(plan->total, o.budget);
        ck_assert_uint_eq(plan->minimum, minimum);
        ck_assert(plan->seconds > 0);
        seconds = plan->seconds;
        check_bytes(plan);
        bti_run_plan_free(plan);
    }
    ck_assert(seconds <= most->seconds * 1.0151);
    for (int i = 0; i < 3; i++) {
        o.budget = i == 0 ? minimum - 1 : i == 1 ? 1 : o.runtime;
        bti_run_plan *plan = plan_search(&p, &o);
        ck_assert_int_eq(plan->fits, 0);
        ck_assert_uint_eq(plan->total, minimum);
        kit_fails(bti_run_plan_check(plan), BT_EFIT, "it needs at least");
        const char *const part[] = {"weights", "gradients", "optimizer", "smallest activations"};
        for (int k = 0; k < 4; k++) ck_assert_ptr_nonnull(strstr(bt_last_error(), part[k]));
        bti_run_plan_free(plan);
    }
    bti_run_plan_free(most);
    bti_model_free(p.model);
}
END_TEST

/* A tensor that is too large for one allocation asks for smaller micro-batches, not for a refusal;
 * what no micro-batch makes smaller is refused by name. */
START_TEST(small_allocations) {
    problem p = new_problem(0);
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
    bti_run_plan *free_plan = plan_search(&p, &o), *plan;
    ck_assert_uint_gt(free_plan->largest_bytes, 12288);
    bti_run_plan_free(free_plan);
    p.info.max_alloc = 14000; /* the widest parameter is 97 x 32 x 4 = 12,416 */
    plan = plan_search(&p, &o);
    ck_assert_int_eq(plan->fits, 1);
    uint64_t heap = p.info.max_alloc / 64 * 64;
    for (bti_tid i = 1; i <= plan->step->tensors; i++) {
        const bti_tensor *t = &plan->step->tensor[i];
        if (t->region == BTI_REGION_DYNAMIC) ck_assert_uint_le(t->bytes, heap);
    }
    bti_run_plan_free(plan);
    /* Fixed places too: a position table of 1,000 rows x 32 x 4, and what is staged. */
    kit_fails(bti_plan_search(p.model, p.planning, &p.info, &p.w, 1000, &o, &plan), BT_EFIT,
              "position table needs 125.");
    o.decode_staging = 20000;
    kit_fails(bti_plan_search(p.model, p.planning, &p.info, &p.w, 20, &o, &plan), BT_EFIT,
              "a smaller data.max_length or validation.beam needs less");
    o.decode_staging = 0;
    p.info.max_alloc = 12000;
    kit_fails(bti_plan_search(p.model, p.planning, &p.info, &p.w, 20, &o, &plan), BT_EFIT,
              "generator.weight");
    /* Wide feed-forward: a row is 4,096 bytes, the longest sentence 14 rows. */
    bti_model_free(p.model);
    mk_setup s = mk_defaults();
    s.model.d_model = 4;
    s.model.ff = 1024;
    kit_ok(bti_model_new(&s.model, 97, 97, BT_F32, &p.model));
    p.info.max_alloc = 40000;
    plan = plan_search(&p, &o); /* in slices of rows */
    ck_assert_int_eq(plan->fits, 1);
    ck_assert_int_gt(plan->choices.slice_rows, 0);
    bti_run_plan_free(plan);
    o.force_recompute_layers = 0;
    kit_fails(bti_plan_search(p.model, p.planning, &p.info, &p.w, 20, &o, &plan), BT_EFIT,
              "tensor ff");
    bti_model_free(p.model);
}
END_TEST

/* Every byte that is asked of the device is in the plan, and none is asked for later. */
START_TEST(counted) {
    const char *const backend[] = {"ref", "far", "null"};
    static const int64_t source[] = {5, 3, 12, 7, 2, 9}, target[] = {6, 8, 3, 14, 5, 10};
    const bti_sentence *x = mk_sentences(6, source, target, 97, 1);
    mk_setup s = mk_defaults();
    mk_watch watch = {0};
    s.backend = backend[_i];
    s.sentence = x;
    s.sentences = 6;
    s.watch = &watch;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 20;
    mk_model m = mk_open(&s);
    ck_assert_uint_eq(watch.bytes, m.plan->total);
    ck_assert_uint_eq(watch.bytes, m.engine->arena.total);
    int64_t calls = watch.allocs + watch.host_allocs;
    bti_update_result r;
    for (int64_t u = 1; u <= 3; u++) kit_ok(bti_engine_update(m.engine, x, 6, u, 1e-3, &r));
    ck_assert_int_gt(r.micro_batches, 1);
    ck_assert_int_eq(watch.allocs + watch.host_allocs, calls);
    mk_close(&m);
    ck_assert_int_eq(watch.freed, watch.allocs);
}
END_TEST

/* The base model over XLM-R's words, three tables, 128 pairs of 50 + 50 tokens: planned and run for
 * one update on the device that does no arithmetic. */
START_TEST(huge) {
    int64_t fifty[128];
    for (int i = 0; i < 128; i++) fifty[i] = 50;
    mk_setup s = mk_defaults();
    s.model = (bti_model_config){.d_model = 512,
                                 .ff = 2048,
                                 .heads = 8,
                                 .encoder_layers = 6,
                                 .decoder_layers = 6,
                                 .final_norm = 1,
                                 .norm_eps = 1e-5,
                                 .dropout = 0.1,
                                 .attention_dropout = 0.1,
                                 .activation_dropout = 0.1,
                                 .embedding_dropout = 0.1};
    s.backend = "null";
    s.vocab[0] = s.vocab[1] = 250002;
    s.sentence = mk_sentences(128, fifty, fifty, 250002, 3);
    s.sentences = 128;
    s.no_init = 1;
    s.plan.budget = (uint64_t)8 << 30;
    mk_model m = mk_open(&s);
    uint64_t table = (uint64_t)6400 * 250002 * 4;
    for (bti_tid i = 1; i <= m.plan->step->tensors; i++) {
        const bti_tensor *t = &m.plan->step->tensor[i];
        ck_assert_uint_lt(t->bytes, table / 4);
    }
    bti_update_result r;
    kit_ok(bti_engine_update(m.engine, s.sentence, 128, 1, 1e-3, &r));
    ck_assert_int_eq(r.rows[1], 6400);
    ck_assert_int_eq(r.micro_batches, 1);
    ck_assert_uint_le(m.plan->total, s.plan.budget);
    char total[32], least[32];
    bti_format_bytes(m.plan->total, total);
    bti_format_bytes(m.plan->minimum, least);
    printf("plan: base model, 250,002 words untied, 128 pairs of 50 + 50: %s in one micro-batch "
           "(%d layers recomputed, chunks of %d rows); at least %s\n",
           total, m.plan->choice.layers, (int)m.plan->choices.logit_rows, least);
    mk_close(&m);
}
END_TEST

void add_plan_budget(TCase *tc) {
    tcase_add_loop_test(tc, never_refuses_what_fits, 0, 6);
    tcase_add_loop_test(tc, budgets, 0, 6);
    tcase_add_test(tc, small_allocations);
    tcase_add_loop_test(tc, counted, 0, 3);
    tcase_add_test(tc, huge);
}
