/* Clock, cores and memory of this machine. */
#ifndef DSVI_HOST_H
#define DSVI_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the time in seconds of a monotonic clock. */
double dsvi_clock_seconds(void);

/* Returns the bytes of this process that are in physical memory now; 0 if the system does not report them.
 * Does not allocate. */
uint64_t dsvi_resident_bytes(void);

/* Returns the number of cores that this process may use, at least 1: the cores of its affinity mask, or fewer
 * if a control group limits its CPU time (base/control_group.h). */
int dsvi_usable_cores(void);

/* Returns the bytes of memory of this machine, or the limit of the process's control groups if it is lower;
 * 0 if the system does not report them. */
uint64_t dsvi_memory_bytes(void);

/* Returns the bytes of memory that this process could still allocate without swapping: what the kernel
 * reports as available (MemAvailable of /proc/meminfo, which counts file caches that can be dropped), or what
 * the process's control groups still allow if it is less; 1 if nothing is left, 0 if the system reports
 * neither. */
uint64_t dsvi_memory_available(void);

/* The same, for tests: reads `meminfo` in place of /proc/meminfo, and passes `groups` and `mount` to
 * dsvi_group_limits. */
uint64_t dsvi_memory_available_by(const char *meminfo, const char *groups, const char *mount);

#ifdef __cplusplus
}
#endif
#endif
