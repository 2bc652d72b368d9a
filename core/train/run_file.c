/* The run file: YAML (libyaml's document tree) and overrides are first gathered as text, one slot a
 * key; then the key table is gone through once, in order, and each slot or default is read into its
 * field. So the order of a file does not matter, and each message knows where its value came from.
 */
#include "core/train/run_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "core/base/files.h"
#include "core/train/run_keys.h"

/* Where a value was given. */
typedef struct origin {
    const char *name; /* the file, or the text of the override */
    int64_t line;     /* in the file; OVERRIDE, or WHOLE for what belongs to no line */
} origin;
enum { OVERRIDE = 0, WHOLE = -1 };

typedef struct slot {
    origin from; /* name NULL: not given */
    char **text;
    size_t count;
    int is_list;
} slot;

/* An entry of data.features. */
typedef struct item {
    origin from;
    slot slots[BTI_FEATURE_KEYS];
} item;

typedef struct reader {
    const char *name; /* of the file */
    char *dir;        /* absolute, for relative paths */
    slot slots[BTI_KEYS];
    item *items;
    size_t item_count;
    bti_run_config *cfg;
} reader;

/* What a value is for: its key, the slot it is kept in, and the key's full name. */
typedef struct value_place {
    const bti_key *key;
    slot *slot;
    const char *path;
} value_place;

/* The failure of a value: BT_EINPUT "FILE:LINE: text" or BT_EUSAGE "--set KEY=VALUE: text". */
static bt_status fail_at(origin at, const char *fmt, ...) BTI_PRINTF(2, 3);
static bt_status fail_at(origin at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    bt_status status = bti_vfail(at.line == OVERRIDE ? BT_EUSAGE : BT_EINPUT, fmt, ap);
    va_end(ap);
    if (at.line == OVERRIDE) return bti_fail_prefix(status, "--set %s", at.name);
    if (at.line == WHOLE) return bti_fail_prefix(status, "%s", at.name);
    return bti_fail_prefix(status, "%s:%lld", at.name, (long long)at.line);
}

static bt_status fail_unknown(origin at, const char *path) {
    char *advice = bti_key_advice(path);
    if (advice == NULL) return BT_ENOMEM;
    bt_status status = fail_at(at, "there is no key \"%s\"%s", path, advice);
    bti_free(advice);
    return status;
}

/* ---- gathering ---------------------------------------------------------------------------------
 */

static void slot_clear(slot *s) {
    for (size_t i = 0; i < s->count; i++) bti_free(s->text[i]);
    bti_free(s->text);
    *s = (slot){{NULL, 0}, NULL, 0, 0};
}

static bt_status slot_push(slot *s, const char *text) {
    char **more = bti_realloc(s->text, s->count + 1, sizeof *more);
    if (more == NULL) return BT_ENOMEM;
    s->text = more;
    if ((more[s->count] = bti_strdup(text)) == NULL) return BT_ENOMEM;
    s->count++;
    return BT_OK;
}

static origin node_origin(const reader *r, const yaml_node_t *node) {
    return (origin){r->name, (int64_t)node->start_mark.line + 1};
}

/* The text of a scalar; NULL for another node, for an empty value and for one that holds a NUL. */
static const char *scalar_text(const yaml_node_t *node) {
    if (node->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length) return NULL;
    int plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (text[0] == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)) return NULL;
    return text;
}

static void items_clear(reader *r) {
    for (size_t i = 0; i < r->item_count; i++)
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) slot_clear(&r->items[i].slots[k]);
    bti_free(r->items);
    r->items = NULL;
    r->item_count = 0;
}

static bt_status gather_items(reader *r, yaml_document_t *doc, const yaml_node_t *node, origin at);

static bt_status gather_value(reader *r, yaml_document_t *doc, value_place t,
                              const yaml_node_t *node, origin at) {
    char what[512];
    const char *text = scalar_text(node);
    bti_key_describe(t.key, what, sizeof what);
    slot_clear(t.slot);
    t.slot->from = at;
    if (t.key->type == BTI_KEY_ITEMS) items_clear(r);
    if (text != NULL) return slot_push(t.slot, text);
    if (node->type == YAML_SCALAR_NODE)
        return fail_at(at, "%s has no value; it must be %s", t.path, what);
    if (node->type == YAML_MAPPING_NODE)
        return fail_at(at, "%s must be %s, not a group of keys", t.path, what);
    t.slot->is_list = 1;
    if (t.key->type == BTI_KEY_ITEMS) return gather_items(r, doc, node, at);
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        text = scalar_text(yaml_document_get_node(doc, *i));
        if (text == NULL) return fail_at(at, "%s must be %s", t.path, what);
        BT_TRY(slot_push(t.slot, text));
    }
    return BT_OK;
}

enum { KEY_BYTES = 256 };

static value_place place_of(reader *r, int key) {
    return (value_place){&bti_keys[key], &r->slots[key], bti_keys[key].path};
}

static const bti_key *features_key(void) { return &bti_keys[bti_key_find("data.features")]; }

/* The place of key `word` in an entry, whose full name is written to `path`. */
static bt_status find_item_key(reader *r, size_t entry, const char *word, origin at,
                               char path[KEY_BYTES], value_place *out) {
    snprintf(path, KEY_BYTES, "%s.%zu.%.100s", features_key()->path, entry, word);
    for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
        *out = (value_place){&bti_feature_keys[k], &r->items[entry].slots[k], path};
        if (strcmp(word, bti_feature_keys[k].path) == 0) return BT_OK;
    }
    char list[KEY_BYTES] = "";
    for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                 bti_feature_keys[k].path);
    }
    return fail_at(at, "there is no key \"%s\"; allowed here: %s", path, list);
}

static bt_status gather_item(reader *r, yaml_document_t *doc, size_t entry,
                             const yaml_node_t *node) {
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start;
         p < node->data.mapping.pairs.top; p++) {
        char path[KEY_BYTES];
        value_place t;
        const yaml_node_t *name = yaml_document_get_node(doc, p->key);
        const char *word = scalar_text(name);
        origin at = r->items[entry].from;
        if (at.line != OVERRIDE) at = node_origin(r, name);
        if (word == NULL) return fail_at(at, "a key must be a word");
        BT_TRY(find_item_key(r, entry, word, at, path, &t));
        if (t.slot->from.name != NULL)
            return fail_at(at, "%s is given twice, first in line %lld", path,
                           (long long)t.slot->from.line);
        BT_TRY(gather_value(r, doc, t, yaml_document_get_node(doc, p->value), at));
    }
    return BT_OK;
}

/* The entries of data.features. */
static bt_status gather_items(reader *r, yaml_document_t *doc, const yaml_node_t *node, origin at) {
    const yaml_node_item_t *start = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - start);
    char what[512];
    bti_key_describe(features_key(), what, sizeof what);
    r->items = bti_alloc(count, sizeof *r->items);
    if (r->items == NULL) return BT_ENOMEM;
    r->item_count = count;
    for (size_t i = 0; i < count; i++) {
        const yaml_node_t *entry = yaml_document_get_node(doc, start[i]);
        r->items[i].from = at.line == OVERRIDE ? at : node_origin(r, entry);
        if (entry->type != YAML_MAPPING_NODE)
            return fail_at(r->items[i].from, "%s must be %s", features_key()->path, what);
        BT_TRY(gather_item(r, doc, i, entry));
    }
    return BT_OK;
}

static bt_status gather_group(reader *r, yaml_document_t *doc, const char *group,
                              const yaml_node_t *node);

static bt_status gather_pair(reader *r, yaml_document_t *doc, const char *group,
                             const yaml_node_t *name, const yaml_node_t *value) {
    char path[KEY_BYTES];
    origin at = node_origin(r, name);
    const char *word = scalar_text(name);
    if (word == NULL) return fail_at(at, "a key must be a word");
    if (strchr(word, '.') != NULL)
        return fail_at(at, "\"%s\": in a file a dot is a level of nesting, not part of a key",
                       word);
    snprintf(path, sizeof path, "%s%s%.100s", group, group[0] ? "." : "", word);
    int key = bti_key_find(path);
    if (key >= 0) return gather_value(r, doc, place_of(r, key), value, at);
    if (!bti_key_is_group(path)) return fail_unknown(at, path);
    if (value->type == YAML_SCALAR_NODE && value->data.scalar.length == 0) return BT_OK;
    if (value->type == YAML_MAPPING_NODE) return gather_group(r, doc, path, value);
    char *list = bti_key_list(path);
    if (list == NULL) return BT_ENOMEM;
    bt_status status = fail_at(at, "%s must be a group of keys: %s", path, list);
    bti_free(list);
    return status;
}

/* A key given twice is refused, groups included: YAML itself would let the last one win. */
static bt_status gather_group(reader *r, yaml_document_t *doc, const char *group,
                              const yaml_node_t *node) {
    const yaml_node_pair_t *start = node->data.mapping.pairs.start;
    for (const yaml_node_pair_t *p = start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = yaml_document_get_node(doc, p->key);
        for (const yaml_node_pair_t *q = start; q < p; q++) {
            const yaml_node_t *before = yaml_document_get_node(doc, q->key);
            const char *a = scalar_text(name), *b = scalar_text(before);
            if (a != NULL && b != NULL && strcmp(a, b) == 0)
                return fail_at(node_origin(r, name), "%s%s%s is given twice, first in line %lld",
                               group, group[0] ? "." : "", a,
                               (long long)node_origin(r, before).line);
        }
        BT_TRY(gather_pair(r, doc, group, name, yaml_document_get_node(doc, p->value)));
    }
    return BT_OK;
}

static bt_status fail_yaml(origin at, const yaml_parser_t *p) {
    if (at.line != OVERRIDE && p->error != YAML_READER_ERROR)
        at.line = (int64_t)p->problem_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR) return bti_fail(BT_ENOMEM, "out of memory in YAML");
    if (p->error == YAML_READER_ERROR)
        return fail_at(at, "not YAML: %s at byte %zu", p->problem, p->problem_offset);
    return fail_at(at, "not YAML: %s", p->problem ? p->problem : "cannot be read");
}

/* Hands the root of the one document in `text` to gather_group (to NULL) or gather_value. */
static bt_status gather_text(reader *r, origin at, const char *text, const value_place *to) {
    yaml_parser_t parser;
    yaml_document_t doc, rest;
    bt_status status = BT_OK;
    if (!yaml_parser_initialize(&parser)) return bti_fail(BT_ENOMEM, "out of memory in YAML");
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    if (!yaml_parser_load(&parser, &doc)) {
        status = fail_yaml(at, &parser);
        goto done;
    }
    const yaml_node_t *root = yaml_document_get_root_node(&doc);
    if (root == NULL)
        ; /* an empty file: what is missing is told later */
    else if (to != NULL)
        status = gather_value(r, &doc, *to, root, at);
    else if (root->type != YAML_MAPPING_NODE)
        status =
            fail_at(node_origin(r, root), "a run file is a group of keys, such as \"output:\"");
    else
        status = gather_group(r, &doc, "", root);
    yaml_document_delete(&doc);
    if (status != BT_OK || root == NULL) goto done;
    if (!yaml_parser_load(&parser, &rest)) {
        status = fail_yaml(at, &parser);
        goto done;
    }
    root = yaml_document_get_root_node(&rest);
    if (root != NULL) status = fail_at(node_origin(r, root), "a run file is one YAML document");
    yaml_document_delete(&rest);
done:
    yaml_parser_delete(&parser);
    return status;
}

/* data.features.0.train: an entry that is there, from 0. */
static bt_status find_in_item(reader *r, const char *path, origin at, char full[KEY_BYTES],
                              value_place *out) {
    char *end;
    const char *index = path + strlen(features_key()->path) + 1;
    size_t digits = strspn(index, "0123456789");
    unsigned long entry = strtoul(index, &end, 10);
    if (digits == 0 || digits > 9 || *end != '.')
        return fail_at(at, "an entry's key is written %s.0.train", features_key()->path);
    if (entry >= r->item_count)
        return fail_at(at, "%s has %zu entries, counted from 0; all at once: --set '%s=[{...}]'",
                       features_key()->path, r->item_count, features_key()->path);
    return find_item_key(r, entry, end + 1, at, full, out);
}

static bt_status find_place(reader *r, const char *path, origin at, char full[KEY_BYTES],
                            value_place *out) {
    int index = bti_key_find(path);
    size_t n = strlen(features_key()->path);
    if (index >= 0) {
        *out = place_of(r, index);
        return BT_OK;
    }
    if (strncmp(path, features_key()->path, n) == 0 && path[n] == '.')
        return find_in_item(r, path, at, full, out);
    if (bti_key_is_group(path)) return fail_at(at, "%s is a group; set one of its keys", path);
    return fail_unknown(at, path);
}

static bt_status gather_set(reader *r, const char *set) {
    char path[KEY_BYTES], full[KEY_BYTES];
    value_place to;
    origin at = {set, OVERRIDE};
    const char *equals = strchr(set, '=');
    if (equals == NULL || equals == set || equals - set >= KEY_BYTES)
        return fail_at(at, "an override is written key=value");
    snprintf(path, sizeof path, "%.*s", (int)(equals - set), set);
    BT_TRY(find_place(r, path, at, full, &to));
    bti_key_type type = to.key->type;
    if ((type == BTI_KEY_PATHS || type == BTI_KEY_NAMES || type == BTI_KEY_ITEMS) &&
        equals[1] == '[')
        return gather_text(r, at, equals + 1, &to);
    if (type == BTI_KEY_ITEMS) items_clear(r);
    slot_clear(to.slot);
    to.slot->from = at;
    return slot_push(to.slot, equals + 1);
}

/* ---- reading into the fields -------------------------------------------------------------------
 */

/* The slot that decides a key: its own or the one it takes its default from. NULL: neither given;
 * *fallback is then the default's text or NULL. */
static const slot *find_slot(const reader *r, const bti_key *key, const char **fallback) {
    for (;;) {
        const slot *s = &r->slots[key - bti_keys];
        *fallback = key->fallback;
        if (s->from.name != NULL) return s;
        if (key->fallback == NULL || key->fallback[0] != '=') return NULL;
        key = &bti_keys[bti_key_find(key->fallback + 1)];
    }
}

/* Sets the field that `base` has for a key to what is in the slot; NULL: to the fallback. */
static bt_status set_field(const reader *r, void *base, const bti_key *key, const slot *s,
                           const char *fallback, const char *path) {
    if (s == NULL) return fallback ? bti_key_set(base, key, fallback, r->dir) : BT_OK;
    bt_status status = s->is_list ? bti_key_set_list(base, key, s->text, s->count, r->dir)
                                  : bti_key_set(base, key, s->text[0], r->dir);
    if (status != BT_EINPUT) return status;
    return fail_at(s->from, "%s: %s", path, bt_last_error());
}

static bt_status apply_items(reader *r) {
    bti_feature_inputs *list = &r->cfg->data.features;
    list->item = bti_alloc(r->item_count, sizeof *list->item);
    if (list->item == NULL) return BT_ENOMEM;
    list->count = r->item_count;
    for (size_t i = 0; i < list->count; i++)
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
            char path[KEY_BYTES];
            const bti_key *key = &bti_feature_keys[k];
            const slot *s = &r->items[i].slots[k];
            snprintf(path, sizeof path, "%s.%zu.%s", features_key()->path, i, key->path);
            BT_TRY(set_field(r, &list->item[i], key, s->from.name ? s : NULL, key->fallback, path));
        }
    return BT_OK;
}

static bt_status apply(reader *r, const bti_key *key) {
    const char *fallback;
    const slot *s = find_slot(r, key, &fallback);
    if (key->type == BTI_KEY_ITEMS && s != NULL && s->is_list) return apply_items(r);
    return set_field(r, r->cfg, key, s, fallback, key->path);
}

static int given(const reader *r, const char *path) {
    return r->slots[bti_key_find(path)].from.name != NULL;
}

/* Where a fault of two keys together is to be mended: at the override, else at the first one that
 * was given. */
static origin blame(const reader *r, const char *a, const char *b) {
    const char *fallback;
    const slot *x = find_slot(r, &bti_keys[bti_key_find(a)], &fallback);
    const slot *y = find_slot(r, &bti_keys[bti_key_find(b)], &fallback);
    if (y != NULL && (x == NULL || (y->from.line == OVERRIDE && x->from.line != OVERRIDE))) x = y;
    return x != NULL ? x->from : (origin){r->name, WHOLE};
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
    return bti_fail(BT_EINPUT, "%s: missing: %s", r->name, list);
}

static bt_status check_files(const reader *r, const bti_files *source, const bti_files *target,
                             const char *source_key, const char *target_key) {
    if (source->count == target->count || source->count == 0 || target->count == 0) return BT_OK;
    return fail_at(blame(r, target_key, source_key),
                   "%s has %zu files and %s has %zu; the n-th of one belongs to the n-th of the "
                   "other",
                   source_key, source->count, target_key, target->count);
}

/* The name of what differs between the two sides; NULL when they are one tokeniser. */
static const char *tokenizers_differ(const bti_run_config *c) {
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
    const char *differs = tokenizers_differ(c);
    if (differs != NULL && c->shared && given(r, "tokenizer.shared"))
        return fail_at(blame(r, "tokenizer.shared", "tokenizer.source.model"),
                       "tokenizer.shared is true, but the two sides differ in %s", differs);
    if (differs != NULL) c->shared = 0;
    if (c->shared || c->model.tie != BTI_TIE_ALL) return BT_OK;
    if (given(r, "model.tie_embeddings"))
        return fail_at(blame(r, "model.tie_embeddings", "tokenizer.shared"),
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
        if (any == NULL && c->data.features.item[i].valid.count > 0) any = features_key()->path;
    if (any == NULL) return BT_OK;
    for (int i = 0; i < PARTS; i++) {
        int has = part[i].count[1] > 0;
        if ((part[i].count[0] > 0) != has)
            return fail_at(blame(r, part[i].key[has], any),
                           "%s is given, %s is not: the held-out part needs all that the training "
                           "part has, and nothing else",
                           part[i].key[has], part[i].key[!has]);
    }
    for (size_t i = 0; i < c->data.features.count; i++)
        if (c->data.features.item[i].valid.count == 0)
            return fail_at(r->items[i].from, "%s.%zu: missing: valid, for the held-out part",
                           features_key()->path, i);
    return BT_OK;
}

static bt_status check_features(const reader *r) {
    const bti_feature_inputs *list = &r->cfg->data.features;
    for (size_t i = 0; i < list->count; i++) {
        const bti_feature_input *f = &list->item[i];
        origin at = r->items[i].from;
        const char *key = features_key()->path;
        if (f->name == NULL || f->train.count == 0)
            return fail_at(at, "%s.%zu: missing: %s%s%s", key, i, f->name ? "" : "name",
                           f->name || f->train.count ? "" : ", ", f->train.count ? "" : "train");
        for (size_t k = 0; k < i; k++)
            if (strcmp(f->name, list->item[k].name) == 0)
                return fail_at(at, "%s.%zu.name: \"%s\" is the name of %s.%zu", key, i, f->name,
                               key, k);
    }
    return BT_OK;
}

/* What must fit together, and defaults that depend on other values. */
static bt_status settle(reader *r) {
    bti_run_config *c = r->cfg;
    BT_TRY(check_missing(r));
    BT_TRY(check_features(r));
    BT_TRY(check_parts(r));
    BT_TRY(check_files(r, &c->data.train_source, &c->data.train_target, "data.train.source",
                       "data.train.target"));
    BT_TRY(check_files(r, &c->data.valid_source, &c->data.valid_target, "data.valid.source",
                       "data.valid.target"));
    if ((c->schedule.kind == BTI_SCHEDULE_LINEAR || c->schedule.kind == BTI_SCHEDULE_COSINE) &&
        c->training.updates == 0)
        return fail_at(blame(r, "schedule.kind", "training.updates"),
                       "schedule.kind linear and cosine end at training.updates, which is 0 here: "
                       "give the number of updates");
    if (c->model.d_model % c->model.heads != 0)
        return fail_at(blame(r, "model.heads", "model.d_model"),
                       "model.heads %lld does not divide model.d_model %lld",
                       (long long)c->model.heads, (long long)c->model.d_model);
    if (c->training.updates == 0 && c->training.epochs == 0)
        return fail_at(blame(r, "training.updates", "training.epochs"),
                       "training.updates and training.epochs are both 0: the run would not end");
    if (c->training.precision == BTI_PRECISION_FP16 &&
        c->training.loss_scale > c->training.loss_scale_max)
        return fail_at(blame(r, "training.loss_scale", "training.loss_scale_max"),
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
    BT_TRY(gather_text(r, (origin){r->name, WHOLE}, text, NULL));
    for (size_t i = 0; i < set_count; i++) BT_TRY(gather_set(r, sets[i]));
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
    r->name = name;
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
        for (int i = 0; i < BTI_KEYS; i++) slot_clear(&r->slots[i]);
        items_clear(r);
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

/* ---- printing ----------------------------------------------------------------------------------
 */

/* A growing text; a failed put leaves what there was. */
typedef struct writer {
    char *text;
    size_t used, room;
    bt_status status;
} writer;

static void put(writer *w, const char *fmt, ...) BTI_PRINTF(2, 3);
static void put(writer *w, const char *fmt, ...) {
    va_list ap, again;
    if (w->status != BT_OK) return;
    va_start(ap, fmt);
    va_copy(again, ap);
    size_t n = (size_t)vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (w->used + n + 1 > w->room) {
        size_t room = 2 * (w->used + n + 1);
        char *more = bti_realloc(w->text, room, 1);
        if (more == NULL) w->status = BT_ENOMEM;
        if (more != NULL) w->text = more, w->room = room;
    }
    if (w->status == BT_OK) vsnprintf(w->text + w->used, n + 1, fmt, again);
    if (w->status == BT_OK) w->used += n;
    va_end(again);
}

static bt_status finish(writer *w, char **text) {
    if (w->status == BT_OK)
        *text = w->text;
    else
        bti_free(w->text);
    return w->status;
}

/* Of the tokeniser's keys those are printed that say it all: the common ones when the sides agree,
 * else the sides'. */
static int is_printed(const char *path, int sides_agree) {
    if (strncmp(path, "tokenizer.", 10) != 0 || strcmp(path, "tokenizer.shared") == 0) return 1;
    return (strchr(path + 10, '.') == NULL) == sides_agree;
}

/* Puts the lines of the groups that `path` opens after the key `before`, then the key itself. */
static void put_key(writer *w, const char *before, const char *path, const char *value) {
    int depth = 0;
    const char *word = path;
    for (const char *dot; (dot = strchr(word, '.')) != NULL; word = dot + 1, depth++) {
        size_t n = (size_t)(dot - path) + 1;
        if (strncmp(before, path, n) != 0)
            put(w, "%*s%.*s:\n", 2 * depth, "", (int)(dot - word), word);
    }
    put(w, "%*s%s: %s\n", 2 * depth, "", word, value);
}

bt_status bti_run_config_print(const bti_run_config *cfg, char **text) {
    writer w = {NULL, 0, 0, BT_OK};
    bti_numbers numbers = bti_numbers_begin();
    int agree = tokenizers_differ(cfg) == NULL;
    const char *before = "";
    for (int i = 0; i < BTI_KEYS && w.status == BT_OK; i++) {
        const bti_key *key = &bti_keys[i];
        if (!is_printed(key->path, agree) || bti_key_is_absent(cfg, key)) continue;
        char *value = bti_key_print(cfg, key);
        if (value != NULL)
            put_key(&w, before, key->path, value);
        else
            w.status = BT_ENOMEM;
        bti_free(value);
        before = key->path;
    }
    bti_numbers_end(numbers);
    return finish(&w, text);
}

static char *print_or_none(const bti_run_config *cfg, const bti_key *key) {
    return bti_key_is_absent(cfg, key) ? bti_strdup("none") : bti_key_print(cfg, key);
}

bt_status bti_run_config_compare(const bti_run_config *was, const bti_run_config *is,
                                 bti_run_differ_fn each, void *user) {
    bt_status status = BT_OK;
    bti_numbers numbers = bti_numbers_begin();
    for (int i = 0; i < BTI_KEYS && status == BT_OK; i++) {
        char *a = print_or_none(was, &bti_keys[i]), *b = print_or_none(is, &bti_keys[i]);
        if (a == NULL || b == NULL)
            status = BT_ENOMEM;
        else if (strcmp(a, b) != 0)
            each(user, bti_keys[i].path, a, b);
        bti_free(a);
        bti_free(b);
    }
    bti_numbers_end(numbers);
    return status;
}

/* ---- public ------------------------------------------------------------------------------------
 */

bt_status bt_run_load(const char *path, const char *const *sets, size_t set_count, bt_run **out) {
    return bti_run_config_load(path, sets, set_count, out);
}

void bt_run_free(bt_run *run) { bti_run_config_free(run); }

bt_status bt_run_text(const bt_run *run, char **text) { return bti_run_config_print(run, text); }

static void put_help(writer *w, const char *path, const bti_key *key) {
    char what[512];
    bti_key_describe(key, what, sizeof what);
    const char *fallback = key->fallback ? key->fallback : "-";
    int follows = fallback[0] == '=';
    put(w, "%-24s %s%-*s %s (%s)\n", path, follows ? "as " : "", follows ? 21 : 24,
        fallback + follows, key->help, what);
}

bt_status bt_run_keys(char **text) {
    writer w = {NULL, 0, 0, BT_OK};
    bti_numbers numbers = bti_numbers_begin();
    for (int i = 0; i < BTI_KEYS; i++) {
        put_help(&w, bti_keys[i].path, &bti_keys[i]);
        for (int k = 0; k < BTI_FEATURE_KEYS && bti_keys[i].type == BTI_KEY_ITEMS; k++) {
            char path[KEY_BYTES];
            snprintf(path, sizeof path, "%s.N.%s", bti_keys[i].path, bti_feature_keys[k].path);
            put_help(&w, path, &bti_feature_keys[k]);
        }
    }
    bti_numbers_end(numbers);
    return finish(&w, text);
}
