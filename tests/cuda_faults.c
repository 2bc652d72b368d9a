/* The cuda backend on the simulator where the device fails: calls, launches and kernels one after
 * the other, in a small use and in a whole run; a device that is lost (G9); one that never answers;
 * one that counts wrong. */
#include "tests/cuda_parts.h"

#include <unistd.h>

#include "backends/registry.h"
#include "core/ops/ops.h"

/* ---- a device in a process of its own ----------------------------------------------------------
 */

static bt_view matrix(bt_buf *buf, uint64_t off, int64_t rows, int64_t cols) {
    return (bt_view){buf, off, rows, cols, cols, BT_F32};
}

/* Uploads, a product, an event, a second stream, a download. */
static bt_status use(bt_dev *dev, bt_buf *buf, float *pinned) {
    const bt_dev_ops *ops = dev->ops;
    bt_stream *s = NULL;
    bt_event *e = NULL;
    bt_call gemm = {.op = BT_OP_GEMM,
                    .t = {matrix(buf, 0, 4, 4), matrix(buf, 256, 4, 4), matrix(buf, 512, 4, 4)},
                    .p.gemm = {.alpha = 1}};
    for (int i = 0; i < 16; i++) pinned[i] = (float)(i % 5);
    bt_status status = ops->stream_new(dev, &s);
    if (status == BT_OK) status = ops->event_new(dev, &e);
    if (status == BT_OK) status = ops->upload(dev, s, buf, 0, pinned, 64);
    if (status == BT_OK) status = ops->upload(dev, s, buf, 256, pinned, 64);
    if (status == BT_OK) status = ops->event_record(dev, s, e);
    if (status == BT_OK) status = ops->event_wait(dev, NULL, e);
    if (status == BT_OK) status = bti_op_run(dev, NULL, &gemm);
    if (status == BT_OK) status = ops->fill(dev, NULL, buf, 0, 64, 0);
    if (status == BT_OK) status = ops->download(dev, NULL, pinned, buf, 512, 64);
    if (status == BT_OK) status = ops->event_record(dev, NULL, e);
    if (status == BT_OK) status = ops->event_sync(dev, e);
    if (status == BT_OK) status = ops->sync(dev, NULL);
    if (status == BT_OK) {
        float want = 0; /* row 1 times column 2 */
        for (int k = 0; k < 4; k++) want += (float)((4 + k) % 5) * (float)((4 * k + 2) % 5);
        if (pinned[6] != want) /* not an assertion: this may be no test, but a process beside one */
            status = bti_fail(BT_EINTERNAL, "a product gives %g, not %g", (double)pinned[6],
                              (double)want);
    }
    ops->event_free(dev, e);
    ops->stream_free(dev, s);
    return status;
}

static bt_status open_and_use(void) {
    bt_dev *dev = NULL;
    bt_buf *buf = NULL;
    void *pinned = NULL;
    bt_status status = bti_device_open("cuda", &(bt_open_options){0}, &dev);
    if (status != BT_OK) return status;
    status = dev->ops->alloc(dev, 4096, &buf);
    if (status == BT_OK) status = dev->ops->host_alloc(dev, 64, &pinned);
    if (status == BT_OK) status = use(dev, buf, pinned);
    dev->ops->host_free(dev, pinned);
    dev->ops->free(dev, buf);
    bti_device_close(dev);
    return status;
}

int cuda_use_once(void) {
    const bt_status status = open_and_use();
    if (status != BT_OK) fprintf(stderr, "%s\n", bt_last_error());
    return status != BT_OK;
}

/* Measuring at the open takes one size: how many do not follow from the clock. */
static program used_with(const char *setting) {
    const char *settings = kit_str("BANTAM_CUDA_MAX_ALLOC=600000\n%s", setting);
    const program_how how = {.binary = "/proc/self/exe", .environment = settings};
    return program_run(&how, (const char *const[]){"use", NULL});
}

/* ---- every call --------------------------------------------------------------------------------
 */

/* What fails once or, from the call or the kernel on, for good; and its number's name in the
 * counts. */
static const char *const fault[][2] = {
    {"CUSIM_FAIL_CALL", "calls"},      {"CUSIM_LOST", "calls"},
    {"CUSIM_FAIL_MALLOC", "mallocs"},  {"CUSIM_FAIL_HOST", "host_mallocs"},
    {"CUSIM_FAIL_LAUNCH", "launches"}, {"CUSIM_FAIL_KERNEL", "kernels"}};
enum { FAULTS = sizeof fault / sizeof fault[0] };

/* A device that is opened and used: an error in words, no crash, no hang. */
START_TEST(every_call_fails) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    check_status(used_with(kit_str("CUSIM_STATS=%s", file)), 0);
    const int64_t calls = cuda_count(file_text(file), fault[_i][1]);
    int borne = 0;
    for (int n = 1; n <= calls; n++) {
        program p = used_with(kit_str("%s=%d", fault[_i][0], n));
        borne += p.status == 0;
        ck_assert_msg(p.status == 0 || (p.status == 1 && strstr(p.err, "cuda") != NULL),
                      "%s=%d: status %d, \"%s\"", fault[_i][0], n, p.status, p.err);
    }
    /* What may fail unseen is what nobody waits for: the driver's version, and what ends things. */
    ck_assert_msg(calls > 0 && borne <= (_i < 2 ? 32 : 0), "%s: %d of %d failures were not told",
                  fault[_i][0], borne, (int)calls);
}
END_TEST

/* Whatever fails while devices are listed: each stands there, usable or with the reason. */
START_TEST(listed_whatever_fails) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    json_decref(device_with("cuda", kit_str("%s\nCUSIM_STATS=%s", NO_MEASURING, file)));
    const int64_t calls = cuda_count(file_text(file), "calls");
    int unusable = 0;
    for (int64_t n = calls > 16 ? calls - 16 : 1; n <= calls; n++) {
        json_t *d =
            device_with("cuda", kit_str("%s\nCUSIM_FAIL_CALL=%lld", NO_MEASURING, (long long)n));
        const char *reason = json_string_value(json_object_get(d, "reason"));
        ck_assert(json_is_true(json_object_get(d, "usable")) || reason[0] != 0);
        unusable += reason != NULL;
        json_decref(d);
    }
    ck_assert_int_gt(unusable, 0);
}
END_TEST

static program short_run(small_run r, const char *setting) {
    const program_how how = {.environment = kit_str("%s\n%s", NO_MEASURING, setting)};
    return bantam_how(how, "train", r.yaml, "--device", "cuda", "--updates", "2", "--set",
                      "checkpoint.every=1");
}

/* A run of two updates: told with the device, and what it leaves are whole checkpoints, from which
 * it goes on. */
START_TEST(every_call_of_a_run_fails) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    check_status(short_run(small_run_new(20), kit_str("CUSIM_STATS=%s", file)), 0);
    const int64_t calls = cuda_count(file_text(file), fault[_i][1]);
    const int64_t stride = getenv("BANTAM_EVERY_CALL") ? 1 : calls / 9 + 1;
    int runs = 0, borne = 0;
    for (int64_t n = 1 + stride / 2; n <= calls; n += stride, runs++) {
        small_run r = small_run_new(20);
        const char *setting = kit_str("%s=%lld", fault[_i][0], (long long)n);
        program p = short_run(r, setting);
        const int64_t update = whole_checkpoint(r.out);
        borne += p.status == 0;
        ck_assert_msg(p.status == 0 ? update == 2 : p.status == 1 && strstr(p.err, "cuda") != NULL,
                      "%s: status %d after update %d, \"%s\"", setting, p.status, (int)update,
                      p.err);
        if (p.status == 0 || runs % 4 != 0) continue;
        p = update < 0 ? train(r, "--updates", "2") : train(r, "--updates", "2", "--resume");
        check_status(p, 0);
        ck_assert_int_eq(whole_checkpoint(r.out), 2);
    }
    ck_assert_msg(runs > 2 && borne <= (_i < 2 ? runs / 20 + 1 : 0),
                  "%s: %d of %d failures were not told", fault[_i][0], borne, runs);
}
END_TEST

/* Pinned memory of the host that is not given is no fault of the device's: smaller pieces of its
 * own would not help. */
START_TEST(refused_pinned_memory) {
    /* As small as this the device is not measured, and twice as small would do. */
    const program_how how = {.environment = "BANTAM_CUDA_MAX_ALLOC=400000\nCUSIM_FAIL_HOST=1"};
    program p = bantam_how(how, "train", small_run_new(20).yaml, "--device", "cuda");
    check_status(p, 1);
    check_has(p.err, "pinned memory of the host");
    check_lacks(p.err, "in one piece");
}
END_TEST

/* ---- runs --------------------------------------------------------------------------------------
 */

/* Lost in the middle: a message with device and update, no hang, and the last checkpoint resumes on
 * the cpu. */
START_TEST(lost_device) {
    const int64_t calls = cuda_count(cuda_stats("6", NULL), "calls");
    small_run r = small_run_new(40);
    const program_how how = {
        .environment = kit_str("%s\nCUSIM_LOST=%lld", NO_MEASURING, (long long)(calls * 4 / 5))};
    program p = bantam_how(how, "train", r.yaml, "--device", "cuda", "--updates", "6", "--set",
                           "checkpoint.every=1");
    check_status(p, 1);
    check_has(p.err, "cuda:0");
    check_has(p.err, "lost");
    check_has(p.err, "after update ");
    check_has(p.err, "the checkpoint of update ");
    ck_assert_ptr_nonnull(newest_checkpoint(r.out));
    check_status(train(r, "--updates", "6", "--resume"), 0);
}
END_TEST

/* Lost between two checkpoints: the one before is untouched, byte for byte. */
START_TEST(lost_before_a_checkpoint) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    small_run twin = small_run_new(40), r = small_run_new(40);
    program_how how = {.environment = kit_str("%s\nCUSIM_STATS=%s", NO_MEASURING, file)};
    check_status(bantam("train", twin.yaml, "--device", "cuda", "--updates", "2"), 0);
    check_status(bantam("train", r.yaml, "--device", "cuda", "--updates", "2"), 0);
    check_status(
        bantam_how(how, "train", twin.yaml, "--device", "cuda", "--updates", "6", "--resume"), 0);
    const int64_t calls = cuda_count(file_text(file), "calls");
    const char *path = newest_checkpoint(r.out);
    size_t bytes = 0, left = 0;
    char *before = kit_read(path, &bytes);
    how.environment = kit_str("%s\nCUSIM_LOST=%lld", NO_MEASURING, (long long)(calls * 3 / 4));
    program p = bantam_how(how, "train", r.yaml, "--device", "cuda", "--updates", "6", "--resume");
    check_status(p, 1);
    check_has(p.err, "cuda:0");
    check_has(p.err, "lost");
    ck_assert_str_eq(newest_checkpoint(r.out), path);
    char *after = kit_read(path, &left);
    ck_assert_uint_eq(left, bytes);
    ck_assert_int_eq(memcmp(after, before, bytes), 0);
    ck_assert_int_eq(whole_checkpoint(r.out), 2);
    free(before);
    free(after);
}
END_TEST

/* A call that never returns, the first one or one in the middle: told, and the program ends. */
START_TEST(hanging_device) {
    const int64_t calls = cuda_count(cuda_stats("6", NULL), "calls");
    small_run r = small_run_new(40);
    setenv("BANTAM_CUDA_TIMEOUT", "4", 1);
    program_how how = {.environment = "CUSIM_HANG=1"};
    program p = bantam_how(how, "devices");
    check_status(p, 1);
    check_has(p.err, "cudaGetDeviceCount has not come back for 4 s");
    how.environment = kit_str("%s\nCUSIM_HANG=%lld", NO_MEASURING, (long long)(calls * 4 / 5));
    p = bantam_how(how, "train", r.yaml, "--device", "cuda", "--updates", "6", "--set",
                   "checkpoint.every=1");
    unsetenv("BANTAM_CUDA_TIMEOUT");
    check_status(p, 1);
    check_has(p.err, "has not come back");
    check_has(p.err, "train --resume goes on");
    ck_assert_ptr_nonnull(newest_checkpoint(r.out));
    check_status(train(r, "--updates", "6", "--resume"), 0);
}
END_TEST

/* The first call of all never returns: `train` and `plan` end with words, whether cuda was named or
 * not; who names the cpu does not ask. */
START_TEST(hanging_at_the_start) {
    const program_how how = {.environment = "CUSIM_HANG=1\nBANTAM_CUDA_TIMEOUT=2"};
    static const char *const command[] = {"train", "plan"};
    for (int i = 0; i < 4; i++) {
        program p = bantam_how(how, command[i % 2], small_run_new(20).yaml,
                               i < 2 ? "--device" : "--set", i < 2 ? "cuda" : "training.batch=16");
        check_status(p, 1);
        check_has(p.err, "cudaGetDeviceCount has not come back for 2 s");
    }
    check_status(
        bantam_how(how, "train", small_run_new(40).yaml, "--device", "cpu", "--updates", "1"), 0);
    check_status(bantam_how(how, "plan", small_run_new(40).yaml, "--device", "cpu"), 0);
}
END_TEST

/* The first kernel of all does nothing, and no call tells: the sum that is not there does. */
START_TEST(wrong_sum) {
    const char *reason = reason_with("cuda", "CUSIM_WRONG=1");
    check_has(reason, "cuda:0, Tesla K80");
    check_has(reason, "1 + 2 gave -1: the device does not work");
    cuda_runs_without("CUSIM_WRONG=1", "the device does not work");
}
END_TEST

void add_cuda_walks(TCase *tc) {
    tcase_add_loop_test(tc, every_call_fails, 0, FAULTS);
    tcase_add_loop_test(tc, every_call_of_a_run_fails, 0, FAULTS);
}

void add_cuda_faults(TCase *tc) {
    tcase_add_test(tc, refused_pinned_memory);
    tcase_add_test(tc, wrong_sum);
    tcase_add_test(tc, listed_whatever_fails);
    tcase_add_test(tc, lost_device);
    tcase_add_test(tc, lost_before_a_checkpoint);
    tcase_add_test(tc, hanging_at_the_start);
    tcase_add_test(tc, hanging_device);
}
