#include "core/report/what_if.h"

#include "core/base/status.h"
#include "core/run/precision.h"

/* Enough to meet what random updates of a text look like. */
#define MOST_PAIRS 2000000

bti_what_if bti_what_if_as_is(const bti_session *s) {
    return (bti_what_if){.model = s->shape,
                         .vocab = {s->vocab[0], s->vocab[1]},
                         .precision = s->cfg->training.precision,
                         .recompute = s->cfg->memory.recompute,
                         .moments = s->cfg->memory.optimizer_state,
                         .batch = s->cfg->training.batch,
                         .max_length = s->cfg->data.max_length,
                         .budget = s->budget.limit};
}

static bti_needs needs_of(const bti_run_plan *p, int32_t layers) {
    bti_needs n = {.fits = p->fits,
                   .total = p->total,
                   .least = p->minimum,
                   .seconds = p->seconds,
                   .micro_batches = p->micro_batches,
                   .logit_rows = p->choices.logit_rows};
    for (int32_t i = 0; i < layers; i++) {
        bti_level level = bti_run_plan_level(p, i);
        n.recomputed += level != BTI_LEVEL_NONE;
        if (level > n.level) n.level = level;
    }
    return n;
}

/* One micro-batch of so many rows that nothing of it need be emitted: its loops over chunks might
 * be as long as the text. A layer and its gradient hold four matrices of its rows at least. */
static int is_hopeless(const bti_what_if *w, const bti_model *m, const bti_workload *load) {
    int64_t rows = load->max_rows[0] > load->max_rows[1] ? load->max_rows[0] : load->max_rows[1];
    uint64_t row = 4 * (uint64_t)m->cfg.d_model * bti_dtype_size(m->data);
    return rows > INT32_MAX || (w->budget > 0 && (uint64_t)rows > w->budget / row);
}

bt_status bti_what_if_ask(const bti_session *s, const bti_what_if *w, bti_needs *out) {
    bti_model *m = NULL;
    bti_run_plan *plan = NULL;
    bti_workload workload = {0};
    bti_plan_options options = bti_session_plan_options(s);
    bti_model_config model = w->model;
    bti_rates rates;
    model.position_rows = w->max_length;
    BT_TRY(bti_model_new(&model, w->vocab[0], w->vocab[1], BT_F32, &m));
    bti_precision_set(w->precision, m);
    if (w->precision != s->cfg->training.precision && !s->known && !w->least_only) {
        bti_rates_get(s->dev, w->precision, &rates);
        options.rates = &rates;
    }
    bti_updates updates = bti_session_updates(s, m);
    updates.batch = w->batch;
    updates.max_length = w->max_length;
    updates.most_pairs = MOST_PAIRS;
    options.recompute = w->recompute;
    options.moments = w->moments;
    options.budget = w->least_only ? 1 : w->budget;
    bt_status status = bti_session_workload(s, &updates, &workload);
    for (int i = 0; i < 2 && w->one_micro_batch; i++) options.force_rows[i] = workload.max_rows[i];
    options.force_logit_rows = w->logit_rows;
    if (status == BT_OK && w->one_micro_batch && is_hopeless(w, m, &workload)) status = BT_EFIT;
    if (status == BT_OK) status = bti_model_freeze(m, s->cfg->freeze.name, s->cfg->freeze.count);
    if (status == BT_OK)
        status = bti_session_plan(s, m, &workload, w->max_length, &options, NULL, &plan);
    if (status == BT_OK) *out = needs_of(plan, m->layers);
    if (status == BT_OK && w->one_micro_batch) out->micro_batches = 1; /* rows were forced */
    if (status == BT_EFIT) {
        *out = (bti_needs){.total = UINT64_MAX, .least = UINT64_MAX};
        status = BT_OK;
    }
    bti_run_plan_free(plan);
    bti_model_free(m);
    bti_workload_clear(&workload);
    return status;
}
