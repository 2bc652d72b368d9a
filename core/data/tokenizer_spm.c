/* The kinds that rest on a SentencePiece model: sentencepiece (its ids as they are) and xlmr (the
 * same pieces under fairseq's ids). */
#include "core/data/tokenizer_ops.h"

#include "core/base/files.h"
#include "core/base/status.h"
#include "core/data/sentencepiece.h"
#include "core/data/train_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- sentencepiece --------------------------------------------------------------------------- */

static bt_status spm_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                          size_t bytes) {
    const char *path = cfg->model;
    bti_spm *m;
    BT_TRY(bti_spm_open(path, model, bytes, &m));
    t->impl = m;
    t->size = bti_spm_size(m);
    int32_t bos, eos, unk, pad;
    bti_spm_specials(m, &bos, &eos, &unk, &pad);
    if (eos < 0)
        return bti_fail(BT_EINPUT, "%s: the model has no end symbol; train it with an eos_id",
                        path);
    t->special = (bti_special_ids){
        .start = bos >= 0   ? bos
                 : pad >= 0 ? pad
                            : eos,
        .end = eos,
        .unk = unk,
        .pad = pad,
    };
    return BT_OK;
}

static void spm_close(void *impl) { bti_spm_close(impl); }

static bt_status spm_encode(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids) {
    return bti_spm_encode(t->impl, text, bytes, ids);
}

static bt_status spm_tokens(const bti_tokenizer *t, const char *text, size_t bytes, bti_token_fn fn,
                            void *user) {
    return bti_spm_pieces(t->impl, text, bytes, fn, user);
}

static bt_status spm_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count, char **text,
                            size_t *bytes) {
    return bti_spm_decode(t->impl, ids, (size_t)count, text, bytes);
}

static const char *spm_piece(const bti_tokenizer *t, int32_t id) {
    return bti_spm_piece(t->impl, id);
}

/* ---- training -------------------------------------------------------------------------------- */

/* The trainer's suffix arrays take some 20 bytes for each of text. A vocabulary does not get better
 * beyond this much: of a larger text every n-th line is used. */
#define TRAIN_BYTES ((int64_t)64 << 20)

typedef struct train_text {
    bti_train_text lines;
    int64_t line, stride; /* usable lines so far, over all files; every stride-th is given out */
} train_text;

/* The character at *p of well-formed text; steps on. */
static uint32_t next_char(const unsigned char **p) {
    int more = **p < 0xC0 ? 0 : **p < 0xE0 ? 1 : **p < 0xF0 ? 2 : 3;
    uint32_t c = *(*p)++ & (more ? 0x3Fu >> more : 0x7Fu);
    while (more-- > 0) c = c << 6 | (*(*p)++ & 0x3Fu);
    return c;
}

/* Characters of which normalising leaves something: all but controls, spaces, and some signs. */
static int solid(uint32_t c) {
    return (c > 0x20 && c < 0x7F) || (c >= 0xC0 && c < 0x2000 && c != 0x1680) ||
           (c > 0x3000 && c < 0xF900) || c >= 0x10000;
}

/* The trainer passes over long lines and those with its own sign for the unknown, cuts out what
 * looks like its special symbols, and *ends the process* when nothing is left: what it could not
 * use never gets there. */
static int usable(const char *line, size_t n) {
    const unsigned char *p = (const unsigned char *)line, *end = p + n;
    if (n > 4192 || strstr(line, "\xE2\x96\x85") || strstr(line, "<s>") || strstr(line, "</s>") ||
        strstr(line, "<unk>"))
        return 0;
    while (p < end)
        if (solid(next_char(&p))) return 1;
    return 0;
}

static bt_status next_line(void *user, const char **line, size_t *bytes) {
    train_text *x = user;
    do {
        BT_TRY(bti_train_text_next(&x->lines, line, bytes));
    } while (*line != NULL && (!usable(*line, *bytes) || x->line++ % x->stride != 0));
    return BT_OK;
}

/* Bytes of the text, and how many different characters it has. */
static bt_status measure(train_text *x, int64_t *bytes, int64_t *characters) {
    unsigned char *seen = bti_alloc(0x110000 / 8, 1);
    if (seen == NULL) return BT_ENOMEM;
    const char *line;
    size_t n;
    bt_status s;
    *bytes = *characters = 0;
    while ((s = next_line(x, &line, &n)) == BT_OK && line != NULL) {
        *bytes += (int64_t)n;
        const unsigned char *p = (const unsigned char *)line, *end = p + n;
        while (p < end) {
            uint32_t c = next_char(&p);
            *characters += !(seen[c / 8] >> c % 8 & 1);
            seen[c / 8] |= (unsigned char)(1u << c % 8);
        }
    }
    bti_free(seen);
    return s;
}

/* What the trainer says of a size that does not suit the text, in terms of the run file. */
static bt_status explain(const bti_tokenizer_config *cfg, bt_status s) {
    const char *text = bt_last_error(), *at;
    long long most, least;
    if (s != BT_EINPUT) return s;
    if ((at = strstr(text, "Please set it to a value <= ")) != NULL &&
        sscanf(at, "%*[^0-9]%lld", &most) == 1)
        return bti_fail(s,
                        "tokenizer.size %" PRId64
                        " is more than this text has pieces: %lld is the largest that works",
                        cfg->size, most);
    if ((at = strstr(text, " vs ")) != NULL && strstr(text, "required_chars") != NULL &&
        sscanf(at, " vs %lld", &least) == 1)
        return bti_fail(s,
                        "tokenizer.size %" PRId64
                        " has no room for the text's single characters: at least %lld",
                        cfg->size, least);
    return bti_fail_prefix(s, "cannot train the vocabulary %s", cfg->model);
}

static bt_status spm_train(const bti_tokenizer_config *cfg, const char *const *files,
                           size_t count) {
    train_text x = {.lines = {.files = files, .count = count}, .stride = 1};
    int64_t bytes, characters;
    char *model = NULL;
    size_t model_bytes = 0;
    bt_status s = measure(&x, &bytes, &characters);
    if (s == BT_OK && x.line == 0)
        s = bti_fail(BT_EINPUT, "cannot train the vocabulary %s: the text has no words",
                     cfg->model);
    if (s != BT_OK) goto done;
    x = (train_text){.lines = {.files = files, .count = count}, .stride = 1 + bytes / TRAIN_BYTES};
    if (x.stride > 1)
        bti_log(BT_LOG_INFO, "the vocabulary is trained on every %" PRId64 "th line of the text",
                x.stride);
    /* The library's own default of 0.9995 turns rare letters of small texts into unknowns, although
     * there is room for them: nobody expects that of the very text a vocabulary was made from. All
     * characters get a piece, unless they would fill much of it (stray scripts in web text). */
    bti_spm_train train = {
        .size = cfg->size,
        .coverage = characters <= cfg->size / 4 ? 1.0 : 0.9995,
        .next = next_line,
        .user = &x,
    };
    s = bti_spm_train_unigram(&train, &model, &model_bytes);
    if (s != BT_OK)
        s = explain(cfg, s);
    else
        s = bti_file_write(cfg->model, model, model_bytes);
done:
    bti_train_text_close(&x.lines);
    bti_free(model);
    return s;
}

const bti_tokenizer_ops bti_tokenizer_sentencepiece = {
    .open = spm_open,
    .close = spm_close,
    .encode = spm_encode,
    .tokens = spm_tokens,
    .decode = spm_decode,
    .piece = spm_piece,
    .train = spm_train,
};

/* ---- xlmr ------------------------------------------------------------------------------------ */

/* fairseq put <s> <pad> </s> <unk> first and <mask> last; the model's own <unk> <s> </s> (0 1 2)
 * have no place between them, so that piece i >= 3 is id i + 1. */
enum { XLMR_BOS, XLMR_PAD, XLMR_EOS, XLMR_UNK, XLMR_FIRST };

static bt_status xlmr_open(bti_tokenizer *t, const bti_tokenizer_config *cfg, const char *model,
                           size_t bytes) {
    const char *path = cfg->model;
    bti_spm *m;
    BT_TRY(bti_spm_open(path, model, bytes, &m));
    t->impl = m;
    t->size = (int64_t)bti_spm_size(m) + 2;
    int32_t bos, eos, unk, pad;
    bti_spm_specials(m, &bos, &eos, &unk, &pad);
    if (unk != 0 || bos != 1 || eos != 2)
        return bti_fail(BT_EINPUT,
                        "%s: not XLM-R's model: <unk> <s> </s> should be 0 1 2, not %d %d %d", path,
                        (int)unk, (int)bos, (int)eos);
    t->special =
        (bti_special_ids){.start = XLMR_BOS, .end = XLMR_EOS, .unk = XLMR_UNK, .pad = XLMR_PAD};
    return BT_OK;
}

static bt_status xlmr_encode(const bti_tokenizer *t, const char *text, size_t bytes, bti_ids *ids) {
    int64_t from = ids->count;
    BT_TRY(bti_spm_encode(t->impl, text, bytes, ids));
    for (int64_t i = from; i < ids->count; i++)
        ids->id[i] = ids->id[i] == 0 ? XLMR_UNK : ids->id[i] + 1;
    return BT_OK;
}

typedef struct shifted {
    bti_token_fn fn;
    void *user;
} shifted;

static bt_status shift_token(void *user, const char *token, size_t bytes, int32_t id) {
    const shifted *s = user;
    return s->fn(s->user, token, bytes, id == 0 ? XLMR_UNK : id + 1);
}

static bt_status xlmr_tokens(const bti_tokenizer *t, const char *text, size_t bytes,
                             bti_token_fn fn, void *user) {
    shifted s = {fn, user};
    return bti_spm_pieces(t->impl, text, bytes, shift_token, &s);
}

static bt_status xlmr_decode(const bti_tokenizer *t, const int32_t *ids, int64_t count, char **text,
                             size_t *bytes) {
    int32_t *own = bti_alloc((size_t)count, sizeof *own);
    if (own == NULL) return BT_ENOMEM;
    size_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < XLMR_UNK || ids[i] == t->size - 1) continue;
        own[n++] = ids[i] == XLMR_UNK ? 0 : ids[i] - 1;
    }
    bt_status s = bti_spm_decode(t->impl, own, n, text, bytes);
    bti_free(own);
    return s;
}

static const char *xlmr_piece(const bti_tokenizer *t, int32_t id) {
    static const char *const special[XLMR_FIRST] = {"<s>", "<pad>", "</s>", "<unk>"};
    if (id < XLMR_FIRST) return special[id];
    return id == t->size - 1 ? "<mask>" : bti_spm_piece(t->impl, id - 1);
}

const bti_tokenizer_ops bti_tokenizer_xlmr = {
    .open = xlmr_open,
    .close = spm_close,
    .encode = xlmr_encode,
    .tokens = xlmr_tokens,
    .decode = xlmr_decode,
    .piece = xlmr_piece,
};
