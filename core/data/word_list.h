/* Word vocabularies, as the kinds `words` and `spacy` have them.
 *
 * The file: UTF-8, one word a line, behind a TAB how often it was there (may be left out; not
 * used). Only 0A ends a line; a CR before it is dropped. First <pad> <s> </s> <unk>, then words by
 * falling count, ties by bytes; a word's id is its line - 1. What a text calls "<unk>" and the like
 * is no special symbol: it is unknown. */
#ifndef BANTAM_DATA_WORD_LIST_H
#define BANTAM_DATA_WORD_LIST_H

#include "core/data/tokenizer.h"

enum { BTI_WORD_PAD, BTI_WORD_START, BTI_WORD_END, BTI_WORD_UNK, BTI_WORD_FIRST };

typedef struct bti_words bti_words;

/* From the bytes of a file; NULL text: only the four special symbols. BT_EINPUT names the file and
 * the line. */
bt_status bti_words_parse(const char *path, const char *text, size_t bytes, bti_words **out);
void bti_words_free(bti_words *w);
int64_t bti_words_size(const bti_words *w);
int32_t bti_words_find(const bti_words *w, const char *word, size_t bytes); /* or BTI_WORD_UNK */
const char *bti_words_text(const bti_words *w, int32_t id);
/* XXH64 of the words in their order. */
uint64_t bti_words_checksum(const bti_words *w, uint64_t seed);

/* Counts the tokens that `t` makes of the files' lines and writes those that are there at least
 * cfg->min_count times, cfg->size with the special symbols at most, to `path`. */
bt_status bti_words_train(const bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *path,
                          const char *const *files, size_t count);

/* Bytes of the white-space character (bti_char_is_white) at s, 0 when there is none. */
size_t bti_space_at(const char *s, size_t bytes);

#endif
