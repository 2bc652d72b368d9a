/* Parts of SVG pictures, as text, whatever the locale: nothing prints a double by printf. */
#ifndef BANTAM_REPORT_SVG_H
#define BANTAM_REPORT_SVG_H

#include "core/base/text.h"

/* A number with so many decimals (0 .. 9) and commas between thousands; "?" from 9e15 on. */
enum { BTI_NUMBER_BYTES = 48 };
const char *bti_svg_number(char text[BTI_NUMBER_BYTES], double value, int decimals);
/* A coordinate: two decimals, no commas. */
const char *bti_svg_place(char text[BTI_NUMBER_BYTES], double value);

/* `<`, `>`, `&` and `"` as they are written in text and attributes. */
void bti_svg_escape(bti_text *out, const char *text);
/* ` name="1.25"` */
void bti_svg_at(bti_text *out, const char *name, double value);
void bti_svg_text(bti_text *out, const char *class, double x, double y, const char *anchor,
                  const char *text);
void bti_svg_line(bti_text *out, const char *class, double x1, double y1, double x2, double y2);
/* Opens a rectangle; the caller closes it. */
void bti_svg_box(bti_text *out, const char *class, double x, double y, double w, double h);

#endif
