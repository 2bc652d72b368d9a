#include "core/data/kept_lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/status.h"

struct bti_kept_lines {
    char *text; /* lines with a NUL behind each: no text has one inside */
    size_t bytes;
};

static bt_status fail(const char *dir, const char *what) {
    return bti_fail(BT_EIO, "%s: cannot %s lines of text: %s", dir, what, strerror(errno));
}

static bt_status write_file(const char *path, const bti_corpus *corpus, FILE *out, int64_t *number,
                            int64_t *next) {
    const int64_t n = bti_corpus_count(corpus);
    bti_reader *r;
    const char *line;
    size_t bytes;
    bt_status status;
    BT_TRY(bti_reader_open(path, &r));
    bti_reader_quiet(r);
    while ((status = bti_reader_next(r, &line, &bytes)) == BT_OK && line != NULL && *next < n) {
        if (++*number != bti_corpus_line(corpus, *next)) continue;
        if (fwrite(line, 1, bytes + 1, out) != bytes + 1) break; /* told of by ferror */
        ++*next;
    }
    bti_reader_close(r);
    return status;
}

static bt_status write_lines(const bti_files *files, const bti_corpus *corpus, const char *dir,
                             FILE *out) {
    int64_t number = 0, next = 0;
    for (size_t f = 0; f < files->count && !ferror(out); f++)
        BT_TRY(write_file(files->path[f], corpus, out, &number, &next));
    if (fflush(out) != 0 || ferror(out)) return fail(dir, "keep");
    if (next < bti_corpus_count(corpus))
        return bti_fail(BT_EINPUT, "%s: the text changed while it was being read", files->path[0]);
    return BT_OK;
}

static bt_status map_file(const char *dir, FILE *file, bti_kept_lines *l) {
    off_t bytes = lseek(fileno(file), 0, SEEK_END);
    if (bytes <= 0) return fail(dir, "map");
    void *p = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fileno(file), 0);
    if (p == MAP_FAILED) return fail(dir, "map");
    l->text = p;
    l->bytes = (size_t)bytes;
    return BT_OK;
}

/* A file that nobody else sees, and that is gone with the last who uses it; the system's place for
 * such files serves where a cache can be read and no more. */
static bt_status open_nameless(const char *dir, FILE **out) {
    char *path = bti_format("%s/lines-XXXXXX", dir);
    if (path == NULL) return BT_ENOMEM;
    int fd = mkstemp(path), why = errno;
    if (fd >= 0) unlink(path);
    bti_free(path);
    FILE *file = fd >= 0 ? fdopen(fd, "w+") : why == EACCES || why == EROFS ? tmpfile() : NULL;
    if (file == NULL) {
        bt_status status = fail(dir, "keep");
        if (fd >= 0) close(fd);
        return status;
    }
    *out = file;
    return BT_OK;
}

bt_status bti_kept_lines_new(const bti_files *files, const bti_corpus *corpus, const char *dir,
                             bti_kept_lines **out) {
    FILE *file = NULL;
    bti_kept_lines *l = bti_alloc(1, sizeof *l);
    if (l == NULL) return BT_ENOMEM;
    bt_status status = open_nameless(dir, &file);
    if (status == BT_OK) {
        status = write_lines(files, corpus, dir, file);
        if (status == BT_OK) status = map_file(dir, file, l);
        fclose(file);
    }
    if (status != BT_OK) {
        bti_kept_lines_free(l);
        return status;
    }
    *out = l;
    return BT_OK;
}

void bti_kept_lines_free(bti_kept_lines *l) {
    if (l == NULL) return;
    if (l->text != NULL) munmap(l->text, l->bytes);
    bti_free(l);
}

const char *bti_kept_lines_first(const bti_kept_lines *l) { return l->text; }

const char *bti_kept_lines_next(const char *line) { return line + strlen(line) + 1; }
