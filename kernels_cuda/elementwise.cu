/* Bias and activation, sums of matrices, rows by index, gates, column sums. Threads take four
 * columns of a row. */
#include "kernels_cuda/common.cuh"

/* ---- bias and activation -----------------------------------------------------------------------
 */

INLINE float activate(int act, float u) {
    if (act == BT_ACT_RELU) return u <= 0.0f ? 0.0f : u; /* NaN passes */
    if (act == BT_ACT_GELU) return u * 0.5f * erfcf(u * -0.70710678118654752f);
    return u;
}

/* y = drop(act(x + bias)). Reads and writes each element once. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS)
    k_bias_act_fwd(btcu_bias_act a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0) return;
    f4 u = load4(row_of<T>(a.x, at.row) + c, n, wide);
    if (a.bias.p) add4(u, load4((const float *)a.bias.p + c, n, wide));
#pragma unroll
    for (int i = 0; i < 4; i++) u.v[i] = activate(a.act, u.v[i]);
    drop_row(a.drop, row_of<int32_t>(a.rowpos, at.row), at.quad, u);
    store4(row_of<T>(a.y, at.row) + c, u, n, wide);
}

template <class T> static int wide_bias_act(const btcu_bias_act *a) {
    return aligned4(&a->x, sizeof(T)) && aligned4(&a->y, sizeof(T)) &&
           aligned4(&a->dy, sizeof(T)) && aligned4(&a->dx, sizeof(T)) &&
           aligned4_row(&a->bias, sizeof(float)) && aligned4(&a->part, sizeof(float));
}

extern "C" cudaError_t btcu_bias_act_fwd(const btcu_bias_act *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(a->type, BTCU_LAUNCH(k_bias_act_fwd<T>, blocks, TILE_THREADS, 0, s, *a,
                                      (uint32_t)tiles, wide_bias_act<T>(a)));
}

/* d drop(act(u)) / du times d, for one quad. relu reads y instead of u: it is positive where the
 * element was kept and active. */
template <class T>
INLINE f4 act_gradient(const btcu_bias_act &a, int64_t row, int64_t quad, int64_t n, int wide) {
    const int64_t c = 4 * quad;
    f4 d = load4(row_of<T>(a.dy, row) + c, n, wide);
    if (a.act == BT_ACT_RELU) {
        const f4 y = load4(row_of<T>(a.y, row) + c, n, wide);
#pragma unroll
        for (int i = 0; i < 4; i++) d.v[i] = y.v[i] > 0.0f ? d.v[i] * a.drop.keep : 0.0f;
        return d;
    }
    drop_row(a.drop, row_of<int32_t>(a.rowpos, row), quad, d);
    if (a.act == BT_ACT_GELU) {
        f4 u = load4(row_of<T>(a.x, row) + c, n, wide);
        if (a.bias.p) add4(u, load4((const float *)a.bias.p + c, n, wide));
#pragma unroll
        for (int i = 0; i < 4; i++)
            d.v[i] *= 0.5f * erfcf(u.v[i] * -0.70710678118654752f) +
                      u.v[i] * 0.39894228040143268f * expf(-0.5f * u.v[i] * u.v[i]);
    }
    return d;
}

/* Adds up what the rows of a tile have for each column; all threads of the block come here. The
 * thread of row 0 has the sum. */
INLINE void sum_tile(f4 &sum, const place &at, f4 (*tmp)[TILE_X]) {
    tmp[at.y][at.x] = sum;
    __syncthreads();
    for (int y = 1; y < TILE_Y && at.y == 0; y++) add4(sum, tmp[y][at.x]);
    __syncthreads();
}

/* dx = drop(dy) act'(x + bias), and its column sums by chunks of rows. Reads dy, for relu also y,
 * for gelu also x, writes dx where it is wanted, and 4 bytes for each column of a chunk where sums
 * are. A block takes a chunk of TILE_X quads of columns. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS)
    k_bias_act_bwd(btcu_bias_act a, uint32_t tiles, int wide) {
    __shared__ f4 tmp[TILE_Y][TILE_X];
    const place at = tile_place(tiles);
    const int64_t chunk = blockIdx.x / tiles, c = 4 * at.quad, n = a.cols - c;
    const int64_t end = (chunk + 1) * a.chunk_rows < a.rows ? (chunk + 1) * a.chunk_rows : a.rows;
    f4 sum = zero4();
    for (int64_t r = chunk * a.chunk_rows + at.y; r < end && n > 0; r += TILE_Y) {
        const f4 d = act_gradient<T>(a, r, at.quad, n, wide);
        if (a.dx.p) store4(row_of<T>(a.dx, r) + c, d, n, wide);
        add4(sum, d);
    }
    if (a.part.p == NULL) return;
    sum_tile(sum, at, tmp);
    if (at.y == 0 && n > 0) store4(row_of<float>(a.part, chunk) + c, sum, n, wide);
}

extern "C" cudaError_t btcu_bias_act_bwd(const btcu_bias_act *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols);
    const int64_t blocks = ceil_div(a->rows, a->chunk_rows) * tiles;
    BTCU_BY_TYPE(a->type, BTCU_LAUNCH(k_bias_act_bwd<T>, blocks, TILE_THREADS, 0, s, *a,
                                      (uint32_t)tiles, wide_bias_act<T>(a)));
}

/* ---- column sums -------------------------------------------------------------------------------
 */

/* out = sum of the chunks (+ out). A block takes 32 columns, a warp every eighth chunk. Reads 4
 * bytes for each element of `part`, with `add` 4 for each column, and writes 4 for each column. */
__global__ void __launch_bounds__(TILE_THREADS) k_colsum(btcu_colsum a) {
    __shared__ float tmp[TILE_Y][TILE_X];
    const int x = (int)(threadIdx.x % TILE_X), y = (int)(threadIdx.x / TILE_X);
    const int64_t c = (int64_t)blockIdx.x * TILE_X + x;
    float sum = 0.0f;
    for (int64_t i = y; i < a.chunks && c < a.cols; i += TILE_Y) sum += a.part[i * a.cols + c];
    tmp[y][x] = sum;
    __syncthreads();
    if (y > 0 || c >= a.cols) return;
    for (int i = 1; i < TILE_Y; i++) sum += tmp[i][x];
    a.out[c] = a.add ? a.out[c] + sum : sum;
}

extern "C" cudaError_t btcu_colsum_run(const btcu_colsum *a, cudaStream_t s) {
    BTCU_LAUNCH(k_colsum, ceil_div(a->cols, TILE_X), TILE_THREADS, 0, s, *a);
}

/* ---- sums, rows --------------------------------------------------------------------------------
 */

/* y = a x + b y. Reads x, with b also y, and writes y. */
template <class X, class Y>
__global__ void __launch_bounds__(TILE_THREADS) k_axpby(btcu_axpby a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0) return;
    f4 u = load4(row_of<X>(a.x, at.row) + c, n, wide), old = zero4();
    Y *y = row_of<Y>(a.y, at.row) + c;
    if (a.b != 0.0f) old = load4(y, n, wide);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u.v[i] *= a.a;
        if (a.b != 0.0f) u.v[i] += a.b * old.v[i];
    }
    store4(y, u, n, wide);
}

template <class X> static cudaError_t axpby_from(const btcu_axpby *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(a->y_type,
                 BTCU_LAUNCH((k_axpby<X, T>), blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                             aligned4(&a->x, sizeof(X)) && aligned4(&a->y, sizeof(T))));
}

extern "C" cudaError_t btcu_axpby_run(const btcu_axpby *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->x_type, return axpby_from<T>(a, s));
}

/* y_r = x[index_r], elements of so many bits; zeros where the index is negative. Writes each
 * element once, reads each once that is no such zero. */
template <class B>
__global__ void __launch_bounds__(TILE_THREADS) k_gather(btcu_gather a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0) return;
    const int64_t from = *row_of<int32_t>(a.index, at.row);
    const B *x = row_of<B>(a.x, from) + c;
    B *y = row_of<B>(a.y, at.row) + c;
    if (wide && n >= 4) {
        pack4<B> u = {{0, 0, 0, 0}};
        if (from >= 0) u = *reinterpret_cast<const pack4<B> *>(x);
        *reinterpret_cast<pack4<B> *>(y) = u;
    } else {
        for (int i = 0; i < 4 && i < n; i++) y[i] = from >= 0 ? x[i] : (B)0;
    }
}

template <class B> static cudaError_t gather_of(const btcu_gather *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_LAUNCH(k_gather<B>, blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                aligned4(&a->x, sizeof(B)) && aligned4(&a->y, sizeof(B)));
}

extern "C" cudaError_t btcu_gather_run(const btcu_gather *a, cudaStream_t s) {
    return a->type == BT_F32 ? gather_of<uint32_t>(a, s) : gather_of<uint16_t>(a, s);
}

/* ---- gates -------------------------------------------------------------------------------------
 */

/* s = sigmoid(z + bias) of a quad. */
template <class T>
INLINE f4 gate_of(const btcu_gate &g, int64_t row, int64_t c, int64_t n, int wide) {
    f4 s = load4(row_of<T>(g.z, row) + c, n, wide);
    if (g.bias.p) add4(s, load4((const float *)g.bias.p + c, n, wide));
#pragma unroll
    for (int i = 0; i < 4; i++) s.v[i] = 1.0f / (1.0f + expf(-s.v[i]));
    return s;
}

template <class T> static int wide_gate(const btcu_gate *g) {
    const btcu_mat *const m[] = {&g->dy, &g->a, &g->b, &g->z, &g->y, &g->da, &g->db, &g->dz};
    int wide = aligned4_row(&g->bias, sizeof(float));
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++) wide = wide && aligned4(m[i], sizeof(T));
    return wide;
}

/* y = s a + (1 - s) b. Reads three elements, writes one for each. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS) k_gate_fwd(btcu_gate g, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = g.cols - c;
    if (at.row >= g.rows || n <= 0) return;
    const f4 s = gate_of<T>(g, at.row, c, n, wide);
    f4 a = load4(row_of<T>(g.a, at.row) + c, n, wide);
    const f4 b = load4(row_of<T>(g.b, at.row) + c, n, wide);
#pragma unroll
    for (int i = 0; i < 4; i++) a.v[i] = s.v[i] * a.v[i] + (1.0f - s.v[i]) * b.v[i];
    store4(row_of<T>(g.y, at.row) + c, a, n, wide);
}

extern "C" cudaError_t btcu_gate_fwd(const btcu_gate *g, cudaStream_t s) {
    const int64_t tiles = tiles_across(g->cols), blocks = ceil_div(g->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(g->type, BTCU_LAUNCH(k_gate_fwd<T>, blocks, TILE_THREADS, 0, s, *g,
                                      (uint32_t)tiles, wide_gate<T>(g)));
}

/* da = s dy, db = (1 - s) dy, dz = s (1 - s) (a - b) dy. Reads four elements, writes three for
 * each.
 */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS) k_gate_bwd(btcu_gate g, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = g.cols - c;
    if (at.row >= g.rows || n <= 0) return;
    f4 s = gate_of<T>(g, at.row, c, n, wide);
    const f4 d = load4(row_of<T>(g.dy, at.row) + c, n, wide);
    f4 a = load4(row_of<T>(g.a, at.row) + c, n, wide);
    f4 b = load4(row_of<T>(g.b, at.row) + c, n, wide);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float gate = s.v[i], rest = 1.0f - gate;
        s.v[i] = gate * rest * (a.v[i] - b.v[i]) * d.v[i];
        a.v[i] = gate * d.v[i];
        b.v[i] = rest * d.v[i];
    }
    store4(row_of<T>(g.da, at.row) + c, a, n, wide);
    store4(row_of<T>(g.db, at.row) + c, b, n, wide);
    store4(row_of<T>(g.dz, at.row) + c, s, n, wide);
}

extern "C" cudaError_t btcu_gate_bwd(const btcu_gate *g, cudaStream_t s) {
    const int64_t tiles = tiles_across(g->cols), blocks = ceil_div(g->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(g->type, BTCU_LAUNCH(k_gate_bwd<T>, blocks, TILE_THREADS, 0, s, *g,
                                      (uint32_t)tiles, wide_gate<T>(g)));
}

/* ---- constants ---------------------------------------------------------------------------------
 */

/* y = beta y, beta 0: y = 0. Writes each element, with beta it reads it. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS) k_scale(btcu_scale a, uint32_t tiles, int wide) {
    const int64_t down = (a.rows + TILE_Y - 1) / TILE_Y;
    const int64_t batch = blockIdx.x / tiles / down, row = blockIdx.x / tiles % down * TILE_Y;
    const int64_t c = 4 * ((int64_t)(blockIdx.x % tiles) * TILE_X + threadIdx.x % TILE_X);
    const int64_t r = row + threadIdx.x / TILE_X, n = a.cols - c;
    if (r >= a.rows || n <= 0) return;
    T *y = row_of<T>(a.y, r) + batch / a.batch1 * a.step0 + batch % a.batch1 * a.step1 + c;
    f4 u = zero4();
    if (a.beta != 0.0f) {
        u = load4(y, n, wide);
#pragma unroll
        for (int i = 0; i < 4; i++) u.v[i] *= a.beta;
    }
    store4(y, u, n, wide);
}

extern "C" cudaError_t btcu_scale_run(const btcu_scale *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols);
    const int64_t blocks = a->batch0 * a->batch1 * ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_BY_TYPE(a->type,
                 BTCU_LAUNCH(k_scale<T>, blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                             aligned4(&a->y, sizeof(T)) && a->step0 % 4 == 0 && a->step1 % 4 == 0));
}

/* ---- is anything there? ------------------------------------------------------------------------
 */

/* out = a + b. Writes 4 bytes. */
__global__ void k_add(int *out, int a, int b) { *out = a + b; }

extern "C" cudaError_t btcu_add(int *out, int a, int b, cudaStream_t s) {
    BTCU_LAUNCH(k_add, 1, 1, 0, s, out, a, b);
}
