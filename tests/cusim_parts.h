/* The parts of the suite of the simulator. */
#ifndef BANTAM_TESTS_CUSIM_PARTS_H
#define BANTAM_TESTS_CUSIM_PARTS_H

#include <check.h>
#include <cuda_runtime_api.h>

#ifdef __SANITIZE_ADDRESS__
#define CS_ASAN 1
#else
#define CS_ASAN 0
#endif
#ifdef __SANITIZE_THREAD__
#define CS_TSAN 1
#else
#define CS_TSAN 0
#endif

/* The call must give cudaSuccess. */
#define cs_ok(call) \
    do { \
        cudaError_t cs_e_ = (call); \
        ck_assert_msg(cs_e_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cs_e_)); \
    } while (0)
#define cs_fails(call, error) ck_assert_str_eq(cudaGetErrorName(call), cudaGetErrorName(error))

/* Starts the simulator from nothing with these settings alone ("CUSIM_MEM=1g CUSIM_ARCH=86"). */
void cs_restart(const char *settings);
/* Device memory for n words of 4 bytes; for n floats, with the values of x; and n words back. */
void *cs_words(int n);
float *cs_up(const float *x, int n);
void cs_down(void *x, const void *p, int n);

/* Runs `f(at)` in a process of its own, which must end badly and say this; a sanitizer may say it
 * in its own words. */
void cs_dies(void (*f)(int at), int at, const char *settings, const char *said);

/* Two mistakes of a host: staging memory written before the copy has read it; two streams that
 * nothing orders (`wait` 0). */
void cs_write_staging_early(int unused);
void cs_two_streams(int wait);

void cs_add_runtime(TCase *tc); /* cusim_runtime.c */
void cs_add_cublas(TCase *tc);  /* cusim_cublas.c */

#endif
