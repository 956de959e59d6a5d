/* See tcp_callers.h. */
#include "dist/tcp_callers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"

#define HELLO_S 5.0 /* seconds after which a caller is dropped if its hello has not arrived */
#define FRESH_S 1.0 /* a caller younger than so many seconds is not dropped in favour of others */
/* So many dropped callers are logged each; after them only callers number 8, 16, 32, ... are. */
enum { DROPS_LOGGED_EACH = 5 };

DsvStatus dsvi_tcp_callers_listen(DsviTcpCallers *c, const DsviTcpPlaces *places)
{
    char where[DSVI_PLACE_TEXT];
    int error = 0, listeners = c->listeners;
    for (int i = 0; i < places->count && c->listeners < DSVI_PLACES_MAX; i++) {
        DsviTcpPlace place = places->place[i];
        int file = dsvi_place_listen(&place);
        if (file >= 0) {
            c->at[c->listeners] = place;
            c->listener[c->listeners++] = file;
            continue;
        }
        error = errno;
        if (error == EADDRINUSE)
            break; /* another program listens at this address, and some ranks would reach it */
    }
    if (c->listeners > listeners && error != EADDRINUSE)
        return DSV_OK;
    dsvi_place_text(&places->place[0], where);
    if (error == EADDRNOTAVAIL)
        return DSVI_FAIL(DSV_E_IO, "rank %lld cannot listen at %s, which is no address of its machine",
                         (long long)c->rank, where);
    return DSVI_FAIL(DSV_E_IO, "rank %lld cannot listen at %s: %s", (long long)c->rank, where,
                     strerror(error));
}

void dsvi_tcp_callers_close(DsviTcpCallers *c)
{
    for (int i = 0; i < c->listeners; i++)
        close(c->listener[i]);
    for (int i = 0; i < c->count; i++)
        close(c->caller[i].file);
    c->listeners = c->count = 0;
}

/* Returns whether another caller can be accepted. caller[0] is the oldest. */
static bool has_room(const DsviTcpCallers *c)
{
    return c->count < DSVI_CALLERS_MAX || dsvi_clock_seconds() - c->caller[0].came > FRESH_S;
}

int dsvi_tcp_callers_pollers(const DsviTcpCallers *c, struct pollfd *poller)
{
    bool accepts = has_room(c);
    for (int i = 0; i < c->listeners; i++)
        *poller++ = (struct pollfd){accepts ? c->listener[i] : -1, POLLIN, 0};
    for (int i = 0; i < c->count; i++)
        *poller++ = (struct pollfd){c->caller[i].file, POLLIN, 0};
    return c->listeners + c->count;
}

static void remove_caller(DsviTcpCallers *c, int i)
{
    c->count--;
    memmove(&c->caller[i], &c->caller[i + 1], (size_t)(c->count - i) * sizeof c->caller[i]);
}

static void drop_caller(DsviTcpCallers *c, int i, const char *why)
{
    char line[256], from[DSVI_PLACE_TEXT];
    int64_t n = ++c->dropped;
    if (n <= DROPS_LOGGED_EACH || (n & (n - 1)) == 0) {
        snprintf(line, sizeof line, "rank %lld dropped a call from %s: %s (%lld so far)", (long long)c->rank,
                 dsvi_place_text(&c->caller[i].from, from), why, (long long)n);
        c->log(c->context, line);
    }
    close(c->caller[i].file);
    remove_caller(c, i);
}

static void send_verdict(const DsviTcpCallers *c, const DsviCaller *caller, const DsviHello *hello,
                         DsviVerdict verdict)
{
    DsviAnswer out;
    dsvi_answer_make(c->key, &caller->challenge, hello, verdict, c->size, &out);
    (void)!send(caller->file, &out, sizeof out, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void take_hello(DsviTcpCallers *c, int i)
{
    DsviCaller *caller = &c->caller[i];
    DsviHello hello;
    DsviMessageKind kind = dsvi_hello_read(c->key, &caller->challenge, caller->in, &hello);
    if (kind == DSVI_MESSAGE_OTHER_JOB || (kind == DSVI_MESSAGE_GOOD && hello.to != c->rank)) {
        send_verdict(c, caller, &hello, DSVI_CALL_OTHER_JOB);
        drop_caller(c, i, "it belongs to another job, or has another job key");
        return;
    }
    DsviVerdict verdict = c->called(c->context, &hello, caller->file, &caller->from);
    send_verdict(c, caller, &hello, verdict);
    if (verdict != DSVI_CALL_TAKEN)
        close(caller->file);
    remove_caller(c, i);
}

static void receive_hello(DsviTcpCallers *c, int i)
{
    DsviCaller *caller = &c->caller[i];
    ssize_t got = recv(caller->file, caller->in + caller->got, sizeof caller->in - caller->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (got <= 0) {
        drop_caller(c, i, got == 0 ? "it closed the connection before its hello" : strerror(errno));
        return;
    }
    caller->got += (size_t)got;
    if (!dsvi_message_begins(caller->in, caller->got))
        drop_caller(c, i, "what it sent is no hello of dsv");
    else if (caller->got == sizeof caller->in)
        take_hello(c, i);
}

static void challenge_caller(DsviTcpCallers *c, int file)
{
    if (c->count == DSVI_CALLERS_MAX)
        drop_caller(c, 0, "too many others call");
    DsviCaller *caller = &c->caller[c->count++];
    double now = dsvi_clock_seconds();
    *caller = (DsviCaller){.file = file, .from = dsvi_place_peer(file), .came = now, .until = now + HELLO_S};
    dsvi_place_set_options(file);
    dsvi_challenge_make(&caller->challenge);
    (void)!send(file, &caller->challenge, sizeof caller->challenge, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Accepts the connections that wait at a listener, as long as further callers can be accepted. A connection
 * that was closed while it waited is not an error. */
static DsvStatus take_calls(DsviTcpCallers *c, int listener)
{
    while (has_room(c)) {
        int file = accept(listener, NULL, NULL);
        if (file >= 0) {
            challenge_caller(c, file);
            continue;
        }
        if (errno != EMFILE && errno != ENFILE)
            return DSV_OK;
        if (c->count == 0)
            return DSVI_FAIL(DSV_E_IO, "rank %lld cannot accept a connection: %s", (long long)c->rank,
                             strerror(errno));
        drop_caller(c, 0, "this process may open no more files");
    }
    return DSV_OK;
}

DsvStatus dsvi_tcp_callers_serve(DsviTcpCallers *c, const struct pollfd *poller)
{
    double now = dsvi_clock_seconds();
    for (int i = c->count - 1; i >= 0; i--) { /* downwards: dropping a caller moves the callers after it */
        if (poller[c->listeners + i].revents)
            receive_hello(c, i);
        else if (now > c->caller[i].until)
            drop_caller(c, i, "it has sent no hello for 5 s");
    }
    for (int i = 0; i < c->listeners; i++)
        if (poller[i].revents)
            DSVI_TRY(take_calls(c, c->listener[i]));
    return DSV_OK;
}
