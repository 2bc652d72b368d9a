/* Where a run's first values come from, what stays as it is, and learned positions: through the
 * program. */
#include "tests/program_kit.h"

#include <unistd.h>

#include "core/base/safetensors.h"

#define WIDTH 32

static bti_st_file *weights_of(const char *path) {
    bti_st_file *f;
    kit_ok(bti_st_open(path, BTI_ST_REQUIRE, &f));
    return f;
}

static const float *tensor(bti_st_file *f, const char *name, size_t *n) {
    const void *data;
    const bti_st_tensor *t = bti_st_find(f, name, &data);
    ck_assert_msg(t != NULL, "there is no %s", name);
    *n = (size_t)t->shape[0] * (t->dims == 2 ? (size_t)t->shape[1] : 1);
    return data;
}

/* How many tensors of two files (moments left out) have equal bits and a name with `part`. */
static int equal_tensors(const char *a, const char *b, const char *part) {
    bti_st_file *x = weights_of(a), *y = weights_of(b);
    int equal = 0;
    for (size_t i = 0; i < bti_st_count(x); i++) {
        const char *name = bti_st_at(x, i, NULL)->name;
        size_t n, m;
        if (strncmp(name, "optimizer.", 10) == 0 || strstr(name, part) == NULL) continue;
        const float *p = tensor(x, name, &n), *q = tensor(y, name, &m);
        ck_assert_uint_eq(n, m);
        equal += memcmp(p, q, n * sizeof *p) == 0;
    }
    bti_st_close(x);
    bti_st_close(y);
    return equal;
}

static int tensors(const char *path, const char *part) { return equal_tensors(path, path, part); }

static void move_output(small_run r, const char *to) {
    ck_assert_int_eq(rename(r.out, in_dir(r, to)), 0);
}

/* ---- initial_model ------------------------------------------------------------------ */

#define STILL \
    "--set", "optimizer.lr=0" /* an update that moves nothing: what there was at first \
                               */

/* A folder, its newest checkpoint and its model give the same values, and none of the state. */
START_TEST(begins_with_another_run) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "4"), 0);
    move_output(r, "a");
    const char *model = in_dir(r, "a/model.safetensors");
    const char *from[] = {"a", "a/checkpoint-0000000004.safetensors", "a/model.safetensors"};
    for (int i = 0; i < 3; i++) {
        program p = train(r, "--updates", "1", STILL, "--set", kit_str("initial_model=%s", from[i]),
                          "--set", "training.seed=7");
        check_status(p, 0);
        check_has(p.err, kit_str("initial weights: all %d parameters of", tensors(model, "")));
        check_has(p.err, in_dir(r, i == 1 ? from[1] : from[2]));
        check_lacks(p.err, "was trained with");
        const char *now = in_out(r, "model.safetensors");
        ck_assert_int_eq(equal_tensors(model, now, ""), tensors(model, ""));
        check_has(file_text(in_out(r, "run.yaml")),
                  kit_str("initial_model: \"%s\"", in_dir(r, from[i])));
        json_t *log = read_log(r.out);
        ck_assert_int_eq((int)number_at(json_array_get(log, 0), "update"), 1);
        json_decref(log);
        move_output(r, kit_str("b%d", i));
    }
    /* The seed alone gives others. */
    check_status(train(r, "--updates", "1", STILL, "--set", "training.seed=7"), 0);
    ck_assert_int_lt(equal_tensors(model, in_out(r, "model.safetensors"), "weight"), 1);
}
END_TEST

/* A checkpoint wins over initial_model, which need not be there any more and may be another. */
START_TEST(resume_ignores_it) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    move_output(r, "a");
    const char *set = "initial_model=a";
    /* Without a checkpoint --resume begins, and so with it. */
    program p = train(r, "--updates", "2", "--resume", "--set", set);
    check_status(p, 0);
    check_has(p.err, "initial weights: all");
    ck_assert_int_eq(rename(in_dir(r, "a"), in_dir(r, "gone")), 0);
    check_status(train(r, "--updates", "3", "--resume", "--set", set), 0);
    p = train(r, "--updates", "4", "--resume", "--set", "initial_model=elsewhere", "--set",
              "initial_partial=true");
    check_status(p, 0);
    check_lacks(p.err, "initial weights");
    check_lacks(p.err, "initial_");
    check_status(train(r, "--updates", "5", "--resume"), 0);
}
END_TEST

START_TEST(refused_before_anything_is_written) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "1"), 0);
    move_output(r, "a");
    kit_write_text(in_dir(r, "text"), "no weights at all");
    static const struct {
        const char *set[2], *say[3];
    } wrong[] = {
        {{"initial_model=a", "model.d_model=64"},
         {"is not a model like this one",
          "of another shape: src_embed.weight (90 x 32 there, 90 x 64 here)", " more"}},
        {{"initial_model=a", "model.encoder_layers=2"},
         {"(12 tensors differ)", "not there: transformer.encoder.layers.1.self_attn.in_proj_weight",
          " and 9 more; initial_partial: true takes what fits"}},
        {{"initial_model=a", "model.positions=learned"},
         {"(2 tensors differ)", "not there: src_positions.weight, tgt_positions.weight",
          "initial_partial"}},
        {{"initial_model=a", "model.final_norm=false"},
         {"(4 tensors differ)", "not in this model: transformer.", "norm"}},
        {{"initial_model=none", "training.batch=16"}, {"none", "", ""}},
        {{"initial_model=text", "initial_partial=true"}, {"text: not a safetensors file", "", ""}},
        {{"initial_model=run.yaml", "training.batch=16"},
         {"run.yaml: not a safetensors file", "", ""}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int plan = 0; plan < 2; plan++) {
            const char *a = wrong[i].set[0], *b = wrong[i].set[1];
            program p = plan ? bantam("plan", r.yaml, "--device", "cpu", "--set", a, "--set", b)
                             : train(r, "--set", a, "--set", b);
            ck_assert_msg(p.status == 2 || (p.status == 1 && i == 4), "%d: %s", p.status, p.err);
            for (int k = 0; k < 3; k++) check_has(p.err, wrong[i].say[k]);
            ck_assert_int_eq(toy_entries(r.out, "run.yaml"), 0);
            ck_assert_int_eq(toy_entries(r.out, "safetensors"), 0);
        }
}
END_TEST

/* What fits is taken; log and plan name what does not. */
START_TEST(partly) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "2"), 0);
    move_output(r, "a");
    const char *sets[] = {"initial_model=a", "initial_partial=true", "model.encoder_layers=2"};
    program p = bantam("plan", r.yaml, "--set", sets[0], "--set", sets[1], "--set", sets[2]);
    check_status(p, 0);
    check_has(p.out, "initial weights");
    json_t *plan = plan_of(r.yaml, 0, "--set", sets[0], "--set", sets[1], "--set", sets[2]);
    check_has(json_string_value(json_object_get(plan, "initial_weights")), "a/model.safetensors");
    json_decref(plan);
    check_has(p.out, "not there: transformer.encoder.layers.1.self_attn.in_proj_weight");
    p = train(r, "--updates", "1", STILL, "--set", sets[0], "--set", sets[1], "--set", sets[2]);
    check_status(p, 0);
    const char *model = in_dir(r, "a/model.safetensors"), *now = in_out(r, "model.safetensors");
    int all = tensors(model, "");
    check_has(p.err, kit_str("%d of %d parameters from", all, all + 12));
    check_has(p.err, "transformer.encoder.layers.1.self_attn.in_proj_weight");
    ck_assert_int_eq(tensors(now, ""), all + 12);
    ck_assert_int_eq(equal_tensors(model, now, ""), all);
}
END_TEST

/* What shapes do not tell is told: other heads, another tokeniser of the same size. */
START_TEST(unlike_settings_are_told) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "1"), 0);
    move_output(r, "a");
    program p = train(r, "--updates", "1", "--set", "initial_model=a", "--set", "model.norm=pre",
                      "--set", "model.heads=8");
    check_status(p, 0);
    check_has(p.err, "model.norm is pre here");
    check_has(p.err, "was trained with post");
    check_has(p.err, "model.heads is 8 here");
    check_lacks(p.err, "tokeniser (checksum");
}
END_TEST

/* ---- freeze -------------------------------------------------------------------------- */

START_TEST(frozen_weights_stay) {
    small_run r = small_run_new(60);
    check_status(train(r, "--updates", "1", STILL), 0);
    move_output(r, "first");
    const char *first = in_dir(r, "first/model.safetensors");
    const char *set = "freeze=[transformer.encoder.*, src_embed.weight]";
    const char *decay = "optimizer.weight_decay=0.1";
    program p = train(r, "--updates", "6", "--set", set, "--set", decay);
    check_status(p, 0);
    check_has(p.err, "of the parameters are frozen");
    const char *now = in_out(r, "model.safetensors");
    int encoder = tensors(now, "encoder");
    ck_assert_int_gt(encoder, 10);
    ck_assert_int_eq(equal_tensors(first, now, "encoder"), encoder);
    ck_assert_int_eq(equal_tensors(first, now, "src_embed"), 1);
    /* the key bias moves nowhere, but lies in a joint one that does */
    ck_assert_int_eq(equal_tensors(first, now, "decoder"), 0);
    ck_assert_int_eq(equal_tensors(first, now, "generator"), 0);
    bti_st_file *f = weights_of(newest_checkpoint(r.out));
    size_t n;
    ck_assert_ptr_null(bti_st_find(f, "optimizer.exp_avg.src_embed.weight", NULL));
    tensor(f, "optimizer.exp_avg.transformer.decoder.norm.weight", &n);
    bti_st_close(f);
    p = train(r, "--updates", "8", "--resume", "--set", decay);
    check_refused(p, "freeze [\"transformer.encoder.*\", \"src_embed.weight\"] (now [])");
    check_status(train(r, "--updates", "8", "--resume", "--set", set, "--set", decay), 0);
    ck_assert_int_eq(equal_tensors(first, now, "encoder"), encoder);
    check_status(bantam("translate", r.out, "--input", in_dir(r, "train.de"), "--beam", "1"), 0);
}
END_TEST

/* Stopped and resumed it is the same run, frozen parts and all. */
START_TEST(frozen_resume_is_bit_identical) {
    small_run r = small_run_new(60);
    const char *set = "freeze=[\"*norm*\", \"transformer.decoder.layers.0.*\"]";
    check_status(train(r, "--updates", "6", "--set", set), 0);
    move_output(r, "whole");
    check_status(train(r, "--updates", "3", "--set", set), 0);
    check_status(train(r, "--updates", "6", "--set", set, "--resume"), 0);
    ck_assert(files_equal(in_dir(r, "whole/checkpoint-0000000006.safetensors"),
                          in_out(r, "checkpoint-0000000006.safetensors")));
}
END_TEST

START_TEST(wrong_names_are_told) {
    small_run r = small_run_new(60);
    unlink(in_dir(r, "train.de")); /* refused before the text is read */
    program p = train(r, "--set", "freeze=[transformer.encodr.*]");
    check_refused(p, "no parameter is named \"transformer.encodr.*\"");
    check_has(p.err, "a near name is transformer.encoder.layers.0.");
    check_has(p.err, r.yaml);
    check_refused(train(r, "--set", "freeze=*"), "nothing would be learned");
}
END_TEST

START_TEST(frozen_bytes) {
    small_run r = small_run_new(60);
    json_t *full = plan_of(r.yaml, 0, "--device", "cpu");
    json_t *some = plan_of(r.yaml, 0, "--device", "cpu", "--set", "freeze=transformer.encoder.*");
    json_t *a = json_object_get(full, "bytes"), *b = json_object_get(some, "bytes");
    ck_assert(number_at(a, "weights") == number_at(b, "weights"));
    ck_assert(number_at(b, "gradients") < number_at(a, "gradients"));
    ck_assert(number_at(b, "optimizer") == 2 * number_at(b, "gradients"));
    ck_assert(number_at(full, "frozen_parameters") == 0);
    double less = number_at(a, "gradients") - number_at(b, "gradients");
    double frozen = 4 * number_at(some, "frozen_parameters"); /* less the gaps between tensors */
    ck_assert(frozen <= less && frozen > 0.9 * less);
    ck_assert(json_object_get(full, "initial_weights") == NULL);
    ck_assert(number_at(some, "total_bytes") < number_at(full, "total_bytes"));
    json_decref(full);
    json_decref(some);
    program p = bantam("plan", r.yaml, "--set", "freeze=transformer.encoder.*");
    check_status(p, 0);
    check_has(p.out, "frozen ");
}
END_TEST

/* ---- learned positions ------------------------------------------------------------------ */

/* They learn, are saved and found again, and bound lines as max_length always does. */
START_TEST(learned_positions) {
    small_run r = small_run_new(60);
    const char *set = "model.positions=learned", *length = "data.max_length=24";
    size_t n;
    check_status(train(r, "--updates", "1", "--set", set, "--set", length, STILL), 0);
    move_output(r, "first");
    check_status(train(r, "--updates", "6", "--set", set, "--set", length), 0);
    move_output(r, "whole");
    check_status(train(r, "--updates", "3", "--set", set, "--set", length), 0);
    program p = train(r, "--updates", "6", "--set", set, "--set", "data.max_length=32", "--resume");
    check_refused(p, "data.max_length 24 (now 32)");
    check_status(train(r, "--updates", "6", "--set", set, "--set", length, "--resume"), 0);
    ck_assert(files_equal(in_dir(r, "whole/checkpoint-0000000006.safetensors"),
                          in_out(r, "checkpoint-0000000006.safetensors")));
    bti_st_file *f = weights_of(in_out(r, "model.safetensors"));
    tensor(f, "src_positions.weight", &n);
    ck_assert_uint_eq(n, 24 * WIDTH);
    tensor(f, "tgt_positions.weight", &n);
    ck_assert_uint_eq(n, 24 * WIDTH);
    bti_st_close(f);
    const char *first = in_dir(r, "first/model.safetensors");
    ck_assert_int_eq(equal_tensors(first, in_out(r, "model.safetensors"), "positions"), 0);
    char *text = malloc(4096), *to = text;
    for (int i = 0; i < 100; i++) to += sprintf(to, "%s ", toy_word((uint32_t)i % 64, 0));
    kit_write_text(in_dir(r, "long"), text);
    free(text);
    p = bantam("translate", r.out, "--input", in_dir(r, "long"), "--device", "cpu");
    check_status(p, 0);
    check_has(p.err, "cut");
    ck_assert_int_eq(count_lines(p.out), 1);
}
END_TEST

void add_init(TCase *tc) {
    tcase_add_test(tc, begins_with_another_run);
    tcase_add_test(tc, resume_ignores_it);
    tcase_add_test(tc, refused_before_anything_is_written);
    tcase_add_test(tc, partly);
    tcase_add_test(tc, unlike_settings_are_told);
    tcase_add_test(tc, frozen_weights_stay);
    tcase_add_test(tc, frozen_resume_is_bit_identical);
    tcase_add_test(tc, wrong_names_are_told);
    tcase_add_test(tc, frozen_bytes);
    tcase_add_test(tc, learned_positions);
}
