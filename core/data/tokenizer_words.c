/* Kind `words`: tokens are what stands between white space. */
#include "core/data/tokenizer_ops.h"

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/word_list.h"

#include <string.h>

static bt_status words_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                            size_t bytes) {
    bti_words *w;
    BT_TRY(bti_words_parse(cfg->model, model, bytes, &w));
    t->impl = w;
    t->size = bti_words_size(w);
    t->special = bti_word_specials;
    t->checksum = bti_words_checksum(w, (uint64_t)cfg->kind);
    return BT_OK;
}

static void words_close(void *impl) { bti_words_free(impl); }

/* Without a list (training) all words are unknown. */
static bt_status words_tokens(const bti_tokenizer *t, const char *text, size_t bytes,
                              bti_token_fn fn, void *user) {
    size_t at = 0, space;
    while (at < bytes) {
        size_t begin = at;
        while (at < bytes && (space = bti_space_at(text + at, bytes - at)) == 0) at++;
        if (at > begin) {
            int32_t id = t->impl ? bti_words_find(t->impl, text + begin, at - begin) : BTI_WORD_UNK;
            BT_TRY(fn(user, text + begin, at - begin, id));
        }
        if (at < bytes) at += space;
    }
    return BT_OK;
}

static bt_status words_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count,
                              char **text, size_t *bytes) {
    bti_text b = {0};
    bt_status s = bti_text_put(&b, "", 0);
    for (int64_t i = 0; i < count && s == BT_OK; i++) {
        if (ids[i] < BTI_WORD_UNK) continue;
        const char *word = bti_words_text(t->impl, ids[i]);
        if (b.bytes > 0) s = bti_text_put(&b, " ", 1);
        if (s == BT_OK) s = bti_text_put(&b, word, strlen(word));
    }
    if (s != BT_OK) {
        bti_free(b.text);
        return s;
    }
    *text = b.text;
    *bytes = b.bytes;
    return BT_OK;
}

static const char *words_piece(const bti_tokenizer *t, int32_t id) {
    return bti_words_text(t->impl, id);
}

static bt_status words_train(const bti_tokenizer_config *cfg, const char *const *files,
                             size_t count) {
    bti_tokenizer t = {.ops = &bti_tokenizer_words};
    return bti_words_train(&t, cfg, cfg->model, files, count);
}

const bti_tokenizer_ops bti_tokenizer_words = {
    .open = words_open,
    .close = words_close,
    .tokens = words_tokens,
    .decode = words_decode,
    .piece = words_piece,
    .train = words_train,
};
