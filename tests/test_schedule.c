/* Learning rates (case B12) and the training log. */
#include "core/run/schedule.h"

#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/train/log_json.h"
#include "tests/kit.h"

/* ---- learning rate --------------------------------------------------------------------------- */

static bti_run_config config(bti_schedule_kind kind, double lr, int64_t warmup) {
    bti_run_config cfg = {0};
    cfg.schedule.kind = kind;
    cfg.schedule.warmup = warmup;
    cfg.optimizer.lr = lr;
    cfg.model.d_model = 512;
    return cfg;
}

static void rates(const bti_run_config *cfg, double u1, double u4, double u16) {
    kit_near(bti_learning_rate(cfg, 1), u1, 1e-12);
    kit_near(bti_learning_rate(cfg, 4), u4, 1e-12);
    kit_near(bti_learning_rate(cfg, 16), u16, 1e-12);
}

START_TEST(b12_inverse_sqrt) {
    bti_run_config cfg = config(BTI_SCHEDULE_INVERSE_SQRT, 1e-3, 4);
    rates(&cfg, 2.5e-4, 1e-3, 5e-4);
    cfg.schedule.warmup = 0;
    rates(&cfg, 1e-3, 5e-4, 2.5e-4);
    cfg.schedule.warmup = 16; /* as many as the run has: ends at the top of the ramp */
    rates(&cfg, 6.25e-5, 2.5e-4, 1e-3);
    cfg.schedule.warmup = 64;
    rates(&cfg, 1e-3 / 64, 1e-3 / 16, 2.5e-4);
}
END_TEST

START_TEST(noam) {
    double scale = 1 / sqrt(512.0);
    bti_run_config cfg = config(BTI_SCHEDULE_NOAM, 2, 4);
    rates(&cfg, 2 * scale / 8, 2 * scale / 2, 2 * scale / 4);
    cfg.schedule.warmup = 0;
    rates(&cfg, 2 * scale, scale, scale / 2);
    cfg = config(BTI_SCHEDULE_NOAM, 1, 4000); /* the paper's base model peaks at 7e-4 */
    kit_near(bti_learning_rate(&cfg, 4000), 6.987712e-4, 1e-10);
    kit_near(bti_learning_rate(&cfg, 100000), 1.397542e-4, 1e-10);
}
END_TEST

START_TEST(constant) {
    bti_run_config cfg = config(BTI_SCHEDULE_CONSTANT, 1e-3, 0);
    rates(&cfg, 1e-3, 1e-3, 1e-3);
    cfg.schedule.warmup = 8;
    rates(&cfg, 1.25e-4, 5e-4, 1e-3);
}
END_TEST

/* 16 updates, warm-up 4: from the peak at 4 down to one thirteenth of it at the last. */
START_TEST(linear_and_cosine) {
    bti_run_config cfg = config(BTI_SCHEDULE_LINEAR, 1e-3, 4);
    cfg.training.updates = 16;
    rates(&cfg, 2.5e-4, 1e-3, 1e-3 / 13);
    kit_near(bti_learning_rate(&cfg, 10), 1e-3 * 7 / 13, 1e-12);
    kit_near(bti_learning_rate(&cfg, 100), 1e-3 / 13, 1e-12);
    cfg.schedule.kind = BTI_SCHEDULE_COSINE;
    rates(&cfg, 2.5e-4, 1e-3, 0.5e-3 * (1 + cos(acos(-1.0) * 12 / 13)));
    cfg.schedule.warmup = 0;
    kit_near(bti_learning_rate(&cfg, 1), 0.5e-3 * (1 + cos(acos(-1.0) / 17)), 1e-12);
}
END_TEST

START_TEST(always_finite_and_above_zero) {
    static const int64_t warmups[] = {-1, 0, 1, 4, 4000, INT64_MAX};
    static const int64_t updates[] = {INT64_MIN, -1, 0, 1, 2, 4000, INT64_MAX};
    for (int kind = 0; kind <= BTI_SCHEDULE_CONSTANT; kind++)
        for (int w = 0; w < 6; w++)
            for (int u = 0; u < 7; u++) {
                bti_run_config cfg = config((bti_schedule_kind)kind, 1e-3, warmups[w]);
                double rate = bti_learning_rate(&cfg, updates[u]);
                ck_assert_msg(rate > 0 && rate <= 1e-3, "kind %d warm-up %d update %d: %g", kind, w,
                              u, rate);
            }
}
END_TEST

/* ---- log ------------------------------------------------------------------------------------- */

static bti_log_record record(int64_t update) {
    return (bti_log_record){.update = update,
                            .epoch = 2,
                            .loss = 3.14159265358979,
                            .grad_norm = 1e-30,
                            .lr = 7e-4,
                            .target_tokens = 3000,
                            .source_tokens = 2900,
                            .micro_batches = 3,
                            .tokens_per_s = 1234.5,
                            .planned_bytes = UINT64_C(12884901888),
                            .peak_bytes = UINT64_C(12884901887),
                            .loss_scale = 1};
}

static bt_status open_log(const char *path, int64_t resume_update, bti_log_json **out) {
    bti_log_json *log;
    bt_status s = bti_log_json_open(path, &log);
    if (s != BT_OK) return s;
    s = bti_log_json_cut(log, resume_update, 0);
    if (s == BT_OK)
        *out = log;
    else
        bti_log_json_close(log);
    return s;
}

static const char *written(int64_t updates) {
    const char *path = kit_str("%s/log.jsonl", kit_tmpdir());
    bti_log_json *log = NULL;
    kit_ok(open_log(path, 0, &log));
    for (int64_t u = 1; u <= updates; u++) {
        bti_log_record r = record(u);
        kit_ok(bti_log_json_write(log, &r));
    }
    bti_log_json_close(log);
    return path;
}

/* The file holds updates 1 to `updates`, once each, in order. */
static void holds(const char *path, int64_t updates) {
    char *data = kit_read(path, NULL), *at = data;
    for (int64_t u = 1; u <= updates; u++) {
        char *end = strchr(at, '\n');
        ck_assert_ptr_nonnull(end);
        *end = 0;
        json_t *line = json_loads(at, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_ptr_nonnull(line);
        ck_assert_int_eq(json_integer_value(json_object_get(line, "update")), u);
        json_decref(line);
        at = end + 1;
    }
    ck_assert_str_eq(at, "");
    free(data);
}

START_TEST(a_line_has_the_fields) {
    char *data = kit_read(written(1), NULL);
    ck_assert_str_eq(data,
                     "{\"update\":1,\"epoch\":2,\"loss\":3.14159265,\"grad_norm\":1e-30,"
                     "\"lr\":0.0007,\"target_tokens\":3000,\"source_tokens\":2900,"
                     "\"micro_batches\":3,\"tokens_per_s\":1234.5,\"planned_bytes\":12884901888,"
                     "\"peak_bytes\":12884901887,\"loss_scale\":1,\"skipped\":false}\n");
    free(data);
}
END_TEST

/* The longest numbers fit into a line, and what JSON cannot say is null. */
START_TEST(extreme_numbers_stay_json) {
    const char *path = kit_str("%s/log.jsonl", kit_tmpdir());
    bti_log_json *log = NULL;
    kit_ok(open_log(path, 0, &log));
    bti_log_record r = {
        INT64_MIN, INT64_MIN, -1.23456789e-300, -1.23456789e-300, NAN,       INT64_MIN, INT64_MIN,
        INT64_MIN, INFINITY,  UINT64_MAX,       UINT64_MAX,       -INFINITY, 1};
    kit_ok(bti_log_json_write(log, &r));
    bti_log_json_close(log);
    /* As reals: jansson has no unsigned numbers of 64 bits. */
    json_t *line = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_eq(json_object_size(line), 13);
    kit_near(json_real_value(json_object_get(line, "loss")) * 1e300, -1.23456789, 1e-8);
    ck_assert(json_is_null(json_object_get(line, "lr")));
    ck_assert(json_is_null(json_object_get(line, "tokens_per_s")));
    ck_assert(json_is_null(json_object_get(line, "loss_scale")));
    ck_assert(json_is_true(json_object_get(line, "skipped")));
    json_decref(line);
}
END_TEST

START_TEST(resuming_has_each_update_once) {
    static const int64_t from[] = {0, 1, 99, 100};
    for (int i = 0; i < 4; i++) {
        const char *path = written(100);
        bti_log_json *log = NULL;
        kit_ok(open_log(path, from[i], &log));
        for (int64_t u = from[i] + 1; u <= 120; u++) {
            bti_log_record r = record(u);
            kit_ok(bti_log_json_write(log, &r));
        }
        bti_log_json_close(log);
        holds(path, 120);
    }
}
END_TEST

/* A line that a power cut left without its end goes; one that cannot be read does not take the
 * updates after it along. */
START_TEST(damaged_lines) {
    const char *path = written(3);
    size_t bytes;
    char *data = kit_read(path, &bytes);
    for (size_t cut = bytes / 3 * 2 + 1; cut < bytes; cut += 7) {
        bti_log_json *log = NULL;
        kit_write(path, data, cut);
        kit_ok(open_log(path, 3, &log));
        bti_log_record r = record(3);
        kit_ok(bti_log_json_write(log, &r));
        bti_log_json_close(log);
        holds(path, 3);
    }
    const char *mixed = "garbage\n{\"update\": 1}\n\n { \"update\" : 2 }\n{\"update\":7}\nmore\n";
    bti_log_json *log = NULL;
    kit_write_text(path, mixed);
    kit_ok(open_log(path, 2, &log));
    bti_log_json_close(log);
    char *left = kit_read(path, NULL);
    ck_assert_str_eq(left, "garbage\n{\"update\": 1}\n\n { \"update\" : 2 }\n");
    free(left);
    kit_ok(open_log(path, 0, &log)); /* a new run keeps nothing */
    bti_log_json_close(log);
    free(kit_read(path, &bytes));
    ck_assert_uint_eq(bytes, 0);
    free(data);
}
END_TEST

/* A validation that will be made again, and not the one before it. */
START_TEST(validations_to_come_are_cut) {
    const char *path = written(0);
    const char *kept = "{\"update\":1}\n{\"update\":1,\"valid_loss\":1}\n{\"update\":2}\n";
    for (int again = 0; again < 2; again++) {
        const char *all = kit_str("%s{\"update\":2,\"valid_loss\":1}\n", kept);
        bti_log_json *log;
        kit_write_text(path, all);
        kit_ok(bti_log_json_open(path, &log));
        kit_ok(bti_log_json_cut(log, 2, again));
        bti_log_json_close(log);
        char *left = kit_read(path, NULL);
        ck_assert_str_eq(left, again ? kept : all);
        free(left);
    }
}
END_TEST

START_TEST(a_log_is_one_runs) {
    const char *path = written(2);
    bti_log_json *log, *other = NULL;
    kit_ok(bti_log_json_open(path, &log));
    kit_fails(bti_log_json_open(path, &other), BT_EUSAGE, "another run writes there");
    ck_assert_ptr_null(other);
    holds(path, 2);
    bti_log_json_close(log);
    kit_ok(bti_log_json_open(path, &other));
    bti_log_json_close(other);
}
END_TEST

START_TEST(a_full_disk_leaves_whole_lines) {
    const char *path = written(2);
    size_t bytes;
    free(kit_read(path, &bytes));
    bti_log_json *log = NULL;
    bti_log_record r = record(2);
    kit_ok(open_log(path, 1, &log));
    kit_ok(bti_log_json_write(log, &r));
    r = record(3);
    struct rlimit old, small;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    for (rlim_t room = 0; room <= 20; room += 20) {
        small.rlim_cur = bytes + room;
        /* No assertion while the limit holds: Check itself writes a file at each. */
        int set = setrlimit(RLIMIT_FSIZE, &small);
        bt_status s = bti_log_json_write(log, &r);
        int unset = setrlimit(RLIMIT_FSIZE, &old);
        ck_assert_int_eq(set | unset, 0);
        ck_assert_int_eq(s, BT_EIO);
        ck_assert_ptr_nonnull(strstr(bt_last_error(), "update 3"));
        holds(path, 2);
    }
    kit_ok(bti_log_json_write(log, &r));
    holds(path, 3);
    bti_log_json_close(log);
    signal(SIGXFSZ, handler);
}
END_TEST

START_TEST(writing_allocates_nothing_and_opening_cleans_up) {
    const char *path = kit_str("%s/log.jsonl", kit_tmpdir());
    bti_log_json *log = NULL;
    int n = 1;
    for (;; n++) {
        bti_alloc_fail_at((uint64_t)n);
        bt_status s = open_log(path, 0, &log);
        bti_alloc_fail_at(0);
        if (s == BT_OK) break;
        ck_assert_int_eq(s, BT_ENOMEM);
        ck_assert_ptr_null(log);
    }
    ck_assert_int_ge(n, 2);
    uint64_t before = bti_alloc_count();
    for (int64_t u = 1; u <= 3; u++) {
        bti_log_record r = record(u);
        kit_ok(bti_log_json_write(log, &r));
    }
    ck_assert_uint_eq(bti_alloc_count(), before);
    bti_log_json_close(log);
    bti_log_json_close(NULL);
    holds(path, 3);
    log = NULL;
    kit_fails(open_log(kit_str("%s/absent/log.jsonl", kit_tmpdir()), 0, &log), BT_EIO,
              "absent/log.jsonl");
    ck_assert_ptr_null(log);
}
END_TEST

START_TEST(a_locale_with_commas_changes_nothing) {
    if (!kit_comma_begin()) return;
    const char *path = written(1);
    kit_comma_end();
    char *data = kit_read(path, NULL);
    ck_assert_ptr_nonnull(strstr(data, "\"loss\":3.14159265,"));
    free(data);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, b12_inverse_sqrt);
    tcase_add_test(tc, noam);
    tcase_add_test(tc, linear_and_cosine);
    tcase_add_test(tc, constant);
    tcase_add_test(tc, always_finite_and_above_zero);
    tcase_add_test(tc, a_line_has_the_fields);
    tcase_add_test(tc, extreme_numbers_stay_json);
    tcase_add_test(tc, resuming_has_each_update_once);
    tcase_add_test(tc, damaged_lines);
    tcase_add_test(tc, validations_to_come_are_cut);
    tcase_add_test(tc, a_log_is_one_runs);
    tcase_add_test(tc, a_full_disk_leaves_whole_lines);
    tcase_add_test(tc, writing_allocates_nothing_and_opening_cleans_up);
    tcase_add_test(tc, a_locale_with_commas_changes_nothing);
}

int main(int argc, char **argv) { return kit_main("schedule", add, argc, argv); }
