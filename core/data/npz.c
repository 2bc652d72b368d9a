/* numpy's .npz: a zip archive whose entries are .npy files, stored (np.savez) or deflated
 * (np.savez_compressed), with the 64-bit sizes that numpy writes. The directory at the end of the
 * file counts; of an entry's own header only its length is needed, and that the name is the same.
 * Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3 and 4.5. */
#include "core/data/array.h"

#include <inttypes.h>
#include <string.h>

#include "core/data/unpack.h"

enum {
    END = 22,         /* bytes of the end record */
    END64 = 56,       /* of its 64-bit form */
    LOCATOR = 20,     /* of what says where that is */
    CENTRAL = 46,     /* of an entry of the directory, before its name */
    LOCAL = 30,       /* of an entry's own header, before its name */
    HEAD = 66 * 1024, /* most of a .npy header that is unpacked to be looked at */
    COMMENT = 65535   /* longest comment behind the end record */
};

static uint64_t get(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

static int is_at(const unsigned char *p, const char *signature) {
    return memcmp(p, signature, 4) == 0;
}

int bti_is_npz(const void *map, size_t bytes) {
    return bytes >= 4 && (is_at(map, "PK\3\4") || is_at(map, "PK\5\6"));
}

/* ---- the directory --------------------------------------------------------------------------- */

typedef struct archive {
    const unsigned char *map;
    uint64_t bytes;
    uint64_t entries, at, length; /* of the directory */
} archive;

/* The end record's place; bytes when there is none: its comment must reach to the file's end. */
static uint64_t find_end(const archive *z) {
    for (uint64_t back = END; back <= z->bytes && back <= END + COMMENT; back++) {
        const unsigned char *p = z->map + z->bytes - back;
        if (is_at(p, "PK\5\6") && get(p + 20, 2) == back - END) return z->bytes - back;
    }
    return z->bytes;
}

static bt_status read_end64(archive *z, uint64_t end) {
    uint64_t at = get(z->map + end - LOCATOR + 8, 8);
    if (at > z->bytes || z->bytes - at < END64 || !is_at(z->map + at, "PK\6\6"))
        return bti_fail(BT_EINPUT, "damaged archive: no directory for 64-bit sizes");
    z->entries = get(z->map + at + 32, 8);
    z->length = get(z->map + at + 40, 8);
    z->at = get(z->map + at + 48, 8);
    return BT_OK;
}

static bt_status read_end(archive *z) {
    uint64_t end = find_end(z);
    if (end == z->bytes)
        return bti_fail(BT_EINPUT,
                        "cut short, or bytes behind its end: an archive of %" PRIu64
                        " bytes without its directory",
                        z->bytes);
    const unsigned char *p = z->map + end;
    uint64_t part = get(p + 4, 2);
    if (part != 0 && part != 0xFFFF) return bti_fail(BT_EINPUT, "an archive of several parts");
    z->entries = get(p + 10, 2);
    z->length = get(p + 12, 4);
    z->at = get(p + 16, 4);
    if (end >= LOCATOR && is_at(p - LOCATOR, "PK\6\7")) BT_TRY(read_end64(z, end));
    if (z->at > end || z->length > end - z->at || z->entries > z->length / CENTRAL)
        return bti_fail(BT_EINPUT, "damaged archive: its directory lies outside the file");
    return BT_OK;
}

/* ---- an entry -------------------------------------------------------------------------------- */

typedef struct entry {
    const char *name; /* not closed by a NUL */
    size_t name_bytes;
    uint64_t packed, unpacked, header; /* header: place of its own header */
    uint32_t crc;
    int method, flags;
} entry;

/* 64-bit sizes stand in the extra field, for those of the three that are all ones, in order. */
static int read_sizes(const unsigned char *extra, uint64_t bytes, entry *e) {
    uint64_t *const wide[] = {&e->unpacked, &e->packed, &e->header};
    if (e->unpacked != UINT32_MAX && e->packed != UINT32_MAX && e->header != UINT32_MAX) return 1;
    for (uint64_t at = 0; bytes - at >= 4;) {
        uint64_t n = get(extra + at + 2, 2);
        if (n > bytes - at - 4) return 0;
        if (get(extra + at, 2) == 1) {
            uint64_t used = 0;
            for (int i = 0; i < 3; i++) {
                if (*wide[i] != UINT32_MAX) continue;
                if (n - used < 8) return 0;
                *wide[i] = get(extra + at + 4 + used, 8);
                used += 8;
            }
            return 1;
        }
        at += 4 + n;
    }
    return 0;
}

/* Reads the directory's entry at *at, and goes on to the next. */
static bt_status read_entry(const archive *z, uint64_t *at, entry *e) {
    const unsigned char *p = z->map + *at;
    uint64_t room = z->at + z->length - *at;
    if (room < CENTRAL || !is_at(p, "PK\1\2"))
        return bti_fail(BT_EINPUT, "damaged archive: its directory breaks off");
    uint64_t name = get(p + 28, 2), extra = get(p + 30, 2), comment = get(p + 32, 2);
    if (name + extra + comment > room - CENTRAL)
        return bti_fail(BT_EINPUT, "damaged archive: its directory breaks off");
    *e = (entry){.name = (const char *)p + CENTRAL,
                 .name_bytes = (size_t)name,
                 .packed = get(p + 20, 4),
                 .unpacked = get(p + 24, 4),
                 .header = get(p + 42, 4),
                 .crc = (uint32_t)get(p + 16, 4),
                 .method = (int)get(p + 10, 2),
                 .flags = (int)get(p + 8, 2)};
    *at += CENTRAL + name + extra + comment;
    if (!read_sizes(p + CENTRAL + name, extra, e))
        return bti_fail(BT_EINPUT, "damaged archive: an entry lacks its 64-bit sizes");
    return BT_OK;
}

/* Where the entry's bytes begin. */
static bt_status find_data(const archive *z, const entry *e, uint64_t *begin) {
    int inside = e->header <= z->at && z->at - e->header >= LOCAL + e->name_bytes;
    const unsigned char *p = z->map + (inside ? e->header : 0);
    if (!inside || !is_at(p, "PK\3\4") || get(p + 26, 2) != e->name_bytes ||
        memcmp(p + LOCAL, e->name, e->name_bytes) != 0)
        return bti_fail(BT_EINPUT, "damaged archive: no entry where the directory says");
    *begin = e->header + LOCAL + e->name_bytes + get(p + 28, 2);
    if (*begin > z->at || e->packed > z->at - *begin)
        return bti_fail(BT_EINPUT, "damaged archive: an entry that does not end");
    return BT_OK;
}

static bt_status parse_deflated(const void *packed, const entry *e, bti_array *a) {
    bti_unpack u;
    size_t have = e->unpacked < HEAD ? (size_t)e->unpacked : HEAD;
    unsigned char *head = bti_alloc(have, 1);
    if (head == NULL) return BT_ENOMEM;
    bt_status s = bti_unpack_begin(&u, packed, e->packed);
    if (s == BT_OK) s = bti_unpack_read(&u, head, have);
    if (s == BT_OK) s = bti_npy_parse(head, have, e->unpacked, a);
    bti_free(head);
    return s;
}

static bt_status parse_entry(const archive *z, const entry *e, bti_array *a) {
    uint64_t begin = 0;
    if (e->flags & 1) return bti_fail(BT_EINPUT, "encrypted");
    if (e->method != 0 && e->method != 8)
        return bti_fail(BT_EINPUT, "compressed by method %d; np.savez_compressed writes method 8",
                        e->method);
    BT_TRY(find_data(z, e, &begin));
    if (e->method == 0 && e->packed != e->unpacked)
        return bti_fail(BT_EINPUT, "damaged archive: two sizes of a stored entry");
    if (e->method == 0)
        BT_TRY(bti_npy_parse(z->map + begin, (size_t)e->unpacked, e->unpacked, a));
    else
        BT_TRY(parse_deflated(z->map + begin, e, a));
    a->place.entry = begin;
    a->place.packed = e->packed;
    a->place.deflated = e->method == 8;
    a->place.crc = e->crc;
    a->place.has_crc = 1;
    return BT_OK;
}

static bt_status add_entry(const archive *z, const entry *e, bti_arrays *out) {
    size_t n = e->name_bytes;
    bti_array a = {.dims = 0};
    if (memchr(e->name, 0, n) != NULL || n < 4 || memcmp(e->name + n - 4, ".npy", 4) != 0)
        return bti_fail(BT_EINPUT, "entry \"%.*s\" is no array: its name does not end in .npy",
                        (int)(n < 100 ? n : 100), e->name);
    bt_status s = parse_entry(z, e, &a);
    if (s != BT_OK) return bti_fail_prefix(s, "array %.*s", (int)(n - 4), e->name);
    return bti_arrays_add(out, &a, bti_format("%.*s", (int)(n - 4), e->name));
}

bt_status bti_npz_list(const void *map, size_t bytes, bti_arrays *out) {
    archive z = {.map = map, .bytes = bytes};
    BT_TRY(read_end(&z));
    uint64_t at = z.at;
    for (uint64_t i = 0; i < z.entries; i++) {
        entry e;
        BT_TRY(read_entry(&z, &at, &e));
        BT_TRY(add_entry(&z, &e, out));
    }
    if (at != z.at + z.length)
        return bti_fail(BT_EINPUT,
                        "damaged archive: its directory has more than its %" PRIu64 " entries",
                        z.entries);
    return BT_OK;
}
