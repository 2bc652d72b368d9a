/* Cases of gemm: whole numbers with exact answers, batches as attention and slices use them, and
 * real numbers with long sums. */
#include "tests/conform.h"

static const int64_t sizes[] = {1, 3, 7, 8, 63, 64, 65};
#define SIZES ((int64_t)(sizeof sizes / sizeof sizes[0]))

static void fill_whole(cf_call *c, int i) {
    cf_operand *t = &c->t[i];
    for (int64_t k = 0; k < t->srows * t->scols; k++) t->x[k] = (double)(cf_below(9) - 4);
}

static void fill_nan(cf_call *c, int i) {
    cf_operand *t = &c->t[i];
    for (int64_t k = 0; k < t->srows * t->scols; k++) t->x[k] = NAN;
}

/* In half types the operands come in every mix of half and wide: bits of `wide`. */
static void set_types(cf_call *c, int64_t wide) {
    if (!cf_is_half()) return;
    c->p.gemm.round = cf_type;
    for (int i = BT_GEMM_A; i <= BT_GEMM_C; i++) {
        c->t[i].own_type = (int)(wide >> i & 1);
        c->t[i].type = BT_F32;
    }
}

/* One product of m x k and k x n; `how` picks transpositions (2 bits), alpha and beta. */
static void begin(cf_call *c, int64_t m, int64_t n, int64_t k, int64_t how, int whole) {
    int ta = how & 1, tb = how >> 1 & 1;
    double alpha = (double)(how / 4 % 3), beta = (double)(how / 12 % 3);
    cf_begin(c, BT_OP_GEMM, "%lld x %lld x %lld, trans %d %d, alpha %g, beta %g", (long long)m,
             (long long)n, (long long)k, ta, tb, alpha, beta);
    c->p.gemm = (bt_gemm_params){
        .trans_a = (uint8_t)ta, .trans_b = (uint8_t)tb, .alpha = alpha, .beta = beta};
    set_types(c, how + m + n + k);
    cf_add(c, BT_GEMM_A, ta ? k : m, ta ? m : k);
    cf_add(c, BT_GEMM_B, tb ? n : k, tb ? k : n);
    cf_add(c, BT_GEMM_C, m, n);
    for (int i = 0; i < 3 && whole; i++) fill_whole(c, i);
    c->t[BT_GEMM_C].exact = whole;
    if (alpha == 0) fill_nan(c, BT_GEMM_A);
    if (alpha == 0) fill_nan(c, BT_GEMM_B);
    if (beta == 0) cf_poison(c, BT_GEMM_C);
    cf_bound(c, BT_GEMM_C, (double)k, 2);
}

static void whole_numbers(void) {
    static const int64_t large[][3] = {
        {500, 65, 64}, {64, 500, 65}, {65, 64, 500}, {500, 500, 500}};
    cf_call c;
    int64_t how = 0;
    for (int64_t i = 0; i < SIZES * SIZES * SIZES; i += cf_is_half() ? 5 : 1, how += 7) {
        begin(&c, sizes[i % SIZES], sizes[i / SIZES % SIZES], sizes[i / SIZES / SIZES], how % 36,
              1);
        cf_check(&c);
        if (i % 16 == 0) cf_reset();
    }
    for (int h = 0; h < 36; h++) { /* every combination at one awkward shape */
        begin(&c, 7, 65, 63, h, 1);
        cf_check(&c);
    }
    for (int i = 0; i < 4; i++) {
        begin(&c, large[i][0], large[i][1], large[i][2], 4 + i + 12 * (i % 3), 1);
        cf_check(&c);
        cf_reset();
    }
}

static void empty_sides(void) {
    cf_call c;
    for (int64_t how = 0; how < 36; how++) {
        begin(&c, 5, 3, 0, how, 1); /* C = beta C */
        cf_check(&c);
        begin(&c, 0, 3, 5, how, 1);
        cf_check(&c);
        begin(&c, 5, 0, 3, how, 1);
        cf_check(&c);
    }
}

static void long_sums(void) {
    static const int64_t shape[][3] = {
        {3, 65, 1003}, {127, 2, 1003}, {1003, 3, 127}, {63, 127, 65}};
    cf_call c;
    for (int i = 0; i < 4; i++)
        for (int trans = 0; trans < 4; trans++) {
            begin(&c, shape[i][0], shape[i][1], shape[i][2], trans + 4 + 12 * (trans % 3), 0);
            cf_check(&c);
            cf_reset();
        }
}

/* Batches: `batch0` sequences of m rows, each with `batch1` heads of some columns. */
static void batches(void) {
    enum { SEQS = 2, HEADS = 3, M = 5, K = 7, N = 4 };
    cf_call c;
    for (int trans = 0; trans < 4; trans++)
        for (int shared = 0; shared < 2; shared++) {
            int ta = trans & 1, tb = trans >> 1;
            int64_t ar = ta ? K : M, ac = ta ? M : K, br = tb ? N : K, bc = tb ? K : N;
            cf_begin(&c, BT_OP_GEMM, "batch %d x %d, trans %d %d, shared %d", SEQS, HEADS, ta, tb,
                     shared);
            c.p.gemm = (bt_gemm_params){.trans_a = (uint8_t)ta,
                                        .trans_b = (uint8_t)tb,
                                        .alpha = 1,
                                        .beta = shared,
                                        .batch0 = SEQS,
                                        .batch1 = HEADS};
            set_types(&c, 2 * trans + shared);
            cf_add_stored(&c, BT_GEMM_A, ar, ac, SEQS * ar, HEADS * ac);
            if (shared)
                cf_add(&c, BT_GEMM_B, br, bc);
            else
                cf_add_stored(&c, BT_GEMM_B, br, bc, SEQS * br, HEADS * bc);
            cf_add_stored(&c, BT_GEMM_C, M, N, SEQS * M, HEADS * N);
            for (int i = 0; i < 3; i++) fill_whole(&c, i);
            if (!shared) cf_poison(&c, BT_GEMM_C);
            c.t[BT_GEMM_A].b0r = ar;
            c.t[BT_GEMM_A].b1c = ac;
            c.t[BT_GEMM_B].b0r = shared ? 0 : br;
            c.t[BT_GEMM_B].b1c = shared ? 0 : bc;
            c.t[BT_GEMM_C].b0r = M;
            c.t[BT_GEMM_C].b1c = N;
            c.t[BT_GEMM_C].exact = 1;
            cf_check(&c);
        }
}

/* In one level of a batch or the other. */
void many_products(int count) {
    for (int level = 0; level < 2; level++) {
        cf_call c;
        cf_begin(&c, BT_OP_GEMM, "%d products, level %d", count, level);
        c.p.gemm =
            (bt_gemm_params){.alpha = 1, .batch0 = level ? 1 : count, .batch1 = level ? count : 1};
        for (int i = BT_GEMM_A; i <= BT_GEMM_C; i++) {
            cf_add_stored(&c, i, 2, 2, 2 * (int64_t)count, 2);
            fill_whole(&c, i);
            c.t[i].b0r = level ? 0 : 2;
            c.t[i].b1r = level ? 2 : 0;
        }
        cf_poison(&c, BT_GEMM_C);
        c.t[BT_GEMM_C].exact = 1;
        cf_check_once(&c);
        cf_reset();
    }
}

/* ---- stable rows -------------------------------------------------------------------------------
 */

/* Rows that a call may have on this device, at most `most`. */
static int64_t stable_count(int64_t most) {
    int64_t tile = cf_device()->info.row_tile;
    return tile > 0 ? tile : most;
}

static void begin_stable(cf_call *c, int64_t m, int64_t n, int64_t k, double alpha, double beta) {
    cf_begin(c, BT_OP_GEMM, "stable rows, %lld x %lld x %lld, alpha %g, beta %g", (long long)m,
             (long long)n, (long long)k, alpha, beta);
    c->p.gemm = (bt_gemm_params){.trans_b = 1, .stable_rows = 1, .alpha = alpha, .beta = beta};
    set_types(c, n + k);
    cf_add(c, BT_GEMM_A, m, k);
    cf_add(c, BT_GEMM_B, n, k);
    cf_add(c, BT_GEMM_C, m, n);
    if (beta == 0) cf_poison(c, BT_GEMM_C);
    cf_bound(c, BT_GEMM_C, (double)k, 2);
}

/* The right values, at every height of a tile and every way a width may end. */
static void stable_values(void) {
    static const int64_t k[] = {1, 15, 16, 17, 64, 511, 512, 513, 1030};
    cf_call c;
    for (int64_t i = 0; i < 36; i++) {
        begin_stable(&c, stable_count(1 + i % 13), 1 + i % 10, k[i % 9], (double)(i % 3),
                     (double)(i / 3 % 3));
        if (i % 2) fill_whole(&c, BT_GEMM_A), fill_whole(&c, BT_GEMM_B);
        cf_check(&c);
    }
    begin_stable(&c, stable_count(70), 131, 96, 1, 0);
    cf_check(&c);
    begin_stable(&c, stable_count(3), 5, 0, 1, 2); /* C = 2 C */
    cf_check(&c);
    if (cf_device()->info.row_tile == 0) {
        begin_stable(&c, 0, 5, 7, 1, 0);
        cf_check(&c);
    }
    cf_reset();
}

/* `rows` of the rows of A (picked by number) times B. */
static const double *stable_run(const cf_call *all, const int64_t *row, int64_t rows, int layout) {
    int64_t n = all->t[BT_GEMM_C].cols, k = all->t[BT_GEMM_A].cols;
    cf_call c;
    begin_stable(&c, rows, n, k, 1, 0);
    for (int64_t i = 0; i < rows; i++)
        memcpy(c.t[BT_GEMM_A].x + i * k, all->t[BT_GEMM_A].x + row[i] * k,
               (size_t)k * sizeof(double));
    memcpy(c.t[BT_GEMM_B].x, all->t[BT_GEMM_B].x, (size_t)(n * k) * sizeof(double));
    return cf_run(cf_device(), &c, cf_type, layout, NULL).y[BT_GEMM_C];
}

enum { STABLE_ROWS = 96 };

/* All rows of `all`, as few of them in a call as may be. */
static double *each_row(const cf_call *all) {
    int64_t row[STABLE_ROWS], n = all->t[BT_GEMM_C].cols, rows = stable_count(1);
    double *y = malloc((size_t)(STABLE_ROWS * n) * sizeof *y);
    ck_assert(y != NULL && STABLE_ROWS % rows == 0);
    for (int64_t at = 0; at < STABLE_ROWS; at += rows) {
        for (int64_t i = 0; i < rows; i++) row[i] = at + i;
        memcpy(y + at * n, stable_run(all, row, rows, 0), (size_t)(rows * n) * sizeof *y);
    }
    return y;
}

/* Each row has the bits that it has among other numbers of rows, at other places. */
static void check_rows(const cf_call *all, const double *want) {
    static const int64_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 24, 31, 32, 33, 64, 96};
    int64_t row[STABLE_ROWS], n = all->t[BT_GEMM_C].cols;
    for (size_t q = 0; q < sizeof counts / sizeof counts[0]; q++) {
        int64_t rows = stable_count(counts[q]), shift = cf_below(STABLE_ROWS);
        for (int64_t i = 0; i < rows; i++) row[i] = (shift + 5 * i) % STABLE_ROWS;
        const double *got = stable_run(all, row, rows, (int)(q % 2));
        for (int64_t i = 0; i < rows; i++)
            if (memcmp(got + i * n, want + row[i] * n, (size_t)n * sizeof *got) != 0)
                ck_abort_msg("gemm (%s): a row has other bits as row %lld of %lld", all->what,
                             (long long)i, (long long)rows);
    }
}

/* Sums of random numbers, long enough that another order shows, and large enough that threads share
 * the work: one thread gives the bits of all. */
static void stable_bits(void) {
    static const int64_t shape[][2] = {{5, 7}, {33, 100}, {37, 1030}};
    for (int i = 0; i < 3 - cf_is_half(); i++) {
        cf_call all;
        cf_threads(0);
        begin_stable(&all, STABLE_ROWS, shape[i][0], shape[i][1], 1, 0);
        double *want = each_row(&all);
        check_rows(&all, want);
        cf_threads(1);
        check_rows(&all, want);
        free(want);
        cf_reset();
    }
    cf_threads(0);
}

/* ---- half operands ------------------------------------------------------------------------------
 */

/* Sums are kept in fp32: 1003 products of 200 x 200 pass what fp16 can hold. A wide operand is
 * rounded before it is multiplied: 1 + 2^-12 is 1 in both half types, a number halfway goes to the
 * even one. */
static void half_products(void) {
    enum { K = 1003 };
    double even = cf_type == BT_F16 ? 1 + 0x1p-11 : 1 + 0x1p-8;
    const double value[][3] = {{200, 200, K * 40000.0}, {1 + 0x1p-12, 1, K}, {1, even, K}};
    for (int i = 0; i < 3 && cf_is_half(); i++)
        for (int64_t m = 1; m < 66; m += 64) {
            int64_t rows = m, cols = 66 - m;
            cf_call c;
            begin(&c, rows, cols, K, 2 + 4, 0);
            set_types(&c, 7);
            for (int t = BT_GEMM_A; t <= BT_GEMM_C; t++) {
                double *x = cf_add(&c, t, t == BT_GEMM_B ? cols : rows, t == BT_GEMM_C ? cols : K);
                int64_t n = c.t[t].rows * c.t[t].cols;
                for (int64_t k = 0; k < n && t < BT_GEMM_C; k++) x[k] = value[i][t];
            }
            const double *y = cf_run(cf_device(), &c, cf_type, 1, NULL).y[BT_GEMM_C];
            for (int64_t k = 0; k < rows * cols; k++)
                ck_assert_msg(y[k] == value[i][2], "gemm of %.9g and %.9g: %.9g, must be %.9g",
                              value[i][0], value[i][1], y[k], value[i][2]);
            cf_reset();
        }
}

void case_gemm(void) {
    half_products();
    whole_numbers();
    empty_sides();
    long_sums();
    batches();
    stable_values();
    stable_bits();
}
