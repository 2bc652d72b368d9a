/* The tokenisations under which sacreBLEU counts: BLEU's, and the characters and words of chrF. */
#ifndef BANTAM_DECODE_TOKENIZE_H
#define BANTAM_DECODE_TOKENIZE_H

#include "core/decode/chars.h"

typedef enum bti_tokenization {
    BTI_TOKENS_13A,  /* mteval-v13a: HTML entities, ASCII punctuation */
    BTI_TOKENS_NONE, /* white space only */
    BTI_TOKENS_INTL, /* mteval-v14: Unicode punctuation and symbols */
    BTI_TOKENS_CHAR, /* each character that is no white space; chrF's characters */
    BTI_TOKENS_ZH,   /* Chinese characters alone, the rest as 13a without entities */
    BTI_TOKENS_CHRF  /* white space, and one ASCII punctuation mark off a word's end or start */
} bti_tokenization;

typedef struct bti_token {
    const char *start;
    size_t bytes;
} bti_token;

/* The tokens of one line; reused for the next, zero-initialised at first. */
typedef struct bti_tokens {
    bti_text line, scratch; /* `list` points into `line` */
    bti_token *list;
    size_t count, room;
} bti_tokens;

/* Tokens of a line (UTF-8, no line end), until the next call or bti_tokens_free; `line` itself need
 * not last. BT_ENOMEM alone can happen. */
bt_status bti_tokenize(bti_tokenization kind, const char *line, size_t bytes, bti_tokens *out);
void bti_tokens_free(bti_tokens *t); /* what it holds */

#endif
