/* N-grams are counted without strings: a table gives each token of a pair of lines a number and
 * each n-gram the number of the pair (its first n-1 tokens, its last token), so equal numbers mean
 * equal n-grams, exactly. */
#include "core/decode/ngrams.h"

#include <string.h>
#include <xxhash.h>

#include "core/base/status.h"

/* One entry of the table, its place being the number: a token (prefix -1) or an n-gram. */
typedef struct bti_ngram {
    uint64_t round; /* the pair of lines it belongs to; those of others are empty */
    int64_t prefix; /* number of the first n-1 tokens */
    int64_t last;   /* number of the last token */
    bti_token word;
    int64_t count; /* occurrences in the reference not yet matched */
} entry;

/* Makes the table empty, with room for `most` entries at half load, and number for `longest`. */
static bt_status start_round(bti_ngrams *g, size_t most, size_t longest) {
    g->round++;
    if (longest > g->number_room) {
        int64_t *more = bti_realloc(g->number, 2 * longest, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        g->number = more;
        g->number_room = 2 * longest;
    }
    size_t size = g->size ? g->size : 1024;
    while (size < 2 * most) size *= 2;
    if (size == g->size) return BT_OK;
    entry *table = bti_alloc(size, sizeof *table);
    if (table == NULL) return BT_ENOMEM;
    bti_free(g->table);
    g->table = table;
    g->size = size;
    return BT_OK;
}

static int same_word(bti_token a, bti_token b) {
    return a.bytes == b.bytes && memcmp(a.start, b.start, a.bytes) == 0;
}

/* The number of a token (prefix -1, last 0) or an n-gram (word empty), new or known. */
static int64_t number_of(bti_ngrams *g, uint64_t hash, int64_t prefix, int64_t last,
                         bti_token word) {
    size_t i = (size_t)hash & (g->size - 1);
    for (;; i = (i + 1) & (g->size - 1)) {
        entry *e = &g->table[i];
        if (e->round != g->round) *e = (entry){g->round, prefix, last, word, 0};
        if (e->prefix == prefix && e->last == last && same_word(e->word, word)) return (int64_t)i;
    }
}

static int64_t number_ngram(bti_ngrams *g, int64_t prefix, int64_t last) {
    uint64_t h = (uint64_t)prefix * 0x9e3779b97f4a7c15u + (uint64_t)last;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return number_of(g, h ^ h >> 32, prefix, last, (bti_token){"", 0});
}

/* Counts the n-grams of the reference (matches NULL), or matches those of the hypothesis against
 * the counts. */
static void count_ngrams(bti_ngrams *g, const bti_tokens *t, size_t order, int64_t *matches) {
    for (size_t i = 0; i < t->count; i++)
        g->number[i] =
            number_of(g, XXH3_64bits(t->list[i].start, t->list[i].bytes), -1, 0, t->list[i]);
    for (size_t i = 0; i < t->count; i++) {
        int64_t at = g->number[i];
        for (size_t n = 0; n < order && i + n < t->count; n++) {
            if (n > 0) at = number_ngram(g, at, g->number[i + n]);
            entry *e = &g->table[at];
            if (matches == NULL) {
                e->count++;
            } else if (e->count > 0) {
                e->count--;
                matches[n]++;
            }
        }
    }
}

bt_status bti_ngrams_match(bti_ngrams *g, const bti_tokens *hypothesis, const bti_tokens *reference,
                           int order, int64_t *matches) {
    size_t h = hypothesis->count, r = reference->count;
    BT_TRY(start_round(g, (size_t)order * (h + r), h > r ? h : r));
    count_ngrams(g, reference, (size_t)order, NULL);
    count_ngrams(g, hypothesis, (size_t)order, matches);
    return BT_OK;
}

void bti_ngrams_free(bti_ngrams *g) {
    bti_free(g->table);
    bti_free(g->number);
}
