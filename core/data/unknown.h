/* Which characters of a text stand in tokens that a tokeniser does not know. */
#ifndef BANTAM_DATA_UNKNOWN_H
#define BANTAM_DATA_UNKNOWN_H

#include "core/data/corpus.h"

typedef struct bti_unknown bti_unknown;

typedef struct bti_unknown_char {
    char text[8]; /* UTF-8 */
    uint32_t code;
    int64_t count;
} bti_unknown_char;

bt_status bti_unknown_new(const bti_tokenizer *t, bti_unknown **out);
void bti_unknown_free(bti_unknown *u);
void bti_unknown_clear(bti_unknown *u);
/* Counts the characters of the unknown tokens of a line, UTF-8. */
bt_status bti_unknown_add(bti_unknown *u, const char *line, size_t bytes);
/* The most frequent ones, at most `most`, ties by code; gives how many. */
int bti_unknown_chars(const bti_unknown *u, bti_unknown_char *out, int most);

/* "X (12), Y (3)": the most frequent ones of the first lines of some files; "" when there is none.
 * New string. */
bt_status bti_unknown_sample(const bti_tokenizer *t, const bti_files *files, int64_t lines,
                             char **text);

#endif
