/* Cross-entropy, losses of values and the best symbols of a row. One group takes a row. */

/* The largest z = logits + bias of a row, sum exp(z - largest), and the sum of z; the same in
 * every work-item. Reads a row once: each work-item keeps a running maximum and rescales. */
typedef struct row_sums {
    float most, mass, total;
} row_sums;

static row_sums sum_row(__global const float *logits, __global const float *bias, int has_bias,
                        long cols, __local float *tmp) {
    float most = -INFINITY, mass = 0.0f, total = 0.0f;
    for (long c = get_local_id(0); c < cols;) {
        float some = 0.0f, plain = 0.0f;
        for (int k = 0; k < 8 * RUN && c < cols; k++, c += WG) {
            const float z = has_bias ? logits[c] + bias[c] : logits[c];
            plain += z;
            if (z > most) {
                const float shrink = exp(most - z); /* from -infinity: 0 */
                mass *= shrink;
                some *= shrink;
                most = z;
            }
            if (z != -INFINITY) some += exp(z - most); /* NaN passes */
        }
        mass += some;
        total += plain;
    }
    row_sums s;
    s.most = group_max(most, tmp);
    s.mass = group_sum(mass == 0.0f ? 0.0f : mass * exp(most - s.most), tmp);
    s.total = group_sum(total, tmp);
    return s;
}

/* loss = ((1 - s) nll + s (lse - mean z), nll) with nll = lse - z[label]; with `grad` the logits
 * become grad_scale (p - q), q = s / V + (1 - s) at the label, times the loss scale where there are
 * scalars. A negative label: zeros. Reads the row twice, writes it once. */
__kernel GROUP(WG) void k_cross_entropy(MAT(logits), CMAT(bias), IMAT(labels), CMAT(scalars),
                                        MAT(loss), const long cols, const float smoothing,
                                        const float grad_scale, const int grad) {
    __local float tmp[WG];
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
    for (long c = get_local_id(0); grad && c < cols; c += WG) {
        const float z = HAS(bias) ? logits[c] + bias[c] : logits[c];
        const float q = even + (c == label ? 1.0f - smoothing : 0.0f);
        logits[c] = label < 0 ? 0.0f : outer * (exp(z - s.most) * scale - q);
    }
}

/* Both columns of loss = mean over a row of e(u, t), u = z + bias; with `grad` z becomes
 * grad_scale / cols de/du. binary: e = max(u, 0) - t u + log(1 + exp(-|u|)), else (u - t)^2. Reads
 * 8 bytes, writes 4 for each value. */
__kernel GROUP(WG) void k_value_loss(MAT(z), CMAT(bias), CMAT(target), CMAT(scalars), MAT(loss),
                                     const long cols, const int binary, const float grad_scale,
                                     const int grad) {
    __local float tmp[WG];
    const long row = get_group_id(0);
    USE(z) + row * z_ld;
    CUSE(bias);
    CUSE(target) + row * target_ld;
    CUSE(scalars);
    USE(loss) + row * loss_ld;
    const float more = HAS(scalars) ? scalars[LOSS_SCALE] : 1.0f;
    const float scale = grad_scale * more / (float)cols;
    float sum = 0.0f;
    for (long c = get_local_id(0); c < cols; c += WG) {
        const float u = HAS(bias) ? z[c] + bias[c] : z[c], t = target[c];
        float slope = 2.0f * (u - t);
        if (binary) {
            sum += fmax(u, 0.0f) - t * u + log1p(exp(-fabs(u)));
            slope = 1.0f / (1.0f + exp(-u)) - t;
        } else {
            sum += (u - t) * (u - t);
        }
        if (grad) z[c] = scale * slope;
    }
    sum = group_sum(sum, tmp);
    if (get_local_id(0) == 0) loss[0] = loss[1] = sum / (float)cols;
}

/* ---- best symbols ----------------------------------------------------------------------------- */

typedef struct candidate {
    float z;
    int id; /* -1: none */
} candidate;

static int before(float z, int id, float other_z, int other_id) {
    return other_id < 0 || z > other_z || (z == other_z && id < other_id);
}

/* The best allowed entry, of the columns of this work-item, that comes after `last`. */
static candidate next_best(__global const float *logits, __global const float *bias, int has_bias,
                           long cols, int4 forbid, candidate last) {
    candidate best = {0.0f, -1};
    for (long c = get_local_id(0); c < cols; c += WG) {
        const float z = has_bias ? logits[c] + bias[c] : logits[c];
        const int id = (int)c;
        if (last.id >= 0 && !(z < last.z || (z == last.z && id > last.id))) continue;
        if (id == forbid.x || id == forbid.y || id == forbid.z || id == forbid.w) continue;
        if (before(z, id, best.z, best.id)) {
            best.z = z;
            best.id = id;
        }
    }
    return best;
}

/* The k best of log_softmax(logits + bias). Each work-item keeps the best of its own columns; when
 * that is taken it looks for its next one, the others wait. Reads the row about twice, and 1 / WG
 * of it for each symbol. */
__kernel GROUP(WG) void k_topk(CMAT(logits), CMAT(bias), MAT(value), __global int *id_base,
                               const ulong id_off, const long id_ld, const long cols, const long k,
                               const int4 forbid) {
    __local float tmp[WG];
    __local int tmp_id[WG];
    const uint lid = get_local_id(0);
    const long row = get_group_id(0);
    CUSE(logits) + row * logits_ld;
    CUSE(bias);
    USE(value) + row * value_ld;
    __global int *id = id_base + id_off + row * id_ld;
    const row_sums s = sum_row(logits, bias, HAS(bias), cols, tmp);
    const float lse = s.most + log(s.mass);
    const candidate none = {0.0f, -1};
    candidate own = none;
    if (!isnan(lse)) own = next_best(logits, bias, HAS(bias), cols, forbid, none);
    for (long place = 0; place < k; place++) {
        tmp[lid] = own.z;
        tmp_id[lid] = own.id;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint step = WG / 2; step > 0; step /= 2) {
            if (lid < step && tmp_id[lid + step] >= 0 &&
                before(tmp[lid + step], tmp_id[lid + step], tmp[lid], tmp_id[lid])) {
                tmp[lid] = tmp[lid + step];
                tmp_id[lid] = tmp_id[lid + step];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        const candidate best = {tmp[0], tmp_id[0]};
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lid == 0) {
            value[place] = isnan(lse) ? lse : best.id < 0 ? -INFINITY : best.z - lse;
            id[place] = best.id;
        }
        if (best.id >= 0 && best.id == own.id)
            own = next_best(logits, bias, HAS(bias), cols, forbid, best);
    }
}
