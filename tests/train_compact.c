/* Compact gradients of tables (a row for each distinct id of the update) compute what whole ones
 * do. */
#include "core/data/batcher.h"
#include "core/engine/checkpoint.h"
#include "core/session/distinct.h"
#include "tests/kit.h"
#include "tests/toy.h"
#include "tests/train_parts.h"
#include "tests/watch.h"

/* Seven pairs, so that micro-batches are of unlike size and words come up in several of them. */
static mk_setup pairs(int64_t vocab) {
    static const int64_t source[] = {10, 3, 17, 1, 9, 12, 8}, target[] = {20, 7, 13, 1, 19, 2, 16};
    mk_setup s = mk_defaults();
    s.model.dropout = s.model.embedding_dropout = 0.3;
    s.vocab[0] = vocab;
    s.vocab[1] = vocab + 6;
    s.sentence = mk_sentences(7, source, target, vocab, 9);
    s.sentences = 7;
    s.plan.force_recompute_layers = 0;
    s.plan.force_logit_rows = 100;
    s.plan.force_compact = 0;
    return s;
}

/* Weights, moments and gradients have the same bits as with whole gradients, split or not, as long
 * as nothing is clipped; clipping takes the norm, whose blocks are others then. */
static void compare(const mk_setup *setup, int compact, double clip) {
    mk_setup s = *setup;
    s.engine.clip_norm = clip;
    wt_result whole = wt_run(&s, 3, 0);
    s.plan.force_compact = compact;
    wt_result kept = wt_run(&s, 3, 0);
    ck_assert_int_eq(kept.micro_batches, whole.micro_batches);
    for (int u = 0; u < 3; u++) kit_near(kept.norm[u], whole.norm[u], 1e-6 * whole.norm[u]);
    if (clip == 0) {
        ck_assert_mem_eq(kept.loss, whole.loss, 3 * sizeof *whole.loss);
        wt_same_state(&kept, &whole);
    } else {
        ck_assert(mk_relative(kept.weights, whole.weights, whole.count) <= 1e-6);
        ck_assert(mk_relative(kept.moments[0], whole.moments[0], whole.count) <= 1e-6);
        ck_assert(mk_relative(kept.moments[1], whole.moments[1], whole.count) <= 2e-6);
    }
    wt_free(&whole);
    wt_free(&kept);
}

START_TEST(exact) {
    static const int64_t rows[] = {100, 20, 1}; /* 1: a pair a micro-batch */
    static const int64_t vocab[] = {403, 37};   /* few ids in common, many */
    for (int words = 0; words < 2; words++)
        for (int i = 0; i < 3; i++) {
            mk_setup s = pairs(vocab[words]);
            s.plan.force_rows[0] = s.plan.force_rows[1] = rows[i];
            s.model.norm = i & 1 ? BTI_NORM_PRE : BTI_NORM_POST;
            s.engine.adamw.weight_decay = 0.1;
            s.engine.adamw.decoupled = (uint8_t)(words ^ (i & 1));
            compare(&s, 1 + _i, words == 0 ? 0 : 1e-3);
            compare(&s, 1 + _i, 0);
        }
}
END_TEST

/* A table tied to the output layer is asked for in vain. */
START_TEST(ties) {
    static const uint32_t may[] = {3, 1, 0};
    for (int tie = 0; tie < 3; tie++)
        for (int asked = -1; asked < 4; asked++) {
            mk_setup s = pairs(403);
            s.vocab[1] = s.vocab[0];
            s.model.tie = (bti_tie)tie;
            s.plan.force_compact = asked;
            mk_model m = mk_open(&s);
            uint32_t sides = may[tie] & (asked < 0 ? 3 : (uint32_t)asked);
            ck_assert_uint_eq(m.plan->choices.compact, sides);
            for (int side = 0; side < 2; side++) {
                const bti_param *p = &m.model->params.param[m.model->embed[side]];
                if (sides >> side & 1) ck_assert_int_le(p->grad_rows, side ? 79 : 61);
                if (tie == BTI_TIE_NONE) ck_assert_int_eq(p->compact, (int)(sides >> side & 1));
            }
            mk_close(&m);
        }
}
END_TEST

/* Every id of the update is another one: the compact gradient is full. One id more is refused. */
START_TEST(full) {
    enum { N = 40 };
    int32_t ids[2][N + 1];
    for (int k = 0; k <= N; k++) {
        ids[0][k] = 5 + 3 * (N - k);
        ids[1][k] = 7 + 2 * k;
    }
    bti_sentence x[3] = {{.ids = {ids[0], ids[1]}, .count = {20, 15}},
                         {.ids = {ids[0] + 20, ids[1] + 15}, .count = {20, 25}},
                         {.ids = {ids[0] + 39, ids[1]}, .count = {2, 1}}};
    mk_setup s = pairs(403);
    s.sentence = x;
    s.sentences = 2;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 25;
    compare(&s, 3, 0);
    s.plan.force_compact = -1;
    mk_model m = mk_open(&s);
    bti_update_result r;
    ck_assert_int_eq(m.model->params.param[m.model->embed[0]].grad_rows, N);
    kit_ok(bti_engine_update(m.engine, x, 2, 1, 1e-3, &r));
    ck_assert_int_eq(m.engine->distinct[0], N);
    ck_assert_int_eq(m.engine->distinct[1], N - 1); /* start, and all but the two last */
    ck_assert_int_eq(r.micro_batches, 2);
    mk_close(&m);
    mk_model again = mk_open(&s);
    again.engine->max_sentences = 3;
    again.engine->max_target_rows = 41;
    again.engine->counts = bti_realloc(again.engine->counts, 3, sizeof *again.engine->counts);
    double *before = mk_state(&again, BTI_REGION_WEIGHTS, NULL);
    kit_fails(bti_engine_update(again.engine, x, 3, 1, 1e-3, &r), BT_EINTERNAL,
              "41 distinct source symbols, 40 planned");
    double *after = mk_state(&again, BTI_REGION_WEIGHTS, NULL);
    ck_assert_mem_eq(after, before, (size_t)again.model->params.elements * sizeof *after);
    kit_ok(bti_engine_update(again.engine, x, 2, 1, 1e-3, &r));
    ck_assert_int_eq(again.engine->distinct[0], N);
    free(before);
    free(after);
    mk_close(&again);
}
END_TEST

/* A vocabulary with no more words than an update has rows: all of them at most. */
START_TEST(small_vocabulary) {
    static const int64_t length[] = {9, 12, 30, 2};
    mk_setup s = pairs(11);
    s.vocab[1] = 11;
    s.sentence = mk_sentences(4, length, length, 11, 3);
    s.sentences = 4;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 30;
    compare(&s, 3, 0);
}
END_TEST

/* Room that an update does not fill changes no bit, though gradients are clipped: a run that is
 * stopped early sees fewer updates when it is planned, and fewer ids. */
START_TEST(room_to_spare) {
    static const int64_t width[] = {78, 30, 50}; /* 78: 65,536 gradients end in a table */
    mk_setup s = pairs(403);
    double *state[2], norm[2] = {0, 0};
    /* In double where that can be: in single a norm rarely shows in what order it was summed. */
    if (strcmp(kit_backend(), "ref") == 0 || strcmp(kit_backend(), "far") == 0) s.dtype = BT_F64;
    s.model.d_model = width[_i];
    s.model.heads = 2;
    s.model.encoder_layers = s.model.decoder_layers = 1;
    s.engine.clip_norm = 1e-3;
    s.plan.force_compact = 3;
    s.plan.force_rows[0] = s.plan.force_rows[1] = 30;
    int64_t rows[2], count;
    for (int more = 0; more < 2; more++) {
        bti_update_result r;
        s.sentences = more ? 7 : 5;
        mk_model m = mk_open(&s);
        rows[more] = m.model->params.param[m.model->embed[0]].grad_rows;
        for (int u = 1; u <= 6; u++) {
            kit_ok(bti_engine_update(m.engine, s.sentence, 5, u, 1e-3, &r));
            norm[more] += r.grad_norm;
        }
        state[more] = mk_state(&m, BTI_REGION_WEIGHTS, &count);
        mk_close(&m);
    }
    ck_assert_int_lt(rows[0], rows[1]);
    ck_assert(norm[0] == norm[1]);
    ck_assert_mem_eq(state[0], state[1], (size_t)count * sizeof *state[0]);
    free(state[0]);
    free(state[1]);
}
END_TEST

/* Fewer bytes: the tables' gradients shrink to the rows that an update touches, and the tables of
 * ids come in. */
START_TEST(bytes) {
    mk_setup s = pairs(2003);
    mk_model whole = mk_open(&s);
    s.plan.force_compact = 3;
    mk_model kept = mk_open(&s);
    int64_t rows = 0, all = 0;
    for (int side = 0; side < 2; side++) {
        rows += kept.model->params.param[kept.model->embed[side]].grad_rows;
        all += kept.model->vocab[side];
    }
    int64_t less = (all - rows) * 32 * 4 - rows * 4;
    int64_t saved = (int64_t)whole.plan->total - (int64_t)kept.plan->total;
    ck_assert_int_lt(rows, 150);
    ck_assert_msg(saved >= less - 4 * 4096 && saved <= less + 4 * 4096,
                  "%lld bytes fewer, expected about %lld", (long long)saved, (long long)less);
    ck_assert_uint_eq(kept.plan->region[BTI_REGION_GRADIENTS], kept.model->params.grad_bytes);
    ck_assert_uint_eq(kept.plan->region[BTI_REGION_WEIGHTS],
                      whole.plan->region[BTI_REGION_WEIGHTS]);
    mk_close(&whole);
    mk_close(&kept);
}
END_TEST

/* A checkpoint knows nothing of it: begun compact, gone on whole, and the other way round. */
START_TEST(resumed) {
    bti_checkpoint_info info = {.update = 2, .vocab = {403, 409}, .run = "output: x\n"};
    mk_setup s = pairs(403);
    s.engine.clip_norm = 0;
    wt_result want = wt_run(&s, 4, 0);
    for (int first = 0; first < 2; first++) {
        char *path = bti_checkpoint_path(kit_tmpdir(), 2);
        bti_update_result r;
        for (int part = 0; part < 2; part++) {
            s.plan.force_compact = part == first ? 3 : 0;
            mk_model m = mk_open(&s);
            bti_checkpoint *c;
            if (part) {
                kit_ok(bti_checkpoint_open(path, &c));
                kit_ok(bti_checkpoint_load(c, m.engine, 1));
                bti_checkpoint_close(c);
            }
            for (int u = 2 * part + 1; u <= 2 * part + 2; u++)
                kit_ok(bti_engine_update(m.engine, s.sentence, s.sentences, u, 1e-3, &r));
            info.steps = m.engine->steps;
            if (!part) kit_ok(bti_checkpoint_save(m.engine, path, &info, 1));
            double *w = mk_state(&m, BTI_REGION_WEIGHTS, NULL);
            if (part) ck_assert_mem_eq(w, want.weights, (size_t)want.count * sizeof *w);
            free(w);
            mk_close(&m);
        }
        ck_assert(r.loss == want.loss[3]);
        bti_free(path);
    }
    wt_free(&want);
}
END_TEST

/* What an update feeds to each side has as many distinct ids as plain counting finds. */
START_TEST(distinct_ids) {
    enum { VOCAB = 90, START = 1 };
    static const int64_t sizes[] = {1, 7, 101}, vocab[2] = {VOCAB, VOCAB};
    char *text[2] = {toy_text(101, 0), toy_text(101, 1)};
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &c));
    free(text[0]);
    free(text[1]);
    for (int i = 0; i < 3; i++) {
        bti_batcher *b;
        bti_distinct d;
        int64_t count, epoch = 0, most[2] = {0, 0};
        const int64_t *pairs;
        kit_ok(bti_batcher_new(c, bti_corpus_count(c), sizes[i], BTI_BATCH_SENTENCES, 1, &b));
        kit_ok(bti_distinct_new(vocab, START, &d));
        for (int64_t u = 1; epoch < 3; u++) {
            char seen[2][VOCAB] = {{0}};
            kit_ok(bti_batcher_get(b, u, &pairs, &count, &epoch));
            bti_distinct_update(&d);
            for (int64_t k = 0; k < count; k++) {
                int64_t n;
                bti_distinct_pair(&d, c, pairs[k]);
                const int32_t *x = bti_corpus_source(c, pairs[k], &n);
                for (int64_t j = 0; j < n; j++) seen[0][x[j]] = 1;
                x = bti_corpus_target(c, pairs[k], &n);
                for (int64_t j = 0; j < n; j++) seen[1][j ? x[j - 1] : START] = 1;
            }
            for (int side = 0; side < 2; side++) {
                int64_t n = 0;
                for (int id = 0; id < VOCAB; id++) n += seen[side][id];
                if (n > most[side]) most[side] = n;
            }
        }
        for (int side = 0; side < 2; side++) {
            ck_assert_int_gt(most[side], 3);
            ck_assert_int_eq(bti_distinct_most(&d, side), most[side]);
        }
        bti_distinct_free(&d);
        bti_batcher_free(b);
    }
    bti_corpus_free(c);
}
END_TEST

void add_train_compact(TCase *tc) {
    tcase_add_loop_test(tc, exact, 0, 3);
    tcase_add_test(tc, ties);
    tcase_add_test(tc, full);
    tcase_add_test(tc, small_vocabulary);
    tcase_add_loop_test(tc, room_to_spare, 0, 3);
    tcase_add_test(tc, bytes);
    tcase_add_test(tc, resumed);
    if (strcmp(kit_backend(), "ref") == 0) tcase_add_test(tc, distinct_ids);
}
