/* The search: which of all choices fits and is fastest.
 *
 * A choice is a number of micro-batches; a level for the first n layers and a cheaper one for the
 * others, segments of k layers included; rows of a slice of feed-forward blocks; rows of a chunk of
 * the output layer. For each number of micro-batches short programs tell what a layer keeps, adds
 * and takes at each level and slice (plan_profile.h), and what each chunk does; bytes and seconds
 * of every mixture are sums of these, so that all mixtures are looked at. What promises most is
 * then emitted, laid out and counted in full. */
#include "core/train/plan_search.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"
#include "core/train/plan_profile.h"

/* Chunk rows from large to small. Above 1,024 rows a chunk's products are as fast as they get; the
 * last few are for what fits in no other way, one sentence a micro-batch. */
static const int64_t chunk_rows[] = {1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1};
enum { CHUNKS = 11, CHUNKS_ANY = 6 };
static const int32_t segment_layers[] = {2, 3, 4, 6};
enum { SEGMENTS = 4, MIXED = BTI_LEVEL_SEGMENTS, SLICES = 5 };
/* Numbers of micro-batches that are tried, candidates that are held. */
enum { MOST_SETS = 48, HELD = 2048, SMALLEST = 8 };
#define NEARLY 1.01 /* times within it are alike */

typedef struct candidate {
    bti_choice choice;
    int64_t bytes; /* of the dynamic region */
    double seconds;
} candidate;

/* Profiles for one number of micro-batches; filled when they are asked for. */
typedef struct set {
    int64_t parts;
    bti_shape caps, mean;
    double mean_parts;
    double saved;   /* seconds that the first micro-batch saves by overwriting gradients */
    int64_t others; /* bytes outside the dynamic region */
    int64_t slice[SLICES], chunk[CHUNKS];
    int slices, chunks;
    bti_profile at[MIXED][SLICES], segments[SEGMENTS][SLICES], output[CHUNKS];
    bti_profile edge[SLICES]; /* of NONE above a layer of another level */
} set;

typedef struct pick {
    bti_search *s;
    bti_prober *prober;
    set *sets;
    int count;
    candidate *held;
    int32_t held_count;
    double best;   /* least seconds held */
    double margin; /* share of the budget that estimates may fill */
} pick;

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- profiles ---------------------------------------------------------------------------------
 */

static bt_status probe(pick *k, set *t, const bti_probe *how, bti_profile *out) {
    if (out->kept != NULL) return BT_OK;
    bti_probe p = *how;
    p.caps = t->caps;
    p.mean = t->mean;
    p.places = &k->s->places;
    p.compact = k->s->compact;
    p.accumulates = t->mean_parts > 1 && !how->first;
    return bti_prober_run(k->prober, &p, out);
}

static bt_status probe_level(pick *k, set *t, int level, int slice) {
    return probe(k, t,
                 &(bti_probe){.level = (bti_level)level,
                              .slice_rows = t->slice[slice],
                              .logit_rows = t->chunk[0]},
                 &t->at[level][slice]);
}

static bt_status probe_edge(pick *k, set *t, int slice) {
    return probe(k, t,
                 &(bti_probe){.edges = 1, .slice_rows = t->slice[slice], .logit_rows = t->chunk[0]},
                 &t->edge[slice]);
}

static double seconds_of(const bti_model *m, const bti_profile *p) {
    double sum = p->outside_seconds;
    for (int32_t i = 0; i < m->layers; i++) sum += p->seconds[i];
    return sum;
}

/* The profiles are of a micro-batch that adds to gradients, unless there is one only. */
static bt_status probe_first(pick *k, set *t) {
    bti_profile first = {0};
    if (t->mean_parts <= 1 || t->saved != 0) return BT_OK;
    BT_TRY(probe_level(k, t, BTI_LEVEL_NONE, 0));
    BT_TRY(probe(k, t,
                 &(bti_probe){.first = 1, .slice_rows = t->slice[0], .logit_rows = t->chunk[0]},
                 &first));
    t->saved = seconds_of(k->s->m, &t->at[0][0]) - seconds_of(k->s->m, &first);
    return BT_OK;
}

static bt_status probe_segments(pick *k, set *t, int i, int slice) {
    return probe(k, t,
                 &(bti_probe){.level = BTI_LEVEL_SEGMENTS,
                              .segment = segment_layers[i],
                              .slice_rows = t->slice[slice],
                              .logit_rows = t->chunk[0]},
                 &t->segments[i][slice]);
}

/* Above the stacks: what is live there with the norm of the last layer made again. */
static bt_status probe_chunk(pick *k, set *t, int i) {
    return probe(k, t, &(bti_probe){.level = BTI_LEVEL_LAYERS, .logit_rows = t->chunk[i]},
                 &t->output[i]);
}

/* Slices and chunks for these caps. A slice is a half to a sixteenth of all rows: smaller ones save
 * little more and cost time. */
static void list_rows(const pick *k, set *t) {
    const bti_plan_options *o = k->s->opt;
    int64_t rows = max64(t->caps.rows[0], t->caps.rows[1]), target = t->caps.rows[1];
    int last = t->parts >= k->s->w->max_sentences ? CHUNKS : CHUNKS_ANY;
    t->slice[t->slices++] = o->force_slice_rows;
    for (int64_t i = 2; o->force_slice_rows == 0 && o->force_recompute_layers < 0 && i <= 16;
         i *= 2) {
        int64_t n = (rows + i - 1) / i;
        if (n < rows && n != t->slice[t->slices - 1]) t->slice[t->slices++] = n;
    }
    if (o->force_logit_rows) {
        t->chunk[t->chunks++] = o->force_logit_rows;
        return;
    }
    for (int i = 0; i < last; i++)
        if (i + 1 == last || chunk_rows[i + 1] < target) t->chunk[t->chunks++] = chunk_rows[i];
}

static set *add_set(pick *k, const bti_run_plan *plan, int64_t parts) {
    set *t = &k->sets[k->count++];
    memset(t, 0, sizeof *t);
    t->parts = parts;
    t->caps = bti_plan_caps(k->s, parts);
    t->mean_parts = bti_plan_mean(k->s, &t->caps, &t->mean);
    t->others = (int64_t)bti_plan_others(k->s, plan, &t->caps);
    list_rows(k, t);
    return t;
}

/* ---- mixtures ---------------------------------------------------------------------------------
 */

/* Layers 0 .. layers-1 by profile a, the last of them by `tail` where it is given; the others by b,
 * the first of them by `edge` where that is given. */
typedef struct mixture {
    const bti_profile *a, *tail, *edge, *b;
    int32_t layers;
} mixture;

typedef struct sum {
    int64_t kept, peak; /* bytes of all layers, most while they or what lies below work */
    double seconds;
} sum;

static sum add_up(const bti_model *m, const mixture *x) {
    sum s = {0, max64(x->a->outside[BTI_BELOW], x->b->outside[BTI_BELOW]), 0};
    int64_t between = max64(x->a->outside[BTI_BETWEEN], x->b->outside[BTI_BETWEEN]);
    for (int32_t i = 0; i < m->layers; i++) {
        const bti_profile *p = i < x->layers ? x->a : x->b, *peak = p;
        if (i + 1 == x->layers && x->tail != NULL) p = peak = x->tail;
        if (i == x->layers && i > 0 && x->edge != NULL) peak = x->edge;
        s.peak = max64(s.peak, s.kept + peak->peak[i]);
        s.kept += p->kept[i];
        s.seconds += p->seconds[i];
        if (i + 1 == m->cfg.encoder_layers) s.peak = max64(s.peak, s.kept + between);
    }
    return s;
}

static int64_t floor_of(const pick *k) {
    return (int64_t)(k->s->update_bytes > k->s->opt->decode_dynamic ? k->s->update_bytes
                                                                    : k->s->opt->decode_dynamic);
}

/* Bytes that estimates of the dynamic region may reach. */
static int64_t limit_of(const pick *k, const set *t) {
    uint64_t budget = k->s->opt->budget;
    if (budget == 0 || budget > INT64_MAX) return INT64_MAX;
    return (int64_t)((double)((int64_t)budget - t->others) * k->margin);
}

/* Within the same time the fewer micro-batches, then the fewer bytes. */
static int better(const candidate *a, const candidate *b) {
    if (a->choice.parts != b->choice.parts) return a->choice.parts < b->choice.parts;
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->seconds < b->seconds;
}

static void drop_slow(pick *k) {
    int32_t n = 0;
    for (int32_t i = 0; i < k->held_count; i++)
        if (k->held[i].seconds <= NEARLY * k->best) k->held[n++] = k->held[i];
    k->held_count = n;
}

static void hold(pick *k, const candidate *c) {
    if (c->seconds > NEARLY * k->best) return;
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
static void hold_small(pick *k, const candidate *c) {
    int32_t at = k->held_count;
    while (at > 0 && (c->bytes < k->held[at - 1].bytes ||
                      (c->bytes == k->held[at - 1].bytes && c->seconds < k->held[at - 1].seconds)))
        at--;
    if (at == SMALLEST) return;
    if (k->held_count < SMALLEST) k->held_count++;
    memmove(&k->held[at + 1], &k->held[at], (size_t)(k->held_count - 1 - at) * sizeof *k->held);
    k->held[at] = *c;
}

typedef void (*hold_fn)(pick *k, const candidate *c);

/* Every chunk for a mixture. */
static void offer(pick *k, const set *t, const bti_choice *choice, const mixture *x,
                  hold_fn hold_it) {
    if (!x->a->usable || !x->b->usable) return;
    sum s = add_up(k->s->m, x);
    int64_t limit = limit_of(k, t), least = max64(s.peak, floor_of(k));
    if (hold_it == hold && least > limit) return;
    for (int i = 0; i < t->chunks; i++) {
        const bti_profile *o = &t->output[i];
        candidate c = {*choice, max64(least, s.kept + o->outside[BTI_ABOVE]),
                       t->mean_parts * (s.seconds + o->outside_seconds) - t->saved +
                           k->s->update_seconds};
        c.choice.logit_rows = t->chunk[i];
        if (!o->usable || (hold_it == hold && c.bytes > limit)) continue;
        hold_it(k, &c);
    }
}

/* A stretch of segments may end before layer n: at the end of one or of a stack, or with one layer
 * more, which is on level LAYERS then. */
static int may_end(const bti_model *m, int32_t n, int32_t segment, int *tail) {
    int32_t encoder = (int32_t)m->cfg.encoder_layers;
    *tail = 0;
    if (n == encoder || n == m->layers) return 1;
    int32_t more = (n < encoder ? n : n - encoder) % segment;
    *tail = more == 1;
    return more <= 1;
}

static void offer_level(pick *k, const set *t, int slice, int level, int rest, hold_fn hold_it) {
    const bti_model *m = k->s->m;
    mixture x = {.a = &t->at[level][slice], .b = &t->at[rest][slice]};
    if (rest == BTI_LEVEL_NONE) x.edge = &t->edge[slice];
    bti_choice c = {.parts = t->parts,
                    .level = (bti_level)level,
                    .rest = (bti_level)rest,
                    .slice_rows = t->slice[slice]};
    for (c.layers = 1; c.layers <= m->layers; c.layers++) {
        x.layers = c.layers;
        if (c.layers < m->layers || rest == 0) offer(k, t, &c, &x, hold_it);
    }
}

static void offer_segments(pick *k, const set *t, int slice, int i, int rest, hold_fn hold_it) {
    const bti_model *m = k->s->m;
    if (t->segments[i][slice].kept == NULL) return;
    mixture x = {.a = &t->segments[i][slice], .b = &t->at[rest][slice]};
    if (rest == BTI_LEVEL_NONE) x.edge = &t->edge[slice];
    bti_choice c = {.parts = t->parts,
                    .level = BTI_LEVEL_SEGMENTS,
                    .rest = (bti_level)rest,
                    .segment = segment_layers[i],
                    .slice_rows = t->slice[slice]};
    for (c.layers = 1; c.layers <= m->layers; c.layers++) {
        int tail;
        if (!may_end(m, c.layers, c.segment, &tail) || (c.layers == m->layers && rest != 0))
            continue;
        x.layers = c.layers;
        x.tail = tail ? &t->at[BTI_LEVEL_LAYERS][slice] : NULL;
        offer(k, t, &c, &x, hold_it);
    }
}

/* One level for a number of layers that options fix. */
static void offer_fixed(pick *k, const set *t, const bti_choice *fixed, hold_fn hold_it) {
    for (int slice = 0; slice < t->slices; slice++) {
        mixture x = {.a = &t->at[fixed->level][slice],
                     .b = &t->at[fixed->rest][slice],
                     .layers = fixed->layers};
        if (fixed->rest == BTI_LEVEL_NONE) x.edge = &t->edge[slice];
        bti_choice c = *fixed;
        c.parts = t->parts;
        c.slice_rows = t->slice[slice];
        offer(k, t, &c, &x, hold_it);
    }
}

/* ---- what options allow -----------------------------------------------------------------------
 */

/* Whether options fix levels and layers, and which. */
static int fixed_levels(const pick *k, bti_choice *out) {
    const bti_plan_options *o = k->s->opt;
    *out = (bti_choice){.level = BTI_LEVEL_LAYERS};
    if (o->force_recompute_layers >= 0) {
        out->layers = (int32_t)min64(o->force_recompute_layers, k->s->m->layers);
        if (o->force_level) out->level = o->force_level;
        out->rest = o->force_rest;
        out->segment = o->force_segment;
        return 1;
    }
    if (o->recompute == BTI_RECOMPUTE_LAYERS) out->layers = k->s->m->layers;
    return o->recompute != BTI_RECOMPUTE_AUTO;
}

static bt_status fill(pick *k, set *t) {
    int32_t longest = (int32_t)max64(k->s->m->cfg.encoder_layers, k->s->m->cfg.decoder_layers);
    bti_choice fixed;
    int some = fixed_levels(k, &fixed);
    BT_TRY(probe_first(k, t));
    for (int i = 0; i < t->chunks; i++) BT_TRY(probe_chunk(k, t, i));
    for (int slice = 0; slice < t->slices; slice++) {
        BT_TRY(probe_edge(k, t, slice));
        for (int level = 0; level < MIXED; level++)
            if (!some || level == (int)fixed.level || level == (int)fixed.rest)
                BT_TRY(probe_level(k, t, level, slice));
        /* With segments blocks are whole or in the smallest slices: memory is short then. */
        for (int i = 0; !some && i < SEGMENTS && segment_layers[i] <= longest; i++)
            if (slice == 0 || slice + 1 == t->slices) BT_TRY(probe_segments(k, t, i, slice));
    }
    return BT_OK;
}

static void offer_all(pick *k, const set *t, hold_fn hold_it) {
    bti_choice fixed;
    if (fixed_levels(k, &fixed)) {
        offer_fixed(k, t, &fixed, hold_it);
        return;
    }
    for (int slice = 0; slice < t->slices; slice++) {
        bti_choice none = {.parts = t->parts, .slice_rows = t->slice[slice]};
        mixture x = {.a = &t->at[0][slice], .b = &t->at[0][slice]};
        offer(k, t, &none, &x, hold_it);
        for (int rest = 0; rest < MIXED; rest++) {
            for (int level = rest + 1; level < MIXED; level++)
                offer_level(k, t, slice, level, rest, hold_it);
            for (int i = 0; i < SEGMENTS; i++) offer_segments(k, t, slice, i, rest, hold_it);
        }
    }
}

/* ---- the smallest -----------------------------------------------------------------------------
 */

/* Segments of a given length are no profile: the choice is counted as it is. */
static int one_choice(const pick *k, bti_choice *out) {
    const bti_plan_options *o = k->s->opt;
    if (!fixed_levels(k, out)) return 0;
    if (out->level != BTI_LEVEL_SEGMENTS &&
        !(o->force_rows[0] && o->force_rows[1] && o->force_logit_rows))
        return 0;
    out->parts = o->force_rows[0] || o->force_rows[1] ? 1 : k->s->w->max_sentences;
    out->slice_rows = o->force_slice_rows;
    out->logit_rows = o->force_logit_rows ? o->force_logit_rows : chunk_rows[0];
    return 1;
}

/* The smallest plan: caps of one sentence. Estimates leave out what layout wastes, so they are
 * counted in order until the next one cannot be smaller. */
static bt_status find_smallest(pick *k, bti_run_plan *plan, bti_choice *smallest) {
    set *t = add_set(k, plan, k->s->w->max_sentences);
    BT_TRY(fill(k, t));
    k->held_count = 0;
    offer_all(k, t, hold_small);
    /* No profile is usable: what a tensor is too large for is told by the count. */
    if (k->held_count == 0)
        k->held[k->held_count++].choice = (bti_choice){.parts = t->parts,
                                                       .level = BTI_LEVEL_LAYERS,
                                                       .layers = k->s->m->layers,
                                                       .logit_rows = t->chunk[t->chunks - 1],
                                                       .slice_rows = t->slice[t->slices - 1]};
    for (int32_t i = 0; i < k->held_count; i++) {
        const candidate *c = &k->held[i];
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

/* Whether a set can hold anything that fits, and as fast as the best so far: asked of a few
 * profiles before all are made. */
static bt_status worth(pick *k, set *t, int *out) {
    bti_choice fixed;
    int last = t->slices - 1;
    *out = 1;
    if (fixed_levels(k, &fixed)) return BT_OK;
    BT_TRY(probe_first(k, t));
    BT_TRY(probe_level(k, t, BTI_LEVEL_NONE, 0));
    BT_TRY(probe_chunk(k, t, 0));
    mixture fast = {.a = &t->at[0][0], .b = &t->at[0][0]};
    double seconds =
        t->mean_parts * (add_up(k->s->m, &fast).seconds + t->output[0].outside_seconds);
    if (seconds - t->saved + k->s->update_seconds > NEARLY * k->best) {
        *out = 0;
        return BT_OK;
    }
    int64_t limit = limit_of(k, t), least;
    if (limit == INT64_MAX) return BT_OK;
    BT_TRY(probe_level(k, t, BTI_LEVEL_LAYERS, last));
    BT_TRY(probe_chunk(k, t, t->chunks - 1));
    mixture x = {.a = &t->at[BTI_LEVEL_LAYERS][last], .b = &t->at[BTI_LEVEL_LAYERS][last]};
    sum s = add_up(k->s->m, &x);
    least = max64(s.peak, s.kept + t->output[t->chunks - 1].outside[BTI_ABOVE]);
    /* Segments keep a half or less of what layers keep, and add some to the peak. */
    *out = least - s.kept <= limit;
    return BT_OK;
}

/* Candidates of all sets under the margin; few micro-batches first, so that most of the others are
 * seen to be slower at once. */
static bt_status collect(pick *k) {
    k->held_count = 0;
    k->best = INFINITY;
    for (int i = 0; i < k->count; i++) {
        int wanted;
        BT_TRY(worth(k, &k->sets[i], &wanted));
        if (!wanted) continue;
        BT_TRY(fill(k, &k->sets[i]));
        offer_all(k, &k->sets[i], hold);
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
        candidate c = k->held[best];
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
static int hopeless(const pick *k, const bti_run_plan *plan, int64_t parts) {
    bti_shape caps = bti_plan_caps(k->s, parts);
    uint64_t budget = k->s->opt->budget;
    if (caps.rows[0] > INT32_MAX || caps.rows[1] > INT32_MAX) return 1;
    uint64_t rows = (uint64_t)max64(caps.rows[0], caps.rows[1]);
    uint64_t bytes = rows * (uint64_t)k->s->m->cfg.d_model * bti_dtype_size(k->s->m->params.dtype);
    return budget > 0 && bytes + bti_plan_others(k->s, plan, &caps) > budget;
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
        if (!hopeless(k, plan, parts)) add_set(k, plan, parts);
    }
    for (size_t i = 0; i < sizeof margin / sizeof margin[0] && !plan->fits; i++) {
        k->margin = margin[i];
        BT_TRY(collect(k));
        BT_TRY(try_held(k, plan));
        if (o->budget == 0) break;
    }
    return BT_OK;
}

/* ---- all --------------------------------------------------------------------------------------
 */

static bt_status pick_all(pick *k, bti_run_plan *plan) {
    bti_choice smallest;
    k->margin = 1;
    if (one_choice(k, &smallest)) {
        BT_TRY(bti_plan_count(k->s, &smallest, plan));
        plan->minimum = plan->total;
        return BT_OK;
    }
    if (k->s->opt->wanted != NULL) {
        bt_status status = bti_plan_count(k->s, k->s->opt->wanted, plan);
        plan->minimum = plan->total;
        if (status == BT_OK && plan->fits) return BT_OK;
        if (status != BT_OK && status != BT_EFIT) return status;
    }
    BT_TRY(find_smallest(k, plan, &smallest));
    if (k->s->opt->budget && plan->minimum > k->s->opt->budget)
        return bti_plan_count(k->s, &smallest, plan);
    BT_TRY(find_fastest(k, plan));
    return plan->fits ? BT_OK : bti_plan_count(k->s, &smallest, plan);
}

bt_status bti_plan_pick(bti_search *s, bti_run_plan *plan) {
    pick k = {.s = s};
    bti_layout_options layout = bti_plan_layout(s, plan);
    k.sets = bti_alloc(MOST_SETS, sizeof *k.sets);
    k.held = bti_alloc(HELD, sizeof *k.held);
    bt_status status = k.sets == NULL || k.held == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK)
        status = bti_prober_new(s->m, s->planning, s->info, &s->rates, &layout, &k.prober);
    if (status == BT_OK) status = pick_all(&k, plan);
    bti_prober_free(k.prober);
    bti_free(k.held);
    bti_free(k.sets);
    return status;
}
