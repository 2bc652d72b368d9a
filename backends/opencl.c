/* The opencl backend: devices of all platforms, memory, streams and events. Kernels are built in
 * opencl_program.c and launched by opencl_ops.c. libOpenCL is linked: where it is missing the
 * module does not load, and the loader's message is the reason. */
#include "backends/opencl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/hostinfo.h"

/* ---- errors ------------------------------------------------------------------------------------
 */

bt_status btcl_failf(const bt_host *host, bt_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    host->vfail(status, fmt, ap);
    va_end(ap);
    return status;
}

void btcl_notice(const bt_host *host, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    host->vlog(BT_LOG_WARN, fmt, ap);
    va_end(ap);
}

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
        NAME(CL_MEM_COPY_OVERLAP);
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
    return btcl_failf(host, status_of(code), "opencl: %s: %s (%d)", what, code_name(code), code);
}

static bt_status check(const bt_dev *dev, cl_int code, const char *what) {
    return code == CL_SUCCESS ? BT_OK : btcl_fail(dev->host, code, what);
}

/* ---- memory ------------------------------------------------------------------------------------
 */

static bt_status take_windows_back(bt_buf *buf) {
    for (size_t i = 0; i < buf->windows; i++) clReleaseMemObject(buf->window[i].mem);
    free(buf->window);
    return BT_OK;
}

static void opencl_free(bt_dev *dev, bt_buf *buf) {
    if (buf == NULL) return;
    clFinish(btcl_self(dev)->own.queue);
    take_windows_back(buf);
    clReleaseMemObject(buf->mem);
    btcl_self(dev)->used -= buf->bytes;
    free(buf);
}

/* Drivers give memory when it is first touched; so it is touched here, where a failure can still
 * be told. What it is filled with is NaN: reading what nobody wrote shows. */
static bt_status touch(bt_dev *dev, bt_buf *buf) {
    const cl_uint nan = UINT32_MAX;
    cl_command_queue queue = btcl_self(dev)->own.queue;
    cl_int code =
        clEnqueueFillBuffer(queue, buf->mem, &nan, sizeof nan, 0, buf->bytes, 0, NULL, NULL);
    if (code == CL_SUCCESS) code = clFinish(queue);
    return check(dev, code, "first use of new memory");
}

static bt_status opencl_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    btcl_dev *d = btcl_self(dev);
    const uint64_t size = bytes > UINT64_MAX - 3 ? bytes : (bytes + 3) / 4 * 4;
    if (size > dev->info.max_alloc || size > dev->info.total_bytes - d->used)
        return btcl_failf(dev->host, BT_ENOMEM,
                          "opencl: %llu bytes cannot be allocated: %llu of %llu are taken, and one "
                          "allocation may have %llu",
                          (unsigned long long)bytes, (unsigned long long)d->used,
                          (unsigned long long)dev->info.total_bytes,
                          (unsigned long long)dev->info.max_alloc);
    bt_buf *buf = calloc(1, sizeof *buf);
    if (buf == NULL) return btcl_failf(dev->host, BT_ENOMEM, "out of host memory");
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

/* Host memory that the driver can copy from and to directly: a buffer that stays mapped. */
struct btcl_pinned {
    struct btcl_pinned *next;
    cl_mem mem;
    void *p;
};

static bt_status opencl_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    btcl_dev *d = btcl_self(dev);
    const size_t size = bytes ? bytes : 1;
    struct btcl_pinned *pin = calloc(1, sizeof *pin);
    if (pin == NULL) return btcl_failf(dev->host, BT_ENOMEM, "out of host memory");
    cl_int code;
    pin->mem = clCreateBuffer(d->board->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, size,
                              NULL, &code);
    if (code == CL_SUCCESS) {
        pin->p = clEnqueueMapBuffer(d->own.queue, pin->mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                    size, 0, NULL, NULL, &code);
        if (code != CL_SUCCESS) clReleaseMemObject(pin->mem);
    }
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
        clEnqueueUnmapMemObject(d->own.queue, pin->mem, p, 0, NULL, NULL);
        clFinish(d->own.queue);
        clReleaseMemObject(pin->mem);
        *at = pin->next;
        free(pin);
        return;
    }
}

/* ---- copies ------------------------------------------------------------------------------------
 */

bt_stream *btcl_stream(bt_dev *dev, bt_stream *s) { return s != NULL ? s : &btcl_self(dev)->own; }

bt_status btcl_stuck(const bt_dev *dev, const bt_stream *s) {
    return s->failure == BT_OK ? BT_OK : btcl_failf(dev->host, s->failure, "%s", s->text);
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

static bt_status opencl_copy(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t dst_off, bt_buf *src,
                             uint64_t src_off, uint64_t bytes) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK || bytes == 0) return status;
    return check(
        dev,
        clEnqueueCopyBuffer(s->queue, src->mem, dst->mem, src_off, dst_off, bytes, 0, NULL, NULL),
        "clEnqueueCopyBuffer");
}

static bt_status opencl_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                             uint8_t value) {
    s = btcl_stream(dev, s);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK || bytes == 0) return status;
    uint8_t pattern[16];
    memset(pattern, value, sizeof pattern);
    size_t width = sizeof pattern; /* long patterns are written faster */
    while (off % width != 0 || bytes % width != 0) width /= 2;
    return check(dev,
                 clEnqueueFillBuffer(s->queue, buf->mem, pattern, width, off, bytes, 0, NULL, NULL),
                 "clEnqueueFillBuffer");
}

/* ---- streams and events ------------------------------------------------------------------------
 */

static bt_status open_queue(const bt_host *host, const btcl_board *board, bt_stream *s) {
    cl_int code;
    s->queue = clCreateCommandQueue(board->context, board->id, 0, &code);
    return code == CL_SUCCESS ? BT_OK : btcl_fail(host, code, "clCreateCommandQueue");
}

static bt_status opencl_stream_new(bt_dev *dev, bt_stream **out) {
    bt_stream *s = calloc(1, sizeof *s);
    if (s == NULL) return btcl_failf(dev->host, BT_ENOMEM, "out of host memory");
    bt_status status = open_queue(dev->host, btcl_self(dev)->board, s);
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
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK) return status;
    const cl_int code = clFinish(s->queue);
    s->waiting = 0;
    if (code == CL_SUCCESS) return BT_OK;
    s->failure = status_of(code);
    snprintf(s->text, sizeof s->text, "opencl: the device failed: %s (%d)", code_name(code), code);
    return btcl_stuck(dev, s);
}

static bt_status opencl_event_new(bt_dev *dev, bt_event **out) {
    bt_event *e = calloc(1, sizeof *e);
    if (e == NULL) return btcl_failf(dev->host, BT_ENOMEM, "out of host memory");
    *out = e;
    return BT_OK;
}

static void opencl_event_free(bt_dev *dev, bt_event *e) {
    (void)dev;
    if (e == NULL) return;
    if (e->event != NULL) {
        clWaitForEvents(1, &e->event);
        clReleaseEvent(e->event);
    }
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

/* ---- what there is -----------------------------------------------------------------------------
 */

#define MOST_BOARDS 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static btcl_board boards[MOST_BOARDS];
static int board_count = -1; /* -1: not looked for yet */

/* Adds the devices of all platforms that are of `type`, or those that are not. */
static void add_boards(const cl_platform_id *platform, cl_uint platforms, cl_device_type type,
                       int of_type) {
    for (cl_uint i = 0; i < platforms; i++) {
        cl_device_id id[MOST_BOARDS];
        cl_uint count = 0;
        if (clGetDeviceIDs(platform[i], CL_DEVICE_TYPE_ALL, MOST_BOARDS, id, &count) != CL_SUCCESS)
            continue;
        for (cl_uint k = 0; k < count && k < MOST_BOARDS && board_count < MOST_BOARDS; k++) {
            cl_device_type is = 0;
            clGetDeviceInfo(id[k], CL_DEVICE_TYPE, sizeof is, &is, NULL);
            if (((is & type) != 0) != of_type) continue;
            boards[board_count++] = (btcl_board){.platform = platform[i], .id = id[k], .type = is};
        }
    }
}

/* Devices that are no CPU come first: opencl:0 is a GPU where there is one. */
static void find_boards(void) {
    cl_platform_id platform[MOST_BOARDS];
    cl_uint platforms = 0;
    if (board_count > 0) return;
    board_count = 0;
    if (clGetPlatformIDs(MOST_BOARDS, platform, &platforms) != CL_SUCCESS) return;
    if (platforms > MOST_BOARDS) platforms = MOST_BOARDS;
    add_boards(platform, platforms, CL_DEVICE_TYPE_CPU, 0);
    add_boards(platform, platforms, CL_DEVICE_TYPE_CPU, 1);
}

static void why_none(char *reason, size_t size) {
    static const char *const variables[] = {"OCL_ICD_VENDORS", "POCL_CACHE_DIR", "POCL_DEVICES"};
    size_t n = (size_t)snprintf(reason, size,
                                "no OpenCL device: a driver must be installed (GPU vendors have "
                                "one; PoCL, package pocl-opencl-icd, is for any CPU)");
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && n < size)
            n += (size_t)snprintf(reason + n, size - n, "; %s is \"%s\": is that right?",
                                  variables[i], value);
    }
}

static bt_status opencl_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    pthread_mutex_lock(&lock);
    find_boards();
    *count = board_count;
    pthread_mutex_unlock(&lock);
    if (reason_size > 0) reason[0] = 0;
    if (*count == 0) why_none(reason, reason_size);
    return BT_OK;
}

/* ---- capabilities ------------------------------------------------------------------------------
 */

/* What a GPU's driver holds in its memory beside our buffers (context, code, queues). OpenCL has
 * no way to ask, so this is an allowance. */
#define DRIVER_BYTES ((uint64_t)256 << 20)
#define LOCAL_BYTES (24u << 10) /* attention needs almost 22 KiB */

static int is_cpu(const btcl_dev *d) { return (d->board->type & CL_DEVICE_TYPE_CPU) != 0; }

/* Free is what is not taken by this device's buffers; on a CPU, what the machine has left. */
static bt_status opencl_query(bt_dev *dev, bt_dev_info *info) {
    const btcl_dev *d = btcl_self(dev);
    *info = dev->info;
    info->free_bytes = info->total_bytes > d->used ? info->total_bytes - d->used : 0;
    info->runtime_bytes = DRIVER_BYTES;
    if (is_cpu(d)) {
        const uint64_t available = btcpu_available_memory(), all = btcpu_anonymous_memory();
        if (available < info->free_bytes) info->free_bytes = available;
        info->runtime_bytes = all > d->used ? all - d->used : 0;
    } else {
        info->free_bytes = info->free_bytes > DRIVER_BYTES ? info->free_bytes - DRIVER_BYTES : 0;
    }
    return BT_OK;
}

static cl_ulong number(cl_device_id id, cl_device_info what) {
    cl_ulong x = 0; /* cl_uint and cl_bool fill its low half */
    clGetDeviceInfo(id, what, sizeof x, &x, NULL);
    return x;
}

/* Why the device cannot be used; NULL where it can. */
static const char *refusal(cl_device_id id) {
    char version[128];
    int major = 0, minor = 0;
    btcl_device_text(id, CL_DEVICE_VERSION, version, sizeof version);
    if (sscanf(version, "OpenCL %d.%d", &major, &minor) != 2 || major * 10 + minor < 12)
        return "its OpenCL is older than 1.2";
    if (!number(id, CL_DEVICE_AVAILABLE)) return "it is not available";
    if (!number(id, CL_DEVICE_COMPILER_AVAILABLE)) return "its driver has no compiler";
    if (!number(id, CL_DEVICE_ENDIAN_LITTLE)) return "it is big-endian";
    if (number(id, CL_DEVICE_LOCAL_MEM_SIZE) < LOCAL_BYTES)
        return "it has less than 24 KiB of local memory";
    return NULL;
}

/* A smaller largest allocation, for tests of several heaps. */
static uint64_t asked_limit(uint64_t limit) {
    const char *text = getenv("BANTAM_OPENCL_MAX_ALLOC");
    const uint64_t asked = text ? strtoull(text, NULL, 10) : 0;
    return asked > 0 && asked < limit ? asked : limit;
}

static void describe(const btcl_board *board, bt_dev_info *info) {
    char device[128], platform[128], driver[128];
    size_t group = 0;
    btcl_device_text(board->id, CL_DEVICE_NAME, device, sizeof device);
    btcl_platform_text(board->platform, CL_PLATFORM_NAME, platform, sizeof platform);
    btcl_device_text(board->id, CL_DRIVER_VERSION, driver, sizeof driver);
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    snprintf(info->name, sizeof info->name, "%.40s (%.28s, driver %.14s, groups of %zu)", device,
             platform, driver, group);
    snprintf(info->backend, sizeof info->backend, "opencl");
    const cl_ulong bits = number(board->id, CL_DEVICE_MEM_BASE_ADDR_ALIGN);
    info->total_bytes = number(board->id, CL_DEVICE_GLOBAL_MEM_SIZE);
    info->max_alloc = asked_limit(number(board->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
    info->alignment = bits / 8 > 64 ? (uint32_t)(bits / 8) : 64;
    info->dtypes = 1u << BT_F32;
    info->threads = 1;
    info->host_memory = (board->type & CL_DEVICE_TYPE_CPU) != 0;
}

/* ---- rates -------------------------------------------------------------------------------------
 */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a call, waited for; the best of three. */
static bt_status time_call(bt_dev *dev, const bt_call *call, double *best) {
    *best = 1e9;
    for (int i = 0; i < 3; i++) {
        const double from = seconds();
        bt_status status = dev->op[call->op](dev, NULL, call);
        if (status == BT_OK) status = dev->ops->sync(dev, NULL);
        if (status != BT_OK) return status;
        const double spent = seconds() - from;
        if (i > 0 && spent < *best) *best = spent; /* the first may build something */
    }
    return BT_OK;
}

/* For the planner's cost: squares of growing side until one takes 3 ms, and a copy of what it read.
 * Our own product: a library's has no scratch here. */
static bt_status measure_rates(bt_dev *dev, btcl_board *board) {
    for (int64_t side = 128;; side *= 2) {
        bt_buf *buf = NULL;
        const uint64_t bytes = (uint64_t)(side * side) * sizeof(float);
        if (3 * bytes > dev->info.max_alloc) return BT_OK;
        bt_status status = dev->ops->alloc(dev, 3 * bytes, &buf);
        if (status != BT_OK) return status;
        bt_view square = {buf, 0, side, side, side, BT_F32};
        bt_call gemm = {.op = BT_OP_GEMM, .t = {square, square, square}, .p.gemm.alpha = 1};
        bt_call copy = {.op = BT_OP_AXPBY, .t = {square, square}, .p.axpby = {1.5, 0}};
        gemm.t[1].off = copy.t[1].off = bytes;
        gemm.t[2].off = 2 * bytes;
        double product = 0, move = 0;
        status = dev->ops->fill(dev, NULL, buf, 0, 3 * bytes, 0);
        if (status == BT_OK) status = time_call(dev, &gemm, &product);
        if (status == BT_OK) status = time_call(dev, &copy, &move);
        dev->ops->free(dev, buf);
        if (status != BT_OK) return status;
        board->flops = 2.0 * (double)side * (double)side * (double)side / product;
        board->bytes_per_s = 2.0 * (double)bytes / move;
        if (product > 0.003 || side == 2048) return BT_OK;
    }
}

/* ---- opening -----------------------------------------------------------------------------------
 */

static void opencl_close(bt_dev *dev) {
    btcl_dev *d = btcl_self(dev);
    while (d->pinned != NULL) opencl_host_free(dev, d->pinned->p);
    for (int i = 0; i < BTCL_KERNEL_COUNT; i++)
        if (d->kernel[i] != NULL) clReleaseKernel(d->kernel[i]);
    if (d->own.queue != NULL) {
        clFinish(d->own.queue);
        clReleaseCommandQueue(d->own.queue);
    }
    free(d);
}

static const bt_dev_ops opencl_ops = {
    .close = opencl_close,
    .query = opencl_query,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .host_alloc = opencl_host_alloc,
    .host_free = opencl_host_free,
    .warm = btcl_warm,
    .upload = opencl_upload,
    .download = opencl_download,
    .copy = opencl_copy,
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

static const bt_driver opencl_driver;

static bt_status make_kernels(btcl_dev *d) {
    static const char *const names[] = {
#define X(name) "k_" #name,
        BTCL_KERNELS(X)
#undef X
    };
    for (int i = 0; i < BTCL_KERNEL_COUNT; i++) {
        cl_int code;
        d->kernel[i] = clCreateKernel(d->board->program, names[i], &code);
        if (code != CL_SUCCESS) {
            d->kernel[i] = NULL;
            return btcl_fail(d->base.host, code, names[i]);
        }
    }
    return BT_OK;
}

static bt_status open_board(btcl_dev *d) {
    btcl_board *board = d->board;
    bt_dev *dev = &d->base;
    bt_status status = btcl_build(dev->host, board);
    if (status == BT_OK) status = open_queue(dev->host, board, &d->own);
    if (status == BT_OK) status = make_kernels(d);
    d->library = btcl_has_library(board);
    if (status == BT_OK && board->flops == 0) status = measure_rates(dev, board);
    dev->info.flops = board->flops;
    dev->info.bytes_per_s = board->bytes_per_s;
    return status == BT_OK ? opencl_query(dev, &dev->info) : status;
}

/* The board of that number, if it may be used. */
static bt_status pick(const bt_host *host, int index, const bt_open_options *options,
                      btcl_board **out) {
    char name[128];
    find_boards();
    if (board_count == 0) {
        char reason[512];
        why_none(reason, sizeof reason);
        return btcl_failf(host, BT_EDEVICE, "%s", reason);
    }
    if (index < 0 || index >= board_count)
        return btcl_failf(host, BT_EUSAGE,
                          "opencl:%d: there are %d OpenCL devices, numbered from 0; bantam devices "
                          "lists them",
                          index, board_count);
    btcl_board *board = &boards[index];
    btcl_device_text(board->id, CL_DEVICE_NAME, name, sizeof name);
    const char *why = refusal(board->id);
    if (why != NULL) return btcl_failf(host, BT_EDEVICE, "opencl:%d, %s: %s", index, name, why);
    if (options != NULL && options->automatic && (board->type & CL_DEVICE_TYPE_CPU))
        return btcl_failf(host, BT_EUSAGE,
                          "opencl:%d, %s: a CPU, which is used through OpenCL only when asked for",
                          index, name);
    *out = board;
    return BT_OK;
}

static bt_status opencl_open(const bt_host *host, int index, const bt_open_options *options,
                             bt_dev **out) {
    btcl_board *board = NULL;
    pthread_mutex_lock(&lock);
    bt_status status = pick(host, index, options, &board);
    btcl_dev *d = status == BT_OK ? calloc(1, sizeof *d) : NULL;
    if (status == BT_OK && d == NULL) status = btcl_failf(host, BT_ENOMEM, "out of host memory");
    if (d != NULL) {
        d->board = board;
        d->base = (bt_dev){
            .driver = &opencl_driver, .host = host, .ops = &opencl_ops, .op = btcl_op_table};
        describe(board, &d->base.info);
        status = open_board(d);
        if (status != BT_OK) opencl_close(&d->base);
    }
    pthread_mutex_unlock(&lock);
    if (status == BT_OK) *out = &d->base;
    return status;
}

static const bt_driver opencl_driver = {
    .abi = BT_BACKEND_ABI,
    .name = "opencl",
    .planning = &bti_planning_opencl,
    .probe = opencl_probe,
    .open = opencl_open,
};

__attribute__((visibility("default"))) const bt_driver *bt_module_driver(void);
const bt_driver *bt_module_driver(void) { return &opencl_driver; }
