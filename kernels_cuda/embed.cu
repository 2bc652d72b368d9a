/* Embedding: tables and their gradients are fp32, rows of activations of any type. */
#include "kernels_cuda/common.cuh"

/* y_r = drop(scale table[ids_r] + postab[position_r]). Reads 4 or 8 bytes for each element, writes
 * one. Threads take four columns. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS)
    k_embed_fwd(btcu_embed a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0) return;
    const int32_t *rowpos = row_of<int32_t>(a.rowpos, at.row);
    f4 u = load4(row_of<float>(a.table, *row_of<int32_t>(a.ids, at.row)) + c, n, wide);
#pragma unroll
    for (int i = 0; i < 4; i++) u.v[i] *= a.scale;
    if (a.postab.p) add4(u, load4(row_of<float>(a.postab, rowpos[1]) + c, n, wide));
    drop_row(a.drop, rowpos, at.quad, u);
    store4(row_of<T>(a.y, at.row) + c, u, n, wide);
}

extern "C" cudaError_t btcu_embed_fwd(const btcu_embed *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(a->type,
                 BTCU_LAUNCH(k_embed_fwd<T>, blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                             aligned4(&a->table, sizeof(float)) &&
                                 aligned4(&a->postab, sizeof(float)) &&
                                 aligned4(&a->y, sizeof(T))));
}

#define SEGMENT_THREADS 128
#define RUN 4 /* rows of a segment that are on their way at a time */

/* sum += drop(dy_r) for N rows from place k of `order` on: all that is read is asked for before the
 * first row is used, or each row would wait for memory twice. */
template <int N, class T>
INLINE void add_rows(const btcu_embed &a, int64_t k, int64_t c, int64_t n, int wide, f4 &sum) {
    int64_t r[N];
    int32_t rowpos[N][2] = {};
    f4 d[N];
#pragma unroll
    for (int i = 0; i < N; i++) r[i] = *row_of<int32_t>(a.order, k + i);
    if (a.drop.on) {
#pragma unroll
        for (int i = 0; i < N; i++)
            for (int j = 0; j < 2; j++) rowpos[i][j] = row_of<int32_t>(a.rowpos, r[i])[j];
    }
    if (wide && n >= 4) {
#pragma unroll
        for (int i = 0; i < N; i++) d[i] = load4(row_of<T>(a.dy, r[i]) + c, 4, 1);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) d[i] = load4(row_of<T>(a.dy, r[i]) + c, n, 0);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        drop_row(a.drop, rowpos[i], c / 4, d[i]);
        add4(sum, d[i]);
    }
}

/* dtable[id] = scale sum drop(dy_r) over the rows of one id, in the order of `order`, added to what
 * is there with `add`. A block takes one id (a segment of `order`), its threads take four columns
 * each. Reads each element of dy once, writes 4 bytes for each element of a row that has an id, and
 * with `add` reads as many. */
template <class T>
__global__ void __launch_bounds__(SEGMENT_THREADS, 1) k_embed_bwd(btcu_embed a, int wide) {
    const int32_t *seg = row_of<int32_t>(a.segs, blockIdx.x);
    if (seg[0] < 0) return;
    const int64_t from = seg[1], to = row_of<int32_t>(a.segs, (int64_t)blockIdx.x + 1)[1];
    float *out = row_of<float>(a.table, seg[0]);
    for (int64_t q = threadIdx.x; 4 * q < a.cols; q += SEGMENT_THREADS) {
        const int64_t c = 4 * q, n = a.cols - c;
        f4 sum = zero4();
        int64_t k = from;
        for (; k + RUN <= to; k += RUN) add_rows<RUN, T>(a, k, c, n, wide, sum);
        for (; k < to; k++) add_rows<1, T>(a, k, c, n, wide, sum);
#pragma unroll
        for (int i = 0; i < 4; i++) sum.v[i] *= a.scale;
        if (a.add) add4(sum, load4(out + c, n, wide));
        store4(out + c, sum, n, wide);
    }
}

extern "C" cudaError_t btcu_embed_bwd(const btcu_embed *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->type,
                 BTCU_LAUNCH(k_embed_bwd<T>, a->segments, SEGMENT_THREADS, 0, s, *a,
                             aligned4(&a->dy, sizeof(T)) && aligned4(&a->table, sizeof(float))));
}
