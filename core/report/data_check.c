/* Reads both texts once, tokenised on all cores. What stays in memory are counts, and two checksums
 * for each line of the validation text, which the training text is compared with. */
#include "core/report/data_check.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/data/line_pairs.h"
#include "core/engine/examples.h"

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* ---- lines of the validation text ------------------------------------------------------------ */

typedef struct seen {
    uint64_t hash;
    int found; /* in the training text; of equal ones the first is marked */
} seen;

typedef struct seen_list {
    seen *item;
    size_t count, room;
} seen_list;

static bt_status remember(seen_list *l, uint64_t hash) {
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 1024;
        seen *more = bti_realloc(l->item, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        l->item = more;
        l->room = room;
    }
    l->item[l->count++] = (seen){hash, 0};
    return BT_OK;
}

static int by_hash(const void *a, const void *b) {
    uint64_t x = ((const seen *)a)->hash, y = ((const seen *)b)->hash;
    return x < y ? -1 : x > y;
}

static void sort_list(seen_list *l) {
    if (l->count > 0) qsort(l->item, l->count, sizeof *l->item, by_hash);
}

/* Marks what is there; is it? */
static int look_up(seen_list *l, uint64_t hash) {
    size_t low = 0, high = l->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (l->item[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == l->count || l->item[low].hash != hash) return 0;
    l->item[low].found = 1;
    return 1;
}

static int64_t count_found(const seen_list *l) {
    int64_t n = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (i > 0 && l->item[i].hash == l->item[i - 1].hash)
            l->item[i].found = l->item[i - 1].found;
        n += l->item[i].found;
    }
    return n;
}

/* ---- one text -------------------------------------------------------------------------------- */

typedef struct checking {
    bti_data_check *c;
    bti_unknown *unknown[2];
    seen_list pairs, sources;
    bti_text_check *text; /* the one that is read, and which of its files */
    size_t file;
} checking;

static void add_longest(bti_text_check *t, const bti_long_pair *p) {
    int at = t->longest_count;
    int64_t ids = p->ids[0] + p->ids[1];
    while (at > 0 && t->longest[at - 1].ids[0] + t->longest[at - 1].ids[1] < ids) at--;
    if (at == BTI_CHECK_LONGEST) return;
    if (t->longest_count < BTI_CHECK_LONGEST) t->longest_count++;
    memmove(t->longest + at + 1, t->longest + at,
            (size_t)(t->longest_count - at - 1) * sizeof *t->longest);
    t->longest[at] = *p;
}

static void add_lengths(const checking *x, const bti_encoded_pair *p) {
    bti_text_check *t = x->text;
    bti_long_pair l = {.file = x->file, .line = t->lines, .file_line = p->line};
    int longer = 0;
    for (int side = 0; side < 2; side++) {
        if (t->file[side] == NULL) continue;
        int64_t n = l.ids[side] = p->count[side] + 1;
        int bin = 0;
        while (bin < BTI_CHECK_LENGTHS - 1 && n > (int64_t)1 << bin) bin++;
        t->length[side][bin]++;
        t->longer[side] += n > x->c->cfg->data.max_length;
        longer |= n > x->c->cfg->data.max_length;
    }
    if (longer && t->longer_pairs++ == 0) t->first_longer_line = t->lines;
    add_longest(t, &l);
}

static bt_status add_unknown(checking *x, const bti_encoded_pair *p, int side) {
    bti_file_check *f = &x->text->file[side][x->file];
    int32_t unk = bti_tokenizer_specials(x->c->tokenizer[side]).unk;
    int64_t n = 0;
    for (int64_t i = 0; i < p->count[side]; i++) n += p->ids[side][i] == unk;
    f->tokens += p->count[side];
    f->unknown += n;
    return n ? bti_unknown_add(x->unknown[side], p->text[side], p->bytes[side]) : BT_OK;
}

/* The validation text comes first. */
static bt_status add_hashes(checking *x, const bti_encoded_pair *p) {
    bti_duplicates *d = &x->c->duplicates;
    uint64_t source = XXH64(p->text[0], p->bytes[0], 0);
    uint64_t both = XXH64(p->text[1], p->bytes[1], source);
    int sources = x->text->file[0] != NULL;
    if (x->text == &x->c->valid) {
        BT_TRY(remember(&x->pairs, both));
        return sources ? remember(&x->sources, source) : BT_OK;
    }
    if (look_up(&x->pairs, both) && d->train_pairs++ == 0) d->first_train_line = x->text->lines;
    if (sources) d->train_sources += look_up(&x->sources, source);
    return BT_OK;
}

/* Rows of features that are mixed with the line's tokens. What has fewer examples is told of once
 * all lines are counted. */
static bt_status check_rows(const checking *x, const bti_encoded_pair *p) {
    const bti_run_config *cfg = x->c->cfg;
    const bti_inputs *in = &x->c->inputs[x->text == &x->c->valid ? BTI_PART_VALID : BTI_PART_TRAIN];
    int64_t i = x->text->lines - 1, ids = p->count[0] + 1, most = cfg->data.max_length;
    if (x->text->file[0] == NULL) return BT_OK;
    for (size_t f = 0; f < in->features; f++)
        if (i >= bti_features_count(in->feature[f])) return BT_OK;
    if (ids > most && cfg->data.overlong == BTI_OVERLONG_SKIP) return BT_OK;
    return bti_inputs_check_rows(in->feature, in->features, cfg->model.fusion, i,
                                 x->text->file[0]->path, ids < most ? ids : most);
}

/* A bti_pair_fn. */
static bt_status add_pair(void *user, const bti_encoded_pair *p) {
    checking *x = user;
    bti_text_check *t = x->text;
    t->lines++;
    for (int side = 0; side < 2; side++) {
        if (t->file[side] == NULL || p->count[side] > 0) continue;
        if (t->empty++ == 0) t->first_empty_line = t->lines;
        return BT_OK;
    }
    add_lengths(x, p);
    BT_TRY(check_rows(x, p));
    for (int side = 0; side < 2; side++)
        if (t->file[side] != NULL) BT_TRY(add_unknown(x, p, side));
    return add_hashes(x, p);
}

static bt_status read_files(checking *x, const bti_corpus_config *text, size_t file) {
    bti_corpus_config one = {.source = {NULL, 0}};
    if (text->source.count > 0) one.source = (bti_files){text->source.path + file, 1};
    if (text->target.count > 0) one.target = (bti_files){text->target.path + file, 1};
    x->file = file;
    for (int side = 0; side < 2; side++)
        if (x->text->file[side] != NULL) bti_unknown_clear(x->unknown[side]);
    BT_TRY(bti_encode_pairs(&one, (const bti_tokenizer *const *)x->c->tokenizer, add_pair, x));
    for (int side = 0; side < 2; side++) {
        if (x->text->file[side] == NULL) continue;
        bti_file_check *f = &x->text->file[side][file];
        f->chars = bti_unknown_chars(x->unknown[side], f->character, BTI_CHECK_CHARS);
    }
    return BT_OK;
}

static bt_status read_text(checking *x, bti_text_check *t, const bti_files *source,
                           const bti_files *target) {
    const bti_files *files[2] = {source, target};
    bti_corpus_config corpus = {.source = *source, .target = *target};
    t->files = bti_corpus_file_count(&corpus);
    if (t->files == 0) return BT_OK;
    BT_TRY(bti_corpus_check(&corpus, NULL));
    for (int side = 0; side < 2; side++) {
        if (files[side]->count == 0) continue;
        t->file[side] = bti_alloc(t->files, sizeof *t->file[side]);
        if (t->file[side] == NULL) return BT_ENOMEM;
        for (size_t i = 0; i < t->files; i++) t->file[side][i].path = files[side]->path[i];
    }
    x->text = t;
    for (size_t i = 0; i < t->files; i++) BT_TRY(read_files(x, &corpus, i));
    return BT_OK;
}

/* ---- features and labels ----------------------------------------------------------------------
 */

static bt_status read_inputs(bti_data_check *c) {
    const bti_run_config *cfg = c->cfg;
    bti_inputs *in = c->inputs;
    c->has_valid = cfg->data.valid_source.count + cfg->data.valid_target.count > 0 ||
                   cfg->data.valid_labels.count > 0 ||
                   (cfg->data.features.count > 0 && cfg->data.features.item[0].valid.count > 0);
    c->kind = bti_label_kind_of(cfg->model.head);
    BT_TRY(bti_inputs_open(cfg, BTI_PART_TRAIN, c->kind, NULL, NULL, &in[BTI_PART_TRAIN]));
    if (!c->has_valid) return BT_OK;
    return bti_inputs_open(cfg, BTI_PART_VALID, c->kind, in, NULL, &in[BTI_PART_VALID]);
}

static bt_status match_inputs(const bti_data_check *c, bti_part part, const bti_text_check *t) {
    const bti_file_check *f = t->file[0] ? t->file[0] : t->file[1];
    const bti_inputs *in = &c->inputs[part];
    BT_TRY(bti_inputs_match(in, c->cfg, part, f ? f->path : NULL, t->lines));
    if (t->file[0] != NULL) return BT_OK; /* looked at line by line */
    for (int64_t i = 0; i < bti_inputs_count(in); i++)
        BT_TRY(bti_inputs_check_rows(in->feature, in->features, c->cfg->model.fusion, i, NULL, 0));
    return BT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bt_status check(checking *x) {
    const bti_run_config *cfg = x->c->cfg;
    bti_data_check *c = x->c;
    bti_session session = {.cfg = cfg};
    bt_status s = bti_session_tokenizers(&session);
    c->tokenizer[0] = session.tokenizer[0];
    c->tokenizer[1] = session.tokenizer[1];
    BT_TRY(s);
    for (int side = 0; side < 2; side++)
        if (c->tokenizer[side] != NULL)
            BT_TRY(bti_unknown_new(c->tokenizer[side], &x->unknown[side]));
    BT_TRY(read_inputs(c));
    BT_TRY(read_text(x, &c->valid, &cfg->data.valid_source, &cfg->data.valid_target));
    sort_list(&x->pairs);
    sort_list(&x->sources);
    BT_TRY(read_text(x, &c->train, &cfg->data.train_source, &cfg->data.train_target));
    c->duplicates.valid_pairs = count_found(&x->pairs);
    c->duplicates.valid_sources = count_found(&x->sources);
    BT_TRY(match_inputs(c, BTI_PART_TRAIN, &c->train));
    return c->has_valid ? match_inputs(c, BTI_PART_VALID, &c->valid) : BT_OK;
}

bt_status bti_data_check_new(const bti_run_config *cfg, bti_data_check **out) {
    bti_data_check *c = bti_alloc(1, sizeof *c);
    if (c == NULL) return BT_ENOMEM;
    checking x = {.c = c};
    c->cfg = cfg;
    bt_status s = check(&x);
    for (int side = 0; side < 2; side++) bti_unknown_free(x.unknown[side]);
    bti_free(x.pairs.item);
    bti_free(x.sources.item);
    if (s != BT_OK) {
        bti_data_check_free(c);
        return s;
    }
    *out = c;
    return BT_OK;
}

void bti_data_check_free(bti_data_check *c) {
    if (c == NULL) return;
    for (int side = 0; side < 2; side++) {
        bti_free(c->train.file[side]);
        bti_free(c->valid.file[side]);
        bti_inputs_close(&c->inputs[side]);
    }
    if (c->tokenizer[1] != c->tokenizer[0]) bti_tokenizer_free(c->tokenizer[1]);
    bti_tokenizer_free(c->tokenizer[0]);
    bti_free(c);
}
