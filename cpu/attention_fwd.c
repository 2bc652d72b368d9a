/* Attention, forward: an online softmax over tiles of keys (cpu/attention.h). */
#include "cpu/attention.h"

typedef struct fwd {
    const bt_view *q, *k, *v, *o;
    float *lse; /* NULL: not wanted */
    int64_t lse_ld;
    const bt_attn_params *p;
    const int32_t *seq, *index; /* index NULL: keys lie in order */
    int64_t seq_ld, index_ld, cols, floats;
    float *ws; /* floats for each thread */
} fwd;

/* A thread's scratch. */
typedef struct fwd_tile {
    float *qt, *ot, *key, *value, *s, *max, *sum, *scale;
} fwd_tile;

static fwd_tile fwd_tiles(float *ws, int64_t d) {
    const int64_t w = btcpu_round16(d);
    fwd_tile t = {.qt = ws};
    t.ot = t.qt + BQ * w;
    t.key = t.ot + BQ * w;
    t.value = t.key + BK * w;
    t.s = t.value + BK * w;
    t.max = t.s + BQ * BK;
    t.sum = t.max + BQ;
    t.scale = t.sum + BQ;
    return t;
}

/* Takes the tile's scores into the running maximum and sum, turns them into probabilities (up to
 * the final division) and gives in w->scale what older sums must be multiplied by. */
static void softmax_tile(const fwd_tile *w, int64_t keys, int64_t lanes) {
    float base[BQ], fresh[BQ];
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) fresh[i] = w->max[i];
    for (int64_t j = 0; j < keys; j++) {
        const float *s = w->s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) fresh[i] = s[i] > fresh[i] ? s[i] : fresh[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) {
        base[i] = fresh[i] > -INFINITY ? fresh[i] : 0.0f;
        w->scale[i] = btcpu_exp(w->max[i] - base[i]);
        w->max[i] = fresh[i];
        fresh[i] = 0.0f;
    }
    for (int64_t j = 0; j < keys; j++) {
        float *s = w->s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float e = btcpu_exp(s[i] - base[i]);
            s[i] = e;
            fresh[i] += e;
        }
    }
#pragma omp simd
    for (int64_t i = 0; i < lanes; i++) w->sum[i] = w->sum[i] * w->scale[i] + fresh[i];
}

static void drop_tile(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                      float *s) {
    uint32_t words[4 * BQ];
    const uint32_t threshold = t->threshold;
    const float scale = t->keep_scale;
    for (int64_t j = 0; j < keys; j++) {
        if (j % 4 == 0) quad_words(t, q0, (k0 + j) / 4, lanes, words);
        const uint32_t *w = words + j % 4 * BQ;
        float *row = s + j * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float kept = row[i] * scale; /* read in any case, or SSE2 gets a branch */
            row[i] = w[i] >= threshold ? kept : 0.0f;
        }
    }
}

/* Queries q0 .. q0 + n - 1 over all keys that they see. index: the sequence's key rows, or NULL. */
static void fwd_queries(const fwd *a, const task *t, int64_t q0, int64_t n, const int32_t *index,
                        const fwd_tile *w) {
    const int64_t lanes = lanes_of(n), end = visible(t, q0, n), d = t->d;
    transpose_in(head_rows(a->q, t->query_row + q0, t->head_col, NULL, n, d, w->ot), n, d,
                 (float)t->p->scale, w->qt);
    for (int64_t i = 0; i < lanes; i++) w->max[i] = -INFINITY, w->sum[i] = 0.0f;
    for (int64_t k0 = 0; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK;
        const int32_t *at = index ? index + k0 : NULL;
        const int64_t base = index ? 0 : t->key_row + k0;
        const rows k = head_rows(a->k, base, t->head_col, at, keys, d, w->key);
        const rows v = head_rows(a->v, base, t->head_col, at, keys, d, w->value);
        run_panel(&(panel){k.p, k.ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        softmax_tile(w, keys, lanes);
        if (t->threshold) drop_tile(t, q0, k0, keys, lanes, w->s);
        for (int64_t c = 0; k0 > 0 && c < d; c++) {
            float *row = w->ot + c * BQ;
#pragma omp simd
            for (int64_t i = 0; i < lanes; i++) row[i] *= w->scale[i];
        }
        run_panel(&(panel){v.p, 1, v.ld, w->s, BQ, keys, w->ot, BQ, k0 > 0}, d, lanes);
    }
    if (end == 0) memset(w->ot, 0, (size_t)(d * BQ) * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (a->lse)
            a->lse[(t->query_row + q0 + i) * a->lse_ld + t->head] = w->max[i] + logf(w->sum[i]);
        w->scale[i] = end == 0 ? 0.0f : 1.0f / w->sum[i];
    }
    transpose_out(w->ot, n, d, w->scale, a->o, t->query_row + q0, t->head_col, w->qt);
}

static void fwd_tasks(const btcpu_part *part) {
    const fwd *a = part->ctx;
    const bt_attn_params *p = a->p;
    const fwd_tile w = fwd_tiles(a->ws + part->slot * a->floats, a->cols / p->heads);
    for (int64_t i = part->first; i < part->end; i++) {
        const int64_t s = i / p->heads;
        const task one = make_task(p, a->seq + s * a->seq_ld, i % p->heads, a->cols);
        for (int64_t q0 = 0; q0 < one.queries; q0 += BQ)
            fwd_queries(a, &one, q0, one.queries - q0 < BQ ? one.queries - q0 : BQ,
                        a->index ? a->index + s * a->index_ld : NULL, &w);
    }
}

bt_status BTCPU_FN(attn_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t, *q = &t[BT_ATTN_FWD_Q], *seq = &t[BT_ATTN_FWD_SEQ];
    const bt_view *kidx = &t[BT_ATTN_FWD_KIDX];
    const bt_attn_params *p = &call->p.attn;
    const fwd a = {.q = q,
                   .k = &t[BT_ATTN_FWD_K],
                   .v = &t[BT_ATTN_FWD_V],
                   .o = &t[BT_ATTN_FWD_O],
                   .lse = btcpu_f32(&t[BT_ATTN_FWD_LSE]),
                   .lse_ld = t[BT_ATTN_FWD_LSE].ld,
                   .p = p,
                   .seq = btcpu_i32(seq),
                   .index = btcpu_i32(kidx),
                   .seq_ld = seq->ld,
                   .index_ld = kidx->ld,
                   .cols = q->cols,
                   .floats = btcpu_attn_fwd_floats(q->cols / p->heads),
                   .ws = btcpu_ws(call)};
    const int64_t tasks = seq->rows * p->heads;
    btcpu_run_tasks(dev, task_parts(dev, tasks, q->rows * a.cols), tasks, 2, fwd_tasks, &a);
    return BT_OK;
}
