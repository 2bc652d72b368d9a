/* What a run file and --set may not say, and how it is told. */
#include "tests/run_file_parts.h"

typedef struct fault {
    const char *text, *part;
} fault;

static const fault faults[] = {
    /* wrong keys */
    {"output: o\nmodle: {heads: 4}\n",
     "run.yaml:2: there is no key \"modle\"; did you mean \"model\"?"},
    {"model:\n  heads: 4\n  headss: 4\n",
     "run.yaml:3: there is no key \"model.headss\"; did you mean \"model.heads\"?"},
    {"training: {lr: 1}\n", "did you mean \"optimizer.lr\"?"},
    {"batch: 3\n", "did you mean \"training.batch\"?"},
    {"model: {dmodel: 4}\n", "did you mean \"model.d_model\"?"},
    {"model: {Heads: 4}\n", "did you mean \"model.heads\"?"},
    {"checkpoint: {zebra: 4}\n", "there is no key \"checkpoint.zebra\"; allowed here: every, keep"},
    {"zebra: 4\n", "allowed here: output, data, tokenizer, model, initial_model, initial_partial, "
                   "freeze, training,"},
    {"model.heads: 4\n", "run.yaml:1: \"model.heads\": in a file a dot is a level"},
    {"tokenizer: {source: {shared: true}}\n", "there is no key \"tokenizer.source.shared\""},
    {"tokenizer: {source: {source: {kind: xlmr}}}\n", "\"tokenizer.source.source\""},
    {"? [a]\n: b\n", "run.yaml:1: a key must be a word"},
    {"model: 5\n", "run.yaml:1: model must be a group of keys: d_model, ff,"},
    {"model: [5]\n", "run.yaml:1: model must be a group of keys"},
    {"data:\n  train: a.de\n", "run.yaml:2: data.train must be a group of keys: source, target"},
    /* twice */
    {"output: a\noutput: b\n", "run.yaml:2: output is given twice, first in line 1"},
    {"model:\n  ff: 1\nmodel:\n  heads: 1\n", "run.yaml:3: model is given twice, first in line 1"},
    {"model:\n  ff: 1\n  heads: 1\n  ff: 1\n",
     "run.yaml:4: model.ff is given twice, first in line 2"},
    /* not a run file */
    {"- a\n", "run.yaml:1: a run file is a group of keys"},
    {"output", "run.yaml:1: a run file is a group of keys"},
    {"output: a\n---\noutput: b\n", "run.yaml:3: a run file is one YAML document"},
    {"output: a\nmodel: {heads: 4\n", "not YAML"},
    {"output: \"a\n", "run.yaml:"},
    {"output: a\n\tff: 3\n", "run.yaml:2: not YAML"},
    {"output: \xff\xfe\n", "not YAML"},
    {"output: \"a\\0b\"\n", "run.yaml:1: output has no value"},
    /* missing */
    {"", "run.yaml: missing: output, data.train.source, data.train.target, tokenizer.model"},
    {"output: o\ndata: {train: {source: [], target: a}}\ntokenizer: {source: {model: m}}\n",
     "run.yaml: missing: data.train.source, tokenizer.target.model"},
    {"output:\n", "run.yaml:1: output has no value"},
    /* ranges and types */
    {"model: {heads: 4.5}\n", "\"4.5\" is not a whole number from 1 to 65536"},
    {"model: {heads: 0x10}\n", "\"0x10\" is not"},
    {"model: {heads: 0}\n", "\"0\" is not a whole number from 1"},
    {"model: {d_model: 65537}\n", "\"65537\" is not a whole number from 1 to 65536"},
    {"model: {ff: 65537}\n", "to 65536"},
    {"data: {max_length: 65537}\n", "to 65536"},
    {"training: {batch: 0}\n", "\"0\" is not a whole number from 1 to"},
    {"training: {batch: 99999999999999999999}\n", "99999999999999999999"},
    {"training: {seed: -1}\n", "\"-1\" is not a whole number from 0 to 18446744073709551615"},
    {"training: {seed: 18446744073709551616}\n", "18446744073709551616"},
    {"model: {dropout: 1}\n", "\"1\" is not a number from 0 to below 1"},
    {"model: {attention_dropout: -0.1}\n", "\"-0.1\" is not"},
    {"model: {activation_dropout: .nan}\n", "\".nan\" is not"},
    {"model: {embedding_dropout: nan}\n", "\"nan\" is not"},
    {"optimizer: {lr: inf}\n", "\"inf\" is not a number of at least 0"},
    {"optimizer: {lr: 1e999}\n", "\"1e999\" is not"},
    {"optimizer: {eps: 0}\n", "\"0\" is not a number above 0 to 1"},
    {"model: {final_norm: 1}\n", "\"1\" is not true or false"},
    {"model: {norm: past}\n", "\"past\" is not one of post, pre"},
    {"model: {norm: po}\n", "\"po\" is not one of post, pre"},
    {"model: {norm: post|pre}\n", "is not one of post, pre"},
    {"schedule: {kind: step}\n",
     "\"step\" is not one of inverse_sqrt, noam, linear, cosine, constant"},
    {"tokenizer: {kind: bpe}\n", "\"bpe\" is not one of sentencepiece, xlmr, words, spacy"},
    {"training: {precision: half}\n", "\"half\" is not one of fp32, tf32, fp16, bf16"},
    {"memory: {optimizer_state: disk}\n", "\"disk\" is not one of auto, device, host, 8bit"},
    {"data: {features: [a.npy]}\n", "run.yaml:1: data.features must be a list of groups"},
    {"data:\n  features:\n    - {name: a, train: x}\n    - {name: b, trian: x}\n",
     "run.yaml:4: there is no key \"data.features.1.trian\"; allowed here: name, train, valid,"},
    {"data:\n  features:\n    - name: a\n      name: b\n",
     "run.yaml:4: data.features.0.name is given twice"},
    {"data:\n  features:\n    - name: a\n      width: wide\n",
     "run.yaml:4: data.features.0.width: \"wide\" is not a whole number from 0 to 65536"},
    {"data: {features: [{name: a b}]}\n", "\"a b\" is not a name of letters, digits and _"},
    {"data: {features: [{name: \"\"}]}\n", "\"\" is not a name of letters"},
    {"data: {features: [{name: [a]}]}\n", "data.features.0.name: \"[...]\" is not a name"},
    {"data: {features: [{train: {a: b}}]}\n", "data.features.0.train must be a path"},
    {"data: {features: [{[a]: b}]}\n", "run.yaml:1: a key must be a word"},
    {"data: {train: {source: [a, {b: c}]}}\n",
     "data.train.source must be a path or a list of paths"},
    {"data: {train: {source: [a, \"\"]}}\n", "data.train.source: \"\" is not a path"},
    {"freeze: [a, \"\"]\n", "freeze: \"\" is not a name pattern or a list of them"},
    {"freeze: [a, [b]]\n", "run.yaml:1: freeze must be a name pattern or a list of them"},
    {"freeze: [*.weight]\n", "run.yaml:1: not YAML"},
    {"initial_modle: x\n", "did you mean \"initial_model\"?"},
    /* B12 */
    {"schedule:\n  warmup: -1\n",
     "run.yaml:2: schedule.warmup: \"-1\" is not a whole number from 0"},
    /* in single precision, as they are used */
    {"model:\n  dropout: 0.99999999\n",
     "run.yaml:2: model.dropout: \"0.99999999\" becomes 1 in single precision"},
    {"optimizer: {beta2: 0.99999999}\n", "run.yaml:1: optimizer.beta2: \"0.99999999\" becomes 1"},
    {"optimizer: {eps: 1e-300}\n", "run.yaml:1: optimizer.eps: \"1e-300\" becomes 0 in"},
    {"optimizer: {eps: 1e-39}\n", "optimizer.eps: \"1e-39\" becomes 0 in"},
    {"optimizer: {weight_decay: 1e39}\n", "optimizer.weight_decay: \"1e39\" becomes inf in"},
    /* A4 */
    {"memory: {limit: 0}\n", "run.yaml:1: memory.limit: \"0\" is not auto or a size above 0"},
    {"memory: {limit: -5}\n", "memory.limit: \"-5\" is not"},
    {"memory: {limit: abc}\n", "memory.limit: \"abc\" is not"},
};

START_TEST(fault_is_named) { refused(faults[_i].text, faults[_i].part); }
END_TEST

static const fault pairs[] = {
    /* B11 */
    {"model:\n  d_model: 30\n  heads: 4\n",
     "run.yaml:7: model.heads 4 does not divide model.d_model 30"},
    {"model:\n  d_model: 30\n", "run.yaml:6: model.heads 8 does not divide model.d_model 30"},
    {"training: {updates: 0}\n", "run.yaml:5: training.updates and training.epochs are both 0"},
    {"model: {tie_embeddings: all}\nsettings: 1\n", "run.yaml:6: there is no key \"settings\""},
};

START_TEST(pair_is_named) { refused(kit_str("%s%s", LEAST, pairs[_i].text), pairs[_i].part); }
END_TEST

/* A run file with this in its data group, beside an output. */
static const char *with_data(const char *data) {
    return kit_str("output: out\ntokenizer: {model: spm.model}\ndata:\n%s", data);
}

static const fault feature_faults[] = {
    {"  train: {target: a}\n  features:\n  - {name: a, train: x}\n  - {name: b}\n",
     "run.yaml:7: data.features.1: missing: train"},
    {"  train: {target: a}\n  features:\n  - {}\n",
     "run.yaml:6: data.features.0: missing: name, train"},
    {"  train: {target: a}\n  features:\n  - {name: a, train: x}\n  - {name: a, train: y}\n",
     "run.yaml:7: data.features.1.name: \"a\" is the name of data.features.0"},
    {"  features: [{name: a, train: x}]\n", "run.yaml: missing: data.train.target"},
    {"  train: {source: a}\n", "run.yaml: missing: data.train.target"},
    {"  labels: {train: a}\n", "run.yaml: missing: data.train.source"},
    {"  train: {target: a}\n  valid: {target: b}\n  features: [{name: a, train: x}]\n",
     "run.yaml:6: data.features.0: missing: valid, for the held-out part"},
    {"  train: {target: a}\n  features: [{name: a, train: x, valid: y}]\n",
     "run.yaml:4: data.train.target is given, data.valid.target is not"},
    {"  labels: {train: l, valid: m}\n  train: {source: a}\n",
     "run.yaml:5: data.train.source is given, data.valid.source is not"},
    {"  labels: {train: l}\n  train: {source: a}\n  valid: {source: b}\n",
     "run.yaml:4: data.labels.train is given, data.labels.valid is not"},
};

START_TEST(feature_fault_is_named) {
    refused(with_data(feature_faults[_i].text), feature_faults[_i].part);
}
END_TEST

/* Inputs that a run may have instead of text, and overrides of their keys. */
START_TEST(features) {
    const char *text = with_data("  train: {target: a.en}\n"
                                 "  features:\n"
                                 "  - {name: image, train: i.npy, width: 768}\n"
                                 "  - {name: t5, train: [a.npz, /b.npz], max_rows: 512}\n");
    const char *sets[] = {"data.features.1.max_rows=64", "data.features.0.train=[x.npy, y.npy]",
                          "data.features.1.name=text"};
    bti_run_config *c = NULL;
    kit_ok(bti_run_config_parse("/dir/run.yaml", text, sets, 3, &c));
    const bti_feature_inputs *f = &c->data.features;
    ck_assert_uint_eq(f->count, 2);
    ck_assert_str_eq(f->item[0].name, "image");
    ck_assert_uint_eq(f->item[0].train.count, 2);
    ck_assert_str_eq(f->item[0].train.path[1], "/dir/y.npy");
    ck_assert(f->item[0].width == 768 && f->item[0].max_rows == 0);
    ck_assert_str_eq(f->item[1].name, "text");
    ck_assert_str_eq(f->item[1].train.path[0], "/dir/a.npz");
    ck_assert_str_eq(f->item[1].train.path[1], "/b.npz");
    ck_assert(f->item[1].width == 0 && f->item[1].max_rows == 64);
    ck_assert_uint_eq(c->data.train_source.count, 0);
    char *printed;
    kit_ok(bti_run_config_print(c, &printed));
    check_fixed_point(printed);
    bt_free(printed);
    bti_run_config_free(c);
    c = parse(text, "data.features=[{name: only, train: z.npy}]");
    ck_assert(c->data.features.count == 1 && c->data.features.item[0].width == 0);
    ck_assert_str_eq(c->data.features.item[0].train.path[0], "/dir/z.npy");
    bti_run_config_free(c);
    c = parse("output: out\ndata: {features: [{name: i, train: x}], labels: {train: l}}\n", NULL);
    ck_assert_ptr_null(c->tokenizer[0].model);
    ck_assert_str_eq(c->data.train_labels.path[0], "/dir/l");
    kit_ok(bti_run_config_print(c, &printed));
    check_fixed_point(printed);
    bt_free(printed);
    bti_run_config_free(c);
    set_refused("data.features.0.width=7", "data.features has 0 entries, counted from 0");
    set_refused("data.features.x.width=7", "an entry's key is written data.features.0.train");
    set_refused("data.features.0=7", "an entry's key is written data.features.0.train");
    set_refused("data.features=[{name: a, nam: b}]", "no key \"data.features.0.nam\"");
    set_refused("data.features=[{name: a, name: b}]", "data.features.0.name is given twice");
    set_refused("data.features=[{name: a}]", "data.features.0: missing: train");
}
END_TEST

START_TEST(wrong_sets) {
    set_refused("model.headss=4", "did you mean \"model.heads\"?");
    set_refused("model=4", "model is a group");
    set_refused("model.heads", "key=value");
    set_refused("=4", "key=value");
    set_refused("", "key=value");
    set_refused("model.heads=3", "model.heads 3 does not divide model.d_model 512");
    set_refused("model.d_model=30", "model.heads 8 does not divide model.d_model 30");
    set_refused("schedule.warmup=-1", "\"-1\" is not a whole number from 0");
    set_refused("memory.limit=-5", "is not auto or a size above 0");
    set_refused("data.train.source=[a", "not YAML");
    set_refused("data.train.source=[a, b]",
                "data.train.source has 2 files and data.train.target has 1");
    set_refused("data.valid.source=v", "data.train.target is given, data.valid.target is not");
    set_refused("data.valid.target=v", "data.train.source is given, data.valid.source is not");
    set_refused("model.heads=", "\"\" is not a whole number");
}
END_TEST

void add_run_file_faults(TCase *tc) {
    tcase_add_loop_test(tc, fault_is_named, 0, (int)(sizeof faults / sizeof faults[0]));
    tcase_add_loop_test(tc, pair_is_named, 0, (int)(sizeof pairs / sizeof pairs[0]));
    tcase_add_loop_test(tc, feature_fault_is_named, 0,
                        (int)(sizeof feature_faults / sizeof feature_faults[0]));
    tcase_add_test(tc, features);
    tcase_add_test(tc, wrong_sets);
}
