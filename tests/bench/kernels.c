/* Micro-benchmarks of the CPU kernels: GFLOP/s of products and attention, bytes a second of the
 * rest beside a plain copy.
 *
 *     bench_kernels [base|avx2|avx512] [threads] [gemm|decode|attention|rows|loss|optimiser|all]
 *                   [fp32|fp16|bf16]
 *
 * Links the backend's objects, so that each instruction set can be called. Every line is the best
 * of several runs. With a half type each line has the ratio to fp32's seconds, taken in turn: above
 * 1 the half is slower. Not part of ctest. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cpu/kernels.h"

const bt_driver *bt_module_driver(void);

static bt_status host_fail(bt_status status, const char *fmt, va_list ap) {
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    return status;
}

static void host_log(bt_log_level level, const char *fmt, va_list ap) {
    (void)level;
    host_fail(BT_OK, fmt, ap);
}

static bt_dev *dev;
static bt_buf *memory, *halves, *scratch;
static size_t used;
static bt_dtype precision = BT_F32;
static uint32_t wide; /* operands of products that stay fp32, bit 1 << i */
static double ratio;  /* seconds of the last call in `precision` over those of fp32 */

static double now(void) {
    struct timespec t;
    clock_gettime(dev && dev->info.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "bench_kernels: %s failed\n", what);
    exit(1);
}

/* A matrix of small numbers in fresh memory. */
static bt_view matrix(int64_t rows, int64_t cols) {
    static uint32_t state = 1;
    bt_view v = {memory, used, rows, cols, cols, BT_F32};
    used += ((size_t)(rows * cols) * 4 + 63) / 64 * 64;
    need(used <= memory->bytes, "memory");
    float *p = btcpu_f32(&v);
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        p[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    return v;
}

static bt_view table(int64_t rows, int64_t cols) {
    bt_view v = matrix(rows, cols);
    v.dtype = BT_I32;
    memset(btcpu_at(&v), 0, (size_t)(rows * cols) * 4);
    return v;
}

static void forget(void) { used = 0; }

/* Bytes of an element of data. */
static double element(void) { return (double)btcpu_size(precision); }

/* Which operands may be half. */
enum { TYPE_DATA = 1, TYPE_ANY = 1, TYPE_ACC = 0, TYPE_INT = 0, TYPE_CODE = 0 };
static const char may_be_half[BT_OP_COUNT][BT_MAX_OPERANDS] = {
#define BT_ARG(name, NAME, arg, ARG, role, need, type, alias) \
    [BT_OP_##NAME][BT_##NAME##_##ARG] = TYPE_##type,
#include "core/ops/op_list.inc"
};

/* `v` as fp32, beside it as halves. */
static bt_view as_half(bt_view v) {
    bt_call c = {.op = BT_OP_AXPBY, .t = {v, v}, .p.axpby = {1, 0}};
    c.t[1].buf = halves;
    c.t[1].dtype = precision;
    if (btcpu_has(&v)) need(dev->op[BT_OP_AXPBY](dev, NULL, &c) == BT_OK, "axpby");
    return c.t[1];
}

/* The same call on halves. */
static bt_call as_half_call(const bt_call *call) {
    bt_call c = *call;
    if (c.op == BT_OP_GEMM) c.p.gemm.round = precision;
    for (int i = 0; i < BT_MAX_OPERANDS; i++)
        if (may_be_half[c.op][i] && !(c.op == BT_OP_GEMM && wide >> i & 1))
            c.t[i] = as_half(c.t[i]);
    return c;
}

static double once(bt_call *call) {
    uint64_t ws = dev->driver->planning->ws_bytes(&dev->info, call);
    need(ws <= scratch->bytes, "workspace");
    call->ws = (bt_view){scratch, 0, 1, (int64_t)(ws / 4), (int64_t)(ws / 4), BT_F32};
    double t = now();
    need(dev->op[call->op](dev, NULL, call) == BT_OK, "op");
    return now() - t;
}

/* Best seconds of a call on data of `precision`; sets `ratio`. */
static double seconds(bt_call *call) {
    const int pair = btcpu_is_half(precision);
    bt_call half = pair ? as_half_call(call) : *call;
    double best[2] = {1e9, 1e9}, start = now();
    for (int i = 0; i < 3 || (now() - start < (pair ? 0.6 : 0.3) && i < 1000); i++)
        for (int k = 0; k <= pair; k++) {
            double t = once(k ? &half : call);
            if (t < best[k]) best[k] = t;
        }
    ratio = best[pair] / best[0];
    return best[pair];
}

static void end_line(void) {
    if (btcpu_is_half(precision)) printf("  %4.2f of fp32", ratio);
    printf("\n");
}

enum { FIRST = 1 << BT_GEMM_A, WEIGHTS = 1 << BT_GEMM_B, RESULT = 1 << BT_GEMM_C };

static void gemm(int64_t m, int64_t n, int64_t k, int ta, int tb, uint32_t wide_operands) {
    forget();
    wide = wide_operands;
    bt_call c = {.op = BT_OP_GEMM};
    c.t[BT_GEMM_A] = ta ? matrix(k, m) : matrix(m, k);
    c.t[BT_GEMM_B] = tb ? matrix(n, k) : matrix(k, n);
    c.t[BT_GEMM_C] = matrix(m, n);
    c.p.gemm.alpha = 1;
    c.p.gemm.trans_a = (uint8_t)ta;
    c.p.gemm.trans_b = (uint8_t)tb;
    double s = seconds(&c);
    printf("gemm %5lld x %5lld x %5lld %c%c  %8.1f us  %7.1f GFLOP/s", (long long)m, (long long)n,
           (long long)k, ta ? 'T' : 'N', tb ? 'T' : 'N', s * 1e6,
           2e-9 * (double)m * (double)n * (double)k / s);
    end_line();
}

static bt_call product(int64_t m, int64_t n, int64_t k) {
    bt_call c = {.op = BT_OP_GEMM, .t = {matrix(m, k), matrix(n, k), matrix(m, n)}};
    c.p.gemm.alpha = c.p.gemm.trans_b = 1;
    return c;
}

/* A decoding product whose rows stand alone, beside the library's for the same rows at once, and in
 * tiles of 32. */
static void decode(int64_t m, int64_t n, int64_t k) {
    forget();
    const int64_t tiles = (m + 31) / 32;
    bt_call rows = product(m, n, k), tile = rows, all = rows;
    wide = WEIGHTS;
    rows.p.gemm.stable_rows = 1;
    tile.t[BT_GEMM_A] = matrix(32, k);
    tile.t[BT_GEMM_C] = matrix(32, n);
    double s[3] = {1e9, 1e9, 1e9};
    for (int round = 0; round < 3; round++) {
        const double got[3] = {seconds(&rows), seconds(&all), seconds(&tile) * (double)tiles};
        for (int i = 0; i < 3; i++) s[i] = got[i] < s[i] ? got[i] : s[i];
    }
    seconds(&rows); /* its ratio */
    const double work = 2e-9 * (double)m * (double)n * (double)k;
    printf("decode %3lld x %5lld x %4lld  %8.1f us %6.1f GFLOP/s %5.1f GB/s  library %8.1f us, in "
           "tiles %8.1f us, ratios %.2f %.2f",
           (long long)m, (long long)n, (long long)k, s[0] * 1e6, work / s[0],
           4e-9 * (double)n * (double)k / s[0], s[1] * 1e6, s[2] * 1e6, s[1] / s[0], s[2] / s[0]);
    end_line();
}

static void attention(int64_t seqs, int64_t len, int heads, int64_t d, int causal, float p) {
    forget();
    const int64_t rows = seqs * len, cols = heads * d;
    bt_call f = {.op = BT_OP_ATTN_FWD}, b = {.op = BT_OP_ATTN_BWD};
    bt_view q = matrix(rows, cols), k = matrix(rows, cols), v = matrix(rows, cols);
    bt_view seq = table(seqs, BT_SEQ_COLS), o = matrix(rows, cols), lse = matrix(rows, heads);
    int32_t *s = btcpu_at(&seq);
    for (int64_t i = 0; i < seqs; i++, s += BT_SEQ_COLS) {
        s[BT_SEQ_QUERY_ROW] = s[BT_SEQ_KEY_ROW] = (int32_t)(i * len);
        s[BT_SEQ_QUERY_COUNT] = s[BT_SEQ_KEY_COUNT] = (int32_t)len;
        s[BT_SEQ_PLACE] = (int32_t)i;
    }
    f.t[BT_ATTN_FWD_Q] = b.t[BT_ATTN_BWD_Q] = q;
    f.t[BT_ATTN_FWD_K] = b.t[BT_ATTN_BWD_K] = k;
    f.t[BT_ATTN_FWD_V] = b.t[BT_ATTN_BWD_V] = v;
    f.t[BT_ATTN_FWD_SEQ] = b.t[BT_ATTN_BWD_SEQ] = seq;
    f.t[BT_ATTN_FWD_O] = b.t[BT_ATTN_BWD_O] = o;
    f.t[BT_ATTN_FWD_LSE] = b.t[BT_ATTN_BWD_LSE] = lse;
    b.t[BT_ATTN_BWD_DO] = matrix(rows, cols);
    b.t[BT_ATTN_BWD_DQ] = matrix(rows, cols);
    b.t[BT_ATTN_BWD_DK] = matrix(rows, cols);
    b.t[BT_ATTN_BWD_DV] = matrix(rows, cols);
    f.p.attn = b.p.attn = (bt_attn_params){
        heads, (uint8_t)causal, 0.125, {.seed = 7, .update = 1, .site = 2, .p = p}};
    double pairs =
        (double)seqs * (causal ? (double)len * (double)(len + 1) / 2 : (double)len * (double)len);
    double work = 2e-9 * pairs * (double)cols;
    for (int back = 0; back < 2; back++) {
        double t = seconds(back ? &b : &f);
        printf("attention %4lld x %4lld, %d x %2lld%s, p %.1f  %s %8.1f us %6.1f GFLOP/s",
               (long long)seqs, (long long)len, heads, (long long)d, causal ? " causal" : "",
               (double)p, back ? "bwd" : "fwd", t * 1e6, (back ? 5 : 2) * work / t);
        end_line();
    }
}

static double copy_rate;

static void report(const char *name, bt_call *call, double bytes) {
    double s = seconds(call);
    if (copy_rate == 0) copy_rate = bytes / s;
    printf("%-34s %9.1f us  %6.2f GB/s  %3.0f %% of a copy", name, s * 1e6, bytes / s * 1e-9,
           100 * bytes / s / copy_rate);
    end_line();
}

/* The rate of a copy of as much memory, to compare with. */
static void report_copy(bt_view x, bt_view y) {
    bt_call copy = {.op = BT_OP_AXPBY, .t = {x, y}, .p.axpby = {1.5, 0}};
    copy_rate = 0;
    report("copy (axpby, b = 0)", &copy, 2 * element() * (double)x.rows * (double)x.cols);
}

static bt_view positions(int64_t rows) {
    bt_view v = table(rows, 2);
    int32_t *p = btcpu_at(&v);
    for (int64_t i = 0; i < rows; i++)
        p[2 * i] = (int32_t)(i / 20), p[2 * i + 1] = (int32_t)(i % 20);
    return v;
}

static void row_wise(int64_t rows, int64_t cols, float p) {
    const double one = element() * (double)rows * (double)cols;
    const bt_drop drop = {.seed = 7, .update = 1, .site = 2, .p = p};
    printf("rows %lld x %lld, dropout %.1f\n", (long long)rows, (long long)cols, (double)p);
    forget();
    bt_view x = matrix(rows, cols), y = matrix(rows, cols), z = matrix(rows, cols);
    bt_view r = matrix(rows, cols), bias = matrix(1, cols), gamma = matrix(1, cols);
    bt_view beta = matrix(1, cols), stats = matrix(rows, 2), pos = positions(rows);
    report_copy(x, y);
    static const char *const acts[] = {"none", "relu", "gelu"};
    for (int act = 0; act < 3; act++) {
        char name[64];
        bt_call f = {.op = BT_OP_BIAS_ACT_FWD, .t = {x, bias, pos, y}};
        f.p.bias_act = (bt_bias_act_params){(bt_act)act, drop, 0};
        snprintf(name, sizeof name, "bias_act_fwd %s", acts[act]);
        report(name, &f, 2 * one);
        bt_call b = {.op = BT_OP_BIAS_ACT_BWD, .t = {z, x, bias, y, pos, r, beta}};
        b.p.bias_act = (bt_bias_act_params){(bt_act)act, drop, 0};
        snprintf(name, sizeof name, "bias_act_bwd %s", acts[act]);
        report(name, &b, (act ? 3 : 2) * one);
    }
    bt_call nf = {.op = BT_OP_NORM_FWD, .t = {x, gamma, beta, y, stats}, .p.norm = {1e-5, 0}};
    report("norm_fwd", &nf, 2 * one);
    bt_call nb = {
        .op = BT_OP_NORM_BWD, .t = {z, x, stats, gamma, {0}, y, bias, beta}, .p.norm = {1e-5, 0}};
    report("norm_bwd", &nb, 3 * one);
    bt_call af = {.op = BT_OP_ADD_NORM_FWD, .t = {x, bias, z, pos, gamma, beta, r, y, stats}};
    af.p.add_norm = (bt_add_norm_params){1e-5, 0, drop};
    report("add_norm_fwd", &af, 4 * one);
    bt_call ab = {.op = BT_OP_ADD_NORM_BWD,
                  .t = {z, r, stats, gamma, {0}, pos, x, y, bias, beta, gamma}};
    ab.p.add_norm = (bt_add_norm_params){1e-5, 0, drop};
    report("add_norm_bwd", &ab, 4 * one);
}

static void loss(int64_t rows, int64_t cols) {
    forget();
    const double one = 4.0 * (double)rows * (double)cols;
    bt_call c = {.op = BT_OP_CROSS_ENTROPY,
                 .t = {matrix(rows, cols), matrix(1, cols), table(rows, 1), matrix(rows, 2)}};
    c.p.cross_entropy = (bt_cross_entropy_params){0.1, 1e-3, 1};
    printf("vocabulary %lld, %lld rows\n", (long long)cols, (long long)rows);
    report_copy(matrix(rows, cols), c.t[0]);
    report("cross_entropy", &c, 2 * one);
    bt_call k = {.op = BT_OP_TOPK, .t = {matrix(rows, cols), {0}, matrix(rows, 8), table(rows, 8)}};
    memset(k.p.topk.forbid, 255, sizeof k.p.topk.forbid);
    report("topk 8", &k, one);
}

static void optimiser(int64_t n) {
    forget();
    bt_view g = matrix(1, n), w = matrix(1, n), m = matrix(1, n), v = matrix(1, n);
    bt_view s = matrix(1, BT_SCALAR_COUNT),
            part = matrix((n + BT_SUMSQ_BLOCK - 1) / BT_SUMSQ_BLOCK, 2);
    float *ps = btcpu_f32(&s), *pv = btcpu_f32(&v);
    for (int64_t i = 0; i < n; i++) pv[i] *= pv[i];
    for (int i = 0; i < BT_SCALAR_COUNT; i++) ps[i] = 0.5f;
    ps[BT_SCALAR_SKIP] = 0;
    ps[BT_SCALAR_LR] = 1e-6f;
    printf("parameters %lld\n", (long long)n);
    report_copy(g, m);
    bt_call a = {.op = BT_OP_ADAMW, .t = {g, s, w, m, v}, .p.adamw = {0.9, 0.98, 1e-9, 0.01, 1, 0}};
    report("adamw", &a, 28.0 * (double)n);
    /* A table of 512 columns, one row in 100 with a gradient. */
    const int64_t rows = n / 512, kept = rows / 100;
    const bt_view *state[] = {&w, &m, &v};
    bt_call r = {.op = BT_OP_ADAMW_ROWS, .t = {g, table(kept, 1), s}, .p.adamw = a.p.adamw};
    r.t[0].rows = kept;
    for (int i = 0; i < 3; i++) r.t[3 + i] = *state[i];
    for (int i = 0; i < 6; i++)
        if (i != 1 && i != 2) r.t[i].cols = r.t[i].ld = 512;
    for (int i = 3; i < 6; i++) r.t[i].rows = rows;
    int32_t *index = btcpu_at(&r.t[1]);
    for (int64_t k = 0; k < kept; k++) index[k] = (int32_t)(k * 100);
    report("adamw_rows", &r, 24.0 * (double)n);
    /* Codes in the same places as the moments; scales of 1. */
    const int64_t blocks = (n + BT_ADAMW8_BLOCK - 1) / BT_ADAMW8_BLOCK;
    bt_call e = {.op = BT_OP_ADAMW8,
                 .t = {g, {0}, s, w, m, matrix(1, blocks), v, matrix(1, blocks)},
                 .p.adamw = a.p.adamw};
    e.t[BT_ADAMW8_M].dtype = e.t[BT_ADAMW8_V].dtype = BT_U8;
    report("adamw8", &e, 16.0 * (double)n);
    bt_call q = {.op = BT_OP_SUMSQ, .t = {g, part}};
    report("sumsq", &q, 4.0 * (double)n);
}

/* Forward, backward to the input, backward to the weights; then the output layer's three. */
static void all_gemm(void) {
    static const int64_t shape[][2] = {{512, 512}, {2048, 512}, {512, 2048}};
    for (int i = 0; i < 3; i++) {
        const int64_t n = shape[i][0], k = shape[i][1];
        gemm(2048, n, k, 0, 1, WEIGHTS);
        gemm(2048, k, n, 0, 0, WEIGHTS);
        gemm(n, k, 2048, 1, 0, RESULT);
    }
    gemm(1024, 32100, 512, 0, 1, WEIGHTS | RESULT);
    gemm(1024, 512, 32100, 0, 0, WEIGHTS | FIRST);
    gemm(32100, 512, 1024, 1, 0, FIRST | RESULT);
    for (int64_t n = 8; n <= 128; n *= 2) gemm(n, n, n, 0, 1, WEIGHTS);
}

static void all_decode(void) {
    static const int64_t shape[][2] = {{512, 512}, {2048, 512}, {512, 2048}, {32100, 512}};
    static const int64_t rows[] = {1, 5, 8, 32, 64, 320};
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < 6; r++) decode(rows[r], shape[i][0], shape[i][1]);
}

static void all_attention(void) {
    for (int p = 0; p < 2; p++) {
        for (int64_t d = 32; d <= 64; d *= 2) {
            attention(128, 20, 8, d, 0, 0.1f * (float)p);
            attention(4, 512, 8, d, 0, 0.1f * (float)p);
        }
    }
    attention(4, 512, 8, 64, 1, 0);
}

static void all_rows(void) {
    row_wise(2560, 512, 0);
    row_wise(2560, 512, 0.1f);
    row_wise(2560, 2048, 0.1f);
    row_wise(20000, 1024, 0.1f);
}

int main(int argc, char **argv) {
    const bt_host host = {BT_BACKEND_ABI, host_fail, host_log};
    const bt_open_options options = {.threads = argc > 2 ? atoi(argv[2]) : 0};
    need(bt_module_driver()->open(&host, 0, &options, &dev) == BT_OK, "open");
    const btcpu_table *isa = btcpu_pick_table(argc > 1 ? argv[1] : NULL);
    dev->op = isa->op;
    need(dev->ops->alloc(dev, (uint64_t)1 << 30, &memory) == BT_OK, "alloc");
    need(dev->ops->alloc(dev, (uint64_t)1 << 30, &halves) == BT_OK, "alloc");
    if (argc > 4 && strcmp(argv[4], "fp16") == 0) precision = BT_F16;
    if (argc > 4 && strcmp(argv[4], "bf16") == 0) precision = BT_BF16;
    need(dev->ops->alloc(dev, (uint64_t)64 << 20, &scratch) == BT_OK, "alloc");
    printf("%s, %u threads, %s kernels; at open %.0f GFLOP/s, %.1f GB/s\n", dev->info.name,
           dev->info.threads, isa->isa, dev->info.flops * 1e-9, dev->info.bytes_per_s * 1e-9);
    const char *part = argc > 3 && strcmp(argv[3], "all") != 0 ? argv[3] : NULL;
    if (!part || strcmp(part, "gemm") == 0) all_gemm();
    if (!part || strcmp(part, "decode") == 0) all_decode();
    if (!part || strcmp(part, "attention") == 0) all_attention();
    if (!part || strcmp(part, "rows") == 0) all_rows();
    if (!part || strcmp(part, "loss") == 0) {
        loss(2560, 8000);
        loss(256, 250002);
    }
    if (!part || strcmp(part, "optimiser") == 0) optimiser(30000000);
    dev->ops->free(dev, memory);
    dev->ops->free(dev, halves);
    dev->ops->free(dev, scratch);
    dev->ops->close(dev);
    return 0;
}
