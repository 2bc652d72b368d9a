/* `data check` and `evaluate` as processes; E1 through `plan`, `train` and `translate` too. */
#include "tests/program_kit.h"

static json_t *check_json(small_run r) {
    program p = bantam("data", "check", r.yaml, "--json");
    check_status(p, 0);
    return parse_json(p.out);
}

static json_t *file_at(json_t *text, size_t i) {
    return json_array_get(json_object_get(text, "files"), i);
}

/* ---- E1: unknown words -------------------------------------------------------------------------
 */

#define DE "\xD0\xB4" /* Cyrillic letters */
#define A "\xD0\xB0"
#define NE "\xD0\xBD"

/* A run whose word list was made from lower-case Latin text. */
static small_run word_run(const char *source, const char *target) {
    small_run r = small_run_with(source, target);
    const char *list = in_dir(r, "words");
    kit_write_text(in_dir(r, "latin"), "ab cd ef gh\n");
    check_status(bantam("vocab", "train", "--tokenizer", "words", "--model", list, "--size", "100",
                        in_dir(r, "latin")),
                 0);
    kit_write_text(r.yaml, "output: out\n"
                           "data: {train: {source: train.de, target: train.en}, max_length: 8}\n"
                           "tokenizer: {kind: words, model: words}\n"
                           "model: {d_model: 16, ff: 16, heads: 2, encoder_layers: 1, "
                           "decoder_layers: 1}\n"
                           "training: {batch: 4, updates: 2}\n");
    return r;
}

/* 5 of 20 tokens. */
static const char some[] = "ab " DE A " cd ef gh\nab cd " DE A " " DE " ef\n" DE NE " ab cd ef gh\n"
                           "ab cd ef " DE " gh\n",
                  all[] = DE A " " NE "\n" A A "\n" DE " " A "\n" NE "\n",
                  known[] = "ab\ncd\nef\ngh\n";

START_TEST(some_unknown) {
    small_run r = word_run(some, known);
    json_t *j = check_json(r), *train = json_object_get(j, "train"), *file = file_at(train, 0);
    check_fields(file, "side path tokens unknown unknown_percent unknown_characters");
    ck_assert_str_eq(json_string_value(json_object_get(file, "path")), in_dir(r, "train.de"));
    ck_assert(number_at(file, "tokens") == 20 && number_at(file, "unknown") == 5);
    ck_assert(number_at(file, "unknown_percent") == 25);
    json_t *chars = json_object_get(file, "unknown_characters"), *c = json_array_get(chars, 0);
    ck_assert_uint_eq(json_array_size(chars), 3);
    ck_assert_str_eq(json_string_value(json_object_get(c, "character")), DE);
    ck_assert(number_at(c, "code") == 0x434 && number_at(c, "count") == 5);
    c = json_array_get(chars, 1);
    ck_assert_str_eq(json_string_value(json_object_get(c, "character")), A);
    ck_assert(number_at(c, "count") == 2);
    ck_assert(number_at(file_at(train, 1), "unknown") == 0);
    json_decref(j);
    program p = bantam("data", "check", r.yaml);
    check_has(p.out, "20 tokens, 5 unknown (25.0 %), their characters: " DE " (5), " A " (2)");
    for (int i = 0; i < 2; i++) {
        p = i ? bantam("plan", r.yaml, "--device", "cpu") : train(r, "--updates", "2");
        check_status(p, 0);
        check_has(p.err, "warning: 25.0 % of the source tokens");
        check_has(p.err, DE " (5), " A " (2), " NE " (1)");
        check_lacks(p.err, "target tokens (");
    }
    p = bantam("translate", r.out, "--threads", "1", "--device", "cpu", "--input",
               in_dir(r, "train.de"));
    check_status(p, 0);
    check_has(p.err, "warning: 25.0 % of the source tokens");
    p = bantam("translate", r.out, "--threads", "1", "--device", "cpu", "--input",
               in_dir(r, "train.en"));
    check_lacks(p.err, "unknown");
}
END_TEST

START_TEST(all_unknown) {
    for (int side = 0; side < 2; side++) {
        small_run r = side ? word_run(known, all) : word_run(all, known);
        const char *file = in_dir(r, side ? "train.en" : "train.de");
        program p = train(r, "--updates", "2");
        check_status(p, 2);
        check_has(p.err, "100.0 %");
        check_has(p.err, kit_str("%s: all %s tokens", file, side ? "target" : "source"));
        check_has(p.err, "data.allow_unknown");
        check_refused(bantam("plan", r.yaml, "--device", "cpu"), file);
        ck_assert(newest_checkpoint(r.out) == NULL);
        p = bantam("data", "check", r.yaml);
        check_status(p, 0);
        check_has(p.out, "(100.0 %)");
        check_status(train(r, "--updates", "2", "--set", "data.allow_unknown=true"), 0);
    }
    /* SentencePiece knows the blank before a word and nothing else. */
    char *target = toy_text(2, 1);
    small_run r = small_run_with(DE A " " NE "\n" A "\n", target);
    free(target);
    check_refused(bantam("plan", r.yaml, "--device", "cpu"), "all source tokens");
}
END_TEST

/* ---- data check --------------------------------------------------------------------------------
 */

START_TEST(lengths_and_duplicates) {
    small_run r = word_run("ab\nab cd ef gh ab cd ef gh\n\nab cd\nef gh\n  \nab cd ef\n",
                           "cd\ncd\ncd\nab cd ef gh ab cd ef\nab\ncd\ncd ef ab cd ef gh ab gh\n");
    kit_write_text(in_dir(r, "v.de"), "ef gh\nab\nef gh\nab cd\n");
    kit_write_text(in_dir(r, "v.en"), "ab\nef\nab\ngh\n");
    program p = bantam("data", "check", r.yaml, "--json", "--set",
                       kit_str("data.valid.source=%s", in_dir(r, "v.de")), "--set",
                       kit_str("data.valid.target=%s", in_dir(r, "v.en")));
    check_status(p, 0);
    json_t *j = parse_json(p.out), *t = json_object_get(j, "train");
    check_fields(j, "max_length overlong train valid duplicates train_inputs valid_inputs");
    check_fields(t, "lines pairs empty first_empty_line files lengths longer_than_max_length "
                    "longest");
    ck_assert(number_at(t, "lines") == 7 && number_at(t, "pairs") == 5);
    ck_assert(number_at(t, "empty") == 2 && number_at(t, "first_empty_line") == 3);
    /* with end symbols: source 2 9 3 3 4, target 2 2 8 2 9 */
    static const int want[5][2] = {{0, 0}, {1, 3}, {3, 0}, {0, 1}, {1, 1}};
    json_t *lengths = json_object_get(t, "lengths");
    ck_assert_uint_eq(json_array_size(lengths), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *bin = json_array_get(lengths, i);
        ck_assert(number_at(bin, "source") == want[i][0] && number_at(bin, "target") == want[i][1]);
    }
    ck_assert(number_at(json_array_get(lengths, 4), "from") == 9 &&
              number_at(json_array_get(lengths, 4), "to") == 16);
    json_t *longer = json_object_get(t, "longer_than_max_length");
    ck_assert(number_at(longer, "source") == 1 && number_at(longer, "target") == 1);
    ck_assert(number_at(longer, "pairs") == 2 && number_at(longer, "first_line") == 2);
    static const int longest[5][3] = {{7, 4, 9}, {2, 9, 2}, {4, 3, 8}, {5, 3, 2}, {1, 2, 2}};
    for (size_t i = 0; i < 5; i++) {
        json_t *pair = json_array_get(json_object_get(t, "longest"), i);
        ck_assert(number_at(pair, "line") == longest[i][0]);
        ck_assert(number_at(pair, "source_tokens") == longest[i][1] &&
                  number_at(pair, "target_tokens") == longest[i][2]);
    }
    json_t *d = json_object_get(j, "duplicates");
    ck_assert(number_at(d, "train_pairs") == 1 && number_at(d, "valid_pairs") == 2);
    ck_assert(number_at(d, "first_train_line") == 5);
    ck_assert(number_at(d, "train_sources") == 3 && number_at(d, "valid_sources") == 4);
    ck_assert(number_at(json_object_get(j, "valid"), "lines") == 4);
    json_decref(j);
}
END_TEST

/* Lines are counted over all files, and each file by itself. */
START_TEST(several_files) {
    small_run r = word_run("ab\nab x\n", "cd\ncd\n");
    kit_write_text(in_dir(r, "2.de"), "y z\nab cd ef y\n");
    kit_write_text(in_dir(r, "2.en"), "cd\ncd\n");
    char *text = kit_read(r.yaml, NULL);
    const char *rest = strchr(text, '\n') + 1, *after = strchr(rest, '\n') + 1;
    kit_write_text(r.yaml, kit_str("output: out\ndata: {train: {source: [train.de, 2.de], target: "
                                   "[train.en, 2.en]}, max_length: 64}\n%s",
                                   after));
    free(text);
    json_t *j = check_json(r), *t = json_object_get(j, "train");
    ck_assert(json_is_null(json_object_get(j, "valid")));
    ck_assert(json_is_null(json_object_get(j, "duplicates")));
    ck_assert(json_is_null(json_object_get(t, "first_empty_line")));
    static const int want[4][2] = {{3, 1}, {6, 3}, {2, 0}, {2, 0}};
    for (size_t i = 0; i < 4; i++)
        ck_assert(number_at(file_at(t, i), "tokens") == want[i][0] &&
                  number_at(file_at(t, i), "unknown") == want[i][1]);
    json_t *chars = json_object_get(file_at(t, 1), "unknown_characters");
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(chars, 0), "character")),
                     "y");
    ck_assert(number_at(json_array_get(chars, 0), "count") == 2);
    ck_assert_uint_eq(json_array_size(chars), 2); /* none of the other file's */
    json_t *longest = json_array_get(json_object_get(t, "longest"), 0);
    ck_assert(number_at(longest, "line") == 4 && number_at(longest, "file_line") == 2);
    ck_assert_str_eq(json_string_value(json_object_get(longest, "file")), in_dir(r, "2.de"));
    json_decref(j);
}
END_TEST

START_TEST(check_refuses) {
    small_run r = word_run("ab\ncd\n", "ab\n");
    program p = bantam("data", "check", r.yaml);
    check_refused(p, "has 2 lines");
    ck_assert_str_eq(p.out, "");
    kit_write_text(in_dir(r, "train.en"), "ab\nc\xFF\n");
    check_refused(bantam("data", "check", r.yaml), "line 2");
    check_refused(bantam("data", "check", in_dir(r, "none.yaml")), "none.yaml");
    check_refused(bantam("data", "chekc", r.yaml), "check expected, not chekc");
    check_refused(bantam("data", "check"), "RUN.yaml expected");
}
END_TEST

/* ---- evaluate ----------------------------------------------------------------------------------
 */

#define evaluate(model, ...) \
    bantam("evaluate", model, "--threads", "1", "--device", "cpu", __VA_ARGS__)

/* Both within a relative tolerance. */
static void check_near(double a, double b, double tol) { kit_near(a, b, tol * fabs(b)); }

/* The same numbers as validation has in training: of text in one block, and in two files of which
 * the second begins within the first of two blocks. */
static const struct {
    int lines, updates;
    const char *beam;
} held_out[] = {{40, 200, "3"}, {4200, 200, "1"}};

/* The text from this line on; the first is 1. */
static const char *from_line(const char *text, int line) {
    while (--line > 0) text = strchr(text, '\n') + 1;
    return text;
}

START_TEST(as_validation) {
    const int lines = held_out[_i].lines, half = lines / 2;
    const char *updates = kit_str("%d", held_out[_i].updates), *beam = held_out[_i].beam;
    small_run r = small_run_new(300);
    const char *path[2] = {in_dir(r, "v.de"), in_dir(r, "v.en")}, *set[2];
    for (int side = 0; side < 2; side++) {
        char *text = toy_text(300 + lines, side);
        const char *first = from_line(text, 301), *middle = from_line(first, half + 1);
        const char *part[2] = {kit_str("%s.1", path[side]), kit_str("%s.2", path[side])};
        kit_write_text(path[side], first);
        kit_write(part[0], first, (size_t)(middle - first));
        kit_write_text(part[1], middle);
        set[side] = kit_str("data.valid.%s=[%s, %s]", side ? "target" : "source", part[0], part[1]);
        free(text);
    }
    program p = train(r, "--updates", updates, "--set", kit_str("training.updates=%s", updates),
                      "--set", "model.dropout=0", "--set", set[0], "--set", set[1], "--set",
                      kit_str("validation.every=%s", updates), "--set",
                      kit_str("validation.beam=%s", beam));
    check_status(p, 0);
    json_t *log = read_log(r.out), *valid = json_array_get(log, json_array_size(log) - 1);
    program e =
        evaluate(r.out, "--source", path[0], "--reference", path[1], "--beam", beam, "--json");
    check_status(e, 0);
    json_t *j = parse_json(e.out);
    check_fields(j, "lines target_tokens loss nll perplexity bleu bleu_signature precisions "
                    "brevity_penalty hypothesis_length reference_length chrf chrf_signature");
    ck_assert_int_eq((int)number_at(j, "lines"), lines);
    ck_assert(number_at(j, "chrf") > 0 && number_at(j, "loss") > number_at(j, "nll"));
    check_near(number_at(j, "loss"), number_at(valid, "valid_loss"), 1e-6);
    check_near(number_at(j, "nll"), number_at(valid, "valid_nll"), 1e-6);
    check_near(number_at(j, "perplexity"), number_at(valid, "valid_perplexity"), 1e-5);
    check_near(number_at(j, "perplexity"), exp(number_at(j, "nll")), 1e-9);
    check_near(number_at(j, "bleu"), number_at(valid, "valid_bleu"), 1e-8);
    check_near(number_at(j, "chrf"), number_at(valid, "valid_chrf"), 1e-8);
    json_decref(log);
    json_decref(j);
}
END_TEST

static const char *toy_file(const char *dir, int lines, int side) {
    const char *path = kit_str("%s/toy%d", dir, side);
    char *text = toy_text(lines, side);
    kit_write_text(path, text);
    free(text);
    return path;
}

/* Scores are those of translate and score; losses do not depend on the batch. */
START_TEST(as_translate_and_score) {
    const char *dir = kit_tmpdir(), *model = trained_model(), *hyp = kit_str("%s/hyp", dir);
    const char *in = toy_file(dir, 60, 0), *ref = toy_file(dir, 60, 1);
    check_status(bantam("translate", model, "--threads", "1", "--device", "cpu", "--beam", "2",
                        "--input", in, "--output", hyp),
                 0);
    program p = bantam("score", hyp, ref, "--json");
    json_t *score = parse_json(p.out);
    double loss = NAN;
    static const char *const batch[] = {"64", "3", "1"};
    for (int i = 0; i < 3; i++) {
        p = evaluate(model, "--source", in, "--reference", ref, "--beam", "2", "--json", "--batch",
                     batch[i]);
        check_status(p, 0);
        json_t *j = parse_json(p.out);
        ck_assert(number_at(j, "lines") == 60);
        ck_assert(number_at(j, "bleu") == number_at(score, "bleu"));
        ck_assert(number_at(j, "chrf") == number_at(score, "chrf"));
        if (i == 0) loss = number_at(j, "loss");
        check_near(number_at(j, "loss"), loss, 1e-6);
        json_decref(j);
    }
    json_decref(score);
    p = evaluate(model, "--source", in, "--reference", ref, "--beam", "2");
    check_status(p, 0);
    check_has(p.out, kit_str("loss %.6f  nll ", loss));
    check_has(p.out, "60 lines");
    check_has(p.out, "\nBLEU|");
    check_has(p.out, "\nchrF2|");
}
END_TEST

/* A pair with an empty side has a translation and no loss. */
START_TEST(empty_and_long_lines) {
    const char *dir = kit_tmpdir(), *in = kit_str("%s/in", dir), *ref = kit_str("%s/ref", dir);
    double tokens = 0, loss = 0;
    static const char *const source[] = {"ba ke\nli mo\n", "ba ke\n\nli mo\n \nli\n"},
                             *const target[] = {"ba\nke li\n", "ba\nmo\nke li\n\n\n"};
    for (int i = 0; i < 2; i++) {
        kit_write_text(in, source[i]);
        kit_write_text(ref, target[i]);
        program p = evaluate(trained_model(), "--source", in, "--reference", ref, "--json");
        check_status(p, 0);
        json_t *j = parse_json(p.out);
        ck_assert(number_at(j, "lines") == (i ? 5 : 2));
        if (i) {
            ck_assert(number_at(j, "target_tokens") == tokens);
            check_near(number_at(j, "loss"), loss, 1e-6);
        }
        tokens = number_at(j, "target_tokens");
        loss = number_at(j, "loss");
        json_decref(j);
    }
    char text[4096] = "";
    for (int i = 0; i < 200; i++) strcat(text, "ba ke ");
    kit_write_text(in, kit_str("%s\n", text));
    kit_write_text(ref, kit_str("%s\n", text));
    program p = evaluate(trained_model(), "--source", in, "--reference", ref, "--json");
    check_status(p, 0);
    check_has(p.err, "1 lines are longer than data.max_length 64");
    check_has(p.err, "1 references are longer than data.max_length 64");
    json_t *j = parse_json(p.out);
    ck_assert(number_at(j, "target_tokens") == 64);
    json_decref(j);
}
END_TEST

START_TEST(evaluate_refuses) {
    const char *dir = kit_tmpdir(), *model = trained_model();
    const char *two = toy_file(dir, 2, 0), *three = toy_file(dir, 3, 1);
    program p = evaluate(model, "--source", two, "--reference", three);
    check_refused(p, "has 2 lines");
    check_has(p.err, "has 3");
    ck_assert_str_eq(p.out, "");
    check_refused(evaluate(model, "--source", two), "--reference");
    check_refused(evaluate(model, "--reference", two), "--source");
    check_refused(evaluate(model, "--source", two, "--reference", "-"), "standard input");
    check_refused(evaluate(model, "--source", two, "--reference", "/nowhere"), "/nowhere");
    check_refused(evaluate(dir, "--source", two, "--reference", two), dir);
    check_refused(evaluate(model, "--source", two, "--reference", two, "--memory", "1MiB"),
                  "needs ");
    kit_write_text(two, "\n\n");
    check_refused(evaluate(model, "--source", two, "--reference", two), "no pair");
}
END_TEST

void add_check(TCase *tc) {
    tcase_add_test(tc, some_unknown);
    tcase_add_test(tc, all_unknown);
    tcase_add_test(tc, lengths_and_duplicates);
    tcase_add_test(tc, several_files);
    tcase_add_test(tc, check_refuses);
    tcase_add_loop_test(tc, as_validation, 0, 2);
    tcase_add_test(tc, as_translate_and_score);
    tcase_add_test(tc, empty_and_long_lines);
    tcase_add_test(tc, evaluate_refuses);
}
