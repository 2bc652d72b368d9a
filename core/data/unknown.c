#include "core/data/unknown.h"

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/train_text.h"

#include <inttypes.h>
#include <string.h>

#define CODES 0x110000
#define SPACE 0x2581 /* what SentencePiece writes for one */

struct bti_unknown {
    const bti_tokenizer *tokenizer;
    int32_t unk;
    int64_t *count; /* of each code */
};

bt_status bti_unknown_new(const bti_tokenizer *t, bti_unknown **out) {
    bti_unknown *u = bti_alloc(1, sizeof *u);
    if (u == NULL) return BT_ENOMEM;
    u->tokenizer = t;
    u->unk = bti_tokenizer_specials(t).unk;
    u->count = bti_alloc(CODES, sizeof *u->count); /* pages that nothing touches cost nothing */
    if (u->count == NULL) {
        bti_unknown_free(u);
        return BT_ENOMEM;
    }
    *out = u;
    return BT_OK;
}

void bti_unknown_free(bti_unknown *u) {
    if (u == NULL) return;
    bti_free(u->count);
    bti_free(u);
}

/* Reads first: writing would take the pages that nothing has touched. */
void bti_unknown_clear(bti_unknown *u) {
    for (uint32_t c = 0; c < CODES; c++)
        if (u->count[c] != 0) u->count[c] = 0;
}

/* The character at p of well-formed text; its bytes. */
static uint32_t read_char(const unsigned char *p, size_t *bytes) {
    size_t n = *p < 0xC0 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    uint32_t c = n == 1 ? *p : *p & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) c = c << 6 | (p[i] & 0x3Fu);
    *bytes = n;
    return c;
}

static bt_status add_token(void *user, const char *token, size_t bytes, int32_t id) {
    bti_unknown *u = user;
    size_t n;
    if (id != u->unk || bti_utf8_check(token, bytes) != bytes) return BT_OK;
    for (size_t at = 0; at < bytes; at += n) {
        uint32_t c = read_char((const unsigned char *)token + at, &n);
        if (c != SPACE) u->count[c]++;
    }
    return BT_OK;
}

bt_status bti_unknown_add(bti_unknown *u, const char *line, size_t bytes) {
    return u->unk < 0 ? BT_OK : bti_tokenizer_tokens(u->tokenizer, line, bytes, add_token, u);
}

static void write_char(uint32_t c, char out[8]) {
    unsigned char *p = (unsigned char *)out;
    if (c < 0x80) {
        *p++ = (unsigned char)c;
    } else if (c < 0x800) {
        *p++ = (unsigned char)(0xC0 | c >> 6);
    } else if (c < 0x10000) {
        *p++ = (unsigned char)(0xE0 | c >> 12);
        *p++ = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    } else {
        *p++ = (unsigned char)(0xF0 | c >> 18);
        *p++ = (unsigned char)(0x80 | (c >> 12 & 0x3F));
        *p++ = (unsigned char)(0x80 | (c >> 6 & 0x3F));
    }
    if (c >= 0x80) *p++ = (unsigned char)(0x80 | (c & 0x3F));
    *p = 0;
}

int bti_unknown_chars(const bti_unknown *u, bti_unknown_char *out, int most) {
    int n = 0;
    for (uint32_t c = 0; c < CODES; c++) {
        int at = n;
        if (u->count[c] == 0) continue;
        while (at > 0 && out[at - 1].count < u->count[c]) at--;
        if (at == most) continue;
        if (n < most) n++;
        memmove(out + at + 1, out + at, (size_t)(n - at - 1) * sizeof *out);
        out[at] = (bti_unknown_char){.code = c, .count = u->count[c]};
        write_char(c, out[at].text);
    }
    return n;
}

bt_status bti_unknown_sample(const bti_tokenizer *t, const bti_files *files, int64_t lines,
                             char **text) {
    enum { MOST = 8 };
    bti_train_text from = {.files = (const char *const *)files->path, .count = files->count};
    bti_unknown_char best[MOST];
    bti_text out = {0};
    bti_unknown *u;
    BT_TRY(bti_unknown_new(t, &u));
    const char *line = NULL;
    size_t bytes;
    bt_status s = BT_OK;
    for (int64_t i = 0; i < lines && s == BT_OK; i++) {
        s = bti_train_text_next(&from, &line, &bytes);
        if (s != BT_OK || line == NULL) break;
        s = bti_unknown_add(u, line, bytes);
    }
    bti_train_text_close(&from);
    int n = s == BT_OK ? bti_unknown_chars(u, best, MOST) : 0;
    for (int i = 0; i < n; i++)
        bti_text_add(&out, "%s%s (%" PRId64 ")", i ? ", " : "", best[i].text, best[i].count);
    bti_unknown_free(u);
    return s == BT_OK ? bti_text_take(&out, text) : s;
}
