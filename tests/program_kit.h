/* Runs the built program as its users do, and reads what it leaves: for the suite `program`. */
#ifndef BANTAM_TESTS_PROGRAM_KIT_H
#define BANTAM_TESTS_PROGRAM_KIT_H

#include <jansson.h>
#include <sys/types.h>

#include "tests/toy.h"

/* An address sanitizer holds memory of its own, and what was freed. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* What a process left. Texts are the kit's. */
typedef struct program {
    pid_t pid;
    const char *dir; /* where its output lies */
    int status;      /* exit status; -n when signal n ended it */
    const char *out, *err;
    int64_t peak; /* most resident bytes */
} program;

/* How it is run, beside its words. All zero: no input, this process's environment, no limits. */
typedef struct program_how {
    const char *input;       /* file; NULL: nothing */
    const char *environment; /* "NAME=value" more, one a line */
    const char *binary;      /* instead of bantam */
    uint64_t file_limit;     /* largest file it may write, with SIGXFSZ ignored */
} program_how;

/* Starts it with these words (NULL ends them), and waits. */
program program_start(const program_how *how, const char *const *words);
void program_wait(program *p);
/* The same; gives the most resident bytes that belonged to no file (/proc's RssAnon), looked at
 * every millisecond; 0 where there is no such file. */
int64_t program_wait_anonymous(program *p);
program program_run(const program_how *how, const char *const *words);
#define bantam(...) program_run(&(program_how){0}, (const char *const[]){__VA_ARGS__, NULL})
#define bantam_how(how, ...) program_run(&how, (const char *const[]){__VA_ARGS__, NULL})
/* Stderr so far of one that runs. */
const char *program_err(const program *p);
/* Sleeps until the running program's stderr holds `part`; fails the test when it ends first. */
void program_await(program *p, const char *part);

/* Status must be this; stderr is shown when it is not. */
#define check_status(p, want) \
    ck_assert_msg((p).status == (want), "status %d, not %d; stderr:\n%s", (p).status, want, (p).err)
#define check_has(text, part) \
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" lacks \"%s\"", text, part)
#define check_lacks(text, part) \
    ck_assert_msg(strstr(text, part) == NULL, "\"%s\" has \"%s\"", text, part)
/* The program must have refused: status 2 (wrong usage or bad input) and one line on stderr. */
#define check_refused(p, part) \
    do { \
        check_status(p, 2); \
        check_has((p).err, part); \
    } while (0)

/* ---- small runs ---- */

/* A folder with train.de, train.en and run.yaml: the toy tokeniser, width 32, one layer a side,
 * batches of 16, 20 updates, output `out`. */
typedef struct small_run {
    const char *dir, *yaml, *out;
} small_run;
small_run small_run_new(int lines);
small_run small_run_with(const char *source, const char *target);
/* Path of a file in the run's folder or output. */
const char *in_dir(small_run r, const char *name);
const char *in_out(small_run r, const char *name);
/* `bantam train` of it on one thread, with more words. */
#define train(r, ...) bantam("train", (r).yaml, "--threads", "1", "--device", "cpu", __VA_ARGS__)
/* The folder of a model that has learned the toy languages; made once a suite. */
const char *trained_model(void);

/* ---- files ---- */

int files_equal(const char *a, const char *b);
const char *file_text(const char *path); /* the kit's */
int is_file(const char *path);
int count_lines(const char *text);
/* Line n (from 1) of a text, without its end; the kit's. */
const char *line_of(const char *text, int n);
/* Newest checkpoint file of a folder; NULL: none. */
const char *newest_checkpoint(const char *folder);
/* Its update, -1 without one; all that there are must be whole, and no part of one there. */
int64_t whole_checkpoint(const char *folder);

/* ---- JSON ---- */

/* Of a text, a folder's log, or `plan --json` with these words after the run file. json_decref. */
json_t *parse_json(const char *text);
json_t *read_log(const char *folder); /* array of its lines */
json_t *plan_json(const char *yaml, const char *const *words, int status);
#define plan_of(yaml, status, ...) plan_json(yaml, (const char *const[]){__VA_ARGS__, NULL}, status)
double number_at(json_t *object, const char *field); /* fails the test when absent */
/* Exactly these fields, space-separated. */
void check_fields(json_t *object, const char *fields);

/* ---- the parts of the suite ---- */

void add_usage(TCase *tc);
void add_memory(TCase *tc);
void add_train(TCase *tc);
void add_data(TCase *tc);
void add_translate(TCase *tc);
void add_repeat(TCase *tc);
void add_valid(TCase *tc);
void add_check(TCase *tc);
void add_init(TCase *tc);
void add_half(TCase *tc);
void add_features(TCase *tc);
void add_folder(TCase *tc);

/* ---- devices ---- */

/* The first entry of a backend in `devices --json` with these settings more; json_decref. The
 * reason why it is not usable; the kit's. */
json_t *device_with(const char *backend, const char *environment);
const char *reason_with(const char *backend, const char *environment);

/* ---- runs on two devices ---- */

/* Losses of the logs in two output folders: of the first update to 1e-5, of later ones to 1e-3. */
void losses_agree(const char *a, const char *b);
/* The same to the last digit. */
void losses_same(const char *a, const char *b);
/* A small run on the device, resumed there and then on the cpu, against the same on the cpu alone:
 * losses agree, and its model translates the same on both. */
void same_as_cpu(const char *device);

#endif
