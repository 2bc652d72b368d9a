/* bantam train */
#include "core/cli/cli.h"

#include <stdlib.h>
#include <string.h>

static int run(const cli_command *self, int argc, char **argv) {
    const char *file;
    int keys = 0;
    char *text = NULL;
    int64_t threads = 0;
    cli_list sets = {NULL, 0};
    bt_run *config = NULL;
    bt_train_options o = {.stop = &cli_stop, .progress = cli_progress};
    const cli_option options[] = {
        CLI_DEVICE(&o.device, ""),
        CLI_RUN_MEMORY(&o.memory),
        CLI_SET(&sets),
        {"keys", CLI_FLAG, &keys, NULL, "alone: lists the keys of a run file, in place of training",
         0},
        {"resume", CLI_FLAG, &o.resume, NULL, "go on from the newest complete checkpoint", 0},
        {"updates", CLI_INT, &o.updates, "N", "stop after N updates of the whole run", 1},
        CLI_THREADS(&threads),
        {.name = NULL}};
    for (int i = 0; i < argc; i++) keys |= strcmp(argv[i], "--keys") == 0;
    if (keys && argc == 1) {
        bt_status listed = bt_run_keys(&text);
        return cli_print(self, listed, text);
    }
    if (keys && strcmp(argv[0], "--help") != 0 && strcmp(argv[0], "-h") != 0)
        return cli_usage(self, "--keys goes alone");
    int code = cli_parse(self, options, &file, 1, argc, argv);
    if (code != CLI_GO_ON) return code;
    o.threads = cli_int(threads);
    cli_show_log(BT_LOG_INFO);
    cli_catch_signals();
    signal(SIGPIPE, SIG_IGN); /* what shows the progress may end before the run */
    bt_status status = bt_run_load(file, sets.text, sets.count, &config);
    if (status == BT_OK) status = bt_train(config, &o);
    cli_progress_end();
    code = status == BT_OK ? CLI_DONE : cli_fail(self, status);
    bt_run_free(config);
    return code;
}

const cli_command cli_train = {
    "train", "RUN.yaml", "trains the model of a run file", run,
    "\"bantam train --keys\" lists the keys of a run file. SIGINT, SIGTERM "
    "and SIGHUP save a checkpoint\n"
    "and end the run; a second one, unless it is SIGHUP, ends it at once, as is needed while a "
    "tokeniser is\n"
    "trained.\n"};
