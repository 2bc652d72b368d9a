/* bantam: finds the sub-command; exit statuses and signals of all of them. */
#include "core/cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cli_train,   &cli_plan,     &cli_translate,
                                              &cli_predict, &cli_evaluate, &cli_score,
                                              &cli_data,    &cli_vocab,    &cli_devices};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *f) {
    fprintf(f,
            "bantam %s: trains Transformers in the memory you have, on the device you have\n\n"
            "Usage: bantam COMMAND ...\n\n",
            BT_VERSION);
    for (int i = 0; i < COMMANDS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", commands[i]->name, commands[i]->arguments);
        fprintf(f, "  %-28s %s\n", left, commands[i]->summary);
    }
    fprintf(f, "\n\"bantam COMMAND --help\" tells its options.\n"
               "Exit status: 0 done; 1 failed at run time; 2 wrong usage, bad input, or a run that "
               "does not fit; 128 + n after signal n.\n");
}

/* ---- exit status -------------------------------------------------------------------------------
 */

static int exit_status(bt_status status) {
    switch (status) {
    case BT_OK:
        return CLI_DONE;
    case BT_EUSAGE:
    case BT_EINPUT:
    case BT_EFIT:
        return CLI_USAGE;
    case BT_ESTOPPED:
        return cli_stop ? 128 + cli_stop : CLI_FAILED;
    default:
        return CLI_FAILED;
    }
}

int cli_fail(const cli_command *command, bt_status status) {
    const char *text = bt_last_error();
    cli_progress_clear();
    if (status == BT_ESTOPPED && cli_stop)
        fprintf(stderr, "bantam %s: stopped by signal %d: %s\n", command->name, (int)cli_stop,
                text[0] ? text : bt_status_text(status));
    else
        fprintf(stderr, "bantam %s: %s\n", command->name, text[0] ? text : bt_status_text(status));
    return exit_status(status);
}

int cli_print(const cli_command *command, bt_status status, char *text) {
    if (status != BT_OK) return cli_fail(command, status);
    size_t bytes = strlen(text);
    fwrite(text, 1, bytes, stdout);
    if (bytes == 0 || text[bytes - 1] != '\n') putchar('\n');
    bt_free(text);
    return CLI_DONE;
}

/* ---- signals and notices -----------------------------------------------------------------------
 */

volatile sig_atomic_t cli_stop;

static void on_signal(int number) {
    /* a terminal that is closed may send several SIGHUP */
    if (cli_stop && number != SIGHUP) _exit(128 + number);
    if (!cli_stop) cli_stop = number;
}

/* Without SA_RESTART, so that a read that waits for input ends too. */
void cli_catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal}, old;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &action, NULL);
}

int cli_stopped(const cli_command *command, const char *input) {
    fprintf(stderr, "bantam %s: stopped by signal %d: %s was being read\n", command->name,
            (int)cli_stop, input);
    return exit_status(BT_ESTOPPED);
}

static bt_log_level log_least;

static void on_log(void *user, bt_log_level level, const char *text) {
    (void)user;
    if (level == BT_LOG_STALLED) {
        fprintf(stderr,
                "\nbantam: %s\nbantam: ends here; checkpoints that were written are whole: train "
                "--resume goes on from the newest, on any device\n",
                text);
        _exit(CLI_FAILED);
    }
    if (level < log_least) return;
    cli_progress_clear();
    fprintf(stderr, "%s%s\n", level == BT_LOG_WARN ? "warning: " : "", text);
}

void cli_show_log(bt_log_level least) {
    log_least = least;
    bt_set_log(on_log, NULL);
}

/* ---- main --------------------------------------------------------------------------------------
 */

static const cli_command *find(const char *name) {
    for (int i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("bantam %s\n", BT_VERSION);
        return CLI_DONE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return CLI_DONE;
    }
    const cli_command *command = find(name);
    if (command != NULL) return command->run(command, argc - 2, argv + 2);
    fprintf(stderr, "bantam: there is no %s %s; see bantam --help\n",
            name[0] == '-' ? "option" : "command", name);
    return CLI_USAGE;
}

/* Threads that wait for the others spin for some microseconds, then sleep: a thread that shares its
 * core with another program would otherwise wait for one that only spins. GNU's OpenMP runtime
 * reads this when a module that uses it is opened. */
static void spin_shortly(void) {
    if (getenv("OMP_WAIT_POLICY") == NULL) (void)setenv("GOMP_SPINCOUNT", "1000", 0);
}

int main(int argc, char **argv) {
    spin_shortly();
    cli_show_log(BT_LOG_WARN);
    int status = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "bantam: standard output cannot be written\n");
    return status == CLI_DONE ? CLI_FAILED : status;
}
