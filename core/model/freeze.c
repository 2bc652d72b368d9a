/* Frozen parameters: which they are, and how far down backward has to go because of them. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/model/build.h"

/* ---- names -------------------------------------------------------------------------- */

/* Names of a table that is tied to others, which are not in the parameter table. */
static const struct {
    const char *name;
    bti_tie least; /* from this way of tying on */
} tied[] = {{"generator.weight", BTI_TIE_TARGET}, {"tgt_embed.weight", BTI_TIE_ALL}};
#define TIED ((int)(sizeof tied / sizeof tied[0]))

int32_t bti_model_find(const bti_model *m, const char *name) {
    for (int i = 0; i < TIED; i++)
        if (m->cfg.tie >= tied[i].least && strcmp(tied[i].name, name) == 0) return m->embed[1];
    return bti_params_find(&m->params, name);
}

static int matches(const bti_model *m, int32_t param, const char *pattern) {
    if (fnmatch(pattern, m->params.param[param].name, 0) == 0) return 1;
    for (int i = 0; i < TIED; i++)
        if (m->cfg.tie >= tied[i].least && param == m->embed[1] &&
            fnmatch(pattern, tied[i].name, 0) == 0)
            return 1;
    return 0;
}

/* How many characters two texts begin with alike. */
static size_t alike(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] != 0 && a[n] == b[n]) n++;
    return n;
}

/* The name that begins most like a pattern, which is also tried below "transformer.". */
static bt_status fail_unmatched(const bti_model *m, const char *pattern) {
    const bti_params *t = &m->params;
    const char *near = t->param[0].name;
    size_t most = 0;
    for (int32_t i = 0; i < t->count; i++) {
        const char *name = t->param[i].name;
        size_t whole = alike(pattern, name), below = 0;
        if (strncmp(name, "transformer.", 12) == 0) below = alike(pattern, name + 12);
        size_t n = whole > below ? whole : below;
        if (n <= most) continue;
        most = n;
        near = name;
    }
    return bti_fail(BT_EINPUT, "freeze: no parameter is named \"%s\"; a near name is %s", pattern,
                    near);
}

bt_status bti_model_freeze(bti_model *m, char *const *pattern, size_t count) {
    bti_params *t = &m->params;
    int32_t frozen = 0;
    for (size_t k = 0; k < count; k++) {
        int found = 0;
        for (int32_t i = 0; i < t->count; i++) {
            if (!matches(m, i, pattern[k])) continue;
            frozen += !t->param[i].frozen;
            t->param[i].frozen = found = 1;
        }
        if (!found) return fail_unmatched(m, pattern[k]);
    }
    if (frozen == t->count)
        return bti_fail(BT_EINPUT, "freeze: all %d parameters are frozen: nothing would be learned",
                        frozen);
    bti_model_find_lowest(m);
    return BT_OK;
}

/* ---- how far backward goes ------------------------------------------------------------ */

static int trains(const bti_model *m, int32_t param) {
    return param >= 0 && !m->params.param[param].frozen;
}

static int pair_trains(const bti_model *m, const bti_pair *p) {
    return trains(m, p->w) || trains(m, p->b);
}

static int block_trains(const bti_model *m, const bti_block *k) {
    return pair_trains(m, &k->in) || pair_trains(m, &k->out) || pair_trains(m, &k->norm);
}

static int segments_train(const bti_model *m) {
    if (trains(m, m->types)) return 1;
    for (int32_t i = 0; i < m->segments; i++) {
        const bti_segment *s = &m->segment[i];
        if (trains(m, s->table) || trains(m, s->positions) || pair_trains(m, &s->projection) ||
            pair_trains(m, &s->norm) || pair_trains(m, &s->gate))
            return 1;
    }
    return 0;
}

static int32_t lowest_of(const bti_model *m, int side) {
    int32_t encoder = (int32_t)m->cfg.encoder_layers, first = side ? encoder : 0;
    int32_t end = side ? m->layers : encoder;
    if (trains(m, m->embed[side]) || trains(m, m->positions[side])) return 0;
    if (side == 0 && segments_train(m)) return 0;
    for (int32_t i = first; i < end; i++)
        for (int j = 0; j < m->layer[i].blocks; j++) {
            const bti_block *k = &m->layer[i].block[j];
            int to_encoder = side == 1 && k->kind == BTI_BLOCK_CROSS && bti_model_learns(m, 0);
            if (block_trains(m, k) || to_encoder) return bti_unit(m, &m->layer[i], j);
        }
    int norm = m->cfg.final_norm && pair_trains(m, &m->final_norm[side]);
    return norm ? 1 + (end - first) * BTI_MAX_BLOCKS : INT32_MAX;
}

void bti_model_find_lowest(bti_model *m) {
    m->lowest[0] = lowest_of(m, 0);
    m->lowest[1] = lowest_of(m, 1);
}
