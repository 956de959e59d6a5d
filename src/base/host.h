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

/* Bytes of memory that there are in all: the machine's, or what the control groups that this process is in
 * leave of it; 0 where the system does not tell. */
uint64_t dsvi_memory_bytes(void);
/* What these groups leave: `groups` names them as /proc/self/cgroup does, `mount` is where their files are.
 * UINT64_MAX: anything. */
uint64_t dsvi_cgroup_bytes(const char *groups, const char *mount);

#ifdef __cplusplus
}
#endif
#endif
