/* Parallel text as token ids: text files in, a memory-mapped token cache out. A side may lack: then
 * its pairs have no ids there, not even an end symbol, and all else holds for the other side alone.
 *
 * Only byte 0A ends a line; a CR before it is dropped with one notice per file; the last line may
 * lack its 0A. Bytes 00 and text that is not UTF-8 are refused with file, line, byte offset and
 * how many lines are bad. Different line counts are refused with both. A pair with an empty (or
 * blank) side is skipped and counted. Line n of the source stays with line n of the target. */
#ifndef BANTAM_DATA_CORPUS_H
#define BANTAM_DATA_CORPUS_H

#include "core/data/tokenizer.h"

typedef enum bti_overlong {
    BTI_OVERLONG_TRUNCATE,
    BTI_OVERLONG_SKIP,
    BTI_OVERLONG_ERROR
} bti_overlong;

typedef struct bti_files {
    char **path;
    size_t count;
} bti_files;

typedef struct bti_corpus_config {
    bti_files source, target; /* the n-th of one with the n-th of the other; plain or .gz; one of
                                 them may have no files */
    int64_t max_length;       /* ids a side, end symbol included */
    bti_overlong overlong;
    const volatile sig_atomic_t *stop; /* non-zero: reading ends with BT_ESTOPPED; may be NULL */
} bti_corpus_config;

typedef struct bti_corpus_stats {
    int64_t lines;                          /* pairs of lines read */
    int64_t empty, first_empty_line;        /* pairs skipped for an empty side */
    int64_t overlong, first_overlong_line;  /* pairs cut or skipped */
    int64_t source_unknown, target_unknown; /* ids equal to unk */
    int64_t source_ids, target_ids;         /* end symbols included */
    int64_t longest;                        /* index of the pair with most source + target ids */
    int64_t longest_line;                   /* its line, counted over all files, from 1 */
    int64_t max_source, max_target;         /* most ids on a side, over all pairs */
} bti_corpus_stats;

typedef struct bti_corpus bti_corpus;

/* Reads all text and refuses what open would refuse before it tokenises: bytes 00, bad UTF-8, line
 * counts. For use before a tokeniser is trained on the text; open does it by itself. *lines (may be
 * NULL) are those of a side, over all files. */
bt_status bti_corpus_check(const bti_corpus_config *cfg, int64_t *lines);

/* The files of a side, and how many pairs of files there are. */
const bti_files *bti_corpus_files(const bti_corpus_config *cfg, int side);
size_t bti_corpus_file_count(const bti_corpus_config *cfg);

/* Opens the cache in `cache_dir` when its key (checksums of texts and tokenisers, settings) fits,
 * else reads and tokenises the text (on all cores) and writes the cache, aside and renamed. */
bt_status bti_corpus_open(const bti_corpus_config *cfg, const bti_tokenizer *source,
                          const bti_tokenizer *target, const char *cache_dir, bti_corpus **out);
void bti_corpus_free(bti_corpus *c);

int64_t bti_corpus_count(const bti_corpus *c); /* pairs */
/* Ids of a side of pair i, the end symbol last; owned by the corpus. */
const int32_t *bti_corpus_source(const bti_corpus *c, int64_t i, int64_t *count);
const int32_t *bti_corpus_target(const bti_corpus *c, int64_t i, int64_t *count);
int64_t bti_corpus_line(const bti_corpus *c, int64_t i); /* from 1, over all files */
const bti_corpus_stats *bti_corpus_get_stats(const bti_corpus *c);
uint64_t bti_corpus_checksum(const bti_corpus *c); /* of all ids, for resume */

/* Lines of one text file, plain or .gz; "-" is standard input. A byte order mark before the first
 * one is left out. */
typedef struct bti_reader bti_reader;
bt_status bti_reader_open(const char *path, bti_reader **out);
/* The same; opening and reading give BT_ESTOPPED once *stop is set, waits included. */
bt_status bti_reader_open_until(const char *path, const volatile sig_atomic_t *stop,
                                bti_reader **out);
/* The next line without its end; *line NULL at the end. Valid until the next call. */
bt_status bti_reader_next(bti_reader *r, const char **line, size_t *bytes);
/* Leaves out the notice about CRLF, for a text that is read a second time. */
void bti_reader_quiet(bti_reader *r);
/* Number (from 1) of the line given last, and where it starts: the byte's offset (from 0) in the
 * text, unpacked where it is packed. */
int64_t bti_reader_line(const bti_reader *r);
int64_t bti_reader_offset(const bti_reader *r);
void bti_reader_close(bti_reader *r);

/* Offset of the first byte that is not well-formed UTF-8 (Unicode 15, table 3-7) or is 00;
 * `bytes` when all is well. */
size_t bti_utf8_check(const char *text, size_t bytes);
/* Is it nothing but white space: a pair with such a side is skipped. */
int bti_line_blank(const char *line, size_t bytes);

#endif
