/* bantam data check */
#include "core/cli/cli.h"

#include <stdlib.h>

static int run_check(const cli_command *self, int argc, char **argv) {
    int json = 0;
    const char *file;
    char *text = NULL;
    cli_list sets = {NULL, 0};
    bt_run *config = NULL;
    const cli_option options[] = {
        CLI_SET(&sets), {"json", CLI_FLAG, &json, NULL, "as JSON", 0}, {.name = NULL}};
    int code = cli_parse(self, options, &file, 1, argc, argv);
    if (code != CLI_GO_ON) return code;
    bt_status status = bt_run_load(file, sets.text, sets.count, &config);
    if (status == BT_OK)
        status = json ? bt_data_check_json(config, &text) : bt_data_check_text(config, &text);
    code = cli_print(self, status, text);
    bt_run_free(config);
    return code;
}

static const cli_command check = {
    "data check", "RUN.yaml",
    "pairs, lengths, what is cut, unknown tokens, longest pairs, training text in the validation "
    "text",
    run_check, NULL};

static int run(const cli_command *self, int argc, char **argv) {
    static const cli_command *const parts[] = {&check, NULL};
    return cli_run_part(self, parts, argc, argv);
}

const cli_command cli_data = {"data", "check RUN.yaml",
                              "what a run's text and tokenisers make of each other", run, NULL};
