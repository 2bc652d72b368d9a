/* cuBLAS: matrix products by plain loops, done late like all work of a stream.
 *
 * As the real one, whose kernels differ from size to size, it adds up in an order that depends on m
 * and n: a row's bits are the same in another product only where both are. It takes a workspace of
 * its own when a product comes and none was given since the stream was set
 * (cusim_counts.workspaces), and refuses what the documentation refuses: GemmEx below
 * capability 5.0, bfloat16 and TF32 below 8.0, pairs of types that do not go together, misaligned
 * or missing operands. */
#include <algorithm>

#include "cublas_v2.h"
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "state.h"

using namespace cusim;

struct cublasContext {
    int device;
    cudaStream_t stream;
    cublasMath_t math;
    void *workspace; /* the caller's; null: its own */
    size_t workspace_bytes;
    size_t own_bytes; /* of workspace it has taken, 0: none so far */
};

namespace {

enum rounding { ROUND_NONE, ROUND_TF32 };

struct operand {
    const void *data;
    cudaDataType type;
    int64_t ld, stride;
    bool transposed;
};

struct product {
    int64_t m, n, k, batch;
    float alpha, beta;
    operand a, b, c;
    rounding round;
};

size_t size_of(cudaDataType type) {
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

float load(const void *data, cudaDataType type, int64_t i) {
    switch (type) {
    case CUDA_R_16F:
        return __half2float(static_cast<const __half *>(data)[i]);
    case CUDA_R_16BF:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i]);
    default:
        return static_cast<const float *>(data)[i];
    }
}

void store(void *data, cudaDataType type, int64_t i, float x) {
    switch (type) {
    case CUDA_R_16F:
        static_cast<__half *>(data)[i] = __float2half_rn(x);
        break;
    case CUDA_R_16BF:
        static_cast<__nv_bfloat16 *>(data)[i] = __float2bfloat16_rn(x);
        break;
    default:
        static_cast<float *>(data)[i] = x;
    }
}

/* To 10 bits of mantissa, nearest even. */
float to_tf32(float x) {
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return x;
    return __uint_as_float((u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu);
}

/* rows x cols of op(operand), column after column. */
std::vector<float> pack(const operand &o, int64_t rows, int64_t cols, int64_t batch, rounding r) {
    std::vector<float> out((size_t)(rows * cols));
    const int64_t base = o.stride * batch;
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) {
            const float x =
                load(o.data, o.type, base + (o.transposed ? j + i * o.ld : i + j * o.ld));
            out[(size_t)(i + j * rows)] = r == ROUND_TF32 ? to_tf32(x) : x;
        }
    return out;
}

/* One column of op(A) op(B), in `parts` partial sums over k. */
void column(const product &p, const float *a, const float *b, int64_t parts, float *sum,
            float *part) {
    std::fill(sum, sum + p.m, 0.0f);
    for (int64_t q = 0; q < parts; q++) {
        std::fill(part, part + p.m, 0.0f);
        for (int64_t l = p.k * q / parts; l < p.k * (q + 1) / parts; l++) {
            const float *al = a + l * p.m, bl = b[l];
            for (int64_t i = 0; i < p.m; i++) part[i] += al[i] * bl;
        }
        for (int64_t i = 0; i < p.m; i++) sum[i] += part[i];
    }
}

void multiply(const product &p) {
    const int64_t parts = 1 + (p.m + 2 * p.n) % 3;
    std::vector<float> sum((size_t)p.m), part((size_t)p.m);
    expose(SIGHT_ALL);
    for (int64_t batch = 0; batch < p.batch; batch++) {
        const std::vector<float> a = pack(p.a, p.m, p.k, batch, p.round),
                                 b = pack(p.b, p.k, p.n, batch, p.round);
        void *c = const_cast<void *>(p.c.data);
        for (int64_t j = 0; j < p.n; j++) {
            column(p, a.data(), b.data() + j * p.k, parts, sum.data(), part.data());
            for (int64_t i = 0; i < p.m; i++) {
                const int64_t at = p.c.stride * batch + j * p.c.ld + i;
                float x = p.alpha * sum[(size_t)i];
                if (p.beta != 0) x += p.beta * load(c, p.c.type, at);
                store(c, p.c.type, at, x);
            }
        }
    }
    counts.products++;
}

/* ---- what may be asked --------------------------------------------------------------------------
 */
bool types_go_together(const product &p) {
    const cudaDataType in = p.a.type, out = p.c.type;
    if (in != p.b.type || size_of(in) == 0 || size_of(out) == 0) return false;
    return out == in || out == CUDA_R_32F;
}

/* All of rows x cols x batch lies inside one buffer of the device, at a multiple of its size. */
bool well_placed(const operand &o, int64_t rows, int64_t cols, int64_t batch, int device) {
    const size_t size = size_of(o.type);
    const int64_t last = o.stride * (batch - 1) + o.ld * (cols - 1) + rows;
    if (reinterpret_cast<uintptr_t>(o.data) % size != 0 || o.stride < 0) return false;
    return device_of(o.data, (size_t)last * size) == device;
}

cublasStatus_t check_operands(const cublasContext &h, const product &p) {
    const operand &a = p.a, &b = p.b;
    const int64_t a_rows = a.transposed ? p.k : p.m, a_cols = a.transposed ? p.m : p.k,
                  b_rows = b.transposed ? p.n : p.k, b_cols = b.transposed ? p.k : p.n;
    if (a.ld < std::max<int64_t>(1, a_rows) || b.ld < std::max<int64_t>(1, b_rows) ||
        p.c.ld < std::max<int64_t>(1, p.m))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.m == 0 || p.n == 0 || p.batch == 0) return CUBLAS_STATUS_SUCCESS;
    if (p.k > 0 && (!well_placed(a, a_rows, a_cols, p.batch, h.device) ||
                    !well_placed(b, b_rows, b_cols, p.batch, h.device)))
        die("an operand of a product is no (aligned) part of one buffer of device %d", h.device);
    if (!well_placed(p.c, p.m, p.n, p.batch, h.device) || (p.batch > 1 && p.c.stride == 0))
        die("the result of a product is no (aligned) part of one buffer of device %d", h.device);
    return CUBLAS_STATUS_SUCCESS;
}

/* 4 MiB, from Hopper on 32, once for a handle. */
bool take_own_workspace(cublasContext &h) {
    if (h.workspace != nullptr || h.own_bytes > 0) return true;
    const size_t bytes = (size_t)(arch_of(h.device) >= 90 ? 32 : 4) << 20;
    if (!take_bytes(h.device, bytes)) return false;
    h.own_bytes = bytes;
    counts.workspaces++;
    return true;
}

cublasStatus_t run(cublasHandle_t h, const product &p) {
    api_call entered;
    if (h == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (entered.refused != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t wrong = check_operands(*h, p);
    if (wrong != CUBLAS_STATUS_SUCCESS) return wrong;
    if (p.m == 0 || p.n == 0 || p.batch == 0) return CUBLAS_STATUS_SUCCESS;
    if (!take_own_workspace(*h)) return CUBLAS_STATUS_ALLOC_FAILED;
    submit(h->stream, [p] {
        if (sticky_error() == cudaSuccess) multiply(p);
    });
    return CUBLAS_STATUS_SUCCESS;
}

bool tf32(const cublasContext &h, cublasComputeType_t compute) {
    return arch_of(h.device) >= 80 &&
           (h.math == CUBLAS_TF32_TENSOR_OP_MATH || compute == CUBLAS_COMPUTE_32F_FAST_TF32);
}

cublasStatus_t check_types(const cublasContext &h, const product &p, cublasComputeType_t compute) {
    const int arch = arch_of(h.device);
    if (arch < 50 || (arch < 80 && p.a.type == CUDA_R_16BF)) return CUBLAS_STATUS_ARCH_MISMATCH;
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC &&
        compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return types_go_together(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    api_call entered;
    if (entered.refused != cudaSuccess || config().devices == 0 || config().count_error != 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!take_bytes(current_device(), config().cublas_handle)) return CUBLAS_STATUS_ALLOC_FAILED;
    *handle = new cublasContext{current_device(), nullptr, CUBLAS_DEFAULT_MATH, nullptr, 0, 0};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    api_call entered;
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    finish_all();
    give_bytes(handle->device, config().cublas_handle + handle->own_bytes);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int *version) {
    *version = CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100;
    return CUBLAS_STATUS_SUCCESS;
}

/* Whatever workspace was given is forgotten. */
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    api_call entered;
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!known(stream) || device_of_stream(stream) != handle->device)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->stream = stream;
    handle->workspace = nullptr;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
    api_call entered;
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (reinterpret_cast<uintptr_t>(workspace) % 256 != 0 ||
        (bytes > 0 && device_of(workspace, bytes) != handle->device))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t) {
    return handle == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
#define X(name) \
    case CUBLAS_STATUS_##name: \
        return "CUBLAS_STATUS_" #name;
        X(SUCCESS)
        X(NOT_INITIALIZED)
        X(ALLOC_FAILED)
        X(INVALID_VALUE)
        X(ARCH_MISMATCH)
        X(MAPPING_ERROR)
        X(EXECUTION_FAILED)
        X(INTERNAL_ERROR)
        X(NOT_SUPPORTED)
        X(LICENSE_ERROR)
#undef X
    default:
        return "CUBLAS_STATUS_UNKNOWN";
    }
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long int strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long int strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long int strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    const product p = {m,
                       n,
                       k,
                       batchCount,
                       *static_cast<const float *>(alpha),
                       *static_cast<const float *>(beta),
                       {A, Atype, lda, strideA, transa != CUBLAS_OP_N},
                       {B, Btype, ldb, strideB, transb != CUBLAS_OP_N},
                       {C, Ctype, ldc, strideC, false},
                       Atype == CUDA_R_32F && tf32(*handle, computeType) ? ROUND_TF32 : ROUND_NONE};
    const cublasStatus_t wrong = check_types(*handle, p, computeType);
    return wrong != CUBLAS_STATUS_SUCCESS ? wrong : run(handle, p);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo) {
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B,
                                      Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1, computeType, algo);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *A, int lda,
                                         long long int strideA, const float *B, int ldb,
                                         long long int strideB, const float *beta, float *C,
                                         int ldc, long long int strideC, int batchCount) {
    if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    return run(handle, {m,
                        n,
                        k,
                        batchCount,
                        *alpha,
                        *beta,
                        {A, CUDA_R_32F, lda, strideA, transa != CUBLAS_OP_N},
                        {B, CUDA_R_32F, ldb, strideB, transb != CUBLAS_OP_N},
                        {C, CUDA_R_32F, ldc, strideC, false},
                        tf32(*handle, CUBLAS_COMPUTE_32F) ? ROUND_TF32 : ROUND_NONE});
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *A, int lda, const float *B, int ldb, const float *beta,
                              float *C, int ldc) {
    return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0,
                                     beta, C, ldc, 0, 1);
}

} // extern "C"
