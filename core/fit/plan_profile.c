#include "core/fit/plan_profile.h"

#include <string.h>

#include "core/base/status.h"

/* Layers of a stack that a short program has: the first, a middle one, the last. */
#define FEW 3
/* Profiles whose arrays are taken at once. */
#define BLOCK 64

typedef struct block {
    struct block *next;
    int64_t used; /* so wide that data is aligned for what lies in it */
    char data[];  /* BLOCK x layers x (kept, peak, seconds) */
} block;

struct bti_prober {
    const bti_model *model;
    bti_model few;       /* shares all but `layer` with the model */
    int32_t *stands_for; /* of each layer of the model: the layer of `few` */
    const bti_rates *rates;
    bti_layout_options layout;
    bti_program *program;
    uint32_t *keep;
    int64_t *kept, *peak; /* of the layers of the program */
    double *seconds;
    uint64_t *live;
    size_t live_room;
    block *blocks;
};

/* ---- the model of few layers ------------------------------------------------------------------
 */

/* Layers from .. to-1 in segments of k: the first, a middle and the last segment stand for all. */
static int32_t shrink_stack(bti_prober *p, int32_t from, int32_t to, int32_t k, int32_t at) {
    int32_t last = (to - from - 1) / k, end = at;
    int all = last < FEW || bti_params_frozen(&p->model->params) > 0; /* these are not alike */
    for (int32_t i = from; i < to; i++) {
        int32_t n = (i - from) / k, few = all ? n : n == 0 ? 0 : n == last ? FEW - 1 : 1;
        int32_t to_layer = at + few * k + (i - from) % k;
        p->stands_for[i] = to_layer;
        p->few.layer[to_layer] = p->model->layer[i];
        p->few.layer[to_layer].index = to_layer;
        if (to_layer >= end) end = to_layer + 1;
    }
    return end;
}

static void make_few(bti_prober *p, int32_t segment) {
    const bti_model *m = p->model;
    int32_t encoder = (int32_t)m->cfg.encoder_layers, k = segment > 1 ? segment : 1;
    int32_t at = shrink_stack(p, 0, encoder, k, 0);
    p->few.cfg.encoder_layers = at;
    p->few.layers = shrink_stack(p, encoder, m->layers, k, at);
    p->few.cfg.decoder_layers = p->few.layers - at;
}

bt_status bti_prober_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                         const bti_rates *rates, const bti_layout_options *layout,
                         bti_prober **out) {
    bti_prober *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    size_t n = (size_t)m->layers;
    p->model = m;
    p->rates = rates;
    p->layout = *layout;
    p->keep = bti_alloc(n, sizeof *p->keep);
    p->kept = bti_alloc(n, sizeof *p->kept);
    p->peak = bti_alloc(n, sizeof *p->peak);
    p->seconds = bti_alloc(n, sizeof *p->seconds);
    p->few = *m;
    p->few.layer = bti_alloc(n, sizeof *p->few.layer);
    p->stands_for = bti_alloc(n, sizeof *p->stands_for);
    bt_status status = BT_ENOMEM;
    if (p->keep && p->kept && p->peak && p->seconds && p->few.layer && p->stands_for)
        status = bti_program_new("probe", planning, info, &p->program);
    if (status != BT_OK) {
        bti_prober_free(p);
        return status;
    }
    *out = p;
    return BT_OK;
}

void bti_prober_free(bti_prober *p) {
    if (p == NULL) return;
    while (p->blocks != NULL) {
        block *next = p->blocks->next;
        bti_free(p->blocks);
        p->blocks = next;
    }
    bti_program_free(p->program);
    bti_free(p->few.layer);
    bti_free(p->stands_for);
    bti_free(p->keep);
    bti_free(p->kept);
    bti_free(p->peak);
    bti_free(p->seconds);
    bti_free(p->live);
    bti_free(p);
}

/* ---- one probe --------------------------------------------------------------------------------
 */

/* `odd`: where edges are looked at, the layers that keep all. */
static bt_status emit(bti_prober *p, const bti_probe *q, const bti_shape *shape, int odd) {
    const bti_model *m = &p->few;
    int64_t chunk = q->logit_rows < shape->rows[1] ? q->logit_rows : shape->rows[1];
    bti_level_fill(m, q->level, 0, m->layers, q->segment, p->keep);
    for (int32_t i = odd ? 0 : 1; q->edges && i < m->layers; i += 2)
        bti_level_fill(m, BTI_LEVEL_CHEAP, i, i + 1, 0, p->keep);
    bti_step step = {.model = m,
                     .places = q->places,
                     .shape = *shape,
                     .choices = {p->keep, chunk, q->slice_rows, q->compact},
                     .training = 1,
                     .first_micro_batch = !q->accumulates,
                     .grad_scale = 1};
    bti_train_program unused;
    return bti_model_emit_step(p->program, &step, &unused);
}

static int outside_of(const bti_model *m, int32_t below) {
    return below == m->layers ? BTI_ABOVE : below == 0 ? BTI_BELOW : BTI_BETWEEN;
}

static void keep_most(int64_t *most, int64_t bytes) {
    if (bytes > *most) *most = bytes;
}

/* The op from which on all layers keep what they keep: the first one above the stacks. */
static int32_t summit(const bti_program *p, int32_t layers) {
    for (int32_t k = 0; k < p->ops; k++)
        if (p->op[k].layer < 0 && p->op[k].below == layers) return k;
    return 0;
}

static bt_status count_bytes(bti_prober *p, bti_profile *out) {
    const bti_program *g = p->program;
    const bti_model *m = &p->few;
    BT_TRY(bti_grow((void **)&p->live, &p->live_room, (size_t)g->ops, sizeof *p->live));
    bti_live live = {.live = p->live,
                     .kept = (uint64_t *)p->kept,
                     .at = summit(g, m->layers),
                     .layers = m->layers};
    BT_TRY(bti_layout_live(g, &p->layout, &live));
    out->usable = p->layout.heap == 0 || live.largest <= p->layout.heap;
    memset(p->peak, 0, (size_t)m->layers * sizeof *p->peak);
    memset(out->outside, 0, sizeof out->outside);
    int64_t below = 0;
    int32_t counted = 0; /* layers in `below` */
    for (int32_t k = 0; k < g->ops; k++) {
        const bti_op_record *o = &g->op[k];
        while (counted < o->below) below += p->kept[counted++];
        while (counted > o->below) below -= p->kept[--counted];
        int64_t bytes = (int64_t)p->live[k] - below;
        keep_most(o->layer < 0 ? &out->outside[outside_of(m, o->below)] : &p->peak[o->layer],
                  bytes);
    }
    return BT_OK;
}

static void count_seconds(bti_prober *p, bti_profile *out) {
    const bti_program *g = p->program;
    memset(p->seconds, 0, (size_t)p->few.layers * sizeof *p->seconds);
    out->outside_seconds = 0;
    for (int32_t k = 0; k < g->ops; k++) {
        double *to = g->op[k].layer < 0 ? &out->outside_seconds : &p->seconds[g->op[k].layer];
        *to += bti_op_seconds(g, k, p->rates);
    }
}

static bt_status take_arrays(bti_prober *p, bti_profile *out) {
    size_t n = (size_t)p->model->layers, bytes = n * (2 * sizeof(int64_t) + sizeof(double));
    if (p->blocks == NULL || p->blocks->used == BLOCK) {
        block *b = bti_alloc(1, sizeof *b + BLOCK * bytes);
        if (b == NULL) return BT_ENOMEM;
        b->next = p->blocks;
        p->blocks = b;
    }
    char *at = p->blocks->data + (size_t)p->blocks->used++ * bytes;
    out->kept = (int64_t *)(void *)at;
    out->peak = out->kept + n;
    out->seconds = (double *)(void *)(at + 2 * n * sizeof *out->kept);
    return BT_OK;
}

static void hand_over(const bti_prober *p, bti_profile *out, int32_t step, int32_t first) {
    for (int32_t i = 0; i < p->model->layers; i++) {
        int32_t from = p->stands_for[i];
        if (from % step != first) continue;
        out->kept[i] = p->kept[from];
        out->peak[i] = p->peak[from];
        out->seconds[i] = p->seconds[from];
    }
}

bt_status bti_prober_run(bti_prober *p, const bti_probe *q, bti_profile *out) {
    BT_TRY(take_arrays(p, out));
    make_few(p, q->level == BTI_LEVEL_SEGMENTS ? q->segment : 1);
    for (int odd = 0; q->edges && odd < 2; odd++) {
        BT_TRY(emit(p, q, &q->caps, odd));
        BT_TRY(count_bytes(p, out));
        hand_over(p, out, 2, odd);
    }
    if (q->edges) return BT_OK;
    BT_TRY(emit(p, q, &q->caps, 0));
    BT_TRY(count_bytes(p, out));
    BT_TRY(emit(p, q, &q->mean, 0));
    count_seconds(p, out);
    hand_over(p, out, 1, 0);
    return BT_OK;
}
