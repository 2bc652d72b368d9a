/* State of an engine to and from the host: weights, gradients and moments, however they are kept.
 */
#include <string.h>

#include "core/base/status.h"
#include "core/engine/engine.h"

/* A run of bytes: in the arena, or on the host. */
typedef struct place {
    bt_view view;
    char *host;
} place;

static int is_moment(bti_region region) {
    return region == BTI_REGION_MOMENT1 || region == BTI_REGION_MOMENT2;
}

static place place_at(const bti_engine *e, bti_region region, uint64_t address) {
    if (is_moment(region) && e->host_moments != NULL)
        return (place){.host =
                           (char *)e->host_moments->moment[region - BTI_REGION_MOMENT1] + address};
    return (place){.view = bti_arena_at(&e->arena, region, address)};
}

static bt_status get(bti_engine *e, place p, void *to, uint64_t bytes) {
    if (p.host == NULL)
        return bti_settle(e->dev, NULL,
                          e->dev->ops->download(e->dev, NULL, to, p.view.buf, p.view.off, bytes));
    memcpy(to, p.host, bytes);
    return BT_OK;
}

static bt_status put(bti_engine *e, place p, const void *from, uint64_t bytes) {
    if (p.host == NULL)
        return bti_settle(e->dev, NULL,
                          e->dev->ops->upload(e->dev, NULL, p.view.buf, p.view.off, from, bytes));
    memcpy(p.host, from, bytes);
    return BT_OK;
}

/* A frozen parameter has weights only. */
static bt_status check_region(const bti_engine *e, bti_region region, int32_t param) {
    const bti_param *p = &e->model->params.param[param];
    if (region == BTI_REGION_WEIGHTS || !p->frozen) return BT_OK;
    return bti_fail(BT_EINTERNAL, "%s is frozen: it has weights only", p->name);
}

/* ---- moments in 8 bits -------------------------------------------------------------------------
 */

static int in_8bit(const bti_engine *e, bti_region region) {
    return is_moment(region) && e->plan->places.moments.kind == BTI_MOMENTS_8BIT;
}

/* Where codes or scales lie, and the bytes of one. */
static place part_at(const bti_engine *e, bti_region region, bti_state_part part, int32_t param,
                     int64_t from, uint64_t *size) {
    const bti_params *t = &e->model->params;
    uint64_t at = t->param[param].address;
    *size = part == BTI_CODES ? 1 : bti_dtype_size(bti_dtype_acc(t->dtype));
    at = part == BTI_CODES ? bti_code_address(t, at)
                           : bti_scale_address(&e->plan->places.moments, t, at);
    return place_at(e, region, at + (uint64_t)from * *size);
}

bt_status bti_engine_read_8bit(bti_engine *e, bti_region region, bti_state_part part, int32_t param,
                               int64_t from, int64_t count, void *host) {
    uint64_t size;
    BT_TRY(check_region(e, region, param));
    place p = part_at(e, region, part, param, from, &size);
    return get(e, p, host, (uint64_t)count * size);
}

bt_status bti_engine_write_8bit(bti_engine *e, bti_region region, bti_state_part part,
                                int32_t param, int64_t from, int64_t count, const void *host) {
    uint64_t size;
    BT_TRY(check_region(e, region, param));
    place p = part_at(e, region, part, param, from, &size);
    return put(e, p, host, (uint64_t)count * size);
}

/* Values that are widened or narrowed at a time. */
enum { BLOCKS = 64, PIECE = BLOCKS * BT_ADAMW8_BLOCK };

/* n values from `from` on, as codes and scales and back; at most a piece. */
static bt_status read_piece(bti_engine *e, bti_region region, int32_t param, int64_t from,
                            int64_t n, void *host) {
    uint8_t code[PIECE];
    double scale[BLOCKS];
    BT_TRY(bti_engine_read_8bit(e, region, BTI_CODES, param, from, n, code));
    BT_TRY(bti_engine_read_8bit(e, region, BTI_SCALES, param, from / BT_ADAMW8_BLOCK,
                                bti_moment_blocks(n), scale));
    bti_moment_widen(e->model->params.dtype, region - BTI_REGION_MOMENT1, code, scale, n, host);
    return BT_OK;
}

static bt_status write_piece(bti_engine *e, bti_region region, int32_t param, int64_t from,
                             int64_t n, const void *host) {
    uint8_t code[PIECE];
    double scale[BLOCKS];
    bti_moment_narrow(e->model->params.dtype, region - BTI_REGION_MOMENT1, host, n, code, scale);
    BT_TRY(bti_engine_write_8bit(e, region, BTI_CODES, param, from, n, code));
    return bti_engine_write_8bit(e, region, BTI_SCALES, param, from / BT_ADAMW8_BLOCK,
                                 bti_moment_blocks(n), scale);
}

static int64_t piece_of(int64_t at, int64_t end) { return end - at < PIECE ? end - at : PIECE; }

/* ---- all ---------------------------------------------------------------------------------------
 */

static uint64_t address_of(const bti_engine *e, bti_region region, int32_t param, int64_t from) {
    const bti_param *p = &e->model->params.param[param];
    uint64_t at = region == BTI_REGION_GRADIENTS ? p->grad_address : p->address;
    return at + (uint64_t)from * bti_dtype_size(e->model->params.dtype);
}

bt_status bti_engine_read(bti_engine *e, bti_region region, int32_t param, int64_t from,
                          int64_t count, void *host) {
    uint64_t size = bti_dtype_size(e->model->params.dtype);
    BT_TRY(check_region(e, region, param));
    if (!in_8bit(e, region))
        return get(e, place_at(e, region, address_of(e, region, param, from)), host,
                   (uint64_t)count * size);
    for (int64_t at = from, end = from + count; at < end; at += PIECE)
        BT_TRY(read_piece(e, region, param, at, piece_of(at, end),
                          (char *)host + (uint64_t)(at - from) * size));
    return BT_OK;
}

bt_status bti_engine_write_part(bti_engine *e, bti_region region, int32_t param, int64_t from,
                                int64_t count, const void *host) {
    uint64_t size = bti_dtype_size(e->model->params.dtype);
    BT_TRY(check_region(e, region, param));
    if (!in_8bit(e, region))
        return put(e, place_at(e, region, address_of(e, region, param, from)), host,
                   (uint64_t)count * size);
    for (int64_t at = from, end = from + count; at < end; at += PIECE)
        BT_TRY(write_piece(e, region, param, at, piece_of(at, end),
                           (const char *)host + (uint64_t)(at - from) * size));
    return BT_OK;
}

bt_status bti_engine_write(bti_engine *e, bti_region region, int32_t param, const void *host) {
    const bti_param *p = &e->model->params.param[param];
    int64_t rows = region == BTI_REGION_GRADIENTS ? p->grad_rows : p->rows;
    return bti_engine_write_part(e, region, param, 0, rows * p->cols, host);
}

/* Elements of a piece of first values: the arena is taken already, a table would not fit beside it.
 */
#define INIT_PIECE 65536

bt_status bti_engine_init(bti_engine *e) {
    const bti_params *t = &e->model->params;
    void *values = bti_alloc(INIT_PIECE, bti_dtype_size(t->dtype));
    bt_status status = values == NULL ? BT_ENOMEM : BT_OK;
    for (int32_t i = 0; i < t->count && status == BT_OK; i++) {
        int64_t n, count = t->param[i].rows * t->param[i].cols;
        for (int64_t at = 0; at < count && status == BT_OK; at += n) {
            n = count - at < INIT_PIECE ? count - at : INIT_PIECE;
            bti_params_init(t, i, e->settings.seed, at, n, values);
            status = bti_engine_write_part(e, BTI_REGION_WEIGHTS, i, at, n, values);
        }
    }
    bti_free(values);
    return status;
}
