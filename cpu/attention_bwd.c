/* Attention, backward: probabilities are made again from log-sum-exp, tile by tile
 * (cpu/attention.h). */
#include "cpu/attention.h"

typedef struct bwd {
    const bt_view *q, *k, *v, *o, *go, *dq, *dk, *dv;
    const float *lse;
    int64_t lse_ld;
    const bt_attn_params *p;
    const int32_t *seq;
    int64_t seq_ld, cols, floats;
    float *ws; /* floats for each thread */
} bwd;

typedef struct bwd_tile {
    float *qt, *got, *dqt; /* transposed: D x BQ */
    float *q, *go;         /* rows of whole vectors: BQ x w */
    float *s, *dp, *dropped, *lse, *delta, *scale;
    float *k, *v, *dk, *dv; /* of halves: BK rows, BTCPU_SPAN rows */
    int64_t w;
} bwd_tile;

static bwd_tile bwd_tiles(float *ws, int64_t d, int half) {
    bwd_tile t = {.qt = ws, .w = btcpu_round16(d)};
    t.got = t.qt + BQ * t.w;
    t.dqt = t.got + BQ * t.w;
    t.q = t.dqt + BQ * t.w;
    t.go = t.q + BQ * t.w;
    t.s = t.go + BQ * t.w;
    t.dp = t.s + BQ * BK;
    t.dropped = t.dp + BQ * BK;
    t.lse = t.dropped + BQ * BK;
    t.delta = t.lse + BQ;
    t.scale = t.delta + BQ;
    if (half) {
        t.k = t.scale + 2 * BQ;
        t.v = t.k + BK * t.w;
        t.dk = t.v + BK * t.w;
        t.dv = t.dk + BTCPU_SPAN * t.w;
    }
    return t;
}

/* to[i] = factor * from[i], rows padded with 0 to w. to may be from. */
static void copy_rows(rows from, int64_t n, int64_t d, float factor, float *to, int64_t w) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = from.p + i * from.ld;
        float *out = to + i * w;
#pragma omp simd
        for (int64_t c = 0; c < d; c++) out[c] = factor * row[c];
        for (int64_t c = d; c < w; c++) out[c] = 0.0f;
    }
}

/* What the keys of all tiles need of these queries. A lane without a query, or whose query sees no
 * key, gets log-sum-exp +infinity: all its probabilities are 0. */
static void load_queries(const bwd *a, const task *t, int64_t q0, int64_t n, const bwd_tile *w) {
    const int64_t row = t->query_row + q0, d = t->d;
    const rows q = head_rows(a->q, row, t->head_col, NULL, n, d, w->q);
    const rows go = head_rows(a->go, row, t->head_col, NULL, n, d, w->go);
    const rows o = head_rows(a->o, row, t->head_col, NULL, n, d, w->dqt);
    const float scale = (float)t->p->scale;
    transpose_in(q, n, d, scale, w->qt);
    transpose_in(go, n, d, 1.0f, w->got);
    copy_rows(q, n, d, scale, w->q, w->w);
    copy_rows(go, n, d, 1.0f, w->go, w->w);
    for (int64_t i = 0; i < lanes_of(n); i++) {
        float lse = -INFINITY, delta = 0.0f;
        if (i < n) {
            lse = a->lse[(row + i) * a->lse_ld + t->head];
#pragma omp simd reduction(+ : delta)
            for (int64_t c = 0; c < d; c++) delta += go.p[i * go.ld + c] * o.p[i * o.ld + c];
        }
        w->lse[i] = lse == -INFINITY ? INFINITY : lse;
        w->delta[i] = delta;
        w->scale[i] = scale;
    }
}

/* From scores and gradients of dropped probabilities: s = dS, dropped = drop(P). */
static void bwd_softmax(const task *t, int64_t q0, int64_t k0, int64_t keys, int64_t lanes,
                        const bwd_tile *w) {
    uint32_t words[4 * BQ];
    const float *lse = w->lse, *delta = w->delta;
    const uint32_t threshold = t->threshold;
    const float keep = t->keep_scale;
    for (int64_t j = 0; j < keys; j++) {
        float *s = w->s + j * BQ, *dropped = w->dropped + j * BQ;
        const float *dp = w->dp + j * BQ;
        if (threshold == 0) {
#pragma omp simd
            for (int64_t i = 0; i < lanes; i++) {
                float prob = btcpu_exp(s[i] - lse[i]);
                dropped[i] = prob;
                s[i] = prob * (dp[i] - delta[i]);
            }
            continue;
        }
        if (j % 4 == 0) quad_words(t, q0, (k0 + j) / 4, lanes, words);
        const uint32_t *word = words + j % 4 * BQ;
#pragma omp simd
        for (int64_t i = 0; i < lanes; i++) {
            float prob = btcpu_exp(s[i] - lse[i]);
            float factor = word[i] >= threshold ? keep : 0.0f;
            dropped[i] = prob * factor;
            s[i] = prob * (dp[i] * factor - delta[i]);
        }
    }
}

/* Keys `first` .. `end` - 1 of a task, and where the gradients of the first lie as fp32; NULL:
 * they are not wanted. */
typedef struct span {
    int64_t first, end;
    int dq; /* the gradients of the queries are wanted */
    float *dk, *dv;
    int64_t dk_ld, dv_ld;
} span;

/* Queries q0 .. q0 + n - 1 over the keys of a span that they see. */
static void bwd_queries(const bwd *a, const task *t, int64_t q0, int64_t n, const span *s,
                        const bwd_tile *w) {
    const int64_t lanes = lanes_of(n), seen = visible(t, q0, n), d = t->d;
    const int64_t end = seen < s->end ? seen : s->end;
    load_queries(a, t, q0, n, w);
    for (int64_t k0 = s->first; k0 < end; k0 += BK) {
        const int64_t keys = end - k0 < BK ? end - k0 : BK, row = t->key_row + k0;
        const rows k = head_rows(a->k, row, t->head_col, NULL, keys, d, w->k);
        const rows v = head_rows(a->v, row, t->head_col, NULL, keys, d, w->v);
        run_panel(&(panel){k.p, k.ld, 1, w->qt, BQ, d, w->s, BQ, 0}, keys, lanes);
        run_panel(&(panel){v.p, v.ld, 1, w->got, BQ, d, w->dp, BQ, 0}, keys, lanes);
        if (t->p->causal) mask_causal(t, q0, k0, keys, lanes, w->s);
        bwd_softmax(t, q0, k0, keys, lanes, w);
        if (s->dk) {
            float *dk = s->dk + (k0 - s->first) * s->dk_ld,
                  *dv = s->dv + (k0 - s->first) * s->dv_ld;
            run_panel(&(panel){w->dropped, BQ, 1, w->go, w->w, n, dv, s->dv_ld, 1}, keys, d);
            run_panel(&(panel){w->s, BQ, 1, w->q, w->w, n, dk, s->dk_ld, 1}, keys, d);
        }
        if (s->dq) run_panel(&(panel){k.p, 1, k.ld, w->s, BQ, keys, w->dqt, BQ, k0 > 0}, d, lanes);
    }
    if (!s->dq) return;
    if (end == 0) memset(w->dqt, 0, (size_t)(d * BQ) * sizeof(float));
    transpose_out(w->dqt, n, d, w->scale, a->dq, t->query_row + q0, t->head_col, w->qt);
}

static void bwd_span(const bwd *a, const task *t, const span *s, const bwd_tile *w) {
    for (int64_t i = 0; s->dk && i < s->end - s->first; i++) {
        memset(s->dk + i * s->dk_ld, 0, (size_t)t->d * sizeof(float));
        memset(s->dv + i * s->dv_ld, 0, (size_t)t->d * sizeof(float));
    }
    for (int64_t q0 = 0; q0 < t->queries; q0 += BQ)
        bwd_queries(a, t, q0, t->queries - q0 < BQ ? t->queries - q0 : BQ, s, w);
}

/* Gradients of keys and values are sums over all queries. fp32 ones grow where they will lie; of
 * halves a span of keys at a time is held in scratch. More keys than a span take the gradients of
 * the queries by themselves, for 7 products instead of 5. */
static void bwd_task(const bwd *a, const task *t, const bwd_tile *w) {
    const int half = btcpu_is_half(a->dk->dtype), whole = !half || t->keys <= BTCPU_SPAN;
    if (!whole) bwd_span(a, t, &(span){.end = t->keys, .dq = 1}, w);
    int64_t first = 0;
    do {
        const int64_t n = whole || t->keys - first < BTCPU_SPAN ? t->keys - first : BTCPU_SPAN;
        const int64_t row = t->key_row + first;
        const span s = {.first = first,
                        .end = first + n,
                        .dq = whole,
                        .dk = btcpu_target(a->dk, row, t->head_col, w->dk),
                        .dv = btcpu_target(a->dv, row, t->head_col, w->dv),
                        .dk_ld = half ? w->w : a->dk->ld,
                        .dv_ld = half ? w->w : a->dv->ld};
        bwd_span(a, t, &s, w);
        for (int64_t i = 0; i < n; i++) {
            btcpu_write(a->dk, row + i, t->head_col, t->d, s.dk + i * s.dk_ld);
            btcpu_write(a->dv, row + i, t->head_col, t->d, s.dv + i * s.dv_ld);
        }
        first += n;
    } while (first < t->keys);
}

static void bwd_tasks(const btcpu_part *part) {
    const bwd *a = part->ctx;
    const bt_attn_params *p = a->p;
    const bwd_tile w =
        bwd_tiles(a->ws + part->slot * a->floats, a->cols / p->heads, btcpu_is_half(a->dk->dtype));
    for (int64_t i = part->first; i < part->end; i++) {
        const task one = make_task(p, a->seq + i / p->heads * a->seq_ld, i % p->heads, a->cols);
        bwd_task(a, &one, &w);
    }
}

bt_status BTCPU_FN(attn_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *t = call->t, *q = &t[BT_ATTN_BWD_Q], *seq = &t[BT_ATTN_BWD_SEQ];
    const bt_attn_params *p = &call->p.attn;
    const bwd a = {.q = q,
                   .k = &t[BT_ATTN_BWD_K],
                   .v = &t[BT_ATTN_BWD_V],
                   .o = &t[BT_ATTN_BWD_O],
                   .go = &t[BT_ATTN_BWD_DO],
                   .dq = &t[BT_ATTN_BWD_DQ],
                   .dk = &t[BT_ATTN_BWD_DK],
                   .dv = &t[BT_ATTN_BWD_DV],
                   .lse = btcpu_f32(&t[BT_ATTN_BWD_LSE]),
                   .lse_ld = t[BT_ATTN_BWD_LSE].ld,
                   .p = p,
                   .seq = btcpu_i32(seq),
                   .seq_ld = seq->ld,
                   .cols = q->cols,
                   .floats = btcpu_attn_bwd_floats(q->cols / p->heads, btcpu_is_half(q->dtype)),
                   .ws = btcpu_ws(call)};
    const int64_t tasks = seq->rows * p->heads;
    btcpu_run_tasks(dev, task_parts(dev, tasks, q->rows * a.cols), tasks, 2, bwd_tasks, &a);
    return BT_OK;
}
