/* The "null" backend: all bookkeeping, no arithmetic and no memory. It checks that every operand
 * lies inside a living buffer of this device, that outputs take over storage only where the op list
 * allows it, and that streams and events live. Ops, uploads and fills succeed and do nothing; a
 * download gives zeros. Plans of any size run through it on any machine. */
#include <stdlib.h>
#include <string.h>

#include "backends/builtin.h"
#include "core/base/status.h"
#include "core/ops/ops.h"

#define ALIGNMENT 256
#define TOTAL_BYTES ((uint64_t)1 << 50)

/* Handles stay in their device's list until it is closed, so that a dead one is known as such. */
typedef struct handle {
    struct handle *next;
    bt_dev *dev;
    int alive;
} handle;
struct bt_buf {
    handle h; /* first */
    uint64_t bytes;
};
struct bt_stream {
    handle h; /* first */
};
struct bt_event {
    handle h; /* first */
};

typedef struct null_dev {
    bt_dev dev; /* first */
    handle *handles;
    uint64_t used;
} null_dev;

static null_dev *self(bt_dev *dev) { return (null_dev *)(void *)dev; }

/* ---- lifetimes --------------------------------------------------------------------------------
 */

static void *handle_new(bt_dev *dev, size_t size) {
    handle *h = bti_alloc(1, size);
    if (h == NULL) return NULL;
    h->dev = dev;
    h->alive = 1;
    h->next = self(dev)->handles;
    self(dev)->handles = h;
    return h;
}

static bt_status check_handle(bt_dev *dev, const handle *h, const char *what) {
    if (h == NULL) return bti_fail(BT_EINTERNAL, "null: no %s given", what);
    if (h->dev != dev) return bti_fail(BT_EINTERNAL, "null: %s of another device", what);
    if (!h->alive) return bti_fail(BT_EINTERNAL, "null: %s was freed before", what);
    return BT_OK;
}

static bt_status check_stream(bt_dev *dev, const bt_stream *s) {
    return s == NULL ? BT_OK : check_handle(dev, &s->h, "stream");
}

static bt_status check_range(bt_dev *dev, const char *what, const bt_buf *buf, uint64_t off,
                             uint64_t bytes) {
    BT_TRY(check_handle(dev, buf ? &buf->h : NULL, what));
    if (off <= buf->bytes && bytes <= buf->bytes - off) return BT_OK;
    return bti_fail(
        BT_EINTERNAL, "null: %s of %llu bytes at %llu passes the end of its buffer (%llu)", what,
        (unsigned long long)bytes, (unsigned long long)off, (unsigned long long)buf->bytes);
}

static void null_close(bt_dev *dev) {
    for (handle *h = self(dev)->handles, *next; h != NULL; h = next) {
        next = h->next;
        bti_free(h);
    }
    bti_free(dev);
}

/* ---- device table -----------------------------------------------------------------------------
 */

static bt_status null_query(bt_dev *dev, bt_dev_info *info) {
    *info = dev->info;
    info->free_bytes = TOTAL_BYTES - self(dev)->used;
    return BT_OK;
}

static bt_status null_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    if (bytes > TOTAL_BYTES - self(dev)->used)
        return bti_fail(BT_ENOMEM, "null: %llu bytes are more than are left",
                        (unsigned long long)bytes);
    bt_buf *buf = handle_new(dev, sizeof *buf);
    if (buf == NULL) return BT_ENOMEM;
    buf->bytes = bytes;
    self(dev)->used += bytes;
    *out = buf;
    return BT_OK;
}

static void null_free(bt_dev *dev, bt_buf *buf) {
    if (buf == NULL || check_handle(dev, &buf->h, "buffer") != BT_OK) return;
    buf->h.alive = 0;
    self(dev)->used -= buf->bytes;
}

static bt_status null_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    (void)dev;
    void *p = NULL;
    if (bytes > SIZE_MAX || posix_memalign(&p, ALIGNMENT, bytes ? bytes : 1) != 0)
        return bti_fail(BT_ENOMEM, "null: cannot take %llu bytes of host memory",
                        (unsigned long long)bytes);
    *out = p;
    return BT_OK;
}

static void null_host_free(bt_dev *dev, void *p) {
    (void)dev;
    free(p);
}

static bt_status null_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                             uint64_t bytes) {
    (void)src;
    BT_TRY(check_stream(dev, s));
    return check_range(dev, "upload", dst, off, bytes);
}

static bt_status null_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                               uint64_t bytes) {
    BT_TRY(check_stream(dev, s));
    BT_TRY(check_range(dev, "download", src, off, bytes));
    if (bytes) memset(dst, 0, bytes);
    return BT_OK;
}

static bt_status null_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                           uint8_t value) {
    (void)value;
    BT_TRY(check_stream(dev, s));
    return check_range(dev, "fill", buf, off, bytes);
}

static bt_status null_stream_new(bt_dev *dev, bt_stream **out) {
    bt_stream *s = handle_new(dev, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    *out = s;
    return BT_OK;
}

static void null_stream_free(bt_dev *dev, bt_stream *s) {
    (void)dev;
    if (s != NULL) s->h.alive = 0;
}

static bt_status null_sync(bt_dev *dev, bt_stream *s) { return check_stream(dev, s); }

static bt_status null_event_new(bt_dev *dev, bt_event **out) {
    bt_event *e = handle_new(dev, sizeof *e);
    if (e == NULL) return BT_ENOMEM;
    *out = e;
    return BT_OK;
}

static void null_event_free(bt_dev *dev, bt_event *e) {
    (void)dev;
    if (e != NULL) e->h.alive = 0;
}

static bt_status null_event_on_stream(bt_dev *dev, bt_stream *s, bt_event *e) {
    BT_TRY(check_stream(dev, s));
    return check_handle(dev, e ? &e->h : NULL, "event");
}

static bt_status null_event_sync(bt_dev *dev, bt_event *e) {
    return check_handle(dev, e ? &e->h : NULL, "event");
}

static const bt_dev_ops device_table = {
    .close = null_close,
    .query = null_query,
    .alloc = null_alloc,
    .free = null_free,
    .host_alloc = null_host_alloc,
    .host_free = null_host_free,
    .upload = null_upload,
    .download = null_download,
    .fill = null_fill,
    .stream_new = null_stream_new,
    .stream_free = null_stream_free,
    .sync = null_sync,
    .event_new = null_event_new,
    .event_free = null_event_free,
    .event_record = null_event_on_stream,
    .event_wait = null_event_on_stream,
    .event_sync = null_event_sync,
};

/* ---- ops --------------------------------------------------------------------------------------
 */

/* True when two operands share an element. Views of one row length whose columns lie side by side
 * (query, key and value in one matrix) do not, although their byte ranges do. */
static int overlap(const bt_call *call, int i, int j) {
    const bt_view *a = &call->t[i], *b = &call->t[j];
    uint64_t na = bti_op_extent(call, i), nb = bti_op_extent(call, j);
    if (a->buf != b->buf || na == 0 || nb == 0) return 0;
    if (a->off >= b->off + nb || b->off >= a->off + na) return 0;
    uint64_t size = bti_dtype_size(a->dtype), row = (uint64_t)a->ld * size;
    if (a->ld != b->ld || a->dtype != b->dtype || call->op == BT_OP_GEMM) return 1;
    uint64_t low = a->off < b->off ? a->off : b->off;
    uint64_t ca = (a->off - low) % row, cb = (b->off - low) % row;
    uint64_t ea = ca + (uint64_t)a->cols * size, eb = cb + (uint64_t)b->cols * size;
    /* Columns of one may run round the end of the other's row. */
    return (ca < eb && cb < ea) || (eb > row && ca < eb - row) || (ea > row && cb < ea - row);
}

/* The same place and shape: the one way in which an output may take over an input. */
static int same_place(const bt_view *a, const bt_view *b) {
    return a->off == b->off && a->ld == b->ld && a->rows == b->rows && a->cols == b->cols &&
           a->dtype == b->dtype;
}

static bt_status check_aliases(const bt_call *call, const bt_op_info *info) {
    for (int i = 0; i < info->operands; i++) {
        if (info->operand[i].role == BT_ROLE_IN || !bti_view_present(&call->t[i])) continue;
        for (int j = 0; j < info->operands; j++) {
            int both_written = info->operand[j].role != BT_ROLE_IN;
            if (j == i || !bti_view_present(&call->t[j]) || (both_written && j < i)) continue;
            if (!overlap(call, i, j)) continue;
            if (!both_written && (info->operand[i].alias >> j & 1) &&
                same_place(&call->t[i], &call->t[j]))
                continue;
            return bti_fail(BT_EINTERNAL, "null: op %s: %s overlaps %s", info->name,
                            info->operand[i].name, info->operand[j].name);
        }
    }
    return BT_OK;
}

/* The one slot function. */
static bt_status null_op(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_op_info *info = bti_op_info(call->op);
    BT_TRY(check_stream(dev, s));
    for (int i = 0; i < info->operands; i++) {
        const bt_view *v = &call->t[i];
        if (!bti_view_present(v)) continue;
        bt_status status =
            check_range(dev, info->operand[i].name, v->buf, v->off, bti_op_extent(call, i));
        if (status != BT_OK) return bti_fail_prefix(status, "op %s", info->name);
    }
    return check_aliases(call, info);
}

static const bt_op_fn op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = null_op,
#include "core/ops/op_list.inc"
};

/* ---- driver -----------------------------------------------------------------------------------
 */

static uint64_t no_scratch(const bt_dev_info *info, const bt_call *call) {
    (void)info, (void)call;
    return 0;
}

const bt_planning bti_planning_null = {
    .ws_bytes = no_scratch,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};

static bt_status null_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    if (reason_size > 0) reason[0] = 0;
    *count = 1;
    return BT_OK;
}

static bt_status null_open(const bt_host *host, int index, const bt_open_options *options,
                           bt_dev **out) {
    (void)options;
    if (index != 0) return bti_fail(BT_EUSAGE, "null: there is one device, not number %d", index);
    null_dev *dev = bti_alloc(1, sizeof *dev);
    if (dev == NULL) return BT_ENOMEM;
    dev->dev = (bt_dev){
        .driver = &bti_driver_null,
        .host = host,
        .ops = &device_table,
        .op = op_table,
        .info = {.name = "no arithmetic",
                 .backend = "null",
                 .total_bytes = TOTAL_BYTES,
                 .free_bytes = TOTAL_BYTES,
                 .alignment = ALIGNMENT,
                 .dtypes = 1u << BT_F32 | 1u << BT_F64 | 1u << BT_F16 | 1u << BT_BF16,
                 .threads = 1},
    };
    *out = &dev->dev;
    return BT_OK;
}

const bt_driver bti_driver_null = {BT_BACKEND_ABI, "null", &bti_planning_null, null_probe,
                                   null_open};
