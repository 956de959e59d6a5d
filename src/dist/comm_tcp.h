/* Ranks that are processes connected by TCP: they need to know of each other no more than where rank 0 is,
 * so any starter of processes will do (torchrun, srun, a shell). */
#ifndef DSVI_COMM_TCP_H
#define DSVI_COMM_TCP_H

#include "dist/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank 0 listens at port `port` of the machine `address`; the others call it there, for five minutes at
 * most. */
DsvStatus dsvi_comm_tcp_create(int64_t rank, int64_t size, const char *address, int port, double timeout_s,
                               DsvComm **out);

#ifdef __cplusplus
}
#endif
#endif
