/* Parts of the cuda suite. */
#ifndef BANTAM_TESTS_CUDA_PARTS_H
#define BANTAM_TESTS_CUDA_PARTS_H

#include "tests/program_kit.h"

/* Allocations so small that opening the device measures nothing: how many calls that takes follows
 * from the clock. For what counts calls. */
#define NO_MEASURING "BANTAM_CUDA_MAX_ALLOC=98304"

/* `train --updates N` of a small run on cuda, with these settings of the environment more (NULL:
 * none): the simulator's counts, the kit's text. */
const char *cuda_stats(const char *updates, const char *settings);
int64_t cuda_count(const char *stats, const char *name);

/* What a run does where the reason is this: refuses when cuda was named, takes another device when
 * not, and does not ask cuda when the cpu was named. */
void cuda_runs_without(const char *settings, const char *reason);

/* `test_cuda use`: a device is opened and used, as a process of its own; the exit status. */
int cuda_use_once(void);

/* A walk over the calls of a run (all of them where BANTAM_EVERY_CALL is set). */
void add_cuda_walks(TCase *tc);
void add_cuda_faults(TCase *tc);
void add_cuda_settings(TCase *tc);

#endif
