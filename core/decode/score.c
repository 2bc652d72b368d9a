/* Corpus BLEU. N-grams are counted without strings: a table gives each token of a sentence pair a
 * number and each n-gram the number of the pair (its first n-1 tokens, its last token), so equal
 * numbers mean equal n-grams, exactly. */
#include "core/decode/score.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/base/files.h"
#include "core/base/status.h"

enum { ORDER = 4 };

typedef struct buffer {
    char *data;
    size_t bytes, room;
} buffer;

typedef struct token {
    const char *start;
    size_t bytes;
} token;

typedef struct tokens {
    buffer line; /* what the tokens point into */
    token *list;
    size_t count, room;
} tokens;

/* One entry of the number table, its place being the number: a token (prefix -1) or an n-gram. */
typedef struct entry {
    uint64_t round; /* the sentence pair it belongs to; those of others are empty */
    int64_t prefix; /* number of the first n-1 tokens */
    int64_t last;   /* number of the last token */
    token word;
    int64_t count; /* occurrences in the reference not yet matched */
} entry;

typedef struct scorer {
    tokens hypothesis, reference;
    buffer scratch;
    entry *table;
    size_t size; /* a power of two */
    uint64_t round;
    int64_t *number; /* of the tokens of a line */
    size_t number_room;
    bti_bleu sum;
} scorer;

static void scorer_free(scorer *s) {
    bti_free(s->hypothesis.line.data);
    bti_free(s->hypothesis.list);
    bti_free(s->reference.line.data);
    bti_free(s->reference.list);
    bti_free(s->scratch.data);
    bti_free(s->table);
    bti_free(s->number);
}

/* ---- tokenisation 13a --------------------------------------------------------------------------
 */

static bt_status reserve(buffer *t, size_t bytes) {
    if (t->data != NULL && bytes <= t->room) return BT_OK;
    char *more = bti_realloc(t->data, 2 * bytes, 1);
    if (more == NULL) return BT_ENOMEM;
    t->data = more;
    t->room = 2 * bytes;
    return BT_OK;
}

/* Replaces each `what` by a text that is not longer, from left to right. */
static void replace(buffer *t, const char *what, const char *by) {
    size_t n = strlen(what), m = strlen(by), to = 0;
    for (size_t i = 0; i < t->bytes;) {
        if (t->bytes - i >= n && memcmp(t->data + i, what, n) == 0) {
            memcpy(t->data + to, by, m);
            to += m;
            i += n;
        } else {
            t->data[to++] = t->data[i++];
        }
    }
    t->bytes = to;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_stop(char c) { return c == '.' || c == ','; }
/* [{-~[-` -&(-+:-@/] of mteval-v13a: ASCII punctuation but ' , - . */
static int is_punctuation(char c) {
    return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') ||
           (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

/* The four rules of 13a, each one pass over the whole line in this order, as the regular
 * expressions of mteval-v13a do it: a match takes its characters, so the next one starts behind it.
 * Bytes will do for characters: each rule looks at one ASCII character and a neighbour, of which it
 * matters only whether it is a digit or a stop. */
static size_t split_punctuation(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        int alone = is_punctuation(in[i]);
        if (alone) out[to++] = ' ';
        out[to++] = in[i];
        if (alone) out[to++] = ' ';
    }
    return to;
}

static size_t split_stop_after_other(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        out[to++] = in[i];
        if (is_digit(in[i]) || i + 1 == n || !is_stop(in[i + 1])) continue;
        out[to++] = ' ';
        out[to++] = in[++i];
        out[to++] = ' ';
    }
    return to;
}

static size_t split_stop_before_other(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        int match = is_stop(in[i]) && i + 1 < n && !is_digit(in[i + 1]);
        if (match) out[to++] = ' ';
        out[to++] = in[i];
        if (match) out[to++] = ' ', out[to++] = in[++i];
    }
    return to;
}

static size_t split_dash_after_digit(const char *in, size_t n, char *out) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        out[to++] = in[i];
        if (!is_digit(in[i]) || i + 1 == n || in[i + 1] != '-') continue;
        out[to++] = ' ';
        out[to++] = in[++i];
        out[to++] = ' ';
    }
    return to;
}

/* Bytes of the white space at s, 0 when there is none: what Unicode calls so, and 1C to 1F. */
static size_t white_space(const char *s, const char *end) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return (u[0] >= 9 && u[0] <= 13) || (u[0] >= 0x1c && u[0] <= ' ');
    if (end - s >= 2 && u[0] == 0xc2) return u[1] == 0x85 || u[1] == 0xa0 ? 2 : 0;
    if (end - s < 3) return 0;
    unsigned code = (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    if (u[0] < 0xe0 || u[0] > 0xef) return 0;
    int white = code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
                code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
    return white ? 3 : 0;
}

static bt_status push_token(tokens *t, const char *start, size_t bytes) {
    if (t->count == t->room) {
        size_t room = 2 * t->room + 64;
        token *more = bti_realloc(t->list, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        t->list = more;
        t->room = room;
    }
    t->list[t->count++] = (token){start, bytes};
    return BT_OK;
}

static bt_status split_words(tokens *t) {
    const char *s = t->line.data, *end = s + t->line.bytes, *start = NULL;
    t->count = 0;
    while (s < end) {
        size_t white = white_space(s, end);
        if (white == 0) {
            if (start == NULL) start = s;
            s++;
            continue;
        }
        if (start != NULL) BT_TRY(push_token(t, start, (size_t)(s - start)));
        start = NULL;
        s += white;
    }
    return start != NULL ? push_token(t, start, (size_t)(s - start)) : BT_OK;
}

static bt_status tokenize(const char *line, size_t bytes, buffer *scratch, tokens *out) {
    buffer *a = &out->line;
    /* no byte becomes more than five: a stop with two blanks before and two after it */
    BT_TRY(reserve(a, 5 * (bytes + 2)));
    BT_TRY(reserve(scratch, 5 * (bytes + 2)));
    a->bytes = bytes + 2;
    a->data[0] = a->data[bytes + 1] = ' ';
    memcpy(a->data + 1, line, bytes);
    replace(a, "<skipped>", "");
    if (memchr(a->data, '&', a->bytes) != NULL) {
        replace(a, "&quot;", "\"");
        replace(a, "&amp;", "&");
        replace(a, "&lt;", "<");
        replace(a, "&gt;", ">");
    }
    scratch->bytes = split_punctuation(a->data, a->bytes, scratch->data);
    a->bytes = split_stop_after_other(scratch->data, scratch->bytes, a->data);
    scratch->bytes = split_stop_before_other(a->data, a->bytes, scratch->data);
    a->bytes = split_dash_after_digit(scratch->data, scratch->bytes, a->data);
    return split_words(out);
}

/* ---- counting ----------------------------------------------------------------------------------
 */

/* Makes the table empty, with room for `most` entries at half load, and number for `longest`. */
static bt_status start_round(scorer *s, size_t most, size_t longest) {
    s->round++;
    if (longest > s->number_room) {
        int64_t *more = bti_realloc(s->number, 2 * longest, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        s->number = more;
        s->number_room = 2 * longest;
    }
    size_t size = s->size ? s->size : 1024;
    while (size < 2 * most) size *= 2;
    if (size == s->size) return BT_OK;
    entry *table = bti_alloc(size, sizeof *table);
    if (table == NULL) return BT_ENOMEM;
    bti_free(s->table);
    s->table = table;
    s->size = size;
    return BT_OK;
}

static int same_word(token a, token b) {
    return a.bytes == b.bytes && memcmp(a.start, b.start, a.bytes) == 0;
}

/* The number of a token (prefix -1, last 0) or an n-gram (word empty), new or known. */
static int64_t number_of(scorer *s, uint64_t hash, int64_t prefix, int64_t last, token word) {
    size_t i = (size_t)hash & (s->size - 1);
    for (;; i = (i + 1) & (s->size - 1)) {
        entry *e = &s->table[i];
        if (e->round != s->round) *e = (entry){s->round, prefix, last, word, 0};
        if (e->prefix == prefix && e->last == last && same_word(e->word, word)) return (int64_t)i;
    }
}

static int64_t number_ngram(scorer *s, int64_t prefix, int64_t last) {
    uint64_t h = (uint64_t)prefix * 0x9e3779b97f4a7c15u + (uint64_t)last;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return number_of(s, h ^ h >> 32, prefix, last, (token){"", 0});
}

/* Counts the n-grams of the reference, or matches those of the hypothesis against the counts. */
static void count_ngrams(scorer *s, const tokens *t, int is_reference) {
    for (size_t i = 0; i < t->count; i++)
        s->number[i] =
            number_of(s, XXH3_64bits(t->list[i].start, t->list[i].bytes), -1, 0, t->list[i]);
    for (size_t i = 0; i < t->count; i++) {
        int64_t at = s->number[i];
        for (size_t n = 0; n < ORDER && i + n < t->count; n++) {
            if (n > 0) at = number_ngram(s, at, s->number[i + n]);
            entry *e = &s->table[at];
            if (is_reference) {
                e->count++;
                continue;
            }
            s->sum.totals[n]++;
            if (e->count == 0) continue;
            e->count--;
            s->sum.matches[n]++;
        }
    }
}

static bt_status add_pair(scorer *s, const char *hypothesis, size_t hypothesis_bytes,
                          const char *reference, size_t reference_bytes) {
    BT_TRY(tokenize(hypothesis, hypothesis_bytes, &s->scratch, &s->hypothesis));
    BT_TRY(tokenize(reference, reference_bytes, &s->scratch, &s->reference));
    size_t h = s->hypothesis.count, r = s->reference.count;
    BT_TRY(start_round(s, ORDER * (h + r), h > r ? h : r));
    count_ngrams(s, &s->reference, 1);
    count_ngrams(s, &s->hypothesis, 0);
    s->sum.hypothesis_length += (int64_t)h;
    s->sum.reference_length += (int64_t)r;
    return BT_OK;
}

/* BLEU = BP exp(mean of log precisions); the k-th precision without a match becomes 1 / 2^k of a
 * match (exponential smoothing); no match at all, or an order without n-grams, gives 0. */
static void conclude(bti_bleu *b) {
    double h = (double)b->hypothesis_length, r = (double)b->reference_length;
    double smooth = 1, sum = 0;
    b->brevity_penalty = h >= r ? 1 : h > 0 ? exp(1 - r / h) : 0;
    if (b->matches[0] == 0) return; /* then no longer n-gram matches either */
    for (int n = 0; n < ORDER; n++) {
        if (b->totals[n] == 0) return;
        if (b->matches[n] == 0) smooth *= 2;
        double matches = b->matches[n] ? (double)b->matches[n] : 1 / smooth;
        b->precisions[n] = 100 * matches / (double)b->totals[n];
        sum += log(b->precisions[n]);
    }
    b->score = b->brevity_penalty * exp(sum / ORDER);
}

bt_status bti_bleu_corpus(const char *const *hypotheses, const char *const *references,
                          size_t count, bti_bleu *out) {
    scorer s = {0};
    bt_status status = BT_OK;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = add_pair(&s, hypotheses[i], strlen(hypotheses[i]), references[i],
                          strlen(references[i]));
    if (status == BT_OK) {
        conclude(&s.sum);
        *out = s.sum;
    }
    scorer_free(&s);
    return status;
}

const char *bti_bleu_signature(void) {
    return "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0";
}

/* ---- public ------------------------------------------------------------------------------------
 */

/* Bytes up to the next 0A or the end. */
static size_t line_bytes(const char *at, const char *end) {
    const char *feed = memchr(at, '\n', (size_t)(end - at));
    return (size_t)((feed ? feed : end) - at);
}

static size_t count_lines(const char *data, size_t bytes) {
    size_t lines = 0;
    for (const char *at = data, *end = data + bytes; at < end; lines++)
        at += line_bytes(at, end) + 1;
    return lines;
}

static bt_status check_counts(const char *h_path, size_t h, const char *r_path, size_t r) {
    if (h != r)
        return bti_fail(BT_EINPUT, "%s has %zu lines and %s has %zu; they must be equal", h_path, h,
                        r_path, r);
    return h != 0 ? BT_OK : bti_fail(BT_EINPUT, "%s and %s have no lines", h_path, r_path);
}

/* A CR before the line end needs no care: it is white space. */
bt_status bt_score_files(const char *hypotheses, const char *references, bt_scores *out) {
    char *h_data = NULL, *r_data = NULL;
    size_t h_bytes = 0, r_bytes = 0;
    scorer s = {0};
    bt_status status = bti_file_read(hypotheses, &h_data, &h_bytes);
    if (status == BT_OK) status = bti_file_read(references, &r_data, &r_bytes);
    if (status == BT_OK)
        status = check_counts(hypotheses, count_lines(h_data, h_bytes), references,
                              count_lines(r_data, r_bytes));
    const char *h = h_data, *r = r_data;
    while (status == BT_OK && h < h_data + h_bytes) {
        size_t hn = line_bytes(h, h_data + h_bytes), rn = line_bytes(r, r_data + r_bytes);
        status = add_pair(&s, h, hn, r, rn);
        h += hn + 1;
        r += rn + 1;
    }
    if (status == BT_OK) {
        conclude(&s.sum);
        *out = (bt_scores){.bleu = s.sum.score,
                           .brevity_penalty = s.sum.brevity_penalty,
                           .hypothesis_length = s.sum.hypothesis_length,
                           .reference_length = s.sum.reference_length,
                           .bleu_signature = bti_bleu_signature()};
        memcpy(out->precisions, s.sum.precisions, sizeof out->precisions);
    }
    scorer_free(&s);
    bti_free(h_data);
    bti_free(r_data);
    return status;
}

bt_status bt_scores_text(const bt_scores *s, char **text) {
    double ratio =
        s->reference_length ? (double)s->hypothesis_length / (double)s->reference_length : 0;
    char *line = bti_format("BLEU|%s = %.2f %.1f/%.1f/%.1f/%.1f (BP = %.3f ratio = %.3f hyp_len = "
                            "%lld ref_len = %lld)",
                            s->bleu_signature, s->bleu, s->precisions[0], s->precisions[1],
                            s->precisions[2], s->precisions[3], s->brevity_penalty, ratio,
                            (long long)s->hypothesis_length, (long long)s->reference_length);
    if (line == NULL) return BT_ENOMEM;
    *text = line;
    return BT_OK;
}

bt_status bt_scores_json(const bt_scores *s, char **json) {
    json_t *root = json_pack(
        "{s:f, s:s, s:[f,f,f,f], s:f, s:I, s:I}", "bleu", s->bleu, "bleu_signature",
        s->bleu_signature, "precisions", s->precisions[0], s->precisions[1], s->precisions[2],
        s->precisions[3], "brevity_penalty", s->brevity_penalty, "hypothesis_length",
        (json_int_t)s->hypothesis_length, "reference_length", (json_int_t)s->reference_length);
    char *dump = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    char *copy = dump ? bti_strdup(dump) : NULL;
    json_decref(root);
    free(dump);
    if (copy == NULL) return bti_fail(BT_ENOMEM, "out of memory in JSON");
    *json = copy;
    return BT_OK;
}
