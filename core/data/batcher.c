#include "core/data/batcher.h"

#include "core/base/philox.h"
#include "core/base/status.h"

#include <inttypes.h>

struct bti_batcher {
    const bti_corpus *corpus;
    int64_t batch;
    bti_batch_unit unit;
    uint64_t key;
    int64_t *order; /* [pairs], the permutation of `epoch` */
    int64_t pairs;
    int64_t epoch;       /* 0: none yet */
    int64_t update;      /* the one that begins at `place` of the order; from 1 over all epochs */
    int64_t place, size; /* size: pairs of that update, 0 when not cut yet */
};

bt_status bti_batcher_new(const bti_corpus *c, int64_t batch, bti_batch_unit unit, uint64_t seed,
                          bti_batcher **out) {
    if (batch < 1) return bti_fail(BT_EINPUT, "training.batch is %" PRId64 ": at least 1", batch);
    bti_batcher *b = bti_alloc(1, sizeof *b);
    if (b == NULL) return BT_ENOMEM;
    *b = (bti_batcher){.corpus = c, .batch = batch, .unit = unit, .pairs = bti_corpus_count(c)};
    b->key = seed ^ UINT64_C(0x6F72646572); /* "order": not the stream that dropout draws from */
    b->order = bti_alloc((size_t)b->pairs, sizeof *b->order);
    if (b->order == NULL) {
        bti_free(b);
        return BT_ENOMEM;
    }
    *out = b;
    return BT_OK;
}

void bti_batcher_free(bti_batcher *b) {
    if (b == NULL) return;
    bti_free(b->order);
    bti_free(b);
}

/* Below n, from 64 random bits: the product's upper half. Off from uniform by n / 2^64 at most. */
static int64_t below(uint64_t bits, int64_t n) {
    return (int64_t)((unsigned __int128)bits * (uint64_t)n >> 64);
}

/* Each epoch starts from the identity, so that it can be had without those before it. */
static void shuffle(bti_batcher *b, int64_t epoch) {
    for (int64_t i = 0; i < b->pairs; i++) b->order[i] = i;
    for (int64_t i = b->pairs - 1; i > 0; i--) {
        bt_philox4 r = bti_philox(b->key, (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)epoch,
                                  (uint32_t)(epoch >> 32));
        int64_t j = below((uint64_t)r.v[1] << 32 | r.v[0], i + 1);
        int64_t t = b->order[i];
        b->order[i] = b->order[j];
        b->order[j] = t;
    }
    b->epoch = epoch;
}

/* Pairs of the update that begins at `place`. */
static int64_t cut(const bti_batcher *b, int64_t place) {
    int64_t n = 0, left = b->pairs - place, sum = 0, ids;
    if (b->unit == BTI_BATCH_SENTENCES) return b->batch < left ? b->batch : left;
    do {
        bti_corpus_target(b->corpus, b->order[place + n], &ids);
        sum += ids;
    } while ((n == 0 || sum <= b->batch) && ++n < left);
    return n;
}

static int64_t updates_of_sentences(const bti_batcher *b) {
    return b->pairs / b->batch + (b->pairs % b->batch != 0);
}

static void start_epoch(bti_batcher *b, int64_t epoch, int64_t first_update) {
    shuffle(b, epoch);
    b->update = first_update;
    b->place = 0;
    b->size = cut(b, 0);
}

static void step(bti_batcher *b) {
    if (b->place + b->size == b->pairs) {
        start_epoch(b, b->epoch + 1, b->update + 1);
        return;
    }
    b->place += b->size;
    b->update++;
    b->size = cut(b, b->place);
}

/* Sentences are counted, tokens must be gone through, from the present place or from the start. */
static void go_to(bti_batcher *b, int64_t update) {
    if (b->unit == BTI_BATCH_SENTENCES) {
        int64_t each = updates_of_sentences(b), epoch = (update - 1) / each + 1;
        if (epoch != b->epoch) shuffle(b, epoch);
        b->update = update;
        b->place = (update - 1) % each * b->batch;
        b->size = cut(b, b->place);
        return;
    }
    if (b->epoch == 0 || update < b->update) start_epoch(b, 1, 1);
    while (b->update < update) step(b);
}

bt_status bti_batcher_get(bti_batcher *b, int64_t update, const int64_t **pairs, int64_t *count,
                          int64_t *epoch) {
    if (update < 1)
        return bti_fail(BT_EINTERNAL, "update %" PRId64 " asked for: they start from 1", update);
    go_to(b, update);
    *pairs = b->order + b->place;
    *count = b->size;
    *epoch = b->epoch;
    return BT_OK;
}

int64_t bti_batcher_updates(bti_batcher *b, int64_t epochs) {
    if (b->unit == BTI_BATCH_SENTENCES) return epochs * updates_of_sentences(b);
    start_epoch(b, 1, 1);
    while (b->epoch <= epochs) step(b);
    return b->update - 1;
}
