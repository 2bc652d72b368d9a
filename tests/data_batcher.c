/* Which pairs form an update. */
#include "tests/data_parts.h"
#include "tests/kit.h"

#include "core/data/batcher.h"

static bti_corpus *corpus_of(int lines) {
    char *text[2] = {toy_text(lines, 0), toy_text(lines, 1)};
    toy_place p;
    bti_corpus *c = NULL;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &c));
    free(text[0]);
    free(text[1]);
    return c;
}

static bti_corpus *batch_corpus(void) { return corpus_of(101); }

static int64_t target_ids(const bti_corpus *c, const int64_t *pairs, int64_t count) {
    int64_t sum = 0, n;
    for (int64_t i = 0; i < count; i++) {
        bti_corpus_target(c, pairs[i], &n);
        sum += n;
    }
    return sum;
}

/* Every pair once an epoch; updates as large as they may be, and none larger. */
static void check_epochs(const bti_corpus *c, int64_t batch, bti_batch_unit unit) {
    bti_batcher *b;
    kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, unit, 1, &b));
    int64_t total = bti_corpus_count(c), update = 1, count, epoch;
    const int64_t *pairs;
    for (int64_t e = 1; e <= 3; e++) {
        int seen[101] = {0};
        int64_t got = 0, last_sum = 0;
        for (; got < total; update++) {
            kit_ok(bti_batcher_get(b, update, &pairs, &count, &epoch));
            ck_assert(epoch == e && count >= 1);
            for (int64_t i = 0; i < count; i++) ck_assert_int_eq(seen[pairs[i]]++, 0);
            int64_t sum = target_ids(c, pairs, count);
            if (unit == BTI_BATCH_SENTENCES)
                ck_assert(count == batch || (count < batch && got + count == total));
            else
                ck_assert(sum <= batch || count == 1);
            if (unit == BTI_BATCH_TARGET_TOKENS && got > 0)
                ck_assert(last_sum + target_ids(c, pairs, 1) > batch);
            last_sum = sum;
            got += count;
        }
        ck_assert_int_eq(got, total);
        bti_batcher *other;
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, unit, 1, &other));
        int64_t n;
        kit_ok(bti_batcher_updates(other, e, 0, NULL, &n));
        ck_assert_int_eq(n, update - 1);
        for (int64_t most = update - 2; most <= update; most++) {
            kit_ok(bti_batcher_updates(other, e, most, NULL, &n));
            ck_assert_int_eq(n, most < 1 || most > update - 1 ? update - 1 : most);
        }
        bti_batcher_free(other);
    }
    bti_batcher_free(b);
}

START_TEST(batcher_epochs) {
    bti_corpus *c = batch_corpus();
    ck_assert_int_eq(bti_corpus_count(c), 101);
    static const int64_t sizes[] = {1, 2, 7, 100, 101, 102, 1000000};
    for (int i = 0; i < 7; i++) {
        check_epochs(c, sizes[i], BTI_BATCH_SENTENCES);
        check_epochs(c, sizes[i], BTI_BATCH_TARGET_TOKENS);
    }
    bti_batcher *b;
    kit_fails(bti_batcher_new(c, bti_corpus_count(c), 0, BTI_BATCH_SENTENCES, 1, &b), BT_EINPUT,
              "training.batch is 0");
    bti_corpus_free(c);
}
END_TEST

/* All pairs of updates `from` .. `to`, in order, into `out`. */
static int64_t collect(bti_batcher *b, int64_t from, int64_t to, int64_t *out) {
    int64_t n = 0, count, epoch;
    const int64_t *pairs;
    for (int64_t u = from; u <= to; u++) {
        kit_ok(bti_batcher_get(b, u, &pairs, &count, &epoch));
        out[n++] = -count;
        for (int64_t i = 0; i < count; i++) out[n++] = pairs[i];
    }
    return n;
}

START_TEST(batcher_seed_and_resume) {
    bti_corpus *c = batch_corpus();
    for (int unit = 0; unit < 2; unit++) {
        bti_batcher *a, *b, *d;
        int64_t x[2048], y[2048], z[2048];
        int64_t batch = unit ? 120 : 16;
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, (bti_batch_unit)unit, 7, &a));
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, (bti_batch_unit)unit, 7, &b));
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, (bti_batch_unit)unit, 8, &d));
        int64_t n = collect(a, 1, 30, x), m = collect(b, 1, 30, y);
        ck_assert(n == m && memcmp(x, y, (size_t)n * 8) == 0);
        int64_t k = collect(d, 1, 30, z);
        ck_assert(k != n || memcmp(x, z, (size_t)n * 8) != 0);
        /* Any update straight away, backwards, and after a count of updates: as by going there. */
        int64_t at[32], next = 0;
        for (int u = 1; u <= 30; u++) at[u] = next, next += 1 - x[next];
        bti_batcher_free(b);
        for (int u = 30; u >= 1; u -= 3) {
            kit_ok(bti_batcher_new(c, bti_corpus_count(c), batch, (bti_batch_unit)unit, 7, &b));
            m = collect(b, u, u, y);
            ck_assert(m == 1 - x[at[u]] && memcmp(x + at[u], y, (size_t)m * 8) == 0);
            bti_batcher_free(b);
            m = collect(a, u, u, y);
            ck_assert(m == 1 - x[at[u]] && memcmp(x + at[u], y, (size_t)m * 8) == 0);
            if (u % 2) kit_ok(bti_batcher_updates(a, 2, 0, NULL, &m));
        }
        bti_batcher_free(a);
        bti_batcher_free(d);
    }
    bti_corpus_free(c);
}
END_TEST

/* More epochs than anybody waits for: counted no further than asked for, or than told to. */
START_TEST(batcher_of_many_epochs) {
    bti_corpus *c = batch_corpus();
    volatile sig_atomic_t stop = 1;
    for (int unit = 0; unit < 2; unit++) {
        bti_batcher *b;
        int64_t n;
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), 100, (bti_batch_unit)unit, 1, &b));
        kit_ok(bti_batcher_updates(b, INT64_MAX, 5, NULL, &n));
        ck_assert_int_eq(n, 5);
        if (unit == BTI_BATCH_TARGET_TOKENS)
            kit_fails(bti_batcher_updates(b, INT64_MAX, 0, &stop, &n), BT_ESTOPPED,
                      "updates were being counted");
        bti_batcher_free(b);
    }
    bti_corpus_free(c);
}
END_TEST

START_TEST(batcher_epochs_differ) {
    bti_corpus *c = batch_corpus();
    bti_batcher *b;
    int64_t x[256], y[256];
    kit_ok(bti_batcher_new(c, bti_corpus_count(c), 101, BTI_BATCH_SENTENCES, 7, &b));
    ck_assert_int_eq(collect(b, 1, 1, x), collect(b, 2, 2, y));
    int same = 0, in_place = 0;
    for (int i = 1; i <= 101; i++) same += x[i] == y[i], in_place += x[i] == i - 1;
    ck_assert_int_lt(same, 8);
    ck_assert_int_lt(in_place, 8);
    bti_batcher_free(b);
    bti_corpus_free(c);
}
END_TEST

/* How far the counts of `cells` equally likely cells are from equal: chi squared, of which cells -
 * 1 is the mean. */
static double unevenness(const int *count, int cells, double expected) {
    double sum = 0;
    for (int i = 0; i < cells; i++) sum += (count[i] - expected) * (count[i] - expected) / expected;
    return sum;
}

/* The order is computed, and must look drawn: of a short text the pair that comes first, of a
 * longer one where its tenths go and how far neighbours land from each other. */
START_TEST(batcher_order_is_even) {
    enum { EPOCHS = 2020, LINES = 5000 };
    bti_corpus *c = batch_corpus();
    bti_batcher *b;
    int first[101] = {0}, tenths[100] = {0}, apart[100] = {0};
    int64_t count, epoch;
    const int64_t *pairs;
    kit_ok(bti_batcher_new(c, bti_corpus_count(c), 101, BTI_BATCH_SENTENCES, 1, &b));
    for (int e = 1; e <= EPOCHS; e++) {
        kit_ok(bti_batcher_get(b, e, &pairs, &count, &epoch));
        first[pairs[0]]++;
    }
    bti_batcher_free(b);
    bti_corpus_free(c);
    ck_assert_double_lt(unevenness(first, 101, EPOCHS / 101.0), 160);

    c = corpus_of(LINES);
    kit_ok(bti_batcher_new(c, bti_corpus_count(c), LINES, BTI_BATCH_SENTENCES, 1, &b));
    kit_ok(bti_batcher_get(b, 1, &pairs, &count, &epoch));
    ck_assert_int_eq(count, LINES);
    for (int i = 0; i < LINES; i++) {
        int64_t next = pairs[(i + 1) % LINES];
        tenths[i / (LINES / 10) * 10 + pairs[i] / (LINES / 10)]++;
        apart[(next - pairs[i] + LINES) % LINES / (LINES / 100)]++;
    }
    ck_assert_double_lt(unevenness(tenths, 100, LINES / 100.0), 150);
    ck_assert_double_lt(unevenness(apart, 100, LINES / 100.0), 160);
    bti_batcher_free(b);
    bti_corpus_free(c);
}
END_TEST

START_TEST(batcher_warm_steps_allocate_nothing) {
    bti_corpus *c = batch_corpus();
    for (int unit = 0; unit < 2; unit++) {
        bti_batcher *b;
        int64_t count, epoch = 0;
        const int64_t *pairs;
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), unit ? 50 : 4, (bti_batch_unit)unit, 1, &b));
        kit_ok(bti_batcher_get(b, 1, &pairs, &count, &epoch));
        uint64_t before = bti_alloc_count();
        for (int64_t u = 2; epoch < 4; u++) kit_ok(bti_batcher_get(b, u, &pairs, &count, &epoch));
        ck_assert_uint_eq(bti_alloc_count(), before);
        bti_batcher_free(b);
    }
    bti_corpus_free(c);
}
END_TEST

void add_data_batcher(TCase *tc) {
    tcase_add_test(tc, batcher_epochs);
    tcase_add_test(tc, batcher_seed_and_resume);
    tcase_add_test(tc, batcher_of_many_epochs);
    tcase_add_test(tc, batcher_epochs_differ);
    tcase_add_test(tc, batcher_order_is_even);
    tcase_add_test(tc, batcher_warm_steps_allocate_nothing);
}
