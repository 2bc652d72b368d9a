/* Bias, activation and dropout in one pass over the rows; linear combinations; gathered rows;
 * gates. Each moves its operands through memory once. */
#include "cpu/rows.h"

/* y = act(x + b) of n elements; b NULL: 0. y may be x. */
static void act_chunk(bt_act act, const float *x, const float *b, float *y, int64_t n) {
    static const float zeros[BTCPU_WORDS];
    if (!b) b = zeros;
    if (act == BT_ACT_RELU) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float u = x[i] + b[i];
            y[i] = u < 0.0f ? 0.0f : u; /* NaN stays */
        }
    } else if (act == BT_ACT_GELU) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = btcpu_gelu(x[i] + b[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] + b[i];
    }
}

static void act_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_BIAS_ACT_FWD_X], *y = &call->t[BT_BIAS_ACT_FWD_Y];
    const float *bias = btcpu_f32(&call->t[BT_BIAS_ACT_FWD_BIAS]);
    const bt_bias_act_params *p = &call->p.bias_act;
    const btcpu_drop drop = btcpu_drop_of(&p->drop, &call->t[BT_BIAS_ACT_FWD_ROWPOS]);
    const float *px = btcpu_f32(x);
    float *py = btcpu_f32(y);
    const int64_t cols = x->cols;
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            int64_t n = btcpu_chunk(c, cols);
            float *to = py + r * y->ld + c;
            act_chunk(p->act, px + r * x->ld + c, bias ? bias + c : NULL, to, n);
            if (drop.drop) btcpu_drop_chunk(&drop, r, c, n, to, to);
        }
    }
}

bt_status BTCPU_FN(bias_act_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_BIAS_ACT_FWD_X];
    btcpu_run_parts(dev, btcpu_parts(dev, x->rows * x->cols), x->rows, act_rows, call);
    return BT_OK;
}

typedef struct act_bwd {
    bt_act act;
    btcpu_drop drop;
    const float *dy, *x, *bias, *y;
    float *dx, *ws; /* ws NULL: no sums */
    int64_t dy_ld, x_ld, y_ld, dx_ld, cols;
} act_bwd;

/* dx of n columns from (r, c) on, to `to`; to may be any of the inputs. */
static void act_bwd_chunk(const act_bwd *a, int64_t r, int64_t c, int64_t n, float *to) {
    static const float zeros[BTCPU_WORDS];
    const float *dy = a->dy + r * a->dy_ld + c;
    if (a->act == BT_ACT_RELU) {
        const float *y = a->y + r * a->y_ld + c;
        const float scale = a->drop.scale;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float active = dy[i] * scale; /* read in any case, or SSE2 gets a branch */
            to[i] = y[i] > 0.0f ? active : 0.0f;
        }
    } else if (a->act == BT_ACT_GELU) {
        const float *x = a->x + r * a->x_ld + c, *b = a->bias ? a->bias + c : zeros;
        float kept[BTCPU_WORDS];
        if (a->drop.drop) {
            btcpu_drop_chunk(&a->drop, r, c, n, dy, kept);
            dy = kept;
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = dy[i] * btcpu_gelu_grad(x[i] + b[i]);
    } else if (a->drop.drop) {
        btcpu_drop_chunk(&a->drop, r, c, n, dy, to);
    } else if (to != dy) {
        memcpy(to, dy, (size_t)n * sizeof(float));
    }
}

static void act_bwd_rows(const btcpu_part *part) {
    const act_bwd *a = part->ctx;
    const int64_t cols = a->cols;
    btcpu_colsum sum = {0};
    if (a->ws) {
        sum = btcpu_colsum_at(a->ws, cols, 1, part->slot);
        btcpu_colsum_begin(&sum);
    }
    float none[BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            int64_t n = btcpu_chunk(c, cols);
            float *to = a->dx ? a->dx + r * a->dx_ld + c : none;
            act_bwd_chunk(a, r, c, n, to);
            if (!a->ws) continue;
            float *block = sum.block + c;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) block[i] += to[i];
        }
        if (a->ws) btcpu_colsum_row(&sum);
    }
    if (a->ws) btcpu_colsum_flush(&sum);
}

bt_status BTCPU_FN(bias_act_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t;
    const bt_bias_act_params *p = &call->p.bias_act;
    float *dbias = btcpu_f32(&t[BT_BIAS_ACT_BWD_DBIAS]);
    const act_bwd a = {.act = p->act,
                       .drop = btcpu_drop_of(&p->drop, &t[BT_BIAS_ACT_BWD_ROWPOS]),
                       .dy = btcpu_f32(&t[BT_BIAS_ACT_BWD_DY]),
                       .x = btcpu_f32(&t[BT_BIAS_ACT_BWD_X]),
                       .bias = btcpu_f32(&t[BT_BIAS_ACT_BWD_BIAS]),
                       .y = btcpu_f32(&t[BT_BIAS_ACT_BWD_Y]),
                       .dx = btcpu_f32(&t[BT_BIAS_ACT_BWD_DX]),
                       .ws = dbias ? btcpu_ws(call) : NULL,
                       .dy_ld = t[BT_BIAS_ACT_BWD_DY].ld,
                       .x_ld = t[BT_BIAS_ACT_BWD_X].ld,
                       .y_ld = t[BT_BIAS_ACT_BWD_Y].ld,
                       .dx_ld = t[BT_BIAS_ACT_BWD_DX].ld,
                       .cols = t[BT_BIAS_ACT_BWD_DY].cols};
    const int64_t rows = t[BT_BIAS_ACT_BWD_DY].rows;
    const int parts = btcpu_parts(dev, rows * a.cols);
    btcpu_run_parts(dev, parts, rows, act_bwd_rows, &a);
    if (a.ws) btcpu_colsum_finish(a.ws, a.cols, 1, parts, 0, p->beta, dbias);
    return BT_OK;
}

/* y = a x + b y over n elements; b 0: y is not read. */
static void axpby_run(double a, double b, const float *x, float *y, int64_t n) {
    const float fa = (float)a, fb = (float)b;
    if (b == 0 && a == 1) {
        if (x != y) memmove(y, x, (size_t)n * sizeof(float));
    } else if (b == 0) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = fa * x[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = fa * x[i] + fb * y[i];
    }
}

static void axpby_flat(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const float *x = btcpu_f32(&call->t[BT_AXPBY_X]);
    float *y = btcpu_f32(&call->t[BT_AXPBY_Y]);
    axpby_run(call->p.axpby.a, call->p.axpby.b, x + part->first, y + part->first,
              part->end - part->first);
}

static void axpby_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_AXPBY_X], *y = &call->t[BT_AXPBY_Y];
    const float *px = btcpu_f32(x);
    float *py = btcpu_f32(y);
    for (int64_t r = part->first; r < part->end; r++)
        axpby_run(call->p.axpby.a, call->p.axpby.b, px + r * x->ld, py + r * y->ld, x->cols);
}

bt_status BTCPU_FN(axpby)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_AXPBY_X], *y = &call->t[BT_AXPBY_Y];
    const int64_t total = x->rows * x->cols;
    const int parts = btcpu_parts(dev, total);
    if ((x->ld == x->cols && y->ld == y->cols) || x->rows <= 1)
        btcpu_run_parts(dev, parts, total, axpby_flat, call);
    else
        btcpu_run_parts(dev, parts, x->rows, axpby_rows, call);
    return BT_OK;
}

static void gather_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_GATHER_X], *y = &call->t[BT_GATHER_Y];
    const bt_view *index = &call->t[BT_GATHER_INDEX];
    const float *px = btcpu_f32(x);
    float *py = btcpu_f32(y);
    const int32_t *pi = btcpu_i32(index);
    const size_t bytes = (size_t)y->cols * sizeof(float);
    for (int64_t r = part->first; r < part->end; r++) {
        const int64_t from = pi[r * index->ld];
        if (from < 0)
            memset(py + r * y->ld, 0, bytes);
        else
            memcpy(py + r * y->ld, px + from * x->ld, bytes);
    }
}

bt_status BTCPU_FN(gather)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *y = &call->t[BT_GATHER_Y];
    btcpu_run_parts(dev, btcpu_parts(dev, y->rows * y->cols), y->rows, gather_rows, call);
    return BT_OK;
}

/* ---- gate ------------------------------------------------------------------------------------ */

static inline float sigmoid(float x) { return 1.0f / (1.0f + btcpu_exp(-x)); }

/* A gate's operands at a row; bias NULL: 0. */
typedef struct gate {
    const bt_view *t;
    const float *bias;
} gate;

static inline float *row_of(const bt_view *v, int64_t r) { return btcpu_f32(v) + r * v->ld; }

static void gate_fwd_rows(const btcpu_part *part) {
    const gate *g = part->ctx;
    const bt_view *t = g->t;
    const int64_t cols = t[BT_GATE_FWD_A].cols;
    for (int64_t r = part->first; r < part->end; r++) {
        const float *a = row_of(&t[BT_GATE_FWD_A], r), *b = row_of(&t[BT_GATE_FWD_B], r);
        const float *z = row_of(&t[BT_GATE_FWD_Z], r), *bias = g->bias;
        float *y = row_of(&t[BT_GATE_FWD_Y], r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            const float s = sigmoid(z[i] + (bias ? bias[i] : 0.0f));
            y[i] = s * a[i] + (1.0f - s) * b[i];
        }
    }
}

static void gate_bwd_rows(const btcpu_part *part) {
    const gate *g = part->ctx;
    const bt_view *t = g->t;
    const int64_t cols = t[BT_GATE_BWD_DY].cols;
    for (int64_t r = part->first; r < part->end; r++) {
        const float *dy = row_of(&t[BT_GATE_BWD_DY], r), *a = row_of(&t[BT_GATE_BWD_A], r);
        const float *b = row_of(&t[BT_GATE_BWD_B], r), *z = row_of(&t[BT_GATE_BWD_Z], r);
        const float *bias = g->bias;
        float *da = row_of(&t[BT_GATE_BWD_DA], r), *db = row_of(&t[BT_GATE_BWD_DB], r);
        float *dz = row_of(&t[BT_GATE_BWD_DZ], r);
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) {
            const float s = sigmoid(z[i] + (bias ? bias[i] : 0.0f)), d = dy[i];
            const float slope = s * (1.0f - s) * (a[i] - b[i]) * d;
            da[i] = s * d;
            db[i] = (1.0f - s) * d;
            dz[i] = slope;
        }
    }
}

bt_status BTCPU_FN(gate_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *a = &call->t[BT_GATE_FWD_A];
    const gate g = {call->t, btcpu_f32(&call->t[BT_GATE_FWD_BIAS])};
    btcpu_run_parts(dev, btcpu_parts(dev, a->rows * a->cols), a->rows, gate_fwd_rows, &g);
    return BT_OK;
}

bt_status BTCPU_FN(gate_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *dy = &call->t[BT_GATE_BWD_DY];
    const gate g = {call->t, btcpu_f32(&call->t[BT_GATE_BWD_BIAS])};
    btcpu_run_parts(dev, btcpu_parts(dev, dy->rows * dy->cols), dy->rows, gate_bwd_rows, &g);
    return BT_OK;
}
