/* bt_plan_largest_batch, bt_plan_sweep: the plan of one run over batches and over budgets. */
#include <stdio.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/report/chart.h"
#include "core/report/memory_map.h"
#include "core/report/plan_report.h"
#include "core/report/svg.h"
#include "core/report/what_if.h"

/* ---- largest batch -----------------------------------------------------------------------------
 */

/* The most that an update could hold: all pairs, or all target tokens; of an assumed text, so much
 * that row numbers still fit in 32 bits. */
static int64_t whole_text(const bti_session *s) {
    const int64_t *n = s->workload.longest;
    int64_t longest = n[0] > n[1] ? n[0] : n[1];
    if (s->corpus == NULL && !s->assumed) return s->train.count;
    if (s->corpus == NULL)
        return s->cfg->training.batch_unit == BTI_BATCH_SENTENCES ? INT32_MAX / 2 / longest
                                                                  : INT32_MAX / 2;
    return s->cfg->training.batch_unit == BTI_BATCH_SENTENCES
               ? bti_corpus_count(s->corpus)
               : bti_corpus_get_stats(s->corpus)->target_ids;
}

static bt_status ask_batch(const bti_session *s, int64_t batch, int64_t logit_rows,
                           bti_needs *out) {
    bti_what_if w = bti_what_if_as_is(s);
    w.batch = batch;
    w.one_micro_batch = 1;
    w.logit_rows = logit_rows;
    return bti_what_if_ask(s, &w, out);
}

/* Doubles from the run's own batch, halves while nothing fits, then closes in. */
static bt_status find_batch(const bti_session *s, int64_t *batch, bti_needs *needs) {
    int64_t most = whole_text(s), low = 0, high = 0, at = s->cfg->training.batch;
    bti_needs n;
    if (at > most) at = most;
    *needs = (bti_needs){0};
    while (at > 0 && (low == 0 || high == 0)) { /* low fits, high does not */
        BT_TRY(ask_batch(s, at, BTI_SMALL_CHUNK, &n));
        if (n.fits) {
            low = at;
            if (at == most) break;
            at = high > 0 ? 0 : at > most / 2 ? most : 2 * at;
        } else {
            high = at;
            at = low > 0 ? 0 : at / 2;
        }
    }
    while (high - low > 1 && low > 0) {
        BT_TRY(ask_batch(s, low + (high - low) / 2, BTI_SMALL_CHUNK, &n));
        if (n.fits)
            low += (high - low) / 2;
        else
            high = low + (high - low) / 2;
    }
    *batch = low;
    if (low == 0) return BT_OK;
    BT_TRY(ask_batch(s, low, 0, needs)); /* larger chunks are faster, where they fit */
    return needs->fits ? BT_OK : ask_batch(s, low, BTI_SMALL_CHUNK, needs);
}

bt_status bt_plan_largest_batch(const bt_plan *plan, int64_t *batch) {
    bti_needs unused;
    return find_batch(plan->session, batch, &unused);
}

static const char *level_of(const bti_needs *n) { return bti_level_name[n->level]; }

static const char *unit_of(const bti_session *s) {
    return s->cfg->training.batch_unit == BTI_BATCH_SENTENCES ? "sentences" : "target_tokens";
}

bt_status bt_plan_largest_batch_text(const bt_plan *plan, char **text) {
    const bti_session *s = plan->session;
    int64_t batch;
    bti_needs n;
    bti_text t = {0};
    char device[200], total[32], budget[32], number[BTI_NUMBER_BYTES];
    BT_TRY(find_batch(s, &batch, &n));
    bti_describe_device(s, device, sizeof device);
    bti_format_bytes(n.total, total);
    bti_format_bytes(s->budget.limit, budget);
    if (batch == 0) {
        bti_text_add(&t, "no batch fits in one micro-batch of %s on %s\n", budget, device);
        return bti_text_take(&t, text);
    }
    bti_text_add(&t, "%s %s: %s of %s on %s\n", bti_svg_number(number, (double)batch, 0),
                 bti_session_unit(s), total, budget, device);
    bti_text_add(&t,
                 "in one micro-batch, %.3g seconds an update; %d of %d layers recomputed (%s)%s\n",
                 n.seconds, n.recomputed, s->model->layers, level_of(&n),
                 batch == whole_text(s) ? "; that is the whole text" : "");
    return bti_text_take(&t, text);
}

bt_status bt_plan_largest_batch_json(const bt_plan *plan, char **json) {
    const bti_session *s = plan->session;
    int64_t batch;
    bti_needs n;
    BT_TRY(find_batch(s, &batch, &n));
    return bti_json_take(json_pack("{s:I, s:s, s:I, s:I, s:f}", "largest_batch", (json_int_t)batch,
                                   "batch_unit", unit_of(s), "budget_bytes",
                                   (json_int_t)s->budget.limit, "total_bytes", (json_int_t)n.total,
                                   "seconds_per_update", n.seconds),
                         JSON_INDENT(2), json);
}

/* ---- sweep -------------------------------------------------------------------------------------
 */

enum { POINTS = 13 };
typedef struct point {
    uint64_t budget;
    bti_needs needs;
} point;

/* Budgets from the least to what the run would take of all of the device (of the budget, if that is
 * more), closer together where they are small, since there time changes fast. A plan for less also
 * fits in more: where the planner gives up to 1.5 % of time for fewer micro-batches or fewer bytes,
 * the faster one is told. */
static bt_status sweep(const bti_session *s, point *p, int *count) {
    bti_what_if w = bti_what_if_as_is(s);
    bti_needs most;
    if (s->budget.total > w.budget) w.budget = s->budget.total;
    BT_TRY(bti_what_if_ask(s, &w, &most));
    if (!most.fits)
        return bti_fail(BT_EFIT, "the run does not fit on %s with any budget", s->dev->info.name);
    uint64_t least = most.least, range = most.total - least, square = (POINTS - 1) * (POINTS - 1);
    *count = range < square ? 1 : POINTS;
    for (int i = 0; i < *count; i++) {
        w.budget = p[i].budget = least + range / square * (uint64_t)(i * i);
        if (i == POINTS - 1) w.budget = p[i].budget = most.total;
        BT_TRY(bti_what_if_ask(s, &w, &p[i].needs));
        if (i > 0 && p[i - 1].needs.seconds < p[i].needs.seconds) p[i].needs = p[i - 1].needs;
    }
    return BT_OK;
}

/* The first budgets may be many times slower: what is more than SLOW times the best is told, not
 * drawn, so that the rest is no flat line. */
#define SLOW 3

static bt_status draw(const bti_session *s, const point *p, int count, const char *path) {
    double x[POINTS], y[POINTS], gib = 1024.0 * 1024 * 1024;
    char title[256], note[128], least[32], number[BTI_NUMBER_BYTES];
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        if (p[i].needs.seconds > SLOW * p[count - 1].needs.seconds) continue;
        x[n] = (double)p[i].budget / gib;
        y[n++] = p[i].needs.seconds;
    }
    bti_text plain = {0};
    char *name;
    bti_svg_escape(&plain, s->dev->info.name);
    BT_TRY(bti_text_take(&plain, &name));
    snprintf(title, sizeof title, "Seconds an update on %s", name);
    bti_free(name);
    bti_format_bytes(p[0].budget, least);
    snprintf(note, sizeof note, "least: %s, %s s", least,
             bti_svg_number(number, p[0].needs.seconds, p[0].needs.seconds < 10 ? 3 : 1));
    const bti_curve curve = {"predicted", BTI_CURVE_VALID, x, y, n};
    const bti_chart chart = {.title = title,
                             .y_label = "seconds an update",
                             .note = note,
                             .from_zero = 1,
                             .curves = &curve,
                             .count = 1,
                             .x_label = "budget (GiB)"};
    return bti_chart_write(&chart, path);
}

bt_status bt_plan_sweep_text(const bt_plan *plan, const char *svg, char **text) {
    const bti_session *s = plan->session;
    point p[POINTS];
    int count;
    bti_text t = {0};
    char device[200];
    BT_TRY(sweep(s, p, &count));
    if (svg != NULL) BT_TRY(draw(s, p, count, svg));
    bti_describe_device(s, device, sizeof device);
    bti_text_add(&t, "%s\n\n%12s %12s %15s %14s %15s %12s\n", device, "budget", "used",
                 "seconds/update", "micro-batches", "recomputed", "output rows");
    for (int i = 0; i < count; i++) {
        const bti_needs *n = &p[i].needs;
        char budget[32], total[32], again[32];
        snprintf(again, sizeof again, "%d/%d %s", n->recomputed, s->model->layers, level_of(n));
        bti_format_bytes(p[i].budget, budget);
        bti_format_bytes(n->total, total);
        bti_text_add(&t, "%12s %12s %15.4g %14lld %15s %12lld%s\n", budget, total, n->seconds,
                     (long long)n->micro_batches, again, (long long)n->logit_rows,
                     i + 1 < count && p[i].budget <= s->budget.limit &&
                             p[i + 1].budget > s->budget.limit
                         ? "  <- budget"
                         : "");
    }
    return bti_text_take(&t, text);
}

bt_status bt_plan_sweep_json(const bt_plan *plan, const char *svg, char **json) {
    const bti_session *s = plan->session;
    point p[POINTS];
    int count;
    BT_TRY(sweep(s, p, &count));
    if (svg != NULL) BT_TRY(draw(s, p, count, svg));
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        const bti_needs *n = &p[i].needs;
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:f, s:I, s:i, s:s, s:I}", "budget_bytes",
                            (json_int_t)p[i].budget, "total_bytes", (json_int_t)n->total,
                            "seconds_per_update", n->seconds, "micro_batches_per_update",
                            (json_int_t)n->micro_batches, "recomputed_layers", n->recomputed,
                            "level", level_of(n), "logit_rows", (json_int_t)n->logit_rows));
    }
    return bti_json_take(json_pack("{s:s, s:o}", "device", s->dev->info.name, "sweep", list),
                         JSON_INDENT(2), json);
}
