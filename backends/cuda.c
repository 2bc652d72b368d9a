/* The cuda backend: devices and why there are none, what a device can do, opening one. Memory and
 * streams are in cuda_memory.c, the op table is in cuda_ops.c, products are in cuda_blas.c.
 *
 * The module links the CUDA runtime statically and nothing else of NVIDIA's: it loads on every
 * machine, and cuBLAS is opened only for a device that is there. */
#include "backends/cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/speed.h"

/* ---- what there is -----------------------------------------------------------------------------
 */

/* Of devices, measured at their first open and kept to the end of the process. */
#define MOST_DEVICES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bti_speed speeds[MOST_DEVICES];

/* 11040 is 11.4. */
typedef struct version_text {
    char text[16];
} version_text;

static version_text version_of(int number) {
    version_text v;
    snprintf(v.text, sizeof v.text, "%d.%d", number / 1000, number % 1000 / 10);
    return v;
}

/* A driver runs what any release of its own major version made. */
static void why_old_driver(char *reason, size_t size) {
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = CUDART_VERSION;
    if (driver == 0)
        snprintf(reason, size,
                 "no NVIDIA driver (libcuda.so.1): install the card's driver, one for CUDA %d.0 or "
                 "later",
                 runtime / 1000);
    else
        snprintf(
            reason, size,
            "the NVIDIA driver is for CUDA %s, this build needs one for %d.0 or later: install "
            "a later driver, or build with an older toolkit",
            version_of(driver).text, runtime / 1000);
}

/* Why cudaGetDeviceCount found none. */
static void why_none(cudaError_t code, char *reason, size_t size) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    switch (code) {
    case cudaErrorInsufficientDriver:
        why_old_driver(reason, size);
        break;
    case cudaSuccess:
    case cudaErrorNoDevice:
        if (visible != NULL)
            snprintf(reason, size,
                     "no CUDA device visible: CUDA_VISIBLE_DEVICES is \"%s\": is that right?",
                     visible);
        else
            snprintf(reason, size,
                     "no CUDA device visible: the driver has none (nvidia-smi lists what it sees)");
        break;
    case cudaErrorStubLibrary:
        snprintf(reason, size,
                 "the libcuda.so.1 that is found is the toolkit's stub, which is for linking: name "
                 "the driver's folder first in LD_LIBRARY_PATH");
        break;
    default:
        snprintf(reason, size, "the driver says: %s (%s, %d)", cudaGetErrorString(code),
                 cudaGetErrorName(code), (int)code);
    }
}

/* Devices, or 0 with the reason. The count is left alone where the call fails. */
static int count_devices(const bt_host *host, char *reason, size_t size) {
    int count = 0;
    const cudaError_t code =
        (cudaError_t)BTCU_WATCHED(host, "cudaGetDeviceCount", cudaGetDeviceCount(&count));
    if (size > 0) reason[0] = 0;
    if (code == cudaSuccess && count > 0) return count < MOST_DEVICES ? count : MOST_DEVICES;
    (void)cudaGetLastError();
    why_none(code, reason, size);
    return 0;
}

static bt_status cuda_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    btcu_watch(host);
    *count = count_devices(host, reason, reason_size);
    btcu_unwatch();
    return BT_OK;
}

/* ---- capabilities ------------------------------------------------------------------------------
 */

/* The most that a process holds in a device's memory beside its buffers: context, loaded code,
 * cuBLAS with its workspace; it grows with the multiprocessors. No call tells how much of what is
 * taken is this process's, so what is taken beyond this is held by others. */
static uint64_t runtime_most(const btcu_dev *d) {
    return (uint64_t)(192 + 4 * d->processors) << 20;
}

/* From CUDA 12.2 on drivers load a kernel at its first launch, which is in update 1: what is held
 * beside buffers grows by the code of ours, all of which is 2.7 MB in 93 kernels for 8.6, by that
 * of cuBLAS's kernels for numbers of rows that warming did not meet (it meets each shape of a
 * layer, not each size of a micro-batch), and by what a driver rounds up. How much cuBLAS adds then
 * is an estimate: no call tells, and no card was asked. */
#define CODE_BYTES (24u << 20)

/* Bytes in use beside our buffers, by whomever. */
static bt_status rest_of(bt_dev *dev, size_t *room, size_t *total, uint64_t *rest) {
    bt_stream *s = NULL;
    bt_status status = btcu_enter(dev, &s);
    if (status == BT_OK)
        status = btcu_check(dev, NULL, cudaMemGetInfo(room, total), "cudaMemGetInfo");
    if (status != BT_OK) return status;
    const uint64_t taken = *total - *room, used = btcu_self(dev)->used;
    *rest = taken > used ? taken - used : 0;
    return BT_OK;
}

bt_status btcu_note_held(bt_dev *dev) {
    size_t room = 0, total = 0;
    return rest_of(dev, &room, &total, &btcu_self(dev)->held);
}

bt_status btcu_query(bt_dev *dev, bt_dev_info *info) {
    const btcu_dev *d = btcu_self(dev);
    const uint64_t most = runtime_most(d), whole = d->held + CODE_BYTES;
    size_t room = 0, total = 0;
    uint64_t rest = 0;
    bt_status status = rest_of(dev, &room, &total, &rest);
    if (status != BT_OK) return status;
    uint64_t later = rest < whole ? whole - rest : 0; /* not loaded yet */
    if (later > room) later = room;
    rest += later;
    *info = dev->info;
    info->total_bytes = total;
    info->free_bytes = room - later;
    info->runtime_bytes = rest < most ? rest : most;
    return BT_OK;
}

/* A smaller largest allocation: for drivers that refuse one of nearly all memory, and for tests. */
static uint64_t asked_limit(void) {
    const char *text = getenv("BANTAM_CUDA_MAX_ALLOC");
    return text ? strtoull(text, NULL, 10) : 0;
}

static bt_status describe(btcu_dev *d) {
    struct cudaDeviceProp prop;
    bt_dev_info *info = &d->base.info;
    int driver = 0;
    bt_status status = btcu_check(&d->base, NULL, cudaGetDeviceProperties(&prop, d->index),
                                  "cudaGetDeviceProperties");
    if (status != BT_OK) return status;
    if (BTCU_WATCHED(d->base.host, "cudaDriverGetVersion", cudaDriverGetVersion(&driver)) != 0)
        driver = 0;
    d->major = prop.major;
    d->minor = prop.minor;
    d->processors = prop.multiProcessorCount;
    snprintf(info->name, sizeof info->name, "%.127s", prop.name);
    snprintf(info->capability, sizeof info->capability, "%d.%d", prop.major, prop.minor);
    snprintf(info->driver, sizeof info->driver, "CUDA %s", version_of(driver).text);
    snprintf(info->backend, sizeof info->backend, "cuda");
    info->total_bytes = prop.totalGlobalMem;
    info->max_alloc = asked_limit();
    info->alignment = 256; /* of cudaMalloc */
    info->dtypes = 1u << BT_F32 | 1u << BT_F16 | 1u << BT_BF16;
    info->tf32 = prop.major >= 8;
    info->threads = 1;
    return BT_OK;
}

/* ---- does it run? ------------------------------------------------------------------------------
 */

/* BTCU_BUILT_FOR, "37, 86", as "3.7, 8.6". */
static void built_for(char *out, size_t size) {
    size_t n = 0;
    for (const char *at = BTCU_BUILT_FOR; *at != 0 && n + 2 < size; at++) {
        if (at[0] >= '0' && at[0] <= '9' && (at[1] < '0' || at[1] > '9')) out[n++] = '.';
        out[n++] = *at;
    }
    out[n] = 0;
}

static int is_missing_code(cudaError_t code) {
    return code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
           code == cudaErrorUnsupportedPtxVersion;
}

static bt_status not_supported(const btcu_dev *d) {
    char list[128];
    built_for(list, sizeof list);
    return bt_host_fail(
        d->base.host, BT_EDEVICE,
        "cuda:%d, %s (compute capability %s): not supported by this build (built for %s): build "
        "with -DBANTAM_CUDA_ARCHITECTURES=%d%d-real",
        d->index, d->base.info.name, d->base.info.capability, list, d->major, d->minor);
}

/* 1 + 2 = 3: code for this device is there and does what it should. */
static bt_status self_test(btcu_dev *d) {
    bt_dev *dev = &d->base;
    bt_buf *buf = NULL;
    int sum = 0;
    bt_status status = dev->ops->alloc(dev, sizeof sum, &buf);
    if (status != BT_OK) return status;
    const cudaError_t code = (cudaError_t)BTCU_WATCHED(
        dev->host, "first kernel", btcu_add((int *)(void *)buf->p, 1, 2, d->own.stream));
    status =
        is_missing_code(code) ? not_supported(d) : btcu_result(dev, NULL, code, "first kernel");
    if (status == BT_OK) status = dev->ops->download(dev, NULL, &sum, buf, 0, sizeof sum);
    if (status == BT_OK) status = dev->ops->sync(dev, NULL);
    if (status == BT_OK && sum != 3)
        status = bt_host_fail(dev->host, BT_EDEVICE,
                              "cuda:%d, %s: 1 + 2 gave %d: the device does not work", d->index,
                              dev->info.name, sum);
    dev->ops->free(dev, buf);
    return status;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

/* Whatever can be given back. */
static int let_go(btcu_dev *d) {
    if (cudaSetDevice(d->index) != cudaSuccess) return 0;
    if (d->own.stream != NULL) cudaStreamSynchronize(d->own.stream);
    btcu_blas_close(d);
    if (d->between != NULL) cudaEventDestroy(d->between);
    if (d->own.stream != NULL) cudaStreamDestroy(d->own.stream);
    return 0;
}

void btcu_close(bt_dev *dev) {
    (void)BTCU_WATCHED(dev->host, "closing the device", let_go(btcu_self(dev)));
    (void)cudaGetLastError();
    free(dev);
    btcu_unwatch();
}

/* Half of what is free, in one allocation. */
static uint64_t room(const bt_dev_info *info) {
    const uint64_t half = info->free_bytes / 2;
    return info->max_alloc > 0 && info->max_alloc < half ? info->max_alloc : half;
}

static bt_status open_device(btcu_dev *d) {
    bt_dev *dev = &d->base;
    bt_status status = describe(d);
    if (status == BT_OK) status = btcu_check(dev, NULL, cudaSetDevice(d->index), "cudaSetDevice");
    if (status == BT_OK) status = btcu_open_stream(d, &d->own);
    if (status == BT_OK)
        status =
            btcu_check(dev, NULL, cudaEventCreateWithFlags(&d->between, cudaEventDisableTiming),
                       "cudaEventCreate");
    if (status == BT_OK) status = self_test(d);
    if (status == BT_OK) status = btcu_blas_open(d);
    if (status == BT_OK) status = btcu_query(dev, &dev->info);
    if (status == BT_OK && speeds[d->index].flops == 0)
        status = bti_measure_speed(dev, room(&dev->info), &speeds[d->index]);
    dev->info.flops = speeds[d->index].flops;
    dev->info.bytes_per_s = speeds[d->index].bytes_per_s;
    if (status == BT_OK) status = btcu_note_held(dev); /* with what measuring loaded */
    return status == BT_OK ? btcu_query(dev, &dev->info) : status;
}

static const bt_driver cuda_driver;

/* Is there a device of that number? */
static bt_status check_index(const bt_host *host, int index) {
    char reason[512];
    const int count = count_devices(host, reason, sizeof reason);
    if (count == 0) return bt_host_fail(host, BT_EDEVICE, "cuda: %s", reason);
    if (index >= 0 && index < count) return BT_OK;
    return bt_host_fail(host, BT_EUSAGE,
                        "cuda:%d: there are %d CUDA devices, numbered from 0; bantam devices lists "
                        "them",
                        index, count);
}

static bt_status cuda_open(const bt_host *host, int index, const bt_open_options *options,
                           bt_dev **out) {
    (void)options;
    btcu_watch(host); /* until it is closed */
    pthread_mutex_lock(&lock);
    bt_status status = check_index(host, index);
    btcu_dev *d = status == BT_OK ? calloc(1, sizeof *d) : NULL;
    if (status == BT_OK && d == NULL) status = bt_host_fail(host, BT_ENOMEM, "out of host memory");
    if (d != NULL) {
        d->index = index;
        d->base = (bt_dev){
            .driver = &cuda_driver, .host = host, .ops = &btcu_dev_ops, .op = btcu_op_table};
        status = open_device(d);
        if (status != BT_OK) btcu_close(&d->base);
    } else {
        btcu_unwatch();
    }
    pthread_mutex_unlock(&lock);
    if (status == BT_OK) *out = &d->base;
    return status;
}

static const bt_driver cuda_driver = {
    .abi = BT_BACKEND_ABI,
    .name = "cuda",
    .planning = &bti_planning_cuda,
    .probe = cuda_probe,
    .open = cuda_open,
};

__attribute__((visibility("default"))) const bt_driver *bt_module_driver(void);
const bt_driver *bt_module_driver(void) { return &cuda_driver; }
