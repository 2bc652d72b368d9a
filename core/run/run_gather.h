/* A run file and its overrides as text, gathered key by key before any value is read: a slot for
 * each key, with the place where it was given. Seen by run_file.c only. */
#ifndef BANTAM_RUN_RUN_GATHER_H
#define BANTAM_RUN_RUN_GATHER_H

#include "core/base/files.h"
#include "core/run/run_keys.h"

/* Where a value was given. */
typedef struct bti_origin {
    const char *name; /* the file, or the text of the override */
    int64_t line;     /* in the file; or one of these */
} bti_origin;
enum { BTI_FROM_SET = 0, BTI_FROM_FILE = -1 }; /* an override; what belongs to no line */

enum { BTI_PATH_BYTES = 256 }; /* of a key's full name */

typedef struct bti_slot {
    bti_origin from; /* name NULL: not given */
    char **text;
    size_t count;
    int is_list;
} bti_slot;

/* An entry of data.features. */
typedef struct bti_gathered_item {
    bti_origin from;
    bti_slot slots[BTI_FEATURE_KEYS];
} bti_gathered_item;

typedef struct bti_gathered {
    const char *name; /* of the file */
    bti_slot slots[BTI_KEYS];
    bti_gathered_item *items; /* empty unless the slot of data.features is a list */
    size_t item_count;
} bti_gathered;

/* Adds the text of a file, then overrides in order. What is no YAML, no key, or given twice is
 * refused. */
bt_status bti_gather_file(bti_gathered *g, const char *text);
bt_status bti_gather_set(bti_gathered *g, const char *set);
void bti_gathered_clear(bti_gathered *g);

const bti_key *bti_features_key(void); /* data.features */

/* The failure of a value: BT_EINPUT "FILE:LINE: text" or BT_EUSAGE "--set KEY=VALUE: text". */
bt_status bti_fail_at(bti_origin at, const char *fmt, ...) BTI_PRINTF(2, 3);

#if defined(__clang_analyzer__) /* as bti_fail: a failure is no success */
#define bti_fail_at(at, ...) ((void)(bti_fail_at)(at, __VA_ARGS__), BT_EINPUT)
#endif

#endif
