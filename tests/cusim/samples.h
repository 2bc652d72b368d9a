/* Launchers of the kernels in samples.cu. */
#ifndef CUSIM_SAMPLES_H
#define CUSIM_SAMPLES_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cs_row_sum(const float *x, float *out, int rows, int n, cudaStream_t s);
cudaError_t cs_reverse(const float *x, float *y, int n, cudaStream_t s);
cudaError_t cs_number(int *out, dim3 grid, dim3 block, cudaStream_t s);
/* count += threads, sum += threads / 2. */
cudaError_t cs_count_threads(int *count, float *sum, dim3 grid, dim3 block, size_t shared,
                             cudaStream_t s);
cudaError_t cs_allow_shared(size_t bytes); /* of count_threads */
cudaError_t cs_warps(unsigned *out, int threads, cudaStream_t s);
cudaError_t cs_round(const float *x, float *y, int n, int bf16, cudaStream_t s);
cudaError_t cs_add_one(float *x, int n, cudaStream_t s);

typedef enum {
    CS_DIVERGENT_BARRIER,
    CS_TWO_BARRIERS,
    CS_LANE_NOT_NAMED,
    CS_LANE_MISSING,
    CS_READS_LANE_OUTSIDE,
    CS_UNINITIALISED_SHARED,
    CS_OUT_OF_BOUNDS,
    CS_SHARED_OVERFLOW,
    CS_FIXED_OVERFLOW,
    CS_MISSING_BARRIER,
    CS_MISSING_SECOND_BARRIER,
    CS_NO_ATOMIC,
    CS_BLOCKS_WITHOUT_ATOMIC,
    CS_MISALIGNED_VECTOR,
    CS_DEEP
} cs_mistake;
/* A kernel with that mistake; `at` is the index that it uses where it goes out of bounds. */
cudaError_t cs_wrong(cs_mistake mistake, float *x, float *y, int at, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
