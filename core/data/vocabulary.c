/* bt_vocab_*: tokenisers for people and other programs: training one, looking at it, text to ids
 * and ids to text. */
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/data/train_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct bt_vocab {
    const char *kind;
    char *model;
    bti_tokenizer *tokenizer;
};

static const char *const kind_names[BTI_TOKENIZER_KINDS] = {
    [BTI_TOKENIZER_SENTENCEPIECE] = "sentencepiece",
    [BTI_TOKENIZER_XLMR] = "xlmr",
    [BTI_TOKENIZER_WORDS] = "words",
    [BTI_TOKENIZER_SPACY] = "spacy",
};

/* The strings of `out` are those of `in`. */
static bt_status read_config(const bt_vocab_config *in, bti_tokenizer_config *out) {
    int kind = 0;
    if (in->kind == NULL || in->model == NULL)
        return bti_fail(BT_EUSAGE, "a tokeniser needs its kind and its file");
    while (kind < BTI_TOKENIZER_KINDS && strcmp(in->kind, kind_names[kind]) != 0) kind++;
    if (kind == BTI_TOKENIZER_KINDS)
        return bti_fail(BT_EUSAGE,
                        "there is no tokeniser \"%s\": sentencepiece, xlmr, words or spacy",
                        in->kind);
    if (in->vocabulary != NULL && kind != BTI_TOKENIZER_SPACY)
        return bti_fail(BT_EUSAGE, "only spacy has a word list beside its file, %s has not",
                        in->kind);
    *out = (bti_tokenizer_config){.kind = (bti_tokenizer_kind)kind,
                                  .model = (char *)(uintptr_t)in->model,
                                  .vocabulary = (char *)(uintptr_t)in->vocabulary,
                                  .size = in->size,
                                  .min_count = in->min_count ? in->min_count : 1};
    return BT_OK;
}

/* The file that is made must be none of those that are read. */
static bt_status check_trained(const bti_tokenizer_config *c, const char *const *files,
                               size_t count) {
    bt_status status = BT_OK;
    char *made = bti_tokenizer_trained_file(c);
    if (made == NULL) return BT_ENOMEM;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        if (bti_file_same(made, files[i]))
            status = bti_fail(BT_EUSAGE, "%s is the same file as the input %s", made, files[i]);
    if (status == BT_OK && c->kind == BTI_TOKENIZER_SPACY && bti_file_same(made, c->model))
        status = bti_fail(BT_EUSAGE, "%s is the same file as the input %s", made, c->model);
    bti_free(made);
    return status;
}

bt_status bt_vocab_train(const bt_vocab_config *config, const char *const *files, size_t count) {
    bti_tokenizer_config c;
    BT_TRY(read_config(config, &c));
    if (c.size < 1) return bti_fail(BT_EUSAGE, "a tokeniser of how many symbols? size is not set");
    if (count == 0) return bti_fail(BT_EUSAGE, "there is no text to train %s on", c.model);
    for (size_t i = 0; i < count; i++) /* it is read more than once */
        if (strcmp(files[i], "-") == 0)
            return bti_fail(BT_EUSAGE, "a tokeniser is trained on files, not on standard input");
    BT_TRY(check_trained(&c, files, count));
    return bti_tokenizer_train(&c, files, count);
}

bt_status bt_vocab_open(const bt_vocab_config *config, bt_vocab **out) {
    bti_tokenizer_config c;
    BT_TRY(read_config(config, &c));
    bt_vocab *v = bti_alloc(1, sizeof *v);
    if (v == NULL) return BT_ENOMEM;
    static char none[] = "";
    bt_status s = BT_ENOMEM;
    char *words = bti_tokenizer_trained_file(&c);
    v->kind = kind_names[c.kind];
    v->model = bti_strdup(c.model);
    if (words == NULL || v->model == NULL) goto fail;
    if (c.kind == BTI_TOKENIZER_SPACY && c.vocabulary == NULL && !bti_file_exists(words))
        c.vocabulary = none;
    s = bti_tokenizer_open(&c, &v->tokenizer);
    if (s != BT_OK) goto fail;
    bti_free(words);
    *out = v;
    return BT_OK;
fail:
    bti_free(words);
    bt_vocab_free(v);
    return s;
}

void bt_vocab_free(bt_vocab *v) {
    if (v == NULL) return;
    bti_tokenizer_free(v->tokenizer);
    bti_free(v->model);
    bti_free(v);
}

/* ---- what it is ------------------------------------------------------------------------------ */

enum { SPECIALS = 4 };
static const char *const special_names[SPECIALS] = {"start", "end", "unknown", "pad"};

static void specials(const bt_vocab *v, int32_t id[SPECIALS]) {
    bti_special_ids s = bti_tokenizer_specials(v->tokenizer);
    id[0] = s.start;
    id[1] = s.end;
    id[2] = s.unk;
    id[3] = s.pad;
}

static int64_t shown(const bt_vocab *v, int64_t pieces) {
    int64_t size = bti_tokenizer_size(v->tokenizer);
    return pieces < size ? pieces : size;
}

bt_status bt_vocab_text(const bt_vocab *v, int64_t pieces, char **text) {
    bti_text out = {0};
    int32_t id[SPECIALS];
    specials(v, id);
    bti_text_add(&out, "%s %s: %" PRId64 " symbols, checksum %016" PRIx64 "\n", v->kind, v->model,
                 bti_tokenizer_size(v->tokenizer), bti_tokenizer_checksum(v->tokenizer));
    for (int i = 0; i < SPECIALS; i++)
        if (id[i] >= 0)
            bti_text_add(&out, "  %-8s %8d  %s\n", special_names[i], (int)id[i],
                         bti_tokenizer_piece(v->tokenizer, id[i]));
        else
            bti_text_add(&out, "  %-8s     none\n", special_names[i]);
    for (int64_t i = 0; i < shown(v, pieces); i++)
        bti_text_add(&out, "%s%8" PRId64 "  %s\n", i ? "" : "\n", i,
                     bti_tokenizer_piece(v->tokenizer, (int32_t)i));
    return bti_text_take(&out, text);
}

/* Bytes that are no text become U+FFFD there; NULL without memory. */
static json_t *text_json(const char *text, size_t bytes) {
    json_t *j = json_stringn(text, bytes);
    return j ? j : json_string("\xEF\xBF\xBD");
}

bt_status bt_vocab_json(const bt_vocab *v, int64_t pieces, char **json) {
    int32_t id[SPECIALS];
    char sum[24];
    specials(v, id);
    snprintf(sum, sizeof sum, "%016" PRIx64, bti_tokenizer_checksum(v->tokenizer));
    json_t *special = json_object(), *list = json_array();
    for (int i = 0; i < SPECIALS; i++)
        json_object_set_new(special, special_names[i],
                            id[i] >= 0 ? json_integer(id[i]) : json_null());
    for (int64_t i = 0; i < shown(v, pieces); i++) {
        const char *piece = bti_tokenizer_piece(v->tokenizer, (int32_t)i);
        json_array_append_new(list, text_json(piece, strlen(piece)));
    }
    return bti_json_take(json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "kind", v->kind, "model",
                                   v->model, "size", (json_int_t)bti_tokenizer_size(v->tokenizer),
                                   "checksum", sum, "specials", special, "pieces", list),
                         JSON_INDENT(2), json);
}

/* ---- text to ids ----------------------------------------------------------------------------- */

static bt_status encode_text(const bt_vocab *v, const char *line, size_t bytes, char **out) {
    bti_text text = {0};
    bti_ids ids = {0};
    bt_status s = bti_tokenizer_encode(v->tokenizer, line, bytes, &ids);
    for (int64_t i = 0; i < ids.count && s == BT_OK; i++)
        bti_text_add(&text, "%s%d", i ? " " : "", (int)ids.id[i]);
    bti_ids_free(&ids);
    if (s == BT_OK) return bti_text_take(&text, out);
    bti_free(text.text);
    return s;
}

typedef struct token_lists {
    json_t *tokens, *ids;
} token_lists;

static bt_status add_token(void *user, const char *token, size_t bytes, int32_t id) {
    token_lists *l = user;
    int failed = json_array_append_new(l->tokens, text_json(token, bytes)) != 0 ||
                 json_array_append_new(l->ids, json_integer(id)) != 0;
    return failed ? bti_fail(BT_ENOMEM, "no host memory for JSON") : BT_OK;
}

static bt_status encode_json(const bt_vocab *v, const char *line, size_t bytes, char **out) {
    token_lists l = {json_array(), json_array()};
    bt_status s = bti_tokenizer_tokens(v->tokenizer, line, bytes, add_token, &l);
    json_t *root = json_pack("{s:o, s:o}", "tokens", l.tokens, "ids", l.ids);
    if (s == BT_OK) return bti_json_take(root, 0, out);
    json_decref(root);
    return s;
}

bt_status bt_vocab_encode(const bt_vocab *v, const char *const *files, size_t count, int json,
                          bt_line_fn fn, void *user) {
    bti_train_text text = {.files = files, .count = count};
    const char *line;
    size_t bytes;
    bt_status s;
    while ((s = bti_train_text_next(&text, &line, &bytes)) == BT_OK && line != NULL) {
        char *out;
        s = json ? encode_json(v, line, bytes, &out) : encode_text(v, line, bytes, &out);
        if (s != BT_OK) break;
        s = fn(user, out);
        bti_free(out);
        if (s != BT_OK) break;
    }
    bti_train_text_close(&text);
    return s;
}

/* ---- ids to text ----------------------------------------------------------------------------- */

/* Numbers between blanks. */
static bt_status read_ids(const bt_vocab *v, const bti_train_text *at, const char *line,
                          bti_ids *ids) {
    int64_t size = bti_tokenizer_size(v->tokenizer);
    ids->count = 0;
    for (const char *p = line + strspn(line, " \t"); *p; p += strspn(p, " \t")) {
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        int whole = end > p && (*end == 0 || *end == ' ' || *end == '\t');
        if (!whole || errno != 0 || id < 0 || id >= size)
            return bti_fail(BT_EINPUT,
                            "%s: line %" PRId64 ": \"%.*s\" is not an id from 0 to %" PRId64,
                            at->files[at->file - 1], bti_reader_line(at->reader),
                            (int)strcspn(p, " \t"), p, size - 1);
        BT_TRY(bti_ids_push(ids, (int32_t)id));
        p = end;
    }
    return BT_OK;
}

bt_status bt_vocab_decode(const bt_vocab *v, const char *const *files, size_t count, bt_line_fn fn,
                          void *user) {
    bti_train_text text = {.files = files, .count = count};
    bti_ids ids = {0};
    const char *line;
    size_t bytes;
    bt_status s;
    while ((s = bti_train_text_next(&text, &line, &bytes)) == BT_OK && line != NULL) {
        char *out;
        s = read_ids(v, &text, line, &ids);
        if (s == BT_OK) s = bti_tokenizer_decode(v->tokenizer, ids.id, ids.count, &out);
        if (s != BT_OK) break;
        s = fn(user, out);
        bti_free(out);
        if (s != BT_OK) break;
    }
    bti_train_text_close(&text);
    bti_ids_free(&ids);
    return s;
}
