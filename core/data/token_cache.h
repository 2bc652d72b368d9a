/* The token cache's file: header, one record a pair, ids; checksummed, mapped for reading. Only
 * corpus.c includes this. */
#ifndef BANTAM_DATA_TOKEN_CACHE_H
#define BANTAM_DATA_TOKEN_CACHE_H

#include "core/data/corpus.h"

typedef struct bti_cache_pair {
    int64_t begin; /* place of the first source id among all ids; the target's follow */
    int64_t line;
    int32_t source, target; /* ids */
} bti_cache_pair;

typedef struct bti_cache_writer bti_cache_writer;

/* Makes `path` aside, with room for `most` pairs. */
bt_status bti_cache_create(const char *path, uint64_t key, int64_t most, bti_cache_writer **out);
/* Adds a pair: count[0] and count[1] ids, each side's end symbol behind its own; -1: that side has
 * none, and no ids. */
bt_status bti_cache_add(bti_cache_writer *w, int64_t line, const int32_t *const ids[2],
                        const int64_t count[2], const int32_t end[2]);
/* Writes the header, flushes, renames. Frees w in any case. */
bt_status bti_cache_finish(bti_cache_writer *w, const bti_corpus_stats *stats);
void bti_cache_abandon(bti_cache_writer *w);

typedef struct bti_cache {
    const void *map;
    size_t bytes;
    int64_t pairs;
    const bti_cache_pair *pair;
    const int32_t *ids;
    const bti_corpus_stats *stats;
    uint64_t checksum; /* of all ids */
} bti_cache;

/* BT_EINPUT when the file is absent, damaged or of another key: the caller makes it anew. */
bt_status bti_cache_open(const char *path, uint64_t key, bti_cache *out);
void bti_cache_close(bti_cache *c);

#endif
