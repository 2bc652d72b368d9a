/* The cpu backend beyond its ops: threads that are asked for and used, memory accounts, ranges, and
 * products called from several threads at once. */
#include "tests/kit.h"

#include <pthread.h>
#include <unistd.h>

#include "backends/registry.h"
#include "core/ops/ops.h"

static char notices[4096];

static void keep_log(void *user, bt_log_level level, const char *text) {
    (void)user;
    if (level != BT_LOG_WARN) return;
    size_t n = strlen(notices);
    snprintf(notices + n, sizeof notices - n, "%s\n", text);
}

static bt_dev *open_cpu(int threads) {
    bt_open_options options = {.threads = threads};
    bt_dev *dev = NULL;
    notices[0] = 0;
    bt_set_log(keep_log, NULL);
    kit_ok(bti_device_open("cpu", &options, &dev));
    bt_set_log(NULL, NULL);
    return dev;
}

static bt_view new_matrix(bt_dev *dev, int64_t rows, int64_t cols) {
    bt_view v = {NULL, 0, rows, cols, cols, BT_F32};
    kit_ok(dev->ops->alloc(dev, (uint64_t)(rows * cols) * 4, &v.buf));
    return v;
}

static void fill_whole(bt_dev *dev, bt_view v, int salt) {
    size_t n = (size_t)(v.rows * v.cols);
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)((int)((i * 7 + i / 31 + (size_t)salt) % 13) - 6);
    kit_ok(dev->ops->upload(dev, NULL, v.buf, 0, p, n * sizeof *p));
    free(p);
}

/* ---- threads (case G7) ----------------------------------------------------------------------- */

START_TEST(threads_are_what_was_asked) {
    unsetenv("OMP_NUM_THREADS");
    bt_dev *all = open_cpu(0);
    const uint32_t usable = all->info.threads;
    ck_assert_uint_ge(usable, 1);
    ck_assert_uint_le(usable, (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    ck_assert_str_eq(notices, "");
    bti_device_close(all);

    bt_dev *one = open_cpu(1);
    ck_assert_uint_eq(one->info.threads, 1);
    ck_assert_str_eq(notices, "");
    bti_device_close(one);

    setenv("OMP_NUM_THREADS", "1", 1); /* heeded, unless a number is asked for */
    bt_dev *wished = open_cpu(0), *asked = open_cpu((int)usable);
    ck_assert_uint_eq(wished->info.threads, 1);
    ck_assert_uint_eq(asked->info.threads, usable);
    bti_device_close(asked);
    bti_device_close(wished);
    unsetenv("OMP_NUM_THREADS");

    bt_dev *many = open_cpu(100000);
    ck_assert_uint_eq(many->info.threads, usable);
    ck_assert_msg(strstr(notices, "100000 threads") != NULL, "no notice of the cap: %s", notices);
    bti_device_close(many);
}
END_TEST

START_TEST(nonsense_is_refused) {
    bt_open_options options = {.threads = -1};
    bt_dev *dev = NULL;
    kit_fails(bti_device_open("cpu", &options, &dev), BT_EUSAGE, "-1 threads");
    kit_fails(bti_device_open("cpu:1", NULL, &dev), BT_EUSAGE, "cpu:0");
    ck_assert_ptr_null(dev);
}
END_TEST

typedef struct products {
    int threads, wrong;
} products;

/* Products of whole numbers on a device of one's own, each compared with the first. */
static void *multiply(void *user) {
    enum { SIDE = 199, RUNS = 40 };
    products *p = user;
    bt_open_options options = {.threads = p->threads};
    bt_dev *dev = NULL;
    p->wrong = RUNS;
    if (bti_device_open("cpu", &options, &dev) != BT_OK) return NULL;
    bt_call c = {.op = BT_OP_GEMM};
    for (int i = 0; i < 3; i++) {
        c.t[i] = new_matrix(dev, SIDE, SIDE);
        fill_whole(dev, c.t[i], i);
    }
    c.p.gemm.alpha = 1;
    float *first = calloc(SIDE * SIDE, 4), *now = calloc(SIDE * SIDE, 4);
    for (int run = 0; run < RUNS; run++) {
        if (bti_op_run(dev, NULL, &c) != BT_OK) continue;
        dev->ops->download(dev, NULL, run ? now : first, c.t[2].buf, 0, SIDE * SIDE * 4);
        int same = run == 0 || memcmp(first, now, SIDE * SIDE * 4) == 0;
        int64_t sum = 0; /* one entry by hand: row 3 of A, column 5 of B */
        for (int k = 0; k < SIDE; k++) {
            size_t ia = (size_t)(3 * SIDE + k), ib = (size_t)(k * SIDE + 5);
            sum += ((int)((ia * 7 + ia / 31) % 13) - 6) * ((int)((ib * 7 + ib / 31 + 1) % 13) - 6);
        }
        p->wrong -= same && first[3 * SIDE + 5] == (float)sum;
    }
    free(first);
    free(now);
    for (int i = 0; i < 3; i++) dev->ops->free(dev, c.t[i].buf);
    bti_device_close(dev);
    return NULL;
}

START_TEST(products_from_several_threads) {
    for (int callers = 1; callers <= 8; callers *= 2) {
        pthread_t id[8];
        products p[8];
        for (int i = 0; i < callers; i++) {
            p[i] = (products){.threads = i % 2}; /* all, one, all, one ... */
            ck_assert_int_eq(pthread_create(&id[i], NULL, multiply, &p[i]), 0);
        }
        for (int i = 0; i < callers; i++) {
            pthread_join(id[i], NULL);
            ck_assert_msg(p[i].wrong == 0, "%d wrong products of caller %d of %d", p[i].wrong, i,
                          callers);
        }
    }
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

START_TEST(buffers_are_not_runtime) {
    const uint64_t bytes = (uint64_t)96 << 20;
    bt_dev *dev = open_cpu(1);
    bt_dev_info before, after;
    bt_buf *buf = NULL;
    kit_ok(dev->ops->query(dev, &before));
    ck_assert(before.runtime_bytes > 0);
    ck_assert(before.free_bytes > 0 && before.free_bytes <= before.total_bytes);
    ck_assert(before.max_alloc == 0 && before.host_memory == 1);
    kit_ok(dev->ops->alloc(dev, bytes, &buf));
    kit_ok(dev->ops->fill(dev, NULL, buf, 0, bytes, 1));
    kit_ok(dev->ops->query(dev, &after));
    ck_assert_msg(after.runtime_bytes < before.runtime_bytes + bytes / 4,
                  "a buffer counts as runtime: %llu before, %llu after",
                  (unsigned long long)before.runtime_bytes,
                  (unsigned long long)after.runtime_bytes);
    /* Memory that is no buffer does count. */
    volatile char *other = malloc(bytes);
    for (uint64_t i = 0; i < bytes; i += 1024) other[i] = 1;
    kit_ok(dev->ops->query(dev, &after));
    ck_assert_msg(after.runtime_bytes > before.runtime_bytes + bytes / 2,
                  "other memory does not count as runtime: %llu before, %llu after",
                  (unsigned long long)before.runtime_bytes,
                  (unsigned long long)after.runtime_bytes);
    free((void *)other);
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}
END_TEST

START_TEST(too_much_is_refused) {
    bt_dev *dev = open_cpu(1);
    bt_buf *buf = NULL;
    void *host = NULL;
    kit_fails(dev->ops->alloc(dev, (uint64_t)1 << 60, &buf), BT_ENOMEM, "cannot be allocated");
    kit_fails(dev->ops->alloc(dev, UINT64_MAX, &buf), BT_ENOMEM, "cannot be allocated");
    kit_fails(dev->ops->host_alloc(dev, UINT64_MAX, &host), BT_ENOMEM, "cannot be allocated");
    ck_assert(buf == NULL && host == NULL);
    bti_device_close(dev);
}
END_TEST

START_TEST(ranges_are_checked) {
    bt_dev *dev = open_cpu(1);
    const bt_dev_ops *ops = dev->ops;
    bt_buf *buf = NULL;
    char bytes[64] = {0};
    kit_ok(ops->alloc(dev, 64, &buf));
    kit_ok(ops->upload(dev, NULL, buf, 0, bytes, 64));
    kit_fails(ops->upload(dev, NULL, buf, 1, bytes, 64), BT_EINTERNAL, "not inside");
    kit_fails(ops->download(dev, NULL, bytes, buf, UINT64_MAX, 2), BT_EINTERNAL, "not inside");
    kit_fails(ops->copy(dev, NULL, buf, 0, buf, 33, 32), BT_EINTERNAL, "not inside");
    kit_fails(ops->fill(dev, NULL, buf, 65, 0, 0), BT_EINTERNAL, "not inside");
    ops->free(dev, buf);
    ops->free(dev, NULL);
    bti_device_close(dev);
}
END_TEST

START_TEST(bytes_are_moved) {
    bt_dev *dev = open_cpu(1);
    const bt_dev_ops *ops = dev->ops;
    bt_buf *a = NULL, *b = NULL;
    char in[64], out[64];
    for (int i = 0; i < 64; i++) in[i] = (char)i;
    kit_ok(ops->alloc(dev, 64, &a));
    kit_ok(ops->alloc(dev, 64, &b));
    kit_ok(ops->upload(dev, NULL, a, 0, in, 64));
    kit_ok(ops->fill(dev, NULL, b, 0, 64, 9));
    kit_ok(ops->copy(dev, NULL, b, 8, a, 1, 16));
    kit_ok(ops->copy(dev, NULL, b, 12, b, 8, 16)); /* over itself */
    kit_ok(ops->download(dev, NULL, out, b, 0, 64));
    for (int i = 0; i < 64; i++) {
        int want = i < 8 ? 9 : i < 12 ? i - 7 : i < 28 ? i - 11 : 9;
        ck_assert_msg(out[i] == want, "byte %d is %d, not %d", i, out[i], want);
    }
    ops->free(dev, a);
    ops->free(dev, b);
    bti_device_close(dev);
}
END_TEST

/* Warming leaves nothing behind but what the library keeps. */
START_TEST(warming_gives_its_scratch_back) {
    bt_dev *dev = open_cpu(0);
    bt_dev_info before, after;
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.alpha = 1}};
    for (int i = 0; i < 3; i++) c.t[i] = (bt_view){NULL, 0, 2000, 2000, 2000, BT_F32};
    kit_ok(dev->ops->warm(dev, &c, 1));
    kit_ok(dev->ops->query(dev, &before));
    for (int i = 0; i < 4; i++) kit_ok(dev->ops->warm(dev, &c, 1));
    kit_ok(dev->ops->query(dev, &after));
    ck_assert_msg(after.runtime_bytes < before.runtime_bytes + (8u << 20),
                  "runtime grew from %llu to %llu", (unsigned long long)before.runtime_bytes,
                  (unsigned long long)after.runtime_bytes);
    bti_device_close(dev);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, threads_are_what_was_asked);
    tcase_add_test(tc, nonsense_is_refused);
    tcase_add_test(tc, products_from_several_threads);
    tcase_add_test(tc, buffers_are_not_runtime);
    tcase_add_test(tc, too_much_is_refused);
    tcase_add_test(tc, ranges_are_checked);
    tcase_add_test(tc, bytes_are_moved);
    tcase_add_test(tc, warming_gives_its_scratch_back);
}

int main(int argc, char **argv) { return kit_main("cpu", add, argc, argv); }
