/* The run file: YAML (libyaml's document tree) and overrides are first gathered as text, one slot a
 * key; then the key table is gone through once, in order, and each slot or default is read into its
 * field. So the order of a file does not matter, and each message knows where its value came from.
 */
#include "core/model/head.h"
#include "core/run/run_file.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/files.h"
#include "core/base/text.h"
#include "core/run/run_gather.h"

typedef struct reader {
    bti_gathered g;
    char *dir; /* absolute, for relative paths */
    bti_run_config *cfg;
} reader;

/* ---- reading into the fields -------------------------------------------------------------------
 */

/* The slot that decides a key: its own or the one it takes its default from. NULL: neither given;
 * *fallback is then the default's text or NULL. */
static const bti_slot *find_slot(const reader *r, const bti_key *key, const char **fallback) {
    for (;;) {
        const bti_slot *s = &r->g.slots[key - bti_keys];
        *fallback = key->fallback;
        if (s->from.name != NULL) return s;
        if (key->fallback == NULL || key->fallback[0] != '=') return NULL;
        key = &bti_keys[bti_key_find(key->fallback + 1)];
    }
}

/* Sets the field that `base` has for a key to what is in the slot; NULL: to the fallback. */
static bt_status set_field(const reader *r, void *base, const bti_key *key, const bti_slot *s,
                           const char *fallback, const char *path) {
    if (s == NULL) return fallback ? bti_key_set(base, key, fallback, r->dir) : BT_OK;
    bt_status status = s->is_list ? bti_key_set_list(base, key, s->text, s->count, r->dir)
                                  : bti_key_set(base, key, s->text[0], r->dir);
    if (status != BT_EINPUT) return status;
    return bti_fail_at(s->from, "%s: %s", path, bt_last_error());
}

static bt_status apply_items(reader *r) {
    bti_feature_inputs *list = &r->cfg->data.features;
    list->item = bti_alloc(r->g.item_count, sizeof *list->item);
    if (list->item == NULL) return BT_ENOMEM;
    list->count = r->g.item_count;
    for (size_t i = 0; i < list->count; i++)
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
            char path[BTI_PATH_BYTES];
            const bti_key *key = &bti_feature_keys[k];
            const bti_slot *s = &r->g.items[i].slots[k];
            snprintf(path, sizeof path, "%s.%zu.%s", bti_features_key()->path, i, key->path);
            BT_TRY(set_field(r, &list->item[i], key, s->from.name ? s : NULL, key->fallback, path));
        }
    return BT_OK;
}

static bt_status apply(reader *r, const bti_key *key) {
    const char *fallback;
    const bti_slot *s = find_slot(r, key, &fallback);
    if (key->type == BTI_KEY_ITEMS && s != NULL && s->is_list) return apply_items(r);
    return set_field(r, r->cfg, key, s, fallback, key->path);
}

static int given(const reader *r, const char *path) {
    return r->g.slots[bti_key_find(path)].from.name != NULL;
}

/* Where a fault of two keys together is to be mended: at the override, else at the first one that
 * was given. */
static bti_origin blame(const reader *r, const char *a, const char *b) {
    const char *fallback;
    const bti_slot *x = find_slot(r, &bti_keys[bti_key_find(a)], &fallback);
    const bti_slot *y = find_slot(r, &bti_keys[bti_key_find(b)], &fallback);
    if (y != NULL && (x == NULL || (y->from.line == BTI_FROM_SET && x->from.line != BTI_FROM_SET)))
        x = y;
    return x != NULL ? x->from : (bti_origin){r->g.name, BTI_FROM_FILE};
}

static bt_status check_missing(const reader *r) {
    const bti_run_config *c = r->cfg;
    char list[256] = "";
    const int text[] = {c->data.train_source.count > 0, c->data.train_target.count > 0};
    int need_model[2];
    for (int side = 0; side < 2; side++) /* what is missing itself will need one */
        need_model[side] = c->tokenizer[side].model == NULL &&
                           (text[side] || (side == 0 ? c->data.features.count == 0
                                                     : c->data.train_labels.count == 0));
    const struct {
        const char *name;
        int missing;
    } need[] = {
        {"output", c->output == NULL},
        {"data.train.source", !text[0] && c->data.features.count == 0},
        {"data.train.target", !text[1] && c->data.train_labels.count == 0},
        {"tokenizer.model", need_model[0] && need_model[1]},
        {"tokenizer.source.model", need_model[0] && !need_model[1]},
        {"tokenizer.target.model", need_model[1] && !need_model[0]},
    };
    for (size_t i = 0; i < sizeof need / sizeof need[0]; i++) {
        size_t used = strlen(list);
        if (need[i].missing)
            snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", need[i].name);
    }
    if (list[0] == 0) return BT_OK;
    return bti_fail(BT_EINPUT, "%s: missing: %s", r->g.name, list);
}

static bt_status check_files(const reader *r, const bti_files *source, const bti_files *target,
                             const char *source_key, const char *target_key) {
    if (source->count == target->count || source->count == 0 || target->count == 0) return BT_OK;
    return bti_fail_at(
        blame(r, target_key, source_key),
        "%s has %zu files and %s has %zu; the n-th of one belongs to the n-th of the "
        "other",
        source_key, source->count, target_key, target->count);
}

/* The name of what differs between the two sides; NULL when they are one tokeniser. */
const char *bti_tokenizers_differ(const bti_run_config *c) {
    const bti_tokenizer_config *a = &c->tokenizer[0], *b = &c->tokenizer[1];
    if (a->kind != b->kind) return "kind";
    if (a->model == NULL || b->model == NULL) return a->model == b->model ? NULL : "model";
    if (strcmp(a->model, b->model) != 0) return "model";
    if (a->size != b->size) return "size";
    if (a->min_count != b->min_count) return "min_count";
    int given = (a->vocabulary != NULL) + (b->vocabulary != NULL);
    return given == 1 || (given == 2 && strcmp(a->vocabulary, b->vocabulary) != 0) ? "vocabulary"
                                                                                   : NULL;
}

static bt_status settle_vocabulary(reader *r) {
    bti_run_config *c = r->cfg;
    const char *differs = bti_tokenizers_differ(c);
    if (differs != NULL && c->shared && given(r, "tokenizer.shared"))
        return bti_fail_at(blame(r, "tokenizer.shared", "tokenizer.source.model"),
                           "tokenizer.shared is true, but the two sides differ in %s", differs);
    if (differs != NULL) c->shared = 0;
    if (c->shared || c->model.tie != BTI_TIE_ALL) return BT_OK;
    if (given(r, "model.tie_embeddings"))
        return bti_fail_at(blame(r, "model.tie_embeddings", "tokenizer.shared"),
                           "model.tie_embeddings all needs one vocabulary for both sides "
                           "(tokenizer.shared); use target or none");
    c->model.tie = BTI_TIE_TARGET;
    return BT_OK;
}

/* What has a training part needs a held-out one, and the other way round, unless nothing has. */
static bt_status check_parts(const reader *r) {
    const bti_run_config *c = r->cfg;
    const struct {
        const char *key[2]; /* of the training part, of the held-out one */
        size_t count[2];
    } part[] = {{{"data.train.source", "data.valid.source"},
                 {c->data.train_source.count, c->data.valid_source.count}},
                {{"data.train.target", "data.valid.target"},
                 {c->data.train_target.count, c->data.valid_target.count}},
                {{"data.labels.train", "data.labels.valid"},
                 {c->data.train_labels.count, c->data.valid_labels.count}}};
    enum { PARTS = sizeof part / sizeof part[0] };
    const char *any = NULL; /* what makes the run have a held-out part */
    for (int i = 0; i < PARTS; i++)
        if (any == NULL && part[i].count[1] > 0) any = part[i].key[1];
    for (size_t i = 0; i < c->data.features.count; i++)
        if (any == NULL && c->data.features.item[i].valid.count > 0) any = bti_features_key()->path;
    if (any == NULL) return BT_OK;
    for (int i = 0; i < PARTS; i++) {
        int has = part[i].count[1] > 0;
        if ((part[i].count[0] > 0) != has)
            return bti_fail_at(
                blame(r, part[i].key[has], any),
                "%s is given, %s is not: the held-out part needs all that the training "
                "part has, and nothing else",
                part[i].key[has], part[i].key[!has]);
    }
    for (size_t i = 0; i < c->data.features.count; i++)
        if (c->data.features.item[i].valid.count == 0)
            return bti_fail_at(r->g.items[i].from, "%s.%zu: missing: valid, for the held-out part",
                               bti_features_key()->path, i);
    return BT_OK;
}

static bt_status check_features(const reader *r) {
    const bti_feature_inputs *list = &r->cfg->data.features;
    for (size_t i = 0; i < list->count; i++) {
        const bti_feature_input *f = &list->item[i];
        bti_origin at = r->g.items[i].from;
        const char *key = bti_features_key()->path;
        if (f->name == NULL || f->train.count == 0)
            return bti_fail_at(at, "%s.%zu: missing: %s%s%s", key, i, f->name ? "" : "name",
                               f->name || f->train.count ? "" : ", ",
                               f->train.count ? "" : "train");
        for (size_t k = 0; k < i; k++)
            if (strcmp(f->name, list->item[k].name) == 0)
                return bti_fail_at(at, "%s.%zu.name: \"%s\" is the name of %s.%zu", key, i, f->name,
                                   key, k);
    }
    return BT_OK;
}

/* The head that the data ask for, and what goes with it. */
static bt_status settle_head(reader *r) {
    bti_run_config *c = r->cfg;
    bti_model_config *m = &c->model;
    int labels = c->data.train_labels.count > 0, text = c->data.train_target.count > 0;
    if (labels && !text && !given(r, "model.head")) m->head = BTI_HEAD_CLASSIFICATION;
    int decoder = m->head == BTI_HEAD_DECODER;
    if (decoder ? !text : !labels)
        return bti_fail_at(blame(r, "model.head", "data.labels.train"),
                           "model.head %s learns from %s", bti_head_of(m)->name,
                           decoder ? "data.train.target" : "data.labels.train");
    if (!decoder && !given(r, "model.decoder_layers")) m->decoder_layers = 0;
    if (decoder != (m->decoder_layers > 0))
        return bti_fail_at(blame(r, "model.decoder_layers", "model.head"),
                           "model.decoder_layers is %lld, model.head %s %s",
                           (long long)m->decoder_layers, bti_head_of(m)->name,
                           decoder ? "needs some" : "has none");
    static const bti_metric best[] = {BTI_METRIC_BLEU, BTI_METRIC_ACCURACY, BTI_METRIC_F1,
                                      BTI_METRIC_LOSS};
    bti_metric *metric = &c->validation.metric;
    if (!given(r, "validation.metric")) *metric = best[m->head];
    if (m->learned_rows > 0 && m->fusion != BTI_FUSION_CONCAT)
        return bti_fail_at(blame(r, "model.learned_rows", "model.fusion"),
                           "model.learned_rows are rows of a sequence: they go with model.fusion "
                           "concat");
    return BT_OK;
}

static bt_status settle_features(reader *r) {
    const bti_feature_inputs *list = &r->cfg->data.features;
    bti_model_config *m = &r->cfg->model;
    if (list->count > BTI_MAX_FEATURES)
        return bti_fail_at(blame(r, "data.features", "data.features"),
                           "data.features has %zu entries, at most %d are read", list->count,
                           BTI_MAX_FEATURES);
    m->features = (int32_t)list->count;
    for (size_t i = 0; i < list->count; i++) {
        const bti_feature_input *f = &list->item[i];
        m->feature[i] = (bti_feature_config){
            .name = f->name, .width = f->width, .rows = f->max_rows, .norm = f->norm};
    }
    return BT_OK;
}

/* What must fit together, and defaults that depend on other values. */
static bt_status settle(reader *r) {
    bti_run_config *c = r->cfg;
    BT_TRY(check_missing(r));
    BT_TRY(check_features(r));
    BT_TRY(settle_features(r));
    BT_TRY(settle_head(r));
    BT_TRY(check_parts(r));
    BT_TRY(check_files(r, &c->data.train_source, &c->data.train_target, "data.train.source",
                       "data.train.target"));
    BT_TRY(check_files(r, &c->data.valid_source, &c->data.valid_target, "data.valid.source",
                       "data.valid.target"));
    if ((c->schedule.kind == BTI_SCHEDULE_LINEAR || c->schedule.kind == BTI_SCHEDULE_COSINE) &&
        c->training.updates == 0)
        return bti_fail_at(
            blame(r, "schedule.kind", "training.updates"),
            "schedule.kind linear and cosine end at training.updates, which is 0 here: "
            "give the number of updates");
    if (c->model.d_model % c->model.heads != 0)
        return bti_fail_at(blame(r, "model.heads", "model.d_model"),
                           "model.heads %lld does not divide model.d_model %lld",
                           (long long)c->model.heads, (long long)c->model.d_model);
    if (c->training.updates == 0 && c->training.epochs == 0)
        return bti_fail_at(
            blame(r, "training.updates", "training.epochs"),
            "training.updates and training.epochs are both 0: the run would not end");
    if (c->training.precision == BTI_PRECISION_FP16 &&
        c->training.loss_scale > c->training.loss_scale_max)
        return bti_fail_at(blame(r, "training.loss_scale", "training.loss_scale_max"),
                           "training.loss_scale %g is above training.loss_scale_max %g",
                           c->training.loss_scale, c->training.loss_scale_max);
    BT_TRY(settle_vocabulary(r));
    c->model.position_rows = c->data.max_length;
    for (int side = 0; side < 2; side++) {
        bti_tokenizer_config *t = &c->tokenizer[side];
        if (t->kind != BTI_TOKENIZER_SPACY || t->model == NULL || t->vocabulary != NULL) continue;
        t->vocabulary = bti_tokenizer_trained_file(t);
        if (t->vocabulary == NULL) return BT_ENOMEM;
    }
    if (c->data.cache == NULL) c->data.cache = bti_path_join(c->output, "cache");
    return c->data.cache != NULL ? BT_OK : BT_ENOMEM;
}

static bt_status fill(reader *r, const char *text, const char *const *sets, size_t set_count) {
    BT_TRY(bti_gather_file(&r->g, text));
    for (size_t i = 0; i < set_count; i++) BT_TRY(bti_gather_set(&r->g, sets[i]));
    for (int i = 0; i < BTI_KEYS; i++) BT_TRY(apply(r, &bti_keys[i]));
    return settle(r);
}

/* The folder of a file, absolute. */
static char *absolute_dir(const char *file) {
    char cwd[4096];
    char *dir = bti_path_dir(file);
    if (dir == NULL || dir[0] == '/') return dir;
    if (getcwd(cwd, sizeof cwd) == NULL) {
        bti_fail(BT_EIO, "the current folder cannot be told");
        bti_free(dir);
        return NULL;
    }
    char *whole = strcmp(dir, ".") == 0 ? bti_strdup(cwd) : bti_path_join(cwd, dir);
    bti_free(dir);
    return whole;
}

bt_status bti_run_config_parse(const char *name, const char *text, const char *const *sets,
                               size_t set_count, bti_run_config **out) {
    bt_status status = BT_ENOMEM;
    bti_numbers numbers = bti_numbers_begin();
    reader *r = bti_alloc(1, sizeof *r);
    if (r == NULL) goto done;
    r->g.name = name;
    r->dir = absolute_dir(name);
    r->cfg = bti_alloc(1, sizeof *r->cfg);
    if (r->dir == NULL || r->cfg == NULL) goto done;
    if ((r->cfg->path = bti_strdup(name)) == NULL) goto done;
    status = fill(r, text, sets, set_count);
    if (status != BT_OK) goto done;
    *out = r->cfg;
    r->cfg = NULL;
done:
    if (r != NULL) {
        bti_gathered_clear(&r->g);
        bti_run_config_free(r->cfg);
        bti_free(r->dir);
    }
    bti_free(r);
    bti_numbers_end(numbers);
    return status;
}

bt_status bti_run_config_load(const char *path, const char *const *sets, size_t set_count,
                              bti_run_config **out) {
    char *text;
    size_t bytes;
    BT_TRY(bti_file_read(path, &text, &bytes));
    bt_status status =
        strlen(text) == bytes
            ? bti_run_config_parse(path, text, sets, set_count, out)
            : bti_fail(BT_EINPUT, "%s: not a text: byte %zu is 00", path, strlen(text) + 1);
    bti_free(text);
    return status;
}

void bti_run_config_free(bti_run_config *cfg) {
    if (cfg == NULL) return;
    for (int i = 0; i < BTI_KEYS; i++) bti_key_clear(cfg, &bti_keys[i]);
    bti_free(cfg->path);
    bti_free(cfg);
}

bt_status bt_run_load(const char *path, const char *const *sets, size_t set_count, bt_run **out) {
    return bti_run_config_load(path, sets, set_count, out);
}

void bt_run_free(bt_run *run) { bti_run_config_free(run); }
