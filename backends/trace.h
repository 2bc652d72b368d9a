/* trace: wraps any device; times ops, counts bytes, dumps arguments, scans outputs for NaN, fails
 * the n-th call. */
#ifndef BANTAM_BACKENDS_TRACE_H
#define BANTAM_BACKENDS_TRACE_H

#include "backends/backend.h"

typedef struct bt_trace_options {
    uint8_t time;     /* synchronise round every op and add up seconds */
    uint8_t scan_nan; /* after each op, BT_ENUMERIC when a written operand holds a NaN */
    uint64_t fail_at; /* the n-th call from now (ops and device calls) fails with BT_EDEVICE */
    uint8_t lost;     /* ... and all later ones too */
    /* Given a line for each op before it runs: "gemm a 3x4 ld 4 fp32 @128, b ..."; may be NULL. */
    void (*dump)(void *user, const char *line);
    void *user;
} bt_trace_options;

typedef struct bt_trace_row {
    uint64_t calls;
    double seconds;
    double bytes; /* operand bytes read and written */
    double flops; /* gemm and attention: 2 per multiply-add; else 0 */
} bt_trace_row;

/* Takes ownership of `inner` on success; closing the result closes it. */
bt_status bti_trace_wrap(bt_dev *inner, const bt_trace_options *options, bt_dev **out);
/* NULL when dev is not a trace device. BT_OP_COUNT rows. */
bt_trace_row *bti_trace_rows(bt_dev *dev);
bt_trace_options *bti_trace_options(bt_dev *dev);

#endif
