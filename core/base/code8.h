/* Numbers in 8 bits: a block of values shares its largest magnitude as scale, and a code stands for
 * scale (|c| / most)^4; the contract is adamw8's (core/ops/op_args.h). For files and the oracle. */
#ifndef BANTAM_BASE_CODE8_H
#define BANTAM_BASE_CODE8_H

#include <math.h>
#include <stdint.h>

/* A code's largest number; codes of values that may be negative are read as signed bytes. */
#define BTI_CODE8_SIGNED 127
#define BTI_CODE8_UNSIGNED 255

static inline double bti_code8_value(uint8_t code, double scale, int most) {
    double c = most == BTI_CODE8_SIGNED ? (double)(int8_t)code : (double)code;
    return copysign(scale * pow(fabs(c) / most, 4), c);
}

/* The nearest code. A positive value of the unsigned kind keeps 1 at least; a scale that is not
 * finite gives the largest code. */
static inline uint8_t bti_code8_of(double x, double scale, int most) {
    double c = scale > 0 ? floor(most * pow(fabs(x) / scale, 0.25) + 0.5) : 0;
    if (!(c <= most)) c = most;
    if (most == BTI_CODE8_UNSIGNED && x > 0) c = fmax(c, 1);
    return (uint8_t)(int)(x < 0 ? -c : c);
}

#endif
