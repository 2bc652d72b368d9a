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

/* One product of m x k and k x n; `how` picks transpositions (2 bits), alpha and beta. */
static void begin(cf_call *c, int64_t m, int64_t n, int64_t k, int64_t how, int whole) {
    int ta = how & 1, tb = how >> 1 & 1;
    double alpha = (double)(how / 4 % 3), beta = (double)(how / 12 % 3);
    cf_begin(c, BT_OP_GEMM, "%lld x %lld x %lld, trans %d %d, alpha %g, beta %g", (long long)m,
             (long long)n, (long long)k, ta, tb, alpha, beta);
    c->p.gemm = (bt_gemm_params){
        .trans_a = (uint8_t)ta, .trans_b = (uint8_t)tb, .alpha = alpha, .beta = beta};
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

void case_gemm(void) {
    whole_numbers();
    empty_sides();
    long_sums();
    batches();
}
