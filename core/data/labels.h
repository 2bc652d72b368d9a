/* What a run without target text learns: for each example a class, a set of classes, or numbers.
 *
 * Text files have a line an example: the class's name (all of the line), names between blanks, tabs
 * or commas (none: the empty set), or numbers between such. A .npy has [examples] whole numbers
 * (classes), [examples, classes] of 0 and 1 (sets), or [examples] or [examples, n] numbers. Several
 * files follow one another.
 *
 * Classes are numbered from 0 in order of their names: as numbers where all are whole numbers, else
 * by bytes. */
#ifndef BANTAM_DATA_LABELS_H
#define BANTAM_DATA_LABELS_H

#include "core/base/status.h"

typedef enum bti_label_kind { BTI_LABEL_CLASS, BTI_LABEL_SET, BTI_LABEL_NUMBERS } bti_label_kind;

typedef struct bti_labels_spec {
    const char *const *files;
    int32_t file_count;
    bti_label_kind kind;
    /* Names of the classes where they are known (held-out part, resume): others are refused. NULL:
     * those that occur. */
    const char *const *classes;
    int32_t class_count;
    int64_t width; /* of numbers, where it is known; 0: as the files say */
} bti_labels_spec;

typedef struct bti_labels bti_labels;

/* BT_EINPUT names file and line (or row) of what cannot be read. */
bt_status bti_labels_open(const bti_labels_spec *spec, bti_labels **out);
void bti_labels_close(bti_labels *l);
int64_t bti_labels_count(const bti_labels *l); /* examples */
/* Classes, none of numbers; and the name of one, owned by the labels. */
int32_t bti_labels_classes(const bti_labels *l);
const char *bti_labels_class_name(const bti_labels *l, int32_t c);
/* How many examples have it. */
int64_t bti_labels_class_examples(const bti_labels *l, int32_t c);
/* Classes of example i, rising: exactly one of BTI_LABEL_CLASS. Owned by the labels. */
const int32_t *bti_labels_ids(const bti_labels *l, int64_t i, int64_t *count);
/* Numbers of an example, and those of example i. Owned by the labels. */
int64_t bti_labels_width(const bti_labels *l);
const float *bti_labels_numbers(const bti_labels *l, int64_t i);
/* Of kind, names and labels: for resume. */
uint64_t bti_labels_checksum(const bti_labels *l);
/* BT_EINPUT with both counts unless there are `count` examples, as `path` has `units` (lines). */
bt_status bti_labels_match(const bti_labels *l, int64_t count, const char *path, const char *units);

#endif
