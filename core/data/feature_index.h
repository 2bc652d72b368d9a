/* What features.c knows of its files; feature_scan.c looks at every number in them. */
#ifndef BANTAM_DATA_FEATURE_INDEX_H
#define BANTAM_DATA_FEATURE_INDEX_H

#include "core/data/array.h"
#include "core/data/features.h"

/* A file. One of a list is mapped only while it is read: there may be more of them than a process
 * may have mappings. */
typedef struct bti_feature_file {
    char *path;
    const void *map; /* NULL: of a list */
    size_t bytes;
    int64_t before; /* examples of the features before the given file, or its list, begins */
} bti_feature_file;

/* Examples of equal shape, one after the other in an array. */
typedef struct bti_feature_run {
    int64_t first, count; /* examples */
    int64_t rows;         /* of each */
    size_t file;
    bti_place place;
} bti_feature_run;

struct bti_features {
    char *name;
    int64_t width, count;
    bti_feature_file *file;
    size_t files, file_room;
    bti_feature_run *run; /* in order of `first` */
    size_t runs, run_room;
    bti_features_stats stats;
    uint64_t checksum;
};

/* Maps the file of a run, or gives its mapping; bti_feature_unmap after use. */
bt_status bti_feature_map(const bti_features *f, const bti_feature_run *r, const void **map);
void bti_feature_unmap(const bti_features *f, const bti_feature_run *r, const void *map);
/* Hands over numbers of a run's array, whose pages then need not stay resident. */
bt_status bti_feature_numbers(const bti_features *f, const bti_feature_run *r, const void *map,
                              uint64_t first, uint64_t count, bti_floats_fn fn, void *user);
/* BT_ESTOPPED once *stop is set; stop may be NULL. */
bt_status bti_feature_stopped(const volatile sig_atomic_t *stop);
/* Fills stats and checksum; refuses what is not finite. */
bt_status bti_feature_scan(bti_features *f, const volatile sig_atomic_t *stop);

#endif
