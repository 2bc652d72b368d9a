/* Every number of a feature is looked at once, before training: it must be finite as fp32. On the
 * way come statistics and the checksum. Traffic: the files, once. */
#include "core/data/feature_index.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { LANES = 8, BLOCK = 2048 }; /* numbers; lanes are summed side by side */
#define FORGET (16u << 20)        /* bytes after which pages that were looked at may go */

typedef struct scan {
    const bti_features *f;
    const bti_feature_run *run;
    int64_t at; /* numbers of the run that were looked at */
    XXH64_state_t hash;
    float least[LANES], most[LANES];
    double sum[LANES];
    /* Rows with a number that is not finite, and the first such number. */
    int64_t bad_rows, last_bad;
    const bti_feature_run *bad_run;
    int64_t bad_at;
    float bad;
} scan;

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Minimum, maximum and sum of n numbers; are all of them finite? */
static int add_block(scan *s, const float *x, size_t n) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i += LANES) {
        size_t lanes = n - i < LANES ? n - i : LANES;
        for (size_t k = 0; k < lanes; k++) {
            float v = x[i + k];
            bad |= (bits_of(v) & 0x7F800000u) == 0x7F800000u;
            s->least[k] = v < s->least[k] ? v : s->least[k];
            s->most[k] = v > s->most[k] ? v : s->most[k];
            s->sum[k] += (double)v;
        }
    }
    return !bad;
}

static void note_bad(scan *s, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (isfinite(x[i])) continue;
        int64_t at = s->at + (int64_t)i, row = at / s->f->width;
        if (s->bad_rows == 0) {
            s->bad_run = s->run;
            s->bad_at = at;
            s->bad = x[i];
        }
        s->bad_rows += row != s->last_bad;
        s->last_bad = row;
    }
}

/* A bti_floats_fn. */
static bt_status look(void *user, const float *x, size_t n) {
    scan *s = user;
    while (n > 0) {
        size_t part = n < BLOCK ? n : BLOCK;
        XXH64_update(&s->hash, x, part * sizeof *x);
        if (!add_block(s, x, part)) note_bad(s, x, part);
        s->at += (int64_t)part;
        x += part;
        n -= part;
    }
    return BT_OK;
}

bt_status bti_feature_stopped(const volatile sig_atomic_t *stop) {
    if (stop == NULL || !*stop) return BT_OK;
    return bti_fail(BT_ESTOPPED, "nothing is written: features were being read");
}

/* Some numbers at a time, so that no more of a large file than that is resident. */
static bt_status look_at_run(scan *s, const void *map, const volatile sig_atomic_t *stop) {
    const bti_feature_run *r = s->run;
    uint64_t numbers = (uint64_t)(r->rows * s->f->width), all = numbers * (uint64_t)r->count;
    uint64_t size = bti_number_bytes((bti_number)r->place.type), step = FORGET / size;
    if (r->place.deflated) step = all;
    BT_TRY(bti_array_check(map, &r->place));
    for (uint64_t i = 0; i < all; i += step) {
        uint64_t n = all - i < step ? all - i : step;
        BT_TRY(bti_feature_stopped(stop));
        BT_TRY(bti_feature_numbers(s->f, r, map, i, n, look, s));
    }
    return BT_OK;
}

static bt_status refuse(const scan *s) {
    const bti_feature_run *r = s->bad_run;
    const bti_feature_file *file = &s->f->file[r->file];
    int64_t row = s->bad_at / s->f->width, column = s->bad_at % s->f->width + 1;
    int64_t example = r->first - file->before + row / r->rows + 1;
    char place[64] = "";
    if (r->count == 1 || r->rows > 1) /* else each row is an example, and there is one array */
        snprintf(place, sizeof place, "example %" PRId64 ", ", example);
    return bti_fail(BT_EINPUT,
                    "%s: %srow %" PRId64 ", column %" PRId64 " is %s; rows with NaN or infinity in "
                    "all: %" PRId64 "; every number must be finite as float32",
                    file->path, place, r->rows == 1 && r->count > 1 ? example : row % r->rows + 1,
                    column, isnan(s->bad) ? "NaN" : "infinity", s->bad_rows);
}

static void sum_up(scan *s, bti_features *f) {
    bti_features_stats *t = &f->stats;
    double sum = 0;
    *t = (bti_features_stats){.least_rows = INT64_MAX, .least = INFINITY, .most = -INFINITY};
    for (size_t i = 0; i < f->runs; i++) {
        const bti_feature_run *r = &f->run[i];
        for (int64_t k = 0; k < r->count; k++) XXH64_update(&s->hash, &r->rows, sizeof r->rows);
        t->rows += r->rows * r->count;
        if (r->rows < t->least_rows) t->least_rows = r->rows;
        if (r->rows > t->most_rows) t->most_example = r->first;
        if (r->rows > t->most_rows) t->most_rows = r->rows;
    }
    for (int k = 0; k < LANES; k++) {
        if ((double)s->least[k] < t->least) t->least = (double)s->least[k];
        if ((double)s->most[k] > t->most) t->most = (double)s->most[k];
        sum += s->sum[k];
    }
    t->mean = sum / ((double)t->rows * (double)f->width);
    f->checksum = XXH64_digest(&s->hash);
}

bt_status bti_feature_scan(bti_features *f, const volatile sig_atomic_t *stop) {
    scan s = {.f = f, .last_bad = -1};
    XXH64_reset(&s.hash, 0);
    XXH64_update(&s.hash, f->name, strlen(f->name) + 1);
    XXH64_update(&s.hash, &f->width, sizeof f->width);
    for (int k = 0; k < LANES; k++) {
        s.least[k] = INFINITY;
        s.most[k] = -INFINITY;
    }
    for (size_t i = 0; i < f->runs; i++) {
        const bti_feature_run *r = &f->run[i];
        const void *map;
        s.run = r;
        s.at = 0;
        s.last_bad = -1;
        BT_TRY(bti_feature_map(f, r, &map));
        bt_status status = look_at_run(&s, map, stop);
        bti_feature_unmap(f, r, map);
        if (status == BT_EINPUT)
            return bti_fail_prefix(status, "%s: example %" PRId64, f->file[r->file].path,
                                   r->first - f->file[r->file].before + 1);
        BT_TRY(status);
    }
    if (s.bad_rows > 0) return refuse(&s);
    sum_up(&s, f);
    return BT_OK;
}
