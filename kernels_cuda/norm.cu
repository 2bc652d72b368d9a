/* Layer normalisation, with the residual before it where that is wanted. A warp takes a row; rows
 * of up to 4 * 32 * KEPT columns stay in registers, so that each element is read once, longer ones
 * are read again. */
#include "kernels_cuda/common.cuh"

#define WARPS 4 /* rows of a block */
#define KEPT 8  /* quads of a lane: rows of 1,024 columns */

/* f(i, quad) for each of a lane's quads; i counts them where they are kept, in unrolled code, so
 * that what is indexed by it are registers. */
template <int KEEP, class F> INLINE void each_quad(int64_t quads, F f) {
    const int lane = (int)(threadIdx.x % 32);
    if (KEEP > 0) {
#pragma unroll
        for (int i = 0; i < KEEP; i++)
            if (lane + 32 * i < quads) f(i, (int64_t)lane + 32 * i);
    } else {
        for (int64_t q = lane; q < quads; q += 32) f(0, q);
    }
}

/* ---- forward -----------------------------------------------------------------------------------
 */

/* With r: r = res + drop(x + bias), else r is x and not written. With y:
 * y = (r - mean) rstd gamma + beta, from r as it is stored. A lane reads again only what it wrote
 * itself, so that y and r may lie where x and res are. Reads x, with r also res, writes r and y
 * where they are wanted, and with y 8 bytes for each row; longer rows than are kept read r, or x
 * where there is none, twice more for y. */
template <class T, int KEEP>
__global__ void __launch_bounds__(32 * WARPS, 1) k_norm_fwd(btcu_norm_fwd a, int wide) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= a.rows) return; /* whole warps leave */
    const int64_t cols = a.cols, quads = (cols + 3) / 4;
    const T *x = row_of<T>(a.x, row), *res = row_of<T>(a.res, row);
    T *r = row_of<T>(a.r, row), *y = row_of<T>(a.y, row);
    const T *in = r ? r : x;
    const float *bias = (const float *)a.bias.p;
    const int32_t *rowpos = row_of<int32_t>(a.rowpos, row);
    f4 kept[KEEP > 0 ? KEEP : 1];
    float sum = 0.0f;
    each_quad<KEEP>(quads, [&](int i, int64_t q) {
        const int64_t c = 4 * q, n = cols - c;
        f4 u = load4(x + c, n, wide);
        if (r) {
            if (bias) add4(u, load4(bias + c, n, wide));
            drop_row(a.drop, rowpos, q, u);
            add4(u, load4(res + c, n, wide));
            store4(r + c, u, n, wide);
            u = rounded4<T>(u);
        }
        if (KEEP > 0) kept[i] = u;
        sum += sum4(u, n);
    });
    if (y == NULL) return;
    const float mean = warp_sum(sum) / (float)cols;
    sum = 0.0f;
    each_quad<KEEP>(quads, [&](int i, int64_t q) {
        f4 u = KEEP > 0 ? kept[i] : load4(in + 4 * q, cols - 4 * q, wide);
#pragma unroll
        for (int k = 0; k < 4; k++) u.v[k] = (u.v[k] - mean) * (u.v[k] - mean);
        sum += sum4(u, cols - 4 * q);
    });
    const float rstd = 1.0f / sqrtf(warp_sum(sum) / (float)cols + a.eps);
    each_quad<KEEP>(quads, [&](int i, int64_t q) {
        const int64_t c = 4 * q, n = cols - c;
        f4 u = KEEP > 0 ? kept[i] : load4(in + c, n, wide);
        const f4 gamma = load4((const float *)a.gamma.p + c, n, wide);
        const f4 beta = load4((const float *)a.beta.p + c, n, wide);
#pragma unroll
        for (int k = 0; k < 4; k++) u.v[k] = (u.v[k] - mean) * rstd * gamma.v[k] + beta.v[k];
        store4(y + c, u, n, wide);
    });
    if (threadIdx.x % 32 == 0) {
        float *stats = row_of<float>(a.stats, row);
        stats[0] = mean;
        stats[1] = rstd;
    }
}

template <class T> static cudaError_t norm_fwd(const btcu_norm_fwd *a, cudaStream_t s) {
    const int64_t blocks = ceil_div(a->rows, WARPS);
    const int wide =
        aligned4(&a->x, sizeof(T)) && aligned4(&a->res, sizeof(T)) && aligned4(&a->r, sizeof(T)) &&
        aligned4(&a->y, sizeof(T)) && aligned4_row(&a->bias, sizeof(float)) &&
        aligned4_row(&a->gamma, sizeof(float)) && aligned4_row(&a->beta, sizeof(float));
    if (a->cols <= 4 * 32 * KEPT)
        BTCU_LAUNCH((k_norm_fwd<T, KEPT>), blocks, 32 * WARPS, 0, s, *a, wide);
    BTCU_LAUNCH((k_norm_fwd<T, 0>), blocks, 32 * WARPS, 0, s, *a, wide);
}

extern "C" cudaError_t btcu_norm_fwd_run(const btcu_norm_fwd *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->type, return norm_fwd<T>(a, s));
}

/* ---- backward ----------------------------------------------------------------------------------
 */

template <class T> static int wide_bwd(const btcu_norm_bwd *a) {
    return aligned4(&a->dy, sizeof(T)) && aligned4(&a->x, sizeof(T)) &&
           aligned4(&a->dres, sizeof(T)) && aligned4(&a->dr, sizeof(T)) &&
           aligned4(&a->dx, sizeof(T)) && aligned4_row(&a->gamma, sizeof(float));
}

/* dgamma = sum dy h and dbeta = sum dy with h = (x - mean) rstd, by chunks of rows. Reads dy and x
 * once and 8 bytes of a row for every TILE_X quads, writes 8 bytes for each column of a chunk. A
 * block takes a chunk of TILE_X quads of columns. */
template <class T>
__global__ void __launch_bounds__(TILE_THREADS)
    k_norm_bwd_params(btcu_norm_bwd a, uint32_t tiles, int wide) {
    __shared__ f4 tmp[2][TILE_Y][TILE_X];
    const place at = tile_place(tiles);
    const int64_t chunk = blockIdx.x / tiles, c = 4 * at.quad, n = a.cols - c;
    const int64_t end = (chunk + 1) * a.chunk_rows < a.rows ? (chunk + 1) * a.chunk_rows : a.rows;
    f4 sum[2] = {zero4(), zero4()};
    for (int64_t r = chunk * a.chunk_rows + at.y; r < end && n > 0; r += TILE_Y) {
        const float *stats = row_of<float>(a.stats, r);
        const float mean = stats[0], rstd = stats[1];
        const f4 d = load4(row_of<T>(a.dy, r) + c, n, wide);
        const f4 x = load4(row_of<T>(a.x, r) + c, n, wide);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            sum[0].v[k] += d.v[k] * ((x.v[k] - mean) * rstd);
            sum[1].v[k] += d.v[k];
        }
    }
    tmp[0][at.y][at.x] = sum[0];
    tmp[1][at.y][at.x] = sum[1];
    __syncthreads();
    if (at.y > 1 || n <= 0) return; /* rows 0 and 1 of the tile add up one sum each */
    float *part = a.part[at.y] + chunk * a.cols + c;
    f4 all = tmp[at.y][0][at.x];
    for (int y = 1; y < TILE_Y; y++) add4(all, tmp[at.y][y][at.x]);
    store4(part, all, n, a.cols % 4 == 0);
}

extern "C" cudaError_t btcu_norm_bwd_params(const btcu_norm_bwd *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols);
    const int64_t blocks = ceil_div(a->rows, a->chunk_rows) * tiles;
    BTCU_BY_TYPE(a->type, BTCU_LAUNCH(k_norm_bwd_params<T>, blocks, TILE_THREADS, 0, s, *a,
                                      (uint32_t)tiles, wide_bwd<T>(a)));
}

/* With g = dy gamma: dr = rstd (g - mean(g) - h mean(g h)) + dres, and dx = drop(dr), of dr as it
 * is stored, where it is wanted. Reads dy, x and 8 bytes of each row, dres where there is one,
 * writes dr and dx where it is wanted; longer rows than are kept read dy and x twice. */
template <class T, int KEEP>
__global__ void __launch_bounds__(32 * WARPS) k_norm_bwd(btcu_norm_bwd a, int wide) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= a.rows) return; /* whole warps leave */
    const int64_t cols = a.cols, quads = (cols + 3) / 4;
    const T *dy = row_of<T>(a.dy, row), *x = row_of<T>(a.x, row), *dres = row_of<T>(a.dres, row);
    T *dr = row_of<T>(a.dr, row), *dx = row_of<T>(a.dx, row);
    const float *stats = row_of<float>(a.stats, row), *gamma = (const float *)a.gamma.p;
    const float mean = stats[0], rstd = stats[1];
    f4 kept_g[KEEP > 0 ? KEEP : 1], kept_h[KEEP > 0 ? KEEP : 1];
    const auto load = [&](int64_t q, f4 &g, f4 &h) {
        const int64_t c = 4 * q, n = cols - c;
        const f4 gain = load4(gamma + c, n, wide);
        g = load4(dy + c, n, wide);
        h = load4(x + c, n, wide);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            g.v[k] *= gain.v[k];
            h.v[k] = (h.v[k] - mean) * rstd;
        }
    };
    float sum_g = 0.0f, sum_gh = 0.0f;
    each_quad<KEEP>(quads, [&](int i, int64_t q) {
        f4 g, h, gh;
        load(q, g, h);
#pragma unroll
        for (int k = 0; k < 4; k++) gh.v[k] = g.v[k] * h.v[k];
        sum_g += sum4(g, cols - 4 * q);
        sum_gh += sum4(gh, cols - 4 * q);
        if (KEEP > 0) kept_g[i] = g, kept_h[i] = h;
    });
    const float mean_g = warp_sum(sum_g) / (float)cols, mean_gh = warp_sum(sum_gh) / (float)cols;
    each_quad<KEEP>(quads, [&](int i, int64_t q) {
        const int64_t c = 4 * q, n = cols - c;
        f4 g, h;
        if (KEEP > 0)
            g = kept_g[i], h = kept_h[i];
        else
            load(q, g, h);
#pragma unroll
        for (int k = 0; k < 4; k++) g.v[k] = rstd * (g.v[k] - mean_g - h.v[k] * mean_gh);
        if (dres) add4(g, load4(dres + c, n, wide));
        store4(dr + c, g, n, wide);
        if (dx == NULL) return;
        g = rounded4<T>(g);
        drop_row(a.drop, row_of<int32_t>(a.rowpos, row), q, g);
        store4(dx + c, g, n, wide);
    });
}

template <class T> static cudaError_t norm_bwd(const btcu_norm_bwd *a, cudaStream_t s) {
    const int64_t blocks = ceil_div(a->rows, WARPS);
    if (a->cols <= 4 * 32 * KEPT)
        BTCU_LAUNCH((k_norm_bwd<T, KEPT>), blocks, 32 * WARPS, 0, s, *a, wide_bwd<T>(a));
    BTCU_LAUNCH((k_norm_bwd<T, 0>), blocks, 32 * WARPS, 0, s, *a, wide_bwd<T>(a));
}

extern "C" cudaError_t btcu_norm_bwd_run(const btcu_norm_bwd *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->type, return norm_bwd<T>(a, s));
}
