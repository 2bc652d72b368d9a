/* Where the user keeps what the library measures: with the modules the only environment it reads.
 */
#include <stdlib.h>

#include "backends/registry.h"
#include "core/base/status.h"

const char *bti_user_rates(void) {
    const char *path = getenv("BANTAM_RATES");
    return path != NULL && path[0] != 0 ? path : NULL;
}

char *bti_user_cache(const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache != NULL && cache[0] == '/') return bti_format("%s/bantam/%s", cache, name);
    if (home == NULL || home[0] != '/') return NULL;
    return bti_format("%s/.cache/bantam/%s", home, name);
}
