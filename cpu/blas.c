/* OpenBLAS, opened by its own path: the system's alternative may be another build. It is loaded
 * once for the process, told which processor this is where it would not know, and checked against
 * plain loops. Calls take turns, since the OpenMP build shares its buffers between callers. */
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/kernels.h"

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

static struct {
    pthread_mutex_t lock; /* of loading and of every call */
    void *handle;
    sgemm_fn sgemm;
    void (*set_threads)(int);
    int (*omp_max)(void); /* of the OpenMP runtime that the library uses; NULL: it uses none */
    void (*omp_set)(int);
    int (*omp_dynamic)(void);
    void (*omp_set_dynamic)(int);
    int threads; /* what the library was told last */
    int checked;
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#elif defined(__powerpc64__)
#define MULTIARCH "powerpc64le-linux-gnu"
#endif

static const char *const paths[] = {
#ifdef MULTIARCH
    "/usr/lib/" MULTIARCH "/openblas-openmp/libopenblas.so.0",
#endif
    "/usr/lib64/libopenblaso.so.0", /* Fedora's name of the OpenMP build */
    "libopenblas.so.0",
};
#define PATHS (sizeof paths / sizeof paths[0])

/* ---- loading --------------------------------------------------------------------------------- */

/* The kernels that suit this processor, by OpenBLAS's names; NULL: let it choose. Version 0.3.21
 * takes Intel models newer than itself for a Prescott, at a fifth of their speed. */
static const char *core_type(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return __builtin_cpu_is("amd") ? "ZEN" : "HASWELL";
#endif
    return NULL;
}

/* Opens the library with the core type in the environment for as long as loading takes (it is read
 * by the library's constructor). */
static void *load(void) {
    const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : core_type();
    if (core) setenv("OPENBLAS_CORETYPE", core, 1);
    void *handle = NULL;
    for (size_t i = 0; i < PATHS && !handle; i++) handle = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
    if (core) unsetenv("OPENBLAS_CORETYPE");
    return handle;
}

/* dlsym gives an object pointer; POSIX says that it may be read as a function's. */
static void symbol(void *handle, const char *name, void *out) {
    void *p = dlsym(handle, name);
    memcpy(out, &p, sizeof p);
}

static bt_status load_locked(const bt_host *host) {
    blas.handle = load();
    if (!blas.handle)
        return bt_host_fail(host, BT_EDEVICE,
                            "OpenBLAS cannot be loaded (%s): install libopenblas0-openmp",
                            dlerror());
    symbol(blas.handle, "cblas_sgemm", &blas.sgemm);
    symbol(blas.handle, "openblas_set_num_threads", &blas.set_threads);
    if (!blas.sgemm || !blas.set_threads) {
        dlclose(blas.handle);
        blas.handle = NULL;
        return bt_host_fail(host, BT_EDEVICE,
                            "%s is no OpenBLAS: cblas_sgemm or "
                            "openblas_set_num_threads is missing",
                            paths[PATHS - 1]);
    }
    int (*parallel)(void) = NULL;
    symbol(blas.handle, "openblas_get_parallel", &parallel);
    if (parallel && parallel() == 2) { /* the OpenMP build */
        symbol(blas.handle, "omp_get_max_threads", &blas.omp_max);
        symbol(blas.handle, "omp_set_num_threads", &blas.omp_set);
        symbol(blas.handle, "omp_get_dynamic", &blas.omp_dynamic);
        symbol(blas.handle, "omp_set_dynamic", &blas.omp_set_dynamic);
    }
#ifdef _OPENMP
    if (blas.omp_max && blas.omp_max != omp_get_max_threads) {
        blas.sgemm = NULL;
        return bt_host_fail(host, BT_EDEVICE,
                            "OpenBLAS brought a second OpenMP runtime into the process: "
                            "use the build for gcc's libgomp (libopenblas0-openmp)");
    }
#endif
    return BT_OK;
}

/* ---- calling --------------------------------------------------------------------------------- */

/* The calling thread's OpenMP settings, to be put back. */
typedef struct omp_state {
    int threads, dynamic;
} omp_state;

/* The OpenMP build follows the calling thread's OpenMP setting, the other build its own. It must
 * get all the threads it counts on (its workers wait for each other), so that OpenMP must not
 * adjust their number; a limit of threads is respected when the device is opened. */
static omp_state set_threads(int threads) {
    const int omp = blas.omp_max && blas.omp_set && blas.omp_dynamic && blas.omp_set_dynamic;
    omp_state before = {0, 0};
    if (omp) before = (omp_state){blas.omp_max(), blas.omp_dynamic()};
    if (blas.threads != threads) {
        blas.set_threads(threads); /* sets the caller's OpenMP threads, too */
        blas.threads = threads;
    }
    if (omp && blas.omp_max() != threads) blas.omp_set(threads);
    if (before.dynamic) blas.omp_set_dynamic(0);
    return before;
}

static void restore_threads(omp_state before) {
    if (before.threads > 0 && blas.omp_max() != before.threads) blas.omp_set(before.threads);
    if (before.dynamic) blas.omp_set_dynamic(1);
}

static void call_locked(int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                        float *c, int64_t ldc) {
    blas.sgemm(ROW_MAJOR, ta ? TRANSPOSED : PLAIN, tb ? TRANSPOSED : PLAIN, (int)m, (int)n, (int)k,
               alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

#define SLICE ((int64_t)1 << 30)

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Rows at a time. The library packs as many as its buffers hold, 128 MiB a thread with some, and
 * keeps what it touched: that it gets no more bounds this, and costs nothing to speak of. */
static int64_t row_slice(int threads) { return threads > 4 ? (int64_t)threads * 1024 : 4096; }

/* The library's sizes are int: larger ones are cut. A leading dimension past int can only belong to
 * a matrix that has rows so long; cutting does not help, but memory does not hold two such rows
 * either, and of a single row the leading dimension does not matter. */
static void call_sliced(int threads, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                        float *c, int64_t ldc) {
    const int64_t rows = row_slice(threads);
    for (int64_t i = 0; i < m; i += rows) {
        for (int64_t j = 0; j < n; j += SLICE) {
            for (int64_t l = 0; l < k; l += SLICE) {
                const float *ai = a + (ta ? l * lda + i : i * lda + l);
                const float *bi = b + (tb ? j * ldb + l : l * ldb + j);
                call_locked(ta, tb, least(m - i, rows), least(n - j, SLICE), least(k - l, SLICE),
                            alpha, ai, least(lda, INT_MAX), bi, least(ldb, INT_MAX),
                            l > 0 ? 1.0f : beta, c + i * ldc + j, least(ldc, INT_MAX));
            }
        }
    }
}

void btcpu_sgemm(int threads, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha,
                 const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                 int64_t ldc) {
    pthread_mutex_lock(&blas.lock);
    omp_state before = set_threads(threads);
    call_sliced(threads, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    restore_threads(before);
    pthread_mutex_unlock(&blas.lock);
}

/* ---- checking -------------------------------------------------------------------------------- */

/* One product of whole numbers below 2^24, exact in fp32 whatever the order of sums; with beta 0
 * into NaN, which must not be read. */
static int check_product(int ta, int tb, const int64_t size[3], int beta, float *a, float *b,
                         float *c) {
    const int64_t m = size[0], n = size[1], k = size[2];
    for (int64_t i = 0; i < m * k; i++) a[i] = (float)((i * 7 + i / 13) % 11 - 5);
    for (int64_t i = 0; i < k * n; i++) b[i] = (float)((i * 5 + i / 7) % 9 - 4);
    for (int64_t i = 0; i < m * n; i++) c[i] = beta ? 3.0f : NAN;
    call_locked(ta, tb, m, n, k, 2.0f, a, ta ? m : k, b, tb ? k : n, (float)beta, c, n);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            int64_t sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum +=
                    (int64_t)a[ta ? l * m + i : i * k + l] * (int64_t)b[tb ? j * k + l : l * n + j];
            if (!(c[i * n + j] == (float)(2 * sum + 3 * beta))) return 0;
        }
    }
    return 1;
}

static bt_status check_locked(const bt_host *host) {
    static const int64_t sizes[][3] = {{3, 5, 7}, {33, 17, 64}, {70, 130, 65}};
    float *room = malloc(3 * 130 * 130 * sizeof *room);
    if (!room) return bt_host_fail(host, BT_ENOMEM, "no memory to check OpenBLAS");
    bt_status status = BT_OK;
    omp_state before = set_threads(1);
    for (int i = 0; i < 24 && status == BT_OK; i++) {
        const int64_t *s = sizes[i / 8];
        if (!check_product(i & 1, i >> 1 & 1, s, i >> 2 & 1, room, room + 130 * 130,
                           room + 2 * 130 * 130))
            status = bt_host_fail(
                host, BT_EDEVICE,
                "OpenBLAS gives a wrong product (%lld x %lld x %lld, orientation %d): its "
                "kernels do not suit this processor; set OPENBLAS_CORETYPE (HASWELL, "
                "SANDYBRIDGE) or install another version",
                (long long)s[0], (long long)s[1], (long long)s[2], i % 8);
    }
    restore_threads(before);
    free(room);
    return status;
}

bt_status btcpu_blas_open(const bt_host *host) {
    pthread_mutex_lock(&blas.lock);
    bt_status status = blas.sgemm ? BT_OK : load_locked(host);
    if (status == BT_OK && !blas.checked) {
        status = check_locked(host);
        blas.checked = status == BT_OK;
    }
    pthread_mutex_unlock(&blas.lock);
    return status;
}

int btcpu_blas_probe(char *reason, size_t reason_size) {
    pthread_mutex_lock(&blas.lock);
    int found = blas.handle != NULL;
    for (size_t i = 0; i < PATHS && !found; i++) {
        if (paths[i][0] == '/') {
            FILE *f = fopen(paths[i], "rb");
            found = f != NULL;
            if (f) fclose(f);
        } else {
            blas.handle = load(); /* where the loader looks is its own affair */
            found = blas.handle != NULL;
        }
    }
    pthread_mutex_unlock(&blas.lock);
    if (!found)
        snprintf(reason, reason_size,
                 "no libopenblas.so.0 (tried %s and the system's library "
                 "path): install libopenblas0-openmp",
                 paths[0]);
    return found;
}
