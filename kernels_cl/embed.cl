/* Embedding. */

/* y_r = drop(scale table[ids_r] + postab[position_r]). Work-items take W columns. */
__kernel GROUP(WG) void k_embed_fwd(CMAT(table), IMAT(ids), IMAT(rowpos), CMAT(postab), DMAT(y),
                                    const long rows, const long cols, const float scale, DROP) {
    CUSE(table);
    IUSE(ids);
    IUSE(rowpos);
    CUSE(postab);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + W - 1) / W, &r, &q);
    if ((long)r >= rows) return;
    const long c = W * (long)q, n = cols - c;
    wide u = scale * load_wide(table + (long)ids[r * ids_ld] * table_ld + c, n);
    if (HAS(postab)) u += load_wide(postab + (long)rowpos[r * rowpos_ld + 1] * postab_ld + c, n);
    put_wide(DROP_ROW(u, rowpos + r * rowpos_ld, c), y + r * y_ld + c, n);
}

/* dtable[id] = scale sum drop(dy_r) over the rows of one id, in the order of `order`, added to what
 * is there with `add`. A group takes one id (a segment of `order`); its work-items take W
 * columns each. Reads each element of dy once. */
__kernel GROUP(RG) void k_embed_bwd(CDMAT(dy), IMAT(rowpos), IMAT(order), IMAT(segs), MAT(dtable),
                                    const long cols, const float scale, const int add, DROP) {
    CDUSE(dy);
    IUSE(rowpos);
    IUSE(order);
    IUSE(segs);
    const long u = get_group_id(0), id = segs[u * segs_ld];
    if (id < 0) return;
    USE(dtable) + id * dtable_ld;
    const long from = segs[u * segs_ld + 1], to = segs[(u + 1) * segs_ld + 1];
    for (long q = get_local_id(0); W * q < cols; q += RG) {
        const long c = W * q, n = cols - c;
        wide sum = (wide)(0.0f);
        for (long k = from; k < to;) {
            wide some = (wide)(0.0f);
            for (int run = 0; run < RUN && k < to; run++, k++) {
                const long r = order[k * order_ld];
                some += DROP_ROW(get_wide(dy + r * dy_ld + c, n), rowpos + r * rowpos_ld, c);
            }
            sum += some;
        }
        sum *= scale;
        if (add) sum += load_wide(dtable + c, n);
        store_wide(sum, dtable + c, n);
    }
}
