/* The encoder-decoder Transformer as torch.nn.Transformer computes it ("Attention is all you need",
 * Vaswani et al. 2017), and its encoder alone under other heads, emitted as programs. The encoder
 * reads text, dense features, or both (fusion.c). Model code knows nothing of memory: it names
 * tensors and their classes, and in backward asks bti_need for them. */
#ifndef BANTAM_MODEL_MODEL_H
#define BANTAM_MODEL_MODEL_H

#include "core/model/moments.h"
#include "core/plan/program.h"

/* Weight and bias of a linear layer, or gain and offset of a norm; indices into the table. */
typedef struct bti_pair {
    int32_t w, b;
} bti_pair;

/* One residual block: attention over itself, over the encoder, or feed-forward. */
typedef enum bti_block_kind { BTI_BLOCK_SELF, BTI_BLOCK_CROSS, BTI_BLOCK_FF } bti_block_kind;
#define BTI_MAX_BLOCKS 3

typedef struct bti_block {
    bti_block_kind kind;
    bti_pair in, out; /* attention: in_proj (3d x d) and out_proj; feed-forward: linear1, linear2 */
    bti_pair norm;
    int32_t site; /* dropout sites: site inside the block, site + 1 on its output */
} bti_block;

typedef struct bti_layer {
    int32_t index; /* over both stacks, encoder first */
    int decoder;
    int blocks;
    bti_block block[BTI_MAX_BLOCKS];
} bti_layer;

/* A part of what the encoder reads. */
typedef enum bti_segment_kind {
    BTI_SEGMENT_LEARNED,
    BTI_SEGMENT_TOKENS,
    BTI_SEGMENT_FEATURE
} bti_segment_kind;
typedef enum bti_segment_role {
    BTI_SEGMENT_JOINED, /* a stretch of a sequence: the encoder's, or what cross attention reads */
    BTI_SEGMENT_MAIN,   /* the encoder's sequence */
    BTI_SEGMENT_MIXED   /* added to its rows, or mixed into them by a gate */
} bti_segment_role;
#define BTI_MAX_SEGMENTS (BTI_MAX_FEATURES + 2)

typedef struct bti_segment {
    bti_segment_kind kind;
    bti_segment_role role;
    int32_t feature; /* its place in the configuration */
    int32_t table;   /* learned rows, tokens: the rows looked up */
    bti_pair projection, norm, gate;
    int has_norm, has_positions;
    int32_t positions; /* learned table; -1: sinusoids */
    int64_t longest;   /* rows of an example at most; tokens: data.max_length */
    int32_t type;      /* its row of `types`; -1: none */
} bti_segment;

typedef struct bti_model {
    bti_model_config cfg;
    int64_t vocab[2]; /* source, target; 0: no text there */
    bti_params params;
    /* How training computes: the type of activations and of their gradients, that of the parameters
     * or a half one; and whether fp32 products may have 10 bits of mantissa. */
    bt_dtype data;
    int tf32;
    int32_t embed[2];     /* tables; equal when all are tied; -1: no text there */
    int32_t positions[2]; /* learned tables, never tied; -1: sinusoids */
    bti_pair generator;   /* output layer; w is embed[1] when tied */
    bti_segment segment[BTI_MAX_SEGMENTS];
    int32_t segments;   /* 0: the encoder reads text alone */
    int32_t types;      /* a row for each segment of a sequence of several; -1: none */
    int32_t pool_query; /* -1: none */
    bti_pair final_norm[2];
    bti_layer *layer;
    int32_t layers;
    int32_t lowest[2]; /* of each side the lowest unit that backward reaches; INT32_MAX: none */
    struct bti_layer_saved *saved; /* scratch of an emission, one a layer */
} bti_model;

/* dtype: of the parameters, fp32; fp64 for checks on ref. Activations are of the same type unless
 * bti_model_compute says otherwise. */
bt_status bti_model_new(const bti_model_config *cfg, int64_t source_vocab, int64_t target_vocab,
                        bt_dtype dtype, bti_model **out);
void bti_model_free(bti_model *m);
/* Training in another format, for fp32 parameters: `data` fp32, fp16 or bf16. Parameters, their
 * gradients and moments, statistics, logits and losses stay fp32; products round their operands to
 * a half type. */
void bti_model_compute(bti_model *m, bt_dtype data, int tf32);

/* The index of a parameter by any of its names: a tied table has those of the tables that it stands
 * for. -1: there is none. */
int32_t bti_model_find(const bti_model *m, const char *name);
/* Freezes, before places are given, what the patterns (fnmatch's) match by any name. A pattern that
 * matches nothing and a model that could not learn are BT_EINPUT. */
bt_status bti_model_freeze(bti_model *m, char *const *pattern, size_t count);

/* Units of a side's stack, from below: 0 are its tables, then each block of each layer, and the
 * final norm above them. */
static inline int32_t bti_unit(const bti_model *m, const bti_layer *l, int block) {
    int32_t i = l->index - (l->decoder ? (int32_t)m->cfg.encoder_layers : 0);
    return 1 + i * BTI_MAX_BLOCKS + block;
}
/* Has backward anything to do in a side's stack? The encoder's gradient comes through the decoder.
 */
static inline int bti_model_learns(const bti_model *m, int side) {
    return m->lowest[side] != INT32_MAX;
}
/* Sides (bit 0 source, bit 1 target) whose table the embedding alone writes a gradient to: that
 * gradient may be compact; none of a frozen one. */
uint32_t bti_model_may_compact(const bti_model *m);
/* Columns of the output layer: symbols of the target, or outputs of another head. */
int64_t bti_model_outputs(const bti_model *m);
/* Rows of the table of sinusoids for sequences of up to max_length: none where positions are
 * learned. */
int64_t bti_model_sinusoid_rows(const bti_model *m, int64_t max_length);
/* That table, rows x d_model of the parameters' type: sin in even, cos in odd columns,
 * angle = row / 10000^(2 floor(col/2) / d_model). */
void bti_model_sinusoids(const bti_model *m, int64_t rows, void *out);

/* ---- shapes and staging -----------------------------------------------------------------------
 */

enum bti_pairs {
    BTI_PAIRS_ENCODER,
    BTI_PAIRS_DECODER,
    BTI_PAIRS_CROSS,
    BTI_PAIRS_FUSION,
    BTI_PAIRS
};

/* Size of a micro-batch, or a cap on it; [0] encoder, [1] decoder: without one, a row for each
 * example. */
typedef struct bti_shape {
    int64_t sentences;
    int64_t rows[2];
    int64_t distinct[2]; /* distinct ids */
    int64_t longest[2];  /* most tokens of a sentence */
    /* With segments: source tokens, rows of each feature, and most of them in an example. */
    int64_t tokens, feature[BTI_MAX_FEATURES], feature_longest[BTI_MAX_FEATURES];
    double pairs[BTI_PAIRS]; /* visible query-key pairs; the decoder's are causal */
} bti_shape;

int64_t bti_segment_rows(const bti_model *m, const bti_shape *shape, int32_t segment);
/* A shape that was reckoned, not counted: the encoder's rows are those of its main segment. */
void bti_shape_settle(const bti_model *m, bti_shape *shape);
/* Rows of all joined segments. */
int64_t bti_joined_rows(const bti_model *m, const bti_shape *shape);

/* Integer tables of a micro-batch: offsets in a staging slot, for a shape's caps. */
typedef enum bti_table {
    BTI_TABLE_IDS,                      /* rows x 1 */
    BTI_TABLE_ROWPOS,                   /* rows x 2: place, position */
    BTI_TABLE_ORDER,                    /* rows x 1: rows by id */
    BTI_TABLE_SEGS,                     /* (distinct + 1) x 2 */
    BTI_TABLE_POSITION_ORDER,           /* rows x 1: rows by position; learned positions only */
    BTI_TABLE_POSITION_SEGS,            /* (longest + 1) x 2; learned positions only */
    BTI_TABLE_SIDED,                    /* the tables above exist for each side */
    BTI_TABLE_LABELS = BTI_TABLE_SIDED, /* target rows x 1 */
    BTI_TABLE_SEQ_ENCODER,              /* sentences x BT_SEQ_COLS */
    BTI_TABLE_SEQ_DECODER,
    BTI_TABLE_SEQ_CROSS,
    BTI_TABLE_SEQ_FUSION, /* sentences x BT_SEQ_COLS: rows of the encoder over joined features */
    BTI_TABLE_SEQ_POOL,   /* sentences x BT_SEQ_COLS: a query each over the encoder's rows */
    BTI_TABLE_POOL_FIRST, /* sentences x 1: the first row of each; and back: */
    BTI_TABLE_POOL_BACK,  /* encoder rows x 1: the sentence that it is the first row of, else -1 */
    BTI_TABLE_POOL_QUERY, /* sentences x 2: place, 0 */
    BTI_TABLE_POOL_ORDER, /* sentences x 1: all of them */
    BTI_TABLE_POOL_SEGS,  /* 2 x 2 */
    BTI_TABLE_COUNT
} bti_table;

/* Tables of a segment. */
typedef enum bti_segment_table {
    BTI_SEGMENT_IDS,            /* rows x 1; learned rows, tokens */
    BTI_SEGMENT_ROWPOS,         /* rows x 2: place, position in the segment */
    BTI_SEGMENT_ORDER,          /* rows x 1: rows by id; learned rows, tokens */
    BTI_SEGMENT_SEGS,           /* (distinct + 1) x 2 */
    BTI_SEGMENT_POSITION_ORDER, /* rows x 1: rows by position; learned positions only */
    BTI_SEGMENT_POSITION_SEGS,  /* (longest + 1) x 2 */
    BTI_SEGMENT_INDEX,          /* encoder rows x 1: its row for each of them; mixed only */
    BTI_SEGMENT_INDEX_ORDER,    /* encoder rows x 1: all of them */
    BTI_SEGMENT_INDEX_SEGS,     /* (rows + 1) x 2 */
    BTI_SEGMENT_VALUES,         /* rows x width, of the model's type; features only */
    BTI_SEGMENT_TABLES
} bti_segment_table;
/* Where the joined rows go: segments lie one after the other, and examples shall. */
typedef enum bti_join_table {
    BTI_JOIN_INDEX,  /* joined rows x 1: the row that stands at each place */
    BTI_JOIN_ROWPOS, /* joined rows x 2: place, position in the sequence */
    BTI_JOIN_ORDER,  /* joined rows x 1: and back */
    BTI_JOIN_SEGS,   /* (joined rows + 1) x 2 */
    BTI_JOIN_TABLES
} bti_join_table;

typedef struct bti_staging {
    uint64_t at[2][BTI_TABLE_COUNT]; /* unsided tables use [0] */
    uint64_t segment[BTI_MAX_SEGMENTS][BTI_SEGMENT_TABLES];
    uint64_t join[BTI_JOIN_TABLES];
    uint64_t targets; /* rows x outputs of the accumulating type; heads of labels and numbers */
    uint64_t bytes;   /* of a slot, aligned */
    int positions;    /* the tables of positions are there */
} bti_staging;

/* Moves all places by so many bytes. */
void bti_staging_shift(bti_staging *s, uint64_t bytes);
/* Does a model read this table of a side? */
int bti_table_exists(const bti_model *m, int side, int table);
/* Gives every table that the model reads a place in a slot, large enough for any micro-batch within
 * the caps, each at a multiple of `alignment`. */
void bti_staging_plan(const bti_model *m, const bti_shape *caps, uint64_t alignment,
                      bti_staging *out);

/* ---- programs ---------------------------------------------------------------------------------
 */

/* Fixed places that programs refer to. */
typedef struct bti_places {
    bti_staging staging;
    uint64_t positions, scalars; /* in CONSTANT */
    int64_t position_rows;       /* of sinusoids */
    /* In CONSTANT, for compact gradients: the distinct ids of the update on a side, ascending, as
     * many as the gradient has rows; what is left is INT32_MAX. */
    uint64_t index[2];
    bti_moment_places moments;
} bti_places;

/* What the planner chooses for the program of a micro-batch. Bytes and time depend on it; results
 * only through the order of sums. */
typedef struct bti_choices {
    uint32_t *keep;     /* kept classes of each layer; NULL: all */
    int64_t logit_rows; /* rows of a chunk of the output layer */
    int64_t slice_rows; /* rows of a slice of a feed-forward block; 0: whole */
    uint32_t compact;   /* sides with compact gradients, see bti_model_may_compact */
} bti_choices;

typedef struct bti_step {
    const bti_model *model;
    const bti_places *places;
    bti_shape shape;
    bti_choices choices;
    int training;          /* dropout and gradients; 0: losses only */
    int first_micro_batch; /* gradients are overwritten, not accumulated */
    uint64_t seed;
    uint32_t update;
    double smoothing;
    double grad_scale; /* 1 / target tokens of the update */
} bti_step;

typedef struct bti_train_program {
    bti_program *p;
    bti_tid loss;    /* target rows x 2, pinned */
    bti_tid outputs; /* without training, of heads without a decoder: rows x outputs, pinned */
} bti_train_program;

/* Emits forward, loss and (training) backward of a micro-batch. */
bt_status bti_model_emit_step(bti_program *p, const bti_step *step, bti_train_program *out);

typedef struct bti_update_step {
    const bti_model *model;
    const bti_places *places;
    uint64_t heap; /* bytes of a heap, 0: one */
    bt_adamw_params adamw;
    bt_update_scalars_params scaling;
} bti_update_step;
/* Emits norm, scalars and optimiser step: over the flat state regions, a piece for each heap, and
 * over each table with a compact gradient. Learning rate, clipping and whether the step is skipped
 * are read from the scalar block when the program runs. */
bt_status bti_model_emit_update(bti_program *p, const bti_update_step *step);

/* The step's ops, from the first one to the last of the program: each takes a piece of the state
 * that is not in 8 bits. `at` and bytes: where it lies in the weights, and so in a moment that is
 * kept whole; moment: where the op wants its moments. */
typedef struct bti_piece {
    uint64_t at, bytes;
    bti_ref moment[2];
} bti_piece;
int32_t bti_update_first_piece(const bti_program *p);
bti_piece bti_update_piece(const bti_program *p, int32_t op);

#endif
