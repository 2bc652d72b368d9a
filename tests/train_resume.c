/* Checkpoints of an engine: exact, whole or not at all, the newest good one is found. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/engine/checkpoint.h"
#include "tests/kit.h"
#include "tests/train_parts.h"

static mk_setup dropping(void) {
    static const int64_t source[] = {5, 3, 8, 2}, target[] = {4, 7, 1, 6};
    mk_setup s = mk_defaults();
    s.model.dropout = s.model.attention_dropout = 0.2;
    s.model.activation_dropout = s.model.embedding_dropout = 0.2;
    s.sentence = mk_sentences(4, source, target, 97, 1);
    s.sentences = 4;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 10;
    return s;
}

static void run(mk_model *m, const mk_setup *s, int64_t first, int64_t last, double *loss) {
    for (int64_t u = first; u <= last; u++) {
        bti_update_result r;
        double lr = 1e-3 * (u < 15 ? (double)u / 15 : sqrt(15.0 / (double)u));
        kit_ok(bti_engine_update(m->engine, s->sentence, s->sentences, u, lr, &r));
        loss[u] = r.loss;
    }
}

static bti_checkpoint_info info_of(const mk_model *m, int64_t update) {
    return (bti_checkpoint_info){.update = update,
                                 .steps = m->engine->steps,
                                 .loss_scale = m->engine->loss_scale,
                                 .good = m->engine->good,
                                 .vocab = {97, 97},
                                 .tokenizer = {1, 2},
                                 .corpus = UINT64_MAX,
                                 .run = "output: x\n"};
}

static const char *save(mk_model *m, const char *folder, int64_t update) {
    char *path = bti_checkpoint_path(folder, update);
    const char *kept = kit_str("%s", path);
    bti_checkpoint_info info = info_of(m, update);
    bti_free(path);
    kit_ok(bti_checkpoint_save(m->engine, kept, &info, 1));
    return kept;
}

static void same_state(mk_model *a, mk_model *b) {
    static const bti_region kept[] = {BTI_REGION_WEIGHTS, BTI_REGION_MOMENT1, BTI_REGION_MOMENT2};
    for (int k = 0; k < 3; k++) {
        int64_t n, other;
        double *x = mk_state(a, kept[k], &n), *y = mk_state(b, kept[k], &other);
        ck_assert_int_eq(n, other);
        ck_assert_mem_eq(x, y, (size_t)n * sizeof *x);
        free(x);
        free(y);
    }
    ck_assert_int_eq(a->engine->steps, b->engine->steps);
    ck_assert(a->engine->loss_scale == b->engine->loss_scale);
    ck_assert(a->engine->good == b->engine->good);
}

/* 20 updates in one go are 10, a new engine from the file, and 10 more; twice from one file. In
 * fp16 the scale grows on the way, in steps that do not divide 10. */
START_TEST(resumed) {
    static const bti_precision in[] = {BTI_PRECISION_FP32, BTI_PRECISION_FP16, BTI_PRECISION_BF16};
    mk_setup s = dropping();
    s.precision = in[_i];
    if (!mk_computes_in(s.precision)) return;
    if (s.precision == BTI_PRECISION_FP16) {
        s.engine.loss_scale = 256;
        s.engine.scaling = (bt_update_scalars_params){.growth_interval = 4, .scale_max = 4096};
    }
    double loss[21], again[21];
    mk_model whole = mk_open(&s), half = mk_open(&s);
    const char *folder = kit_tmpdir();
    run(&whole, &s, 1, 20, loss);
    run(&half, &s, 1, 10, again);
    const char *path = save(&half, folder, 10);
    for (int twice = 0; twice < 2; twice++) {
        mk_setup other = s;
        other.engine.seed = s.engine.seed;
        other.no_init = twice;
        mk_model m = mk_open(&other);
        bti_checkpoint *c;
        kit_ok(bti_checkpoint_newest(folder, &c));
        ck_assert_ptr_nonnull(c);
        ck_assert_str_eq(c->path, path);
        ck_assert(c->info.loss_scale == (_i == 1 ? 1024 : 1));
        ck_assert(c->info.good == (_i == 1 ? 2 : 0));
        ck_assert_int_eq(c->info.update, 10);
        ck_assert_uint_eq(c->info.corpus, UINT64_MAX);
        ck_assert_str_eq(c->info.run, "output: x\n");
        kit_ok(bti_checkpoint_load(c, m.engine, 1));
        bti_checkpoint_close(c);
        same_state(&m, &half);
        size_t first, second;
        char *a = kit_read(path, &first), *b = kit_read(save(&m, kit_tmpdir(), 10), &second);
        ck_assert_uint_eq(first, second);
        ck_assert_mem_eq(a, b, first);
        free(a);
        free(b);
        run(&m, &s, 11, 20, again);
        ck_assert_mem_eq(again + 1, loss + 1, 20 * sizeof *loss);
        same_state(&m, &whole);
        mk_close(&m);
    }
    mk_close(&half);
    mk_close(&whole);
}
END_TEST

static int entries(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A disk that is full after n bytes leaves the older file alone and nothing else. */
START_TEST(full_disk) {
    mk_setup s = dropping();
    mk_model m = mk_open(&s);
    const char *folder = kit_tmpdir(), *old = save(&m, folder, 1);
    char *path = bti_checkpoint_path(folder, 2);
    size_t bytes, after;
    char *before = kit_read(old, &bytes);
    bti_checkpoint_info info = info_of(&m, 2);
    struct rlimit kept, low;
    getrlimit(RLIMIT_FSIZE, &kept);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t n = 0; n < bytes; n += bytes / 23 + 1) {
        low = (struct rlimit){.rlim_cur = n, .rlim_max = kept.rlim_max};
        setrlimit(RLIMIT_FSIZE, &low);
        bt_status status = bti_checkpoint_save(m.engine, n % 2 ? path : old, &info, 1);
        setrlimit(RLIMIT_FSIZE, &kept);
        ck_assert_int_eq(status, BT_EIO);
        ck_assert_int_eq(entries(folder), 1);
    }
    signal(SIGXFSZ, handler);
    char *now = kit_read(old, &after);
    ck_assert_uint_eq(after, bytes);
    ck_assert_mem_eq(now, before, bytes);
    kit_ok(bti_checkpoint_save(m.engine, path, &info, 1));
    ck_assert_int_eq(entries(folder), 2);
    free(now);
    free(before);
    bti_free(path);
    mk_close(&m);
}
END_TEST

/* A program may have set a locale with a decimal comma, before or between: the same file, and the
 * same numbers out of it. */
START_TEST(commas_change_no_checkpoint) {
    mk_setup s = dropping();
    mk_model m = mk_open(&s);
    bti_checkpoint_info info = info_of(&m, 7);
    bti_checkpoint *c;
    info.best = 27.1875;
    info.loss_scale = 0.0625;
    const char *dir = kit_tmpdir(), *with[] = {kit_str("%s/point", dir), kit_str("%s/comma", dir)};
    kit_ok(bti_checkpoint_save(m.engine, with[0], &info, 1));
    if (kit_comma_begin()) {
        kit_ok(bti_checkpoint_save(m.engine, with[1], &info, 1));
        kit_ok(bti_checkpoint_open(with[0], &c));
        kit_comma_end();
        ck_assert(c->info.best == info.best && c->info.loss_scale == info.loss_scale);
        bti_checkpoint_close(c);
        size_t bytes[2];
        char *data[2] = {kit_read(with[0], &bytes[0]), kit_read(with[1], &bytes[1])};
        ck_assert_uint_eq(bytes[0], bytes[1]);
        ck_assert_mem_eq(data[0], data[1], bytes[0]);
        free(data[0]);
        free(data[1]);
    }
    mk_close(&m);
}
END_TEST

/* Cut at any length or with a byte flipped: passed over for the next newest. */
START_TEST(damaged) {
    mk_setup s = dropping();
    mk_model m = mk_open(&s);
    const char *folder = kit_tmpdir(), *good = save(&m, folder, 7);
    char *path = bti_checkpoint_path(folder, 9);
    size_t bytes;
    char *data = kit_read(good, &bytes);
    size_t cut[] = {0, 1, 8, bytes / 2, bytes - 8, bytes - 1};
    for (int i = 0; i < 9; i++) {
        bti_checkpoint *c;
        size_t at = i < 6 ? 0 : i == 6 ? bytes / 2 : i == 7 ? bytes - 1 : 20;
        if (i >= 6) data[at] ^= 1;
        kit_write(path, data, i < 6 ? cut[i] : bytes);
        if (i >= 6) data[at] ^= 1;
        kit_ok(bti_checkpoint_newest(folder, &c));
        ck_assert_ptr_nonnull(c);
        ck_assert_int_eq(c->info.update, 7);
        bti_checkpoint_close(c);
    }
    free(data);
    bti_free(path);
    mk_close(&m);
}
END_TEST

/* What is not finite is never saved. */
START_TEST(not_finite) {
    mk_setup s = dropping();
    mk_model m = mk_open(&s);
    const char *folder = kit_tmpdir();
    char *path = bti_checkpoint_path(folder, 1);
    int32_t last = m.model->params.count - 1;
    int64_t n = m.model->params.param[last].cols;
    float *x = calloc((size_t)n, sizeof *x);
    x[n - 1] = (float)INFINITY;
    kit_ok(bti_engine_write(m.engine, BTI_REGION_MOMENT2, last, x));
    bti_checkpoint_info info = info_of(&m, 1);
    kit_fails(bti_checkpoint_save(m.engine, path, &info, 1), BT_ENUMERIC, "not finite");
    ck_assert_int_eq(entries(folder), 0);
    kit_ok(bti_checkpoint_save(m.engine, path, &info, 0));
    bti_checkpoint *c;
    kit_ok(bti_checkpoint_open(path, &c));
    kit_fails(bti_checkpoint_load(c, m.engine, 1), BT_EINPUT, "cannot be resumed");
    kit_ok(bti_checkpoint_load(c, m.engine, 0));
    bti_checkpoint_close(c);
    free(x);
    bti_free(path);
    mk_close(&m);
}
END_TEST

void add_train_resume(TCase *tc) {
    tcase_add_loop_test(tc, resumed, 0, 3);
    tcase_add_test(tc, full_disk);
    tcase_add_test(tc, commas_change_no_checkpoint);
    tcase_add_test(tc, damaged);
    tcase_add_test(tc, not_finite);
}
