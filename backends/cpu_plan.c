#include "backends/builtin.h"

static uint64_t no_scratch(const bt_dev_info *info, const bt_call *call) {
    (void)info, (void)call;
    return 0;
}

const bt_planning bti_planning_cpu = {.ws_bytes = no_scratch};
