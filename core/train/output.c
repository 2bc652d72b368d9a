#include "core/train/output.h"

#include <string.h>

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/engine/checkpoint.h"
#include "core/fit/plan_file.h"
#include "core/run/precision.h"

bt_status bti_output_check(const char *folder) {
    int64_t update;
    BT_TRY(bti_checkpoint_last(folder, &update));
    if (update < 0) return BT_OK;
    return bti_fail(BT_EUSAGE,
                    "%s holds checkpoints of a run, up to update %lld: use --resume to go on with "
                    "it, or another output",
                    folder, (long long)update);
}

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
    static const char *const name[] = {"source.tokenizer", "target.tokenizer"};
    static const char *const words[] = {"source.words", "target.words"};
    for (int side = 0; side < 2; side++) {
        const bti_tokenizer_config *c = &s->cfg->tokenizer[side];
        const bti_tokenizer *mine = s->tokenizer[side];
        if (mine == NULL || (side == 1 && mine == s->tokenizer[0])) continue;
        BT_TRY(copy_into(s->cfg->output, name[side], c->model));
        if (c->kind == BTI_TOKENIZER_SPACY)
            BT_TRY(copy_into(s->cfg->output, words[side], c->vocabulary));
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
    bt_status status = bti_plan_file_write(path, s->dev->info.name, precision, s->plan);
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
