/* One instruction set's table of slots, from the one list. */
#include "cpu/kernels.h"

#define BTCPU_STRING2(x) #x
#define BTCPU_STRING(x) BTCPU_STRING2(x)

const btcpu_table BTCPU_FN(kernels) = {.isa = BTCPU_STRING(BTCPU_ISA),
                                       .op = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = BTCPU_FN(name),
#include "core/ops/op_list.inc"
                                       }};
