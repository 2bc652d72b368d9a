/* Validation losses: a forward pass without dropout or gradients, in the run's own memory. */
#include "tests/kit.h"
#include "tests/model_kit.h"

static const int64_t source[] = {5, 1, 9, 3, 12, 7}, target[] = {4, 8, 2, 6, 1, 11};
#define SENTENCES 6

static mk_setup setup(double dropout) {
    mk_setup s = mk_defaults();
    s.model.dropout = s.model.attention_dropout = s.model.activation_dropout =
        s.model.embedding_dropout = dropout;
    s.sentence = mk_sentences(SENTENCES, source, target, 97, 3);
    s.sentences = SENTENCES;
    s.plan.validation = 1;
    return s;
}

/* Without dropout an update's losses, taken before its step, are those of validation, bit for bit;
 * in slices too. */
START_TEST(losses_are_an_updates) {
    for (int v = 0; v < 4; v++) {
        mk_setup s = setup(0);
        s.model.norm = v & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
        s.plan.force_slice_rows = v & 2 ? 7 : 0;
        mk_model m = mk_open(&s);
        bti_loss_sum sum;
        bti_update_result r;
        for (int64_t u = 1; u <= 3; u++) {
            kit_ok(bti_engine_losses(m.engine, s.sentence, SENTENCES, NULL, &sum));
            kit_ok(bti_engine_update(m.engine, s.sentence, SENTENCES, u, 1e-2, &r));
            ck_assert_int_eq(sum.rows, r.rows[1]);
            kit_near(sum.loss / (double)sum.rows, r.loss, 0);
            kit_near(sum.nll / (double)sum.rows, r.nll, 0);
        }
        mk_close(&m);
    }
}
END_TEST

/* However the caps cut them, and more sentences than an update has. */
START_TEST(losses_do_not_depend_on_caps) {
    double want = 0;
    for (int cut = 0; cut < 2; cut++) {
        mk_setup s = setup(0.3);
        s.plan.force_rows[0] = s.plan.force_rows[1] = cut ? 1 : 0;
        mk_model m = mk_open(&s);
        bti_sentence twice[2 * SENTENCES];
        bti_loss_sum sum;
        memcpy(twice, s.sentence, SENTENCES * sizeof *twice);
        memcpy(twice + SENTENCES, s.sentence, SENTENCES * sizeof *twice);
        kit_ok(bti_engine_losses(m.engine, twice, 2 * SENTENCES, NULL, &sum));
        ck_assert_int_eq(sum.rows, 64);
        if (cut == 0) want = sum.loss;
        kit_near(sum.loss, want, 1e-6 * want);
        mk_close(&m);
    }
}
END_TEST

/* A run with validations in between is the run without. */
START_TEST(leaves_no_trace) {
    double *end[2];
    int64_t n = 0;
    for (int with = 0; with < 2; with++) {
        mk_setup s = setup(0.1);
        mk_model m = mk_open(&s);
        bti_update_result r;
        bti_loss_sum sum;
        for (int64_t u = 1; u <= 4; u++) {
            if (with) kit_ok(bti_engine_losses(m.engine, s.sentence, SENTENCES, NULL, &sum));
            kit_ok(bti_engine_update(m.engine, s.sentence, SENTENCES, u, 1e-2, &r));
        }
        end[with] = mk_state(&m, BTI_REGION_WEIGHTS, &n);
        mk_close(&m);
    }
    ck_assert_int_eq(memcmp(end[0], end[1], (size_t)n * sizeof **end), 0);
    free(end[0]);
    free(end[1]);
}
END_TEST

/* The decoder's bytes are in the plan: its region is shared, its tables are not. */
START_TEST(decoder_is_planned) {
    mk_setup s = setup(0);
    /* Nothing is left to rates, which differ from one look at a busy machine to the next. */
    s.plan.force_logit_rows = 16;
    s.plan.force_recompute_layers = 0;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 200;
    mk_model alone = mk_open(&s);
    uint64_t dynamic = alone.plan->region[BTI_REGION_DYNAMIC];
    s.plan.decode_dynamic = dynamic / 2;
    s.plan.decode_staging = 4096;
    mk_model shared = mk_open(&s);
    ck_assert_uint_eq(shared.plan->region[BTI_REGION_DYNAMIC], dynamic);
    ck_assert_uint_eq(shared.plan->bytes[BTI_BYTES_DECODE], 4096);
    ck_assert_uint_ge(shared.plan->total, alone.plan->total + 4096);
    mk_close(&shared);
    s.plan.decode_dynamic = dynamic + 8192;
    mk_model larger = mk_open(&s);
    ck_assert_uint_eq(larger.plan->region[BTI_REGION_DYNAMIC], dynamic + 8192);
    ck_assert_uint_eq(larger.plan->bytes[BTI_BYTES_DECODE], 4096 + 8192);
    mk_close(&larger);
    mk_close(&alone);
}
END_TEST

static void add(TCase *tc) {
    if (!mk_there()) return;
    tcase_add_test(tc, losses_are_an_updates);
    tcase_add_test(tc, losses_do_not_depend_on_caps);
    tcase_add_test(tc, leaves_no_trace);
    tcase_add_test(tc, decoder_is_planned);
}

int main(int argc, char **argv) { return kit_main("validation", add, argc, argv); }
