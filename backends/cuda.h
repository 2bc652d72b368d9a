/* What the files of the cuda backend share. With them the only ones that include CUDA's headers. */
#ifndef BANTAM_BACKENDS_CUDA_H
#define BANTAM_BACKENDS_CUDA_H

#include <cuda_runtime_api.h>

#include "backends/cuda_plan.h"
#include "kernels_cuda/launch.h"

struct bt_buf {
    char *p;
    uint64_t bytes;
};

struct bt_stream {
    cudaStream_t stream;
    bt_status failure; /* a late one sticks */
    char text[256];
};

struct bt_event {
    cudaEvent_t event;
};

typedef struct btcu_blas btcu_blas; /* cuda_blas.c: a handle of cuBLAS and its workspace */

typedef struct btcu_dev {
    bt_dev base; /* first */
    int index, major, minor, processors;
    bt_stream own;       /* what a NULL stream means */
    cudaEvent_t between; /* orders the own stream after others, and they after it */
    btcu_blas *blas;
    uint64_t used; /* bytes of all buffers */
    uint64_t held; /* taken beside them when the device was opened or last warmed */
} btcu_dev;

static inline btcu_dev *btcu_self(bt_dev *dev) { return (btcu_dev *)(void *)dev; }

/* ---- cuda_memory.c: errors, memory, copies, streams and events; the device table ---------------
 */

extern const bt_dev_ops btcu_dev_ops;

/* Makes the device the calling thread's, picks the stream, and returns what stuck to it. */
bt_status btcu_enter(bt_dev *dev, bt_stream **s);
/* BT_OK, or the failure of a call on a stream: a late one sticks to it. The call is watched. */
#define btcu_check(dev, s, call, what) \
    btcu_result(dev, s, (cudaError_t)BTCU_WATCHED((dev)->host, what, call), what)
bt_status btcu_result(bt_dev *dev, bt_stream *s, cudaError_t code, const char *what);
bt_status btcu_open_stream(btcu_dev *d, bt_stream *s);
/* Says who has the memory; cudaMalloc, whose failure does. */
bt_status btcu_no_memory(bt_dev *dev, const char *what);
bt_status btcu_malloc(bt_dev *dev, uint64_t bytes, void **out);

/* ---- cuda_watch.c: calls that do not return -----------------------------------------------------
 */

/* Calls are watched between the two, which may nest: while a device is open, or asked for. */
void btcu_watch(const bt_host *host);
void btcu_unwatch(void);
/* The value of a call that is told about when it does not return; `what`, a literal, is its name. A
 * watched call within another one ends the watch of both. */
#define BTCU_WATCHED(host, what, call) (btcu_begin(host, what), btcu_end((int)(call)))
void btcu_begin(const bt_host *host, const char *what);
int btcu_end(int code);

/* ---- cuda.c, for the device table --------------------------------------------------------------
 */

void btcu_close(bt_dev *dev);
bt_status btcu_query(bt_dev *dev, bt_dev_info *info);
/* Takes what is held now for what libraries keep. */
bt_status btcu_note_held(bt_dev *dev);

/* ---- the op table, and what its slots share ----------------------------------------------------
 */

extern const bt_op_fn btcu_op_table[BT_OP_COUNT];

#define BT_OP(name, NAME, slot) \
    bt_status btcu_op_##name(bt_dev *dev, bt_stream *s, const bt_call *call);
#include "core/ops/op_list.inc"

/* Absent: NULL, 0. */
static inline btcu_mat btcu_mat_of(const bt_view *v) {
    return v->ld > 0 ? (btcu_mat){v->buf->p + v->off, v->ld} : (btcu_mat){NULL, 0};
}

static inline float *btcu_floats(const bt_view *v) { return btcu_mat_of(v).p; }

#define BTCU_MAT(i) btcu_mat_of(&call->t[i])
#define BTCU_ENTER(dev, s) \
    do { \
        const bt_status entered_ = btcu_enter(dev, &(s)); \
        if (entered_ != BT_OK) return entered_; \
    } while (0)

/* ---- cuda_blas.c -------------------------------------------------------------------------------
 */

/* Opens the library when it is first asked for, and makes a handle on the device's own stream with
 * a workspace that is ours. */
bt_status btcu_blas_open(btcu_dev *d);
void btcu_blas_close(btcu_dev *d);
bt_status btcu_warm(bt_dev *dev, const bt_call *calls, size_t count);

#endif
