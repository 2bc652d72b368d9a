/* What a program costs: its work in a few kinds, and a device's seconds for each.
 *
 * The time of an op is taken as the sum over kinds of amount x rate, the amounts being what bounds
 * its kernels: multiply-adds and operands read of products, bytes moved by row-wise ops, random
 * numbers drawn. Sums, not the larger of two: kernels overlap arithmetic and memory only in part,
 * and a sum never falls as a shape grows. */
#ifndef BANTAM_PLAN_COST_H
#define BANTAM_PLAN_COST_H

#include "core/plan/program.h"

typedef enum bti_cost_kind {
    BTI_COST_CALL,         /* calls of ops */
    BTI_COST_PRODUCT_FLOP, /* products: multiply-adds x 2 */
    BTI_COST_PRODUCT_BYTE, /* their operands: packing, and weights that are in no cache */
    BTI_COST_ROW_BYTE,     /* row-wise ops and look-ups: bytes read and written */
    BTI_COST_ELEMENT,      /* dropout and gelu: elements */
    BTI_COST_ATTN_FLOP,
    BTI_COST_ATTN_BYTE, /* operands of attention: what does not go with its flops */
    BTI_COST_LOSS_BYTE, /* logits: one exponential each */
    BTI_COST_STATE_BYTE,
    BTI_COST_HOST_BYTE, /* copies between host and device; no op makes any */
    BTI_COST_KINDS
} bti_cost_kind;
extern const char *const bti_cost_name[BTI_COST_KINDS];

/* Seconds for one of each kind. */
typedef struct bti_rates {
    double seconds[BTI_COST_KINDS];
} bti_rates;

/* Estimates from the two rates that every device states (or none: those of a small machine). */
void bti_rates_default(const bt_dev_info *info, bti_rates *out);

/* Amounts of each kind of a whole program. */
typedef struct bti_cost {
    double amount[BTI_COST_KINDS];
} bti_cost;
void bti_program_cost(const bti_program *p, bti_cost *out);
double bti_cost_seconds(const bti_cost *c, const bti_rates *r);
/* Predicted seconds of op k alone. */
double bti_op_seconds(const bti_program *p, int32_t k, const bti_rates *r);
/* Both in one: predicted seconds of a program. */
double bti_program_seconds(const bti_program *p, const bti_rates *r);

#endif
