/* How devices are told of in JSON. */
#ifndef BANTAM_FIT_DEVICES_H
#define BANTAM_FIT_DEVICES_H

#include "backends/backend.h"
#include "core/base/json.h"

/* Bytes of the largest allocation; null: there is no limit. */
json_t *bti_allocation_json(const bt_dev_info *info);

#endif
