/* Sums of columns and of matrices, casts, zeros: what takes fp32, or any type, in every program. */

/* out = sum over chunks of part (+ out): one work-item for each column. */
__kernel GROUP(WG) void k_colsum(__global const float *part_base, const ulong part_off,
                                 const long chunks, const long cols, MAT(out), const int add) {
    CUSE(part);
    USE(out);
    const long c = get_global_id(0);
    float sum = 0.0f;
    if (c >= cols) return;
    for (long i = 0; i < chunks; i++) sum += part[i * cols + c];
    out[c] = add ? out[c] + sum : sum;
}

/* y = a x + b y; with b 0 y is not read. x and y are of any types; x is rounded to `round` before
 * that. */
__kernel GROUP(WG) void k_axpby(AMAT(x), AMAT(y), const long rows, const long cols, const float a,
                                const float b, const int round) {
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    __global uchar *out = PLACE(y, r * y_ld + c);
    float4 u = a * round_as(load4_as(PLACE(x, r * x_ld + c), n, x_type), round);
    if (b != 0.0f) u += b * load4_as(out, n, y_type);
    store4_as(u, out, n, y_type);
}

/* y = 0. */
__kernel GROUP(WG) void k_zero(MAT(y), const long rows, const long cols) {
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q;
    store4((float4)(0.0f), y + r * y_ld + c, cols - c);
}
