/* Dense inputs: each example of a run has a matrix of numbers, rows x width, made before training
 * (image patches, text encodings). Files are .npy, .npz, .safetensors, or a list (.txt) of such
 * files with one example each; several files follow one another.
 *
 * A file of one array holds all examples: [examples, width], [examples, rows, width] or
 * [examples, h, w, width]. Of several arrays each is an example: [width], [rows, width] or
 * [h, w, width]; their names are numbers from 0 or 1, perhaps behind one common word (arr_0, arr_1,
 * ...). Numbers are float32, float16, bfloat16 or float64, and given out as fp32.
 *
 * Files are mapped; what stays in memory is some 100 bytes for each array, and the path of each
 * listed file. */
#ifndef BANTAM_DATA_FEATURES_H
#define BANTAM_DATA_FEATURES_H

#include <signal.h>

#include "core/base/status.h"

typedef struct bti_features bti_features; /* one named input of one part (train or valid) */

typedef struct bti_features_spec {
    const char *name;
    const char *const *files;
    int32_t file_count;
    int64_t width;     /* 0: as the files say */
    int32_t rows_max;  /* 0: any */
    const char *where; /* its place in the run file, for messages: "data.features.0" */
    const volatile sig_atomic_t *stop; /* non-zero: BT_ESTOPPED; may be NULL */
} bti_features_spec;

typedef struct bti_features_stats {
    int64_t rows, least_rows, most_rows; /* over all examples, and of an example */
    int64_t most_example;                /* the first with most rows, from 0 */
    double least, most, mean;            /* of the values */
} bti_features_stats;

/* Opens and checks all: headers, shapes, widths, no example missing, and every number: NaN and
 * infinity are refused with their place and the number of such rows. BT_EINPUT names the feature,
 * the file and the example. */
bt_status bti_features_open(const bti_features_spec *spec, bti_features **out);
void bti_features_close(bti_features *f);
const char *bti_features_name(const bti_features *f);
const char *bti_features_path(const bti_features *f); /* its first file */
int64_t bti_features_count(const bti_features *f);    /* examples */
int64_t bti_features_width(const bti_features *f);
/* Rows of example i: 1 of [width], rows of [rows, width], h * w of [h, w, width]. */
int64_t bti_features_rows(const bti_features *f, int64_t i);
/* The file of example i (of a list: the one in it), and its number there or in the list, from 1. */
const char *bti_features_place(const bti_features *f, int64_t i, int64_t *example);
/* rows x width numbers of example i; allocates nothing; several threads may read. */
bt_status bti_features_read(const bti_features *f, int64_t i, float *out);
const bti_features_stats *bti_features_get_stats(const bti_features *f);
/* Of name, shapes and numbers, however they are stored: for resume. */
uint64_t bti_features_checksum(const bti_features *f);
/* BT_EINPUT with both counts unless there are `count` examples, as `path` has `units` (lines,
 * examples): example n belongs to the n-th of them. */
bt_status bti_features_match(const bti_features *f, int64_t count, const char *path,
                             const char *units);

#endif
