#include "core/fit/rates.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "backends/registry.h"
#include "core/base/clock.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/num.h"
#include "core/run/precision.h"

/* ---- measuring --------------------------------------------------------------------------------
 */

#define MIB ((uint64_t)1 << 20)
/* The memory measured in, more than most caches hold: a training step finds most of what it reads
 * in none. */
#define MEMORY (64 * MIB)
/* Seconds for all of it: of each thread's time where this process computes, since a busy machine
 * takes turns, and at most ten times as long by the clock. */
#define LONGEST 0.3
enum { WIDTH = 512, HEADS = 8 };

typedef struct bench {
    bt_dev *dev;
    bti_precision precision;
    bt_buf *buf;
    uint64_t used;
    bt_status status;
    double start, own; /* nothing is begun long after these times */
} bench;

/* Zeroes (also as int32: place 0, position 0, id 0). */
static bt_view part(bench *b, int64_t rows, int64_t cols, bt_dtype dtype) {
    uint64_t align = b->dev->info.alignment ? b->dev->info.alignment : 1;
    bt_view v = {b->buf, b->used, rows, cols, cols, dtype};
    b->used += (uint64_t)(rows * cols) * bti_dtype_size(dtype);
    b->used = bti_align_up(b->used, align);
    if (b->used > MEMORY && b->status == BT_OK)
        b->status =
            bti_fail(BT_EINTERNAL, "a measurement wants %llu bytes", (unsigned long long)b->used);
    return v;
}

/* Activations, and what is fp32 in every precision. */
static bt_view data(bench *b, int64_t rows, int64_t cols) {
    return part(b, rows, cols, bti_precision_data(b->precision));
}
static bt_view wide(bench *b, int64_t rows, int64_t cols) { return part(b, rows, cols, BT_F32); }

static int too_long(const bench *b, double time, double own) {
    const bt_dev_info *info = &b->dev->info;
    if (!info->host_memory) return time - b->start > LONGEST;
    return own - b->own > LONGEST * (info->threads > 1 ? info->threads : 1) ||
           time - b->start > 10 * LONGEST;
}

/* Least seconds of `times` calls in a row: of several tries, the first of which warms. Where this
 * process computes itself, its processor time counts if that is less: a busy machine takes turns.
 */
static double seconds(bench *b, bt_call *call, int times) {
    double best = INFINITY, spent = 0;
    uint64_t ws = bti_op_ws_bytes(b->dev->driver->planning, &b->dev->info, call);
    if (ws > 0) call->ws = wide(b, 1, (int64_t)((ws + 3) / 4));
    for (int i = 0; i < 12 && (i < 4 || spent < 0.008) && b->status == BT_OK; i++) {
        double start = bti_now(), begun = bti_clock(CLOCK_PROCESS_CPUTIME_ID);
        if (too_long(b, start, begun))
            b->status = bti_fail(BT_EDEVICE, "the device is too slow to measure");
        for (int k = 0; k < times && b->status == BT_OK; k++)
            b->status = bti_op_run(b->dev, NULL, call);
        b->status = bti_settle(b->dev, NULL, b->status);
        double s = bti_now() - start, own = bti_clock(CLOCK_PROCESS_CPUTIME_ID) - begun;
        spent += s;
        if (b->dev->info.host_memory && own < s) s = own;
        if (s < best) best = s;
    }
    return best;
}

/* Two ops whose seconds are a[i] x + b[i] y: x and y. Not solvable with positive ones when noise
 * is larger than what is measured: then all goes to x. */
static void solve(const double a[2], const double b[2], const double t[2], double *x, double *y) {
    double det = a[0] * b[1] - a[1] * b[0];
    *x = (t[0] * b[1] - t[1] * b[0]) / det;
    *y = (a[0] * t[1] - a[1] * t[0]) / det;
    if (*x > 0 && *y > 0) return;
    *x = t[0] / a[0];
    *y = 0;
}

/* y = x w^T: square and large, and a few rows against many weights. */
static void measure_product(bench *b, bti_rates *r) {
    double flops[2], bytes[2], t[2];
    int64_t work = (int64_t)(b->dev->info.flops * 1.5e-3 / (2.0 * WIDTH * WIDTH)) / 64 * 64;
    int64_t m[2] = {work < 64 ? 64 : work > 4096 ? 4096 : work, 8}, n[2] = {WIDTH, 8192};
    for (int i = 0; i < 2; i++) {
        b->used = 0;
        bt_call c = {.op = BT_OP_GEMM,
                     .t = {data(b, m[i], WIDTH), wide(b, n[i], WIDTH), data(b, m[i], n[i])},
                     .p.gemm = {.trans_b = 1,
                                .alpha = 1,
                                .round = bti_precision_data(b->precision),
                                .tf32 = b->precision == BTI_PRECISION_TF32}};
        t[i] = seconds(b, &c, 1);
        flops[i] = bti_op_flops(&c, 0);
        bytes[i] = bti_op_bytes(&c);
    }
    solve(flops, bytes, t, &r->seconds[BTI_COST_PRODUCT_FLOP], &r->seconds[BTI_COST_PRODUCT_BYTE]);
}

/* Row-wise ops over 8 MiB an operand: without dropout the bytes, with it the elements. */
static void measure_rows(bench *b, bti_rates *r) {
    int64_t rows = (int64_t)(8 * MIB / 4 / WIDTH);
    b->used = 0;
    bt_view x = data(b, rows, WIDTH), y = data(b, rows, WIDTH), z = data(b, rows, WIDTH);
    bt_view w = data(b, rows, WIDTH), stats = wide(b, rows, 2), v = wide(b, 1, WIDTH);
    bt_view pos = part(b, rows, 2, BT_I32);
    bt_drop drop = {.seed = 1, .update = 1, .p = 0.1f};
    bt_call norm = {.op = BT_OP_ADD_NORM_FWD,
                    .t = {x, v, y, pos, v, v, z, w, stats},
                    .p.add_norm = {.eps = 1e-5}};
    bt_call sum = {
        .op = BT_OP_BIAS_ACT_BWD,
        .t = {[BT_BIAS_ACT_BWD_DY] = x, [BT_BIAS_ACT_BWD_DX] = y, [BT_BIAS_ACT_BWD_DBIAS] = v}};
    bt_call plain = {.op = BT_OP_BIAS_ACT_FWD, .t = {x, v, pos, y}};
    bt_call drawn = plain;
    drawn.p.bias_act.drop = drop;
    double byte =
        (seconds(b, &norm, 1) + seconds(b, &sum, 1)) / (bti_op_bytes(&norm) + bti_op_bytes(&sum));
    double element = (seconds(b, &drawn, 1) - seconds(b, &plain, 1)) / bti_op_elements(&drawn);
    r->seconds[BTI_COST_ROW_BYTE] = byte;
    r->seconds[BTI_COST_ELEMENT] = element > 0 ? element : 0;
    x.rows = y.rows = 4;
    bt_call small = {.op = BT_OP_BIAS_ACT_FWD, .t = {x, v, {0}, y}};
    r->seconds[BTI_COST_CALL] = seconds(b, &small, 64) / 64;
}

/* Forward and backward over sequences of one length. */
static double attention(bench *b, int64_t length, double *flops, double *bytes) {
    int64_t rows = 1024, n = rows / length;
    int32_t seq[64][BT_SEQ_COLS] = {{0}};
    b->used = 0;
    for (int32_t i = 0; i < n; i++) {
        seq[i][BT_SEQ_QUERY_ROW] = seq[i][BT_SEQ_KEY_ROW] = i * (int32_t)length;
        seq[i][BT_SEQ_QUERY_COUNT] = seq[i][BT_SEQ_KEY_COUNT] = (int32_t)length;
        seq[i][BT_SEQ_PLACE] = i;
    }
    bt_view t = part(b, n, BT_SEQ_COLS, BT_I32), x[8];
    for (int i = 0; i < 8; i++) x[i] = data(b, rows, WIDTH);
    bt_view lse = wide(b, rows, HEADS);
    bt_attn_params p = {
        .heads = HEADS, .scale = 0.125, .drop = {.seed = 1, .update = 1, .p = 0.1f}};
    bt_call f = {.op = BT_OP_ATTN_FWD, .t = {x[0], x[1], x[2], t, {0}, x[3], lse}, .p.attn = p};
    bt_call g = {.op = BT_OP_ATTN_BWD,
                 .t = {x[0], x[1], x[2], t, x[3], lse, x[4], x[5], x[6], x[7]},
                 .p.attn = p};
    if (b->status == BT_OK)
        b->status = b->dev->ops->upload(b->dev, NULL, t.buf, t.off, seq, (uint64_t)n * sizeof *seq);
    double s = seconds(b, &f, 1) + seconds(b, &g, 1);
    *flops = bti_op_flops(&f, 0) + bti_op_flops(&g, 0);
    *bytes = bti_op_bytes(&f) + bti_op_bytes(&g);
    return s;
}

static void measure_attention(bench *b, bti_rates *r) {
    double flops[2], bytes[2], t[2];
    t[0] = attention(b, 128, &flops[0], &bytes[0]);
    t[1] = attention(b, 16, &flops[1], &bytes[1]);
    solve(flops, bytes, t, &r->seconds[BTI_COST_ATTN_FLOP], &r->seconds[BTI_COST_ATTN_BYTE]);
}

static void measure_loss(bench *b, bti_rates *r) {
    b->used = 0;
    bt_call c = {.op = BT_OP_CROSS_ENTROPY,

                 .t = {[BT_CROSS_ENTROPY_LOGITS] = wide(b, 64, 32768),
                       [BT_CROSS_ENTROPY_BIAS] = wide(b, 1, 32768),
                       [BT_CROSS_ENTROPY_LABELS] = part(b, 64, 1, BT_I32),
                       [BT_CROSS_ENTROPY_LOSS] = wide(b, 64, 2)},
                 .p.cross_entropy = {0.1, 1e-3, 1}};
    r->seconds[BTI_COST_LOSS_BYTE] = seconds(b, &c, 1) / bti_op_bytes(&c);
}

static void measure_state(bench *b, bti_rates *r) {
    float one[BT_SCALAR_COUNT];
    int64_t n = (int64_t)(12 * MIB / 4);
    b->used = 0;
    for (int i = 0; i < BT_SCALAR_COUNT; i++) one[i] = i == BT_SCALAR_SKIP ? 0 : 1;
    bt_view s = wide(b, 1, BT_SCALAR_COUNT);
    bt_call c = {.op = BT_OP_ADAMW,
                 .t = {wide(b, 1, n), s, wide(b, 1, n), wide(b, 1, n), wide(b, 1, n)},
                 .p.adamw = {.beta1 = 0.9, .beta2 = 0.98, .eps = 1e-9}};
    if (b->status == BT_OK)
        b->status = b->dev->ops->upload(b->dev, NULL, s.buf, s.off, one, sizeof one);
    r->seconds[BTI_COST_STATE_BYTE] = seconds(b, &c, 1) / bti_op_bytes(&c);
}

/* Copies of 8 MiB to the device and back, from memory that the device likes. Where there is nothing
 * to copy between, they are as fast as its rows. */
static void measure_copies(bench *b, bti_rates *r) {
    const bt_dev_ops *ops = b->dev->ops;
    void *host = NULL;
    double best = INFINITY;
    r->seconds[BTI_COST_HOST_BYTE] = r->seconds[BTI_COST_ROW_BYTE];
    if (b->dev->info.host_memory || b->status != BT_OK) return;
    b->status = ops->host_alloc(b->dev, 8 * MIB, &host);
    if (b->status == BT_OK) memset(host, 0, 8 * MIB);
    for (int i = 0; i < 3 && b->status == BT_OK; i++) {
        double start = bti_now();
        b->status = ops->upload(b->dev, NULL, b->buf, 0, host, 8 * MIB);
        if (b->status == BT_OK) b->status = ops->download(b->dev, NULL, host, b->buf, 0, 8 * MIB);
        b->status = bti_settle(b->dev, NULL, b->status);
        if (bti_now() - start < best) best = bti_now() - start;
    }
    ops->host_free(b->dev, host);
    r->seconds[BTI_COST_HOST_BYTE] = best / (double)(16 * MIB);
}

bt_status bti_rates_measure(bt_dev *dev, bti_precision precision, bti_rates *out) {
    bench b = {.dev = dev,
               .precision = precision,
               .start = bti_now(),
               .own = bti_clock(CLOCK_PROCESS_CPUTIME_ID)};
    bti_rates r;
    BT_TRY(dev->ops->alloc(dev, MEMORY, &b.buf));
    b.status = dev->ops->fill(dev, NULL, b.buf, 0, MEMORY, 0);
    measure_product(&b, &r);
    measure_rows(&b, &r);
    measure_attention(&b, &r);
    measure_loss(&b, &r);
    measure_state(&b, &r);
    measure_copies(&b, &r);
    b.status = bti_settle(dev, NULL, b.status);
    dev->ops->free(dev, b.buf);
    for (int i = 0; i < BTI_COST_KINDS && b.status == BT_OK; i++)
        if (!(r.seconds[i] >= 0 && r.seconds[i] < 1))
            b.status = bti_fail(BT_ENUMERIC, "%s measured as %g s", bti_cost_name[i], r.seconds[i]);
    if (b.status == BT_OK) *out = r;
    return b.status;
}

/* ---- keeping ----------------------------------------------------------------------------------
 */

bt_status bti_rates_load(const char *path, const char *key, double *stated, bti_rates *out) {
    char *text;
    size_t bytes;
    bti_rates r;
    BT_TRY(bti_file_read(path, &text, &bytes));
    json_t *root = bti_json_read(text, bytes), *rates = json_object_get(root, "seconds");
    const char *device = json_string_value(json_object_get(root, "device"));
    int good = key == NULL || (device != NULL && strcmp(device, key) == 0);
    if (stated != NULL) *stated = json_number_value(json_object_get(root, "stated_flops"));
    for (int i = 0; i < BTI_COST_KINDS; i++) {
        json_t *x = json_object_get(rates, bti_cost_name[i]);
        r.seconds[i] = json_number_value(x);
        good &= json_is_number(x) && r.seconds[i] >= 0 && r.seconds[i] < 1;
    }
    json_decref(root);
    bti_free(text);
    if (!good)
        return bti_fail(BT_EINPUT, "%s does not hold rates of %s", path, key ? key : "a device");
    *out = r;
    return BT_OK;
}

bt_status bti_rates_save(const char *path, const char *key, double flops, const bti_rates *rates) {
    json_t *each = json_object();
    for (int i = 0; i < BTI_COST_KINDS; i++)
        json_object_set_new(each, bti_cost_name[i], json_real(rates->seconds[i]));
    json_t *root =
        json_pack("{s:s, s:f, s:o}", "device", key, "stated_flops", flops, "seconds", each);
    char *dir = bti_path_dir(path);
    bt_status status = dir ? bti_dir_make(dir) : BT_ENOMEM;
    bti_free(dir);
    if (status == BT_OK) return bti_json_write(root, path);
    json_decref(root);
    return status;
}

/* NULL: there is no folder to keep them in. */
static char *path_of(const char *key) {
    char *name = bti_format("rates-%016llx.json", (unsigned long long)XXH64(key, strlen(key), 0));
    char *path = name ? bti_user_cache(name) : NULL;
    bti_free(name);
    return path;
}

/* Another library underneath, or a card that is throttled now or was then. They hold all the same:
 * two runs are planned alike. */
static void compare(const char *path, const bt_dev_info *info, double stated) {
    if (stated < 1.6 * info->flops && info->flops < 1.6 * stated) return;
    bti_log(BT_LOG_WARN,
            "%s: the rates that plans go by were kept when %s had %.3g flop/s, now it has %.3g; "
            "without the file they are measured again",
            path, info->name, stated, info->flops);
}

/* Was the device slower meanwhile than when it was opened? Such rates are not for good. Products of
 * halves may be slower than the fp32 ones that the device states. */
static int was_busy(const bt_dev_info *info, bti_precision precision, const bti_rates *r) {
    return precision == BTI_PRECISION_FP32 &&
           !(1.6 / r->seconds[BTI_COST_PRODUCT_FLOP] >= info->flops);
}

void bti_rates_get(bt_dev *dev, bti_precision precision, bti_rates *out) {
    const bt_dev_info *info = &dev->info;
    double stated = 0;
    bti_rates_default(info, out);
    const char *given = bti_user_rates();
    if (given != NULL) {
        if (bti_rates_load(given, NULL, NULL, out) != BT_OK)
            bti_log(BT_LOG_WARN, "BANTAM_RATES: %s", bt_last_error());
        return;
    }
    if (!(info->flops > 0) || (info->max_alloc > 0 && info->max_alloc < MEMORY)) return;
    char *key =
        bti_format("%s, %s, %s, %u threads, %s, %s", info->backend, info->name, info->driver,
                   (unsigned)info->threads, BT_VERSION, bti_precision_name(precision));
    char *path = key ? path_of(key) : NULL;
    if (path != NULL && bti_rates_load(path, key, &stated, out) == BT_OK)
        compare(path, info, stated);
    else if (key != NULL && bti_rates_measure(dev, precision, out) == BT_OK && path != NULL &&
             !was_busy(info, precision, out) &&
             bti_rates_save(path, key, info->flops, out) != BT_OK)
        bti_log(BT_LOG_INFO, "rates of the device are not kept: %s", bt_last_error());
    bti_free(path);
    bti_free(key);
}
