/* Ranks that are threads of this process: how every parallel path is tested on any machine. */
#ifndef DSVI_COMM_LOCAL_H
#define DSVI_COMM_LOCAL_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group of `size` ranks; comm[r] is for the thread that is rank r, which closes it. A rank that does not
 * come to a call within timeout_s seconds is taken for lost. */
DsvStatus dsvi_comm_local_create(int64_t size, double timeout_s, DsvComm **comm);

#ifdef __cplusplus
}
#endif
#endif
