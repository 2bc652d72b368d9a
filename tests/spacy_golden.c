/* Lines as spaCy itself splits them, and text out of tokens. */
#include "tests/kit.h"
#include "tests/spacy_parts.h"

#include <jansson.h>

/* ---- golden lines ---------------------------------------------------------------------------- */

typedef struct golden {
    const char *name;
    int line;
    json_t *tokens;
    size_t seen;
    int wrong;
} golden;

static bt_status check_token(void *user, const char *token, size_t bytes, int32_t id) {
    golden *g = user;
    (void)id;
    const char *want = json_string_value(json_array_get(g->tokens, g->seen++));
    g->wrong |= want == NULL || strlen(want) != bytes || memcmp(want, token, bytes) != 0;
    return BT_OK;
}

static void check_golden(const char *name) {
    const char *rules = kit_shared(kit_str("data/tokenizers/spacy/%s.tokenizer", name));
    const char *lines = kit_shared(kit_str("data/tokenizers/spacy/%s.golden.jsonl", name));
    if (rules == NULL || lines == NULL) {
        kit_skip("no shared/data/tokenizers/spacy/%s", name);
        return;
    }
    bti_tokenizer *t;
    bti_reader *r;
    const char *line;
    size_t n;
    golden g = {.name = name};
    int wrong = 0;
    kit_ok(spacy_open_rules(rules, &t));
    kit_ok(bti_reader_open(lines, &r));
    while (bti_reader_next(r, &line, &n) == BT_OK && line != NULL) {
        json_t *row = json_loadb(line, n, 0, NULL);
        const char *text = json_string_value(json_object_get(row, "text"));
        g.line++;
        g.tokens = json_object_get(row, "tokens");
        g.seen = 0;
        g.wrong = 0;
        kit_ok(bti_tokenizer_tokens(t, text, strlen(text), check_token, &g));
        if (g.wrong || g.seen != json_array_size(g.tokens))
            wrong += printf("%s: line %d: %s\n", name, g.line, text) > 0;
        json_decref(row);
    }
    bti_reader_close(r);
    bti_tokenizer_free(t);
    ck_assert_int_ge(g.line, 1024);
    ck_assert_int_eq(wrong, 0);
}

START_TEST(golden_de) { check_golden("de"); }
END_TEST

START_TEST(golden_en) { check_golden("en"); }
END_TEST

/* ---- text out of tokens ---------------------------------------------------------------------- */

static void check_back(const char *rules, const char *const *lines, size_t count) {
    char *all = calloc(count, 400);
    for (size_t i = 0; i < count; i++) strcat(strcat(all, lines[i]), "\n");
    bti_tokenizer_config cfg = {.kind = BTI_TOKENIZER_SPACY,
                                .model = (char *)(uintptr_t)rules,
                                .vocabulary = (char *)(uintptr_t)kit_str("%s/w", kit_tmpdir()),
                                .size = 10000,
                                .min_count = 1};
    const char *file = kit_str("%s/text", kit_tmpdir());
    kit_write_text(file, all);
    free(all);
    kit_ok(bti_tokenizer_train(&cfg, &file, 1));
    bti_tokenizer *t;
    kit_ok(bti_tokenizer_open(&cfg, &t));
    for (size_t i = 0; i < count; i++) {
        bti_ids ids = {0};
        char *text;
        kit_ok(bti_tokenizer_encode(t, lines[i], strlen(lines[i]), &ids));
        kit_ok(bti_tokenizer_decode(t, ids.id, ids.count, &text));
        ck_assert_str_eq(text, lines[i]);
        bti_free(text);
        bti_ids_free(&ids);
    }
    bti_tokenizer_free(t);
}

START_TEST(text_of_small_tokens) {
    static const char *const lines[] = {
        "A dog (brown), well-known, runs.",
        "\"Don't!\" New York... I cannot: (c)",
        "a  b",
        "Er sagt: \xE2\x80\x9EHallo!\xE2\x80\x9C",
        "It costs $5, Joe's 3-4.",
    };
    check_back(spacy_put_rules(&spacy_small), lines, sizeof lines / sizeof lines[0]);
    bti_tokenizer_config cfg =
        spacy_trained(spacy_put_rules(&spacy_small), "a ( ) \xE2\x80\xA8 b\n");
    bti_tokenizer *t;
    char *text;
    kit_ok(bti_tokenizer_open(&cfg, &t));
    kit_ok(bti_tokenizer_decode(t, (int32_t[]){1, 3, 3, 2, 0}, 5, &text));
    ck_assert_str_eq(text, "<unk> <unk>");
    bti_free(text);
    kit_ok(bti_tokenizer_decode(t, NULL, 0, &text));
    ck_assert_str_eq(text, "");
    bti_free(text);
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(text_back_de) {
    static const char *const lines[] = {
        "Ein \xC3\xA4lterer Mann, der z.B. am 3. Okt. 2020 um 14.30 Uhr kam.",
        "Er sagt: \xE2\x80\x9ESo nicht!\xE2\x80\x9C \xE2\x80\x93 \xC2\xBB"
        "doch\xC2\xAB, oder?",
        "\xE2\x80\x9E"
        "Das \xE2\x80\x9A"
        "Ding\xE2\x80\x98 da\xE2\x80\x9C, sagt sie.",
        "Geht's gut? Ich hab's (fast) vergessen; ja!",
        "E-Mail-Adresse, Haus- und Hof, S. 3-4, [sic] 20% und \xC2\xA7 5.",
        "\"Wo bist du?\", fragt er.",
        "Im T-Shirt - und barfu\xC3\x9F.",
    };
    const char *rules = kit_shared("data/tokenizers/spacy/de.tokenizer");
    if (rules == NULL) {
        kit_skip("no shared/data/tokenizers/spacy");
        return;
    }
    check_back(rules, lines, sizeof lines / sizeof lines[0]);
}
END_TEST

START_TEST(text_back_en) {
    static const char *const lines[] = {
        "A man's well-known, state-of-the-art bike isn't here; they've gone.",
        "\"Don't you see?\", he said (again): I cannot!",
        "The dogs' owners paid $5 and \302\24310 at 10 a.m.",
        "\xE2\x80\x9CWe\xE2\x80\x99re here,\xE2\x80\x9D she said.",
        "He says 'hello' to #7 & co...",
        "Two  blanks, I'm sure, and/or 100%.",
    };
    const char *rules = kit_shared("data/tokenizers/spacy/en.tokenizer");
    if (rules == NULL) {
        kit_skip("no shared/data/tokenizers/spacy");
        return;
    }
    check_back(rules, lines, sizeof lines / sizeof lines[0]);
}
END_TEST

void add_spacy_golden(TCase *tc) {
    tcase_add_test(tc, golden_de);
    tcase_add_test(tc, golden_en);
    tcase_add_test(tc, text_of_small_tokens);
    tcase_add_test(tc, text_back_de);
    tcase_add_test(tc, text_back_en);
}
