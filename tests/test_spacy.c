/* The kind `spacy`: patterns, rules, golden lines of spaCy itself, text out of tokens. */
#include "tests/kit.h"
#include "tests/toy.h"

#include "core/base/files.h"

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

#include "core/data/spacy.h"

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

static bt_status open_rules(const char *path, bti_tokenizer **t) {
    bti_tokenizer_config cfg = {.kind = BTI_TOKENIZER_SPACY,
                                .model = (char *)(uintptr_t)path,
                                .vocabulary = (char *)(uintptr_t) ""};
    return bti_tokenizer_open(&cfg, t);
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
    kit_ok(open_rules(rules, &t));
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

static void add(TCase *tc) {
    tcase_add_test(tc, golden_de);
    tcase_add_test(tc, golden_en);
}

#endif

int main(int argc, char **argv) { return kit_main("spacy", add, argc, argv); }
