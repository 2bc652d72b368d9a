/* libsentencepiece behind C. Nothing of C++ crosses: no exception, no type; ids are the model's
 * own. Only tokenizer_spm.c includes this. */
#ifndef BANTAM_DATA_SENTENCEPIECE_H
#define BANTAM_DATA_SENTENCEPIECE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/data/tokenizer.h"

typedef struct bti_spm bti_spm;

/* `name` stands for the model in messages. */
bt_status bti_spm_open(const char *name, const void *model, size_t bytes, bti_spm **out);
void bti_spm_close(bti_spm *m);
int32_t bti_spm_size(const bti_spm *m);
/* <s>, </s>, <unk>, <pad>; -1 where the model has none. */
void bti_spm_specials(const bti_spm *m, int32_t *bos, int32_t *eos, int32_t *unk, int32_t *pad);
bt_status bti_spm_encode(const bti_spm *m, const char *text, size_t bytes, bti_ids *ids);
/* The same with each piece; an unknown one as it stands in the normalised text. */
bt_status bti_spm_pieces(const bti_spm *m, const char *text, size_t bytes, bti_token_fn fn,
                         void *user);
/* New string (bti_free) and its length. */
bt_status bti_spm_decode(const bti_spm *m, const int32_t *ids, size_t count, char **text,
                         size_t *bytes);
const char *bti_spm_piece(const bti_spm *m, int32_t id);

typedef struct bti_spm_train {
    int64_t size;
    double coverage; /* share of the text's characters that get a piece of their own */
    /* The next line; *line NULL at the end. */
    bt_status (*next)(void *user, const char **line, size_t *bytes);
    void *user;
} bti_spm_train;
/* Unigram; unk 0, <s> 1, </s> 2. The model as a new buffer (bti_free). */
bt_status bti_spm_train_unigram(const bti_spm_train *cfg, char **model, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
