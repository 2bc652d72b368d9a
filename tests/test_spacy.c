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
#include <msgpack.h>
#include <pthread.h>

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

/* ---- patterns -------------------------------------------------------------------------------- */

/* As finditer goes: an empty match may touch the one before, not stand on an empty one. */
static const char *spans_of(const bti_pattern *p, bti_matcher *m, const char *text, int once) {
    static char out[1000];
    size_t from = 0, used = 0, bytes = strlen(text);
    int filled = 0;
    out[0] = 0;
    while (!once || used == 0) {
        bti_match x;
        kit_ok(bti_pattern_find(p, m, text, bytes, from, filled, &x));
        if (x.begin > x.end) break;
        used += (size_t)sprintf(out + used, "%s%zu-%zu", used ? " " : "", x.begin, x.end);
        from = x.end;
        filled = x.begin == x.end;
    }
    return out;
}

static void check_row(const char *pattern, const char *text, const char *want) {
    bti_pattern *p;
    bti_matcher *m;
    kit_ok(bti_matcher_new(&m));
    kit_ok(bti_pattern_new("re", pattern, strlen(pattern), 0, &p));
    const char *all = kit_str("%s", spans_of(p, m, text, 0));
    bti_pattern_free(p);
    kit_ok(bti_pattern_new("re", pattern, strlen(pattern), 1, &p));
    const char *got = kit_str("%s|%s", all, spans_of(p, m, text, 1));
    ck_assert_msg(strcmp(got, want) == 0, "%s on %s: %s, not %s", pattern, text, got, want);
    bti_pattern_free(p);
    bti_matcher_free(m);
}

START_TEST(patterns_as_python_has_them) {
#define X(pattern, text, want) check_row(pattern, text, want);
#include "tests/re_rows.inc"
#undef X
}
END_TEST

START_TEST(patterns_refused) {
    static const char *const refused[][2] = {
        {"a(?x) b", "flag a, L or x"},
        {"(?a)\\w", "flag a, L or x"},
        {"a(?i)b", "behind the start"},
        {"[\\W]", "no place in a set"},
        {"\\N{DASH}", "unknown escape"},
        {"\\Qa", "unknown escape"},
        {"\\K", "unknown escape"},
        {"(?<n>a)", "group of this kind"},
        {"(?|a)", "group of this kind"},
        {"(a", "without end"},
        {"[a", "set without end"},
        {"a)", "closes nothing"},
        {"\\", "ends in a backslash"},
        {"\\x4", "too few digits"},
        {"\\U00110000", "beyond Unicode"},
        {"[b-a]", "ends before it starts"},
        {"[\\w-a]", "starts with a set"},
        {"(?#a", "comment without end"},
        {"(?P<n", "group without end"},
        {"(?P>n)", "group of this kind"},
        {"*a", "PCRE2 cannot take it"},
        {"(?<=a*)b", "PCRE2 cannot take it"},
        {"a\xFF", "not UTF-8"},
    };
    bti_pattern *p;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        bt_status s = bti_pattern_new("F: url_match", refused[i][0], strlen(refused[i][0]), 0, &p);
        ck_assert_msg(s == BT_EINPUT, "%s was taken", refused[i][0]);
        ck_assert_ptr_eq(strstr(bt_last_error(), "F: url_match: "), bt_last_error());
        ck_assert_msg(strstr(bt_last_error(), refused[i][1]) != NULL, "%s: %s", refused[i][0],
                      bt_last_error());
    }
    char deep[1000];
    memset(deep, '(', 999);
    kit_fails(bti_pattern_new("F", deep, 999, 0, &p), BT_EINPUT, "nested too deep");
}
END_TEST

/* before + 20,000 words + after. */
static char *many_words(const char *before, const char *after) {
    char *text = malloc(300000), *to = text + sprintf(text, "%s", before);
    for (int i = 0; i < 20000; i++) to += sprintf(to, "%sword%05d", i ? "|" : "", i);
    strcpy(to, after);
    return text;
}

START_TEST(large_patterns_are_split) {
    bti_pattern *p;
    bti_matcher *m;
    kit_ok(bti_matcher_new(&m));
    char *text = many_words("xy|", "|xyz|ord1");
    kit_ok(bti_pattern_new("F", text, strlen(text), 0, &p));
    ck_assert_uint_gt(bti_pattern_parts(p), 4);
    ck_assert_str_eq(spans_of(p, m, "word1, word19999,word00003 xyz", 0), "1-5 7-16 17-26 27-29");
    bti_pattern_free(p);
    kit_ok(bti_pattern_new("F", text, strlen(text), 1, &p));
    ck_assert_str_eq(spans_of(p, m, "word10000", 1), "0-9");
    ck_assert_str_eq(spans_of(p, m, " word10000", 1), "");
    bti_pattern_free(p);
    free(text);
    /* What can not be split is refused. */
    text = many_words("(?i)a(?:", ")");
    kit_fails(bti_pattern_new("F: token_match", text, strlen(text), 0, &p), BT_EINPUT,
              "F: token_match: ");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "alternative 1 of 1 alone"));
    free(text);
    text = many_words("(a)\\1|", "");
    kit_fails(bti_pattern_new("F", text, strlen(text), 0, &p), BT_EINPUT, "cannot be split");
    free(text);
    /* Suffixes and what may match anywhere go apart. */
    kit_ok(bti_pattern_new("F", "a$|bc?$|\\.+$|d$", 15, 0, &p));
    ck_assert_uint_eq(bti_pattern_parts(p), 3);
    bti_pattern_free(p);
    bti_matcher_free(m);
}
END_TEST

/* ---- a small tokeniser ----------------------------------------------------------------------- */

typedef struct rule_file {
    const char *prefix, *suffix, *infix, *token_match, *url_match; /* NULL: nil */
    int faster;
    const char *exceptions; /* words between blanks, tokens of a word joined by _; + is a blank */
} rule_file;

static const rule_file small = {
    .prefix = "^\\(|^\"|^\\$|^\xE2\x80\x9E",
    .suffix = "\\)$|\"$|,$|\\.$|\\.\\.+$|'s$|!$|\\?$|:$|\xE2\x80\x9C$|(?<=[0-9])km$",
    .infix = "(?<=[a-z])-(?=[a-z])|\\.\\.+|(?<=[0-9])-(?=[0-9])",
    .token_match = "^\\d+-\\d+-\\d+$",
    .url_match = "(?u)^\\w+://\\S+$",
    .faster = 1,
    .exceptions = "do_n't z.B. :-) ( ) (c) can_not New+York New+York+City p+q q+r (:_) x_-_y ...! "
                  "\xE2\x80\xA8 ",
};

static void put_text(msgpack_packer *k, const char *text, size_t n) {
    msgpack_pack_str(k, n);
    msgpack_pack_str_body(k, text, n);
}

static void put_pattern(msgpack_packer *k, const char *name, const char *pattern) {
    put_text(k, name, strlen(name));
    if (pattern != NULL)
        put_text(k, pattern, strlen(pattern));
    else
        msgpack_pack_nil(k);
}

static void put_exception(msgpack_packer *k, const char *word, size_t n) {
    char text[100];
    size_t bytes = 0, tokens = 1;
    for (size_t i = 0; i < n; i++) {
        tokens += word[i] == '_';
        if (word[i] != '_') text[bytes++] = word[i] == '+' ? ' ' : word[i];
    }
    put_text(k, text, bytes);
    msgpack_pack_array(k, tokens);
    for (const char *t = text, *w = word; tokens > 0; tokens--) {
        size_t length = strcspn(w, "_ ");
        msgpack_pack_map(k, 2);
        msgpack_pack_uint8(k, 67); /* NORM, which decides nothing here */
        put_text(k, "norm", 4);
        msgpack_pack_uint8(k, 65);
        put_text(k, t, length);
        t += length;
        w += length + 1;
    }
}

static const char *put_rules(const rule_file *r) {
    const char *path = kit_str("%s/rules", kit_tmpdir());
    msgpack_sbuffer b;
    msgpack_packer k;
    size_t count = 0;
    msgpack_sbuffer_init(&b);
    msgpack_packer_init(&k, &b, msgpack_sbuffer_write);
    msgpack_pack_map(&k, 8);
    put_text(&k, "vocab", 5);
    msgpack_pack_bin(&k, 3);
    msgpack_pack_bin_body(&k, "\0\1\2", 3);
    put_pattern(&k, "prefix_search", r->prefix);
    put_pattern(&k, "suffix_search", r->suffix);
    put_pattern(&k, "infix_finditer", r->infix);
    put_pattern(&k, "token_match", r->token_match);
    put_pattern(&k, "url_match", r->url_match);
    put_text(&k, "faster_heuristics", 17);
    r->faster ? msgpack_pack_true(&k) : msgpack_pack_false(&k);
    put_text(&k, "exceptions", 10);
    for (const char *p = r->exceptions; *p; p++) count += *p == ' ';
    msgpack_pack_map(&k, count);
    for (const char *p = r->exceptions; count > 0; count--) {
        size_t n = strcspn(p, " ");
        put_exception(&k, p, n);
        p += n + 1;
    }
    kit_write(path, b.data, b.size);
    msgpack_sbuffer_destroy(&b);
    return path;
}

static bti_tokenizer *open_small(void) {
    bti_tokenizer *t;
    kit_ok(open_rules(put_rules(&small), &t));
    return t;
}

static bt_status join_token(void *user, const char *token, size_t bytes, int32_t id) {
    char *to = user;
    size_t n = strlen(to);
    (void)id;
    ck_assert_uint_lt(n + bytes, 60000);
    sprintf(to + n, "%s%.*s", n ? "|" : "", (int)bytes, token);
    return BT_OK;
}

static const char *tokens_of(const bti_tokenizer *t, const char *text) {
    static char out[60001];
    out[0] = 0;
    kit_ok(bti_tokenizer_tokens(t, text, strlen(text), join_token, out));
    return out;
}

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
    bti_tokenizer *t = open_small();
    for (int again = 0; again < 2; again++) /* the second time from what was kept */
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            ck_assert_msg(strcmp(tokens_of(t, rows[i][0]), rows[i][1]) == 0, "%s: %s, not %s",
                          rows[i][0], tokens_of(t, rows[i][0]), rows[i][1]);
    bti_tokenizer_free(t);
}
END_TEST

/* No patterns at all, and patterns that match elsewhere than at the ends. */
START_TEST(rules_that_are_odd) {
    bti_tokenizer *t;
    kit_ok(open_rules(put_rules(&(rule_file){.exceptions = "a_b ", .faster = 0}), &t));
    ck_assert_str_eq(tokens_of(t, "ab (ab) c"), "a|b|(ab)|c");
    bti_tokenizer_free(t);
    /* spaCy takes as many characters as matched, off the ends. */
    kit_ok(open_rules(
        put_rules(&(rule_file){
            .prefix = "\xC3\xA4\xC3\xB6", .suffix = "x", .infix = "|-", .exceptions = ""}),
        &t));
    ck_assert_str_eq(tokens_of(t, "q\xE2\x82\xAC\xC3\xA4\xC3\xB6z"),
                     "q\xE2\x82\xAC|\xC3\xA4\xC3\xB6|z");
    ck_assert_str_eq(tokens_of(t, "xa\xC3\xA4"), "x|a|\xC3\xA4");
    ck_assert_str_eq(tokens_of(t, "a-b"), "a|-|b");
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(odd_input) {
    bti_tokenizer *t = open_small();
    char *word = malloc(40001);
    memset(word, 'a', 10000);
    word[10000] = 0;
    ck_assert_str_eq(tokens_of(t, word), word);
    for (int i = 0; i < 10000; i++) word[i] = "-a"[i % 2];
    ck_assert_uint_eq(strlen(tokens_of(t, word)), 10000 + 9998);
    memset(word, '!', 10000);
    ck_assert_uint_eq(strlen(tokens_of(t, word)), 19999);
    for (int i = 0; i < 10000; i++) memcpy(word + 4 * i, "\xF0\x9F\x98\x80", 5);
    ck_assert_str_eq(tokens_of(t, word), word);
    free(word);
    bti_ids ids = {0};
    kit_ok(bti_tokenizer_encode(t, "a\0b c", 5, &ids)); /* a 00 is a character like others */
    ck_assert_int_eq(ids.count, 2);
    kit_fails(bti_tokenizer_encode(t, "ab\xC3 c", 5, &ids), BT_EINPUT, "byte 3 of the text");
    bti_ids_free(&ids);
    bti_tokenizer_free(t);
}
END_TEST

/* More different words than are kept. */
START_TEST(many_different_words) {
    bti_tokenizer *t = open_small();
    int wrong = 0;
    for (int i = 0; i < 140000; i++) {
        char word[32], want[32];
        sprintf(word, "(w%d", i % 70000);
        sprintf(want, "(|w%d", i % 70000);
        wrong += strcmp(tokens_of(t, word), want) != 0;
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
    bti_tokenizer *t = open_small();
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

/* ---- the vocabulary -------------------------------------------------------------------------- */

static bti_tokenizer_config trained(const char *rules, const char *text) {
    const char *file = kit_str("%s/text", kit_tmpdir());
    bti_tokenizer_config cfg = {.kind = BTI_TOKENIZER_SPACY,
                                .model = (char *)(uintptr_t)rules,
                                .size = 1000,
                                .min_count = 1};
    kit_write_text(file, text);
    kit_ok(bti_tokenizer_train(&cfg, &file, 1));
    return cfg;
}

START_TEST(vocabulary) {
    const char *rules = put_rules(&small), *words = kit_str("%s.words", rules);
    bti_tokenizer *t, *u;
    kit_fails(toy_open(BTI_TOKENIZER_SPACY, rules, &t), BT_EINPUT, "rules.words: No such file");
    bti_tokenizer_config cfg = trained(rules, "(a b), a\r\na don't  x\n");
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
    rule_file changed = small;
    changed.url_match = NULL;
    cfg.model = (char *)(uintptr_t)put_rules(&changed);
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
    const char *rules = put_rules(&small);
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
    check_back(put_rules(&small), lines, sizeof lines / sizeof lines[0]);
    bti_tokenizer_config cfg = trained(put_rules(&small), "a ( ) \xE2\x80\xA8 b\n");
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

/* ---- files at fault -------------------------------------------------------------------------- */

START_TEST(files_at_fault) {
    const char *path = put_rules(&small);
    size_t n;
    char *whole = kit_read(path, &n);
    bti_tokenizer *t;
    for (size_t cut = 0; cut < n; cut += cut < 60 ? 1 : 7) {
        kit_write(path, whole, cut);
        kit_fails(open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser that spaCy saved");
    }
    char *flipped = malloc(n + 1);
    for (size_t i = 0; i < n; i++) { /* each byte: a message or a tokeniser, never a crash */
        memcpy(flipped, whole, n);
        flipped[i] = (char)(flipped[i] ^ (1 << i % 8));
        kit_write(path, flipped, n);
        bt_status s = open_rules(path, &t);
        ck_assert_msg(s == BT_OK || (s == BT_EINPUT && strstr(bt_last_error(), "rules: ")), "%s",
                      bt_last_error());
        if (s == BT_OK) bti_tokenizer_free(t);
    }
    memcpy(flipped, whole, n);
    flipped[n] = 0;
    kit_write(path, flipped, n + 1); /* something behind it */
    kit_fails(open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser");
    free(flipped);
    free(whole);
    kit_write(path, "\x81\xA1x\xDF\xFF\xFF\xFF\xFF", 8); /* 2^32 - 1 members */
    kit_fails(open_rules(path, &t), BT_EINPUT, "rules: not a tokeniser");
    kit_fails(open_rules(kit_str("%s/none", kit_tmpdir()), &t), BT_EINPUT, "none: No such file");
    rule_file bad = small;
    bad.suffix = "a(?x)";
    kit_fails(open_rules(put_rules(&bad), &t), BT_EINPUT, "rules: suffix_search: byte ");
    bad = small;
    bad.exceptions = "ab ab ";
    kit_fails(open_rules(put_rules(&bad), &t), BT_EINPUT, "an exception that comes twice");
    bad.exceptions = "ab a__b ";
    kit_fails(open_rules(put_rules(&bad), &t), BT_EINPUT, "not a tokeniser");
}
END_TEST

/* Each failed request for memory is an error and leaks nothing (sanitizers look). */
START_TEST(memory_runs_out) {
    static const char line[] = "(a), well-known (c) don't New York...";
    bti_tokenizer_config cfg = trained(put_rules(&small), line);
    bt_status s = BT_ENOMEM;
    for (uint64_t n = 1; s != BT_OK; n++) {
        bti_tokenizer *t = NULL;
        bti_ids ids = {0};
        char *text = NULL;
        bti_alloc_fail_at(n);
        s = bti_tokenizer_open(&cfg, &t);
        if (s == BT_OK) s = bti_tokenizer_encode(t, line, strlen(line), &ids);
        if (s == BT_OK) s = bti_tokenizer_decode(t, ids.id, ids.count, &text);
        bti_alloc_fail_at(0);
        ck_assert_msg(s == BT_OK || s == BT_ENOMEM, "request %d: %s", (int)n, bt_last_error());
        bti_free(text);
        bti_ids_free(&ids);
        bti_tokenizer_free(t);
        ck_assert_uint_lt(n, 10000);
    }
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, golden_de);
    tcase_add_test(tc, golden_en);
    tcase_add_test(tc, patterns_as_python_has_them);
    tcase_add_test(tc, patterns_refused);
    tcase_add_test(tc, large_patterns_are_split);
    tcase_add_test(tc, rules_of_a_small_tokeniser);
    tcase_add_test(tc, rules_that_are_odd);
    tcase_add_test(tc, odd_input);
    tcase_add_test(tc, many_different_words);
    tcase_add_test(tc, several_threads);
    tcase_add_test(tc, vocabulary);
    tcase_add_test(tc, trained_model_stands_alone);
    tcase_add_test(tc, text_of_small_tokens);
    tcase_add_test(tc, text_back_de);
    tcase_add_test(tc, text_back_en);
    tcase_add_test(tc, files_at_fault);
    tcase_add_test(tc, memory_runs_out);
}

#endif

int main(int argc, char **argv) { return kit_main("spacy", add, argc, argv); }
