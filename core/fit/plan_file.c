#include "core/fit/plan_file.h"

#include <string.h>

#include "core/base/files.h"
#include "core/base/json.h"
#include "core/base/status.h"

bt_status bti_plan_file_write(const char *path, const bt_dev_info *device, const char *precision,
                              const bti_run_plan *p) {
    const bti_choice *c = &p->choice;
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:i, s:i, s:s, s:I, s:I, s:I, s:f}",
        "backend", device->backend, "device", device->name, "precision", precision,
        "optimizer_state", bti_moments_name[c->moments], "micro_batches",
        (json_int_t)p->micro_batches, "sentences", (json_int_t)p->caps.sentences, "source_rows",
        (json_int_t)p->caps.rows[0], "target_rows", (json_int_t)p->caps.rows[1], "level",
        bti_level_name[c->level], "layers", (int)c->layers, "segment", (int)c->segment, "rest",
        bti_level_name[c->rest], "logit_rows", (json_int_t)p->choices.logit_rows, "slice_rows",
        (json_int_t)c->slice_rows, "total_bytes", (json_int_t)p->total, "predicted_seconds",
        p->seconds);
    return bti_json_write(root, path);
}

/* Which of `count` names the file has there; -1: none of them. */
static int name_of(json_t *root, const char *key, const char *const *names, int count) {
    const char *name = json_string_value(json_object_get(root, key));
    for (int i = 0; name != NULL && i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static int level_of(json_t *root, const char *key, bti_level *out) {
    int i = name_of(root, key, bti_level_name, BTI_LEVEL_COUNT);
    *out = (bti_level)i;
    return i >= 0;
}

static int is_text(json_t *root, const char *key, const char *text) {
    const char *is = json_string_value(json_object_get(root, key));
    return is != NULL && strcmp(is, text) == 0;
}

/* A whole number of least .. most. */
static int number_of(json_t *root, const char *key, int64_t least, int64_t most, int64_t *out) {
    json_t *x = json_object_get(root, key);
    *out = json_integer_value(x);
    return json_is_integer(x) && *out >= least && *out <= most;
}

bt_status bti_plan_file_read(const char *path, const bt_dev_info *device, const char *precision,
                             int32_t layers, bti_choice *out) {
    const int64_t most = INT32_MAX; /* rows: the limit of integer tables */
    char *text;
    size_t bytes;
    BT_TRY(bti_file_read(path, &text, &bytes));
    json_t *root = bti_json_read(text, bytes);
    bti_free(text);
    bti_choice c = {0};
    int64_t n = 0, k = 0;
    int moments = name_of(root, "optimizer_state", bti_moments_name, BTI_MOMENTS_COUNT);
    int good = moments > BTI_MOMENTS_AUTO && level_of(root, "level", &c.level) &&
               level_of(root, "rest", &c.rest) && c.rest != BTI_LEVEL_SEGMENTS &&
               number_of(root, "layers", 0, layers, &n) &&
               number_of(root, "segment", 0, layers, &k) &&
               number_of(root, "micro_batches", 1, most, &c.parts) &&
               number_of(root, "sentences", 1, most, &c.sentences) &&
               number_of(root, "source_rows", 1, most, &c.rows[0]) &&
               number_of(root, "target_rows", 1, most, &c.rows[1]) &&
               number_of(root, "logit_rows", 1, most, &c.logit_rows) &&
               number_of(root, "slice_rows", 0, most, &c.slice_rows);
    int same = is_text(root, "backend", device->backend) && is_text(root, "device", device->name);
    int same_precision = is_text(root, "precision", precision);
    json_decref(root);
    if (!good) return bti_fail(BT_EINPUT, "%s holds no plan of this model", path);
    if (!same)
        return bti_fail(BT_EINPUT, "%s is of another device than %s (%s)", path, device->name,
                        device->backend);
    if (!same_precision)
        return bti_fail(BT_EINPUT, "%s is of another precision than %s", path, precision);
    c.moments = (bti_moments)moments;
    c.layers = (int32_t)n;
    c.segment = (int32_t)k;
    *out = c;
    return BT_OK;
}
