#include "core/data/labels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/base/text.h"
#include "core/data/array.h"
#include "core/data/corpus.h"
#include "core/data/string_table.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

struct bti_labels {
    bti_label_kind kind;
    int64_t count;  /* examples */
    int64_t *begin; /* where the ids of an example begin; one more at the end */
    int32_t *id;    /* while files are read: in order of the first use */
    int64_t ids;    /* or numbers */
    float *number;  /* count x width */
    int64_t width;
    size_t room, id_room, number_room; /* of begin, id, number */
    bti_strings names;
    const char **class_name; /* in order, into names */
    int64_t *class_examples;
    char *path; /* of the first file, for messages */
};

/* ---- lists ------------------------------------------------------------------------------------
 */

static bt_status add_id(bti_labels *l, int32_t id) {
    BT_TRY(bti_grow((void **)&l->id, &l->id_room, (size_t)l->ids + 1, sizeof *l->id));
    l->id[l->ids++] = id;
    return BT_OK;
}

/* Adds the class of this name to the example that is read. */
static bt_status add_name(bti_labels *l, const bti_labels_spec *spec, const char *name, size_t n) {
    int64_t id;
    if (spec->classes == NULL) {
        BT_TRY(bti_strings_add(&l->names, name, n, &id));
    } else if ((id = bti_strings_find(&l->names, name, n)) < 0) {
        int letters = (int)(n < 100 ? n : 100);
        if (spec->class_count == 1)
            return bti_fail(BT_EINPUT, "\"%.*s\" is not the only class, %s", letters, name,
                            spec->classes[0]);
        return bti_fail(BT_EINPUT, "\"%.*s\" is none of the %" PRId32 " classes, %s ... %s",
                        letters, name, spec->class_count, spec->classes[0],
                        spec->classes[spec->class_count - 1]);
    }
    return add_id(l, (int32_t)id);
}

static bt_status add_number(bti_labels *l, int64_t at, double x) {
    if (!isfinite((float)x)) return bti_fail(BT_EINPUT, "number %" PRId64 " is not finite", at + 1);
    BT_TRY(bti_grow((void **)&l->number, &l->number_room, (size_t)l->ids + 1, sizeof *l->number));
    l->number[l->ids++] = (float)x;
    return BT_OK;
}

/* Notes where the next example begins. */
static bt_status add_begin(bti_labels *l, int64_t example) {
    BT_TRY(bti_grow((void **)&l->begin, &l->room, (size_t)example + 1, sizeof *l->begin));
    l->begin[example] = l->ids;
    return BT_OK;
}

/* The example that was read ends: its ids or numbers lie behind l->begin[l->count]. */
static bt_status end_example(bti_labels *l, const bti_labels_spec *spec) {
    int64_t n = l->ids - l->begin[l->count];
    if (l->kind == BTI_LABEL_NUMBERS) {
        int64_t want = spec->width ? spec->width : l->count ? l->width : n;
        if (n == 0) return bti_fail(BT_EINPUT, "no number");
        if (n != want)
            return bti_fail(BT_EINPUT, "%" PRId64 " numbers, %s %" PRId64, n,
                            spec->width ? "the run has" : "the first example has", want);
        l->width = n;
    }
    return add_begin(l, ++l->count);
}

/* ---- text ------------------------------------------------------------------------------------ */

static int is_between(char c) { return c == ' ' || c == '\t' || c == ','; }

static bt_status read_number(const char *s, size_t n, double *x) {
    char text[64], *end;
    snprintf(text, sizeof text, "%.*s", (int)n, s);
    *x = strtod(text, &end);
    if (n < sizeof text && *end == 0 && strspn(text, "0123456789+-.eE") == n) return BT_OK;
    return bti_fail(BT_EINPUT, "\"%s\" is not a number", text);
}

static bt_status add_words(bti_labels *l, const bti_labels_spec *spec, const char *s, size_t n) {
    for (size_t at = 0, words = 0; at < n; at++) {
        size_t bytes = 0;
        double x;
        while (at + bytes < n && !is_between(s[at + bytes])) bytes++;
        if (bytes == 0) continue;
        if (l->kind == BTI_LABEL_SET) {
            BT_TRY(add_name(l, spec, s + at, bytes));
        } else {
            BT_TRY(read_number(s + at, bytes, &x));
            BT_TRY(add_number(l, (int64_t)words++, x));
        }
        at += bytes;
    }
    return BT_OK;
}

static bt_status add_line(bti_labels *l, const bti_labels_spec *spec, const char *s, size_t n) {
    if (bti_utf8_check(s, n) < n) return bti_fail(BT_EINPUT, "neither text (UTF-8) nor .npy");
    if (l->kind == BTI_LABEL_CLASS) {
        while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) n--;
        while (n > 0 && (*s == ' ' || *s == '\t')) s++, n--;
        if (n == 0) return bti_fail(BT_EINPUT, "no label");
        BT_TRY(add_name(l, spec, s, n));
    } else {
        BT_TRY(add_words(l, spec, s, n));
    }
    return end_example(l, spec);
}

static bt_status read_lines(bti_labels *l, const bti_labels_spec *spec, const char *path) {
    bti_reader *r;
    const char *line;
    size_t n;
    BT_TRY(bti_reader_open(path, &r));
    bti_numbers numbers = bti_numbers_begin();
    bt_status s;
    while ((s = bti_reader_next(r, &line, &n)) == BT_OK && line != NULL) {
        s = add_line(l, spec, line, n);
        if (s == BT_EINPUT) bti_fail_prefix(s, "%s: line %" PRId64, path, bti_reader_line(r));
        if (s != BT_OK) break;
    }
    bti_reader_close(r);
    bti_numbers_end(numbers);
    return s;
}

/* ---- .npy ------------------------------------------------------------------------------------ */

static bt_status check_array(const bti_labels *l, const bti_labels_spec *spec, const bti_array *a) {
    bti_number type = (bti_number)a->place.type;
    if (l->kind == BTI_LABEL_NUMBERS) {
        if (a->dims == 1 || a->dims == 2) return BT_OK;
        return bti_fail(BT_EINPUT, "%d dimensions: numbers are [examples] or [examples, n]",
                        a->dims);
    }
    if (bti_number_is_float(type))
        return bti_fail(BT_EINPUT,
                        "numbers of type %s: classes are whole numbers; save y.astype(int)",
                        bti_number_name(type));
    if (l->kind == BTI_LABEL_CLASS && a->dims != 1)
        return bti_fail(BT_EINPUT, "%d dimensions: classes are [examples]", a->dims);
    if (l->kind == BTI_LABEL_SET && a->dims != 2)
        return bti_fail(BT_EINPUT, "%d dimensions: sets are [examples, classes] of 0 and 1",
                        a->dims);
    if (l->kind == BTI_LABEL_SET && spec->classes != NULL && a->shape[1] != spec->class_count)
        return bti_fail(BT_EINPUT, "%" PRId64 " classes, the run has %" PRId32, a->shape[1],
                        spec->class_count);
    return BT_OK;
}

/* A whole number as a name. */
static bt_status add_whole(bti_labels *l, const bti_labels_spec *spec, double x) {
    char name[32];
    if (fabs(x) > 0x1p53) return bti_fail(BT_EINPUT, "%.17g is beyond 2^53", x);
    int n = snprintf(name, sizeof name, "%.0f", x);
    return add_name(l, spec, name, (size_t)n);
}

static bt_status add_row(bti_labels *l, const bti_labels_spec *spec, const void *map,
                         const bti_array *a, int64_t row) {
    int64_t columns = a->dims == 2 ? a->shape[1] : 1;
    for (int64_t k = 0; k < columns; k++) {
        double x = bti_array_number(map, &a->place, (uint64_t)(row * columns + k));
        if (l->kind == BTI_LABEL_NUMBERS) {
            BT_TRY(add_number(l, k, x));
        } else if (l->kind == BTI_LABEL_CLASS) {
            BT_TRY(add_whole(l, spec, x));
        } else if (x == 1) {
            BT_TRY(add_id(l, (int32_t)k));
        } else if (x != 0) {
            return bti_fail(BT_EINPUT, "column %" PRId64 " is %.17g: sets are 0 and 1", k + 1, x);
        }
    }
    return end_example(l, spec);
}

/* The columns of sets are classes whether they occur or not. */
static bt_status add_columns(bti_labels *l, const bti_labels_spec *spec, int64_t columns) {
    int64_t before = l->names.count, ids = l->ids;
    if (spec->classes != NULL) return BT_OK;
    for (int64_t k = 0; k < columns; k++) BT_TRY(add_whole(l, spec, (double)k));
    l->ids = ids;
    if (l->names.count != columns || (before != 0 && before != columns))
        return bti_fail(BT_EINPUT, "%" PRId64 " classes, the files before it have %" PRId64,
                        columns, before);
    return BT_OK;
}

static bt_status read_array(bti_labels *l, const bti_labels_spec *spec, const void *map,
                            size_t bytes) {
    bti_array a = {.place = {.packed = bytes}};
    BT_TRY(bti_npy_parse(map, bytes, bytes, &a));
    BT_TRY(check_array(l, spec, &a));
    if (l->kind == BTI_LABEL_SET) BT_TRY(add_columns(l, spec, a.shape[1]));
    for (int64_t row = 0; row < a.shape[0]; row++) {
        bt_status s = add_row(l, spec, map, &a, row);
        if (s == BT_EINPUT) bti_fail_prefix(s, "row %" PRId64, row + 1);
        BT_TRY(s);
    }
    return BT_OK;
}

static bt_status read_file(bti_labels *l, const bti_labels_spec *spec, const char *path) {
    const void *map;
    size_t bytes;
    BT_TRY(bti_file_map(path, &map, &bytes));
    if (!bti_is_npy(map, bytes)) {
        bti_file_unmap(map, bytes);
        return read_lines(l, spec, path);
    }
    bt_status s = read_array(l, spec, map, bytes);
    if (s == BT_EINPUT) bti_fail_prefix(s, "%s", path);
    bti_file_unmap(map, bytes);
    return s;
}

/* ---- classes in order ------------------------------------------------------------------------ */

typedef struct class_of {
    const char *name;
    int64_t number;
    int32_t was; /* its index in order of the first use */
} class_of;

static int by_name(const void *pa, const void *pb) {
    const class_of *a = pa, *b = pb;
    return strcmp(a->name, b->name);
}

/* "07" and "7" are two classes. */
static int by_number(const void *pa, const void *pb) {
    const class_of *a = pa, *b = pb;
    return a->number != b->number ? (a->number < b->number ? -1 : 1) : by_name(pa, pb);
}

static int is_whole(const char *s) {
    s += *s == '-';
    size_t n = strlen(s);
    return n > 0 && n <= 18 && strspn(s, "0123456789") == n;
}

static int rising(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* An example's ids rise, each there once. */
static void tidy(bti_labels *l) {
    int64_t to = 0, from = 0;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t n = l->begin[i + 1] - from, kept = 0;
        qsort(l->id + from, (size_t)n, sizeof *l->id, rising);
        for (int64_t k = 0; k < n; k++)
            if (k == 0 || l->id[from + k] != l->id[to + kept - 1])
                l->id[to + kept++] = l->id[from + k];
        from = l->begin[i + 1];
        to += kept;
        l->begin[i + 1] = to;
    }
    l->ids = to;
}

static bt_status order_classes(bti_labels *l, int known) {
    size_t n = (size_t)l->names.count;
    int numbers = 1;
    class_of *list = bti_alloc(n, sizeof *list);
    int32_t *now = bti_alloc(n, sizeof *now);
    l->class_name = bti_alloc(n, sizeof *l->class_name);
    l->class_examples = bti_alloc(n, sizeof *l->class_examples);
    if (list == NULL || now == NULL || l->class_name == NULL || l->class_examples == NULL) {
        bti_free(list);
        bti_free(now);
        return BT_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *name = bti_strings_at(&l->names, (int64_t)i, &bytes);
        list[i] = (class_of){name, strtoll(name, NULL, 10), (int32_t)i};
        numbers &= is_whole(name);
    }
    if (!known && n > 0) qsort(list, n, sizeof *list, numbers ? by_number : by_name);
    for (size_t i = 0; i < n; i++) {
        now[list[i].was] = (int32_t)i;
        l->class_name[i] = list[i].name;
    }
    for (int64_t k = 0; k < l->ids; k++) l->id[k] = now[l->id[k]];
    bti_free(list);
    bti_free(now);
    tidy(l);
    for (int64_t k = 0; k < l->ids; k++) l->class_examples[l->id[k]]++;
    return BT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bt_status open_all(bti_labels *l, const bti_labels_spec *spec) {
    int64_t index;
    l->kind = spec->kind;
    l->width = spec->width;
    BT_TRY(add_begin(l, 0));
    l->path = bti_strdup(spec->file_count > 0 ? spec->files[0] : "");
    if (l->path == NULL) return BT_ENOMEM;
    for (int32_t i = 0; spec->classes != NULL && i < spec->class_count; i++)
        BT_TRY(bti_strings_add(&l->names, spec->classes[i], strlen(spec->classes[i]), &index));
    for (int32_t i = 0; i < spec->file_count; i++) BT_TRY(read_file(l, spec, spec->files[i]));
    if (l->count == 0) return bti_fail(BT_EINPUT, "%s: no label in it", l->path);
    return l->kind == BTI_LABEL_NUMBERS ? BT_OK : order_classes(l, spec->classes != NULL);
}

bt_status bti_labels_open(const bti_labels_spec *spec, bti_labels **out) {
    bti_labels *l = bti_alloc(1, sizeof *l);
    if (l == NULL) return BT_ENOMEM;
    bt_status s = open_all(l, spec);
    if (s != BT_OK) {
        bti_labels_close(l);
        return s;
    }
    *out = l;
    return BT_OK;
}

void bti_labels_close(bti_labels *l) {
    if (l == NULL) return;
    bti_strings_free(&l->names);
    bti_free(l->class_name);
    bti_free(l->class_examples);
    bti_free(l->begin);
    bti_free(l->id);
    bti_free(l->number);
    bti_free(l->path);
    bti_free(l);
}

int64_t bti_labels_count(const bti_labels *l) { return l->count; }
int32_t bti_labels_classes(const bti_labels *l) { return (int32_t)l->names.count; }
const char *bti_labels_class_name(const bti_labels *l, int32_t c) { return l->class_name[c]; }
int64_t bti_labels_class_examples(const bti_labels *l, int32_t c) { return l->class_examples[c]; }
int64_t bti_labels_width(const bti_labels *l) { return l->width; }

const int32_t *bti_labels_ids(const bti_labels *l, int64_t i, int64_t *count) {
    *count = l->begin[i + 1] - l->begin[i];
    return l->id + l->begin[i];
}

const float *bti_labels_numbers(const bti_labels *l, int64_t i) { return l->number + i * l->width; }

uint64_t bti_labels_checksum(const bti_labels *l) {
    XXH64_state_t h;
    uint64_t head[] = {(uint64_t)l->kind, (uint64_t)l->width};
    XXH64_reset(&h, 0);
    XXH64_update(&h, head, sizeof head);
    for (int64_t c = 0; c < l->names.count; c++)
        XXH64_update(&h, l->class_name[c], strlen(l->class_name[c]) + 1);
    XXH64_update(&h, l->begin, (size_t)(l->count + 1) * sizeof *l->begin);
    if (l->kind == BTI_LABEL_NUMBERS)
        XXH64_update(&h, l->number, (size_t)l->ids * sizeof *l->number);
    else if (l->ids > 0)
        XXH64_update(&h, l->id, (size_t)l->ids * sizeof *l->id);
    return XXH64_digest(&h);
}

bt_status bti_labels_match(const bti_labels *l, int64_t count, const char *path,
                           const char *units) {
    if (l->count == count) return BT_OK;
    return bti_fail(BT_EINPUT,
                    "%s has labels for %" PRId64 " examples, %s has %" PRId64
                    " %s: there must be as many, the n-th of one belongs to the n-th of the other",
                    l->path, l->count, path, count, units);
}
