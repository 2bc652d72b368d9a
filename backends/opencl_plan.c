/* The planning half of the opencl backend: scratch of each op and the fused slots. Linked into
 * libbantam and into the module, so that both say the same. It does not know the device's kernels:
 * what is asked for suffices for any work-group size, with the library for products or without. */
#include "backends/opencl_plan.h"

/* The largest tile of CLBlast's tuned kernels, to which it pads all sides of a product. */
#define LIBRARY_TILE 256
/* Below this many multiply-adds, or rows, columns or depth, a product is ours. */
#define LIBRARY_LEAST (128 * 128 * 128)
#define LIBRARY_SIDE 32
/* Deeper sums are added up in slices, so that rounding grows less. */
#define LIBRARY_DEPTH 2048

/* Bytes that its copies are apart, and some. */
#define LIBRARY_MORE ((uint64_t)4096)

static int64_t padded(int64_t n) { return btcl_ceil_div(n, LIBRARY_TILE) * LIBRARY_TILE; }

/* CLBlast copies A, B and C, padded, one after the other. */
uint64_t btcl_slice_bytes(const btcl_slice *s, int wide) {
    const uint64_t a = (uint64_t)padded(s->m), b = (uint64_t)padded(s->n),
                   c = (uint64_t)padded(s->k);
    const uint64_t copies = (a * c + c * b + a * b) * sizeof(float);
    return (wide ? 2 : 1) * copies + LIBRARY_MORE;
}

uint64_t btcl_library_share(uint64_t bytes, int wide) {
    return wide ? (bytes - LIBRARY_MORE) / 2 + LIBRARY_MORE : bytes;
}

static int64_t half(int64_t n) { return padded(btcl_ceil_div(n, 2)); }

/* Halves the largest side until the scratch fits; sides of one tile are not halved. */
btcl_slice btcl_gemm_slice(int64_t m, int64_t n, int64_t k, int wide) {
    btcl_slice s = {m, n, k < LIBRARY_DEPTH ? k : LIBRARY_DEPTH};
    while (btcl_slice_bytes(&s, wide) > BTCL_GEMM_SCRATCH) {
        if (s.m >= s.n && s.m > LIBRARY_TILE)
            s.m = half(s.m);
        else if (s.n > LIBRARY_TILE)
            s.n = half(s.n);
        else
            s.k = half(s.k);
    }
    return s;
}

int btcl_gemm_may_slice(const bt_call *call) {
    const bt_gemm_params *g = &call->p.gemm;
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const int64_t k = g->trans_a ? a->rows : a->cols;
    return !g->stable_rows && g->batch0 <= 1 && g->batch1 <= 1 && g->alpha != 0 &&
           c->rows >= LIBRARY_SIDE && c->cols >= LIBRARY_SIDE && k >= LIBRARY_SIDE &&
           (double)c->rows * (double)c->cols * (double)k >= LIBRARY_LEAST;
}

static uint64_t gemm_bytes(const bt_call *call) {
    const bt_view *a = &call->t[BT_GEMM_A], *c = &call->t[BT_GEMM_C];
    const int64_t k = call->p.gemm.trans_a ? a->rows : a->cols;
    if (!btcl_gemm_may_slice(call)) return 0;
    const btcl_slice all = {c->rows, c->cols, k < LIBRARY_DEPTH ? k : LIBRARY_DEPTH};
    const uint64_t whole = btcl_slice_bytes(&all, btcl_gemm_wide(call));
    return whole < BTCL_GEMM_SCRATCH ? whole : BTCL_GEMM_SCRATCH;
}

/* Sums of `count` matrices like `v` over rows, by chunks. */
static uint64_t column_bytes(const bt_view *v, uint64_t count) {
    const int64_t chunks = btcl_ceil_div(v->rows, BTCL_CHUNK_ROWS);
    return count * (uint64_t)v->cols * sizeof(float) *
           (uint64_t)(chunks < BTCL_CHUNKS ? chunks : BTCL_CHUNKS);
}

static uint64_t opencl_ws_bytes(const bt_dev_info *info, const bt_call *call) {
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

const bt_planning bti_planning_opencl = {
    .ws_bytes = opencl_ws_bytes,
    .fused = 1u << BT_OP_ADD_NORM_FWD | 1u << BT_OP_ADD_NORM_BWD,
};
