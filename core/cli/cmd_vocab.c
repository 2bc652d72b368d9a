/* bantam vocab train | inspect | encode | decode */
#include "core/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* What all parts have. */
#define TOKENIZER_OPTIONS(c) \
    {"tokenizer", CLI_TEXT, &(c).kind, "KIND", "sentencepiece, xlmr, words or spacy", 0}, \
        {"model", CLI_TEXT, &(c).model, "FILE", "the tokeniser's file", 0}, { \
        "vocabulary", CLI_TEXT, &(c).vocabulary, "FILE", \
            "spacy: its word list; FILE.words when not given", 0 \
    }

static int check(const cli_command *self, const bt_vocab_config *c) {
    if (c->kind == NULL) return cli_usage(self, "--tokenizer KIND is missing");
    if (c->model == NULL) return cli_usage(self, "--model FILE is missing");
    return CLI_GO_ON;
}

static int run_train(const cli_command *self, int argc, char **argv) {
    bt_vocab_config c = {.min_count = 1};
    cli_list files = {NULL, 0};
    const cli_option options[] = {
        TOKENIZER_OPTIONS(c),
        {"size", CLI_INT, &c.size, "N", "pieces, or words at most", 1},
        {"min-count", CLI_INT, &c.min_count, "N", "word lists: rarer words are left out", 1},
        {"", CLI_WORDS, &files, NULL, NULL, 0},
        {.name = NULL}};
    int code = cli_parse(self, options, NULL, 0, argc, argv);
    if (code == CLI_GO_ON && files.count == 0)
        code = cli_usage(self, "%s expected", self->arguments);
    if (code == CLI_GO_ON) code = check(self, &c);
    if (code == CLI_GO_ON && c.size == 0) code = cli_usage(self, "--size N is missing");
    if (code != CLI_GO_ON) return code;
    cli_show_log(BT_LOG_INFO);
    bt_status status = bt_vocab_train(&c, files.text, files.count);
    return status == BT_OK ? CLI_DONE : cli_fail(self, status);
}

static int run_inspect(const cli_command *self, int argc, char **argv) {
    bt_vocab_config c = {0};
    bt_vocab *vocab = NULL;
    int json = 0;
    int64_t pieces = 20;
    char *text = NULL;
    const cli_option options[] = {TOKENIZER_OPTIONS(c),
                                  {"pieces", CLI_INT, &pieces, "N", "show the first N (20)", 0},
                                  {"json", CLI_FLAG, &json, NULL, "as JSON", 0},
                                  {.name = NULL}};
    int code = cli_parse(self, options, NULL, 0, argc, argv);
    if (code == CLI_GO_ON) code = check(self, &c);
    if (code != CLI_GO_ON) return code;
    bt_status status = bt_vocab_open(&c, &vocab);
    if (status == BT_OK)
        status = json ? bt_vocab_json(vocab, pieces, &text) : bt_vocab_text(vocab, pieces, &text);
    code = cli_print(self, status, text);
    bt_vocab_free(vocab);
    return code;
}

/* main looks whether all of it was written. */
static bt_status print_line(void *user, const char *line) {
    (void)user;
    return puts(line) >= 0 ? BT_OK : BT_EIO;
}

/* encode and decode: files, or standard input without one. */
static int run_lines(const cli_command *self, int encode, int argc, char **argv) {
    static const char *const standard_input[] = {"-"};
    bt_vocab_config c = {0};
    bt_vocab *vocab = NULL;
    int json = 0;
    cli_list files = {NULL, 0};
    const cli_option last = {.name = NULL};
    const cli_option options[] = {
        TOKENIZER_OPTIONS(c),
        {"", CLI_WORDS, &files, NULL, NULL, 0},
        encode ? (cli_option){"json", CLI_FLAG, &json, NULL,
                              "{\"tokens\": [...], \"ids\": [...]} for each line", 0}
               : last,
        last};
    int code = cli_parse(self, options, NULL, 0, argc, argv);
    if (code == CLI_GO_ON) code = check(self, &c);
    if (code != CLI_GO_ON) return code;
    const char *const *list = files.count ? files.text : standard_input;
    size_t count = files.count ? files.count : 1;
    bt_status status = bt_vocab_open(&c, &vocab);
    if (status == BT_OK)
        status = encode ? bt_vocab_encode(vocab, list, count, json, print_line, NULL)
                        : bt_vocab_decode(vocab, list, count, print_line, NULL);
    /* a failed write is main's to tell */
    code = status == BT_OK || ferror(stdout) ? CLI_DONE : cli_fail(self, status);
    bt_vocab_free(vocab);
    return code;
}

static int run_encode(const cli_command *self, int argc, char **argv) {
    return run_lines(self, 1, argc, argv);
}

static int run_decode(const cli_command *self, int argc, char **argv) {
    return run_lines(self, 0, argc, argv);
}

static const cli_command train = {"vocab train", "FILE...",
                                  "trains a tokeniser on text files and writes its file", run_train,
                                  "xlmr is not trained here; of spacy the word list is.\n"},
                         inspect = {"vocab inspect", "",
                                    "size, special symbols, checksum and first pieces", run_inspect,
                                    NULL},
                         encode = {"vocab encode", "[FILE...]", "lines of text to lines of ids",
                                   run_encode,
                                   "Without a file, or for -, standard input is read.\n"},
                         decode = {"vocab decode", "[FILE...]", "lines of ids to lines of text",
                                   run_decode,
                                   "Without a file, or for -, standard input is read.\n"};

static int run(const cli_command *self, int argc, char **argv) {
    static const cli_command *const parts[] = {&train, &inspect, &encode, &decode, NULL};
    return cli_run_part(self, parts, argc, argv);
}

const cli_command cli_vocab = {"vocab", "PART ...",
                               "train, inspect, encode, decode: tokenisers, text to ids and back",
                               run, NULL};
