/* bantam evaluate */
#include "core/cli/cli.h"

static int run(const cli_command *self, int argc, char **argv) {
    const char *model, *source = NULL, *reference = NULL;
    int json = 0;
    char *text = NULL;
    bt_translate_options o = BT_TRANSLATE_DEFAULTS;
    bt_evaluation evaluation;
    cli_list features = {NULL, 0};
    int64_t beam = o.beam, batch = o.batch, threads = o.threads;
    const cli_option options[] = {
        {"source", CLI_TEXT, &source, "FILE", "text to translate", 0},
        {"reference", CLI_TEXT, &reference, "FILE", "its translation, line by line", 0},
        {"features", CLI_LIST, &features, "NAME=FILE", "examples of a feature; again for more", 0},
        {"beam", CLI_INT, &beam, "N", "hypotheses kept (4); 1 is greedy search", 1},
        {"length-penalty", CLI_REAL, &o.length_penalty, "X",
         "score = log-probability / length^X (1)", 0},
        {"batch", CLI_INT, &batch, "N", "sentences at once, at most; as many as fit, up to 64", 1},
        {"device", CLI_TEXT, &o.device, "NAME", "auto (default), cpu, cuda:0, opencl:0", 0},
        {"memory", CLI_TEXT, &o.memory, "SIZE", "limit, such as 2GiB; auto", 0},
        {"threads", CLI_INT, &threads, "N", "threads of the CPU; 0: automatic", 0},
        {"json", CLI_FLAG, &json, NULL, "as JSON", 0},
        {.name = NULL}};
    int code = cli_parse(self, options, &model, 1, argc, argv);
    if (code != CLI_GO_ON) return code;
    if (source == NULL && features.count == 0) return cli_usage(self, "--source FILE is missing");
    if (reference == NULL) return cli_usage(self, "--reference FILE is missing");
    o.beam = beam < 1 << 20 ? (int)beam : 1 << 20;
    o.batch = batch < 1 << 20 ? (int)batch : 1 << 20;
    o.threads = threads < 1 << 20 ? (int)threads : 1 << 20;
    o.features = features.text;
    o.feature_count = features.count;
    o.stop = &cli_stop;
    cli_catch_signals();
    bt_status status = bt_evaluate(model, source, reference, &o, &evaluation);
    if (status == BT_OK)
        status =
            json ? bt_evaluation_json(&evaluation, &text) : bt_evaluation_text(&evaluation, &text);
    return cli_print(self, status, text);
}

const cli_command cli_evaluate = {
    "evaluate", "MODEL",
    "loss, perplexity, BLEU and chrF of a model on a text with its translation", run,
    "MODEL is a checkpoint or the output folder of a run.\n"};
