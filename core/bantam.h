/* Bantam: trains Transformers in the memory you have, on the device you have.
 *
 * The only public header. Handles are opaque; every call that can fail returns a bt_status, and
 * bt_last_error() has the text. The library never prints, exits or aborts; texts and JSON that it
 * returns are freed with bt_free. One handle is used by one thread at a time. */
#ifndef BANTAM_H
#define BANTAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BT_API __attribute__((visibility("default")))
#else
#define BT_API
#endif

#define BT_VERSION "0.1.0"

/* X(name, text) */
#define BT_STATUSES(X) \
    X(BT_OK, "done") \
    X(BT_EUSAGE, "wrong usage") \
    X(BT_EINPUT, "bad input") \
    X(BT_EFIT, "does not fit in memory") \
    X(BT_ENOMEM, "host allocation failed") \
    X(BT_EIO, "input or output failed") \
    X(BT_EDEVICE, "device failed") \
    X(BT_ENUMERIC, "numbers are not finite") \
    X(BT_ESTOPPED, "stopped on request") \
    X(BT_EINTERNAL, "internal error")

typedef enum bt_status {
#define X(e, t) e,
    BT_STATUSES(X)
#undef X
        BT_STATUS_COUNT
} bt_status;

/* Short text of a status ("bad input"). */
BT_API const char *bt_status_text(bt_status status);
/* What failed last in this thread; "" when nothing did. Owned by the library. */
BT_API const char *bt_last_error(void);

typedef enum bt_log_level { BT_LOG_DEBUG, BT_LOG_INFO, BT_LOG_WARN } bt_log_level;
typedef void (*bt_log_fn)(void *user, bt_log_level level, const char *text);
/* Where notices and warnings go; NULL (the default) drops them. Not thread-safe: set it first. */
BT_API void bt_set_log(bt_log_fn fn, void *user);

/* Frees what a bt_ function returned as text. NULL is fine. */
BT_API void bt_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
