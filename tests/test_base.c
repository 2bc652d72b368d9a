/* dtype, Philox, status, files, safetensors. */
#include "tests/base_parts.h"

#include "core/base/dtype.h"
#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/philox.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

int base_entries_in(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

int base_open_files(void) { return base_entries_in("/proc/self/fd"); }

/* ---- dtype ----------------------------------------------------------------------------------- */

/* The definition of a small float, in double: sign, exponent, mantissa. */
static double slow_value(unsigned h, int exponent_bits, int mantissa_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(h >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double m = (double)(h & ((1u << mantissa_bits) - 1));
    double scale = ldexp(1, -mantissa_bits);
    double v = e ? ldexp(1 + m * scale, e - bias) : ldexp(m * scale, 1 - bias);
    return h >> (exponent_bits + mantissa_bits) ? -v : v;
}

START_TEST(f16_to_f32_every_value) {
    for (unsigned h = 0; h < 65536; h++) {
        float x = bti_f16_to_f32((uint16_t)h);
        unsigned e = h >> 10 & 31, m = h & 1023;
        if (e == 31 && m != 0) {
            ck_assert(isnan(x));
            ck_assert(isnan(bti_f16_to_f32(bti_f32_to_f16(x))));
        } else if (e == 31) {
            ck_assert(isinf(x) && !!signbit(x) == (int)(h >> 15));
        } else {
            ck_assert(x == slow_value(h, 5, 10) && !!signbit(x) == (int)(h >> 15));
        }
        if (!isnan(x)) ck_assert_uint_eq(bti_f32_to_f16(x), h);
    }
}
END_TEST

START_TEST(bf16_to_f32_every_value) {
    for (unsigned h = 0; h < 65536; h++) {
        float x = bti_bf16_to_f32((uint16_t)h);
        ck_assert_uint_eq(bits_of(x), h << 16);
        if (isnan(x))
            ck_assert(isnan(bti_bf16_to_f32(bti_f32_to_bf16(x))));
        else
            ck_assert_uint_eq(bti_f32_to_bf16(x), h);
    }
}
END_TEST

/* Rounding is monotone, so it is right everywhere when it is right on both sides of every boundary:
 * the middle between each two neighbours, and the floats next to it. */
static void check_rounding(uint16_t (*round_it)(float), int exponent_bits, int mantissa_bits) {
    unsigned top = ((1u << exponent_bits) - 1) << mantissa_bits; /* infinity */
    for (unsigned h = 0; h < top; h++) {
        double a = slow_value(h, exponent_bits, mantissa_bits);
        double b = h + 1 == top ? ldexp(1, 1 << (exponent_bits - 1))
                                : slow_value(h + 1, exponent_bits, mantissa_bits);
        double mid = (a + b) / 2;
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        uint32_t m = bits_of((float)mid);
        ck_assert_msg((double)float_of(m) == mid, "middle of %x is no float", h);
        ck_assert_uint_eq(round_it(float_of(m)), even);
        ck_assert_uint_eq(round_it(float_of(m - 1)), h);
        ck_assert_uint_eq(round_it(float_of(m + 1)), h + 1);
        ck_assert_uint_eq(round_it(-float_of(m)), even | 0x8000u);
        ck_assert_uint_eq(round_it(-float_of(m - 1)), h | 0x8000u);
        ck_assert_uint_eq(round_it(-float_of(m + 1)), (h + 1) | 0x8000u);
    }
    ck_assert_uint_eq(round_it(INFINITY), top);
    ck_assert_uint_eq(round_it(-INFINITY), top | 0x8000u);
}

START_TEST(f32_to_f16_every_boundary) {
    check_rounding(bti_f32_to_f16, 5, 10);
    ck_assert_uint_eq(bti_f32_to_f16(3.402823466e38f), 0x7C00);
    ck_assert_uint_eq(bti_f32_to_f16(float_of(1)), 0);
}
END_TEST

START_TEST(f32_to_bf16_every_boundary) { check_rounding(bti_f32_to_bf16, 8, 7); }
END_TEST

START_TEST(nan_stays_nan) {
    for (uint32_t m = 1; m < 0x800000; m += 97)
        for (uint32_t sign = 0; sign < 2; sign++) {
            float x = float_of(sign << 31 | 0x7F800000u | m);
            ck_assert(isnan(bti_f16_to_f32(bti_f32_to_f16(x))));
            ck_assert(isnan(bti_bf16_to_f32(bti_f32_to_bf16(x))));
        }
}
END_TEST

START_TEST(load_and_store) {
    uint64_t room[4];
    for (int t = 0; t < BT_DTYPE_COUNT; t++) {
        double least = t == BT_U8 ? 0 : -3;
        for (int i = 0; i < 4; i++) bti_store(room, (bt_dtype)t, i, 1.5 * i + least);
        for (int i = 0; i < 4; i++) {
            double want = 1.5 * i + least;
            if (!bti_dtype_is_float((bt_dtype)t)) want = trunc(want);
            ck_assert(bti_load(room, (bt_dtype)t, i) == want);
        }
    }
    ck_assert_uint_eq(bti_dtype_size(BT_BF16), 2);
    ck_assert_int_eq(bti_dtype_acc(BT_F64), BT_F64);
    ck_assert_int_eq(bti_dtype_acc(BT_F16), BT_F32);
}
END_TEST

/* Known answers published with Random123 (kat_vectors, philox4x32 10). */
START_TEST(philox_known_answers) {
    static const struct {
        uint32_t c[4], k[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        bt_philox4 r = bti_philox((uint64_t)kat[i].k[1] << 32 | kat[i].k[0], kat[i].c[0],
                                  kat[i].c[1], kat[i].c[2], kat[i].c[3]);
        for (int j = 0; j < 4; j++) ck_assert_uint_eq(r.v[j], kat[i].want[j]);
    }
}
END_TEST

/* ---- status ---------------------------------------------------------------------------------- */

START_TEST(errors_and_allocation) {
    ck_assert_int_eq(bti_fail(BT_EINPUT, "line %d", 7), BT_EINPUT);
    ck_assert_int_eq(bti_fail_prefix(BT_EINPUT, "%s", "f.txt"), BT_EINPUT);
    ck_assert_str_eq(bt_last_error(), "f.txt: line 7");
    ck_assert_int_eq(bti_fail(BT_EIO, "again: %s", bt_last_error()), BT_EIO);
    ck_assert_str_eq(bt_last_error(), "again: f.txt: line 7");

    uint64_t before = bti_alloc_count();
    void *p = bti_alloc(0, 8), *q = bti_alloc(SIZE_MAX / 4, 8);
    ck_assert(p != NULL && q == NULL);
    ck_assert_uint_eq(bti_alloc_count() - before, 2);
    bti_free(p);
    bti_alloc_fail_at(2);
    char *a = bti_strdup("a"), *b = bti_format("%d", 1), *c = bti_format("%d", 1);
    ck_assert(a != NULL && b == NULL && c != NULL);
    bti_alloc_fail_at(0);
    bti_free(a);
    bti_free(c);
}
END_TEST

/* ---- files ----------------------------------------------------------------------------------- */

static void check_path(char *got, const char *want) {
    ck_assert_str_eq(got, want);
    bti_free(got);
}

START_TEST(json) {
    const char *path = kit_str("%s/x.json", kit_tmpdir());
    char *text;
    kit_ok(bti_json_take(
        json_pack("[f, o, o]", 0.5, bti_json_number((double)NAN), bti_json_number(1.25)), 0,
        &text));
    ck_assert_str_eq(text, "[0.5, null, 1.25]");
    bti_free(text);
    if (kit_comma_begin()) {
        json_t *root = bti_json_read("[2.75]", 6);
        ck_assert(json_real_value(json_array_get(root, 0)) == 2.75);
        bt_status s = bti_json_take(root, 0, &text);
        kit_comma_end();
        kit_ok(s);
        ck_assert_str_eq(text, "[2.75]");
        bti_free(text);
    }
    kit_ok(bti_json_write(json_pack("{s:i}", "a", 1), path));
    text = kit_read(path, NULL);
    ck_assert_str_eq(text, "{\n  \"a\": 1\n}");
    free(text);
    ck_assert_ptr_null(bti_json_read("{", 1));
    kit_fails(bti_json_take(NULL, 0, &text), BT_ENOMEM, "JSON");
    kit_fails(bti_json_write(NULL, path), BT_ENOMEM, "JSON");
}
END_TEST

START_TEST(paths) {
    check_path(bti_path_join("a/b", "c"), "a/b/c");
    check_path(bti_path_join("a/", "c"), "a/c");
    check_path(bti_path_join("/", "c"), "/c");
    check_path(bti_path_join("", "c"), "c");
    check_path(bti_path_join("a", "/c"), "/c");
    check_path(bti_path_dir("a/b/c"), "a/b");
    check_path(bti_path_dir("c"), ".");
    check_path(bti_path_dir("/c"), "/");
}
END_TEST

START_TEST(files_round_trip) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/x/y/z/f", dir);
    kit_ok(bti_dir_make(kit_str("%s/x/y/z", dir)));
    kit_ok(bti_dir_make(kit_str("%s/x//y/z/", dir)));
    ck_assert(!bti_file_exists(path));
    size_t sizes[] = {0, 1, 4096, 100003};
    char *data = malloc(100003);
    for (size_t i = 0; i < 100003; i++) data[i] = (char)(i * 7);
    for (int i = 0; i < 4; i++) {
        char *got;
        size_t n;
        kit_ok(bti_file_write(path, data, sizes[i]));
        kit_ok(bti_file_read(path, &got, &n));
        ck_assert_uint_eq(n, sizes[i]);
        ck_assert(memcmp(got, data, n) == 0 && got[n] == 0);
        bti_free(got);
        const void *map;
        kit_ok(bti_file_map(path, &map, &n));
        ck_assert(n == sizes[i] && (n == 0 || memcmp(map, data, n) == 0));
        bti_file_unmap(map, n);
    }
    free(data);
    ck_assert_int_eq(base_entries_in(kit_str("%s/x/y/z", dir)), 1);
    ck_assert(bti_file_exists(path));
}
END_TEST

START_TEST(files_that_cannot_be) {
    const char *dir = kit_tmpdir(), *file = kit_str("%s/f", dir);
    char *data;
    const void *map;
    size_t n;
    int fds = base_open_files();
    kit_write_text(file, "old");
    kit_fails(bti_file_read(kit_str("%s/none", dir), &data, &n), BT_EINPUT, "none: No such file");
    kit_fails(bti_file_read(dir, &data, &n), BT_EINPUT, "is a folder");
    kit_fails(bti_file_map(kit_str("%s/none", dir), &map, &n), BT_EINPUT, "none: No such file");
    kit_fails(bti_file_write(kit_str("%s/no/f", dir), "x", 1), BT_EIO, "no/f.part");
    kit_fails(bti_file_write(dir, "x", 1), BT_EIO, dir);
    kit_fails(bti_dir_make(file), BT_EIO, "a file of that name");
    kit_fails(bti_dir_make(kit_str("%s/a", file)), BT_EIO, "f/a");
    ck_assert_int_eq(base_open_files(), fds);
    rmdir(kit_str("%s.part", dir));
    ck_assert(!bti_file_exists(kit_str("%s.part", dir)));
    ck_assert_int_eq(base_entries_in(dir), 1);
}
END_TEST

static void check_link(const char *link, const char *target, const char *file) {
    struct stat st;
    ck_assert_int_eq(symlink(target, link), 0);
    kit_ok(bti_file_write(link, "new", 3));
    ck_assert(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    char *got = kit_read(file, NULL);
    ck_assert_str_eq(got, "new");
    free(got);
}

START_TEST(links_stay_links) {
    const char *dir = kit_tmpdir(), *file = kit_str("%s/d/f", dir);
    kit_ok(bti_dir_make(kit_str("%s/d", dir)));
    kit_write_text(file, "old");
    check_link(kit_str("%s/relative", dir), "d/f", file);
    kit_write_text(file, "old");
    check_link(kit_str("%s/second", dir), "relative", file);
    kit_write_text(file, "old");
    check_link(kit_str("%s/absolute", dir), file, file);
    check_link(kit_str("%s/nowhere", dir), "d/g", kit_str("%s/d/g", dir));
    ck_assert_int_eq(base_entries_in(dir), 5);
    ck_assert_int_eq(base_entries_in(kit_str("%s/d", dir)), 2);
}
END_TEST

/* Written to, not replaced; a copy of a file onto itself leaves even its inode. */
START_TEST(what_is_no_plain_file_stays) {
    const char *dir = kit_tmpdir(), *pipe = kit_str("%s/pipe", dir), *file = kit_str("%s/f", dir);
    char got[16] = "";
    struct stat st, then;
    bti_aside *a;
    ck_assert_int_eq(mkfifo(pipe, 0600), 0);
    int fd = open(pipe, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    kit_ok(bti_aside_open(pipe, &a));
    kit_ok(bti_aside_write(a, 0, "in ", 3));
    kit_ok(bti_aside_write(a, 3, "order", 5));
    kit_fails(bti_aside_write(a, 0, "x", 1), BT_EIO, pipe);
    kit_ok(bti_aside_finish(a));
    kit_ok(bti_aside_open(pipe, &a));
    bti_aside_abandon(a);
    ck_assert_int_eq((int)read(fd, got, sizeof got - 1), 8);
    ck_assert_str_eq(got, "in order");
    ck_assert(stat(pipe, &st) == 0 && S_ISFIFO(st.st_mode));
    close(fd);
    kit_write_text(file, "text");
    ck_assert_int_eq(symlink("f", kit_str("%s/link", dir)), 0);
    ck_assert_int_eq(stat(file, &st), 0);
    kit_ok(bti_file_copy(file, kit_str("%s/link", dir)));
    ck_assert(stat(file, &then) == 0 && st.st_ino == then.st_ino);
    ck_assert(bti_file_same(file, kit_str("%s/link", dir)));
    ck_assert(!bti_file_same(pipe, pipe));
    ck_assert_int_eq(base_entries_in(dir), 3);
}
END_TEST

/* A full disk, by the limit on file sizes; nothing may be asserted meanwhile, as Check keeps its
 * messages in a file. */
bt_status base_with_file_limit(rlim_t bytes, bt_status (*f)(const char *), const char *path) {
    struct rlimit old, low;
    getrlimit(RLIMIT_FSIZE, &old);
    low = old;
    low.rlim_cur = bytes;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &low);
    bt_status s = f(path);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    return s;
}

static bt_status write_too_much(const char *path) {
    static const char big[8192];
    return bti_file_write(path, big, sizeof big);
}

START_TEST(full_disk_leaves_the_old_file) {
    const char *dir = kit_tmpdir();
    const char *path = kit_str("%s/f", dir);
    kit_write_text(path, "old");
    kit_fails(base_with_file_limit(4096, write_too_much, path), BT_EIO, "File too large");
    char *got = kit_read(path, NULL);
    ck_assert_str_eq(got, "old");
    free(got);
    ck_assert_int_eq(base_entries_in(dir), 1);
}
END_TEST

static void *write_second(void *path) {
    bt_status s = bti_file_write(path, "second", 6);
    return (void *)(intptr_t)s;
}

/* The second writer waits, and then does not write into the first one's finished file. */
START_TEST(writers_of_one_file_take_turns) {
    const char *dir = kit_tmpdir();
    char *path = (char *)(uintptr_t)kit_str("%s/f", dir);
    kit_write_text(kit_str("%s.part", path), "left behind by a process that was killed");
    for (int i = 0; i < 20; i++) {
        bti_aside *a;
        pthread_t t;
        void *status;
        kit_ok(bti_aside_open(path, &a));
        ck_assert_int_eq(pthread_create(&t, NULL, write_second, path), 0);
        kit_ok(bti_aside_write(a, 0, "the first", 9));
        if (i % 2) usleep(1000);
        kit_ok(bti_aside_finish(a));
        pthread_join(t, &status);
        ck_assert_int_eq((int)(intptr_t)status, BT_OK);
        char *got = kit_read(path, NULL);
        ck_assert_str_eq(got, "second");
        free(got);
    }
    ck_assert_int_eq(base_entries_in(dir), 1);
}
END_TEST

START_TEST(files_without_memory) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/f", dir);
    int fds = base_open_files(), failed = 0;
    for (uint64_t n = 1; n < 20; n++) {
        char *data = NULL, *copy = NULL;
        size_t bytes;
        bti_alloc_fail_at(n);
        bt_status s = bti_dir_make(kit_str("%s/d", dir));
        if (s == BT_OK) s = bti_file_write(path, "text", 4);
        if (s == BT_OK) s = bti_file_read(path, &data, &bytes);
        if (s == BT_OK && (copy = bti_path_join(dir, "f")) == NULL) s = BT_ENOMEM;
        bti_alloc_fail_at(0);
        bti_free(data);
        bti_free(copy);
        ck_assert(s == BT_OK || s == BT_ENOMEM);
        failed += s != BT_OK;
        ck_assert_int_eq(base_open_files(), fds);
        ck_assert(!bti_file_exists(kit_str("%s.part", path)));
    }
    ck_assert_int_gt(failed, 4);
    ck_assert_int_lt(failed, 19);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, f16_to_f32_every_value);
    tcase_add_test(tc, bf16_to_f32_every_value);
    tcase_add_test(tc, f32_to_f16_every_boundary);
    tcase_add_test(tc, f32_to_bf16_every_boundary);
    tcase_add_test(tc, nan_stays_nan);
    tcase_add_test(tc, load_and_store);
    tcase_add_test(tc, philox_known_answers);
    tcase_add_test(tc, errors_and_allocation);
    tcase_add_test(tc, json);
    tcase_add_test(tc, paths);
    tcase_add_test(tc, files_round_trip);
    tcase_add_test(tc, files_that_cannot_be);
    tcase_add_test(tc, links_stay_links);
    tcase_add_test(tc, what_is_no_plain_file_stays);
    tcase_add_test(tc, full_disk_leaves_the_old_file);
    tcase_add_test(tc, writers_of_one_file_take_turns);
    tcase_add_test(tc, files_without_memory);
    add_base_safetensors(tc);
}

int main(int argc, char **argv) { return kit_main("base", add, argc, argv); }
