/* Cross-entropy, losses of values and the best symbols of a row; all fp32. A block takes a row, of
 * up to THREADS threads: a small vocabulary has fewer. */
#include "kernels_cuda/common.cuh"

#define THREADS 512
#define FEW_THREADS 128
#define FEW_COLS 4096 /* up to which a row has FEW_THREADS */

static int threads_for(int64_t cols) { return cols <= FEW_COLS ? FEW_THREADS : THREADS; }

/* The largest z = logits + bias of a row, sum exp(z - largest), and the sum of z; the same in every
 * thread. */
struct row_sums {
    float most, mass, total;
};

/* Terms that are added to each other before they join a longer sum: rounding grows more slowly. */
#define RUN 64

/* W columns, 4 where each row starts at a multiple of 16 bytes and ends at one, else 1. Each order
 * of sums belongs to a W, and W to shape and place alone. */
template <int W> struct alignas(W * sizeof(float)) some { float v[W]; };

template <int W> INLINE some<W> load_some(const float *p) {
    return *reinterpret_cast<const some<W> *>(p);
}
template <int W> INLINE void store_some(float *p, const some<W> &x) {
    *reinterpret_cast<some<W> *>(p) = x;
}

/* z from column c on. */
template <int W> INLINE some<W> load_z(const float *logits, const float *bias, int64_t c) {
    some<W> z = load_some<W>(logits + c);
    if (bias) {
        const some<W> b = load_some<W>(bias + c);
#pragma unroll
        for (int i = 0; i < W; i++) z.v[i] += b.v[i];
    }
    return z;
}

/* Reads a row once: each thread keeps a running maximum and rescales what it has (Milakov and
 * Gimelshein 2018). With `keep` it stores z there, for itself. */
template <bool KEEP, int W>
INLINE row_sums sum_row(const float *logits, const float *bias, int64_t cols, float *keep,
                        float *tmp) {
    float most = -INFINITY, mass = 0.0f, total = 0.0f;
    for (int64_t c = W * threadIdx.x; c < cols;) {
        float part = 0.0f, plain = 0.0f;
        for (int k = 0; k < RUN && c < cols; k += W, c += W * blockDim.x) {
            const some<W> u = load_z<W>(logits, bias, c);
            if (KEEP) store_some(keep + c, u);
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float z = u.v[i];
                plain += z;
                if (z > most) {
                    const float shrink = expf(most - z); /* from -infinity: 0 */
                    mass *= shrink;
                    part *= shrink;
                    most = z;
                }
                if (z != -INFINITY) part += expf(z - most); /* NaN passes */
            }
        }
        mass += part;
        total += plain;
    }
    row_sums s;
    s.most = block_max(most, tmp);
    s.mass = block_sum(mass == 0.0f ? 0.0f : mass * expf(most - s.most), tmp);
    s.total = block_sum(total, tmp);
    return s;
}

/* ---- cross-entropy -----------------------------------------------------------------------------
 */

/* loss = ((1 - s) nll + s (lse - mean z), nll) with nll = lse - z[label]; with `grad` the logits
 * become grad_scale (p - q), q = s / V + (1 - s) at the label. A negative label: zeros. Reads 4
 * bytes for each logit, with `grad` again where a row does not fit in shared memory (KEEP), and
 * writes 4; zeros are only written. Writes 8 for each row. */
template <bool KEEP, int W>
__global__ void __launch_bounds__(THREADS) k_cross_entropy(btcu_cross_entropy a) {
    __shared__ float tmp[THREADS / 32];
    DYN_SHARED(float, keep);
    float *logits = row_of<float>(a.logits, blockIdx.x);
    float *loss = row_of<float>(a.loss, blockIdx.x);
    const float *bias = (const float *)a.bias.p;
    const int32_t label = *row_of<int32_t>(a.labels, blockIdx.x);
    if (label < 0) {
        if (threadIdx.x == 0) loss[0] = loss[1] = 0.0f;
        for (int64_t c = W * threadIdx.x; a.grad && c < a.cols; c += W * blockDim.x)
            store_some(logits + c, some<W>{});
        return; /* the whole block */
    }
    const row_sums s = sum_row<KEEP, W>(logits, bias, a.cols, keep, tmp);
    /* Whose logit the label is reads it before it is overwritten. */
    if (threadIdx.x == label / W % blockDim.x) {
        const float z = bias ? logits[label] + bias[label] : logits[label];
        const float nll = (s.most - z) + logf(s.mass);
        const float even = (s.most - s.total / (float)a.cols) + logf(s.mass);
        loss[0] = a.smoothing == 0.0f ? nll : (1.0f - a.smoothing) * nll + a.smoothing * even;
        loss[1] = nll;
    }
    const float even = a.smoothing / (float)a.cols, part = 1.0f / s.mass;
    const float scale = a.loss_scale ? a.grad_scale * *a.loss_scale : a.grad_scale;
    for (int64_t c = W * threadIdx.x; a.grad && c < a.cols; c += W * blockDim.x) {
        some<W> z = KEEP ? load_some<W>(keep + c) : load_z<W>(logits, bias, c);
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float q = even + (c + i == label ? 1.0f - a.smoothing : 0.0f);
            z.v[i] = scale * (expf(z.v[i] - s.most) * part - q);
        }
        store_some(logits + c, z);
    }
}

/* Every card has 48 KiB for a block. Most hold two such blocks on a multiprocessor, those with 64
 * KiB (6.0, 7.5) one. */
#define KEEP_BYTES (40u << 10)

template <int W> static cudaError_t cross_entropy(const btcu_cross_entropy *a, cudaStream_t s) {
    const size_t bytes = (size_t)a->cols * sizeof(float);
    const int threads = threads_for(a->cols);
    if (a->grad && bytes <= KEEP_BYTES)
        BTCU_LAUNCH((k_cross_entropy<true, W>), a->rows, threads, bytes, s, *a);
    BTCU_LAUNCH((k_cross_entropy<false, W>), a->rows, threads, 0, s, *a);
}

extern "C" cudaError_t btcu_cross_entropy_run(const btcu_cross_entropy *a, cudaStream_t s) {
    const int wide = a->cols % 4 == 0 && aligned4(&a->logits, sizeof(float)) &&
                     aligned4_row(&a->bias, sizeof(float));
    return wide ? cross_entropy<4>(a, s) : cross_entropy<1>(a, s);
}

/* ---- losses of values --------------------------------------------------------------------------
 */

/* Both columns of loss = mean over a row of e(u, t), u = z + bias; with `grad` z becomes
 * grad_scale / cols de/du (core/ops/op_args.h). Reads z and t, 8 bytes for each, and with `grad`
 * writes 4; writes 8 for each row. */
__global__ void __launch_bounds__(FEW_THREADS) k_value_loss(btcu_value_loss a) {
    __shared__ float tmp[FEW_THREADS / 32];
    float *z = row_of<float>(a.z, blockIdx.x), *loss = row_of<float>(a.loss, blockIdx.x);
    const float *bias = (const float *)a.bias.p, *target = row_of<float>(a.target, blockIdx.x);
    const float scale = a.grad_scale * (a.loss_scale ? *a.loss_scale : 1.0f) / (float)a.cols;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += FEW_THREADS) {
        const float u = bias ? z[c] + bias[c] : z[c], t = target[c];
        float slope = 2.0f * (u - t);
        if (a.kind == BT_VALUES_BINARY) {
            sum += fmaxf(u, 0.0f) - t * u + log1pf(expf(-fabsf(u)));
            slope = 1.0f / (1.0f + expf(-u)) - t;
        } else {
            sum += (u - t) * (u - t);
        }
        if (a.grad) z[c] = scale * slope;
    }
    sum = block_sum(sum, tmp);
    if (threadIdx.x == 0) loss[0] = loss[1] = sum / (float)a.cols;
}

extern "C" cudaError_t btcu_value_loss_run(const btcu_value_loss *a, cudaStream_t s) {
    BTCU_LAUNCH(k_value_loss, a->rows, FEW_THREADS, 0, s, *a);
}

/* ---- best symbols ------------------------------------------------------------------------------
 */

struct candidate {
    float z;
    int id; /* -1: none */
};

/* Does a come before b? Ties go to the smaller id; what is there before what is not. */
INLINE bool before(const candidate &a, const candidate &b) {
    if (a.id < 0 || b.id < 0) return a.id >= 0;
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

/* The best allowed entry, of this thread's columns, that comes after `last`. */
INLINE candidate next_best(const btcu_topk &a, const float *logits, candidate last) {
    const float *bias = (const float *)a.bias.p;
    candidate best = {0.0f, -1};
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
        const candidate at = {bias ? logits[c] + bias[c] : logits[c], (int)c};
        if (last.id >= 0 && !before(last, at)) continue;
        bool forbidden = false;
#pragma unroll
        for (int i = 0; i < BT_TOPK_FORBID; i++) forbidden = forbidden || a.forbid[i] == at.id;
        if (!forbidden && before(at, best)) best = at;
    }
    return best;
}

INLINE candidate best_of_warp(candidate x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        candidate other;
        other.z = __shfl_xor_sync(ALL_LANES, x.z, step);
        other.id = __shfl_xor_sync(ALL_LANES, x.id, step);
        if (before(other, x)) x = other;
    }
    return x;
}

/* The k best of log_softmax(logits + bias). Each thread keeps the best of its own columns; when
 * that is taken it looks for its next one, the others wait. Reads the row twice, and a thread's
 * share of it once more for each symbol; writes 8 bytes for each symbol. */
__global__ void __launch_bounds__(THREADS) k_topk(btcu_topk a) {
    __shared__ float tmp[THREADS / 32];
    __shared__ candidate top[2][THREADS / 32]; /* one is read while the other is written */
    const float *logits = row_of<float>(a.logits, blockIdx.x);
    float *value = row_of<float>(a.value, blockIdx.x);
    int32_t *id = row_of<int32_t>(a.id, blockIdx.x);
    const row_sums s = sum_row<false, 1>(logits, (const float *)a.bias.p, a.cols, NULL, tmp);
    const bool any = s.mass > 0.0f; /* false for a NaN too */
    const float lse = any ? s.most + logf(s.mass) : NAN;
    const candidate none = {0.0f, -1};
    candidate own = any ? next_best(a, logits, none) : none;
    for (int64_t place = 0; place < a.k; place++) {
        candidate best = best_of_warp(own);
        if (threadIdx.x % 32 == 0) top[place % 2][threadIdx.x / 32] = best;
        __syncthreads();
        best = best_of_warp(threadIdx.x % 32 < blockDim.x / 32 ? top[place % 2][threadIdx.x % 32]
                                                               : none);
        if (threadIdx.x == 0) {
            value[place] = any && best.id < 0 ? -INFINITY : best.z - lse;
            id[place] = best.id;
        }
        if (best.id >= 0 && best.id == own.id) own = next_best(a, logits, best);
    }
}

extern "C" cudaError_t btcu_topk_run(const btcu_topk *a, cudaStream_t s) {
    BTCU_LAUNCH(k_topk, a->rows, threads_for(a->cols), 0, s, *a);
}
