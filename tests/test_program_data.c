/* Texts as people have them: odd line ends, odd bytes, empty lines, files that do not match.
 * Through `train`, `plan` and `translate`; the readers' own tests are test_data.c. */
#include "tests/program_kit.h"

static small_run run_of(const char *source, size_t source_bytes, const char *target) {
    small_run r = small_run_with("", target);
    kit_write(in_dir(r, "train.de"), source, source_bytes);
    return r;
}

static program translate_bytes(const char *bytes, size_t n) {
    const char *path = kit_str("%s/in", kit_tmpdir());
    kit_write(path, bytes, n);
    return bantam("translate", trained_model(), "--threads", "1", "--device", "cpu", "--input",
                  path);
}

/* Refused with all these words, by train and plan alike, and nothing is written. */
static void check_bad_input(small_run r, const char *const *words) {
    for (int i = 0; i < 2; i++) {
        program p = i ? bantam("plan", r.yaml, "--device", "cpu") : train(r, "--updates", "2");
        check_status(p, 2);
        for (size_t k = 0; words[k] != NULL; k++) check_has(p.err, words[k]);
    }
    ck_assert_int_eq(toy_entries(r.out, ""), 0);
}
#define check_bad(r, ...) check_bad_input(r, (const char *const[]){__VA_ARGS__, NULL})

static double first_loss(small_run r) {
    check_status(train(r, "--updates", "1"), 0);
    json_t *log = read_log(r.out);
    double loss = number_at(json_array_get(log, 0), "loss");
    json_decref(log);
    return loss;
}

/* ---- D1: only 0A ends a line -------------------------------------------------------------------
 */

static const char odd_lines[] = "ba\xE2\x80\xA8ke\nba\xE2\x80\xA9ke\nba\xC2\x85ke\nba\x0Bke\n"
                                "ba\x0Cke\nba\x1Cke\nba\x1Dke\nba\x1Eke\n";

START_TEST(odd_line_breaks) {
    small_run r = run_of(odd_lines, sizeof odd_lines - 1, "a\nb\nc\nd\ne\nf\ng\nh\n");
    program p = train(r, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "8 pairs,");
    p = translate_bytes(odd_lines, sizeof odd_lines - 1);
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 8);
    static const char *const breakers[] = {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xC2\x85", "\x0B",
                                           "\x0C",         "\x1C",         "\x1D",     "\x1E"};
    for (int i = 0; i < 8; i++) check_lacks(p.out, breakers[i]);
}
END_TEST

/* ---- D2: CR LF ---------------------------------------------------------------------------------
 */

static const char *with_cr(const char *text) {
    char *out = malloc(2 * strlen(text) + 1), *p = out;
    for (; *text; text++) {
        if (*text == '\n') *p++ = '\r';
        *p++ = *text;
    }
    *p = 0;
    const char *own = kit_str("%s", out);
    free(out);
    return own;
}

START_TEST(windows_line_ends) {
    char *a = toy_text(40, 0), *b = toy_text(40, 1);
    double want = first_loss(small_run_with(a, b));
    small_run r = small_run_with(with_cr(a), b);
    ck_assert(first_loss(r) == want);
    r = small_run_with(with_cr(a), with_cr(b));
    program p = train(r, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, kit_str("CRLF in %s", in_dir(r, "train.de")));
    check_has(p.err, kit_str("CRLF in %s", in_dir(r, "train.en")));
    ck_assert_int_eq(toy_count(p.err, "CRLF"), 2);
    json_t *log = read_log(r.out);
    ck_assert(number_at(json_array_get(log, 0), "loss") == want);
    json_decref(log);
    program lf = translate_bytes(a, strlen(a));
    program crlf = translate_bytes(with_cr(a), strlen(with_cr(a)));
    check_status(lf, 0);
    ck_assert_str_eq(lf.out, crlf.out);
    kit_write_text(in_dir(r, "hyp"), with_cr(b));
    kit_write_text(in_dir(r, "ref"), b);
    p = bantam("score", in_dir(r, "hyp"), in_dir(r, "ref"), "--json");
    check_status(p, 0);
    json_t *score = parse_json(p.out);
    kit_near(number_at(score, "bleu"), 100, 1e-9);
    json_decref(score);
    free(a);
    free(b);
}
END_TEST

/* ---- D4: 00 ------------------------------------------------------------------------------------
 */

START_TEST(zero_bytes) {
    static const char text[] = "ba ke\ngood\0morning\nli\n\0\nmo\n",
                      last[] = "ba\nke\nli\nmo\nnu\0";
    small_run r = run_of(text, sizeof text - 1, "a\nb\nc\nd\ne\n");
    check_bad(r, in_dir(r, "train.de"), "line 2", "byte 5", "in all: 2");
    r = run_of(last, sizeof last - 1, "a\nb\nc\nd\ne\n");
    check_bad(r, in_dir(r, "train.de"), "line 5", "byte 3", "in all: 1");
    program p = translate_bytes(text, sizeof text - 1);
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 5);
    check_has(p.err, "line 2");
    check_has(p.err, "line 4");
    ck_assert_int_eq((int)strlen(line_of(p.out, 4)), 0);
    ck_assert_int_gt((int)strlen(line_of(p.out, 5)), 0);
}
END_TEST

/* ---- D5: not UTF-8 -----------------------------------------------------------------------------
 */

START_TEST(not_utf8) {
    static const char *const bad[] = {"\xE9", "\xC3\x28", "\xC0\xAF", "\xED\xA0\x80",
                                      "\xF5\x80\x80\x80"};
    const char *target = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
    for (int i = 0; i < 5; i++) {
        const char *text = kit_str("ba\nke\nli\nmo\nnu\nsa %s te\nte\nri\nba ke\nli\n", bad[i]);
        small_run r = run_of(text, strlen(text), target);
        check_bad(r, in_dir(r, "train.de"), "line 6", "byte 4", "offset 18", "in all: 1");
        program p = translate_bytes(text, strlen(text));
        check_status(p, 0);
        ck_assert_int_eq(count_lines(p.out), 10);
        ck_assert_int_eq(toy_count(p.err, "warning"), 1);
        ck_assert_int_gt((int)strlen(line_of(p.out, 7)), 0);
    }
    const char *cut = "ba\nke\nli\nmo\nnu\nsa\nte\nri\nba ke\nli\xE2\x82";
    small_run r = run_of(cut, strlen(cut), target);
    check_bad(r, in_dir(r, "train.de"), "line 10", "byte 3");
    program p = translate_bytes(cut, strlen(cut));
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 10);
    ck_assert_int_eq(toy_count(p.err, "warning"), 1);
}
END_TEST

/* ---- D6: empty lines ---------------------------------------------------------------------------
 */

START_TEST(empty_lines_in_training) {
    small_run r = small_run_with("ba\nke\n\nmo\nnu\nsa\nte\nri\nba\nke\n",
                                 "a\nb\nc\nd\ne\nf\n \t\nh\ni\nj\n");
    program p = train(r, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "2 pairs skipped (empty side), first at line 3");
    check_has(p.err, "8 pairs,");
    r = small_run_with("\n\n", "a\nb\n");
    check_refused(train(r, "--updates", "1"), "no pair");
    r = small_run_with("", "");
    check_refused(train(r, "--updates", "1"), "no pair");
}
END_TEST

START_TEST(empty_lines_in_translation) {
    enum { LINES = 1300 };
    char *text = toy_text(LINES, 0), *full = malloc(100 * LINES), *dense = malloc(100 * LINES);
    char *f = full, *d = dense;
    const char *at = text;
    for (int i = 1; i <= LINES; i++) {
        int n = (int)strcspn(at, "\n");
        if (i % 4 == 0)
            f += sprintf(f, "\n");
        else if (i == 501 || i == 502)
            f += sprintf(f, "%s\n", i == 501 ? "   " : "\t\t");
        else {
            f += sprintf(f, "%.*s\n", n, at);
            d += sprintf(d, "%.*s\n", n, at);
        }
        at += n + 1;
    }
    const char *dir = kit_tmpdir();
    const char *paths[2] = {kit_str("%s/full", dir), kit_str("%s/dense", dir)};
    kit_write_text(paths[0], full);
    kit_write_text(paths[1], dense);
    program want = bantam("translate", trained_model(), "--threads", "1", "--beam", "1", "--input",
                          paths[1], "--device", "cpu");
    check_status(want, 0);
    static const char *const batch[] = {"1", "16", "1024"};
    for (int b = 0; b < 3; b++) {
        program p = bantam("translate", trained_model(), "--threads", "1", "--beam", "1", "--input",
                           paths[0], "--batch", batch[b], "--device", "cpu");
        check_status(p, 0);
        ck_assert_int_eq(count_lines(p.out), LINES);
        const char *out = p.out, *dense_out = want.out;
        for (int i = 1; i <= LINES; i++) {
            size_t n = strcspn(out, "\n");
            if (i % 4 == 0 || i == 501 || i == 502) {
                ck_assert_uint_eq(n, 0);
            } else {
                ck_assert_msg(strncmp(out, dense_out, n + 1) == 0, "line %d differs", i);
                dense_out += n + 1;
            }
            out += n + 1;
        }
        ck_assert_int_eq(*dense_out, 0);
    }
    free(text);
    free(full);
    free(dense);
}
END_TEST

/* ---- D8: line counts ---------------------------------------------------------------------------
 */

START_TEST(line_counts) {
    char *a = toy_text(1000, 0), *b = toy_text(999, 1);
    small_run r = small_run_with(a, b);
    /* Before any vocabulary is made. */
    kit_write_text(r.yaml, "output: out\n"
                           "data: {train: {source: train.de, target: train.en}}\n"
                           "tokenizer: {model: new.model, size: 90}\n");
    check_bad(r, in_dir(r, "train.de"), "1000", in_dir(r, "train.en"), "999");
    ck_assert(!is_file(in_dir(r, "new.model")));
    r = small_run_with("ba\nke\nli", "a\nb\nc\n");
    program p = train(r, "--updates", "1");
    check_status(p, 0);
    check_has(p.err, "3 pairs,");
    check_lacks(p.err, "warning");
    json_t *log = read_log(r.out);
    double want = number_at(json_array_get(log, 0), "loss");
    json_decref(log);
    ck_assert(first_loss(small_run_with("ba\nke\nli\n", "a\nb\nc")) == want);
    r = small_run_with("ba\nke\nli\n\n", "a\nb\nc\n");
    check_bad(r, "has 4 lines", "has 3", "is empty");
    free(a);
    free(b);
}
END_TEST

START_TEST(missing_files) {
    static const char *const key[] = {"data.train.source", "data.train.target", "tokenizer.model"};
    small_run r = small_run_new(20);
    for (int i = 0; i < 3; i++) {
        program p = train(r, "--set", kit_str("%s=%s/nowhere", key[i], r.dir));
        check_refused(p, in_dir(r, "nowhere"));
        p = train(r, "--set", kit_str("%s=%s", key[i], r.dir));
        check_refused(p, r.dir);
    }
    ck_assert_int_eq(toy_entries(r.out, ""), 0);
}
END_TEST

/* The text is tokenised once; a change of it is seen, a lost cache made again. */
START_TEST(token_cache) {
    small_run r = small_run_new(40);
    double loss = first_loss(r);
    ck_assert_int_eq(toy_entries(in_out(r, "cache"), ""), 1);
    check_status(train(r, "--updates", "2", "--resume"), 0);
    ck_assert_int_eq(toy_entries(in_out(r, "cache"), ""), 1);
    small_run s = small_run_new(41);
    ck_assert(first_loss(s) != loss);
}
END_TEST

void add_data(TCase *tc) {
    tcase_add_test(tc, odd_line_breaks);
    tcase_add_test(tc, windows_line_ends);
    tcase_add_test(tc, zero_bytes);
    tcase_add_test(tc, not_utf8);
    tcase_add_test(tc, empty_lines_in_training);
    tcase_add_test(tc, empty_lines_in_translation);
    tcase_add_test(tc, line_counts);
    tcase_add_test(tc, missing_files);
    tcase_add_test(tc, token_cache);
}
