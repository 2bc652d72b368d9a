#include "tests/kit.h"

#include <ftw.h>
#include <locale.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static struct {
    const char *backend;
    int skips;
    char *owned[262144];
    size_t owned_count;
    const char *folder[65536];
    size_t folder_count;
} kit;

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

int kit_main(const char *name, void (*add)(TCase *tc), int argc, char **argv) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    kit.backend = argc > 1 ? argv[1] : "ref";
    Suite *suite = suite_create(name);
    TCase *tc = tcase_create(name);
    add(tc);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%s%s%s: %d tests, %d failed, %d skipped, %.2f s\n", name, argc > 1 ? "." : "",
           argc > 1 ? argv[1] : "", srunner_ntests_run(runner), failed, kit.skips,
           (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec));
    srunner_free(runner);
    for (size_t i = 0; i < kit.folder_count; i++)
        nftw(kit.folder[i], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    for (size_t i = 0; i < kit.owned_count; i++) free(kit.owned[i]);
    return failed != 0;
}

const char *kit_backend(void) { return kit.backend; }

void kit_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("SKIP: ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    kit.skips++;
}

/* A folder with a locale named comma; NULL: localedef is not there. It warns of all the categories
 * that the locale leaves out. */
static const char *make_comma(void) {
    static const char *made;
    if (made != NULL) return made;
    const char *dir = kit_tmpdir();
    kit_write_text(kit_str("%s/source", dir),
                   "LC_NUMERIC\ndecimal_point \"<U002C>\"\nthousands_sep \"\"\ngrouping -1\n"
                   "END LC_NUMERIC\n");
    (void)!system(
        kit_str("localedef -c -i %s/source -f UTF-8 %s/comma >%s/log 2>&1", dir, dir, dir));
    return made = access(kit_str("%s/comma/LC_NUMERIC", dir), R_OK) == 0 ? dir : NULL;
}

int kit_comma_begin(void) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR", "ps_AF"};
    for (int i = 0; i < 5; i++)
        if (setlocale(LC_NUMERIC, names[i]) != NULL) return 1;
    const char *dir = make_comma();
    if (dir != NULL) setenv("LOCPATH", dir, 1);
    int there = dir != NULL && setlocale(LC_NUMERIC, "comma") != NULL;
    unsetenv("LOCPATH");
    if (!there) kit_skip("no locale with a decimal comma is installed or can be made");
    return there;
}

void kit_comma_end(void) { setlocale(LC_NUMERIC, "C"); }

static const char *own(char *s) {
    if (s == NULL || kit.owned_count == sizeof kit.owned / sizeof kit.owned[0]) abort();
    return kit.owned[kit.owned_count++] = s;
}

const char *kit_str(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    if (vasprintf(&s, fmt, ap) < 0) abort();
    va_end(ap);
    return own(s);
}

const char *kit_tmpdir(void) {
    const char *base = getenv("TMPDIR");
    char *path = NULL;
    if (asprintf(&path, "%s/bantam-test-XXXXXX", base ? base : "/tmp") < 0) abort();
    if (mkdtemp(path) == NULL) abort();
    own(path);
    if (kit.folder_count == sizeof kit.folder / sizeof kit.folder[0]) abort();
    return kit.folder[kit.folder_count++] = path;
}

const char *kit_data(const char *relative) {
    const char *dir = getenv("BANTAM_TESTS");
    return kit_str("%s/%s", dir ? dir : "tests", relative);
}

const char *kit_shared(const char *relative) {
    const char *dir = getenv("BANTAM_SHARED");
    const char *path = kit_str("%s/%s", dir ? dir : "../shared", relative);
    return access(path, R_OK) == 0 ? path : NULL;
}

void kit_write(const char *path, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot write %s", path);
    ck_assert_uint_eq(fwrite(data, 1, bytes, f), bytes);
    ck_assert_int_eq(fclose(f), 0);
}

void kit_write_text(const char *path, const char *text) { kit_write(path, text, strlen(text)); }

char *kit_read(const char *path, size_t *bytes) {
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "cannot read %s", path);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *data = malloc((size_t)n + 1);
    ck_assert_uint_eq(fread(data, 1, (size_t)n, f), (size_t)n);
    fclose(f);
    data[n] = 0;
    if (bytes) *bytes = (size_t)n;
    return data;
}

void kit_tags(const char *text) {
    char open[32][16];
    size_t depth = 0;
    for (const char *s = strchr(text, '<'); s != NULL; s = strchr(s, '<')) {
        const char *end = strchr(s, '>');
        char name[16] = "";
        size_t quotes = 0;
        ck_assert_ptr_nonnull(end);
        if (strncmp(s, "<!DOCTYPE", 9) == 0 || strncmp(s, "<meta", 5) == 0) {
            s = end;
            continue;
        }
        for (const char *c = s; c < end; c++) quotes += *c == '"';
        ck_assert_msg(quotes % 2 == 0, "quotes: %.60s", s);
        ck_assert_int_eq(sscanf(s + 1 + (s[1] == '/'), "%15[a-z0-9A-Z]", name), 1);
        if (s[1] == '/') {
            ck_assert_msg(depth > 0 && strcmp(open[depth - 1], name) == 0, "</%s>", name);
            depth--;
        } else if (end[-1] != '/') {
            ck_assert(depth < 32);
            strcpy(open[depth++], name);
        }
        s = end;
        if (strcmp(name, "script") == 0 && open[depth - (depth > 0)][0] == 's' && s[1] != '<') {
            s = strstr(s, "</script>");
            ck_assert_ptr_nonnull(s);
        }
    }
    ck_assert_int_eq(depth, 0);
}
