/* Small arithmetic that every folder needs. */
#ifndef BANTAM_BASE_NUM_H
#define BANTAM_BASE_NUM_H

#include <stdint.h>

static inline int64_t bti_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t bti_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline uint64_t bti_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* The next multiple of `alignment`; 0 aligns nothing. */
static inline uint64_t bti_align_up(uint64_t n, uint64_t alignment) {
    return alignment ? (n + alignment - 1) / alignment * alignment : n;
}

#endif
