#include "core/report/advice.h"

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text.h"
#include "core/run/precision.h"

/* Changes that free less than this part of the least bytes are not worth telling, unless no more is
 * missing. */
#define WORTH(bytes) ((bytes) / 100)
/* A limit on lengths is cheap when it touches at most one pair of so many. */
#define FEW 100

/* ---- changes -----------------------------------------------------------------------------------
 * Each alters `w` and says so, or gives 0 where there is nothing to change. In order of what they
 * cost: time; a few long lines; digits; parameters that many models share anyway; then the model
 * itself. */

typedef int (*change_fn)(const bti_session *s, bti_what_if *w, bti_advice *a);

static int recompute(const bti_session *s, bti_what_if *w, bti_advice *a) {
    (void)s;
    if (w->recompute == BTI_RECOMPUTE_AUTO) return 0;
    w->recompute = BTI_RECOMPUTE_AUTO;
    snprintf(a->change, sizeof a->change, "memory.recompute: auto");
    return 1;
}

/* Half activations; bf16 before fp16, which wants a loss scale. */
static int halve_activations(const bti_session *s, bti_what_if *w, bti_advice *a) {
    static const bti_precision half[] = {BTI_PRECISION_BF16, BTI_PRECISION_FP16};
    if (bti_precision_data(w->precision) != BT_F32) return 0;
    for (int i = 0; i < 2; i++) {
        if (!bti_precision_has(&s->dev->info, half[i])) continue;
        w->precision = half[i];
        snprintf(a->change, sizeof a->change, "training.precision: %s",
                 bti_precision_name(half[i]));
        snprintf(a->cost, sizeof a->cost, "activations are rounded to it");
        return 1;
    }
    return 0;
}

/* The same bits, for copies in each update. With auto the least is known to be that already. */
static int moments_to_host(const bti_session *s, bti_what_if *w, bti_advice *a) {
    if (w->moments != BTI_MOMENTS_DEVICE || s->dev->info.host_memory) return 0;
    w->moments = BTI_MOMENTS_HOST;
    snprintf(a->change, sizeof a->change, "memory.optimizer_state: host");
    snprintf(a->cost, sizeof a->cost, "they are copied to the device and back in each update");
    return 1;
}

static int moments_in_8bit(const bti_session *s, bti_what_if *w, bti_advice *a) {
    (void)s;
    if (w->moments == BTI_MOMENTS_8BIT) return 0;
    w->moments = BTI_MOMENTS_8BIT;
    snprintf(a->change, sizeof a->change, "memory.optimizer_state: 8bit");
    snprintf(a->cost, sizeof a->cost, "moments are rounded to 8 bits after each update");
    return 1;
}

static int64_t longest_of(const bti_session *s) {
    const int64_t *n = s->workload.longest;
    return n[0] > n[1] ? n[0] : n[1];
}

static int limit_length(const bti_session *s, bti_what_if *w, bti_advice *a, int64_t length) {
    int64_t line = 0, touched;
    if (length < 2 || length >= w->max_length || length >= longest_of(s)) return 0;
    w->max_length = length;
    snprintf(a->change, sizeof a->change, "data.max_length: %lld", (long long)length);
    if (s->corpus == NULL) {
        snprintf(a->cost, sizeof a->cost, "cuts every %s",
                 bti_session_has_pairs(s) ? "pair" : "line");
        return 1;
    }
    touched = bti_workload_touched(s->corpus, length, &line);
    snprintf(a->cost, sizeof a->cost, "cuts %lld of %lld %s, the first at line %lld",
             (long long)touched, (long long)bti_corpus_count(s->corpus),
             bti_session_has_pairs(s) ? "pairs" : "lines", (long long)line);
    return 1;
}

/* The shortest limit that touches few pairs. */
static int cut_outliers(const bti_session *s, bti_what_if *w, bti_advice *a) {
    if (s->corpus == NULL) return 0;
    int64_t low = 2, high = longest_of(s), line,
            few = (bti_corpus_count(s->corpus) + FEW - 1) / FEW;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (bti_workload_touched(s->corpus, middle, &line) <= few)
            high = middle;
        else
            low = middle + 1;
    }
    return limit_length(s, w, a, high);
}

static int halve_length(const bti_session *s, bti_what_if *w, bti_advice *a) {
    int64_t now = longest_of(s) < w->max_length ? longest_of(s) : w->max_length;
    return limit_length(s, w, a, now / 2);
}

static int tie(const bti_session *s, bti_what_if *w, bti_advice *a) {
    (void)a;
    if (w->model.tie == BTI_TIE_ALL || !bti_has_decoder(&w->model)) return 0;
    if (w->model.tie == BTI_TIE_TARGET && (!s->cfg->shared || w->vocab[0] != w->vocab[1])) return 0;
    int all = s->cfg->shared && w->vocab[0] == w->vocab[1];
    w->model.tie = all ? BTI_TIE_ALL : BTI_TIE_TARGET;
    snprintf(a->change, sizeof a->change, "model.tie_embeddings: %s", all ? "all" : "target");
    snprintf(a->cost, sizeof a->cost, "%s",
             all ? "one table for source, target and output" : "one table for target and output");
    return 1;
}

static int fewer_words(const bti_session *s, bti_what_if *w, bti_advice *a) {
    static const int64_t sizes[] = {32000, 8000};
    int64_t most = w->vocab[0] > w->vocab[1] ? w->vocab[0] : w->vocab[1];
    (void)s;
    for (int i = 0; i < 2; i++) {
        if (most < sizes[i] + sizes[i] / 2) continue;
        for (int side = 0; side < 2; side++)
            if (w->vocab[side] > sizes[i]) w->vocab[side] = sizes[i];
        snprintf(a->change, sizeof a->change, "tokenizer.size: %lld", (long long)sizes[i]);
        snprintf(a->cost, sizeof a->cost, "instead of %lld symbols; lines become longer",
                 (long long)most);
        return 1;
    }
    return 0;
}

static int halve_batch(const bti_session *s, bti_what_if *w, bti_advice *a) {
    (void)s;
    if (w->batch < 2) return 0;
    w->batch /= 2;
    snprintf(a->change, sizeof a->change, "training.batch: %lld", (long long)w->batch);
    snprintf(a->cost, sizeof a->cost, "other updates: the rate may want to change with it");
    return 1;
}

static int fewer_layers(const bti_session *s, bti_what_if *w, bti_advice *a) {
    bti_model_config *m = &w->model;
    (void)s;
    if (m->encoder_layers + m->decoder_layers <= 2) return 0;
    m->encoder_layers = (m->encoder_layers + 1) / 2;
    m->decoder_layers = (m->decoder_layers + 1) / 2;
    snprintf(a->change, sizeof a->change, "model.encoder_layers: %lld, model.decoder_layers: %lld",
             (long long)m->encoder_layers, (long long)m->decoder_layers);
    snprintf(a->cost, sizeof a->cost, "a smaller model");
    return 1;
}

static int narrower(const bti_session *s, bti_what_if *w, bti_advice *a) {
    bti_model_config *m = &w->model;
    (void)s;
    if (m->d_model < 32 || m->d_model / 2 % m->heads != 0) return 0;
    m->d_model /= 2;
    m->ff = m->ff > 1 ? m->ff / 2 : 1;
    snprintf(a->change, sizeof a->change, "model.d_model: %lld, model.ff: %lld",
             (long long)m->d_model, (long long)m->ff);
    snprintf(a->cost, sizeof a->cost, "a smaller model");
    return 1;
}

static const change_fn changes[] = {
    recompute,   moments_to_host, cut_outliers, halve_activations, moments_in_8bit, tie,
    halve_batch, fewer_words,     halve_length, fewer_layers,      narrower};
#define CHANGES ((int)(sizeof changes / sizeof changes[0]))

/* ---- asking ------------------------------------------------------------------------------------
 */

/* Adds the changes one by one until they fit together. Those that change the same thing twice (a
 * length that is halved after it was limited) go on from where the first left it. */
static bt_status add_up(const bti_session *s, bti_advice_list *out, const int *made) {
    bti_what_if all = bti_what_if_as_is(s);
    bti_needs needs = {0};
    all.least_only = 1;
    out->together = out->least;
    for (int i = 0; i < out->count; i++) {
        bti_advice unused = {.change = ""};
        changes[made[i]](s, &all, &unused);
        BT_TRY(bti_what_if_ask(s, &all, &needs));
        out->together = needs.least;
        if (needs.least > s->budget.limit) continue;
        out->enough = i + 1;
        return BT_OK;
    }
    return BT_OK;
}

bt_status bti_advise(const bti_session *s, bti_advice_list *out) {
    bti_needs needs;
    int made[BTI_MOST_ADVICE] = {0};
    bti_what_if one = bti_what_if_as_is(s);
    memset(out, 0, sizeof *out);
    out->least = s->plan->minimum;
    for (int i = 0; i < CHANGES && out->count < BTI_MOST_ADVICE; i++) {
        bti_advice *a = &out->item[out->count];
        bti_what_if w = bti_what_if_as_is(s);
        w.least_only = 1;
        memset(a, 0, sizeof *a);
        if (!changes[i](s, &w, a)) continue;
        BT_TRY(bti_what_if_ask(s, &w, &needs));
        a->fits = needs.least <= s->budget.limit;
        if (needs.least >= out->least) continue;
        if (out->least - needs.least < WORTH(out->least) && !a->fits) continue;
        a->frees = out->least - needs.least;
        a->needs = needs.least;
        made[out->count++] = i;
    }
    one.batch = 1;
    one.least_only = 1;
    BT_TRY(bti_what_if_ask(s, &one, &needs));
    out->batch_does_not = needs.least >= out->least || out->least - needs.least < WORTH(out->least);
    return add_up(s, out, made);
}

char *bti_advice_text(const bti_advice *a) {
    char frees[32], needs[32];
    bti_format_bytes(a->frees, frees);
    bti_format_bytes(a->needs, needs);
    return bti_format("%s frees %s (%s%sneeds %s then%s)", a->change, frees, a->cost,
                      a->cost[0] ? "; " : "", needs, a->fits ? ": fits" : "");
}

/* ---- blame -------------------------------------------------------------------------------------
 */

uint64_t bti_param_state(const bti_params *t, int32_t i, bti_moments moments) {
    const bti_param *p = &t->param[i];
    uint64_t values = (uint64_t)(p->rows + p->grad_rows) * (uint64_t)p->cols;
    return values * bti_dtype_size(t->dtype) + 2 * bti_moment_bytes(moments, t, p->rows * p->cols);
}

bti_blame bti_blame_of(const bti_session *s) {
    const bti_params *t = &s->model->params;
    const bti_run_plan *p = s->plan;
    bti_blame most = {
        .name = "the runtime", .bytes = p->bytes[BTI_BYTES_RUNTIME], .kind = BTI_BLAME_RUNTIME};
    for (int32_t i = 0; i < t->count; i++) {
        uint64_t bytes = bti_param_state(t, i, p->choice.moments);
        if (bytes > most.bytes)
            most = (bti_blame){t->param[i].name, bytes, t->param[i].rows, t->param[i].cols,
                               p->choice.moments == BTI_MOMENTS_HOST ? BTI_BLAME_GRADIENT
                                                                     : BTI_BLAME_STATE};
    }
    /* What a shorter line would free is all that lives with the tensor. */
    if (p->layout.largest == 0 || p->layout.live <= most.bytes) return most;
    const bti_tensor *x = &p->step->tensor[p->layout.largest];
    return (bti_blame){x->name, x->bytes, x->rows, x->cols,
                       s->model->segments > 0 ? BTI_BLAME_EXAMPLE : BTI_BLAME_TENSOR};
}

void bti_blame_text(const bti_blame *b, char *out, size_t bytes) {
    static const char *const what[] = {[BTI_BLAME_STATE] = " with its gradient and moments",
                                       [BTI_BLAME_GRADIENT] = " with its gradient",
                                       [BTI_BLAME_RUNTIME] = " of code, libraries and stacks",
                                       [BTI_BLAME_TENSOR] = " for the longest pair",
                                       [BTI_BLAME_EXAMPLE] = " for the longest example"};
    char size[32], shape[64] = "";
    bti_format_bytes(b->bytes, size);
    if (b->rows > 0)
        snprintf(shape, sizeof shape, ", %lld x %lld", (long long)b->rows, (long long)b->cols);
    snprintf(out, bytes, "%s%s: %s%s", b->name, shape, size, what[b->kind]);
}

/* ---- the refusal -------------------------------------------------------------------------------
 */

static void add_memory(bti_text *t, const bti_session *s) {
    const bti_budget *b = &s->budget;
    char total[32], room[32], others[32];
    bti_format_bytes(b->total, total);
    bti_format_bytes(b->free, room);
    bti_format_bytes(b->others, others);
    if (b->total == 0) return;
    bti_text_add(t, "; %s has %s, %s of it free", s->dev->info.name, total, room);
    if (b->others > 0) bti_text_add(t, ", %s held by other processes and the system", others);
}

static void add_blame(bti_text *t, const bti_session *s) {
    bti_blame b = bti_blame_of(s);
    char text[256];
    int64_t n[2];
    bti_blame_text(&b, text, sizeof text);
    if (s->corpus == NULL || s->model->segments > 0) { /* features lengthen a pair, too */
        bti_text_add(t, "; most is %s", text);
        return;
    }
    const bti_corpus_stats *c = bti_corpus_get_stats(s->corpus);
    bti_corpus_source(s->corpus, c->longest, &n[0]);
    bti_corpus_target(s->corpus, c->longest, &n[1]);
    bti_text_add(t,
                 "; most is %s; the longest pair, line %lld with %lld source and %lld target "
                 "tokens, decides the activations",
                 text, (long long)c->longest_line, (long long)n[0], (long long)n[1]);
}

static bt_status add_changes(bti_text *t, const bti_session *s) {
    bti_advice_list list;
    BT_TRY(bti_advise(s, &list));
    for (int i = 0; i < list.count && i < 3; i++) {
        char frees[32];
        bti_format_bytes(list.item[i].frees, frees);
        bti_text_add(t, "%s%s frees %s", i ? ", " : "; cheapest changes: ", list.item[i].change,
                     frees);
    }
    return BT_OK;
}

/* An arena that the device would give less than: a limit above what is free now. */
static int has_room(const bti_session *s) {
    uint64_t arena = s->plan->total - s->plan->bytes[BTI_BYTES_RUNTIME];
    return s->budget.total == 0 || arena <= s->budget.free;
}

bt_status bti_session_check(const bti_session *s) {
    char total[32], *text;
    bti_text t = {0};
    bt_status status = bti_run_plan_check(s->plan);
    if (status != BT_OK && status != BT_EFIT) return status;
    if (status == BT_OK && has_room(s)) return BT_OK;
    bti_format_bytes(s->plan->total, total);
    if (status == BT_EFIT)
        bti_text_add(&t, "%s", bt_last_error());
    else
        bti_text_add(&t, "the run is planned for %s, more than can be had", total);
    add_memory(&t, s);
    add_blame(&t, s);
    bt_status asked = status == BT_EFIT ? add_changes(&t, s) : BT_OK;
    bti_text_add(&t, "; bantam plan tells more");
    BT_TRY(bti_text_take(&t, &text));
    if (asked != BT_OK) {
        bti_free(text);
        return asked;
    }
    bti_fail(BT_EFIT, "%s", text);
    bti_free(text);
    return BT_EFIT;
}
