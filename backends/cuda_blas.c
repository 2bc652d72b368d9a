/* Matrix products: cuBLAS, but for those whose rows keep their bits (kernels_cuda/gemm.cu) and
 * those that multiply nothing.
 *
 * cuBLAS is opened at run time, and only for a device that is there. One handle for each device, on
 * its own stream, with a workspace that is ours: cuBLAS then allocates nothing, and one stream with
 * one workspace gives the same bits in every run. It counts in columns: the row-major product
 * C = op(A) op(B) is its C^T = op(B)^T op(A)^T. Sizes and leading dimensions are int there. */
#include "backends/cuda_blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#ifndef BTCU_CUBLAS_FILE
#define BTCU_CUBLAS_FILE "libcublas.so." TEXT_OF(CUBLAS_VER_MAJOR)
#endif
#define CUBLAS_USUAL_FOLDER "/usr/local/cuda/lib64/"

/* What is called of it. */
#define CALLS(X) \
    X(cublasCreate_v2) \
    X(cublasDestroy_v2) \
    X(cublasSetStream_v2) \
    X(cublasSetWorkspace_v2) \
    X(cublasSetMathMode) \
    X(cublasSgemm_v2) \
    X(cublasSgemmStridedBatched) \
    X(cublasGemmEx)

typedef struct library {
#define X(name) __typeof__(name) *name;
    CALLS(X)
#undef X
    __typeof__(cublasGetStatusString) *words; /* NULL before 11.4.2 */
    char why[512];                            /* it is not there; empty where it is */
} library;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static library blas;

/* ---- the library -------------------------------------------------------------------------------
 */

static void find_call(void *file, const char *name, void *out) {
    void *symbol = dlsym(file, name);
    if (symbol == NULL && blas.why[0] == 0) strncpy(blas.why, dlerror(), sizeof blas.why - 1);
    memcpy(out, &symbol, sizeof symbol); /* ISO C has no such cast */
}

static void open_library(void) {
    void *file = dlopen(BTCU_CUBLAS_FILE, RTLD_NOW | RTLD_LOCAL);
    if (file == NULL) {
        strncpy(blas.why, dlerror(), sizeof blas.why - 1);
        file = dlopen(CUBLAS_USUAL_FOLDER BTCU_CUBLAS_FILE, RTLD_NOW | RTLD_LOCAL);
    }
    if (file == NULL) return;
    blas.why[0] = 0;
#define X(name) find_call(file, #name, (void *)&blas.name);
    CALLS(X)
#undef X
    void *words = dlsym(file, "cublasGetStatusString");
    memcpy(&blas.words, &words, sizeof words);
}

bt_status btcu_blas_result(bt_dev *dev, cublasStatus_t code, const char *what) {
    if (code == CUBLAS_STATUS_SUCCESS) return BT_OK;
    return bt_host_fail(dev->host, code == CUBLAS_STATUS_ALLOC_FAILED ? BT_ENOMEM : BT_EDEVICE,
                        "cuda: cuBLAS: %s: %s (%d)", what,
                        blas.words != NULL ? blas.words(code) : "status", (int)code);
}

/* A handle may need so much of a card (measured by users: 80 to 500 MB). Where less is free cuBLAS
 * may say that it is not initialised rather than that memory is short. */
#define HANDLE_BYTES ((size_t)512 << 20)

static int short_of_memory(cublasStatus_t code) {
    size_t room = 0, total = 0;
    return code == CUBLAS_STATUS_ALLOC_FAILED ||
           (code == CUBLAS_STATUS_NOT_INITIALIZED && cudaMemGetInfo(&room, &total) == cudaSuccess &&
            room < HANDLE_BYTES);
}

/* As NVIDIA recommends (cuBLAS Library, "cublasSetWorkspace"). */
static size_t workspace_bytes(const btcu_dev *d) { return (size_t)(d->major >= 9 ? 32 : 4) << 20; }

bt_status btcu_blas_open(btcu_dev *d) {
    bt_dev *dev = &d->base;
    pthread_once(&once, open_library);
    if (blas.why[0] != 0)
        return bt_host_fail(
            dev->host, BT_EDEVICE,
            "cuda: cuBLAS is needed and cannot be opened: %s: install it, or name its "
            "folder in LD_LIBRARY_PATH",
            blas.why);
    d->blas = calloc(1, sizeof *d->blas);
    if (d->blas == NULL) return bt_host_fail(dev->host, BT_ENOMEM, "out of host memory");
    const cublasStatus_t code = (cublasStatus_t)BTCU_WATCHED(
        dev->host, "cublasCreate", blas.cublasCreate_v2(&d->blas->handle));
    bt_status status = short_of_memory(code) ? btcu_no_memory(dev, "what cuBLAS keeps for itself")
                                             : btcu_blas_result(dev, code, "cublasCreate");
    if (status == BT_OK) status = btcu_malloc(dev, workspace_bytes(d), &d->blas->workspace);
    /* The stream first: setting it takes the workspace away. */
    if (status == BT_OK)
        status = btcu_blas_check(dev, blas.cublasSetStream_v2(d->blas->handle, d->own.stream),
                                 "cublasSetStream");
    if (status == BT_OK)
        status = btcu_blas_check(
            dev,
            blas.cublasSetWorkspace_v2(d->blas->handle, d->blas->workspace, workspace_bytes(d)),
            "cublasSetWorkspace");
    return status;
}

void btcu_blas_close(btcu_dev *d) {
    if (d->blas == NULL) return;
    if (d->blas->handle != NULL) blas.cublasDestroy_v2(d->blas->handle);
    cudaFree(d->blas->workspace);
    free(d->blas);
    d->blas = NULL;
}

/* ---- modes -------------------------------------------------------------------------------------
 */

cublasStatus_t btcu_set_mode(btcu_dev *d, cublasMath_t mode) {
    if (d->blas->mode == mode) return CUBLAS_STATUS_SUCCESS;
    const cublasStatus_t code = blas.cublasSetMathMode(d->blas->handle, mode);
    if (code == CUBLAS_STATUS_SUCCESS) d->blas->mode = mode;
    return code;
}

/* ---- products ----------------------------------------------------------------------------------
 */

/* Matrices that one call of cuBLAS takes: its kernels have one matrix for each block in z. */
#define MOST_MATRICES 32768

static int64_t element(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

static cublasStatus_t multiply(btcu_dev *d, const btcu_multiply_args *p) {
    const cublasOperation_t ta = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    const int lda = (int)p->lda, ldb = (int)p->ldb, ldc = (int)p->ldc;
    const float *a = (const void *)p->a, *b = (const void *)p->b;
    float *c = (void *)p->c;
    cublasHandle_t handle = d->blas->handle;
    if (p->type != CUDA_R_32F)
        return blas.cublasGemmEx(handle, tb, ta, n, m, k, &p->alpha, p->b, p->type, ldb, p->a,
                                 p->type, lda, &p->beta, p->c, p->c_type, ldc, CUBLAS_COMPUTE_32F,
                                 CUBLAS_GEMM_DEFAULT);
    if (p->count == 1)
        return blas.cublasSgemm_v2(handle, tb, ta, n, m, k, &p->alpha, b, ldb, a, lda, &p->beta, c,
                                   ldc);
    return blas.cublasSgemmStridedBatched(handle, tb, ta, n, m, k, &p->alpha, b, ldb, p->b_step, a,
                                          lda, p->a_step, &p->beta, c, ldc, p->c_step,
                                          (int)p->count);
}

/* An element that lies this far from the first, or further, is not reached in one call: not every
 * version of the library is right from 2^31 on. */
#ifndef BTCU_FAR
#define BTCU_FAR INT32_MAX
#endif

/* How many of n steps of `ld` elements stay nearer. */
static int64_t near(int64_t n, int64_t ld) {
    const int64_t most = ld < BTCU_FAR ? BTCU_FAR / (ld > 0 ? ld : 1) : 1;
    return n < most ? n : most;
}

/* The part of `whole` from row i and column j of C on, of which terms l on are summed. */
static btcu_multiply_args part_of(const btcu_multiply_args *whole, int64_t i, int64_t j,
                                  int64_t l) {
    btcu_multiply_args p = *whole;
    p.a += element(p.type) * (p.trans_a ? l * p.lda + i : i * p.lda + l);
    p.b += element(p.type) * (p.trans_b ? j * p.ldb + l : l * p.ldb + j);
    p.c += element(p.c_type) * (i * p.ldc + j);
    if (l > 0) p.beta = 1;
    return p;
}

/* In pieces whose elements lie near. A half C is rounded once, so its sums come in one piece. */
cublasStatus_t btcu_multiply(btcu_dev *d, const btcu_multiply_args *whole) {
    const btcu_multiply_args *w = whole;
    int64_t m = near(w->m, w->trans_a || w->ldc > w->lda ? w->ldc : w->lda);
    int64_t n = w->trans_b ? near(w->n, w->ldb) : w->n, k = w->k;
    if (w->trans_a) k = near(k, w->lda);
    if (!w->trans_b) k = near(k, w->ldb);
    if (w->c_type != CUDA_R_32F) k = w->k;
    if (w->count > 1 || (m == w->m && n == w->n && k == w->k)) return multiply(d, w);
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (int64_t i = 0; i < w->m; i += m)
        for (int64_t j = 0; j < w->n; j += n)
            for (int64_t l = 0; l < w->k && code == CUBLAS_STATUS_SUCCESS; l += k) {
                btcu_multiply_args p = part_of(w, i, j, l);
                p.m = btcu_least(m, w->m - i);
                p.n = btcu_least(n, w->n - j);
                p.k = btcu_least(k, w->k - l);
                code = multiply(d, &p);
            }
    return code;
}

/* Two levels of batches: the inner ones in one call, the outer ones one after the other. */
static cublasStatus_t multiply_all(btcu_dev *d, const bt_gemm_params *g, btcu_multiply_args p) {
    const btcu_multiply_args first = p;
    const int64_t inner = btcu_count(g->batch1);
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    for (int64_t i = 0; i < btcu_count(g->batch0); i++)
        for (int64_t j = 0; j < inner && code == CUBLAS_STATUS_SUCCESS; j += MOST_MATRICES) {
            p.a = first.a + (int64_t)sizeof(float) * (i * g->a0 + j * g->a1);
            p.b = first.b + (int64_t)sizeof(float) * (i * g->b0 + j * g->b1);
            p.c = first.c + (int64_t)sizeof(float) * (i * g->c0 + j * g->c1);
            p.count = btcu_least(inner - j, MOST_MATRICES);
            code = btcu_multiply(d, &p);
        }
    return code;
}

/* ---- the slot ----------------------------------------------------------------------------------
 */

/* C = beta C: nothing is multiplied, and A and B are not read. */
static bt_status scale_only(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *c = &call->t[BT_GEMM_C];
    const btcu_scale a = {
        .y = btcu_mat_of(c),
        .rows = c->rows,
        .cols = c->cols,
        .batch0 = btcu_count(g->batch0),
        .batch1 = btcu_count(g->batch1),
        .step0 = g->c0,
        .step1 = g->c1,
        .beta = (float)g->beta,
        .type = (int)c->dtype,
    };
    return btcu_check(dev, s, btcu_scale_run(&a, s->stream), "gemm");
}

static bt_status rows_apart(bt_dev *dev, bt_stream *s, const bt_call *call, int64_t k) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *c = &call->t[BT_GEMM_C];
    const btcu_rows_gemm a = {
        .a = btcu_mat_of(&call->t[BT_GEMM_A]),
        .b = btcu_mat_of(&call->t[BT_GEMM_B]),
        .c = btcu_mat_of(c),
        .m = c->rows,
        .n = c->cols,
        .k = k,
        .alpha = (float)g->alpha,
        .beta = (float)g->beta,
        .round = (int)g->round,
        .a_half = call->t[BT_GEMM_A].dtype != BT_F32,
        .b_half = call->t[BT_GEMM_B].dtype != BT_F32,
        .c_half = c->dtype != BT_F32,
    };
    return btcu_check(dev, s, btcu_rows_gemm_run(&a, s->stream), "gemm with stable rows");
}

/* The library works on the device's own stream, which its workspace belongs to; another stream's
 * product is done there in between. */
static bt_status cross(bt_dev *dev, bt_stream *from, bt_stream *to) {
    btcu_dev *d = btcu_self(dev);
    if (from == to) return BT_OK;
    bt_status status = btcu_check(dev, from, cudaEventRecord(d->between, from->stream), "gemm");
    if (status != BT_OK) return status;
    return btcu_check(dev, to, cudaStreamWaitEvent(to->stream, d->between, 0), "gemm");
}

static bt_status in_single(btcu_dev *d, const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *t = call->t;
    const btcu_multiply_args p = {
        .a = (const char *)btcu_mat_of(&t[BT_GEMM_A]).p,
        .b = (const char *)btcu_mat_of(&t[BT_GEMM_B]).p,
        .c = (char *)btcu_mat_of(&t[BT_GEMM_C]).p,
        .type = CUDA_R_32F,
        .c_type = CUDA_R_32F,
        .m = t[BT_GEMM_C].rows,
        .n = t[BT_GEMM_C].cols,
        .k = g->trans_a ? t[BT_GEMM_A].rows : t[BT_GEMM_A].cols,
        .lda = t[BT_GEMM_A].ld,
        .ldb = t[BT_GEMM_B].ld,
        .ldc = t[BT_GEMM_C].ld,
        .a_step = g->a1,
        .b_step = g->b1,
        .c_step = g->c1,
        .trans_a = g->trans_a,
        .trans_b = g->trans_b,
        .alpha = (float)g->alpha,
        .beta = (float)g->beta,
    };
    bt_status status =
        btcu_blas_check(&d->base, btcu_set_mode(d, g->tf32 ? BTCU_TF32 : BTCU_PLAIN), "mode");
    if (status != BT_OK) return status;
    return btcu_blas_check(&d->base, multiply_all(d, g, p), "product");
}

static bt_status by_library(bt_dev *dev, bt_stream *s, const bt_call *call) {
    btcu_dev *d = btcu_self(dev);
    for (int i = 0; i < 3; i++) {
        const bt_view *v = &call->t[i];
        if (v->rows > INT32_MAX || v->ld > INT32_MAX)
            return bt_host_fail(
                dev->host, BT_EUSAGE,
                "cuda: a product with a matrix of %lld x %lld is beyond what cuBLAS "
                "counts (2^31)",
                (long long)v->rows, (long long)v->ld);
    }
    bt_status status = cross(dev, s, &d->own);
    if (status == BT_OK)
        status = call->p.gemm.round == BT_F32 ? in_single(d, call) : btcu_in_half(d, call);
    return status == BT_OK ? cross(dev, &d->own, s) : status;
}

bt_status btcu_op_gemm(bt_dev *dev, bt_stream *s, const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const int64_t k = g->trans_a ? a->rows : a->cols;
    bt_status status = btcu_enter(dev, &s);
    if (status != BT_OK || c->rows == 0 || c->cols == 0) return status;
    if (k == 0 || g->alpha == 0) return scale_only(dev, s, call);
    return g->stable_rows ? rows_apart(dev, s, call, k) : by_library(dev, s, call);
}

/* ---- warming -----------------------------------------------------------------------------------
 */

/* Of an operand from its start; scratch: what the planning half says. */
static uint64_t bytes_of(const bt_view *v) {
    return v->rows > 0 ? (uint64_t)((v->rows - 1) * v->ld + v->cols) * btcu_size_of(v->dtype) : 0;
}

static bt_status warm_one(bt_dev *dev, const bt_call *asked) {
    bt_call call = *asked;
    const uint64_t scratch = bti_planning_cuda.ws_bytes(&dev->info, &call);
    const uint64_t a = bytes_of(&call.t[BT_GEMM_A]), b = bytes_of(&call.t[BT_GEMM_B]);
    const uint64_t read = ((a > b ? a : b) + 255) / 256 * 256;
    const uint64_t bytes = (read + bytes_of(&call.t[BT_GEMM_C]) + 255) / 256 * 256;
    bt_buf *buf = NULL;
    size_t room = 0, total = 0;
    bt_status status = btcu_check(dev, NULL, cudaMemGetInfo(&room, &total), "cudaMemGetInfo");
    if (status != BT_OK || bytes + scratch > room / 2) return status;
    if (dev->info.max_alloc > 0 && bytes + scratch > dev->info.max_alloc) return BT_OK;
    status = dev->ops->alloc(dev, bytes + scratch, &buf);
    if (status != BT_OK) return status;
    for (int k = 0; k < 3; k++) call.t[k].buf = buf;
    call.t[BT_GEMM_C].off = read;
    call.ws = (bt_view){buf, bytes, 1, (int64_t)scratch / 4, (int64_t)scratch / 4, BT_F32};
    status = dev->ops->fill(dev, NULL, buf, 0, bytes, 0);
    if (status == BT_OK) status = btcu_op_gemm(dev, NULL, &call);
    if (status == BT_OK) status = dev->ops->sync(dev, NULL);
    dev->ops->free(dev, buf);
    return status;
}

/* Each product once, so that the library has loaded its kernels and taken what it keeps. Both
 * operands lie in the same memory: the results are nobody's. What does not fit is left out. */
bt_status btcu_warm(bt_dev *dev, const bt_call *calls, size_t count) {
    bt_stream *s = NULL;
    bt_status status = btcu_enter(dev, &s);
    for (size_t i = 0; i < count && status == BT_OK; i++) status = warm_one(dev, &calls[i]);
    return status == BT_OK ? btcu_note_held(dev) : status;
}
