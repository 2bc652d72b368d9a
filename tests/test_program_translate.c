/* `translate` as a process: lines do not depend on their neighbours, on the batch or on what else
 * is in the file; models that do not belong to their files are refused. */
#include "core/decode/translator.h"
#include "tests/program_kit.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *text_file(const char *text) {
    const char *path = kit_str("%s/in", kit_tmpdir());
    kit_write_text(path, text);
    return path;
}

#define translate(model, ...) \
    bantam("translate", model, "--threads", "1", "--device", "cpu", __VA_ARGS__)

/* ---- F1: a line's neighbours -------------------------------------------------------------------
 */

enum { LINES = 20 };

/* Lines of 1 to 20 words (3 to 60 tokens and more) in mixed or in rising order. */
static const char *mixed(int sorted) {
    char *text = malloc(LINES * 200), *p = text;
    for (int i = 0; i < LINES; i++) {
        int n = sorted ? i + 1 : i * 7 % LINES + 1;
        for (int w = 0; w < n; w++)
            p += sprintf(p, "%s%s", w ? " " : "", toy_word((uint32_t)(n * 5 + w * 11) % 64, 0));
        *p++ = '\n';
    }
    *p = 0;
    const char *own = kit_str("%s", text);
    free(text);
    return own;
}

START_TEST(lines_do_not_depend_on_the_batch) {
    const char *in[2] = {text_file(mixed(0)), text_file(mixed(1))};
    static const char *const beam[] = {"1", "5"}, *const batch[] = {"1", "7", "20"};
    for (int b = 0; b < 2; b++) {
        program want = translate(trained_model(), "--scores", "--input", in[0], "--beam", beam[b]);
        check_status(want, 0);
        ck_assert_int_eq(count_lines(want.out), LINES);
        for (int i = 0; i < 3; i++) {
            program p = translate(trained_model(), "--scores", "--input", in[0], "--beam", beam[b],
                                  "--batch", batch[i]);
            check_status(p, 0);
            ck_assert_str_eq(p.out, want.out);
            p = translate(trained_model(), "--scores", "--input", in[1], "--beam", beam[b],
                          "--batch", batch[i]);
            check_status(p, 0);
            for (int k = 0; k < LINES; k++)
                ck_assert_str_eq(line_of(p.out, k * 7 % LINES + 1), line_of(want.out, k + 1));
        }
        int different = 0;
        for (int k = 2; k <= LINES; k++)
            different += strcmp(line_of(want.out, k), line_of(want.out, 1)) != 0;
        ck_assert_int_gt(different, LINES / 2); /* the model does look at its input */
    }
}
END_TEST

START_TEST(same_lines_by_pipe_thread_and_file) {
    const char *in = text_file(mixed(0)), *out = kit_str("%s/out", kit_tmpdir());
    program want = translate(trained_model(), "--input", in);
    check_status(want, 0);
    check_status(translate(trained_model(), "--input", in, "--output", out), 0);
    ck_assert_str_eq(file_text(out), want.out);
    program p = program_run(&(program_how){.input = in},
                            (const char *const[]){"translate", trained_model(), "--threads", "2",
                                                  "--device", "cpu", NULL});
    check_status(p, 0);
    ck_assert_str_eq(p.out, want.out);
    p = translate(newest_checkpoint(trained_model()), "--input", in);
    check_status(p, 0);
    ck_assert_str_eq(p.out, want.out);
}
END_TEST

/* ---- several hypotheses ------------------------------------------------------------------------
 */

typedef struct entry {
    int line;
    char text[400];
    double score;
} entry;

/* The entries of an n-best list; gives how many. The first and the last " ||| " of a line part it.
 */
static int read_list(const char *out, entry *e, int room) {
    int n = 0;
    for (; *out; out = strchr(out, '\n') + 1, n++) {
        const char *text = strstr(out, " ||| ") + 5, *end = NULL, *line_end = strchr(out, '\n');
        for (const char *p = text; (p = strstr(p, " ||| ")) != NULL && p < line_end; p++) end = p;
        ck_assert_msg(n < room && text < line_end && end != NULL, "no such list: %s", out);
        e[n].line = atoi(out);
        snprintf(e[n].text, sizeof e[n].text, "%.*s", (int)(end - text), text);
        ck_assert_int_eq(sscanf(end + 5, "%lf", &e[n].score), 1);
    }
    return n;
}

/* A list's first entries are what there is without; scores fall; no hypothesis comes twice. */
START_TEST(lists_of_hypotheses) {
    enum { N = 3 };
    static entry e[(LINES + 2) * N];
    const char *in = text_file(kit_str("%s \n\n", mixed(0)));
    program best = translate(trained_model(), "--input", in, "--beam", "5", "--scores");
    program p = translate(trained_model(), "--input", in, "--beam", "5", "--n-best", "3");
    check_status(best, 0);
    check_status(p, 0);
    int n = read_list(p.out, e, (LINES + 2) * N), several = 0;
    for (int i = 0, line = 0; i < n; line++) {
        ck_assert_int_eq(e[i].line, line);
        ck_assert_str_eq(kit_str("%.6f\t%s", e[i].score, e[i].text), line_of(best.out, line + 1));
        int first = i++;
        for (; i < n && e[i].line == line; i++) {
            ck_assert(e[i].score <= e[i - 1].score);
            ck_assert_int_lt(i - first, N);
            ck_assert_int_lt(line, LINES); /* a blank line has one */
            several++;
        }
    }
    ck_assert_int_eq(e[n - 1].line, LINES + 1);
    ck_assert_int_ge(several, LINES);
    /* The same from standard input, in other batches. */
    program again = program_run(&(program_how){.input = in},
                                (const char *const[]){"translate", trained_model(), "--threads",
                                                      "1", "--device", "cpu", "--beam", "5",
                                                      "--n-best", "3", "--batch", "4", NULL});
    check_status(again, 0);
    ck_assert_str_eq(again.out, p.out);
}
END_TEST

/* The limit cuts all of them: there are some all the same. */
START_TEST(lists_of_cut_hypotheses) {
    static entry e[8];
    program p = translate(trained_model(), "--input", text_file("ba ke li\nba\n"), "--beam", "4",
                          "--n-best", "4", "--max-length", "1");
    check_status(p, 0);
    int n = read_list(p.out, e, 8);
    ck_assert_int_ge(n, 2);
    ck_assert_int_eq(e[0].line, 0);
    ck_assert_int_eq(e[n - 1].line, 1);
}
END_TEST

/* Scores are those of the model on the finished text, as training computes losses. */
START_TEST(scores_are_the_models) {
    enum { N = 4, LENGTH = 64 };
    const char *text[] = {"ba ke", "li mo ba ke", "ke", "mo li ke ba li"};
    bt_translate_options o = BT_TRANSLATE_DEFAULTS;
    bt_translator *t;
    o.device = "cpu";
    o.threads = 1;
    o.nbest = N;
    o.length_penalty = 0.7;
    kit_ok(bti_translator_open(trained_model(), &o, 1, &t));
    for (int i = 0; i < 4; i++) {
        bti_ids ids = {0};
        bti_amends amends = {0, 0};
        kit_ok(bti_translator_encode(t, 0, text[i], strlen(text[i]), &ids, &amends));
        bti_source source = {.ids = ids.id, .count = ids.count};
        const bti_hypothesis *h;
        int32_t count, target[N][LENGTH];
        double score[N];
        bti_sentence s[N];
        kit_ok(bti_decoder_run(t->decoder, (const bti_source *const[]){&source}, 1, NULL));
        kit_ok(bti_decoder_results(t->decoder, 0, &h, &count));
        ck_assert_int_eq(count, N);
        for (int k = 0; k < N; k++) { /* the losses take the decoder's memory */
            ck_assert_int_lt(h[k].length, LENGTH - 1);
            ck_assert_int_eq(h[k].cut, 0);
            memcpy(target[k], h[k].ids, (size_t)h[k].length * sizeof(int32_t));
            target[k][h[k].length] = t->decoding.end;
            s[k] =
                (bti_sentence){.ids = {ids.id, target[k]}, .count = {ids.count, h[k].length + 1}};
            score[k] = h[k].score;
        }
        for (int k = 0; k < N; k++) {
            bti_loss_sum sum = {0};
            kit_ok(bti_losses_run(t->losses, &s[k], 1, NULL, &sum));
            kit_near(score[k], -sum.nll / pow((double)s[k].count[1], 0.7), 1e-5);
        }
        bti_ids_free(&ids);
    }
    bt_translator_free(t);
}
END_TEST

/* ---- A3: one strange line ----------------------------------------------------------------------
 */

START_TEST(one_strange_line) {
    char *text = toy_text(LINES, 0), with[4000], without[4000], dots[801];
    for (int i = 0; i < 400; i++) memcpy(dots + 2 * i, ". ", 3);
    const char *rest = line_of(text, 8), *tail = strstr(text, rest);
    int head = (int)(strstr(text, line_of(text, 7)) - text);
    snprintf(with, sizeof with, "%.*s%s\n%s", head, text, dots, tail);
    snprintf(without, sizeof without, "%.*s%s\n%s", head, text, "ba", tail);
    free(text);
    /* The least that will do is told; a little more must be enough. */
    program p = translate(trained_model(), "--beam", "6", "--batch", "20", "--memory", "1MiB",
                          "--input", text_file(with));
    check_refused(p, "needs ");
    double least = atof(strstr(p.err, "needs ") + strlen("needs "));
    const char *memory = kit_str("%.0fMB", least * 1.048576 + 2);
    program want = translate(trained_model(), "--beam", "6", "--batch", "20", "--memory", memory,
                             "--input", text_file(without));
    check_status(want, 0);
    p = translate(trained_model(), "--beam", "6", "--batch", "20", "--memory", memory, "--input",
                  text_file(with));
    check_status(p, 0);
    check_has(p.err, "cut");
    ck_assert_int_eq(count_lines(p.out), LINES);
    for (int i = 1; i <= LINES; i++)
        if (i != 7) ck_assert_str_eq(line_of(p.out, i), line_of(want.out, i));
}
END_TEST

/* Killed half way: whole lines, each in its place. */
START_TEST(killed_half_way) {
    char *text = toy_text(9000, 0);
    const char *in = text_file(text), *out = kit_str("%s/out", kit_tmpdir());
    free(text);
    program want = translate(trained_model(), "--beam", "1", "--input", in);
    check_status(want, 0);
    program p = program_start(&(program_how){0},
                              (const char *const[]){"translate", trained_model(), "--threads", "1",
                                                    "--device", "cpu", "--beam", "1", "--input", in,
                                                    "--output", out, NULL});
    struct stat st = {0};
    while (stat(out, &st) != 0 || st.st_size == 0) usleep(500);
    kill(p.pid, SIGKILL);
    program_wait(&p);
    size_t n;
    char *part = kit_read(out, &n);
    ck_assert_uint_gt(n, 0);
    ck_assert_int_eq(part[n - 1], '\n');
    ck_assert(strncmp(part, want.out, n) == 0);
    free(part);
}
END_TEST

/* ---- F2: never finished ------------------------------------------------------------------------
 */

START_TEST(never_finished) {
    small_run r = small_run_new(40);
    check_status(train(r, "--updates", "1"), 0); /* knows nothing of ends */
    const char *in = text_file("ba ke\nli\n");
    program p = translate(r.out, "--input", in, "--beam", "2", "--max-length", "50");
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 2);
    ck_assert_uint_le(strlen(p.out), 2 * 50 * 16);
    p = translate(r.out, "--input", in, "--max-length", "1");
    check_status(p, 0);
    ck_assert_int_eq(count_lines(p.out), 2);
    p = translate(r.out, "--input", in, "--max-length", "999999999");
    check_status(p, 0);
    p = translate(trained_model(), "--input", in, "--length-penalty", "0", "--scores");
    check_status(p, 0);
    double score;
    ck_assert_int_eq(sscanf(p.out, "%lf\t", &score), 1);
    ck_assert(score < 0);
}
END_TEST

/* ---- C7: files that do not belong together -----------------------------------------------------
 */

/* A run whose sides have vocabularies of 40 and of 36 pieces, made by the program. */
static small_run two_vocabularies(void) {
    small_run r = small_run_new(300);
    kit_write_text(r.yaml, "output: out\n"
                           "data: {train: {source: train.de, target: train.en}, max_length: 64}\n"
                           "tokenizer:\n"
                           "  source: {model: a.model, size: 40}\n"
                           "  target: {model: b.model, size: 36}\n"
                           "model: {d_model: 16, ff: 16, heads: 2, encoder_layers: 1, "
                           "decoder_layers: 1}\n"
                           "training: {batch: 16, updates: 2}\n");
    check_status(train(r, "--updates", "2"), 0);
    return r;
}

START_TEST(vocabularies_swapped) {
    small_run r = two_vocabularies();
    const char *in = text_file("ba ke\n");
    check_status(translate(r.out, "--input", in), 0);
    ck_assert_int_eq(rename(in_out(r, "source.tokenizer"), in_out(r, "x")), 0);
    ck_assert_int_eq(rename(in_out(r, "target.tokenizer"), in_out(r, "source.tokenizer")), 0);
    ck_assert_int_eq(rename(in_out(r, "x"), in_out(r, "target.tokenizer")), 0);
    program p = translate(r.out, "--input", in);
    check_refused(p, in_out(r, "source.tokenizer"));
    check_has(p.err, "36 symbols");
    check_has(p.err, "40");
    ck_assert_str_eq(p.out, "");
    /* Neither will the run go on with them. */
    p = train(r, "--resume", "--updates", "3", "--set", "tokenizer.source.model=b.model", "--set",
              "tokenizer.source.size=36", "--set", "tokenizer.target.model=a.model", "--set",
              "tokenizer.target.size=40");
    check_refused(p, "tokeniser");
    check_has(p.err, "36");
    check_has(p.err, "40");
}
END_TEST

/* One word removed, and one changed so that the sizes agree. */
START_TEST(vocabulary_changed) {
    small_run r = small_run_with("aa ab\n", "ab\n");
    toy_proto whole, cut, other;
    const char *words[] = {"a", "b", "c", " "};
    toy_start_model(&whole, 1);
    toy_start_model(&cut, 1);
    toy_start_model(&other, 1);
    for (int i = 0; i < 4; i++) {
        toy_add_piece(&whole, words[i], -1, TOY_NORMAL);
        if (i != 2) toy_add_piece(&cut, words[i], -1, TOY_NORMAL);
        toy_add_piece(&other, i == 2 ? "d" : words[i], -1, TOY_NORMAL);
    }
    const char *model = toy_save_model(&whole, r.dir);
    check_status(train(r, "--updates", "1", "--set", kit_str("tokenizer.model=%s", model)), 0);
    const char *in = text_file("ab\n"), *copy = in_out(r, "source.tokenizer");
    check_status(translate(r.out, "--input", in), 0);
    for (int i = 0; i < 2; i++) {
        const char *wrong = toy_save_model(i ? &other : &cut, kit_tmpdir());
        size_t n;
        char *bytes = kit_read(wrong, &n);
        kit_write(copy, bytes, n);
        free(bytes);
        program p = translate(r.out, "--input", in);
        check_refused(p, copy);
        check_has(p.err, i ? "7 symbols" : "6 symbols");
        check_has(p.err, "model 7");
        check_has(p.err, "checksum");
        ck_assert_str_eq(p.out, "");
        p = train(r, "--resume", "--updates", "2", "--set", kit_str("tokenizer.model=%s", wrong));
        check_refused(p, wrong);
    }
    ck_assert_int_eq(unlink(copy), 0);
    check_status(translate(r.out, "--input", in), 0); /* the run file's own is still there */
    ck_assert_int_eq(unlink(model), 0);
    check_refused(translate(r.out, "--input", in), model);
}
END_TEST

/* ---- what cannot be translated -----------------------------------------------------------------
 */

START_TEST(wrong_models) {
    const char *dir = kit_tmpdir(), *model = kit_str("%s/model.safetensors", trained_model());
    check_refused(translate(kit_str("%s/nowhere", dir), "--beam", "1"), "nowhere");
    check_refused(translate(dir, "--beam", "1"), dir);
    const char *damaged = kit_str("%s/damaged", dir);
    size_t n;
    char *bytes = kit_read(model, &n);
    const size_t cut[] = {0, 1, 7, 9, 100, n / 2, n - 1, n};
    for (int i = 0; i < 8; i++) {
        if (cut[i] == n) bytes[n - 5] ^= 4;
        kit_write(damaged, bytes, cut[i]);
        check_refused(translate(damaged, "--beam", "1"), damaged);
    }
    free(bytes);
}
END_TEST

START_TEST(wrong_files) {
    const char *in = text_file("ba\n"), *model = trained_model();
    check_refused(translate(model, "--input", "/nowhere/in"), "/nowhere/in");
    program p = translate(model, "--input", in, "--output", kit_str("%s/out", in));
    check_status(p, 1);
    check_has(p.err, kit_str("%s/out", in));
    check_refused(translate(model, "--input", in, "--output", in), "same file");
    p = bantam_how((program_how){.input = in}, "translate", model, "--output", in);
    check_refused(p, "same file");
    ck_assert_str_eq(file_text(in), "ba\n");
    p = bantam_how((program_how){.file_limit = 4096}, "translate", model, "--threads", "1",
                   "--beam", "1", "--input", text_file(mixed(0)), "--output",
                   kit_str("%s/full", kit_tmpdir()));
    check_status(p, 0);
    char *many = toy_text(2000, 0);
    p = bantam_how((program_how){.file_limit = 4096}, "translate", model, "--threads", "1",
                   "--beam", "1", "--input", text_file(many), "--output",
                   kit_str("%s/full", kit_tmpdir()));
    free(many);
    check_status(p, 1);
    check_has(p.err, "cannot be written");
}
END_TEST

START_TEST(wrong_numbers) {
    const char *model = trained_model();
    static const char *const wrong[] = {
        "--beam=0",        "--beam=-1",    "--beam=x",   "--beam=100000", "--batch=0",
        "--max-length=0",  "--threads=-1", "--memory=0", "--memory=abc",  "--length-penalty=nan",
        "--device=abacus", "--nosuch",     "--n-best=0", "--n-best=5"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        check_status(bantam("translate", model, wrong[i]), 2);
}
END_TEST

/* Nothing comes in, and it waits; a signal ends it. */
START_TEST(signal_while_waiting) {
    const char *fifo = kit_str("%s/fifo", kit_tmpdir());
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    program p = program_start(&(program_how){0},
                              (const char *const[]){"translate", trained_model(), "--threads", "1",
                                                    "--device", "cpu", "--input", fifo, NULL});
    FILE *f = fopen(fifo, "w"); /* waits until the program has opened it */
    ck_assert_ptr_nonnull(f);
    fputs("ba ke\n", f);
    fflush(f);
    const char *out = kit_str("%s/out", p.dir);
    struct stat st = {0};
    while (stat(out, &st) != 0 || st.st_size == 0) usleep(1000);
    kill(p.pid, SIGTERM);
    program_wait(&p);
    fclose(f);
    check_status(p, 143);
    ck_assert_int_eq(count_lines(p.out), 1);
    check_has(p.err, kit_str("bantam translate: stopped by signal 15: %s was being read\n", fifo));
}
END_TEST

START_TEST(folder_as_input) {
    const char *dir = kit_tmpdir();
    check_refused(bantam("translate", trained_model(), "--input", dir),
                  kit_str("%s: is a folder, not a file", dir));
}
END_TEST

void add_translate(TCase *tc) {
    tcase_add_test(tc, folder_as_input);
    tcase_add_test(tc, lines_do_not_depend_on_the_batch);
    tcase_add_test(tc, same_lines_by_pipe_thread_and_file);
    tcase_add_test(tc, lists_of_hypotheses);
    tcase_add_test(tc, lists_of_cut_hypotheses);
    tcase_add_test(tc, scores_are_the_models);
    tcase_add_test(tc, one_strange_line);
    tcase_add_test(tc, killed_half_way);
    tcase_add_test(tc, never_finished);
    tcase_add_test(tc, vocabularies_swapped);
    tcase_add_test(tc, vocabulary_changed);
    tcase_add_test(tc, wrong_models);
    tcase_add_test(tc, wrong_files);
    tcase_add_test(tc, wrong_numbers);
    tcase_add_test(tc, signal_while_waiting);
}
