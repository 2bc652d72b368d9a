/* One chart as an SVG file. */
#include "core/report/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/files.h"
#include "core/report/svg.h"

/* The picture, and the frame of the curves in it. */
enum { WIDTH = 800, HEIGHT = 420, LEFT = 84, RIGHT = 764, TOP = 72, BOTTOM = 364 };
/* Two points of each bucket are kept, and the first and last of all. */
enum { BUCKETS = (BTI_CHART_POINTS - 2) / 2 };
/* Few enough points to show each as a dot. */
enum { DOTS = 60 };
/* Of the legend's letters, about. */
#define LETTER 6.6
/* Points of a curve whose first hundredth may run out of the frame. */
enum { LONG = 500 };

static const char style[] =
    "<style>\n"
    "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#4b5563}\n"
    ".page{fill:#ffffff}.title{font-size:16px;font-weight:600;fill:#111827}\n"
    ".grid{stroke:#e5e7eb}.axis{stroke:#6b7280}\n"
    ".raw,.main,.valid{fill:none;stroke-linejoin:round;stroke-linecap:round}\n"
    ".raw{stroke:#93b8ee;stroke-width:1}.main{stroke:#1d4ed8;stroke-width:2.25}\n"
    ".valid{stroke:#c2410c;stroke-width:2}\n"
    ".key{stroke-width:3}\n"
    ".dot-raw{fill:#93b8ee}.dot-main{fill:#1d4ed8}.dot-valid{fill:#c2410c}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#b6bec9}.page{fill:#10151d}.title{fill:#f3f4f6}\n"
    ".grid{stroke:#2a323d}.axis{stroke:#8b949e}\n"
    ".raw{stroke:#4a77b8}.main{stroke:#7ab2ff}.valid{stroke:#ff9d5c}\n"
    ".dot-raw{fill:#4a77b8}.dot-main{fill:#7ab2ff}.dot-valid{fill:#ff9d5c}\n"
    "}\n"
    "</style>\n";

static const char *const looks[] = {
    [BTI_CURVE_RAW] = "raw", [BTI_CURVE_MAIN] = "main", [BTI_CURVE_VALID] = "valid"};

/* ---- axes --------------------------------------------------------------------------------------
 */

typedef struct axis {
    double low, high, step;
} axis;

typedef struct frame {
    axis x, y;
} frame;

static double to_x(const frame *f, double x) {
    return LEFT + (x - f->x.low) / (f->x.high - f->x.low) * (RIGHT - LEFT);
}

static double to_y(const frame *f, double y) {
    return BOTTOM - (y - f->y.low) / (f->y.high - f->y.low) * (BOTTOM - TOP);
}

/* 1, 2 or 5 times a power of ten, so that about `ticks` steps are the range. */
static double nice_step(double range, int ticks) {
    double rough = range / ticks, power = pow(10, floor(log10(rough)));
    double m = rough / power;
    return power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

static void widen(double *low, double *high, const bti_curve *c, size_t from) {
    for (size_t i = from; i < c->count; i++) {
        if (c->y[i] < *low) *low = c->y[i];
        if (c->y[i] > *high) *high = c->y[i];
    }
}

/* Mean distance of neighbours: about the noise's standard deviation, wild ones hardly count. */
static double noise_of(const bti_curve *c) {
    double sum = 0;
    for (size_t i = 1; i < c->count; i++) sum += fabs(c->y[i] - c->y[i - 1]);
    return c->count > 1 ? sum / (double)(c->count - 1) : 0;
}

/* The y axis shows the bold curves, but for the first updates of a long run, whose cliff would
 * leave the rest flat; and of raw ones what is within a quarter more on either side, so that no
 * wild update does. What lies outside runs out of the frame. */
static axis fit_y(const bti_chart *c) {
    double low = INFINITY, high = -INFINITY, raw_low = INFINITY, raw_high = -INFINITY;
    double noise = 0;
    for (size_t i = 0; i < c->count; i++) {
        const bti_curve *v = &c->curves[i];
        if (v->look == BTI_CURVE_RAW) {
            widen(&raw_low, &raw_high, v, 0);
            noise = noise_of(v);
        } else {
            widen(&low, &high, v, v->count >= LONG ? v->count / 100 : 0);
        }
    }
    if (low > high) low = raw_low, high = raw_high;
    if (c->from_zero && low > 0) low = 0;
    double room = fmax((high - low) / 4, 5 * noise);
    if (raw_low < low) low = fmax(raw_low, low - room);
    if (raw_high > high) high = fmin(raw_high, high + room);
    if (!(high - low > 1e-9 * fabs(high))) { /* a flat line */
        room = high != 0 ? fabs(high) / 2 : 0.5;
        low -= room;
        high += room;
    }
    double step = nice_step(high - low, 5);
    return (axis){floor(low / step + 1e-6) * step, ceil(high / step - 1e-6) * step, step};
}

static axis fit_x(const bti_chart *c) {
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < c->count; i++) {
        if (c->curves[i].count == 0) continue;
        low = fmin(low, c->curves[i].x[0]);
        high = fmax(high, c->curves[i].x[c->curves[i].count - 1]);
    }
    if (low < 0.3 * high) low = 0;
    if (!(high > low)) low = high - 1, high++;
    double step = nice_step(high - low, 7);
    return (axis){low, high, c->x_label == NULL ? fmax(1, step) : step};
}

/* Small numbers have their power of ten in the axis' label instead: 0 otherwise. */
static int exponent_of(const axis *a) {
    double most = fmax(fabs(a->low), fabs(a->high));
    return most < 0.01 ? (int)floor(log10(most)) : 0;
}

static int decimals_of(double step) {
    int n = (int)ceil(-log10(step) - 1e-9);
    return n < 0 ? 0 : n > 9 ? 9 : n;
}

static void put_y_label(bti_text *s, const char *label, int exponent) {
    static const char *const digits[] = {
        "\xe2\x81\xb0", "\xc2\xb9",     "\xc2\xb2",     "\xc2\xb3",     "\xe2\x81\xb4",
        "\xe2\x81\xb5", "\xe2\x81\xb6", "\xe2\x81\xb7", "\xe2\x81\xb8", "\xe2\x81\xb9"};
    bti_text_add(s,
                 "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(20 %d) "
                 "rotate(-90)\">%s",
                 (TOP + BOTTOM) / 2, label);
    if (exponent != 0) {
        char text[16];
        sprintf(text, "%d", -exponent);
        bti_text_add(s, ", in 10\xe2\x81\xbb");
        for (const char *c = text; *c != 0; c++) bti_text_add(s, "%s", digits[*c - '0']);
    }
    bti_text_add(s, "</text>\n");
}

static void put_axes(bti_text *s, const frame *f, const bti_chart *c) {
    char text[BTI_NUMBER_BYTES];
    int exponent = exponent_of(&f->y);
    double unit = pow(10, exponent);
    int ticks = (int)lround((f->y.high - f->y.low) / f->y.step);
    for (int i = 0; i <= ticks; i++) {
        double y = f->y.low + i * f->y.step;
        double at = floor(to_y(f, y)) + 0.5; /* in the middle of a pixel: sharp */
        bti_svg_line(s, "grid", LEFT, at, RIGHT, at);
        bti_svg_text(s, "tick-y", LEFT - 8, to_y(f, y) + 4, "end",
                     bti_svg_number(text, y / unit, decimals_of(f->y.step / unit)));
    }
    double first = ceil(f->x.low / f->x.step - 1e-6) * f->x.step;
    ticks = (int)floor((f->x.high - first) / f->x.step + 1e-6);
    for (int i = 0; i <= ticks; i++) {
        double x = first + i * f->x.step;
        bti_svg_line(s, "axis", to_x(f, x), BOTTOM, to_x(f, x), BOTTOM + 5);
        bti_svg_text(s, "tick-x", to_x(f, x), BOTTOM + 19, "middle",
                     bti_svg_number(text, x, decimals_of(f->x.step)));
    }
    bti_svg_line(s, "axis", LEFT, BOTTOM, RIGHT, BOTTOM);
    bti_svg_text(s, "label", (LEFT + RIGHT) / 2.0, BOTTOM + 42, "middle",
                 c->x_label ? c->x_label : "update");
    put_y_label(s, c->y_label, exponent);
}

/* ---- curves ------------------------------------------------------------------------------------
 */

static void put_point(bti_text *s, const frame *f, const bti_curve *c, size_t i) {
    char x[BTI_NUMBER_BYTES], y[BTI_NUMBER_BYTES];
    /* Far outside of the frame is outside; the numbers stay short. */
    double at = fmin(fmax(to_y(f, c->y[i]), -HEIGHT), 2 * HEIGHT);
    bti_text_add(s, "%s%s,%s", i == 0 ? "M" : " ", bti_svg_place(x, to_x(f, c->x[i])),
                 bti_svg_place(y, at));
}

/* The lowest and the highest point of each bucket along x, in the order in which they come. */
static void put_path(bti_text *s, const frame *f, const bti_curve *c) {
    bti_text_add(s, "<path class=\"%s\" clip-path=\"url(#frame)\" d=\"", looks[c->look]);
    put_point(s, f, c, 0);
    double width = c->x[c->count - 1] - c->x[0];
    for (size_t i = 1; i + 1 < c->count;) {
        double bucket = floor((c->x[i] - c->x[0]) / width * BUCKETS);
        size_t low = i, high = i;
        for (; i + 1 < c->count; i++) {
            if (floor((c->x[i] - c->x[0]) / width * BUCKETS) != bucket) break;
            if (c->y[i] < c->y[low]) low = i;
            if (c->y[i] > c->y[high]) high = i;
        }
        put_point(s, f, c, low < high ? low : high);
        if (low != high) put_point(s, f, c, low < high ? high : low);
    }
    if (c->count > 1) put_point(s, f, c, c->count - 1);
    bti_text_add(s, "\"/>\n");
}

static void put_dots(bti_text *s, const frame *f, const bti_curve *c) {
    for (size_t i = 0; i < c->count; i++) {
        bti_text_add(s, "<circle class=\"dot-%s\" clip-path=\"url(#frame)\" r=\"3\"",
                     looks[c->look]);
        bti_svg_at(s, "cx", to_x(f, c->x[i]));
        bti_svg_at(s, "cy", to_y(f, c->y[i]));
        bti_text_add(s, "/>\n");
    }
}

static void put_legend(bti_text *s, const bti_chart *c) {
    double x = LEFT;
    for (size_t i = 0; i < c->count; i++) {
        const bti_curve *v = &c->curves[i];
        if (v->count == 0) continue;
        bti_text_add(s, "<path class=\"%s key\" d=\"M%d,52 h24\"/>\n", looks[v->look], (int)x);
        bti_svg_text(s, "legend", x + 31, 56, "start", v->name);
        x += 31 + LETTER * (double)strlen(v->name) + 24;
    }
}

bt_status bti_chart_write(const bti_chart *c, const char *path) {
    bti_text s = {0};
    char *picture = NULL;
    frame f = {fit_x(c), fit_y(c)};
    bti_text_add(&s, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" ", WIDTH,
                 HEIGHT);
    bti_text_add(&s, "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH, HEIGHT);
    bti_svg_escape(&s, c->title);
    bti_text_add(&s,
                 "</title>\n%s<clipPath id=\"frame\"><rect x=\"%d\" y=\"%d\" width=\"%d\" "
                 "height=\"%d\"/></clipPath>\n",
                 style, LEFT - 4, TOP - 4, RIGHT - LEFT + 8, BOTTOM - TOP + 8);
    bti_text_add(&s, "<rect class=\"page\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
    bti_svg_text(&s, "title", LEFT, 30, "start", c->title);
    bti_svg_text(&s, "note", RIGHT, 30, "end", c->note);
    put_axes(&s, &f, c);
    for (size_t i = 0; i < c->count; i++) {
        if (c->curves[i].count == 0) continue;
        put_path(&s, &f, &c->curves[i]);
        if (c->curves[i].count <= DOTS) put_dots(&s, &f, &c->curves[i]);
    }
    put_legend(&s, c);
    bti_text_add(&s, "</svg>\n");
    bt_status status = bti_text_take(&s, &picture);
    if (status == BT_OK) status = bti_file_write(path, picture, strlen(picture));
    bti_free(picture);
    return status;
}
