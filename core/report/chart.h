/* One chart as an SVG file: curves over updates, axes with ticks and units, title, legend. The file
 * stands alone (no script, no font from outside) and has colours for light and dark pages. */
#ifndef BANTAM_REPORT_CHART_H
#define BANTAM_REPORT_CHART_H

#include <stddef.h>

#include "core/base/status.h"

typedef enum bti_curve_look {
    BTI_CURVE_RAW,  /* thin and pale; what runs off the others' range is cut */
    BTI_CURVE_MAIN, /* bold */
    BTI_CURVE_VALID /* bold, second colour, with dots */
} bti_curve_look;

/* Points with ascending x and finite x and y; borrowed. */
typedef struct bti_curve {
    const char *name; /* in the legend */
    bti_curve_look look;
    const double *x, *y;
    size_t count; /* 0: not drawn, not in the legend */
} bti_curve;

typedef struct bti_chart {
    const char *title, *y_label;
    const char *note; /* at the right of the title; may be "" */
    int from_zero;    /* the y axis begins at 0 */
    const bti_curve *curves;
    size_t count;
    const char *x_label; /* NULL: x are updates, whole numbers */
} bti_chart;

/* Curves are thinned to at most BTI_CHART_POINTS points that keep their extremes. All or nothing.
 */
enum { BTI_CHART_POINTS = 2002 };
bt_status bti_chart_write(const bti_chart *chart, const char *path);

#endif
