#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

int bti_char_is_white(int32_t c) {
    if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 0x1c && c <= ' ');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bt_status bti_text_reserve(bti_text *t, size_t bytes) {
    size_t room = t->capacity ? t->capacity : 256;
    while (room < bytes) room *= 2;
    if (room == t->capacity) return BT_OK;
    char *more = bti_realloc(t->text, room, 1);
    if (more == NULL) return BT_ENOMEM;
    t->text = more;
    t->capacity = room;
    return BT_OK;
}

/* For so many more bytes and a 00. */
static int make_room(bti_text *t, size_t bytes) {
    if (t->status == BT_OK) t->status = bti_text_reserve(t, t->bytes + bytes + 1);
    return t->status == BT_OK;
}

bt_status bti_text_put(bti_text *t, const char *bytes, size_t count) {
    if (!make_room(t, count)) return t->status;
    if (count > 0) memcpy(t->text + t->bytes, bytes, count);
    t->bytes += count;
    t->text[t->bytes] = 0;
    return BT_OK;
}

void bti_text_add(bti_text *t, const char *fmt, ...) {
    va_list ap, again;
    bti_numbers numbers = bti_numbers_begin();
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0 && make_room(t, (size_t)n)) {
        vsnprintf(t->text + t->bytes, (size_t)n + 1, fmt, again);
        t->bytes += (size_t)n;
    }
    va_end(again);
    bti_numbers_end(numbers);
}

bt_status bti_text_take(bti_text *t, char **out) {
    make_room(t, 0);
    bt_status status = t->status;
    if (status != BT_OK) {
        bti_free(t->text);
    } else {
        t->text[t->bytes] = '\0';
        *out = t->text;
    }
    *t = (bti_text){0};
    return status;
}

void bti_format_bytes(uint64_t bytes, char out[32]) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int i = 0;
    for (; v >= 1024 && i < 6; i++) v /= 1024;
    bti_numbers c = bti_numbers_begin();
    if (i == 0)
        snprintf(out, 32, "%llu B", (unsigned long long)bytes);
    else
        snprintf(out, 32, "%.2f %s", v, unit[i]);
    bti_numbers_end(c);
}
