/* The "ref" backend: binds cpu/ref.c. Memory is host memory, ops run at once on the calling thread,
 * streams and events are empty. Every access is checked against its buffer, and fresh memory is
 * filled with NaN, so that a read of what nobody wrote shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/builtin.h"
#include "core/base/status.h"
#include "core/ops/ops.h"
#include "cpu/ref.h"

#define ALIGNMENT 64
#define POISON 0xFF /* four or eight of these are a NaN */

struct bt_buf {
    char *data;
    uint64_t bytes;
};
struct bt_stream {
    int unused;
};
struct bt_event {
    int unused;
};

/* ---- memory -----------------------------------------------------------------------------------
 */

static void ref_close(bt_dev *dev) { bti_free(dev); }

/* Memory of this machine that is to be had without swapping, and all of it. */
static void machine_memory(uint64_t *total, uint64_t *available) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *total = page * (uint64_t)sysconf(_SC_PHYS_PAGES);
    *available = page * (uint64_t)sysconf(_SC_AVPHYS_PAGES);
    FILE *f = fopen("/proc/meminfo", "r");
    if (f == NULL) return;
    char line[256];
    unsigned long long kib;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) *available = (uint64_t)kib << 10;
    fclose(f);
}

static bt_status ref_query(bt_dev *dev, bt_dev_info *info) {
    *info = dev->info;
    machine_memory(&info->total_bytes, &info->free_bytes);
    return BT_OK;
}

static bt_status ref_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    (void)dev;
    void *p = NULL;
    if (bytes > SIZE_MAX - ALIGNMENT || posix_memalign(&p, ALIGNMENT, bytes ? bytes : 1) != 0)
        return bti_fail(BT_ENOMEM, "ref: cannot take %llu bytes of memory",
                        (unsigned long long)bytes);
    memset(p, POISON, bytes);
    *out = p;
    return BT_OK;
}

static void ref_host_free(bt_dev *dev, void *p) {
    (void)dev;
    free(p);
}

static bt_status ref_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    bt_buf *buf = bti_alloc(1, sizeof *buf);
    if (buf == NULL) return BT_ENOMEM;
    void *data = NULL;
    bt_status status = ref_host_alloc(dev, bytes, &data);
    if (status != BT_OK) {
        bti_free(buf);
        return status;
    }
    buf->data = data;
    buf->bytes = bytes;
    *out = buf;
    return BT_OK;
}

static void ref_free(bt_dev *dev, bt_buf *buf) {
    if (buf == NULL) return;
    ref_host_free(dev, buf->data);
    bti_free(buf);
}

static bt_status check_range(const char *what, const bt_buf *buf, uint64_t off, uint64_t bytes) {
    if (buf != NULL && off <= buf->bytes && bytes <= buf->bytes - off) return BT_OK;
    return bti_fail(BT_EINTERNAL,
                    "ref: %s of %llu bytes at %llu passes the end of its buffer (%llu)", what,
                    (unsigned long long)bytes, (unsigned long long)off,
                    (unsigned long long)(buf ? buf->bytes : 0));
}

static bt_status ref_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                            uint64_t bytes) {
    (void)dev, (void)s;
    BT_TRY(check_range("upload", dst, off, bytes));
    if (bytes) memcpy(dst->data + off, src, bytes);
    return BT_OK;
}

static bt_status ref_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                              uint64_t bytes) {
    (void)dev, (void)s;
    BT_TRY(check_range("download", src, off, bytes));
    if (bytes) memcpy(dst, src->data + off, bytes);
    return BT_OK;
}

static bt_status ref_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                          uint8_t value) {
    (void)dev, (void)s;
    BT_TRY(check_range("fill", buf, off, bytes));
    if (bytes) memset(buf->data + off, value, bytes);
    return BT_OK;
}

/* ---- streams and events: everything has happened when a call returns ----------------------------
 */

static bt_status ref_stream_new(bt_dev *dev, bt_stream **out) {
    (void)dev;
    bt_stream *s = bti_alloc(1, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    *out = s;
    return BT_OK;
}

static void ref_stream_free(bt_dev *dev, bt_stream *s) {
    (void)dev;
    bti_free(s);
}

static bt_status ref_sync(bt_dev *dev, bt_stream *s) {
    (void)dev, (void)s;
    return BT_OK;
}

static bt_status ref_event_new(bt_dev *dev, bt_event **out) {
    (void)dev;
    bt_event *e = bti_alloc(1, sizeof *e);
    if (e == NULL) return BT_ENOMEM;
    *out = e;
    return BT_OK;
}

static void ref_event_free(bt_dev *dev, bt_event *e) {
    (void)dev;
    bti_free(e);
}

static bt_status ref_event_record(bt_dev *dev, bt_stream *s, bt_event *e) {
    (void)dev, (void)s, (void)e;
    return BT_OK;
}

static bt_status ref_event_sync(bt_dev *dev, bt_event *e) {
    (void)dev, (void)e;
    return BT_OK;
}

static const bt_dev_ops device_table = {
    .close = ref_close,
    .query = ref_query,
    .alloc = ref_alloc,
    .free = ref_free,
    .host_alloc = ref_host_alloc,
    .host_free = ref_host_free,
    .upload = ref_upload,
    .download = ref_download,
    .fill = ref_fill,
    .stream_new = ref_stream_new,
    .stream_free = ref_stream_free,
    .sync = ref_sync,
    .event_new = ref_event_new,
    .event_free = ref_event_free,
    .event_record = ref_event_record,
    .event_wait = ref_event_record,
    .event_sync = ref_event_sync,
};

/* ---- ops --------------------------------------------------------------------------------------
 */

static bt_status (*const oracle[BT_OP_COUNT])(const btref_args *) = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = btref_##name,
#include "core/ops/op_list.inc"
};

/* The one slot function: operands to pointers, bounds checked, then the op's loops. */
static bt_status ref_op(bt_dev *dev, bt_stream *s, const bt_call *call) {
    (void)dev, (void)s;
    const bt_op_info *info = bti_op_info(call->op);
    btref_args args = {.call = call};
    for (int i = 0; i < info->operands; i++) {
        const bt_view *v = &call->t[i];
        if (!bti_view_present(v)) continue;
        bt_status status =
            check_range(info->operand[i].name, v->buf, v->off, bti_op_extent(call, i));
        if (status != BT_OK) return bti_fail_prefix(status, "op %s", info->name);
        args.p[i] = v->buf->data + v->off;
    }
    return oracle[call->op](&args);
}

static const bt_op_fn op_table[BT_OP_COUNT] = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = ref_op,
#include "core/ops/op_list.inc"
};

/* ---- driver -----------------------------------------------------------------------------------
 */

static uint64_t no_scratch(const bt_dev_info *info, const bt_call *call) {
    (void)info, (void)call;
    return 0;
}

const bt_planning bti_planning_ref = {
    .ws_bytes = no_scratch,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};

static bt_status ref_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    if (reason_size > 0) reason[0] = 0;
    *count = 1;
    return BT_OK;
}

static bt_status ref_open(const bt_host *host, int index, const bt_open_options *options,
                          bt_dev **out) {
    (void)options;
    if (index != 0) return bti_fail(BT_EUSAGE, "ref: there is one device, not number %d", index);
    bt_dev *dev = bti_alloc(1, sizeof *dev);
    if (dev == NULL) return BT_ENOMEM;
    *dev = (bt_dev){
        .driver = &bti_driver_ref,
        .host = host,
        .ops = &device_table,
        .op = op_table,
        .info = {.name = "plain loops in double",
                 .backend = "ref",
                 .alignment = ALIGNMENT,
                 .dtypes = 1u << BT_F32 | 1u << BT_F64 | 1u << BT_F16 | 1u << BT_BF16,
                 .threads = 1,
                 .host_memory = 1},
    };
    machine_memory(&dev->info.total_bytes, &dev->info.free_bytes);
    *out = dev;
    return BT_OK;
}

const bt_driver bti_driver_ref = {BT_BACKEND_ABI, "ref", &bti_planning_ref, ref_probe, ref_open};
