/* Shared by the files that emit the model: what one emission knows. */
#ifndef BANTAM_MODEL_BUILD_H
#define BANTAM_MODEL_BUILD_H

#include "core/model/head.h"

/* What a segment leaves for backward. */
typedef struct bti_fused {
    bti_tid raw, stats; /* before its norm */
    bti_tid x, g, z;    /* gate: what was there, what comes, their gate before its bias */
} bti_fused;

typedef struct bti_build {
    bti_program *p;
    const bti_step *step;
    const bti_model *m;
    bt_dtype dtype, acc; /* of activations and their gradients; of all else: parameters, logits */
    bt_dtype round;      /* of products, see bt_gemm_params: the half type of `dtype`, or BT_F32 */
    uint8_t tf32;
    bti_tid weight0, grad0; /* tensor of parameter i is weight0 + i, grad0 + i */
    bti_tid table[2][BTI_TABLE_COUNT];
    bti_tid segment[BTI_MAX_SEGMENTS][BTI_SEGMENT_TABLES], join[BTI_JOIN_TABLES], targets;
    bti_fused fused[BTI_MAX_SEGMENTS];
    bti_tid sinusoids, scalars; /* scalars: the update's scalar block; 0: none */
    /* What cross attention reads and its gradient: [0] in the encoder, joined features, [1] in the
     * decoder, the encoder's output. dmemory 0: nothing below learns. */
    bti_tid memory[2], dmemory[2];
    int memory_written[2]; /* dmemory has a first writer */
    bti_tid pooled_lse, pooled_query, pooled;
    uint8_t stable_rows;                   /* products y = x w^T keep rows apart, see decode.h */
    int64_t row_tile;                      /* > 0: they run in tiles of this many rows */
    const struct bti_decode_state *decode; /* a decoding step: keys and values are in caches */
    uint64_t table_written; /* bit 1 << its parameter: the table has a gradient already */
} bti_build;

/* What a block keeps of its forward pass for backward. */
typedef struct bti_saved {
    bti_tid x;        /* input of the block's first product */
    bti_tid q, kv;    /* projections; self-attention: both the joint rows x 3d tensor */
    bti_tid a, lse;   /* attention output and log-sum-exp */
    bti_tid h0, h;    /* feed-forward before and after activation */
    bti_tid r, stats; /* residual sum and statistics of the norm over it */
} bti_saved;

struct bti_layer_saved {
    bti_tid x, stats0; /* layer input; pre-norm: statistics of the first norm */
    bti_saved block[BTI_MAX_BLOCKS];
};
typedef struct bti_layer_saved bti_layer_saved;

static inline bti_ref bti_weight(const bti_build *b, int32_t param) {
    return bti_all(b->p, b->weight0 + param);
}
static inline int bti_trains(const bti_build *b, int32_t param) {
    return !b->m->params.param[param].frozen;
}
/* Absent when the parameter is frozen: what would only write it is not emitted. */
static inline bti_ref bti_grad(const bti_build *b, int32_t param) {
    return bti_trains(b, param) ? bti_all(b->p, b->grad0 + param) : (bti_ref){0};
}
/* Place and position of each row of a side. */
static inline bti_ref bti_rowpos(const bti_build *b, int side) {
    return bti_all(b->p, b->table[side][BTI_TABLE_ROWPOS]);
}
/* beta of a gradient with one writer a micro-batch. */
static inline double bti_grad_beta(const bti_build *b) {
    return b->step->first_micro_batch ? 0 : 1;
}
bt_drop bti_drop_at(const bti_build *b, double p, int32_t site);

/* What attention reads in a decoding step instead of its own rows. */
typedef struct bti_decode_state {
    const bti_tid *cache; /* of each decoder layer: cache rows x 2d, keys and values */
    const bti_tid *cross; /* of each decoder layer: source rows x 2d */
    bti_tid kidx, seq_self, seq_cross;
    int64_t cache_row; /* where the rows of this step go */
} bti_decode_state;

/* y = x w^T into given rows; y = beta y + x w^T. */
void bti_linear_into(bti_build *b, bti_ref x, bti_ref w, bti_ref y);
void bti_linear_add(bti_build *b, bti_ref x, bti_ref w, bti_ref y, double beta);
/* Sets m->lowest from what is frozen. */
void bti_model_find_lowest(bti_model *m);
/* Declares weights, gradients and the table of sinusoids: fixed places, first and always alike. */
void bti_declare_parameters(bti_build *b, const bti_places *places);
/* The stack of layers of one side with its final norm, forward. */
bti_tid bti_stack_fwd(bti_build *b, int decoder, bti_tid x, bti_tid *norm_input,
                      bti_tid *norm_stats);
/* y = x w^T, a new tensor. */
bti_tid bti_linear(bti_build *b, bti_ref x, bti_ref w, const char *name, int32_t layer,
                   bti_class cls);
/* dw = beta dw + dy^T x; nothing when dw is absent. */
void bti_linear_dw(bti_build *b, bti_ref dy, bti_ref x, bti_ref dw, double beta);
/* dx = beta dx + dy w. */
void bti_linear_dx(bti_build *b, bti_ref dy, bti_ref w, bti_ref dx, double beta);
/* db = beta db + column sums of dy; nothing when db is absent. */
void bti_bias_grad(bti_build *b, bti_ref dy, bti_ref db, double beta);
/* A new activation tensor of the build's type (gradients: BTI_CLASS_NONE). */
bti_tid bti_activation_new(bti_build *b, const char *name, int32_t layer, bti_class cls,
                           int64_t rows, int64_t cols);

/* y = rows of a table by ids, scaled, with positions (absent: none) and dropout. */
void bti_look_up(bti_build *b, bti_ref table, bti_ref ids, bti_ref rowpos, bti_ref positions,
                 bti_ref y, double scale, bt_drop drop);
/* The table's gradient: row id is the sum over the rows that `order` and `segs` say. Nothing when
 * it is absent. */
void bti_rows_bwd(bti_build *b, bti_ref dy, bti_ref rowpos, bti_tid order, bti_tid segs,
                  bti_ref dtable, const bt_op_params *params);

/* Blocks: forward gives the output before its bias; backward takes the gradient of that output and
 * sets dx (beta 0) or adds to it (beta 1); dx 0: nothing below it learns. Gradients of the out bias
 * are the caller's. */
bti_tid bti_attention_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x,
                          bti_saved *s);
void bti_attention_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy,
                       bti_saved *s, bti_tid dx, double beta);
/* One decoding step of an attention block: a query row for each hypothesis. */
bti_tid bti_attention_step(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x);
/* Keys and values of the encoder's output for a decoder layer's cross attention. */
bti_tid bti_cross_kv(bti_build *b, const bti_layer *l, const bti_block *k);
bti_tid bti_ff_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x, bti_saved *s);
void bti_ff_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy, bti_saved *s,
                bti_tid dx, double beta);

/* A norm of its own; dres (0: none) is added to the gradient. */
bti_tid bti_norm_fwd(bti_build *b, const bti_pair *norm, bti_tid x, int32_t layer, bti_class cls,
                     bti_tid *stats);
bti_tid bti_norm_bwd(bti_build *b, const bti_pair *norm, bti_tid dy, bti_tid x, bti_tid stats,
                     bti_tid dres, int32_t layer);

/* A whole layer; backward gives the gradient of its input, 0 when nothing below it learns. */
bti_tid bti_layer_fwd(bti_build *b, const bti_layer *l, bti_tid x, bti_layer_saved *s);
bti_tid bti_layer_bwd(bti_build *b, const bti_layer *l, bti_tid dy, bti_layer_saved *s);

/* What is added to the embeddings of a side: learned rows or sinusoids. */
bti_ref bti_position_table(const bti_build *b, int side);
bti_tid bti_embedding_fwd(bti_build *b, int side);
void bti_embedding_bwd(bti_build *b, int side, bti_tid dy);

/* Declares all that a micro-batch reads. */
void bti_declare_tables(bti_build *b, const bti_staging *staging);
/* The encoder's part of it. */
void bti_declare_source(bti_build *b, const bti_staging *staging);
/* What the encoder's first layer reads; sets memory[0] where its layers attend to features. */
bti_tid bti_encoder_input(bti_build *b);
/* dy: gradient of that. */
void bti_encoder_input_bwd(bti_build *b, bti_tid dy);

/* A row for each example out of the encoder's, and its gradient into dmemory[1]. */
bti_tid bti_pool_fwd(bti_build *b);
void bti_pool_bwd(bti_build *b, bti_tid dpooled);

/* Output layer and loss in chunks; with training dhidden is set where the decoder learns. */
void bti_output(bti_build *b, bti_tid hidden, bti_tid *loss, bti_tid *dhidden);
/* All outputs, rows x outputs, for heads without a decoder. */
bti_tid bti_outputs(bti_build *b, bti_tid hidden);

#endif
