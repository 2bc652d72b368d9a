#include "tests/program_kit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/engine/checkpoint.h"
#include "core/fit/rates.h"

extern char **environ;

/* A test that fails leaves its process behind: it must not outlive the suite. */
static pid_t running;
static void end_running(void) {
    if (running > 0) kill(running, SIGKILL);
}

/* ---- processes ---------------------------------------------------------------------------------
 */

static const char *binary(void) {
    const char *path = getenv("BANTAM_PROGRAM");
    return path ? path : "build/bantam";
}

/* One set of rates for all: plans of two runs of the same kind are the same, and nothing is kept in
 * the folder of who runs the tests. */
static const char *rates(void) {
    static char text[4096];
    if (text[0] != 0) return text;
    bti_rates r;
    bti_rates_default(&(bt_dev_info){0}, &r);
    const char *path = kit_str("%s/rates.json", kit_tmpdir());
    kit_ok(bti_rates_save(path, "tests", 0, &r));
    snprintf(text, sizeof text, "BANTAM_RATES=%s", path);
    return text;
}

/* Whether `entry` sets what one of `more` sets. */
static int is_set(const char *entry, char *const *more) {
    for (; *more != NULL; more++)
        if (strncmp(entry, *more, strcspn(*more, "=") + 1) == 0) return 1;
    return 0;
}

static char **environment(const char *settings) {
    char *more[16] = {NULL}, *rest = NULL;
    size_t n = 0, own = 0;
    if (settings != NULL) rest = (char *)(uintptr_t)kit_str("%s", settings);
    while (rest != NULL) {
        ck_assert_uint_lt(own + 1, sizeof more / sizeof more[0]);
        more[own++] = strsep(&rest, "\n");
    }
    while (environ[n] != NULL) n++;
    char **all = calloc(n + own + 2, sizeof *all);
    ck_assert_ptr_nonnull(all);
    memcpy(all, more, own * sizeof *all);
    for (size_t i = 0; i < n; i++)
        if (!is_set(environ[i], more)) all[own++] = environ[i];
    all[own] = (char *)(uintptr_t)rates();
    return all;
}

/* Limits are inherited: they are set here and taken back. */
static void limit_files(uint64_t bytes, struct rlimit *old) {
    getrlimit(RLIMIT_FSIZE, old);
    struct rlimit now = *old;
    if (bytes == 0) return;
    now.rlim_cur = bytes;
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &now), 0);
}

program program_start(const program_how *how, const char *const *words) {
    const char *argv[64] = {how->binary ? how->binary : binary()};
    for (size_t i = 0; words[i] != NULL; i++) {
        ck_assert_uint_lt(i + 2, 64);
        argv[i + 1] = words[i];
    }
    program p = {.dir = kit_tmpdir()};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, how->input ? how->input : "/dev/null", O_RDONLY, 0);
    for (int fd = 1; fd <= 2; fd++)
        posix_spawn_file_actions_addopen(&files, fd,
                                         kit_str("%s/%s", p.dir, fd == 1 ? "out" : "err"),
                                         O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    char **env = environment(how->environment);
    struct rlimit old;
    limit_files(how->file_limit, &old);
    int error = posix_spawnp(&p.pid, argv[0], &files, NULL, (char *const *)(uintptr_t)argv, env);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    posix_spawn_file_actions_destroy(&files);
    free(env);
    ck_assert_msg(error == 0, "cannot start %s: %s", argv[0], strerror(error));
    if (running == 0) atexit(end_running);
    end_running();
    running = p.pid;
    return p;
}

void program_wait(program *p) {
    struct rusage use;
    int status;
    while (wait4(p->pid, &status, 0, &use) < 0) ck_assert_int_eq(errno, EINTR);
    if (running == p->pid) running = -1;
    p->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    p->peak = (int64_t)use.ru_maxrss * 1024;
    p->out = file_text(kit_str("%s/out", p->dir));
    p->err = file_text(kit_str("%s/err", p->dir));
}

/* "RssAnon:  123 kB" of a process that may have ended. */
static int64_t anonymous_bytes(pid_t pid) {
    FILE *f = fopen(kit_str("/proc/%d/status", (int)pid), "r");
    char line[128];
    long long kib = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "RssAnon: %lld", &kib) == 1) break;
    if (f != NULL) fclose(f);
    return kib * 1024;
}

int64_t program_wait_anonymous(program *p) {
    siginfo_t info = {0};
    int64_t most = 0;
    while (info.si_pid == 0) {
        int64_t now = anonymous_bytes(p->pid);
        if (now > most) most = now;
        usleep(1000);
        ck_assert_int_eq(waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    program_wait(p);
    return most;
}

program program_run(const program_how *how, const char *const *words) {
    program p = program_start(how, words);
    program_wait(&p);
    return p;
}

const char *program_err(const program *p) {
    const char *path = kit_str("%s/err", p->dir);
    return is_file(path) ? file_text(path) : "";
}

void program_await(program *p, const char *part) {
    const char *path = kit_str("%s/err", p->dir);
    for (;;) {
        char *text = is_file(path) ? kit_read(path, NULL) : NULL;
        int found = text != NULL && strstr(text, part) != NULL;
        free(text);
        if (found) return;
        siginfo_t info = {0};
        ck_assert_int_eq(waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        ck_assert_msg(info.si_pid == 0, "ended before \"%s\": %s", part, program_err(p));
        usleep(2000);
    }
}

/* ---- files -------------------------------------------------------------------------------------
 */

int is_file(const char *path) { return access(path, F_OK) == 0; }

const char *file_text(const char *path) {
    char *text = kit_read(path, NULL);
    const char *own = kit_str("%s", text);
    free(text);
    return own;
}

int files_equal(const char *a, const char *b) {
    size_t n, m;
    char *x = kit_read(a, &n), *y = kit_read(b, &m);
    int same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

int count_lines(const char *text) { return toy_count(text, "\n"); }

const char *line_of(const char *text, int n) {
    while (--n > 0) {
        text = strchr(text, '\n');
        ck_assert_ptr_nonnull(text);
        text++;
    }
    return kit_str("%.*s", (int)strcspn(text, "\n"), text);
}

const char *newest_checkpoint(const char *folder) {
    char newest[256] = "";
    DIR *d = opendir(folder);
    if (d == NULL) return NULL;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        if (strncmp(e->d_name, "checkpoint-", 11) == 0 && strstr(e->d_name, ".part") == NULL &&
            strcmp(e->d_name, newest) > 0)
            snprintf(newest, sizeof newest, "%s", e->d_name);
    closedir(d);
    return newest[0] ? kit_str("%s/%s", folder, newest) : NULL;
}

int64_t whole_checkpoint(const char *folder) {
    bti_checkpoint *c = NULL;
    int64_t last = -1, update = -1;
    if (!is_file(folder)) return -1;
    kit_ok(bti_checkpoint_newest(folder, &c));
    if (c != NULL) update = c->info.update;
    bti_checkpoint_close(c);
    kit_ok(bti_checkpoint_last(folder, &last));
    ck_assert_int_eq(update, last);
    ck_assert_int_eq(toy_entries(folder, ".part"), 0);
    return update;
}

/* ---- JSON --------------------------------------------------------------------------------------
 */

json_t *parse_json(const char *text) {
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    ck_assert_msg(j != NULL, "%s (line %d): %s", e.text, e.line, text);
    return j;
}

json_t *read_log(const char *folder) {
    char *text = kit_read(kit_str("%s/log.jsonl", folder), NULL), *end;
    json_t *all = json_array();
    for (char *line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = 0;
        json_array_append_new(all, parse_json(line));
    }
    free(text);
    return all;
}

json_t *plan_json(const char *yaml, const char *const *words, int status) {
    const char *all[32] = {"plan", yaml, "--json"};
    for (size_t i = 0; words[i] != NULL; i++) all[i + 3] = words[i];
    program p = program_run(&(program_how){0}, all);
    check_status(p, status);
    return parse_json(p.out);
}

double number_at(json_t *object, const char *field) {
    json_t *v = json_object_get(object, field);
    ck_assert_msg(json_is_number(v), "%s is no number", field);
    return json_number_value(v);
}

void check_fields(json_t *object, const char *fields) {
    char name[64];
    size_t n = 0;
    for (int used; sscanf(fields, "%63s%n", name, &used) == 1; fields += used, n++)
        ck_assert_msg(json_object_get(object, name) != NULL, "no field %s", name);
    ck_assert_uint_eq(json_object_size(object), n);
}

/* ---- small runs --------------------------------------------------------------------------------
 */

const char *in_dir(small_run r, const char *name) { return kit_str("%s/%s", r.dir, name); }
const char *in_out(small_run r, const char *name) { return kit_str("%s/%s", r.out, name); }

static small_run place(void) {
    small_run r = {.dir = kit_tmpdir()};
    r.yaml = in_dir(r, "run.yaml");
    r.out = in_dir(r, "out");
    kit_write_text(r.yaml, kit_str("output: out\n"
                                   "data:\n"
                                   "  train: {source: train.de, target: train.en}\n"
                                   "  max_length: 64\n"
                                   "tokenizer: {model: %s}\n"
                                   "model: {d_model: 32, ff: 64, heads: 4, encoder_layers: 1, "
                                   "decoder_layers: 1}\n"
                                   "training: {batch: 16, updates: 20}\n"
                                   "optimizer: {lr: 0.003}\n"
                                   "schedule: {warmup: 10}\n",
                                   toy_model()));
    return r;
}

small_run small_run_with(const char *source, const char *target) {
    small_run r = place();
    kit_write_text(in_dir(r, "train.de"), source);
    kit_write_text(in_dir(r, "train.en"), target);
    return r;
}

small_run small_run_new(int lines) {
    char *source = toy_text(lines, 0), *target = toy_text(lines, 1);
    small_run r = small_run_with(source, target);
    free(source);
    free(target);
    return r;
}

const char *trained_model(void) {
    static const char *folder;
    if (folder != NULL) return folder;
    small_run r = small_run_new(600);
    program p = train(r, "--updates", "200", "--set", "training.updates=200", "--set",
                      "model.dropout=0", "--set", "schedule.warmup=20");
    check_status(p, 0);
    return folder = r.out;
}

/* ---- devices -----------------------------------------------------------------------------------
 */

json_t *device_with(const char *backend, const char *environment) {
    const program_how how = {.environment = environment};
    program p = bantam_how(how, "devices", "--json");
    check_status(p, 0);
    json_t *root = parse_json(p.out), *list = json_object_get(root, "devices"), *d = NULL;
    for (size_t i = 0; i < json_array_size(list) && d == NULL; i++) {
        json_t *at = json_array_get(list, i);
        if (strcmp(json_string_value(json_object_get(at, "backend")), backend) == 0)
            d = json_incref(at);
    }
    json_decref(root);
    ck_assert_msg(d != NULL, "no entry for %s", backend);
    return d;
}

const char *reason_with(const char *backend, const char *environment) {
    json_t *d = device_with(backend, environment);
    ck_assert_msg(!json_is_true(json_object_get(d, "usable")), "usable with %s", environment);
    const char *reason = kit_str("%s", json_string_value(json_object_get(d, "reason")));
    json_decref(d);
    return reason;
}

/* ---- runs on two devices -----------------------------------------------------------------------
 */

void losses_agree(const char *a, const char *b) {
    json_t *x = read_log(a), *y = read_log(b);
    ck_assert_uint_eq(json_array_size(x), json_array_size(y));
    ck_assert_uint_gt(json_array_size(x), 2);
    for (size_t i = 0; i < json_array_size(x); i++) {
        const double l = number_at(json_array_get(x, i), "loss"),
                     m = number_at(json_array_get(y, i), "loss");
        kit_near(l, m, (i == 0 ? 1e-5 : 1e-3) * m);
    }
    json_decref(x);
    json_decref(y);
}

void losses_same(const char *a, const char *b) {
    static const char *const field[] = {"loss", "grad_norm"};
    json_t *x = read_log(a), *y = read_log(b);
    ck_assert_uint_eq(json_array_size(x), json_array_size(y));
    ck_assert_uint_gt(json_array_size(x), 2);
    for (size_t i = 0; i < 2 * json_array_size(x); i++)
        kit_near(number_at(json_array_get(x, i / 2), field[i % 2]),
                 number_at(json_array_get(y, i / 2), field[i % 2]), 0);
    json_decref(x);
    json_decref(y);
}

void same_as_cpu(const char *device) {
    small_run here = small_run_new(60), there = small_run_new(60);
    check_status(bantam("train", here.yaml, "--device", device, "--updates", "4"), 0);
    check_status(bantam("train", here.yaml, "--device", device, "--updates", "8", "--resume"), 0);
    check_status(train(here, "--updates", "12", "--resume"), 0);
    check_status(train(there, "--updates", "12"), 0);
    losses_agree(here.out, there.out);
    const char *in = in_dir(here, "train.de");
    program a = bantam("translate", here.out, "--device", device, "--input", in, "--beam", "3");
    program b = bantam("translate", here.out, "--device", "cpu", "--input", in, "--beam", "3");
    check_status(a, 0);
    check_status(b, 0);
    ck_assert_int_eq(count_lines(a.out), 60);
    ck_assert_str_eq(a.out, b.out);
}
