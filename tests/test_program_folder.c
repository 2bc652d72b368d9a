/* A run's folder: what a run may not write over, who may write there, what is left behind. */
#include "tests/program_kit.h"

#include "core/base/files.h"
#include "core/train/log_json.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* Refused, with both names, and every byte of the file is there. */
static void check_kept(program p, const char *own, const char *file, const char *text) {
    check_refused(p, own);
    check_has(p.err, file);
    check_has(p.err, "another output");
    ck_assert_str_eq(file_text(file), text);
}

#define VALID(source) \
    "--set", kit_str("data.valid.source=%s", source), "--set", "data.valid.target=train.en", \
        "--set", "validation.beam=1"

/* ---- what it reads -----------------------------------------------------------------------------
 */

START_TEST(inputs_are_not_written_over) {
    static const char *const names[] = {"plan.json", "log.jsonl", "loss.svg", "target.tokenizer"};
    small_run r = small_run_new(60);
    const char *text = file_text(in_dir(r, "train.de")), *yaml = file_text(r.yaml);
    /* the run file itself */
    check_kept(train(r, "--set", "output=."), "run.yaml", r.yaml, yaml);
    ck_assert(!is_file(in_dir(r, "log.jsonl")));
    ck_assert_int_eq(rename(r.yaml, in_dir(r, "first.yaml")), 0);
    r.yaml = in_dir(r, "first.yaml");
    for (int i = 0; i < 4; i++) {
        const char *sets[] = {"training.updates=1", "training.updates=1"};
        if (i == 3)
            sets[0] = "tokenizer.source.model=spm",
            sets[1] = kit_str("tokenizer.target.model=%s", toy_model());
        if (i == 3) kit_write_text(in_dir(r, "spm"), "");
        kit_write_text(in_dir(r, names[i]), text);
        check_kept(train(r, "--set", "output=.", "--set", kit_str("data.train.source=%s", names[i]),
                         "--set", sets[0], "--set", sets[1]),
                   names[i], in_dir(r, names[i]), text);
        ck_assert_int_eq(unlink(in_dir(r, names[i])), 0);
    }
    /* by another name, and with --resume */
    ck_assert_int_eq(mkdir(r.out, 0777), 0);
    ck_assert_int_eq(symlink("../train.en", in_out(r, "run.yaml")), 0);
    check_kept(train(r, "--resume"), "run.yaml", in_dir(r, "train.en"),
               file_text(in_dir(r, "train.en")));
}
END_TEST

/* Tokenisers may be their own copies, and the run file what was printed there. */
START_TEST(own_files_may_be_read) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    const char *model = kit_str("tokenizer.model=%s", in_out(r, "source.tokenizer"));
    check_status(train(r, "--updates", "3", "--resume", "--set", model), 0);
    r.yaml = in_out(r, "run.yaml");
    check_status(train(r, "--updates", "4", "--resume"), 0);
    check_status(train(r, "--updates", "5", "--resume", "--set", "optimizer.lr=0.001"), 0);
    check_has(file_text(r.yaml), "lr: 0.001");
    const char *noted = kit_str("# mine\n%s", file_text(r.yaml));
    kit_write_text(r.yaml, noted);
    check_kept(train(r, "--updates", "6", "--resume"), "run.yaml", r.yaml, noted);
}
END_TEST

START_TEST(plans_are_not_drawn_over_inputs) {
    static const char *const options[] = {"--svg", "--html", "--plot"};
    small_run r = small_run_new(60);
    const char *text = file_text(in_dir(r, "train.en"));
    for (int i = 0; i < 3; i++) {
        program p = bantam("plan", r.yaml, options[i], in_dir(r, "train.en"), "--sweep");
        check_refused(p, kit_str("%s: %s is the same file", options[i], in_dir(r, "train.en")));
        ck_assert_str_eq(file_text(in_dir(r, "train.en")), text);
    }
}
END_TEST

/* ---- models of other runs ----------------------------------------------------------------------
 */

/* A best model of another run would be what translation takes. */
START_TEST(models_of_other_runs) {
    static const char *const names[] = {"best.safetensors", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        small_run r = small_run_new(60);
        ck_assert_int_eq(mkdir(r.out, 0777), 0);
        kit_write_text(in_out(r, names[i]), "old");
        check_kept(train(r, "--updates", "2"), names[i], in_out(r, names[i]), "old");
        check_kept(train(r, "--updates", "2", "--resume"), names[i], in_out(r, names[i]), "old");
        /* of a run that was killed before its first checkpoint */
        program p = train(r, "--updates", "2", "--resume", VALID("train.de"), "--set",
                          "validation.every=2");
        check_status(p, i == 0 ? 0 : 2);
    }
}
END_TEST

/* ---- two at once, and what the killed leave ----------------------------------------------------
 */

START_TEST(one_run_at_a_time) {
    small_run r = small_run_new(60);
    bti_log_json *other;
    ck_assert_int_eq(mkdir(r.out, 0777), 0);
    kit_ok(bti_log_json_open(in_out(r, "log.jsonl"), &other));
    for (int i = 0; i < 2; i++) {
        program p = i ? train(r, "--updates", "2") : train(r, "--updates", "2", "--resume");
        check_refused(p, "another run writes there");
        check_has(p.err, r.out);
        check_lacks(p.err, "reading");
        ck_assert_int_eq(toy_entries(r.out, ""), 1);
    }
    bti_log_json_close(other);
    /* one that was killed has it no more */
    const char *const words[] = {"train", r.yaml, "--set", "training.updates=100000", NULL};
    program p = program_start(&(program_how){0}, words);
    program_await(&p, "update 1/");
    kill(p.pid, SIGKILL);
    program_wait(&p);
    check_status(p, -SIGKILL);
    check_status(train(r, "--updates", "2"), 0);
}
END_TEST

/* Of a checkpoint, not of other files; one that is being written stays. */
START_TEST(parts_of_killed_runs_go) {
    small_run r = small_run_new(60);
    bti_aside *busy;
    check_status(train(r, "--updates", "2"), 0);
    kit_write_text(in_out(r, "checkpoint-0000000001.safetensors.part"), "half");
    kit_write_text(in_out(r, "checkpoint-1.safetensors.part"), "mine");
    kit_write_text(in_out(r, "other.part"), "mine");
    kit_ok(bti_aside_open(in_out(r, "checkpoint-0000000007.safetensors"), &busy));
    check_status(train(r, "--updates", "3", "--resume"), 0);
    ck_assert(!is_file(in_out(r, "checkpoint-0000000001.safetensors.part")));
    ck_assert(is_file(in_out(r, "checkpoint-0000000007.safetensors.part")));
    ck_assert(is_file(in_out(r, "checkpoint-1.safetensors.part")));
    ck_assert(is_file(in_out(r, "other.part")));
    bti_aside_abandon(busy);
}
END_TEST

/* A name that is not ours is no checkpoint. */
START_TEST(checkpoints_named_by_hand) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    kit_write_text(in_out(r, "checkpoint-1.safetensors"), "mine");
    kit_write_text(in_out(r, "checkpoint-9.safetensors"), "mine");
    program p = train(r, "--updates", "4", "--resume", "--set", "checkpoint.every=1", "--set",
                      "checkpoint.keep=1");
    check_status(p, 0);
    check_lacks(p.err, "passed over");
    ck_assert_str_eq(file_text(in_out(r, "checkpoint-1.safetensors")), "mine");
    ck_assert_int_eq(toy_entries(r.out, "checkpoint-"), 3);
}
END_TEST

/* ---- why a run ended ---------------------------------------------------------------------------
 */

static volatile sig_atomic_t stop;
static void stop_at_two(void *user, const bt_progress *p) {
    (void)user;
    if (p->kind == BT_PROGRESS_UPDATE && p->update == 2) stop = 1;
}

/* Pictures that cannot be drawn do not take the place of the reason. */
START_TEST(the_first_failure_is_told) {
    small_run r = small_run_new(60);
    bt_run *run;
    ck_assert_int_eq(mkdir(r.out, 0777), 0);
    ck_assert_int_eq(mkdir(in_out(r, "loss.svg"), 0777), 0);
    kit_ok(bt_run_load(r.yaml, NULL, 0, &run));
    stop = 0;
    kit_fails(bt_train(run,
                       &(bt_train_options){
                           .device = "cpu", .threads = 1, .stop = &stop, .progress = stop_at_two}),
              BT_ESTOPPED, "update 2 is done and saved");
    bt_run_free(run);
}
END_TEST

void add_folder(TCase *tc) {
    tcase_add_test(tc, inputs_are_not_written_over);
    tcase_add_test(tc, own_files_may_be_read);
    tcase_add_test(tc, plans_are_not_drawn_over_inputs);
    tcase_add_test(tc, models_of_other_runs);
    tcase_add_test(tc, one_run_at_a_time);
    tcase_add_test(tc, parts_of_killed_runs_go);
    tcase_add_test(tc, checkpoints_named_by_hand);
    tcase_add_test(tc, the_first_failure_is_told);
}
