#include "core/session/validation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/num.h"
#include "core/base/status.h"
#include "core/data/kept_lines.h"
#include "core/decode/score.h"
#include "core/model/head.h"

/* Examples that are looked at together: translations are sorted by length among so many. */
#define BLOCK 4096
/* Numbers that a model without a decoder gives for so many at most: 4 MiB. */
#define OUTPUTS (1 << 20)

struct bti_validation {
    const bti_run_config *cfg;
    const bti_examples *examples;
    const bti_tokenizer *target;
    bti_engine *engine;
    const volatile sig_atomic_t *stop;
    bti_decoder *decoder;
    int64_t n, block;
    bti_sentence *sentence; /* of a block, as what follows */
    bti_source *source;
    const bti_source **sorted; /* by length */
    bti_hypothesis *best;
    const char **reference;
    bti_kept_lines *text[2]; /* source (NULL: none) and reference */
    char *translation[BTI_SAMPLES];
    bti_scorer *scorer;
    float *outputs; /* without a decoder */
    bti_tally *tally;
};

int bti_validates(const bti_run_config *cfg) {
    int held_out =
        cfg->data.valid_source.count + cfg->data.valid_target.count + cfg->data.valid_labels.count >
        0;
    return cfg->validation.every > 0 && held_out;
}

bti_decoder_config bti_validation_decoding(const bti_run_config *cfg, const bti_tokenizer *target,
                                           const volatile sig_atomic_t *stop) {
    bti_special_ids s = bti_tokenizer_specials(target);
    bti_decoder_config c = {.beam = (int32_t)cfg->validation.beam,
                            .length_penalty = 1,
                            .length = cfg->data.max_length,
                            .stop = stop};
    bti_decoder_specials(&c, s.start, s.end, s.unk, s.pad);
    return c;
}

static int64_t block_of(const bti_model_config *m, int64_t n) {
    const int64_t wide = bti_has_decoder(m) ? BLOCK : bti_max(1, OUTPUTS / m->outputs);
    return bti_min(n, bti_min(BLOCK, wide));
}

uint64_t bti_validation_host_bytes(const bti_model_config *m, int64_t n) {
    const bti_validation *v = NULL;
    size_t text = sizeof *v->source + sizeof *v->sorted + sizeof *v->best + sizeof *v->reference;
    size_t more = bti_has_decoder(m) ? text : (size_t)m->outputs * sizeof *v->outputs;
    return (uint64_t)block_of(m, n) * (sizeof *v->sentence + more);
}

static int shorter(const void *a, const void *b) {
    const bti_source *x = *(const bti_source *const *)a, *y = *(const bti_source *const *)b;
    if (x->count != y->count) return x->count < y->count ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bt_status keep_text(bti_validation *v) {
    const bti_corpus *corpus = v->examples->corpus;
    const char *dir = v->cfg->data.cache;
    if (v->cfg->data.valid_source.count > 0)
        BT_TRY(bti_kept_lines_new(&v->cfg->data.valid_source, corpus, dir, &v->text[0]));
    return bti_kept_lines_new(&v->cfg->data.valid_target, corpus, dir, &v->text[1]);
}

/* What translations and their scores need. */
static bt_status take_text(bti_validation *v, int64_t batch) {
    size_t n = (size_t)v->block;
    const bti_engine *e = v->engine;
    v->source = bti_alloc(n, sizeof *v->source);
    v->sorted = bti_alloc(n, sizeof *v->sorted);
    v->best = bti_alloc(n, sizeof *v->best);
    v->reference = bti_alloc(n, sizeof *v->reference);
    if (v->source == NULL || v->sorted == NULL || v->best == NULL || v->reference == NULL)
        return BT_ENOMEM;
    BT_TRY(keep_text(v));
    BT_TRY(bti_scorer_open(&(bt_score_options){.chrf = 1}, &v->scorer));
    bti_decoder_config decoding = bti_validation_decoding(v->cfg, v->target, v->stop);
    BT_TRY(bti_decoder_new(e->model, e->plan->step->planning, &e->plan->step->info,
                           &e->plan->places, e->plan->decode_staging, &decoding, batch,
                           &v->decoder));
    return bti_decoder_bind(v->decoder, &e->arena);
}

static bt_status take(bti_validation *v, int64_t batch) {
    const bti_model_config *m = &v->engine->model->cfg;
    v->block = block_of(m, v->n);
    v->sentence = bti_alloc((size_t)v->block, sizeof *v->sentence);
    if (v->sentence == NULL) return BT_ENOMEM;
    if (bti_has_decoder(m)) return take_text(v, batch);
    v->outputs = bti_alloc((size_t)(v->block * m->outputs), sizeof *v->outputs);
    if (v->outputs == NULL) return BT_ENOMEM;
    return bti_tally_new(m, &v->tally);
}

bt_status bti_validation_open(const bti_run_config *cfg, const bti_examples *valid,
                              const bti_tokenizer *target, bti_engine *e, int64_t batch,
                              const volatile sig_atomic_t *stop, bti_validation **out) {
    bti_validation *v = bti_alloc(1, sizeof *v);
    if (v == NULL) return BT_ENOMEM;
    v->cfg = cfg;
    v->examples = valid;
    v->target = target;
    v->engine = e;
    v->stop = stop;
    v->n = valid->count;
    bt_status status = take(v, batch);
    if (status != BT_OK) {
        bti_validation_close(v);
        return status;
    }
    *out = v;
    return BT_OK;
}

void bti_validation_close(bti_validation *v) {
    if (v == NULL) return;
    bti_decoder_free(v->decoder);
    bti_scorer_close(v->scorer);
    for (int i = 0; i < BTI_SAMPLES; i++) bti_free(v->translation[i]);
    for (int side = 0; side < 2; side++) bti_kept_lines_free(v->text[side]);
    bti_tally_free(v->tally);
    bti_free(v->outputs);
    bti_free(v->reference);
    bti_free(v->best);
    bti_free(v->sorted);
    bti_free(v->source);
    bti_free(v->sentence);
    bti_free(v);
}

/* ---- text --------------------------------------------------------------------------------------
 */

/* Which example sample i shows. */
static int64_t sample_at(const bti_validation *v, int i) {
    return (2 * i + 1) * v->n / (2 * BTI_SAMPLES);
}

/* The next n lines of both sides, example `at` the first. */
static void walk_lines(bti_validation *v, int64_t at, int64_t n, const char *line[2],
                       bti_validation_result *r) {
    for (int64_t k = 0; k < n; k++) {
        v->reference[k] = line[1];
        for (int i = 0; i < BTI_SAMPLES; i++) {
            if (sample_at(v, i) != at + k) continue;
            r->source[i] = line[0];
            r->reference[i] = line[1];
        }
        for (int side = 0; side < 2; side++)
            if (line[side] != NULL) line[side] = bti_kept_lines_next(line[side]);
    }
}

/* Counts the translation of example `at`, whose reference is given; a few of them are kept. */
static bt_status add_translation(bti_validation *v, int64_t at, const bti_hypothesis *h,
                                 const char *reference) {
    char *text;
    BT_TRY(bti_tokenizer_decode(v->target, h->ids, h->length, &text));
    bt_status status = bti_scorer_add(v->scorer, text, strlen(text), reference, strlen(reference));
    for (int i = 0; i < BTI_SAMPLES && status == BT_OK; i++) {
        if (sample_at(v, i) != at) continue;
        bti_free(v->translation[i]);
        v->translation[i] = bti_strdup(text);
        if (v->translation[i] == NULL) status = BT_ENOMEM;
    }
    bti_free(text);
    return status;
}

/* Translates the block of n from example `at` on. */
static bt_status translate(bti_validation *v, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const bti_sentence *s = &v->sentence[i];
        v->source[i] = (bti_source){.ids = s->ids[0], .count = s->count[0], .input = s};
        v->sorted[i] = &v->source[i];
    }
    qsort(v->sorted, (size_t)n, sizeof *v->sorted, shorter);
    for (int64_t from = 0, m; from < n; from += m) {
        m = bti_decoder_batch(v->decoder, v->sorted, from, n);
        BT_TRY(bti_decoder_run(v->decoder, v->sorted + from, m, v->best));
        for (int64_t i = 0; i < m; i++) {
            int64_t k = v->sorted[from + i] - v->source;
            BT_TRY(add_translation(v, at + k, &v->best[i], v->reference[k]));
        }
    }
    return BT_OK;
}

static double score_of(const bti_validation *v, const bti_validation_result *r) {
    switch (v->cfg->validation.metric) {
    case BTI_METRIC_BLEU:
        return r->bleu;
    case BTI_METRIC_CHRF:
        return r->chrf;
    case BTI_METRIC_ACCURACY:
        return r->metrics.accuracy;
    case BTI_METRIC_F1:
        return r->metrics.f1;
    default:
        return -r->loss;
    }
}

/* ---- all of it ---------------------------------------------------------------------------------
 */

/* Adds the losses of all examples, counts outputs or translations, a block at a time. */
static bt_status run_blocks(bti_validation *v, bti_loss_sum *sum, bti_validation_result *r) {
    const char *line[2] = {NULL, NULL};
    for (int side = 0; side < 2; side++)
        if (v->text[side] != NULL) line[side] = bti_kept_lines_first(v->text[side]);
    for (int64_t at = 0, n; at < v->n; at += n) {
        bti_loss_sum part;
        n = bti_min(v->n - at, v->block);
        for (int64_t i = 0; i < n; i++) bti_examples_get(v->examples, at + i, &v->sentence[i]);
        BT_TRY(bti_engine_losses(v->engine, v->sentence, n, v->outputs, &part));
        sum->loss += part.loss;
        sum->nll += part.nll;
        sum->rows += part.rows;
        if (v->tally != NULL) bti_tally_add(v->tally, v->sentence, n, v->outputs);
        if (v->decoder == NULL) continue;
        walk_lines(v, at, n, line, r);
        BT_TRY(translate(v, at, n));
    }
    return BT_OK;
}

bt_status bti_validation_run(bti_validation *v, bti_validation_result *out) {
    bti_validation_result r = {.bleu = NAN, .chrf = NAN, .metrics = {NAN, NAN, NAN}};
    bti_loss_sum sum = {0};
    double start = bti_now();
    if (v->tally != NULL) bti_tally_clear(v->tally);
    if (v->scorer != NULL) bti_scorer_clear(v->scorer);
    BT_TRY(run_blocks(v, &sum, &r));
    if (v->tally != NULL) r.metrics = bti_tally_metrics(v->tally);
    if (v->scorer != NULL) {
        bt_scores scores;
        bti_scorer_finish(v->scorer, &scores);
        r.bleu = scores.bleu;
        r.chrf = scores.chrf;
        for (int i = 0; i < BTI_SAMPLES; i++) r.translation[i] = v->translation[i];
    }
    r.loss = sum.loss / (double)sum.rows;
    r.nll = sum.nll / (double)sum.rows;
    r.perplexity = exp(r.nll);
    r.score = score_of(v, &r);
    r.seconds = bti_now() - start;
    *out = r;
    return BT_OK;
}
