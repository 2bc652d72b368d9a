/* Sums of columns and of matrices, casts, zeros: what takes fp32, or any type, in every program. */

/* out = sum over chunks of part (+ out), and `more` the same of what lies `second` elements further
 * on; either may be absent. A work-item takes W columns of one of the two. */
__kernel GROUP(WG) void k_colsum(__global const float *part_base, const ulong part_off,
                                 const ulong second, const long chunks, const long cols, MAT(out),
                                 MAT(more), const int add) {
    const long wides = (cols + W - 1) / W, q = get_global_id(0);
    const int other = q >= wides;
    const long c = W * (other ? q - wides : q), n = cols - c;
    if (n <= 0 || !(other ? HAS(more) : HAS(out))) return;
    __global const float *part = part_base + part_off + (other ? second : 0);
    __global float *sums = other ? more_base + more_off : out_base + out_off;
    wide sum = (wide)(0.0f);
    for (long i = 0; i < chunks; i++) sum += load_wide(part + i * cols + c, n);
    if (add) sum += load_wide(sums + c, n);
    store_wide(sum, sums + c, n);
}

/* y = a x + b y; with b 0 y is not read. x and y are of any types; x is rounded to `round` before
 * that. */
__kernel GROUP(WG) void k_axpby(AMAT(x), AMAT(y), const long rows, const long cols, const float a,
                                const float b, const int round) {
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    __global uchar *out = PLACE(y, r * y_ld + c);
    wide u = a * round_as(load_as(PLACE(x, r * x_ld + c), n, x_type), round);
    if (b != 0.0f) u += b * load_as(out, n, y_type);
    store_as(u, out, n, y_type);
}

/* y = 0. */
__kernel GROUP(WG) void k_zero(MAT(y), const long rows, const long cols) {
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q;
    store_wide((wide)(0.0f), y + r * y_ld + c, cols - c);
}
