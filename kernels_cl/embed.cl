/* Embedding. */

/* y_r = drop(scale table[ids_r] + postab[position_r]). Work-items take four columns. */
__kernel GROUP(WG) void k_embed_fwd(CMAT(table), IMAT(ids), IMAT(rowpos), CMAT(postab), DMAT(y),
                                    const long rows, const long cols, const float scale, DROP) {
    CUSE(table);
    IUSE(ids);
    IUSE(rowpos);
    CUSE(postab);
    DUSE(y);
    ulong r, q;
    split(get_global_id(0), (ulong)(cols + 3) / 4, &r, &q);
    if ((long)r >= rows) return;
    const long c = 4 * (long)q, n = cols - c;
    float4 u = scale * load4(table + (long)ids[r * ids_ld] * table_ld + c, n);
    if (HAS(postab)) u += load4(postab + (long)rowpos[r * rowpos_ld + 1] * postab_ld + c, n);
    put4(DROP_ROW(u, rowpos + r * rowpos_ld, q), y + r * y_ld + c, n);
}

/* dtable[id] = scale sum drop(dy_r) over the rows of one id, in the order of `order`, added to what
 * is there with `add`. A group takes one id (a segment of `order`); its work-items take four
 * columns each. Reads 4 bytes for each element of dy. */
__kernel GROUP(WG) void k_embed_bwd(CDMAT(dy), IMAT(rowpos), IMAT(order), IMAT(segs), MAT(dtable),
                                    const long cols, const float scale, const int add, DROP) {
    CDUSE(dy);
    IUSE(rowpos);
    IUSE(order);
    IUSE(segs);
    const long u = get_group_id(0), id = segs[u * segs_ld];
    if (id < 0) return;
    USE(dtable) + id * dtable_ld;
    const long from = segs[u * segs_ld + 1], to = segs[(u + 1) * segs_ld + 1];
    for (long q = get_local_id(0); 4 * q < cols; q += WG) {
        const long c = 4 * q, n = cols - c;
        float4 sum = (float4)(0.0f);
        for (long k = from; k < to;) {
            float4 some = (float4)(0.0f);
            for (int run = 0; run < RUN && k < to; run++, k++) {
                const long r = order[k * order_ld];
                some += DROP_ROW(get4(dy + r * dy_ld + c, n), rowpos + r * rowpos_ld, q);
            }
            sum += some;
        }
        sum *= scale;
        if (add) sum += load4(dtable + c, n);
        store4(sum, dtable + c, n);
    }
}
