/* The check of a call: what it wrote against the oracle's answer, in all layouts and aliases, and
 * with a value that is not finite. */
#include "tests/conform.h"

/* ---- comparing ---------------------------------------------------------------------------------
 */

static double epsilon(bt_dtype t) {
    return t == BT_F64 ? 0x1p-52 : t == BT_F16 ? 0x1p-10 : t == BT_BF16 ? 0x1p-7 : 0x1p-23;
}

/* NaN where the oracle has NaN, equal infinities, else within `tol`. */
static int agrees(double got, double want, double tol) {
    if (isnan(want)) return isnan(got);
    if (isinf(want)) return got == want;
    return fabs(got - want) <= tol;
}

static void compare(const cf_call *c, int i, const double *got, const double *want, bt_dtype type,
                    const char *label) {
    const cf_operand *t = &c->t[i];
    bt_dtype dt = cf_type_of(c, i, type);
    double acc = epsilon(bti_dtype_acc(type)), store = dt == bti_dtype_acc(type) ? 0 : epsilon(dt);
    double bound = t->exact || !bti_dtype_is_float(dt) ? 0 : acc * (8 + t->n) * t->mag, error = 0,
           power = 0;
    for (int64_t k = 0; k < t->srows * t->scols && !t->any; k++) {
        if (!t->written[k]) continue;
        double tol = bound + store * fabs(want[k]) + epsilon(cf_type) * t->mid;
        if (t->exact) tol = fabs(cf_round(c, i, want[k]) - want[k]);
        CF_EXPECT(agrees(got[k], want[k], tol),
                  "%s (%s; %s): %s[%lld][%lld] is %.9g, oracle %.9g, allowed error %.3g",
                  bti_op_info(c->op)->name, c->what, label, bti_op_info(c->op)->operand[i].name,
                  (long long)(k / t->scols), (long long)(k % t->scols), got[k], want[k], tol);
        if (t->exact_zero)
            CF_EXPECT((got[k] == 0) == (want[k] == 0),
                      "%s (%s; %s): %s[%lld][%lld] is %.9g, oracle %.9g: another mask",
                      bti_op_info(c->op)->name, c->what, label, bti_op_info(c->op)->operand[i].name,
                      (long long)(k / t->scols), (long long)(k % t->scols), got[k], want[k]);
        if (!isfinite(want[k])) continue;
        error += (got[k] - want[k]) * (got[k] - want[k]);
        power += want[k] * want[k] + t->mag * t->mag + t->mid * t->mid;
    }
    /* As a whole the error is that of rounding at random: it grows like the square root. */
    double most = acc * (4 + 2 * sqrt(t->n)) + store + (t->mid > 0 ? epsilon(cf_type) : 0);
    CF_EXPECT(error <= most * most * power, "%s (%s; %s): %s: error %.3g of the norm, at most %.3g",
              bti_op_info(c->op)->name, c->what, label, bti_op_info(c->op)->operand[i].name,
              sqrt(error / power), most);
}

static void check_one(const cf_call *c, const cf_result *want, int layout, const int *alias) {
    char label[96];
    snprintf(label, sizeof label, "%s %s, layout %d%s", kit_backend(), bti_dtype_name(cf_type),
             layout, alias ? ", in place" : "");
    cf_result got = cf_run(cf_device(), c, cf_type, layout, alias);
    for (int i = 0; i < bti_op_info(c->op)->operands; i++)
        if (got.y[i] != NULL) compare(c, i, got.y[i], want->y[i], cf_type, label);
}

/* Whether output i may lie where input j is in this call. */
static int may_alias(const cf_call *c, int i, int j) {
    const cf_operand *a = &c->t[i], *b = &c->t[j];
    return a->present && b->present && a->rows == b->rows && a->cols == b->cols &&
           (bti_op_info(c->op)->operand[i].alias >> j & 1);
}

/* All ways in which outputs i and up take over inputs, no input taken twice. */
static void each_alias(const cf_call *c, const cf_result *want, int i, int *alias, int taken) {
    int operands = bti_op_info(c->op)->operands;
    if (i == operands) {
        if (taken) check_one(c, want, 0, alias);
        return;
    }
    alias[i] = -1;
    each_alias(c, want, i + 1, alias, taken);
    for (int j = 0; j < operands; j++) {
        if (taken >> j & 1 || !may_alias(c, i, j)) continue;
        alias[i] = j;
        each_alias(c, want, i + 1, alias, taken | 1 << j);
        alias[i] = -1;
    }
}

/* ---- what is not finite ------------------------------------------------------------------------
 */

enum { SPOILED_AT_MOST = 20000 }; /* elements of a call */

/* A random element of a random floating operand that is read. */
static int pick_spoiled(const cf_call *c, int *operand, int64_t *element) {
    int64_t elements = 0, seen = 0;
    for (int i = 0; i < bti_op_info(c->op)->operands; i++) {
        const cf_operand *t = &c->t[i];
        const int64_t n = t->present ? t->srows * t->scols : 0;
        elements += n;
        if (n == 0 || bti_op_info(c->op)->operand[i].role == BT_ROLE_OUT ||
            !bti_dtype_is_float(cf_type_of(c, i, cf_type)) || cf_below(++seen) != 0)
            continue;
        *operand = i;
        *element = cf_below(n);
    }
    return seen > 0 && elements <= SPOILED_AT_MOST;
}

/* May element k of output o be spoilt by element `at` of input i where the formula does not spoil
 * it? In attention within a sequence, whose masked places are zeros times what stands there; in
 * an update, all of which is lost then. */
static int may_spread(const cf_call *c, int i, int64_t at, int o, int64_t k) {
    switch (bti_op_work(c->op)) {
    case BT_WORK_ATTENTION:
        return attention_meets(c, i, at / c->t[i].scols, o, k / c->t[o].scols);
    case BT_WORK_STATE:
        return 1;
    default:
        return 0;
    }
}

/* NaN or an infinity; -infinity only where the contract knows negative numbers, and not as the
 * log-sum-exp, where it says that a query has no key. */
static double bad_value(const cf_call *c, int i) {
    int64_t k = 0, n = c->t[i].srows * c->t[i].scols;
    while (k < n && !(c->t[i].x[k] < 0)) k++;
    const int negative = k < n && !(c->op == BT_OP_ATTN_BWD && i == BT_ATTN_BWD_LSE);
    return ((const double[]){NAN, INFINITY, -INFINITY})[cf_below(2 + negative)];
}

/* One NaN or infinity among the inputs: where the oracle's result is not finite none is, so that
 * nothing is hidden, and nothing else is spoilt. */
static void check_spoiled(const cf_call *c) {
    int i = 0;
    int64_t at = 0;
    /* Parts and scalars have ranges by contract; what is not finite there has cases of its own. */
    if (c->op == BT_OP_UPDATE_SCALARS || !pick_spoiled(c, &i, &at)) return;
    cf_call spoiled = *c;
    const size_t bytes = (size_t)(c->t[i].srows * c->t[i].scols) * sizeof(double);
    spoiled.t[i].x = cf_take(bytes);
    memcpy(spoiled.t[i].x, c->t[i].x, bytes);
    spoiled.t[i].x[at] = bad_value(c, i);
    const cf_result want = cf_oracle(&spoiled);
    const cf_result got = cf_run(cf_device(), &spoiled, cf_type, 0, NULL);
    for (int o = 0; o < bti_op_info(c->op)->operands; o++)
        for (int64_t k = 0; got.y[o] != NULL && k < c->t[o].srows * c->t[o].scols; k++) {
            const int finite = isfinite(cf_round(c, o, want.y[o][k])) != 0;
            CF_EXPECT(c->t[o].any || finite == (isfinite(got.y[o][k]) != 0) ||
                          (finite && may_spread(c, i, at, o, k)),
                      "%s (%s; %s %s) with %s[%lld] = %g: %s[%lld] is %g, oracle %g",
                      bti_op_info(c->op)->name, c->what, kit_backend(), bti_dtype_name(cf_type),
                      bti_op_info(c->op)->operand[i].name, (long long)at, spoiled.t[i].x[at],
                      bti_op_info(c->op)->operand[o].name, (long long)k, got.y[o][k], want.y[o][k]);
        }
}

void cf_check_once(const cf_call *c) {
    cf_device();
    cf_result want = cf_oracle(c);
    check_one(c, &want, 0, NULL);
}

void cf_check(const cf_call *c) {
    int alias[BT_MAX_OPERANDS];
    cf_device();
    cf_result want = cf_oracle(c);
    for (int layout = cf_is_half(); layout < 2; layout++) check_one(c, &want, layout, NULL);
    each_alias(c, &want, 0, alias, 0);
    check_spoiled(c);
}
