/* Ranks that are threads of this process. Tests use them to run parallel code on any machine. */
#ifndef DSVI_COMM_LOCAL_H
#define DSVI_COMM_LOCAL_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a group of `size` ranks. comm (size): comm[r] is the handle of the thread that is rank r; this thread
 * closes it. A call fails if a rank does not make it within timeout_s seconds. */
DsvStatus dsvi_comm_local_create(int64_t size, double timeout_s, DsviComm **comm);

#ifdef __cplusplus
}
#endif
#endif
