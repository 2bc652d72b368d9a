#include "core/train/schedule.h"

#include <math.h>

double bti_learning_rate(const bti_run_config *cfg, int64_t update) {
    double u = update < 1 ? 1 : (double)update;
    double w = cfg->schedule.warmup < 1 ? 0 : (double)cfg->schedule.warmup;
    double lr = cfg->optimizer.lr;
    switch (cfg->schedule.kind) {
    case BTI_SCHEDULE_INVERSE_SQRT:
        if (w == 0) return lr / sqrt(u);
        return lr * fmin(u / w, sqrt(w / u));
    case BTI_SCHEDULE_NOAM:
        lr /= sqrt((double)cfg->model.d_model);
        if (w == 0) return lr / sqrt(u);
        return lr * fmin(1 / sqrt(u), u / (w * sqrt(w)));
    case BTI_SCHEDULE_CONSTANT:
        break;
    }
    return u < w ? lr * (u / w) : lr;
}
