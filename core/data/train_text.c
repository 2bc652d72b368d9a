#include "core/data/train_text.h"

#include "core/base/status.h"

#include <inttypes.h>

bt_status bti_train_text_next(bti_train_text *x, const char **line, size_t *bytes) {
    *line = NULL;
    while (x->reader != NULL || x->file < x->count) {
        if (x->reader == NULL) {
            BT_TRY(bti_reader_open(x->files[x->file++], &x->reader));
            bti_reader_quiet(x->reader);
        }
        BT_TRY(bti_reader_next(x->reader, line, bytes));
        if (*line != NULL) break;
        bti_train_text_close(x);
    }
    size_t bad = *line ? bti_utf8_check(*line, *bytes) : 0;
    if (*line != NULL && bad < *bytes)
        return bti_fail(BT_EINPUT,
                        "%s: line %" PRId64 ", byte %zu (offset %" PRId64
                        " in the text): a 00 byte, or not UTF-8",
                        x->files[x->file - 1], bti_reader_line(x->reader), bad + 1,
                        bti_reader_offset(x->reader) + (int64_t)bad);
    return BT_OK;
}

void bti_train_text_close(bti_train_text *x) {
    bti_reader_close(x->reader);
    x->reader = NULL;
}
