/* Parallel text to a token cache. The text is read up to three times: its bytes for the cache's
 * key, and, where there is no cache of that key, once to find all that is wrong with it before any
 * work is done, and once to tokenise it. */
#include "core/data/corpus.h"

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/line_pairs.h"
#include "core/data/token_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

struct bti_corpus {
    bti_cache cache;
};

/* ---- checking -------------------------------------------------------------------------------- */

typedef struct scan {
    int64_t lines, nul_lines, bad_lines;
    int64_t line, byte, offset; /* the first fault: line and byte from 1, offset from 0 */
    int nul;                    /* it is a 00 */
    int last_empty;             /* the last line is */
} scan;

/* Notes the faults of one line. */
static void scan_line(scan *x, const bti_reader *r, const char *line, size_t n) {
    size_t bad = bti_utf8_check(line, n);
    if (bad == n) return;
    int has_nul = memchr(line, 0, n) != NULL, ill = line[bad] != 0;
    for (size_t at = bad; has_nul && !ill && at < n;) { /* what comes after its 00 bytes */
        size_t rest = bti_utf8_check(line + at, n - at);
        ill = at + rest < n && line[at + rest] != 0;
        at += rest + 1;
    }
    if (x->nul_lines + x->bad_lines == 0) {
        x->line = bti_reader_line(r);
        x->byte = (int64_t)bad + 1;
        x->offset = bti_reader_offset(r) + (int64_t)bad;
        x->nul = line[bad] == 0;
    }
    x->nul_lines += has_nul;
    x->bad_lines += ill;
}

bt_status bti_corpus_stopped(const bti_corpus_config *cfg) {
    if (cfg->stop == NULL || !*cfg->stop) return BT_OK;
    return bti_fail(BT_ESTOPPED, "nothing is written: the text was being read");
}

static bt_status scan_file(const bti_corpus_config *cfg, const char *path, scan *x) {
    bti_reader *r = NULL;
    const char *line;
    size_t n;
    bt_status s = bti_reader_open_until(path, cfg->stop, &r);
    while (s == BT_OK && (s = bti_corpus_stopped(cfg)) == BT_OK &&
           (s = bti_reader_next(r, &line, &n)) == BT_OK && line != NULL) {
        scan_line(x, r, line, n);
        x->last_empty = n == 0;
        x->lines++;
    }
    bti_reader_close(r);
    if (s == BT_ESTOPPED) return bti_corpus_stopped(cfg);
    if (s != BT_OK || x->nul_lines + x->bad_lines == 0) return s;
    char also[96] = "";
    if (x->nul && x->bad_lines > 0)
        snprintf(also, sizeof also, ", and %" PRId64 " are not UTF-8", x->bad_lines);
    if (!x->nul && x->nul_lines > 0)
        snprintf(also, sizeof also, ", and %" PRId64 " hold a 00 byte", x->nul_lines);
    return bti_fail(BT_EINPUT,
                    "%s: line %" PRId64 ", byte %" PRId64 " (offset %" PRId64
                    " in the text): %s; such lines in all: %" PRId64 "%s",
                    path, x->line, x->byte, x->offset, x->nul ? "a 00 byte" : "not UTF-8",
                    x->nul ? x->nul_lines : x->bad_lines, also);
}

static bt_status check_counts(const char *const path[2], const scan x[2]) {
    if (x[0].lines == x[1].lines) return BT_OK;
    int longer = x[1].lines > x[0].lines;
    return bti_fail(
        BT_EINPUT,
        "%s has %" PRId64 " lines, %s has %" PRId64
        ": line n of one must belong to line n of the other%s%s%s",
        path[0], x[0].lines, path[1], x[1].lines, x[longer].last_empty ? "; the last line of " : "",
        x[longer].last_empty ? path[longer] : "", x[longer].last_empty ? " is empty" : "");
}

const bti_files *bti_corpus_files(const bti_corpus_config *cfg, int side) {
    return side ? &cfg->target : &cfg->source;
}

size_t bti_corpus_file_count(const bti_corpus_config *cfg) {
    return cfg->source.count > 0 ? cfg->source.count : cfg->target.count;
}

static bt_status check_all(const bti_corpus_config *cfg, int64_t *lines) {
    int64_t sum = 0;
    size_t files = bti_corpus_file_count(cfg);
    int both = cfg->source.count > 0 && cfg->target.count > 0;
    if (files == 0 || (both && cfg->source.count != cfg->target.count))
        return bti_fail(BT_EINPUT, "%zu source files, %zu target files: there must be as many",
                        cfg->source.count, cfg->target.count);
    for (size_t i = 0; i < files; i++) {
        const char *path[2] = {NULL, NULL};
        scan x[2] = {{0}};
        for (int side = 0; side < 2; side++) {
            if (bti_corpus_files(cfg, side)->count == 0) continue;
            path[side] = bti_corpus_files(cfg, side)->path[i];
            BT_TRY(scan_file(cfg, path[side], &x[side]));
        }
        if (both) BT_TRY(check_counts(path, x));
        sum += x[cfg->source.count == 0].lines;
    }
    *lines = sum;
    return BT_OK;
}

bt_status bti_corpus_check(const bti_corpus_config *cfg, int64_t *lines) {
    int64_t unused;
    return check_all(cfg, lines ? lines : &unused);
}

/* ---- the key --------------------------------------------------------------------------------- */

#define FORMAT 2 /* another number where what is made of the same text changes */

static bt_status hash_files(XXH64_state_t *h, const bti_files *files) {
    uint64_t count = files->count;
    XXH64_update(h, &count, sizeof count);
    for (size_t i = 0; i < files->count; i++) {
        const void *data = NULL;
        size_t bytes = 0;
        BT_TRY(bti_file_map(files->path[i], &data, &bytes));
        uint64_t sum[2] = {bytes, bytes ? XXH64(data, bytes, 0) : 0};
        bti_file_unmap(data, bytes);
        XXH64_update(h, sum, sizeof sum);
    }
    return BT_OK;
}

static bt_status make_key(const bti_corpus_config *cfg, const bti_tokenizer *const tok[2],
                          uint64_t *key) {
    XXH64_state_t h;
    XXH64_reset(&h, FORMAT);
    BT_TRY(hash_files(&h, &cfg->source));
    BT_TRY(hash_files(&h, &cfg->target));
    uint64_t rest[4] = {tok[0] ? bti_tokenizer_checksum(tok[0]) : 0,
                        tok[1] ? bti_tokenizer_checksum(tok[1]) : 0, (uint64_t)cfg->max_length,
                        (uint64_t)cfg->overlong};
    XXH64_update(&h, rest, sizeof rest);
    *key = XXH64_digest(&h);
    return BT_OK;
}

int bti_line_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && (s[i] < '\t' || s[i] > '\r')) return 0;
    return 1;
}

/* ---- tokenising ------------------------------------------------------------------------------ */

typedef struct build {
    const bti_corpus_config *cfg;
    bti_cache_writer *writer;
    bti_corpus_stats stats;
    int64_t pairs, longest_ids;
    int32_t end[2], unk[2]; /* -1: a side without text */
} build;

static int64_t count_of(const int32_t *ids, int64_t n, int32_t id) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) found += ids[i] == id;
    return found;
}

/* What the user asked for when a side has more ids than max_length; *keep: still a pair. */
static bt_status overlong(build *x, const bti_encoded_pair *p, int64_t n[2], int *keep) {
    int64_t most = x->cfg->max_length - 1; /* the end symbol is the last */
    *keep = 1;
    if (n[0] <= most && n[1] <= most) return BT_OK;
    int side = n[0] <= most;
    const bti_files *files = side ? &x->cfg->target : &x->cfg->source;
    if (x->cfg->overlong == BTI_OVERLONG_ERROR)
        return bti_fail(BT_EINPUT,
                        "%s: line %" PRId64 " has %" PRId64
                        " tokens with its end symbol, data.max_length is %" PRId64,
                        files->path[p->file], p->line, n[side] + 1, most + 1);
    if (x->stats.overlong++ == 0) x->stats.first_overlong_line = x->stats.lines;
    if (x->cfg->overlong == BTI_OVERLONG_SKIP) *keep = 0;
    for (int s = 0; s < 2; s++)
        if (n[s] > most) n[s] = most;
    return BT_OK;
}

static bt_status add_pair(build *x, const int32_t *const ids[2], const int64_t n[2]) {
    bti_corpus_stats *st = &x->stats;
    const int64_t all[2] = {n[0] + (x->end[0] >= 0), n[1] + (x->end[1] >= 0)};
    BT_TRY(bti_cache_add(x->writer, st->lines, ids, n, x->end));
    st->source_unknown += count_of(ids[0], n[0], x->unk[0]);
    st->target_unknown += count_of(ids[1], n[1], x->unk[1]);
    st->source_ids += all[0];
    st->target_ids += all[1];
    if (all[0] > st->max_source) st->max_source = all[0];
    if (all[1] > st->max_target) st->max_target = all[1];
    if (all[0] + all[1] > x->longest_ids) {
        x->longest_ids = all[0] + all[1];
        st->longest = x->pairs;
        st->longest_line = st->lines;
    }
    x->pairs++;
    return BT_OK;
}

/* A bti_pair_fn. */
static bt_status take_pair(void *user, const bti_encoded_pair *p) {
    build *x = user;
    int64_t n[2] = {p->count[0], p->count[1]};
    int keep;
    x->stats.lines++;
    if ((n[0] == 0 && x->end[0] >= 0) || (n[1] == 0 && x->end[1] >= 0)) {
        if (x->stats.empty++ == 0) x->stats.first_empty_line = x->stats.lines;
        return BT_OK;
    }
    BT_TRY(overlong(x, p, n, &keep));
    return keep ? add_pair(x, p->ids, n) : BT_OK;
}

static bt_status tokenise(const bti_corpus_config *cfg, const bti_tokenizer *const tok[2],
                          const char *path, uint64_t key, int64_t lines) {
    build x = {.cfg = cfg};
    for (int side = 0; side < 2; side++) {
        x.end[side] = tok[side] ? bti_tokenizer_specials(tok[side]).end : -1;
        x.unk[side] = tok[side] ? bti_tokenizer_specials(tok[side]).unk : -1;
    }
    BT_TRY(bti_cache_create(path, key, lines, &x.writer));
    bt_status s = bti_encode_pairs(cfg, tok, take_pair, &x);
    if (s == BT_OK && x.pairs == 0) {
        int both = tok[0] != NULL && tok[1] != NULL;
        s = bti_fail(
            BT_EINPUT,
            "%s%s%s: no %s to use: %" PRId64 " lines, %" PRId64 " %s, %" PRId64 " too long",
            bti_corpus_files(cfg, tok[0] == NULL)->path[0], both ? " and " : "",
            both ? cfg->target.path[0] : "", both ? "pair of lines" : "line", x.stats.lines,
            x.stats.empty, both ? "with an empty side" : "empty", x.stats.overlong);
    }
    if (s == BT_OK) return bti_cache_finish(x.writer, &x.stats);
    bti_cache_abandon(x.writer);
    return s;
}

/* ---- the corpus ------------------------------------------------------------------------------ */

bt_status bti_corpus_open(const bti_corpus_config *cfg, const bti_tokenizer *source,
                          const bti_tokenizer *target, const char *cache_dir, bti_corpus **out) {
    const bti_tokenizer *tok[2] = {cfg->source.count ? source : NULL,
                                   cfg->target.count ? target : NULL};
    uint64_t key = 0;
    int64_t lines = 0;
    char *path = NULL;
    if (cfg->max_length < 2)
        return bti_fail(BT_EINPUT, "data.max_length is %" PRId64 ": at least 2", cfg->max_length);
    BT_TRY(make_key(cfg, tok, &key));
    bt_status s = BT_ENOMEM;
    bti_corpus *c = bti_alloc(1, sizeof *c);
    if (c == NULL) return BT_ENOMEM;
    path = bti_format("%s/tokens-%016" PRIx64 ".bin", cache_dir, key);
    if (path == NULL) goto fail;
    if (bti_cache_open(path, key, &c->cache) != BT_OK) {
        s = check_all(cfg, &lines);
        if (s == BT_OK) s = bti_dir_make(cache_dir);
        if (s == BT_OK) s = tokenise(cfg, tok, path, key, lines);
        if (s == BT_OK) s = bti_cache_open(path, key, &c->cache);
        if (s != BT_OK) goto fail;
    }
    bti_free(path);
    *out = c;
    return BT_OK;
fail:
    bti_free(path);
    bti_free(c);
    return s;
}

void bti_corpus_free(bti_corpus *c) {
    if (c == NULL) return;
    bti_cache_close(&c->cache);
    bti_free(c);
}

int64_t bti_corpus_count(const bti_corpus *c) { return c->cache.pairs; }

const int32_t *bti_corpus_source(const bti_corpus *c, int64_t i, int64_t *count) {
    const bti_cache_pair *p = &c->cache.pair[i];
    *count = p->source;
    return c->cache.ids + p->begin;
}

const int32_t *bti_corpus_target(const bti_corpus *c, int64_t i, int64_t *count) {
    const bti_cache_pair *p = &c->cache.pair[i];
    *count = p->target;
    return c->cache.ids + p->begin + p->source;
}

int64_t bti_corpus_line(const bti_corpus *c, int64_t i) { return c->cache.pair[i].line; }
const bti_corpus_stats *bti_corpus_get_stats(const bti_corpus *c) { return c->cache.stats; }
uint64_t bti_corpus_checksum(const bti_corpus *c) { return c->cache.checksum; }
