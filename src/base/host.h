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

/* Cores that this process may use, at least 1: those it may run on, or fewer where control groups leave it
 * less of their time (base/control_group.h). */
int dsvi_usable_cores(void);

/* Bytes of memory that there are in all: the machine's, or what control groups leave of it; 0 where the
 * system does not tell. */
uint64_t dsvi_memory_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
