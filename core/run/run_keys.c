/* Keys of the run file: the table, advice on wrong ones, and values from and to text. One switch
 * over the types for each direction. */
#include "core/run/run_keys.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/files.h"
#include "core/base/text.h"

const bti_key bti_keys[BTI_KEYS] = {
#define X(path, type, field, fallback, allowed, help) \
    {path, BTI_KEY_##type, offsetof(bti_run_config, field), fallback, allowed, help},
#include "core/run/run_keys.inc"
#undef X
};

const bti_key bti_feature_keys[BTI_FEATURE_KEYS] = {
#define X(path, type, field, fallback, allowed, help) \
    {path, BTI_KEY_##type, offsetof(bti_feature_input, field), fallback, allowed, help},
#include "core/run/feature_keys.inc"
#undef X
};

/* Each field has the type that its key's type writes. */
#define X(type, ctype, text) typedef ctype ctype_##type;
BTI_KEY_TYPES(X)
#undef X
#define X(path, type, field, fallback, allowed, help) \
    _Static_assert(sizeof(((bti_run_config *)NULL)->field) == sizeof(ctype_##type), path);
#include "core/run/run_keys.inc"
#undef X
#define X(path, type, field, fallback, allowed, help) \
    _Static_assert(sizeof(((bti_feature_input *)NULL)->field) == sizeof(ctype_##type), path);
#include "core/run/feature_keys.inc"
#undef X

static const char *const type_text[] = {
#define X(type, ctype, text) [BTI_KEY_##type] = text,
    BTI_KEY_TYPES(X)
#undef X
};

/* ---- finding keys ------------------------------------------------------------------------------
 */

int bti_key_find(const char *path) {
    for (int i = 0; i < BTI_KEYS; i++)
        if (strcmp(bti_keys[i].path, path) == 0) return i;
    return -1;
}

int bti_key_is_group(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < BTI_KEYS; i++)
        if (strncmp(bti_keys[i].path, path, n) == 0 && bti_keys[i].path[n] == '.') return 1;
    return 0;
}

enum { WORD = 64 };

/* Edits (insert, delete, replace, swap of neighbours) that make b of a; WORD when too long. */
static int edit_distance(const char *a, size_t an, const char *b, size_t bn) {
    int row[3][WORD];
    if (an >= WORD || bn >= WORD) return WORD;
    for (size_t j = 0; j <= bn; j++) row[0][j] = (int)j;
    for (size_t i = 1; i <= an; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= bn; j++) {
            int best = up[j - 1] + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[an % 3][bn];
}

static const char *last_word(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The key or group nearest to a wrong one: the same last word elsewhere, or few edits away.
 * Returns its length in *bytes; NULL when none is near. */
static const char *nearest(const char *wrong, size_t *bytes) {
    const char *found = NULL;
    int least = 2 + (int)strlen(last_word(wrong)) / 4;
    for (int i = 0; i < BTI_KEYS; i++) {
        const char *path = bti_keys[i].path;
        if (strcasecmp(last_word(path), last_word(wrong)) == 0) {
            *bytes = strlen(path);
            return path;
        }
        for (size_t n = 1; n <= strlen(path); n++) {
            if (path[n] != '.' && path[n] != 0) continue;
            int d = edit_distance(wrong, strlen(wrong), path, n);
            if (d >= least) continue;
            least = d;
            found = path;
            *bytes = n;
        }
    }
    return found;
}

char *bti_key_list(const char *group) {
    char list[1024] = "";
    const char *before = "";
    size_t skip = group[0] ? strlen(group) + 1 : 0;
    for (int i = 0; i < BTI_KEYS; i++) {
        const char *path = bti_keys[i].path;
        if (skip != 0 && (strncmp(path, group, skip - 1) != 0 || path[skip - 1] != '.')) continue;
        size_t n = strcspn(path + skip, "."), used = strlen(list);
        if (strcspn(before, ".") == n && strncmp(path + skip, before, n) == 0) continue;
        snprintf(list + used, sizeof list - used, "%s%.*s", used ? ", " : "", (int)n, path + skip);
        before = path + skip;
    }
    return bti_strdup(list);
}

char *bti_key_advice(const char *wrong) {
    size_t bytes = 0;
    const char *near = nearest(wrong, &bytes);
    if (near != NULL) return bti_format("; did you mean \"%.*s\"?", (int)bytes, near);
    const char *dot = strrchr(wrong, '.');
    char group[WORD] = "";
    if (dot != NULL && (size_t)(dot - wrong) < sizeof group)
        snprintf(group, sizeof group, "%.*s", (int)(dot - wrong), wrong);
    if (!bti_key_is_group(group)) group[0] = 0;
    char *list = bti_key_list(group);
    char *advice = list ? bti_format("; allowed here: %s", list) : NULL;
    bti_free(list);
    return advice;
}

/* ---- values ------------------------------------------------------------------------------------
 */

typedef struct range {
    double low, high;
    int low_open, high_open;
} range;

/* "[1,65536]", "(0,inf)": a round bracket leaves the end out. */
static range get_range(const bti_key *key) {
    char open = '[', close = ']';
    range r = {-HUGE_VAL, HUGE_VAL, 0, 0};
    sscanf(key->allowed, "%c%lf,%lf%c", &open, &r.low, &r.high, &close);
    r.low_open = open == '(';
    r.high_open = close == ')';
    return r;
}

static int in_range(const bti_key *key, double v) {
    range r = get_range(key);
    return (r.low_open ? v > r.low : v >= r.low) && (r.high_open ? v < r.high : v <= r.high);
}

static void describe_choice(const bti_key *key, char *out, size_t bytes) {
    size_t used = (size_t)snprintf(out, bytes, "%s", strchr(key->allowed, '|') ? "one of " : "");
    for (const char *s = key->allowed; *s && used + 3 < bytes; s++) {
        if (*s == '|') out[used++] = ',';
        out[used++] = *s == '|' ? ' ' : *s;
    }
    out[used] = 0;
}

void bti_key_describe(const bti_key *key, char *out, size_t bytes) {
    range r;
    switch (key->type) {
    case BTI_KEY_CHOICE:
        describe_choice(key, out, bytes);
        return;
    case BTI_KEY_INT:
    case BTI_KEY_REAL:
        r = get_range(key);
        if (r.high == HUGE_VAL)
            snprintf(out, bytes, "%s %s %.15g", type_text[key->type],
                     r.low_open ? "above" : "of at least", r.low);
        else
            snprintf(out, bytes, "%s %s %.15g %s %.15g", type_text[key->type],
                     r.low_open ? "above" : "from", r.low, r.high_open ? "to below" : "to", r.high);
        return;
    default:
        snprintf(out, bytes, "%s", type_text[key->type]);
    }
}

static bt_status refuse(const bti_key *key, const char *text) {
    char what[512];
    bti_key_describe(key, what, sizeof what);
    return bti_fail(BT_EINPUT, "\"%s\" is not %s", text, what);
}

static int read_int(const char *text, int64_t *v) {
    char *end;
    if (!isdigit((unsigned char)text[text[0] == '-'])) return 0;
    errno = 0;
    *v = strtoll(text, &end, 10);
    return *end == 0 && errno == 0;
}

static int read_seed(const char *text, uint64_t *v) {
    char *end;
    if (!isdigit((unsigned char)text[0])) return 0;
    errno = 0;
    *v = strtoull(text, &end, 10);
    return *end == 0 && errno == 0;
}

static int read_real(const char *text, double *v) {
    char *end;
    if (text[0] == 0 || text[strspn(text, "0123456789+-.eE")] != 0) return 0;
    *v = strtod(text, &end);
    return *end == 0 && end != text && isfinite(*v);
}

/* Numbers are used in single precision: they must be in range there too, and normal, as devices
 * take smaller ones for 0. */
static bt_status set_real(const bti_key *key, const char *text, double *out) {
    double v;
    if (!read_real(text, &v) || !in_range(key, v)) return refuse(key, text);
    double single = (double)(float)v;
    if (in_range(key, single) && isfinite(single) && (v == 0 || fabs(single) >= FLT_MIN)) {
        *out = v;
        return BT_OK;
    }
    char what[512];
    bti_key_describe(key, what, sizeof what);
    return bti_fail(BT_EINPUT, "\"%s\" becomes %.9g in single precision: give %s that it can hold",
                    text, fabs(single) < FLT_MIN ? 0 : single, what);
}

static int read_bool(const char *text, int *v) {
    *v = strcasecmp(text, "true") == 0;
    return *v || strcasecmp(text, "false") == 0;
}

static int read_choice(const char *names, const char *text, unsigned *v) {
    size_t n = strlen(text);
    *v = 0;
    for (const char *s = names; n != 0; s++, (*v)++) {
        size_t width = strcspn(s, "|");
        if (width == n && strncmp(s, text, n) == 0) return 1;
        s += width;
        if (*s == 0) break;
    }
    return 0;
}

static bt_status full_path(const char *text, const char *dir, char **out) {
    char *path = bti_path_join(dir, text);
    if (path == NULL) return BT_ENOMEM;
    if (bti_utf8_check(path, strlen(path)) != strlen(path)) {
        bti_fail(BT_EINPUT, "the path \"%s\" is not UTF-8", path);
        bti_free(path);
        return BT_EINPUT;
    }
    *out = path;
    return BT_OK;
}

static bt_status name_of(const bti_key *key, const char *text, char **out) {
    if (bti_utf8_check(text, strlen(text)) != strlen(text)) return refuse(key, text);
    *out = bti_strdup(text);
    return *out ? BT_OK : BT_ENOMEM;
}

/* A word that may be part of a parameter's name. */
static int is_name(const char *text) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return text[0] != 0 && strspn(text, letters) == strlen(text);
}

static void free_list(char **list, size_t count) {
    for (size_t i = 0; i < count; i++) bti_free(list[i]);
    bti_free(list);
}

bt_status bti_key_set_list(void *base, const bti_key *key, char *const *text, size_t count,
                           const char *dir) {
    void *field = (char *)base + key->offset;
    if (key->type != BTI_KEY_PATHS && key->type != BTI_KEY_NAMES) return refuse(key, "[...]");
    char **list = bti_alloc(count, sizeof *list);
    if (list == NULL) return BT_ENOMEM;
    bt_status status = BT_OK;
    for (size_t i = 0; i < count && status == BT_OK; i++)
        status = text[i][0] == 0              ? refuse(key, text[i])
                 : key->type == BTI_KEY_PATHS ? full_path(text[i], dir, &list[i])
                                              : name_of(key, text[i], &list[i]);
    if (status != BT_OK) {
        free_list(list, count);
        return status;
    }
    bti_key_clear(base, key);
    if (key->type == BTI_KEY_PATHS)
        *(bti_files *)field = (bti_files){list, count};
    else
        *(bti_names *)field = (bti_names){list, count};
    return BT_OK;
}

bt_status bti_key_set(void *base, const bti_key *key, const char *text, const char *dir) {
    void *field = (char *)base + key->offset;
    char *path, *one[1] = {(char *)text};
    int64_t whole;
    switch (key->type) {
    case BTI_KEY_PATH:
        if (text[0] == 0) return refuse(key, text);
        BT_TRY(full_path(text, dir, &path));
        bti_key_clear(base, key);
        *(char **)field = path;
        return BT_OK;
    case BTI_KEY_NAME:
        if (!is_name(text)) return refuse(key, text);
        bti_key_clear(base, key);
        return (*(char **)field = bti_strdup(text)) != NULL ? BT_OK : BT_ENOMEM;
    case BTI_KEY_PATHS:
        return bti_key_set_list(base, key, one, 1, dir);
    case BTI_KEY_NAMES:
        return bti_key_set_list(base, key, one, strcmp(text, "[]") != 0, dir);
    case BTI_KEY_INT:
        if (!read_int(text, &whole) || !in_range(key, (double)whole)) return refuse(key, text);
        *(int64_t *)field = whole;
        return BT_OK;
    case BTI_KEY_REAL:
        return set_real(key, text, field);
    case BTI_KEY_SEED:
        return read_seed(text, field) ? BT_OK : refuse(key, text);
    case BTI_KEY_BOOL:
        return read_bool(text, field) ? BT_OK : refuse(key, text);
    case BTI_KEY_BYTES:
        return bti_parse_bytes(text, field) == BT_OK ? BT_OK : refuse(key, text);
    case BTI_KEY_CHOICE:
        return read_choice(key->allowed, text, field) ? BT_OK : refuse(key, text);
    case BTI_KEY_ITEMS: /* its entries have keys of their own */
        return strcmp(text, "[]") == 0 ? BT_OK : refuse(key, text);
    }
    return bti_fail(BT_EINTERNAL, "key %s has no type", key->path);
}

void bti_key_clear(void *base, const bti_key *key) {
    void *field = (char *)base + key->offset;
    if (key->type == BTI_KEY_PATH || key->type == BTI_KEY_NAME) {
        bti_free(*(char **)field);
        *(char **)field = NULL;
    } else if (key->type == BTI_KEY_PATHS) {
        bti_files *files = field;
        free_list(files->path, files->count);
        *files = (bti_files){NULL, 0};
    } else if (key->type == BTI_KEY_NAMES) {
        bti_names *names = field;
        free_list(names->name, names->count);
        *names = (bti_names){NULL, 0};
    } else if (key->type == BTI_KEY_ITEMS) {
        bti_feature_inputs *list = field;
        for (size_t i = 0; i < list->count; i++)
            for (int k = 0; k < BTI_FEATURE_KEYS; k++)
                bti_key_clear(&list->item[i], &bti_feature_keys[k]);
        bti_free(list->item);
        *list = (bti_feature_inputs){NULL, 0};
    }
}

/* ---- sizes in bytes ----------------------------------------------------------------------------
 */

/* Unit letter and "iB", "B" or nothing; K, M, G, T alone are binary, as in most tools. 0: wrong. */
static double unit_bytes(const char *unit) {
    static const char letters[] = "KMGT";
    if (unit[0] == 0 || strcasecmp(unit, "B") == 0) return 1;
    const char *at = strchr(letters, toupper((unsigned char)unit[0]));
    if (at == NULL) return 0;
    int power = (int)(at - letters) + 1;
    if (unit[1] == 0 || strcasecmp(unit + 1, "iB") == 0) return pow(1024, power);
    return strcasecmp(unit + 1, "B") == 0 ? pow(1000, power) : 0;
}

bt_status bti_parse_bytes(const char *text, uint64_t *bytes) {
    size_t digits = strspn(text, "0123456789."), unit = digits;
    char number[WORD];
    double v;
    if (strcmp(text, "auto") == 0) {
        *bytes = BTI_MEMORY_AUTO;
        return BT_OK;
    }
    unit += strspn(text + digits, " ");
    snprintf(number, sizeof number, "%.*s", (int)(digits < WORD ? digits : 0), text);
    uint64_t whole;
    double scale = unit_bytes(text + unit);
    bti_numbers c = bti_numbers_begin();
    int known = read_real(number, &v);
    bti_numbers_end(c);
    known = known && scale > 0 && v * scale >= 1 && v * scale < 0x1p63;
    if (!known)
        return bti_fail(BT_EUSAGE, "memory: \"%s\" is not %s", text, type_text[BTI_KEY_BYTES]);
    /* whole numbers of bytes above 2^53 stay exact */
    *bytes = scale == 1 && read_seed(number, &whole) ? whole : (uint64_t)(v * scale);
    return BT_OK;
}
