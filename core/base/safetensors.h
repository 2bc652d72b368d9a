/* safetensors files: 8 bytes little-endian header length, a JSON header, then the data.
 * Written aside, flushed to disk and renamed; the data's XXH64 is in the metadata ("xxh64"). */
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

/* Maps a file. Header, offsets, shapes and lengths are checked against the file's length; with
 * `verify` the checksum too (where the metadata has one). BT_EINPUT naming file and fault. */
bt_status bti_st_open(const char *path, int verify, bti_st_file **out);
void bti_st_close(bti_st_file *f);
size_t bti_st_count(const bti_st_file *f);
/* By place or by name; data points into the mapping. NULL when there is none of that name. */
const bti_st_tensor *bti_st_at(const bti_st_file *f, size_t i, const void **data);
const bti_st_tensor *bti_st_find(const bti_st_file *f, const char *name, const void **data);
/* Metadata value, NULL when absent. */
const char *bti_st_metadata(const bti_st_file *f, const char *key);

#endif
