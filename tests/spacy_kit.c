#include "tests/spacy_parts.h"

#include <msgpack.h>

#include "tests/kit.h"

const spacy_rules spacy_small = {
    .prefix = "^\\(|^\"|^\\$|^\xE2\x80\x9E",
    .suffix = "\\)$|\"$|,$|\\.$|\\.\\.+$|'s$|!$|\\?$|:$|\xE2\x80\x9C$|(?<=[0-9])km$",
    .infix = "(?<=[a-z])-(?=[a-z])|\\.\\.+|(?<=[0-9])-(?=[0-9])",
    .token_match = "^\\d+-\\d+-\\d+$",
    .url_match = "(?u)^\\w+://\\S+$",
    .faster = 1,
    .exceptions = "do_n't z.B. :-) ( ) (c) can_not New+York New+York+City p+q q+r (:_) x_-_y ...! "
                  "\xE2\x80\xA8 ",
};

static void put_text(msgpack_packer *k, const char *text, size_t n) {
    msgpack_pack_str(k, n);
    msgpack_pack_str_body(k, text, n);
}

static void put_pattern(msgpack_packer *k, const char *name, const char *pattern) {
    put_text(k, name, strlen(name));
    if (pattern != NULL)
        put_text(k, pattern, strlen(pattern));
    else
        msgpack_pack_nil(k);
}

static void put_exception(msgpack_packer *k, const char *word, size_t n) {
    char text[100];
    size_t bytes = 0, tokens = 1;
    for (size_t i = 0; i < n; i++) {
        tokens += word[i] == '_';
        if (word[i] != '_') text[bytes++] = word[i] == '+' ? ' ' : word[i];
    }
    put_text(k, text, bytes);
    msgpack_pack_array(k, tokens);
    for (const char *t = text, *w = word; tokens > 0; tokens--) {
        size_t length = strcspn(w, "_ ");
        msgpack_pack_map(k, 2);
        msgpack_pack_uint8(k, 67); /* NORM, which decides nothing here */
        put_text(k, "norm", 4);
        msgpack_pack_uint8(k, 65);
        put_text(k, t, length);
        t += length;
        w += length + 1;
    }
}

const char *spacy_put_rules(const spacy_rules *r) {
    const char *path = kit_str("%s/rules", kit_tmpdir());
    msgpack_sbuffer b;
    msgpack_packer k;
    size_t count = 0;
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&k, &b, msgpack_sbuffer_write);
    msgpack_pack_map(&k, 8);
    put_text(&k, "vocab", 5);
    msgpack_pack_bin(&k, 3);
    msgpack_pack_bin_body(&k, "\0\1\2", 3);
    put_pattern(&k, "prefix_search", r->prefix);
    put_pattern(&k, "suffix_search", r->suffix);
    put_pattern(&k, "infix_finditer", r->infix);
    put_pattern(&k, "token_match", r->token_match);
    put_pattern(&k, "url_match", r->url_match);
    put_text(&k, "faster_heuristics", 17);
    r->faster ? msgpack_pack_true(&k) : msgpack_pack_false(&k);
    put_text(&k, "exceptions", 10);
    for (const char *p = r->exceptions; *p; p++) count += *p == ' ';
    msgpack_pack_map(&k, count);
    for (const char *p = r->exceptions; count > 0; count--) {
        size_t n = strcspn(p, " ");
        put_exception(&k, p, n);
        p += n + 1;
    }
    kit_write(path, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    return path;
}

bti_tokenizer *spacy_open_small(void) {
    bti_tokenizer *t;
    kit_ok(spacy_open_rules(spacy_put_rules(&spacy_small), &t));
    return t;
}

static bt_status join_token(void *user, const char *token, size_t bytes, int32_t id) {
    char *to = user;
    size_t n = strlen(to);
    (void)id;
    ck_assert_uint_lt(n + bytes, 60000);
    sprintf(to + n, "%s%.*s", n ? "|" : "", (int)bytes, token);
    return BT_OK;
}

const char *spacy_tokens(const bti_tokenizer *t, const char *text) {
    static char out[60001];
    out[0] = 0;
    kit_ok(bti_tokenizer_tokens(t, text, strlen(text), join_token, out));
    return out;
}

bt_status spacy_open_rules(const char *path, bti_tokenizer **t) {
    bti_tokenizer_config cfg = {.kind = BTI_TOKENIZER_SPACY,
                                .model = (char *)(uintptr_t)path,
                                .vocabulary = (char *)(uintptr_t) ""};
    return bti_tokenizer_open(&cfg, t);
}

bti_tokenizer_config spacy_trained(const char *rules, const char *text) {
    const char *file = kit_str("%s/text", kit_tmpdir());
    bti_tokenizer_config cfg = {.kind = BTI_TOKENIZER_SPACY,
                                .model = (char *)(uintptr_t)rules,
                                .size = 1000,
                                .min_count = 1};
    kit_write_text(file, text);
    kit_ok(bti_tokenizer_train(&cfg, &file, 1));
    return cfg;
}
