/* A call of CUDA's that does not return: a card that fell off the bus, a driver that hangs. Nothing
 * helps the thread that made it. Another one, which is there while a device is open or asked for,
 * tells the host program (BT_LOG_STALLED) of a call that lasts for longer than BANTAM_CUDA_TIMEOUT
 * seconds; what to do is the program's. It counts the times that it woke up, not a clock: a process
 * that was stopped, or a machine that slept, has not waited.
 *
 * A call costs its thread four stores to memory of its own, no lock and no allocation (but for a
 * thread's first). */
#include "backends/cuda.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define MOST_THREADS 64 /* that call CUDA at a time; further ones are not watched */
#define SECONDS 600     /* a whole update of a large model on a slow card, and some more */

/* What a thread is waiting for. */
typedef struct slot {
    atomic_int taken;   /* by a thread, until it ends */
    atomic_llong since; /* the tick at which the call began; 0: no call */
    _Atomic(const char *) what;
    _Atomic(const bt_host *) host;
} slot;

static slot slots[MOST_THREADS];
static atomic_llong ticks = 1; /* seconds in which the watcher ran */

/* Who is watched: held while the watcher is started or ended. */
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static int users; /* open devices, and those who ask for devices */
static int there; /* there is a watcher */
static pthread_t watcher;
static pthread_key_t own; /* each thread's slot */
static long long limit;   /* ticks; 0: none */

/* Between the watcher and who ends it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken;
static int over;

/* ---- the watcher -------------------------------------------------------------------------------
 */

/* Tells once of a call that lasts too long. A call that ends in the meantime has changed `since`,
 * and is left alone. */
static void look(slot *s, long long now) {
    long long since = atomic_load(&s->since);
    if (since == 0 || now - since <= limit) return;
    const char *what = atomic_load(&s->what);
    const bt_host *host = atomic_load(&s->host);
    if (!atomic_compare_exchange_strong(&s->since, &since, 0)) return;
    bt_host_log(host, BT_LOG_STALLED,
                "cuda: %s has not come back for %lld s: the device or its driver hangs "
                "(BANTAM_CUDA_TIMEOUT is how many seconds a call may take; 0: any)",
                what, limit);
}

/* Sleeps for a second, or until the end: then 0. */
static int next_second(void) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_mutex_lock(&lock);
    while (!over && pthread_cond_timedwait(&woken, &lock, &until) == 0) continue;
    const int goes_on = !over;
    pthread_mutex_unlock(&lock);
    return goes_on;
}

static void *watch(void *unused) {
    while (next_second()) {
        const long long now = atomic_fetch_add(&ticks, 1) + 1;
        for (int i = 0; i < MOST_THREADS; i++) look(&slots[i], now);
    }
    return unused;
}

/* ---- start and end -----------------------------------------------------------------------------
 */

static void give_slot_back(void *s) { atomic_store(&((slot *)s)->taken, 0); }

/* Without signals: they are for the program's own threads. */
static int start_thread(void) {
    pthread_condattr_t attr;
    sigset_t all, before;
    sigfillset(&all);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&woken, &attr);
    pthread_condattr_destroy(&attr);
    over = 0;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int started = pthread_create(&watcher, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) pthread_cond_destroy(&woken);
    return started;
}

static void end_thread(void) {
    pthread_mutex_lock(&lock);
    over = 1;
    pthread_cond_signal(&woken);
    pthread_mutex_unlock(&lock);
    pthread_join(watcher, NULL);
    pthread_cond_destroy(&woken);
}

static void start(const bt_host *host) {
    const char *text = getenv("BANTAM_CUDA_TIMEOUT");
    limit = text ? strtoll(text, NULL, 10) : SECONDS;
    if (limit <= 0 || pthread_key_create(&own, give_slot_back) != 0) return;
    there = start_thread();
    if (there) return;
    pthread_key_delete(own);
    bt_host_log(host, BT_LOG_WARN,
                "cuda: no thread to watch calls with: one that hangs will not be told");
}

static void end(void) {
    if (!there) return;
    end_thread();
    pthread_key_delete(own); /* without what it does for each thread */
    for (int i = 0; i < MOST_THREADS; i++) atomic_store(&slots[i].taken, 0);
    there = 0;
}

void btcu_watch(const bt_host *host) {
    pthread_mutex_lock(&users_lock);
    if (users++ == 0) start(host);
    pthread_mutex_unlock(&users_lock);
}

void btcu_unwatch(void) {
    pthread_mutex_lock(&users_lock);
    if (--users == 0) end();
    pthread_mutex_unlock(&users_lock);
}

/* ---- calls -------------------------------------------------------------------------------------
 */

/* The calling thread's; NULL where there is none for it. */
static slot *own_slot(void) {
    if (!there) return NULL;
    slot *s = pthread_getspecific(own);
    for (int i = 0; i < MOST_THREADS && s == NULL; i++)
        if (atomic_load(&slots[i].taken) == 0 && atomic_exchange(&slots[i].taken, 1) == 0)
            if (pthread_setspecific(own, s = &slots[i]) != 0) atomic_store(&s->taken, 0), s = NULL;
    return s;
}

void btcu_begin(const bt_host *host, const char *what) {
    slot *s = own_slot();
    if (s == NULL) return;
    atomic_store_explicit(&s->host, host, memory_order_relaxed);
    atomic_store_explicit(&s->what, what, memory_order_relaxed);
    const long long now = atomic_load_explicit(&ticks, memory_order_relaxed);
    atomic_store_explicit(&s->since, now, memory_order_release);
}

int btcu_end(int code) {
    slot *s = own_slot();
    if (s != NULL) atomic_store_explicit(&s->since, 0, memory_order_release);
    return code;
}
