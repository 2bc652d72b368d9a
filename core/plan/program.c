#include "core/plan/program.h"

#include <string.h>

#include "core/base/status.h"

bt_status bti_program_new(const char *name, const bt_planning *planning, const bt_dev_info *info,
                          bti_program **out) {
    bti_program *p = bti_alloc(1, sizeof *p);
    if (p == NULL) return BT_ENOMEM;
    p->name = name;
    p->planning = planning;
    p->info = *info;
    bti_program_begin(p, NULL, 0);
    *out = p;
    return BT_OK;
}

void bti_program_free(bti_program *p) {
    if (p == NULL) return;
    bti_free(p->tensor);
    bti_free(p->op);
    bti_free(p->wanted);
    bti_free(p->made);
    bti_free(p);
}

bt_status bti_program_reserve(bti_program *p, const bti_program *caps) {
    BT_TRY(bti_grow((void **)&p->tensor, &p->tensor_room, (size_t)caps->tensors + 1,
                    sizeof *p->tensor));
    BT_TRY(bti_grow((void **)&p->op, &p->op_room, (size_t)caps->ops, sizeof *p->op));
    BT_TRY(bti_grow((void **)&p->wanted, &p->wanted_room, caps->wanted_room, sizeof *p->wanted));
    return bti_grow((void **)&p->made, &p->made_room, caps->made_room, sizeof *p->made);
}

void bti_program_begin(bti_program *p, const uint32_t *keep, int32_t layers) {
    p->status = BT_OK;
    p->tensors = 0;
    p->ops = 0;
    p->keep = keep;
    p->layers = layers;
    p->loop_first = -1;
    p->wanted_count = p->made_count = p->sweeps = 0;
    bti_program_at(p, -1, 0);
}

void bti_program_at(bti_program *p, int32_t layer, int32_t below) {
    p->at_layer = layer;
    p->below = below;
}

static bti_tid add_tensor(bti_program *p, const bti_tensor *t) {
    if (p->status != BT_OK) return 0;
    if (t->rows < 0 || t->cols < 0 || (t->rows > 0 && t->cols > INT64_MAX / 16 / t->rows)) {
        p->status = bti_fail(BT_EINTERNAL, "%s: tensor %s has size %lld x %lld", p->name, t->name,
                             (long long)t->rows, (long long)t->cols);
        return 0;
    }
    p->status =
        bti_grow((void **)&p->tensor, &p->tensor_room, (size_t)p->tensors + 2, sizeof *p->tensor);
    if (p->status != BT_OK) return 0;
    bti_tensor *slot = &p->tensor[++p->tensors];
    *slot = *t;
    slot->bytes = (uint64_t)t->rows * (uint64_t)t->cols * bti_dtype_size(t->dtype);
    slot->first = slot->last = slot->producer = -1;
    return p->tensors;
}

bti_tid bti_tensor_new(bti_program *p, const char *name, int32_t layer, bti_kind kind,
                       bti_class cls, bt_dtype dtype, int64_t rows, int64_t cols) {
    return add_tensor(p, &(bti_tensor){.name = name,
                                       .layer = layer,
                                       .region = BTI_REGION_DYNAMIC,
                                       .kind = kind,
                                       .cls = cls,
                                       .dtype = dtype,
                                       .rows = rows,
                                       .cols = cols});
}

bti_tid bti_tensor_fixed(bti_program *p, const char *name, bti_region region, uint64_t address,
                         bt_dtype dtype, int64_t rows, int64_t cols) {
    return add_tensor(p, &(bti_tensor){.name = name,
                                       .layer = -1,
                                       .region = region,
                                       .address = address,
                                       .dtype = dtype,
                                       .rows = rows,
                                       .cols = cols});
}

/* In a program that failed, callers hold ids of tensors that were never declared. */
static int exists(const bti_program *p, bti_tid id) { return id > 0 && id <= p->tensors; }

void bti_tensor_pin(bti_program *p, bti_tid id) {
    if (exists(p, id)) p->tensor[id].pin = 1;
}

void bti_tensor_pin_always(bti_program *p, bti_tid id) {
    if (exists(p, id)) p->tensor[id].pin = 2;
}

void bti_tensor_keep(bti_program *p, bti_tid id) {
    if (exists(p, id)) p->tensor[id].layer = -1;
}

int64_t bti_tensor_rows(const bti_program *p, bti_tid id) {
    return exists(p, id) ? p->tensor[id].rows : 0;
}
int64_t bti_tensor_cols(const bti_program *p, bti_tid id) {
    return exists(p, id) ? p->tensor[id].cols : 0;
}

bti_ref bti_all(const bti_program *p, bti_tid id) {
    if (!exists(p, id)) return (bti_ref){0};
    return (bti_ref){.id = id, .rows = p->tensor[id].rows, .cols = p->tensor[id].cols};
}

bti_ref bti_rows(bti_ref r, int64_t row, int64_t rows) {
    r.row += row;
    r.rows = rows;
    return r;
}

bti_ref bti_cols(bti_ref r, int64_t col, int64_t cols) {
    r.col += col;
    r.cols = cols;
    return r;
}

static bt_view shape_view(const bti_program *p, const bti_ref *r) {
    if (r->id == 0) return (bt_view){0};
    const bti_tensor *t = &p->tensor[r->id];
    return (bt_view){
        .rows = r->rows, .cols = r->cols, .ld = t->cols > 0 ? t->cols : 1, .dtype = t->dtype};
}

/* Shapes only; buffers are NULL. */
static void shape_call(const bti_program *p, const bti_op_record *o, bt_call *call) {
    memset(call, 0, sizeof *call);
    call->op = o->op;
    call->p = o->p;
    for (int i = 0; i < bti_op_info(o->op)->operands; i++) call->t[i] = shape_view(p, &o->t[i]);
}

static void widen(bti_tensor *ws, uint64_t bytes) {
    ws->cols = (int64_t)((bytes + 3) / 4);
    ws->bytes = (uint64_t)ws->cols * 4;
}

static bti_tid scratch(bti_program *p, const bt_call *call) {
    const uint64_t bytes = bti_op_ws_bytes(p->planning, &p->info, call);
    const int in_loop = p->loop_first >= 0;
    bti_tid ws = in_loop ? p->loop_ws : 0;
    if (ws == 0)
        ws = bti_tensor_new(p, "scratch", -1, BTI_KIND_WORKSPACE, BTI_CLASS_NONE, BT_F32, 1, 0);
    if (p->status != BT_OK) return 0;
    if (in_loop && p->loop_again && bytes > p->tensor[ws].bytes)
        p->status = bti_fail(BT_EINTERNAL, "%s: scratch of a loop grows", p->name);
    if (bytes > p->tensor[ws].bytes) widen(&p->tensor[ws], bytes);
    if (in_loop) p->loop_ws = ws;
    return ws;
}

void bti_emit(bti_program *p, bt_op op, const bti_ref *t, const bt_op_params *params,
              double pairs) {
    if (p->status != BT_OK) return;
    bti_op_record record = {.op = op,
                            .loop = -1,
                            .layer = p->at_layer,
                            .below = p->below,
                            .pairs = pairs,
                            .p = *params};
    if (p->loop_first >= 0) {
        record.loop = p->loop_first;
        record.iteration = p->loop_starts;
        p->loop_starts = 0;
    }
    const bt_op_info *info = bti_op_info(op);
    for (int i = 0; i < info->operands; i++) {
        record.t[i] = t[i];
        const bti_tensor *x = t[i].id ? &p->tensor[t[i].id] : NULL;
        if (x != NULL && (t[i].row < 0 || t[i].rows < 0 || t[i].row + t[i].rows > x->rows ||
                          t[i].col < 0 || t[i].cols < 0 || t[i].col + t[i].cols > x->cols)) {
            p->status = bti_fail(BT_EINTERNAL, "%s: %s.%s reaches outside tensor %s", p->name,
                                 info->name, info->operand[i].name, x->name);
            return;
        }
    }
    bt_call call;
    shape_call(p, &record, &call);
    p->status = bti_op_check(&call);
    if (p->status != BT_OK) {
        p->status = bti_fail_prefix(p->status, "%s, op %d", p->name, p->ops);
        return;
    }
    record.ws = scratch(p, &call);
    if (p->status != BT_OK) return;
    p->status = bti_grow((void **)&p->op, &p->op_room, (size_t)p->ops + 1, sizeof *p->op);
    if (p->status != BT_OK) return;
    for (int i = 0; i < info->operands; i++)
        if (record.t[i].id && p->tensor[record.t[i].id].producer < 0 &&
            bti_op_overwrites(record.op, &record.p, i))
            p->tensor[record.t[i].id].producer = p->ops;
    p->op[p->ops++] = record;
}

void bti_loop_begin(bti_program *p) {
    p->loop_first = p->ops;
    p->loop_starts = 1;
    p->loop_again = 0;
    p->loop_ws = 0;
}
void bti_loop_next(bti_program *p) {
    p->loop_starts = 1;
    p->loop_again = p->ops > p->loop_first;
}
void bti_loop_end(bti_program *p) { p->loop_first = -1; }

static void touch(bti_tensor *t, int32_t op) {
    if (t->first < 0) t->first = op;
    t->last = op;
}

bt_status bti_program_end(bti_program *p) {
    BT_TRY(p->status);
    for (int32_t k = 0; k < p->ops; k++) {
        const bti_op_record *o = &p->op[k];
        const bt_op_info *info = bti_op_info(o->op);
        for (int i = 0; i < info->operands; i++) {
            if (o->t[i].id == 0) continue;
            bti_tensor *t = &p->tensor[o->t[i].id];
            if (t->region == BTI_REGION_DYNAMIC && t->first < 0 &&
                !bti_op_overwrites(o->op, &o->p, i) && t->rows > 0)
                return p->status =
                           bti_fail(BT_EINTERNAL, "%s: %s reads tensor %s before it is made",
                                    p->name, info->name, t->name);
        }
        for (int i = 0; i < info->operands; i++)
            if (o->t[i].id) touch(&p->tensor[o->t[i].id], k);
        if (o->ws) touch(&p->tensor[o->ws], k);
    }
    for (bti_tid i = 1; i <= p->tensors; i++) {
        bti_tensor *t = &p->tensor[i];
        if (t->pin && t->first >= 0) t->last = p->ops - 1;
        if (t->pin == 2) t->first = 0;
    }
    return BT_OK;
}

void bti_program_shape(const bti_program *p, int32_t op, bt_call *call) {
    shape_call(p, &p->op[op], call);
}
