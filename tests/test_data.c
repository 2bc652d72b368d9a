/* Parallel text to updates: corpus, its cache, batcher. */
#include "tests/kit.h"
#include "tests/toy.h"

#include "core/base/files.h"
#include "core/data/batcher.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- corpus: cases --------------------------------------------------------------------------- */

START_TEST(d1_only_0a_ends_a_line) {
    static const char *const odd[] = {"\xE2\x80\xA8", "\xE2\x80\xA9", "\xC2\x85", "\v",
                                      "\f",           "\x1C",         "\x1D",     "\x1E"};
    char source[512] = "", target[512] = "";
    for (int i = 0; i < 8; i++) {
        sprintf(source + strlen(source), "bake%slimo\n", odd[i]);
        sprintf(target + strlen(target), "%s\n", toy_word((uint32_t)i, 1));
    }
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, source, target);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), 8);
    ck_assert_int_eq(bti_corpus_get_stats(c)->lines, 8);
    for (int i = 0; i < 8; i++) {
        toy_check_side(c, i, 0, kit_str("bake%slimo", odd[i]));
        toy_check_side(c, i, 1, toy_word((uint32_t)i, 1));
        ck_assert_int_eq(bti_corpus_line(c, i), i + 1);
    }
    bti_corpus_free(c);
}
END_TEST

static char *crlf(const char *text) {
    char *s = malloc(2 * strlen(text) + 1), *p = s;
    for (; *text; text++) {
        if (*text == '\n') *p++ = '\r';
        *p++ = *text;
    }
    *p = 0;
    return s;
}

START_TEST(d2_windows_line_ends) {
    char *text[2] = {toy_text(40, 0), toy_text(40, 1)}, *dos[2] = {crlf(text[0]), crlf(text[1])};
    toy_place p[3];
    bti_corpus *c[3];
    for (int i = 0; i < 3; i++) {
        toy_place_init(&p[i], i > 0 ? dos[0] : text[0], i > 1 ? dos[1] : text[1]);
        toy_log[0] = 0;
        bt_set_log(toy_keep_log, NULL);
        kit_ok(toy_place_open(&p[i], &c[i]));
        bt_set_log(NULL, NULL);
        ck_assert_int_eq(toy_count(toy_log, "CRLF in "), i);
        for (int side = 0; side < i; side++)
            ck_assert_int_eq(toy_count(toy_log, kit_str("CRLF in %s", p[i].path[side])), 1);
    }
    toy_check_same(c[0], c[1]);
    toy_check_same(c[0], c[2]);
    for (int i = 0; i < 3; i++) bti_corpus_free(c[i]);
    for (int i = 0; i < 2; i++) free(text[i]), free(dos[i]);
}
END_TEST

START_TEST(d4_nul_bytes) {
    static const char source[] = "ba\ngood\0morning\nke\n\0\nli\n";
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, NULL, "a\nb\nc\nd\ne\n");
    toy_put(&p, 0, source, sizeof source - 1);
    kit_fails(bti_corpus_check(&p.cfg), BT_EINPUT,
              "train.de: line 2, byte 5 (offset 7 in the text): a 00 byte; such lines in all: 2");
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de: line 2, byte 5");
    ck_assert(!bti_file_exists(p.cache));
    toy_put(&p, 0, "a\nb\nc\nd\ne\n\0", 11);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "line 6, byte 1 (offset 10");
    toy_put(&p, 0, "a\n\0\xFF\n\xFF\nd\0\0\ne\n", 13);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "lines in all: 2, and 2 are not UTF-8");
}
END_TEST

START_TEST(d5_not_utf8) {
    static const char *const bad[] = {"\xE9",         "\xC3\x28",         "\xC0\xAF",
                                      "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82"};
    toy_place p;
    bti_corpus *c;
    for (int i = 0; i < 6; i++) {
        char source[256] = "";
        int last = i == 5; /* cut off by the end of the file */
        for (int l = 1; l <= (last ? 6 : 10); l++)
            sprintf(source + strlen(source), "%s%s%s", toy_word((uint32_t)l, 0),
                    l == 6 ? bad[i] : "", l == 6 && last ? "" : "\n");
        toy_place_init(&p, source, last ? "a\na\na\na\na\na\n" : "a\na\na\na\na\na\na\na\na\na\n");
        size_t at = (size_t)(strstr(source, bad[i]) - source);
        kit_fails(
            toy_place_open(&p, &c), BT_EINPUT,
            kit_str("train.de: line 6, byte %zu (offset %zu in the text): not UTF-8; such lines "
                    "in all: 1",
                    strlen(toy_word(6, 0)) + 1, at));
        ck_assert(!bti_file_exists(p.cache));
    }
    toy_put(&p, 0, "a\n\xFF\n\xFF\xFE\nd\n", 9);
    toy_put(&p, 1, "a\nb\nc\nd\n", 8);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT,
              "line 2, byte 1 (offset 2 in the text): not UTF-8; such lines in all: 2");
    toy_put(&p, 0, "a\n\xFF\nc\0\nd\n", 9);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "lines in all: 1, and 1 hold a 00 byte");
}
END_TEST

START_TEST(d6_empty_lines) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "ba\nke\n\nmo\nnu\nsa\nte\nri\nba\nke\n",
                   "am\nost\nieb\nund\nrein\nok\n \t\nach\nam\nost\n");
    kit_ok(toy_place_open(&p, &c));
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    ck_assert(s->lines == 10 && s->empty == 2 && s->first_empty_line == 3);
    ck_assert_int_eq(bti_corpus_count(c), 8);
    toy_check_side(c, 2, 0, "mo");
    toy_check_side(c, 2, 1, "und");
    ck_assert_int_eq(bti_corpus_line(c, 2), 4);
    toy_check_side(c, 5, 0, "ri");
    toy_check_side(c, 5, 1, "ach");
    bti_corpus_free(c);
    /* Text that is nothing to the tokeniser counts as empty too. */
    toy_put(&p, 0, "ba\n\xE2\x80\x8B\xE3\x80\x80\n", 9);
    toy_put(&p, 1, "ba\nke\n", 6);
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->empty == 1 && s->first_empty_line == 2 && bti_corpus_count(c) == 1);
    bti_corpus_free(c);
    toy_put(&p, 1, "ba\n\xE2\x80\x8B\n", 7);
    toy_put(&p, 0, "ba\nke\n", 6);
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->empty == 1 && s->first_empty_line == 2 && bti_corpus_count(c) == 1);
    bti_corpus_free(c);
    toy_put(&p, 0, "\n\n", 2);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT,
              "no pair of lines to use: 2 lines, 2 with an empty side");
    toy_put(&p, 0, "", 0);
    toy_put(&p, 1, "", 0);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "no pair of lines to use: 0 lines");
}
END_TEST

START_TEST(d8_line_counts) {
    char *text[2] = {toy_text(1000, 0), toy_text(999, 1)};
    toy_place p;
    bti_corpus *c, *d;
    toy_place_init(&p, text[0], text[1]);
    kit_fails(bti_corpus_check(&p.cfg), BT_EINPUT, "train.de has 1000 lines, ");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "train.en has 999: "));
    ck_assert_ptr_null(strstr(bt_last_error(), "is empty"));
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "1000");
    ck_assert(!bti_file_exists(p.cache));
    free(text[0]);
    free(text[1]);

    toy_put(&p, 0, "ba\nke\nli\n\n", 10);
    toy_put(&p, 1, "a\nb\nc\n", 6);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de has 4 lines");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "the last line of "));
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "train.de is empty"));
    toy_put(&p, 1, "a\nb\nc\n\nd\n\n", 10);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en is empty");

    toy_put(&p, 1, "a\nb\nc\n", 6);
    toy_put(&p, 0, "ba\nke\nli", 8);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), 3);
    toy_put(&p, 0, "ba\nke\nli\n", 9);
    kit_ok(toy_place_open(&p, &d));
    toy_check_same(c, d);
    bti_corpus_free(c);
    bti_corpus_free(d);

    char *three[3] = {p.path[0], p.path[0], p.path[0]};
    p.cfg.source = (bti_files){three, 3};
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "3 source files, 1 target files");
    p.cfg.source = p.cfg.target = (bti_files){NULL, 0};
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "0 source files");
}
END_TEST

START_TEST(overlong_pairs) {
    static const char source[] = "ba\nba ke li mo nu sa\nke\nli\n",
                      target[] = "a\nb\nc\na b c d e f g\n";
    toy_place p;
    bti_corpus *c;
    int64_t n;
    toy_place_init(&p, source, target);
    p.cfg.max_length = 4;
    kit_ok(toy_place_open(&p, &c));
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    ck_assert(s->overlong == 2 && s->first_overlong_line == 2 && bti_corpus_count(c) == 4);
    ck_assert(s->max_source == 4 && s->max_target == 4);
    const int32_t *ids = bti_corpus_source(c, 1, &n);
    ck_assert(n == 4 && ids[3] == 2 && ids[2] != 2);
    bti_corpus_free(c);

    p.cfg.overlong = BTI_OVERLONG_SKIP;
    kit_ok(toy_place_open(&p, &c));
    s = bti_corpus_get_stats(c);
    ck_assert(s->overlong == 2 && s->first_overlong_line == 2 && bti_corpus_count(c) == 2);
    ck_assert(bti_corpus_line(c, 0) == 1 && bti_corpus_line(c, 1) == 3);
    toy_check_side(c, 1, 0, "ke");
    toy_check_side(c, 1, 1, "c");
    bti_corpus_free(c);
    ck_assert_int_eq(toy_entries(p.cache, "tokens-"), 2);

    p.cfg.overlong = BTI_OVERLONG_ERROR;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.de: line 2 has ");
    toy_put(&p, 0, "ba\nke\nke\nli\n", 12);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en: line 4 has ");
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "data.max_length is 4"));
    ck_assert_int_eq(toy_entries(p.cache, ""), 2);
    p.cfg.max_length = 1;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "at least 2");
}
END_TEST

/* Exactly max_length fits. */
START_TEST(overlong_boundary) {
    toy_place p;
    bti_corpus *c;
    int64_t n;
    toy_place_init(&p, "ba ke li mo\n", "am\n");
    kit_ok(toy_place_open(&p, &c));
    bti_corpus_source(c, 0, &n);
    bti_corpus_free(c);
    ck_assert_int_gt(n, 3);
    p.cfg.overlong = BTI_OVERLONG_ERROR;
    p.cfg.max_length = n;
    kit_ok(toy_place_open(&p, &c));
    bti_corpus_free(c);
    p.cfg.max_length = n - 1;
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, kit_str("line 1 has %d tokens", (int)n));
}
END_TEST

/* ---- corpus: order, files, statistics -------------------------------------------------------- */

/* Many blocks on all cores: every pair is in its place. */
START_TEST(corpus_keeps_order) {
    enum { LINES = 5000 };
    char *text[2] = {toy_text(LINES, 0), toy_text(LINES, 1)};
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_count(c), LINES);
    bti_tokenizer *t = toy_tokenizer();
    const bti_corpus_stats *s = bti_corpus_get_stats(c);
    int64_t sum[2] = {0}, most[2] = {0}, longest = 0, longest_at = 0;
    int bad = 0;
    char *at[2] = {text[0], text[1]};
    bti_ids want = {0};
    for (int64_t i = 0; i < LINES; i++) {
        int64_t both = 0;
        for (int side = 0; side < 2; side++) {
            int64_t n;
            const int32_t *ids = side ? bti_corpus_target(c, i, &n) : bti_corpus_source(c, i, &n);
            size_t length = strcspn(at[side], "\n");
            want.count = 0;
            bti_tokenizer_encode(t, at[side], length, &want);
            bti_ids_push(&want, 2);
            bad += n != want.count || memcmp(ids, want.id, (size_t)n * 4) != 0;
            at[side] += length + 1;
            sum[side] += n;
            both += n;
            if (n > most[side]) most[side] = n;
        }
        bad += bti_corpus_line(c, i) != i + 1;
        if (both > longest) longest = both, longest_at = i;
    }
    ck_assert_int_eq(bad, 0);
    ck_assert(s->source_ids == sum[0] && s->target_ids == sum[1]);
    ck_assert(s->max_source == most[0] && s->max_target == most[1]);
    ck_assert(s->longest == longest_at && s->longest_line == longest_at + 1);
    bti_ids_free(&want);
    bti_tokenizer_free(t);
    bti_corpus_free(c);
    free(text[0]);
    free(text[1]);
}
END_TEST

START_TEST(corpus_of_several_files) {
    char *text[2] = {toy_text(700, 0), toy_text(700, 1)};
    toy_place p, q;
    bti_corpus *one, *three;
    toy_place_init(&p, text[0], text[1]);
    toy_place_init(&q, NULL, NULL);
    char *path[2][3];
    for (int side = 0; side < 2; side++) {
        char *cut[4] = {text[side]};
        for (int i = 1, lines[] = {0, 3, 513}; i < 3; i++) {
            cut[i] = cut[i - 1];
            for (int l = 0; l < lines[i]; l++) cut[i] = strchr(cut[i], '\n') + 1;
        }
        cut[3] = text[side] + strlen(text[side]);
        for (int i = 0; i < 3; i++) {
            path[side][i] = (char *)(uintptr_t)kit_str("%s/%d.%d", q.dir, side, i);
            if (i == 1)
                toy_write_gz(path[side][i], "wb", cut[i], (size_t)(cut[i + 1] - cut[i]));
            else
                kit_write(path[side][i], cut[i], (size_t)(cut[i + 1] - cut[i]));
        }
    }
    q.cfg.source = (bti_files){path[0], 3};
    q.cfg.target = (bti_files){path[1], 3};
    kit_ok(toy_place_open(&p, &one));
    kit_ok(toy_place_open(&q, &three));
    toy_check_same(one, three);
    ck_assert_int_eq(bti_corpus_line(three, 699), 700);
    ck_assert(memcmp(bti_corpus_get_stats(one), bti_corpus_get_stats(three),
                     sizeof(bti_corpus_stats)) == 0);
    bti_corpus_free(one);
    bti_corpus_free(three);
    /* Counts are compared file by file, and lines are counted in their file. */
    kit_write_text(path[1][1], "x\ny\n");
    kit_fails(toy_place_open(&q, &one), BT_EINPUT, "0.1 has 513 lines");
    kit_write_text(path[0][1], "x\nba ke li mo\n");
    q.cfg.max_length = 4;
    q.cfg.overlong = BTI_OVERLONG_ERROR;
    kit_write_text(path[0][0], "x\nx\nx\n");
    kit_write_text(path[1][0], "x\nx\nx\n");
    kit_fails(toy_place_open(&q, &one), BT_EINPUT, "0.1: line 2 has");
    free(text[0]);
    free(text[1]);
}
END_TEST

/* E1's count: exact. */
START_TEST(corpus_counts_unknowns) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "ba \xD0\x96 ke\n\xD0\x96\n", "am\nam\n");
    kit_ok(toy_place_open(&p, &c));
    ck_assert_int_eq(bti_corpus_get_stats(c)->source_unknown, 2);
    ck_assert_int_eq(bti_corpus_get_stats(c)->target_unknown, 0);
    bti_corpus_free(c);
}
END_TEST

START_TEST(corpus_missing_files) {
    toy_place p;
    bti_corpus *c;
    toy_place_init(&p, "a\n", NULL);
    kit_fails(toy_place_open(&p, &c), BT_EINPUT, "train.en: No such file");
    kit_fails(bti_corpus_check(&p.cfg), BT_EINPUT, "train.en: No such file");
    toy_put(&p, 1, "a\n", 2);
    kit_write_text(p.cache, "a file where the folder should be");
    kit_fails(toy_place_open(&p, &c), BT_EIO, "a file of that name");
}
END_TEST

/* ---- corpus: cache --------------------------------------------------------------------------- */

static const char *cache_file(const toy_place *p) {
    DIR *d = opendir(p->cache);
    const char *path = NULL;
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "tokens-", 7) == 0) path = kit_str("%s/%s", p->cache, e->d_name);
    closedir(d);
    ck_assert_ptr_nonnull(path);
    return path;
}

static ino_t inode(const char *path) {
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_ino;
}

START_TEST(cache_is_used) {
    char *text[2] = {toy_text(600, 0), toy_text(600, 1)};
    toy_place p;
    bti_corpus *first, *second;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &first));
    const char *file = cache_file(&p);
    ino_t made = inode(file);
    kit_ok(toy_place_open(&p, &second));
    ck_assert_uint_eq(inode(file), made);
    toy_check_same(first, second);
    ck_assert(memcmp(bti_corpus_get_stats(first), bti_corpus_get_stats(second),
                     sizeof(bti_corpus_stats)) == 0);
    bti_corpus_free(second);
    /* Another text, setting or tokeniser is another cache. */
    p.cfg.max_length = 63;
    kit_ok(toy_place_open(&p, &second));
    bti_corpus_free(second);
    ck_assert_int_eq(toy_entries(p.cache, "tokens-"), 2);
    text[0][0] = 'x';
    toy_put(&p, 0, text[0], strlen(text[0]));
    kit_ok(toy_place_open(&p, &second));
    ck_assert_uint_ne(bti_corpus_checksum(first), bti_corpus_checksum(second));
    bti_corpus_free(second);
    ck_assert_int_eq(toy_entries(p.cache, "tokens-"), 3);
    toy_proto hand;
    toy_start_model(&hand, 1);
    toy_add_piece(&hand, "a", -1, TOY_NORMAL);
    bti_tokenizer *t = toy_tokenizer(), *u;
    kit_ok(toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_save_model(&hand, p.dir), &u));
    kit_ok(bti_corpus_open(&p.cfg, t, u, p.cache, &second));
    bti_corpus_free(second);
    kit_ok(bti_corpus_open(&p.cfg, u, t, p.cache, &second));
    bti_corpus_free(second);
    ck_assert_int_eq(toy_entries(p.cache, "tokens-"), 5);
    ck_assert_int_eq(toy_entries(p.cache, ""), 5);
    bti_tokenizer_free(t);
    bti_tokenizer_free(u);
    bti_corpus_free(first);
    free(text[0]);
    free(text[1]);
}
END_TEST

/* C1 for the cache: cut or with a bit flipped, it is made anew, with the same bytes. Blank lines
 * leave unused room in it, which is no part of what is checked. */
START_TEST(cache_damage_is_repaired) {
    toy_place p;
    bti_corpus *c, *whole;
    toy_place_init(&p, "ba\nke li\nmo\n", "am\nost\nund rein\n");
    kit_ok(toy_place_open(&p, &whole));
    const char *file = cache_file(&p);
    size_t n, m;
    char *good = kit_read(file, &n), *now;
    for (size_t i = 0; i < n + 12; i += i < n - 3 ? 3 : 1) {
        char *bad = malloc(n + 1);
        memcpy(bad, good, n);
        bad[n] = 0;
        if (i < n) bad[i] ^= (char)(1 << i % 8);
        size_t cut = i < n ? n : i == n ? n + 1 : (i - n) * n / 12;
        unlink(file);
        kit_write(file, bad, cut);
        free(bad);
        ino_t damaged = inode(file);
        kit_ok(toy_place_open(&p, &c));
        ck_assert_msg(inode(file) != damaged, "damage %zu was not seen", i);
        toy_check_same(whole, c);
        bti_corpus_free(c);
        now = kit_read(file, &m);
        ck_assert(m == n && memcmp(now, good, n) == 0);
        free(now);
    }
    ck_assert_int_eq(toy_entries(p.cache, ""), 1);
    bti_corpus_free(whole);
    free(good);
}
END_TEST

static bti_tokenizer *walk_tokenizer;
static bt_status open_place(const toy_place *p) {
    bti_corpus *c;
    BT_TRY(bti_corpus_open(&p->cfg, walk_tokenizer, walk_tokenizer, p->cache, &c));
    bti_corpus_free(c);
    return BT_OK;
}

static void check_nothing_left(const toy_place *p, int fds) {
    ck_assert_int_eq(toy_open_files(), fds);
    ck_assert_int_eq(toy_entries(p->cache, ""), 0);
}

START_TEST(corpus_without_memory) {
    char *text[2] = {toy_text(1500, 0), toy_text(1500, 1)};
    toy_place p;
    toy_place_init(&p, text[0], text[1]);
    walk_tokenizer = toy_tokenizer();
    int fds = toy_open_files(), failed = 0;
    for (uint64_t n = 1, ok = 0; !ok; n++) {
        bti_alloc_fail_at(n);
        bt_status s = open_place(&p);
        bti_alloc_fail_at(0);
        ok = s == BT_OK;
        failed += !ok;
        if (ok) break;
        ck_assert_msg(s == BT_ENOMEM, "request %d: %s", (int)n, bt_last_error());
        ck_assert_ptr_nonnull(strstr(bt_last_error(), "host memory"));
        check_nothing_left(&p, fds);
    }
    ck_assert_int_gt(failed, 20);
    /* With a cache, and the tokeniser's own. */
    failed = 0;
    for (uint64_t n = 1, ok = 0; !ok; n++, failed++) {
        bti_tokenizer *t;
        bti_alloc_fail_at(n);
        bt_status s = toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_model(), &t);
        if (s == BT_OK) {
            bti_tokenizer_free(t);
            s = open_place(&p);
        }
        bti_alloc_fail_at(0);
        ok = s == BT_OK;
        ck_assert(ok || s == BT_ENOMEM);
        ck_assert_int_eq(toy_open_files(), fds);
        ck_assert_int_eq(toy_entries(p.cache, ""), 1);
    }
    ck_assert_int_gt(failed, 2);
    bti_tokenizer_free(walk_tokenizer);
    free(text[0]);
    free(text[1]);
}
END_TEST

/* A full disk; nothing may be asserted meanwhile, as Check keeps its messages in a file. */
START_TEST(corpus_full_disk) {
    char *text[2] = {toy_text(1500, 0), toy_text(1500, 1)};
    toy_place p;
    toy_place_init(&p, text[0], text[1]);
    walk_tokenizer = toy_tokenizer();
    int fds = toy_open_files();
    struct rlimit old, low;
    getrlimit(RLIMIT_FSIZE, &old);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 90000; limit += 20000) {
        low = old;
        low.rlim_cur = limit;
        setrlimit(RLIMIT_FSIZE, &low);
        bt_status s = open_place(&p);
        setrlimit(RLIMIT_FSIZE, &old);
        kit_fails(s, BT_EIO, "File too large");
        check_nothing_left(&p, fds);
    }
    signal(SIGXFSZ, handler);
    kit_ok(open_place(&p));
    bti_tokenizer_free(walk_tokenizer);
    free(text[0]);
    free(text[1]);
}
END_TEST

/* ---- batcher --------------------------------------------------------------------------------- */

static bti_corpus *batch_corpus(void) {
    char *text[2] = {toy_text(101, 0), toy_text(101, 1)};
    toy_place p;
    bti_corpus *c = NULL;
    toy_place_init(&p, text[0], text[1]);
    kit_ok(toy_place_open(&p, &c));
    free(text[0]);
    free(text[1]);
    return c;
}

static int64_t target_ids(const bti_corpus *c, const int64_t *pairs, int64_t count) {
    int64_t sum = 0, n;
    for (int64_t i = 0; i < count; i++) {
        bti_corpus_target(c, pairs[i], &n);
        sum += n;
    }
    return sum;
}

/* Every pair once an epoch; updates as large as they may be, and none larger. */
static void check_epochs(const bti_corpus *c, int64_t batch, bti_batch_unit unit) {
    bti_batcher *b;
    kit_ok(bti_batcher_new(c, batch, unit, 1, &b));
    int64_t total = bti_corpus_count(c), update = 1, count, epoch;
    const int64_t *pairs;
    for (int64_t e = 1; e <= 3; e++) {
        int seen[101] = {0};
        int64_t got = 0, last_sum = 0;
        for (; got < total; update++) {
            kit_ok(bti_batcher_get(b, update, &pairs, &count, &epoch));
            ck_assert(epoch == e && count >= 1);
            for (int64_t i = 0; i < count; i++) ck_assert_int_eq(seen[pairs[i]]++, 0);
            int64_t sum = target_ids(c, pairs, count);
            if (unit == BTI_BATCH_SENTENCES)
                ck_assert(count == batch || (count < batch && got + count == total));
            else
                ck_assert(sum <= batch || count == 1);
            if (unit == BTI_BATCH_TARGET_TOKENS && got > 0)
                ck_assert(last_sum + target_ids(c, pairs, 1) > batch);
            last_sum = sum;
            got += count;
        }
        ck_assert_int_eq(got, total);
        bti_batcher *other;
        kit_ok(bti_batcher_new(c, batch, unit, 1, &other));
        ck_assert_int_eq(bti_batcher_updates(other, e), update - 1);
        bti_batcher_free(other);
    }
    bti_batcher_free(b);
}

START_TEST(batcher_epochs) {
    bti_corpus *c = batch_corpus();
    ck_assert_int_eq(bti_corpus_count(c), 101);
    static const int64_t sizes[] = {1, 2, 7, 100, 101, 102, 1000000};
    for (int i = 0; i < 7; i++) {
        check_epochs(c, sizes[i], BTI_BATCH_SENTENCES);
        check_epochs(c, sizes[i], BTI_BATCH_TARGET_TOKENS);
    }
    bti_batcher *b;
    kit_fails(bti_batcher_new(c, 0, BTI_BATCH_SENTENCES, 1, &b), BT_EINPUT, "training.batch is 0");
    bti_corpus_free(c);
}
END_TEST

/* All pairs of updates `from` .. `to`, in order, into `out`. */
static int64_t collect(bti_batcher *b, int64_t from, int64_t to, int64_t *out) {
    int64_t n = 0, count, epoch;
    const int64_t *pairs;
    for (int64_t u = from; u <= to; u++) {
        kit_ok(bti_batcher_get(b, u, &pairs, &count, &epoch));
        out[n++] = -count;
        for (int64_t i = 0; i < count; i++) out[n++] = pairs[i];
    }
    return n;
}

START_TEST(batcher_seed_and_resume) {
    bti_corpus *c = batch_corpus();
    for (int unit = 0; unit < 2; unit++) {
        bti_batcher *a, *b, *d;
        int64_t x[2048], y[2048], z[2048];
        int64_t batch = unit ? 120 : 16;
        kit_ok(bti_batcher_new(c, batch, (bti_batch_unit)unit, 7, &a));
        kit_ok(bti_batcher_new(c, batch, (bti_batch_unit)unit, 7, &b));
        kit_ok(bti_batcher_new(c, batch, (bti_batch_unit)unit, 8, &d));
        int64_t n = collect(a, 1, 30, x), m = collect(b, 1, 30, y);
        ck_assert(n == m && memcmp(x, y, (size_t)n * 8) == 0);
        int64_t k = collect(d, 1, 30, z);
        ck_assert(k != n || memcmp(x, z, (size_t)n * 8) != 0);
        /* Any update straight away, backwards, and after a count of updates: as by going there. */
        int64_t at[32], next = 0;
        for (int u = 1; u <= 30; u++) at[u] = next, next += 1 - x[next];
        bti_batcher_free(b);
        for (int u = 30; u >= 1; u -= 3) {
            kit_ok(bti_batcher_new(c, batch, (bti_batch_unit)unit, 7, &b));
            m = collect(b, u, u, y);
            ck_assert(m == 1 - x[at[u]] && memcmp(x + at[u], y, (size_t)m * 8) == 0);
            bti_batcher_free(b);
            m = collect(a, u, u, y);
            ck_assert(m == 1 - x[at[u]] && memcmp(x + at[u], y, (size_t)m * 8) == 0);
            if (u % 2) bti_batcher_updates(a, 2);
        }
        bti_batcher_free(a);
        bti_batcher_free(d);
    }
    bti_corpus_free(c);
}
END_TEST

START_TEST(batcher_epochs_differ) {
    bti_corpus *c = batch_corpus();
    bti_batcher *b;
    int64_t x[256], y[256];
    kit_ok(bti_batcher_new(c, 101, BTI_BATCH_SENTENCES, 7, &b));
    ck_assert_int_eq(collect(b, 1, 1, x), collect(b, 2, 2, y));
    int same = 0, in_place = 0;
    for (int i = 1; i <= 101; i++) same += x[i] == y[i], in_place += x[i] == i - 1;
    ck_assert_int_lt(same, 8);
    ck_assert_int_lt(in_place, 8);
    bti_batcher_free(b);
    bti_corpus_free(c);
}
END_TEST

START_TEST(batcher_warm_steps_allocate_nothing) {
    bti_corpus *c = batch_corpus();
    for (int unit = 0; unit < 2; unit++) {
        bti_batcher *b;
        int64_t count, epoch = 0;
        const int64_t *pairs;
        kit_ok(bti_batcher_new(c, unit ? 50 : 4, (bti_batch_unit)unit, 1, &b));
        kit_ok(bti_batcher_get(b, 1, &pairs, &count, &epoch));
        uint64_t before = bti_alloc_count();
        for (int64_t u = 2; epoch < 4; u++) kit_ok(bti_batcher_get(b, u, &pairs, &count, &epoch));
        ck_assert_uint_eq(bti_alloc_count(), before);
        bti_batcher_free(b);
    }
    bti_corpus_free(c);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, d1_only_0a_ends_a_line);
    tcase_add_test(tc, d2_windows_line_ends);
    tcase_add_test(tc, d4_nul_bytes);
    tcase_add_test(tc, d5_not_utf8);
    tcase_add_test(tc, d6_empty_lines);
    tcase_add_test(tc, d8_line_counts);
    tcase_add_test(tc, overlong_pairs);
    tcase_add_test(tc, overlong_boundary);
    tcase_add_test(tc, corpus_keeps_order);
    tcase_add_test(tc, corpus_of_several_files);
    tcase_add_test(tc, corpus_counts_unknowns);
    tcase_add_test(tc, corpus_missing_files);
    tcase_add_test(tc, cache_is_used);
    tcase_add_test(tc, cache_damage_is_repaired);
    tcase_add_test(tc, corpus_without_memory);
    tcase_add_test(tc, corpus_full_disk);
    tcase_add_test(tc, batcher_epochs);
    tcase_add_test(tc, batcher_seed_and_resume);
    tcase_add_test(tc, batcher_epochs_differ);
    tcase_add_test(tc, batcher_warm_steps_allocate_nothing);
}

int main(int argc, char **argv) { return kit_main("data", add, argc, argv); }
