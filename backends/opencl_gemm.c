/* Matrix products: CLBlast for large plain ones where it is there and fits the device, k_gemm for
 * all others.
 *
 * CLBlast is opened at run time. It is asked before each call how much scratch it wants; only its
 * call that takes scratch is used, in slices (opencl_plan.c). It multiplies fp32: of products with
 * halves each slice is made fp32 in scratch, and C is rounded when it is whole. Its kernels want
 * work-groups of up to 256, hold offsets in int, and multiply A and B where alpha is 0; what it
 * cannot do is ours. */
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
    bt_dev *dev;
    bt_stream *stream;
    const bt_call *call;
    cl_mem scratch; /* the library's own */
    uint64_t scratch_bytes;
    int64_t m, n, k; /* of the whole */
    btcl_slice most; /* of a slice */
    int64_t i, j, l; /* first row, column and depth of the slice */
    btcl_slice s;    /* its sides */
    bt_view a, b, c; /* of the slice, as in memory */
    bt_view wide[3]; /* A, B, C that the library multiplies: these, or fp32 copies in scratch */
} product;

static bt_view part_of(const bt_view *v, int64_t row, int64_t col, int64_t rows, int64_t cols) {
    bt_view part = *v;
    part.off += (size_t)(row * v->ld + col) * (v->dtype == BT_F32 ? 4 : 2);
    part.rows = rows;
    part.cols = cols;
    return part;
}

/* What the library gets for an operand of the slice: itself, or a place after `*at` bytes. */
static bt_view wide_part(const product *p, const bt_view *v, uint64_t *at, int copied) {
    if (!copied) return *v;
    bt_view copy = p->call->ws;
    copy.off += *at;
    copy.rows = v->rows;
    copy.cols = copy.ld = v->cols;
    *at += (uint64_t)(v->rows * v->cols) * sizeof(float);
    return copy;
}

/* The views of the slice. C is copied where it is half; A and B also where they are to be rounded.
 */
static void set_slice(product *p) {
    const bt_gemm_params *g = &p->call->p.gemm;
    const bt_view *t = p->call->t;
    uint64_t at = p->scratch_bytes;
    p->s.m = p->m - p->i < p->most.m ? p->m - p->i : p->most.m;
    p->s.n = p->n - p->j < p->most.n ? p->n - p->j : p->most.n;
    p->s.k = p->k - p->l < p->most.k ? p->k - p->l : p->most.k;
    p->a = g->trans_a ? part_of(&t[BT_GEMM_A], p->l, p->i, p->s.k, p->s.m)
                      : part_of(&t[BT_GEMM_A], p->i, p->l, p->s.m, p->s.k);
    p->b = g->trans_b ? part_of(&t[BT_GEMM_B], p->j, p->l, p->s.n, p->s.k)
                      : part_of(&t[BT_GEMM_B], p->l, p->j, p->s.k, p->s.n);
    p->c = part_of(&t[BT_GEMM_C], p->i, p->j, p->s.m, p->s.n);
    p->wide[0] = wide_part(p, &p->a, &at, btcl_gemm_wide(p->call));
    p->wide[1] = wide_part(p, &p->b, &at, btcl_gemm_wide(p->call));
    p->wide[2] = wide_part(p, &p->c, &at, p->c.dtype != BT_F32);
}

static CLBlastTranspose transposed(int yes) {
    return yes ? CLBlastTransposeYes : CLBlastTransposeNo;
}

static size_t first_of(const bt_view *v) { return v->off / sizeof(float); }

/* Can the library do the slice in this scratch? */
static int ask_slice(product *p) {
    const bt_gemm_params *g = &p->call->p.gemm;
    const bt_view *a = &p->wide[0], *b = &p->wide[1], *c = &p->wide[2];
    size_t bytes = 0;
    return sgemm_bytes(CLBlastLayoutRowMajor, transposed(g->trans_a), transposed(g->trans_b),
                       (size_t)p->s.m, (size_t)p->s.n, (size_t)p->s.k, first_of(a), (size_t)a->ld,
                       first_of(b), (size_t)b->ld, first_of(c), (size_t)c->ld, &p->stream->queue,
                       &bytes) == CLBlastSuccess &&
           bytes <= p->scratch_bytes;
}

static int multiply_slice(product *p) {
    const bt_gemm_params *g = &p->call->p.gemm;
    const bt_view *a = &p->wide[0], *b = &p->wide[1], *c = &p->wide[2];
    return sgemm(CLBlastLayoutRowMajor, transposed(g->trans_a), transposed(g->trans_b),
                 (size_t)p->s.m, (size_t)p->s.n, (size_t)p->s.k, (float)g->alpha, a->buf->mem,
                 first_of(a), (size_t)a->ld, b->buf->mem, first_of(b), (size_t)b->ld,
                 p->l == 0 ? (float)g->beta : 1.0f, c->buf->mem, first_of(c), (size_t)c->ld,
                 &p->stream->queue, NULL, p->scratch) == CLBlastSuccess;
}

/* y = x, rounded on the way where the call rounds. */
static int copy_slice(const product *p, const bt_view *x, const bt_view *y, bt_dtype round) {
    return btcl_axpby(p->dev, p->stream, x, y, (bt_axpby_params){1, 0}, round) == BT_OK;
}

static int run_slice(product *p) {
    const bt_gemm_params *g = &p->call->p.gemm;
    const int copied = btcl_gemm_wide(p->call), half = p->c.dtype != BT_F32;
    if (copied && !copy_slice(p, &p->a, &p->wide[0], g->round)) return 0;
    if (copied && !copy_slice(p, &p->b, &p->wide[1], g->round)) return 0;
    if (half && p->l == 0 && g->beta != 0 && !copy_slice(p, &p->c, &p->wide[2], BT_F32)) return 0;
    if (!multiply_slice(p)) return 0;
    return !half || p->l + p->s.k < p->k || copy_slice(p, &p->wide[2], &p->c, BT_F32);
}

/* All slices, first asking, then computing. 0: not done, nothing was written. */
static int run_slices(btcl_dev *d, product *p) {
    for (int ask = 1; ask >= 0; ask--)
        for (p->i = 0; p->i < p->m; p->i += p->most.m)
            for (p->j = 0; p->j < p->n; p->j += p->most.n)
                for (p->l = 0; p->l < p->k; p->l += p->most.k) {
                    set_slice(p);
                    if (ask ? ask_slice(p) : run_slice(p)) continue;
                    if (!ask) d->library = 0;
                    return ask || p->i + p->j + p->l == 0 ? 0 : -1;
                }
    return 1;
}

/* Do all elements, counted in fp32, lie below 2^31 of their buffer? */
static int short_offsets(const bt_view *v) {
    return first_of(v) + (size_t)((v->rows - 1) * v->ld + v->cols) < (size_t)INT32_MAX;
}

/* On a CPU k_gemm is several times as fast. BANTAM_OPENCL_CLBLAST: 0 never, 1 on a CPU too. */
int btcl_has_library(const btcl_board *board) {
    const char *asked = getenv("BANTAM_OPENCL_CLBLAST");
    size_t group = 0;
    if (asked ? strcmp(asked, "0") == 0 : (board->type & CL_DEVICE_TYPE_CPU) != 0) return 0;
    clGetDeviceInfo(board->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    pthread_once(&once, open_library);
    return sgemm != NULL && group >= LIBRARY_GROUP;
}

/* 1: done by the library; 0: not, and C is as it was; -1: it failed half way. */
static int by_library(btcl_dev *d, bt_stream *s, const bt_call *call) {
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C], *ws = &call->ws;
    const int wide = btcl_gemm_wide(call);
    if (!d->library || ws->buf == NULL || !btcl_gemm_may_slice(call) || !short_offsets(a) ||
        !short_offsets(&call->t[BT_GEMM_B]) || !short_offsets(c) || !short_offsets(ws))
        return 0;
    product p = {.dev = &d->base, .stream = s, .call = call, .m = c->rows, .n = c->cols};
    p.k = call->p.gemm.trans_a ? a->rows : a->cols;
    p.most = btcl_gemm_slice(p.m, p.n, p.k, wide);
    p.scratch_bytes = btcl_library_share((uint64_t)ws->cols * sizeof(float), wide);
    p.scratch = window_of(ws->buf, ws->off, p.scratch_bytes);
    return p.scratch == NULL ? 0 : run_slices(d, &p);
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
    btcl_any(&l, a);
    btcl_any(&l, &call->t[BT_GEMM_B]);
    btcl_any(&l, c);
    btcl_i64(&l, c->rows);
    btcl_i64(&l, c->cols);
    btcl_i64(&l, g->alpha == 0 ? 0 : g->trans_a ? a->rows : a->cols);
    btcl_i32(&l, g->trans_a);
    btcl_i32(&l, g->trans_b);
    btcl_f32(&l, g->alpha);
    btcl_f32(&l, g->beta);
    btcl_i32(&l, (int32_t)btcl_type_of(g->round));
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
        return bt_host_fail(dev->host, BT_EDEVICE,
                            "opencl: CLBlast cannot multiply on this device: set "
                            "BANTAM_OPENCL_CLBLAST=0 to do without it");
    }
}

/* The programs of the types that are to be multiplied, then one small product, so that CLBlast has
 * built its kernels; its result is nobody's. Where it fails it is not used again. */
bt_status btcl_warm(bt_dev *dev, const bt_call *calls, size_t count) {
    enum { SIDE = 256 };
    const uint64_t matrix = (uint64_t)SIDE * SIDE * sizeof(float);
    const uint64_t scratch = btcl_slice_bytes(&(btcl_slice){SIDE, SIDE, SIDE}, 0);
    bt_buf *buf = NULL;
    for (size_t i = 0; i < count; i++) {
        bt_status status = btcl_need(dev, btcl_type_of(calls[i].p.gemm.round));
        if (status != BT_OK) return status;
    }
    if (count == 0 || !btcl_self(dev)->library || 3 * matrix + scratch > dev->info.max_alloc)
        return BT_OK;
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
    status = btcl_op_gemm(dev, NULL, &call);
    if (!btcl_self(dev)->library)
        bt_host_log(dev->host, BT_LOG_WARN,
                    "opencl: CLBlast fails on %s; its products are done without it",
                    dev->info.name);
    if (status == BT_OK) status = dev->ops->sync(dev, NULL);
    dev->ops->free(dev, buf);
    return status;
}
