#include "core/data/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "core/base/dtype.h"
#include "core/base/safetensors.h"
#include "core/data/unpack.h"

static const struct {
    const char *name;
    uint8_t bytes, is_float;
} numbers[BTI_NUMBER_COUNT] = {
#define X(e, name, bytes, is_float) [BTI_NUMBER_##e] = {name, bytes, is_float},
    BTI_NUMBERS(X)
#undef X
};

size_t bti_number_bytes(bti_number t) { return numbers[t].bytes; }
const char *bti_number_name(bti_number t) { return numbers[t].name; }
int bti_number_is_float(bti_number t) { return numbers[t].is_float; }

/* ---- lists ----------------------------------------------------------------------------------- */

bt_status bti_arrays_add(bti_arrays *list, const bti_array *a, char *name) {
    if (name == NULL) return BT_ENOMEM;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 16;
        bti_array *more = bti_realloc(list->item, room, sizeof *more);
        if (more == NULL) {
            bti_free(name);
            return BT_ENOMEM;
        }
        list->item = more;
        list->room = room;
    }
    list->item[list->count] = *a;
    list->item[list->count++].name = name;
    return BT_OK;
}

void bti_arrays_free(bti_arrays *list) {
    for (size_t i = 0; i < list->count; i++) bti_free(list->item[i].name);
    bti_free(list->item);
    *list = (bti_arrays){0};
}

static bt_status list_npy(const void *map, size_t bytes, bti_arrays *out) {
    bti_array a = {.place = {.packed = bytes}};
    BT_TRY(bti_npy_parse(map, bytes, bytes, &a));
    return bti_arrays_add(out, &a, bti_strdup(""));
}

static bti_number number_of(bt_dtype t) {
    switch (t) {
    case BT_F32:
        return BTI_NUMBER_F32;
    case BT_F64:
        return BTI_NUMBER_F64;
    case BT_F16:
        return BTI_NUMBER_F16;
    case BT_BF16:
        return BTI_NUMBER_BF16;
    case BT_I32:
        return BTI_NUMBER_I32;
    case BT_U8:
        return BTI_NUMBER_U8;
    default:
        return BTI_NUMBER_COUNT;
    }
}

static bt_status add_tensor(const bti_st_file *f, size_t i, size_t bytes, bti_arrays *out) {
    _Static_assert(BTI_ST_MAX_DIMS <= BTI_ARRAY_DIMS, "shapes fit");
    const bti_st_tensor *t = bti_st_at(f, i, NULL);
    bti_array a = {.dims = t->dims, .place = {.packed = bytes}};
    uint64_t size = bti_dtype_size(t->dtype);
    for (int d = 0; d < t->dims; d++) size *= (uint64_t)(a.shape[d] = t->shape[d]);
    a.place.type = (uint8_t)number_of(t->dtype);
    if (a.place.type == BTI_NUMBER_COUNT)
        return bti_fail(BT_EINPUT, "tensor %s has a type that is not read here", t->name);
    a.place.at = bti_st_place(f, i);
    a.place.bytes = size;
    return bti_arrays_add(out, &a, bti_strdup(t->name));
}

static bt_status list_safetensors(const char *path, size_t bytes, bti_arrays *out) {
    bti_st_file *f;
    BT_TRY(bti_st_open_in_place(path, BTI_ST_VERIFY, &f));
    bt_status s = BT_OK;
    if (bti_st_left_out(f) != NULL)
        s = bti_fail(BT_EINPUT,
                     "tensor %s has a type or a number of dimensions that is not read here",
                     bti_st_left_out(f));
    for (size_t i = 0; i < bti_st_count(f) && s == BT_OK; i++) s = add_tensor(f, i, bytes, out);
    if (s == BT_EINPUT) bti_fail_prefix(s, "%s", path);
    bti_st_close(f);
    return s;
}

bt_status bti_arrays_list(const char *path, const void *map, size_t bytes, bti_arrays *out) {
    const char *dot = strrchr(path, '.');
    bt_status s;
    if (bti_is_npy(map, bytes))
        s = list_npy(map, bytes, out);
    else if (bti_is_npz(map, bytes))
        s = bti_npz_list(map, bytes, out);
    else if (dot != NULL && strcmp(dot, ".safetensors") == 0)
        return list_safetensors(path, bytes, out);
    else
        s = bti_fail(BT_EINPUT,
                     "%zu bytes that are neither .npy nor .npz; .safetensors and lists "
                     "of files (.txt) are known by their names",
                     bytes);
    return s == BT_OK ? BT_OK : bti_fail_prefix(s, "%s", path);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* n numbers that may lie askew. */
static void to_floats(bti_number type, const unsigned char *from, size_t n, float *to) {
    switch (type) {
    case BTI_NUMBER_F32:
        memcpy(to, from, 4 * n);
        return;
    case BTI_NUMBER_F64:
        for (size_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, from + 8 * i, 8);
            to[i] = (float)x;
        }
        return;
    case BTI_NUMBER_F16:
    case BTI_NUMBER_BF16:
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, from + 2 * i, 2);
            to[i] = type == BTI_NUMBER_F16 ? bti_f16_to_f32(h) : bti_bf16_to_f32(h);
        }
        return;
    default:
        memset(to, 0, 4 * n);
    }
}

enum { PIECE = 2048 }; /* numbers */

static bt_status stored_floats(const unsigned char *from, bti_number type, uint64_t count,
                               bti_floats_fn fn, void *user) {
    float x[PIECE];
    size_t size = bti_number_bytes(type);
    if (type == BTI_NUMBER_F32 && (uintptr_t)from % _Alignof(float) == 0)
        return fn(user, (const float *)(const void *)from, count);
    while (count > 0) {
        size_t n = count < PIECE ? (size_t)count : PIECE;
        to_floats(type, from, n, x);
        BT_TRY(fn(user, x, n));
        from += n * size;
        count -= n;
    }
    return BT_OK;
}

static bt_status skip(bti_unpack *u, uint64_t bytes, unsigned char *room, size_t room_bytes) {
    while (bytes > 0) {
        size_t n = bytes < room_bytes ? (size_t)bytes : room_bytes;
        BT_TRY(bti_unpack_read(u, room, n));
        bytes -= n;
    }
    return BT_OK;
}

static bt_status packed_floats(const unsigned char *map, const bti_place *p, uint64_t first,
                               uint64_t count, bti_floats_fn fn, void *user) {
    bti_unpack u;
    unsigned char raw[8 * PIECE];
    float x[PIECE];
    size_t size = bti_number_bytes((bti_number)p->type);
    BT_TRY(bti_unpack_begin(&u, map + p->entry, p->packed));
    BT_TRY(skip(&u, p->at + first * size, raw, sizeof raw));
    while (count > 0) {
        size_t n = count < PIECE ? (size_t)count : PIECE;
        BT_TRY(bti_unpack_read(&u, raw, n * size));
        to_floats((bti_number)p->type, raw, n, x);
        BT_TRY(fn(user, x, n));
        count -= n;
    }
    return BT_OK;
}

bt_status bti_array_floats(const void *map, const bti_place *p, uint64_t first, uint64_t count,
                           bti_floats_fn fn, void *user) {
    const unsigned char *m = map;
    bti_number type = (bti_number)p->type;
    if (p->deflated) return packed_floats(m, p, first, count, fn, user);
    return stored_floats(m + p->entry + p->at + first * bti_number_bytes(type), type, count, fn,
                         user);
}

double bti_array_number(const void *map, const bti_place *p, uint64_t i) {
    bti_number type = (bti_number)p->type;
    const unsigned char *from =
        (const unsigned char *)map + p->entry + p->at + i * bti_number_bytes(type);
    float f;
#define READ(ctype) \
    do { \
        ctype v; \
        memcpy(&v, from, sizeof v); \
        return (double)v; \
    } while (0)
    switch (type) {
    case BTI_NUMBER_F64:
        READ(double);
    case BTI_NUMBER_I8:
        READ(int8_t);
    case BTI_NUMBER_I16:
        READ(int16_t);
    case BTI_NUMBER_I32:
        READ(int32_t);
    case BTI_NUMBER_I64:
        READ(int64_t);
    case BTI_NUMBER_U8:
    case BTI_NUMBER_BOOL:
        READ(uint8_t);
    case BTI_NUMBER_U16:
        READ(uint16_t);
    case BTI_NUMBER_U32:
        READ(uint32_t);
    case BTI_NUMBER_U64:
        READ(uint64_t);
    default:
        to_floats(type, from, 1, &f);
        return (double)f;
    }
#undef READ
}

bt_status bti_array_check(const void *map, const bti_place *p) {
    const unsigned char *m = (const unsigned char *)map + p->entry;
    uint64_t left = p->at + p->bytes;
    uLong crc = crc32_z(0, NULL, 0);
    if (!p->has_crc) return BT_OK;
    if (p->deflated) {
        bti_unpack u;
        unsigned char raw[8 * PIECE];
        BT_TRY(bti_unpack_begin(&u, m, p->packed));
        for (; left > 0;) {
            size_t n = left < sizeof raw ? (size_t)left : sizeof raw;
            BT_TRY(bti_unpack_read(&u, raw, n));
            crc = crc32_z(crc, raw, n);
            left -= n;
        }
        BT_TRY(bti_unpack_finish(&u));
    } else {
        crc = crc32_z(crc, m, (z_size_t)left);
    }
    if (crc == p->crc) return BT_OK;
    return bti_fail(BT_EINPUT, "damaged: its checksum is %08lx, the archive says %08" PRIx32, crc,
                    p->crc);
}
