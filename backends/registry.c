#include "backends/registry.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/builtin.h"
#include "backends/trace.h"
#include "core/base/status.h"
#include "core/ops/ops.h"

#ifdef BT_STATIC_CPU
const bt_driver *bt_module_driver_cpu(void); /* backends/cpu.c, linked in */
#define LINKED_CPU bt_module_driver_cpu
#else
#define LINKED_CPU NULL
#endif

/* One backend: a driver that is linked in, or the module bantam_<name>.so. */
typedef struct entry {
    const char *name;
    const bt_driver *builtin;
    bt_module_driver_fn linked;
    const bt_planning *planning; /* NULL: none yet */
} entry;

/* The one list, in order of preference for `auto`. */
#define BACKENDS(X) \
    X("cuda", NULL, NULL, &bti_planning_cuda) \
    X("opencl", NULL, NULL, &bti_planning_opencl) \
    X("cpu", NULL, LINKED_CPU, &bti_planning_cpu) \
    X("ref", &bti_driver_ref, NULL, &bti_planning_ref) \
    X("null", &bti_driver_null, NULL, &bti_planning_null)
#define ENTRY(name, builtin, linked, planning) {name, builtin, linked, planning},
#define NAME(name, builtin, linked, planning) name,

static const entry entries[] = {BACKENDS(ENTRY)};
#define ENTRIES (sizeof entries / sizeof entries[0])
#define MAX_REGISTERED 8
#define TRACE_PREFIX "trace:"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const bt_driver *loaded[ENTRIES];
static const bt_driver *registered[MAX_REGISTERED];
static size_t registered_count;

const char *const *bti_backend_names(void) {
    static const char *const names[] = {BACKENDS(NAME) NULL};
    return names;
}

static const entry *find(const char *name) {
    for (size_t i = 0; i < ENTRIES; i++)
        if (strcmp(entries[i].name, name) == 0) return &entries[i];
    return NULL;
}

static const bt_driver *find_registered(const char *name) {
    const bt_driver *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < registered_count; i++)
        if (strcmp(registered[i]->name, name) == 0) found = registered[i];
    pthread_mutex_unlock(&lock);
    return found;
}

int bti_backend_for_tests(const char *name) {
    const entry *e = find(name);
    return e == NULL || e->builtin != NULL;
}

const bt_planning *bti_backend_planning(const char *name) {
    const entry *e = find(name);
    if (e != NULL) return e->planning;
    const bt_driver *driver = find_registered(name);
    return driver != NULL ? driver->planning : NULL;
}

static bt_status unknown_name(const char *name) {
    char text[256];
    size_t n = 0;
    for (size_t i = 0; i < ENTRIES; i++)
        if (!bti_backend_for_tests(entries[i].name))
            n +=
                (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "", entries[i].name);
    return bti_fail(BT_EUSAGE,
                    "there is no backend \"%s\": choose one of %s; bantam devices lists what else "
                    "can be planned for",
                    name, text);
}

/* ---- modules ----------------------------------------------------------------------------------
 */

/* The folder of the file that holds this code: libbantam, or a program that links it in. */
static bt_status own_folder(char *out, size_t size) {
    Dl_info info;
    char exe[4096];
    const char *path = NULL;
    if (dladdr((const void *)entries, &info) != 0) path = info.dli_fname;
    if (path == NULL || strchr(path, '/') == NULL) { /* a program found through PATH */
        ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
        if (n < 0) return bti_fail(BT_EDEVICE, "cannot tell where libbantam lies");
        exe[n] = 0;
        path = exe;
    }
    size_t n = (size_t)(strrchr(path, '/') - path);
    if (n >= size) return bti_fail(BT_EDEVICE, "path too long: %s", path);
    memcpy(out, path, n);
    out[n] = 0;
    return BT_OK;
}

/* Path of a module: in BANTAM_MODULES when that is set, else beside libbantam, else in `bantam`
 * there. */
static bt_status module_path(const char *name, char *out, size_t size) {
    const char *env = getenv("BANTAM_MODULES");
    char dir[4096];
    if (env != NULL && env[0] != 0) {
        snprintf(out, size, "%s/bantam_%s.so", env, name);
        if (access(out, R_OK) == 0) return BT_OK;
        return bti_fail(BT_EDEVICE, "backend %s: no file %s (BANTAM_MODULES is set)", name, out);
    }
    BT_TRY(own_folder(dir, sizeof dir));
    snprintf(out, size, "%s/bantam_%s.so", dir, name);
    if (access(out, R_OK) == 0) return BT_OK;
    snprintf(out, size, "%s/bantam/bantam_%s.so", dir, name);
    if (access(out, R_OK) == 0) return BT_OK;
    return bti_fail(BT_EDEVICE,
                    "backend %s: no file bantam_%s.so in %s or %s/bantam: build it, or set "
                    "BANTAM_MODULES to its folder",
                    name, name, dir, dir);
}

static bt_status check_abi(const char *name, const char *where, const bt_driver *driver) {
    if (driver == NULL) return bti_fail(BT_EDEVICE, "backend %s: %s gives no driver", name, where);
    if (driver->abi == BT_BACKEND_ABI) return BT_OK;
    return bti_fail(BT_EDEVICE, "backend %s: %s is built for interface %u, this program for %u",
                    name, where, driver->abi, (unsigned)BT_BACKEND_ABI);
}

static bt_status load_module(const char *name, const bt_driver **out) {
    char path[4200];
    BT_TRY(module_path(name, path, sizeof path));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return bti_fail(BT_EDEVICE, "backend %s: %s", name, dlerror());
    bt_module_driver_fn entry_point = NULL;
    void *symbol = dlsym(handle, BT_MODULE_SYMBOL);
    memcpy(&entry_point, &symbol, sizeof entry_point); /* ISO C has no such cast */
    if (entry_point == NULL) {
        dlclose(handle);
        return bti_fail(BT_EDEVICE, "backend %s: %s has no %s", name, path, BT_MODULE_SYMBOL);
    }
    const bt_driver *driver = entry_point();
    bt_status status = check_abi(name, path, driver);
    if (status != BT_OK) {
        dlclose(handle);
        return status;
    }
    *out = driver;
    return BT_OK;
}

static bt_status load(const entry *e, const bt_driver **out) {
    if (e->builtin != NULL) {
        *out = e->builtin;
        return BT_OK;
    }
    if (e->linked == NULL) return load_module(e->name, out);
    const bt_driver *driver = e->linked();
    BT_TRY(check_abi(e->name, "the linked driver", driver));
    *out = driver;
    return BT_OK;
}

bt_status bti_backend_driver(const char *name, const bt_driver **out) {
    const entry *e = find(name);
    if (e == NULL) {
        const bt_driver *driver = find_registered(name);
        if (driver == NULL) return unknown_name(name);
        *out = driver;
        return BT_OK;
    }
    bt_status status = BT_OK;
    pthread_mutex_lock(&lock);
    const bt_driver **slot = &loaded[e - entries];
    if (*slot == NULL) status = load(e, slot);
    if (status == BT_OK) *out = *slot;
    pthread_mutex_unlock(&lock);
    return status;
}

bt_status bti_backend_register(const bt_driver *driver) {
    BT_TRY(check_abi(driver->name, "the registered driver", driver));
    if (find(driver->name) != NULL)
        return bti_fail(BT_EINTERNAL, "backend %s is built in", driver->name);
    if (find_registered(driver->name) == driver) return BT_OK;
    bt_status status = BT_OK;
    pthread_mutex_lock(&lock);
    if (registered_count == MAX_REGISTERED)
        status = bti_fail(BT_EINTERNAL, "more than %d registered backends", MAX_REGISTERED);
    else
        registered[registered_count++] = driver;
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- devices ----------------------------------------------------------------------------------
 */

const bt_host *bti_host(void) {
    static const bt_host host = {BT_BACKEND_ABI, bti_vfail, bti_vlog};
    return &host;
}

/* Splits "cuda:1" into name and index. */
static bt_status parse_spec(const char *spec, char *name, size_t size, int *index) {
    const char *colon = strchr(spec, ':');
    size_t n = colon ? (size_t)(colon - spec) : strlen(spec);
    int value = 0;
    if (n == 0 || n >= size) return unknown_name(spec);
    if (colon != NULL) {
        const char *digits = colon + 1;
        size_t count = strspn(digits, "0123456789");
        if (count == 0 || count > 6 || digits[count] != 0)
            return bti_fail(BT_EUSAGE, "device \"%s\": \"%s\" is no device number", spec, digits);
        value = atoi(digits);
    }
    memcpy(name, spec, n);
    name[n] = 0;
    *index = value;
    return BT_OK;
}

static bt_status open_traced(const char *spec, const bt_open_options *options, bt_dev **out) {
    static const bt_trace_options trace = {.time = 1};
    bt_dev *inner = NULL;
    BT_TRY(bti_device_open(spec, options, &inner));
    bt_status status = bti_trace_wrap(inner, &trace, out);
    if (status != BT_OK) bti_device_close(inner);
    return status;
}

bt_status bti_device_open(const char *spec, const bt_open_options *options, bt_dev **out) {
    static const bt_open_options defaults = {0};
    if (strncmp(spec, TRACE_PREFIX, strlen(TRACE_PREFIX)) == 0)
        return open_traced(spec + strlen(TRACE_PREFIX), options, out);
    char name[64];
    int index = 0;
    const bt_driver *driver = NULL;
    if (bti_known_device_find(spec) != NULL)
        return bti_fail(BT_EUSAGE,
                        "%s is known from a table, for bantam plan: nothing runs on it; bantam "
                        "devices lists what is here",
                        spec);
    BT_TRY(parse_spec(spec, name, sizeof name, &index));
    BT_TRY(bti_backend_driver(name, &driver));
    bt_dev *dev = NULL;
    BT_TRY(driver->open(bti_host(), index, options ? options : &defaults, &dev));
    for (int op = 0; op < BT_OP_COUNT; op++)
        if (dev->op[op] == NULL && !bti_op_info((bt_op)op)->fused) {
            bt_status status =
                bti_fail(BT_EDEVICE, "backend %s lacks op %s", name, bti_op_info((bt_op)op)->name);
            bti_device_close(dev);
            return status;
        }
    *out = dev;
    return BT_OK;
}

void bti_device_close(bt_dev *dev) {
    if (dev != NULL) dev->ops->close(dev);
}
