/* Sets of mixtures. For a number of micro-batches short programs tell what a layer keeps, adds and
 * takes at each level and slice (plan_profile.h), and what each chunk does; bytes and seconds of
 * every mixture are sums of these. */
#include "core/fit/plan_mix.h"

#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"

/* Chunk rows from large to small. Above 1,024 rows a chunk's products are as fast as they get; the
 * last few are for what fits in no other way, one sentence a micro-batch. */
static const int64_t chunk_rows[BTI_CHUNKS] = {1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1};
enum { CHUNKS_ANY = 6 };
static const int32_t segment_layers[BTI_SEGMENTS] = {2, 3, 4, 6};

/* ---- profiles ---------------------------------------------------------------------------------
 */

/* What a probe of this set has in common with the others. */
static bti_probe probe_of(const bti_mixer *k, const bti_set *t) {
    return (bti_probe){.caps = t->caps,
                       .mean = t->mean,
                       .places = &k->s->places,
                       .slice_rows = t->slice[0],
                       .logit_rows = t->chunk[0],
                       .compact = k->s->compact,
                       .accumulates = t->mean_parts > 1};
}

static bt_status run(bti_mixer *k, const bti_probe *p, bti_profile *out) {
    return out->kept != NULL ? BT_OK : bti_prober_run(k->prober, p, out);
}

static bt_status probe_level(bti_mixer *k, bti_set *t, int level, int slice) {
    bti_probe p = probe_of(k, t);
    p.level = (bti_level)level;
    p.slice_rows = t->slice[slice];
    return run(k, &p, &t->at[level][slice]);
}

static bt_status probe_edge(bti_mixer *k, bti_set *t, int slice) {
    bti_probe p = probe_of(k, t);
    p.edges = 1;
    p.slice_rows = t->slice[slice];
    return run(k, &p, &t->edge[slice]);
}

static bt_status probe_segments(bti_mixer *k, bti_set *t, int i, int slice) {
    bti_probe p = probe_of(k, t);
    p.level = BTI_LEVEL_SEGMENTS;
    p.segment = segment_layers[i];
    p.slice_rows = t->slice[slice];
    return run(k, &p, &t->segments[i][slice]);
}

/* Above the stacks: what is live there with the norm of the last layer made again. */
static bt_status probe_chunk(bti_mixer *k, bti_set *t, int i) {
    bti_probe p = probe_of(k, t);
    p.level = BTI_LEVEL_LAYERS;
    p.slice_rows = 0;
    p.logit_rows = t->chunk[i];
    return run(k, &p, &t->output[i]);
}

static double seconds_of(const bti_model *m, const bti_profile *p) {
    double sum = p->outside_seconds;
    for (int32_t i = 0; i < m->layers; i++) sum += p->seconds[i];
    return sum;
}

/* The profiles are of a micro-batch that adds to gradients, unless there is one only. */
static bt_status probe_first(bti_mixer *k, bti_set *t) {
    bti_profile first = {0};
    bti_probe p = probe_of(k, t);
    if (!p.accumulates || t->saved != 0) return BT_OK;
    BT_TRY(probe_level(k, t, BTI_LEVEL_NONE, 0));
    p.accumulates = 0;
    BT_TRY(run(k, &p, &first));
    t->saved = seconds_of(k->s->m, &t->at[0][0]) - seconds_of(k->s->m, &first);
    return BT_OK;
}

/* Slices and chunks for these caps. A slice is a half to a sixteenth of all rows: smaller ones save
 * little more and cost time. */
static void list_rows(const bti_mixer *k, bti_set *t) {
    const bti_plan_options *o = k->s->opt;
    int64_t rows = bti_max(t->caps.rows[0], t->caps.rows[1]), target = t->caps.rows[1];
    int last = t->parts >= k->s->w->max_sentences ? BTI_CHUNKS : CHUNKS_ANY;
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

void bti_set_begin(const bti_mixer *k, const bti_run_plan *plan, int64_t parts, bti_set *t) {
    memset(t, 0, sizeof *t);
    t->parts = parts;
    t->caps = bti_plan_caps(k->s, parts);
    t->mean_parts = bti_plan_mean(k->s, &t->caps, &t->mean);
    t->others = (int64_t)bti_plan_others(k->s, plan, &t->caps);
    list_rows(k, t);
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
    sum s = {0, bti_max(x->a->outside[BTI_BELOW], x->b->outside[BTI_BELOW]), 0};
    int64_t between = bti_max(x->a->outside[BTI_BETWEEN], x->b->outside[BTI_BETWEEN]);
    for (int32_t i = 0; i < m->layers; i++) {
        const bti_profile *p = i < x->layers ? x->a : x->b, *peak = p;
        if (i + 1 == x->layers && x->tail != NULL) p = peak = x->tail;
        if (i == x->layers && i > 0 && x->edge != NULL) peak = x->edge;
        s.peak = bti_max(s.peak, s.kept + peak->peak[i]);
        s.kept += p->kept[i];
        s.seconds += p->seconds[i];
        if (i + 1 == m->cfg.encoder_layers) s.peak = bti_max(s.peak, s.kept + between);
    }
    return s;
}

static int64_t floor_of(const bti_mixer *k) {
    return (int64_t)(k->s->update_bytes > k->s->opt->decode_dynamic ? k->s->update_bytes
                                                                    : k->s->opt->decode_dynamic);
}

/* Every chunk for a mixture. */
static void offer(bti_mixer *k, const bti_set *t, const bti_choice *choice, const mixture *x) {
    if (!x->a->usable || !x->b->usable) return;
    sum s = add_up(k->s->m, x);
    int64_t least = bti_max(s.peak, floor_of(k));
    if (least > k->limit) return;
    for (int i = 0; i < t->chunks; i++) {
        const bti_profile *o = &t->output[i];
        bti_candidate c = {*choice, bti_max(least, s.kept + o->outside[BTI_ABOVE]),
                           t->mean_parts * (s.seconds + o->outside_seconds) - t->saved +
                               k->s->update_seconds};
        c.choice.logit_rows = t->chunk[i];
        if (o->usable && c.bytes <= k->limit) k->take(k->user, &c);
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

static void offer_level(bti_mixer *k, const bti_set *t, int slice, int level, int rest) {
    const bti_model *m = k->s->m;
    mixture x = {.a = &t->at[level][slice], .b = &t->at[rest][slice]};
    if (rest == BTI_LEVEL_NONE) x.edge = &t->edge[slice];
    bti_choice c = {.parts = t->parts,
                    .level = (bti_level)level,
                    .rest = (bti_level)rest,
                    .slice_rows = t->slice[slice]};
    for (c.layers = 1; c.layers <= m->layers; c.layers++) {
        x.layers = c.layers;
        if (c.layers < m->layers || rest == 0) offer(k, t, &c, &x);
    }
}

static void offer_segments(bti_mixer *k, const bti_set *t, int slice, int i, int rest) {
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
        offer(k, t, &c, &x);
    }
}

/* One level for a number of layers that options fix. */
static void offer_fixed(bti_mixer *k, const bti_set *t, const bti_choice *fixed) {
    for (int slice = 0; slice < t->slices; slice++) {
        mixture x = {.a = &t->at[fixed->level][slice],
                     .b = &t->at[fixed->rest][slice],
                     .layers = fixed->layers};
        if (fixed->rest == BTI_LEVEL_NONE) x.edge = &t->edge[slice];
        bti_choice c = *fixed;
        c.parts = t->parts;
        c.slice_rows = t->slice[slice];
        offer(k, t, &c, &x);
    }
}

/* ---- what options allow -----------------------------------------------------------------------
 */

int bti_fixed_levels(const bti_search *s, bti_choice *out) {
    const bti_plan_options *o = s->opt;
    *out = (bti_choice){.level = BTI_LEVEL_LAYERS};
    if (o->force_recompute_layers >= 0) {
        out->layers = (int32_t)bti_min(o->force_recompute_layers, s->m->layers);
        if (o->force_level) out->level = o->force_level;
        out->segment = o->force_segment;
        return 1;
    }
    if (o->recompute == BTI_RECOMPUTE_AUTO) return 0;
    out->level = (bti_level)(o->recompute - BTI_RECOMPUTE_NONE);
    if (out->level != BTI_LEVEL_NONE) out->layers = s->m->layers;
    return 1;
}

bt_status bti_set_fill(bti_mixer *k, bti_set *t) {
    int32_t longest = (int32_t)bti_max(k->s->m->cfg.encoder_layers, k->s->m->cfg.decoder_layers);
    bti_choice fixed;
    int some = bti_fixed_levels(k->s, &fixed);
    BT_TRY(probe_first(k, t));
    for (int i = 0; i < t->chunks; i++) BT_TRY(probe_chunk(k, t, i));
    for (int slice = 0; slice < t->slices; slice++) {
        BT_TRY(probe_edge(k, t, slice));
        for (int level = 0; level < BTI_MIXED; level++)
            if (!some || level == (int)fixed.level || level == (int)fixed.rest)
                BT_TRY(probe_level(k, t, level, slice));
        /* With segments blocks are whole or in the smallest slices: memory is short then. */
        for (int i = 0; !some && i < BTI_SEGMENTS && segment_layers[i] <= longest; i++)
            if (slice == 0 || slice + 1 == t->slices) BT_TRY(probe_segments(k, t, i, slice));
    }
    return BT_OK;
}

void bti_set_offer(bti_mixer *k, const bti_set *t) {
    bti_choice fixed;
    if (bti_fixed_levels(k->s, &fixed)) {
        offer_fixed(k, t, &fixed);
        return;
    }
    for (int slice = 0; slice < t->slices; slice++) {
        bti_choice none = {.parts = t->parts, .slice_rows = t->slice[slice]};
        mixture x = {.a = &t->at[0][slice], .b = &t->at[0][slice]};
        offer(k, t, &none, &x);
        for (int rest = 0; rest < BTI_MIXED; rest++) {
            for (int level = rest + 1; level < BTI_MIXED; level++)
                offer_level(k, t, slice, level, rest);
            for (int i = 0; i < BTI_SEGMENTS; i++) offer_segments(k, t, slice, i, rest);
        }
    }
}

bt_status bti_set_bounds(bti_mixer *k, bti_set *t, double *seconds, int64_t *bytes) {
    int slice = t->slices - 1, chunk = t->chunks - 1;
    BT_TRY(probe_first(k, t));
    BT_TRY(probe_level(k, t, BTI_LEVEL_NONE, 0));
    BT_TRY(probe_chunk(k, t, 0));
    BT_TRY(probe_level(k, t, BTI_LEVEL_LAYERS, slice));
    BT_TRY(probe_chunk(k, t, chunk));
    *seconds = t->mean_parts * seconds_of(k->s->m, &t->at[0][0]) - t->saved + k->s->update_seconds;
    const bti_profile *least = &t->at[BTI_LEVEL_LAYERS][slice];
    sum s = add_up(k->s->m, &(mixture){.a = least, .b = least});
    /* Segments keep a half or less of what layers keep, and add some to the peak. */
    *bytes = bti_max(s.peak, s.kept + t->output[chunk].outside[BTI_ABOVE]) - s.kept;
    return BT_OK;
}
