/* Picks the kernels for the processor that this runs on. */
#include "cpu/kernels.h"

#ifdef BTCPU_HAVE_avx2
#include <cpuid.h>
#endif

#ifdef BTCPU_HAVE_base
extern const btcpu_table btcpu_kernels_base;
#endif
#ifdef BTCPU_HAVE_avx2
extern const btcpu_table btcpu_kernels_avx2;

/* x86-64-v3, as far as the compiler makes use of it. */
static int have_avx2(void) {
    uint32_t a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && c & bit_F16C && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}
#endif
#ifdef BTCPU_HAVE_avx512
extern const btcpu_table btcpu_kernels_avx512;

/* x86-64-v4 is F, BW, CD, DQ and VL on top of v3. */
static int have_avx512(void) {
    return have_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

const btcpu_table *btcpu_pick_table(const char *most) {
#ifdef BTCPU_HAVE_avx512
    if (have_avx512() && (!most || strcmp(most, "avx512") == 0)) return &btcpu_kernels_avx512;
#endif
#ifdef BTCPU_HAVE_avx2
    if (have_avx2() && (!most || strcmp(most, "base") != 0)) return &btcpu_kernels_avx2;
#endif
    (void)most;
    return &btcpu_kernels_base;
}
