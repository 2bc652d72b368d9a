/* What the planning half of the cuda backend and its ops agree on: how work is cut, and how much
 * scratch that takes. No vendor header. */
#ifndef BANTAM_BACKENDS_CUDA_PLAN_H
#define BANTAM_BACKENDS_CUDA_PLAN_H

#include "backends/builtin.h"

static inline int64_t btcu_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Column sums: rows are cut into chunks of equal size, of at least BTCU_CHUNK_ROWS rows; at most
 * BTCU_CHUNKS of them, and no more than BTCU_CHUNK_FLOATS sums in all, where columns alone keep a
 * device busy. (Blocks are chunks x columns / 128: 160 chunks are enough for today's 132
 * multiprocessors at any width.) */
#define BTCU_CHUNKS 160
#define BTCU_CHUNK_ROWS 32
#define BTCU_CHUNK_FLOATS (1 << 21)

int64_t btcu_chunk_rows(int64_t rows, int64_t cols); /* at least 1 */

/* ---- products in half precision ----------------------------------------------------------------
 * Operands that are not in the type that the device multiplies are copied to scratch first. A
 * device that multiplies halves wants half copies of fp32 operands; one that only stores them wants
 * fp32 copies of all (rounded, where they were fp32), and sums in scratch for a half C. Large
 * products go in slices, each with scratch of at most BTCU_GEMM_SCRATCH. */
#define BTCU_GEMM_SCRATCH ((uint64_t)8 << 20)

typedef struct btcu_product {
    int64_t m, n, k;
    uint8_t widened; /* the device multiplies fp32 only */
    uint8_t a, b;    /* this operand is copied */
    uint8_t half_c;
} btcu_product;

/* `native`: the device multiplies the call's half type. */
btcu_product btcu_product_of(const bt_call *call, int native);

typedef struct btcu_slice {
    int64_t m, n, k;                    /* of a slice; the last ones may be smaller */
    uint64_t a_bytes, b_bytes, c_bytes; /* of its copies, one after the other; c: fp32 sums */
} btcu_slice;

btcu_slice btcu_gemm_slice(const btcu_product *p);

/* Elements from one row to the next of a copy with so many columns: tensor cores want rows to start
 * at multiples of 16 bytes. */
static inline int64_t btcu_copy_ld(int64_t cols) { return btcu_ceil_div(cols, 8) * 8; }

#endif
