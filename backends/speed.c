#include "backends/speed.h"

#include <time.h>

#define FIRST_SIDE 128
#define LAST_SIDE 8192
#define LONG_ENOUGH 0.003 /* seconds of a product */
#define WAKING 8 /* of these in a row: a card that had nothing to do has raised its clock */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a call, waited for; the better of the second and third: the first may load code. */
static bt_status time_call(bt_dev *dev, const bt_call *call, double *best) {
    *best = 1e9;
    for (int i = 0; i < 3; i++) {
        const double from = seconds();
        bt_status status = dev->op[call->op](dev, NULL, call);
        if (status == BT_OK) status = dev->ops->sync(dev, NULL);
        if (status != BT_OK) return status;
        const double spent = seconds() - from;
        if (i > 0 && spent < *best) *best = spent;
    }
    return BT_OK;
}

/* The same of a long call, once the card is awake. */
static bt_status time_awake(bt_dev *dev, const bt_call *call, double *best) {
    bt_status status = BT_OK;
    for (int i = 0; i < WAKING && status == BT_OK; i++) status = dev->op[call->op](dev, NULL, call);
    return status == BT_OK ? time_call(dev, call, best) : status;
}

/* A product and a copy of squares of this side, in `buf`, which holds three. */
static bt_status time_side(bt_dev *dev, bt_buf *buf, int64_t side, double *product, double *move) {
    const uint64_t bytes = (uint64_t)(side * side) * sizeof(float);
    bt_view square = {buf, 0, side, side, side, BT_F32};
    bt_call gemm = {.op = BT_OP_GEMM, .t = {square, square, square}, .p.gemm.alpha = 1};
    bt_call copy = {.op = BT_OP_AXPBY, .t = {square, square}, .p.axpby = {1.5, 0}};
    gemm.t[1].off = copy.t[1].off = bytes;
    gemm.t[2].off = 2 * bytes;
    bt_status status = dev->ops->fill(dev, NULL, buf, 0, 3 * bytes, 0);
    if (status == BT_OK) status = time_call(dev, &gemm, product);
    if (status == BT_OK && *product > LONG_ENOUGH) status = time_awake(dev, &gemm, product);
    if (status == BT_OK) status = time_call(dev, &copy, move);
    return status;
}

bt_status bti_measure_speed(bt_dev *dev, uint64_t most, bti_speed *out) {
    for (int64_t side = FIRST_SIDE; side <= LAST_SIDE; side *= 2) {
        bt_buf *buf = NULL;
        double product = 0, move = 0;
        const uint64_t bytes = (uint64_t)(side * side) * sizeof(float);
        if (3 * bytes > most) return BT_OK;
        bt_status status = dev->ops->alloc(dev, 3 * bytes, &buf);
        if (status != BT_OK) return status;
        status = time_side(dev, buf, side, &product, &move);
        dev->ops->free(dev, buf);
        if (status != BT_OK) return status;
        out->flops = 2.0 * (double)side * (double)side * (double)side / product;
        out->bytes_per_s = 2.0 * (double)bytes / move;
        if (product > LONG_ENOUGH) return BT_OK;
    }
    return BT_OK;
}
