/* Calling ops: names and operand data from the one list, checks, counters, dispatch. How an op is
 * added: README.md beside this file. */
#ifndef BANTAM_OPS_OPS_H
#define BANTAM_OPS_OPS_H

#include "backends/backend.h"

typedef enum bt_role { BT_ROLE_IN, BT_ROLE_OUT, BT_ROLE_INOUT } bt_role;
/* What an operand may hold; op_list.inc says what each means. */
typedef enum bt_operand_type {
    BT_TYPE_DATA,
    BT_TYPE_ANY,
    BT_TYPE_ACC,
    BT_TYPE_INT,
    BT_TYPE_CODE,
} bt_operand_type;

typedef struct bt_operand_info {
    const char *name;
    bt_role role;
    bt_operand_type type;
    uint8_t optional;
    uint32_t alias; /* operands whose storage this output may take over */
} bt_operand_info;

/* What an op's time goes with, from the list. */
typedef enum bt_work {
    BT_WORK_ROWS, /* bytes moved, and elements that cost arithmetic */
    BT_WORK_PRODUCT,
    BT_WORK_ATTENTION,
    BT_WORK_LOSS,
    BT_WORK_STATE,
} bt_work;

typedef struct bt_op_info {
    const char *name;
    uint8_t fused; /* compose.c makes it of others where a device leaves the slot empty */
    int operands;  /* how many the list gives it; operand[0 .. operands-1] */
    const bt_operand_info *operand;
} bt_op_info;

/* What the list says of an op; static. Of a number that is no op: "unknown op", no operands, and
 * work ROWS. */
const bt_op_info *bti_op_info(bt_op op);
bt_work bti_op_work(bt_op op);

/* Checks a call once: operands present, types, shapes that belong together, leading dimensions,
 * ranges of parameters and of dropout counters. BT_EINTERNAL naming op and operand. It does not
 * look at buffers. */
bt_status bti_op_check(const bt_call *call);

/* An absent operand is a zeroed view: ld == 0. A present one has ld >= 1. */
static inline int bti_view_present(const bt_view *v) { return v->ld > 0; }

/* Bytes from the first to the last element of an operand, the batches of gemm included; 0 when it
 * is absent or empty. With view.off it bounds what the op touches. */
uint64_t bti_op_extent(const bt_call *call, int operand);

/* Scratch bytes for the call on a device like `info`: the slot's, or the composed form's. */
uint64_t bti_op_ws_bytes(const bt_planning *planning, const bt_dev_info *info, const bt_call *call);

/* Checks, counts and enqueues: the device's slot, or the composed form where it is empty. A call
 * that fails its checks is not counted. */
bt_status bti_op_run(bt_dev *dev, bt_stream *stream, const bt_call *call);

/* Waits for a stream (NULL: the device's own), so that host memory which copies were given is the
 * caller's again: also when one of them, or an op between them, failed. `status` with its text, or
 * else the wait's. */
bt_status bti_settle(bt_dev *dev, bt_stream *stream, bt_status status);

/* Calls made of each op in this process, composed parts not counted. */
uint64_t bti_op_count(bt_op op);

/* compose.c: FUSED ops out of MUST ops; the contract is the same. */
uint64_t bti_compose_ws_bytes(const bt_planning *planning, const bt_dev_info *info,
                              const bt_call *call);
bt_status bti_compose_run(bt_dev *dev, bt_stream *stream, const bt_call *call);

/* Is the operand written without being read: an output, or one that is both where its factor of
 * what was there (beta) is 0? */
int bti_op_overwrites(bt_op op, const bt_op_params *p, int operand);

/* Multiply-adds times 2 of a call, for cost and trace; attention counts its products. The planner
 * gives `pairs`, the sum over sequences of visible query-key pairs (0: count seq is unknown). */
double bti_op_flops(const bt_call *call, double pairs);
/* Bytes of present operands, read and written ones counted once each way; of tables that are looked
 * up the rows in question. */
double bti_op_bytes(const bt_call *call);
/* Elements that cost arithmetic: drawn for dropout, or put through gelu. */
double bti_op_elements(const bt_call *call);

#endif
