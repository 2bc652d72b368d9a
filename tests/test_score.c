/* BLEU and chrF against sacreBLEU's figures, and the files they are given. */
#include "tests/kit.h"

#include <jansson.h>

#include "core/decode/score.h"

static void score_with(const char *hypothesis, const char *reference, const bt_score_options *o,
                       bt_scores *out) {
    static const char *h, *r;
    if (h == NULL) {
        const char *dir = kit_tmpdir();
        h = kit_str("%s/hyp", dir);
        r = kit_str("%s/ref", dir);
    }
    kit_write_text(h, hypothesis);
    kit_write_text(r, reference);
    kit_ok(bt_score_files(h, r, o, out));
}

static void score_text(const char *hypothesis, const char *reference, bt_scores *out) {
    score_with(hypothesis, reference, NULL, out);
}

static double number(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    ck_assert_msg(json_is_number(v), "%s is no number", key);
    return json_number_value(v);
}

/* ---- sacreBLEU's figures -----------------------------------------------------------------------
 */

/* The entries of the shared golden file: BLEU's, then chrF's. */
static const struct {
    const char *entry;
    bt_score_options options;
} golden_entries[] = {{"bleu_13a", {.tokenize = NULL}},        {"bleu_13a", {.tokenize = "13a"}},
                      {"bleu_none", {.tokenize = "none"}},     {"bleu_intl", {.tokenize = "intl"}},
                      {"bleu_char", {.tokenize = "char"}},     {"bleu_zh", {.tokenize = "zh"}},
                      {"bleu_13a_lc", {.lowercase = 1}},       {"chrf", {.chrf = 1}},
                      {"chrf++", {.chrf = 1, .word_order = 2}}};

static void check_bleu(const bt_scores *s, const json_t *want) {
    kit_near(s->bleu, number(want, "score"), 1e-9);
    ck_assert_str_eq(s->bleu_signature, json_string_value(json_object_get(want, "signature")));
    const json_t *precisions = json_object_get(want, "precisions");
    if (precisions == NULL) return; /* as of bleu_13a_lc */
    for (size_t i = 0; i < 4; i++)
        kit_near(s->precisions[i], json_number_value(json_array_get(precisions, i)), 1e-9);
    kit_near(s->brevity_penalty, number(want, "bp"), 1e-9);
    ck_assert_int_eq(s->hypothesis_length, (int64_t)number(want, "sys_len"));
    ck_assert_int_eq(s->reference_length, (int64_t)number(want, "ref_len"));
}

START_TEST(golden) {
    const char *h = kit_shared("data/golden/score.hyp"), *r = kit_shared("data/golden/score.ref");
    const char *path = kit_shared("data/golden/score.json");
    if (!h || !r || !path) {
        kit_skip("no golden scores in the shared folder");
        return;
    }
    json_t *root = json_load_file(path, 0, NULL);
    const json_t *want = json_object_get(root, golden_entries[_i].entry);
    bt_scores s;
    ck_assert_msg(want != NULL, "%s is not there", golden_entries[_i].entry);
    kit_ok(bt_score_files(h, r, &golden_entries[_i].options, &s));
    if (golden_entries[_i].options.chrf) {
        kit_near(s.chrf, number(want, "score"), 1e-9);
        ck_assert_str_eq(s.chrf_signature, json_string_value(json_object_get(want, "signature")));
    } else {
        check_bleu(&s, want);
        ck_assert(isnan(s.chrf) && s.chrf_signature[0] == 0);
    }
    json_decref(root);
}
END_TEST

/* Figures for texts that meet every rule: 10 of BLEU (five tokenisations, mixed then lower case),
 * four of chrF (word order 0 and 2, mixed then lower case). A newline separates lines. */
typedef struct known {
    const char *hypothesis, *reference;
    struct {
        double score;
        int hypothesis_length, reference_length;
    } bleu[10];
    double chrf[4];
} known;
static const known rows[] = {
#include "tests/score_rows.inc"
};
static const char *const kinds[] = {"13a", "none", "intl", "char", "zh"};

/* Cuts a text into its lines; returns their number. */
static size_t split_lines(char *text, const char *lines[8]) {
    size_t n = 0;
    for (char *line; (line = strsep(&text, "\n")) != NULL; lines[n++] = line) ck_assert(n < 8);
    return n;
}

START_TEST(rules) {
    const known *k = &rows[_i];
    const char *h[8], *r[8];
    char *h_text = strdup(k->hypothesis), *r_text = strdup(k->reference);
    size_t n = split_lines(h_text, h);
    ck_assert_int_eq(split_lines(r_text, r), n);
    for (int i = 0; i < 10; i++) {
        bt_score_options o = {.tokenize = kinds[i % 5], .lowercase = i / 5};
        bt_scores s;
        kit_ok(bt_score_lines(h, r, n, &o, &s));
        ck_assert_msg(s.hypothesis_length == k->bleu[i].hypothesis_length,
                      "\"%s\" has %d tokens by %s, not %d", k->hypothesis, (int)s.hypothesis_length,
                      kinds[i % 5], k->bleu[i].hypothesis_length);
        ck_assert_msg(s.reference_length == k->bleu[i].reference_length,
                      "\"%s\" has %d tokens by %s, not %d", k->reference, (int)s.reference_length,
                      kinds[i % 5], k->bleu[i].reference_length);
        ck_assert_msg(fabs(s.bleu - k->bleu[i].score) <= 1e-9, "%s: %s: BLEU is %.12g, not %.12g",
                      k->hypothesis, s.bleu_signature, s.bleu, k->bleu[i].score);
    }
    for (int i = 0; i < 4; i++) {
        bt_score_options o = {.lowercase = i / 2, .chrf = 1, .word_order = i % 2 * 2};
        bt_scores s;
        kit_ok(bt_score_lines(h, r, n, &o, &s));
        ck_assert_msg(fabs(s.chrf - k->chrf[i]) <= 1e-9, "%s: %s: chrF is %.12g, not %.12g",
                      k->hypothesis, s.chrf_signature, s.chrf, k->chrf[i]);
    }
    free(h_text);
    free(r_text);
}
END_TEST

/* ---- lines and files ---------------------------------------------------------------------------
 */

START_TEST(lines_in_memory) {
    const char *h[] = {"A b c. d e", "", "x y z w"}, *r[] = {"a b c. d f", "q", "x y z v"};
    bt_score_options o = {.tokenize = "intl", .lowercase = 1, .chrf = 1, .word_order = 2};
    bt_scores lines, files;
    kit_ok(bt_score_lines(h, r, 3, &o, &lines));
    score_with("A b c. d e\n\nx y z w\n", "a b c. d f\nq\nx y z v\n", &o, &files);
    ck_assert(lines.bleu == files.bleu && lines.chrf == files.chrf && lines.bleu > 0);
    ck_assert_str_eq(lines.bleu_signature, files.bleu_signature);
    ck_assert_str_eq(lines.chrf_signature, files.chrf_signature);
    lines.bleu = -1;
    kit_fails(bt_score_lines(h, r, 0, &o, &lines), BT_EINPUT, "no lines");
    ck_assert(lines.bleu == -1);
}
END_TEST

START_TEST(options) {
    const char *h[] = {"a"}, *r[] = {"a"};
    bt_scores s;
    bt_score_options o = {.tokenize = "ja-mecab"};
    kit_fails(bt_score_lines(h, r, 1, &o, &s), BT_EUSAGE, "\"ja-mecab\" is none of 13a, none,");
    o = (bt_score_options){.chrf = 1, .word_order = 1};
    kit_fails(bt_score_lines(h, r, 1, &o, &s), BT_EUSAGE, "word order 1");
    kit_fails(bt_score_files("-", "-", NULL, &s), BT_EUSAGE, "only one");
}
END_TEST

/* What is no UTF-8 is one character a byte, and equal to itself only. */
START_TEST(no_utf8) {
    bt_scores s;
    bt_score_options o = {.tokenize = "char", .chrf = 1};
    const char *bad = "ab\xff \xc3 \xe2\x80 \xed\xa0\x80 \xf5x\n";
    score_with(bad, bad, &o, &s);
    ck_assert_int_eq(s.hypothesis_length, 2 + 1 + 1 + 2 + 3 + 2);
    kit_near(s.bleu, 100, 1e-9);
    kit_near(s.chrf, 100, 1e-9);
    o.lowercase = 1;
    score_with("\xce\xa3\xff \x80\xce\xa3 A\xe2\n", "\xcf\x83\xff \x80\xcf\x83 a\xe2\n", &o, &s);
    kit_near(s.bleu, 100, 1e-9);
    o.tokenize = "intl";
    score_with("a\xff. \xff.5 \xe2\x80!\n", "a\xff . \xff .5 \xe2\x80 !\n", &o, &s);
    ck_assert_int_eq(s.hypothesis_length, s.reference_length);
}
END_TEST

/* F5 */
START_TEST(line_counts) {
    const char *dir = kit_tmpdir();
    const char *one = kit_str("%s/one", dir), *two = kit_str("%s/two", dir);
    const char *none = kit_str("%s/none", dir), *absent = kit_str("%s/absent", dir);
    bt_scores s = {.bleu = -1};
    kit_write_text(one, "a b c d e\n");
    kit_write_text(two, "a b c d e\nx y\n");
    kit_write_text(none, "");
    kit_fails(bt_score_files(two, one, NULL, &s), BT_EINPUT, "two has 2 lines and");
    kit_fails(bt_score_files(two, one, NULL, &s), BT_EINPUT, "one has 1");
    kit_fails(bt_score_files(one, two, NULL, &s), BT_EINPUT, "two has 2");
    kit_fails(bt_score_files(none, one, NULL, &s), BT_EINPUT, "none has 0");
    kit_fails(bt_score_files(none, none, NULL, &s), BT_EINPUT, "no lines");
    ck_assert(bt_score_files(absent, one, NULL, &s) != BT_OK);
    ck_assert(strstr(bt_last_error(), "absent") != NULL);
    ck_assert_msg(s.bleu == -1, "a score was given");
    kit_write_text(two, "a b c d e\n\n");
    kit_fails(bt_score_files(one, two, NULL, &s), BT_EINPUT, "two has 2");
}
END_TEST

/* F5 and D2 (f): no final newline, CRLF against LF. */
START_TEST(line_ends) {
    bt_scores s;
    score_text("a b c d e", "a b c d e\n", &s);
    kit_near(s.bleu, 100, 1e-9);
    score_text("a b c d e.\r\nf g h i\r\n", "a b c d e.\nf g h i\n", &s);
    kit_near(s.bleu, 100, 1e-9);
    ck_assert_int_eq(s.hypothesis_length, 10);
    score_text("a b c d\r\ne f g h", "a b c d\ne f g h\r\n", &s);
    kit_near(s.bleu, 100, 1e-9);
}
END_TEST

START_TEST(empty_hypothesis) {
    bt_scores s;
    score_text("\n", "a b c d\n", &s);
    ck_assert(s.bleu == 0 && s.brevity_penalty == 0 && s.hypothesis_length == 0);
    score_text("\na b c d e\n", "x\na b c d e\n", &s);
    ck_assert_int_eq(s.hypothesis_length, 5);
    kit_near(s.bleu, 100 * exp(1 - 6.0 / 5), 1e-9);
    score_text("x y z w\n", "a b c d\n", &s);
    ck_assert(s.bleu == 0 && s.brevity_penalty == 1);
}
END_TEST

/* Counts are of the sentence: a token repeated in other lines or more often than in its reference
 * does not match. A NUL is a character like others. */
START_TEST(clipping) {
    bt_scores s;
    score_text("a a a a\nb\n", "a b c d\na\n", &s);
    kit_near(s.precisions[0], 100.0 / 5, 1e-9);
    const char *dir = kit_tmpdir();
    const char *h = kit_str("%s/h", dir), *r = kit_str("%s/r", dir);
    kit_write(h, "a b c d\0e f\n", 12);
    kit_write(r, "a b c d\0e g\n", 12);
    kit_ok(bt_score_files(h, r, NULL, &s));
    ck_assert_int_eq(s.hypothesis_length, 5);
    kit_near(s.precisions[0], 80, 1e-9);
}
END_TEST

/* Longer lines after shorter ones: the table grows in between. */
START_TEST(long_lines) {
    enum { WORDS = 20000 };
    char *line = malloc(WORDS * 8 + 32);
    size_t n = (size_t)sprintf(line, "short line to begin\n");
    for (int i = 0; i < WORDS; i++) n += (size_t)sprintf(line + n, "w%d ", i % 997);
    sprintf(line + n, "\nshort again , as before\n");
    bt_scores s;
    score_text(line, line, &s);
    kit_near(s.bleu, 100, 1e-9);
    ck_assert_int_eq(s.hypothesis_length, WORDS + 9);
    free(line);
}
END_TEST

/* Memory is that of the longest line, however many there are. */
START_TEST(many_lines) {
    enum { LINES = 20000 };
    const char *dir = kit_tmpdir(), *h = kit_str("%s/h", dir), *r = kit_str("%s/r", dir);
    uint64_t requests[2];
    for (int i = 0; i < 2; i++) {
        FILE *fh = fopen(h, "w"), *fr = fopen(r, "w");
        for (int line = 0; line < (i ? LINES : 10); line++) {
            fprintf(fh, "line %d, of many.\n", line % 7);
            fprintf(fr, "line %d of many.\n", line % 7);
        }
        fclose(fh);
        fclose(fr);
        bt_score_options o = {.lowercase = 1, .chrf = 1, .word_order = 2};
        bt_scores s;
        uint64_t before = bti_alloc_count();
        kit_ok(bt_score_files(h, r, &o, &s));
        requests[i] = bti_alloc_count() - before;
        ck_assert_int_eq(s.hypothesis_length, 6 * (i ? LINES : 10));
    }
    ck_assert_int_eq(requests[0], requests[1]);
}
END_TEST

START_TEST(no_memory) {
    const char *h[] = {"a b c. d", "e f"}, *r[] = {"a b c d", "e f g"};
    bt_score_options o = {.tokenize = kinds[_i], .lowercase = 1, .chrf = 1, .word_order = 2};
    bt_scores s;
    kit_walk(bt_score_lines(h, r, 2, &o, &s), 9);
}
END_TEST

START_TEST(as_text) {
    bt_scores s;
    char *text;
    score_text("a b c d x\n", "a b c d e\n", &s);
    kit_ok(bt_scores_text(&s, &text));
    ck_assert_str_eq(text,
                     "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 66.87 "
                     "80.0/75.0/66.7/50.0 (BP = 1.000 ratio = 1.000 hyp_len = 5 ref_len = 5)");
    bt_free(text);
    bt_score_options o = {.lowercase = 1, .chrf = 1};
    for (o.word_order = 0; o.word_order <= 2; o.word_order += 2) {
        score_with("a b c d x\n", "A b c d e\n", &o, &s);
        kit_ok(bt_scores_text(&s, &text));
        const char *want = o.word_order ? "chrF2++|nrefs:1|case:lc|eff:yes|nc:6|nw:2|space:no|"
                                          "version:2.6.0 = 60.95"
                                        : "chrF2|nrefs:1|case:lc|eff:yes|nc:6|nw:0|space:no|"
                                          "version:2.6.0 = 54.33";
        ck_assert_msg(strncmp(text, "BLEU|nrefs:1|case:lc|", 21) == 0, "%s", text);
        ck_assert_ptr_ne(strchr(text, '\n'), NULL);
        ck_assert_str_eq(strchr(text, '\n') + 1, want);
        bt_free(text);
    }
}
END_TEST

START_TEST(as_text_in_any_locale) {
    bt_scores s;
    char *text, *comma;
    score_with("a b c d x\n", "a b c d e\n", &(bt_score_options){.chrf = 1}, &s);
    kit_ok(bt_scores_text(&s, &text));
    if (kit_comma_begin()) {
        kit_ok(bt_scores_text(&s, &comma));
        kit_comma_end();
        ck_assert_str_eq(comma, text);
        bt_free(comma);
    }
    bt_free(text);
}
END_TEST

START_TEST(as_json) {
    bt_scores s;
    char *text;
    bt_score_options o = {.chrf = _i, .word_order = 2 * _i};
    score_with("a b c d x\n", "a b c d e\n", &o, &s);
    kit_ok(bt_scores_json(&s, &text));
    json_t *root = json_loads(text, 0, NULL);
    ck_assert(number(root, "bleu") == s.bleu);
    ck_assert(json_number_value(json_array_get(json_object_get(root, "precisions"), 3)) == 50);
    ck_assert(number(root, "brevity_penalty") == 1);
    ck_assert(number(root, "hypothesis_length") == 5 && number(root, "reference_length") == 5);
    ck_assert_str_eq(json_string_value(json_object_get(root, "bleu_signature")), s.bleu_signature);
    if (_i) {
        ck_assert(number(root, "chrf") == s.chrf);
        ck_assert_str_eq(json_string_value(json_object_get(root, "chrf_signature")),
                         s.chrf_signature);
    } else {
        ck_assert(json_object_get(root, "chrf") == NULL);
    }
    json_decref(root);
    bt_free(text);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_loop_test(tc, golden, 0, (int)(sizeof golden_entries / sizeof golden_entries[0]));
    tcase_add_loop_test(tc, rules, 0, (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(tc, lines_in_memory);
    tcase_add_test(tc, options);
    tcase_add_test(tc, no_utf8);
    tcase_add_test(tc, line_counts);
    tcase_add_test(tc, line_ends);
    tcase_add_test(tc, empty_hypothesis);
    tcase_add_test(tc, clipping);
    tcase_add_test(tc, long_lines);
    tcase_add_test(tc, many_lines);
    tcase_add_loop_test(tc, no_memory, 0, 5);
    tcase_add_test(tc, as_text);
    tcase_add_test(tc, as_text_in_any_locale);
    tcase_add_loop_test(tc, as_json, 0, 2);
}

int main(int argc, char **argv) { return kit_main("score", add, argc, argv); }
