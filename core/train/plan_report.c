/* bt_plan_*: the plan of a run as text and JSON. */
#include <jansson.h>
#include <stdio.h>

#include "core/base/text.h"
#include "core/train/session.h"

struct bt_plan {
    bti_session *session;
};

bt_status bt_plan_make(const bt_run *run, const char *device, const char *memory, bt_plan **out) {
    bt_plan *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    bti_session_options options = {.device = device, .memory = memory};
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

/* ---- advice ------------------------------------------------------------------------------------
 */

#define MAX_ADVICE 6

/* What would make a plan that does not fit smaller, as far as exact maths and the run file allow,
 * with the bytes it frees. */
static int advice_of(const bti_session *s, char text[MAX_ADVICE][256]) {
    const bti_run_plan *p = s->plan;
    const bti_model *m = s->model;
    char size[32];
    int n = 0;
    if (p->fits) return 0;
    bti_format_bytes(p->minimum, size);
    snprintf(text[n++], 256, "give it at least %s: --memory or memory.limit", size);
    uint64_t table = (uint64_t)(m->vocab[1] * m->cfg.d_model) * 16;
    bti_format_bytes(table, size);
    if (m->cfg.tie == BTI_TIE_NONE)
        snprintf(text[n++], 256, "model.tie_embeddings: target frees %s", size);
    else if (m->cfg.tie == BTI_TIE_TARGET && s->tokenizer[0] == s->tokenizer[1])
        snprintf(text[n++], 256, "model.tie_embeddings: all frees %s", size);
    if (p->largest_bytes > p->minimum / 20) {
        bti_format_bytes(p->largest_bytes, size);
        snprintf(text[n++], 256,
                 "the largest tensor is %s (%s); the longest pair decides the least: a smaller "
                 "data.max_length cuts it",
                 p->largest, size);
    }
    snprintf(text[n++], 256,
             "a smaller training.batch does not help: a micro-batch is one pair already");
    return n;
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
        json_array_append_new(list, json_string(bti_level_name[bti_run_plan_level(s->plan, i)]));
    return list;
}

static json_t *longest_json(const bti_session *s) {
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    int64_t a, b;
    bti_corpus_source(s->corpus, c->longest, &a);
    bti_corpus_target(s->corpus, c->longest, &b);
    return json_pack("{s:I, s:I, s:I}", "line", (json_int_t)c->longest_line, "source_tokens",
                     (json_int_t)a, "target_tokens", (json_int_t)b);
}

static json_t *advice_json(const bti_session *s) {
    char text[MAX_ADVICE][256];
    json_t *list = json_array();
    int n = advice_of(s, text);
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(text[i]));
    return list;
}

bt_status bt_plan_json(const bt_plan *plan, char **json) {
    const bti_session *s = plan->session;
    const bti_run_plan *p = s->plan;
    const bti_shape *c = &p->caps;
    json_t *root = json_pack(
        "{s:b, s:s, s:s, s:I, s:I, s:o, s:{s:I, s:I, s:I}, s:I, s:o, s:I, s:s, s:s, s:o, s:I, s:o, "
        "s:{s:f}, s:I, s:I}",
        "fits", p->fits, "device", s->dev->info.name, "backend", s->dev->info.backend,
        "budget_bytes", (json_int_t)p->budget, "total_bytes", (json_int_t)p->total, "bytes",
        bytes_json(p), "micro_batch", "sentences", (json_int_t)c->sentences, "source_tokens",
        (json_int_t)c->rows[0], "target_tokens", (json_int_t)c->rows[1], "micro_batches_per_update",
        (json_int_t)p->micro_batches, "recompute", recompute_json(s), "logit_rows",
        (json_int_t)p->choices.logit_rows, "precision", "fp32", "optimizer_state", "device",
        "longest_pair", longest_json(s), "minimum_bytes", (json_int_t)p->minimum, "advice",
        advice_json(s), "predicted", "seconds_per_update", p->seconds, "parameters",
        (json_int_t)s->model->params.elements, "largest_allocation_bytes",
        (json_int_t)s->dev->info.max_alloc);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (text == NULL) return bti_fail(BT_ENOMEM, "cannot make the plan's JSON");
    *json = text;
    return BT_OK;
}

/* ---- text --------------------------------------------------------------------------------------
 */

bt_status bt_plan_text(const bt_plan *plan, char **text) {
    const bti_session *s = plan->session;
    const bti_run_plan *p = s->plan;
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    bti_text out = {0};
    char a[32], b[32], advice[MAX_ADVICE][256];
    int64_t source, target;
    bti_format_bytes(p->total, a);
    bti_format_bytes(p->budget, b);
    bti_text_add(&out, "%s: %s of %s on %s (%s)\n\n", p->fits ? "fits" : "DOES NOT FIT", a, b,
                 s->dev->info.name, s->dev->info.backend);
    for (int i = 0; i < BTI_BYTES_KINDS; i++) {
        bti_format_bytes(p->bytes[i], a);
        bti_text_add(&out, "  %-12s %12s\n", bti_byte_kind_name[i], a);
    }
    bti_format_bytes(p->minimum, a);
    bti_corpus_source(s->corpus, c->longest, &source);
    bti_corpus_target(s->corpus, c->longest, &target);
    bti_text_add(&out, "\n  least needed   %s\n", a);
    bti_text_add(&out, "  parameters     %lld\n", (long long)s->model->params.elements);
    if (bti_params_frozen(&s->model->params) > 0)
        bti_text_add(&out, "  frozen         %lld: no gradient, no optimizer state\n",
                     (long long)bti_params_frozen(&s->model->params));
    if (s->initial != NULL)
        bti_text_add(&out, "  first values   %s\n", bti_initial_text(s->initial));
    bti_text_add(
        &out, "  update         %lld micro-batch%s of up to %lld source and %lld target tokens\n",
        (long long)p->micro_batches, p->micro_batches == 1 ? "" : "es", (long long)p->caps.rows[0],
        (long long)p->caps.rows[1]);
    bti_text_add(&out, "  recomputed     %d of %d layers; output layer in chunks of %lld rows\n",
                 p->choice.layers, s->model->layers, (long long)p->choices.logit_rows);
    bti_text_add(&out, "  longest pair   line %lld: %lld source and %lld target tokens\n",
                 (long long)c->longest_line, (long long)source, (long long)target);
    bti_text_add(&out, "  predicted      %.3g seconds an update\n", p->seconds);
    int n = advice_of(s, advice);
    if (n > 0) bti_text_add(&out, "\nTo make it fit:\n");
    for (int i = 0; i < n; i++) bti_text_add(&out, "  - %s\n", advice[i]);
    return bti_text_take(&out, text);
}
