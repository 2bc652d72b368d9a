/* Launching a kernel: arguments in order, then the groups; sums over rows, which several ops need.
 */
#include "backends/opencl.h"

btcl_launch btcl_begin(bt_dev *dev, btcl_kernel which) {
    return (btcl_launch){.dev = btcl_self(dev), .which = which, .error = CL_SUCCESS};
}

btcl_launch btcl_begin_data(bt_dev *dev, btcl_kernel which, bt_dtype type) {
    btcl_launch l = btcl_begin(dev, which);
    l.type = btcl_type_of(type);
    l.status = btcl_need(dev, l.type);
    return l;
}

void btcl_arg(btcl_launch *l, size_t size, const void *value) {
    if (l->status != BT_OK) return;
    const cl_int code = clSetKernelArg(l->dev->kernel[l->type][l->which], l->args++, size, value);
    if (l->error == CL_SUCCESS) l->error = code;
}

void btcl_i32(btcl_launch *l, int32_t x) { btcl_arg(l, sizeof x, &x); }
void btcl_i64(btcl_launch *l, int64_t x) { btcl_arg(l, sizeof x, &x); }
void btcl_f32(btcl_launch *l, double x) {
    const float f = (float)x;
    btcl_arg(l, sizeof f, &f);
}

static void put_u32(btcl_launch *l, uint32_t x) { btcl_arg(l, sizeof x, &x); }

void btcl_base(btcl_launch *l, const bt_view *v) {
    const uint64_t size = v->dtype == BT_U8                           ? 1
                          : v->dtype == BT_F16 || v->dtype == BT_BF16 ? 2
                                                                      : 4; /* int32 too */
    const uint64_t off = v->ld > 0 ? v->off / size : 0;
    if (v->ld > 0)
        btcl_arg(l, sizeof v->buf->mem, &v->buf->mem);
    else
        btcl_arg(l, sizeof(cl_mem), NULL);
    btcl_arg(l, sizeof off, &off);
}

void btcl_view(btcl_launch *l, const bt_view *v) {
    btcl_base(l, v);
    btcl_i64(l, v->ld);
}

void btcl_any(btcl_launch *l, const bt_view *v) {
    btcl_view(l, v);
    btcl_i32(l, (int32_t)btcl_type_of(v->dtype));
}

void btcl_drop(btcl_launch *l, const bt_drop *drop) {
    put_u32(l, (uint32_t)drop->seed);
    put_u32(l, (uint32_t)(drop->seed >> 32));
    put_u32(l, drop->update);
    put_u32(l, drop->site);
    put_u32(l, bti_drop_threshold(drop->p));
    btcl_f32(l, 1 / (1 - (double)drop->p));
    btcl_i32(l, drop->p > 0);
}

/* Launches that the driver may hold back until something flushes. */
#define MOST_WAITING 64

bt_status btcl_go(btcl_launch *l, bt_stream *s, uint64_t groups) {
    btcl_dev *d = l->dev;
    const size_t group = d->board->group[l->type][l->which], items = groups * group;
    s = btcl_stream(&d->base, s);
    bt_status status = l->status == BT_OK ? btcl_stuck(&d->base, s) : l->status;
    if (status != BT_OK) return status;
    if (l->error == CL_SUCCESS && groups > 0)
        l->error = clEnqueueNDRangeKernel(s->queue, d->kernel[l->type][l->which], 1, NULL, &items,
                                          &group, 0, NULL, NULL);
    if (l->error == CL_SUCCESS && ++s->waiting >= MOST_WAITING) {
        s->waiting = 0;
        l->error = clFlush(s->queue);
    }
    return l->error == CL_SUCCESS ? BT_OK
                                  : btcl_fail(d->base.host, l->error, btcl_kernel_names[l->which]);
}

int64_t btcl_group_of(const btcl_launch *l) {
    return (int64_t)l->dev->board->group[l->type][l->which];
}

uint64_t btcl_groups_of(const btcl_launch *l, int64_t items) {
    return l->status == BT_OK ? (uint64_t)btcl_ceil_div(items, btcl_group_of(l)) : 0;
}

static int64_t wides_of(const btcl_launch *l, int64_t cols) {
    return btcl_ceil_div(cols, l->dev->board->wide);
}

bt_status btcl_go_wides(btcl_launch *l, bt_stream *s, int64_t rows, int64_t cols) {
    return btcl_go(l, s, btcl_groups_of(l, rows * wides_of(l, cols)));
}

/* ---- column sums -------------------------------------------------------------------------------
 */

uint64_t btcl_column_groups(const btcl_launch *l, int64_t rows, int64_t cols) {
    if (l->status != BT_OK) return 0;
    const int64_t across = btcl_group_of(l) < 16 ? btcl_group_of(l) : 16;
    return (uint64_t)btcl_ceil_div(rows, btcl_chunk_rows(rows)) *
           (uint64_t)btcl_ceil_div(wides_of(l, cols), across);
}

bt_view btcl_partial(const bt_call *call, int64_t cols) {
    bt_view v = call->ws;
    v.ld = cols > 0 ? cols : 1;
    return v;
}

bt_status btcl_add_columns(bt_dev *dev, bt_stream *s, const bt_view *part, int64_t second,
                           int64_t rows, int64_t cols, const bt_view *out, const bt_view *more,
                           double beta) {
    btcl_launch l = btcl_begin(dev, BTCL_colsum);
    if (rows == 0) { /* no scratch was asked for */
        const bt_view none = {0};
        btcl_base(&l, &none);
    } else {
        btcl_base(&l, part);
    }
    btcl_i64(&l, second);
    btcl_i64(&l, rows == 0 ? 0 : btcl_ceil_div(rows, btcl_chunk_rows(rows)));
    btcl_i64(&l, cols);
    btcl_view(&l, out);
    btcl_view(&l, more);
    btcl_i32(&l, beta != 0);
    return btcl_go_wides(&l, s, more->ld > 0 ? 2 : 1, cols);
}
