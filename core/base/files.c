#include "core/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A path that cannot be opened is the user's; a read that fails later is the machine's. */
static bt_status open_input(const char *path, int *out, struct stat *st) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return bti_fail(BT_EINPUT, "%s: %s", path, strerror(errno));
    if (fstat(fd, st) != 0) {
        close(fd);
        return bti_fail(BT_EIO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(st->st_mode)) {
        close(fd);
        return bti_fail(BT_EINPUT, "%s: is a folder, not a file", path);
    }
    *out = fd;
    return BT_OK;
}

bt_status bti_file_read(const char *path, char **data, size_t *bytes) {
    int fd = -1;
    struct stat st;
    BT_TRY(open_input(path, &fd, &st));
    /* One byte more than stat says, so that an honest size needs no second buffer; pipes and
     * files that grow do. */
    size_t used = 0, room = (st.st_size > 0 ? (size_t)st.st_size : 4096) + 1;
    bt_status s = BT_ENOMEM;
    char *buf = bti_alloc(room + 1, 1);
    if (buf == NULL) goto fail;
    for (;;) {
        ssize_t n = read(fd, buf + used, room - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            s = bti_fail(BT_EIO, "%s: cannot read: %s", path, strerror(errno));
            goto fail;
        }
        if (n == 0) break;
        used += (size_t)n;
        if (used < room) continue;
        char *more = bti_realloc(buf, 2 * room + 1, 1);
        if (more == NULL) goto fail;
        buf = more;
        room *= 2;
    }
    close(fd);
    buf[used] = 0;
    *data = buf;
    *bytes = used;
    return BT_OK;
fail:
    bti_free(buf);
    close(fd);
    return s;
}

size_t bti_text_mark(const char *text, size_t bytes) {
    const size_t n = sizeof BTI_TEXT_MARK - 1;
    return bytes >= n && memcmp(text, BTI_TEXT_MARK, n) == 0 ? n : 0;
}

int bti_file_exists(const char *path) { return access(path, F_OK) == 0; }

int bti_dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int bti_file_same(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && S_ISREG(x.st_mode) && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

bt_status bti_file_copy(const char *from, const char *to) {
    const void *data;
    size_t bytes;
    if (bti_file_same(from, to)) return BT_OK;
    BT_TRY(bti_file_map(from, &data, &bytes));
    bt_status status = bti_file_write(to, data, bytes);
    bti_file_unmap(data, bytes);
    return status;
}

bt_status bti_dir_make(const char *path) {
    size_t n = strlen(path);
    char *copy = bti_strdup(path);
    if (copy == NULL) return BT_ENOMEM;
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/') continue;
        copy[i] = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            bti_fail(BT_EIO, "cannot make folder %s: %s", copy, strerror(errno));
            bti_free(copy);
            return BT_EIO;
        }
        copy[i] = path[i];
    }
    bti_free(copy);
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return bti_fail(BT_EIO, "cannot make folder %s: there is a file of that name", path);
    return BT_OK;
}

char *bti_path_join(const char *dir, const char *rel) {
    if (rel[0] == '/' || dir[0] == 0) return bti_strdup(rel);
    return bti_format("%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", rel);
}

char *bti_path_dir(const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return bti_strdup(".");
    return bti_format("%.*s", slash == path ? 1 : (int)(slash - path), path);
}

/* ---- files in the making --------------------------------------------------------------------- */

struct bti_aside {
    char *path, *dir;
    char *part; /* NULL: bytes go straight to what stands at `path` */
    int fd;
    uint64_t at; /* bytes written straight */
};

static void aside_free(bti_aside *a) {
    if (a->fd >= 0) close(a->fd);
    bti_free(a->path);
    bti_free(a->part);
    bti_free(a->dir);
    bti_free(a);
}

/* Opens and locks the part file. Its last owner may have renamed it while we waited, and the lock
 * would then be on the finished file: only a lock on what the name still stands for counts. A file
 * system without locks is used without. */
static int open_locked(const char *part) {
    for (;;) {
        int fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0) return -1;
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
        struct stat mine, named;
        if (fstat(fd, &mine) == 0 && stat(part, &named) == 0 && mine.st_ino == named.st_ino &&
            mine.st_dev == named.st_dev)
            return fd;
        close(fd);
    }
}

/* Where a link leads, to a file that is not there too; other paths as they are. New string. */
static char *follow(const char *path) {
    char target[PATH_MAX];
    char *at = bti_strdup(path);
    for (int links = 0; links < 40 && at != NULL; links++) {
        ssize_t n = readlink(at, target, sizeof target - 1);
        if (n < 0) break;
        target[n] = 0;
        char *dir = bti_path_dir(at), *next = dir ? bti_path_join(dir, target) : NULL;
        bti_free(dir);
        bti_free(at);
        at = next;
    }
    return at;
}

/* Devices, pipes and sockets are written to: another file must not take their place. */
static int is_special(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode);
}

static bt_status open_straight(bti_aside *a) {
    while ((a->fd = open(a->path, O_WRONLY | O_CLOEXEC | O_NOCTTY)) < 0 && errno == EINTR) continue;
    if (a->fd < 0) return bti_fail(BT_EIO, "cannot write %s: %s", a->path, strerror(errno));
    return BT_OK;
}

static bt_status open_part(bti_aside *a) {
    a->part = bti_format("%s.part", a->path);
    a->dir = bti_path_dir(a->path);
    if (a->part == NULL || a->dir == NULL) return BT_ENOMEM;
    a->fd = open_locked(a->part);
    if (a->fd < 0 || ftruncate(a->fd, 0) != 0)
        return bti_fail(BT_EIO, "cannot write %s: %s", a->part, strerror(errno));
    return BT_OK;
}

bt_status bti_aside_open(const char *path, bti_aside **out) {
    bti_aside *a = bti_alloc(1, sizeof *a);
    if (a == NULL) return BT_ENOMEM;
    const int straight = is_special(path);
    a->fd = -1;
    a->path = straight ? bti_strdup(path) : follow(path);
    bt_status s = a->path == NULL ? BT_ENOMEM : straight ? open_straight(a) : open_part(a);
    if (s != BT_OK) {
        aside_free(a);
        return s;
    }
    *out = a;
    return BT_OK;
}

/* A pipe takes what comes next, and has no offsets. */
static ssize_t put(const bti_aside *a, uint64_t offset, const void *data, size_t bytes) {
    if (a->part == NULL && offset == a->at) return write(a->fd, data, bytes);
    return pwrite(a->fd, data, bytes, (off_t)offset);
}

bt_status bti_aside_write(bti_aside *a, uint64_t offset, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = put(a, offset, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return bti_fail(BT_EIO, "cannot write %s: %s", a->part ? a->part : a->path,
                            strerror(errno));
        if (offset == a->at) a->at += (uint64_t)n;
        p += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return BT_OK;
}

/* Makes the new name itself last. Some file systems cannot flush a folder and say EINVAL. */
static int flush_dir(const char *dir) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    int bad = fsync(fd) != 0 && errno != EINVAL;
    int e = errno;
    close(fd);
    errno = e;
    return bad ? -1 : 0;
}

bt_status bti_aside_finish(bti_aside *a) {
    if (a->part == NULL) {
        aside_free(a);
        return BT_OK;
    }
    if (fsync(a->fd) != 0 || rename(a->part, a->path) != 0) {
        bti_fail(BT_EIO, "cannot write %s: %s", a->path, strerror(errno));
        bti_aside_abandon(a);
        return BT_EIO;
    }
    bt_status s = BT_OK;
    if (flush_dir(a->dir) != 0)
        s = bti_fail(BT_EIO, "cannot flush folder %s: %s", a->dir, strerror(errno));
    aside_free(a);
    return s;
}

void bti_aside_abandon(bti_aside *a) {
    if (a == NULL) return;
    if (a->part != NULL) unlink(a->part);
    aside_free(a);
}

void bti_aside_clear(const char *path) {
    struct stat mine, named;
    char *part = bti_format("%s.part", path);
    int fd = part ? open(part, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    /* Its owner may have renamed it since: the name must be that of what is locked. */
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &mine) == 0 &&
        stat(part, &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        unlink(part);
    if (fd >= 0) close(fd);
    bti_free(part);
}

bt_status bti_file_write(const char *path, const void *data, size_t bytes) {
    bti_aside *a;
    BT_TRY(bti_aside_open(path, &a));
    bt_status s = bti_aside_write(a, 0, data, bytes);
    if (s != BT_OK) {
        bti_aside_abandon(a);
        return s;
    }
    return bti_aside_finish(a);
}

bt_status bti_file_map(const char *path, const void **data, size_t *bytes) {
    int fd = -1;
    struct stat st;
    BT_TRY(open_input(path, &fd, &st));
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return bti_fail(BT_EINPUT, "%s: is not a plain file", path);
    }
    void *p = NULL;
    if (st.st_size > 0) p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int e = errno;
    close(fd);
    if (p == MAP_FAILED) return bti_fail(BT_EIO, "%s: cannot map: %s", path, strerror(e));
    *data = p;
    *bytes = (size_t)st.st_size;
    return BT_OK;
}

void bti_file_unmap(const void *data, size_t bytes) {
    if (data != NULL) munmap((void *)(uintptr_t)data, bytes);
}

void bti_file_forget(const void *data, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data / page * page;
    if (bytes > 0) madvise((void *)from, (uintptr_t)data + bytes - from, MADV_DONTNEED);
}
