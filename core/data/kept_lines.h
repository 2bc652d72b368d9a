/* Lines of a text that are asked for again and again, in a file of their own that has no name and
 * is mapped: they take no memory of the process's, however many they are, and stay as they are
 * whatever becomes of the text. */
#ifndef BANTAM_DATA_KEPT_LINES_H
#define BANTAM_DATA_KEPT_LINES_H

#include "core/data/corpus.h"

typedef struct bti_kept_lines bti_kept_lines;

/* Of a side's files the lines that the corpus has, in its order; the others are left out, as it
 * left them out. The file lies in `dir`, which is there, until it is no longer used. */
bt_status bti_kept_lines_new(const bti_files *files, const bti_corpus *corpus, const char *dir,
                             bti_kept_lines **out);
void bti_kept_lines_free(bti_kept_lines *l);
/* The first line, and the one behind `line`, of which there must be one. */
const char *bti_kept_lines_first(const bti_kept_lines *l);
const char *bti_kept_lines_next(const char *line);

#endif
