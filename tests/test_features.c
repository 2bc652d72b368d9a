/* Dense inputs from files: every form with its values, and samples of other programs.
 * feature_faults.c: what is refused; feature_labels.c: labels; feature_program.c: runs. */
#include "tests/feature_parts.h"

#include <pthread.h>
#include <unistd.h>

static bti_features *open_list(const bti_features_spec *spec) {
    bti_features *f = NULL;
    kit_ok(bti_features_open(spec, &f));
    return f;
}

/* ---- forms ------------------------------------------------------------------------------------
 */

START_TEST(every_format) {
    bti_features *f = open_features(sample_file(_i));
    ck_assert_int_eq(bti_features_count(f), 6);
    ck_assert_int_eq(bti_features_width(f), 4);
    ck_assert_str_eq(bti_features_name(f), "image");
    uint64_t before = bti_alloc_count();
    float x[8];
    for (int i = 0; i < 6; i++) kit_ok(bti_features_read(f, (5 * i) % 6, x));
    ck_assert_uint_eq(bti_alloc_count(), before);
    for (int i = 5; i >= 0; i--) check_counting(f, i, 2, (float)(8 * i));
    const bti_features_stats *s = bti_features_get_stats(f);
    ck_assert(s->rows == 12 && s->least_rows == 2 && s->most_rows == 2 && s->most_example == 0);
    ck_assert(s->least == 0 && s->most == 47 && s->mean == 23.5);
    bti_features *plain = open_features(sample_file(0));
    ck_assert_uint_eq(bti_features_checksum(f), bti_features_checksum(plain));
    bti_features_close(plain);
    bti_features_close(f);
}
END_TEST

START_TEST(shapes_of_one_array) {
    static const struct {
        const char *shape;
        int numbers, count, rows, width;
    } form[] = {{"(3, 4)", 12, 3, 1, 4},         {"(3, 2, 4)", 24, 3, 2, 4},
                {"(3, 5, 2, 4)", 120, 3, 10, 4}, {"(1, 1)", 1, 1, 1, 1},
                {"(3L, 2L, 4L)", 24, 3, 2, 4},   {"( 3,2 ,4, )", 24, 3, 2, 4},
                {"(1, 197, 3)", 591, 1, 197, 3}};
    for (size_t i = 0; i < sizeof form / sizeof form[0]; i++) {
        file_bytes bytes = npy_counting(form[i].shape, form[i].numbers, -3);
        bti_features *f = open_features(file_save(&bytes, ".npy"));
        ck_assert_int_eq(bti_features_count(f), form[i].count);
        ck_assert_int_eq(bti_features_width(f), form[i].width);
        for (int k = 0; k < form[i].count; k++)
            check_counting(f, k, form[i].rows, (float)(k * form[i].rows * form[i].width - 3));
        bti_features_close(f);
    }
}
END_TEST

START_TEST(types) {
    static const char *const type[] = {"<f4", "<f8", "<f2", "bfloat16"};
    for (int i = 0; i < 4; i++) {
        file_bytes bytes = npy_typed(type[i], "(3, 2, 4)", 24, -5);
        bti_features *f = open_features(file_save(&bytes, ".npy"));
        for (int k = 0; k < 3; k++) check_counting(f, k, 2, (float)(8 * k - 5));
        bti_features_close(f);
        zip z = {.how = ZIP_DEFLATED};
        for (int k = 0; k < 2; k++) {
            bytes = npy_typed(type[i], "(4,)", 4, (float)(4 * k));
            zip_add(&z, kit_str("%d.npy", k), &bytes);
        }
        bytes = zip_finish(&z);
        f = open_features(file_save(&bytes, ".npz"));
        for (int k = 0; k < 2; k++) check_counting(f, k, 1, (float)(4 * k));
        bti_features_close(f);
    }
}
END_TEST

START_TEST(versions) {
    float x[] = {0, 1, 2, 3};
    for (int major = 1; major <= 3; major++) {
        file_bytes bytes = npy_raw(major, "\"<f4\"", "False", "(2, 2)", x, sizeof x);
        bti_features *f = open_features(file_save(&bytes, ".npy"));
        check_counting(f, 1, 1, 2);
        bti_features_close(f);
    }
}
END_TEST

static const char *array_name(int kind, int number) {
    switch (kind) {
    case 0:
        return kit_str("%d", number);
    case 1:
        return kit_str("%03d", number);
    case 2:
        return kit_str("arr_%d", number);
    default:
        return kit_str("2nd im.%d", number);
    }
}

/* Differing rows; names in the order of their numbers, not of the archive nor of their letters. */
START_TEST(an_array_each) {
    int kind = _i / 2, first = _i % 2;
    zip z = {.how = ZIP_STORED};
    for (int k = 0; k < 12; k++) {
        int i = (7 * k + 3) % 12, rows = 1 + i % 3;
        file_bytes e =
            npy_counting(i % 3 ? kit_str("(%d, 2)", rows) : "(2,)", 2 * rows, (float)(100 * i));
        zip_add(&z, kit_str("%s.npy", array_name(kind, i + first)), &e);
    }
    file_bytes bytes = zip_finish(&z);
    bti_features *f = open_features(file_save(&bytes, ".npz"));
    ck_assert_int_eq(bti_features_count(f), 12);
    for (int i = 0; i < 12; i++) check_counting(f, i, 1 + i % 3, (float)(100 * i));
    const bti_features_stats *s = bti_features_get_stats(f);
    ck_assert(s->least_rows == 1 && s->most_rows == 3 && s->most_example == 2);
    ck_assert(s->rows == 24 && s->least == 0 && s->most == 1105);
    bti_features_close(f);
}
END_TEST

/* One after the other, in any mix of forms. */
START_TEST(several_files) {
    const char *path[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) path[i] = sample_file(i);
    bti_features_spec spec = {
        .name = "x", .files = path, .file_count = SAMPLES, .width = 4, .rows_max = 2};
    bti_features *f = open_list(&spec);
    ck_assert_int_eq(bti_features_count(f), 6 * SAMPLES);
    for (int i = 6 * SAMPLES - 1; i >= 0; i--) check_counting(f, i, 2, (float)(8 * (i % 6)));
    kit_ok(bti_features_match(f, 6 * SAMPLES, "text.de", "lines"));
    kit_fails(bti_features_match(f, 99, "text.de", "lines"), BT_EINPUT, "text.de has 99 lines");
    kit_fails(bti_features_match(f, 99, "text.de", "lines"), BT_EINPUT, "has 48 examples");
    bti_features_close(f);
}
END_TEST

/* A checksum changes with a name, a number, a shape. */
START_TEST(checksums) {
    static const char *const shape[] = {"(6, 2, 4)", "(6, 2, 4)", "(3, 4, 4)", "(6, 4, 2)"};
    uint64_t sum[5];
    for (int i = 0; i < 5; i++) {
        file_bytes bytes = npy_counting(shape[i % 4], 48, i == 1);
        const char *path = file_save(&bytes, ".npy");
        bti_features_spec spec = {.name = i == 4 ? "y" : "x", .files = &path, .file_count = 1};
        bti_features *f = open_list(&spec);
        sum[i] = bti_features_checksum(f);
        bti_features_close(f);
        for (int k = 0; k < i; k++) ck_assert_msg(sum[i] != sum[k], "%d and %d agree", i, k);
    }
}
END_TEST

/* ---- memory -----------------------------------------------------------------------------------
 */

/* Resident bytes of this process that belong to files; -1 where the system does not tell. */
static long resident(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    long kib = -1;
    while (f != NULL && fgets(line, sizeof line, f) != NULL) sscanf(line, "RssFile: %ld", &kib);
    if (f != NULL) fclose(f);
    return kib < 0 ? -1 : kib * 1024;
}

/* A file of 256 MiB, nearly all of it a hole, is read without ever being resident as a whole. */
START_TEST(stays_out_of_memory) {
    enum { EXAMPLES = 64, NUMBERS = 1024 * 1024 };
    if (resident() < 0) {
        kit_skip("no RssFile in /proc/self/status");
        return;
    }
    file_bytes head = npy_raw(1, "'<f4'", "False", "(64, 1024, 1024)", NULL, 0);
    off_t bytes = (off_t)head.count + (off_t)EXAMPLES * NUMBERS * 4;
    const char *path = file_save(&head, ".npy");
    ck_assert_int_eq(truncate(path, bytes), 0);
    float *x = malloc(NUMBERS * sizeof *x);
    long before = resident();
    bti_features *f = open_features(path);
    for (int i = 0; i < EXAMPLES; i++) kit_ok(bti_features_read(f, i, x));
    long more = resident() - before;
    ck_assert_msg(more < 32l << 20, "%ld MiB more are resident", more >> 20);
    ck_assert_int_eq(bti_features_count(f), EXAMPLES);
    bti_features_close(f);
    free(x);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------
 */

typedef struct reading {
    const bti_features *f;
    int faults;
} reading;

static void *read_all(void *user) {
    reading *r = user;
    float x[8];
    for (int i = 0; i < 600; i++) {
        int at = (i * 5) % 6;
        if (bti_features_read(r->f, at, x) != BT_OK) r->faults++;
        for (int k = 0; k < 8; k++) r->faults += x[k] != (float)(8 * at + k);
    }
    return NULL;
}

START_TEST(threads) {
    bti_features *f = open_features(sample_file(_i));
    pthread_t thread[4];
    reading r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = (reading){f, 0};
        ck_assert_int_eq(pthread_create(&thread[i], NULL, read_all, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_int_eq(r[i].faults, 0);
    }
    bti_features_close(f);
}
END_TEST

/* ---- files of other programs ------------------------------------------------------------------
 */

/* The list as it came names the files without what our copies have before their names. */
static const char *real_list(const char *name) {
    char *names = kit_read(kit_shared(kit_str("data/features/%s", name)), NULL);
    const char *list = kit_str("%s/images.txt", feature_dir()), *text = "";
    for (char *n = strtok(names, "\n"); n != NULL; n = strtok(NULL, "\n"))
        text = kit_str("%s%s\n", text, kit_shared(kit_str("data/features/neuralmonkey_%s", n)));
    free(names);
    kit_write_text(list, text);
    return list;
}

/* Maps of 8 x 8 x 2048 that a network made of photographs; compared with the bytes in the files. */
START_TEST(real_maps) {
    static const struct {
        const char *list;
        int count;
    } part[] = {{"neuralmonkey_train_images.npz.txt", 10}, {"neuralmonkey_val_images.npz.txt", 3}};
    if (kit_shared("data/features/neuralmonkey_train_images.npz.txt") == NULL) {
        kit_skip("no shared/data/features");
        return;
    }
    enum { NUMBERS = 64 * 2048 };
    float *x = malloc(NUMBERS * sizeof *x);
    for (int p = 0; p < 2; p++) {
        const char *list = real_list(part[p].list);
        bti_features *f = open_features(list);
        char *names = kit_read(list, NULL), *name = strtok(names, "\n");
        ck_assert_int_eq(bti_features_count(f), part[p].count);
        ck_assert_int_eq(bti_features_width(f), 2048);
        for (int i = 0; i < part[p].count; i++, name = strtok(NULL, "\n")) {
            size_t bytes;
            char *raw = kit_read(name, &bytes), *npy = memmem(raw, bytes, "\x93NUMPY", 6);
            ck_assert_int_eq(bti_features_rows(f, i), 64);
            kit_ok(bti_features_read(f, i, x));
            ck_assert_ptr_nonnull(npy);
            npy += 10 + (unsigned char)npy[8] + 256 * (unsigned char)npy[9];
            ck_assert_mem_eq(x, npy, NUMBERS * sizeof *x);
            free(raw);
        }
        const bti_features_stats *s = bti_features_get_stats(f);
        ck_assert(s->least < s->mean && s->mean < s->most && s->most < 100);
        free(names);
        bti_features_close(f);
    }
    free(x);
}
END_TEST

/* Six numbers -3 .. 2 a file, in the types that safetensors-cpp's own tests have. */
START_TEST(samples) {
    static const char *const good[] = {"d", "e", "f"}, *const bad[] = {"B", "H", "I",
                                                                       "b", "h", "i"};
    if (kit_shared("data/features/safetensors_samples") == NULL) {
        kit_skip("no shared/data/features/safetensors_samples");
        return;
    }
    const char *list = kit_str("%s/samples.txt", feature_dir());
    for (int i = 0; i < 3; i++) {
        kit_write_text(
            list, kit_shared(kit_str("data/features/safetensors_samples/%s.safetensors", good[i])));
        bti_features *f = open_features(list);
        ck_assert_int_eq(bti_features_width(f), 6);
        check_counting(f, 0, 1, -3);
        bti_features_close(f);
    }
    for (int i = 0; i < 6; i++) {
        kit_write_text(
            list, kit_shared(kit_str("data/features/safetensors_samples/%s.safetensors", bad[i])));
        refuse_features(list, kit_str("%s.safetensors: ", bad[i]));
    }
    refuse_features(kit_shared("data/features/candle_test.npy"),
                    "numbers of type int64: features are float32");
    refuse_features(kit_shared("data/features/candle_test.npz"), "array \"x\"");
}
END_TEST

static void add(TCase *tc) {
    tcase_add_loop_test(tc, every_format, 0, SAMPLES);
    tcase_add_test(tc, shapes_of_one_array);
    tcase_add_test(tc, types);
    tcase_add_test(tc, versions);
    tcase_add_loop_test(tc, an_array_each, 0, 8);
    tcase_add_test(tc, several_files);
    tcase_add_test(tc, checksums);
    tcase_add_test(tc, stays_out_of_memory);
    tcase_add_loop_test(tc, threads, 0, SAMPLES);
    tcase_add_test(tc, real_maps);
    tcase_add_test(tc, samples);
    add_feature_faults(tc);
    add_labels(tc);
    add_feature_program(tc);
}

int main(int argc, char **argv) { return kit_main("features", add, argc, argv); }
