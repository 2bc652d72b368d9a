/* Attention of the oracle: per sequence, head and query an online softmax over blocks of keys; the
 * backward pass recomputes the scores twice, once by query and once by key, and stores nothing. */
#include "cpu/ref.h"

#include <math.h>
#include <string.h>

enum {
    KEYS = 64, /* keys whose dropout factors are made at a time */
    TILE = 16  /* keys whose gradients are summed at a time */
};

/* One sequence and one head. */
typedef struct seq_head {
    btref_mat q, k, v;
    int64_t query_row, query_count, key_row, key_count, query_pos;
    uint32_t place, head;
    int64_t col, width;   /* columns of the head */
    const int32_t *index; /* key rows, or NULL: key_row + j */
    const bt_attn_params *p;
} seq_head;

/* Reads and checks row `s` of seq. */
static bt_status get_seq(seq_head *h, const btref_mat *seq, const btref_mat *kidx, int64_t s) {
    int32_t c[BT_SEQ_COLS];
    for (int i = 0; i < BT_SEQ_COLS; i++) c[i] = btref_int(seq, s, i);
    h->query_row = c[BT_SEQ_QUERY_ROW];
    h->query_count = c[BT_SEQ_QUERY_COUNT];
    h->key_row = c[BT_SEQ_KEY_ROW];
    h->key_count = c[BT_SEQ_KEY_COUNT];
    h->place = (uint32_t)c[BT_SEQ_PLACE];
    h->query_pos = c[BT_SEQ_QUERY_POS];
    h->index = kidx->p ? (const int32_t *)(const void *)kidx->p + s * kidx->ld : NULL;
    int ok = h->query_row >= 0 && h->query_count >= 0 && h->key_count >= 0 &&
             h->query_row + h->query_count <= h->q.rows && h->query_pos >= 0;
    if (h->index == NULL)
        ok = ok && h->key_row >= 0 && h->key_row + h->key_count <= h->k.rows;
    else
        ok = ok && h->key_count <= kidx->cols;
    if (ok && h->index != NULL)
        for (int64_t j = 0; j < h->key_count; j++)
            ok = ok && h->index[j] >= 0 && h->index[j] < h->k.rows;
    if (ok && h->p->drop.p > 0)
        ok = h->query_pos + h->query_count - 1 <= BT_PHILOX_MAX_POSITION &&
             h->key_count - 1 <= BT_PHILOX_MAX_CHANNEL;
    if (ok) return BT_OK;
    return bti_fail(BT_EINTERNAL,
                    "attention: sequence %lld (queries %d + %d at %d, keys %d + %d) points outside "
                    "its %lld query or %lld key rows",
                    (long long)s, c[0], c[1], c[5], c[2], c[3], (long long)h->q.rows,
                    (long long)h->k.rows);
}

/* Number of keys that query i sees. */
static int64_t visible(const seq_head *h, int64_t i) {
    if (!h->p->causal) return h->key_count;
    return btref_min(h->key_count, h->query_pos + i + 1);
}

static int64_t key_row(const seq_head *h, int64_t j) {
    return h->index ? h->index[j] : h->key_row + j;
}

/* Row `ra` of a times row `rb` of b over the head's columns. */
static double dot(const seq_head *h, const btref_mat *a, int64_t ra, const btref_mat *b,
                  int64_t rb) {
    double x[BTREF_BLOCK], y[BTREF_BLOCK], sum = 0;
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        btref_get(x, a, ra, h->col + at, n);
        btref_get(y, b, rb, h->col + at, n);
        for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    }
    return sum;
}

/* sum += w * row `r` of m, columns [at, at + n) of the head. */
static void add_row(double *sum, double w, const seq_head *h, const btref_mat *m, int64_t r,
                    int64_t at, int64_t n) {
    double x[BTREF_BLOCK];
    btref_get(x, m, r, h->col + at, n);
    for (int64_t i = 0; i < n; i++) sum[i] += w * x[i];
}

/* Dropout factors of query i and keys [j0, j0 + n). */
static void factors(double *f, const seq_head *h, int64_t i, int64_t j0, int64_t n) {
    if (h->p->drop.p > 0)
        btref_drop(f, &h->p->drop, h->head, h->place, (uint32_t)(h->query_pos + i), j0, n);
    else
        for (int64_t j = 0; j < n; j++) f[j] = 1;
}

static double score(const seq_head *h, int64_t i, int64_t j) {
    return h->p->scale * dot(h, &h->q, h->query_row + i, &h->k, key_row(h, j));
}

/* ---- forward ----------------------------------------------------------------------------------
 */

/* Online softmax of query i: `most` is the largest score so far, `mass` the sum of exp(s - most),
 * `sum` that of drop(exp(s - most)) v. Wide heads are done in blocks of columns. */
static void fwd_query(const seq_head *h, const btref_mat *o, const btref_mat *lse, int64_t i) {
    int64_t keys = visible(h, i), row = h->query_row + i;
    double most = -INFINITY, mass = 0, f[KEYS];
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        double sum[BTREF_BLOCK] = {0};
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        most = -INFINITY;
        mass = 0;
        for (int64_t j = 0; j < keys; j++) {
            if (j % KEYS == 0) factors(f, h, i, j, btref_min(KEYS, keys - j));
            double s = score(h, i, j);
            if (s > most) {
                double shrink = exp(most - s);
                for (int64_t k = 0; k < n; k++) sum[k] *= shrink;
                mass *= shrink;
                most = s;
            }
            double p = s == -INFINITY ? 0 : exp(s - most); /* also where nothing is larger */
            mass += p;
            if (f[j % KEYS] != 0) add_row(sum, f[j % KEYS] * p, h, &h->v, key_row(h, j), at, n);
        }
        for (int64_t k = 0; k < n && keys > 0; k++) sum[k] /= mass;
        btref_put(sum, o, row, h->col + at, n);
    }
    double l = keys > 0 ? most + log(mass) : -INFINITY;
    if (lse->p != NULL) btref_put(&l, lse, row, h->head, 1);
}

bt_status btref_attn_fwd(const btref_args *a) {
    btref_mat seq = btref_operand(a, BT_ATTN_FWD_SEQ), kidx = btref_operand(a, BT_ATTN_FWD_KIDX),
              o = btref_operand(a, BT_ATTN_FWD_O), lse = btref_operand(a, BT_ATTN_FWD_LSE);
    seq_head h = {.q = btref_operand(a, BT_ATTN_FWD_Q),
                  .k = btref_operand(a, BT_ATTN_FWD_K),
                  .v = btref_operand(a, BT_ATTN_FWD_V),
                  .p = &a->call->p.attn};
    h.width = h.q.cols / h.p->heads;
    for (int64_t s = 0; s < seq.rows; s++) {
        BT_TRY(get_seq(&h, &seq, &kidx, s));
        for (int32_t head = 0; head < h.p->heads; head++) {
            h.head = (uint32_t)head;
            h.col = head * h.width;
            for (int64_t i = 0; i < h.query_count; i++) fwd_query(&h, &o, &lse, i);
        }
    }
    return BT_OK;
}

/* ---- backward ---------------------------------------------------------------------------------
 */

typedef struct bwd_mats {
    btref_mat o, lse, d_o, dq, dk, dv;
} bwd_mats;

/* What the backward pass needs of one query. */
typedef struct query {
    int64_t i, row;
    double lse, delta; /* delta = do . o */
} query;

static query get_query(const seq_head *h, const bwd_mats *m, int64_t i) {
    query q = {i, h->query_row + i, 0, 0};
    btref_get(&q.lse, &m->lse, q.row, h->head, 1);
    q.delta = dot(h, &m->d_o, q.row, &m->o, q.row);
    return q;
}

/* P of the pair (query, key j); *ds = P (factor dP - delta). */
static double pair(const seq_head *h, const bwd_mats *m, const query *q, int64_t j, double factor,
                   double *ds) {
    double p = exp(score(h, q->i, j) - q->lse);
    double dp = factor == 0 ? 0 : factor * dot(h, &m->d_o, q->row, &h->v, key_row(h, j));
    *ds = p * (dp - q->delta);
    return p;
}

static void bwd_query(const seq_head *h, const bwd_mats *m, int64_t i) {
    query q = get_query(h, m, i);
    int64_t keys = visible(h, i);
    double f[KEYS], ds;
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        double sum[BTREF_BLOCK] = {0};
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        for (int64_t j = 0; j < keys; j++) {
            if (j % KEYS == 0) factors(f, h, i, j, btref_min(KEYS, keys - j));
            pair(h, m, &q, j, f[j % KEYS], &ds);
            add_row(sum, h->p->scale * ds, h, &h->k, key_row(h, j), at, n);
        }
        btref_put(sum, &m->dq, q.row, h->col + at, n);
    }
}

/* dk and dv of keys [j0, j0 + count), count <= TILE, columns [at, at + n) of the head. */
static void bwd_keys(const seq_head *h, const bwd_mats *m, int64_t j0, int64_t count, int64_t at,
                     int64_t n) {
    double dk[TILE][BTREF_BLOCK] = {{0}}, dv[TILE][BTREF_BLOCK] = {{0}}, f[TILE], ds;
    for (int64_t i = 0; i < h->query_count; i++) {
        int64_t seen = btref_min(count, visible(h, i) - j0);
        if (seen <= 0) continue;
        query q = get_query(h, m, i);
        factors(f, h, i, j0, seen);
        for (int64_t j = 0; j < seen; j++) {
            double p = pair(h, m, &q, j0 + j, f[j], &ds);
            add_row(dk[j], h->p->scale * ds, h, &h->q, q.row, at, n);
            if (f[j] != 0) add_row(dv[j], f[j] * p, h, &m->d_o, q.row, at, n);
        }
    }
    for (int64_t j = 0; j < count; j++) {
        btref_put(dk[j], &m->dk, h->key_row + j0 + j, h->col + at, n);
        btref_put(dv[j], &m->dv, h->key_row + j0 + j, h->col + at, n);
    }
}

static void bwd_head(const seq_head *h, const bwd_mats *m) {
    for (int64_t i = 0; i < h->query_count; i++) bwd_query(h, m, i);
    for (int64_t j = 0; j < h->key_count; j += TILE)
        for (int64_t at = 0; at < h->width; at += BTREF_BLOCK)
            bwd_keys(h, m, j, btref_min(TILE, h->key_count - j), at,
                     btref_min(BTREF_BLOCK, h->width - at));
}

bt_status btref_attn_bwd(const btref_args *a) {
    btref_mat seq = btref_operand(a, BT_ATTN_BWD_SEQ), none = {0};
    bwd_mats m = {btref_operand(a, BT_ATTN_BWD_O),  btref_operand(a, BT_ATTN_BWD_LSE),
                  btref_operand(a, BT_ATTN_BWD_DO), btref_operand(a, BT_ATTN_BWD_DQ),
                  btref_operand(a, BT_ATTN_BWD_DK), btref_operand(a, BT_ATTN_BWD_DV)};
    seq_head h = {.q = btref_operand(a, BT_ATTN_BWD_Q),
                  .k = btref_operand(a, BT_ATTN_BWD_K),
                  .v = btref_operand(a, BT_ATTN_BWD_V),
                  .p = &a->call->p.attn};
    h.width = h.q.cols / h.p->heads;
    for (int64_t s = 0; s < seq.rows; s++) {
        BT_TRY(get_seq(&h, &seq, &none, s));
        for (int32_t head = 0; head < h.p->heads; head++) {
            h.head = (uint32_t)head;
            h.col = head * h.width;
            bwd_head(&h, &m);
        }
    }
    return BT_OK;
}
