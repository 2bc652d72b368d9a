/* Labels: classes, sets and numbers, from text and .npy. */
#include "tests/feature_parts.h"

#include "core/data/labels.h"

static const char *text_file(const char *text) {
    static int number;
    const char *path = kit_str("%s/labels%d.txt", feature_dir(), number++);
    kit_write_text(path, text);
    return path;
}

static bt_status try_labels(const char *path, bti_label_kind kind, bti_labels **out) {
    bti_labels_spec spec = {.files = &path, .file_count = 1, .kind = kind};
    return bti_labels_open(&spec, out);
}

static bti_labels *open_labels(const char *path, bti_label_kind kind) {
    bti_labels *l = NULL;
    kit_ok(try_labels(path, kind, &l));
    return l;
}

static void refuse_labels(const char *path, bti_label_kind kind, const char *part) {
    bti_labels *l = NULL;
    kit_fails(try_labels(path, kind, &l), BT_EINPUT, part);
    ck_assert_msg(strstr(bt_last_error(), path) != NULL, "\"%s\" lacks %s", bt_last_error(), path);
    ck_assert_ptr_null(l);
}

/* Classes as "a b c", and each example's as "0 2, 1". */
static void check_labels(const bti_labels *l, const char *classes, const char *ids) {
    const char *text = "";
    for (int32_t c = 0; c < bti_labels_classes(l); c++)
        text = kit_str("%s%s%s", text, c ? " " : "", bti_labels_class_name(l, c));
    ck_assert_str_eq(text, classes);
    text = "";
    for (int64_t i = 0; i < bti_labels_count(l); i++) {
        int64_t n;
        const int32_t *id = bti_labels_ids(l, i, &n);
        for (int64_t k = 0; k < n; k++)
            text = kit_str("%s%s%d", text, k ? " " : i ? ", " : "", (int)id[k]);
        if (n == 0) text = kit_str("%s%s-", text, i ? ", " : "");
    }
    ck_assert_str_eq(text, ids);
}

START_TEST(classes) {
    bti_labels *l = open_labels(text_file("dog\ncat\n dog\t\nNew York\ncat"), BTI_LABEL_CLASS);
    check_labels(l, "New York cat dog", "2, 1, 2, 0, 1");
    bti_labels_close(l);
    l = open_labels(text_file("10\n9\n-1\n9\n"), BTI_LABEL_CLASS);
    check_labels(l, "-1 9 10", "2, 1, 0, 1");
    bti_labels_close(l);
    l = open_labels(text_file("10\n9\nx\n"), BTI_LABEL_CLASS);
    check_labels(l, "10 9 x", "0, 1, 2");
    bti_labels_close(l);
    refuse_labels(text_file("a\n \nb\n"), BTI_LABEL_CLASS, "line 2: no label");
    refuse_labels(text_file(""), BTI_LABEL_CLASS, "no label in it");
    refuse_labels(text_file("a\n\xff\n"), BTI_LABEL_CLASS, "line 2: neither text (UTF-8) nor .npy");
}
END_TEST

START_TEST(sets) {
    bti_labels *l = open_labels(text_file("sea, sky\n\nsky\tsun sea,sky\n"), BTI_LABEL_SET);
    check_labels(l, "sea sky sun", "0 1, -, 0 1 2");
    bti_labels_close(l);
    int64_t on[] = {0, 1, 0, 1, 0, 0, 0, 0, 0};
    file_bytes f = npy_raw(1, "'<i8'", "False", "(3, 3)", on, sizeof on);
    l = open_labels(file_save(&f, ".npy"), BTI_LABEL_SET);
    check_labels(l, "0 1 2", "1, 0, -");
    bti_labels_close(l);
    on[4] = 2;
    f = npy_raw(1, "'<i8'", "False", "(3, 3)", on, sizeof on);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_SET, "row 2: column 2 is 2: sets are 0 and 1");
    f = npy_raw(1, "'<i8'", "False", "(9,)", on, sizeof on);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_SET, "1 dimensions");
}
END_TEST

/* Names given: the order is theirs, others are refused. */
START_TEST(known_classes) {
    static const char *const names[] = {"b", "a", "c"};
    const char *path[] = {text_file("a\nb\na\n"), text_file("a\nd\n")};
    bti_labels_spec spec = {.files = path, .file_count = 1, .classes = names, .class_count = 3};
    bti_labels *l = NULL;
    kit_ok(bti_labels_open(&spec, &l));
    check_labels(l, "b a c", "1, 0, 1");
    bti_labels_close(l);
    spec.file_count = 2;
    l = NULL;
    kit_fails(bti_labels_open(&spec, &l), BT_EINPUT,
              kit_str("%s: line 2: \"d\" is none of the 3 classes, b ... c", path[1]));
}
END_TEST

START_TEST(class_arrays) {
    int64_t y[] = {3, 0, 3, -2};
    file_bytes f = npy_raw(1, "'<i8'", "False", "(4,)", y, sizeof y);
    bti_labels *l = open_labels(file_save(&f, ".npy"), BTI_LABEL_CLASS);
    check_labels(l, "-2 0 3", "2, 1, 2, 0");
    uint64_t sum = bti_labels_checksum(l);
    bti_labels_close(l);
    l = open_labels(text_file("3\n0\n3\n-2\n"), BTI_LABEL_CLASS);
    ck_assert_uint_eq(bti_labels_checksum(l), sum);
    kit_ok(bti_labels_match(l, 4, "x.npy", "examples"));
    kit_fails(bti_labels_match(l, 5, "x.npy", "examples"), BT_EINPUT,
              "has labels for 4 examples, x.npy has 5 examples");
    bti_labels_close(l);
    static const struct {
        const char *descr;
        int bytes;
    } type[] = {{"|u1", 1}, {"|i1", 1}, {"<u2", 2}, {"<i2", 2}, {"<i4", 4}, {"<u4", 4}, {"<u8", 8}};
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++) {
        file_bytes data = {NULL, 0};
        file_put_number(&data, 7, type[i].bytes);
        file_put_number(&data, 5, type[i].bytes);
        f = npy_raw(1, kit_str("'%s'", type[i].descr), "False", "(2,)", data.at, data.count);
        file_free(&data);
        l = open_labels(file_save(&f, ".npy"), BTI_LABEL_CLASS);
        check_labels(l, "5 7", "1, 0");
        bti_labels_close(l);
    }
    f = npy_counting("(4,)", 4, 0);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_CLASS, "classes are whole numbers");
    f = npy_raw(1, "'<i8'", "False", "(2, 2)", y, sizeof y);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_CLASS, "2 dimensions: classes are [examples]");
    f = npy_raw(1, "'<U1'", "False", "(4,)", y, 16);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_CLASS, "write it to a text file");
}
END_TEST

START_TEST(numbers) {
    bti_labels *l = open_labels(text_file("1 2.5\n-3e2,\t4\n"), BTI_LABEL_NUMBERS);
    ck_assert_int_eq(bti_labels_width(l), 2);
    ck_assert_int_eq(bti_labels_count(l), 2);
    ck_assert_int_eq(bti_labels_classes(l), 0);
    ck_assert(bti_labels_numbers(l, 0)[1] == 2.5f && bti_labels_numbers(l, 1)[0] == -300);
    bti_labels_close(l);
    file_bytes f = npy_typed("<f8", "(3, 2)", 6, 1);
    l = open_labels(file_save(&f, ".npy"), BTI_LABEL_NUMBERS);
    ck_assert(bti_labels_width(l) == 2 && bti_labels_numbers(l, 2)[1] == 6);
    bti_labels_close(l);
    f = npy_typed("<i8", "(3,)", 3, 1);
    l = open_labels(file_save(&f, ".npy"), BTI_LABEL_NUMBERS);
    ck_assert(bti_labels_width(l) == 1 && bti_labels_numbers(l, 2)[0] == 3);
    bti_labels_close(l);
    refuse_labels(text_file("1 2\n3\n"), BTI_LABEL_NUMBERS,
                  "line 2: 1 numbers, the first example has 2");
    refuse_labels(text_file("1\n\n"), BTI_LABEL_NUMBERS, "line 2: no number");
    refuse_labels(text_file("1\nx\n"), BTI_LABEL_NUMBERS, "line 2: \"x\" is not a number");
    refuse_labels(text_file("1\nnan\n"), BTI_LABEL_NUMBERS, "line 2: \"nan\" is not a number");
    refuse_labels(text_file("1\n1e99\n"), BTI_LABEL_NUMBERS, "line 2: number 1 is not finite");
    f = npy_counting("(1, 1, 3)", 3, 0);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_NUMBERS, "3 dimensions");
    f = npy_typed("<f2", "(2,)", 1, 0);
    refuse_labels(file_save(&f, ".npy"), BTI_LABEL_NUMBERS, "2 bytes of numbers");
}
END_TEST

static bt_status open_and_close(const char *path, bti_label_kind kind) {
    bti_labels *l = NULL;
    bt_status s = try_labels(path, kind, &l);
    bti_labels_close(l);
    return s;
}

START_TEST(labels_without_memory) {
    static const bti_label_kind kind[] = {BTI_LABEL_CLASS, BTI_LABEL_SET, BTI_LABEL_NUMBERS};
    const char *path = text_file("1\n2\n3\n1\n");
    for (int i = 0; i < 3; i++) kit_walk(open_and_close(path, kind[i]), 4);
}
END_TEST

void add_labels(TCase *tc) {
    tcase_add_test(tc, classes);
    tcase_add_test(tc, sets);
    tcase_add_test(tc, known_classes);
    tcase_add_test(tc, class_arrays);
    tcase_add_test(tc, numbers);
    tcase_add_test(tc, labels_without_memory);
}
