/* Embedding tables: rows looked up, scaled, given their position and dropped in one pass; the
 * gradient as one sum for each distinct id, in the host's order, so that it is the same every time
 * however often a word occurs. */
#include "cpu/rows.h"

static void embed_rows(const btcpu_part *part) {
    const bt_call *call = part->ctx;
    const bt_view *table = &call->t[BT_EMBED_FWD_TABLE], *ids = &call->t[BT_EMBED_FWD_IDS];
    const bt_view *rowpos = &call->t[BT_EMBED_FWD_ROWPOS], *pos = &call->t[BT_EMBED_FWD_POSTAB];
    const bt_view *y = &call->t[BT_EMBED_FWD_Y];
    const btcpu_drop drop = btcpu_drop_of(&call->p.embed.drop, rowpos);
    const float scale = (float)call->p.embed.scale;
    const float *pt = btcpu_f32(table), *pp = btcpu_f32(pos);
    const int32_t *pi = btcpu_i32(ids), *pr = btcpu_i32(rowpos);
    const int64_t cols = y->cols;
    float buf[BTCPU_WORDS];
    for (int64_t r = part->first; r < part->end; r++) {
        const float *from = pt + pi[r * ids->ld] * table->ld;
        const float *at = pp ? pp + pr[r * rowpos->ld + 1] * pos->ld : NULL;
        for (int64_t c = 0; c < cols; c += BTCPU_WORDS) {
            const int64_t n = btcpu_chunk(c, cols);
            float *to = btcpu_target(y, r, c, buf);
            if (at) {
#pragma omp simd
                for (int64_t i = 0; i < n; i++) to[i] = scale * from[c + i] + at[c + i];
            } else {
#pragma omp simd
                for (int64_t i = 0; i < n; i++) to[i] = scale * from[c + i];
            }
            if (drop.drop) btcpu_drop_chunk(&drop, r, c, n, to, to);
            btcpu_write(y, r, c, n, to);
        }
    }
}

bt_status BTCPU_FN(embed_fwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *y = &call->t[BT_EMBED_FWD_Y];
    btcpu_run_parts(dev, btcpu_parts(dev, y->rows * y->cols), y->rows, embed_rows, call);
    return BT_OK;
}

typedef struct embed_bwd {
    const bt_view *dy;
    const int32_t *order, *segs;
    float *dtable;
    int64_t order_ld, segs_ld, dtable_ld;
    int64_t ids, rows, cols; /* distinct ids; size of the table */
    btcpu_drop drop;
    float scale;
    int keep; /* beta is 1 */
} embed_bwd;

/* to = (keep: to +) scale * sum of drop(dy) over order[first .. end), columns in chunks. */
static void sum_rows(const embed_bwd *e, int64_t first, int64_t end, float *to) {
    float sum[BTCPU_WORDS], kept[BTCPU_WORDS], buf[BTCPU_WORDS];
    for (int64_t c = 0; c < e->cols; c += BTCPU_WORDS) {
        const int64_t n = btcpu_chunk(c, e->cols);
        memset(sum, 0, sizeof sum);
        for (int64_t j = first; j < end; j++) {
            const int64_t r = e->order[j * e->order_ld];
            const float *dy = btcpu_read(e->dy, r, c, n, buf);
            if (e->drop.drop) {
                btcpu_drop_chunk(&e->drop, r, c, n, dy, kept);
                dy = kept;
            }
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] += dy[i];
        }
        const float scale = e->scale;
        float *out = to + c;
        if (e->keep) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] += scale * sum[i];
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) out[i] = scale * sum[i];
        }
    }
}

static void zero_rows(float *table, int64_t ld, int64_t cols, int64_t first, int64_t end) {
    if (ld == cols && first < end) {
        memset(table + first * ld, 0, (size_t)((end - first) * cols) * sizeof(float));
        return;
    }
    for (int64_t r = first; r < end; r++) memset(table + r * ld, 0, (size_t)cols * sizeof(float));
}

/* Segment u's task is its own id and, with beta 0, clearing the ids between the one before and it;
 * the closing segment clears the rest of the table. */
static void sum_segments(const btcpu_part *part) {
    const embed_bwd *e = part->ctx;
    const int64_t ld = e->dtable_ld;
    for (int64_t u = part->first; u < part->end; u++) {
        const int32_t *seg = e->segs + u * e->segs_ld;
        const int64_t id = u < e->ids ? seg[0] : e->rows;
        if (!e->keep) zero_rows(e->dtable, ld, e->cols, u ? seg[-e->segs_ld] + 1 : 0, id);
        if (u < e->ids) sum_rows(e, seg[1], seg[e->segs_ld + 1], e->dtable + id * ld);
    }
}

bt_status BTCPU_FN(embed_bwd)(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    (void)stream;
    const bt_view *dy = &call->t[BT_EMBED_BWD_DY], *order = &call->t[BT_EMBED_BWD_ORDER];
    const bt_view *segs = &call->t[BT_EMBED_BWD_SEGS], *dtable = &call->t[BT_EMBED_BWD_DTABLE];
    const embed_bwd e = {.dy = dy,
                         .order = btcpu_i32(order),
                         .segs = btcpu_i32(segs),
                         .dtable = btcpu_f32(dtable),
                         .order_ld = order->ld,
                         .segs_ld = segs->ld,
                         .dtable_ld = dtable->ld,
                         .ids = segs->rows > 0 ? segs->rows - 1 : 0,
                         .rows = dtable->rows,
                         .cols = dtable->cols,
                         .drop = btcpu_drop_of(&call->p.embed.drop, &call->t[BT_EMBED_BWD_ROWPOS]),
                         .scale = (float)call->p.embed.scale,
                         .keep = call->p.embed.beta != 0};
    const int parts = btcpu_parts(dev, (dy->rows + (e.keep ? 0 : dtable->rows / 4)) * dtable->cols);
    btcpu_run_tasks(dev, parts, e.ids + 1, 8, sum_segments, &e);
    return BT_OK;
}
