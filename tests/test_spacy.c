/* The kind `spacy`. Here: the rules of a small tokeniser, files at fault. */
#include "tests/kit.h"
#include "tests/spacy_parts.h"

#ifdef BT_SPACY_MISSING

START_TEST(build_without) {
    const char *path = kit_str("%s/de.tokenizer", kit_tmpdir());
    bti_tokenizer *t;
    kit_write_text(path, "x");
    kit_skip("built without spaCy's tokenisers: no %s", BT_SPACY_MISSING);
    kit_fails(toy_open(BTI_TOKENIZER_SPACY, path, &t), BT_EUSAGE, BT_SPACY_MISSING);
    bti_tokenizer_config cfg = {
        .kind = BTI_TOKENIZER_SPACY, .model = (char *)(uintptr_t)path, .size = 50};
    kit_fails(bti_tokenizer_train(&cfg, &path, 1), BT_EUSAGE, "without");
}
END_TEST

static void add(TCase *tc) { tcase_add_test(tc, build_without); }

#else

#include <pthread.h>

#include "core/data/corpus.h"
#include "core/decode/translator.h"

/* ---- a small tokeniser ----------------------------------------------------------------------- */

START_TEST(rules_of_a_small_tokeniser) {
    static const char *const rows[][2] = {
        {"", ""},
        {"Hund", "Hund"},
        {"(Hund),", "(|Hund|)|,"},
        {"\"(a)\"!", "\"|(|a|)|\"|!"},
        {"a  b", "a| |b"},
        {" a ", " |a"},
        {"a \t b", "a|\t |b"},
        {"   ", "   "},
        {"\t", "\t"},
        {"a\xC2\xA0"
         "b",
         "a|\xC2\xA0|b"},
        {"a\xE2\x80\xA8"
         "b",
         "a|\xE2\x80\xA8|b"},
        {"a\rb", "a|b"},
        {"don't", "do|n't"},
        {"(don't)", "(|do|n't|)"},
        {"don't,", "do|n't|,"},
        {"don'ts", "don'ts"},
        {"z.B.", "z.B."},
        {"(z.B.", "(|z.B."},
        {"z.B.,", "z.B.|,"},
        {"z.B..", "z.B|.."},
        {"well-known", "well|-|known"},
        {"a-b-c", "a|-|b|-|c"},
        {"-a-b", "-a|-|b"},
        {"1-2", "1|-|2"},
        {"1-2-3", "1-2-3"}, /* token_match */
        {"(1-2-3)", "(|1-2-3|)"},
        {"1-2-3!", "1-2-3|!"},
        {"http://a-b..c", "http://a-b..c"}, /* url_match */
        {"http://a-b.", "http://a-b|."},
        {"a..b", "a|..|b"},
        {"..a", "..a"}, /* an infix at the start is none */
        {"a...", "a|..."},
        {"5km", "5|km"},
        {"5km.", "5|km|."},
        {"km", "km"},
        {"Joe's.", "Joe|'s|."},
        {":-)", ":-)"},
        {":-),", ":-)|,"},
        {"a:-)", "a:-|)"},
        {"(c)", "(c)"},
        {"((c))", "(|(c)|)"}, /* across tokens */
        {"\"(c)\"", "\"|(c)|\""},
        {"( c )", "(|c|)"}, /* the same tokens, other text */
        {"New York!", "New York|!"},
        {"New  York", "New| |York"},
        {"New York City", "New York City"},
        {"p q r", "p q|r"},
        {"(c),", "(c)|,"},
        {"q r!", "q r|!"},
        {"(:)", "(:|)"},
        {"x-y", "x|-|y"},
        {"cannot", "can|not"},
        {"...!", "...!"},
        {"$5!", "$|5|!"},
        {"\xF0\x9F\x98\x80!\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80!\xF0\x9F\x98\x80"},
        {"a\xCC\x88-o\xCC\x88", "a\xCC\x88-o\xCC\x88"},
    };
    bti_tokenizer *t = spacy_open_small();
    for (int again = 0; again < 2; again++) /* the second time from what was kept */
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            ck_assert_msg(strcmp(spacy_tokens(t, rows[i][0]), rows[i][1]) == 0, "%s: %s, not %s",
                          rows[i][0], spacy_tokens(t, rows[i][0]), rows[i][1]);
    bti_tokenizer_free(t);
}
END_TEST

/* No patterns at all, and patterns that match elsewhere than at the ends. */
START_TEST(rules_that_are_odd) {
    bti_tokenizer *t;
    kit_ok(
        spacy_open_rules(spacy_put_rules(&(spacy_rules){.exceptions = "a_b ", .faster = 0}), &t));
    ck_assert_str_eq(spacy_tokens(t, "ab (ab) c"), "a|b|(ab)|c");
    bti_tokenizer_free(t);
    /* spaCy takes as many characters as matched, off the ends. */
    kit_ok(spacy_open_rules(
        spacy_put_rules(&(spacy_rules){
            .prefix = "\xC3\xA4\xC3\xB6", .suffix = "x", .infix = "|-", .exceptions = ""}),
        &t));
    ck_assert_str_eq(spacy_tokens(t, "q\xE2\x82\xAC\xC3\xA4\xC3\xB6z"),
                     "q\xE2\x82\xAC|\xC3\xA4\xC3\xB6|z");
    ck_assert_str_eq(spacy_tokens(t, "xa\xC3\xA4"), "x|a|\xC3\xA4");
    ck_assert_str_eq(spacy_tokens(t, "a-b"), "a|-|b");
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(odd_input) {
    bti_tokenizer *t = spacy_open_small();
    char *word = malloc(40001);
    memset(word, 'a', 10000);
    word[10000] = 0;
    ck_assert_str_eq(spacy_tokens(t, word), word);
    for (int i = 0; i < 10000; i++) word[i] = "-a"[i % 2];
    ck_assert_uint_eq(strlen(spacy_tokens(t, word)), 10000 + 9998);
    memset(word, '!', 10000);
    ck_assert_uint_eq(strlen(spacy_tokens(t, word)), 19999);
    for (int i = 0; i < 10000; i++) memcpy(word + 4 * i, "\xF0\x9F\x98\x80", 5);
    ck_assert_str_eq(spacy_tokens(t, word), word);
    free(word);
    bti_ids ids = {0};
    kit_ok(bti_tokenizer_encode(t, "a\0b c", 5, &ids)); /* a 00 is a character like others */
    ck_assert_int_eq(ids.count, 2);
    kit_fails(bti_tokenizer_encode(t, "ab\xC3 c", 5, &ids), BT_EINPUT, "byte 3 of the text");
    bti_ids_free(&ids);
    bti_tokenizer_free(t);
}
END_TEST

/* What training skips gives an empty translation, also where the tokeniser has tokens for it. */
START_TEST(lines_blank_to_training_and_translation) {
    static const char *const line[] = {"", " \t\r", "\v", "\f \v"};
    bti_run_config cfg = {.data.max_length = 10};
    bt_translator t = {.cfg = &cfg, .tokenizer = {spacy_open_small()}};
    bti_ids ids = {0};
    bti_amends amends = {0};
    for (int i = 0; i < 4; i++) {
        ck_assert(bti_line_blank(line[i], strlen(line[i])));
        if (i >= 2) ck_assert_str_ne(spacy_tokens(t.tokenizer[0], line[i]), "");
        kit_ok(bti_translator_encode(&t, 0, line[i], strlen(line[i]), &ids, &amends));
        ck_assert_int_eq(ids.count, 0);
    }
    bti_ids_free(&ids);
    bti_tokenizer_free(t.tokenizer[0]);
}
END_TEST

/* More different words than are kept. */
START_TEST(many_different_words) {
    bti_tokenizer *t = spacy_open_small();
    int wrong = 0;
    for (int i = 0; i < 140000; i++) {
        char word[32], want[32];
        sprintf(word, "(w%d", i % 70000);
        sprintf(want, "(|w%d", i % 70000);
        wrong += strcmp(spacy_tokens(t, word), want) != 0;
    }
    ck_assert_int_eq(wrong, 0);
    bti_tokenizer_free(t);
}
END_TEST

typedef struct job {
    const bti_tokenizer *t;
    int wrong;
} job;

static bt_status hash_token(void *user, const char *token, size_t bytes, int32_t id) {
    uint64_t *h = user;
    for (size_t i = 0; i < bytes; i++) *h = (*h ^ (unsigned char)token[i]) * 1099511628211u;
    *h = (*h ^ (uint64_t)id ^ 256) * 1099511628211u;
    return BT_OK;
}

static void *encode_often(void *arg) {
    job *j = arg;
    uint64_t first = 0;
    for (int round = 0; round < 5; round++) {
        uint64_t h = 0;
        for (int i = 0; i < 3000; i++) {
            char text[100];
            int n = sprintf(text, "(w%d), don't well-known-x%d... (c) New York!", i, i % 7);
            j->wrong += bti_tokenizer_tokens(j->t, text, (size_t)n, hash_token, &h) != BT_OK;
        }
        if (round == 0) first = h;
        j->wrong += h != first;
    }
    return (void *)(uintptr_t)first;
}

START_TEST(several_threads) {
    bti_tokenizer *t = spacy_open_small();
    pthread_t thread[4];
    job jobs[4];
    void *sum[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){t, 0};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], &sum[i]);
        ck_assert_int_eq(jobs[i].wrong, 0);
        ck_assert_ptr_eq(sum[i], sum[0]);
    }
    bti_tokenizer_free(t);
}
END_TEST

/* ---- files at fault -------------------------------------------------------------------------- */

START_TEST(files_at_fault) {
    const char *path = spacy_put_rules(&spacy_small);
    size_t n;
    char *whole = kit_read(path, &n);
    bti_tokenizer *t;
    for (size_t cut = 0; cut < n; cut += cut < 60 ? 1 : 7) {
        kit_write(path, whole, cut);
        kit_fails(spacy_open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser that spaCy saved");
    }
    char *flipped = malloc(n + 1);
    for (size_t i = 0; i < n; i++) { /* each byte: a message or a tokeniser, never a crash */
        memcpy(flipped, whole, n);
        flipped[i] = (char)(flipped[i] ^ (1 << i % 8));
        kit_write(path, flipped, n);
        bt_status s = spacy_open_rules(path, &t);
        ck_assert_msg(s == BT_OK || (s == BT_EINPUT && strstr(bt_last_error(), "rules: ")), "%s",
                      bt_last_error());
        if (s == BT_OK) bti_tokenizer_free(t);
    }
    memcpy(flipped, whole, n);
    flipped[n] = 0;
    kit_write(path, flipped, n + 1); /* something behind it */
    kit_fails(spacy_open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser");
    free(flipped);
    free(whole);
    kit_write(path, "\x81\xA1x\xDF\xFF\xFF\xFF\xFF", 8); /* 2^32 - 1 members */
    kit_fails(spacy_open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser");
    kit_fails(spacy_open_rules(kit_str("%s/none", kit_tmpdir()), &t), BT_EINPUT,
              "none: No such file");
    spacy_rules bad = spacy_small;
    bad.suffix = "a(?x)";
    kit_fails(spacy_open_rules(spacy_put_rules(&bad), &t), BT_EINPUT,
              "rules: suffix_search: byte ");
    bad = spacy_small;
    bad.exceptions = "ab ab ";
    kit_fails(spacy_open_rules(spacy_put_rules(&bad), &t), BT_EINPUT,
              "an exception that comes twice");
    bad.exceptions = "ab a__b ";
    kit_fails(spacy_open_rules(spacy_put_rules(&bad), &t), BT_EINPUT, "not a tokeniser");
}
END_TEST

static bt_status there_and_back(const bti_tokenizer_config *cfg, const char *line) {
    bti_tokenizer *t = NULL;
    bti_ids ids = {0};
    char *text = NULL;
    bt_status s = bti_tokenizer_open(cfg, &t);
    if (s == BT_OK) s = bti_tokenizer_encode(t, line, strlen(line), &ids);
    if (s == BT_OK) s = bti_tokenizer_decode(t, ids.id, ids.count, &text);
    bti_free(text);
    bti_ids_free(&ids);
    bti_tokenizer_free(t);
    return s;
}

/* Each failed request for memory is an error and leaks nothing (sanitizers look). */
START_TEST(memory_runs_out) {
    static const char line[] = "(a), well-known (c) don't New York...";
    bti_tokenizer_config cfg = spacy_trained(spacy_put_rules(&spacy_small), line);
    kit_walk(there_and_back(&cfg, line), 10);
}
END_TEST

static void add(TCase *tc) {
    add_spacy_golden(tc);
    add_spacy_patterns(tc);
    tcase_add_test(tc, rules_of_a_small_tokeniser);
    tcase_add_test(tc, rules_that_are_odd);
    tcase_add_test(tc, odd_input);
    tcase_add_test(tc, lines_blank_to_training_and_translation);
    tcase_add_test(tc, many_different_words);
    tcase_add_test(tc, several_threads);
    add_spacy_vocabulary(tc);
    tcase_add_test(tc, files_at_fault);
    tcase_add_test(tc, memory_runs_out);
}

#endif

int main(int argc, char **argv) { return kit_main("spacy", add, argc, argv); }
