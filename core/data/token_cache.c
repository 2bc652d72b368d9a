#include "core/data/token_cache.h"

#include "core/base/files.h"
#include "core/base/status.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define MAGIC UINT64_C(0x314B4F544D544E42) /* "BNTMTOK1"; another byte order reads as foreign */
#define IDS_BUFFER 65536
#define PAIRS_BUFFER 4096

/* Then `room` pair records, of which `pairs` count, then `ids` ids. The records come first, and
 * their room is known before the first line is tokenised, so that neither waits in memory. */
typedef struct header {
    uint64_t magic, key;
    int64_t room, pairs, ids;
    bti_corpus_stats stats;
    uint64_t pairs_hash, ids_hash;
    uint64_t header_hash; /* of all before it */
} header;

static uint64_t header_hash(const header *h) { return XXH64(h, offsetof(header, header_hash), 0); }

static uint64_t ids_offset(const header *h) {
    return sizeof *h + (uint64_t)h->room * sizeof(bti_cache_pair);
}

struct bti_cache_writer {
    bti_aside *aside;
    header head;
    XXH64_state_t pairs_hash, ids_hash;
    int64_t ids_held, pairs_held; /* in the buffers; head counts all */
    int32_t ids[IDS_BUFFER];
    bti_cache_pair pair[PAIRS_BUFFER];
};

bt_status bti_cache_create(const char *path, uint64_t key, int64_t most, bti_cache_writer **out) {
    bti_cache_writer *w = bti_alloc(1, sizeof *w);
    if (w == NULL) return BT_ENOMEM;
    bt_status s = bti_aside_open(path, &w->aside);
    if (s != BT_OK) {
        bti_free(w);
        return s;
    }
    w->head = (header){.magic = MAGIC, .key = key, .room = most};
    XXH64_reset(&w->pairs_hash, 0);
    XXH64_reset(&w->ids_hash, 0);
    *out = w;
    return BT_OK;
}

static bt_status flush_ids(bti_cache_writer *w) {
    uint64_t at = ids_offset(&w->head) + (uint64_t)(w->head.ids - w->ids_held) * sizeof w->ids[0];
    size_t bytes = (size_t)w->ids_held * sizeof w->ids[0];
    XXH64_update(&w->ids_hash, w->ids, bytes);
    w->ids_held = 0;
    return bti_aside_write(w->aside, at, w->ids, bytes);
}

static bt_status flush_pairs(bti_cache_writer *w) {
    uint64_t at = sizeof(header) + (uint64_t)(w->head.pairs - w->pairs_held) * sizeof w->pair[0];
    size_t bytes = (size_t)w->pairs_held * sizeof w->pair[0];
    XXH64_update(&w->pairs_hash, w->pair, bytes);
    w->pairs_held = 0;
    return bti_aside_write(w->aside, at, w->pair, bytes);
}

static bt_status add_ids(bti_cache_writer *w, const int32_t *ids, int64_t count) {
    while (count > 0) {
        int64_t n = IDS_BUFFER - w->ids_held;
        if (n > count) n = count;
        memcpy(w->ids + w->ids_held, ids, (size_t)n * sizeof *ids);
        w->ids_held += n;
        w->head.ids += n;
        ids += n;
        count -= n;
        if (w->ids_held == IDS_BUFFER) BT_TRY(flush_ids(w));
    }
    return BT_OK;
}

bt_status bti_cache_add(bti_cache_writer *w, int64_t line, const int32_t *const ids[2],
                        const int64_t count[2], const int32_t end[2]) {
    if (w->head.pairs == w->head.room)
        return bti_fail(BT_EIO, "the text grew while it was being read");
    w->pair[w->pairs_held++] = (bti_cache_pair){
        .begin = w->head.ids,
        .line = line,
        .source = (int32_t)(count[0] + (end[0] >= 0)),
        .target = (int32_t)(count[1] + (end[1] >= 0)),
    };
    w->head.pairs++;
    for (int side = 0; side < 2; side++) {
        BT_TRY(add_ids(w, ids[side], count[side]));
        BT_TRY(add_ids(w, &end[side], end[side] >= 0));
    }
    return w->pairs_held == PAIRS_BUFFER ? flush_pairs(w) : BT_OK;
}

bt_status bti_cache_finish(bti_cache_writer *w, const bti_corpus_stats *stats) {
    bt_status s = flush_ids(w);
    if (s == BT_OK) s = flush_pairs(w);
    w->head.stats = *stats;
    w->head.ids_hash = XXH64_digest(&w->ids_hash);
    w->head.pairs_hash = XXH64_digest(&w->pairs_hash);
    w->head.header_hash = header_hash(&w->head);
    if (s == BT_OK) s = bti_aside_write(w->aside, 0, &w->head, sizeof w->head);
    if (s == BT_OK) {
        s = bti_aside_finish(w->aside);
        w->aside = NULL;
    }
    bti_cache_abandon(w);
    return s;
}

void bti_cache_abandon(bti_cache_writer *w) {
    if (w == NULL) return;
    bti_aside_abandon(w->aside);
    bti_free(w);
}

/* The records tile the ids in order; a side with text has one in each pair at least. */
static int tiles(const header *h, const bti_cache_pair *pair) {
    int64_t at = 0;
    int32_t source = h->stats.max_source > 0, target = h->stats.max_target > 0;
    for (int64_t i = 0; i < h->pairs; i++) {
        if (pair[i].begin != at || pair[i].source < source || pair[i].target < target) return 0;
        at += (int64_t)pair[i].source + pair[i].target;
    }
    return at == h->ids;
}

static int sound(const unsigned char *map, size_t bytes, uint64_t key) {
    const header *h = (const header *)(const void *)map;
    if (bytes < sizeof *h || h->magic != MAGIC || h->header_hash != header_hash(h)) return 0;
    if (h->key != key || h->pairs < 1 || h->pairs > h->room || h->ids < 1) return 0;
    if ((uint64_t)h->room > bytes / sizeof(bti_cache_pair) || (uint64_t)h->ids > bytes / 4)
        return 0;
    if (ids_offset(h) + (uint64_t)h->ids * sizeof(int32_t) != bytes) return 0;
    const void *pair = map + sizeof *h, *ids = map + ids_offset(h);
    return XXH64(pair, (size_t)h->pairs * sizeof(bti_cache_pair), 0) == h->pairs_hash &&
           XXH64(ids, (size_t)h->ids * sizeof(int32_t), 0) == h->ids_hash && tiles(h, pair);
}

bt_status bti_cache_open(const char *path, uint64_t key, bti_cache *out) {
    const void *map = NULL;
    size_t bytes = 0;
    BT_TRY(bti_file_map(path, &map, &bytes));
    if (!sound(map, bytes, key)) {
        bti_file_unmap(map, bytes);
        return bti_fail(BT_EINPUT, "%s: not the token cache that it should be", path);
    }
    const unsigned char *at = map;
    const header *h = map;
    *out = (bti_cache){
        .map = map,
        .bytes = bytes,
        .pairs = h->pairs,
        .pair = (const void *)(at + sizeof *h),
        .ids = (const void *)(at + ids_offset(h)),
        .stats = &h->stats,
        .checksum = h->ids_hash,
    };
    return BT_OK;
}

void bti_cache_close(bti_cache *c) { bti_file_unmap(c->map, c->bytes); }
