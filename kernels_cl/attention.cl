/* Attention by tiles of 32 queries and 32 keys, 64 columns of a head at a time (Dao et al. 2022);
 * softmax as in Milakov and Gimelshein 2018. Nothing of size n x n leaves the group. A head wider
 * than 64 is done 64 output columns at a time, its scores made again for each.
 *
 * The order of sums depends on positions in the sequence only: a sequence gives the same bits
 * alone and beside others. At most 23 KiB of local memory. */

#define AT 32 /* queries, and keys, of a tile */
#define AD 64 /* columns of a head at a time */
#define APAD 4 /* rows of a tile begin in different banks, and on 16 bytes */

/* The group's work-items as TQ x TK. Of a tile each has RQ rows, TQ apart, and KW wides of keys or
 * CW wides of columns, TK wides apart. */
#define TK \
    (W == 16 ? (AWG >= 2 ? 2 : 1) : AWG >= 32 ? 8 : AWG >= 8 ? 4 : AWG >= 2 ? 2 : 1)
#define TQ (AWG / TK)
#define RQ (AT / TQ)
#define KW (AT / TK / W)
#define CW (AD / TK / W)
#define ROW(i) (tq + TQ * (i))
#define COL(n) (W * (tk + TK * (n)))
#define RI (RQ < 4 ? RQ : 4) /* rows whose sums are in registers, */
#define RN(n) (W == 16 || (n) > 2 ? 1 : (n)) /* and wides of each */

#define AUNROLL _Pragma("unroll")

/* Rows of columns; rows of keys: scores, and operands turned so that keys lie side by side. */
typedef __local float (*wide_tile)[AD + APAD];
typedef __local float (*square_tile)[AT + APAD];
#define TURNED(y) ((square_tile)(__local float *)(y))
/* Of a tile that holds AT rows of AD columns, or AD rows of AT. */
#define BOTH_WAYS (AD * (AT + APAD) / (AD + APAD) + 1)

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

/* Row r of which `rows` are there, columns col .. of which `cols` are there, else zeros. With
 * `index`, row i is index[i]. */
static wide load_row(__global const data_t *x, long ld, long row0, long r, long rows,
                     __global const int *index, long col, long cols) {
    if (r >= rows) return (wide)(0.0f);
    return get_wide(x + (index ? (long)index[r] : row0 + r) * ld + col, cols);
}

/* Rows of a tile as far as there are some. */
static void load_rows(wide_tile tile, __global const data_t *x, long ld, long row0, long rows,
                      __global const int *index, long col, long cols) {
    const uint most = (uint)min(rows, (long)AT) * (AD / W);
    for (uint e = get_local_id(0); e < most; e += AWG) {
        const uint r = e / (AD / W), c = e % (AD / W) * W;
        WIDE(vstore)(load_row(x, ld, row0, r, rows, index, col + c, cols - c), 0, &tile[r][c]);
    }
}

/* The same, turned: tile[c][r]. Rows come in fours. */
static void load_turned(square_tile tile, __global const data_t *x, long ld, long row0, long rows,
                        __global const int *index, long col, long cols) {
    const uint most = (uint)(min(rows, (long)AT) + 3) / 4 * (AD / W);
    for (uint e = get_local_id(0); e < most; e += AWG) {
        const uint r = e / (AD / W) * 4, c = e % (AD / W) * W;
        wide v[4];
        for (uint i = 0; i < 4; i++)
            v[i] = load_row(x, ld, row0, r + i, rows, index, col + c, cols - c);
        put_turned(v, &tile[c][r], AT + APAD);
    }
}

/* acc += A B for this work-item's rows and wides, of which those below `rows` and `cols` count;
 * sums over `depth`. Element (i, d) of A lies at a[i * a_row + d * a_depth], row d of B at
 * b[d * b_ld]. */
#define DEFINE_MULTIPLY(name, n_wides) \
    static void name(wide acc[RQ][n_wides], __local const float *a, uint a_row, uint a_depth, \
                     __local const float *b, uint b_ld, long rows, long cols, long depth, uint tq, \
                     uint tk) { \
        for (int i0 = 0; i0 < RQ && ROW(i0) < rows; i0 += RI) \
            for (int n0 = 0; n0 < n_wides && COL(n0) < cols; n0 += RN(n_wides)) { \
                wide sum[RI][RN(n_wides)]; \
                AUNROLL for (int i = 0; i < RI; i++) \
                    AUNROLL for (int n = 0; n < RN(n_wides); n++) sum[i][n] = acc[i0 + i][n0 + n]; \
                for (int d = 0; d < depth; d++) { \
                    wide row[RN(n_wides)]; \
                    AUNROLL for (int n = 0; n < RN(n_wides); n++) \
                        row[n] = WIDE(vload)(0, b + d * b_ld + COL(n0 + n)); \
                    AUNROLL for (int i = 0; i < RI; i++) { \
                        const float v = a[ROW(i0 + i) * a_row + d * a_depth]; \
                        AUNROLL for (int n = 0; n < RN(n_wides); n++) sum[i][n] += v * row[n]; \
                    } \
                } \
                AUNROLL for (int i = 0; i < RI; i++) \
                    AUNROLL for (int n = 0; n < RN(n_wides); n++) acc[i0 + i][n0 + n] = sum[i][n]; \
            } \
    }
DEFINE_MULTIPLY(multiply_keys, KW)
DEFINE_MULTIPLY(multiply_cols, CW)

/* z += X Y^T, Y turned. */
#define SCORE(z, x, y, rows, keys, width) \
    multiply_keys(z, x[0], AD + APAD, 1, TURNED(y)[0], AT + APAD, rows, keys, \
                  min((long)(width), (long)AD), tq, tk)
/* acc += S Y; acc += S^T Y. */
#define GATHER(acc, s, y, rows, cols, count) \
    multiply_cols(acc, s[0], AT + APAD, 1, y[0], AD + APAD, rows, cols, \
                  min((long)(count), (long)AT), tq, tk)
#define GATHER_TURNED(acc, s, y, rows, cols, count) \
    multiply_cols(acc, s[0], 1, AT + APAD, y[0], AD + APAD, rows, cols, \
                  min((long)(count), (long)AT), tq, tk)

static void put_rows(wide acc[RQ][CW], __global data_t *y, long ld, long row0, long rows, long col,
                     long cols, uint tq, uint tk) {
    for (int i = 0; i < RQ && ROW(i) < rows; i++)
        for (int n = 0; n < CW && COL(n) < cols; n++)
            put_wide(acc[i][n], y + (row0 + ROW(i)) * ld + col + COL(n), cols - COL(n));
}

/* How many keys query i, from the sequence's first, sees. */
static long seen_by(const sequence *s, int causal, long i) {
    if (i >= s->query_count) return 0;
    return causal ? min(s->key_count, s->query_pos + i + 1) : s->key_count;
}

/* Keys that a tile of queries from i0 on looks at. */
static long keys_of(const sequence *s, int causal, long i0) {
    const long last = min(s->query_count, i0 + AT) - 1;
    return causal ? min(s->key_count, s->query_pos + last + 1) : s->key_count;
}

static void zero_rows(wide acc[RQ][CW]) {
    for (int i = 0; i < RQ; i++)
        for (int n = 0; n < CW; n++) acc[i][n] = (wide)(0.0f);
}

/* Dropout factors of query i and the keys from j on. */
#define FACTORS(s, i, j) \
    drop_factors(DROP_ARGS, (s).head, (s).place, (uint)((s).query_pos + (i)), (uint)(j) / 4)

/* ---- forward ----------------------------------------------------------------------------------
 * o = drop(P) V with P = softmax(scale Q K^T), lse its log-sum-exp. A group takes tiles of queries
 * of one sequence and head, every `parts`-th. Reads K and V once for each tile of queries. */

__kernel GROUP(AWG) void k_attn_fwd(CDMAT(q), CDMAT(k), CDMAT(v), IMAT(seq), IMAT(kidx), DMAT(o),
                                    MAT(lse), const int heads, const long width, const int causal,
                                    const float scale, const long parts, DROP) {
    __local float x[AT][AD + APAD], y[BOTH_WAYS][AD + APAD], p[AT][AT + APAD], side[AT][TK];
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
            const long rows = min(s.query_count - i0, (long)AT);
            float most[RQ], mass[RQ];
            wide acc[RQ][CW];
            zero_rows(acc);
            for (int i = 0; i < RQ; i++) {
                most[i] = -INFINITY;
                mass[i] = 0.0f;
            }
            for (long j0 = 0; j0 < keys; j0 += AT) {
                const long there = min(keys - j0, (long)AT);
                wide z[RQ][KW];
                for (int i = 0; i < RQ; i++)
                    for (int n = 0; n < KW; n++) z[i][n] = (wide)(0.0f);
                for (long at = 0; at < width; at += AD) {
                    if (width > AD || j0 == 0)
                        load_rows(x, q, q_ld, s.query_row + i0, rows, 0, s.col + at, width - at);
                    load_turned(TURNED(y), k, k_ld, s.key_row + j0, there, index ? index + j0 : 0,
                                s.col + at, width - at);
                    barrier(CLK_LOCAL_MEM_FENCE);
                    SCORE(z, x, y, rows, there, width - at);
                    barrier(CLK_LOCAL_MEM_FENCE);
                }
                for (int i = 0; i < RQ && ROW(i) < rows; i++) {
                    const long seen = seen_by(&s, causal, i0 + ROW(i)) - j0;
                    float top = -INFINITY;
                    for (int n = 0; n < KW; n++) {
                        z[i][n] = fill_wide(z[i][n] * scale, seen - COL(n), -INFINITY);
                        top = fmax(top, max_wide(z[i][n]));
                    }
                    side[ROW(i)][tk] = top;
                }
                load_rows(y, v, v_ld, s.key_row + j0, there, index ? index + j0 : 0, s.col + out,
                          width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int i = 0; i < RQ && ROW(i) < rows; i++) {
                    float top = most[i];
                    for (int t = 0; t < TK; t++) top = fmax(top, side[ROW(i)][t]);
                    /* A row without a key so far: exp(-infinity - 0) = 0. */
                    const float base = top == -INFINITY ? 0.0f : top;
                    const float shrink = exp(most[i] - base);
                    wide sum = (wide)(0.0f);
                    most[i] = top;
                    for (int n = 0; n < CW; n++) acc[i][n] *= shrink;
                    for (int n = 0; n < KW && COL(n) < there; n++) {
                        wide e = exp(z[i][n] - base);
                        sum += e;
                        if (drop) e = apply_drop(FACTORS(s, i0 + ROW(i), j0 + COL(n)), e);
                        WIDE(vstore)(e, 0, &p[ROW(i)][COL(n)]);
                    }
                    mass[i] = mass[i] * shrink + sum_wide(sum);
                }
                barrier(CLK_LOCAL_MEM_FENCE);
                GATHER(acc, p, y, rows, width - out, there);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            for (int i = 0; i < RQ && ROW(i) < rows; i++) side[ROW(i)][tk] = mass[i];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int i = 0; i < RQ && ROW(i) < rows; i++) {
                const long row = i0 + ROW(i);
                float sum = 0.0f;
                for (int t = 0; t < TK; t++) sum += side[ROW(i)][t];
                for (int n = 0; n < CW; n++)
                    acc[i][n] = s.key_count == 0 ? (wide)(0.0f) : acc[i][n] / sum;
                if (HAS(lse) && tk == 0 && out == 0)
                    lse[(s.query_row + row) * lse_ld + s.head] = most[i] + log(sum);
            }
            put_rows(acc, o, o_ld, s.query_row + i0, rows, s.col + out, width - out, tq, tk);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
}

/* ---- backward ---------------------------------------------------------------------------------
 */

#define LANES (W == 16 ? 1 : WG < 8 ? WG : 8)

/* delta = do . o of each row and head, LANES work-items for each. Reads both once. */
__kernel GROUP(WG) void k_attn_delta(CDMAT(o), CDMAT(grad), __global float *delta_base,
                                     const ulong delta_off, const long rows, const int heads,
                                     const long width) {
    __local float tmp[WG];
    const uint lid = get_local_id(0), lane = lid % LANES;
    const ulong unit = get_global_id(0) / LANES;
    ulong row, head;
    split(unit, (ulong)heads, &row, &head);
    wide sum = (wide)(0.0f);
    if ((long)row < rows) {
        CDUSE(o) + (long)row * o_ld + (long)head * width;
        CDUSE(grad) + (long)row * grad_ld + (long)head * width;
        for (long c = W * (long)lane; c < width; c += W * LANES)
            sum += get_wide(o + c, width - c) * get_wide(grad + c, width - c);
    }
    tmp[lid] = sum_wide(sum);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane != 0 || (long)row >= rows) return;
    float all = 0.0f;
    for (uint t = 0; t < LANES; t++) all += tmp[lid + t];
    delta_base[delta_off + unit] = all;
}

/* P and dS = P (drop(dP) - delta) of this work-item's pairs: z holds Q K^T and becomes drop(P),
 * d holds dO V^T and becomes scale dS. */
#define PAIRS(s, i0, j0, rows, there) \
    for (int i = 0; i < RQ && ROW(i) < rows; i++) { \
        const long row = i0 + ROW(i), at = (s).query_row + row; \
        const float l = lse[at * lse_ld + (s).head]; \
        const float delta = delta_base[delta_off + at * heads + (s).head]; \
        const long seen = seen_by(&(s), causal, row) - j0; \
        for (int n = 0; n < KW && COL(n) < there; n++) { \
            const wide e = fill_wide(exp(z[i][n] * scale - l), seen - COL(n), 0.0f); \
            wide grad_p = d[i][n]; \
            z[i][n] = e; \
            if (drop) { \
                const wide f = FACTORS(s, row, j0 + COL(n)); \
                grad_p = apply_drop(f, grad_p); \
                z[i][n] = apply_drop(f, e); \
            } \
            d[i][n] = fill_wide(scale * e * (grad_p - delta), seen - COL(n), 0.0f); \
        } \
    }

/* Of this work-item's pairs to a tile of all. */
static void put_pairs(wide z[RQ][KW], square_tile tile, long rows, long there, uint tq, uint tk) {
    for (int i = 0; i < RQ && ROW(i) < rows; i++)
        for (int n = 0; n < KW && COL(n) < there; n++)
            WIDE(vstore)(z[i][n], 0, &tile[ROW(i)][COL(n)]);
}

#define BWD_OPERANDS \
    CDMAT(q), CDMAT(k), CDMAT(v), IMAT(seq), CMAT(lse), CDMAT(grad), \
        __global const float *delta_base, const ulong delta_off
#define BWD_PARAMS \
    const int heads, const long width, const int causal, const float scale, const long parts, DROP

/* z = Q K^T and d = dO V^T of a tile of pairs, `rows` x `there`. Where the head is no wider than a
 * tile, Q is in x afterwards. */
#define SCORES(s, i0, j0, rows, there) \
    for (int i = 0; i < RQ; i++) \
        for (int n = 0; n < KW; n++) z[i][n] = d[i][n] = (wide)(0.0f); \
    for (long at = 0; at < width; at += AD) { \
        load_rows(x, grad, grad_ld, (s).query_row + i0, rows, 0, (s).col + at, width - at); \
        load_turned(TURNED(y), v, v_ld, (s).key_row + j0, there, 0, (s).col + at, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        SCORE(d, x, y, rows, there, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        load_rows(x, q, q_ld, (s).query_row + i0, rows, 0, (s).col + at, width - at); \
        load_turned(TURNED(y), k, k_ld, (s).key_row + j0, there, 0, (s).col + at, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
        SCORE(z, x, y, rows, there, width - at); \
        barrier(CLK_LOCAL_MEM_FENCE); \
    }

/* dq = scale dS K. A group takes tiles of queries, every `parts`-th. */
__kernel GROUP(AWG) void k_attn_bwd_q(BWD_OPERANDS, DMAT(dq), BWD_PARAMS) {
    __local float x[AT][AD + APAD], y[BOTH_WAYS][AD + APAD], ds[AT][AT + APAD];
    const uint lid = get_local_id(0), tk = lid % TK, tq = lid / TK;
    CDUSE(q);
    CDUSE(k);
    CDUSE(v);
    CUSE(lse);
    CDUSE(grad);
    DUSE(dq);
    long part;
    const sequence s = get_sequence(seq_base + seq_off, seq_ld, heads, width, get_group_id(0),
                                    parts, &part);
    for (long i0 = part * AT; i0 < s.query_count; i0 += parts * AT)
        for (long out = 0; out < width; out += AD) {
            const long keys = keys_of(&s, causal, i0);
            const long rows = min(s.query_count - i0, (long)AT);
            wide acc[RQ][CW];
            zero_rows(acc);
            for (long j0 = 0; j0 < keys; j0 += AT) {
                const long there = min(keys - j0, (long)AT);
                wide z[RQ][KW], d[RQ][KW];
                SCORES(s, i0, j0, rows, there)
                PAIRS(s, i0, j0, rows, there)
                put_pairs(d, ds, rows, there, tq, tk);
                load_rows(y, k, k_ld, s.key_row + j0, there, 0, s.col + out, width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                GATHER(acc, ds, y, rows, width - out, there);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            put_rows(acc, dq, dq_ld, s.query_row + i0, rows, s.col + out, width - out, tq, tk);
        }
}

/* dk = scale dS^T Q and dv = drop(P)^T dO. A group takes tiles of keys, every `parts`-th. */
__kernel GROUP(AWG) void k_attn_bwd_kv(BWD_OPERANDS, DMAT(dk), DMAT(dv), BWD_PARAMS) {
    __local float x[AT][AD + APAD], y[BOTH_WAYS][AD + APAD], ds[AT][AT + APAD];
    const uint lid = get_local_id(0), tk = lid % TK, tq = lid / TK;
    CDUSE(q);
    CDUSE(k);
    CDUSE(v);
    CUSE(lse);
    CDUSE(grad);
    DUSE(dk);
    DUSE(dv);
    long part;
    const sequence s = get_sequence(seq_base + seq_off, seq_ld, heads, width, get_group_id(0),
                                    parts, &part);
    for (long j0 = part * AT; j0 < s.key_count; j0 += parts * AT)
        for (long out = 0; out < width; out += AD) {
            const long there = min(s.key_count - j0, (long)AT);
            wide key[RQ][CW], value[RQ][CW];
            zero_rows(key);
            zero_rows(value);
            /* Causal: the first query that sees the tile, at a multiple of AT. */
            const long first = causal && j0 > s.query_pos ? (j0 - s.query_pos) / AT * AT : 0;
            for (long i0 = first; i0 < s.query_count; i0 += AT) {
                const long rows = min(s.query_count - i0, (long)AT);
                wide z[RQ][KW], d[RQ][KW];
                SCORES(s, i0, j0, rows, there)
                PAIRS(s, i0, j0, rows, there)
                put_pairs(d, ds, rows, there, tq, tk);
                if (width > AD)
                    load_rows(x, q, q_ld, s.query_row + i0, rows, 0, s.col + out, width - out);
                load_rows(y, grad, grad_ld, s.query_row + i0, rows, 0, s.col + out, width - out);
                barrier(CLK_LOCAL_MEM_FENCE);
                GATHER_TURNED(key, ds, x, there, width - out, rows);
                barrier(CLK_LOCAL_MEM_FENCE);
                put_pairs(z, ds, rows, there, tq, tk);
                barrier(CLK_LOCAL_MEM_FENCE);
                GATHER_TURNED(value, ds, y, there, width - out, rows);
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            put_rows(key, dk, dk_ld, s.key_row + j0, there, s.col + out, width - out, tq, tk);
            put_rows(value, dv, dv_ld, s.key_row + j0, there, s.col + out, width - out, tq, tk);
        }
}
