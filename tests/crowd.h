/* "crowd": devices whose memory is said to be as a test wants it, over `null`, which has none. */
#ifndef BANTAM_TESTS_CROWD_H
#define BANTAM_TESTS_CROWD_H

#include "backends/backend.h"

typedef struct crowd {
    uint64_t total, free, runtime, max_alloc; /* what query and info say */
    int first_use_fails;                      /* buffers are given, and cannot be written */
    int grabbed; /* set by the test or, with grab_after_start, by the first sync: no alloc works */
    int grab_after_start;
    int64_t allocs, freed;
    uint64_t largest; /* buffer that was given */
} crowd;

/* Devices "crowd:0" and "crowd:1". */
#define CROWDS 2
extern crowd crowds[CROWDS];
/* Makes the backend known and both devices roomy: 64 GiB, all free. */
void crowd_reset(void);

#endif
