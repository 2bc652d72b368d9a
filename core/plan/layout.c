/* Offsets from live ranges.
 *
 * Tensors that share storage (an output in place of a dying input) are one block. Blocks are placed
 * one after the other at the lowest offset where they hit no placed block that lives at the same
 * time; what decides the waste is the order. Several orders are tried, and in each the blocks that
 * stick out at the top are moved to the front while that helps. Where more than half a percent is
 * lost still, places in the order are drawn by lot. */
#include <stdlib.h>
#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/plan/program.h"

/* Bounds the draws from one order: comparisons of blocks, about. */
#define MOST_STEPS 20000000

typedef struct block {
    int32_t first, last;
    uint64_t bytes; /* aligned, guard included */
    uint64_t crowd; /* most bytes live at once while it lives */
    uint64_t offset;
} block;

/* A block in its place. */
typedef struct placed {
    uint64_t offset, end;
    int32_t first, last;
} placed;

typedef struct state {
    block *blocks;
    placed *placed; /* by offset */
    int32_t count;
    int32_t *order, *trial;
    const int64_t *live; /* bytes at each op */
    uint64_t heap;
} state;

static int has_place(const bti_tensor *t) {
    return t->region == BTI_REGION_DYNAMIC && t->first >= 0;
}

static int whole(const bti_program *p, const bti_ref *r) {
    const bti_tensor *t = &p->tensor[r->id];
    return r->row == 0 && r->col == 0 && r->rows == t->rows && r->cols == t->cols;
}

/* Output operand `out` of op k may take the storage of input `in`: both whole, equal bytes, the
 * input dies here (a pinned one is wanted afterwards) and appears nowhere else in the op, the
 * output begins here. */
static int may_alias(const bti_program *p, int32_t k, int out, int in) {
    const bti_op_record *o = &p->op[k];
    if (o->t[in].id == 0 || !whole(p, &o->t[in]) || !whole(p, &o->t[out])) return 0;
    const bti_tensor *x = &p->tensor[o->t[in].id], *y = &p->tensor[o->t[out].id];
    if (!has_place(x) || x->pin || x->last != k || y->first != k || x->bytes != y->bytes) return 0;
    for (int i = 0; i < bti_op_info(o->op)->operands; i++)
        if (i != in && o->t[i].id == o->t[in].id) return 0;
    return 1;
}

/* block_of[id]: the block of each tensor, -1 for those without bytes; fills blocks with live ranges
 * and bytes. */
static int32_t make_blocks(const bti_program *p, const bti_layout_options *opt, block *blocks,
                           int32_t *block_of) {
    int32_t count = 0;
    memset(block_of, 0xFF, ((size_t)p->tensors + 1) * sizeof *block_of);
    for (int32_t k = 0; k < p->ops; k++) {
        const bti_op_record *o = &p->op[k];
        const bt_op_info *info = bti_op_info(o->op);
        uint32_t taken = 0;
        for (int i = 0; i <= info->operands; i++) {
            bti_tid id = i < info->operands ? o->t[i].id : o->ws;
            if (id == 0 || !has_place(&p->tensor[id]) || block_of[id] >= 0) continue;
            const bti_tensor *t = &p->tensor[id];
            if (t->bytes == 0) continue; /* most scratch */
            uint32_t alias =
                i < info->operands && !opt->no_alias ? info->operand[i].alias & ~taken : 0;
            for (int j = 0; alias >> j && block_of[id] < 0; j++) {
                if (!(alias >> j & 1) || !may_alias(p, k, i, j)) continue;
                taken |= 1u << j;
                block_of[id] = block_of[o->t[j].id];
                blocks[block_of[id]].last = t->last;
            }
            if (block_of[id] >= 0) continue;
            block_of[id] = count;
            blocks[count++] = (block){.first = t->first,
                                      .last = t->last,
                                      .bytes = bti_align_up(t->bytes + opt->guard, opt->alignment)};
        }
    }
    return count;
}

/* live[k]: bytes live at each op (a block is live from its first op to its last, both included);
 * gives the most. */
static uint64_t most_live(const block *blocks, int32_t count, int64_t *live, int32_t ops,
                          int32_t *peak) {
    memset(live, 0, ((size_t)ops + 1) * sizeof *live);
    for (int32_t i = 0; i < count; i++) {
        live[blocks[i].first] += (int64_t)blocks[i].bytes;
        live[blocks[i].last + 1] -= (int64_t)blocks[i].bytes;
    }
    int64_t sum = 0, best = 0;
    *peak = 0;
    for (int32_t k = 0; k < ops; k++) {
        sum += live[k];
        live[k] = sum;
        if (sum > best) {
            best = sum;
            *peak = k;
        }
    }
    return (uint64_t)best;
}

/* Most bytes live at once while each block lives. */
static void set_crowds(block *blocks, int32_t count, const int64_t *live) {
    for (int32_t i = 0; i < count; i++)
        for (int32_t k = blocks[i].first; k <= blocks[i].last; k++)
            if ((uint64_t)live[k] > blocks[i].crowd) blocks[i].crowd = (uint64_t)live[k];
}

/* An address for `bytes` bytes at `at` or above that does not cross a heap's end. */
static uint64_t in_heap(const state *s, uint64_t at, uint64_t bytes) {
    if (s->heap == 0 || bytes == 0 || at / s->heap == (at + bytes - 1) / s->heap) return at;
    return bti_align_up(at, s->heap);
}

static int together(const block *a, const block *b) {
    return a->first <= b->last && b->first <= a->last;
}

/* Lowest offset for block b among the n placed ones. They are sorted by offset, so whatever lies
 * below `at` and lives at the same time has pushed `at` past its end already. */
static uint64_t lowest_fit(const state *s, int32_t n, const block *b) {
    uint64_t at = 0;
    for (const placed *q = s->placed; q < s->placed + n; q++) {
        if (q->offset >= at + b->bytes) break;
        if (q->last < b->first || b->last < q->first || q->end <= at) continue;
        at = in_heap(s, q->end, b->bytes);
    }
    return at;
}

/* Places all blocks in the given order. Gives the top and the place in the order of the block that
 * reaches it; UINT64_MAX as soon as `limit` is reached. */
static uint64_t place(state *s, const int32_t *order, uint64_t limit, int32_t *highest) {
    uint64_t top = 0;
    for (int32_t n = 0; n < s->count; n++) {
        block *b = &s->blocks[order[n]];
        b->offset = lowest_fit(s, n, b);
        int32_t i = n;
        while (i > 0 && s->placed[i - 1].offset > b->offset) i--;
        memmove(&s->placed[i + 1], &s->placed[i], (size_t)(n - i) * sizeof *s->placed);
        s->placed[i] = (placed){b->offset, b->offset + b->bytes, b->first, b->last};
        if (b->offset + b->bytes > top) {
            top = b->offset + b->bytes;
            *highest = n;
            if (top >= limit) return UINT64_MAX;
        }
    }
    return top;
}

/* Orders: larger first, earlier first, more bytes x time first, what lives where most is live
 * first, outwards from the op where most is live. */
typedef enum rule { BY_BYTES, BY_START, BY_AREA, BY_CROWD, BY_DISTANCE, RULES } rule;
typedef struct sort_by {
    const block *blocks;
    rule rule;
    int32_t peak;
} sort_by;

static double weight(const block *b, rule r, int32_t peak) {
    switch (r) {
    case BY_START:
        return -(double)b->first;
    case BY_AREA:
        return (double)b->bytes * (b->last - b->first + 1);
    case BY_CROWD:
        return (double)b->crowd;
    case BY_DISTANCE:
        return b->first > peak ? peak - b->first : b->last < peak ? b->last - peak : 0;
    default:
        return (double)b->bytes;
    }
}

static int compare(const void *p, const void *q, void *user) {
    const sort_by *by = user;
    int32_t i = *(const int32_t *)p, j = *(const int32_t *)q;
    const block *a = &by->blocks[i], *b = &by->blocks[j];
    double x = weight(a, by->rule, by->peak), y = weight(b, by->rule, by->peak);
    if (x != y) return x < y ? 1 : -1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
    return i < j ? -1 : 1;
}

/* Moves the block that reaches the top towards the front while that lowers the top. */
static uint64_t improve(state *s, uint64_t top, uint64_t live, int32_t highest) {
    size_t bytes = (size_t)s->count * sizeof *s->order;
    for (int tries = 0; tries < 60 && top > live + live / 200 && highest > 0; tries++) {
        memcpy(s->trial, s->order, bytes);
        int32_t to = highest / 2, moved = s->trial[highest], high = 0;
        memmove(&s->trial[to + 1], &s->trial[to], (size_t)(highest - to) * sizeof *s->trial);
        s->trial[to] = moved;
        uint64_t t = place(s, s->trial, top + 1, &high);
        if (t > top && to == 0) break;
        if (t <= top) {
            memcpy(s->order, s->trial, bytes);
            top = t;
            highest = high;
        } else {
            highest = to;
        }
    }
    return top;
}

static uint64_t draw(uint64_t *lot, uint64_t below) {
    *lot = *lot * 6364136223846793005u + 1442695040888963407u;
    return (*lot >> 33) % below;
}

/* Moves the block that reaches the top, or now and then any other, before a block drawn by lot that
 * lives at the same time; keeps what does not raise the top. The draws are the same every time. */
static uint64_t shake(state *s, uint64_t top, uint64_t live, int32_t highest) {
    size_t bytes = (size_t)s->count * sizeof *s->order;
    uint64_t lot = 1;
    int64_t tries = MOST_STEPS / ((int64_t)s->count * s->count + 1);
    for (; tries > 0 && top > live + live / 200; tries--) {
        int32_t from = draw(&lot, 4) ? highest : (int32_t)draw(&lot, (uint64_t)s->count);
        int32_t to = from > 0 ? (int32_t)draw(&lot, (uint64_t)from) : 0, high = 0;
        while (to > 0 && !together(&s->blocks[s->order[from]], &s->blocks[s->order[to]])) to--;
        memcpy(s->trial, s->order, bytes);
        memmove(&s->trial[to + 1], &s->trial[to], (size_t)(from - to) * sizeof *s->trial);
        s->trial[to] = s->order[from];
        uint64_t t = place(s, s->trial, top + 1, &high);
        if (t > top) continue;
        memcpy(s->order, s->trial, bytes);
        top = t;
        highest = high;
    }
    return top;
}

/* Places the blocks in the best order found; gives the top. Draws begin when no order will do. */
static uint64_t place_best(state *s, int32_t *best, uint64_t live, int32_t peak) {
    uint64_t best_top = UINT64_MAX;
    size_t bytes = (size_t)s->count * sizeof *best;
    int32_t highest = 0;
    for (int n = 0; n < 2 * RULES && best_top > live + live / 200; n++) {
        sort_by by = {s->blocks, (rule)(n % RULES), peak};
        if (n == BY_CROWD) set_crowds(s->blocks, s->count, s->live);
        for (int32_t i = 0; i < s->count; i++) s->order[i] = i;
        qsort_r(s->order, (size_t)s->count, sizeof *s->order, compare, &by);
        uint64_t top = place(s, s->order, UINT64_MAX, &highest);
        top = n < RULES ? improve(s, top, live, highest) : shake(s, top, live, highest);
        if (top < best_top) {
            best_top = top;
            memcpy(best, s->order, bytes);
        }
    }
    return place(s, best, UINT64_MAX, &highest);
}

/* ---- layouts met before ------------------------------------------------------------------------
 */

enum { KEPT = 32 };

/* What a layout follows from, and the offsets that it gave. */
typedef struct known {
    uint64_t heap, top;
    block *blocks;
    int32_t count;
} known;

struct bti_layout_memo {
    known kept[KEPT];
    int32_t next; /* to be forgotten */
};

bti_layout_memo *bti_layout_memo_new(void) { return bti_alloc(1, sizeof(bti_layout_memo)); }

void bti_layout_memo_free(bti_layout_memo *memo) {
    if (memo == NULL) return;
    for (int i = 0; i < KEPT; i++) bti_free(memo->kept[i].blocks);
    bti_free(memo);
}

static int is_known(const known *k, const state *s) {
    if (k->blocks == NULL || k->count != s->count || k->heap != s->heap) return 0;
    for (int32_t i = 0; i < s->count; i++) {
        const block *a = &k->blocks[i], *b = &s->blocks[i];
        if (a->bytes != b->bytes || a->first != b->first || a->last != b->last) return 0;
    }
    return 1;
}

/* Sets the blocks' offsets and gives the top where they were placed before; else 0. */
static uint64_t recall(const bti_layout_memo *memo, state *s) {
    for (int i = 0; i < KEPT && memo != NULL; i++) {
        if (!is_known(&memo->kept[i], s)) continue;
        memcpy(s->blocks, memo->kept[i].blocks, (size_t)s->count * sizeof *s->blocks);
        return memo->kept[i].top;
    }
    return 0;
}

static bt_status keep(bti_layout_memo *memo, const state *s, uint64_t top) {
    if (memo == NULL) return BT_OK;
    block *copy = bti_alloc((size_t)s->count, sizeof *copy);
    if (copy == NULL) return BT_ENOMEM;
    memcpy(copy, s->blocks, (size_t)s->count * sizeof *copy);
    known *k = &memo->kept[memo->next++ % KEPT];
    bti_free(k->blocks);
    *k = (known){s->heap, top, copy, s->count};
    return BT_OK;
}

static void report(const bti_program *p, const block *blocks, const int32_t *block_of,
                   bti_layout *out) {
    int32_t k = out->peak_op;
    uint64_t largest = 0;
    memset(out->kind, 0, sizeof out->kind);
    out->largest = 0;
    for (bti_tid i = 1; i <= p->tensors; i++) {
        const bti_tensor *t = &p->tensor[i];
        if (block_of[i] < 0 || t->first > k || t->last < k) continue;
        if (t->bytes > largest) {
            largest = t->bytes;
            out->largest = i;
        }
        /* Of tensors that share a block at this op, the one that begins here counts. */
        int shared = 0;
        for (bti_tid j = i + 1; j <= p->tensors && t->last == k; j++)
            shared |= block_of[j] == block_of[i] && p->tensor[j].first == k;
        if (!shared) out->kind[t->kind] += blocks[block_of[i]].bytes;
    }
}

bt_status bti_layout_make(bti_program *p, const bti_layout_options *options, bti_layout *out) {
    bt_status status = BT_ENOMEM;
    state s = {.heap = options->heap};
    size_t n = (size_t)p->tensors + 1;
    int32_t *ints = bti_alloc(4 * n, sizeof *ints);
    int64_t *live = bti_alloc((size_t)p->ops + 2, sizeof *live);
    s.blocks = bti_alloc(n, sizeof *s.blocks);
    s.placed = bti_alloc(n, sizeof *s.placed);
    if (ints == NULL || live == NULL || s.blocks == NULL || s.placed == NULL) goto done;
    int32_t *block_of = ints, *best = ints + n;
    s.order = ints + 2 * n;
    s.trial = ints + 3 * n;
    s.count = make_blocks(p, options, s.blocks, block_of);
    for (bti_tid i = 1; i <= p->tensors; i++) {
        if (block_of[i] < 0 || s.heap == 0 || s.blocks[block_of[i]].bytes <= s.heap) continue;
        char need[32], most[32];
        bti_format_bytes(p->tensor[i].bytes, need);
        bti_format_bytes(s.heap, most);
        status = bti_fail(BT_EFIT,
                          "%s: tensor %s needs %s, more than the device gives in one allocation "
                          "(%s)",
                          p->name, p->tensor[i].name, need, most);
        goto done;
    }
    out->live = most_live(s.blocks, s.count, live, p->ops, &out->peak_op);
    s.live = live;
    if (options->most && out->live > options->most) {
        out->bytes = out->live;
        out->largest = 0;
        memset(out->kind, 0, sizeof out->kind);
        status = BT_OK;
        goto done;
    }
    out->bytes = recall(options->memo, &s);
    if (s.count > 0 && out->bytes == 0) {
        out->bytes = place_best(&s, best, out->live, out->peak_op);
        if ((status = keep(options->memo, &s, out->bytes)) != BT_OK) goto done;
    }
    for (bti_tid i = 1; i <= p->tensors; i++)
        if (block_of[i] >= 0) p->tensor[i].address = s.blocks[block_of[i]].offset;
    report(p, s.blocks, block_of, out);
    status = BT_OK;
done:
    bti_free(s.placed);
    bti_free(s.blocks);
    bti_free(live);
    bti_free(ints);
    return status;
}

/* Bytes of each layer's tensors at op `at`: of tensors that share a block the last one begun. */
static void count_kept(const bti_program *p, const block *blocks, const int32_t *block_of,
                       int32_t *tensor_of, bti_live *out) {
    for (bti_tid i = 1; i <= p->tensors; i++) {
        const bti_tensor *t = &p->tensor[i];
        if (block_of[i] < 0 || t->first > out->at || t->last < out->at) continue;
        bti_tid other = tensor_of[block_of[i]];
        if (other == 0 || p->tensor[other].first < t->first) tensor_of[block_of[i]] = i;
    }
    for (bti_tid i = 1; i <= p->tensors; i++) {
        int32_t layer = p->tensor[i].layer;
        if (block_of[i] < 0 || tensor_of[block_of[i]] != i || layer < 0) continue;
        out->kept[layer] += blocks[block_of[i]].bytes;
    }
}

bt_status bti_layout_live(const bti_program *p, const bti_layout_options *options, bti_live *out) {
    bt_status status = BT_ENOMEM;
    size_t n = (size_t)p->tensors + 1;
    int32_t *ints = bti_alloc(2 * n, sizeof *ints), peak;
    int64_t *live = bti_alloc((size_t)p->ops + 2, sizeof *live);
    block *blocks = bti_alloc(n, sizeof *blocks);
    if (ints == NULL || live == NULL || blocks == NULL) goto done;
    int32_t count = make_blocks(p, options, blocks, ints);
    most_live(blocks, count, live, p->ops, &peak);
    for (int32_t k = 0; k < p->ops; k++) out->live[k] = (uint64_t)live[k];
    memset(out->kept, 0, (size_t)out->layers * sizeof *out->kept);
    count_kept(p, blocks, ints, ints + n, out);
    out->largest = 0;
    for (int32_t i = 0; i < count; i++)
        if (blocks[i].bytes > out->largest) out->largest = blocks[i].bytes;
    status = BT_OK;
done:
    bti_free(blocks);
    bti_free(live);
    bti_free(ints);
    return status;
}

bt_status bti_layout_take(bti_program *p, const bti_program *caps) {
    if (p->tensors != caps->tensors)
        return bti_fail(BT_EINTERNAL, "%s: %d tensors, %d at the caps", p->name, p->tensors,
                        caps->tensors);
    for (bti_tid i = 1; i <= p->tensors; i++) {
        bti_tensor *t = &p->tensor[i];
        const bti_tensor *c = &caps->tensor[i];
        if (t->region != BTI_REGION_DYNAMIC) continue;
        if (t->bytes > c->bytes || t->name != c->name)
            return bti_fail(BT_EINTERNAL, "%s: tensor %s has %llu bytes, %s at the caps %llu",
                            p->name, t->name, (unsigned long long)t->bytes, c->name,
                            (unsigned long long)c->bytes);
        t->address = c->address;
    }
    return BT_OK;
}
