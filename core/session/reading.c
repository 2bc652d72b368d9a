/* What a session reads: tokenisers, text, features, labels; or what it assumes in their place. */
#include <string.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/unknown.h"
#include "core/model/head.h"
#include "core/session/session_parts.h"
#include "core/session/validation.h"

int bti_session_has_text(const bti_session *s, int side) {
    const bti_run_config *c = s->cfg;
    if (side == 1) return bti_has_decoder(&c->model) && c->data.train_target.count > 0;
    return c->data.train_source.count > 0;
}

static bti_corpus_config corpus_config(const bti_session *s) {
    const bti_run_config *c = s->cfg;
    return (bti_corpus_config){.source = c->data.train_source,
                               .target = bti_session_has_text(s, 1) ? c->data.train_target
                                                                    : (bti_files){0},
                               .max_length = c->data.max_length,
                               .overlong = c->data.overlong,
                               .stop = s->stop};
}

/* Trains the tokeniser of a side when its file is absent; a shared one sees both sides' text. */
static bt_status make_tokenizer(const bti_session *s, int side) {
    const bti_run_config *c = s->cfg;
    const bti_tokenizer_config *t = &c->tokenizer[side];
    const bti_files *files[2] = {&c->data.train_source, &c->data.train_target};
    char *file = bti_tokenizer_trained_file(t);
    if (file == NULL) return BT_ENOMEM;
    int there = bti_file_exists(file);
    if (!there && t->size > 0)
        bti_log(BT_LOG_INFO, "training a tokeniser of %lld pieces: %s", (long long)t->size, file);
    bti_free(file);
    if (there || t->size == 0) return BT_OK;
    bti_corpus_config corpus = corpus_config(s);
    BT_TRY(bti_corpus_check(&corpus, NULL));
    int first = c->shared ? 0 : side, last = c->shared ? 1 : side;
    const char **list = bti_alloc(files[0]->count + files[1]->count, sizeof *list);
    if (list == NULL) return BT_ENOMEM;
    size_t n = 0;
    for (int f = first; f <= last; f++)
        for (size_t i = 0; i < files[f]->count; i++) list[n++] = files[f]->path[i];
    bt_status status = bti_tokenizer_train(t, list, n);
    bti_free(list);
    return status;
}

static const char *const side_name[] = {"source", "target"};

/* Lines in which unknown characters are looked for. */
#define SAMPLE_LINES 20000

/* How much of a side its tokeniser does not know; of `tokens`, end symbols not counted. */
static void say_unknown(const bti_session *s, int side, int64_t unknown, int64_t tokens) {
    const bti_files *files = side ? &s->cfg->data.train_target : &s->cfg->data.train_source;
    double share = tokens > 0 ? 100.0 * (double)unknown / (double)tokens : 0;
    char *chars = NULL;
    if (unknown == 0) return;
    if (share >= 1) /* the text was read already: what fails here only shortens the message */
        (void)bti_unknown_sample(s->tokenizer[side], files, SAMPLE_LINES, &chars);
    bti_log(share >= 1 ? BT_LOG_WARN : BT_LOG_INFO,
            "%.*f %% of the %s tokens (%s%s) are unknown to the tokeniser%s%s", share >= 1 ? 1 : 3,
            share, side_name[side], files->path[0], files->count > 1 ? " and others" : "",
            chars && chars[0] ? "; most frequent characters of such: " : "", chars ? chars : "");
    bti_free(chars);
}

/* Does the tokeniser know nothing of a side but blanks? */
static int knows_nothing(const bti_session *s, int side) {
    int32_t unk = bti_tokenizer_specials(s->tokenizer[side]).unk;
    for (int64_t i = 0; i < bti_corpus_count(s->corpus); i++) {
        int64_t n;
        const int32_t *ids =
            side ? bti_corpus_target(s->corpus, i, &n) : bti_corpus_source(s->corpus, i, &n);
        for (int64_t k = 0; k < n - 1; k++) /* the last one is the end symbol */
            if (ids[k] != unk &&
                strcmp(bti_tokenizer_piece(s->tokenizer[side], ids[k]), "\xE2\x96\x81") != 0)
                return 0;
    }
    return 1;
}

/* A text of which nothing is known was made for another tokeniser. */
static bt_status check_unknown(const bti_session *s) {
    for (int side = 0; side < 2 && !s->cfg->data.allow_unknown; side++) {
        if (s->tokenizer[side] == NULL) continue;
        const bti_files *files = side ? &s->cfg->data.train_target : &s->cfg->data.train_source;
        if (knows_nothing(s, side))
            return bti_fail(BT_EINPUT,
                            "%s: all %s tokens are unknown to the tokeniser %s: is it the right "
                            "one? data.allow_unknown: true trains all the same",
                            files->path[0], side_name[side], s->cfg->tokenizer[side].model);
    }
    return BT_OK;
}

/* What was left out or cut, and how much the tokenisers do not know. */
static void say_text(const bti_session *s) {
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    const char *unit = bti_session_has_pairs(s) ? "pairs" : "lines";
    const int64_t unknown[] = {c->source_unknown, c->target_unknown};
    const int64_t ids[] = {c->source_ids, c->target_ids};
    if (c->empty > 0)
        bti_log(BT_LOG_WARN, "%lld %s skipped (%s), first at line %lld", (long long)c->empty, unit,
                bti_session_has_pairs(s) ? "empty side" : "empty", (long long)c->first_empty_line);
    if (c->overlong > 0)
        bti_log(BT_LOG_WARN, "%lld %s longer than data.max_length %lld %s, first at line %lld",
                (long long)c->overlong, unit, (long long)s->cfg->data.max_length,
                s->cfg->data.overlong == BTI_OVERLONG_SKIP ? "skipped" : "cut",
                (long long)c->first_overlong_line);
    for (int i = 0; i < 2; i++)
        if (s->tokenizer[i] != NULL)
            say_unknown(s, i, unknown[i], ids[i] - bti_corpus_count(s->corpus));
    if (bti_session_has_pairs(s))
        bti_log(BT_LOG_INFO, "%lld pairs, %lld source and %lld target tokens",
                (long long)bti_corpus_count(s->corpus), (long long)c->source_ids,
                (long long)c->target_ids);
    else
        bti_log(BT_LOG_INFO, "%lld lines, %lld %s tokens", (long long)bti_corpus_count(s->corpus),
                (long long)(c->source_ids + c->target_ids), side_name[bti_session_has_text(s, 1)]);
}

/* Texts of a part, of the sides that have any. */
static bt_status open_corpus(const bti_session *s, bti_corpus_config c, bti_corpus **out) {
    if (c.source.count + c.target.count == 0) return BT_OK;
    BT_TRY(bti_corpus_open(&c, s->tokenizer[0], s->tokenizer[1], s->cfg->data.cache, out));
    if (bti_corpus_count(*out) > 0) return BT_OK;
    const bti_files *files = bti_corpus_files(&c, c.source.count == 0);
    return bti_fail(BT_EINPUT, "%s holds no line to use", files->path[0]);
}

static bt_status open_valid(bti_session *s) {
    const bti_run_config *c = s->cfg;
    if (!bti_validates(c) || s->assumed) return BT_OK;
    bti_corpus_config valid = corpus_config(s);
    valid.source = c->data.valid_source;
    valid.target = bti_session_has_text(s, 1) ? c->data.valid_target : (bti_files){0};
    valid.overlong = BTI_OVERLONG_TRUNCATE;
    BT_TRY(open_corpus(s, valid, &s->valid));
    return bti_examples_open(c, BTI_PART_VALID, s->valid, &s->train, s->stop, &s->held_out);
}

bt_status bti_session_tokenizers(bti_session *s) {
    const bti_run_config *c = s->cfg;
    int both = bti_session_has_text(s, 0) && bti_session_has_text(s, 1);
    for (int side = 0; side < 2; side++) {
        if (!bti_session_has_text(s, side) || (side == 1 && both && c->shared)) continue;
        BT_TRY(make_tokenizer(s, side));
        BT_TRY(bti_tokenizer_open(&c->tokenizer[side], &s->tokenizer[side]));
    }
    if (both && c->shared) s->tokenizer[1] = s->tokenizer[0];
    return BT_OK;
}

/* Symbols of a side of whose text nothing is read: as many as its tokeniser's file has, or as the
 * run file says. */
static bt_status assume_vocabulary(bti_session *s, int side) {
    const bti_tokenizer_config *t = &s->cfg->tokenizer[side];
    char *file = bti_tokenizer_trained_file(t);
    if (file == NULL) return BT_ENOMEM;
    int there = bti_file_exists(file);
    bti_free(file);
    if (there) BT_TRY(bti_tokenizer_open(t, &s->tokenizer[side]));
    s->vocab[side] = there ? bti_tokenizer_size(s->tokenizer[side]) : t->size;
    if (s->vocab[side] > 0) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "%s is not there: give its number of symbols, tokenizer.size, to plan "
                    "without it",
                    t->model);
}

static bt_status assume_features(const bti_session *s) {
    const bti_model_config *m = &s->shape;
    for (int32_t f = 0; f < m->features; f++)
        if (m->feature[f].width == 0 || m->feature[f].rows == 0)
            return bti_fail(BT_EINPUT, "feature %s: give its width and max_rows to plan without %s",
                            m->feature[f].name, s->cfg->data.features.item[f].train.path[0]);
    if (m->head != BTI_HEAD_DECODER && m->outputs == 0)
        return bti_fail(BT_EINPUT, "give model.outputs to plan without labels");
    return BT_OK;
}

/* Nothing is read. */
static bt_status assume_examples(bti_session *s) {
    const bti_run_config *c = s->cfg;
    for (int side = 0; side < 2; side++) {
        if (!bti_session_has_text(s, side)) s->lengths[side] = 0;
        if (bti_session_has_text(s, side) && s->lengths[side] == 0)
            return bti_fail(BT_EUSAGE, "assumed pairs need %s tokens", side_name[side]);
    }
    for (int side = 0; side < 2; side++)
        if (s->lengths[side] > c->data.max_length)
            return bti_fail(BT_EUSAGE,
                            "assumed pairs of %lld source and %lld target tokens are longer than "
                            "data.max_length %lld",
                            (long long)s->lengths[0], (long long)s->lengths[1],
                            (long long)c->data.max_length);
    for (int side = 0; side < 2; side++)
        if (bti_session_has_text(s, side) &&
            !(side == 1 && c->shared && bti_session_has_text(s, 0)))
            BT_TRY(assume_vocabulary(s, side));
    if (c->shared && bti_session_has_text(s, 0) && bti_session_has_text(s, 1)) {
        s->tokenizer[1] = s->tokenizer[0];
        s->vocab[1] = s->vocab[0];
    }
    return assume_features(s);
}

/* What only the files say of the model. */
static void take_shape(bti_session *s) {
    bti_model_config *m = &s->shape;
    for (int32_t f = 0; f < m->features; f++) {
        int64_t most = bti_examples_most_rows(&s->train, f);
        if (s->held_out.inputs.features > 0 && bti_examples_most_rows(&s->held_out, f) > most)
            most = bti_examples_most_rows(&s->held_out, f);
        m->feature[f].width = bti_features_width(s->train.inputs.feature[f]);
        if (m->feature[f].rows == 0) m->feature[f].rows = most;
    }
    if (m->head != BTI_HEAD_DECODER && m->outputs == 0) m->outputs = s->train.outputs;
}

bt_status bti_session_read(bti_session *s) {
    const bti_run_config *c = s->cfg;
    s->shape = c->model;
    if (s->assumed) return assume_examples(s);
    BT_TRY(bti_session_tokenizers(s));
    for (int side = 0; side < 2; side++)
        s->vocab[side] = bti_session_has_text(s, side) ? bti_tokenizer_size(s->tokenizer[side]) : 0;
    bti_corpus_config corpus = corpus_config(s);
    for (int side = 0; side < 2; side++)
        if (bti_session_has_text(s, side))
            bti_log(BT_LOG_INFO, "reading %s", bti_corpus_files(&corpus, side)->path[0]);
    BT_TRY(open_corpus(s, corpus, &s->corpus));
    if (s->corpus != NULL) say_text(s);
    if (s->corpus != NULL) BT_TRY(check_unknown(s));
    BT_TRY(bti_examples_open(c, BTI_PART_TRAIN, s->corpus, NULL, s->stop, &s->train));
    if (s->train.count == 0) return bti_fail(BT_EINPUT, "%s: no example to train on", c->path);
    BT_TRY(open_valid(s));
    take_shape(s);
    return bti_batcher_new(s->corpus, s->train.count, c->training.batch, c->training.batch_unit,
                           c->training.seed, &s->batcher);
}
