/* Matrix products of any shape, strides, transpositions and batches. Large plain ones go to CLBlast
 * where the device can run it (backends/opencl_gemm.c). */

#define TILE 64  /* rows and columns of C that a group makes */
#define DEPTH 16 /* of the sum at a time */
#define BLOCK_DEPTH 1024 /* summed before it is added to C: rounding grows with the blocks only */

/* The group's work-items as GM x GN; each makes RM x RN elements, GM and GN apart. */
#define GN (GWG >= 64 ? 8 : GWG >= 16 ? 4 : GWG >= 4 ? 2 : 1)
#define GM (GWG / GN)
#define RM (TILE / GM)
#define RN (TILE / GN)

#if GWG >= 32
#define UNROLL _Pragma("unroll")
#else
#define UNROLL /* a work-item makes so much that loops stay loops */
#endif

/* DEPTH x TILE elements of op(X) into `tile`, zeros beyond its ends: element (k, i) lies at
 * x[k * k_step + i * i_step], one of the steps being 1; neighbours read along it. */
static void load_tile(__local float (*tile)[TILE + 1], __global const float *x, long k0, long i0,
                      long depth, long count, long k_step, long i_step) {
    for (uint e = get_local_id(0); e < TILE * DEPTH; e += GWG) {
        const uint k = k_step == 1 ? e % DEPTH : e / TILE, i = k_step == 1 ? e / DEPTH : e % TILE;
        tile[k][i] = k0 + k < depth && i0 + i < count
                         ? x[(k0 + k) * k_step + (i0 + i) * i_step]
                         : 0.0f;
    }
}

/* C = alpha op(A) op(B) + beta C for batch0 x batch1 matrices; a0 .. c1 lead from one to the next.
 * depth is 0 where alpha is. For each element of C: 2 depth / 64 elements read, one written. */
__kernel GROUP(GWG) void k_gemm(CMAT(a), CMAT(b), MAT(c), const long m, const long n,
                                const long depth, const int trans_a, const int trans_b,
                                const float alpha, const float beta, const long batch1,
                                const long a0, const long a1, const long b0, const long b1,
                                const long c0, const long c1) {
    __local float left[DEPTH][TILE + 1], right[DEPTH][TILE + 1];
    const uint lid = get_local_id(0), gn = lid % GN, gm = lid / GN;
    ulong tile, batch, i_tile, j_tile, outer, inner;
    split(get_group_id(0), (ulong)((m + TILE - 1) / TILE) * (ulong)((n + TILE - 1) / TILE), &batch,
          &tile);
    split(tile, (ulong)((n + TILE - 1) / TILE), &i_tile, &j_tile);
    split(batch, (ulong)batch1, &outer, &inner);
    const long i0 = (long)i_tile * TILE, j0 = (long)j_tile * TILE;
    CUSE(a) + (long)outer * a0 + (long)inner * a1;
    CUSE(b) + (long)outer * b0 + (long)inner * b1;
    USE(c) + (long)outer * c0 + (long)inner * c1;

    for (long from = 0; from == 0 || from < depth; from += BLOCK_DEPTH) {
        const long to = min(depth, from + BLOCK_DEPTH);
        float sum[RM][RN];
        for (int i = 0; i < RM; i++)
            for (int j = 0; j < RN; j++) sum[i][j] = 0.0f;
        for (long k0 = from; k0 < to; k0 += DEPTH) {
            load_tile(left, a, k0, i0, depth, m, trans_a ? a_ld : 1, trans_a ? 1 : a_ld);
            load_tile(right, b, k0, j0, depth, n, trans_b ? 1 : b_ld, trans_b ? b_ld : 1);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int k = 0; k < DEPTH; k++) {
                float row[RN];
                UNROLL for (int j = 0; j < RN; j++) row[j] = right[k][gn + j * GN];
                UNROLL for (int i = 0; i < RM; i++) {
                    const float x = left[k][gm + i * GM];
                    UNROLL for (int j = 0; j < RN; j++) sum[i][j] += x * row[j];
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const float old = from == 0 ? beta : 1.0f;
        UNROLL for (int i = 0; i < RM; i++) {
            UNROLL for (int j = 0; j < RN; j++) {
                const long at_i = i0 + gm + i * GM, at_j = j0 + gn + j * GN;
                if (at_i >= m || at_j >= n) continue;
                __global float *out = c + at_i * c_ld + at_j;
                const float new = alpha == 0.0f ? 0.0f : alpha * sum[i][j];
                *out = old == 0.0f ? new : new + old * *out;
            }
        }
    }
}
