/* Attention by tiles of 32 queries and 32 keys, 64 columns of a head at a time (Dao et al. 2022);
 * softmax as in Milakov and Gimelshein 2018. Nothing of size n x n leaves the group. A head wider
 * than 64 is done 64 output columns at a time, its scores made again for each.
 *
 * The order of sums depends on positions in the sequence only: a sequence gives the same bits
 * alone and beside others. At most 22 KiB of local memory. */

#define AT 32 /* queries, and keys, of a tile */
#define AD 64 /* columns of a head at a time */

/* The group's work-items as TQ x TK; each has RQ queries and RK keys (a multiple of 4: whole Philox
 * blocks) next to each other, and RC columns, TK apart. */
#define TK (AWG >= 64 ? 8 : AWG >= 32 ? 8 : AWG >= 8 ? 4 : AWG >= 4 ? 2 : AWG >= 2 ? 2 : 1)
#define TQ (AWG / TK)
#define RQ (AT / TQ)
#define RK (AT / TK)
#define RC (AD / TK)

#if AWG >= 32
#define AUNROLL _Pragma("unroll")
#else
#define AUNROLL
#endif

typedef __local float (*wide_tile)[AD + 1];
typedef __local float (*square_tile)[AT + 1];

/* One sequence and head, as core/ops/op_args.h has its columns. */
typedef struct sequence {
    long query_row, query_count, key_row, key_count;
    uint place, head;
    long query_pos, col, width;
} sequence;

/* Group g of heads x parts for each sequence. */
static sequence get_sequence(__global const int *seq, long seq_ld, int heads, long width, ulong g,
                             long parts, long *part) {
    ulong rest, p, s, h;
    split(g, (ulong)parts, &rest, &p);
    split(rest, (ulong)heads, &s, &h);
    seq += s * seq_ld;
    sequence q;
    q.query_row = seq[0];
    q.query_count = seq[1];
    q.key_row = seq[2];
    q.key_count = seq[3];
    q.place = (uint)seq[4];
    q.query_pos = seq[5];
    q.head = (uint)h;
    q.col = (long)h * width;
    q.width = width;
    *part = (long)p;
    return q;
}

/* Rows row0 .. of which `rows` are there, columns col .. of which `cols` are there; else zeros.
 * With `index`, row i is index[i]. */
static void load_rows(wide_tile tile, __global const data_t *x, long ld, long row0, long rows,
                      __global const int *index, long col, long cols) {
    for (uint e = get_local_id(0); e < AT * AD; e += AWG) {
        const uint r = e / AD, c = e % AD;
        float v = 0.0f;
        if (r < rows && c < cols) v = get1(x + (index ? (long)index[r] : row0 + r) * ld + col + c);
        tile[r][c] = v;
    }
}

/* acc += X Y^T for this work-item's rows of X (queries) and of Y (keys), `depth` columns of which
 * at most AD are used. */
static void multiply(float acc[RQ][RK], wide_tile x, wide_tile y, long depth, uint tq, uint tk) {
    for (int d = 0; d < AD && d < depth; d++) {
        float row[RK];
        AUNROLL for (int j = 0; j < RK; j++) row[j] = y[tk * RK + j][d];
        AUNROLL for (int i = 0; i < RQ; i++) {
            const float v = x[tq * RQ + i][d];
            AUNROLL for (int j = 0; j < RK; j++) acc[i][j] += v * row[j];
        }
    }
}

/* acc += S Y: rows of S and acc are this work-item's, columns are tk + TK c; `count` rows of Y, of
 * which at most AT are used. */
static void multiply_rows(float acc[RQ][RC], square_tile s, wide_tile y, long count, uint tq,
                          uint tk) {
    for (int j = 0; j < AT && j < count; j++) {
        float row[RC];
        AUNROLL for (int c = 0; c < RC; c++) row[c] = y[j][tk + TK * c];
        AUNROLL for (int i = 0; i < RQ; i++) {
            const float v = s[tq * RQ + i][j];
            AUNROLL for (int c = 0; c < RC; c++) acc[i][c] += v * row[c];
        }
    }
}

static void put_rows(float acc[RQ][RC], __global data_t *y, long ld, long row0, long rows,
                     long col, long cols, uint tq, uint tk) {
    for (int i = 0; i < RQ; i++)
        for (int c = 0; c < RC; c++)
            if (tq * RQ + i < rows && tk + TK * c < cols)
                put1(acc[i][c], y + (row0 + tq * RQ + i) * ld + col + tk + TK * c);
}

/* Does query i (from the sequence's first) see key j? */
static int sees(const sequence *s, int causal, long i, long j) {
    return i < s->query_count && j < s->key_count && (!causal || j <= s->query_pos + i);
}

/* Keys that a tile of queries from i0 on looks at. */
static long keys_of(const sequence *s, int causal, long i0) {
    const long last = min(s->query_count, i0 + AT) - 1;
    return causal ? min(s->key_count, s->query_pos + last + 1) : s->key_count;
}

static void zero_rows(float acc[RQ][RC]) {
    for (int i = 0; i < RQ; i++)
        for (int c = 0; c < RC; c++) acc[i][c] = 0.0f;
}

/* Dropout factors of query i and the four keys from j on. */
#define FACTORS(s, i, j) \
    drop_factors(DROP_ARGS, (s).head, (s).place, (uint)((s).query_pos + (i)), (uint)(j) / 4)

/* ---- forward ----------------------------------------------------------------------------------
 * o = drop(P) V with P = softmax(scale Q K^T), lse its log-sum-exp. A group takes tiles of queries
 * of one sequence and head, every `parts`-th. Reads K and V once for each tile of queries. */

__kernel GROUP(AWG) void k_attn_fwd(CDMAT(q), CDMAT(k), CDMAT(v), IMAT(seq), IMAT(kidx), DMAT(o),
                                    MAT(lse), const int heads, const long width, const int causal,
                                    const float scale, const long parts, DROP) {
    __local float x[AT][AD + 1], y[AT][AD + 1], p[AT][AT + 1], side[AT][TK];
    const uint lid = get_local_id(0), tk = lid % TK, tq = lid / TK;
    CDUSE(q);
    CDUSE(k);
    CDUSE(v);
    DUSE(o);
    USE(lse);
    long part;
    const sequence s = get_sequence(seq_base + seq_off, seq_ld, heads, width, get_group_id(0),
                                    parts, &part);
    __global const int *index =
        HAS(kidx) ? kidx_base + kidx_off + get_group_id(0) / ((ulong)parts * heads) * kidx_ld : 0;

    for (long i0 = part * AT; i0 < s.query_count; i0 += parts * AT)
        for (long out = 0; out < width; out += AD) {
            const long keys = keys_of(&s, causal, i0);
            float most[RQ], mass[RQ], acc[RQ][RC];
            zero_rows(acc);
            for (int i = 0; i < RQ; i++) {
                most[i] = -INFINITY;
                mass[i] = 0.0f;
            }
            for (long j0 = 0; j0 < keys; j0 += AT) {
                float z[RQ][RK];
                for (int i = 0; i < RQ; i++)
                    for (int j = 0; j < RK; j++) z[i][j] = 0.0f;
                for (long at = 0; at < width; at += AD) {
                    if (width > AD || j0 == 0)
                        load_rows(x, q, q_ld, s.query_row + i0, s.query_count - i0, 0, s.col + at,
                                  width - at);
                    load_rows(y, k, k_ld, s.key_row + j0, s.key_count - j0,
                              index ? index + j0 : 0, s.col + at, width - at);
                    barrier(CLK_LOCAL_MEM_FENCE);
                    multiply(z, x, y, width - at, tq, tk);
                    barrier(CLK_LOCAL_MEM_FENCE);
                }
                for (int i = 0; i < RQ; i++) {
                    float top = -INFINITY;
                    for (int j = 0; j < RK; j++) {
                        z[i][j] = sees(&s, causal, i0 + tq * RQ + i, j0 + tk * RK + j)
                                      ? z[i][j] * scale
                                      : -INFINITY;
                        top = fmax(top, z[i][j]);
                    }
                    side[tq * RQ + i][tk] = top;
                }
                load_rows(y, v, v_ld, s.key_row + j0, s.key_count - j0, index ? index + j0 : 0,
                          s.col + out, width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int i = 0; i < RQ; i++) {
                    float top = most[i];
                    for (int t = 0; t < TK; t++) top = fmax(top, side[tq * RQ + i][t]);
                    /* A row without a key so far: exp(-infinity - 0) = 0. */
                    const float base = top == -INFINITY ? 0.0f : top;
                    const float shrink = exp(most[i] - base);
                    float sum = 0.0f;
                    most[i] = top;
                    for (int c = 0; c < RC; c++) acc[i][c] *= shrink;
                    for (int j = 0; j < RK; j += 4) {
                        float4 e = exp((float4)(z[i][j], z[i][j + 1], z[i][j + 2], z[i][j + 3]) -
                                       base);
                        sum += sum4(e);
                        if (drop)
                            e = apply_drop(
                                FACTORS(s, i0 + tq * RQ + i, j0 + tk * RK + j), e);
                        p[tq * RQ + i][tk * RK + j] = e.x;
                        p[tq * RQ + i][tk * RK + j + 1] = e.y;
                        p[tq * RQ + i][tk * RK + j + 2] = e.z;
                        p[tq * RQ + i][tk * RK + j + 3] = e.w;
                    }
                    mass[i] = mass[i] * shrink + sum;
                }
                barrier(CLK_LOCAL_MEM_FENCE);
                multiply_rows(acc, p, y, keys - j0, tq, tk);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            for (int i = 0; i < RQ; i++) side[tq * RQ + i][tk] = mass[i];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = 0; i < RQ; i++) {
                const long row = i0 + tq * RQ + i;
                float sum = 0.0f;
                for (int t = 0; t < TK; t++) sum += side[tq * RQ + i][t];
                for (int c = 0; c < RC; c++) acc[i][c] = sum == 0.0f ? 0.0f : acc[i][c] / sum;
                if (HAS(lse) && tk == 0 && out == 0 && row < s.query_count)
                    lse[(s.query_row + row) * lse_ld + s.head] = most[i] + log(sum);
            }
            put_rows(acc, o, o_ld, s.query_row + i0, s.query_count - i0, s.col + out, width - out,
                     tq, tk);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
}

/* ---- backward ---------------------------------------------------------------------------------
 */

#define LANES (WG < 8 ? WG : 8)

/* delta = do . o of each row and head, 8 work-items for each. Reads both once. */
__kernel GROUP(WG) void k_attn_delta(CDMAT(o), CDMAT(grad), __global float *delta_base,
                                     const ulong delta_off, const long rows, const int heads,
                                     const long width) {
    __local float tmp[WG];
    const uint lid = get_local_id(0), lane = lid % LANES;
    const ulong unit = get_global_id(0) / LANES;
    ulong row, head;
    split(unit, (ulong)heads, &row, &head);
    float sum = 0.0f;
    if ((long)row < rows) {
        CDUSE(o) + (long)row * o_ld + (long)head * width;
        CDUSE(grad) + (long)row * grad_ld + (long)head * width;
        for (long c = lane; c < width; c += LANES) sum += get1(o + c) * get1(grad + c);
    }
    tmp[lid] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane != 0 || (long)row >= rows) return;
    sum = 0.0f;
    for (uint t = 0; t < LANES; t++) sum += tmp[lid + t];
    delta_base[delta_off + unit] = sum;
}

/* P and dS = P (drop(dP) - delta) of this work-item's pairs: z holds Q K^T and becomes drop(P),
 * d holds dO V^T and becomes scale dS. */
#define PAIRS(s, i0, j0) \
    for (int i = 0; i < RQ; i++) { \
        const long row = i0 + tq * RQ + i, at = (s).query_row + row; \
        const int there = row < (s).query_count; \
        const float l = there ? lse[at * lse_ld + (s).head] : 0.0f; \
        const float delta = there ? delta_base[delta_off + at * heads + (s).head] : 0.0f; \
        for (int j = 0; j < RK; j++) { \
            const long key = j0 + tk * RK + j; \
            float f = 1.0f; \
            if (drop) { \
                if (j % 4 == 0) factors = FACTORS(s, row, key); \
                f = j % 4 == 0 ? factors.x : j % 4 == 1 ? factors.y : j % 4 == 2 ? factors.z \
                                                                              : factors.w; \
            } \
            const int seen = sees(&(s), causal, row, key); \
            const float e = seen ? exp(z[i][j] * scale - l) : 0.0f; \
            const float grad_p = f == 0.0f ? 0.0f : f * d[i][j]; \
            z[i][j] = f == 0.0f ? 0.0f : f * e; \
            d[i][j] = seen ? scale * e * (grad_p - delta) : 0.0f; \
        } \
    }

#define BWD_OPERANDS \
    CDMAT(q), CDMAT(k), CDMAT(v), IMAT(seq), CMAT(lse), CDMAT(grad), \
        __global const float *delta_base, const ulong delta_off
#define BWD_PARAMS \
    const int heads, const long width, const int causal, const float scale, const long parts, DROP

/* z = Q K^T and d = dO V^T of a tile of pairs. Where the head is no wider than a tile, Q and K are
 * in x and y afterwards. */
#define SCORES(s, i0, j0) \
    for (int i = 0; i < RQ; i++) \
        for (int j = 0; j < RK; j++) z[i][j] = d[i][j] = 0.0f; \
    for (long at = 0; at < width; at += AD) { \
        load_rows(x, grad, grad_ld, (s).query_row + i0, (s).query_count - i0, 0, (s).col + at, \
                  width - at); \
        load_rows(y, v, v_ld, (s).key_row + j0, (s).key_count - j0, 0, (s).col + at, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        multiply(d, x, y, width - at, tq, tk); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        load_rows(x, q, q_ld, (s).query_row + i0, (s).query_count - i0, 0, (s).col + at, \
                  width - at); \
        load_rows(y, k, k_ld, (s).key_row + j0, (s).key_count - j0, 0, (s).col + at, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        multiply(z, x, y, width - at, tq, tk); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }

/* dq = scale dS K. A group takes tiles of queries, every `parts`-th. */
__kernel GROUP(AWG) void k_attn_bwd_q(BWD_OPERANDS, DMAT(dq), BWD_PARAMS) {
    __local float x[AT][AD + 1], y[AT][AD + 1], ds[AT][AT + 1];
    const uint lid = get_local_id(0), tk = lid % TK, tq = lid / TK;
    CDUSE(q);
    CDUSE(k);
    CDUSE(v);
    CUSE(lse);
    CDUSE(grad);
    DUSE(dq);
    long part;
    float4 factors = (float4)(1.0f);
    const sequence s = get_sequence(seq_base + seq_off, seq_ld, heads, width, get_group_id(0),
                                    parts, &part);
    for (long i0 = part * AT; i0 < s.query_count; i0 += parts * AT)
        for (long out = 0; out < width; out += AD) {
            const long keys = keys_of(&s, causal, i0);
            float acc[RQ][RC];
            zero_rows(acc);
            for (long j0 = 0; j0 < keys; j0 += AT) {
                float z[RQ][RK], d[RQ][RK];
                SCORES(s, i0, j0)
                PAIRS(s, i0, j0)
                for (int i = 0; i < RQ; i++)
                    for (int j = 0; j < RK; j++) ds[tq * RQ + i][tk * RK + j] = d[i][j];
                if (width > AD)
                    load_rows(y, k, k_ld, s.key_row + j0, s.key_count - j0, 0, s.col + out,
                              width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                multiply_rows(acc, ds, y, keys - j0, tq, tk);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            put_rows(acc, dq, dq_ld, s.query_row + i0, s.query_count - i0, s.col + out,
                     width - out, tq, tk);
        }
}

/* dk = scale dS^T Q and dv = drop(P)^T dO. A group takes tiles of keys, every `parts`-th. */
__kernel GROUP(AWG) void k_attn_bwd_kv(BWD_OPERANDS, DMAT(dk), DMAT(dv), BWD_PARAMS) {
    __local float x[AT][AD + 1], y[AT][AD + 1], ds[AT][AT + 1];
    const uint lid = get_local_id(0), tk = lid % TK, tq = lid / TK;
    CDUSE(q);
    CDUSE(k);
    CDUSE(v);
    CUSE(lse);
    CDUSE(grad);
    DUSE(dk);
    DUSE(dv);
    long part;
    float4 factors = (float4)(1.0f);
    const sequence s = get_sequence(seq_base + seq_off, seq_ld, heads, width, get_group_id(0),
                                    parts, &part);
    for (long j0 = part * AT; j0 < s.key_count; j0 += parts * AT)
        for (long out = 0; out < width; out += AD) {
            float key[RQ][RC], value[RQ][RC];
            zero_rows(key);
            zero_rows(value);
            /* Causal: the first query that sees the tile, at a multiple of AT. */
            const long first = causal && j0 > s.query_pos ? (j0 - s.query_pos) / AT * AT : 0;
            for (long i0 = first; i0 < s.query_count; i0 += AT) {
                float z[RQ][RK], d[RQ][RK];
                SCORES(s, i0, j0)
                PAIRS(s, i0, j0)
                for (int i = 0; i < RQ; i++)
                    for (int j = 0; j < RK; j++) ds[tk * RK + j][tq * RQ + i] = d[i][j];
                if (width > AD)
                    load_rows(x, q, q_ld, s.query_row + i0, s.query_count - i0, 0, s.col + out,
                              width - out);
                load_rows(y, grad, grad_ld, s.query_row + i0, s.query_count - i0, 0, s.col + out,
                          width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                multiply_rows(key, ds, x, s.query_count - i0, tq, tk);
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int i = 0; i < RQ; i++)
                    for (int j = 0; j < RK; j++) ds[tk * RK + j][tq * RQ + i] = z[i][j];
                barrier(CLK_LOCAL_MEM_FENCE);
                multiply_rows(value, ds, y, s.query_count - i0, tq, tk);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            put_rows(key, dk, dk_ld, s.key_row + j0, s.key_count - j0, s.col + out, width - out,
                     tq, tk);
            put_rows(value, dv, dv_ld, s.key_row + j0, s.key_count - j0, s.col + out, width - out,
                     tq, tk);
        }
}
