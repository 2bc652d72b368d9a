/* Cases of embedding, cross-entropy, losses of values and top-k. */
#include "tests/conform.h"

static bt_drop drop(int on) {
    return (bt_drop){.seed = 99, .update = 1u << 20, .site = 65535, .p = on ? 0.3f : 0};
}

/* ---- embedding ---------------------------------------------------------------------------------
 */

static const struct {
    int64_t rows, cols, table;
} embed_shapes[] = {{0, 8, 3},     {1, 1, 1},      {3, 63, 2},
                    {65, 64, 127}, {127, 3, 1003}, {1003, 65, 64}};
#define EMBED_SHAPES ((int)(sizeof embed_shapes / sizeof embed_shapes[0]))

/* Ids of which the first is very frequent. */
static double pick_id(int64_t table) { return (double)(cf_below(3) ? cf_below(table) : 0); }

void case_embed_fwd(void) {
    cf_call c;
    for (int s = 0; s < EMBED_SHAPES; s++)
        for (int option = 0; option < 4; option++) {
            int64_t rows = embed_shapes[s].rows, cols = embed_shapes[s].cols;
            int postab = option & 1, dropped = option >> 1;
            cf_begin(&c, BT_OP_EMBED_FWD, "%lld x %lld of %lld, positions %d, dropout %d",
                     (long long)rows, (long long)cols, (long long)embed_shapes[s].table, postab,
                     dropped);
            c.p.embed = (bt_embed_params){.scale = 8, .drop = drop(dropped)};
            cf_add(&c, BT_EMBED_FWD_TABLE, embed_shapes[s].table, cols);
            double *ids = cf_add(&c, BT_EMBED_FWD_IDS, rows, 1);
            for (int64_t r = 0; r < rows; r++) ids[r] = pick_id(embed_shapes[s].table);
            cf_rowpos(&c, BT_EMBED_FWD_ROWPOS, rows);
            if (postab) cf_add(&c, BT_EMBED_FWD_POSTAB, 9, cols);
            cf_add(&c, BT_EMBED_FWD_Y, rows, cols);
            c.t[BT_EMBED_FWD_Y].exact_zero = 1;
            cf_bound(&c, BT_EMBED_FWD_Y, 0, 14);
            cf_check(&c);
            cf_reset();
        }
}

/* The row plan of some ids: rows sorted by id, ties by row, and where each id starts. */
static void row_plan(cf_call *c, const int64_t *ids, int64_t rows, int64_t table) {
    double *order = cf_add(c, BT_EMBED_BWD_ORDER, rows, 1);
    double *first = calloc((size_t)(2 * table + 2), sizeof *first);
    int64_t at = 0, distinct = 0;
    for (int64_t id = 0; id < table; id++) {
        int64_t start = at;
        for (int64_t r = 0; r < rows; r++)
            if (ids[r] == id) order[at++] = (double)r;
        if (at == start) continue;
        first[2 * distinct] = (double)id;
        first[2 * distinct++ + 1] = (double)start;
    }
    first[2 * distinct] = -1;
    first[2 * distinct + 1] = (double)rows;
    double *segs = cf_add(c, BT_EMBED_BWD_SEGS, distinct + 1, 2);
    memcpy(segs, first, (size_t)(2 * distinct + 2) * sizeof *segs);
    free(first);
}

void case_embed_bwd(void) {
    cf_call c;
    int64_t ids[1003];
    for (int s = 0; s < EMBED_SHAPES; s++)
        for (int option = 0; option < 4; option++) {
            int64_t rows = embed_shapes[s].rows, cols = embed_shapes[s].cols;
            int beta = option & 1, dropped = option >> 1;
            cf_begin(&c, BT_OP_EMBED_BWD, "%lld x %lld of %lld, beta %d, dropout %d",
                     (long long)rows, (long long)cols, (long long)embed_shapes[s].table, beta,
                     dropped);
            c.p.embed = (bt_embed_params){.scale = 8, .beta = beta, .drop = drop(dropped)};
            for (int64_t r = 0; r < rows; r++) ids[r] = (int64_t)pick_id(embed_shapes[s].table);
            cf_add(&c, BT_EMBED_BWD_DY, rows, cols);
            cf_rowpos(&c, BT_EMBED_BWD_ROWPOS, rows);
            row_plan(&c, ids, rows, embed_shapes[s].table);
            cf_add(&c, BT_EMBED_BWD_DTABLE, embed_shapes[s].table, cols);
            if (!beta) cf_poison(&c, BT_EMBED_BWD_DTABLE);
            cf_bound(&c, BT_EMBED_BWD_DTABLE, (double)rows, 12);
            cf_check(&c);
            cf_reset();
        }
}

/* ---- cross-entropy -----------------------------------------------------------------------------
 */

static const cf_shape loss_shapes[] = {{0, 5},   {1, 1},    {1, 2},     {3, 3},    {2, 63},
                                       {65, 64}, {5, 1003}, {2, 20011}, {1, 40004}};
#define LOSS_SHAPES ((int)(sizeof loss_shapes / sizeof loss_shapes[0]))

static void loss_call(cf_call *c, int64_t rows, int64_t cols, double smoothing, int bias, int grad,
                      double spread) {
    cf_begin(c, BT_OP_CROSS_ENTROPY, "%lld x %lld, smoothing %g, bias %d, gradient %d, spread %g",
             (long long)rows, (long long)cols, smoothing, bias, grad, spread);
    c->p.cross_entropy = (bt_cross_entropy_params){smoothing, 0.25, (uint8_t)grad};
    double *z = cf_add(c, BT_CROSS_ENTROPY_LOGITS, rows, cols);
    for (int64_t k = 0; k < rows * cols; k++)
        z[k] = cf_round(c, BT_CROSS_ENTROPY_LOGITS, spread * z[k]);
    if (bias) cf_add(c, BT_CROSS_ENTROPY_BIAS, 1, cols);
    double *labels = cf_add(c, BT_CROSS_ENTROPY_LABELS, rows, 1);
    for (int64_t r = 0; r < rows; r++) labels[r] = r % 4 == 2 ? -1 : (double)cf_below(cols);
    double scale = rows % 2 ? 1 : 1024;
    if (rows % 2 == 0) {
        double *s = cf_add(c, BT_CROSS_ENTROPY_SCALARS, 1, BT_SCALAR_COUNT);
        for (int k = 0; k < BT_SCALAR_COUNT; k++) s[k] = k == BT_SCALAR_LOSS_SCALE ? scale : NAN;
    }
    cf_add(c, BT_CROSS_ENTROPY_LOSS, rows, 2);
    c->t[BT_CROSS_ENTROPY_LOGITS].any = !grad;
    cf_bound(c, BT_CROSS_ENTROPY_LOGITS, (double)cols, scale * 0.25 * (1 + spread));
    cf_bound(c, BT_CROSS_ENTROPY_LOSS, (double)cols, 2 + 2 * spread);
}

/* One loss over given logits on the device under test: (smoothed, plain) of each row. */
static const double *losses(int64_t rows, int64_t cols, const double *z, const double *labels,
                            double smoothing, const double **grad) {
    static cf_result got;
    cf_call c;
    loss_call(&c, rows, cols, smoothing, 0, 1, 0);
    c.p.cross_entropy.grad_scale = 1;
    for (int64_t k = 0; k < rows * cols; k++)
        c.t[BT_CROSS_ENTROPY_LOGITS].x[k] = cf_round(&c, BT_CROSS_ENTROPY_LOGITS, z ? z[k] : 0);
    memcpy(c.t[BT_CROSS_ENTROPY_LABELS].x, labels, (size_t)rows * sizeof *labels);
    got = cf_run(cf_device(), &c, cf_type, 0, NULL);
    *grad = got.y[BT_CROSS_ENTROPY_LOGITS];
    return got.y[BT_CROSS_ENTROPY_LOSS];
}

/* Values that are known: label smoothing spreads its mass over all symbols. */
static void known_losses(void) {
    double tol = cf_type == BT_F64 ? 1e-6 : cf_type == BT_F32 ? 2e-6 : 0.02;
    const double *grad, *loss;
    /* Two targets of 3 tokens and 1, padded to 3 each: 4 tokens count. */
    const double padded[6] = {1, 2, 3, 4, -1, -1};
    double total = 0;
    loss = losses(6, 5, NULL, padded, 0.1, &grad);
    for (int r = 0; r < 6; r++) total += loss[2 * r];
    kit_near(total, 6.437752, 4 * tol);
    kit_near(total / 4, 1.609438, tol);
    for (int k = 4 * 5; k < 6 * 5; k++) ck_assert_msg(grad[k] == 0, "gradient at a padded place");
    /* Probabilities 1/8, 1/8, 1/8, 1/8, 1/2 with the last symbol right. */
    const double z[5] = {0, 0, 0, 0, 1.38629436111989062}, last[1] = {4};
    loss = losses(1, 5, z, last, 0.1, &grad);
    kit_near(loss[0], 0.804051, tol);
    kit_near(loss[1], 0.693147, tol);
    /* A vocabulary that is no multiple of a block. */
    static const double some[3] = {0, 500, 1002};
    loss = losses(3, 1003, NULL, some, 0, &grad);
    for (int r = 0; r < 3; r++) {
        kit_near(loss[2 * r], 6.910751, cf_type == BT_F64 ? 1e-6 : 4e-6);
        double sum = 0; /* p - q sums to zero when p sums to one */
        for (int k = 0; k < 1003; k++) sum += grad[r * 1003 + k];
        kit_near(sum, 0, cf_type == BT_F64 || cf_type == BT_F32 ? 1e-6 : 0.02);
    }
    cf_reset();
}

void case_cross_entropy(void) {
    cf_call c;
    for (int s = 0; s < LOSS_SHAPES; s++)
        for (int option = 0; option < 16; option++) {
            loss_call(&c, loss_shapes[s].rows, loss_shapes[s].cols, option & 1 ? 0.1 : 0,
                      option >> 1 & 1, option >> 2 & 1, option >> 3 ? 80 : 2);
            cf_check(&c);
            cf_reset();
        }
    known_losses();
}

/* ---- a large table ------------------------------------------------------------------------------
 */

/* Logits are 0 but at each row's label, whose place and value follow from the row. */
static int32_t label_of(int64_t row, int64_t cols) { return (int32_t)((row * 7919 + 5) % cols); }
static float logit_of(int64_t row) { return (float)(row % 23) / 2; }

typedef struct table {
    bt_buf *z, *rows; /* logits; labels, then losses, then scratch */
    int64_t row_count, cols;
} table;

static bt_call table_call(const table *t) {
    bt_call call = {.op = BT_OP_CROSS_ENTROPY, .p.cross_entropy = {0.1, 1, 1}};
    const uint64_t labels = (uint64_t)t->row_count * sizeof(int32_t);
    call.t[BT_CROSS_ENTROPY_LOGITS] = (bt_view){t->z, 0, t->row_count, t->cols, t->cols, BT_F32};
    call.t[BT_CROSS_ENTROPY_LABELS] = (bt_view){t->rows, 0, t->row_count, 1, 1, BT_I32};
    call.t[BT_CROSS_ENTROPY_LOSS] =
        (bt_view){t->rows, (labels + 255) / 256 * 256, t->row_count, 2, 2, BT_F32};
    return call;
}

static void check_gradient(const table *t, int64_t row) {
    bt_dev *dev = cf_device();
    const double a = logit_of(row), sum = (double)(t->cols - 1) + exp(a),
                 rest = 0.1 / (double)t->cols;
    const uint64_t bytes = (uint64_t)t->cols * sizeof(float);
    float *d = malloc(bytes);
    ck_assert_ptr_nonnull(d);
    kit_ok(dev->ops->download(dev, NULL, d, t->z, (uint64_t)row * bytes, bytes));
    kit_ok(dev->ops->sync(dev, NULL));
    for (int64_t k = 0; k < t->cols; k++) {
        const int right = k == label_of(row, t->cols);
        const double p = (right ? exp(a) : 1) / sum, want = p - rest - (right ? 0.9 : 0);
        /* p is as exact as its sum, and nothing of that is lost or won by the difference */
        if (!(fabs(d[k] - want) <= 1e-5 * p + 1e-9))
            ck_abort_msg("%lld x %lld: gradient of %lld at %lld is %.9g, must be %.9g",
                         (long long)t->row_count, (long long)t->cols, (long long)row, (long long)k,
                         d[k], want);
    }
    free(d);
}

static void fill_table(const table *t, int32_t *labels, float *logits) {
    bt_dev *dev = cf_device();
    const uint64_t row_bytes = (uint64_t)t->cols * sizeof(float);
    kit_ok(dev->ops->fill(dev, NULL, t->z, 0, (uint64_t)t->row_count * row_bytes, 0));
    for (int64_t r = 0; r < t->row_count; r++) {
        labels[r] = label_of(r, t->cols);
        logits[r] = logit_of(r);
        kit_ok(dev->ops->upload(dev, NULL, t->z,
                                (uint64_t)r * row_bytes + (uint64_t)labels[r] * sizeof(float),
                                &logits[r], sizeof(float)));
    }
    kit_ok(
        dev->ops->upload(dev, NULL, t->rows, 0, labels, (uint64_t)t->row_count * sizeof *labels));
}

static void check_table(int64_t rows, int64_t cols) {
    bt_dev *dev = cf_device();
    table t = {.row_count = rows, .cols = cols};
    bt_call call = table_call(&t);
    const bt_view *out = &call.t[BT_CROSS_ENTROPY_LOSS];
    const uint64_t loss_bytes = (uint64_t)rows * 2 * sizeof(float);
    int32_t *labels = malloc((uint64_t)rows * sizeof *labels);
    float *logits = malloc((uint64_t)rows * sizeof *logits), *loss = malloc(loss_bytes);
    ck_assert(labels != NULL && logits != NULL && loss != NULL);
    kit_ok(dev->ops->alloc(dev, (uint64_t)(rows * cols) * sizeof(float), &t.z));
    const uint64_t scratch = bti_op_ws_bytes(dev->driver->planning, &dev->info, &call),
                   scratch_at = (out->off + loss_bytes + 255) / 256 * 256;
    kit_ok(dev->ops->alloc(dev, scratch_at + scratch + 4, &t.rows));
    call = table_call(&t);
    const int64_t words = (int64_t)(scratch + 3) / 4;
    if (words > 0) call.ws = (bt_view){t.rows, scratch_at, 1, words, words, BT_F32};
    fill_table(&t, labels, logits);
    kit_ok(bti_op_run(dev, NULL, &call));
    kit_ok(dev->ops->download(dev, NULL, loss, t.rows, out->off, loss_bytes));
    kit_ok(dev->ops->sync(dev, NULL));
    for (int64_t r = 0; r < rows; r++) {
        const double a = logit_of(r), lse = log((double)(cols - 1) + exp(a));
        kit_near(loss[2 * r], lse - (0.9 + 0.1 / (double)cols) * a, 3e-5);
        kit_near(loss[2 * r + 1], lse - a, 3e-5);
    }
    const int64_t beyond = (INT64_C(1) << 31) / cols; /* the row with element 2^31 */
    for (int64_t r = 0; r < rows; r++)
        if (r < 2 || r > rows - 3 || r == rows / 2 || (r >= beyond - 1 && r <= beyond + 1))
            check_gradient(&t, r);
    dev->ops->free(dev, t.z);
    dev->ops->free(dev, t.rows);
    free(labels);
    free(logits);
    free(loss);
}

void large_table(void) {
    static const int64_t rows[] = {8589, 8590, 8600};
    bt_dev_info info;
    bt_dev *dev = cf_device();
    check_table(23, 1003);
    kit_ok(dev->ops->query(dev, &info));
    for (int i = 0; i < 3; i++) {
        const uint64_t bytes = (uint64_t)rows[i] * 250002 * sizeof(float);
        if (strcmp(info.backend, "cuda") != 0 || strstr(info.name, "simulated") != NULL)
            kit_skip("a loss over %lld x 250,002: takes too long but on a GPU", (long long)rows[i]);
        else if (info.free_bytes < bytes + (UINT64_C(512) << 20))
            kit_skip("a loss over %lld x 250,002: of %llu bytes %llu are free", (long long)rows[i],
                     (unsigned long long)bytes, (unsigned long long)info.free_bytes);
        else
            check_table(rows[i], 250002);
    }
}

/* ---- losses of values ---------------------------------------------------------------------------
 */

static void value_loss_call(cf_call *c, int64_t rows, int64_t cols, int option, double spread) {
    int kind = option & 1, grad = option >> 1 & 1, bias = option >> 2 & 1,
        scalars = option >> 3 & 1;
    cf_begin(c, BT_OP_VALUE_LOSS,
             "%lld x %lld, kind %d, gradient %d, bias %d, scalars %d, spread %g", (long long)rows,
             (long long)cols, kind, grad, bias, scalars, spread);
    c->p.value_loss = (bt_value_loss_params){(bt_values)kind, 0.25, (uint8_t)grad};
    double *z = cf_add(c, BT_VALUE_LOSS_Z, rows, cols);
    for (int64_t k = 0; k < rows * cols; k++) z[k] = cf_round(c, BT_VALUE_LOSS_Z, spread * z[k]);
    if (bias) cf_add(c, BT_VALUE_LOSS_BIAS, 1, cols);
    double *t = cf_add(c, BT_VALUE_LOSS_TARGET, rows, cols);
    for (int64_t k = 0; kind == BT_VALUES_BINARY && k < rows * cols; k++) t[k] = k % 3 == 1;
    if (scalars) cf_add(c, BT_VALUE_LOSS_SCALARS, 1, BT_SCALAR_COUNT)[BT_SCALAR_LOSS_SCALE] = 8;
    cf_add(c, BT_VALUE_LOSS_LOSS, rows, 2);
    c->t[BT_VALUE_LOSS_Z].any = !grad;
    cf_bound(c, BT_VALUE_LOSS_Z, 0, 4 * (2 + spread));
    cf_bound(c, BT_VALUE_LOSS_LOSS, (double)cols, (2 + spread) * (2 + spread));
}

void case_value_loss(void) {
    cf_call c;
    for (int s = 0; s < LOSS_SHAPES; s++)
        for (int option = 0; option < 32; option++) {
            value_loss_call(&c, loss_shapes[s].rows, loss_shapes[s].cols, option & 15,
                            option >> 4 ? 80 : 2);
            cf_check(&c);
            cf_reset();
        }
}

/* ---- top-k --------------------------------------------------------------------------------------
 */

static const struct {
    int64_t rows, cols, k;
} topk_shapes[] = {{0, 5, 2},    {1, 1, 1},    {2, 3, 5}, {3, 63, 2},
                   {65, 64, 10}, {4, 1003, 4}, {1, 9, 0}};
#define TOPK_SHAPES ((int)(sizeof topk_shapes / sizeof topk_shapes[0]))

/* Logits are multiples of 1/8, so that sums with the bias are exact in fp32 and ties are ties. */
static void topk_call(cf_call *c, int s, int bias, int forbid) {
    int64_t rows = topk_shapes[s].rows, cols = topk_shapes[s].cols, k = topk_shapes[s].k;
    cf_begin(c, BT_OP_TOPK, "%lld of %lld x %lld, bias %d, forbidden %d", (long long)k,
             (long long)rows, (long long)cols, bias, forbid);
    for (int i = 0; i < BT_TOPK_FORBID; i++)
        c->p.topk.forbid[i] = forbid && i < 3 ? (int32_t)(cols * i / 3) : -1;
    double *z = cf_add(c, BT_TOPK_LOGITS, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        z[i] = cf_round(c, BT_TOPK_LOGITS, (double)cf_below(160) / 8 - 10);
    if (bias) {
        double *b = cf_add(c, BT_TOPK_BIAS, 1, cols);
        for (int64_t i = 0; i < cols; i++) b[i] = (double)cf_below(8) / 8;
    }
    cf_add(c, BT_TOPK_VALUE, rows, k);
    cf_add(c, BT_TOPK_ID, rows, k);
    cf_bound(c, BT_TOPK_VALUE, (double)cols, 20);
}

/* A row that has none spoils itself only, also where the bad value is forbidden. */
static void rows_without_softmax(void) {
    cf_call c;
    topk_call(&c, 4, 0, 1);
    double *z = c.t[BT_TOPK_LOGITS].x;
    z[2 * 64] = z[5 * 64 + 63] = NAN;
    z[7 * 64 + 9] = INFINITY;
    z[11 * 64 + 9] = -INFINITY; /* one that is never chosen */
    for (int i = 0; i < 64; i++) z[9 * 64 + i] = -INFINITY;
    cf_check(&c);
    cf_result got = cf_run(cf_device(), &c, cf_type, 0, NULL);
    for (int r = 0; r < 12; r++) {
        const int none = r == 2 || r == 5 || r == 7 || r == 9;
        for (int k = 10 * r; k < 10 * r + 10; k++)
            ck_assert_msg(none ? isnan(got.y[BT_TOPK_VALUE][k]) && got.y[BT_TOPK_ID][k] == -1
                               : isfinite(got.y[BT_TOPK_VALUE][k]),
                          "row %d: value %g, id %g", r, got.y[BT_TOPK_VALUE][k],
                          got.y[BT_TOPK_ID][k]);
    }
    cf_reset();
}

void case_topk(void) {
    cf_call c;
    for (int s = 0; s < TOPK_SHAPES; s++)
        for (int option = 0; option < 4; option++) {
            topk_call(&c, s, option & 1, option >> 1);
            cf_check(&c);
        }
    rows_without_softmax();
}
