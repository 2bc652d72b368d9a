/* training.precision through the program: resume (case C3), hopeless runs (case B6), plans, and
 * devices that lack it. */
#include "tests/program_kit.h"

#include <unistd.h>

#include "backends/registry.h"
#include "core/base/safetensors.h"
#include "core/run/precision.h"

static const char *const device[] = {"ref", "cpu"};

/* Does a device compute in it? Where not, says so. */
static int has(const char *spec, bti_precision p) {
    bt_dev *dev;
    kit_ok(bti_device_open(spec, &(bt_open_options){0}, &dev));
    int there = bti_precision_has(&dev->info, p);
    bti_device_close(dev);
    if (!there) kit_skip("%s: the %s backend does not compute in it", bti_precision_name(p), spec);
    return there;
}

static void move_output(small_run r, const char *to) {
    ck_assert_int_eq(rename(r.out, in_dir(r, to)), 0);
}

/* `bantam train` on one thread of a device, in a precision, with more words. */
#define half(r, on, precision, ...) \
    bantam("train", (r).yaml, "--threads=1", kit_str("--device=%s", on), \
           kit_str("--set=training.precision=%s", precision), __VA_ARGS__)

/* ---- C3 ----------------------------------------------------------------------------------------
 */

static void check_same_run(const char *a, const char *b, int fp16) {
    json_t *x = read_log(a), *y = read_log(b);
    ck_assert_uint_eq(json_array_size(y), 20);
    for (size_t i = 0; i < 20; i++) {
        static const char *const field[] = {"loss", "grad_norm", "lr", "loss_scale"};
        for (int k = 0; k < 4; k++)
            ck_assert(number_at(json_array_get(x, i), field[k]) ==
                      number_at(json_array_get(y, i), field[k]));
    }
    double scale = number_at(json_array_get(y, 9), "loss_scale");
    ck_assert(fp16 ? scale == 262144 : scale == 1);
    json_decref(x);
    json_decref(y);
}

/* 20 updates at once, against 10 and 10, then again from the same file: weights, moments, loss
 * scale and the updates that it stood for, in the same bits. The scale grows after updates 4 and 8,
 * and after 12 only where the file has told what came before. */
static void check_resume(const char *on, const char *precision) {
    small_run r = small_run_new(60);
    static const char *const file[] = {"model.safetensors", "checkpoint-0000000020.safetensors"};
    const char *growth = "--set=training.loss_scale_growth=4", *every = "--set=checkpoint.every=10";
    const char *warmup = "--set=schedule.warmup=15";
    check_status(half(r, on, precision, growth, every, warmup), 0);
    move_output(r, "whole");
    check_status(half(r, on, precision, growth, every, warmup, "--updates=10"), 0);
    for (int twice = 0; twice < 2; twice++) {
        program p = half(r, on, precision, growth, every, warmup, "--resume");
        check_status(p, 0);
        check_has(p.err, "checkpoint-0000000010.safetensors");
        for (int i = 0; i < 2; i++)
            ck_assert_msg(files_equal(in_dir(r, kit_str("whole/%s", file[i])), in_out(r, file[i])),
                          "%s differs", file[i]);
        check_same_run(in_dir(r, "whole"), r.out, strcmp(precision, "fp16") == 0);
        ck_assert_int_eq(unlink(in_out(r, file[1])), 0);
    }
}

START_TEST(resume_in_half) {
    for (int d = 0; d < 2; d++) {
        if (has(device[d], BTI_PRECISION_FP16)) check_resume(device[d], "fp16");
        if (has(device[d], BTI_PRECISION_BF16)) check_resume(device[d], "bf16");
    }
}
END_TEST

/* A checkpoint goes on in another precision, and says so; the loss scale begins anew, and the kept
 * plan is not taken. */
START_TEST(resume_in_another) {
    static const char *const in[] = {"fp32", "fp16", "bf16", "fp32"};
    static const double scale[] = {1, 65536, 1, 1};
    small_run r = small_run_new(60);
    for (int i = 0; i < 4; i++) {
        program p = half(r, "ref", in[i], "--resume", kit_str("--updates=%d", 2 * i + 2));
        check_status(p, 0);
        check_has(file_text(in_out(r, "plan.json")), kit_str("\"precision\": \"%s\"", in[i]));
        json_t *log = read_log(r.out);
        ck_assert_uint_eq(json_array_size(log), (size_t)(2 * i + 2));
        ck_assert(number_at(json_array_get(log, (size_t)(2 * i + 1)), "loss_scale") == scale[i]);
        json_decref(log);
        if (i == 0) continue;
        check_has(p.err,
                  kit_str("training.precision is %s from here on; it was %s", in[i], in[i - 1]));
        check_has(p.err, kit_str("plan.json is of another precision than %s", in[i]));
    }
}
END_TEST

/* ---- B6: runs that cannot go on ----------------------------------------------------------------
 */

/* Tensors of both files that differ, moments included. */
static int differ(const char *a, const char *b) {
    bti_st_file *x, *y;
    int n = 0;
    kit_ok(bti_st_open(a, BTI_ST_VERIFY, &x));
    kit_ok(bti_st_open(b, BTI_ST_VERIFY, &y));
    ck_assert_uint_eq(bti_st_count(x), bti_st_count(y));
    for (size_t i = 0; i < bti_st_count(x); i++) {
        const void *p, *q;
        const bti_st_tensor *t = bti_st_at(x, i, &p), *u = bti_st_at(y, i, &q);
        size_t bytes = (size_t)(t->shape[0] * (t->dims > 1 ? t->shape[1] : 1)) * sizeof(float);
        ck_assert_str_eq(t->name, u->name);
        n += memcmp(p, q, bytes) != 0;
    }
    bti_st_close(x);
    bti_st_close(y);
    return n;
}

/* All but the biases inside the encoder's feed-forward blocks. */
static const char freeze[] = "--set=freeze=[\"*weight\", \"*norm*\", \"*proj*bias\", "
                             "\"*linear2.bias\", \"generator.*\", \"transformer.decoder.*\"]";

/* One update at a rate of 1e5 gives biases that activations in fp16 cannot hold: from then on every
 * gradient overflows, whatever the scale. It is halved to 1, then the run ends; the newest
 * checkpoint holds what the last good update left, and fp32 goes on from it. */
START_TEST(b6_overflow_without_end) {
    small_run r = small_run_new(60);
    program p = half(r, "ref", "fp16", "--set=optimizer.lr=1e5", "--set=training.updates=60",
                     "--set=schedule.warmup=0", "--set=checkpoint.every=1",
                     "--set=checkpoint.keep=30", freeze);
    check_status(p, 1);
    check_has(p.err, "update 18: gradients overflow fp16 even at loss scale 1; set "
                     "training.precision to bf16 or fp32");
    json_t *log = read_log(r.out);
    ck_assert_uint_eq(json_array_size(log), 18);
    double scale = 65536; /* the first update is a good one */
    for (size_t i = 0; i < 18; i++, scale /= 2) {
        json_t *line = json_array_get(log, i);
        ck_assert(number_at(line, "loss_scale") == scale);
        ck_assert_int_eq(json_is_true(json_object_get(line, "skipped")), i > 0);
        ck_assert(number_at(line, "lr") ==
                  (i == 0 ? 1e5 : number_at(json_array_get(log, 1), "lr")));
    }
    json_decref(log);
    const char *last = newest_checkpoint(r.out);
    check_has(last, "checkpoint-0000000001.safetensors"); /* none while updates are skipped */
    p = half(r, "ref", "fp32", "--resume", "--updates=19", freeze);
    check_status(p, 0);
    check_has(p.err, last);
    ck_assert_int_gt(differ(last, newest_checkpoint(r.out)), 0);
}
END_TEST

/* A scale that is not to move: 20 updates in a row end the run, naming it. */
START_TEST(b6_fixed_scale) {
    small_run r = small_run_new(60);
    program p = half(r, "ref", "fp16", "--set=training.loss_scale_max=1e30",
                     "--set=training.loss_scale=1e30", "--set=training.loss_scale_growth=0");
    check_status(p, 1);
    check_has(p.err, "update 20: gradients were not finite in 20 updates in a row; lower "
                     "training.loss_scale or optimizer.lr");
    ck_assert_ptr_null(newest_checkpoint(r.out));
    json_t *log = read_log(r.out);
    ck_assert_uint_eq(json_array_size(log), 20);
    for (size_t i = 0; i < 20; i++) {
        kit_near(number_at(json_array_get(log, i), "loss_scale"), 1e30, 1e23);
        ck_assert(json_is_true(json_object_get(json_array_get(log, i), "skipped")));
    }
    json_decref(log);
}
END_TEST

/* ---- bytes -------------------------------------------------------------------------------------
 */

/* What the plan halves is not taken: the resident peak falls by as much. */
START_TEST(resident_in_half) {
    double planned[2], peak[2];
    if (!has("cpu", BTI_PRECISION_BF16)) return;
    for (int i = 0; i < 2; i++) {
        small_run r = small_run_new(200);
        check_status(half(r, "cpu", i ? "bf16" : "fp32", "--updates=3", "--set=model.d_model=256",
                          "--set=model.ff=1024", "--set=training.batch=200",
                          "--set=memory.recompute=none"),
                     0);
        json_t *log = read_log(r.out);
        planned[i] = number_at(json_array_get(log, 2), "planned_bytes");
        peak[i] = number_at(json_array_get(log, 2), "peak_bytes");
        json_decref(log);
    }
    ck_assert_msg(planned[0] - planned[1] > 16e6, "%g and %g planned", planned[0], planned[1]);
    kit_near(peak[0] - peak[1], planned[0] - planned[1], 4e6);
}
END_TEST

/* ---- plans and devices -------------------------------------------------------------------------
 */

static uint64_t bytes_of(json_t *plan, const char *kind) {
    return (uint64_t)number_at(json_object_get(plan, "bytes"), kind);
}

/* On a device of the table: activations take half, state and tables what they take in fp32 (rows of
 * a chunk and scratch are the plan's choice). */
START_TEST(plan_in_half) {
    const char *yaml = kit_data("runs/case2-text.yaml");
    static const char *const same[] = {"weights", "gradients", "optimizer", "staging"};
    json_t *wide = plan_of(yaml, 0, "--device", "k80", "--lengths", "50:50", "--set",
                           "memory.recompute=none", "--memory", "40GiB");
    json_t *bf16 =
        plan_of(yaml, 0, "--device", "k80", "--lengths", "50:50", "--set", "memory.recompute=none",
                "--memory", "40GiB", "--set", "training.precision=bf16");
    ck_assert_str_eq(json_string_value(json_object_get(wide, "precision")), "fp32");
    ck_assert_str_eq(json_string_value(json_object_get(bf16, "precision")), "bf16");
    for (size_t i = 0; i < 4; i++)
        ck_assert_uint_eq(bytes_of(wide, same[i]), bytes_of(bf16, same[i]));
    double ratio = (double)bytes_of(bf16, "activations") / (double)bytes_of(wide, "activations");
    ck_assert_msg(ratio > 0.49 && ratio < 0.53, "activations take %.3f of fp32's", ratio);
    json_decref(wide);
    json_decref(bf16);
    program p = bantam("plan", yaml, "--device", "k80", "--lengths", "50:50", "--set",
                       "training.precision=fp16");
    check_status(p, 0);
    check_has(p.out, "precision      fp16");
}
END_TEST

#define KEEP_ALL "--set", "memory.recompute=none"

static double least(const char *yaml, const char *precision) {
    json_t *plan = plan_of(yaml, 2, "--device", "rtx3090", "--lengths", "709:32", "--memory",
                           "1GiB", KEEP_ALL, "--set", kit_str("training.precision=%s", precision));
    double bytes = number_at(plan, "minimum_bytes");
    json_decref(plan);
    return bytes;
}

/* Where no more is missing than half activations free, that is told. */
START_TEST(advice_names_half) {
    const char *yaml = kit_data("runs/case2-text.yaml");
    double wide = least(yaml, "fp32"), bf16 = least(yaml, "bf16");
    ck_assert(bf16 < wide - 4e6);
    const char *memory = kit_str("%.0f", (wide + bf16) / 2);
    program p = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "709:32", "--memory",
                       memory, KEEP_ALL);
    check_status(p, 2);
    check_has(p.out, "training.precision: bf16 (activations are rounded to it)");
    p = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "709:32", "--memory", memory,
               KEEP_ALL, "--set", "training.precision=bf16");
    check_status(p, 0);
}
END_TEST

/* Said before any text is read; of a list the first device is taken that has it. */
START_TEST(device_lacks_it) {
    small_run r = small_run_new(60);
    program p = half(r, "cpu", "tf32", NULL);
    check_refused(p, "(cpu) does not compute in tf32: set training.precision to ");
    check_lacks(p.err, "reading");
    ck_assert(!is_file(r.out));
    const char *tf32 = "--set=training.precision=tf32";
    check_refused(bantam("plan", r.yaml, "--device", "k80", tf32), "Tesla K80 (cuda)");
    p = bantam("plan", r.yaml, "--device", "k80,rtx3090", tf32);
    check_status(p, 0);
    check_has(p.err, "passed over: Tesla K80 (cuda) does not compute in tf32");
    check_has(p.out, "on GeForce RTX 3090");
    check_has(p.out, "precision      tf32");
}
END_TEST

void add_half(TCase *tc) {
    tcase_add_test(tc, resume_in_half);
    tcase_add_test(tc, resume_in_another);
    tcase_add_test(tc, b6_overflow_without_end);
    tcase_add_test(tc, b6_fixed_scale);
    tcase_add_test(tc, resident_in_half);
    tcase_add_test(tc, plan_in_half);
    tcase_add_test(tc, advice_names_half);
    tcase_add_test(tc, device_lacks_it);
}
