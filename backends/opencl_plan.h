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

/* Of a product of m x k and k x n; `wide`: what it reads and writes must be made fp32 before and
 * half after, slice by slice. */
btcl_slice btcl_gemm_slice(int64_t m, int64_t n, int64_t k, int wide);

/* Scratch of a slice, bytes: an upper bound of what the library uses, then fp32 copies of A, B and
 * C where `wide`. */
uint64_t btcl_slice_bytes(const btcl_slice *s, int wide);
/* The library's part of so much scratch; the copies lie behind it. */
uint64_t btcl_library_share(uint64_t bytes, int wide);

/* Does the call round or hold halves? */
static inline int btcl_gemm_wide(const bt_call *call) { return call->p.gemm.round != BT_F32; }

/* Is the product one that may go to the library: one matrix, large enough to be worth it, of which
 * no stable rows are wanted (ours sums each element in the same order whatever the rows)? */
int btcl_gemm_may_slice(const bt_call *call);

#endif
