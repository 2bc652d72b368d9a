/* Files: whole reads, writes aside with flush and rename, paths, checksums. */
#ifndef BANTAM_BASE_FILES_H
#define BANTAM_BASE_FILES_H

#include "core/base/status.h"

/* Reads a whole file (a NUL is added after *bytes); new buffer (bti_free). */
bt_status bti_file_read(const char *path, char **data, size_t *bytes);
/* Writes beside `path`, flushes, renames over it, flushes the folder: all or nothing. */
bt_status bti_file_write(const char *path, const void *data, size_t bytes);
int bti_file_exists(const char *path);
/* mkdir -p. */
bt_status bti_dir_make(const char *path);
/* `rel` as it is when absolute, else below `dir`; new string. */
char *bti_path_join(const char *dir, const char *rel);
char *bti_path_dir(const char *path); /* new string; "." when there is no slash */

#endif
