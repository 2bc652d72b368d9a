#include "core/run/schedule.h"

#include <math.h>

/* Share of the way from the end of the warm-up to just behind training.updates; below 1, so that
 * the last step still learns. */
static double decayed(const bti_run_config *cfg, double u, double w) {
    double last = (double)cfg->training.updates;
    if (last <= w) return 0;
    if (u > last) u = last;
    return (u - w) / (last + 1 - w);
}

double bti_learning_rate(const bti_run_config *cfg, int64_t step) {
    double u = step < 1 ? 1 : (double)step;
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
    case BTI_SCHEDULE_LINEAR:
        lr *= u < w ? 1 : 1 - decayed(cfg, u, w);
        break;
    case BTI_SCHEDULE_COSINE:
        lr *= u < w ? 1 : 0.5 * (1 + cos(3.14159265358979323846 * decayed(cfg, u, w)));
        break;
    case BTI_SCHEDULE_CONSTANT:
        break;
    }
    return u < w ? lr * (u / w) : lr;
}
