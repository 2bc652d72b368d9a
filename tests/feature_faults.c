/* Feature files that are refused: each names feature, file and example. And files cut short or with
 * wrong bytes anywhere: refused, or read as they were. */
#include "tests/feature_parts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/safetensors.h"

/* ---- headers ----------------------------------------------------------------------------------
 */

static const struct {
    const char *descr, *fortran, *shape;
    size_t bytes;
    const char *part;
} headers[] = {
    {"'>f4'", "False", "(2, 2)", 16, "big-endian numbers (>f4): save x.astype('<f4')"},
    {"'<f4'", "True", "(2, 2)", 16, "columns come first (fortran_order)"},
    {"'|O'", "False", "(2, 2)", 16, "Python objects"},
    {"[('a', '<f4'), ('b', '<f4')]", "False", "(2, 2)", 32, "records"},
    {"'<V2'", "False", "(2, 2)", 8, "may be bfloat16 or anything else"},
    {"'|V2'", "False", "(2, 2)", 8, "may be bfloat16 or anything else"},
    {"'<U5'", "False", "(2, 2)", 80, "text (<U5)"},
    {"'<c8'", "False", "(2, 2)", 32, "type \"<c8\" is not read here"},
    {"'<i4'", "False", "(2, 2)", 16, "numbers of type int32: features are float32"},
    {"'|b1'", "False", "(2, 2)", 4, "numbers of type bool"},
    {"''", "False", "(2, 2)", 16, "type \"\" is not read here"},
    {"'<f4'", "False", "()", 4, "0 dimensions"},
    {"'<f4'", "False", "(4,)", 16, "1 dimensions: one array for all has 2 to 4"},
    {"'<f4'", "False", "(1, 1, 1, 1, 4)", 16, "5 dimensions: 4 are the most"},
    {"'<f4'", "False", "(0, 4)", 0, "no example"},
    {"'<f4'", "False", "(4, 0)", 0, "empty rows"},
    {"'<f4'", "False", "(4, 0, 3)", 0, "an example without rows"},
    {"'<f4'", "False", "(1, 4611686018427387904, 4611686018427387904, 0)", 0, "is not one"},
    {"'<f4'", "False", "(1, 1048576, 1048576, 0)", 0, "empty rows"},
    {"'<f4'", "False", "(4611686018427387904, 4611686018427387904)", 16, "is not one"},
    {"'<f4'", "False", "(99999999999999999999, 2)", 16, "damaged header"},
    {"'<f4'", "False", "(-2, -2)", 16, "damaged header"},
    {"'<f4'", "False", "(2 2)", 16, "damaged header"},
    {"'<f4'", "False", "(4)", 16, "damaged header"},
    {"'<f4'", "False", "[2, 2]", 16, "damaged header"},
    {"'<f4'", "0", "(2, 2)", 16, "damaged header"},
    {"'<f4", "False", "(2, 2)", 16, "damaged header"},
    {"'<f4', 'descr': '<f4'", "False", "(2, 2)", 16, "damaged header"},
    {"'<f4', 'more': 1", "False", "(2, 2)", 16, "damaged header"},
    {"'<f4'", "False", "(2, 2)} {", 16, "damaged header"},
    {"'<f4'", "False", "(2, 2)", 12,
     "12 bytes of numbers, its header needs 16 ((2, 2) of float32): 4 are missing"},
    {"'<f4'", "False", "(2, 2)", 17,
     "17 bytes of numbers, its header needs 16 ((2, 2) of float32): 1 too many"},
};

START_TEST(bad_header) {
    static const unsigned char zeros[128];
    file_bytes f = npy_raw(1, headers[_i].descr, headers[_i].fortran, headers[_i].shape, zeros,
                           headers[_i].bytes);
    refuse_features(file_save(&f, ".npy"), headers[_i].part);
}
END_TEST

START_TEST(not_a_file) {
    file_bytes f = npy_counting("(2, 2)", 4, 0);
    f.at[8] = 0xFF; /* length of the header */
    f.at[9] = 0xFF;
    refuse_features(file_save(&f, ".npy"), "its header should have 65535 bytes, the file has 144");
    f = npy_counting("(2, 2)", 4, 0);
    f.at[6] = 9;
    refuse_features(file_save(&f, ".npy"), ".npy version 9.0: versions 1 to 3 are read");
    file_put(&f, "\x93NUMPY\1", 7);
    refuse_features(file_save(&f, ".npy"), "cut short: 7 bytes, not even a header");
    file_put(&f, "text", 4);
    refuse_features(file_save(&f, ".npy"), "4 bytes that are neither .npy nor .npz");
    file_put(&f, "", 0);
    refuse_features(file_save(&f, ".npy"), "0 bytes that are neither");
    file_put(&f, "text", 4);
    refuse_features(file_save(&f, ".safetensors"), "cut short");
    refuse_features("/nowhere/x.npy", "No such file");
    refuse_features(feature_dir(), "is a folder");
}
END_TEST

/* ---- H1: 100 rows of 64 ------------------------------------------------------------------------
 */

static file_bytes hundred(void) { return npy_counting("(100, 64)", 6400, 0); }

static bt_status open_wide(const char *path, int64_t width, int32_t rows_max, bti_features **f) {
    bti_features_spec spec = {.name = "image",
                              .files = &path,
                              .file_count = 1,
                              .width = width,
                              .rows_max = rows_max,
                              .where = "data.features.0"};
    return bti_features_open(&spec, f);
}

START_TEST(cut_or_stretched) {
    file_bytes f = hundred(), g = {NULL, 0};
    f.count -= 8;
    refuse_features(file_save(&f, ".npy"), "25592 bytes of numbers, its header needs 25600");
    f = hundred();
    file_put(&g, f.at, 12800);
    file_put(&g, "frame", 5);
    file_put(&g, f.at + 12800, f.count - 12800);
    refuse_features(file_save(&g, ".npy"), "25605 bytes of numbers, its header needs 25600");
    file_free(&f);
}
END_TEST

START_TEST(widths_and_rows) {
    file_bytes bytes = hundred();
    const char *path = file_save(&bytes, ".npy");
    bti_features *f = NULL;
    kit_fails(open_wide(path, 32, 0, &f), BT_EINPUT,
              "rows are 64 numbers wide, data.features.0.width is 32");
    kit_fails(open_wide(path, 128, 0, &f), BT_EINPUT,
              "rows are 64 numbers wide, data.features.0.width is 128");
    kit_ok(open_wide(path, 64, 1, &f));
    bti_features_close(f);
    bytes = npy_counting("(5, 3, 4)", 60, 0);
    path = file_save(&bytes, ".npy");
    f = NULL;
    kit_fails(open_wide(path, 0, 2, &f), BT_EINPUT, "3 rows, data.features.0.max_rows is 2");
    kit_ok(open_wide(path, 4, 3, &f));
    bti_features_close(f);
    /* halves read as halves: what they are stands in the file */
    bytes = npy_typed("<f2", "(100, 64)", 1, 0);
    refuse_features(file_save(&bytes, ".npy"), "2 bytes of numbers, its header needs 12800");
}
END_TEST

/* Puts a float's bits at a number of a .npy. */
static void put_bits(file_bytes *f, size_t numbers, size_t at, uint32_t bits) {
    memcpy(f->at + f->count - 4 * (numbers - at), &bits, 4);
}

START_TEST(not_finite) {
    file_bytes f = hundred();
    put_bits(&f, 6400, 6 * 64 + 2, 0x7FC00000);
    put_bits(&f, 6400, 6 * 64 + 60, 0xFFC00000);
    put_bits(&f, 6400, 8 * 64, 0x7F800000);
    refuse_features(file_save(&f, ".npy"),
                    "row 7, column 3 is NaN; rows with NaN or infinity in all: 2");
    f = npy_counting("(5, 3, 4)", 60, 0);
    put_bits(&f, 60, 59, 0xFF800000);
    refuse_features(file_save(&f, ".npy"),
                    "example 5, row 3, column 4 is infinity; rows with NaN or infinity in all: 1");
    double far[] = {1, 2, 3, 1e300};
    f = npy_raw(1, "'<f8'", "False", "(2, 2)", far, sizeof far);
    refuse_features(file_save(&f, ".npy"), "row 2, column 2 is infinity");
    uint16_t half[] = {0, 0, 0x7C01, 0};
    f = npy_raw(1, "'<f2'", "False", "(2, 2)", half, sizeof half);
    refuse_features(file_save(&f, ".npy"), "row 2, column 1 is NaN");
    zip z = {.how = ZIP_DEFLATED};
    for (int i = 0; i < 3; i++) {
        f = npy_counting("(2, 2)", 4, 0);
        if (i == 1) put_bits(&f, 4, 2, 0x7F800001);
        zip_add(&z, kit_str("%d.npy", i), &f);
    }
    f = zip_finish(&z);
    refuse_features(file_save(&f, ".npz"), "example 2, row 2, column 1 is NaN");
}
END_TEST

/* A number of the second listed file, of the second given file. */
START_TEST(example_in_its_file) {
    file_bytes good = npy_counting("(2, 2)", 4, 0), bad = npy_counting("(2, 2)", 4, 0);
    put_bits(&bad, 4, 1, 0x7FC00000);
    const char *path = file_save(&bad, ".npy");
    const char *list = kit_str("%s/bad.txt", feature_dir());
    kit_write_text(list, kit_str("%s\n%s\n", file_save(&good, ".npy"), path));
    const char *two[] = {sample_file(0), list};
    bti_features *f = NULL;
    bti_features_spec spec = {.name = "t5", .files = two + 1, .file_count = 1};
    kit_fails(bti_features_open(&spec, &f), BT_EINPUT,
              kit_str("feature t5: %s: example 2, row 1, column 2 is NaN", path));
    spec = (bti_features_spec){.name = "t5", .files = two, .file_count = 2};
    kit_fails(bti_features_open(&spec, &f), BT_EINPUT, "rows are 2 numbers wide, those before");
}
END_TEST

/* ---- examples that are missing ----------------------------------------------------------------
 */

static const char *zip_of(int how, const char *const *names, const char *shape, int numbers) {
    zip z = {.how = how};
    for (; *names; names++) {
        file_bytes e = npy_counting(shape, numbers, 0);
        zip_add(&z, kit_str("%s.npy", *names), &e);
    }
    file_bytes f = zip_finish(&z);
    return file_save(&f, ".npz");
}
#define zip_names(...) zip_of(ZIP_STORED, (const char *const[]){__VA_ARGS__, NULL}, "(2, 2)", 4)

START_TEST(names_of_arrays) {
    refuse_features(zip_names("a_0", "a_1", "a_3"),
                    "example 3 is missing: there is no array \"a_2\", the next is \"a_3\"");
    refuse_features(zip_names("2", "3"),
                    "example 1 is missing: there is no array \"0\", the next is \"2\"");
    refuse_features(zip_names("0", "2", "3"), "example 2 is missing: there is no array \"1\"");
    refuse_features(zip_names("a_0", "b_1"), "\"a_0\" and \"b_1\"");
    refuse_features(zip_names("0", "1", "01"), "have the same number");
    refuse_features(zip_names("image", "text"), "their names must be numbers");
    refuse_features(zip_names("0", "text"), "array \"text\"");
    refuse_features(zip_names("0", "1234567890123456789"), "their names must be numbers");
    refuse_features(zip_of(0, (const char *const[]){NULL}, "(2,)", 2), "no array in it");
    refuse_features(zip_of(0, (const char *const[]){"0", "1", NULL}, "(1, 1, 1, 2)", 2),
                    "example 1 (array 0): 4 dimensions");
    refuse_features(zip_of(0, (const char *const[]){"0", "1", NULL}, "()", 1), "0 dimensions");
    refuse_features(zip_of(ZIP_DEFLATED, (const char *const[]){"x", NULL}, "(3, 2)", 6),
                    "one compressed array for 3 examples, which cannot be read out of order");
}
END_TEST

START_TEST(lists) {
    const char *list = kit_str("%s/l.txt", feature_dir());
    file_bytes bytes = npy_counting("(2, 2)", 4, 0);
    const char *good = file_save(&bytes, ".npy"), *two = zip_names("0", "1");
    kit_write_text(list, "");
    refuse_features(list, "an empty list");
    kit_write_text(list, kit_str("%s\n\n%s\n", good, good));
    refuse_features(list, "l.txt: line 2: the line is empty: its example is missing");
    kit_write_text(list, kit_str("%s\nabsent.npy\n", good));
    refuse_features(list, kit_str("l.txt: line 2: %s/absent.npy: No such file", feature_dir()));
    kit_write_text(list, kit_str("%s\n", two));
    refuse_features(list, "2 arrays: a file of a list holds one example");
    kit_write(list, "a\0b\n", 4);
    refuse_features(list, "line 1: a 00 byte");
    kit_write_text(list, "l.txt\n");
    refuse_features(list, "bytes that are neither .npy nor .npz");
    kit_write_text(list, kit_str("%s\r\n%s", good, good)); /* as other systems end lines */
    bti_features *f = open_features(list);
    ck_assert_int_eq(bti_features_count(f), 2);
    check_counting(f, 1, 2, 0);
    /* a file that changes under a run */
    bytes = npy_counting("(3, 2)", 6, 0);
    kit_write(good, bytes.at, bytes.count);
    file_free(&bytes);
    float x[6];
    kit_fails(bti_features_read(f, 0, x), BT_EINPUT, "when the run began");
    ck_assert_int_eq(unlink(good), 0);
    kit_fails(bti_features_read(f, 0, x), BT_EINPUT, "No such file");
    bti_features_close(f);
}
END_TEST

/* ---- archives ---------------------------------------------------------------------------------
 */

/* The sample archive with a byte changed at the n-th place of a signature. */
static const char *archive_with(int how, const char *signature, size_t at, unsigned char byte) {
    zip z = {.how = how};
    for (int i = 0; i < 2; i++) {
        file_bytes e = npy_counting("(2, 4)", 8, (float)i);
        zip_add(&z, kit_str("%d.npy", i), &e);
    }
    file_bytes f = zip_finish(&z);
    unsigned char *found = memmem(f.at, f.count, signature, 4);
    ck_assert_ptr_nonnull(found);
    found[at] = byte;
    return file_save(&f, ".npz");
}

START_TEST(bad_archives) {
    file_bytes e = {NULL, 0};
    zip z = {.how = ZIP_STORED};
    file_put(&e, "text", 4);
    zip_add(&z, "readme.txt", &e);
    file_bytes f = zip_finish(&z);
    refuse_features(file_save(&f, ".npz"), "entry \"readme.txt\" is no array");
    refuse_features(archive_with(0, "PK\1\2", 8, 1), "array 0: encrypted");
    refuse_features(archive_with(0, "PK\1\2", 10, 14), "compressed by method 14");
    refuse_features(archive_with(0, "PK\1\2", 16, 1), "example 1: damaged: its checksum is");
    refuse_features(archive_with(1, "PK\1\2", 16, 1), "example 1: damaged: its checksum is");
    refuse_features(archive_with(0, "PK\1\2", 20, 1), "two sizes of a stored entry");
    refuse_features(archive_with(0, "PK\1\2", 24, 1), "two sizes of a stored entry");
    refuse_features(archive_with(0, "PK\5\6", 4, 1), "an archive of several parts");
    refuse_features(archive_with(0, "PK\5\6", 10, 1), "more than its 1 entries");
    refuse_features(archive_with(0, "PK\5\6", 10, 3), "lies outside the file");
    refuse_features(archive_with(0, "PK\1\2", 28, 200), "its directory breaks off");
    refuse_features(archive_with(0, "PK\5\6", 18, 1), "lies outside the file");
    refuse_features(archive_with(0, "PK\3\4", 30, 'x'), "no entry where the directory says");
    refuse_features(archive_with(1, "PK\1\2", 20, 5), "compressed data");
    refuse_features(archive_with(ZIP_WIDE, "PK\6\7", 8, 99), "64-bit sizes");
    f = (file_bytes){NULL, 0};
    z = (zip){.how = ZIP_STORED};
    e = npy_counting("(2, 4)", 8, 0);
    zip_add(&z, "x.npy", &e);
    f = zip_finish(&z);
    file_put(&f, "more", 4);
    refuse_features(file_save(&f, ".npz"), "cut short, or bytes behind its end");
}
END_TEST

/* ---- any byte ----------------------------------------------------------------------------------
 */

/* Does it hold the samples' values? */
static int as_it_was(const bti_features *f) {
    float x[8];
    if (bti_features_count(f) != 6 || bti_features_width(f) != 4) return 0;
    for (int i = 0; i < 6; i++) {
        if (bti_features_rows(f, i) != 2 || bti_features_read(f, i, x) != BT_OK) return 0;
        for (int k = 0; k < 8; k++)
            if (x[k] != (float)(8 * i + k)) return 0;
    }
    return 1;
}

/* Opens it, and reads all that it claims to hold. */
static int open_any(const char *path, int must_be_same) {
    bti_features *f = NULL;
    bti_features_spec spec = {.name = "x", .files = &path, .file_count = 1};
    bt_status s = bti_features_open(&spec, &f);
    if (s != BT_OK) {
        ck_assert_msg(s == BT_EINPUT, "%s", bt_last_error());
        ck_assert_msg(strstr(bt_last_error(), path) != NULL, "%s", bt_last_error());
        return 0;
    }
    ck_assert(!must_be_same || as_it_was(f));
    int64_t numbers = 0;
    for (int64_t i = 0; i < bti_features_count(f); i++) {
        int64_t n = bti_features_rows(f, i) * bti_features_width(f);
        ck_assert(n > 0 && n <= 96);
        float x[96];
        kit_ok(bti_features_read(f, i, x));
        numbers += n;
    }
    ck_assert(numbers <= 96); /* halves of the file's bytes, at most */
    bti_features_close(f);
    return 1;
}

START_TEST(every_length) {
    const char *path = sample_file(_i);
    size_t bytes;
    free(kit_read(path, &bytes));
    ck_assert(open_any(path, 1));
    for (size_t n = bytes; n-- > 0;) {
        ck_assert_int_eq(truncate(path, (off_t)n), 0);
        ck_assert_msg(!open_any(path, 1), "%s: %zu of %zu bytes will do", path, n, bytes);
    }
}
END_TEST

/* Archives and safetensors written here carry checksums; in a .npy a number may become another. */
START_TEST(every_byte) {
    static const unsigned char change[] = {0x01, 0x80, 0xFF, 0x20};
    const char *path = sample_file(_i);
    size_t bytes;
    free(kit_read(path, &bytes));
    int fd = open(path, O_RDWR);
    unsigned char *text = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(text, MAP_FAILED);
    for (size_t n = 0; n < bytes; n++)
        for (size_t k = 0; k < sizeof change; k++) {
            text[n] ^= change[k];
            open_any(path, _i != 0);
            text[n] ^= change[k];
        }
    ck_assert(open_any(path, 1));
    munmap(text, bytes);
    close(fd);
}
END_TEST

/* ---- memory, signals --------------------------------------------------------------------------
 */

static bt_status open_and_close(const bti_features_spec *spec) {
    bti_features *f = NULL;
    bt_status s = bti_features_open(spec, &f);
    bti_features_close(f);
    return s;
}

START_TEST(no_memory) {
    const char *path = sample_file(_i);
    bti_features_spec spec = {.name = "x", .files = &path, .file_count = 1};
    kit_walk(open_and_close(&spec), 4);
}
END_TEST

START_TEST(stopped) {
    static const volatile sig_atomic_t stop = 1;
    const char *path = sample_file(_i);
    bti_features *f = NULL;
    bti_features_spec spec = {.name = "x", .files = &path, .file_count = 1, .stop = &stop};
    kit_fails(bti_features_open(&spec, &f), BT_ESTOPPED, "being read");
}
END_TEST

void add_feature_faults(TCase *tc) {
    tcase_add_loop_test(tc, bad_header, 0, (int)(sizeof headers / sizeof headers[0]));
    tcase_add_test(tc, not_a_file);
    tcase_add_test(tc, cut_or_stretched);
    tcase_add_test(tc, widths_and_rows);
    tcase_add_test(tc, not_finite);
    tcase_add_test(tc, example_in_its_file);
    tcase_add_test(tc, names_of_arrays);
    tcase_add_test(tc, lists);
    tcase_add_test(tc, bad_archives);
    tcase_add_loop_test(tc, every_length, 0, SAMPLES - 1);
    tcase_add_loop_test(tc, every_byte, 0, SAMPLES - 1);
    tcase_add_loop_test(tc, no_memory, 0, SAMPLES);
    tcase_add_loop_test(tc, stopped, 0, SAMPLES);
}
