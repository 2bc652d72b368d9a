/* Cases that people met (cases.md): A6 small allocations, A7 memory that others hold, A8 logits of
 * a large vocabulary, B10 sizes beyond 31 bits; and the two runs that lead the design. */
#include "backends/registry.h"
#include "core/decode/translator.h"
#include "core/ops/ops.h"
#include "core/report/advice.h"
#include "core/report/plan_report.h"
#include "tests/far.h"
#include "tests/fit_parts.h"
#include "tests/model_kit.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* ---- A6: no buffer as large as the memory; and success that is none ----------------------------
 */

/* A plan of a model with one table of so many bytes a row x words. */
static bt_status plan_table(const char *device, int64_t words, int64_t width, bti_run_plan **plan,
                            bti_model **m, bt_dev **dev) {
    static const int64_t one[] = {5, 3};
    mk_setup s = mk_defaults();
    bti_workload w = mk_workload(mk_sentences(2, one, one, 97, 1), 2);
    bti_plan_options o = {.force_recompute_layers = -1, .force_compact = -1};
    s.model.d_model = width;
    s.model.tie = BTI_TIE_ALL;
    s.model.encoder_layers = s.model.decoder_layers = 1;
    *dev = mk_device(device, NULL);
    kit_ok(bti_model_new(&s.model, words, words, BT_F32, m));
    return bti_plan_search(*m, (*dev)->driver->planning, &(*dev)->info, &w, 16, &o, plan);
}

/* 40 MiB in one table run where 64 MiB is the most in one piece, 100 MiB are refused by name; and
 * no buffer is larger than that. */
START_TEST(small_allocations) {
    static const char *const device[] = {"crowd:0", "far"};
    for (int i = 0; i < 2; i++) {
        bti_run_plan *plan;
        bti_model *m;
        bt_dev *dev;
        crowd_reset();
        crowds[0].max_alloc = 64 * MIB;
        kit_ok(plan_table(device[i], 40960, 256, &plan, &m, &dev));
        ck_assert_int_eq(plan->fits, 1);
        bti_engine *e;
        bti_engine_settings settings = {.start = 1, .adamw = {.eps = 1e-9}};
        kit_ok(bti_engine_new(dev, m, plan, 2, 8, &settings, &e));
        static const int64_t one[] = {5, 3};
        bti_update_result r;
        kit_ok(bti_engine_update(e, mk_sentences(2, one, one, 97, 1), 2, 1, 1e-3, &r));
        ck_assert_uint_gt(e->arena.heaps, 2);
        if (i == 0) ck_assert_uint_le(crowds[0].largest, 64 * MIB);
        bti_engine_free(e);
        bti_run_plan_free(plan);
        bti_model_free(m);
        bti_device_close(dev);
        kit_fails(plan_table(device[i], 102400, 256, &plan, &m, &dev), BT_EFIT,
                  "src_embed.weight needs 100.00 MiB, more than the device gives");
        bti_model_free(m);
        bti_device_close(dev);
    }
}
END_TEST

/* On paper: 250,002 x 1,024 in fp32 is 1,024,008,192 bytes, which 3,071 MB in one piece hold;
 * 250,002 x 4,096 they do not. */
START_TEST(allocations_on_paper) {
    bti_run_plan *plan;
    bti_model *m;
    bt_dev *dev;
    crowd_reset();
    crowds[0].total = crowds[0].free = 12287 * MIB;
    crowds[0].max_alloc = 3071 * MIB;
    kit_ok(plan_table("crowd:0", 250002, 1024, &plan, &m, &dev));
    ck_assert_int_eq(plan->fits, 1);
    const bti_param *p = &m->params.param[0];
    ck_assert_uint_eq((uint64_t)(p->rows * p->cols) * 4, 1024008192u);
    bti_run_plan_free(plan);
    bti_model_free(m);
    bti_device_close(dev);
    kit_fails(plan_table("crowd:0", 250002, 4096, &plan, &m, &dev), BT_EFIT, "in one allocation");
    bti_model_free(m);
    bti_device_close(dev);
    const char *text = fit_text(&(fit_ask){fit_no_text(), "crowd:0", NULL, 9, 9, {NULL}});
    check_has(text, "at most 3.00 GiB in one piece");
    check_has(text, "12.00 GiB, 12.00 GiB free");
    json_t *json = fit_json(&(fit_ask){fit_no_text(), "crowd:0", NULL, 9, 9, {NULL}});
    ck_assert(number_at(json, "largest_allocation_bytes") == (double)(3071 * MIB));
    json_decref(json);
}
END_TEST

/* A run of it that writes into a folder of its own. */
static bt_status train_on(const small_run *r, const char *device, const char *memory) {
    bt_run *run;
    kit_ok(bt_run_load(r->yaml, NULL, 0, &run));
    bt_status status = bt_train(
        run, &(bt_train_options){.device = device, .memory = memory, .updates = 3, .threads = 1});
    bt_run_free(run);
    return status;
}

/* Memory is given but cannot be used: seen before update 1, and all is given back. */
START_TEST(late_failure) {
    small_run r = small_run_new(40);
    crowd_reset();
    crowds[0].first_use_fails = 1;
    kit_fails(train_on(&r, "crowd:0", NULL), BT_EDEVICE, "the memory is not there");
    ck_assert_int_gt(crowds[0].allocs, 0);
    ck_assert_int_eq(crowds[0].allocs, crowds[0].freed);
    ck_assert(!is_file(in_out(r, "log.jsonl")));
}
END_TEST

/* ---- A7: others hold the memory ----------------------------------------------------------------
 */

/* A 12 GiB card with 200 MiB free, of which this process' runtime is not a part. */
static void crowd_full(void) {
    crowd_reset();
    crowds[0].total = 12 * GIB;
    crowds[0].free = 200 * MIB;
    crowds[0].runtime = 100 * MIB;
}

START_TEST(held_by_others) {
    small_run r = small_run_new(40);
    crowd_full();
    fit_ask ask = {r.yaml, "crowd:0", NULL, 0, 0, {NULL}};
    json_t *plan = fit_json(&ask), *memory = json_object_get(plan, "memory");
    ck_assert(json_is_true(json_object_get(plan, "fits")));
    ck_assert(number_at(memory, "total_bytes") == (double)(12 * GIB));
    ck_assert(number_at(memory, "free_bytes") == (double)(200 * MIB));
    ck_assert(number_at(memory, "held_by_others_bytes") == (double)(12 * GIB - 300 * MIB));
    ck_assert(number_at(memory, "reserve_bytes") == (double)(100 * MIB));
    ck_assert(number_at(plan, "budget_bytes") == (double)(200 * MIB));
    json_decref(plan);
    const char *text = fit_text(&ask);
    check_has(text, "12.00 GiB, 200.00 MiB free; 11.71 GiB of it held by other processes");
    check_has(text, "what is free, less a reserve of 100.00 MiB");
    /* Too little, by itself or by a limit that does not know better. */
    ask.sets[0] = "model.d_model=512";
    ask.sets[1] = "model.ff=4096";
    ask.sets[2] = "model.encoder_layers=6";
    plan = fit_json(&ask);
    ck_assert(json_is_false(json_object_get(plan, "fits")));
    json_decref(plan);
    crowds[0].free = 10 * MIB;
    kit_fails(train_on(&r, "crowd:0", "1MiB"), BT_EFIT, "12.00 GiB, 10.00 MiB of it free");
    crowds[0].free = 100000;
    kit_fails(train_on(&r, "crowd:0", "8GiB"), BT_EFIT, "11.90 GiB held by other processes");
    check_has(bt_last_error(), "97.66 KiB of it free");
    check_has(bt_last_error(), "more than can be had");
    check_has(fit_text(&(fit_ask){r.yaml, "crowd:0", "8GiB", 0, 0, {NULL}}),
              "Now it could not start");
    ck_assert_int_eq(crowds[0].allocs, 0);
    ck_assert(!is_file(in_out(r, "log.jsonl")));
}
END_TEST

/* Whoever takes the rest once the run has begun takes nothing from it. */
START_TEST(grabbed_after_the_plan) {
    small_run r = small_run_new(40);
    crowd_full();
    crowds[0].grab_after_start = 1;
    kit_ok(train_on(&r, "crowd:0", NULL));
    ck_assert_int_eq(crowds[0].grabbed, 1);
    ck_assert_int_eq(crowds[0].allocs, crowds[0].freed);
}
END_TEST

/* Of several devices the first one on which the plan fits; when it fits on none, the first. */
START_TEST(where_it_fits) {
    small_run r = small_run_new(40);
    crowd_full();
    crowds[0].free = 100000;
    fit_ask ask = {r.yaml, "crowd:0,crowd:1", NULL, 0, 0, {NULL}};
    json_t *plan = fit_json(&ask);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "crowd 1");
    ck_assert(json_is_true(json_object_get(plan, "fits")));
    json_decref(plan);
    crowds[1].free = 100000;
    plan = fit_json(&ask);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "crowd 0");
    ck_assert(json_is_false(json_object_get(plan, "fits")));
    json_decref(plan);
    /* Also when the first one cannot hold a table in one piece. */
    crowd_reset();
    crowds[0].max_alloc = 4096;
    plan = fit_json(&ask);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "crowd 1");
    json_decref(plan);
    crowd_reset();
    plan = fit_json(&(fit_ask){r.yaml, "abacus,crowd:1", NULL, 0, 0, {NULL}});
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "crowd 1");
    json_decref(plan);
    plan = fit_json(&(fit_ask){
        fit_no_text(),
        "k80,a100-80gb",
        NULL,
        99,
        99,
        {"model.d_model=4096", "model.ff=16384", "memory.optimizer_state=device", NULL}});
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "A100 80GB");
    json_decref(plan);
}
END_TEST

/* So it is with a model that is asked. */
START_TEST(where_a_translation_fits) {
    static const struct {
        const char *device;
        uint64_t free[CROWDS];
        const char *on; /* NULL: on none */
    } of[] = {{"crowd:0,crowd:1", {100000, 64 * GIB}, "crowd 1"},
              {"crowd:0,crowd:1", {64 * GIB, 64 * GIB}, "crowd 0"},
              {"crowd:0,abacus,crowd:1", {100000, 64 * GIB}, "crowd 1"},
              {"crowd:0,crowd:1", {100000, 50000}, NULL},
              {"crowd:0", {100000, 64 * GIB}, NULL}};
    small_run r = small_run_new(40);
    check_status(train(r, "--updates", "1"), 0);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        bt_translate_options o = BT_TRANSLATE_DEFAULTS;
        bt_translator *t = NULL;
        crowd_full();
        for (int k = 0; k < CROWDS; k++) crowds[k].free = of[i].free[k];
        o.device = of[i].device;
        toy_log[0] = 0;
        bt_set_log(toy_keep_log, NULL);
        bt_status status = bti_translator_open(r.out, &o, 1, &t);
        bt_set_log(NULL, NULL);
        if (of[i].on == NULL) {
            kit_fails(status, BT_EFIT, "translation does not fit in 100.05 MiB");
            continue;
        }
        kit_ok(status);
        ck_assert_str_eq(t->dev->info.name, of[i].on);
        ck_assert_int_eq(toy_count(toy_log, "translation fits on crowd 1, not on crowd 0"),
                         of[i].free[0] < GIB);
        bt_translator_free(t);
        for (int k = 0; k < CROWDS; k++) ck_assert_int_eq(crowds[k].allocs, crowds[k].freed);
    }
}
END_TEST

/* ---- A8: logits of 250,002 words ---------------------------------------------------------------
 */

/* 4,096 target tokens in one micro-batch within state and 1.5 GiB: planned, and run on the device
 * that does no arithmetic. */
START_TEST(large_vocabulary) {
    int64_t length[64];
    for (int i = 0; i < 64; i++) length[i] = 64;
    mk_setup s = mk_defaults();
    s.backend = "null";
    s.vocab[0] = s.vocab[1] = 250002;
    s.model.d_model = 256;
    s.model.ff = 1024;
    s.sentence = mk_sentences(64, length, length, 250002, 3);
    s.sentences = 64;
    s.no_init = 1;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 4096;
    s.plan.force_compact = -1;
    bti_model *m;
    kit_ok(bti_model_new(&s.model, 250002, 250002, BT_F32, &m));
    s.plan.budget = (uint64_t)m->params.elements * 16 + 3 * GIB / 2;
    bti_model_free(m);
    mk_model x = mk_open(&s);
    ck_assert_uint_le(x.plan->total, s.plan.budget);
    ck_assert_uint_le(x.engine->arena.total, s.plan.budget);
    uint64_t table = (uint64_t)4096 * 250002 * 4, logits = 0;
    for (bti_tid i = 1; i <= x.plan->step->tensors; i++) {
        const bti_tensor *t = &x.plan->step->tensor[i];
        ck_assert_uint_lt(t->bytes, table / 2);
        if (t->kind == BTI_KIND_LOGITS) logits = t->bytes;
    }
    ck_assert_uint_eq(logits, (uint64_t)x.plan->choices.logit_rows * 250002 * 4);
    bti_update_result r;
    kit_ok(bti_engine_update(x.engine, s.sentence, 64, 1, 1e-3, &r));
    ck_assert_int_eq(r.micro_batches, 1);
    ck_assert_int_eq(r.rows[1], 4096);
    mk_close(&x);
    s.plan.force_logit_rows = 512;
    x = mk_open(&s);
    char size[32];
    bti_format_bytes(x.plan->layout.kind[BTI_KIND_LOGITS], size);
    ck_assert_str_eq(size, "488.29 MiB");
    mk_close(&x);
}
END_TEST

/* With an output layer of zeros every symbol has the same probability. */
START_TEST(loss_of_zeros) {
    static const int64_t length[] = {5, 2};
    mk_setup s = mk_defaults();
    s.backend = "ref";
    s.model.d_model = 4;
    s.model.ff = 4;
    s.model.encoder_layers = s.model.decoder_layers = 1;
    s.vocab[0] = 97;
    s.vocab[1] = 250002;
    s.sentence = mk_sentences(2, length, length, 97, 3);
    s.sentences = 2;
    s.no_init = 1;
    mk_model x = mk_open(&s);
    bti_update_result r;
    kit_ok(bti_engine_update(x.engine, s.sentence, 2, 1, 1e-3, &r));
    kit_near(r.loss, 12.429224, 1e-6);
    mk_close(&x);
}
END_TEST

/* ---- B10: beyond 31 bits -----------------------------------------------------------------------
 */

/* An update of 10^11 tokens is planned in micro-batches, or refused in words; sizes stay positive
 * and row numbers fit the tables. */
START_TEST(huge_batches) {
    static const char *const batch[] = {"training.batch=2147483647", "training.batch=42949673"};
    for (int i = 0; i < 2; i++) {
        json_t *plan =
            fit_json(&(fit_ask){fit_no_text(), "k80", "290MiB", 100, 100, {batch[i], NULL}});
        json_t *part = json_object_get(plan, "micro_batch");
        ck_assert(json_is_true(json_object_get(plan, "fits")));
        ck_assert(number_at(part, "source_tokens") >= 100);
        ck_assert(number_at(part, "source_tokens") < 2147483647.0);
        ck_assert(number_at(part, "target_tokens") < 2147483647.0);
        ck_assert(number_at(plan, "total_bytes") <= number_at(plan, "budget_bytes"));
        ck_assert(number_at(plan, "micro_batches_per_update") > 100);
        json_decref(plan);
    }
}
END_TEST

/* 70,000 small matrices at once: 17,500 sequences of two positions with four heads of four. */
enum { SEQUENCES = 17500, LENGTH = 2, HEADS = 4, HEAD = 4, WIDTH = HEADS * HEAD };

static void attend(bt_dev *dev, bt_buf *const buf[5], int32_t from, int32_t count, float *out) {
    size_t rows = (size_t)count * LENGTH;
    int32_t *seq = calloc((size_t)count * BT_SEQ_COLS, sizeof *seq);
    for (int32_t i = 0; i < count; i++) {
        int32_t *s = seq + i * BT_SEQ_COLS;
        s[BT_SEQ_QUERY_ROW] = s[BT_SEQ_KEY_ROW] = i * LENGTH;
        s[BT_SEQ_QUERY_COUNT] = s[BT_SEQ_KEY_COUNT] = LENGTH;
        s[BT_SEQ_PLACE] = from + i;
    }
    bt_call c = {.op = BT_OP_ATTN_FWD, .p.attn = {.heads = HEADS, .causal = 1, .scale = 0.5}};
    for (int i = 0; i < 3; i++)
        c.t[i] = (bt_view){.buf = buf[i],
                           .off = (size_t)from * LENGTH * WIDTH * sizeof(float),
                           .rows = (int64_t)rows,
                           .cols = WIDTH,
                           .ld = WIDTH,
                           .dtype = BT_F32};
    c.t[BT_ATTN_FWD_SEQ] = (bt_view){
        .buf = buf[4], .rows = count, .cols = BT_SEQ_COLS, .ld = BT_SEQ_COLS, .dtype = BT_I32};
    c.t[BT_ATTN_FWD_O] = (bt_view){
        .buf = buf[3], .rows = (int64_t)rows, .cols = WIDTH, .ld = WIDTH, .dtype = BT_F32};
    uint64_t bytes = bti_op_ws_bytes(dev->driver->planning, &dev->info, &c);
    if (bytes > 0) {
        kit_ok(dev->ops->alloc(dev, bytes, &c.ws.buf));
        c.ws.rows = 1;
        c.ws.cols = c.ws.ld = (int64_t)((bytes + 3) / 4);
    }
    kit_ok(
        dev->ops->upload(dev, NULL, buf[4], 0, seq, (uint64_t)count * BT_SEQ_COLS * sizeof *seq));
    kit_ok(bti_op_run(dev, NULL, &c));
    kit_ok(dev->ops->download(dev, NULL, out, buf[3], 0, rows * WIDTH * sizeof *out));
    kit_ok(dev->ops->sync(dev, NULL));
    dev->ops->free(dev, c.ws.buf);
    free(seq);
}

START_TEST(many_matrices) {
    static const char *const device[] = {"ref", "far", "cpu"};
    size_t n = (size_t)SEQUENCES * LENGTH * WIDTH;
    float *x = malloc(3 * n * sizeof *x), *all = x + n, *halves = x + 2 * n;
    bt_dev *dev = mk_device(device[_i], NULL);
    bt_buf *buf[5];
    for (int i = 0; i < 5; i++) {
        uint64_t bytes = i == 4 ? (uint64_t)SEQUENCES * BT_SEQ_COLS * 4 : n * sizeof *x;
        kit_ok(dev->ops->alloc(dev, bytes, &buf[i]));
        for (size_t k = 0; k < n; k++) x[k] = (float)((k * 7 + (size_t)i * 13) % 101) / 50 - 1;
        if (i < 3) kit_ok(dev->ops->upload(dev, NULL, buf[i], 0, x, bytes));
        kit_ok(dev->ops->sync(dev, NULL));
    }
    attend(dev, buf, 0, SEQUENCES, all);
    attend(dev, buf, 0, SEQUENCES / 2, halves);
    attend(dev, buf, SEQUENCES / 2, SEQUENCES / 2, halves + n / 2);
    ck_assert(memcmp(all, halves, n * sizeof *all) == 0);
    ck_assert(all[n - 1] == all[n - 1] && all[n - 1] != 0);
    for (int i = 0; i < 5; i++) dev->ops->free(dev, buf[i]);
    bti_device_close(dev);
    free(x);
}
END_TEST

/* ---- the two runs that lead the design ---------------------------------------------------------
 */

/* Base model, XLM-R's 250,002 words untied, 128 pairs: in one micro-batch on a K80. */
START_TEST(case_k80) {
    fit_ask ask = {kit_data("runs/case1-k80.yaml"), "k80", NULL, 50, 50, {NULL}};
    if (kit_shared("data/tokenizers/xlmr_250k_unigram.model") == NULL) {
        kit_skip("no XLM-R tokeniser in the shared folder");
        return;
    }
    json_t *plan = fit_json(&ask);
    ck_assert(json_is_true(json_object_get(plan, "fits")));
    ck_assert(number_at(plan, "parameters") == 428393618);
    ck_assert(number_at(plan, "micro_batches_per_update") == 1);
    ck_assert(number_at(plan, "total_bytes") < 10.7 * (double)GIB);
    printf("plan: case 1 on a K80, 50 + 50 tokens: %.2f GiB, at least %.2f\n",
           number_at(plan, "total_bytes") / (double)GIB,
           number_at(plan, "minimum_bytes") / (double)GIB);
    json_decref(plan);
}
END_TEST

/* 12 + 12 layers of width 1,024 over 10,000 tied words (363 M), 709 source tokens, fp32: batch 64
 * fits on a 3090 in one micro-batch. */
START_TEST(case_3090) {
    fit_ask ask = {kit_data("runs/case2-text.yaml"), "rtx3090", NULL, 709, 32, {NULL}};
    bt_run *run;
    bt_plan *plan = fit_plan(&ask, &run);
    int64_t n;
    ck_assert(bt_plan_fits(plan));
    ck_assert_int_eq(plan->session->model->params.elements, 362968848);
    kit_ok(bt_plan_largest_batch(plan, &n));
    ck_assert_int_ge(n, 64);
    printf("plan: case 2 on a 3090: %d pairs in one micro-batch\n", (int)n);
    fit_discard(plan, run);
}
END_TEST

/* What halves take besides fits into one small share: the ops of a slice share their scratch, and a
 * product's copies are made a slice at a time. The least is nearly all weights and moments, which
 * are wide. */
START_TEST(halves_at_the_least) {
    static const char *const device[] = {"k80", "rtx3090"};
    fit_ask ask = {kit_data("runs/case1-k80.yaml"), device[_i], NULL, 50, 50, {NULL, NULL}};
    double least[2];
    if (kit_shared("data/tokenizers/xlmr_250k_unigram.model") == NULL) {
        kit_skip("no XLM-R tokeniser in the shared folder");
        return;
    }
    for (int half = 0; half < 2; half++) {
        ask.sets[0] = half ? "training.precision=fp16" : NULL;
        json_t *plan = fit_json(&ask);
        least[half] = number_at(plan, "minimum_bytes");
        json_decref(plan);
    }
    ck_assert_double_le(least[1], least[0] + 8 * (double)MIB);
}
END_TEST

/* The program with the text that is there: a table within 100 columns. */
START_TEST(case_k80_with_text) {
    if (kit_shared("data/multi30k/train.de") == NULL) {
        kit_skip("no Multi30k in the shared folder");
        return;
    }
    program p = bantam("plan", kit_data("runs/case1-k80.yaml"), "--device", "k80", "--set",
                       kit_str("output=%s/out", kit_tmpdir()));
    check_status(p, 0);
    check_has(p.out, "Tesla K80, not here");
    check_has(p.out, "longest pair   line ");
    for (int i = 1; i <= count_lines(p.out); i++)
        ck_assert_msg(strlen(line_of(p.out, i)) <= 100, "%s", line_of(p.out, i));
}
END_TEST

void add_fit_cases(TCase *tc) {
    far_register();
    tcase_add_test(tc, small_allocations);
    tcase_add_test(tc, allocations_on_paper);
    tcase_add_test(tc, late_failure);
    tcase_add_test(tc, held_by_others);
    tcase_add_test(tc, grabbed_after_the_plan);
    tcase_add_test(tc, where_it_fits);
    tcase_add_test(tc, where_a_translation_fits);
    tcase_add_test(tc, large_vocabulary);
    tcase_add_test(tc, loss_of_zeros);
    tcase_add_test(tc, huge_batches);
    tcase_add_loop_test(tc, many_matrices, 0, 3);
    tcase_add_test(tc, case_k80);
    tcase_add_test(tc, case_3090);
    tcase_add_loop_test(tc, halves_at_the_least, 0, 2);
    tcase_add_test(tc, case_k80_with_text);
}
