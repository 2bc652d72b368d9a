/* Bias and activation, rows by index, gates. A work-item takes W columns of a row. */

#define ACT_RELU 1
#define ACT_GELU 2

/* Phi(x), and exp(-x^2 / 2), which its derivative wants. erfc(z) exp(z^2) for z >= 0 is a
 * polynomial in t = 1 / (1 + z / 2), fitted at Chebyshev nodes over [0, 9.5]: relative error
 * 2.4e-7. */
static wide normal_cdf(wide x, wide *gauss) {
    const wide t = 1.0f / (1.0f + fabs(x) * 0.353553391f);
    wide p = (wide)(0.0201472603f);
    p = p * t - 0.164438128f;
    p = p * t + 0.521820009f;
    p = p * t - 0.788104892f;
    p = p * t + 0.514210224f;
    p = p * t - 0.145130962f;
    p = p * t + 0.240586549f;
    p = p * t + 0.235678509f;
    p = p * t + 0.283181936f;
    p = p * t + 0.282049447f;
    *gauss = exp(-0.5f * x * x);
    const wide half_way = 0.5f * *gauss * p * t;
    return select(1.0f - half_way, half_way, x < 0.0f);
}

static wide act_wide(int act, wide u) {
    if (act == ACT_RELU) return select(u, (wide)(0.0f), u <= 0.0f); /* NaN passes */
    wide gauss;
    return act == ACT_GELU ? u * normal_cdf(u, &gauss) : u;
}

/* y = drop(act(x + bias)). Reads 4 bytes, writes 4 for each element. */
__kernel GROUP(WG) void k_bias_act_fwd(CDMAT(x), CMAT(bias), IMAT(rowpos), DMAT(y), const long rows,
                                       const long cols, const int act, DROP) {
    CDUSE(x);
    CUSE(bias);
    IUSE(rowpos);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    wide u = get_wide(x + r * x_ld + c, n);
    if (HAS(bias)) u += load_wide(bias + c, n);
    u = act_wide(act, u);
    put_wide(DROP_ROW(u, rowpos + r * rowpos_ld, c), y + r * y_ld + c, n);
}

/* dx = d act/du (x + bias) drop(dy), and its column sums by chunks. relu reads y instead of x: it
 * is positive where the element was kept and active. Reads 4 to 8 bytes, writes 4 for each element.
 */
__kernel GROUP(WG) void k_bias_act_bwd(CDMAT(dy), CDMAT(x), CMAT(bias), CDMAT(y), IMAT(rowpos),
                                       DMAT(dx), MAT(part), const long rows, const long cols,
                                       const long chunk_rows, const int act, DROP) {
    __local wide tmp[WG];
    CDUSE(dy);
    CDUSE(x);
    CUSE(bias);
    CDUSE(y);
    IUSE(rowpos);
    DUSE(dx);
    USE(part);
    const tile t = get_tile(rows, cols, chunk_rows);
    const long c = t.col;
    wide sum = (wide)(0.0f);
    for (long r = t.first + t.ry; r < t.last && t.width > 0;) {
        wide some = (wide)(0.0f);
        for (int k = 0; k < RUN && r < t.last; k++, r += RY) {
            wide d = get_wide(dy + r * dy_ld + c, t.width);
            if (act == ACT_RELU) {
                const wide o = get_wide(y + r * y_ld + c, t.width);
                d = select((wide)(0.0f), d * keep, o > 0.0f);
            } else {
                d = DROP_ROW(d, rowpos + r * rowpos_ld, c);
            }
            if (act == ACT_GELU) {
                wide u = get_wide(x + r * x_ld + c, t.width);
                if (HAS(bias)) u += load_wide(bias + c, t.width);
                wide gauss;
                const wide cdf = normal_cdf(u, &gauss);
                d *= cdf + u * gauss * 0.39894228040143268f;
            }
            if (HAS(dx)) put_wide(d, dx + r * dx_ld + c, t.width);
            some += d;
        }
        sum += some;
    }
    put_sums(sum, &t, tmp, part, cols, HAS(part));
}

/* y_r = x[index_r]; zeros where the index is negative. */
__kernel GROUP(WG) void k_gather(CDMAT(x), IMAT(index), DMAT(y), const long rows, const long cols) {
    CDUSE(x);
    IUSE(index);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    const long from = index[r * index_ld];
    put_wide(from < 0 ? (wide)(0.0f) : get_wide(x + from * x_ld + c, n), y + r * y_ld + c, n);
}

static wide sigmoid_wide(wide x) { return 1.0f / (1.0f + exp(-x)); }

/* y = s a + (1 - s) b, s = sigmoid(z + bias). Reads 12 bytes, writes 4 for each element. */
__kernel GROUP(WG) void k_gate_fwd(CDMAT(a), CDMAT(b), CDMAT(z), CMAT(bias), DMAT(y),
                                   const long rows, const long cols) {
    CDUSE(a);
    CDUSE(b);
    CDUSE(z);
    CUSE(bias);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    wide u = get_wide(z + r * z_ld + c, n);
    if (HAS(bias)) u += load_wide(bias + c, n);
    const wide s = sigmoid_wide(u);
    const wide kept = s * get_wide(a + r * a_ld + c, n);
    put_wide(kept + (1.0f - s) * get_wide(b + r * b_ld + c, n), y + r * y_ld + c, n);
}

/* da = s dy, db = (1 - s) dy, dz = s (1 - s) (a - b) dy. Reads 16 bytes, writes 12 for each
 * element. */
__kernel GROUP(WG) void k_gate_bwd(CDMAT(dy), CDMAT(a), CDMAT(b), CDMAT(z), CMAT(bias), DMAT(da),
                                   DMAT(db), DMAT(dz), const long rows, const long cols) {
    CDUSE(dy);
    CDUSE(a);
    CDUSE(b);
    CDUSE(z);
    CUSE(bias);
    DUSE(da);
    DUSE(db);
    DUSE(dz);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    wide u = get_wide(z + r * z_ld + c, n);
    if (HAS(bias)) u += load_wide(bias + c, n);
    const wide s = sigmoid_wide(u), d = get_wide(dy + r * dy_ld + c, n);
    const wide slope =
        s * (1.0f - s) * (get_wide(a + r * a_ld + c, n) - get_wide(b + r * b_ld + c, n)) * d;
    put_wide(s * d, da + r * da_ld + c, n);
    put_wide((1.0f - s) * d, db + r * db_ld + c, n);
    put_wide(slope, dz + r * dz_ld + c, n);
}
