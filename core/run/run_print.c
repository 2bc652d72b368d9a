/* A run file printed: all keys, in the order of the table; and what differs between two. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/run/run_gather.h"

/* ---- values ------------------------------------------------------------------------------------
 */

/* Bytes of the UTF-8 character at s, known to be well-formed, and its code point. */
static int decode(const unsigned char *s, unsigned *code) {
    int n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    *code = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) *code = *code << 6 | (s[i] & 0x3f);
    return n;
}

/* A double-quoted YAML scalar. Escaped is what YAML would not keep: controls, line ends of YAML 1.1
 * and what its reader refuses. */
static char *quote(const char *text) {
    char *out = bti_alloc(strlen(text) * 6 + 3, 1), *to = out;
    if (out == NULL) return NULL;
    *to++ = '"';
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        unsigned code;
        int n = decode(s, &code);
        if (code == '"' || code == '\\') *to++ = '\\';
        if (code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
            code == 0xfeff || code == 0xfffe || code == 0xffff) {
            to += snprintf(to, 7, "\\u%04x", code);
        } else {
            memcpy(to, s, (size_t)n);
            to += n;
        }
        s += n;
    }
    *to++ = '"';
    return out;
}

static char *print_list(char *const *text, size_t count) {
    char *list = bti_strdup("[");
    for (size_t i = 0; i < count && list != NULL; i++) {
        char *one = quote(text[i]);
        char *more = one ? bti_format("%s%s%s", list, i ? ", " : "", one) : NULL;
        bti_free(one);
        bti_free(list);
        list = more;
    }
    char *whole = list ? bti_format("%s]", list) : NULL;
    bti_free(list);
    return whole;
}

/* The shortest text that reads back to the same number. */
static char *print_real(double v) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    return bti_strdup(text);
}

static char *print_choice(const char *names, unsigned v) {
    for (; v > 0; v--) names += strcspn(names, "|") + 1;
    return bti_format("%.*s", (int)strcspn(names, "|"), names);
}

int bti_key_is_absent(const void *base, const bti_key *key) {
    const void *field = (const char *)base + key->offset;
    return (key->type == BTI_KEY_PATH || key->type == BTI_KEY_NAME) &&
           *(char *const *)field == NULL;
}

/* [{name: "image", train: "/x.npy", ...}, ...] */
static char *print_items(const bti_feature_inputs *list) {
    bti_text out = {0};
    char *text;
    bti_text_add(&out, "[");
    for (size_t i = 0; i < list->count; i++) {
        const char *between = i ? ", {" : "{";
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) {
            const bti_key *key = &bti_feature_keys[k];
            if (bti_key_is_absent(&list->item[i], key)) continue;
            char *value = bti_key_print(&list->item[i], key);
            if (value == NULL) out.status = BT_ENOMEM;
            bti_text_add(&out, "%s%s: %s", between, key->path, value ? value : "");
            bti_free(value);
            between = ", ";
        }
        bti_text_add(&out, "}");
    }
    bti_text_add(&out, "]");
    return bti_text_take(&out, &text) == BT_OK ? text : NULL;
}

char *bti_key_print(const void *base, const bti_key *key) {
    const void *field = (const char *)base + key->offset;
    switch (key->type) {
    case BTI_KEY_PATH:
    case BTI_KEY_NAME:
        return quote(*(char *const *)field);
    case BTI_KEY_PATHS:
        if (((const bti_files *)field)->count == 1)
            return quote(((const bti_files *)field)->path[0]);
        return print_list(((const bti_files *)field)->path, ((const bti_files *)field)->count);
    case BTI_KEY_NAMES:
        return print_list(((const bti_names *)field)->name, ((const bti_names *)field)->count);
    case BTI_KEY_INT:
        return bti_format("%lld", (long long)*(const int64_t *)field);
    case BTI_KEY_REAL:
        return print_real(*(const double *)field);
    case BTI_KEY_SEED:
        return bti_format("%llu", (unsigned long long)*(const uint64_t *)field);
    case BTI_KEY_BOOL:
        return bti_strdup(*(const int *)field ? "true" : "false");
    case BTI_KEY_BYTES:
        if (*(const uint64_t *)field == BTI_MEMORY_AUTO) return bti_strdup("auto");
        return bti_format("%llu", (unsigned long long)*(const uint64_t *)field);
    case BTI_KEY_CHOICE:
        return print_choice(key->allowed, *(const unsigned *)field);
    case BTI_KEY_ITEMS:
        return print_items(field);
    }
    return NULL;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* Of the tokeniser's keys those are printed that say it all: the common ones when the sides agree,
 * else the sides'. */
static int is_printed(const char *path, int sides_agree) {
    if (strncmp(path, "tokenizer.", 10) != 0 || strcmp(path, "tokenizer.shared") == 0) return 1;
    return (strchr(path + 10, '.') == NULL) == sides_agree;
}

/* Puts the lines of the groups that `path` opens after the key `before`, then the key itself. */
static void put_key(bti_text *w, const char *before, const char *path, const char *value) {
    int depth = 0;
    const char *word = path;
    for (const char *dot; (dot = strchr(word, '.')) != NULL; word = dot + 1, depth++) {
        size_t n = (size_t)(dot - path) + 1;
        if (strncmp(before, path, n) != 0)
            bti_text_add(w, "%*s%.*s:\n", 2 * depth, "", (int)(dot - word), word);
    }
    bti_text_add(w, "%*s%s: %s\n", 2 * depth, "", word, value);
}

bt_status bti_run_config_print(const bti_run_config *cfg, char **text) {
    bti_text w = {0};
    bti_numbers numbers = bti_numbers_begin();
    int agree = bti_tokenizers_differ(cfg) == NULL;
    const char *before = "";
    for (int i = 0; i < BTI_KEYS && w.status == BT_OK; i++) {
        const bti_key *key = &bti_keys[i];
        if (!is_printed(key->path, agree) || bti_key_is_absent(cfg, key)) continue;
        char *value = bti_key_print(cfg, key);
        if (value != NULL)
            put_key(&w, before, key->path, value);
        else
            w.status = BT_ENOMEM;
        bti_free(value);
        before = key->path;
    }
    bti_numbers_end(numbers);
    return bti_text_take(&w, text);
}

static char *print_or_none(const bti_run_config *cfg, const bti_key *key) {
    return bti_key_is_absent(cfg, key) ? bti_strdup("none") : bti_key_print(cfg, key);
}

bt_status bti_run_config_compare(const bti_run_config *was, const bti_run_config *is,
                                 bti_run_differ_fn each, void *user) {
    bt_status status = BT_OK;
    bti_numbers numbers = bti_numbers_begin();
    for (int i = 0; i < BTI_KEYS && status == BT_OK; i++) {
        char *a = print_or_none(was, &bti_keys[i]), *b = print_or_none(is, &bti_keys[i]);
        if (a == NULL || b == NULL)
            status = BT_ENOMEM;
        else if (strcmp(a, b) != 0)
            each(user, bti_keys[i].path, a, b);
        bti_free(a);
        bti_free(b);
    }
    bti_numbers_end(numbers);
    return status;
}

bt_status bt_run_text(const bt_run *run, char **text) { return bti_run_config_print(run, text); }

static void put_help(bti_text *w, const char *path, const bti_key *key) {
    char what[512];
    bti_key_describe(key, what, sizeof what);
    const char *fallback = key->fallback ? key->fallback : "-";
    int follows = fallback[0] == '=';
    bti_text_add(w, "%-24s %s%-*s %s (%s)\n", path, follows ? "as " : "", follows ? 21 : 24,
                 fallback + follows, key->help, what);
}

bt_status bt_run_keys(char **text) {
    bti_text w = {0};
    bti_numbers numbers = bti_numbers_begin();
    for (int i = 0; i < BTI_KEYS; i++) {
        put_help(&w, bti_keys[i].path, &bti_keys[i]);
        for (int k = 0; k < BTI_FEATURE_KEYS && bti_keys[i].type == BTI_KEY_ITEMS; k++) {
            char path[BTI_PATH_BYTES];
            snprintf(path, sizeof path, "%s.N.%s", bti_keys[i].path, bti_feature_keys[k].path);
            put_help(&w, path, &bti_feature_keys[k]);
        }
    }
    bti_numbers_end(numbers);
    return bti_text_take(&w, text);
}
