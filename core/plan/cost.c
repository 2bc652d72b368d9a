#include "core/plan/cost.h"

#include <string.h>

const char *const bti_cost_name[BTI_COST_KINDS] = {
    "call",      "product_flop", "product_byte", "row_byte",   "element",
    "attn_flop", "attn_byte",    "loss_byte",    "state_byte", "host_byte"};

/* Of copies over PCI Express 3.0 with 16 lanes, both ways, from pinned memory: 10 of its 15.8 GB/s.
 */
#define LINK 1e10

/* Ratios to the device's product and copy rates as measured on x86-64 with AVX2 and AVX-512. */
void bti_rates_default(const bt_dev_info *info, bti_rates *out) {
    double flop = 1 / (info->flops > 0 ? info->flops : 1e11);
    double byte = 1 / (info->bytes_per_s > 0 ? info->bytes_per_s : 1e10);
    *out = (bti_rates){{[BTI_COST_CALL] = 2e-6,
                        [BTI_COST_PRODUCT_FLOP] = flop,
                        [BTI_COST_PRODUCT_BYTE] = 2 * byte,
                        [BTI_COST_ROW_BYTE] = byte,
                        [BTI_COST_ELEMENT] = 50 * flop,
                        [BTI_COST_ATTN_FLOP] = 1.4 * flop,
                        [BTI_COST_ATTN_BYTE] = 3 * byte,
                        [BTI_COST_LOSS_BYTE] = 2 * byte,
                        [BTI_COST_STATE_BYTE] = byte,
                        [BTI_COST_HOST_BYTE] = info->host_memory ? byte : 1 / LINK}};
}

static void add_op(const bt_call *call, double pairs, double *n) {
    double bytes = bti_op_bytes(call), flops = bti_op_flops(call, pairs);
    n[BTI_COST_CALL] += 1;
    switch (bti_op_work(call->op)) {
    case BT_WORK_PRODUCT:
        n[BTI_COST_PRODUCT_FLOP] += flops;
        n[BTI_COST_PRODUCT_BYTE] += bytes;
        break;
    case BT_WORK_ATTENTION:
        n[BTI_COST_ATTN_FLOP] += flops;
        n[BTI_COST_ATTN_BYTE] += bytes;
        break;
    case BT_WORK_LOSS:
        n[BTI_COST_LOSS_BYTE] += bytes;
        break;
    case BT_WORK_STATE:
        n[BTI_COST_STATE_BYTE] += bytes;
        break;
    default:
        n[BTI_COST_ROW_BYTE] += bytes;
        n[BTI_COST_ELEMENT] += bti_op_elements(call);
        break;
    }
}

void bti_program_cost(const bti_program *p, bti_cost *out) {
    memset(out, 0, sizeof *out);
    for (int32_t k = 0; k < p->ops; k++) {
        bt_call call;
        bti_program_shape(p, k, &call);
        add_op(&call, p->op[k].pairs, out->amount);
    }
}

double bti_cost_seconds(const bti_cost *c, const bti_rates *r) {
    double sum = 0;
    for (int i = 0; i < BTI_COST_KINDS; i++) sum += c->amount[i] * r->seconds[i];
    return sum;
}

double bti_op_seconds(const bti_program *p, int32_t k, const bti_rates *r) {
    bti_cost cost = {{0}};
    bt_call call;
    bti_program_shape(p, k, &call);
    add_op(&call, p->op[k].pairs, cost.amount);
    return bti_cost_seconds(&cost, r);
}

double bti_program_seconds(const bti_program *p, const bti_rates *r) {
    bti_cost cost;
    bti_program_cost(p, &cost);
    return bti_cost_seconds(&cost, r);
}
