/* The memory map as files: what a reader of the SVG and the page would see. */
#include "core/report/memory_map.h"
#include "core/report/plan_report.h"
#include "core/report/svg.h"
#include "tests/fit_parts.h"

static char *page; /* the file looked at */

static void load(const char *path) {
    size_t bytes;
    free(page);
    page = kit_read(path, &bytes);
}

#define page_has(text) ck_assert_msg(strstr(page, text) != NULL, "no %s", text)

/* It stands alone: no address but the name of SVG, nothing to load, colours for dark pages. */
static void check_alone(void) {
    static const char *const never[] = {"src=", "href", "@import", "url(", "nan", "inf ", "fetch"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        ck_assert_msg(strstr(page, never[i]) == NULL, "there is %s", never[i]);
    ck_assert_int_eq(toy_count(page, "http"), 1);
    page_has("http://www.w3.org/2000/svg");
    page_has("@media (prefers-color-scheme:dark){");
}

typedef struct rect {
    double x, y, w, h;
} rect;

static double number_of(const char *element, const char *name) {
    const char *at = strstr(element, kit_str(" %s=\"", name));
    ck_assert_ptr_nonnull(at);
    return strtod(at + strlen(name) + 3, NULL);
}

static rect rect_of(const char *element) {
    return (rect){number_of(element, "x"), number_of(element, "y"), number_of(element, "width"),
                  number_of(element, "height")};
}

static void check_inside(rect in, rect out, const char *what) {
    const double slack = 0.02; /* of rounding to hundredths */
    ck_assert_msg(in.x >= out.x - slack && in.x + in.w <= out.x + out.w + slack &&
                      in.y >= out.y - slack && in.y + in.h <= out.y + out.h + slack,
                  "%.60s: %g %g %g %g", what, in.x, in.y, in.w, in.h);
}

/* Every tensor of the plan has its rectangle, inside the panel and at its place; every label that
 * lies on one fits into it. */
static void check_tensors(const bt_plan *plan) {
    const bti_run_plan *p = plan->session->plan;
    rect panel = rect_of(strstr(page, "<rect class=\"panel\""));
    double bytes = (double)p->region[BTI_REGION_DYNAMIC];
    int drawn = 0;
    for (bti_tid i = 1; i <= p->step->tensors; i++) {
        const bti_tensor *t = &p->step->tensor[i];
        const char *mark = strstr(page, kit_str(" data-i=\"%d\">", i));
        ck_assert_int_eq(mark != NULL, bti_map_is_drawn(t));
        if (mark == NULL) continue;
        while (*mark != '<') mark--;
        rect r = rect_of(mark);
        check_inside(r, panel, mark);
        kit_near((r.x - panel.x) / panel.w, (double)t->first / p->step->ops, 1e-4);
        kit_near((panel.y + panel.h - r.y - r.h) / panel.h, (double)t->address / bytes, 1e-4);
        kit_near(r.h / panel.h, (double)t->bytes / bytes, 1e-4);
        check_has(mark, "<title>");
        drawn++;
        const char *label = strstr(mark, "</rect>\n") + 8;
        if (strncmp(label, "<text", 5) != 0) continue;
        double x = number_of(label, "x");
        size_t letters = strcspn(strchr(label, '>') + 1, "<");
        check_inside((rect){x, number_of(label, "y") - 8, 6.5 * (double)letters, 8}, r, label);
    }
    ck_assert_int_gt(drawn, 40);
}

/* The bands of everything stand on each other and sum to the total. */
static void check_bands(const bt_plan *plan) {
    static const char *const class[] = {"bw", "bg", "bm", "bv", "bt", "bd", "br"};
    double at = 0, sum = 0, weights = 0;
    for (int i = 0; i < 7; i++) {
        rect r = rect_of(strstr(page, kit_str("<rect class=\"%s\"", class[i])));
        if (i > 0) kit_near(r.y + r.h, at, 0.02);
        at = r.y;
        sum += r.h;
        if (i == 0) weights = r.h;
    }
    const bti_run_plan *p = plan->session->plan;
    kit_near(sum / weights, (double)p->total / (double)p->region[BTI_REGION_WEIGHTS],
             0.01 * sum / weights);
    /* The budget is a line above them, and below them where the plan does not fit. */
    const char *budget = strstr(page, "<line class=\"budget\"");
    ck_assert_ptr_nonnull(budget);
    ck_assert((number_of(budget, "y1") < at + 0.02) == p->fits);
}

static bt_plan *draw(const fit_ask *ask, bt_run **run, const char *dir) {
    bt_plan *plan = fit_plan(ask, run);
    kit_ok(bt_plan_svg(plan, kit_str("%s/map.svg", dir)));
    kit_ok(bt_plan_html(plan, kit_str("%s/map.html", dir)));
    return plan;
}

START_TEST(map) {
    static const char *const memory[] = {"1GiB", "270MiB", "262MiB"};
    const char *dir = kit_tmpdir();
    for (int i = 0; i < 3; i++) {
        bt_run *run;
        bt_plan *plan =
            draw(&(fit_ask){fit_no_text(), "k80", memory[i], 50, 40, {NULL}}, &run, dir);
        load(kit_str("%s/map.svg", dir));
        ck_assert(strncmp(page, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0);
        kit_tags(page);
        check_alone();
        check_tensors(plan);
        if (i > 0) check_bands(plan);
        page_has("2 + 2 layers, d 64, ff 256, 4 heads, vocabulary 5,000 (3 embedding tables)");
        page_has(" on Tesla K80, not here: planned from a table");
        page_has("layer inputs");
        page_has("logits of one chunk");
        ck_assert_int_eq(strstr(page, "DOES NOT FIT") == NULL, bt_plan_fits(plan));
        fit_discard(plan, run);
    }
}
END_TEST

/* The page has the same picture, and a table that begins with the largest. */
START_TEST(html) {
    const char *dir = kit_tmpdir();
    bt_run *run;
    bt_plan *plan = draw(&(fit_ask){fit_no_text(), "k80", "1GiB", 50, 40, {NULL}}, &run, dir);
    load(kit_str("%s/map.svg", dir));
    char *svg = page;
    page = NULL;
    load(kit_str("%s/map.html", dir));
    kit_tags(page);
    check_alone();
    page_has("<!DOCTYPE html>");
    ck_assert_ptr_nonnull(strstr(page, svg));
    free(svg);
    double before = INFINITY;
    int rows = 0;
    for (const char *r = strstr(page, "<tr data-i"); r; r = strstr(r + 1, "<tr data-i"), rows++) {
        double bytes = strtod(strstr(r, "data-v=\"") + 8, NULL);
        int id = atoi(r + strlen("<tr data-i=\""));
        ck_assert(bytes <= before && bytes > 0);
        before = bytes;
        if (id > 0) ck_assert_ptr_nonnull(strstr(page, kit_str(" data-i=\"%d\"><title>", id)));
    }
    ck_assert_int_ge(rows, 60);
    page_has("aria-sort=\"descending\">bytes");
    page_has("src_embed.weight");
    fit_discard(plan, run);
}
END_TEST

/* Names that mean something to SVG are told as they are. */
START_TEST(escaped) {
    bti_text t = {0};
    char *text;
    bti_svg_escape(&t, "a <b> & \"c\"");
    kit_ok(bti_text_take(&t, &text));
    ck_assert_str_eq(text, "a &lt;b&gt; &amp; &quot;c&quot;");
    bt_free(text);
}
END_TEST

/* The curve of a sweep, and files that cannot be written. */
START_TEST(curve) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/curve.svg", dir);
    bt_run *run;
    bt_plan *plan = fit_plan(&(fit_ask){fit_no_text(), "k80", "262MiB", 50, 40, {NULL}}, &run);
    char *text;
    kit_ok(bt_plan_sweep_text(plan, path, &text));
    bt_free(text);
    load(path);
    kit_tags(page);
    page_has("Seconds an update on Tesla K80");
    page_has(">budget (GiB)<");
    page_has(">seconds an update");
    page_has("least: ");
    fit_discard(plan, run);
    plan = fit_plan(&(fit_ask){fit_no_text(), "k80", NULL, 9, 9, {NULL}}, &run);
    kit_fails(bt_plan_svg(plan, "/nonexistent/map.svg"), BT_EIO, "/nonexistent");
    kit_fails(bt_plan_html(plan, "/nonexistent/map.html"), BT_EIO, "/nonexistent");
    fit_discard(plan, run);
    free(page);
    page = NULL;
}
END_TEST

void add_fit_map(TCase *tc) {
    tcase_add_test(tc, map);
    tcase_add_test(tc, html);
    tcase_add_test(tc, escaped);
    tcase_add_test(tc, curve);
}
