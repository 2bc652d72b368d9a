#include "tests/toy.h"

#include <dirent.h>
#include <zlib.h>

char toy_log[8192];

void toy_keep_log(void *user, bt_log_level level, const char *text) {
    (void)user, (void)level;
    size_t n = strlen(toy_log);
    snprintf(toy_log + n, sizeof toy_log - n, "%s\n", text);
}

int toy_count(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++) n++;
    return n;
}

int toy_entries(const char *dir, const char *part) {
    int n = 0;
    DIR *d = opendir(dir);
    if (d == NULL) return 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

int toy_open_files(void) { return toy_entries("/proc/self/fd", ""); }

void toy_write_gz(const char *path, const char *mode, const void *data, size_t n) {
    gzFile f = gzopen(path, mode);
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(gzwrite(f, data, (unsigned)n), (int)n);
    ck_assert_int_eq(gzclose(f), Z_OK);
}

const char *toy_word(uint32_t i, int side) {
    static const char *const a[] = {"ba", "ke", "li", "mo", "nu", "sa", "te", "ri"};
    static const char *const b[] = {"\xC3\xA4m", "ost", "ieb", "und", "rein", "ok", "ull", "ach"};
    i = i * 2654435761u >> 8;
    return kit_str("%s%s", a[i % 8], side ? b[i / 8 % 8] : a[i / 64 % 8]);
}

char *toy_text(int lines, int side) {
    static const char *words[2][64];
    char *text = malloc((size_t)lines * 100 + 1), *p = text;
    for (uint32_t i = 0; i < 64 && words[side][i] == NULL; i++) words[side][i] = toy_word(i, side);
    uint32_t x = 12345;
    for (int l = 0; l < lines; l++) {
        x = x * 1664525u + 1013904223u;
        for (uint32_t w = 0, n = 1 + (x >> 24) % 9; w < n; w++) {
            x = x * 1664525u + 1013904223u;
            p += sprintf(p, "%s%s", w ? " " : "", words[side][x >> 26]);
        }
        *p++ = '\n';
    }
    *p = 0;
    return text;
}

const char *toy_model(void) {
    static const char *path;
    if (path != NULL) return path;
    const char *dir = kit_tmpdir(), *files[2];
    for (int side = 0; side < 2; side++) {
        char *text = toy_text(300, side);
        files[side] = kit_str("%s/text%d", dir, side);
        kit_write_text(files[side], text);
        free(text);
    }
    const char *model = kit_str("%s/toy.model", dir);
    bti_tokenizer_config cfg = {.model = (char *)(uintptr_t)model, .size = 90};
    kit_ok(bti_tokenizer_train(&cfg, files, 2));
    return path = model;
}

bt_status toy_open(bti_tokenizer_kind kind, const char *path, bti_tokenizer **t) {
    bti_tokenizer_config cfg = {.kind = kind, .model = (char *)(uintptr_t)path};
    return bti_tokenizer_open(&cfg, t);
}

bti_tokenizer *toy_tokenizer(void) {
    bti_tokenizer *t = NULL;
    kit_ok(toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_model(), &t));
    return t;
}

void toy_put(toy_place *p, int side, const void *bytes, size_t n) {
    kit_write(p->path[side], bytes, n);
}

void toy_place_init(toy_place *p, const char *source, const char *target) {
    p->dir = kit_tmpdir();
    p->cache = kit_str("%s/cache", p->dir);
    p->path[0] = (char *)(uintptr_t)kit_str("%s/train.de", p->dir);
    p->path[1] = (char *)(uintptr_t)kit_str("%s/train.en", p->dir);
    if (source) toy_put(p, 0, source, strlen(source));
    if (target) toy_put(p, 1, target, strlen(target));
    p->cfg = (bti_corpus_config){
        .source = {&p->path[0], 1},
        .target = {&p->path[1], 1},
        .max_length = 64,
        .overlong = BTI_OVERLONG_TRUNCATE,
    };
}

bt_status toy_place_open(const toy_place *p, bti_corpus **c) {
    bti_tokenizer *t = toy_tokenizer();
    bt_status s = bti_corpus_open(&p->cfg, t, t, p->cache, c);
    bti_tokenizer_free(t);
    return s;
}

void toy_check_same(const bti_corpus *a, const bti_corpus *b) {
    ck_assert_int_eq(bti_corpus_count(a), bti_corpus_count(b));
    ck_assert_uint_eq(bti_corpus_checksum(a), bti_corpus_checksum(b));
    for (int64_t i = 0; i < bti_corpus_count(a); i++) {
        int64_t n, m;
        const int32_t *x = bti_corpus_source(a, i, &n), *y = bti_corpus_source(b, i, &m);
        ck_assert(n == m && memcmp(x, y, (size_t)n * 4) == 0);
        x = bti_corpus_target(a, i, &n), y = bti_corpus_target(b, i, &m);
        ck_assert(n == m && memcmp(x, y, (size_t)n * 4) == 0);
    }
}

void toy_check_side(const bti_corpus *c, int64_t i, int side, const char *text) {
    bti_tokenizer *t = toy_tokenizer();
    bti_ids want = {0};
    int64_t n;
    const int32_t *ids = side ? bti_corpus_target(c, i, &n) : bti_corpus_source(c, i, &n);
    kit_ok(bti_tokenizer_encode(t, text, strlen(text), &want));
    kit_ok(bti_ids_push(&want, bti_tokenizer_specials(t).end));
    ck_assert_int_eq(n, want.count);
    ck_assert(memcmp(ids, want.id, (size_t)n * 4) == 0);
    bti_ids_free(&want);
    bti_tokenizer_free(t);
}

void toy_add_piece(toy_proto *p, const char *text, float score, int type) {
    size_t n = strlen(text);
    char *s = p->bytes + p->n;
    s[0] = 0x0A, s[1] = (char)(n + 9), s[2] = 0x0A, s[3] = (char)n;
    memcpy(s + 4, text, n);
    s[n + 4] = 0x15;
    memcpy(s + n + 5, &score, 4);
    s[n + 9] = 0x18, s[n + 10] = (char)type;
    p->n += n + 11;
}

void toy_start_model(toy_proto *p, int with_eos) {
    p->n = 0;
    toy_add_piece(p, "<unk>", 0, TOY_UNKNOWN);
    toy_add_piece(p, "<s>", 0, TOY_CONTROL);
    if (with_eos) toy_add_piece(p, "</s>", 0, TOY_CONTROL);
}

const char *toy_save_model(toy_proto *p, const char *dir) {
    static const char tail[] = {0x12, 0x02, 0x18, 0x01, 0x1A, 0x06,
                                0x18, 0x00, 0x20, 0x00, 0x28, 0x01};
    const char *path = kit_str("%s/hand.model", dir);
    memcpy(p->bytes + p->n, tail, sizeof tail);
    kit_write(path, p->bytes, p->n + sizeof tail);
    return path;
}
