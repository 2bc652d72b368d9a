/* The learning rate of an optimizer step: a function of the run file and the step's number only. An
 * update that is skipped is no step: it does not move the schedule. */
#ifndef BANTAM_RUN_SCHEDULE_H
#define BANTAM_RUN_SCHEDULE_H

#include "core/run/run_file.h"

/* Rate of step u (from 1; less counts as 1), with w = schedule.warmup and lr = optimizer.lr:
 *   inverse_sqrt  lr * min(u / w, sqrt(w / u));                     w 0: lr / sqrt(u)
 *   noam          lr * d_model^-0.5 * min(u^-0.5, u * w^-1.5);      w 0: lr * d_model^-0.5 * u^-0.5
 *   linear        lr * min(u / w, (n + 1 - u) / (n + 1 - w));           n = training.updates
 *   cosine        lr * min(u / w, (1 + cos(pi (u - w) / (n + 1 - w))) / 2)
 *   constant      lr * min(u / w, 1);                               w 0: lr
 * Finite and above 0 whenever lr is. */
double bti_learning_rate(const bti_run_config *cfg, int64_t step);

#endif
