#include "fiber.h"

#include <cstdlib>
#include <ctime>
#include <sys/mman.h>
#include <vector>

#include "state.h"

#if CUSIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if CUSIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateBenignRaceSized(const char *file, int line, const volatile void *p,
                                        size_t bytes, const char *what);
extern "C" void AnnotateIgnoreWritesBegin(const char *file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char *file, int line);
#else
#define AnnotateIgnoreWritesBegin(file, line)
#define AnnotateIgnoreWritesEnd(file, line)
#endif

namespace cusim {

enum { PAGE = 4096, STACK = (CUSIM_ASAN ? 256 : 128) << 10 };

static fiber *left; /* the fiber that the running one was reached from */
static std::vector<char *> &guards = *new std::vector<char *>;

#if !CUSIM_PORTABLE_SWITCH
/* Saves what a call must keep (System V ABI) and the stack pointer, then takes the other's. */
extern "C" void cusim_switch(void **save, void *to);
asm(".text\n"
    ".globl cusim_switch\n"
    ".hidden cusim_switch\n"
    ".type cusim_switch,@function\n"
    "cusim_switch:\n"
    "pushq %rbp\n"
    "pushq %rbx\n"
    "pushq %r12\n"
    "pushq %r13\n"
    "pushq %r14\n"
    "pushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\n"
    "popq %r14\n"
    "popq %r13\n"
    "popq %r12\n"
    "popq %rbx\n"
    "popq %rbp\n"
    "ret\n"
    ".size cusim_switch, .-cusim_switch\n");
enum { SAVED = 6 };
#endif

fiber *fiber_new(void (*entry)(), unsigned colour) {
    char *p = static_cast<char *>(mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) != 0) die("no memory for stacks");
    guards.push_back(p);
    fiber *f = new fiber;
    f->bottom = p + PAGE;
    f->bytes = STACK;
    f->race = race_fiber_new();
    char *top = p + PAGE + STACK - 64 - (colour % 61) * 256;
#if CUSIM_PORTABLE_SWITCH
    if (getcontext(&f->context) != 0) die("getcontext failed");
    f->context.uc_stack.ss_sp = p + PAGE;
    f->context.uc_stack.ss_size = static_cast<size_t>(top - (p + PAGE));
    f->context.uc_link = nullptr;
    makecontext(&f->context, entry, 0);
#else
    void **sp = reinterpret_cast<void **>(top);
    *--sp = nullptr; /* where `entry` would return to; keeps the stack aligned as after a call */
    *--sp = reinterpret_cast<void *>(entry);
    for (int i = 0; i < SAVED; i++) *--sp = nullptr;
    f->sp = sp;
#endif
    return f;
}

void fiber_switch(fiber *from, fiber *to) {
    left = from;
    counts.switches++;
#if CUSIM_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
    if (to->race != nullptr) race_become(to->race);
#if CUSIM_PORTABLE_SWITCH
    if (swapcontext(&from->context, &to->context) != 0) die("swapcontext failed");
#else
    cusim_switch(&from->sp, to->sp);
#endif
#if CUSIM_ASAN
    __sanitizer_finish_switch_fiber(from->fake, &left->bottom, &left->bytes);
#endif
}

void fiber_entered() {
#if CUSIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &left->bottom, &left->bytes);
#endif
}

bool in_fiber_guard(const void *p) {
    for (char *guard : guards)
        if (p >= guard && p < guard + PAGE) return true;
    return false;
}

#if CUSIM_TSAN
void *race_fiber_new() { return __tsan_create_fiber(0); }
void race_fiber_free(void *race) { __tsan_destroy_fiber(race); }
void *race_fiber_now() { return __tsan_get_current_fiber(); }
void race_become(void *race) { __tsan_switch_to_fiber(race, __tsan_switch_to_fiber_no_sync); }
void race_release(void *token) { __tsan_release(token); }
void race_acquire(void *token) { __tsan_acquire(token); }
void race_ignore(void *p, size_t bytes) {
    AnnotateBenignRaceSized(__FILE__, __LINE__, p, bytes, "memory of one block");
}
#else
void *race_fiber_new() { return nullptr; }
void race_fiber_free(void *) {}
void *race_fiber_now() { return nullptr; }
void race_become(void *) {}
void race_release(void *) {}
void race_acquire(void *) {}
void race_ignore(void *, size_t) {}
#endif

double seconds() {
    timespec t;
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    clock_gettime(CLOCK_MONOTONIC, &t);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

} // namespace cusim
