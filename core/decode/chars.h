/* Characters of UTF-8 text as Python's str sees them: code points, lower case. Unicode
 * properties are utf8proc's. A byte that is no UTF-8 is a character of its own. */
#ifndef BANTAM_DECODE_CHARS_H
#define BANTAM_DECODE_CHARS_H

#include <stddef.h>
#include <stdint.h>

#include "core/base/text.h"

/* Bytes of the character at s < end, and its code; a byte that is no UTF-8 has a surrogate's. */
size_t bti_char_at(const char *s, const char *end, int32_t *code);

/* str.lower(): with U+0130 as two characters and the final form of sigma. */
bt_status bti_lowercase(const char *text, size_t bytes, bti_text *out);

#endif
