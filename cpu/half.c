/* Half storage: rows of fp16 and bf16 widened to fp32, and rounded back to nearest even, as
 * core/base/dtype.h has it bit for bit. Plain loops that the compiler vectorises; fp16 by the
 * processor's own conversions (F16C) where the instruction set has them, which differ in that a
 * signalling NaN becomes a quiet one. */
#include "cpu/vec.h"

#include "cpu/kernels.h"

#define INLINE static inline __attribute__((always_inline))

INLINE uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

/* ---- one number ------------------------------------------------------------------------------ */

INLINE float bf16_widen(uint16_t h) { return btcpu_bits_to_float((uint32_t)h << 16); }

/* The bits of x rounded to bf16, in the upper half. */
INLINE uint32_t bf16_round(float x) {
    const uint32_t u = bits_of(x), even = u + 0x7FFFu + (u >> 16 & 1u);
    return (int32_t)(u & 0x7FFFFFFFu) > 0x7F800000 ? u | 0x400000u : even;
}

INLINE uint16_t bf16_narrow(float x) { return (uint16_t)(bf16_round(x) >> 16); }

#ifdef __F16C__
INLINE float f16_widen(uint16_t h) { return _cvtsh_ss(h); }
INLINE uint16_t f16_narrow(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }

#if BTCPU_VL == 16
INLINE btcpu_vf f16_load(const uint16_t *p) {
    return (btcpu_vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE void f16_store(uint16_t *p, btcpu_vf x) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}
INLINE btcpu_vf f16_round(btcpu_vf x) {
    return (btcpu_vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}
#else
INLINE btcpu_vf f16_load(const uint16_t *p) {
    return (btcpu_vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE void f16_store(uint16_t *p, btcpu_vf x) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}
INLINE btcpu_vf f16_round(btcpu_vf x) {
    return (btcpu_vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}
#endif
#else
/* As bti_f16_to_f32 and bti_f32_to_f16, every case worked out and then picked from. */
INLINE float f16_widen(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7FFFu;
    const uint32_t normal = (a << 13) + 0x38000000u, special = (a << 13) | 0x7F800000u;
    const uint32_t small = bits_of((float)(int32_t)a * 0x1p-24f);
    const uint32_t finite = (int32_t)a < 0x400 ? small : normal;
    return btcpu_bits_to_float(sign | ((int32_t)a < 0x7C00 ? finite : special));
}

INLINE uint16_t f16_narrow(float x) {
    const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u;
    const int32_t a = (int32_t)(u & 0x7FFFFFFFu);
    const uint32_t r = (uint32_t)a - 0x38000000u, normal = (r + 0x0FFFu + (r >> 13 & 1u)) >> 13;
    const uint32_t small = bits_of(btcpu_bits_to_float((uint32_t)a) + 0.5f) - 0x3F000000u;
    const uint32_t nan = 0x7E00u | ((uint32_t)a >> 13 & 0x1FFu);
    const uint32_t finite = a < 0x38800000 ? small : normal;
    const uint32_t large = a > 0x7F800000 ? nan : 0x7C00u;
    return (uint16_t)(sign | (a < 0x477FF000 ? finite : large));
}
#endif

/* ---- rows ------------------------------------------------------------------------------------ */

static void widen_f16(const uint16_t *restrict x, float *restrict y, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + BTCPU_VL <= n; i += BTCPU_VL) btcpu_store(y + i, f16_load(x + i));
    for (; i < n; i++) y[i] = f16_widen(x[i]);
#else
#pragma omp simd
    for (i = 0; i < n; i++) y[i] = f16_widen(x[i]);
#endif
}

static void narrow_f16(const float *restrict x, uint16_t *restrict y, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + BTCPU_VL <= n; i += BTCPU_VL) f16_store(y + i, btcpu_load(x + i));
    for (; i < n; i++) y[i] = f16_narrow(x[i]);
#else
#pragma omp simd
    for (i = 0; i < n; i++) y[i] = f16_narrow(x[i]);
#endif
}

static void round_f16(const float *x, float *y, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + BTCPU_VL <= n; i += BTCPU_VL) btcpu_store(y + i, f16_round(btcpu_load(x + i)));
    for (; i < n; i++) y[i] = f16_widen(f16_narrow(x[i]));
#else
#pragma omp simd
    for (i = 0; i < n; i++) y[i] = f16_widen(f16_narrow(x[i]));
#endif
}

static void widen_bf16(const uint16_t *restrict x, float *restrict y, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = bf16_widen(x[i]);
}

static void narrow_bf16(const float *restrict x, uint16_t *restrict y, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = bf16_narrow(x[i]);
}

static void round_bf16(const float *x, float *y, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = btcpu_bits_to_float(bf16_round(x[i]) & 0xFFFF0000u);
}

void BTCPU_FN(widen)(bt_dtype type, const uint16_t *x, float *y, int64_t n) {
    (type == BT_F16 ? widen_f16 : widen_bf16)(x, y, n);
}

void BTCPU_FN(narrow)(bt_dtype type, const float *x, uint16_t *y, int64_t n) {
    (type == BT_F16 ? narrow_f16 : narrow_bf16)(x, y, n);
}

void BTCPU_FN(round)(bt_dtype type, const float *x, float *y, int64_t n) {
    (type == BT_F16 ? round_f16 : round_bf16)(x, y, n);
}
