/* Training as a process: it goes on after whatever ended it, and its rates, losses and checkpoints
 * are what the run file says. */
#include "tests/program_kit.h"

#include <signal.h>
#include <unistd.h>

#include "core/base/safetensors.h"

static void move_output(small_run r, const char *to) {
    ck_assert_int_eq(rename(r.out, in_dir(r, to)), 0);
}

/* Every update from `first` to `last` once, in order. */
static void check_log(small_run r, int first, int last) {
    json_t *log = read_log(r.out);
    ck_assert_int_eq((int)json_array_size(log), last - first + 1);
    for (int i = first; i <= last; i++)
        ck_assert_int_eq((int)number_at(json_array_get(log, (size_t)(i - first)), "update"), i);
    json_decref(log);
}

static void check_same_log(const char *a, const char *b, const char *field, double tolerance) {
    json_t *x = read_log(a), *y = read_log(b);
    ck_assert_uint_eq(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        double u = number_at(json_array_get(x, i), field);
        kit_near(number_at(json_array_get(y, i), field), u, tolerance * fabs(u));
    }
    json_decref(x);
    json_decref(y);
}

/* ---- C3: resume --------------------------------------------------------------------------------
 */

static void check_whole_run_again(small_run r) {
    const char *names[] = {"model.safetensors", "checkpoint-0000000020.safetensors", "run.yaml"};
    for (int i = 0; i < 3; i++)
        ck_assert_msg(files_equal(in_dir(r, kit_str("whole/%s", names[i])), in_out(r, names[i])),
                      "%s differs", names[i]);
    check_log(r, 1, 20);
    check_same_log(in_dir(r, "whole"), r.out, "loss", 0);
    check_same_log(in_dir(r, "whole"), r.out, "grad_norm", 0);
    check_same_log(in_dir(r, "whole"), r.out, "lr", 0);
}

/* 20 updates at once, against 10 and 10, then again from the same file; dropout is on, warm-up ends
 * after the cut. */
START_TEST(resume_is_bit_identical) {
    small_run r = small_run_new(100);
    const char *every = "checkpoint.every=10", *warmup = "schedule.warmup=15";
    check_status(train(r, "--set", every, "--set", warmup), 0);
    move_output(r, "whole");
    check_status(train(r, "--set", every, "--set", warmup, "--updates", "10"), 0);
    check_log(r, 1, 10);
    program p = train(r, "--set", every, "--set", warmup, "--resume");
    check_status(p, 0);
    check_has(p.err, "checkpoint-0000000010.safetensors");
    check_whole_run_again(r);
    ck_assert_int_eq(unlink(in_out(r, "checkpoint-0000000020.safetensors")), 0);
    check_status(train(r, "--set", every, "--set", warmup, "--resume"), 0);
    check_whole_run_again(r);
}
END_TEST

START_TEST(resume_of_a_finished_run_changes_nothing) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "3"), 0);
    const char *before = newest_checkpoint(r.out);
    check_status(train(r, "--updates", "3", "--resume"), 0);
    check_status(train(r, "--updates", "2", "--resume"), 0);
    ck_assert_str_eq(newest_checkpoint(r.out), before);
    check_log(r, 1, 3);
    check_status(train(r, "--updates", "4", "--resume"), 0);
    check_log(r, 1, 4);
}
END_TEST

/* Two threads, or another backend, may give other bits, not another curve. */
START_TEST(devices_agree) {
    small_run r = small_run_new(100);
    check_status(train(r, "--updates", "3"), 0);
    move_output(r, "one");
    check_status(bantam("train", r.yaml, "--device", "cpu", "--threads", "2", "--updates", "3"), 0);
    check_same_log(in_dir(r, "one"), r.out, "loss", 1e-5);
    move_output(r, "two");
    check_status(bantam("train", r.yaml, "--device", "ref", "--updates", "3"), 0);
    check_same_log(in_dir(r, "one"), r.out, "loss", 1e-5);
    check_same_log(in_dir(r, "one"), r.out, "grad_norm", 1e-4);
}
END_TEST

START_TEST(resume_refuses_another_run) {
    static const struct {
        const char *set, *say[3];
    } other[] = {
        {"model.d_model=64", {"model.d_model", "32", "64"}},
        {"model.encoder_layers=2", {"model.encoder_layers", "1", "2"}},
        {"training.seed=2", {"training.seed", "1", "2"}},
        {"training.batch=8", {"training.batch", "16", "8"}},
        {"training.batch_unit=target_tokens",
         {"training.batch_unit", "sentences", "target_tokens"}},
        {"optimizer.kind=adamw", {"optimizer.kind", "adam", "adamw"}},
    };
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    char *before = kit_read(in_out(r, "model.safetensors"), NULL);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        program p = train(r, "--resume", "--updates", "4", "--set", other[i].set);
        check_refused(p, "checkpoint-0000000002.safetensors");
        for (int k = 0; k < 3; k++) check_has(p.err, other[i].say[k]);
    }
    kit_write_text(in_dir(r, "train.en"), file_text(in_dir(r, "train.de")));
    check_refused(train(r, "--resume", "--updates", "4"), "text");
    free(before);
    check_log(r, 1, 2);
}
END_TEST

/* Another rate may be wanted: it is taken, and said. */
START_TEST(resume_tells_what_is_new) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    program p = train(r, "--resume", "--updates", "3", "--set", "optimizer.lr=0.001", "--set",
                      "memory.recompute=layers");
    check_status(p, 0);
    check_has(p.err, "optimizer.lr");
    check_has(p.err, "0.003");
    check_has(p.err, "0.001");
    check_lacks(p.err, "memory.recompute");
}
END_TEST

/* Where the rate falls to the last update, another last update is another rate. */
START_TEST(resume_tells_of_another_end) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2", "--set", "schedule.kind=cosine"), 0);
    program p = train(r, "--resume", "--updates", "3", "--set", "schedule.kind=cosine", "--set",
                      "training.updates=40");
    check_status(p, 0);
    check_has(p.err, "training.updates is 40 from here on; it was 20");
}
END_TEST

/* ---- outputs that are there already, or cannot be ----------------------------------------------
 */

START_TEST(a_run_is_not_overwritten) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    const char *log = file_text(in_out(r, "log.jsonl"));
    /* Refused before the text is read. */
    unlink(in_dir(r, "train.de"));
    program p = train(r, "--updates", "3");
    check_refused(p, "--resume");
    check_has(p.err, r.out);
    ck_assert_str_eq(file_text(in_out(r, "log.jsonl")), log);
}
END_TEST

START_TEST(output_cannot_be_made) {
    small_run r = small_run_new(60);
    program p = train(r, "--set", kit_str("output=%s/run.yaml/out", r.dir));
    check_status(p, 1);
    check_has(p.err, "run.yaml");
    kit_write_text(r.out, "a file");
    p = train(r, "--updates", "2");
    check_status(p, 1);
    check_has(p.err, r.out);
    ck_assert_str_eq(file_text(r.out), "a file");
}
END_TEST

/* The disk takes the log and the small files, and no checkpoint. What was there stays whole. */
START_TEST(disk_full) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    program p = bantam_how((program_how){.file_limit = 290000}, "train", r.yaml, "--resume",
                           "--threads", "1", "--updates", "3");
    check_status(p, 1);
    check_has(p.err, "checkpoint-0000000003.safetensors");
    check_has(p.err, "too large");
    ck_assert_int_eq(toy_entries(r.out, ".part"), 0);
    check_status(train(r, "--resume", "--updates", "4"), 0);
    check_log(r, 1, 4);
}
END_TEST

/* ---- C1: killed at random moments, and files cut by hand ---------------------------------------
 */

START_TEST(killed_while_saving) {
    small_run r = small_run_new(60);
    const char *const words[] = {"train",
                                 r.yaml,
                                 "--resume",
                                 "--threads",
                                 "1",
                                 "--device",
                                 "cpu",
                                 "--set",
                                 "checkpoint.every=1",
                                 "--set",
                                 "training.updates=100000",
                                 NULL};
    uint32_t x = 1;
    int killed = 0;
    for (int i = 0; i < 20; i++) {
        program p = program_start(&(program_how){0}, words);
        x = x * 1664525u + 1013904223u;
        if (i > 0 || x % 2) program_await(&p, "update ");
        usleep(x >> 16); /* 0 to 65 ms */
        kill(p.pid, SIGKILL);
        program_wait(&p);
        killed += p.status == -SIGKILL;
        ck_assert_msg(p.status == -SIGKILL, "%s", p.err);
    }
    ck_assert_int_eq(killed, 20);
    const char *newest = newest_checkpoint(r.out);
    ck_assert_ptr_nonnull(newest);
    int update = atoi(strrchr(newest, '-') + 1);
    ck_assert_int_ge(update, 1);
    program p = train(r, "--resume", "--set", "checkpoint.every=1", "--set",
                      kit_str("training.updates=%d", update + 2));
    check_status(p, 0);
    check_has(p.err, newest);
    check_log(r, 1, update + 2);
    ck_assert_int_eq(toy_entries(r.out, "checkpoint-"), 3); /* keep 3, no part of a file */
}
END_TEST

START_TEST(damaged_checkpoints_are_passed_over) {
    small_run r = small_run_new(60);
    const char *every = "checkpoint.every=1";
    check_status(train(r, "--set", every, "--updates", "3"), 0);
    const char *newest = newest_checkpoint(r.out);
    size_t n;
    char *whole = kit_read(newest, &n);
    size_t cut[] = {0, 1, n / 2, n - 8, n};
    for (int i = 0; i < 5; i++) {
        if (cut[i] == n) whole[n / 2] ^= 1;
        kit_write(newest, whole, cut[i]);
        program p = train(r, "--set", every, "--updates", "2", "--resume");
        check_status(p, 0);
        check_has(p.err, "passed over");
        check_has(p.err, newest);
        check_has(p.err, "going on from");
        check_has(p.err, "checkpoint-0000000002.safetensors");
    }
    free(whole);
    check_status(train(r, "--set", every, "--updates", "3", "--resume"), 0);
    check_log(r, 1, 3);
    check_lacks(train(r, "--set", every, "--updates", "4", "--resume").err, "passed over");
}
END_TEST

/* A damaged newer file must not count as one of those kept. */
START_TEST(damaged_checkpoints_do_not_push_out_good_ones) {
    small_run r = small_run_new(60);
    check_status(train(r, "--set", "checkpoint.every=1", "--updates", "3"), 0);
    kit_write_text(in_out(r, "checkpoint-0000000009.safetensors"), "damaged");
    program p = train(r, "--set", "checkpoint.keep=1", "--updates", "4", "--resume");
    check_status(p, 0);
    ck_assert(is_file(in_out(r, "checkpoint-0000000004.safetensors")));
    check_status(train(r, "--set", "checkpoint.keep=1", "--updates", "5", "--resume"), 0);
    check_log(r, 1, 5);
}
END_TEST

START_TEST(keep_and_every) {
    small_run r = small_run_new(60);
    check_status(
        train(r, "--set", "checkpoint.every=2", "--set", "checkpoint.keep=2", "--updates", "9"), 0);
    ck_assert_int_eq(toy_entries(r.out, "checkpoint-"), 2);
    ck_assert(is_file(in_out(r, "checkpoint-0000000008.safetensors")));
    ck_assert(is_file(in_out(r, "checkpoint-0000000009.safetensors")));
}
END_TEST

/* A plan file that was damaged is told of, and another plan is made. */
START_TEST(damaged_plan) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "3"), 0);
    const char *path = in_out(r, "plan.json");
    json_t *plan = parse_json(file_text(path));
    static const char *const key[] = {"sentences", "source_rows", "target_rows", "logit_rows"};
    for (int i = 0; i < 4; i++)
        json_object_set_new(plan, key[i], json_integer(i < 3 ? INT32_MAX : 1));
    char *text = json_dumps(plan, 0);
    kit_write_text(path, text);
    free(text);
    json_decref(plan);
    program p = train(r, "--resume", "--updates", "4");
    check_status(p, 0);
    check_has(p.err, kit_str("%s: what it holds does not fit here: the run is planned anew", path));
    check_log(r, 1, 4);
    check_lacks(train(r, "--resume", "--updates", "5").err, "planned anew");
}
END_TEST

/* ---- C5: signals -------------------------------------------------------------------------------
 */

static program start_long(small_run r, const char *more) {
    const char *const words[] = {"train",     r.yaml,  "--resume",
                                 "--threads", "1",     "--device",
                                 "cpu",       "--set", "training.updates=100000",
                                 more,        NULL};
    return program_start(&(program_how){0}, words);
}

static void stop_and_resume(int number) {
    small_run r = small_run_new(60);
    program p = start_long(r, NULL);
    program_await(&p, "update 1/");
    usleep(20000);
    kill(p.pid, number);
    program_wait(&p);
    check_status(p, 128 + number);
    check_has(p.err, "--resume");
    const char *newest = newest_checkpoint(r.out);
    ck_assert_ptr_nonnull(newest);
    int update = atoi(strrchr(newest, '-') + 1);
    ck_assert_int_ge(update, 1);
    check_log(r, 1, update);
    check_has(p.err, kit_str("update %d", update));
    check_status(train(r, "--resume", "--set", "training.updates=100000", "--updates",
                       kit_str("%d", update + 1)),
                 0);
    check_log(r, 1, update + 1);
}

START_TEST(sigterm) { stop_and_resume(SIGTERM); }
END_TEST
START_TEST(sigint) { stop_and_resume(SIGINT); }
END_TEST

/* A terminal that is closed. */
START_TEST(sighup) {
    void (*old)(int) = signal(SIGHUP, SIG_DFL); /* as the program inherits it */
    stop_and_resume(SIGHUP);
    signal(SIGHUP, old);
}
END_TEST

/* Whoever read the messages is gone. */
START_TEST(progress_that_nobody_reads) {
    small_run r = small_run_new(60);
    const char *program_path = getenv("BANTAM_PROGRAM");
    const char *line = kit_str("%s train %s --threads 1 --device cpu --updates 5 "
                               "--set checkpoint.every=1 2>&1 | head -c 1 > /dev/null",
                               program_path ? program_path : "build/bantam", r.yaml);
    program p =
        program_run(&(program_how){.binary = "sh"}, (const char *const[]){"-c", line, NULL});
    check_status(p, 0);
    ck_assert(is_file(in_out(r, "checkpoint-0000000005.safetensors")));
}
END_TEST

START_TEST(signal_twice) {
    small_run r = small_run_new(60);
    program p = start_long(r, NULL);
    program_await(&p, "update 1/");
    kill(p.pid, SIGTERM);
    kill(p.pid, SIGTERM);
    usleep(500);
    kill(p.pid, SIGTERM);
    program_wait(&p);
    check_status(p, 143);
    check_status(train(r, "--resume", "--updates", "1"), 0);
}
END_TEST

/* While the text is read and turned into tokens: it ends soon, and nothing is written. */
START_TEST(signal_while_reading) {
    small_run r = small_run_new(100000);
    program p = start_long(r, NULL);
    program_await(&p, "reading");
    kill(p.pid, SIGTERM);
    program_wait(&p);
    check_status(p, 143);
    check_has(p.err, "nothing is written");
    ck_assert_ptr_null(newest_checkpoint(r.out));
    ck_assert(!is_file(in_out(r, "log.jsonl")));
    ck_assert_int_eq(toy_entries(in_out(r, "cache"), ""), 0);
}
END_TEST

/* ---- B12: the rate of an update ----------------------------------------------------------------
 */

static json_t *rates(small_run r, const char *warmup) {
    program p =
        train(r, "--set", "optimizer.lr=0.001", "--set", kit_str("schedule.warmup=%s", warmup),
              "--set", kit_str("output=out%s", warmup));
    check_status(p, 0);
    return read_log(in_dir(r, kit_str("out%s", warmup)));
}

START_TEST(warmup) {
    static const struct {
        const char *warmup;
        double rate[3]; /* of updates 1, 4, 16 */
    } want[] = {{"4", {2.5e-4, 1e-3, 5e-4}},
                {"0", {1e-3, 5e-4, 2.5e-4}},
                {"20", {5e-5, 2e-4, 8e-4}},
                {"40", {2.5e-5, 1e-4, 4e-4}}};
    static const int at[] = {1, 4, 16};
    small_run r = small_run_new(40);
    for (int i = 0; i < 4; i++) {
        json_t *log = rates(r, want[i].warmup);
        for (int k = 0; k < 3; k++)
            kit_near(number_at(json_array_get(log, (size_t)at[k] - 1), "lr"), want[i].rate[k],
                     1e-8 * want[i].rate[k]);
        for (size_t k = 0; k < 20; k++) ck_assert(number_at(json_array_get(log, k), "lr") > 0);
        json_decref(log);
    }
    check_refused(train(r, "--set", "schedule.warmup=-1"), "schedule.warmup");
}
END_TEST

/* ---- B8 (c): a rate that ruins the model -------------------------------------------------------
 */

static void check_finite_file(const char *path) {
    bti_st_file *f;
    kit_ok(bti_st_open(path, BTI_ST_REQUIRE, &f));
    for (size_t i = 0; i < bti_st_count(f); i++) {
        const void *data;
        const bti_st_tensor *t = bti_st_at(f, i, &data);
        int64_t n = t->shape[0] * (t->dims > 1 ? t->shape[1] : 1);
        for (int64_t k = 0; k < n; k++)
            ck_assert_msg(isfinite(bti_load(data, t->dtype, k)), "%s: %s", path, t->name);
    }
    bti_st_close(f);
}

static void ruin(small_run r, const char *lr) {
    program p = train(r, "--set", kit_str("optimizer.lr=%s", lr), "--set", "schedule.warmup=0",
                      "--set", "checkpoint.every=1", "--set", "checkpoint.keep=3", "--set",
                      "training.clip_norm=0", "--set", "training.updates=60");
    ck_assert_msg(p.status == 0 || p.status == 1, "status %d: %s", p.status, p.err);
    if (p.status == 1) check_has(p.err, "finite");
    const char *newest = newest_checkpoint(r.out);
    ck_assert_ptr_nonnull(newest);
    int update = atoi(strrchr(newest, '-') + 1);
    for (int u = update - 2; u <= update; u++) {
        const char *path = in_out(r, kit_str("checkpoint-%010d.safetensors", u));
        if (is_file(path)) check_finite_file(path);
    }
    p = train(r, "--resume", "--set", "optimizer.lr=0", "--updates", kit_str("%d", update + 1),
              "--set", "training.updates=60");
    check_status(p, 0);
    check_has(p.err, newest);
}

START_TEST(a_rate_of_two) { ruin(small_run_new(60), "2"); }
END_TEST

/* So large that the numbers themselves overflow. */
START_TEST(a_rate_that_overflows) { ruin(small_run_new(60), "1e30"); }
END_TEST

/* The last update that learned nothing good is the only one of its kind that is kept. */
START_TEST(skipped_updates_push_out_no_checkpoint) {
    small_run r = small_run_new(60);
    const char *every = "checkpoint.every=1", *all = "training.updates=60";
    check_status(train(r, "--set", every, "--set", all, "--updates", "3"), 0);
    program p = train(r, "--set", every, "--set", all, "--set", "optimizer.lr=1e30", "--set",
                      "schedule.warmup=0", "--resume");
    check_status(p, 1);
    check_has(p.err, "20 updates in a row");
    ck_assert(is_file(in_out(r, "checkpoint-0000000003.safetensors")));
    check_status(train(r, "--set", every, "--set", all, "--updates", "5", "--resume"), 0);
}
END_TEST

/* ---- B11: sizes that are not nice --------------------------------------------------------------
 */

START_TEST(awkward_widths) {
    small_run r = small_run_new(40);
    program p = train(r, "--set", "model.d_model=30", "--set", "model.heads=4");
    check_refused(p, "model.heads 4");
    check_has(p.err, "model.d_model 30");
    ck_assert(!is_file(r.out));
    check_refused(bantam("plan", r.yaml, "--set", "model.d_model=30", "--set", "model.heads=4"),
                  "model.d_model 30");
    static const char *const sets[][3] = {{"model.d_model=29", "model.heads=1", "output=a"},
                                          {"model.d_model=30", "model.heads=3", "output=b"},
                                          {"model.d_model=1", "model.heads=1", "output=c"},
                                          {"training.batch=1", "model.ff=1", "output=d"}};
    for (int i = 0; i < 4; i++) {
        p = train(r, "--updates", "3", "--set", sets[i][0], "--set", sets[i][1], "--set",
                  sets[i][2]);
        check_status(p, 0);
        json_t *log = read_log(in_dir(r, sets[i][2] + strlen("output=")));
        ck_assert_uint_eq(json_array_size(log), 3);
        for (size_t k = 0; k < 3; k++) ck_assert(number_at(json_array_get(log, k), "loss") > 0);
        json_decref(log);
    }
}
END_TEST

/* ---- the log -----------------------------------------------------------------------------------
 */

START_TEST(log_fields) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "5"), 0);
    json_t *log = read_log(r.out);
    for (size_t i = 0; i < 5; i++) {
        json_t *line = json_array_get(log, i);
        check_fields(line, "update epoch loss grad_norm lr target_tokens source_tokens "
                           "micro_batches tokens_per_s planned_bytes peak_bytes loss_scale "
                           "skipped");
        ck_assert(json_is_false(json_object_get(line, "skipped")));
        ck_assert(number_at(line, "loss_scale") == 1);
        ck_assert(number_at(line, "tokens_per_s") > 0);
        ck_assert(number_at(line, "epoch") == (i < 4 ? 1 : 2));
    }
    json_decref(log);
}
END_TEST

void add_train(TCase *tc) {
    tcase_add_test(tc, damaged_plan);
    tcase_add_test(tc, resume_is_bit_identical);
    tcase_add_test(tc, resume_of_a_finished_run_changes_nothing);
    tcase_add_test(tc, devices_agree);
    tcase_add_test(tc, resume_refuses_another_run);
    tcase_add_test(tc, resume_tells_what_is_new);
    tcase_add_test(tc, resume_tells_of_another_end);
    tcase_add_test(tc, a_run_is_not_overwritten);
    tcase_add_test(tc, output_cannot_be_made);
    tcase_add_test(tc, disk_full);
    tcase_add_test(tc, killed_while_saving);
    tcase_add_test(tc, damaged_checkpoints_are_passed_over);
    tcase_add_test(tc, damaged_checkpoints_do_not_push_out_good_ones);
    tcase_add_test(tc, keep_and_every);
    tcase_add_test(tc, sigterm);
    tcase_add_test(tc, sigint);
    tcase_add_test(tc, sighup);
    tcase_add_test(tc, progress_that_nobody_reads);
    tcase_add_test(tc, signal_twice);
    tcase_add_test(tc, signal_while_reading);
    tcase_add_test(tc, warmup);
    tcase_add_test(tc, a_rate_of_two);
    tcase_add_test(tc, a_rate_that_overflows);
    tcase_add_test(tc, skipped_updates_push_out_no_checkpoint);
    tcase_add_test(tc, awkward_widths);
    tcase_add_test(tc, log_fields);
}
