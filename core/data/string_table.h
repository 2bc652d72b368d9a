/* A set of byte strings, each with an index from 0 in the order of adding; arrays beside it hold
 * what belongs to them. */
#ifndef BANTAM_DATA_STRING_TABLE_H
#define BANTAM_DATA_STRING_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"

/* Zero-initialised; freed with bti_strings_free. */
typedef struct bti_strings {
    char *text; /* all strings, a 00 after each */
    size_t used, room;
    struct bti_string {
        size_t begin;
        uint32_t bytes, hash;
    } * entry;
    uint32_t *slot; /* index + 1, 0: free; a power of two of them, at most half full */
    size_t slots;
    int64_t count, entry_room;
} bti_strings;

/* Index of a string, -1 when it is not there. */
int64_t bti_strings_find(const bti_strings *s, const char *text, size_t bytes);
/* The index of a string, which is put in when it is new: then *index is the count before. At most
 * 2^31 - 1 strings, each below 4 GiB. */
bt_status bti_strings_add(bti_strings *s, const char *text, size_t bytes, int64_t *index);
/* Valid until the next string is added. */
const char *bti_strings_at(const bti_strings *s, int64_t index, size_t *bytes);
/* Empties it and keeps its memory. */
void bti_strings_clear(bti_strings *s);
void bti_strings_free(bti_strings *s);

#endif
