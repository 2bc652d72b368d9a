/* The run file: every key from file and --set, printing. What is refused: run_file_faults.c. */
#include "tests/run_file_parts.h"

#include <unistd.h>

#include "core/base/files.h"
#include "core/run/run_keys.h"

bti_run_config *parse(const char *text, const char *set) {
    bti_run_config *cfg = NULL;
    kit_ok(bti_run_config_parse("/dir/run.yaml", text, &set, set != NULL, &cfg));
    return cfg;
}

void refused(const char *text, const char *part) {
    bti_run_config *cfg = NULL;
    kit_fails(bti_run_config_parse("/dir/run.yaml", text, NULL, 0, &cfg), BT_EINPUT, part);
    ck_assert_ptr_null(cfg);
}

void set_refused(const char *set, const char *part) {
    bti_run_config *cfg = NULL;
    kit_fails(bti_run_config_parse("/dir/run.yaml", LEAST, &set, 1, &cfg), BT_EUSAGE, part);
    ck_assert_msg(strstr(bt_last_error(), set) != NULL, "\"%s\" lacks the override",
                  bt_last_error());
    ck_assert_ptr_null(cfg);
}

START_TEST(defaults) {
    bti_run_config *c = parse(LEAST, NULL);
    ck_assert_str_eq(c->path, "/dir/run.yaml");
    ck_assert_str_eq(c->output, "/dir/out");
    ck_assert_str_eq(c->data.cache, "/dir/out/cache");
    ck_assert_uint_eq(c->data.train_source.count, 1);
    ck_assert_str_eq(c->data.train_source.path[0], "/dir/a.de");
    ck_assert_str_eq(c->data.train_target.path[0], "/dir/a.en");
    ck_assert_uint_eq(c->data.valid_source.count + c->data.valid_target.count, 0);
    ck_assert(c->data.max_length == 256 && c->data.overlong == BTI_OVERLONG_TRUNCATE);
    for (int side = 0; side < 2; side++) {
        ck_assert_str_eq(c->tokenizer[side].model, "/dir/spm.model");
        ck_assert(c->tokenizer[side].kind == BTI_TOKENIZER_SENTENCEPIECE);
        ck_assert(c->tokenizer[side].size == 0);
    }
    ck_assert_ptr_ne(c->tokenizer[0].model, c->tokenizer[1].model);
    ck_assert(c->shared == 1);
    ck_assert(c->model.d_model == 512 && c->model.ff == 2048 && c->model.heads == 8);
    ck_assert(c->model.encoder_layers == 6 && c->model.decoder_layers == 6);
    ck_assert(c->model.norm == BTI_NORM_POST && c->model.activation == BTI_ACTIVATION_RELU);
    ck_assert(c->model.tie == BTI_TIE_ALL && c->model.final_norm == 1);
    ck_assert(c->model.dropout == 0.1 && c->model.attention_dropout == 0.1 &&
              c->model.activation_dropout == 0.1 && c->model.embedding_dropout == 0.1);
    ck_assert(c->model.norm_eps == 1e-5);
    ck_assert(c->training.batch == 128 && c->training.batch_unit == BTI_BATCH_SENTENCES);
    ck_assert(c->training.updates == 100000 && c->training.epochs == 0 && c->training.seed == 1);
    ck_assert(c->training.label_smoothing == 0.1 && c->training.clip_norm == 1);
    ck_assert(c->optimizer.kind == BTI_OPTIMIZER_ADAM && c->optimizer.lr == 0.0007);
    ck_assert(c->optimizer.beta1 == 0.9 && c->optimizer.beta2 == 0.98 && c->optimizer.eps == 1e-9);
    ck_assert(c->optimizer.weight_decay == 0);
    ck_assert(c->schedule.kind == BTI_SCHEDULE_INVERSE_SQRT && c->schedule.warmup == 4000);
    ck_assert(c->validation.every == 1000 && c->validation.beam == 4 &&
              c->validation.patience == 10 && c->validation.metric == BTI_METRIC_BLEU);
    ck_assert(c->model.positions == BTI_POSITIONS_SINUSOID && c->model.position_rows == 256);
    ck_assert(c->initial_model == NULL && c->initial_partial == 0 && c->freeze.count == 0);
    ck_assert(c->checkpoint.every == 1000 && c->checkpoint.keep == 3);
    ck_assert(c->memory.limit == BTI_MEMORY_AUTO && c->memory.recompute == BTI_RECOMPUTE_AUTO);
    bti_run_config_free(c);
}
END_TEST

/* A value of the key that is not its default, in YAML; NULL when there is none. */
static const char *other_value(const bti_key *key) {
    double low;
    switch (key->type) {
    case BTI_KEY_PATH:
        return "\"/some where/else: x\"";
    case BTI_KEY_PATHS:
        return "/some/text";
    case BTI_KEY_NAMES:
        return "[\"*.layers.[01].*\", src_embed.weight]";
    case BTI_KEY_INT: /* one that every other key can live with */
        return strcmp(key->path, "model.d_model") == 0 ? "1024" : "16";
    case BTI_KEY_REAL:
        ck_assert_int_eq(sscanf(key->allowed + 1, "%lf", &low), 1);
        return kit_str("%.17g", low + 1 / 3.0);
    case BTI_KEY_SEED:
        return "18446744073709551615";
    case BTI_KEY_BOOL:
        return strcmp(key->fallback, "true") == 0 ? "false" : "true";
    case BTI_KEY_BYTES:
        return "12345678901";
    case BTI_KEY_CHOICE:
        return strchr(key->allowed, '|') ? strrchr(key->allowed, '|') + 1 : NULL;
    case BTI_KEY_NAME:
        return "word";
    case BTI_KEY_ITEMS:
        return "[{name: image, train: /a.npy, valid: [/b.npy, /c.npz], width: 7}, "
               "{name: t5, train: [/d.safetensors], valid: /e.txt, max_rows: 512}]";
    }
    return NULL;
}

/* A whole run file with only this key in its group, in flow style. */
static const char *nested(const char *path, const char *value) {
    const char *text = kit_str("%s: %s", strrchr(path, '.') ? strrchr(path, '.') + 1 : path, value);
    char *rest = strdup(path);
    for (char *dot; (dot = strrchr(rest, '.')) != NULL;) {
        *dot = 0;
        const char *word = strrchr(rest, '.') ? strrchr(rest, '.') + 1 : rest;
        text = kit_str("%s: {%s}", word, text);
    }
    free(rest);
    return text;
}

/* Sets the key over the least run file and gives the printed result; the overrides make the rest
 * of what the key needs. */
static char *print_with(const char *path, const char *value, int in_file) {
    const char *sets[] = {"output=out",
                          "data.train.source=a.de",
                          "data.train.target=a.en",
                          "tokenizer.model=spm.model",
                          "model.tie_embeddings=none",
                          "data.valid.source=v.de",
                          "data.valid.target=v.en",
                          "data.labels.train=l",
                          "data.labels.valid=l.npy",
                          NULL};
    size_t count = 0;
    for (; sets[count] != NULL; count++)
        if (strcmp(path, "") != 0 && strncmp(sets[count], path, strlen(path)) == 0 &&
            sets[count][strlen(path)] == '=')
            sets[count] = sets[0]; /* harmless, unless it is the key itself */
    if (strcmp(path, "output") == 0) sets[0] = "data.train.source=a.de";
    if (!in_file && path[0] != 0) {
        char *bare = strdup(value);
        if (bare[0] == '"') memmove(bare, bare + 1, strlen(bare)), bare[strlen(bare) - 1] = 0;
        sets[count++] = kit_str("%s=%s", path, bare);
        free(bare);
    }
    bti_run_config *cfg = NULL;
    char *text = NULL;
    kit_ok(bti_run_config_parse("/dir/run.yaml", in_file ? nested(path, value) : "", sets, count,
                                &cfg));
    kit_ok(bti_run_config_print(cfg, &text));
    bti_run_config_free(cfg);
    return text;
}

/* print -> parse -> print is a fixed point, and the reader sees the same values. */
void check_fixed_point(const char *text) {
    bti_run_config *cfg = NULL;
    char *again = NULL;
    kit_ok(bti_run_config_parse("/elsewhere/effective.yaml", text, NULL, 0, &cfg));
    kit_ok(bti_run_config_print(cfg, &again));
    ck_assert_str_eq(again, text);
    bti_run_config_free(cfg);
    bt_free(again);
}

/* Each key from the file and from --set: both change the printed file, in the same way. */
START_TEST(every_key) {
    const bti_key *key = &bti_keys[_i];
    const char *value = other_value(key);
    if (value == NULL) return;
    char *plain = print_with("", "", 0);
    char *set = print_with(key->path, value, 0);
    char *file = print_with(key->path, value, 1);
    /* a value of the sides' common default is what it was when it names the same file */
    ck_assert_msg(strcmp(plain, set) != 0, "--set %s=%s changes nothing", key->path, value);
    ck_assert_str_eq(set, file);
    check_fixed_point(set);
    bt_free(plain);
    bt_free(set);
    bt_free(file);
}
END_TEST

/* Each key refuses nonsense with file, line, key and what is allowed. */
START_TEST(every_key_refuses) {
    const bti_key *key = &bti_keys[_i];
    char what[512];
    bti_key_describe(key, what, sizeof what);
    ck_assert_msg(what[0] != 0 && key->help[0] != 0, "%s is not described", key->path);
    int path =
        key->type == BTI_KEY_PATH || key->type == BTI_KEY_PATHS || key->type == BTI_KEY_NAMES;
    const char *bad = path ? "" : "?";
    refused(kit_str("\n\n%s\n", nested(key->path, kit_str("\"%s\"", bad))),
            kit_str("/dir/run.yaml:3: %s: \"%s\" is not %s", key->path, bad, what));
    set_refused(kit_str("%s=%s", key->path, bad), what);
    refused(kit_str("\n%s\n", nested(key->path, "{a: b}")),
            kit_str("/dir/run.yaml:2: %s must be", key->path));
    refused(kit_str("\n%s\n", nested(key->path, "~")),
            kit_str("/dir/run.yaml:2: %s has no value", key->path));
    if (key->type == BTI_KEY_PATHS || key->type == BTI_KEY_NAMES) return;
    refused(kit_str("\n%s\n", nested(key->path, "[a, b]")),
            kit_str("/dir/run.yaml:2: %s", key->path));
}
END_TEST

START_TEST(sets_in_order) {
    const char *sets[] = {"model.heads=4",
                          "training.batch=64",
                          "model.heads=16",
                          "output=a=b c",
                          "data.valid.source=[v1, v2]",
                          "data.valid.target=[w1, /w2]",
                          "model.dropout=0.25",
                          "data.features=[]",
                          "initial_model=../runs/a",
                          "freeze=[transformer.encoder.*, \"*.norm?.*\"]"};
    bti_run_config *c = NULL;
    kit_ok(bti_run_config_parse("/dir/run.yaml", LEAST "model: {heads: 2}\n", sets, 10, &c));
    ck_assert_int_eq(c->model.heads, 16);
    ck_assert_int_eq(c->training.batch, 64);
    ck_assert_str_eq(c->output, "/dir/a=b c");
    ck_assert_uint_eq(c->data.valid_source.count, 2);
    ck_assert_str_eq(c->data.valid_source.path[1], "/dir/v2");
    ck_assert_str_eq(c->data.valid_target.path[1], "/w2");
    ck_assert_str_eq(c->initial_model, "/dir/../runs/a");
    ck_assert_uint_eq(c->freeze.count, 2);
    ck_assert_str_eq(c->freeze.name[0], "transformer.encoder.*");
    ck_assert_str_eq(c->freeze.name[1], "*.norm?.*");
    ck_assert(c->model.attention_dropout == 0.25 && c->model.embedding_dropout == 0.25);
    bti_run_config_free(c);
}
END_TEST

START_TEST(lists_of_files) {
    bti_run_config *c = parse("output: /o\n"
                              "data:\n"
                              "  train:\n"
                              "    source: [a.de, \"b: c.de\"]\n"
                              "    target:\n"
                              "      - /x/a.en\n"
                              "      - b.en.gz\n"
                              "tokenizer:\n"
                              "  model: m\n",
                              NULL);
    ck_assert_uint_eq(c->data.train_source.count, 2);
    ck_assert_str_eq(c->data.train_source.path[1], "/dir/b: c.de");
    ck_assert_str_eq(c->data.train_target.path[0], "/x/a.en");
    ck_assert_str_eq(c->data.train_target.path[1], "/dir/b.en.gz");
    bti_run_config_free(c);
}
END_TEST

/* B11: an odd width is fine when the heads divide it. */
START_TEST(odd_widths) {
    bti_run_config *c = parse(LEAST "model: {d_model: 30, heads: 3}\n", NULL);
    bti_run_config_free(c);
    c = parse(LEAST "model: {d_model: 29, heads: 1}\n", NULL);
    ck_assert_int_eq(c->model.d_model, 29);
    bti_run_config_free(c);
    c = parse(LEAST "schedule: {warmup: 0}\n", NULL); /* B12 */
    ck_assert_int_eq(c->schedule.warmup, 0);
    bti_run_config_free(c);
}
END_TEST

#define HEAD "output: o\ndata: {train: {source: a, target: b}}\n"

START_TEST(tokenizer_sides) {
    bti_run_config *c = parse(HEAD "tokenizer:\n"
                                   "  source: {model: s.model}\n"
                                   "  kind: xlmr\n"
                                   "  size: 500\n"
                                   "  target: {model: t.model, kind: sentencepiece}\n",
                              NULL);
    ck_assert_str_eq(c->tokenizer[0].model, "/dir/s.model");
    ck_assert_str_eq(c->tokenizer[1].model, "/dir/t.model");
    ck_assert(c->tokenizer[0].kind == BTI_TOKENIZER_XLMR);
    ck_assert(c->tokenizer[1].kind == BTI_TOKENIZER_SENTENCEPIECE);
    ck_assert(c->tokenizer[0].size == 500 && c->tokenizer[1].size == 500);
    ck_assert(c->shared == 0 && c->model.tie == BTI_TIE_TARGET);
    char *text;
    kit_ok(bti_run_config_print(c, &text));
    /* only what is decided for each side; the common default would say less */
    ck_assert_ptr_nonnull(strstr(text, "tokenizer:\n  shared: false\n  source:\n    kind: xlmr\n"));
    check_fixed_point(text);
    bt_free(text);
    bti_run_config_free(c);

    c = parse(HEAD "tokenizer: {model: m, target: {model: t}}\n", NULL);
    ck_assert_str_eq(c->tokenizer[0].model, "/dir/m");
    ck_assert_str_eq(c->tokenizer[1].model, "/dir/t");
    bti_run_config_free(c);

    c = parse(HEAD "tokenizer: {source: {model: m}, target: {model: m}}\n", NULL);
    ck_assert(c->shared == 1 && c->model.tie == BTI_TIE_ALL);
    kit_ok(bti_run_config_print(c, &text));
    ck_assert_ptr_nonnull(
        strstr(text, "  model: \"/dir/m\"\n  size: 0\n  min_count: 1\n  shared: true\nmodel:"));
    bt_free(text);
    bti_run_config_free(c);

    /* one file, two tables */
    c = parse(HEAD "tokenizer: {model: m, shared: false}\n", NULL);
    ck_assert(c->shared == 0 && c->model.tie == BTI_TIE_TARGET);
    bti_run_config_free(c);

    /* word lists: spacy's stands beside its rules unless given */
    c = parse(HEAD "tokenizer: {kind: spacy, model: m, min_count: 2, target: {kind: words}}\n",
              NULL);
    ck_assert_str_eq(c->tokenizer[0].vocabulary, "/dir/m.words");
    ck_assert_ptr_null(c->tokenizer[1].vocabulary);
    ck_assert(c->tokenizer[0].min_count == 2 && c->tokenizer[1].min_count == 2);
    kit_ok(bti_run_config_print(c, &text));
    ck_assert_ptr_nonnull(strstr(text, "    vocabulary: \"/dir/m.words\"\n  target:\n"));
    check_fixed_point(text);
    bt_free(text);
    bti_run_config_free(c);
    c = parse(HEAD "tokenizer: {kind: spacy, model: m, vocabulary: v}\n", NULL);
    ck_assert_str_eq(c->tokenizer[1].vocabulary, "/dir/v");
    ck_assert(c->shared);
    bti_run_config_free(c);
    refused(HEAD "tokenizer:\n  model: m\n  shared: true\n  target: {min_count: 3}\n",
            "but the two sides differ in min_count");
    refused(HEAD "tokenizer: {kind: spacy, model: m, shared: true, target: {vocabulary: v}}\n",
            "but the two sides differ in vocabulary");

    refused(HEAD "tokenizer:\n  model: m\n  shared: true\n  target: {size: 3}\n",
            "run.yaml:5: tokenizer.shared is true, but the two sides differ in size");
    refused(HEAD "tokenizer: {model: m, shared: false}\nmodel: {tie_embeddings: all}\n",
            "run.yaml:4: model.tie_embeddings all needs one vocabulary");
    refused(HEAD
            "tokenizer: {source: {model: m}, target: {model: n}}\nmodel: {tie_embeddings: all}\n",
            "run.yaml:4: model.tie_embeddings all needs one vocabulary");
}
END_TEST

/* The design's own example. */
START_TEST(example) {
    bti_run_config *c = parse(
        "output: runs/base                 # folder made by train\n"
        "data:\n"
        "  train: {source: train.de, target: train.en}   # each a file or a list of files\n"
        "  valid: {source: val.de, target: val.en}       # optional\n"
        "  max_length: 256\n"
        "  overlong: truncate\n"
        "  features: []\n"
        "tokenizer:\n"
        "  kind: sentencepiece\n"
        "  model: spm.model\n"
        "  size: 8000\n"
        "  shared: true\n"
        "model: {d_model: 512, ff: 2048, heads: 8, encoder_layers: 6, decoder_layers: 6,\n"
        "        norm: post,     # post | pre\n"
        "        activation: relu, positions: sinusoid, tie_embeddings: all, final_norm: true,\n"
        "        dropout: 0.1}\n"
        "training: {batch: 128, batch_unit: sentences, updates: 100000, epochs: 0,\n"
        "           label_smoothing: 0.1, clip_norm: 1.0, seed: 1, precision: fp32}\n"
        "optimizer: {kind: adam, lr: 0.0007, beta1: 0.9, beta2: 0.98, eps: 1.0e-9, "
        "weight_decay: 0}\n"
        "schedule: {kind: inverse_sqrt, warmup: 4000}\n"
        "validation: {every: 1000, beam: 4, metric: bleu, patience: 10}\n"
        "checkpoint: {every: 1000, keep: 3}\n"
        "memory: {limit: auto, optimizer_state: device, recompute: auto}\n",
        NULL);
    ck_assert_int_eq(c->tokenizer[1].size, 8000);
    bti_run_config *least = parse(LEAST, NULL);
    ck_assert_mem_eq(&c->model, &least->model, sizeof c->model);
    ck_assert_mem_eq(&c->training, &least->training, sizeof c->training);
    ck_assert_mem_eq(&c->optimizer, &least->optimizer, sizeof c->optimizer);
    bti_run_config_free(c);
    bti_run_config_free(least);
}
END_TEST

/* Paths that YAML would spoil unquoted. */
START_TEST(odd_paths) {
    static const char *const odd[] = {"a b",
                                      "\"q\"",
                                      "back\\slash",
                                      "#no",
                                      "null",
                                      "true",
                                      "12",
                                      "- x",
                                      "[x",
                                      "{x}",
                                      "tab\there",
                                      "line\nfeed",
                                      "\xc3\xa4",
                                      "\xc2\x85",
                                      "\xe2\x80\xa8 x",
                                      "\xef\xbb\xbf",
                                      "'",
                                      "a: b",
                                      "%s%d",
                                      "\x01\x7f",
                                      " x ",
                                      "\xf0\x9f\x98\x80",
                                      "&a *b !c"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        bti_run_config *c = parse(LEAST, kit_str("output=%s", odd[i]));
        ck_assert_str_eq(c->output, kit_str("/dir/%s", odd[i]));
        char *text;
        kit_ok(bti_run_config_print(c, &text));
        check_fixed_point(text);
        bti_run_config *again = parse(text, NULL);
        ck_assert_str_eq(again->output, c->output);
        ck_assert_str_eq(again->data.cache, c->data.cache);
        bti_run_config_free(again);
        bti_run_config_free(c);
        bt_free(text);
    }
    set_refused("output=\xff", "not UTF-8");
}
END_TEST

/* Numbers come back bit by bit, and short ones stay short. */
START_TEST(real_numbers) {
    static const double value[] = {0.1, 0.0007, 1 / 3.0, 0.1 + 0.2, 1.1754944e-38, 3.4028234e38};
    for (size_t i = 0; i < sizeof value / sizeof value[0]; i++) {
        char *text;
        bti_run_config *c = parse(LEAST, kit_str("optimizer.lr=%.17g", value[i]));
        kit_ok(bti_run_config_print(c, &text));
        bti_run_config *again = parse(text, NULL);
        ck_assert(c->optimizer.lr == value[i] && again->optimizer.lr == value[i]);
        if (i == 1) ck_assert_ptr_nonnull(strstr(text, "  lr: 0.0007\n"));
        bti_run_config_free(again);
        bti_run_config_free(c);
        bt_free(text);
    }
}
END_TEST

/* Numbers have a point, whatever the program's locale. */
START_TEST(locales) {
    if (!kit_comma_begin()) return;
    bti_run_config *c = parse(LEAST "optimizer: {lr: 0.25}\n", "memory.limit=1.5GiB");
    ck_assert(c->optimizer.lr == 0.25 && c->memory.limit == 3u << 29);
    char *text;
    kit_ok(bti_run_config_print(c, &text));
    ck_assert_ptr_nonnull(strstr(text, "lr: 0.25\n"));
    bt_free(text);
    bti_run_config_free(c);
    char bytes[32];
    bti_format_bytes(3u << 29, bytes);
    ck_assert_str_eq(bytes, "1.50 GiB");
    kit_comma_end();
}
END_TEST

/* A relative file name: paths become absolute by the current folder. */
START_TEST(files_on_disk) {
    const char *dir = kit_tmpdir();
    char cwd[4096], here[4096];
    ck_assert_ptr_nonnull(getcwd(cwd, sizeof cwd));
    kit_write_text(kit_str("%s/run.yaml", dir), LEAST);
    kit_write(kit_str("%s/nul.yaml", dir), "output: a\0b\n", 12);
    ck_assert_int_eq(chdir(dir), 0);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    bt_run *run = NULL;
    kit_ok(bt_run_load("run.yaml", NULL, 0, &run));
    ck_assert_str_eq(run->output, kit_str("%s/out", here));
    bt_run_free(run);
    kit_write_text("run.yaml", BTI_TEXT_MARK LEAST); /* some editors' mark */
    kit_ok(bt_run_load("./run.yaml", NULL, 0, &run));
    char *text;
    kit_ok(bt_run_text(run, &text));
    check_fixed_point(text);
    bt_free(text);
    bt_run_free(run);
    run = NULL;
    kit_fails(bt_run_load("nul.yaml", NULL, 0, &run), BT_EINPUT, "byte 10 is 00");
    ck_assert(bt_run_load("absent.yaml", NULL, 0, &run) != BT_OK);
    ck_assert_ptr_nonnull(strstr(bt_last_error(), "absent.yaml"));
    ck_assert_ptr_null(run);
    ck_assert_int_eq(chdir(cwd), 0);
}
END_TEST

START_TEST(bytes) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"auto", BTI_MEMORY_AUTO},
                {"1", 1},
                {"11GiB", 11811160064u},
                {"8000MB", 8000000000u},
                {"512MiB", 536870912},
                {"512 MiB", 536870912},
                {"1.5GiB", 1610612736},
                {"64m", 67108864},
                {"2TB", 2000000000000u},
                {"3kb", 3000},
                {"7B", 7},
                {"9007199254740993", 9007199254740993u},
                {"0.5K", 512}};
    static const char *const bad[] = {"0",     "-5",   "abc",         "",    "GiB", "0MiB",
                                      "1.2.3", "5 XB", "5GiBs",       "1e9", "nan", "Auto",
                                      "5 5",   "inf",  "99999999TiB", "0.1", " 5"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        uint64_t v = 99;
        kit_ok(bti_parse_bytes(good[i].text, &v));
        ck_assert_msg(v == good[i].bytes, "%s is %llu", good[i].text, (unsigned long long)v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t v = 99;
        kit_fails(bti_parse_bytes(bad[i], &v), BT_EUSAGE, kit_str("\"%s\"", bad[i]));
        ck_assert(v == 99);
    }
    char text[32];
    bti_format_bytes(0, text);
    ck_assert_str_eq(text, "0 B");
    bti_format_bytes(1024, text);
    ck_assert_str_eq(text, "1.00 KiB");
    bti_format_bytes(7580617605u, text);
    ck_assert_str_eq(text, "7.06 GiB");
    bti_format_bytes(UINT64_MAX, text);
    ck_assert_str_eq(text, "16.00 EiB");
}
END_TEST

START_TEST(key_list) {
    char *text;
    kit_ok(bt_run_keys(&text));
    for (int i = 0; i < BTI_KEYS; i++)
        ck_assert_msg(strstr(text, bti_keys[i].path) != NULL, "%s is not listed", bti_keys[i].path);
    ck_assert_ptr_nonnull(strstr(text, "model.heads              8      "));
    bt_free(text);
}
END_TEST

/* Each allocation fails once: an error, nothing lost, nothing left. */
START_TEST(no_memory) {
    const char *sets[] = {"data.train.source=[a, b]", "data.train.target=[a, b]",
                          "data.features=[{name: a, train: [b, c]}, {name: d, train: e}]"};
    int failed = 0;
    for (uint64_t n = 1;; n++, failed++) {
        bti_run_config *c = NULL;
        char *text = NULL;
        bti_alloc_fail_at(n);
        bt_status status = bti_run_config_parse("/dir/run.yaml", LEAST, sets, 3, &c);
        if (status == BT_OK) status = bti_run_config_print(c, &text);
        bti_run_config_free(c);
        bt_free(text);
        if (status == BT_OK) break;
        ck_assert_msg(status == BT_ENOMEM, "request %d: %s", (int)n, bt_last_error());
        ck_assert_ptr_null(text);
    }
    bti_alloc_fail_at(0);
    ck_assert_int_gt(failed, 50);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, defaults);
    tcase_add_loop_test(tc, every_key, 0, BTI_KEYS);
    tcase_add_loop_test(tc, every_key_refuses, 0, BTI_KEYS);
    add_run_file_faults(tc);
    tcase_add_test(tc, sets_in_order);
    tcase_add_test(tc, lists_of_files);
    tcase_add_test(tc, odd_widths);
    tcase_add_test(tc, tokenizer_sides);
    tcase_add_test(tc, example);
    tcase_add_test(tc, odd_paths);
    tcase_add_test(tc, real_numbers);
    tcase_add_test(tc, locales);
    tcase_add_test(tc, files_on_disk);
    tcase_add_test(tc, bytes);
    tcase_add_test(tc, key_list);
    tcase_add_test(tc, no_memory);
}

int main(int argc, char **argv) { return kit_main("run_file", add, argc, argv); }
