/* BLEU against sacreBLEU's figures, and the files it is given. */
#include "tests/kit.h"

#include <jansson.h>

#include "core/decode/score.h"

static void score_text(const char *hypothesis, const char *reference, bt_scores *out) {
    const char *dir = kit_tmpdir();
    const char *h = kit_str("%s/hyp", dir), *r = kit_str("%s/ref", dir);
    kit_write_text(h, hypothesis);
    kit_write_text(r, reference);
    kit_ok(bt_score_files(h, r, out));
}

static double number(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    ck_assert_msg(json_is_number(v), "%s is no number", key);
    return json_number_value(v);
}

START_TEST(golden) {
    const char *h = kit_shared("data/golden/score.hyp"), *r = kit_shared("data/golden/score.ref");
    const char *want = kit_shared("data/golden/score.json");
    if (!h || !r || !want) {
        kit_skip("no golden scores in the shared folder");
        return;
    }
    json_t *root = json_load_file(want, 0, NULL);
    const json_t *bleu = json_object_get(root, "bleu_13a");
    const json_t *precisions = json_object_get(bleu, "precisions");
    bt_scores s;
    kit_ok(bt_score_files(h, r, &s));
    kit_near(s.bleu, number(bleu, "score"), 1e-9);
    kit_near(s.brevity_penalty, number(bleu, "bp"), 1e-9);
    for (size_t i = 0; i < 4; i++)
        kit_near(s.precisions[i], json_number_value(json_array_get(precisions, i)), 1e-9);
    ck_assert_int_eq(s.hypothesis_length, (int64_t)number(bleu, "sys_len"));
    ck_assert_int_eq(s.reference_length, (int64_t)number(bleu, "ref_len"));
    ck_assert_str_eq(s.bleu_signature, json_string_value(json_object_get(bleu, "signature")));
    json_decref(root);
}
END_TEST

/* Figures of sacreBLEU 2.6 for texts that meet every rule of 13a, smoothing and white space. */
typedef struct known {
    const char *hypothesis, *reference;
    double bleu;
    int hypothesis_length, reference_length;
} known;
static const known rows[] = {
#include "tests/score_rows.inc"
};

START_TEST(rules) {
    const known *k = &rows[_i];
    bti_bleu b;
    kit_ok(bti_bleu_corpus(&k->hypothesis, &k->reference, 1, &b));
    ck_assert_msg(b.hypothesis_length == k->hypothesis_length, "\"%s\" has %d tokens, not %d",
                  k->hypothesis, (int)b.hypothesis_length, k->hypothesis_length);
    ck_assert_msg(b.reference_length == k->reference_length, "\"%s\" has %d tokens, not %d",
                  k->reference, (int)b.reference_length, k->reference_length);
    kit_near(b.score, k->bleu, 1e-9);
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
    kit_fails(bt_score_files(two, one, &s), BT_EINPUT, "two has 2 lines and");
    kit_fails(bt_score_files(two, one, &s), BT_EINPUT, "one has 1");
    kit_fails(bt_score_files(one, two, &s), BT_EINPUT, "two has 2");
    kit_fails(bt_score_files(none, one, &s), BT_EINPUT, "none has 0");
    kit_fails(bt_score_files(none, none, &s), BT_EINPUT, "no lines");
    ck_assert(bt_score_files(absent, one, &s) != BT_OK);
    ck_assert(strstr(bt_last_error(), "absent") != NULL);
    ck_assert_msg(s.bleu == -1, "a score was given");
    kit_write_text(two, "a b c d e\n\n");
    kit_fails(bt_score_files(one, two, &s), BT_EINPUT, "two has 2");
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
    kit_ok(bt_score_files(h, r, &s));
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

START_TEST(no_memory) {
    const char *h[] = {"a b c. d", "e f"}, *r[] = {"a b c d", "e f g"};
    bti_bleu b;
    int failed = 0;
    for (uint64_t n = 1;; n++, failed++) {
        bti_alloc_fail_at(n);
        bt_status status = bti_bleu_corpus(h, r, 2, &b);
        if (status == BT_OK) break;
        ck_assert_int_eq(status, BT_ENOMEM);
    }
    bti_alloc_fail_at(0);
    ck_assert_int_gt(failed, 5);
}
END_TEST

START_TEST(text_and_json) {
    bt_scores s;
    char *text;
    score_text("a b c d x\n", "a b c d e\n", &s);
    kit_ok(bt_scores_text(&s, &text));
    ck_assert_str_eq(text,
                     "BLEU|nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0 = 66.87 "
                     "80.0/75.0/66.7/50.0 (BP = 1.000 ratio = 1.000 hyp_len = 5 ref_len = 5)");
    bt_free(text);
    kit_ok(bt_scores_json(&s, &text));
    json_t *root = json_loads(text, 0, NULL);
    ck_assert(number(root, "bleu") == s.bleu);
    ck_assert(json_number_value(json_array_get(json_object_get(root, "precisions"), 3)) == 50);
    ck_assert(number(root, "brevity_penalty") == 1);
    ck_assert(number(root, "hypothesis_length") == 5 && number(root, "reference_length") == 5);
    ck_assert_str_eq(json_string_value(json_object_get(root, "bleu_signature")),
                     bti_bleu_signature());
    json_decref(root);
    bt_free(text);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, golden);
    tcase_add_loop_test(tc, rules, 0, (int)(sizeof rows / sizeof rows[0]));
    tcase_add_test(tc, line_counts);
    tcase_add_test(tc, line_ends);
    tcase_add_test(tc, empty_hypothesis);
    tcase_add_test(tc, clipping);
    tcase_add_test(tc, long_lines);
    tcase_add_test(tc, no_memory);
    tcase_add_test(tc, text_and_json);
}

int main(int argc, char **argv) { return kit_main("score", add, argc, argv); }
