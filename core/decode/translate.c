/* bt_translate: lines of a call are sorted by length into batches of the decoder; results leave in
 * input order. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/data/corpus.h"
#include "core/decode/translator.h"

typedef struct translation {
    char *text;
    double score;
} translation;

/* One line of a call. */
typedef struct line {
    bti_source source;  /* of ids; none for a blank line */
    bti_ids ids;        /* with the end symbol */
    bti_sentence input; /* with features: the whole example, and rows of each */
    int32_t rows[BTI_MAX_FEATURES];
    size_t index;      /* in the call */
    translation *best; /* once done, best first */
    int32_t count;     /* of them; 0: not done */
} line;

static bt_status line_make_room(line *l, int32_t count) {
    l->best = bti_alloc((size_t)count, sizeof *l->best);
    if (l->best == NULL) return BT_ENOMEM;
    l->count = count;
    return BT_OK;
}

static void line_free(line *l) {
    for (int32_t i = 0; i < l->count; i++) bti_free(l->best[i].text);
    bti_free(l->best);
    bti_ids_free(&l->ids);
}

/* Text with every byte that is not UTF-8 replaced by U+FFFD and 00 by a space, in *out (bti_free);
 * NULL when all is well. */
static bt_status repair(const char *text, size_t bytes, char **out, size_t *out_bytes) {
    *out = NULL;
    if (bti_utf8_check(text, bytes) == bytes) return BT_OK;
    char *fixed = bti_alloc(3 * bytes + 1, 1);
    if (fixed == NULL) return BT_ENOMEM;
    size_t n = 0, at = 0;
    while (at < bytes) {
        size_t good = bti_utf8_check(text + at, bytes - at);
        memcpy(fixed + n, text + at, good);
        n += good;
        at += good;
        if (at == bytes) break;
        if (text[at] == 0)
            fixed[n++] = ' ';
        else {
            memcpy(fixed + n, "\xEF\xBF\xBD", 3);
            n += 3;
        }
        at++;
    }
    *out = fixed;
    *out_bytes = n;
    return BT_OK;
}

bt_status bti_translator_encode(const bt_translator *t, int side, const char *text, size_t bytes,
                                bti_ids *ids, bti_amends *amends) {
    int64_t most = t->cfg->data.max_length;
    char *fixed;
    ids->count = 0;
    BT_TRY(repair(text, bytes, &fixed, &bytes));
    if (fixed != NULL) amends->repaired++;
    const char *good = fixed ? fixed : text;
    bt_status status = bti_line_blank(good, bytes)
                           ? BT_OK
                           : bti_tokenizer_encode(t->tokenizer[side], good, bytes, ids);
    bti_free(fixed);
    if (status != BT_OK || ids->count == 0) return status;
    BT_TRY(bti_ids_push(ids, bti_tokenizer_specials(t->tokenizer[side]).end));
    if (ids->count > most) {
        ids->id[most - 1] = ids->id[ids->count - 1];
        ids->count = most;
        amends->cut++;
    }
    return BT_OK;
}

void bti_translator_say_amends(const bt_translator *t, const char *lines,
                               const bti_amends *amends) {
    if (amends->repaired > 0)
        bti_log(BT_LOG_WARN,
                "%lld %s are not UTF-8 or have a byte 00; wrong bytes are read as U+FFFD, 00 as a "
                "blank",
                (long long)amends->repaired, lines);
    if (amends->cut > 0)
        bti_log(BT_LOG_WARN, "%lld %s are longer than data.max_length %lld and are cut",
                (long long)amends->cut, lines, (long long)t->cfg->data.max_length);
}

static bt_status encode_line(bt_translator *t, const char *text, line *l, bti_amends *amends) {
    if (t->tokenizer[0] == NULL) return BT_OK;
    bt_status status = bti_translator_encode(t, 0, text, strlen(text), &l->ids, amends);
    int32_t unk = bti_tokenizer_specials(t->tokenizer[0]).unk;
    for (int64_t i = 0; i < l->ids.count - 1; i++) t->source_unknown += l->ids.id[i] == unk;
    if (l->ids.count > 0) t->source_tokens += l->ids.count - 1;
    return status;
}

static int shorter(const void *a, const void *b) {
    const line *x = *(line *const *)a, *y = *(line *const *)b;
    if (x->source.count != y->source.count) return x->source.count < y->source.count ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* Text for another model, or prepared in another way, is told once. */
static void say_unknown(bt_translator *t) {
    double share =
        100.0 * (double)t->source_unknown / (double)(t->source_tokens + !t->source_tokens);
    if (share < 5 || t->said_unknown) return;
    t->said_unknown = 1;
    bti_log(BT_LOG_WARN, "%.1f %% of the source tokens so far are unknown to the tokeniser", share);
}

/* Hands over what is done, in order, from *next on. */
static bt_status hand_over(line *lines, size_t count, size_t *next, bt_sink_fn sink, void *user) {
    for (; *next < count && lines[*next].count > 0; (*next)++) {
        const line *l = &lines[*next];
        for (int32_t i = 0; i < l->count; i++)
            BT_TRY(sink(user, *next, l->best[i].text, l->best[i].score));
    }
    return BT_OK;
}

/* Lines of a call, and those that are not blank by length: as lines and as sources. */
typedef struct call {
    line *lines, **sorted;
    const bti_source **source;
    size_t count, next; /* next: first line not handed over */
    int64_t n;          /* lines that are not blank */
} call;

static bt_status translate_batch(bt_translator *t, call *c, int64_t at, int64_t take) {
    BT_TRY(bti_decoder_run(t->decoder, c->source + at, take, NULL));
    for (int64_t i = 0; i < take; i++) {
        line *l = c->sorted[at + i];
        const bti_hypothesis *h;
        int32_t count;
        BT_TRY(bti_decoder_results(t->decoder, i, &h, &count));
        BT_TRY(line_make_room(l, count));
        for (int32_t k = 0; k < count; k++) {
            l->best[k].score = h[k].score;
            BT_TRY(bti_tokenizer_decode(t->tokenizer[1], h[k].ids, h[k].length, &l->best[k].text));
        }
    }
    return BT_OK;
}

/* What a blank line gives. */
static bt_status translate_nothing(line *l) {
    BT_TRY(line_make_room(l, 1));
    l->best[0].text = bti_strdup("");
    return l->best[0].text == NULL ? BT_ENOMEM : BT_OK;
}

static bt_status translate_all(bt_translator *t, call *c, bt_sink_fn sink, void *user) {
    for (size_t i = 0; i < c->count; i++) {
        line *l = &c->lines[i];
        l->index = i;
        l->source = (bti_source){.ids = l->ids.id, .count = l->ids.count};
        int there = l->ids.count > 0 || t->tokenizer[0] == NULL;
        if (there && t->model->segments > 0) {
            l->input.ids[0] = l->ids.id;
            l->input.count[0] = l->ids.count;
            l->source.input = &l->input;
            BT_TRY(bti_translator_features(t, t->example + (int64_t)i, l->rows, &l->input));
        }
        if (there)
            c->sorted[c->n++] = l;
        else
            BT_TRY(translate_nothing(l));
    }
    qsort(c->sorted, (size_t)c->n, sizeof *c->sorted, shorter);
    for (int64_t i = 0; i < c->n; i++) c->source[i] = &c->sorted[i]->source;
    BT_TRY(hand_over(c->lines, c->count, &c->next, sink, user));
    for (int64_t at = 0; at < c->n;) {
        int64_t take = bti_decoder_batch(t->decoder, c->source, at, c->n);
        BT_TRY(translate_batch(t, c, at, take));
        BT_TRY(hand_over(c->lines, c->count, &c->next, sink, user));
        at += take;
    }
    return BT_OK;
}

bt_status bt_translate(bt_translator *t, const char *const *text, size_t count, bt_sink_fn sink,
                       void *user) {
    bti_amends amends = {0, 0};
    call c = {.count = count,
              .lines = bti_alloc(count, sizeof *c.lines),
              .sorted = bti_alloc(count, sizeof *c.sorted),
              .source = bti_alloc(count, sizeof *c.source)};
    bt_status status = c.lines == NULL || c.sorted == NULL || c.source == NULL ? BT_ENOMEM : BT_OK;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = encode_line(t, text[i], &c.lines[i], &amends);
    say_unknown(t);
    bti_translator_say_amends(t, "lines", &amends);
    if (status == BT_OK) status = translate_all(t, &c, sink, user);
    t->example += (int64_t)count;
    for (size_t i = 0; c.lines != NULL && i < count; i++) line_free(&c.lines[i]);
    bti_free(c.source);
    bti_free(c.sorted);
    bti_free(c.lines);
    return status;
}
