/* Half precision as compute capability 3.7 has it: storage and conversions, no arithmetic. */
#ifndef CUSIM_CUDA_FP16_H
#define CUSIM_CUDA_FP16_H

#include "cuda_runtime.h"

struct CUSIM_ALIGNED(2) __half {
    uint16_t x;
};
struct CUSIM_ALIGNED(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;

/* Round to nearest even. A subnormal half is a multiple of 2^-24, which is what the sum with 0.5
 * leaves in the low bits of its mantissa. */
static inline __half __float2half_rn(float f) {
    const uint32_t u = __float_as_uint(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    uint32_t h;
    if (a > 0x7f800000u)
        h = 0x7fffu; /* as the device: one NaN, its sign lost */
    else if (a >= 0x477ff000u)
        h = sign | 0x7c00u;
    else if (a < 0x38800000u)
        h = sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u);
    else
        h = sign | (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    return __half{(uint16_t)h};
}
static inline float __half2float(__half h) {
    const uint32_t sign = (uint32_t)(h.x & 0x8000u) << 16, e = h.x >> 10 & 31u, m = h.x & 1023u;
    if (e == 31) return __uint_as_float(sign | 0x7f800000u | m << 13);
    if (e != 0) return __uint_as_float(sign | (e + 112u) << 23 | m << 13);
    const float subnormal = (float)m * 0x1p-24f;
    return sign != 0 ? -subnormal : subnormal;
}

static inline __half __float2half(float f) { return __float2half_rn(f); }
static inline unsigned short __half_as_ushort(__half h) { return h.x; }
static inline __half __ushort_as_half(unsigned short x) { return __half{x}; }
static inline __half2 __halves2half2(__half a, __half b) { return __half2{a, b}; }
static inline __half __low2half(__half2 h) { return h.x; }
static inline __half __high2half(__half2 h) { return h.y; }
static inline float __low2float(__half2 h) { return __half2float(h.x); }
static inline float __high2float(__half2 h) { return __half2float(h.y); }
static inline float2 __half22float2(__half2 h) {
    return float2{__half2float(h.x), __half2float(h.y)};
}
static inline __half2 __floats2half2_rn(float a, float b) {
    return __half2{__float2half_rn(a), __float2half_rn(b)};
}
static inline __half2 __float22half2_rn(float2 f) { return __floats2half2_rn(f.x, f.y); }

#endif
