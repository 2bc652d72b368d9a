#include "core/model/levels.h"

const char *const bti_level_name[BTI_LEVEL_COUNT] = {"none",   "cheap",  "ff",
                                                     "blocks", "layers", "segments"};

#define WITHOUT_ACT (~(BTI_KEEP(BTI_CLASS_ACT) | BTI_KEEP(BTI_CLASS_NORM)))

const uint32_t bti_level_keep[BTI_LEVEL_COUNT] = {
    [BTI_LEVEL_NONE] = BTI_KEEP_ALL,
    [BTI_LEVEL_CHEAP] = WITHOUT_ACT,
    [BTI_LEVEL_FF] = WITHOUT_ACT & ~BTI_KEEP(BTI_CLASS_FF),
    [BTI_LEVEL_BLOCKS] = WITHOUT_ACT & ~(BTI_KEEP(BTI_CLASS_FF) | BTI_KEEP(BTI_CLASS_PROJ)),
    [BTI_LEVEL_LAYERS] = BTI_KEEP_INPUT,
    [BTI_LEVEL_SEGMENTS] = BTI_KEEP(BTI_CLASS_NONE),
};

void bti_level_fill(const bti_model *m, bti_level level, int32_t from, int32_t to, int32_t segment,
                    uint32_t *keep) {
    int32_t encoder = (int32_t)m->cfg.encoder_layers;
    for (int32_t i = from; i < to; i++) {
        int32_t first = i >= encoder && from < encoder ? encoder : from;
        int at_end = i + 1 == to || i + 1 == encoder || i + 1 == m->layers;
        keep[i] = bti_level_keep[level];
        if (at_end || segment < 2 || (i + 1 - first) % segment == 0)
            keep[i] |= BTI_KEEP(BTI_CLASS_INPUT);
    }
}
