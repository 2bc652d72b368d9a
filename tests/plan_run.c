/* What a plan promises, seen while it runs: an op writes its outputs and no other byte, and nothing
 * is read once it has died. */
#include "tests/kit.h"
#include "tests/plan_parts.h"
#include "tests/watch.h"

/* The variants: pre and post, relu and gelu, ties, recomputation, micro-batches of unlike size,
 * whole and compact gradients of tables: wherever they may be, then of each side. */
START_TEST(poisoned) {
    const char *const backend[] = {"ref", "far"};
    static const int64_t source[] = {5, 3, 9, 1, 7}, target[] = {4, 6, 1, 8, 3};
    int v = _i / 2 % 4, side = _i / 8;
    mk_setup s = mk_defaults();
    s.backend = backend[_i % 2];
    s.model.norm = v & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = v & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.positions = (bti_positions)(v >> 1 & 1);
    s.model.position_rows = 9;
    s.model.tie = side ? BTI_TIE_NONE : (bti_tie)(v % 3);
    s.plan.force_compact = side ? side : v == 0 ? 0 : -1;
    s.model.d_model = 12;
    s.model.heads = 3;
    s.model.ff = 20;
    s.model.dropout = s.model.attention_dropout = v == 1 ? 0 : 0.2;
    s.model.activation_dropout = s.model.embedding_dropout = s.model.dropout;
    s.sentence = mk_sentences(5, source, target, 97, 1);
    s.sentences = 5;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 10;
    s.plan.force_logit_rows = 3;
    s.plan.force_recompute_layers = v;
    wt_result plain = wt_run(&s, 2, 0), watched = wt_run(&s, 2, 1);
    ck_assert_int_gt(watched.micro_batches, 2);
    ck_assert_int_gt(watched.ops, 300);
    ck_assert_int_gt(watched.poisoned, 200);
    ck_assert_int_gt(watched.in_place, 20);
    wt_same(&plain, &watched, 2);
    wt_free(&plain);
    wt_free(&watched);
}
END_TEST

void add_plan_run(TCase *tc) { tcase_add_loop_test(tc, poisoned, 0, 14); }
