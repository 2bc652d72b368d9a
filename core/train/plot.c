/* A training log as pictures: reads the series, smooths them, says what each chart shows. */
#include "core/train/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/json.h"
#include "core/data/corpus.h"
#include "core/report/chart.h"
#include "core/report/svg.h"

/* Fewer updates than this are drawn as they are. */
enum { SMOOTH_FROM = 50 };

typedef struct series {
    double *x, *y;
    size_t count, room;
} series;

typedef enum series_kind {
    LOSS,
    LR,
    SPEED,
    VALID_LOSS,
    VALID_BLEU,
    VALID_CHRF,
    VALID_ACCURACY,
    VALID_F1,
    VALID_MSE,
    KINDS
} series_kind;

static const char *const fields[KINDS] = {[LOSS] = "loss",
                                          [LR] = "lr",
                                          [SPEED] = "tokens_per_s",
                                          [VALID_LOSS] = "valid_loss",
                                          [VALID_BLEU] = "valid_bleu",
                                          [VALID_CHRF] = "valid_chrf",
                                          [VALID_ACCURACY] = "valid_accuracy",
                                          [VALID_F1] = "valid_f1",
                                          [VALID_MSE] = "valid_mse"};

/* Scores of validations. */
static const struct score {
    series_kind kind;
    const char *file, *title, *y_label;
    int decimals, less_is_better;
} scores[] = {
    {VALID_BLEU, "bleu.svg", "Validation BLEU", "BLEU (0 to 100)", 2, 0},
    {VALID_CHRF, "chrf.svg", "Validation chrF", "chrF (0 to 100)", 2, 0},
    {VALID_ACCURACY, "accuracy.svg", "Validation accuracy", "accuracy (0 to 1)", 4, 0},
    {VALID_F1, "f1.svg", "Validation F1", "F1 (0 to 1)", 4, 0},
    {VALID_MSE, "mse.svg", "Validation error", "mean square error", 4, 1},
};

/* ---- reading -----------------------------------------------------------------------------------
 */

static void series_free(series *s) {
    bti_free(s->x);
    bti_free(s->y);
}

static bt_status push(series *s, double x, double y) {
    if (s->count == s->room) {
        size_t room = 2 * s->room + 256;
        double *more = bti_realloc(s->x, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        s->x = more;
        more = bti_realloc(s->y, room, sizeof *more);
        if (more == NULL) return BT_ENOMEM;
        s->y = more;
        s->room = room;
    }
    s->x[s->count] = x;
    s->y[s->count++] = y;
    return BT_OK;
}

static bt_status take_line(series *all, const char *line, size_t bytes) {
    json_t *root = bti_json_read(line, bytes);
    const json_t *update = json_object_get(root, "update");
    bt_status status = BT_OK;
    for (int k = 0; k < KINDS && json_is_integer(update) && status == BT_OK; k++) {
        const json_t *value = json_object_get(root, fields[k]);
        double x = json_number_value(update);
        if (!json_is_number(value)) continue;
        if (all[k].count > 0 && x <= all[k].x[all[k].count - 1]) continue;
        status = push(&all[k], x, json_number_value(value));
    }
    json_decref(root);
    return status;
}

static bt_status read_log(const char *path, series *all) {
    bti_reader *r;
    const char *line;
    size_t bytes;
    BT_TRY(bti_reader_open(path, &r));
    bti_reader_quiet(r);
    bt_status status = bti_reader_next(r, &line, &bytes);
    while (status == BT_OK && line != NULL) {
        status = take_line(all, line, bytes);
        if (status == BT_OK) status = bti_reader_next(r, &line, &bytes);
    }
    bti_reader_close(r);
    return status;
}

/* ---- smoothing ---------------------------------------------------------------------------------
 */

/* Updates that a smoothed point is the mean of: a fiftieth of all, at least 11, odd. */
static size_t window_of(size_t count) { return (count / 50 > 11 ? count / 50 : 11) | 1; }

/* Centred means, so that nothing lags. Near the start the window is as short on the right as it is
 * on the left, for that is where a loss falls steeply; near the end it is cut. */
static bt_status smooth(const series *of, series *out) {
    size_t half = window_of(of->count) / 2, from = 0, to = 0; /* sum is of from .. to-1 */
    double sum = 0;
    if (of->count < SMOOTH_FROM) return BT_OK;
    for (size_t i = 0; i < of->count; i++) {
        size_t reach = i < half ? i : half;
        size_t end = i + reach + 1 < of->count ? i + reach + 1 : of->count;
        while (to < end) sum += of->y[to++];
        while (from < i - reach) sum -= of->y[from++];
        BT_TRY(push(out, of->x[i], sum / (double)(to - from)));
    }
    return BT_OK;
}

/* ---- charts ------------------------------------------------------------------------------------
 */

static bt_status write_chart(const char *folder, const char *name, const bti_chart *chart) {
    char *path = bti_format("%s/%s", folder, name);
    if (path == NULL) return BT_ENOMEM;
    bt_status status = bti_chart_write(chart, path);
    bti_free(path);
    return status;
}

/* One chart of a series of the updates, smoothed, and of validations, which may be NULL. */
static bt_status draw_updates(const char *folder, const char *name, bti_chart chart,
                              const series *raw, const series *valid, int decimals) {
    char number[BTI_NUMBER_BYTES], note[96], means[80];
    series smoothed = {0};
    if (raw->count == 0 && (valid == NULL || valid->count == 0)) return BT_OK;
    bt_status status = smooth(raw, &smoothed);
    if (status != BT_OK) goto done;
    snprintf(means, sizeof means, "mean of %s updates",
             bti_svg_number(number, (double)window_of(raw->count), 0));
    const series *main_curve = smoothed.count ? &smoothed : raw;
    const bti_curve curves[] = {
        {"each update", BTI_CURVE_RAW, raw->x, raw->y, smoothed.count ? raw->count : 0},
        {smoothed.count ? means : "each update", BTI_CURVE_MAIN, main_curve->x, main_curve->y,
         main_curve->count},
        {"validation", BTI_CURVE_VALID, valid ? valid->x : NULL, valid ? valid->y : NULL,
         valid ? valid->count : 0}};
    note[0] = 0;
    if (main_curve->count > 0)
        snprintf(note, sizeof note, smoothed.count ? "last mean %s" : "last %s",
                 bti_svg_number(number, main_curve->y[main_curve->count - 1], decimals));
    chart.note = note;
    chart.curves = curves;
    chart.count = sizeof curves / sizeof curves[0];
    status = write_chart(folder, name, &chart);
done:
    series_free(&smoothed);
    return status;
}

static bt_status draw_lr(const char *folder, const series *lr) {
    if (lr->count == 0) return BT_OK;
    const bti_curve curve = {"learning rate", BTI_CURVE_MAIN, lr->x, lr->y, lr->count};
    const bti_chart chart = {"Learning rate", "learning rate", "", 1, &curve, 1, NULL};
    return write_chart(folder, "lr.svg", &chart);
}

static bt_status draw_score(const char *folder, const struct score *score, const series *of) {
    char value[BTI_NUMBER_BYTES], update[BTI_NUMBER_BYTES], note[128];
    if (of->count == 0) return BT_OK;
    size_t best = 0;
    for (size_t i = 1; i < of->count; i++)
        if (score->less_is_better ? of->y[i] < of->y[best] : of->y[i] > of->y[best]) best = i;
    snprintf(note, sizeof note, "best %s at update %s",
             bti_svg_number(value, of->y[best], score->decimals),
             bti_svg_number(update, of->x[best], 0));
    const bti_curve curve = {"validation", BTI_CURVE_VALID, of->x, of->y, of->count};
    const bti_chart chart = {score->title, score->y_label, note, 1, &curve, 1, NULL};
    return write_chart(folder, score->file, &chart);
}

bt_status bti_plot_log(const char *log_path, const bti_head *head, const char *folder) {
    series all[KINDS] = {{0}};
    char loss_label[64], speed_label[64];
    const bti_chart loss = {.title = "Loss", .y_label = loss_label};
    const bti_chart speed = {.title = "Speed", .y_label = speed_label, .from_zero = 1};
    snprintf(loss_label, sizeof loss_label, "loss per %s (%s)", head->unit, head->measure);
    snprintf(speed_label, sizeof speed_label, "%ss a second", head->unit);
    bt_status status = read_log(log_path, all);
    if (status == BT_OK)
        status = draw_updates(folder, "loss.svg", loss, &all[LOSS], &all[VALID_LOSS], 3);
    if (status == BT_OK) status = draw_lr(folder, &all[LR]);
    if (status == BT_OK) status = draw_updates(folder, "speed.svg", speed, &all[SPEED], NULL, 0);
    for (size_t i = 0; i < sizeof scores / sizeof scores[0] && status == BT_OK; i++)
        status = draw_score(folder, &scores[i], &all[scores[i].kind]);
    for (int k = 0; k < KINDS; k++) series_free(&all[k]);
    return status;
}
