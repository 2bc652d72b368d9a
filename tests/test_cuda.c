/* The cuda backend on the simulator (tests/cusim), as the program shows it: what `devices` says
 * where something is missing (G1, G2), memory that others hold (A7), heaps (A6), and a whole run
 * beside the cpu's. tests/cuda_faults.c has devices that fail (G9), cuda_settings.c settings. */
#include "tests/cuda_parts.h"

#include <dirent.h>

#include "backends/registry.h"

/* ---- devices -----------------------------------------------------------------------------------
 */

START_TEST(devices_tell) {
    json_t *d = device_with("cuda", "CUSIM_OTHERS=2g");
    ck_assert(json_is_true(json_object_get(d, "usable")));
    ck_assert_str_eq(json_string_value(json_object_get(d, "name")), "Tesla K80 (simulated)");
    ck_assert_str_eq(json_string_value(json_object_get(d, "compute_capability")), "3.7");
    ck_assert_str_eq(json_string_value(json_object_get(d, "driver")), "CUDA 11.4");
    ck_assert(json_is_null(json_object_get(d, "largest_allocation_bytes")));
    check_has(bantam("devices").out,
              "Tesla K80 (simulated) (compute capability 3.7, driver CUDA 11.4): ");
    const double gib = 1u << 30, total = number_at(d, "total_bytes");
    ck_assert(number_at(d, "free_bytes") < total - 2 * gib);
    ck_assert(number_at(d, "held_by_others_bytes") > 1.5 * gib);
    ck_assert(number_at(d, "held_by_others_bytes") < 2.1 * gib);
    json_decref(d);
    program p = bantam("train", small_run_new(20).yaml, "--device", "cuda:99");
    check_refused(p, "cuda:99");
}
END_TEST

/* A card that can be used is what a run takes by itself. */
START_TEST(chosen_first) {
    program p = bantam("train", small_run_new(40).yaml, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "auto takes cuda:0");
}
END_TEST

START_TEST(no_device) {
    const char *reason = reason_with("cuda", "CUSIM_DEVICES=0");
    check_has(reason, "no CUDA device visible");
    cuda_runs_without("CUSIM_DEVICES=0", "no CUDA device visible");
}
END_TEST

START_TEST(old_driver) {
    const char *reason = reason_with("cuda", "CUSIM_DRIVER=10020");
    check_has(reason, "10.2");
    check_has(reason, "11.0 or later");
    check_has(reason, "install a later driver");
    cuda_runs_without("CUSIM_DRIVER=10020", "10.2");
    check_has(reason_with("cuda", "CUSIM_DRIVER=0"), "no NVIDIA driver");
}
END_TEST

START_TEST(count_fails) {
    check_has(reason_with("cuda", "CUSIM_COUNT_ERROR=34"), "stub");
    check_has(reason_with("cuda", "CUSIM_COUNT_ERROR=100"), "no CUDA device visible");
    check_has(reason_with("cuda", "CUSIM_COUNT_ERROR=802"), "802");
}
END_TEST

/* A build for other cards: shown with what it is built for, never used. */
START_TEST(no_code_for_the_card) {
    const char *setting = "CUSIM_IMAGES=86", *reason = reason_with("cuda", setting);
    check_has(reason, "not supported by this build (built for 3.7)");
    check_has(reason, "cuda:0, Tesla K80");
    check_has(reason, "compute capability 3.7");
    cuda_runs_without(setting, "not supported by this build");
    reason = reason_with("cuda", "CUSIM_ARCH=86\nCUSIM_IMAGES=37");
    check_has(reason, "cuda:0, GeForce RTX 3090");
    check_has(reason, "compute capability 8.6");
    check_has(reason, "build with -DBANTAM_CUDA_ARCHITECTURES=86-real");
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------
 */

/* Others hold nearly all: refused before update 1, with both numbers. */
START_TEST(memory_of_others) {
    const program_how how = {.environment = "CUSIM_OTHERS=12220m"};
    program p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "cuda");
    ck_assert_int_gt(p.status, 0);
    check_has(p.err, "other processes");
}
END_TEST

/* Allocations of at most 96 KiB: several heaps, the same losses. */
START_TEST(several_heaps) {
    small_run whole = small_run_new(40), heaps = small_run_new(40);
    check_status(bantam("train", whole.yaml, "--device", "cuda", "--updates", "3"), 0);
    const program_how how = {.environment = "BANTAM_CUDA_MAX_ALLOC=98304"};
    check_status(bantam_how(how, "train", heaps.yaml, "--device", "cuda", "--updates", "3"), 0);
    losses_agree(heaps.out, whole.out);
}
END_TEST

/* A driver that refuses what is free in one piece: the same, and it is told. */
START_TEST(refused_in_one_piece) {
    static const char *const wide = "model.d_model=512";
    small_run whole = small_run_new(40), heaps = small_run_new(40);
    check_status(bantam("train", whole.yaml, "--device", "cuda", "--updates", "3", "--set", wide),
                 0);
    const program_how how = {.environment = "CUSIM_MAX_ALLOC=6m"};
    program p =
        bantam_how(how, "train", heaps.yaml, "--device", "cuda", "--updates", "3", "--set", wide);
    check_status(p, 0);
    check_has(p.err, "in one piece: planned again for pieces of");
    losses_agree(heaps.out, whole.out);
    const program_how none = {.environment = "CUSIM_MAX_ALLOC=10000"};
    p = bantam_how(none, "train", small_run_new(40).yaml, "--device", "cuda");
    ck_assert_int_eq(p.status, 1);
    check_has(p.err, "BANTAM_CUDA_MAX_ALLOC");
}
END_TEST

/* ---- runs --------------------------------------------------------------------------------------
 */

START_TEST(a_whole_run) { same_as_cpu("cuda"); }
END_TEST

/* Half precision on a card that multiplies halves and on one that only stores them. */
START_TEST(half_precision) {
    static const char *const set[] = {"training.precision=fp16", "training.precision=bf16"};
    const program_how newer = {.environment = "CUSIM_ARCH=86"};
    const char *const precision = set[_i];
    small_run a = small_run_new(40), b = small_run_new(40);
    check_status(bantam("train", a.yaml, "--device", "cuda", "--updates", "3", "--set", precision),
                 0);
    check_status(bantam_how(newer, "train", b.yaml, "--device", "cuda", "--updates", "3", "--set",
                            precision),
                 0);
    losses_agree(a.out, b.out);
}
END_TEST

static int threads(void) {
    DIR *dir = opendir("/proc/self/task");
    int count = -2; /* "." and ".." */
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count;
}

/* There is a thread that watches while a device is open, one for all of them, and none after. */
START_TEST(watcher_ends) {
    bt_dev *a = NULL, *b = NULL;
    kit_ok(bti_device_open("cuda", &(bt_open_options){0}, &a));
    const int with = threads();
    kit_ok(bti_device_open("cuda", &(bt_open_options){0}, &b));
    ck_assert_int_eq(threads(), with);
    bti_device_close(a);
    ck_assert_int_eq(threads(), with);
    bti_device_close(b);
    ck_assert_int_eq(threads(), with - 1);
    kit_ok(bti_device_open("cuda", &(bt_open_options){0}, &a));
    ck_assert_int_eq(threads(), with);
    bti_device_close(a);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, devices_tell);
    tcase_add_test(tc, no_device);
    tcase_add_test(tc, old_driver);
    tcase_add_test(tc, count_fails);
    tcase_add_test(tc, no_code_for_the_card);
    tcase_add_test(tc, memory_of_others);
    tcase_add_test(tc, several_heaps);
    tcase_add_test(tc, refused_in_one_piece);
    tcase_add_test(tc, chosen_first);
    tcase_add_test(tc, a_whole_run);
    tcase_add_loop_test(tc, half_precision, 0, 2);
    tcase_add_test(tc, watcher_ends);
    add_cuda_settings(tc);
    add_cuda_faults(tc);
    add_cuda_walks(tc);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "use") == 0) return cuda_use_once();
    return kit_main("cuda", getenv("BANTAM_EVERY_CALL") ? add_cuda_walks : add, argc, argv);
}
