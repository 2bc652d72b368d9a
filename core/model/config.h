/* What is learned: the model's shape. Nothing here knows of memory or devices. */
#ifndef BANTAM_MODEL_CONFIG_H
#define BANTAM_MODEL_CONFIG_H

#include <stdint.h>

#include "core/bantam.h"

typedef enum bti_norm_place { BTI_NORM_POST, BTI_NORM_PRE } bti_norm_place;
typedef enum bti_activation { BTI_ACTIVATION_RELU, BTI_ACTIVATION_GELU } bti_activation;
typedef enum bti_positions { BTI_POSITIONS_SINUSOID, BTI_POSITIONS_LEARNED } bti_positions;
typedef enum bti_tie { BTI_TIE_NONE, BTI_TIE_TARGET, BTI_TIE_ALL } bti_tie;

/* How dense features come to the text, or to the first of them where there is no text. */
typedef enum bti_fusion {
    BTI_FUSION_CONCAT, /* one sequence, one after the other */
    BTI_FUSION_ADD,    /* added row by row; a feature of one row to every row */
    BTI_FUSION_GATE,   /* mixed row by row: s text + (1 - s) feature, s learned */
    BTI_FUSION_CROSS   /* cross attention in every encoder layer, over all features */
} bti_fusion;

/* What the model is asked for. */
typedef enum bti_head_kind {
    BTI_HEAD_DECODER,        /* text */
    BTI_HEAD_CLASSIFICATION, /* one of `outputs` classes */
    BTI_HEAD_MULTILABEL,     /* which of `outputs` labels */
    BTI_HEAD_REGRESSION      /* `outputs` numbers */
} bti_head_kind;

/* What heads without a decoder read: a row for each example. */
typedef enum bti_pooling { BTI_POOLING_MEAN, BTI_POOLING_FIRST, BTI_POOLING_ATTENTION } bti_pooling;

#define BTI_MAX_FEATURES 16

typedef struct bti_feature_config {
    const char *name; /* borrowed; read while the model is made */
    int64_t width;    /* numbers of a row */
    int64_t rows;     /* of an example, at most */
    int norm;         /* LayerNorm after the projection */
} bti_feature_config;

typedef struct bti_model_config {
    int64_t d_model, ff, heads, encoder_layers, decoder_layers;
    bti_norm_place norm;
    bti_activation activation;
    bti_positions positions;
    int64_t position_rows; /* learned: rows of the tables of text, the longest there can be */
    bti_tie tie;           /* target: target table = output layer; all: source table too */
    int final_norm;        /* LayerNorm after both stacks, as torch.nn.Transformer has it */
    double dropout, attention_dropout, activation_dropout, embedding_dropout;
    double norm_eps;
    bti_fusion fusion;
    int64_t learned_rows; /* trained rows before all others, with fusion concat */
    bti_feature_config feature[BTI_MAX_FEATURES];
    int32_t features;
    bti_head_kind head;
    bti_pooling pooling;
    int64_t outputs; /* classes, labels or numbers; 0 with a decoder */
} bti_model_config;

/* It writes text: there is a decoder, and what it says is decoded. */
static inline int bti_has_decoder(const bti_model_config *c) { return c->head == BTI_HEAD_DECODER; }

#endif
