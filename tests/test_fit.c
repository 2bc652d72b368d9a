/* Plans for devices that are here, full, or known from a table only; what is said when a run does
 * not fit. tests/fit_cases.c has the cases that people met, tests/fit_map.c the pictures. */
#include "tests/fit_parts.h"

#include <inttypes.h>
#include <math.h>

#include "backends/registry.h"
#include "core/model/levels.h"
#include "core/ops/ops.h"
#include "core/report/advice.h"
#include "core/report/plan_report.h"
#include "tests/model_kit.h"

static const double MIB = 1024.0 * 1024;

/* ---- asking ------------------------------------------------------------------------------------
 */

bt_plan *fit_plan(const fit_ask *ask, bt_run **run) {
    bt_plan *plan;
    size_t sets = 0;
    bt_plan_options o = {.device = ask->device,
                         .memory = ask->memory,
                         .source_tokens = ask->source,
                         .target_tokens = ask->target};
    while (sets < 16 && ask->sets[sets] != NULL) sets++;
    kit_ok(bt_run_load(ask->yaml, ask->sets, sets, run));
    kit_ok(bt_plan_make(*run, &o, &plan));
    return plan;
}

void fit_discard(bt_plan *plan, bt_run *run) {
    bt_plan_free(plan);
    bt_run_free(run);
}

json_t *fit_json(const fit_ask *ask) {
    bt_run *run;
    char *text;
    bt_plan *plan = fit_plan(ask, &run);
    kit_ok(bt_plan_json(plan, &text));
    json_t *json = parse_json(text);
    bt_free(text);
    fit_discard(plan, run);
    return json;
}

const char *fit_text(const fit_ask *ask) {
    bt_run *run;
    char *text;
    bt_plan *plan = fit_plan(ask, &run);
    kit_ok(bt_plan_text(plan, &text));
    const char *own = kit_str("%s", text);
    bt_free(text);
    fit_discard(plan, run);
    return own;
}

const char *fit_no_text(void) {
    const char *yaml = kit_str("%s/run.yaml", kit_tmpdir());
    kit_write_text(yaml, "output: out\n"
                         "data: {train: {source: no.de, target: no.en}, max_length: 128}\n"
                         "tokenizer: {model: no.model, size: 5000}\n"
                         "model: {d_model: 64, ff: 256, heads: 4, encoder_layers: 2, "
                         "decoder_layers: 2, tie_embeddings: none}\n"
                         "training: {batch: 16, updates: 100}\n");
    return yaml;
}

/* No line of a table is too long for a page. */
static void check_width(const char *text) {
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 100, "%.*s", (int)strcspn(line, "\n"), line);
}

/* ---- devices of the table ----------------------------------------------------------------------
 */

START_TEST(every_row_plans) {
    size_t count;
    const bti_known_device *d = bti_known_devices(&count);
    const char *yaml = fit_no_text();
    double most = 0, least = 0;
    ck_assert_uint_ge(count, 12);
    for (size_t i = 0; i < count; i++) {
        json_t *plan = fit_json(&(fit_ask){yaml, d[i].name, NULL, 50, 40, {NULL}});
        ck_assert(json_is_true(json_object_get(plan, "fits")));
        ck_assert(json_is_false(json_object_get(plan, "device_is_here")));
        ck_assert(json_is_true(json_object_get(plan, "lengths_are_assumed")));
        ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), d[i].title);
        json_t *memory = json_object_get(plan, "memory");
        double total = (double)d[i].total_bytes, reserve = number_at(memory, "reserve_bytes");
        ck_assert(number_at(memory, "total_bytes") == total);
        ck_assert(number_at(memory, "held_by_others_bytes") == 0);
        ck_assert(reserve > 0 && number_at(plan, "budget_bytes") == total - reserve);
        ck_assert(number_at(plan, "total_bytes") <= number_at(plan, "budget_bytes"));
        double runtime = number_at(json_object_get(plan, "bytes"), "runtime");
        ck_assert(runtime == (double)d[i].runtime_bytes);
        double seconds = number_at(json_object_get(plan, "predicted"), "seconds_per_update");
        if (strcmp(d[i].name, "k80") == 0) most = seconds;
        if (strcmp(d[i].name, "h100") == 0) least = seconds;
        json_decref(plan);
    }
    ck_assert(least > 0 && least < most);
}
END_TEST

/* --memory stands instead of what the table has, and names are taken as people write them. */
START_TEST(table_and_memory) {
    const char *yaml = fit_no_text();
    json_t *plan = fit_json(&(fit_ask){yaml, "RTX-3090", "1GiB", 50, 40, {NULL}});
    ck_assert(number_at(plan, "budget_bytes") == 1024 * MIB);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "device")), "GeForce RTX 3090");
    json_decref(plan);
    const char *text = fit_text(&(fit_ask){yaml, "k80", NULL, 50, 40, {NULL}});
    check_has(text, "Tesla K80, not here: planned from a table");
    check_has(text, "all of it, less a reserve of");
    check_has(text, "(assumed)");
    check_has(text, "from its data sheet");
    check_width(text);
}
END_TEST

/* Nothing runs on a device of the table, and it says so before it looks at any text. */
START_TEST(nothing_runs_on_paper) {
    bt_run *run;
    bt_dev *dev;
    bt_buf *buf;
    kit_ok(bt_run_load(fit_no_text(), NULL, 0, &run));
    kit_fails(bt_train(run, &(bt_train_options){.device = "k80"}), BT_EUSAGE, "bantam plan");
    bt_run_free(run);
    kit_fails(bti_device_open("t4", NULL, &dev), BT_EUSAGE, "known from a table");
    kit_ok(bti_device_open_known(bti_known_device_find("t4"), &dev));
    kit_fails(dev->ops->alloc(dev, 1, &buf), BT_EDEVICE, "Tesla T4 is not here");
    bti_device_close(dev);
    ck_assert_ptr_null(bti_known_device_find("k81"));
    ck_assert_ptr_null(bti_known_device_find(""));
    ck_assert_ptr_null(bti_known_device_find("k8"));
}
END_TEST

/* Scratch of the CUDA kernels bounds all smaller calls, and never grows with a table's width beyond
 * its own megabytes. */
START_TEST(scratch_bounds_smaller_calls) {
    const bt_planning *cuda = bti_backend_planning("cuda");
    bt_dev_info info = {.alignment = 256};
    static const bt_op ops[] = {BT_OP_BIAS_ACT_BWD, BT_OP_NORM_BWD, BT_OP_ADD_NORM_BWD,
                                BT_OP_ATTN_BWD,     BT_OP_ATTN_FWD, BT_OP_CROSS_ENTROPY};
    static const int64_t width[] = {8, 512, 4096, 250002};
    for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++)
        for (int w = 0; w < 4; w++) {
            uint64_t before = 0;
            for (int64_t rows = 0; rows < 70000; rows += rows < 400 ? 1 : 4099) {
                bt_call c = {.op = ops[o]};
                for (int i = 0; i < BT_MAX_OPERANDS; i++)
                    c.t[i] = (bt_view){.rows = rows, .cols = width[w], .ld = width[w]};
                if (ops[o] == BT_OP_ATTN_BWD || ops[o] == BT_OP_ATTN_FWD) c.p.attn.heads = 8;
                uint64_t bytes = cuda->ws_bytes(&info, &c);
                ck_assert_uint_ge(bytes, before);
                ck_assert(ops[o] == BT_OP_ATTN_BWD || bytes <= 32 * 1024 * 1024);
                before = bytes;
            }
        }
}
END_TEST

/* So does that of products in half precision, whose operands are copied: by rows, and by depth. */
START_TEST(scratch_bounds_smaller_products) {
    const bt_planning *cuda = bti_backend_planning("cuda");
    bt_dev_info info = {.alignment = 256};
    static const int64_t width[] = {8, 512, 4096, 250002};
    for (int w = 0; w < 4; w++)
        for (int trans = 0; trans < 2; trans++) {
            uint64_t before = 0;
            for (int64_t rows = 1; rows < 70000; rows += rows < 400 ? 1 : 4099) {
                bt_view half = {.rows = rows, .cols = width[w], .ld = width[w], .dtype = BT_F16};
                bt_view wide = {.rows = 512, .cols = width[w], .ld = width[w], .dtype = BT_F32};
                bt_view y = {.rows = rows, .cols = 512, .ld = 512, .dtype = BT_F16};
                bt_call c = {.op = BT_OP_GEMM, .t = {half, wide, y}, .p.gemm.trans_b = 1};
                if (trans) { /* a weight's gradient: its depth is the rows */
                    c.p.gemm = (bt_gemm_params){.trans_a = 1};
                    c.t[BT_GEMM_B] = y;
                    c.t[BT_GEMM_C] = (bt_view){.rows = width[w], .cols = 512, .ld = 512};
                }
                c.p.gemm.round = BT_F16;
                uint64_t bytes = cuda->ws_bytes(&info, &c);
                ck_assert_uint_ge(bytes, before);
                ck_assert_uint_le(bytes, 32 * 1024 * 1024);
                before = bytes;
            }
        }
}
END_TEST

/* ---- assumed pairs -----------------------------------------------------------------------------
 */

/* A text of equal pairs and the same pairs assumed give one plan. */
START_TEST(assumed_as_read) {
    char text[16 * 12 + 1] = "";
    for (int i = 0; i < 16; i++) strcat(text, "aaaaaaaaaaa\n");
    small_run r = small_run_with(text, text);
    toy_proto p;
    toy_start_model(&p, 1);
    toy_add_piece(&p, "a", -1, TOY_NORMAL);
    const char *model = kit_str("tokenizer.model=%s", toy_save_model(&p, r.dir));
    crowd_reset();
    fit_ask ask = {r.yaml, "crowd", NULL, 0, 0, {model, "training.batch=4", NULL}};
    json_t *read = fit_json(&ask);
    ask.source = ask.target = 12; /* 11 letters and the end symbol */
    json_t *assumed = fit_json(&ask);
    ck_assert_int_eq((int)number_at(json_object_get(assumed, "longest_pair"), "line"), 0);
    static const char *const equal[] = {"micro_batches_per_update", "parameters", "logit_rows"};
    for (int i = 0; i < 3; i++)
        ck_assert(number_at(read, equal[i]) == number_at(assumed, equal[i]));
    ck_assert(
        json_equal(json_object_get(read, "micro_batch"), json_object_get(assumed, "micro_batch")));
    json_t *a = json_object_get(read, "bytes"), *b = json_object_get(assumed, "bytes");
    ck_assert(number_at(a, "weights") == number_at(b, "weights"));
    ck_assert(number_at(a, "activations") <= number_at(b, "activations"));
    json_decref(read);
    json_decref(assumed);
}
END_TEST

START_TEST(assumed_wrongly) {
    const char *yaml = fit_no_text();
    bt_run *run;
    bt_plan *plan;
    kit_ok(bt_run_load(yaml, NULL, 0, &run));
    bt_plan_options o = {.device = "k80", .source_tokens = 129, .target_tokens = 4};
    kit_fails(bt_plan_make(run, &o, &plan), BT_EUSAGE, "data.max_length 128");
    o.target_tokens = 0;
    kit_fails(bt_plan_make(run, &o, &plan), BT_EUSAGE, "need target tokens");
    o = (bt_plan_options){.device = "k80"};
    kit_fails(bt_plan_make(run, &o, &plan), BT_EINPUT, "no.de");
    bt_run_free(run);
    const char *size = "tokenizer.size=0";
    kit_ok(bt_run_load(yaml, &size, 1, &run));
    o = (bt_plan_options){.device = "k80", .source_tokens = 9, .target_tokens = 9};
    kit_fails(bt_plan_make(run, &o, &plan), BT_EINPUT, "tokenizer.size");
    bt_run_free(run);
}
END_TEST

/* A run that validates has its decoder in the plan also where no tokeniser is there. */
START_TEST(assumed_validation) {
    fit_ask ask = {fit_no_text(), "k80", NULL, 50, 40, {NULL}};
    json_t *without = fit_json(&ask);
    ask.sets[0] = "data.valid.source=no";
    ask.sets[1] = "data.valid.target=no";
    json_t *with = fit_json(&ask);
    ck_assert(number_at(json_object_get(without, "bytes"), "decode") == 0);
    ck_assert(number_at(json_object_get(with, "bytes"), "decode") > 0);
    json_decref(without);
    json_decref(with);
}
END_TEST

/* ---- advice ------------------------------------------------------------------------------------
 */

/* "key: value, key: value" as overrides behind those of `ask`; assumed pairs are cut with them. */
static void follow(fit_ask *ask, const char *change) {
    int n = 0;
    while (ask->sets[n] != NULL) n++;
    for (const char *at = change; *at; n++) {
        size_t key = strcspn(at, ":"), value = strcspn(at + key + 2, ",");
        ck_assert_int_lt(n, 15);
        ask->sets[n] = kit_str("%.*s=%.*s", (int)key, at, (int)value, at + key + 2);
        if (strncmp(at, "data.max_length", 15) == 0) ask->source = ask->target = atoi(at + key + 2);
        at += key + 2 + value;
        if (*at == ',') at += 2;
    }
}

/* Whoever follows an advice needs what it said, to the byte; and those that fit together do. */
START_TEST(advice_is_true) {
    static const char *const memory[] = {"4MiB", "11MiB", "262MiB"};
    crowd_reset();
    int fits = 0, together = 0;
    for (int m = 0; m < 3; m++) {
        fit_ask ask = {
            fit_no_text(), m < 2 ? "crowd" : "k80",
            memory[m],     100,
            100,           {"memory.recompute=none", "memory.optimizer_state=device", NULL}};
        bt_run *run;
        bt_plan *plan = fit_plan(&ask, &run);
        bti_advice_list list;
        if (bt_plan_fits(plan)) ck_abort_msg("%s is enough", memory[m]);
        kit_ok(bti_advise(plan->session, &list));
        ck_assert_int_ge(list.count, 2);
        fit_ask small = ask;
        small.sets[2] = "training.batch=1";
        json_t *one_pair = fit_json(&small);
        double of_one = number_at(one_pair, "minimum_bytes");
        ck_assert_int_eq(list.batch_does_not, of_one > 0.99 * (double)list.least);
        json_decref(one_pair);
        fit_ask all = ask;
        for (int i = 0; i < list.count; i++) {
            fit_ask one = ask;
            follow(&one, list.item[i].change);
            json_t *after = fit_json(&one);
            double least = number_at(after, "minimum_bytes");
            ck_assert_msg(least == (double)list.item[i].needs, "%s: %.0f, not %.0f",
                          list.item[i].change, least, (double)list.item[i].needs);
            ck_assert_uint_eq(list.item[i].frees, list.least - list.item[i].needs);
            ck_assert_int_eq(json_is_true(json_object_get(after, "fits")), list.item[i].fits);
            fits += list.item[i].fits;
            json_decref(after);
            if (i < list.enough) follow(&all, list.item[i].change);
        }
        if (list.enough > 1) {
            json_t *after = fit_json(&all);
            together += json_is_true(json_object_get(after, "fits"));
            json_decref(after);
        }
        fit_discard(plan, run);
    }
    ck_assert_int_gt(fits + together, 0);
}
END_TEST

/* The limit on lengths that touches few pairs is told with their number and line. */
START_TEST(advice_on_outliers) {
    char *text = malloc(600 * 5 + 1001 + 1), *p = text;
    for (int i = 0; i < 600; i++, p += 5) memcpy(p, "aaaa\n", 5);
    memset(p - 5 * 100, 'a', 99 * 5 + 4); /* the last hundred lines are one */
    *p = 0;
    small_run r = small_run_with(text, text);
    toy_proto proto;
    toy_start_model(&proto, 1);
    toy_add_piece(&proto, "a", -1, TOY_NORMAL);
    const char *model = kit_str("tokenizer.model=%s", toy_save_model(&proto, r.dir));
    free(text);
    crowd_reset();
    fit_ask ask = {r.yaml, "crowd", "100KiB", 0, 0, {model, "data.max_length=600", NULL}};
    json_t *plan = fit_json(&ask);
    ck_assert(json_is_false(json_object_get(plan, "fits")));
    json_t *advice = json_object_get(plan, "advice");
    ck_assert_uint_gt(json_array_size(advice), 0);
    const char *first = json_string_value(json_array_get(advice, 0));
    check_has(first, "data.max_length: 5 frees ");
    check_has(first, "cuts 1 of 501 pairs, the first at line 501");
    ck_assert(json_is_object(json_object_get(plan, "blame")));
    json_decref(plan);
    const char *table = fit_text(&ask);
    check_has(table, "line 501: 500 source and 500 target tokens");
    check_has(table, "A smaller training.batch does not help");
    check_width(table);
}
END_TEST

/* ---- batches and budgets -----------------------------------------------------------------------
 */

static json_t *text_as_json(bt_status status, char *text) {
    ck_assert_msg(status == BT_OK, "%s", bt_last_error());
    json_t *json = parse_json(text);
    bt_free(text);
    return json;
}

static bti_needs in_one(const bt_plan *plan, int64_t batch) {
    bti_needs needs;
    bti_what_if w = bti_what_if_as_is(plan->session);
    w.batch = batch;
    w.one_micro_batch = 1;
    kit_ok(bti_what_if_ask(plan->session, &w, &needs));
    w.logit_rows = 32;
    if (!needs.fits) kit_ok(bti_what_if_ask(plan->session, &w, &needs));
    return needs;
}

/* It fits and one more does not; of sentences and of target tokens. */
START_TEST(largest_batch) {
    static const char *const unit[] = {"sentences", "target_tokens"};
    for (int i = 0; i < 2; i++) {
        fit_ask ask = {fit_no_text(),
                       "k80",
                       "290MiB",
                       50,
                       40,
                       {kit_str("training.batch_unit=%s", unit[i]), "training.batch=8"}};
        bt_run *run;
        bt_plan *plan = fit_plan(&ask, &run);
        int64_t n;
        kit_ok(bt_plan_largest_batch(plan, &n));
        ck_assert_int_gt(n, 16);
        bti_needs fits = in_one(plan, n), more = in_one(plan, n + (i ? 40 : 1));
        ck_assert_msg(fits.fits && fits.total <= (uint64_t)(290 * MIB) && fits.micro_batches == 1,
                      "%d: fits %d, %" PRIu64 " bytes, %d micro-batches", (int)n, fits.fits,
                      fits.total, (int)fits.micro_batches);
        ck_assert(!more.fits);
        char *text;
        bt_status status = bt_plan_largest_batch_json(plan, &text);
        json_t *json = text_as_json(status, text);
        check_fields(json, "largest_batch batch_unit budget_bytes total_bytes seconds_per_update");
        ck_assert(number_at(json, "largest_batch") == (double)n);
        ck_assert(number_at(json, "total_bytes") == (double)fits.total);
        json_decref(json);
        fit_discard(plan, run);
    }
    /* Of a text, no more than there is; and none where nothing fits. */
    small_run r = small_run_new(40);
    crowd_reset();
    bt_run *run;
    bt_plan *plan = fit_plan(&(fit_ask){r.yaml, "crowd", NULL, 0, 0, {NULL}}, &run);
    int64_t n;
    kit_ok(bt_plan_largest_batch(plan, &n));
    ck_assert_int_eq(n, 40);
    fit_discard(plan, run);
    plan = fit_plan(&(fit_ask){r.yaml, "crowd", "10KiB", 0, 0, {NULL}}, &run);
    kit_ok(bt_plan_largest_batch(plan, &n));
    ck_assert_int_eq(n, 0);
    fit_discard(plan, run);
}
END_TEST

/* Budgets rise from the least, each plan keeps within its own, and more bytes are never slower. */
START_TEST(sweep) {
    bt_run *run;
    char *text;
    bt_plan *plan = fit_plan(
        &(fit_ask){fit_no_text(), "k80", "300MiB", 50, 40, {"training.batch=4", NULL}}, &run);
    bt_status status = bt_plan_sweep_json(plan, NULL, &text);
    json_t *json = text_as_json(status, text), *list = json_object_get(json, "sweep");
    size_t n = json_array_size(list);
    ck_assert_uint_ge(n, 8);
    double budget = 0, seconds = INFINITY;
    for (size_t i = 0; i < n; i++) {
        json_t *p = json_array_get(list, i);
        check_fields(p, "budget_bytes total_bytes seconds_per_update micro_batches_per_update "
                        "recomputed_layers level logit_rows");
        ck_assert(number_at(p, "budget_bytes") > budget);
        budget = number_at(p, "budget_bytes");
        ck_assert(number_at(p, "total_bytes") <= budget);
        double now = number_at(p, "seconds_per_update");
        ck_assert_msg(now <= seconds, "%g s in %.0f bytes, %g s in less", now, budget, seconds);
        seconds = now;
    }
    ck_assert(number_at(json_array_get(list, 0), "budget_bytes") ==
              (double)plan->session->plan->minimum);
    ck_assert(seconds < number_at(json_array_get(list, 0), "seconds_per_update"));
    json_decref(json);
    kit_ok(bt_plan_sweep_text(plan, NULL, &text));
    ck_assert_int_eq(count_lines(text), (int)n + 3);
    check_width(text);
    bt_free(text);
    fit_discard(plan, run);
}
END_TEST

/* Each level that memory.recompute names is what every layer has, and keeps less than the one
 * before it does. */
START_TEST(levels_by_name) {
    double before = INFINITY;
    for (int level = BTI_LEVEL_NONE; level < BTI_LEVEL_SEGMENTS; level++) {
        const char *set = kit_str("memory.recompute=%s", bti_level_name[level]);
        json_t *plan = fit_json(&(fit_ask){fit_no_text(), "k80", NULL, 100, 100, {set, NULL}});
        json_t *list = json_object_get(plan, "recompute");
        ck_assert_uint_eq(json_array_size(list), 4);
        for (size_t i = 0; i < 4; i++)
            ck_assert_str_eq(json_string_value(json_array_get(list, i)), bti_level_name[level]);
        double bytes = number_at(json_object_get(plan, "bytes"), "activations");
        ck_assert_msg(bytes < before, "%s: %.0f bytes, %.0f before", set, bytes, before);
        before = bytes;
        json_decref(plan);
    }
}
END_TEST

/* ---- warming -----------------------------------------------------------------------------------
 */

static bt_call warmed[128];
static size_t warmed_count;

static bt_status note_warmed(bt_dev *dev, const bt_call *calls, size_t count) {
    (void)dev;
    ck_assert_uint_le(count, sizeof warmed / sizeof warmed[0]);
    memcpy(warmed, calls, count * sizeof *calls);
    warmed_count = count;
    return BT_OK;
}

/* Is there a product of so many columns and inner columns, of this orientation? */
static int was_warmed(int64_t inner, int64_t cols, int trans_a, int trans_b) {
    for (size_t i = 0; i < warmed_count; i++) {
        const bt_gemm_params *p = &warmed[i].p.gemm;
        const bt_view *a = &warmed[i].t[BT_GEMM_A];
        if (warmed[i].t[BT_GEMM_C].cols == cols && (trans_a ? a->rows : a->cols) == inner &&
            p->trans_a == trans_a && p->trans_b == trans_b && !p->stable_rows)
            return 1;
    }
    return 0;
}

/* A library on a device loads kernels for each shape; of one on the host the widest will do. */
START_TEST(products_are_warmed) {
    mk_setup setup = mk_defaults();
    setup.backend = "null";
    setup.model.ff = 7 * setup.model.d_model;
    const int64_t lengths[] = {9, 9};
    setup.sentence = mk_sentences(2, lengths, lengths, 97, 1);
    setup.sentences = 2;
    mk_model m = mk_open(&setup);
    const int64_t d = m.model->cfg.d_model, ff = m.model->cfg.ff, n = bti_model_outputs(m.model);
    const int64_t pair[][2] = {{d, d}, {d, 3 * d}, {d, ff}, {ff, d}, {d, n}};
    const int64_t rows = 40, logit_rows = 20;
    bt_dev dev = *m.dev;
    bt_dev_ops ops = *dev.ops;
    ops.warm = note_warmed;
    dev.ops = &ops;
    dev.info.host_memory = 0;
    kit_ok(bti_device_warm(&dev, m.model, rows, logit_rows));
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        const int64_t in = pair[i][0], out = pair[i][1], r = i == 4 ? logit_rows : rows;
        ck_assert_msg(was_warmed(in, out, 0, 1) && was_warmed(out, in, 0, 0) &&
                          was_warmed(r, in, 1, 0),
                      "not all of %d -> %d", (int)in, (int)out);
    }
    for (size_t i = 0; i < warmed_count; i++) kit_ok(bti_op_check(&warmed[i]));
    dev.info.host_memory = 1;
    kit_ok(bti_device_warm(&dev, m.model, rows, logit_rows));
    ck_assert_uint_eq(warmed_count, 2 * 4);
    mk_close(&m);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, products_are_warmed);
    tcase_add_test(tc, every_row_plans);
    tcase_add_test(tc, table_and_memory);
    tcase_add_test(tc, nothing_runs_on_paper);
    tcase_add_test(tc, scratch_bounds_smaller_calls);
    tcase_add_test(tc, scratch_bounds_smaller_products);
    tcase_add_test(tc, assumed_as_read);
    tcase_add_test(tc, assumed_wrongly);
    tcase_add_test(tc, assumed_validation);
    tcase_add_test(tc, advice_is_true);
    tcase_add_test(tc, advice_on_outliers);
    tcase_add_test(tc, levels_by_name);
    tcase_add_test(tc, largest_batch);
    tcase_add_test(tc, sweep);
    add_fit_cases(tc);
    add_fit_map(tc);
}

int main(int argc, char **argv) { return kit_main("fit", add, argc, argv); }
