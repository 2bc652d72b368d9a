#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace cusim {

static settings current;
static bool have_settings;

void die(const char *format, ...) {
    char runner[256];
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "cusim: %s: ", describe_runner(runner, sizeof runner));
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    abort();
}

/* "12", "12g", "1.5GiB". */
static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    if (text == nullptr || text[0] == 0) return otherwise;
    char *end;
    const double value = strtod(text, &end);
    const char *units = "kmgt", *unit = *end != 0 ? strchr(units, *end | 32) : nullptr;
    const bool well = *end == 0 || (unit != nullptr && (end[1] == 0 || !strcmp(end + 1, "iB")));
    if (end == text || value < 0 || !well) {
        fprintf(stderr, "cusim: %s=%s is no number\n", name, text);
        abort();
    }
    double scale = 1;
    if (unit != nullptr)
        for (int i = 0; i <= unit - units; i++) scale *= 1024;
    return (uint64_t)(value * scale);
}

static std::vector<int> list(const char *name) {
    std::vector<int> out;
    const char *text = getenv(name);
    while (text != nullptr && *text != 0) {
        char *end;
        out.push_back((int)strtol(text, &end, 10));
        text = *end == ',' ? end + 1 : end;
        if (out.back() == 0) break;
    }
    return out;
}

/* Of so many devices those that CUDA_VISIBLE_DEVICES names, up to the first that is not there. */
static int visible(int devices) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) return devices;
    char *end;
    for (int seen = 0;; seen++, text = end + 1) {
        const long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= devices) return seen;
        if (*end != ',') return *end == 0 ? seen + 1 : seen;
    }
}

void read_settings() {
    settings s;
    const uint64_t mib = 1 << 20;
    s.devices = visible((int)number("CUSIM_DEVICES", 1));
    s.arch = (int)number("CUSIM_ARCH", 37);
    s.driver = (int)number("CUSIM_DRIVER", 11040);
    s.count_error = (int)number("CUSIM_COUNT_ERROR", 0);
    s.images = list("CUSIM_IMAGES");
    s.memory = number("CUSIM_MEM", 12 * 1024 * mib);
    s.context = number("CUSIM_CONTEXT", 64 * mib);
    s.others = number("CUSIM_OTHERS", 0);
    s.largest = number("CUSIM_MAX_ALLOC", 0);
    s.cublas_handle = number("CUSIM_CUBLAS", 8 * mib);
    const char *order = getenv("CUSIM_ORDER");
    s.order = order == nullptr || !strcmp(order, "fwd") ? thread_order::forward
              : !strcmp(order, "rev")                   ? thread_order::reverse
                                                        : thread_order::random;
    s.order_seed = s.order == thread_order::random ? number("CUSIM_ORDER", 1) : 1;
    s.async = number("CUSIM_ASYNC", 1);
    s.protect = number("CUSIM_PROTECT", 1) != 0;
    const char *race = getenv("CUSIM_RACE");
    s.race_grid = race != nullptr && !strcmp(race, "grid");
    s.trace = number("CUSIM_TRACE", 0) != 0;
    s.fail_call = number("CUSIM_FAIL_CALL", 0);
    s.fail_malloc = number("CUSIM_FAIL_MALLOC", 0);
    s.fail_host = number("CUSIM_FAIL_HOST", 0);
    s.fail_launch = number("CUSIM_FAIL_LAUNCH", 0);
    s.fail_kernel = number("CUSIM_FAIL_KERNEL", 0);
    s.wrong = number("CUSIM_WRONG", 0);
    s.lost = number("CUSIM_LOST", 0);
    s.hang = number("CUSIM_HANG", 0);
    current = s;
    have_settings = true;
}

const settings &config() {
    if (!have_settings) read_settings();
    return current;
}

} // namespace cusim
