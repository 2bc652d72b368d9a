/* The run file: YAML (libyaml's document tree) and overrides are first gathered as text, one slot a
 * key; then the key table is gone through once, in order, and each slot or default is read into its
 * field. So the order of a file does not matter, and each message knows where its value came from.
 */
#include "core/train/run_file.h"

#include <stdio.h>
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

typedef struct reader {
    const char *name; /* of the file */
    char *dir;        /* absolute, for relative paths */
    slot slots[BTI_KEYS];
    bti_run_config *cfg;
} reader;

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

static bt_status gather_value(reader *r, yaml_document_t *doc, const bti_key *key,
                              const yaml_node_t *node, origin at) {
    char what[512];
    slot *s = &r->slots[key - bti_keys];
    const char *text = scalar_text(node);
    bti_key_describe(key, what, sizeof what);
    slot_clear(s);
    s->from = at;
    if (text != NULL) return slot_push(s, text);
    if (node->type == YAML_SCALAR_NODE)
        return fail_at(at, "%s has no value; it must be %s", key->path, what);
    if (node->type == YAML_MAPPING_NODE)
        return fail_at(at, "%s must be %s, not a group of keys", key->path, what);
    s->is_list = 1;
    for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        text = scalar_text(yaml_document_get_node(doc, *i));
        if (text == NULL) return fail_at(at, "%s must be %s", key->path, what);
        BT_TRY(slot_push(s, text));
    }
    return BT_OK;
}

enum { KEY_BYTES = 256 };

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
    if (key >= 0) return gather_value(r, doc, &bti_keys[key], value, at);
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

/* Hands the root of the one document in `text` to gather_group (key NULL) or gather_value. */
static bt_status gather_text(reader *r, origin at, const char *text, const bti_key *key) {
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
    else if (key != NULL)
        status = gather_value(r, &doc, key, root, at);
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

static bt_status gather_set(reader *r, const char *set) {
    char path[KEY_BYTES];
    origin at = {set, OVERRIDE};
    const char *equals = strchr(set, '=');
    if (equals == NULL || equals == set || equals - set >= KEY_BYTES)
        return fail_at(at, "an override is written key=value");
    snprintf(path, sizeof path, "%.*s", (int)(equals - set), set);
    int index = bti_key_find(path);
    if (index < 0 && bti_key_is_group(path))
        return fail_at(at, "%s is a group; set one of its keys", path);
    if (index < 0) return fail_unknown(at, path);
    const bti_key *key = &bti_keys[index];
    if ((key->type == BTI_KEY_PATHS || key->type == BTI_KEY_NAMES || key->type == BTI_KEY_EMPTY) &&
        equals[1] == '[')
        return gather_text(r, at, equals + 1, key);
    slot_clear(&r->slots[index]);
    r->slots[index].from = at;
    return slot_push(&r->slots[index], equals + 1);
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

static bt_status apply(reader *r, const bti_key *key) {
    const char *fallback;
    const slot *s = find_slot(r, key, &fallback);
    if (s == NULL) return fallback ? bti_key_set(r->cfg, key, fallback, r->dir) : BT_OK;
    bt_status status = s->is_list ? bti_key_set_list(r->cfg, key, s->text, s->count, r->dir)
                                  : bti_key_set(r->cfg, key, s->text[0], r->dir);
    if (status != BT_EINPUT) return status;
    return fail_at(s->from, "%s: %s", key->path, bt_last_error());
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
    const struct {
        const char *name;
        int missing;
    } need[] = {
        {"output", c->output == NULL},
        {"data.train.source", c->data.train_source.count == 0},
        {"data.train.target", c->data.train_target.count == 0},
        {"tokenizer.model", c->tokenizer[0].model == NULL && c->tokenizer[1].model == NULL},
        {"tokenizer.source.model", c->tokenizer[0].model == NULL && c->tokenizer[1].model != NULL},
        {"tokenizer.target.model", c->tokenizer[0].model != NULL && c->tokenizer[1].model == NULL},
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
    if (source->count == target->count) return BT_OK;
    return fail_at(blame(r, target_key, source_key),
                   "%s has %zu files and %s has %zu; the n-th of one belongs to the n-th of the "
                   "other",
                   source_key, source->count, target_key, target->count);
}

/* The name of what differs between the two sides; NULL when they are one tokeniser. */
static const char *tokenizers_differ(const bti_run_config *c) {
    const bti_tokenizer_config *a = &c->tokenizer[0], *b = &c->tokenizer[1];
    if (a->kind != b->kind) return "kind";
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

/* What must fit together, and defaults that depend on other values. */
static bt_status settle(reader *r) {
    bti_run_config *c = r->cfg;
    BT_TRY(check_missing(r));
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
    BT_TRY(settle_vocabulary(r));
    c->model.position_rows = c->data.max_length;
    for (int side = 0; side < 2; side++) {
        bti_tokenizer_config *t = &c->tokenizer[side];
        if (t->kind == BTI_TOKENIZER_SPACY && t->vocabulary == NULL)
            t->vocabulary = bti_tokenizer_trained_file(t);
        if (t->kind == BTI_TOKENIZER_SPACY && t->vocabulary == NULL) return BT_ENOMEM;
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

bt_status bt_run_keys(char **text) {
    writer w = {NULL, 0, 0, BT_OK};
    bti_numbers numbers = bti_numbers_begin();
    for (int i = 0; i < BTI_KEYS; i++) {
        const bti_key *key = &bti_keys[i];
        char what[512];
        bti_key_describe(key, what, sizeof what);
        const char *fallback = key->fallback ? key->fallback : "-";
        int follows = fallback[0] == '=';
        put(&w, "%-24s %s%-*s %s (%s)\n", key->path, follows ? "as " : "", follows ? 21 : 24,
            fallback + follows, key->help, what);
    }
    bti_numbers_end(numbers);
    return finish(&w, text);
}
