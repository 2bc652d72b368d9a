/* A training log as pictures. */
#ifndef BANTAM_TRAIN_PLOT_H
#define BANTAM_TRAIN_PLOT_H

#include "core/base/status.h"

/* Draws a log.jsonl into the folder: loss.svg (with the validation loss where there is one),
 * lr.svg, speed.svg, and bleu.svg where there are validations with BLEU. A file without anything to
 * draw is not written; lines that are no JSON, and values that are null, are left out. Memory is
 * some 100 bytes an update. */
bt_status bti_plot_log(const char *log_path, const char *folder);

#endif
