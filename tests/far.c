/* "far": the oracle behind the manners of an awkward device. What passes here ports to OpenCL and
 * CUDA.
 * - Handles are small numbers; following one is a fault. Memory is apart: only uploads and
 * downloads reach it.
 * - Ops, uploads, downloads and fills wait in a queue for each stream, as they were called, and run
 *   at sync, at event_sync, when another stream waits for an event, or when the queue is full.
 *   Uploads read host memory only then; streams overtake each other unless events say no.
 * - A failure shows late and sticks to its stream.
 * - Allocations of at most 64 MiB, alignment 4096, total 2 GiB.
 * - Every op needs scratch, more at odd sizes than at larger even ones, and finds it full of NaN.
 * - Fused slots are empty, so that the composed forms are tested.
 * - Rows of a product are stable in tiles only. */
#include "tests/far.h"

#include <stdio.h>
#include <stdlib.h>

#include "backends/registry.h"
#include "core/base/status.h"
#include "core/ops/ops.h"

#define QUEUE 64
#define BUFFERS 1024
#define MAX_ALLOC ((uint64_t)64 << 20)
#define TOTAL ((uint64_t)2 << 30)
#define ALIGNMENT 4096
#define ROW_TILE 32
#define SCRIBBLE ((uint64_t)1 << 20) /* at most this much of the scratch is filled with NaN */

typedef enum kind { OP, UPLOAD, DOWNLOAD, FILL, RECORD, WAIT } kind;

typedef struct item {
    kind kind;
    bt_call call;
    bt_buf *a, *b; /* destination, source */
    uint64_t a_off, b_off, bytes;
    void *host;       /* where a download goes */
    const void *from; /* what an upload reads, late */
    uint8_t value;
    bt_event *event;
    uint64_t target; /* WAIT: how many records of the event must have run */
} item;

struct bt_stream {
    item queue[QUEUE];
    int first, count;
    bt_status status; /* the first failure; sticks */
    char text[512];
};

struct bt_event {
    bt_stream *stream;       /* of the last record */
    uint64_t recorded, done; /* records that were queued, that were run */
};

typedef struct far_dev {
    bt_dev dev; /* first */
    bt_dev *inner;
    bt_stream *own; /* what a NULL stream means */
    bt_buf *buffer[BUFFERS];
    uint64_t bytes[BUFFERS];
    uint64_t used;
} far_dev;

static const bt_driver far_driver;

static far_dev *self(bt_dev *dev) { return (far_dev *)(void *)dev; }

/* ---- handles -----------------------------------------------------------------------------------
 */

/* Handle i + 1 stands for buffer i: an address that nobody can follow. */
static bt_buf *handle_of(int i) { return (bt_buf *)(uintptr_t)(i + 1); }

static bt_status resolve(bt_dev *dev, bt_buf *handle, bt_buf **out) {
    uintptr_t i = (uintptr_t)handle;
    if (i == 0 || i > BUFFERS || self(dev)->buffer[i - 1] == NULL)
        return bti_fail(BT_EINTERNAL, "far: %p is no buffer of this device", (void *)handle);
    *out = self(dev)->buffer[i - 1];
    return BT_OK;
}

/* ---- scratch -----------------------------------------------------------------------------------
 */

static int64_t largest_side(const bt_call *call) {
    int64_t most = call->op == BT_OP_GEMM ? call->t[BT_GEMM_A].cols : 1;
    for (int i = 0; i < bti_op_info(call->op)->operands; i++)
        if (call->t[i].rows > most) most = call->t[i].rows;
    return most;
}

static uint64_t power_of_two(int64_t n) {
    uint64_t p = 1;
    while (p < (uint64_t)n) p *= 2;
    return p;
}

/* What a call uses: a padded copy of its rows, unless they are a power of two. */
static uint64_t need(const bt_call *call) {
    int64_t n = largest_side(call);
    return 512 + (power_of_two(n) != (uint64_t)n ? 16 * power_of_two(n) : 0);
}

/* What is asked for: the most that any call of at most these rows uses. */
static uint64_t far_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    (void)info;
    int64_t n = largest_side(call);
    return 512 + (n >= 3 ? 16 * power_of_two(n) : 0);
}

static const bt_planning far_planning = {.ws_bytes = far_ws_bytes, .fused = 0};

/* ---- running what was queued -------------------------------------------------------------------
 */

static bt_status run_op(far_dev *d, const bt_call *call) {
    bt_call c = *call;
    uint64_t bytes = c.ws.buf != NULL ? (uint64_t)c.ws.cols * sizeof(float) : 0;
    if (bytes < need(call))
        return bti_fail(BT_EINTERNAL, "far: op %s got %llu bytes of scratch, it uses %llu",
                        bti_op_info(c.op)->name, (unsigned long long)bytes,
                        (unsigned long long)need(call));
    BT_TRY(resolve(&d->dev, c.ws.buf, &c.ws.buf));
    BT_TRY(d->inner->ops->fill(d->inner, NULL, c.ws.buf, c.ws.off,
                               bytes < SCRIBBLE ? bytes : SCRIBBLE, 0xFF));
    for (int i = 0; i < bti_op_info(c.op)->operands; i++)
        if (bti_view_present(&c.t[i])) BT_TRY(resolve(&d->dev, c.t[i].buf, &c.t[i].buf));
    return d->inner->op[c.op](d->inner, NULL, &c);
}

static void run_next(far_dev *d, bt_stream *s);

static bt_status run_item(far_dev *d, const item *it) {
    const bt_dev_ops *ops = d->inner->ops;
    bt_buf *a = NULL, *b = NULL;
    if (it->a != NULL) BT_TRY(resolve(&d->dev, it->a, &a));
    if (it->b != NULL) BT_TRY(resolve(&d->dev, it->b, &b));
    switch (it->kind) {
    case OP:
        return run_op(d, &it->call);
    case UPLOAD:
        return ops->upload(d->inner, NULL, a, it->a_off, it->from, it->bytes);
    case DOWNLOAD:
        return ops->download(d->inner, NULL, it->host, b, it->b_off, it->bytes);
    case FILL:
        return ops->fill(d->inner, NULL, a, it->a_off, it->bytes, it->value);
    case RECORD:
        return BT_OK;
    case WAIT:
        while (it->event->done < it->target) run_next(d, it->event->stream);
        return BT_OK;
    }
    return BT_OK;
}

/* Runs the oldest call of a stream. After a failure the rest is dropped, but events still come. */
static void run_next(far_dev *d, bt_stream *s) {
    item it = s->queue[s->first];
    s->first = (s->first + 1) % QUEUE;
    s->count--;
    if (s->status == BT_OK) {
        s->status = run_item(d, &it);
        if (s->status != BT_OK) snprintf(s->text, sizeof s->text, "%s", bt_last_error());
    }
    if (it.kind == RECORD) it.event->done++;
}

static void run_all(far_dev *d, bt_stream *s) {
    while (s->count > 0) run_next(d, s);
}

static bt_stream *stream_of(bt_dev *dev, bt_stream *s) { return s != NULL ? s : self(dev)->own; }

static bt_status verdict(const bt_stream *s) {
    return s->status == BT_OK ? BT_OK : bti_fail(s->status, "far: %s", s->text);
}

static bt_status enqueue(bt_dev *dev, bt_stream *s, const item *it) {
    s = stream_of(dev, s);
    BT_TRY(verdict(s));
    if (s->count == QUEUE) run_all(self(dev), s);
    s->queue[(s->first + s->count++) % QUEUE] = *it;
    return BT_OK;
}

/* ---- device table ------------------------------------------------------------------------------
 */

static void far_close(bt_dev *dev) {
    far_dev *d = self(dev);
    run_all(d, d->own);
    for (int i = 0; i < BUFFERS; i++) d->inner->ops->free(d->inner, d->buffer[i]);
    bti_device_close(d->inner);
    bti_free(d->own);
    bti_free(d);
}

static bt_status far_query(bt_dev *dev, bt_dev_info *info) {
    *info = dev->info;
    info->free_bytes = TOTAL - self(dev)->used;
    return BT_OK;
}

static bt_status far_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    far_dev *d = self(dev);
    int i = 0;
    if (bytes > MAX_ALLOC || bytes > TOTAL - d->used)
        return bti_fail(BT_ENOMEM, "far: no %llu bytes in one piece", (unsigned long long)bytes);
    while (i < BUFFERS && d->buffer[i] != NULL) i++;
    if (i == BUFFERS) return bti_fail(BT_ENOMEM, "far: more than %d buffers", BUFFERS);
    BT_TRY(d->inner->ops->alloc(d->inner, bytes, &d->buffer[i]));
    d->bytes[i] = bytes;
    d->used += bytes;
    *out = handle_of(i);
    return BT_OK;
}

static void far_free(bt_dev *dev, bt_buf *buf) {
    far_dev *d = self(dev);
    bt_buf *inner = NULL;
    if (buf == NULL) return;
    run_all(d, d->own);
    if (resolve(dev, buf, &inner) != BT_OK) abort(); /* freed twice */
    int i = (int)(uintptr_t)buf - 1;
    d->used -= d->bytes[i];
    d->buffer[i] = NULL;
    d->inner->ops->free(d->inner, inner);
}

static bt_status far_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    return self(dev)->inner->ops->host_alloc(self(dev)->inner, bytes, out);
}

static void far_host_free(bt_dev *dev, void *p) {
    self(dev)->inner->ops->host_free(self(dev)->inner, p);
}

static bt_status far_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                            uint64_t bytes) {
    return enqueue(dev, s,
                   &(item){.kind = UPLOAD, .a = dst, .a_off = off, .from = src, .bytes = bytes});
}

static bt_status far_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                              uint64_t bytes) {
    return enqueue(dev, s,
                   &(item){.kind = DOWNLOAD, .b = src, .b_off = off, .host = dst, .bytes = bytes});
}

static bt_status far_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                          uint8_t value) {
    return enqueue(dev, s,
                   &(item){.kind = FILL, .a = buf, .a_off = off, .bytes = bytes, .value = value});
}

static bt_status far_stream_new(bt_dev *dev, bt_stream **out) {
    (void)dev;
    bt_stream *s = bti_alloc(1, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    *out = s;
    return BT_OK;
}

static void far_stream_free(bt_dev *dev, bt_stream *s) {
    if (s == NULL) return;
    run_all(self(dev), s);
    bti_free(s);
}

static bt_status far_sync(bt_dev *dev, bt_stream *s) {
    s = stream_of(dev, s);
    run_all(self(dev), s);
    return verdict(s);
}

static bt_status far_event_new(bt_dev *dev, bt_event **out) {
    (void)dev;
    bt_event *e = bti_alloc(1, sizeof *e);
    if (e == NULL) return BT_ENOMEM;
    *out = e;
    return BT_OK;
}

static void far_event_free(bt_dev *dev, bt_event *e) {
    if (e == NULL) return;
    while (e->done < e->recorded) run_next(self(dev), e->stream);
    bti_free(e);
}

static bt_status far_event_record(bt_dev *dev, bt_stream *s, bt_event *e) {
    while (e->stream != NULL && e->stream != stream_of(dev, s) && e->done < e->recorded)
        run_next(self(dev), e->stream); /* it now belongs to another stream */
    BT_TRY(enqueue(dev, s, &(item){.kind = RECORD, .event = e}));
    e->stream = stream_of(dev, s);
    e->recorded++;
    return BT_OK;
}

static bt_status far_event_wait(bt_dev *dev, bt_stream *s, bt_event *e) {
    return enqueue(dev, s, &(item){.kind = WAIT, .event = e, .target = e->recorded});
}

static bt_status far_event_sync(bt_dev *dev, bt_event *e) {
    while (e->done < e->recorded) run_next(self(dev), e->stream);
    return e->stream != NULL ? verdict(e->stream) : BT_OK;
}

static const bt_dev_ops device_table = {
    .close = far_close,
    .query = far_query,
    .alloc = far_alloc,
    .free = far_free,
    .host_alloc = far_host_alloc,
    .host_free = far_host_free,
    .upload = far_upload,
    .download = far_download,
    .fill = far_fill,
    .stream_new = far_stream_new,
    .stream_free = far_stream_free,
    .sync = far_sync,
    .event_new = far_event_new,
    .event_free = far_event_free,
    .event_record = far_event_record,
    .event_wait = far_event_wait,
    .event_sync = far_event_sync,
};

/* ---- ops and driver ----------------------------------------------------------------------------
 */

static bt_status far_op(bt_dev *dev, bt_stream *s, const bt_call *call) {
    return enqueue(dev, s, &(item){.kind = OP, .call = *call});
}

#define SLOT_MUST far_op
#define SLOT_FUSED NULL
static const bt_op_fn op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = SLOT_##slot,
#include "core/ops/op_list.inc"
};

static bt_status far_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    if (reason_size > 0) reason[0] = 0;
    *count = 1;
    return BT_OK;
}

static bt_status far_open(const bt_host *host, int index, const bt_open_options *options,
                          bt_dev **out) {
    if (index != 0) return bti_fail(BT_EUSAGE, "far: there is one device, not number %d", index);
    bt_dev *inner = NULL;
    BT_TRY(bti_device_open("ref", options, &inner));
    far_dev *d = bti_alloc(1, sizeof *d);
    bt_stream *own = d ? bti_alloc(1, sizeof *own) : NULL;
    if (own == NULL) {
        bti_free(d);
        bti_device_close(inner);
        return BT_ENOMEM;
    }
    d->inner = inner;
    d->own = own;
    d->dev = (bt_dev){.driver = &far_driver,
                      .host = host,
                      .ops = &device_table,
                      .op = op_table,
                      .info = {.name = "the oracle, far away",
                               .backend = "far",
                               .total_bytes = TOTAL,
                               .free_bytes = TOTAL,
                               .max_alloc = MAX_ALLOC,
                               .alignment = ALIGNMENT,
                               .row_tile = ROW_TILE,
                               .dtypes = inner->info.dtypes,
                               .threads = 1}};
    *out = &d->dev;
    return BT_OK;
}

static const bt_driver far_driver = {BT_BACKEND_ABI, "far", &far_planning, far_probe, far_open};

void far_register(void) {
    if (bti_backend_register(&far_driver) != BT_OK) abort();
}
