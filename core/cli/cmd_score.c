/* bantam score */
#include "core/cli/cli.h"

static int run(const cli_command *self, int argc, char **argv) {
    int json = 0;
    const char *files[2];
    char *text = NULL;
    bt_scores scores;
    const cli_option options[] = {{"json", CLI_FLAG, &json, NULL, "as JSON", 0}, {.name = NULL}};
    int go = cli_parse(self, options, files, 2, argc, argv);
    if (go != CLI_GO_ON) return go;
    bt_status status = bt_score_files(files[0], files[1], &scores);
    if (status == BT_OK)
        status = json ? bt_scores_json(&scores, &text) : bt_scores_text(&scores, &text);
    return cli_print(self, status, text);
}

const cli_command cli_score = {"score", "HYPOTHESIS REFERENCE",
                               "BLEU of a text against a reference, as sacreBLEU computes it", run,
                               NULL};
