#include "core/session/distinct.h"

#include <string.h>

#include "core/base/status.h"

/* Ids that are looked at: about a second's work. */
#define MOST_IDS INT64_C(500000000)

bt_status bti_distinct_new(const int64_t vocab[2], int32_t start, bti_distinct *out) {
    *out = (bti_distinct){.start = start};
    for (int side = 0; side < 2; side++) {
        if (vocab[side] == 0) continue;
        out->last[side] = bti_alloc((size_t)vocab[side], sizeof *out->last[side]);
        if (out->last[side] == NULL) return BT_ENOMEM;
    }
    return BT_OK;
}

void bti_distinct_free(bti_distinct *d) {
    for (int side = 0; side < 2; side++) bti_free(d->last[side]);
    memset(d, 0, sizeof *d);
}

void bti_distinct_update(bti_distinct *d) {
    d->update++;
    d->found[0] = d->found[1] = 0;
}

static void add(bti_distinct *d, int side, const int32_t *ids, int64_t n) {
    uint32_t *last = d->last[side], update = d->update;
    int64_t found = d->found[side];
    for (int64_t j = 0; j < n; j++) {
        found += last[ids[j]] != update;
        last[ids[j]] = update;
    }
    d->found[side] = found;
    d->seen += n;
    if (found > d->most[side]) d->most[side] = found;
}

void bti_distinct_pair(bti_distinct *d, const bti_corpus *c, int64_t pair) {
    int64_t n;
    const int32_t *ids;
    if (d->seen > MOST_IDS) return;
    if (d->last[0] != NULL) {
        ids = bti_corpus_source(c, pair, &n);
        add(d, 0, ids, n);
    }
    if (d->last[1] == NULL) return;
    /* The decoder reads all but the last symbol, behind `start`. */
    ids = bti_corpus_target(c, pair, &n);
    add(d, 1, &d->start, n > 0);
    add(d, 1, ids, n > 0 ? n - 1 : 0);
}

int64_t bti_distinct_most(const bti_distinct *d, int side) {
    return d->seen > MOST_IDS ? 0 : d->most[side];
}
