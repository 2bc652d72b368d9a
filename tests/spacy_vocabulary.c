/* The word list beside the rules: trained, opened, kept with a model. */
#include "tests/kit.h"
#include "tests/spacy_parts.h"

#include "core/base/files.h"

START_TEST(vocabulary) {
    const char *rules = spacy_put_rules(&spacy_small), *words = kit_str("%s.words", rules);
    bti_tokenizer *t, *u;
    kit_fails(toy_open(BTI_TOKENIZER_SPACY, rules, &t), BT_EINPUT, "rules.words: No such file");
    bti_tokenizer_config cfg = spacy_trained(rules, "(a b), a\r\na don't  x\n");
    size_t n;
    char *list = kit_read(words, &n);
    static const char head[] = "<pad>\n<s>\n</s>\n<unk>\n";
    const char *want = kit_str("%sa\t3\n \t1\n(\t1\n)\t1\n,\t1\nb\t1\ndo\t1\nn't\t1\nx\t1\n", head);
    ck_assert_uint_eq(n, strlen(want));
    ck_assert_mem_eq(list, want, n);
    kit_ok(bti_tokenizer_open(&cfg, &t));
    ck_assert_int_eq(bti_tokenizer_size(t), 13);
    bti_special_ids sp = bti_tokenizer_specials(t);
    ck_assert(sp.pad == 0 && sp.start == 1 && sp.end == 2 && sp.unk == 3);
    ck_assert_str_eq(bti_tokenizer_piece(t, 11), "n't");
    bti_ids ids = {0}, other = {0};
    kit_ok(bti_tokenizer_encode(t, "(don't <s> q)", 13, &ids));
    static const int32_t expect[] = {6, 10, 11, 3, 3, 7};
    ck_assert_int_eq(ids.count, 6);
    ck_assert_mem_eq(ids.id, expect, sizeof expect);
    /* D2 (d): the list with CRLF */
    char crlf[400], *to = crlf;
    for (size_t i = 0; i < n; i++) {
        if (list[i] == '\n') *to++ = '\r';
        *to++ = list[i];
    }
    kit_write(words, crlf, (size_t)(to - crlf));
    kit_ok(bti_tokenizer_open(&cfg, &u));
    kit_ok(bti_tokenizer_encode(u, "(don't <s> q)", 13, &other));
    ck_assert_mem_eq(other.id, expect, sizeof expect);
    ck_assert_uint_eq(bti_tokenizer_checksum(t), bti_tokenizer_checksum(u));
    bti_tokenizer_free(u);
    /* Other words, other rules: another checksum. */
    kit_write_text(words, kit_str("%sa\t3\n", head));
    kit_ok(bti_tokenizer_open(&cfg, &u));
    ck_assert_uint_ne(bti_tokenizer_checksum(t), bti_tokenizer_checksum(u));
    bti_tokenizer_free(u);
    kit_write(words, list, n);
    spacy_rules changed = spacy_small;
    changed.url_match = NULL;
    cfg.model = (char *)(uintptr_t)spacy_put_rules(&changed);
    cfg.vocabulary = (char *)(uintptr_t)words;
    kit_ok(bti_tokenizer_open(&cfg, &u));
    ck_assert_uint_ne(bti_tokenizer_checksum(t), bti_tokenizer_checksum(u));
    bti_tokenizer_free(u);
    kit_write_text(words, "a\n");
    kit_fails(bti_tokenizer_open(&cfg, &u), BT_EINPUT, "rules.words: line 1");
    bti_ids_free(&ids);
    bti_ids_free(&other);
    bti_tokenizer_free(t);
    free(list);
}
END_TEST

static bt_status keep_line(void *user, size_t index, const char *text, double score) {
    (void)index, (void)score;
    snprintf(user, 1000, "%s", text);
    return BT_OK;
}

/* The output folder holds all that translation needs. */
START_TEST(trained_model_stands_alone) {
    const char *dir = kit_tmpdir(), *run = kit_str("%s/run.yaml", dir);
    char *text = toy_text(60, 0), got[1000] = "";
    kit_write_text(kit_str("%s/a", dir), text);
    free(text);
    const char *rules = spacy_put_rules(&spacy_small);
    kit_write_text(run, kit_str("output: out\ndata: {train: {source: a, target: a}}\n"
                                "tokenizer: {kind: spacy, model: %s, size: 50, min_count: 2}\n"
                                "model: {d_model: 8, ff: 8, heads: 1, encoder_layers: 1, "
                                "decoder_layers: 1}\ntraining: {batch: 20, updates: 2}\n",
                                rules));
    bt_run *r;
    bt_translator *t;
    bt_train_options train = {.device = "ref"};
    bt_translate_options options = BT_TRANSLATE_DEFAULTS;
    options.device = "ref";
    options.max_length = 5;
    kit_ok(bt_run_load(run, NULL, 0, &r));
    kit_ok(bt_train(r, &train));
    bt_run_free(r);
    size_t n;
    free(kit_read(kit_str("%s.words", rules), &n));
    remove(rules);
    remove(kit_str("%s.words", rules));
    kit_ok(bt_translator_open(kit_str("%s/out", dir), &options, &t));
    const char *line = toy_word(3, 0);
    kit_ok(bt_translate(t, &line, 1, keep_line, got));
    ck_assert_uint_gt(strlen(got), 0);
    bt_translator_free(t);
    /* Other words are not the model's. */
    kit_write_text(kit_str("%s/out/source.words", dir), "<pad>\n<s>\n</s>\n<unk>\na\n");
    kit_fails(bt_translator_open(kit_str("%s/out", dir), &options, &t), BT_EINPUT,
              "is not the tokeniser");
}
END_TEST

void add_spacy_vocabulary(TCase *tc) {
    tcase_add_test(tc, vocabulary);
    tcase_add_test(tc, trained_model_stands_alone);
}
