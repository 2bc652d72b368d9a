#include "core/engine/initial.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/engine/checkpoint.h"

#define PIECE 65536 /* elements converted at a time */
#define NAMED 3     /* names of a kind that a message has */

struct bti_initial {
    const bti_model *model;
    bti_checkpoint *checkpoint; /* of a folder: owns the file */
    bti_st_file *file;
    char *path;    /* of the file */
    int32_t *from; /* for each parameter the tensor's place in the file; -1: none */
    int32_t count; /* parameters that have one */
    char *text;
};

/* ---- values, a piece at a time ------------------------------------------------------- */

/* Two pieces: as the file has them, which may lie askew there, and in the model's type. */
typedef struct pieces {
    void *raw, *value;
} pieces;

static bt_status pieces_new(bt_dtype dtype, pieces *p) {
    p->raw = bti_alloc(PIECE, sizeof(double));
    p->value = bti_alloc(PIECE, bti_dtype_size(dtype));
    return p->raw != NULL && p->value != NULL ? BT_OK : BT_ENOMEM;
}

static void pieces_free(pieces *p) {
    bti_free(p->raw);
    bti_free(p->value);
}

/* Elements at .. at+n-1 of tensor `k` in `dtype`, into p->value. */
static void convert(const bti_initial *i, int32_t k, int64_t at, int64_t n, bt_dtype dtype,
                    pieces *p) {
    const void *data;
    const bti_st_tensor *t = bti_st_at(i->file, (size_t)k, &data);
    size_t size = bti_dtype_size(t->dtype);
    memcpy(p->raw, (const char *)data + (size_t)at * size, (size_t)n * size);
    if (t->dtype == dtype)
        memcpy(p->value, p->raw, (size_t)n * size);
    else
        for (int64_t j = 0; j < n; j++)
            bti_store(p->value, dtype, j, bti_load(p->raw, t->dtype, j));
}

static int64_t elements(const bti_initial *i, int32_t param) {
    const bti_param *p = &i->model->params.param[param];
    return p->rows * p->cols;
}

static const char *name_at(const bti_initial *i, int32_t k) {
    return bti_st_at(i->file, (size_t)k, NULL)->name;
}

/* What is done with n values of parameter `param` from `at` on, which come from the file's tensor.
 */
typedef bt_status (*piece_fn)(const bti_initial *i, int32_t param, int64_t at, int64_t n,
                              const void *value, void *user);

/* All values that will be taken, in pieces of the model's type. */
static bt_status each_piece(const bti_initial *i, piece_fn fn, void *user) {
    const bti_params *t = &i->model->params;
    pieces p;
    bt_status status = pieces_new(t->dtype, &p);
    for (int32_t k = 0; k < t->count && status == BT_OK; k++) {
        int64_t count = i->from[k] < 0 ? 0 : elements(i, k);
        for (int64_t at = 0; at < count && status == BT_OK; at += PIECE) {
            int64_t n = count - at < PIECE ? count - at : PIECE;
            convert(i, i->from[k], at, n, t->dtype, &p);
            status = fn(i, k, at, n, p.value, user);
        }
    }
    pieces_free(&p);
    return status;
}

static bt_status finite_piece(const bti_initial *i, int32_t param, int64_t at, int64_t n,
                              const void *value, void *user) {
    bt_dtype dtype = i->model->params.dtype;
    (void)at;
    (void)user;
    for (int64_t j = 0; j < n; j++)
        if (!isfinite(bti_load(value, dtype, j)))
            return bti_fail(BT_EINPUT, "%s: %s holds a value that is not finite in %s", i->path,
                            name_at(i, i->from[param]), bti_dtype_name(dtype));
    return BT_OK;
}

/* Every value that will be taken is finite, in the model's type too. */
static bt_status check_finite(const bti_initial *i) { return each_piece(i, finite_piece, NULL); }

/* Two tensors for one parameter must be copies. */
static bt_status check_copies(const bti_initial *i, int32_t param, int32_t a, int32_t b) {
    bt_dtype dtype = i->model->params.dtype;
    int64_t count = elements(i, param);
    pieces p = {NULL, NULL}, q = {NULL, NULL};
    bt_status status = pieces_new(dtype, &p);
    if (status == BT_OK) status = pieces_new(dtype, &q);
    for (int64_t at = 0; at < count && status == BT_OK; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        convert(i, a, at, n, dtype, &p);
        convert(i, b, at, n, dtype, &q);
        if (memcmp(p.value, q.value, (size_t)n * bti_dtype_size(dtype)) != 0)
            status = bti_fail(BT_EINPUT,
                              "%s: %s and %s differ, but are one tensor of this model "
                              "(model.tie_embeddings)",
                              i->path, name_at(i, a), name_at(i, b));
    }
    pieces_free(&p);
    pieces_free(&q);
    return status;
}

/* ---- matching ------------------------------------------------------------------------ */

/* Names of one kind of fault: the first ones, and how many there are. */
typedef struct list {
    bti_text text;
    int64_t count;
} list;

static void note(list *l, const char *fmt, ...) BTI_PRINTF(2, 3);
static void note(list *l, const char *fmt, ...) {
    char one[256];
    if (l->count++ >= NAMED) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(one, sizeof one, fmt, ap);
    va_end(ap);
    bti_text_add(&l->text, "%s%s", l->count > 1 ? ", " : "", one);
}

typedef struct faults {
    list missing, other, shape; /* parameters, tensors, tensors */
} faults;

static int32_t param_of(const bti_initial *i, const char *name) {
    char below[BTI_PARAM_NAME + 16];
    int32_t param = bti_model_find(i->model, name);
    if (param >= 0 || strlen(name) >= BTI_PARAM_NAME) return param;
    snprintf(below, sizeof below, "transformer.%s", name);
    return bti_model_find(i->model, below);
}

static void shape_text(const bti_st_tensor *t, char *out, size_t room) {
    size_t used = 0;
    out[0] = 0;
    for (int d = 0; d < t->dims && used < room; d++)
        used += (size_t)snprintf(out + used, room - used, "%s%lld", d ? " x " : "",
                                 (long long)t->shape[d]);
}

/* Is the tensor what the parameter wants? Notes it when not. */
static int fits(const bti_st_tensor *t, const bti_param *p, list *shape) {
    bti_st_tensor want = {.dims = p->dims, .shape = {p->dims == 2 ? p->rows : p->cols, p->cols}};
    char there[96], here[96];
    if (!bti_dtype_is_float(t->dtype)) {
        note(shape, "%s (%s)", t->name, bti_dtype_name(t->dtype));
        return 0;
    }
    int same = t->dims == want.dims;
    for (int d = 0; d < want.dims && same; d++) same = t->shape[d] == want.shape[d];
    if (same) return 1;
    shape_text(t, there, sizeof there);
    shape_text(&want, here, sizeof here);
    note(shape, "%s (%s there, %s here)", t->name, there, here);
    return 0;
}

/* Finds the tensor of each parameter. */
static bt_status match(bti_initial *i, faults *f) {
    const bti_params *t = &i->model->params;
    char *seen = bti_alloc((size_t)t->count, 1);
    bt_status status = seen != NULL ? BT_OK : BT_ENOMEM;
    for (int32_t k = 0; k < (int32_t)bti_st_count(i->file) && status == BT_OK; k++) {
        const bti_st_tensor *s = bti_st_at(i->file, (size_t)k, NULL);
        if (strncmp(s->name, "optimizer.", 10) == 0) continue; /* moments of a checkpoint */
        int32_t param = param_of(i, s->name);
        if (param < 0) {
            note(&f->other, "%s", s->name);
            continue;
        }
        seen[param] = 1;
        if (!fits(s, &t->param[param], &f->shape)) continue;
        if (i->from[param] >= 0)
            status = check_copies(i, param, i->from[param], k);
        else
            i->from[param] = k, i->count++;
    }
    for (int32_t k = 0; k < t->count && status == BT_OK; k++)
        if (!seen[k]) note(&f->missing, "%s", t->param[k].name);
    bti_free(seen);
    return status;
}

static void add_list(bti_text *out, const char *before, const list *l) {
    if (l->count == 0) return;
    bti_text_add(out, "%s%s", before, l->text.text ? l->text.text : "");
    if (l->count > NAMED) bti_text_add(out, " and %lld more", (long long)(l->count - NAMED));
}

/* What was taken and what was not; a failure when not all fits and not `partial`. */
static bt_status judge(bti_initial *i, int partial, const faults *f) {
    int64_t wrong = f->missing.count + f->other.count + f->shape.count;
    bti_text out = {0};
    if (wrong == 0)
        bti_text_add(&out, "all %d parameters of %s", i->model->params.count, i->path);
    else if (partial && i->count > 0)
        bti_text_add(&out, "%d of %d parameters from %s", i->count, i->model->params.count,
                     i->path);
    else
        bti_text_add(&out, "%s is not a model like this one (%lld tensors differ)", i->path,
                     (long long)wrong);
    add_list(&out, "; not there: ", &f->missing);
    add_list(&out, "; of another shape: ", &f->shape);
    add_list(&out, "; not in this model: ", &f->other);
    BT_TRY(bti_text_take(&out, &i->text));
    if (wrong == 0 || (partial && i->count > 0)) return BT_OK;
    return bti_fail(BT_EINPUT, "initial_model: %s%s", i->text,
                    i->count > 0 ? "; initial_partial: true takes what fits" : "");
}

/* ---- opening ------------------------------------------------------------------------- */

static bt_status open_file(bti_initial *i, const char *path) {
    if (!bti_dir_exists(path)) {
        i->path = bti_strdup(path);
        return i->path ? bti_st_open_in_place(path, BTI_ST_VERIFY, &i->file) : BT_ENOMEM;
    }
    BT_TRY(bti_checkpoint_find(path, &i->checkpoint));
    i->file = i->checkpoint->file;
    i->path = bti_strdup(i->checkpoint->path);
    return i->path ? BT_OK : BT_ENOMEM;
}

bt_status bti_initial_open(const char *path, int partial, const bti_model *m, bti_initial **out) {
    faults f = {0};
    bti_initial *i = bti_alloc(1, sizeof *i);
    if (i == NULL) return BT_ENOMEM;
    i->model = m;
    bt_status status = open_file(i, path);
    if (status == BT_OK) {
        i->from = bti_alloc((size_t)m->params.count, sizeof *i->from);
        status = i->from != NULL ? BT_OK : BT_ENOMEM;
    }
    for (int32_t k = 0; k < m->params.count && status == BT_OK; k++) i->from[k] = -1;
    if (status == BT_OK) status = match(i, &f);
    if (status == BT_OK) status = judge(i, partial, &f);
    if (status == BT_OK) status = check_finite(i);
    bti_free(f.missing.text.text);
    bti_free(f.other.text.text);
    bti_free(f.shape.text.text);
    if (status != BT_OK) {
        bti_initial_close(i);
        return status;
    }
    *out = i;
    return BT_OK;
}

void bti_initial_close(bti_initial *i) {
    if (i == NULL) return;
    if (i->checkpoint == NULL) bti_st_close(i->file);
    bti_checkpoint_close(i->checkpoint);
    bti_free(i->path);
    bti_free(i->from);
    bti_free(i->text);
    bti_free(i);
}

int bti_initial_is_whole(const bti_initial *i) { return i->count == i->model->params.count; }

const char *bti_initial_text(const bti_initial *i) { return i->text; }

/* ---- what shapes do not tell ----------------------------------------------------------- */

static void note_setting(void *user, const char *key, const char *was, const char *is) {
    static const char *const say[] = {"model.norm",      "model.activation", "model.heads",
                                      "model.positions", "model.final_norm", "model.norm_eps"};
    const bti_initial *i = user;
    for (size_t k = 0; k < sizeof say / sizeof say[0]; k++)
        if (strcmp(key, say[k]) == 0)
            bti_log(BT_LOG_WARN, "%s is %s here; %s was trained with %s", key, is, i->path, was);
}

void bti_initial_compare(const bti_initial *i, const bti_run_config *cfg,
                         const uint64_t tokenizer[2]) {
    static const char *const key[] = {"source_tokenizer", "target_tokenizer"};
    for (int side = 0; side < 2; side++) {
        const char *was = bti_st_metadata(i->file, key[side]);
        if (was != NULL && strtoull(was, NULL, 16) != tokenizer[side])
            bti_log(BT_LOG_WARN,
                    "%s was trained with another %.6s tokeniser (checksum %s, here %016" PRIx64
                    "): its tables are taken row by row all the same",
                    i->path, key[side], was, tokenizer[side]);
    }
    const char *run = bti_st_metadata(i->file, "run");
    bti_run_config *old;
    if (run == NULL || bti_run_config_parse(i->path, run, NULL, 0, &old) != BT_OK) return;
    if (bti_run_config_compare(old, cfg, note_setting, (void *)(uintptr_t)i) != BT_OK)
        bti_log(BT_LOG_WARN, "%s: its settings cannot be compared", i->path);
    bti_run_config_free(old);
}

/* ---- loading --------------------------------------------------------------------------- */

static bt_status load_piece(const bti_initial *i, int32_t param, int64_t at, int64_t n,
                            const void *value, void *user) {
    (void)i;
    return bti_engine_write_part(user, BTI_REGION_WEIGHTS, param, at, n, value);
}

bt_status bti_initial_load(const bti_initial *i, bti_engine *e) {
    return each_piece(i, load_piece, e);
}
