#include "core/engine/host_moments.h"

#include <string.h>

#include "core/base/status.h"

static bt_status take(bti_host_moments *h, uint64_t bytes) {
    const bt_dev_ops *ops = h->dev->ops;
    for (int i = 0; i < 2; i++) {
        BT_TRY(ops->host_alloc(h->dev, bytes, &h->moment[i]));
        memset(h->moment[i], 0, bytes);
        BT_TRY(ops->event_new(h->dev, &h->came[i]));
        BT_TRY(ops->event_new(h->dev, &h->stepped[i]));
        BT_TRY(ops->event_new(h->dev, &h->left[i]));
    }
    BT_TRY(ops->stream_new(h->dev, &h->in));
    return ops->stream_new(h->dev, &h->out);
}

bt_status bti_host_moments_new(bt_dev *dev, uint64_t bytes, bti_host_moments **out) {
    bti_host_moments *h = bti_alloc(1, sizeof *h);
    if (h == NULL) return BT_ENOMEM;
    h->dev = dev;
    bt_status status = take(h, bytes);
    if (status != BT_OK) {
        bti_host_moments_free(h);
        return bti_fail_prefix(status, "moments in host memory, 2 x %llu bytes",
                               (unsigned long long)bytes);
    }
    *out = h;
    return BT_OK;
}

void bti_host_moments_free(bti_host_moments *h) {
    if (h == NULL) return;
    const bt_dev_ops *ops = h->dev->ops;
    bt_stream *stream[2] = {h->in, h->out};
    for (int i = 0; i < 2; i++) {
        if (stream[i] != NULL) ops->sync(h->dev, stream[i]);
    }
    for (int i = 0; i < 2; i++) {
        ops->event_free(h->dev, h->came[i]);
        ops->event_free(h->dev, h->stepped[i]);
        ops->event_free(h->dev, h->left[i]);
        if (stream[i] != NULL) ops->stream_free(h->dev, stream[i]);
        ops->host_free(h->dev, h->moment[i]);
    }
    bti_free(h);
}

/* Both moments of the step's op number `turn` into their buckets, when what was there has left. */
static bt_status bring(bti_host_moments *h, const bti_program *p, const bti_arena *a, int32_t op,
                       int32_t turn) {
    const bt_dev_ops *ops = h->dev->ops;
    bti_piece piece = bti_update_piece(p, op);
    if (turn >= 2) BT_TRY(ops->event_wait(h->dev, h->in, h->left[turn % 2]));
    for (int i = 0; i < 2; i++) {
        bt_view v = bti_arena_view(a, p, piece.moment[i], 0);
        BT_TRY(
            ops->upload(h->dev, h->in, v.buf, v.off, (char *)h->moment[i] + piece.at, piece.bytes));
    }
    return ops->event_record(h->dev, h->in, h->came[turn % 2]);
}

/* And back, when they have been stepped. */
static bt_status send(bti_host_moments *h, const bti_program *p, const bti_arena *a, int32_t op,
                      int32_t turn) {
    const bt_dev_ops *ops = h->dev->ops;
    bti_piece piece = bti_update_piece(p, op);
    BT_TRY(ops->event_wait(h->dev, h->out, h->stepped[turn % 2]));
    for (int i = 0; i < 2; i++) {
        bt_view v = bti_arena_view(a, p, piece.moment[i], 0);
        BT_TRY(ops->download(h->dev, h->out, (char *)h->moment[i] + piece.at, v.buf, v.off,
                             piece.bytes));
    }
    return ops->event_record(h->dev, h->out, h->left[turn % 2]);
}

bt_status bti_host_moments_begin(bti_host_moments *h, const bti_program *update,
                                 const bti_arena *arena) {
    int32_t first = bti_update_first_piece(update);
    BT_TRY(bti_host_moments_wait(h)); /* an update that failed may have left copies behind */
    for (int32_t i = 0; i < 2 && first + i < update->ops; i++)
        BT_TRY(bring(h, update, arena, first + i, i));
    return BT_OK;
}

bt_status bti_host_moments_run(bti_host_moments *h, bti_program *update, const bti_arena *arena,
                               const bti_run_hooks *hooks) {
    const bt_dev_ops *ops = h->dev->ops;
    int32_t first = bti_update_first_piece(update);
    BT_TRY(bti_program_run(update, arena, 0, 0, first, hooks));
    for (int32_t op = first, turn = 0; op < update->ops; op++, turn++) {
        BT_TRY(ops->event_wait(h->dev, NULL, h->came[turn % 2]));
        BT_TRY(bti_program_run(update, arena, 0, op, op + 1, hooks));
        BT_TRY(ops->event_record(h->dev, NULL, h->stepped[turn % 2]));
        BT_TRY(send(h, update, arena, op, turn));
        if (op + 2 < update->ops) BT_TRY(bring(h, update, arena, op + 2, turn + 2));
    }
    return BT_OK;
}

bt_status bti_host_moments_wait(bti_host_moments *h) {
    bt_status in = h->dev->ops->sync(h->dev, h->in);
    if (in != BT_OK) return bti_fail_prefix(in, "moments on their way to the device");
    bt_status out = h->dev->ops->sync(h->dev, h->out);
    return out == BT_OK ? BT_OK : bti_fail_prefix(out, "moments on their way back");
}
