/* The library as test_cli plays it, so that each answer can be had at will: it acts by the name of
 * the file it is given. */
#include "tests/kit.h"

#include <signal.h>

struct bti_run_config {
    const char *path;
};
struct bt_plan {
    int fits;
};
struct bt_translator {
    int blocks, nbest;
};

static char *copy(const char *text) { return strdup(text); }

bt_status bt_run_load(const char *path, const char *const *sets, size_t count, bt_run **out) {
    if (strcmp(path, "bad.yaml") == 0) return bti_fail(BT_EINPUT, "bad.yaml:3: no");
    for (size_t i = 0; i < count; i++) printf("set %s\n", sets[i]);
    *out = malloc(sizeof **out);
    (*out)->path = path;
    return BT_OK;
}
void bt_run_free(bt_run *run) { free(run); }
bt_status bt_run_keys(char **text) { return *text = copy("the keys\n"), BT_OK; }

bt_status bt_run_check_output(const bt_run *run, const char *path) {
    (void)run;
    if (path == NULL || strcmp(path, "train.en") != 0) return BT_OK;
    return bti_fail(BT_EUSAGE, "train.en is the same file as the input train.en");
}

bt_status bt_devices_text(char **text) { return *text = copy("cpu: ready"), BT_OK; }
bt_status bt_devices_json(char **json) { return *json = copy("{\"devices\": []}"), BT_OK; }

bt_status bt_plan_make(const bt_run *run, const bt_plan_options *o, bt_plan **out) {
    (void)run;
    printf("plan for %s in %s\n", o->device ? o->device : "-", o->memory ? o->memory : "-");
    if (o->source_tokens)
        printf("pairs of %d and %d\n", (int)o->source_tokens, (int)o->target_tokens);
    *out = malloc(sizeof **out);
    (*out)->fits = o->memory == NULL;
    return BT_OK;
}
bt_status bt_plan_svg(const bt_plan *plan, const char *path) {
    (void)plan;
    return printf("map in %s\n", path) > 0 ? BT_OK : BT_EIO;
}
bt_status bt_plan_html(const bt_plan *plan, const char *path) {
    (void)plan;
    if (strcmp(path, "/full") == 0) return bti_fail(BT_EIO, "/full: no space");
    return printf("page in %s\n", path) > 0 ? BT_OK : BT_EIO;
}
bt_status bt_plan_largest_batch_text(const bt_plan *plan, char **text) {
    (void)plan;
    return *text = copy("7 pairs\n"), BT_OK;
}
bt_status bt_plan_largest_batch_json(const bt_plan *plan, char **json) {
    (void)plan;
    return *json = copy("{\"largest_batch\": 7}"), BT_OK;
}
bt_status bt_plan_sweep_text(const bt_plan *plan, const char *svg, char **text) {
    (void)plan;
    printf("curve in %s\n", svg ? svg : "-");
    return *text = copy("a table\n"), BT_OK;
}
bt_status bt_plan_sweep_json(const bt_plan *plan, const char *svg, char **json) {
    (void)plan;
    (void)svg;
    return *json = copy("{\"sweep\": []}"), BT_OK;
}
void bt_plan_free(bt_plan *plan) { free(plan); }
int bt_plan_fits(const bt_plan *plan) { return plan->fits; }
bt_status bt_plan_text(const bt_plan *plan, char **text) {
    return *text = copy(plan->fits ? "fits\n" : "does not fit\n"), BT_OK;
}
bt_status bt_plan_json(const bt_plan *plan, char **json) {
    return *json = copy(plan->fits ? "{\"fits\": true}" : "{\"fits\": false}"), BT_OK;
}

static void play_progress(const bt_train_options *o) {
    bt_progress p = {.last_update = 4,
                     .epoch = 1,
                     .valid_score = NAN,
                     .peak_bytes = 3u << 29,
                     .unit = "example"};
    for (p.update = 1; p.update <= 4; p.update++) {
        p.kind = BT_PROGRESS_UPDATE;
        p.loss = p.update == 2 ? NAN : 8.0 / (double)p.update;
        p.target_tokens = 100;
        p.tokens_per_s = 250;
        p.seconds_left = p.update == 4 ? -1 : 3725;
        o->progress(o->user, &p);
        if (p.update != 2) continue;
        p.kind = BT_PROGRESS_VALIDATION;
        p.valid_loss = 3.25;
        p.valid_score = 12.5;
        p.valid_is_best = 1;
        o->progress(o->user, &p);
        p.kind = BT_PROGRESS_CHECKPOINT;
        p.path = "out/checkpoint";
        o->progress(o->user, &p);
        p.path = NULL;
    }
}

bt_status bt_train(const bt_run *run, const bt_train_options *o) {
    int status;
    if (strcmp(run->path, "progress.yaml") == 0) {
        play_progress(o);
    } else if (sscanf(run->path, "status-%d", &status) == 1) {
        return status ? bti_fail((bt_status)status, "as asked") : BT_OK;
    } else if (strcmp(run->path, "once.yaml") == 0) {
        raise(SIGTERM);
        return *o->stop ? bti_fail(BT_ESTOPPED, "stopped") : BT_EINTERNAL;
    } else if (strcmp(run->path, "late.yaml") == 0) {
        raise(SIGINT); /* when all is done already */
        return BT_OK;
    } else if (strcmp(run->path, "twice.yaml") == 0) {
        raise(SIGTERM);
        raise(SIGINT);
        return BT_EINTERNAL;
    }
    printf("train on %s in %s resume %d updates %lld threads %d\n", o->device ? o->device : "-",
           o->memory ? o->memory : "-", o->resume, (long long)o->updates, o->threads);
    return BT_OK;
}

bt_status bt_translator_open(const char *model, const bt_translate_options *o,
                             bt_translator **out) {
    if (strcmp(model, "damaged") == 0) return bti_fail(BT_EINPUT, "damaged: checksum differs");
    if (strcmp(model, "options") == 0)
        fprintf(stderr, "beam %d penalty %g longest %lld batch %d threads %d device %s memory %s\n",
                o->beam, o->length_penalty, (long long)o->max_length, o->batch, o->threads,
                o->device ? o->device : "-", o->memory ? o->memory : "-");
    *out = calloc(1, sizeof **out);
    (*out)->nbest = o->nbest;
    return BT_OK;
}
void bt_translator_free(bt_translator *t) { free(t); }
size_t bt_translator_examples(const bt_translator *t) { return (void)t, 0; }
int bt_translator_reads_text(const bt_translator *t) { return (void)t, 1; }
bt_status bt_predict(const char *model, const bt_predict_options *o, bt_line_fn fn, void *user,
                     bt_prediction_scores *scores) {
    printf("predict with %s, features %zu, labels %s\n", model, o->feature_count,
           o->labels ? o->labels : "-");
    *scores = (bt_prediction_scores){.examples = 1};
    return fn ? fn(user, "label") : BT_OK;
}
bt_status bt_prediction_scores_text(const bt_prediction_scores *s, char **text) {
    (void)s;
    *text = strdup("scores");
    return BT_OK;
}
bt_status bt_prediction_scores_json(const bt_prediction_scores *s, char **json) {
    return bt_prediction_scores_text(s, json);
}

bt_status bt_translate(bt_translator *t, const char *const *lines, size_t count, bt_sink_fn sink,
                       void *user) {
    t->blocks++;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(lines[i], "FAIL") == 0) return bti_fail(BT_EDEVICE, "the device is lost");
        char *text = malloc(strlen(lines[i]) + 3);
        sprintf(text, "<%s>", lines[i]);
        bt_status status = BT_OK;
        for (int k = 0; k < t->nbest && status == BT_OK; k++)
            status = sink(user, i, text, -0.5 - k);
        free(text);
        BT_TRY(status);
    }
    return BT_OK;
}

bt_status bt_score_files(const char *h, const char *r, const bt_score_options *o, bt_scores *out) {
    (void)r;
    if (strcmp(h, "options") == 0)
        fprintf(stderr, "tokenize %s lowercase %d chrf %d word order %d\n",
                o->tokenize ? o->tokenize : "-", o->lowercase, o->chrf, o->word_order);
    *out = (bt_scores){0};
    return strcmp(h, "short") == 0 ? bti_fail(BT_EINPUT, "2 lines and 1") : BT_OK;
}
bt_status bt_scores_text(const bt_scores *s, char **text) {
    return (void)s, *text = copy("BLEU = 0"), BT_OK;
}
bt_status bt_scores_json(const bt_scores *s, char **json) {
    return (void)s, *json = copy("{}"), BT_OK;
}

struct bt_vocab {
    const char *model;
};

static void show_vocab(const bt_vocab_config *c) {
    printf("%s %s %s size %lld least %lld\n", c->kind, c->model,
           c->vocabulary ? c->vocabulary : "-", (long long)c->size, (long long)c->min_count);
}

bt_status bt_vocab_train(const bt_vocab_config *c, const char *const *files, size_t count) {
    show_vocab(c);
    for (size_t i = 0; i < count; i++) printf("file %s\n", files[i]);
    return BT_OK;
}
bt_status bt_vocab_open(const bt_vocab_config *c, bt_vocab **out) {
    if (strcmp(c->model, "damaged") == 0) return bti_fail(BT_EINPUT, "damaged: no model");
    show_vocab(c);
    *out = malloc(sizeof **out);
    (*out)->model = c->model;
    return BT_OK;
}
void bt_vocab_free(bt_vocab *v) { free(v); }
bt_status bt_vocab_text(const bt_vocab *v, int64_t pieces, char **text) {
    return (void)v, *text = copy(pieces == 3 ? "3 pieces" : "pieces"), BT_OK;
}
bt_status bt_vocab_json(const bt_vocab *v, int64_t pieces, char **json) {
    return (void)v, (void)pieces, *json = copy("{\"size\": 1}"), BT_OK;
}
bt_status bt_vocab_encode(const bt_vocab *v, const char *const *files, size_t count, int json,
                          bt_line_fn fn, void *user) {
    (void)v;
    for (size_t i = 0; i < count; i++)
        BT_TRY(fn(user, kit_str("%s of %s", json ? "json" : "ids", files[i])));
    return BT_OK;
}
bt_status bt_vocab_decode(const bt_vocab *v, const char *const *files, size_t count, bt_line_fn fn,
                          void *user) {
    (void)v;
    for (size_t i = 0; i < count; i++) BT_TRY(fn(user, kit_str("text of %s", files[i])));
    return BT_OK;
}

bt_status bt_data_check_text(const bt_run *run, char **text) {
    return *text = copy(run->path), BT_OK;
}
bt_status bt_data_check_json(const bt_run *run, char **json) {
    return (void)run, *json = copy("{\"train\": 1}"), BT_OK;
}

bt_status bt_evaluate(const char *model, const char *source, const char *reference,
                      const bt_translate_options *o, bt_evaluation *out) {
    printf("%s %s %s beam %d batch %d threads %d memory %s\n", model, source, reference, o->beam,
           o->batch, o->threads, o->memory ? o->memory : "-");
    *out = (bt_evaluation){.lines = 1};
    return BT_OK;
}
bt_status bt_evaluation_text(const bt_evaluation *e, char **text) {
    return (void)e, *text = copy("loss 1"), BT_OK;
}
bt_status bt_evaluation_json(const bt_evaluation *e, char **json) {
    return (void)e, *json = copy("{\"loss\": 1}"), BT_OK;
}
