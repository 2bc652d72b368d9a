#include "tests/feature_parts.h"

#include <zlib.h>

#include "core/base/dtype.h"
#include "core/base/safetensors.h"

/* ---- bytes ------------------------------------------------------------------------------------
 */

void file_put(file_bytes *f, const void *data, size_t bytes) {
    f->at = realloc(f->at, f->count + bytes + 1);
    ck_assert_ptr_nonnull(f->at);
    if (bytes > 0) memcpy(f->at + f->count, data, bytes);
    f->count += bytes;
}

void file_put_number(file_bytes *f, uint64_t v, int bytes) {
    unsigned char b[8];
    for (int i = 0; i < bytes; i++) b[i] = (unsigned char)(v >> 8 * i);
    file_put(f, b, (size_t)bytes);
}

void file_free(file_bytes *f) {
    free(f->at);
    *f = (file_bytes){NULL, 0};
}

const char *feature_dir(void) {
    static const char *dir;
    if (dir == NULL) dir = kit_tmpdir();
    return dir;
}

const char *file_save(file_bytes *f, const char *ending) {
    static int number;
    const char *path = kit_str("%s/f%d%s", feature_dir(), number++, ending);
    kit_write(path, f->at, f->count);
    file_free(f);
    return path;
}

/* ---- .npy -------------------------------------------------------------------------------------
 */

file_bytes npy_raw(int major, const char *descr, const char *fortran, const char *shape,
                   const void *data, size_t bytes) {
    file_bytes f = {NULL, 0};
    const char *text =
        kit_str("{'descr': %s, 'fortran_order': %s, 'shape': %s, }", descr, fortran, shape);
    size_t begin = major == 1 ? 10 : 12, all = (begin + strlen(text) + 1 + 63) / 64 * 64;
    file_put(&f, "\x93NUMPY", 6);
    file_put_number(&f, (uint64_t)major, 2);
    file_put_number(&f, all - begin, major == 1 ? 2 : 4);
    file_put(&f, text, strlen(text));
    while (f.count < all - 1) file_put(&f, " ", 1);
    file_put(&f, "\n", 1);
    file_put(&f, data, bytes);
    return f;
}

file_bytes npy_typed(const char *descr, const char *shape, int n, float first) {
    file_bytes data = {NULL, 0};
    for (int i = 0; i < n; i++) {
        float x = first + (float)i;
        double d = (double)x;
        int64_t whole = (int64_t)x;
        uint16_t half = descr[0] == 'b' ? bti_f32_to_bf16(x) : bti_f32_to_f16(x);
        if (descr[1] == 'i')
            file_put(&data, &whole, 8);
        else if (strcmp(descr, "<f8") == 0)
            file_put(&data, &d, 8);
        else if (strcmp(descr, "<f4") == 0)
            file_put(&data, &x, 4);
        else
            file_put(&data, &half, 2);
    }
    file_bytes f = npy_raw(1, kit_str("'%s'", descr), "False", shape, data.at, data.count);
    file_free(&data);
    return f;
}

file_bytes npy_counting(const char *shape, int n, float first) {
    return npy_typed("<f4", shape, n, first);
}

/* ---- zip ------------------------------------------------------------------------------------- */

static file_bytes deflated(const file_bytes *f) {
    z_stream z = {.next_in = f->at, .avail_in = (uInt)f->count};
    file_bytes out = {NULL, 0};
    unsigned char room[65536];
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_out = room;
    z.avail_out = sizeof room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    file_put(&out, room, sizeof room - z.avail_out);
    deflateEnd(&z);
    return out;
}

/* What an entry's own header and the directory's have in common, from the version on. */
static void put_common(file_bytes *f, const zip *z, uint32_t crc, size_t packed, size_t unpacked,
                       const char *name, int extra) {
    int wide = (z->how & ZIP_WIDE) != 0;
    file_put_number(f, wide ? 45 : 20, 2);
    file_put_number(f, 0, 2); /* flags */
    file_put_number(f, z->how & ZIP_DEFLATED ? 8 : 0, 2);
    file_put_number(f, 0x21, 4); /* time and date */
    file_put_number(f, crc, 4);
    file_put_number(f, wide ? UINT32_MAX : packed, 4);
    file_put_number(f, wide ? UINT32_MAX : unpacked, 4);
    file_put_number(f, strlen(name), 2);
    file_put_number(f, wide ? (uint64_t)extra : 0, 2);
}

static void put_sizes(file_bytes *f, const zip *z, size_t packed, size_t unpacked, size_t at,
                      int extra) {
    if (!(z->how & ZIP_WIDE)) return;
    file_put_number(f, 1, 2);
    file_put_number(f, (uint64_t)extra - 4, 2);
    file_put_number(f, unpacked, 8);
    file_put_number(f, packed, 8);
    if (extra > 20) file_put_number(f, at, 8);
}

void zip_add(zip *z, const char *name, file_bytes *entry) {
    uint32_t crc = (uint32_t)crc32(0, entry->at, (uInt)entry->count);
    file_bytes data = z->how & ZIP_DEFLATED ? deflated(entry) : *entry;
    size_t at = z->bytes.count;
    file_put(&z->bytes, "PK\3\4", 4);
    put_common(&z->bytes, z, crc, data.count, entry->count, name, 20);
    file_put(&z->bytes, name, strlen(name));
    put_sizes(&z->bytes, z, data.count, entry->count, at, 20);
    file_put(&z->bytes, data.at, data.count);
    file_put(&z->directory, "PK\1\2\x14", 6);
    put_common(&z->directory, z, crc, data.count, entry->count, name, 28);
    file_put_number(&z->directory, 0, 2); /* comment */
    file_put_number(&z->directory, 0, 2); /* part */
    file_put_number(&z->directory, 0, 6); /* attributes */
    file_put_number(&z->directory, z->how & ZIP_WIDE ? UINT32_MAX : at, 4);
    file_put(&z->directory, name, strlen(name));
    put_sizes(&z->directory, z, data.count, entry->count, at, 28);
    z->entries++;
    if (data.at != entry->at) file_free(&data);
    file_free(entry);
}

file_bytes zip_finish(zip *z) {
    size_t at = z->bytes.count, length = z->directory.count;
    int wide = (z->how & ZIP_WIDE) != 0;
    file_put(&z->bytes, z->directory.at, length);
    if (wide) {
        size_t end = z->bytes.count;
        file_put(&z->bytes, "PK\6\6", 4);
        file_put_number(&z->bytes, 44, 8);
        file_put_number(&z->bytes, 45 | 45 << 16, 4);
        file_put_number(&z->bytes, 0, 8);
        file_put_number(&z->bytes, (uint64_t)z->entries, 8);
        file_put_number(&z->bytes, (uint64_t)z->entries, 8);
        file_put_number(&z->bytes, length, 8);
        file_put_number(&z->bytes, at, 8);
        file_put(&z->bytes, "PK\6\7", 4);
        file_put_number(&z->bytes, 0, 4);
        file_put_number(&z->bytes, end, 8);
        file_put_number(&z->bytes, 1, 4);
    }
    file_put(&z->bytes, "PK\5\6", 4);
    file_put_number(&z->bytes, 0, 4);
    file_put_number(&z->bytes, wide ? 0xFFFF : (uint64_t)z->entries, 2);
    file_put_number(&z->bytes, wide ? 0xFFFF : (uint64_t)z->entries, 2);
    file_put_number(&z->bytes, wide ? UINT32_MAX : length, 4);
    file_put_number(&z->bytes, wide ? UINT32_MAX : at, 4);
    file_put_number(&z->bytes, 0, 2);
    file_free(&z->directory);
    return z->bytes;
}

/* ---- samples ----------------------------------------------------------------------------------
 */

static const char *sample_zip(int how) {
    zip z = {.how = how};
    for (int i = 5; i >= 0; i--) {
        file_bytes entry = npy_counting("(2, 4)", 8, (float)(8 * i));
        zip_add(&z, kit_str("arr_%d.npy", i), &entry);
    }
    file_bytes f = zip_finish(&z);
    return file_save(&f, ".npz");
}

static const char *sample_safetensors(int each) {
    const char *path = kit_str("%s/sample%d.safetensors", feature_dir(), each);
    bti_st_tensor t[6];
    float x[48];
    bti_st_writer *w;
    for (int i = 0; i < 48; i++) x[i] = (float)i;
    for (int i = 0; i < 6; i++) t[i] = (bti_st_tensor){kit_str("%d", i), BT_F32, 2, {2, 4}};
    if (!each) t[0] = (bti_st_tensor){"x", BT_F32, 3, {6, 2, 4}};
    kit_ok(bti_st_create(path, t, each ? 6 : 1, NULL, 0, &w));
    kit_ok(bti_st_write(w, x, sizeof x));
    kit_ok(bti_st_finish(w));
    return path;
}

static const char *sample_list(void) {
    const char *text = "", *list = kit_str("%s/list.txt", feature_dir());
    for (int i = 0; i < 6; i++) {
        file_bytes f = npy_counting("(2, 4)", 8, (float)(8 * i));
        text = kit_str("%s%s\n", text, strrchr(file_save(&f, ".npy"), '/') + 1);
    }
    kit_write_text(list, text);
    return list;
}

const char *sample_file(int which) {
    file_bytes f;
    switch (which) {
    case 0:
        f = npy_counting("(6, 2, 4)", 48, 0);
        return file_save(&f, ".npy");
    case 1:
        return sample_zip(ZIP_STORED);
    case 2:
        return sample_zip(ZIP_DEFLATED);
    case 3:
        return sample_zip(ZIP_STORED | ZIP_WIDE);
    case 4:
        return sample_zip(ZIP_DEFLATED | ZIP_WIDE);
    case 5:
        return sample_safetensors(0);
    case 6:
        return sample_safetensors(1);
    default:
        return sample_list();
    }
}

/* ---- features ---------------------------------------------------------------------------------
 */

bti_features *open_features(const char *path) {
    bti_features *f = NULL;
    bti_features_spec spec = {
        .name = "image", .files = &path, .file_count = 1, .where = "data.features.0"};
    kit_ok(bti_features_open(&spec, &f));
    return f;
}

void refuse_features(const char *path, const char *part) {
    bti_features *f = NULL;
    bti_features_spec spec = {
        .name = "image", .files = &path, .file_count = 1, .where = "data.features.0"};
    kit_fails(bti_features_open(&spec, &f), BT_EINPUT, part);
    ck_assert_ptr_null(f);
    ck_assert_msg(strstr(bt_last_error(), "feature image: ") != NULL, "%s", bt_last_error());
    ck_assert_msg(strstr(bt_last_error(), path) != NULL, "\"%s\" lacks %s", bt_last_error(), path);
}

void check_counting(const bti_features *f, int64_t i, int64_t rows, float first) {
    size_t n = (size_t)(rows * bti_features_width(f));
    float *x = malloc((n + 1) * sizeof *x);
    ck_assert_int_eq(bti_features_rows(f, i), rows);
    x[n] = -7;
    kit_ok(bti_features_read(f, i, x));
    for (size_t k = 0; k < n; k++)
        ck_assert_msg(x[k] == first + (float)k, "example %d, number %zu is %g", (int)i, k,
                      (double)x[k]);
    ck_assert(x[n] == -7);
    free(x);
}
