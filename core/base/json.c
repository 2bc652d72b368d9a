#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/files.h"
#include "core/base/text.h"

json_t *bti_json_number(double v) { return isfinite(v) ? json_real(v) : json_null(); }

json_t *bti_json_read(const char *text, size_t bytes) {
    bti_numbers numbers = bti_numbers_begin();
    json_t *root = json_loadb(text, bytes, 0, NULL);
    bti_numbers_end(numbers);
    return root;
}

bt_status bti_json_take(json_t *root, size_t flags, char **out) {
    bti_numbers numbers = bti_numbers_begin();
    char *text = root ? json_dumps(root, flags) : NULL;
    bti_numbers_end(numbers);
    char *copy = text ? bti_strdup(text) : NULL;
    json_decref(root);
    free(text);
    if (copy == NULL) return bti_fail(BT_ENOMEM, "no host memory for JSON");
    *out = copy;
    return BT_OK;
}

bt_status bti_json_write(json_t *root, const char *path) {
    char *text = NULL;
    BT_TRY(bti_json_take(root, JSON_INDENT(2), &text));
    bt_status status = bti_file_write(path, text, strlen(text));
    bti_free(text);
    return status;
}
