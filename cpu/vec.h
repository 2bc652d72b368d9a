/* Vector types and the elementary functions of the CPU kernels.
 *
 * Row-wise kernels are plain loops that the compiler vectorises; the functions here are written so
 * that it can (no branches, no calls). Attention's small products name their vectors: btcpu_vf is
 * as wide as the instruction set. Random words are made 8 (4, 2) generators at a time with the
 * 32 x 32 -> 64 multiply, which compilers do not find by themselves: 0.5 ns a word against 1.1
 * (AVX-512), 0.9 against 2.0 (AVX2). */
#ifndef BANTAM_CPU_VEC_H
#define BANTAM_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/philox.h"

#if defined(__AVX512F__)
#define BTCPU_VL 16
#elif defined(__AVX2__)
#define BTCPU_VL 8
#else
#define BTCPU_VL 4
#endif

typedef float btcpu_vf __attribute__((vector_size(BTCPU_VL * 4), may_alias));
/* The same for loads and stores at any float. */
typedef float btcpu_vfu __attribute__((vector_size(BTCPU_VL * 4), may_alias, aligned(4)));

static inline btcpu_vf btcpu_splat(float x) { return x - (btcpu_vf){0}; }
static inline btcpu_vf btcpu_load(const float *p) { return *(const btcpu_vfu *)(const void *)p; }
static inline void btcpu_store(float *p, btcpu_vf v) { *(btcpu_vfu *)(void *)p = v; }

/* a b + c, rounded once where the instruction set can: by name, so that the bits do not depend on
 * where a compiler contracts. */
static inline btcpu_vf btcpu_madd(btcpu_vf a, btcpu_vf b, btcpu_vf c) {
#if BTCPU_VL == 16
    return (btcpu_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif BTCPU_VL == 8
    return (btcpu_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

static inline float btcpu_bits_to_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* e^x to 2 units in the last place; 0 below -87 (no denormals), infinity above 88.7, NaN kept.
 * x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree 6 in r, times 2^n. */
static inline float btcpu_exp(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float c = x > 89.0f ? 89.0f : x;
    c = c < -88.0f ? -88.0f : c;
    float shifted = c * 1.44269504f + magic;
    float n = shifted - magic;
    float r = c - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    /* The whole number sits in the low bits. 2^128 does not exist: one factor 2 is set apart. */
    float scale = btcpu_bits_to_float((bits + 126u) << 23);
    float e = p * scale * 2.0f;
    return x < -87.0f ? 0.0f : e;
}

/* erfc(z) e^(z^2) for z >= 0: a polynomial of degree 10 in t = 1 / (1 + z / 2), fitted at Chebyshev
 * nodes over z in [0, 9.5]; relative error 2.4e-7 in fp32. */
static inline float btcpu_erfcx(float z) {
    float t = 1.0f / (1.0f + 0.5f * z);
    float p = 0.0201472603f;
    p = p * t - 0.164438128f;
    p = p * t + 0.521820009f;
    p = p * t - 0.788104892f;
    p = p * t + 0.514210224f;
    p = p * t - 0.145130962f;
    p = p * t + 0.240586549f;
    p = p * t + 0.235678509f;
    p = p * t + 0.283181936f;
    p = p * t + 0.282049447f;
    return p * t;
}

/* Phi(x), and e^(-x^2/2), which its derivative wants. */
static inline float btcpu_normal_cdf(float x, float *gauss) {
    float z = fabsf(x) * 0.707106781f;
    float e = btcpu_exp(-0.5f * x * x);
    float half = 0.5f * e * btcpu_erfcx(z);
    *gauss = e;
    return x < 0.0f ? half : 1.0f - half;
}

static inline float btcpu_gelu(float x) {
    float gauss;
    return x * btcpu_normal_cdf(x, &gauss);
}

static inline float btcpu_gelu_grad(float x) {
    float gauss, cdf = btcpu_normal_cdf(x, &gauss);
    return cdf + x * gauss * 0.398942280f;
}

/* ---- random words ---------------------------------------------------------------------------- */

#if defined(__AVX512F__)
#define BTCPU_QL 8
#define BTCPU_MUL32(a, b) ((btcpu_vq)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined(__AVX2__)
#define BTCPU_QL 4
#define BTCPU_MUL32(a, b) ((btcpu_vq)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#elif defined(__SSE2__)
#define BTCPU_QL 2
#define BTCPU_MUL32(a, b) ((btcpu_vq)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#else
#define BTCPU_QL 2
#define BTCPU_MUL32(a, b) (((a)&0xFFFFFFFFu) * ((b)&0xFFFFFFFFu))
#endif
typedef uint64_t btcpu_vq __attribute__((vector_size(BTCPU_QL * 8)));
typedef uint64_t btcpu_vqu __attribute__((vector_size(BTCPU_QL * 8), may_alias, aligned(4)));
typedef uint32_t btcpu_vw __attribute__((vector_size(BTCPU_QL * 4)));
typedef uint32_t btcpu_vwu __attribute__((vector_size(BTCPU_QL * 4), may_alias, aligned(4)));

/* BTCPU_QL generators that differ in the last counter word. On return the low halves of c[0..3]
 * are the words; high halves are rubbish. Bit-equal with bti_philox. */
static inline void btcpu_philox(btcpu_vq c[4], uint64_t seed) {
    const btcpu_vq zero = {0}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    btcpu_vq c0 = c[0], c1 = c[1], c2 = c[2], c3 = c[3];
#pragma GCC unroll 10
    for (int r = 0; r < 10; r++) {
        btcpu_vq p0 = BTCPU_MUL32(c0, m0), p1 = BTCPU_MUL32(c2, m1);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    c[0] = c0, c[1] = c1, c[2] = c2, c[3] = c3;
}

static inline btcpu_vq btcpu_iota(void) {
#if BTCPU_QL == 8
    return (btcpu_vq){0, 1, 2, 3, 4, 5, 6, 7};
#elif BTCPU_QL == 4
    return (btcpu_vq){0, 1, 2, 3};
#else
    return (btcpu_vq){0, 1};
#endif
}

/* Words of a row-wise op's channels: BTCPU_WORDS at a time. */
#define BTCPU_WORDS 256

/* out[i] = word of channel col + i for i < n <= BTCPU_WORDS, some more are written; col a multiple
 * of BTCPU_WORDS. */
static inline void btcpu_row_words(uint32_t *out, uint64_t seed, uint32_t update, uint32_t site,
                                   const int32_t *rowpos, int64_t col, int64_t n) {
    const btcpu_vq zero = {0};
    uint32_t last = (uint32_t)rowpos[1] << 14 | (uint32_t)(col / 4);
    for (int64_t q = 0; 4 * q < n; q += BTCPU_QL) {
        btcpu_vq c[4] = {zero + update, zero + (site << 16), zero + (uint32_t)rowpos[0],
                         zero + (last + (uint32_t)q) + btcpu_iota()};
        btcpu_philox(c, seed);
        btcpu_vq lo = (c[0] & 0xFFFFFFFFu) | c[1] << 32, hi = (c[2] & 0xFFFFFFFFu) | c[3] << 32;
#if BTCPU_QL == 8
        btcpu_vq x = __builtin_shufflevector(lo, hi, 0, 8, 1, 9, 2, 10, 3, 11);
        btcpu_vq y = __builtin_shufflevector(lo, hi, 4, 12, 5, 13, 6, 14, 7, 15);
#elif BTCPU_QL == 4
        btcpu_vq x = __builtin_shufflevector(lo, hi, 0, 4, 1, 5);
        btcpu_vq y = __builtin_shufflevector(lo, hi, 2, 6, 3, 7);
#else
        btcpu_vq x = __builtin_shufflevector(lo, hi, 0, 2);
        btcpu_vq y = __builtin_shufflevector(lo, hi, 1, 3);
#endif
        *(btcpu_vqu *)(void *)(out + 4 * q) = x;
        *(btcpu_vqu *)(void *)(out + 4 * q + 2 * BTCPU_QL) = y;
    }
}

#endif
