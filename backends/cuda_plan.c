/* The planning half of the cuda backend: scratch of each op, as an upper bound of what its kernels
 * ask for. Plain C, no vendor header: a laptop plans with it. Linked into libbantam and into the
 * module, so that both say the same.
 *
 * - Column sums (gradients of bias, gain and offset) go through partial sums over chunks of rows,
 *   added in order by a second kernel, since there are no float atomics.
 * - attn_bwd keeps delta (rows x heads) and passes twice over a sequence, by keys and by queries,
 *   so that no partial dq is stored. attn_fwd needs nothing.
 * - cross_entropy, norms and topk work in registers and shared memory.
 * - gemm: cuBLAS has its workspace with its handle, counted in runtime_bytes; in half precision
 *   operands are copied to scratch. What is planned suffices for devices that multiply halves and
 *   for those that do not. */
#include "backends/cuda_plan.h"

/* Chunks that suffice whatever the number of rows; 1 at least. */
static int64_t most_chunks(int64_t cols) {
    const int64_t chunks = BTCU_CHUNK_FLOATS / (cols > 0 ? cols : 1);
    return chunks > BTCU_CHUNKS ? BTCU_CHUNKS : chunks > 1 ? chunks : 1;
}

int64_t btcu_chunk_rows(int64_t rows, int64_t cols) {
    const int64_t even = btcu_ceil_div(rows, most_chunks(cols));
    return even > BTCU_CHUNK_ROWS ? even : BTCU_CHUNK_ROWS;
}

/* Sums of `count` matrices like `v` over rows. */
static uint64_t column_bytes(const bt_view *v, uint64_t count) {
    const int64_t chunks = btcu_ceil_div(v->rows, BTCU_CHUNK_ROWS), most = most_chunks(v->cols);
    return count * (uint64_t)v->cols * sizeof(float) * (uint64_t)(chunks < most ? chunks : most);
}

/* ---- products in half precision ----------------------------------------------------------------
 */

btcu_product btcu_product_of(const bt_call *call, int native) {
    const bt_view *a = &call->t[BT_GEMM_A], *b = &call->t[BT_GEMM_B], *c = &call->t[BT_GEMM_C];
    return (btcu_product){
        .m = c->rows,
        .n = c->cols,
        .k = call->p.gemm.trans_a ? a->rows : a->cols,
        .widened = !native,
        .a = !native || a->dtype == BT_F32,
        .b = !native || b->dtype == BT_F32,
        .half_c = c->dtype != BT_F32,
    };
}

/* A copy of rows x cols, or of their transpose, that ends at a multiple of 256 bytes. */
static uint64_t copy_bytes(int64_t rows, int64_t cols, uint64_t size) {
    const uint64_t bytes = (uint64_t)btcu_copy_ld(rows) * (uint64_t)btcu_copy_ld(cols) * size;
    return (bytes + 255) / 256 * 256;
}

/* Sums that are rounded at the end need a place of their own where they come in parts, or from a
 * device that gives fp32 only. */
static void count_copies(const btcu_product *p, btcu_slice *s) {
    const uint64_t size = p->widened ? 4 : 2;
    const int sums = p->half_c && (p->widened || s->k < p->k);
    s->a_bytes = p->a ? copy_bytes(s->m, s->k, size) : 0;
    s->b_bytes = p->b ? copy_bytes(s->k, s->n, size) : 0;
    s->c_bytes = sums ? copy_bytes(s->m, s->n, sizeof(float)) : 0;
}

#define LEAST_SIDE 64 /* of a slice */

static int64_t half(int64_t n) { return btcu_ceil_div(n, 2 * LEAST_SIDE) * LEAST_SIDE; }

/* The side that is halved: where one operand alone is copied its own side, so that each element is
 * copied once and sums come in one part; else the longest. */
static int64_t *longest_side(const btcu_product *p, btcu_slice *s) {
    if (!p->a && s->n > LEAST_SIDE) return &s->n;
    if (!p->b && s->m > LEAST_SIDE) return &s->m;
    if (s->m >= s->n && s->m >= s->k) return &s->m;
    return s->n >= s->k ? &s->n : &s->k;
}

btcu_slice btcu_gemm_slice(const btcu_product *p) {
    btcu_slice s = {.m = p->m, .n = p->n, .k = p->k};
    for (;;) {
        count_copies(p, &s);
        if (s.a_bytes + s.b_bytes + s.c_bytes <= BTCU_GEMM_SCRATCH) return s;
        int64_t *side = longest_side(p, &s);
        *side = half(*side);
    }
}

/* Bounds the slices of every smaller product: each has its whole copies, or BTCU_GEMM_SCRATCH. */
static uint64_t gemm_bytes(const bt_call *call) {
    if (call->p.gemm.round == BT_F32 || call->p.gemm.stable_rows) return 0;
    const btcu_product p = btcu_product_of(call, 0);
    btcu_slice whole = {.m = p.m, .n = p.n, .k = p.k};
    count_copies(&p, &whole);
    const uint64_t bytes = whole.a_bytes + whole.b_bytes + whole.c_bytes;
    return bytes < BTCU_GEMM_SCRATCH ? bytes : BTCU_GEMM_SCRATCH;
}

static uint64_t cuda_ws_bytes(const bt_dev_info *info, const bt_call *call) {
    const bt_view *t = call->t;
    (void)info;
    switch (call->op) {
    case BT_OP_GEMM:
        return gemm_bytes(call);
    case BT_OP_BIAS_ACT_BWD:
        return t[BT_BIAS_ACT_BWD_DBIAS].ld > 0 ? column_bytes(&t[BT_BIAS_ACT_BWD_DY], 1) : 0;
    case BT_OP_NORM_BWD:
        return column_bytes(&t[BT_NORM_BWD_DY], 2);
    case BT_OP_ADD_NORM_BWD:
        return column_bytes(&t[BT_ADD_NORM_BWD_DY], 2);
    case BT_OP_ATTN_BWD: /* delta of each query and head */
        return (uint64_t)t[BT_ATTN_BWD_Q].rows * (uint64_t)call->p.attn.heads * sizeof(float);
    default:
        return 0;
    }
}

const bt_planning bti_planning_cuda = {
    .ws_bytes = cuda_ws_bytes,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};
