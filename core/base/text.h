/* A text that grows by printf: reports, JSON lines, SVG. */
#ifndef BANTAM_BASE_TEXT_H
#define BANTAM_BASE_TEXT_H

#include "core/base/status.h"

/* Zero-initialised. After a failed append it stays as it is and bti_text_take tells. */
typedef struct bti_text {
    char *text;
    size_t bytes, capacity;
    bt_status status;
} bti_text;

void bti_text_add(bti_text *t, const char *fmt, ...) BTI_PRINTF(2, 3);
/* Hands the text over (bti_free), or gives what went wrong and frees it. */
bt_status bti_text_take(bti_text *t, char **out);

#endif
