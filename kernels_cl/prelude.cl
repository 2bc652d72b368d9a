/* What all kernels share. The host puts this file before the others and defines
 *   DATA  the storage type of activations and their gradients: F32, F16 or BF16
 *   VEC   floats of a vector in products: 4 or 8
 *   WG    work-items of a group in row-wise work; GWG the same in gemm, AWG in attention: powers
 *         of two, down to 1
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

/* ---- four columns at a time: one Philox block covers them ------------------------------------- */

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

/* Up to four elements from p on; what is not there is 0. */
static float4 load4(__global const float *p, long n) {
    if (n >= 4) return vload4(0, p);
    return (float4)(n > 0 ? p[0] : 0.0f, n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, 0.0f);
}

static void store4(float4 x, __global float *p, long n) {
    if (n >= 4) {
        vstore4(x, 0, p);
        return;
    }
    if (n > 0) p[0] = x.x;
    if (n > 1) p[1] = x.y;
    if (n > 2) p[2] = x.z;
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

static float4 from_bf16(ushort4 x) { return as_float4(convert_uint4(x) << 16); }

/* NaN stays NaN: what rounding would carry into the exponent is not added. */
static uint4 round_bf16(float4 x) {
    const uint4 u = as_uint4(x);
    return select(u + 0x7FFFu + (u >> 16 & 1u), u | 0x400000u, isnan(x));
}

static ushort4 to_bf16(float4 x) { return convert_ushort4(round_bf16(x) >> 16); }

/* Up to four elements of a type from p on; what is not there is 0. */
static float4 load4_as(__global const void *x, long n, int type) {
    if (type == F16) {
        __global const half *p = x;
        if (n >= 4) return vload_half4(0, p);
        return (float4)(n > 0 ? vload_half(0, p) : 0.0f, n > 1 ? vload_half(1, p) : 0.0f,
                        n > 2 ? vload_half(2, p) : 0.0f, 0.0f);
    }
    if (type == BF16) {
        __global const ushort *p = x;
        if (n >= 4) return from_bf16(vload4(0, p));
        return from_bf16((ushort4)(n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, 0));
    }
    return load4(x, n);
}

static void store4_as(float4 x, __global void *y, long n, int type) {
    if (type == F16) {
        __global half *p = y;
        if (n >= 4) {
            vstore_half4_rte(x, 0, p);
            return;
        }
        if (n > 0) vstore_half_rte(x.x, 0, p);
        if (n > 1) vstore_half_rte(x.y, 1, p);
        if (n > 2) vstore_half_rte(x.z, 2, p);
    } else if (type == BF16) {
        __global ushort *p = y;
        const ushort4 h = to_bf16(x);
        if (n >= 4) {
            vstore4(h, 0, p);
            return;
        }
        if (n > 0) p[0] = h.x;
        if (n > 1) p[1] = h.y;
        if (n > 2) p[2] = h.z;
    } else {
        store4(x, y, n);
    }
}

/* fp32 to the nearest number of a half type, still as fp32; other types: x. fp16 has ten bits of
 * mantissa, steps of 2^-24 below 2^-14, and is infinite from 65520 on. */
static float4 round_as(float4 x, int type) {
    if (type == BF16) return as_float4(round_bf16(x) & 0xFFFF0000u);
    if (type != F16) return x;
    const float4 a = fabs(x);
    const uint4 u = as_uint4(a);
    float4 r = as_float4((u + 0xFFFu + (u >> 13 & 1u)) & 0xFFFFE000u);
    r = select(r, (a + 0.5f) - 0.5f, a < 0x1p-14f);
    r = select(r, (float4)(INFINITY), a >= 65520.0f);
    return select(copysign(r, x), x, isnan(x));
}

/* An operand of any type, and its element i. */
#define AMAT(x) __global uchar *x##_base, const ulong x##_off, const long x##_ld, const int x##_type
#define PLACE(x, i) (x##_base + (x##_off + (ulong)(i)) * (x##_type == F32 ? 4 : 2))

/* Data of this program. */
#define get4(p, n) load4_as(p, n, DATA)
#define put4(x, p, n) store4_as(x, p, n, DATA)
#define get1(p) load4_as(p, 1, DATA).x
#define put1(x, p) store4_as((float4)(x), p, 1, DATA)

/* ---- dropout ----------------------------------------------------------------------------------
 * Philox4x32-10 (Salmon et al. 2011), the counters of core/base/philox.h. */

#define DROP \
    const uint seed0, const uint seed1, const uint update, const uint site, const uint threshold, \
        const float keep, const int drop
#define DROP_ARGS seed0, seed1, update, site, threshold, keep

static uint4 philox(uint k0, uint k1, uint c0, uint c1, uint c2, uint c3) {
    for (int r = 0; r < 10; r++) {
        const uint h0 = mul_hi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        const uint h1 = mul_hi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (uint4)(c0, c1, c2, c3);
}

/* The factors, 0 or `keep` = 1 / (1 - p), of channels 4 quad .. 4 quad + 3. */
static float4 drop_factors(uint seed0, uint seed1, uint update, uint site, uint threshold,
                           float keep, uint head, uint place, uint position, uint quad) {
    const uint4 w = philox(seed0, seed1, update, site << 16 | head, place, position << 14 | quad);
    return (float4)(w.x >= threshold ? keep : 0.0f, w.y >= threshold ? keep : 0.0f,
                    w.z >= threshold ? keep : 0.0f, w.w >= threshold ? keep : 0.0f);
}

/* A dropped element is 0 also where it was not finite. */
static float4 apply_drop(float4 f, float4 x) {
    return (float4)(f.x == 0.0f ? 0.0f : f.x * x.x, f.y == 0.0f ? 0.0f : f.y * x.y,
                    f.z == 0.0f ? 0.0f : f.z * x.z, f.w == 0.0f ? 0.0f : f.w * x.w);
}

/* drop(x) of four columns of a row; rowpos is the row's place and position. */
#define DROP_ROW(x, rowpos, quad) \
    (drop ? apply_drop(drop_factors(DROP_ARGS, 0u, (uint)(rowpos)[0], (uint)(rowpos)[1], \
                                    (uint)(quad)), \
                       (x)) \
          : (x))

/* ---- sums over a group: the same bits in every work-item -------------------------------------- */

static float group_sum(float x, __local float *tmp) {
    const uint lid = get_local_id(0);
    tmp[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = WG / 2; s > 0; s /= 2) {
        if (lid < s) tmp[lid] += tmp[lid + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

static float group_max(float x, __local float *tmp) {
    const uint lid = get_local_id(0);
    tmp[lid] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = WG / 2; s > 0; s /= 2) {
        if (lid < s) tmp[lid] = fmax(tmp[lid], tmp[lid + s]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float most = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

static float sum4(float4 x) { return (x.x + x.y) + (x.z + x.w); }

/* Four columns of which only the first n are there: the others become 0. */
static float4 only4(float4 x, long n) {
    return (float4)(n > 0 ? x.x : 0.0f, n > 1 ? x.y : 0.0f, n > 2 ? x.z : 0.0f,
                    n > 3 ? x.w : 0.0f);
}

/* ---- column sums ------------------------------------------------------------------------------
 * Rows are cut into chunks. A group sums one chunk of a tile of CX quads of columns, RY rows at a
 * time, and writes its sums to part[chunk][column]; k_colsum adds the chunks in order. */

/* Long sums are sums of sums of so many: rounding stays small in small groups too. */
#define RUN 32

#define CX (WG < 16 ? WG : 16)
#define RY (WG / CX)

typedef struct tile {
    long first, last; /* rows, this work-item's are first + ry, first + ry + RY ... */
    long chunk, quad, width; /* width: columns that are there, <= 0 beyond the last quad */
    uint rx, ry;
} tile;

static tile get_tile(long rows, long cols, long chunk_rows) {
    tile t;
    const ulong quads = (ulong)(cols + 3) / 4, tiles = (quads + CX - 1) / CX;
    ulong chunk, at;
    split(get_group_id(0), tiles, &chunk, &at);
    t.rx = get_local_id(0) % CX;
    t.ry = get_local_id(0) / CX;
    t.chunk = (long)chunk;
    t.quad = (long)(at * CX + t.rx);
    t.width = cols - 4 * t.quad;
    t.first = t.chunk * chunk_rows;
    t.last = min(rows, t.first + chunk_rows);
    return t;
}

/* All work-items of the group come here. */
static void put_sums(float4 sum, const tile *t, __local float4 *tmp, __global float *part,
                     long cols) {
    tmp[t->ry * CX + t->rx] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint s = RY / 2; s > 0; s /= 2) {
        if (t->ry < s) tmp[t->ry * CX + t->rx] += tmp[(t->ry + s) * CX + t->rx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t->ry == 0 && t->width > 0)
        store4(tmp[t->rx], part + t->chunk * cols + 4 * t->quad, t->width);
    barrier(CLK_LOCAL_MEM_FENCE);
}
