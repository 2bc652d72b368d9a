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

/* The host table given to every backend. */
const bt_host *bti_host(void);

/* For tests: adds a driver of their own (tests/far.c). At most 8. */
bt_status bti_backend_register(const bt_driver *driver);

#endif
