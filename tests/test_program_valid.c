/* Validation in a run: its lines in the log, the best model, patience, resume. */
#include "tests/program_kit.h"

#include <signal.h>

/* A run of 20 updates that validates on its own first lines every 5, beam 2. */
static small_run valid_run(void) {
    small_run r = small_run_new(100);
    char text[2][4096] = {"", ""};
    for (int side = 0; side < 2; side++) {
        const char *all = file_text(in_dir(r, side ? "train.en" : "train.de"));
        for (int i = 1; i <= 8; i++) {
            strcat(text[side], line_of(all, i));
            strcat(text[side], "\n");
        }
    }
    kit_write_text(in_dir(r, "valid.de"), text[0]);
    kit_write_text(in_dir(r, "valid.en"), text[1]);
    return r;
}

#define VALID \
    "--set", "data.valid.source=valid.de", "--set", "data.valid.target=valid.en", "--set", \
        "validation.beam=2", "--set", "validation.every=5"

/* Of a log, the lines of validations. */
static json_t *validations(const char *folder) {
    json_t *log = read_log(folder), *out = json_array();
    for (size_t i = 0; i < json_array_size(log); i++) {
        json_t *line = json_array_get(log, i);
        if (json_object_get(line, "valid_loss") != NULL) json_array_append(out, line);
    }
    json_decref(log);
    return out;
}

START_TEST(logged_and_best_kept) {
    small_run r = valid_run();
    check_status(train(r, VALID), 0);
    json_t *v = validations(r.out);
    ck_assert_uint_eq(json_array_size(v), 4);
    for (size_t i = 0; i < 4; i++) {
        json_t *line = json_array_get(v, i);
        check_fields(line, "update valid_loss valid_nll valid_perplexity valid_bleu valid_chrf "
                           "valid_seconds");
        ck_assert_int_eq((int)number_at(line, "update"), 5 * (int)(i + 1));
        kit_near(number_at(line, "valid_perplexity"), exp(number_at(line, "valid_nll")),
                 1e-6 * number_at(line, "valid_perplexity"));
    }
    /* It learns these lines. */
    ck_assert(number_at(json_array_get(v, 3), "valid_loss") <
              number_at(json_array_get(v, 0), "valid_loss"));
    json_decref(v);
    ck_assert(is_file(in_out(r, "best.safetensors")));
    ck_assert(is_file(in_out(r, "loss.svg")));
    program p = bantam("translate", r.out, "--input", in_dir(r, "valid.de"), "--threads", "1");
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 8);
    /* The best is what it takes: damaged, it is told of, and the last one serves. */
    kit_write_text(in_out(r, "best.safetensors"), "damaged");
    p = bantam("translate", r.out, "--input", in_dir(r, "valid.de"), "--threads", "1");
    check_status(p, 0);
    check_has(p.err, "best.safetensors");
    ck_assert_int_eq(count_lines(p.out), 8);
}
END_TEST

/* The run itself does not know whether it was validated. */
START_TEST(changes_nothing) {
    small_run r = valid_run();
    check_status(train(r, "--updates", "20"), 0);
    ck_assert_int_eq(rename(r.out, in_dir(r, "without")), 0);
    check_status(train(r, VALID), 0);
    json_t *a = read_log(in_dir(r, "without")), *b = read_log(r.out);
    size_t k = 0;
    for (size_t i = 0; i < json_array_size(a); i++, k++) {
        while (json_object_get(json_array_get(b, k), "loss") == NULL) k++;
        kit_near(number_at(json_array_get(b, k), "loss"), number_at(json_array_get(a, i), "loss"),
                 0);
    }
    json_decref(a);
    json_decref(b);
}
END_TEST

/* The end of the run is validated too, wherever it falls; a stop before it is not. */
START_TEST(the_end_is_validated) {
    small_run r = valid_run();
    check_status(train(r, VALID, "--set", "training.updates=13", "--updates", "7"), 0);
    json_t *v = validations(r.out);
    ck_assert_uint_eq(json_array_size(v), 1);
    json_decref(v);
    check_status(train(r, VALID, "--set", "training.updates=13", "--resume"), 0);
    v = validations(r.out);
    ck_assert_uint_eq(json_array_size(v), 3);
    ck_assert_int_eq((int)number_at(json_array_get(v, 2), "update"), 13);
    json_decref(v);
}
END_TEST

START_TEST(patience_ends_the_run) {
    small_run r = valid_run();
    /* A rate of nothing: the first validation is never bettered. */
    program p = train(r, VALID, "--set", "optimizer.lr=1e-30", "--set", "validation.metric=loss",
                      "--set", "validation.patience=2");
    check_status(p, 0);
    check_has(p.err, "no better validation in 2");
    json_t *v = validations(r.out);
    ck_assert_uint_eq(json_array_size(v), 3);
    json_decref(v);
}
END_TEST

START_TEST(resumes_what_it_knew) {
    small_run r = valid_run();
    check_status(train(r, VALID), 0);
    ck_assert_int_eq(rename(r.out, in_dir(r, "whole")), 0);
    check_status(train(r, VALID, "--updates", "10"), 0);
    check_status(train(r, VALID, "--resume"), 0);
    ck_assert(files_equal(in_out(r, "best.safetensors"), in_dir(r, "whole/best.safetensors")));
    ck_assert(files_equal(in_out(r, "checkpoint-0000000020.safetensors"),
                          in_dir(r, "whole/checkpoint-0000000020.safetensors")));
    json_t *a = validations(in_dir(r, "whole")), *b = validations(r.out);
    ck_assert_uint_eq(json_array_size(a), json_array_size(b));
    for (size_t i = 0; i < json_array_size(a); i++)
        kit_near(number_at(json_array_get(a, i), "valid_loss"),
                 number_at(json_array_get(b, i), "valid_loss"), 0);
    json_decref(a);
    json_decref(b);
}
END_TEST

/* C5 (b): a signal in validation: a whole checkpoint, and the validation is made again on resume.
 */
START_TEST(signal_in_validation) {
    small_run r = valid_run();
    const char *words[] = {"train", r.yaml,  "--threads",           "1",         "--device", "cpu",
                           VALID,   "--set", "validation.beam=512", "--updates", "5",        NULL};
    program p = program_start(&(program_how){0}, words);
    program_await(&p, "update 5/");
    kill(p.pid, SIGTERM);
    program_wait(&p);
    /* It may have ended before the signal came. */
    ck_assert_msg(p.status == 143 || p.status == 0, "status %d: %s", p.status, p.err);
    ck_assert_ptr_nonnull(newest_checkpoint(r.out));
    check_status(train(r, VALID, "--resume", "--updates", "5"), 0);
    json_t *v = validations(r.out);
    ck_assert_uint_eq(json_array_size(v), 1);
    json_decref(v);
}
END_TEST

static volatile sig_atomic_t stop;
static void stop_at_five(void *user, const bt_progress *p) {
    (void)user;
    if (p->kind == BT_PROGRESS_UPDATE && p->update == 5) stop = 1;
}

static int validations_of(small_run r) {
    json_t *v = validations(r.out);
    int n = (int)json_array_size(v);
    json_decref(v);
    return n;
}

/* The stop comes with the last update, so that its validation is cut for certain. What the log has
 * of one that no checkpoint knows of is written once, and once made it is not made again. */
START_TEST(the_last_validation_is_cut) {
    small_run r = valid_run();
    static const char *const sets[] = {"data.valid.source=valid.de", "data.valid.target=valid.en",
                                       "validation.beam=2", "validation.every=5",
                                       "training.updates=5"};
    bt_run *run;
    kit_ok(bt_run_load(r.yaml, sets, 5, &run));
    stop = 0;
    kit_fails(bt_train(run,
                       &(bt_train_options){
                           .device = "cpu", .threads = 1, .stop = &stop, .progress = stop_at_five}),
              BT_ESTOPPED, "--resume makes it");
    bt_run_free(run);
    ck_assert_ptr_nonnull(newest_checkpoint(r.out));
    ck_assert(!is_file(in_out(r, "best.safetensors")));
    ck_assert_int_eq(validations_of(r), 0);
    const char *log = in_out(r, "log.jsonl");
    kit_write_text(log, kit_str("%s{\"update\":5,\"valid_loss\":1}\n", file_text(log)));
    const char *last = "training.updates=5";
    check_status(train(r, VALID, "--set", last, "--resume"), 0);
    ck_assert(is_file(in_out(r, "best.safetensors")));
    ck_assert_int_eq(validations_of(r), 1);
    program p = train(r, VALID, "--set", last, "--resume");
    check_status(p, 0);
    check_lacks(p.err, "validation loss");
    ck_assert_int_eq(validations_of(r), 1);
}
END_TEST

/* ---- progress ----------------------------------------------------------------------------------
 */

typedef struct events {
    bt_progress at[16];
    int count;
} events;

static void note_event(void *user, const bt_progress *p) {
    events *e = user;
    ck_assert_int_lt(e->count, 16);
    ck_assert((p->path != NULL) == (p->kind == BT_PROGRESS_CHECKPOINT));
    if (p->path != NULL) ck_assert(is_file(p->path));
    e->at[e->count++] = *p;
}

/* What the library reports of a run with these settings, `updates` long (0: to its end). */
static events events_of(small_run r, const char *const *sets, size_t count, int resume,
                        int64_t updates) {
    events e = {.count = 0};
    bt_run *run;
    kit_ok(bt_run_load(r.yaml, sets, count, &run));
    kit_ok(bt_train(run, &(bt_train_options){.device = "cpu",
                                             .threads = 1,
                                             .resume = resume,
                                             .updates = updates,
                                             .progress = note_event,
                                             .user = &e}));
    bt_run_free(run);
    return e;
}

/* Every event has all that is known then, whatever it is of; also of a run that is gone on with,
 * before whose first update a validation is owed. */
START_TEST(every_event_is_whole) {
    small_run r = valid_run();
    static const char *const sets[] = {"data.valid.source=valid.de", "data.valid.target=valid.en",
                                       "validation.every=2",         "checkpoint.every=1",
                                       "validation.beam=1",          "training.updates=3"};
    for (int again = 0; again < 2; again++) {
        const events e = events_of(r, sets, 6, again, again ? 0 : 1);
        int validated = 0;
        for (int i = 0; i < e.count; i++) {
            const bt_progress *p = &e.at[i];
            validated |= p->kind == BT_PROGRESS_VALIDATION;
            ck_assert_int_eq(p->last_update, again ? 3 : 1);
            ck_assert(p->planned_bytes > 0 && p->peak_bytes > 0 && p->loss_scale == 1);
            ck_assert(p->epoch >= 1 && isfinite(p->loss) && p->lr > 0 && p->target_tokens > 0);
            ck_assert(p->seconds_left >= 0);
            ck_assert(isnan(p->valid_loss) == !validated);
            ck_assert(isnan(p->valid_score) == !validated);
        }
        /* update 1, its checkpoint; update 2, validation, checkpoint; the same of 3 */
        ck_assert_int_eq(e.count, again ? 6 : 2);
        ck_assert_int_eq(e.at[1].kind, again ? BT_PROGRESS_VALIDATION : BT_PROGRESS_CHECKPOINT);
    }
}
END_TEST

/* Updates that are skipped are counted from the one on that was, over resumes too. */
START_TEST(skipped_updates_are_counted) {
    small_run r = small_run_new(40);
    static const char *const sets[] = {"training.precision=fp16", "training.loss_scale=1e30",
                                       "training.loss_scale_max=1e30", "training.updates=4"};
    int64_t before = 0;
    for (int again = 0; again < 2; again++) {
        const events e = events_of(r, sets, 4, again, again ? 0 : 2);
        ck_assert_int_gt(e.count, 2);
        for (int i = 0; i < e.count; i++) {
            if (e.at[i].kind == BT_PROGRESS_UPDATE) before++;
            ck_assert_int_eq(e.at[i].skipped, before); /* none was taken at such a scale */
        }
    }
    ck_assert_int_eq(before, 4);
}
END_TEST

/* Nothing is known of an update before the first one. */
START_TEST(events_before_an_update) {
    small_run r = valid_run();
    static const char *const sets[] = {"data.valid.source=valid.de", "data.valid.target=valid.en",
                                       "validation.every=2", "validation.beam=1",
                                       "training.updates=2"};
    check_status(train(r, "--set", "training.updates=2"), 0);
    const events e = events_of(r, sets, 5, 1, 0);
    ck_assert_int_eq(e.count, 2);
    for (int i = 0; i < e.count; i++) {
        const bt_progress *p = &e.at[i];
        ck_assert(isnan(p->loss) && isnan(p->grad_norm) && p->seconds_left < 0 && p->epoch == 0);
        ck_assert(p->update == 2 && p->last_update == 2 && p->planned_bytes > 0);
        ck_assert(isfinite(p->valid_loss) && isfinite(p->valid_score) && p->valid_is_best);
    }
    ck_assert_int_eq(e.at[0].kind, BT_PROGRESS_VALIDATION);
    ck_assert_int_eq(e.at[1].kind, BT_PROGRESS_CHECKPOINT);
}
END_TEST

/* A BLEU of 0 would be better than every loss, whose score is below 0. */
START_TEST(another_score_begins_anew) {
    static const char *const sets[] = {"validation.metric=loss", "validation.beam=1",
                                       "data.valid.source=train.de"};
    static const char *const say[] = {"validation.metric", "validation.beam", "held-out"};
    for (int i = 0; i < 3; i++) {
        small_run r = valid_run();
        check_status(train(r, VALID, "--updates", "5"), 0);
        program p = train(r, VALID, "--resume", "--updates", "10", "--set", sets[i], "--set",
                          kit_str("data.valid.target=%s.en", i == 2 ? "train" : "valid"), "--set",
                          "validation.patience=1");
        check_status(p, 0);
        check_has(p.err, kit_str("%s", say[i]));
        check_has(p.err, "counts no longer");
        check_has(p.err, "best so far");
        /* and is not told again */
        p = train(r, VALID, "--resume", "--updates", "11", "--set", sets[i], "--set",
                  kit_str("data.valid.target=%s.en", i == 2 ? "train" : "valid"));
        check_status(p, 0);
        check_lacks(p.err, "counts no longer");
    }
}
END_TEST

/* Inside the plan: resident memory stays within it, and a limit that the decoder needs more room in
 * is met with smaller batches. */
START_TEST(within_the_plan) {
    small_run r = valid_run();
    check_status(train(r, VALID), 0);
    json_t *log = read_log(r.out);
    for (size_t i = 0; i < json_array_size(log); i++) {
        json_t *line = json_array_get(log, i);
        if (json_object_get(line, "peak_bytes") == NULL) continue;
        ck_assert(number_at(line, "peak_bytes") <= number_at(line, "planned_bytes"));
    }
    json_decref(log);
}
END_TEST

/* Lines of 1,000 letters, which are one word: the text is long, what is learned and decoded short.
 */
static double peak_with(int lines) {
    enum { LENGTH = 1000 };
    small_run r = small_run_new(20);
    char *text = malloc((size_t)lines * LENGTH + 1);
    memset(text, 'a', (size_t)lines * LENGTH);
    for (int i = 1; i <= lines; i++) text[i * LENGTH - 1] = '\n';
    text[(size_t)lines * LENGTH] = 0;
    kit_write_text(in_dir(r, "valid.de"), text);
    kit_write_text(in_dir(r, "valid.en"), text);
    free(text);
    check_status(train(r, VALID, "--updates", "2", "--set", "validation.every=1", "--set",
                       "tokenizer.kind=words", "--set", "tokenizer.model=words.txt", "--set",
                       "tokenizer.size=100", "--set", "data.max_length=3", "--set",
                       "validation.beam=1", "--set", "data.overlong=truncate"),
                 0);
    json_t *log = read_log(r.out);
    double most = 0;
    for (size_t i = 0; i < json_array_size(log); i++) {
        json_t *line = json_array_get(log, i);
        if (json_object_get(line, "peak_bytes") == NULL) continue;
        most = fmax(most, number_at(line, "peak_bytes"));
        ck_assert(number_at(line, "peak_bytes") <= number_at(line, "planned_bytes"));
    }
    json_decref(log);
    return most;
}

/* Held-out text takes no memory, however long it is: one run has 6 MB a side more than the other,
 * and takes no more. */
START_TEST(held_out_text_takes_no_memory) {
    if (SANITIZED) {
        kit_skip("an address sanitizer keeps freed memory");
        return;
    }
    double little = peak_with(5000), much = peak_with(11000);
    ck_assert_msg(much - little < 2e6, "%.0f bytes with 5,000 lines, %.0f with 11,000", little,
                  much);
}
END_TEST

void add_valid(TCase *tc) {
    tcase_add_test(tc, logged_and_best_kept);
    tcase_add_test(tc, changes_nothing);
    tcase_add_test(tc, the_end_is_validated);
    tcase_add_test(tc, patience_ends_the_run);
    tcase_add_test(tc, resumes_what_it_knew);
    tcase_add_test(tc, signal_in_validation);
    tcase_add_test(tc, the_last_validation_is_cut);
    tcase_add_test(tc, every_event_is_whole);
    tcase_add_test(tc, skipped_updates_are_counted);
    tcase_add_test(tc, events_before_an_update);
    tcase_add_test(tc, another_score_begins_anew);
    tcase_add_test(tc, within_the_plan);
    tcase_add_test(tc, held_out_text_takes_no_memory);
}
