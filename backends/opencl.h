/* What the files of the opencl backend share. The only header of the tree that includes OpenCL's.
 */
#ifndef BANTAM_BACKENDS_OPENCL_H
#define BANTAM_BACKENDS_OPENCL_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "backends/opencl_plan.h"
#include "backends/speed.h"

/* Kernels of kernels_cl/, by the name after k_. Those whose data may be half are built once for
 * each storage type; the others take fp32, or any type, and are built with those of fp32. */
#define BTCL_DATA_KERNELS(X) \
    X(bias_act_fwd) \
    X(bias_act_bwd) \
    X(gather) \
    X(gate_fwd) \
    X(gate_bwd) \
    X(norm_fwd) \
    X(norm_bwd_params) \
    X(norm_bwd) \
    X(attn_fwd) \
    X(attn_delta) \
    X(attn_bwd_q) \
    X(attn_bwd_kv) \
    X(embed_fwd) \
    X(embed_bwd)
#define BTCL_OTHER_KERNELS(X) \
    X(colsum) \
    X(axpby) \
    X(zero) \
    X(gemm) \
    X(cross_entropy) \
    X(value_loss) \
    X(topk) \
    X(sumsq) \
    X(update_scalars) \
    X(adamw) \
    X(adamw_rows) \
    X(adamw8)
#define BTCL_KERNELS(X) BTCL_DATA_KERNELS(X) BTCL_OTHER_KERNELS(X)

typedef enum btcl_kernel {
#define X(name) BTCL_##name,
    BTCL_KERNELS(X)
#undef X
        BTCL_KERNEL_COUNT
} btcl_kernel;

extern const char *const btcl_kernel_names[BTCL_KERNEL_COUNT]; /* "k_..." */

/* Storage types, as the kernels number them. */
typedef enum btcl_type { BTCL_F32, BTCL_F16, BTCL_BF16, BTCL_TYPE_COUNT } btcl_type;

static inline btcl_type btcl_type_of(bt_dtype t) {
    return t == BT_F16 ? BTCL_F16 : t == BT_BF16 ? BTCL_BF16 : BTCL_F32;
}

/* Kernels that the program of a type has: a half one ends where the others begin. */
static inline int btcl_kernels_of(btcl_type type) {
    return type == BTCL_F32 ? BTCL_KERNEL_COUNT : BTCL_colsum;
}

/* One device of one platform. Its context and fp32 program are made at the first open, programs of
 * half types when first asked for; all are kept to the end of the process, since libraries keep
 * what they built by the context's address. */
typedef struct btcl_board {
    cl_platform_id platform;
    cl_device_id id;
    cl_device_type type;
    cl_context context; /* NULL before the first open */
    cl_program program[BTCL_TYPE_COUNT];
    size_t group[BTCL_TYPE_COUNT][BTCL_KERNEL_COUNT]; /* work-items of a group of each kernel */
    int wide;                                         /* columns that a work-item takes at a time */
    bti_speed speed;                                  /* 0: not measured yet */
} btcl_board;

struct bt_buf {
    cl_mem mem;
    uint64_t bytes;
    /* Windows on it for a library that takes no offset, made when first asked for. */
    struct btcl_window {
        uint64_t off, bytes;
        cl_mem mem;
    } * window;
    size_t windows;
};

struct bt_stream {
    cl_command_queue queue;
    unsigned waiting;  /* launches since the last flush */
    bt_status failure; /* a late one sticks */
    char text[256];
};

struct bt_event {
    cl_event event; /* NULL before the first record */
};

/* Host memory that the driver can copy from and to directly: a buffer that stays mapped. */
struct btcl_pinned {
    struct btcl_pinned *next;
    cl_mem mem; /* NULL: the system's own memory */
    void *p;
};

typedef struct btcl_dev {
    bt_dev base; /* first */
    btcl_board *board;
    bt_stream own; /* what a NULL stream means */
    cl_kernel kernel[BTCL_TYPE_COUNT][BTCL_KERNEL_COUNT];
    uint64_t used;              /* bytes of all buffers */
    struct btcl_pinned *pinned; /* host memory given out */
    int library;                /* CLBlast may be used: it has not failed yet */
} btcl_dev;

static inline btcl_dev *btcl_self(bt_dev *dev) { return (btcl_dev *)(void *)dev; }

/* Sets the error text "opencl: WHAT: CL_NAME (code)", returns the status that fits the code. */
bt_status btcl_fail(const bt_host *host, cl_int code, const char *what);

/* opencl_memory.c: the device table; queues of boards. */
extern const bt_dev_ops btcl_dev_ops;
bt_status btcl_open_queue(const bt_host *host, const btcl_board *board, bt_stream *s);

/* opencl.c, for the table. */
void btcl_close(bt_dev *dev);
bt_status btcl_query(bt_dev *dev, bt_dev_info *info);
/* The device has the kernels of this type: builds them at the first call. */
bt_status btcl_need(bt_dev *dev, btcl_type type);

/* The stream to use; a failure that stuck to it. */
bt_stream *btcl_stream(bt_dev *dev, bt_stream *s);
bt_status btcl_stuck(const bt_dev *dev, const bt_stream *s);

/* opencl_program.c: context, program (from the cache or compiled) and group sizes of a board. */
bt_status btcl_build(const bt_host *host, btcl_board *board, btcl_type type);
/* Text of a device or platform property. */
void btcl_device_text(cl_device_id id, cl_device_info what, char *out, size_t size);
void btcl_platform_text(cl_platform_id id, cl_platform_info what, char *out, size_t size);

/* opencl_ops.c: the table; y = a x + b y of any types, x rounded to `round` before that. */
extern const bt_op_fn btcl_op_table[BT_OP_COUNT];
bt_status btcl_axpby(bt_dev *dev, bt_stream *s, const bt_view *x, const bt_view *y,
                     bt_axpby_params p, bt_dtype round);

/* opencl_gemm.c: the slot; may CLBlast be used on a device; making it build its kernels. */
bt_status btcl_op_gemm(bt_dev *dev, bt_stream *s, const bt_call *call);
int btcl_has_library(const btcl_board *board);
bt_status btcl_warm(bt_dev *dev, const bt_call *calls, size_t count);

/* ---- opencl_launch.c: arguments of a kernel in order, then its groups --------------------------
 */

typedef struct btcl_launch {
    btcl_dev *dev;
    btcl_kernel which;
    btcl_type type;
    cl_uint args;
    cl_int error;     /* the first */
    bt_status status; /* of building the program */
} btcl_launch;

/* A kernel of the program of fp32; of that of a data type. */
btcl_launch btcl_begin(bt_dev *dev, btcl_kernel which);
btcl_launch btcl_begin_data(bt_dev *dev, btcl_kernel which, bt_dtype type);
void btcl_arg(btcl_launch *l, size_t size, const void *value);
void btcl_i32(btcl_launch *l, int32_t x);
void btcl_i64(btcl_launch *l, int64_t x);
void btcl_f32(btcl_launch *l, double x);
/* Base and offset; with btcl_view also the leading dimension; with btcl_any also the type. */
void btcl_base(btcl_launch *l, const bt_view *v);
void btcl_view(btcl_launch *l, const bt_view *v);
void btcl_any(btcl_launch *l, const bt_view *v);
void btcl_drop(btcl_launch *l, const bt_drop *drop);
/* Work-items of a group of the kernel; groups for so many of them. */
int64_t btcl_group_of(const btcl_launch *l);
uint64_t btcl_groups_of(const btcl_launch *l, int64_t items);
bt_status btcl_go(btcl_launch *l, bt_stream *s, uint64_t groups);
/* With a work-item for a few columns of a row each. */
bt_status btcl_go_wides(btcl_launch *l, bt_stream *s, int64_t rows, int64_t cols);

/* Groups of a kernel that sums columns by chunks (kernels_cl/prelude.cl: CX times W columns). */
uint64_t btcl_column_groups(const btcl_launch *l, int64_t rows, int64_t cols);
/* The call's scratch, as the partial sums of a matrix. */
bt_view btcl_partial(const bt_call *call, int64_t cols);
/* Into `out` the sums of `part`, into `more` those of what lies `second` elements further on;
 * either may be absent. */
bt_status btcl_add_columns(bt_dev *dev, bt_stream *s, const bt_view *part, int64_t second,
                           int64_t rows, int64_t cols, const bt_view *out, const bt_view *more,
                           double beta);

#endif
