/* The machine we run on, as far as a run reports it. */
#ifndef DSVI_HOST_H
#define DSVI_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds on a clock that only grows. */
double dsvi_clock_seconds(void);

/* Bytes of this process in memory now; 0 where the system does not tell. Does not allocate. */
uint64_t dsvi_resident_bytes(void);

/* Cores that this process may use, at least 1: those it may run on, or fewer where its control group, or one
 * around that, has a quota of their time. */
int dsvi_usable_cores(void);
/* The least quota, in cores, in cpu.max of the folders root, root/a, root/a/b ... of group "/a/b"; infinite
 * where there is none. */
double dsvi_cpu_quota(const char *root, const char *group);

/* Bytes of memory that the machine has in all; 0 where the system does not tell. */
uint64_t dsvi_memory_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
