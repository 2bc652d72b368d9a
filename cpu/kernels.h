/* The CPU backend's inside: its device, what kernels share, and the table that each instruction
 * set fills.
 *
 * Kernel files are compiled once for each instruction set with BTCPU_ISA=base|avx2|avx512; every
 * function that they export is named by BTCPU_FN, so that the copies live side by side, and
 * cpu/dispatch.c picks a table when a device is opened. Kernels compute in fp32 and widen half
 * operands piece by piece (cpu/rows.h), never allocate, and split work into parts whose number
 * depends on shape and thread count alone: same shape, same thread count, same bits. */
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

/* Threads for a product; one more costs some microseconds. */
static inline int btcpu_gemm_threads(const bt_dev *dev, int64_t m, int64_t n, int64_t k) {
    return 2.0 * (double)m * (double)n * (double)k < 5e5 ? 1 : (int)dev->info.threads;
}

/* First of `count` items that part p of `parts` takes; part p ends where p + 1 starts. */
static inline int64_t btcpu_first(int64_t count, int p, int parts) {
    return count / parts * p + (count % parts < p ? count % parts : p);
}

/* ---- workspace, shared by the kernels and the planning half ---------------------------------- */

#define BTCPU_ALIGN 64 /* bytes; also of every tensor */

static inline int64_t btcpu_round16(int64_t n) { return (n + 15) & ~(int64_t)15; }

static inline int btcpu_is_half(bt_dtype t) { return t == BT_F16 || t == BT_BF16; }
/* Bytes of a floating type of this device. */
static inline size_t btcpu_size(bt_dtype t) { return btcpu_is_half(t) ? 2 : 4; }

/* `rows` rows of fp32 for each thread. */
static inline int64_t btcpu_row_floats(uint32_t threads, int64_t cols, int rows) {
    return (int64_t)threads * rows * btcpu_round16(cols);
}

/* Rows of column sums, for each part: `sums` of totals and `sums` of the current block. */
#define BTCPU_COLSUM_ROWS(sums) (2 * (sums))

/* Rows that a norm of half data is widened into: forward r or x, backward dy, x and dres. */
#define BTCPU_NORM_FWD_ROWS 1
#define BTCPU_NORM_BWD_ROWS 3

/* Attention: tiles of BTCPU_BQ queries x BTCPU_BK keys, for each thread. */
#define BTCPU_BQ 32
#define BTCPU_BK 64
/* Keys whose gradients a thread holds in fp32 where they are stored as halves. */
#define BTCPU_SPAN 1024
/* Floats of a thread's scratch for heads of width d. */
static inline int64_t btcpu_attn_fwd_floats(int64_t d) {
    int64_t w = btcpu_round16(d);
    return 2 * BTCPU_BQ * w      /* q and o, transposed */
           + 2 * BTCPU_BK * w    /* keys and values gathered through an index, or widened */
           + BTCPU_BQ * BTCPU_BK /* scores, then probabilities */
           + 4 * BTCPU_BQ;       /* max, sum, rescaling, positions */
}
static inline int64_t btcpu_attn_bwd_floats(int64_t d, int half) {
    int64_t w = btcpu_round16(d);
    return 3 * BTCPU_BQ * w          /* q, do and dq, transposed */
           + 2 * BTCPU_BQ * w        /* q and do, rows padded */
           + 3 * BTCPU_BQ * BTCPU_BK /* probabilities, their gradient, dropped probabilities */
           + 4 * BTCPU_BQ            /* log-sum-exp, delta, positions */
           + (half ? 2 * BTCPU_BK * w + 2 * BTCPU_SPAN * w : 0); /* k and v; dk and dv of a span */
}

/* Products of rounded operands: slices of A, B and C as fp32, for all threads together (13 MiB). */
#define BTCPU_SLICE 1024
/* From one row of a slice of n columns to the next: no power of two, or rows share cache sets. */
static inline int64_t btcpu_slice_ld(int64_t n) { return btcpu_round16(n) + 16; }
/* Room for either side of a slice of a matrix that is n long there; grows with n. */
static inline int64_t btcpu_slice_room(int64_t n) {
    return btcpu_slice_ld(n < BTCPU_SLICE ? n : BTCPU_SLICE);
}
static inline int64_t btcpu_gemm_half_floats(int64_t m, int64_t n, int64_t k, int half_c) {
    m = btcpu_slice_room(m), n = btcpu_slice_room(n), k = btcpu_slice_room(k);
    return m * k + k * n + (half_c ? m * n : 0);
}

/* The same where rows stand alone: rows of A, and for each thread a block of B and one of C. */
#define BTCPU_STABLE_M 256
#define BTCPU_STABLE_N 64
#define BTCPU_STABLE_K 512
static inline int64_t btcpu_stable_rows(int64_t m) {
    return m < BTCPU_STABLE_M ? m : BTCPU_STABLE_M;
}
static inline int64_t btcpu_stable_thread_floats(int64_t m, int half_c) {
    return BTCPU_STABLE_N * (BTCPU_STABLE_K + (half_c ? btcpu_stable_rows(m) : 0));
}
static inline int64_t btcpu_stable_floats(uint32_t threads, int64_t m, int64_t k, int half_c) {
    return btcpu_stable_rows(m) * btcpu_round16(k) +
           (int64_t)threads * btcpu_stable_thread_floats(m, half_c);
}

/* ---- views ----------------------------------------------------------------------------------- */

static inline int btcpu_has(const bt_view *v) { return v->ld > 0; }

/* First byte of a view; NULL when it is absent. */
static inline void *btcpu_at(const bt_view *v) { return v->ld > 0 ? v->buf->base + v->off : NULL; }
static inline float *btcpu_f32(const bt_view *v) { return (float *)btcpu_at(v); }
static inline uint16_t *btcpu_half(const bt_view *v) { return (uint16_t *)btcpu_at(v); }
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

/* half.c: n numbers of fp16 or bf16 to fp32 and back, and fp32 rounded to what a half holds (y may
 * be x). */
void BTCPU_FN(widen)(bt_dtype type, const uint16_t *x, float *y, int64_t n);
void BTCPU_FN(narrow)(bt_dtype type, const float *x, uint16_t *y, int64_t n);
void BTCPU_FN(round)(bt_dtype type, const float *x, float *y, int64_t n);

/* gemm_half.c: one matrix of a gemm with `round`; k and alpha are not 0. */
void BTCPU_FN(gemm_half)(const bt_dev *dev, const bt_call *call, const bt_view t[3]);
/* gemm_rows.c: a gemm with stable_rows; k and alpha are not 0. */
void BTCPU_FN(gemm_rows)(const bt_dev *dev, const bt_call *call);

extern const btcpu_table BTCPU_FN(kernels);
#endif

#endif
