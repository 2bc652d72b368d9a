/* The file that spaCy's Tokenizer.to_disk writes: a msgpack map of the five patterns' texts, the
 * exceptions (word to list of tokens, a token's text under key 65) and faster_heuristics. Other
 * keys (vocab) do not decide tokens. */
#include "core/data/spacy.h"

#include "core/base/status.h"
#include "core/data/corpus.h"

#include <msgpack.h>
#include <string.h>

enum { ORTH = 65 };

static const char *const names[BTI_SPACY_PATTERNS] = {
    [BTI_SPACY_PREFIX] = "prefix_search", [BTI_SPACY_SUFFIX] = "suffix_search",
    [BTI_SPACY_INFIX] = "infix_finditer", [BTI_SPACY_TOKEN_MATCH] = "token_match",
    [BTI_SPACY_URL_MATCH] = "url_match",
};

static bt_status damaged(const char *path, const char *what) {
    return bti_fail(BT_EINPUT, "%s: not a tokeniser that spaCy saved, or damaged: %s", path, what);
}

static const msgpack_object *member(const msgpack_object_map *map, const char *name) {
    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
            memcmp(key->via.str.ptr, name, key->via.str.size) == 0)
            return &map->ptr[i].val;
    }
    return NULL;
}

static bt_status read_pattern(const char *path, const msgpack_object_map *map, int which,
                              bti_spacy_rules *out) {
    const msgpack_object *v = member(map, names[which]);
    if (v == NULL || v->type == MSGPACK_OBJECT_NIL) return BT_OK;
    if (v->type != MSGPACK_OBJECT_STR) return damaged(path, names[which]);
    char *name = bti_format("%s: %s", path, names[which]);
    if (name == NULL) return BT_ENOMEM;
    int anchored = which == BTI_SPACY_TOKEN_MATCH || which == BTI_SPACY_URL_MATCH;
    bt_status s =
        bti_pattern_new(name, v->via.str.ptr, v->via.str.size, anchored, &out->pattern[which]);
    bti_free(name);
    return s;
}

/* ---- exceptions ------------------------------------------------------------------------------ */

static bt_status room_for(void **list, int64_t *room, int64_t need, size_t size) {
    if (need <= *room) return BT_OK;
    void *more = bti_realloc(*list, (size_t)(2 * need + 64), size);
    if (more == NULL) return BT_ENOMEM;
    *list = more;
    *room = 2 * need + 64;
    return BT_OK;
}

/* The text of a token; NULL when it has none. */
static const msgpack_object_str *orth(const msgpack_object *token) {
    if (token->type != MSGPACK_OBJECT_MAP) return NULL;
    for (uint32_t i = 0; i < token->via.map.size; i++) {
        const msgpack_object_kv *kv = &token->via.map.ptr[i];
        if (kv->key.type == MSGPACK_OBJECT_POSITIVE_INTEGER && kv->key.via.u64 == ORTH &&
            kv->val.type == MSGPACK_OBJECT_STR && kv->val.via.str.size > 0)
            return &kv->val.via.str;
    }
    return NULL;
}

static bt_status read_exception(const char *path, const msgpack_object_kv *kv,
                                bti_spacy_rules *out) {
    const msgpack_object_str *word = &kv->key.via.str;
    if (kv->key.type != MSGPACK_OBJECT_STR || kv->val.type != MSGPACK_OBJECT_ARRAY ||
        word->size == 0 || bti_utf8_check(word->ptr, word->size) < word->size)
        return damaged(path, "an exception that is not a word and its tokens");
    int64_t index, before = out->exceptions.count,
                   at = out->exceptions.count ? out->first[out->exceptions.count] : 0;
    int64_t tokens = kv->val.via.array.size;
    BT_TRY(bti_strings_add(&out->exceptions, word->ptr, word->size, &index));
    if (index != before) return damaged(path, "an exception that comes twice");
    BT_TRY(room_for((void **)&out->first, &out->rooms[0], index + 2, sizeof *out->first));
    BT_TRY(room_for((void **)&out->lengths, &out->rooms[1], at + tokens, sizeof *out->lengths));
    size_t used = 0;
    for (int64_t i = 0; i < tokens; i++) {
        const msgpack_object_str *o = orth(&kv->val.via.array.ptr[i]);
        int fits = o != NULL && o->size <= word->size - used &&
                   memcmp(o->ptr, word->ptr + used, o->size) == 0;
        if (!fits || bti_utf8_check(o->ptr, o->size) < o->size)
            return bti_fail(BT_EINPUT, "%s: the exception \"%.*s\": its tokens do not make it up",
                            path, (int)word->size, word->ptr);
        out->lengths[at + i] = o->size;
        used += o->size;
    }
    if (used < word->size)
        return bti_fail(BT_EINPUT, "%s: the exception \"%.*s\": its tokens do not make it up", path,
                        (int)word->size, word->ptr);
    out->first[index] = at;
    out->first[index + 1] = at + tokens;
    return BT_OK;
}

/* ---- the form -------------------------------------------------------------------------------- */

/* A number of `n` bytes, the high one first. */
static uint64_t big_endian(const unsigned char *s, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v = v << 8 | s[i];
    return v;
}

/* What stands behind the first byte of an object: bytes of a length, bytes of its own beside what
 * the length says, and how many objects each unit of the length is (0: bytes). */
typedef struct shape {
    unsigned char length, fixed, objects;
} shape;
static const shape shapes[32] = {
    /* C0 nil, (none), false, true; C4 bin; C7 ext; CA float */
    [4] = {1, 0, 0},
    [5] = {2, 0, 0},
    [6] = {4, 0, 0},
    [7] = {1, 1, 0},
    [8] = {2, 1, 0},
    [9] = {4, 1, 0},
    [10] = {0, 4, 0},
    [11] = {0, 8, 0},
    /* CC unsigned, D0 signed, D4 fixed ext */
    [12] = {0, 1, 0},
    [13] = {0, 2, 0},
    [14] = {0, 4, 0},
    [15] = {0, 8, 0},
    [16] = {0, 1, 0},
    [17] = {0, 2, 0},
    [18] = {0, 4, 0},
    [19] = {0, 8, 0},
    [20] = {0, 2, 0},
    [21] = {0, 3, 0},
    [22] = {0, 5, 0},
    [23] = {0, 9, 0},
    [24] = {0, 17, 0},
    /* D9 str, DC array, DE map */
    [25] = {1, 0, 0},
    [26] = {2, 0, 0},
    [27] = {4, 0, 0},
    [28] = {2, 0, 1},
    [29] = {4, 0, 1},
    [30] = {2, 0, 2},
    [31] = {4, 0, 2},
};

/* Is it one whole object? msgpack-c takes memory for as many members as a damaged length says
 * before it looks whether they are there. */
static int is_whole(const unsigned char *s, size_t bytes) {
    size_t at = 0;
    for (uint64_t open = 1; open > 0; open--) {
        if (at == bytes || s[at] == 0xC1) return 0;
        unsigned t = s[at++];
        uint64_t skip = 0, objects = 0;
        if (t >= 0x80 && t < 0xA0) {
            objects = (t & 15) * (t < 0x90 ? 2 : 1);
        } else if (t >= 0xA0 && t < 0xC0) {
            skip = t & 31;
        } else if (t >= 0xC0 && t < 0xE0) {
            const shape *f = &shapes[t - 0xC0];
            if (bytes - at < f->length) return 0;
            uint64_t length = big_endian(s + at, f->length);
            skip = f->length + f->fixed + (f->objects ? 0 : length);
            objects = f->objects * length;
        }
        if (skip > bytes - at || objects > bytes - at - skip) return 0;
        at += skip;
        open += objects;
    }
    return at == bytes;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bt_status read_map(const char *path, const msgpack_object_map *map, bti_spacy_rules *out) {
    const msgpack_object *exceptions = member(map, "exceptions");
    const msgpack_object *faster = member(map, "faster_heuristics");
    if (exceptions == NULL || exceptions->type != MSGPACK_OBJECT_MAP ||
        member(map, "infix_finditer") == NULL)
        return damaged(path, "no exceptions or patterns in it");
    if (faster != NULL && faster->type != MSGPACK_OBJECT_BOOLEAN)
        return damaged(path, "faster_heuristics");
    out->faster_heuristics = faster == NULL || faster->via.boolean;
    for (int i = 0; i < BTI_SPACY_PATTERNS; i++) BT_TRY(read_pattern(path, map, i, out));
    for (uint32_t i = 0; i < exceptions->via.map.size; i++)
        BT_TRY(read_exception(path, &exceptions->via.map.ptr[i], out));
    return BT_OK;
}

bt_status bti_spacy_read(const char *path, const char *data, size_t bytes, bti_spacy_rules *out) {
    *out = (bti_spacy_rules){.faster_heuristics = 1};
    if (!is_whole((const unsigned char *)data, bytes))
        return damaged(path, "not one whole msgpack object");
    msgpack_unpacked file;
    msgpack_unpacked_init(&file);
    size_t used = 0;
    msgpack_unpack_return r = msgpack_unpack_next(&file, data, bytes, &used);
    bt_status s;
    if (r == MSGPACK_UNPACK_NOMEM_ERROR)
        s = bti_fail(BT_ENOMEM, "%s: no memory to read it", path);
    else if ((r != MSGPACK_UNPACK_SUCCESS && r != MSGPACK_UNPACK_EXTRA_BYTES) || used != bytes)
        s = damaged(path, "nested too deep");
    else if (file.data.type != MSGPACK_OBJECT_MAP)
        s = damaged(path, "not a map");
    else
        s = read_map(path, &file.data.via.map, out);
    msgpack_unpacked_destroy(&file);
    if (s != BT_OK) bti_spacy_rules_free(out);
    return s;
}

void bti_spacy_rules_free(bti_spacy_rules *r) {
    for (int i = 0; i < BTI_SPACY_PATTERNS; i++) bti_pattern_free(r->pattern[i]);
    bti_strings_free(&r->exceptions);
    bti_free(r->first);
    bti_free(r->lengths);
    *r = (bti_spacy_rules){.faster_heuristics = 0};
}
