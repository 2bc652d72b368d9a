#include "core/session/validation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/status.h"

struct bti_validation {
    const bti_run_config *cfg;
    const bti_examples *examples;
    const bti_tokenizer *target;
    bti_engine *engine;
    const volatile sig_atomic_t *stop;
    bti_decoder *decoder;
    int64_t n;
    bti_sentence *sentence;
    bti_source *source;
    const bti_source **sorted; /* by length */
    bti_hypothesis *best;
    char **text[2]; /* lines of the source and of the reference */
    char **translation;
    float *outputs; /* without a decoder: of the examples of a block */
    int64_t block;
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

/* Lines of the files whose numbers the corpus has; others are left out, as it left them out. */
static bt_status read_lines(const bti_files *files, const bti_corpus *corpus, char **out) {
    int64_t number = 0, next = 0, n = bti_corpus_count(corpus);
    for (size_t f = 0; f < files->count; f++) {
        bti_reader *r;
        const char *line;
        size_t bytes;
        BT_TRY(bti_reader_open(files->path[f], &r));
        bti_reader_quiet(r);
        bt_status status;
        while ((status = bti_reader_next(r, &line, &bytes)) == BT_OK && line != NULL && next < n) {
            if (++number != bti_corpus_line(corpus, next)) continue;
            out[next] = bti_alloc(bytes + 1, 1);
            if (out[next] == NULL) {
                status = BT_ENOMEM;
                break;
            }
            memcpy(out[next++], line, bytes);
        }
        bti_reader_close(r);
        BT_TRY(status);
    }
    return BT_OK;
}

static int shorter(const void *a, const void *b) {
    const bti_source *x = *(const bti_source *const *)a, *y = *(const bti_source *const *)b;
    if (x->count != y->count) return x->count < y->count ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* What translations and their scores need. */
static bt_status take_text(bti_validation *v, int64_t batch) {
    size_t n = (size_t)v->n;
    const bti_engine *e = v->engine;
    const bti_corpus *corpus = v->examples->corpus;
    v->source = bti_alloc(n, sizeof *v->source);
    v->sorted = bti_alloc(n, sizeof *v->sorted);
    v->best = bti_alloc(n, sizeof *v->best);
    v->text[0] = bti_alloc(n, sizeof **v->text);
    v->text[1] = bti_alloc(n, sizeof **v->text);
    v->translation = bti_alloc(n, sizeof *v->translation);
    if (v->source == NULL || v->sorted == NULL || v->best == NULL || v->text[0] == NULL ||
        v->text[1] == NULL || v->translation == NULL)
        return BT_ENOMEM;
    for (int64_t i = 0; i < v->n; i++) {
        const bti_sentence *s = &v->sentence[i];
        v->source[i] = (bti_source){.ids = s->ids[0], .count = s->count[0], .input = s};
        v->sorted[i] = &v->source[i];
    }
    qsort(v->sorted, n, sizeof *v->sorted, shorter);
    BT_TRY(read_lines(&v->cfg->data.valid_source, corpus, v->text[0]));
    BT_TRY(read_lines(&v->cfg->data.valid_target, corpus, v->text[1]));
    bti_decoder_config decoding = bti_validation_decoding(v->cfg, v->target, v->stop);
    BT_TRY(bti_decoder_new(e->model, e->plan->step->planning, &e->plan->step->info,
                           &e->plan->places, e->plan->decode_staging, &decoding, batch,
                           &v->decoder));
    return bti_decoder_bind(v->decoder, &e->arena);
}

static bt_status take(bti_validation *v, int64_t batch) {
    const bti_model_config *m = &v->engine->model->cfg;
    v->sentence = bti_alloc((size_t)v->n, sizeof *v->sentence);
    if (v->sentence == NULL) return BT_ENOMEM;
    for (int64_t i = 0; i < v->n; i++) bti_examples_get(v->examples, i, &v->sentence[i]);
    if (bti_has_decoder(m)) return take_text(v, batch);
    v->block = v->engine->plan->caps.sentences;
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

static void free_lines(char **lines, int64_t n) {
    for (int64_t i = 0; lines != NULL && i < n; i++) bti_free(lines[i]);
    bti_free(lines);
}

void bti_validation_close(bti_validation *v) {
    if (v == NULL) return;
    bti_decoder_free(v->decoder);
    free_lines(v->translation, v->n);
    free_lines(v->text[0], v->n);
    free_lines(v->text[1], v->n);
    bti_tally_free(v->tally);
    bti_free(v->outputs);
    bti_free(v->best);
    bti_free(v->sorted);
    bti_free(v->source);
    bti_free(v->sentence);
    bti_free(v);
}

static bt_status translate(bti_validation *v) {
    for (int64_t at = 0, n; at < v->n; at += n) {
        n = bti_decoder_batch(v->decoder, v->sorted, at, v->n);
        BT_TRY(bti_decoder_run(v->decoder, v->sorted + at, n, v->best));
        for (int64_t i = 0; i < n; i++) {
            char **text = &v->translation[v->sorted[at + i] - v->source];
            bti_free(*text);
            *text = NULL;
            BT_TRY(bti_tokenizer_decode(v->target, v->best[i].ids, v->best[i].length, text));
        }
    }
    return BT_OK;
}

/* Translations, their scores, and some of them. */
static bt_status run_text(bti_validation *v, bti_validation_result *r) {
    bt_scores scores;
    BT_TRY(translate(v));
    BT_TRY(bt_score_lines((const char *const *)v->translation, (const char *const *)v->text[1],
                          (size_t)v->n, &(bt_score_options){.chrf = 1}, &scores));
    r->bleu = scores.bleu;
    r->chrf = scores.chrf;
    for (int64_t i = 0; i < BTI_SAMPLES; i++) {
        int64_t at = (2 * i + 1) * v->n / (2 * BTI_SAMPLES);
        r->source[i] = v->text[0][at];
        r->reference[i] = v->text[1][at];
        r->translation[i] = v->translation[at];
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

/* Adds the losses of all examples; their metrics. Outputs are looked at a block at a time. */
static bt_status run_examples(bti_validation *v, bti_loss_sum *sum, bti_metrics *metrics) {
    bti_tally_clear(v->tally);
    for (int64_t at = 0, n; at < v->n; at += n) {
        bti_loss_sum part;
        n = v->n - at < v->block ? v->n - at : v->block;
        BT_TRY(bti_engine_losses(v->engine, v->sentence + at, n, v->outputs, &part));
        bti_tally_add(v->tally, v->sentence + at, n, v->outputs);
        sum->loss += part.loss;
        sum->nll += part.nll;
        sum->rows += part.rows;
    }
    *metrics = bti_tally_metrics(v->tally);
    return BT_OK;
}

bt_status bti_validation_run(bti_validation *v, bti_validation_result *out) {
    bti_validation_result r = {.bleu = NAN, .chrf = NAN, .metrics = {NAN, NAN, NAN}};
    bti_loss_sum sum = {0};
    double start = bti_now();
    if (v->tally != NULL) BT_TRY(run_examples(v, &sum, &r.metrics));
    if (v->decoder != NULL) {
        BT_TRY(bti_engine_losses(v->engine, v->sentence, v->n, NULL, &sum));
        BT_TRY(run_text(v, &r));
    }
    r.loss = sum.loss / (double)sum.rows;
    r.nll = sum.nll / (double)sum.rows;
    r.perplexity = exp(r.nll);
    r.score = score_of(v, &r);
    r.seconds = bti_now() - start;
    *out = r;
    return BT_OK;
}
