/* Parallel text to updates. Here: text at fault or odd, cases D1 to D8. */
#include "tests/data_parts.h"
#include "tests/kit.h"

#include "core/base/files.h"

START_TEST(d1_only_0a_ends_a_line) {
    static const char *const odd[] = {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xC2\x85", "\v",
                                      "\f",           "\x1C",         "\x1D",     "\x1E"};
    char source[512] = "", target[512] = "";
    for (int i = 0; i < 8; i++) {
        sprintf(source + strlen(source), "bake%slimo\n", odd[i]);
        sprintf(target + strlen(target), "%s\n", toy_word((uint32_t)i, 1));
    }
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, source, target);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), 8);
    ck_assert_int_eq(bti_corpus_get_stats(c)->lines, 8);
    for (int i = 0; i < 8; i++) {
        toy_check_side(c, i, 0, kit_str("bake%slimo", odd[i]));
        toy_check_side(c, i, 1, toy_word((uint32_t)i, 1));
        ck_assert_int_eq(bti_corpus_line(c, i), i + 1);
    }
    bti_corpus_free(c);
}
END_TEST

static char *crlf(const char *text) {
    char *s = malloc(2 * strlen(text) + 1), *p = s;
    for (; *text; text++) {
        if (*text == '\n') *p++ = '\r';
        *p++ = *text;
    }
    *p = 0;
    return s;
}

START_TEST(d2_windows_line_ends) {
    char *text[2] = {toy_text(40, 0), toy_text(40, 1)}, *dos[2] = {crlf(text[0]), crlf(text[1])};
    toy_place p[3];
    bti_corpus *c[3];
    for (int i = 0; i < 3; i++) {
        toy_place_init(&p[i], i > 0 ? dos[0] : text[0], i > 1 ? dos[1] : text[1]);
        toy_log[0] = 0;
        bt_set_log(toy_keep_log, NULL);
        kit_ok(toy_place_open(&p[i], &c[i]));
        bt_set_log(NULL, NULL);
        ck_assert_int_eq(toy_count(toy_log, "CRLF in "), i);
        for (int side = 0; side < i; side++)
            ck_assert_int_eq(toy_count(toy_log, kit_str("CRLF in %s", p[i].path[side])), 1);
    }
    toy_check_same(c[0], c[1]);
    toy_check_same(c[0], c[2]);
    for (int i = 0; i < 3; i++) bti_corpus_free(c[i]);
    for (int i = 0; i < 2; i++) free(text[i]), free(dos[i]);
}
END_TEST

START_TEST(d4_nul_bytes) {
    static const char source[] = "ba\ngood\0morning\nke\n\0\nli\n";
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, NULL, "a\nb\nc\nd\ne\n");
    toy_put(&p, 0, source, sizeof source - 1);
    kit_fails(bti_corpus_check(&p.cfg, NULL), BT_EINPUT,
              "train.de: line 2, byte 5 (offset 7 in the text): a 00 byte; such lines in all: 2");
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de: line 2, byte 5");
    ck_assert(!bti_file_exists(p.cache));
    toy_put(&p, 0, "a\nb\nc\nd\ne\n\0", 11);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "line 6, byte 1 (offset 10");
    toy_put(&p, 0, "a\n\0\xFF\n\xFF\nd\0\0\ne\n", 13);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "lines in all: 2, and 2 are not UTF-8");
}
END_TEST

START_TEST(d5_not_utf8) {
    static const char *const bad[] = {"\xE9",         "\xC3\x28",         "\xC0\xAF",
                                      "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82"};
    toy_place p;
    bti_corpus *c;
    for (int i = 0; i < 6; i++) {
        char source[256] = "";
        int last = i == 5; /* cut off by the end of the file */
        for (int l = 1; l <= (last ? 6 : 10); l++)
            sprintf(source + strlen(source), "%s%s%s", toy_word((uint32_t)l, 0),
                    l == 6 ? bad[i] : "", l == 6 && last ? "" : "\n");
        toy_place_init(&p, source, last ? "a\na\na\na\na\na\n" : "a\na\na\na\na\na\na\na\na\na\n");
        size_t at = (size_t)(strstr(source, bad[i]) - source);
        kit_fails(
            toy_place_open(&p, &c), BT_EINPUT,
            kit_str("train.de: line 6, byte %zu (offset %zu in the text): not UTF-8; such lines "
                    "in all: 1",
                    strlen(toy_word(6, 0)) + 1, at));
        ck_assert(!bti_file_exists(p.cache));
    }
    toy_put(&p, 0, "a\n\xFF\n\xFF\xFE\nd\n", 9);
    toy_put(&p, 1, "a\nb\nc\nd\n", 8);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT,
              "line 2, byte 1 (offset 2 in the text): not UTF-8; such lines in all: 2");
    toy_put(&p, 0, "a\n\xFF\nc\0\nd\n", 9);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "lines in all: 1, and 1 hold a 00 byte");
}
END_TEST

START_TEST(d6_empty_lines) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "ba\nke\n\nmo\nnu\nsa\nte\nri\nba\nke\n",
                   "am\nost\nieb\nund\nrein\nok\n \t\nach\nam\nost\n");
    kit_ok(toy_place_open(&p, &c));
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    ck_assert(s->lines == 10 && s->empty == 2 && s->first_empty_line == 3);
    ck_assert_int_eq(bti_corpus_count(c), 8);
    toy_check_side(c, 2, 0, "mo");
    toy_check_side(c, 2, 1, "und");
    ck_assert_int_eq(bti_corpus_line(c, 2), 4);
    toy_check_side(c, 5, 0, "ri");
    toy_check_side(c, 5, 1, "ach");
    bti_corpus_free(c);
    /* Text that is nothing to the tokeniser counts as empty too. */
    toy_put(&p, 0, "ba\n\xE2\x80\x8B\xE3\x80\x80\n", 9);
    toy_put(&p, 1, "ba\nke\n", 6);
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->empty == 1 && s->first_empty_line == 2 && bti_corpus_count(c) == 1);
    bti_corpus_free(c);
    toy_put(&p, 1, "ba\n\xE2\x80\x8B\n", 7);
    toy_put(&p, 0, "ba\nke\n", 6);
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->empty == 1 && s->first_empty_line == 2 && bti_corpus_count(c) == 1);
    bti_corpus_free(c);
    toy_put(&p, 0, "\n\n", 2);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT,
              "no pair of lines to use: 2 lines, 2 with an empty side");
    toy_put(&p, 0, "", 0);
    toy_put(&p, 1, "", 0);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "no pair of lines to use: 0 lines");
}
END_TEST

START_TEST(d8_line_counts) {
    char *text[2] = {toy_text(1000, 0), toy_text(999, 1)};
    toy_place p;
    bti_corpus *c, *d;
    toy_place_init(&p, text[0], text[1]);
    kit_fails(bti_corpus_check(&p.cfg, NULL), BT_EINPUT, "train.de has 1000 lines, ");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "train.en has 999: "));
    ck_assert_ptr_null(strstr(bt_last_error(), "is empty"));
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "1000");
    ck_assert(!bti_file_exists(p.cache));
    free(text[0]);
    free(text[1]);

    toy_put(&p, 0, "ba\nke\nli\n\n", 10);
    toy_put(&p, 1, "a\nb\nc\n", 6);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de has 4 lines");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "the last line of "));
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "train.de is empty"));
    toy_put(&p, 1, "a\nb\nc\n\nd\n\n", 10);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en is empty");

    toy_put(&p, 1, "a\nb\nc\n", 6);
    toy_put(&p, 0, "ba\nke\nli", 8);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), 3);
    toy_put(&p, 0, "ba\nke\nli\n", 9);
    kit_ok(toy_place_open(&p, &d));
    toy_check_same(c, d);
    bti_corpus_free(c);
    bti_corpus_free(d);

    char *three[3] = {p.path[0], p.path[0], p.path[0]};
    p.cfg.source = (bti_files){three, 3};
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "3 source files, 1 target files");
    p.cfg.source = p.cfg.target = (bti_files){NULL, 0};
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "0 source files");
}
END_TEST

START_TEST(overlong_pairs) {
    static const char source[] = "ba\nba ke li mo nu sa\nke\nli\n",
                      target[] = "a\nb\nc\na b c d e f g\n";
    toy_place p;
    bti_corpus *c;
    int64_t n;
    toy_place_init(&p, source, target);
    p.cfg.max_length = 4;
    kit_ok(toy_place_open(&p, &c));
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    ck_assert(s->overlong == 2 && s->first_overlong_line == 2 && bti_corpus_count(c) == 4);
    ck_assert(s->max_source == 4 && s->max_target == 4);
    const int32_t *ids = bti_corpus_source(c, 1, &n);
    ck_assert(n == 4 && ids[3] == 2 && ids[2] != 2);
    bti_corpus_free(c);

    p.cfg.overlong = BTI_OVERLONG_SKIP;
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->overlong == 2 && s->first_overlong_line == 2 && bti_corpus_count(c) == 2);
    ck_assert(bti_corpus_line(c, 0) == 1 && bti_corpus_line(c, 1) == 3);
    toy_check_side(c, 1, 0, "ke");
    toy_check_side(c, 1, 1, "c");
    bti_corpus_free(c);
    ck_assert_int_eq(toy_entries(p.cache, "tokens-"), 2);

    p.cfg.overlong = BTI_OVERLONG_ERROR;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de: line 2 has ");
    toy_put(&p, 0, "ba\nke\nke\nli\n", 12);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en: line 4 has ");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "data.max_length is 4"));
    ck_assert_int_eq(toy_entries(p.cache, ""), 2);
    p.cfg.max_length = 1;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "at least 2");
}
END_TEST

/* Exactly max_length fits. */
START_TEST(overlong_boundary) {
    toy_place p;
    bti_corpus *c;
    int64_t n;
    toy_place_init(&p, "ba ke li mo\n", "am\n");
    kit_ok(toy_place_open(&p, &c));
    bti_corpus_source(c, 0, &n);
    bti_corpus_free(c);
    ck_assert_int_gt(n, 3);
    p.cfg.overlong = BTI_OVERLONG_ERROR;
    p.cfg.max_length = n;
    kit_ok(toy_place_open(&p, &c));
    bti_corpus_free(c);
    p.cfg.max_length = n - 1;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, kit_str("line 1 has %d tokens", (int)n));
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, d1_only_0a_ends_a_line);
    tcase_add_test(tc, d2_windows_line_ends);
    tcase_add_test(tc, d4_nul_bytes);
    tcase_add_test(tc, d5_not_utf8);
    tcase_add_test(tc, d6_empty_lines);
    tcase_add_test(tc, d8_line_counts);
    tcase_add_test(tc, overlong_pairs);
    tcase_add_test(tc, overlong_boundary);
    add_data_order(tc);
    add_data_cache(tc);
    add_data_batcher(tc);
}

int main(int argc, char **argv) { return kit_main("data", add, argc, argv); }
