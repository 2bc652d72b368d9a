#include "core/run/precision.h"

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"

static const struct {
    const char *name;
    bt_dtype data;
    int tf32;
} formats[BTI_PRECISION_COUNT] = {[BTI_PRECISION_FP32] = {"fp32", BT_F32, 0},
                                  [BTI_PRECISION_TF32] = {"tf32", BT_F32, 1},
                                  [BTI_PRECISION_FP16] = {"fp16", BT_F16, 0},
                                  [BTI_PRECISION_BF16] = {"bf16", BT_BF16, 0}};

const char *bti_precision_name(bti_precision p) { return formats[p].name; }
bt_dtype bti_precision_data(bti_precision p) { return formats[p].data; }

void bti_precision_set(bti_precision p, bti_model *m) {
    bti_model_compute(m, formats[p].data, formats[p].tf32);
}

int bti_precision_has(const bt_dev_info *info, bti_precision p) {
    return (info->dtypes >> formats[p].data & 1) && (!formats[p].tf32 || info->tf32);
}

bt_status bti_precision_check(const bt_dev_info *info, bti_precision p) {
    char others[32] = "";
    if (bti_precision_has(info, p)) return BT_OK;
    for (int i = 0; i < BTI_PRECISION_COUNT; i++)
        if (bti_precision_has(info, (bti_precision)i)) {
            size_t used = strlen(others);
            snprintf(others + used, sizeof others - used, "%s%s", used ? ", " : "",
                     formats[i].name);
        }
    return bti_fail(BT_EUSAGE, "%s (%s) does not compute in %s: set training.precision to %s%s",
                    info->name, info->backend, formats[p].name,
                    strchr(others, ',') ? "one of " : "", others);
}

double bti_precision_scale(const bti_run_config *cfg, bt_update_scalars_params *scaling) {
    *scaling = (bt_update_scalars_params){0};
    if (cfg->training.precision != BTI_PRECISION_FP16) return 1;
    scaling->growth_interval = (int32_t)cfg->training.loss_scale_growth;
    scaling->scale_max = (float)cfg->training.loss_scale_max;
    return cfg->training.loss_scale;
}
