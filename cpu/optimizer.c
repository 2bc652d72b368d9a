/* The optimiser: sums of squares by block, the scalars of an update, and AdamW with clipping in one
 * pass (reads g, w, m, v and writes w, m, v: 28 bytes a parameter), over flat ranges and over
 * tables with compact gradients, with moments in fp32 or in 8 bits. */
#include "cpu/rows.h"

/* (s, q) with sum of squares s^2 q: squares of fp32 numbers neither overflow nor vanish in double.
 */
static void sumsq_block(const float *x, int64_t n, float *part) {
    float max = 0.0f;
    double sum = 0;
#pragma omp simd reduction(max : max) reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        max = a > max ? a : max;
        sum += (double)x[i] * (double)x[i];
    }
    part[0] = max;
    part[1] = !(sum <= 1.7e308) ? NAN : max > 0 ? (float)(sum / max / max) : 0.0f;
}

static void sumsq_blocks(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_SUMSQ_X], *out = &call->t[BT_SUMSQ_PART];
    const float *px = btcpu_f32(x);
    float *po = btcpu_f32(out);
    const int64_t n = x->rows * x->cols;
    for (int64_t b = part->first; b < part->end; b++) {
        const int64_t first = b * BT_SUMSQ_BLOCK;
        sumsq_block(px + first, n - first < BT_SUMSQ_BLOCK ? n - first : BT_SUMSQ_BLOCK,
                    po + b * out->ld);
    }
}

bt_status BTCPU_FN(sumsq)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const int64_t n = call->t[BT_SUMSQ_X].rows * call->t[BT_SUMSQ_X].cols;
    const int64_t blocks = (n + BT_SUMSQ_BLOCK - 1) / BT_SUMSQ_BLOCK;
    btcpu_run_parts(dev, btcpu_parts(dev, n), blocks, sumsq_blocks, call);
    return BT_OK;
}

/* The loss scale of the next update. */
static void next_scale(const bt_update_scalars_params *p, float *s) {
    if (p->growth_interval == 0) return;
    const int skip = s[BT_SCALAR_SKIP] != 0.0f;
    s[BT_SCALAR_GOOD] = skip ? 0.0f : s[BT_SCALAR_GOOD] + 1.0f;
    if (skip) s[BT_SCALAR_LOSS_SCALE] *= 0.5f;
    if (s[BT_SCALAR_GOOD] < (float)p->growth_interval) return;
    const float twice = 2.0f * s[BT_SCALAR_LOSS_SCALE];
    s[BT_SCALAR_LOSS_SCALE] = twice < p->scale_max ? twice : p->scale_max;
    s[BT_SCALAR_GOOD] = 0.0f;
}

bt_status BTCPU_FN(update_scalars)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)dev, (void)stream;
    const bt_view *part = &call->t[BT_UPDATE_SCALARS_PART];
    const float *pp = btcpu_f32(part);
    float *s = btcpu_f32(&call->t[BT_UPDATE_SCALARS_SCALARS]);
    double sum = 0;
    for (int64_t b = 0; b < part->rows; b++) {
        const double size = pp[b * part->ld], q = pp[b * part->ld + 1];
        sum += size * size * q;
    }
    const double norm = sqrt(sum) / (double)s[BT_SCALAR_LOSS_SCALE];
    const double clip = s[BT_SCALAR_CLIP];
    const int finite = (float)norm <= 3.40282347e38f; /* no for NaN */
    double factor = 1.0 / (double)s[BT_SCALAR_LOSS_SCALE];
    if (clip > 0 && norm > clip) factor *= clip / norm;
    s[BT_SCALAR_NORM] = (float)norm;
    s[BT_SCALAR_FACTOR] = finite ? (float)factor : 0.0f;
    s[BT_SCALAR_SKIP] = finite ? 0.0f : 1.0f;
    next_scale(&call->p.update_scalars, s);
    return BT_OK;
}

typedef struct adam {
    float factor, decay, keep, beta1, beta2, rate1, rate2, step, root, eps;
} adam;

static adam adam_of(const bt_adamw_params *p, const float *s) {
    const double lr = s[BT_SCALAR_LR], c1 = s[BT_SCALAR_CORRECTION1];
    const double c2 = s[BT_SCALAR_CORRECTION2];
    return (adam){.factor = s[BT_SCALAR_FACTOR],
                  .decay = p->decoupled ? 0.0f : (float)p->weight_decay,
                  .keep = p->decoupled ? (float)(1.0 - lr * p->weight_decay) : 1.0f,
                  .beta1 = (float)p->beta1,
                  .beta2 = (float)p->beta2,
                  .rate1 = (float)(1.0 - p->beta1),
                  .rate2 = (float)(1.0 - p->beta2),
                  .step = (float)(lr / c1),
                  .root = (float)(1.0 / sqrt(c2)),
                  .eps = (float)p->eps};
}

/* n parameters. w keeps `keep` of itself (decoupled decay); decay is added to the gradient (the
 * other kind). One copy of the loop for both ops, so that they give the same bits. */
__attribute__((noinline)) static void adam_span(const adam *a, const float *g, float *w, float *m,
                                                float *v, int64_t n) {
    const adam c = *a;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float d = g[i] * c.factor + c.decay * w[i];
        float mi = c.beta1 * m[i] + c.rate1 * d;
        float vi = c.beta2 * v[i] + c.rate2 * (d * d);
        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * c.keep - c.step * mi / (sqrtf(vi) * c.root + c.eps);
    }
}

typedef struct adam_flat {
    adam c;
    const float *g;
    float *w, *m, *v;
} adam_flat;

static void adam_run(const btcpu_part *part) {
    const adam_flat *a = part->ctx;
    const int64_t i = part->first;
    adam_span(&a->c, a->g + i, a->w + i, a->m + i, a->v + i, part->end - i);
}

bt_status BTCPU_FN(adamw)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const float *s = btcpu_f32(&call->t[BT_ADAMW_SCALARS]);
    if (s[BT_SCALAR_SKIP] != 0.0f) return BT_OK;
    const adam_flat a = {.c = adam_of(&call->p.adamw, s),
                         .g = btcpu_f32(&call->t[BT_ADAMW_G]),
                         .w = btcpu_f32(&call->t[BT_ADAMW_W]),
                         .m = btcpu_f32(&call->t[BT_ADAMW_M]),
                         .v = btcpu_f32(&call->t[BT_ADAMW_V])};
    const int64_t n = call->t[BT_ADAMW_W].rows * call->t[BT_ADAMW_W].cols;
    btcpu_run_parts(dev, btcpu_parts(dev, n), n, adam_run, &a);
    return BT_OK;
}

/* ---- compact gradients: 24 bytes a parameter of the table, 4 more in rows that have one --------
 */

#define ZEROS 1024 /* columns that have no gradient are done in chunks of this */

typedef struct adam_rows {
    adam c;
    const bt_view *g, *index, *w, *m, *v;
    int64_t first_row;
} adam_rows;

/* First entry of the index that is `row` or more. */
static int64_t find_row(const int32_t *index, int64_t ld, int64_t n, int64_t row) {
    int64_t low = 0;
    while (low < n) {
        const int64_t middle = low + (n - low) / 2;
        if (index[middle * ld] < row)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}

static void adam_table(const btcpu_part *part) {
    static const float zeros[ZEROS];
    const adam_rows *a = part->ctx;
    const int32_t *index = btcpu_i32(a->index);
    const int64_t ld = a->index->ld, n = a->index->rows, cols = a->w->cols;
    int64_t k = find_row(index, ld, n, a->first_row + part->first);
    for (int64_t row = part->first; row < part->end; row++) {
        float *w = btcpu_f32(a->w) + row * a->w->ld;
        float *m = btcpu_f32(a->m) + row * a->m->ld, *v = btcpu_f32(a->v) + row * a->v->ld;
        if (k < n && index[k * ld] == a->first_row + row) {
            adam_span(&a->c, btcpu_f32(a->g) + k++ * a->g->ld, w, m, v, cols);
            continue;
        }
        for (int64_t c = 0; c < cols; c += ZEROS)
            adam_span(&a->c, zeros, w + c, m + c, v + c, cols - c < ZEROS ? cols - c : ZEROS);
    }
}

bt_status BTCPU_FN(adamw_rows)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t;
    const float *s = btcpu_f32(&t[BT_ADAMW_ROWS_SCALARS]);
    if (s[BT_SCALAR_SKIP] != 0.0f) return BT_OK;
    const adam_rows a = {.c = adam_of(&call->p.adamw, s),
                         .g = &t[BT_ADAMW_ROWS_G],
                         .index = &t[BT_ADAMW_ROWS_INDEX],
                         .w = &t[BT_ADAMW_ROWS_W],
                         .m = &t[BT_ADAMW_ROWS_M],
                         .v = &t[BT_ADAMW_ROWS_V],
                         .first_row = call->p.adamw.first_row};
    btcpu_run_parts(dev, btcpu_parts(dev, a.w->rows * a.w->cols), a.w->rows, adam_table, &a);
    return BT_OK;
}

/* ---- moments in 8 bits: 16 bytes a parameter --------------------------------------------------
 */

#define BLOCK BT_ADAMW8_BLOCK

typedef struct adam8 {
    adam c;
    const bt_view *g, *index;
    float *w, *ms, *vs;
    uint8_t *m, *v;
    int64_t n, first_row;
} adam8;

static void widen_m(const uint8_t *code, float scale, float *m, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float c = (float)(int8_t)code[i], t = fabsf(c) / 127.0f, u = t * t;
        m[i] = copysignf(scale * (u * u), c);
    }
}

static void widen_v(const uint8_t *code, float scale, float *v, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float t = (float)code[i] / 255.0f, u = t * t;
        v[i] = scale * (u * u);
    }
}

/* most (a / scale)^(1/4), rounded; `most` also where the scale is infinite. */
static inline int32_t root_code(float a, float scale, float most) {
    const float t = sqrtf(sqrtf(a / scale));
    return (int32_t)(most * (t <= 1.0f ? t : 1.0f) + 0.5f);
}

static float narrow_m(const float *m, uint8_t *code, int64_t n) {
    float scale = 0.0f;
#pragma omp simd reduction(max : scale)
    for (int64_t i = 0; i < n; i++) scale = fabsf(m[i]) > scale ? fabsf(m[i]) : scale;
    if (scale == 0.0f) {
        memset(code, 0, (size_t)n);
        return scale;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const int32_t c = root_code(fabsf(m[i]), scale, 127.0f);
        code[i] = (uint8_t)(m[i] < 0.0f ? -c : c);
    }
    return scale;
}

static float narrow_v(const float *v, uint8_t *code, int64_t n) {
    float scale = 0.0f;
#pragma omp simd reduction(max : scale)
    for (int64_t i = 0; i < n; i++) scale = v[i] > scale ? v[i] : scale;
    if (scale == 0.0f) {
        memset(code, 0, (size_t)n);
        return scale;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const int32_t c = root_code(v[i], scale, 255.0f);
        code[i] = (uint8_t)(c + (c == 0 && v[i] > 0.0f));
    }
    return scale;
}

/* The gradient of elements [from, from + n) of a table: rows of the compact one, zeros elsewhere.
 */
static void spread_gradient(const adam8 *a, int64_t from, int64_t n, float *g) {
    const int32_t *index = btcpu_i32(a->index);
    const int64_t ld = a->index->ld, kept = a->index->rows, cols = a->g->cols;
    int64_t row = a->first_row + from / cols, col = from % cols, k = find_row(index, ld, kept, row);
    for (int64_t i = 0, run; i < n; i += run, col = 0, row++) {
        run = cols - col < n - i ? cols - col : n - i;
        if (k < kept && index[k * ld] == row)
            memcpy(g + i, btcpu_f32(a->g) + k++ * a->g->ld + col, (size_t)run * sizeof *g);
        else
            memset(g + i, 0, (size_t)run * sizeof *g);
    }
}

static void adam_blocks(const btcpu_part *part) {
    const adam8 *a = part->ctx;
    float spread[BLOCK], m[BLOCK], v[BLOCK];
    for (int64_t b = part->first; b < part->end; b++) {
        const int64_t from = b * BLOCK, n = a->n - from < BLOCK ? a->n - from : BLOCK;
        const float *g = spread;
        if (btcpu_has(a->index))
            spread_gradient(a, from, n, spread);
        else
            g = btcpu_f32(a->g) + from;
        widen_m(a->m + from, a->ms[b], m, n);
        widen_v(a->v + from, a->vs[b], v, n);
        adam_span(&a->c, g, a->w + from, m, v, n);
        a->ms[b] = narrow_m(m, a->m + from, n);
        a->vs[b] = narrow_v(v, a->v + from, n);
    }
}

bt_status BTCPU_FN(adamw8)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t;
    const float *s = btcpu_f32(&t[BT_ADAMW8_SCALARS]);
    if (s[BT_SCALAR_SKIP] != 0.0f) return BT_OK;
    const adam8 a = {.c = adam_of(&call->p.adamw, s),
                     .g = &t[BT_ADAMW8_G],
                     .index = &t[BT_ADAMW8_INDEX],
                     .w = btcpu_f32(&t[BT_ADAMW8_W]),
                     .ms = btcpu_f32(&t[BT_ADAMW8_MS]),
                     .vs = btcpu_f32(&t[BT_ADAMW8_VS]),
                     .m = btcpu_at(&t[BT_ADAMW8_M]),
                     .v = btcpu_at(&t[BT_ADAMW8_V]),
                     .n = t[BT_ADAMW8_W].cols,
                     .first_row = call->p.adamw.first_row};
    btcpu_run_parts(dev, btcpu_parts(dev, a.n), t[BT_ADAMW8_MS].cols, adam_blocks, &a);
    return BT_OK;
}
