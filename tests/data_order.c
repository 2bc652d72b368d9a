/* A corpus holds every pair in its place, over all blocks and files, and counts right. */
#include "tests/data_parts.h"
#include "tests/kit.h"

#include <unistd.h>

/* Many blocks on all cores: every pair is in its place. */
START_TEST(corpus_keeps_order) {
    enum { LINES = 5000 };
    char *text[2] = {toy_text(LINES, 0), toy_text(LINES, 1)};
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), LINES);
    bti_tokenizer *t = toy_tokenizer();
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    int64_t sum[2] = {0}, most[2] = {0}, longest = 0, longest_at = 0;
    int bad = 0;
    char *at[2] = {text[0], text[1]};
    bti_ids want = {0};
    for (int64_t i = 0; i < LINES; i++) {
        int64_t both = 0;
        for (int side = 0; side < 2; side++) {
            int64_t n;
            const int32_t *ids = side ? bti_corpus_target(c, i, &n) : bti_corpus_source(c, i, &n);
            size_t length = strcspn(at[side], "\n");
            want.count = 0;
            bti_tokenizer_encode(t, at[side], length, &want);
            bti_ids_push(&want, 2);
            bad += n != want.count || memcmp(ids, want.id, (size_t)n * 4) != 0;
            at[side] += length + 1;
            sum[side] += n;
            both += n;
            if (n > most[side]) most[side] = n;
        }
        bad += bti_corpus_line(c, i) != i + 1;
        if (both > longest) longest = both, longest_at = i;
    }
    ck_assert_int_eq(bad, 0);
    ck_assert(s->source_ids == sum[0] && s->target_ids == sum[1]);
    ck_assert(s->max_source == most[0] && s->max_target == most[1]);
    ck_assert(s->longest == longest_at && s->longest_line == longest_at + 1);
    bti_ids_free(&want);
    bti_tokenizer_free(t);
    bti_corpus_free(c);
    free(text[0]);
    free(text[1]);
}
END_TEST

START_TEST(corpus_of_several_files) {
    char *text[2] = {toy_text(700, 0), toy_text(700, 1)};
    toy_place p, q;
    bti_corpus *one, *three;
    toy_place_init(&p, text[0], text[1]);
    toy_place_init(&q, NULL, NULL);
    char *path[2][3];
    for (int side = 0; side < 2; side++) {
        char *cut[4] = {text[side]};
        for (int i = 1, lines[] = {0, 3, 513}; i < 3; i++) {
            cut[i] = cut[i - 1];
            for (int l = 0; l < lines[i]; l++) cut[i] = strchr(cut[i], '\n') + 1;
        }
        cut[3] = text[side] + strlen(text[side]);
        for (int i = 0; i < 3; i++) {
            path[side][i] = (char *)(uintptr_t)kit_str("%s/%d.%d", q.dir, side, i);
            if (i == 1)
                toy_write_gz(path[side][i], "wb", cut[i], (size_t)(cut[i + 1] - cut[i]));
            else
                kit_write(path[side][i], cut[i], (size_t)(cut[i + 1] - cut[i]));
        }
    }
    q.cfg.source = (bti_files){path[0], 3};
    q.cfg.target = (bti_files){path[1], 3};
    kit_ok(toy_place_open(&p, &one));
    kit_ok(toy_place_open(&q, &three));
    toy_check_same(one, three);
    ck_assert_int_eq(bti_corpus_line(three, 699), 700);
    ck_assert(memcmp(bti_corpus_get_stats(one), bti_corpus_get_stats(three),
                     sizeof(bti_corpus_stats)) == 0);
    bti_corpus_free(one);
    bti_corpus_free(three);
    /* Counts are compared file by file, and lines are counted in their file. */
    kit_write_text(path[1][1], "x\ny\n");
    kit_fails(toy_place_open(&q, &one), BT_EINPUT, "0.1 has 513 lines");
    kit_write_text(path[0][1], "x\nba ke li mo\n");
    q.cfg.max_length = 4;
    q.cfg.overlong = BTI_OVERLONG_ERROR;
    kit_write_text(path[0][0], "x\nx\nx\n");
    kit_write_text(path[1][0], "x\nx\nx\n");
    kit_fails(toy_place_open(&q, &one), BT_EINPUT, "0.1: line 2 has");
    free(text[0]);
    free(text[1]);
}
END_TEST

/* E1's count: exact. */
START_TEST(corpus_counts_unknowns) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "ba \xD0\x96 ke\n\xD0\x96\n", "am\nam\n");
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_get_stats(c)->source_unknown, 2);
    ck_assert_int_eq(bti_corpus_get_stats(c)->target_unknown, 0);
    bti_corpus_free(c);
}
END_TEST

/* Text of one side, as captions of images are: the other has no ids, not even its end. */
START_TEST(corpus_of_one_side) {
    for (int side = 0; side < 2; side++) {
        char *text = toy_text(700, side);
        const char *with_blank = kit_str("\n%s", text);
        toy_place p;
        bti_corpus *c;
        toy_place_init(&p, side ? NULL : with_blank, side ? with_blank : NULL);
        *(side ? &p.cfg.source : &p.cfg.target) = (bti_files){NULL, 0};
        kit_ok(bti_corpus_check(&p.cfg, NULL));
        for (int again = 0; again < 2; again++) {
            kit_ok(toy_place_open(&p, &c));
            const bti_corpus_stats *s = bti_corpus_get_stats(c);
            ck_assert_int_eq(bti_corpus_count(c), 700);
            ck_assert(s->empty == 1 && s->first_empty_line == 1 && s->lines == 701);
            ck_assert((side ? s->source_ids : s->target_ids) == 0);
            ck_assert((side ? s->max_source : s->max_target) == 0);
            char *at = text;
            for (int i = 0; i < 700; i++) {
                int64_t n;
                size_t length = strcspn(at, "\n");
                toy_check_side(c, i, side, kit_str("%.*s", (int)length, at));
                side ? bti_corpus_source(c, i, &n) : bti_corpus_target(c, i, &n);
                ck_assert_int_eq(n, 0);
                ck_assert_int_eq(bti_corpus_line(c, i), i + 2);
                at += length + 1;
            }
            bti_corpus_free(c);
        }
        toy_put(&p, side, "\n\n", 2);
        kit_fails(toy_place_open(&p, &c), BT_EINPUT, "no line to use: 2 lines, 2 empty");
        free(text);
    }
}
END_TEST

START_TEST(corpus_missing_files) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "a\n", NULL);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en: No such file");
    kit_fails(bti_corpus_check(&p.cfg, NULL), BT_EINPUT, "train.en: No such file");
    toy_put(&p, 1, "a\n", 2);
    kit_write_text(p.cache, "a file where the folder should be");
    kit_fails(toy_place_open(&p, &c), BT_EIO, "a file of that name");
}
END_TEST

void add_data_order(TCase *tc) {
    tcase_add_test(tc, corpus_keeps_order);
    tcase_add_test(tc, corpus_of_several_files);
    tcase_add_test(tc, corpus_counts_unknowns);
    tcase_add_test(tc, corpus_of_one_side);
    tcase_add_test(tc, corpus_missing_files);
}
