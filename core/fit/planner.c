#include "core/fit/planner.h"

#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/fit/plan_search.h"

const char *const bti_byte_kind_name[BTI_BYTES_KINDS] = {"weights",     "gradients", "optimizer",
                                                         "activations", "logits",    "workspace",
                                                         "staging",     "decode",    "runtime"};

static uint64_t alignment(const bti_search *s) {
    return s->info->alignment ? s->info->alignment : 1;
}

/* ---- one choice -------------------------------------------------------------------------------
 */

static void set_keep(bti_search *s, const bti_choice *c) {
    bti_level_fill(s->m, c->rest, 0, s->m->layers, 0, s->keep);
    bti_level_fill(s->m, c->level, 0, c->layers, c->segment, s->keep);
}

/* What is emitted: a micro-batch that trains, alone in its update or not, or its losses only. */
typedef enum pass_kind { LOSSES, ALONE, ONE_MORE } pass_kind;

static bt_status emit(bti_search *s, bti_program *p, const bti_shape *shape, const bti_choice *c,
                      pass_kind pass) {
    bti_step step = {.model = s->m,
                     .places = &s->places,
                     .shape = *shape,
                     .choices = {.keep = s->keep,
                                 .logit_rows = bti_min(c->logit_rows, shape->rows[1]),
                                 .slice_rows = c->slice_rows,
                                 .compact = s->compact},
                     .training = pass != LOSSES,
                     .first_micro_batch = pass == ALONE,
                     .grad_scale = 1};
    bti_train_program unused;
    return bti_model_emit_step(p, &step, &unused);
}

bti_layout_options bti_plan_layout(const bti_search *s, const bti_run_plan *plan) {
    return (bti_layout_options){.alignment = alignment(s),
                                .heap = plan->heap,
                                .guard = s->opt->guard,
                                .memo = s->opt->memo};
}

/* Fills the plan's bytes from the dynamic region's peak; what layout wastes counts as activations.
 */
static void count_bytes(bti_run_plan *plan, uint64_t arena, uint64_t runtime) {
    uint64_t *b = plan->bytes, sum = 0;
    b[BTI_BYTES_WEIGHTS] = plan->region[BTI_REGION_WEIGHTS];
    b[BTI_BYTES_GRADIENTS] = plan->region[BTI_REGION_GRADIENTS];
    b[BTI_BYTES_OPTIMIZER] = plan->region[BTI_REGION_MOMENT1] + plan->region[BTI_REGION_MOMENT2];
    b[BTI_BYTES_LOGITS] = plan->layout.kind[BTI_KIND_LOGITS];
    b[BTI_BYTES_WORKSPACE] = plan->layout.kind[BTI_KIND_WORKSPACE];
    b[BTI_BYTES_STAGING] = plan->decode_staging + plan->region[BTI_REGION_CONSTANT];
    b[BTI_BYTES_RUNTIME] = runtime;
    b[BTI_BYTES_ACTIVATIONS] = 0;
    for (int i = 0; i < BTI_BYTES_KINDS; i++) sum += b[i];
    b[BTI_BYTES_ACTIVATIONS] = arena + runtime - sum;
    plan->total = arena + runtime;
}

/* Tables are read as a whole, so each region of them must lie in one heap. A micro-batch may be a
 * single example: no smaller batch helps. */
static bt_status check_tables(const bti_model *m, const bti_run_plan *plan,
                              const bti_arena *arena) {
    static const bti_region region[] = {BTI_REGION_CONSTANT, BTI_REGION_STAGING};
    const char *name[] = {"the position table needs",
                          m->cfg.features > 0 ? "features, targets and tables of ids need"
                                              : "targets and tables of ids need"};
    const char *help[] = {"data.max_length",
                          m->cfg.features > 0
                              ? "data.features.N.max_rows, data.max_length or validation.beam"
                              : "data.max_length or validation.beam"};
    char need[32], most[32];
    for (int i = 0; i < 2; i++) {
        const uint64_t bytes = plan->region[region[i]];
        if (arena->heap_limit == 0 || bytes <= arena->heap_limit) continue;
        bti_format_bytes(bytes, need);
        bti_format_bytes(arena->heap_limit, most);
        return bti_fail(BT_EFIT,
                        "%s %s, more than the device gives in one allocation (%s); a smaller %s "
                        "needs less",
                        name[i], need, most, help[i]);
    }
    return BT_OK;
}

/* Beside `runtime`: where device memory is the host's, features are staged twice. */
static uint64_t runtime_of(const bti_search *s, const bti_shape *caps) {
    return s->opt->runtime + (s->info->host_memory ? bti_feature_bytes(s->m, caps) : 0);
}

uint64_t bti_plan_others(bti_search *s, const bti_run_plan *plan, const bti_shape *caps) {
    bti_staging staging;
    uint64_t sum = runtime_of(s, caps) + s->opt->decode_staging;
    bti_staging_plan(s->m, caps, alignment(s), &staging);
    for (int r = 0; r < BTI_REGION_STAGING; r++) sum += plan->region[r];
    return sum + 2 * staging.bytes;
}

/* The dynamic region: what a micro-batch, the update's end, validation and its decoder need. */
static bt_status lay_out(bti_search *s, const bti_choice *c, bti_run_plan *plan) {
    bti_layout_options o = bti_plan_layout(s, plan);
    bti_layout losses = {0};
    BT_TRY(emit(s, s->step, &plan->caps, c, ALONE));
    BT_TRY(bti_layout_make(s->step, &o, &plan->layout));
    if (s->losses != NULL) {
        BT_TRY(emit(s, s->losses, &plan->caps, c, LOSSES));
        BT_TRY(bti_layout_make(s->losses, &o, &losses));
    }
    uint64_t train = bti_max_u64(bti_max_u64(plan->layout.bytes, losses.bytes), s->update_bytes);
    plan->region[BTI_REGION_DYNAMIC] = bti_max_u64(train, s->opt->decode_dynamic);
    plan->bytes[BTI_BYTES_DECODE] =
        plan->region[BTI_REGION_DYNAMIC] - train + s->opt->decode_staging;
    return BT_OK;
}

/* Seconds of a mean update: its first micro-batch overwrites gradients, the others add to them. */
static bt_status predict(bti_search *s, const bti_choice *c, bti_run_plan *plan) {
    bti_shape mean;
    double parts = bti_plan_mean(s, &plan->caps, &mean);
    BT_TRY(emit(s, s->mean, &mean, c, ALONE));
    plan->seconds = bti_program_seconds(s->mean, &s->rates) + s->update_seconds;
    if (parts <= 1) return BT_OK;
    BT_TRY(emit(s, s->mean, &mean, c, ONE_MORE));
    plan->seconds += (parts - 1) * bti_program_seconds(s->mean, &s->rates);
    return BT_OK;
}

bt_status bti_plan_count(bti_search *s, const bti_choice *c, bti_run_plan *plan) {
    plan->choice = *c;
    plan->choice.moments = s->moments;
    plan->caps = bti_choice_caps(s, c);
    plan->choices.logit_rows = bti_min(c->logit_rows, plan->caps.rows[1]);
    plan->choices.slice_rows = c->slice_rows;
    plan->choices.compact = s->compact;
    plan->micro_batches = bti_workload_parts(s->w, &plan->caps, NULL);
    if (plan->micro_batches == 0) plan->micro_batches = c->parts;
    set_keep(s, c);
    bti_staging_plan(s->m, &plan->caps, alignment(s), &s->places.staging);
    plan->places = s->places;
    plan->decode_staging = 2 * s->places.staging.bytes;
    plan->region[BTI_REGION_STAGING] = plan->decode_staging + s->opt->decode_staging;
    BT_TRY(lay_out(s, c, plan));
    plan->largest_bytes = plan->layout.largest ? s->step->tensor[plan->layout.largest].bytes : 0;
    bti_arena arena;
    bti_arena_plan(&arena, plan->region, s->info);
    BT_TRY(check_tables(s->m, plan, &arena));
    count_bytes(plan, arena.total, runtime_of(s, &plan->caps));
    plan->fits = s->opt->budget == 0 || plan->total <= s->opt->budget;
    return predict(s, c, plan);
}

/* ---- what no choice changes -------------------------------------------------------------------
 */

/* Seconds of an update's end. Moments of the host are copied while pieces before and behind them
 * are stepped, so that the longer of the two counts; what is copied while backward still runs is
 * little. */
static double update_seconds(const bti_search *s) {
    int32_t first = bti_update_first_piece(s->update);
    double all = bti_program_seconds(s->update, &s->rates), steps = 0;
    double copies = 2 * (double)s->places.moments.host_bytes * s->rates.seconds[BTI_COST_HOST_BYTE];
    for (int32_t k = first; k < s->update->ops; k++)
        steps += bti_op_seconds(s->update, k, &s->rates);
    return copies > steps ? all - steps + copies : all;
}

static bt_status plan_update(bti_search *s, bti_run_plan *plan) {
    bti_update_step step = {.model = s->m, .places = &s->places, .heap = plan->heap};
    bti_layout layout;
    bti_layout_options o = bti_plan_layout(s, plan);
    BT_TRY(bti_model_emit_update(s->update, &step));
    BT_TRY(bti_layout_make(s->update, &o, &layout));
    s->update_bytes = layout.bytes;
    s->update_seconds = update_seconds(s);
    return BT_OK;
}

/* Compact gradients are exact, and faster too, as the optimiser reads less: taken wherever they may
 * be, even where updates touch every row, so that the order of sums does not hang on that. */
static void choose_compact(bti_search *s) {
    uint32_t sides = bti_model_may_compact(s->m);
    if (s->opt->force_compact >= 0) sides &= (uint32_t)s->opt->force_compact;
    for (int i = 0; i < 2; i++) {
        if (s->m->embed[i] < 0) continue;
        int64_t ids = s->w->max_distinct[i] ? s->w->max_distinct[i] : s->w->max_rows[i];
        int64_t rows = bti_max(1, bti_min(ids, s->m->vocab[i]));
        bti_params_compact(&s->m->params, s->m->embed[i], sides >> i & 1 ? rows : 0);
    }
    s->compact = sides;
}

/* Fixed regions: their places and bytes. */
static bt_status place_fixed(bti_search *s, int64_t max_length, bti_run_plan *plan) {
    bti_params *t = &s->m->params;
    uint64_t align = alignment(s);
    uint64_t begin = bti_max_u64(align, bti_moments_alignment(s->moments, t->dtype));
    plan->heap = s->info->max_alloc / begin * begin;
    choose_compact(s);
    plan->choices.compact = s->compact;
    BT_TRY(bti_params_place(t, begin, plan->heap));
    bti_moments_place(t, s->moments, align, plan->heap, &s->places.moments);
    plan->region[BTI_REGION_WEIGHTS] = t->bytes;
    plan->region[BTI_REGION_GRADIENTS] = t->grad_bytes;
    plan->region[BTI_REGION_MOMENT1] = s->places.moments.bytes;
    plan->region[BTI_REGION_MOMENT2] = s->places.moments.bytes;
    s->places.positions = 0;
    s->places.position_rows = bti_model_sinusoid_rows(s->m, max_length);
    uint64_t table =
        (uint64_t)(s->places.position_rows * s->m->cfg.d_model) * bti_dtype_size(t->dtype);
    s->places.scalars = bti_align_up(table, align);
    uint64_t at = s->places.scalars + bti_align_up(BT_SCALAR_COUNT * sizeof(double), align);
    for (int i = 0; i < 2; i++) {
        if (!(s->compact >> i & 1)) continue;
        s->places.index[i] = at;
        at += bti_align_up((uint64_t)t->param[s->m->embed[i]].grad_rows * sizeof(int32_t), align);
    }
    plan->region[BTI_REGION_CONSTANT] = at;
    return BT_OK;
}

static bt_status make_programs(bti_search *s, bti_run_plan *plan) {
    BT_TRY(bti_program_new("step", s->planning, s->info, &plan->step));
    BT_TRY(bti_program_new("update", s->planning, s->info, &plan->update));
    BT_TRY(bti_program_new("mean step", s->planning, s->info, &s->mean));
    if (s->opt->validation) BT_TRY(bti_program_new("losses", s->planning, s->info, &plan->losses));
    s->step = plan->step;
    s->update = plan->update;
    s->losses = plan->losses;
    return BT_OK;
}

/* The best plan with the moments kept one way. */
static bt_status search_one(const bti_search *all, bti_moments moments, int64_t max_length,
                            bti_run_plan **out) {
    bti_search s = *all;
    bti_run_plan *plan = bti_alloc(1, sizeof *plan);
    if (plan == NULL) return BT_ENOMEM;
    s.moments = moments;
    plan->budget = s.opt->budget;
    plan->choices.keep = s.keep = bti_alloc((size_t)s.m->layers, sizeof *s.keep);
    bt_status status = s.keep == NULL ? BT_ENOMEM : make_programs(&s, plan);
    if (status == BT_OK) status = place_fixed(&s, max_length, plan);
    if (status == BT_OK) status = plan_update(&s, plan);
    if (status == BT_OK) status = bti_plan_pick(&s, plan);
    bti_program_free(s.mean);
    if (status != BT_OK) {
        bti_run_plan_free(plan);
        return status;
    }
    *out = plan;
    return BT_OK;
}

/* With more memory it would do no less: nothing is gained by moving the moments out. */
static int has_plenty(const bti_run_plan *p) {
    const bti_choice *c = &p->choice;
    int keeps_all = c->rest == BTI_LEVEL_NONE && (c->level == BTI_LEVEL_NONE || c->layers == 0);
    return p->budget == 0 || (p->fits && keeps_all && c->parts == 1 && c->slice_rows == 0);
}

/* Host instead of device moments: where the run fits only so, or is faster by more than predictions
 * are good for. Either plan may be missing. */
static int take_host(const bti_run_plan *host, const bti_run_plan *device) {
    if (host == NULL || device == NULL) return device == NULL;
    if (host->fits != device->fits) return host->fits;
    return host->fits ? BTI_PLAN_NEARLY * host->seconds < device->seconds
                      : host->total < device->total;
}

/* A kept plan is tried first, as it was. */
static bt_status search_both(const bti_search *s, int64_t max_length, bti_run_plan **out) {
    const bti_choice *wanted = s->opt->wanted;
    bti_run_plan *plan[2] = {NULL, NULL}; /* moments on the device, in host memory */
    int first = wanted != NULL && wanted->moments == BTI_MOMENTS_HOST;
    bt_status a =
        search_one(s, first ? BTI_MOMENTS_HOST : BTI_MOMENTS_DEVICE, max_length, &plan[first]);
    if (a != BT_OK && a != BT_EFIT) return a;
    if (a == BT_OK && plan[first]->as_wanted) {
        *out = plan[first];
        return BT_OK;
    }
    bti_search other = *s;
    bti_plan_options least = *s->opt;
    least.budget = 1; /* with plenty only the minimum is of interest */
    if (a == BT_OK && !first && has_plenty(plan[0])) other.opt = &least;
    bt_status b = search_one(&other, first ? BTI_MOMENTS_DEVICE : BTI_MOMENTS_HOST, max_length,
                             &plan[!first]);
    if (b != BT_OK && (b != BT_EFIT || a != BT_OK)) {
        bti_run_plan_free(plan[first]);
        return b;
    }
    int host = take_host(plan[1], plan[0]);
    bti_run_plan *left = plan[!host];
    if (left != NULL && left->minimum < plan[host]->minimum) plan[host]->minimum = left->minimum;
    bti_run_plan_free(left);
    *out = plan[host];
    return BT_OK;
}

bt_status bti_plan_search(bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                          const bti_workload *w, int64_t max_length,
                          const bti_plan_options *options, bti_run_plan **out) {
    bti_search s = {.m = m, .w = w, .opt = options, .planning = planning, .info = info};
    bti_moments moments = options->moments;
    if (moments == BTI_MOMENTS_HOST && info->host_memory)
        return bti_fail(BT_EUSAGE,
                        "memory.optimizer_state: host is for devices with memory of their own: %s "
                        "computes in host memory, where moving the moments saves nothing; use "
                        "device, or 8bit to keep them in a quarter of the bytes",
                        info->name);
    bti_rates_default(info, &s.rates);
    if (options->rates != NULL) s.rates = *options->rates;
    if (moments == BTI_MOMENTS_AUTO && !info->host_memory) return search_both(&s, max_length, out);
    if (moments == BTI_MOMENTS_AUTO) moments = BTI_MOMENTS_DEVICE;
    return search_one(&s, moments, max_length, out);
}

bti_level bti_run_plan_level(const bti_run_plan *p, int32_t layer) {
    return layer < p->choice.layers ? p->choice.level : p->choice.rest;
}

void bti_run_plan_free(bti_run_plan *p) {
    if (p == NULL) return;
    bti_program_free(p->step);
    bti_program_free(p->update);
    bti_program_free(p->losses);
    bti_free(p->choices.keep);
    bti_free(p);
}

bt_status bti_run_plan_check(const bti_run_plan *p) {
    char budget[32], least[32], part[BTI_BYTES_KINDS][32];
    if (p->fits) return BT_OK;
    bti_format_bytes(p->budget, budget);
    bti_format_bytes(p->minimum, least);
    for (int i = 0; i < BTI_BYTES_KINDS; i++) bti_format_bytes(p->bytes[i], part[i]);
    return bti_fail(BT_EFIT,
                    "the run does not fit in %s: it needs at least %s (weights %s, gradients %s, "
                    "optimizer %s, smallest activations %s, logits %s, workspace %s, staging %s, "
                    "runtime %s)",
                    budget, least, part[BTI_BYTES_WEIGHTS], part[BTI_BYTES_GRADIENTS],
                    part[BTI_BYTES_OPTIMIZER], part[BTI_BYTES_ACTIVATIONS], part[BTI_BYTES_LOGITS],
                    part[BTI_BYTES_WORKSPACE], part[BTI_BYTES_STAGING], part[BTI_BYTES_RUNTIME]);
}
