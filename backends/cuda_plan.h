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

#endif
