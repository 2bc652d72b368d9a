/* Parts of the suite run_file, and what they share. */
#ifndef BANTAM_TESTS_RUN_FILE_PARTS_H
#define BANTAM_TESTS_RUN_FILE_PARTS_H

#include "core/run/run_file.h"
#include "tests/kit.h"

/* The least that a run file must say. */
#define LEAST \
    "output: out\n" \
    "data:\n" \
    "  train: {source: a.de, target: a.en}\n" \
    "tokenizer: {model: spm.model}\n"

/* Of a text, as /dir/run.yaml, with this override (NULL: none). */
bti_run_config *parse(const char *text, const char *set);
/* The text, or the override beside LEAST, is refused in words that have this part. */
void refused(const char *text, const char *part);
void set_refused(const char *set, const char *part);

/* Printed and read again it prints the same. */
void check_fixed_point(const char *text);

void add_run_file_faults(TCase *tc);

#endif
