/* The token cache: used, repaired, and what a lack of memory or disk leaves. */
#include "tests/data_parts.h"
#include "tests/kit.h"

#include "core/base/files.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

void add_data_cache(TCase *tc) {
    tcase_add_test(tc, cache_is_used);
    tcase_add_test(tc, cache_damage_is_repaired);
    tcase_add_test(tc, corpus_without_memory);
    tcase_add_test(tc, corpus_full_disk);
}
