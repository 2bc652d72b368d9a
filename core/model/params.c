#include "core/model/params.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/num.h"
#include "core/base/philox.h"
#include "core/base/status.h"
#include "core/base/text.h"

int32_t bti_params_add(bti_params *t, const char *name, int dims, int64_t rows, int64_t cols,
                       bti_init init) {
    if (t->count == t->capacity) {
        int32_t n = t->capacity ? 2 * t->capacity : 64;
        bti_param *q = bti_realloc(t->param, (size_t)n, sizeof *q);
        if (q == NULL) return -1;
        t->param = q;
        t->capacity = n;
    }
    bti_param *p = &t->param[t->count];
    *p = (bti_param){.rows = rows, .cols = cols, .dims = dims, .init = init, .grad_rows = rows};
    snprintf(p->name, sizeof p->name, "%s", name);
    t->elements += rows * cols;
    return t->count++;
}

void bti_params_compact(bti_params *t, int32_t i, int64_t rows) {
    bti_param *p = &t->param[i];
    p->compact = rows > 0;
    p->grad_rows = rows > 0 ? rows : p->rows;
}

/* The next place for `bytes` at or after *at, in one heap; *at becomes its end. */
static bt_status take(uint64_t *at, uint64_t bytes, uint64_t alignment, uint64_t heap,
                      const char *name, uint64_t *address) {
    *at = bti_align_up(*at, alignment);
    if (heap && bytes > heap) {
        char need[32], most[32];
        bti_format_bytes(bytes, need);
        bti_format_bytes(heap, most);
        return bti_fail(BT_EFIT,
                        "parameter %s needs %s, more than the device gives in one allocation (%s)",
                        name, need, most);
    }
    if (heap && bytes && *at / heap != (*at + bytes - 1) / heap) *at = bti_align_up(*at, heap);
    *address = *at;
    *at += bytes;
    return BT_OK;
}

bt_status bti_params_place(bti_params *t, uint64_t alignment, uint64_t heap) {
    enum { DENSE, COMPACT, FROZEN };
    uint64_t at = 0, grad_at = 0, size = bti_dtype_size(t->dtype);
    for (int kind = DENSE; kind <= FROZEN; kind++) {
        for (int32_t i = 0; i < t->count; i++) {
            bti_param *p = &t->param[i];
            if (kind != (p->frozen ? FROZEN : p->compact ? COMPACT : DENSE)) continue;
            BT_TRY(take(&at, (uint64_t)(p->rows * p->cols) * size, alignment, heap, p->name,
                        &p->address));
            p->grad_address = 0;
            if (kind == FROZEN) continue;
            BT_TRY(take(&grad_at, (uint64_t)(p->grad_rows * p->cols) * size, alignment, heap,
                        p->name, &p->grad_address));
            p->grad_end = bti_align_up(grad_at, alignment);
        }
        if (kind == DENSE) t->dense_bytes = bti_align_up(at, alignment);
        if (kind == COMPACT) t->trained = bti_align_up(at, alignment);
    }
    t->bytes = bti_align_up(at, alignment);
    t->grad_bytes = bti_align_up(grad_at, alignment);
    return BT_OK;
}

int64_t bti_params_frozen(const bti_params *t) {
    int64_t n = 0;
    for (int32_t i = 0; i < t->count; i++)
        if (t->param[i].frozen) n += t->param[i].rows * t->param[i].cols;
    return n;
}

int32_t bti_params_find(const bti_params *t, const char *name) {
    for (int32_t i = 0; i < t->count; i++)
        if (strcmp(t->param[i].name, name) == 0) return i;
    return -1;
}

void bti_params_clear(bti_params *t) {
    bti_free(t->param);
    memset(t, 0, sizeof *t);
}

/* Uniform in (0, 1), 32 random bits. */
static double uniform(uint32_t word) { return ((double)word + 0.5) / 4294967296.0; }

void bti_params_init(const bti_params *t, int32_t i, uint64_t seed, int64_t from, int64_t count,
                     void *out) {
    const bti_param *p = &t->param[i];
    int64_t end = from + count;
    double a = sqrt(6.0 / (double)(p->rows + p->cols)), sigma = 1.0 / sqrt((double)p->cols);
    for (int64_t k = from; k < end; k += 4) {
        double x[4] = {0};
        if (p->init == BTI_INIT_ONE) x[0] = x[1] = x[2] = x[3] = 1;
        if (p->init == BTI_INIT_XAVIER || p->init == BTI_INIT_EMBEDDING) {
            int64_t quad = k / 4;
            bt_philox4 r = bti_philox(seed, 0, (uint32_t)i, (uint32_t)(quad >> 32), (uint32_t)quad);
            for (int j = 0; j < 4; j++) {
                double u = uniform(r.v[j]), w = uniform(r.v[j ^ 1]);
                /* Box and Muller: the pair (u, w) gives cosine for even j, sine for odd j. */
                double rad = sqrt(-2 * log(j & 1 ? w : u)),
                       phi = 6.283185307179586 * (j & 1 ? u : w);
                x[j] = p->init == BTI_INIT_XAVIER ? a * (2 * u - 1)
                                                  : sigma * rad * (j & 1 ? sin(phi) : cos(phi));
            }
        }
        for (int64_t j = 0; j < 4 && k + j < end; j++) bti_store(out, t->dtype, k - from + j, x[j]);
    }
}
