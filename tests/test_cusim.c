/* The simulated CUDA device: what is right works in every order of threads, and every mistake that
 * it is there to find is found. tests/cusim/samples.cu has the kernels. */
#include "tests/kit.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cusim.h>

#include "core/base/dtype.h"
#include "tests/cusim/samples.h"
#include "tests/cusim_parts.h"

void cs_restart(const char *settings) {
    static const char *const names[] = {
        "CUSIM_DEVICES",   "CUSIM_ARCH",        "CUSIM_DRIVER",        "CUSIM_COUNT_ERROR",
        "CUSIM_IMAGES",    "CUSIM_MEM",         "CUSIM_CONTEXT",       "CUSIM_OTHERS",
        "CUSIM_MAX_ALLOC", "CUSIM_CUBLAS",      "CUSIM_ORDER",         "CUSIM_ASYNC",
        "CUSIM_PROTECT",   "CUSIM_RACE",        "CUSIM_FAIL_CALL",     "CUSIM_FAIL_MALLOC",
        "CUSIM_FAIL_HOST", "CUSIM_FAIL_LAUNCH", "CUSIM_FAIL_KERNEL",   "CUSIM_WRONG",
        "CUSIM_LOST",      "CUSIM_HANG",        "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    char *text = strdup(settings), *rest = text, *word;
    while ((word = strsep(&rest, " ")) != NULL) {
        char *value = strchr(word, '=');
        if (value == NULL) continue;
        *value = 0;
        setenv(word, value + 1, 1);
    }
    free(text);
    cusim_abandon(); /* what a failed test left */
    cusim_restart();
}

void *cs_words(int n) {
    void *p = NULL;
    cs_ok(cudaMalloc(&p, (size_t)n * sizeof(float)));
    return p;
}
float *cs_up(const float *x, int n) {
    float *p = cs_words(n);
    cs_ok(cudaMemcpy(p, x, (size_t)n * sizeof(float), cudaMemcpyHostToDevice));
    return p;
}
void cs_down(void *x, const void *p, int n) {
    cs_ok(cudaMemcpy(x, p, (size_t)n * sizeof(float), cudaMemcpyDeviceToHost));
}

static const char *const orders[] = {"CUSIM_ORDER=fwd", "CUSIM_ORDER=rev", "CUSIM_ORDER=1",
                                     "CUSIM_ORDER=2", "CUSIM_ORDER=1 CUSIM_ASYNC=0"};
enum { ORDERS = sizeof orders / sizeof orders[0] };

/* ---- what is right ------------------------------------------------------------------------------
 */

START_TEST(every_thread_once) {
    const dim3 grid = {3, 2, 4}, block = {5, 7, 3};
    enum { N = 24 * 105 };
    cs_restart(orders[_i]);
    int *out = cs_words(N), got[N];
    cs_ok(cs_number(out, grid, block, NULL));
    cs_down(got, out, N);
    for (int i = 0; i < N; i++) ck_assert_int_eq(got[i], i);
    cs_ok(cudaFree(out));
}
END_TEST

START_TEST(shared_memory_and_shuffles) {
    enum { ROWS = 5, N = 301 };
    float x[ROWS * N], sums[ROWS], back[N];
    for (int i = 0; i < ROWS * N; i++) x[i] = (float)(i % 17);
    cs_restart(orders[_i]);
    float *dx = cs_up(x, ROWS * N), *out = cs_words(ROWS), *y = cs_words(N);
    cs_ok(cs_row_sum(dx, out, ROWS, N, NULL));
    cs_down(sums, out, ROWS);
    for (int r = 0; r < ROWS; r++) {
        float want = 0;
        for (int i = 0; i < N; i++) want += x[r * N + i];
        ck_assert_float_eq(sums[r], want); /* whole numbers: exact in any order */
    }
    cs_ok(cs_reverse(dx, y, N, NULL));
    cs_down(back, y, N);
    for (int i = 0; i < N; i++) ck_assert_float_eq(back[i], x[N - 1 - i]);
    cs_ok(cudaFree(dx));
    cs_ok(cudaFree(out));
    cs_ok(cudaFree(y));
}
END_TEST

START_TEST(warp_operations) {
    enum { N = 96 };
    unsigned got[8 * N];
    cs_restart(orders[_i]);
    unsigned *out = cs_words(8 * N);
    cs_ok(cs_warps(out, N, NULL));
    cs_down(got, out, 8 * N);
    for (unsigned i = 0; i < N; i++) {
        const unsigned *o = got + (size_t)8 * i, warp = i / 32 * 32, lane = i % 32;
        ck_assert_uint_eq(o[0], warp + 5);
        ck_assert_uint_eq(o[1], lane % 8 < 2 ? i : i - 2);
        ck_assert_uint_eq(o[2], lane % 16 + 3 > 15 ? i : i + 3);
        ck_assert_uint_eq(o[3], 0x49249249u);
        ck_assert_uint_eq(o[4], lane < 16 ? 2 : 1);
        ck_assert_uint_eq(o[5], warp + 31);
        ck_assert_uint_eq(o[6], N / 2);
        ck_assert_uint_eq(o[7], 3);
    }
    cs_ok(cudaFree(out));
}
END_TEST

START_TEST(atomics) {
    const dim3 grid = {3, 2, 1}, block = {64, 2, 1};
    cs_restart(orders[_i]);
    int *count = cs_words(1), counted;
    float *sum = cs_words(1), summed;
    cs_ok(cudaMemset(count, 0, sizeof *count));
    cs_ok(cudaMemset(sum, 0, sizeof *sum));
    cs_ok(cs_count_threads(count, sum, grid, block, 0, NULL));
    cs_down(&counted, count, 1);
    cs_down(&summed, sum, 1);
    ck_assert_int_eq(counted, 768);
    ck_assert_float_eq(summed, 384);
    cs_ok(cudaFree(count));
    cs_ok(cudaFree(sum));
}
END_TEST

/* Against the conversions of core, over all exponents. */
START_TEST(half_precision) {
    enum { N = 60000 };
    static float x[N], y[N];
    uint32_t bits = 1;
    for (int i = 0; i < N; i++) {
        bits = bits * 1664525u + 1013904223u;
        memcpy(&x[i], &bits, sizeof bits);
        if (i % 3 == 0) x[i] = bti_f16_to_f32((uint16_t)i) * (1 + (float)(i % 5) / 4096);
    }
    cs_restart("");
    float *dx = cs_up(x, N), *dy = cs_words(N);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        cs_ok(cs_round(dx, dy, N, bf16, NULL));
        cs_down(y, dy, N);
        for (int i = 0; i < N; i++) {
            const float want = bf16 ? bti_bf16_to_f32(bti_f32_to_bf16(x[i]))
                                    : bti_f16_to_f32(bti_f32_to_f16(x[i]));
            if (isnan(x[i]))
                ck_assert(isnan(y[i]));
            else
                ck_assert_msg(memcmp(&y[i], &want, 4) == 0, "%a: %a, not %a", x[i], y[i], want);
        }
    }
    cs_ok(cudaFree(dx));
    cs_ok(cudaFree(dy));
}
END_TEST

/* ---- what is wrong ------------------------------------------------------------------------------
 */
enum { LOG = 1 << 16 };

/* What a child process can be asked to do, by its place in this list. */
enum { CHILD_TASKS = 9 };
static void (*const child_tasks[CHILD_TASKS])(int at);

/* The program as `--child TASK AT SETTINGS`: does it; coming back means that nothing was found. */
static char **child_argv;
START_TEST(be_child) {
    alarm(100);
    cs_restart(child_argv[4]);
    child_tasks[atoi(child_argv[2])](atoi(child_argv[3]));
    if (CS_TSAN) exit(0); /* its verdict is the exit status */
    _exit(0);
}
END_TEST
static void add_child(TCase *tc) { tcase_add_test(tc, be_child); }

/* Runs `f(at)` in a process of its own, started anew, since ThreadSanitizer sees little after a
 * fork: how it ended, and what it wrote. */
static int run_child(void (*f)(int at), int at, const char *settings, char *log) {
    int ends[2], task = 0;
    while (task < CHILD_TASKS && child_tasks[task] != f) task++;
    ck_assert_int_lt(task, CHILD_TASKS);
    const char *task_text = kit_str("%d", task), *at_text = kit_str("%d", at);
    ck_assert_int_eq(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        execl("/proc/self/exe", "test_cusim", "--child", task_text, at_text, settings, NULL);
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while ((got = read(ends[0], log + n, LOG - 1 - n)) > 0) n += (size_t)got;
    log[n] = 0;
    close(ends[0]);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

void cs_dies(void (*f)(int at), int at, const char *settings, const char *said) {
    static char log[LOG];
    const int status = run_child(f, at, settings, log);
    ck_assert_msg(status != 0, "not found: %s", said);
    ck_assert_msg(strstr(log, said) != NULL || (CS_ASAN && strstr(log, "AddressSanitizer")) ||
                      (CS_ASAN && strstr(log, "runtime error")) ||
                      (CS_TSAN && strstr(log, "ThreadSanitizer")),
                  "\"%s\" lacks \"%s\"", log, said);
}

static float *wrong_x, *wrong_y;
static void make_buffers(void) {
    wrong_x = cs_words(256);
    wrong_y = cs_words(250);
    cs_ok(cudaMemset(wrong_x, 0, 1024));
    cs_ok(cudaMemset(wrong_y, 0, 1000));
}
static void make(cs_mistake mistake, int at) {
    make_buffers();
    cs_ok(cs_wrong(mistake, wrong_x, wrong_y, at, NULL));
    cs_ok(cudaDeviceSynchronize());
    cs_ok(cudaFree(wrong_x));
    cs_ok(cudaFree(wrong_y));
}
static void make_plain(int mistake) { make((cs_mistake)mistake, 0); }
static void make_out_of_bounds(int at) { make(CS_OUT_OF_BOUNDS, at); }
static void make_shared_overflow(int at) { make(CS_SHARED_OVERFLOW, at); }
static void make_fixed_overflow(int at) { make(CS_FIXED_OVERFLOW, at); }

START_TEST(threads_that_do_not_meet) {
    static const struct {
        cs_mistake mistake;
        const char *said;
    } all[] = {{CS_DIVERGENT_BARRIER, "left the kernel while others wait at __syncthreads"},
               {CS_TWO_BARRIERS, "meet at different __syncthreads"},
               {CS_LANE_NOT_NAMED, "mask does not name it"},
               {CS_LANE_MISSING, "deadlock"},
               {CS_READS_LANE_OUTSIDE, "a lane that its mask does not name"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        for (int order = 0; order < 3; order++)
            cs_dies(make_plain, all[i].mistake, orders[order], all[i].said);
}
END_TEST

START_TEST(reports_name_the_place) {
    cs_dies(make_plain, CS_DIVERGENT_BARRIER, "", "divergent_barrier, block (0,0,0)");
    cs_dies(make_plain, CS_DIVERGENT_BARRIER, "", "samples.cu:");
    if (!CS_ASAN && !CS_TSAN) cs_dies(make_out_of_bounds, 300, "", "block (0,0,0), thread (0,0,0)");
}
END_TEST

/* Both kinds of shared memory are NaN at the start of each block (fixed arrays not where
 * AddressSanitizer watches their ends instead). */
START_TEST(uninitialised_shared) {
    float y[128];
    cs_restart("");
    float *dy = cs_words(128);
    for (int round = 0; round < 3; round++) { /* what the second leaves behind is gone too */
        cs_ok(cs_wrong(CS_UNINITIALISED_SHARED, NULL, dy, round == 1, NULL));
        cs_down(y, dy, 128);
        for (int i = 0; i < 128 && round == 1; i++) ck_assert_float_eq(y[i], 1);
        for (int i = CS_ASAN ? 64 : 0; i < 128 && round != 1; i++) ck_assert(isnan(y[i]));
    }
    cs_ok(cudaFree(dy));
}
END_TEST

/* A device buffer of 250 floats: before it, right behind it, behind the page. */
START_TEST(outside_of_a_buffer) {
    static const int at[] = {-1, 250, 255, 256, 1024};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++)
        cs_dies(make_out_of_bounds, at[i], "", "buffer of 1000 bytes");
}
END_TEST

START_TEST(outside_of_shared_memory) {
    cs_dies(make_shared_overflow, 40, "", "touches");
    if (CS_ASAN) {
        cs_dies(make_shared_overflow, -1, "", "AddressSanitizer");
        cs_dies(make_fixed_overflow, 40, "", "AddressSanitizer");
    }
}
END_TEST

static void touch_on_host(int write) {
    make_buffers();
    volatile float *p = wrong_x;
    if (write)
        p[3] = 1;
    else
        exit((int)p[3]);
}
static void use_freed(int unused) {
    (void)unused;
    make_buffers();
    cs_ok(cudaFree(wrong_y));
    cs_ok(cs_wrong(CS_OUT_OF_BOUNDS, NULL, wrong_y, 0, NULL));
    cudaDeviceSynchronize();
}
static void other_device(int unused) {
    (void)unused;
    make_buffers();
    cs_ok(cudaSetDevice(1));
    cs_ok(cs_wrong(CS_OUT_OF_BOUNDS, NULL, wrong_y, 0, NULL));
    cudaDeviceSynchronize();
}

START_TEST(memory_of_others) {
    cs_dies(touch_on_host, 0, "", "the host touches");
    cs_dies(touch_on_host, 1, "", "offset 12 of a buffer of 1024 bytes on device 0");
    cs_dies(use_freed, 0, "", "a buffer that was freed");
    cs_dies(other_device, 0, "CUSIM_DEVICES=2", "on device 0");
}
END_TEST

START_TEST(stack_is_full) {
    if (CS_ASAN || CS_TSAN) return; /* their reports do not tell a stack's end from other faults */
    cs_dies(make_plain, CS_DEEP, "", "its stack is full");
}
END_TEST

START_TEST(misaligned) {
    if (!CS_ASAN) return; /* with UndefinedBehaviorSanitizer beside it */
    cs_dies(make_plain, CS_MISALIGNED_VECTOR, "", "misaligned address");
}
END_TEST

/* A missing barrier shows in the values in at least one order of threads. */
static int missing_barrier_shows(cs_mistake mistake, const char *order) {
    float y[64];
    cs_restart(order);
    float *dy = cs_words(64);
    cs_ok(cs_wrong(mistake, NULL, dy, 0, NULL));
    cs_down(y, dy, 64);
    cs_ok(cudaFree(dy));
    for (int i = 0; i < 64; i++) {
        const int j = (i + 1) % 64;
        if (!(y[i] == (float)(mistake == CS_MISSING_BARRIER ? j : 2 * j + 1))) return 1;
    }
    return 0;
}
START_TEST(missing_barriers) {
    static const cs_mistake all[] = {CS_MISSING_BARRIER, CS_MISSING_SECOND_BARRIER};
    if (CS_TSAN) return; /* it reports them, see `races` */
    for (int i = 0; i < 2; i++) {
        int shown = 0;
        for (int order = 0; order < 4; order++)
            shown += missing_barrier_shows(all[i], orders[order]);
        ck_assert_int_gt(shown, 0);
    }
}
END_TEST

/* ThreadSanitizer sees what no value shows. */
START_TEST(races) {
    if (!CS_TSAN) return;
    cs_dies(make_plain, CS_MISSING_BARRIER, "", "data race");
    cs_dies(make_plain, CS_MISSING_SECOND_BARRIER, "", "data race");
    cs_dies(make_plain, CS_NO_ATOMIC, "", "data race");
    cs_dies(make_plain, CS_BLOCKS_WITHOUT_ATOMIC, "CUSIM_RACE=grid", "data race");
}
END_TEST

static void (*const child_tasks[CHILD_TASKS])(int at) = {
    make_plain, make_out_of_bounds, make_shared_overflow,   make_fixed_overflow, touch_on_host,
    use_freed,  other_device,       cs_write_staging_early, cs_two_streams};

static void add(TCase *tc) {
    tcase_add_loop_test(tc, every_thread_once, 0, ORDERS);
    tcase_add_loop_test(tc, shared_memory_and_shuffles, 0, ORDERS);
    tcase_add_loop_test(tc, warp_operations, 0, ORDERS);
    tcase_add_loop_test(tc, atomics, 0, ORDERS);
    tcase_add_test(tc, half_precision);
    tcase_add_test(tc, threads_that_do_not_meet);
    tcase_add_test(tc, reports_name_the_place);
    tcase_add_test(tc, uninitialised_shared);
    tcase_add_test(tc, outside_of_a_buffer);
    tcase_add_test(tc, outside_of_shared_memory);
    tcase_add_test(tc, memory_of_others);
    tcase_add_test(tc, stack_is_full);
    tcase_add_test(tc, misaligned);
    tcase_add_test(tc, missing_barriers);
    tcase_add_test(tc, races);
    cs_add_runtime(tc);
    cs_add_cublas(tc);
}

int main(int argc, char **argv) {
    const int child = argc == 5 && strcmp(argv[1], "--child") == 0;
    child_argv = argv;
    return kit_main("cusim", child ? add_child : add, argc, argv);
}
