/* Every OpenCL call of a short run fails in turn: a clear error, nothing left behind, no part of a
 * checkpoint. What the driver is asked for is what was planned, and nothing once update 1 is done.
 */
#include "backends/registry.h"
#include "core/train/checkpoint.h"
#include "core/train/rates.h"
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
                                                         .memory = "64MiB",
                                                         .resume = resume,
                                                         .updates = UPDATES,
                                                         .progress = progress,
                                                         .user = user});
    bt_run_free(run);
    return status;
}

/* The update of the newest checkpoint; -1 without one. All that there are must be whole. */
static int64_t newest(const small_run *r) {
    bti_checkpoint *c = NULL;
    int64_t last = -1, update = -1;
    kit_ok(bti_checkpoint_newest(r->out, &c));
    if (c != NULL) update = c->info.update;
    bti_checkpoint_close(c);
    if (is_file(r->out) || toy_entries(r->out, "") > 0) kit_ok(bti_checkpoint_last(r->out, &last));
    ck_assert_int_eq(update, last);
    return update;
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
        ck_assert_int_eq(newest(r), UPDATES);
        ck_assert_msg(calls.failed == NULL || harmless(), "%s (call %lld) failed, the run did not",
                      calls.failed, (long long)n);
    } else {
        is_told(status);
    }
    return calls.failed != NULL;
}

START_TEST(a_call_fails) {
    int64_t n = 1, runs = 0;
    set_rates();
    for (int more = 1; more; n += 1 + n / 6, runs++) {
        small_run r = small_run_new(24);
        more = run_failing(&r, n, _i);
        if (newest(&r) == UPDATES || runs % 8 != 0) continue;
        kit_ok(run_short(&r, 1, NULL, NULL)); /* it can be gone on with */
        ck_assert_int_eq(newest(&r), UPDATES);
    }
    printf("a run of %d updates: %lld calls\n", UPDATES, (long long)calls.calls);
    ck_assert_int_gt(n, 300);
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

static void add(TCase *tc) {
    if (!mk_there()) return;
    tcase_add_test(tc, opening_fails);
    tcase_add_loop_test(tc, a_call_fails, 0, 2);
    tcase_add_test(tc, memory_as_planned);
}

int main(int argc, char **argv) { return kit_main("opencl_faults", add, argc, argv); }
