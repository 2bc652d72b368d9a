/* What a micro-batch reads: ids, places and positions, labels, sequences, row order; features and
 * the tables that say where their rows go. */
#include <string.h>

#include "core/base/status.h"
#include "core/model/head.h"

#include "core/engine/engine.h"

static int32_t *table(const bti_staging *at, void *slot, int side, int which) {
    return (int32_t *)((char *)slot + at->at[side][which]);
}

/* The sentences of a micro-batch, and its model. */
typedef struct batch {
    const bti_model *m;
    const bti_sentence *sentence;
    int64_t n, place; /* place: of the first in the update */
} batch;

/* Rows of sentence i: of a side's text, or of a segment. */
typedef int64_t (*count_fn)(const batch *b, int64_t i, int which);

static int64_t count_side(const batch *b, int64_t i, int side) {
    return b->sentence[i].count[side];
}

static int64_t count_segment(const batch *b, int64_t i, int segment) {
    return bti_sentence_segment(b->m, &b->sentence[i], segment);
}

/* Rows by id, ties by row: two counting passes over the low and high 16 bits of the ids, each of
 * which keeps the order of equal keys. */
static void sort_rows(const int32_t *ids, int64_t rows, int32_t *order, int32_t *scratch) {
    int32_t *count = scratch + rows;
    for (int pass = 0; pass < 2; pass++) {
        int shift = 16 * pass;
        int32_t *to = pass ? order : scratch;
        memset(count, 0, 65537 * sizeof *count);
        for (int64_t r = 0; r < rows; r++) count[((uint32_t)ids[r] >> shift & 0xFFFFu) + 1]++;
        for (int i = 0; i < 65536; i++) count[i + 1] += count[i];
        for (int64_t i = 0; i < rows; i++) {
            int32_t r = pass ? scratch[i] : (int32_t)i;
            to[count[(uint32_t)ids[r] >> shift & 0xFFFFu]++] = r;
        }
    }
}

/* order and segs of one side; gives the number of distinct ids. */
static int64_t row_plan(const int32_t *ids, int64_t rows, int32_t *order, int32_t *segs,
                        int32_t *scratch) {
    int64_t n = 0;
    sort_rows(ids, rows, order, scratch);
    for (int64_t i = 0; i < rows; i++) {
        if (i > 0 && ids[order[i]] == ids[order[i - 1]]) continue;
        segs[2 * n] = ids[order[i]];
        segs[2 * n + 1] = (int32_t)i;
        n++;
    }
    segs[2 * n] = -1;
    segs[2 * n + 1] = (int32_t)rows;
    return n;
}

/* The same by position: each position below the longest occurs, a row of every sentence that has
 * it, sentences in order. segs counts, then holds the next free place of each position. */
static void position_plan(const batch *b, count_fn count, int which, int64_t longest,
                          int32_t *order, int32_t *segs) {
    int64_t rows = 0;
    for (int64_t p = 0; p <= longest; p++) segs[2 * p] = p < longest ? (int32_t)p : -1;
    for (int64_t p = 0; p <= longest; p++) segs[2 * p + 1] = 0;
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t p = 0; p < count(b, i, which); p++) segs[2 * p + 3]++;
    for (int64_t p = 1; p <= longest; p++) segs[2 * p + 1] += segs[2 * p - 1];
    for (int64_t i = 0; i < b->n; i++)
        for (int64_t p = 0; p < count(b, i, which); p++) order[segs[2 * p + 1]++] = (int32_t)rows++;
    for (int64_t p = longest; p > 0; p--) segs[2 * p + 1] = segs[2 * p - 1];
    segs[1] = 0;
}

/* What the model reads at row j of a sentence: targets are moved on by one. */
static int32_t input_id(const bti_sentence *s, int side, int64_t j, int32_t start) {
    return side == 0 ? s->ids[0][j] : j == 0 ? start : s->ids[1][j - 1];
}

int64_t bti_stage_index(const bti_sentence *sentence, int64_t n, int side, int32_t start,
                        uint64_t *seen, int64_t vocab, int32_t *index, int64_t room) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < sentence[i].count[side]; j++) {
            uint32_t id = (uint32_t)input_id(&sentence[i], side, j, start);
            seen[id / 64] |= UINT64_C(1) << id % 64;
        }
    for (int64_t w = 0; w <= (vocab - 1) / 64; w++)
        for (; seen[w] != 0; seen[w] &= seen[w] - 1) {
            if (count < room) index[count] = (int32_t)(64 * w + __builtin_ctzll(seen[w]));
            count++;
        }
    for (int64_t k = count; k < room; k++) index[k] = INT32_MAX;
    return count;
}

static void sequence(int32_t *seq, int64_t q_row, int64_t q_count, int64_t k_row, int64_t k_count,
                     int64_t place) {
    seq[BT_SEQ_QUERY_ROW] = (int32_t)q_row;
    seq[BT_SEQ_QUERY_COUNT] = (int32_t)q_count;
    seq[BT_SEQ_KEY_ROW] = (int32_t)k_row;
    seq[BT_SEQ_KEY_COUNT] = (int32_t)k_count;
    seq[BT_SEQ_PLACE] = (int32_t)place;
    seq[BT_SEQ_QUERY_POS] = 0;
}

/* ---- text --------------------------------------------------------------------------------------
 */

/* ids, rowpos and their order of a side's embedding. */
static void stage_side(const bti_staging *at, const batch *b, int side, int32_t start, void *slot,
                       int32_t *sort, bti_shape *shape) {
    int64_t row = 0;
    for (int64_t i = 0; i < b->n; i++) {
        const bti_sentence *s = &b->sentence[i];
        int32_t *ids = table(at, slot, side, BTI_TABLE_IDS) + row;
        int32_t *rowpos = table(at, slot, side, BTI_TABLE_ROWPOS) + 2 * row;
        for (int64_t j = 0; j < s->count[side]; j++) {
            ids[j] = input_id(s, side, j, start);
            rowpos[2 * j] = (int32_t)(b->place + i);
            rowpos[2 * j + 1] = (int32_t)j;
        }
        row += s->count[side];
    }
    shape->distinct[side] =
        row_plan(table(at, slot, side, BTI_TABLE_IDS), row, table(at, slot, side, BTI_TABLE_ORDER),
                 table(at, slot, side, BTI_TABLE_SEGS), sort);
    if (at->positions)
        position_plan(b, count_side, side, shape->longest[side],
                      table(at, slot, side, BTI_TABLE_POSITION_ORDER),
                      table(at, slot, side, BTI_TABLE_POSITION_SEGS));
}

/* ---- segments ----------------------------------------------------------------------------------
 */

static int32_t *segment_table(const bti_staging *at, void *slot, int32_t i, int which) {
    return (int32_t *)((char *)slot + at->segment[i][which]);
}

static int32_t *join_table(const bti_staging *at, void *slot, int which) {
    return (int32_t *)((char *)slot + at->join[which]);
}

/* Where a side's embedding has the distinct ids of its rows. */
static int32_t *segs_of(const bti_model *m, const bti_staging *at, void *slot, int side) {
    for (int32_t i = 0; side == 0 && i < m->segments; i++)
        if (m->segment[i].kind == BTI_SEGMENT_TOKENS)
            return segment_table(at, slot, i, BTI_SEGMENT_SEGS);
    return table(at, slot, side, BTI_TABLE_SEGS);
}

void bti_stage_compact(const bti_model *m, const bti_staging *at, void *slot, int side,
                       int64_t distinct, const int32_t *index) {
    int32_t *segs = segs_of(m, at, slot, side);
    int32_t k = 0;
    for (int64_t u = 0; u < distinct; u++) { /* both ascend, and the index holds every id */
        while (index[k] < segs[2 * u]) k++;
        segs[2 * u] = k;
    }
}

/* Rows 0 .. n-1 in order, with their segs where `segs` is not NULL. */
static void in_order(int64_t n, int32_t *order, int32_t *segs) {
    for (int64_t r = 0; r < n; r++) order[r] = (int32_t)r;
    for (int64_t r = 0; segs != NULL && r <= n; r++) {
        segs[2 * r] = r < n ? (int32_t)r : -1;
        segs[2 * r + 1] = (int32_t)r;
    }
}

/* n numbers that were read as fp32, in place, where the model is in double. */
static void widen(const batch *b, void *values, int64_t n) {
    if (b->m->params.dtype != BT_F64) return;
    for (int64_t k = n - 1; k >= 0; k--)
        bti_store(values, BT_F64, k, (double)((const float *)values)[k]);
}

static bt_status read_feature(const batch *b, int32_t feature, const bti_sentence *s, void *out) {
    const bti_dense *d = s->dense;
    BT_TRY(d->read(d->user, feature, s->example, out));
    widen(b, out, s->rows[feature] * b->m->cfg.feature[feature].width);
    return BT_OK;
}

/* Where each learned row comes from: all sentences have the same. */
static void stage_learned(const bti_staging *at, const batch *b, int32_t i, void *slot) {
    int32_t *ids = segment_table(at, slot, i, BTI_SEGMENT_IDS);
    int32_t *order = segment_table(at, slot, i, BTI_SEGMENT_ORDER);
    int32_t *segs = segment_table(at, slot, i, BTI_SEGMENT_SEGS);
    int64_t rows = b->m->cfg.learned_rows;
    for (int64_t r = 0; r < b->n * rows; r++) {
        ids[r] = (int32_t)(r % rows);
        order[r % rows * b->n + r / rows] = (int32_t)r;
    }
    for (int64_t k = 0; k <= rows; k++) {
        segs[2 * k] = k < rows ? (int32_t)k : -1;
        segs[2 * k + 1] = (int32_t)(k * b->n);
    }
}

static bt_status stage_segment(const bti_staging *at, const batch *b, int32_t i, void *slot,
                               int32_t *sort, bti_shape *shape) {
    const bti_segment *g = &b->m->segment[i];
    int32_t *rowpos = segment_table(at, slot, i, BTI_SEGMENT_ROWPOS);
    int32_t *ids = segment_table(at, slot, i, BTI_SEGMENT_IDS);
    char *values = (char *)slot + at->segment[i][BTI_SEGMENT_VALUES];
    int64_t row = 0, longest = 0;
    for (int64_t k = 0; k < b->n; k++) {
        const bti_sentence *s = &b->sentence[k];
        int64_t count = count_segment(b, k, i);
        for (int64_t j = 0; j < count; j++) {
            rowpos[2 * (row + j)] = (int32_t)(b->place + k);
            rowpos[2 * (row + j) + 1] = (int32_t)j;
            if (g->kind == BTI_SEGMENT_TOKENS) ids[row + j] = s->ids[0][j];
        }
        if (g->kind == BTI_SEGMENT_FEATURE) {
            int64_t width = b->m->cfg.feature[g->feature].width;
            BT_TRY(
                read_feature(b, g->feature, s,
                             values + (size_t)(row * width) * bti_dtype_size(b->m->params.dtype)));
        }
        longest = count > longest ? count : longest;
        row += count;
    }
    if (g->kind == BTI_SEGMENT_LEARNED) stage_learned(at, b, i, slot);
    if (g->kind == BTI_SEGMENT_FEATURE) {
        shape->feature[g->feature] = row;
        shape->feature_longest[g->feature] = longest;
    }
    if (g->kind == BTI_SEGMENT_TOKENS) {
        shape->tokens = row;
        shape->longest[0] = longest;
        shape->distinct[0] = row_plan(ids, row, segment_table(at, slot, i, BTI_SEGMENT_ORDER),
                                      segment_table(at, slot, i, BTI_SEGMENT_SEGS), sort);
    }
    if (g->has_positions && g->positions >= 0) {
        position_plan(b, count_segment, i, longest,
                      segment_table(at, slot, i, BTI_SEGMENT_POSITION_ORDER),
                      segment_table(at, slot, i, BTI_SEGMENT_POSITION_SEGS));
    }
    return BT_OK;
}

/* Joined rows: place r of the sequences holds row index[r] of the segments, one after the other. */
static void stage_join(const bti_staging *at, const batch *b, void *slot) {
    const bti_model *m = b->m;
    int64_t next[BTI_MAX_SEGMENTS], at_row = 0, r = 0;
    int32_t *index = join_table(at, slot, BTI_JOIN_INDEX);
    int32_t *rowpos = join_table(at, slot, BTI_JOIN_ROWPOS);
    int32_t *order = join_table(at, slot, BTI_JOIN_ORDER);
    for (int32_t i = 0; i < m->segments; i++) {
        next[i] = at_row;
        if (m->segment[i].role == BTI_SEGMENT_JOINED)
            for (int64_t k = 0; k < b->n; k++) at_row += count_segment(b, k, i);
    }
    for (int64_t k = 0; k < b->n; k++) {
        int64_t position = 0;
        for (int32_t i = 0; i < m->segments; i++) {
            if (m->segment[i].role != BTI_SEGMENT_JOINED) continue;
            for (int64_t j = count_segment(b, k, i); j > 0; j--, r++) {
                index[r] = (int32_t)next[i]++;
                order[index[r]] = (int32_t)r;
                rowpos[2 * r] = (int32_t)(b->place + k);
                rowpos[2 * r + 1] = (int32_t)position++;
            }
        }
    }
    int32_t *segs = join_table(at, slot, BTI_JOIN_SEGS);
    for (int64_t k = 0; k <= r; k++) {
        segs[2 * k] = k < r ? (int32_t)k : -1;
        segs[2 * k + 1] = (int32_t)k;
    }
}

/* A feature that is mixed in has a row for each of the sentence's, or one for all. */
static bt_status stage_mixed(const bti_staging *at, const batch *b, int32_t i, void *slot) {
    int32_t *index = segment_table(at, slot, i, BTI_SEGMENT_INDEX);
    int32_t *segs = segment_table(at, slot, i, BTI_SEGMENT_INDEX_SEGS);
    int64_t row = 0, to = 0;
    for (int64_t k = 0; k < b->n; k++) {
        int64_t have = count_segment(b, k, i), want = bti_encoder_rows(b->m, &b->sentence[k]);
        if (have != 1 && have != want)
            return bti_fail(
                BT_EINPUT,
                "feature %s has %lld rows in example %lld, which has %lld: model.fusion "
                "add and gate want as many, or one",
                b->m->cfg.feature[b->m->segment[i].feature].name, (long long)have,
                (long long)b->sentence[k].example, (long long)want);
        for (int64_t j = 0; j < want; j++) {
            if (j == 0 || have > 1) {
                segs[2 * row] = (int32_t)row;
                segs[2 * row + 1] = (int32_t)to;
                row++;
            }
            index[to++] = (int32_t)(row - 1);
        }
    }
    segs[2 * row] = -1;
    segs[2 * row + 1] = (int32_t)to;
    in_order(to, segment_table(at, slot, i, BTI_SEGMENT_INDEX_ORDER), NULL);
    return BT_OK;
}

bt_status bti_stage_source(const bti_model *m, const bti_staging *at, const bti_sentence *sentence,
                           int64_t n, int64_t place, void *slot, int32_t *sort, bti_shape *shape) {
    const batch b = {m, sentence, n, place};
    int joined = 0;
    for (int32_t i = 0; i < m->segments; i++) {
        BT_TRY(stage_segment(at, &b, i, slot, sort, shape));
        joined |= m->segment[i].role == BTI_SEGMENT_JOINED;
        if (m->segment[i].role == BTI_SEGMENT_MIXED) BT_TRY(stage_mixed(at, &b, i, slot));
    }
    if (joined) stage_join(at, &b, slot);
    int32_t *rowpos = table(at, slot, 0, BTI_TABLE_ROWPOS);
    int64_t row = 0, key = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t rows = bti_encoder_rows(m, &sentence[k]), keys = bti_memory_rows(m, &sentence[k]);
        for (int64_t j = 0; j < rows; j++) {
            rowpos[2 * (row + j)] = (int32_t)(place + k);
            rowpos[2 * (row + j) + 1] = (int32_t)j;
        }
        sequence(table(at, slot, 0, BTI_TABLE_SEQ_ENCODER) + k * BT_SEQ_COLS, row, rows, row, rows,
                 place + k);
        if (m->cfg.fusion == BTI_FUSION_CROSS)
            sequence(table(at, slot, 0, BTI_TABLE_SEQ_FUSION) + k * BT_SEQ_COLS, row, rows, key,
                     keys, place + k);
        shape->pairs[BTI_PAIRS_FUSION] += (double)rows * (double)keys;
        row += rows;
        key += keys;
    }
    return BT_OK;
}

/* ---- heads -------------------------------------------------------------------------------------
 */

static void stage_pool(const bti_staging *at, const batch *b, void *slot) {
    int32_t *seq = table(at, slot, 0, BTI_TABLE_SEQ_POOL);
    int32_t *first = table(at, slot, 0, BTI_TABLE_POOL_FIRST);
    int32_t *back = table(at, slot, 0, BTI_TABLE_POOL_BACK);
    int32_t *query = table(at, slot, 0, BTI_TABLE_POOL_QUERY);
    int32_t *segs = table(at, slot, 0, BTI_TABLE_POOL_SEGS);
    bti_pooling pooling = b->m->cfg.pooling;
    int64_t row = 0;
    for (int64_t k = 0; k < b->n; k++) {
        int64_t rows = bti_encoder_rows(b->m, &b->sentence[k]);
        if (pooling == BTI_POOLING_FIRST) {
            first[k] = (int32_t)row;
            for (int64_t j = 0; j < rows; j++) back[row + j] = j == 0 ? (int32_t)k : -1;
        } else {
            sequence(seq + k * BT_SEQ_COLS, k, 1, row, rows, b->place + k);
        }
        if (pooling == BTI_POOLING_ATTENTION) {
            query[2 * k] = (int32_t)(b->place + k);
            query[2 * k + 1] = 0;
        }
        row += rows;
    }
    if (pooling != BTI_POOLING_ATTENTION) return;
    in_order(b->n, table(at, slot, 0, BTI_TABLE_POOL_ORDER), NULL);
    const int32_t all[4] = {0, 0, -1, (int32_t)b->n};
    memcpy(segs, all, sizeof all);
}

/* Labels, or numbers: those as fp32, widened in place where the model is in double. */
static void stage_targets(const bti_staging *at, const batch *b, void *slot) {
    bti_targets kind = bti_head_of(&b->m->cfg)->targets;
    int64_t outputs = b->m->cfg.outputs, row = 0;
    size_t size = bti_dtype_size(bti_dtype_acc(b->m->params.dtype));
    for (int64_t k = 0; k < b->n; k++) {
        const bti_sentence *s = &b->sentence[k];
        char *values = (char *)slot + at->targets + (size_t)(k * outputs) * size;
        if (kind == BTI_TARGETS_VALUES) {
            s->dense->values(s->dense->user, s->example, (float *)(void *)values);
            widen(b, values, outputs);
        } else {
            memcpy(table(at, slot, 0, BTI_TABLE_LABELS) + row, s->ids[1],
                   (size_t)s->count[1] * sizeof(int32_t));
        }
        row += s->count[1];
    }
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

bt_status bti_stage(const bti_model *m, const bti_staging *at, const bti_sentence *sentence,
                    int64_t n, int64_t place, int32_t start, void *slot, int32_t *sort,
                    bti_shape *shape) {
    const batch all = {m, sentence, n, place};
    int64_t row[2] = {0, 0};
    memset(shape, 0, sizeof *shape);
    shape->sentences = n;
    for (int64_t i = 0; i < n; i++) {
        const bti_sentence *s = &sentence[i];
        int64_t a = bti_encoder_rows(m, s), b = s->count[1], c = BT_SEQ_COLS * i;
        for (int side = 0; side < 2; side++)
            if (s->count[side] > shape->longest[side]) shape->longest[side] = s->count[side];
        if (m->segments == 0)
            sequence(table(at, slot, 0, BTI_TABLE_SEQ_ENCODER) + c, row[0], a, row[0], a,
                     place + i);
        shape->pairs[BTI_PAIRS_ENCODER] += (double)a * (double)a;
        if (bti_has_decoder(&m->cfg)) {
            sequence(table(at, slot, 0, BTI_TABLE_SEQ_DECODER) + c, row[1], b, row[1], b,
                     place + i);
            sequence(table(at, slot, 0, BTI_TABLE_SEQ_CROSS) + c, row[1], b, row[0], a, place + i);
            shape->pairs[BTI_PAIRS_DECODER] += (double)b * (double)(b + 1) / 2;
            shape->pairs[BTI_PAIRS_CROSS] += (double)a * (double)b;
        }
        row[0] += a;
        row[1] += b;
    }
    shape->rows[0] = row[0];
    shape->rows[1] = row[1];
    stage_targets(at, &all, slot);
    if (bti_has_decoder(&m->cfg))
        stage_side(at, &all, 1, start, slot, sort, shape);
    else
        stage_pool(at, &all, slot);
    if (m->segments > 0) return bti_stage_source(m, at, sentence, n, place, slot, sort, shape);
    stage_side(at, &all, 0, start, slot, sort, shape);
    return BT_OK;
}

int64_t bti_sentence_segment(const bti_model *m, const bti_sentence *s, int32_t segment) {
    const bti_segment *g = &m->segment[segment];
    if (g->kind == BTI_SEGMENT_TOKENS) return s->count[0];
    if (g->kind == BTI_SEGMENT_FEATURE) return s->rows[g->feature];
    return m->cfg.learned_rows;
}

int64_t bti_encoder_rows(const bti_model *m, const bti_sentence *s) {
    int64_t rows = 0;
    if (m->segments == 0) return s->count[0];
    if (m->cfg.fusion != BTI_FUSION_CONCAT) return bti_sentence_segment(m, s, 0);
    for (int32_t i = 0; i < m->segments; i++) rows += bti_sentence_segment(m, s, i);
    return rows;
}

int64_t bti_memory_rows(const bti_model *m, const bti_sentence *s) {
    int64_t rows = 0;
    if (m->cfg.fusion != BTI_FUSION_CROSS) return 0;
    for (int32_t i = 1; i < m->segments; i++) rows += bti_sentence_segment(m, s, i);
    return rows;
}
