/* Gradients of whole models against central differences in double, dropout on: its masks depend on
 * seed, update and places only, so they stand still. */
#include "tests/kit.h"
#include "tests/train_parts.h"

static double loss_of(mk_model *m, const mk_setup *s) {
    bti_update_result r;
    kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, 1, 0, &r));
    return r.loss;
}

/* d loss / d element k of parameter i, to h^4. */
static double difference(mk_model *m, const mk_setup *s, int32_t i, int64_t k, double *values) {
    static const double step[] = {1, -1, 2, -2}, weight[] = {8, -8, -1, 1};
    double h = 1e-4, old = values[k], sum = 0;
    for (int n = 0; n < 4; n++) {
        values[k] = old + step[n] * h;
        kit_ok(bti_engine_write(m->engine, BTI_REGION_WEIGHTS, i, values));
        sum += weight[n] * loss_of(m, s);
    }
    values[k] = old;
    kit_ok(bti_engine_write(m->engine, BTI_REGION_WEIGHTS, i, values));
    return sum / (12 * h);
}

static mk_setup tiny(int variant) {
    static const int64_t source[] = {3, 1, 4}, target[] = {2, 4, 1};
    mk_setup s = mk_defaults();
    s.model =
        (bti_model_config){.d_model = 6,
                           .ff = 7,
                           .heads = 2,
                           .encoder_layers = 1,
                           .decoder_layers = 2,
                           .norm = variant & 1 ? BTI_NORM_PRE : BTI_NORM_POST,
                           .activation = variant & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU,
                           .tie = (bti_tie)(variant % 3),
                           .positions = (bti_positions)(variant / 2 % 2),
                           .position_rows = 4,
                           .final_norm = !(variant & 4),
                           .norm_eps = 1e-5,
                           .dropout = 0.2,
                           .attention_dropout = 0.2,
                           .activation_dropout = 0.2,
                           .embedding_dropout = 0.2};
    s.vocab[0] = s.vocab[1] = 11;
    s.dtype = BT_F64;
    s.sentence = mk_sentences(3, source, target, 11, 3);
    s.sentences = 3;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 5;
    s.plan.force_logit_rows = 2;
    s.plan.force_recompute_layers = variant % 4;
    s.plan.force_level = (bti_level)(1 + variant % (BTI_LEVEL_COUNT - 1));
    s.plan.force_segment = 2;
    s.plan.force_slice_rows = variant & 1 ? 0 : 2;
    return s;
}

START_TEST(differences) {
    mk_setup s = tiny(_i);
    mk_model m = mk_open(&s);
    const bti_params *t = &m.model->params;
    loss_of(&m, &s);
    int64_t at = 0, checked = 0;
    double *gradient = mk_state(&m, BTI_REGION_GRADIENTS, NULL);
    for (int32_t i = 0; i < t->count; i++) {
        int64_t n = t->param[i].rows * t->param[i].cols;
        double *values = malloc((size_t)n * sizeof *values);
        kit_ok(bti_engine_read(m.engine, BTI_REGION_WEIGHTS, i, 0, n, values));
        for (int64_t k = 0; k < n; k += n < 5 ? 1 : n / 4) {
            double want = difference(&m, &s, i, k, values), got = gradient[at + k];
            ck_assert_msg(fabs(want - got) <= 1e-8 + 1e-7 * fabs(want),
                          "%s[%d]: gradient %.12g, difference %.12g", t->param[i].name, (int)k, got,
                          want);
            checked++;
        }
        at += n;
        free(values);
    }
    ck_assert_int_gt(checked, 120);
    free(gradient);
    mk_close(&m);
}
END_TEST

void add_train_grad(TCase *tc) {
    if (strcmp(kit_backend(), "ref") == 0) tcase_add_loop_test(tc, differences, 0, 8);
}
