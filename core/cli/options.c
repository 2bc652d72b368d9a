/* Options of the sub-commands: "--name value" or "--name=value", anywhere among the words; "--"
 * ends them. Names are not cut short, so that a new option never changes what an old script means.
 */
#include "core/cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_usage(const cli_command *command, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "bantam %s: ", command->name);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "; see bantam %s --help\n", command->name);
    va_end(ap);
    return CLI_USAGE;
}

static void print_help(const cli_command *command, const cli_option *options) {
    printf("Usage: bantam %s %s%s[option]...\n%s\n\nOptions:\n", command->name, command->arguments,
           command->arguments[0] ? " " : "", command->summary);
    for (const cli_option *o = options; o->name != NULL; o++) {
        char left[64];
        if (o->kind == CLI_WORDS) continue;
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "",
                 o->argument ? o->argument : "");
        printf("  %-22s %s\n", left, o->help);
    }
    printf("  %-22s %s\n", "--help", "this text");
    if (command->note != NULL) printf("\n%s", command->note);
}

static const cli_option *find(const cli_option *options, const char *name, size_t bytes) {
    for (; options->name != NULL; options++)
        if (options->kind != CLI_WORDS && strlen(options->name) == bytes &&
            strncmp(options->name, name, bytes) == 0)
            return options;
    return NULL;
}

static int set_number(const cli_command *command, const cli_option *o, const char *value) {
    char *end;
    errno = 0;
    if (o->kind == CLI_INT) {
        long long v = strtoll(value, &end, 10);
        if (value[0] == 0 || *end != 0 || errno != 0 || v < o->least)
            return cli_usage(command, "--%s: \"%s\" is not a whole number of at least %lld",
                             o->name, value, (long long)o->least);
        *(int64_t *)o->value = v;
    } else {
        double v = strtod(value, &end);
        if (value[0] == 0 || *end != 0 || !(v >= (double)o->least && v <= 1e300))
            return cli_usage(command, "--%s: \"%s\" is not a number of at least %lld", o->name,
                             value, (long long)o->least);
        *(double *)o->value = v;
    }
    return CLI_GO_ON;
}

/* The word at argv[list->count] has been read: each value of the list took one at least. */
static void add(cli_list *list, char *value, char **argv) {
    argv[list->count++] = value;
    list->text = (const char **)argv;
}

static int set_option(const cli_command *command, const cli_option *o, char *value, char **argv) {
    switch (o->kind) {
    case CLI_FLAG:
        *(int *)o->value = 1;
        return CLI_GO_ON;
    case CLI_TEXT:
        *(const char **)o->value = value;
        return CLI_GO_ON;
    case CLI_LIST:
        add(o->value, value, argv);
        return CLI_GO_ON;
    default:
        return set_number(command, o, value);
    }
}

/* The option at argv[*at]; moves *at to its last word. */
static int take_option(const cli_command *command, const cli_option *options, int *at, int argc,
                       char **argv) {
    char *name = argv[*at] + 2, *value = strchr(name, '=');
    size_t bytes = value ? (size_t)(value - name) : strlen(name);
    const cli_option *o = find(options, name, bytes);
    if (o == NULL) return cli_usage(command, "there is no option --%.*s", (int)bytes, name);
    if (o->kind == CLI_FLAG && value != NULL)
        return cli_usage(command, "--%s takes no value", o->name);
    if (o->kind == CLI_FLAG || value != NULL)
        return set_option(command, o, value ? value + 1 : NULL, argv);
    if (*at + 1 >= argc || strncmp(argv[*at + 1], "--", 2) == 0)
        return cli_usage(command, "--%s needs a value (%s)", o->name, o->argument);
    return set_option(command, o, argv[++*at], argv);
}

int cli_parse(const cli_command *command, const cli_option *options, const char **words,
              size_t count, int argc, char **argv) {
    size_t found = 0;
    int only_words = 0;
    cli_list *more = NULL;
    for (const cli_option *o = options; o->name != NULL; o++)
        if (o->kind == CLI_WORDS) more = o->value;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (!only_words && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            print_help(command, options);
            return CLI_DONE;
        }
        if (!only_words && strcmp(word, "--") == 0) {
            only_words = 1;
        } else if (!only_words && strncmp(word, "--", 2) == 0) {
            int status = take_option(command, options, &i, argc, argv);
            if (status != CLI_GO_ON) return status;
        } else if (!only_words && word[0] == '-' && word[1] != 0) {
            return cli_usage(command, "there is no option %s", word);
        } else if (found == count && more != NULL) {
            add(more, word, argv);
        } else if (found == count) {
            return cli_usage(command, "one word too many: %s", word);
        } else {
            words[found++] = word;
        }
    }
    if (found < count) return cli_usage(command, "%s expected", command->arguments);
    return CLI_GO_ON;
}

int cli_run_part(const cli_command *command, const cli_command *const *parts, int argc,
                 char **argv) {
    const char *word = argc > 0 ? argv[0] : "";
    size_t skip = strlen(command->name) + 1;
    char list[128] = "";
    for (int i = 0; parts[i] != NULL; i++) {
        size_t used = strlen(list);
        if (strcmp(parts[i]->name + skip, word) == 0)
            return parts[i]->run(parts[i], argc - 1, argv + 1);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", parts[i]->name + skip);
    }
    if (strcmp(word, "--help") != 0 && strcmp(word, "-h") != 0)
        return cli_usage(command, "%s expected%s%s", list, word[0] ? ", not " : "", word);
    printf("Usage: bantam %s %s\n%s\n\n", command->name, command->arguments, command->summary);
    for (int i = 0; parts[i] != NULL; i++)
        printf("  %-14s %s\n", parts[i]->name, parts[i]->summary);
    printf("\n\"bantam %s PART --help\" tells the options of one.\n", command->name);
    return CLI_DONE;
}
