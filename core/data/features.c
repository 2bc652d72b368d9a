/* The index: which array, or which part of one, is example i. */
#include "core/data/features.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/data/corpus.h"
#include "core/data/feature_index.h"

/* ---- growing --------------------------------------------------------------------------------- */

/* Takes the mapping over, in any case. */
static bt_status add_file(bti_features *f, const char *path, const void *map, size_t bytes,
                          int64_t before) {
    char *own = bti_strdup(path);
    if (own == NULL) goto fail;
    if (f->files == f->file_room) {
        size_t room = f->file_room ? 2 * f->file_room : 4;
        bti_feature_file *more = bti_realloc(f->file, room, sizeof *more);
        if (more == NULL) goto fail;
        f->file = more;
        f->file_room = room;
    }
    f->file[f->files++] = (bti_feature_file){own, map, bytes, before};
    return BT_OK;
fail:
    bti_free(own);
    bti_file_unmap(map, bytes);
    return BT_ENOMEM;
}

static bt_status add_run(bti_features *f, int64_t count, int64_t rows, const bti_place *place) {
    if (f->runs == f->run_room) {
        size_t room = f->run_room ? 2 * f->run_room : 4;
        bti_feature_run *more = bti_realloc(f->run, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        f->run = more;
        f->run_room = room;
    }
    f->run[f->runs++] = (bti_feature_run){f->count, count, rows, f->files - 1, *place};
    f->count += count;
    return BT_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* The array's last sizes, from dimension `skip` on, as rows x width. */
static bt_status matrix_of(const bti_array *a, int skip, int64_t *rows, int64_t *width) {
    int dims = a->dims - skip;
    if (dims < 1 || dims > 3)
        return bti_fail(
            BT_EINPUT,
            "%d dimensions: one array for all has 2 to 4 ([examples, width], [examples, "
            "rows, width], [examples, h, w, width]), one for each example 1 to 3",
            a->dims);
    *width = a->shape[a->dims - 1];
    *rows = 1;
    for (int d = skip; d < a->dims; d++)
        if (a->shape[d] == 0)
            return bti_fail(BT_EINPUT, "%s", *width ? "an example without rows" : "empty rows");
    for (int d = skip; d < a->dims - 1; d++) *rows *= a->shape[d]; /* below the array's bytes */
    return BT_OK;
}

static bt_status check_width(bti_features *f, const bti_features_spec *spec, int64_t width) {
    if (spec->width != 0 && width != spec->width)
        return bti_fail(BT_EINPUT, "rows are %" PRId64 " numbers wide, %s%s is %" PRId64, width,
                        spec->where ? spec->where : "the model's",
                        spec->where ? ".width" : " width", spec->width);
    if (f->width != 0 && width != f->width)
        return bti_fail(BT_EINPUT, "rows are %" PRId64 " numbers wide, those before it %" PRId64,
                        width, f->width);
    f->width = width;
    return BT_OK;
}

/* Adds `count` examples that lie in one array. */
static bt_status add_array(bti_features *f, const bti_features_spec *spec, const bti_array *a,
                           int skip, int64_t count) {
    int64_t rows = 0, width = 0;
    if (!bti_number_is_float((bti_number)a->place.type))
        return bti_fail(BT_EINPUT,
                        "numbers of type %s: features are float32, float16, bfloat16 or "
                        "float64; save x.astype('float32')",
                        bti_number_name((bti_number)a->place.type));
    BT_TRY(matrix_of(a, skip, &rows, &width));
    BT_TRY(check_width(f, spec, width));
    if (spec->rows_max != 0 && rows > spec->rows_max)
        return bti_fail(BT_EINPUT, "%" PRId64 " rows, %s%s is %" PRId32, rows,
                        spec->where ? spec->where : "the model's",
                        spec->where ? ".max_rows" : " most", spec->rows_max);
    return add_run(f, count, rows, &a->place);
}

/* ---- one array for all, or one for each example ---------------------------------------------- */

static bt_status add_whole(bti_features *f, const bti_features_spec *spec, const bti_array *a) {
    int64_t count = a->dims > 0 ? a->shape[0] : 1;
    if (count == 0) return bti_fail(BT_EINPUT, "no example: the first size of its shape is 0");
    if (a->place.deflated && count > 1)
        return bti_fail(BT_EINPUT,
                        "one compressed array for %" PRId64
                        " examples, which cannot be read out of "
                        "order: save it with np.save, or one array for each example",
                        count);
    return add_array(f, spec, a, 1, count);
}

/* A name as its number, behind a word. */
typedef struct numbered {
    int64_t number;
    size_t word; /* bytes */
    const bti_array *array;
} numbered;

static int split_name(const bti_array *a, numbered *out) {
    size_t n = strlen(a->name), at = n;
    while (at > 0 && a->name[at - 1] >= '0' && a->name[at - 1] <= '9') at--;
    if (at == n || n - at > 18) return 0;
    *out = (numbered){strtoll(a->name + at, NULL, 10), at, a};
    return 1;
}

static int by_number(const void *pa, const void *pb) {
    const numbered *a = pa, *b = pb;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Refuses names that do not count the examples without a gap. */
static bt_status check_names(const numbered *list, size_t count) {
    const numbered *first = &list[0];
    for (size_t i = 0; i < count; i++) {
        const numbered *x = &list[i];
        int64_t want = first->number + (int64_t)i;
        if (x->word != first->word || memcmp(x->array->name, first->array->name, x->word) != 0)
            return bti_fail(BT_EINPUT,
                            "arrays \"%s\" and \"%s\": each of several arrays is an example, and "
                            "their names must differ by a number only",
                            first->array->name, x->array->name);
        if (i > 0 && x->number == list[i - 1].number)
            return bti_fail(BT_EINPUT, "arrays \"%s\" and \"%s\" have the same number",
                            list[i - 1].array->name, x->array->name);
        if (first->number > 1 || x->number != want)
            return bti_fail(BT_EINPUT,
                            "example %" PRId64 " is missing: there is no array \"%.*s%" PRId64
                            "\", the next is \"%s\"",
                            (int64_t)i + 1, (int)first->word, first->array->name,
                            first->number > 1 ? (int64_t)0 : want, x->array->name);
    }
    return BT_OK;
}

static bt_status add_each(bti_features *f, const bti_features_spec *spec,
                          const bti_arrays *arrays) {
    numbered *list = bti_alloc(arrays->count, sizeof *list);
    if (list == NULL) return BT_ENOMEM;
    bt_status s = BT_OK;
    for (size_t i = 0; i < arrays->count && s == BT_OK; i++)
        if (!split_name(&arrays->item[i], &list[i]))
            s = bti_fail(BT_EINPUT,
                         "array \"%s\": each of several arrays is an example, and their names must "
                         "be numbers, or one word and numbers (arr_0, arr_1, ...)",
                         arrays->item[i].name);
    if (s == BT_OK) {
        qsort(list, arrays->count, sizeof *list, by_number);
        s = check_names(list, arrays->count);
    }
    for (size_t i = 0; i < arrays->count && s == BT_OK; i++) {
        s = add_array(f, spec, list[i].array, 0, 1);
        if (s == BT_EINPUT)
            bti_fail_prefix(s, "example %zu (array %s)", i + 1, list[i].array->name);
    }
    bti_free(list);
    return s;
}

static bt_status add_arrays(bti_features *f, const bti_features_spec *spec,
                            const bti_arrays *arrays) {
    if (arrays->count == 0) return bti_fail(BT_EINPUT, "no array in it");
    if (arrays->count == 1) return add_whole(f, spec, &arrays->item[0]);
    return add_each(f, spec, arrays);
}

/* ---- files ----------------------------------------------------------------------------------- */

static bt_status add_path(bti_features *f, const bti_features_spec *spec, const char *path) {
    const void *map;
    size_t bytes;
    bti_arrays arrays = {0};
    BT_TRY(bti_file_map(path, &map, &bytes));
    BT_TRY(add_file(f, path, map, bytes, f->count));
    bt_status s = bti_arrays_list(path, map, bytes, &arrays);
    if (s == BT_OK) {
        s = add_arrays(f, spec, &arrays);
        if (s == BT_EINPUT) bti_fail_prefix(s, "%s", path);
    }
    bti_arrays_free(&arrays);
    return s;
}

/* A file with one example. */
static bt_status add_listed(bti_features *f, const bti_features_spec *spec, const char *path,
                            int64_t before) {
    const void *map;
    size_t bytes;
    bti_arrays arrays = {0};
    BT_TRY(bti_file_map(path, &map, &bytes));
    bt_status s = bti_arrays_list(path, map, bytes, &arrays);
    bti_file_unmap(map, bytes);
    if (s == BT_OK) s = add_file(f, path, NULL, bytes, before);
    if (s == BT_OK) {
        s = arrays.count == 1
                ? add_array(f, spec, &arrays.item[0], 0, 1)
                : bti_fail(BT_EINPUT, "%zu arrays: a file of a list holds one example",
                           arrays.count);
        if (s == BT_EINPUT) bti_fail_prefix(s, "%s", path);
    }
    bti_arrays_free(&arrays);
    return s;
}

static bt_status add_line(bti_features *f, const bti_features_spec *spec, const char *dir,
                          const char *line, size_t bytes, int64_t before) {
    if (bytes == 0) return bti_fail(BT_EINPUT, "the line is empty: its example is missing");
    if (memchr(line, 0, bytes) != NULL)
        return bti_fail(BT_EINPUT, "a 00 byte: not a list of files");
    char *path = bti_path_join(dir, line);
    if (path == NULL) return BT_ENOMEM;
    bt_status s = add_listed(f, spec, path, before);
    bti_free(path);
    return s;
}

static bt_status add_list(bti_features *f, const bti_features_spec *spec, const char *list) {
    bti_reader *r;
    const char *line;
    size_t n;
    int64_t before = f->count;
    char *dir = bti_path_dir(list);
    if (dir == NULL) return BT_ENOMEM;
    bt_status s = bti_reader_open_until(list, spec->stop, &r);
    if (s != BT_OK) {
        bti_free(dir);
        return s;
    }
    while ((s = bti_reader_next(r, &line, &n)) == BT_OK && line != NULL) {
        s = bti_feature_stopped(spec->stop);
        if (s == BT_OK) s = add_line(f, spec, dir, line, n, before);
        if (s == BT_OK) continue;
        if (s == BT_EINPUT) bti_fail_prefix(s, "%s: line %" PRId64, list, bti_reader_line(r));
        break;
    }
    if (s == BT_OK && f->count == before) s = bti_fail(BT_EINPUT, "%s: an empty list", list);
    bti_reader_close(r);
    bti_free(dir);
    return s;
}

static int is_list(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot != NULL && strcmp(dot, ".txt") == 0;
}

static bt_status open_all(bti_features *f, const bti_features_spec *spec) {
    for (int32_t i = 0; i < spec->file_count; i++)
        BT_TRY(is_list(spec->files[i]) ? add_list(f, spec, spec->files[i])
                                       : add_path(f, spec, spec->files[i]));
    if (f->count == 0) return bti_fail(BT_EINPUT, "no file");
    return bti_feature_scan(f, spec->stop);
}

bt_status bti_features_open(const bti_features_spec *spec, bti_features **out) {
    bti_features *f = bti_alloc(1, sizeof *f);
    if (f == NULL) return BT_ENOMEM;
    f->name = bti_strdup(spec->name);
    bt_status s = f->name ? open_all(f, spec) : BT_ENOMEM;
    if (s != BT_OK) {
        if (s == BT_EINPUT) bti_fail_prefix(s, "feature %s", spec->name);
        bti_features_close(f);
        return s;
    }
    *out = f;
    return BT_OK;
}

void bti_features_close(bti_features *f) {
    if (f == NULL) return;
    for (size_t i = 0; i < f->files; i++) {
        bti_file_unmap(f->file[i].map, f->file[i].bytes);
        bti_free(f->file[i].path);
    }
    bti_free(f->file);
    bti_free(f->run);
    bti_free(f->name);
    bti_free(f);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The last run that begins at or before example i. */
static const bti_feature_run *run_of(const bti_features *f, int64_t i) {
    size_t low = 0, high = f->runs;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (f->run[middle].first <= i)
            low = middle;
        else
            high = middle;
    }
    return &f->run[low];
}

bt_status bti_feature_map(const bti_features *f, const bti_feature_run *r, const void **map) {
    const bti_feature_file *file = &f->file[r->file];
    size_t bytes;
    *map = file->map;
    if (file->map != NULL) return BT_OK;
    BT_TRY(bti_file_map(file->path, map, &bytes));
    if (bytes == file->bytes) return BT_OK;
    bti_file_unmap(*map, bytes);
    return bti_fail(BT_EINPUT, "%s: had %zu bytes when the run began, now %zu", file->path,
                    file->bytes, bytes);
}

void bti_feature_unmap(const bti_features *f, const bti_feature_run *r, const void *map) {
    const bti_feature_file *file = &f->file[r->file];
    if (file->map == NULL) bti_file_unmap(map, file->bytes);
}

/* A bti_floats_fn: user is where the next numbers go. */
static bt_status copy(void *user, const float *x, size_t n) {
    float **to = user;
    memcpy(*to, x, n * sizeof *x);
    *to += n;
    return BT_OK;
}

/* What was read need not stay resident. Of a compressed array all of it was. */
static void forget(const bti_features *f, const bti_feature_run *r, const void *map, uint64_t first,
                   uint64_t count) {
    const bti_place *p = &r->place;
    const char *entry = (const char *)map + p->entry;
    uint64_t size = bti_number_bytes((bti_number)p->type);
    if (f->file[r->file].map == NULL) return;
    if (p->deflated)
        bti_file_forget(entry, p->packed);
    else
        bti_file_forget(entry + p->at + first * size, count * size);
}

bt_status bti_feature_numbers(const bti_features *f, const bti_feature_run *r, const void *map,
                              uint64_t first, uint64_t count, bti_floats_fn fn, void *user) {
    bt_status s = bti_array_floats(map, &r->place, first, count, fn, user);
    forget(f, r, map, first, count);
    return s;
}

bt_status bti_features_read(const bti_features *f, int64_t i, float *out) {
    const bti_feature_run *r = run_of(f, i);
    const void *map;
    uint64_t count = (uint64_t)(r->rows * f->width), first = (uint64_t)(i - r->first) * count;
    BT_TRY(bti_feature_map(f, r, &map));
    bt_status s = bti_feature_numbers(f, r, map, first, count, copy, &out);
    bti_feature_unmap(f, r, map);
    if (s != BT_OK) bti_fail_prefix(s, "feature %s: %s", f->name, f->file[r->file].path);
    return s;
}

const char *bti_features_name(const bti_features *f) { return f->name; }
const char *bti_features_path(const bti_features *f) { return f->file[0].path; }
int64_t bti_features_count(const bti_features *f) { return f->count; }
int64_t bti_features_width(const bti_features *f) { return f->width; }
int64_t bti_features_rows(const bti_features *f, int64_t i) { return run_of(f, i)->rows; }

const char *bti_features_place(const bti_features *f, int64_t i, int64_t *example) {
    const bti_feature_file *file = &f->file[run_of(f, i)->file];
    *example = i - file->before + 1;
    return file->path;
}

const bti_features_stats *bti_features_get_stats(const bti_features *f) { return &f->stats; }
uint64_t bti_features_checksum(const bti_features *f) { return f->checksum; }

bt_status bti_features_match(const bti_features *f, int64_t count, const char *path,
                             const char *units) {
    if (f->count == count) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "feature %s: %s%s has %" PRId64 " examples, %s has %" PRId64
                    " %s: there must be as many, the n-th of one belongs to the n-th of the other",
                    f->name, f->file[0].path, f->file[f->files - 1].before > 0 ? " and others" : "",
                    f->count, path, count, units);
}
