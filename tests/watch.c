#include "tests/watch.h"

#include "tests/kit.h"

#define MARGIN 8192
#define PATTERN 0xA5
#define DEAD 0xFF /* a NaN in every type */

typedef struct watch {
    mk_model *m;
    mk_watch *device;
    char *image[64]; /* what each buffer holds */
    char *now;
    uint64_t largest;
    wt_result *result;
} watch;

static int buffer_of(const watch *w, const bt_buf *buf) {
    for (int i = 0; i < (int)w->device->allocs; i++)
        if (w->device->buffer[i] == buf) return i;
    ck_abort_msg("a view of no buffer");
    return -1;
}

static uint64_t whole(const watch *w, int i) { return w->device->buffer_bytes[i] + MARGIN; }

static void download(const watch *w, int i, char *to) {
    bt_dev *dev = w->m->dev;
    kit_ok(dev->ops->download(dev, NULL, to, w->device->buffer[i], 0, whole(w, i)));
    kit_ok(dev->ops->sync(dev, NULL));
}

/* Fills on the device and in the image. */
static void fill(watch *w, bt_view v, uint64_t bytes, uint8_t value) {
    bt_dev *dev = w->m->dev;
    if (bytes == 0) return;
    kit_ok(dev->ops->fill(dev, NULL, v.buf, v.off, bytes, value));
    memset(w->image[buffer_of(w, v.buf)] + v.off, value, bytes);
}

/* The image takes over what `v` may have been written with. */
static void accept(watch *w, int i, const bt_view *v) {
    size_t size = bti_dtype_size(v->dtype);
    if (v->ld == 0 || buffer_of(w, v->buf) != i) return;
    for (int64_t r = 0; r < v->rows; r++) {
        size_t at = v->off + (size_t)(r * v->ld) * size;
        memcpy(w->image[i] + at, w->now + at, (size_t)v->cols * size);
    }
}

static void compare(watch *w, const bti_program *p, int32_t k) {
    const bti_op_record *o = &p->op[k];
    const bt_op_info *info = bti_op_info(o->op);
    for (int i = 0; i < (int)w->device->allocs; i++) {
        download(w, i, w->now);
        for (int j = 0; j < info->operands; j++) {
            bt_view v = bti_arena_view(&w->m->engine->arena, p, o->t[j], 0);
            if (info->operand[j].role != BT_ROLE_IN) accept(w, i, &v);
        }
        bt_view ws = bti_arena_view(&w->m->engine->arena, p, bti_all(p, o->ws), 0);
        accept(w, i, &ws);
        if (memcmp(w->image[i], w->now, whole(w, i)) == 0) continue;
        uint64_t at = 0;
        while (w->image[i][at] == w->now[at]) at++;
        ck_abort_msg("%s, op %d (%s) wrote to byte %llu of buffer %d, which is not its own",
                     p->name, k, info->name, (unsigned long long)at, i);
    }
}

/* Another tensor begins at op k in the storage of x. */
static int lives_on(const bti_program *p, int32_t k, bti_tid x) {
    for (bti_tid i = 1; i <= p->tensors; i++) {
        const bti_tensor *t = &p->tensor[i];
        if (i != x && t->region == BTI_REGION_DYNAMIC && t->first == k && t->bytes > 0 &&
            t->address == p->tensor[x].address)
            return 1;
    }
    return 0;
}

/* All of a tensor's bytes at the caps, guard included, become NaN once it is dead. */
static void poison(watch *w, const bti_program *p, const bti_program *caps, int32_t k) {
    uint64_t guard = w->m->plan->places.staging.bytes ? 64 : 0;
    for (bti_tid i = 1; i <= p->tensors; i++) {
        const bti_tensor *t = &p->tensor[i];
        if (t->region != BTI_REGION_DYNAMIC || t->last != k || t->pin || caps->tensor[i].bytes == 0)
            continue;
        if (lives_on(p, k, i)) {
            w->result->in_place++;
            continue;
        }
        fill(w, bti_arena_at(&w->m->engine->arena, BTI_REGION_DYNAMIC, t->address),
             caps->tensor[i].bytes + guard, DEAD);
        w->result->poisoned++;
    }
}

/* What the host changed since the last op, in regions first .. last. */
static void accept_uploads(watch *w, int first, int last) {
    const bti_arena *a = &w->m->engine->arena;
    for (int i = 0; i < (int)w->device->allocs; i++) {
        download(w, i, w->now);
        for (int r = first; r <= last; r++) {
            bt_view v = bti_arena_at(a, (bti_region)r, 0);
            if (buffer_of(w, v.buf) == i) memcpy(w->image[i] + v.off, w->now + v.off, a->bytes[r]);
        }
    }
}

static bt_status after(void *user, bti_program *p, int32_t k) {
    watch *w = user;
    const bti_run_plan *plan = w->m->plan;
    if (k == 0) accept_uploads(w, BTI_REGION_CONSTANT, BTI_REGION_STAGING);
    if (plan->places.moments.kind == BTI_MOMENTS_HOST) /* they come in at any time */
        accept_uploads(w, BTI_REGION_MOMENT1, BTI_REGION_MOMENT2);
    compare(w, p, k);
    poison(w, p, p == w->m->engine->step ? plan->step : plan->update, k);
    w->result->ops++;
    return BT_OK;
}

/* Dynamic region and margins get the pattern; the image is what the device holds then. */
static void begin(watch *w) {
    const bti_arena *a = &w->m->engine->arena;
    for (int i = 0; i < (int)w->device->allocs; i++)
        if (whole(w, i) > w->largest) w->largest = whole(w, i);
    w->now = malloc(w->largest);
    for (int i = 0; i < (int)w->device->allocs; i++) {
        w->image[i] = malloc(whole(w, i));
        bt_view v = {.buf = w->device->buffer[i], .off = w->device->buffer_bytes[i]};
        fill(w, v, MARGIN, PATTERN);
    }
    for (uint64_t at = 0; at < a->bytes[BTI_REGION_DYNAMIC]; at += 64)
        fill(w, bti_arena_at(a, BTI_REGION_DYNAMIC, at), 64, PATTERN);
    for (int i = 0; i < (int)w->device->allocs; i++) download(w, i, w->image[i]);
}

wt_result wt_run(const mk_setup *setup, int updates, int watched) {
    wt_result result = {0};
    mk_watch device = {.margin = MARGIN};
    mk_setup s = *setup;
    mk_model m;
    watch w = {.m = &m, .device = &device, .result = &result};
    if (watched) {
        s.watch = &device;
        s.plan.guard = 64;
        s.engine.hooks = (bti_run_hooks){after, &w};
    }
    m = mk_open(&s);
    if (watched) begin(&w);
    for (int u = 0; u < updates; u++) {
        bti_update_result r;
        kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, u + 1, 1e-3, &r));
        ck_assert_int_eq(r.skipped, 0);
        result.loss[u] = r.loss;
        result.norm[u] = r.grad_norm;
        result.micro_batches = r.micro_batches;
    }
    result.gradients = mk_state(&m, BTI_REGION_GRADIENTS, &result.count);
    result.weights = mk_state(&m, BTI_REGION_WEIGHTS, NULL);
    result.moments[0] = mk_state(&m, BTI_REGION_MOMENT1, NULL);
    result.moments[1] = mk_state(&m, BTI_REGION_MOMENT2, NULL);
    for (int i = 0; i < 64; i++) free(w.image[i]);
    free(w.now);
    mk_close(&m);
    return result;
}

void wt_free(wt_result *r) {
    free(r->gradients);
    free(r->weights);
    free(r->moments[0]);
    free(r->moments[1]);
}

void wt_same_state(const wt_result *a, const wt_result *b) {
    size_t bytes = (size_t)a->count * sizeof(double);
    ck_assert_int_eq(a->count, b->count);
    ck_assert_mem_eq(a->gradients, b->gradients, bytes);
    ck_assert_mem_eq(a->weights, b->weights, bytes);
    ck_assert_mem_eq(a->moments[0], b->moments[0], bytes);
    ck_assert_mem_eq(a->moments[1], b->moments[1], bytes);
}

void wt_same(const wt_result *a, const wt_result *b, int updates) {
    ck_assert_mem_eq(a->loss, b->loss, (size_t)updates * sizeof *a->loss);
    ck_assert_mem_eq(a->norm, b->norm, (size_t)updates * sizeof *a->norm);
    wt_same_state(a, b);
}

int wt_near(double a, double b, double tol) { return fabs(a - b) <= tol * fabs(b); }

void wt_agree(const wt_result *a, const wt_result *b, double tol) {
    ck_assert_msg(wt_near(a->loss[0], b->loss[0], tol), "loss %.9g, %.9g", a->loss[0], b->loss[0]);
    ck_assert_msg(wt_near(a->norm[0], b->norm[0], tol), "norm %.9g, %.9g", a->norm[0], b->norm[0]);
    double off = mk_relative(a->gradients, b->gradients, b->count);
    ck_assert_msg(off <= tol, "gradients are off by %g", off);
}
