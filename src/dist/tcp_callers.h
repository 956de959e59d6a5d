/* The listening side of a rank: accepts connections, performs the handshake (tcp_hello.h) with all callers at
 * the same time, and passes on the callers that prove to be ranks of this job. Anybody can connect to a port:
 * a caller that sends something else, or nothing, is dropped and logged, without other effects. */
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
    DSVI_CALLERS_MAX = 256, /* handshakes at the same time; further callers wait in the listener's backlog */
    DSVI_CALLER_POLLERS = DSVI_CALLERS_MAX + DSVI_PLACES_MAX,
};

/* Logs one line without newline. */
typedef void DsviTcpLog(void *context, const char *line);

/* Called for each caller whose hello has the seal of this job. Returns the verdict, which is sent to the
 * caller. With DSVI_CALL_TAKEN the function takes ownership of the connection `file`. */
typedef DsviVerdict DsviTcpCalled(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from);

typedef struct DsviCaller {
    int file;
    DsviTcpPlace from;
    double came;  /* time (dsvi_clock_seconds) when the connection was accepted */
    double until; /* time by which the caller's hello must have arrived */
    DsviChallenge challenge;
    unsigned char in[sizeof(DsviHello)];
    size_t got;
} DsviCaller;

typedef struct DsviTcpCallers {
    const DsviJobKey *key;
    int64_t rank, size;
    DsviTcpLog *log;
    DsviTcpCalled *called;
    void *context;
    int listener[DSVI_PLACES_MAX];
    DsviTcpPlace at[DSVI_PLACES_MAX]; /* addresses of the listeners */
    int listeners;
    DsviCaller caller[DSVI_CALLERS_MAX]; /* in the order in which they were accepted */
    int count;
    int64_t dropped; /* number of callers that were dropped so far */
} DsviTcpCallers;

/* Listens at all of `places` that are addresses of this machine. DSV_E_IO if none is, or if another program
 * uses the port. */
DsvStatus dsvi_tcp_callers_listen(DsviTcpCallers *callers, const DsviTcpPlaces *places);
void dsvi_tcp_callers_close(DsviTcpCallers *callers);

/* Fills the entries for poll() and returns how many they are. Listeners get descriptor -1 while no further
 * caller can be accepted, because all DSVI_CALLERS_MAX callers are younger than a second. */
int dsvi_tcp_callers_pollers(const DsviTcpCallers *callers, struct pollfd *poller);
/* Handles the events that poll() reported in the entries of dsvi_tcp_callers_pollers; no other function of
 * `callers` may be called in between. */
DsvStatus dsvi_tcp_callers_serve(DsviTcpCallers *callers, const struct pollfd *poller);

#ifdef __cplusplus
}
#endif
#endif
