/* The product whose rows keep their bits whatever stands beside them, for decoding, and rounding of
 * fp32 operands to half precision. All other products are cuBLAS's (backends/cuda_blas.c). */
#include "kernels_cuda/common.cuh"

#define TILE_M 32 /* rows of C that a block makes */
#define TILE_N 64 /* columns */
#define DEPTH 32  /* of the sum at a time */
#define RUN 512   /* of the sum before it joins a longer one: rounding grows more slowly */
#define THREADS 128
/* Threads as 8 x 16; each makes RM x RN elements, 8 rows and 16 columns apart. */
#define RM (TILE_M / 8)
#define RN (TILE_N / 16)

/* DEPTH columns of ROWS rows of X, stored as fp32 or as H and rounded to H, into `tile`,
 * transposed, zeros beyond the ends. Neighbours read along a row, and write to different banks. */
template <class H, int ROWS>
INLINE void load_tile(float (*tile)[ROWS + 1], const btcu_mat &x, int64_t row0, int64_t rows,
                      int64_t k0, int64_t depth, int is_half, int wide) {
    for (int e = (int)threadIdx.x; e < ROWS * (DEPTH / 4); e += THREADS) {
        const int r = e / (DEPTH / 4), k = 4 * (e % (DEPTH / 4));
        const int64_t row = row0 + r, at = k0 + k, n = depth - at;
        f4 v = zero4();
        if (row < rows)
            v = is_half ? load4(row_of<H>(x, row) + at, n, wide)
                        : rounded4<H>(load4(row_of<float>(x, row) + at, n, wide));
#pragma unroll
        for (int i = 0; i < 4; i++) tile[k + i][r] = v.v[i];
    }
}

/* C = alpha A B^T + beta C. Each element is summed in the order of k, so that a row's bits depend
 * on that row of A and on B alone. Reads B once for every TILE_M rows of C, A once for every TILE_N
 * columns, with beta C once; writes C once. Decoding, with some tens of rows, has few blocks (8 for
 * 512 columns), each of which walks the whole sum: the wait for its tiles is what bounds it. */
template <class H>
__global__ void __launch_bounds__(THREADS, 1)
    k_rows_gemm(btcu_rows_gemm a, int wide_a, int wide_b) {
    __shared__ float left[DEPTH][TILE_M + 1], right[DEPTH][TILE_N + 1];
    const int tx = (int)(threadIdx.x % 16), ty = (int)(threadIdx.x / 16);
    const uint32_t down = (uint32_t)((a.m + TILE_M - 1) / TILE_M);
    const int64_t i0 = (int64_t)(blockIdx.x % down) * TILE_M;
    const int64_t j0 = (int64_t)(blockIdx.x / down) * TILE_N;
    float sum[RM][RN], run[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) sum[i][j] = run[i][j] = 0.0f;
    for (int64_t k0 = 0; k0 < a.k; k0 += DEPTH) {
        load_tile<H, TILE_M>(left, a.a, i0, a.m, k0, a.k, a.a_half, wide_a);
        load_tile<H, TILE_N>(right, a.b, j0, a.n, k0, a.k, a.b_half, wide_b);
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            float x[RM], y[RN];
#pragma unroll
            for (int i = 0; i < RM; i++) x[i] = left[k][ty + 8 * i];
#pragma unroll
            for (int j = 0; j < RN; j++) y[j] = right[k][tx + 16 * j];
#pragma unroll
            for (int i = 0; i < RM; i++)
#pragma unroll
                for (int j = 0; j < RN; j++) run[i][j] += x[i] * y[j];
        }
        __syncthreads();
        if ((k0 + DEPTH) % RUN != 0 && k0 + DEPTH < a.k) continue;
#pragma unroll
        for (int i = 0; i < RM; i++)
#pragma unroll
            for (int j = 0; j < RN; j++) {
                sum[i][j] += run[i][j];
                run[i][j] = 0.0f;
            }
    }
#pragma unroll
    for (int i = 0; i < RM; i++)
#pragma unroll
        for (int j = 0; j < RN; j++) {
            const int64_t r = i0 + ty + 8 * i, c = j0 + tx + 16 * j;
            if (r >= a.m || c >= a.n) continue;
            float v = a.alpha == 0.0f ? 0.0f : a.alpha * sum[i][j];
            if (a.c_half) {
                H *out = row_of<H>(a.c, r) + c;
                if (a.beta != 0.0f) v += a.beta * widen(*out);
                *out = narrow<H>(v);
            } else {
                float *out = row_of<float>(a.c, r) + c;
                if (a.beta != 0.0f) v += a.beta * *out;
                *out = v;
            }
        }
}

extern "C" cudaError_t btcu_rows_gemm_run(const btcu_rows_gemm *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->round,
                 BTCU_LAUNCH(k_rows_gemm<T>, ceil_div(a->m, TILE_M) * ceil_div(a->n, TILE_N),
                             THREADS, 0, s, *a, aligned4(&a->a, a->a_half ? sizeof(T) : 4),
                             aligned4(&a->b, a->b_half ? sizeof(T) : 4)));
}

/* y = x rounded to T. Reads and writes 4 bytes for each element. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS) k_round(btcu_round a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0) return;
    const f4 u = load4(row_of<float>(a.x, at.row) + c, n, wide);
    store4(row_of<float>(a.y, at.row) + c, rounded4<T>(u), n, wide);
}

template <class T> static cudaError_t round_to(const btcu_round *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_LAUNCH(k_round<T>, blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                aligned4(&a->x, sizeof(float)) && aligned4(&a->y, sizeof(float)));
}

extern "C" cudaError_t btcu_round_run(const btcu_round *a, cudaStream_t s) {
    return a->round == BT_F16 ? round_to<__half>(a, s) : round_to<__nv_bfloat16>(a, s);
}
