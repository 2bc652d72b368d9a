/* training.precision: the number formats of a run, and which of them a device computes in.
 *
 * fp32 and tf32 differ in products only; with fp16 and bf16 activations and their gradients are
 * half, and products round their operands (core/ops/op_args.h). fp16 alone needs a loss scale: its
 * smallest number is 2^-24, bf16's and fp32's are below 2^-126. */
#ifndef BANTAM_RUN_PRECISION_H
#define BANTAM_RUN_PRECISION_H

#include "core/model/model.h"
#include "core/run/run_file.h"

const char *bti_precision_name(bti_precision p);
/* The type of its activations. */
bt_dtype bti_precision_data(bti_precision p);
/* A new model computes in fp32 until this. */
void bti_precision_set(bti_precision p, bti_model *m);
int bti_precision_has(const bt_dev_info *info, bti_precision p);
/* BT_EUSAGE, naming what the device has instead. */
bt_status bti_precision_check(const bt_dev_info *info, bti_precision p);

/* The loss scale of a run at its start, and how it moves: 1, which stays, but for fp16. */
double bti_precision_scale(const bti_run_config *cfg, bt_update_scalars_params *scaling);

#endif
