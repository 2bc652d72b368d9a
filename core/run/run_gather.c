#include "core/run/run_gather.h"

#include "core/base/files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* What a value is for: its key, the slot it is kept in, and the key's full name. */
typedef struct value_place {
    const bti_key *key;
    bti_slot *slot;
    const char *path;
} value_place;

bt_status(bti_fail_at)(bti_origin at, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    bt_status status = bti_vfail(at.line == BTI_FROM_SET ? BT_EUSAGE : BT_EINPUT, fmt, ap);
    va_end(ap);
    if (at.line == BTI_FROM_SET) return bti_fail_prefix(status, "--set %s", at.name);
    if (at.line == BTI_FROM_FILE) return bti_fail_prefix(status, "%s", at.name);
    return bti_fail_prefix(status, "%s:%lld", at.name, (long long)at.line);
}

static bt_status fail_unknown(bti_origin at, const char *path) {
    char *advice = bti_key_advice(path);
    if (advice == NULL) return BT_ENOMEM;
    bt_status status = bti_fail_at(at, "there is no key \"%s\"%s", path, advice);
    bti_free(advice);
    return status;
}

/* ---- gathering ---------------------------------------------------------------------------------
 */

static void slot_clear(bti_slot *s) {
    for (size_t i = 0; i < s->count; i++) bti_free(s->text[i]);
    bti_free(s->text);
    *s = (bti_slot){{NULL, 0}, NULL, 0, 0};
}

static bt_status slot_push(bti_slot *s, const char *text) {
    char **more = bti_realloc(s->text, s->count + 1, sizeof *more);
    if (more == NULL) return BT_ENOMEM;
    s->text = more;
    if ((more[s->count] = bti_strdup(text)) == NULL) return BT_ENOMEM;
    s->count++;
    return BT_OK;
}

static bti_origin node_origin(const bti_gathered *g, const yaml_node_t *node) {
    return (bti_origin){g->name, (int64_t)node->start_mark.line + 1};
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

static void items_clear(bti_gathered *g) {
    for (size_t i = 0; i < g->item_count; i++)
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) slot_clear(&g->items[i].slots[k]);
    bti_free(g->items);
    g->items = NULL;
    g->item_count = 0;
}

static bt_status gather_items(bti_gathered *g, yaml_document_t *doc, const yaml_node_t *node,
                              bti_origin at);

static bt_status gather_value(bti_gathered *g, yaml_document_t *doc, value_place t,
                              const yaml_node_t *node, bti_origin at) {
    char what[512];
    const char *text = scalar_text(node);
    bti_key_describe(t.key, what, sizeof what);
    slot_clear(t.slot);
    t.slot->from = at;
    if (t.key->type == BTI_KEY_ITEMS) items_clear(g);
    if (text != NULL) return slot_push(t.slot, text);
    if (node->type == YAML_SCALAR_NODE)
        return bti_fail_at(at, "%s has no value; it must be %s", t.path, what);
    if (node->type == YAML_MAPPING_NODE)
        return bti_fail_at(at, "%s must be %s, not a group of keys", t.path, what);
    t.slot->is_list = 1;
    if (t.key->type == BTI_KEY_ITEMS) return gather_items(g, doc, node, at);
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        text = scalar_text(yaml_document_get_node(doc, *i));
        if (text == NULL) return bti_fail_at(at, "%s must be %s", t.path, what);
        BT_TRY(slot_push(t.slot, text));
    }
    return BT_OK;
}

static value_place place_of(bti_gathered *g, int key) {
    return (value_place){&bti_keys[key], &g->slots[key], bti_keys[key].path};
}

const bti_key *bti_features_key(void) { return &bti_keys[bti_key_find("data.features")]; }

/* The place of key `word` in an entry, whose full name is written to `path`. */
static bt_status find_item_key(bti_gathered *g, size_t entry, const char *word, bti_origin at,
                               char path[BTI_PATH_BYTES], value_place *out) {
    snprintf(path, BTI_PATH_BYTES, "%s.%zu.%.100s", bti_features_key()->path, entry, word);
    for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
        *out = (value_place){&bti_feature_keys[k], &g->items[entry].slots[k], path};
        if (strcmp(word, bti_feature_keys[k].path) == 0) return BT_OK;
    }
    char list[BTI_PATH_BYTES] = "";
    for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
                 bti_feature_keys[k].path);
    }
    return bti_fail_at(at, "there is no key \"%s\"; allowed here: %s", path, list);
}

static bt_status gather_item(bti_gathered *g, yaml_document_t *doc, size_t entry,
                             const yaml_node_t *node) {
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start;
         p < node->data.mapping.pairs.top; p++) {
        char path[BTI_PATH_BYTES];
        value_place t;
        const yaml_node_t *name = yaml_document_get_node(doc, p->key);
        const char *word = scalar_text(name);
        bti_origin at = g->items[entry].from;
        if (at.line != BTI_FROM_SET) at = node_origin(g, name);
        if (word == NULL) return bti_fail_at(at, "a key must be a word");
        BT_TRY(find_item_key(g, entry, word, at, path, &t));
        if (t.slot->from.name != NULL) return bti_fail_at(at, "%s is given twice", path);
        BT_TRY(gather_value(g, doc, t, yaml_document_get_node(doc, p->value), at));
    }
    return BT_OK;
}

/* The entries of data.features. */
static bt_status gather_items(bti_gathered *g, yaml_document_t *doc, const yaml_node_t *node,
                              bti_origin at) {
    const yaml_node_item_t *start = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - start);
    char what[512];
    bti_key_describe(bti_features_key(), what, sizeof what);
    g->items = bti_alloc(count, sizeof *g->items);
    if (g->items == NULL) return BT_ENOMEM;
    g->item_count = count;
    for (size_t i = 0; i < count; i++) {
        const yaml_node_t *entry = yaml_document_get_node(doc, start[i]);
        g->items[i].from = at.line == BTI_FROM_SET ? at : node_origin(g, entry);
        if (entry->type != YAML_MAPPING_NODE)
            return bti_fail_at(g->items[i].from, "%s must be %s", bti_features_key()->path, what);
        BT_TRY(gather_item(g, doc, i, entry));
    }
    return BT_OK;
}

static bt_status gather_group(bti_gathered *g, yaml_document_t *doc, const char *group,
                              const yaml_node_t *node);

static bt_status gather_pair(bti_gathered *g, yaml_document_t *doc, const char *group,
                             const yaml_node_t *name, const yaml_node_t *value) {
    char path[BTI_PATH_BYTES];
    bti_origin at = node_origin(g, name);
    const char *word = scalar_text(name);
    if (word == NULL) return bti_fail_at(at, "a key must be a word");
    if (strchr(word, '.') != NULL)
        return bti_fail_at(at, "\"%s\": in a file a dot is a level of nesting, not part of a key",
                           word);
    snprintf(path, sizeof path, "%s%s%.100s", group, group[0] ? "." : "", word);
    int key = bti_key_find(path);
    if (key >= 0) return gather_value(g, doc, place_of(g, key), value, at);
    if (!bti_key_is_group(path)) return fail_unknown(at, path);
    if (value->type == YAML_SCALAR_NODE && value->data.scalar.length == 0) return BT_OK;
    if (value->type == YAML_MAPPING_NODE) return gather_group(g, doc, path, value);
    char *list = bti_key_list(path);
    if (list == NULL) return BT_ENOMEM;
    bt_status status = bti_fail_at(at, "%s must be a group of keys: %s", path, list);
    bti_free(list);
    return status;
}

/* A key given twice is refused, groups included: YAML itself would let the last one win. */
static bt_status gather_group(bti_gathered *g, yaml_document_t *doc, const char *group,
                              const yaml_node_t *node) {
    const yaml_node_pair_t *start = node->data.mapping.pairs.start;
    for (const yaml_node_pair_t *p = start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = yaml_document_get_node(doc, p->key);
        for (const yaml_node_pair_t *q = start; q < p; q++) {
            const yaml_node_t *before = yaml_document_get_node(doc, q->key);
            const char *a = scalar_text(name), *b = scalar_text(before);
            if (a != NULL && b != NULL && strcmp(a, b) == 0)
                return bti_fail_at(node_origin(g, name),
                                   "%s%s%s is given twice, first in line %lld", group,
                                   group[0] ? "." : "", a, (long long)node_origin(g, before).line);
        }
        BT_TRY(gather_pair(g, doc, group, name, yaml_document_get_node(doc, p->value)));
    }
    return BT_OK;
}

static bt_status fail_yaml(bti_origin at, const yaml_parser_t *p) {
    if (at.line != BTI_FROM_SET && p->error != YAML_READER_ERROR)
        at.line = (int64_t)p->problem_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR) return bti_fail(BT_ENOMEM, "out of memory in YAML");
    if (p->error == YAML_READER_ERROR)
        return bti_fail_at(at, "not YAML: %s at byte %zu", p->problem, p->problem_offset);
    return bti_fail_at(at, "not YAML: %s", p->problem ? p->problem : "cannot be read");
}

/* Hands the root of the one document in `text` to gather_group (to NULL) or gather_value. */
static bt_status gather_text(bti_gathered *g, bti_origin at, const char *text,
                             const value_place *to) {
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
        status = gather_value(g, &doc, *to, root, at);
    else if (root->type != YAML_MAPPING_NODE)
        status =
            bti_fail_at(node_origin(g, root), "a run file is a group of keys, such as \"output:\"");
    else
        status = gather_group(g, &doc, "", root);
    yaml_document_delete(&doc);
    if (status != BT_OK || root == NULL) goto done;
    if (!yaml_parser_load(&parser, &rest)) {
        status = fail_yaml(at, &parser);
        goto done;
    }
    root = yaml_document_get_root_node(&rest);
    if (root != NULL) status = bti_fail_at(node_origin(g, root), "a run file is one YAML document");
    yaml_document_delete(&rest);
done:
    yaml_parser_delete(&parser);
    return status;
}

/* data.features.0.train: an entry that is there, from 0. */
static bt_status find_in_item(bti_gathered *g, const char *path, bti_origin at,
                              char full[BTI_PATH_BYTES], value_place *out) {
    char *end;
    const char *index = path + strlen(bti_features_key()->path) + 1;
    size_t digits = strspn(index, "0123456789");
    unsigned long entry = strtoul(index, &end, 10);
    if (digits == 0 || digits > 9 || *end != '.')
        return bti_fail_at(at, "an entry's key is written %s.0.train", bti_features_key()->path);
    if (entry >= g->item_count)
        return bti_fail_at(at,
                           "%s has %zu entries, counted from 0; all at once: --set '%s=[{...}]'",
                           bti_features_key()->path, g->item_count, bti_features_key()->path);
    return find_item_key(g, entry, end + 1, at, full, out);
}

static bt_status find_place(bti_gathered *g, const char *path, bti_origin at,
                            char full[BTI_PATH_BYTES], value_place *out) {
    int index = bti_key_find(path);
    size_t n = strlen(bti_features_key()->path);
    if (index >= 0) {
        *out = place_of(g, index);
        return BT_OK;
    }
    if (strncmp(path, bti_features_key()->path, n) == 0 && path[n] == '.')
        return find_in_item(g, path, at, full, out);
    if (bti_key_is_group(path)) return bti_fail_at(at, "%s is a group; set one of its keys", path);
    return fail_unknown(at, path);
}

bt_status bti_gather_set(bti_gathered *g, const char *set) {
    char path[BTI_PATH_BYTES], full[BTI_PATH_BYTES];
    value_place to;
    bti_origin at = {set, BTI_FROM_SET};
    const char *equals = strchr(set, '=');
    if (equals == NULL || equals == set || equals - set >= BTI_PATH_BYTES)
        return bti_fail_at(at, "an override is written key=value");
    snprintf(path, sizeof path, "%.*s", (int)(equals - set), set);
    BT_TRY(find_place(g, path, at, full, &to));
    bti_key_type type = to.key->type;
    if ((type == BTI_KEY_PATHS || type == BTI_KEY_NAMES || type == BTI_KEY_ITEMS) &&
        equals[1] == '[')
        return gather_text(g, at, equals + 1, &to);
    if (type == BTI_KEY_ITEMS) items_clear(g);
    slot_clear(to.slot);
    to.slot->from = at;
    return slot_push(to.slot, equals + 1);
}

bt_status bti_gather_file(bti_gathered *g, const char *text) {
    text += bti_text_mark(text, strlen(text));
    return gather_text(g, (bti_origin){g->name, BTI_FROM_FILE}, text, NULL);
}

void bti_gathered_clear(bti_gathered *g) {
    for (int i = 0; i < BTI_KEYS; i++) slot_clear(&g->slots[i]);
    items_clear(g);
}
