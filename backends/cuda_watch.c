/* A call of CUDA's that does not return: a card that fell off the bus, a driver that hangs. Nothing
 * can be done in the thread that made it; another one looks every second, and when a call has
 * lasted for BANTAM_CUDA_TIMEOUT seconds it tells the host program (BT_LOG_STALLED), which ends. */
#include "backends/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MOST_THREADS 64 /* that call CUDA; later ones share the last place */
#define SECONDS 600     /* a whole update of a large model on a slow card, and some more */

/* What a thread is waiting for. */
typedef struct slot {
    atomic_llong since; /* seconds on the clock; 0: for nothing */
    _Atomic(const char *) what;
    _Atomic(const bt_host *) host;
} slot;

static slot slots[MOST_THREADS];
static atomic_int taken;
static pthread_key_t own; /* each thread's slot */
static long long limit = SECONDS;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static long long seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec + 1;
}

static void tell(const bt_host *host, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(const bt_host *host, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    host->vlog(BT_LOG_STALLED, fmt, ap);
    va_end(ap);
}

static void look(slot *s) {
    const long long since = atomic_load(&s->since);
    if (since == 0 || seconds() - since < limit) return;
    atomic_store(&s->since, 0); /* once */
    tell(atomic_load(&s->host),
         "cuda: %s has not come back for %lld s: the device or its driver hangs "
         "(BANTAM_CUDA_TIMEOUT is how long this may take)",
         atomic_load(&s->what), limit);
}

static void *watch(void *unused) {
    (void)unused;
    for (;;) {
        const struct timespec second = {.tv_sec = 1};
        nanosleep(&second, NULL);
        for (int i = 0; i < MOST_THREADS; i++) look(&slots[i]);
    }
    return NULL;
}

static void start(void) {
    const char *text = getenv("BANTAM_CUDA_TIMEOUT");
    const long long asked = text ? strtoll(text, NULL, 10) : 0;
    pthread_t thread;
    if (asked > 0) limit = asked;
    pthread_key_create(&own, NULL);
    if (pthread_create(&thread, NULL, watch, NULL) == 0) pthread_detach(thread);
}

/* A slot that the calling thread keeps. */
static slot *own_slot(void) {
    pthread_once(&once, start);
    slot *s = pthread_getspecific(own);
    if (s != NULL) return s;
    const int i = atomic_fetch_add(&taken, 1);
    s = &slots[i < MOST_THREADS ? i : MOST_THREADS - 1];
    pthread_setspecific(own, s);
    return s;
}

void btcu_begin(const bt_host *host, const char *what) {
    slot *s = own_slot();
    atomic_store_explicit(&s->host, host, memory_order_relaxed);
    atomic_store_explicit(&s->what, what, memory_order_relaxed);
    atomic_store(&s->since, seconds());
}

int btcu_end(int code) {
    atomic_store(&own_slot()->since, 0);
    return code;
}
