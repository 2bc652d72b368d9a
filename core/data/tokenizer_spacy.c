/* Kind `spacy`: a tokeniser that spaCy saved, and a word list over its tokens. */
#include "core/data/tokenizer_ops.h"

#include "core/base/status.h"

#ifdef BT_SPACY_MISSING

static bt_status missing(const bti_tokenizer_config *cfg) {
    return bti_fail(BT_EUSAGE,
                    "%s: this build cannot read spaCy's tokenisers: it was made without " //
                    BT_SPACY_MISSING,
                    cfg->model);
}

static bt_status missing_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                              size_t bytes) {
    (void)t, (void)model, (void)bytes;
    return missing(cfg);
}

static void missing_close(void *impl) { (void)impl; }

static bt_status missing_train(const bti_tokenizer_config *cfg, const char *const *files,
                               size_t count) {
    (void)files, (void)count;
    return missing(cfg);
}

const bti_tokenizer_ops bti_tokenizer_spacy = {
    .open = missing_open, .close = missing_close, .train = missing_train};

#endif
