/* Connections between processes that were told where to find rank 0, and share a word. */
#ifndef DSVI_TCP_MESH_H
#define DSVI_TCP_MESH_H

#include <stdint.h>

#include "base/status.h"
#include "dist/tcp_callers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a process was told. */
typedef struct DsviMeeting {
    int64_t rank, size;
    const char *address; /* of rank 0, */
    int port;            /* which listens there */
    const char *word;    /* the same on all ranks of the job, and on no other job's; "": none */
    double timeout_s;    /* how long ranks wait for each other */
    DsviTcpSay *say;     /* hears who is missing, and which calls were dropped; NULL: nobody does */
    void *context;
} DsviMeeting;

/* Connects every rank with every other. Rank 0 listens at address:port, the others call it, prove that they
 * know the job's word (dist/tcp_hello.h), tell where they listen, and are told of each other. socket[r]
 * (size) becomes the connection with rank r, which does not block; -1 for this rank's place.
 *
 * All ranks have met or none has: a rank that fails or ends meanwhile ends the call on all that have called
 * rank 0, with its reason. Within ten seconds, and then rarely, `say` hears which ranks are missing. */
DsvStatus dsvi_tcp_mesh(const DsviMeeting *meeting, int *socket);

/* For a rank that cannot begin: tells the others `sentence`, upon which their dsvi_tcp_mesh fails with it.
 * Takes a few seconds where they are not there. */
void dsvi_tcp_mesh_decline(const DsviMeeting *meeting, const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
