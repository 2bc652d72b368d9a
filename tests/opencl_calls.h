/* OpenCL's functions as this program's modules see them: counted, and failing where asked. The
 * program exports them, so that a module opened by dlopen binds to them before the ICD loader's;
 * they hand on to the loader. Libraries that the module opens are caught too, drivers are not. */
#ifndef BANTAM_TESTS_OPENCL_CALLS_H
#define BANTAM_TESTS_OPENCL_CALLS_H

#include <stdint.h>

/* What a device says of itself instead of the truth. */
typedef struct calls_face {
    uint64_t type;     /* CL_DEVICE_TYPE_... */
    uint64_t bytes;    /* of its memory */
    uint32_t shared;   /* with the machine */
    uint32_t compiler; /* its driver has one */
} calls_face;

/* What is counted: calls that create, build, enqueue or wait. */
typedef struct calls_state {
    int64_t fail_at;         /* in: the n-th call from now on fails; 0: none */
    const char *only;        /* in: only calls of this name are counted; NULL: all */
    int lost;                /* in: and all after it */
    int64_t calls;           /* since calls_start */
    const char *failed;      /* the first that did */
    int in_library;          /* it was a call of a library that the module uses */
    int64_t live;            /* buffers, queues and events that were not released */
    int64_t bytes;           /* of buffers created and not released */
    int64_t buffers;         /* created, windows on others included */
    int64_t copies;          /* from or to host memory that nobody waited for yet */
    const calls_face *faces; /* in: of the first devices, as their platforms list them */
    int face_count;
} calls_state;
extern calls_state calls;

/* Counts from 0 on; the n-th call fails. Sets `only` to NULL. */
void calls_start(int64_t fail_at, int lost);
/* None fails any more. */
void calls_stop(void);

#endif
