#include "core/data/spacy.h"

#include "core/base/status.h"

#include <string.h>

bt_status bti_spacy_join(const bti_spacy *s, const char *const *token, size_t count,
                         bti_buffer *out) {
    (void)s;
    for (size_t i = 0; i < count; i++) {
        if (i > 0) BT_TRY(bti_buffer_put(out, " ", 1));
        BT_TRY(bti_buffer_put(out, token[i], strlen(token[i])));
    }
    return BT_OK;
}
