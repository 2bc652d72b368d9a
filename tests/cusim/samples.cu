/* Kernels for test_cusim.c: right ones, and such that make one mistake each. */
#include "kernels_cuda/port.h"

#include "tests/cusim/samples.h"

#define ALL 0xffffffffu

/* ---- right --------------------------------------------------------------------------------------
 */
static __device__ float warp_sum(float x) {
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}

/* A block a row: sum of n floats. Reads 4 bytes an element. */
template <int WARPS> static __global__ void row_sum(const float *x, float *out, int n) {
    __shared__ float part[WARPS];
    const float *row = x + (size_t)blockIdx.x * n;
    float s = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += row[i];
    s = warp_sum(s);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        s = 0;
        for (int w = 0; w < WARPS; w++) s += part[w];
        out[blockIdx.x] = s;
    }
}

/* y[i] = x[n - 1 - i], one block of n threads, by way of dynamic shared memory. */
static __global__ void reverse(const float *x, float *y, int n) {
    DYN_SHARED(float, s);
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[n - 1 - threadIdx.x];
}

/* Where each thread is: out[global number] = that number, out of all the indices. */
static __global__ void number(int *out) {
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int i = block * (int)(blockDim.x * blockDim.y * blockDim.z) + thread;
    out[i] = i;
}

static __global__ void count_threads(int *count, float *sum) {
    atomicAdd(count, 1);
    atomicAdd(sum, 0.5f);
}

/* Six results of warp operations of thread i at out[8 i]. */
static __global__ void warps(unsigned *out) {
    const unsigned i = threadIdx.x, lane = i % 32, own = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    unsigned *o = out + 8 * i;
    o[0] = __shfl_sync(ALL, i, 5);
    o[1] = __shfl_up_sync(ALL, i, 2, 8);
    o[2] = __shfl_down_sync(own, i, 3, 16);
    o[3] = __ballot_sync(ALL, lane % 3 == 0);
    o[4] = (unsigned)__any_sync(own, lane == 20) + 2u * (unsigned)__all_sync(own, lane < 16);
    o[5] = (unsigned)__shfl_sync(ALL, (double)i, 31);
    o[6] = (unsigned)__syncthreads_count(i % 2 == 0);
    __syncwarp();
    o[7] = (unsigned)__syncthreads_and(i < 1000) + 2u * (unsigned)__syncthreads_or(i == 7);
}

static __global__ void round_half(const float *x, float *y, int n, int bf16) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    y[i] = bf16 ? __bfloat162float(__float2bfloat16_rn(x[i])) : __half2float(__float2half_rn(x[i]));
}

static __global__ void add_one(float *x, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) x[i] += 1;
}

/* ---- wrong --------------------------------------------------------------------------------------
 */
/* Waits for half of the threads only. */
static __global__ void divergent_barrier(float *y) {
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 1;
}
static __global__ void two_barriers(float *y) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}
static __global__ void lane_not_named(float *y) {
    y[threadIdx.x] = __shfl_sync(0x0000ffffu, (float)threadIdx.x, 0);
}
/* Half of the lanes never come. */
static __global__ void lane_missing(float *y) {
    if (threadIdx.x % 32 < 16)
        y[threadIdx.x] = __shfl_sync(ALL, (float)threadIdx.x, 0);
    else
        __syncthreads();
}
static __global__ void reads_lane_outside(float *y) {
    if (threadIdx.x % 32 < 16) y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 20);
}
static __global__ void uninitialised_shared(float *y, int write) {
    __shared__ float s[64];
    DYN_SHARED(float, d);
    if (write) s[threadIdx.x] = d[threadIdx.x] = 1;
    y[threadIdx.x] = s[threadIdx.x];
    y[threadIdx.x + blockDim.x] = d[threadIdx.x];
}
static __global__ void out_of_bounds(float *y, int at) {
    if (threadIdx.x == 0) y[at] = 1;
}
static __global__ void shared_overflow(float *y, int at) {
    DYN_SHARED(float, d);
    d[at] = 1;
    y[threadIdx.x] = d[at];
}
static __global__ void fixed_overflow(float *y, int at) {
    __shared__ float s[40];
    s[at] = 1;
    y[threadIdx.x] = s[at];
}
/* Neighbours exchange through shared memory without waiting for each other. */
static __global__ void missing_barrier(float *y) {
    __shared__ float s[64];
    s[threadIdx.x] = (float)threadIdx.x;
    y[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
}
/* The same at the second of two rounds: what is read may already be of the next. */
static __global__ void missing_second_barrier(float *y) {
    __shared__ float s[64];
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        s[threadIdx.x] = (float)(threadIdx.x + round);
        __syncthreads();
        sum += s[(threadIdx.x + 1) % blockDim.x];
    }
    y[threadIdx.x] = sum;
}
static __global__ void no_atomic(float *sum) { *sum += 1; }
static __global__ void blocks_without_atomic(float *sum) {
    if (threadIdx.x == 0) *sum += 1;
}
static __global__ void misaligned_vector(const float *x, float *y) {
    *reinterpret_cast<float4 *>(y) = *reinterpret_cast<const float4 *>(x + 1);
}
static __device__ int deeper(int n) {
    volatile char room[1024];
    room[n % 1024] = (char)n;
    return n == 0 ? 0 : deeper(n - 1) + room[n % 1024];
}
static __global__ void deep(int *y) { *y = deeper(100000); }

extern "C" {

cudaError_t cs_row_sum(const float *x, float *out, int rows, int n, cudaStream_t s) {
    LAUNCH((row_sum<4>), rows, 128, 0, s, x, out, n);
    return cudaGetLastError();
}
cudaError_t cs_reverse(const float *x, float *y, int n, cudaStream_t s) {
    LAUNCH(reverse, 1, n, n * sizeof(float), s, x, y, n);
    return cudaGetLastError();
}
cudaError_t cs_number(int *out, dim3 grid, dim3 block, cudaStream_t s) {
    LAUNCH(number, grid, block, 0, s, out);
    return cudaGetLastError();
}
cudaError_t cs_count_threads(int *count, float *sum, dim3 grid, dim3 block, size_t shared,
                             cudaStream_t s) {
    LAUNCH(count_threads, grid, block, shared, s, count, sum);
    return cudaGetLastError();
}
cudaError_t cs_allow_shared(size_t bytes) {
    return cudaFuncSetAttribute(count_threads, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)bytes);
}
cudaError_t cs_warps(unsigned *out, int threads, cudaStream_t s) {
    LAUNCH(warps, 1, threads, 0, s, out);
    return cudaGetLastError();
}
cudaError_t cs_round(const float *x, float *y, int n, int bf16, cudaStream_t s) {
    LAUNCH(round_half, (n + 63) / 64, 64, 0, s, x, y, n, bf16);
    return cudaGetLastError();
}
cudaError_t cs_add_one(float *x, int n, cudaStream_t s) {
    LAUNCH(add_one, (n + 63) / 64, 64, 0, s, x, n);
    return cudaGetLastError();
}

cudaError_t cs_wrong(cs_mistake mistake, float *x, float *y, int at, cudaStream_t s) {
    switch (mistake) {
    case CS_DIVERGENT_BARRIER:
        LAUNCH(divergent_barrier, 1, 64, 0, s, y);
        break;
    case CS_TWO_BARRIERS:
        LAUNCH(two_barriers, 1, 64, 0, s, y);
        break;
    case CS_LANE_NOT_NAMED:
        LAUNCH(lane_not_named, 1, 64, 0, s, y);
        break;
    case CS_LANE_MISSING:
        LAUNCH(lane_missing, 1, 64, 0, s, y);
        break;
    case CS_READS_LANE_OUTSIDE:
        LAUNCH(reads_lane_outside, 1, 64, 0, s, y);
        break;
    case CS_UNINITIALISED_SHARED:
        LAUNCH(uninitialised_shared, 2, 64, 256, s, y, at);
        break;
    case CS_OUT_OF_BOUNDS:
        LAUNCH(out_of_bounds, 1, 64, 0, s, y, at);
        break;
    case CS_SHARED_OVERFLOW:
        LAUNCH(shared_overflow, 1, 64, 160, s, y, at);
        break;
    case CS_FIXED_OVERFLOW:
        LAUNCH(fixed_overflow, 1, 64, 0, s, y, at);
        break;
    case CS_MISSING_BARRIER:
        LAUNCH(missing_barrier, 1, 64, 0, s, y);
        break;
    case CS_MISSING_SECOND_BARRIER:
        LAUNCH(missing_second_barrier, 1, 64, 0, s, y);
        break;
    case CS_NO_ATOMIC:
        LAUNCH(no_atomic, 1, 64, 0, s, y);
        break;
    case CS_BLOCKS_WITHOUT_ATOMIC:
        LAUNCH(blocks_without_atomic, 4, 64, 0, s, y);
        break;
    case CS_MISALIGNED_VECTOR:
        LAUNCH(misaligned_vector, 1, 1, 0, s, x, y);
        break;
    case CS_DEEP:
        LAUNCH(deep, 1, 1, 0, s, reinterpret_cast<int *>(y));
        break;
    }
    return cudaGetLastError();
}

} // extern "C"
