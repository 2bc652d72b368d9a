#include "core/engine/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"

#define FORMAT "bantam checkpoint 1"
#define PIECE 262144 /* elements copied at a time */

/* What a parameter has a tensor for: its values, and of each moment its values, or codes and scales
 * where those are in 8 bits. */
typedef struct part {
    const char *prefix;
    bti_region region;
    enum { VALUES, CODES, SCALES } what;
} part;
enum { MOST_PARTS = 5 };
static const part wide[] = {{"", BTI_REGION_WEIGHTS, VALUES},
                            {"optimizer.exp_avg.", BTI_REGION_MOMENT1, VALUES},
                            {"optimizer.exp_avg_sq.", BTI_REGION_MOMENT2, VALUES}};
static const part narrow[MOST_PARTS] = {
    {"", BTI_REGION_WEIGHTS, VALUES},
    {"optimizer.exp_avg.", BTI_REGION_MOMENT1, CODES},
    {"optimizer.exp_avg_scale.", BTI_REGION_MOMENT1, SCALES},
    {"optimizer.exp_avg_sq.", BTI_REGION_MOMENT2, CODES},
    {"optimizer.exp_avg_sq_scale.", BTI_REGION_MOMENT2, SCALES}};

static int is_narrow(const bti_engine *e) {
    return e->plan->places.moments.kind == BTI_MOMENTS_8BIT;
}

/* ---- metadata ----------------------------------------------------------------------------------
 */

typedef struct field {
    const char *key;
    enum { COUNT, CHECKSUM, REAL, WHOLE_REAL, TEXT } kind;
    size_t offset; /* in bti_checkpoint_info */
} field;

/* As they follow one another in the file. */
#define AT(name) offsetof(bti_checkpoint_info, name)
static const field fields[] = {{"update", COUNT, AT(update)},
                               {"steps", COUNT, AT(steps)},
                               {"source_vocabulary", COUNT, AT(vocab[0])},
                               {"target_vocabulary", COUNT, AT(vocab[1])},
                               {"source_tokenizer", CHECKSUM, AT(tokenizer[0])},
                               {"target_tokenizer", CHECKSUM, AT(tokenizer[1])},
                               {"corpus", CHECKSUM, AT(corpus)},
                               {"validated", COUNT, AT(validated)},
                               {"best_update", COUNT, AT(best_update)},
                               {"worse", COUNT, AT(worse)},
                               {"best", REAL, AT(best)},
                               {"loss_scale", REAL, AT(loss_scale)},
                               {"good_updates", WHOLE_REAL, AT(good)},
                               {"held_out", CHECKSUM, AT(held_out)},
                               {"run", TEXT, AT(run)},
                               {"data", TEXT, AT(data)}};
#undef AT
enum { FIELDS = sizeof fields / sizeof fields[0] };

/* A text stays where it is; all else is written to `number`. Where numbers have a point. */
static const char *print_field(const field *f, const bti_checkpoint_info *info, char number[32]) {
    const void *at = (const char *)info + f->offset;
    const char *text = f->kind == TEXT ? *(const char *const *)at : number;
    if (f->kind == COUNT) snprintf(number, 32, "%" PRId64, *(const int64_t *)at);
    if (f->kind == CHECKSUM) snprintf(number, 32, "%016" PRIx64, *(const uint64_t *)at);
    if (f->kind == REAL) snprintf(number, 32, "%a", *(const double *)at);
    if (f->kind == WHOLE_REAL) snprintf(number, 32, "%.0f", *(const double *)at);
    return text ? text : "";
}

static void read_field(const field *f, const char *text, bti_checkpoint_info *info) {
    void *at = (char *)info + f->offset;
    if (f->kind == COUNT) *(int64_t *)at = strtoll(text, NULL, 10);
    if (f->kind == CHECKSUM) *(uint64_t *)at = strtoull(text, NULL, 16);
    if (f->kind == REAL || f->kind == WHOLE_REAL) *(double *)at = strtod(text, NULL);
    if (f->kind == TEXT) *(const char **)at = text;
}

/* ---- save --------------------------------------------------------------------------------------
 */

/* Elements of a part of parameter i, and their type. */
static int64_t count_of(const bti_params *t, int32_t i, const part *k) {
    int64_t n = t->param[i].rows * t->param[i].cols;
    return k->what == SCALES ? bti_moment_blocks(n) : n;
}

static bt_dtype type_of(const bti_params *t, const part *k) {
    return k->what == CODES ? BT_U8 : k->what == SCALES ? bti_dtype_acc(t->dtype) : t->dtype;
}

static bti_st_tensor describe(const bti_params *t, int32_t i, const part *k, const char *name) {
    const bti_param *p = &t->param[i];
    bti_st_tensor s = {.name = name, .dtype = type_of(t, k), .dims = p->dims};
    s.shape[0] = p->dims == 2 ? p->rows : p->cols;
    s.shape[1] = p->cols;
    if (k->what == SCALES) s.dims = 1;
    if (k->what == SCALES) s.shape[0] = count_of(t, i, k);
    return s;
}

static int all_finite(const void *data, bt_dtype dtype, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(bti_load(data, dtype, i))) return 0;
    return 1;
}

static bt_status read_part(bti_engine *e, const part *k, int32_t i, int64_t at, int64_t count,
                           void *piece) {
    if (k->what == VALUES) return bti_engine_read(e, k->region, i, at, count, piece);
    return bti_engine_read_8bit(e, k->region, k->what == CODES ? BTI_CODES : BTI_SCALES, i, at,
                                count, piece);
}

static bt_status write_param(bti_engine *e, bti_st_writer *w, const part *k, int32_t i,
                             void *piece) {
    const bti_params *t = &e->model->params;
    bt_dtype type = type_of(t, k);
    int64_t n = count_of(t, i, k);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        BT_TRY(read_part(e, k, i, at, count, piece));
        if (!all_finite(piece, type, count))
            return bti_fail(BT_ENUMERIC, "%s holds a value that is not finite; nothing is saved",
                            t->param[i].name);
        BT_TRY(bti_st_write(w, piece, (size_t)count * bti_dtype_size(type)));
    }
    return BT_OK;
}

/* What is frozen has no moments. */
static int has(const bti_params *t, int32_t i, const part *k) {
    return k->region == BTI_REGION_WEIGHTS || !t->param[i].frozen;
}

/* Names and shapes of all tensors; names are in one block. */
static bt_status list_tensors(const bti_params *t, const part *parts, int count,
                              bti_st_tensor **out, char **names, size_t *used) {
    size_t width = BTI_PARAM_NAME + 32, n = (size_t)count * (size_t)t->count;
    *used = 0;
    *out = bti_alloc(n, sizeof **out);
    *names = bti_alloc(n, width);
    if (*out == NULL || *names == NULL) return BT_ENOMEM;
    for (int k = 0; k < count; k++)
        for (int32_t i = 0; i < t->count; i++) {
            char *name = *names + *used * width;
            if (!has(t, i, &parts[k])) continue;
            snprintf(name, width, "%s%s", parts[k].prefix, t->param[i].name);
            (*out)[(*used)++] = describe(t, i, &parts[k], name);
        }
    return BT_OK;
}

bt_status bti_checkpoint_save(bti_engine *e, const char *path, const bti_checkpoint_info *info,
                              int moments) {
    const bti_params *t = &e->model->params;
    const part *parts = is_narrow(e) ? narrow : wide;
    int count = !moments ? 1 : is_narrow(e) ? MOST_PARTS : 3;
    char number[FIELDS][32];
    const char *metadata[2 * (FIELDS + 1)] = {"format", FORMAT};
    bti_st_tensor *tensors = NULL;
    char *names = NULL;
    size_t used = 0;
    bti_st_writer *w = NULL;
    void *piece = bti_alloc(PIECE, bti_dtype_size(t->dtype));
    bt_status status =
        piece == NULL ? BT_ENOMEM : list_tensors(t, parts, count, &tensors, &names, &used);
    bti_numbers numbers = bti_numbers_begin();
    for (size_t i = 0; i < FIELDS; i++) {
        metadata[2 * i + 2] = fields[i].key;
        metadata[2 * i + 3] = print_field(&fields[i], info, number[i]);
    }
    bti_numbers_end(numbers);
    if (status == BT_OK) status = bti_st_create(path, tensors, used, metadata, FIELDS + 1, &w);
    for (int k = 0; k < count && status == BT_OK; k++)
        for (int32_t i = 0; i < t->count && status == BT_OK; i++)
            if (has(t, i, &parts[k])) status = write_param(e, w, &parts[k], i, piece);
    if (status == BT_OK) {
        status = bti_st_finish(w);
        w = NULL;
    }
    bti_st_abandon(w);
    bti_free(names);
    bti_free(tensors);
    bti_free(piece);
    return status;
}

/* ---- open and load -----------------------------------------------------------------------------
 */

static const char *text(const bti_st_file *f, const char *key) {
    const char *s = bti_st_metadata(f, key);
    return s ? s : "";
}

bt_status bti_checkpoint_open(const char *path, bti_checkpoint **out) {
    bti_checkpoint *c = bti_alloc(1, sizeof *c);
    if (c == NULL) return BT_ENOMEM;
    c->path = bti_strdup(path);
    bt_status status = c->path == NULL ? BT_ENOMEM : bti_st_open(path, BTI_ST_REQUIRE, &c->file);
    if (status == BT_OK && strcmp(text(c->file, "format"), FORMAT) != 0)
        status = bti_fail(BT_EINPUT, "%s is no checkpoint of this program", path);
    if (status != BT_OK) {
        bti_checkpoint_close(c);
        return status;
    }
    bti_numbers numbers = bti_numbers_begin();
    for (size_t i = 0; i < FIELDS; i++)
        read_field(&fields[i], text(c->file, fields[i].key), &c->info);
    bti_numbers_end(numbers);
    *out = c;
    return BT_OK;
}

void bti_checkpoint_close(bti_checkpoint *c) {
    if (c == NULL) return;
    bti_st_close(c->file);
    bti_free(c->path);
    bti_free(c);
}

static const bti_st_tensor *find(const bti_checkpoint *c, const char *prefix, const bti_param *p,
                                 const void **data) {
    char name[BTI_PARAM_NAME + 32];
    snprintf(name, sizeof name, "%s%s", prefix, p->name);
    return bti_st_find(c->file, name, data);
}

static int same_shape(const bti_st_tensor *a, const bti_st_tensor *b) {
    return a->dims == b->dims && a->shape[0] == b->shape[0] &&
           (a->dims == 1 || a->shape[1] == b->shape[1]);
}

bt_status bti_checkpoint_match(const bti_checkpoint *c, const bti_model *m) {
    const bti_params *t = &m->params;
    int wrong = 0;
    char first[512] = "";
    for (int32_t i = 0; i < t->count; i++) {
        const void *data;
        const bti_st_tensor *s = find(c, "", &t->param[i], &data);
        bti_st_tensor want = describe(t, i, &wide[0], t->param[i].name);
        if (s != NULL && same_shape(s, &want)) continue;
        if (wrong++ == 0 && s == NULL)
            snprintf(first, sizeof first, "it has no %s", want.name);
        else if (wrong == 1)
            snprintf(first, sizeof first, "%s is %lld x %lld there and %lld x %lld here", want.name,
                     (long long)s->shape[0], (long long)(s->dims == 2 ? s->shape[1] : 1),
                     (long long)want.shape[0], (long long)(want.dims == 2 ? want.shape[1] : 1));
    }
    if (wrong == 0) return BT_OK;
    return bti_fail(BT_EINPUT, "%s belongs to another model: %s (%d parameters differ)", c->path,
                    first, wrong);
}

/* The data of a part of parameter i, of the right type and shape; NULL: it is not there. */
static const void *find_part(const bti_checkpoint *c, const bti_params *t, int32_t i,
                             const part *k) {
    const void *data;
    const bti_st_tensor *s = find(c, k->prefix, &t->param[i], &data);
    bti_st_tensor want = describe(t, i, k, "");
    return s != NULL && s->dtype == want.dtype && same_shape(s, &want) ? data : NULL;
}

/* A moment from codes and scales: as they are, or widened in pieces. */
static bt_status load_codes(bti_engine *e, bti_region region, int32_t i, const uint8_t *code,
                            const void *scale) {
    const bti_params *t = &e->model->params;
    int64_t n = t->param[i].rows * t->param[i].cols;
    if (is_narrow(e)) {
        BT_TRY(bti_engine_write_8bit(e, region, BTI_CODES, i, 0, n, code));
        return bti_engine_write_8bit(e, region, BTI_SCALES, i, 0, bti_moment_blocks(n), scale);
    }
    void *piece = bti_alloc(PIECE, bti_dtype_size(t->dtype));
    bt_status status = piece == NULL ? BT_ENOMEM : BT_OK;
    for (int64_t at = 0; at < n && status == BT_OK; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        uint64_t skip = bti_dtype_size(bti_dtype_acc(t->dtype)) * (uint64_t)bti_moment_blocks(at);
        bti_moment_widen(t->dtype, region - BTI_REGION_MOMENT1, code + at,
                         (const char *)scale + skip, count, piece);
        status = bti_engine_write_part(e, region, i, at, count, piece);
    }
    bti_free(piece);
    return status;
}

/* Both moments of parameter i, as the file has them; *narrow_there: in 8 bits. */
static bt_status load_moments(const bti_checkpoint *c, bti_engine *e, int32_t i,
                              int *narrow_there) {
    const bti_params *t = &e->model->params;
    for (int m = 0; m < 2; m++) {
        const part *value = &wide[1 + m], *code = &narrow[1 + 2 * m], *scale = code + 1;
        const void *values = find_part(c, t, i, value), *codes = find_part(c, t, i, code);
        const void *scales = find_part(c, t, i, scale);
        *narrow_there = values == NULL;
        if (values != NULL)
            BT_TRY(bti_engine_write(e, value->region, i, values));
        else if (codes != NULL && scales != NULL)
            BT_TRY(load_codes(e, code->region, i, codes, scales));
        else
            return bti_fail(BT_EINPUT, "%s has no %s%s in %s: it cannot be resumed", c->path,
                            value->prefix, t->param[i].name, bti_dtype_name(t->dtype));
    }
    return BT_OK;
}

/* Moments may be kept in more or fewer bits than in the file; not quite the same run goes on. */
static void say_change(const bti_checkpoint *c, const bti_engine *e, int narrow_there) {
    if (narrow_there == is_narrow(e)) return;
    bti_log(BT_LOG_WARN, "%s holds the optimizer's moments in %s; they are %s from here on",
            c->path, narrow_there ? "8 bits" : "fp32", narrow_there ? "fp32" : "rounded to 8 bits");
}

bt_status bti_checkpoint_load(const bti_checkpoint *c, bti_engine *e, int moments) {
    const bti_params *t = &e->model->params;
    int narrow_there = is_narrow(e);
    BT_TRY(bti_checkpoint_match(c, e->model));
    for (int32_t i = 0; i < t->count; i++) {
        const void *data = find_part(c, t, i, &wide[0]);
        if (data == NULL)
            return bti_fail(BT_EINPUT, "%s has no %s in %s", c->path, t->param[i].name,
                            bti_dtype_name(t->dtype));
        BT_TRY(bti_engine_write(e, BTI_REGION_WEIGHTS, i, data));
        if (moments && !t->param[i].frozen) BT_TRY(load_moments(c, e, i, &narrow_there));
    }
    if (!moments) return BT_OK;
    say_change(c, e, narrow_there);
    e->steps = c->info.steps;
    return c->info.loss_scale > 0 ? bti_engine_set_scale(e, c->info.loss_scale, c->info.good)
                                  : BT_OK;
}

/* ---- folders -----------------------------------------------------------------------------------
 */

char *bti_checkpoint_path(const char *folder, int64_t update) {
    return bti_format("%s/checkpoint-%010lld.safetensors", folder, (long long)update);
}

/* The update in a checkpoint's name with this behind it; -1 for other files. Only names that
 * bti_checkpoint_path makes count: others could not be opened by their update. */
static int64_t update_behind(const char *name, const char *suffix) {
    long long update;
    char own[64];
    if (sscanf(name, "checkpoint-%18lld", &update) != 1 || update < 0) return -1;
    snprintf(own, sizeof own, "checkpoint-%010lld.safetensors%s", update, suffix);
    return strcmp(name, own) == 0 ? update : -1;
}

static int64_t update_of(const char *name) { return update_behind(name, ""); }

/* The largest update below `below` in the folder's names; -1: none. */
static bt_status next_below(const char *folder, int64_t below, int64_t *update) {
    *update = -1;
    DIR *d = opendir(folder);
    if (d == NULL)
        return errno == ENOENT ? BT_OK
                               : bti_fail(BT_EIO, "cannot read %s: %s", folder, strerror(errno));
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        int64_t u = update_of(e->d_name);
        if (u < below && u > *update) *update = u;
    }
    closedir(d);
    return BT_OK;
}

bt_status bti_checkpoint_newest(const char *folder, bti_checkpoint **out) {
    int64_t update = INT64_MAX;
    *out = NULL;
    for (;;) {
        BT_TRY(next_below(folder, update, &update));
        if (update < 0) return BT_OK;
        char *path = bti_checkpoint_path(folder, update);
        if (path == NULL) return BT_ENOMEM;
        bt_status status = bti_checkpoint_open(path, out);
        bti_free(path);
        if (status != BT_EINPUT) return status;
        bti_log(BT_LOG_WARN, "passed over: %s", bt_last_error());
    }
}

/* A model file of a folder, NULL in *out when it is not there; a damaged one is passed over. */
static bt_status open_if_there(const char *folder, const char *name, bti_checkpoint **out) {
    char *path = bti_path_join(folder, name);
    bt_status status = path == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && bti_file_exists(path)) {
        status = bti_checkpoint_open(path, out);
        if (status == BT_EINPUT) {
            bti_log(BT_LOG_WARN, "passed over: %s", bt_last_error());
            status = BT_OK;
        }
    }
    bti_free(path);
    return status;
}

bt_status bti_checkpoint_find(const char *folder, bti_checkpoint **out) {
    bti_checkpoint *model = NULL, *newest = NULL;
    *out = NULL;
    BT_TRY(open_if_there(folder, "best.safetensors", out));
    if (*out != NULL) return BT_OK;
    BT_TRY(open_if_there(folder, "model.safetensors", &model));
    bt_status status = bti_checkpoint_newest(folder, &newest);
    if (status != BT_OK) {
        bti_checkpoint_close(model);
        return status;
    }
    int keep = newest == NULL || (model != NULL && model->info.update >= newest->info.update);
    bti_checkpoint_close(keep ? newest : model);
    *out = keep ? model : newest;
    if (*out != NULL) return BT_OK;
    return bti_fail(BT_EINPUT, "%s holds no model.safetensors and no checkpoint", folder);
}

bt_status bti_checkpoint_last(const char *folder, int64_t *update) {
    return next_below(folder, INT64_MAX, update);
}

/* What is being written by another process stays. */
static void prune_parts(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        int64_t update = update_behind(e->d_name, ".part");
        char *path = update >= 0 ? bti_checkpoint_path(folder, update) : NULL;
        if (path != NULL) bti_aside_clear(path);
        bti_free(path);
    }
    if (d != NULL) closedir(d);
}

bt_status bti_checkpoint_prune(const char *folder, int64_t newest, int64_t keep) {
    int64_t update = newest + 1;
    prune_parts(folder);
    for (int64_t seen = 0;; seen++) {
        BT_TRY(next_below(folder, update, &update));
        if (update < 0) return BT_OK;
        if (seen < keep) continue;
        char *path = bti_checkpoint_path(folder, update);
        if (path == NULL) return BT_ENOMEM;
        int failed = unlink(path) != 0 && errno != ENOENT;
        bt_status status =
            failed ? bti_fail(BT_EIO, "cannot remove %s: %s", path, strerror(errno)) : BT_OK;
        bti_free(path);
        BT_TRY(status);
    }
}
