/* Recomputation: what backward asks for is handed over or made again by the ops that made it.
 *
 * A copy stays until its last use, so that what a layer's backward shares is made once. A layer's
 * input that is not kept is made by running the layers below it, up from the nearest kept input;
 * what these layers made on the way is forgotten then, all but their inputs, and made again when
 * their own backward asks for it: only one layer's inside is alive at a time.
 *
 * The unit of a replay is an op, or a whole loop. What is asked for waits on a stack of the
 * program's own: a segment of any length takes no more of the caller's. */
#include <string.h>

#include "core/base/status.h"
#include "core/plan/program.h"

int bti_keeps(const bti_program *p, int32_t layer, bti_class cls) {
    return layer < 0 || p->keep == NULL || (p->keep[layer] & BTI_KEEP(cls)) != 0;
}

/* The tensor that stands for `id` in backward; 0: it has to be made. */
static bti_tid at_hand(const bti_program *p, bti_tid id) {
    const bti_tensor *t = &p->tensor[id];
    if (t->region != BTI_REGION_DYNAMIC || bti_keeps(p, t->layer, t->cls)) return id;
    return t->replay;
}

/* The ops that make a tensor: first .. end-1, of which the first iteration ends before `once`. */
typedef struct unit {
    int32_t first, once, end;
} unit;

static unit unit_of(const bti_program *p, bti_tid id) {
    unit u = {.first = p->tensor[id].producer};
    int32_t loop = p->op[u.first].loop;
    if (loop < 0) {
        u.once = u.end = u.first + 1;
        return u;
    }
    u.first = loop;
    u.once = loop + 1;
    while (u.once < p->ops && p->op[u.once].loop == loop && !p->op[u.once].iteration) u.once++;
    u.end = u.once;
    while (u.end < p->ops && p->op[u.end].loop == loop) u.end++;
    return u;
}

static int made_in(const bti_program *p, unit u, bti_tid id) {
    return p->tensor[id].producer >= u.first && p->tensor[id].producer < u.end;
}

/* An op of a unit runs again when one of its results is not at hand; copies above `before` come
 * from this very replay. */
static int runs_again(const bti_program *p, const bti_op_record *o, bti_tid before) {
    for (int i = 0; i < bti_op_info(o->op)->operands; i++) {
        if (o->t[i].id == 0 || !bti_op_overwrites(o->op, &o->p, i)) continue;
        bti_tid id = at_hand(p, o->t[i].id);
        if (id == 0 || id > before) return 1;
    }
    return 0;
}

/* What has to be made before the unit can run; 0: nothing. */
static bti_tid missing(const bti_program *p, unit u) {
    for (int32_t k = u.first; k < u.once; k++) {
        const bti_op_record *o = &p->op[k];
        if (!runs_again(p, o, p->tensors)) continue;
        for (int i = 0; i < bti_op_info(o->op)->operands; i++) {
            bti_tid id = o->t[i].id;
            if (id == 0 || bti_op_overwrites(o->op, &o->p, i) || at_hand(p, id) ||
                made_in(p, u, id))
                continue;
            return id;
        }
    }
    return 0;
}

/* A copy of what operand `id` of a replayed op is written to. */
static bti_tid copy_of(bti_program *p, bti_tid id, bti_tid before) {
    bti_tensor t = p->tensor[id];
    if (t.replay > before) return t.replay;
    bti_tid copy = bti_tensor_new(p, t.name, -1, t.kind, BTI_CLASS_NONE, t.dtype, t.rows, t.cols);
    p->tensor[id].replay = copy;
    if (p->sweeps > 0 && t.cls != BTI_CLASS_INPUT && p->status == BT_OK) {
        p->status =
            bti_grow((void **)&p->made, &p->made_room, (size_t)p->made_count + 1, sizeof *p->made);
        if (p->status == BT_OK) p->made[p->made_count++] = id;
    }
    return copy;
}

static void replay(bti_program *p, unit u) {
    bti_tid before = p->tensors;
    int loop = p->op[u.first].loop >= 0;
    if (loop) bti_loop_begin(p);
    for (int32_t k = u.first; k < u.end && p->status == BT_OK; k++) {
        bti_op_record o = p->op[k];
        int operands = bti_op_info(o.op)->operands;
        if (loop && o.iteration && k > u.first) bti_loop_next(p);
        if (!runs_again(p, &o, before)) continue;
        for (int i = 0; i < operands; i++) {
            bti_tid id = o.t[i].id;
            if (id == 0 || bti_op_overwrites(o.op, &o.p, i)) continue;
            o.t[i].id = p->tensor[id].replay > before ? p->tensor[id].replay : at_hand(p, id);
        }
        for (int i = 0; i < operands; i++)
            if (o.t[i].id && bti_op_overwrites(o.op, &o.p, i))
                o.t[i].id = copy_of(p, o.t[i].id, before);
        bti_emit(p, o.op, o.t, &o.p, o.pairs);
    }
    if (loop) bti_loop_end(p);
}

static void want(bti_program *p, bti_tid id) {
    const bti_tensor *t = &p->tensor[id];
    if (t->producer < 0 || p->loop_first >= 0) {
        p->status = bti_fail(BT_EINTERNAL, "%s: %s tensor %s", p->name,
                             t->producer < 0 ? "nothing makes" : "a loop asks for", t->name);
        return;
    }
    p->status = bti_grow((void **)&p->wanted, &p->wanted_room, (size_t)p->wanted_count + 1,
                         sizeof *p->wanted);
    if (p->status != BT_OK) return;
    p->wanted[p->wanted_count++] = (bti_wanted){id, p->made_count};
    p->sweeps += t->cls == BTI_CLASS_INPUT;
}

/* The uppermost wanted tensor is there. */
static void done(bti_program *p) {
    bti_wanted w = p->wanted[--p->wanted_count];
    if (p->tensor[w.id].cls != BTI_CLASS_INPUT) return;
    while (p->made_count > w.made) p->tensor[p->made[--p->made_count]].replay = 0;
    p->sweeps--;
}

bti_tid bti_need(bti_program *p, bti_tid id) {
    if (p->status != BT_OK || id == 0) return id;
    bti_tid there = at_hand(p, id);
    if (there) return there;
    want(p, id);
    while (p->status == BT_OK && p->wanted_count > 0) {
        bti_tid next = p->wanted[p->wanted_count - 1].id;
        if (at_hand(p, next)) {
            done(p);
            continue;
        }
        unit u = unit_of(p, next);
        bti_tid first = missing(p, u);
        if (first)
            want(p, first);
        else
            replay(p, u);
    }
    return p->status == BT_OK ? p->tensor[id].replay : 0;
}
