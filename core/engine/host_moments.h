/* Moments in host memory: they come to the device in pieces, are stepped there by the device's own
 * ops, and go back.
 *
 * Two buckets take turns. While a piece is stepped the next one comes in on a stream of its own,
 * and the one before goes out on another; events order the three. The first two come in while
 * backward still runs: they do not depend on it. A step that is skipped writes back what came. */
#ifndef BANTAM_ENGINE_HOST_MOMENTS_H
#define BANTAM_ENGINE_HOST_MOMENTS_H

#include "core/model/model.h"

typedef struct bti_host_moments {
    bt_dev *dev;
    void *moment[2]; /* pinned; as a region of the device would hold them */
    bt_stream *in, *out;
    bt_event *came[2], *stepped[2], *left[2]; /* of each bucket */
} bti_host_moments;

/* Takes memory for two moments of `bytes`, all zero; both streams and their events. */
bt_status bti_host_moments_new(bt_dev *dev, uint64_t bytes, bti_host_moments **out);
/* Waits for what is under way first. NULL is fine. */
void bti_host_moments_free(bti_host_moments *h);

/* Begins an update: the first two pieces come in. */
bt_status bti_host_moments_begin(bti_host_moments *h, const bti_program *update,
                                 const bti_arena *arena);
/* Runs the program of an update's end with the moments brought in for it. */
bt_status bti_host_moments_run(bti_host_moments *h, bti_program *update, const bti_arena *arena,
                               const bti_run_hooks *hooks);
/* Waits until all moments are back; tells what went wrong on the way. */
bt_status bti_host_moments_wait(bti_host_moments *h);

#endif
