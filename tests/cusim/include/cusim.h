/* What a test asks of the simulator, beside CUDA's own calls. Plain C; link libcusim. */
#ifndef CUSIM_H
#define CUSIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What was done since the start. */
typedef struct cusim_counts {
    uint64_t calls;   /* of the runtime and of cuBLAS, those that failed too: what CUSIM_FAIL_CALL,
                         CUSIM_LOST and CUSIM_HANG count */
    uint64_t mallocs; /* cudaMalloc */
    uint64_t host_mallocs; /* pinned memory taken or registered */
    uint64_t streams, events;
    uint64_t launches;   /* kernels enqueued */
    uint64_t kernels;    /* kernels run */
    uint64_t threads;    /* threads of kernels run */
    uint64_t switches;   /* from one of their stacks to another */
    uint64_t copies;     /* copies and fills done */
    uint64_t syncs;      /* the host waited for a stream, an event or the device */
    uint64_t products;   /* matrix products of cuBLAS done */
    uint64_t workspaces; /* that cuBLAS took for itself, since none was given */
    uint64_t live_bytes; /* of device memory in all buffers */
    uint64_t peak_bytes;
} cusim_counts;

void cusim_read_counts(cusim_counts *counts);

/* Reads the settings again and starts from nothing: counts, errors, what a device had lost. Nothing
 * of the simulator may be in use: buffers that are alive stop the process with their sizes. */
void cusim_restart(void);

/* Drops all buffers, streams and events, as the end of a process would: after a fault, when no call
 * can free them. */
void cusim_abandon(void);

#ifdef __cplusplus
}
#endif

#endif
