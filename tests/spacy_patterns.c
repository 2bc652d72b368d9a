/* Patterns of Python in PCRE2. */
#include "tests/kit.h"
#include "tests/spacy_parts.h"

#include "core/data/spacy.h"

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

void add_spacy_patterns(TCase *tc) {
    tcase_add_test(tc, patterns_as_python_has_them);
    tcase_add_test(tc, patterns_refused);
    tcase_add_test(tc, large_patterns_are_split);
}
