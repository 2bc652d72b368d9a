/* Lines of text files. Only byte 0A ends a line: no other character that some systems take for a
 * line end may shift one side of a parallel text against the other. */
#include "core/data/corpus.h"

#include "core/base/files.h"
#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK (256 * 1024)
#define GZIP_MAGIC "\x1F\x8B"
#define MAX_LINE (64 * 1024 * 1024) /* more is no text */

struct bti_reader {
    int fd;
    const volatile sig_atomic_t *stop; /* NULL: reading goes on */
    char *path, *buf;
    size_t room, begin, end; /* bytes of buf, and those of it not yet given out */
    int64_t line, offset;    /* of the line given last: number from 1, first byte in the text */
    int64_t next_offset;
    int quiet, at_end, crlf_seen;
    /* Packed or not goes by the magic bytes, not by the name. */
    unsigned char *packed; /* NULL: plain text, or not known yet */
    z_stream z;            /* its input lies in `packed` */
    int known, in_member, packed_end;
};

static bt_status fail_stopped(const char *name) {
    return bti_fail(BT_ESTOPPED, "%s was being read", name);
}

static int stopped(const volatile sig_atomic_t *stop) { return stop != NULL && *stop; }

/* A pipe by its name waits for its writer here. */
static bt_status open_file(bti_reader *r, const char *path) {
    int from_stdin = strcmp(path, "-") == 0;
    do {
        if (stopped(r->stop)) return fail_stopped(r->path);
        r->fd =
            from_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    } while (r->fd < 0 && errno == EINTR);
    struct stat st;
    if (r->fd < 0 || fstat(r->fd, &st) != 0)
        return bti_fail(BT_EINPUT, "%s: %s", r->path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return bti_fail(BT_EINPUT, "%s: is a folder, not a file", r->path);
    return BT_OK;
}

bt_status bti_reader_open_until(const char *path, const volatile sig_atomic_t *stop,
                                bti_reader **out) {
    bti_reader *r = bti_alloc(1, sizeof *r);
    if (r == NULL) return BT_ENOMEM;
    bt_status s = BT_ENOMEM;
    r->fd = -1;
    r->stop = stop;
    r->room = BLOCK;
    r->path = bti_strdup(strcmp(path, "-") == 0 ? "standard input" : path);
    r->buf = bti_alloc(r->room + 1, 1); /* one more, for the NUL behind the last line */
    if (r->path != NULL && r->buf != NULL) s = open_file(r, path);
    if (s == BT_OK)
        *out = r;
    else
        bti_reader_close(r);
    return s;
}

bt_status bti_reader_open(const char *path, bti_reader **out) {
    return bti_reader_open_until(path, NULL, out);
}

/* ---- bytes -----------------------------------------------------------------------------------
 */

/* Bytes of the file as they are; *n 0 at its end. Waits in short naps where there may be a stop: a
 * signal that comes just before the wait, or to another thread, does not end it. zlib's own files
 * are not used: they lose what they had read when a signal comes between. */
static bt_status read_raw(bti_reader *r, void *to, size_t room, size_t *n) {
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    for (;;) {
        if (stopped(r->stop)) return fail_stopped(r->path);
        int ready = poll(&p, 1, r->stop ? 200 : -1);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        ssize_t got = read(r->fd, to, room);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0) return bti_fail(BT_EIO, "%s: cannot read: %s", r->path, strerror(errno));
        *n = (size_t)got;
        return BT_OK;
    }
}

static bt_status fail_packed(const bti_reader *r, const char *what) {
    if (what == NULL)
        return bti_fail(BT_EINPUT, "%s: cut short: its gzip data stop in line %" PRId64, r->path,
                        r->line + 1);
    return bti_fail(BT_EINPUT, "%s: damaged gzip data near line %" PRId64 ": %s", r->path,
                    r->line + 1, what);
}

/* Looks at the first bytes, which are at the front of `buf` then. */
static bt_status find_kind(bti_reader *r) {
    size_t n = 1;
    while (r->end < 2 && n > 0) {
        BT_TRY(read_raw(r, r->buf + r->end, r->room - r->end, &n));
        r->end += n;
    }
    r->known = 1;
    r->at_end = n == 0;
    if (r->end < 2 || memcmp(r->buf, GZIP_MAGIC, 2) != 0) return BT_OK;
    r->packed = bti_alloc(BLOCK, 1);
    if (r->packed == NULL || inflateInit2(&r->z, 15 + 16) != Z_OK)
        return bti_fail(BT_ENOMEM, "%s: no memory to read it", r->path);
    memcpy(r->packed, r->buf, r->end);
    r->z.next_in = r->packed;
    r->z.avail_in = (uInt)r->end;
    r->in_member = 1;
    r->end = 0;
    r->at_end = 0;
    return BT_OK;
}

/* Between members: begins another one, or ends the text. What follows and is no member (tapes and
 * mirrors pad with zeros) is not of the text. */
static void next_member(bti_reader *r) {
    if (r->z.avail_in >= 2 && memcmp(r->z.next_in, GZIP_MAGIC, 2) == 0)
        r->in_member = inflateReset(&r->z) == Z_OK;
    else if (r->z.avail_in >= 2 || r->packed_end)
        r->at_end = 1;
}

/* Adds unpacked bytes to the buffer, or sets at_end. */
static bt_status unpack(bti_reader *r) {
    size_t n;
    r->z.next_out = (Bytef *)r->buf + r->end;
    r->z.avail_out = (uInt)(r->room - r->end);
    for (uInt room = r->z.avail_out; r->z.avail_out == room && !r->at_end;) {
        if (r->z.avail_in < 2 && !r->packed_end) { /* a member's magic may lie across */
            memmove(r->packed, r->z.next_in, r->z.avail_in);
            r->z.next_in = r->packed;
            BT_TRY(read_raw(r, r->packed + r->z.avail_in, BLOCK - r->z.avail_in, &n));
            r->z.avail_in += (uInt)n;
            r->packed_end = n == 0;
        }
        if (!r->in_member) {
            next_member(r);
            continue;
        }
        int code = inflate(&r->z, Z_NO_FLUSH);
        if (code == Z_STREAM_END)
            r->in_member = 0;
        else if (code == Z_BUF_ERROR && r->packed_end)
            return fail_packed(r, NULL);
        else if (code == Z_MEM_ERROR)
            return bti_fail(BT_ENOMEM, "%s: no memory to read it", r->path);
        else if (code != Z_OK && code != Z_BUF_ERROR)
            return fail_packed(r, r->z.msg ? r->z.msg : "it needs a dictionary");
    }
    r->end = (size_t)((char *)r->z.next_out - r->buf);
    return BT_OK;
}

/* Adds bytes to the buffer; sets at_end. The text given out last is lost. */
static bt_status fill(bti_reader *r) {
    if (r->begin > 0) {
        memmove(r->buf, r->buf + r->begin, r->end - r->begin);
        r->end -= r->begin;
        r->begin = 0;
    }
    if (r->end == r->room) {
        if (r->room >= MAX_LINE)
            return bti_fail(BT_EINPUT, "%s: line %" PRId64 " has more than %d MiB: is it text?",
                            r->path, r->line + 1, MAX_LINE >> 20);
        char *more = bti_realloc(r->buf, 2 * r->room + 1, 1);
        if (more == NULL) return BT_ENOMEM;
        r->buf = more;
        r->room *= 2;
    }
    if (!r->known) {
        BT_TRY(find_kind(r));
        if (r->packed == NULL) return BT_OK;
    }
    if (r->packed != NULL) return unpack(r);
    size_t n;
    BT_TRY(read_raw(r, r->buf + r->end, r->room - r->end, &n));
    r->at_end = n == 0;
    r->end += n;
    return BT_OK;
}

/* ---- lines -----------------------------------------------------------------------------------
 */

/* Drops the CR before the line's end. */
static size_t without_cr(bti_reader *r, const char *line, size_t n) {
    if (n == 0 || line[n - 1] != '\r') return n;
    if (!r->crlf_seen && !r->quiet)
        bti_log(BT_LOG_INFO, "CRLF in %s: the CR before the line end is dropped", r->path);
    r->crlf_seen = 1;
    return n - 1;
}

/* Before the first line: leaves out a byte order mark. */
static bt_status skip_mark(bti_reader *r) {
    while (r->end < sizeof BTI_TEXT_MARK - 1 && !r->at_end &&
           memcmp(r->buf, BTI_TEXT_MARK, r->end) == 0)
        BT_TRY(fill(r));
    size_t n = bti_text_mark(r->buf, r->end);
    r->begin += n;
    r->next_offset += (int64_t)n;
    return BT_OK;
}

bt_status bti_reader_next(bti_reader *r, const char **line, size_t *bytes) {
    size_t seen = 0; /* bytes of the line known to hold no 0A */
    char *nl;
    if (r->next_offset == 0) BT_TRY(skip_mark(r));
    while ((nl = memchr(r->buf + r->begin + seen, '\n', r->end - r->begin - seen)) == NULL) {
        seen = r->end - r->begin;
        if (r->at_end) break;
        BT_TRY(fill(r));
    }
    char *start = r->buf + r->begin;
    if (nl == NULL && seen == 0) {
        *line = NULL;
        *bytes = 0;
        return BT_OK;
    }
    size_t n = nl ? (size_t)(nl - start) : seen;
    r->begin += n + (nl != NULL);
    r->line++;
    r->offset = r->next_offset;
    r->next_offset += (int64_t)n + (nl != NULL);
    if (nl != NULL) n = without_cr(r, start, n);
    start[n] = 0;
    *line = start;
    *bytes = n;
    return BT_OK;
}

void bti_reader_quiet(bti_reader *r) { r->quiet = 1; }
int64_t bti_reader_line(const bti_reader *r) { return r->line; }
int64_t bti_reader_offset(const bti_reader *r) { return r->offset; }

void bti_reader_close(bti_reader *r) {
    if (r == NULL) return;
    if (r->fd >= 0) close(r->fd);
    if (r->packed != NULL) inflateEnd(&r->z);
    bti_free(r->packed);
    bti_free(r->path);
    bti_free(r->buf);
    bti_free(r);
}

/* Bytes of the character at s, 0 when it is not well-formed. The second byte's range is what keeps
 * out over-long forms, surrogates and all beyond U+10FFFF; no later byte needs one of its own. */
static size_t utf8_char(const unsigned char *s, size_t n) {
    unsigned c = s[0], low = 0x80, high = 0xBF;
    size_t length = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (length <= 1) return c == 0 ? 0 : length;
    if (length > n) return 0;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF) return 0;
    return length;
}

size_t bti_utf8_check(const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;
    while (i < bytes) {
        while (bytes - i >= 8) { /* eight bytes 01 .. 7F at once */
            uint64_t w;
            memcpy(&w, s + i, 8);
            if (((w - 0x0101010101010101u) | w) & 0x8080808080808080u) break;
            i += 8;
        }
        if (i == bytes) break;
        size_t n = utf8_char(s + i, bytes - i);
        if (n == 0) return i;
        i += n;
    }
    return bytes;
}
