/* bantam score */
#include "core/cli/cli.h"

static int run(const cli_command *self, int argc, char **argv) {
    int json = 0;
    int64_t word_order = -1;
    const char *files[2];
    char *text = NULL;
    bt_score_options o = {0};
    bt_scores scores;
    const cli_option options[] = {
        {"tokenize", CLI_TEXT, &o.tokenize, "KIND", "for BLEU: 13a (default), none, intl, char, zh",
         0},
        {"lowercase", CLI_FLAG, &o.lowercase, NULL, "compare in lower case", 0},
        {"chrf", CLI_FLAG, &o.chrf, NULL, "chrF as well", 0},
        {"word-order", CLI_INT, &word_order, "N", "chrF with words up to N: 0, or 2 for chrF++", 0},
        {"json", CLI_FLAG, &json, NULL, "as JSON, with chrF", 0},
        {.name = NULL}};
    int go = cli_parse(self, options, files, 2, argc, argv);
    if (go != CLI_GO_ON) return go;
    if (word_order > 2 || word_order == 1)
        return cli_usage(self, "--word-order: %lld is neither 0 nor 2", (long long)word_order);
    if (json || word_order >= 0) o.chrf = 1;
    if (word_order > 0) o.word_order = (int)word_order;
    bt_status status = bt_score_files(files[0], files[1], &o, &scores);
    if (status == BT_OK)
        status = json ? bt_scores_json(&scores, &text) : bt_scores_text(&scores, &text);
    return cli_print(self, status, text);
}

const cli_command cli_score = {"score", "HYPOTHESIS REFERENCE",
                               "BLEU and chrF of a text against a reference, as sacreBLEU computes "
                               "and signs them",
                               run, NULL};
