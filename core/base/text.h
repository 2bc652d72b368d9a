/* Numbers and texts that are the same in every locale, and a text that grows. */
#ifndef BANTAM_BASE_TEXT_H
#define BANTAM_BASE_TEXT_H

#include <locale.h>

#include "core/base/status.h"

/* Between these the thread's numbers have a point, whatever locale the program has set: around
 * every strtod and every %g, %f and %a of what is kept or handed out. They may be nested; cheap. */
typedef struct bti_numbers {
    locale_t c, old;
} bti_numbers;

static inline bti_numbers bti_numbers_begin(void) {
    bti_numbers n = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
    if (n.c != (locale_t)0) n.old = uselocale(n.c);
    return n;
}

static inline void bti_numbers_end(bti_numbers n) {
    if (n.c == (locale_t)0) return;
    uselocale(n.old);
    freelocale(n.c);
}

/* "7.06 GiB" into out; for people. */
void bti_format_bytes(uint64_t bytes, char out[32]);

/* Is a code point white space to Python: what str.isspace knows and str.split splits at. */
int bti_char_is_white(int32_t code);

/* Zero-initialised; `text` is freed with bti_free. After a failed append it stays as it is, and
 * bti_text_take tells. */
typedef struct bti_text {
    char *text;
    size_t bytes, capacity;
    bt_status status;
} bti_text;

/* Numbers have a point. */
void bti_text_add(bti_text *t, const char *fmt, ...) BTI_PRINTF(2, 3);
/* Appends these bytes; gives t->status. A 00 stands behind. */
bt_status bti_text_put(bti_text *t, const char *bytes, size_t count);
/* Room for so many bytes in all, which the caller fills; what is there stays. */
bt_status bti_text_reserve(bti_text *t, size_t bytes);
/* Hands the text over (bti_free), or gives what went wrong and frees it. */
bt_status bti_text_take(bti_text *t, char **out);

#endif
