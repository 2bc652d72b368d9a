/* What the files about products share: calls of cuBLAS, row by row. */
#ifndef BANTAM_BACKENDS_CUDA_BLAS_H
#define BANTAM_BACKENDS_CUDA_BLAS_H

#include <cublas_v2.h>

#include "backends/cuda.h"

struct btcu_blas {
    cublasHandle_t handle;
    cublasMath_t mode;
    void *workspace;
};

#define BTCU_PLAIN CUBLAS_DEFAULT_MATH
#define BTCU_TF32 CUBLAS_TF32_TENSOR_OP_MATH
/* Sums of half products stay fp32 to their end. */
#define BTCU_HALF \
    ((cublasMath_t)(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION))
cublasStatus_t btcu_set_mode(btcu_dev *d, cublasMath_t mode);

/* As btcu_check has it, for calls of cuBLAS. */
#define btcu_blas_check(dev, call, what) \
    btcu_blas_result(dev, (cublasStatus_t)BTCU_WATCHED((dev)->host, what, call), what)
bt_status btcu_blas_result(bt_dev *dev, cublasStatus_t code, const char *what);

/* One product, or `count` of them at steps: of fp32, or of halves, which are summed in fp32. */
typedef struct btcu_multiply_args {
    const char *a, *b;
    char *c;
    cudaDataType type, c_type; /* of A and B, and of C */
    int64_t m, n, k, lda, ldb, ldc;
    int64_t count, a_step, b_step, c_step; /* elements */
    int trans_a, trans_b;
    float alpha, beta;
} btcu_multiply_args;
cublasStatus_t btcu_multiply(btcu_dev *d, const btcu_multiply_args *p);

/* cuda_half.c: a call whose `round` is a half type, on the device's own stream. */
bt_status btcu_in_half(btcu_dev *d, const bt_call *call);

static inline int64_t btcu_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t btcu_count(int64_t batch) { return batch > 1 ? batch : 1; }
static inline size_t btcu_size_of(bt_dtype type) { return type == BT_F32 ? 4 : 2; }

#endif
