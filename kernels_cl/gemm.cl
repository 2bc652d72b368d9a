/* Matrix products of any shape, strides, transpositions, batches and types. Large plain ones go to
 * CLBlast where the device can run it and it is faster (backends/opencl_gemm.c). */

#define TILE 64 /* rows and columns of C that a group makes */
#define PAD 4   /* columns are written to different banks, rows stay on 16 bytes */
#define BLOCK_DEPTH 1024 /* of a sum before it is added up: rounding grows with the blocks only */

/* The group's work-items as GM x GN. Each makes BM x BN blocks of C in registers, one after the
 * other: RM rows, GM apart, of RV wides of columns, GN wides apart, so that neighbours read
 * neighbouring vectors. A full group of a GPU makes the tile in one block each. DEPTH is what the
 * sums take from local memory at a time. */
#define GN (GWG >= 64 ? 8 : GWG >= 16 ? 4 : GWG >= 4 ? 2 : 1)
#define GM (GWG / GN)
#define RM (W == 16 ? 4 : 8)
#define RV (W == 16 ? 1 : 2)
#define BM (TILE / GM / RM)
#define BN (TILE / GN / RV / W)
#define UNROLL _Pragma("unroll")

typedef __local float (*operand_tile)[TILE + PAD];

/* DEPTH x TILE elements of op(X) from (k0, i0) on, zeros beyond its ends. Where `along_k`, rows of
 * X are op(X)'s columns: element (k, i) lies at x[i * ld + k], else at x[k * ld + i]. */
static void load_tile(operand_tile tile, __global const uchar *x, int along_k, long k0, long i0,
                      long depth, long count, long ld, int type, int round) {
    const int bytes = type == F32 ? 4 : 2;
    if (along_k) {
        for (uint e = get_local_id(0); e < TILE / 4 * (DEPTH / W); e += GWG) {
            const uint k = e % (DEPTH / W) * W, i = e / (DEPTH / W) * 4;
            wide v[4];
            for (int r = 0; r < 4; r++) {
                const long row = i0 + i + r, n = row < count ? depth - (k0 + k) : 0;
                v[r] = round_as(load_as(x + (row * ld + k0 + k) * bytes, n, type), round);
            }
            put_turned(v, &tile[k][i], TILE + PAD);
        }
        return;
    }
    for (uint e = get_local_id(0); e < TILE / W * DEPTH; e += GWG) {
        const uint k = e / (TILE / W), i = e % (TILE / W) * W;
        const long n = k0 + k < depth ? count - (i0 + i) : 0;
        const wide v = load_as(x + ((k0 + k) * ld + i0 + i) * bytes, n, type);
        WIDE(vstore)(round_as(v, round), 0, &tile[k][i]);
    }
}

/* Up to W elements of C = alpha sum + beta C. */
static void put_product(wide sum, __global uchar *c, long n, int type, float alpha, float beta) {
    wide new = alpha == 0.0f ? (wide)(0.0f) : alpha * sum;
    if (beta != 0.0f) new += beta * load_as(c, n, type);
    store_as(new, c, n, type);
}

/* C = alpha op(A) op(B) + beta C for batch0 x batch1 matrices; a0 .. c1 lead from one to the next.
 * Each is of any type; wide A and B are rounded to `round`. depth is 0 where alpha is. For each
 * element of C: 2 depth / 64 elements read, one written. */
__kernel GROUP(GWG) void k_gemm(AMAT(a), AMAT(b), AMAT(c), const long m, const long n,
                                const long depth, const int trans_a, const int trans_b,
                                const float alpha, const float beta, const int round,
                                const long batch1, const long a0, const long a1, const long b0,
                                const long b1, const long c0, const long c1) {
    __local float left[DEPTH][TILE + PAD], right[DEPTH][TILE + PAD];
    const uint lid = get_local_id(0), gn = lid % GN, gm = lid / GN;
    ulong tile, batch, i_tile, j_tile, outer, inner;
    split(get_group_id(0), (ulong)((m + TILE - 1) / TILE) * (ulong)((n + TILE - 1) / TILE), &batch,
          &tile);
    split(tile, (ulong)((n + TILE - 1) / TILE), &i_tile, &j_tile);
    split(batch, (ulong)batch1, &outer, &inner);
    const long i0 = (long)i_tile * TILE, j0 = (long)j_tile * TILE;
    const long to_c = (long)outer * c0 + (long)inner * c1;
    __global const uchar *a = PLACE(a, (long)outer * a0 + (long)inner * a1);
    __global const uchar *b = PLACE(b, (long)outer * b0 + (long)inner * b1);

    /* What is summed before it is added to C; a half C is rounded but once. */
    const long block = c_type == F32 ? BLOCK_DEPTH : max(depth, 1L);
    for (long from = 0; from == 0 || from < depth; from += block) {
        const long to = min(depth, from + block);
        wide sum[BM][BN][RM][RV];
        for (int b = 0; b < BM * BN; b++)
            UNROLL for (int i = 0; i < RM; i++)
                UNROLL for (int v = 0; v < RV; v++) sum[b / BN][b % BN][i][v] = (wide)(0.0f);
        for (long k0 = from; k0 < to; k0 += DEPTH) {
            load_tile(left, a, !trans_a, k0, i0, depth, m, a_ld, a_type, round);
            load_tile(right, b, trans_b, k0, j0, depth, n, b_ld, b_type, round);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int b = 0; b < BM * BN; b++) {
                const uint i1 = b / BN * RM * GM + gm, j1 = W * (b % BN * RV * GN + gn);
                wide part[RM][RV];
                if (i0 + i1 >= m || j0 + j1 >= n) continue;
                UNROLL for (int i = 0; i < RM; i++)
                    UNROLL for (int v = 0; v < RV; v++) part[i][v] = sum[b / BN][b % BN][i][v];
                for (int k = 0; k < DEPTH; k++) {
                    wide row[RV];
                    UNROLL for (int v = 0; v < RV; v++)
                        row[v] = WIDE(vload)(0, &right[k][j1 + W * GN * v]);
                    UNROLL for (int i = 0; i < RM; i++) {
                        const float x = left[k][i1 + GM * i];
                        UNROLL for (int v = 0; v < RV; v++) part[i][v] += x * row[v];
                    }
                }
                UNROLL for (int i = 0; i < RM; i++)
                    UNROLL for (int v = 0; v < RV; v++) sum[b / BN][b % BN][i][v] = part[i][v];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const float old = from == 0 ? beta : 1.0f;
        for (int b = 0; b < BM * BN; b++)
            UNROLL for (int i = 0; i < RM; i++)
                UNROLL for (int v = 0; v < RV; v++) {
                    const long row = i0 + b / BN * RM * GM + gm + GM * i;
                    const long col = j0 + W * (b % BN * RV * GN + gn + GN * v);
                    if (row < m && col < n)
                        put_product(sum[b / BN][b % BN][i][v], PLACE(c, to_c + row * c_ld + col),
                                    n - col, c_type, alpha, old);
                }
    }
}
