/* Raw deflate data unpacked piece by piece, without a heap request: zlib's state lies in the
 * caller's frame (64 KiB). */
#ifndef BANTAM_DATA_UNPACK_H
#define BANTAM_DATA_UNPACK_H

#include <zlib.h>

#include "core/base/status.h"

typedef struct bti_unpack {
    z_stream z;
    const unsigned char *rest; /* packed bytes that zlib has not seen */
    uint64_t rest_bytes;
    size_t used; /* of heap */
    _Alignas(64) unsigned char heap[64 * 1024];
} bti_unpack;

bt_status bti_unpack_begin(bti_unpack *u, const void *packed, uint64_t bytes);
/* The next `bytes` bytes, or BT_EINPUT where the data end before or are damaged. */
bt_status bti_unpack_read(bti_unpack *u, void *out, size_t bytes);
/* Nothing is left: BT_EINPUT when there is more. */
bt_status bti_unpack_finish(bti_unpack *u);

#endif
