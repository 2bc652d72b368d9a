/* Files that commands write: never one of those that they read, and not made before there is
 * something to write. */
#include "core/cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Pipes and terminals may be both. */
static int is_same_file(const struct stat *a, const char *path) {
    struct stat b;
    return S_ISREG(a->st_mode) && stat(path, &b) == 0 && a->st_dev == b.st_dev &&
           a->st_ino == b.st_ino;
}

static int refuse(const cli_command *command, const char *option, const char *output,
                  const char *input) {
    return cli_usage(command, "--%s: %s is the same file as the input %s", option, output, input);
}

int cli_check_output(const cli_command *command, const char *option, const char *output,
                     const char *const *inputs, size_t count, const cli_list *features) {
    struct stat s;
    if (output == NULL || stat(output, &s) != 0) return CLI_GO_ON;
    for (size_t i = 0; i < count; i++)
        if (inputs[i] != NULL && is_same_file(&s, inputs[i]))
            return refuse(command, option, output, inputs[i]);
    for (size_t i = 0; features != NULL && i < features->count; i++) {
        const char *path = strchr(features->text[i], '='); /* NAME=FILE */
        if (path != NULL && is_same_file(&s, path + 1))
            return refuse(command, option, output, path + 1);
    }
    return CLI_GO_ON;
}

int cli_file_error(const cli_command *command, const char *path, const char *what, int error) {
    fprintf(stderr, "bantam %s: %s: %s: %s\n", command->name, path, what, strerror(error));
    return CLI_FAILED;
}

/* ---- lines -------------------------------------------------------------------------------------
 */

static bt_status open_lines(cli_lines *out) {
    if (out->file != NULL) return BT_OK;
    out->file = out->path ? fopen(out->path, "w") : stdout;
    if (out->file != NULL) return BT_OK;
    out->error = errno;
    return BT_EIO;
}

bt_status cli_put_line(void *user, const char *line) {
    cli_lines *out = user;
    bt_status status = open_lines(out);
    if (status != BT_OK) return status;
    if (fputs(line, out->file) >= 0 && putc('\n', out->file) != EOF) return BT_OK;
    out->error = errno;
    return BT_EIO;
}

bt_status cli_close_lines(cli_lines *out, bt_status status) {
    if (status == BT_OK) status = open_lines(out); /* of no line an empty file */
    if (out->path == NULL || out->file == NULL) return status;
    if (fclose(out->file) == 0) return status;
    if (out->error == 0) out->error = errno;
    return status == BT_OK ? BT_EIO : status;
}
