/* Attention of the oracle: per sequence, head and query an online softmax over blocks of keys; the
 * backward pass recomputes the scores twice, once by query and once by key, and stores nothing. */
#include "cpu/ref.h"

#include <math.h>
#include <string.h>

enum { KEYS = 64 }; /* keys (or queries) handled at a time */

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

/* log-sum-exp of the scores of query i; -infinity without a key. */
static double row_lse(const seq_head *h, int64_t i) {
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < visible(h, i); j++) {
        double s = score(h, i, j);
        if (s > most) {
            sum *= exp(most - s);
            most = s;
        }
        sum += s == most ? 1 : exp(s - most);
    }
    return most + log(sum);
}

static void fwd_query(const seq_head *h, const btref_mat *o, const btref_mat *lse, int64_t i) {
    int64_t keys = visible(h, i), row = h->query_row + i;
    double l = keys > 0 ? row_lse(h, i) : -INFINITY, f[KEYS];
    if (lse->p != NULL) btref_put(&l, lse, row, h->head, 1);
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        double sum[BTREF_BLOCK] = {0};
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        for (int64_t j = 0; j < keys; j++) {
            if (j % KEYS == 0) factors(f, h, i, j, btref_min(KEYS, keys - j));
            double w = f[j % KEYS] == 0 ? 0 : f[j % KEYS] * exp(score(h, i, j) - l);
            add_row(sum, w, h, &h->v, key_row(h, j), at, n);
        }
        btref_put(sum, o, row, h->col + at, n);
    }
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

/* Of the pair (i, j): P_ij and dS_ij = P_ij (f dP_ij - delta_i); returns f P_ij. */
static double pair(const seq_head *h, const bwd_mats *m, int64_t i, int64_t j, double factor,
                   double *ds) {
    double l, row_i = 0;
    int64_t row = h->query_row + i;
    btref_get(&l, &m->lse, row, h->head, 1);
    double p = exp(score(h, i, j) - l);
    row_i = dot(h, &m->d_o, row, &m->o, row);
    double dp = factor == 0 ? 0 : factor * dot(h, &m->d_o, row, &h->v, key_row(h, j));
    *ds = p * (dp - row_i);
    return factor * p;
}

static void bwd_query(const seq_head *h, const bwd_mats *m, int64_t i) {
    int64_t keys = visible(h, i);
    double f[KEYS], ds;
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        double sum[BTREF_BLOCK] = {0};
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        for (int64_t j = 0; j < keys; j++) {
            if (j % KEYS == 0) factors(f, h, i, j, btref_min(KEYS, keys - j));
            pair(h, m, i, j, f[j % KEYS], &ds);
            add_row(sum, h->p->scale * ds, h, &h->k, key_row(h, j), at, n);
        }
        btref_put(sum, &m->dq, h->query_row + i, h->col + at, n);
    }
}

static void bwd_key(const seq_head *h, const bwd_mats *m, int64_t j) {
    for (int64_t at = 0; at < h->width; at += BTREF_BLOCK) {
        double dk[BTREF_BLOCK] = {0}, dv[BTREF_BLOCK] = {0}, f, ds;
        int64_t n = btref_min(BTREF_BLOCK, h->width - at);
        for (int64_t i = 0; i < h->query_count; i++) {
            if (j >= visible(h, i)) continue;
            factors(&f, h, i, j, 1);
            double w = pair(h, m, i, j, f, &ds);
            add_row(dk, h->p->scale * ds, h, &h->q, h->query_row + i, at, n);
            add_row(dv, w, h, &m->d_o, h->query_row + i, at, n);
        }
        btref_put(dk, &m->dk, h->key_row + j, h->col + at, n);
        btref_put(dv, &m->dv, h->key_row + j, h->col + at, n);
    }
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
            for (int64_t i = 0; i < h.query_count; i++) bwd_query(&h, &m, i);
            for (int64_t j = 0; j < h.key_count; j++) bwd_key(&h, &m, j);
        }
    }
    return BT_OK;
}
