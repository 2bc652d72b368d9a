/* Matrix products: CLBlast for large plain ones where it is there and fits the device, k_gemm for
 * all others.
 *
 * CLBlast is opened at run time. It is asked before each call how much scratch it wants; only its
 * call that takes scratch is used, in slices (opencl_plan.c). Its kernels want work-groups of up
 * to 256, hold offsets in int, and multiply A and B where alpha is 0; what it cannot do is ours. */
#include "backends/opencl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef BT_HAVE_CLBLAST
#include <clblast_c.h>

#define LIBRARY_GROUP 256

static pthread_once_t once = PTHREAD_ONCE_INIT;
static __typeof__(CLBlastSgemmWithTempBuffer) *sgemm;
static __typeof__(CLBlastSGemmTempBufferSize) *sgemm_bytes;

static void open_library(void) {
    const char *off = getenv("BANTAM_OPENCL_CLBLAST");
    if (off != NULL && strcmp(off, "0") == 0) return;
    void *handle = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return;
    void *call = dlsym(handle, "CLBlastSgemmWithTempBuffer");
    void *bytes = dlsym(handle, "CLBlastSGemmTempBufferSize");
    if (call == NULL || bytes == NULL) return;
    memcpy(&sgemm, &call, sizeof sgemm); /* ISO C has no such cast */
    memcpy(&sgemm_bytes, &bytes, sizeof sgemm_bytes);
}

/* ---- scratch -----------------------------------------------------------------------------------
 */

/* A buffer that is bytes [off, off + bytes) of another one; kept with it. NULL where the device
 * does not let one start there. */
static cl_mem window_of(bt_buf *buf, uint64_t off, uint64_t bytes) {
    for (size_t i = 0; i < buf->windows; i++)
        if (buf->window[i].off == off && buf->window[i].bytes >= bytes) return buf->window[i].mem;
    cl_int code;
    const cl_buffer_region region = {off, bytes};
    struct btcl_window *more = realloc(buf->window, (buf->windows + 1) * sizeof *more);
    if (more == NULL) return NULL;
    buf->window = more;
    cl_mem mem = clCreateSubBuffer(buf->mem, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                   &region, &code);
    if (code != CL_SUCCESS) return NULL;
    more[buf->windows++] = (struct btcl_window){off, bytes, mem};
    return mem;
}

/* ---- one product in slices ---------------------------------------------------------------------
 */

typedef struct product {
    const bt_call *call;
    cl_command_queue queue;
    cl_mem scratch;
    uint64_t scratch_bytes;
    int64_t i, j, l; /* first row, column and depth of the slice */
    int64_t m, n, k;
} product;

static size_t element(const bt_view *v, int64_t row, int64_t col) {
    return v->off / sizeof(float) + (size_t)(row * v->ld + col);
}

/* Asks only (0 in *did where it wants more scratch than there is), or computes. */
static CLBlastStatusCode run_slice(product *p, int ask, int *fits) {
    const bt_gemm_params *g = &p->call->p.gemm;
    const bt_view *a = &p->call->t[BT_GEMM_A], *b = &p->call->t[BT_GEMM_B],
                  *c = &p->call->t[BT_GEMM_C];
    const CLBlastTranspose ta = g->trans_a ? CLBlastTransposeYes : CLBlastTransposeNo;
    const CLBlastTranspose tb = g->trans_b ? CLBlastTransposeYes : CLBlastTransposeNo;
    const size_t at_a = g->trans_a ? element(a, p->l, p->i) : element(a, p->i, p->l);
    const size_t at_b = g->trans_b ? element(b, p->j, p->l) : element(b, p->l, p->j);
    const size_t at_c = element(c, p->i, p->j), m = (size_t)p->m, n = (size_t)p->n,
                 k = (size_t)p->k, lda = (size_t)a->ld, ldb = (size_t)b->ld, ldc = (size_t)c->ld;
    if (ask) {
        size_t bytes = 0;
        CLBlastStatusCode code = sgemm_bytes(CLBlastLayoutRowMajor, ta, tb, m, n, k, at_a, lda,
                                             at_b, ldb, at_c, ldc, &p->queue, &bytes);
        *fits = bytes <= p->scratch_bytes;
        return code;
    }
    return sgemm(CLBlastLayoutRowMajor, ta, tb, m, n, k, (float)g->alpha, a->buf->mem, at_a, lda,
                 b->buf->mem, at_b, ldb, p->l == 0 ? (float)g->beta : 1.0f, c->buf->mem, at_c, ldc,
                 &p->queue, NULL, p->scratch);
}

/* All slices, first asking, then computing. 0: not done, nothing was written. */
static int run_slices(btcl_dev *d, product *p, int64_t m, int64_t n, int64_t k) {
    const btcl_slice s = btcl_gemm_slice(m, n, k);
    for (int ask = 1; ask >= 0; ask--)
        for (p->i = 0; p->i < m; p->i += s.m)
            for (p->j = 0; p->j < n; p->j += s.n)
                for (p->l = 0; p->l < k; p->l += s.k) {
                    int fits = 1;
                    p->m = m - p->i < s.m ? m - p->i : s.m;
                    p->n = n - p->j < s.n ? n - p->j : s.n;
                    p->k = k - p->l < s.k ? k - p->l : s.k;
                    if (run_slice(p, ask, &fits) == CLBlastSuccess && fits) continue;
                    if (!ask) d->library = 0;
                    return ask || p->i + p->j + p->l == 0 ? 0 : -1;
                }
    return 1;
}

/* Do all elements lie below 2^31 of their buffer? */
static int short_offsets(const bt_view *v) {
    return element(v, v->rows - 1, v->cols - 1) < (size_t)INT32_MAX;
}

int btcl_has_library(const btcl_board *board) {
    size_t group = 0;
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    pthread_once(&once, open_library);
    return sgemm != NULL && group >= LIBRARY_GROUP;
}

/* 1: done by the library; 0: not, and C is as it was; -1: it failed half way. */
static int by_library(btcl_dev *d, bt_stream *s, const bt_call *call) {
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C], *ws = &call->ws;
    if (!d->library || ws->buf == NULL || !btcl_gemm_may_slice(call) || !short_offsets(a) ||
        !short_offsets(&call->t[BT_GEMM_B]) || !short_offsets(c))
        return 0;
    product p = {.call = call, .queue = s->queue};
    p.scratch_bytes = (uint64_t)ws->cols * sizeof(float);
    p.scratch = window_of(ws->buf, ws->off, p.scratch_bytes);
    if (p.scratch == NULL) return 0;
    return run_slices(d, &p, c->rows, c->cols, call->p.gemm.trans_a ? a->rows : a->cols);
}
#else
int btcl_has_library(const btcl_board *board) {
    (void)board;
    return 0;
}

static int by_library(btcl_dev *d, bt_stream *s, const bt_call *call) {
    (void)d, (void)s, (void)call;
    return 0;
}
#endif

/* ---- the slot ----------------------------------------------------------------------------------
 */

static int64_t count_of(int64_t batch) { return batch > 1 ? batch : 1; }

static bt_status own_kernel(bt_dev *dev, bt_stream *s, const bt_call *call) {
    enum { TILE = 64 }; /* kernels_cl/gemm.cl */
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const int64_t batch1 = count_of(g->batch1);
    btcl_launch l = btcl_begin(dev, BTCL_gemm);
    btcl_view(&l, a);
    btcl_view(&l, &call->t[BT_GEMM_B]);
    btcl_view(&l, c);
    btcl_i64(&l, c->rows);
    btcl_i64(&l, c->cols);
    btcl_i64(&l, g->alpha == 0 ? 0 : g->trans_a ? a->rows : a->cols);
    btcl_i32(&l, g->trans_a);
    btcl_i32(&l, g->trans_b);
    btcl_f32(&l, g->alpha);
    btcl_f32(&l, g->beta);
    btcl_i64(&l, batch1);
    btcl_i64(&l, g->a0);
    btcl_i64(&l, g->a1);
    btcl_i64(&l, g->b0);
    btcl_i64(&l, g->b1);
    btcl_i64(&l, g->c0);
    btcl_i64(&l, g->c1);
    return btcl_go(&l, s,
                   (uint64_t)count_of(g->batch0) * (uint64_t)batch1 *
                       (uint64_t)btcl_ceil_div(c->rows, TILE) *
                       (uint64_t)btcl_ceil_div(c->cols, TILE));
}

bt_status btcl_op_gemm(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    btcl_dev *d = btcl_self(dev);
    bt_stream *s = btcl_stream(dev, stream);
    bt_status status = btcl_stuck(dev, s);
    if (status != BT_OK) return status;
    switch (by_library(d, s, call)) {
    case 1:
        s->waiting += 4;
        return BT_OK;
    case 0:
        return own_kernel(dev, s, call);
    default:
        return btcl_failf(dev->host, BT_EDEVICE,
                          "opencl: CLBlast cannot multiply on this device: set "
                          "BANTAM_OPENCL_CLBLAST=0 to do without it");
    }
}

/* One small product, so that CLBlast has built its kernels; its result is nobody's. Where it fails
 * it is not used again. */
bt_status btcl_warm(bt_dev *dev, const bt_call *calls, size_t count) {
    enum { SIDE = 256 };
    const uint64_t matrix = (uint64_t)SIDE * SIDE * sizeof(float);
    const uint64_t scratch = btcl_slice_bytes(SIDE, SIDE, SIDE);
    bt_buf *buf = NULL;
    (void)calls;
    if (count == 0 || 3 * matrix + scratch > dev->info.max_alloc) return BT_OK;
    bt_status status = dev->ops->alloc(dev, 3 * matrix + scratch, &buf);
    if (status != BT_OK) return status;
    const bt_view square = {buf, 0, SIDE, SIDE, SIDE, BT_F32};
    bt_call call = {.op = BT_OP_GEMM, .t = {square, square, square}, .p.gemm.alpha = 1};
    call.t[1].off = matrix;
    call.t[2].off = 2 * matrix;
    call.ws = (bt_view){buf,
                        3 * matrix,
                        1,
                        (int64_t)(scratch / sizeof(float)),
                        (int64_t)(scratch / sizeof(float)),
                        BT_F32};
    const int before = btcl_self(dev)->library;
    status = btcl_op_gemm(dev, NULL, &call);
    if (btcl_self(dev)->library != before)
        btcl_notice(dev->host, "opencl: CLBlast fails on %s; its products are done without it",
                    dev->info.name);
    if (status == BT_OK) status = dev->ops->sync(dev, NULL);
    dev->ops->free(dev, buf);
    return status;
}
