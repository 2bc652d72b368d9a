/* Layer normalisation, with the residual before it where that is wanted. One group takes a row. */

/* Where there is an r: r = res + drop(x + bias), else r stands for x. Where there is a y:
 * y = (r - mean) rstd gamma + beta. A work-item reads again only what it wrote itself, so that y
 * and r may lie where x and res are. Of each element it reads x, with r also res, and writes what
 * there is of r and y; the second and third look at a row are served by the caches. */
__kernel GROUP(RG) void k_norm_fwd(CDMAT(x), CMAT(bias), CDMAT(res), IMAT(rowpos), CMAT(gamma),
                                   CMAT(beta), DMAT(r), DMAT(y), MAT(stats), const long cols,
                                   const float eps, DROP) {
    __local float tmp[RG];
    const long row = get_group_id(0), wides = (cols + W - 1) / W;
    CUSE(gamma);
    CUSE(beta);
    CUSE(bias);
    IUSE(rowpos);
    CDUSE(x) + row * x_ld;
    CDUSE(res) + row * res_ld;
    DUSE(r) + row * r_ld;
    DUSE(y) + row * y_ld;
    __global const data_t *in = HAS(r) ? (__global const data_t *)r : x;
    wide sum = (wide)(0.0f);
    for (long q = get_local_id(0); q < wides; q += RG) {
        const long c = W * q, n = cols - c;
        wide u = get_wide(x + c, n);
        if (HAS(r)) {
            if (HAS(bias)) u += load_wide(bias + c, n);
            u = get_wide(res + c, n) + DROP_ROW(u, rowpos + row * rowpos_ld, c);
            u = round_as(u, DATA);
            put_wide(u, r + c, n);
        }
        sum += only_wide(u, n);
    }
    if (!HAS(y)) return;
    const float mean = group_sum(sum_wide(sum), tmp) / (float)cols;
    sum = (wide)(0.0f);
    for (long q = get_local_id(0); q < wides; q += RG) {
        const long c = W * q, n = cols - c;
        const wide u = only_wide(get_wide(in + c, n) - mean, n);
        sum += u * u;
    }
    const float rstd = 1.0f / sqrt(group_sum(sum_wide(sum), tmp) / (float)cols + eps);
    for (long q = get_local_id(0); q < wides; q += RG) {
        const long c = W * q, n = cols - c;
        const wide h = (get_wide(in + c, n) - mean) * rstd;
        put_wide(h * load_wide(gamma + c, n) + load_wide(beta + c, n), y + c, n);
    }
    if (get_local_id(0) == 0) {
        stats_base[stats_off + row * stats_ld] = mean;
        stats_base[stats_off + row * stats_ld + 1] = rstd;
    }
}

/* dgamma = sum dy h and dbeta = sum dy with h = (x - mean) rstd, by chunks: `part` has those of
 * dgamma, then those of dbeta. Reads each element of both once. */
__kernel GROUP(WG) void k_norm_bwd_params(CDMAT(dy), CDMAT(x), CMAT(stats), MAT(part),
                                          const ulong second, const long rows, const long cols,
                                          const long chunk_rows) {
    __local wide tmp[WG];
    CDUSE(dy);
    CDUSE(x);
    CUSE(stats);
    USE(part);
    const tile t = get_tile(rows, cols, chunk_rows);
    const long c = t.col;
    wide dgamma = (wide)(0.0f), dbeta = (wide)(0.0f);
    for (long r = t.first + t.ry; r < t.last && t.width > 0;) {
        wide some = (wide)(0.0f), more = (wide)(0.0f);
        for (int k = 0; k < RUN && r < t.last; k++, r += RY) {
            const float mean = stats[r * stats_ld], rstd = stats[r * stats_ld + 1];
            const wide d = get_wide(dy + r * dy_ld + c, t.width);
            some += d * ((get_wide(x + r * x_ld + c, t.width) - mean) * rstd);
            more += d;
        }
        dgamma += some;
        dbeta += more;
    }
    put_sums(dgamma, &t, tmp, part, cols, 1);
    put_sums(dbeta, &t, tmp, part + second, cols, 1);
}

/* With g = dy gamma: dr = rstd (g - mean(g) - h mean(g h)) + dres, and dx = drop(dr) where it is
 * wanted. Reads each element of dy, x and dres, writes dr and dx. A group takes some rows, one after
 * the other; with `part` it also sums dgamma and dbeta over them, as k_norm_bwd_params does over a
 * chunk: that takes no second look at dy and x, and is for devices where a group is a loop. */
__kernel GROUP(RG) void k_norm_bwd(CDMAT(dy), CDMAT(x), CMAT(stats), CMAT(gamma), CDMAT(dres),
                                   IMAT(rowpos), DMAT(dr), DMAT(dx), MAT(part), const ulong second,
                                   const long rows, const long cols, const long group_rows, DROP) {
    __local float tmp[RG];
    const long wides = (cols + W - 1) / W, first = get_group_id(0) * group_rows;
    const long last = min(rows, first + group_rows);
    CUSE(gamma);
    USE(part) + get_group_id(0) * cols;
    for (long row = first; row < last; row++) {
        CDUSE(dy) + row * dy_ld;
        CDUSE(x) + row * x_ld;
        CUSE(stats) + row * stats_ld;
        CDUSE(dres) + row * dres_ld;
        IUSE(rowpos) + row * rowpos_ld;
        DUSE(dr) + row * dr_ld;
        DUSE(dx) + row * dx_ld;
        const float mean = stats[0], rstd = stats[1];
        wide sum_g = (wide)(0.0f), sum_gh = (wide)(0.0f);
        for (long q = get_local_id(0); q < wides; q += RG) {
            const long c = W * q, n = cols - c;
            const wide d = get_wide(dy + c, n), g = d * load_wide(gamma + c, n);
            const wide h = (get_wide(x + c, n) - mean) * rstd;
            sum_g += only_wide(g, n);
            sum_gh += only_wide(g * h, n);
            if (HAS(part)) {
                wide dgamma = d * h, dbeta = d;
                if (row > first) {
                    dgamma += load_wide(part + c, n);
                    dbeta += load_wide(part + second + c, n);
                }
                store_wide(dgamma, part + c, n);
                store_wide(dbeta, part + second + c, n);
            }
        }
        const float mean_g = group_sum(sum_wide(sum_g), tmp) / (float)cols;
        const float mean_gh = group_sum(sum_wide(sum_gh), tmp) / (float)cols;
        for (long q = get_local_id(0); q < wides; q += RG) {
            const long c = W * q, n = cols - c;
            const wide g = get_wide(dy + c, n) * load_wide(gamma + c, n);
            const wide h = (get_wide(x + c, n) - mean) * rstd;
            wide d = rstd * (g - mean_g - h * mean_gh);
            if (HAS(dres)) d += get_wide(dres + c, n);
            put_wide(d, dr + c, n);
            if (HAS(dx)) put_wide(DROP_ROW(d, rowpos, c), dx + c, n);
        }
    }
}
