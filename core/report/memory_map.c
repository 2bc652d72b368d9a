#include "core/report/memory_map.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/report/map_style.h"
#include "core/report/plan_report.h"
#include "core/report/svg.h"

/* The picture: the column of everything, and the panel of the dynamic region. */
enum {
    WIDTH = 1240,
    HEIGHT = 780,
    MARGIN = 24,
    TOP = 150,
    BOTTOM = 690,
    COLUMN_LEFT = 92,
    COLUMN_RIGHT = 262,
    PANEL_LEFT = 372,
    PANEL_RIGHT = 1216
};
#define LETTER 7.1 /* of 12 px text, about */

const char *const bti_map_kind_name[BTI_MAP_KINDS] = {
    "layer inputs", "attention",           "feed-forward", "norms and sums",
    "gradients",    "logits of one chunk", "scratch",      "other"};
const char *const bti_map_kind_class[BTI_MAP_KINDS] = {"ki", "ka", "kf", "kn",
                                                       "kg", "kl", "ks", "ko"};

/* The tensor that `id` is made again for; 0: it is no copy. */
static bti_tid original_of(const bti_program *p, bti_tid id) {
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (p->tensor[i].replay == id) return i;
    return 0;
}

/* Gradients of activations are named after what they are of: "d hidden". */
bti_map_kind bti_map_kind_of(const bti_program *p, bti_tid id) {
    bti_tid of = original_of(p, id);
    const bti_tensor *t = &p->tensor[of ? of : id];
    if (t->kind == BTI_KIND_LOGITS) return BTI_MAP_LOGITS;
    if (t->kind == BTI_KIND_WORKSPACE) return BTI_MAP_SCRATCH;
    if (strncmp(t->name, "d ", 2) == 0) return BTI_MAP_GRADIENT;
    switch (t->cls) {
    case BTI_CLASS_INPUT:
        return BTI_MAP_INPUT;
    case BTI_CLASS_PROJ:
    case BTI_CLASS_ATTN:
        return BTI_MAP_ATTENTION;
    case BTI_CLASS_FF:
    case BTI_CLASS_ACT:
        return BTI_MAP_FEED_FORWARD;
    case BTI_CLASS_STATS:
    case BTI_CLASS_BLOCK:
    case BTI_CLASS_NORM:
        return BTI_MAP_NORM;
    default:
        return BTI_MAP_OTHER;
    }
}

int bti_map_is_again(const bti_program *p, bti_tid id) { return original_of(p, id) != 0; }

int32_t bti_map_layer(const bti_program *p, bti_tid id) {
    bti_tid of = original_of(p, id);
    return p->tensor[of ? of : id].layer;
}

int bti_map_is_drawn(const bti_tensor *t) {
    return t->region == BTI_REGION_DYNAMIC && t->first >= 0 && t->bytes > 0;
}

/* ---- axis of bytes -----------------------------------------------------------------------------
 */

typedef struct bytes_axis {
    double most; /* bytes at the top */
} bytes_axis;

static double to_y(const bytes_axis *a, double bytes) {
    return BOTTOM - bytes / a->most * (BOTTOM - TOP);
}

/* Ticks at 1, 2 or 5 times a power of ten of the unit that the top has two digits or so in. */
static void ticks(bti_text *t, const bytes_axis *a, double from, double to) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    double scale = 1;
    for (; a->most / scale >= 1500 && u < 4; u++) scale *= 1024;
    double rough = a->most / scale / 6, power = pow(10, floor(log10(rough))), m = rough / power;
    double step = power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
    int decimals = step < 1 ? (int)ceil(-log10(step) - 1e-9) : 0;
    for (int i = 0; i * step <= a->most / scale * (1 + 1e-9); i++) {
        char number[BTI_NUMBER_BYTES], text[64];
        double y = to_y(a, i * step * scale);
        bti_svg_line(t, "grid", from, floor(y) + 0.5, to, floor(y) + 0.5);
        snprintf(text, sizeof text, "%s %s", bti_svg_number(number, i * step, decimals), unit[u]);
        bti_svg_text(t, "tick", from - 8, y + 4, "end", text);
    }
}

/* ---- the column of everything ------------------------------------------------------------------
 */

typedef struct band {
    const char *name, *class;
    uint64_t bytes;
} band;

enum { BANDS = 7, DYNAMIC = 5 };

static void bands_of(const bti_run_plan *p, band out[BANDS]) {
    const uint64_t *r = p->region;
    int host = p->places.moments.kind == BTI_MOMENTS_HOST;
    band b[BANDS] = {
        {"weights", "bw", r[BTI_REGION_WEIGHTS]},
        {"gradients", "bg", r[BTI_REGION_GRADIENTS]},
        {host ? "first-moment buckets" : "first moments", "bm", r[BTI_REGION_MOMENT1]},
        {host ? "second-moment buckets" : "second moments", "bv", r[BTI_REGION_MOMENT2]},
        {"tables", "bt", r[BTI_REGION_CONSTANT] + r[BTI_REGION_STAGING]},
        {"dynamic region", "bd", r[BTI_REGION_DYNAMIC]},
        {"runtime", "br", p->bytes[BTI_BYTES_RUNTIME]}};
    memcpy(out, b, sizeof b);
}

static void put_band(bti_text *t, const band *b, double low, double high) {
    char bytes[32], text[96];
    bti_format_bytes(b->bytes, bytes);
    bti_svg_box(t, b->class, COLUMN_LEFT, high, COLUMN_RIGHT - COLUMN_LEFT, low - high);
    bti_text_add(t, "><title>%s: %s</title></rect>\n", b->name, bytes);
    snprintf(text, sizeof text, "%s  %s", b->name, bytes);
    if (low - high < 15) return;
    bti_text_add(t, "<g class=\"on-%s\">", b->class);
    bti_svg_text(t, "in", (COLUMN_LEFT + COLUMN_RIGHT) / 2.0, (low + high) / 2 + 4, "middle", text);
    bti_text_add(t, "</g>\n");
}

/* The column, the budget, and the wedge from the dynamic region to its panel. */
static void put_column(bti_text *t, const bti_session *s) {
    const bti_run_plan *p = s->plan;
    bytes_axis a = {(double)(p->budget > p->total ? p->budget : p->total) * 1.04};
    band b[BANDS];
    uint64_t sum = 0;
    char bytes[32], text[64];
    if (p->budget == 0 || p->budget > 4 * p->total) a.most = (double)p->total * 1.25;
    bands_of(p, b);
    bti_svg_text(t, "head", COLUMN_LEFT, TOP - 16, "start", "Everything, to scale");
    ticks(t, &a, COLUMN_LEFT, COLUMN_RIGHT);
    for (int i = 0; i < BANDS; i++) {
        double low = to_y(&a, (double)sum), high = to_y(&a, (double)(sum + b[i].bytes));
        if (i == DYNAMIC) {
            bti_text_add(t, "<path class=\"wedge\" d=\"M%d %ld L%d %d L%d %d L%d %ld Z\"/>\n",
                         COLUMN_RIGHT, lround(high), PANEL_LEFT, TOP, PANEL_LEFT, BOTTOM,
                         COLUMN_RIGHT, lround(low));
        }
        put_band(t, &b[i], low, high);
        sum += b[i].bytes;
    }
    if ((double)p->budget > a.most || p->budget == 0) return; /* far above: the title tells it */
    double y = to_y(&a, (double)p->budget);
    bti_svg_line(t, "budget", COLUMN_LEFT - 4, y, COLUMN_RIGHT + 14, y);
    bti_format_bytes(p->budget, bytes);
    snprintf(text, sizeof text, "budget %s", bytes);
    bti_svg_text(t, "over", COLUMN_RIGHT + 14, y - 5, "end", text);
}

/* ---- the panel of the dynamic region -----------------------------------------------------------
 */

static double to_x(const bti_program *p, double op) {
    return PANEL_LEFT + op / (p->ops > 0 ? p->ops : 1) * (PANEL_RIGHT - PANEL_LEFT);
}

static void put_tensor(bti_text *t, const bti_program *p, bti_tid id, const bytes_axis *a) {
    const bti_tensor *x = &p->tensor[id];
    bti_tid of = original_of(p, id);
    bti_map_kind kind = bti_map_kind_of(p, id);
    int32_t layer = bti_map_layer(p, id);
    char bytes[32], class[16];
    double left = to_x(p, x->first), right = to_x(p, x->last + 1);
    double low = to_y(a, (double)x->address), high = to_y(a, (double)(x->address + x->bytes));
    bti_format_bytes(x->bytes, bytes);
    snprintf(class, sizeof class, "%s%s%s", bti_map_kind_class[kind], of ? " again" : "",
             low - high < 2 ? " thin" : ""); /* a margin would hide it */
    bti_svg_box(t, class, left, high, right - left, low - high);
    bti_text_add(t, " data-i=\"%d\"><title>", id);
    bti_svg_escape(t, x->name);
    if (layer >= 0) bti_text_add(t, ", layer %d", layer);
    bti_text_add(t, "\n%s%s\n%lld x %lld %s: %s\nops %d to %d</title></rect>\n",
                 bti_map_kind_name[kind], of ? ", made again" : "", (long long)x->rows,
                 (long long)x->cols, bti_dtype_name(x->dtype), bytes, x->first, x->last);
    if (low - high < 14 || right - left < LETTER * (double)strlen(x->name) + 8) return;
    bti_svg_text(t, "in on", left + 5, (low + high) / 2 + 4, "start", x->name);
}

/* Where encoder, decoder and output layer begin, forward and backward. */
typedef struct phase {
    const char *name;
    int32_t from, to;
} phase;
enum { PHASES = 5 };

/* First op from `from` on that has an operand in this region whose name begins like this. */
static int32_t first_with(const bti_program *p, int32_t from, bti_region region, const char *name) {
    for (int32_t k = from; k < p->ops; k++)
        for (int i = 0; i < BT_MAX_OPERANDS; i++) {
            bti_tid id = p->op[k].t[i].id;
            if (id > 0 && p->tensor[id].region == region &&
                strncmp(p->tensor[id].name, name, strlen(name)) == 0)
                return k;
        }
    return p->ops;
}

static void phases_of(const bti_program *p, phase out[PHASES]) {
    int32_t logits[2] = {p->ops, p->ops};
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (p->tensor[i].kind == BTI_KIND_LOGITS && p->tensor[i].first >= 0) {
            logits[0] = p->tensor[i].first;
            logits[1] = p->tensor[i].last + 1;
        }
    int32_t decoder = first_with(p, 0, BTI_REGION_WEIGHTS, "transformer.decoder");
    int32_t back = first_with(p, logits[1], BTI_REGION_GRADIENTS, "transformer.encoder");
    if (decoder > logits[0]) decoder = logits[0];
    phase ph[PHASES] = {{"encoder", 0, decoder},
                        {"decoder", decoder, logits[0]},
                        {"output", logits[0], logits[1]},
                        {"decoder, backward", logits[1], back},
                        {"encoder, backward", back, p->ops}};
    memcpy(out, ph, sizeof ph);
}

static void put_phases(bti_text *t, const bti_program *p) {
    phase ph[PHASES];
    phases_of(p, ph);
    for (int i = 0; i < PHASES; i++) {
        double left = to_x(p, ph[i].from), right = to_x(p, ph[i].to);
        if (ph[i].to <= ph[i].from) continue;
        bti_svg_line(t, "axis", left + 1, BOTTOM + 12, right - 1, BOTTOM + 12);
        if (i > 0) bti_svg_line(t, "part", left, TOP, left, BOTTOM + 12);
        if (right - left >= LETTER * (double)strlen(ph[i].name))
            bti_svg_text(t, "tick", (left + right) / 2, BOTTOM + 28, "middle", ph[i].name);
    }
}

static void put_panel(bti_text *t, const bti_session *s) {
    const bti_program *p = s->plan->step;
    bytes_axis a = {(double)s->plan->region[BTI_REGION_DYNAMIC]};
    char bytes[32], text[160], ops[BTI_NUMBER_BYTES];
    if (a.most <= 0) return;
    bti_format_bytes(s->plan->region[BTI_REGION_DYNAMIC], bytes);
    snprintf(text, sizeof text, "The dynamic region, %s, through one micro-batch of %s ops", bytes,
             bti_svg_number(ops, p->ops, 0));
    bti_svg_text(t, "head", PANEL_LEFT, TOP - 16, "start", text);
    bti_svg_box(t, "panel", PANEL_LEFT, TOP, PANEL_RIGHT - PANEL_LEFT, BOTTOM - TOP);
    bti_text_add(t, "/>\n");
    ticks(t, &a, PANEL_LEFT, PANEL_RIGHT);
    bti_text_add(t, "<g class=\"tensors\">\n");
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (bti_map_is_drawn(&p->tensor[i])) put_tensor(t, p, i, &a);
    bti_text_add(t, "</g>\n");
    put_phases(t, p);
    double peak = to_x(p, s->plan->layout.peak_op + 0.5);
    bti_text_add(t, "<path class=\"peak\" d=\"M%ld %d l-5 -9 h10 Z\"/>\n", lround(peak), TOP - 1);
    bti_svg_text(t, "tick", PANEL_RIGHT, BOTTOM + 56, "end", "triangle: where most is live");
    bti_svg_text(t, "tick", PANEL_LEFT, BOTTOM + 56, "start",
                 "time: ops in order; pale: made again in backward");
}

/* ---- title and legend --------------------------------------------------------------------------
 */

/* Only the kinds that the map has. */
static void put_legend(bti_text *t, const bti_program *p) {
    int there[BTI_MAP_KINDS] = {0};
    double x = MARGIN;
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (bti_map_is_drawn(&p->tensor[i])) there[bti_map_kind_of(p, i)] = 1;
    for (int k = 0; k < BTI_MAP_KINDS; k++) {
        if (!there[k]) continue;
        bti_svg_box(t, bti_map_kind_class[k], x, 92, 14, 14);
        bti_text_add(t, "/>\n");
        bti_svg_text(t, "tick", x + 20, 103, "start", bti_map_kind_name[k]);
        x += 20 + LETTER * (double)strlen(bti_map_kind_name[k]) + 22;
    }
}

void bti_map_svg(bti_text *t, const bti_session *s) {
    const bti_run_plan *p = s->plan;
    char total[32], budget[32], device[200], model[200], title[320], sub[280],
        number[BTI_NUMBER_BYTES];
    bti_format_bytes(p->total, total);
    bti_format_bytes(p->budget, budget);
    bti_describe_device(s, device, sizeof device);
    bti_describe_model(s, model, sizeof model);
    snprintf(title, sizeof title, "%s of %s on %s%s", total, budget, device,
             p->fits ? "" : ": DOES NOT FIT");
    bti_text_add(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" ", WIDTH,
                 HEIGHT);
    bti_text_add(t, "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH, HEIGHT);
    bti_svg_escape(t, title);
    bti_text_add(t, "</title>\n<style>\n%s</style>\n", bti_map_style);
    bti_text_add(t, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
    bti_svg_text(t, "title", MARGIN, 38, "start", title);
    snprintf(sub, sizeof sub, "%s, %s parameters", model,
             bti_svg_number(number, (double)s->model->params.elements, 0));
    bti_svg_text(t, "sub", MARGIN, 64, "start", sub);
    put_legend(t, p->step);
    put_column(t, s);
    put_panel(t, s);
    bti_text_add(t, "</svg>\n");
}
