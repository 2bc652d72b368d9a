/* Scores of files and lines, signed, as text and JSON. */
#include "core/decode/score.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/corpus.h"

/* The release whose figures these are equal to. */
#define SACREBLEU "2.6.0"

struct bti_scorer {
    bt_score_options options;
    bti_tokenization kind;
    bti_tokens hypothesis, reference;
    bti_text lower_hypothesis, lower_reference;
    bti_ngrams ngrams;
    bti_bleu bleu;
    bti_chrf chrf;
};

static const char *const names[] = {[BTI_TOKENS_13A] = "13a",
                                    [BTI_TOKENS_NONE] = "none",
                                    [BTI_TOKENS_INTL] = "intl",
                                    [BTI_TOKENS_CHAR] = "char",
                                    [BTI_TOKENS_ZH] = "zh"};
enum { NAMES = sizeof names / sizeof names[0] };

/* ---- a corpus in the making --------------------------------------------------------------------
 */

static bt_status check_options(const bt_score_options *o, bti_tokenization *kind) {
    int found = -1;
    for (int i = 0; i < NAMES && o->tokenize != NULL; i++)
        if (strcmp(names[i], o->tokenize) == 0) found = i;
    if (o->tokenize == NULL) found = BTI_TOKENS_13A;
    if (found < 0)
        return bti_fail(BT_EUSAGE, "tokenize: \"%s\" is none of 13a, none, intl, char, zh",
                        o->tokenize);
    if (o->word_order != 0 && o->word_order != BTI_CHRF_WORDS)
        return bti_fail(BT_EUSAGE, "word order %d: chrF has 0, chrF++ has 2", o->word_order);
    *kind = (bti_tokenization)found;
    return BT_OK;
}

bt_status bti_scorer_open(const bt_score_options *options, bti_scorer **out) {
    bt_score_options o = options ? *options : (bt_score_options){0};
    bti_tokenization kind = BTI_TOKENS_13A;
    BT_TRY(check_options(&o, &kind));
    bti_scorer *s = bti_alloc(1, sizeof *s);
    if (s == NULL) return BT_ENOMEM;
    s->options = o;
    s->kind = kind;
    *out = s;
    return BT_OK;
}

void bti_scorer_close(bti_scorer *s) {
    if (s == NULL) return;
    bti_tokens_free(&s->hypothesis);
    bti_tokens_free(&s->reference);
    bti_free(s->lower_hypothesis.text);
    bti_free(s->lower_reference.text);
    bti_ngrams_free(&s->ngrams);
    bti_free(s);
}

void bti_scorer_clear(bti_scorer *s) {
    s->bleu = (bti_bleu){0};
    s->chrf = (bti_chrf){0};
}

static bt_status lower(bti_text *to, const char **text, size_t *bytes) {
    BT_TRY(bti_lowercase(*text, *bytes, to));
    *text = to->text;
    *bytes = to->bytes;
    return BT_OK;
}

bt_status bti_scorer_add(bti_scorer *s, const char *hypothesis, size_t hypothesis_bytes,
                         const char *reference, size_t reference_bytes) {
    bti_tokens *h = &s->hypothesis, *r = &s->reference;
    if (s->options.lowercase) {
        BT_TRY(lower(&s->lower_hypothesis, &hypothesis, &hypothesis_bytes));
        BT_TRY(lower(&s->lower_reference, &reference, &reference_bytes));
    }
    BT_TRY(bti_tokenize(s->kind, hypothesis, hypothesis_bytes, h));
    BT_TRY(bti_tokenize(s->kind, reference, reference_bytes, r));
    BT_TRY(bti_bleu_add(&s->bleu, &s->ngrams, h, r));
    if (!s->options.chrf) return BT_OK;
    BT_TRY(bti_tokenize(BTI_TOKENS_CHAR, hypothesis, hypothesis_bytes, h));
    BT_TRY(bti_tokenize(BTI_TOKENS_CHAR, reference, reference_bytes, r));
    BT_TRY(bti_chrf_add(&s->chrf, &s->ngrams, h, r, 0, BTI_CHRF_CHARS));
    if (s->options.word_order == 0) return BT_OK;
    BT_TRY(bti_tokenize(BTI_TOKENS_CHRF, hypothesis, hypothesis_bytes, h));
    BT_TRY(bti_tokenize(BTI_TOKENS_CHRF, reference, reference_bytes, r));
    return bti_chrf_add(&s->chrf, &s->ngrams, h, r, BTI_CHRF_CHARS, s->options.word_order);
}

void bti_scorer_finish(bti_scorer *s, bt_scores *out) {
    const bt_score_options *o = &s->options;
    const char *letters = o->lowercase ? "lc" : "mixed";
    bti_bleu_finish(&s->bleu);
    *out = (bt_scores){.bleu = s->bleu.score,
                       .brevity_penalty = s->bleu.brevity_penalty,
                       .hypothesis_length = s->bleu.hypothesis_length,
                       .reference_length = s->bleu.reference_length,
                       .chrf = NAN};
    memcpy(out->precisions, s->bleu.precisions, sizeof out->precisions);
    snprintf(out->bleu_signature, sizeof out->bleu_signature,
             "nrefs:1|case:%s|eff:no|tok:%s|smooth:exp|version:" SACREBLEU, letters,
             names[s->kind]);
    if (!o->chrf) return;
    out->chrf = bti_chrf_finish(&s->chrf, o->word_order);
    out->chrf_word_order = o->word_order;
    snprintf(out->chrf_signature, sizeof out->chrf_signature,
             "nrefs:1|case:%s|eff:yes|nc:%d|nw:%d|space:no|version:" SACREBLEU, letters,
             BTI_CHRF_CHARS, o->word_order);
}

/* ---- public ------------------------------------------------------------------------------------
 */

bt_status bt_score_lines(const char *const *hypotheses, const char *const *references, size_t count,
                         const bt_score_options *options, bt_scores *out) {
    bti_scorer *s;
    BT_TRY(bti_scorer_open(options, &s));
    bt_status status =
        count > 0 ? BT_OK : bti_fail(BT_EINPUT, "there are no lines to compute a score of");
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = bti_scorer_add(s, hypotheses[i], strlen(hypotheses[i]), references[i],
                                strlen(references[i]));
    if (status == BT_OK) bti_scorer_finish(s, out);
    bti_scorer_close(s);
    return status;
}

/* Counts the lines that are left after `line`, which may be NULL, so none. */
static bt_status count_rest(bti_reader *r, const char *line, long long *count) {
    size_t bytes;
    for (; line != NULL; ++*count) BT_TRY(bti_reader_next(r, &line, &bytes));
    return BT_OK;
}

/* Line by line, so that files of any size take the memory of their longest lines. */
static bt_status add_files(bti_scorer *s, bti_reader *h, bti_reader *r, long long count[2]) {
    const char *hypothesis, *reference;
    size_t h_bytes, r_bytes;
    for (count[0] = 0;; count[0]++) {
        BT_TRY(bti_reader_next(h, &hypothesis, &h_bytes));
        BT_TRY(bti_reader_next(r, &reference, &r_bytes));
        if (hypothesis == NULL || reference == NULL) break;
        BT_TRY(bti_scorer_add(s, hypothesis, h_bytes, reference, r_bytes));
    }
    count[1] = count[0];
    BT_TRY(count_rest(h, hypothesis, &count[0]));
    return count_rest(r, reference, &count[1]);
}

bt_status bt_score_files(const char *hypotheses, const char *references,
                         const bt_score_options *options, bt_scores *out) {
    bti_scorer *s = NULL;
    bti_reader *h = NULL, *r = NULL;
    long long count[2];
    if (strcmp(hypotheses, "-") == 0 && strcmp(references, "-") == 0)
        return bti_fail(BT_EUSAGE, "only one of the two texts can be standard input");
    bt_status status = bti_scorer_open(options, &s);
    if (status == BT_OK) status = bti_reader_open(hypotheses, &h);
    if (status == BT_OK) status = bti_reader_open(references, &r);
    if (status != BT_OK) goto done;
    bti_reader_quiet(h); /* a CR is white space here */
    bti_reader_quiet(r);
    status = add_files(s, h, r, count);
    if (status != BT_OK) goto done;
    if (count[0] != count[1])
        status = bti_fail(BT_EINPUT, "%s has %lld lines and %s has %lld; they must be equal",
                          hypotheses, count[0], references, count[1]);
    else if (count[0] == 0)
        status = bti_fail(BT_EINPUT, "%s and %s have no lines", hypotheses, references);
    else
        bti_scorer_finish(s, out);
done:
    bti_reader_close(h);
    bti_reader_close(r);
    bti_scorer_close(s);
    return status;
}

bt_status bt_scores_text(const bt_scores *s, char **text) {
    double ratio =
        s->reference_length ? (double)s->hypothesis_length / (double)s->reference_length : 0;
    bti_text t = {0};
    bti_text_add(&t,
                 "BLEU|%s = %.2f %.1f/%.1f/%.1f/%.1f (BP = %.3f ratio = %.3f hyp_len = %lld "
                 "ref_len = %lld)",
                 s->bleu_signature, s->bleu, s->precisions[0], s->precisions[1], s->precisions[2],
                 s->precisions[3], s->brevity_penalty, ratio, (long long)s->hypothesis_length,
                 (long long)s->reference_length);
    if (s->chrf_signature[0] != 0)
        bti_text_add(&t, "\nchrF2%s|%s = %.2f", s->chrf_word_order ? "++" : "", s->chrf_signature,
                     s->chrf);
    return bti_text_take(&t, text);
}

bt_status bt_scores_json(const bt_scores *s, char **json) {
    json_t *root = json_pack(
        "{s:f, s:s, s:[f,f,f,f], s:f, s:I, s:I}", "bleu", s->bleu, "bleu_signature",
        s->bleu_signature, "precisions", s->precisions[0], s->precisions[1], s->precisions[2],
        s->precisions[3], "brevity_penalty", s->brevity_penalty, "hypothesis_length",
        (json_int_t)s->hypothesis_length, "reference_length", (json_int_t)s->reference_length);
    int failed = root == NULL;
    if (!failed && s->chrf_signature[0] != 0)
        failed = json_object_set_new(root, "chrf", json_real(s->chrf)) != 0 ||
                 json_object_set_new(root, "chrf_signature", json_string(s->chrf_signature)) != 0;
    if (failed) {
        json_decref(root);
        root = NULL;
    }
    return bti_json_take(root, JSON_INDENT(2), json);
}
