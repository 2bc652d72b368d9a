#include "core/train/output.h"

#include <string.h>
#include <sys/stat.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/engine/checkpoint.h"
#include "core/fit/plan_file.h"
#include "core/run/precision.h"
#include "core/run/run_inputs.h"

static const char *const tokenizer_name[] = {"source.tokenizer", "target.tokenizer"};
static const char *const words_name[] = {"source.words", "target.words"};

/* ---- before anything is written ----------------------------------------------------------------
 */

/* A file that the run writes, as it stands there now. */
typedef struct place {
    const char *name;
    const char *from; /* what it is a copy of; NULL: of nothing */
    dev_t device;
    ino_t inode;
} place;

typedef struct places {
    const bti_run_config *cfg;
    const char *run_text;
    int resume;
    size_t count;
    place item[24];
} places;

/* Names that are not in use do not matter. */
static bt_status add(places *p, const char *name, const char *from) {
    struct stat st;
    char *path = bti_path_join(p->cfg->output, name);
    if (path == NULL) return BT_ENOMEM;
    if (stat(path, &st) == 0) p->item[p->count++] = (place){name, from, st.st_dev, st.st_ino};
    bti_free(path);
    return BT_OK;
}

static bt_status add_all(places *p) {
    static const char *const always[] = {
        "run.yaml",  "plan.json",         "log.jsonl",       "loss.svg",     "lr.svg",
        "speed.svg", "bleu.svg",          "chrf.svg",        "accuracy.svg", "f1.svg",
        "mse.svg",   "model.safetensors", "best.safetensors"};
    const bti_run_config *c = p->cfg;
    const int sides = c->shared && c->data.train_source.count > 0 ? 1 : 2;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) BT_TRY(add(p, always[i], NULL));
    if (c->data.train_labels.count > 0) BT_TRY(add(p, "labels.txt", NULL));
    for (int side = 0; side < sides; side++) {
        const bti_tokenizer_config *t = &c->tokenizer[side];
        BT_TRY(add(p, tokenizer_name[side], t->model));
        if (t->kind == BTI_TOKENIZER_SPACY) BT_TRY(add(p, words_name[side], t->vocabulary));
    }
    return BT_OK;
}

/* Is the run file one that we print, so that nothing of it is lost? A run that is gone on with may
 * have had other values. */
static int is_printed(const places *p) {
    bti_run_config *cfg = NULL;
    char *text = NULL, *again = NULL;
    size_t bytes;
    int same = 0;
    if (bti_file_read(p->cfg->path, &text, &bytes) != BT_OK) return 0;
    same = strcmp(text, p->run_text) == 0;
    if (!same && p->resume && bti_run_config_parse(p->cfg->path, text, NULL, 0, &cfg) == BT_OK &&
        bti_run_config_print(cfg, &again) == BT_OK)
        same = strcmp(text, again) == 0;
    bti_run_config_free(cfg);
    bti_free(again);
    bti_free(text);
    return same;
}

static bt_status check_input(void *user, const char *key, const char *input) {
    const places *p = user;
    struct stat st;
    /* first values of a run that goes on are not read */
    if (p->resume && key != NULL && strcmp(key, "initial_model") == 0) return BT_OK;
    if (stat(input, &st) != 0 || !S_ISREG(st.st_mode)) return BT_OK;
    for (size_t i = 0; i < p->count; i++) {
        const place *x = &p->item[i];
        if (x->device != st.st_dev || x->inode != st.st_ino) continue;
        if (x->from != NULL && bti_file_same(x->from, input)) continue;
        if (key == NULL && strcmp(x->name, "run.yaml") == 0 && is_printed(p)) continue;
        return bti_fail(BT_EUSAGE,
                        "output %s: the run's own %s would take the place of %s, which it reads: "
                        "take another output, or give that file another name",
                        p->cfg->output, x->name, input);
    }
    return BT_OK;
}

static bt_status check_model(const bti_run_config *cfg, const char *name) {
    char *path = bti_path_join(cfg->output, name);
    bt_status status = path == NULL ? BT_ENOMEM : BT_OK;
    if (status == BT_OK && bti_file_exists(path))
        status = bti_fail(BT_EUSAGE,
                          "%s is there, of a run without checkpoints: move it away, or take "
                          "another output",
                          path);
    bti_free(path);
    return status;
}

bt_status bti_output_check_models(const bti_run_config *cfg, int replaces_best) {
    BT_TRY(check_model(cfg, "model.safetensors"));
    return replaces_best ? BT_OK : check_model(cfg, "best.safetensors");
}

bt_status bti_output_check(const bti_run_config *cfg, const char *run_text, int resume) {
    int64_t update;
    places p = {.cfg = cfg, .run_text = run_text, .resume = resume};
    if (!resume) {
        BT_TRY(bti_checkpoint_last(cfg->output, &update));
        if (update >= 0)
            return bti_fail(
                BT_EUSAGE,
                "%s holds checkpoints of a run, up to update %lld: use --resume to go on with "
                "it, or another output",
                cfg->output, (long long)update);
        BT_TRY(bti_output_check_models(cfg, 0));
    }
    BT_TRY(add_all(&p));
    return bti_run_inputs(cfg, check_input, &p);
}

/* ---- writing -----------------------------------------------------------------------------------
 */

static bt_status write_text(const bti_session *s, const char *name, const char *text) {
    char *path = bti_path_join(s->cfg->output, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_file_write(path, text, strlen(text));
    bti_free(path);
    return status;
}

/* Tokenisers beside the model, so that the folder is all that translation needs. */
static bt_status copy_into(const char *folder, const char *name, const char *file) {
    char *path = bti_path_join(folder, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_file_copy(file, path);
    bti_free(path);
    return status;
}

static bt_status copy_tokenizers(const bti_session *s) {
    for (int side = 0; side < 2; side++) {
        const bti_tokenizer_config *c = &s->cfg->tokenizer[side];
        const bti_tokenizer *mine = s->tokenizer[side];
        if (mine == NULL || (side == 1 && mine == s->tokenizer[0])) continue;
        BT_TRY(copy_into(s->cfg->output, tokenizer_name[side], c->model));
        if (c->kind == BTI_TOKENIZER_SPACY)
            BT_TRY(copy_into(s->cfg->output, words_name[side], c->vocabulary));
    }
    return BT_OK;
}

/* The names of classes or labels, one a line in order of their numbers. */
static bt_status write_labels(const bti_session *s) {
    const bti_labels *l = s->train.inputs.labels;
    bti_text text = {0};
    char *names;
    if (l == NULL || bti_labels_classes(l) == 0) return BT_OK;
    for (int32_t k = 0; k < bti_labels_classes(l); k++)
        bti_text_add(&text, "%s\n", bti_labels_class_name(l, k));
    BT_TRY(bti_text_take(&text, &names));
    bt_status status = write_text(s, "labels.txt", names);
    bti_free(names);
    return status;
}

static bt_status write_plan(const bti_session *s) {
    char *path = bti_path_join(s->cfg->output, "plan.json");
    if (path == NULL) return BT_ENOMEM;
    const char *precision = bti_precision_name(s->cfg->training.precision);
    bt_status status = bti_plan_file_write(path, &s->dev->info, precision, s->plan);
    bti_free(path);
    return status;
}

bt_status bti_output_write(const bti_session *s, const char *run_text) {
    BT_TRY(bti_dir_make(s->cfg->output));
    BT_TRY(copy_tokenizers(s));
    BT_TRY(write_labels(s));
    BT_TRY(write_plan(s));
    return write_text(s, "run.yaml", run_text);
}
