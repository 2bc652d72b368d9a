/* Work shared among the device's threads.
 *
 * A region is opened with all of them or not at all: OpenMP's runtime keeps the record of its last
 * team, and takes another from the heap for a team of another size, even of one. */
#ifndef BANTAM_CPU_PARALLEL_H
#define BANTAM_CPU_PARALLEL_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/kernels.h"

/* Items first .. end - 1 of the work that `ctx` describes. `slot` is below the thread count, and no
 * two calls at the same time have the same: it picks the scratch. */
typedef struct btcpu_part {
    const void *ctx;
    int slot;
    int64_t first, end;
} btcpu_part;

typedef void (*btcpu_part_fn)(const btcpu_part *part);

/* Calls fn for `count` items cut into `parts` (btcpu_parts), as even as can be; slot: the part. */
static inline void btcpu_run_parts(const bt_dev *dev, int parts, int64_t count, btcpu_part_fn fn,
                                   const void *ctx) {
    (void)dev; /* unused without OpenMP */
    if (parts == 1) {
        fn(&(btcpu_part){ctx, 0, 0, count});
        return;
    }
#pragma omp parallel for num_threads((int)dev->info.threads) schedule(static)
    for (int p = 0; p < parts; p++)
        fn(&(btcpu_part){ctx, p, btcpu_first(count, p, parts), btcpu_first(count, p + 1, parts)});
}

/* The same for items of unequal size that share no output: a free thread takes the next `chunk` of
 * them; slot: the thread. */
static inline void btcpu_run_tasks(const bt_dev *dev, int parts, int64_t count, int chunk,
                                   btcpu_part_fn fn, const void *ctx) {
    const int64_t chunks = (count + chunk - 1) / chunk;
    (void)dev;
    if (parts == 1 || chunks <= 1) {
        fn(&(btcpu_part){ctx, 0, 0, count});
        return;
    }
#pragma omp parallel for num_threads((int)dev->info.threads) schedule(dynamic, 1)
    for (int64_t c = 0; c < chunks; c++) {
        btcpu_part part = {ctx, 0, c * chunk, c + 1 < chunks ? (c + 1) * chunk : count};
#ifdef _OPENMP
        part.slot = omp_get_thread_num();
#endif
        fn(&part);
    }
}

#endif
