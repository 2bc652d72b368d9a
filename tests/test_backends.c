/* The registry, the checks that ops.c makes of every call, and the manners of null, trace and far.
 */
#include "backends/registry.h"
#include "backends/trace.h"
#include "core/ops/ops.h"
#include "tests/far.h"
#include "tests/kit.h"

/* ---- small helpers -----------------------------------------------------------------------------
 */

static bt_view view(bt_buf *buf, size_t off, int64_t rows, int64_t cols, bt_dtype t) {
    return (bt_view){buf, off, rows, cols, cols > 0 ? cols : 1, t};
}

/* y = x + 0 y over n floats of one buffer: x at 0, y after it. */
static bt_call add_call(bt_buf *buf, int64_t n) {
    bt_call c = {.op = BT_OP_AXPBY};
    c.t[BT_AXPBY_X] = view(buf, 0, 1, n, BT_F32);
    c.t[BT_AXPBY_Y] = view(buf, (size_t)n * 4, 1, n, BT_F32);
    c.p.axpby = (bt_axpby_params){1, 0};
    return c;
}

/* Scratch for far, which always wants some. */
static bt_call with_ws(bt_dev *dev, bt_call c, bt_buf *ws) {
    int64_t n = (int64_t)bti_op_ws_bytes(dev->driver->planning, &dev->info, &c) / 4;
    if (n > 0) c.ws = view(ws, 0, 1, n, BT_F32);
    return c;
}

/* ---- registry ----------------------------------------------------------------------------------
 */

START_TEST(registry_names) {
    bt_dev *dev = NULL;
    const bt_driver *driver = NULL;
    kit_fails(bti_device_open("gpu", NULL, &dev), BT_EUSAGE, "one of cuda, opencl, cpu;");
    kit_fails(bti_device_open("", NULL, &dev), BT_EUSAGE, "no backend");
    kit_fails(bti_device_open("ref:x", NULL, &dev), BT_EUSAGE, "no device number");
    kit_fails(bti_device_open("ref:", NULL, &dev), BT_EUSAGE, "no device number");
    kit_fails(bti_device_open("ref:1", NULL, &dev), BT_EUSAGE, "not number 1");
    kit_fails(bti_device_open("trace:gpu", NULL, &dev), BT_EUSAGE, "gpu");
    kit_fails(bti_backend_driver("cuda", &driver), BT_EDEVICE, "bantam_cuda.so");
    ck_assert_ptr_null(dev);
    ck_assert_ptr_null(driver);
    kit_ok(bti_device_open("ref:0", NULL, &dev));
    bti_device_close(dev);
    ck_assert_ptr_nonnull(bti_backend_planning("cpu"));
    ck_assert_ptr_nonnull(bti_backend_planning("ref"));
    ck_assert_ptr_nonnull(bti_backend_planning("opencl"));
    ck_assert_ptr_null(bti_backend_planning("gpu"));
    int names = 0;
    for (const char *const *name = bti_backend_names(); *name != NULL; name++) names++;
    ck_assert_int_eq(names, 5);
}
END_TEST

START_TEST(registry_refuses_other_interfaces) {
    static const bt_driver old = {.abi = BT_BACKEND_ABI + 1, .name = "old"};
    static const bt_driver twin = {.abi = BT_BACKEND_ABI, .name = "ref"};
    kit_fails(bti_backend_register(&old), BT_EDEVICE, "interface");
    kit_fails(bti_backend_register(&twin), BT_EINTERNAL, "built in");
    far_register();
    far_register();
    ck_assert_ptr_nonnull(bti_backend_planning("far"));
}
END_TEST

/* A module that is no module is refused with its path. */
START_TEST(registry_bad_module) {
    const char *dir = kit_tmpdir(), *old = getenv("BANTAM_MODULES");
    const bt_driver *driver = NULL;
    char *saved = old ? strdup(old) : NULL;
    kit_write_text(kit_str("%s/bantam_opencl.so", dir), "no library");
    setenv("BANTAM_MODULES", dir, 1);
    kit_fails(bti_backend_driver("opencl", &driver), BT_EDEVICE, "bantam_opencl.so");
    kit_fails(bti_backend_driver("cuda", &driver), BT_EDEVICE, "BANTAM_MODULES");
    if (saved != NULL)
        setenv("BANTAM_MODULES", saved, 1);
    else
        unsetenv("BANTAM_MODULES");
    free(saved);
}
END_TEST

/* ---- checks of calls ---------------------------------------------------------------------------
 */

START_TEST(list_and_info_agree) {
    ck_assert_str_eq(bti_op_info(BT_OP_GEMM)->name, "gemm");
    ck_assert_int_eq(bti_op_info(BT_OP_GEMM)->operands, 3);
    ck_assert_int_eq(bti_op_info(BT_OP_ADD_NORM_BWD)->operands, BT_MAX_OPERANDS);
    ck_assert_int_eq(bti_op_info(BT_OP_ADD_NORM_BWD)->fused, 1);
    ck_assert_int_eq(bti_op_info(BT_OP_ATTN_FWD)->fused, 0);
    ck_assert_str_eq(bti_op_info(BT_OP_ADAMW)->operand[BT_ADAMW_V].name, "v");
    ck_assert_int_eq(bti_op_info(BT_OP_CROSS_ENTROPY)->operand[BT_CROSS_ENTROPY_LABELS].type,
                     BT_TYPE_INT);
    ck_assert_int_eq(bti_op_info(BT_OP_ADAMW8)->operand[BT_ADAMW8_M].type, BT_TYPE_CODE);
    ck_assert_str_eq(bti_op_info((bt_op)999)->name, "unknown op");
    for (int op = 0; op < BT_OP_COUNT; op++)
        ck_assert_int_le(bti_op_info((bt_op)op)->operands, BT_MAX_OPERANDS);
}
END_TEST

START_TEST(check_operands) {
    bt_call c = add_call(NULL, 5);
    kit_ok(bti_op_check(&c));
    c.op = BT_OP_COUNT;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "no op number");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_Y] = (bt_view){0};
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "operand y");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_X].ld = 4;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "ld is less");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_X].rows = -1;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "negative");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_Y].cols = 4;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "must be 1 x 5");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_X].dtype = BT_I32;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "floating");
    c = add_call(NULL, 5);
    c.t[BT_AXPBY_X].rows = c.t[BT_AXPBY_Y].rows = INT64_MAX / 8;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "63 bits");
}
END_TEST

static bt_call row_call(int64_t rows, int64_t cols, float p) {
    bt_call c = {.op = BT_OP_BIAS_ACT_FWD};
    c.t[BT_BIAS_ACT_FWD_X] = c.t[BT_BIAS_ACT_FWD_Y] = view(NULL, 0, rows, cols, BT_F32);
    c.t[BT_BIAS_ACT_FWD_ROWPOS] = view(NULL, 0, rows, 2, BT_I32);
    c.p.bias_act.drop.p = p;
    return c;
}

START_TEST(check_dropout) {
    bt_call c = row_call(3, 65536, 0.5f);
    kit_ok(bti_op_check(&c));
    c = row_call(3, 65537, 0.5f);
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "channels");
    c = row_call(3, 65537, 0);
    kit_ok(bti_op_check(&c));
    c = row_call(3, 8, 1);
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "[0, 1)");
    c = row_call(3, 8, NAN);
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "[0, 1)");
    c = row_call(3, 8, 0.5f);
    c.p.bias_act.drop.site = 65536;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "site");
    c = row_call(3, 8, 0.5f);
    c.t[BT_BIAS_ACT_FWD_ROWPOS] = (bt_view){0};
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "with dropout");
    c = row_call(3, 8, 0);
    c.t[BT_BIAS_ACT_FWD_BIAS] = view(NULL, 0, 1, 8, BT_F64);
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "type must be fp32");
}
END_TEST

START_TEST(check_gemm_and_attention) {
    bt_call c = {.op = BT_OP_GEMM};
    c.t[BT_GEMM_A] = view(NULL, 0, 3, 4, BT_F32);
    c.t[BT_GEMM_B] = view(NULL, 0, 4, 5, BT_F32);
    c.t[BT_GEMM_C] = view(NULL, 0, 3, 5, BT_F32);
    kit_ok(bti_op_check(&c));
    c.p.gemm.trans_a = 1;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "operand a");
    c.p.gemm = (bt_gemm_params){.batch0 = 2, .a0 = 12, .b0 = 20};
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "overlap");
    c.p.gemm.c0 = INT64_MAX / 2;
    kit_fails(bti_op_check(&c), BT_EINTERNAL, "63 bits");
    bt_call a = {.op = BT_OP_ATTN_FWD};
    for (int i = BT_ATTN_FWD_Q; i <= BT_ATTN_FWD_V; i++) a.t[i] = view(NULL, 0, 5, 30, BT_F32);
    a.t[BT_ATTN_FWD_O] = view(NULL, 0, 5, 30, BT_F32);
    a.t[BT_ATTN_FWD_SEQ] = view(NULL, 0, 1, BT_SEQ_COLS, BT_I32);
    a.p.attn.heads = 3;
    kit_ok(bti_op_check(&a));
    a.p.attn.heads = 4;
    kit_fails(bti_op_check(&a), BT_EINTERNAL, "4 heads");
    a.p.attn.heads = 0;
    kit_fails(bti_op_check(&a), BT_EINTERNAL, "0 heads");
}
END_TEST

/* Token 8,589, word 250,001 at width 250,002 lies beyond 2^31. */
START_TEST(offsets_beyond_31_bits) {
    bt_call c = {.op = BT_OP_CROSS_ENTROPY};
    c.t[BT_CROSS_ENTROPY_LOGITS] = view(NULL, 0, 8590, 250002, BT_F32);
    ck_assert_uint_eq(bti_op_extent(&c, BT_CROSS_ENTROPY_LOGITS) / 4 - 1, 2147517179u);
    /* The same on a device of any size: the last byte is inside, one less is not. */
    bt_dev *dev = NULL;
    bt_buf *big = NULL, *small = NULL;
    kit_ok(bti_device_open("null", NULL, &dev));
    uint64_t bytes = (uint64_t)8590 * 250002 * 4, tables = 8590 * 12 + 8590 * 8;
    kit_ok(dev->ops->alloc(dev, bytes, &big));
    kit_ok(dev->ops->alloc(dev, bytes - 1, &small));
    bt_buf *rest = NULL;
    kit_ok(dev->ops->alloc(dev, tables, &rest));
    c.t[BT_CROSS_ENTROPY_LABELS] = view(rest, 0, 8590, 1, BT_I32);
    c.t[BT_CROSS_ENTROPY_LOSS] = view(rest, 8590 * 4, 8590, 2, BT_F32);
    c.t[BT_CROSS_ENTROPY_LOGITS].buf = big;
    kit_ok(bti_op_run(dev, NULL, &c));
    c.t[BT_CROSS_ENTROPY_LOGITS].buf = small;
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "logits");
    bti_device_close(dev);
}
END_TEST

START_TEST(costs) {
    bt_call c = {.op = BT_OP_GEMM, .p.gemm = {.batch0 = 2, .batch1 = 3}};
    c.t[BT_GEMM_A] = view(NULL, 0, 3, 4, BT_F32);
    c.t[BT_GEMM_B] = view(NULL, 0, 4, 5, BT_F32);
    c.t[BT_GEMM_C] = view(NULL, 0, 3, 5, BT_F32);
    ck_assert(bti_op_flops(&c, 0) == 2.0 * 3 * 4 * 5 * 6);
    ck_assert(bti_op_bytes(&c) == 4.0 * 6 * (12 + 20 + 15));
    c.p.gemm.beta = 1;
    ck_assert(bti_op_bytes(&c) == 4.0 * 6 * (12 + 20 + 30));
}
END_TEST

/* ---- null --------------------------------------------------------------------------------------
 */

START_TEST(null_bounds_and_lifetimes) {
    bt_dev *dev = NULL, *other = NULL;
    bt_buf *buf = NULL, *gone = NULL, *foreign = NULL;
    kit_ok(bti_device_open("null", NULL, &dev));
    kit_ok(bti_device_open("null", NULL, &other));
    kit_ok(dev->ops->alloc(dev, 1000, &buf));
    kit_ok(other->ops->alloc(other, 1000, &foreign));
    bt_call c = add_call(buf, 125);
    kit_ok(bti_op_run(dev, NULL, &c));
    c.t[BT_AXPBY_Y].off += 4;
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "op axpby: null: y");
    c = add_call(foreign, 125);
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "another device");
    kit_ok(dev->ops->alloc(dev, 1000, &gone));
    dev->ops->free(dev, gone);
    c = add_call(gone, 125);
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "freed");
    kit_fails(dev->ops->upload(dev, NULL, buf, 999, "ab", 2), BT_EINTERNAL, "upload");
    char byte = 7;
    kit_ok(dev->ops->download(dev, NULL, &byte, buf, 999, 1));
    ck_assert_int_eq(byte, 0);
    bti_device_close(dev);
    bti_device_close(other);
}
END_TEST

START_TEST(null_aliases) {
    bt_dev *dev = NULL;
    bt_buf *buf = NULL;
    kit_ok(bti_device_open("null", NULL, &dev));
    kit_ok(dev->ops->alloc(dev, 4000, &buf));
    bt_call c = row_call(10, 20, 0);
    c.t[BT_BIAS_ACT_FWD_ROWPOS] = (bt_view){0};
    c.t[BT_BIAS_ACT_FWD_X].buf = c.t[BT_BIAS_ACT_FWD_Y].buf = buf;
    kit_ok(bti_op_run(dev, NULL, &c)); /* y in the place of x: allowed */
    c.t[BT_BIAS_ACT_FWD_Y].off = 4;
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "y overlaps x");
    /* x and y side by side in one matrix of 40 columns. */
    c.t[BT_BIAS_ACT_FWD_X].ld = c.t[BT_BIAS_ACT_FWD_Y].ld = 40;
    c.t[BT_BIAS_ACT_FWD_Y].off = 80;
    kit_ok(bti_op_run(dev, NULL, &c));
    c.t[BT_BIAS_ACT_FWD_Y].off = 76;
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "y overlaps x");
    bt_call g = {.op = BT_OP_GEMM};
    g.t[BT_GEMM_A] = view(buf, 0, 4, 4, BT_F32);
    g.t[BT_GEMM_B] = view(buf, 64, 4, 4, BT_F32);
    g.t[BT_GEMM_C] = view(buf, 0, 4, 4, BT_F32);
    kit_fails(bti_op_run(dev, NULL, &g), BT_EINTERNAL, "c overlaps a");
    bti_device_close(dev);
}
END_TEST

/* ---- trace -------------------------------------------------------------------------------------
 */

/* A few calls of every kind; stops at the first failure. */
static bt_status scenario(bt_dev *dev, float *result) {
    bt_buf *buf = NULL;
    bt_event *event = NULL;
    float host[4] = {1, 2, 3, 4};
    bt_status status = dev->ops->alloc(dev, 64, &buf);
    if (status != BT_OK) return status;
    bt_call c = add_call(buf, 4);
    if ((status = dev->ops->event_new(dev, &event)) != BT_OK) goto done;
    if ((status = dev->ops->upload(dev, NULL, buf, 0, host, sizeof host)) != BT_OK) goto done;
    if ((status = bti_op_run(dev, NULL, &c)) != BT_OK) goto done;
    if ((status = dev->ops->event_record(dev, NULL, event)) != BT_OK) goto done;
    if ((status = dev->ops->event_sync(dev, event)) != BT_OK) goto done;
    if ((status = dev->ops->download(dev, NULL, result, buf, 16, sizeof host)) != BT_OK) goto done;
    status = dev->ops->sync(dev, NULL);
done:
    dev->ops->event_free(dev, event);
    dev->ops->free(dev, buf);
    return status;
}

/* The n-th call fails for every n until the scenario passes: 8 calls. */
START_TEST(trace_fails_the_nth_call) {
    bt_dev *dev = NULL;
    kit_ok(bti_device_open("trace:ref", NULL, &dev));
    int n = 1;
    for (;; n++) {
        float result[4] = {0};
        *bti_trace_options(dev) = (bt_trace_options){.fail_at = (uint64_t)n};
        bt_status status = scenario(dev, result);
        if (status == BT_OK) {
            ck_assert(result[3] == 4);
            break;
        }
        ck_assert_int_eq(status, BT_EDEVICE);
        ck_assert_msg(strstr(bt_last_error(), "as was asked for") != NULL, "%s", bt_last_error());
        ck_assert_int_lt(n, 100);
    }
    ck_assert_int_eq(n, 9);
    bti_device_close(dev);
}
END_TEST

START_TEST(trace_loses_the_device) {
    bt_dev *dev = NULL;
    float result[4];
    kit_ok(bti_device_open("trace:ref", NULL, &dev));
    *bti_trace_options(dev) = (bt_trace_options){.fail_at = 4, .lost = 1};
    kit_fails(bti_settle(dev, NULL, scenario(dev, result)), BT_EDEVICE, "axpby");
    kit_fails(scenario(dev, result), BT_EDEVICE, "lost");
    kit_fails(bti_settle(dev, NULL, BT_OK), BT_EDEVICE, "sync");
    bti_device_close(dev);
}
END_TEST

START_TEST(trace_counts) {
    bt_dev *dev = NULL, *plain = NULL;
    float result[4];
    uint64_t before = bti_op_count(BT_OP_AXPBY);
    kit_ok(bti_device_open("trace:ref", NULL, &dev));
    kit_ok(scenario(dev, result));
    kit_ok(scenario(dev, result));
    bt_trace_row *row = &bti_trace_rows(dev)[BT_OP_AXPBY];
    ck_assert_uint_eq(row->calls, 2);
    ck_assert(row->bytes == 2 * 2 * 16 && row->flops == 0 && row->seconds >= 0);
    ck_assert_uint_eq(bti_trace_rows(dev)[BT_OP_GEMM].calls, 0);
    ck_assert_uint_eq(bti_op_count(BT_OP_AXPBY), before + 2);
    ck_assert_str_eq(dev->info.backend, "ref");
    ck_assert_ptr_eq(dev->driver->planning, bti_backend_planning("ref"));
    kit_ok(bti_device_open("ref", NULL, &plain));
    ck_assert_ptr_null(bti_trace_rows(plain));
    ck_assert_ptr_null(bti_trace_options(plain));
    bti_device_close(plain);
    bti_device_close(dev);
}
END_TEST

static void keep_line(void *user, const char *line) {
    strcat(user, line);
    strcat(user, "\n");
}

START_TEST(trace_dumps_arguments) {
    bt_dev *dev = NULL;
    float result[4];
    char text[4096] = "";
    kit_ok(bti_device_open("trace:ref", NULL, &dev));
    bti_trace_options(dev)->dump = keep_line;
    bti_trace_options(dev)->user = text;
    kit_ok(scenario(dev, result));
    ck_assert_msg(strstr(text, "axpby x 1x4 ld 4 fp32 @") != NULL, "%s", text);
    ck_assert_ptr_nonnull(strstr(text, ", y 1x4 ld 4 fp32 @"));
    bti_device_close(dev);
}
END_TEST

START_TEST(trace_finds_nan) {
    bt_dev *dev = NULL;
    bt_buf *buf = NULL;
    float host[32] = {0};
    kit_ok(bti_device_open("trace:ref", NULL, &dev));
    bti_trace_options(dev)->scan_nan = 1;
    kit_ok(dev->ops->alloc(dev, sizeof host, &buf));
    bt_call c = add_call(buf, 4); /* 3 x 4 into columns of a matrix of 5 */
    c.t[BT_AXPBY_X] = view(buf, 0, 3, 4, BT_F32);
    c.t[BT_AXPBY_Y] = view(buf, 48, 3, 4, BT_F32);
    c.t[BT_AXPBY_Y].ld = 5;
    host[12 + 4] = NAN; /* between the rows: not an element */
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, host, sizeof host));
    kit_ok(bti_op_run(dev, NULL, &c));
    host[9] = NAN;
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, host, sizeof host));
    kit_fails(bti_op_run(dev, NULL, &c), BT_ENUMERIC, "axpby wrote NaN to y[2][1]");
    bti_trace_options(dev)->scan_nan = 0;
    kit_ok(bti_op_run(dev, NULL, &c));
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}
END_TEST

/* ---- far ---------------------------------------------------------------------------------------
 */

static bt_dev *open_far(bt_buf **buf) {
    bt_dev *dev = NULL;
    far_register();
    kit_ok(bti_device_open("far", NULL, &dev));
    kit_ok(dev->ops->alloc(dev, 4096, buf));
    return dev;
}

static void close_far(bt_dev *dev, bt_buf *buf) {
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}

/* Who changes staging before the stream has passed it sees the change. */
START_TEST(far_reads_staging_late) {
    bt_buf *buf = NULL;
    bt_dev *dev = open_far(&buf);
    float staging = 1, result = 0;
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, &staging, 4));
    staging = 2;
    kit_ok(dev->ops->download(dev, NULL, &result, buf, 0, 4));
    ck_assert(result == 0);
    kit_ok(dev->ops->sync(dev, NULL));
    ck_assert(result == 2);
    close_far(dev, buf);
}
END_TEST

/* A failure is not seen by the call that makes it, but by the next one and all later ones. */
START_TEST(far_fails_late) {
    bt_buf *buf = NULL;
    bt_dev *dev = open_far(&buf);
    bt_stream *s = NULL;
    char byte = 0;
    kit_ok(dev->ops->stream_new(dev, &s));
    bt_call c = add_call(buf, 4);
    kit_ok(bti_op_run(dev, s, &c)); /* without its scratch */
    kit_fails(dev->ops->sync(dev, s), BT_EINTERNAL, "scratch");
    kit_fails(dev->ops->upload(dev, s, buf, 0, &byte, 1), BT_EINTERNAL, "scratch");
    kit_ok(dev->ops->sync(dev, NULL)); /* the other stream is well */
    dev->ops->stream_free(dev, s);
    close_far(dev, buf);
}
END_TEST

/* Without an event a second stream runs ahead of the first; with one it waits. */
START_TEST(far_streams_need_events) {
    bt_buf *buf = NULL;
    bt_dev *dev = open_far(&buf);
    for (int wait = 0; wait < 2; wait++) {
        bt_stream *a = NULL, *b = NULL;
        bt_event *e = NULL;
        float one = 1, zero = 0, result = -1;
        kit_ok(dev->ops->upload(dev, NULL, buf, 0, &zero, 4));
        kit_ok(dev->ops->sync(dev, NULL));
        kit_ok(dev->ops->stream_new(dev, &a));
        kit_ok(dev->ops->stream_new(dev, &b));
        kit_ok(dev->ops->event_new(dev, &e));
        kit_ok(dev->ops->upload(dev, a, buf, 0, &one, 4));
        kit_ok(dev->ops->event_record(dev, a, e));
        if (wait) kit_ok(dev->ops->event_wait(dev, b, e));
        kit_ok(dev->ops->download(dev, b, &result, buf, 0, 4));
        kit_ok(dev->ops->sync(dev, b));
        ck_assert(result == (wait ? 1 : 0));
        kit_ok(dev->ops->event_sync(dev, e));
        dev->ops->event_free(dev, e);
        dev->ops->stream_free(dev, a);
        dev->ops->stream_free(dev, b);
    }
    close_far(dev, buf);
}
END_TEST

/* More calls than the queue holds, each building on the one before. */
START_TEST(far_runs_in_order) {
    bt_buf *buf = NULL, *ws = NULL;
    bt_dev *dev = open_far(&buf);
    float start[8] = {1, 2, 3, 4, 0, 0, 0, 0}, result[4];
    kit_ok(dev->ops->alloc(dev, 65536, &ws));
    kit_ok(dev->ops->upload(dev, NULL, buf, 0, start, sizeof start));
    bt_call c = add_call(buf, 4);
    c.p.axpby.b = 1;
    c = with_ws(dev, c, ws);
    for (int i = 0; i < 1000; i++) kit_ok(bti_op_run(dev, NULL, &c));
    kit_ok(dev->ops->download(dev, NULL, result, buf, 16, sizeof result));
    kit_ok(dev->ops->sync(dev, NULL));
    ck_assert(result[0] == 1000 && result[3] == 4000);
    dev->ops->free(dev, ws);
    close_far(dev, buf);
}
END_TEST

START_TEST(far_limits) {
    bt_buf *buf = NULL, *big = NULL;
    bt_dev *dev = open_far(&buf);
    kit_fails(dev->ops->alloc(dev, dev->info.max_alloc + 1, &big), BT_ENOMEM, "one piece");
    ck_assert_ptr_null(big);
    bt_call c = row_call(3, 8, 0);
    uint64_t odd = bti_op_ws_bytes(dev->driver->planning, &dev->info, &c);
    c = row_call(4, 8, 0);
    ck_assert_uint_ge(bti_op_ws_bytes(dev->driver->planning, &dev->info, &c), odd);
    ck_assert_msg(dev->op[BT_OP_ADD_NORM_FWD] == NULL, "far fills a fused slot");
    close_far(dev, buf);
}
END_TEST

/* ---- ref ---------------------------------------------------------------------------------------
 */

/* The oracle refuses tables that point outside, and shows memory that nobody wrote. */
START_TEST(ref_checks_tables) {
    bt_dev *dev = NULL;
    bt_buf *buf = NULL;
    int32_t ids[2] = {0, 7};
    float fresh;
    kit_ok(bti_device_open("ref", NULL, &dev));
    kit_ok(dev->ops->alloc(dev, 256, &buf));
    kit_ok(dev->ops->download(dev, NULL, &fresh, buf, 100, 4));
    ck_assert(isnan(fresh));
    kit_ok(dev->ops->upload(dev, NULL, buf, 128, ids, sizeof ids));
    bt_call c = {.op = BT_OP_GATHER};
    c.t[BT_GATHER_X] = view(buf, 0, 7, 2, BT_F32);
    c.t[BT_GATHER_INDEX] = view(buf, 128, 2, 1, BT_I32);
    c.t[BT_GATHER_Y] = view(buf, 192, 2, 2, BT_F32);
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "row 7 of 7");
    c.t[BT_GATHER_Y].off = 248;
    kit_fails(bti_op_run(dev, NULL, &c), BT_EINTERNAL, "op gather: ref: y");
    dev->ops->free(dev, buf);
    bti_device_close(dev);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, registry_names);
    tcase_add_test(tc, registry_refuses_other_interfaces);
    tcase_add_test(tc, registry_bad_module);
    tcase_add_test(tc, list_and_info_agree);
    tcase_add_test(tc, check_operands);
    tcase_add_test(tc, check_dropout);
    tcase_add_test(tc, check_gemm_and_attention);
    tcase_add_test(tc, offsets_beyond_31_bits);
    tcase_add_test(tc, costs);
    tcase_add_test(tc, null_bounds_and_lifetimes);
    tcase_add_test(tc, null_aliases);
    tcase_add_test(tc, trace_fails_the_nth_call);
    tcase_add_test(tc, trace_loses_the_device);
    tcase_add_test(tc, trace_counts);
    tcase_add_test(tc, trace_dumps_arguments);
    tcase_add_test(tc, trace_finds_nan);
    tcase_add_test(tc, far_reads_staging_late);
    tcase_add_test(tc, far_fails_late);
    tcase_add_test(tc, far_streams_need_events);
    tcase_add_test(tc, far_runs_in_order);
    tcase_add_test(tc, far_limits);
    tcase_add_test(tc, ref_checks_tables);
}

int main(int argc, char **argv) { return kit_main("backends", add, argc, argv); }
