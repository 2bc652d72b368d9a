/* The backends that this build knows, and how a device is found by name. */
#ifndef BANTAM_BACKENDS_REGISTRY_H
#define BANTAM_BACKENDS_REGISTRY_H

#include "backends/backend.h"

/* Names in order of preference for `auto`; NULL-terminated. */
const char *const *bti_backend_names(void);

/* Is it for tests only (ref, null)? Then `auto` never takes it. */
int bti_backend_for_tests(const char *name);

/* The planning half of a backend by name, module or not; NULL when unknown. */
const bt_planning *bti_backend_planning(const char *name);

/* The driver of a backend: built in, or loaded from its module (looked for in BANTAM_MODULES, then
 * beside libbantam) and checked for its ABI number. BT_EDEVICE with the reason when it cannot be
 * had. Modules are loaded once and never closed. Thread-safe. */
bt_status bti_backend_driver(const char *name, const bt_driver **out);

/* Opens "cpu", "cuda", "cuda:1", "ref", "null", "trace:cpu" ... "auto" is resolved by the caller. A
 * wrong name is BT_EUSAGE naming those there are. */
bt_status bti_device_open(const char *spec, const bt_open_options *options, bt_dev **out);
void bti_device_close(bt_dev *dev); /* NULL is fine */

/* A device that can be planned for without being here. Rates are peaks. */
typedef struct bti_known_device {
    const char *name, *title, *backend; /* "k80", "Tesla K80", whose planning half */
    uint64_t total_bytes, runtime_bytes;
    double flops, bytes_per_s;
    int major, minor; /* compute capability */
} bti_known_device;
const bti_known_device *bti_known_devices(size_t *count);
/* By name, whatever its case, blanks and hyphens; NULL: none. */
const bti_known_device *bti_known_device_find(const char *name);
/* A device that answers what planning asks (info, query, the driver's planning half) and can do
 * nothing: alloc fails, there are no ops. Nobody holds any of its memory. */
bt_status bti_device_open_known(const bti_known_device *known, bt_dev **out);

/* The host table given to every backend. */
const bt_host *bti_host(void);

/* For tests: adds a driver of their own (tests/far.c). At most 8. */
bt_status bti_backend_register(const bt_driver *driver);

/* user_files.c: a file of rates that is to hold for any device (BANTAM_RATES), NULL when none is
 * named; and `name` in the user's cache folder (bantam/ below XDG_CACHE_HOME or ~/.cache), a new
 * string, NULL when there is no such folder. */
const char *bti_user_rates(void);
char *bti_user_cache(const char *name);

#endif
