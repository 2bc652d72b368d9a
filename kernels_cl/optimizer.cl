/* Sums of squares, the scalar block, and AdamW over whole or compact gradients, with moments in fp32
 * or in 8 bits. */

#define BLOCK 65536

/* part[b] = (s, q): the sum of squares of block b is s^2 q with s the largest magnitude; q is NaN
 * where something is not finite. One group takes a block. Reads 8 bytes for each element, the
 * second half from the caches where they hold 256 KiB. */
__kernel GROUP(WG) void k_sumsq(__global const float *x_base, const ulong x_off, const long n,
                                MAT(part)) {
    __local float tmp[WG];
    CUSE(x);
    USE(part);
    const long b = get_group_id(0), from = b * BLOCK, to = min(n, from + BLOCK);
    float most = 0.0f, bad = 0.0f, sum = 0.0f;
    for (long i = from + get_local_id(0); i < to; i += WG) {
        most = fmax(most, fabs(x[i]));
        if (!isfinite(x[i])) bad = 1.0f;
    }
    const float s = group_max(most, tmp);
    const int finite = group_max(bad, tmp) == 0.0f;
    for (long i = from + get_local_id(0); finite && s > 0.0f && i < to;) {
        float some = 0.0f;
        for (int k = 0; k < 8 * RUN && i < to; k++, i += WG) some += (x[i] / s) * (x[i] / s);
        sum += some;
    }
    const float q = group_sum(sum, tmp);
    if (get_local_id(0) == 0) {
        part[b * part_ld] = finite ? s : 1.0f;
        part[b * part_ld + 1] = finite ? q : NAN;
    }
}

/* norm = sqrt(sum s^2 q) / loss_scale, taken over the largest s so that nothing overflows;
 * factor = min(1, clip / norm) / loss_scale; skip where the norm is not finite; then the loss scale
 * of the next update. One group. */
__kernel GROUP(WG) void k_update_scalars(CMAT(part), const long parts,
                                         __global float *scalars_base, const ulong scalars_off,
                                         const int growth_interval, const float scale_max) {
    __local float tmp[WG];
    CUSE(part);
    USE(scalars);
    float most = 0.0f, sum = 0.0f;
    for (long i = get_local_id(0); i < parts; i += WG) most = fmax(most, part[i * part_ld]);
    most = group_max(most, tmp);
    for (long i = get_local_id(0); i < parts; i += WG) {
        const float s = most > 0.0f ? part[i * part_ld] / most : 1.0f;
        sum += s * s * part[i * part_ld + 1];
    }
    sum = group_sum(sum, tmp);
    if (get_local_id(0) != 0) return;
    const float scale = scalars[LOSS_SCALE], clip = scalars[CLIP];
    const float norm = isnan(sum) ? sum : most * sqrt(sum) / scale;
    const int finite = isfinite(norm);
    scalars[NORM] = norm;
    scalars[FACTOR] = !finite ? 0.0f : (clip > 0.0f && norm > clip ? clip / norm : 1.0f) / scale;
    scalars[SKIP] = finite ? 0.0f : 1.0f;
    if (growth_interval == 0) return;
    const float good = finite ? scalars[GOOD] + 1.0f : 0.0f;
    const int grows = good >= (float)growth_interval;
    scalars[GOOD] = grows ? 0.0f : good;
    scalars[LOSS_SCALE] = !finite ? 0.5f * scale : grows ? fmin(2.0f * scale, scale_max) : scale;
}

#define ADAMW \
    const float beta1, const float rest1, const float beta2, const float rest2, const float eps, \
        const float decay, const int decoupled
#define ADAMW_ARGS beta1, rest1, beta2, rest2, eps, decay, decoupled

/* The arithmetic of a step of four elements (core/ops/op_args.h); gives the new weights. */
static float4 adam4(float4 grad, __global const float *scalars, float4 weight, float4 *m, float4 *v,
                    ADAMW) {
    grad *= scalars[FACTOR];
    if (!decoupled) grad += decay * weight;
    *m = beta1 * *m + rest1 * grad;
    *v = beta2 * *v + rest2 * grad * grad;
    if (decoupled) weight *= 1.0f - scalars[LR] * decay;
    return weight -
           scalars[LR] * (*m / scalars[CORRECTION1]) / (sqrt(*v / scalars[CORRECTION2]) + eps);
}

/* A step of four elements, of which the first n are there. */
static void step4(float4 grad, __global const float *scalars, __global float *w, __global float *m,
                  __global float *v, long n, ADAMW) {
    float4 m1 = load4(m, n), m2 = load4(v, n);
    store4(adam4(grad, scalars, load4(w, n), &m1, &m2, ADAMW_ARGS), w, n);
    store4(m1, m, n);
    store4(m2, v, n);
}

/* First entry of an ascending index that is `row` or more. */
static long find_row(__global const int *index, long ld, long kept, long row) {
    long low = 0, high = kept;
    while (low < high) {
        const long middle = (low + high) / 2;
        if (index[middle * ld] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A flat range. Reads 16 bytes, writes 12 for each element. */
__kernel GROUP(WG) void k_adamw(__global const float *g_base, const ulong g_off,
                                __global const float *scalars_base, const ulong scalars_off,
                                __global float *w_base, const ulong w_off, __global float *m_base,
                                const ulong m_off, __global float *v_base, const ulong v_off,
                                const long n, ADAMW) {
    CUSE(scalars);
    const long c = 4 * (long)get_global_id(0), left = n - c;
    if (left <= 0 || scalars[SKIP] != 0.0f) return;
    CUSE(g) + c;
    USE(w) + c;
    USE(m) + c;
    USE(v) + c;
    step4(load4(g, left), scalars, w, m, v, left, ADAMW_ARGS);
}

/* Rows of a table from first_row on whose gradient is compact: row index[k] has row k of g, all
 * others 0.
 * index ascends; a row finds its place in it by halving. Reads 12 bytes, writes 12 for each element
 * of the table, and reads 4 for each of g. */
__kernel GROUP(WG) void k_adamw_rows(CMAT(g), IMAT(index), __global const float *scalars_base,
                                     const ulong scalars_off, MAT(w), MAT(m), MAT(v),
                                     const long rows, const long cols, const long kept,
                                     const long first_row, ADAMW) {
    CUSE(g);
    IUSE(index);
    CUSE(scalars);
    USE(w);
    USE(m);
    USE(v);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows || scalars[SKIP] != 0.0f) return;
    const long c = 4 * (long)q, n = cols - c;
    const long row = first_row + (long)r, k = find_row(index, index_ld, kept, row);
    const int there = k < kept && index[k * index_ld] == row;
    const float4 grad = there ? load4(g + k * g_ld + c, n) : (float4)(0.0f);
    step4(grad, scalars, w + r * w_ld + c, m + r * m_ld + c, v + r * v_ld + c, n, ADAMW_ARGS);
}

/* ---- moments in 8 bits ------------------------------------------------------------------------ */

#define CODES(x) __global uchar *x##_base, const ulong x##_off
#define BLOCK8 256
#define QUADS8 (BLOCK8 / 4)

/* Up to four codes; what is not there is 0. */
static uchar4 load_codes(__global const uchar *p, long n) {
    return (uchar4)(n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0);
}

static void store_codes(uchar4 x, __global uchar *p, long n) {
    if (n > 0) p[0] = x.x;
    if (n > 1) p[1] = x.y;
    if (n > 2) p[2] = x.z;
    if (n > 3) p[3] = x.w;
}

/* scale (c / most)^4, with the sign of c. */
static float4 widen4(float4 c, float scale, float most) {
    const float4 t = fabs(c) / most, u = t * t;
    return copysign(scale * (u * u), c);
}

/* most (a / scale)^(1/4), rounded; `most` where the scale is not finite. */
static int4 root_codes(float4 a, float scale, float most) {
    const float4 t = sqrt(sqrt(a / scale));
    return convert_int4(most * select((float4)(1.0f), t, islessequal(t, (float4)(1.0f))) + 0.5f);
}

/* Four elements of the gradient of a table from `at` behind first_row on. */
static float4 spread4(__global const float *g, long g_ld, __global const int *index, long index_ld,
                      long cols, long kept, long first_row, long at, long n) {
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    ulong row, col;
    split((ulong)at, (ulong)cols, &row, &col);
    row += (ulong)first_row;
    long k = find_row(index, index_ld, kept, (long)row);
    for (int i = 0; i < 4 && i < n; i++) {
        if (k < kept && index[k * index_ld] == (long)row) x[i] = g[k * g_ld + (long)col];
        if ((long)++col < cols) continue;
        col = 0;
        row++;
        while (k < kept && index[k * index_ld] < (long)row) k++;
    }
    return (float4)(x[0], x[1], x[2], x[3]);
}

/* One group steps one block: it keeps the new moments in local memory until their largest are
 * known. Reads 10 bytes and writes 6 for each element, those of g less where an index leaves rows
 * out. */
__kernel GROUP(WG) void k_adamw8(CMAT(g), IMAT(index), __global const float *scalars_base,
                                 const ulong scalars_off, __global float *w_base, const ulong w_off,
                                 CODES(m), __global float *ms_base, const ulong ms_off, CODES(v),
                                 __global float *vs_base, const ulong vs_off, const long n,
                                 const long cols, const long kept, const long first_row, ADAMW) {
    __local float4 new_m[QUADS8], new_v[QUADS8];
    __local float tmp[WG];
    CUSE(g);
    IUSE(index);
    CUSE(scalars);
    if (scalars[SKIP] != 0.0f) return;
    const long b = get_group_id(0), from = b * BLOCK8;
    __global float *w = w_base + w_off + from;
    __global uchar *m = m_base + m_off + from, *v = v_base + v_off + from;
    __global float *ms = ms_base + ms_off + b, *vs = vs_base + vs_off + b;
    const float old_ms = *ms, old_vs = *vs;
    float most_m = 0.0f, most_v = 0.0f;
    for (int q = get_local_id(0); q < QUADS8; q += WG) {
        const long at = 4 * q, left = n - from - at;
        if (left <= 0) break;
        float4 x = widen4(convert_float4(as_char4(load_codes(m + at, left))), old_ms, 127.0f);
        float4 y = widen4(convert_float4(load_codes(v + at, left)), old_vs, 255.0f);
        const float4 grad =
            HAS(index) ? spread4(g, g_ld, index, index_ld, cols, kept, first_row, from + at, left)
                       : load4(g + from + at, left);
        const float4 weight = adam4(grad, scalars, load4(w + at, left), &x, &y, ADAMW_ARGS);
        store4(weight, w + at, left);
        new_m[q] = x = only4(x, left);
        new_v[q] = y = only4(y, left);
        x = fabs(x);
        most_m = fmax(most_m, fmax(fmax(x.x, x.y), fmax(x.z, x.w)));
        most_v = fmax(most_v, fmax(fmax(y.x, y.y), fmax(y.z, y.w)));
    }
    most_m = group_max(most_m, tmp);
    most_v = group_max(most_v, tmp);
    for (int q = get_local_id(0); q < QUADS8; q += WG) {
        const long at = 4 * q, left = n - from - at;
        if (left <= 0) break;
        int4 x = 0, y = 0;
        if (most_m > 0.0f) x = root_codes(fabs(new_m[q]), most_m, 127.0f);
        if (most_v > 0.0f) y = root_codes(new_v[q], most_v, 255.0f);
        x = select(x, -x, isless(new_m[q], (float4)(0.0f)));
        y = select(y, (int4)(1), (y == 0) & isgreater(new_v[q], (float4)(0.0f)));
        store_codes(as_uchar4(convert_char4(x)), m + at, left);
        store_codes(convert_uchar4(y), v + at, left);
    }
    if (get_local_id(0) == 0) {
        *ms = most_m;
        *vs = most_v;
    }
}
