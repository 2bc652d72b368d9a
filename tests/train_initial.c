/* initial_model: weights of other runs and programs, in any floating type, by name. */
#include "core/base/safetensors.h"
#include "core/engine/initial.h"
#include "tests/kit.h"
#include "tests/train_parts.h"

/* ---- files as other programs write them ------------------------------------------------ */

typedef struct foreign {
    const char *name;
    const char *type; /* in the file's words */
    bt_dtype dtype;
    int dims;
    int64_t shape[2];
    const double *x;
} foreign;

/* Without padding or checksum; a space more or less in the header puts the data askew. */
static const char *write_foreign(const foreign *t, size_t count, int spaces) {
    const char *header = "", *path = kit_str("%s/foreign.safetensors", kit_tmpdir());
    size_t at = 0, bytes = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t n = t[i].shape[0] * (t[i].dims == 2 ? t[i].shape[1] : 1);
        size_t end = at + (size_t)n * bti_dtype_size(t[i].dtype);
        const char *shape = t[i].dims == 2
                                ? kit_str("%d,%d", (int)t[i].shape[0], (int)t[i].shape[1])
                                : kit_str("%d", (int)t[i].shape[0]);
        header = kit_str("%s%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         header, i ? "," : "", t[i].name, t[i].type, shape, at, end);
        at = end;
    }
    header = kit_str("{%s}%*s", header, spaces, "");
    size_t length = strlen(header);
    unsigned char *file = calloc(8 + length + at, 1), *to = file + 8 + length;
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> 8 * i);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < count; i++) {
        int64_t n = t[i].shape[0] * (t[i].dims == 2 ? t[i].shape[1] : 1);
        size_t size = bti_dtype_size(t[i].dtype);
        void *one = malloc((size_t)n * size + 1);
        for (int64_t j = 0; j < n; j++) bti_store(one, t[i].dtype, j, t[i].x[j]);
        memcpy(to + bytes, one, (size_t)n * size);
        bytes += (size_t)n * size;
        free(one);
    }
    kit_write(path, file, 8 + length + at);
    free(file);
    return path;
}

static const struct {
    const char *type;
    bt_dtype dtype;
} types[] = {{"F32", BT_F32}, {"F64", BT_F64}, {"F16", BT_F16}, {"BF16", BT_BF16}};

static mk_setup setup_of(bti_tie tie) {
    static const int64_t length[] = {4, 6};
    mk_setup s = mk_defaults();
    s.model.d_model = 12;
    s.model.ff = 20;
    s.model.tie = tie;
    s.model.positions = BTI_POSITIONS_LEARNED;
    s.model.position_rows = 7;
    s.sentence = mk_sentences(2, length, length, 97, 1);
    s.sentences = 2;
    return s;
}

/* All parameters of a model, with the values at x, in one type. */
static foreign *tensors_of(const bti_model *m, const double *x, int type) {
    const bti_params *t = &m->params;
    foreign *out = calloc((size_t)t->count + 4, sizeof *out);
    for (int32_t i = 0; i < t->count; i++) {
        const bti_param *p = &t->param[i];
        out[i] = (foreign){p->name,
                           types[type].type,
                           types[type].dtype,
                           p->dims,
                           {p->dims == 2 ? p->rows : p->cols, p->cols},
                           x};
        x += p->rows * p->cols;
    }
    return out;
}

static void load(const char *path, int partial, mk_model *m) {
    bti_initial *i;
    kit_ok(bti_initial_open(path, partial, m->model, &i));
    kit_ok(bti_initial_load(i, m->engine));
    bti_initial_close(i);
}

/* Every type, askew and not, with "transformer." and without: the values rounded to that type. */
START_TEST(every_type) {
    mk_setup s = setup_of(BTI_TIE_NONE);
    mk_model a = mk_open(&s);
    int64_t n;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    foreign *t = tensors_of(a.model, x, _i);
    for (int32_t k = 0; k < a.model->params.count; k++)
        if (_i % 2 && strncmp(t[k].name, "transformer.", 12) == 0) t[k].name += 12;
    for (int spaces = 0; spaces < 2; spaces++) {
        s.engine.seed = 99;
        mk_model b = mk_open(&s);
        load(write_foreign(t, (size_t)a.model->params.count, spaces), 0, &b);
        double *y = mk_state(&b, BTI_REGION_WEIGHTS, NULL);
        for (int64_t k = 0; k < n; k++) {
            double rounded;
            bti_store(&rounded, types[_i].dtype, 0, x[k]);
            ck_assert(y[k] == bti_load(&rounded, types[_i].dtype, 0));
        }
        free(y);
        mk_close(&b);
    }
    free(t);
    free(x);
    mk_close(&a);
}
END_TEST

/* A tied table stands in the file once, by any name, or several times with equal values. */
START_TEST(tied_tables) {
    static const char *const names[] = {"src_embed.weight", "tgt_embed.weight", "generator.weight"};
    mk_setup s = setup_of(BTI_TIE_ALL);
    mk_model a = mk_open(&s);
    int64_t n;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    size_t count = (size_t)a.model->params.count;
    s.no_init = 1;
    for (int copies = 1; copies <= 7; copies++) { /* bits: which names */
        foreign *t = tensors_of(a.model, x, 0), table = t[0];
        size_t used = 0;
        ck_assert_str_eq(table.name, names[0]);
        memmove(t, t + 1, (count - 1) * sizeof *t);
        used = count - 1;
        for (int k = 0; k < 3; k++)
            if (copies >> k & 1) {
                table.name = names[k];
                t[used++] = table;
            }
        mk_model b = mk_open(&s);
        load(write_foreign(t, used, 0), 0, &b);
        double *y = mk_state(&b, BTI_REGION_WEIGHTS, NULL);
        ck_assert_mem_eq(x, y, (size_t)n * sizeof *x);
        if (copies == 7) { /* another last copy */
            bti_initial *i;
            double *other = malloc((size_t)(97 * 12) * sizeof *other);
            memcpy(other, x, (size_t)(97 * 12) * sizeof *other);
            other[97 * 12 - 1] += 1;
            t[used - 1].x = other;
            for (int partial = 0; partial < 2; partial++)
                kit_fails(bti_initial_open(write_foreign(t, used, 0), partial, b.model, &i),
                          BT_EINPUT, "generator.weight differ");
            free(other);
        }
        free(y);
        free(t);
        mk_close(&b);
    }
    free(x);
    mk_close(&a);
}
END_TEST

/* ---- what does not fit ------------------------------------------------------------------ */

static void refused(const bti_model *m, const foreign *t, size_t count, int partial,
                    const char *say) {
    bti_initial *i;
    kit_fails(bti_initial_open(write_foreign(t, count, 0), partial, m, &i), BT_EINPUT, say);
}

START_TEST(does_not_fit) {
    mk_setup s = setup_of(BTI_TIE_NONE);
    mk_model a = mk_open(&s);
    int64_t n;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    size_t count = (size_t)a.model->params.count;
    foreign *t = tensors_of(a.model, x, 0), *last = &t[count - 1];
    foreign kept = *last;
    refused(a.model, t, count - 2, 0,
            kit_str("(2 tensors differ); not there: %s, %s; initial_partial: true",
                    t[count - 2].name, last->name));
    refused(a.model, t, 3, 0,
            kit_str("(%d tensors differ); not there: %s, %s, %s and %d more", (int)count - 3,
                    t[3].name, t[4].name, t[5].name, (int)count - 6));
    last->name = "decoder.pe"; /* one is missing, one is too many */
    refused(a.model, t, count, 0, "(2 tensors differ)");
    refused(a.model, t, count, 0, "; not in this model: decoder.pe");
    *last = kept;
    t[0].shape[0]--;
    refused(a.model, t, count, 0,
            "of another shape: src_embed.weight (96 x 12 there, 97 x 12 here)");
    t[0].shape[0]++;
    t[0].shape[1]--;
    refused(a.model, t, count, 0, "src_embed.weight (97 x 11 there, 97 x 12 here)");
    t[0].shape[1]++;
    t[0].type = "I32";
    t[0].dtype = BT_I32;
    refused(a.model, t, count, 0, "of another shape: src_embed.weight (int32)");
    t[0].name = "none";
    refused(a.model, t, 1, 1, "is not a model like this one");
    free(t);
    free(x);
    mk_close(&a);
}
END_TEST

/* With `partial` the rest keeps its first values. */
START_TEST(partial) {
    mk_setup s = setup_of(BTI_TIE_NONE);
    mk_model a = mk_open(&s);
    int64_t n, at = 0;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    const bti_params *p = &a.model->params;
    size_t count = (size_t)p->count;
    foreign *t = tensors_of(a.model, x, 0);
    s.engine.seed = 5;
    mk_model b = mk_open(&s);
    double *y = mk_state(&b, BTI_REGION_WEIGHTS, NULL), *z;
    t[0].shape[0]--;              /* another shape */
    t[1].name = "unknown.weight"; /* missing and too many */
    bti_initial *i;
    kit_ok(bti_initial_open(write_foreign(t, count, 1), 1, b.model, &i));
    ck_assert(!bti_initial_is_whole(i));
    const char *say[] = {kit_str("%d of %d parameters from ", (int)count - 2, (int)count),
                         kit_str("; not there: %s", p->param[1].name),
                         "; of another shape: src_embed.weight (96 x 12 there, 97 x 12 here)",
                         "; not in this model: unknown.weight"};
    for (int k = 0; k < 4; k++)
        ck_assert_msg(strstr(bti_initial_text(i), say[k]) != NULL, "%s", bti_initial_text(i));
    kit_ok(bti_initial_load(i, b.engine));
    bti_initial_close(i);
    z = mk_state(&b, BTI_REGION_WEIGHTS, NULL);
    for (size_t k = 0; k < count; k++) {
        int64_t size = p->param[k].rows * p->param[k].cols;
        ck_assert_mem_eq(z + at, (k < 2 ? y : x) + at, (size_t)size * sizeof *z);
        at += size;
    }
    free(t);
    free(x);
    free(y);
    free(z);
    mk_close(&a);
    mk_close(&b);
}
END_TEST

/* NaN, infinity, and what becomes infinity in the model's type; not looked for in what is left. */
START_TEST(not_finite) {
    mk_setup s = setup_of(BTI_TIE_NONE);
    mk_model a = mk_open(&s);
    int64_t n;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    size_t count = (size_t)a.model->params.count;
    for (int k = 0; k < 3; k++) {
        foreign *t = tensors_of(a.model, x, k == 2), *last = &t[a.model->positions[1]];
        double values[7 * 12];
        ck_assert_int_eq(last->shape[0] * last->shape[1], 7 * 12);
        memcpy(values, last->x, sizeof values);
        values[7 * 12 - 1] = k == 0 ? NAN : k == 1 ? -INFINITY : 1e39;
        last->x = values;
        refused(a.model, t, count, 0, "tgt_positions.weight holds a value that is not finite");
        refused(a.model, t, count, 1, "tgt_positions.weight holds a value that is not finite");
        last->name = "another";
        bti_initial *i;
        kit_ok(bti_initial_open(write_foreign(t, count, 0), 1, a.model, &i));
        bti_initial_close(i);
        free(t);
    }
    free(x);
    mk_close(&a);
}
END_TEST

/* Every request of memory may fail: an error then, and nothing leaks. */
START_TEST(allocation_fails) {
    mk_setup s = setup_of(BTI_TIE_ALL);
    mk_model a = mk_open(&s);
    int64_t n;
    double *x = mk_state(&a, BTI_REGION_WEIGHTS, &n);
    foreign *t = tensors_of(a.model, x, 1);
    size_t count = (size_t)a.model->params.count;
    t[count] = t[0]; /* a copy under another name */
    t[count].name = "tgt_embed.weight";
    const char *path = write_foreign(t, count + 1, 0);
    int64_t failed = 0;
    for (uint64_t k = 1;; k++) {
        bti_initial *i = NULL;
        bti_alloc_fail_at(k);
        bt_status status = bti_initial_open(path, 0, a.model, &i);
        if (status == BT_OK) status = bti_initial_load(i, a.engine);
        bti_alloc_fail_at(0);
        bti_initial_close(i);
        if (status == BT_OK) break;
        ck_assert_int_eq(status, BT_ENOMEM);
        failed++;
    }
    ck_assert_int_gt(failed, 8);
    free(t);
    free(x);
    mk_close(&a);
}
END_TEST

void add_train_initial(TCase *tc) {
    tcase_add_loop_test(tc, every_type, 0, 4);
    tcase_add_test(tc, tied_tables);
    tcase_add_test(tc, does_not_fit);
    tcase_add_test(tc, partial);
    tcase_add_test(tc, not_finite);
    tcase_add_test(tc, allocation_fails);
}
