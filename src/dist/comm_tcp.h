/* Ranks that are processes connected by TCP. They need to be told where rank 0 is and the job's word, so any
 * starter of processes will do (torchrun, srun, a shell). */
#ifndef DSVI_COMM_TCP_H
#define DSVI_COMM_TCP_H

#include "dist/comm.h"
#include "dist/tcp_mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks meet as dsvi_tcp_mesh says, within meeting->timeout_s, but at most five minutes; then they wait for
 * each other in calls for meeting->timeout_s. */
DsvStatus dsvi_comm_tcp_create(const DsviMeeting *meeting, DsvComm **out);

#ifdef __cplusplus
}
#endif
#endif
