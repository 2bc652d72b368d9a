#include "core/train/log_json.h"

#include "core/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* 13 names and numbers of at most 24 bytes come to half of it. */
#define LINE_BYTES 1024
/* Enough of a line to read the update's number, which comes first. */
#define HEAD_BYTES 48

struct bti_log_json {
    int fd;
    off_t size; /* whole lines */
    char *path;
    char line[LINE_BYTES];
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Walks the lines of a file; `keep` is where the part that stays ends. */
typedef struct scan {
    off_t at, keep;
    size_t head_length;
    char head[HEAD_BYTES];
    int64_t resume;
    int again; /* its validation is no line to keep */
    int done;  /* a line of a later update was met */
} scan;

static void take_byte(scan *s, char c) {
    s->at++;
    if (c != '\n') {
        if (s->head_length + 1 < HEAD_BYTES) s->head[s->head_length++] = c;
        return;
    }
    int64_t update;
    s->head[s->head_length] = 0;
    s->head_length = 0;
    int known = sscanf(s->head, " { \"update\" : %" SCNd64, &update) == 1;
    int again = s->again && known && update == s->resume && strstr(s->head, "\"valid_") != NULL;
    if (again || (known && update > s->resume))
        s->done = 1;
    else
        s->keep = s->at;
}

bt_status bti_log_json_cut(bti_log_json *log, int64_t resume_update, int again) {
    char block[4096];
    scan s = {.resume = resume_update, .again = again, .done = resume_update <= 0};
    if (lseek(log->fd, 0, SEEK_SET) != 0)
        return bti_fail(BT_EIO, "%s: cannot read: %s", log->path, strerror(errno));
    while (!s.done) {
        ssize_t n = read(log->fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return bti_fail(BT_EIO, "%s: cannot read: %s", log->path, strerror(errno));
        if (n == 0) break;
        for (ssize_t i = 0; i < n && !s.done; i++) take_byte(&s, block[i]);
    }
    if (ftruncate(log->fd, s.keep) != 0)
        return bti_fail(BT_EIO, "%s: cannot shorten: %s", log->path, strerror(errno));
    log->size = s.keep;
    return BT_OK;
}

/* A killed process has no lock any more. A file system without locks is used without. */
static bt_status lock(const bti_log_json *log) {
    int failed;
    do {
        failed = flock(log->fd, LOCK_EX | LOCK_NB) != 0;
    } while (failed && errno == EINTR);
    if (!failed || errno != EWOULDBLOCK) return BT_OK;
    return bti_fail(BT_EUSAGE,
                    "%s: another run writes there: wait for its end, or take another "
                    "output",
                    log->path);
}

bt_status bti_log_json_open(const char *path, bti_log_json **out) {
    bti_log_json *log = bti_alloc(1, sizeof *log);
    if (log == NULL) return BT_ENOMEM;
    bt_status status = BT_ENOMEM;
    log->fd = -1;
    log->path = bti_strdup(path);
    if (log->path == NULL) goto fail;
    log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0) {
        status = bti_fail(BT_EIO, "%s: cannot open the log: %s", path, strerror(errno));
        goto fail;
    }
    status = lock(log);
    if (status != BT_OK) goto fail;
    *out = log;
    return BT_OK;
fail:
    bti_log_json_close(log);
    return status;
}

void bti_log_json_close(bti_log_json *log) {
    if (log == NULL) return;
    if (log->fd >= 0) close(log->fd);
    bti_free(log->path);
    bti_free(log);
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct text {
    char *data;
    size_t length;
} text;

static void put(text *t, const char *fmt, ...) BTI_PRINTF(2, 3);
static void put(text *t, const char *fmt, ...) {
    bti_numbers numbers = bti_numbers_begin();
    va_list ap;
    va_start(ap, fmt);
    t->length += (size_t)vsnprintf(t->data + t->length, LINE_BYTES - t->length, fmt, ap);
    va_end(ap);
    bti_numbers_end(numbers);
}

static void put_real(text *t, const char *name, double value) {
    if (isfinite(value))
        put(t, "\"%s\":%.9g,", name, value);
    else
        put(t, "\"%s\":null,", name);
}

static size_t format(char *line, const bti_log_record *r) {
    text t = {.data = line};
    put(&t, "{\"update\":%" PRId64 ",\"epoch\":%" PRId64 ",", r->update, r->epoch);
    put_real(&t, "loss", r->loss);
    put_real(&t, "grad_norm", r->grad_norm);
    put_real(&t, "lr", r->lr);
    put(&t, "\"target_tokens\":%" PRId64 ",\"source_tokens\":%" PRId64 ",", r->target_tokens,
        r->source_tokens);
    put(&t, "\"micro_batches\":%" PRId64 ",", r->micro_batches);
    put_real(&t, "tokens_per_s", r->tokens_per_s);
    put(&t, "\"planned_bytes\":%" PRIu64 ",\"peak_bytes\":%" PRIu64 ",", r->planned_bytes,
        r->peak_bytes);
    put_real(&t, "loss_scale", r->loss_scale);
    put(&t, "\"skipped\":%s}\n", r->skipped ? "true" : "false");
    return t.length;
}

/* Writes the first `bytes` of log->line. */
static bt_status append(bti_log_json *log, size_t bytes, int64_t update) {
    ssize_t n;
    do {
        n = write(log->fd, log->line, bytes);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)bytes) {
        log->size += n;
        return BT_OK;
    }
    int error = n < 0 ? errno : ENOSPC;
    if (n > 0 && ftruncate(log->fd, log->size) != 0) error = errno;
    return bti_fail(BT_EIO, "%s: cannot write the log line of update %" PRId64 ": %s", log->path,
                    update, strerror(error));
}

bt_status bti_log_json_flush(bti_log_json *log) {
    if (fdatasync(log->fd) == 0 || errno == EINVAL) return BT_OK;
    return bti_fail(BT_EIO, "%s: cannot flush: %s", log->path, strerror(errno));
}

bt_status bti_log_json_write(bti_log_json *log, const bti_log_record *record) {
    return append(log, format(log->line, record), record->update);
}

bt_status bti_log_json_validation(bti_log_json *log, const bti_log_validation *r) {
    text t = {.data = log->line};
    put(&t, "{\"update\":%" PRId64 ",", r->update);
    put_real(&t, "valid_loss", r->loss);
    put_real(&t, "valid_nll", r->nll);
    put_real(&t, "valid_perplexity", r->perplexity);
    put_real(&t, "valid_bleu", r->bleu);
    put_real(&t, "valid_chrf", r->chrf);
    if (isfinite(r->accuracy)) put_real(&t, "valid_accuracy", r->accuracy);
    if (isfinite(r->f1)) put_real(&t, "valid_f1", r->f1);
    if (isfinite(r->mse)) put_real(&t, "valid_mse", r->mse);
    put_real(&t, "valid_seconds", r->seconds);
    t.data[t.length - 1] = '}'; /* in place of the last comma */
    put(&t, "\n");
    return append(log, t.length, r->update);
}
