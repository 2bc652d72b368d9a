/* Stands in for public functions that have no code yet: weak, so that each goes when the real one
 * is linked. */
#include "core/base/status.h"

#define UNFINISHED(call) \
    __attribute__((weak)) bt_status call { return bti_fail(BT_EINTERNAL, "not built yet"); }

/* NOLINTBEGIN */
#pragma GCC diagnostic ignored "-Wunused-parameter"
UNFINISHED(bt_devices_text(char **text))
UNFINISHED(bt_devices_json(char **json))
UNFINISHED(bt_plan_make(const bt_run *run, const char *device, const char *memory, bt_plan **out))
UNFINISHED(bt_plan_text(const bt_plan *plan, char **text))
UNFINISHED(bt_plan_json(const bt_plan *plan, char **json))
UNFINISHED(bt_train(const bt_run *run, const bt_train_options *options))
UNFINISHED(bt_translator_open(const char *model, const bt_translate_options *options,
                              bt_translator **out))
UNFINISHED(bt_translate(bt_translator *translator, const char *const *lines, size_t count,
                        bt_sink_fn take, void *user))
__attribute__((weak)) void bt_plan_free(bt_plan *plan) {}
__attribute__((weak)) int bt_plan_fits(const bt_plan *plan) { return 0; }
__attribute__((weak)) void bt_translator_free(bt_translator *translator) {}
/* NOLINTEND */
