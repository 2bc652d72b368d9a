/* Sums of squares, the scalar block, and AdamW over whole or compact gradients, with moments in
 * fp32 or in 8 bits. */

#define BLOCK 65536

/* part[b] = (s, q): the sum of squares of block b is s^2 q with s the largest magnitude; q is NaN
 * where something is not finite. One group takes a block. Reads 8 bytes for each element, the
 * second half from the caches where they hold 256 KiB. */
__kernel GROUP(RG) void k_sumsq(__global const float *x_base, const ulong x_off, const long n,
                                MAT(part)) {
    __local float tmp[RG];
    CUSE(x);
    USE(part);
    const long b = get_group_id(0), from = b * BLOCK, to = min(n, from + BLOCK);
    wide most = (wide)(0.0f), bad = (wide)(0.0f);
    float sum = 0.0f;
    for (long i = from + W * (long)get_local_id(0); i < to; i += W * RG) {
        const wide y = load_wide(x + i, to - i);
        most = fmax(most, fabs(y));
        bad += y - y; /* NaN where it is not finite */
    }
    const float s = group_max(max_wide(most), tmp);
    const int finite = group_sum(sum_wide(bad), tmp) == 0.0f;
    for (long i = from + W * (long)get_local_id(0); finite && s > 0.0f && i < to;) {
        wide some = (wide)(0.0f);
        for (int k = 0; k < 2 * RUN && i < to; k++, i += W * RG) {
            const wide y = load_wide(x + i, to - i) / s;
            some += y * y;
        }
        sum += sum_wide(some);
    }
    const float q = group_sum(sum, tmp);
    if (get_local_id(0) == 0) {
        part[b * part_ld] = finite ? s : 1.0f;
        part[b * part_ld + 1] = finite ? q : NAN;
    }
}

/* norm = sqrt(sum s^2 q) / loss_scale, taken over the largest s, first divided by the loss scale, so
 * that nothing overflows; factor = min(1, clip / norm) / loss_scale; skip where the norm is not
 * finite; then the loss scale of the next update. One group. */
__kernel GROUP(RG) void k_update_scalars(CMAT(part), const long parts,
                                         __global float *scalars_base, const ulong scalars_off,
                                         const int growth_interval, const float scale_max) {
    __local float tmp[RG];
    CUSE(part);
    USE(scalars);
    float most = 0.0f, sum = 0.0f;
    for (long i = get_local_id(0); i < parts; i += RG) most = fmax(most, part[i * part_ld]);
    most = group_max(most, tmp);
    for (long i = get_local_id(0); i < parts; i += RG) {
        const float s = most > 0.0f ? part[i * part_ld] / most : 1.0f;
        sum += s * s * part[i * part_ld + 1];
    }
    sum = group_sum(sum, tmp);
    if (get_local_id(0) != 0) return;
    const float scale = scalars[LOSS_SCALE], clip = scalars[CLIP];
    const float norm = isnan(sum) ? sum : most / scale * sqrt(sum);
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

/* The arithmetic of a step of W elements (core/ops/op_args.h); gives the new weights. The same bits
 * in every kernel: none may contract where another does not. */
static wide adam(wide grad, __global const float *scalars, wide weight, wide *m, wide *v,
                 ADAMW) {
#pragma OPENCL FP_CONTRACT OFF
    grad *= scalars[FACTOR];
    if (!decoupled) grad += decay * weight;
    *m = beta1 * *m + rest1 * grad;
    *v = beta2 * *v + rest2 * grad * grad;
    if (decoupled) weight *= 1.0f - scalars[LR] * decay;
    return weight -
           scalars[LR] * (*m / scalars[CORRECTION1]) / (sqrt(*v / scalars[CORRECTION2]) + eps);
}

/* A step of W elements, of which the first n are there. */
static void step_wide(wide grad, __global const float *scalars, __global float *w,
                      __global float *m, __global float *v, long n, ADAMW) {
    wide m1 = load_wide(m, n), m2 = load_wide(v, n);
    store_wide(adam(grad, scalars, load_wide(w, n), &m1, &m2, ADAMW_ARGS), w, n);
    store_wide(m1, m, n);
    store_wide(m2, v, n);
}

/* First entry of an ascending index that is `row` or more. */
static long find_row(__global const int *index, long ld, long kept, long row) {
    long low = 0;
    for (long n = kept; n > 0;) { /* chooses without a branch: which way is anybody's guess */
        const long half_way = n / 2;
        const int behind = index[(low + half_way) * ld] < row;
        low = behind ? low + half_way + 1 : low;
        n = behind ? n - half_way - 1 : half_way;
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
    const long c = W * (long)get_global_id(0), left = n - c;
    if (left <= 0 || scalars[SKIP] != 0.0f) return;
    CUSE(g) + c;
    USE(w) + c;
    USE(m) + c;
    USE(v) + c;
    step_wide(load_wide(g, left), scalars, w, m, v, left, ADAMW_ARGS);
}

/* Rows of a table from first_row on whose gradient is compact: row index[k] has row k of g, all
 * others 0. index ascends; a group takes a row and finds its place by halving. Reads 12 bytes,
 * writes 12 for each element of the table, and reads 4 for each of g. */
__kernel GROUP(RG) void k_adamw_rows(CMAT(g), IMAT(index), __global const float *scalars_base,
                                     const ulong scalars_off, MAT(w), MAT(m), MAT(v),
                                     const long cols, const long kept, const long first_row,
                                     ADAMW) {
    const long r = get_group_id(0), row = first_row + r;
    IUSE(index);
    CUSE(scalars);
    USE(w) + r * w_ld;
    USE(m) + r * m_ld;
    USE(v) + r * v_ld;
    if (scalars[SKIP] != 0.0f) return;
    const long k = find_row(index, index_ld, kept, row);
    const int there = k < kept && index[k * index_ld] == row;
    CUSE(g) + (there ? k * g_ld : 0);
    for (long c = W * (long)get_local_id(0); c < cols; c += W * RG) {
        const wide grad = there ? load_wide(g + c, cols - c) : (wide)(0.0f);
        step_wide(grad, scalars, w + c, m + c, v + c, cols - c, ADAMW_ARGS);
    }
}

/* ---- moments in 8 bits ------------------------------------------------------------------------ */

#define CODES(x) __global uchar *x##_base, const ulong x##_off
#define BLOCK8 256
#define WIDES8 (BLOCK8 / W)

/* Up to W codes; what is not there is 0. */
static WIDE(uchar) load_codes(__global const uchar *p, long n) {
    if (n >= W) return WIDE(vload)(0, p);
    uchar x[W];
    for (int i = 0; i < W; i++) x[i] = i < n ? p[i] : 0;
    return WIDE(vload)(0, x);
}

static void store_codes(WIDE(uchar) x, __global uchar *p, long n) {
    if (n >= W) {
        WIDE(vstore)(x, 0, p);
        return;
    }
    uchar y[W];
    WIDE(vstore)(x, 0, y);
    for (int i = 0; i < W && i < n; i++) p[i] = y[i];
}

/* scale (c / most)^4, with the sign of c. */
static wide widen(wide c, float scale, float most) {
    const wide t = fabs(c) / most, u = t * t;
    return copysign(scale * (u * u), c);
}

/* most (a / scale)^(1/4), rounded; `most` where the scale is not finite. */
static iwide root_codes(wide a, float scale, float most) {
    const wide t = sqrt(sqrt(a / scale));
    return WIDE(convert_int)(most * select((wide)(1.0f), t, islessequal(t, (wide)(1.0f))) + 0.5f);
}

/* W elements of the gradient of a table from `at` behind first_row on. */
static wide spread(__global const float *g, long g_ld, __global const int *index, long index_ld,
                   long cols, long kept, long first_row, long at, long n) {
    float x[W];
    ulong row, col;
    split((ulong)at, (ulong)cols, &row, &col);
    row += (ulong)first_row;
    long k = find_row(index, index_ld, kept, (long)row);
    for (int i = 0; i < W; i++) x[i] = 0.0f;
    for (int i = 0; i < W && i < n; i++) {
        if (k < kept && index[k * index_ld] == (long)row) x[i] = g[k * g_ld + (long)col];
        if ((long)++col < cols) continue;
        col = 0;
        row++;
        while (k < kept && index[k * index_ld] < (long)row) k++;
    }
    return WIDE(vload)(0, x);
}

/* One group steps one block: it keeps the new moments in local memory until their largest are
 * known. Reads 10 bytes and writes 6 for each element, those of g less where an index leaves rows
 * out. */
__kernel GROUP(RG) void k_adamw8(CMAT(g), IMAT(index), __global const float *scalars_base,
                                 const ulong scalars_off, __global float *w_base, const ulong w_off,
                                 CODES(m), __global float *ms_base, const ulong ms_off, CODES(v),
                                 __global float *vs_base, const ulong vs_off, const long n,
                                 const long cols, const long kept, const long first_row, ADAMW) {
    __local wide new_m[WIDES8], new_v[WIDES8];
    __local float tmp[RG];
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
    for (int q = get_local_id(0); q < WIDES8; q += RG) {
        const long at = W * q, left = n - from - at;
        if (left <= 0) break;
        const WIDE(char) code = WIDE(as_char)(load_codes(m + at, left));
        wide x = widen(WIDE(convert_float)(code), old_ms, 127.0f);
        wide y = widen(WIDE(convert_float)(load_codes(v + at, left)), old_vs, 255.0f);
        const wide grad =
            HAS(index) ? spread(g, g_ld, index, index_ld, cols, kept, first_row, from + at, left)
                       : load_wide(g + from + at, left);
        const wide weight = adam(grad, scalars, load_wide(w + at, left), &x, &y, ADAMW_ARGS);
        store_wide(weight, w + at, left);
        new_m[q] = x = only_wide(x, left);
        new_v[q] = y = only_wide(y, left);
        x = fabs(x);
        most_m = fmax(most_m, max_wide(x));
        most_v = fmax(most_v, max_wide(y));
    }
    most_m = group_max(most_m, tmp);
    most_v = group_max(most_v, tmp);
    for (int q = get_local_id(0); q < WIDES8; q += RG) {
        const long at = W * q, left = n - from - at;
        if (left <= 0) break;
        iwide x = 0, y = 0;
        if (most_m > 0.0f) x = root_codes(fabs(new_m[q]), most_m, 127.0f);
        if (most_v > 0.0f) y = root_codes(new_v[q], most_v, 255.0f);
        x = select(x, -x, isless(new_m[q], (wide)(0.0f)));
        y = select(y, (iwide)(1), (y == 0) & isgreater(new_v[q], (wide)(0.0f)));
        store_codes(WIDE(as_uchar)(WIDE(convert_char)(x)), m + at, left);
        store_codes(WIDE(convert_uchar)(y), v + at, left);
    }
    if (get_local_id(0) == 0) {
        *ms = most_m;
        *vs = most_v;
    }
}
