/* Bias and activation, rows by index, gates. Work-items take four columns of a row. */

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
__kernel GROUP(WG) void k_bias_act_fwd(CDMAT(x), CMAT(bias), IMAT(rowpos), DMAT(y), const long rows,
                                       const long cols, const int act, DROP) {
    CDUSE(x);
    CUSE(bias);
    IUSE(rowpos);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = get4(x + r * x_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    u = act4(act, u);
    put4(DROP_ROW(u, rowpos + r * rowpos_ld, q), y + r * y_ld + c, n);
}

/* dx = d act/du (x + bias) drop(dy), and its column sums by chunks. relu reads y instead of x: it
 * is positive where the element was kept and active. Reads 4 to 8 bytes, writes 4 for each element.
 */
__kernel GROUP(WG) void k_bias_act_bwd(CDMAT(dy), CDMAT(x), CMAT(bias), CDMAT(y), IMAT(rowpos),
                                       DMAT(dx), MAT(part), const long rows, const long cols,
                                       const long chunk_rows, const int act, DROP) {
    __local float4 tmp[WG];
    CDUSE(dy);
    CDUSE(x);
    CUSE(bias);
    CDUSE(y);
    IUSE(rowpos);
    DUSE(dx);
    USE(part);
    const tile t = get_tile(rows, cols, chunk_rows);
    const long c = 4 * t.quad;
    float4 sum = (float4)(0.0f);
    for (long r = t.first + t.ry; r < t.last && t.width > 0;) {
        float4 some = (float4)(0.0f);
        for (int k = 0; k < RUN && r < t.last; k++, r += RY) {
            float4 d = get4(dy + r * dy_ld + c, t.width);
            if (act == ACT_RELU) {
                const float4 o = get4(y + r * y_ld + c, t.width);
                d = (float4)(o.x > 0.0f ? d.x * keep : 0.0f, o.y > 0.0f ? d.y * keep : 0.0f,
                             o.z > 0.0f ? d.z * keep : 0.0f, o.w > 0.0f ? d.w * keep : 0.0f);
            } else {
                d = DROP_ROW(d, rowpos + r * rowpos_ld, t.quad);
            }
            if (act == ACT_GELU) {
                float4 u = get4(x + r * x_ld + c, t.width);
                if (HAS(bias)) u += load4(bias + c, t.width);
                d *= 0.5f * erfc(u * -0.70710678118654752f) +
                     u * 0.39894228040143268f * exp(-0.5f * u * u);
            }
            if (HAS(dx)) put4(d, dx + r * dx_ld + c, t.width);
            some += d;
        }
        sum += some;
    }
    if (HAS(part)) put_sums(sum, &t, tmp, part, cols);
}

/* y_r = x[index_r]; zeros where the index is negative. */
__kernel GROUP(WG) void k_gather(CDMAT(x), IMAT(index), DMAT(y), const long rows, const long cols) {
    CDUSE(x);
    IUSE(index);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    const long from = index[r * index_ld];
    put4(from < 0 ? (float4)(0.0f) : get4(x + from * x_ld + c, n), y + r * y_ld + c, n);
}

static float4 sigmoid4(float4 x) { return 1.0f / (1.0f + exp(-x)); }

/* y = s a + (1 - s) b, s = sigmoid(z + bias). Reads 12 bytes, writes 4 for each element. */
__kernel GROUP(WG) void k_gate_fwd(CDMAT(a), CDMAT(b), CDMAT(z), CMAT(bias), DMAT(y),
                                   const long rows, const long cols) {
    CDUSE(a);
    CDUSE(b);
    CDUSE(z);
    CUSE(bias);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = get4(z + r * z_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    const float4 s = sigmoid4(u);
    put4(s * get4(a + r * a_ld + c, n) + (1.0f - s) * get4(b + r * b_ld + c, n), y + r * y_ld + c,
         n);
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
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = get4(z + r * z_ld + c, n);
    if (HAS(bias)) u += load4(bias + c, n);
    const float4 s = sigmoid4(u), d = get4(dy + r * dy_ld + c, n);
    const float4 slope =
        s * (1.0f - s) * (get4(a + r * a_ld + c, n) - get4(b + r * b_ld + c, n)) * d;
    put4(s * d, da + r * da_ld + c, n);
    put4((1.0f - s) * d, db + r * db_ld + c, n);
    put4(slope, dz + r * dz_ld + c, n);
}
