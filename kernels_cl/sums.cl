/* Sums of columns and of matrices, casts, zeros: what takes fp32, or any type, in every program. */

/* out = sum over chunks of part (+ out). A work-item takes W columns. */
__kernel GROUP(WG) void k_colsum(__global const float *part_base, const ulong part_off,
                                 const long chunks, const long cols, MAT(out), const int add) {
    CUSE(part);
    USE(out);
    const long c = W * (long)get_global_id(0), n = cols - c;
    wide sum = (wide)(0.0f);
    if (n <= 0) return;
    for (long i = 0; i < chunks; i++) sum += load_wide(part + i * cols + c, n);
    if (add) sum += load_wide(out + c, n);
    store_wide(sum, out + c, n);
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
