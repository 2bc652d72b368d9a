/* What a translator holds, for what else is done with a loaded model. */
#ifndef BANTAM_DECODE_TRANSLATOR_H
#define BANTAM_DECODE_TRANSLATOR_H

#include "core/data/features.h"
#include "core/data/labels.h"
#include "core/decode/decoder.h"
#include "core/decode/losses.h"
#include "core/engine/checkpoint.h"

struct bt_translator {
    bt_translate_options options;
    bti_run_config *cfg;
    bti_tokenizer *tokenizer[2];
    bti_decoder_config decoding;
    bt_dev *dev;
    bti_model *model;
    bti_places places;
    bti_arena arena;
    bti_decoder *decoder;
    int64_t source_tokens, source_unknown; /* of all calls, end symbols not counted */
    int said_unknown;
    int with_losses;
    bti_losses *losses;     /* NULL when not asked for */
    bti_model_config shape; /* the run file's, with what the checkpoint and the features say */
    bti_features *feature[BTI_MAX_FEATURES];
    const bti_labels
        *labels; /* of the same examples; NULL: none are known. Their owner closes them. */
    bti_dense dense;
    int64_t example; /* of the next line */
};

/* bt_translator_open, with what losses of references need. A model that has no decoder is opened
 * only with losses. */
bt_status bti_translator_open(const char *model, const bt_translate_options *options,
                              int with_losses, bt_translator **out);
/* The model's shape: the run file's, with what the checkpoint says of widths and outputs; opens the
 * features' files that the options name, each checked against it. BT_EUSAGE for an option that
 * names no feature of the model or one that is missing. */
bt_status bti_translator_open_shape(bt_translator *t, const bti_checkpoint *c);
/* BT_EUSAGE unless there is a source where the model reads text, and none where it reads none. */
bt_status bti_translator_check_source(const bt_translator *t, const char *source);
/* As many examples of each feature as `path` has `units`, BT_EINPUT with both counts. */
bt_status bti_translator_match(const bt_translator *t, const char *path, int64_t count,
                               const char *units);
/* Gives a sentence, whose ids of the source are known, the features of an example; BT_EINPUT where
 * there are fewer, or where rows do not go together. `rows` holds BTI_MAX_FEATURES numbers and
 * stays. */
bt_status bti_translator_features(bt_translator *t, int64_t example, int32_t *rows,
                                  bti_sentence *s);
/* What was done to lines so that they could be read. */
typedef struct bti_amends {
    int64_t repaired, cut;
} bti_amends;
/* Ids of a line of a side with the end symbol, cut to data.max_length; none for a line that is
 * blank or nothing to the tokeniser. Bytes that are not UTF-8 are read as U+FFFD, 00 as a blank.
 * Counts a line that is amended. */
bt_status bti_translator_encode(const bt_translator *t, int side, const char *text, size_t bytes,
                                bti_ids *ids, bti_amends *amends);
/* Warns of lines ("lines", "references") that were amended. */
void bti_translator_say_amends(const bt_translator *t, const char *lines, const bti_amends *amends);

#endif
