/* The integer tables, features and targets that the program of a micro-batch reads: which there
 * are, their sizes and their places. */
#include <string.h>

#include "core/base/num.h"
#include "core/model/build.h"

/* Rows and columns of a table for a shape. */
static void table_size(const bti_shape *s, int side, int table, int64_t *rows, int64_t *cols) {
    *cols = 1;
    switch (table) {
    case BTI_TABLE_IDS:
    case BTI_TABLE_ORDER:
    case BTI_TABLE_POSITION_ORDER:
        *rows = s->rows[side];
        break;
    case BTI_TABLE_ROWPOS:
        *rows = s->rows[side];
        *cols = 2;
        break;
    case BTI_TABLE_SEGS:
        *rows = s->distinct[side] + 1;
        *cols = 2;
        break;
    case BTI_TABLE_POSITION_SEGS:
        *rows = s->longest[side] + 1;
        *cols = 2;
        break;
    case BTI_TABLE_LABELS:
        *rows = s->rows[1];
        break;
    case BTI_TABLE_POOL_FIRST:
    case BTI_TABLE_POOL_ORDER:
        *rows = s->sentences;
        break;
    case BTI_TABLE_POOL_BACK:
        *rows = s->rows[0];
        break;
    case BTI_TABLE_POOL_QUERY:
        *rows = s->sentences;
        *cols = 2;
        break;
    case BTI_TABLE_POOL_SEGS:
        *rows = *cols = 2;
        break;
    default:
        *rows = s->sentences;
        *cols = BT_SEQ_COLS;
        break;
    }
}

/* Tables of embeddings of a side; segments have their own. */
static int side_exists(const bti_model *m, int side, int table) {
    if (side == 1 && !bti_has_decoder(&m->cfg)) return 0;
    if (table == BTI_TABLE_ROWPOS) return 1;
    if (side == 0 && m->segments > 0) return 0;
    if (table == BTI_TABLE_POSITION_ORDER || table == BTI_TABLE_POSITION_SEGS)
        return m->cfg.positions == BTI_POSITIONS_LEARNED;
    return 1;
}

int bti_table_exists(const bti_model *m, int side, int table) {
    const bti_model_config *c = &m->cfg;
    int pools = !bti_has_decoder(c), first = c->pooling == BTI_POOLING_FIRST;
    if (table < BTI_TABLE_SIDED) return side_exists(m, side, table);
    if (side == 1) return 0;
    switch (table) {
    case BTI_TABLE_LABELS:
        return bti_head_of(c)->targets != BTI_TARGETS_VALUES;
    case BTI_TABLE_SEQ_DECODER:
    case BTI_TABLE_SEQ_CROSS:
        return !pools;
    case BTI_TABLE_SEQ_FUSION:
        return m->segments > 0 && c->fusion == BTI_FUSION_CROSS;
    case BTI_TABLE_SEQ_POOL:
        return pools && !first;
    case BTI_TABLE_POOL_FIRST:
    case BTI_TABLE_POOL_BACK:
        return pools && first;
    case BTI_TABLE_POOL_QUERY:
    case BTI_TABLE_POOL_ORDER:
    case BTI_TABLE_POOL_SEGS:
        return pools && c->pooling == BTI_POOLING_ATTENTION;
    default:
        return 1;
    }
}

/* Size of a segment's table; 0: it has none. */
static int segment_table(const bti_model *m, const bti_shape *shape, int32_t i, int table,
                         int64_t *rows, int64_t *cols) {
    const bti_segment *s = &m->segment[i];
    int feature = s->kind == BTI_SEGMENT_FEATURE;
    int learned = s->has_positions && s->positions >= 0, mixed = s->role == BTI_SEGMENT_MIXED;
    int64_t longest = feature ? shape->feature_longest[s->feature] : shape->longest[0];
    *rows = bti_segment_rows(m, shape, i);
    *cols = 1;
    switch (table) {
    case BTI_SEGMENT_IDS:
    case BTI_SEGMENT_ORDER:
        return !feature;
    case BTI_SEGMENT_SEGS:
        *rows = (s->kind == BTI_SEGMENT_TOKENS ? shape->distinct[0] : m->cfg.learned_rows) + 1;
        *cols = 2;
        return !feature;
    case BTI_SEGMENT_ROWPOS:
        *cols = 2;
        return 1;
    case BTI_SEGMENT_POSITION_ORDER:
        return learned;
    case BTI_SEGMENT_POSITION_SEGS:
        *rows = longest + 1;
        *cols = 2;
        return learned;
    case BTI_SEGMENT_INDEX:
    case BTI_SEGMENT_INDEX_ORDER:
        *rows = shape->rows[0];
        return mixed;
    case BTI_SEGMENT_INDEX_SEGS:
        *rows += 1;
        *cols = 2;
        return mixed;
    default:
        *cols = feature ? m->cfg.feature[s->feature].width : 0;
        return feature;
    }
}

static int join_table(const bti_model *m, const bti_shape *shape, int table, int64_t *rows,
                      int64_t *cols) {
    int joins = 0;
    for (int32_t i = 0; i < m->segments; i++) joins += m->segment[i].role == BTI_SEGMENT_JOINED;
    *rows = bti_joined_rows(m, shape) + (table == BTI_JOIN_SEGS);
    if (m->cfg.fusion == BTI_FUSION_CONCAT && table != BTI_JOIN_SEGS && shape->rows[0] > *rows)
        *rows = shape->rows[0]; /* filled up to whole tiles */
    *cols = table == BTI_JOIN_ROWPOS || table == BTI_JOIN_SEGS ? 2 : 1;
    return joins > 0;
}

/* Takes the next place. */
static uint64_t place(uint64_t *at, int64_t rows, int64_t cols, bt_dtype dtype,
                      uint64_t alignment) {
    uint64_t here = *at;
    *at += (uint64_t)(rows * cols) * bti_dtype_size(dtype);
    *at = bti_align_up(*at, alignment);
    return here;
}

void bti_staging_plan(const bti_model *m, const bti_shape *caps, uint64_t alignment,
                      bti_staging *out) {
    uint64_t at = 0;
    int64_t rows, cols;
    memset(out, 0, sizeof *out);
    out->positions = m->cfg.positions == BTI_POSITIONS_LEARNED;
    for (int side = 0; side < 2; side++)
        for (int t = 0; t < BTI_TABLE_COUNT; t++) {
            if (!bti_table_exists(m, side, t)) continue;
            table_size(caps, side, t, &rows, &cols);
            out->at[side][t] = place(&at, rows, cols, BT_I32, alignment);
        }
    for (int32_t i = 0; i < m->segments; i++)
        for (int t = 0; t < BTI_SEGMENT_TABLES; t++)
            if (segment_table(m, caps, i, t, &rows, &cols))
                out->segment[i][t] = place(
                    &at, rows, cols, t == BTI_SEGMENT_VALUES ? m->params.dtype : BT_I32, alignment);
    for (int t = 0; t < BTI_JOIN_TABLES; t++)
        if (join_table(m, caps, t, &rows, &cols))
            out->join[t] = place(&at, rows, cols, BT_I32, alignment);
    if (bti_head_of(&m->cfg)->targets == BTI_TARGETS_VALUES)
        out->targets =
            place(&at, caps->rows[1], m->cfg.outputs, bti_dtype_acc(m->params.dtype), alignment);
    out->bytes = at;
}

void bti_staging_shift(bti_staging *s, uint64_t bytes) {
    for (int i = 0; i < 2 * BTI_TABLE_COUNT; i++)
        s->at[i / BTI_TABLE_COUNT][i % BTI_TABLE_COUNT] += bytes;
    for (int i = 0; i < BTI_MAX_SEGMENTS; i++)
        for (int t = 0; t < BTI_SEGMENT_TABLES; t++) s->segment[i][t] += bytes;
    for (int t = 0; t < BTI_JOIN_TABLES; t++) s->join[t] += bytes;
    s->targets += bytes;
}

static void declare_segments(bti_build *b, const bti_staging *staging) {
    const bti_model *m = b->m;
    const bti_shape *shape = &b->step->shape;
    int64_t rows, cols;
    for (int32_t i = 0; i < m->segments; i++)
        for (int t = 0; t < BTI_SEGMENT_TABLES; t++) {
            if (!segment_table(m, shape, i, t, &rows, &cols)) continue;
            int values = t == BTI_SEGMENT_VALUES;
            b->segment[i][t] = bti_tensor_fixed(b->p, values ? "features" : "table",
                                                BTI_REGION_STAGING, staging->segment[i][t],
                                                values ? m->params.dtype : BT_I32, rows, cols);
        }
    for (int t = 0; t < BTI_JOIN_TABLES; t++)
        if (join_table(m, shape, t, &rows, &cols))
            b->join[t] = bti_tensor_fixed(b->p, "table", BTI_REGION_STAGING, staging->join[t],
                                          BT_I32, rows, cols);
}

static void declare_side(bti_build *b, const bti_staging *staging, int side) {
    for (int k = 0; k < BTI_TABLE_COUNT; k++) {
        int64_t rows, cols;
        if (!bti_table_exists(b->m, side, k)) continue;
        table_size(&b->step->shape, side, k, &rows, &cols);
        b->table[side][k] = bti_tensor_fixed(b->p, "table", BTI_REGION_STAGING,
                                             staging->at[side][k], BT_I32, rows, cols);
    }
}

void bti_declare_source(bti_build *b, const bti_staging *staging) {
    declare_side(b, staging, 0);
    declare_segments(b, staging);
}

void bti_declare_tables(bti_build *b, const bti_staging *staging) {
    declare_side(b, staging, 0);
    declare_side(b, staging, 1);
    declare_segments(b, staging);
    if (bti_head_of(&b->m->cfg)->targets == BTI_TARGETS_VALUES)
        b->targets = bti_tensor_fixed(b->p, "targets", BTI_REGION_STAGING, staging->targets, b->acc,
                                      b->step->shape.rows[1], b->m->cfg.outputs);
}
