/* Programs of translation: the encoder, and one step of the decoder with caches.
 *
 * Both are parts of one program, so that one layout holds them: the encoder's part ends at
 * `encode_ops`, a step is the rest. Cross keys and values of each decoder layer and the caches of
 * self attention live all through it. A step's new cache rows go behind those of earlier steps and
 * never move: hypotheses hold indices of the rows that they descend from.
 *
 * A translated line's bits must not depend on its neighbours: every product asks for stable rows.
 * Where the device keeps them in tiles only (info.row_tile), products run in such tiles, and rows
 * are filled up to whole ones with rows that nobody reads. */
#ifndef BANTAM_MODEL_DECODE_H
#define BANTAM_MODEL_DECODE_H

#include "core/model/model.h"

/* Rows up to whole tiles; 0 is no tile. */
static inline int64_t bti_round_tile(int64_t rows, int64_t tile) {
    return tile > 0 ? (rows + tile - 1) / tile * tile : rows;
}

typedef enum bti_decode_table {
    BTI_DECODE_SOURCE_IDS,    /* source rows x 1 */
    BTI_DECODE_SOURCE_ROWPOS, /* source rows x 2 */
    BTI_DECODE_SEQ_ENCODER,   /* sentences x BT_SEQ_COLS */
    BTI_DECODE_IDS,           /* hypothesis rows x 1 */
    BTI_DECODE_ROWPOS,        /* hypothesis rows x 2 */
    BTI_DECODE_SEQ_SELF,      /* hypotheses x BT_SEQ_COLS */
    BTI_DECODE_SEQ_CROSS,     /* live sentences x BT_SEQ_COLS: their hypotheses share the keys */
    BTI_DECODE_KIDX,          /* hypotheses x steps: cache rows */
    BTI_DECODE_TABLES
} bti_decode_table;

/* A batch and a step of it, or caps. Rows are multiples of the device's row tile. */
typedef struct bti_decode_shape {
    int64_t sentences, source_rows;
    int64_t source_tokens, feature[BTI_MAX_FEATURES]; /* with segments, as in bti_shape */
    int64_t hypotheses, hypothesis_rows;
    int64_t live_sentences; /* that have hypotheses in this step */
    int64_t steps;          /* columns of kidx: steps up to this one */
    int64_t cache_rows;     /* of each cache, a tile to spare included */
    int64_t cache_row;      /* where this step's rows go */
    int64_t candidates;     /* best symbols wanted for each hypothesis */
    int64_t logit_rows;     /* of a chunk of the output layer; where there is a row tile, that */
} bti_decode_shape;

typedef struct bti_decode_staging {
    uint64_t at[BTI_DECODE_TABLES];
    bti_staging
        source; /* with segments: the encoder's tables, in the place of SOURCE_ and ENCODER */
    uint64_t bytes;
} bti_decode_staging;
/* As bti_staging_plan, for the tables of an encoded batch and of a step. */
void bti_decode_staging_plan(const bti_model *m, const bti_decode_shape *caps, uint64_t alignment,
                             bti_decode_staging *out);
/* What the encoder sees of a decoding shape. */
bti_shape bti_decode_source_shape(const bti_model *m, const bti_decode_shape *s);

typedef struct bti_decode_program {
    int32_t encode_ops;
    bti_tid value, id; /* hypothesis rows x candidates: log-probabilities and symbols, pinned */
} bti_decode_program;

/* `scratch` holds 2 x decoder layers tensor ids. Symbols in `forbid` (-1: none) are never given. */
bt_status bti_model_emit_decode(bti_program *p, const bti_model *m, const bti_places *places,
                                const bti_decode_staging *staging, const bti_decode_shape *shape,
                                const int32_t forbid[BT_TOPK_FORBID], bti_tid *scratch,
                                bti_decode_program *out);

#endif
