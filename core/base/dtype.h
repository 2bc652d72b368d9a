/* Element types of tensors, and conversions between them. */
#ifndef BANTAM_BASE_DTYPE_H
#define BANTAM_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* X(enum, name, bytes, is_float) */
#define BTI_DTYPES(X) \
    X(BT_F32, "fp32", 4, 1) \
    X(BT_F64, "fp64", 8, 1) \
    X(BT_F16, "fp16", 2, 1) \
    X(BT_BF16, "bf16", 2, 1) \
    X(BT_I32, "int32", 4, 0) \
    X(BT_U8, "uint8", 1, 0)

typedef enum bt_dtype {
#define X(e, n, b, f) e,
    BTI_DTYPES(X)
#undef X
        BT_DTYPE_COUNT
} bt_dtype;

size_t bti_dtype_size(bt_dtype t);
const char *bti_dtype_name(bt_dtype t);
int bti_dtype_is_float(bt_dtype t);

/* The type that statistics, log-sum-exp, losses and scalars of a tensor of type `t` have:
 * fp64 beside fp64, fp32 beside everything else. */
bt_dtype bti_dtype_acc(bt_dtype t);

/* IEEE 754 binary16 and bfloat16, round to nearest even, NaN kept. */
uint16_t bti_f32_to_f16(float x);
float bti_f16_to_f32(uint16_t h);
uint16_t bti_f32_to_bf16(float x);
float bti_bf16_to_f32(uint16_t h);

/* Reads and writes element i of an array of type `t` as double (for tests, files, the oracle). */
double bti_load(const void *base, bt_dtype t, int64_t i);
void bti_store(void *base, bt_dtype t, int64_t i, double x);

#endif
