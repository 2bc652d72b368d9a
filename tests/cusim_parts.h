/* The parts of the suite of the simulator. */
#ifndef BANTAM_TESTS_CUSIM_PARTS_H
#define BANTAM_TESTS_CUSIM_PARTS_H

#include <check.h>
#include <cuda_runtime_api.h>

/* The call must give cudaSuccess. */
#define cs_ok(call) \
    do { \
        cudaError_t cs_e_ = (call); \
        ck_assert_msg(cs_e_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cs_e_)); \
    } while (0)
#define cs_fails(call, error) ck_assert_str_eq(cudaGetErrorName(call), cudaGetErrorName(error))

/* Starts the simulator from nothing with these settings alone ("CUSIM_MEM=1g CUSIM_ARCH=86"). */
void cs_restart(const char *settings);
/* Device memory for n floats; with the values of x; and back. */
float *cs_floats(int n);
float *cs_up(const float *x, int n);
void cs_down(float *x, const float *p, int n);

void cs_add_runtime(TCase *tc); /* cusim_runtime.c */
void cs_add_cublas(TCase *tc);  /* cusim_cublas.c */

#endif
