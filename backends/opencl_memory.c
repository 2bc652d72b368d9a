/* Errors, memory, copies, streams and events of the opencl backend, and its device table. */
#include "backends/opencl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------
 */

static const char *code_name(cl_int code) {
#define NAME(x) \
    case x: \
        return #x
    switch (code) {
        NAME(CL_DEVICE_NOT_FOUND);
        NAME(CL_DEVICE_NOT_AVAILABLE);
        NAME(CL_COMPILER_NOT_AVAILABLE);
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE);
        NAME(CL_OUT_OF_RESOURCES);
        NAME(CL_OUT_OF_HOST_MEMORY);
        NAME(CL_BUILD_PROGRAM_FAILURE);
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST);
        NAME(CL_INVALID_VALUE);
        NAME(CL_INVALID_PLATFORM);
        NAME(CL_INVALID_DEVICE);
        NAME(CL_INVALID_CONTEXT);
        NAME(CL_INVALID_COMMAND_QUEUE);
        NAME(CL_INVALID_MEM_OBJECT);
        NAME(CL_INVALID_BINARY);
        NAME(CL_INVALID_BUILD_OPTIONS);
        NAME(CL_INVALID_PROGRAM_EXECUTABLE);
        NAME(CL_INVALID_KERNEL_NAME);
        NAME(CL_INVALID_KERNEL_ARGS);
        NAME(CL_INVALID_ARG_INDEX);
        NAME(CL_INVALID_ARG_VALUE);
        NAME(CL_INVALID_ARG_SIZE);
        NAME(CL_INVALID_WORK_GROUP_SIZE);
        NAME(CL_INVALID_WORK_ITEM_SIZE);
        NAME(CL_INVALID_BUFFER_SIZE);
    case -1001:
        return "no platform found";
    default:
        return "OpenCL error";
    }
#undef NAME
}

static bt_status status_of(cl_int code) {
    switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
        return BT_ENOMEM;
    default:
        return BT_EDEVICE;
    }
}

bt_status btcl_fail(const bt_host *host, cl_int code, const char *what) {
    return bt_host_fail(host, status_of(code), "opencl: %s: %s (%d)", what, code_name(code), code);
}

static bt_status check(const bt_dev *dev, cl_int code, const char *what) {
    return code == CL_SUCCESS ? BT_OK : btcl_fail(dev->host, code, what);
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static void free_windows(bt_buf *buf) {
    for (size_t i = 0; i < buf->windows; i++) clReleaseMemObject(buf->window[i].mem);
    free(buf->window);
}

static void opencl_free(bt_dev *dev, bt_buf *buf) {
    if (buf == NULL) return;
    clFinish(btcl_self(dev)->own.queue);
    free_windows(buf);
    clReleaseMemObject(buf->mem);
    btcl_self(dev)->used -= buf->bytes;
    free(buf);
}

/* Bytes of one fill, a multiple of all patterns: drivers were met that hang, or lose the device,
 * from 2 GiB on. */
#define MOST_FILL ((uint64_t)64 << 20)

/* Fills with the byte `value`, with long patterns where they fit: they are written faster. */
static cl_int fill(cl_command_queue queue, cl_mem mem, uint64_t off, uint64_t bytes,
                   uint8_t value) {
    uint8_t pattern[16];
    cl_int code = CL_SUCCESS;
    memset(pattern, value, sizeof pattern);
    size_t width = sizeof pattern;
    while (off % width != 0 || bytes % width != 0) width /= 2;
    for (uint64_t at = 0; at < bytes && code == CL_SUCCESS; at += MOST_FILL) {
        const uint64_t piece = bytes - at < MOST_FILL ? bytes - at : MOST_FILL;
        code = clEnqueueFillBuffer(queue, mem, pattern, width, off + at, piece, 0, NULL, NULL);
    }
    return code;
}

/* Drivers give memory when it is first touched; so it is touched here, where a failure can still
 * be told. What it is filled with is NaN: reading what nobody wrote shows. */
static bt_status touch(bt_dev *dev, bt_buf *buf) {
    cl_command_queue queue = btcl_self(dev)->own.queue;
    cl_int code = fill(queue, buf->mem, 0, buf->bytes, 0xff);
    if (code == CL_SUCCESS) code = clFinish(queue);
    if (code == CL_OUT_OF_RESOURCES) /* some drivers' word for it */
        return bt_host_fail(
            dev->host, BT_ENOMEM,
            "opencl: %llu bytes cannot be used: %s (%d): what other programs hold is "
            "not known here; a limit leaves it to them (--memory)",
            (unsigned long long)buf->bytes, code_name(code), code);
    return check(dev, code, "first use of new memory");
}

static bt_status opencl_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    btcl_dev *d = btcl_self(dev);
    const uint64_t size = bytes > UINT64_MAX - 3 ? bytes : (bytes + 3) / 4 * 4;
    if (size > dev->info.max_alloc || size > dev->info.total_bytes - d->used)
        return bt_host_fail(
            dev->host, BT_ENOMEM,
            "opencl: %llu bytes cannot be allocated: %llu of %llu are taken, and one "
            "allocation may have %llu",
            (unsigned long long)bytes, (unsigned long long)d->used,
            (unsigned long long)dev->info.total_bytes, (unsigned long long)dev->info.max_alloc);
    bt_buf *buf = calloc(1, sizeof *buf);
    if (buf == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    cl_int code;
    buf->bytes = size ? size : 4;
    buf->mem = clCreateBuffer(d->board->context, CL_MEM_READ_WRITE, buf->bytes, NULL, &code);
    if (code != CL_SUCCESS) {
        free(buf);
        return btcl_fail(dev->host, code, "clCreateBuffer");
    }
    d->used += buf->bytes;
    bt_status status = touch(dev, buf);
    if (status != BT_OK) {
        opencl_free(dev, buf);
        return status;
    }
    *out = buf;
    return BT_OK;
}

/* Memory that the driver has pinned; more than one allocation may have is the system's own: copies
 * are right, and slower. */
static cl_int take_host(btcl_dev *d, struct btcl_pinned *pin, size_t size) {
    cl_int code;
    if (size > d->base.info.max_alloc)
        return posix_memalign(&pin->p, 4096, size) == 0 ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    pin->mem = clCreateBuffer(d->board->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size,
                              NULL, &code);
    if (code == CL_SUCCESS) {
        pin->p = clEnqueueMapBuffer(d->own.queue, pin->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                    size, 0, NULL, NULL, &code);
        if (code != CL_SUCCESS) clReleaseMemObject(pin->mem);
    }
    return code;
}

static bt_status opencl_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    btcl_dev *d = btcl_self(dev);
    struct btcl_pinned *pin = calloc(1, sizeof *pin);
    if (pin == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    const cl_int code = take_host(d, pin, bytes ? bytes : 1);
    if (code != CL_SUCCESS) {
        free(pin);
        return btcl_fail(dev->host, code, "host memory for copies");
    }
    pin->next = d->pinned;
    d->pinned = pin;
    *out = pin->p;
    return BT_OK;
}

static void opencl_host_free(bt_dev *dev, void *p) {
    btcl_dev *d = btcl_self(dev);
    for (struct btcl_pinned **at = &d->pinned; *at != NULL; at = &(*at)->next) {
        struct btcl_pinned *pin = *at;
        if (pin->p != p) continue;
        if (pin->mem != NULL) {
            clEnqueueUnmapMemObject(d->own.queue, pin->mem, p, 0, NULL, NULL);
            clFinish(d->own.queue);
            clReleaseMemObject(pin->mem);
        } else {
            free(p);
        }
        *at = pin->next;
        free(pin);
        return;
    }
}

/* ---- copies ------------------------------------------------------------------------------------
 */

bt_stream *btcl_stream(bt_dev *dev, bt_stream *s) { return s != NULL ? s : &btcl_self(dev)->own; }

bt_status btcl_stuck(const bt_dev *dev, const bt_stream *s) {
    return s->failure == BT_OK ? BT_OK : bt_host_fail(dev->host, s->failure, "%s", s->text);
}

static bt_status opencl_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off,
                               const void *src, uint64_t bytes) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK || bytes == 0) return status;
    return check(dev,
                 clEnqueueWriteBuffer(s->queue, dst->mem, CL_FALSE, off, bytes, src, 0, NULL, NULL),
                 "clEnqueueWriteBuffer");
}

static bt_status opencl_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                                 uint64_t bytes) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK || bytes == 0) return status;
    return check(dev,
                 clEnqueueReadBuffer(s->queue, src->mem, CL_FALSE, off, bytes, dst, 0, NULL, NULL),
                 "clEnqueueReadBuffer");
}

static bt_status opencl_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                             uint8_t value) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK) return status;
    return check(dev, fill(s->queue, buf->mem, off, bytes, value), "clEnqueueFillBuffer");
}

/* ---- streams and events ------------------------------------------------------------------------
 */

bt_status btcl_open_queue(const bt_host *host, const btcl_board *board, bt_stream *s) {
    cl_int code;
    s->queue = clCreateCommandQueue(board->context, board->id, 0, &code);
    return code == CL_SUCCESS ? BT_OK : btcl_fail(host, code, "clCreateCommandQueue");
}

static bt_status opencl_stream_new(bt_dev *dev, bt_stream **out) {
    bt_stream *s = calloc(1, sizeof *s);
    if (s == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    bt_status status = btcl_open_queue(dev->host, btcl_self(dev)->board, s);
    if (status != BT_OK) {
        free(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

static void opencl_stream_free(bt_dev *dev, bt_stream *s) {
    (void)dev;
    if (s == NULL) return;
    clFinish(s->queue);
    clReleaseCommandQueue(s->queue);
    free(s);
}

static bt_status opencl_sync(bt_dev *dev, bt_stream *s) {
    s = btcl_stream(dev, s);
    const cl_int code = clFinish(s->queue);
    s->waiting = 0;
    if (code != CL_SUCCESS) clFinish(s->queue); /* a call that was refused did not wait */
    if (code == CL_SUCCESS || s->failure != BT_OK) return btcl_stuck(dev, s);
    s->failure = status_of(code);
    snprintf(s->text, sizeof s->text, "opencl: the device failed: %s (%d)", code_name(code), code);
    return btcl_stuck(dev, s);
}

static bt_status opencl_event_new(bt_dev *dev, bt_event **out) {
    bt_event *e = calloc(1, sizeof *e);
    if (e == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    *out = e;
    return BT_OK;
}

static void opencl_event_free(bt_dev *dev, bt_event *e) {
    (void)dev;
    if (e == NULL) return;
    if (e->event != NULL) clReleaseEvent(e->event); /* it lives on until its queue has passed it */
    free(e);
}

/* Flushed, since another queue or the host may wait for it. */
static bt_status opencl_event_record(bt_dev *dev, bt_stream *s, bt_event *e) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK) return status;
    cl_event event;
    cl_int code = clEnqueueMarkerWithWaitList(s->queue, 0, NULL, &event);
    if (code != CL_SUCCESS) return btcl_fail(dev->host, code, "clEnqueueMarkerWithWaitList");
    if (e->event != NULL) clReleaseEvent(e->event);
    e->event = event;
    s->waiting = 0;
    return check(dev, clFlush(s->queue), "clFlush");
}

static bt_status opencl_event_wait(bt_dev *dev, bt_stream *s, bt_event *e) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK || e->event == NULL) return status;
    return check(dev, clEnqueueBarrierWithWaitList(s->queue, 1, &e->event, NULL),
                 "clEnqueueBarrierWithWaitList");
}

static bt_status opencl_event_sync(bt_dev *dev, bt_event *e) {
    if (e->event == NULL) return BT_OK;
    return check(dev, clWaitForEvents(1, &e->event), "clWaitForEvents");
}

/* ---- the table ----------------------------------------------------------------------------------
 */

const bt_dev_ops btcl_dev_ops = {
    .close = btcl_close,
    .query = btcl_query,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .host_alloc = opencl_host_alloc,
    .host_free = opencl_host_free,
    .warm = btcl_warm,
    .upload = opencl_upload,
    .download = opencl_download,
    .fill = opencl_fill,
    .stream_new = opencl_stream_new,
    .stream_free = opencl_stream_free,
    .sync = opencl_sync,
    .event_new = opencl_event_new,
    .event_free = opencl_event_free,
    .event_record = opencl_event_record,
    .event_wait = opencl_event_wait,
    .event_sync = opencl_event_sync,
};
