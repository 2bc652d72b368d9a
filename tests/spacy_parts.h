/* Parts of the spacy suite, and a small tokeniser as spaCy would save it (spacy_kit.c). */
#ifndef BANTAM_TESTS_SPACY_PARTS_H
#define BANTAM_TESTS_SPACY_PARTS_H

#include "tests/toy.h"

typedef struct spacy_rules {
    const char *prefix, *suffix, *infix, *token_match, *url_match; /* NULL: nil */
    int faster;
    const char *exceptions; /* words between blanks, tokens of a word joined by _; + is a blank */
} spacy_rules;

extern const spacy_rules spacy_small;
/* Writes them as spaCy does; the file's path. */
const char *spacy_put_rules(const spacy_rules *r);
/* Opens rules without a word list. */
bt_status spacy_open_rules(const char *path, bti_tokenizer **t);
bti_tokenizer *spacy_open_small(void);
/* What to open: rules and the word list of a text, trained. */
bti_tokenizer_config spacy_trained(const char *rules, const char *text);
/* Tokens of a text, joined by "|"; valid until the next call. */
const char *spacy_tokens(const bti_tokenizer *t, const char *text);

void add_spacy_golden(TCase *tc);
void add_spacy_patterns(TCase *tc);
void add_spacy_vocabulary(TCase *tc);

#endif
