#include "core/data/batcher.h"

#include "core/base/philox.h"
#include "core/base/status.h"

#include <inttypes.h>

#define ROUNDS 6

struct bti_batcher {
    const bti_corpus *corpus;
    int64_t batch;
    bti_batch_unit unit;
    uint64_t key;
    int64_t pairs;
    int high, low;              /* bits of a place: 2^(high + low) >= pairs */
    uint64_t round_key[ROUNDS]; /* of `epoch` */
    int64_t epoch;              /* 0: none yet */
    int64_t update;             /* the one that begins at `place`; from 1 over all epochs */
    int64_t place, size;        /* size: pairs of that update */
    int64_t *pair;              /* [room], those of that update */
};

bt_status bti_batcher_new(const bti_corpus *c, int64_t count, int64_t batch, bti_batch_unit unit,
                          uint64_t seed, bti_batcher **out) {
    if (batch < 1) return bti_fail(BT_EINPUT, "training.batch is %" PRId64 ": at least 1", batch);
    bti_batcher *b = bti_alloc(1, sizeof *b);
    if (b == NULL) return BT_ENOMEM;
    if (c == NULL) unit = BTI_BATCH_SENTENCES;
    *b = (bti_batcher){.corpus = c, .batch = batch, .unit = unit, .pairs = count};
    b->key = seed ^ UINT64_C(0x6F72646572); /* "order": not the stream that dropout draws from */
    while (b->high + b->low < 62 && (int64_t)1 << (b->high + b->low) < b->pairs)
        b->low > b->high ? b->high++ : b->low++;
    /* A pair has at least one target token, its end symbol. */
    b->pair = bti_alloc((size_t)(batch < b->pairs ? batch : b->pairs), sizeof *b->pair);
    if (b->pair == NULL) {
        bti_free(b);
        return BT_ENOMEM;
    }
    *out = b;
    return BT_OK;
}

void bti_batcher_free(bti_batcher *b) {
    if (b == NULL) return;
    bti_free(b->pair);
    bti_free(b);
}

static void set_epoch(bti_batcher *b, int64_t epoch) {
    for (int i = 0; i < ROUNDS; i++) {
        bt_philox4 r = bti_philox(b->key, (uint32_t)i, (uint32_t)b->pairs, (uint32_t)epoch,
                                  (uint32_t)(epoch >> 32));
        b->round_key[i] = (uint64_t)r.v[1] << 32 | r.v[0];
    }
    b->epoch = epoch;
}

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

/* The pair at a place of the epoch's order. A Feistel network permutes 0 .. 2^(high + low) - 1,
 * whatever its rounds compute: each changes one part by a function of the other. From a number
 * below `pairs` it is applied until the result is below again, fewer than two times on average,
 * which permutes those alone. */
static int64_t pair_at(const bti_batcher *b, int64_t place) {
    const uint64_t high_mask = ((uint64_t)1 << b->high) - 1, low_mask = ((uint64_t)1 << b->low) - 1;
    uint64_t x = (uint64_t)place;
    do {
        uint64_t high = x >> b->low, low = x & low_mask;
        for (int i = 0; i < ROUNDS; i += 2) {
            high ^= mix(low ^ b->round_key[i]) & high_mask;
            low ^= mix(high ^ b->round_key[i + 1]) & low_mask;
        }
        x = high << b->low | low;
    } while (x >= (uint64_t)b->pairs);
    return (int64_t)x;
}

/* Finds the pairs of the update that begins at `place`. */
static void cut(bti_batcher *b) {
    int64_t left = b->pairs - b->place, sum = 0, ids;
    b->size = 0;
    while (b->size < left && b->size < b->batch) {
        int64_t pair = pair_at(b, b->place + b->size);
        if (b->unit == BTI_BATCH_TARGET_TOKENS) {
            bti_corpus_target(b->corpus, pair, &ids);
            sum += ids;
            if (sum > b->batch && b->size > 0) break;
        }
        b->pair[b->size++] = pair;
    }
}

static int64_t updates_of_sentences(const bti_batcher *b) {
    return b->pairs / b->batch + (b->pairs % b->batch != 0);
}

static void start_epoch(bti_batcher *b, int64_t epoch, int64_t first_update) {
    set_epoch(b, epoch);
    b->update = first_update;
    b->place = 0;
    cut(b);
}

static void step(bti_batcher *b) {
    if (b->place + b->size == b->pairs) {
        start_epoch(b, b->epoch + 1, b->update + 1);
        return;
    }
    b->place += b->size;
    b->update++;
    cut(b);
}

/* Sentences are counted, tokens must be gone through, from the present place or from the start. */
static void go_to(bti_batcher *b, int64_t update) {
    if (b->unit == BTI_BATCH_SENTENCES) {
        int64_t each = updates_of_sentences(b), epoch = (update - 1) / each + 1;
        if (epoch != b->epoch) set_epoch(b, epoch);
        b->update = update;
        b->place = (update - 1) % each * b->batch;
        cut(b);
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
    *pairs = b->pair;
    *count = b->size;
    *epoch = b->epoch;
    return BT_OK;
}

bt_status bti_batcher_updates(bti_batcher *b, int64_t epochs, int64_t most,
                              const volatile sig_atomic_t *stop, int64_t *out) {
    if (most == 0) most = INT64_MAX - 1;
    if (b->unit == BTI_BATCH_SENTENCES) {
        int64_t each = updates_of_sentences(b);
        *out = epochs > most / each ? most : epochs * each;
        return BT_OK;
    }
    start_epoch(b, 1, 1);
    while (b->epoch <= epochs && b->update <= most) {
        if (stop != NULL && *stop)
            return bti_fail(BT_ESTOPPED, "nothing is written: updates were being counted");
        step(b);
    }
    *out = b->update - 1;
    return BT_OK;
}
