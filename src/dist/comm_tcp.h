/* Ranks that are processes connected by TCP. Each process must be given its rank, the address of rank 0 and
 * the job key, so that any launcher works (torchrun, srun, a shell). */
#ifndef DSVI_COMM_TCP_H
#define DSVI_COMM_TCP_H

#include "dist/comm.h"
#include "dist/tcp_mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Connects all ranks of a job (dsvi_tcp_mesh_connect) and makes their group. Connecting fails after
 * meeting->timeout_s seconds, at most five minutes; meeting->timeout_s is also the timeout of the group's
 * calls. */
DsvStatus dsvi_comm_tcp_create(const DsviMeeting *meeting, DsviComm **out);

#ifdef __cplusplus
}
#endif
#endif
