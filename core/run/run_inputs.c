#include "core/run/run_inputs.h"

#include <string.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/corpus.h"
#include "core/run/run_keys.h"

typedef struct walk {
    bti_run_input_fn each;
    void *user;
} walk;

/* The files that a list names, a line each, from its own folder. */
static bt_status walk_list(const walk *w, const char *key, const char *list) {
    bti_reader *r;
    const char *line;
    size_t bytes;
    bt_status status = BT_OK;
    char *dir = bti_path_dir(list);
    if (dir == NULL) return BT_ENOMEM;
    if (!bti_file_exists(list) || bti_reader_open(list, &r) != BT_OK) goto done;
    bti_reader_quiet(r);
    while (status == BT_OK && bti_reader_next(r, &line, &bytes) == BT_OK && line != NULL) {
        char *path = bti_path_join(dir, line);
        status = path == NULL ? BT_ENOMEM : w->each(w->user, key, path);
        bti_free(path);
    }
    bti_reader_close(r);
done:
    bti_free(dir);
    return status;
}

static bt_status walk_files(const walk *w, const char *key, const bti_files *files, int lists) {
    for (size_t i = 0; i < files->count; i++) {
        const char *dot = strrchr(files->path[i], '.');
        BT_TRY(w->each(w->user, key, files->path[i]));
        if (lists && dot != NULL && strcmp(dot, ".txt") == 0)
            BT_TRY(walk_list(w, key, files->path[i]));
    }
    return BT_OK;
}

static bt_status walk_key(const walk *w, const void *base, const bti_key *key, int lists) {
    const void *field = (const char *)base + key->offset;
    if (key->type == BTI_KEY_PATHS) return walk_files(w, key->path, field, lists);
    if (key->type != BTI_KEY_PATH || *(char *const *)field == NULL) return BT_OK;
    return w->each(w->user, key->path, *(char *const *)field);
}

bt_status bti_run_inputs(const bti_run_config *cfg, bti_run_input_fn each, void *user) {
    const walk w = {each, user};
    BT_TRY(each(user, NULL, cfg->path));
    for (int k = 0; k < BTI_KEYS; k++) BT_TRY(walk_key(&w, cfg, &bti_keys[k], 0));
    for (size_t i = 0; i < cfg->data.features.count; i++)
        for (int k = 0; k < BTI_FEATURE_KEYS; k++)
            BT_TRY(walk_key(&w, &cfg->data.features.item[i], &bti_feature_keys[k], 1));
    return BT_OK;
}

/* ---- one file that is to be written ------------------------------------------------------------
 */

static bt_status differ(void *user, const char *key, const char *input) {
    const char *path = user;
    (void)key;
    if (!bti_file_same(path, input)) return BT_OK;
    return bti_fail(BT_EUSAGE, "%s is the same file as the input %s", path, input);
}

bt_status bt_run_check_output(const bt_run *run, const char *path) {
    if (path == NULL || !bti_file_exists(path)) return BT_OK;
    return bti_run_inputs(run, differ, (void *)(uintptr_t)path);
}
