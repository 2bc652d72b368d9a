/* Attention by tiles of queries and keys (Dao et al. 2022), softmax as in Milakov and Gimelshein
 * 2018. Nothing of size n x n leaves a block. The order of sums depends on positions in the
 * sequence only: a sequence gives the same bits alone and beside others.
 *
 * A head is cut into slices of W columns, of which NS are kept at a time: W = 32 and NS = 1 for
 * heads of up to 32, W = 64 and NS = 1 up to 64, NS = 2 up to 128. A wider head is done NS slices
 * of the output at a time, its scores made again for each: any width, at some cost.
 *
 * Tiles lie in shared memory as fp32, at most 47 KiB. 128 threads stand as 16 x 8 (tq, tk); each
 * has RQ queries next to each other and 4 keys next to each other, so that one Philox block covers
 * them; of an output tile it has RQ rows and the quads tk, tk + 8 ... of each slice. Warps beyond
 * the last query only load. Rows of a tile are W + 4 floats apart: eight threads that read quads of
 * eight neighbouring rows meet no bank twice. Keys stand in the order 0, 4, 8 ... 1, 5, 9 ... for
 * that reason. */
#include "kernels_cuda/common.cuh"

#define THREADS 128
/* Blocks on a multiprocessor that registers are to allow: of the largest, most cards' shared memory
 * holds two, and one where it has 64 KiB (6.0, 7.5). So registers may be many. */
#define RESIDENT 2
#define TK 8
#define TQ (THREADS / TK)
#define KEYS 32            /* of a tile */
#define PAIR_LD (KEYS + 4) /* of a tile of query-key pairs */

INLINE int key_slot(int key) { return key % 4 * TK + key / 4; }

INLINE f4 shared4(const float *p) {
    const pack4<float> u = *reinterpret_cast<const pack4<float> *>(p);
    return f4{{u.v[0], u.v[1], u.v[2], u.v[3]}};
}

INLINE void put_shared4(float *p, const f4 &x) { store4(p, x, 4, 1); }

/* One sequence and head, as core/ops/op_args.h has its columns. */
struct sequence {
    int64_t query_row, query_count, key_row, key_count, query_pos, col;
    int64_t number, part; /* of the sequence; of the `parts` blocks that share it */
    uint32_t place, head;
};

INLINE sequence get_sequence(const btcu_attn &a, uint32_t parts) {
    sequence s;
    s.part = blockIdx.x % parts;
    s.head = blockIdx.x / parts % (uint32_t)a.heads;
    s.number = blockIdx.x / parts / (uint32_t)a.heads;
    const int32_t *seq = row_of<int32_t>(a.seq, s.number);
    s.query_row = seq[BT_SEQ_QUERY_ROW];
    s.query_count = seq[BT_SEQ_QUERY_COUNT];
    s.key_row = seq[BT_SEQ_KEY_ROW];
    s.key_count = seq[BT_SEQ_KEY_COUNT];
    s.place = (uint32_t)seq[BT_SEQ_PLACE];
    s.query_pos = seq[BT_SEQ_QUERY_POS];
    s.col = (int64_t)s.head * a.width;
    return s;
}

/* Does query i (from the sequence's first) see key j? */
INLINE bool sees(const sequence &s, int causal, int64_t i, int64_t j) {
    return i < s.query_count && j < s.key_count && (!causal || j <= s.query_pos + i);
}

/* Keys that queries up to `last` look at. */
INLINE int64_t keys_of(const sequence &s, int causal, int64_t last) {
    const int64_t seen = s.query_pos + (last < s.query_count ? last : s.query_count - 1) + 1;
    return causal && seen < s.key_count ? seen : s.key_count;
}

/* ---- tiles -------------------------------------------------------------------------------------
 */

/* ROWS rows from row0 on, of which `rows` are there, W columns from col on, of which `cols` are
 * there; else zeros. With `index`, row i is index[i]. Keys go to their slots. */
template <class T, int W, int ROWS, bool IS_KEYS>
INLINE void load_tile(float *tile, const btcu_mat &m, int64_t row0, int64_t rows,
                      const int32_t *index, int64_t col, int64_t cols, int wide) {
    for (int e = (int)threadIdx.x; e < ROWS * (W / 4); e += THREADS) {
        const int r = e / (W / 4), c = 4 * (e % (W / 4));
        f4 v = zero4();
        if (r < rows && c < cols)
            v = load4(row_of<T>(m, index ? (int64_t)index[r] : row0 + r) + col + c, cols - c, wide);
        put_shared4(tile + (IS_KEYS ? key_slot(r) : r) * (W + 4) + c, v);
    }
}

/* Of each thread's RQ rows, those that this warp works on, where a tile has `rows`: all, the first
 * (one query a sequence, as in decoding) or none, when it only helps to load. Nobody reads the
 * others. The same in all lanes. */
template <int RQ> INLINE int rows_of_each(int64_t rows) {
    const int64_t left = rows - threadIdx.x / 32 * (32 / TK) * RQ;
    return left > 1 ? RQ : left == 1;
}

/* z += X Y^T for the first N of this thread's rows of X (queries), and those of Y (keys), `depth`
 * columns of which W are in the tiles. */
template <int W, int N, int RQ>
INLINE void multiply(f4 (&z)[RQ], const float *x, const float *y, int64_t depth) {
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
    for (int d = 0; d < W && d < depth; d += 4) {
        f4 key[4];
#pragma unroll
        for (int j = 0; j < 4; j++) key[j] = shared4(y + (j * TK + tk) * (W + 4) + d);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const f4 q = shared4(x + (tq * RQ + i) * (W + 4) + d);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) z[i].v[j] += q.v[c] * key[j].v[c];
        }
    }
}

/* The same for n of RQ rows, as rows_of_each gives them. */
template <int W, int RQ>
INLINE void multiply_each(f4 (&z)[RQ], const float *x, const float *y, int64_t depth, int n) {
    if (n > 1) multiply<W, RQ>(z, x, y, depth);
    if (n == 1) multiply<W, 1>(z, x, y, depth);
}

/* acc += P Y: the first N of this thread's RQ rows of P and acc; `count` rows of Y, of which KEYS
 * are in the tile. */
template <int W, int N, bool IS_KEYS, int RQ>
INLINE void multiply_rows(f4 (&acc)[RQ][W / 32], const float *p, const float *y, int64_t count) {
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
    for (int k = 0; k < KEYS && k < count; k += 4) {
        f4 row[N];
#pragma unroll
        for (int i = 0; i < N; i++) row[i] = shared4(p + (tq * RQ + i) * PAIR_LD + k);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int g = 0; g < W / 32; g++) {
                const int at = IS_KEYS ? j * TK + k / 4 : k + j;
                const f4 v = shared4(y + at * (W + 4) + 32 * g + 4 * tk);
#pragma unroll
                for (int i = 0; i < N; i++)
#pragma unroll
                    for (int c = 0; c < 4; c++) acc[i][g].v[c] += row[i].v[j] * v.v[c];
            }
    }
}

template <int W, int RQ, bool IS_KEYS>
INLINE void multiply_each_row(f4 (&acc)[RQ][W / 32], const float *p, const float *y, int64_t count,
                              int n) {
    if (n > 1) multiply_rows<W, RQ, IS_KEYS>(acc, p, y, count);
    if (n == 1) multiply_rows<W, 1, IS_KEYS>(acc, p, y, count);
}

/* This thread's part of an output slice from column `col` of the head on. */
template <class T, int W, int RQ>
INLINE void put_rows(const f4 (&acc)[RQ][W / 32], const btcu_mat &m, int64_t row0, int64_t rows,
                     const sequence &s, int64_t col, int64_t width, int wide) {
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
#pragma unroll
    for (int i = 0; i < RQ; i++)
#pragma unroll
        for (int g = 0; g < W / 32; g++) {
            const int64_t c = col + 32 * g + 4 * tk;
            if (tq * RQ + i < rows && c < width)
                store4(row_of<T>(m, row0 + tq * RQ + i) + s.col + c, acc[i][g], width - c, wide);
        }
}

template <int N, int RQ, int G> INLINE void zero_rows(f4 (&acc)[N][RQ][G]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < RQ; i++)
#pragma unroll
            for (int g = 0; g < G; g++) acc[n][i][g] = zero4();
}

/* Over the eight threads that share queries. */
INLINE float sum_of_keys(float x) {
#pragma unroll
    for (int step = TK / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

INLINE float max_of_keys(float x) {
#pragma unroll
    for (int step = TK / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

/* ---- forward -----------------------------------------------------------------------------------
 */

/* One tile of scores enters the softmax of a query: z becomes drop(exp(scale z - most)); `shrink`
 * is what earlier tiles are to be multiplied by. mass is this thread's part. */
INLINE float soften(const btcu_attn &a, const sequence &s, int64_t i, int64_t j, f4 &z, float &most,
                    float &mass) {
    float top = -INFINITY;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        z.v[k] = sees(s, a.causal, i, j + k) ? z.v[k] * a.scale : -INFINITY;
        top = fmaxf(top, z.v[k]);
    }
    top = fmaxf(most, max_of_keys(top));
    const float base = top == -INFINITY ? 0.0f : top; /* no key so far: exp(-infinity - 0) = 0 */
    const float shrink = expf(most - base);
    most = top;
#pragma unroll
    for (int k = 0; k < 4; k++) z.v[k] = expf(z.v[k] - base);
    mass = mass * shrink + ((z.v[0] + z.v[1]) + (z.v[2] + z.v[3]));
    if (a.drop.on) {
        const f4 f =
            drop_factors(a.drop, s.head, s.place, (uint32_t)(s.query_pos + i), (uint32_t)j / 4);
#pragma unroll
        for (int k = 0; k < 4; k++) z.v[k] = times(f.v[k], z.v[k]);
    }
    return shrink;
}

/* o = drop(P) V with P = softmax(scale Q K^T), lse its log-sum-exp. A block takes tiles of 16 RQ
 * queries of one sequence and head, every `parts`-th. Reads Q once, K and V once for each tile of
 * queries (from the second level cache, where they fit), writes O once, and of lse 4 bytes for each
 * query and head. A head wider than NS slices reads Q anew for each tile of keys, and all of Q and
 * K for each NS slices of O. */
template <class T, int W, int NS, int RQ>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    k_attn_fwd(btcu_attn a, uint32_t parts, int wide) {
    enum { ROWS = TQ * RQ, TILE = ROWS * (W + 4) };
    DYN_SHARED(float, shared);
    float *const x = shared, *const y = x + NS * TILE, *const p = y + KEYS * (W + 4);
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
    const sequence s = get_sequence(a, parts);
    const int32_t *index = row_of<int32_t>(a.kidx, s.number);
    const bool resident = a.width <= NS * W;
    for (int64_t i0 = s.part * ROWS; i0 < s.query_count; i0 += (int64_t)parts * ROWS) {
        const int64_t keys = keys_of(s, a.causal, i0 + ROWS - 1);
        const int each = rows_of_each<RQ>(s.query_count - i0);
        for (int n = 0; n < NS && resident; n++)
            load_tile<T, W, ROWS, false>(x + n * TILE, a.q, s.query_row + i0, s.query_count - i0,
                                         NULL, s.col + n * W, a.width - n * W, wide);
        for (int64_t out = 0; out < a.width; out += NS * W) {
            f4 acc[NS][RQ][W / 32];
            float most[RQ], mass[RQ];
            zero_rows(acc);
#pragma unroll
            for (int i = 0; i < RQ; i++) most[i] = -INFINITY, mass[i] = 0.0f;
            for (int64_t j0 = 0; j0 < keys; j0 += KEYS) {
                const int32_t *rows = index ? index + j0 : NULL;
                f4 z[RQ];
#pragma unroll
                for (int i = 0; i < RQ; i++) z[i] = zero4();
                for (int64_t at = 0; at < a.width; at += W) {
                    if (!resident)
                        load_tile<T, W, ROWS, false>(x, a.q, s.query_row + i0, s.query_count - i0,
                                                     NULL, s.col + at, a.width - at, wide);
                    load_tile<T, W, KEYS, true>(y, a.k, s.key_row + j0, s.key_count - j0, rows,
                                                s.col + at, a.width - at, wide);
                    __syncthreads();
                    multiply_each<W>(z, x + (resident ? at / W * TILE : 0), y, a.width - at, each);
                    __syncthreads();
                }
#pragma unroll
                for (int i = 0; i < RQ; i++) {
                    if (i >= each) break;
                    const float shrink =
                        soften(a, s, i0 + tq * RQ + i, j0 + 4 * tk, z[i], most[i], mass[i]);
                    put_shared4(p + (tq * RQ + i) * PAIR_LD + 4 * tk, z[i]);
#pragma unroll
                    for (int n = 0; n < NS; n++)
#pragma unroll
                        for (int g = 0; g < W / 32; g++)
#pragma unroll
                            for (int c = 0; c < 4; c++) acc[n][i][g].v[c] *= shrink;
                }
#pragma unroll
                for (int n = 0; n < NS; n++) {
                    const int64_t col = out + n * W;
                    if (col >= a.width) break;
                    load_tile<T, W, KEYS, true>(y, a.v, s.key_row + j0, s.key_count - j0, rows,
                                                s.col + col, a.width - col, wide);
                    __syncthreads();
                    multiply_each_row<W, RQ, true>(acc[n], p, y, keys - j0, each);
                    __syncthreads();
                }
            }
#pragma unroll
            for (int i = 0; i < RQ; i++) {
                if (i >= each) break;
                const float sum = sum_of_keys(mass[i]), part = keys == 0 ? 0.0f : 1.0f / sum;
                const int64_t row = i0 + tq * RQ + i;
#pragma unroll
                for (int n = 0; n < NS; n++)
#pragma unroll
                    for (int g = 0; g < W / 32; g++)
#pragma unroll
                        for (int c = 0; c < 4; c++) acc[n][i][g].v[c] *= part;
                if (a.lse.p && tk == 0 && out == 0 && row < s.query_count)
                    row_of<float>(a.lse, s.query_row + row)[s.head] = most[i] + logf(sum);
            }
#pragma unroll
            for (int n = 0; n < NS; n++)
                put_rows<T, W, RQ>(acc[n], a.o, s.query_row + i0, s.query_count - i0, s,
                                   out + n * W, a.width, wide);
        }
    }
}

/* ---- backward ----------------------------------------------------------------------------------
 * Two passes, by queries for dq and by keys for dk and dv, each with its own scores: no partial dq
 * is stored, and no sum needs atomics. */

/* delta = do . o of each query and head, eight threads for each. Reads both once, writes 4 bytes
 * for each query and head. */
template <class T> __global__ void __launch_bounds__(THREADS) k_attn_delta(btcu_attn a, int wide) {
    const int64_t unit = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / TK;
    const int64_t row = unit / a.heads, col = unit % a.heads * a.width;
    float sum = 0.0f;
    for (int64_t c = 4 * (threadIdx.x % TK); c < a.width && row < a.query_rows; c += 4 * TK) {
        const f4 o = load4(row_of<T>(a.o, row) + col + c, a.width - c, wide);
        const f4 grad = load4(row_of<T>(a.grad, row) + col + c, a.width - c, wide);
#pragma unroll
        for (int i = 0; i < 4; i++) sum += o.v[i] * grad.v[i];
    }
    sum = sum_of_keys(sum);
    if (threadIdx.x % TK == 0 && row < a.query_rows) a.delta[unit] = sum;
}

#define RQ_BWD (KEYS / TQ) /* queries and keys of a tile are as many */

/* P and dS = P (drop(dP) - delta) of this thread's pairs: z holds Q K^T and becomes drop(P), d
 * holds dO V^T and becomes scale dS. */
INLINE void pairs(const btcu_attn &a, const sequence &s, int64_t i0, int64_t j0, f4 (&z)[RQ_BWD],
                  f4 (&d)[RQ_BWD]) {
#pragma unroll
    for (int i = 0; i < RQ_BWD; i++) {
        const int64_t row = i0 + threadIdx.x / TK * RQ_BWD + i, at = s.query_row + row;
        const int64_t key = j0 + 4 * (threadIdx.x % TK);
        const bool there = row < s.query_count;
        const float lse = there ? row_of<float>(a.lse, at)[s.head] : 0.0f;
        const float delta = there ? a.delta[at * a.heads + s.head] : 0.0f;
        f4 f = f4{{1.0f, 1.0f, 1.0f, 1.0f}};
        if (a.drop.on)
            f = drop_factors(a.drop, s.head, s.place, (uint32_t)(s.query_pos + row),
                             (uint32_t)key / 4);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const bool seen = sees(s, a.causal, row, key + k);
            const float e = seen ? expf(z[i].v[k] * a.scale - lse) : 0.0f;
            z[i].v[k] = times(f.v[k], e);
            d[i].v[k] = seen ? a.scale * e * (times(f.v[k], d[i].v[k]) - delta) : 0.0f;
        }
    }
}

/* dq = scale dS K. A block takes tiles of queries, every `parts`-th. Reads Q and dO once, for each
 * tile of queries V and K once (of two slices the first of K twice), lse and delta once for each
 * tile of keys; writes dq once. A head wider than NS slices reads Q and dO anew for each tile of
 * keys, repeats all of that for each NS slices of dq, and reads K, less a slice, once more over
 * them all. */
template <class T, int W, int NS>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    k_attn_bwd_q(btcu_attn a, uint32_t parts, int wide) {
    enum { TILE = KEYS * (W + 4) };
    DYN_SHARED(float, shared);
    float *const x = shared, *const grad = x + NS * TILE, *const y = grad + NS * TILE,
                 *const ds = y + TILE;
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
    const sequence s = get_sequence(a, parts);
    const bool resident = a.width <= NS * W;
    for (int64_t i0 = s.part * KEYS; i0 < s.query_count; i0 += (int64_t)parts * KEYS) {
        const int64_t keys = keys_of(s, a.causal, i0 + KEYS - 1), row0 = s.query_row + i0;
        const int64_t rows = s.query_count - i0;
        const bool busy = rows_of_each<RQ_BWD>(rows) > 0;
        for (int n = 0; n < NS && resident; n++) {
            const int64_t col = s.col + n * W, left = a.width - n * W;
            load_tile<T, W, KEYS, false>(x + n * TILE, a.q, row0, rows, NULL, col, left, wide);
            load_tile<T, W, KEYS, false>(grad + n * TILE, a.grad, row0, rows, NULL, col, left,
                                         wide);
        }
        for (int64_t out = 0; out < a.width; out += NS * W) {
            f4 acc[NS][RQ_BWD][W / 32];
            zero_rows(acc);
            for (int64_t j0 = 0; j0 < keys; j0 += KEYS) {
                const int64_t key0 = s.key_row + j0, count = s.key_count - j0;
                f4 z[RQ_BWD], d[RQ_BWD];
                int64_t held = -1; /* column of the slice of K that y has */
#pragma unroll
                for (int i = 0; i < RQ_BWD; i++) z[i] = d[i] = zero4();
                for (int64_t at = 0; at < a.width; at += W) {
                    const int64_t col = s.col + at, left = a.width - at;
                    const int64_t tile = resident ? at / W * TILE : 0;
                    if (!resident) {
                        load_tile<T, W, KEYS, false>(x, a.q, row0, rows, NULL, col, left, wide);
                        load_tile<T, W, KEYS, false>(grad, a.grad, row0, rows, NULL, col, left,
                                                     wide);
                    }
                    load_tile<T, W, KEYS, true>(y, a.v, key0, count, NULL, col, left, wide);
                    __syncthreads();
                    if (busy) multiply<W, RQ_BWD>(d, grad + tile, y, left);
                    __syncthreads();
                    load_tile<T, W, KEYS, true>(y, a.k, key0, count, NULL, col, left, wide);
                    __syncthreads();
                    if (busy) multiply<W, RQ_BWD>(z, x + tile, y, left);
                    __syncthreads();
                    held = at;
                }
                if (busy) pairs(a, s, i0, j0, z, d);
#pragma unroll
                for (int i = 0; i < RQ_BWD; i++)
                    if (busy) put_shared4(ds + (tq * RQ_BWD + i) * PAIR_LD + 4 * tk, d[i]);
#pragma unroll
                for (int n = NS - 1; n >= 0; n--) { /* the slice that is there first */
                    const int64_t col = out + n * W;
                    if (col >= a.width) continue;
                    if (held != col)
                        load_tile<T, W, KEYS, true>(y, a.k, key0, count, NULL, s.col + col,
                                                    a.width - col, wide);
                    held = col;
                    __syncthreads();
                    if (busy) multiply_rows<W, RQ_BWD, true>(acc[n], ds, y, keys - j0);
                    __syncthreads();
                }
            }
#pragma unroll
            for (int n = 0; n < NS; n++)
                put_rows<T, W, RQ_BWD>(acc[n], a.dq, row0, rows, s, out + n * W, a.width, wide);
        }
    }
}

/* This thread's pairs, as row key and column query. Unlike all else here this meets each bank four
 * times: a few stores beside the loads of four products. */
INLINE void put_transposed(float *tile, const f4 (&z)[RQ_BWD]) {
    const int tk = (int)(threadIdx.x % TK), tq = (int)(threadIdx.x / TK);
#pragma unroll
    for (int i = 0; i < RQ_BWD; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) tile[(4 * tk + k) * PAIR_LD + tq * RQ_BWD + i] = z[i].v[k];
}

/* dk = scale dS^T Q and dv = drop(P)^T dO. A block takes tiles of keys, every `parts`-th. Reads K
 * and V once, for each tile of keys Q once (of two slices the first twice), dO twice, lse and delta
 * once; writes dk and dv once. A head wider than NS slices reads K and V anew for each tile of
 * queries, and repeats one reading of K, V, Q and dO for each NS slices of dk and dv; the second of
 * dO, and one more of Q, less a slice, spread over them all. */
template <class T, int W, int NS>
__global__ void __launch_bounds__(THREADS, RESIDENT)
    k_attn_bwd_kv(btcu_attn a, uint32_t parts, int wide) {
    enum { TILE = KEYS * (W + 4) };
    DYN_SHARED(float, shared);
    float *const key = shared, *const value = key + NS * TILE, *const x = value + NS * TILE,
                 *const pair = x + TILE;
    const sequence s = get_sequence(a, parts);
    const bool resident = a.width <= NS * W;
    for (int64_t j0 = s.part * KEYS; j0 < s.key_count; j0 += (int64_t)parts * KEYS) {
        const int64_t key0 = s.key_row + j0, keys = s.key_count - j0;
        for (int n = 0; n < NS && resident; n++) {
            const int64_t col = s.col + n * W, left = a.width - n * W;
            load_tile<T, W, KEYS, true>(key + n * TILE, a.k, key0, keys, NULL, col, left, wide);
            load_tile<T, W, KEYS, true>(value + n * TILE, a.v, key0, keys, NULL, col, left, wide);
        }
        /* Causal: the first query that sees the tile, at a multiple of a tile. */
        const int64_t first = a.causal && j0 > s.query_pos ? (j0 - s.query_pos) / KEYS * KEYS : 0;
        for (int64_t out = 0; out < a.width; out += NS * W) {
            f4 dk[NS][RQ_BWD][W / 32], dv[NS][RQ_BWD][W / 32];
            zero_rows(dk);
            zero_rows(dv);
            for (int64_t i0 = first; i0 < s.query_count; i0 += KEYS) {
                const int64_t row0 = s.query_row + i0, rows = s.query_count - i0;
                f4 z[RQ_BWD], d[RQ_BWD];
                int64_t held = -1; /* column of the slice of Q that x has */
#pragma unroll
                for (int i = 0; i < RQ_BWD; i++) z[i] = d[i] = zero4();
                for (int64_t at = 0; at < a.width; at += W) {
                    const int64_t col = s.col + at, left = a.width - at;
                    const int64_t tile = resident ? at / W * TILE : 0;
                    if (!resident) {
                        load_tile<T, W, KEYS, true>(key, a.k, key0, keys, NULL, col, left, wide);
                        load_tile<T, W, KEYS, true>(value, a.v, key0, keys, NULL, col, left, wide);
                    }
                    load_tile<T, W, KEYS, false>(x, a.grad, row0, rows, NULL, col, left, wide);
                    __syncthreads();
                    multiply<W, RQ_BWD>(d, x, value + tile, left);
                    __syncthreads();
                    load_tile<T, W, KEYS, false>(x, a.q, row0, rows, NULL, col, left, wide);
                    __syncthreads();
                    multiply<W, RQ_BWD>(z, x, key + tile, left);
                    __syncthreads();
                    held = at;
                }
                pairs(a, s, i0, j0, z, d);
                put_transposed(pair, d);
#pragma unroll
                for (int n = NS - 1; n >= 0; n--) { /* the slice that is there first */
                    const int64_t col = out + n * W;
                    if (col >= a.width) continue;
                    if (held != col)
                        load_tile<T, W, KEYS, false>(x, a.q, row0, rows, NULL, s.col + col,
                                                     a.width - col, wide);
                    held = col;
                    __syncthreads();
                    multiply_rows<W, RQ_BWD, false>(dk[n], pair, x, rows);
                    __syncthreads();
                }
                put_transposed(pair, z);
#pragma unroll
                for (int n = 0; n < NS; n++) {
                    const int64_t col = out + n * W;
                    if (col >= a.width) break;
                    load_tile<T, W, KEYS, false>(x, a.grad, row0, rows, NULL, s.col + col,
                                                 a.width - col, wide);
                    __syncthreads();
                    multiply_rows<W, RQ_BWD, false>(dv[n], pair, x, rows);
                    __syncthreads();
                }
            }
#pragma unroll
            for (int n = 0; n < NS; n++) {
                put_rows<T, W, RQ_BWD>(dk[n], a.dk, key0, keys, s, out + n * W, a.width, wide);
                put_rows<T, W, RQ_BWD>(dv[n], a.dv, key0, keys, s, out + n * W, a.width, wide);
            }
        }
    }
}

/* ---- launching ---------------------------------------------------------------------------------
 */

/* Blocks for each sequence and head: as many as a sequence of average length has tiles. */
static int64_t parts_of(int64_t rows, int64_t sequences, int tile) {
    const int64_t parts = sequences > 0 ? ceil_div(rows, sequences * tile) : 1;
    return parts > 0 ? parts : 1;
}

template <class T> static int wide_attn(const btcu_attn *a) {
    const btcu_mat *const m[] = {&a->q, &a->k, &a->v, &a->o, &a->grad, &a->dq, &a->dk, &a->dv};
    int wide = a->width % 4 == 0;
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++) wide = wide && aligned4(m[i], sizeof(T));
    return wide;
}

template <class T, int W, int NS, int RQ>
static cudaError_t forward(const btcu_attn *a, cudaStream_t s) {
    const int64_t parts = parts_of(a->query_rows, a->sequences, TQ * RQ);
    const size_t bytes =
        ((size_t)(NS * TQ * RQ + KEYS) * (W + 4) + TQ * RQ * PAIR_LD) * sizeof(float);
    BTCU_LAUNCH((k_attn_fwd<T, W, NS, RQ>), a->sequences * a->heads * parts, THREADS, bytes, s, *a,
                (uint32_t)parts, wide_attn<T>(a));
}

template <class T> static cudaError_t forward_of(const btcu_attn *a, cudaStream_t s) {
    if (a->width <= 32) return forward<T, 32, 1, 4>(a, s);
    if (a->width <= 64) return forward<T, 64, 1, 4>(a, s);
    return forward<T, 64, 2, 2>(a, s);
}

extern "C" cudaError_t btcu_attn_fwd(const btcu_attn *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->type, return forward_of<T>(a, s));
}

template <class T> static cudaError_t delta_of(const btcu_attn *a, cudaStream_t s) {
    BTCU_LAUNCH(k_attn_delta<T>, ceil_div(a->query_rows * a->heads, THREADS / TK), THREADS, 0, s,
                *a, wide_attn<T>(a));
}

#define BWD_BYTES(W, NS) (((2 * NS + 1) * KEYS * (W + 4) + KEYS * PAIR_LD) * sizeof(float))

template <class T, int W, int NS> static cudaError_t queries(const btcu_attn *a, cudaStream_t s) {
    const int64_t parts = parts_of(a->query_rows, a->sequences, KEYS);
    BTCU_LAUNCH((k_attn_bwd_q<T, W, NS>), a->sequences * a->heads * parts, THREADS,
                BWD_BYTES(W, NS), s, *a, (uint32_t)parts, wide_attn<T>(a));
}

template <class T, int W, int NS> static cudaError_t keys(const btcu_attn *a, cudaStream_t s) {
    const int64_t parts = parts_of(a->key_rows, a->sequences, KEYS);
    BTCU_LAUNCH((k_attn_bwd_kv<T, W, NS>), a->sequences * a->heads * parts, THREADS,
                BWD_BYTES(W, NS), s, *a, (uint32_t)parts, wide_attn<T>(a));
}

template <class T> static cudaError_t backward_of(const btcu_attn *a, cudaStream_t s) {
    const int narrow_head = a->width <= 32, one_slice = a->width <= 64;
    cudaError_t code = delta_of<T>(a, s);
    if (code == cudaSuccess)
        code = narrow_head ? queries<T, 32, 1>(a, s)
               : one_slice ? queries<T, 64, 1>(a, s)
                           : queries<T, 64, 2>(a, s);
    if (code != cudaSuccess) return code;
    return narrow_head ? keys<T, 32, 1>(a, s)
           : one_slice ? keys<T, 64, 1>(a, s)
                       : keys<T, 64, 2>(a, s);
}

extern "C" cudaError_t btcu_attn_bwd(const btcu_attn *a, cudaStream_t s) {
    BTCU_BY_TYPE(a->type, return backward_of<T>(a, s));
}
