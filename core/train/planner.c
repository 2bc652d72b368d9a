#include "core/train/planner.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"

const char *const bti_byte_kind_name[BTI_BYTES_KINDS] = {"weights",     "gradients", "optimizer",
                                                         "activations", "logits",    "workspace",
                                                         "staging",     "decode",    "runtime"};

int64_t bti_split_next(const bti_shape *caps, const int64_t (*counts)[2], int64_t from, int64_t n) {
    int64_t rows[2] = {0, 0}, i = from;
    for (; i < n && i - from < caps->sentences; i++) {
        int64_t a = rows[0] + counts[i][0], b = rows[1] + counts[i][1];
        if (i > from && (a > caps->rows[0] || b > caps->rows[1])) break;
        rows[0] = a;
        rows[1] = b;
    }
    return i - from;
}

/* ---- one candidate -----------------------------------------------------------------------------
 */

typedef struct candidate {
    int64_t parts; /* micro-batches that the largest update is cut into */
    int32_t recompute_layers;
    int64_t logit_rows;
} candidate;

typedef struct search {
    bti_model *m;
    const bti_workload *w;
    const bti_plan_options *opt;
    const bt_dev_info *info;
    bti_places places;
    bti_program *step, *mean, *update;
    uint32_t *keep;
    uint64_t update_bytes;
    int exact; /* what does not fit is laid out all the same */
    double update_seconds;
} search;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t align_up(uint64_t x, uint64_t a) { return a ? (x + a - 1) / a * a : x; }

/* Caps for `parts` micro-batches of the largest update. Sentences are not cut, so a part gets room
 * for half a mean sentence more than its share, and never less than the longest one: with as many
 * parts as sentences just that. */
static bti_shape caps_of(const search *s, int64_t parts) {
    const bti_workload *w = s->w;
    bti_shape c = {.sentences = w->max_sentences};
    for (int i = 0; i < 2; i++) {
        int64_t share = (w->max_rows[i] + parts - 1) / parts;
        if (parts > 1) share += (int64_t)(w->mean_rows[i] / w->mean_sentences / 2);
        if (parts >= w->max_sentences) share = 0;
        c.rows[i] = min64(max64(share, w->longest[i]), max64(w->max_rows[i], w->longest[i]));
        if (s->opt->force_rows[i]) c.rows[i] = max64(s->opt->force_rows[i], w->longest[i]);
        c.distinct[i] = min64(c.rows[i], s->m->vocab[i]);
        c.longest[i] = w->longest[i];
    }
    c.sentences = min64(c.sentences, max64(1, min64(c.rows[0], c.rows[1])));
    return c;
}

/* A mean micro-batch under these caps. Gives how many of them make a mean update. */
static double mean_of(const search *s, const bti_shape *caps, bti_shape *out) {
    const bti_workload *w = s->w;
    double parts = 1;
    for (int i = 0; i < 2; i++) parts = fmax(parts, w->mean_rows[i] / (double)caps->rows[i]);
    if (parts > 1) parts = ceil(parts * 1.02);
    *out = *caps;
    out->sentences = max64(1, (int64_t)(w->mean_sentences / parts));
    for (int i = 0; i < 2; i++) {
        out->rows[i] = max64(1, min64(caps->rows[i], (int64_t)(w->mean_rows[i] / parts)));
        out->distinct[i] = min64(out->rows[i], caps->distinct[i]);
    }
    for (int i = 0; i < 3; i++) out->pairs[i] = w->mean_pairs[i] * (double)out->sentences;
    return parts;
}

static void set_keep(search *s, int32_t recompute_layers) {
    for (int32_t i = 0; i < s->m->layers; i++)
        s->keep[i] = i < recompute_layers ? BTI_KEEP_INPUT : BTI_KEEP_ALL;
}

static bt_status emit(search *s, bti_program *p, const bti_shape *shape, int64_t logit_rows,
                      int training) {
    bti_step step = {.model = s->m,
                     .places = &s->places,
                     .shape = *shape,
                     .choices = {s->keep, logit_rows},
                     .training = training,
                     .first_micro_batch = 1,
                     .grad_scale = 1};
    bti_train_program unused;
    return bti_model_emit_step(p, &step, &unused);
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

/* Tables are read as a whole, so each region of them must lie in one heap. */
static bt_status check_tables(const bti_run_plan *plan, const bti_arena *arena) {
    static const bti_region region[] = {BTI_REGION_CONSTANT, BTI_REGION_STAGING};
    static const char *const name[] = {"the position table needs", "integer tables need"};
    for (int i = 0; i < 2; i++)
        if (arena->heap_limit && plan->region[region[i]] > arena->heap_limit)
            return bti_fail(BT_EFIT,
                            "%s %llu bytes, more than the device gives in one allocation (%llu)",
                            name[i], (unsigned long long)plan->region[region[i]],
                            (unsigned long long)arena->heap_limit);
    return BT_OK;
}

/* Bytes that a dynamic region may have within the budget; 0: no limit. */
static uint64_t dynamic_limit(const search *s, const bti_run_plan *plan) {
    uint64_t others = s->opt->runtime;
    if (s->opt->budget == 0 || s->exact) return 0;
    for (int r = 0; r < BTI_REGION_DYNAMIC; r++) others += plan->region[r];
    return s->opt->budget > others ? s->opt->budget - others : 1;
}

/* Emits, lays out and counts one candidate into `plan` (its programs excepted). BT_EFIT when a
 * tensor is larger than a heap. */
static bt_status count_candidate(search *s, const candidate *c, bti_run_plan *plan) {
    uint64_t align = s->info->alignment ? s->info->alignment : 1;
    plan->caps = caps_of(s, c->parts);
    plan->recompute_layers = c->recompute_layers;
    plan->choices.logit_rows = min64(c->logit_rows, plan->caps.rows[1]);
    plan->micro_batches = c->parts;
    set_keep(s, c->recompute_layers);
    bti_staging_plan(s->m, &plan->caps, align, &s->places.staging);
    BT_TRY(emit(s, s->step, &plan->caps, plan->choices.logit_rows, 1));
    plan->places = s->places;
    plan->decode_staging = 2 * s->places.staging.bytes;
    plan->region[BTI_REGION_STAGING] = plan->decode_staging + s->opt->decode_staging;
    bti_layout_options layout = {.alignment = align,
                                 .heap = plan->heap,
                                 .guard = s->opt->guard,
                                 .most = dynamic_limit(s, plan)};
    BT_TRY(bti_layout_make(s->step, &layout, &plan->layout));
    uint64_t train = max_u64(plan->layout.bytes, s->update_bytes);
    plan->region[BTI_REGION_DYNAMIC] = max_u64(train, s->opt->decode_dynamic);
    plan->bytes[BTI_BYTES_DECODE] =
        plan->region[BTI_REGION_DYNAMIC] - train + s->opt->decode_staging;
    plan->largest = plan->layout.largest ? s->step->tensor[plan->layout.largest].name : "";
    plan->largest_bytes = plan->layout.largest ? s->step->tensor[plan->layout.largest].bytes : 0;
    bti_arena arena;
    bti_arena_plan(&arena, plan->region, s->info);
    BT_TRY(check_tables(plan, &arena));
    count_bytes(plan, arena.total, s->opt->runtime);
    plan->fits = s->opt->budget == 0 || plan->total <= s->opt->budget;
    return BT_OK;
}

/* A candidate that the device has no allocation for does not fit: its total is UINT64_MAX. */
static bt_status evaluate(search *s, const candidate *c, bti_run_plan *plan) {
    bt_status status = count_candidate(s, c, plan);
    if (status != BT_EFIT) return status;
    plan->fits = 0;
    plan->total = UINT64_MAX;
    return BT_OK;
}

/* Predicted seconds of a mean update under the plan's caps. */
static bt_status predict(search *s, bti_run_plan *plan) {
    bti_shape mean;
    double parts = mean_of(s, &plan->caps, &mean);
    set_keep(s, plan->recompute_layers);
    BT_TRY(emit(s, s->mean, &mean, min64(plan->choices.logit_rows, mean.rows[1]), 1));
    plan->seconds = parts * bti_program_seconds(s->mean) + s->update_seconds;
    return BT_OK;
}

/* ---- the search --------------------------------------------------------------------------------
 */

/* Chunk rows from large to small. Above 1,024 rows a chunk's products are as fast as they get; the
 * last few are for what fits in no other way, one sentence a micro-batch. */
static const int64_t chunks[] = {1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1};
#define CHUNKS ((int)(sizeof chunks / sizeof chunks[0]))
#define CHUNKS_ANY 6

static int64_t chunk_at(const search *s, int i) {
    return s->opt->force_logit_rows ? s->opt->force_logit_rows : chunks[i];
}

static void recompute_range(const search *s, int32_t *least, int32_t *most) {
    *least = 0;
    *most = s->m->layers;
    if (s->opt->recompute == BTI_RECOMPUTE_NONE) *most = 0;
    if (s->opt->recompute == BTI_RECOMPUTE_LAYERS) *least = s->m->layers;
    if (s->opt->force_recompute_layers >= 0) *least = *most = s->opt->force_recompute_layers;
}

static int better(const bti_run_plan *a, const bti_run_plan *b) {
    if (!a->fits) return 0;
    if (!b->fits) return 1;
    if (a->seconds < 0.99 * b->seconds) return 1;
    return a->seconds <= 1.01 * b->seconds && a->total < b->total;
}

/* The fewest recomputed layers with which candidate c fits; whether any does. Bytes fall with each
 * layer that is recomputed, until what a recomputed layer needs while it is made again is the most:
 * then the last one, whose backward follows at once, only adds its input. */
static bt_status fewest_layers(search *s, candidate *c, int32_t least, int32_t most,
                               bti_run_plan *plan) {
    int32_t low = least, high = most;
    for (int i = 0; i < 2 && high >= least; i++) {
        c->recompute_layers = high;
        BT_TRY(evaluate(s, c, plan));
        if (plan->fits) break;
        high--;
    }
    if (!plan->fits) return BT_OK;
    while (low < high) { /* `high` fits */
        c->recompute_layers = low + (high - low) / 2;
        BT_TRY(evaluate(s, c, plan));
        if (plan->fits)
            high = c->recompute_layers;
        else
            low = c->recompute_layers + 1;
    }
    c->recompute_layers = high;
    return evaluate(s, c, plan);
}

/* The fastest plan of `parts` micro-batches: for each chunk from the largest the fewest recomputed
 * layers; a smaller chunk cannot help once nothing is recomputed. */
static bt_status fit_parts(search *s, int64_t parts, bti_run_plan *plan) {
    int32_t least, most;
    int last_chunk = parts >= s->w->max_sentences ? CHUNKS : CHUNKS_ANY;
    bti_run_plan best = *plan;
    best.fits = 0;
    recompute_range(s, &least, &most);
    for (int i = 0; i < last_chunk; i++) {
        candidate c = {parts, most, chunk_at(s, i)};
        if (i + 1 < last_chunk && chunk_at(s, i + 1) >= caps_of(s, parts).rows[1]) continue;
        if (i >= CHUNKS_ANY && best.fits) break;
        BT_TRY(fewest_layers(s, &c, least, most, plan));
        if (!plan->fits) continue;
        BT_TRY(predict(s, plan));
        if (better(plan, &best)) best = *plan;
        if (plan->recompute_layers == least) break;
    }
    *plan = best;
    return BT_OK;
}

/* The smallest plan: one sentence a micro-batch, the smallest chunk, and as many recomputed layers
 * as give the fewest bytes, which fall and then rise with their number. */
static bt_status find_smallest(search *s, bti_run_plan *plan) {
    int32_t low, high;
    recompute_range(s, &low, &high);
    candidate c = {s->w->max_sentences, 0, chunk_at(s, CHUNKS - 1)};
    s->exact = 1;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        c.recompute_layers = middle;
        BT_TRY(evaluate(s, &c, plan));
        uint64_t bytes = plan->total;
        c.recompute_layers = middle + 1;
        BT_TRY(evaluate(s, &c, plan));
        if (plan->total <= bytes)
            low = middle + 1;
        else
            high = middle;
    }
    c.recompute_layers = low;
    BT_TRY(count_candidate(s, &c, plan));
    s->exact = 0;
    return predict(s, plan);
}

static bt_status search_all(search *s, bti_run_plan *plan) {
    bti_run_plan best = *plan, trial = *plan;
    int64_t n = s->w->max_sentences;
    int32_t least, most;
    recompute_range(s, &least, &most);
    BT_TRY(find_smallest(s, &best));
    plan->minimum = best.total;
    int forced = s->opt->force_rows[0] || s->opt->force_rows[1];
    for (int64_t parts = 1, next; best.fits && parts <= n; parts = next) {
        next = parts + (parts < 4 ? 1 : parts / 2);
        if (next > n && parts < n) next = n;
        BT_TRY(fit_parts(s, parts, &trial));
        if (better(&trial, &best)) best = trial;
        /* More micro-batches only cost time once nothing needs recomputing. */
        if (forced || (trial.fits && trial.recompute_layers == least &&
                       trial.choices.logit_rows == min64(chunk_at(s, 0), trial.caps.rows[1])))
            break;
    }
    uint64_t minimum = plan->minimum;
    *plan = best;
    plan->minimum = minimum;
    return BT_OK;
}

static bt_status plan_update(search *s, bti_run_plan *plan) {
    bti_update_step step = {.model = s->m, .places = &s->places, .heap = plan->heap};
    bti_layout layout;
    bti_layout_options o = {.alignment = s->info->alignment ? s->info->alignment : 1,
                            .heap = plan->heap,
                            .guard = s->opt->guard};
    BT_TRY(bti_model_emit_update(s->update, &step));
    BT_TRY(bti_layout_make(s->update, &o, &layout));
    s->update_bytes = layout.bytes;
    s->update_seconds = bti_program_seconds(s->update);
    return BT_OK;
}

/* Fixed regions: their places and bytes. */
static bt_status place_fixed(search *s, int64_t max_length, bti_run_plan *plan) {
    bti_params *t = &s->m->params;
    uint64_t align = s->info->alignment ? s->info->alignment : 1;
    plan->heap = s->info->max_alloc / align * align;
    BT_TRY(bti_params_place(t, align, plan->heap));
    plan->region[BTI_REGION_WEIGHTS] = t->bytes;
    for (int r = BTI_REGION_GRADIENTS; r <= BTI_REGION_MOMENT2; r++) plan->region[r] = t->trained;
    s->places.positions = 0;
    s->places.position_rows = bti_model_sinusoid_rows(s->m, max_length);
    uint64_t table =
        (uint64_t)(s->places.position_rows * s->m->cfg.d_model) * bti_dtype_size(t->dtype);
    s->places.scalars = align_up(table, align);
    plan->region[BTI_REGION_CONSTANT] =
        s->places.scalars + align_up(BT_SCALAR_COUNT * sizeof(double), align);
    return BT_OK;
}

/* The program of validation losses at the caps. It keeps nothing for backward, so it needs no more
 * than the step; should it, the region grows. */
static bt_status plan_losses(search *s, bti_run_plan *plan) {
    bti_layout layout;
    bti_layout_options o = {.alignment = s->info->alignment ? s->info->alignment : 1,
                            .heap = plan->heap,
                            .guard = s->opt->guard};
    BT_TRY(emit(s, plan->losses, &plan->caps, plan->choices.logit_rows, 0));
    BT_TRY(bti_layout_make(plan->losses, &o, &layout));
    if (layout.bytes <= plan->region[BTI_REGION_DYNAMIC]) return BT_OK;
    plan->region[BTI_REGION_DYNAMIC] = layout.bytes;
    bti_arena arena;
    bti_arena_plan(&arena, plan->region, s->info);
    count_bytes(plan, arena.total, s->opt->runtime);
    plan->fits = s->opt->budget == 0 || plan->total <= s->opt->budget;
    return BT_OK;
}

bt_status bti_plan_search(bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                          const bti_workload *w, int64_t max_length,
                          const bti_plan_options *options, bti_run_plan **out) {
    search s = {.m = m, .w = w, .opt = options, .info = info};
    bti_run_plan *plan = bti_alloc(1, sizeof *plan);
    bt_status status = BT_ENOMEM;
    if (plan == NULL) goto fail;
    plan->budget = options->budget;
    plan->choices.keep = s.keep = bti_alloc((size_t)m->layers, sizeof *s.keep);
    if (s.keep == NULL) goto fail;
    if ((status = bti_program_new("step", planning, info, &plan->step)) != BT_OK) goto fail;
    if ((status = bti_program_new("update", planning, info, &plan->update)) != BT_OK) goto fail;
    if ((status = bti_program_new("mean step", planning, info, &s.mean)) != BT_OK) goto fail;
    if (options->validation &&
        (status = bti_program_new("losses", planning, info, &plan->losses)) != BT_OK)
        goto fail;
    s.step = plan->step;
    s.update = plan->update;
    if ((status = place_fixed(&s, max_length, plan)) != BT_OK) goto fail;
    if ((status = plan_update(&s, plan)) != BT_OK) goto fail;
    if ((status = search_all(&s, plan)) != BT_OK) goto fail;
    /* The programs hold the last candidate: emit the chosen one again. */
    candidate chosen = {plan->micro_batches, plan->recompute_layers, plan->choices.logit_rows};
    double seconds = plan->seconds;
    s.exact = 1;
    if ((status = evaluate(&s, &chosen, plan)) != BT_OK) goto fail;
    plan->seconds = seconds;
    if (options->validation && (status = plan_losses(&s, plan)) != BT_OK) goto fail;
    bti_program_free(s.mean);
    *out = plan;
    return BT_OK;
fail:
    bti_program_free(s.mean);
    bti_run_plan_free(plan);
    return status;
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
