/* bantam evaluate: a model that writes text by a reference, another one by labels. */
#include "core/cli/cli.h"

typedef struct request {
    const char *model, *source, *reference, *labels;
    int json;
    int64_t beam;
    double length_penalty; /* negative: not given */
    bt_translate_options o;
} request;

static int check(const cli_command *self, const request *r) {
    if (r->reference != NULL && r->labels != NULL)
        return cli_usage(self, "--reference and --labels: a model writes text or has labels");
    if (r->reference == NULL && r->labels == NULL)
        return cli_usage(self, "--reference FILE is missing, or --labels FILE where the model "
                               "writes no text");
    if (r->source == NULL && r->o.feature_count == 0)
        return cli_usage(self, "--source FILE is missing");
    if (r->labels != NULL && (r->beam != 0 || r->length_penalty >= 0))
        return cli_usage(self, "%s goes with --reference",
                         r->beam != 0 ? "--beam" : "--length-penalty");
    return CLI_GO_ON;
}

static bt_status by_labels(const request *r, char **text) {
    bt_prediction_scores scores;
    bt_predict_options o = {.device = r->o.device,
                            .memory = r->o.memory,
                            .threads = r->o.threads,
                            .batch = r->o.batch,
                            .features = r->o.features,
                            .feature_count = r->o.feature_count,
                            .source = r->source,
                            .labels = r->labels,
                            .stop = &cli_stop};
    bt_status status = bt_predict(r->model, &o, NULL, NULL, &scores);
    if (status != BT_OK) return status;
    return r->json ? bt_prediction_scores_json(&scores, text)
                   : bt_prediction_scores_text(&scores, text);
}

static bt_status by_reference(request *r, char **text) {
    bt_evaluation evaluation;
    if (r->beam != 0) r->o.beam = cli_int(r->beam);
    if (r->length_penalty >= 0) r->o.length_penalty = r->length_penalty;
    bt_status status = bt_evaluate(r->model, r->source, r->reference, &r->o, &evaluation);
    if (status != BT_OK) return status;
    return r->json ? bt_evaluation_json(&evaluation, text) : bt_evaluation_text(&evaluation, text);
}

static int run(const cli_command *self, int argc, char **argv) {
    request r = {.length_penalty = -1, .o = BT_TRANSLATE_DEFAULTS};
    char *text = NULL;
    cli_list features = {NULL, 0};
    int64_t batch = 0, threads = 0;
    const cli_option options[] = {CLI_SOURCE(&r.source),
                                  CLI_FEATURES(&features),
                                  {"reference", CLI_TEXT, &r.reference, "FILE",
                                   "what the model should write, line by line", 0},
                                  CLI_LABELS(&r.labels, ""),
                                  CLI_BEAM(&r.beam),
                                  CLI_LENGTH_PENALTY(&r.length_penalty),
                                  CLI_BATCH(&batch, "sentences"),
                                  CLI_DEVICE(&r.o.device, ""),
                                  CLI_MEMORY(&r.o.memory),
                                  CLI_THREADS(&threads),
                                  {"json", CLI_FLAG, &r.json, NULL, "as JSON", 0},
                                  {.name = NULL}};
    int code = cli_parse(self, options, &r.model, 1, argc, argv);
    if (code != CLI_GO_ON) return code;
    r.o.batch = cli_int(batch);
    r.o.threads = cli_int(threads);
    r.o.features = features.text;
    r.o.feature_count = features.count;
    r.o.stop = &cli_stop;
    code = check(self, &r);
    if (code != CLI_GO_ON) return code;
    cli_catch_signals();
    bt_status status = r.labels ? by_labels(&r, &text) : by_reference(&r, &text);
    return cli_print(self, status, text);
}

const cli_command cli_evaluate = {
    "evaluate", "MODEL",
    "how good a model is: loss, perplexity, BLEU and chrF of text, or accuracy, F1, square error",
    run,
    "MODEL is a checkpoint or the output folder of a run. One that writes text is compared with a\n"
    "--reference, another one with --labels, as bantam predict --labels does.\n"};
