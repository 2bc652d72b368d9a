/* Files: whole reads, writes aside with flush and rename, mappings, paths.
 *
 * What is to be read and cannot be opened, or is a folder, is BT_EINPUT; what fails otherwise is
 * BT_EIO, host memory apart. */
#ifndef BANTAM_BASE_FILES_H
#define BANTAM_BASE_FILES_H

#include "core/base/status.h"

/* Reads a whole file (a NUL is added after *bytes); new buffer (bti_free). */
bt_status bti_file_read(const char *path, char **data, size_t *bytes);
/* Bytes of the byte order mark at the front of a text: some programs put it before UTF-8, and it is
 * not of the text. */
#define BTI_TEXT_MARK "\xEF\xBB\xBF"
size_t bti_text_mark(const char *text, size_t bytes);
/* Writes as a bti_aside does: all or nothing. */
bt_status bti_file_write(const char *path, const void *data, size_t bytes);
int bti_file_exists(const char *path);
int bti_dir_exists(const char *path);
/* Are both, by whatever name, one plain file? */
int bti_file_same(const char *a, const char *b);
/* Copies a file, all or nothing; onto itself is nothing to do. */
bt_status bti_file_copy(const char *from, const char *to);
/* mkdir -p. */
bt_status bti_dir_make(const char *path);
/* `rel` as it is when absolute, else below `dir`; new string. */
char *bti_path_join(const char *dir, const char *rel);
char *bti_path_dir(const char *path); /* new string; "." when there is no slash */

/* A file in the making: `path`.part, which takes the place of `path` at finish and not before. A
 * process that finds another one writing the same file waits for it. What a killed process left
 * behind is written over by the next. Where `path` is a link it stays one, and leads to the new
 * file. A device or pipe is no file whose place could be taken: bytes go straight to it as they
 * come. */
typedef struct bti_aside bti_aside;
bt_status bti_aside_open(const char *path, bti_aside **out);
bt_status bti_aside_write(bti_aside *a, uint64_t offset, const void *data, size_t bytes);
/* Flushes, renames, flushes the folder. Frees `a` in any case. */
bt_status bti_aside_finish(bti_aside *a);
/* Gives up: removes the file aside. NULL is fine. */
void bti_aside_abandon(bti_aside *a);
/* Removes what a killed process left aside of `path`; what somebody is writing stays. */
void bti_aside_clear(const char *path);

/* Maps a plain file (anything else is BT_EINPUT) for reading; *data is NULL when it is empty. */
bt_status bti_file_map(const char *path, const void **data, size_t *bytes);
void bti_file_unmap(const void *data, size_t bytes);
/* These bytes of a mapping need not stay resident: they come back from the file when looked at. */
void bti_file_forget(const void *data, size_t bytes);

#endif
