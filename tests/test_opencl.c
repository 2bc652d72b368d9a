/* The opencl backend as the program shows it: what `devices` says where something is missing (G4),
 * the cache of kernels, the automatic choice, heaps (A6), and a whole run beside the cpu's. */
#include "tests/program_kit.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- devices -----------------------------------------------------------------------------------
 */

static int usable_with(const char *environment) {
    json_t *d = device_with("opencl", environment);
    const int usable = json_is_true(json_object_get(d, "usable"));
    json_decref(d);
    return usable;
}

/* A path that cannot be made, by nobody: below a regular file. */
static const char *impossible(void) {
    const char *file = kit_str("%s/file", kit_tmpdir());
    kit_write_text(file, "");
    return kit_str("%s/below", file);
}

START_TEST(devices_tell) {
    json_t *d = device_with("opencl", "BANTAM_OPENCL_MAX_ALLOC=67108864");
    ck_assert(json_is_true(json_object_get(d, "usable")));
    ck_assert_int_gt((int64_t)number_at(d, "total_bytes"), 67108864);
    ck_assert_int_eq((int64_t)number_at(d, "largest_allocation_bytes"), 67108864);
    const char *name = json_string_value(json_object_get(d, "name"));
    const char *driver = json_string_value(json_object_get(d, "driver"));
    const int group = (int)number_at(d, "largest_work_group");
    ck_assert(json_is_null(json_object_get(d, "compute_capability")));
    ck_assert_int_ge(group, 1);
    check_has(bantam("devices").out,
              kit_str("%s (driver %s, groups of %d): ", name, driver, group));
    json_t *types = json_object_get(d, "types"); /* halves are stored */
    ck_assert_uint_eq(json_array_size(types), 3);
    ck_assert_str_eq(json_string_value(json_array_get(types, 1)), "fp16");
    ck_assert_str_eq(json_string_value(json_array_get(types, 2)), "bf16");
    json_decref(d);
    program p = bantam("train", small_run_new(20).yaml, "--device", "opencl:99");
    check_refused(p, "opencl:99");
}
END_TEST

START_TEST(no_platform) {
    const char *empty = kit_str("OCL_ICD_VENDORS=%s", kit_tmpdir());
    const char *reason = reason_with("opencl", empty);
    check_has(reason, "no OpenCL device");
    check_has(reason, empty + strlen("OCL_ICD_VENDORS="));
    check_has(reason, "OCL_ICD_VENDORS");
    const program_how how = {.environment = empty};
    program p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "opencl");
    check_status(p, 1);
    check_has(p.err, "OCL_ICD_VENDORS");
}
END_TEST

/* PoCL's own cache: without a folder it has no device. */
START_TEST(driver_without_cache) {
    const char *path = impossible(), *setting = kit_str("POCL_CACHE_DIR=%s", path);
    const char *reason = reason_with("opencl", setting);
    check_has(reason, "POCL_CACHE_DIR");
    check_has(reason, path);
    const program_how how = {.environment = setting};
    program p = bantam_how(how, "train", small_run_new(40).yaml, "--updates", "1");
    check_status(p, 0); /* on the cpu */
}
END_TEST

/* What the compiler says is shown; an automatic choice goes on without the device. */
START_TEST(kernels_do_not_build) {
    const char *setting = "BANTAM_OPENCL_OPTIONS=-Dsplit=("; /* a function of the prelude */
    const char *reason = reason_with("opencl", setting);
    check_has(reason, "do not compile for");
    check_has(reason, "prelude.cl:");
    ck_assert_int_le(count_lines(reason), 8);
    const program_how how = {.environment = setting};
    program p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "opencl");
    check_status(p, 1);
    check_has(p.err, "prelude.cl:");
    p = bantam_how(how, "train", small_run_new(40).yaml, "--updates", "1");
    check_status(p, 0);
}
END_TEST

/* Options that no cache has seen: all is compiled, and the driver has nothing to say. */
START_TEST(compiles_in_silence) {
    const char *setting = kit_str("BANTAM_OPENCL_OPTIONS=-DTEST_%ld", (long)getpid());
    const program_how how = {.environment = setting};
    program p = bantam_how(how, "devices", "--json");
    check_status(p, 0);
    check_has(p.out, "\"opencl\"");
    ck_assert_str_eq(p.err, "");
}
END_TEST

/* ---- our cache ---------------------------------------------------------------------------------
 */

static const char *only_file(const char *folder) {
    char *path = NULL;
    FILE *p = popen(kit_str("ls %s/bantam/*.bin", folder), "r");
    size_t n = 0;
    ck_assert(p != NULL && getline(&path, &n, p) > 0);
    pclose(p);
    path[strcspn(path, "\n")] = 0;
    const char *own = kit_str("%s", path);
    free(path);
    return own;
}

/* Not writable, damaged or cut: it costs time only, and a bad file is replaced. */
START_TEST(cache_of_kernels) {
    const char *folder = kit_tmpdir(), *setting = kit_str("XDG_CACHE_HOME=%s", folder);
    ck_assert(usable_with(kit_str("XDG_CACHE_HOME=%s", impossible())));
    ck_assert(usable_with(setting));
    const char *file = only_file(folder);
    size_t bytes, now;
    char *whole = kit_read(file, &bytes);
    ck_assert_uint_gt(bytes, 1000);
    for (int how = 0; how < 4; how++) {
        static const size_t keep[] = {0, 1, 2, 8}; /* of how many parts; 8: a byte is changed */
        char *bad = memcpy(malloc(bytes), whole, bytes);
        bad[bytes / 2] ^= 1;
        kit_write(file, bad, keep[how] == 0 ? 0 : keep[how] == 8 ? bytes : bytes / (1 + keep[how]));
        free(bad);
        ck_assert(usable_with(setting));
        free(kit_read(file, &now));
        ck_assert_uint_gt(now, bytes / 2); /* written anew */
    }
    free(whole);
}
END_TEST

/* ---- runs --------------------------------------------------------------------------------------
 */

/* Nobody asked for it: a CPU is used through its own backend, without a word. */
START_TEST(automatic_choice) {
    json_t *d = device_with("opencl", "A=B");
    const char *driver = json_string_value(json_object_get(d, "driver"));
    if (strstr(driver, "Portable Computing Language") == NULL)
        kit_skip("automatic choice: the first OpenCL device is no PoCL: %s", driver);
    else {
        json_t *plan = plan_of(small_run_new(40).yaml, 0, "--memory", "2GiB");
        ck_assert_str_eq(json_string_value(json_object_get(plan, "backend")), "cpu");
        json_decref(plan);
    }
    json_decref(d);
}
END_TEST

START_TEST(a_whole_run) { same_as_cpu("opencl"); }
END_TEST

/* A number picks the device. */
START_TEST(second_device) {
    const program_how how = {.environment = "POCL_DEVICES=pthread pthread"};
    small_run first = small_run_new(40), second = small_run_new(40);
    program p = bantam_how(how, "devices", "--json");
    if (strstr(p.out, "opencl:1") == NULL) {
        kit_skip("--device opencl:1: there is one OpenCL device");
        return;
    }
    p = bantam_how(how, "train", first.yaml, "--device", "opencl:0", "--updates", "3");
    check_status(p, 0);
    p = bantam_how(how, "train", second.yaml, "--device", "opencl:1", "--updates", "3");
    check_status(p, 0);
    losses_agree(first.out, second.out);
}
END_TEST

/* Allocations of at most 96 KiB: several heaps, the same losses. Less than a table: refused. */
START_TEST(several_heaps) {
    small_run whole = small_run_new(40), heaps = small_run_new(40);
    program p = bantam("train", whole.yaml, "--device", "opencl", "--updates", "3");
    check_status(p, 0);
    program_how how = {.environment = "BANTAM_OPENCL_MAX_ALLOC=98304"};
    p = bantam_how(how, "train", heaps.yaml, "--device", "opencl", "--updates", "3");
    check_status(p, 0);
    losses_agree(heaps.out, whole.out);
    how.environment = "BANTAM_OPENCL_MAX_ALLOC=4096";
    p = bantam_how(how, "train", small_run_new(40).yaml, "--device", "opencl", "--updates", "3");
    ck_assert_int_gt(p.status, 0);
    check_has(p.err, "allocation");
}
END_TEST

/* Asked outside any test, where the kit's own way to run a program may not be used. */
static int there(void) {
    const char *binary = getenv("BANTAM_PROGRAM");
    return binary != NULL &&
           system(kit_str("'%s' devices --json | grep -q '\"opencl:0\"'", binary)) == 0;
}

static void add(TCase *tc) {
    if (!there()) {
        kit_skip("the whole suite: there is no OpenCL device (bantam devices says why)");
        return;
    }
    tcase_add_test(tc, devices_tell);
    tcase_add_test(tc, no_platform);
    tcase_add_test(tc, driver_without_cache);
    tcase_add_test(tc, kernels_do_not_build);
    tcase_add_test(tc, compiles_in_silence);
    tcase_add_test(tc, cache_of_kernels);
    tcase_add_test(tc, automatic_choice);
    tcase_add_test(tc, a_whole_run);
    tcase_add_test(tc, second_device);
    tcase_add_test(tc, several_heaps);
}

int main(int argc, char **argv) { return kit_main("opencl", add, argc, argv); }
