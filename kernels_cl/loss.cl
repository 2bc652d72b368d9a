/* Cross-entropy, losses of values and the best symbols of a row. One group takes a row. */

/* The largest z = logits + bias of a row, sum exp(z - largest), and the sum of z; the same in
 * every work-item. Reads a row once: each lane keeps a running maximum and rescales. */
typedef struct row_sums {
    float most, mass, total;
} row_sums;

/* exp(x - most); 0 where x is -infinity, also where `most` is. */
static wide exp_below(wide x, wide most) {
    return select(exp(x - most), (wide)(0.0f), x == -INFINITY);
}

/* W logits from c on with their bias; what is not there is 0. */
static wide get_logits(__global const float *logits, __global const float *bias, int has_bias,
                       long c, long n) {
    const wide z = load_wide(logits + c, n);
    return has_bias ? z + load_wide(bias + c, n) : z;
}

static row_sums sum_row(__global const float *logits, __global const float *bias, int has_bias,
                        long cols, __local float *tmp) {
    wide most = (wide)(-INFINITY), mass = (wide)(0.0f), total = (wide)(0.0f);
    for (long c = W * (long)get_local_id(0); c < cols;) {
        wide some = (wide)(0.0f), plain = (wide)(0.0f);
        for (int k = 0; k < 2 * RUN && c < cols; k++, c += W * RG) {
            const wide there = get_logits(logits, bias, has_bias, c, cols - c);
            const wide z = fill_wide(there, cols - c, -INFINITY);
            plain += there;
            if (any(z > most)) {
                const wide shrink = exp_below(most, fmax(most, z));
                mass *= shrink;
                some *= shrink;
                most = fmax(most, z);
            }
            some += exp_below(z, most); /* NaN passes */
        }
        mass += some;
        total += plain;
    }
    row_sums s;
    s.most = group_max(max_wide(most), tmp);
    s.mass = group_sum(sum_wide(mass * exp_below(most, (wide)(s.most))), tmp);
    s.total = group_sum(sum_wide(total), tmp);
    return s;
}

/* loss = ((1 - s) nll + s (lse - mean z), nll) with nll = lse - z[label]; with `grad` the logits
 * become grad_scale (p - q), q = s / V + (1 - s) at the label, times the loss scale where there are
 * scalars. A negative label: zeros. Reads the row twice, writes it once. */
__kernel GROUP(RG) void k_cross_entropy(MAT(logits), CMAT(bias), IMAT(labels), CMAT(scalars),
                                        MAT(loss), const long cols, const float smoothing,
                                        const float grad_scale, const int grad) {
    __local float tmp[RG];
    const long row = get_group_id(0);
    USE(logits) + row * logits_ld;
    CUSE(bias);
    USE(loss) + row * loss_ld;
    const int label = labels_base[labels_off + row * labels_ld];
    const row_sums s = sum_row(logits, bias, HAS(bias), cols, tmp);
    if (get_local_id(0) == 0) {
        const long at = max(label, 0);
        const float z = HAS(bias) ? logits[at] + bias[at] : logits[at];
        const float nll = (s.most - z) + log(s.mass);
        const float even = (s.most - s.total / (float)cols) + log(s.mass);
        loss[0] = label < 0 ? 0.0f
                            : smoothing == 0.0f ? nll
                                                : (1.0f - smoothing) * nll + smoothing * even;
        loss[1] = label < 0 ? 0.0f : nll;
    }
    barrier(CLK_GLOBAL_MEM_FENCE); /* the label's logit is read before it is overwritten */
    const float even = smoothing / (float)cols, scale = 1.0f / s.mass;
    const float outer = grad_scale * (HAS(scalars) ? scalars_base[scalars_off + LOSS_SCALE] : 1.0f);
    for (long c = W * (long)get_local_id(0); grad && c < cols; c += W * RG) {
        const long n = cols - c;
        const wide z = get_logits(logits, bias, HAS(bias), c, n);
        const iwide is_label = LANE == (int)(label - c);
        const wide q = even + select((wide)(0.0f), (wide)(1.0f - smoothing), is_label);
        const wide d = outer * (exp(z - s.most) * scale - q);
        store_wide(label < 0 ? (wide)(0.0f) : d, logits + c, n);
    }
}

/* Both columns of loss = mean over a row of e(u, t), u = z + bias; with `grad` z becomes
 * grad_scale / cols de/du. binary: e = max(u, 0) - t u + log(1 + exp(-|u|)), else (u - t)^2. Reads
 * 8 bytes, writes 4 for each value. */
__kernel GROUP(RG) void k_value_loss(MAT(z), CMAT(bias), CMAT(target), CMAT(scalars), MAT(loss),
                                     const long cols, const int binary, const float grad_scale,
                                     const int grad) {
    __local float tmp[RG];
    const long row = get_group_id(0);
    USE(z) + row * z_ld;
    CUSE(bias);
    CUSE(target) + row * target_ld;
    CUSE(scalars);
    USE(loss) + row * loss_ld;
    const float more = HAS(scalars) ? scalars[LOSS_SCALE] : 1.0f;
    const float scale = grad_scale * more / (float)cols;
    float sum = 0.0f;
    for (long c = W * (long)get_local_id(0); c < cols; c += W * RG) {
        const long n = cols - c;
        const wide u = get_logits(z, bias, HAS(bias), c, n), t = load_wide(target + c, n);
        wide slope = 2.0f * (u - t), e = (u - t) * (u - t);
        if (binary) {
            e = fmax(u, 0.0f) - t * u + log1p(exp(-fabs(u)));
            slope = 1.0f / (1.0f + exp(-u)) - t;
        }
        sum += sum_wide(only_wide(e, n));
        if (grad) store_wide(scale * slope, z + c, n);
    }
    sum = group_sum(sum, tmp);
    if (get_local_id(0) == 0) loss[0] = loss[1] = sum / (float)cols;
}

/* ---- best symbols ------------------------------------------------------------------------------
 * A lane of a work-item has the columns that are its own modulo TOP_LANES and keeps the best of
 * them in local memory. */

#define TOP_LANES (RG * W)

/* Is an entry (z, id) better than another one? id -1: none. */
static int before(float z, int id, float other_z, int other_id) {
    return id >= 0 && (other_id < 0 || z > other_z || (z == other_z && id < other_id));
}

/* The best allowed columns of this work-item's lanes. A later column must be better to win. */
static void best_of_lanes(__global const float *logits, __global const float *bias, int has_bias,
                          long cols, int4 forbid, __local float *top, __local int *top_id) {
    wide best = (wide)(0.0f);
    iwide id = (iwide)(-1);
    for (long c = W * (long)get_local_id(0); c < cols; c += TOP_LANES) {
        const wide z = get_logits(logits, bias, has_bias, c, cols - c);
        const iwide at = LANE + (int)c;
        const iwide wins = (at < (int)cols) & ((id < 0) | (z > best)) & (at != forbid.x) &
                           (at != forbid.y) & (at != forbid.z) & (at != forbid.w);
        best = select(best, z, wins);
        id = select(id, at, wins);
    }
    WIDE(vstore)(best, get_local_id(0), top);
    WIDE(vstore)(id, get_local_id(0), top_id);
}

/* The best allowed column of a lane that comes after (z, id). */
static void next_of_lane(__global const float *logits, __global const float *bias, int has_bias,
                         long cols, int4 forbid, __local float *top, __local int *top_id) {
    const float last = *top;
    const int last_id = *top_id;
    float best = 0.0f;
    int best_id = -1;
    for (long c = last_id % TOP_LANES; c < cols; c += TOP_LANES) {
        const float z = has_bias ? logits[c] + bias[c] : logits[c];
        const int id = (int)c;
        if (!before(last, last_id, z, id) || !before(z, id, best, best_id)) continue;
        if (id == forbid.x || id == forbid.y || id == forbid.z || id == forbid.w) continue;
        best = z;
        best_id = id;
    }
    *top = best;
    *top_id = best_id;
}

/* The k best of log_softmax(logits + bias). When the best of a lane is taken the lane looks for its
 * next one, the others wait. Reads the row about twice, and 1 / TOP_LANES of it for each symbol. */
__kernel GROUP(RG) void k_topk(CMAT(logits), CMAT(bias), MAT(value), __global int *id_base,
                               const ulong id_off, const long id_ld, const long cols, const long k,
                               const int4 forbid) {
    __local float tmp[RG], top[TOP_LANES];
    __local int tmp_lane[RG], top_id[TOP_LANES];
    const uint lid = get_local_id(0);
    const long row = get_group_id(0);
    CUSE(logits) + row * logits_ld;
    CUSE(bias);
    USE(value) + row * value_ld;
    __global int *id = id_base + id_off + row * id_ld;
    const row_sums s = sum_row(logits, bias, HAS(bias), cols, tmp);
    const int any = s.mass > 0.0f; /* 0 for a NaN too */
    const float lse = any ? s.most + log(s.mass) : NAN;
    best_of_lanes(logits, bias, HAS(bias), cols, forbid, top, top_id);
    for (long place = 0; place < k; place++) {
        int mine = (int)lid * W;
        for (int i = mine + 1; i < (int)lid * W + W; i++)
            if (before(top[i], top_id[i], top[mine], top_id[mine])) mine = i;
        tmp_lane[lid] = mine;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint step = RG / 2; step > 0; step /= 2) {
            if (lid < step) {
                const int a = tmp_lane[lid], b = tmp_lane[lid + step];
                if (before(top[b], top_id[b], top[a], top_id[a])) tmp_lane[lid] = b;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const int lane = tmp_lane[0], found = any ? top_id[lane] : -1;
        if (lid == 0) {
            value[place] = any && found < 0 ? -INFINITY : top[lane] - lse;
            id[place] = found;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (found >= 0 && lane / W == (int)lid)
            next_of_lane(logits, bias, HAS(bias), cols, forbid, top + lane, top_id + lane);
    }
}
