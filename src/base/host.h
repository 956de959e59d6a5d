/* The machine we run on, as far as a run reports it. */
#ifndef DSVI_HOST_H
#define DSVI_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds on a clock that only grows. */
double dsvi_clock_seconds(void);

/* Bytes of this process in memory now, and the most there ever were; 0 where the system does not tell.
 * Neither allocates. */
uint64_t dsvi_resident_bytes(void);
uint64_t dsvi_resident_bytes_most(void);

#ifdef __cplusplus
}
#endif
#endif
