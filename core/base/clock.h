/* Seconds of a clock; for what is shown and measured, never for what is learned. */
#ifndef BANTAM_BASE_CLOCK_H
#define BANTAM_BASE_CLOCK_H

#include <time.h>

static inline double bti_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Only differences mean something. */
static inline double bti_now(void) { return bti_clock(CLOCK_MONOTONIC); }

#endif
