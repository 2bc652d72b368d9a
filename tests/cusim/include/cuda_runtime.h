/* CUDA C for a plain C++17 compiler: what a file of kernels needs to be built for the simulator.
 *
 * Each CUDA thread runs on a stack of its own and gives way only where it waits for others: at
 * barriers and warp operations. So blocks run one after the other, and a __shared__ variable is a
 * static one of the host thread that runs them. Only what compute capability 3.7 has is here:
 * no atomics on double or half, no half arithmetic, no __reduce_add_sync. */
#ifndef CUSIM_CUDA_RUNTIME_H
#define CUSIM_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) CUSIM_ALIGNED(n)

/* A thread-local variable lies in the module's TLS segment, which is filled with NaN before each
 * block. AddressSanitizer guards plain static variables only: there they are not filled. */
#ifdef __SANITIZE_ADDRESS__
#define __shared__ static
#else
#define __shared__ static __thread
#endif

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    cusim::launch(cusim::name_of<(kernel)>(), kernel, dim3(grid), dim3(block), (shared_bytes), \
                  (stream), __VA_ARGS__)
#define DYN_SHARED(type, name) type *name = static_cast<type *>(cusim::dynamic_shared())

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

/* ---- what the kernels call of the simulator (block.cc, launch.cc) -------------------------------
 */
namespace cusim {

/* Where a thread waits: reports name it, and threads that meet must be at the same place. */
struct place {
    const char *file;
    int line;
};
enum class barrier_kind { plain, count, all, any };
enum class warp_kind { shuffle_index, shuffle_xor, shuffle_up, shuffle_down, ballot, sync };

void *dynamic_shared();
int barrier(barrier_kind kind, int predicate, place at);
uint64_t warp(warp_kind kind, unsigned mask, uint64_t value, int argument, int width, place at);
unsigned active_mask();
[[noreturn]] void trap(place at);

struct kernel_call {
    const char *name;
    const void *address;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};
/* Checks, then enqueues; what is wrong is kept for cudaGetLastError. */
void enqueue(const kernel_call &call, std::function<void()> body);

/* "norm<float, 64>", as the compiler writes it at the end of this function's name; clang leaves the
 * template arguments out. */
template <auto *kernel> const char *name_of() {
    static const std::string name = [](std::string text) {
        text = text.substr(text.find("kernel = ") + strlen("kernel = "));
        return text.substr(text[0] == '&', text.rfind(']') - (text[0] == '&'));
    }(__PRETTY_FUNCTION__);
    return name.c_str();
}

template <class... P, class... A>
void launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, A &&...arguments) {
    std::tuple<P...> kept(static_cast<P>(arguments)...);
    enqueue({name, reinterpret_cast<const void *>(kernel), grid, block, shared_bytes, stream},
            [kernel, kept] { std::apply(kernel, kept); });
}

template <class T>
T shuffle(warp_kind kind, unsigned mask, T value, int argument, place at, int width = warpSize) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = warp(kind, mask, bits, argument, width, at);
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline unsigned warp_mask(unsigned mask = ~0u) { return mask; }

template <class To, class From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

/* As an atomic of the host, so that ThreadSanitizer can tell it from a plain access. */
template <class T, class F> T atomically(T *p, F next) {
    T old, made;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do made = next(old);
    while (!__atomic_compare_exchange(p, &old, &made, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}

} // namespace cusim

#define CUSIM_HERE (cusim::place{__FILE__, __LINE__})
#define CUSIM_SHUFFLE(kind, mask, value, argument, ...) \
    cusim::shuffle(cusim::warp_kind::shuffle_##kind, mask, value, argument, \
                   CUSIM_HERE __VA_OPT__(, ) __VA_ARGS__)

/* ---- barriers and warps -------------------------------------------------------------------------
 */
#define __syncthreads() (void)cusim::barrier(cusim::barrier_kind::plain, 0, CUSIM_HERE)
#define __syncthreads_count(p) cusim::barrier(cusim::barrier_kind::count, !!(p), CUSIM_HERE)
#define __syncthreads_and(p) cusim::barrier(cusim::barrier_kind::all, !!(p), CUSIM_HERE)
#define __syncthreads_or(p) cusim::barrier(cusim::barrier_kind::any, !!(p), CUSIM_HERE)
#define __shfl_sync(...) CUSIM_SHUFFLE(index, __VA_ARGS__)
#define __shfl_xor_sync(...) CUSIM_SHUFFLE(xor, __VA_ARGS__)
#define __shfl_up_sync(...) CUSIM_SHUFFLE(up, __VA_ARGS__)
#define __shfl_down_sync(...) CUSIM_SHUFFLE(down, __VA_ARGS__)
#define __ballot_sync(mask, p) \
    ((unsigned)cusim::warp(cusim::warp_kind::ballot, mask, !!(p), 0, warpSize, CUSIM_HERE))
#define __any_sync(mask, p) (__ballot_sync(mask, p) != 0)
#define __all_sync(mask, p) (__ballot_sync(mask, !(p)) == 0)
#define __syncwarp(...) \
    (void)cusim::warp(cusim::warp_kind::sync, cusim::warp_mask(__VA_ARGS__), 0, 0, warpSize, \
                      CUSIM_HERE)
#define __activemask() cusim::active_mask()
#define __trap() cusim::trap(CUSIM_HERE)
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* ---- atomics ------------------------------------------------------------------------------------
 */
#define CUSIM_ATOMIC(name, type, expression) \
    static inline type name(type *p, type v) { \
        return cusim::atomically(p, [v](type old) { return (type)(expression); }); \
    }
#define CUSIM_ATOMIC_INTEGERS(type) \
    CUSIM_ATOMIC(atomicAdd, type, old + v) \
    CUSIM_ATOMIC(atomicMin, type, old < v ? old : v) \
    CUSIM_ATOMIC(atomicMax, type, old > v ? old : v) \
    CUSIM_ATOMIC(atomicAnd, type, old &v) \
    CUSIM_ATOMIC(atomicOr, type, old | v) \
    CUSIM_ATOMIC(atomicXor, type, old ^ v) \
    CUSIM_ATOMIC(atomicExch, type, ((void)old, v)) \
    static inline type atomicCAS(type *p, type expected, type v) { \
        return cusim::atomically(p, [=](type old) { return old == expected ? v : old; }); \
    }
CUSIM_ATOMIC_INTEGERS(int)
CUSIM_ATOMIC_INTEGERS(unsigned int)
CUSIM_ATOMIC_INTEGERS(unsigned long long)
CUSIM_ATOMIC(atomicSub, int, old - v)
CUSIM_ATOMIC(atomicSub, unsigned int, old - v)
CUSIM_ATOMIC(atomicInc, unsigned int, old >= v ? 0 : old + 1)
CUSIM_ATOMIC(atomicAdd, float, old + v)
CUSIM_ATOMIC(atomicExch, float, ((void)old, v))
#undef CUSIM_ATOMIC_INTEGERS
#undef CUSIM_ATOMIC

/* ---- loads and stores with a hint ---------------------------------------------------------------
 */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }

/* ---- arithmetic ---------------------------------------------------------------------------------
 */
#define CUSIM_MIN_MAX(type) \
    static inline type min(type a, type b) { return a < b ? a : b; } \
    static inline type max(type a, type b) { return a > b ? a : b; }
CUSIM_MIN_MAX(int)
CUSIM_MIN_MAX(unsigned int)
CUSIM_MIN_MAX(long)
CUSIM_MIN_MAX(unsigned long)
CUSIM_MIN_MAX(long long)
CUSIM_MIN_MAX(unsigned long long)
#undef CUSIM_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
using std::isfinite;
using std::isinf;
using std::isnan;

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; } /* NaN gives 0 */
/* The host's headers have declared functions of these names. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __float_as_int(float x) { return cusim::bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return cusim::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return cusim::bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return cusim::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return cusim::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return cusim::bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x != 0 ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) {
    return x != 0 ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- C++ forms of the runtime's calls -----------------------------------------------------------
 */
template <class T> static inline cudaError_t cudaMalloc(T **p, size_t bytes) {
    void *made = nullptr;
    const cudaError_t error = cudaMalloc(&made, bytes);
    *p = static_cast<T *>(made);
    return error;
}
template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attr,
                                               int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attr, value);
}
template <class... P>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attr, void (*kernel)(P...)) {
    return cudaFuncGetAttributes(attr, reinterpret_cast<const void *>(kernel));
}

#endif
