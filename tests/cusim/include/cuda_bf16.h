/* bfloat16 as all devices have it: storage and conversions, no arithmetic. */
#ifndef CUSIM_CUDA_BF16_H
#define CUSIM_CUDA_BF16_H

#include "cuda_runtime.h"

struct CUSIM_ALIGNED(2) __nv_bfloat16 {
    uint16_t x;
};
struct CUSIM_ALIGNED(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

/* Round to nearest even. */
static inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    const uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return __nv_bfloat16{0x7fffu}; /* as the device */
    return __nv_bfloat16{(uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16)};
}
static inline float __bfloat162float(__nv_bfloat16 b) {
    return __uint_as_float((uint32_t)b.x << 16);
}

static inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 b) { return b.x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16{x}; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat162{a, b};
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 b) { return b.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 b) { return b.y; }
static inline float __low2float(__nv_bfloat162 b) { return __bfloat162float(b.x); }
static inline float __high2float(__nv_bfloat162 b) { return __bfloat162float(b.y); }
static inline float2 __bfloat1622float2(__nv_bfloat162 b) {
    return float2{__bfloat162float(b.x), __bfloat162float(b.y)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return __nv_bfloat162{__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}

#endif
