#include "core/data/unpack.h"

#include <limits.h>
#include <string.h>

/* zlib asks for its state and its window, 40 KiB together. */
static voidpf take(voidpf opaque, uInt items, uInt size) {
    bti_unpack *u = opaque;
    size_t bytes = ((size_t)items * size + 63) / 64 * 64;
    if (bytes > sizeof u->heap - u->used) return NULL;
    void *p = u->heap + u->used;
    u->used += bytes;
    return p;
}

static void give_back(voidpf opaque, voidpf p) {
    (void)opaque;
    (void)p;
}

bt_status bti_unpack_begin(bti_unpack *u, const void *packed, uint64_t bytes) {
    memset(&u->z, 0, sizeof u->z);
    u->used = 0;
    u->rest = packed;
    u->rest_bytes = bytes;
    u->z.zalloc = take;
    u->z.zfree = give_back;
    u->z.opaque = u;
    if (inflateInit2(&u->z, -MAX_WBITS) != Z_OK)
        return bti_fail(BT_EINTERNAL, "zlib does not start: %s", u->z.msg ? u->z.msg : "no memory");
    return BT_OK;
}

/* zlib counts in 32 bits. */
static void feed(bti_unpack *u) {
    if (u->z.avail_in > 0) return;
    uInt n = u->rest_bytes < UINT_MAX ? (uInt)u->rest_bytes : UINT_MAX;
    u->z.next_in = (Bytef *)(uintptr_t)u->rest;
    u->z.avail_in = n;
    u->rest += n;
    u->rest_bytes -= n;
}

bt_status bti_unpack_read(bti_unpack *u, void *out, size_t bytes) {
    unsigned char *to = out;
    while (bytes > 0) {
        uInt n = bytes < UINT_MAX ? (uInt)bytes : UINT_MAX;
        feed(u);
        u->z.next_out = to;
        u->z.avail_out = n;
        int code = inflate(&u->z, Z_NO_FLUSH);
        size_t got = n - u->z.avail_out;
        to += got;
        bytes -= got;
        if (bytes == 0) break;
        if (code == Z_STREAM_END || (code == Z_BUF_ERROR && got == 0))
            return bti_fail(BT_EINPUT, "the compressed data end too early");
        if (code != Z_OK && code != Z_BUF_ERROR)
            return bti_fail(BT_EINPUT, "the compressed data are damaged: %s",
                            u->z.msg ? u->z.msg : "zlib gives no reason");
    }
    return BT_OK;
}

bt_status bti_unpack_finish(bti_unpack *u) {
    unsigned char more;
    feed(u);
    u->z.next_out = &more;
    u->z.avail_out = 1;
    int code = inflate(&u->z, Z_NO_FLUSH);
    if (code == Z_STREAM_END && u->z.avail_out == 1 && u->z.avail_in == 0 && u->rest_bytes == 0)
        return BT_OK;
    return bti_fail(BT_EINPUT, "the compressed data do not end where they should");
}
