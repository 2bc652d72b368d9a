/* Softmax over a vocabulary: cross-entropy with its gradient in place, and the k best symbols;
 * losses of values. A row is at most a megabyte and stays in cache between its passes, so that each
 * logit crosses the memory bus once each way. Partial sums of 1,024 terms are added up in double.
 */
#include "cpu/rows.h"

#define SUM_BLOCK 1024

/* Largest of x + b over n; NaN is passed over (the sum will show it). */
static float row_max(const float *x, const float *b, int64_t n) {
    float m = -INFINITY;
    if (b) {
#pragma omp simd reduction(max : m)
        for (int64_t i = 0; i < n; i++) {
            float z = x[i] + b[i];
            m = z > m ? z : m;
        }
    } else {
#pragma omp simd reduction(max : m)
        for (int64_t i = 0; i < n; i++) m = x[i] > m ? x[i] : m;
    }
    return m;
}

/* Sum of e^(x + b - max) over n, the terms stored to `out` unless that is NULL (out may be x); sum
 * of x + b in *plain unless that is NULL. */
static double row_exp(const float *x, const float *b, float max, int64_t n, float *out,
                      double *plain) {
    double sum = 0, total = 0;
    float scrap[SUM_BLOCK];
    for (int64_t c = 0; c < n; c += SUM_BLOCK) {
        const int64_t m = n - c < SUM_BLOCK ? n - c : SUM_BLOCK;
        const float *xc = x + c, *bc = b ? b + c : NULL;
        float *to = out ? out + c : scrap;
        float s = 0.0f, z = 0.0f;
        if (plain && bc) {
#pragma omp simd reduction(+ : z)
            for (int64_t i = 0; i < m; i++) z += xc[i] + bc[i];
        } else if (plain) {
#pragma omp simd reduction(+ : z)
            for (int64_t i = 0; i < m; i++) z += xc[i];
        }
        if (bc) {
#pragma omp simd reduction(+ : s)
            for (int64_t i = 0; i < m; i++) {
                float e = btcpu_exp(xc[i] + bc[i] - max);
                to[i] = e;
                s += e;
            }
        } else {
#pragma omp simd reduction(+ : s)
            for (int64_t i = 0; i < m; i++) {
                float e = btcpu_exp(xc[i] - max);
                to[i] = e;
                s += e;
            }
        }
        sum += (double)s;
        total += (double)z;
    }
    if (plain) *plain = total;
    return sum;
}

/* loss[0..1] of one row; its logits become the gradient when that is wanted. */
static void ce_row(float *x, const float *bias, int32_t label, float *loss, int64_t cols,
                   const bt_cross_entropy_params *p, double grad_scale) {
    if (label < 0) {
        if (p->grad) memset(x, 0, (size_t)cols * sizeof(float));
        loss[0] = loss[1] = 0.0f;
        return;
    }
    const double s = p->smoothing, v = (double)cols;
    const float max = row_max(x, bias, cols);
    const double at = (double)x[label] + (bias ? (double)bias[label] : 0.0);
    double plain = 0;
    const double sum = row_exp(x, bias, max, cols, p->grad ? x : NULL, s > 0 ? &plain : NULL);
    const double lse = (double)max + log(sum), nll = lse - at;
    loss[0] = (float)(s > 0 ? (1.0 - s) * nll + s * (lse - plain / v) : nll);
    loss[1] = (float)nll;
    if (!p->grad) return;
    const float scale = (float)(grad_scale / sum), less = (float)(grad_scale * s / v);
    const double own = grad_scale * ((double)x[label] / sum - s / v - (1.0 - s));
#pragma omp simd
    for (int64_t i = 0; i < cols; i++) x[i] = x[i] * scale - less;
    x[label] = (float)own;
}

static void ce_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_CROSS_ENTROPY_LOGITS],
                  *labels = &call->t[BT_CROSS_ENTROPY_LABELS];
    const bt_view *loss = &call->t[BT_CROSS_ENTROPY_LOSS];
    const float *bias = btcpu_f32(&call->t[BT_CROSS_ENTROPY_BIAS]);
    const float *scalars = btcpu_f32(&call->t[BT_CROSS_ENTROPY_SCALARS]);
    const double loss_scale = scalars ? (double)scalars[BT_SCALAR_LOSS_SCALE] : 1.0;
    const int32_t *pl = btcpu_i32(labels);
    float *px = btcpu_f32(x), *out = btcpu_f32(loss);
    for (int64_t r = part->first; r < part->end; r++)
        ce_row(px + r * x->ld, bias, pl[r * labels->ld], out + r * loss->ld, x->cols,
               &call->p.cross_entropy, call->p.cross_entropy.grad_scale * loss_scale);
}

bt_status BTCPU_FN(cross_entropy)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_CROSS_ENTROPY_LOGITS];
    btcpu_run_parts(dev, btcpu_parts(dev, x->rows * x->cols * 2), x->rows, ce_rows, call);
    return BT_OK;
}

/* ---- losses of values ------------------------------------------------------------------------ */

/* Rows are a handful of labels: plain loops in double cost nothing beside the model. */
static void value_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_value_loss_params *p = &call->p.value_loss;
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z], *target = &call->t[BT_VALUE_LOSS_TARGET];
    const bt_view *loss = &call->t[BT_VALUE_LOSS_LOSS];
    const float *bias = btcpu_f32(&call->t[BT_VALUE_LOSS_BIAS]);
    const float *scalars = btcpu_f32(&call->t[BT_VALUE_LOSS_SCALARS]);
    const double more = scalars ? (double)scalars[BT_SCALAR_LOSS_SCALE] : 1.0;
    const double scale = p->grad_scale * more / (double)z->cols;
    for (int64_t r = part->first; r < part->end; r++) {
        float *x = btcpu_f32(z) + r * z->ld, *out = btcpu_f32(loss) + r * loss->ld;
        const float *t = btcpu_f32(target) + r * target->ld;
        double sum = 0;
        for (int64_t i = 0; i < z->cols; i++) {
            const double u = (double)x[i] + (bias ? (double)bias[i] : 0.0), want = (double)t[i];
            double slope = 2 * (u - want);
            if (p->kind == BT_VALUES_SQUARE) {
                sum += (u - want) * (u - want);
            } else {
                sum += fmax(u, 0) - want * u + log1p(exp(-fabs(u)));
                slope = 1 / (1 + exp(-u)) - want;
            }
            if (p->grad) x[i] = (float)(scale * slope);
        }
        out[0] = out[1] = (float)(sum / (double)z->cols);
    }
}

bt_status BTCPU_FN(value_loss)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z];
    btcpu_run_parts(dev, btcpu_parts(dev, z->rows * z->cols * 8), z->rows, value_rows, call);
    return BT_OK;
}

/* ---- the k best ------------------------------------------------------------------------------ */

/* The best so far lie sorted in value[0 .. have), ties in order of id. Puts one in; `have` stays
 * at most k. k is small (a beam and some), so that moving entries beats a heap. */
static int64_t topk_insert(float *value, int32_t *id, int64_t have, int64_t k, float z, int32_t i) {
    int64_t at = have < k ? have : k - 1;
    while (at > 0 && value[at - 1] < z) {
        value[at] = value[at - 1];
        id[at] = id[at - 1];
        at--;
    }
    value[at] = z;
    id[at] = i;
    return have < k ? have + 1 : k;
}

static int is_forbidden(const int32_t *forbid, int64_t i) {
    for (int f = 0; f < BT_TOPK_FORBID; f++)
        if (forbid[f] == i) return 1;
    return 0;
}

/* A row is cut into at most this many blocks of whole vectors. */
#define TOPK_BLOCKS 1024
#define TOPK_SMALL 64

static int64_t topk_block(int64_t cols) {
    const int64_t even = (cols + TOPK_BLOCKS - 1) / TOPK_BLOCKS;
    return (even + TOPK_SMALL - 1) / TOPK_SMALL * TOPK_SMALL;
}

/* The largest entry of each block, and a bound that k entries reach which are not forbidden: the
 * (k + BT_TOPK_FORBID)-th of those largest. */
static float topk_bound(const float *x, const float *bias, int64_t cols, int64_t k,
                        float *largest) {
    float best[TOPK_SMALL];
    int32_t none[TOPK_SMALL];
    const int64_t size = topk_block(cols), want = k + BT_TOPK_FORBID;
    int64_t have = 0;
    for (int64_t c = 0, b = 0; c < cols; c += size, b++) {
        largest[b] = row_max(x + c, bias ? bias + c : NULL, cols - c < size ? cols - c : size);
        if (want <= TOPK_SMALL && (have < want || largest[b] > best[want - 1]))
            have = topk_insert(best, none, have, want, largest[b], 0);
    }
    return have == want ? best[want - 1] : -INFINITY;
}

/* Looks into blocks that reach the bound, in ascending order of ids, so that an equal value never
 * takes a place. */
static int64_t topk_select(const float *x, const float *bias, int64_t cols, int64_t k,
                           const int32_t *forbid, const float *largest, float bound, float *value,
                           int32_t *id) {
    const int64_t size = topk_block(cols);
    int64_t have = 0;
    for (int64_t c = 0, b = 0; c < cols; c += size, b++) {
        if (largest[b] < bound || (have == k && !(largest[b] > value[k - 1]))) continue;
        const int64_t end = cols - c < size ? cols : c + size;
        for (int64_t i = c; i < end; i++) {
            const float z = bias ? x[i] + bias[i] : x[i];
            if (have == k && !(z > value[k - 1])) continue;
            if (z < bound || is_forbidden(forbid, i)) continue;
            have = topk_insert(value, id, have, k, z, (int32_t)i);
        }
    }
    return have;
}

static void topk_row(const float *x, const float *bias, int64_t cols, int64_t k,
                     const int32_t *forbid, float *value, int32_t *id) {
    float largest[TOPK_BLOCKS], max = -INFINITY;
    const float bound = topk_bound(x, bias, cols, k, largest);
    for (int64_t b = 0; b * topk_block(cols) < cols; b++) max = largest[b] > max ? largest[b] : max;
    const double sum = row_exp(x, bias, max, cols, NULL, NULL);
    const double lse = (double)max + log(sum);
    int64_t have = 0;
    if (sum == sum && k > 0)
        have = topk_select(x, bias, cols, k, forbid, largest, bound, value, id);
    for (int64_t j = 0; j < have; j++) value[j] = (float)((double)value[j] - lse);
    for (int64_t j = have; j < k; j++) {
        value[j] = sum == sum ? -INFINITY : NAN;
        id[j] = -1;
    }
}

static void topk_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *x = &call->t[BT_TOPK_LOGITS], *value = &call->t[BT_TOPK_VALUE];
    const bt_view *id = &call->t[BT_TOPK_ID];
    const float *bias = btcpu_f32(&call->t[BT_TOPK_BIAS]), *px = btcpu_f32(x);
    float *pv = btcpu_f32(value);
    int32_t *pi = btcpu_at(id);
    for (int64_t r = part->first; r < part->end; r++)
        topk_row(px + r * x->ld, bias, x->cols, value->cols, call->p.topk.forbid,
                 pv + r * value->ld, pi + r * id->ld);
}

bt_status BTCPU_FN(topk)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *x = &call->t[BT_TOPK_LOGITS];
    btcpu_run_parts(dev, btcpu_parts(dev, x->rows * x->cols * 2), x->rows, topk_rows, call);
    return BT_OK;
}
