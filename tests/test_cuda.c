/* The cuda backend on the simulator (tests/cusim), as the program shows it: what `devices` says
 * where something is missing (G1, G2), memory that others hold (A7), heaps (A6), a device that is
 * lost (G9), counts beyond 65,535 (B10), every call failing once, and a whole run beside the cpu's.
 */
#include "tests/program_kit.h"

#include <dirent.h>

#include "backends/registry.h"
#include "core/ops/ops.h"

/* ---- devices -----------------------------------------------------------------------------------
 */

/* The first cuda entry of `devices --json` with these settings more. */
static json_t *device_with(const char *environment) {
    const program_how how = {.environment = environment};
    program p = bantam_how(how, "devices", "--json");
    check_status(p, 0);
    json_t *root = parse_json(p.out), *list = json_object_get(root, "devices"), *d = NULL;
    for (size_t i = 0; i < json_array_size(list) && d == NULL; i++) {
        json_t *at = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(at, "backend")), "cuda") == 0)
            d = json_incref(at);
    }
    json_decref(root);
    ck_assert_msg(d != NULL, "no entry for cuda");
    return d;
}

/* The reason why it is not usable; the kit's. */
static const char *reason_with(const char *environment) {
    json_t *d = device_with(environment);
    ck_assert_msg(!json_is_true(json_object_get(d, "usable")), "usable with %s", environment);
    const char *reason = kit_str("%s", json_string_value(json_object_get(d, "reason")));
    json_decref(d);
    return reason;
}

START_TEST(devices_tell) {
    json_t *d = device_with("CUSIM_OTHERS=2g");
    ck_assert(json_is_true(json_object_get(d, "usable")));
    const char *name = json_string_value(json_object_get(d, "name"));
    check_has(name, "Tesla K80");
    check_has(name, "compute capability 3.7");
    check_has(name, "driver for CUDA 11.4");
    const double gib = 1u << 30, total = number_at(d, "total_bytes");
    ck_assert(number_at(d, "free_bytes") < total - 2 * gib);
    ck_assert(number_at(d, "held_by_others_bytes") > 1.5 * gib);
    ck_assert(number_at(d, "held_by_others_bytes") < 2.1 * gib);
    json_decref(d);
    program p = bantam("train", small_run_new(20).yaml, "--device", "cuda:99");
    check_refused(p, "cuda:99");
}
END_TEST

/* What a run does where the reason is this: refuses when cuda was named, takes another device when
 * not, and does not ask cuda when the cpu was named. */
static void runs_without(const char *environment, const char *reason) {
    const program_how how = {.environment = environment};
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

/* A card that can be used is what a run takes by itself. */
START_TEST(chosen_first) {
    program p = bantam("train", small_run_new(40).yaml, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "auto takes cuda:0");
}
END_TEST

START_TEST(no_device) {
    const char *reason = reason_with("CUSIM_DEVICES=0");
    check_has(reason, "no CUDA device visible");
    runs_without("CUSIM_DEVICES=0", "no CUDA device visible");
}
END_TEST

START_TEST(old_driver) {
    const char *reason = reason_with("CUSIM_DRIVER=10020");
    check_has(reason, "10.2");
    check_has(reason, "11.0 or later");
    check_has(reason, "install a later driver");
    runs_without("CUSIM_DRIVER=10020", "10.2");
    check_has(reason_with("CUSIM_DRIVER=0"), "no NVIDIA driver");
}
END_TEST

START_TEST(count_fails) {
    check_has(reason_with("CUSIM_COUNT_ERROR=34"), "stub");
    check_has(reason_with("CUSIM_COUNT_ERROR=100"), "no CUDA device visible");
    check_has(reason_with("CUSIM_COUNT_ERROR=802"), "802");
}
END_TEST

/* A build for other cards: shown with what it is built for, never used. */
START_TEST(no_code_for_the_card) {
    const char *setting = "CUSIM_IMAGES=86", *reason = reason_with(setting);
    check_has(reason, "not supported by this build (built for 3.7)");
    check_has(reason, "compute capability 3.7");
    runs_without(setting, "not supported by this build");
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

/* What the simulator counted in a run of so many updates. */
static int64_t counted(const char *what, const char *updates) {
    const char *file = kit_str("%s/stats", kit_tmpdir());
    const program_how how = {.environment = kit_str("CUSIM_STATS=%s", file)};
    check_status(
        bantam_how(how, "train", small_run_new(40).yaml, "--device", "cuda", "--updates", updates),
        0);
    const char *at = strstr(file_text(file), kit_str("%s ", what));
    ck_assert_msg(at != NULL, "no %s in the counts", what);
    return atoll(at + strlen(what) + 1);
}

/* Warm updates take no memory on the card, no pinned memory, and cuBLAS never takes a workspace. */
START_TEST(warm_updates_take_nothing) {
    static const char *const what[] = {"mallocs", "host_mallocs", "streams", "events"};
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++)
        ck_assert_msg(counted(what[i], "2") == counted(what[i], "5"), "%s grow with updates",
                      what[i]);
    ck_assert_int_eq(counted("workspaces", "2"), 0);
}
END_TEST

/* Lost in the middle: a message with device and update, no hang, and the last checkpoint resumes on
 * the cpu. */
START_TEST(lost_device) {
    const int64_t calls = counted("calls", "6");
    small_run r = small_run_new(40);
    const program_how how = {.environment = kit_str("CUSIM_LOST=%lld", (long long)(calls * 4 / 5))};
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

/* A call that never returns, the first one or one in the middle: told, and the program ends. */
START_TEST(hanging_device) {
    const int64_t calls = counted("calls", "6");
    small_run r = small_run_new(40);
    setenv("BANTAM_CUDA_TIMEOUT", "4", 1);
    program_how how = {.environment = "CUSIM_HANG=1"};
    program p = bantam_how(how, "devices");
    check_status(p, 1);
    check_has(p.err, "cudaGetDeviceCount has not come back for 4 s");
    how.environment = kit_str("CUSIM_HANG=%lld", (long long)(calls * 4 / 5));
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

/* ---- one device in this process ----------------------------------------------------------------
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

/* `test_cuda use` is this, as a process of its own. */
static int use_once(void) {
    const bt_status status = open_and_use();
    if (status != BT_OK) fprintf(stderr, "%s\n", bt_last_error());
    return status != BT_OK;
}

static program used_with(const char *setting) {
    const program_how how = {.binary = "/proc/self/exe", .environment = setting};
    return program_run(&how, (const char *const[]){"use", NULL});
}

/* Each call of CUDA and of cuBLAS fails once, or is the first on a lost device, and so does each
 * allocation and each launch: an error in words, no crash, no hang. */
START_TEST(every_call_fails) {
    static const char *const what[][2] = {{"CUSIM_FAIL_CALL", "calls"},
                                          {"CUSIM_LOST", "calls"},
                                          {"CUSIM_FAIL_MALLOC", "mallocs"},
                                          {"CUSIM_FAIL_HOST", "host_mallocs"},
                                          {"CUSIM_FAIL_LAUNCH", "launches"}};
    const char *file = kit_str("%s/stats", kit_tmpdir());
    check_status(used_with(kit_str("CUSIM_STATS=%s", file)), 0);
    const char *at = strstr(file_text(file), kit_str("%s ", what[_i][1]));
    ck_assert_ptr_nonnull(at);
    const int calls = atoi(at + strlen(what[_i][1]) + 1);
    int borne = 0;
    for (int n = 1; n <= calls; n++) {
        program p = used_with(kit_str("%s=%d", what[_i][0], n));
        borne += p.status == 0;
        ck_assert_msg(p.status == 0 || (p.status == 1 && strstr(p.err, "cuda") != NULL),
                      "%s=%d: status %d, \"%s\"", what[_i][0], n, p.status, p.err);
    }
    /* What may fail unseen is what nobody waits for: the driver's version, and what ends things. */
    ck_assert_msg(calls > 0 && borne <= (_i < 2 ? 32 : 0), "%s: %d of %d failures were not told",
                  what[_i][0], borne, calls);
}
END_TEST

static bt_dev *opened(void) {
    bt_dev *dev = NULL;
    kit_ok(bti_device_open("cuda", &(bt_open_options){0}, &dev));
    return dev;
}

/* Attention over 70,000 sequences times heads gives what it gives in two halves; so do 70,000
 * products in one call. */
START_TEST(b10_attention) {
    enum { SEQUENCES = 8750, HEADS = 8, WIDTH = 32, ROWS = 2 * SEQUENCES };
    bt_dev *dev = opened();
    const bt_dev_ops *ops = dev->ops;
    const uint64_t bytes = (uint64_t)ROWS * WIDTH * 4, seq_bytes = SEQUENCES * BT_SEQ_COLS * 4;
    float *x = malloc(3 * bytes), *y = malloc(2 * bytes);
    int32_t *seq = malloc(seq_bytes);
    ck_assert(x != NULL && y != NULL && seq != NULL);
    for (int64_t i = 0; i < 3 * ROWS * WIDTH; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int32_t i = 0; i < SEQUENCES; i++) {
        const int32_t row[BT_SEQ_COLS] = {2 * i, 2, 2 * i, 2, i, 0};
        memcpy(seq + i * BT_SEQ_COLS, row, sizeof row);
    }
    bt_buf *buf = NULL;
    kit_ok(ops->alloc(dev, 5 * bytes + seq_bytes, &buf));
    kit_ok(ops->upload(dev, NULL, buf, 0, x, 3 * bytes));
    kit_ok(ops->upload(dev, NULL, buf, 5 * bytes, seq, seq_bytes));
    bt_call call = {.op = BT_OP_ATTN_FWD, .p.attn = {.heads = HEADS, .scale = 0.5}};
    for (int i = BT_ATTN_FWD_Q; i <= BT_ATTN_FWD_V; i++)
        call.t[i] = matrix(buf, (uint64_t)i * bytes, ROWS, WIDTH);
    const bt_view whole = {buf, 5 * bytes, SEQUENCES, BT_SEQ_COLS, BT_SEQ_COLS, BT_I32};
    call.t[BT_ATTN_FWD_O] = matrix(buf, 3 * bytes, ROWS, WIDTH);
    call.t[BT_ATTN_FWD_SEQ] = whole;
    kit_ok(bti_op_run(dev, NULL, &call));
    call.t[BT_ATTN_FWD_O].off = 4 * bytes;
    for (int half = 0; half < 2; half++) {
        call.t[BT_ATTN_FWD_SEQ].rows = SEQUENCES / 2;
        call.t[BT_ATTN_FWD_SEQ].off = whole.off + (uint64_t)half * seq_bytes / 2;
        kit_ok(bti_op_run(dev, NULL, &call));
    }
    kit_ok(ops->download(dev, NULL, y, buf, 3 * bytes, 2 * bytes));
    kit_ok(ops->sync(dev, NULL));
    ck_assert(isfinite(y[ROWS * WIDTH - 1]));
    ck_assert(memcmp(y, y + ROWS * WIDTH, bytes) == 0);
    ops->free(dev, buf);
    bti_device_close(dev);
    free(x);
    free(y);
    free(seq);
}
END_TEST

START_TEST(b10_products) {
    enum { COUNT = 70000 };
    bt_dev *dev = opened();
    bt_buf *buf = NULL;
    float *x = malloc(COUNT * 4 * sizeof *x);
    ck_assert_ptr_nonnull(x);
    for (int i = 0; i < 4 * COUNT; i++) x[i] = (float)(i % 7);
    kit_ok(dev->ops->alloc(dev, 2 * COUNT * 16, &buf));
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, x, COUNT * 16));
    bt_call call = {
        .op = BT_OP_GEMM,
        .t = {matrix(buf, 0, 2, 2), matrix(buf, 0, 2, 2), matrix(buf, COUNT * 16, 2, 2)},
        .p.gemm = {.alpha = 1, .batch1 = COUNT, .a1 = 4, .b1 = 4, .c1 = 4}};
    kit_ok(bti_op_run(dev, NULL, &call));
    kit_ok(dev->ops->download(dev, NULL, x, buf, COUNT * 16, COUNT * 16));
    kit_ok(dev->ops->sync(dev, NULL));
    for (int i = 0; i < COUNT; i++) {
        const float a = (float)(4 * i % 7), b = (float)((4 * i + 1) % 7),
                    c = (float)((4 * i + 2) % 7);
        ck_assert_msg(x[4 * i] == a * a + b * c, "product %d", i);
    }
    dev->ops->free(dev, buf);
    bti_device_close(dev);
    free(x);
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
    tcase_add_test(tc, warm_updates_take_nothing);
    tcase_add_test(tc, lost_device);
    tcase_add_test(tc, hanging_device);
    tcase_add_test(tc, watcher_ends);
    tcase_add_loop_test(tc, every_call_fails, 0, 5);
    tcase_add_test(tc, b10_attention);
    tcase_add_test(tc, b10_products);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "use") == 0) return use_once();
    return kit_main("cuda", add, argc, argv);
}
