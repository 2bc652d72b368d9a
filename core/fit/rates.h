/* Rates for the cost of programs, measured once per device and kept. */
#ifndef BANTAM_FIT_RATES_H
#define BANTAM_FIT_RATES_H

#include "core/plan/cost.h"
#include "core/run/run_file.h"

/* Seconds of each kind of work on an open device in a precision that it has: as kept in the user's
 * cache folder (XDG_CACHE_HOME or ~/.cache, bantam/rates-KEY.json; KEY: device, backend, driver,
 * threads, version, precision), else measured in a third of a second at most and kept there, unless
 * the device was busy then: from then on they stay as they are, and so do plans. A device that
 * states no product rate (ref, null) is not measured. What fails costs accuracy or time, never the
 * run: the defaults hold then. BANTAM_RATES names a file of such rates that holds instead, whatever
 * its device. */
void bti_rates_get(bt_dev *dev, bti_precision precision, bti_rates *out);

/* The measurement alone. */
bt_status bti_rates_measure(bt_dev *dev, bti_precision precision, bti_rates *out);
/* Kept rates of this key (NULL: any) from a file, and what product rate the device stated then
 * (stated may be NULL); BT_EINPUT when it is broken or of another key. */
bt_status bti_rates_load(const char *path, const char *key, double *stated, bti_rates *out);
bt_status bti_rates_save(const char *path, const char *key, double flops, const bti_rates *rates);

#endif
