/* bantam predict */
#include "core/cli/cli.h"

#include <stdio.h>

static int run(const cli_command *self, int argc, char **argv) {
    const char *model;
    char *text = NULL;
    bt_predict_options o = {0};
    bt_prediction_scores scores;
    cli_list features = {NULL, 0};
    cli_lines lines = {.path = NULL};
    int64_t batch = 0, threads = 0;
    const cli_option options[] = {
        CLI_FEATURES(&features),
        CLI_SOURCE(&o.source),
        CLI_LABELS(&o.labels, "; scores go to standard error"),
        {"output", CLI_TEXT, &lines.path, "FILE", "a line an example; default: standard output", 0},
        CLI_BATCH(&batch, "examples"),
        CLI_DEVICE(&o.device, ""),
        CLI_MEMORY(&o.memory),
        CLI_THREADS(&threads),
        {"json", CLI_FLAG, &o.json, NULL, "lines and scores as JSON", 0},
        {.name = NULL}};
    int code = cli_parse(self, options, &model, 1, argc, argv);
    const char *const inputs[] = {model, o.source, o.labels};
    if (code == CLI_GO_ON)
        code = cli_check_output(self, "output", lines.path, inputs, 3, &features);
    if (code != CLI_GO_ON) return code;
    o.batch = cli_int(batch);
    o.threads = cli_int(threads);
    o.features = features.text;
    o.feature_count = features.count;
    o.stop = &cli_stop;
    cli_catch_signals();
    bt_status status = bt_predict(model, &o, cli_put_line, &lines, &scores);
    status = cli_close_lines(&lines, status);
    if (lines.error != 0 && lines.path != NULL)
        return cli_file_error(self, lines.path, "cannot be written", lines.error);
    if (status == BT_OK && o.labels != NULL)
        status = o.json ? bt_prediction_scores_json(&scores, &text)
                        : bt_prediction_scores_text(&scores, &text);
    code = status == BT_OK ? CLI_DONE : cli_fail(self, status);
    if (text != NULL) fprintf(stderr, "%s\n", text);
    bt_free(text);
    return code;
}

const cli_command cli_predict = {
    "predict", "MODEL", "classes, labels or numbers of examples, by a model without a decoder", run,
    "MODEL is a checkpoint or the output folder of a run. A line holds the class and its "
    "probability; or\nlabel and probability of each label above 1/2; or the numbers.\n"};
