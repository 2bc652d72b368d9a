/* Word lists and the kind `words`. */
#include "tests/kit.h"
#include "tests/toy.h"

#include "core/base/files.h"
#include "core/data/word_list.h"

#define HEAD "<pad>\n<s>\n</s>\n<unk>\n"

static bti_tokenizer_config config(const char *model) {
    return (bti_tokenizer_config){
        .kind = BTI_TOKENIZER_WORDS, .model = (char *)(uintptr_t)model, .min_count = 1};
}

static bti_tokenizer *open_text(const char *list) {
    const char *path = kit_str("%s/words", kit_tmpdir());
    bti_tokenizer *t;
    kit_write_text(path, list);
    kit_ok(toy_open(BTI_TOKENIZER_WORDS, path, &t));
    return t;
}

/* Ids as text, "5 3 4". */
static const char *ids_of(const bti_tokenizer *t, const char *text, size_t bytes) {
    static char out[4096];
    bti_ids ids = {0};
    size_t n = 0;
    out[0] = 0;
    kit_ok(bti_tokenizer_encode(t, text, bytes, &ids));
    for (int64_t i = 0; i < ids.count; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%d", i ? " " : "", (int)ids.id[i]);
    bti_ids_free(&ids);
    return out;
}

static void check_ids(const bti_tokenizer *t, const char *text, const char *want) {
    ck_assert_str_eq(ids_of(t, text, strlen(text)), want);
}

static void check_text(const bti_tokenizer *t, const int32_t *ids, int64_t n, const char *want) {
    char *text;
    kit_ok(bti_tokenizer_decode(t, ids, n, &text));
    ck_assert_str_eq(text, want);
    bti_free(text);
}

START_TEST(white_space_tokens) {
    bti_tokenizer *t = open_text(HEAD "der\t9\nHund\t2\n,\t1\nx y\t1\n\xC3\xA4\t1");
    ck_assert_int_eq(bti_tokenizer_size(t), 9);
    bti_special_ids sp = bti_tokenizer_specials(t);
    ck_assert(sp.pad == 0 && sp.start == 1 && sp.end == 2 && sp.unk == 3);
    ck_assert_str_eq(bti_tokenizer_piece(t, 0), "<pad>");
    ck_assert_str_eq(bti_tokenizer_piece(t, 8), "\xC3\xA4");
    ck_assert_ptr_null(bti_tokenizer_piece(t, 9));
    check_ids(t, "der Hund , der", "4 5 6 4");
    check_ids(t, "Der Hund,", "3 3");
    check_ids(t, "", "");
    check_ids(t, " \t ", "");
    check_ids(t, "  der\t\tHund ", "4 5");
    check_ids(t, "der\rHund\r", "4 5"); /* D2 (e) */
    /* U+00A0, U+2009, U+2028, U+3000, U+0085, 1C */
    check_ids(t,
              "der\xC2\xA0Hund\xE2\x80\x89,\xE2\x80\xA8"
              "der\xE3\x80\x80Hund\xC2\x85,\x1C"
              "der",
              "4 5 6 4 5 6 4");
    /* no white space: U+200B, U+FEFF, and a combining mark is part of its word */
    check_ids(t,
              "der\xE2\x80\x8BHund \xEF\xBB\xBF"
              "der a\xCC\x88 \xC3\xA4",
              "3 3 3 8");
    /* what the text calls a special symbol is none */
    check_ids(t, "<s> </s> <pad> <unk> der", "3 3 3 3 4");
    check_text(t, (int32_t[]){1, 4, 5, 3, 6, 2, 0, 0}, 8, "der Hund <unk> ,");
    check_text(t, (int32_t[]){2}, 1, "");
    check_text(t, NULL, 0, "");
    char *text;
    kit_fails(bti_tokenizer_decode(t, (int32_t[]){9}, 1, &text), BT_EINTERNAL, "id 9");
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(odd_input) {
    bti_tokenizer *t = open_text(HEAD "\xF0\x9F\x98\x80\t2\na\t1\n");
    char *word = malloc(10001);
    memset(word, 'a', 10000);
    word[10000] = 0;
    check_ids(t, word, "3");
    word[5000] = ' ';
    check_ids(t, word, "3 3");
    free(word);
    check_ids(t, "\xF0\x9F\x98\x80 a", "4 5");
    ck_assert_str_eq(ids_of(t, "a\0b", 3), "3"); /* a 00 ends nothing */
    bti_tokenizer_free(t);
}
END_TEST

static bt_status keep_token(void *user, const char *token, size_t bytes, int32_t id) {
    char *to = user;
    sprintf(to + strlen(to), "%.*s=%d;", (int)bytes, token, (int)id);
    return strlen(to) > 40 ? BT_ESTOPPED : BT_OK;
}

START_TEST(tokens_as_they_stand) {
    bti_tokenizer *t = open_text(HEAD "a\t1\n");
    char got[100] = "";
    kit_ok(bti_tokenizer_tokens(t, "a \rnew a", 8, keep_token, got));
    ck_assert_str_eq(got, "a=4;new=3;a=4;");
    ck_assert_int_eq(bti_tokenizer_tokens(t, "a a a a a a a a a a a a a", 25, keep_token, got),
                     BT_ESTOPPED);
    bti_tokenizer_free(t);
    t = toy_tokenizer(); /* SentencePiece: its pieces */
    got[0] = 0;
    kit_ok(bti_tokenizer_tokens(t, "baba", 4, keep_token, got));
    ck_assert_ptr_eq(strstr(got, "\xE2\x96\x81"), got);
    bti_tokenizer_free(t);
}
END_TEST

/* D2 (d): the list with CRLF gives the same ids, and is the same to a checkpoint. */
START_TEST(crlf_list) {
    static const char *const list[] = {
        HEAD "der\t9\nHund\t2\n", "<pad>\r\n<s>\r\n</s>\r\n<unk>\r\nder\t9\r\nHund\t2\r\n",
        HEAD "der\nHund", HEAD "der\t3\nHund\t1\n", BTI_TEXT_MARK HEAD "der\t3\nHund\t1\n"};
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++) {
        toy_log[0] = 0;
        bt_set_log(toy_keep_log, NULL);
        bti_tokenizer *t = open_text(list[i]);
        bt_set_log(NULL, NULL);
        ck_assert_int_eq(toy_count(toy_log, "CRLF in "), i == 1);
        check_ids(t, "der Hund Hund\r", "4 5 5");
        ck_assert_str_eq(bti_tokenizer_piece(t, 5), "Hund");
        if (i == 0) sum = bti_tokenizer_checksum(t);
        ck_assert_uint_eq(bti_tokenizer_checksum(t), sum);
        bti_tokenizer_free(t);
    }
    bti_tokenizer *t = open_text(HEAD "Hund\t9\nder\t2\n");
    ck_assert_uint_ne(bti_tokenizer_checksum(t), sum);
    bti_tokenizer_free(t);
    /* D1: only 0A ends a line; a CR inside stays. */
    t = open_text(HEAD "a\xE2\x80\xA8"
                       "b\nc\rd\n\x1C\n\t\t5\n");
    ck_assert_int_eq(bti_tokenizer_size(t), 8);
    ck_assert_str_eq(bti_tokenizer_piece(t, 7), "\t");
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(lists_at_fault) {
    static const struct {
        const char *text;
        size_t bytes;
        const char *part;
    } bad[] = {
        {"", 0, "words: not a word list"},
        {"<pad>\n<s>\n</s>", 14, "words: not a word list"},
        {"der\nHund\n", 9, "words: line 1 should be <pad>"},
        {"<pad>\n<s>\n<unk>\n</s>\n", 22, "words: line 3 should be </s>"},
        {HEAD "a\nb\na\n", 28, "words: line 7: the word of line 5 again"},
        {HEAD "<s>\n", 26, "words: line 5: the word of line 2 again"},
        {HEAD "a\n\nb\n", 27, "words: line 6: there is no word"},
        {HEAD "a\tb\n", 26, "words: line 5: behind the TAB"},
        {HEAD "a\t\n", 25, "words: line 5: behind the TAB"},
        {HEAD "\t4\n", 25, "words: line 5: there is no word"},
        {HEAD "a\nb\xFFx\n", 27, "words: line 6, byte 2: a 00 byte, or not UTF-8"},
        {HEAD "a\0b\n", 26, "words: line 5, byte 2: a 00"},
    };
    const char *path = kit_str("%s/words", kit_tmpdir());
    bti_tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kit_write(path, bad[i].text, bad[i].bytes);
        kit_fails(toy_open(BTI_TOKENIZER_WORDS, path, &t), BT_EINPUT, bad[i].part);
    }
    kit_fails(toy_open(BTI_TOKENIZER_WORDS, kit_str("%s/none", kit_tmpdir()), &t), BT_EINPUT,
              "none: No such file");
}
END_TEST

static const char *trained(const char *text, int64_t size, int64_t min_count) {
    const char *dir = kit_tmpdir(), *file = kit_str("%s/text", dir);
    bti_tokenizer_config cfg = config(kit_str("%s/list", dir));
    cfg.size = size;
    cfg.min_count = min_count;
    kit_write_text(file, text);
    kit_ok(bti_tokenizer_train(&cfg, &file, 1));
    size_t n;
    char *list = kit_read(cfg.model, &n);
    const char *kept = kit_str("%.*s", (int)n, list);
    free(list);
    return kept;
}

START_TEST(training) {
    static const char text[] = "b c a b\r\nc b\xC2\xA0"
                               "aa <s> <unk>\n\n  \nZ b\rb\n\xC3\xA4 c";
    ck_assert_str_eq(trained(text, 100, 1), HEAD "b\t5\nc\t3\nZ\t1\na\t1\naa\t1\n\xC3\xA4\t1\n");
    ck_assert_str_eq(trained(text, 7, 1), HEAD "b\t5\nc\t3\nZ\t1\n");
    ck_assert_str_eq(trained(text, 100, 3), HEAD "b\t5\nc\t3\n");
    ck_assert_str_eq(trained(text, 5, 3), HEAD "b\t5\n");
    /* Two files, one packed; what was trained opens. */
    const char *dir = kit_tmpdir(), *files[] = {kit_str("%s/1", dir), kit_str("%s/2.gz", dir)};
    bti_tokenizer_config cfg = config(kit_str("%s/list", dir));
    cfg.size = 10;
    kit_write_text(files[0], "x y");
    toy_write_gz(files[1], "wb", "y\nz", 3);
    kit_ok(bti_tokenizer_train(&cfg, files, 2));
    bti_tokenizer *t;
    kit_ok(bti_tokenizer_open(&cfg, &t));
    check_ids(t, "y x z q", "4 5 6 3");
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(training_refused) {
    const char *dir = kit_tmpdir(), *file = kit_str("%s/text", dir);
    bti_tokenizer_config cfg = config(kit_str("%s/list", dir));
    kit_write_text(file, " \n\t\n");
    cfg.size = 10;
    kit_fails(bti_tokenizer_train(&cfg, &file, 1), BT_EINPUT, "the text has no words");
    kit_write_text(file, "a b\na\n");
    cfg.min_count = 3;
    kit_fails(bti_tokenizer_train(&cfg, &file, 1), BT_EINPUT, "tokenizer.min_count 3");
    cfg.min_count = 1;
    cfg.size = 4;
    kit_fails(bti_tokenizer_train(&cfg, &file, 1), BT_EINPUT, "tokenizer.size 4 has no room");
    cfg.size = 10;
    kit_write(file, "a\nb\xFF\n", 5);
    kit_fails(bti_tokenizer_train(&cfg, &file, 1), BT_EINPUT, "text: line 2, byte 2");
    ck_assert(!bti_file_exists(cfg.model));
}
END_TEST

static bt_status open_and_close(const bti_tokenizer_config *cfg) {
    bti_tokenizer *t = NULL;
    BT_TRY(bti_tokenizer_open(cfg, &t));
    bti_tokenizer_free(t);
    return BT_OK;
}

/* Each failed request for memory is an error and leaks nothing (sanitizers look). */
START_TEST(memory_runs_out) {
    const char *dir = kit_tmpdir(), *file = kit_str("%s/text", dir);
    bti_tokenizer_config cfg = config(kit_str("%s/list", dir));
    cfg.size = 50;
    char *text = toy_text(50, 1);
    kit_write_text(file, text);
    free(text);
    kit_walk(bti_tokenizer_train(&cfg, &file, 1), 5);
    kit_walk(open_and_close(&cfg), 5);
}
END_TEST

START_TEST(run_file_corpus) {
    /* D2: LF, CRLF in the source, CRLF in both: the same ids. */
    static const char *const source[] = {"a b\nc a\n", "a b\r\nc a\r\n", "a b\r\nc a\r\n"};
    static const char *const target[] = {"x\ny z\n", "x\ny z\n", "x\r\ny z\r\n"};
    bti_tokenizer *t = open_text(HEAD "a\nb\nc\nx\ny\n");
    bti_corpus *c[3];
    for (int i = 0; i < 3; i++) {
        toy_place p;
        toy_place_init(&p, source[i], target[i]);
        kit_ok(bti_corpus_open(&p.cfg, t, t, p.cache, &c[i]));
        toy_check_same(c[0], c[i]);
    }
    ck_assert_int_eq(bti_corpus_get_stats(c[0])->target_unknown, 1);
    for (int i = 0; i < 3; i++) bti_corpus_free(c[i]);
    bti_tokenizer_free(t);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, white_space_tokens);
    tcase_add_test(tc, odd_input);
    tcase_add_test(tc, tokens_as_they_stand);
    tcase_add_test(tc, crlf_list);
    tcase_add_test(tc, lists_at_fault);
    tcase_add_test(tc, training);
    tcase_add_test(tc, training_refused);
    tcase_add_test(tc, memory_runs_out);
    tcase_add_test(tc, run_file_corpus);
}

int main(int argc, char **argv) { return kit_main("words", add, argc, argv); }
