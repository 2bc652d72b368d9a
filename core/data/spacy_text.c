/* Text out of tokens. spaCy's tokens do not say where blanks were; these rules of thumb for German
 * and English put them back as ordinary text has them:
 * - closing punctuation, brackets and % stand at what is before them; opening ones, and signs such
 *   as $ and # before a number or word, at what follows;
 * - "..." and '...', and guillemets, open and close in turn; the German „...“ and ‚...‘ go before
 * the English “...” and ‘...’; a ' that nothing closes, or behind a final s, is an apostrophe;
 * - 's 're 've 'll 'd 'm n't, and the second token of an exception of two ("can" "not"), stand at
 *   their word, numbers apart ("10 am");
 * - "-", "/", "~" and "--" join two words where the rules would cut the joined word just so
 *   ("well-known" in English, "3-4" in German), and stand free where not;
 * - white-space tokens are themselves; one that begins with a blank had one more before it. */
#include "core/data/spacy.h"

#include "core/base/status.h"

#include <ctype.h>
#include <string.h>

/* Is a token among the words of a list? Each is between blanks. */
static int among(const char *token, const char *list) {
    size_t n = strlen(token);
    for (const char *at = list; n > 0 && (at = strstr(at, token)) != NULL; at++)
        if (at > list && at[-1] == ' ' && at[n] == ' ') return 1;
    return 0;
}

#define CLOSING " . , ; : ! ? \xE2\x80\xA6 ] } % \xE2\x80\xB0 \xC2\xB0 \xE2\x80\x9D "
#define OPENING " [ { \xC2\xBF \xC2\xA1 `` \xE2\x80\x9E \xE2\x80\x9A "
#define BEFORE_WORDS " $ \xC2\xA3 \xE2\x82\xAC \xC2\xA5 # @ US$ C$ A$ "
#define JOINING " - / ~ -- "
#define CONTRACTIONS \
    " 's 'S 'm 'M 're 'RE 've 'VE 'll 'LL 'd 'D n't N'T \xE2\x80\x99s \xE2\x80\x99S " \
    "\xE2\x80\x99m " \
    "\xE2\x80\x99re \xE2\x80\x99ve \xE2\x80\x99ll \xE2\x80\x99" \
    "d n\xE2\x80\x99t "
#define LOW_QUOTE "\xE2\x80\x9E"  /* „ */
#define HIGH_6 "\xE2\x80\x9C"     /* “ */
#define LOW_SINGLE "\xE2\x80\x9A" /* ‚ */
#define SINGLE_6 "\xE2\x80\x98"   /* ‘ */
#define SINGLE_9 "\xE2\x80\x99"   /* ’ */
#define GUILLEMETS " \xC2\xAB \xC2\xBB \xE2\x80\xB9 \xE2\x80\xBA "

typedef struct joiner {
    const bti_spacy *s;
    const char *const *token;
    size_t count, at;
    /* which quotes are open */
    int straight, single, low, low_single, single_6, guillemet;
    int brackets; /* round ones that are open */
} joiner;

typedef enum place { FREE, LEFT, RIGHT, BOTH } place; /* at which neighbours a token stands */

static const char *neighbour(const joiner *j, size_t at) {
    return at < j->count ? j->token[at] : "";
}

static const char *before(const joiner *j) { return j->at > 0 ? j->token[j->at - 1] : ""; }

static int is_letter_or_digit(unsigned char c) { return isalnum(c) || c >= 0x80; }

static int begins_word(const char *t) { return is_letter_or_digit((unsigned char)t[0]); }

static int ends_word(const char *t) {
    return t[0] != 0 && is_letter_or_digit((unsigned char)t[strlen(t) - 1]);
}

static int is_number(const char *t) {
    return t[0] != 0 && strspn(t, "0123456789.,") == strlen(t) && isdigit((unsigned char)t[0]);
}

/* ---- quotes ---------------------------------------------------------------------------------- */

static place in_turn(int *open) {
    *open = !*open;
    return *open ? RIGHT : LEFT;
}

static place apostrophe(joiner *j) {
    size_t rest = 0;
    const char *left = before(j);
    if (j->single) return in_turn(&j->single);
    for (size_t i = j->at; i < j->count; i++) rest += strcmp(j->token[i], "'") == 0;
    int plural = left[0] != 0 && strchr("sxzSXZ", left[strlen(left) - 1]) != NULL;
    if ((rest % 2 == 1 && plural) || (rest == 1 && j->at > 0)) return LEFT;
    return in_turn(&j->single);
}

/* *known: the token is a quote. */
static place quote(joiner *j, const char *t, int *known) {
    *known = 1;
    if (strcmp(t, "\"") == 0 || strcmp(t, "''") == 0) return in_turn(&j->straight);
    if (strcmp(t, "``") == 0) return j->straight = 1, RIGHT;
    if (strcmp(t, "'") == 0) return apostrophe(j);
    if (strcmp(t, LOW_QUOTE) == 0) return j->low = 1, RIGHT;
    if (strcmp(t, HIGH_6) == 0 && j->straight && !j->low) return j->straight = 0, LEFT;
    if (strcmp(t, HIGH_6) == 0) return j->low ? (j->low = 0, LEFT) : RIGHT;
    if (strcmp(t, LOW_SINGLE) == 0) return j->low_single = 1, RIGHT;
    if (strcmp(t, SINGLE_6) == 0)
        return j->low_single ? (j->low_single = 0, LEFT) : (j->single_6 = 1, RIGHT);
    if (strcmp(t, SINGLE_9) == 0) return j->single_6 = 0, LEFT;
    if (among(t, GUILLEMETS)) return in_turn(&j->guillemet);
    *known = 0;
    return FREE;
}

/* Also of what spaCy takes for a smiley: "(so):" ends in one. */
static place bracket(joiner *j, const char *t, int *known) {
    *known = t[0] == '(' ? t[1] == 0 : t[0] == ')' && (t[1] == 0 || j->brackets > 0);
    if (!*known) return FREE;
    j->brackets += t[0] == '(' ? 1 : j->brackets > 0 ? -1 : 0;
    return t[0] == '(' ? RIGHT : LEFT;
}

/* ---- joined words ---------------------------------------------------------------------------- */

typedef struct cut {
    const char *want[3];
    int seen, same;
} cut;

static bt_status compare(void *user, const char *token, size_t bytes, int32_t id) {
    cut *c = user;
    (void)id;
    const char *want = c->seen < 3 ? c->want[c->seen] : "";
    c->same &= strlen(want) == bytes && memcmp(want, token, bytes) == 0;
    c->seen++;
    return BT_OK;
}

/* Do the rules cut left + sign + right into just these? */
static bt_status is_cut_so(const joiner *j, const char *sign, int *so) {
    cut c = {.want = {before(j), sign, neighbour(j, j->at + 1)}, .same = 1};
    bti_text b = {0};
    bt_status s = BT_OK;
    *so = 0;
    if (!ends_word(c.want[0]) || !begins_word(c.want[2])) return BT_OK;
    for (int i = 0; i < 3 && s == BT_OK; i++) s = bti_text_put(&b, c.want[i], strlen(c.want[i]));
    if (s == BT_OK) s = bti_spacy_tokens(j->s, b.text, b.bytes, compare, &c);
    bti_free(b.text);
    *so = c.same && c.seen == 3;
    return s;
}

static int belongs_to_word_before(const joiner *j, const char *t) {
    const char *left = before(j);
    if (!ends_word(left)) return 0;
    if (among(t, CONTRACTIONS)) return 1;
    return !is_number(left) && bti_spacy_exception_of_two(j->s, left, t);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static bt_status place_of(joiner *j, place *out) {
    const char *t = j->token[j->at];
    int known, so;
    *out = quote(j, t, &known);
    if (!known) *out = bracket(j, t, &known);
    if (known) return BT_OK;
    if (among(t, CLOSING) || (t[1] != 0 && strspn(t, ".!?") == strlen(t)))
        *out = j->at == 0 && t[0] == '.' ? RIGHT : LEFT;
    else if (among(t, OPENING) || (among(t, BEFORE_WORDS) && begins_word(neighbour(j, j->at + 1)) &&
                                   !is_number(before(j))))
        *out = RIGHT;
    else if (belongs_to_word_before(j, t))
        *out = LEFT;
    else if (among(t, JOINING)) {
        BT_TRY(is_cut_so(j, t, &so));
        if (so) *out = BOTH;
    } else if (bti_space_at(t, strlen(t)) > 0)
        *out = t[0] == ' ' ? RIGHT : BOTH;
    return BT_OK;
}

bt_status bti_spacy_join(const bti_spacy *s, const char *const *token, size_t count,
                         bti_text *out) {
    joiner j = {.s = s, .token = token, .count = count};
    int glued = 1; /* to the token before */
    for (; j.at < count; j.at++) {
        place p;
        BT_TRY(place_of(&j, &p));
        if (!glued && p != LEFT && p != BOTH) BT_TRY(bti_text_put(out, " ", 1));
        BT_TRY(bti_text_put(out, token[j.at], strlen(token[j.at])));
        glued = p == RIGHT || p == BOTH;
    }
    return BT_OK;
}
