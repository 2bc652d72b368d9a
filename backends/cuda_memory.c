/* Errors, memory, copies, streams and events of the cuda backend, and its device table. */
#include "backends/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------
 */

static bt_status status_of(cudaError_t code) {
    return code == cudaErrorMemoryAllocation ? BT_ENOMEM : BT_EDEVICE;
}

/* "cuda: WHAT: TEXT (NAME, code)", and the status that fits the code. */
static bt_status fail(const bt_host *host, cudaError_t code, const char *what) {
    return bt_host_fail(host, status_of(code), "cuda: %s: %s (%s, %d)", what,
                        cudaGetErrorString(code), cudaGetErrorName(code), (int)code);
}

/* Is the call alone at fault, and not something that the device was doing? */
static int is_refusal(cudaError_t code) {
    return code == cudaErrorInvalidValue || code == cudaErrorMemoryAllocation ||
           code == cudaErrorInvalidConfiguration || code == cudaErrorLaunchOutOfResources ||
           code == cudaErrorInvalidResourceHandle || code == cudaErrorInvalidDevice;
}

bt_status btcu_result(bt_dev *dev, bt_stream *s, cudaError_t code, const char *what) {
    if (code == cudaSuccess) return BT_OK;
    (void)cudaGetLastError(); /* a refused call leaves its code there: the next launch is not it */
    if (s == NULL || is_refusal(code)) return fail(dev->host, code, what);
    s->failure = status_of(code);
    snprintf(s->text, sizeof s->text, "cuda:%d: %s: %s (%s, %d): the device is lost to this run",
             btcu_self(dev)->index, what, cudaGetErrorString(code), cudaGetErrorName(code),
             (int)code);
    return bt_host_fail(dev->host, s->failure, "%s", s->text);
}

bt_status btcu_enter(bt_dev *dev, bt_stream **s) {
    btcu_dev *d = btcu_self(dev);
    if (*s == NULL) *s = &d->own;
    if ((*s)->failure != BT_OK) return bt_host_fail(dev->host, (*s)->failure, "%s", (*s)->text);
    return btcu_check(dev, *s, cudaSetDevice(d->index), "cudaSetDevice");
}

/* The same for what belongs to no stream. */
static bt_status use_device(bt_dev *dev) {
    bt_stream *own = NULL;
    return btcu_enter(dev, &own);
}

/* What is given back is given back on a device that failed, too; that it cannot be is nothing new
 * then, and must not take the place of the first error's text. */
static int may_free(bt_dev *dev) {
    return BTCU_WATCHED(dev->host, "cudaSetDevice", cudaSetDevice(btcu_self(dev)->index)) ==
           cudaSuccess;
}
#define forget(dev, call) forget_result(BTCU_WATCHED((dev)->host, #call, call))
static void forget_result(int code) {
    if (code != cudaSuccess) (void)cudaGetLastError();
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static void cuda_free(bt_dev *dev, bt_buf *buf) {
    if (buf == NULL) return;
    if (may_free(dev)) forget(dev, cudaFree(buf->p));
    btcu_self(dev)->used -= buf->bytes;
    free(buf);
}

/* New memory is NaN: reading what nobody wrote shows. */
static bt_status poison(bt_dev *dev, const bt_buf *buf) {
    btcu_dev *d = btcu_self(dev);
    bt_status status =
        btcu_check(dev, &d->own, cudaMemsetAsync(buf->p, 0xFF, buf->bytes, d->own.stream),
                   "first use of new memory");
    if (status != BT_OK) return status;
    return btcu_check(dev, &d->own, cudaStreamSynchronize(d->own.stream),
                      "first use of new memory");
}

bt_status btcu_no_memory(bt_dev *dev, const char *what) {
    size_t room = 0, total = 0;
    forget(dev, cudaMemGetInfo(&room, &total));
    return bt_host_fail(
        dev->host, BT_ENOMEM,
        "cuda:%d: %s cannot be allocated: %zu of %zu bytes are free, this run has %llu "
        "in buffers, other processes and the driver hold the rest",
        btcu_self(dev)->index, what, room, total, (unsigned long long)btcu_self(dev)->used);
}

bt_status btcu_malloc(bt_dev *dev, uint64_t bytes, void **out) {
    char what[160];
    const cudaError_t code =
        (cudaError_t)BTCU_WATCHED(dev->host, "cudaMalloc", cudaMalloc(out, bytes));
    if (code != cudaErrorMemoryAllocation)
        return btcu_result(dev, &btcu_self(dev)->own, code, "cudaMalloc");
    (void)cudaGetLastError();
    snprintf(what, sizeof what, "%llu bytes in one piece (BANTAM_CUDA_MAX_ALLOC=N: several of N)",
             (unsigned long long)bytes);
    return btcu_no_memory(dev, what);
}

static bt_status cuda_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    bt_status status = use_device(dev);
    if (status != BT_OK) return status;
    if (dev->info.max_alloc > 0 && bytes > dev->info.max_alloc)
        return bt_host_fail(dev->host, BT_ENOMEM,
                            "cuda: one allocation may have %llu bytes, not %llu",
                            (unsigned long long)dev->info.max_alloc, (unsigned long long)bytes);
    bt_buf *buf = calloc(1, sizeof *buf);
    if (buf == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    void *p = NULL;
    status = btcu_malloc(dev, bytes ? bytes : 1, &p);
    if (status != BT_OK) {
        free(buf);
        return status;
    }
    *buf = (bt_buf){p, bytes ? bytes : 1};
    btcu_self(dev)->used += buf->bytes;
    status = poison(dev, buf);
    if (status != BT_OK) {
        cuda_free(dev, buf);
        return status;
    }
    *out = buf;
    return BT_OK;
}

static bt_status cuda_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    void *p = NULL;
    bt_status status = use_device(dev);
    if (status == BT_OK)
        status = btcu_check(dev, NULL, cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable),
                            "cudaHostAlloc (pinned memory of the host)");
    if (status == BT_OK) *out = p;
    return status;
}

static void cuda_host_free(bt_dev *dev, void *p) {
    if (p != NULL) forget(dev, cudaFreeHost(p));
}

/* ---- copies ------------------------------------------------------------------------------------
 */

static bt_status cuda_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                             uint64_t bytes) {
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK || bytes == 0) return status;
    return btcu_check(dev, s,
                      cudaMemcpyAsync(dst->p + off, src, bytes, cudaMemcpyHostToDevice, s->stream),
                      "copy to the device");
}

static bt_status cuda_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                               uint64_t bytes) {
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK || bytes == 0) return status;
    return btcu_check(dev, s,
                      cudaMemcpyAsync(dst, src->p + off, bytes, cudaMemcpyDeviceToHost, s->stream),
                      "copy from the device");
}

static bt_status cuda_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                           uint8_t value) {
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK || bytes == 0) return status;
    return btcu_check(dev, s, cudaMemsetAsync(buf->p + off, value, bytes, s->stream), "fill");
}

/* ---- streams and events ------------------------------------------------------------------------
 */

bt_status btcu_open_stream(btcu_dev *d, bt_stream *s) {
    return btcu_check(&d->base, NULL, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking),
                      "cudaStreamCreate");
}

static bt_status cuda_stream_new(bt_dev *dev, bt_stream **out) {
    bt_status status = use_device(dev);
    if (status != BT_OK) return status;
    bt_stream *s = calloc(1, sizeof *s);
    if (s == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    status = btcu_open_stream(btcu_self(dev), s);
    if (status != BT_OK) {
        free(s);
        return status;
    }
    *out = s;
    return BT_OK;
}

static void cuda_stream_free(bt_dev *dev, bt_stream *s) {
    if (s == NULL) return;
    if (may_free(dev)) {
        forget(dev, cudaStreamSynchronize(s->stream));
        forget(dev, cudaStreamDestroy(s->stream));
    }
    free(s);
}

static bt_status cuda_sync(bt_dev *dev, bt_stream *s) {
    bt_status status = btcu_enter(dev, &s);
    if (status == BT_OK)
        status = btcu_check(dev, s, cudaStreamSynchronize(s->stream), "work on the device");
    /* A call that was refused did not wait. */
    if (status != BT_OK && may_free(dev)) forget(dev, cudaStreamSynchronize(s->stream));
    return status;
}

static bt_status cuda_event_new(bt_dev *dev, bt_event **out) {
    bt_status status = use_device(dev);
    if (status != BT_OK) return status;
    bt_event *e = calloc(1, sizeof *e);
    if (e == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    status = btcu_check(dev, NULL, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming),
                        "cudaEventCreate");
    if (status != BT_OK) {
        free(e);
        return status;
    }
    *out = e;
    return BT_OK;
}

static void cuda_event_free(bt_dev *dev, bt_event *e) {
    if (e == NULL) return;
    if (may_free(dev)) forget(dev, cudaEventDestroy(e->event));
    free(e);
}

static bt_status cuda_event_record(bt_dev *dev, bt_stream *s, bt_event *e) {
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK) return status;
    return btcu_check(dev, s, cudaEventRecord(e->event, s->stream), "cudaEventRecord");
}

/* An event that was never recorded holds up nobody. */
static bt_status cuda_event_wait(bt_dev *dev, bt_stream *s, bt_event *e) {
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK) return status;
    return btcu_check(dev, s, cudaStreamWaitEvent(s->stream, e->event, 0), "cudaStreamWaitEvent");
}

static bt_status cuda_event_sync(bt_dev *dev, bt_event *e) {
    bt_status status = use_device(dev);
    if (status != BT_OK) return status;
    return btcu_check(dev, &btcu_self(dev)->own, cudaEventSynchronize(e->event),
                      "work on the device");
}

/* ---- the table ----------------------------------------------------------------------------------
 */

const bt_dev_ops btcu_dev_ops = {
    .close = btcu_close,
    .query = btcu_query,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .warm = btcu_warm,
    .upload = cuda_upload,
    .download = cuda_download,
    .fill = cuda_fill,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .sync = cuda_sync,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_sync = cuda_event_sync,
};
