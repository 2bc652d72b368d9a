/* Models with dense features: how a run is fitted never changes what it computes, nothing reads
 * what is not there, and backends agree. */
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

enum { EXAMPLES = 6, IMAGE = 5, SOUND = 3 };

/* Numbers of an example's rows follow from their places. */
static bt_status read_feature(void *user, int32_t feature, int64_t example, float *out) {
    const int32_t *rows = user;
    int64_t width = feature ? SOUND : IMAGE, n = rows[2 * example + feature] * width;
    for (int64_t k = 0; k < n; k++)
        out[k] = (float)((example * 37 + feature * 11 + k * 13) % 23 - 11) / 8;
    return BT_OK;
}

static void read_values(void *user, int64_t example, float *out) {
    (void)user;
    for (int k = 0; k < 3; k++) out[k] = (float)((example + k) % 2);
}

/* Text of 3 to 7 tokens; an image of as many rows or of one where they are mixed, else of any. */
static mk_setup fused(bti_fusion fusion, bti_head_kind head) {
    static const int64_t source[EXAMPLES] = {3, 7, 4, 5, 3, 6},
                         target[EXAMPLES] = {4, 2, 6, 3, 5, 1};
    static const int32_t any[2 * EXAMPLES] = {4, 1, 2, 3, 5, 1, 1, 2, 3, 3, 2, 1};
    static const int32_t mixed[2 * EXAMPLES] = {3, 1, 1, 7, 4, 1, 5, 5, 1, 1, 6, 1};
    static const int32_t none = 1;
    static bti_dense dense;
    int mixes = fusion == BTI_FUSION_ADD || fusion == BTI_FUSION_GATE;
    const int32_t *rows = mixes ? mixed : any;
    mk_setup s = mk_defaults();
    s.model.fusion = fusion;
    s.model.head = head;
    s.model.pooling = (bti_pooling)((int)fusion % 3);
    s.model.outputs = head == BTI_HEAD_DECODER ? 0 : 3;
    s.model.decoder_layers = head == BTI_HEAD_DECODER ? 2 : 0;
    s.model.learned_rows = fusion == BTI_FUSION_CONCAT ? 2 : 0;
    s.model.positions = fusion == BTI_FUSION_GATE ? BTI_POSITIONS_LEARNED : BTI_POSITIONS_SINUSOID;
    s.model.position_rows = 8;
    s.model.dropout = s.model.embedding_dropout = 0.2;
    s.model.features = 2;
    s.model.feature[0] =
        (bti_feature_config){.name = "image", .width = IMAGE, .rows = 7, .norm = 1};
    s.model.feature[1] = (bti_feature_config){.name = "sound", .width = SOUND, .rows = 7};
    dense = (bti_dense){(void *)(uintptr_t)rows, read_feature, read_values};
    bti_sentence *x = (bti_sentence *)(uintptr_t)mk_sentences(EXAMPLES, source, target, 97, 5);
    for (int i = 0; i < EXAMPLES; i++) {
        x[i].dense = &dense;
        x[i].example = i;
        x[i].rows = rows + 2 * i;
        if (head == BTI_HEAD_DECODER) continue;
        x[i].count[1] = 1;
        x[i].ids[1] = &none;
    }
    s.sentence = x;
    s.sentences = EXAMPLES;
    s.plan.force_recompute_layers = 0;
    return s;
}

static const bti_head_kind head_of[] = {BTI_HEAD_DECODER, BTI_HEAD_MULTILABEL,
                                        BTI_HEAD_CLASSIFICATION, BTI_HEAD_DECODER};

/* _i is the fusion. */
START_TEST(splits) {
    static const int64_t rows[] = {1000, 20, 1};
    wt_result whole = {0};
    for (int i = 0; i < 3; i++) {
        mk_setup s = fused((bti_fusion)_i, head_of[_i]);
        s.plan.force_rows[0] = rows[i];
        s.plan.force_rows[1] = 1000;
        wt_result r = wt_run(&s, 1, 0);
        ck_assert(i == 0 ? r.micro_batches == 1 : r.micro_batches > 1);
        if (i == 0) {
            whole = r;
            continue;
        }
        wt_agree(&r, &whole, 1e-6);
        wt_free(&r);
    }
    wt_free(&whole);
}
END_TEST

/* Recomputation alone: the same bits. Poison and guards: nothing reads what is dead. */
START_TEST(watched) {
    mk_setup s = fused((bti_fusion)_i, head_of[_i]);
    wt_result plain = wt_run(&s, 2, 0);
    s.plan.force_recompute_layers = 2;
    wt_result again = wt_run(&s, 2, 0), seen = wt_run(&s, 2, 1);
    ck_assert_int_gt(seen.poisoned, 50);
    wt_same(&plain, &again, 2);
    wt_same(&plain, &seen, 2);
    wt_free(&plain);
    wt_free(&again);
    wt_free(&seen);
}
END_TEST

START_TEST(as_the_oracle) {
    if (strcmp(kit_backend(), "ref") == 0) return;
    mk_setup s = fused((bti_fusion)_i, head_of[_i]);
    wt_result here = wt_run(&s, 1, 0);
    s.backend = "ref";
    wt_result there = wt_run(&s, 1, 0);
    wt_agree(&here, &there, 1e-5);
    wt_free(&here);
    wt_free(&there);
}
END_TEST

void add_train_fused(TCase *tc) {
    tcase_add_loop_test(tc, splits, 0, 4);
    tcase_add_loop_test(tc, watched, 0, 4);
    tcase_add_loop_test(tc, as_the_oracle, 0, 4);
}
