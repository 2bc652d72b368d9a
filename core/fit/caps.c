#include "core/fit/caps.h"

#include <math.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/fit/plan_search.h"

int64_t bti_split_next(const bti_shape *caps, const int64_t (*counts)[2], int64_t from, int64_t n) {
    int64_t rows[2] = {0, 0}, i = from;
    for (; i < n && i - from < caps->sentences; i++) {
        int64_t a = rows[0] + counts[i][0], b = rows[1] + counts[i][1];
        if (i > from && (a > caps->rows[0] || b > caps->rows[1])) break;
        rows[0] = a;
        rows[1] = b;
    }
    return i - from;
}

/* As bti_split_next cuts sentences that are all alike. */
static int64_t parts_of_alike(const bti_workload *w, const bti_shape *caps) {
    int64_t n = caps->sentences;
    for (int side = 0; side < 2; side++)
        if (w->longest[side] > 0) n = bti_min(n, caps->rows[side] / w->longest[side]);
    n = bti_max(n, 1);
    return (w->max_sentences + n - 1) / n;
}

int64_t bti_workload_parts(const bti_workload *w, const bti_shape *caps, double *mean) {
    int64_t at = 0, most = 0, all = 0;
    if (w->alike) {
        most = parts_of_alike(w, caps);
        if (mean != NULL) *mean = (double)most;
        return most;
    }
    for (int64_t u = 0; u < w->samples; u++) {
        int64_t parts = 0;
        for (; at < w->sample_end[u]; parts++)
            at += bti_split_next(caps, (const int64_t(*)[2])w->sample, at, w->sample_end[u]);
        most = bti_max(most, parts);
        all += parts;
    }
    if (mean != NULL) *mean = w->samples > 0 ? (double)all / (double)w->samples : 0;
    return most;
}

void bti_workload_clear(bti_workload *w) {
    bti_free(w->sample);
    w->sample = NULL;
    w->samples = 0;
}

uint64_t bti_feature_bytes(const bti_model *m, const bti_shape *caps) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < m->cfg.features; i++)
        sum += 2 * (uint64_t)(caps->feature[i] * m->cfg.feature[i].width) *
               bti_dtype_size(m->params.dtype);
    return sum;
}

void bti_workload_cap_segments(const bti_workload *w, const bti_model *m, bti_shape *c) {
    int joined = m->cfg.fusion == BTI_FUSION_CONCAT;
    if (!bti_has_decoder(&m->cfg)) c->rows[1] = c->sentences; /* a row for each example */
    if (m->segments == 0) return;
    c->tokens = bti_min(c->rows[0], c->sentences * w->tokens);
    c->distinct[0] = bti_min(c->tokens, m->vocab[0]);
    c->longest[0] = w->tokens;
    for (int32_t i = 0; i < m->cfg.features; i++) {
        c->feature[i] = c->sentences * w->feature[i];
        c->feature_longest[i] = w->feature[i];
        if (joined) c->feature[i] = bti_min(c->feature[i], c->rows[0]);
    }
    if (joined) c->rows[0] = bti_min(c->rows[0], bti_joined_rows(m, c));
    bti_shape_settle(m, c);
}

/* Sentences are not cut, so a part gets some of the longest sentence, `room` of 16, more than its
 * share, and never less than the longest one: with as many parts as sentences just that. */
static bti_shape caps_with(const bti_search *s, int64_t parts, int64_t room) {
    const bti_workload *w = s->w;
    bti_shape c = {.sentences = w->max_sentences};
    if (s->m->segments > 0 && parts > 1) /* rows of a feature go with examples */
        c.sentences = bti_min(c.sentences, (16 + room) * ((c.sentences + parts - 1) / parts) / 16);
    if (s->opt->force_rows[0] || s->opt->force_rows[1]) c.sentences = w->max_sentences;
    for (int i = 0; i < 2; i++) {
        int64_t share = (w->max_rows[i] + parts - 1) / parts;
        if (parts > 1) share += w->longest[i] * room / 16;
        if (parts >= w->max_sentences) share = 0;
        c.rows[i] = bti_min(bti_max(share, w->longest[i]), bti_max(w->max_rows[i], w->longest[i]));
        if (s->opt->force_rows[i]) c.rows[i] = bti_max(s->opt->force_rows[i], w->longest[i]);
        c.distinct[i] = bti_min(c.rows[i], s->m->vocab[i]);
        c.longest[i] = w->longest[i];
    }
    c.sentences = bti_min(c.sentences, bti_max(1, bti_min(c.rows[0], c.rows[1])));
    bti_workload_cap_segments(w, s->m, &c);
    return c;
}

/* The least room with which the updates that are known are cut into no more parts; half a mean
 * sentence where there are none. */
bti_shape bti_plan_caps(const bti_search *s, int64_t parts) {
    const bti_workload *w = s->w;
    double mean = (w->mean_rows[0] + w->mean_rows[1]) / w->mean_sentences / 2;
    int64_t low = 0, high = 32;
    if (w->samples == 0 && !w->alike)
        return caps_with(s, parts, (int64_t)(8 * mean / (double)bti_max(1, w->longest[1])));
    while (low < high) {
        int64_t room = low + (high - low) / 2;
        bti_shape c = caps_with(s, parts, room);
        if (bti_workload_parts(w, &c, NULL) <= parts)
            high = room;
        else
            low = room + 1;
    }
    return caps_with(s, parts, high);
}

/* Rows of the segments of a mean micro-batch; where they are joined they make up the encoder's. */
static void mean_segments(const bti_search *s, const bti_shape *caps, bti_shape *out) {
    const bti_workload *w = s->w;
    double n = (double)out->sentences;
    if (!bti_has_decoder(&s->m->cfg)) out->rows[1] = out->sentences;
    if (s->m->segments == 0) return;
    out->tokens = bti_min(caps->tokens, (int64_t)(w->mean_tokens * n));
    out->distinct[0] = bti_min(out->tokens, caps->distinct[0]);
    for (int32_t i = 0; i < s->m->cfg.features; i++)
        out->feature[i] = bti_min(caps->feature[i], (int64_t)(w->mean_feature[i] * n));
    if (s->m->cfg.fusion == BTI_FUSION_CONCAT)
        out->rows[0] = bti_min(caps->rows[0], bti_joined_rows(s->m, out));
    bti_shape_settle(s->m, out);
}

double bti_plan_mean(const bti_search *s, const bti_shape *caps, bti_shape *out) {
    const bti_workload *w = s->w;
    double parts = 1;
    if (w->samples == 0 && !w->alike) {
        for (int i = 0; i < 2; i++) parts = fmax(parts, w->mean_rows[i] / (double)caps->rows[i]);
        if (parts > 1) parts = ceil(parts * 1.02);
    } else {
        bti_workload_parts(w, caps, &parts);
    }
    *out = *caps;
    out->sentences = bti_max(1, (int64_t)(w->mean_sentences / parts));
    for (int i = 0; i < 2; i++) {
        out->rows[i] = bti_max(1, bti_min(caps->rows[i], (int64_t)(w->mean_rows[i] / parts)));
        out->distinct[i] = bti_min(out->rows[i], caps->distinct[i]);
    }
    for (int i = 0; i < BTI_PAIRS; i++) out->pairs[i] = w->mean_pairs[i] * (double)out->sentences;
    mean_segments(s, caps, out);
    return parts;
}

bti_shape bti_choice_caps(const bti_search *s, const bti_choice *c) {
    bti_shape caps = bti_plan_caps(s, c->parts);
    if (c->sentences == 0) return caps;
    bti_shape own = caps;
    own.sentences = bti_min(c->sentences, s->w->max_sentences);
    for (int i = 0; i < 2; i++) {
        int64_t most = bti_max(s->w->max_rows[i], s->w->longest[i]);
        own.rows[i] = bti_min(bti_max(c->rows[i], s->w->longest[i]), most);
        own.distinct[i] = bti_min(own.rows[i], s->m->vocab[i]);
    }
    bti_workload_cap_segments(s->w, s->m, &own);
    return bti_workload_parts(s->w, &own, NULL) > c->parts ? caps : own;
}
