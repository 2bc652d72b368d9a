/* JSON in and out, by jansson; numbers have a point, whatever locale the program has set. */
#ifndef BANTAM_BASE_JSON_H
#define BANTAM_BASE_JSON_H

#include <jansson.h>

#include "core/base/status.h"

/* A number; null for NaN and infinity, which JSON does not have. */
json_t *bti_json_number(double v);

/* NULL for what is no JSON. */
json_t *bti_json_read(const char *text, size_t bytes);

/* Both release `root`. One that is NULL could not be made: BT_ENOMEM.
 *
 * As text; `flags` are jansson's. New string. */
bt_status bti_json_take(json_t *root, size_t flags, char **out);
/* Indented, into a file. */
bt_status bti_json_write(json_t *root, const char *path);

#endif
