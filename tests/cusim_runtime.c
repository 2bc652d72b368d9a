/* The simulated CUDA runtime: limits of devices and launches, streams that run late, faults. */
#include "tests/kit.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cusim.h>

#include "tests/cusim/samples.h"
#include "tests/cusim_parts.h"

/* ---- devices ------------------------------------------------------------------------------------
 */

START_TEST(devices) {
    struct cudaDeviceProp p;
    int count = -1, value = 0;
    cs_restart("CUSIM_DEVICES=2 CUSIM_ARCH=86 CUSIM_MEM=24g");
    cs_ok(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 2);
    cs_ok(cudaGetDeviceProperties(&p, 1));
    ck_assert_int_eq(p.major * 10 + p.minor, 86);
    ck_assert_uint_eq(p.totalGlobalMem, (size_t)24 << 30);
    cs_ok(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    ck_assert_int_eq(value, 101376);
    cs_fails(cudaSetDevice(2), cudaErrorInvalidDevice);
    cs_fails(cudaGetLastError(), cudaErrorInvalidDevice);
    cs_ok(cudaGetLastError()); /* asking clears it */
}
END_TEST

/* Devices are named by numbers; the first that is not there ends the list. */
START_TEST(visible_devices) {
    static const struct {
        const char *settings;
        int count;
    } all[] = {{"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=2", 1},
               {"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0,1", 3},
               {"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=0,3,1", 1},
               {"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=5", 0},
               {"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=-1", 0},
               {"CUSIM_DEVICES=3 CUDA_VISIBLE_DEVICES=", 0}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int count = 0;
        cs_restart(all[i].settings);
        cs_fails(cudaGetDeviceCount(&count), all[i].count ? cudaSuccess : cudaErrorNoDevice);
        ck_assert_int_eq(count, all[i].count);
    }
}
END_TEST

/* The count stays what it was, as on machines without a driver. */
START_TEST(no_device) {
    static const struct {
        const char *settings;
        cudaError_t error;
    } all[] = {{"CUSIM_DEVICES=0", cudaErrorNoDevice},
               {"CUSIM_COUNT_ERROR=35", cudaErrorInsufficientDriver},
               {"CUSIM_COUNT_ERROR=34", cudaErrorStubLibrary}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        int count = -7;
        cs_restart(all[i].settings);
        cs_fails(cudaGetDeviceCount(&count), all[i].error);
        ck_assert_int_eq(count, -7);
    }
}
END_TEST

START_TEST(memory) {
    size_t all, total, now;
    void *p = NULL, *q = NULL;
    cs_restart("CUSIM_MEM=100m CUSIM_CONTEXT=10m CUSIM_OTHERS=20m CUSIM_MAX_ALLOC=50m");
    cs_ok(cudaMemGetInfo(&all, &total));
    ck_assert_uint_eq(total, (size_t)100 << 20);
    ck_assert_uint_eq(all, (size_t)70 << 20);
    cs_ok(cudaMalloc(&p, ((size_t)50 << 20) - 100));
    cs_ok(cudaMemGetInfo(&now, &total));
    ck_assert_uint_eq(now, (size_t)20 << 20);
    q = p;
    cs_fails(cudaMalloc(&q, ((size_t)20 << 20) + 1), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(q);
    cs_fails(cudaGetLastError(), cudaErrorMemoryAllocation);
    cs_ok(cudaFree(p));
    cs_fails(cudaMalloc(&q, ((size_t)50 << 20) + 1), cudaErrorMemoryAllocation); /* too large */
    cs_fails(cudaFree(&q), cudaErrorInvalidValue);
    cs_ok(cudaFree(NULL));
    cs_ok(cudaMemGetInfo(&now, &total));
    ck_assert_uint_eq(now, all);
}
END_TEST

START_TEST(fresh_memory_is_nan) {
    float x[300];
    cs_restart("");
    float *p = cs_words(300);
    cs_down(x, p, 300);
    for (int i = 0; i < 300; i++) ck_assert(isnan(x[i]));
    cs_ok(cudaFree(p));
}
END_TEST

/* ---- launches -----------------------------------------------------------------------------------
 */
static cudaError_t try_launch(dim3 grid, dim3 block, size_t shared) {
    int *count = cs_words(1);
    float *sum = cs_words(1);
    cs_ok(cudaMemset(count, 0, sizeof *count));
    cs_ok(cudaMemset(sum, 0, sizeof *sum));
    const cudaError_t error = cs_count_threads(count, sum, grid, block, shared, NULL);
    cs_ok(cudaFree(count));
    cs_ok(cudaFree(sum));
    return error;
}

START_TEST(launch_limits) {
    static const struct {
        dim3 grid, block;
        int fits;
    } all[] = {{{1, 1, 1}, {1024, 1, 1}, 1},    {{1, 1, 1}, {1025, 1, 1}, 0},
               {{1, 1, 1}, {512, 2, 1}, 1},     {{1, 1, 1}, {512, 3, 1}, 0},
               {{1, 1, 1}, {1, 1, 64}, 1},      {{1, 1, 1}, {1, 1, 65}, 0},
               {{0, 1, 1}, {1, 1, 1}, 0},       {{1, 1, 1}, {1, 0, 1}, 0},
               {{70000, 1, 1}, {1, 1, 1}, 1},   {{1, 65535, 1}, {1, 1, 1}, 1},
               {{1, 65536, 1}, {1, 1, 1}, 0},   {{1, 1, 65536}, {1, 1, 1}, 0},
               {{1u << 31, 1, 1}, {1, 1, 1}, 0}};
    cs_restart("");
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cs_fails(try_launch(all[i].grid, all[i].block, 0),
                 all[i].fits ? cudaSuccess : cudaErrorInvalidConfiguration);
}
END_TEST

/* 48 KiB; more only where the card has it and the kernel was allowed to. */
START_TEST(shared_memory_limits) {
    const dim3 one = {1, 1, 1};
    cs_restart("CUSIM_ARCH=37");
    cs_fails(try_launch(one, one, 49152), cudaSuccess);
    cs_fails(try_launch(one, one, 49153), cudaErrorInvalidValue);
    cs_fails(cs_allow_shared(49153), cudaErrorInvalidValue);
    cs_restart("CUSIM_ARCH=86");
    cs_fails(try_launch(one, one, 101376), cudaErrorInvalidValue);
    cs_ok(cs_allow_shared(101376));
    cs_fails(try_launch(one, one, 101376), cudaSuccess);
    cs_fails(try_launch(one, one, 101377), cudaErrorInvalidValue);
    cs_fails(cs_allow_shared(101377), cudaErrorInvalidValue);
}
END_TEST

START_TEST(code_for_other_cards) {
    const dim3 one = {1, 1, 1};
    static const struct {
        const char *settings;
        cudaError_t error;
    } all[] = {{"CUSIM_ARCH=37 CUSIM_IMAGES=86,90", cudaErrorNoKernelImageForDevice},
               {"CUSIM_ARCH=86 CUSIM_IMAGES=80", cudaSuccess},
               {"CUSIM_ARCH=80 CUSIM_IMAGES=86", cudaErrorNoKernelImageForDevice},
               {"CUSIM_ARCH=90 CUSIM_IMAGES=37,90", cudaSuccess}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        cs_restart(all[i].settings);
        cs_fails(try_launch(one, one, 0), all[i].error);
    }
}
END_TEST

/* ---- streams ------------------------------------------------------------------------------------
 */
typedef struct late {
    cudaStream_t a, b;
    cudaEvent_t done;
    float *device, *pinned;
} late;

enum { LATE = 64 };

static late late_new(void) {
    late l = {0};
    cs_ok(cudaStreamCreateWithFlags(&l.a, cudaStreamNonBlocking));
    cs_ok(cudaStreamCreateWithFlags(&l.b, cudaStreamNonBlocking));
    cs_ok(cudaEventCreateWithFlags(&l.done, cudaEventDisableTiming));
    l.device = cs_words(LATE);
    cs_ok(cudaHostAlloc((void **)&l.pinned, LATE * sizeof(float), cudaHostAllocDefault));
    for (int i = 0; i < LATE; i++) l.pinned[i] = 1;
    return l;
}
static void late_free(late l) {
    cs_ok(cudaFree(l.device));
    cs_ok(cudaFreeHost(l.pinned));
    cs_ok(cudaEventDestroy(l.done));
    cs_ok(cudaStreamDestroy(l.a));
    cs_ok(cudaStreamDestroy(l.b));
}
static void up(late l) {
    cs_ok(cudaMemcpyAsync(l.device, l.pinned, LATE * sizeof(float), cudaMemcpyHostToDevice, l.a));
}
static void down(late l, cudaStream_t stream) {
    cs_ok(
        cudaMemcpyAsync(l.pinned, l.device, LATE * sizeof(float), cudaMemcpyDeviceToHost, stream));
}

/* Nothing has happened before somebody waits; then all of it, in order. */
START_TEST(streams_run_late) {
    cs_restart("");
    late l = late_new();
    up(l);
    cs_ok(cs_add_one(l.device, LATE, l.a));
    down(l, l.a);
    ck_assert_float_eq(l.pinned[5], 1);
    cs_ok(cudaStreamSynchronize(l.a));
    ck_assert_float_eq(l.pinned[5], 2);
    late_free(l);
}
END_TEST

/* Pinned memory that is written too early is what the copy takes; other memory was read at once. */
void cs_write_staging_early(int unused) {
    float plain[LATE] = {[5] = 3}, got[LATE];
    (void)unused;
    late l = late_new();
    up(l);
    l.pinned[5] = 7;
    cs_down(got, l.device, LATE); /* on the default stream, which does not wait for l.a */
    ck_assert(isnan(got[5]));
    cs_ok(cudaStreamSynchronize(l.a));
    cs_down(got, l.device, LATE);
    ck_assert_float_eq(got[5], 7);
    cs_ok(cudaMemcpyAsync(l.device, plain, sizeof plain, cudaMemcpyHostToDevice, l.a));
    plain[5] = 9;
    cs_ok(cudaStreamSynchronize(l.a));
    cs_down(got, l.device, LATE);
    ck_assert_float_eq(got[5], 3);
    late_free(l);
}

void cs_two_streams(int wait) {
    late l = late_new();
    up(l);
    cs_ok(cs_add_one(l.device, LATE, l.a));
    cs_ok(cudaEventRecord(l.done, l.a));
    if (wait) cs_ok(cudaStreamWaitEvent(l.b, l.done, 0));
    down(l, l.b);
    cs_ok(cudaStreamSynchronize(l.b));
    if (wait)
        ck_assert_float_eq(l.pinned[5], 2);
    else
        ck_assert(isnan(l.pinned[5]));
    cs_fails(cudaEventQuery(l.done), wait ? cudaSuccess : cudaErrorNotReady);
    cs_ok(cudaEventSynchronize(l.done));
    cs_ok(cudaEventQuery(l.done));
    late_free(l);
}

/* Values show a missing wait since work is late; ThreadSanitizer since nothing orders it. */
static void wrong_order(void (*f)(int), int at) {
    cs_restart("");
    if (CS_TSAN)
        cs_dies(f, at, "", "data race");
    else
        f(at);
}
START_TEST(staging_is_read_late) { wrong_order(cs_write_staging_early, 0); }
END_TEST
START_TEST(events_order_streams) {
    cs_restart("");
    cs_two_streams(1);
    wrong_order(cs_two_streams, 0);
}
END_TEST

START_TEST(at_once_and_at_random) {
    float got[LATE];
    for (int seed = 2; seed < 12; seed++) {
        cs_restart(kit_str("CUSIM_ASYNC=%d", seed));
        late l = late_new();
        up(l);
        for (int i = 0; i < 20; i++) cs_ok(cs_add_one(l.device, LATE, l.a));
        cs_ok(cudaStreamSynchronize(l.a));
        cs_down(got, l.device, LATE);
        ck_assert_float_eq(got[5], 21);
        late_free(l);
    }
    cs_restart("CUSIM_ASYNC=0");
    late l = late_new();
    up(l);
    down(l, l.b);
    ck_assert_float_eq(l.pinned[5], 1);
    late_free(l);
}
END_TEST

/* Copies are checked when they are asked for. */
START_TEST(copies) {
    float x[LATE];
    cs_restart("");
    late l = late_new();
    const size_t bytes = sizeof x;
    cs_fails(cudaMemcpy(l.device, x, bytes + 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    cs_fails(cudaMemcpy(l.device + 1, x, bytes, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    cs_fails(cudaMemcpy(l.device, x, bytes, cudaMemcpyDeviceToHost),
             cudaErrorInvalidMemcpyDirection);
    cs_fails(cudaMemset(l.device, 0, bytes + 1), cudaErrorInvalidValue);
    cs_fails(cudaMemset(x, 0, bytes), cudaErrorInvalidValue);
    cs_ok(cudaMemcpy(l.device, x, 0, cudaMemcpyHostToDevice));
    late_free(l);
    cs_fails(cudaMemcpy(l.device, x, bytes, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    cs_fails(cudaStreamSynchronize(l.a), cudaErrorInvalidResourceHandle);
}
END_TEST

/* ---- faults -------------------------------------------------------------------------------------
 */

START_TEST(nth_failures) {
    void *p = NULL, *q = NULL;
    cs_restart("CUSIM_FAIL_MALLOC=2 CUSIM_FAIL_HOST=1 CUSIM_FAIL_LAUNCH=2");
    cs_ok(cudaMalloc(&p, 1024));
    cs_fails(cudaMalloc(&q, 1024), cudaErrorMemoryAllocation);
    cs_fails(cudaHostAlloc(&q, 1024, 0), cudaErrorMemoryAllocation);
    cs_fails(cudaGetLastError(), cudaErrorMemoryAllocation);
    cs_ok(cudaMemset(p, 0, 1024));
    cs_ok(cs_add_one(p, 256, NULL));
    cs_fails(cs_add_one(p, 256, NULL), cudaErrorLaunchOutOfResources);
    cs_ok(cs_add_one(p, 256, NULL));
    float x[256];
    cs_down(x, p, 256);
    ck_assert_float_eq(x[100], 2);
    cs_ok(cudaFree(p));
}
END_TEST

/* One that is wrong does nothing, and no call tells. */
START_TEST(wrong_kernel) {
    void *p = NULL;
    float x[4];
    cs_restart("CUSIM_WRONG=2");
    cs_ok(cudaMalloc(&p, sizeof x));
    cs_ok(cudaMemset(p, 0, sizeof x));
    for (int i = 0; i < 3; i++) cs_ok(cs_add_one(p, 4, NULL));
    cs_down(x, p, 4);
    ck_assert_float_eq(x[3], 2);
    cs_ok(cudaFree(p));
}
END_TEST

/* Shows late, and on every call from then on. */
START_TEST(kernel_that_faults) {
    cs_restart("CUSIM_FAIL_KERNEL=2");
    late l = late_new();
    up(l);
    cs_ok(cs_add_one(l.device, LATE, l.a));
    cs_ok(cs_add_one(l.device, LATE, l.a));
    cs_fails(cudaStreamSynchronize(l.a), cudaErrorLaunchFailure);
    cs_fails(cudaGetLastError(), cudaErrorLaunchFailure);
    cs_fails(cudaGetLastError(), cudaErrorLaunchFailure);
    cs_fails(cs_add_one(l.device, LATE, l.a), cudaErrorLaunchFailure);
    void *p = NULL;
    cs_fails(cudaMalloc(&p, 10), cudaErrorLaunchFailure);
    cs_fails(cudaFree(l.device), cudaErrorLaunchFailure);
    cs_fails(cudaDeviceReset(), cudaErrorLaunchFailure);
    cusim_abandon();
}
END_TEST

/* A device that is lost with the n-th call: all before it work, none after it. */
START_TEST(device_lost) {
    float x[4];
    cusim_counts counts;
    cs_restart("CUSIM_LOST=3");
    float *p = cs_words(4);
    cs_ok(cudaMemset(p, 0, 16));
    cs_fails(cudaMemcpy(x, p, 16, cudaMemcpyDeviceToHost), cudaErrorUnknown);
    cs_fails(cudaFree(p), cudaErrorUnknown);
    cusim_read_counts(&counts);
    ck_assert_uint_eq(counts.calls, 4);
    cusim_abandon();
    cs_restart("CUSIM_FAIL_CALL=2");
    p = cs_words(4);
    cs_fails(cudaMemset(p, 0, 16), cudaErrorUnknown);
    cs_ok(cudaMemset(p, 0, 16));
    cs_ok(cudaFree(p));
}
END_TEST

/* The child is ended by its own alarm, not by coming back. */
START_TEST(call_that_hangs) {
    fflush(stdout);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int n = 0;
        cs_restart("CUSIM_HANG=2");
        cudaGetDeviceCount(&n);
        signal(SIGALRM, SIG_DFL);
        alarm(1);
        cudaGetDeviceCount(&n);
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
}
END_TEST

void cs_add_runtime(TCase *tc) {
    tcase_add_test(tc, devices);
    tcase_add_test(tc, visible_devices);
    tcase_add_test(tc, no_device);
    tcase_add_test(tc, memory);
    tcase_add_test(tc, fresh_memory_is_nan);
    tcase_add_test(tc, launch_limits);
    tcase_add_test(tc, shared_memory_limits);
    tcase_add_test(tc, code_for_other_cards);
    tcase_add_test(tc, streams_run_late);
    tcase_add_test(tc, staging_is_read_late);
    tcase_add_test(tc, events_order_streams);
    tcase_add_test(tc, at_once_and_at_random);
    tcase_add_test(tc, copies);
    tcase_add_test(tc, nth_failures);
    tcase_add_test(tc, wrong_kernel);
    tcase_add_test(tc, kernel_that_faults);
    tcase_add_test(tc, device_lost);
    tcase_add_test(tc, call_that_hangs);
}
