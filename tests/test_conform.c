/* Conformance: every op of the list on one backend, in every dtype that the backend has, against
 * the oracle. Run as `test_conform BACKEND [PART...]`: only ops whose name has one of the parts
 * (^PART: starts with it); `known` are answers known without the oracle, `counts` and `table` what
 * is large (B10). */
#include "backends/registry.h"
#include "core/base/philox.h"
#include "tests/conform.h"
#include "tests/model_kit.h"

static void (*const cases[BT_OP_COUNT])(void) = {
#define BT_OP(name, NAME, slot) [BT_OP_##NAME] = case_##name,
#include "core/ops/op_list.inc"
};

/* Whether any operand of an op may be half. */
static int takes_half(bt_op op) {
    const bt_op_info *info = bti_op_info(op);
    for (int i = 0; i < info->operands; i++)
        if (info->operand[i].type == BT_TYPE_DATA || info->operand[i].type == BT_TYPE_ANY) return 1;
    return 0;
}

START_TEST(one_op) {
    int types = 0;
    for (int t = 0; t < BT_DTYPE_COUNT; t++) {
        if (!bti_dtype_is_float((bt_dtype)t) || !cf_has_type((bt_dtype)t)) continue;
        uint64_t before = bti_op_count((bt_op)_i);
        cf_type = (bt_dtype)t;
        if (cf_is_half() && !takes_half((bt_op)_i)) continue;
        cases[_i]();
        cf_reset();
        ck_assert_msg(bti_op_count((bt_op)_i) > before + 4, "%s: the case runs nothing",
                      bti_op_info((bt_op)_i)->name);
        types++;
    }
    ck_assert_msg(cf_has_type(BT_F32) && types > 0, "%s has no fp32", kit_backend());
}
END_TEST

START_TEST(known) {
    for (int t = 0; t < BT_DTYPE_COUNT; t++) {
        if (!bti_dtype_is_float((bt_dtype)t) || !cf_has_type((bt_dtype)t)) continue;
        cf_type = (bt_dtype)t;
        known_answers();
    }
}
END_TEST

static char **parts; /* of names, up to NULL */

/* On the simulator, where each takes most of a minute, one of them on one card, unless they are
 * named. */
START_TEST(counts) {
    static const int count[] = {65535, 65536, 70000}, heads[] = {1, 5};
    const char *device = cf_device()->info.name;
    if (parts[0] == NULL && strstr(device, "simulated") != NULL &&
        (_i != 3 || strstr(device, "K80") == NULL))
        return;
    cf_type = BT_F32;
    many_products(count[_i / 2]);
    many_sequences(count[_i / 2], heads[_i % 2]);
}
END_TEST

START_TEST(table) {
    cf_type = BT_F32;
    large_table();
}
END_TEST

/* Random123's known answers for Philox4x32-10. */
START_TEST(philox_known_answers) {
    bt_philox4 a = bti_philox(0, 0, 0, 0, 0);
    bt_philox4 b = bti_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(a.v[i], zeros[i]);
        ck_assert_uint_eq(b.v[i], ones[i]);
    }
}
END_TEST

static int wanted(const char *name) {
    for (char **part = parts; *part != NULL; part++)
        if (**part == '^' ? strncmp(name, *part + 1, strlen(*part + 1)) == 0
                          : strstr(name, *part) != NULL)
            return 1;
    return parts[0] == NULL;
}

static void add(TCase *tc) {
    if (!mk_there()) return;
    tcase_add_test(tc, philox_known_answers);
    if (wanted("known")) tcase_add_test(tc, known);
    if (wanted("counts")) tcase_add_loop_test(tc, counts, 0, 6);
    if (wanted("table")) tcase_add_test(tc, table);
    for (int op = 0; op < BT_OP_COUNT; op++)
        if (wanted(bti_op_info((bt_op)op)->name)) tcase_add_loop_test(tc, one_op, op, op + 1);
}

int main(int argc, char **argv) {
    parts = argv + (argc > 1 ? 2 : 1);
    return kit_main("conform", add, argc, argv);
}
