#include "tests/opencl_calls.h"

#include <dlfcn.h>
#include <string.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

calls_state calls;

void calls_start(int64_t fail_at, int lost) {
    calls.fail_at = fail_at;
    calls.lost = lost;
    calls.only = NULL;
    calls.calls = 0;
    calls.failed = NULL;
    calls.in_library = 0;
    calls.copies = 0;
}

void calls_stop(void) { calls.fail_at = 0; }

static int fails_for(const void *caller, const char *name) {
    if (calls.only != NULL && strcmp(calls.only, name) != 0) return 0;
    const int64_t n = ++calls.calls;
    Dl_info info;
    if (calls.fail_at == 0 || n < calls.fail_at || (n > calls.fail_at && !calls.lost)) return 0;
    if (calls.failed == NULL) {
        calls.failed = name;
        calls.in_library = dladdr(caller, &info) && strstr(info.dli_fname, "bantam") == NULL;
    }
    return 1;
}
#define fails(name) fails_for(__builtin_return_address(0), name)

/* The loader's function of that name. */
static void *real(const char *name) {
    static void *loader;
    if (loader == NULL) loader = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    return loader ? dlsym(loader, name) : NULL;
}

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) \
    static __typeof__(name) *next; \
    if (next == NULL) { \
        void *found = real(#name); \
        memcpy(&next, &found, sizeof next); \
    }

/* Calls that give a code. */
#define ENQUEUE(name, params, args) \
    EXPORT cl_int name params { \
        REAL(name) \
        return fails(#name) ? CL_OUT_OF_RESOURCES : next args; \
    }

/* Those that touch host memory later. */
#define COPY(name, params, args) \
    EXPORT cl_int name params { \
        REAL(name) \
        if (fails(#name)) return CL_OUT_OF_RESOURCES; \
        calls.copies++; \
        return next args; \
    }

/* Calls that give an object, and their code through the last argument. */
#define CREATE(type, name, params, args, note) \
    EXPORT type name params { \
        REAL(name) \
        if (fails(#name)) { \
            if (code != NULL) *code = CL_OUT_OF_HOST_MEMORY; \
            return NULL; \
        } \
        type made = next args; \
        if (made != NULL) { \
            note; \
        } \
        return made; \
    }

static int64_t bytes_of(cl_mem mem) {
    cl_mem whole = NULL;
    size_t bytes = 0;
    clGetMemObjectInfo(mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL);
    clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return whole == NULL ? (int64_t)bytes : 0;
}

EXPORT cl_int clGetMemObjectInfo(cl_mem m, cl_mem_info what, size_t size, void *out, size_t *used) {
    REAL(clGetMemObjectInfo)
    return next(m, what, size, out, used);
}

/* ---- faces of devices ---- */

#define MOST_FACES 8

static cl_device_id seen[MOST_FACES]; /* as they were listed first */
static int seen_count;

static const calls_face *face_of(cl_device_id id) {
    for (int i = 0; i < seen_count && i < calls.face_count; i++)
        if (seen[i] == id) return &calls.faces[i];
    return NULL;
}

EXPORT cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint n,
                             cl_device_id *id, cl_uint *count) {
    REAL(clGetDeviceIDs)
    cl_uint found = 0;
    const cl_int code = next(platform, type, n, id, &found);
    for (cl_uint i = 0; code == CL_SUCCESS && id != NULL && i < found && i < n; i++) {
        int k = 0;
        while (k < seen_count && seen[k] != id[i]) k++;
        if (k == seen_count && k < MOST_FACES) seen[seen_count++] = id[i];
    }
    if (count != NULL) *count = found;
    return code;
}

EXPORT cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t size, void *out,
                              size_t *used) {
    REAL(clGetDeviceInfo)
    const cl_int code = next(id, what, size, out, used);
    const calls_face *face = face_of(id);
    if (code != CL_SUCCESS || out == NULL || face == NULL) return code;
    if (what == CL_DEVICE_TYPE) memcpy(out, &face->type, sizeof face->type);
    if (what == CL_DEVICE_GLOBAL_MEM_SIZE) memcpy(out, &face->bytes, sizeof face->bytes);
    if (what == CL_DEVICE_HOST_UNIFIED_MEMORY) memcpy(out, &face->shared, sizeof face->shared);
    if (what == CL_DEVICE_COMPILER_AVAILABLE) memcpy(out, &face->compiler, sizeof face->compiler);
    return code;
}

/* ---- calls that may fail ---- */

CREATE(cl_context, clCreateContext,
       (const cl_context_properties *properties, cl_uint n, const cl_device_id *device,
        void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *user,
        cl_int *code),
       (properties, n, device, notify, user, code), )
CREATE(cl_command_queue, clCreateCommandQueue,
       (cl_context c, cl_device_id d, cl_command_queue_properties properties, cl_int *code),
       (c, d, properties, code), calls.live++)
CREATE(cl_program, clCreateProgramWithSource,
       (cl_context c, cl_uint n, const char **text, const size_t *size, cl_int *code),
       (c, n, text, size, code), )
CREATE(cl_program, clCreateProgramWithBinary,
       (cl_context c, cl_uint n, const cl_device_id *d, const size_t *size,
        const unsigned char **data, cl_int *verdict, cl_int *code),
       (c, n, d, size, data, verdict, code), )
CREATE(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *code), (p, name, code), )
CREATE(cl_mem, clCreateBuffer,
       (cl_context c, cl_mem_flags flags, size_t size, void *host, cl_int *code),
       (c, flags, size, host, code), (calls.live++, calls.buffers++, calls.bytes += (int64_t)size))
CREATE(cl_mem, clCreateSubBuffer,
       (cl_mem m, cl_mem_flags flags, cl_buffer_create_type type, const void *region, cl_int *code),
       (m, flags, type, region, code), (calls.live++, calls.buffers++))
CREATE(void *, clEnqueueMapBuffer,
       (cl_command_queue q, cl_mem m, cl_bool wait, cl_map_flags flags, size_t off, size_t size,
        cl_uint n, const cl_event *before, cl_event *event, cl_int *code),
       (q, m, wait, flags, off, size, n, before, event, code), )

ENQUEUE(clBuildProgram,
        (cl_program p, cl_uint n, const cl_device_id *d, const char *options,
         void(CL_CALLBACK *notify)(cl_program, void *), void *user),
        (p, n, d, options, notify, user))
ENQUEUE(clEnqueueNDRangeKernel,
        (cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *off, const size_t *items,
         const size_t *group, cl_uint n, const cl_event *before, cl_event *event),
        (q, k, dims, off, items, group, n, before, event))
ENQUEUE(clEnqueueFillBuffer,
        (cl_command_queue q, cl_mem m, const void *pattern, size_t width, size_t off, size_t size,
         cl_uint n, const cl_event *before, cl_event *event),
        (q, m, pattern, width, off, size, n, before, event))
COPY(clEnqueueWriteBuffer,
     (cl_command_queue q, cl_mem m, cl_bool wait, size_t off, size_t size, const void *from,
      cl_uint n, const cl_event *before, cl_event *event),
     (q, m, wait, off, size, from, n, before, event))
COPY(clEnqueueReadBuffer,
     (cl_command_queue q, cl_mem m, cl_bool wait, size_t off, size_t size, void *to, cl_uint n,
      const cl_event *before, cl_event *event),
     (q, m, wait, off, size, to, n, before, event))
ENQUEUE(clEnqueueCopyBuffer,
        (cl_command_queue q, cl_mem from, cl_mem to, size_t from_off, size_t to_off, size_t size,
         cl_uint n, const cl_event *before, cl_event *event),
        (q, from, to, from_off, to_off, size, n, before, event))
ENQUEUE(clEnqueueBarrierWithWaitList,
        (cl_command_queue q, cl_uint n, const cl_event *before, cl_event *event),
        (q, n, before, event))
ENQUEUE(clFlush, (cl_command_queue q), (q))
ENQUEUE(clWaitForEvents, (cl_uint n, const cl_event *event), (n, event))

/* A device that is lost does nothing more; a call that is refused does not wait. */
EXPORT cl_int clFinish(cl_command_queue q) {
    REAL(clFinish)
    const int failed = fails("clFinish");
    if (failed && !calls.lost) return CL_OUT_OF_RESOURCES;
    const cl_int code = next(q);
    calls.copies = 0;
    return failed ? CL_OUT_OF_RESOURCES : code;
}

EXPORT cl_int clEnqueueMarkerWithWaitList(cl_command_queue q, cl_uint n, const cl_event *before,
                                          cl_event *event) {
    REAL(clEnqueueMarkerWithWaitList)
    if (fails("clEnqueueMarkerWithWaitList")) return CL_OUT_OF_RESOURCES;
    calls.live += event != NULL;
    return next(q, n, before, event);
}

/* What gives back never fails. */
#define RELEASE(name, type, note) \
    EXPORT cl_int name(type x) { \
        REAL(name) \
        note; \
        return next(x); \
    }
RELEASE(clReleaseCommandQueue, cl_command_queue, calls.live--)
RELEASE(clReleaseEvent, cl_event, calls.live--)
RELEASE(clReleaseMemObject, cl_mem, (calls.live--, calls.bytes -= bytes_of(x)))
