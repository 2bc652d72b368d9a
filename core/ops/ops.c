#include "core/ops/ops.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "core/base/status.h"

#define BT_BIT(i) (1u << (i))

/* ---- checks -----------------------------------------------------------------------------------
 */

/* A complaint about operand `i` of the call, or about its parameters (i < 0). */
static bt_status bad(const bt_call *call, int i, const char *fmt, ...) BTI_PRINTF(3, 4);
static bt_status bad(const bt_call *call, int i, const char *fmt, ...) {
    const bt_op_info *op = bti_op_info(call->op);
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (i < 0) return bti_fail(BT_EINTERNAL, "op %s: %s", op->name, text);
    const bt_view *v = &call->t[i];
    const char *type =
        (unsigned)v->dtype < BT_DTYPE_COUNT ? bti_dtype_name(v->dtype) : "unknown type";
    return bti_fail(BT_EINTERNAL, "op %s, operand %s (%lld x %lld, ld %lld, %s): %s", op->name,
                    op->operand[i].name, (long long)v->rows, (long long)v->cols, (long long)v->ld,
                    type, text);
}

/* The floating type of a call: of its first DATA operand, or of its first ANY or ACC one where
 * there is no DATA operand. */
static bt_dtype call_dtype(const bt_call *call, const bt_op_info *op) {
    for (int pass = BT_TYPE_DATA; pass <= BT_TYPE_ACC; pass++)
        for (int i = 0; i < op->operands; i++)
            if ((int)op->operand[i].type == pass && bti_view_present(&call->t[i]))
                return call->t[i].dtype;
    return BT_F32;
}

static bt_status check_type(const bt_call *call, int i, bt_operand_type type, bt_dtype data) {
    bt_dtype got = call->t[i].dtype;
    bt_dtype want = type == BT_TYPE_INT    ? BT_I32
                    : type == BT_TYPE_CODE ? BT_U8
                    : type == BT_TYPE_ACC  ? bti_dtype_acc(data)
                                           : data;
    if (type == BT_TYPE_ANY) {
        if ((unsigned)got < BT_DTYPE_COUNT && bti_dtype_is_float(got)) return BT_OK;
        return bad(call, i, "type must be a floating one");
    }
    if (got != want) return bad(call, i, "type must be %s", bti_dtype_name(want));
    return BT_OK;
}

static bt_status check_operands(const bt_call *call, const bt_op_info *op) {
    bt_dtype data = call_dtype(call, op);
    if ((unsigned)data >= BT_DTYPE_COUNT || !bti_dtype_is_float(data))
        return bad(call, -1, "the type of its data is no floating type");
    for (int i = 0; i < op->operands; i++) {
        const bt_view *v = &call->t[i];
        if (v->ld == 0) {
            if (!op->operand[i].optional) return bad(call, i, "is required");
            if (v->rows != 0 || v->cols != 0) return bad(call, i, "is absent (ld 0), yet has size");
            continue;
        }
        if (v->rows < 0 || v->cols < 0) return bad(call, i, "negative size");
        if (v->ld < 1 || v->ld < v->cols) return bad(call, i, "ld is less than cols");
        BT_TRY(check_type(call, i, op->operand[i].type, data));
        if (v->off > INT64_MAX || bti_op_extent(call, i) == UINT64_MAX)
            return bad(call, i, "does not fit in 63 bits of bytes");
    }
    return BT_OK;
}

/* Operand `i`, when present, has this shape. */
static bt_status shape(const bt_call *call, int i, int64_t rows, int64_t cols) {
    const bt_view *v = &call->t[i];
    if (!bti_view_present(v) || (v->rows == rows && v->cols == cols)) return BT_OK;
    return bad(call, i, "must be %lld x %lld", (long long)rows, (long long)cols);
}

static bt_status needed(const bt_call *call, int i, const char *when) {
    if (bti_view_present(&call->t[i])) return BT_OK;
    return bad(call, i, "is required %s", when);
}

static bt_status check_beta(const bt_call *call, double beta) {
    if (beta == 0 || beta == 1) return BT_OK;
    return bad(call, -1, "beta of gradients must be 0 or 1, is %g", beta);
}

static bt_status check_drop(const bt_call *call, const bt_drop *drop) {
    if (!(drop->p >= 0 && drop->p < 1))
        return bad(call, -1, "dropout %g is not in [0, 1)", (double)drop->p);
    if (drop->p > 0 && drop->site > BT_PHILOX_MAX_SITE)
        return bad(call, -1, "dropout site %u is beyond %d", drop->site, BT_PHILOX_MAX_SITE);
    return BT_OK;
}

/* Dropout by rows: rowpos is there when p > 0 and every channel has a counter. */
static bt_status check_row_drop(const bt_call *call, const bt_drop *drop, int rowpos, int reads,
                                int64_t rows, int64_t cols) {
    BT_TRY(check_drop(call, drop));
    BT_TRY(shape(call, rowpos, rows, 2));
    if (!(drop->p > 0) || !reads) return BT_OK;
    if (cols > BT_PHILOX_MAX_CHANNEL + 1)
        return bad(call, -1, "dropout over %lld channels, at most %d have random numbers",
                   (long long)cols, BT_PHILOX_MAX_CHANNEL + 1);
    return needed(call, rowpos, "with dropout");
}

static int is_half(bt_dtype t) { return t == BT_F16 || t == BT_BF16; }

/* Which types a product takes: all alike and wide, or each half or wide. */
static bt_status check_gemm_types(const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    bt_dtype wide = BT_F32;
    if (g->round != BT_F32 && !is_half(g->round))
        return bad(call, -1, "operands are rounded to fp16 or bf16, not to type %d", (int)g->round);
    for (int i = BT_GEMM_A; i <= BT_GEMM_C; i++)
        if (call->t[i].dtype == BT_F64) wide = BT_F64;
    for (int i = BT_GEMM_A; i <= BT_GEMM_C; i++) {
        bt_dtype t = call->t[i].dtype;
        if (t == wide || (is_half(t) && t == g->round)) continue;
        return bad(call, i, "type must be %s%s%s", bti_dtype_name(wide),
                   is_half(g->round) ? " or " : "",
                   is_half(g->round) ? bti_dtype_name(g->round) : "");
    }
    if (g->tf32 && (wide != BT_F32 || is_half(g->round)))
        return bad(call, -1, "tf32 is for products of fp32");
    return BT_OK;
}

static bt_status check_gemm(const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    int64_t k = g->trans_a ? a->rows : a->cols;
    BT_TRY(shape(call, BT_GEMM_A, g->trans_a ? k : c->rows, g->trans_a ? c->rows : k));
    BT_TRY(shape(call, BT_GEMM_B, g->trans_b ? c->cols : k, g->trans_b ? k : c->cols));
    BT_TRY(check_gemm_types(call));
    if (g->batch0 < 0 || g->batch1 < 0) return bad(call, -1, "negative batch count");
    if (g->a0 < 0 || g->a1 < 0 || g->b0 < 0 || g->b1 < 0 || g->c0 < 0 || g->c1 < 0)
        return bad(call, -1, "negative batch offset");
    if ((g->batch0 > 1 && g->c0 == 0) || (g->batch1 > 1 && g->c1 == 0))
        return bad(call, BT_GEMM_C, "the matrices of a batch overlap");
    if (g->stable_rows && (g->trans_a || !g->trans_b || g->batch0 > 1 || g->batch1 > 1))
        return bad(call, -1, "stable rows want op(A) = A, op(B) = B^T and no batch");
    return BT_OK;
}

static bt_status check_bias_act_fwd(const bt_call *call) {
    const bt_bias_act_params *p = &call->p.bias_act;
    int64_t r = call->t[BT_BIAS_ACT_FWD_X].rows, c = call->t[BT_BIAS_ACT_FWD_X].cols;
    if ((unsigned)p->act > BT_ACT_GELU) return bad(call, -1, "unknown activation %d", p->act);
    BT_TRY(shape(call, BT_BIAS_ACT_FWD_BIAS, 1, c));
    BT_TRY(shape(call, BT_BIAS_ACT_FWD_Y, r, c));
    return check_row_drop(call, &p->drop, BT_BIAS_ACT_FWD_ROWPOS, 1, r, c);
}

static bt_status check_bias_act_bwd(const bt_call *call) {
    const bt_bias_act_params *p = &call->p.bias_act;
    int64_t r = call->t[BT_BIAS_ACT_BWD_DY].rows, c = call->t[BT_BIAS_ACT_BWD_DY].cols;
    if ((unsigned)p->act > BT_ACT_GELU) return bad(call, -1, "unknown activation %d", p->act);
    BT_TRY(shape(call, BT_BIAS_ACT_BWD_X, r, c));
    BT_TRY(shape(call, BT_BIAS_ACT_BWD_BIAS, 1, c));
    BT_TRY(shape(call, BT_BIAS_ACT_BWD_Y, r, c));
    BT_TRY(shape(call, BT_BIAS_ACT_BWD_DX, r, c));
    BT_TRY(shape(call, BT_BIAS_ACT_BWD_DBIAS, 1, c));
    if (p->act == BT_ACT_RELU) BT_TRY(needed(call, BT_BIAS_ACT_BWD_Y, "by relu"));
    if (p->act == BT_ACT_GELU) BT_TRY(needed(call, BT_BIAS_ACT_BWD_X, "by gelu"));
    if (!bti_view_present(&call->t[BT_BIAS_ACT_BWD_DX]))
        BT_TRY(needed(call, BT_BIAS_ACT_BWD_DBIAS, "when dx is absent"));
    BT_TRY(check_beta(call, p->beta));
    return check_row_drop(call, &p->drop, BT_BIAS_ACT_BWD_ROWPOS, p->act != BT_ACT_RELU, r, c);
}

static bt_status check_eps(const bt_call *call, double eps, int64_t cols) {
    if (cols < 1) return bad(call, -1, "rows of width 0 have no mean");
    if (!(eps >= 0)) return bad(call, -1, "eps %g is negative", eps);
    return BT_OK;
}

static bt_status check_norm_fwd(const bt_call *call) {
    int64_t r = call->t[BT_NORM_FWD_X].rows, c = call->t[BT_NORM_FWD_X].cols;
    BT_TRY(shape(call, BT_NORM_FWD_GAMMA, 1, c));
    BT_TRY(shape(call, BT_NORM_FWD_BETA, 1, c));
    BT_TRY(shape(call, BT_NORM_FWD_Y, r, c));
    BT_TRY(shape(call, BT_NORM_FWD_STATS, r, 2));
    return check_eps(call, call->p.norm.eps, c);
}

static bt_status check_norm_bwd(const bt_call *call) {
    int64_t r = call->t[BT_NORM_BWD_DY].rows, c = call->t[BT_NORM_BWD_DY].cols;
    BT_TRY(shape(call, BT_NORM_BWD_X, r, c));
    BT_TRY(shape(call, BT_NORM_BWD_STATS, r, 2));
    BT_TRY(shape(call, BT_NORM_BWD_GAMMA, 1, c));
    BT_TRY(shape(call, BT_NORM_BWD_DRES, r, c));
    BT_TRY(shape(call, BT_NORM_BWD_DX, r, c));
    BT_TRY(shape(call, BT_NORM_BWD_DGAMMA, 1, c));
    BT_TRY(shape(call, BT_NORM_BWD_DBETA, 1, c));
    BT_TRY(check_beta(call, call->p.norm.beta));
    return check_eps(call, call->p.norm.eps, c);
}

static bt_status check_add_norm_fwd(const bt_call *call) {
    const bt_add_norm_params *p = &call->p.add_norm;
    const bt_view *t = call->t;
    int64_t r = t[BT_ADD_NORM_FWD_X].rows, c = t[BT_ADD_NORM_FWD_X].cols;
    BT_TRY(shape(call, BT_ADD_NORM_FWD_BIAS, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_RES, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_GAMMA, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_BETA, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_R, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_Y, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_FWD_STATS, r, 2));
    int parts =
        bti_view_present(&t[BT_ADD_NORM_FWD_GAMMA]) + bti_view_present(&t[BT_ADD_NORM_FWD_BETA]) +
        bti_view_present(&t[BT_ADD_NORM_FWD_Y]) + bti_view_present(&t[BT_ADD_NORM_FWD_STATS]);
    if (parts != 0 && parts != 4)
        return bad(call, -1, "gamma, beta, y and stats come together or not at all");
    BT_TRY(check_eps(call, p->eps, c));
    return check_row_drop(call, &p->drop, BT_ADD_NORM_FWD_ROWPOS, 1, r, c);
}

static bt_status check_add_norm_bwd(const bt_call *call) {
    const bt_add_norm_params *p = &call->p.add_norm;
    const bt_view *t = call->t;
    int64_t r = t[BT_ADD_NORM_BWD_DY].rows, c = t[BT_ADD_NORM_BWD_DY].cols;
    BT_TRY(shape(call, BT_ADD_NORM_BWD_R, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_STATS, r, 2));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_GAMMA, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DRES, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DR, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DX, r, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DGAMMA, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DBETA, 1, c));
    BT_TRY(shape(call, BT_ADD_NORM_BWD_DBIAS, 1, c));
    BT_TRY(check_beta(call, p->beta));
    BT_TRY(check_eps(call, p->eps, c));
    int dx = bti_view_present(&t[BT_ADD_NORM_BWD_DX]);
    int dbias = bti_view_present(&t[BT_ADD_NORM_BWD_DBIAS]);
    if (p->drop.p > 0 && dbias)
        BT_TRY(needed(call, BT_ADD_NORM_BWD_DX, "with dropout when dbias is wanted"));
    return check_row_drop(call, &p->drop, BT_ADD_NORM_BWD_ROWPOS, dx || dbias, r, c);
}

static bt_status check_attn(const bt_call *call, int q, int k, int v, int seq) {
    const bt_attn_params *p = &call->p.attn;
    const bt_view *t = call->t;
    if (p->heads < 1 || p->heads > BT_PHILOX_MAX_HEAD + 1)
        return bad(call, -1, "%d heads: must be 1 to %d", p->heads, BT_PHILOX_MAX_HEAD + 1);
    if (t[q].cols % p->heads != 0)
        return bad(call, q, "width is no multiple of %d heads", p->heads);
    BT_TRY(shape(call, k, t[k].rows, t[q].cols));
    BT_TRY(shape(call, v, t[k].rows, t[q].cols));
    BT_TRY(shape(call, seq, t[seq].rows, BT_SEQ_COLS));
    return check_drop(call, &p->drop);
}

static bt_status check_attn_fwd(const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_FWD_Q], *kidx = &call->t[BT_ATTN_FWD_KIDX];
    BT_TRY(check_attn(call, BT_ATTN_FWD_Q, BT_ATTN_FWD_K, BT_ATTN_FWD_V, BT_ATTN_FWD_SEQ));
    BT_TRY(shape(call, BT_ATTN_FWD_KIDX, call->t[BT_ATTN_FWD_SEQ].rows, kidx->cols));
    BT_TRY(shape(call, BT_ATTN_FWD_O, q->rows, q->cols));
    return shape(call, BT_ATTN_FWD_LSE, q->rows, call->p.attn.heads);
}

static bt_status check_attn_bwd(const bt_call *call) {
    const bt_view *q = &call->t[BT_ATTN_BWD_Q], *k = &call->t[BT_ATTN_BWD_K];
    BT_TRY(check_attn(call, BT_ATTN_BWD_Q, BT_ATTN_BWD_K, BT_ATTN_BWD_V, BT_ATTN_BWD_SEQ));
    BT_TRY(shape(call, BT_ATTN_BWD_O, q->rows, q->cols));
    BT_TRY(shape(call, BT_ATTN_BWD_LSE, q->rows, call->p.attn.heads));
    BT_TRY(shape(call, BT_ATTN_BWD_DO, q->rows, q->cols));
    BT_TRY(shape(call, BT_ATTN_BWD_DQ, q->rows, q->cols));
    BT_TRY(shape(call, BT_ATTN_BWD_DK, k->rows, k->cols));
    return shape(call, BT_ATTN_BWD_DV, k->rows, k->cols);
}

static bt_status check_embed_fwd(const bt_call *call) {
    int64_t r = call->t[BT_EMBED_FWD_Y].rows, c = call->t[BT_EMBED_FWD_Y].cols;
    BT_TRY(shape(call, BT_EMBED_FWD_TABLE, call->t[BT_EMBED_FWD_TABLE].rows, c));
    BT_TRY(shape(call, BT_EMBED_FWD_IDS, r, 1));
    BT_TRY(shape(call, BT_EMBED_FWD_POSTAB, call->t[BT_EMBED_FWD_POSTAB].rows, c));
    return check_row_drop(call, &call->p.embed.drop, BT_EMBED_FWD_ROWPOS, 1, r, c);
}

static bt_status check_embed_bwd(const bt_call *call) {
    int64_t r = call->t[BT_EMBED_BWD_DY].rows, c = call->t[BT_EMBED_BWD_DY].cols;
    const bt_view *segs = &call->t[BT_EMBED_BWD_SEGS];
    BT_TRY(shape(call, BT_EMBED_BWD_ORDER, r, 1));
    BT_TRY(shape(call, BT_EMBED_BWD_SEGS, segs->rows, 2));
    if (segs->rows < 1) return bad(call, BT_EMBED_BWD_SEGS, "lacks its closing row");
    BT_TRY(shape(call, BT_EMBED_BWD_DTABLE, call->t[BT_EMBED_BWD_DTABLE].rows, c));
    BT_TRY(check_beta(call, call->p.embed.beta));
    return check_row_drop(call, &call->p.embed.drop, BT_EMBED_BWD_ROWPOS, 1, r, c);
}

static bt_status check_cross_entropy(const bt_call *call) {
    const bt_cross_entropy_params *p = &call->p.cross_entropy;
    const bt_view *z = &call->t[BT_CROSS_ENTROPY_LOGITS];
    if (z->cols < 1) return bad(call, BT_CROSS_ENTROPY_LOGITS, "has no symbols");
    if (!(p->smoothing >= 0 && p->smoothing <= 1))
        return bad(call, -1, "smoothing %g is not in [0, 1]", p->smoothing);
    BT_TRY(shape(call, BT_CROSS_ENTROPY_BIAS, 1, z->cols));
    BT_TRY(shape(call, BT_CROSS_ENTROPY_LABELS, z->rows, 1));
    BT_TRY(shape(call, BT_CROSS_ENTROPY_SCALARS, 1, BT_SCALAR_COUNT));
    return shape(call, BT_CROSS_ENTROPY_LOSS, z->rows, 2);
}

static bt_status check_value_loss(const bt_call *call) {
    const bt_value_loss_params *p = &call->p.value_loss;
    const bt_view *z = &call->t[BT_VALUE_LOSS_Z];
    if (z->cols < 1) return bad(call, BT_VALUE_LOSS_Z, "has no values");
    if ((unsigned)p->kind > BT_VALUES_SQUARE)
        return bad(call, -1, "unknown kind of loss %d", p->kind);
    BT_TRY(shape(call, BT_VALUE_LOSS_BIAS, 1, z->cols));
    BT_TRY(shape(call, BT_VALUE_LOSS_TARGET, z->rows, z->cols));
    BT_TRY(shape(call, BT_VALUE_LOSS_SCALARS, 1, BT_SCALAR_COUNT));
    return shape(call, BT_VALUE_LOSS_LOSS, z->rows, 2);
}

static bt_status check_axpby(const bt_call *call) {
    const bt_view *x = &call->t[BT_AXPBY_X];
    return shape(call, BT_AXPBY_Y, x->rows, x->cols);
}

static bt_status check_gather(const bt_call *call) {
    const bt_view *y = &call->t[BT_GATHER_Y];
    BT_TRY(shape(call, BT_GATHER_INDEX, y->rows, 1));
    return shape(call, BT_GATHER_X, call->t[BT_GATHER_X].rows, y->cols);
}

static bt_status check_gate_fwd(const bt_call *call) {
    const bt_view *a = &call->t[BT_GATE_FWD_A];
    BT_TRY(shape(call, BT_GATE_FWD_B, a->rows, a->cols));
    BT_TRY(shape(call, BT_GATE_FWD_Z, a->rows, a->cols));
    BT_TRY(shape(call, BT_GATE_FWD_BIAS, 1, a->cols));
    return shape(call, BT_GATE_FWD_Y, a->rows, a->cols);
}

static bt_status check_gate_bwd(const bt_call *call) {
    const bt_view *dy = &call->t[BT_GATE_BWD_DY];
    BT_TRY(shape(call, BT_GATE_BWD_BIAS, 1, dy->cols));
    for (int i = BT_GATE_BWD_A; i <= BT_GATE_BWD_DZ; i++)
        if (i != BT_GATE_BWD_BIAS) BT_TRY(shape(call, i, dy->rows, dy->cols));
    return BT_OK;
}

static bt_status check_topk(const bt_call *call) {
    const bt_view *z = &call->t[BT_TOPK_LOGITS], *value = &call->t[BT_TOPK_VALUE];
    if (z->cols < 1) return bad(call, BT_TOPK_LOGITS, "has no symbols");
    if (z->cols > INT32_MAX) return bad(call, BT_TOPK_LOGITS, "ids do not fit in int32");
    BT_TRY(shape(call, BT_TOPK_BIAS, 1, z->cols));
    BT_TRY(shape(call, BT_TOPK_VALUE, z->rows, value->cols));
    return shape(call, BT_TOPK_ID, z->rows, value->cols);
}

static bt_status check_sumsq(const bt_call *call) {
    int64_t n = call->t[BT_SUMSQ_X].cols;
    BT_TRY(shape(call, BT_SUMSQ_X, 1, n));
    return shape(call, BT_SUMSQ_PART, n / BT_SUMSQ_BLOCK + (n % BT_SUMSQ_BLOCK != 0), 2);
}

static bt_status check_update_scalars(const bt_call *call) {
    const bt_update_scalars_params *p = &call->p.update_scalars;
    if (p->growth_interval < 0 || p->growth_interval >= 1 << 24)
        return bad(call, -1, "a growth interval of %d updates", (int)p->growth_interval);
    if (p->growth_interval > 0 && !(p->scale_max >= 1 && p->scale_max < INFINITY))
        return bad(call, -1, "the largest loss scale is %g", (double)p->scale_max);
    BT_TRY(shape(call, BT_UPDATE_SCALARS_PART, call->t[BT_UPDATE_SCALARS_PART].rows, 2));
    return shape(call, BT_UPDATE_SCALARS_SCALARS, 1, BT_SCALAR_COUNT);
}

static bt_status check_adamw_params(const bt_call *call) {
    const bt_adamw_params *p = &call->p.adamw;
    if (!(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1))
        return bad(call, -1, "beta1 %g and beta2 %g must be in [0, 1)", p->beta1, p->beta2);
    if (!(p->eps >= 0)) return bad(call, -1, "eps %g is negative", p->eps);
    if (p->first_row < 0) return bad(call, -1, "a first row of %lld", (long long)p->first_row);
    return BT_OK;
}

static bt_status check_adamw(const bt_call *call) {
    int64_t n = call->t[BT_ADAMW_G].cols;
    BT_TRY(shape(call, BT_ADAMW_SCALARS, 1, BT_SCALAR_COUNT));
    BT_TRY(shape(call, BT_ADAMW_G, 1, n));
    BT_TRY(shape(call, BT_ADAMW_W, 1, n));
    BT_TRY(shape(call, BT_ADAMW_M, 1, n));
    BT_TRY(shape(call, BT_ADAMW_V, 1, n));
    return check_adamw_params(call);
}

static bt_status check_adamw_rows(const bt_call *call) {
    const bt_view *g = &call->t[BT_ADAMW_ROWS_G], *w = &call->t[BT_ADAMW_ROWS_W];
    BT_TRY(shape(call, BT_ADAMW_ROWS_SCALARS, 1, BT_SCALAR_COUNT));
    BT_TRY(shape(call, BT_ADAMW_ROWS_INDEX, g->rows, 1));
    BT_TRY(shape(call, BT_ADAMW_ROWS_G, g->rows, w->cols));
    BT_TRY(shape(call, BT_ADAMW_ROWS_M, w->rows, w->cols));
    BT_TRY(shape(call, BT_ADAMW_ROWS_V, w->rows, w->cols));
    return check_adamw_params(call);
}

static bt_status check_adamw8(const bt_call *call) {
    const bt_view *g = &call->t[BT_ADAMW8_G];
    int64_t n = call->t[BT_ADAMW8_W].cols,
            blocks = n / BT_ADAMW8_BLOCK + (n % BT_ADAMW8_BLOCK != 0);
    int compact = bti_view_present(&call->t[BT_ADAMW8_INDEX]);
    BT_TRY(shape(call, BT_ADAMW8_SCALARS, 1, BT_SCALAR_COUNT));
    BT_TRY(shape(call, BT_ADAMW8_INDEX, g->rows, 1));
    BT_TRY(shape(call, BT_ADAMW8_W, 1, n));
    BT_TRY(shape(call, BT_ADAMW8_M, 1, n));
    BT_TRY(shape(call, BT_ADAMW8_V, 1, n));
    BT_TRY(shape(call, BT_ADAMW8_MS, 1, blocks));
    BT_TRY(shape(call, BT_ADAMW8_VS, 1, blocks));
    if (!compact) BT_TRY(shape(call, BT_ADAMW8_G, 1, n));
    if (compact && (g->cols < 1 || n % g->cols != 0))
        return bad(call, BT_ADAMW8_G, "a table of %lld elements has no rows so wide", (long long)n);
    return check_adamw_params(call);
}

static bt_status (*const check_table[BT_OP_COUNT])(const bt_call *) = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = check_##name,
#include "core/ops/op_list.inc"
};

bt_status bti_op_check(const bt_call *call) {
    if ((unsigned)call->op >= BT_OP_COUNT)
        return bti_fail(BT_EINTERNAL, "there is no op number %d", (int)call->op);
    BT_TRY(check_operands(call, bti_op_info(call->op)));
    return check_table[call->op](call);
}

/* ---- dispatch ---------------------------------------------------------------------------------
 */

static atomic_uint_fast64_t counts[BT_OP_COUNT];

uint64_t bti_op_count(bt_op op) {
    return (unsigned)op < BT_OP_COUNT ? atomic_load_explicit(&counts[op], memory_order_relaxed) : 0;
}

/* A device that has a row tile promises nothing for other numbers of rows. */
static bt_status check_row_tile(const bt_dev_info *info, const bt_call *call) {
    if (call->op != BT_OP_GEMM || !call->p.gemm.stable_rows || info->row_tile == 0) return BT_OK;
    if (call->t[BT_GEMM_C].rows == (int64_t)info->row_tile) return BT_OK;
    return bad(call, BT_GEMM_C, "stable rows come in tiles of %u on this device",
               (unsigned)info->row_tile);
}

/* The device computes in the type of the call. */
static bt_status check_device(const bt_dev_info *info, const bt_call *call) {
    bt_dtype type = call_dtype(call, bti_op_info(call->op));
    const bt_gemm_params *g = &call->p.gemm;
    if (call->op == BT_OP_GEMM && is_half(g->round)) type = g->round;
    if (call->op == BT_OP_GEMM && g->tf32 && !info->tf32)
        return bad(call, -1, "%s does not multiply in tf32", info->name);
    if (info->dtypes & BT_BIT(type)) return BT_OK;
    return bad(call, -1, "%s does not compute in %s", info->name, bti_dtype_name(type));
}

bt_status bti_op_run(bt_dev *dev, bt_stream *stream, const bt_call *call) {
    BT_TRY(bti_op_check(call));
    BT_TRY(check_device(&dev->info, call));
    BT_TRY(check_row_tile(&dev->info, call));
    atomic_fetch_add_explicit(&counts[call->op], 1, memory_order_relaxed);
    bt_op_fn slot = dev->op[call->op];
    if (slot != NULL) return slot(dev, stream, call);
    if (bti_op_info(call->op)->fused) return bti_compose_run(dev, stream, call);
    return bti_fail(BT_EINTERNAL, "device %s has no op %s", dev->info.name,
                    bti_op_info(call->op)->name);
}

bt_status bti_settle(bt_dev *dev, bt_stream *stream, bt_status status) {
    char first[1024] = "";
    if (status != BT_OK) snprintf(first, sizeof first, "%s", bt_last_error());
    bt_status waited = dev->ops->sync(dev, stream);
    if (status == BT_OK) return waited;
    if (waited == BT_OK) return status;
    return bti_fail(status, "%s", first); /* the cause, not that the wait fails too */
}

uint64_t bti_op_ws_bytes(const bt_planning *planning, const bt_dev_info *info,
                         const bt_call *call) {
    if (bti_op_info(call->op)->fused && !(planning->fused & BT_BIT(call->op)))
        return bti_compose_ws_bytes(planning, info, call);
    return planning->ws_bytes(info, call);
}
