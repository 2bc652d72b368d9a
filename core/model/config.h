/* What is learned: the model's shape. Nothing here knows of memory or devices. */
#ifndef BANTAM_MODEL_CONFIG_H
#define BANTAM_MODEL_CONFIG_H

#include <stdint.h>

#include "core/bantam.h"

typedef enum bti_norm_place { BTI_NORM_POST, BTI_NORM_PRE } bti_norm_place;
typedef enum bti_activation { BTI_ACTIVATION_RELU, BTI_ACTIVATION_GELU } bti_activation;
typedef enum bti_positions { BTI_POSITIONS_SINUSOID, BTI_POSITIONS_LEARNED } bti_positions;
typedef enum bti_tie { BTI_TIE_NONE, BTI_TIE_TARGET, BTI_TIE_ALL } bti_tie;

typedef struct bti_model_config {
    int64_t d_model, ff, heads, encoder_layers, decoder_layers;
    bti_norm_place norm;
    bti_activation activation;
    bti_positions positions;
    int64_t position_rows; /* learned: rows of each table, the longest sequence there can be */
    bti_tie tie;           /* target: target table = output layer; all: source table too */
    int final_norm;        /* LayerNorm after both stacks, as torch.nn.Transformer has it */
    double dropout, attention_dropout, activation_dropout, embedding_dropout;
    double norm_eps;
} bti_model_config;

#endif
