#include "core/base/text.h"

#include <stdio.h>

int bti_char_is_white(int32_t c) {
    if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1c && c <= ' ');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int reserve(bti_text *t, size_t more) {
    size_t need = t->bytes + more + 1, n = t->capacity ? t->capacity : 256;
    while (n < need) n *= 2;
    if (n == t->capacity) return 1;
    char *p = bti_realloc(t->text, n, 1);
    if (p == NULL) {
        t->status = BT_ENOMEM;
        return 0;
    }
    t->text = p;
    t->capacity = n;
    return 1;
}

void bti_text_add(bti_text *t, const char *fmt, ...) {
    va_list ap, again;
    bti_numbers numbers = bti_numbers_begin();
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (t->status == BT_OK && n >= 0 && reserve(t, (size_t)n)) {
        vsnprintf(t->text + t->bytes, (size_t)n + 1, fmt, again);
        t->bytes += (size_t)n;
    }
    va_end(again);
    bti_numbers_end(numbers);
}

bt_status bti_text_take(bti_text *t, char **out) {
    bt_status status = t->status;
    if (status == BT_OK && !reserve(t, 0)) status = BT_ENOMEM;
    if (status != BT_OK) {
        bti_free(t->text);
    } else {
        t->text[t->bytes] = '\0';
        *out = t->text;
    }
    *t = (bti_text){0};
    return status;
}
