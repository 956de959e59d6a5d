/* One call from this rank to another, repeated until that rank takes it. Nothing here waits: the caller polls
 * (dist/tcp_mesh.c), and many calls go on at a time. */
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
    DSVI_CALL_IDLE,       /* until the next attempt */
    DSVI_CALL_CONNECTING,
    DSVI_CALL_LISTENING,  /* for the challenge */
    DSVI_CALL_CHALLENGED, /* the hello is to be sent: dsvi_tcp_call_greet */
    DSVI_CALL_GREETED,    /* waits for the answer */
    DSVI_CALL_DONE,       /* `file` is the connection, which now is the owner's */
} DsviCallState;

typedef struct DsviTcpCall {
    int64_t from, to;       /* ranks */
    DsviTcpPlaces places;   /* tried in turn */
    int next;               /* of the places */
    DsviCallState state;
    int file;
    double retry_at, until; /* clock: of the next attempt; of this one's end */
    /* Per place, clock: since when every attempt has met something else than rank `to`; 0: the last attempt
     * did not. */
    double strange_since[DSVI_PLACES_MAX];
    char trouble[256];      /* why the last attempt failed; "" before the first failure */
    unsigned char in[sizeof(DsviAnswer)];
    size_t got;
    DsviChallenge challenge;
    DsviHello hello;
} DsviTcpCall;

void dsvi_tcp_call_begin(DsviTcpCall *call, int64_t from, int64_t to, const DsviTcpPlaces *places);
void dsvi_tcp_call_end(DsviTcpCall *call);

/* What the call waits for; a descriptor of -1: for time to pass. */
struct pollfd dsvi_tcp_call_poller(const DsviTcpCall *call);

/* Goes on as far as it can; `ready`: its poller has found something. Fails where calling again is no use:
 * both ranks were told different things, or at one place something else has answered instead of rank `to`
 * for half a minute. */
DsvStatus dsvi_tcp_call_go_on(DsviTcpCall *call, const DsviJobKey *key, bool ready);

/* In DSVI_CALL_CHALLENGED: sends the hello of a rank that listens at `port`. */
void dsvi_tcp_call_greet(DsviTcpCall *call, const DsviJobKey *key, int64_t size, int port);

#ifdef __cplusplus
}
#endif
#endif
