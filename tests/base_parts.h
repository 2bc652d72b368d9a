/* What the files of the suite base share. */
#ifndef BANTAM_TESTS_BASE_PARTS_H
#define BANTAM_TESTS_BASE_PARTS_H

#include <sys/resource.h>

#include "tests/kit.h"

/* Entries of a folder, and file descriptors of this process. */
int base_entries_in(const char *dir);
int base_open_files(void);
/* f(path) while no file may grow beyond so many bytes. */
bt_status base_with_file_limit(rlim_t bytes, bt_status (*f)(const char *), const char *path);

void add_base_safetensors(TCase *tc);

#endif
