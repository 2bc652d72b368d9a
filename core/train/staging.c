/* Integer tables of a micro-batch: ids, places and positions, labels, sequences, row order. */
#include <string.h>

#include "core/train/engine.h"

static int32_t *table(const bti_staging *at, void *slot, int side, int which) {
    return (int32_t *)((char *)slot + at->at[side][which]);
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
static void position_plan(const bti_sentence *sentence, int64_t n, int side, int64_t longest,
                          int32_t *order, int32_t *segs) {
    int64_t rows = 0;
    for (int64_t p = 0; p <= longest; p++) segs[2 * p] = p < longest ? (int32_t)p : -1;
    for (int64_t p = 0; p <= longest; p++) segs[2 * p + 1] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < sentence[i].count[side]; p++) segs[2 * p + 3]++;
    for (int64_t p = 1; p <= longest; p++) segs[2 * p + 1] += segs[2 * p - 1];
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < sentence[i].count[side]; p++)
            order[segs[2 * p + 1]++] = (int32_t)rows++;
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

void bti_stage_compact(const bti_staging *at, void *slot, int side, int64_t distinct,
                       const int32_t *index) {
    int32_t *segs = table(at, slot, side, BTI_TABLE_SEGS);
    int32_t k = 0;
    for (int64_t u = 0; u < distinct; u++) { /* both ascend, and the index holds every id */
        while (index[k] < segs[2 * u]) k++;
        segs[2 * u] = k;
    }
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

void bti_stage(const bti_staging *at, const bti_sentence *sentence, int64_t n, int64_t place,
               int32_t start, void *slot, int32_t *sort, bti_shape *shape) {
    int64_t row[2] = {0, 0};
    memset(shape, 0, sizeof *shape);
    shape->sentences = n;
    for (int64_t i = 0; i < n; i++) {
        const bti_sentence *s = &sentence[i];
        int64_t a = s->count[0], b = s->count[1];
        for (int side = 0; side < 2; side++) {
            int32_t *ids = table(at, slot, side, BTI_TABLE_IDS) + row[side];
            int32_t *rowpos = table(at, slot, side, BTI_TABLE_ROWPOS) + 2 * row[side];
            for (int64_t j = 0; j < s->count[side]; j++) {
                ids[j] = input_id(s, side, j, start);
                rowpos[2 * j] = (int32_t)(place + i);
                rowpos[2 * j + 1] = (int32_t)j;
            }
            if (s->count[side] > shape->longest[side]) shape->longest[side] = s->count[side];
        }
        memcpy(table(at, slot, 0, BTI_TABLE_LABELS) + row[1], s->ids[1],
               (size_t)b * sizeof(int32_t));
        int64_t c = BT_SEQ_COLS * i;
        sequence(table(at, slot, 0, BTI_TABLE_SEQ_ENCODER) + c, row[0], a, row[0], a, place + i);
        sequence(table(at, slot, 0, BTI_TABLE_SEQ_DECODER) + c, row[1], b, row[1], b, place + i);
        sequence(table(at, slot, 0, BTI_TABLE_SEQ_CROSS) + c, row[1], b, row[0], a, place + i);
        shape->pairs[0] += (double)a * (double)a;
        shape->pairs[1] += (double)b * (double)(b + 1) / 2;
        shape->pairs[2] += (double)a * (double)b;
        row[0] += a;
        row[1] += b;
    }
    for (int side = 0; side < 2; side++) {
        shape->rows[side] = row[side];
        shape->distinct[side] = row_plan(table(at, slot, side, BTI_TABLE_IDS), row[side],
                                         table(at, slot, side, BTI_TABLE_ORDER),
                                         table(at, slot, side, BTI_TABLE_SEGS), sort);
        if (at->positions)
            position_plan(sentence, n, side, shape->longest[side],
                          table(at, slot, side, BTI_TABLE_POSITION_ORDER),
                          table(at, slot, side, BTI_TABLE_POSITION_SEGS));
    }
}
