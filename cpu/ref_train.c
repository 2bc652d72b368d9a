/* Embedding, loss, best symbols and the optimiser of the oracle. */
#include "cpu/ref.h"

#include <math.h>
#include <string.h>

#include "core/base/code8.h"

/* ---- embedding --------------------------------------------------------------------------------
 */

bt_status btref_embed_fwd(const btref_args *a) {
    const bt_embed_params *p = &a->call->p.embed;
    btref_mat table = btref_operand(a, BT_EMBED_FWD_TABLE),
              ids = btref_operand(a, BT_EMBED_FWD_IDS),
              rowpos = btref_operand(a, BT_EMBED_FWD_ROWPOS),
              postab = btref_operand(a, BT_EMBED_FWD_POSTAB), y = btref_operand(a, BT_EMBED_FWD_Y);
    double u[BTREF_BLOCK], pos[BTREF_BLOCK], f[BTREF_BLOCK];
    for (int64_t r = 0; r < y.rows; r++) {
        int32_t id = btref_int(&ids, r, 0), position = btref_int(&rowpos, r, 1);
        if (id < 0 || id >= table.rows)
            return bti_fail(BT_EINTERNAL, "embed_fwd: row %lld has id %d of a table of %lld",
                            (long long)r, id, (long long)table.rows);
        if (postab.p != NULL && (position < 0 || position >= postab.rows))
            return bti_fail(BT_EINTERNAL, "embed_fwd: row %lld has position %d of %lld",
                            (long long)r, position, (long long)postab.rows);
        for (int64_t at = 0; at < y.cols; at += BTREF_BLOCK) {
            int64_t n = btref_min(BTREF_BLOCK, y.cols - at);
            btref_get(u, &table, id, at, n);
            btref_get_or_zero(pos, &postab, position, at, n);
            btref_drop_row(f, &p->drop, &rowpos, r, at, n);
            for (int64_t i = 0; i < n; i++)
                u[i] = f[i] == 0 ? 0 : f[i] * (p->scale * u[i] + pos[i]);
            btref_put(u, &y, r, at, n);
        }
    }
    return BT_OK;
}

/* The row plan: ids ascend, segments cover [0, R) in order, `order` stays within R. */
static bt_status check_row_plan(const btref_mat *order, const btref_mat *segs, int64_t table_rows) {
    int64_t last = segs->rows - 1, at = 0;
    int ok = btref_int(segs, last, 0) == -1 && btref_int(segs, last, 1) == order->rows;
    for (int64_t u = 0; u < last && ok; u++) {
        int32_t id = btref_int(segs, u, 0), first = btref_int(segs, u, 1);
        ok = first == at && btref_int(segs, u + 1, 1) > first && id < table_rows &&
             id > (u ? btref_int(segs, u - 1, 0) : -1);
        at = btref_int(segs, u + 1, 1);
    }
    ok = ok && at == order->rows;
    for (int64_t r = 0; r < order->rows && ok; r++)
        ok = btref_int(order, r, 0) >= 0 && btref_int(order, r, 0) < order->rows;
    return ok ? BT_OK : bti_fail(BT_EINTERNAL, "embed_bwd: the row plan is wrong");
}

/* The gradient of one id: rows order[from .. to) of dy. */
static void embed_row(const btref_args *a, const btref_mat *dtable, int64_t id, int64_t from,
                      int64_t to) {
    const bt_embed_params *p = &a->call->p.embed;
    btref_mat dy = btref_operand(a, BT_EMBED_BWD_DY), order = btref_operand(a, BT_EMBED_BWD_ORDER),
              rowpos = btref_operand(a, BT_EMBED_BWD_ROWPOS);
    double u[BTREF_BLOCK], f[BTREF_BLOCK];
    for (int64_t at = 0; at < dy.cols; at += BTREF_BLOCK) {
        int64_t n = btref_min(BTREF_BLOCK, dy.cols - at);
        double sum[BTREF_BLOCK] = {0};
        for (int64_t k = from; k < to; k++) {
            int64_t r = btref_int(&order, k, 0);
            btref_get(u, &dy, r, at, n);
            btref_drop_row(f, &p->drop, &rowpos, r, at, n);
            for (int64_t i = 0; i < n; i++) sum[i] += f[i] == 0 ? 0 : f[i] * u[i];
        }
        for (int64_t i = 0; i < n; i++) sum[i] *= p->scale;
        btref_put_grad(sum, p->beta, dtable, id, at, n);
    }
}

bt_status btref_embed_bwd(const btref_args *a) {
    const bt_embed_params *p = &a->call->p.embed;
    btref_mat order = btref_operand(a, BT_EMBED_BWD_ORDER),
              segs = btref_operand(a, BT_EMBED_BWD_SEGS),
              dtable = btref_operand(a, BT_EMBED_BWD_DTABLE);
    BT_TRY(check_row_plan(&order, &segs, dtable.rows));
    int64_t u = 0;
    for (int64_t id = 0; id < dtable.rows; id++) {
        if (btref_int(&segs, u, 0) == id) {
            embed_row(a, &dtable, id, btref_int(&segs, u, 1), btref_int(&segs, u + 1, 1));
            u++;
        } else if (p->beta == 0) {
            embed_row(a, &dtable, id, 0, 0);
        }
    }
    return BT_OK;
}

/* ---- cross-entropy ----------------------------------------------------------------------------
 */

/* z = logits + bias, n columns of a row. */
static void get_z(double *z, const btref_mat *logits, const btref_mat *bias, int64_t r, int64_t at,
                  int64_t n) {
    double b[BTREF_BLOCK];
    btref_get(z, logits, r, at, n);
    btref_get_or_zero(b, bias, 0, at, n);
    for (int64_t i = 0; i < n; i++) z[i] += b[i];
}

/* log sum exp of a row of z, and its mean; NaN passes. */
static double z_lse(const btref_mat *logits, const btref_mat *bias, int64_t r, double *mean) {
    double z[BTREF_BLOCK], most = -INFINITY, sum = 0, total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t at = 0; at < logits->cols; at += BTREF_BLOCK) {
            int64_t n = btref_min(BTREF_BLOCK, logits->cols - at);
            get_z(z, logits, bias, r, at, n);
            for (int64_t i = 0; i < n; i++)
                if (pass == 0) {
                    if (z[i] > most) most = z[i];
                    total += z[i];
                } else {
                    sum += exp(z[i] - most);
                }
        }
    *mean = total / (double)logits->cols;
    return most + log(sum);
}

/* Writes the gradient of a row over its logits; zeros when the label is negative. */
static void loss_grad_row(const bt_cross_entropy_params *p, double scale, const btref_mat *logits,
                          const btref_mat *bias, int64_t r, int32_t label, double lse) {
    double z[BTREF_BLOCK], even = p->smoothing / (double)logits->cols;
    for (int64_t at = 0; at < logits->cols; at += BTREF_BLOCK) {
        int64_t n = btref_min(BTREF_BLOCK, logits->cols - at);
        get_z(z, logits, bias, r, at, n);
        for (int64_t i = 0; i < n; i++) {
            double q = even + (at + i == label ? 1 - p->smoothing : 0);
            z[i] = label < 0 ? 0 : scale * (exp(z[i] - lse) - q);
        }
        btref_put(z, logits, r, at, n);
    }
}

bt_status btref_cross_entropy(const btref_args *a) {
    const bt_cross_entropy_params *p = &a->call->p.cross_entropy;
    btref_mat logits = btref_operand(a, BT_CROSS_ENTROPY_LOGITS),
              bias = btref_operand(a, BT_CROSS_ENTROPY_BIAS),
              labels = btref_operand(a, BT_CROSS_ENTROPY_LABELS),
              scalars = btref_operand(a, BT_CROSS_ENTROPY_SCALARS),
              loss = btref_operand(a, BT_CROSS_ENTROPY_LOSS);
    double loss_scale = 1;
    if (scalars.p != NULL) btref_get(&loss_scale, &scalars, 0, BT_SCALAR_LOSS_SCALE, 1);
    for (int64_t r = 0; r < logits.rows; r++) {
        int32_t label = btref_int(&labels, r, 0);
        double out[2] = {0, 0}, mean = 0, lse = 0, z;
        if (label >= logits.cols)
            return bti_fail(BT_EINTERNAL, "cross_entropy: row %lld has label %d of %lld symbols",
                            (long long)r, label, (long long)logits.cols);
        if (label >= 0) {
            lse = z_lse(&logits, &bias, r, &mean);
            get_z(&z, &logits, &bias, r, label, 1);
            out[1] = lse - z;
            out[0] = out[1];
            if (p->smoothing > 0)
                out[0] = (1 - p->smoothing) * out[1] + p->smoothing * (lse - mean);
        }
        btref_put(out, &loss, r, 0, 2);
        if (p->grad) loss_grad_row(p, p->grad_scale * loss_scale, &logits, &bias, r, label, lse);
    }
    return BT_OK;
}

/* ---- losses of values -------------------------------------------------------------------------
 */

/* e and de/du. */
static double value_loss_one(bt_values kind, double u, double t, double *slope) {
    if (kind == BT_VALUES_SQUARE) {
        *slope = 2 * (u - t);
        return (u - t) * (u - t);
    }
    *slope = 1 / (1 + exp(-u)) - t;
    return fmax(u, 0) - t * u + log1p(exp(-fabs(u)));
}

bt_status btref_value_loss(const btref_args *a) {
    const bt_value_loss_params *p = &a->call->p.value_loss;
    btref_mat z = btref_operand(a, BT_VALUE_LOSS_Z), bias = btref_operand(a, BT_VALUE_LOSS_BIAS),
              target = btref_operand(a, BT_VALUE_LOSS_TARGET),
              scalars = btref_operand(a, BT_VALUE_LOSS_SCALARS),
              loss = btref_operand(a, BT_VALUE_LOSS_LOSS);
    double scale = 1;
    if (scalars.p != NULL) btref_get(&scale, &scalars, 0, BT_SCALAR_LOSS_SCALE, 1);
    scale *= p->grad_scale / (double)z.cols;
    for (int64_t r = 0; r < z.rows; r++) {
        double u[BTREF_BLOCK], t[BTREF_BLOCK], out[2] = {0, 0};
        for (int64_t at = 0; at < z.cols; at += BTREF_BLOCK) {
            int64_t n = btref_min(BTREF_BLOCK, z.cols - at);
            get_z(u, &z, &bias, r, at, n);
            btref_get(t, &target, r, at, n);
            for (int64_t i = 0; i < n; i++) {
                out[0] += value_loss_one(p->kind, u[i], t[i], &u[i]);
                u[i] *= scale;
            }
            if (p->grad) btref_put(u, &z, r, at, n);
        }
        out[0] = out[1] = out[0] / (double)z.cols;
        btref_put(out, &loss, r, 0, 2);
    }
    return BT_OK;
}

/* ---- best symbols -----------------------------------------------------------------------------
 */

typedef struct candidate {
    double z;
    int64_t id; /* -1: none */
} candidate;

static int is_forbidden(const bt_topk_params *p, int64_t id) {
    for (int i = 0; i < BT_TOPK_FORBID; i++)
        if (p->forbid[i] == id) return 1;
    return 0;
}

/* The best allowed entry of a row that comes after `last` (better first, ties by id). */
static candidate next_best(const bt_topk_params *p, const btref_mat *logits, const btref_mat *bias,
                           int64_t r, candidate last) {
    double z[BTREF_BLOCK];
    candidate best = {0, -1};
    for (int64_t at = 0; at < logits->cols; at += BTREF_BLOCK) {
        int64_t n = btref_min(BTREF_BLOCK, logits->cols - at);
        get_z(z, logits, bias, r, at, n);
        for (int64_t i = 0; i < n; i++) {
            int after = last.id < 0 || z[i] < last.z || (z[i] == last.z && at + i > last.id);
            if (after && (best.id < 0 || z[i] > best.z) && !is_forbidden(p, at + i))
                best = (candidate){z[i], at + i};
        }
    }
    return best;
}

bt_status btref_topk(const btref_args *a) {
    const bt_topk_params *p = &a->call->p.topk;
    btref_mat logits = btref_operand(a, BT_TOPK_LOGITS), bias = btref_operand(a, BT_TOPK_BIAS),
              value = btref_operand(a, BT_TOPK_VALUE), id = btref_operand(a, BT_TOPK_ID);
    for (int64_t r = 0; r < logits.rows; r++) {
        double mean, lse = z_lse(&logits, &bias, r, &mean);
        candidate last = {0, -1};
        int done = 0;
        for (int64_t k = 0; k < value.cols; k++) {
            if (!isnan(lse) && !done) last = next_best(p, &logits, &bias, r, last);
            done = done || last.id < 0;
            double v = isnan(lse) ? NAN : done ? -INFINITY : last.z - lse;
            btref_put(&v, &value, r, k, 1);
            ((int32_t *)(void *)id.p)[r * id.ld + k] = isnan(lse) || done ? -1 : (int32_t)last.id;
        }
    }
    return BT_OK;
}

/* ---- optimiser --------------------------------------------------------------------------------
 */

bt_status btref_sumsq(const btref_args *a) {
    btref_mat x = btref_operand(a, BT_SUMSQ_X), part = btref_operand(a, BT_SUMSQ_PART);
    double u[BTREF_BLOCK];
    for (int64_t b = 0; b < part.rows; b++) {
        int64_t from = b * BT_SUMSQ_BLOCK, to = btref_min(x.cols, from + BT_SUMSQ_BLOCK);
        double s = 0, q = 0;
        int finite = 1;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t at = from; at < to; at += BTREF_BLOCK) {
                int64_t n = btref_min(BTREF_BLOCK, to - at);
                btref_get(u, &x, 0, at, n);
                for (int64_t i = 0; i < n; i++)
                    if (pass == 0) {
                        finite = finite && isfinite(u[i]);
                        if (fabs(u[i]) > s) s = fabs(u[i]);
                    } else if (s > 0) {
                        q += (u[i] / s) * (u[i] / s);
                    }
            }
        btref_put(finite ? (const double[]){s, q} : (const double[]){1, NAN}, &part, b, 0, 2);
    }
    return BT_OK;
}

/* The loss scale of the next update. */
static void next_scale(const bt_update_scalars_params *p, double *c) {
    if (p->growth_interval == 0) return;
    c[BT_SCALAR_GOOD] = c[BT_SCALAR_SKIP] != 0 ? 0 : c[BT_SCALAR_GOOD] + 1;
    if (c[BT_SCALAR_SKIP] != 0) c[BT_SCALAR_LOSS_SCALE] /= 2;
    if (c[BT_SCALAR_GOOD] < p->growth_interval) return;
    c[BT_SCALAR_LOSS_SCALE] = fmin(2 * c[BT_SCALAR_LOSS_SCALE], (double)p->scale_max);
    c[BT_SCALAR_GOOD] = 0;
}

bt_status btref_update_scalars(const btref_args *a) {
    btref_mat part = btref_operand(a, BT_UPDATE_SCALARS_PART),
              scalars = btref_operand(a, BT_UPDATE_SCALARS_SCALARS);
    double c[BT_SCALAR_COUNT], sq[2], most = 0, sum = 0;
    btref_get(c, &scalars, 0, 0, BT_SCALAR_COUNT);
    for (int64_t r = 0; r < part.rows; r++) {
        btref_get(sq, &part, r, 0, 2);
        if (sq[0] > most) most = sq[0];
    }
    for (int64_t r = 0; r < part.rows; r++) {
        btref_get(sq, &part, r, 0, 2);
        sum += most > 0 ? (sq[0] / most) * (sq[0] / most) * sq[1] : sq[1];
    }
    double scale = c[BT_SCALAR_LOSS_SCALE], norm = most * sqrt(sum) / scale;
    if (isnan(sum)) norm = NAN;
    btref_put(&norm, &scalars, 0, BT_SCALAR_NORM, 1);
    btref_get(&norm, &scalars, 0, BT_SCALAR_NORM, 1); /* as stored: fp32 may overflow */
    c[BT_SCALAR_NORM] = norm;
    double factor = 1;
    if (c[BT_SCALAR_CLIP] > 0 && norm > c[BT_SCALAR_CLIP]) factor = c[BT_SCALAR_CLIP] / norm;
    c[BT_SCALAR_FACTOR] = isfinite(norm) ? factor / scale : 0;
    c[BT_SCALAR_SKIP] = isfinite(norm) ? 0 : 1;
    next_scale(&a->call->p.update_scalars, c);
    btref_put(&c[BT_SCALAR_HOST_COUNT], &scalars, 0, BT_SCALAR_HOST_COUNT,
              BT_SCALAR_COUNT - BT_SCALAR_HOST_COUNT);
    return BT_OK;
}

/* One element; w, m and v are updated. */
static void adamw_one(const bt_adamw_params *p, const double *c, double g, double *w, double *m,
                      double *v) {
    g = g * c[BT_SCALAR_FACTOR] + (p->decoupled ? 0 : p->weight_decay * *w);
    *m = p->beta1 * *m + (1 - p->beta1) * g;
    *v = p->beta2 * *v + (1 - p->beta2) * g * g;
    if (p->decoupled) *w *= 1 - c[BT_SCALAR_LR] * p->weight_decay;
    *w -= c[BT_SCALAR_LR] * (*m / c[BT_SCALAR_CORRECTION1]) /
          (sqrt(*v / c[BT_SCALAR_CORRECTION2]) + p->eps);
}

typedef struct adam_mats {
    btref_mat g, w, m, v;
} adam_mats;

/* Row `row` of the state with row `from` of the gradient; no gradient (g.p NULL): zero. */
static void adamw_row(const bt_adamw_params *p, const double *c, const adam_mats *t, int64_t row,
                      int64_t from) {
    double g[BTREF_BLOCK], w[BTREF_BLOCK], m[BTREF_BLOCK], v[BTREF_BLOCK];
    for (int64_t at = 0; at < t->w.cols; at += BTREF_BLOCK) {
        int64_t n = btref_min(BTREF_BLOCK, t->w.cols - at);
        btref_get_or_zero(g, &t->g, from, at, n);
        btref_get(w, &t->w, row, at, n);
        btref_get(m, &t->m, row, at, n);
        btref_get(v, &t->v, row, at, n);
        for (int64_t i = 0; i < n; i++) adamw_one(p, c, g[i], &w[i], &m[i], &v[i]);
        btref_put(w, &t->w, row, at, n);
        btref_put(m, &t->m, row, at, n);
        btref_put(v, &t->v, row, at, n);
    }
}

bt_status btref_adamw(const btref_args *a) {
    adam_mats t = {btref_operand(a, BT_ADAMW_G), btref_operand(a, BT_ADAMW_W),
                   btref_operand(a, BT_ADAMW_M), btref_operand(a, BT_ADAMW_V)};
    btref_mat scalars = btref_operand(a, BT_ADAMW_SCALARS);
    double c[BT_SCALAR_COUNT];
    btref_get(c, &scalars, 0, 0, BT_SCALAR_COUNT);
    if (c[BT_SCALAR_SKIP] == 0) adamw_row(&a->call->p.adamw, c, &t, 0, 0);
    return BT_OK;
}

/* Entries ascend up to what lies behind row `end`: rows of later parts, or padding. */
static bt_status check_index(const btref_mat *index, int64_t end) {
    int64_t least = 0;
    for (int64_t k = 0; k < index->rows; k++) {
        int64_t row = btref_int(index, k, 0);
        if (row < least)
            return bti_fail(BT_EINTERNAL, "adamw: entry %lld of the index is %lld after %lld",
                            (long long)k, (long long)row, (long long)(least - 1));
        least = row >= end ? end : row + 1;
    }
    return BT_OK;
}

/* The first entry that is `row` or more. */
static int64_t find_row(const btref_mat *index, int64_t row) {
    int64_t k = 0;
    while (k < index->rows && btref_int(index, k, 0) < row) k++;
    return k;
}

bt_status btref_adamw_rows(const btref_args *a) {
    adam_mats t = {btref_operand(a, BT_ADAMW_ROWS_G), btref_operand(a, BT_ADAMW_ROWS_W),
                   btref_operand(a, BT_ADAMW_ROWS_M), btref_operand(a, BT_ADAMW_ROWS_V)};
    adam_mats untouched = {{0}, t.w, t.m, t.v};
    btref_mat index = btref_operand(a, BT_ADAMW_ROWS_INDEX),
              scalars = btref_operand(a, BT_ADAMW_ROWS_SCALARS);
    double c[BT_SCALAR_COUNT];
    int64_t first = a->call->p.adamw.first_row, k = find_row(&index, first);
    BT_TRY(check_index(&index, first + t.w.rows));
    btref_get(c, &scalars, 0, 0, BT_SCALAR_COUNT);
    if (c[BT_SCALAR_SKIP] != 0) return BT_OK;
    for (int64_t row = 0; row < t.w.rows; row++) {
        int touched = k < index.rows && btref_int(&index, k, 0) == first + row;
        adamw_row(&a->call->p.adamw, c, touched ? &t : &untouched, row, k);
        k += touched;
    }
    return BT_OK;
}

/* ---- moments in 8 bits ------------------------------------------------------------------------
 */

/* The values of n codes of a block. */
static void widen(double *x, const uint8_t *code, const btref_mat *scales, int64_t block, int most,
                  int64_t n) {
    double scale;
    btref_get(&scale, scales, 0, block, 1);
    for (int64_t i = 0; i < n; i++) x[i] = bti_code8_value(code[i], scale, most);
}

/* The codes of n values and their scale. */
static void narrow(const double *x, uint8_t *code, const btref_mat *scales, int64_t block, int most,
                   int64_t n) {
    double scale = 0;
    for (int64_t i = 0; i < n; i++) scale = fmax(scale, fabs(x[i]));
    btref_put(&scale, scales, 0, block, 1);
    for (int64_t i = 0; i < n; i++) code[i] = bti_code8_of(x[i], scale, most);
}

/* The gradient of elements [from, from + n) of a table with a compact one. */
static void spread_gradient(double *g, const btref_mat *grad, const btref_mat *index, int64_t from,
                            int64_t n) {
    int64_t k = find_row(index, from / grad->cols);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (from + i) / grad->cols;
        while (k < index->rows && btref_int(index, k, 0) < row) k++;
        g[i] = 0;
        if (k < index->rows && btref_int(index, k, 0) == row)
            btref_get(&g[i], grad, k, (from + i) % grad->cols, 1);
    }
}

bt_status btref_adamw8(const btref_args *a) {
    btref_mat grad = btref_operand(a, BT_ADAMW8_G), index = btref_operand(a, BT_ADAMW8_INDEX),
              scalars = btref_operand(a, BT_ADAMW8_SCALARS), wm = btref_operand(a, BT_ADAMW8_W),
              ms = btref_operand(a, BT_ADAMW8_MS), vs = btref_operand(a, BT_ADAMW8_VS);
    double c[BT_SCALAR_COUNT];
    double g[BT_ADAMW8_BLOCK], w[BT_ADAMW8_BLOCK], m[BT_ADAMW8_BLOCK], v[BT_ADAMW8_BLOCK];
    int64_t skipped = a->call->p.adamw.first_row * grad.cols; /* elements before w's */
    if (index.p != NULL) BT_TRY(check_index(&index, (skipped + wm.cols) / grad.cols));
    btref_get(c, &scalars, 0, 0, BT_SCALAR_COUNT);
    if (c[BT_SCALAR_SKIP] != 0) return BT_OK;
    for (int64_t from = 0, b = 0; from < wm.cols; from += BT_ADAMW8_BLOCK, b++) {
        int64_t n = btref_min(BT_ADAMW8_BLOCK, wm.cols - from);
        uint8_t *mc = (uint8_t *)a->p[BT_ADAMW8_M] + from;
        uint8_t *vc = (uint8_t *)a->p[BT_ADAMW8_V] + from;
        if (index.p == NULL)
            btref_get(g, &grad, 0, from, n);
        else
            spread_gradient(g, &grad, &index, skipped + from, n);
        btref_get(w, &wm, 0, from, n);
        widen(m, mc, &ms, b, BTI_CODE8_SIGNED, n);
        widen(v, vc, &vs, b, BTI_CODE8_UNSIGNED, n);
        for (int64_t i = 0; i < n; i++) adamw_one(&a->call->p.adamw, c, g[i], &w[i], &m[i], &v[i]);
        btref_put(w, &wm, 0, from, n);
        narrow(m, mc, &ms, b, BTI_CODE8_SIGNED, n);
        narrow(v, vc, &vs, b, BTI_CODE8_UNSIGNED, n);
    }
    return BT_OK;
}
