/* Arrays of numbers as numpy (.npy, .npz) and safetensors leave them: found in a mapped file, read
 * piece by piece. Messages of what is refused here do not name the file: callers put it before. */
#ifndef BANTAM_DATA_ARRAY_H
#define BANTAM_DATA_ARRAY_H

#include "core/base/status.h"

/* X(enum, name, bytes, is_float) */
#define BTI_NUMBERS(X) \
    X(F32, "float32", 4, 1) \
    X(F64, "float64", 8, 1) \
    X(F16, "float16", 2, 1) \
    X(BF16, "bfloat16", 2, 1) \
    X(I8, "int8", 1, 0) \
    X(I16, "int16", 2, 0) \
    X(I32, "int32", 4, 0) \
    X(I64, "int64", 8, 0) \
    X(U8, "uint8", 1, 0) \
    X(U16, "uint16", 2, 0) \
    X(U32, "uint32", 4, 0) \
    X(U64, "uint64", 8, 0) \
    X(BOOL, "bool", 1, 0)

typedef enum bti_number {
#define X(e, name, bytes, is_float) BTI_NUMBER_##e,
    BTI_NUMBERS(X)
#undef X
        BTI_NUMBER_COUNT
} bti_number;

size_t bti_number_bytes(bti_number t);
const char *bti_number_name(bti_number t);
int bti_number_is_float(bti_number t);

/* Where the numbers lie: `at` bytes into an entry of the file. The entry is the whole file, or one
 * of a zip archive, stored or deflated; `at` counts unpacked bytes. */
typedef struct bti_place {
    uint64_t entry, packed; /* first byte of the entry in the file, bytes of it there */
    uint64_t at, bytes;     /* first byte of the numbers in the entry, bytes of them */
    uint32_t crc;           /* of the unpacked entry, where has_crc */
    uint8_t type;           /* bti_number */
    uint8_t deflated, has_crc;
} bti_place;

enum { BTI_ARRAY_DIMS = 4 };

typedef struct bti_array {
    char *name; /* within its file; "" where the file is one array */
    int dims;
    int64_t shape[BTI_ARRAY_DIMS]; /* row-major */
    bti_place place;
} bti_array;

/* The arrays of a file, in no order. Zero-initialised. */
typedef struct bti_arrays {
    bti_array *item;
    size_t count, room;
} bti_arrays;

/* Lists the arrays of a file whose `bytes` bytes lie at `map`. The file's first bytes tell .npy and
 * .npz, its name tells safetensors. All of header, shapes and lengths is checked, the numbers are
 * not looked at. */
bt_status bti_arrays_list(const char *path, const void *map, size_t bytes, bti_arrays *out);
/* Adds one; takes the name over, in any case. */
bt_status bti_arrays_add(bti_arrays *list, const bti_array *a, char *name);
void bti_arrays_free(bti_arrays *list);

/* Is it one of the formats, by its first bytes? */
int bti_is_npy(const void *map, size_t bytes);
int bti_is_npz(const void *map, size_t bytes);
/* Reads the header of a .npy file of `total` bytes whose first `have` bytes lie at `head`, and
 * checks it against `total`. Fills dims, shape and, of place, at, bytes and type. */
bt_status bti_npy_parse(const void *head, size_t have, uint64_t total, bti_array *out);
bt_status bti_npz_list(const void *map, size_t bytes, bti_arrays *out);

/* Hands over numbers `first` .. first + count - 1 as fp32, in order, in pieces; what it is given
 * lasts until it returns; anything but BT_OK ends the reading. Allocates nothing; several threads
 * may read. The type must be a float. */
typedef bt_status (*bti_floats_fn)(void *user, const float *x, size_t n);
bt_status bti_array_floats(const void *map, const bti_place *p, uint64_t first, uint64_t count,
                           bti_floats_fn fn, void *user);
/* Number i of a stored array of any type. */
double bti_array_number(const void *map, const bti_place *p, uint64_t i);
/* Compares the checksum where there is one. */
bt_status bti_array_check(const void *map, const bti_place *p);

#endif
