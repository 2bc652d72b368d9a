/* Lines of text files. Only byte 0A ends a line: no other character that some systems take for a
 * line end may shift one side of a parallel text against the other. */
#include "core/data/corpus.h"

#include "core/base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK (256 * 1024)
#define MAX_LINE (64 * 1024 * 1024) /* more is no text */

struct bti_reader {
    gzFile gz; /* passes plain text through: it goes by the magic bytes, not by the name */
    char *path, *buf;
    size_t room, begin, end; /* bytes of buf, and those of it not yet given out */
    int64_t line, offset;    /* of the line given last: number from 1, first byte in the text */
    int64_t next_offset;
    int quiet, at_end, crlf_seen;
};

bt_status bti_reader_open(const char *path, bti_reader **out) {
    int from_stdin = strcmp(path, "-") == 0, fd = -1;
    bti_reader *r = bti_alloc(1, sizeof *r);
    if (r == NULL) return BT_ENOMEM;
    bt_status s = BT_ENOMEM;
    r->room = BLOCK;
    r->path = bti_strdup(from_stdin ? "standard input" : path);
    r->buf = bti_alloc(r->room + 1, 1); /* one more, for the NUL behind the last line */
    if (r->path == NULL || r->buf == NULL) goto fail;
    fd = from_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        s = bti_fail(BT_EINPUT, "%s: %s", r->path, strerror(errno));
        goto fail;
    }
    if (S_ISDIR(st.st_mode)) {
        s = bti_fail(BT_EINPUT, "%s: is a folder, not a file", r->path);
        goto fail;
    }
    r->gz = gzdopen(fd, "rb");
    if (r->gz == NULL || gzbuffer(r->gz, BLOCK) != 0) {
        s = bti_fail(BT_ENOMEM, "%s: no memory to read it", r->path);
        goto fail;
    }
    *out = r;
    return BT_OK;
fail:
    if (fd >= 0 && r->gz == NULL) close(fd);
    bti_reader_close(r);
    return s;
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
    int n = gzread(r->gz, r->buf + r->end, (unsigned)(r->room - r->end));
    int code = Z_OK;
    const char *text = n <= 0 ? gzerror(r->gz, &code) : "";
    if (n < 0 || code != Z_OK) {
        if (code == Z_ERRNO)
            return bti_fail(BT_EIO, "%s: cannot read: %s", r->path, strerror(errno));
        if (code == Z_BUF_ERROR)
            return bti_fail(BT_EINPUT, "%s: cut short: its gzip data stop in line %" PRId64,
                            r->path, r->line + 1);
        return bti_fail(BT_EINPUT, "%s: damaged gzip data near line %" PRId64 ": %s", r->path,
                        r->line + 1, text);
    }
    if (n == 0) r->at_end = 1;
    r->end += (size_t)n;
    return BT_OK;
}

/* Drops the CR before the line's end. */
static size_t without_cr(bti_reader *r, const char *line, size_t n) {
    if (n == 0 || line[n - 1] != '\r') return n;
    if (!r->crlf_seen && !r->quiet)
        bti_log(BT_LOG_INFO, "CRLF in %s: the CR before the line end is dropped", r->path);
    r->crlf_seen = 1;
    return n - 1;
}

bt_status bti_reader_next(bti_reader *r, const char **line, size_t *bytes) {
    size_t seen = 0; /* bytes of the line known to hold no 0A */
    char *nl;
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
    if (r->gz != NULL) gzclose(r->gz);
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
