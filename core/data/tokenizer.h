/* Tokenisers: text to ids and back. One vtable, one file per kind. */
#ifndef BANTAM_DATA_TOKENIZER_H
#define BANTAM_DATA_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"

typedef enum bti_tokenizer_kind {
    BTI_TOKENIZER_SENTENCEPIECE, /* a SentencePiece model, ids as they are */
    BTI_TOKENIZER_XLMR,          /* the same with fairseq's ids: 0 <s>, 1 <pad>, 2 </s>, 3 <unk>,
                                    then piece id + 1, and <mask> last */
    BTI_TOKENIZER_WORDS, /* white-space tokens and a word list: 0 <pad>, 1 <s>, 2 </s>, 3 <unk> */
    BTI_TOKENIZER_SPACY, /* the tokens of a tokeniser that spaCy saved, and a word list */
    BTI_TOKENIZER_KINDS
} bti_tokenizer_kind;

typedef struct bti_tokenizer_config {
    bti_tokenizer_kind kind;
    char *model;  /* file */
    int64_t size; /* pieces to train when the file is absent; 0: do not train. Of word lists: at
                     most, special symbols included */
    int64_t min_count; /* word lists: rarer words are left out */
    char *vocabulary;  /* spacy: the word list, model + ".words" when NULL; "": none, and all words
                          are unknown */
} bti_tokenizer_config;

typedef struct bti_tokenizer bti_tokenizer;

/* Loads cfg->model. BT_EINPUT naming the file when it is missing or damaged; BT_EUSAGE when this
 * build lacks a library that the kind needs. */
bt_status bti_tokenizer_open(const bti_tokenizer_config *cfg, bti_tokenizer **out);
void bti_tokenizer_free(bti_tokenizer *t);

/* What training writes: the word list of spacy, else cfg->model. New string; NULL without memory.
 */
char *bti_tokenizer_trained_file(const bti_tokenizer_config *cfg);
/* Trains cfg->size pieces (SentencePiece unigram; unk 0, <s> 1, </s> 2) or a word list on the lines
 * of `files` (plain or .gz) and writes the trained file, aside and renamed. Deterministic. */
bt_status bti_tokenizer_train(const bti_tokenizer_config *cfg, const char *const *files,
                              size_t count);

/* Ids are 0 .. size-1. */
int64_t bti_tokenizer_size(const bti_tokenizer *t);
/* start: <s> if the model has one, else the pad symbol, else the end symbol. unk and pad may be -1.
 */
typedef struct bti_special_ids {
    int32_t start, end, unk, pad;
} bti_special_ids;
bti_special_ids bti_tokenizer_specials(const bti_tokenizer *t);
/* XXH64 of everything that decides ids and text: kind, model bytes, words. */
uint64_t bti_tokenizer_checksum(const bti_tokenizer *t);

/* A growing id list; zero-initialised, freed with bti_ids_free. */
typedef struct bti_ids {
    int32_t *id;
    int64_t count, capacity;
} bti_ids;
bt_status bti_ids_push(bti_ids *ids, int32_t id);
void bti_ids_free(bti_ids *ids);

/* Appends the ids of text (UTF-8, no line end, no specials added). Thread-safe on one tokeniser. */
bt_status bti_tokenizer_encode(const bti_tokenizer *t, const char *text, size_t bytes,
                               bti_ids *ids);
/* The tokens of text as they stand in it (words), or as the vocabulary has them (SentencePiece's
 * pieces; an unknown one as it stands in the normalised text), with their ids; anything but BT_OK
 * from `fn` ends it. Otherwise as encode. */
typedef bt_status (*bti_token_fn)(void *user, const char *token, size_t bytes, int32_t id);
bt_status bti_tokenizer_tokens(const bti_tokenizer *t, const char *text, size_t bytes,
                               bti_token_fn fn, void *user);
/* Text of ids, specials left out; new string (bti_free). */
bt_status bti_tokenizer_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count,
                               char **text);
/* The piece of one id, for people; owned by the tokeniser. NULL out of range. */
const char *bti_tokenizer_piece(const bti_tokenizer *t, int32_t id);

#endif
