/* How fast a device is, measured by its own ops: for backends whose modules cannot ask for it. */
#ifndef BANTAM_BACKENDS_SPEED_H
#define BANTAM_BACKENDS_SPEED_H

#include "backends/backend.h"

/* Rates in flop/s and bytes/s; 0: not measured. */
typedef struct bti_speed {
    double flops, bytes_per_s;
} bti_speed;

/* Multiplies fp32 squares of growing side until one takes 3 ms, and copies what the last one read.
 * Takes at most `most` bytes of the device at a time, all given back; where that is too little for
 * the first square the rates stay as they are. Fails as the device's own calls do. */
bt_status bti_measure_speed(bt_dev *dev, uint64_t most, bti_speed *out);

#endif
