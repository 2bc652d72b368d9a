/* bantam predict */
#include "core/cli/cli.h"

#include <stdio.h>

#include <stdlib.h>

typedef struct output {
    FILE *file;
} output;

static bt_status put_line(void *user, const char *line) {
    const output *o = user;
    return fprintf(o->file, "%s\n", line) < 0 ? BT_EIO : BT_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
    const char *model, *path = NULL;
    int json = 0;
    char *text = NULL;
    bt_predict_options o = {0};
    bt_prediction_scores scores;
    cli_list features = {NULL, 0};
    int64_t batch = 0, threads = 0;
    const cli_option options[] = {
        {"features", CLI_LIST, &features, "NAME=FILE", "examples of a feature; again for more", 0},
        {"source", CLI_TEXT, &o.source, "FILE",
         "text, one example a line, where the model reads it", 0},
        {"labels", CLI_TEXT, &o.labels, "FILE", "what would be right: scores go to standard error",
         0},
        {"output", CLI_TEXT, &path, "FILE", "a line an example; default: standard output", 0},
        {"batch", CLI_INT, &batch, "N", "examples at once, at most", 1},
        {"device", CLI_TEXT, &o.device, "NAME", "auto (default), cpu, cuda:0, opencl:0", 0},
        {"memory", CLI_TEXT, &o.memory, "SIZE", "limit: 11GiB, 8000MB, auto (default)", 0},
        {"threads", CLI_INT, &threads, "N", "threads of the CPU; 0: automatic", 0},
        {"json", CLI_FLAG, &json, NULL, "scores as JSON", 0},
        {.name = NULL}};
    int code = cli_parse(self, options, &model, 1, argc, argv);
    output out = {stdout};
    if (code == CLI_GO_ON && path != NULL && (out.file = fopen(path, "w")) == NULL)
        code = cli_usage(self, "--output: %s cannot be made", path);
    if (code != CLI_GO_ON) return code;
    o.batch = batch < 1 << 20 ? (int)batch : 1 << 20;
    o.threads = threads < 1 << 20 ? (int)threads : 1 << 20;
    o.features = features.text;
    o.feature_count = features.count;
    o.stop = &cli_stop;
    cli_catch_signals();
    bt_status status = bt_predict(model, &o, put_line, &out, &scores);
    if (fflush(out.file) != 0 && status == BT_OK) status = BT_EIO;
    if (path != NULL) fclose(out.file);
    if (status == BT_OK && o.labels != NULL)
        status = json ? bt_prediction_scores_json(&scores, &text)
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
