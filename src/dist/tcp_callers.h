/* The listening side of a rank: takes calls, hears all callers at once, and hands on those that prove to be
 * ranks of this job. Anybody may call a port: a caller that says something else, or nothing, is dropped with
 * a line of the log and ends nothing. */
#ifndef DSVI_TCP_CALLERS_H
#define DSVI_TCP_CALLERS_H

#include <poll.h>
#include <stdint.h>

#include "dist/tcp_hello.h"
#include "dist/tcp_place.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DSVI_CALLERS_MAX = 256, /* heard at once; further callers wait in the listener's queue */
    DSVI_CALLER_POLLERS = DSVI_CALLERS_MAX + DSVI_PLACES_MAX,
};

/* One line without a newline. */
typedef void DsviTcpSay(void *context, const char *line);

/* A caller has sent a hello with the seal of this job. The verdict is sent to it; with DSVI_CALL_TAKEN the
 * connection becomes the callee's. */
typedef DsviVerdict DsviTcpCalled(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from);

typedef struct DsviCaller {
    int file;
    DsviTcpPlace from;
    double came;  /* clock: when it was accepted */
    double until; /* clock: its hello must be there by then */
    DsviChallenge challenge;
    unsigned char in[sizeof(DsviHello)];
    size_t got;
} DsviCaller;

typedef struct DsviTcpCallers {
    const DsviJobKey *key;
    int64_t rank, size;
    DsviTcpSay *say;
    DsviTcpCalled *called;
    void *context;
    int listener[DSVI_PLACES_MAX];
    DsviTcpPlace at[DSVI_PLACES_MAX]; /* where they listen */
    int listeners;
    DsviCaller caller[DSVI_CALLERS_MAX]; /* in the order in which they came */
    int count;
    int64_t dropped; /* callers so far */
} DsviTcpCallers;

/* Listens at all of `places` that are this machine's. DSV_E_IO: at none of them, or a port is taken. */
DsvStatus dsvi_tcp_callers_listen(DsviTcpCallers *callers, const DsviTcpPlaces *places);
void dsvi_tcp_callers_close(DsviTcpCallers *callers);

/* Fills what is to be polled; returns how many. A listener whose calls cannot be accepted now is not polled
 * (-1): all places hold callers that have had no time yet to send a hello. */
int dsvi_tcp_callers_pollers(const DsviTcpCallers *callers, struct pollfd *poller);
/* Serves what the pollers found: as many, in the same order, with nothing else done in between. */
DsvStatus dsvi_tcp_callers_serve(DsviTcpCallers *callers, const struct pollfd *poller);

#ifdef __cplusplus
}
#endif
#endif
