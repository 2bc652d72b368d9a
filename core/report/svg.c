#include "core/report/svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *number(char text[BTI_NUMBER_BYTES], double value, int decimals,
                          const char *comma) {
    long long power = 1;
    for (int i = 0; i < decimals; i++) power *= 10;
    double scaled = value * (double)power;
    if (!(fabs(scaled) < 9e15)) return memcpy(text, "?", 2);
    long long whole = llround(scaled), rest;
    const char *sign = whole < 0 ? "-" : "";
    whole = whole < 0 ? -whole : whole;
    rest = whole % power;
    whole /= power;
    char digits[24], *to = text + sprintf(text, "%s", sign);
    int n = sprintf(digits, "%lld", whole);
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) to += sprintf(to, "%s", comma);
        *to++ = digits[i];
    }
    if (decimals > 0) *to++ = '.';
    to[decimals > 0 ? decimals : 0] = 0;
    for (int i = decimals - 1; i >= 0; i--, rest /= 10) to[i] = (char)('0' + rest % 10);
    return text;
}

const char *bti_svg_number(char text[BTI_NUMBER_BYTES], double value, int decimals) {
    return number(text, value, decimals, ",");
}

const char *bti_svg_place(char text[BTI_NUMBER_BYTES], double value) {
    return number(text, value, 2, "");
}

void bti_svg_escape(bti_text *out, const char *text) {
    for (; *text != 0; text++) switch (*text) {
        case '<':
            bti_text_add(out, "&lt;");
            break;
        case '>':
            bti_text_add(out, "&gt;");
            break;
        case '&':
            bti_text_add(out, "&amp;");
            break;
        case '"':
            bti_text_add(out, "&quot;");
            break;
        default:
            bti_text_add(out, "%c", *text);
        }
}

void bti_svg_at(bti_text *out, const char *name, double value) {
    char text[BTI_NUMBER_BYTES];
    bti_text_add(out, " %s=\"%s\"", name, bti_svg_place(text, value));
}

void bti_svg_text(bti_text *out, const char *class, double x, double y, const char *anchor,
                  const char *text) {
    bti_text_add(out, "<text class=\"%s\" text-anchor=\"%s\"", class, anchor);
    bti_svg_at(out, "x", x);
    bti_svg_at(out, "y", y);
    bti_text_add(out, ">");
    bti_svg_escape(out, text);
    bti_text_add(out, "</text>\n");
}

void bti_svg_line(bti_text *out, const char *class, double x1, double y1, double x2, double y2) {
    bti_text_add(out, "<line class=\"%s\"", class);
    bti_svg_at(out, "x1", x1);
    bti_svg_at(out, "y1", y1);
    bti_svg_at(out, "x2", x2);
    bti_svg_at(out, "y2", y2);
    bti_text_add(out, "/>\n");
}

void bti_svg_box(bti_text *out, const char *class, double x, double y, double w, double h) {
    bti_text_add(out, "<rect class=\"%s\"", class);
    bti_svg_at(out, "x", x);
    bti_svg_at(out, "y", y);
    bti_svg_at(out, "width", w);
    bti_svg_at(out, "height", h);
}
