/* bantam plan */
#include "core/cli/cli.h"

#include <stdlib.h>

static int run(const cli_command *self, int argc, char **argv) {
    int json = 0;
    const char *file, *device = NULL, *memory = NULL;
    char *text = NULL;
    cli_list sets = {NULL, 0};
    bt_run *config = NULL;
    bt_plan *plan = NULL;
    const cli_option options[] = {
        {"device", CLI_TEXT, &device, "NAME", "auto, cpu, cuda:0, or one that is not here: k80", 0},
        {"memory", CLI_TEXT, &memory, "SIZE", "instead of memory.limit: 11GiB, 8000MB, auto", 0},
        {"set", CLI_LIST, &sets, "KEY=VALUE", "overrides a key of the run file; again for more", 0},
        {"json", CLI_FLAG, &json, NULL, "as JSON", 0},
        {.name = NULL}};
    int code = cli_parse(self, options, &file, 1, argc, argv);
    if (code != CLI_GO_ON) goto done;
    bt_status status = bt_run_load(file, sets.text, sets.count, &config);
    if (status == BT_OK) status = bt_plan_make(config, device, memory, &plan);
    if (status == BT_OK) status = json ? bt_plan_json(plan, &text) : bt_plan_text(plan, &text);
    code = cli_print(self, status, text);
    if (code == CLI_DONE && !bt_plan_fits(plan)) code = CLI_USAGE;
done:
    bt_plan_free(plan);
    bt_run_free(config);
    free(sets.text);
    return code;
}

const cli_command cli_plan = {"plan", "RUN.yaml",
                              "every byte of a run on a device, before anything is allocated", run,
                              "Exit status 2 when the run does not fit. The keys of a run file are "
                              "listed by bantam train --keys.\n"};
