/* How training shows that it goes on. Loss and speed are those of all updates since the last line,
 * weighted by target tokens (examples): single updates are noise. */
#include "core/cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static struct {
    int started, terminal, drawn; /* drawn: the line stands on the terminal */
    double shown;                 /* when the last line was made */
    bt_progress last;
    int pending; /* `last` has not been shown */
    double loss_sum, loss_tokens, tokens, seconds;
} state;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void format_duration(double seconds, char out[32]) {
    long s = (long)(seconds < 1e8 ? seconds + 0.5 : 1e8);
    if (s >= 86400)
        snprintf(out, 32, "%ldd%02ldh", s / 86400, s / 3600 % 24);
    else if (s >= 3600)
        snprintf(out, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    else
        snprintf(out, 32, "%ldm%02lds", s / 60, s % 60);
}

static void format_bytes(uint64_t bytes, char out[32]) {
    if (bytes >= 1u << 30)
        snprintf(out, 32, "%.2f GiB", (double)bytes / (1u << 30));
    else
        snprintf(out, 32, "%.1f MiB", (double)bytes / (1u << 20));
}

static void add(char *line, size_t bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *line, size_t bytes, const char *fmt, ...) {
    size_t used = strlen(line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line + used, bytes - used, fmt, ap);
    va_end(ap);
}

static void format_line(char *line, size_t bytes) {
    const bt_progress *p = &state.last;
    char text[32];
    line[0] = 0;
    add(line, bytes, "update %lld", (long long)p->update);
    if (p->last_update > 0) add(line, bytes, "/%lld", (long long)p->last_update);
    add(line, bytes, "  epoch %lld", (long long)p->epoch);
    if (state.loss_tokens > 0) add(line, bytes, "  loss %.4f", state.loss_sum / state.loss_tokens);
    if (state.seconds > 0) add(line, bytes, "  %.0f %ss/s", state.tokens / state.seconds, p->unit);
    if (p->seconds_left >= 0) {
        format_duration(p->seconds_left, text);
        add(line, bytes, "  left %s", text);
    }
    format_bytes(p->peak_bytes, text);
    add(line, bytes, "  memory %s", text);
    if (p->skipped > 0) add(line, bytes, "  skipped %lld", (long long)p->skipped);
}

static void show(double at) {
    char line[256];
    struct winsize size;
    format_line(line, sizeof line);
    if (!state.terminal) {
        fprintf(stderr, "%s\n", line);
    } else {
        int wide = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
        fprintf(stderr, "\r%.*s\033[K", wide ? size.ws_col - 1 : 79, line);
        fflush(stderr);
        state.drawn = 1;
    }
    state.shown = at;
    state.pending = 0;
    state.loss_sum = state.loss_tokens = state.tokens = state.seconds = 0;
}

static void on_update(const bt_progress *p) {
    double at = now(), tokens = (double)p->target_tokens;
    state.last = *p;
    state.pending = 1;
    if (isfinite(p->loss)) {
        state.loss_sum += p->loss * tokens;
        state.loss_tokens += tokens;
    }
    if (p->tokens_per_s > 0) {
        state.tokens += tokens;
        state.seconds += tokens / p->tokens_per_s;
    }
    if (state.started && at - state.shown < (state.terminal ? 0.2 : 5)) return;
    state.started = 1;
    show(at);
}

void cli_progress_clear(void) {
    if (!state.drawn) return;
    fprintf(stderr, "\r\033[K");
    state.drawn = 0;
}

void cli_progress(void *user, const bt_progress *p) {
    (void)user;
    if (!state.started) state.terminal = isatty(STDERR_FILENO);
    if (p->kind == BT_PROGRESS_UPDATE) {
        on_update(p);
        return;
    }
    cli_progress_clear();
    /* Of a validation the library tells more than fits here. */
    if (p->kind == BT_PROGRESS_CHECKPOINT)
        fprintf(stderr, "update %lld: saved %s\n", (long long)p->update, p->path);
}

void cli_progress_end(void) {
    if (state.pending) show(now());
    if (state.drawn) fprintf(stderr, "\n");
    state.drawn = 0;
}
