/* The program's own: sub-commands, options, exit status. It knows the library by bantam.h only, and
 * is the only place that prints or exits. */
#ifndef BANTAM_CLI_CLI_H
#define BANTAM_CLI_CLI_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/bantam.h"

/* Exit statuses; 128 + n after signal n. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_GO_ON = -1 };

typedef enum cli_kind {
    CLI_FLAG, /* int, set to 1 */
    CLI_TEXT, /* const char * */
    CLI_INT,  /* int64_t, at least `least` */
    CLI_REAL, /* double, at least `least` */
    CLI_LIST, /* cli_list: may be given again */
    CLI_WORDS /* cli_list: all words behind the fixed ones; without a name */
} cli_kind;

typedef struct cli_list {
    const char **text; /* lies at the front of argv, nothing to free; NULL while empty */
    size_t count;
} cli_list;

typedef struct cli_option {
    const char *name; /* without "--" */
    cli_kind kind;
    void *value;
    const char *argument; /* its name in the help: "N" */
    const char *help;
    int64_t least;
} cli_option;

typedef struct cli_command {
    const char *name, *arguments, *summary;
    int (*run)(const struct cli_command *self, int argc, char **argv);
    const char *note; /* closes its help; may be NULL */
} cli_command;

/* Options that several commands have; of what belongs to one of them, its own words. */
#define CLI_SET(sets) \
    { "set", CLI_LIST, sets, "KEY=VALUE", "overrides a key of the run file; again for more", 0 }
#define CLI_DEVICE(name, more) \
    { \
        "device", CLI_TEXT, name, "NAME", \
            "auto (default), cpu, cuda:0, opencl:0; of a list the first that fits" more, 0 \
    }
#define CLI_MEMORY(size) \
    { "memory", CLI_TEXT, size, "SIZE", "limit: 11GiB, 8000MB, bytes, auto (default)", 0 }
#define CLI_RUN_MEMORY(size) \
    { "memory", CLI_TEXT, size, "SIZE", "instead of memory.limit: 11GiB, 8000MB, bytes, auto", 0 }
#define CLI_THREADS(n) \
    { "threads", CLI_INT, n, "N", "threads of the CPU; 0: automatic", 0 }
#define CLI_BATCH(n, what) \
    { "batch", CLI_INT, n, "N", what " at once, at most; as many as fit, up to 64", 1 }
#define CLI_BEAM(n) \
    { "beam", CLI_INT, n, "N", "hypotheses kept (4); 1 is greedy search", 1 }
#define CLI_LENGTH_PENALTY(x) \
    { "length-penalty", CLI_REAL, x, "X", "score = log-probability / length^X (1)", 0 }
#define CLI_FEATURES(list) \
    { "features", CLI_LIST, list, "NAME=FILE", "examples of a feature; again for more", 0 }
#define CLI_SOURCE(file) \
    { "source", CLI_TEXT, file, "FILE", "text that the model reads, one example a line", 0 }
#define CLI_LABELS(file, more) \
    { "labels", CLI_TEXT, file, "FILE", "what is right, of a model that writes no text" more, 0 }

extern const cli_command cli_train, cli_plan, cli_translate, cli_predict, cli_evaluate, cli_score,
    cli_devices, cli_vocab, cli_data;

/* Reads the words behind the sub-command: options (ended by one with name NULL) anywhere, exactly
 * `count` others into `words`, more of them only where there is a CLI_WORDS. CLI_GO_ON, or the exit
 * status after a fault (one line on stderr) or after --help. A command has one list at most: it is
 * gathered at the front of argv, behind which every word has been read. */
int cli_parse(const cli_command *command, const cli_option *options, const char **words,
              size_t count, int argc, char **argv);

/* Of a number that was read: as an int, which no use of it needs to be larger than a million. */
static inline int cli_int(int64_t n) { return n < 1 << 20 ? (int)n : 1 << 20; }

/* Goes on with the one of `parts` (ended by NULL) that the first word names; their names are
 * "COMMAND PART". */
int cli_run_part(const cli_command *command, const cli_command *const *parts, int argc,
                 char **argv);

/* One line "bantam NAME: text" on stderr; returns CLI_USAGE. */
int cli_usage(const cli_command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints why a call failed, and returns the exit status that belongs to it. */
int cli_fail(const cli_command *command, bt_status status);
/* Prints a text of the library and frees it; the status is that of the call that made it. */
int cli_print(const cli_command *command, bt_status status, char *text);

/* The signal that asked to stop, 0 before. cli_catch_signals makes SIGINT, SIGTERM and (unless it
 * is ignored) SIGHUP set it; a second one that is no SIGHUP ends the program at once. */
extern volatile sig_atomic_t cli_stop;
void cli_catch_signals(void);
/* Says that the signal came while `input` was being read; returns the exit status. */
int cli_stopped(const cli_command *command, const char *input);

/* Sends the library's notices to stderr, from `least` on. */
void cli_show_log(bt_log_level least);

/* ---- files that are written (output.c) ---- */

/* Refuses an output (NULL: none) that is one of the inputs, which it would empty: `inputs` (NULL
 * among them: not given) and the files of `features`, "NAME=FILE" each (may be NULL). CLI_GO_ON, or
 * the exit status. */
int cli_check_output(const cli_command *command, const char *option, const char *output,
                     const char *const *inputs, size_t count, const cli_list *features);
/* One line with the text of an errno on stderr; returns CLI_FAILED. */
int cli_file_error(const cli_command *command, const char *path, const char *what, int error);

/* Lines into a file that is made, or emptied, when the first one is there: what fails before leaves
 * it as it was. Path NULL: standard output. */
typedef struct cli_lines {
    const char *path;
    FILE *file;
    int error; /* errno of what failed */
} cli_lines;
/* A bt_line_fn; user is the cli_lines. */
bt_status cli_put_line(void *user, const char *line);
/* Gives `status`, or BT_EIO where it was BT_OK and the lines could not be written. */
bt_status cli_close_lines(cli_lines *lines, bt_status status);

/* ---- progress of training (progress.c) ---- */

/* A bt_progress_fn; user is unused. On a terminal one line drawn again and again, elsewhere a plain
 * line about every 5 seconds; validations and checkpoints have their own lines. */
void cli_progress(void *user, const bt_progress *progress);
/* Shows the last update if it has not been shown, and ends the drawn line. */
void cli_progress_end(void);
/* Takes the drawn line away before something else is printed. */
void cli_progress_clear(void);

#endif
