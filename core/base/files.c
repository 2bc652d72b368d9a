#include "core/base/files.h"

#include <errno.h>
#include <fcntl.h>
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

int bti_file_exists(const char *path) { return access(path, F_OK) == 0; }

int bti_dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bt_status bti_file_copy(const char *from, const char *to) {
    const void *data;
    size_t bytes;
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
    char *path, *part, *dir;
    int fd;
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

bt_status bti_aside_open(const char *path, bti_aside **out) {
    bti_aside *a = bti_alloc(1, sizeof *a);
    if (a == NULL) return BT_ENOMEM;
    a->fd = -1;
    a->path = bti_strdup(path);
    a->part = bti_format("%s.part", path);
    a->dir = bti_path_dir(path);
    if (a->path == NULL || a->part == NULL || a->dir == NULL) {
        aside_free(a);
        return BT_ENOMEM;
    }
    a->fd = open_locked(a->part);
    if (a->fd < 0 || ftruncate(a->fd, 0) != 0) {
        bti_fail(BT_EIO, "cannot write %s: %s", a->part, strerror(errno));
        aside_free(a);
        return BT_EIO;
    }
    *out = a;
    return BT_OK;
}

bt_status bti_aside_write(bti_aside *a, uint64_t offset, const void *data, size_t bytes) {
    const char *p = data;
    while (bytes > 0) {
        ssize_t n = pwrite(a->fd, p, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return bti_fail(BT_EIO, "cannot write %s: %s", a->part, strerror(errno));
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
    unlink(a->part);
    aside_free(a);
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
