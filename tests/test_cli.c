/* The program's own part: options, exit statuses, signals, lines in and out, progress. The library
 * behind it is played by played.c. */
#include "tests/kit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

int cli_main(int argc, char **argv); /* main of core/cli/main.c, renamed by the build */

/* ---- running the program -----------------------------------------------------------------------
 */

typedef struct result {
    int code;
    char *out, *err;
} result;

static void to_fd(int fd, const char *path, int flags) {
    int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(99);
    close(file);
}

static int split(char *line, char **argv) {
    int argc = 0;
    argv[argc++] = "bantam";
    for (char *w = strtok(line, " "); w != NULL; w = strtok(NULL, " ")) argv[argc++] = w;
    argv[argc] = NULL;
    return argc;
}

/* In a child, so that signals and exits are its own. */
static result run_to(const char *words, const char *input, size_t input_bytes, const char *out) {
    const char *dir = kit_tmpdir();
    const char *in = kit_str("%s/in", dir), *err = kit_str("%s/err", dir);
    kit_write(in, input ? input : "", input_bytes);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *argv[64], *line = strdup(words);
        to_fd(0, in, O_RDONLY);
        to_fd(1, out ? out : kit_str("%s/out", dir), O_WRONLY | O_CREAT);
        to_fd(2, err, O_WRONLY | O_CREAT);
        int code = cli_main(split(line, argv), argv);
        fflush(stdout);
        _exit(code);
    }
    int state;
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    result r = {.code = WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state)};
    r.out = out ? strdup("") : kit_read(kit_str("%s/out", dir), NULL);
    r.err = kit_read(err, NULL);
    return r;
}

static void result_free(result r) {
    free(r.out);
    free(r.err);
}

static void expect(const char *words, int code, const char *out, const char *err) {
    result r = run_to(words, NULL, 0, NULL);
    ck_assert_msg(r.code == code, "bantam %s: exit status %d, not %d: %s", words, r.code, code,
                  r.err);
    ck_assert_msg(strstr(r.out, out) != NULL, "bantam %s: \"%s\" lacks \"%s\"", words, r.out, out);
    ck_assert_msg(strstr(r.err, err) != NULL, "bantam %s: \"%s\" lacks \"%s\"", words, r.err, err);
    result_free(r);
}

/* Wrong usage: status 2, one line on stderr, nothing on stdout. */
static void usage(const char *words, const char *err) {
    result r = run_to(words, NULL, 0, NULL);
    ck_assert_msg(r.code == 2, "bantam %s: exit status %d", words, r.code);
    ck_assert_msg(strstr(r.err, err) != NULL, "bantam %s: \"%s\" lacks \"%s\"", words, r.err, err);
    ck_assert_msg(strchr(r.err, '\n') == r.err + strlen(r.err) - 1, "not one line: %s", r.err);
    ck_assert_str_eq(r.out, "");
    result_free(r);
}

START_TEST(wrong_usage) {
    usage("trian run.yaml", "there is no command trian");
    usage("--verbose", "there is no option --verbose");
    usage("train", "RUN.yaml expected");
    usage("train a b", "one word too many: b");
    usage("train a --memroy 3", "there is no option --memroy; see bantam train --help");
    usage("train a -x", "there is no option -x");
    usage("train a --device", "--device needs a value (NAME)");
    usage("train a --device --resume", "--device needs a value");
    usage("train a --resume=1", "--resume takes no value");
    usage("plan a --plot c.svg", "--plot goes with --sweep");
    static const char *const wrong[] = {"50",   "50:",  ":50",  "0:0", "5:-1",
                                        "-5:5", "5:-5", "5:5x", "x",   "5:99999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        usage(kit_str("plan a --lengths=%s", wrong[i]), "is no pair of token counts");
    usage("train a --updates 0", "\"0\" is not a whole number of at least 1");
    usage("train a --updates -5", "\"-5\" is not");
    usage("train a --updates 3x", "\"3x\" is not");
    usage("train a --updates=", "\"\" is not");
    usage("train a --updates 99999999999999999999", "is not a whole number");
    usage("train a --threads -1", "at least 0");
    usage("translate", "MODEL expected");
    usage("translate m --beam 0", "at least 1");
    usage("translate m --length-penalty -1", "is not a number of at least 0");
    usage("translate m --length-penalty nan", "is not a number");
    usage("translate m --input /nonexistent/file", "/nonexistent/file");
    usage("score a", "HYPOTHESIS REFERENCE expected");
    usage("score a b c", "one word too many: c");
    usage("score a b --word-order 1", "--word-order: 1 is neither 0 nor 2");
    usage("score a b --tokenize", "--tokenize needs a value (KIND)");
    usage("devices cpu", "one word too many: cpu");
    expect("", 2, "", "Usage: bantam COMMAND");
}
END_TEST

START_TEST(help_and_version) {
    expect("--version", 0, "bantam " BT_VERSION "\n", "");
    expect("--help", 0, "translate MODEL", "");
    expect("help", 0, "Exit status:", "");
    static const char *const name[] = {
        "train",        "plan",         "translate",    "evaluate", "score",
        "devices",      "data",         "data check",   "vocab",    "vocab train",
        "vocab encode", "vocab decode", "vocab inspect"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        expect(kit_str("%s --help", name[i]), 0, kit_str("Usage: bantam %s", name[i]), "");
        expect(kit_str("%s -h", name[i]), 0, "--help", "");
    }
    expect("train --keys", 0, "the keys", "");
    usage("train --keys a", "--keys goes alone");
    usage("train --keys --resume", "--keys goes alone");
}
END_TEST

START_TEST(exit_statuses) {
    static const int want[] = {
        [BT_OK] = 0,  [BT_EUSAGE] = 2,  [BT_EINPUT] = 2,   [BT_EFIT] = 2,     [BT_ENOMEM] = 1,
        [BT_EIO] = 1, [BT_EDEVICE] = 1, [BT_ENUMERIC] = 1, [BT_ESTOPPED] = 1, [BT_EINTERNAL] = 1};
    ck_assert_int_eq(sizeof want / sizeof want[0], BT_STATUS_COUNT);
    for (int i = 0; i < BT_STATUS_COUNT; i++)
        expect(kit_str("train status-%d", i), want[i], "", i ? "bantam train: as asked\n" : "");
    expect("train bad.yaml", 2, "", "bantam train: bad.yaml:3: no\n");
    expect("translate damaged", 2, "", "bantam translate: damaged: checksum differs\n");
    expect("score short b", 2, "", "bantam score: 2 lines and 1\n");
}
END_TEST

START_TEST(signals) {
    expect("train once.yaml", 128 + SIGTERM, "", "stopped by signal 15");
    expect("train twice.yaml", 128 + SIGINT, "", "");
    expect("train late.yaml", 0, "", "");
}
END_TEST

START_TEST(options_arrive) {
    expect("train a", 0, "train on - in - resume 0 updates 0 threads 0\n", "");
    expect("train --device cuda:1 a --memory=-5 --set a=b=c --resume --updates 7 --set d=e "
           "--threads 3",
           0, "set a=b=c\nset d=e\ntrain on cuda:1 in -5 resume 1 updates 7 threads 3\n", "");
    expect("train --updates 3 --updates 4 a", 0, "updates 4", "");
    expect("train -- --a", 0, "train on", "");
    expect("translate options --beam 6 --length-penalty 0.5 --max-length 9 --batch 3 --threads 2 "
           "--device cpu --memory 1GiB",
           0, "", "beam 6 penalty 0.5 longest 9 batch 3 threads 2 device cpu memory 1GiB\n");
    expect("translate options", 0, "",
           "beam 4 penalty 1 longest 0 batch 0 threads 0 device - memory -\n");
}
END_TEST

START_TEST(plan_score_devices) {
    expect("plan a --set x=1", 0, "set x=1\nplan for - in -\nfits\n", "");
    expect("plan a --device k80 --json", 0, "plan for k80 in -\n{\"fits\": true}\n", "");
    expect("plan a --memory 1MiB", 2, "plan for - in 1MiB\ndoes not fit\n", "");
    expect("plan a --memory 1MiB --json", 2, "{\"fits\": false}\n", "");
    expect("plan a --lengths 709:32", 0, "pairs of 709 and 32\nfits\n", "");
    expect("plan a --svg m.svg --html=m.html", 0, "map in m.svg\npage in m.html\nfits\n", "");
    static const char *const options[] = {"svg", "html", "sweep --plot"};
    for (int i = 0; i < 3; i++)
        expect(kit_str("plan a --%s train.en", options[i]), 2, "",
               kit_str("bantam plan: --%s: train.en is the same file as the input train.en",
                       i == 2 ? "plot" : options[i]));
    expect("plan a --html /full", 1, "", "bantam plan: /full: no space\n");
    expect("plan a --largest-batch", 0, "7 pairs\n", "");
    expect("plan a --largest-batch --json", 0, "{\"largest_batch\": 7}\n", "");
    expect("plan a --largest-batch --memory 1MiB", 2, "7 pairs\n", "");
    expect("plan a --sweep --plot c.svg --memory 1MiB", 0, "curve in c.svg\na table\n", "");
    expect("plan a --sweep --json", 0, "{\"sweep\": []}\n", "");
    expect("score a b", 0, "BLEU = 0\n", "");
    expect("score options b", 0, "BLEU = 0\n", "tokenize - lowercase 0 chrf 0 word order 0\n");
    expect("score options b --tokenize zh --lowercase --chrf", 0, "BLEU = 0\n",
           "tokenize zh lowercase 1 chrf 1 word order 0\n");
    expect("score options b --word-order 0", 0, "BLEU = 0\n",
           "tokenize - lowercase 0 chrf 1 word order 0\n");
    expect("score options b --word-order=2 --tokenize=intl", 0, "BLEU = 0\n",
           "tokenize intl lowercase 0 chrf 1 word order 2\n");
    expect("score options b --json", 0, "{}\n", "tokenize - lowercase 0 chrf 1 word order 0\n");
    expect("devices", 0, "cpu: ready\n", "");
    expect("devices --json", 0, "{\"devices\": []}\n", "");
    result r = run_to("devices", NULL, 0, "/dev/full");
    ck_assert_int_eq(r.code, 1);
    ck_assert_ptr_nonnull(strstr(r.err, "standard output cannot be written"));
    result_free(r);
}
END_TEST

START_TEST(vocab_data_evaluate) {
    expect("vocab train --tokenizer words a --model m --size 9 b", 0,
           "words m - size 9 least 1\nfile a\nfile b\n", "");
    expect("vocab train --tokenizer spacy a --model m --size 9 --min-count 2 --vocabulary v", 0,
           "spacy m v size 9 least 2\nfile a\n", "");
    expect("vocab inspect --tokenizer words --model m --pieces 3", 0, "3 pieces\n", "");
    expect("vocab inspect --tokenizer words --model m --json", 0, "{\"size\": 1}\n", "");
    expect("vocab inspect --tokenizer words --model damaged", 2, "",
           "bantam vocab inspect: damaged: no model\n");
    expect("vocab encode --tokenizer words --model m", 0, "ids of -\n", "");
    expect("vocab encode --tokenizer words --model m --json a b", 0, "json of a\njson of b\n", "");
    expect("vocab decode --tokenizer words --model m a", 0, "text of a\n", "");
    usage("vocab decode --tokenizer words --model m --json", "there is no option --json");
    usage("vocab", "train, inspect, encode, decode expected; see bantam vocab --help");
    usage("vocab encode --model m", "--tokenizer KIND is missing");
    usage("vocab encode --tokenizer words", "--model FILE is missing");
    usage("vocab train --tokenizer words --model m a", "--size N is missing");
    usage("vocab train --tokenizer words --model m --size 3", "FILE... expected");
    expect("data check a --set x=1", 0, "set x=1\na\n", "");
    expect("data check a --json", 0, "{\"train\": 1}\n", "");
    expect("data check bad.yaml", 2, "", "bantam data check: bad.yaml:3: no\n");
    usage("data a", "check expected, not a");
    expect("evaluate m --source s --reference r --beam 2 --batch 3 --threads 1 --memory 1GiB", 0,
           "m s r beam 2 batch 3 threads 1 memory 1GiB\nloss 1\n", "");
    expect("evaluate m --source s --reference r --json", 0, "beam 4 batch 0 threads 0 memory -\n",
           "");
    usage("evaluate m --source s", "--reference FILE is missing, or --labels FILE");
    expect("evaluate m --features i=x --labels l", 0,
           "predict with m, features 1, labels l\nscores\n", "");
    usage("evaluate m --features i=x --labels l --reference r", "--reference and --labels");
    usage("evaluate m --features i=x --labels l --beam 2", "--beam goes with --reference");
    usage("evaluate m --features i=x --labels l --length-penalty 1",
          "--length-penalty goes with --reference");
    usage("evaluate m --labels l", "--source FILE is missing");
    usage("evaluate --source s --reference r", "MODEL expected");
    result r = run_to("vocab encode --tokenizer words --model m", NULL, 0, "/dev/full");
    ck_assert_int_eq(r.code, 1);
    ck_assert_ptr_nonnull(strstr(r.err, "standard output cannot be written"));
    result_free(r);
}
END_TEST

/* ---- translate ---------------------------------------------------------------------------------
 */

static void translates(const char *words, const char *in, size_t bytes, const char *out,
                       const char *err) {
    result r = run_to(words, in, bytes, NULL);
    ck_assert_msg(r.code == 0, "exit status %d: %s", r.code, r.err);
    ck_assert_str_eq(r.out, out);
    ck_assert_msg(err[0] ? strstr(r.err, err) != NULL : r.err[0] == 0, "stderr: %s", r.err);
    result_free(r);
}

START_TEST(lines) {
    translates("translate m", "", 0, "", "");
    translates("translate m", "\n", 1, "<>\n", "");
    translates("translate m", "a\n\n b \nc", 8, "<a>\n<>\n< b >\n<c>\n", "");
    translates("translate m", "a\r\nb\rc\r\nd\r", 10, "<a>\n<b\rc>\n<d>\n", "");
    translates("translate m --scores", "a\nb\n", 4, "-0.500000\t<a>\n-0.500000\t<b>\n", "");
    translates("translate m", "a\nx\0y\n\0\nz\n", 10, "<a>\n<x y>\n< >\n<z>\n",
               "warning: standard input: line 2 has a byte 00, read as a blank\nwarning: standard "
               "input: line 3 has");
}
END_TEST

START_TEST(several_hypotheses) {
    translates("translate m --n-best 2", "a\n\n|||\n", 7,
               "0 ||| <a> ||| -0.500000\n0 ||| <a> ||| -1.500000\n"
               "1 ||| <> ||| -0.500000\n1 ||| <> ||| -1.500000\n"
               "2 ||| <|||> ||| -0.500000\n2 ||| <|||> ||| -1.500000\n",
               "");
    translates("translate m --n-best 1", "a\n", 2, "0 ||| <a> ||| -0.500000\n", "");
    translates("translate m --json", "a\"\\\t\xC3\xA4\n\n", 8,
               "{\"line\": 0, \"score\": -0.500000, \"text\": \"<a\\\"\\\\\\u0009\xC3\xA4>\"}\n"
               "{\"line\": 1, \"score\": -0.500000, \"text\": \"<>\"}\n",
               "");
    translates("translate m --json --n-best 2 --beam 2", "a\n", 2,
               "{\"line\": 0, \"score\": -0.500000, \"text\": \"<a>\"}\n"
               "{\"line\": 0, \"score\": -1.500000, \"text\": \"<a>\"}\n",
               "");
    usage("translate m --n-best 0", "at least 1");
    usage("translate m --n-best 5", "5 hypotheses of a beam of 4");
    usage("translate m --n-best 9999999999 --beam 8", "9999999999 hypotheses of a beam of 8");
}
END_TEST

/* Lines are counted over all blocks of the input. */
START_TEST(lines_are_numbered_throughout) {
    enum { LINES = 10000 };
    char *in = malloc(LINES * 2 + 1), *out = malloc(LINES * 32);
    size_t n = 0, m = 0;
    for (int i = 0; i < LINES; i++) {
        n += (size_t)sprintf(in + n, "a\n");
        m += (size_t)sprintf(out + m, "%d ||| <a> ||| -0.500000\n", i);
    }
    translates("translate m --n-best 1", in, n, out, "");
    free(in);
    free(out);
}
END_TEST

START_TEST(many_lines) {
    enum { LINES = 30000, LONG = 3 << 20 };
    char *in = malloc(LINES * 16 + LONG), *out = malloc(LINES * 16 + LONG);
    size_t n = 0, m = 0;
    for (int i = 0; i < LINES; i++) {
        n += (size_t)sprintf(in + n, "line %d\n", i);
        m += (size_t)sprintf(out + m, "<line %d>\n", i);
        if (i != 10000) continue;
        out[m++] = '<';
        memset(in + n, 'x', LONG);
        memset(out + m, 'x', LONG);
        n += LONG;
        m += LONG;
        in[n++] = '\n';
        m += (size_t)sprintf(out + m, ">\n");
    }
    out[m] = 0;
    translates("translate m", in, n, out, "");
    free(in);
    free(out);
}
END_TEST

START_TEST(files) {
    const char *dir = kit_tmpdir();
    const char *in = kit_str("%s/in", dir), *out = kit_str("%s/out", dir);
    kit_write_text(in, "a\nFAIL\nb\n");
    expect(kit_str("translate m --input %s --output %s", in, out), 1, "", "the device is lost");
    char *text = kit_read(out, NULL);
    ck_assert_str_eq(text, "<a>\n");
    free(text);
    /* nothing is lost when the model cannot be read */
    expect(kit_str("translate damaged --input %s --output %s", in, out), 2, "", "damaged");
    text = kit_read(out, NULL);
    ck_assert_str_eq(text, "<a>\n");
    free(text);
    kit_write_text(in, "\xEF\xBB\xBF" /* a byte order mark is no text */
                       "a\nb\n");
    expect(kit_str("translate m --input %s --output %s", in, out), 0, "", "");
    text = kit_read(out, NULL);
    ck_assert_str_eq(text, "<a>\n<b>\n");
    free(text);
    expect(kit_str("translate m --input %s --output /dev/full", in), 1, "",
           "/dev/full: cannot be written");
    expect(kit_str("translate m --input %s --output /nonexistent/x", in), 1, "", "/nonexistent/x");
    expect(kit_str("translate m --input %s", dir), 2, "", "is a folder, not a file");
}
END_TEST

/* A pipe is answered line by line, and a signal ends the wait for more. */
START_TEST(conversation) {
    int to[2], from[2];
    ck_assert(pipe(to) == 0 && pipe(from) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {"bantam", "translate", "m", NULL};
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        to_fd(2, "/dev/null", O_WRONLY);
        _exit(cli_main(3, argv));
    }
    close(to[0]);
    close(from[1]);
    for (int i = 0; i < 3; i++) {
        char answer[16] = "";
        ck_assert_int_eq(write(to[1], "ab", 2), 2);
        ck_assert_int_eq(write(to[1], "c\n", 2), 2);
        ck_assert_int_eq(read(from[0], answer, sizeof answer), 6);
        ck_assert_str_eq(answer, "<abc>\n");
    }
    ck_assert_int_eq(write(to[1], "half", 4), 4);
    kill(child, SIGTERM);
    int state;
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert_msg(WIFEXITED(state) && WEXITSTATUS(state) == 128 + SIGTERM, "state %x", state);
    close(to[1]);
    close(from[0]);
}
END_TEST

/* ---- progress ----------------------------------------------------------------------------------
 */

START_TEST(plain_progress) {
    result r = run_to("train progress.yaml", NULL, 0, NULL);
    ck_assert_int_eq(r.code, 0);
    /* the first update at once; those within 5 seconds together at the end, without the NaN */
    ck_assert_str_eq(
        r.err, "update 1/4  epoch 1  loss 8.0000  250 examples/s  left 1h02m  memory 1.50 GiB\n"
               "update 2: saved out/checkpoint\n"
               "update 4/4  epoch 1  loss 2.3333  250 examples/s  memory 1.50 GiB\n");
    result_free(r);
}
END_TEST

START_TEST(drawn_progress) {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
        kit_skip("no pseudo-terminal");
        return;
    }
    int held = open(ptsname(terminal), O_RDWR | O_NOCTTY); /* keeps what was written readable */
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {"bantam", "train", "progress.yaml", NULL};
        to_fd(1, "/dev/null", O_WRONLY);
        to_fd(2, ptsname(terminal), O_WRONLY | O_NOCTTY);
        _exit(cli_main(3, argv));
    }
    int state;
    ck_assert_int_eq(waitpid(child, &state, 0), child);
    ck_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    char text[4096] = "";
    ssize_t n = read(terminal, text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    ck_assert_ptr_nonnull(strstr(text, "\rupdate 1/4  epoch 1"));
    ck_assert_ptr_nonnull(strstr(text, "\r\033[Kupdate 2: saved"));
    ck_assert_ptr_nonnull(strstr(text, "\rupdate 4/4"));
    ck_assert_str_eq(text + n - 2, "\r\n");
    close(held);
    close(terminal);
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, wrong_usage);
    tcase_add_test(tc, help_and_version);
    tcase_add_test(tc, exit_statuses);
    tcase_add_test(tc, signals);
    tcase_add_test(tc, options_arrive);
    tcase_add_test(tc, plan_score_devices);
    tcase_add_test(tc, vocab_data_evaluate);
    tcase_add_test(tc, lines);
    tcase_add_test(tc, several_hypotheses);
    tcase_add_test(tc, lines_are_numbered_throughout);
    tcase_add_test(tc, many_lines);
    tcase_add_test(tc, files);
    tcase_add_test(tc, conversation);
    tcase_add_test(tc, plain_progress);
    tcase_add_test(tc, drawn_progress);
}

int main(int argc, char **argv) { return kit_main("cli", add, argc, argv); }
