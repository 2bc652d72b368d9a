/* The threads of one block: who runs, who waits for whom, and what cannot go on.
 *
 * A thread runs until it waits at a barrier or a warp operation, or ends; then another that is
 * ready runs on. The last one to arrive completes the barrier or the operation for all. Threads
 * that never wait share a stack, one after the other: a kernel without barriers is a plain loop.
 * (Not under ThreadSanitizer, which needs to see each thread on its own.) */
#include <cstdio>
#include <cstdlib>

#include "cuda_runtime.h"
#include "fiber.h"
#include "state.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cusim {

namespace {

enum { LANES = 32, MOST_THREADS = 1024, WARPS = MOST_THREADS / LANES };
enum class stage : uint8_t { fresh, ready, at_barrier, at_warp, done };

struct thread {
    stage now;
    bool barrier_phase;
    uint3 index;
    int number;
    fiber *on; /* null while fresh */
    place at;  /* of the call it waits in */
    /* its operand of a warp operation, then the result */
    warp_kind kind;
    unsigned mask;
    int argument, width;
    uint64_t value;
};

struct warp_lanes {
    unsigned ready;   /* could run on */
    unsigned arrived; /* wait in a warp operation */
    /* For ThreadSanitizer: operations completed by the lanes whose lowest is this one; one token
     * each for odd and even ones, since fast lanes may be one operation ahead. */
    unsigned completed[LANES];
    char token[LANES][2];
};

struct block {
    const char *kernel;
    const std::function<void()> *body;
    int size, done, waiting, votes, result;
    place meeting; /* where the first thread waits at the barrier */
    barrier_kind meeting_kind;
    bool phase;
    unsigned ready_warps;
    thread t[MOST_THREADS];
    warp_lanes w[WARPS];
    char barrier_token[2], start_token, end_token;
    random_source random;
};

block &b = *new block;
int current = -1;                                       /* the thread that runs; -1: the host */
fiber host;                                             /* the stack that run_block was called on */
std::vector<fiber *> &idle = *new std::vector<fiber *>; /* stacks that no thread is on */
size_t next_idle; /* ThreadSanitizer: the one idle for longest */
char *dynamic;

int warp_of(int t) { return t / LANES; }
unsigned bit_of(int t) { return 1u << (t % LANES); }
/* Lanes of this warp that exist. */
unsigned lanes_of(int warp) {
    const int rest = b.size - warp * LANES;
    return rest >= LANES ? ~0u : (1u << rest) - 1;
}

const char *stage_name(stage s) {
    switch (s) {
    case stage::fresh:
        return "has not begun";
    case stage::ready:
        return "could go on";
    case stage::at_barrier:
        return "waits at __syncthreads";
    case stage::at_warp:
        return "waits at a warp operation";
    default:
        return "has left the kernel";
    }
}

/* Ends the process with what each group of threads does. */
[[noreturn]] void stuck(const char *why) {
    fflush(stdout);
    fprintf(stderr, "cusim: %s, block (%u,%u,%u): %s\n", b.kernel, blockIdx.x, blockIdx.y,
            blockIdx.z, why);
    for (int i = 0, from = 0; i < b.size; i++) {
        const thread &t = b.t[i], *next = i + 1 < b.size ? &b.t[i + 1] : nullptr;
        const bool same = next != nullptr && next->now == t.now && next->mask == t.mask &&
                          next->at.line == t.at.line && next->at.file == t.at.file;
        if (same) continue;
        fprintf(stderr, "    threads %d to %d: %s", from, i, stage_name(t.now));
        if (t.now == stage::at_barrier || t.now == stage::at_warp)
            fprintf(stderr, ", %s:%d", t.at.file, t.at.line);
        if (t.now == stage::at_warp) fprintf(stderr, ", mask %08x", t.mask);
        fputc('\n', stderr);
        from = i + 1;
    }
    abort();
}

/* One of the bits, as the order of threads wants it. */
int choose(unsigned bits) {
    switch (config().order) {
    case thread_order::forward:
        return __builtin_ctz(bits);
    case thread_order::reverse:
        return 31 - __builtin_clz(bits);
    default:
        break;
    }
    for (uint64_t skip = b.random.next() % (unsigned)__builtin_popcount(bits); skip > 0; skip--)
        bits &= bits - 1;
    return __builtin_ctz(bits);
}

/* Takes a thread that can run out of the ready ones, of the running thread's warp if there is one:
 * its stack is in the cache. -1 when there is none. */
int take_ready() {
    if (b.ready_warps == 0) return -1;
    int warp = current >= 0 ? warp_of(current) : -1;
    if (warp < 0 || b.w[warp].ready == 0 || config().order == thread_order::random)
        warp = choose(b.ready_warps);
    const int lane = choose(b.w[warp].ready);
    b.w[warp].ready &= ~(1u << lane);
    if (b.w[warp].ready == 0) b.ready_warps &= ~(1u << warp);
    return warp * LANES + lane;
}

void make_ready(int warp, unsigned lanes) {
    if (lanes == 0) return;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1)
        b.t[warp * LANES + __builtin_ctz(rest)].now = stage::ready;
    b.w[warp].ready |= lanes;
    b.ready_warps |= 1u << warp;
}

/* Under ThreadSanitizer stacks go round, so that the same thread of the next block is another
 * fiber; elsewhere the last one used is the warmest. */
fiber *take_idle() {
    fiber *f;
    if (CUSIM_TSAN) {
        f = idle[next_idle];
        next_idle = (next_idle + 1) % idle.size();
    } else {
        f = idle.back();
        idle.pop_back();
    }
    return f;
}
void give_idle(fiber *f) {
    if (!CUSIM_TSAN) idle.push_back(f);
}

void become(int next) {
    current = next;
    threadIdx = b.t[next].index;
}

/* Leaves stack `from` for the thread's own, or for a fresh stack. */
void go_to(fiber *from, int next) {
    thread &t = b.t[next];
    become(next);
    if (t.now == stage::fresh) t.on = take_idle();
    fiber_switch(from, t.on);
}

/* The running thread waits; comes back when somebody has made it ready and it was its turn. */
void give_way() {
    fiber *mine = b.t[current].on;
    const int next = take_ready();
    if (next < 0) stuck("a deadlock");
    go_to(mine, next);
}

/* What every stack does: threads to their end, one after the other. */
void run_threads() {
    fiber_entered();
    for (;;) {
        thread &t = b.t[current];
        fiber *mine = t.on;
        t.now = stage::ready;
        race_acquire(&b.start_token);
        (*b.body)();
        race_release(&b.end_token);
        t.now = stage::done;
        b.done++;
        if (b.done == b.size) {
            current = -1;
            give_idle(mine);
            fiber_switch(mine, &host);
            continue;
        }
        const int next = take_ready();
        if (next < 0)
            stuck(b.waiting > 0 ? "threads have left the kernel while others wait at __syncthreads"
                                : "a deadlock");
        if (b.t[next].now == stage::fresh && !CUSIM_TSAN) {
            b.t[next].on = mine;
            become(next);
        } else {
            give_idle(mine);
            go_to(mine, next);
        }
    }
}

} // namespace

void prepare_threads(int count) {
    static unsigned made;
    const size_t spare = CUSIM_TSAN ? 64 : 0;
    while (made < (unsigned)count + spare) idle.push_back(fiber_new(run_threads, made++));
}

void set_dynamic_shared(void *p) { dynamic = static_cast<char *>(p); }
void *dynamic_shared() { return dynamic; }

void run_block(const char *kernel, const std::function<void()> &body) {
    b.kernel = kernel;
    b.body = &body;
    b.size = (int)(blockDim.x * blockDim.y * blockDim.z);
    b.done = b.waiting = b.votes = 0;
    b.random.seed(config().order_seed + blockIdx.x);
    uint3 index = {0, 0, 0};
    for (int i = 0; i < b.size; i++) {
        thread &t = b.t[i];
        t.now = stage::fresh;
        t.number = i;
        t.index = index;
        t.mask = 0;
        t.at = {"", 0};
        if (++index.x < blockDim.x) continue;
        index.x = 0;
        if (++index.y < blockDim.y) continue;
        index.y = 0;
        index.z++;
    }
    b.ready_warps = 0;
    for (int warp = 0; warp * LANES < b.size; warp++) {
        b.w[warp].arrived = 0;
        b.w[warp].ready = lanes_of(warp);
        b.ready_warps |= 1u << warp;
    }
    host.race = race_fiber_now();
    race_release(&b.start_token);
    go_to(&host, take_ready());
    if (!config().race_grid) race_acquire(&b.end_token);
}

void race_join_blocks() { race_acquire(&b.end_token); }

/* ---- barriers -----------------------------------------------------------------------------------
 */
static int outcome(barrier_kind kind) {
    switch (kind) {
    case barrier_kind::count:
        return b.votes;
    case barrier_kind::all:
        return b.votes == b.size;
    case barrier_kind::any:
        return b.votes > 0;
    default:
        return 0;
    }
}

static void complete_barrier() {
    b.result = outcome(b.meeting_kind);
    b.waiting = b.votes = 0;
    b.phase = !b.phase;
    for (int warp = 0; warp * LANES < b.size; warp++) {
        unsigned lanes = lanes_of(warp);
        if (warp == warp_of(current)) lanes &= ~bit_of(current);
        make_ready(warp, lanes);
    }
    b.t[current].now = stage::ready;
}

int barrier(barrier_kind kind, int predicate, place at) {
    if (current < 0) die("__syncthreads outside of a kernel, %s:%d", at.file, at.line);
    thread &t = b.t[current];
    t.now = stage::at_barrier;
    t.at = at;
    if (b.waiting == 0) {
        b.meeting = at;
        b.meeting_kind = kind;
    } else if (b.meeting.line != at.line || b.meeting.file != at.file)
        stuck("threads of one block meet at different __syncthreads");
    b.waiting++;
    b.votes += predicate;
    char *token = &b.barrier_token[b.phase];
    race_release(token);
    if (b.waiting == b.size)
        complete_barrier();
    else if (b.waiting + b.done == b.size)
        stuck("threads have left the kernel while others wait at __syncthreads");
    else
        give_way();
    race_acquire(token);
    return b.result;
}

/* ---- warps --------------------------------------------------------------------------------------
 */
/* The lane that lane `i` reads from. */
static int source_lane(const thread &t, int i) {
    const int first = i & ~(t.width - 1), last = first + t.width - 1;
    int from = i;
    switch (t.kind) {
    case warp_kind::shuffle_index:
        return first + (t.argument & (t.width - 1));
    case warp_kind::shuffle_xor:
        from = i ^ t.argument;
        break;
    case warp_kind::shuffle_up:
        from = i - t.argument;
        break;
    case warp_kind::shuffle_down:
        from = i + t.argument;
        break;
    default:
        break;
    }
    if (t.kind == warp_kind::shuffle_xor)
        return from > last ? i : from; /* lower groups may be read */
    return from < first || from > last ? i : from;
}

/* All lanes of `mask` have come: works out what each gets and makes them ready. */
static void complete_warp(int warp, unsigned mask) {
    thread *lane = &b.t[warp * LANES];
    const thread &first = lane[__builtin_ctz(mask)];
    uint64_t out[LANES];
    unsigned ballot = 0;
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const thread &t = lane[__builtin_ctz(rest)];
        if (t.mask != first.mask || t.kind != first.kind || t.at.line != first.at.line ||
            t.at.file != first.at.file)
            stuck("lanes of one warp meet in different warp operations");
        if (t.value != 0) ballot |= rest & -rest;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
        const int i = __builtin_ctz(rest), from = source_lane(lane[i], i);
        if (!(mask >> from & 1)) stuck("a shuffle reads from a lane that its mask does not name");
        out[i] = first.kind == warp_kind::ballot ? ballot : lane[from].value;
    }
    for (unsigned rest = mask; rest != 0; rest &= rest - 1)
        lane[__builtin_ctz(rest)].value = out[__builtin_ctz(rest)];
    b.w[warp].arrived &= ~mask;
    make_ready(warp, mask & ~bit_of(current));
    b.t[current].now = stage::ready;
}

uint64_t warp(warp_kind kind, unsigned mask, uint64_t value, int argument, int width, place at) {
    if (current < 0) die("a warp operation outside of a kernel, %s:%d", at.file, at.line);
    thread &t = b.t[current];
    const int warp = warp_of(current);
    warp_lanes &w = b.w[warp];
    t.now = stage::at_warp;
    t.at = at;
    t.kind = kind;
    t.mask = mask;
    t.value = value;
    t.argument = argument;
    t.width = width;
    if (!(mask & bit_of(current)))
        stuck("a thread calls a warp operation whose mask does not name it");
    if (width < 1 || width > LANES || (width & (width - 1)) != 0)
        stuck("the width of a shuffle is no power of two up to 32");
    const unsigned named = mask & lanes_of(warp);
    const int lowest = __builtin_ctz(named);
    char *token = &w.token[lowest][w.completed[lowest] & 1];
    race_release(token);
    w.arrived |= bit_of(current);
    if ((w.arrived & named) == named) {
        complete_warp(warp, named);
        w.completed[lowest]++;
    } else
        give_way();
    /* A shuffle exchanges values and orders no memory; __syncwarp does. */
    if (kind == warp_kind::sync) race_acquire(token);
    return t.value;
}

unsigned active_mask() {
    unsigned mask = 0;
    if (current < 0) die("__activemask outside of a kernel");
    const int warp = warp_of(current);
    for (int i = 0; i < LANES; i++)
        if ((lanes_of(warp) >> i & 1) && b.t[warp * LANES + i].now != stage::done) mask |= 1u << i;
    return mask;
}

void trap(place at) { die("__trap, %s:%d", at.file, at.line); }

const char *describe_runner(char *text, size_t size) {
    if (current < 0)
        snprintf(text, size, "the host");
    else
        snprintf(text, size, "%s, block (%u,%u,%u), thread (%u,%u,%u)", b.kernel, blockIdx.x,
                 blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    return text;
}

} // namespace cusim
