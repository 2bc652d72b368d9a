#include "tests/conform.h"

#include <stdarg.h>

#include "backends/registry.h"
#include "tests/far.h"

bt_dtype cf_type = BT_F32;

const cf_shape cf_shapes[] = {{0, 65},   {1, 1},     {1, 64},  {2, 63},   {3, 2},
                              {3, 1027}, {63, 3},    {64, 64}, {65, 127}, {127, 1},
                              {1003, 3}, {1003, 65}, {2, 1000}};
const int cf_shape_count = sizeof cf_shapes / sizeof cf_shapes[0];

/* ---- random numbers and memory of a case -------------------------------------------------------
 */

static uint64_t random_state = 0x9E3779B97F4A7C15u;

static uint64_t random_word(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double cf_uniform(void) { return (double)(random_word() >> 11) * 0x1p-52 - 1; }
int64_t cf_below(int64_t n) { return (int64_t)(random_word() % (uint64_t)n); }

static void **owned;
static size_t owned_count, owned_room;

void *cf_take(size_t bytes) {
    if (owned_count == owned_room) {
        owned_room = owned_room ? 2 * owned_room : 64;
        owned = realloc(owned, owned_room * sizeof *owned);
        ck_assert_ptr_nonnull(owned);
    }
    void *p = calloc(1, bytes ? bytes : 1);
    ck_assert_ptr_nonnull(p);
    return owned[owned_count++] = p;
}

void cf_reset(void) {
    for (size_t i = 0; i < owned_count; i++) free(owned[i]);
    owned_count = 0;
}

/* ---- devices ----------------------------------------------------------------------------------
 */

/* A device with one buffer that grows; kept to the end of the process. */
typedef struct bench {
    bt_dev *dev;
    bt_buf *buf;
    uint64_t bytes;
} bench;

static bench under_test, oracle;

static void open_bench(bench *b, const char *name) {
    if (b->dev != NULL) return;
    far_register();
    kit_ok(bti_device_open(name, NULL, &b->dev));
}

void cf_threads(int threads) {
    if (under_test.dev != NULL) {
        under_test.dev->ops->free(under_test.dev, under_test.buf);
        bti_device_close(under_test.dev);
    }
    under_test = (bench){0};
    far_register();
    kit_ok(bti_device_open(kit_backend(), &(bt_open_options){.threads = threads}, &under_test.dev));
}

bt_dev *cf_device(void) {
    open_bench(&under_test, kit_backend());
    return under_test.dev;
}

int cf_is_half(void) { return bti_dtype_size(cf_type) == 2; }

int cf_has_type(bt_dtype t) { return cf_device()->info.dtypes >> t & 1; }

static bt_buf *room(bench *b, uint64_t bytes) {
    if (b->bytes < bytes) {
        b->dev->ops->free(b->dev, b->buf);
        b->buf = NULL;
        kit_ok(b->dev->ops->alloc(b->dev, bytes, &b->buf));
        b->bytes = bytes;
    }
    return b->buf;
}

/* ---- building a call ---------------------------------------------------------------------------
 */

void cf_begin(cf_call *c, bt_op op, const char *fmt, ...) {
    memset(c, 0, sizeof *c);
    c->op = op;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->what, sizeof c->what, fmt, ap);
    va_end(ap);
}

/* The type of operand i when the op runs in `type`; in the oracle's fp64 all are that. */
bt_dtype cf_type_of(const cf_call *c, int i, bt_dtype type) {
    if (c->t[i].own_type && type != BT_F64) return c->t[i].type;
    switch (bti_op_info(c->op)->operand[i].type) {
    case BT_TYPE_INT:
        return BT_I32;
    case BT_TYPE_CODE:
        return BT_U8;
    case BT_TYPE_ACC:
        return bti_dtype_acc(type);
    default:
        return type;
    }
}

double cf_round(const cf_call *c, int i, double x) {
    double cell = 0;
    bti_store(&cell, cf_type_of(c, i, cf_type), 0, x);
    return bti_load(&cell, cf_type_of(c, i, cf_type), 0);
}

double *cf_add_stored(cf_call *c, int i, int64_t rows, int64_t cols, int64_t srows, int64_t scols) {
    const bt_operand_info *info = &bti_op_info(c->op)->operand[i];
    cf_operand *t = &c->t[i];
    size_t n = (size_t)(srows * scols);
    *t = (cf_operand){.present = 1,
                      .rows = rows,
                      .cols = cols,
                      .srows = srows,
                      .scols = scols,
                      .mag = 1,
                      .own_type = t->own_type,
                      .type = t->type};
    t->x = cf_take(n * sizeof *t->x);
    t->written = cf_take(n);
    memset(t->written, info->role != BT_ROLE_IN, n);
    for (size_t k = 0; k < n; k++)
        if (info->type == BT_TYPE_INT)
            t->x[k] = info->role == BT_ROLE_OUT ? -7777 : 0;
        else if (info->type == BT_TYPE_CODE)
            t->x[k] = (double)cf_below(256);
        else
            t->x[k] = info->role == BT_ROLE_OUT ? NAN : cf_round(c, i, cf_uniform());
    return t->x;
}

double *cf_add(cf_call *c, int i, int64_t rows, int64_t cols) {
    return cf_add_stored(c, i, rows, cols, rows, cols);
}

void cf_poison(cf_call *c, int i) {
    cf_operand *t = &c->t[i];
    for (int64_t k = 0; k < t->srows * t->scols; k++)
        if (t->written[k]) t->x[k] = NAN;
}

void cf_bound(cf_call *c, int i, double n, double mag) {
    c->t[i].n = n;
    c->t[i].mag = mag;
}

void cf_rowpos(cf_call *c, int i, int64_t rows) {
    double *x = cf_add(c, i, rows, 2);
    int64_t place = 0, position = 0, length = 1 + cf_below(9);
    for (int64_t r = 0; r < rows; r++) {
        if (position == length) {
            place++;
            position = 0;
            length = 1 + cf_below(9);
        }
        x[2 * r] = (double)place;
        x[2 * r + 1] = (double)position++;
    }
}

/* ---- running -----------------------------------------------------------------------------------
 */

/* Where the operands of a run lie in its buffer. */
typedef struct image {
    char *bytes;
    uint64_t size;
    bt_view view[BT_MAX_OPERANDS];
    uint64_t ws_off, ws_bytes;
} image;

#define GUARD 256
#define GUARD_BYTE 0xA5

static uint64_t up(uint64_t n, uint64_t a) { return (n + a - 1) / a * a; }

/* Bytes that operand i occupies, gaps included. */
static uint64_t stored_bytes(const cf_operand *t, const bt_view *v) {
    return (uint64_t)(t->srows * v->ld) * bti_dtype_size(v->dtype);
}

static char *cell(const image *im, int i, int64_t row, int64_t col) {
    const bt_view *v = &im->view[i];
    return im->bytes + v->off + (uint64_t)(row * v->ld + col) * bti_dtype_size(v->dtype);
}

/* Layout 0: rows without gaps, aligned. Layout 1: odd gaps, offsets of 0 to 3; in every other
 * case instead gaps up to a multiple of four elements, where kernels that take four at a time must
 * stop at the last columns of a row. */
static void place_operands(image *im, const cf_call *c, bt_dtype type, int layout, const int *alias,
                           uint64_t alignment) {
    /* What is flat has one row whatever the case. */
    const int64_t size = c->t[0].rows == 1 ? c->t[0].cols : c->t[0].rows;
    const int fours = layout && size % 2 != 0;
    uint64_t at = 0;
    for (int i = 0; i < bti_op_info(c->op)->operands; i++) {
        const cf_operand *t = &c->t[i];
        if (!t->present || (alias && alias[i] >= 0)) continue;
        bt_dtype dt = cf_type_of(c, i, type);
        int64_t gap = fours ? 7 - (t->scols + 3) % 4 : layout ? 1 + 2 * i % 5 : 0;
        int64_t lead = layout && !fours ? (size / 2 + i) % 4 : 0;
        at = up(at + GUARD, alignment);
        im->view[i] = (bt_view){.off = at + (uint64_t)lead * bti_dtype_size(dt),
                                .rows = t->rows,
                                .cols = t->cols,
                                .ld = t->scols + gap > 0 ? t->scols + gap : 1,
                                .dtype = dt};
        at = im->view[i].off + stored_bytes(t, &im->view[i]);
    }
    for (int i = 0; alias && i < bti_op_info(c->op)->operands; i++)
        if (alias[i] >= 0) im->view[i] = im->view[alias[i]];
    im->size = at + GUARD;
}

static void fill_image(const image *im, const cf_call *c, const int *alias) {
    memset(im->bytes, GUARD_BYTE, im->size);
    for (int i = 0; i < bti_op_info(c->op)->operands; i++) {
        const cf_operand *t = &c->t[i];
        if (!t->present || (alias && alias[i] >= 0)) continue;
        for (int64_t r = 0; r < t->srows; r++)
            for (int64_t k = 0; k < t->scols; k++)
                bti_store(cell(im, i, r, k), im->view[i].dtype, 0, t->x[r * t->scols + k]);
    }
    if (im->ws_bytes) memset(im->bytes + im->ws_off, 0xFF, im->ws_bytes);
}

static bt_call make_call(const cf_call *c, image *im, bt_buf *buf) {
    bt_call call = {.op = c->op, .p = c->p};
    for (int i = 0; i < BT_MAX_OPERANDS; i++) {
        call.t[i] = im->view[i];
        if (c->t[i].present) call.t[i].buf = buf;
    }
    if (c->op == BT_OP_GEMM) {
        int64_t *s[3][2] = {{&call.p.gemm.a0, &call.p.gemm.a1},
                            {&call.p.gemm.b0, &call.p.gemm.b1},
                            {&call.p.gemm.c0, &call.p.gemm.c1}};
        for (int i = 0; i < 3; i++) {
            *s[i][0] = c->t[i].b0r * call.t[i].ld + c->t[i].b0c;
            *s[i][1] = c->t[i].b1r * call.t[i].ld + c->t[i].b1c;
        }
    }
    if (im->ws_bytes) {
        int64_t n = (int64_t)(im->ws_bytes / sizeof(float));
        call.ws = (bt_view){buf, im->ws_off, 1, n, n, BT_F32};
    }
    return call;
}

/* Uploads `before`, runs the call, downloads to `after`. */
static void run_once(bench *b, const bt_call *call, const char *before, char *after, uint64_t size,
                     const cf_call *c) {
    const bt_dev_ops *ops = b->dev->ops;
    kit_ok(ops->upload(b->dev, NULL, b->buf, 0, before, size));
    bt_status status = bti_op_run(b->dev, NULL, call);
    if (status == BT_OK) status = ops->sync(b->dev, NULL);
    ck_assert_msg(status == BT_OK, "%s (%s): %s", bti_op_info(c->op)->name, c->what,
                  bt_last_error());
    kit_ok(ops->download(b->dev, NULL, after, b->buf, 0, size));
    kit_ok(ops->sync(b->dev, NULL));
}

/* Everything that the op may not write is as it was. */
static void check_untouched(const image *im, const image *after, const cf_call *c,
                            const char *label) {
    for (int i = 0; i < bti_op_info(c->op)->operands; i++) {
        const cf_operand *t = &c->t[i];
        if (!t->present || bti_op_info(c->op)->operand[i].role == BT_ROLE_IN) continue;
        size_t size = bti_dtype_size(im->view[i].dtype);
        for (int64_t r = 0; r < t->srows; r++)
            for (int64_t k = 0; k < t->scols; k++)
                if (t->written[r * t->scols + k])
                    memcpy(cell(im, i, r, k), cell(after, i, r, k), size);
    }
    if (im->ws_bytes) memcpy(im->bytes + im->ws_off, after->bytes + im->ws_off, im->ws_bytes);
    if (memcmp(im->bytes, after->bytes, im->size) == 0) return;
    for (uint64_t k = 0; k < im->size; k++)
        CF_EXPECT(im->bytes[k] == after->bytes[k],
                  "%s (%s; %s): byte %llu changed, which it may not write",
                  bti_op_info(c->op)->name, c->what, label, (unsigned long long)k);
}

static cf_result read_result(const image *im, const cf_call *c) {
    cf_result result = {{NULL}};
    for (int i = 0; i < bti_op_info(c->op)->operands; i++) {
        const cf_operand *t = &c->t[i];
        if (!t->present || bti_op_info(c->op)->operand[i].role == BT_ROLE_IN) continue;
        double *y = result.y[i] = cf_take((size_t)(t->srows * t->scols) * sizeof *y);
        for (int64_t r = 0; r < t->srows; r++)
            for (int64_t k = 0; k < t->scols; k++)
                y[r * t->scols + k] = bti_load(cell(im, i, r, k), im->view[i].dtype, 0);
    }
    return result;
}

static cf_result run(bench *b, const cf_call *c, bt_dtype type, int layout, const int *alias) {
    image im = {0}, after;
    uint64_t alignment = b->dev->info.alignment;
    place_operands(&im, c, type, layout, alias, alignment);
    bt_call call = make_call(c, &im, NULL);
    im.ws_bytes = up(bti_op_ws_bytes(b->dev->driver->planning, &b->dev->info, &call), 4);
    if (im.ws_bytes) {
        im.ws_off = up(im.size, alignment);
        im.size = im.ws_off + im.ws_bytes + GUARD;
    }
    im.bytes = malloc(im.size);
    char *again = malloc(im.size);
    after = im;
    after.bytes = malloc(im.size);
    ck_assert(im.bytes != NULL && again != NULL && after.bytes != NULL);
    fill_image(&im, c, alias);
    call = make_call(c, &im, room(b, im.size));

    char label[96];
    snprintf(label, sizeof label, "%s %s, layout %d%s", b->dev->info.backend, bti_dtype_name(type),
             layout, alias ? ", in place" : "");
    run_once(b, &call, im.bytes, after.bytes, im.size, c);
    if (b == &under_test) {
        run_once(b, &call, im.bytes, again, im.size, c);
        if (im.ws_bytes) memcpy(again + im.ws_off, after.bytes + im.ws_off, im.ws_bytes);
        CF_EXPECT(memcmp(again, after.bytes, im.size) == 0,
                  "%s (%s; %s): the second run gives other bits", bti_op_info(c->op)->name, c->what,
                  label);
    }
    check_untouched(&im, &after, c, label);
    cf_result result = read_result(&after, c);
    free(im.bytes);
    free(again);
    free(after.bytes);
    return result;
}

cf_result cf_run(bt_dev *dev, const cf_call *c, bt_dtype type, int layout, const int *alias) {
    open_bench(&oracle, "ref");
    return run(dev == oracle.dev ? &oracle : &under_test, c, type, layout, alias);
}

cf_result cf_oracle(const cf_call *c) {
    open_bench(&oracle, "ref");
    return run(&oracle, c, BT_F64, 0, NULL);
}
