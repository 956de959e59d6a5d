/* Connects all ranks of a job by TCP, given the address of rank 0 and a job key. */
#ifndef DSVI_TCP_MESH_H
#define DSVI_TCP_MESH_H

#include <stdint.h>

#include "base/status.h"
#include "dist/tcp_callers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a process needs to know to connect with the other ranks. */
typedef struct DsviMeeting {
    int64_t rank, size;  /* this process's rank, and the number of ranks */
    const char *address; /* host name or IP address at which rank 0 listens */
    int port;            /* port at which rank 0 listens */
    const char *job_key; /* equal on all ranks of the job, and different from other jobs'; "": none */
    double timeout_s;    /* how long ranks wait for each other */
    DsviTcpLog *log;     /* receives lines about missing ranks and dropped calls; NULL: they are not logged */
    void *context;       /* first argument of `log` */
} DsviMeeting;

/* Connects every rank with every other. Rank 0 listens at address:port. The others connect to it, prove that
 * they know the job key (dist/tcp_hello.h) and send the port at which they listen; rank 0 then sends the
 * addresses of all ranks to all. socket (size): socket[r] becomes the connection with rank r, in non-blocking
 * mode; -1 for this rank.
 *
 * The function succeeds on all ranks or on none: if a rank fails or ends meanwhile, the call fails with its
 * reason on all ranks that have reached rank 0. Missing ranks are logged after 8 s, after 30 s, and then each
 * time that the wait has doubled. */
DsvStatus dsvi_tcp_mesh_connect(const DsviMeeting *meeting, int *socket);

/* Called in place of dsvi_tcp_mesh_connect by a rank that has failed before: makes dsvi_tcp_mesh_connect fail
 * with `sentence` on the other ranks. Waits up to five seconds for ranks that are not there yet. */
void dsvi_tcp_mesh_decline(const DsviMeeting *meeting, const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
