/* A training log as pictures. */
#ifndef BANTAM_TRAIN_PLOT_H
#define BANTAM_TRAIN_PLOT_H

#include "core/model/head.h"

/* Draws the log.jsonl of a model with this head into the folder: loss.svg (with the validation loss
 * where there is one), lr.svg, speed.svg, and for each score that validations have bleu.svg,
 * chrf.svg, accuracy.svg, f1.svg or mse.svg. A file without anything to
 * draw is not written; lines that are no JSON, and values that are null, are left out. Memory is
 * some 100 bytes an update. */
bt_status bti_plot_log(const char *log_path, const bti_head *head, const char *folder);

#endif
