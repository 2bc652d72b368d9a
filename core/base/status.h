/* Status codes and the last-error text.
 *
 * Every function that can fail returns a bt_status; 0 is success. The text that tells what
 * happened is thread-local and set once, where the fault is found: it names the file, the line
 * and what to do. Callers pass the status on unchanged (BT_TRY) or jump to a clean-up label. */
#ifndef BANTAM_BASE_STATUS_H
#define BANTAM_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bantam.h"

#if defined(__GNUC__)
#define BTI_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define BTI_PRINTF(fmt, args)
#endif

/* Sets the last-error text of this thread (cut at 2 KiB) and returns `status`. */
bt_status bti_fail(bt_status status, const char *fmt, ...) BTI_PRINTF(2, 3);
bt_status bti_vfail(bt_status status, const char *fmt, va_list ap);

/* Puts "prefix: " before the last-error text, for context that only the caller knows. */
bt_status bti_fail_prefix(bt_status status, const char *fmt, ...) BTI_PRINTF(2, 3);

/* Says something through the sink set by bt_set_log; silent without one. */
void bti_log(bt_log_level level, const char *fmt, ...) BTI_PRINTF(2, 3);
void bti_vlog(bt_log_level level, const char *fmt, va_list ap);

/* Returns from the calling function when `expr` is not BT_OK. */
#define BT_TRY(expr) \
    do { \
        bt_status bt_try_status_ = (expr); \
        if (bt_try_status_ != BT_OK) return bt_try_status_; \
    } while (0)

/* Allocation that counts: every heap request of our own code goes through these, so that tests can
 * count them and make the n-th one fail; jansson, libyaml and SentencePiece ask for theirs by
 * themselves. bti_alloc zeroes. NULL on failure with the error set. A request of 0 bytes gives a
 * valid pointer. */
void *bti_alloc(size_t count, size_t size);
void *bti_realloc(void *p, size_t count, size_t size);
void bti_free(void *p);
/* Makes room for `count` items in an array that doubles; what is new is not cleared. */
bt_status bti_grow(void **array, size_t *room, size_t count, size_t size);
char *bti_strdup(const char *s);
/* printf into a new string, numbers with a point; NULL on failure. */
char *bti_format(const char *fmt, ...) BTI_PRINTF(1, 2);

/* Requests made so far by all threads; the n-th request from now fails (0: none). For tests. */
uint64_t bti_alloc_count(void);
void bti_alloc_fail_at(uint64_t n);

#if defined(__clang_analyzer__) && !defined(__cplusplus)
/* What path analysis cannot see from here: a failure is no success, memory comes zeroed, and what
 * is not freed leaks. */
#include <stdlib.h>
#define bti_fail(status, ...) ((void)(bti_fail)(status, __VA_ARGS__), (status))
#define bti_alloc(count, size) calloc(count, size)
#define bti_realloc(p, count, size) realloc(p, (count) * (size))
#define bti_free(p) free(p)
#endif

#endif
