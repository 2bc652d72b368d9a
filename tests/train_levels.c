/* Levels of recomputation and slices of rows: what is made again has the same bits, and slices only
 * change the order of sums. */
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

/* Pre or post, relu or gelu, ties, with a final norm or without; dropout everywhere; stacks of 4
 * and 3 layers; two micro-batches of unlike size. */
static mk_setup variant(int v) {
    static const int64_t source[] = {6, 3, 9, 1, 7}, target[] = {4, 8, 1, 10, 3};
    mk_setup s = mk_defaults();
    s.model.encoder_layers = 4;
    s.model.decoder_layers = 3;
    s.model.norm = v & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = v & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.tie = (bti_tie)(v % 3);
    s.model.final_norm = v != 1 && v != 2;
    s.model.d_model = 24;
    s.model.ff = 40;
    s.model.dropout = s.model.attention_dropout = 0.2;
    s.model.activation_dropout = s.model.embedding_dropout = 0.2;
    s.sentence = mk_sentences(5, source, target, 97, 5);
    s.sentences = 5;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 19;
    s.plan.force_logit_rows = 8;
    s.plan.force_recompute_layers = 7;
    return s;
}

/* Every level; segments of 2, 3 and more layers than a stack has. */
static void set_level(mk_setup *s, int i) {
    static const int32_t segment[] = {2, 3, 9};
    s->plan.force_level = (bti_level)(i < BTI_LEVEL_SEGMENTS ? i : BTI_LEVEL_SEGMENTS);
    s->plan.force_segment = i < BTI_LEVEL_SEGMENTS ? 0 : segment[i - BTI_LEVEL_SEGMENTS];
    if (i == 0) s->plan.force_recompute_layers = 0;
}
#define CASES (BTI_LEVEL_SEGMENTS + 3)

/* The variants in fp32, then one in each half type: a copy that was rounded once has the bits of
 * what it stands for. */
static mk_setup variant_in(int i) {
    static const bti_precision half[] = {BTI_PRECISION_FP16, BTI_PRECISION_BF16};
    mk_setup s = variant(i % 4 + i / 4);
    if (i < 4) return s;
    s.precision = half[i - 4];
    s.engine.loss_scale = 1024;
    return s;
}

START_TEST(levels) {
    mk_setup s = variant_in(_i);
    wt_result kept = {0};
    if (!mk_computes_in(s.precision)) return;
    for (int i = 0; i < CASES; i++) {
        s = variant_in(_i);
        set_level(&s, i);
        wt_result r = wt_run(&s, 3, 0);
        ck_assert_int_eq(r.micro_batches, 2);
        if (i == 0) {
            kept = r;
            continue;
        }
        wt_same(&r, &kept, 3);
        wt_free(&r);
    }
    /* Other layers on other levels, and some as they were. */
    for (int32_t n = 1; n < 7; n++) {
        s = variant_in(_i);
        set_level(&s, BTI_LEVEL_CHEAP + (int)(n % (CASES - 1)));
        s.plan.force_recompute_layers = n;
        wt_result r = wt_run(&s, 3, 0);
        wt_same(&r, &kept, 3);
        wt_free(&r);
    }
    wt_free(&kept);
}
END_TEST

/* Any set of classes of any layer gives the same, though no level asks for it; in slices too. */
START_TEST(any_classes) {
    for (int sliced = 0; sliced < 2; sliced++) {
        mk_setup s = variant(_i);
        uint32_t keep[7];
        s.plan.force_recompute_layers = 0;
        s.plan.force_slice_rows = sliced ? 4 : 0;
        wt_result kept = wt_run(&s, 2, 0);
        for (uint32_t n = 0; n < 6; n++) {
            for (uint32_t i = 0; i < 7; i++)
                keep[i] = bti_philox(11, n, i, (uint32_t)_i, 0).v[0] | BTI_KEEP(BTI_CLASS_NONE);
            s.keep = keep;
            wt_result r = wt_run(&s, 2, 0);
            wt_same(&r, &kept, 2);
            wt_free(&r);
        }
        wt_free(&kept);
    }
}
END_TEST

/* Slices of any size agree with the whole; with the same slices, here of 4 and 7 rows, all levels
 * have the same bits. */
START_TEST(slices) {
    static const int64_t rows[] = {1, 4, 7, 16, 1000};
    mk_setup s = variant(_i);
    s.plan.force_recompute_layers = 0;
    wt_result whole = wt_run(&s, 2, 0);
    for (int k = 0; k < 5; k++) {
        wt_result kept = {0};
        for (int i = 0; i < (rows[k] == 4 || rows[k] == 7 ? CASES : 1); i++) {
            s = variant(_i);
            set_level(&s, i);
            s.plan.force_slice_rows = rows[k];
            wt_result r = wt_run(&s, 2, 0);
            if (i == 0) {
                wt_agree(&r, &whole, 1e-6);
                kept = r;
                continue;
            }
            wt_same(&r, &kept, 2);
            wt_free(&r);
        }
        if (rows[k] == 1000) wt_same(&kept, &whole, 2);
        wt_free(&kept);
    }
    wt_free(&whole);
}
END_TEST

/* Poison, guards and comparison after each op, whole and in slices. */
START_TEST(watched_levels) {
    mk_setup s = variant(_i % 4);
    s.model.encoder_layers = 3;
    s.model.decoder_layers = 2;
    s.model.ff = 24;
    s.plan.force_recompute_layers = 5;
    set_level(&s, 1 + _i);
    s.plan.force_slice_rows = _i & 4 ? 0 : 3 + _i;
    wt_result plain = wt_run(&s, 1, 0), seen = wt_run(&s, 1, 1);
    ck_assert_int_gt(seen.poisoned, 200);
    ck_assert_int_gt(seen.in_place, 30);
    wt_same(&plain, &seen, 1);
    wt_free(&plain);
    wt_free(&seen);
}
END_TEST

void add_train_levels(TCase *tc) {
    tcase_add_loop_test(tc, levels, 0, 6);
    tcase_add_loop_test(tc, any_classes, 0, 4);
    tcase_add_loop_test(tc, slices, 0, 4);
    tcase_add_loop_test(tc, watched_levels, 0, CASES - 1);
}
