#include "core/base/status.h"

#include "core/base/text.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char last_error[2048];

static const char *const status_text[BT_STATUS_COUNT] = {
#define X(e, t) [e] = t,
    BT_STATUSES(X)
#undef X
};

const char *bt_status_text(bt_status status) {
    return (unsigned)status < BT_STATUS_COUNT ? status_text[status] : "unknown status";
}

const char *bt_last_error(void) { return last_error; }

bt_status bti_vfail(bt_status status, const char *fmt, va_list ap) {
    char text[sizeof last_error]; /* aside: the arguments may point into last_error */
    vsnprintf(text, sizeof text, fmt, ap);
    memcpy(last_error, text, sizeof last_error);
    return status;
}

bt_status(bti_fail)(bt_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    bti_vfail(status, fmt, ap);
    va_end(ap);
    return status;
}

bt_status bti_fail_prefix(bt_status status, const char *fmt, ...) {
    char prefix[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    return bti_fail(status, "%s: %s", prefix, last_error);
}

static bt_log_fn log_fn;
static void *log_user;

void bt_set_log(bt_log_fn fn, void *user) {
    log_fn = fn;
    log_user = user;
}

void bti_vlog(bt_log_level level, const char *fmt, va_list ap) {
    if (log_fn == NULL) return;
    char text[2048];
    vsnprintf(text, sizeof text, fmt, ap);
    log_fn(log_user, level, text);
}

void bti_log(bt_log_level level, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    bti_vlog(level, fmt, ap);
    va_end(ap);
}

static atomic_uint_fast64_t alloc_count;
static atomic_uint_fast64_t alloc_fail_at;

uint64_t bti_alloc_count(void) { return atomic_load(&alloc_count); }

void bti_alloc_fail_at(uint64_t n) {
    atomic_store(&alloc_fail_at, n == 0 ? 0 : atomic_load(&alloc_count) + n);
}

/* Counts a request; true when it is the one to fail or its size overflows. */
static int refuse(size_t count, size_t size) {
    uint64_t n = atomic_fetch_add(&alloc_count, 1) + 1;
    if (n == atomic_load(&alloc_fail_at) || (size != 0 && count > SIZE_MAX / size)) {
        bti_fail(BT_ENOMEM, "cannot take %zu x %zu bytes of host memory", count, size);
        return 1;
    }
    return 0;
}

void *(bti_alloc)(size_t count, size_t size) {
    if (refuse(count, size)) return NULL;
    size_t bytes = count * size;
    void *p = calloc(1, bytes ? bytes : 1);
    if (p == NULL) bti_fail(BT_ENOMEM, "cannot take %zu bytes of host memory", bytes);
    return p;
}

void *(bti_realloc)(void *p, size_t count, size_t size) {
    if (refuse(count, size)) return NULL;
    size_t bytes = count * size;
    void *q = realloc(p, bytes ? bytes : 1);
    if (q == NULL) bti_fail(BT_ENOMEM, "cannot take %zu bytes of host memory", bytes);
    return q;
}

void(bti_free)(void *p) { free(p); }

bt_status bti_grow(void **array, size_t *room, size_t count, size_t size) {
    if (count <= *room) return BT_OK;
    size_t n = *room ? *room : 64;
    while (n < count) n *= 2;
    void *q = bti_realloc(*array, n, size);
    if (q == NULL) return BT_ENOMEM;
    *array = q;
    *room = n;
    return BT_OK;
}

void bt_free(void *p) { free(p); }

char *bti_strdup(const char *s) {
    size_t n = strlen(s) + 1;
    char *p = bti_alloc(n, 1);
    if (p != NULL) memcpy(p, s, n);
    return p;
}

char *bti_format(const char *fmt, ...) {
    va_list ap, again;
    bti_numbers numbers = bti_numbers_begin();
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = n < 0 ? NULL : bti_alloc((size_t)n + 1, 1);
    if (s != NULL) vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    bti_numbers_end(numbers);
    return s;
}
