/* Cases of the optimiser: sums of squares, the scalar block, AdamW, flat and over tables, with
 * moments in fp32 and in 8 bits. */
#include "tests/conform.h"

/* ---- sum of squares ----------------------------------------------------------------------------
 */

static int64_t blocks(int64_t n) { return (n + BT_SUMSQ_BLOCK - 1) / BT_SUMSQ_BLOCK; }

static void sumsq_call(cf_call *c, int64_t n, double scale) {
    cf_begin(c, BT_OP_SUMSQ, "%lld values of %g", (long long)n, scale);
    double *x = cf_add(c, BT_SUMSQ_X, 1, n);
    for (int64_t k = 0; k < n; k++) x[k] = cf_round(c, BT_SUMSQ_X, x[k] * scale);
    cf_add(c, BT_SUMSQ_PART, blocks(n), 2);
    c->t[BT_SUMSQ_PART].any = 1; /* how a block splits into s and q is the backend's choice */
    cf_bound(c, BT_SUMSQ_PART, BT_SUMSQ_BLOCK, 1);
}

/* s^2 q of each block, relative to what plain sums in double give. */
static void check_parts(const cf_call *c, const double *part) {
    const cf_operand *t = &c->t[BT_SUMSQ_X];
    double tol = cf_type == BT_F64 ? 1e-12 : 1e-5;
    for (int64_t b = 0; b < blocks(t->cols); b++) {
        double sum = 0, s = part[2 * b], q = part[2 * b + 1];
        for (int64_t k = b * BT_SUMSQ_BLOCK; k < t->cols && k < (b + 1) * BT_SUMSQ_BLOCK; k++)
            sum += t->x[k] * t->x[k];
        if (isfinite(sum))
            ck_assert_msg(s >= 0 && fabs(s * s * q - sum) <= tol * sum,
                          "sumsq (%s): block %lld gives %g^2 * %g, wanted %g", c->what,
                          (long long)b, s, q, sum);
        else
            ck_assert_msg(isnan(q), "sumsq (%s): block %lld is not finite, yet q is %g", c->what,
                          (long long)b, q);
    }
}

void case_sumsq(void) {
    static const int64_t n[] = {0, 1, 2, 3, 63, 1003, 65535, 65536, 65537, 200000};
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    cf_call c;
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        for (int option = 0; option < 3; option++) {
            static const double scale[] = {1, 0, 1e19};
            sumsq_call(&c, n[i], scale[option]);
            cf_check(&c);
            for (int layout = 0; layout < 2; layout++)
                check_parts(&c, cf_run(cf_device(), &c, cf_type, layout, NULL).y[BT_SUMSQ_PART]);
            cf_reset();
        }
    for (int i = 0; i < 3; i++) { /* the last value of the middle block */
        sumsq_call(&c, 3 * BT_SUMSQ_BLOCK, 1);
        c.t[BT_SUMSQ_X].x[2 * BT_SUMSQ_BLOCK - 1] = bad[i];
        check_parts(&c, cf_run(cf_device(), &c, cf_type, 0, NULL).y[BT_SUMSQ_PART]);
        cf_reset();
    }
}

/* ---- scalar block -------------------------------------------------------------------------------
 */

static void scalars_call(cf_call *c, int64_t parts, double clip, double loss_scale,
                         double magnitude) {
    cf_begin(c, BT_OP_UPDATE_SCALARS, "%lld parts of %g, clip %g, loss scale %g", (long long)parts,
             magnitude, clip, loss_scale);
    double *part = cf_add(c, BT_UPDATE_SCALARS_PART, parts, 2);
    for (int64_t r = 0; r < parts; r++) {
        part[2 * r] = cf_round(c, 0, magnitude * fabs(part[2 * r]));
        part[2 * r + 1] = cf_round(c, 0, 100 * fabs(part[2 * r + 1]));
    }
    double *s = cf_add(c, BT_UPDATE_SCALARS_SCALARS, 1, BT_SCALAR_COUNT);
    s[BT_SCALAR_CLIP] = clip;
    s[BT_SCALAR_LOSS_SCALE] = loss_scale;
    s[BT_SCALAR_GOOD] = 3;
    for (int k = 0; k < BT_SCALAR_COUNT; k++)
        c->t[BT_UPDATE_SCALARS_SCALARS].written[k] = k >= BT_SCALAR_HOST_COUNT;
    for (int k = BT_SCALAR_NORM; k < BT_SCALAR_COUNT; k++) s[k] = NAN; /* never read */
}

static const double *scalars_of(const cf_call *c) {
    return cf_run(cf_device(), c, cf_type, 1, NULL).y[BT_UPDATE_SCALARS_SCALARS];
}

/* The scale and the count of good updates after one update: `overflow`, interval, largest scale. */
static void check_scale(int overflow, int32_t interval, double most, double scale, double good,
                        double want_scale, double want_good) {
    cf_call c;
    scalars_call(&c, 3, 1, scale, 1);
    c.p.update_scalars = (bt_update_scalars_params){interval, (float)most};
    c.t[BT_UPDATE_SCALARS_SCALARS].x[BT_SCALAR_GOOD] = good;
    if (overflow) c.t[BT_UPDATE_SCALARS_PART].x[3] = NAN;
    const double *s = scalars_of(&c);
    ck_assert_msg(s[BT_SCALAR_LOSS_SCALE] == want_scale && s[BT_SCALAR_GOOD] == want_good,
                  "overflow %d, every %d, scale %g, good %g: scale %g and good %g, not %g and %g",
                  overflow, interval, scale, good, s[BT_SCALAR_LOSS_SCALE], s[BT_SCALAR_GOOD],
                  want_scale, want_good);
    ck_assert_msg(s[BT_SCALAR_SKIP] == overflow, "skip is %g", s[BT_SCALAR_SKIP]);
    if (!overflow) kit_near(s[BT_SCALAR_FACTOR] * scale * fmax(1, s[BT_SCALAR_NORM]), 1, 1e-5);
    cf_reset();
}

static void loss_scales(void) {
    check_scale(0, 0, 0, 65536, 7, 65536, 7); /* interval 0: nothing moves */
    check_scale(1, 0, 0, 65536, 7, 65536, 7);
    check_scale(1, 2000, 65536, 65536, 1999, 32768, 0);
    check_scale(0, 2000, 65536, 32768, 1998, 32768, 1999);
    check_scale(0, 2000, 65536, 32768, 1999, 65536, 0);
    check_scale(0, 2000, 65536, 65536, 1999, 65536, 0); /* the largest */
    check_scale(0, 1, 1e6, 65536, 0, 131072, 0);
    check_scale(1, 1, 1e6, 1, 0, 0.5, 0);
}

/* 100 gradients of 1e20 with clip 1: the norm is 1e21 and each clipped value 0.1, in fp32. */
static void huge_gradients(void) {
    cf_call sq, sc, ad;
    sumsq_call(&sq, 100, 0);
    for (int k = 0; k < 100; k++) sq.t[BT_SUMSQ_X].x[k] = cf_round(&sq, BT_SUMSQ_X, 1e20);
    const double *part = cf_run(cf_device(), &sq, cf_type, 0, NULL).y[BT_SUMSQ_PART];
    scalars_call(&sc, 1, 1, 1, 0);
    memcpy(sc.t[BT_UPDATE_SCALARS_PART].x, part, 2 * sizeof *part);
    const double *s = scalars_of(&sc);
    kit_near(s[BT_SCALAR_NORM], 1e21, 1e15);
    ck_assert_msg(s[BT_SCALAR_SKIP] == 0, "a finite norm was skipped");
    kit_near(s[BT_SCALAR_FACTOR] * 1e20, 0.1, 1e-6);
    /* One plain step from zero: m = (1 - beta1) g. */
    cf_begin(&ad, BT_OP_ADAMW, "clipped values");
    ad.p.adamw = (bt_adamw_params){.beta1 = 0, .beta2 = 0.5, .eps = 1e-9};
    for (int i = BT_ADAMW_G; i <= BT_ADAMW_V; i++)
        cf_add(&ad, i, 1, i == BT_ADAMW_SCALARS ? BT_SCALAR_COUNT : 100);
    memcpy(ad.t[BT_ADAMW_G].x, sq.t[BT_SUMSQ_X].x, 100 * sizeof(double));
    memcpy(ad.t[BT_ADAMW_SCALARS].x, s, BT_SCALAR_COUNT * sizeof(double));
    const double *m = cf_run(cf_device(), &ad, cf_type, 0, NULL).y[BT_ADAMW_M];
    for (int k = 0; k < 100; k++) kit_near(m[k], 0.1, 1e-6);
}

/* Of the last setting the norm is within fp32, loss scale times the norm is not. */
void case_update_scalars(void) {
    static const double setting[][3] = {
        /* clip, loss scale, magnitude */
        {0, 1, 1}, {1, 1, 1},    {1e6, 1, 1},   {0, 1024, 1},   {1, 1024, 1e3},
        {1, 1, 0}, {1, 1, 1e18}, {0, 1, 1e-20}, {2.5, 8, 1e-3}, {0, 65536, 1e38}};
    static const int64_t parts[] = {0, 1, 2, 65, 1003};
    cf_call c;
    for (size_t i = 0; i < sizeof setting / sizeof setting[0]; i++)
        for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
            const double *p = setting[i];
            scalars_call(&c, parts[j], p[0], p[1], p[2]);
            double norm = cf_oracle(&c).y[BT_UPDATE_SCALARS_SCALARS][BT_SCALAR_NORM];
            cf_bound(&c, BT_UPDATE_SCALARS_SCALARS, 8 + (double)parts[j],
                     norm > 1e-6 ? norm : 1e-6);
            cf_check(&c);
            const double *s = scalars_of(&c);
            double factor = (p[0] > 0 && norm > p[0] ? p[0] / norm : 1) / p[1];
            kit_near(s[BT_SCALAR_FACTOR], factor, 1e-5 * factor);
            kit_near(s[BT_SCALAR_NORM], norm, 1e-5 * norm);
            ck_assert_msg(s[BT_SCALAR_SKIP] == 0, "a finite norm was skipped");
            cf_reset();
        }
    static const double bad[][2] = {{1, NAN}, {INFINITY, 1}, {NAN, NAN}, {0, NAN}};
    for (int i = 0; i < 4; i++) {
        scalars_call(&c, 5, 1, 1, 1);
        memcpy(c.t[BT_UPDATE_SCALARS_PART].x + 4, bad[i], sizeof bad[i]);
        const double *s = scalars_of(&c);
        ck_assert_msg(s[BT_SCALAR_SKIP] == 1 && s[BT_SCALAR_FACTOR] == 0 &&
                          !isfinite(s[BT_SCALAR_NORM]),
                      "a part of (%g, %g) gives norm %g, factor %g, skip %g", bad[i][0], bad[i][1],
                      s[BT_SCALAR_NORM], s[BT_SCALAR_FACTOR], s[BT_SCALAR_SKIP]);
        cf_reset();
    }
    loss_scales();
    huge_gradients();
    cf_reset();
}

/* ---- AdamW --------------------------------------------------------------------------------------
 */

static void step_scalars(cf_call *c, int i, int skip) {
    double *s = cf_add(c, i, 1, BT_SCALAR_COUNT);
    static const double block[BT_SCALAR_COUNT] = {
        [BT_SCALAR_LR] = 0.01,           [BT_SCALAR_CLIP] = 1,
        [BT_SCALAR_CORRECTION1] = 0.271, [BT_SCALAR_CORRECTION2] = 0.0588,
        [BT_SCALAR_LOSS_SCALE] = 2,      [BT_SCALAR_NORM] = 4,
        [BT_SCALAR_FACTOR] = 0.125};
    for (int k = 0; k < BT_SCALAR_COUNT; k++) s[k] = cf_round(c, i, block[k]);
    s[BT_SCALAR_SKIP] = skip;
}

/* Scalars and state (w, then m and v), rows x cols. */
static void adamw_state(cf_call *c, int scalars, int w, int64_t rows, int64_t cols, int skip) {
    step_scalars(c, scalars, skip);
    for (int i = w; i < w + 3; i++) cf_add(c, i, rows, cols);
    double *v = c->t[w + 2].x;
    for (int64_t k = 0; k < rows * cols; k++) v[k] = cf_round(c, w + 2, 0.01 + fabs(v[k]));
    for (int i = w; i < w + 3; i++) {
        cf_bound(c, i, 8, 2);
        if (skip) memset(c->t[i].written, 0, (size_t)(rows * cols));
    }
}

static void adamw_call(cf_call *c, int64_t n, int decoupled, double decay, int skip) {
    cf_begin(c, BT_OP_ADAMW, "%lld values, decoupled %d, decay %g, skip %d", (long long)n,
             decoupled, decay, skip);
    c->p.adamw = (bt_adamw_params){0.9, 0.98, 1e-9, decay, (uint8_t)decoupled, 0};
    cf_add(c, BT_ADAMW_G, 1, n);
    adamw_state(c, BT_ADAMW_SCALARS, BT_ADAMW_W, 1, n, skip);
    if (skip && n > 0) c->t[BT_ADAMW_G].x[0] = NAN;
}

void case_adamw(void) {
    static const int64_t n[] = {0, 1, 2, 3, 63, 64, 65, 127, 1003, 70001};
    cf_call c;
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        for (int option = 0; option < 8; option++) {
            adamw_call(&c, n[i], option & 1, option & 2 ? 0.01 : 0, option >> 2);
            cf_check(&c);
            cf_reset();
        }
}

/* ---- AdamW with a compact gradient --------------------------------------------------------------
 */

/* `touched` rows of a table have a gradient, `padding` more are left of the compact table: never
 * read, so NaN. */
typedef struct rows_shape {
    int64_t rows, cols, touched, padding;
    int64_t first, part; /* the call has so many rows from `first` on; part 0: all */
} rows_shape;

static int64_t part_of(const rows_shape *s) { return s->part ? s->part : s->rows; }

static int in_part(const rows_shape *s, double row) {
    return row >= (double)s->first && row < (double)(s->first + part_of(s));
}

/* A compact gradient and its index. */
static void compact_gradient(cf_call *c, const rows_shape *s, int grad, int at) {
    int64_t kept = s->touched + s->padding;
    double *g = cf_add(c, grad, kept, s->cols);
    for (int64_t k = s->touched * s->cols; k < kept * s->cols; k++) g[k] = NAN;
    double *index = cf_add_stored(c, at, kept, 1, kept + 1, 1);
    for (int64_t row = 0, k = 0; k < s->touched; row++)
        if (s->rows - row == s->touched - k || cf_below(s->rows) < s->touched)
            index[k++] = (double)row;
    /* Padding: the first number that is no row, then the largest. */
    for (int64_t k = s->touched; k < kept; k++)
        index[k] = k == s->touched ? (double)s->rows : (double)INT32_MAX;
    /* Behind the index stands a row without a gradient. */
    index[kept] = s->touched > 0 ? index[s->touched - 1] + 1 : (double)s->first;
    for (int64_t k = 0; k < s->touched * s->cols; k++)
        if (!in_part(s, index[k / s->cols])) g[k] = NAN;
}

/* The same gradient with all rows of the call, into g. */
static void spread(const cf_call *c, const rows_shape *s, int grad, int at, double *g) {
    const double *index = c->t[at].x;
    memset(g, 0, (size_t)(part_of(s) * s->cols) * sizeof *g);
    for (int64_t k = 0; k < s->touched; k++)
        if (in_part(s, index[k]))
            memcpy(g + ((int64_t)index[k] - s->first) * s->cols, c->t[grad].x + k * s->cols,
                   (size_t)s->cols * sizeof *g);
}

static void adamw_rows_call(cf_call *c, const rows_shape *s, int decoupled, double decay,
                            int skip) {
    cf_begin(c, BT_OP_ADAMW_ROWS, "%lld x %lld from row %lld, %lld rows and %lld more%s%s%s",
             (long long)s->rows, (long long)s->cols, (long long)s->first, (long long)s->touched,
             (long long)s->padding, decoupled ? ", decoupled" : "", decay > 0 ? ", decay" : "",
             skip ? ", skip" : "");
    c->p.adamw = (bt_adamw_params){0.9, 0.98, 1e-9, decay, (uint8_t)decoupled, s->first};
    compact_gradient(c, s, BT_ADAMW_ROWS_G, BT_ADAMW_ROWS_INDEX);
    adamw_state(c, BT_ADAMW_ROWS_SCALARS, BT_ADAMW_ROWS_W, part_of(s), s->cols, skip);
}

/* The same bits as adamw over the whole table with zeros in the other rows. */
static void as_dense(const cf_call *c, const rows_shape *s) {
    cf_call dense;
    int64_t n = part_of(s) * s->cols;
    adamw_call(&dense, n, c->p.adamw.decoupled, c->p.adamw.weight_decay, 0);
    spread(c, s, BT_ADAMW_ROWS_G, BT_ADAMW_ROWS_INDEX, dense.t[BT_ADAMW_G].x);
    for (int i = 0; i < 3; i++)
        memcpy(dense.t[BT_ADAMW_W + i].x, c->t[BT_ADAMW_ROWS_W + i].x, (size_t)n * sizeof(double));
    cf_result a = cf_run(cf_device(), c, cf_type, 0, NULL);
    cf_result b = cf_run(cf_device(), &dense, cf_type, 0, NULL);
    for (int i = 0; i < 3; i++)
        ck_assert_msg(
            memcmp(a.y[BT_ADAMW_ROWS_W + i], b.y[BT_ADAMW_W + i], (size_t)n * sizeof(double)) == 0,
            "adamw_rows (%s): %s has other bits than adamw gives", c->what,
            bti_op_info(BT_OP_ADAMW)->operand[BT_ADAMW_W + i].name);
}

static const rows_shape tables[] = {
    {0, 5, 0, 0, 0, 0},         {0, 5, 0, 2, 0, 0},         {1, 1, 0, 0, 0, 0},
    {1, 1, 1, 0, 0, 0},         {1, 1, 1, 3, 0, 0},         {7, 3, 7, 0, 0, 0},
    {7, 3, 0, 7, 0, 0},         {97, 65, 13, 1, 0, 0},      {64, 1003, 3, 2, 0, 0},
    {65, 1024, 64, 0, 0, 0},    {3, 2050, 2, 1, 0, 0},      {4, 256, 2, 0, 0, 0},
    {1003, 63, 100, 900, 0, 0}, {1003, 127, 1002, 1, 0, 0}, {97, 65, 30, 2, 40, 57},
    {97, 65, 30, 2, 13, 50},    {300, 7, 200, 0, 150, 40},  {9, 512, 3, 1, 8, 1}};
enum { TABLES = sizeof tables / sizeof tables[0] };

void case_adamw_rows(void) {
    cf_call c;
    for (int i = 0; i < TABLES; i++)
        for (int option = 0; option < 8; option++) {
            int decoupled = option & 1, skip = option >> 2;
            adamw_rows_call(&c, &tables[i], decoupled, option & 2 ? 0.01 : 0, skip);
            cf_check(&c);
            if (!skip) as_dense(&c, &tables[i]);
            cf_reset();
        }
}

/* ---- AdamW with moments in 8 bits ---------------------------------------------------------------
 */

/* Without `compact` the gradient has every element. Codes of v are not small, so that the weights'
 * error stays that of fp32; every fourth block is at its start: scales 0. */
static void adamw8_call(cf_call *c, const rows_shape *s, int compact, int decoupled, double decay,
                        int skip) {
    int64_t n = part_of(s) * s->cols, count = (n + BT_ADAMW8_BLOCK - 1) / BT_ADAMW8_BLOCK;
    cf_begin(c, BT_OP_ADAMW8, "%lld x %lld from row %lld, %s gradient, %lld rows%s%s%s",
             (long long)s->rows, (long long)s->cols, (long long)s->first,
             compact ? "compact" : "whole", (long long)s->touched, decoupled ? ", decoupled" : "",
             decay > 0 ? ", decay" : "", skip ? ", skip" : "");
    c->p.adamw = (bt_adamw_params){0.9, 0.98, 1e-9, decay, (uint8_t)decoupled, s->first};
    if (compact)
        compact_gradient(c, s, BT_ADAMW8_G, BT_ADAMW8_INDEX);
    else
        cf_add(c, BT_ADAMW8_G, 1, n);
    step_scalars(c, BT_ADAMW8_SCALARS, skip);
    for (int i = BT_ADAMW8_W; i <= BT_ADAMW8_VS; i++) {
        int scales = i == BT_ADAMW8_MS || i == BT_ADAMW8_VS;
        double *x = cf_add(c, i, 1, scales ? count : n);
        cf_bound(c, i, 8, 2);
        for (int64_t k = 0; k < c->t[i].cols; k++) {
            if (scales) x[k] = k % 4 == 3 ? 0 : cf_round(c, i, 0.01 + fabs(x[k]));
            if (i == BT_ADAMW8_M && x[k] == 128) x[k] = 0;
            if (i == BT_ADAMW8_V) x[k] = (double)(64 + cf_below(192));
        }
        if (skip) memset(c->t[i].written, 0, (size_t)c->t[i].cols);
    }
    c->t[BT_ADAMW8_M].any = c->t[BT_ADAMW8_V].any = 1; /* check_codes */
}

static cf_call whole_of(const cf_call *c, const rows_shape *s) {
    cf_call whole;
    adamw8_call(&whole, s, 0, c->p.adamw.decoupled, c->p.adamw.weight_decay, 0);
    spread(c, s, BT_ADAMW8_G, BT_ADAMW8_INDEX, whole.t[BT_ADAMW8_G].x);
    for (int i = BT_ADAMW8_W; i <= BT_ADAMW8_VS; i++)
        memcpy(whole.t[i].x, c->t[i].x, (size_t)c->t[i].cols * sizeof(double));
    return whole;
}

/* The moments' arithmetic is the backend's, so that a value between two codes may go to the other:
 * one in 500 at most. */
static void check_codes(const cf_call *c) {
    cf_result want = cf_oracle(c);
    for (int layout = 0; layout < 2; layout++) {
        cf_result got = cf_run(cf_device(), c, cf_type, layout, NULL);
        for (int i = BT_ADAMW8_M; i <= BT_ADAMW8_V; i += BT_ADAMW8_V - BT_ADAMW8_M) {
            int64_t other = 0, n = c->t[i].cols;
            for (int64_t k = 0; k < n; k++) {
                int a = (int)got.y[i][k], b = (int)want.y[i][k];
                if (i == BT_ADAMW8_M) { /* signed */
                    a -= a > INT8_MAX ? 256 : 0;
                    b -= b > INT8_MAX ? 256 : 0;
                }
                if (abs(a - b) > 1)
                    ck_abort_msg("adamw8 (%s): code %lld of %s is %d, oracle %d", c->what,
                                 (long long)k, i == BT_ADAMW8_M ? "m" : "v", a, b);
                other += a != b;
            }
            ck_assert_msg(other <= 1 + n / 500, "adamw8 (%s): %lld of %lld codes of %s differ",
                          c->what, (long long)other, (long long)n, i == BT_ADAMW8_M ? "m" : "v");
        }
    }
}

static void same_bits(const cf_call *c, const cf_call *other) {
    cf_result a = cf_run(cf_device(), c, cf_type, 0, NULL);
    cf_result b = cf_run(cf_device(), other, cf_type, 0, NULL);
    for (int i = BT_ADAMW8_W; i <= BT_ADAMW8_VS; i++)
        ck_assert_msg(memcmp(a.y[i], b.y[i], (size_t)c->t[i].cols * sizeof(double)) == 0,
                      "adamw8 (%s): %s has other bits than with the whole gradient", c->what,
                      bti_op_info(BT_OP_ADAMW8)->operand[i].name);
}

void case_adamw8(void) {
    static const int64_t n[] = {0, 1, 2, 3, 255, 256, 257, 262, 1003, 70001};
    cf_call c, whole;
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++)
        for (int option = 0; option < 8; option++) {
            adamw8_call(&c, &(rows_shape){.rows = 1, .cols = n[i]}, 0, option & 1,
                        option & 2 ? 0.01 : 0, option >> 2);
            cf_check(&c);
            if (option < 4) check_codes(&c);
            cf_reset();
        }
    for (int i = 0; i < TABLES; i++)
        for (int option = 0; option < 8; option++) {
            adamw8_call(&c, &tables[i], 1, option & 1, option & 2 ? 0.01 : 0, option >> 2);
            cf_check(&c);
            if (option < 4) {
                check_codes(&c);
                whole = whole_of(&c, &tables[i]);
                same_bits(&c, &whole);
            }
            cf_reset();
        }
}
