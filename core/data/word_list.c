#include "core/data/word_list.h"

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/string_table.h"
#include "core/data/train_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

static const char *const specials[BTI_WORD_FIRST] = {"<pad>", "<s>", "</s>", "<unk>"};

struct bti_words {
    bti_strings list;
};

/* ---- reading --------------------------------------------------------------------------------- */

/* Bytes of the word of a line: what follows its last TAB must be a count. */
static bt_status word_bytes(const char *path, int64_t line, const char *s, size_t n,
                            size_t *bytes) {
    const char *tab = memrchr(s, '\t', n);
    *bytes = tab != NULL ? (size_t)(tab - s) : n;
    if (tab != NULL) {
        size_t count = n - *bytes - 1, digits = 0;
        while (digits < count && tab[1 + digits] >= '0' && tab[1 + digits] <= '9') digits++;
        if (count == 0 || digits < count)
            return bti_fail(BT_EINPUT, "%s: line %" PRId64 ": behind the TAB there must be a count",
                            path, line);
    }
    if (*bytes == 0)
        return bti_fail(BT_EINPUT, "%s: line %" PRId64 ": there is no word", path, line);
    return BT_OK;
}

static bt_status add_word(bti_words *w, const char *path, const char *s, size_t n) {
    int64_t line = w->list.count + 1, index;
    size_t bytes, bad = bti_utf8_check(s, n);
    if (bad < n)
        return bti_fail(BT_EINPUT,
                        "%s: line %" PRId64 ", byte %zu: a 00 byte, or not UTF-8: not a word list",
                        path, line, bad + 1);
    BT_TRY(word_bytes(path, line, s, n, &bytes));
    if (line <= BTI_WORD_FIRST &&
        (bytes != strlen(specials[line - 1]) || memcmp(s, specials[line - 1], bytes) != 0))
        return bti_fail(BT_EINPUT,
                        "%s: line %" PRId64 " should be %s: a word list begins with "
                        "<pad>, <s>, </s>, <unk>, a line each",
                        path, line, specials[line - 1]);
    BT_TRY(bti_strings_add(&w->list, s, bytes, &index));
    if (index != line - 1)
        return bti_fail(BT_EINPUT, "%s: line %" PRId64 ": the word of line %" PRId64 " again", path,
                        line, index + 1);
    return BT_OK;
}

static bt_status add_all(bti_words *w, const char *path, const char *text, size_t bytes) {
    int crlf = 0;
    const char *end = text + bytes;
    for (const char *s = text + bti_text_mark(text, bytes); s < end;) {
        const char *lf = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((lf ? lf : end) - s);
        int cr = lf != NULL && n > 0 && s[n - 1] == '\r';
        if (cr && !crlf)
            bti_log(BT_LOG_INFO, "CRLF in %s: the CR before the line end is dropped", path);
        crlf |= cr;
        BT_TRY(add_word(w, path, s, n - (size_t)cr));
        s += n + 1;
    }
    if (w->list.count < BTI_WORD_FIRST)
        return bti_fail(BT_EINPUT,
                        "%s: not a word list: it begins with <pad>, <s>, </s>, <unk>, a "
                        "line each",
                        path);
    return BT_OK;
}

bt_status bti_words_parse(const char *path, const char *text, size_t bytes, bti_words **out) {
    static const char none[] = "<pad>\n<s>\n</s>\n<unk>\n";
    bti_words *w = bti_alloc(1, sizeof *w);
    if (w == NULL) return BT_ENOMEM;
    bt_status s = add_all(w, path, text ? text : none, text ? bytes : sizeof none - 1);
    if (s != BT_OK)
        bti_words_free(w);
    else
        *out = w;
    return s;
}

void bti_words_free(bti_words *w) {
    if (w == NULL) return;
    bti_strings_free(&w->list);
    bti_free(w);
}

int64_t bti_words_size(const bti_words *w) { return w->list.count; }

int32_t bti_words_find(const bti_words *w, const char *word, size_t bytes) {
    int64_t id = bti_strings_find(&w->list, word, bytes);
    return id < BTI_WORD_FIRST ? BTI_WORD_UNK : (int32_t)id;
}

const char *bti_words_text(const bti_words *w, int32_t id) {
    size_t bytes;
    return bti_strings_at(&w->list, id, &bytes);
}

uint64_t bti_words_checksum(const bti_words *w, uint64_t seed) {
    return XXH64(w->list.text, w->list.used, seed);
}

/* ---- training -------------------------------------------------------------------------------- */

typedef struct counts {
    bti_strings words;
    int64_t *count, room;
} counts;

static bt_status count_word(void *user, const char *word, size_t bytes, int32_t id) {
    counts *c = user;
    int64_t i;
    (void)id;
    BT_TRY(bti_strings_add(&c->words, word, bytes, &i));
    if (i >= c->room) {
        int64_t room = c->room ? 2 * c->room : 1024;
        int64_t *more = bti_realloc(c->count, (size_t)room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        memset(more + c->room, 0, (size_t)(room - c->room) * sizeof *more);
        c->count = more;
        c->room = room;
    }
    c->count[i]++;
    return BT_OK;
}

static bt_status count_all(counts *c, const bti_tokenizer *t, const char *const *files,
                           size_t count) {
    bti_train_text x = {.files = files, .count = count};
    const char *line;
    size_t bytes;
    bt_status s;
    while ((s = bti_train_text_next(&x, &line, &bytes)) == BT_OK && line != NULL) {
        s = bti_tokenizer_tokens(t, line, bytes, count_word, c);
        if (s != BT_OK) break;
    }
    bti_train_text_close(&x);
    return s;
}

typedef struct candidate {
    const char *word;
    size_t bytes;
    int64_t count;
} candidate;

/* Falling count; of equal ones the lesser bytes first. */
static int before(const void *x, const void *y) {
    const candidate *a = x, *b = y;
    if (a->count != b->count) return a->count > b->count ? -1 : 1;
    size_t n = a->bytes < b->bytes ? a->bytes : b->bytes;
    int c = memcmp(a->word, b->word, n);
    return c ? c : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int is_special(const char *word) {
    for (int i = 0; i < BTI_WORD_FIRST; i++)
        if (strcmp(word, specials[i]) == 0) return 1;
    return 0;
}

/* Puts the words that stay in order; *kept of them. */
static candidate *choose(const counts *c, int64_t min_count, int64_t *kept) {
    candidate *list = bti_alloc((size_t)c->words.count, sizeof *list);
    if (list == NULL) return NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < c->words.count; i++) {
        candidate x = {.count = c->count[i]};
        x.word = bti_strings_at(&c->words, i, &x.bytes);
        /* A line end has no place in the file. */
        if (x.count < min_count || is_special(x.word) || memchr(x.word, '\n', x.bytes)) continue;
        list[n++] = x;
    }
    qsort(list, (size_t)n, sizeof *list, before);
    *kept = n;
    return list;
}

static bt_status write_list(const char *path, const candidate *list, int64_t count) {
    bti_text t = {0};
    for (int i = 0; i < BTI_WORD_FIRST; i++) bti_text_add(&t, "%s\n", specials[i]);
    for (int64_t i = 0; i < count; i++) {
        bti_text_put(&t, list[i].word, list[i].bytes);
        bti_text_add(&t, "\t%" PRId64 "\n", list[i].count);
    }
    bt_status s = t.status;
    if (s == BT_OK) s = bti_file_write(path, t.text, t.bytes);
    bti_free(t.text);
    return s;
}

bt_status bti_words_train(const bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *path,
                          const char *const *files, size_t count) {
    if (cfg->size <= BTI_WORD_FIRST)
        return bti_fail(BT_EINPUT,
                        "tokenizer.size %" PRId64
                        " has no room for a word beside the 4 special symbols",
                        cfg->size);
    counts c = {0};
    int64_t kept = 0, most = cfg->size - BTI_WORD_FIRST;
    candidate *list = NULL;
    bt_status s = count_all(&c, t, files, count);
    if (s == BT_OK && (list = choose(&c, cfg->min_count, &kept)) == NULL) s = BT_ENOMEM;
    if (s == BT_OK && kept == 0)
        s = bti_fail(BT_EINPUT,
                     c.words.count == 0
                         ? "cannot train the vocabulary %s: the text has no words"
                         : "cannot train the vocabulary %s: no word is there tokenizer.min_count "
                           "%" PRId64 " times",
                     path, cfg->min_count);
    if (s == BT_OK) s = write_list(path, list, kept < most ? kept : most);
    if (s == BT_OK)
        bti_log(BT_LOG_INFO, "%" PRId64 " of the text's %" PRId64 " words are in %s",
                kept < most ? kept : most, c.words.count, path);
    bti_free(list);
    bti_free(c.count);
    bti_strings_free(&c.words);
    return s;
}

/* ---- characters --------------------------------------------------------------------- */

size_t bti_space_at(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    if (n == 0) return 0;
    if (s[0] < 0x80) return bti_char_is_white(s[0]);
    if (n >= 2 && s[0] == 0xC2) return s[1] >= 0x80 && bti_char_is_white(s[1]) ? 2 : 0;
    if (n < 3 || (s[0] != 0xE1 && s[0] != 0xE2 && s[0] != 0xE3)) return 0;
    return bti_char_is_white((s[0] & 15) << 12 | (s[1] & 63) << 6 | (s[2] & 63)) ? 3 : 0;
}
