/* bantam plan */
#include "core/cli/cli.h"

#include <stdlib.h>
#include <string.h>

/* What the command line asks for. */
typedef struct request {
    int json, sweep, largest_batch;
    const char *lengths, *svg, *html, *plot;
    bt_plan_options plan;
} request;

/* "709:32": source and target tokens of every pair. */
static int read_lengths(const cli_command *self, request *r) {
    char *end = NULL;
    if (r->lengths == NULL) return CLI_GO_ON;
    long long a = strtoll(r->lengths, &end, 10), b = -1;
    if (end != r->lengths && *end == ':' && end[1] >= '0' && end[1] <= '9')
        b = strtoll(end + 1, &end, 10);
    if (a < 0 || a > 65536 || b < 0 || b > 65536 || a + b < 1 || *end != 0)
        return cli_usage(self,
                         "--lengths: \"%s\" is no pair of token counts up to 65536 such as 50:40, "
                         "or 0:40 where features take the place of the source",
                         r->lengths);
    r->plan.source_tokens = a;
    r->plan.target_tokens = b;
    return CLI_GO_ON;
}

static bt_status answer(const request *r, const bt_plan *plan, char **text) {
    bt_status status = BT_OK;
    if (r->svg != NULL) status = bt_plan_svg(plan, r->svg);
    if (status == BT_OK && r->html != NULL) status = bt_plan_html(plan, r->html);
    if (status != BT_OK) return status;
    if (r->largest_batch)
        return r->json ? bt_plan_largest_batch_json(plan, text)
                       : bt_plan_largest_batch_text(plan, text);
    if (r->sweep)
        return r->json ? bt_plan_sweep_json(plan, r->plot, text)
                       : bt_plan_sweep_text(plan, r->plot, text);
    return r->json ? bt_plan_json(plan, text) : bt_plan_text(plan, text);
}

static int run(const cli_command *self, int argc, char **argv) {
    request r = {.json = 0};
    const char *file;
    char *text = NULL;
    cli_list sets = {NULL, 0};
    bt_run *config = NULL;
    bt_plan *plan = NULL;
    const cli_option options[] = {
        CLI_DEVICE(&r.plan.device, "; also one that is not here: k80 ..."),
        CLI_RUN_MEMORY(&r.plan.memory),
        {"lengths", CLI_TEXT, &r.lengths, "SRC:TGT", "reads no text: every pair has so many tokens",
         0},
        CLI_SET(&sets),
        {"json", CLI_FLAG, &r.json, NULL, "as JSON", 0},
        {"svg", CLI_TEXT, &r.svg, "FILE", "draws the memory map", 0},
        {"html", CLI_TEXT, &r.html, "FILE", "the memory map with a table of the largest tensors",
         0},
        {"largest-batch", CLI_FLAG, &r.largest_batch, NULL,
         "the largest training.batch that fits in one micro-batch", 0},
        {"sweep", CLI_FLAG, &r.sweep, NULL, "seconds an update over the budget", 0},
        {"plot", CLI_TEXT, &r.plot, "FILE", "draws the sweep", 0},
        {.name = NULL}};
    int code = cli_parse(self, options, &file, 1, argc, argv);
    if (code == CLI_GO_ON) code = read_lengths(self, &r);
    if (code != CLI_GO_ON) goto done;
    if (r.plot != NULL && !r.sweep) {
        code = cli_usage(self, "--plot goes with --sweep");
        goto done;
    }
    bt_status status = bt_run_load(file, sets.text, sets.count, &config);
    const char *const outputs[][2] = {{"svg", r.svg}, {"html", r.html}, {"plot", r.plot}};
    for (size_t i = 0; i < 3 && status == BT_OK; i++) {
        status = bt_run_check_output(config, outputs[i][1]);
        if (status == BT_EUSAGE) {
            code = cli_usage(self, "--%s: %s", outputs[i][0], bt_last_error());
            goto done;
        }
    }
    if (status == BT_OK) status = bt_plan_make(config, &r.plan, &plan);
    if (status == BT_OK) status = answer(&r, plan, &text);
    code = cli_print(self, status, text);
    if (code == CLI_DONE && !r.sweep && !bt_plan_fits(plan)) code = CLI_USAGE;
done:
    bt_plan_free(plan);
    bt_run_free(config);
    return code;
}

const cli_command cli_plan = {
    "plan", "RUN.yaml", "every byte of a run on a device, before anything is allocated", run,
    "Exit status 2 when the run does not fit. The keys of a run file are listed by bantam train "
    "--keys,\nthe devices that can be planned for by bantam devices. Of a list of devices "
    "(k80,rtx3090) the first\none is taken on which the run fits.\n"};
