/* Python's `re` patterns (of str, so Unicode) in PCRE2's language. The differences, and what is
 * done about each:
 * - \w \d \s \b mean Unicode sets: written out as sets, so that no option and no version of PCRE2
 *   decides. \W in a set is refused.
 * - \uXXXX, \UXXXXXXXX, octal and control escapes become \x{...}; \Z is \z; \v is one character.
 * - {,n} is {0,n}; what is no quantifier is a literal brace.
 * - "[" in a set is a literal, not the start of a POSIX name.
 * - (?u) goes; (?i) (?m) (?s) at the start become options; (?a) (?L) (?x) and \N are refused.
 * - Without regard to case, Python takes i, I, U+0130 and U+0131 for the same.
 * Python's $ and . see only 0A as a line end: PCRE2 is told so when it compiles. */
#include "core/data/spacy.h"

#include "core/base/status.h"
#include "core/data/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACES \
    "\\x{9}-\\x{d}\\x{1c}-\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}" \
    "\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACES \
    "\\x{0}-\\x{8}\\x{e}-\\x{1b}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}" \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}" \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{L}\\p{N}_"

enum { MAX_DEPTH = 200, NO_CHAR = -1 };

/* Most characters that a group can match: of the alternatives so far, of this one, and of its last
 * item alone (0 once a quantifier has taken it). */
typedef struct frame {
    int64_t most, here, last;
    int ignore_case, looks; /* looks: ahead or behind, and takes nothing */
} frame;

typedef struct translator {
    const char *name, *s;
    size_t n, at;
    bti_translation *t;
    int depth, at_end; /* at_end: the last item at the top level was $ or \Z */
    frame frame[MAX_DEPTH + 1];
} translator;

static bt_status refuse(const translator *x, const char *what) {
    return bti_fail(BT_EINPUT, "%s: byte %zu of the pattern: %s: not taken", x->name, x->at, what);
}

static bt_status put(translator *x, const char *text) {
    return bti_text_put(&x->t->out, text, strlen(text));
}

static int peek(const translator *x) { return x->at < x->n ? (unsigned char)x->s[x->at] : NO_CHAR; }

static int take(translator *x, int c) {
    if (peek(x) != c) return 0;
    x->at++;
    return 1;
}

/* The next character; NO_CHAR at the end. */
static int32_t next_char(translator *x) {
    if (x->at >= x->n) return NO_CHAR;
    unsigned c = (unsigned char)x->s[x->at++];
    int more = c < 0xC0 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    int32_t code = (int32_t)(c & (more ? 0x3Fu >> more : 0x7Fu));
    while (more-- > 0) code = code << 6 | (x->s[x->at++] & 0x3F);
    return code;
}

static int is_alnum(int32_t c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bt_status put_char(translator *x, int32_t c) {
    char text[16];
    if (is_alnum(c))
        snprintf(text, sizeof text, "%c", (int)c);
    else
        snprintf(text, sizeof text, "\\x{%x}", (unsigned)c);
    return put(x, text);
}

/* ---- lengths --------------------------------------------------------------------------------- */

static int64_t plus(int64_t a, int64_t b) {
    return a == BTI_ANYWHERE || b == BTI_ANYWHERE ? BTI_ANYWHERE : a + b;
}

/* An item of this many characters at most. */
static void add_item(translator *x, int64_t length) {
    frame *f = &x->frame[x->depth];
    f->here = plus(f->here, length);
    if (f->here > INT32_MAX) f->here = BTI_ANYWHERE;
    f->last = length;
    if (x->depth == 0) x->at_end = 0;
}

/* The last item comes at most `times`. More than 2^31 characters are as good as no bound. */
static void repeat_item(translator *x, int64_t times) {
    frame *f = &x->frame[x->depth];
    if (f->last > 0 && times > 1)
        f->here = times > INT32_MAX || f->last > INT32_MAX ? BTI_ANYWHERE
                                                           : plus(f->here, f->last * (times - 1));
    if (f->here > INT32_MAX) f->here = BTI_ANYWHERE;
    f->last = 0;
    if (x->depth == 0) x->at_end = 0;
}

static void next_alternative(translator *x) {
    frame *f = &x->frame[x->depth];
    if (f->here > f->most) f->most = f->here;
    f->here = f->last = 0;
}

/* ---- escapes --------------------------------------------------------------------------------- */

/* Outside a set. */
static bt_status put_literal(translator *x, int32_t c) {
    int is_i = c == 'i' || c == 'I' || c == 0x130 || c == 0x131;
    add_item(x, 1);
    if (is_i && x->frame[x->depth].ignore_case) return put(x, "[iI\\x{130}\\x{131}]");
    return put_char(x, c);
}

static int digit_of(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return 99;
}

/* Digits of a base: at least `least`, at most `most`. */
static bt_status number(translator *x, int base, int least, int most, int32_t *value) {
    int n = 0;
    int64_t v = 0;
    for (; n < most && peek(x) != NO_CHAR && digit_of(peek(x)) < base; n++)
        v = v * base + digit_of(x->s[x->at++]);
    if (n < least) return refuse(x, "an escape with too few digits");
    if (v > 0x10FFFF) return refuse(x, "an escape beyond Unicode");
    *value = (int32_t)v;
    return BT_OK;
}

/* An escape that stands for one character; *c NO_CHAR when it is another one, which is then still
 * to be read. */
static bt_status char_escape(translator *x, int32_t *c) {
    static const char letters[] = "afnrt", codes[] = "\a\f\n\r\t";
    int e = peek(x);
    const char *at = e > 0 ? strchr(letters, e) : NULL;
    *c = NO_CHAR;
    if (e == NO_CHAR) return refuse(x, "a pattern that ends in a backslash");
    if (is_alnum(e) && e != 'x' && e != 'u' && e != 'U' && e != '0' && e != 'v' && at == NULL)
        return BT_OK;
    int32_t literal = next_char(x);
    if (e == 'x') return number(x, 16, 2, 2, c);
    if (e == 'u') return number(x, 16, 4, 4, c);
    if (e == 'U') return number(x, 16, 8, 8, c);
    if (e == '0') return number(x, 8, 0, 2, c);
    *c = e == 'v' ? '\v' : at != NULL ? codes[at - letters] : literal;
    return BT_OK;
}

/* \1 .. \99, or three octal digits. */
static bt_status numbered_escape(translator *x) {
    char text[24];
    int32_t v;
    const char *s = x->s + x->at;
    int three = x->n - x->at >= 3 && s[0] <= '3' && digit_of(s[0]) < 8 && digit_of(s[1]) < 8 &&
                digit_of(s[2]) < 8;
    if (three) {
        BT_TRY(number(x, 8, 3, 3, &v));
        return put_literal(x, v);
    }
    BT_TRY(number(x, 10, 1, 2, &v));
    x->t->refers = 1;
    add_item(x, BTI_ANYWHERE);
    snprintf(text, sizeof text, "\\g{%d}", (int)v);
    return put(x, text);
}

static bt_status escape(translator *x) {
    int32_t c;
    BT_TRY(char_escape(x, &c));
    if (c != NO_CHAR) return put_literal(x, c);
    if (digit_of(peek(x)) < 10) return numbered_escape(x);
    add_item(x, strchr("bBAZ", x->s[x->at]) != NULL ? 0 : 1);
    if (x->depth == 0) x->at_end = x->s[x->at] == 'Z';
    switch (x->s[x->at++]) {
    case 'w':
        return put(x, "[" WORD "]");
    case 'W':
        return put(x, "[^" WORD "]");
    case 'd':
        return put(x, "\\p{Nd}");
    case 'D':
        return put(x, "\\P{Nd}");
    case 's':
        return put(x, "[" SPACES "]");
    case 'S':
        return put(x, "[^" SPACES "]");
    case 'b':
        return put(x, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
    case 'B':
        return put(x, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    case 'A':
        return put(x, "\\A");
    case 'Z':
        return put(x, "\\z");
    default:
        return refuse(x, "an unknown escape");
    }
}

/* ---- sets ------------------------------------------------------------------------------------ */

/* One member: a character, or a set by escape, which is put out at once (*c NO_CHAR). */
static bt_status member(translator *x, int32_t *c) {
    *c = next_char(x);
    if (*c == NO_CHAR) return refuse(x, "a set without end");
    if (*c != '\\') return BT_OK;
    BT_TRY(char_escape(x, c));
    if (*c != NO_CHAR) return BT_OK;
    if (digit_of(peek(x)) < 8) return number(x, 8, 1, 3, c);
    switch (x->s[x->at++]) {
    case 'w':
        return put(x, WORD);
    case 'd':
        return put(x, "\\p{Nd}");
    case 'D':
        return put(x, "\\P{Nd}");
    case 's':
        return put(x, SPACES);
    case 'S':
        return put(x, NO_SPACES);
    case 'b':
        *c = '\b';
        return BT_OK;
    default:
        return refuse(x, "an escape that has no place in a set");
    }
}

static bt_status set(translator *x) {
    int any_i = 0;
    add_item(x, 1);
    BT_TRY(put(x, take(x, '^') ? "[^" : "["));
    for (int first = 1;; first = 0) {
        int32_t low, high;
        if (!first && take(x, ']')) break;
        BT_TRY(member(x, &low));
        int range = peek(x) == '-' && x->at + 1 < x->n && x->s[x->at + 1] != ']';
        if (low == NO_CHAR && range) return refuse(x, "a range that starts with a set");
        if (low == NO_CHAR) continue;
        high = low;
        BT_TRY(put_char(x, low));
        if (range) {
            x->at++;
            BT_TRY(member(x, &high));
            if (high < low) return refuse(x, "a range that ends before it starts");
            BT_TRY(put(x, "-"));
            BT_TRY(put_char(x, high));
        }
        any_i |= (low <= 'I' && high >= 'I') || (low <= 'i' && high >= 'i') ||
                 (low <= 0x131 && high >= 0x130);
    }
    if (any_i && x->frame[x->depth].ignore_case) BT_TRY(put(x, "iI\\x{130}\\x{131}"));
    return put(x, "]");
}

/* ---- groups ---------------------------------------------------------------------------------- */

static bt_status open_group(translator *x, const char *text) {
    if (x->depth == MAX_DEPTH) return refuse(x, "groups nested too deep");
    x->frame[x->depth + 1] = (frame){.ignore_case = x->frame[x->depth].ignore_case,
                                     .looks = strchr("=!", text[strlen(text) - 1]) != NULL};
    x->depth++;
    return put(x, text);
}

static bt_status close_group(translator *x) {
    if (x->depth == 0) return refuse(x, "a bracket that closes nothing");
    next_alternative(x);
    frame f = x->frame[x->depth--];
    add_item(x, f.looks ? 0 : f.most);
    return put(x, ")");
}

/* Copies what stands up to and with `end`. */
static bt_status copy_to(translator *x, char end) {
    const char *from = x->s + x->at, *to = memchr(from, end, x->n - x->at);
    if (to == NULL) return refuse(x, "a group without end");
    x->at += (size_t)(to - from) + 1;
    return bti_text_put(&x->t->out, from, (size_t)(to - from) + 1);
}

/* "(?flags)" at the start, or "(?flags-flags:". */
static bt_status flags(translator *x, int at_start) {
    char text[32] = "(?";
    size_t n = 2;
    int ignore_case = x->frame[x->depth].ignore_case, off = 0;
    for (; peek(x) != ')' && peek(x) != ':'; x->at++) {
        int c = peek(x);
        if (c == NO_CHAR || strchr("imsu-", c) == NULL || n > 20)
            return refuse(x, "a group of this kind, or the flag a, L or x");
        if (c == '-') off = 1;
        if (c == 'i') ignore_case = !off;
        if (c != 'u') text[n++] = (char)c;
    }
    if (x->s[x->at++] == ':') {
        text[n] = ':';
        BT_TRY(open_group(x, text));
        x->frame[x->depth].ignore_case = ignore_case;
        return BT_OK;
    }
    if (!at_start || off) return refuse(x, "flags behind the start of the pattern");
    x->frame[0].ignore_case = ignore_case;
    x->t->ignore_case |= strchr(text, 'i') != NULL;
    x->t->multi_line |= strchr(text, 'm') != NULL;
    x->t->dot_all |= strchr(text, 's') != NULL;
    return BT_OK;
}

/* Behind "(". */
static bt_status group(translator *x) {
    int at_start = x->t->out.bytes == 0;
    if (!take(x, '?')) return open_group(x, "(");
    if (take(x, ':')) return open_group(x, "(?:");
    if (take(x, '=')) return open_group(x, "(?=");
    if (take(x, '!')) return open_group(x, "(?!");
    if (take(x, '>')) return open_group(x, "(?>");
    if (take(x, '<')) {
        if (peek(x) != '=' && peek(x) != '!') return refuse(x, "a group of this kind");
        return open_group(x, x->s[x->at++] == '=' ? "(?<=" : "(?<!");
    }
    if (take(x, '#')) {
        while (peek(x) != ')' && peek(x) != NO_CHAR) x->at++;
        return take(x, ')') ? BT_OK : refuse(x, "a comment without end");
    }
    if (take(x, '(')) {
        x->t->refers = 1;
        BT_TRY(open_group(x, "(?("));
        return copy_to(x, ')');
    }
    if (!take(x, 'P')) return flags(x, at_start);
    if (take(x, '<')) {
        BT_TRY(open_group(x, "(?P<"));
        return copy_to(x, '>');
    }
    if (!take(x, '=')) return refuse(x, "a group of this kind");
    x->t->refers = 1;
    add_item(x, BTI_ANYWHERE);
    BT_TRY(put(x, "(?P="));
    return copy_to(x, ')');
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* Behind "{": a quantifier, or a literal brace. */
static bt_status brace(translator *x) {
    size_t from = x->at, digits[2] = {0, 0};
    int comma = 0;
    char text[64];
    while (peek(x) >= '0' && peek(x) <= '9') x->at++, digits[0]++;
    const char *low = x->s + from, *high = low;
    if ((comma = take(x, ','))) {
        high = x->s + x->at;
        while (peek(x) >= '0' && peek(x) <= '9') x->at++, digits[1]++;
    }
    if (peek(x) != '}' || digits[0] > 9 || digits[1] > 9 || (!comma && digits[0] == 0)) {
        x->at = from;
        return put_literal(x, '{');
    }
    x->at++;
    repeat_item(x, comma && digits[1] == 0 ? BTI_ANYWHERE : strtoll(comma ? high : low, NULL, 10));
    snprintf(text, sizeof text, "{%.*s%s%.*s}", digits[0] ? (int)digits[0] : 1,
             digits[0] ? low : "0", comma ? "," : "", (int)digits[1], high);
    return put(x, text);
}

/* $ may stand before a last 0A: one character more. */
static bt_status end_alternative(translator *x) {
    bti_translation *t = x->t;
    int64_t length = BTI_ANYWHERE;
    if (x->at_end && !t->multi_line && x->frame[0].here <= INT32_MAX) length = x->frame[0].here;
    if (t->alternatives == t->room) {
        size_t room = t->room ? 2 * t->room : 16;
        bti_alternative *more = bti_realloc(t->alternative, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        t->alternative = more;
        t->room = room;
    }
    t->alternative[t->alternatives++] = (bti_alternative){t->out.bytes, plus(length, 1)};
    x->at_end = 0;
    return BT_OK;
}

static bt_status bar(translator *x) {
    if (x->depth == 0) BT_TRY(end_alternative(x));
    next_alternative(x);
    return put(x, "|");
}

static bt_status item(translator *x) {
    int32_t c = next_char(x);
    char text[2] = {(char)c, 0};
    switch (c) {
    case '\\':
        return escape(x);
    case '[':
        return set(x);
    case '(':
        return group(x);
    case '{':
        return brace(x);
    case '|':
        return bar(x);
    case ')':
        return close_group(x);
    case '*':
    case '+':
    case '?':
        repeat_item(x, c == '?' ? 1 : BTI_ANYWHERE);
        return put(x, text);
    case '^':
    case '$':
    case '.':
        add_item(x, c == '.' ? 1 : 0);
        if (x->depth == 0) x->at_end = c == '$';
        return put(x, text);
    default:
        return put_literal(x, c);
    }
}

bt_status bti_pattern_translate(const char *name, const char *python, size_t bytes,
                                bti_translation *out) {
    *out = (bti_translation){.refers = 0};
    translator x = {.name = name, .s = python, .n = bytes, .t = out};
    bt_status s = bti_text_put(&out->out, "", 0);
    if (s == BT_OK && bti_utf8_check(python, bytes) < bytes)
        s = bti_fail(BT_EINPUT, "%s: the pattern is not UTF-8, or holds a 00", name);
    while (s == BT_OK && x.at < x.n) s = item(&x);
    if (s == BT_OK && x.depth > 0) s = refuse(&x, "a group without end");
    if (s == BT_OK) s = end_alternative(&x);
    if (s != BT_OK) bti_translation_free(out);
    return s;
}

void bti_translation_free(bti_translation *t) {
    bti_free(t->out.text);
    bti_free(t->alternative);
    *t = (bti_translation){.refers = 0};
}
