/* A backend: driver (find and open devices), device (memory, copies, streams, events) and op table.
 *
 * To add one: fill a bt_driver with its planning half (plain C, always linked), name it in BACKENDS
 * of registry.c, fill the MUST slots of the op table, run ctest -L <name>. FUSED slots may stay
 * NULL: core/ops/compose.c makes them of the others. What core may know about a device is in
 * bt_dev_info; it never branches on a backend's name.
 *
 * Rules: an op enqueues on its stream in order; it never allocates, synchronises, reads the
 * environment or prints. Memory is a handle and a byte offset; core never follows it. A failure
 * that shows late sticks to the stream and is returned by the next call on it, sync at the latest.
 * After a failed open nothing is left; out-parameters are set on success only. */
#ifndef BANTAM_BACKENDS_BACKEND_H
#define BANTAM_BACKENDS_BACKEND_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"
#include "core/ops/op_args.h"

/* Changes with every change to this file, op_args.h or op_list.inc; checked on load. */
#define BT_BACKEND_ABI 7

/* What a module may call of its host: it links nothing of libbantam. */
typedef struct bt_host {
    uint32_t abi;
    /* Sets the host thread's last-error text, returns `status`. */
    bt_status (*vfail)(bt_status status, const char *fmt, va_list ap);
    void (*vlog)(bt_log_level level, const char *fmt, va_list ap);
} bt_host;

__attribute__((format(printf, 3, 4))) static inline bt_status
bt_host_fail(const bt_host *host, bt_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    host->vfail(status, fmt, ap);
    va_end(ap);
    return status;
}

__attribute__((format(printf, 3, 4))) static inline void
bt_host_log(const bt_host *host, bt_log_level level, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    host->vlog(level, fmt, ap);
    va_end(ap);
}

typedef struct bt_dev bt_dev;
typedef struct bt_stream bt_stream;
typedef struct bt_event bt_event;

/* Capability data: all that core may ask of a device. */
typedef struct bt_dev_info {
    char name[128];       /* "AMD EPYC 7B13", "Tesla K80": the same after an update of its driver */
    char backend[16];     /* for people, and to tell plans and rates of devices apart */
    char capability[16];  /* compute capability, "3.7"; "": there is no such thing */
    char driver[64];      /* "CUDA 11.4" (the newest it serves), "PoCL 3.1"; "": none */
    uint32_t work_group;  /* largest work-group; 0: not told */
    uint64_t total_bytes; /* memory the device has */
    uint64_t free_bytes;  /* memory to be had now (0 in a table row: unknown) */
    uint64_t max_alloc;   /* largest single allocation = largest heap; 0: no limit */
    uint64_t runtime_bytes; /* held outside any arena: context, code, library buffers */
    uint32_t alignment;     /* of every tensor, bytes, a power of two */
    uint32_t dtypes;     /* bit 1 << bt_dtype for each type its ops take as data; half ones may be
                            storage only, with fp32 arithmetic */
    uint32_t threads;    /* host threads that compute (1 on a GPU) */
    uint32_t row_tile;   /* rows of a gemm with stable_rows; 0: any number (see op_args.h) */
    uint8_t tf32;        /* can multiply fp32 with 10 bits of mantissa */
    uint8_t host_memory; /* device memory is host memory: host-side moments would save nothing */
    double flops;        /* fp32 multiply-adds of a large gemm a second, times 2; 0: unknown */
    double bytes_per_s;  /* of a large copy, read + write; 0: unknown */
} bt_dev_info;

/* The planning half: always built, so that a laptop plans for a device that it does not have. */
typedef struct bt_planning {
    /* Scratch that `call` needs on such a device, bytes. Views carry shapes and types; buffers and
     * offsets may be NULL and 0. Bounds every call of the same op and parameters whose row counts
     * (and k, for gemm) are at most these, even where the library underneath is not monotone. */
    uint64_t (*ws_bytes)(const bt_dev_info *info, const bt_call *call);
    /* FUSED slots that the op table fills, bit 1 << bt_op. */
    uint32_t fused;
} bt_planning;

typedef bt_status (*bt_op_fn)(bt_dev *dev, bt_stream *stream, const bt_call *call);

/* Device table. All required unless noted. A NULL stream is the device's own compute stream.
 * Host memory given to upload and download must stay valid until the stream has passed it. */
typedef struct bt_dev_ops {
    void (*close)(bt_dev *dev); /* after all buffers, streams and events of it are freed */
    /* Fresh free_bytes and runtime_bytes, from the driver or the kernel, never worked out from what
     * this process knows: free_bytes is what could be had now, with what other processes hold
     * already gone; runtime_bytes is what this process holds outside its buffers. Core calls the
     * rest (total - free - runtime, while there are no buffers yet) held by others and says so. */
    bt_status (*query)(bt_dev *dev, bt_dev_info *info);
    bt_status (*alloc)(bt_dev *dev, uint64_t bytes, bt_buf **out);    /* content undefined */
    void (*free)(bt_dev *dev, bt_buf *buf);                           /* NULL is fine */
    bt_status (*host_alloc)(bt_dev *dev, uint64_t bytes, void **out); /* pinned where that helps */
    void (*host_free)(bt_dev *dev, void *p);
    /* Called before runtime_bytes is read with a product of each orientation and shape of a layer,
     * so that libraries have taken what they keep. May be NULL. */
    bt_status (*warm)(bt_dev *dev, const bt_call *calls, size_t count);
    bt_status (*upload)(bt_dev *dev, bt_stream *s, bt_buf *dst, uint64_t off, const void *src,
                        uint64_t bytes);
    bt_status (*download)(bt_dev *dev, bt_stream *s, void *dst, bt_buf *src, uint64_t off,
                          uint64_t bytes);
    bt_status (*fill)(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                      uint8_t value);
    bt_status (*stream_new)(bt_dev *dev, bt_stream **out);
    void (*stream_free)(bt_dev *dev, bt_stream *s);
    /* The host waits for the stream. When it returns, with whatever status, nothing that the stream
     * was given touches host memory any more. */
    bt_status (*sync)(bt_dev *dev, bt_stream *s);
    bt_status (*event_new)(bt_dev *dev, bt_event **out);
    void (*event_free)(bt_dev *dev, bt_event *e);
    bt_status (*event_record)(bt_dev *dev, bt_stream *s, bt_event *e);
    bt_status (*event_wait)(bt_dev *dev, bt_stream *s, bt_event *e); /* the stream waits */
    bt_status (*event_sync)(bt_dev *dev, bt_event *e);               /* the host waits */
} bt_dev_ops;

typedef struct bt_driver bt_driver;

/* Backends embed this as their first member. */
struct bt_dev {
    const bt_driver *driver;
    const bt_host *host;
    const bt_dev_ops *ops;
    const bt_op_fn *op; /* BT_OP_COUNT slots; NULL in FUSED slots that are composed */
    bt_dev_info info;   /* as of open */
};

typedef struct bt_open_options {
    int threads; /* 0: as many as this process may use */
    /* Nobody named the device: one that another backend serves better refuses, with BT_EUSAGE. */
    uint8_t automatic;
} bt_open_options;

struct bt_driver {
    uint32_t abi; /* BT_BACKEND_ABI, first */
    const char *name;
    const bt_planning *planning;
    /* Number of usable devices; 0 with the reason (which variable, which file) in `reason`. Creates
     * no context. */
    bt_status (*probe)(const bt_host *host, int *count, char *reason, size_t reason_size);
    bt_status (*open)(const bt_host *host, int index, const bt_open_options *options, bt_dev **out);
};

/* The one symbol that a module exports. */
#define BT_MODULE_SYMBOL "bt_module_driver"
typedef const bt_driver *(*bt_module_driver_fn)(void);

#endif
