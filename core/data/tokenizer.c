#include "core/data/tokenizer.h"

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/tokenizer_ops.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

static const bti_tokenizer_ops *const kinds[BTI_TOKENIZER_KINDS] = {
    [BTI_TOKENIZER_SENTENCEPIECE] = &bti_tokenizer_sentencepiece,
    [BTI_TOKENIZER_XLMR] = &bti_tokenizer_xlmr,
    [BTI_TOKENIZER_WORDS] = &bti_tokenizer_words,
    [BTI_TOKENIZER_SPACY] = &bti_tokenizer_spacy,
};

bt_status bti_tokenizer_open(const bti_tokenizer_config *cfg, bti_tokenizer **out) {
    char *model = NULL;
    size_t bytes = 0;
    BT_TRY(bti_file_read(cfg->model, &model, &bytes));
    bt_status s = BT_ENOMEM;
    bti_tokenizer *t = bti_alloc(1, sizeof *t);
    if (t == NULL) goto fail;
    t->ops = kinds[cfg->kind];
    t->checksum = XXH64(model, bytes, (XXH64_hash_t)cfg->kind);
    s = t->ops->open(t, cfg, model, bytes);
    if (s != BT_OK) goto fail;
    bti_free(model);
    *out = t;
    return BT_OK;
fail:
    bti_free(model);
    bti_tokenizer_free(t);
    return s;
}

void bti_tokenizer_free(bti_tokenizer *t) {
    if (t == NULL) return;
    t->ops->close(t->impl);
    bti_free(t);
}

char *bti_tokenizer_trained_file(const bti_tokenizer_config *cfg) {
    if (cfg->kind != BTI_TOKENIZER_SPACY) return bti_strdup(cfg->model);
    return cfg->vocabulary ? bti_strdup(cfg->vocabulary) : bti_format("%s.words", cfg->model);
}

bt_status bti_tokenizer_train(const bti_tokenizer_config *cfg, const char *const *files,
                              size_t count) {
    if (kinds[cfg->kind]->train == NULL)
        return bti_fail(BT_EUSAGE,
                        "%s: a tokeniser of this kind is not trained here: name a file that exists",
                        cfg->model);
    return kinds[cfg->kind]->train(cfg, files, count);
}

int64_t bti_tokenizer_size(const bti_tokenizer *t) { return t->size; }
bti_special_ids bti_tokenizer_specials(const bti_tokenizer *t) { return t->special; }
uint64_t bti_tokenizer_checksum(const bti_tokenizer *t) { return t->checksum; }

bt_status bti_ids_push(bti_ids *ids, int32_t id) {
    if (ids->count == ids->capacity) {
        int64_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *more = bti_realloc(ids->id, (size_t)capacity, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        ids->id = more;
        ids->capacity = capacity;
    }
    ids->id[ids->count++] = id;
    return BT_OK;
}

void bti_ids_free(bti_ids *ids) {
    bti_free(ids->id);
    *ids = (bti_ids){0};
}

static bt_status push_token(void *user, const char *token, size_t bytes, int32_t id) {
    (void)token, (void)bytes;
    return bti_ids_push(user, id);
}

/* Ids to `ids`, or tokens to `fn`. */
static bt_status take_apart(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids,
                            bti_token_fn fn, void *user) {
    if (ids != NULL && t->ops->encode != NULL) return t->ops->encode(t, text, bytes, ids);
    if (ids != NULL) return t->ops->tokens(t, text, bytes, push_token, ids);
    if (t->ops->tokens != NULL) return t->ops->tokens(t, text, bytes, fn, user);
    bti_ids own = {0};
    bt_status s = t->ops->encode(t, text, bytes, &own);
    for (int64_t i = 0; i < own.count && s == BT_OK; i++) {
        const char *piece = t->ops->piece(t, own.id[i]);
        s = fn(user, piece, strlen(piece), own.id[i]);
    }
    bti_ids_free(&own);
    return s;
}

/* A lone CR is white space, whatever the model would make of it. */
static bt_status without_cr(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids,
                            bti_token_fn fn, void *user) {
    if (memchr(text, '\r', bytes) == NULL) return take_apart(t, text, bytes, ids, fn, user);
    char *copy = bti_alloc(bytes, 1);
    if (copy == NULL) return BT_ENOMEM;
    for (size_t i = 0; i < bytes; i++) copy[i] = text[i] == '\r' ? ' ' : text[i];
    bt_status s = take_apart(t, copy, bytes, ids, fn, user);
    bti_free(copy);
    return s;
}

bt_status bti_tokenizer_encode(const bti_tokenizer *t, const char *text, size_t bytes,
                               bti_ids *ids) {
    return without_cr(t, text, bytes, ids, NULL, NULL);
}

bt_status bti_tokenizer_tokens(const bti_tokenizer *t, const char *text, size_t bytes,
                               bti_token_fn fn, void *user) {
    return without_cr(t, text, bytes, NULL, fn, user);
}

/* Length of the character at s that some reader takes for a line end, or of a 00; 0: none.
 * 00, 0A-0D, 1C-1E, U+0085, U+2028, U+2029. */
static size_t breaker(const unsigned char *s, size_t n) {
    if (s[0] == 0 || (s[0] >= 0x0A && s[0] <= 0x0D) || (s[0] >= 0x1C && s[0] <= 0x1E)) return 1;
    if (n >= 2 && s[0] == 0xC2 && s[1] == 0x85) return 2;
    if (n >= 3 && s[0] == 0xE2 && s[1] == 0x80 && (s[2] == 0xA8 || s[2] == 0xA9)) return 3;
    return 0;
}

bt_status bti_tokenizer_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count,
                               char **text) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->size)
            return bti_fail(BT_EINTERNAL, "id %d is outside the vocabulary of %lld", (int)ids[i],
                            (long long)t->size);
    char *s = NULL;
    size_t bytes = 0, out = 0;
    BT_TRY(t->ops->decode(t, ids, count, &s, &bytes));
    /* Pieces may hold any bytes (byte fall-back, white space kept): a text stays one line. */
    for (size_t i = 0; i < bytes;) {
        size_t n = breaker((unsigned char *)s + i, bytes - i);
        s[out++] = n ? ' ' : s[i];
        i += n ? n : 1;
    }
    s[out] = 0;
    *text = s;
    return BT_OK;
}

const char *bti_tokenizer_piece(const bti_tokenizer *t, int32_t id) {
    return id < 0 || id >= t->size ? NULL : t->ops->piece(t, id);
}
