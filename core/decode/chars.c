/* Characters as Python's str sees them. */
#include "core/decode/chars.h"

#include <string.h>
#include <utf8proc.h>

#include "core/base/status.h"

size_t bti_char_at(const char *s, const char *end, int32_t *code) {
    unsigned char first = (unsigned char)*s;
    if (first < 0x80) {
        *code = first;
        return 1;
    }
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, end - s, code);
    if (n > 0) return (size_t)n;
    *code = 0xdc00 + first;
    return 1;
}

/* ---- lower case --------------------------------------------------------------------------------
 */

/* Unicode's Case_Ignorable. */
static int is_ignorable(int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return 1;
    default: /* Word_Break is MidLetter, MidNumLet or Single_Quote */
        return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x387 || c == 0x55f ||
               c == 0x5f4 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027 ||
               c == 0xfe13 || c == 0xfe52 || c == 0xfe55 || c == 0xff07 || c == 0xff0e ||
               c == 0xff1a;
    }
}

/* Unicode's Cased, of characters that are not ignorable. */
static int is_cased(int32_t c) {
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return 1;
    default: /* Other_Uppercase, Other_Lowercase: ordinals, Roman numerals, letters in circles */
        return c == 0xaa || c == 0xba || (c >= 0x2160 && c <= 0x217f) ||
               (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

static int cased_behind(const char *at, const char *end) {
    while (at < end) {
        int32_t c;
        at += bti_char_at(at, end, &c);
        if (!is_ignorable(c)) return is_cased(c);
    }
    return 0;
}

static int cased_before(const char *start, const char *at) {
    while (at > start) {
        const char *from = at - 1;
        int32_t c;
        while (from > start && at - from < 4 && ((unsigned char)*from & 0xc0) == 0x80) from--;
        if (from + bti_char_at(from, at, &c) != at) {
            from = at - 1;
            bti_char_at(from, at, &c);
        }
        if (!is_ignorable(c)) return is_cased(c);
        at = from;
    }
    return 0;
}

bt_status bti_lowercase(const char *text, size_t bytes, bti_text *out) {
    /* U+023A and others grow from two bytes to three */
    BT_TRY(bti_text_reserve(out, 2 * bytes + 1));
    const char *end = text + bytes;
    size_t to = 0;
    for (const char *s = text; s < end;) {
        int32_t c;
        size_t n = bti_char_at(s, end, &c);
        const char *behind = s + n;
        if (c < 0x80) {
            out->text[to++] = (char)(c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c);
        } else if (c == 0x130) {
            memcpy(out->text + to, "i\xcc\x87", 3);
            to += 3;
        } else {
            int32_t low = utf8proc_tolower(c);
            if (c == 0x3a3 && cased_before(text, s) && !cased_behind(behind, end)) low = 0x3c2;
            if (low == c) { /* also what is no UTF-8 */
                memcpy(out->text + to, s, n);
                to += n;
            } else {
                to += (size_t)utf8proc_encode_char(low, (utf8proc_uint8_t *)out->text + to);
            }
        }
        s = behind;
    }
    out->bytes = to;
    return BT_OK;
}
