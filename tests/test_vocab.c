/* `vocab` as a process: text to ids and back for each kind, equal to the golden values; training
 * and looking at a tokeniser; what it refuses. */
#include "tests/program_kit.h"

#define HEAD "<pad>\n<s>\n</s>\n<unk>\n" /* of a word list */

static const char *text_file(const char *text) {
    const char *path = kit_str("%s/text", kit_tmpdir());
    kit_write_text(path, text);
    return path;
}

#define vocab(part, kind, model, ...) \
    bantam("vocab", part, "--tokenizer", kind, "--model", model, __VA_ARGS__)

static program vocab_input(const char *part, const char *kind, const char *model,
                           const char *input) {
    return program_run(
        &(program_how){.input = input},
        (const char *const[]){"vocab", part, "--tokenizer", kind, "--model", model, NULL});
}

/* ---- golden values -----------------------------------------------------------------------------
 */

/* Ids of a row as the text output has them; the kit's. */
static const char *ids_text(json_t *ids) {
    char *all = malloc(12 * json_array_size(ids) + 1), *p = all;
    *p = 0;
    for (size_t i = 0; i < json_array_size(ids); i++)
        p += sprintf(p, "%s%d", i ? " " : "", (int)json_integer_value(json_array_get(ids, i)));
    const char *own = kit_str("%s", all);
    free(all);
    return own;
}

/* The text, and what each line of it must become. */
typedef struct golden {
    const char *input;
    json_t *rows; /* an array of objects */
    size_t count;
} golden;

static int read_golden(const char *name, golden *g) {
    const char *path = kit_shared(name);
    if (path == NULL) {
        kit_skip("%s is absent", name);
        return 0;
    }
    char *rest = kit_read(path, NULL), *at = rest, *line;
    g->rows = json_array();
    while ((line = strsep(&at, "\n")) != NULL && *line)
        json_array_append_new(g->rows, parse_json(line));
    free(rest);
    g->count = json_array_size(g->rows);
    g->input = kit_str("%s/in", kit_tmpdir());
    FILE *f = fopen(g->input, "w");
    for (size_t i = 0; i < g->count; i++) {
        json_t *text = json_object_get(json_array_get(g->rows, i), "text");
        ck_assert_ptr_null(strpbrk(json_string_value(text), "\n\r"));
        fprintf(f, "%s\n", json_string_value(text));
    }
    ck_assert_int_eq(fclose(f), 0);
    ck_assert_uint_gt(g->count, 500);
    return 1;
}

/* Each line of `out` is an object whose `field` is that of the golden row. */
static void check_rows(const golden *g, const char *out, const char *field) {
    char *all = strdup(out), *at = all;
    for (size_t i = 0; i < g->count; i++) {
        char *line = strsep(&at, "\n");
        ck_assert_ptr_nonnull(at);
        json_t *row = parse_json(line);
        check_fields(row, "tokens ids");
        ck_assert_uint_eq(json_array_size(json_object_get(row, "tokens")),
                          json_array_size(json_object_get(row, "ids")));
        json_t *want = json_object_get(json_array_get(g->rows, i), field);
        ck_assert_msg(json_equal(json_object_get(row, field), want), "line %zu: %s", i + 1, line);
        json_decref(row);
    }
    ck_assert_str_eq(at, "");
    free(all);
}

static void check_lines(const golden *g, const char *out, const char *field) {
    char *all = strdup(out), *at = all;
    for (size_t i = 0; i < g->count; i++) {
        json_t *want = json_object_get(json_array_get(g->rows, i), field);
        const char *text = json_is_array(want) ? ids_text(want) : json_string_value(want);
        ck_assert_str_eq(strsep(&at, "\n"), text);
        ck_assert_ptr_nonnull(at);
    }
    ck_assert_str_eq(at, "");
    free(all);
}

static void check_pieces(const char *kind, const char *model_name, const char *golden_name) {
    golden g;
    const char *model = kit_shared(model_name);
    if (!read_golden(golden_name, &g)) return;
    program p = vocab("encode", kind, model, "--json", g.input);
    check_status(p, 0);
    check_rows(&g, p.out, "ids");
    p = vocab_input("encode", kind, model, g.input);
    check_status(p, 0);
    check_lines(&g, p.out, "ids");
    p = vocab_input("decode", kind, model, text_file(p.out));
    check_status(p, 0);
    check_lines(&g, p.out, "decoded");
    json_decref(g.rows);
}

START_TEST(sentencepiece_golden) {
    check_pieces("sentencepiece", "data/tokenizers/t5_32100_unigram.model",
                 "data/tokenizers/t5_golden_multi30k.jsonl");
}
END_TEST

START_TEST(xlmr_golden) {
    check_pieces("xlmr", "data/tokenizers/xlmr_250k_unigram.model",
                 "data/tokenizers/xlmr_golden.jsonl");
}
END_TEST

/* Without a word list beside it every token stands as it is and is unknown. */
START_TEST(spacy_golden) {
    static const char *const language[] = {"de", "en"};
    for (int i = 0; i < 2; i++) {
        golden g;
        if (!read_golden(kit_str("data/tokenizers/spacy/%s.golden.jsonl", language[i]), &g)) return;
        const char *model = kit_shared(kit_str("data/tokenizers/spacy/%s.tokenizer", language[i]));
        program p = vocab("encode", "spacy", model, "--json", g.input);
        if (p.status == 2 && strstr(p.err, "was made without") != NULL) {
            kit_skip("%s", p.err);
        } else {
            check_status(p, 0);
            check_rows(&g, p.out, "tokens");
        }
        json_decref(g.rows);
    }
}
END_TEST

/* ---- training and looking ----------------------------------------------------------------------
 */

START_TEST(word_list) {
    const char *list = kit_str("%s/list", kit_tmpdir()), *more = text_file("b b a c\n");
    program p = vocab("train", "words", list, "--size", "7", text_file("a b a\nb a d\n"), more);
    check_status(p, 0);
    ck_assert_str_eq(p.out, "");
    ck_assert_str_eq(file_text(list), HEAD "a\t4\nb\t4\nc\t1\n");
    p = vocab("train", "words", list, "--size", "7", "--min-count", "2", more);
    check_status(p, 0);
    p = vocab("inspect", "words", list, "--json");
    check_status(p, 0);
    json_t *j = parse_json(p.out);
    check_fields(j, "kind model size checksum specials pieces");
    ck_assert(number_at(j, "size") == 5);
    ck_assert_str_eq(json_string_value(json_object_get(j, "kind")), "words");
    ck_assert_uint_eq(strlen(json_string_value(json_object_get(j, "checksum"))), 16);
    json_t *s = json_object_get(j, "specials");
    ck_assert(number_at(s, "pad") == 0 && number_at(s, "start") == 1 && number_at(s, "end") == 2 &&
              number_at(s, "unknown") == 3);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(j, "pieces"), 4)), "b");
    json_decref(j);
    p = vocab("inspect", "words", list, "--pieces", "2");
    check_status(p, 0);
    check_has(p.out, "5 symbols");
    check_has(p.out, "<s>");
    ck_assert_int_eq(count_lines(p.out), 8);
    p = vocab_input("encode", "words", list, text_file(" a  b\n\nb"));
    check_status(p, 0);
    ck_assert_str_eq(p.out, "3 4\n\n4\n");
    p = vocab("encode", "words", list, "--json", text_file("b \xC3\xA4\"\n"));
    check_status(p, 0);
    json_t *row = parse_json(p.out);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(row, "tokens"), 1)),
                     "\xC3\xA4\"");
    json_decref(row);
    p = vocab_input("decode", "words", list, text_file("1 4  4\t2\n\n4"));
    check_status(p, 0);
    ck_assert_str_eq(p.out, "b b\n\nb\n");
}
END_TEST

/* What the program trains is what a run trains; text comes back. */
START_TEST(own_pieces) {
    char *text = toy_text(300, 0);
    const char *model = kit_str("%s/own.model", kit_tmpdir()), *in = text_file(text);
    program p = vocab("train", "sentencepiece", model, "--size", "46", in);
    check_status(p, 0);
    p = vocab("inspect", "sentencepiece", model, "--pieces", "3");
    check_has(p.out, "46 symbols");
    check_has(p.out, "       0  <unk>");
    p = vocab_input("encode", "sentencepiece", model, in);
    check_status(p, 0);
    p = vocab_input("decode", "sentencepiece", model, text_file(p.out));
    check_status(p, 0);
    ck_assert_str_eq(p.out, text);
    free(text);
}
END_TEST

/* An unknown piece is told as it stands in the text. */
START_TEST(unknown_pieces) {
    toy_proto proto;
    toy_start_model(&proto, 1);
    toy_add_piece(&proto, "a", -1, TOY_NORMAL);
    const char *model = toy_save_model(&proto, kit_tmpdir());
    program p = vocab("encode", "sentencepiece", model, "--json", text_file("axa\xD1\x8F\n<s>\n"));
    check_status(p, 0);
    ck_assert_str_eq(p.out,
                     "{\"tokens\": [\"a\", \"x\", \"a\", \"\xD1\x8F\"], \"ids\": [3, 0, 3, 0]}\n"
                     "{\"tokens\": [\"<s>\"], \"ids\": [0]}\n");
}
END_TEST

/* ---- what is refused ---------------------------------------------------------------------------
 */

START_TEST(refusals) {
    const char *model = toy_model(), *text = text_file("ba\n"), *dir = kit_tmpdir();
    check_refused(bantam("vocab"), "train, inspect, encode, decode expected");
    check_refused(bantam("vocab", "trian"), "not trian");
    check_refused(bantam("vocab", "inspect", "--model", model), "--tokenizer");
    check_refused(bantam("vocab", "inspect", "--tokenizer", "words"), "--model");
    check_refused(vocab("inspect", "bpe", model, NULL), "no tokeniser \"bpe\"");
    check_refused(vocab("inspect", "words", model, "--vocabulary", model), "only spacy");
    check_refused(vocab("inspect", "words", kit_str("%s/none", dir), NULL), "none");
    check_refused(vocab("encode", "sentencepiece", text, text), text);
    check_refused(vocab("encode", "sentencepiece", model, kit_str("%s/none", dir)), "none");
    check_refused(vocab("train", "words", kit_str("%s/new", dir), text), "--size");
    check_refused(vocab("train", "words", kit_str("%s/new", dir), "--size", "9"), "FILE");
    check_refused(vocab("train", "xlmr", kit_str("%s/new", dir), "--size", "9", text), "new");
    check_refused(vocab("train", "words", kit_str("%s/new", dir), "--size", "9", "-"), "files");
    const char *before = file_text(text), *list = kit_str("%s/t", dir);
    check_refused(vocab("train", "words", text, "--size", "9", text), "the same file");
    kit_write_text(kit_str("%s.words", list), before);
    check_refused(vocab("train", "spacy", list, "--size", "9", kit_str("%s.words", list)),
                  "the same file");
    ck_assert_str_eq(file_text(text), before);
    ck_assert_str_eq(file_text(kit_str("%s.words", list)), before);
    ck_assert(!is_file(kit_str("%s/new", dir)));
    const char *bad = text_file("ba\nk\xC3\x28\n");
    program p = vocab("encode", "sentencepiece", model, bad);
    check_refused(p, bad);
    check_has(p.err, "line 2");
    ck_assert_int_eq(count_lines(p.out), 1);
    static const char *const ids[] = {"1 x", "90", "-1", "1,2", "99999999999999999999", "3.5"};
    for (int i = 0; i < 6; i++) {
        const char *in = text_file(kit_str("1\n%s\n", ids[i]));
        p = vocab("decode", "sentencepiece", model, in);
        check_refused(p, in);
        check_has(p.err, "line 2");
    }
}
END_TEST

/* ---- every allocation fails once ---------------------------------------------------------------
 */

static bt_status take_line(void *user, const char *line) {
    *(size_t *)user += strlen(line);
    return BT_OK;
}

static bt_status use_vocab(const bt_vocab_config *c, const char *const *file, size_t *bytes) {
    bt_vocab *v;
    char *text[2] = {NULL, NULL};
    BT_TRY(bt_vocab_open(c, &v));
    bt_status s = bt_vocab_text(v, 5, &text[0]);
    if (s == BT_OK) s = bt_vocab_json(v, 5, &text[1]);
    for (int json = 0; json < 2 && s == BT_OK; json++)
        s = bt_vocab_encode(v, file, 1, json, take_line, bytes);
    bt_free(text[0]);
    bt_free(text[1]);
    bt_vocab_free(v);
    return s;
}

START_TEST(no_memory) {
    const char *text = text_file("ba ke\nli \xD1\x8F\n");
    bt_vocab_config c = {.kind = "sentencepiece", .model = toy_model()};
    size_t bytes = 0;
    kit_walk(use_vocab(&c, &text, &bytes), 4);
    ck_assert_uint_gt(bytes, 20);
    small_run r = small_run_with("ba ke\nli \xD1\x8F\n", "ba\nke\n");
    const char *sets[] = {kit_str("data.valid.source=%s", in_dir(r, "train.de")),
                          kit_str("data.valid.target=%s", in_dir(r, "train.en"))};
    bt_run *run;
    char *report = NULL;
    kit_ok(bt_run_load(r.yaml, sets, 2, &run));
    kit_walk(bt_data_check_text(run, &report), 4);
    check_has(report, "in both: 2 training pairs");
    bt_free(report);
    kit_walk(bt_data_check_json(run, &report), 4);
    bt_free(report);
    bt_run_free(run);
}
END_TEST

static void add(TCase *tc) {
    tcase_set_timeout(tc, 0);
    tcase_add_test(tc, sentencepiece_golden);
    tcase_add_test(tc, xlmr_golden);
    tcase_add_test(tc, spacy_golden);
    tcase_add_test(tc, word_list);
    tcase_add_test(tc, own_pieces);
    tcase_add_test(tc, unknown_pieces);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, no_memory);
}

int main(int argc, char **argv) { return kit_main("vocab", add, argc, argv); }
