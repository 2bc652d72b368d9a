/* What this process may use of the machine (hostinfo.c). */
#ifndef BANTAM_CPU_HOSTINFO_H
#define BANTAM_CPU_HOSTINFO_H

#include <stddef.h>
#include <stdint.h>

int btcpu_usable_threads(void);
uint64_t btcpu_total_memory(void);     /* physical, or the control group's limit */
uint64_t btcpu_available_memory(void); /* to be had now without swapping, within that limit */
uint64_t btcpu_anonymous_memory(void); /* resident anonymous memory of this process */
void btcpu_cpu_name(char *out, size_t size);

#endif
