/* The algorithm of spaCy's Tokenizer. A line is cut at white space; each piece is an exception, or
 * loses prefixes and suffixes until none is left or an exception remains, and what remains is whole
 * (token_match, url_match) or cut at infixes. Then exceptions are looked for across tokens.
 *
 * Words repeat: what a word became is kept, for each thread at work apart, within bounds. */
#include "core/data/spacy.h"

#include "core/base/status.h"
#include "core/data/corpus.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEPT_WORDS = 1 << 16, /* then all are forgotten, as beyond so many tokens or bytes of words */
    KEPT_TOKENS = 1 << 18,
    KEPT_TEXT = 4 << 20,
    KEPT_BYTES = 256 /* longer words are not kept */
};

typedef struct token {
    const char *text;
    size_t bytes;
    int32_t id;
    int32_t symbol; /* in bti_spacy.symbols, or -1 */
} token;

typedef struct token_list {
    token *at;
    size_t count, room;
} token_list;

typedef struct span {
    size_t begin, end; /* tokens */
} span;

/* What one thread works on. */
typedef struct work {
    struct work *next;
    bti_matcher *matcher;
    token_list line, other, suffixes;
    span *spans;
    size_t span_count, span_room;
    char *taken; /* of the line's tokens */
    size_t taken_room;
    bti_strings kept;
    size_t *kept_first; /* KEPT_WORDS + 1 places in kept_tokens; text is not used there */
    token_list kept_tokens;
} work;

/* Exceptions that the pieces' own look-up may not find (they have affixes, or white space) are kept
 * as the tokens they would be otherwise: a tree whose edge i, (node, symbol), leads to node i + 1.
 */
struct bti_spacy {
    bti_spacy_rules rules;
    bti_words *words;
    size_t longest; /* exception */
    bti_strings symbols, edges;
    char *ends; /* by node: is it the end of an exception? */
    int64_t ends_room;
    pthread_mutex_t lock;
    work *idle;
};

/* ---- lists ----------------------------------------------------------------------------------- */

static bt_status push(token_list *l, const char *text, size_t bytes) {
    BT_TRY(bti_grow((void **)&l->at, &l->room, l->count + 1, sizeof *l->at));
    l->at[l->count++] = (token){text, bytes, BTI_WORD_UNK, -1};
    return BT_OK;
}

static bt_status append(token_list *l, const token *from, size_t count) {
    BT_TRY(bti_grow((void **)&l->at, &l->room, l->count + count, sizeof *l->at));
    if (count > 0) memcpy(l->at + l->count, from, count * sizeof *from);
    l->count += count;
    return BT_OK;
}

static void name_tokens(const bti_spacy *s, token *t, size_t count) {
    for (size_t i = 0; i < count; i++) {
        t[i].id = bti_words_find(s->words, t[i].text, t[i].bytes);
        t[i].symbol = (int32_t)bti_strings_find(&s->symbols, t[i].text, t[i].bytes);
    }
}

/* ---- one piece ------------------------------------------------------------------------------- */

static int64_t exception_of(const bti_spacy *s, const char *text, size_t bytes) {
    return bytes > s->longest ? -1 : bti_strings_find(&s->rules.exceptions, text, bytes);
}

static bt_status push_exception(const bti_spacy *s, token_list *l, int64_t e, const char *text) {
    for (int64_t i = s->rules.first[e]; i < s->rules.first[e + 1]; i++) {
        BT_TRY(push(l, text, s->rules.lengths[i]));
        text += s->rules.lengths[i];
    }
    return BT_OK;
}

static bt_status matches(const bti_spacy *s, work *w, int which, const char *text, size_t bytes,
                         int *found) {
    bti_match m = {1, 0};
    const bti_pattern *p = s->rules.pattern[which];
    if (p != NULL) BT_TRY(bti_pattern_find(p, w->matcher, text, bytes, 0, 0, &m));
    *found = m.begin <= m.end;
    return BT_OK;
}

static int continues(char c) { return ((unsigned char)c & 0xC0) == 0x80; }

/* spaCy takes the match's length in characters off the end of the text, wherever it matched: bytes
 * of as many characters of `text` from its start (or its end). */
static size_t as_long_as(const char *text, size_t bytes, bti_match m, int at_end) {
    if (at_end ? m.end == bytes : m.begin == 0) return m.end - m.begin;
    size_t characters = 0, n = 0;
    for (size_t i = m.begin; i < m.end; i++) characters += !continues(text[i]);
    for (; characters > 0; characters--) {
        do n++;
        while (n < bytes && continues(text[at_end ? bytes - n : n]));
    }
    return n;
}

/* Bytes of the prefix or suffix; 0: none. */
static bt_status affix(const bti_spacy *s, work *w, int which, const char *text, size_t bytes,
                       size_t *length) {
    bti_match m;
    *length = 0;
    if (s->rules.pattern[which] == NULL) return BT_OK;
    BT_TRY(bti_pattern_find(s->rules.pattern[which], w->matcher, text, bytes, 0, 0, &m));
    if (m.begin <= m.end) *length = as_long_as(text, bytes, m, which == BTI_SPACY_SUFFIX);
    return BT_OK;
}

typedef struct piece {
    const char *text;
    size_t bytes;
    int exceptions; /* 0: as if there were none */
} piece;

static int left_over_is_exception(const bti_spacy *s, const piece *p, size_t from, size_t to) {
    return p->exceptions && from < to && exception_of(s, p->text + from, to - from) >= 0;
}

/* Takes prefixes off to l, suffixes to w->suffixes (outermost first). */
static bt_status take_affixes(const bti_spacy *s, work *w, token_list *l, piece *p) {
    size_t before = SIZE_MAX, pre, suf;
    while (p->bytes > 0 && p->bytes != before) {
        int whole;
        before = p->bytes;
        BT_TRY(matches(s, w, BTI_SPACY_TOKEN_MATCH, p->text, p->bytes, &whole));
        if (whole || left_over_is_exception(s, p, 0, p->bytes)) break;
        BT_TRY(affix(s, w, BTI_SPACY_PREFIX, p->text, p->bytes, &pre));
        int done = pre > 0 && left_over_is_exception(s, p, pre, p->bytes);
        suf = 0;
        if (!done) BT_TRY(affix(s, w, BTI_SPACY_SUFFIX, p->text + pre, p->bytes - pre, &suf));
        if (suf > 0 && left_over_is_exception(s, p, 0, p->bytes - suf)) {
            done = 1;
            pre = 0;
        }
        if (pre > 0) BT_TRY(push(l, p->text, pre));
        if (suf > 0) BT_TRY(push(&w->suffixes, p->text + p->bytes - suf, suf));
        p->text += pre;
        p->bytes -= pre + suf;
        if (done) break;
    }
    return BT_OK;
}

static bt_status cut_at_infixes(const bti_spacy *s, work *w, token_list *l, const piece *p) {
    size_t start = 0, from = 0;
    int filled = 0;
    while (s->rules.pattern[BTI_SPACY_INFIX] != NULL) {
        bti_match m;
        BT_TRY(bti_pattern_find(s->rules.pattern[BTI_SPACY_INFIX], w->matcher, p->text, p->bytes,
                                from, filled, &m));
        if (m.begin > m.end) break;
        from = m.end;
        filled = m.begin == m.end;
        if (m.begin == 0) continue; /* an infix does not stand at the start */
        if (m.begin > start) BT_TRY(push(l, p->text + start, m.begin - start));
        if (m.end > m.begin) BT_TRY(push(l, p->text + m.begin, m.end - m.begin));
        start = m.end;
    }
    return start < p->bytes ? push(l, p->text + start, p->bytes - start) : BT_OK;
}

static bt_status take_apart(const bti_spacy *s, work *w, token_list *l, piece p) {
    w->suffixes.count = 0;
    BT_TRY(take_affixes(s, w, l, &p));
    int64_t e = p.exceptions && p.bytes > 0 ? exception_of(s, p.text, p.bytes) : -1;
    if (e >= 0) {
        BT_TRY(push_exception(s, l, e, p.text));
    } else if (p.bytes > 0) {
        int whole;
        BT_TRY(matches(s, w, BTI_SPACY_TOKEN_MATCH, p.text, p.bytes, &whole));
        if (!whole) BT_TRY(matches(s, w, BTI_SPACY_URL_MATCH, p.text, p.bytes, &whole));
        BT_TRY(whole ? push(l, p.text, p.bytes) : cut_at_infixes(s, w, l, &p));
    }
    for (size_t i = w->suffixes.count; i-- > 0;)
        BT_TRY(push(l, w->suffixes.at[i].text, w->suffixes.at[i].bytes));
    return BT_OK;
}

/* ---- what words became ----------------------------------------------------------------------- */

static bt_status recall(const work *w, int64_t kept, const char *text, token_list *l) {
    const token *t = w->kept_tokens.at + w->kept_first[kept];
    size_t count = w->kept_first[kept + 1] - w->kept_first[kept], from = l->count;
    BT_TRY(append(l, t, count));
    for (size_t i = from; i < l->count; i++) {
        l->at[i].text = text;
        text += l->at[i].bytes;
    }
    return BT_OK;
}

static bt_status keep(work *w, const char *text, size_t bytes, const token *t, size_t count) {
    int64_t index;
    if (bytes > KEPT_BYTES) return BT_OK;
    if (w->kept.count == KEPT_WORDS || w->kept_tokens.count > KEPT_TOKENS ||
        w->kept.used > KEPT_TEXT) {
        bti_strings_clear(&w->kept);
        w->kept_tokens.count = 0;
    }
    BT_TRY(append(&w->kept_tokens, t, count));
    BT_TRY(bti_strings_add(&w->kept, text, bytes, &index));
    w->kept_first[index + 1] = w->kept_tokens.count;
    return BT_OK;
}

static bt_status add_piece(const bti_spacy *s, work *w, piece p) {
    token_list *l = &w->line;
    if (!p.exceptions) return take_apart(s, w, l, p);
    int64_t kept = bti_strings_find(&w->kept, p.text, p.bytes);
    if (kept >= 0) return recall(w, kept, p.text, l);
    size_t from = l->count;
    int64_t e = exception_of(s, p.text, p.bytes);
    BT_TRY(e >= 0 ? push_exception(s, l, e, p.text) : take_apart(s, w, l, p));
    name_tokens(s, l->at + from, l->count - from);
    return keep(w, p.text, p.bytes, l->at + from, l->count - from);
}

/* ---- a line ---------------------------------------------------------------------------------- */

/* One blank between pieces is nobody's; all other white space makes pieces of its own. */
static bt_status cut_at_spaces(const bti_spacy *s, work *w, const char *text, size_t bytes,
                               int exceptions) {
    size_t start = 0, n;
    int in_space = bti_space_at(text, bytes) > 0;
    w->line.count = 0;
    for (size_t i = 0; i < bytes; i += n ? n : 1) {
        n = bti_space_at(text + i, bytes - i);
        if ((n > 0) == in_space) continue;
        if (start < i) BT_TRY(add_piece(s, w, (piece){text + start, i - start, exceptions}));
        start = text[i] == ' ' ? i + 1 : i;
        in_space = !in_space;
    }
    return start < bytes ? add_piece(s, w, (piece){text + start, bytes - start, exceptions})
                         : BT_OK;
}

static int64_t edge_of(const bti_spacy *s, int32_t node, int32_t symbol) {
    int32_t key[2] = {node, symbol};
    return bti_strings_find(&s->edges, (const char *)key, sizeof key);
}

/* All runs of tokens that the tree knows. */
static bt_status find_spans(const bti_spacy *s, work *w) {
    const token_list *l = &w->line;
    w->span_count = 0;
    for (size_t i = 0; i < l->count; i++) {
        int32_t node = 0;
        for (size_t j = i; j < l->count && l->at[j].symbol >= 0; j++) {
            node = (int32_t)edge_of(s, node, l->at[j].symbol) + 1;
            if (node == 0) break;
            if (!s->ends[node]) continue;
            BT_TRY(
                bti_grow((void **)&w->spans, &w->span_room, w->span_count + 1, sizeof *w->spans));
            w->spans[w->span_count++] = (span){i, j + 1};
        }
    }
    return BT_OK;
}

static int longer_first(const void *x, const void *y) {
    const span *a = x, *b = y;
    size_t m = a->end - a->begin, n = b->end - b->begin;
    if (m != n) return m > n ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static int in_order(const void *x, const void *y) {
    const span *a = x, *b = y;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Of spans that overlap the longest stays, of equal ones the first. */
static bt_status choose_spans(work *w) {
    size_t kept = 0;
    qsort(w->spans, w->span_count, sizeof *w->spans, longer_first);
    BT_TRY(bti_grow((void **)&w->taken, &w->taken_room, w->line.count, 1));
    memset(w->taken, 0, w->line.count);
    for (size_t i = 0; i < w->span_count; i++) {
        span x = w->spans[i];
        int free = !w->taken[x.begin] && !w->taken[x.end - 1];
        memset(w->taken + x.begin, 1, x.end - x.begin);
        if (free) w->spans[kept++] = x;
    }
    w->span_count = kept;
    qsort(w->spans, kept, sizeof *w->spans, in_order);
    return BT_OK;
}

/* The tree compares tokens; with the blanks between them the text may still be another. */
static bt_status put_exceptions(const bti_spacy *s, work *w) {
    const token *t = w->line.at;
    size_t done = 0;
    w->other.count = 0;
    for (size_t i = 0; i < w->span_count; i++) {
        span x = w->spans[i];
        const char *end = t[x.end - 1].text + t[x.end - 1].bytes;
        int64_t e = exception_of(s, t[x.begin].text, (size_t)(end - t[x.begin].text));
        if (e < 0) continue;
        BT_TRY(append(&w->other, t + done, x.begin - done));
        size_t from = w->other.count;
        BT_TRY(push_exception(s, &w->other, e, t[x.begin].text));
        name_tokens(s, w->other.at + from, w->other.count - from);
        done = x.end;
    }
    BT_TRY(append(&w->other, t + done, w->line.count - done));
    token_list swap = w->line;
    w->line = w->other;
    w->other = swap;
    return BT_OK;
}

static bt_status tokenise(const bti_spacy *s, work *w, const char *text, size_t bytes) {
    BT_TRY(cut_at_spaces(s, w, text, bytes, 1));
    BT_TRY(find_spans(s, w));
    if (w->span_count == 0) return BT_OK;
    BT_TRY(choose_spans(w));
    return put_exceptions(s, w);
}

/* ---- threads --------------------------------------------------------------------------------- */

static void work_free(work *w) {
    if (w == NULL) return;
    bti_matcher_free(w->matcher);
    bti_free(w->line.at);
    bti_free(w->other.at);
    bti_free(w->suffixes.at);
    bti_free(w->spans);
    bti_free(w->taken);
    bti_strings_free(&w->kept);
    bti_free(w->kept_first);
    bti_free(w->kept_tokens.at);
    bti_free(w);
}

static bt_status work_new(work **out) {
    work *w = bti_alloc(1, sizeof *w);
    bt_status s = w == NULL ? BT_ENOMEM : bti_matcher_new(&w->matcher);
    if (s == BT_OK && (w->kept_first = bti_alloc(KEPT_WORDS + 1, sizeof *w->kept_first)) == NULL)
        s = BT_ENOMEM;
    if (s != BT_OK)
        work_free(w);
    else
        *out = w;
    return s;
}

/* There are as many as threads were ever at work at once. */
static bt_status borrow(const bti_spacy *shared, work **out) {
    bti_spacy *s = (bti_spacy *)(uintptr_t)shared; /* lock and idle are not part of what it means */
    pthread_mutex_lock(&s->lock);
    work *w = s->idle;
    if (w != NULL) s->idle = w->next;
    pthread_mutex_unlock(&s->lock);
    if (w == NULL) return work_new(out);
    *out = w;
    return BT_OK;
}

static void bring_back(const bti_spacy *shared, work *w) {
    bti_spacy *s = (bti_spacy *)(uintptr_t)shared;
    pthread_mutex_lock(&s->lock);
    w->next = s->idle;
    s->idle = w;
    pthread_mutex_unlock(&s->lock);
}

/* ---- public ---------------------------------------------------------------------------------- */

static bt_status add_to_tree(bti_spacy *s, const token_list *l) {
    int64_t node = 0;
    for (size_t i = 0; i < l->count; i++) {
        int64_t symbol;
        BT_TRY(bti_strings_add(&s->symbols, l->at[i].text, l->at[i].bytes, &symbol));
        int32_t key[2] = {(int32_t)node, (int32_t)symbol};
        BT_TRY(bti_strings_add(&s->edges, (const char *)key, sizeof key, &node));
        node++;
    }
    if (s->edges.count >= s->ends_room) {
        int64_t room = 2 * s->edges.count + 16;
        char *more = bti_realloc(s->ends, (size_t)room, 1);
        if (more == NULL) return BT_ENOMEM;
        memset(more + s->ends_room, 0, (size_t)(room - s->ends_room));
        s->ends = more;
        s->ends_room = room;
    }
    if (node > 0) s->ends[node] = 1;
    return BT_OK;
}

/* May an exception stand across what the look-up of pieces sees? */
static bt_status needs_tree(const bti_spacy *s, work *w, const char *text, size_t bytes,
                            int *needs) {
    size_t pre, suf;
    BT_TRY(matches(s, w, BTI_SPACY_INFIX, text, bytes, needs));
    BT_TRY(affix(s, w, BTI_SPACY_PREFIX, text, bytes, &pre));
    BT_TRY(affix(s, w, BTI_SPACY_SUFFIX, text, bytes, &suf));
    *needs |= !s->rules.faster_heuristics || pre || suf || memchr(text, ' ', bytes) != NULL;
    return BT_OK;
}

static bt_status plant(bti_spacy *s) {
    work *w;
    for (int64_t i = 0; i < s->rules.exceptions.count; i++)
        if (s->rules.exceptions.entry[i].bytes > s->longest)
            s->longest = s->rules.exceptions.entry[i].bytes;
    BT_TRY(borrow(s, &w));
    bt_status status = BT_OK;
    for (int64_t i = 0; i < s->rules.exceptions.count && status == BT_OK; i++) {
        size_t bytes;
        int needs;
        const char *text = bti_strings_at(&s->rules.exceptions, i, &bytes);
        status = needs_tree(s, w, text, bytes, &needs);
        if (status != BT_OK || !needs) continue;
        status = cut_at_spaces(s, w, text, bytes, 0);
        if (status == BT_OK) status = add_to_tree(s, &w->line);
    }
    bring_back(s, w);
    return status;
}

bt_status bti_spacy_new(bti_spacy_rules *rules, bti_words *words, bti_spacy **out) {
    bti_spacy *s = bti_alloc(1, sizeof *s);
    if (s == NULL) {
        bti_spacy_rules_free(rules);
        bti_words_free(words);
        return BT_ENOMEM;
    }
    pthread_mutex_init(&s->lock, NULL);
    s->rules = *rules;
    s->words = words;
    *rules = (bti_spacy_rules){.faster_heuristics = 0};
    bt_status status = plant(s);
    if (status != BT_OK)
        bti_spacy_free(s);
    else
        *out = s;
    return status;
}

void bti_spacy_free(bti_spacy *s) {
    if (s == NULL) return;
    for (work *w = s->idle, *next; w != NULL; w = next) {
        next = w->next;
        work_free(w);
    }
    pthread_mutex_destroy(&s->lock);
    bti_spacy_rules_free(&s->rules);
    bti_words_free(s->words);
    bti_strings_free(&s->symbols);
    bti_strings_free(&s->edges);
    bti_free(s->ends);
    bti_free(s);
}

const bti_words *bti_spacy_words(const bti_spacy *s) { return s->words; }

bt_status bti_spacy_tokens(const bti_spacy *s, const char *text, size_t bytes, bti_token_fn fn,
                           void *user) {
    for (size_t at = 0; (at += bti_utf8_check(text + at, bytes - at)) < bytes; at++)
        if (text[at] != 0) return bti_fail(BT_EINPUT, "byte %zu of the text is not UTF-8", at + 1);
    work *w;
    BT_TRY(borrow(s, &w));
    bt_status status = tokenise(s, w, text, bytes);
    for (size_t i = 0; i < w->line.count && status == BT_OK; i++)
        status = fn(user, w->line.at[i].text, w->line.at[i].bytes, w->line.at[i].id);
    bring_back(s, w);
    return status;
}

int bti_spacy_exception_of_two(const bti_spacy *s, const char *a, const char *b) {
    char both[KEPT_BYTES];
    size_t m = strlen(a), n = strlen(b);
    if (m + n > sizeof both) return 0;
    memcpy(both, a, m);
    memcpy(both + m, b, n);
    int64_t e = exception_of(s, both, m + n);
    return e >= 0 && s->rules.first[e + 1] - s->rules.first[e] == 2 &&
           s->rules.lengths[s->rules.first[e]] == m;
}
