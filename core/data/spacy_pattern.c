/* Translated patterns in PCRE2, compiled to machine code where that works. A pattern is cut at its
 * top-level alternatives where it is too large for one PCRE2 program (64 KiB), and where those that
 * only match at the end of a text, such as suffixes, change with others: these need not be tried
 * from the start, which for a word of n signs would take n^2 steps. The leftmost match of all
 * parts, the first part's among equals, is what the whole would give. */
#include "core/data/spacy.h"

#include "core/base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

struct bti_pattern {
    char *name;
    struct part {
        pcre2_code *code;
        int jit;
        int64_t reach; /* characters from the end of the text, or BTI_ANYWHERE */
    } * part;
    size_t parts, room;
};

struct bti_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static void *take(size_t bytes, void *user) {
    (void)user;
    return bti_alloc(bytes, 1);
}

static void give(void *p, void *user) {
    (void)user;
    bti_free(p);
}

/* ---- compiling ------------------------------------------------------------------------------- */

typedef struct compiler {
    const bti_translation *t;
    pcre2_compile_context *context;
    uint32_t options;
    bti_pattern *p;
} compiler;

static bt_status keep(bti_pattern *p, pcre2_code *code, int64_t reach) {
    if (p->parts == p->room) {
        size_t room = p->room ? 2 * p->room : 1;
        struct part *more = bti_realloc(p->part, room, sizeof *more);
        if (more == NULL) {
            pcre2_code_free(code);
            return BT_ENOMEM;
        }
        p->part = more;
        p->room = room;
    }
    int jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    p->part[p->parts++] = (struct part){code, jit, reach};
    return BT_OK;
}

/* Alternatives first .. last - 1. */
static bt_status compile(compiler *c, size_t first, size_t last) {
    const bti_translation *t = c->t;
    size_t begin = first == 0 ? 0 : t->alternative[first - 1].end + 1;
    size_t end = t->alternative[last - 1].end, where;
    int64_t reach = 0;
    int error;
    for (size_t i = first; i < last; i++)
        if (t->alternative[i].reach > reach) reach = t->alternative[i].reach;
    if (c->options & PCRE2_ANCHORED) reach = BTI_ANYWHERE;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)t->out.text + begin, end - begin, c->options,
                                     &error, &where, c->context);
    if (code != NULL) return keep(c->p, code, reach);
    if (error == PCRE2_ERROR_HEAP_FAILED) return BT_ENOMEM;
    int too_large = error == PCRE2_ERROR_PATTERN_TOO_LARGE;
    if (too_large && last - first > 1 && !t->refers) {
        BT_TRY(compile(c, first, first + (last - first) / 2));
        return compile(c, first + (last - first) / 2, last);
    }
    char why[200] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    if (too_large && t->refers)
        return bti_fail(BT_EINPUT, "%s: %s, and it cannot be split: it refers to its groups",
                        c->p->name, why);
    if (too_large)
        return bti_fail(BT_EINPUT, "%s: %s, already alternative %zu of %zu alone", c->p->name, why,
                        last, t->alternatives);
    return bti_fail(BT_EINPUT, "%s: PCRE2 cannot take it: %s, at \"%.20s\"", c->p->name, why,
                    t->out.text + begin + (where < end - begin ? where : end - begin));
}

static bt_status compile_all(compiler *c) {
    const bti_translation *t = c->t;
    if (t->refers) return compile(c, 0, t->alternatives);
    for (size_t first = 0, last; first < t->alternatives; first = last) {
        int anywhere = t->alternative[first].reach == BTI_ANYWHERE;
        for (last = first + 1; last < t->alternatives; last++)
            if ((t->alternative[last].reach == BTI_ANYWHERE) != anywhere) break;
        BT_TRY(compile(c, first, last));
    }
    return BT_OK;
}

bt_status bti_pattern_new(const char *name, const char *python, size_t bytes, int anchored,
                          bti_pattern **out) {
    bti_translation t;
    BT_TRY(bti_pattern_translate(name, python, bytes, &t));
    bt_status s = BT_ENOMEM;
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    compiler c = {.t = &t, .p = bti_alloc(1, sizeof *c.p)};
    if (memory != NULL) c.context = pcre2_compile_context_create(memory);
    if (c.context == NULL || c.p == NULL) goto done;
    if ((c.p->name = bti_strdup(name)) == NULL) goto done;
    pcre2_set_newline(c.context, PCRE2_NEWLINE_LF);
    pcre2_set_compile_extra_options(c.context, PCRE2_EXTRA_ALLOW_SURROGATE_ESCAPES);
    c.options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | (anchored ? PCRE2_ANCHORED : 0) |
                (t.ignore_case ? PCRE2_CASELESS : 0) | (t.multi_line ? PCRE2_MULTILINE : 0) |
                (t.dot_all ? PCRE2_DOTALL : 0);
    s = compile_all(&c);
    if (s != BT_OK) goto done;
    *out = c.p;
    c.p = NULL;
done:
    bti_pattern_free(c.p);
    if (c.context != NULL) pcre2_compile_context_free(c.context);
    if (memory != NULL) pcre2_general_context_free(memory);
    bti_translation_free(&t);
    return s;
}

void bti_pattern_free(bti_pattern *p) {
    if (p == NULL) return;
    for (size_t i = 0; i < p->parts; i++) pcre2_code_free(p->part[i].code);
    bti_free(p->part);
    bti_free(p->name);
    bti_free(p);
}

size_t bti_pattern_parts(const bti_pattern *p) { return p->parts; }

/* ---- matching -------------------------------------------------------------------------------- */

#define JIT_STACK ((size_t)64 << 20) /* address space; pages are taken as they are touched */

bt_status bti_matcher_new(bti_matcher **out) {
    pcre2_general_context *memory = pcre2_general_context_create(take, give, NULL);
    bti_matcher *m = bti_alloc(1, sizeof *m);
    if (m != NULL && memory != NULL) {
        m->data = pcre2_match_data_create(1, memory);
        m->context = pcre2_match_context_create(memory);
        m->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK, memory); /* NULL: a small one */
    }
    if (memory != NULL) pcre2_general_context_free(memory);
    if (m == NULL || m->data == NULL || m->context == NULL) {
        bti_matcher_free(m);
        return BT_ENOMEM;
    }
    /* Python has no limit either: a word is never cut short silently. */
    pcre2_set_match_limit(m->context, UINT32_MAX);
    if (m->stack != NULL) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return BT_OK;
}

void bti_matcher_free(bti_matcher *m) {
    if (m == NULL) return;
    if (m->stack != NULL) pcre2_jit_stack_free(m->stack);
    if (m->context != NULL) pcre2_match_context_free(m->context);
    if (m->data != NULL) pcre2_match_data_free(m->data);
    bti_free(m);
}

static bt_status no_answer(const bti_pattern *p, int error, const char *text, size_t bytes) {
    char why[200] = "";
    pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
    return bti_fail(error == PCRE2_ERROR_NOMEMORY ? BT_ENOMEM : BT_EINPUT,
                    "%s: no answer for the word of %zu bytes \"%.40s\": %s", p->name, bytes, text,
                    why);
}

/* Where the last `reach` characters begin, but not before `from`. */
static size_t reach_back(const char *text, size_t bytes, size_t from, int64_t reach) {
    if (reach == BTI_ANYWHERE) return from;
    size_t at = bytes;
    for (; reach > 0 && at > from; reach--) do
            at--;
        while (at > from && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

bt_status bti_pattern_find(const bti_pattern *p, bti_matcher *m, const char *text, size_t bytes,
                           size_t from, int filled, bti_match *out) {
    bti_match best = {SIZE_MAX, 0};
    for (size_t i = 0; i < p->parts && best.begin > from; i++) {
        const struct part *q = &p->part[i];
        size_t start = reach_back(text, bytes, from, q->reach);
        uint32_t options = filled && start == from ? PCRE2_NOTEMPTY_ATSTART : 0;
        int rc = q->jit ? pcre2_jit_match(q->code, (PCRE2_SPTR)text, bytes, start, options, m->data,
                                          m->context)
                        : pcre2_match(q->code, (PCRE2_SPTR)text, bytes, start,
                                      options | PCRE2_NO_UTF_CHECK, m->data, m->context);
        if (rc == PCRE2_ERROR_NOMATCH) continue;
        if (rc < 0) return no_answer(p, rc, text, bytes);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
        if (at[0] < best.begin) best = (bti_match){at[0], at[1]};
    }
    *out = best;
    return BT_OK;
}
