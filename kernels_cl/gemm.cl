/* Matrix products of any shape, strides, transpositions, batches and types. Large plain ones go to
 * CLBlast where the device can run it and it is faster (backends/opencl_gemm.c). */

#define TILE 64  /* rows and columns of C that a group makes */
#define DEPTH 16 /* of the sum at a time */
#define PAD 4    /* columns are written to different banks, rows stay on 16 bytes */
#define BLOCK_DEPTH 1024 /* of a sum before it is added up: rounding grows with the blocks only */

/* The group's work-items as GM x GN. Each makes RM rows of C, next to each other, and in each RV
 * vectors of columns, GN vectors apart: neighbours read neighbouring vectors. */
#define GN (GWG >= 64 ? 8 : GWG >= 16 ? 4 : GWG >= 4 ? 2 : 1)
#define GM (GWG / GN)
#define RM (TILE / GM)
#define RV (TILE / GN / VEC)

#if VEC == 8
#define vec float8
#define load_vec vload8
#else
#define vec float4
#define load_vec vload4
#endif

#if GWG >= 32
#define UNROLL _Pragma("unroll")
#else
#define UNROLL /* a work-item makes so much that loops stay loops */
#endif

typedef __local float (*operand_tile)[TILE + PAD];

/* DEPTH x TILE elements of op(X) from (k0, i0) on, zeros beyond its ends. Where `along_k`, rows of
 * X are op(X)'s columns: element (k, i) lies at x[i * ld + k], else at x[k * ld + i]. */
static void load_tile(operand_tile tile, __global const uchar *x, int along_k, long k0, long i0,
                      long depth, long count, long ld, int type, int round) {
    const int bytes = type == F32 ? 4 : 2;
    for (uint e = get_local_id(0); e < TILE * DEPTH / 4; e += GWG) {
        const uint fast = along_k ? e % (DEPTH / 4) * 4 : e % (TILE / 4) * 4;
        const uint slow = along_k ? e / (DEPTH / 4) : e / (TILE / 4);
        const long row = (along_k ? i0 : k0) + slow, col = (along_k ? k0 : i0) + fast;
        float4 v = (float4)(0.0f);
        if (row < (along_k ? count : depth))
            v = round_as(load4_as(x + (row * ld + col) * bytes, (along_k ? depth : count) - col,
                                  type),
                         round);
        if (along_k) {
            tile[fast][slow] = v.x;
            tile[fast + 1][slow] = v.y;
            tile[fast + 2][slow] = v.z;
            tile[fast + 3][slow] = v.w;
        } else {
            vstore4(v, 0, &tile[slow][fast]);
        }
    }
}

/* Up to four elements of C = alpha sum + beta C. */
static void put_product(float4 sum, __global uchar *c, long n, int type, float alpha, float beta) {
    float4 new = alpha == 0.0f ? (float4)(0.0f) : alpha * sum;
    if (beta != 0.0f) new += beta * load4_as(c, n, type);
    store4_as(new, c, n, type);
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
        vec sum[RM][RV];
        UNROLL for (int i = 0; i < RM; i++)
            UNROLL for (int v = 0; v < RV; v++) sum[i][v] = (vec)(0.0f);
        for (long k0 = from; k0 < to; k0 += DEPTH) {
            load_tile(left, a, !trans_a, k0, i0, depth, m, a_ld, a_type, round);
            load_tile(right, b, trans_b, k0, j0, depth, n, b_ld, b_type, round);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int k = 0; k < DEPTH; k++) {
                vec row[RV];
                UNROLL for (int v = 0; v < RV; v++) row[v] = load_vec(gn + GN * v, right[k]);
                UNROLL for (int i = 0; i < RM; i++) {
                    const float x = left[k][gm * RM + i];
                    UNROLL for (int v = 0; v < RV; v++) sum[i][v] += x * row[v];
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const float old = from == 0 ? beta : 1.0f;
        UNROLL for (int i = 0; i < RM; i++) {
            const long row = i0 + gm * RM + i;
            UNROLL for (int v = 0; v < RV; v++) {
                const long col = j0 + VEC * (gn + GN * v), left_over = n - col;
                __global uchar *out = PLACE(c, to_c + row * c_ld + col);
                if (row >= m) continue;
#if VEC == 8
                put_product(sum[i][v].lo, out, left_over, c_type, alpha, old);
                out += c_type == F32 ? 16 : 8;
                put_product(sum[i][v].hi, out, left_over - 4, c_type, alpha, old);
#else
                put_product(sum[i][v], out, left_over, c_type, alpha, old);
#endif
            }
        }
    }
}
