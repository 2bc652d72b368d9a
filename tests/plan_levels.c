/* Levels of recomputation and slices of rows, without a device: the bytes that each saves, what is
 * alive while layers are made again, programs of many layers. tests/train_levels.c runs them. */
#include "backends/registry.h"
#include "core/model/levels.h"
#include "tests/kit.h"
#include "tests/plan_parts.h"

typedef struct emission {
    bti_model *model;
    bti_program *p;
    bti_places places;
    bti_shape shape;
    uint32_t *keep;
} emission;

/* The base model's proportions, `n` + `n` layers. */
static emission open_model(int variant, int64_t n, int64_t rows) {
    bt_dev_info info = {.alignment = 64, .threads = 1};
    bti_model_config cfg = {.d_model = 64,
                            .ff = 256,
                            .heads = 4,
                            .encoder_layers = n,
                            .decoder_layers = n,
                            .norm = variant & 1 ? BTI_NORM_PRE : BTI_NORM_POST,
                            .activation = variant & 2 ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU,
                            .final_norm = !(variant & 4),
                            .norm_eps = 1e-5,
                            .dropout = 0.1,
                            .attention_dropout = 0.1,
                            .activation_dropout = 0.1,
                            .embedding_dropout = 0.1};
    emission e = {.shape = {.sentences = 8,
                            .rows = {rows, rows},
                            .distinct = {100, 100},
                            .longest = {rows / 8, rows / 8}}};
    kit_ok(bti_model_new(&cfg, 100, 100, BT_F32, &e.model));
    kit_ok(bti_params_place(&e.model->params, 64, 0));
    bti_staging_plan(e.model, &e.shape, 64, &e.places.staging);
    e.places.position_rows = rows;
    e.keep = malloc((size_t)e.model->layers * sizeof *e.keep);
    kit_ok(bti_program_new("step", bti_backend_planning("ref"), &info, &e.p));
    return e;
}

static void close_model(emission *e) {
    bti_program_free(e->p);
    bti_model_free(e->model);
    free(e->keep);
}

static void emit(emission *e, bti_level level, int32_t segment, int64_t slice) {
    bti_step step = {.model = e->model,
                     .places = &e->places,
                     .shape = e->shape,
                     .choices = {.keep = e->keep, .logit_rows = 16, .slice_rows = slice},
                     .training = 1,
                     .first_micro_batch = 1,
                     .grad_scale = 1};
    bti_train_program unused;
    bti_level_fill(e->model, level, 0, e->model->layers, segment, e->keep);
    kit_ok(bti_model_emit_step(e->p, &step, &unused));
}

static uint64_t live(emission *e, bti_level level, int32_t segment, int64_t slice) {
    bti_layout l;
    emit(e, level, segment, slice);
    kit_ok(bti_layout_make(e->p, &(bti_layout_options){.alignment = 64}, &l));
    return l.live;
}

/* Each level takes fewer bytes than the one before it. Small slices of what is not kept take no
 * more than the whole; what is kept, and all of a large slice, lives through the loop. */
START_TEST(each_level_saves) {
    static const int64_t slice[] = {0, 96, 24};
    emission e = open_model(_i, 6, 192);
    uint64_t whole[BTI_LEVEL_COUNT];
    double row = 192.0 * 64 * 4;
    for (int k = 0; k < 3; k++) {
        uint64_t before = UINT64_MAX;
        if (k == 0) printf("levels: %s, %s:", _i & 1 ? "pre" : "post", _i & 2 ? "gelu" : "relu");
        for (int i = 0; i < BTI_LEVEL_COUNT; i++) {
            uint64_t bytes = live(&e, (bti_level)i, 3, slice[k]);
            ck_assert_msg(bytes < before, "%s takes %llu bytes, %s %llu", bti_level_name[i],
                          (unsigned long long)bytes, i ? bti_level_name[i - 1] : "",
                          (unsigned long long)before);
            if (k == 0) printf(" %s %.1f", bti_level_name[i], (double)bytes / row);
            if (k == 0) whole[i] = bytes;
            if (k == 2 && i >= BTI_LEVEL_FF) ck_assert_uint_le(bytes, whole[i]);
            before = bytes;
        }
        if (k == 0) printf(" rows x d_model\n");
    }
    ck_assert_uint_lt(live(&e, BTI_LEVEL_LAYERS, 0, 24), whole[BTI_LEVEL_LAYERS]);
    close_model(&e);
}
END_TEST

/* Alive at a level where most is: no more than the kept and one layer's inside. */
START_TEST(one_layer_at_a_time) {
    emission e = open_model(_i, 24, 64);
    uint64_t unit = 64 * 64 * 4;
    uint64_t layers = live(&e, BTI_LEVEL_LAYERS, 0, 0);
    uint64_t segments = live(&e, BTI_LEVEL_SEGMENTS, 6, 0);
    /* Of 48 inputs 40 are not kept, and 5 of them are made at a time; stacks and memory differ by
     * one or two. */
    ck_assert_uint_ge(layers - segments, 31 * unit);
    /* A row of these is one layer's: more than that and two layers' insides are alive. */
    for (int32_t k = 0; k < e.p->ops; k++) {
        int attentions = 0;
        for (bti_tid i = 1; i <= e.p->tensors; i++) {
            const bti_tensor *t = &e.p->tensor[i];
            attentions += strcmp(t->name, "attention") == 0 && t->first <= k && t->last >= k;
        }
        ck_assert_int_le(attentions, 2);
    }
    close_model(&e);
}
END_TEST

/* Twice the layers are twice the ops, at every level, and the longest segment needs no deep stack.
 */
START_TEST(many_layers) {
    for (int i = 0; i < BTI_LEVEL_COUNT; i++) {
        emission one = open_model(_i, 50, 8), two = open_model(_i, 100, 8);
        emit(&one, (bti_level)i, 100, 0);
        emit(&two, (bti_level)i, 100, 0);
        ck_assert_int_le(two.p->ops, 2 * one.p->ops + 60);
        ck_assert_int_ge(two.p->ops, 2 * one.p->ops - 60);
        ck_assert_int_le(two.p->tensors, 2 * one.p->tensors + 200);
        close_model(&one);
        close_model(&two);
    }
}
END_TEST

/* Replays are laid out as forward ops are: biases and relu in the place of what they read. */
START_TEST(replays_in_place) {
    emission e = open_model(_i, 3, 64);
    int again = 0, loss = 0;
    (void)live(&e, BTI_LEVEL_LAYERS, 0, 0);
    for (int32_t k = 0; k < e.p->ops; k++) {
        const bti_op_record *o = &e.p->op[k];
        loss += o->op == BT_OP_CROSS_ENTROPY;
        if (loss == 0 || o->op != BT_OP_BIAS_ACT_FWD) continue;
        again++;
        ck_assert_uint_eq(e.p->tensor[o->t[BT_BIAS_ACT_FWD_X].id].address,
                          e.p->tensor[o->t[BT_BIAS_ACT_FWD_Y].id].address);
    }
    ck_assert_int_eq(again, 3 * 2 + 3 * 4); /* qkv, ff; qkv, q, kv, ff */
    close_model(&e);
}
END_TEST

/* Which inputs are kept: every k-th of a stack, the last of a stack, and the last of the range. */
START_TEST(segments) {
    emission e = open_model(0, 5, 8);
    bti_level_fill(e.model, BTI_LEVEL_NONE, 0, 10, 0, e.keep);
    bti_level_fill(e.model, BTI_LEVEL_SEGMENTS, 0, 8, 2, e.keep);
    static const int kept[10] = {0, 1, 0, 1, 1, 0, 1, 1, 1, 1};
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq((e.keep[i] & BTI_KEEP(BTI_CLASS_INPUT)) != 0, kept[i]);
        ck_assert_int_eq((e.keep[i] & BTI_KEEP(BTI_CLASS_ATTN)) != 0, i >= 8);
    }
    bti_level_fill(e.model, BTI_LEVEL_SEGMENTS, 1, 5, 3, e.keep);
    ck_assert(e.keep[3] & BTI_KEEP(BTI_CLASS_INPUT));
    ck_assert(!(e.keep[2] & BTI_KEEP(BTI_CLASS_INPUT)));
    for (int i = 0; i < BTI_LEVEL_COUNT; i++) {
        ck_assert_ptr_nonnull(bti_level_name[i]);
        if (i) ck_assert_uint_eq(bti_level_keep[i] & ~bti_level_keep[i - 1], 0);
    }
    close_model(&e);
}
END_TEST

void add_plan_levels(TCase *tc) {
    tcase_add_loop_test(tc, each_level_saves, 0, 4);
    tcase_add_loop_test(tc, one_layer_at_a_time, 0, 8);
    tcase_add_loop_test(tc, many_layers, 0, 2);
    tcase_add_loop_test(tc, replays_in_place, 0, 2);
    tcase_add_test(tc, segments);
}
