/* numpy's .npy: "\x93NUMPY", version, length of the header, the header (a Python dictionary with
 * descr, fortran_order and shape), the numbers. Format:
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#include "core/data/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

int bti_is_npy(const void *map, size_t bytes) {
    return bytes >= sizeof magic && memcmp(map, magic, sizeof magic) == 0;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

enum { TEXT = 64 };

typedef struct header {
    const char *s, *end; /* what is not read yet */
    char descr[TEXT];    /* "[" where it is no string: fields of a record */
    int fortran, given;  /* given: a bit for each key */
    bti_array *array;
} header;

static void skip_blanks(header *h) {
    while (h->s < h->end && (*h->s == ' ' || *h->s == '\n' || *h->s == '\t')) h->s++;
}

static int take(header *h, const char *word) {
    size_t n = strlen(word);
    skip_blanks(h);
    if ((size_t)(h->end - h->s) < n || memcmp(h->s, word, n) != 0) return 0;
    h->s += n;
    return 1;
}

static int take_string(header *h, char out[TEXT]) {
    skip_blanks(h);
    if (h->s == h->end || (*h->s != '\'' && *h->s != '"')) return 0;
    char quote = *h->s++;
    const char *close = memchr(h->s, quote, (size_t)(h->end - h->s));
    if (close == NULL || close - h->s >= TEXT) return 0;
    snprintf(out, TEXT, "%.*s", (int)(close - h->s), h->s);
    h->s = close + 1;
    return 1;
}

/* A size: digits, and the L that Python 2 writes behind a long one. */
static int take_size(header *h, int64_t *out) {
    const char *start = h->s;
    *out = 0;
    for (; h->s < h->end && *h->s >= '0' && *h->s <= '9'; h->s++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *h->s - '0', out))
            return 0;
    if (h->s == start) return 0;
    if (h->s < h->end && *h->s == 'L') h->s++;
    return 1;
}

/* (), (3,), (3, 4): as everywhere in Python, one size needs its comma. */
static int take_shape(header *h) {
    bti_array *a = h->array;
    int comma = 1;
    if (!take(h, "(")) return 0;
    for (a->dims = 0; !take(h, ")"); a->dims++) {
        int64_t size;
        if (!comma || !take_size(h, &size)) return 0;
        if (a->dims < BTI_ARRAY_DIMS) a->shape[a->dims] = size;
        comma = take(h, ",");
    }
    return comma || a->dims > 1;
}

/* One entry of the dictionary; 0 when it is not one of the three, or not for the first time. */
static int take_entry(header *h) {
    char key[TEXT];
    int which;
    if (!take_string(h, key) || !take(h, ":")) return 0;
    if (strcmp(key, "descr") == 0) {
        which = 1;
        if (take(h, "[")) { /* fields of a record: refused by the caller, whatever follows */
            snprintf(h->descr, TEXT, "[");
            h->s = h->end;
            return 1;
        }
        if (!take_string(h, h->descr)) return 0;
    } else if (strcmp(key, "fortran_order") == 0) {
        which = 2;
        h->fortran = take(h, "True");
        if (!h->fortran && !take(h, "False")) return 0;
    } else if (strcmp(key, "shape") == 0) {
        which = 4;
        if (!take_shape(h)) return 0;
    } else {
        return 0;
    }
    if (h->given & which) return 0;
    h->given |= which;
    return 1;
}

static int take_dictionary(header *h) {
    if (!take(h, "{")) return 0;
    while (!take(h, "}")) {
        if (!take_entry(h)) return 0;
        if (h->descr[0] == '[') return 1;
        if (!take(h, ",")) {
            if (!take(h, "}")) return 0;
            break;
        }
    }
    skip_blanks(h);
    return h->s == h->end && h->given == 7;
}

/* ---- the type -------------------------------------------------------------------------------- */

static bt_status find_type(const char *descr, bti_number *type) {
    static const struct {
        const char *text;
        bti_number type;
    } known[] = {
        {"<f4", BTI_NUMBER_F32}, {"<f8", BTI_NUMBER_F64}, {"<f2", BTI_NUMBER_F16},
        {"|i1", BTI_NUMBER_I8},  {"<i2", BTI_NUMBER_I16}, {"<i4", BTI_NUMBER_I32},
        {"<i8", BTI_NUMBER_I64}, {"|u1", BTI_NUMBER_U8},  {"<u2", BTI_NUMBER_U16},
        {"<u4", BTI_NUMBER_U32}, {"<u8", BTI_NUMBER_U64}, {"|b1", BTI_NUMBER_BOOL},
        {"<i1", BTI_NUMBER_I8},  {"<u1", BTI_NUMBER_U8},  {"bfloat16", BTI_NUMBER_BF16},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(descr, known[i].text) == 0) {
            *type = known[i].type;
            return BT_OK;
        }
    if (descr[0] == '[')
        return bti_fail(BT_EINPUT,
                        "an array of records, not of numbers: save each field by itself");
    if (descr[0] == '>')
        return bti_fail(BT_EINPUT, "big-endian numbers (%s): save x.astype('<%s')", descr,
                        descr + 1);
    if (strcmp(descr, "|O") == 0)
        return bti_fail(BT_EINPUT, "an array of Python objects, not of numbers: save arrays of "
                                   "different shapes one by one (np.savez)");
    if (strcmp(descr, "<V2") == 0 || strcmp(descr, "|V2") == 0)
        return bti_fail(
            BT_EINPUT,
            "%s: numbers of two bytes that may be bfloat16 or anything else, numpy does "
            "not say: save them as safetensors, or x.astype('float32')",
            descr);
    if (descr[1] == 'U' || descr[1] == 'S')
        return bti_fail(BT_EINPUT,
                        "text (%s), not numbers: write it to a text file, a line an "
                        "example",
                        descr);
    return bti_fail(BT_EINPUT,
                    "type \"%s\" is not read here: save x.astype('float32'), float16 or float64",
                    descr);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* "(100, 64)" */
static void shape_text(const bti_array *a, char out[128]) {
    size_t used = (size_t)snprintf(out, 128, "(");
    for (int d = 0; d < a->dims && used < 100; d++)
        used += (size_t)snprintf(out + used, 128 - used, "%s%" PRId64, d ? ", " : "", a->shape[d]);
    snprintf(out + used, 128 - used, "%s)", a->dims == 1 ? "," : "");
}

static bt_status check_length(const bti_array *a, uint64_t have) {
    char shape[128];
    uint64_t need = bti_number_bytes((bti_number)a->place.type);
    int overflow = 0;
    shape_text(a, shape);
    for (int d = 0; d < a->dims; d++)
        overflow |= __builtin_mul_overflow(need, (uint64_t)a->shape[d], &need);
    if (overflow || need > INT64_MAX) return bti_fail(BT_EINPUT, "the shape %s is not one", shape);
    if (need == have) return BT_OK;
    uint64_t off = need > have ? need - have : have - need;
    return bti_fail(BT_EINPUT,
                    "%" PRIu64 " bytes of numbers, its header needs %" PRIu64
                    " (%s of %s): %" PRIu64 " %s",
                    have, need, shape, bti_number_name((bti_number)a->place.type), off,
                    need > have ? "are missing" : "too many");
}

bt_status bti_npy_parse(const void *head, size_t have, uint64_t total, bti_array *out) {
    const unsigned char *p = head;
    if (!bti_is_npy(head, have)) return bti_fail(BT_EINPUT, "not a .npy file");
    size_t begin = have > 6 && p[6] == 1 ? 10 : 12;
    if (have < begin)
        return bti_fail(BT_EINPUT, "cut short: %" PRIu64 " bytes, not even a header", total);
    if (p[6] < 1 || p[6] > 3)
        return bti_fail(BT_EINPUT, ".npy version %d.%d: versions 1 to 3 are read", p[6], p[7]);
    uint64_t length = (uint64_t)p[8] | (uint64_t)p[9] << 8;
    if (begin == 12) length |= (uint64_t)p[10] << 16 | (uint64_t)p[11] << 24;
    if (length > total - begin)
        return bti_fail(
            BT_EINPUT, "cut short: its header should have %" PRIu64 " bytes, the file has %" PRIu64,
            length, total);
    if (length > have - begin)
        return bti_fail(BT_EINPUT, "a header of %" PRIu64 " bytes is none that numpy writes",
                        length);
    const char *text = (const char *)p + begin;
    header h = {.s = text, .end = text + length, .array = out};
    if (!take_dictionary(&h))
        return bti_fail(BT_EINPUT,
                        "damaged header: descr, fortran_order and shape are wanted; at byte %zu",
                        begin + (size_t)(h.s - text));
    bti_number type = BTI_NUMBER_F32;
    BT_TRY(find_type(h.descr, &type));
    if (out->dims > BTI_ARRAY_DIMS)
        return bti_fail(BT_EINPUT, "%d dimensions: %d are the most", out->dims, BTI_ARRAY_DIMS);
    if (h.fortran && out->dims > 1)
        return bti_fail(BT_EINPUT, "columns come first (fortran_order): save "
                                   "np.ascontiguousarray(x)");
    out->place.type = (uint8_t)type;
    out->place.at = begin + length;
    out->place.bytes = total - out->place.at;
    return check_length(out, out->place.bytes);
}
