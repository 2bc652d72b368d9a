/* What all kernels share: storage types, four columns at a time, dropout, sums over a warp and a
 * block, launch shapes.
 *
 * Arithmetic is fp32 whatever the storage; a result is rounded once, when it is stored. No float
 * atomics: every sum has an order that follows from shapes alone, so that a run repeats bit for
 * bit. Sizes that can pass 2^31 are int64. Every kernel is launched in one dimension of blocks, of
 * which there may be 2^31 - 1 (y and z end at 65,535). */
#ifndef BANTAM_KERNELS_CUDA_COMMON_CUH
#define BANTAM_KERNELS_CUDA_COMMON_CUH

#include <math.h>
#include <stdint.h>

#include "kernels_cuda/port.h"

#include "kernels_cuda/launch.h"

#define INLINE static __device__ __forceinline__

/* ---- storage types -----------------------------------------------------------------------------
 */

INLINE float widen(float x) { return x; }
INLINE float widen(__half x) { return __half2float(x); }
INLINE float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T> INLINE T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ __half narrow<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}

/* The value that a T holds after x was stored in it. */
template <class T> INLINE float rounded(float x) { return widen(narrow<T>(x)); }

/* Runs a statement with T being the type of that number. */
#define BTCU_BY_TYPE(number, ...) \
    switch (number) { \
    case BT_F32: { \
        typedef float T; \
        __VA_ARGS__; \
        break; \
    } \
    case BT_F16: { \
        typedef __half T; \
        __VA_ARGS__; \
        break; \
    } \
    case BT_BF16: { \
        typedef __nv_bfloat16 T; \
        __VA_ARGS__; \
        break; \
    } \
    default: \
        return cudaErrorInvalidValue; \
    }

/* Row r of a matrix of T; NULL stays NULL. */
template <class T> INLINE T *row_of(const btcu_mat &m, int64_t r) {
    return m.p ? (T *)m.p + r * m.ld : (T *)NULL;
}

/* ---- four columns at a time: one Philox block covers them --------------------------------------
 * `wide` says that every row starts at a multiple of four elements (aligned4), so that four of them
 * are one access of 16 bytes (fp32) or 8. Where fewer than four are left, n says how many. */

struct f4 {
    float v[4];
};

template <class T> struct alignas(4 * sizeof(T)) pack4 { T v[4]; };

template <class T> INLINE f4 load4(const T *p, int64_t n, int wide) {
    f4 x;
    if (wide && n >= 4) {
        const pack4<T> u = *reinterpret_cast<const pack4<T> *>(p);
#pragma unroll
        for (int i = 0; i < 4; i++) x.v[i] = widen(u.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) x.v[i] = i < n ? widen(p[i]) : 0.0f;
    }
    return x;
}

template <class T> INLINE void store4(T *p, const f4 &x, int64_t n, int wide) {
    if (wide && n >= 4) {
        pack4<T> u;
#pragma unroll
        for (int i = 0; i < 4; i++) u.v[i] = narrow<T>(x.v[i]);
        *reinterpret_cast<pack4<T> *>(p) = u;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) p[i] = narrow<T>(x.v[i]);
    }
}

INLINE f4 zero4() { return f4{{0.0f, 0.0f, 0.0f, 0.0f}}; }

INLINE void add4(f4 &x, const f4 &y) {
#pragma unroll
    for (int i = 0; i < 4; i++) x.v[i] += y.v[i];
}

/* Of the first n. */
INLINE float sum4(const f4 &x, int64_t n) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < n) sum += x.v[i];
    return sum;
}

template <class T> INLINE f4 rounded4(const f4 &x) {
    f4 y;
#pragma unroll
    for (int i = 0; i < 4; i++) y.v[i] = rounded<T>(x.v[i]);
    return y;
}

/* ---- dropout -----------------------------------------------------------------------------------
 * Philox4x32-10 (Salmon et al. 2011), the counters of core/base/philox.h. */

struct words4 {
    uint32_t v[4];
};

INLINE words4 philox(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
#pragma unroll
    for (int r = 0; r < 10; r++) {
        const uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        const uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return words4{{c0, c1, c2, c3}};
}

/* The factors, 0 or 1 / (1 - p), of channels 4 quad .. 4 quad + 3. */
INLINE f4 drop_factors(const btcu_drop &d, uint32_t head, uint32_t place, uint32_t position,
                       uint32_t quad) {
    const words4 w =
        philox(d.seed0, d.seed1, d.update, d.site << 16 | head, place, position << 14 | quad);
    f4 f;
#pragma unroll
    for (int i = 0; i < 4; i++) f.v[i] = w.v[i] >= d.threshold ? d.keep : 0.0f;
    return f;
}

/* f x; 0 where f is, also where x is not finite. */
INLINE float times(float f, float x) { return f == 0.0f ? 0.0f : f * x; }

/* drop(x) of four columns of a row; rowpos is the row's place and position. */
INLINE void drop_row(const btcu_drop &d, const int32_t *rowpos, int64_t quad, f4 &x) {
    if (!d.on) return;
    const f4 f = drop_factors(d, 0, (uint32_t)rowpos[0], (uint32_t)rowpos[1], (uint32_t)quad);
#pragma unroll
    for (int i = 0; i < 4; i++) x.v[i] = times(f.v[i], x.v[i]);
}

/* ---- sums over a warp and a block: the same bits in every thread -------------------------------
 */

#define ALL_LANES 0xffffffffu

INLINE float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

INLINE float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* All threads of a block of whole warps come here; tmp has one float for each warp. */
INLINE float block_sum(float x, float *tmp) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) tmp[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? tmp[threadIdx.x % 32] : 0.0f;
    __syncthreads();
    return warp_sum(x);
}

INLINE float block_max(float x, float *tmp) {
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) tmp[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? tmp[threadIdx.x % 32] : -INFINITY;
    __syncthreads();
    return warp_max(x);
}

/* ---- launch shapes -----------------------------------------------------------------------------
 */

/* Blocks of TILE_X quads of columns by TILE_Y rows: one thread for each quad. */
#define TILE_X 32
#define TILE_Y 8
#define TILE_THREADS (TILE_X * TILE_Y)

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tiles_across(int64_t cols) { return ceil_div(ceil_div(cols, 4), TILE_X); }

/* The quad of a thread in a matrix cut into tiles; `tiles` of them lie side by side. */
struct place {
    int64_t row, quad;
    int x, y; /* in the tile */
};

INLINE place tile_place(uint32_t tiles) {
    place at;
    at.x = (int)(threadIdx.x % TILE_X);
    at.y = (int)(threadIdx.x / TILE_X);
    at.row = (int64_t)(blockIdx.x / tiles) * TILE_Y + at.y;
    at.quad = (int64_t)(blockIdx.x % tiles) * TILE_X + at.x;
    return at;
}

/* Does every row start at a multiple of four elements? An absent operand does not matter. */
static inline int aligned4(const btcu_mat *m, size_t size) {
    return m->p == NULL || ((uintptr_t)m->p % (4 * size) == 0 && m->ld % 4 == 0);
}
/* The same of a row vector, whose ld nobody uses. */
static inline int aligned4_row(const btcu_mat *m, size_t size) {
    return m->p == NULL || (uintptr_t)m->p % (4 * size) == 0;
}

static inline int too_many(int64_t blocks) { return blocks > INT32_MAX; }

/* Launches `blocks` of them where there are any, and returns the launch's error. */
#define BTCU_LAUNCH(kernel, blocks, threads, shared, stream, ...) \
    do { \
        const int64_t blocks_ = (blocks); \
        if (blocks_ <= 0) return cudaSuccess; \
        if (too_many(blocks_)) return cudaErrorInvalidConfiguration; \
        LAUNCH(kernel, (unsigned)blocks_, threads, shared, stream, __VA_ARGS__); \
        return cudaGetLastError(); \
    } while (0)

#endif
