/* A call: this rank connects to another rank and performs the handshake of tcp_hello.h, repeatedly until the
 * other rank accepts. No function here waits: dist/tcp_mesh.c polls many calls at the same time. */
#ifndef DSVI_TCP_CALL_H
#define DSVI_TCP_CALL_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "dist/tcp_hello.h"
#include "dist/tcp_place.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviCallState {
    DSVI_CALL_IDLE, /* pauses before the next attempt */
    DSVI_CALL_CONNECTING,
    DSVI_CALL_LISTENING,  /* connected, waits for the challenge */
    DSVI_CALL_CHALLENGED, /* the owner must send the hello with dsvi_tcp_call_send_hello */
    DSVI_CALL_GREETED,    /* waits for the answer */
    DSVI_CALL_DONE,       /* accepted: `file` is the connection and belongs to the owner of the call */
} DsviCallState;

typedef struct DsviTcpCall {
    int64_t from, to;     /* this rank and the rank that it calls */
    DsviTcpPlaces places; /* addresses of rank `to`, tried in turn */
    int next;             /* index of the address that is tried next */
    DsviCallState state;
    int file;        /* socket; -1: none */
    double retry_at; /* time (dsvi_clock_seconds) of the next attempt */
    double until;    /* time at which the current attempt ends as failed */
    /* For each address: the time since which every attempt reached something other than rank `to`; 0: at the
       last attempt nothing answered. */
    double strange_since[DSVI_PLACES_MAX];
    char trouble[256]; /* why the last attempt failed; "" before the first failure */
    unsigned char in[sizeof(DsviAnswer)];
    size_t got;
    DsviChallenge challenge;
    DsviHello hello;
} DsviTcpCall;

/* Initialises a call. The first dsvi_tcp_call_advance connects. */
void dsvi_tcp_call_begin(DsviTcpCall *call, int64_t from, int64_t to, const DsviTcpPlaces *places);
/* Closes the socket, unless the call is done. */
void dsvi_tcp_call_end(DsviTcpCall *call);

/* Returns what poll() should wait for. Descriptor -1: the call waits only for its next attempt. */
struct pollfd dsvi_tcp_call_poller(const DsviTcpCall *call);

/* Performs the next step of the call if it is possible without waiting. `ready`: poll() reported an event for
 * the call's socket. Fails if further attempts are useless: the two ranks were started with different numbers
 * of ranks or with the same rank, or at one address something other than rank `to` has answered for 30
 * seconds. */
DsvStatus dsvi_tcp_call_advance(DsviTcpCall *call, const DsviJobKey *key, bool ready);

/* In state DSVI_CALL_CHALLENGED: sends the hello. `port` is the port at which this rank listens. */
void dsvi_tcp_call_send_hello(DsviTcpCall *call, const DsviJobKey *key, int64_t size, int port);

#ifdef __cplusplus
}
#endif
#endif
