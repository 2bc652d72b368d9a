/* sacreBLEU's tokenisations: the regular expressions of mteval-v13a and v14 as passes over a line.
 * Each pass walks the whole line before the next begins, and a match takes its characters, so that
 * the next one starts behind it, as Python's re.sub does. */
#include "core/decode/tokenize.h"

#include <string.h>
#include <utf8proc.h>

#include "core/base/status.h"
#include "core/base/text.h"

/* No pass makes more than three bytes of one. */
enum { GROWTH = 3 };

/* Writes in[0 .. n-1] to out (room for GROWTH * n), returns the bytes written. */
typedef size_t (*pass)(const char *in, size_t n, char *out);

static bt_status run_passes(bti_tokens *t, const pass *passes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        BT_TRY(bti_text_reserve(&t->scratch, GROWTH * t->line.bytes + 1));
        t->scratch.bytes = passes[i](t->line.text, t->line.bytes, t->scratch.text);
        bti_text swap = t->line;
        t->line = t->scratch;
        t->scratch = swap;
    }
    return BT_OK;
}

static size_t put(char *out, const char *text, size_t bytes) {
    memcpy(out, text, bytes);
    return bytes;
}

/* ---- 13a ---------------------------------------------------------------------------------------
 * Bytes will do for characters here: each rule looks at one ASCII character and a neighbour, of
 * which it matters only whether it is a digit or a stop. */

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_stop(char c) { return c == '.' || c == ','; }
/* [{-~[-` -&(-+:-@/] of mteval-v13a: ASCII punctuation but ' , - . */
static int is_punctuation(char c) {
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
           (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

static size_t split_punctuation(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        int alone = is_punctuation(in[i]);
        if (alone) out[to++] = ' ';
        out[to++] = in[i];
        if (alone) out[to++] = ' ';
    }
    return to;
}

static size_t split_stop_after_other(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        out[to++] = in[i];
        if (is_digit(in[i]) || i + 1 == n || !is_stop(in[i + 1])) continue;
        out[to++] = ' ';
        out[to++] = in[++i];
        out[to++] = ' ';
    }
    return to;
}

static size_t split_stop_before_other(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        int match = is_stop(in[i]) && i + 1 < n && !is_digit(in[i + 1]);
        if (match) out[to++] = ' ';
        out[to++] = in[i];
        if (match) out[to++] = ' ', out[to++] = in[++i];
    }
    return to;
}

static size_t split_dash_after_digit(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        out[to++] = in[i];
        if (!is_digit(in[i]) || i + 1 == n || in[i + 1] != '-') continue;
        out[to++] = ' ';
        out[to++] = in[++i];
        out[to++] = ' ';
    }
    return to;
}

/* Replaces each `what` by a text that is not longer, from left to right. */
static void replace(bti_text *t, const char *what, const char *by) {
    size_t n = strlen(what), m = strlen(by), to = 0;
    for (size_t i = 0; i < t->bytes;) {
        if (t->bytes - i >= n && memcmp(t->text + i, what, n) == 0) {
            to += put(t->text + to, by, m);
            i += n;
        } else {
            t->text[to++] = t->text[i++];
        }
    }
    t->bytes = to;
}

static const pass rules_13a[] = {split_punctuation, split_stop_after_other, split_stop_before_other,
                                 split_dash_after_digit};

static bt_status make_13a(bti_tokens *t) {
    bti_text *a = &t->line;
    BT_TRY(bti_text_reserve(a, a->bytes + 2));
    memmove(a->text + 1, a->text, a->bytes);
    a->bytes += 2;
    a->text[0] = a->text[a->bytes - 1] = ' ';
    if (memchr(a->text, '<', a->bytes) != NULL) replace(a, "<skipped>", "");
    if (memchr(a->text, '&', a->bytes) != NULL) {
        replace(a, "&quot;", "\"");
        replace(a, "&amp;", "&");
        replace(a, "&lt;", "<");
        replace(a, "&gt;", ">");
    }
    return run_passes(t, rules_13a, sizeof rules_13a / sizeof rules_13a[0]);
}

/* ---- zh ----------------------------------------------------------------------------------------
 */

/* sacreBLEU's ranges, with two that it means otherwise: what it writes for the supplementary planes
 * (u'\u20000' to u'\u2a6d6', u'\u2f800' to u'\u2fa1d') Python reads as strings of two characters,
 * between which 2001 to 2A6D and 2F81 to 2FA1 lie. So dashes and curly quotes stand alone, and
 * characters from 20000 on do not. */
static int is_chinese(int32_t c) {
    static const int32_t range[][2] = {
        {0x2001, 0x2a6d}, {0x2e80, 0x2fdf}, {0x2ff0, 0x303f}, {0x3100, 0x312f}, {0x31a0, 0x31bf},
        {0x31c0, 0x31ef}, {0x3200, 0x33ff}, {0x3400, 0x4db5}, {0x4e00, 0x9fbb}, {0xf900, 0xfa2d},
        {0xfa30, 0xfa6a}, {0xfa70, 0xfad9}, {0xfe10, 0xfe1f}, {0xfe30, 0xfe4f}, {0xff00, 0xffef}};
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++)
        if (c >= range[i][0] && c <= range[i][1]) return 1;
    return 0;
}

static size_t split_chinese(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0, bytes; i < n; i += bytes) {
        int32_t c;
        bytes = bti_char_at(in + i, in + n, &c);
        int alone = c >= 0x2000 && is_chinese(c);
        if (alone) out[to++] = ' ';
        to += put(out + to, in + i, bytes);
        if (alone) out[to++] = ' ';
    }
    return to;
}

/* ---- intl --------------------------------------------------------------------------------------
 */

static int is_number(int32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static int is_mark(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static int is_symbol(int32_t c) {
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_SM && k <= UTF8PROC_CATEGORY_SO;
}

/* A match is two characters, one not a number beside a punctuation mark; `mark_first` tells which
 * way round. The mark comes to stand alone on its side of the other: "x, " or " ,x". */
static size_t split_marks(const char *in, size_t n, char *out, int mark_first) {
    const char *end = in + n;
    size_t to = 0;
    while (in < end) {
        int32_t a, b;
        size_t na = bti_char_at(in, end, &a), nb = 0;
        if (in + na < end) nb = bti_char_at(in + na, end, &b);
        int match =
            nb > 0 && (mark_first ? is_mark(a) && !is_number(b) : !is_number(a) && is_mark(b));
        if (match && mark_first) out[to++] = ' ';
        to += put(out + to, in, na);
        in += na;
        if (!match) continue;
        out[to++] = ' ';
        to += put(out + to, in, nb);
        in += nb;
        if (!mark_first) out[to++] = ' ';
    }
    return to;
}

static size_t split_mark_after_other(const char *in, size_t n, char *out) {
    return split_marks(in, n, out, 0);
}

static size_t split_mark_before_other(const char *in, size_t n, char *out) {
    return split_marks(in, n, out, 1);
}

static size_t split_symbols(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0, bytes; i < n; i += bytes) {
        int32_t c;
        bytes = bti_char_at(in + i, in + n, &c);
        int alone = is_symbol(c);
        if (alone) out[to++] = ' ';
        to += put(out + to, in + i, bytes);
        if (alone) out[to++] = ' ';
    }
    return to;
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static bt_status push(bti_tokens *t, const char *start, const char *end) {
    if (start == NULL || start == end) return BT_OK;
    BT_TRY(bti_grow((void **)&t->list, &t->room, t->count + 1, sizeof *t->list));
    t->list[t->count++] = (bti_token){start, (size_t)(end - start)};
    return BT_OK;
}

static int is_ascii_mark(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

/* One mark off, of the end if there is one, else of the start; never of a single character. */
static bt_status push_chrf_word(bti_tokens *t, const char *start, const char *end) {
    const char *cut = end;
    int32_t c;
    if (start == NULL) return BT_OK;
    if (start + bti_char_at(start, end, &c) < end) {
        if (is_ascii_mark(end[-1]))
            cut = end - 1;
        else if (is_ascii_mark(start[0]))
            cut = start + 1;
    }
    BT_TRY(push(t, start, cut));
    return push(t, cut, end);
}

static bt_status split_words(bti_tokens *t, bti_tokenization kind) {
    const char *s = t->line.text, *end = s + t->line.bytes, *start = NULL;
    bt_status (*push_word)(bti_tokens *, const char *, const char *) =
        kind == BTI_TOKENS_CHRF ? push_chrf_word : push;
    t->count = 0;
    while (s < end) {
        int32_t c;
        size_t n = bti_char_at(s, end, &c);
        if (bti_char_is_white(c)) {
            BT_TRY(push_word(t, start, s));
            start = NULL;
        } else if (kind == BTI_TOKENS_CHAR) {
            BT_TRY(push(t, s, s + n));
        } else if (start == NULL) {
            start = s;
        }
        s += n;
    }
    return push_word(t, start, end);
}

/* Takes the white space off both ends; that at the start only for zh, where the rules would see it.
 */
static void trim(const char **line, size_t *bytes, int left) {
    const char *s = *line, *end = s + *bytes, *first = s, *last = s;
    int seen = !left;
    while (s < end) {
        int32_t c;
        const char *at = s;
        s += bti_char_at(s, end, &c);
        if (bti_char_is_white(c)) continue;
        if (!seen) first = at;
        seen = 1;
        last = s;
    }
    *bytes = (size_t)(last - first);
    *line = first;
}

bt_status bti_tokenize(bti_tokenization kind, const char *line, size_t bytes, bti_tokens *out) {
    static const pass rules_intl[] = {split_mark_after_other, split_mark_before_other,
                                      split_symbols};
    static const pass rules_zh[] = {split_chinese};
    trim(&line, &bytes, kind == BTI_TOKENS_ZH);
    BT_TRY(bti_text_reserve(&out->line, bytes + 2));
    memcpy(out->line.text, line, bytes);
    out->line.bytes = bytes;
    if (kind == BTI_TOKENS_13A) BT_TRY(make_13a(out));
    if (kind == BTI_TOKENS_INTL)
        BT_TRY(run_passes(out, rules_intl, sizeof rules_intl / sizeof rules_intl[0]));
    if (kind == BTI_TOKENS_ZH) {
        BT_TRY(run_passes(out, rules_zh, 1));
        BT_TRY(run_passes(out, rules_13a, sizeof rules_13a / sizeof rules_13a[0]));
    }
    return split_words(out, kind);
}

void bti_tokens_free(bti_tokens *t) {
    bti_free(t->line.text);
    bti_free(t->scratch.text);
    bti_free(t->list);
}
