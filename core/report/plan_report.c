/* bt_plan_*: the plan of a run as text and JSON. */
#include "core/report/plan_report.h"

#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/fit/devices.h"
#include "core/model/head.h"
#include "core/report/advice.h"
#include "core/report/svg.h"
#include "core/report/what_if.h"
#include "core/run/precision.h"

bt_status bt_plan_make(const bt_run *run, const bt_plan_options *o, bt_plan **out) {
    bti_session_options options = {.known_devices = 1};
    if (o != NULL) {
        options.device = o->device;
        options.memory = o->memory;
        options.lengths[0] = o->source_tokens;
        options.lengths[1] = o->target_tokens;
    }
    bt_plan *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    bt_status status = bti_session_open(run, &options, &p->session);
    if (status != BT_OK) {
        bti_free(p);
        return status;
    }
    *out = p;
    return BT_OK;
}

void bt_plan_free(bt_plan *plan) {
    if (plan == NULL) return;
    bti_session_close(plan->session);
    bti_free(plan);
}

int bt_plan_fits(const bt_plan *plan) { return plan->session->plan->fits; }

/* ---- phrases -----------------------------------------------------------------------------------
 */

static const char *whole(char text[BTI_NUMBER_BYTES], int64_t n) {
    return bti_svg_number(text, (double)n, 0);
}

void bti_describe_model(const bti_session *s, char *out, size_t bytes) {
    const bti_model_config *m = &s->shape;
    char words[2][BTI_NUMBER_BYTES], both[2 * BTI_NUMBER_BYTES + 4];
    char outputs[BTI_NUMBER_BYTES];
    if (!bti_has_decoder(m)) {
        snprintf(out, bytes, "%lld layers, d %lld, ff %lld, %lld heads, %s of %s",
                 (long long)m->encoder_layers, (long long)m->d_model, (long long)m->ff,
                 (long long)m->heads, bti_head_of(m)->name, whole(outputs, m->outputs));
        return;
    }
    int tables = m->tie == BTI_TIE_ALL ? 1 : m->tie == BTI_TIE_TARGET ? 2 : 3;
    if (s->vocab[0] == 0) tables = m->tie == BTI_TIE_NONE ? 2 : 1; /* no source has any */
    for (int i = 0; i < 2; i++) whole(words[i], s->vocab[i]);
    int one = s->vocab[0] == 0 || s->vocab[0] == s->vocab[1]; /* of two sides, or of the only one */
    if (one)
        snprintf(both, sizeof both, "%s", words[1]);
    else
        snprintf(both, sizeof both, "%s + %s", words[0], words[1]);
    snprintf(out, bytes,
             "%lld + %lld layers, d %lld, ff %lld, %lld heads, vocabulary %s "
             "(%s)",
             (long long)m->encoder_layers, (long long)m->decoder_layers, (long long)m->d_model,
             (long long)m->ff, (long long)m->heads, both,
             tables == 1   ? "1 embedding table"
             : tables == 2 ? "2 embedding tables"
                           : "3 embedding tables");
}

void bti_describe_device(const bti_session *s, char *out, size_t bytes) {
    snprintf(out, bytes, "%s%s", s->dev->info.name,
             s->known ? ", not here: planned from a table" : "");
}

/* What backward makes again on each level. */
static const char *const made_again[BTI_LEVEL_COUNT] = {[BTI_LEVEL_NONE] = "nothing",
                                                        [BTI_LEVEL_CHEAP] = "norms and dropout",
                                                        [BTI_LEVEL_FF] = "feed-forward and norms",
                                                        [BTI_LEVEL_BLOCKS] = "all but attention",
                                                        [BTI_LEVEL_LAYERS] = "all but inputs",
                                                        [BTI_LEVEL_SEGMENTS] =
                                                            "all but some inputs"};

const char *bti_recompute_level(const bti_run_plan *p, int32_t layer) {
    return bti_level_name[bti_run_plan_level(p, layer)];
}

void bti_describe_recompute(const bti_run_plan *p, int32_t layers, char *out, size_t bytes) {
    int32_t count[BTI_LEVEL_COUNT] = {0};
    size_t n = 0;
    for (int32_t i = 0; i < layers; i++) count[bti_run_plan_level(p, i)]++;
    for (int level = 1; level < BTI_LEVEL_COUNT && n < bytes; level++)
        if (count[level] > 0)
            n += (size_t)snprintf(out + n, bytes - n, "%s%s in %d", n ? ", " : "",
                                  made_again[level], count[level]);
    if (n == 0)
        snprintf(out, bytes, "nothing");
    else if (n < bytes)
        snprintf(out + n, bytes - n, " of %d layers", layers);
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

static json_t *bytes_json(const bti_run_plan *p) {
    json_t *bytes = json_object();
    for (int i = 0; i < BTI_BYTES_KINDS; i++)
        json_object_set_new(bytes, bti_byte_kind_name[i], json_integer((json_int_t)p->bytes[i]));
    return bytes;
}

static json_t *recompute_json(const bti_session *s) {
    json_t *list = json_array();
    for (int32_t i = 0; i < s->model->layers; i++)
        json_array_append_new(list, json_string(bti_recompute_level(s->plan, i)));
    return list;
}

/* The longest pair; line 0 when its length is assumed. */
static int64_t longest_pair(const bti_session *s, int64_t n[2]) {
    n[0] = s->lengths[0];
    n[1] = s->lengths[1];
    if (s->corpus == NULL) return 0;
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    bti_corpus_source(s->corpus, c->longest, &n[0]);
    bti_corpus_target(s->corpus, c->longest, &n[1]);
    return c->longest_line;
}

static json_t *longest_json(const bti_session *s) {
    int64_t n[2], line = longest_pair(s, n);
    return json_pack("{s:I, s:I, s:I}", "line", (json_int_t)line, "source_tokens", (json_int_t)n[0],
                     "target_tokens", (json_int_t)n[1]);
}

static json_t *blame_json(const bti_session *s) {
    bti_blame b = bti_blame_of(s);
    return json_pack("{s:s, s:I, s:I, s:I}", "tensor", b.name ? b.name : "", "rows",
                     (json_int_t)b.rows, "cols", (json_int_t)b.cols, "bytes", (json_int_t)b.bytes);
}

static json_t *memory_json(const bti_budget *b) {
    return json_pack("{s:I, s:I, s:I, s:I}", "total_bytes", (json_int_t)b->total, "free_bytes",
                     (json_int_t)b->free, "held_by_others_bytes", (json_int_t)b->others,
                     "reserve_bytes", (json_int_t)b->reserve);
}

static json_t *advice_json(const bti_advice_list *advice) {
    json_t *list = json_array();
    for (int i = 0; i < advice->count; i++) {
        char *text = bti_advice_text(&advice->item[i]);
        json_array_append_new(list, json_string(text ? text : ""));
        bti_free(text);
    }
    return list;
}

/* Advice is worked out for a run that does not fit, and empty for one that does. */
static bt_status advice_of(const bti_session *s, bti_advice_list *out) {
    memset(out, 0, sizeof *out);
    return s->plan->fits ? BT_OK : bti_advise(s, out);
}

/* What the update would need in one micro-batch, where it is planned in several, as that is
 * predicted to be faster or as one does not fit. */
static bt_status ask_one_micro_batch(const bti_session *s, bti_needs *out) {
    bti_what_if w = bti_what_if_as_is(s);
    *out = (bti_needs){0};
    if (!s->plan->fits || s->plan->micro_batches <= 1) return BT_OK;
    w.one_micro_batch = 1;
    w.logit_rows = BTI_SMALL_CHUNK;
    BT_TRY(bti_what_if_ask(s, &w, out));
    if (!out->fits) return BT_OK;
    bti_needs larger; /* chunks are faster, where they fit */
    w.logit_rows = 0;
    BT_TRY(bti_what_if_ask(s, &w, &larger));
    if (larger.fits) *out = larger;
    return BT_OK;
}

/* null: the plan is one already, does not fit, or nothing of the device can be said. */
static json_t *one_micro_batch_json(const bti_session *s) {
    bti_needs n;
    if (ask_one_micro_batch(s, &n) != BT_OK || n.total == 0) return json_null();
    if (n.total == UINT64_MAX)
        return json_pack("{s:b, s:n, s:n}", "fits", 0, "total_bytes", "seconds_per_update");
    return json_pack("{s:b, s:I, s:f}", "fits", n.fits, "total_bytes", (json_int_t)n.total,
                     "seconds_per_update", n.seconds);
}

static json_t *plan_json(const bti_session *s, const bti_advice_list *advice) {
    const bti_run_plan *p = s->plan;
    const bti_shape *c = &p->caps;
    json_t *root = json_pack(
        "{s:b, s:s, s:s, s:I, s:I, s:o, s:{s:I, s:I, s:I}, s:I, s:o, s:I, s:s, s:s, s:o, s:I, s:o, "
        "s:{s:f}, s:I}",
        "fits", p->fits, "device", s->dev->info.name, "backend", s->dev->info.backend,
        "budget_bytes", (json_int_t)p->budget, "total_bytes", (json_int_t)p->total, "bytes",
        bytes_json(p), "micro_batch", "sentences", (json_int_t)c->sentences, "source_tokens",
        (json_int_t)c->rows[0], "target_tokens", (json_int_t)c->rows[1], "micro_batches_per_update",
        (json_int_t)p->micro_batches, "recompute", recompute_json(s), "logit_rows",
        (json_int_t)p->choices.logit_rows, "precision",
        bti_precision_name(s->cfg->training.precision), "optimizer_state",
        bti_moments_name[p->choice.moments], "longest_pair", longest_json(s), "minimum_bytes",
        (json_int_t)p->minimum, "advice", advice_json(advice), "predicted", "seconds_per_update",
        p->seconds, "parameters", (json_int_t)s->model->params.elements);
    json_object_set_new(root, "largest_allocation_bytes", bti_allocation_json(&s->dev->info));
    json_object_set_new(root, "host_bytes", json_integer((json_int_t)p->places.moments.host_bytes));
    json_object_set_new(root, "device_is_here", json_boolean(s->known == NULL));
    json_object_set_new(root, "feature_bytes",
                        json_integer((json_int_t)bti_feature_bytes(s->model, c)));
    json_object_set_new(root, "lengths_are_assumed", json_boolean(s->assumed));
    json_object_set_new(root, "frozen_parameters",
                        json_integer((json_int_t)bti_params_frozen(&s->model->params)));
    json_object_set_new(root, "one_micro_batch", one_micro_batch_json(s));
    if (s->initial != NULL)
        json_object_set_new(root, "initial_weights", json_string(bti_initial_text(s->initial)));
    json_object_set_new(root, "memory", memory_json(&s->budget));
    json_object_set_new(root, "blame", p->fits ? json_null() : blame_json(s));
    return root;
}

bt_status bt_plan_json(const bt_plan *plan, char **json) {
    bti_advice_list advice;
    BT_TRY(advice_of(plan->session, &advice));
    return bti_json_take(plan_json(plan->session, &advice), JSON_INDENT(2), json);
}

/* ---- text --------------------------------------------------------------------------------------
 * Columns: two blanks, a name of 14, then the rest; no line is longer than 100 letters. */

#define NAME "  %-14s "
#define BAR 40 /* letters of a bar as long as the budget */

static void add_head(bti_text *t, const bti_session *s) {
    const bti_run_plan *p = s->plan;
    char a[32], b[32], n[BTI_NUMBER_BYTES], model[200], device[200];
    bti_format_bytes(p->total, a);
    bti_format_bytes(p->budget, b);
    bti_describe_model(s, model, sizeof model);
    bti_describe_device(s, device, sizeof device);
    bti_text_add(t, "%s: %s of %s on %s\n\n", p->fits ? "fits" : "DOES NOT FIT", a, b, device);
    bti_text_add(t, NAME "%s\n", "model", model);
    bti_text_add(t, NAME "%s\n", "parameters", whole(n, s->model->params.elements));
    if (bti_params_frozen(&s->model->params) > 0)
        bti_text_add(t, NAME "%s: no gradient, no optimizer state\n", "frozen",
                     whole(n, bti_params_frozen(&s->model->params)));
    if (s->initial != NULL)
        bti_text_add(t, NAME "%s\n", "initial weights", bti_initial_text(s->initial));
}

/* Where another precision costs time: fp32 in the same budget, from rates of the same device. */
static void add_fp32(bti_text *t, const bti_session *s) {
    bti_what_if w = bti_what_if_as_is(s);
    bti_needs needs;
    if (w.precision == BTI_PRECISION_FP32 || s->known || !s->plan->fits) return;
    w.precision = BTI_PRECISION_FP32;
    if (bti_what_if_ask(s, &w, &needs) != BT_OK || !needs.fits) return;
    if (needs.seconds < 0.95 * s->plan->seconds)
        bti_text_add(t, "; %.3g in fp32, which fits too", needs.seconds);
}

/* Where the moments are, unless they are on the device as they are. */
static void add_moments(bti_text *t, const bti_run_plan *p) {
    const bti_moment_places *m = &p->places.moments;
    char all[32], bucket[32];
    bti_format_bytes(m->host_bytes, all);
    bti_format_bytes(m->bucket, bucket);
    if (m->kind == BTI_MOMENTS_HOST)
        bti_text_add(t, NAME "%s in host memory, through two buckets of %s each\n", "moments", all,
                     bucket);
    if (m->kind == BTI_MOMENTS_8BIT)
        bti_text_add(t, NAME "in 8 bits, a scale for each %d\n", "moments", BT_ADAMW8_BLOCK);
}

/* Dense features: rows of an example at most, their width, and what staging holds of them. */
static void add_features(bti_text *t, const bti_session *s) {
    const bti_model_config *m = &s->model->cfg;
    char n[2][BTI_NUMBER_BYTES], bytes[32];
    if (m->features == 0) return;
    bti_text_add(t, NAME, "features");
    for (int32_t f = 0; f < m->features; f++)
        bti_text_add(t, "%s%s %s x %s", f ? ", " : "", m->feature[f].name,
                     whole(n[0], m->feature[f].rows), whole(n[1], m->feature[f].width));
    bti_format_bytes(bti_feature_bytes(s->model, &s->plan->caps), bytes);
    bti_text_add(t, "; %s staged\n", bytes);
}

/* The longest pair of lines, or what all of them are assumed to be; of the sides that have text. */
static void add_longest(bti_text *t, const bti_session *s) {
    static const char *const side[] = {"source", "target"};
    char n[BTI_NUMBER_BYTES];
    int64_t ids[2], line = longest_pair(s, ids);
    int pairs = bti_session_has_pairs(s);
    if (s->vocab[0] + s->vocab[1] == 0) return; /* no text */
    if (line == 0)
        bti_text_add(t, NAME, pairs ? "every pair" : "every line");
    else
        bti_text_add(t, NAME "line %s: ", pairs ? "longest pair" : "longest line", whole(n, line));
    for (int i = 0; i < 2; i++)
        if (s->vocab[i] > 0)
            bti_text_add(t, "%s%s %s", i && pairs ? " and " : "", whole(n, ids[i]), side[i]);
    bti_text_add(t, " tokens%s\n", line == 0 ? " (assumed)" : "");
}

static void add_one_micro_batch(bti_text *t, const bti_session *s) {
    bti_needs needs;
    char bytes[32];
    if (ask_one_micro_batch(s, &needs) != BT_OK || !needs.fits) return;
    bti_format_bytes(needs.total, bytes);
    bti_text_add(t, NAME "%.3g seconds in one micro-batch of %s, which fits too\n", "all at once",
                 needs.seconds, bytes);
}

static void add_how(bti_text *t, const bti_session *s) {
    const bti_run_plan *p = s->plan;
    char n[2][BTI_NUMBER_BYTES], again[160];
    bti_text_add(t, NAME "%s %s in %s micro-batch%s\n", "update",
                 whole(n[0], s->cfg->training.batch), bti_session_unit(s),
                 whole(n[1], p->micro_batches), p->micro_batches == 1 ? "" : "es");
    bti_text_add(t, NAME "up to %s source and %s target %s\n", "micro-batch",
                 whole(n[0], p->caps.rows[0]), whole(n[1], p->caps.rows[1]),
                 s->model->segments ? "rows" : "tokens");
    add_features(t, s);
    if (s->cfg->training.precision != BTI_PRECISION_FP32)
        bti_text_add(t, NAME "%s%s\n", "precision", bti_precision_name(s->cfg->training.precision),
                     s->model->data != BT_F32 ? ": activations; weights, gradients and moments fp32"
                                              : " products");
    add_moments(t, p);
    bti_describe_recompute(p, s->model->layers, again, sizeof again);
    bti_text_add(t, NAME "%s\n", "recomputed", again);
    bti_text_add(t, NAME "output layer in chunks of %s row%s", "in parts",
                 whole(n[0], p->choices.logit_rows), p->choices.logit_rows == 1 ? "" : "s");
    if (p->choices.slice_rows > 0)
        bti_text_add(t, ", feed-forward in slices of %s", whole(n[0], p->choices.slice_rows));
    bti_text_add(t, "\n");
    add_longest(t, s);
    bti_text_add(t, NAME "%.3g seconds an update%s", "predicted", p->seconds,
                 s->known ? ", from its data sheet" : "");
    add_fp32(t, s);
    bti_text_add(t, "\n");
    add_one_micro_batch(t, s);
    bti_text_add(t, "\n");
}

/* One line of the table: bytes, share of the budget, bar. */
static void add_bytes(bti_text *t, const char *name, uint64_t bytes, uint64_t of, char mark) {
    char text[32], bar[BAR + 1];
    double share = of > 0 ? (double)bytes / (double)of : 0;
    int letters = share >= 1 ? BAR : (int)(share * BAR + 0.5);
    memset(bar, mark, sizeof bar);
    bar[letters] = 0;
    bti_format_bytes(bytes, text);
    bti_text_add(t, NAME "%10s %6.1f %%%s%s\n", name, text, 100 * share, letters ? "  " : "", bar);
}

static void add_table(bti_text *t, const bti_session *s) {
    const bti_run_plan *p = s->plan;
    uint64_t of = p->budget > p->total ? p->budget : p->total;
    for (int i = 0; i < BTI_BYTES_KINDS; i++)
        if (p->bytes[i] > 0 || i <= BTI_BYTES_ACTIVATIONS)
            add_bytes(t, bti_byte_kind_name[i], p->bytes[i], of, '#');
    add_bytes(t, p->fits ? "total" : "least total", p->total, of, '=');
    if (!p->fits) add_bytes(t, "budget", p->budget, of, '=');
}

/* What the device has, who holds it, and what of it is the budget. */
static void add_device(bti_text *t, const bti_session *s) {
    const bti_budget *b = &s->budget;
    char x[4][32];
    bti_format_bytes(b->total, x[0]);
    bti_format_bytes(b->free, x[1]);
    bti_format_bytes(b->others, x[2]);
    bti_text_add(t, "\n" NAME, "device memory");
    if (b->total > 0 && s->known == NULL)
        bti_text_add(t, "%s, %s free; %s of it held by other processes and the system\n", x[0],
                     x[1], x[2]);
    else
        bti_text_add(t, "%s\n", x[0]);
    if (s->dev->info.max_alloc > 0) {
        bti_format_bytes(s->dev->info.max_alloc, x[0]);
        bti_text_add(t, NAME "at most %s in one piece\n", "allocations", x[0]);
    }
    bti_format_bytes(b->limit, x[0]);
    bti_format_bytes(b->reserve, x[1]);
    bti_format_bytes(s->plan->minimum, x[2]);
    if (b->automatic)
        bti_text_add(t, NAME "%s: %s, less a reserve of %s (memory.limit: auto)\n", "budget", x[0],
                     s->known ? "all of it" : "what is free", x[1]);
    else
        bti_text_add(t, NAME "%s, as asked for\n", "budget", x[0]);
    bti_text_add(t, NAME "%s\n", "least needed", x[2]);
    uint64_t arena = s->plan->total - s->plan->bytes[BTI_BYTES_RUNTIME];
    if (b->total > 0 && s->known == NULL && s->plan->fits && arena > b->free)
        bti_text_add(t, "\nNow it could not start: of the device's memory, less is free than the "
                        "plan takes.\n");
}

static void add_advice(bti_text *t, const bti_session *s, const bti_advice_list *list) {
    bti_blame b = bti_blame_of(s);
    char bytes[32], text[256];
    bti_blame_text(&b, text, sizeof text);
    bti_text_add(t, "\nMost is %s.\n", text);
    bti_text_add(t, "To make it fit, cheapest first:\n");
    for (int i = 0; i < list->count; i++) {
        const bti_advice *a = &list->item[i];
        char frees[32], needs[32];
        bti_format_bytes(a->frees, frees);
        bti_format_bytes(a->needs, needs);
        bti_text_add(t, "  - %s%s%s%s\n", a->change, a->cost[0] ? " (" : "", a->cost,
                     a->cost[0] ? ")" : "");
        bti_text_add(t, "    frees %s: %s needed%s\n", frees, needs, a->fits ? ", fits" : "");
    }
    if (list->count == 0) bti_text_add(t, "  nothing that the run file has would free much\n");
    bti_format_bytes(list->together, bytes);
    if (list->enough > 1)
        bti_text_add(t, "The first %d together need %s: fits.\n", list->enough, bytes);
    else if (list->enough == 0 && list->count > 0)
        bti_text_add(t, "All of them together still need %s.\n", bytes);
    if (list->batch_does_not)
        bti_text_add(t,
                     "A smaller training.batch does not help: a micro-batch is one %s already.\n",
                     s->model->segments > 0 ? "example" : "pair");
}

bt_status bt_plan_text(const bt_plan *plan, char **text) {
    const bti_session *s = plan->session;
    bti_advice_list advice;
    bti_text out = {0};
    BT_TRY(advice_of(s, &advice));
    add_head(&out, s);
    add_how(&out, s);
    add_table(&out, s);
    add_device(&out, s);
    if (!s->plan->fits) add_advice(&out, s, &advice);
    return bti_text_take(&out, text);
}
