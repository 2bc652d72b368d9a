/* How a run is fitted never changes what it computes: sums of losses are divided by the tokens of
 * the whole update, random numbers and batches never depend on micro-batches. */
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

/* Seven pairs with 70 source and 100 target tokens, vocabulary 1003, dropout everywhere. */
static mk_setup seven(int variant) {
    static const int64_t source[] = {10, 10, 10, 10, 10, 10, 10};
    static const int64_t target[] = {20, 7, 13, 1, 19, 24, 16};
    mk_setup s = mk_defaults();
    s.model.norm = variant & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = variant & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.tie = variant & 1 ? BTI_TIE_ALL : BTI_TIE_NONE;
    s.model.positions = variant & 2 ? BTI_POSITIONS_LEARNED : BTI_POSITIONS_SINUSOID;
    s.model.position_rows = 24;
    s.model.dropout = s.model.attention_dropout = 0.3;
    s.model.activation_dropout = s.model.embedding_dropout = 0.3;
    s.vocab[0] = s.vocab[1] = 1003;
    s.sentence = mk_sentences(7, source, target, 1003, 9);
    s.sentences = 7;
    s.plan.force_recompute_layers = 0;
    s.plan.force_logit_rows = 100;
    s.plan.force_rows[0] = 70;
    s.plan.force_rows[1] = 100;
    return s;
}

/* Variants in fp32, then one in each half type. There rows are rounded to half before anything sums
 * over them, so that a split changes the order of fp32 sums only, where a product's rows have the
 * same bits however many they are (ref, far); where they have not, an element may round to its
 * neighbour, a part of 2^-10 or 2^-7, and what comes of it is bound by that. */
static mk_setup seven_in(int i, double *tol) {
    static const bti_precision half[] = {BTI_PRECISION_FP16, BTI_PRECISION_BF16};
    int exact = strcmp(kit_backend(), "ref") == 0 || strcmp(kit_backend(), "far") == 0;
    mk_setup s = seven(i % 4 + i / 4);
    *tol = 1e-6;
    if (i < 4) return s;
    s.precision = half[i - 4];
    s.engine.loss_scale = 1024;
    if (!exact) *tol = i == 4 ? 0x1p-10 : 0x1p-7;
    return s;
}

START_TEST(micro_batches) {
    static const int64_t rows[] = {70, 40, 30, 10}, parts[] = {1, 2, 3, 7};
    wt_result whole = {0};
    for (int i = 0; i < 4; i++) {
        double tol;
        mk_setup s = seven_in(_i, &tol);
        if (!mk_computes_in(s.precision)) return;
        s.plan.force_rows[0] = rows[i];
        wt_result r = wt_run(&s, 1, 0);
        ck_assert_int_eq(r.micro_batches, parts[i]);
        if (i == 0) {
            whole = r;
            continue;
        }
        wt_agree(&r, &whole, tol);
        wt_free(&r);
    }
    wt_free(&whole);
}
END_TEST

START_TEST(chunks) {
    static const int64_t rows[] = {100, 1, 7, 64, 1000};
    wt_result whole = {0};
    for (int i = 0; i < 5; i++) {
        mk_setup s = seven(_i);
        s.plan.force_logit_rows = rows[i];
        wt_result r = wt_run(&s, 1, 0);
        if (i == 0) {
            whole = r;
            continue;
        }
        wt_agree(&r, &whole, 1e-6);
        if (rows[i] > 100) wt_same(&r, &whole, 1);
        wt_free(&r);
    }
    wt_free(&whole);
}
END_TEST

/* Recomputation alone, every number of layers: the same bits. So is the same run again. */
START_TEST(recomputation) {
    wt_result kept = {0};
    for (int32_t layers = 0; layers <= 5; layers++) {
        mk_setup s = seven(_i);
        s.plan.force_rows[0] = 40;
        s.plan.force_recompute_layers = layers % 5;
        wt_result r = wt_run(&s, 2, 0);
        if (layers == 0) {
            kept = r;
            continue;
        }
        wt_same(&r, &kept, 2);
        wt_free(&r);
    }
    wt_free(&kept);
}
END_TEST

/* Other seeds and other updates give other masks: the tests above do not compare nothing. */
START_TEST(dropout_is_on) {
    mk_setup s = seven(0);
    wt_result a = wt_run(&s, 1, 0);
    s.model.dropout = 0;
    wt_result b = wt_run(&s, 1, 0);
    ck_assert(!wt_near(a.loss[0], b.loss[0], 1e-4));
    wt_free(&a);
    wt_free(&b);
}
END_TEST

/* Poison, guards and comparison after each op on this backend (see tests/watch.h). */
START_TEST(watched) {
    mk_setup s = seven(_i);
    s.plan.force_rows[0] = 30;
    s.plan.force_recompute_layers = 2;
    s.plan.force_logit_rows = 7;
    s.vocab[0] = s.vocab[1] = 103;
    static const int64_t length[] = {4, 9, 1, 5, 3, 8, 2};
    s.sentence = mk_sentences(7, length, length, 103, 9);
    s.plan.force_rows[0] = s.plan.force_rows[1] = 14;
    wt_result plain = wt_run(&s, 2, 0), seen = wt_run(&s, 2, 1);
    ck_assert_int_gt(seen.poisoned, 100);
    wt_same(&plain, &seen, 2);
    wt_free(&plain);
    wt_free(&seen);
}
END_TEST

/* One update from the same state on this backend and on the oracle. */
START_TEST(as_the_oracle) {
    if (strcmp(kit_backend(), "ref") == 0) return;
    mk_setup s = seven(_i);
    s.plan.force_rows[0] = 30;
    wt_result here = wt_run(&s, 1, 0);
    s.backend = "ref";
    wt_result there = wt_run(&s, 1, 0);
    ck_assert(wt_near(here.loss[0], there.loss[0], 1e-5));
    ck_assert(wt_near(here.norm[0], there.norm[0], 1e-5));
    double off = mk_relative(here.gradients, there.gradients, there.count);
    ck_assert_msg(off <= 1e-5, "gradients are off by %g", off);
    wt_free(&here);
    wt_free(&there);
}
END_TEST

void add_train_split(TCase *tc) {
    tcase_add_loop_test(tc, micro_batches, 0, 6);
    tcase_add_loop_test(tc, chunks, 0, 2);
    tcase_add_loop_test(tc, recomputation, 0, 4);
    tcase_add_test(tc, dropout_is_on);
    tcase_add_loop_test(tc, watched, 0, 4);
    tcase_add_loop_test(tc, as_the_oracle, 0, 4);
}
