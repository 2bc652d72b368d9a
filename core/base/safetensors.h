/* safetensors files: 8 bytes little-endian header length, a JSON header, then the data.
 * Written aside, flushed to disk and renamed. The metadata's first entry, "xxh64", is the XXH64 of
 * header text and data in 16 hex digits, taken with these digits as zeros.
 *
 * Tensors of a type or rank that Bantam lacks (I64, U8, BOOL, more than 4 dimensions ...) are
 * checked like all others, then left out with a notice in the log: the rest of the file opens. */
#ifndef BANTAM_BASE_SAFETENSORS_H
#define BANTAM_BASE_SAFETENSORS_H

#include "core/base/dtype.h"
#include "core/base/status.h"

#define BTI_ST_MAX_DIMS 4

typedef struct bti_st_tensor {
    const char *name;
    bt_dtype dtype;
    int dims;
    int64_t shape[BTI_ST_MAX_DIMS];
} bti_st_tensor;

typedef struct bti_st_writer bti_st_writer;

/* Data follows in the order of `tensors` through bti_st_write; keys and values of the metadata are
 * UTF-8 strings in pairs. Nothing is visible under `path` before finish. */
bt_status bti_st_create(const char *path, const bti_st_tensor *tensors, size_t count,
                        const char *const *metadata, size_t pairs, bti_st_writer **out);
bt_status bti_st_write(bti_st_writer *w, const void *data, size_t bytes);
/* Checks that exactly the declared bytes came, puts the checksum in, flushes, renames, flushes the
 * folder. Frees w in any case. */
bt_status bti_st_finish(bti_st_writer *w);
/* Gives up: removes the file aside. NULL is fine. */
void bti_st_abandon(bti_st_writer *w);

typedef struct bti_st_file bti_st_file;

typedef enum bti_st_verify {
    BTI_ST_TRUST,   /* the checksum is not looked at */
    BTI_ST_VERIFY,  /* it must be right where there is one */
    BTI_ST_REQUIRE, /* there must be one and it must be right: files of our own */
} bti_st_verify;

/* Maps a file. Header, offsets, shapes and lengths are always checked against the file's length.
 * BT_EINPUT naming file and fault. */
bt_status bti_st_open(const char *path, bti_st_verify verify, bti_st_file **out);
/* The same without copies: data may lie askew, so that it must be copied before it is used. */
bt_status bti_st_open_in_place(const char *path, bti_st_verify verify, bti_st_file **out);
void bti_st_close(bti_st_file *f);
size_t bti_st_count(const bti_st_file *f);
/* By place (in order of the data) or by name; NULL when there is none. Data is aligned to its type:
 * it points into the mapping, or into a copy where a foreign file has it askew. */
const bti_st_tensor *bti_st_at(const bti_st_file *f, size_t i, const void **data);
const bti_st_tensor *bti_st_find(const bti_st_file *f, const char *name, const void **data);
/* Where the data of tensor i begin in the file, in bytes. */
uint64_t bti_st_place(const bti_st_file *f, size_t i);
/* The name of a tensor that was left out; NULL: none was. */
const char *bti_st_left_out(const bti_st_file *f);
/* Metadata value, NULL when absent. */
const char *bti_st_metadata(const bti_st_file *f, const char *key);

#endif
