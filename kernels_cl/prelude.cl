/* What all kernels share. The host puts this file before the others and defines
 *   DATA  the storage type of activations and their gradients: F32, F16 or BF16
 *   W     columns that a work-item takes at a time: 4, or 16 where vectors are the processor's own
 *   WG    work-items of a group in element-wise work; RG the same where a group takes a row or a
 *         block, GWG in gemm, AWG in attention: powers of two, down to 1
 * Every kernel is launched in one dimension, in groups of the size that it asks for.
 *
 * A matrix comes as base, offset and leading dimension in elements; ld 0: absent. Sizes that can
 * pass 2^31 are long. OpenCL C 1.2; no doubles, no atomics, no subgroups: sums run in an order that
 * depends on shapes and group sizes only. */

#define MAT(x) __global float *x##_base, const ulong x##_off, const long x##_ld
#define CMAT(x) __global const float *x##_base, const ulong x##_off, const long x##_ld
#define IMAT(x) __global const int *x##_base, const ulong x##_off, const long x##_ld
#define USE(x) __global float *x = x##_base + x##_off
#define CUSE(x) __global const float *x = x##_base + x##_off
#define IUSE(x) __global const int *x = x##_base + x##_off
#define HAS(x) (x##_ld != 0)

/* The same for data. */
#define DMAT(x) __global data_t *x##_base, const ulong x##_off, const long x##_ld
#define CDMAT(x) __global const data_t *x##_base, const ulong x##_off, const long x##_ld
#define DUSE(x) __global data_t *x = x##_base + x##_off
#define CDUSE(x) __global const data_t *x = x##_base + x##_off

/* Places in the scalar block: core/ops/op_args.h. */
enum { LR, CLIP, CORRECTION1, CORRECTION2, LOSS_SCALE, GOOD, NORM, FACTOR, SKIP };

#define GROUP(n) __attribute__((reqd_work_group_size(n, 1, 1)))

/* ---- W columns at a time ----------------------------------------------------------------------
 * A quad of columns is what one Philox block covers. A GPU's work-item takes one quad, so that
 * neighbours read what lies side by side; on a CPU, where work-items are turns of a loop, one takes
 * four, in vector registers. */

#if W == 16
#define WIDE(name) name##16
#define WIDE_RTE vstore_half16_rte
#define LANES_FROM_0 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#else
#define WIDE(name) name##4
#define WIDE_RTE vstore_half4_rte
#define LANES_FROM_0 0, 1, 2, 3
#endif
typedef WIDE(float) wide;
typedef WIDE(int) iwide;
typedef WIDE(uint) uwide;
typedef WIDE(ushort) hwide;
#define LANE ((iwide)(LANES_FROM_0))

/* i = q n + r. */
static void split(ulong i, ulong n, ulong *q, ulong *r) {
    if ((i | n) >> 32) {
        *q = i / n;
        *r = i - *q * n;
    } else {
        const uint d = (uint)i / (uint)n;
        *q = d;
        *r = (uint)i - d * (uint)n;
    }
}

/* x where fewer than n lanes are before it, else `other`. */
static wide fill_wide(wide x, long n, float other) {
    return n >= W ? x : select((wide)(other), x, LANE < (int)n);
}

static wide only_wide(wide x, long n) { return fill_wide(x, n, 0.0f); }

/* Do W elements of so many bytes start where a GPU loads and stores them as one? vload and vstore,
 * which want no alignment, are W of them there. A CPU does not mind. */
#if W == 4
#define ALIGNED(p, bytes) (((size_t)(p) & (W * (bytes) - 1)) == 0)
#else
#define ALIGNED(p, bytes) 0
#endif

/* Up to W elements from p on; what is not there is 0. */
static wide load_wide(__global const float *p, long n) {
    if (n >= W && ALIGNED(p, 4)) return *(__global const wide *)p;
    if (n >= W) return WIDE(vload)(0, p);
    float x[W];
    for (int i = 0; i < W; i++) x[i] = i < n ? p[i] : 0.0f;
    return WIDE(vload)(0, x);
}

static void store_wide(wide x, __global float *p, long n) {
    if (n >= W && ALIGNED(p, 4)) {
        *(__global wide *)p = x;
        return;
    }
    if (n >= W) {
        WIDE(vstore)(x, 0, p);
        return;
    }
    float y[W];
    WIDE(vstore)(x, 0, y);
    for (int i = 0; i < W && i < n; i++) p[i] = y[i];
}

/* ---- storage types ----------------------------------------------------------------------------
 * Half types are storage: values are widened when they are read, arithmetic is fp32, a result is
 * rounded once, to nearest even, when it is stored. Neither needs cl_khr_fp16: fp16 goes through
 * vload_half and vstore_half, which a device does in hardware where it can; bf16 is the upper half
 * of an fp32. */

#define F32 0
#define F16 1
#define BF16 2

#if DATA == F16
#define data_t half
#elif DATA == BF16
#define data_t ushort
#else
#define data_t float
#endif

static wide from_bf16(hwide x) { return WIDE(as_float)(WIDE(convert_uint)(x) << 16); }

/* NaN stays NaN: what rounding would carry into the exponent is not added. */
static uwide round_bf16(wide x) {
    const uwide u = WIDE(as_uint)(x);
    return select(u + 0x7FFFu + (u >> 16 & 1u), u | 0x400000u, isnan(x));
}

static hwide to_bf16(wide x) { return WIDE(convert_ushort)(round_bf16(x) >> 16); }

/* Up to W elements of a type from p on; what is not there is 0. */
static wide load_as(__global const void *x, long n, int type) {
    if (type == F16) {
        __global const half *p = x;
        if (n >= W) return WIDE(vload_half)(0, p);
        float y[W];
        for (int i = 0; i < W; i++) y[i] = i < n ? vload_half(i, p) : 0.0f;
        return WIDE(vload)(0, y);
    }
    if (type == BF16) {
        __global const ushort *p = x;
        if (n >= W && ALIGNED(p, 2)) return from_bf16(*(__global const hwide *)p);
        if (n >= W) return from_bf16(WIDE(vload)(0, p));
        ushort y[W];
        for (int i = 0; i < W; i++) y[i] = i < n ? p[i] : 0;
        return from_bf16(WIDE(vload)(0, y));
    }
    return load_wide(x, n);
}

static void store_as(wide x, __global void *y, long n, int type) {
    if (type == F16) {
        __global half *p = y;
        if (n >= W) {
            WIDE_RTE(x, 0, p);
            return;
        }
        float z[W];
        WIDE(vstore)(x, 0, z);
        for (int i = 0; i < W && i < n; i++) vstore_half_rte(z[i], i, p);
    } else if (type == BF16) {
        __global ushort *p = y;
        const hwide h = to_bf16(x);
        if (n >= W && ALIGNED(p, 2)) {
            *(__global hwide *)p = h;
            return;
        }
        if (n >= W) {
            WIDE(vstore)(h, 0, p);
            return;
        }
        ushort z[W];
        WIDE(vstore)(h, 0, z);
        for (int i = 0; i < W && i < n; i++) p[i] = z[i];
    } else {
        store_wide(x, y, n);
    }
}

/* fp32 to the nearest number of a half type, still as fp32; other types: x. fp16 has ten bits of
 * mantissa, steps of 2^-24 below 2^-14, and is infinite from 65520 on. */
static wide round_as(wide x, int type) {
    if (type == BF16) return WIDE(as_float)(round_bf16(x) & 0xFFFF0000u);
    if (type != F16) return x;
    const wide a = fabs(x);
    const uwide u = WIDE(as_uint)(a);
    wide r = WIDE(as_float)((u + 0xFFFu + (u >> 13 & 1u)) & 0xFFFFE000u);
    r = select(r, (a + 0.5f) - 0.5f, a < 0x1p-14f);
    r = select(r, (wide)(INFINITY), a >= 65520.0f);
    return select(copysign(r, x), x, isnan(x));
}

/* An operand of any type, and its element i. */
#define AMAT(x) __global uchar *x##_base, const ulong x##_off, const long x##_ld, const int x##_type
#define PLACE(x, i) (x##_base + (x##_off + (ulong)(i)) * (x##_type == F32 ? 4 : 2))

/* Data of this program. */
#define get_wide(p, n) load_as(p, n, DATA)
#define put_wide(x, p, n) store_as(x, p, n, DATA)

/* Row r, lane i of x becomes row i, column r of a tile. */
static void put_turned(const wide x[4], __local float *tile, int ld) {
    float y[4][W];
    for (int r = 0; r < 4; r++) WIDE(vstore)(x[r], 0, y[r]);
    for (int i = 0; i < W; i++)
        vstore4((float4)(y[0][i], y[1][i], y[2][i], y[3][i]), 0, tile + i * ld);
}

/* ---- dropout ----------------------------------------------------------------------------------
 * Philox4x32-10 (Salmon et al. 2011), the counters of core/base/philox.h. */

#define DROP \
    const uint seed0, const uint seed1, const uint update, const uint site, const uint threshold, \
        const float keep, const int drop
#define DROP_ARGS seed0, seed1, update, site, threshold, keep

/* One block, or one in each lane, of quads `quad` on. A product of lanes is 32 x 32 to 64 bits, and
 * what stands above the low half of a lane is not looked at until the end. */
#if W == 16
typedef ulong4 counter;
#define FIRST_QUAD(quad) ((ulong4)(quad) + (ulong4)(0, 1, 2, 3))
#define LOW(x) ((x) & 0xFFFFFFFFul)
#define MULTIPLY(c, factor) \
    const counter lo_##c = LOW(c) * (ulong)factor, hi_##c = lo_##c >> 32
#else
typedef uint counter;
#define FIRST_QUAD(quad) (quad)
#define MULTIPLY(c, factor) const counter lo_##c = c * factor, hi_##c = mul_hi(c, factor)
#endif

/* The factors, 0 or `keep` = 1 / (1 - p), of W channels from 4 quad on. */
static wide drop_factors(uint seed0, uint seed1, uint update, uint site, uint threshold, float keep,
                         uint head, uint place, uint position, uint quad) {
    uint k0 = seed0, k1 = seed1;
    counter c0 = update, c1 = site << 16 | head, c2 = place, c3 = FIRST_QUAD(position << 14 | quad);
    for (int r = 0; r < 10; r++) {
        MULTIPLY(c0, 0xD2511F53u);
        MULTIPLY(c2, 0xCD9E8D57u);
        c0 = hi_c2 ^ c1 ^ k0;
        c1 = lo_c2;
        c2 = hi_c0 ^ c3 ^ k1;
        c3 = lo_c0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
#if W == 16
    const uint4 a = convert_uint4(LOW(c0)), b = convert_uint4(LOW(c1)), c = convert_uint4(LOW(c2)),
                d = convert_uint4(LOW(c3));
    const uwide word = {a.x, b.x, c.x, d.x, a.y, b.y, c.y, d.y,
                        a.z, b.z, c.z, d.z, a.w, b.w, c.w, d.w};
#else
    const uwide word = {c0, c1, c2, c3};
#endif
    return select((wide)(0.0f), (wide)(keep), word >= threshold);
}

/* A dropped element is 0 also where it was not finite. */
static wide apply_drop(wide f, wide x) { return select(f * x, (wide)(0.0f), f == 0.0f); }

/* drop(x) of W columns from c on of a row; rowpos is the row's place and position. */
#define DROP_ROW(x, rowpos, c) \
    (drop ? apply_drop(drop_factors(DROP_ARGS, 0u, (uint)(rowpos)[0], (uint)(rowpos)[1], \
                                    (uint)(c) / 4), \
                       (x)) \
          : (x))

/* ---- sums over a group of RG: the same bits in every work-item -------------------------------- */

static float group_sum(float x, __local float *tmp) {
    const uint lid = get_local_id(0);
    if (RG == 1) return x;
    tmp[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = RG / 2; s > 0; s /= 2) {
        if (lid < s) tmp[lid] += tmp[lid + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

static float group_max(float x, __local float *tmp) {
    const uint lid = get_local_id(0);
    if (RG == 1) return x;
    tmp[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = RG / 2; s > 0; s /= 2) {
        if (lid < s) tmp[lid] = fmax(tmp[lid], tmp[lid + s]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float most = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

#if W == 16
static float sum_wide(wide x) {
    const float8 y = x.lo + x.hi;
    const float4 z = y.lo + y.hi;
    return (z.x + z.y) + (z.z + z.w);
}

static float max_wide(wide x) {
    const float8 y = fmax(x.lo, x.hi);
    const float4 z = fmax(y.lo, y.hi);
    return fmax(fmax(z.x, z.y), fmax(z.z, z.w));
}
#else
static float sum_wide(wide x) { return (x.x + x.y) + (x.z + x.w); }
static float max_wide(wide x) { return fmax(fmax(x.x, x.y), fmax(x.z, x.w)); }
#endif

/* ---- column sums ------------------------------------------------------------------------------
 * Rows are cut into chunks. A group sums one chunk of a tile of CX times W columns, RY rows at a
 * time, and writes its sums to part[chunk][column]; k_colsum adds the chunks in order. */

/* Long sums are sums of sums of so many: rounding stays small in small groups too. */
#define RUN 32

#define CX (WG < 16 ? WG : 16)
#define RY (WG / CX)

typedef struct tile {
    long first, last; /* rows, this work-item's are first + ry, first + ry + RY ... */
    long chunk, col, width; /* width: columns that are there from col on, <= 0 beyond the last */
    uint rx, ry;
} tile;

static tile get_tile(long rows, long cols, long chunk_rows) {
    tile t;
    const ulong wides = (ulong)(cols + W - 1) / W, tiles = (wides + CX - 1) / CX;
    ulong chunk, at;
    split(get_group_id(0), tiles, &chunk, &at);
    t.rx = get_local_id(0) % CX;
    t.ry = get_local_id(0) / CX;
    t.chunk = (long)chunk;
    t.col = (long)(W * (at * CX + t.rx));
    t.width = cols - t.col;
    t.first = t.chunk * chunk_rows;
    t.last = min(rows, t.first + chunk_rows);
    return t;
}

/* All work-items of the group come here; with `wanted` 0 nothing is written. */
static void put_sums(wide sum, const tile *t, __local wide *tmp, __global float *part, long cols,
                     int wanted) {
    if (RY > 1) {
        tmp[t->ry * CX + t->rx] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint s = RY / 2; s > 0; s /= 2) {
            if (t->ry < s) tmp[t->ry * CX + t->rx] += tmp[(t->ry + s) * CX + t->rx];
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        sum = tmp[t->rx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (wanted && t->ry == 0 && t->width > 0)
        store_wide(sum, part + t->chunk * cols + t->col, t->width);
}
