/* bantam devices */
#include "core/cli/cli.h"

static int run(const cli_command *self, int argc, char **argv) {
    int json = 0;
    char *text = NULL;
    const cli_option options[] = {{"json", CLI_FLAG, &json, NULL, "as JSON", 0}, {.name = NULL}};
    int go = cli_parse(self, options, NULL, 0, argc, argv);
    if (go != CLI_GO_ON) return go;
    bt_status status = json ? bt_devices_json(&text) : bt_devices_text(&text);
    return cli_print(self, status, text);
}

const cli_command cli_devices = {
    "devices", "", "lists backends and devices, with the reason where one cannot be used", run,
    NULL};
