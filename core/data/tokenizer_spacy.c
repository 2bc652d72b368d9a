/* Kind `spacy`: a tokeniser that spaCy saved, and a word list over its tokens. */
#include "core/data/tokenizer_ops.h"

#include "core/base/status.h"
#include "core/base/text.h"

#ifdef BT_SPACY_MISSING

static bt_status missing(const bti_tokenizer_config *cfg) {
    return bti_fail(BT_EUSAGE,
                    "%s: this build cannot read spaCy's tokenisers: it was made without " //
                    BT_SPACY_MISSING,
                    cfg->model);
}

static bt_status missing_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                              size_t bytes) {
    (void)t, (void)model, (void)bytes;
    return missing(cfg);
}

static void missing_close(void *impl) { (void)impl; }

static bt_status missing_train(const bti_tokenizer_config *cfg, const char *const *files,
                               size_t count) {
    (void)files, (void)count;
    return missing(cfg);
}

const bti_tokenizer_ops bti_tokenizer_spacy = {
    .open = missing_open, .close = missing_close, .train = missing_train};

#else

#include "core/base/files.h"
#include "core/data/spacy.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* The words of cfg; "" has none. */
static bt_status open_words(const bti_tokenizer_config *cfg, bti_words **out) {
    if (cfg->vocabulary != NULL && cfg->vocabulary[0] == 0)
        return bti_words_parse(cfg->model, NULL, 0, out);
    char *path = bti_tokenizer_trained_file(cfg), *text = NULL;
    size_t bytes;
    bt_status s = path == NULL ? BT_ENOMEM : bti_file_read(path, &text, &bytes);
    if (s == BT_OK) s = bti_words_parse(path, text, bytes, out);
    bti_free(text);
    bti_free(path);
    return s;
}

static bt_status spacy_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                            size_t bytes) {
    bti_spacy_rules rules;
    bti_words *words;
    bti_spacy *s;
    BT_TRY(bti_spacy_read(cfg->model, model, bytes, &rules));
    bt_status status = open_words(cfg, &words);
    if (status != BT_OK) {
        bti_spacy_rules_free(&rules);
        return status;
    }
    BT_TRY(bti_spacy_new(&rules, words, &s));
    t->impl = s;
    t->size = bti_words_size(words);
    t->special = bti_word_specials;
    t->checksum = bti_words_checksum(words, t->checksum);
    return BT_OK;
}

static void spacy_close(void *impl) { bti_spacy_free(impl); }

static bt_status spacy_tokens(const bti_tokenizer *t, const char *text, size_t bytes,
                              bti_token_fn fn, void *user) {
    return bti_spacy_tokens(t->impl, text, bytes, fn, user);
}

static const char *spacy_piece(const bti_tokenizer *t, int32_t id) {
    return bti_words_text(bti_spacy_words(t->impl), id);
}

static bt_status spacy_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count,
                              char **text, size_t *bytes) {
    bti_text b = {0};
    size_t n = 0;
    bt_status s = bti_text_put(&b, "", 0);
    const char **token = bti_alloc((size_t)count, sizeof *token);
    if (token == NULL) s = BT_ENOMEM;
    for (int64_t i = 0; i < count && s == BT_OK; i++)
        if (ids[i] >= BTI_WORD_UNK) token[n++] = spacy_piece(t, ids[i]);
    if (s == BT_OK) s = bti_spacy_join(t->impl, token, n, &b);
    bti_free(token);
    if (s != BT_OK) {
        bti_free(b.text);
        return s;
    }
    *text = b.text;
    *bytes = b.bytes;
    return BT_OK;
}

static bt_status spacy_train(const bti_tokenizer_config *cfg, const char *const *files,
                             size_t count) {
    bti_tokenizer_config rules = *cfg;
    bti_tokenizer *t;
    char none[1] = "", *path = bti_tokenizer_trained_file(cfg);
    if (path == NULL) return BT_ENOMEM;
    rules.vocabulary = none;
    bt_status s = bti_tokenizer_open(&rules, &t);
    if (s == BT_OK) {
        s = bti_words_train(t, cfg, path, files, count);
        bti_tokenizer_free(t);
    }
    bti_free(path);
    return s;
}

const bti_tokenizer_ops bti_tokenizer_spacy = {
    .open = spacy_open,
    .close = spacy_close,
    .tokens = spacy_tokens,
    .decode = spacy_decode,
    .piece = spacy_piece,
    .train = spacy_train,
};

#endif
