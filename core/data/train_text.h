/* The lines of several files, one after the other, for what is trained on text. */
#ifndef BANTAM_DATA_TRAIN_TEXT_H
#define BANTAM_DATA_TRAIN_TEXT_H

#include "core/data/corpus.h"

/* Set files and count, the rest zero. */
typedef struct bti_train_text {
    const char *const *files;
    size_t count, file; /* file: the next one to open */
    bti_reader *reader; /* of the file before it */
} bti_train_text;

/* The next line, well-formed UTF-8 without 00 bytes; *line NULL at the end. */
bt_status bti_train_text_next(bti_train_text *x, const char **line, size_t *bytes);
void bti_train_text_close(bti_train_text *x);

#endif
