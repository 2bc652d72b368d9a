/* Sums of squares, the scalar block, and AdamW over whole or compact gradients, with moments in
 * fp32 or in 8 bits; all else is fp32. */
#include "kernels_cuda/common.cuh"

#define THREADS 256

/* ---- sums of squares ---------------------------------------------------------------------------
 */

/* Squares are added up in three ranges, each scaled so that no sum of BT_SUMSQ_BLOCK of them leaves
 * fp32 (Blue, "A portable Fortran program to find the Euclidean norm of a vector", 1978): large
 * ones as (x 2^-80)^2, small ones as (x 2^100)^2. */
#define LARGE 36028797018963968.0f            /* 2^55 */
#define SMALL 8.8817841970012523e-16f         /* 2^-50 */
#define DOWN 8.2718061255302767e-25f          /* 2^-80 */
#define UP 1267650600228229401496703205376.0f /* 2^100 */

/* part[b] = (s, q): the sum of squares of block b is s^2 q; q is NaN where something is not finite.
 * A block of threads for each. Reads 4 bytes for each element, writes 8 for each block. */
__global__ void __launch_bounds__(THREADS)
    k_sumsq(const float *x, int64_t n, btcu_mat part, int wide) {
    __shared__ float tmp[THREADS / 32];
    const int64_t from = (int64_t)blockIdx.x * BT_SUMSQ_BLOCK;
    const int64_t count = n - from < BT_SUMSQ_BLOCK ? n - from : BT_SUMSQ_BLOCK;
    float large = 0.0f, middle = 0.0f, small = 0.0f;
    for (int64_t i = 4 * threadIdx.x; i < count; i += 4 * THREADS) {
        const f4 u = load4(x + from + i, count - i, wide);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float size = fabsf(u.v[k]);
            if (!(size <= LARGE)) /* NaN too */
                large += (u.v[k] * DOWN) * (u.v[k] * DOWN);
            else if (size >= SMALL)
                middle += u.v[k] * u.v[k];
            else
                small += (u.v[k] * UP) * (u.v[k] * UP);
        }
    }
    large = block_sum(large, tmp);
    middle = block_sum(middle, tmp);
    small = block_sum(small, tmp);
    if (threadIdx.x != 0) return;
    float *out = row_of<float>(part, blockIdx.x);
    if (large != 0.0f) { /* NaN too; infinity squares to infinity */
        out[0] = 1.0f / DOWN;
        out[1] = isfinite(large) ? large + middle * DOWN * DOWN : NAN;
    } else if (middle > 0.0f) {
        out[0] = 1.0f;
        out[1] = middle + small / UP / UP;
    } else {
        out[0] = 1.0f / UP;
        out[1] = small;
    }
}

extern "C" cudaError_t btcu_sumsq(const float *x, int64_t n, btcu_mat part, cudaStream_t s) {
    const btcu_mat row = {(void *)x, 0};
    BTCU_LAUNCH(k_sumsq, ceil_div(n, BT_SUMSQ_BLOCK), THREADS, 0, s, x, n, part,
                aligned4_row(&row, sizeof(float)));
}

/* ---- the scalar block --------------------------------------------------------------------------
 */

/* The scale of the next update's loss (core/ops/op_args.h). */
INLINE void next_scale(float *scalars, int finite, int growth_interval, float scale_max) {
    float *scale = &scalars[BT_SCALAR_LOSS_SCALE], *good = &scalars[BT_SCALAR_GOOD];
    if (growth_interval == 0) return;
    *good = finite ? *good + 1.0f : 0.0f;
    if (!finite) *scale *= 0.5f;
    if (*good < (float)growth_interval) return;
    *scale = fminf(2.0f * *scale, scale_max);
    *good = 0.0f;
}

/* norm = sqrt(sum s^2 q) / loss_scale, taken over the largest s, first divided by the loss scale,
 * so that nothing overflows; factor = min(1, clip / norm) / loss_scale; skip where the norm is not
 * finite. One block. Reads s of each part, then s and q, 12 bytes in all, and two scalars; writes
 * three scalars. With a growth interval it reads one more and writes one or two: the count of good
 * updates and the scale. */
__global__ void __launch_bounds__(THREADS)
    k_update_scalars(btcu_mat part, int64_t parts, float *scalars, int growth_interval,
                     float scale_max) {
    __shared__ float tmp[THREADS / 32];
    float most = 0.0f, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS)
        most = fmaxf(most, row_of<float>(part, i)[0]);
    most = block_max(most, tmp);
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) {
        const float *p = row_of<float>(part, i);
        const float s = most > 0.0f ? p[0] / most : 1.0f;
        sum += s * p[1] * s; /* s^2 alone may vanish where s^2 q does not */
    }
    sum = block_sum(sum, tmp);
    if (threadIdx.x != 0) return;
    const float scale = scalars[BT_SCALAR_LOSS_SCALE], clip = scalars[BT_SCALAR_CLIP];
    const float norm = isnan(sum) ? sum : most / scale * sqrtf(sum);
    scalars[BT_SCALAR_NORM] = norm;
    scalars[BT_SCALAR_FACTOR] =
        !isfinite(norm) ? 0.0f : (clip > 0.0f && norm > clip ? clip / norm : 1.0f) / scale;
    scalars[BT_SCALAR_SKIP] = isfinite(norm) ? 0.0f : 1.0f;
    next_scale(scalars, isfinite(norm), growth_interval, scale_max);
}

extern "C" cudaError_t btcu_update_scalars(btcu_mat part, int64_t parts, float *scalars,
                                           const bt_update_scalars_params *p, cudaStream_t s) {
    BTCU_LAUNCH(k_update_scalars, 1, THREADS, 0, s, part, parts, scalars, p->growth_interval,
                p->scale_max);
}

/* ---- AdamW -------------------------------------------------------------------------------------
 */

/* The arithmetic of a step of one element (core/ops/op_args.h); gives the new weight. */
INLINE float step(const btcu_adamw &a, float g, float weight, float &m, float &v) {
    const float *s = a.scalars;
    const float lr = s[BT_SCALAR_LR];
    g *= s[BT_SCALAR_FACTOR];
    if (!a.decoupled) g += a.decay * weight;
    m = a.beta1 * m + a.rest1 * g;
    v = a.beta2 * v + a.rest2 * g * g;
    if (a.decoupled) weight *= 1.0f - lr * a.decay;
    return weight -
           lr * (m / s[BT_SCALAR_CORRECTION1]) / (sqrtf(v / s[BT_SCALAR_CORRECTION2]) + a.eps);
}

/* A step of four elements, of which the first n are there. */
INLINE void step4(const btcu_adamw &a, const f4 &g, float *w, float *m, float *v, int64_t n,
                  int wide) {
    f4 weight = load4(w, n, wide), m1 = load4(m, n, wide), m2 = load4(v, n, wide);
#pragma unroll
    for (int i = 0; i < 4; i++) weight.v[i] = step(a, g.v[i], weight.v[i], m1.v[i], m2.v[i]);
    store4(w, weight, n, wide);
    store4(m, m1, n, wide);
    store4(v, m2, n, wide);
}

/* A flat range. Reads 16 bytes, writes 12 for each element. */
__global__ void __launch_bounds__(THREADS) k_adamw(btcu_adamw a, int wide) {
    const int64_t c = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x), n = a.cols - c;
    if (n <= 0 || a.scalars[BT_SCALAR_SKIP] != 0.0f) return;
    step4(a, load4((const float *)a.g.p + c, n, wide), (float *)a.w.p + c, (float *)a.m.p + c,
          (float *)a.v.p + c, n, wide);
}

extern "C" cudaError_t btcu_adamw_run(const btcu_adamw *a, cudaStream_t s) {
    BTCU_LAUNCH(k_adamw, ceil_div(a->cols, 4 * THREADS), THREADS, 0, s, *a,
                aligned4_row(&a->g, sizeof(float)) && aligned4_row(&a->w, sizeof(float)) &&
                    aligned4_row(&a->m, sizeof(float)) && aligned4_row(&a->v, sizeof(float)));
}

/* The place of `row` in the ascending index of `kept` entries; -1: it is not there. */
INLINE int64_t find_row(const btcu_mat &index, int64_t kept, int64_t row) {
    int64_t low = 0, high = kept;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (*row_of<int32_t>(index, middle) < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < kept && *row_of<int32_t>(index, low) == row ? low : -1;
}

/* Rows of a table from first_row on whose gradient is compact: row index[k] has row k of g, all
 * others 0. Threads find the place of their row in the index by halving. Reads 12 bytes, writes 12
 * for each element of the table, and reads 4 for each of g. */
__global__ void __launch_bounds__(TILE_THREADS)
    k_adamw_rows(btcu_adamw a, uint32_t tiles, int wide) {
    const place at = tile_place(tiles);
    const int64_t c = 4 * at.quad, n = a.cols - c;
    if (at.row >= a.rows || n <= 0 || a.scalars[BT_SCALAR_SKIP] != 0.0f) return;
    const int64_t k = find_row(a.index, a.kept, a.first_row + at.row);
    const f4 g = k >= 0 ? load4(row_of<float>(a.g, k) + c, n, wide) : zero4();
    step4(a, g, row_of<float>(a.w, at.row) + c, row_of<float>(a.m, at.row) + c,
          row_of<float>(a.v, at.row) + c, n, wide);
}

extern "C" cudaError_t btcu_adamw_rows(const btcu_adamw *a, cudaStream_t s) {
    const int64_t tiles = tiles_across(a->cols), blocks = ceil_div(a->rows, TILE_Y) * tiles;
    BTCU_LAUNCH(k_adamw_rows, blocks, TILE_THREADS, 0, s, *a, (uint32_t)tiles,
                aligned4(&a->g, sizeof(float)) && aligned4(&a->w, sizeof(float)) &&
                    aligned4(&a->m, sizeof(float)) && aligned4(&a->v, sizeof(float)));
}

/* ---- moments in 8 bits -------------------------------------------------------------------------
 */

#define LANES 32
#define WARPS (THREADS / LANES)
#define QUADS (BT_ADAMW8_BLOCK / 4 / LANES) /* of a lane */

/* scale (c / most)^4, with the sign of c. */
INLINE float widen_code(int c, float scale, float most) {
    const float t = fabsf((float)c) / most, u = t * t;
    return copysignf(scale * (u * u), (float)c);
}

/* most (|x| / scale)^(1/4), rounded; `most` where the scale is not finite, 0 where it is 0. */
INLINE int root_code(float x, float scale, float most) {
    const float t = sqrtf(sqrtf(fabsf(x) / scale));
    return scale == 0.0f ? 0 : (int)(most * (t <= 1.0f ? t : 1.0f) + 0.5f);
}

/* Up to four codes; what is not there is 0. */
INLINE pack4<uint8_t> load_codes(const uint8_t *p, int64_t n, int wide) {
    if (wide && n >= 4) return *reinterpret_cast<const pack4<uint8_t> *>(p);
    pack4<uint8_t> c;
#pragma unroll
    for (int i = 0; i < 4; i++) c.v[i] = i < n ? p[i] : 0;
    return c;
}

INLINE void store_codes(uint8_t *p, const pack4<uint8_t> &c, int64_t n, int wide) {
    if (wide && n >= 4) {
        *reinterpret_cast<pack4<uint8_t> *>(p) = c;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (i < n) p[i] = c.v[i];
    }
}

/* The gradient of four elements of a table with a compact one, from element `at` of w on. */
INLINE f4 spread_gradient(const btcu_adamw &a, int64_t at, int64_t n) {
    f4 g = zero4();
    int64_t row = -1, k = -1;
    for (int i = 0; i < 4 && i < n; i++) {
        const int64_t here = (at + i) / a.cols;
        if (here != row) k = find_row(a.index, a.kept, a.first_row + here);
        row = here;
        if (k >= 0) g.v[i] = row_of<float>(a.g, k)[(at + i) % a.cols];
    }
    return g;
}

/* adamw with m and v as codes, their scales by blocks of BT_ADAMW8_BLOCK elements. A warp takes a
 * block. Reads 10 bytes, writes 6 for each element; with an index it reads 6, and 4 for each
 * element of g's rows; reads and writes 8 for each block. */
__global__ void __launch_bounds__(THREADS) k_adamw8(btcu_adamw8 a, int wide, int wide_codes) {
    const int lane = (int)(threadIdx.x % LANES);
    const int64_t block = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    const int64_t from = block * BT_ADAMW8_BLOCK, left = a.n - from;
    if (left <= 0 || a.a.scalars[BT_SCALAR_SKIP] != 0.0f) return; /* whole warps leave */
    f4 m[QUADS], v[QUADS];
    float most_m = 0.0f, most_v = 0.0f;
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const int64_t at = from + 4 * (lane + LANES * q), n = a.n - at;
        const pack4<uint8_t> mc = load_codes(a.m + at, n, wide_codes);
        const pack4<uint8_t> vc = load_codes(a.v + at, n, wide_codes);
        const f4 g =
            a.a.index.p ? spread_gradient(a.a, at, n) : load4((const float *)a.a.g.p + at, n, wide);
        f4 w = load4((const float *)a.a.w.p + at, n, wide);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m[q].v[i] = widen_code((int8_t)mc.v[i], a.ms[block], 127.0f);
            v[q].v[i] = widen_code(vc.v[i], a.vs[block], 255.0f);
            w.v[i] = step(a.a, g.v[i], w.v[i], m[q].v[i], v[q].v[i]);
            if (i >= n) continue; /* what is not there has no say in the scales */
            most_m = fmaxf(most_m, fabsf(m[q].v[i]));
            most_v = fmaxf(most_v, v[q].v[i]);
        }
        store4((float *)a.a.w.p + at, w, n, wide);
    }
    most_m = warp_max(most_m);
    most_v = warp_max(most_v);
#pragma unroll
    for (int q = 0; q < QUADS; q++) {
        const int64_t at = from + 4 * (lane + LANES * q), n = a.n - at;
        pack4<uint8_t> mc, vc;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int c = root_code(m[q].v[i], most_m, 127.0f);
            const int d = root_code(v[q].v[i], most_v, 255.0f);
            mc.v[i] = (uint8_t)(m[q].v[i] < 0.0f ? -c : c);
            vc.v[i] = (uint8_t)(d == 0 && v[q].v[i] > 0.0f ? 1 : d);
        }
        store_codes(a.m + at, mc, n, wide_codes);
        store_codes(a.v + at, vc, n, wide_codes);
    }
    __syncwarp(); /* all have read the scales: a shuffle orders no memory */
    if (lane != 0) return;
    a.ms[block] = most_m;
    a.vs[block] = most_v;
}

extern "C" cudaError_t btcu_adamw8_run(const btcu_adamw8 *a, cudaStream_t s) {
    const int codes = (uintptr_t)a->m % 4 == 0 && (uintptr_t)a->v % 4 == 0;
    BTCU_LAUNCH(k_adamw8, ceil_div(a->n, BT_ADAMW8_BLOCK * WARPS), THREADS, 0, s, *a,
                aligned4_row(&a->a.g, sizeof(float)) && aligned4_row(&a->a.w, sizeof(float)),
                codes);
}
