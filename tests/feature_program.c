/* Features and labels of a run: `data check` as its users see it, and what is refused before a run
 * begins (H1). */
#include "tests/feature_parts.h"
#include "tests/program_kit.h"

typedef struct place {
    const char *dir, *yaml;
} place;

static const char *in(place p, const char *name) { return kit_str("%s/%s", p.dir, name); }

static void put_npy(place p, const char *name, const char *shape, int numbers) {
    file_bytes f = npy_counting(shape, numbers, 0);
    kit_write(in(p, name), f.at, f.count);
    file_free(&f);
}

/* 100 images of 64 numbers, 100 text encodings of 3 x 8, captions and labels; a held-out part
 * of 10. `data` is the rest of the run file's group. */
static place new_place(const char *data) {
    place p = {.dir = kit_tmpdir()};
    p.yaml = in(p, "run.yaml");
    put_npy(p, "image.npy", "(100, 64)", 6400);
    put_npy(p, "text.npy", "(100, 3, 8)", 2400);
    put_npy(p, "image.valid.npy", "(10, 64)", 640);
    put_npy(p, "text.valid.npy", "(10, 3, 8)", 240);
    char *captions = toy_text(100, 1), *held_out = toy_text(10, 0);
    kit_write_text(in(p, "train.en"), captions);
    kit_write_text(in(p, "valid.en"), held_out);
    free(captions);
    free(held_out);
    const char *labels = "", *values = "";
    for (int i = 0; i < 100; i++) labels = kit_str("%s%s\n", labels, i % 4 ? "cat" : "dog");
    for (int i = 0; i < 100; i++) values = kit_str("%s%d.5 %d\n", values, i, -i);
    kit_write_text(in(p, "labels"), labels);
    kit_write_text(in(p, "labels.valid"), "cat\ncat\ncat\ncat\ncat\ncat\ncat\ncat\ncat\ndog\n");
    kit_write_text(in(p, "values"), values);
    kit_write_text(p.yaml, kit_str("output: out\n"
                                   "data:\n%s"
                                   "tokenizer: {model: %s}\n"
                                   "model: {d_model: 16, ff: 16, heads: 2}\n",
                                   data, toy_model()));
    return p;
}

static const char captions[] = "  train: {target: train.en}\n"
                               "  valid: {target: valid.en}\n"
                               "  features:\n"
                               "    - {name: image, train: image.npy, valid: image.valid.npy}\n"
                               "    - name: text\n"
                               "      train: [text.npy]\n"
                               "      valid: text.valid.npy\n"
                               "      max_rows: 3\n",
                  classes[] = "  features: [{name: image, train: image.npy, width: 64}]\n"
                              "  labels: {train: labels}\n";

START_TEST(check_captions) {
    place p = new_place(captions);
    program r = bantam("data", "check", p.yaml);
    check_status(r, 0);
    check_has(r.out, "training text: 100 lines\n");
    check_has(r.out, ": 0 target lines\n  longest lines: line ");
    check_lacks(r.out, "source");
    check_has(r.out, "training examples: 100\n"
                     "  image: 100 examples, rows of 64 numbers from 0 to 6399 (mean 3200)\n"
                     "    rows of an example: 1\n"
                     "  text: 100 examples, rows of 8 numbers from 0 to 2399 (mean 1200)\n"
                     "    rows of an example: 3\n");
    check_has(r.out, "validation examples: 10\n  image: 10 examples");
    check_has(r.out, "in both: 0 training lines, 0 validation lines\n");
    r = bantam("data", "check", p.yaml, "--json");
    check_status(r, 0);
    json_t *j = parse_json(r.out), *inputs = json_object_get(j, "train_inputs");
    json_t *f = json_array_get(json_object_get(inputs, "features"), 1);
    check_fields(f, "name examples width rows values");
    ck_assert(number_at(f, "examples") == 100 && number_at(f, "width") == 8);
    check_fields(json_object_get(f, "rows"), "least most mean most_example");
    ck_assert(number_at(json_object_get(f, "rows"), "mean") == 3);
    ck_assert(number_at(json_object_get(f, "values"), "most") == 2399);
    ck_assert(json_is_null(json_object_get(inputs, "labels")));
    ck_assert(number_at(json_object_get(j, "train"), "lines") == 100);
    json_decref(j);
}
END_TEST

START_TEST(check_classes) {
    place p = new_place(classes);
    program r = bantam("data", "check", p.yaml);
    check_status(r, 0);
    check_has(r.out, "  labels: 100 examples, 2 classes: cat (75), dog (25)\n");
    check_lacks(r.out, "text");
    r = bantam("data", "check", p.yaml, "--json", "--set", "data.labels.train=values", "--set",
               "model.head=regression");
    check_status(r, 0);
    json_t *j = parse_json(r.out);
    json_t *l = json_object_get(json_object_get(j, "train_inputs"), "labels");
    check_fields(l, "kind examples classes width values");
    ck_assert_str_eq(json_string_value(json_object_get(l, "kind")), "numbers");
    ck_assert(number_at(l, "width") == 2 &&
              number_at(json_object_get(l, "values"), "least") == -99);
    ck_assert(json_is_null(json_object_get(j, "train")) &&
              json_is_null(json_object_get(j, "valid_inputs")));
    json_decref(j);
    r = bantam("data", "check", p.yaml, "--set", "data.labels.valid=labels.valid", "--set",
               "data.features.0.valid=image.valid.npy");
    check_status(r, 0);
    check_has(r.out, "validation examples: 10\n");
    check_has(r.out, "10 examples, 2 classes: cat (9), dog (1)\n");
}
END_TEST

/* Refused by `data check`, with both words; nothing is written. */
static void check_bad(place p, const char *set, const char *one, const char *two) {
    program r =
        set ? bantam("data", "check", p.yaml, "--set", set) : bantam("data", "check", p.yaml);
    check_refused(r, one);
    check_has(r.err, two);
    ck_assert_int_eq(toy_entries(in(p, "out"), ""), 0);
}

/* H1, c d g: other counts, other widths. */
START_TEST(h1_counts) {
    place p = new_place(captions);
    put_npy(p, "image.npy", "(99, 64)", 6336);
    check_bad(p, NULL, "feature image: ", "image.npy has 99 examples, ");
    check_has(bantam("data", "check", p.yaml).err, "train.en has 100 lines");
    p = new_place(captions);
    put_npy(p, "text.npy", "(99, 3, 8)", 2376);
    check_bad(p, NULL, "feature text: ", "text.npy has 99 examples");
    p = new_place(captions);
    put_npy(p, "text.valid.npy", "(9, 3, 8)", 216);
    check_bad(p, NULL, "text.valid.npy has 9 examples", "valid.en has 10 lines");
    p = new_place(classes);
    put_npy(p, "image.npy", "(101, 64)", 6464);
    check_bad(p, NULL, "image.npy has 101 examples", "labels has 100 labels");
    p = new_place(classes);
    check_bad(p, "data.features.0.width=32", "image.npy: rows are 64 numbers wide",
              "data.features.0.width is 32");
    p = new_place(captions);
    check_bad(p, "data.features.1.max_rows=2", "text.npy: 3 rows", "data.features.1.max_rows is 2");
    check_bad(p, "data.features.1.valid=image.valid.npy",
              "image.valid.npy: rows are 64 numbers wide", "those of the training part 8");
}
END_TEST

/* Rows that are mixed must go together; one row goes with any. */
START_TEST(mixed_rows) {
    static const char *const fusion[] = {"model.fusion=add", "model.fusion=gate"};
    place p = new_place(captions);
    for (int i = 0; i < 2; i++)
        check_bad(p, fusion[i], "feature text: ",
                  kit_str("%s: example 1 has 3 rows, that of feature image has 1: model.fusion",
                          in(p, "text.npy")));
    program r = bantam("train", p.yaml, "--device", "cpu", "--set", fusion[1]);
    check_refused(r, "example 1 has 3 rows");
    ck_assert(!is_file(in(p, "out/run.yaml")) && !is_file(in(p, "out/log.jsonl")));
    /* beside text: the second file's third example is that of line 5 */
    p = new_place("  train: {source: s, target: t}\n"
                  "  features: [{name: text, train: [a.npy, b.npz]}]\n");
    kit_write_text(in(p, "s"), "a\na\na b\na\na\n");
    kit_write_text(in(p, "t"), "a\na\na\na\na\n");
    put_npy(p, "a.npy", "(2, 1, 8)", 16);
    zip z = {.how = ZIP_STORED};
    for (int i = 0; i < 3; i++) {
        file_bytes entry = npy_counting(i == 2 ? "(40, 8)" : "(1, 8)", i == 2 ? 320 : 8, 0);
        zip_add(&z, kit_str("%d.npy", i), &entry);
    }
    file_bytes f = zip_finish(&z);
    kit_write(in(p, "b.npz"), f.at, f.count);
    file_free(&f);
    const char *part =
        kit_str("%s: example 3 has 40 rows, line 5 of %s has ", in(p, "b.npz"), in(p, "s"));
    check_bad(p, fusion[0], "feature text: ", part);
    check_refused(bantam("train", p.yaml, "--device", "cpu", "--set", fusion[0]), part);
    check_refused(bantam("plan", p.yaml, "--device", "cpu", "--set", fusion[0]), part);
    check_status(bantam("data", "check", p.yaml), 0);
}
END_TEST

/* H1, a b e: each bad file, by every command that would begin a run. */
START_TEST(h1_files) {
    static const unsigned char nan[] = {0, 0, 0xC0, 0x7F}, infinity[] = {0, 0, 0x80, 0x7F};
    static const char *const part[] = {
        "25592 bytes of numbers, its header needs 25600",
        "25605 bytes of numbers, its header needs 25600",
        "row 7, column 3 is NaN; rows with NaN or infinity in all: 2"};
    for (int i = 0; i < 3; i++) {
        place p = new_place(classes);
        file_bytes f = npy_counting("(100, 64)", 6400, 0), g = {NULL, 0};
        size_t data = f.count - 25600;
        if (i == 0) f.count -= 8;
        if (i == 1) {
            file_put(&g, f.at, data + 12800);
            file_put(&g, "frame", 5);
            file_put(&g, f.at + data + 12800, 12800);
            file_free(&f);
            f = g;
        }
        if (i == 2) memcpy(f.at + data + 4 * (6 * 64 + 2), nan, 4);
        if (i == 2) memcpy(f.at + data + 4 * (8 * 64), infinity, 4);
        kit_write(in(p, "image.npy"), f.at, f.count);
        file_free(&f);
        check_bad(p, NULL, in(p, "image.npy"), part[i]);
    }
    place p = new_place(classes);
    kit_write_text(in(p, "labels"), "cat\n\n");
    check_bad(p, NULL, in(p, "labels"), "line 2: no label");
}
END_TEST

void add_feature_program(TCase *tc) {
    tcase_add_test(tc, check_captions);
    tcase_add_test(tc, check_classes);
    tcase_add_test(tc, h1_counts);
    tcase_add_test(tc, mixed_rows);
    tcase_add_test(tc, h1_files);
}
