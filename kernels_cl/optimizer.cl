/* Sums of squares, the scalar block, and AdamW over whole or compact gradients. */

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

/* One step of four elements, of which the first n are there (core/ops/op_args.h). */
static void step4(float4 grad, __global const float *scalars, __global float *w, __global float *m,
                  __global float *v, long n, ADAMW) {
    float4 weight = load4(w, n);
    grad *= scalars[FACTOR];
    if (!decoupled) grad += decay * weight;
    const float4 m1 = beta1 * load4(m, n) + rest1 * grad;
    const float4 m2 = beta2 * load4(v, n) + rest2 * grad * grad;
    if (decoupled) weight *= 1.0f - scalars[LR] * decay;
    weight -= scalars[LR] * (m1 / scalars[CORRECTION1]) / (sqrt(m2 / scalars[CORRECTION2]) + eps);
    store4(weight, w, n);
    store4(m1, m, n);
    store4(m2, v, n);
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

/* A table whose gradient is compact: row index[k] of w, m and v has row k of g, all others 0.
 * index ascends; a row finds its place in it by halving. Reads 12 bytes, writes 12 for each element
 * of the table, and reads 4 for each of g. */
__kernel GROUP(WG) void k_adamw_rows(CMAT(g), IMAT(index), __global const float *scalars_base,
                                     const ulong scalars_off, MAT(w), MAT(m), MAT(v),
                                     const long rows, const long cols, const long kept, ADAMW) {
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
    long low = 0, high = kept;
    while (low < high) {
        const long middle = (low + high) / 2;
        if (index[middle * index_ld] < (long)r)
            low = middle + 1;
        else
            high = middle;
    }
    const int there = low < kept && index[low * index_ld] == (long)r;
    const float4 grad = there ? load4(g + low * g_ld + c, n) : (float4)(0.0f);
    step4(grad, scalars, w + r * w_ld + c, m + r * m_ld + c, v + r * v_ld + c, n, ADAMW_ARGS);
}
