#include "core/data/string_table.h"

#include "core/base/status.h"

#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

static uint32_t hash_of(const char *text, size_t bytes) {
    return (uint32_t)XXH3_64bits(text, bytes);
}

/* The slot of the string, or the free one where it would go. */
static size_t probe(const bti_strings *s, const char *text, size_t bytes, uint32_t hash) {
    size_t at = hash & (s->slots - 1);
    while (s->slot[at] != 0) {
        const struct bti_string *e = &s->entry[s->slot[at] - 1];
        if (e->hash == hash && e->bytes == bytes && memcmp(s->text + e->begin, text, bytes) == 0)
            break;
        at = (at + 1) & (s->slots - 1);
    }
    return at;
}

int64_t bti_strings_find(const bti_strings *s, const char *text, size_t bytes) {
    if (s->slots == 0) return -1;
    return (int64_t)s->slot[probe(s, text, bytes, hash_of(text, bytes))] - 1;
}

static bt_status grow_slots(bti_strings *s) {
    size_t slots = s->slots ? 2 * s->slots : 64;
    uint32_t *slot = bti_alloc(slots, sizeof *slot);
    if (slot == NULL) return BT_ENOMEM;
    for (int64_t i = 0; i < s->count; i++) {
        size_t at = s->entry[i].hash & (slots - 1);
        while (slot[at] != 0) at = (at + 1) & (slots - 1);
        slot[at] = (uint32_t)i + 1;
    }
    bti_free(s->slot);
    s->slot = slot;
    s->slots = slots;
    return BT_OK;
}

static bt_status make_room(bti_strings *s, size_t bytes) {
    if (s->count == s->entry_room) {
        int64_t room = s->entry_room ? 2 * s->entry_room : 32;
        void *more = bti_realloc(s->entry, (size_t)room, sizeof *s->entry);
        if (more == NULL) return BT_ENOMEM;
        s->entry = more;
        s->entry_room = room;
    }
    if (s->room - s->used <= bytes) {
        size_t room = 2 * (s->room + bytes) + 256;
        char *more = bti_realloc(s->text, room, 1);
        if (more == NULL) return BT_ENOMEM;
        s->text = more;
        s->room = room;
    }
    return 2 * ((size_t)s->count + 1) > s->slots ? grow_slots(s) : BT_OK;
}

bt_status bti_strings_add(bti_strings *s, const char *text, size_t bytes, int64_t *index) {
    uint32_t hash = hash_of(text, bytes);
    if (s->slots > 0) {
        uint32_t there = s->slot[probe(s, text, bytes, hash)];
        if (there != 0) {
            *index = (int64_t)there - 1;
            return BT_OK;
        }
    }
    if (bytes > UINT32_MAX || s->count == INT32_MAX)
        return bti_fail(BT_EINPUT, "too many words, or one of %zu bytes", bytes);
    BT_TRY(make_room(s, bytes));
    s->entry[s->count] = (struct bti_string){s->used, (uint32_t)bytes, hash};
    if (bytes > 0) memcpy(s->text + s->used, text, bytes);
    s->used += bytes;
    s->text[s->used++] = 0;
    s->slot[probe(s, text, bytes, hash)] = (uint32_t)s->count + 1;
    *index = s->count++;
    return BT_OK;
}

const char *bti_strings_at(const bti_strings *s, int64_t index, size_t *bytes) {
    *bytes = s->entry[index].bytes;
    return s->text + s->entry[index].begin;
}

void bti_strings_clear(bti_strings *s) {
    if (s->slots > 0) memset(s->slot, 0, s->slots * sizeof *s->slot);
    s->used = 0;
    s->count = 0;
}

void bti_strings_free(bti_strings *s) {
    bti_free(s->text);
    bti_free(s->entry);
    bti_free(s->slot);
    *s = (bti_strings){0};
}
