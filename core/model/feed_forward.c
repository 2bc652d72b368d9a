/* Feed-forward block: linear2(drop(act(linear1(x)))).
 *
 * relu needs only its output in backward (positive means active and kept); gelu needs what went in.
 * Either way bias, activation and dropout are one pass.
 *
 * In slices of rows the block runs forward and backward for some rows at a time, so that what is
 * rows x ff exists for one slice only, unless it is kept: then it is whole, and slices fill it.
 * Backward makes what is not kept again, slice by slice. */
#include "core/model/build.h"

static bt_op_params act_params(const bti_build *b, const bti_block *k, double beta) {
    const bti_model_config *c = &b->m->cfg;
    return (bt_op_params){
        .bias_act = {.act = c->activation == BTI_ACTIVATION_RELU ? BT_ACT_RELU : BT_ACT_GELU,
                     .drop = bti_drop_at(b, c->activation_dropout, k->site),
                     .beta = beta}};
}

static int is_relu(const bti_build *b) { return b->m->cfg.activation == BTI_ACTIVATION_RELU; }

static int sliced(const bti_build *b) { return b->step->choices.slice_rows > 0; }

/* Rows of a slice; all without slices. */
static int64_t slice_of(const bti_build *b, int64_t rows) {
    int64_t n = b->step->choices.slice_rows;
    return sliced(b) && n < rows ? n : rows;
}

/* Whether tensors of this class hold all rows. */
static int whole(const bti_build *b, const bti_layer *l, bti_class cls) {
    return !sliced(b) || (b->step->training && bti_keeps(b->p, l->index, cls));
}

static bti_tid hidden_new(bti_build *b, const bti_layer *l, const char *name, bti_class cls,
                          int64_t rows) {
    if (!whole(b, l, cls)) rows = slice_of(b, rows);
    return bti_activation_new(b, name, l->index, cls, rows, b->m->cfg.ff);
}

/* Rows at .. at+n-1 of a tensor that is whole, or the n rows of the slice that it is. */
static bti_ref part(const bti_build *b, const bti_layer *l, bti_tid id, bti_class cls, int64_t at,
                    int64_t n) {
    return bti_rows(bti_all(b->p, id), whole(b, l, cls) ? at : 0, n);
}

static bti_class class_of_h(const bti_build *b) {
    return is_relu(b) ? BTI_CLASS_FF : BTI_CLASS_ACT;
}

static void activation(bti_build *b, const bti_layer *l, const bti_block *k, bti_ref h0, bti_ref h,
                       int64_t at) {
    bt_op_params params = act_params(b, k, 0);
    bti_emit(
        b->p, BT_OP_BIAS_ACT_FWD,
        BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = h0, [BT_BIAS_ACT_FWD_BIAS] = bti_weight(b, k->in.b),
                     [BT_BIAS_ACT_FWD_ROWPOS] = bti_rows(bti_rowpos(b, l->decoder), at, h.rows),
                     [BT_BIAS_ACT_FWD_Y] = h),
        &params, 0);
}

/* Before and after activation. In slices one tensor is both where nothing asks for the first:
 * unsliced that is the planner's choice, but slices begin it anew before it dies. */
static void hidden_fwd(bti_build *b, const bti_layer *l, int64_t rows, bti_saved *s) {
    int both =
        !sliced(b) || (!is_relu(b) && (whole(b, l, BTI_CLASS_FF) || whole(b, l, BTI_CLASS_ACT)));
    if (both) s->h0 = hidden_new(b, l, "ff", BTI_CLASS_FF, rows);
    s->h = hidden_new(b, l, "ff activation", class_of_h(b), rows);
    if (!both) s->h0 = s->h;
}

bti_tid bti_ff_fwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid x, bti_saved *s) {
    bti_program *p = b->p;
    int64_t rows = bti_tensor_rows(p, x), n = slice_of(b, rows), at = 0;
    s->x = x;
    hidden_fwd(b, l, rows, s);
    bti_tid y =
        bti_activation_new(b, "ff output", l->index, BTI_CLASS_BLOCK, rows, b->m->cfg.d_model);
    if (sliced(b)) bti_loop_begin(p);
    do {
        int64_t m = rows - at < n ? rows - at : n;
        bti_ref h0 = part(b, l, s->h0, BTI_CLASS_FF, at, m),
                h = part(b, l, s->h, class_of_h(b), at, m);
        bti_linear_into(b, bti_rows(bti_all(p, x), at, m), bti_weight(b, k->in.w), h0);
        activation(b, l, k, h0, h, at);
        bti_linear_into(b, h, bti_weight(b, k->out.w), bti_rows(bti_all(p, y), at, m));
        if (sliced(b)) bti_loop_next(p);
        at += n;
    } while (at < rows);
    if (sliced(b)) bti_loop_end(p);
    return y;
}

/* What a slice of backward reads and writes; 0 where it is not wanted. h0: gelu only. */
typedef struct hidden {
    int out, in; /* gradients of the weights are wanted */
    int inside;  /* so is what lies below the activation */
    bti_tid h0, h, dh, dh0;
} hidden;

/* Of frozen blocks, and where nothing below learns (dx 0), only what is asked for is made. */
static hidden hidden_bwd(bti_build *b, const bti_layer *l, const bti_block *k, int64_t rows,
                         const bti_saved *s, bti_tid dx) {
    bti_program *p = b->p;
    int64_t n = slice_of(b, rows), ff = b->m->cfg.ff;
    hidden t = {.out = bti_trains(b, k->out.w), .in = bti_trains(b, k->in.w)};
    int through = dx != 0 || t.in;
    t.inside = through || bti_trains(b, k->in.b);
    if (t.out || (t.inside && is_relu(b)))
        t.h = whole(b, l, class_of_h(b))
                  ? bti_need(p, s->h)
                  : bti_activation_new(b, "ff activation", l->index, BTI_CLASS_NONE, n, ff);
    if (!is_relu(b) && (t.inside || (t.out && !whole(b, l, class_of_h(b)))))
        t.h0 = whole(b, l, BTI_CLASS_FF)
                   ? bti_need(p, s->h0)
                   : bti_activation_new(b, "ff", l->index, BTI_CLASS_NONE, n, ff);
    if (t.inside)
        t.dh = t.dh0 = bti_activation_new(b, "d ff activation", l->index, BTI_CLASS_NONE, n, ff);
    if (!through) t.dh0 = 0;
    if (through && !sliced(b))
        t.dh0 = bti_activation_new(b, "d ff", l->index, BTI_CLASS_NONE, n, ff);
    return t;
}

static bti_ref input(bti_build *b, const bti_saved *s, int64_t at, int64_t n) {
    return bti_rows(bti_all(b->p, bti_need(b->p, s->x)), at, n);
}

/* Rows of a slice of a tensor that may be absent. */
static bti_ref part_or_none(const bti_build *b, const bti_layer *l, bti_tid id, bti_class cls,
                            int64_t at, int64_t n) {
    return id != 0 ? part(b, l, id, cls, at, n) : (bti_ref){0};
}

/* Makes a slice of what is not kept: relu in place, since its backward wants the output alone. */
static void remake(bti_build *b, const bti_layer *l, const bti_block *k, const bti_saved *s,
                   bti_ref h0, bti_ref h, int64_t at, int64_t n) {
    if (is_relu(b)) h0 = h;
    if (!whole(b, l, BTI_CLASS_FF) && h0.id != 0)
        bti_linear_into(b, input(b, s, at, n), bti_weight(b, k->in.w), h0);
    if (!whole(b, l, class_of_h(b)) && h.id != 0) activation(b, l, k, h0, h, at);
}

static void act_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_ref h0, bti_ref h,
                    bti_ref dh, bti_ref dh0, int64_t at, double beta) {
    bt_op_params params = act_params(b, k, beta);
    int relu = is_relu(b);
    bti_emit(
        b->p, BT_OP_BIAS_ACT_BWD,
        BTI_OPERANDS([BT_BIAS_ACT_BWD_DY] = dh, [BT_BIAS_ACT_BWD_X] = h0,
                     [BT_BIAS_ACT_BWD_BIAS] = relu ? (bti_ref){0} : bti_weight(b, k->in.b),
                     [BT_BIAS_ACT_BWD_Y] = relu ? h : (bti_ref){0},
                     [BT_BIAS_ACT_BWD_ROWPOS] = bti_rows(bti_rowpos(b, l->decoder), at, dh.rows),
                     [BT_BIAS_ACT_BWD_DX] = dh0, [BT_BIAS_ACT_BWD_DBIAS] = bti_grad(b, k->in.b)),
        &params, 0);
}

/* Rows at .. at+n-1: gradients of both products and of what lies between. */
static void slice_bwd(bti_build *b, const bti_layer *l, const bti_block *k, const hidden *t,
                      const bti_saved *s, bti_ref dy, bti_ref dx, double beta, int64_t at) {
    bti_program *p = b->p;
    int64_t n = dy.rows;
    double gb = at == 0 ? bti_grad_beta(b) : 1;
    bti_ref h = part_or_none(b, l, t->h, class_of_h(b), at, n);
    bti_ref h0 = part_or_none(b, l, t->h0, BTI_CLASS_FF, at, n);
    remake(b, l, k, s, h0, h, at, n);
    bti_linear_dw(b, dy, h, bti_grad(b, k->out.w), gb);
    if (!t->inside) return;
    bti_ref dh = bti_rows(bti_all(p, t->dh), 0, n);
    bti_ref dh0 = t->dh0 != 0 ? bti_rows(bti_all(p, t->dh0), 0, n) : (bti_ref){0};
    bti_linear_dx(b, dy, bti_weight(b, k->out.w), dh, 0);
    act_bwd(b, l, k, h0, h, dh, dh0, at, gb);
    if (t->in) bti_linear_dw(b, dh0, input(b, s, at, n), bti_grad(b, k->in.w), gb);
    if (dx.id != 0) bti_linear_dx(b, dh0, bti_weight(b, k->in.w), dx, beta);
}

void bti_ff_bwd(bti_build *b, const bti_layer *l, const bti_block *k, bti_tid dy, bti_saved *s,
                bti_tid dx, double beta) {
    bti_program *p = b->p;
    int64_t rows = bti_tensor_rows(p, dy), n = slice_of(b, rows), at = 0;
    hidden t = hidden_bwd(b, l, k, rows, s, dx);
    if (!t.out && !t.inside) return;
    if (sliced(b)) {
        if (t.in || !whole(b, l, BTI_CLASS_FF)) bti_need(p, s->x); /* loops find it made */
        bti_loop_begin(p);
    }
    do {
        int64_t m = rows - at < n ? rows - at : n;
        bti_ref to = dx != 0 ? bti_rows(bti_all(p, dx), at, m) : (bti_ref){0};
        slice_bwd(b, l, k, &t, s, bti_rows(bti_all(p, dy), at, m), to, beta, at);
        if (sliced(b)) bti_loop_next(p);
        at += n;
    } while (at < rows);
    if (sliced(b)) bti_loop_end(p);
}
