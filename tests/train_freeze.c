/* Frozen parameters: the others learn as they would, and nothing is kept or computed for these. */
#include "core/engine/checkpoint.h"
#include "core/model/levels.h"
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

/* What is frozen; each leaves another part of backward to be done. */
static char *const lists[][4] = {
    {"transformer.encoder.*", "src_*"},                /* no backward of the encoder */
    {"src_embed.weight"},                              /* its lowest table */
    {"tgt_*"},                                         /* the decoder's */
    {"transformer.decoder.*", "tgt_*", "generator.*"}, /* only the encoder learns */
    {"transformer.*", "src_*", "tgt_*"},               /* only the output layer */
    {"transformer.encoder.*", "src_*", "transformer.decoder.layers.?.*", "tgt_*"},
    {"*.layers.0.*", "src_*", "tgt_*"},               /* layers 1 */
    {"*weight"},                                      /* biases learn */
    {"*bias"},                                        /* and matrices */
    {"*attn*", "*linear*", "*embed*", "generator.*"}, /* norms and positions */
    {"*norm*", "*out_proj*", "*linear2*"},            /* what is inside blocks */
    {"*in_proj*", "*linear1*", "*embed*"},            /* what ends them */
    {"*norm*.weight", "*linear1.weight", "*in_proj_bias"},
    {"*encoder*", "*.self_attn.*", "src_*", "tgt_*"}, /* down to cross attention */
    {"*weight", "*attn*", "*norm*", "*linear2.bias"}, /* one bias of a block */
};
#define LISTS ((int)(sizeof lists / sizeof lists[0]))

/* Variants: norms, activations, ties, positions, dropout; two micro-batches an update. */
static mk_setup setup_of(int variant) {
    static const int64_t source[] = {5, 3, 8, 2}, target[] = {4, 7, 1, 6};
    mk_setup s = mk_defaults();
    s.model.norm = variant & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
    s.model.activation = variant & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU;
    s.model.tie = variant & 2 ? BTI_TIE_TARGET : BTI_TIE_NONE;
    s.model.positions = variant & 1 ? BTI_POSITIONS_LEARNED : BTI_POSITIONS_SINUSOID;
    s.model.position_rows = 8;
    s.model.final_norm = variant < 3;
    s.model.d_model = 12;
    s.model.ff = 20;
    s.model.dropout = s.model.attention_dropout = variant & 2 ? 0.2 : 0;
    s.model.activation_dropout = s.model.embedding_dropout = s.model.dropout;
    s.sentence = mk_sentences(4, source, target, 97, 1);
    s.sentences = 4;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 10;
    s.plan.force_logit_rows = 3;
    s.plan.force_slice_rows = variant & 2 ? 3 : 0;
    s.engine.clip_norm = 1e6;
    s.engine.adamw.weight_decay = 0.01;
    s.engine.adamw.decoupled = (uint8_t)(variant & 1);
    return s;
}

/* Gradients of what another model has frozen become zero before the step. */
static bt_status zero_frozen(void *user, bti_engine *e, int64_t update) {
    const bti_params *frozen = user;
    (void)update;
    for (int32_t i = 0; i < frozen->count; i++) {
        const bti_param *p = &frozen->param[i];
        if (!p->frozen) continue;
        void *zeros = calloc((size_t)(p->rows * p->cols), bti_dtype_size(frozen->dtype));
        bt_status status = bti_engine_write(e, BTI_REGION_GRADIENTS, i, zeros);
        free(zeros);
        BT_TRY(status);
    }
    return BT_OK;
}

static void update(mk_model *m, const mk_setup *s, int64_t u, bti_update_result *r) {
    kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, u, 1e-3, r));
    ck_assert_int_eq(r->skipped, 0);
}

/* Bits of a region of two models, where parameters are frozen in the first or where they are not.
 */
static void same_bits(mk_model *a, mk_model *b, bti_region region, int frozen) {
    const bti_params *t = &a->model->params;
    double *x = mk_state(a, region, NULL), *y = mk_state(b, region, NULL);
    int64_t at = 0;
    for (int32_t i = 0; i < t->count; i++) {
        int64_t n = t->param[i].rows * t->param[i].cols;
        if (t->param[i].frozen == frozen)
            ck_assert_msg(memcmp(x + at, y + at, (size_t)n * sizeof *x) == 0, "%s differs",
                          t->param[i].name);
        at += n;
    }
    free(x);
    free(y);
}

/* The same model with all gradients, those of the frozen ones set to zero: same losses, norms,
 * moments and weights; the frozen weights stay as they were at first. */
START_TEST(as_with_zeroed_gradients) {
    static const bti_region all[] = {BTI_REGION_GRADIENTS, BTI_REGION_MOMENT1, BTI_REGION_MOMENT2,
                                     BTI_REGION_WEIGHTS};
    for (int variant = 0; variant < 4; variant++) {
        mk_setup full = setup_of(variant), some;
        full.engine.adamw.weight_decay = 0; /* it would move the others */
        some = full;
        memcpy(some.freeze, lists[_i], sizeof some.freeze);
        mk_model first = mk_open(&full), a = mk_open(&some);
        full.engine.before_step = zero_frozen;
        full.engine.user = &a.model->params;
        mk_model b = mk_open(&full);
        for (int u = 1; u <= 3; u++) {
            bti_update_result r, q;
            update(&a, &some, u, &r);
            update(&b, &full, u, &q);
            ck_assert_int_eq(r.micro_batches, 3);
            ck_assert(r.loss == q.loss);
            kit_near(r.grad_norm, q.grad_norm, 1e-6 * q.grad_norm);
        }
        for (int i = 0; i < 4; i++) same_bits(&a, &b, all[i], 0);
        same_bits(&a, &first, BTI_REGION_WEIGHTS, 1);
        mk_close(&first);
        mk_close(&a);
        mk_close(&b);
    }
}
END_TEST

/* Clipping is by the norm of what learns; weight decay leaves the others alone. */
START_TEST(clipped_by_what_learns) {
    mk_setup full = setup_of(_i), some = full;
    memcpy(some.freeze, lists[0], sizeof some.freeze);
    some.engine.clip_norm = full.engine.clip_norm = 0.1;
    mk_model a = mk_open(&some);
    full.engine.before_step = zero_frozen;
    full.engine.user = &a.model->params;
    mk_model b = mk_open(&full), first = mk_open(&some);
    bti_update_result r, q;
    update(&a, &some, 1, &r);
    update(&b, &full, 1, &q);
    ck_assert(r.grad_norm > 0.2);
    kit_near(r.grad_norm, q.grad_norm, 1e-6 * q.grad_norm);
    int64_t n, at = 0;
    const bti_params *t = &a.model->params;
    double *x = mk_state(&a, BTI_REGION_MOMENT1, &n), *y = mk_state(&b, BTI_REGION_MOMENT1, NULL);
    for (int32_t i = 0; i < t->count; i++) {
        n = t->param[i].rows * t->param[i].cols;
        if (!t->param[i].frozen) ck_assert(mk_relative(x + at, y + at, n) <= 1e-6);
        at += n;
    }
    free(x);
    free(y);
    same_bits(&a, &first, BTI_REGION_WEIGHTS, 1);
    mk_close(&first);
    mk_close(&a);
    mk_close(&b);
}
END_TEST

/* The same bits whatever is made again: layers, and every level between that and nothing. */
START_TEST(recomputation) {
    wt_result kept = {0};
    for (int32_t layers = 0; layers <= 4 + BTI_LEVEL_BLOCKS; layers++) {
        mk_setup s = setup_of(_i % 4);
        uint32_t keep[4];
        memcpy(s.freeze, lists[_i], sizeof s.freeze);
        s.plan.force_recompute_layers = layers < 5 ? layers : 0;
        for (int i = 0; i < 4 && layers > 4; i++) keep[i] = bti_level_keep[layers - 4];
        if (layers > 4) s.keep = keep;
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

/* Poison, guards and comparison after each op (tests/watch.h). */
START_TEST(watched) {
    mk_setup s = setup_of(_i % 4);
    memcpy(s.freeze, lists[_i], sizeof s.freeze);
    s.plan.force_recompute_layers = 2;
    wt_result plain = wt_run(&s, 2, 0), seen = wt_run(&s, 2, 1);
    ck_assert_int_gt(seen.poisoned, 60);
    wt_same(&plain, &seen, 2);
    wt_free(&plain);
    wt_free(&seen);
}
END_TEST

/* ---- what it saves ----------------------------------------------------------------- */

static int has_tensor(const bti_program *p, const char *name) {
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (p->tensor[i].first >= 0 && strcmp(p->tensor[i].name, name) == 0) return 1;
    return 0;
}

/* Bytes of a region of gradients or moments. */
static uint64_t trained_bytes(const mk_model *m, bti_region region) {
    const bti_params *t = &m->model->params;
    uint64_t align = m->dev->info.alignment, bytes = 0;
    for (int32_t i = 0; i < t->count; i++) {
        const bti_param *p = &t->param[i];
        int64_t rows = region == BTI_REGION_GRADIENTS ? p->grad_rows : p->rows;
        uint64_t one = (uint64_t)(rows * p->cols) * sizeof(float);
        if (!p->frozen) bytes += (one + align - 1) / align * align;
    }
    return bytes;
}

/* Gradients and moments of what learns, and not a byte more is taken than was planned. */
START_TEST(bytes) {
    mk_watch watch = {0};
    mk_setup s = setup_of(0);
    s.model.dropout = s.model.embedding_dropout = 0.1;
    mk_model full = mk_open(&s);
    memcpy(s.freeze, lists[_i], sizeof s.freeze);
    s.watch = &watch;
    mk_model m = mk_open(&s);
    const uint64_t *f = full.plan->bytes, *b = m.plan->bytes;
    ck_assert_uint_eq(watch.bytes, m.plan->total);
    ck_assert_uint_eq(b[BTI_BYTES_WEIGHTS], f[BTI_BYTES_WEIGHTS]);
    ck_assert_uint_eq(b[BTI_BYTES_GRADIENTS], trained_bytes(&m, BTI_REGION_GRADIENTS));
    ck_assert_uint_eq(b[BTI_BYTES_OPTIMIZER], 2 * trained_bytes(&m, BTI_REGION_MOMENT1));
    ck_assert_uint_lt(b[BTI_BYTES_GRADIENTS], f[BTI_BYTES_GRADIENTS]);
    ck_assert_int_lt(m.plan->step->ops, full.plan->step->ops + (_i == 8));
    ck_assert(has_tensor(full.plan->step, "d encoder output"));
    int encoder_learns = _i != 0 && _i != 4 && _i != 5 && _i != 13;
    ck_assert_int_eq(has_tensor(m.plan->step, "d encoder output"), encoder_learns);
    ck_assert_int_eq(has_tensor(m.plan->step, "d decoder output"), _i != 4);
    ck_assert_int_eq(has_tensor(m.plan->step, "d q"), _i != 4 && _i != 5);
    if (!encoder_learns) ck_assert_uint_lt(b[BTI_BYTES_ACTIVATIONS], f[BTI_BYTES_ACTIVATIONS]);
    mk_close(&m);
    mk_close(&full);
}
END_TEST

/* ---- names ------------------------------------------------------------------------- */

static bti_model *model_of(bti_tie tie) {
    bti_model_config c = mk_defaults().model;
    bti_model *m;
    c.tie = tie;
    kit_ok(bti_model_new(&c, 97, 97, BT_F32, &m));
    return m;
}

START_TEST(tied_tables) {
    char *pattern[] = {"generator.weight", "tgt_embed.*"};
    for (int tie = BTI_TIE_NONE; tie <= BTI_TIE_ALL; tie++)
        for (int k = 0; k < 2; k++) {
            bti_model *m = model_of((bti_tie)tie);
            kit_ok(bti_model_freeze(m, &pattern[k], 1));
            int generator = m->params.param[m->generator.w].frozen;
            ck_assert_int_eq(generator, k == 0 || tie != BTI_TIE_NONE);
            ck_assert_int_eq(m->params.param[m->embed[1]].frozen, k == 1 || tie != BTI_TIE_NONE);
            ck_assert_int_eq(m->params.param[m->embed[0]].frozen, tie == BTI_TIE_ALL);
            bti_model_free(m);
        }
}
END_TEST

START_TEST(refused) {
    static const struct {
        char *pattern;
        const char *say;
    } wrong[] = {
        {"transformer.encodr.*", "\"transformer.encodr.*\"; a near name is transformer.encoder."},
        {"encoder.layers.1.*", "a near name is transformer.encoder.layers.1."},
        {"src_embed", "a near name is src_embed.weight"},
        {"tgt_positions.weight", "a near name is tgt_embed.weight"},
        {"", "\"\""},
        {"*", "all 68 parameters are frozen"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bti_model *m = model_of(BTI_TIE_NONE);
        char *list[] = {"generator.bias", wrong[i].pattern};
        kit_fails(bti_model_freeze(m, list, 2), BT_EINPUT, wrong[i].say);
        bti_model_free(m);
    }
}
END_TEST

/* ---- checkpoints ------------------------------------------------------------------- */

START_TEST(resumed) {
    mk_setup s = setup_of(3);
    memcpy(s.freeze, lists[0], sizeof s.freeze);
    bti_checkpoint_info info = {.update = 2, .vocab = {97, 97}, .run = "x"};
    const char *path = kit_str("%s/c.safetensors", kit_tmpdir());
    bti_update_result r, q;
    mk_model a = mk_open(&s);
    for (int u = 1; u <= 2; u++) update(&a, &s, u, &r);
    info.steps = a.engine->steps;
    kit_ok(bti_checkpoint_save(a.engine, path, &info, 1));
    update(&a, &s, 3, &r);
    s.no_init = 1;
    mk_model b = mk_open(&s);
    bti_checkpoint *c;
    kit_ok(bti_checkpoint_open(path, &c));
    const bti_params *t = &a.model->params;
    for (int32_t i = 0; i < t->count; i++) {
        const char *moment = kit_str("optimizer.exp_avg.%s", t->param[i].name);
        ck_assert(bti_st_find(c->file, t->param[i].name, NULL) != NULL);
        ck_assert((bti_st_find(c->file, moment, NULL) == NULL) == t->param[i].frozen);
    }
    kit_ok(bti_checkpoint_load(c, b.engine, 1));
    bti_checkpoint_close(c);
    update(&b, &s, 3, &q);
    ck_assert(r.loss == q.loss && r.grad_norm == q.grad_norm);
    for (int frozen = 0; frozen < 2; frozen++) same_bits(&a, &b, BTI_REGION_WEIGHTS, frozen);
    mk_close(&a);
    mk_close(&b);
}
END_TEST

void add_train_freeze(TCase *tc) {
    tcase_add_loop_test(tc, as_with_zeroed_gradients, 0, LISTS);
    tcase_add_loop_test(tc, clipped_by_what_learns, 0, 2);
    tcase_add_loop_test(tc, recomputation, 0, LISTS);
    tcase_add_loop_test(tc, watched, 0, LISTS);
    tcase_add_loop_test(tc, bytes, 0, LISTS);
    tcase_add_test(tc, tied_tables);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, resumed);
}
