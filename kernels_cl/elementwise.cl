/* Bias and activation, sums of matrices, rows by index, gates. Work-items take four columns of a row. */

#define ACT_RELU 1
#define ACT_GELU 2

static float4 act4(int act, float4 u) {
    if (act == ACT_RELU)
        return (float4)(u.x <= 0.0f ? 0.0f : u.x, u.y <= 0.0f ? 0.0f : u.y,
                        u.z <= 0.0f ? 0.0f : u.z, u.w <= 0.0f ? 0.0f : u.w); /* NaN passes */
    if (act == ACT_GELU) return u * 0.5f * erfc(u * -0.70710678118654752f);
    return u;
}

/* y = drop(act(x + bias)). Reads 4 bytes, writes 4 for each element. */
__kernel GROUP(WG) void k_bias_act_fwd(CMAT(x), CMAT(bias), IMAT(rowpos), MAT(y), const long rows,
                                       const long cols, const int act, DROP) {
    CUSE(x);
    CUSE(bias);
    IUSE(rowpos);
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = load4(x + r * x_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    u = act4(act, u);
    store4(DROP_ROW(u, rowpos + r * rowpos_ld, q), y + r * y_ld + c, n);
}

/* dx = d act/du (x + bias) drop(dy), and its column sums by chunks. relu reads y instead of x: it
 * is positive where the element was kept and active. Reads 4 to 8 bytes, writes 4 for each element.
 */
__kernel GROUP(WG) void k_bias_act_bwd(CMAT(dy), CMAT(x), CMAT(bias), CMAT(y), IMAT(rowpos),
                                       MAT(dx), MAT(part), const long rows, const long cols,
                                       const long chunk_rows, const int act, DROP) {
    __local float4 tmp[WG];
    CUSE(dy);
    CUSE(x);
    CUSE(bias);
    CUSE(y);
    IUSE(rowpos);
    USE(dx);
    USE(part);
    const tile t = get_tile(rows, cols, chunk_rows);
    const long c = 4 * t.quad;
    float4 sum = (float4)(0.0f);
    for (long r = t.first + t.ry; r < t.last && t.width > 0;) {
        float4 some = (float4)(0.0f);
        for (int k = 0; k < RUN && r < t.last; k++, r += RY) {
            float4 d = load4(dy + r * dy_ld + c, t.width);
            if (act == ACT_RELU) {
                const float4 o = load4(y + r * y_ld + c, t.width);
                d = (float4)(o.x > 0.0f ? d.x * keep : 0.0f, o.y > 0.0f ? d.y * keep : 0.0f,
                             o.z > 0.0f ? d.z * keep : 0.0f, o.w > 0.0f ? d.w * keep : 0.0f);
            } else {
                d = DROP_ROW(d, rowpos + r * rowpos_ld, t.quad);
            }
            if (act == ACT_GELU) {
                float4 u = load4(x + r * x_ld + c, t.width);
                if (HAS(bias)) u += load4(bias + c, t.width);
                d *= 0.5f * erfc(u * -0.70710678118654752f) +
                     u * 0.39894228040143268f * exp(-0.5f * u * u);
            }
            if (HAS(dx)) store4(d, dx + r * dx_ld + c, t.width);
            some += d;
        }
        sum += some;
    }
    if (HAS(part)) put_sums(sum, &t, tmp, part, cols);
}

/* y = a x + b y; with b 0 y is not read. */
__kernel GROUP(WG) void k_axpby(CMAT(x), MAT(y), const long rows, const long cols, const float a,
                                const float b) {
    CUSE(x);
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = a * load4(x + r * x_ld + c, n);
    if (b != 0.0f) u += b * load4(y + r * y_ld + c, n);
    store4(u, y + r * y_ld + c, n);
}

/* y_r = x[index_r]; zeros where the index is negative. */
__kernel GROUP(WG) void k_gather(CMAT(x), IMAT(index), MAT(y), const long rows, const long cols) {
    CUSE(x);
    IUSE(index);
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    const long from = index[r * index_ld];
    store4(from < 0 ? (float4)(0.0f) : load4(x + from * x_ld + c, n), y + r * y_ld + c, n);
}

static float4 sigmoid4(float4 x) { return 1.0f / (1.0f + exp(-x)); }

/* y = s a + (1 - s) b, s = sigmoid(z + bias). Reads 12 bytes, writes 4 for each element. */
__kernel GROUP(WG) void k_gate_fwd(CMAT(a), CMAT(b), CMAT(z), CMAT(bias), MAT(y), const long rows,
                                   const long cols) {
    CUSE(a);
    CUSE(b);
    CUSE(z);
    CUSE(bias);
    USE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = load4(z + r * z_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    const float4 s = sigmoid4(u);
    store4(s * load4(a + r * a_ld + c, n) + (1.0f - s) * load4(b + r * b_ld + c, n),
           y + r * y_ld + c, n);
}

/* da = s dy, db = (1 - s) dy, dz = s (1 - s) (a - b) dy. Reads 16 bytes, writes 12 for each
 * element. */
__kernel GROUP(WG) void k_gate_bwd(CMAT(dy), CMAT(a), CMAT(b), CMAT(z), CMAT(bias), MAT(da),
                                   MAT(db), MAT(dz), const long rows, const long cols) {
    CUSE(dy);
    CUSE(a);
    CUSE(b);
    CUSE(z);
    CUSE(bias);
    USE(da);
    USE(db);
    USE(dz);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = load4(z + r * z_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    const float4 s = sigmoid4(u), d = load4(dy + r * dy_ld + c, n);
    const float4 slope =
        s * (1.0f - s) * (load4(a + r * a_ld + c, n) - load4(b + r * b_ld + c, n)) * d;
    store4(s * d, da + r * da_ld + c, n);
    store4((1.0f - s) * d, db + r * db_ld + c, n);
    store4(slope, dz + r * dz_ld + c, n);
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
