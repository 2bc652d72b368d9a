/* What a kind of tokeniser gives. A new kind is one file, one table here, one name in
 * bti_tokenizer_kind, and golden lines in tests/test_data.c. */
#ifndef BANTAM_DATA_TOKENIZER_OPS_H
#define BANTAM_DATA_TOKENIZER_OPS_H

#include "core/data/tokenizer.h"

typedef struct bti_tokenizer_ops {
    /* Fills t->impl, t->size and t->special from the bytes of the model file. */
    bt_status (*open)(bti_tokenizer *t, const char *path, const char *model, size_t bytes);
    void (*close)(void *impl); /* NULL is fine */
    bt_status (*encode)(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids);
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

extern const bti_tokenizer_ops bti_tokenizer_sentencepiece, bti_tokenizer_xlmr;

#endif
