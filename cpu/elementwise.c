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
    const int64_t cols = x->cols;
    float buf[BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            int64_t n = btcpu_chunk(c, cols);
            float *to = btcpu_target(y, r, c, buf);
            act_chunk(p->act, btcpu_read(x, r, c, n, buf), bias ? bias + c : NULL, to, n);
            if (drop.drop) btcpu_drop_chunk(&drop, r, c, n, to, to);
            btcpu_write(y, r, c, n, to);
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
    const bt_view *dy, *x, *y, *dx;
    const float *bias;
    float *ws; /* NULL: no sums */
    int64_t cols;
} act_bwd;

/* dx of n columns from (r, c) on, to `to`; to may be any of the inputs. */
static void act_bwd_chunk(const act_bwd *a, int64_t r, int64_t c, int64_t n, float *to) {
    static const float zeros[BTCPU_WORDS];
    float buf[2][BTCPU_WORDS];
    const float *dy = btcpu_read(a->dy, r, c, n, buf[0]);
    if (a->act == BT_ACT_RELU) {
        const float *y = btcpu_read(a->y, r, c, n, buf[1]);
        const float scale = a->drop.scale;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float active = dy[i] * scale; /* read in any case, or SSE2 gets a branch */
            to[i] = y[i] > 0.0f ? active : 0.0f;
        }
    } else if (a->act == BT_ACT_GELU) {
        const float *x = btcpu_read(a->x, r, c, n, buf[1]), *b = a->bias ? a->bias + c : zeros;
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
    const int wanted = btcpu_has(a->dx);
    float buf[BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            int64_t n = btcpu_chunk(c, cols);
            float *to = wanted ? btcpu_target(a->dx, r, c, buf) : buf;
            act_bwd_chunk(a, r, c, n, to);
            if (wanted) btcpu_write(a->dx, r, c, n, to);
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
                       .dy = &t[BT_BIAS_ACT_BWD_DY],
                       .x = &t[BT_BIAS_ACT_BWD_X],
                       .y = &t[BT_BIAS_ACT_BWD_Y],
                       .dx = &t[BT_BIAS_ACT_BWD_DX],
                       .bias = btcpu_f32(&t[BT_BIAS_ACT_BWD_BIAS]),
                       .ws = dbias ? btcpu_ws(call) : NULL,
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

static int axpby_is_plain(const bt_call *call) {
    return call->t[BT_AXPBY_X].dtype == BT_F32 && call->t[BT_AXPBY_Y].dtype == BT_F32;
}

/* n columns of a row from (row, col) on, of any two types; fp32 in one run. */
static void axpby_piece(const bt_call *call, int64_t row, int64_t col, int64_t n) {
    const bt_view *x = &call->t[BT_AXPBY_X], *y = &call->t[BT_AXPBY_Y];
    const bt_axpby_params *p = &call->p.axpby;
    const int64_t most = axpby_is_plain(call) ? n : BTCPU_WORDS;
    float bx[BTCPU_WORDS], by[BTCPU_WORDS];
    for (int64_t c = col; c < col + n; c += most) {
        const int64_t m = col + n - c < most ? col + n - c : most;
        float *to = btcpu_target(y, row, c, by);
        if (p->b != 0) btcpu_read(y, row, c, m, by);
        axpby_run(p->a, p->b, btcpu_read(x, row, c, m, bx), to, m);
        btcpu_write(y, row, c, m, to);
    }
}

/* Matrices without gaps, as one long row. */
static void axpby_flat(const btcpu_part *part) {
    axpby_piece(part->ctx, 0, part->first, part->end - part->first);
}

static void axpby_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    for (int64_t r = part->first; r < part->end; r++)
        axpby_piece(call, r, 0, call->t[BT_AXPBY_X].cols);
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
    const size_t size = btcpu_size(y->dtype), bytes = (size_t)y->cols * size;
    const char *px = btcpu_at(x);
    char *py = btcpu_at(y);
    const int32_t *pi = btcpu_i32(index);
    for (int64_t r = part->first; r < part->end; r++) {
        const int64_t from = pi[r * index->ld];
        char *to = py + (size_t)(r * y->ld) * size;
        if (from < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, px + (size_t)(from * x->ld) * size, bytes);
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

static void gate_fwd_rows(const btcpu_part *part) {
    const bt_view *t = ((const bt_call *)part->ctx)->t, *out = &t[BT_GATE_FWD_Y];
    const float *bias = btcpu_f32(&t[BT_GATE_FWD_BIAS]);
    const int64_t cols = out->cols;
    float buf[3][BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            const int64_t n = btcpu_chunk(c, cols);
            const float *a = btcpu_read(&t[BT_GATE_FWD_A], r, c, n, buf[0]);
            const float *b = btcpu_read(&t[BT_GATE_FWD_B], r, c, n, buf[1]);
            const float *z = btcpu_read(&t[BT_GATE_FWD_Z], r, c, n, buf[2]);
            float *y = btcpu_target(out, r, c, buf[0]);
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                const float s = sigmoid(z[i] + (bias ? bias[c + i] : 0.0f));
                y[i] = s * a[i] + (1.0f - s) * b[i];
            }
            btcpu_write(out, r, c, n, y);
        }
    }
}

static void gate_bwd_rows(const btcpu_part *part) {
    const bt_view *t = ((const bt_call *)part->ctx)->t, *out = &t[BT_GATE_BWD_DA];
    const float *bias = btcpu_f32(&t[BT_GATE_BWD_BIAS]);
    const int64_t cols = out->cols;
    float buf[4][BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            const int64_t n = btcpu_chunk(c, cols);
            const float *dy = btcpu_read(&t[BT_GATE_BWD_DY], r, c, n, buf[0]);
            const float *a = btcpu_read(&t[BT_GATE_BWD_A], r, c, n, buf[1]);
            const float *b = btcpu_read(&t[BT_GATE_BWD_B], r, c, n, buf[2]);
            const float *z = btcpu_read(&t[BT_GATE_BWD_Z], r, c, n, buf[3]);
            float *d[3]; /* da, db, dz lie one after the other in the list */
            for (int i = 0; i < 3; i++) d[i] = btcpu_target(&out[i], r, c, buf[i]);
            float *da = d[0], *db = d[1], *dz = d[2];
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                const float s = sigmoid(z[i] + (bias ? bias[c + i] : 0.0f)), g = dy[i];
                const float slope = s * (1.0f - s) * (a[i] - b[i]) * g;
                da[i] = s * g;
                db[i] = (1.0f - s) * g;
                dz[i] = slope;
            }
            for (int i = 0; i < 3; i++) btcpu_write(&out[i], r, c, n, d[i]);
        }
    }
}

bt_status BTCPU_FN(gate_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *a = &call->t[BT_GATE_FWD_A];
    btcpu_run_parts(dev, btcpu_parts(dev, a->rows * a->cols), a->rows, gate_fwd_rows, call);
    return BT_OK;
}

bt_status BTCPU_FN(gate_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *dy = &call->t[BT_GATE_BWD_DY];
    btcpu_run_parts(dev, btcpu_parts(dev, dy->rows * dy->cols), dy->rows, gate_bwd_rows, call);
    return BT_OK;
}
