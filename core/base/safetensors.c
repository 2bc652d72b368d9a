#include "core/base/safetensors.h"

#include "core/base/files.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* states without a heap request */
#include <xxhash.h>

/* Names in the file, and bytes an element; dtype BT_DTYPE_COUNT: known, but not read here. */
static const struct {
    const char *name;
    int bytes;
    bt_dtype dtype;
} types[] = {
    {"F32", 4, BT_F32},
    {"F64", 8, BT_F64},
    {"F16", 2, BT_F16},
    {"BF16", 2, BT_BF16},
    {"I32", 4, BT_I32},
    {"U8", 1, BT_U8},
    {"I64", 8, BT_DTYPE_COUNT},
    {"U64", 8, BT_DTYPE_COUNT},
    {"U32", 4, BT_DTYPE_COUNT},
    {"I16", 2, BT_DTYPE_COUNT},
    {"U16", 2, BT_DTYPE_COUNT},
    {"I8", 1, BT_DTYPE_COUNT},
    {"BOOL", 1, BT_DTYPE_COUNT},
    {"F8_E4M3", 1, BT_DTYPE_COUNT},
    {"F8_E5M2", 1, BT_DTYPE_COUNT},
};
#define TYPES (sizeof types / sizeof types[0])

#define MAX_HEADER 100000000u /* as the format's first implementation has it */
#define ALIGN 64              /* of the data in files we write */

/* Our headers start with this text, then 16 digits: the checksum's place is fixed. */
static const char checksum_head[] = "{\"__metadata__\":{\"xxh64\":\"";
#define CHECKSUM_AT (sizeof checksum_head - 1)
#define CHECKSUM_DIGITS 16
static const char checksum_zero[] = "0000000000000000";

static const char *type_name(bt_dtype t) {
    for (size_t i = 0; i < TYPES; i++)
        if (types[i].dtype == t) return types[i].name;
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct bti_st_writer {
    bti_aside *aside;
    char *path;
    uint64_t at, end; /* next byte to write, bytes of the whole file */
    XXH64_state_t hash;
};

/* Bytes of a tensor; -1 when the shape is wrong or the product overflows. */
static int64_t tensor_bytes(const bti_st_tensor *t) {
    int64_t n = (int64_t)bti_dtype_size(t->dtype);
    if (t->dims < 0 || t->dims > BTI_ST_MAX_DIMS) return -1;
    for (int d = 0; d < t->dims; d++)
        if (t->shape[d] < 0 || __builtin_mul_overflow(n, t->shape[d], &n)) return -1;
    return n;
}

/* A new JSON value under a new key; steals the value. */
static bt_status put(json_t *object, const char *key, json_t *value) {
    if (value == NULL) return bti_fail(BT_ENOMEM, "cannot make a file header: no memory");
    if (json_object_get(object, key) != NULL) {
        json_decref(value);
        return bti_fail(BT_EINTERNAL, "two entries of the name %s in one file", key);
    }
    if (json_object_set_new(object, key, value) != 0)
        return bti_fail(BT_EINTERNAL, "cannot use %s as a name in a file header", key);
    return BT_OK;
}

static bt_status put_tensor(json_t *root, const bti_st_tensor *t, uint64_t *offset) {
    int64_t bytes = tensor_bytes(t);
    uint64_t end;
    if (bytes < 0 || __builtin_add_overflow(*offset, (uint64_t)bytes, &end) || end > INT64_MAX)
        return bti_fail(BT_EINTERNAL, "tensor %s is too large for a file", t->name);
    json_t *shape = json_array();
    for (int d = 0; shape != NULL && d < t->dims; d++)
        if (json_array_append_new(shape, json_integer(t->shape[d])) != 0) {
            json_decref(shape);
            shape = NULL;
        }
    if (shape == NULL) return bti_fail(BT_ENOMEM, "cannot make a file header: no memory");
    BT_TRY(put(root, t->name,
               json_pack("{s:s, s:o, s:[I, I]}", "dtype", type_name(t->dtype), "shape", shape,
                         "data_offsets", (json_int_t)*offset, (json_int_t)end)));
    *offset = end;
    return BT_OK;
}

/* The header as text, padded so that the data are aligned; freed with free(). */
static bt_status header_text(const bti_st_tensor *tensors, size_t count,
                             const char *const *metadata, size_t pairs, char **text, size_t *length,
                             uint64_t *data_bytes) {
    json_t *root = json_object(), *meta = json_object();
    uint64_t offset = 0;
    char *json = NULL, *padded = NULL;
    bt_status s = root == NULL ? bti_fail(BT_ENOMEM, "cannot make a file header: no memory")
                               : put(root, "__metadata__", json_incref(meta));
    if (s == BT_OK) s = put(meta, "xxh64", json_string(checksum_zero));
    for (size_t i = 0; s == BT_OK && i < pairs; i++)
        s = put(meta, metadata[2 * i], json_string(metadata[2 * i + 1]));
    for (size_t i = 0; s == BT_OK && i < count; i++) s = put_tensor(root, &tensors[i], &offset);
    if (s == BT_OK && (json = json_dumps(root, JSON_COMPACT)) == NULL)
        s = bti_fail(BT_ENOMEM, "cannot make a file header: no memory");
    if (s == BT_OK) {
        size_t n = strlen(json), all = (n + 8 + ALIGN - 1) / ALIGN * ALIGN - 8;
        padded = bti_alloc(all, 1);
        if (padded == NULL) {
            s = BT_ENOMEM;
        } else {
            memset(padded, ' ', all);
            memcpy(padded, json, n);
            *text = padded;
            *length = all;
            *data_bytes = offset;
        }
    }
    free(json);
    json_decref(meta);
    json_decref(root);
    return s;
}

bt_status bti_st_create(const char *path, const bti_st_tensor *tensors, size_t count,
                        const char *const *metadata, size_t pairs, bti_st_writer **out) {
    char *text = NULL;
    size_t length = 0;
    uint64_t data_bytes = 0;
    BT_TRY(header_text(tensors, count, metadata, pairs, &text, &length, &data_bytes));
    bt_status s = BT_ENOMEM;
    bti_st_writer *w = bti_alloc(1, sizeof *w);
    if (w == NULL || (w->path = bti_strdup(path)) == NULL) goto fail;
    s = bti_aside_open(path, &w->aside);
    if (s != BT_OK) goto fail;
    unsigned char head[8];
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)length >> 8 * i);
    s = bti_aside_write(w->aside, 0, head, sizeof head);
    if (s == BT_OK) s = bti_aside_write(w->aside, sizeof head, text, length);
    if (s != BT_OK) goto fail;
    XXH64_reset(&w->hash, 0);
    XXH64_update(&w->hash, text, length);
    w->at = sizeof head + length;
    w->end = w->at + data_bytes;
    bti_free(text);
    *out = w;
    return BT_OK;
fail:
    bti_free(text);
    bti_st_abandon(w);
    return s;
}

bt_status bti_st_write(bti_st_writer *w, const void *data, size_t bytes) {
    if (bytes > w->end - w->at)
        return bti_fail(BT_EINTERNAL, "%s: more data than its header declares", w->path);
    BT_TRY(bti_aside_write(w->aside, w->at, data, bytes));
    if (bytes > 0) XXH64_update(&w->hash, data, bytes);
    w->at += bytes;
    return BT_OK;
}

bt_status bti_st_finish(bti_st_writer *w) {
    if (w->at != w->end) {
        bti_fail(BT_EINTERNAL, "%s: %" PRIu64 " bytes of data are missing", w->path,
                 w->end - w->at);
        bti_st_abandon(w);
        return BT_EINTERNAL;
    }
    char digits[CHECKSUM_DIGITS + 1];
    snprintf(digits, sizeof digits, "%016" PRIx64, (uint64_t)XXH64_digest(&w->hash));
    bt_status s = bti_aside_write(w->aside, 8 + CHECKSUM_AT, digits, CHECKSUM_DIGITS);
    if (s == BT_OK) {
        s = bti_aside_finish(w->aside);
        w->aside = NULL;
    }
    bti_st_abandon(w);
    return s;
}

void bti_st_abandon(bti_st_writer *w) {
    if (w == NULL) return;
    bti_aside_abandon(w->aside);
    bti_free(w->path);
    bti_free(w);
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct entry {
    bti_st_tensor t;
    const char *type;      /* as the file names it */
    uint64_t begin, bytes; /* within the data */
    const void *data;
    void *copy; /* where the file has the data askew */
} entry;

struct bti_st_file {
    const unsigned char *map;
    size_t bytes, header; /* of the file, of the JSON text */
    json_t *root;         /* owns names and metadata */
    entry *entries;
    size_t count;
    const char *left_out; /* the name of a tensor without a type here */
};

/* Reads the shape into e; the number of elements through *n. */
static bt_status read_shape(const char *path, const char *name, const json_t *shape, entry *e,
                            uint64_t *n) {
    if (!json_is_array(shape)) return bti_fail(BT_EINPUT, "%s: %s has no shape", path, name);
    e->t.dims = (int)json_array_size(shape);
    *n = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        const json_t *v = json_array_get(shape, d);
        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            __builtin_mul_overflow(*n, (uint64_t)json_integer_value(v), n) || *n > INT64_MAX)
            return bti_fail(BT_EINPUT, "%s: the shape of %s is not one", path, name);
        if (d < BTI_ST_MAX_DIMS) e->t.shape[d] = json_integer_value(v);
    }
    return BT_OK;
}

/* One tensor of the header; e->t.dtype is BT_DTYPE_COUNT where it cannot be used here. */
static bt_status read_entry(const char *path, const char *name, const json_t *v, uint64_t room,
                            entry *e) {
    const char *type = json_string_value(json_object_get(v, "dtype"));
    const json_t *ends = json_object_get(v, "data_offsets");
    const json_t *from = json_array_get(ends, 0), *to = json_array_get(ends, 1);
    if (type == NULL) return bti_fail(BT_EINPUT, "%s: %s has no dtype", path, name);
    uint64_t n = 0;
    BT_TRY(read_shape(path, name, json_object_get(v, "shape"), e, &n));
    if (json_array_size(ends) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from) ||
        (uint64_t)json_integer_value(to) > room)
        return bti_fail(BT_EINPUT, "%s: the data of %s lie outside the file", path, name);
    e->t.name = name;
    e->t.dtype = BT_DTYPE_COUNT;
    e->type = type;
    e->begin = (uint64_t)json_integer_value(from);
    e->bytes = (uint64_t)json_integer_value(to) - e->begin;
    for (size_t i = 0; i < TYPES; i++) {
        if (strcmp(type, types[i].name) != 0) continue;
        if (__builtin_mul_overflow(n, (uint64_t)types[i].bytes, &n) || n != e->bytes)
            return bti_fail(BT_EINPUT, "%s: %s has %" PRIu64 " bytes, its shape needs %" PRIu64,
                            path, name, e->bytes, n);
        if (e->t.dims <= BTI_ST_MAX_DIMS) e->t.dtype = types[i].dtype;
    }
    return BT_OK;
}

static int by_place(const void *pa, const void *pb) {
    const entry *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Header length, JSON, metadata: f->root stands for the checked header. */
static bt_status read_header(const char *path, bti_st_file *f) {
    uint64_t length = 0;
    if (f->bytes < 8) return bti_fail(BT_EINPUT, "%s: cut short: %zu bytes", path, f->bytes);
    for (int i = 0; i < 8; i++) length |= (uint64_t)f->map[i] << 8 * i;
    if (length > MAX_HEADER || length > f->bytes - 8)
        return bti_fail(BT_EINPUT,
                        "%s: not a safetensors file, or cut short: its header should have %" PRIu64
                        " bytes, the file has %zu",
                        path, length, f->bytes);
    f->header = (size_t)length;
    json_error_t err;
    f->root = json_loadb((const char *)f->map + 8, f->header, JSON_REJECT_DUPLICATES, &err);
    if (f->root == NULL && json_error_code(&err) == json_error_out_of_memory)
        return bti_fail(BT_ENOMEM, "%s: no memory for its header", path);
    if (f->root == NULL)
        return bti_fail(BT_EINPUT, "%s: damaged header: %s at byte %d", path, err.text,
                        err.position + 8);
    if (!json_is_object(f->root)) return bti_fail(BT_EINPUT, "%s: damaged header", path);
    json_t *meta = json_object_get(f->root, "__metadata__");
    if (meta != NULL && !json_is_object(meta))
        return bti_fail(BT_EINPUT, "%s: damaged header: __metadata__", path);
    const char *key;
    json_t *v;
    json_object_foreach(meta, key, v) if (!json_is_string(v)) return bti_fail(
        BT_EINPUT, "%s: metadata %s is not a string", path, key);
    return BT_OK;
}

/* Every byte of the data belongs to exactly one tensor. */
static bt_status check_contiguous(const char *path, const bti_st_file *f, uint64_t room) {
    uint64_t at = 0;
    for (size_t i = 0; i < f->count; i++) {
        if (f->entries[i].begin != at)
            return bti_fail(BT_EINPUT,
                            "%s: the data of %s should start at %" PRIu64 ", not %" PRIu64, path,
                            f->entries[i].t.name, at, f->entries[i].begin);
        at += f->entries[i].bytes;
    }
    if (at != room)
        return bti_fail(BT_EINPUT, "%s: %" PRIu64 " bytes of data, its tensors have %" PRIu64, path,
                        room, at);
    return BT_OK;
}

/* Leaves out what has no type here and sets data, through an aligned copy where it must, unless in
 * place is wanted. */
static bt_status place_data(const char *path, bti_st_file *f, int in_place) {
    size_t kept = 0;
    for (size_t i = 0; i < f->count; i++) {
        entry e = f->entries[i];
        if (e.t.dtype == BT_DTYPE_COUNT) {
            bti_log(BT_LOG_INFO, "%s: %s left out: type %s with %d dimensions is not read here",
                    path, e.t.name, e.type, e.t.dims);
            f->left_out = e.t.name;
            continue;
        }
        e.data = f->map + 8 + f->header + e.begin;
        if (!in_place && (uintptr_t)e.data % bti_dtype_size(e.t.dtype) != 0) {
            e.copy = bti_alloc((size_t)e.bytes, 1);
            if (e.copy == NULL) {
                f->count = kept;
                return BT_ENOMEM;
            }
            memcpy(e.copy, e.data, (size_t)e.bytes);
            e.data = e.copy;
        }
        f->entries[kept++] = e;
    }
    f->count = kept;
    return BT_OK;
}

static bt_status check_sum(const char *path, const bti_st_file *f, bti_st_verify verify) {
    const char *text = (const char *)f->map + 8, *want = bti_st_metadata(f, "xxh64");
    if (want == NULL && verify == BTI_ST_REQUIRE)
        return bti_fail(BT_EINPUT, "%s: has no checksum (metadata xxh64)", path);
    if (want == NULL) return BT_OK;
    if (f->header < CHECKSUM_AT + CHECKSUM_DIGITS ||
        memcmp(text, checksum_head, CHECKSUM_AT) != 0 || strlen(want) != CHECKSUM_DIGITS)
        return bti_fail(BT_EINPUT, "%s: the checksum (metadata xxh64) is not in its place", path);
    size_t skip = CHECKSUM_AT + CHECKSUM_DIGITS;
    XXH64_state_t hash;
    XXH64_reset(&hash, 0);
    XXH64_update(&hash, text, CHECKSUM_AT);
    XXH64_update(&hash, checksum_zero, CHECKSUM_DIGITS);
    XXH64_update(&hash, text + skip, f->bytes - 8 - skip);
    char got[CHECKSUM_DIGITS + 1];
    snprintf(got, sizeof got, "%016" PRIx64, (uint64_t)XXH64_digest(&hash));
    if (strcmp(got, want) != 0)
        return bti_fail(BT_EINPUT, "%s: damaged: its checksum is %s, the file says %s", path, got,
                        want);
    return BT_OK;
}

static bt_status open_file(const char *path, bti_st_verify verify, int in_place,
                           bti_st_file **out) {
    bti_st_file *f = bti_alloc(1, sizeof *f);
    if (f == NULL) return BT_ENOMEM;
    const void *map;
    bt_status s = bti_file_map(path, &map, &f->bytes);
    if (s != BT_OK) goto fail;
    f->map = map;
    s = read_header(path, f);
    if (s != BT_OK) goto fail;
    uint64_t room = f->bytes - 8 - f->header;
    s = BT_ENOMEM;
    f->entries = bti_alloc(json_object_size(f->root), sizeof *f->entries);
    if (f->entries == NULL) goto fail;
    const char *key;
    json_t *v;
    json_object_foreach(f->root, key, v) {
        if (strcmp(key, "__metadata__") == 0) continue;
        s = read_entry(path, key, v, room, &f->entries[f->count]);
        if (s != BT_OK) goto fail;
        f->count++;
    }
    qsort(f->entries, f->count, sizeof *f->entries, by_place);
    s = check_contiguous(path, f, room);
    if (s == BT_OK && verify != BTI_ST_TRUST) s = check_sum(path, f, verify);
    if (s == BT_OK) s = place_data(path, f, in_place);
    if (s != BT_OK) goto fail;
    *out = f;
    return BT_OK;
fail:
    bti_st_close(f);
    return s;
}

bt_status bti_st_open(const char *path, bti_st_verify verify, bti_st_file **out) {
    return open_file(path, verify, 0, out);
}

bt_status bti_st_open_in_place(const char *path, bti_st_verify verify, bti_st_file **out) {
    return open_file(path, verify, 1, out);
}

void bti_st_close(bti_st_file *f) {
    if (f == NULL) return;
    for (size_t i = 0; i < f->count; i++) bti_free(f->entries[i].copy);
    bti_free(f->entries);
    json_decref(f->root);
    bti_file_unmap(f->map, f->bytes);
    bti_free(f);
}

size_t bti_st_count(const bti_st_file *f) { return f->count; }

const bti_st_tensor *bti_st_at(const bti_st_file *f, size_t i, const void **data) {
    if (i >= f->count) return NULL;
    if (data != NULL) *data = f->entries[i].data;
    return &f->entries[i].t;
}

const bti_st_tensor *bti_st_find(const bti_st_file *f, const char *name, const void **data) {
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->entries[i].t.name, name) == 0) return bti_st_at(f, i, data);
    return NULL;
}

uint64_t bti_st_place(const bti_st_file *f, size_t i) {
    return 8 + f->header + f->entries[i].begin;
}

const char *bti_st_left_out(const bti_st_file *f) { return f->left_out; }

const char *bti_st_metadata(const bti_st_file *f, const char *key) {
    return json_string_value(json_object_get(json_object_get(f->root, "__metadata__"), key));
}
