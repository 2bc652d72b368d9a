/* What a kind of tokeniser gives. A new kind is one file, one table here, one name in
 * bti_tokenizer_kind, and golden lines in tests/test_text.c. */
#ifndef BANTAM_DATA_TOKENIZER_OPS_H
#define BANTAM_DATA_TOKENIZER_OPS_H

#include "core/data/tokenizer.h"
#include "core/data/word_list.h"

typedef struct bti_tokenizer_ops {
    /* Fills t->impl (also when it fails half way), t->size and t->special from the bytes of the
     * model file. t->checksum is that of the bytes and the kind; a kind may set one of its own. */
    bt_status (*open)(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                      size_t bytes);
    void (*close)(void *impl); /* NULL is fine */
    /* At least one of these; the other is made of it. */
    bt_status (*encode)(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids);
    bt_status (*tokens)(const bti_tokenizer *t, const char *text, size_t bytes, bti_token_fn fn,
                        void *user);
    /* Ids are in range. New string and its length; line ends in it are dealt with by the caller. */
    bt_status (*decode)(const bti_tokenizer *t, const int32_t *ids, int64_t count, char **text,
                        size_t *bytes);
    const char *(*piece)(const bti_tokenizer *t, int32_t id); /* in range */
    /* NULL: this kind is not trained here. */
    bt_status (*train)(const bti_tokenizer_config *cfg, const char *const *files, size_t count);
} bti_tokenizer_ops;

struct bti_tokenizer {
    const bti_tokenizer_ops *ops;
    void *impl;
    int64_t size;
    bti_special_ids special;
    uint64_t checksum;
};

extern const bti_tokenizer_ops bti_tokenizer_sentencepiece, bti_tokenizer_xlmr, bti_tokenizer_words,
    bti_tokenizer_spacy;

/* Those of a word list. */
static const bti_special_ids bti_word_specials = {
    .start = BTI_WORD_START, .end = BTI_WORD_END, .unk = BTI_WORD_UNK, .pad = BTI_WORD_PAD};

#endif
