/* The opencl backend: devices of all platforms, what they can do, opening one. Memory and streams
 * are in opencl_memory.c; kernels are built in opencl_program.c and launched by opencl_ops.c.
 * libOpenCL is linked: where it is missing the module does not load, and the loader's message is
 * the reason. */
#include "backends/opencl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/hostinfo.h"

/* ---- what there is -----------------------------------------------------------------------------
 */

#define MOST_BOARDS 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static btcl_board boards[MOST_BOARDS];
static int board_count = -1; /* -1: not looked for yet */

static cl_ulong number(cl_device_id id, cl_device_info what) {
    cl_ulong x = 0; /* cl_uint and cl_bool fill its low half */
    clGetDeviceInfo(id, what, sizeof x, &x, NULL);
    return x;
}

#define LOCAL_BYTES (24u << 10) /* attention needs almost 23 KiB */

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

/* Devices that can be used come first, of these those that are no CPU: opencl:0 is a GPU where
 * there is one. */
static int rank_of(const btcl_board *board) {
    return refusal(board->id) != NULL ? 2 : (board->type & CL_DEVICE_TYPE_CPU) != 0;
}

/* Adds the devices of all platforms that have this rank. */
static void add_boards(const cl_platform_id *platform, cl_uint platforms, int rank) {
    for (cl_uint i = 0; i < platforms; i++) {
        cl_device_id id[MOST_BOARDS];
        cl_uint count = 0;
        if (clGetDeviceIDs(platform[i], CL_DEVICE_TYPE_ALL, MOST_BOARDS, id, &count) != CL_SUCCESS)
            continue;
        for (cl_uint k = 0; k < count && k < MOST_BOARDS && board_count < MOST_BOARDS; k++) {
            const btcl_board board = {
                .platform = platform[i], .id = id[k], .type = number(id[k], CL_DEVICE_TYPE)};
            if (rank_of(&board) == rank) boards[board_count++] = board;
        }
    }
}

static void find_boards(void) {
    cl_platform_id platform[MOST_BOARDS];
    cl_uint platforms = 0;
    if (board_count > 0) return;
    board_count = 0;
    if (clGetPlatformIDs(MOST_BOARDS, platform, &platforms) != CL_SUCCESS) return;
    if (platforms > MOST_BOARDS) platforms = MOST_BOARDS;
    for (int rank = 0; rank < 3; rank++) add_boards(platform, platforms, rank);
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

static int is_cpu(const btcl_dev *d) { return (d->board->type & CL_DEVICE_TYPE_CPU) != 0; }

/* Free is what is not taken by this device's buffers; of memory that it shares with the machine (a
 * CPU's, an integrated GPU's), what the machine has left. */
bt_status btcl_query(bt_dev *dev, bt_dev_info *info) {
    const btcl_dev *d = btcl_self(dev);
    *info = dev->info;
    info->free_bytes = info->total_bytes > d->used ? info->total_bytes - d->used : 0;
    info->runtime_bytes = DRIVER_BYTES;
    if (is_cpu(d) || number(d->board->id, CL_DEVICE_HOST_UNIFIED_MEMORY)) {
        const uint64_t available = btcpu_available_memory();
        if (available < info->free_bytes) info->free_bytes = available;
    }
    if (is_cpu(d)) {
        const uint64_t all = btcpu_anonymous_memory();
        info->runtime_bytes = all > d->used ? all - d->used : 0;
    } else {
        info->free_bytes = info->free_bytes > DRIVER_BYTES ? info->free_bytes - DRIVER_BYTES : 0;
    }
    return BT_OK;
}

/* A smaller largest allocation, for tests of several heaps. */
static uint64_t asked_limit(uint64_t limit) {
    const char *text = getenv("BANTAM_OPENCL_MAX_ALLOC");
    const uint64_t asked = text ? strtoull(text, NULL, 10) : 0;
    return asked > 0 && asked < limit ? asked : limit;
}

static void describe(const btcl_board *board, bt_dev_info *info) {
    char platform[128], driver[128];
    size_t group = 0;
    btcl_device_text(board->id, CL_DEVICE_NAME, info->name, sizeof info->name);
    btcl_platform_text(board->platform, CL_PLATFORM_NAME, platform, sizeof platform);
    btcl_device_text(board->id, CL_DRIVER_VERSION, driver, sizeof driver);
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    snprintf(info->driver, sizeof info->driver, "%.40s %.22s", platform, driver);
    info->work_group = group < UINT32_MAX ? (uint32_t)group : UINT32_MAX;
    snprintf(info->backend, sizeof info->backend, "opencl");
    const cl_ulong bits = number(board->id, CL_DEVICE_MEM_BASE_ADDR_ALIGN);
    info->total_bytes = number(board->id, CL_DEVICE_GLOBAL_MEM_SIZE);
    info->max_alloc = asked_limit(number(board->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
    info->alignment = bits / 8 > 64 ? (uint32_t)(bits / 8) : 64;
    info->dtypes = 1u << BT_F32 | 1u << BT_F16 | 1u << BT_BF16; /* half ones are stored only */
    info->threads = 1;
    info->host_memory = (board->type & CL_DEVICE_TYPE_CPU) != 0;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

void btcl_close(bt_dev *dev) {
    btcl_dev *d = btcl_self(dev);
    while (d->pinned != NULL) btcl_dev_ops.host_free(dev, d->pinned->p);
    for (int t = 0; t < BTCL_TYPE_COUNT; t++)
        for (int i = 0; i < BTCL_KERNEL_COUNT; i++)
            if (d->kernel[t][i] != NULL) clReleaseKernel(d->kernel[t][i]);
    if (d->own.queue != NULL) {
        clFinish(d->own.queue);
        clReleaseCommandQueue(d->own.queue);
    }
    free(d);
}

static const bt_driver opencl_driver;

static bt_status make_kernels(btcl_dev *d, btcl_type type) {
    for (int i = 0; i < btcl_kernels_of(type); i++) {
        cl_int code;
        if (d->kernel[type][i] != NULL) continue;
        d->kernel[type][i] = clCreateKernel(d->board->program[type], btcl_kernel_names[i], &code);
        if (code != CL_SUCCESS) {
            d->kernel[type][i] = NULL;
            return btcl_fail(d->base.host, code, btcl_kernel_names[i]);
        }
    }
    return BT_OK;
}

bt_status btcl_need(bt_dev *dev, btcl_type type) {
    btcl_dev *d = btcl_self(dev);
    if (d->kernel[type][btcl_kernels_of(type) - 1] != NULL) return BT_OK;
    pthread_mutex_lock(&lock);
    bt_status status = btcl_build(dev->host, d->board, type);
    pthread_mutex_unlock(&lock);
    return status == BT_OK ? make_kernels(d, type) : status;
}

static bt_status open_board(btcl_dev *d) {
    btcl_board *board = d->board;
    bt_dev *dev = &d->base;
    bt_status status = btcl_build(dev->host, board, BTCL_F32);
    if (status == BT_OK) status = btcl_open_queue(dev->host, board, &d->own);
    if (status == BT_OK) status = make_kernels(d, BTCL_F32);
    d->library = btcl_has_library(board);
    /* Of our own product: a library's has no scratch here. */
    if (status == BT_OK && board->speed.flops == 0)
        status = bti_measure_speed(dev, dev->info.max_alloc, &board->speed);
    dev->info.flops = board->speed.flops;
    dev->info.bytes_per_s = board->speed.bytes_per_s;
    return status == BT_OK ? btcl_query(dev, &dev->info) : status;
}

/* The board of that number, if it may be used. */
static bt_status pick(const bt_host *host, int index, const bt_open_options *options,
                      btcl_board **out) {
    char name[128];
    find_boards();
    if (board_count == 0) {
        char reason[512];
        why_none(reason, sizeof reason);
        return bt_host_fail(host, BT_EDEVICE, "%s", reason);
    }
    if (index < 0 || index >= board_count)
        return bt_host_fail(
            host, BT_EUSAGE,
            "opencl:%d: there are %d OpenCL devices, numbered from 0; bantam devices "
            "lists them",
            index, board_count);
    btcl_board *board = &boards[index];
    btcl_device_text(board->id, CL_DEVICE_NAME, name, sizeof name);
    const char *why = refusal(board->id);
    if (why != NULL) return bt_host_fail(host, BT_EDEVICE, "opencl:%d, %s: %s", index, name, why);
    if (options != NULL && options->automatic && (board->type & CL_DEVICE_TYPE_CPU))
        return bt_host_fail(
            host, BT_EUSAGE,
            "opencl:%d, %s: a CPU, which is used through OpenCL only when asked for", index, name);
    *out = board;
    return BT_OK;
}

static bt_status opencl_open(const bt_host *host, int index, const bt_open_options *options,
                             bt_dev **out) {
    btcl_board *board = NULL;
    pthread_mutex_lock(&lock);
    bt_status status = pick(host, index, options, &board);
    btcl_dev *d = status == BT_OK ? calloc(1, sizeof *d) : NULL;
    if (status == BT_OK && d == NULL) status = bt_host_fail(host, BT_ENOMEM, "out of host memory");
    if (d != NULL) {
        d->board = board;
        d->base = (bt_dev){
            .driver = &opencl_driver, .host = host, .ops = &btcl_dev_ops, .op = btcl_op_table};
        describe(board, &d->base.info);
        status = open_board(d);
        if (status != BT_OK) btcl_close(&d->base);
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
