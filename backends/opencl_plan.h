/* What the planning half of the opencl backend and its ops agree on: how work is cut, and how much
 * scratch that takes. No vendor header. */
#ifndef BANTAM_BACKENDS_OPENCL_PLAN_H
#define BANTAM_BACKENDS_OPENCL_PLAN_H

#include "backends/builtin.h"

/* Column sums: rows are cut into at most BTCL_CHUNKS chunks of equal size, of at least
 * BTCL_CHUNK_ROWS rows. */
#define BTCL_CHUNKS 64
#define BTCL_CHUNK_ROWS 16

static inline int64_t btcl_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t btcl_chunk_rows(int64_t rows) {
    int64_t even = btcl_ceil_div(rows, BTCL_CHUNKS);
    return even > BTCL_CHUNK_ROWS ? even : BTCL_CHUNK_ROWS;
}

/* A large product goes to a library in slices, each with scratch of at most BTCL_GEMM_SCRATCH. */
#define BTCL_GEMM_SCRATCH ((uint64_t)32 << 20)

typedef struct btcl_slice {
    int64_t m, n, k; /* of a slice; the last ones may be smaller */
} btcl_slice;

btcl_slice btcl_gemm_slice(int64_t m, int64_t n, int64_t k);

/* Bytes of scratch that a slice asks for: an upper bound of what the library uses. */
uint64_t btcl_slice_bytes(int64_t m, int64_t n, int64_t k);

/* Is the product one that may go to the library: one matrix, large enough to be worth it, of which
 * no stable rows are wanted (ours sums each element in the same order whatever the rows)? */
int btcl_gemm_may_slice(const bt_call *call);

#endif
