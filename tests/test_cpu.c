/* The cpu backend beyond its ops: threads that are asked for and used, memory accounts, ranges,
 * products called from several threads at once; halves at every bit pattern and at sizes past the
 * kernels' slices. */
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
    kit_fails(ops->fill(dev, NULL, buf, 65, 0, 0), BT_EINTERNAL, "not inside");
    ops->free(dev, buf);
    ops->free(dev, NULL);
    bti_device_close(dev);
}
END_TEST

START_TEST(bytes_are_moved) {
    bt_dev *dev = open_cpu(1);
    const bt_dev_ops *ops = dev->ops;
    bt_buf *buf = NULL;
    char in[64], out[64];
    for (int i = 0; i < 64; i++) in[i] = (char)i;
    kit_ok(ops->alloc(dev, 64, &buf));
    kit_ok(ops->fill(dev, NULL, buf, 0, 64, 9));
    kit_ok(ops->upload(dev, NULL, buf, 8, in + 1, 16));
    kit_ok(ops->fill(dev, NULL, buf, 20, 1, 7));
    kit_ok(ops->download(dev, NULL, out, buf, 4, 60));
    for (int i = 4; i < 64; i++) {
        int want = i == 20 ? 7 : i < 8 || i >= 24 ? 9 : i - 7;
        ck_assert_msg(out[i - 4] == want, "byte %d is %d, not %d", i, out[i - 4], want);
    }
    ops->free(dev, buf);
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

/* The library's buffers do not grow with a product's rows: what warming sees holds for longer ones,
 * such as the gradient of a large output layer. */
START_TEST(many_rows_keep_no_more) {
    enum { ROWS = 160000, INNER = 384, COLS = 64 };
    bt_dev *dev = open_cpu(0);
    bt_dev_info before, after;
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.alpha = 1, .trans_a = 1}};
    for (int64_t rows = 4096 + 1024 * (int64_t)dev->info.threads;; rows = ROWS) {
        c.t[BT_GEMM_A] = (bt_view){NULL, 0, INNER, rows, rows, BT_F32};
        c.t[BT_GEMM_B] = (bt_view){NULL, 0, INNER, COLS, COLS, BT_F32};
        c.t[BT_GEMM_C] = (bt_view){NULL, 0, rows, COLS, COLS, BT_F32};
        kit_ok(dev->ops->warm(dev, &c, 1));
        kit_ok(dev->ops->query(dev, rows == ROWS ? &after : &before));
        if (rows == ROWS) break;
    }
    ck_assert_msg(after.runtime_bytes < before.runtime_bytes + (16u << 20),
                  "runtime grew from %llu to %llu", (unsigned long long)before.runtime_bytes,
                  (unsigned long long)after.runtime_bytes);
    bti_device_close(dev);
}
END_TEST

/* What there is no room for is left out. */
START_TEST(warming_beyond_memory) {
    bt_dev *dev = open_cpu(0);
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.alpha = 1}};
    for (int i = 0; i < 3; i++) c.t[i] = (bt_view){NULL, 0, 1 << 21, 1 << 21, 1 << 21, BT_F32};
    kit_ok(dev->ops->warm(dev, &c, 1));
    bti_device_close(dev);
}
END_TEST

/* ---- halves (ck_assert marks every pass: too slow for each of a million numbers) --------------
 */

static const bt_dtype half_types[] = {BT_F16, BT_BF16};
/* Instruction sets; NULL: the best that this processor has. */
static const char *const isas[] = {"base", "avx2", NULL};

static bt_dev *open_isa(const char *isa) {
    if (isa) setenv("BANTAM_CPU_ISA", isa, 1);
    bt_dev *dev = open_cpu(0);
    unsetenv("BANTAM_CPU_ISA");
    return dev;
}

static bt_view new_view(bt_dev *dev, bt_dtype type, int64_t rows, int64_t cols) {
    bt_view v = {NULL, 0, rows, cols, cols, type};
    kit_ok(dev->ops->alloc(dev, (uint64_t)(rows * cols) * bti_dtype_size(type), &v.buf));
    return v;
}

static uint64_t bytes_of(bt_view v) {
    return (uint64_t)(v.rows * v.cols) * bti_dtype_size(v.dtype);
}

static void put(bt_dev *dev, bt_view v, const void *p) {
    kit_ok(dev->ops->upload(dev, NULL, v.buf, 0, p, bytes_of(v)));
}

static void *get(bt_dev *dev, bt_view v) {
    void *p = malloc(bytes_of(v));
    ck_assert_ptr_nonnull(p);
    kit_ok(dev->ops->download(dev, NULL, p, v.buf, 0, bytes_of(v)));
    return p;
}

/* Runs a call with scratch of its own. */
static void run_call(bt_dev *dev, bt_call *c) {
    uint64_t ws = bti_op_ws_bytes(dev->driver->planning, &dev->info, c);
    if (ws) c->ws = new_view(dev, BT_F32, 1, (int64_t)(ws / 4));
    kit_ok(bti_op_run(dev, NULL, c));
    if (ws) dev->ops->free(dev, c->ws.buf);
}

/* x as another type. */
static void *converted(bt_dev *dev, const void *x, bt_dtype from, bt_dtype to, int64_t n) {
    bt_call c = {.op = BT_OP_AXPBY, .p.axpby = {1, 0}};
    c.t[BT_AXPBY_X] = new_view(dev, from, 1, n);
    c.t[BT_AXPBY_Y] = new_view(dev, to, 1, n);
    put(dev, c.t[BT_AXPBY_X], x);
    run_call(dev, &c);
    void *y = get(dev, c.t[BT_AXPBY_Y]);
    for (int i = 0; i < 2; i++) dev->ops->free(dev, c.t[i].buf);
    return y;
}

static int is_nan_bits(uint32_t u) { return (u & 0x7FFFFFFFu) > 0x7F800000u; }

/* Every half there is, as fp32. A NaN stays one; that it signals may be lost. */
static void check_widening(bt_dev *dev, bt_dtype type) {
    enum { ALL = 65536 };
    uint16_t *x = malloc(ALL * sizeof *x);
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)i;
    uint32_t *y = converted(dev, x, type, BT_F32, ALL);
    for (int i = 0; i < ALL; i++) {
        float f = type == BT_F16 ? bti_f16_to_f32(x[i]) : bti_bf16_to_f32(x[i]);
        uint32_t want;
        memcpy(&want, &f, 4);
        if (y[i] != want && !(is_nan_bits(want) && y[i] == (want | 0x400000u)))
            ck_abort_msg("%s %04x is %08x, not %08x", bti_dtype_name(type), i, y[i], want);
    }
    free(x);
    free(y);
}

/* fp32 numbers: around every half, around the middle between it and the next, and at random. */
static uint32_t *hard_numbers(bt_dtype type, int64_t *count) {
    enum { ALL = 65536, AROUND = 6, RANDOM = 300001 };
    uint32_t *u = malloc((ALL * AROUND + RANDOM) * sizeof *u);
    int64_t n = 0;
    for (int i = 0; i < ALL; i++) {
        float f = type == BT_F16 ? bti_f16_to_f32((uint16_t)i) : bti_bf16_to_f32((uint16_t)i);
        uint32_t at, middle = type == BT_F16 ? 0x1000u : 0x8000u;
        memcpy(&at, &f, 4);
        for (uint32_t k = 0; k < 3; k++) u[n++] = at + k - 1, u[n++] = at + middle + k - 1;
    }
    for (int i = 0; i < RANDOM; i++) u[n++] = bti_philox(9, (uint32_t)i, 0, 0, 0).v[0];
    *count = n;
    return u;
}

static void check_narrowing(bt_dev *dev, bt_dtype type) {
    int64_t n;
    uint32_t *u = hard_numbers(type, &n);
    uint16_t *y = converted(dev, u, BT_F32, type, n);
    for (int64_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, &u[i], 4);
        uint16_t want = type == BT_F16 ? bti_f32_to_f16(f) : bti_f32_to_bf16(f);
        if (y[i] != want)
            ck_abort_msg("%08x is %s %04x, not %04x", u[i], bti_dtype_name(type), y[i], want);
    }
    free(u);
    free(y);
}

/* A product with the unit matrix shows what wide operands are rounded to. */
static void check_rounding(bt_dev *dev, bt_dtype type) {
    enum { SIDE = 19 };
    int64_t n;
    uint32_t *u = hard_numbers(type, &n);
    float unit[SIDE * SIDE] = {0};
    for (int i = 0; i < SIDE; i++) unit[i * SIDE + i] = 1;
    for (int64_t i = 0; i < n; i++) /* what is infinite in half would make its row NaN */
        if ((u[i] & 0x7FFFFFFFu) >= (type == BT_F16 ? 0x477FF000u : 0x7F7F8000u)) u[i] = 0;
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.alpha = 1, .round = type}};
    c.t[BT_GEMM_A] = new_view(dev, BT_F32, n / SIDE, SIDE);
    c.t[BT_GEMM_B] = new_view(dev, BT_F32, SIDE, SIDE);
    c.t[BT_GEMM_C] = new_view(dev, BT_F32, n / SIDE, SIDE);
    put(dev, c.t[BT_GEMM_A], u);
    put(dev, c.t[BT_GEMM_B], unit);
    run_call(dev, &c);
    float *y = get(dev, c.t[BT_GEMM_C]);
    for (int64_t i = 0; i < n / SIDE * SIDE; i++) {
        float f;
        memcpy(&f, &u[i], 4);
        f = type == BT_F16 ? bti_f16_to_f32(bti_f32_to_f16(f))
                           : bti_bf16_to_f32(bti_f32_to_bf16(f));
        if (!(y[i] == f))
            ck_abort_msg("%08x in a product in %s is %.9g, not %.9g", u[i], bti_dtype_name(type),
                         (double)y[i], (double)f);
    }
    for (int i = 0; i < 3; i++) dev->ops->free(dev, c.t[i].buf);
    free(u);
    free(y);
}

START_TEST(halves_bit_for_bit) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        bt_dev *dev = open_isa(isas[i]);
        for (int t = 0; t < 2; t++) {
            check_widening(dev, half_types[t]);
            check_narrowing(dev, half_types[t]);
            check_rounding(dev, half_types[t]);
        }
        bti_device_close(dev);
    }
}
END_TEST

/* A product in `type` of whole numbers, exact in any order of sums. `wide`: bit 1 << i: operand i
 * is fp32. */
static void *whole_product(bt_dev *dev, int trans, int stable, bt_dtype type, int wide) {
    enum { M = 1090, N = 1070, K = 1105 };
    const int ta = trans & 1, tb = trans >> 1;
    const int64_t side[3][2] = {{ta ? K : M, ta ? M : K}, {tb ? N : K, tb ? K : N}, {M, N}};
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.alpha = 1, .beta = 1, .round = type}};
    c.p.gemm.trans_a = (uint8_t)ta;
    c.p.gemm.trans_b = (uint8_t)tb;
    c.p.gemm.stable_rows = (uint8_t)stable;
    for (int i = 0; i < 3; i++) {
        bt_view plain = new_matrix(dev, side[i][0], side[i][1]);
        fill_whole(dev, plain, i);
        c.t[i] = plain;
        if (type == BT_F32 || wide >> i & 1) continue;
        bt_call to = {.op = BT_OP_AXPBY, .p.axpby = {1, 0}};
        to.t[BT_AXPBY_X] = plain;
        to.t[BT_AXPBY_Y] = c.t[i] = new_view(dev, type, side[i][0], side[i][1]);
        run_call(dev, &to);
        dev->ops->free(dev, plain.buf);
    }
    run_call(dev, &c);
    void *y = get(dev, c.t[BT_GEMM_C]);
    for (int i = 0; i < 3; i++) dev->ops->free(dev, c.t[i].buf);
    return y;
}

/* More rows, columns and terms than a slice has: fp32's values, rounded once where C is half. */
START_TEST(products_past_a_slice) {
    enum { CELLS = 1090 * 1070 };
    bt_dev *dev = open_cpu(0);
    for (int trans = 0; trans < 4; trans++) {
        float *want = whole_product(dev, trans, 0, BT_F32, 0);
        for (int run = 0; run < 8; run++) {
            bt_dtype type = half_types[run & 1];
            int wide = (run >> 1) + 2 * (trans % 2), stable = trans == 2 && run >= 4;
            void *got = whole_product(dev, trans, stable, type, wide);
            bt_dtype held = wide >> BT_GEMM_C & 1 ? BT_F32 : type;
            for (int64_t i = 0; i < CELLS; i++) {
                uint64_t cell = 0;
                bti_store(&cell, held, 0, (double)want[i]);
                if (!(bti_load(got, held, i) == bti_load(&cell, held, 0)))
                    ck_abort_msg("orientation %d, %s, wide %d, stable %d, element %lld: %g, not %g",
                                 trans, bti_dtype_name(type), wide, stable, (long long)i,
                                 bti_load(got, held, i), bti_load(&cell, held, 0));
            }
            free(got);
        }
        free(want);
    }
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
    tcase_add_test(tc, many_rows_keep_no_more);
    tcase_add_test(tc, warming_beyond_memory);
    tcase_add_test(tc, halves_bit_for_bit);
    tcase_add_test(tc, products_past_a_slice);
}

int main(int argc, char **argv) { return kit_main("cpu", add, argc, argv); }
