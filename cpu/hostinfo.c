/* What this process may use of the machine: processors and memory, within the limits of its control
 * group (version 2, and version 1's cpu and memory controllers). Read when a device is opened or
 * asked, never by an op. */
#include "cpu/hostinfo.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a small file as text; 0 when it cannot be. */
static int read_text(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(out, 1, size - 1, f);
    fclose(f);
    out[n] = 0;
    return n > 0;
}

/* The number after `key` in a file of "key value" lines, in the file's units. */
static int read_field(const char *path, const char *key, uint64_t *out) {
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    char line[512];
    int found = 0;
    size_t n = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) != 0 || isalnum((unsigned char)line[n]) || line[n] == '_')
            continue;
        const char *p = line + n;
        while (*p == ':' || isspace((unsigned char)*p)) p++;
        char *end;
        *out = strtoull(p, &end, 10);
        found = end != p;
    }
    fclose(f);
    return found;
}

/* ---- control groups -------------------------------------------------------------------------- */

#define GROUP_PATH 1024

/* This process's group below the mount point of a controller: "" (version 2) or "cpu", "memory".
 * The group of a container is often its root, so that the path inside may not exist: then callers
 * find the files at the mount point, where the walk upward ends. */
static int group_path(const char *controller, char *out) {
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return 0;
    char line[GROUP_PATH];
    int found = 0;
    while (!found && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        char *save = NULL;
        if (!*controller) {
            found = names[1] == 0;
        } else {
            for (char *t = strtok_r(names + 1, ",", &save); t; t = strtok_r(NULL, ",", &save))
                found |= strcmp(t, controller) == 0;
        }
        if (found) snprintf(out, GROUP_PATH, "%s", path);
    }
    fclose(f);
    return found;
}

/* Calls `look` with the folder of this process's group and of each group above it. */
static void walk_groups(const char *controller, void (*look)(const char *dir, void *user),
                        void *user) {
    char path[GROUP_PATH], dir[2 * GROUP_PATH];
    if (!group_path(controller, path)) return;
    for (;;) {
        snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s%s", *controller ? "/" : "", controller, path);
        look(dir, user);
        char *slash = strrchr(path, '/');
        if (!slash) return;
        *slash = 0;
    }
}

static void look_quota2(const char *dir, void *user) {
    char path[2 * GROUP_PATH + 16], text[128];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!read_text(path, text, sizeof text)) return;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return;
    double cpus = (double)quota / (double)period, *least = user;
    if (cpus < *least) *least = cpus;
}

static void look_quota1(const char *dir, void *user) {
    char path[2 * GROUP_PATH + 32], quota[64], period[64];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", dir);
    if (!read_text(path, quota, sizeof quota)) return;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
    if (!read_text(path, period, sizeof period)) return;
    double q = atof(quota), p = atof(period), *least = user;
    if (q > 0 && p > 0 && q / p < *least) *least = q / p;
}

int btcpu_usable_threads(void) {
    int count = 0;
    for (int max = 1024; max <= 1 << 20 && count == 0;
         max *= 4) { /* the kernel's mask may be long */
        cpu_set_t *set = CPU_ALLOC(max);
        if (!set) break;
        CPU_ZERO_S(CPU_ALLOC_SIZE(max), set);
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(max), set) == 0)
            count = CPU_COUNT_S(CPU_ALLOC_SIZE(max), set);
        CPU_FREE(set);
    }
    if (count < 1) count = 1;
    double quota = count;
    walk_groups("", look_quota2, &quota);
    walk_groups("cpu", look_quota1, &quota);
    /* A quota of 1.5 keeps two threads three quarters busy: better than one. */
    int allowed = (int)quota < quota ? (int)quota + 1 : (int)quota;
    return allowed < 1 ? 1 : allowed < count ? allowed : count;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct group_memory {
    uint64_t limit, room;
} group_memory;

static void note_group(group_memory *g, uint64_t limit, uint64_t used, uint64_t cache) {
    uint64_t held = used > cache ? used - cache : 0;
    uint64_t room = limit > held ? limit - held : 0;
    if (limit < g->limit) g->limit = limit;
    if (room < g->room) g->room = room;
}

static void look_memory(const char *dir, const char *limit_name, const char *used_name,
                        const char *cache_key, group_memory *g) {
    char path[2 * GROUP_PATH + 32], text[64];
    uint64_t cache = 0;
    snprintf(path, sizeof path, "%s/%s", dir, limit_name);
    if (!read_text(path, text, sizeof text) || !isdigit((unsigned char)text[0])) return;
    uint64_t limit = strtoull(text, NULL, 10);
    snprintf(path, sizeof path, "%s/%s", dir, used_name);
    if (!read_text(path, text, sizeof text)) return;
    uint64_t used = strtoull(text, NULL, 10);
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    read_field(path, cache_key, &cache);
    note_group(g, limit, used, cache);
}

static void look_memory2(const char *dir, void *user) {
    look_memory(dir, "memory.max", "memory.current", "inactive_file", user);
}

static void look_memory1(const char *dir, void *user) {
    look_memory(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", user);
}

static group_memory group_limits(void) {
    group_memory g = {UINT64_MAX, UINT64_MAX};
    walk_groups("", look_memory2, &g);
    walk_groups("memory", look_memory1, &g);
    return g;
}

uint64_t btcpu_total_memory(void) {
    uint64_t kib, total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (read_field("/proc/meminfo", "MemTotal", &kib)) total = kib * 1024;
    group_memory g = group_limits();
    return g.limit < total ? g.limit : total;
}

uint64_t btcpu_available_memory(void) {
    uint64_t kib, room = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (read_field("/proc/meminfo", "MemAvailable", &kib)) room = kib * 1024;
    group_memory g = group_limits();
    return g.room < room ? g.room : room;
}

uint64_t btcpu_anonymous_memory(void) {
    uint64_t kib;
    return read_field("/proc/self/status", "RssAnon", &kib) ? kib * 1024 : 0;
}

void btcpu_cpu_name(char *out, size_t size) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, size, "CPU");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, size, "%.*s", (int)(size - 1), colon + 2);
        break;
    }
    if (f) fclose(f);
}
