/* The pictures of a training log: what a reader of the SVG files would see. */
#include "tests/kit.h"

#include "core/base/files.h"
#include "core/report/chart.h"
#include "core/report/svg.h"
#include "core/train/plot.h"

/* ---- reading an SVG file -----------------------------------------------------------------------
 */

typedef struct point {
    double x, y;
} point;

typedef struct points {
    point at[4096];
    size_t count;
} points;

static char *svg; /* the one looked at */

static void load(const char *folder, const char *name) {
    free(svg);
    size_t bytes;
    svg = kit_read(kit_str("%s/%s", folder, name), &bytes);
    ck_assert_msg(strncmp(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 40) == 0, "%.60s",
                  svg);
    kit_tags(svg);
    static const char *const never[] = {"nan", "inf", "<script", "@import", "href", "url(http"};
    for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
        ck_assert_msg(strstr(svg, never[i]) == NULL, "%s has %s", name, never[i]);
    ck_assert_msg(strstr(strstr(svg, "http") + 4, "http") == NULL, "%s names an address", name);
    ck_assert(strstr(svg, "@media (prefers-color-scheme:dark){") != NULL);
}

#define has(text) \
    ck_assert_msg(strstr(svg, text) != NULL, "no %s in %s", text, strstr(svg, "<title>"))
#define has_not(text) ck_assert_msg(strstr(svg, text) == NULL, "there is %s", text)

/* The points of the curve of a class; none when it is not there. */
static const points *curve(const char *class) {
    static points p;
    p.count = 0;
    const char *s = strstr(svg, kit_str("<path class=\"%s\" clip-path", class));
    if (s == NULL) return &p;
    s = strstr(s, " d=\"M") + 5;
    for (;; s++) {
        ck_assert(p.count < sizeof p.at / sizeof p.at[0]);
        char *end;
        p.at[p.count].x = strtod(s, &end);
        ck_assert(*end == ',');
        p.at[p.count++].y = strtod(end + 1, &end);
        s = end;
        if (*s == '"') return &p;
        ck_assert(*s == ' ');
    }
}

/* The scale of an axis by its first and last tick: value = a + b * place. Every tick between lies
 * on it, and steps are even. */
typedef struct scale {
    double a, b, first, last;
    int ticks;
} scale;

static scale axis(char letter) {
    scale s = {0};
    double place[64], value[64];
    const char *key = letter == 'x' ? " x=\"" : " y=\"";
    const char *class = letter == 'x' ? "class=\"tick-x\"" : "class=\"tick-y\"";
    for (const char *t = strstr(svg, class); t != NULL; t = strstr(t + 1, class)) {
        char plain[64];
        size_t n = 0;
        for (const char *c = strchr(t, '>') + 1; *c != '<' && n < 63; c++)
            if (*c != ',') plain[n++] = *c;
        plain[n] = 0;
        ck_assert(s.ticks < 64);
        place[s.ticks] = strtod(strstr(t, key) + 4, NULL);
        value[s.ticks++] = strtod(plain, NULL);
    }
    ck_assert_msg(s.ticks >= 2 && s.ticks <= 12, "%d ticks", s.ticks);
    s.first = value[0];
    s.last = value[s.ticks - 1];
    s.b = (s.last - s.first) / (place[s.ticks - 1] - place[0]);
    s.a = s.first - s.b * place[0];
    for (int i = 1; i < s.ticks; i++)
        kit_near(value[i], s.a + s.b * place[i], fabs(s.last - s.first) * 1e-3);
    return s;
}

static double value_x(const scale *s, point p) { return s->a + s->b * p.x; }
/* Tick labels stand four units below their line. */
static double value_y(const scale *s, point p) { return s->a + s->b * (p.y + 4); }

/* ---- logs --------------------------------------------------------------------------------------
 */

static FILE *log_file;
static const char *new_log(void) {
    const char *dir = kit_tmpdir();
    log_file = fopen(kit_str("%s/log.jsonl", dir), "w");
    ck_assert_ptr_ne(log_file, NULL);
    return dir;
}

static void update(int u, double loss, double lr, double speed) {
    fprintf(log_file,
            "{\"update\":%d,\"epoch\":1,\"loss\":%.9g,\"grad_norm\":1,\"lr\":%.9g,"
            "\"target_tokens\":2000,\"tokens_per_s\":%.9g,\"skipped\":false}\n",
            u, loss, lr, speed);
}

static const bti_head *decoder(void) {
    return bti_head_of(&(bti_model_config){.head = BTI_HEAD_DECODER});
}

static void draw(const char *dir) {
    fclose(log_file);
    kit_ok(bti_plot_log(kit_str("%s/log.jsonl", dir), decoder(), dir));
}

static double loss_at(int u) { return 2 + 6 * exp(-u / 300.0) + 0.2 * sin(u * 12.9898); }

START_TEST(long_run) {
    enum { UPDATES = 20000, LOWEST = 13003 };
    const char *dir = new_log();
    for (int u = 1; u <= UPDATES; u++) {
        update(u, u == LOWEST ? 1.25 : loss_at(u), 5e-4 * (u < 4000 ? u / 4000.0 : 1),
               4000 + u % 7);
        if (u % 2000 == 0)
            fprintf(log_file, "{\"update\":%d,\"valid_loss\":%.9g,\"valid_bleu\":%.9g}\n", u,
                    2.5 + 1000.0 / u, u == 16000 ? 31.25 : 20 + u / 2000.0);
    }
    draw(dir);

    load(dir, "loss.svg");
    has(">Loss</text>");
    has(">update</text>");
    has(">loss per target token (nats)</text>");
    has(">each update</text>");
    has(">mean of 401 updates</text>");
    has(">validation</text>");
    has(">20,000</text>");
    scale x = axis('x'), y = axis('y');
    ck_assert(x.first == 0 && x.last == UPDATES);
    ck_assert_msg(y.first >= 0 && y.last <= 10, "%g to %g", y.first, y.last);
    const points *raw = curve("raw");
    ck_assert_msg(raw->count > 1000 && raw->count <= BTI_CHART_POINTS, "%zu", raw->count);
    size_t lowest = 0;
    for (size_t i = 1; i < raw->count; i++) {
        ck_assert(raw->at[i].x >= raw->at[i - 1].x);
        if (raw->at[i].y > raw->at[lowest].y) lowest = i;
    }
    kit_near(value_x(&x, raw->at[lowest]), LOWEST, 20);
    kit_near(value_y(&y, raw->at[lowest]), 1.25, 0.01);
    const points *mean = curve("main");
    ck_assert(mean->count <= BTI_CHART_POINTS);
    kit_near(value_x(&x, mean->at[mean->count - 1]), UPDATES, 20);
    kit_near(value_y(&y, mean->at[mean->count - 1]), 2, 0.03);
    for (size_t i = 0; i < mean->count; i++) {
        double u = value_x(&x, mean->at[i]);
        if (u > 1000) kit_near(value_y(&y, mean->at[i]), 2 + 6 * exp(-u / 300), 0.035);
    }
    const points *valid = curve("valid");
    ck_assert_int_eq(valid->count, 10);
    kit_near(value_x(&x, valid->at[1]), 4000, 20);
    kit_near(value_y(&y, valid->at[1]), 2.75, 0.01);
    has("<circle class=\"dot-valid\"");

    load(dir, "lr.svg");
    has(">learning rate, in 10\xe2\x81\xbb\xe2\x81\xb4</text>");
    x = axis('x'), y = axis('y');
    ck_assert(y.first == 0 && y.last == 5);
    const points *lr = curve("main");
    ck_assert(lr->count <= BTI_CHART_POINTS && curve("raw")->count == 0);
    lr = curve("main");
    kit_near(value_y(&y, lr->at[lr->count - 1]), 5, 0.02);
    for (size_t i = 0; i < lr->count; i++)
        kit_near(value_y(&y, lr->at[i]), fmin(5, value_x(&x, lr->at[i]) / 800), 0.03);

    load(dir, "speed.svg");
    has(">target tokens a second</text>");
    has(">last mean 4,003</text>");
    y = axis('y');
    ck_assert(y.first == 0 && y.last >= 4006);

    load(dir, "bleu.svg");
    has(">BLEU (0 to 100)</text>");
    has(">best 31.25 at update 16,000</text>");
    y = axis('y');
    kit_near(value_y(&y, curve("valid")->at[7]), 31.25, 0.1);
}
END_TEST

/* One wild update leaves the others their room, and runs out of the frame. */
START_TEST(spike) {
    const char *dir = new_log();
    for (int u = 1; u <= 2000; u++) update(u, u == 900 ? 1e6 : 3 + 0.1 * (u % 2), 1e-3, 100);
    draw(dir);
    load(dir, "loss.svg");
    scale y = axis('y');
    ck_assert_msg(y.last < 1e5, "%g", y.last);
    has("clip-path=\"url(#frame)\"");
}
END_TEST

START_TEST(noise_of_a_flat_run) {
    const char *dir = new_log();
    for (int u = 1; u <= 2000; u++) update(u, 3 + 0.5 * sin(u * 12.9898), 1e-3, 100 + 9 * sin(u));
    draw(dir);
    load(dir, "loss.svg");
    scale y = axis('y');
    ck_assert(y.first <= 2.5 && y.last >= 3.5);
    load(dir, "speed.svg");
    y = axis('y');
    ck_assert(y.first == 0 && y.last >= 109);
}
END_TEST

START_TEST(short_run) {
    const char *dir = new_log();
    update(1, 9.5, 0, 700);
    draw(dir);
    load(dir, "loss.svg");
    has(">last 9.500</text>");
    has("<circle class=\"dot-main\"");
    has_not("class=\"raw key\"");
    scale x = axis('x'), y = axis('y');
    const points *p = curve("main");
    ck_assert_int_eq(p->count, 1);
    kit_near(value_x(&x, p->at[0]), 1, 0.01);
    kit_near(value_y(&y, p->at[0]), 9.5, 0.05);
    load(dir, "lr.svg"); /* a learning rate of 0 throughout */
    y = axis('y');
    kit_near(value_y(&y, curve("main")->at[0]), 0, 0.01);
    ck_assert(!bti_file_exists(kit_str("%s/bleu.svg", dir)));
}
END_TEST

/* Models without a decoder: their units, and the scores that they have; of an error less is best.
 */
START_TEST(other_heads) {
    static const struct {
        bti_head_kind head;
        const char *fields[2], *loss, *file[2], *note[2], *label[2];
    } of[] = {
        {BTI_HEAD_CLASSIFICATION,
         {"\"valid_accuracy\":0.25,\"valid_f1\":0.75", "\"valid_accuracy\":0.5,\"valid_f1\":0.5"},
         ">loss per example (nats)</text>",
         {"accuracy.svg", "f1.svg"},
         {">best 0.5000 at update 2</text>", ">best 0.7500 at update 1</text>"},
         {">accuracy (0 to 1)</text>", ">F1 (0 to 1)</text>"}},
        {BTI_HEAD_REGRESSION,
         {"\"valid_mse\":2", "\"valid_mse\":3"},
         ">loss per example (square error)</text>",
         {"mse.svg"},
         {">best 2.0000 at update 1</text>"},
         {">mean square error</text>"}}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        const char *dir = new_log();
        for (int u = 1; u <= 2; u++) {
            update(u, 9, 1e-3, 100);
            fprintf(log_file, "{\"update\":%d,\"valid_loss\":7.5,%s}\n", u, of[i].fields[u - 1]);
        }
        fclose(log_file);
        kit_ok(bti_plot_log(kit_str("%s/log.jsonl", dir),
                            bti_head_of(&(bti_model_config){.head = of[i].head}), dir));
        load(dir, "loss.svg");
        has(of[i].loss);
        load(dir, "speed.svg");
        has(">examples a second</text>");
        for (int k = 0; k < 2 && of[i].file[k] != NULL; k++) {
            load(dir, of[i].file[k]);
            has(of[i].note[k]);
            has(of[i].label[k]);
        }
        ck_assert(!bti_file_exists(kit_str("%s/bleu.svg", dir)));
    }
}
END_TEST

/* Null losses, lines cut short, lines of others, updates that come again. */
START_TEST(what_is_no_point) {
    const char *dir = new_log();
    update(1, 9, 1e-3, 100);
    fputs("{\"update\":2,\"loss\":null,\"lr\":0.001,\"tokens_per_s\":100,\"skipped\":true}\n",
          log_file);
    fputs("not json\n\n[1]\n{\"update\":\"3\",\"loss\":4}\n{\"loss\":1}\n", log_file);
    update(2, 50, 1e-3, 100);
    update(1, 70, 1e-3, 100);
    update(4, 8, 1e-3, 100);
    fputs("{\"update\":4,\"valid_loss\":7.5,\"valid_bleu\":null}\n{\"update\":5,\"lo", log_file);
    draw(dir);
    load(dir, "loss.svg");
    scale x = axis('x'), y = axis('y');
    const points *p = curve("main");
    ck_assert_int_eq(p->count, 3);
    kit_near(value_y(&y, p->at[0]), 9, 0.2);
    kit_near(value_y(&y, p->at[1]), 50, 0.2);
    kit_near(value_x(&x, p->at[2]), 4, 0.02);
    kit_near(value_y(&y, p->at[2]), 8, 0.2);
    ck_assert_int_eq(curve("valid")->count, 1);
    load(dir, "lr.svg");
    ck_assert_int_eq(curve("main")->count, 3);
    ck_assert(!bti_file_exists(kit_str("%s/bleu.svg", dir)));
}
END_TEST

START_TEST(nothing_to_draw) {
    const char *dir = new_log();
    draw(dir);
    ck_assert(!bti_file_exists(kit_str("%s/loss.svg", dir)));
    kit_fails(bti_plot_log(kit_str("%s/absent.jsonl", dir), decoder(), dir), BT_EINPUT,
              "absent.jsonl");
    log_file = fopen(kit_str("%s/log.jsonl", dir), "w");
    update(1, 9, 1e-3, 100);
    fclose(log_file);
    ck_assert(bti_plot_log(kit_str("%s/log.jsonl", dir), decoder(), kit_str("%s/absent", dir)) !=
              BT_OK);
    ck_assert(strstr(bt_last_error(), "absent/loss.svg") != NULL);
}
END_TEST

START_TEST(numbers) {
    char t[BTI_NUMBER_BYTES];
    ck_assert_str_eq(bti_svg_number(t, 0, 0), "0");
    ck_assert_str_eq(bti_svg_number(t, 1234567, 0), "1,234,567");
    ck_assert_str_eq(bti_svg_number(t, -1234.5, 2), "-1,234.50");
    ck_assert_str_eq(bti_svg_number(t, 0.0625, 4), "0.0625");
    ck_assert_str_eq(bti_svg_number(t, 0.999, 2), "1.00");
    ck_assert_str_eq(bti_svg_number(t, -0.001, 2), "0.00");
    ck_assert_str_eq(bti_svg_number(t, NAN, 2), "?");
    ck_assert_str_eq(bti_svg_number(t, 1e300, 0), "?");
    ck_assert_str_eq(bti_svg_number(t, 999999, 9), "999,999.000000000");
}
END_TEST

START_TEST(no_memory) {
    const char *dir = new_log();
    for (int u = 1; u <= 300; u++) update(u, loss_at(u), 1e-3, 100);
    fputs("{\"update\":300,\"valid_loss\":7.5,\"valid_bleu\":1}\n", log_file);
    fclose(log_file);
    const char *path = kit_str("%s/log.jsonl", dir);
    kit_walk(bti_plot_log(path, decoder(), dir), 21);
    load(dir, "bleu.svg");
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, long_run);
    tcase_add_test(tc, spike);
    tcase_add_test(tc, noise_of_a_flat_run);
    tcase_add_test(tc, short_run);
    tcase_add_test(tc, other_heads);
    tcase_add_test(tc, what_is_no_point);
    tcase_add_test(tc, nothing_to_draw);
    tcase_add_test(tc, numbers);
    tcase_add_test(tc, no_memory);
}

int main(int argc, char **argv) { return kit_main("plot", add, argc, argv); }
