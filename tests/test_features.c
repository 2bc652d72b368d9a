/* Dense inputs from files: samples of other programs, forms, and what is refused. */
#include "tests/kit.h"

#include "core/data/features.h"

static bti_features *open_file(const char *path) {
    bti_features *f = NULL;
    bti_features_spec spec = {
        .name = "image", .files = &path, .file_count = 1, .where = "data.features.0"};
    kit_ok(bti_features_open(&spec, &f));
    return f;
}

static void refused(const char *path, const char *part) {
    bti_features *f = NULL;
    bti_features_spec spec = {
        .name = "image", .files = &path, .file_count = 1, .where = "data.features.0"};
    kit_fails(bti_features_open(&spec, &f), BT_EINPUT, part);
    ck_assert_ptr_null(f);
}

/* ---- files of other programs ------------------------------------------------------------------
 */

/* The list as it came names the files without what our copies have before their names. */
static const char *real_list(const char *name) {
    char *names = kit_read(kit_shared(kit_str("data/features/%s", name)), NULL);
    const char *list = kit_str("%s/images.txt", kit_tmpdir()), *text = "";
    for (char *n = strtok(names, "\n"); n != NULL; n = strtok(NULL, "\n"))
        text = kit_str("%s%s\n", text, kit_shared(kit_str("data/features/neuralmonkey_%s", n)));
    free(names);
    kit_write_text(list, text);
    return list;
}

/* 10 maps of 8 x 8 x 2048 that a network made of photographs, behind a list. */
START_TEST(real_maps) {
    if (kit_shared("data/features/neuralmonkey_train_images.npz.txt") == NULL) {
        kit_skip("no shared/data/features");
        return;
    }
    bti_features *f = open_file(real_list("neuralmonkey_train_images.npz.txt"));
    ck_assert_int_eq(bti_features_count(f), 10);
    ck_assert_int_eq(bti_features_width(f), 2048);
    float *x = malloc(64 * 2048 * sizeof *x);
    for (int i = 0; i < 10; i++) {
        ck_assert_int_eq(bti_features_rows(f, i), 64);
        kit_ok(bti_features_read(f, i, x));
    }
    free(x);
    bti_features_close(f);
}
END_TEST

START_TEST(whole_numbers) {
    const char *path = kit_shared("data/features/candle_test.npy");
    if (path == NULL)
        kit_skip("no shared/data/features");
    else
        refused(path, "candle_test.npy");
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, real_maps);
    tcase_add_test(tc, whole_numbers);
}

int main(int argc, char **argv) { return kit_main("features", add, argc, argv); }
