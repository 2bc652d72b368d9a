/* The cpu backend: a device whose memory is the process's own. Everything is done when a call
 * returns, so that streams and events are mere names. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backends/builtin.h"
#include "cpu/kernels.h"

typedef struct cpu_dev {
    bt_dev base;
    bt_buf *buffers;
} cpu_dev;

struct bt_stream {
    int unused;
};
struct bt_event {
    int unused;
};

/* ---- memory ---------------------------------------------------------------------------------- */

#define HUGE ((size_t)2 << 20)

/* Bytes of a buffer that are resident: pages that have been touched. */
static uint64_t touched(const bt_buf *buf) {
    unsigned char seen[4096];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), span = sizeof seen * page;
    uint64_t pages = 0;
    for (size_t at = 0; at < buf->bytes; at += span) {
        size_t n = buf->bytes - at < span ? buf->bytes - at : span;
        if (mincore(buf->base + at, n, seen) != 0) return buf->bytes;
        for (size_t i = 0; i < (n + page - 1) / page; i++) pages += seen[i] & 1;
    }
    return pages * page;
}

/* runtime_bytes: this process's resident anonymous memory (heap, stacks, the buffers of OpenBLAS as
 * far as they have been touched, the host program's own tables) less the touched pages of the
 * buffers that this device has given out. Files that are mapped (code, data) do not count: the
 * kernel can drop them. What another device of the same process holds does count. */
static bt_status cpu_query(bt_dev *dev, bt_dev_info *info) {
    const cpu_dev *d = (const cpu_dev *)dev;
    uint64_t own = 0, all = btcpu_anonymous_memory();
    for (const bt_buf *b = d->buffers; b; b = b->next) own += touched(b);
    *info = dev->info;
    info->free_bytes = btcpu_available_memory();
    info->runtime_bytes = all > own ? all - own : 0;
    return BT_OK;
}

/* Pages come from the kernel directly, so that a freed buffer is really given back, and large ones
 * in huge pages (first touched in less than half the time; later no faster, within noise). */
static bt_status cpu_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    cpu_dev *d = (cpu_dev *)dev;
    bt_buf *buf = calloc(1, sizeof *buf);
    if (!buf) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    const uint64_t room = btcpu_available_memory();
    buf->bytes = bytes ? bytes : 1;
    buf->base =
        bytes > room || bytes > SIZE_MAX / 2
            ? MAP_FAILED
            : mmap(NULL, buf->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf->base == MAP_FAILED) {
        free(buf);
        return bt_host_fail(
            dev->host, BT_ENOMEM,
            "cpu: %llu bytes cannot be allocated, %llu are free: lower memory.limit or "
            "close other programs",
            (unsigned long long)bytes, (unsigned long long)room);
    }
    if (buf->bytes >= 2 * HUGE) madvise(buf->base, buf->bytes, MADV_HUGEPAGE);
    buf->next = d->buffers;
    if (buf->next) buf->next->prev = buf;
    d->buffers = buf;
    *out = buf;
    return BT_OK;
}

static void cpu_free(bt_dev *dev, bt_buf *buf) {
    cpu_dev *d = (cpu_dev *)dev;
    if (!buf) return;
    if (buf->next) buf->next->prev = buf->prev;
    if (buf->prev)
        buf->prev->next = buf->next;
    else
        d->buffers = buf->next;
    munmap(buf->base, buf->bytes);
    free(buf);
}

static bt_status cpu_host_alloc(bt_dev *dev, uint64_t bytes, void **out) {
    size_t size = ((size_t)bytes + BTCPU_ALIGN - 1) / BTCPU_ALIGN * BTCPU_ALIGN;
    void *p = bytes > SIZE_MAX / 2 ? NULL : aligned_alloc(BTCPU_ALIGN, size ? size : BTCPU_ALIGN);
    if (!p)
        return bt_host_fail(dev->host, BT_ENOMEM,
                            "cpu: %llu bytes of host memory cannot be allocated",
                            (unsigned long long)bytes);
    *out = p;
    return BT_OK;
}

static void cpu_host_free(bt_dev *dev, void *p) {
    (void)dev;
    free(p);
}

static bt_status check_range(const bt_dev *dev, const bt_buf *buf, uint64_t off, uint64_t bytes) {
    if (off <= buf->bytes && bytes <= buf->bytes - off) return BT_OK;
    return bt_host_fail(
        dev->host, BT_EINTERNAL, "cpu: %llu bytes at %llu are not inside a buffer of %llu",
        (unsigned long long)bytes, (unsigned long long)off, (unsigned long long)buf->bytes);
}

static bt_status cpu_upload(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                            uint64_t bytes) {
    (void)s;
    if (bytes == 0) return BT_OK;
    bt_status status = check_range(dev, dst, off, bytes);
    if (status == BT_OK) memcpy(dst->base + off, src, bytes);
    return status;
}

static bt_status cpu_download(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                              uint64_t bytes) {
    (void)s;
    if (bytes == 0) return BT_OK;
    bt_status status = check_range(dev, src, off, bytes);
    if (status == BT_OK) memcpy(dst, src->base + off, bytes);
    return status;
}

static bt_status cpu_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                          uint8_t value) {
    (void)s;
    bt_status status = check_range(dev, buf, off, bytes);
    if (status == BT_OK) memset(buf->base + off, value, bytes);
    return status;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static bt_status cpu_stream_new(bt_dev *dev, bt_stream **out) {
    bt_stream *s = calloc(1, sizeof *s);
    if (!s) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    *out = s;
    return BT_OK;
}

static void cpu_stream_free(bt_dev *dev, bt_stream *s) {
    (void)dev;
    free(s);
}

static bt_status cpu_sync(bt_dev *dev, bt_stream *s) {
    (void)dev, (void)s;
    return BT_OK;
}

static bt_status cpu_event_new(bt_dev *dev, bt_event **out) {
    bt_event *e = calloc(1, sizeof *e);
    if (!e) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    *out = e;
    return BT_OK;
}

static void cpu_event_free(bt_dev *dev, bt_event *e) {
    (void)dev;
    free(e);
}

static bt_status cpu_event_use(bt_dev *dev, bt_stream *s, bt_event *e) {
    (void)dev, (void)s, (void)e;
    return BT_OK;
}

static bt_status cpu_event_sync(bt_dev *dev, bt_event *e) {
    (void)dev, (void)e;
    return BT_OK;
}

/* ---- warming and rates ----------------------------------------------------------------------- */

static size_t bytes_of(const bt_view *v, int64_t batch0, int64_t s0, int64_t batch1, int64_t s1) {
    if (v->rows == 0 || v->cols == 0) return 0;
    const int64_t n = (v->rows - 1) * v->ld + v->cols + (batch0 > 1 ? (batch0 - 1) * s0 : 0) +
                      (batch1 > 1 ? (batch1 - 1) * s1 : 0);
    return (size_t)n * btcpu_size(v->dtype);
}

/* Runs one product on scratch that is mapped for it and given back; one that would take more than
 * half of what is free is left out. */
static bt_status warm_one(bt_dev *dev, const bt_call *call) {
    const bt_gemm_params *p = &call->p.gemm;
    const uint64_t ws = bti_planning_cpu.ws_bytes(&dev->info, call);
    const size_t bytes[3] = {bytes_of(&call->t[0], p->batch0, p->a0, p->batch1, p->a1),
                             bytes_of(&call->t[1], p->batch0, p->b0, p->batch1, p->b1),
                             bytes_of(&call->t[2], p->batch0, p->c0, p->batch1, p->c1)};
    bt_call c = *call;
    bt_buf *buf = NULL;
    size_t off = 0;
    for (int i = 0; i < 3; i++) {
        c.t[i].off = off;
        off += (bytes[i] + BTCPU_ALIGN - 1) / BTCPU_ALIGN * BTCPU_ALIGN;
    }
    if (off + ws > btcpu_available_memory() / 2) return BT_OK;
    bt_status status = cpu_alloc(dev, off + ws, &buf);
    if (status != BT_OK) return status;
    for (int i = 0; i < 3; i++) c.t[i].buf = buf;
    if (ws) c.ws = (bt_view){buf, off, 1, (int64_t)(ws / 4), (int64_t)(ws / 4), BT_F32};
    status = dev->op[BT_OP_GEMM](dev, NULL, &c);
    cpu_free(dev, buf);
    return status;
}

static bt_status cpu_warm(bt_dev *dev, const bt_call *calls, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (calls[i].op != BT_OP_GEMM) continue;
        bt_status status = warm_one(dev, &calls[i]);
        if (status != BT_OK) return status;
    }
    return BT_OK;
}

/* Least seconds of a call by some clock, tried for 15 ms. */
static double least_seconds(bt_dev *dev, const bt_call *call, clockid_t clock) {
    struct timespec from, to;
    double best = 1e9, spent = 0;
    while (spent < 0.015) {
        clock_gettime(clock, &from);
        dev->op[call->op](dev, NULL, call);
        clock_gettime(clock, &to);
        double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (s < best) best = s;
        spent += s;
    }
    return best;
}

/* Rates for the planner's cost, measured for about 50 ms, so that other programs on the machine
 * disturb them little: products of 512 x 512 x 512 by processor time of one thread, times threads;
 * copies of 16 MiB by one thread likewise, or by all threads by the clock where that is faster. */
static bt_status measure_rates(bt_dev *dev) {
    enum { SIDE = 512 };
    const int64_t floats = (int64_t)4 << 20;
    const uint32_t threads = dev->info.threads;
    bt_buf *buf = NULL;
    bt_status status = cpu_alloc(dev, 2 * (uint64_t)floats * sizeof(float), &buf);
    if (status != BT_OK) return status;
    memset(buf->base, 0, buf->bytes);
    bt_view square = {buf, 0, SIDE, SIDE, SIDE, BT_F32};
    bt_call gemm = {.op = BT_OP_GEMM, .t = {square, square, square}};
    gemm.t[1].off = sizeof(float) * SIDE * SIDE;
    gemm.t[2].off = 2 * gemm.t[1].off;
    gemm.p.gemm.alpha = 1;
    bt_view flat = {buf, 0, 1, floats, floats, BT_F32};
    bt_call copy = {.op = BT_OP_AXPBY, .t = {flat, flat}, .p.axpby = {1.5, 0}};
    copy.t[1].off = (size_t)floats * sizeof(float);
    dev->info.threads = 1;
    const double product = least_seconds(dev, &gemm, CLOCK_THREAD_CPUTIME_ID);
    double move = least_seconds(dev, &copy, CLOCK_THREAD_CPUTIME_ID);
    dev->info.threads = threads;
    if (threads > 1) {
        const double all = least_seconds(dev, &copy, CLOCK_MONOTONIC);
        if (all < move) move = all;
    }
    dev->info.flops = 2.0 * SIDE * SIDE * SIDE / product * threads;
    dev->info.bytes_per_s = 2.0 * (double)floats * sizeof(float) / move;
    cpu_free(dev, buf);
    return BT_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void cpu_close(bt_dev *dev) { free(dev); }

static const bt_dev_ops cpu_ops = {
    .close = cpu_close,
    .query = cpu_query,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .warm = cpu_warm,
    .upload = cpu_upload,
    .download = cpu_download,
    .fill = cpu_fill,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .sync = cpu_sync,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_use,
    .event_wait = cpu_event_use,
    .event_sync = cpu_event_sync,
};

/* OMP_NUM_THREADS, as programs that use OpenMP heed it; 0: not set to a number. */
static int threads_wished(void) {
    const char *text = getenv("OMP_NUM_THREADS");
    int n = text ? atoi(text) : 0;
    return n > 0 ? n : 0;
}

/* Threads to compute with: what was asked for, else OMP_NUM_THREADS, else all; at most what the
 * process may use. */
static bt_status pick_threads(const bt_host *host, int asked, uint32_t *out) {
    int usable = btcpu_usable_threads();
    if (asked < 0)
        return bt_host_fail(host, BT_EUSAGE,
                            "%d threads: give a number from 1 on, or 0 for as many as "
                            "this process may use (%d)",
                            asked, usable);
#ifdef _OPENMP
    int limit = omp_get_thread_limit();
    if (limit < usable) usable = limit < 1 ? 1 : limit;
#else
    usable = 1;
#endif
    if (asked == 0) asked = threads_wished();
    if (asked > usable)
        bt_host_log(host, BT_LOG_WARN, "cpu: %d threads asked for, %d used: no more can be had",
                    asked, usable);
    *out = (uint32_t)(asked == 0 || asked > usable ? usable : asked);
    return BT_OK;
}

static bt_status cpu_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    *count = btcpu_blas_probe(reason, reason_size);
    return BT_OK;
}

static const bt_driver cpu_driver;

static bt_status cpu_open(const bt_host *host, int index, const bt_open_options *options,
                          bt_dev **out) {
    uint32_t threads = 1;
    if (index != 0)
        return bt_host_fail(host, BT_EUSAGE, "cpu:%d: there is one cpu device, cpu:0", index);
    bt_status status = pick_threads(host, options ? options->threads : 0, &threads);
    if (status == BT_OK) status = btcpu_blas_open(host);
    if (status != BT_OK) return status;
    cpu_dev *d = calloc(1, sizeof *d);
    if (!d) return bt_host_fail(host, BT_ENOMEM, "out of host memory");
    bt_dev_info *info = &d->base.info;
    d->base.driver = &cpu_driver;
    d->base.host = host;
    d->base.ops = &cpu_ops;
    /* For tests of what other processors would run. */
    d->base.op = btcpu_pick_table(getenv("BANTAM_CPU_ISA"))->op;
    btcpu_cpu_name(info->name, sizeof info->name);
    snprintf(info->backend, sizeof info->backend, "cpu");
    info->total_bytes = btcpu_total_memory();
    info->alignment = BTCPU_ALIGN;
    info->dtypes = 1u << BT_F32 | 1u << BT_F16 | 1u << BT_BF16;
    info->threads = threads;
    info->host_memory = 1;
    status = measure_rates(&d->base);
    if (status == BT_OK) status = cpu_query(&d->base, info);
    if (status != BT_OK) {
        free(d);
        return status;
    }
    *out = &d->base;
    return BT_OK;
}

static const bt_driver cpu_driver = {
    .abi = BT_BACKEND_ABI,
    .name = "cpu",
    .planning = &bti_planning_cpu,
    .probe = cpu_probe,
    .open = cpu_open,
};

#ifdef BT_STATIC_CPU
const bt_driver *bt_module_driver_cpu(void);
const bt_driver *bt_module_driver_cpu(void) { return &cpu_driver; }
#else
__attribute__((visibility("default"))) const bt_driver *bt_module_driver(void);
const bt_driver *bt_module_driver(void) { return &cpu_driver; }
#endif
