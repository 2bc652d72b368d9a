#include "core/base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes, is_float;
} types[BT_DTYPE_COUNT] = {
#define X(e, n, b, f) [e] = {n, b, f},
    BTI_DTYPES(X)
#undef X
};

size_t bti_dtype_size(bt_dtype t) { return types[t].bytes; }
const char *bti_dtype_name(bt_dtype t) { return types[t].name; }
int bti_dtype_is_float(bt_dtype t) { return types[t].is_float; }
bt_dtype bti_dtype_acc(bt_dtype t) { return t == BT_F64 ? BT_F64 : BT_F32; }

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t bti_f32_to_f16(float x) {
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (a >> 13 & 0x1FFu));
    if (a >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65,520 and up round to infinity */
    if (a >= 0x38800000u) {                                  /* normal: 2^-14 and up */
        uint32_t r = a - 0x38000000u;
        r += 0x0FFFu + (r >> 13 & 1u);
        return (uint16_t)(sign | r >> 13);
    }
    /* Subnormal: adding 0.5 leaves the value in units of 2^-24 in the mantissa, rounded to even. */
    return (uint16_t)(sign | (bits_of(float_of(a) + 0.5f) - 0x3F000000u));
}

float bti_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31u, m = h & 0x3FFu;
    if (e == 31) return float_of(sign | 0x7F800000u | m << 13);
    if (e == 0) {
        float x = (float)m * 0x1p-24f;
        return sign ? -x : x;
    }
    return float_of(sign | (e + 112u) << 23 | m << 13);
}

uint16_t bti_f32_to_bf16(float x) {
    uint32_t u = bits_of(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

float bti_bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

double bti_load(const void *base, bt_dtype t, int64_t i) {
    switch (t) {
    case BT_F32:
        return (double)((const float *)base)[i];
    case BT_F64:
        return ((const double *)base)[i];
    case BT_F16:
        return (double)bti_f16_to_f32(((const uint16_t *)base)[i]);
    case BT_BF16:
        return (double)bti_bf16_to_f32(((const uint16_t *)base)[i]);
    case BT_I32:
        return (double)((const int32_t *)base)[i];
    case BT_U8:
        return (double)((const uint8_t *)base)[i];
    default:
        return 0;
    }
}

void bti_store(void *base, bt_dtype t, int64_t i, double x) {
    switch (t) {
    case BT_F32:
        ((float *)base)[i] = (float)x;
        break;
    case BT_F64:
        ((double *)base)[i] = x;
        break;
    case BT_F16:
        ((uint16_t *)base)[i] = bti_f32_to_f16((float)x);
        break;
    case BT_BF16:
        ((uint16_t *)base)[i] = bti_f32_to_bf16((float)x);
        break;
    case BT_I32:
        ((int32_t *)base)[i] = (int32_t)x;
        break;
    case BT_U8:
        ((uint8_t *)base)[i] = (uint8_t)x;
        break;
    default:
        break;
    }
}
