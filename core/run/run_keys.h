/* Keys of the run file as data, and their values as text: made from run_keys.inc, seen by the run
 * file's reader and its tests only. */
#ifndef BANTAM_RUN_RUN_KEYS_H
#define BANTAM_RUN_RUN_KEYS_H

#include "core/run/run_file.h"

/* X(type, type of its field, what a value looks like; "" where `allowed` says it) */
#define BTI_KEY_TYPES(X) \
    X(PATH, char *, "a path") \
    X(PATHS, bti_files, "a path or a list of paths") \
    X(NAMES, bti_names, "a name pattern or a list of them") \
    X(INT, int64_t, "a whole number") \
    X(REAL, double, "a number") \
    X(SEED, uint64_t, "a whole number from 0 to 18446744073709551615") \
    X(BOOL, int, "true or false") \
    X(BYTES, uint64_t, "auto or a size above 0 such as 11GiB, 8000MB or 4294967296") \
    X(CHOICE, unsigned, "") \
    X(NAME, char *, "a name of letters, digits and _") \
    X(ITEMS, bti_feature_inputs, "a list of groups with the keys name, train ...")

typedef enum bti_key_type {
#define X(type, ctype, text) BTI_KEY_##type,
    BTI_KEY_TYPES(X)
#undef X
} bti_key_type;

typedef struct bti_key {
    const char *path;
    bti_key_type type;
    size_t offset; /* of its field in bti_run_config, or in bti_feature_input */
    const char *fallback, *allowed, *help;
} bti_key;

enum {
    BTI_KEYS = 0
#define X(path, type, field, fallback, allowed, help) +1
#include "core/run/run_keys.inc"
#undef X
};

extern const bti_key bti_keys[BTI_KEYS];

enum {
    BTI_FEATURE_KEYS = 0
#define X(path, type, field, fallback, allowed, help) +1
#include "core/run/feature_keys.inc"
#undef X
};

/* The keys of an entry of data.features. */
extern const bti_key bti_feature_keys[BTI_FEATURE_KEYS];

/* Index of a key, or -1. */
int bti_key_find(const char *path);
/* Is it a group: the part of a key before one of its dots ("data.train")? */
int bti_key_is_group(const char *path);
/* What stands directly below a group ("": at the top): "a, b, c"; new string. */
char *bti_key_list(const char *group);
/* Nearest key or group to a wrong one, or the keys below its group: "; did you mean ...?" or
 * "; allowed here: ...". New string. */
char *bti_key_advice(const char *wrong);

/* The functions below that read or print values are called where numbers have a point
 * (bti_numbers_begin). */

/* What a value must be, for people: "a whole number from 1 to 65536". */
void bti_key_describe(const bti_key *key, char *out, size_t bytes);
/* In these, `base` is the bti_run_config or bti_feature_input that has the key's field.
 *
 * Reads text into the key's field, replacing what is there; paths are taken below `dir`. A value
 * that is not allowed is BT_EINPUT, with "VALUE is not DESCRIPTION" as the error. */
bt_status bti_key_set(void *base, const bti_key *key, const char *text, const char *dir);
/* The same for a list. */
bt_status bti_key_set_list(void *base, const bti_key *key, char *const *text, size_t count,
                           const char *dir);
/* The field as a YAML value that reads back to the same; new string. */
char *bti_key_print(const void *base, const bti_key *key);
/* A path that is not given and has no default: the effective file leaves its key out. */
int bti_key_is_absent(const void *base, const bti_key *key);
/* The name of what differs between the two tokenisers; NULL when they are one. */
const char *bti_tokenizers_differ(const bti_run_config *cfg);
/* Frees what the field owns. */
void bti_key_clear(void *base, const bti_key *key);

#endif
