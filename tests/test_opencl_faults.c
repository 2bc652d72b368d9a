/* The OpenCL calls of a short run fail in turn: a clear error, nothing left behind, no part of a
 * checkpoint. What the driver is asked for is what was planned, and nothing once update 1 is done.
 * As `test_opencl_faults opencl:1`: two devices at once. */
#include <sys/wait.h>
#include <unistd.h>

#include "backends/registry.h"
#include "core/engine/checkpoint.h"
#include "core/fit/rates.h"
#include "tests/model_kit.h"
#include "tests/opencl_calls.h"
#include "tests/program_kit.h"

#define UPDATES 3

/* A run is planned with these rates: measuring them is made of calls that may fail. */
static void set_rates(void) {
    bt_dev *dev = mk_device("opencl", NULL);
    const char *path = kit_str("%s/rates.json", kit_tmpdir());
    bti_rates rates;
    bti_rates_default(&dev->info, &rates);
    kit_ok(bti_rates_save(path, "any", 0, &rates));
    bti_device_close(dev);
    setenv("BANTAM_RATES", path, 1);
}

static bt_status run_short(const small_run *r, int resume, bt_progress_fn progress, void *user) {
    static const char *const sets[] = {"checkpoint.every=1", "validation.every=0"};
    bt_run *run;
    kit_ok(bt_run_load(r->yaml, sets, 2, &run));
    bt_status status = bt_train(run, &(bt_train_options){.device = "opencl",
                                                         .resume = resume,
                                                         .updates = UPDATES,
                                                         .progress = progress,
                                                         .user = user});
    bt_run_free(run);
    return status;
}

/* May the failure go unnoticed: it costs time only, a library is done without, or memory was being
 * given back? */
static int harmless(void) {
    static const char *const list[] = {"clCreateProgramWithBinary", "clCreateSubBuffer",
                                       "clFinish"};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(calls.failed, list[i]) == 0) return 1;
    return calls.in_library;
}

static void nothing_left(void) {
    ck_assert_msg(calls.live == 0 && calls.bytes == 0, "%s failed: %lld objects, %lld bytes left",
                  calls.failed, (long long)calls.live, (long long)calls.bytes);
}

/* What a call that failed must leave behind: a status and a text. */
static void is_told(bt_status status) {
    ck_assert_msg(status == BT_EDEVICE || status == BT_ENOMEM, "%s failed: %s", calls.failed,
                  bt_last_error());
    check_has(bt_last_error(), "opencl");
}

/* ---- opening -----------------------------------------------------------------------------------
 */

/* The first device of a process, in the order in which it is made. What was made is kept, so that a
 * later try begins where one before it failed. Kernels are made twice: to ask for their sizes, and
 * to be launched. No binary is found on disk: else a text need not be built. */
START_TEST(opening_fails) {
    static const char *const order[] = {
        "clCreateContext",       "clCreateProgramWithSource", "clBuildProgram",
        "clCreateKernel",        "clCreateCommandQueue",      "clCreateKernel",
        "clCreateBuffer",        "clEnqueueFillBuffer",       "clFinish",
        "clEnqueueNDRangeKernel"};
    bt_dev *dev = NULL;
    const char *cache = kit_str("%s", getenv("XDG_CACHE_HOME") ? getenv("XDG_CACHE_HOME") : "");
    setenv("XDG_CACHE_HOME", kit_str("%s/none/none", kit_tmpdir()), 1);
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        calls_start(1, 0);
        calls.only = order[i];
        const bt_status status = bti_device_open("opencl:0", NULL, &dev);
        calls_stop();
        ck_assert_msg(calls.failed != NULL, "%s: not called", order[i]);
        is_told(status);
        nothing_left();
    }
    kit_ok(bti_device_open("opencl:0", NULL, &dev));
    bti_device_close(dev);
    ck_assert_int_eq(calls.live, 0);
    setenv("XDG_CACHE_HOME", cache, 1);
}
END_TEST

/* ---- a run -------------------------------------------------------------------------------------
 */

/* One run with the n-th call failing (and all after it). Was there such a call? */
static int run_failing(const small_run *r, int64_t n, int lost) {
    calls_start(n, lost);
    const bt_status status = run_short(r, 0, NULL, NULL);
    calls_stop();
    nothing_left();
    if (status == BT_OK) {
        ck_assert_int_eq(whole_checkpoint(r->out), UPDATES);
        ck_assert_msg(calls.failed == NULL || harmless(), "%s (call %lld) failed, the run did not",
                      calls.failed, (long long)n);
    } else {
        is_told(status);
    }
    return calls.failed != NULL;
}

/* Each of the first six calls, then ever wider apart; with BANTAM_EVERY_CALL each one. */
static int64_t next_call(int64_t n) {
    return getenv("BANTAM_EVERY_CALL") != NULL ? n + 1 : n + 1 + n / 6;
}

START_TEST(a_call_fails) {
    int64_t n = 1, runs = 0;
    set_rates();
    for (int more = 1; more; n = next_call(n), runs++) {
        small_run r = small_run_new(24);
        more = run_failing(&r, n, _i);
        if (whole_checkpoint(r.out) == UPDATES || runs % 8 != 0) continue;
        kit_ok(run_short(&r, 1, NULL, NULL)); /* it can be gone on with */
        ck_assert_int_eq(whole_checkpoint(r.out), UPDATES);
    }
    printf("a run of %d updates: %lld calls\n", UPDATES, (long long)calls.calls);
    ck_assert_int_gt(n, 300);
}
END_TEST

/* Host memory is the caller's again when a wait for it has failed. */
START_TEST(waits_though_it_fails) {
    enum { BYTES = 1 << 20 };
    bt_dev *dev = mk_device("opencl", NULL);
    bt_buf *buf = NULL;
    void *host = bti_alloc(1, BYTES);
    kit_ok(dev->ops->alloc(dev, BYTES, &buf));
    calls_start(1, _i);
    calls.only = "clFinish";
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, host, BYTES));
    ck_assert_int_eq(calls.copies, 1);
    is_told(dev->ops->sync(dev, NULL));
    ck_assert_int_eq(calls.copies, 0);
    calls_stop();
    is_told(dev->ops->sync(dev, NULL)); /* the stream stays failed */
    bti_free(host);
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}
END_TEST

/* ---- memory ------------------------------------------------------------------------------------
 */

/* A device with buffers of at most 64 KiB, its limit taken back. */
static bt_dev *small_device(void) {
    setenv("BANTAM_OPENCL_MAX_ALLOC", "65536", 1);
    bt_dev *dev = mk_device("opencl", NULL);
    unsetenv("BANTAM_OPENCL_MAX_ALLOC");
    ck_assert_uint_eq(dev->info.max_alloc, 65536);
    return dev;
}

/* Host memory for copies may be larger than a buffer. */
START_TEST(host_memory_beyond_a_buffer) {
    enum { BYTES = 1 << 20, PART = 65536 };
    bt_dev *dev = small_device();
    bt_buf *buf = NULL;
    void *host = NULL, *other = NULL;
    const int64_t buffers = calls.buffers;
    kit_ok(dev->ops->host_alloc(dev, BYTES, &host));
    ck_assert_int_eq(calls.buffers, buffers); /* the driver would refuse it */
    kit_ok(dev->ops->host_alloc(dev, PART, &other));
    ck_assert_int_eq(calls.buffers, buffers + 1);
    kit_ok(dev->ops->alloc(dev, PART, &buf));
    unsigned char *x = host;
    for (int i = 0; i < BYTES; i++) x[i] = (unsigned char)(i * 7 + i / 256);
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, x + BYTES - PART, PART));
    kit_ok(dev->ops->download(dev, NULL, x, buf, 0, PART));
    kit_ok(dev->ops->sync(dev, NULL));
    ck_assert_int_eq(memcmp(x, x + BYTES - PART, PART), 0);
    dev->ops->host_free(dev, host);
    dev->ops->free(dev, buf);
    bti_device_close(dev); /* gives `other` back */
    nothing_left();
}
END_TEST

/* Long fills go in pieces: new memory's, and those of the op. */
START_TEST(fills_in_pieces) {
    enum { PIECE = 64 << 20, BYTES = 2 * PIECE + 4096 };
    bt_dev *dev = mk_device("opencl", NULL);
    bt_buf *buf = NULL;
    unsigned char at[2];
    calls_start(0, 0);
    calls.only = "clEnqueueFillBuffer";
    kit_ok(dev->ops->alloc(dev, BYTES, &buf));
    ck_assert_int_eq(calls.calls, 3);
    kit_ok(dev->ops->fill(dev, NULL, buf, 1, BYTES - 2, 5));
    ck_assert_int_eq(calls.calls, 6);
    static const uint64_t edge[] = {0, PIECE, 2 * (uint64_t)PIECE, BYTES - 2};
    for (size_t i = 0; i < 4; i++) {
        kit_ok(dev->ops->download(dev, NULL, at, buf, edge[i], 2));
        kit_ok(dev->ops->sync(dev, NULL));
        ck_assert_int_eq(at[0], i == 0 ? 0xff : 5);
        ck_assert_int_eq(at[1], i == 3 ? 0xff : 5);
    }
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}
END_TEST

/* What some drivers say where others hold the memory. */
START_TEST(no_memory_at_first_use) {
    bt_dev *dev = mk_device("opencl", NULL);
    bt_buf *buf = NULL;
    calls_start(1, 0);
    calls.only = "clEnqueueFillBuffer";
    ck_assert_int_eq(dev->ops->alloc(dev, 4096, &buf), BT_ENOMEM);
    calls_stop();
    check_has(bt_last_error(), "other programs");
    bti_device_close(dev);
    nothing_left();
}
END_TEST

/* ---- what is asked for -------------------------------------------------------------------------
 */

typedef struct seen {
    int64_t buffers, bytes; /* at the first update */
    int updates;
} seen;

static void look(void *user, const bt_progress *p) {
    seen *s = user;
    if (p->kind != BT_PROGRESS_UPDATE) return;
    if (s->updates++ == 0) {
        s->buffers = calls.buffers;
        s->bytes = calls.bytes;
    }
    ck_assert_int_eq(calls.buffers, s->buffers); /* none was made since */
    ck_assert_int_eq(calls.bytes, s->bytes);
}

START_TEST(memory_as_planned) {
    small_run r = small_run_new(40);
    seen s = {0};
    kit_ok(run_short(&r, 0, look, &s));
    ck_assert_int_eq(s.updates, UPDATES);
    json_t *log = read_log(r.out);
    const double planned = number_at(json_array_get(log, 0), "planned_bytes");
    /* planned_bytes counts the arena and what the process holds beside it */
    ck_assert_int_gt(s.bytes, 0);
    ck_assert((double)s.bytes <= planned);
    ck_assert_int_eq(calls.bytes, 0);
    json_decref(log);
}
END_TEST

/* Memory that was given, and cannot be used: told before update 1. */
START_TEST(late_failure) {
    set_rates();
    for (int64_t n = 1, more = 1; more; n++) {
        small_run r = small_run_new(24);
        calls_start(n, 0);
        calls.only = "clEnqueueFillBuffer"; /* the first use of new memory */
        const bt_status status = run_short(&r, 0, NULL, NULL);
        calls_stop();
        more = calls.failed != NULL;
        ck_assert_int_eq(status == BT_OK, !more);
        ck_assert_int_eq(is_file(in_out(r, "log.jsonl")), !more);
        nothing_left();
        ck_assert(more || n > 2);
    }
}
END_TEST

/* ---- the cache of kernels ----------------------------------------------------------------------
 */

/* A binary that is taken and has no such kernel: it is made anew, for good. */
START_TEST(binary_of_no_use) {
    bt_dev *dev = NULL;
    const char *cache = kit_str("%s", getenv("XDG_CACHE_HOME") ? getenv("XDG_CACHE_HOME") : "");
    int status = 0;
    setenv("XDG_CACHE_HOME", kit_tmpdir(), 1);
    const pid_t child = fork(); /* leaves the binary; this process must have none */
    if (child == 0) _exit(bti_device_open("opencl:0", NULL, &dev) != BT_OK);
    ck_assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    calls_start(1, 0);
    calls.only = "clCreateKernel";
    kit_ok(bti_device_open("opencl:0", NULL, &dev));
    ck_assert_msg(calls.failed != NULL, "no kernel was asked for");
    calls_stop();
    bti_device_close(dev);
    setenv("XDG_CACHE_HOME", cache, 1);
    nothing_left();
}
END_TEST

/* ---- two devices at once ----------------------------------------------------------------------
 */

static int devices(void) {
    const bt_driver *driver;
    char reason[512];
    int count = 0;
    if (bti_backend_driver("opencl", &driver) == BT_OK)
        driver->probe(bti_host(), &count, reason, sizeof reason);
    return count;
}

static bti_update_result update_of(mk_model *m, const mk_setup *s, int64_t update) {
    bti_update_result r;
    kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, update, 1e-3, &r));
    return r;
}

/* Each has its own context, queue and memory; the second goes on when the first is closed. */
START_TEST(two_at_once) {
    static const int64_t source[] = {5, 3, 8, 2}, target[] = {4, 7, 1, 6};
    mk_setup s = mk_defaults();
    s.model.dropout = 0.1;
    s.sentence = mk_sentences(4, source, target, 97, 1);
    s.sentences = 4;
    bti_update_result alone[4];
    s.backend = "opencl:0";
    mk_model m = mk_open(&s);
    for (int i = 0; i < 4; i++) alone[i] = update_of(&m, &s, i + 1);
    mk_close(&m);
    mk_model first = mk_open(&s);
    s.backend = "opencl:1";
    mk_model second = mk_open(&s);
    const int alike = strcmp(first.dev->info.name, second.dev->info.name) == 0;
    const double bound = alike ? 0 : 1e-3;
    for (int i = 0; i < 4; i++) {
        if (i == 2) mk_close(&first);
        const bti_update_result b = update_of(&second, &s, i + 1);
        kit_near(b.loss, alone[i].loss, bound);
        kit_near(b.grad_norm, alone[i].grad_norm, bound);
        if (i < 2) ck_assert(update_of(&first, &s, i + 1).loss == alone[i].loss);
    }
    mk_close(&second);
    nothing_left();
}
END_TEST

/* Calls of an update of the second device fail in turn, and all after them: told, and the first one
 * goes on computing what it computes alone. */
START_TEST(one_of_two_fails) {
    static const int64_t source[] = {5, 3}, target[] = {4, 7};
    enum { MOST = 400 };
    static double alone[MOST];
    mk_setup s = mk_defaults();
    s.model.encoder_layers = s.model.decoder_layers = 1;
    s.sentence = mk_sentences(2, source, target, 97, 1);
    s.sentences = 2;
    s.backend = "opencl:0";
    mk_model first = mk_open(&s);
    for (int64_t n = 0; n < MOST; n++) alone[n] = update_of(&first, &s, n + 1).loss;
    mk_close(&first);
    first = mk_open(&s);
    int64_t n = 1;
    for (int more = 1, u = 0; more; n = next_call(n), u++) {
        ck_assert(u < MOST && update_of(&first, &s, u + 1).loss == alone[u]);
        s.backend = "opencl:1";
        mk_model second = mk_open(&s);
        bti_update_result r;
        calls_start(n, 1);
        const bt_status status =
            bti_engine_update(second.engine, s.sentence, s.sentences, 1, 1e-3, &r);
        calls_stop();
        more = calls.failed != NULL;
        if (more) is_told(status);
        ck_assert_int_eq(status == BT_OK, !more);
        mk_close(&second);
    }
    mk_close(&first);
    nothing_left();
    printf("an update on a second device: %lld calls\n", (long long)calls.calls);
    ck_assert_int_gt(n, 50);
}
END_TEST

static void add(TCase *tc) {
    if (!mk_there()) return;
    if (strcmp(kit_backend(), "opencl:1") == 0) {
        if (devices() < 2) {
            kit_skip("two devices at once: %d OpenCL devices", devices());
            return;
        }
        tcase_add_test(tc, binary_of_no_use); /* first: nothing is open yet */
        tcase_add_test(tc, two_at_once);
        tcase_add_test(tc, one_of_two_fails);
        return;
    }
    tcase_add_test(tc, opening_fails);
    tcase_add_loop_test(tc, a_call_fails, 0, 2);
    tcase_add_loop_test(tc, waits_though_it_fails, 0, 2);
    tcase_add_test(tc, host_memory_beyond_a_buffer);
    tcase_add_test(tc, fills_in_pieces);
    tcase_add_test(tc, no_memory_at_first_use);
    tcase_add_test(tc, late_failure);
    tcase_add_test(tc, memory_as_planned);
}

int main(int argc, char **argv) { return kit_main("opencl_faults", add, argc, argv); }
