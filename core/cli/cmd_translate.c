/* bantam translate: lines in, lines out, in order and as they are made. Input is taken in blocks:
 * as much as is there without waiting, up to a limit, so that a file gives large batches and a pipe
 * or terminal gets its answer at once. Each line goes out by its own write, so that a kill leaves
 * whole lines. */
#include "core/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20, BLOCK_LINES = 4096, NUL_WARNINGS = 10 };

typedef struct job {
    const cli_command *self;
    const char *in_name, *out_name;
    int in, out, scores, json, ended;
    int64_t nbest;   /* 0: plain lines */
    int64_t before;  /* lines of earlier blocks */
    int write_error; /* errno of the write that failed */
    char *data;      /* read and not yet translated; one byte more for an end mark */
    size_t bytes, room;
    const char **line; /* of the block */
    size_t lines, lines_room;
    int64_t line_number, nul_lines; /* of all blocks so far */
    char *text;                     /* a line on its way out */
    size_t text_room;
} job;

static int fail(const job *j, const char *name, const char *what) {
    return cli_file_error(j->self, name, what, errno);
}

static void *grow(void *p, size_t *room, size_t need, size_t size) {
    if (need <= *room) return p;
    void *more = realloc(p, 2 * need * size);
    if (more != NULL) *room = 2 * need;
    return more;
}

/* ---- output ------------------------------------------------------------------------------------
 */

static int write_all(int fd, const char *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return 0;
        data += n;
        bytes -= (size_t)n;
    }
    return 1;
}

/* Text inside a JSON string; at most six bytes for one. */
static char *escape(char *to, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20)
            to += sprintf(to, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            *to++ = '\\', *to++ = *text;
        else
            *to++ = *text;
    }
    *to = 0;
    return to;
}

/* Line numbers count from 0, as Moses and Marian have them. */
static int format_line(const job *j, char *out, size_t room, int64_t line, const char *text,
                       double score) {
    if (j->json) {
        int n = snprintf(out, room, "{\"line\": %lld, \"score\": %.6f, \"text\": \"",
                         (long long)line, score);
        char *end = escape(out + n, text);
        return (int)(end + sprintf(end, "\"}\n") - out);
    }
    if (j->nbest > 0)
        return snprintf(out, room, "%lld ||| %s ||| %.6f\n", (long long)line, text, score);
    if (j->scores) return snprintf(out, room, "%.6f\t%s\n", score, text);
    return snprintf(out, room, "%s\n", text);
}

static bt_status sink(void *user, size_t index, const char *text, double score) {
    job *j = user;
    char *line = grow(j->text, &j->text_room, 6 * strlen(text) + 400, 1);
    if (line == NULL) return BT_ENOMEM;
    j->text = line;
    int n = format_line(j, line, j->text_room, j->before + (int64_t)index, text, score);
    if (write_all(j->out, line, (size_t)n)) return BT_OK;
    j->write_error = errno;
    return BT_EIO;
}

/* ---- input -------------------------------------------------------------------------------------
 */

static int is_more_there(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* Waits for input, or for the signal that asks to stop. That may come just before the wait or be
 * handled by another thread, and would not end the wait then: hence the looks in between. */
static void wait_for_input(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (!cli_stop && poll(&p, 1, 200) <= 0)
        ;
}

/* Reads until there is a whole line and either the block is full or the next read would wait. */
static int fill(job *j) {
    size_t seen = 0;
    for (int whole = 0; !j->ended;) {
        whole = whole || (j->bytes > seen && memchr(j->data + seen, '\n', j->bytes - seen) != NULL);
        seen = j->bytes;
        if (whole && (j->bytes >= BLOCK_BYTES || !is_more_there(j->in))) break;
        char *more = grow(j->data, &j->room, j->bytes + BLOCK_BYTES / 4 + 1, 1);
        if (more == NULL) return fail(j, j->in_name, "cannot be held in memory");
        j->data = more;
        wait_for_input(j->in);
        if (cli_stop) return cli_stopped(j->self, j->in_name);
        ssize_t n = read(j->in, j->data + j->bytes, BLOCK_BYTES / 4);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(j, j->in_name, "cannot be read");
        j->ended = n == 0;
        j->bytes += (size_t)n;
    }
    return CLI_GO_ON;
}

/* A byte 00 would end the text: it becomes a blank. A CR before the line end is dropped. */
static void clean_line(job *j, char *line, size_t bytes) {
    if (bytes > 0 && line[bytes - 1] == '\r') bytes--;
    line[bytes] = 0;
    j->line_number++;
    if (strlen(line) == bytes) return;
    if (j->nul_lines++ < NUL_WARNINGS)
        fprintf(stderr, "warning: %s: line %lld has a byte 00, read as a blank\n", j->in_name,
                (long long)j->line_number);
    for (size_t i = 0; i < bytes; i++)
        if (line[i] == 0) line[i] = ' ';
}

/* A byte order mark before the first line is not of the text. */
static void skip_mark(job *j) {
    if (j->line_number > 0 || j->bytes < 3 || memcmp(j->data, "\xEF\xBB\xBF", 3) != 0) return;
    j->bytes -= 3;
    memmove(j->data, j->data + 3, j->bytes);
}

/* Cuts whole lines off the data (the last one may lack its end), at most BLOCK_LINES; *used are
 * their bytes. */
static int cut_lines(job *j, size_t *used) {
    j->lines = 0;
    *used = 0;
    while (j->lines < BLOCK_LINES && *used < j->bytes) {
        char *line = j->data + *used, *end = memchr(line, '\n', j->bytes - *used);
        if (end == NULL && !j->ended) break;
        size_t bytes = end ? (size_t)(end - line) : j->bytes - *used;
        void *more = grow(j->line, &j->lines_room, j->lines + 1, sizeof *j->line);
        if (more == NULL) return fail(j, j->in_name, "cannot be held in memory");
        j->line = more;
        j->line[j->lines++] = line;
        clean_line(j, line, bytes);
        *used += bytes + (end != NULL);
    }
    return CLI_GO_ON;
}

/* ---- the whole ---------------------------------------------------------------------------------
 */

static int translate(job *j, bt_translator *translator) {
    for (;;) {
        int code = fill(j);
        if (code != CLI_GO_ON) return code;
        skip_mark(j);
        while (j->bytes > 0) {
            size_t used;
            code = cut_lines(j, &used);
            if (code != CLI_GO_ON) return code;
            if (j->lines == 0) break;
            bt_status status = bt_translate(translator, j->line, j->lines, sink, j);
            if (j->write_error) {
                errno = j->write_error;
                return fail(j, j->out_name, "cannot be written");
            }
            if (status != BT_OK) return cli_fail(j->self, status);
            j->before += (int64_t)j->lines;
            memmove(j->data, j->data + used, j->bytes - used);
            j->bytes -= used;
        }
        if (j->ended) return CLI_DONE;
    }
}

/* A model that reads features alone: its examples stand for lines. */
static int translate_examples(job *j, bt_translator *translator, size_t count) {
    const char *lines[64];
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) lines[i] = "";
    for (size_t n; count > 0; count -= n) {
        n = count < sizeof lines / sizeof lines[0] ? count : sizeof lines / sizeof lines[0];
        bt_status status = bt_translate(translator, lines, n, sink, j);
        if (j->write_error) {
            errno = j->write_error;
            return fail(j, j->out_name, "cannot be written");
        }
        if (status != BT_OK) return cli_fail(j->self, status);
        j->before += (int64_t)n;
    }
    return CLI_DONE;
}

/* Beside text every example belongs to a line; that there are too few is told by the line. */
static int translate_all(job *j, bt_translator *translator) {
    size_t examples = bt_translator_examples(translator);
    if (!bt_translator_reads_text(translator)) return translate_examples(j, translator, examples);
    int code = translate(j, translator);
    if (code != CLI_DONE || examples == 0 || j->before == (int64_t)examples) return code;
    return cli_usage(j->self,
                     "%s has %lld lines, the features have %zu examples: is it their text?",
                     j->in_name, (long long)j->before, examples);
}

/* A pipe by its name waits for its writer here. */
static int open_input(job *j, const char *path) {
    struct stat st;
    j->in_name = path ? path : "standard input";
    do {
        if (cli_stop) return cli_stopped(j->self, j->in_name);
        j->in = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
    } while (j->in < 0 && errno == EINTR);
    if (j->in >= 0 && fstat(j->in, &st) == 0 && S_ISDIR(st.st_mode))
        return cli_usage(j->self, "%s: is a folder, not a file", j->in_name);
    if (j->in >= 0) return CLI_GO_ON;
    fail(j, j->in_name, "cannot be opened");
    return CLI_USAGE;
}

static int open_output(job *j, const char *path) {
    j->out_name = path ? path : "standard output";
    j->out = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : STDOUT_FILENO;
    return j->out < 0 ? fail(j, path, "cannot be made") : CLI_GO_ON;
}

static int close_files(job *j, int code) {
    if (j->in > STDERR_FILENO) close(j->in);
    if (j->out > STDERR_FILENO && close(j->out) != 0 && code == CLI_DONE)
        code = fail(j, j->out_name, "cannot be written");
    if (j->nul_lines > NUL_WARNINGS)
        fprintf(stderr, "warning: %s: %lld lines have a byte 00\n", j->in_name,
                (long long)j->nul_lines);
    free(j->data);
    free(j->line);
    free(j->text);
    return code;
}

static int run(const cli_command *self, int argc, char **argv) {
    const char *model, *input = NULL, *output = NULL;
    bt_translate_options o = BT_TRANSLATE_DEFAULTS;
    int64_t beam = o.beam, batch = o.batch, threads = o.threads;
    job j = {.self = self, .in = -1, .out = -1};
    bt_translator *translator = NULL;
    cli_list features = {NULL, 0};
    const cli_option options[] = {
        {"input", CLI_TEXT, &input, "FILE", "text, one sentence a line; default: standard input",
         0},
        {"output", CLI_TEXT, &output, "FILE", "translations; default: standard output", 0},
        CLI_FEATURES(&features),
        CLI_BEAM(&beam),
        CLI_LENGTH_PENALTY(&o.length_penalty),
        {"max-length", CLI_INT, &o.max_length, "N", "symbols of a translation at most", 1},
        CLI_BATCH(&batch, "sentences"),
        {"scores", CLI_FLAG, &j.scores, NULL, "score and tab before each translation", 0},
        {"n-best", CLI_INT, &j.nbest, "N",
         "N hypotheses a line, best first: LINE ||| TEXT ||| SCORE", 1},
        {"json", CLI_FLAG, &j.json, NULL, "each as JSON: {\"line\", \"score\", \"text\"}", 0},
        CLI_DEVICE(&o.device, ""),
        CLI_MEMORY(&o.memory),
        CLI_THREADS(&threads),
        {.name = NULL}};
    int code = cli_parse(self, options, &model, 1, argc, argv);
    if (code != CLI_GO_ON) return code;
    o.features = features.text;
    o.feature_count = features.count;
    o.beam = cli_int(beam);
    o.batch = cli_int(batch);
    o.threads = cli_int(threads);
    if (j.nbest > beam)
        return cli_usage(self, "--n-best: %lld hypotheses of a beam of %lld", (long long)j.nbest,
                         (long long)beam);
    o.nbest = j.nbest > 0 ? cli_int(j.nbest) : 1;
    o.stop = &cli_stop;
    cli_catch_signals();
    code = open_input(&j, input);
    const char *const inputs[] = {model, input ? input : "/dev/stdin"};
    if (code == CLI_GO_ON) code = cli_check_output(self, "output", output, inputs, 2, &features);
    if (code != CLI_GO_ON) return close_files(&j, code);
    bt_status status = bt_translator_open(model, &o, &translator);
    code = status == BT_OK ? open_output(&j, output) : cli_fail(self, status);
    if (code == CLI_GO_ON) code = translate_all(&j, translator);
    bt_translator_free(translator);
    return close_files(&j, code);
}

const cli_command cli_translate = {
    "translate", "MODEL", "translates text with a trained model, in input order", run,
    "MODEL is a checkpoint or the output folder of a run.\n"
    "With --n-best, lines count from 0; a blank line has one empty "
    "hypothesis, and a line\nwhose hypotheses were cut by the length "
    "limit has those last.\n"};
