/* bt_evaluate: losses of the references and scores of the translations, in blocks of lines, so that
 * a text of any size takes the memory of one. */
#include <math.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/decode/score.h"
#include "core/decode/translator.h"
#include "core/model/head.h"

#define BLOCK_LINES 4096
#define BLOCK_BYTES (4 << 20) /* a block takes no further line beyond this */

typedef struct evaluation {
    bt_translator *translator;
    bti_scorer *scorer;
    bti_loss_sum sum;
    int64_t lines;
    char *line[2][BLOCK_LINES]; /* of the source and of the reference */
    bti_ids ids[2][BLOCK_LINES];
    bti_sentence sentence[BLOCK_LINES];
    int32_t rows[BLOCK_LINES][BTI_MAX_FEATURES];
} evaluation;

/* Lines of both files up to the block's measure; gives how many, 0 at the end. */
static bt_status read_block(evaluation *e, bti_reader *const r[2], size_t *count) {
    size_t used = 0;
    *count = 0;
    while (*count < BLOCK_LINES && used < BLOCK_BYTES) {
        int ended = 0, sides = 0;
        for (int side = 0; side < 2; side++) {
            const char *text = "";
            size_t bytes = 0;
            sides += r[side] != NULL;
            if (r[side] != NULL) BT_TRY(bti_reader_next(r[side], &text, &bytes));
            ended += text == NULL;
            if (text == NULL) continue;
            bti_free(e->line[side][*count]);
            e->line[side][*count] = bti_strdup(text);
            if (e->line[side][*count] == NULL) return BT_ENOMEM;
            used += bytes;
        }
        if (ended > 0 && ended < sides)
            return bti_fail(BT_EIO, "the text changed while it was being read");
        if (ended) break;
        ++*count;
    }
    return BT_OK;
}

static bt_status add_score(void *user, size_t index, const char *text, double score) {
    evaluation *e = user;
    const char *reference = e->line[1][index];
    (void)score;
    return bti_scorer_add(e->scorer, text, strlen(text), reference, strlen(reference));
}

/* Pairs with an empty side have no loss, as in training. */
static bt_status add_losses(evaluation *e, size_t count) {
    int64_t n = 0;
    bti_amends amends[2] = {{0, 0}, {0, 0}};
    for (size_t i = 0; i < count; i++) {
        bti_sentence *s = &e->sentence[n];
        const int reads = e->translator->tokenizer[0] != NULL;
        *s = (bti_sentence){0};
        for (int side = !reads; side < 2; side++) {
            const char *text = e->line[side][i];
            bti_ids *ids = &e->ids[side][i];
            BT_TRY(
                bti_translator_encode(e->translator, side, text, strlen(text), ids, &amends[side]));
            s->ids[side] = ids->id;
            s->count[side] = ids->count;
        }
        BT_TRY(bti_translator_features(e->translator, e->lines + (int64_t)i, e->rows[n], s));
        n += (s->count[0] > 0 || !reads) && s->count[1] > 0;
    }
    /* Of the source, translation tells. */
    bti_translator_say_amends(e->translator, "references", &amends[1]);
    return bti_losses_run(e->translator->losses, e->sentence, n, NULL, &e->sum);
}

static bt_status run(evaluation *e, const char *const path[2]) {
    bti_reader *r[2] = {NULL, NULL};
    bt_status s = BT_OK;
    for (int side = 0; s == BT_OK && side < 2; side++) {
        if (path[side] == NULL) continue;
        s = bti_reader_open_until(path[side], e->translator->options.stop, &r[side]);
        if (s == BT_OK) bti_reader_quiet(r[side]);
    }
    while (s == BT_OK) {
        size_t count;
        s = read_block(e, r, &count);
        if (s != BT_OK || count == 0) break;
        s = add_losses(e, count);
        if (s == BT_OK)
            s = bt_translate(e->translator, (const char *const *)e->line[0], count, add_score, e);
        e->lines += (int64_t)count;
    }
    bti_reader_close(r[0]);
    bti_reader_close(r[1]);
    return s;
}

static void evaluation_free(evaluation *e) {
    if (e == NULL) return;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < BLOCK_LINES; i++) {
            bti_free(e->line[side][i]);
            bti_ids_free(&e->ids[side][i]);
        }
    bti_scorer_close(e->scorer);
    bt_translator_free(e->translator);
    bti_free(e);
}

/* What is wrong with the text is told before a model is opened. Gives its lines. */
static bt_status check_text(const char *source, const char *reference,
                            const volatile sig_atomic_t *stop, int64_t *lines) {
    char *path[2] = {(char *)(uintptr_t)source, (char *)(uintptr_t)reference};
    bti_corpus_config cfg = {
        .source = {&path[0], source != NULL}, .target = {&path[1], 1}, .stop = stop};
    if ((source != NULL && strcmp(source, "-") == 0) || strcmp(reference, "-") == 0)
        return bti_fail(BT_EUSAGE, "evaluation reads its text twice: files, not standard input");
    return bti_corpus_check(&cfg, lines);
}

static bt_status check_model(const bt_translator *t, const char *model) {
    if (bti_has_decoder(&t->shape)) return BT_OK;
    return bti_fail(BT_EUSAGE, "%s writes no text: its head is %s, which is evaluated on labels",
                    model, bti_head_of(&t->shape)->name);
}

bt_status bt_evaluate(const char *model, const char *source, const char *reference,
                      const bt_translate_options *options, bt_evaluation *out) {
    int64_t lines;
    BT_TRY(check_text(source, reference, options ? options->stop : NULL, &lines));
    evaluation *e = bti_alloc(1, sizeof *e);
    if (e == NULL) return BT_ENOMEM;
    bt_status s = bti_scorer_open(&(bt_score_options){.chrf = 1}, &e->scorer);
    if (s == BT_OK) s = bti_translator_open(model, options, 1, &e->translator);
    if (s == BT_OK) s = check_model(e->translator, model);
    if (s == BT_OK) s = bti_translator_check_source(e->translator, source);
    if (s == BT_OK) s = bti_translator_match(e->translator, reference, lines, "lines");
    if (s == BT_OK) s = run(e, (const char *const[]){source, reference});
    if (s == BT_OK && e->sum.rows == 0)
        s = bti_fail(BT_EINPUT, "%s and %s hold no pair to evaluate on",
                     source ? source : "the features", reference);
    if (s == BT_OK) {
        double rows = (double)e->sum.rows;
        *out = (bt_evaluation){.lines = e->lines,
                               .target_tokens = e->sum.rows,
                               .loss = e->sum.loss / rows,
                               .nll = e->sum.nll / rows,
                               .perplexity = exp(e->sum.nll / rows)};
        bti_scorer_finish(e->scorer, &out->scores);
    }
    evaluation_free(e);
    return s;
}

bt_status bt_evaluation_text(const bt_evaluation *e, char **text) {
    char *scores;
    BT_TRY(bt_scores_text(&e->scores, &scores));
    *text = bti_format("loss %.6f  nll %.6f  perplexity %.4f  (%lld target tokens, %lld lines)\n%s",
                       e->loss, e->nll, e->perplexity, (long long)e->target_tokens,
                       (long long)e->lines, scores);
    bti_free(scores);
    return *text ? BT_OK : BT_ENOMEM;
}

bt_status bt_evaluation_json(const bt_evaluation *e, char **json) {
    char *scores;
    BT_TRY(bt_scores_json(&e->scores, &scores));
    json_t *more = bti_json_read(scores, strlen(scores));
    json_t *root =
        json_pack("{s:I, s:I, s:o, s:o, s:o}", "lines", (json_int_t)e->lines, "target_tokens",
                  (json_int_t)e->target_tokens, "loss", bti_json_number(e->loss), "nll",
                  bti_json_number(e->nll), "perplexity", bti_json_number(e->perplexity));
    int failed = root == NULL || more == NULL || json_object_update(root, more) != 0;
    json_decref(more);
    bti_free(scores);
    if (failed) {
        json_decref(root);
        root = NULL;
    }
    return bti_json_take(root, JSON_INDENT(2), json);
}
