/* What the text of a run and its tokenisers make of each other; features and labels, and whether
 * there are as many. data_report.c and input_report.c show it. */
#ifndef BANTAM_REPORT_DATA_CHECK_H
#define BANTAM_REPORT_DATA_CHECK_H

#include "core/base/text.h"
#include "core/data/unknown.h"
#include "core/engine/inputs.h"
#include "core/session/session.h"

enum { BTI_CHECK_CHARS = 10, BTI_CHECK_LONGEST = 5, BTI_CHECK_LENGTHS = 40 };

/* A file: tokens of its lines in pairs that count, before any cut and without end symbols. */
typedef struct bti_file_check {
    const char *path;
    int64_t tokens, unknown;
    int chars;
    bti_unknown_char character[BTI_CHECK_CHARS];
} bti_file_check;

typedef struct bti_long_pair {
    size_t file;
    int64_t line, file_line; /* from 1: over all files, and in its own */
    int64_t ids[2];          /* end symbols included */
} bti_long_pair;

/* Training or validation text. */
typedef struct bti_text_check {
    size_t files;
    bti_file_check *file[2];         /* of each side */
    int64_t lines;                   /* pairs of lines */
    int64_t empty, first_empty_line; /* a side is blank or nothing to its tokeniser */
    /* Lines by ids, end symbol included: length[0] those of 1, length[i] of 2^(i-1)+1 .. 2^i. */
    int64_t length[2][BTI_CHECK_LENGTHS];
    int64_t longer[2], longer_pairs, first_longer_line; /* than data.max_length */
    bti_long_pair longest[BTI_CHECK_LONGEST];           /* by the ids of both sides */
    int longest_count;
} bti_text_check;

/* Training pairs that the validation text has too, and the other way round; sources alone. */
typedef struct bti_duplicates {
    int64_t train_pairs, first_train_line, valid_pairs;
    int64_t train_sources, valid_sources;
} bti_duplicates;

typedef struct bti_data_check {
    const bti_run_config *cfg;
    bti_tokenizer *tokenizer[2];
    bti_text_check train, valid; /* no files where there is no text */
    bti_duplicates duplicates;
    bti_inputs inputs[2]; /* of bti_part */
    bti_label_kind kind;  /* of the labels */
    int has_valid;
} bti_data_check;

/* The features and labels of a part, for people and as {"features": [...], "labels": ...}. */
void bti_input_report(bti_text *out, const bti_data_check *c, bti_part part);
struct json_t *bti_input_json(const bti_data_check *c, bti_part part);

/* cfg is borrowed. */
bt_status bti_data_check_new(const bti_run_config *cfg, bti_data_check **out);
void bti_data_check_free(bti_data_check *c);

#endif
