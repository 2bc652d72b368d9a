/* One body for all ops: builds a call from dense host matrices, runs it on a device in a dtype and
 * a layout, and compares what it wrote with the oracle ("ref" in fp64 on the same rounded inputs).
 *
 * Every run puts all operands into one buffer with guard bands between them, fills outputs with
 * NaN, runs twice and wants the same bits, and wants every byte that the contract does not let the
 * op write to be unchanged: inputs, guards, gaps between rows, rows that it must leave alone. */
#ifndef BANTAM_TESTS_CONFORM_H
#define BANTAM_TESTS_CONFORM_H

#include "core/ops/ops.h"
#include "tests/kit.h"

typedef struct cf_operand {
    int present;
    int64_t rows, cols;   /* the view */
    int64_t srows, scols; /* what is stored: the same, or more (batches of gemm, heads) */
    double *x;            /* srows x scols: content before the call, rounded to the type */
    uint8_t *written;     /* srows x scols: may be written (set for outputs; edit where not all) */
    double mag, n;        /* error allowed: eps (8 + n) mag + rounding of the store */
    double mid;           /* size of an intermediate that is stored in the op's type before this */
    int exact;            /* the oracle's value rounded to the type, no error allowed */
    int any;              /* left in any state by contract: not compared */
    int own_type;         /* `type` holds instead of the op's (axpby) */
    bt_dtype type;
    int exact_zero;             /* zero exactly where the oracle is zero: dropout masks */
    int64_t b0r, b0c, b1r, b1c; /* gemm: rows and columns from one matrix of a batch to the next */
} cf_operand;

typedef struct cf_call {
    bt_op op;
    bt_op_params p;
    cf_operand t[BT_MAX_OPERANDS];
    char what[160]; /* the shape and options, for messages */
} cf_call;

/* What a run leaves in the written operands: dense srows x scols as double; NULL elsewhere. */
typedef struct cf_result {
    double *y[BT_MAX_OPERANDS];
} cf_result;

/* ck_assert writes a mark on every pass, which is too slow for one of each element. */
#define CF_EXPECT(cond, ...) \
    do { \
        if (!(cond)) ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* The type of the case being built; values are rounded to it. */
extern bt_dtype cf_type;

/* Starts a call; its memory lives until cf_reset. */
void cf_begin(cf_call *c, bt_op op, const char *fmt, ...) BTI_PRINTF(3, 4);
void cf_reset(void);

/* Adds operand i, rows x cols. Inputs and INOUT get values in [-1, 1), outputs NaN; the array is
 * returned for editing (with cf_round, so that the type holds what is written). */
double *cf_add(cf_call *c, int i, int64_t rows, int64_t cols);
/* The same where storage is larger than the view. */
double *cf_add_stored(cf_call *c, int i, int64_t rows, int64_t cols, int64_t srows, int64_t scols);
/* INOUT content becomes NaN: the op must not read it (beta 0). */
void cf_poison(cf_call *c, int i);
/* The type of operand i where the call's is `type`. */
bt_dtype cf_type_of(const cf_call *c, int i, bt_dtype type);
/* Zeros until cf_reset. */
void *cf_take(size_t bytes);
/* x rounded to the type of operand i. */
double cf_round(const cf_call *c, int i, double x);
void cf_bound(cf_call *c, int i, double n, double mag);

/* rowpos of R rows: sentences of 1 to 9 rows, places from 0. */
void cf_rowpos(cf_call *c, int i, int64_t rows);

/* Runs once on a device; layout 0 is tight, others have ld > cols and odd offsets. alias[i] >= 0:
 * output i takes over the storage of that input. NULL: no aliases. */
cf_result cf_run(bt_dev *dev, const cf_call *c, bt_dtype type, int layout, const int *alias);
/* The oracle's answer. */
cf_result cf_oracle(const cf_call *c);

/* The whole check of a call (conform_check.c): oracle, layouts, all ways to alias that the op list
 * allows, one value that is not finite. */
void cf_check(const cf_call *c);

/* Uniform in [-1, 1) and integers in [0, n), from the suite's own generator. */
double cf_uniform(void);
int64_t cf_below(int64_t n);

/* Half types share the loops of fp32: the largest cases are left out for them. */
int cf_is_half(void);

/* The device under test and whether it computes in a type. */
bt_dev *cf_device(void);
int cf_has_type(bt_dtype t);
/* Do these rows of two operands of attention belong to one sequence (conform_attention.c)? */
int attention_meets(const cf_call *c, int i, int64_t row, int other, int64_t other_row);

/* Opens it anew with so many threads (0: as at first). */
void cf_threads(int threads);

/* Rows x cols pairs that every row-wise op meets. */
typedef struct cf_shape {
    int64_t rows, cols;
} cf_shape;
extern const cf_shape cf_shapes[];
extern const int cf_shape_count;

/* Oracle and tight layout alone, for what is large. */
void cf_check_once(const cf_call *c);

/* Answers known without the oracle, in cf_type (conform_known.c). */
void known_answers(void);

/* So many sequences times heads, and products in a call: more than a grid's second side may have
 * blocks (B10). */
void many_sequences(int count, int heads);
void many_products(int count);
/* The loss over a table of more than 2^31 elements (B10), where there is room for it. */
void large_table(void);

/* One function for each op; an op in the list without one does not link. */
#define BT_OP(name, NAME, slot) void case_##name(void);
#include "core/ops/op_list.inc"

#endif
