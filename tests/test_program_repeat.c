/* The same run again gives the same weights: case G10. */
#include "core/base/safetensors.h"
#include "tests/program_kit.h"

enum { UPDATES = 50, LINES = 128, WORDS = 12 };

/* One word all over, so that its row of the embedding's gradient gets thousands of additions an
 * update, and another at the end of each line. */
static small_run one_word_run(void) {
    char *text[2];
    for (int side = 0; side < 2; side++) {
        char *p = text[side] = malloc(LINES * WORDS * 16);
        ck_assert_ptr_nonnull(p);
        for (int i = 0; i < LINES; i++) {
            for (int w = 0; w < WORDS - i % 3; w++) p += sprintf(p, "%s ", toy_word(3, side));
            p += sprintf(p, "%s\n", toy_word((uint32_t)i % 7 + 8, side));
        }
    }
    small_run r = small_run_with(text[0], text[1]);
    free(text[0]);
    free(text[1]);
    return r;
}

static void run_it(small_run r, const char *threads) {
    program p = bantam("train", r.yaml, "--device", "cpu", "--threads", threads, "--set",
                       "training.batch=64", "--set", kit_str("training.updates=%d", UPDATES),
                       "--set", "model.d_model=16", "--set", "model.ff=16");
    check_status(p, 0);
}

/* Bit for bit: every tensor of the newest checkpoint, moments included. */
static int same_state(small_run a, small_run b) {
    bti_st_file *x, *y;
    kit_ok(bti_st_open(newest_checkpoint(a.out), BTI_ST_REQUIRE, &x));
    kit_ok(bti_st_open(newest_checkpoint(b.out), BTI_ST_REQUIRE, &y));
    ck_assert_uint_eq(bti_st_count(x), bti_st_count(y));
    ck_assert_uint_gt(bti_st_count(x), 20);
    int same = 1;
    for (size_t i = 0; i < bti_st_count(x); i++) {
        const void *p, *q;
        const bti_st_tensor *t = bti_st_at(x, i, &p), *u = bti_st_find(y, t->name, &q);
        size_t bytes = bti_dtype_size(t->dtype);
        ck_assert_ptr_nonnull(u);
        for (int d = 0; d < t->dims; d++) bytes *= (size_t)t->shape[d];
        same &= memcmp(p, q, bytes) == 0;
    }
    bti_st_close(x);
    bti_st_close(y);
    return same;
}

static double last_loss(small_run r) {
    json_t *log = read_log(r.out);
    ck_assert_uint_eq(json_array_size(log), UPDATES);
    double loss = number_at(json_array_get(log, UPDATES - 1), "loss");
    json_decref(log);
    return loss;
}

/* Twice in processes and folders of their own, with one thread and with several: equal thread
 * counts give equal bits, other counts the same curve. Dropout is on. */
START_TEST(same_seed_same_weights) {
    static const char *const threads[] = {"1", "4"};
    small_run first[2];
    for (int t = 0; t < 2; t++) {
        small_run again = one_word_run();
        first[t] = one_word_run();
        run_it(first[t], threads[t]);
        run_it(again, threads[t]);
        ck_assert_str_ne(first[t].dir, again.dir);
        ck_assert_msg(same_state(first[t], again), "other weights with %s threads", threads[t]);
    }
    kit_near(last_loss(first[1]), last_loss(first[0]), 1e-4);
}
END_TEST

void add_repeat(TCase *tc) { tcase_add_test(tc, same_seed_same_weights); }
