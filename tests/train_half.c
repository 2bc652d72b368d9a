/* Training in fp16, bf16 and tf32: which bytes halve, how near it stays to fp32, and what an
 * overflow leaves as it was (case B6 at the level of a model). */
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

static mk_setup few(bti_precision p) {
    static const int64_t source[] = {5, 9, 3, 7}, target[] = {4, 6, 8, 2};
    mk_setup s = mk_defaults();
    s.precision = p;
    s.sentence = mk_sentences(4, source, target, 97, 3);
    s.sentences = 4;
    if (p == BTI_PRECISION_FP16) s.engine.loss_scale = 1024;
    return s;
}

/* ---- bytes -------------------------------------------------------------------------------------
 */

/* What stays fp32 of the dynamic tensors that are no scratch. */
static int stays_wide(const bti_tensor *t) {
    return t->kind == BTI_KIND_LOGITS || strcmp(t->name, "norm statistics") == 0 ||
           strcmp(t->name, "lse") == 0 || strcmp(t->name, "losses") == 0;
}

/* The same program, in which each tensor has half the bytes or is one of those that stay. */
START_TEST(activations_are_half) {
    if (!mk_computes_in(BTI_PRECISION_BF16)) return;
    for (int recomputed = 0; recomputed < 2; recomputed++) {
        mk_setup s = few(BTI_PRECISION_FP32), h = few(BTI_PRECISION_BF16);
        s.plan.force_recompute_layers = h.plan.force_recompute_layers = 4 * recomputed;
        mk_model wide = mk_open(&s), half = mk_open(&h);
        const bti_program *p = wide.plan->step, *q = half.plan->step;
        ck_assert_int_eq(p->ops, q->ops);
        ck_assert_int_eq(p->tensors, q->tensors);
        int64_t halved = 0;
        for (bti_tid i = 1; i <= p->tensors; i++) {
            const bti_tensor *a = &p->tensor[i], *b = &q->tensor[i];
            ck_assert_str_eq(a->name, b->name);
            if (a->kind == BTI_KIND_WORKSPACE) continue;
            int same = a->region != BTI_REGION_DYNAMIC || stays_wide(a);
            ck_assert_msg(a->bytes == (same ? 1 : 2) * b->bytes, "%s has %llu bytes, of %llu",
                          a->name, (unsigned long long)b->bytes, (unsigned long long)a->bytes);
            halved += !same;
        }
        ck_assert_int_gt(halved, 80);
        for (int r = 0; r < BTI_REGION_DYNAMIC; r++)
            ck_assert_uint_eq(wide.plan->region[r], half.plan->region[r]);
        if (p->info.alignment <= 64) /* else these small tensors are mostly alignment */
            ck_assert_uint_lt(half.plan->layout.kind[BTI_KIND_ACTIVATION],
                              wide.plan->layout.kind[BTI_KIND_ACTIVATION] * 6 / 10);
        mk_close(&wide);
        mk_close(&half);
    }
}
END_TEST

/* ---- values ------------------------------------------------------------------------------------
 */

static double cosine(const wt_result *a, const wt_result *b) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < a->count; i++) {
        ab += a->gradients[i] * b->gradients[i];
        aa += a->gradients[i] * a->gradients[i];
        bb += b->gradients[i] * b->gradients[i];
    }
    return ab / sqrt(aa * bb);
}

static double half_unit(bti_precision p) { return p == BTI_PRECISION_BF16 ? 0x1p-8 : 0x1p-11; }

static bti_precision half_of(int i) { return i ? BTI_PRECISION_BF16 : BTI_PRECISION_FP16; }

static mk_setup dropping(bti_precision p) {
    mk_setup s = few(p);
    s.model.dropout = s.model.attention_dropout = 0.2;
    s.model.activation_dropout = s.model.embedding_dropout = 0.2;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 14;
    s.plan.force_recompute_layers = 2;
    return s;
}

/* Poison, guards and comparison after each op; and near what the oracle computes: sums in another
 * order round to the neighbouring half number now and then, which a few layers carry on. (Of relu,
 * whose gradient jumps where an input of 8 bits changes its sign, that would be less true.) */
START_TEST(watched_in_half) {
    bti_precision p = half_of(_i);
    if (!mk_computes_in(p)) return;
    mk_setup s = dropping(p);
    s.model.activation = BTI_ACTIVATION_GELU;
    wt_result plain = wt_run(&s, 2, 0), seen = wt_run(&s, 2, 1);
    ck_assert_int_gt(seen.poisoned, 100);
    wt_same(&plain, &seen, 2);
    wt_result here = wt_run(&s, 1, 0);
    s.backend = "ref";
    wt_result there = wt_run(&s, 1, 0);
    kit_near(here.loss[0], there.loss[0], half_unit(p) * there.loss[0]);
    kit_near(here.norm[0], there.norm[0], 4 * half_unit(p) * there.norm[0]);
    ck_assert_msg(cosine(&here, &there) >= 0.999, "cosine %.6f", cosine(&here, &there));
    wt_free(&plain);
    wt_free(&seen);
    wt_free(&here);
    wt_free(&there);
}
END_TEST

/* A power of two moves no digit: in fp16 the scale changes nothing but what would vanish or
 * overflow without it. */
START_TEST(scale_moves_no_digit) {
    if (!mk_computes_in(BTI_PRECISION_FP16)) return;
    mk_setup s = dropping(BTI_PRECISION_FP16);
    wt_result a = wt_run(&s, 1, 0);
    s.engine.loss_scale *= 64;
    wt_result b = wt_run(&s, 1, 0);
    ck_assert(a.loss[0] == b.loss[0]);
    kit_near(a.norm[0], b.norm[0], 1e-3 * b.norm[0]);
    for (int64_t i = 0; i < b.count; i++) b.gradients[i] /= 64;
    double off = mk_relative(a.gradients, b.gradients, b.count);
    ck_assert_msg(off <= 1e-3, "gradients are off by %g", off);
    wt_free(&a);
    wt_free(&b);
}
END_TEST

/* Sixty updates by heart: the loss falls as it does in fp32. */
START_TEST(learns_as_in_fp32) {
    bti_precision p = half_of(_i);
    double last[2];
    if (!mk_computes_in(p)) return;
    for (int half = 0; half < 2; half++) {
        mk_setup s = few(half ? p : BTI_PRECISION_FP32);
        mk_model m = mk_open(&s);
        bti_update_result r = {0};
        for (int u = 1; u <= 60; u++)
            kit_ok(bti_engine_update(m.engine, s.sentence, 4, u, 1e-3 * fmin(1, u / 20.0), &r));
        last[half] = r.loss;
        mk_close(&m);
    }
    ck_assert_double_lt(last[0], 2.5);
    kit_near(last[1], last[0], 0.03 * last[0]);
}
END_TEST

/* ---- B6: overflow ------------------------------------------------------------------------------
 */

/* In updates 3 and 4 one gradient is infinite. */
static bt_status overflow(void *user, bti_engine *e, int64_t update) {
    const float infinity = (float)INFINITY;
    (void)user;
    if (update != 3 && update != 4) return BT_OK;
    return bti_engine_write_part(e, BTI_REGION_GRADIENTS, 9, 5, 1, &infinity);
}

static const bti_region kept[] = {BTI_REGION_WEIGHTS, BTI_REGION_MOMENT1, BTI_REGION_MOMENT2};

START_TEST(b6_overflow) {
    static const double scale[] = {65536, 65536, 32768, 16384, 16384, 16384, 32768,
                                   32768, 32768, 65536, 65536, 65536, 65536, 65536};
    enum { UPDATES = sizeof scale / sizeof scale[0] };
    if (!mk_computes_in(BTI_PRECISION_FP16)) return;
    mk_setup s = dropping(BTI_PRECISION_FP16);
    s.engine.loss_scale = 65536;
    s.engine.scaling = (bt_update_scalars_params){.growth_interval = 3, .scale_max = 65536};
    s.engine.before_step = overflow;
    mk_model m = mk_open(&s);
    for (int u = 1; u <= UPDATES; u++) {
        double *before[3], *after;
        int64_t n, steps = m.engine->steps;
        int bad = u == 3 || u == 4;
        bti_update_result r;
        for (int k = 0; k < 3; k++) before[k] = mk_state(&m, kept[k], &n);
        kit_ok(bti_engine_update(m.engine, s.sentence, 4, u, 1e-3, &r));
        ck_assert_int_eq(r.skipped, bad);
        ck_assert_msg(r.loss_scale == scale[u - 1], "update %d: scale %g", u, r.loss_scale);
        ck_assert_int_eq(m.engine->steps, steps + !bad);
        ck_assert(isfinite(r.loss) && isfinite(r.grad_norm) == !bad);
        for (int k = 0; k < 3; k++) {
            after = mk_state(&m, kept[k], NULL);
            ck_assert_int_eq(memcmp(after, before[k], (size_t)n * sizeof *after) == 0, bad);
            for (int64_t i = 0; i < n; i++) ck_assert(isfinite(after[i]));
            free(after);
            free(before[k]);
        }
    }
    mk_close(&m);
}
END_TEST

/* A scale far too large is found by real overflows; the first step then is the one that a run
 * which began with that scale takes. */
START_TEST(b6_scale_is_found) {
    if (!mk_computes_in(BTI_PRECISION_FP16)) return;
    mk_setup s = dropping(BTI_PRECISION_FP16);
    bti_update_result r = {.skipped = 1};
    s.engine.loss_scale = 0x1p30;
    s.engine.scaling = (bt_update_scalars_params){.growth_interval = 2000, .scale_max = 0x1p30f};
    mk_model m = mk_open(&s);
    for (int u = 1; u <= 20 && r.skipped; u++)
        kit_ok(bti_engine_update(m.engine, s.sentence, 4, 1, 1e-3, &r));
    ck_assert_int_eq(r.skipped, 0);
    ck_assert(r.loss_scale < 0x1p30 && r.loss_scale >= 1024);
    s.engine.loss_scale = r.loss_scale;
    mk_model fresh = mk_open(&s);
    kit_ok(bti_engine_update(fresh.engine, s.sentence, 4, 1, 1e-3, &r));
    for (int k = 0; k < 3; k++) {
        int64_t n;
        double *a = mk_state(&m, kept[k], &n), *b = mk_state(&fresh, kept[k], NULL);
        ck_assert_mem_eq(a, b, (size_t)n * sizeof *a);
        free(a);
        free(b);
    }
    mk_close(&fresh);
    mk_close(&m);
}
END_TEST

/* ---- what a device has -------------------------------------------------------------------------
 */

START_TEST(refused_in_words) {
    bt_dev_info info = {
        .name = "a card", .backend = "x", .dtypes = 1u << BT_F32 | 1u << BT_F16, .tf32 = 1};
    kit_ok(bti_precision_check(&info, BTI_PRECISION_FP32));
    kit_ok(bti_precision_check(&info, BTI_PRECISION_TF32));
    kit_ok(bti_precision_check(&info, BTI_PRECISION_FP16));
    kit_fails(bti_precision_check(&info, BTI_PRECISION_BF16), BT_EUSAGE,
              "a card (x) does not compute in bf16: set training.precision to one of fp32, tf32, "
              "fp16");
    info.tf32 = 0;
    info.dtypes = 1u << BT_F32;
    kit_fails(bti_precision_check(&info, BTI_PRECISION_TF32), BT_EUSAGE,
              "does not compute in tf32: set training.precision to fp32");
}
END_TEST

void add_train_half(TCase *tc) {
    tcase_add_test(tc, activations_are_half);
    tcase_add_loop_test(tc, watched_in_half, 0, 2);
    tcase_add_test(tc, scale_moves_no_digit);
    tcase_add_loop_test(tc, learns_as_in_fp32, 0, 2);
    tcase_add_test(tc, b6_overflow);
    tcase_add_test(tc, b6_scale_is_found);
    tcase_add_test(tc, refused_in_words);
}
