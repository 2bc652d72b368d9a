/* Small texts, models and corpora for the suites that need some: nothing of it is in the tree. */
#ifndef BANTAM_TESTS_TOY_H
#define BANTAM_TESTS_TOY_H

#include "tests/kit.h"

#include "core/data/corpus.h"

/* What bt_set_log(toy_keep_log, NULL) has heard, a line each; the test empties it. */
extern char toy_log[8192];
void toy_keep_log(void *user, bt_log_level level, const char *text);
/* How often `part` is in a text; entries of a folder (0 where there is none) whose names hold it;
 * this process's open files. */
int toy_count(const char *text, const char *part);
int toy_entries(const char *dir, const char *part);
int toy_open_files(void);
void toy_write_gz(const char *path, const char *mode, const void *data, size_t n);

/* A language of 64 words of two syllables (side 0), and a cousin of it (side 1). */
const char *toy_word(uint32_t i, int side);
/* `lines` lines of 1 to 9 words, the same at each call; free(). */
char *toy_text(int lines, int side);
/* A SentencePiece model of 90 pieces trained on such text, once a suite; and opened. */
const char *toy_model(void);
bt_status toy_open(bti_tokenizer_kind kind, const char *path, bti_tokenizer **t);
bti_tokenizer *toy_tokenizer(void);

/* A folder with train.de, train.en and a place for the cache; max_length 64, truncate. */
typedef struct toy_place {
    const char *dir, *cache;
    char *path[2];
    bti_corpus_config cfg;
} toy_place;
void toy_place_init(toy_place *p, const char *source, const char *target); /* NULL: no file */
void toy_put(toy_place *p, int side, const void *bytes, size_t n);
bt_status toy_place_open(const toy_place *p, bti_corpus **c);
void toy_check_same(const bti_corpus *a, const bti_corpus *b);
/* Pair i must be what the tokeniser gives for this line, and its end symbol. */
void toy_check_side(const bti_corpus *c, int64_t i, int side, const char *text);

/* A SentencePiece model by hand: protobuf field 1 is a piece (text, score, type), field 2 the
 * trainer's settings (model_type unigram), field 3 the normaliser's (no white space is touched). */
typedef struct toy_proto {
    char bytes[2048];
    size_t n;
} toy_proto;
enum { TOY_NORMAL = 1, TOY_UNKNOWN, TOY_CONTROL, TOY_USER };
void toy_start_model(toy_proto *p, int with_eos); /* <unk> <s> </s> */
void toy_add_piece(toy_proto *p, const char *text, float score, int type);
const char *toy_save_model(toy_proto *p, const char *dir); /* hand.model; its path */

#endif
