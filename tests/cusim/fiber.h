/* Stacks, and how to go from one to another. AddressSanitizer and ThreadSanitizer are told. */
#ifndef CUSIM_FIBER_H
#define CUSIM_FIBER_H

#include <cstddef>

#if !defined(__x86_64__) || defined(CUSIM_UCONTEXT)
#define CUSIM_PORTABLE_SWITCH 1
#include <ucontext.h>
#else
#define CUSIM_PORTABLE_SWITCH 0
#endif

namespace cusim {

/* An own stack, or (default constructed) the one that the host thread runs on. */
struct fiber {
#if CUSIM_PORTABLE_SWITCH
    ucontext_t context;
#else
    void *sp = nullptr;
#endif
    const void *bottom = nullptr;
    size_t bytes = 0;
    void *fake = nullptr; /* AddressSanitizer's */
    void *race = nullptr; /* ThreadSanitizer's */
};

/* A stack that begins in `entry`, which must never return. Guarded below. `colour` shifts where it
 * begins, so that many stacks do not share the sets of a cache. */
fiber *fiber_new(void (*entry)(), unsigned colour);
void fiber_switch(fiber *from, fiber *to);
/* First thing that an entry calls. */
void fiber_entered();
bool in_fiber_guard(const void *p);

/* ThreadSanitizer's view of who runs and what is ordered; nothing in other builds. */
void *race_fiber_new();
void race_fiber_free(void *race);
void *race_fiber_now();
void race_become(void *race);
void race_release(void *token);
void race_acquire(void *token);
void race_ignore(void *p, size_t bytes); /* races in there are none */

/* The clock. Who runs, for ThreadSanitizer, may be a stream or a thread of a kernel; it is on the
 * host's stack that the time is written. */
double seconds();

} // namespace cusim

#endif
