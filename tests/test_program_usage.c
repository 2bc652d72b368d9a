/* What the program says of itself, of devices and scores; an installed one; the library as programs
 * call it that leave all to its defaults. */
#include "tests/program_kit.h"

#include <unistd.h>

START_TEST(usage) {
    check_status(bantam("--help"), 0);
    check_status(bantam("--version"), 0);
    program p = program_run(&(program_how){0}, (const char *const[]){NULL});
    check_status(p, 2);
    check_has(p.err, "Usage");
    check_refused(bantam("trian"), "trian");
    check_refused(bantam("train"), "RUN.yaml");
    check_refused(bantam("train", "a", "b"), "b");
    check_refused(bantam("train", "--bach=3", "a"), "--bach");
    check_refused(bantam("train", "/nowhere/run.yaml"), "/nowhere/run.yaml");
    p = bantam("train", "--keys");
    check_status(p, 0);
    check_has(p.out, "training.batch");
    ck_assert_int_eq(p.err[0], 0);
}
END_TEST

START_TEST(wrong_run_files) {
    static const struct {
        const char *text, *say[2];
    } wrong[] = {{"output: out\nmodle: {ff: 2}\n", {":2", "modle"}},
                 {"output: out\ntraining:\n  batch: many\n", {":3", "training.batch"}},
                 {"output: [\n", {"run.yaml", "2"}},
                 {"output: out\noutput: b\n", {":2", "output"}},
                 {"output: out\n", {"missing", "data.train.source"}},
                 {"", {"missing", "output"}}};
    small_run r = small_run_new(20);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kit_write_text(r.yaml, wrong[i].text);
        for (int k = 0; k < 2; k++) {
            check_refused(bantam("train", r.yaml), wrong[i].say[k]);
            check_refused(bantam("plan", r.yaml), wrong[i].say[k]);
        }
    }
    ck_assert(!is_file(r.out));
}
END_TEST

START_TEST(devices) {
    program p = bantam("devices", "--json");
    check_status(p, 0);
    json_t *all = parse_json(p.out), *one;
    json_t *list = json_object_get(all, "devices");
    int cpu = 0;
    size_t i;
    json_array_foreach(list, i, one) {
        const char *name = json_string_value(json_object_get(one, "device"));
        ck_assert_ptr_nonnull(name);
        check_lacks(name, "ref"); /* backends for tests */
        check_lacks(name, "null");
        if (!json_is_true(json_object_get(one, "usable"))) {
            check_fields(one, "device backend usable reason");
            ck_assert_int_gt((int)strlen(json_string_value(json_object_get(one, "reason"))), 0);
            continue;
        }
        check_fields(one, "device backend usable name compute_capability driver total_bytes "
                          "free_bytes held_by_others_bytes largest_allocation_bytes threads gflops "
                          "gigabytes_per_s types largest_work_group");
        ck_assert(number_at(one, "total_bytes") >=
                  number_at(one, "free_bytes") + number_at(one, "held_by_others_bytes"));
        if (strcmp(name, "cpu:0") != 0) continue;
        cpu++;
        ck_assert(json_is_null(json_object_get(one, "compute_capability")));
        ck_assert(json_is_null(json_object_get(one, "driver")));
        ck_assert(json_is_null(json_object_get(one, "largest_allocation_bytes")));
    }
    list = json_object_get(all, "planned_from_a_table");
    ck_assert_uint_ge(json_array_size(list), 12);
    json_array_foreach(list, i, one) {
        check_fields(one, "device name backend total_bytes runtime_bytes peak_gflops "
                          "peak_gigabytes_per_s compute_capability");
        ck_assert(number_at(one, "total_bytes") > number_at(one, "runtime_bytes"));
    }
    json_decref(all);
    ck_assert_int_eq(cpu, 1);
    p = bantam("devices");
    check_has(p.out, "rtx3090 ");
    check_lacks(p.out, "(null)");
    check_lacks(p.out, "ref:0");
}
END_TEST

START_TEST(device_names) {
    small_run r = small_run_new(40);
    program p = bantam("train", r.yaml, "--device", "abacus");
    check_refused(p, "abacus");
    check_has(p.err, "choose one of cuda, opencl, cpu;");
    check_refused(bantam("plan", r.yaml, "--device", "cpu:x"), "cpu:x");
    p = bantam("train", r.yaml, "--device", "cuda");
    ck_assert_msg(p.status == 1 || p.status == 2, "status %d", p.status);
    check_has(p.err, "cuda");
    p = bantam("train", r.yaml, "--device", "null", "--updates", "2");
    check_status(p, 0);
    check_has(p.err, "nothing is learned");
}
END_TEST

/* Without its module the cpu backend is named as missing, and nothing slow steps in for it. */
START_TEST(modules_missing) {
    if (!is_file(kit_str("%s/bantam_cpu.so",
                         getenv("BANTAM_MODULES") ? getenv("BANTAM_MODULES") : "build"))) {
        kit_skip("the cpu backend is linked in");
        return;
    }
    small_run r = small_run_new(40);
    program_how how = {.environment = "BANTAM_MODULES=/nowhere"};
    static const char *const device[] = {"cpu", "auto"};
    for (int i = 0; i < 2; i++) {
        program p = bantam_how(how, "train", r.yaml, "--device", device[i], "--updates", "1");
        check_status(p, 1);
        check_has(p.err, "/nowhere/bantam_cpu.so");
        check_has(p.err, "BANTAM_MODULES");
        ck_assert(!is_file(r.out));
    }
    program p = bantam_how(how, "devices");
    check_status(p, 0);
    check_has(p.out, "/nowhere/bantam_cpu.so");
}
END_TEST

START_TEST(score_golden) {
    const char *h = kit_shared("data/golden/score.hyp"), *ref = kit_shared("data/golden/score.ref");
    const char *want = kit_shared("data/golden/score.json");
    if (!h || !ref || !want) {
        kit_skip("no golden scores in the shared folder");
        return;
    }
    json_t *root = json_load_file(want, 0, NULL);
    program p = bantam("score", h, ref, "--json");
    check_status(p, 0);
    json_t *mine = parse_json(p.out);
    kit_near(number_at(mine, "bleu"), number_at(json_object_get(root, "bleu_13a"), "score"), 1e-9);
    json_decref(mine);
    json_decref(root);
}
END_TEST

START_TEST(score_of_files_that_do_not_match) {
    const char *dir = kit_tmpdir(), *a = kit_str("%s/a", dir), *b = kit_str("%s/b", dir);
    kit_write_text(a, "a b c d e\nx y\n");
    kit_write_text(b, "a b c d e");
    for (int i = 0; i < 2; i++) {
        program p = i ? bantam("score", b, a) : bantam("score", a, b);
        check_refused(p, "2");
        check_has(p.err, "1");
        ck_assert_str_eq(p.out, "");
    }
    check_refused(bantam("score", a, kit_str("%s/nowhere", dir)), "nowhere");
    check_status(bantam("score", b, b), 0);
}
END_TEST

/* ---- an installed program ----------------------------------------------------------------------
 */

static const char client[] = "#include <bantam.h>\n"
                             "#include <stdio.h>\n"
                             "#include <string.h>\n"
                             "int main(void) {\n"
                             "    char *text;\n"
                             "    if (bt_devices_text(&text) != BT_OK) return 1;\n"
                             "    int usable = strstr(text, \"cpu:0\") != NULL;\n"
                             "    bt_free(text);\n"
                             "    printf(\"%s\\n\", BT_VERSION);\n"
                             "    return !usable;\n"
                             "}\n";

static program tool(const char *command) {
    return program_run(&(program_how){.binary = "sh", .environment = "BANTAM_MODULES="},
                       (const char *const[]){"-c", command, NULL});
}

START_TEST(installed) {
    const char *build = getenv("BANTAM_MODULES"), *dir = kit_tmpdir();
    if (build == NULL || !is_file(kit_str("%s/bantam.pc", build)) ||
        tool("cmake --version").status != 0) {
        kit_skip("no cmake, or a build that is not installed");
        return;
    }
    program p = tool(kit_str("cmake --install %s --prefix %s/root", build, dir));
    check_status(p, 0);
    kit_write_text(kit_str("%s/in", dir), "ba ke\n");
    p = tool(kit_str("%s/root/bin/bantam translate %s --device cpu --threads 1 --input %s/in", dir,
                     trained_model(), dir));
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 1);
    if (tool("pkg-config --version").status != 0 || tool("cc --version").status != 0) {
        kit_skip("no pkg-config or no compiler");
        return;
    }
    kit_write_text(kit_str("%s/client.c", dir), client);
    p = tool(kit_str("cd %s && pc=$(dirname $(find root -name bantam.pc)) && "
                     "export PKG_CONFIG_PATH=$PWD/$pc && "
                     "cc client.c -o client $(pkg-config --cflags --libs bantam) && "
                     "LD_LIBRARY_PATH=$PWD/$pc/.. ./client",
                     dir));
    check_status(p, 0);
    ck_assert_str_eq(p.out, BT_VERSION "\n");
}
END_TEST

static bt_status count_line(void *user, size_t index, const char *text, double score) {
    (void)index, (void)text, (void)score;
    ++*(int *)user;
    return BT_OK;
}

/* Options that are NULL are all defaults, on the device that is chosen by itself. */
START_TEST(library_without_options) {
    small_run r = small_run_new(40);
    const char *source = in_dir(r, "train.de"), *target = in_dir(r, "train.en");
    const char *line = line_of(file_text(source), 1);
    int lines = 0;
    bt_run *run;
    bt_plan *plan;
    bt_translator *t;
    bt_scores scores;
    bt_evaluation evaluation;
    kit_ok(bt_run_load(r.yaml, NULL, 0, &run));
    kit_ok(bt_plan_make(run, NULL, &plan));
    ck_assert_int_eq(bt_plan_fits(plan), 1);
    bt_plan_free(plan);
    kit_ok(bt_train(run, NULL));
    kit_fails(bt_train(run, NULL), BT_EUSAGE, "holds checkpoints of a run");
    bt_run_free(run);
    kit_ok(bt_translator_open(r.out, NULL, &t));
    kit_ok(bt_translate(t, &line, 1, count_line, &lines));
    ck_assert_int_eq(lines, 1);
    bt_translator_free(t);
    kit_ok(bt_evaluate(r.out, source, target, NULL, &evaluation));
    ck_assert_int_eq(evaluation.lines, 40);
    kit_fails(bt_predict(r.out, NULL, NULL, NULL, NULL), BT_EUSAGE, "writes text");
    kit_ok(bt_score_files(target, target, NULL, &scores));
    kit_near(scores.bleu, 100, 1e-9);
}
END_TEST

void add_usage(TCase *tc) {
    tcase_add_test(tc, library_without_options);
    tcase_add_test(tc, usage);
    tcase_add_test(tc, wrong_run_files);
    tcase_add_test(tc, devices);
    tcase_add_test(tc, device_names);
    tcase_add_test(tc, modules_missing);
    tcase_add_test(tc, score_golden);
    tcase_add_test(tc, score_of_files_that_do_not_match);
    tcase_add_test(tc, installed);
}
