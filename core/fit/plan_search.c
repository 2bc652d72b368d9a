/* The search: which of all choices fits and is fastest.
 *
 * A choice is a number of micro-batches; a level for the first n layers and a cheaper one for the
 * others, segments of k layers included; rows of a slice of feed-forward blocks; rows of a chunk of
 * the output layer. All mixtures are looked at by estimates (plan_mix.h); what promises most is
 * then emitted, laid out and counted in full. */
#include "core/fit/plan_search.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "core/fit/plan_mix.h"

/* Numbers of micro-batches that are tried, candidates that are held. */
enum { MOST_SETS = 96, HELD = 2048, SMALLEST = 8 };

typedef struct pick {
    bti_search *s;
    bti_mixer mixer;
    bti_set *sets;
    int count;
    bti_candidate *held;
    int32_t held_count;
    double best;   /* least seconds held */
    double margin; /* share of the budget that estimates may fill */
} pick;

/* ---- candidates --------------------------------------------------------------------------------
 */

/* Bytes that estimates of the dynamic region may reach. */
static int64_t limit_of(const pick *k, const bti_set *t) {
    uint64_t budget = k->s->opt->budget;
    if (budget == 0 || budget > INT64_MAX) return INT64_MAX;
    return (int64_t)((double)((int64_t)budget - t->others) * k->margin);
}

/* Within the same time the fewer micro-batches, then the fewer bytes. */
static int better(const bti_candidate *a, const bti_candidate *b) {
    if (a->choice.parts != b->choice.parts) return a->choice.parts < b->choice.parts;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->seconds < b->seconds;
}

static void drop_slow(pick *k) {
    int32_t n = 0;
    for (int32_t i = 0; i < k->held_count; i++)
        if (k->held[i].seconds <= BTI_PLAN_NEARLY * k->best) k->held[n++] = k->held[i];
    k->held_count = n;
}

static void hold(void *user, const bti_candidate *c) {
    pick *k = user;
    if (c->seconds > BTI_PLAN_NEARLY * k->best) return;
    if (c->seconds < k->best) k->best = c->seconds;
    if (k->held_count == HELD) drop_slow(k);
    if (k->held_count < HELD) {
        k->held[k->held_count++] = *c;
        return;
    }
    int32_t worst = 0;
    for (int32_t i = 1; i < HELD; i++)
        if (better(&k->held[worst], &k->held[i])) worst = i;
    if (better(c, &k->held[worst])) k->held[worst] = *c;
}

/* The SMALLEST smallest ones, in order; the faster first of equals. */
static void hold_small(void *user, const bti_candidate *c) {
    pick *k = user;
    int32_t at = k->held_count;
    while (at > 0 && (c->bytes < k->held[at - 1].bytes ||
                      (c->bytes == k->held[at - 1].bytes && c->seconds < k->held[at - 1].seconds)))
        at--;
    if (at == SMALLEST) return;
    if (k->held_count < SMALLEST) k->held_count++;
    memmove(&k->held[at + 1], &k->held[at], (size_t)(k->held_count - 1 - at) * sizeof *k->held);
    k->held[at] = *c;
}

/* ---- the smallest -----------------------------------------------------------------------------
 */

/* Segments of a given length are no profile: the choice is counted as it is. */
static int one_choice(const pick *k, bti_choice *out) {
    const bti_plan_options *o = k->s->opt;
    if (!bti_fixed_levels(k->s, out)) return 0;
    if (out->level != BTI_LEVEL_SEGMENTS &&
        !(o->force_rows[0] && o->force_rows[1] && o->force_logit_rows))
        return 0;
    out->parts = o->force_rows[0] || o->force_rows[1] ? 1 : k->s->w->max_sentences;
    out->slice_rows = o->force_slice_rows;
    out->logit_rows = o->force_logit_rows ? o->force_logit_rows : 1024;
    return 1;
}

/* The smallest plan: caps of one sentence. Estimates leave out what layout wastes, so they are
 * counted in order until the next one cannot be smaller. */
static bt_status find_smallest(pick *k, bti_run_plan *plan, bti_choice *smallest) {
    bti_set *t = &k->sets[0];
    bti_set_begin(&k->mixer, plan, k->s->w->max_sentences, t);
    BT_TRY(bti_set_fill(&k->mixer, t));
    k->held_count = 0;
    k->mixer.take = hold_small;
    k->mixer.limit = INT64_MAX;
    bti_set_offer(&k->mixer, t);
    /* No profile is usable: what a tensor is too large for is told by the count. */
    if (k->held_count == 0)
        k->held[k->held_count++].choice = (bti_choice){.parts = t->parts,
                                                       .level = BTI_LEVEL_LAYERS,
                                                       .layers = k->s->m->layers,
                                                       .logit_rows = t->chunk[t->chunks - 1],
                                                       .slice_rows = t->slice[t->slices - 1]};
    for (int32_t i = 0; i < k->held_count; i++) {
        const bti_candidate *c = &k->held[i];
        if (i > 0 && (uint64_t)(c->bytes + t->others) >= plan->minimum) break;
        BT_TRY(bti_plan_count(k->s, &c->choice, plan));
        if (i > 0 && plan->total >= plan->minimum) continue;
        plan->minimum = plan->total;
        *smallest = c->choice;
    }
    k->held_count = 0;
    return BT_OK;
}

/* ---- the fastest ------------------------------------------------------------------------------
 */

/* Candidates of all sets under the margin; few micro-batches first, so that most of the others are
 * seen to be slower at once. */
static bt_status collect(pick *k) {
    bti_choice fixed;
    int all = bti_fixed_levels(k->s, &fixed); /* few, and no bounds hold */
    k->held_count = 0;
    k->best = INFINITY;
    k->mixer.take = hold;
    for (int i = 0; i < k->count; i++) {
        bti_set *t = &k->sets[i];
        k->mixer.limit = limit_of(k, t);
        if (!all) {
            double seconds;
            int64_t bytes;
            BT_TRY(bti_set_bounds(&k->mixer, t, &seconds, &bytes));
            if (seconds > BTI_PLAN_NEARLY * k->best || bytes > k->mixer.limit) continue;
        }
        BT_TRY(bti_set_fill(&k->mixer, t));
        bti_set_offer(&k->mixer, t);
    }
    drop_slow(k);
    return BT_OK;
}

/* Counts held candidates, the best first, until one fits; what wastes tells how near to the budget
 * an estimate may come. */
static bt_status try_held(pick *k, bti_run_plan *plan) {
    for (int tries = 0; tries < 4 && k->held_count > 0; tries++) {
        int32_t best = 0;
        for (int32_t i = 1; i < k->held_count; i++)
            if (better(&k->held[i], &k->held[best])) best = i;
        bti_candidate c = k->held[best];
        bt_status status = bti_plan_count(k->s, &c.choice, plan);
        if (status != BT_OK && status != BT_EFIT) return status;
        if (status == BT_OK && plan->fits) return BT_OK;
        int32_t n = 0;
        for (int32_t i = 0; i < k->held_count; i++)
            if (i != best && k->held[i].bytes < c.bytes) k->held[n++] = k->held[i];
        k->held_count = n;
    }
    plan->fits = 0;
    return BT_OK;
}

/* A micro-batch so large that row numbers pass 32 bits, or that the layer's input alone does not
 * fit: nothing of it is emitted, its loops might be as long as the text. */
static int hopeless(const pick *k, const bti_run_plan *plan, const bti_shape *caps) {
    uint64_t budget = k->s->opt->budget;
    if (caps->rows[0] > INT32_MAX || caps->rows[1] > INT32_MAX) return 1;
    uint64_t rows = (uint64_t)(caps->rows[0] > caps->rows[1] ? caps->rows[0] : caps->rows[1]);
    uint64_t bytes = rows * (uint64_t)k->s->m->cfg.d_model * bti_dtype_size(k->s->m->params.dtype);
    return budget > 0 && bytes + bti_plan_others(k->s, plan, caps) > budget;
}

static bt_status find_fastest(pick *k, bti_run_plan *plan) {
    static const double margin[] = {1, 0.995, 0.985, 0.97, 0.94, 0.9, 0.8, 0.65};
    const bti_plan_options *o = k->s->opt;
    int64_t n = k->s->w->max_sentences;
    plan->fits = 0;
    k->count = 0;
    if (o->force_rows[0] || o->force_rows[1]) n = 1;
    for (int64_t parts = 1, next; parts <= n && k->count < MOST_SETS; parts = next) {
        next = parts + (parts < 8 ? 1 : parts / 5);
        if (next > n && parts < n) next = n;
        bti_shape caps = bti_plan_caps(k->s, parts);
        if (!hopeless(k, plan, &caps)) bti_set_begin(&k->mixer, plan, parts, &k->sets[k->count++]);
    }
    for (size_t i = 0; i < sizeof margin / sizeof margin[0] && !plan->fits; i++) {
        k->margin = margin[i];
        BT_TRY(collect(k));
        BT_TRY(try_held(k, plan));
        if (o->budget == 0) break;
    }
    return BT_OK;
}

/* A choice from a file that no search offers: hopeless, or in pieces so small that its loops are as
 * long as the text. */
static int is_odd(const pick *k, const bti_run_plan *plan, const bti_choice *c) {
    enum { MOST_SLICES = 256, SMALL_CHUNK = 32 }; /* smaller ones: of a single sentence */
    bti_shape caps = bti_choice_caps(k->s, c);
    int64_t rows = caps.rows[0] > caps.rows[1] ? caps.rows[0] : caps.rows[1];
    return hopeless(k, plan, &caps) ||
           (c->slice_rows > 0 && c->slice_rows < (rows + MOST_SLICES - 1) / MOST_SLICES) ||
           (c->logit_rows < SMALL_CHUNK && caps.rows[1] > k->s->w->longest[1]);
}

/* ---- all --------------------------------------------------------------------------------------
 */

static bt_status pick_all(pick *k, bti_run_plan *plan) {
    bti_choice smallest;
    k->margin = 1;
    if (one_choice(k, &smallest)) {
        BT_TRY(bti_plan_count(k->s, &smallest, plan));
        plan->minimum = plan->total;
        plan->as_wanted = k->s->opt->wanted != NULL && plan->fits;
        return BT_OK;
    }
    if (k->s->opt->wanted != NULL && !is_odd(k, plan, k->s->opt->wanted)) {
        bt_status status = bti_plan_count(k->s, k->s->opt->wanted, plan);
        plan->minimum = plan->total;
        plan->as_wanted = status == BT_OK && plan->fits;
        if (plan->as_wanted) return BT_OK;
        if (status != BT_OK && status != BT_EFIT) return status;
    }
    BT_TRY(find_smallest(k, plan, &smallest));
    if (k->s->opt->budget && plan->minimum > k->s->opt->budget)
        return bti_plan_count(k->s, &smallest, plan);
    BT_TRY(find_fastest(k, plan));
    return plan->fits ? BT_OK : bti_plan_count(k->s, &smallest, plan);
}

bt_status bti_plan_pick(bti_search *s, bti_run_plan *plan) {
    pick k = {.s = s, .mixer = {.s = s}};
    k.mixer.user = &k;
    bti_layout_options layout = bti_plan_layout(s, plan);
    k.sets = bti_alloc(MOST_SETS, sizeof *k.sets);
    k.held = bti_alloc(HELD, sizeof *k.held);
    bt_status status = k.sets == NULL || k.held == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK)
        status = bti_prober_new(s->m, s->planning, s->info, &s->rates, &layout, &k.mixer.prober);
    if (status == BT_OK) status = pick_all(&k, plan);
    bti_prober_free(k.mixer.prober);
    bti_free(k.held);
    bti_free(k.sets);
    return status;
}
