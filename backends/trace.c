/* trace: wraps any device and hands everything on. Buffers, streams and events are those of the
 * inner device. Counting, timing and the n-th failure cost one branch a call; the NaN scan waits
 * for the stream after every op and is for tests and for looking for faults. */
#include "backends/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/base/status.h"
#include "core/ops/ops.h"

#define CHUNK_BYTES 65536 /* what the scan downloads at a time */

typedef struct trace_dev {
    bt_dev dev; /* first */
    bt_dev *inner;
    bt_driver driver; /* the inner one under another name: planning and all */
    bt_dev_ops ops;
    bt_op_fn op[BT_OP_COUNT];
    bt_trace_options options;
    int is_lost;
    bt_trace_row rows[BT_OP_COUNT];
    double chunk[CHUNK_BYTES / sizeof(double)];
} trace_dev;

static trace_dev *self(bt_dev *dev) { return (trace_dev *)(void *)dev; }

/* Counts a call towards the n-th failure. */
static bt_status pass(bt_dev *dev, const char *what) {
    trace_dev *t = self(dev);
    if (t->options.fail_at > 0 && --t->options.fail_at == 0) {
        if (t->options.lost) t->is_lost = 1;
        return bti_fail(BT_EDEVICE, "trace: %s fails, as was asked for", what);
    }
    if (t->is_lost) return bti_fail(BT_EDEVICE, "trace: device lost, %s fails", what);
    return BT_OK;
}

/* ---- ops --------------------------------------------------------------------------------------
 */

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Whether what an op writes there may be NaN or undefined by its contract. */
static int may_be_nan(const bt_call *call, int i) {
    switch (call->op) {
    case BT_OP_CROSS_ENTROPY:
        return i == BT_CROSS_ENTROPY_LOGITS && !call->p.cross_entropy.grad;
    case BT_OP_VALUE_LOSS:
        return i == BT_VALUE_LOSS_Z && !call->p.value_loss.grad;
    case BT_OP_SUMSQ:
        return i == BT_SUMSQ_PART;
    case BT_OP_UPDATE_SCALARS:
        return i == BT_UPDATE_SCALARS_SCALARS;
    default:
        return 0;
    }
}

/* Elements [off, off + n) of operand i, the first of them being (row, col). */
static bt_status scan_run(trace_dev *t, bt_stream *s, const bt_call *call, int i, uint64_t off,
                          int64_t n, int64_t row) {
    const bt_view *v = &call->t[i];
    uint64_t size = bti_dtype_size(v->dtype);
    int64_t most = (int64_t)(CHUNK_BYTES / size);
    for (int64_t at = 0; at < n; at += most) {
        int64_t part = n - at < most ? n - at : most;
        BT_TRY(t->inner->ops->download(t->inner, s, t->chunk, v->buf, off + (uint64_t)at * size,
                                       (uint64_t)part * size));
        BT_TRY(t->inner->ops->sync(t->inner, s));
        for (int64_t k = 0; k < part; k++)
            if (isnan(bti_load(t->chunk, v->dtype, k)))
                return bti_fail(BT_ENUMERIC,
                                "trace: op %s wrote NaN to %s[%lld][%lld] (%lld x %lld)",
                                bti_op_info(call->op)->name, bti_op_info(call->op)->operand[i].name,
                                (long long)(row + (at + k) / v->ld), (long long)((at + k) % v->ld),
                                (long long)v->rows, (long long)v->cols);
    }
    return BT_OK;
}

static bt_status scan_matrix(trace_dev *t, bt_stream *s, const bt_call *call, int i, uint64_t off) {
    const bt_view *v = &call->t[i];
    if (v->ld == v->cols) return scan_run(t, s, call, i, off, v->rows * v->cols, 0);
    for (int64_t r = 0; r < v->rows; r++)
        BT_TRY(scan_run(t, s, call, i, off + (uint64_t)(r * v->ld) * bti_dtype_size(v->dtype),
                        v->cols, r));
    return BT_OK;
}

/* Looks for NaN in what the call wrote. Attention leaves rows of no sequence as they were: NaN that
 * stood there is found too. */
static bt_status scan(trace_dev *t, bt_stream *s, const bt_call *call) {
    const bt_op_info *info = bti_op_info(call->op);
    const bt_gemm_params *g = &call->p.gemm;
    for (int i = 0; i < info->operands; i++) {
        const bt_view *v = &call->t[i];
        if (info->operand[i].role == BT_ROLE_IN || !bti_view_present(v) ||
            !bti_dtype_is_float(v->dtype) || may_be_nan(call, i))
            continue;
        int64_t n0 = call->op == BT_OP_GEMM && g->batch0 > 1 ? g->batch0 : 1;
        int64_t n1 = call->op == BT_OP_GEMM && g->batch1 > 1 ? g->batch1 : 1;
        for (int64_t a = 0; a < n0; a++)
            for (int64_t b = 0; b < n1; b++) {
                int64_t skip = n0 * n1 > 1 ? a * g->c0 + b * g->c1 : 0;
                BT_TRY(
                    scan_matrix(t, s, call, i, v->off + (uint64_t)skip * bti_dtype_size(v->dtype)));
            }
    }
    return BT_OK;
}

/* Name, shape, leading dimension, type and offset of each operand that is there. */
static void dump_call(const trace_dev *t, const bt_call *call) {
    char line[1024];
    const bt_op_info *op = bti_op_info(call->op);
    size_t n = (size_t)snprintf(line, sizeof line, "%s", op->name);
    for (int i = 0; i < op->operands && n < sizeof line; i++) {
        const bt_view *v = &call->t[i];
        if (!bti_view_present(v)) continue;
        n += (size_t)snprintf(line + n, sizeof line - n, "%s %s %lldx%lld ld %lld %s @%zu",
                              i ? "," : "", op->operand[i].name, (long long)v->rows,
                              (long long)v->cols, (long long)v->ld, bti_dtype_name(v->dtype),
                              v->off);
    }
    t->options.dump(t->options.user, line);
}

/* The one slot function. */
static bt_status trace_op(bt_dev *dev, bt_stream *s, const bt_call *call) {
    trace_dev *t = self(dev);
    bt_trace_row *row = &t->rows[call->op];
    BT_TRY(pass(dev, bti_op_info(call->op)->name));
    if (t->options.dump != NULL) dump_call(t, call);
    if (t->options.time) BT_TRY(t->inner->ops->sync(t->inner, s));
    double start = t->options.time ? now() : 0;
    BT_TRY(t->inner->op[call->op](t->inner, s, call));
    if (t->options.time) {
        BT_TRY(t->inner->ops->sync(t->inner, s));
        row->seconds += now() - start;
    }
    row->calls++;
    row->bytes += bti_op_bytes(call);
    row->flops += bti_op_flops(call, 0);
    return t->options.scan_nan ? scan(t, s, call) : BT_OK;
}

/* ---- device table -----------------------------------------------------------------------------
 */

static void trace_close(bt_dev *dev) {
    bt_dev *inner = self(dev)->inner;
    bti_free(dev);
    inner->ops->close(inner);
}

static bt_status trace_query(bt_dev *dev, bt_dev_info *info) {
    BT_TRY(pass(dev, "query"));
    return self(dev)->inner->ops->query(self(dev)->inner, info);
}

static bt_status trace_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    BT_TRY(pass(dev, "alloc"));
    return self(dev)->inner->ops->alloc(self(dev)->inner, bytes, out);
}

static void trace_free(bt_dev *dev, bt_buf *buf) {
    self(dev)->inner->ops->free(self(dev)->inner, buf);
}

static bt_status trace_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    BT_TRY(pass(dev, "host_alloc"));
    return self(dev)->inner->ops->host_alloc(self(dev)->inner, bytes, out);
}

static void trace_host_free(bt_dev *dev, void *p) {
    self(dev)->inner->ops->host_free(self(dev)->inner, p);
}

static bt_status trace_warm(bt_dev *dev, const bt_call *calls, size_t count) {
    BT_TRY(pass(dev, "warm"));
    return self(dev)->inner->ops->warm(self(dev)->inner, calls, count);
}

static bt_status trace_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                              uint64_t bytes) {
    BT_TRY(pass(dev, "upload"));
    return self(dev)->inner->ops->upload(self(dev)->inner, s, dst, off, src, bytes);
}

static bt_status trace_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                                uint64_t bytes) {
    BT_TRY(pass(dev, "download"));
    return self(dev)->inner->ops->download(self(dev)->inner, s, dst, src, off, bytes);
}

static bt_status trace_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                            uint8_t value) {
    BT_TRY(pass(dev, "fill"));
    return self(dev)->inner->ops->fill(self(dev)->inner, s, buf, off, bytes, value);
}

static bt_status trace_stream_new(bt_dev *dev, bt_stream **out) {
    BT_TRY(pass(dev, "stream_new"));
    return self(dev)->inner->ops->stream_new(self(dev)->inner, out);
}

static void trace_stream_free(bt_dev *dev, bt_stream *s) {
    self(dev)->inner->ops->stream_free(self(dev)->inner, s);
}

/* Waits though it is made to fail, as every device does. */
static bt_status trace_sync(bt_dev *dev, bt_stream *s) {
    const bt_status status = self(dev)->inner->ops->sync(self(dev)->inner, s);
    BT_TRY(pass(dev, "sync"));
    return status;
}

static bt_status trace_event_new(bt_dev *dev, bt_event **out) {
    BT_TRY(pass(dev, "event_new"));
    return self(dev)->inner->ops->event_new(self(dev)->inner, out);
}

static void trace_event_free(bt_dev *dev, bt_event *e) {
    self(dev)->inner->ops->event_free(self(dev)->inner, e);
}

static bt_status trace_event_record(bt_dev *dev, bt_stream *s, bt_event *e) {
    BT_TRY(pass(dev, "event_record"));
    return self(dev)->inner->ops->event_record(self(dev)->inner, s, e);
}

static bt_status trace_event_wait(bt_dev *dev, bt_stream *s, bt_event *e) {
    BT_TRY(pass(dev, "event_wait"));
    return self(dev)->inner->ops->event_wait(self(dev)->inner, s, e);
}

static bt_status trace_event_sync(bt_dev *dev, bt_event *e) {
    BT_TRY(pass(dev, "event_sync"));
    return self(dev)->inner->ops->event_sync(self(dev)->inner, e);
}

static const bt_dev_ops device_table = {
    .close = trace_close,
    .query = trace_query,
    .alloc = trace_alloc,
    .free = trace_free,
    .host_alloc = trace_host_alloc,
    .host_free = trace_host_free,
    .warm = trace_warm,
    .upload = trace_upload,
    .download = trace_download,
    .fill = trace_fill,
    .stream_new = trace_stream_new,
    .stream_free = trace_stream_free,
    .sync = trace_sync,
    .event_new = trace_event_new,
    .event_free = trace_event_free,
    .event_record = trace_event_record,
    .event_wait = trace_event_wait,
    .event_sync = trace_event_sync,
};

/* ---- wrapping ---------------------------------------------------------------------------------
 */

bt_status bti_trace_wrap(bt_dev *inner, const bt_trace_options *options, bt_dev **out) {
    trace_dev *t = bti_alloc(1, sizeof *t);
    if (t == NULL) return BT_ENOMEM;
    t->inner = inner;
    t->driver = *inner->driver;
    t->ops = device_table;
    if (inner->ops->warm == NULL) t->ops.warm = NULL;
    for (int op = 0; op < BT_OP_COUNT; op++)
        if (inner->op[op] != NULL) t->op[op] = trace_op;
    if (options != NULL) t->options = *options;
    t->dev = (bt_dev){.driver = &t->driver,
                      .host = inner->host,
                      .ops = &t->ops,
                      .op = t->op,
                      .info = inner->info};
    *out = &t->dev;
    return BT_OK;
}

bt_trace_row *bti_trace_rows(bt_dev *dev) {
    return dev->ops->close == trace_close ? self(dev)->rows : NULL;
}

bt_trace_options *bti_trace_options(bt_dev *dev) {
    return dev->ops->close == trace_close ? &self(dev)->options : NULL;
}
