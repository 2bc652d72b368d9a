/* Picks the kernels for the processor that this runs on. */
#include "cpu/kernels.h"

#ifdef BTCPU_HAVE_base
extern const btcpu_table btcpu_kernels_base;
#endif
#ifdef BTCPU_HAVE_avx2
extern const btcpu_table btcpu_kernels_avx2;
#endif
#ifdef BTCPU_HAVE_avx512
extern const btcpu_table btcpu_kernels_avx512;
#endif

const btcpu_table *btcpu_pick_table(void) {
#ifdef BTCPU_HAVE_avx512
    /* x86-64-v4 is F, BW, CD, DQ and VL on top of v3. */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &btcpu_kernels_avx512;
#endif
#ifdef BTCPU_HAVE_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        return &btcpu_kernels_avx2;
#endif
    return &btcpu_kernels_base;
}
