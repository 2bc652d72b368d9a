/* Settings of CUDA and of the simulator that a run meets: several devices, those that may be seen,
 * memory, another order of work, a machine without cuBLAS; and what a warm update takes. */
#include "tests/cuda_parts.h"

const char *cuda_stats(const char *updates, const char *settings) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    const char *all = kit_str("CUSIM_STATS=%s\n%s%s%s", file, NO_MEASURING, settings ? "\n" : "",
                              settings ? settings : "");
    const program_how how = {.environment = all};
    check_status(
        bantam_how(how, "train", small_run_new(40).yaml, "--device", "cuda", "--updates", updates),
        0);
    return file_text(file);
}

int64_t cuda_count(const char *stats, const char *name) {
    const char *at = strstr(stats, kit_str("%s ", name));
    while (at != NULL && at != stats && at[-1] != '\n') at = strstr(at + 1, kit_str("%s ", name));
    ck_assert_msg(at != NULL, "no %s in the counts", name);
    return atoll(at + strlen(name) + 1);
}

void cuda_runs_without(const char *settings, const char *reason) {
    const program_how how = {.environment = settings};
    program p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "cuda");
    ck_assert_int_gt(p.status, 0);
    check_has(p.err, reason);
    p = bantam_how(how, "train", small_run_new(40).yaml, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "auto takes cpu:0");
    check_has(p.err, reason);
    p = bantam_how(how, "train", small_run_new(40).yaml, "--updates", "1", "--device", "cpu");
    check_status(p, 0);
    check_lacks(p.err, reason);
}

/* ---- what an update takes ----------------------------------------------------------------------
 */

/* Warm updates take no memory on the card, no pinned memory, and cuBLAS never takes a workspace;
 * the host waits as often in each. What was given is given back. */
START_TEST(warm_updates_take_nothing) {
    static const char *const what[] = {"mallocs", "host_mallocs", "streams", "events"};
    const char *two = cuda_stats("2", NULL), *five = cuda_stats("5", NULL);
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++)
        ck_assert_msg(cuda_count(two, what[i]) == cuda_count(five, what[i]), "%s grow with updates",
                      what[i]);
    ck_assert_int_eq(cuda_count(five, "workspaces"), 0);
    ck_assert_int_eq(cuda_count(five, "live_bytes"), 0);
    /* For the copy that a half of the staging memory was used for last, and for the results. */
    ck_assert_int_eq(cuda_count(five, "syncs") - cuda_count(two, "syncs"), 3 * 2);
}
END_TEST

/* Most that buffers and cuBLAS's workspace had, with the simulated context and handle, is within
 * the plan. */
START_TEST(within_the_plan) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    const program_how how = {
        .environment =
            kit_str("%s\nCUSIM_CONTEXT=64m\nCUSIM_CUBLAS=8m\nCUSIM_STATS=%s", NO_MEASURING, file)};
    small_run r = small_run_new(40);
    check_status(bantam_how(how, "train", r.yaml, "--device", "cuda", "--updates", "3"), 0);
    json_t *log = read_log(r.out), *last = json_array_get(log, json_array_size(log) - 1);
    const char *stats = file_text(file);
    /* cudaMalloc rounds up to 512 bytes. */
    const int64_t rounding = 512 * cuda_count(stats, "mallocs");
    const double peak = (double)(cuda_count(stats, "peak_bytes") - rounding + (72 << 20));
    ck_assert_msg(peak <= number_at(last, "planned_bytes"), "%.0f bytes, %.0f planned", peak,
                  number_at(last, "planned_bytes"));
    json_decref(log);
}
END_TEST

/* ---- devices -----------------------------------------------------------------------------------
 */

/* Three updates on a device, with these settings. */
static const char *trained(const char *device, const char *settings) {
    const program_how how = {.environment = settings};
    small_run r = small_run_new(40);
    check_status(bantam_how(how, "train", r.yaml, "--device", device, "--updates", "3"), 0);
    return r.out;
}

/* A number picks the device. */
START_TEST(two_devices) {
    const program_how how = {.environment = "CUSIM_DEVICES=2"};
    const char *out[2];
    program p = bantam_how(how, "devices", "--json");
    check_status(p, 0);
    check_has(p.out, "\"cuda:0\"");
    check_has(p.out, "\"cuda:1\"");
    for (int i = 0; i < 2; i++) {
        const char *file = kit_str("%s/stats", kit_tmpdir());
        out[i] = trained(i ? "cuda:1" : "cuda:0", kit_str("CUSIM_DEVICES=2\nCUSIM_STATS=%s", file));
        ck_assert_int_eq(cuda_count(file_text(file), "last_device"), i);
    }
    losses_same(out[0], out[1]);
    p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "cuda:2");
    check_refused(p, "cuda:2: there are 2 CUDA devices");
}
END_TEST

START_TEST(visible_devices) {
    static const char *const setting[] = {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=5"};
    static const char *const said[] = {"CUDA_VISIBLE_DEVICES is \"\"",
                                       "CUDA_VISIBLE_DEVICES is \"5\""};
    for (int i = 0; i < 2; i++) {
        check_has(reason_with("cuda", setting[i]), said[i]);
        cuda_runs_without(setting[i], said[i]);
    }
    json_t *d = device_with("cuda", "CUSIM_DEVICES=2\nCUDA_VISIBLE_DEVICES=1");
    ck_assert(json_is_true(json_object_get(d, "usable")));
    json_decref(d);
}
END_TEST

/* The card's memory is what is planned with: in little more than the context, cuBLAS and its
 * workspace the run is another one and learns the same; in less it is refused before update 1. */
START_TEST(little_memory) {
    static const char *const setting[] = {"CUSIM_MEM=92m", "CUSIM_MEM=70m"};
    static const char *const said[] = {"does not fit in 92.00 MiB: it needs at least",
                                       "what cuBLAS keeps for itself cannot be allocated"};
    json_t *d = device_with("cuda", "CUSIM_MEM=300m");
    ck_assert(number_at(d, "total_bytes") == 300 << 20);
    ck_assert(number_at(d, "free_bytes") <= (300 - 92) << 20);
    json_decref(d);
    losses_agree(trained("cuda", "CUSIM_MEM=102m"), trained("cuda", NULL));
    for (int i = 0; i < 2; i++) {
        const program_how how = {.environment = setting[i]};
        small_run r = small_run_new(20);
        program p = bantam_how(how, "train", r.yaml, "--device", "cuda");
        ck_assert_int_gt(p.status, 0);
        check_has(p.err, said[i]);
        ck_assert_int_eq(whole_checkpoint(r.out), -1);
    }
}
END_TEST

/* Work that is done at once, as late as may be, or at any time between, and blocks and threads in
 * other orders: the same bits. */
START_TEST(any_order) {
    static const char *const setting[] = {"CUSIM_ASYNC=0",    "CUSIM_ASYNC=2",   "CUSIM_ASYNC=3",
                                          "CUSIM_ASYNC=4711", "CUSIM_ORDER=rev", "CUSIM_ORDER=5"};
    const char *out = trained("cuda", NULL);
    for (size_t i = 0; i < sizeof setting / sizeof setting[0]; i++)
        losses_same(trained("cuda", setting[i]), out);
}
END_TEST

/* ---- cuBLAS ------------------------------------------------------------------------------------
 */

/* The module and the runtime that it runs on, in a folder of their own. */
static const char *without_cublas(void) {
    static const char *const file[] = {"bantam_cuda.so", "libcusim.so", "bantam_cpu.so"};
    const char *to = kit_tmpdir();
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) {
        size_t bytes;
        char *data = kit_read(kit_str("%s/%s", getenv("BANTAM_MODULES"), file[i]), &bytes);
        kit_write(kit_str("%s/%s", to, file[i]), data, bytes);
        free(data);
    }
    return to;
}

/* Would this machine's own be found? */
static int has_cublas(void) {
    return getenv("LD_LIBRARY_PATH") != NULL || is_file("/usr/local/cuda/lib64/libcublas.so.11") ||
           system("PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q 'libcublas[.]so[.]11'") == 0;
}

/* It is opened only where there is a device. */
START_TEST(no_cublas) {
    if (has_cublas()) {
        kit_skip("a machine without cuBLAS: LD_LIBRARY_PATH is set, or libcublas.so.11 is here");
        return;
    }
    const char *setting = kit_str("BANTAM_MODULES=%s", without_cublas());
    const char *reason = reason_with("cuda", setting);
    check_has(reason, "cuBLAS is needed and cannot be opened: libcublas.so.11");
    check_has(reason, "install it, or name its folder in LD_LIBRARY_PATH");
    cuda_runs_without(setting, "cuBLAS is needed");
    reason = reason_with("cuda", kit_str("CUSIM_DEVICES=0\n%s", setting));
    check_has(reason, "no CUDA device visible");
    check_lacks(reason, "ublas");
    check_lacks(reason, "cuBLAS");
}
END_TEST

void add_cuda_settings(TCase *tc) {
    tcase_add_test(tc, warm_updates_take_nothing);
    tcase_add_test(tc, within_the_plan);
    tcase_add_test(tc, two_devices);
    tcase_add_test(tc, visible_devices);
    tcase_add_test(tc, little_memory);
    tcase_add_test(tc, any_order);
    tcase_add_test(tc, no_cublas);
}
