/* bt_data_check_*: the text of a run as text and JSON. */
#include <inttypes.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/report/data_check.h"

static const char *const side_name[] = {"source", "target"};

static double percent(const bti_file_check *f) {
    return f->tokens ? 100.0 * (double)f->unknown / (double)f->tokens : 0;
}

static int64_t from_of(int bin) { return bin ? ((int64_t)1 << (bin - 1)) + 1 : 1; }
static int64_t to_of(int bin) { return (int64_t)1 << bin; }

static int bins_of(const bti_text_check *t) {
    int n = BTI_CHECK_LENGTHS;
    while (n > 0 && t->length[0][n - 1] == 0 && t->length[1][n - 1] == 0) n--;
    return n;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_file(bti_text *out, const bti_file_check *f) {
    bti_text_add(out, "  %s: %" PRId64 " tokens, %" PRId64 " unknown (%.*f %%)%s", f->path,
                 f->tokens, f->unknown, percent(f) >= 1 || f->unknown == 0 ? 1 : 3, percent(f),
                 f->chars ? ", their characters: " : "");
    for (int i = 0; i < f->chars; i++)
        bti_text_add(out, "%s%s (%" PRId64 ")", i ? ", " : "", f->character[i].text,
                     f->character[i].count);
    bti_text_add(out, "\n");
}

static void add_lengths(bti_text *out, const bti_text_check *t) {
    bti_text_add(out, "  tokens of a line, end symbol included\n%16s", "");
    for (int side = 0; side < 2; side++)
        if (t->file[side]) bti_text_add(out, side ? " %12s" : "%6s", side_name[side]);
    for (int i = 0; i < bins_of(t); i++) {
        bti_text_add(out, "\n    up to %-4" PRId64, to_of(i));
        for (int side = 0; side < 2; side++)
            if (t->file[side])
                bti_text_add(out, side ? " %12" PRId64 : " %7" PRId64, t->length[side][i]);
    }
    bti_text_add(out, "\n");
}

/* How many lines are longer than they may be, and which are the longest. */
static void add_long(bti_text *out, const bti_data_check *c, const bti_text_check *t) {
    static const char *const fate[] = {"cut", "skipped", "refused"};
    int both = t->file[0] && t->file[1];
    bti_text_add(out, "  longer than data.max_length %" PRId64 ": ", c->cfg->data.max_length);
    for (int side = 0; side < 2; side++)
        if (t->file[side])
            bti_text_add(out, "%s%" PRId64 " %s", side && both ? " and " : "", t->longer[side],
                         side_name[side]);
    bti_text_add(out, " lines");
    if (t->longer_pairs)
        bti_text_add(out, "; %" PRId64 " %s %s, first at line %" PRId64, t->longer_pairs,
                     both ? "pairs" : "lines",
                     fate[t == &c->train ? c->cfg->data.overlong : BTI_OVERLONG_TRUNCATE],
                     t->first_longer_line);
    bti_text_add(out, "\n  longest %s:", both ? "pairs" : "lines");
    for (int i = 0; i < t->longest_count; i++) {
        const bti_long_pair *p = &t->longest[i];
        bti_text_add(out, "%s line %" PRId64, i ? "," : "", p->line);
        if (both)
            bti_text_add(out, " (%" PRId64 " + %" PRId64 ")", p->ids[0], p->ids[1]);
        else
            bti_text_add(out, " (%" PRId64 ")", p->ids[0] + p->ids[1]);
    }
    bti_text_add(out, "\n");
}

static void add_text(bti_text *out, const bti_data_check *c, const bti_text_check *t,
                     const char *name) {
    int both = t->file[0] && t->file[1];
    bti_text_add(out, "%s: %" PRId64 " %s\n", name, t->lines, both ? "pairs of lines" : "lines");
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < t->files && t->file[side] != NULL; i++)
            add_file(out, &t->file[side][i]);
    if (t->empty)
        bti_text_add(out, "  %" PRId64 " %s, first at line %" PRId64 "\n", t->empty,
                     both ? "pairs with an empty side" : "empty lines", t->first_empty_line);
    add_lengths(out, t);
    add_long(out, c, t);
}

bt_status bt_data_check_text(const bt_run *run, char **text) {
    bti_data_check *c;
    bti_text out = {0};
    BT_TRY(bti_data_check_new(run, &c));
    const bti_duplicates *d = &c->duplicates;
    if (c->train.files) add_text(&out, c, &c->train, "training text");
    bti_input_report(&out, c, BTI_PART_TRAIN);
    if (c->valid.files) {
        add_text(&out, c, &c->valid, "validation text");
        int pairs = c->train.file[0] && c->train.file[1];
        const char *what = pairs ? "pairs" : "lines";
        bti_text_add(&out, "in both: %" PRId64 " training %s, %" PRId64 " validation %s",
                     d->train_pairs, what, d->valid_pairs, what);
        if (pairs)
            bti_text_add(&out, "; by source alone %" PRId64 " and %" PRId64, d->train_sources,
                         d->valid_sources);
        bti_text_add(&out, "\n");
        if (d->train_pairs)
            bti_text_add(&out, "  the first such training %s is at line %" PRId64 "\n",
                         pairs ? "pair" : "line", d->first_train_line);
    }
    bti_input_report(&out, c, BTI_PART_VALID);
    bti_data_check_free(c);
    return bti_text_take(&out, text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *file_json(const bti_file_check *f, int side) {
    json_t *chars = json_array();
    for (int i = 0; i < f->chars; i++)
        json_array_append_new(chars, json_pack("{s:s, s:I, s:I}", "character", f->character[i].text,
                                               "code", (json_int_t)f->character[i].code, "count",
                                               (json_int_t)f->character[i].count));
    return json_pack("{s:s, s:s, s:I, s:I, s:f, s:o}", "side", side_name[side], "path", f->path,
                     "tokens", (json_int_t)f->tokens, "unknown", (json_int_t)f->unknown,
                     "unknown_percent", percent(f), "unknown_characters", chars);
}

static json_t *line_json(int64_t line) { return line ? json_integer(line) : json_null(); }

static json_t *text_json(const bti_text_check *t) {
    json_t *files = json_array(), *lengths = json_array(), *longest = json_array();
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < t->files && t->file[side] != NULL; i++)
            json_array_append_new(files, file_json(&t->file[side][i], side));
    for (int i = 0; i < bins_of(t); i++)
        json_array_append_new(lengths, json_pack("{s:I, s:I, s:I, s:I}", "from",
                                                 (json_int_t)from_of(i), "to", (json_int_t)to_of(i),
                                                 "source", (json_int_t)t->length[0][i], "target",
                                                 (json_int_t)t->length[1][i]));
    const bti_file_check *side = t->file[0] ? t->file[0] : t->file[1];
    for (int i = 0; side != NULL && i < t->longest_count; i++) {
        const bti_long_pair *p = &t->longest[i];
        json_array_append_new(longest, json_pack("{s:I, s:s, s:I, s:I, s:I}", "line",
                                                 (json_int_t)p->line, "file", side[p->file].path,
                                                 "file_line", (json_int_t)p->file_line,
                                                 "source_tokens", (json_int_t)p->ids[0],
                                                 "target_tokens", (json_int_t)p->ids[1]));
    }
    json_t *longer = json_pack("{s:I, s:I, s:I, s:o}", "source", (json_int_t)t->longer[0], "target",
                               (json_int_t)t->longer[1], "pairs", (json_int_t)t->longer_pairs,
                               "first_line", line_json(t->first_longer_line));
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "lines", (json_int_t)t->lines,
                     "pairs", (json_int_t)(t->lines - t->empty), "empty", (json_int_t)t->empty,
                     "first_empty_line", line_json(t->first_empty_line), "files", files, "lengths",
                     lengths, "longer_than_max_length", longer, "longest", longest);
}

static json_t *duplicates_json(const bti_duplicates *d) {
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "train_pairs", (json_int_t)d->train_pairs,
                     "valid_pairs", (json_int_t)d->valid_pairs, "train_sources",
                     (json_int_t)d->train_sources, "valid_sources", (json_int_t)d->valid_sources,
                     "first_train_line", line_json(d->first_train_line));
}

bt_status bt_data_check_json(const bt_run *run, char **json) {
    static const char *const overlong[] = {"truncate", "skip", "error"};
    bti_data_check *c;
    BT_TRY(bti_data_check_new(run, &c));
    int two = c->valid.files > 0;
    json_t *root =
        json_pack("{s:I, s:s, s:o, s:o, s:o, s:o, s:o}", "max_length",
                  (json_int_t)run->data.max_length, "overlong", overlong[run->data.overlong],
                  "train", c->train.files ? text_json(&c->train) : json_null(), "valid",
                  two ? text_json(&c->valid) : json_null(), "duplicates",
                  two ? duplicates_json(&c->duplicates) : json_null(), "train_inputs",
                  bti_input_json(c, BTI_PART_TRAIN), "valid_inputs",
                  c->has_valid ? bti_input_json(c, BTI_PART_VALID) : json_null());
    bti_data_check_free(c);
    return bti_json_take(root, JSON_INDENT(2), json);
}
