/* safetensors files: written, read, damaged, without memory, of other programs. */
#include "tests/base_parts.h"

#include "core/base/files.h"
#include "core/base/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

static const float weights[6] = {1, -2, 3.5f, 0, 1e-30f, INFINITY};
static const double numbers[2] = {M_PI, -0.0};
static const uint16_t halves[3] = {0x3C00, 0xC000, 0x7E00};
static const int32_t ids[4] = {1, -1, INT32_MAX, INT32_MIN};

static const bti_st_tensor tensors[] = {
    {"layer.weight", BT_F32, 2, {2, 3}}, {"n \"\xC3\xA9\" \\", BT_F64, 1, {2}},
    {"scalar", BT_F32, 0, {0}},          {"none", BT_BF16, 3, {4, 0, 7}},
    {"ids", BT_I32, 4, {1, 2, 2, 1}},    {"half", BT_F16, 1, {3}},
};
static const char *const metadata[] = {"update", "12", "run", "a: \"b\"\n# \xE2\x82\xAC"};

static bt_status write_sample(const char *path) {
    bti_st_writer *w;
    BT_TRY(bti_st_create(path, tensors, 6, metadata, 2, &w));
    bt_status s = bti_st_write(w, weights, 8);
    if (s == BT_OK) s = bti_st_write(w, (const char *)weights + 8, 16);
    if (s == BT_OK) s = bti_st_write(w, numbers, sizeof numbers);
    if (s == BT_OK) s = bti_st_write(w, weights, 4);
    if (s == BT_OK) s = bti_st_write(w, NULL, 0);
    if (s == BT_OK) s = bti_st_write(w, ids, sizeof ids);
    if (s == BT_OK) s = bti_st_write(w, halves, sizeof halves);
    if (s == BT_OK) return bti_st_finish(w);
    bti_st_abandon(w);
    return s;
}

static void check_tensor(const bti_st_file *f, const bti_st_tensor *want, const void *bytes,
                         size_t n) {
    const void *data = NULL;
    const bti_st_tensor *t = bti_st_find(f, want->name, &data);
    ck_assert_msg(t != NULL, "no %s", want->name);
    ck_assert_int_eq(t->dtype, want->dtype);
    ck_assert_int_eq(t->dims, want->dims);
    for (int d = 0; d < t->dims; d++) ck_assert_int_eq(t->shape[d], want->shape[d]);
    ck_assert_uint_eq((uintptr_t)data % bti_dtype_size(t->dtype), 0);
    ck_assert(memcmp(data, bytes, n) == 0);
}

START_TEST(st_round_trip) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/m.safetensors", dir);
    kit_ok(write_sample(path));
    ck_assert_int_eq(base_entries_in(dir), 1);
    bti_st_file *f;
    kit_ok(bti_st_open(path, BTI_ST_REQUIRE, &f));
    ck_assert_uint_eq(bti_st_count(f), 6);
    check_tensor(f, &tensors[0], weights, sizeof weights);
    check_tensor(f, &tensors[1], numbers, sizeof numbers);
    check_tensor(f, &tensors[2], weights, 4);
    check_tensor(f, &tensors[3], "", 0);
    check_tensor(f, &tensors[4], ids, sizeof ids);
    check_tensor(f, &tensors[5], halves, sizeof halves);
    ck_assert_str_eq(bti_st_at(f, 0, NULL)->name, "layer.weight");
    ck_assert_ptr_null(bti_st_at(f, 6, NULL));
    ck_assert_ptr_null(bti_st_find(f, "layer", NULL));
    ck_assert_str_eq(bti_st_metadata(f, "update"), "12");
    ck_assert_str_eq(bti_st_metadata(f, "run"), metadata[3]);
    ck_assert_ptr_null(bti_st_metadata(f, "none"));
    ck_assert_uint_eq(strlen(bti_st_metadata(f, "xxh64")), 16);
    bti_st_close(f);
    bti_st_close(NULL);
    /* The data start at a multiple of 64, so that a mapping has them aligned. */
    size_t n;
    char *raw = kit_read(path, &n);
    ck_assert_uint_eq(((unsigned char)raw[0] + 256u * (unsigned char)raw[1] + 8) % 64, 0);
    free(raw);
}
END_TEST

START_TEST(st_writer_misused) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/m", dir);
    bti_st_tensor two[2] = {{"a", BT_F32, 1, {2}}, {"a", BT_F32, 1, {2}}};
    bti_st_writer *w;
    kit_fails(bti_st_create(path, two, 2, NULL, 0, &w), BT_EINTERNAL, "two entries of the name a");
    const char *const clash[] = {"xxh64", "1"};
    kit_fails(bti_st_create(path, two, 1, clash, 1, &w), BT_EINTERNAL, "xxh64");
    two[0] = (bti_st_tensor){"a", BT_F32, 2, {INT64_MAX / 2, 4}};
    kit_fails(bti_st_create(path, two, 1, NULL, 0, &w), BT_EINTERNAL, "too large");
    two[0] = (bti_st_tensor){"\xFF", BT_F32, 1, {2}};
    kit_fails(bti_st_create(path, two, 1, NULL, 0, &w), BT_EINTERNAL, "as a name");
    two[0] = (bti_st_tensor){"a", BT_F32, 1, {2}};
    kit_ok(bti_st_create(path, two, 1, NULL, 0, &w));
    kit_fails(bti_st_write(w, weights, 12), BT_EINTERNAL, "more data");
    kit_ok(bti_st_write(w, weights, 4));
    kit_fails(bti_st_finish(w), BT_EINTERNAL, "4 bytes of data are missing");
    ck_assert_int_eq(base_entries_in(dir), 0);
    kit_ok(bti_st_create(path, two, 1, NULL, 0, &w));
    ck_assert(!bti_file_exists(path));
    bti_st_abandon(w);
    ck_assert_int_eq(base_entries_in(dir), 0);
}
END_TEST

START_TEST(st_full_disk) {
    const char *dir = kit_tmpdir();
    const char *path = kit_str("%s/m", dir);
    kit_ok(write_sample(path));
    for (rlim_t limit = 0; limit < 600; limit += 100)
        kit_fails(base_with_file_limit(limit, write_sample, path), BT_EIO, "too large");
    bti_st_file *f;
    kit_ok(bti_st_open(path, BTI_ST_REQUIRE, &f));
    bti_st_close(f);
    ck_assert_int_eq(base_entries_in(dir), 1);
}
END_TEST

/* Cut at every length, one byte longer, a bit of every byte flipped (all of them where the header
 * starts): never taken for whole, never a crash. */
START_TEST(st_damage) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/m", dir), *bad = kit_str("%s/bad", dir);
    size_t n;
    bti_st_file *f;
    kit_ok(write_sample(path));
    char *raw = kit_read(path, &n);
    for (size_t cut = 0; cut < n; cut++) {
        kit_write(bad, raw, cut);
        kit_fails(bti_st_open(bad, BTI_ST_TRUST, &f), BT_EINPUT, "bad: ");
    }
    char *longer = calloc(1, n + 1);
    memcpy(longer, raw, n);
    kit_write(bad, longer, n + 1);
    kit_fails(bti_st_open(bad, BTI_ST_TRUST, &f), BT_EINPUT, "bytes of data");
    free(longer);
    for (size_t bit = 0; bit < 8 * n; bit += bit < 8 * 64 ? 1 : 9) {
        raw[bit / 8] ^= (char)(1 << bit % 8);
        kit_write(bad, raw, n);
        bt_status s = bti_st_open(bad, BTI_ST_REQUIRE, &f);
        ck_assert_msg(s == BT_EINPUT, "bit %zu flipped: %s", bit, bt_status_text(s));
        if (bti_st_open(bad, BTI_ST_TRUST, &f) == BT_OK) bti_st_close(f);
        raw[bit / 8] ^= (char)(1 << bit % 8);
    }
    free(raw);
}
END_TEST

static bt_status open_text(const char *path, const char *header, size_t data_bytes,
                           bti_st_verify verify, bti_st_file **f) {
    size_t n = strlen(header);
    char *raw = calloc(1, 8 + n + data_bytes + 1);
    for (int i = 0; i < 8; i++) raw[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(raw + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) raw[8 + n + i] = (char)i;
    kit_write(path, raw, 8 + n + data_bytes);
    free(raw);
    return bti_st_open(path, verify, f);
}

#define T(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

START_TEST(st_bad_headers) {
    static const struct {
        const char *header, *says;
    } bad[] = {
        {"", "damaged header"},
        {"[]", "damaged header"},
        {"{\"a\":", "damaged header"},
        {"{" T("a", "F32", "[2]", 0, 8) "} x", "damaged header"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", "damaged header"},
        {"{\"a\":1}", "a has no dtype"},
        {"{" T("a", "F32", "[3]", 0, 8) "}", "a has 8 bytes, its shape needs 12"},
        {"{" T("a", "F32", "[-2]", 0, 8) "}", "shape of a"},
        {"{" T("a", "F32", "[2.0]", 0, 8) "}", "shape of a"},
        {"{" T("a", "F32", "2", 0, 8) "}", "a has no shape"},
        {"{" T("a", "F32", "[4294967296,4294967296,2]", 0, 8) "}", "shape of a"},
        {"{" T("a", "F32", "[4611686018427387906]", 0, 8) "}", "a has 8 bytes"},
        {"{" T("a", "I64", "[4611686018427387906]", 0, 8) "}", "a has 8 bytes"},
        {"{" T("a", "F32", "[4]", 0, 16) "}", "outside the file"},
        {"{" T("a", "F32", "[2]", -8, 0) "}", "outside the file"},
        {"{" T("a", "F32", "[2]", 8, 0) "}", "outside the file"},
        {"{" T("a", "F32", "[1]", 0, 4) "}", "8 bytes of data, its tensors have 4"},
        {"{" T("a", "F32", "[1]", 4, 8) "}", "should start at 0, not 4"},
        {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[2]", 0, 8) "}", "b should start at 4"},
        {"{\"__metadata__\":{\"k\":1}," T("a", "F32", "[2]", 0, 8) "}", "k is not a string"},
        {"{\"__metadata__\":3," T("a", "F32", "[2]", 0, 8) "}", "__metadata__"},
        {"{\"__metadata__\":{\"xxh64\":\"1\"}," T("a", "F32", "[2]", 0, 8) "}", "checksum"},
        {"{" T("a", "F32", "[2]", 0, 8) ",\"__metadata__\":{\"xxh64\":\"0123456789abcdef\"}}",
         "not in its place"},
    };
    const char *path = kit_str("%s/m", kit_tmpdir());
    int fds = base_open_files();
    bti_st_file *f;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        kit_fails(open_text(path, bad[i].header, 8, BTI_ST_VERIFY, &f), BT_EINPUT, bad[i].says);
    ck_assert_int_eq(base_open_files(), fds);
    kit_fails(open_text(path, "{" T("a", "F32", "[2]", 0, 8) "}", 8, BTI_ST_REQUIRE, &f), BT_EINPUT,
              "no checksum");
}
END_TEST

/* Any order in the header, data askew, padding, types that are not ours. */
START_TEST(st_foreign_files) {
    const char *path = kit_str("%s/m", kit_tmpdir());
    bti_st_file *f;
    const void *data;
    kit_ok(
        open_text(path,
                  "{" T("b", "F64", "[1]", 3, 11) "," T("z", "I8", "[3]", 0, 3) "," T(
                      "q", "F6_X", "[9]", 11, 12) "," T("d5", "F32", "[1,1,1,1,1]", 12, 16) "}   ",
                  16, BTI_ST_VERIFY, &f));
    ck_assert_uint_eq(bti_st_count(f), 1);
    const bti_st_tensor *t = bti_st_at(f, 0, &data);
    ck_assert_str_eq(t->name, "b");
    ck_assert_uint_eq((uintptr_t)data % 8, 0);
    static const unsigned char want[8] = {3, 4, 5, 6, 7, 8, 9, 10};
    ck_assert(memcmp(data, want, 8) == 0);
    ck_assert_ptr_null(bti_st_find(f, "z", NULL));
    ck_assert_ptr_null(bti_st_find(f, "d5", NULL));
    bti_st_close(f);
    kit_ok(open_text(path, "{}", 0, BTI_ST_VERIFY, &f));
    ck_assert_uint_eq(bti_st_count(f), 0);
    bti_st_close(f);
}
END_TEST

/* jansson's requests fail too: it has its own. */
static int json_calls, json_fail;
static void *json_alloc(size_t n) { return ++json_calls == json_fail ? NULL : malloc(n); }

static bt_status write_and_open(const char *path) {
    bti_st_file *f;
    BT_TRY(write_sample(path));
    BT_TRY(bti_st_open(path, BTI_ST_REQUIRE, &f));
    bti_st_close(f);
    return open_text(path, "{" T("b", "F64", "[1]", 3, 11) "," T("z", "I8", "[3]", 0, 3) "}", 11,
                     BTI_ST_TRUST, &f) == BT_OK
               ? (bti_st_close(f), BT_OK)
               : BT_ENOMEM;
}

START_TEST(st_without_memory) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/m", dir);
    int fds = base_open_files(), failed = 0;
    for (uint64_t n = 1, ok = 0; !ok; n++) {
        bti_alloc_fail_at(n);
        bt_status s = write_and_open(path);
        bti_alloc_fail_at(0);
        ok = s == BT_OK;
        ck_assert(s == BT_OK || s == BT_ENOMEM);
        ck_assert_int_eq(base_open_files(), fds);
        ck_assert(!bti_file_exists(kit_str("%s.part", path)));
        failed += !ok;
    }
    ck_assert_int_gt(failed, 8);
    json_set_alloc_funcs(json_alloc, free);
    failed = 0;
    for (int n = 1, ok = 0; !ok; n++) {
        json_calls = 0;
        json_fail = n;
        bt_status s = write_and_open(path);
        ok = json_calls < n;
        /* jansson does not say what failed in all places: an error, but not always this one. */
        ck_assert_msg(ok == (s == BT_OK), "request %d of jansson: %s: %s", n, bt_status_text(s),
                      bt_last_error());
        ck_assert_int_eq(base_open_files(), fds);
        ck_assert(!bti_file_exists(kit_str("%s.part", path)));
        failed += !ok;
    }
    json_set_alloc_funcs(malloc, free);
    ck_assert_int_gt(failed, 20);
}
END_TEST

START_TEST(st_samples) {
    const char *dir = kit_shared("data/features/safetensors_samples");
    if (dir == NULL) {
        kit_skip("no shared/data/features/safetensors_samples");
        return;
    }
    static const struct {
        const char *name;
        bt_dtype dtype;
    } read[] = {{"d", BT_F64}, {"e", BT_F16}, {"f", BT_F32}, {"i", BT_I32}, {"B", BT_U8}};
    bti_st_file *f, *all;
    kit_ok(bti_st_open(kit_str("%s/overall.safetensors", dir), BTI_ST_VERIFY, &all));
    ck_assert_uint_eq(bti_st_count(all), 5);
    for (int i = 0; i < 5; i++) {
        kit_ok(bti_st_open(kit_str("%s/%s.safetensors", dir, read[i].name), BTI_ST_VERIFY, &f));
        ck_assert_str_eq(bti_st_metadata(f, "test"), "a");
        const void *data, *same;
        const bti_st_tensor *t = bti_st_find(f, read[i].name, &data);
        ck_assert(t != NULL && t->dtype == read[i].dtype && t->dims == 1 && t->shape[0] == 6);
        for (int j = 0; j < 6; j++)
            ck_assert(bti_load(data, t->dtype, j) ==
                      (t->dtype == BT_U8 ? (uint8_t)(j - 3) : j - 3));
        ck_assert(bti_st_find(all, read[i].name, &same) != NULL);
        ck_assert(memcmp(data, same, 6 * bti_dtype_size(t->dtype)) == 0);
        bti_st_close(f);
    }
    bti_st_close(all);
    for (const char *p = "HIbh"; *p; p++) {
        kit_ok(bti_st_open(kit_str("%s/%c.safetensors", dir, *p), BTI_ST_VERIFY, &f));
        ck_assert_uint_eq(bti_st_count(f), 0);
        bti_st_close(f);
    }
}
END_TEST

START_TEST(st_golden) {
    static const char *const names[] = {"transformer_post_relu", "transformer_pre_gelu"};
    for (int i = 0; i < 2; i++) {
        const char *path = kit_shared(kit_str("data/golden/%s.safetensors", names[i]));
        if (path == NULL) {
            kit_skip("no shared/data/golden/%s.safetensors", names[i]);
            continue;
        }
        bti_st_file *f;
        const void *data;
        kit_ok(bti_st_open(path, BTI_ST_VERIFY, &f));
        const bti_st_tensor *t = bti_st_find(f, "after3.generator.weight", &data);
        ck_assert(t != NULL && t->dtype == BT_F64 && t->dims == 2);
        ck_assert(t->shape[0] == 97 && t->shape[1] == 32);
        double sum = 0;
        for (int64_t j = 0; j < 97 * 32; j++) sum += fabs(bti_load(data, BT_F64, j));
        ck_assert(sum > 1 && sum < 97 * 32);
        bti_st_close(f);
    }
}
END_TEST

void add_base_safetensors(TCase *tc) {
    tcase_add_test(tc, st_round_trip);
    tcase_add_test(tc, st_writer_misused);
    tcase_add_test(tc, st_full_disk);
    tcase_add_test(tc, st_damage);
    tcase_add_test(tc, st_bad_headers);
    tcase_add_test(tc, st_foreign_files);
    tcase_add_test(tc, st_without_memory);
    tcase_add_test(tc, st_samples);
    tcase_add_test(tc, st_golden);
}
