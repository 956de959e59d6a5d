/* See tcp_call.h. */
#include "dist/tcp_call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"

#define RETRY_S 0.05    /* seconds between attempts to connect */
#define CALL_S 5.0      /* seconds to the end of an attempt if the challenge does not arrive */
#define STRANGER_S 30.0 /* a call fails if something other than a rank of this job answers for this long */

void dsvi_tcp_call_begin(DsviTcpCall *call, int64_t from, int64_t to, const DsviTcpPlaces *places)
{
    *call = (DsviTcpCall){.from = from, .to = to, .places = *places, .file = -1};
}

void dsvi_tcp_call_end(DsviTcpCall *call)
{
    if (call->file >= 0 && call->state != DSVI_CALL_DONE)
        close(call->file);
    call->file = -1;
}

struct pollfd dsvi_tcp_call_poller(const DsviTcpCall *call)
{
    bool polled = call->state == DSVI_CALL_CONNECTING || call->state == DSVI_CALL_LISTENING ||
                  call->state == DSVI_CALL_GREETED;
    short events = call->state == DSVI_CALL_CONNECTING ? POLLOUT : POLLIN;
    return (struct pollfd){polled ? call->file : -1, events, 0};
}

/* Ends the current attempt, and schedules the next one with the next address. `stranger`: something that is
 * not rank `to` has answered. */
static DsvStatus end_attempt(DsviTcpCall *call, const char *trouble, bool stranger)
{
    double now = dsvi_clock_seconds(), *since = &call->strange_since[call->next];
    char where[DSVI_PLACE_TEXT];
    snprintf(call->trouble, sizeof call->trouble, "%s: %s",
             dsvi_place_text(&call->places.place[call->next], where), trouble);
    *since = !stranger ? 0 : *since > 0 ? *since : now;
    bool too_long = stranger && now - *since > STRANGER_S;
    call->next = (call->next + 1) % call->places.count;
    dsvi_tcp_call_end(call);
    call->state = DSVI_CALL_IDLE;
    call->retry_at = now + RETRY_S;
    if (too_long)
        return DSVI_FAIL(DSV_E_RANK, "rank %lld did not find rank %lld for %g s: %s", (long long)call->from,
                         (long long)call->to, STRANGER_S, call->trouble);
    return DSV_OK;
}

static DsvStatus met_stranger(DsviTcpCall *call, const char *trouble)
{
    return end_attempt(call, trouble, true);
}

static DsvStatus connect_failed(DsviTcpCall *call, int error)
{
    return end_attempt(call, strerror(error), false);
}

static DsvStatus connect_now(DsviTcpCall *call)
{
    call->file = dsvi_place_connect(&call->places.place[call->next]);
    if (call->file < 0)
        return connect_failed(call, errno);
    call->state = DSVI_CALL_CONNECTING;
    call->until = dsvi_clock_seconds() + CALL_S;
    call->got = 0;
    return DSV_OK;
}

static DsvStatus finish_connecting(DsviTcpCall *call)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(call->file, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error)
        return connect_failed(call, error);
    /* If nobody listens at the port, the system may choose this port for the connecting socket, which TCP
     * then connects with itself. */
    DsviTcpPlace own = dsvi_place_local(call->file), peer = dsvi_place_peer(call->file);
    if (memcmp(&own, &peer, sizeof own) == 0)
        return connect_failed(call, ECONNREFUSED);
    dsvi_place_set_options(call->file);
    call->state = DSVI_CALL_LISTENING;
    return DSV_OK;
}

/* Receives what has arrived of `bytes` bytes. Returns true if all have arrived, or if the connection has
 * ended, which sets *ended. */
static bool receive(DsviTcpCall *call, size_t bytes, bool *ended)
{
    ssize_t got = recv(call->file, call->in + call->got, bytes - call->got, MSG_DONTWAIT);
    *ended = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK);
    call->got += got > 0 ? (size_t)got : 0;
    return *ended || call->got == bytes;
}

static const char STRANGE[] = "something that is not a rank of dsv answers";

static DsvStatus take_challenge(DsviTcpCall *call)
{
    bool ended, all = receive(call, sizeof call->challenge, &ended);
    if (!dsvi_message_begins(call->in, call->got))
        return met_stranger(call, STRANGE);
    if (ended)
        return met_stranger(call, "the connection was closed before the challenge");
    if (!all)
        return DSV_OK;
    memcpy(&call->challenge, call->in, sizeof call->challenge);
    call->got = 0;
    call->state = DSVI_CALL_CHALLENGED;
    return DSV_OK;
}

static DsvStatus handle_verdict(DsviTcpCall *call, const DsviAnswer *answer)
{
    if (answer->verdict == DSVI_CALL_OTHER_SIZE)
        return DSVI_FAIL(DSV_E_USAGE, "rank %lld was started with %lld ranks, rank %lld with %lld",
                         (long long)call->from, (long long)call->hello.size, (long long)call->to,
                         (long long)answer->size);
    if (answer->verdict == DSVI_CALL_TWICE)
        return DSVI_FAIL(DSV_E_USAGE, "two processes were started as rank %lld", (long long)call->from);
    call->state = DSVI_CALL_DONE;
    return DSV_OK;
}

static DsvStatus take_answer(DsviTcpCall *call, const DsviJobKey *key)
{
    DsviAnswer answer;
    bool ended, all = receive(call, sizeof answer, &ended);
    if (ended)
        return end_attempt(call, "the connection was closed before an answer", false);
    if (!all)
        return DSV_OK;
    switch (dsvi_answer_read(key, &call->challenge, &call->hello, call->in, &answer)) {
    case DSVI_MESSAGE_GOOD: return handle_verdict(call, &answer);
    case DSVI_MESSAGE_OTHER_JOB:
        return met_stranger(call, "another job answers, or this job with another job key");
    case DSVI_MESSAGE_STRANGE: break;
    }
    return met_stranger(call, STRANGE);
}

DsvStatus dsvi_tcp_call_advance(DsviTcpCall *call, const DsviJobKey *key, bool ready)
{
    double now = dsvi_clock_seconds();
    if (call->state == DSVI_CALL_IDLE && now >= call->retry_at)
        return connect_now(call);
    if (ready && call->state == DSVI_CALL_CONNECTING)
        return finish_connecting(call);
    if (ready && call->state == DSVI_CALL_LISTENING)
        return take_challenge(call);
    if (ready && call->state == DSVI_CALL_GREETED)
        return take_answer(call, key);
    if (call->state == DSVI_CALL_CONNECTING && now > call->until)
        return connect_failed(call, ETIMEDOUT);
    if (call->state == DSVI_CALL_LISTENING && now > call->until)
        return met_stranger(call, "the connection is accepted, but nothing is sent");
    return DSV_OK;
}

/* The empty send buffer has space for a hello. An error of send() is ignored: take_answer notices a
 * connection that has ended. */
void dsvi_tcp_call_send_hello(DsviTcpCall *call, const DsviJobKey *key, int64_t size, int port)
{
    call->hello = (DsviHello){.rank = call->from, .size = size, .to = call->to, .port = port};
    dsvi_hello_make(key, &call->challenge, &call->hello);
    (void)!send(call->file, &call->hello, sizeof call->hello, MSG_NOSIGNAL);
    call->state = DSVI_CALL_GREETED;
}
