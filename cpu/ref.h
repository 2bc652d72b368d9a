/* The oracle: every op in plain loops, one thread, all arithmetic in double, elements loaded and
 * stored through their dtype. It checks what the host wrote into integer tables (ids, row plans,
 * sequences) and refuses what points outside, so that it finds the faults of its callers too.
 *
 * One function for each op: btref_<op>. */
#ifndef BANTAM_CPU_REF_H
#define BANTAM_CPU_REF_H

#include "core/base/status.h"
#include "core/ops/op_args.h"

/* A call with its operands as host pointers to their first elements (NULL where absent). */
typedef struct btref_args {
    const bt_call *call;
    char *p[BT_MAX_OPERANDS];
} btref_args;

#define BT_OP(name, NAME, slot) bt_status btref_##name(const btref_args *a);
#include "core/ops/op_list.inc"

/* ---- for the files that implement them (cpu/ref*.c) ---------------------------------------------
 */

/* Columns that are handled at a time: rows of any width pass through the stack in such blocks. */
#define BTREF_BLOCK 256

/* Operand `i` as a matrix. */
typedef struct btref_mat {
    char *p; /* NULL: absent */
    bt_dtype t;
    int64_t rows, cols, ld;
} btref_mat;

btref_mat btref_operand(const btref_args *a, int i);

/* Elements [col, col + n) of a row to and from double. */
void btref_get(double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n);
void btref_put(const double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n);
/* The same with zeros (get) or nothing (put) where the operand is absent. */
void btref_get_or_zero(double *d, const btref_mat *m, int64_t row, int64_t col, int64_t n);

static inline int32_t btref_int(const btref_mat *m, int64_t row, int64_t col) {
    return ((const int32_t *)(const void *)m->p)[row * m->ld + col];
}

/* The factors of dropout for channels [col, col + n): 0 or 1 / (1 - p). */
void btref_drop(double *factor, const bt_drop *drop, uint32_t head, uint32_t place,
                uint32_t position, int64_t col, int64_t n);
/* The same for row `row` of a row-wise op; all 1 with p = 0, rowpos absent or not. */
void btref_drop_row(double *factor, const bt_drop *drop, const btref_mat *rowpos, int64_t row,
                    int64_t col, int64_t n);

/* n columns of a parameter gradient: sum + (beta != 0 ? old : 0). */
void btref_put_grad(const double *sum, double beta, const btref_mat *m, int64_t row, int64_t col,
                    int64_t n);

static inline int64_t btref_min(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
