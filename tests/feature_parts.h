/* Parts of the suite `features`, and files for it made byte by byte. */
#ifndef BANTAM_TESTS_FEATURE_PARTS_H
#define BANTAM_TESTS_FEATURE_PARTS_H

#include "core/data/features.h"
#include "tests/kit.h"

/* Bytes that grow; the text is malloc's, file_free. */
typedef struct file_bytes {
    unsigned char *at;
    size_t count;
} file_bytes;
void file_put(file_bytes *f, const void *data, size_t bytes);
void file_put_number(file_bytes *f, uint64_t v, int bytes); /* little-endian */
void file_free(file_bytes *f);
/* One folder for the suite's files. */
const char *feature_dir(void);
/* Writes it under a new name with this ending; frees it. The path is the kit's. */
const char *file_save(file_bytes *f, const char *ending);

/* A .npy of version `major`, whose header holds these texts as they are ("'<f4'", "(3, 4)"). */
file_bytes npy_raw(int major, const char *descr, const char *fortran, const char *shape,
                   const void *data, size_t bytes);
/* float32 of this shape ("(3, 4)") with the values 0, 1, 2 ... n - 1, each plus `first`. */
file_bytes npy_counting(const char *shape, int n, float first);
/* count numbers first, first + 1, ... in the type of a descr: <f4 <f8 <f2 bfloat16 <i8. */
file_bytes npy_typed(const char *descr, const char *shape, int n, float first);

/* A zip archive: entries in order. How each is written: */
enum { ZIP_STORED = 0, ZIP_DEFLATED = 1, ZIP_WIDE = 2 /* 64-bit sizes everywhere */ };
typedef struct zip {
    file_bytes bytes, directory;
    int entries, how;
} zip;
void zip_add(zip *z, const char *name, file_bytes *entry); /* frees the entry */
file_bytes zip_finish(zip *z);

/* Files of each format with the same six examples of two rows of four: example i has 8 i .. 8 i
 * + 7.
 */
enum { SAMPLES = 8 };
const char *sample_file(int which);

bti_features *open_features(const char *path);
void refuse_features(const char *path, const char *part);
/* Example i of f is first, first + 1, ...; rows rows. */
void check_counting(const bti_features *f, int64_t i, int64_t rows, float first);

void add_feature_faults(TCase *tc);
void add_labels(TCase *tc);
void add_feature_program(TCase *tc);

#endif
