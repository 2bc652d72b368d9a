/* Lines pass through a ring of blocks: memory is that of the ring, whatever the text's size. */
#include "core/data/line_pairs.h"

#include "core/base/status.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- blocks of lines, tokenised by all cores ------------------------------------------------- */

#define BLOCK_LINES 512
#define BLOCK_BYTES ((size_t)256 * 1024) /* a block takes no further line beyond this */
#define MAX_THREADS 64

typedef struct pair_of_lines {
    size_t begin[2], bytes[2]; /* in the block's text */
    int64_t ids[2];            /* made of them; both 0 when a side is blank */
} pair_of_lines;

typedef struct block {
    enum { FREE, READY, TAKEN, DONE } state;
    size_t file;        /* which pair of files */
    int64_t first_line; /* in them, from 1 */
    size_t lines;
    pair_of_lines line[BLOCK_LINES];
    char *text;
    size_t used, room;
    bti_ids ids[2];
    bt_status status;
    char error[1024];
} block;

/* The main thread fills blocks and empties them in the same order; workers take what is ready. */
typedef struct pool {
    const bti_tokenizer *tok[2]; /* NULL: a side without text */
    pthread_mutex_t lock;
    pthread_cond_t ready, done;
    block *block;
    size_t blocks, next; /* next: the one the next worker looks at */
    int stop;
    pthread_t thread[MAX_THREADS];
    size_t threads;
} pool;

static bt_status encode_block(const pool *p, block *b) {
    for (size_t i = 0; i < b->lines; i++) {
        pair_of_lines *l = &b->line[i];
        l->ids[0] = l->ids[1] = 0;
        int blank = 0;
        for (int side = 0; side < 2; side++)
            blank |=
                p->tok[side] != NULL && bti_line_blank(b->text + l->begin[side], l->bytes[side]);
        for (int side = 0; side < 2 && !blank; side++) {
            if (p->tok[side] == NULL) continue;
            int64_t before = b->ids[side].count;
            BT_TRY(bti_tokenizer_encode(p->tok[side], b->text + l->begin[side], l->bytes[side],
                                        &b->ids[side]));
            l->ids[side] = b->ids[side].count - before;
        }
    }
    return BT_OK;
}

/* The last error is the thread's own: it travels with the block. */
static void work_on(const pool *p, block *b) {
    b->status = encode_block(p, b);
    if (b->status != BT_OK) snprintf(b->error, sizeof b->error, "%s", bt_last_error());
}

static void *worker(void *arg) {
    pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        block *b = &p->block[p->next];
        if (p->stop) break;
        if (b->state != READY) {
            pthread_cond_wait(&p->ready, &p->lock);
            continue;
        }
        p->next = (p->next + 1) % p->blocks;
        b->state = TAKEN;
        pthread_mutex_unlock(&p->lock);
        work_on(p, b);
        pthread_mutex_lock(&p->lock);
        b->state = DONE;
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static size_t cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (size_t)n;
}

/* Signals are for the program's own thread. Fewer threads than cores, even none, will do. */
static bt_status pool_start(pool *p, const bti_tokenizer *const tok[2]) {
    size_t n = cores();
    *p = (pool){.tok = {tok[0], tok[1]}, .blocks = 2 * n + 1};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->ready, NULL);
    pthread_cond_init(&p->done, NULL);
    p->block = bti_alloc(p->blocks, sizeof *p->block);
    if (p->block == NULL) return BT_ENOMEM;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (p->threads < n && pthread_create(&p->thread[p->threads], NULL, worker, p) == 0)
        p->threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return BT_OK;
}

static void pool_stop(pool *p) {
    pthread_mutex_lock(&p->lock);
    p->stop = 1;
    pthread_cond_broadcast(&p->ready);
    pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
    for (size_t i = 0; p->block != NULL && i < p->blocks; i++) {
        bti_free(p->block[i].text);
        for (int side = 0; side < 2; side++) bti_ids_free(&p->block[i].ids[side]);
    }
    bti_free(p->block);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->ready);
    pthread_mutex_destroy(&p->lock);
}

static void pool_submit(pool *p, block *b) {
    if (p->threads == 0) {
        work_on(p, b);
        b->state = DONE;
        return;
    }
    pthread_mutex_lock(&p->lock);
    b->state = READY;
    pthread_cond_broadcast(&p->ready);
    pthread_mutex_unlock(&p->lock);
}

/* Waits for a block's worker and takes the block back; *held: it had lines. */
static bt_status pool_wait(pool *p, block *b, int *held) {
    pthread_mutex_lock(&p->lock);
    *held = b->state != FREE;
    while (*held && b->state != DONE) pthread_cond_wait(&p->done, &p->lock);
    b->state = FREE;
    pthread_mutex_unlock(&p->lock);
    return !*held || b->status == BT_OK ? BT_OK : bti_fail(b->status, "%s", b->error);
}

/* ---- reading -------------------------------------------------------------------------------- */

static bt_status block_add(block *b, int side, const char *line, size_t n) {
    if (b->used + n > b->room) {
        size_t room = b->room ? b->room : BLOCK_BYTES;
        while (room < b->used + n) room *= 2;
        char *more = bti_realloc(b->text, room, 1);
        if (more == NULL) return BT_ENOMEM;
        b->text = more;
        b->room = room;
    }
    b->line[b->lines].begin[side] = b->used;
    b->line[b->lines].bytes[side] = n;
    if (n > 0) memcpy(b->text + b->used, line, n);
    b->used += n;
    return BT_OK;
}

/* Lines of both sides, up to the block's measure or the end of the files; *more: there may be
 * others. */
static bt_status block_fill(block *b, bti_reader *const r[2], int *more) {
    b->used = b->lines = 0;
    b->ids[0].count = b->ids[1].count = 0;
    b->first_line = bti_reader_line(r[r[0] == NULL]) + 1;
    *more = 1;
    while (b->lines < BLOCK_LINES && b->used < BLOCK_BYTES) {
        int sides = 0, ended = 0;
        for (int side = 0; side < 2; side++) {
            const char *line = ""; /* of a side without text */
            size_t n = 0;
            if (r[side] != NULL) BT_TRY(bti_reader_next(r[side], &line, &n));
            sides += r[side] != NULL;
            ended += line == NULL;
            if (line != NULL) BT_TRY(block_add(b, side, line, n));
        }
        if (ended != 0 && ended != sides)
            return bti_fail(BT_EIO, "the text changed while it was being read");
        *more = !ended;
        if (!*more) break;
        b->lines++;
    }
    return BT_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

typedef struct encoding {
    const bti_corpus_config *cfg;
    bti_pair_fn fn;
    void *user;
    pool pool;
    size_t turn; /* the ring's next block */
} encoding;

/* Hands a done block's pairs over. */
static bt_status drain(encoding *x, block *b) {
    int held = 0;
    BT_TRY(pool_wait(&x->pool, b, &held));
    if (!held) return BT_OK;
    int64_t at[2] = {0, 0};
    for (size_t i = 0; i < b->lines; i++) {
        const pair_of_lines *l = &b->line[i];
        bti_encoded_pair p = {.file = b->file, .line = b->first_line + (int64_t)i};
        for (int side = 0; side < 2; side++) {
            p.text[side] = b->text + l->begin[side];
            p.bytes[side] = l->bytes[side];
            p.ids[side] = b->ids[side].id ? b->ids[side].id + at[side] : NULL;
            p.count[side] = l->ids[side];
            at[side] += l->ids[side];
        }
        BT_TRY(x->fn(x->user, &p));
    }
    return BT_OK;
}

/* All blocks of one pair of files. */
static bt_status encode_file(encoding *x, size_t file) {
    bti_reader *r[2] = {NULL, NULL};
    int more = 1;
    bt_status s = BT_OK;
    for (int side = 0; s == BT_OK && side < 2; side++) {
        if (x->pool.tok[side] == NULL) continue;
        s = bti_reader_open_until(bti_corpus_files(x->cfg, side)->path[file], x->cfg->stop,
                                  &r[side]);
        if (s == BT_OK) bti_reader_quiet(r[side]);
    }
    while (s == BT_OK && more) {
        block *b = &x->pool.block[x->turn];
        s = bti_corpus_stopped(x->cfg);
        if (s == BT_OK) s = drain(x, b);
        if (s == BT_OK) s = block_fill(b, r, &more);
        if (s != BT_OK || b->lines == 0) break;
        b->file = file;
        pool_submit(&x->pool, b);
        x->turn = (x->turn + 1) % x->pool.blocks;
    }
    bti_reader_close(r[0]);
    bti_reader_close(r[1]);
    return s == BT_ESTOPPED ? bti_corpus_stopped(x->cfg) : s;
}

bt_status bti_encode_pairs(const bti_corpus_config *cfg, const bti_tokenizer *const tokenizer[2],
                           bti_pair_fn fn, void *user) {
    encoding x = {.cfg = cfg, .fn = fn, .user = user};
    const bti_tokenizer *const used[2] = {cfg->source.count ? tokenizer[0] : NULL,
                                          cfg->target.count ? tokenizer[1] : NULL};
    bt_status s = pool_start(&x.pool, used);
    for (size_t i = 0; s == BT_OK && i < bti_corpus_file_count(cfg); i++) s = encode_file(&x, i);
    for (size_t i = 0; s == BT_OK && i < x.pool.blocks; i++)
        s = drain(&x, &x.pool.block[(x.turn + i) % x.pool.blocks]);
    pool_stop(&x.pool);
    return s;
}
