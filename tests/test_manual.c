/* The manual (README.md): its tables hold every key of a run file with its default, every command,
 * every option and every variable of the environment that is Bantam's own, and nothing else. */
#include "tests/program_kit.h"

#include <dirent.h>
#include <stdarg.h>

#include "core/run/run_keys.h"

enum { WIDTH = 512, MOST = 256, CELLS = 3 };

/* ---- tables of a Markdown text -----------------------------------------------------------------
 */

typedef struct row {
    char cell[CELLS][WIDTH];
} row;

typedef struct rows {
    row *at;
    int count;
} rows;

/* The cells of one line of a table, without the blanks around them; a "\|" is part of one. */
static void split_row(const char *line, size_t bytes, row *out) {
    const char *end = line + bytes;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < CELLS && line < end && *line == '|'; i++) {
        const char *to = ++line;
        while (to < end && (*to != '|' || to[-1] == '\\')) to++;
        const char *next = to;
        while (line < to && *line == ' ') line++;
        while (to > line && to[-1] == ' ') to--;
        snprintf(out->cell[i], WIDTH, "%.*s", (int)(to - line), line);
        line = next;
    }
}

/* All rows below lines that are `header`. */
static rows read_rows(const char *text, const char *header) {
    rows r = {calloc(MOST, sizeof(row)), 0};
    int inside = 0;
    for (const char *line = text; *line; line += line[0] != 0) {
        size_t n = strcspn(line, "\n");
        if (n == strlen(header) && memcmp(line, header, n) == 0)
            inside = 1;
        else if (line[0] != '|')
            inside = 0;
        else if (inside && strncmp(line, "|---", 4) != 0) {
            ck_assert_int_lt(r.count, MOST);
            split_row(line, n, &r.at[r.count++]);
        }
        line += n;
    }
    return r;
}

/* What stands between the first pair of backticks. */
static const char *code_of(const char *cell) {
    const char *from = strchr(cell, '`');
    return from ? kit_str("%.*s", (int)strcspn(from + 1, "`"), from + 1) : "";
}

/* ---- complaints --------------------------------------------------------------------------------
 */

typedef struct complaints {
    char text[16384];
    size_t used;
} complaints;

static void BTI_PRINTF(2, 3) complain(complaints *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    c->used += (size_t)vsnprintf(c->text + c->used, sizeof c->text - c->used, fmt, ap);
    va_end(ap);
    ck_assert_uint_lt(c->used, sizeof c->text);
}

/* ---- keys --------------------------------------------------------------------------------------
 */

/* A row "group.*" stands for the keys of a group that take their default from another one. */
static int is_group_row(const char *name) {
    size_t n = strlen(name);
    return n > 2 && strcmp(name + n - 2, ".*") == 0;
}

static int row_is_of(const char *name, const char *key) {
    size_t n = strlen(name);
    return is_group_row(name) ? strncmp(name, key, n - 1) == 0 : strcmp(name, key) == 0;
}

/* The default as the manual writes it: "512", "as `model.dropout`", "" for none. */
static const char *default_text(const bti_key *key, const char *name) {
    const char *d = key->fallback;
    if (d == NULL) return "";
    if (d[0] != '=') return d;
    const char *star = is_group_row(name) ? strrchr(d, '.') : NULL;
    return star ? kit_str("as `%.*s.*`", (int)(star - d - 1), d + 1) : kit_str("as `%s`", d + 1);
}

/* A choice has its names in the row. */
static void check_choices(complaints *c, const bti_key *key, const row *r) {
    const char *name = key->allowed;
    if (key->type != BTI_KEY_CHOICE || strchr(name, '|') == NULL) return;
    for (size_t n; *name; name += n + (name[n] == '|')) {
        n = strcspn(name, "|");
        if (strstr(r->cell[2], kit_str("`%.*s`", (int)n, name)) == NULL)
            complain(c, "%s: the row does not name `%.*s`\n", key->path, (int)n, name);
    }
}

static void check_key(complaints *c, const bti_key *key, const char *path, const rows *table) {
    int found = 0;
    for (int i = 0; i < table->count; i++) {
        const row *r = &table->at[i];
        const char *name = code_of(r->cell[0]), *want = default_text(key, name);
        if (!row_is_of(name, path)) continue;
        found++;
        if (strcmp(r->cell[1], want) != 0)
            complain(c, "%s: default \"%s\", should be \"%s\"\n", path, r->cell[1], want);
        if (r->cell[2][0] == 0) complain(c, "%s: no meaning\n", path);
        if (!is_group_row(name)) check_choices(c, key, r);
    }
    if (found != 1) complain(c, "key %s has %d rows\n", path, found);
}

/* A key of the entries of data.features, as the manual writes it. */
static const char *item_key(int k) {
    return kit_str("data.features.N.%s", bti_feature_keys[k].path);
}

static complaints check_keys(const char *text) {
    complaints c = {.used = 0};
    rows table = read_rows(text, "| key | default | meaning |");
    for (int i = 0; i < BTI_KEYS; i++) check_key(&c, &bti_keys[i], bti_keys[i].path, &table);
    for (int k = 0; k < BTI_FEATURE_KEYS; k++)
        check_key(&c, &bti_feature_keys[k], item_key(k), &table);
    for (int i = 0; i < table.count; i++) {
        const char *name = code_of(table.at[i].cell[0]);
        int known = 0;
        for (int k = 0; k < BTI_KEYS; k++) known |= row_is_of(name, bti_keys[k].path);
        for (int k = 0; k < BTI_FEATURE_KEYS; k++) known |= strcmp(name, item_key(k)) == 0;
        if (!known) complain(&c, "row %s: there is no such key\n", name);
    }
    free(table.at);
    return c;
}

/* ---- commands and options ----------------------------------------------------------------------
 */

typedef struct list {
    const char *item[MOST];
    int count;
} list;

static void add(list *l, const char *item) {
    ck_assert_int_lt(l->count, MOST);
    l->item[l->count++] = item;
}

static int count_in(const list *l, const char *item) {
    int n = 0;
    for (int i = 0; i < l->count; i++) n += strcmp(l->item[i], item) == 0;
    return n;
}

/* Each item of `want` once in `have`, and nothing else there. */
static void compare(complaints *c, const char *what, const list *want, const list *have) {
    for (int i = 0; i < want->count; i++) {
        int n = count_in(have, want->item[i]);
        if (n != 1) complain(c, "%s \"%s\" has %d rows\n", what, want->item[i], n);
    }
    for (int i = 0; i < have->count; i++)
        if (count_in(want, have->item[i]) == 0)
            complain(c, "row \"%s\": there is no such %s\n", have->item[i], what);
}

static const char *help_of(const char *command) {
    const char *words[4] = {NULL};
    char copy[WIDTH];
    int n = 0;
    snprintf(copy, sizeof copy, "%s", command);
    for (char *w = strtok(copy, " "); w != NULL; w = strtok(NULL, " "))
        words[n++] = kit_str("%s", w);
    words[n] = "--help";
    program p = program_run(&(program_how){0}, words);
    check_status(p, 0);
    return p.out;
}

/* The first word of each line that is indented by two blanks, behind `prefix`. */
static list indented(const char *text, const char *prefix) {
    list l = {.count = 0};
    for (const char *line = strstr(text, "\n  "); line != NULL; line = strstr(line + 1, "\n  ")) {
        const char *word = line + 3;
        if (word[0] == ' ' || word[0] == '-' || strncmp(word, prefix, strlen(prefix)) != 0)
            continue;
        word += strlen(prefix);
        add(&l, kit_str("%s%.*s", prefix, (int)strcspn(word, " \n"), word));
    }
    return l;
}

/* Every command that does something: "train", "vocab encode". */
static list all_commands(void) {
    list top = indented(help_of(""), ""), all = {.count = 0};
    for (int i = 0; i < top.count; i++) {
        const char *help = help_of(top.item[i]);
        if (strstr(help, "PART --help") == NULL) {
            add(&all, top.item[i]);
            continue;
        }
        list parts = indented(help, kit_str("%s ", top.item[i]));
        ck_assert_int_gt(parts.count, 0);
        for (int k = 0; k < parts.count; k++) add(&all, parts.item[k]);
    }
    return all;
}

/* "COMMAND --option ARGUMENT" for each option that the commands' help tells, --help aside. */
static list all_options(const list *commands) {
    list all = {.count = 0};
    for (int i = 0; i < commands->count; i++) {
        const char *line = help_of(commands->item[i]);
        while ((line = strstr(line, "\n  --")) != NULL) {
            line += 3;
            size_t n = strcspn(line, " \n");
            if (line[n] == ' ' && line[n + 1] != ' ') n += 1 + strcspn(line + n + 1, " \n");
            if (strncmp(line, "--help", 6) != 0)
                add(&all, kit_str("%s %.*s", commands->item[i], (int)n, line));
        }
    }
    return all;
}

/* `bantam vocab train\|inspect FILE` gives "vocab train" and "vocab inspect"; of the others the
 * words in lower case are the name. */
static void add_commands(list *l, const char *code) {
    char name[WIDTH] = "", copy[WIDTH];
    snprintf(copy, sizeof copy, "%s", code);
    char *word = strtok(copy, " ");
    if (word == NULL || strcmp(word, "bantam") != 0) return;
    for (word = strtok(NULL, " "); word != NULL; word = strtok(NULL, " ")) {
        if (strspn(word, "abcdefghijklmnopqrstuvwxyz\\|") != strlen(word)) break;
        if (strchr(word, '|') != NULL) {
            for (; *word; word += strspn(word, "\\|")) {
                size_t n = strcspn(word, "\\|");
                add(l, kit_str("%s %.*s", name, (int)n, word));
                word += n;
            }
            return;
        }
        snprintf(name + strlen(name), sizeof name - strlen(name), "%s%s", name[0] ? " " : "", word);
    }
    add(l, kit_str("%s", name));
}

static complaints check_commands(const char *text) {
    complaints c = {.used = 0};
    list commands = all_commands(), options = all_options(&commands);
    list command_rows = {.count = 0}, option_rows = {.count = 0};
    rows table = read_rows(text, "| command | what it does |");
    for (int i = 0; i < table.count; i++) add_commands(&command_rows, code_of(table.at[i].cell[0]));
    free(table.at);
    table = read_rows(text, "| option | commands | meaning |");
    for (int i = 0; i < table.count; i++) {
        const row *r = &table.at[i];
        const char *option = code_of(r->cell[0]);
        char copy[WIDTH];
        snprintf(copy, sizeof copy, "%s", r->cell[1]);
        for (char *w = strtok(copy, ","); w != NULL; w = strtok(NULL, ","))
            add(&option_rows, kit_str("%s %s", w + strspn(w, " "), option));
        if (r->cell[2][0] == 0) complain(&c, "%s: no meaning\n", option);
    }
    free(table.at);
    compare(&c, "command", &commands, &command_rows);
    compare(&c, "option", &options, &option_rows);
    return c;
}

/* ---- the environment ---------------------------------------------------------------------------
 */

#define OWN "BANTAM_"

/* The name at the start of a text: capitals and underscores; the kit's. */
static const char *variable_at(const char *text) {
    return kit_str("%.*s", (int)strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_"), text);
}

static void add_once(list *l, const char *item) {
    if (count_in(l, item) == 0) add(l, item);
}

/* The variables of that name that the sources of a folder, and of those in it, ask for. */
static void add_asked(list *l, const char *folder) {
    DIR *d = opendir(folder);
    ck_assert_msg(d != NULL, "no folder %s", folder);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        const char *path = kit_str("%s/%s", folder, e->d_name), *end = strrchr(e->d_name, '.');
        if (e->d_name[0] == '.') continue;
        if (end == NULL) {
            add_asked(l, path);
        } else if (strcmp(end, ".c") == 0) {
            static const char call[] = "getenv(\"" OWN;
            char *text = kit_read(path, NULL);
            for (const char *at = text; (at = strstr(at, call)) != NULL; at++)
                add_once(l, variable_at(at + strlen("getenv(\"")));
            free(text);
        }
    }
    closedir(d);
}

static complaints check_environment(const char *text) {
    complaints c = {.used = 0};
    list asked = {.count = 0}, told = {.count = 0};
    rows table = read_rows(text, "| variable | meaning |");
    static const char *const folders[] = {"core", "backends", "cpu"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        add_asked(&asked, kit_data(kit_str("../%s", folders[i])));
    ck_assert_int_gt(asked.count, 5);
    for (int i = 0; i < table.count; i++) {
        const char *name = variable_at(code_of(table.at[i].cell[0]));
        if (strncmp(name, OWN, strlen(OWN)) == 0) add(&told, name);
        if (table.at[i].cell[1][0] == 0) complain(&c, "%s: no meaning\n", name);
    }
    free(table.at);
    compare(&c, "variable", &asked, &told);
    return c;
}

/* ---- tests -------------------------------------------------------------------------------------
 */

static char *manual(void) { return kit_read(kit_data("../README.md"), NULL); }

START_TEST(keys) {
    char *text = manual();
    complaints c = check_keys(text);
    ck_assert_msg(c.used == 0, "README.md, the run file:\n%s", c.text);
    free(text);
}
END_TEST

START_TEST(commands) {
    char *text = manual();
    complaints c = check_commands(text);
    ck_assert_msg(c.used == 0, "README.md, the commands:\n%s", c.text);
    free(text);
}
END_TEST

START_TEST(environment) {
    char *text = manual();
    complaints c = check_environment(text);
    ck_assert_msg(c.used == 0, "README.md, the environment:\n%s", c.text);
    free(text);
}
END_TEST

/* The text with the first `old` replaced; the kit's. */
static const char *changed(const char *text, const char *old, const char *now) {
    const char *at = strstr(text, old);
    ck_assert_msg(at != NULL, "the manual has no \"%s\"", old);
    return kit_str("%.*s%s%s", (int)(at - text), text, now, at + strlen(old));
}

/* What the checks are for: each fault is found and named. */
START_TEST(faults_are_found) {
    char *text = manual();
    static const struct {
        const char *old, *now, *part;
        complaints (*check)(const char *text);
    } fault[] = {
        {"| `model.ff` |", "| `model.gg` |", "key model.ff has 0 rows", check_keys},
        {"| `model.ff` |", "| `model.gg` |", "row model.gg: there is no such key", check_keys},
        {"| `model.ff` | 2048 |", "| `model.ff` | 1024 |", "should be \"2048\"", check_keys},
        {"| `data.features.N.name` |", "| `data.features.N.nome` |",
         "key data.features.N.name has 0 rows", check_keys},
        {"| `data.cache` | |", "| `data.cache` | x |", "data.cache: default \"x\"", check_keys},
        {"`cosine`", "cosine", "does not name `cosine`", check_keys},
        {"| `tokenizer.target.*` |", "| `tokenizer.target.kind` |",
         "key tokenizer.target.model has 0 rows", check_keys},
        {"| `training.seed` |", "| `training.batch` |", "key training.batch has 2 rows",
         check_keys},
        {"| `--scores` |", "| `--stores` |", "option \"translate --scores\" has 0 rows",
         check_commands},
        {"| `--scores` |", "| `--stores` |", "row \"translate --stores\": there is no such",
         check_commands},
        {"| `--beam N` | translate, evaluate |", "| `--beam N` | translate |",
         "option \"evaluate --beam N\" has 0 rows", check_commands},
        {"| `--pieces N` |", "| `--pieces` |", "option \"vocab inspect --pieces N\" has 0 rows",
         check_commands},
        {"| `bantam devices` |", "| `bantam device` |", "command \"devices\" has 0 rows",
         check_commands},
        {"\\|decode`", "`", "command \"vocab decode\" has 0 rows", check_commands},
        {"| `BANTAM_RATES` |", "| `BANTAM_RATE` |", "variable \"BANTAM_RATES\" has 0 rows",
         check_environment},
        {"| `BANTAM_RATES` |", "| `BANTAM_RATE` |", "row \"BANTAM_RATE\": there is no such",
         check_environment},
    };
    for (size_t i = 0; i < sizeof fault / sizeof fault[0]; i++) {
        const char *bad = changed(text, fault[i].old, fault[i].now);
        complaints c = fault[i].check(bad);
        check_has(c.text, fault[i].part);
    }
    free(text);
}
END_TEST

static void add_manual(TCase *tc) {
    tcase_add_test(tc, keys);
    tcase_add_test(tc, commands);
    tcase_add_test(tc, environment);
    tcase_add_test(tc, faults_are_found);
}

int main(int argc, char **argv) { return kit_main("manual", add_manual, argc, argv); }
