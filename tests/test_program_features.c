/* Runs over dense features from files to predictions, as their users see them: heads without a
 * decoder, captions, resume. */
#include "tests/program_kit.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/files.h"

enum { EXAMPLES = 48, ROWS = 4, WIDTH = 6 };

typedef struct place {
    const char *dir, *yaml, *out;
} place;

static const char *in(place p, const char *name) { return kit_str("%s/%s", p.dir, name); }

/* A .npy of fp32 with this shape. */
static void put_npy(const char *path, const char *shape, const float *x, size_t n) {
    char head[128] = "\x93NUMPY\x01\x00\x76\x00";
    int used = snprintf(head + 10, sizeof head - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    memset(head + 10 + used, ' ', sizeof head - 10 - (size_t)used);
    head[127] = '\n';
    char *all = malloc(sizeof head + n * sizeof *x);
    memcpy(all, head, sizeof head);
    memcpy(all + sizeof head, x, n * sizeof *x);
    kit_write(path, all, sizeof head + n * sizeof *x);
    free(all);
}

/* Each example is of one of three kinds, which its rows show through noise; labels of all sorts. */
static place new_place(const char *data, const char *model) {
    place p = {.dir = kit_tmpdir()};
    static float x[EXAMPLES * ROWS * WIDTH];
    char *name = malloc(EXAMPLES * 8), *set = malloc(EXAMPLES * 8), *number = malloc(EXAMPLES * 16);
    char *text = malloc(EXAMPLES * 16);
    name[0] = set[0] = number[0] = text[0] = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        static const char *const names[] = {"cat", "dog", "eel"};
        static const char *const sets[] = {"red", "red wet", "wet"};
        static const char *const texts[] = {"one", "one two", "two three one"};
        int kind = i * 7 % 3;
        for (int k = 0; k < ROWS * WIDTH; k++)
            x[i * ROWS * WIDTH + k] =
                (float)(k % WIDTH % 3 == kind) + 0.1f * (float)((i * 31 + k * 17) % 11 - 5) / 5;
        sprintf(name + strlen(name), "%s\n", names[kind]);
        sprintf(set + strlen(set), "%s\n", sets[kind]);
        sprintf(number + strlen(number), "%d.5 %d\n", kind, 1 - kind);
        sprintf(text + strlen(text), "%s\n", texts[kind]);
    }
    put_npy(in(p, "x.npy"), kit_str("(%d, %d, %d)", EXAMPLES, ROWS, WIDTH), x,
            EXAMPLES * ROWS * WIDTH);
    kit_write_text(in(p, "names"), name);
    kit_write_text(in(p, "sets"), set);
    kit_write_text(in(p, "numbers"), number);
    kit_write_text(in(p, "texts"), text);
    free(name);
    free(set);
    free(number);
    free(text);
    p.yaml = in(p, "run.yaml");
    p.out = in(p, "out");
    kit_write_text(p.yaml, kit_str("output: out\n"
                                   "data:\n"
                                   "  features: [{name: image, train: x.npy, valid: x.npy}]\n%s"
                                   "model: {d_model: 16, ff: 32, heads: 2, encoder_layers: 1, "
                                   "dropout: 0%s}\n"
                                   "training: {batch: 12, updates: 60, label_smoothing: 0}\n"
                                   "optimizer: {lr: 0.005}\n"
                                   "schedule: {kind: constant, warmup: 5}\n"
                                   "validation: {every: 30, beam: 2}\n",
                                   data, model));
    return p;
}

static program train_it(place p, const char *more) {
    return bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--set", more);
}

#define predict(p, labels) \
    bantam("predict", (p).out, "--features", kit_str("image=%s", in(p, "x.npy")), "--labels", \
           in(p, labels), "--device", "cpu", "--json")

static double score_of(const program *r, const char *name) {
    json_t *scores = parse_json(r->err);
    double x = number_at(scores, name);
    json_decref(scores);
    return x;
}

/* `evaluate` says what `predict` and the last validation say. */
static void check_evaluation(place p, const char *labels, const program *predicted,
                             const char *names) {
    program r = bantam("evaluate", in(p, "out/model.safetensors"), "--features",
                       kit_str("image=%s", in(p, "x.npy")), "--labels", in(p, labels), "--device",
                       "cpu", "--json");
    check_status(r, 0);
    ck_assert_str_eq(r.err, "");
    json_t *scores = parse_json(r.out), *said = parse_json(predicted->err), *log = read_log(p.out);
    json_t *valid = json_array_get(log, json_array_size(log) - 1);
    ck_assert(number_at(scores, "examples") == EXAMPLES);
    kit_near(number_at(scores, "loss"), number_at(valid, "valid_loss"), 1e-5);
    check_fields(scores, "examples loss accuracy f1 mse");
    char name[32];
    for (int used; sscanf(names, "%31s%n", name, &used) == 1; names += used) {
        kit_near(number_at(scores, name), number_at(valid, kit_str("valid_%s", name)), 1e-5);
        kit_near(number_at(scores, name), number_at(said, name), 0.02); /* of the best model */
    }
    json_decref(log);
    json_decref(said);
    json_decref(scores);
}

/* What has other counts than the examples is refused before anything is written. */
static void check_counts(place p, const char *labels) {
    const char *text = file_text(in(p, labels));
    for (int more = 0; more < 2; more++) {
        const char *bad = in(p, more ? "more" : "fewer");
        kit_write_text(bad, more ? kit_str("%s%s\n", text, line_of(text, 1))
                                 : text + strcspn(text, "\n") + 1);
        const char *image = kit_str("image=%s", in(p, "x.npy"));
        program r =
            bantam("predict", p.out, "--features", image, "--labels", bad, "--device", "cpu");
        check_refused(r, kit_str("%s has labels for %d examples, ", bad, EXAMPLES + 2 * more - 1));
        check_has(r.err,
                  kit_str("%s has %d examples: there must be as many", in(p, "x.npy"), EXAMPLES));
        ck_assert_str_eq(r.out, "");
        check_refused(
            bantam("evaluate", p.out, "--features", image, "--labels", bad, "--device", "cpu"),
            "there must be as many");
    }
}

/* Without labels too each line is an object, and says what the plain line says. */
static void check_json_lines(place p, const char *with_labels) {
    const char *image = kit_str("image=%s", in(p, "x.npy"));
    program r = bantam("predict", p.out, "--features", image, "--device", "cpu", "--json");
    check_status(r, 0);
    ck_assert_str_eq(r.err, "");
    ck_assert_str_eq(r.out, with_labels);
    const char *json = kit_str("%s", r.out);
    r = bantam("predict", p.out, "--features", image, "--device", "cpu");
    check_status(r, 0);
    for (int i = 1; i <= EXAMPLES; i++) {
        json_t *line = parse_json(line_of(json, i)), *list = json_object_get(line, "labels"), *one;
        const char *class = json_string_value(json_object_get(line, "class"));
        const char *values = "";
        size_t k;
        ck_assert(number_at(line, "example") == i - 1);
        if (class != NULL) values = kit_str("%s\t%.6f", class, number_at(line, "probability"));
        json_array_foreach(list, k, one) values = kit_str(
            "%s%s%s\t%.6f", values, k ? "\t" : "", json_string_value(json_object_get(one, "label")),
            number_at(one, "probability"));
        json_array_foreach(json_object_get(line, "values"), k, one) values =
            kit_str("%s%s%.9g", values, k ? " " : "", json_number_value(one));
        const char *plain = line_of(r.out, i);
        ck_assert_str_eq(plain, values);
        json_decref(line);
    }
}

START_TEST(classes) {
    static const char *const pooling[] = {"mean", "first", "attention"};
    place p = new_place("  labels: {train: names, valid: names}\n",
                        kit_str(", pooling: %s", pooling[_i]));
    program r = train_it(p, "training.seed=3");
    check_status(r, 0);
    check_has(r.err, "accuracy 1.0000");
    r = predict(p, "names");
    check_status(r, 0);
    ck_assert_int_eq(count_lines(r.out), EXAMPLES);
    check_has(line_of(r.out, 1), "{\"example\": 0, \"class\": \"cat\", \"probability\": 0.9");
    check_has(line_of(r.out, 2), "{\"example\": 1, \"class\": \"dog\", \"probability\": 0.");
    check_json_lines(p, r.out);
    ck_assert(score_of(&r, "accuracy") == 1 && score_of(&r, "f1") == 1);
    check_evaluation(p, "names", &r, "accuracy f1");
    if (_i == 0) check_counts(p, "names");
    /* A class that the model has not; and a model without its names beside it, whose classes are
     * numbers. */
    const char *image = kit_str("image=%s", in(p, "x.npy"));
    check_refused(predict(p, "sets"),
                  "sets: line 1: \"red\" is none of the 3 classes, cat ... eel");
    ck_assert_int_eq(rename(in(p, "out/labels.txt"), in(p, "labels.txt")), 0);
    r = bantam("predict", p.out, "--features", image, "--device", "cpu");
    check_status(r, 0);
    check_has(line_of(r.out, 2), "1\t0.");
    check_refused(predict(p, "names"), "\"cat\" is none of the 3 classes, 0 ... 2");
    kit_write_text(in(p, "out/labels.txt"), "cat\ndog\n");
    check_refused(bantam("predict", p.out, "--features", image, "--device", "cpu"),
                  "labels.txt names 2 labels, the model beside it has 3");
}
END_TEST

/* A file that is there stays as it is until the first line is known; inputs are not written over.
 */
START_TEST(output_files) {
    place p = new_place("  labels: {train: names, valid: names}\n", "");
    check_status(train_it(p, "training.updates=2"), 0);
    const char *x = in(p, "x.npy"), *image = kit_str("image=%s", x), *out = in(p, "lines");
    const char *model = newest_checkpoint(p.out), *names = in(p, "names");
    const char *name = file_text(names), *wrong[] = {in(p, "nowhere"), in(p, "names"), p.dir};
    kit_write_text(out, "as it was\n");
    for (int i = 0; i < 3; i++) {
        check_refused(bantam("predict", wrong[i], "--features", image, "--output", out), wrong[i]);
        check_refused(bantam("translate", wrong[i], "--features", image, "--output", out),
                      wrong[i]);
    }
    check_refused(bantam("predict", p.out, "--features", "image=nowhere.npy", "--output", out,
                         "--device", "cpu"),
                  "nowhere.npy");
    ck_assert_str_eq(file_text(out), "as it was\n");
    size_t bytes, before;
    free(kit_read(x, &before));
    const char *const inputs[] = {x, names, model};
    for (int i = 0; i < 3; i++)
        check_refused(
            bantam("predict", model, "--features", image, "--labels", names, "--output", inputs[i],
                   "--device", "cpu"),
            kit_str("--output: %s is the same file as the input %s", inputs[i], inputs[i]));
    check_refused(bantam("translate", model, "--features", image, "--output", x), "the same file");
    free(kit_read(x, &bytes));
    ck_assert_uint_eq(bytes, before);
    ck_assert_str_eq(file_text(names), name);
    program r = bantam("predict", model, "--features", image, "--output", out, "--device", "cpu");
    check_status(r, 0);
    ck_assert_int_eq(count_lines(file_text(out)), EXAMPLES);
    r = bantam("predict", model, "--features", image, "--output", in(p, "no/such"), "--device",
               "cpu");
    check_status(r, 1);
    check_has(r.err, kit_str("%s: cannot be written: No such file", in(p, "no/such")));
    const char *yaml = file_text(p.yaml);
    check_refused(bantam("plan", p.yaml, "--svg", p.yaml), "--svg: ");
    ck_assert_str_eq(file_text(p.yaml), yaml);
}
END_TEST

/* The training labels would become the names of classes. */
START_TEST(labels_are_not_written_over) {
    place p = new_place("  labels: {train: labels.txt, valid: names}\n", "");
    const char *names = file_text(in(p, "names"));
    kit_write_text(in(p, "labels.txt"), names);
    ck_assert_int_eq(rename(p.yaml, in(p, "first.yaml")), 0);
    p.yaml = in(p, "first.yaml");
    program r = train_it(p, "output=.");
    check_refused(r, "labels.txt");
    check_has(r.err, "another output");
    ck_assert_str_eq(file_text(in(p, "labels.txt")), names);
    /* what a list names is read too */
    kit_write_text(in(p, "list.txt"), "x.npy\n");
    r = bantam("plan", p.yaml, "--set", "data.features.0.train=list.txt", "--svg", in(p, "x.npy"));
    check_refused(r, "the same file");
}
END_TEST

START_TEST(labels) {
    place p = new_place("  labels: {train: sets, valid: sets}\n",
                        ", head: multilabel, learned_rows: 2, pooling: first");
    check_status(train_it(p, "training.seed=3"), 0);
    program r = predict(p, "sets");
    check_status(r, 0);
    json_t *line = parse_json(line_of(r.out, 2)), *list = json_object_get(line, "labels");
    ck_assert_uint_eq(json_array_size(list), 2);
    for (size_t k = 0; k < 2; k++) {
        json_t *one = json_array_get(list, k);
        ck_assert_str_eq(json_string_value(json_object_get(one, "label")), k ? "wet" : "red");
        ck_assert(number_at(one, "probability") > 0.5);
    }
    json_decref(line);
    check_json_lines(p, r.out);
    ck_assert(score_of(&r, "accuracy") == 1 && score_of(&r, "f1") == 1);
    check_evaluation(p, "sets", &r, "accuracy f1");
}
END_TEST

START_TEST(numbers) {
    place p = new_place("  labels: {train: numbers, valid: numbers}\n", ", head: regression");
    check_status(train_it(p, "training.seed=3"), 0);
    program r = predict(p, "numbers");
    check_status(r, 0);
    double a, b;
    json_t *line = parse_json(line_of(r.out, 1)), *list = json_object_get(line, "values");
    ck_assert_uint_eq(json_array_size(list), 2);
    a = json_number_value(json_array_get(list, 0));
    b = json_number_value(json_array_get(list, 1));
    json_decref(line);
    check_json_lines(p, r.out);
    kit_near(a, 0.5, 0.3);
    kit_near(b, 1, 0.3);
    ck_assert(score_of(&r, "mse") < 0.02);
    check_evaluation(p, "numbers", &r, "mse");
    check_counts(p, "numbers");
    check_refused(bantam("evaluate", p.out, "--features", kit_str("image=%s", in(p, "x.npy")),
                         "--reference", in(p, "texts"), "--device", "cpu"),
                  "its head is regression, which is evaluated on labels");
}
END_TEST

/* From a checkpoint on, the same bits as without a stop. */
START_TEST(resumed) {
    place p = new_place("  labels: {train: names, valid: names}\n", ", pooling: attention");
    check_status(train_it(p, "training.seed=1"), 0);
    ck_assert_int_eq(rename(p.out, in(p, "whole")), 0);
    program r = bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--updates", "25");
    check_status(r, 0);
    r = bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--resume");
    check_status(r, 0);
    ck_assert(files_equal(in(p, "out/model.safetensors"), in(p, "whole/model.safetensors")));
    /* With other features it is another run. */
    put_npy(in(p, "x.npy"), "(48, 1, 6)", (float[EXAMPLES * WIDTH]){1}, EXAMPLES * WIDTH);
    r = bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--resume", "--set",
               "training.updates=61");
    check_refused(r, "cannot be resumed with other training data: feature image: 48 examples, 192 "
                     "rows of 6 numbers, checksum ");
    check_has(r.err, "(now 48 examples, 48 rows of 6 numbers, checksum ");
    check_has(r.err, kit_str(", %s)", in(p, "x.npy")));
    check_lacks(r.err, "labels");
    check_lacks(r.err, "text");
    /* all that differs is listed */
    kit_write_text(in(p, "names"), kit_str("dog\n%s", strchr(file_text(in(p, "names")), '\n') + 1));
    r = bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--resume", "--set",
               "training.updates=61");
    check_refused(r, "feature image: 48");
    check_has(r.err, "; labels: 48 examples, 3 classes, checksum ");
    const char *yaml = file_text(p.yaml), *at = strstr(yaml, "{name: image");
    kit_write_text(p.yaml, kit_str("%.*s{name: sound, train: x.npy, valid: x.npy}, %s",
                                   (int)(at - yaml), yaml, at));
    r = bantam("train", p.yaml, "--threads", "1", "--device", "cpu", "--resume", "--set",
               "training.updates=61");
    check_refused(r, "; feature sound: not there (now 48 examples");
}
END_TEST

/* Text written from features alone; what the program says where an option lacks. */
START_TEST(captions) {
    place p = new_place("  train: {target: texts}\n  valid: {target: texts}\n"
                        "tokenizer: {kind: words, model: words.vocab, size: 20}\n",
                        ", decoder_layers: 1");
    check_status(train_it(p, "training.updates=150"), 0);
    program r = bantam("translate", p.out, "--features", kit_str("image=%s", in(p, "x.npy")),
                       "--device", "cpu");
    check_status(r, 0);
    ck_assert_str_eq(r.out, file_text(in(p, "texts")));
    r = bantam("evaluate", p.out, "--features", kit_str("image=%s", in(p, "x.npy")), "--reference",
               in(p, "texts"), "--device", "cpu");
    check_status(r, 0);
    check_has(r.out, "perplexity 1.");
    /* fewer lines than examples, and more */
    kit_write_text(in(p, "few"), "one\n");
    check_refused(bantam("evaluate", p.out, "--features", kit_str("image=%s", in(p, "x.npy")),
                         "--reference", in(p, "few"), "--device", "cpu"),
                  kit_str("%s has 48 examples, %s has 1 lines", in(p, "x.npy"), in(p, "few")));
    check_refused(bantam("evaluate", p.out, "--features", kit_str("image=%s", in(p, "x.npy")),
                         "--labels", in(p, "names"), "--device", "cpu"),
                  "bantam evaluate compares it with a reference");
    check_refused(bantam("translate", p.out), "give its file, image=FILE");
    check_refused(bantam("translate", p.out, "--features", "sound=x.npy"), "no such feature");
    check_refused(bantam("translate", p.out, "--features", "image="), "written NAME=FILE");
    check_refused(bantam("translate", p.out, "--features", "image=a", "--features", "image=b"),
                  "\"image=a\" and \"image=b\": a feature has one file");
    check_refused(bantam("predict", p.out, "--features", kit_str("image=%s", in(p, "x.npy"))),
                  "bantam translate");
}
END_TEST

/* Classes of text: with a byte order mark, cut, with bytes that are no text, from a file and from
 * standard input, where a signal ends the wait. */
START_TEST(classes_of_text) {
    place p = {.dir = kit_tmpdir()};
    const char *plain = in(p, "plain"), *odd = in(p, "odd"), *cut = in(p, "cut");
    char *text = malloc(EXAMPLES * 16), *name = malloc(EXAMPLES * 8);
    text[0] = name[0] = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        strcat(text, i % 2 ? "ba ke\n" : "ke\n");
        strcat(name, i % 2 ? "cat\n" : "dog\n");
    }
    p.yaml = in(p, "run.yaml");
    p.out = in(p, "out");
    kit_write(in(p, "texts"), text, strlen(text));
    kit_write_text(in(p, "names"), kit_str(BTI_TEXT_MARK "%s", name));
    free(text);
    free(name);
    kit_write_text(p.yaml, "output: out\n"
                           "data: {train: {source: texts}, labels: {train: names}, max_length: 4}\n"
                           "tokenizer: {kind: words, model: words.vocab, size: 20}\n"
                           "model: {d_model: 16, ff: 32, heads: 2, encoder_layers: 1, dropout: 0}\n"
                           "training: {batch: 12, updates: 3}\n");
    check_status(train_it(p, "schedule.warmup=1"), 0);
    ck_assert_str_eq(file_text(in(p, "out/labels.txt")), "cat\ndog\n");
    kit_write_text(plain, "ke\nba ke\nba \xEF\xBF\xBD\nba ba\n");
    static const char bytes[] = BTI_TEXT_MARK "ke\nba ke\nba \xFF\nba\0ba\n";
    kit_write(odd, bytes, sizeof bytes - 1);
    kit_write_text(cut, "ke ke ke ke ke\n");
    program r = bantam("predict", p.out, "--source", plain, "--device", "cpu");
    check_status(r, 0);
    check_lacks(r.err, "warning");
    const char *want = kit_str("%s", r.out);
    program_how how = {.input = odd};
    for (int piped = 0; piped < 2; piped++) {
        r = bantam_how(how, "predict", p.out, "--source", piped ? "-" : odd, "--device", "cpu");
        check_status(r, 0);
        ck_assert_str_eq(r.out, want);
        check_has(r.err, "warning: 2 lines are not UTF-8 or have a byte 00");
    }
    r = bantam("predict", p.out, "--source", cut, "--device", "cpu");
    check_status(r, 0);
    check_has(r.err, "warning: 1 lines are longer than data.max_length 4 and are cut");
    const char *fifo = in(p, "fifo");
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    r = program_start(&(program_how){0}, (const char *const[]){"predict", p.out, "--source", fifo,
                                                               "--device", "cpu", NULL});
    FILE *f = fopen(fifo, "w"); /* waits until the program has opened it */
    ck_assert_ptr_nonnull(f);
    usleep(100000); /* it reads by now, or does not: the same comes of both */
    kill(r.pid, SIGINT);
    program_wait(&r);
    fclose(f);
    check_status(r, 130);
    check_has(r.err, "predict: stopped by signal 2: ");
}
END_TEST

/* Text and a feature: as many lines as examples, and rows that go together. */
START_TEST(text_and_feature) {
    place p = new_place("  train: {source: texts, target: texts}\n"
                        "  valid: {source: texts, target: texts}\n"
                        "tokenizer: {kind: words, model: words.vocab, size: 20}\n",
                        ", decoder_layers: 1");
    const char *image = kit_str("image=%s", in(p, "x.npy")), *few = in(p, "few");
    check_refused(train_it(p, "model.fusion=add"),
                  kit_str("%s: example 1 has 4 rows, line 1 of %s has 2 tokens, its end included",
                          in(p, "x.npy"), in(p, "texts")));
    put_npy(in(p, "x.npy"), "(48, 6)", (float[EXAMPLES * WIDTH]){1}, EXAMPLES * WIDTH);
    check_status(train_it(p, "model.fusion=add"), 0);
    program r = bantam("translate", p.out, "--input", in(p, "texts"), "--features", image,
                       "--device", "cpu");
    check_status(r, 0);
    ck_assert_int_eq(count_lines(r.out), EXAMPLES);
    kit_write_text(few, "one\none two\n");
    r = bantam("translate", p.out, "--input", few, "--features", image, "--device", "cpu");
    check_refused(r, kit_str("%s has 2 lines, the features have 48 examples", few));
    check_refused(bantam("evaluate", p.out, "--source", few, "--reference", few, "--features",
                         image, "--device", "cpu"),
                  kit_str("%s has 48 examples, %s has 2 lines", in(p, "x.npy"), few));
    put_npy(in(p, "x.npy"), "(2, 3, 6)", (float[36]){1}, 36);
    r = bantam("translate", p.out, "--input", few, "--features", image, "--device", "cpu");
    check_refused(r, "example 1 has 3 rows, line 1 of the text has 2 tokens");
    ck_assert_str_eq(r.out, "");
}
END_TEST

/* Ten photographs' 8 x 8 x 2,048 feature maps and three more, with captions: all learned by heart.
 */
START_TEST(photographs) {
    static const char *const more[] = {"1018148011.jpg", "1029450589.jpg", "1029737941.jpg"};
    const char *shared = kit_shared("data/features"), *files = "";
    if (shared == NULL) {
        kit_skip("captions of photographs: ../shared/data/features is absent");
        return;
    }
    const char *dir = kit_tmpdir(), *yaml = kit_str("%s/run.yaml", dir);
    const char *list = file_text(kit_str("%s/neuralmonkey_train_images.npz.txt", shared));
    for (int n = 1; n <= count_lines(list); n++)
        files = kit_str("%s%s/neuralmonkey_%s\n", files, shared, line_of(list, n));
    for (int i = 0; i < 3; i++)
        files = kit_str("%s%s/neuralmonkey_%s.npz\n", files, shared, more[i]);
    kit_write_text(kit_str("%s/files.txt", dir), files);
    kit_write_text(kit_str("%s/captions", dir),
                   kit_str("%s%s", file_text(kit_str("%s/neuralmonkey_train.en", shared)),
                           file_text(kit_str("%s/neuralmonkey_val.en", shared))));
    kit_write_text(yaml, ("output: out\n"
                          "data:\n"
                          "  features: [{name: image, train: files.txt, norm: true}]\n"
                          "  train: {target: captions}\n"
                          "tokenizer: {kind: words, model: words.vocab, size: 300}\n"
                          "model: {d_model: 64, ff: 128, heads: 4, encoder_layers: 1, "
                          "decoder_layers: 1, dropout: 0}\n"
                          "training: {batch: 13, updates: 150, label_smoothing: 0}\n"
                          "optimizer: {lr: 0.005}\n"
                          "schedule: {kind: constant, warmup: 10}\n"
                          "validation: {every: 0}\n"));
    program r = bantam("train", yaml, "--device", "cpu");
    check_status(r, 0);
    json_t *log = read_log(kit_str("%s/out", dir));
    ck_assert(number_at(json_array_get(log, json_array_size(log) - 1), "loss") < 0.1);
    json_decref(log);
    r = bantam("translate", kit_str("%s/out", dir), "--features",
               kit_str("image=%s/files.txt", dir), "--device", "cpu");
    check_status(r, 0);
    ck_assert_str_eq(r.out, file_text(kit_str("%s/captions", dir)));
}
END_TEST

/* Case 2 at its sizes, and as many parameters as PyTorch's modules have (count_case2.py). */
static const char *const case2_name[] = {"case2-caption", "case2-classify"};

START_TEST(case2) {
    const char *yaml = kit_data(kit_str("runs/%s.yaml", case2_name[_i]));
    json_t *count = parse_json(file_text(kit_data("golden/case2_parameters.json")));
    json_t *plan = _i ? plan_of(yaml, 0, "--device", "rtx3090")
                      : plan_of(yaml, 0, "--device", "rtx3090", "--lengths", "0:32");
    ck_assert(number_at(plan, "parameters") == number_at(count, case2_name[_i]));
    ck_assert(number_at(plan, "feature_bytes") > 0);
    /* micro-batches of an update whose examples are all alike */
    json_t *micro = json_object_get(plan, "micro_batch");
    double most = floor(number_at(micro, "source_tokens") / 709);
    most = fmin(most, number_at(micro, "sentences"));
    if (!_i) most = fmin(most, floor(number_at(micro, "target_tokens") / 32));
    ck_assert(number_at(plan, "micro_batches_per_update") == ceil(64 / most));
    json_decref(plan);
    json_decref(count);
}
END_TEST

/* 64 examples in fp32 and 256 in fp16 fit a 3090 in one micro-batch; where more of them are faster,
 * the plan says that one fits too. */
START_TEST(case2_at_once) {
    static const struct {
        const char *precision, *batch;
        double least;
    } ask[] = {{"training.precision=fp32", "training.batch=64", 64},
               {"training.precision=fp16", "training.batch=256", 256}};
    int i = _i / 2, which = _i % 2;
    const char *yaml = kit_data(kit_str("runs/%s.yaml", case2_name[which]));
    const char *lengths = which ? "0:1" : "0:32"; /* the second has no text */
    json_t *plan = plan_of(yaml, 0, "--device", "rtx3090", "--lengths", lengths, "--set",
                           ask[i].precision, "--set", ask[i].batch);
    json_t *once = json_object_get(plan, "one_micro_batch");
    double budget = number_at(plan, "budget_bytes");
    if (number_at(plan, "micro_batches_per_update") > 1) {
        check_fields(once, "fits total_bytes seconds_per_update");
        ck_assert(json_is_true(json_object_get(once, "fits")));
        ck_assert(number_at(once, "total_bytes") <= budget);
    } else {
        ck_assert(json_is_null(once));
    }
    program r = bantam("plan", yaml, "--device", "rtx3090", "--lengths", lengths, "--set",
                       ask[i].precision, "--set", ask[i].batch);
    check_status(r, 0);
    check_has(r.out, kit_str("%g examples in ", ask[i].least));
    check_lacks(r.out, "pair");
    if (json_is_object(once)) check_has(r.out, "which fits too");
    json_decref(plan);
    json_t *largest = plan_of(yaml, 0, "--device", "rtx3090", "--lengths", lengths, "--set",
                              ask[i].precision, "--set", ask[i].batch, "--largest-batch");
    ck_assert(number_at(largest, "largest_batch") >= ask[i].least);
    ck_assert(number_at(largest, "total_bytes") <= budget);
    printf("plan: %s on a 3090, %s: %.0f examples in one micro-batch\n", case2_name[which],
           ask[i].precision, number_at(largest, "largest_batch"));
    json_decref(largest);
}
END_TEST

/* What is said of text that is there on one side only. */
START_TEST(captions_planned) {
    const char *yaml = kit_data("runs/case2-caption.yaml");
    program r = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "0:32");
    check_status(r, 0);
    check_has(r.out, "vocabulary 10,000 (1 embedding table)");
    check_has(r.out, "  every line     32 target tokens (assumed)\n");
    r = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "0:32", "--set",
               "model.tie_embeddings=none");
    check_has(r.out, "vocabulary 10,000 (2 embedding tables)");
    r = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "0:32", "--largest-batch");
    check_has(r.out, " examples: ");
    r = bantam("plan", yaml, "--device", "rtx3090", "--lengths", "0:32", "--memory", "2GiB");
    check_status(r, 2);
    check_lacks(r.out, "pair");
    place p = new_place("  train: {target: texts}\n  valid: {target: texts}\n"
                        "tokenizer: {kind: words, model: words.vocab, size: 20}\n",
                        ", decoder_layers: 1");
    r = train_it(p, "training.updates=1");
    check_status(r, 0);
    check_has(r.err, "48 lines, 144 target tokens\n");
    check_lacks(r.err, "pair");
    r = bantam("plan", p.yaml, "--device", "cpu");
    check_status(r, 0);
    check_has(r.out, "  longest line   line ");
    check_has(r.out, ": 4 target tokens\n");
}
END_TEST

void add_features(TCase *tc) {
    tcase_add_loop_test(tc, classes, 0, 3);
    tcase_add_test(tc, output_files);
    tcase_add_test(tc, labels_are_not_written_over);
    tcase_add_test(tc, labels);
    tcase_add_test(tc, numbers);
    tcase_add_test(tc, resumed);
    tcase_add_test(tc, captions);
    tcase_add_test(tc, classes_of_text);
    tcase_add_test(tc, text_and_feature);
    tcase_add_test(tc, photographs);
    tcase_add_loop_test(tc, case2, 0, 2);
    tcase_add_loop_test(tc, case2_at_once, 0, 4);
    tcase_add_test(tc, captions_planned);
}
