/* Moments in host memory compute what those on the device do; moments in 8 bits are rounded, and
 * nothing else. */
#include "backends/registry.h"
#include "core/engine/checkpoint.h"
#include "tests/kit.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

static const bti_region state[] = {BTI_REGION_WEIGHTS, BTI_REGION_MOMENT1, BTI_REGION_MOMENT2};

/* Five pairs in several micro-batches, tables with compact gradients of 1,003 words that take many
 * turns of a bucket. */
static mk_setup five(bti_moments moments) {
    static const int64_t source[] = {10, 3, 17, 1, 9}, target[] = {20, 7, 13, 1, 19};
    mk_setup s = mk_defaults();
    s.model.dropout = s.model.embedding_dropout = 0.2;
    s.vocab[0] = 1003;
    s.vocab[1] = 403;
    s.sentence = mk_sentences(5, source, target, 403, 9);
    s.sentences = 5;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 25;
    s.plan.force_recompute_layers = 0;
    s.plan.force_logit_rows = 100;
    s.plan.moments = moments;
    s.apart = 1;
    return s;
}

/* The ways in which a run may differ: whole gradients, what is frozen, decay, ties, small heaps. */
static mk_setup variant(int i, bti_moments moments) {
    mk_setup s = five(moments);
    if (i == 1) s.plan.force_compact = 0;
    if (i == 2) s.freeze[0] = "transformer.encoder.*";
    if (i == 2) s.freeze[1] = "src_embed.weight";
    if (i == 3) s.engine.adamw.weight_decay = 0.1;
    if (i == 3) s.engine.adamw.decoupled = 1;
    if (i == 4) s.model.tie = BTI_TIE_TARGET;
    if (i == 5) s.heap = 256 << 10; /* the weights take two */
    return s;
}
enum { VARIANTS = 6 };

/* ---- host --------------------------------------------------------------------------------------
 */

START_TEST(host_gives_the_same_bits) {
    mk_setup s = variant(_i, BTI_MOMENTS_DEVICE);
    wt_result device = wt_run(&s, 4, 0);
    s.plan.moments = BTI_MOMENTS_HOST;
    wt_result host = wt_run(&s, 4, 0);
    wt_same(&host, &device, 4);
    wt_free(&host);
    wt_free(&device);
}
END_TEST

/* Every byte of the device is looked at after each op. A device that copies on its own is left out:
 * it does so between two looks. */
START_TEST(host_writes_buckets_alone) {
    mk_setup s = five(BTI_MOMENTS_HOST);
    if (strcmp(kit_backend(), "opencl") == 0) {
        kit_skip("opencl copies while it is watched");
        return;
    }
    wt_result plain = wt_run(&s, 2, 0), watched = wt_run(&s, 2, 1);
    ck_assert_int_gt(watched.ops, 100);
    wt_same(&watched, &plain, 2);
    wt_free(&watched);
    wt_free(&plain);
}
END_TEST

/* Two buckets for each moment are all that the device holds; no table and no piece is left out. */
START_TEST(host_bytes) {
    mk_setup s = five(BTI_MOMENTS_HOST);
    mk_watch watch = {0};
    s.watch = &watch;
    mk_model m = mk_open(&s);
    const bti_moment_places *p = &m.plan->places.moments;
    uint64_t trained = m.model->params.trained, at = 0;
    ck_assert_int_eq(p->kind, BTI_MOMENTS_HOST);
    ck_assert_uint_eq(watch.bytes, m.plan->total);
    ck_assert_uint_eq(p->host_bytes, 2 * trained);
    ck_assert_uint_eq(m.plan->bytes[BTI_BYTES_OPTIMIZER], 4 * p->bucket);
    ck_assert_uint_le(p->bucket, trained / 16 + m.dev->info.alignment);
    const bti_program *update = m.engine->update;
    int32_t first = bti_update_first_piece(update);
    ck_assert_int_ge(update->ops - first, 15);
    for (int32_t k = first; k < update->ops; k++) { /* all that is trained, in order */
        bti_piece piece = bti_update_piece(update, k);
        ck_assert_uint_le(piece.bytes, p->bucket);
        ck_assert_uint_ge(piece.at, at);
        ck_assert_uint_lt(piece.at - at, m.dev->info.alignment); /* padding behind a table */
        at = piece.at + piece.bytes;
    }
    ck_assert_uint_le(at, trained);
    ck_assert_uint_lt(trained - at, m.dev->info.alignment);
    mk_close(&m);
}
END_TEST

/* On its own memory a device has no use for it. */
START_TEST(host_is_refused_in_words) {
    mk_setup s = five(BTI_MOMENTS_HOST);
    bt_dev *dev = mk_device(kit_backend(), NULL);
    bti_workload w = mk_workload(s.sentence, s.sentences);
    bti_model *m;
    bti_run_plan *plan = NULL;
    dev->info.host_memory = 1;
    kit_ok(bti_model_new(&s.model, s.vocab[0], s.vocab[1], BT_F32, &m));
    kit_fails(bti_plan_search(m, dev->driver->planning, &dev->info, &w, 20, &s.plan, &plan),
              BT_EUSAGE, "computes in host memory");
    ck_assert_ptr_null(plan);
    s.plan.moments = BTI_MOMENTS_AUTO;
    kit_ok(bti_plan_search(m, dev->driver->planning, &dev->info, &w, 20, &s.plan, &plan));
    ck_assert_int_eq(plan->choice.moments, BTI_MOMENTS_DEVICE);
    bti_run_plan_free(plan);
    bti_model_free(m);
    bti_device_close(dev);
}
END_TEST

/* ---- a step that is not taken
 * --------------------------------------------------------------------
 */

/* The last value of a gradient becomes infinite in update 3. */
static bt_status inject(void *user, bti_engine *e, int64_t update) {
    int32_t last = e->model->params.count - 1;
    const bti_param *p = &e->model->params.param[last];
    (void)user;
    if (update != 3) return BT_OK;
    float x[1003];
    BT_TRY(bti_engine_read(e, BTI_REGION_GRADIENTS, last, 0, p->cols, x));
    x[p->cols - 1] = INFINITY;
    return bti_engine_write(e, BTI_REGION_GRADIENTS, last, x);
}

START_TEST(skip_leaves_them) {
    mk_setup s = five((bti_moments)_i);
    double *before[3], *after;
    int64_t n = 0;
    s.engine.before_step = inject;
    mk_model m = mk_open(&s);
    for (int u = 1; u <= 4; u++) {
        bti_update_result r;
        for (int k = 0; u == 3 && k < 3; k++) before[k] = mk_state(&m, state[k], &n);
        kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, u, 1e-3, &r));
        ck_assert_int_eq(r.skipped, u == 3);
        for (int k = 0; u == 3 && k < 3; k++) {
            after = mk_state(&m, state[k], NULL);
            ck_assert_mem_eq(after, before[k], (size_t)n * sizeof *after);
            free(after);
            free(before[k]);
        }
    }
    mk_close(&m);
}
END_TEST

/* ---- checkpoints
 * ---------------------------------------------------------------------------------
 */

static void save(mk_model *m, const char *path, int64_t update) {
    bti_checkpoint_info info = {
        .update = update, .steps = m->engine->steps, .vocab = {1003, 403}, .run = "output: x\n"};
    kit_ok(bti_checkpoint_save(m->engine, path, &info, 1));
}

static void load(mk_model *m, const char *path) {
    bti_checkpoint *c;
    kit_ok(bti_checkpoint_open(path, &c));
    kit_ok(bti_checkpoint_load(c, m->engine, 1));
    bti_checkpoint_close(c);
}

static void run(mk_model *m, const mk_setup *s, int64_t first, int64_t last) {
    bti_update_result r;
    for (int64_t u = first; u <= last; u++)
        kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, u, 1e-3, &r));
}

/* Three updates with the moments kept one way, the rest of six from the file another way. */
static wt_result resumed(bti_moments before, bti_moments after) {
    wt_result result = {0};
    char *path = bti_checkpoint_path(kit_tmpdir(), 3);
    mk_setup s = five(before);
    mk_model m = mk_open(&s);
    run(&m, &s, 1, 3);
    save(&m, path, 3);
    mk_close(&m);
    s.plan.moments = after;
    s.no_init = 1;
    m = mk_open(&s);
    load(&m, path);
    run(&m, &s, 4, 6);
    result.weights = mk_state(&m, state[0], &result.count);
    for (int k = 0; k < 2; k++) result.moments[k] = mk_state(&m, state[1 + k], NULL);
    mk_close(&m);
    bti_free(path);
    return result;
}

static wt_result whole(bti_moments moments) {
    mk_setup s = five(moments);
    return wt_run(&s, 6, 0);
}

static void same_result(const wt_result *a, const wt_result *b) {
    size_t bytes = (size_t)b->count * sizeof(double);
    ck_assert_int_eq(a->count, b->count);
    ck_assert_mem_eq(a->weights, b->weights, bytes);
    ck_assert_mem_eq(a->moments[0], b->moments[0], bytes);
    ck_assert_mem_eq(a->moments[1], b->moments[1], bytes);
}

START_TEST(resumes_with_the_same_bits) {
    static const bti_moments kept[][2] = {{BTI_MOMENTS_DEVICE, BTI_MOMENTS_HOST},
                                          {BTI_MOMENTS_HOST, BTI_MOMENTS_DEVICE},
                                          {BTI_MOMENTS_HOST, BTI_MOMENTS_HOST},
                                          {BTI_MOMENTS_8BIT, BTI_MOMENTS_8BIT}};
    wt_result want = whole(kept[_i][0]), got = resumed(kept[_i][0], kept[_i][1]);
    same_result(&got, &want);
    wt_free(&got);
    wt_free(&want);
}
END_TEST

/* Between fp32 and 8 bits the weights move a little otherwise, as they do in 8 bits all along. */
START_TEST(resumes_in_other_bits) {
    static const bti_moments kept[][2] = {{BTI_MOMENTS_DEVICE, BTI_MOMENTS_8BIT},
                                          {BTI_MOMENTS_8BIT, BTI_MOMENTS_DEVICE},
                                          {BTI_MOMENTS_8BIT, BTI_MOMENTS_HOST}};
    wt_result want = whole(BTI_MOMENTS_DEVICE), got = resumed(kept[_i][0], kept[_i][1]);
    ck_assert(mk_relative(got.weights, want.weights, want.count) <= 2e-3);
    ck_assert(mk_relative(got.moments[0], want.moments[0], want.count) <= 0.05);
    ck_assert(memcmp(got.weights, want.weights, (size_t)want.count * sizeof(double)) != 0);
    wt_free(&got);
    wt_free(&want);
}
END_TEST

/* ---- 8 bits
 * --------------------------------------------------------------------------------------
 */

/* The first step starts from zero, which 8 bits hold: the same weights. Then moments are rounded.
 */
START_TEST(rounds_only_moments) {
    mk_setup s = variant(_i, BTI_MOMENTS_DEVICE);
    wt_result fp32 = wt_run(&s, 1, 0), later = wt_run(&s, 8, 0);
    s.plan.moments = BTI_MOMENTS_8BIT;
    wt_result first = wt_run(&s, 1, 0), eighth = wt_run(&s, 8, 0);
    ck_assert(mk_relative(first.weights, fp32.weights, fp32.count) <= 1e-7);
    /* Half a step of the code is 1.6 to 5 % in its upper two decades. */
    ck_assert(mk_relative(first.moments[0], fp32.moments[0], fp32.count) <= 0.03);
    ck_assert(mk_relative(first.moments[1], fp32.moments[1], fp32.count) <= 0.02);
    ck_assert(mk_relative(eighth.weights, later.weights, later.count) <= 3e-3);
    ck_assert(fabs(eighth.loss[7] - later.loss[7]) <= 0.01 * later.loss[7]);
    wt_free(&fp32);
    wt_free(&later);
    wt_free(&first);
    wt_free(&eighth);
}
END_TEST

/* Blocks begin with parameters, so that a compact gradient makes no difference. */
START_TEST(blocks_begin_with_parameters) {
    mk_setup s = five(BTI_MOMENTS_8BIT);
    s.engine.clip_norm = 0; /* the norm is summed in other blocks */
    wt_result compact = wt_run(&s, 4, 0), watched = wt_run(&s, 4, 1);
    wt_same(&watched, &compact, 4);
    s.plan.force_compact = 0;
    wt_result dense = wt_run(&s, 4, 0);
    wt_same_state(&dense, &compact);
    wt_free(&compact);
    wt_free(&watched);
    wt_free(&dense);
}
END_TEST

/* A byte a value, a scale for each 256; state that is written is read back, rounded. */
START_TEST(bytes_in_8_bits) {
    mk_setup s = five(BTI_MOMENTS_8BIT);
    mk_watch watch = {0};
    s.watch = &watch;
    mk_model m = mk_open(&s);
    uint64_t values = m.model->params.trained / sizeof(float);
    uint64_t least = 2 * (values + values / BT_ADAMW8_BLOCK * sizeof(float));
    ck_assert_uint_eq(watch.bytes, m.plan->total);
    ck_assert_uint_ge(m.plan->bytes[BTI_BYTES_OPTIMIZER], least);
    ck_assert_uint_le(m.plan->bytes[BTI_BYTES_OPTIMIZER], least + 4 * m.dev->info.alignment);
    int32_t i = m.model->embed[0];
    const bti_param *p = &m.model->params.param[i];
    int64_t n = p->rows * p->cols;
    float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    for (int64_t k = 0; k < n; k++) x[k] = (float)(k % 2 ? -k : k) / (float)n;
    kit_ok(bti_engine_write(m.engine, BTI_REGION_MOMENT1, i, x));
    kit_ok(bti_engine_read(m.engine, BTI_REGION_MOMENT1, i, 0, n, y));
    for (int64_t k = 512; k < n; k++) kit_near(y[k], x[k], 0.02 * fabs((double)x[k]));
    kit_ok(bti_engine_read(m.engine, BTI_REGION_MOMENT1, i, 256, 100, x));
    ck_assert_mem_eq(x, y + 256, 100 * sizeof *x);
    free(x);
    free(y);
    mk_close(&m);
}
END_TEST

void add_train_moments(TCase *tc) {
    tcase_add_loop_test(tc, host_gives_the_same_bits, 0, VARIANTS);
    tcase_add_test(tc, host_writes_buckets_alone);
    tcase_add_test(tc, host_bytes);
    tcase_add_test(tc, host_is_refused_in_words);
    tcase_add_loop_test(tc, skip_leaves_them, BTI_MOMENTS_DEVICE, BTI_MOMENTS_COUNT);
    tcase_add_loop_test(tc, resumes_with_the_same_bits, 0, 4);
    tcase_add_loop_test(tc, resumes_in_other_bits, 0, 3);
    tcase_add_loop_test(tc, rounds_only_moments, 0, VARIANTS);
    tcase_add_test(tc, blocks_begin_with_parameters);
    tcase_add_test(tc, bytes_in_8_bits);
}
