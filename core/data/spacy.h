/* What spaCy's Tokenizer does, from the file that its to_disk writes. Parts: the patterns, in
 * Python's `re` language, for PCRE2; the file; the rules; text out of tokens. */
#ifndef BANTAM_DATA_SPACY_H
#define BANTAM_DATA_SPACY_H

#include "core/base/text.h"
#include "core/data/string_table.h"
#include "core/data/word_list.h"

/* ---- patterns (spacy_translate.c, spacy_pattern.c) ------------------------------------------- */

/* A top-level alternative: where it ends in the pattern (at a "|", or the pattern's end), and how
 * many characters from the end of a text its matches are at most; BTI_ANYWHERE: no such bound. */
typedef struct bti_alternative {
    size_t end;
    int64_t reach;
} bti_alternative;
#define BTI_ANYWHERE INT64_MAX

/* A pattern of Python's `re` as PCRE2 has it. */
typedef struct bti_translation {
    bti_text out;
    bti_alternative *alternative;
    size_t alternatives, room;
    int refers; /* to groups by number: the alternatives do not stand alone */
    int ignore_case, multi_line, dot_all;
} bti_translation;

/* `name` ("FILE: suffix_search") is for messages. What PCRE2 would take otherwise than Python and
 * cannot be written another way is refused. */
bt_status bti_pattern_translate(const char *name, const char *python, size_t bytes,
                                bti_translation *out);
void bti_translation_free(bti_translation *t);

typedef struct bti_pattern bti_pattern; /* constant once made: any number of threads */
typedef struct bti_matcher bti_matcher; /* what a match writes on: one thread at a time */

/* anchored: as re.match, else as re.search. */
bt_status bti_pattern_new(const char *name, const char *python, size_t bytes, int anchored,
                          bti_pattern **out);
void bti_pattern_free(bti_pattern *p);
/* How many compiled pieces it took; 1 unless it was too large for one. */
size_t bti_pattern_parts(const bti_pattern *p);
bt_status bti_matcher_new(bti_matcher **out);
void bti_matcher_free(bti_matcher *m);
/* The leftmost match at `from` or behind it, bytes begin .. end of text; begin > end: there is
 * none. filled: an empty match at `from` itself does not count. Text must be UTF-8. */
typedef struct bti_match {
    size_t begin, end;
} bti_match;
bt_status bti_pattern_find(const bti_pattern *p, bti_matcher *m, const char *text, size_t bytes,
                           size_t from, int filled, bti_match *out);

/* ---- rules (spacy_file.c, spacy_rules.c) ----------------------------------------------------- */

typedef enum bti_spacy_pattern {
    BTI_SPACY_PREFIX,
    BTI_SPACY_SUFFIX,
    BTI_SPACY_INFIX,
    BTI_SPACY_TOKEN_MATCH,
    BTI_SPACY_URL_MATCH,
    BTI_SPACY_PATTERNS
} bti_spacy_pattern;

/* Exceptions: words with tokens of their own, which make up the word one after the other. Those of
 * word i are lengths[first[i]] .. lengths[first[i + 1] - 1]. */
typedef struct bti_spacy_rules {
    bti_pattern *pattern[BTI_SPACY_PATTERNS]; /* NULL: none */
    int faster_heuristics;
    bti_strings exceptions;
    int64_t *first;
    uint32_t *lengths; /* in bytes */
    int64_t rooms[2];  /* of first and lengths */
} bti_spacy_rules;

/* Rules from the content of a file that to_disk wrote; `path` is for messages. BT_EINPUT when it is
 * no such file, or a pattern is one that cannot be matched as Python does. On failure nothing is
 * left to free. */
bt_status bti_spacy_read(const char *path, const char *data, size_t bytes, bti_spacy_rules *out);
void bti_spacy_rules_free(bti_spacy_rules *r);

typedef struct bti_spacy bti_spacy;

/* Takes rules (also when it fails: then freed) and words over. */
bt_status bti_spacy_new(bti_spacy_rules *rules, bti_words *words, bti_spacy **out);
void bti_spacy_free(bti_spacy *s);
const bti_words *bti_spacy_words(const bti_spacy *s);
/* The tokens of a line, slices of it in order. Thread-safe. */
bt_status bti_spacy_tokens(const bti_spacy *s, const char *text, size_t bytes, bti_token_fn fn,
                           void *user);
/* Is a + b an exception made of just these two? */
int bti_spacy_exception_of_two(const bti_spacy *s, const char *a, const char *b);

/* ---- text (spacy_text.c) --------------------------------------------------------------------- */

/* Appends the text that tokens were made of, as far as it can be told. */
bt_status bti_spacy_join(const bti_spacy *s, const char *const *token, size_t count, bti_text *out);

#endif
