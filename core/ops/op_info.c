/* What the one list says of each op, and what follows from a call's shapes: extents and cost. */
#include "core/ops/ops.h"

#define BT_BIT(i) (1u << (i))

static const bt_operand_info operand_table[BT_OP_COUNT][BT_MAX_OPERANDS] = {
#define NEED_REQ 0
#define NEED_OPT 1
#define BT_ARG(name, NAME, arg, ARG, role, need, type, alias) \
    [BT_OP_##NAME][BT_##NAME##_##ARG] = {#arg, BT_ROLE_##role, BT_TYPE_##type, NEED_##need, alias},
#include "core/ops/op_list.inc"
};

static const uint8_t work_table[BT_OP_COUNT] = {
#define BT_COST(name, NAME, work) [BT_OP_##NAME] = BT_WORK_##work,
#include "core/ops/op_list.inc"
};

/* Entry 0 stands for a number that is no op; op i is entry i + 1. The count of operands is the sum
 * of one for each BT_ARG line. */
static const bt_op_info info_table[BT_OP_COUNT + 1] = {
#define SLOT_MUST 0
#define SLOT_FUSED 1
// clang-format off
#define BT_OP(op_name, NAME, slot) \
    }, [BT_OP_##NAME + 1] = {.name = #op_name, .fused = SLOT_##slot, \
                             .operand = operand_table[BT_OP_##NAME], .operands = 0
#define BT_ARG(name, NAME, arg, ARG, role, need, type, alias) + 1
    [0] = {.name = "unknown op"
#include "core/ops/op_list.inc"
    }
    // clang-format on
};

const bt_op_info *bti_op_info(bt_op op) {
    return &info_table[(unsigned)op < BT_OP_COUNT ? (unsigned)op + 1 : 0];
}

bt_work bti_op_work(bt_op op) {
    return (bt_work)((unsigned)op < BT_OP_COUNT ? work_table[op] : BT_WORK_ROWS);
}

/* Elements from the first to the last one of `rows` x `cols`, plus those that batches add; -1 when
 * the byte count would pass INT64_MAX. */
static int64_t extent(const bt_view *v, int64_t n0, int64_t s0, int64_t n1, int64_t s1) {
    if (v->rows == 0 || v->cols == 0) return 0;
    int64_t a, b, c, sum, bytes;
    if (__builtin_mul_overflow(v->rows - 1, v->ld, &a) ||
        __builtin_mul_overflow(n0 > 1 ? n0 - 1 : 0, s0, &b) ||
        __builtin_mul_overflow(n1 > 1 ? n1 - 1 : 0, s1, &c) || __builtin_add_overflow(a, b, &sum) ||
        __builtin_add_overflow(sum, c, &sum) || __builtin_add_overflow(sum, v->cols, &sum) ||
        __builtin_mul_overflow(sum, (int64_t)bti_dtype_size(v->dtype), &bytes) ||
        __builtin_add_overflow(bytes, (int64_t)(v->off & INT64_MAX), &bytes))
        return -1;
    return sum;
}

static int64_t operand_extent(const bt_call *call, int i) {
    const bt_view *v = &call->t[i];
    const bt_gemm_params *g = &call->p.gemm;
    if (call->op != BT_OP_GEMM) return extent(v, 1, 0, 1, 0);
    int64_t s0 = i == BT_GEMM_A ? g->a0 : i == BT_GEMM_B ? g->b0 : g->c0;
    int64_t s1 = i == BT_GEMM_A ? g->a1 : i == BT_GEMM_B ? g->b1 : g->c1;
    return extent(v, g->batch0, s0, g->batch1, s1);
}

uint64_t bti_op_extent(const bt_call *call, int operand) {
    const bt_view *v = &call->t[operand];
    int64_t n = bti_view_present(v) ? operand_extent(call, operand) : 0;
    return n < 0 ? UINT64_MAX : (uint64_t)n * bti_dtype_size(v->dtype);
}

static double gemm_batches(const bt_gemm_params *g) {
    return (double)(g->batch0 > 1 ? g->batch0 : 1) * (double)(g->batch1 > 1 ? g->batch1 : 1);
}

/* Query-key pairs of an attention call: as given, else as if all sequences were of equal length and
 * everything were visible. */
static double attn_pairs(const bt_call *call, double pairs, int q, int k, int seq) {
    if (pairs > 0 || call->t[seq].rows == 0) return pairs;
    return (double)call->t[q].rows * (double)call->t[k].rows / (double)call->t[seq].rows;
}

double bti_op_flops(const bt_call *call, double pairs) {
    const bt_view *t = call->t;
    switch (call->op) {
    case BT_OP_GEMM: {
        int64_t k = call->p.gemm.trans_a ? t[BT_GEMM_A].rows : t[BT_GEMM_A].cols;
        return 2 * (double)t[BT_GEMM_C].rows * (double)t[BT_GEMM_C].cols * (double)k *
               gemm_batches(&call->p.gemm);
    }
    case BT_OP_ATTN_FWD: /* q k, P v */
        return 2 * 2 * (double)t[BT_ATTN_FWD_Q].cols *
               attn_pairs(call, pairs, BT_ATTN_FWD_Q, BT_ATTN_FWD_K, BT_ATTN_FWD_SEQ);
    case BT_OP_ATTN_BWD: /* q k, do v, dS k, dS q, P do */
        return 2 * 5 * (double)t[BT_ATTN_BWD_Q].cols *
               attn_pairs(call, pairs, BT_ATTN_BWD_Q, BT_ATTN_BWD_K, BT_ATTN_BWD_SEQ);
    default:
        return 0;
    }
}

/* Rows of an operand that are touched: of a table only those that are looked up; with beta 1 the
 * gradient of one changes where an id occurs. */
static int64_t rows_touched(const bt_call *call, int i) {
    const bt_view *t = call->t;
    if (call->op == BT_OP_EMBED_FWD && (i == BT_EMBED_FWD_TABLE || i == BT_EMBED_FWD_POSTAB))
        return t[BT_EMBED_FWD_Y].rows;
    if (call->op == BT_OP_EMBED_BWD && i == BT_EMBED_BWD_DTABLE && call->p.embed.beta != 0)
        return t[BT_EMBED_BWD_SEGS].rows;
    if (call->op == BT_OP_GATHER && i == BT_GATHER_X) return t[BT_GATHER_Y].rows;
    return t[i].rows;
}

int bti_op_overwrites(bt_op op, const bt_op_params *p, int operand) {
    const bt_role role = bti_op_info(op)->operand[operand].role;
    if (role != BT_ROLE_INOUT) return role == BT_ROLE_OUT;
    switch (op) {
    case BT_OP_GEMM:
        return p->gemm.beta == 0;
    case BT_OP_AXPBY:
        return p->axpby.b == 0;
    case BT_OP_EMBED_BWD:
        return p->embed.beta == 0;
    default:
        return 0;
    }
}

/* An operand that is written after it was read. */
static int read_too(const bt_call *call, int i) {
    return bti_op_info(call->op)->operand[i].role == BT_ROLE_INOUT &&
           !bti_op_overwrites(call->op, &call->p, i);
}

double bti_op_bytes(const bt_call *call) {
    const bt_op_info *op = bti_op_info(call->op);
    double sum = 0;
    for (int i = 0; i < op->operands; i++) {
        const bt_view *v = &call->t[i];
        if (!bti_view_present(v)) continue;
        double bytes = (double)rows_touched(call, i) * (double)v->cols;
        bytes *= (double)bti_dtype_size(v->dtype);
        if (call->op == BT_OP_GEMM) bytes *= gemm_batches(&call->p.gemm);
        sum += read_too(call, i) ? 2 * bytes : bytes;
    }
    return sum;
}

static double elements(const bt_view *v) { return (double)v->rows * (double)v->cols; }

double bti_op_elements(const bt_call *call) {
    const bt_op_params *p = &call->p;
    int gelu = p->bias_act.act == BT_ACT_GELU, drawn = p->bias_act.drop.p > 0;
    switch (call->op) {
    case BT_OP_BIAS_ACT_FWD:
        return elements(&call->t[BT_BIAS_ACT_FWD_Y]) * (gelu + drawn);
    case BT_OP_BIAS_ACT_BWD: /* relu sees in y what was dropped */
        if (p->bias_act.act == BT_ACT_RELU) drawn = 0;
        return elements(&call->t[BT_BIAS_ACT_BWD_DY]) * (gelu + drawn);
    case BT_OP_ADD_NORM_FWD:
        return p->add_norm.drop.p > 0 ? elements(&call->t[BT_ADD_NORM_FWD_X]) : 0;
    case BT_OP_ADD_NORM_BWD:
        return p->add_norm.drop.p > 0 ? elements(&call->t[BT_ADD_NORM_BWD_DY]) : 0;
    case BT_OP_GATE_FWD: /* an exponential each */
    case BT_OP_GATE_BWD:
        return elements(&call->t[0]);
    case BT_OP_EMBED_FWD:
        return p->embed.drop.p > 0 ? elements(&call->t[BT_EMBED_FWD_Y]) : 0;
    case BT_OP_EMBED_BWD:
        return p->embed.drop.p > 0 ? elements(&call->t[BT_EMBED_BWD_DY]) : 0;
    default:
        return 0;
    }
}
