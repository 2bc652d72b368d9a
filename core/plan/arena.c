/* The arena and the execution of programs in it. */
#include <string.h>

#include "core/base/num.h"
#include "core/base/status.h"
#include "core/plan/program.h"

void bti_arena_plan(bti_arena *a, const uint64_t bytes[BTI_REGION_COUNT], const bt_dev_info *info) {
    memset(a, 0, sizeof *a);
    uint64_t align = info->alignment ? info->alignment : 1, at = 0;
    for (int r = 0; r < BTI_REGION_COUNT; r++) at += bti_align_up(bytes[r], align);
    /* One heap where the device allows; else every region begins a heap, so that the four regions
     * of state have equal offsets in their heaps. */
    a->heap_limit = info->max_alloc && at > info->max_alloc ? info->max_alloc / align * align : 0;
    at = 0;
    for (int r = 0; r < BTI_REGION_COUNT; r++) {
        a->base[r] = at;
        a->bytes[r] = bti_align_up(bytes[r], align);
        a->total += a->bytes[r];
        at += a->heap_limit ? bti_align_up(a->bytes[r], a->heap_limit) : a->bytes[r];
    }
    a->heaps = (int32_t)(a->heap_limit ? at / a->heap_limit : at > 0);
}

/* Bytes of heap h: the end of the region part that lies in it. */
static uint64_t heap_bytes(const bti_arena *a, int32_t h) {
    if (a->heap_limit == 0) return a->total;
    uint64_t from = (uint64_t)h * a->heap_limit, most = 0;
    for (int r = 0; r < BTI_REGION_COUNT; r++) {
        uint64_t end = a->base[r] + a->bytes[r];
        if (end <= from || a->base[r] >= from + a->heap_limit) continue;
        uint64_t part = end - from > a->heap_limit ? a->heap_limit : end - from;
        if (part > most) most = part;
    }
    return most;
}

bt_status bti_arena_take(bti_arena *a, bt_dev *dev) {
    a->dev = dev;
    a->heap = bti_alloc((size_t)a->heaps, sizeof *a->heap);
    a->heap_bytes = bti_alloc((size_t)a->heaps, sizeof *a->heap_bytes);
    bt_status status = a->heap && a->heap_bytes ? BT_OK : BT_ENOMEM;
    for (int32_t h = 0; h < a->heaps && status == BT_OK; h++) {
        a->heap_bytes[h] = heap_bytes(a, h);
        if (a->heap_bytes[h] == 0) continue;
        status = dev->ops->alloc(dev, a->heap_bytes[h], &a->heap[h]);
        /* Every byte is written once: a device that allocates late fails here, not in update 1. */
        if (status == BT_OK) status = dev->ops->fill(dev, NULL, a->heap[h], 0, a->heap_bytes[h], 0);
    }
    if (status == BT_OK) status = dev->ops->sync(dev, NULL);
    if (status != BT_OK) bti_arena_release(a);
    return status;
}

void bti_arena_release(bti_arena *a) {
    if (a->heap != NULL)
        for (int32_t h = 0; h < a->heaps; h++) a->dev->ops->free(a->dev, a->heap[h]);
    bti_free(a->heap);
    bti_free(a->heap_bytes);
    a->heap = NULL;
    a->heap_bytes = NULL;
}

bt_view bti_arena_at(const bti_arena *a, bti_region region, uint64_t address) {
    uint64_t at = a->base[region] + address;
    int32_t h = a->heap_limit ? (int32_t)(at / a->heap_limit) : 0;
    if (h >= a->heaps) h = a->heaps - 1; /* an empty tensor at the very end */
    return (bt_view){.buf = a->heap[h], .off = a->heap_limit ? at % a->heap_limit : at};
}

bt_view bti_arena_view(const bti_arena *a, const bti_program *p, bti_ref r, uint64_t slot_offset) {
    if (r.id == 0) return (bt_view){0};
    const bti_tensor *t = &p->tensor[r.id];
    bt_view v = bti_arena_at(a, t->region,
                             t->address + (t->region == BTI_REGION_STAGING ? slot_offset : 0));
    v.rows = r.rows;
    v.cols = r.cols;
    v.ld = t->cols > 0 ? t->cols : 1;
    v.dtype = t->dtype;
    v.off += (size_t)(r.row * v.ld + r.col) * bti_dtype_size(t->dtype);
    return v;
}

bt_status bti_program_run(bti_program *p, const bti_arena *a, uint64_t slot_offset, int32_t first,
                          int32_t last, const bti_run_hooks *hooks) {
    bt_call call;
    for (int32_t k = first; k < last; k++) {
        const bti_op_record *o = &p->op[k];
        int operands = bti_op_info(o->op)->operands;
        memset(&call, 0, sizeof call);
        call.op = o->op;
        call.p = o->p;
        for (int i = 0; i < operands; i++) call.t[i] = bti_arena_view(a, p, o->t[i], slot_offset);
        if (o->ws && p->tensor[o->ws].bytes > 0)
            call.ws = bti_arena_view(a, p, bti_all(p, o->ws), slot_offset);
        bt_status status = bti_op_run(a->dev, NULL, &call);
        if (status != BT_OK) return bti_fail_prefix(status, "%s, op %d", p->name, k);
        if (hooks != NULL && hooks->after != NULL) BT_TRY(hooks->after(hooks->user, p, k));
    }
    return BT_OK;
}
