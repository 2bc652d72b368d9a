/* The kernels of a device: compiled from the text in this module, or taken from the cache on disk.
 *
 * The cache is a file for each device, driver, options and text, in XDG_CACHE_HOME/bantam (else
 * HOME/.cache/bantam). Whatever is wrong with it costs time, never the run. */
#include "backends/opencl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* kernels_cl/ (made by ci/embed.cmake): what the program of each type has; what only fp32's has. */
extern const char btcl_data_source[], btcl_other_source[];

const char *const btcl_kernel_names[BTCL_KERNEL_COUNT] = {
#define X(name) "k_" #name,
    BTCL_KERNELS(X)
#undef X
};

/* A text that does not fit is cut. */
void btcl_device_text(cl_device_id id, cl_device_info what, char *out, size_t size) {
    char text[1024] = "?";
    if (clGetDeviceInfo(id, what, sizeof text, text, NULL) != CL_SUCCESS) strcpy(text, "?");
    snprintf(out, size, "%s", text);
}

void btcl_platform_text(cl_platform_id id, cl_platform_info what, char *out, size_t size) {
    char text[1024] = "?";
    if (clGetPlatformInfo(id, what, sizeof text, text, NULL) != CL_SUCCESS) strcpy(text, "?");
    snprintf(out, size, "%s", text);
}

/* ---- the cache ---------------------------------------------------------------------------------
 */

typedef struct header {
    char magic[8];
    uint64_t bytes, hash; /* of what follows */
} header;
static const char magic[8] = "BTCLBIN1";

#define MOST_BYTES ((uint64_t)256 << 20)

/* Makes the folder; 0 where there is none to be had. */
static int cache_folder(char *out, size_t size) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = xdg && xdg[0] == '/' ? snprintf(out, size, "%s", xdg)
            : home && home[0]    ? snprintf(out, size, "%s/.cache", home)
                                 : -1;
    if (n < 0 || (size_t)n + 8 >= size) return 0;
    if (mkdir(out, 0700) != 0 && errno != EEXIST) return 0;
    memcpy(out + n, "/bantam", 8);
    return mkdir(out, 0700) == 0 || errno == EEXIST;
}

/* The file for this device, driver, options and text; 0 without a folder. */
static int cache_file(const btcl_board *board, const char *options, char *out, size_t size) {
    static const cl_device_info fields[] = {CL_DEVICE_NAME, CL_DEVICE_VENDOR, CL_DRIVER_VERSION,
                                            CL_DEVICE_VERSION};
    char dir[3800], text[512];
    if (!cache_folder(dir, sizeof dir)) return 0;
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        btcl_device_text(board->id, fields[i], text, sizeof text);
        XXH3_128bits_update(&state, text, strlen(text) + 1);
    }
    btcl_platform_text(board->platform, CL_PLATFORM_VERSION, text, sizeof text);
    XXH3_128bits_update(&state, text, strlen(text) + 1);
    XXH3_128bits_update(&state, options, strlen(options) + 1);
    XXH3_128bits_update(&state, btcl_data_source, strlen(btcl_data_source));
    XXH3_128bits_update(&state, btcl_other_source, strlen(btcl_other_source));
    const XXH128_hash_t h = XXH3_128bits_digest(&state);
    return snprintf(out, size, "%s/opencl-%016llx%016llx.bin", dir, (unsigned long long)h.high64,
                    (unsigned long long)h.low64) < (int)size;
}

/* What the file holds; NULL where it is not there or not whole. */
static unsigned char *read_cache(const char *path, size_t *bytes) {
    header h;
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    unsigned char *data = NULL;
    if (fread(&h, sizeof h, 1, f) == 1 && memcmp(h.magic, magic, sizeof magic) == 0 &&
        h.bytes > 0 && h.bytes < MOST_BYTES && (data = malloc(h.bytes)) != NULL &&
        (fread(data, 1, h.bytes, f) != h.bytes || XXH3_64bits(data, h.bytes) != h.hash)) {
        free(data);
        data = NULL;
    }
    fclose(f);
    if (data != NULL) *bytes = h.bytes;
    return data;
}

/* Written aside and renamed, so that nobody reads a part. */
static void write_cache(const char *path, const unsigned char *data, size_t bytes) {
    char aside[4200];
    header h = {.bytes = bytes, .hash = XXH3_64bits(data, bytes)};
    memcpy(h.magic, magic, sizeof magic);
    snprintf(aside, sizeof aside, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(aside, "wb");
    if (f == NULL) return;
    int ok = fwrite(&h, sizeof h, 1, f) == 1 && fwrite(data, 1, bytes, f) == bytes;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(aside, path) != 0) remove(aside);
}

static void keep_binary(cl_program program, const char *path) {
    size_t bytes = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) !=
            CL_SUCCESS ||
        bytes == 0 || bytes >= MOST_BYTES)
        return;
    unsigned char *data = malloc(bytes);
    if (data == NULL) return;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, NULL) == CL_SUCCESS)
        write_cache(path, data, bytes);
    free(data);
}

/* ---- building ----------------------------------------------------------------------------------
 */

/* The program of a cached binary; NULL where there is none that this driver takes. */
static cl_program from_cache(const btcl_board *board, const char *options, const char *path) {
    size_t bytes = 0;
    unsigned char *data = read_cache(path, &bytes);
    if (data == NULL) return NULL;
    cl_int code, verdict;
    cl_program program = clCreateProgramWithBinary(board->context, 1, &board->id, &bytes,
                                                   (const unsigned char **)&data, &verdict, &code);
    free(data);
    if (code != CL_SUCCESS) return NULL;
    if (verdict == CL_SUCCESS &&
        clBuildProgram(program, 1, &board->id, options, NULL, NULL) == CL_SUCCESS)
        return program;
    clReleaseProgram(program);
    return NULL;
}

/* The first lines of the compiler's log. */
static bt_status build_failed(const bt_host *host, const btcl_board *board, cl_program program) {
    enum { LINES = 6, MOST = 900 };
    char name[256];
    size_t bytes = 0;
    btcl_device_text(board->id, CL_DEVICE_NAME, name, sizeof name);
    clGetProgramBuildInfo(program, board->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *log = calloc(1, bytes + 1);
    if (log != NULL && bytes > 0)
        clGetProgramBuildInfo(program, board->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    char *end = log;
    for (int line = 0; end && *end && line < LINES && end - log < MOST; end++) line += *end == '\n';
    bt_status status = bt_host_fail(
        host, BT_EDEVICE,
        "opencl: the kernels do not compile for %s: a newer driver may help. The compiler says:\n"
        "%.*s",
        name, log ? (int)(end - log) : 0, log ? log : "");
    free(log);
    return status;
}

/* From its text; kept at `path` unless that is empty. */
static bt_status compile(const bt_host *host, btcl_board *board, btcl_type type,
                         const char *options, const char *path, cl_program *out) {
    cl_int code;
    const char *source[] = {btcl_data_source, btcl_other_source};
    cl_program program =
        clCreateProgramWithSource(board->context, type == BTCL_F32 ? 2 : 1, source, NULL, &code);
    if (code != CL_SUCCESS) return btcl_fail(host, code, "clCreateProgramWithSource");
    code = clBuildProgram(program, 1, &board->id, options, NULL, NULL);
    if (code != CL_SUCCESS) {
        bt_status status = code == CL_BUILD_PROGRAM_FAILURE
                               ? build_failed(host, board, program)
                               : btcl_fail(host, code, "clBuildProgram");
        clReleaseProgram(program);
        return status;
    }
    if (path[0] != 0) keep_binary(program, path);
    *out = program;
    return BT_OK;
}

/* Work-items of each kernel's group; 0 in *fits where one needs more of the device than it has. */
static bt_status group_sizes(const bt_host *host, btcl_board *board, btcl_type type,
                             cl_program program, int *fits) {
    *fits = 1;
    for (int i = 0; i < btcl_kernels_of(type); i++) {
        cl_int code;
        size_t size[3] = {0}, most = 0;
        cl_kernel k = clCreateKernel(program, btcl_kernel_names[i], &code);
        if (code != CL_SUCCESS) return btcl_fail(host, code, btcl_kernel_names[i]);
        code = clGetKernelWorkGroupInfo(k, board->id, CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
                                        sizeof size, size, NULL);
        if (code == CL_SUCCESS)
            code = clGetKernelWorkGroupInfo(k, board->id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most,
                                            &most, NULL);
        clReleaseKernel(k);
        if (code == CL_SUCCESS && size[0] == 0) code = CL_INVALID_KERNEL_DEFINITION;
        if (code != CL_SUCCESS) return btcl_fail(host, code, btcl_kernel_names[i]);
        board->group[type][i] = size[0];
        if (most < size[0]) *fits = 0;
    }
    return BT_OK;
}

/* The program, and whether its groups fit. A binary of the cache that a driver takes and cannot use
 * is made anew. */
static bt_status program_of(const bt_host *host, btcl_board *board, btcl_type type,
                            const char *options, cl_program *out, int *fits) {
    char path[4100];
    if (!cache_file(board, options, path, sizeof path)) path[0] = 0;
    cl_program program = path[0] != 0 ? from_cache(board, options, path) : NULL;
    bt_status status = program != NULL ? group_sizes(host, board, type, program, fits) : BT_OK;
    if (program == NULL || status != BT_OK) {
        if (program != NULL) clReleaseProgram(program);
        status = compile(host, board, type, options, path, &program);
        if (status != BT_OK) return status;
        status = group_sizes(host, board, type, program, fits);
    }
    if (status == BT_OK)
        *out = program;
    else
        clReleaseProgram(program);
    return status;
}

/* Work-items of a group that the device takes in one dimension, as a power of two. */
static size_t group_limit(const btcl_board *board) {
    size_t limit = 1, sizes[16] = {0}, p = 1;
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof limit, &limit, NULL);
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, NULL);
    if (sizes[0] > 0 && sizes[0] < limit) limit = sizes[0];
    while (p <= limit / 2) p *= 2;
    return p;
}

/* How work is cut (kernels_cl/prelude.cl): columns that a work-item takes at a time, depth of the
 * tiles of products, and work-items of a group by kind of kernel. */
typedef struct btcl_shape {
    int wide, depth;
    size_t items, rows, tiles;
} btcl_shape;

/* On a CPU work-items are turns of a loop: one does a row, or a tile, with long vectors.
 * BANTAM_OPENCL_SHAPE: cpu or gpu, for tests. */
static btcl_shape shape_of(const btcl_board *board) {
    const char *asked = getenv("BANTAM_OPENCL_SHAPE");
    cl_ulong local = 0;
    clGetDeviceInfo(board->id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof local, &local, NULL);
    if (asked ? strcmp(asked, "gpu") == 0 : (board->type & CL_DEVICE_TYPE_CPU) == 0)
        return (btcl_shape){4, 16, 128, 128, 64};
    return (btcl_shape){16, local >= 48 << 10 ? 64 : 32, 16, 1, 1};
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Group sizes start where GPUs are busy and fall until every kernel fits. */
static bt_status build_largest(const bt_host *host, btcl_board *board, btcl_type type) {
    static const char *const data[BTCL_TYPE_COUNT] = {"F32", "F16", "BF16"};
    const char *more = getenv("BANTAM_OPENCL_OPTIONS"); /* for looking for faults */
    const btcl_shape shape = shape_of(board);
    board->wide = shape.wide;
    for (size_t limit = group_limit(board);; limit /= 2) {
        char options[512];
        cl_program program = NULL;
        int fits = 0;
        /* -w: a driver may print warnings on its own. */
        snprintf(
            options, sizeof options,
            "-w -cl-std=CL1.2 -DDATA=%s -DW=%d -DDEPTH=%d -DWG=%zu -DRG=%zu -DGWG=%zu -DAWG=%zu "
            "%s",
            data[type], shape.wide, shape.depth, least(limit, shape.items),
            least(limit, shape.rows), least(limit, shape.tiles), least(limit, shape.tiles),
            more ? more : "");
        bt_status status = program_of(host, board, type, options, &program, &fits);
        if (status != BT_OK) return status;
        if (fits) {
            board->program[type] = program;
            return BT_OK;
        }
        clReleaseProgram(program);
        if (limit == 1)
            return bt_host_fail(host, BT_EDEVICE,
                                "opencl: a kernel does not fit the device in any group size");
    }
}

bt_status btcl_build(const bt_host *host, btcl_board *board, btcl_type type) {
    cl_int code;
    if (board->program[type] != NULL) return BT_OK;
    if (board->context == NULL) {
        const cl_context_properties platform[] = {CL_CONTEXT_PLATFORM,
                                                  (cl_context_properties)board->platform, 0};
        cl_context context = clCreateContext(platform, 1, &board->id, NULL, NULL, &code);
        if (code != CL_SUCCESS) return btcl_fail(host, code, "clCreateContext");
        board->context = context;
    }
    return build_largest(host, board, type);
}
