/* The CPU backend's inside: its device, what kernels share, and the table that each instruction
 * set fills.
 *
 * Kernel files are compiled once for each instruction set with BTCPU_ISA=base|avx2|avx512; every
 * function that they export is named by BTCPU_FN, so that the copies live side by side, and
 * cpu/dispatch.c picks a table when a device is opened. Kernels see fp32 only, never allocate, and
 * split work into parts whose number depends on shape and thread count alone: same shape, same
 * thread count, same bits. */
#ifndef BANTAM_CPU_KERNELS_H
#define BANTAM_CPU_KERNELS_H

#include <string.h>

#include "backends/backend.h"
#include "cpu/hostinfo.h"

struct bt_buf {
    char *base;
    size_t bytes;
    struct bt_buf *next, *prev; /* the device's list, for memory accounts */
};

typedef struct btcpu_table {
    const char *isa;
    bt_op_fn op[BT_OP_COUNT];
} btcpu_table;

/* dispatch.c: the best table for this processor, or one no better than `most` ("base", "avx2",
 * "avx512"; NULL: no limit). */
const btcpu_table *btcpu_pick_table(const char *most);

/* blas.c: loads OpenBLAS once for the process and checks it; the reason goes to the host's last
 * error. */
bt_status btcpu_blas_open(const bt_host *host);
/* Whether btcpu_blas_open would find a library; what is missing in `reason` when not. */
int btcpu_blas_probe(char *reason, size_t reason_size);
/* C = alpha op(A) op(B) + beta C by the library with `threads` threads; ld in elements. Any sizes;
 * beta 0 does not read C. Callable from several threads: calls take turns. */
void btcpu_sgemm(int threads, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k,
                 float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                 float *c, int64_t ldc);

/* blas.c: sets the host's last error and returns the status. */
bt_status btcpu_fail(const bt_host *host, bt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- parts --------------------------------------------------------------------------------- */

/* A part is worth a thread from this many elements of row-wise work; forking and joining costs
 * about as much as 4,000. */
#define BTCPU_GRAIN 16384

/* Into how many parts work of `elements` is split. */
static inline int btcpu_parts(const bt_dev *dev, int64_t elements) {
    int64_t parts = elements / BTCPU_GRAIN;
    if (parts > (int64_t)dev->info.threads) parts = (int64_t)dev->info.threads;
    return parts < 1 ? 1 : (int)parts;
}

/* First of `count` items that part p of `parts` takes; part p ends where p + 1 starts. */
static inline int64_t btcpu_first(int64_t count, int p, int parts) {
    return count / parts * p + (count % parts < p ? count % parts : p);
}

/* ---- workspace, shared by the kernels and the planning half ---------------------------------- */

#define BTCPU_ALIGN 64 /* bytes; also of every tensor */

static inline int64_t btcpu_round16(int64_t n) { return (n + 15) & ~(int64_t)15; }

/* Column sums: for each part `sums` rows of totals and `sums` rows of the current block. */
static inline uint64_t btcpu_colsum_bytes(uint32_t threads, int64_t cols, int sums) {
    return (uint64_t)threads * 2 * (uint64_t)sums * (uint64_t)btcpu_round16(cols) * sizeof(float);
}

/* Attention: tiles of BTCPU_BQ queries x BTCPU_BK keys, for each thread. */
#define BTCPU_BQ 32
#define BTCPU_BK 64
/* Floats of a thread's scratch for heads of width d. */
static inline int64_t btcpu_attn_fwd_floats(int64_t d) {
    int64_t w = btcpu_round16(d);
    return 2 * BTCPU_BQ * w      /* q and o, transposed */
           + 2 * BTCPU_BK * w    /* keys and values gathered through an index */
           + BTCPU_BQ * BTCPU_BK /* scores, then probabilities */
           + 4 * BTCPU_BQ;       /* max, sum, rescaling, positions */
}
static inline int64_t btcpu_attn_bwd_floats(int64_t d) {
    int64_t w = btcpu_round16(d);
    return 3 * BTCPU_BQ * w          /* q, do and dq, transposed */
           + 2 * BTCPU_BQ * w        /* q and do, rows padded */
           + 3 * BTCPU_BQ * BTCPU_BK /* probabilities, their gradient, dropped probabilities */
           + 4 * BTCPU_BQ;           /* log-sum-exp, delta, positions */
}

/* ---- views ----------------------------------------------------------------------------------- */

static inline int btcpu_has(const bt_view *v) { return v->ld > 0; }

/* First byte of a view; NULL when it is absent. */
static inline void *btcpu_at(const bt_view *v) { return v->ld > 0 ? v->buf->base + v->off : NULL; }
static inline float *btcpu_f32(const bt_view *v) { return (float *)btcpu_at(v); }
static inline const int32_t *btcpu_i32(const bt_view *v) { return (const int32_t *)btcpu_at(v); }
static inline float *btcpu_ws(const bt_call *c) {
    return c->ws.buf ? (float *)(void *)(c->ws.buf->base + c->ws.off) : NULL;
}

/* ---- what each instruction set defines ------------------------------------------------------- */

#define BTCPU_CAT2(a, b) a##_##b
#define BTCPU_CAT(a, b) BTCPU_CAT2(a, b)

#ifdef BTCPU_ISA
#define BTCPU_FN(name) BTCPU_CAT(btcpu_##name, BTCPU_ISA)

#define BT_OP(name, NAME, slot) \
    bt_status BTCPU_FN(name)(bt_dev * dev, bt_stream * stream, const bt_call *call);
#include "core/ops/op_list.inc"

/* gemm_rows.c: a gemm with stable_rows; k and alpha are not 0. */
void BTCPU_FN(gemm_rows)(const bt_dev *dev, const bt_call *call);

extern const btcpu_table BTCPU_FN(kernels);
#endif

#endif
