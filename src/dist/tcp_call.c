/* See tcp_call.h. */
#include "dist/tcp_call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"

#define RETRY_S 0.05   /* between attempts */
#define CALL_S 5.0     /* a listener that has not sent its challenge by then is called again */
#define STRANGER_S 30.0 /* another job or program may hold the port for so long */

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
    bool waits = call->state == DSVI_CALL_CONNECTING || call->state == DSVI_CALL_LISTENING ||
                 call->state == DSVI_CALL_GREETED;
    short events = call->state == DSVI_CALL_CONNECTING ? POLLOUT : POLLIN;
    return (struct pollfd){waits ? call->file : -1, events, 0};
}

/* This attempt has failed; the next address is tried soon. `stranger`: something that is not rank `to` has
 * answered. */
static DsvStatus try_next(DsviTcpCall *call, const char *trouble, bool stranger)
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

static DsvStatus call_again(DsviTcpCall *call, const char *trouble)
{
    return try_next(call, trouble, false);
}

static DsvStatus met_stranger(DsviTcpCall *call, const char *trouble)
{
    return try_next(call, trouble, true);
}

static DsvStatus refused(DsviTcpCall *call, int error)
{
    return call_again(call, strerror(error));
}

static DsvStatus connect_now(DsviTcpCall *call)
{
    call->file = dsvi_place_connect(&call->places.place[call->next]);
    if (call->file < 0)
        return refused(call, errno);
    call->state = DSVI_CALL_CONNECTING;
    call->until = dsvi_clock_seconds() + CALL_S;
    call->got = 0;
    return DSV_OK;
}

static DsvStatus connected(DsviTcpCall *call)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(call->file, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error)
        return refused(call, error);
    /* A port that nobody listens at may be given to this very socket, which then is connected with itself. */
    DsviTcpPlace own = dsvi_place_own(call->file), peer = dsvi_place_peer(call->file);
    if (memcmp(&own, &peer, sizeof own) == 0)
        return refused(call, ECONNREFUSED);
    dsvi_place_set_up(call->file);
    call->state = DSVI_CALL_LISTENING;
    return DSV_OK;
}

/* Receives some of `bytes` bytes. True: all are there, or the connection has ended (*ended). */
static bool receive(DsviTcpCall *call, size_t bytes, bool *ended)
{
    ssize_t got = recv(call->file, call->in + call->got, bytes - call->got, MSG_DONTWAIT);
    *ended = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK);
    call->got += got > 0 ? (size_t)got : 0;
    return *ended || call->got == bytes;
}

static const char STRANGE[] = "something that is no rank of dsv answers";

static DsvStatus take_challenge(DsviTcpCall *call)
{
    bool ended, all = receive(call, sizeof call->challenge, &ended);
    if (!dsvi_message_begins(call->in, call->got))
        return met_stranger(call, STRANGE);
    if (ended)
        return met_stranger(call, "the connection was closed before a word");
    if (!all)
        return DSV_OK;
    memcpy(&call->challenge, call->in, sizeof call->challenge);
    call->got = 0;
    call->state = DSVI_CALL_CHALLENGED;
    return DSV_OK;
}

static DsvStatus obey(DsviTcpCall *call, const DsviAnswer *answer)
{
    if (answer->verdict == DSVI_CALL_OTHER_SIZE)
        return DSVI_FAIL(DSV_E_USAGE, "rank %lld was told of %lld ranks, rank %lld of %lld",
                         (long long)call->from, (long long)call->hello.size, (long long)call->to,
                         (long long)answer->size);
    if (answer->verdict == DSVI_CALL_TWICE)
        return DSVI_FAIL(DSV_E_USAGE, "two processes were told that they are rank %lld",
                         (long long)call->from);
    call->state = DSVI_CALL_DONE;
    return DSV_OK;
}

static DsvStatus take_answer(DsviTcpCall *call, const DsviJobKey *key)
{
    DsviAnswer answer;
    bool ended, all = receive(call, sizeof answer, &ended);
    if (ended)
        return call_again(call, "the connection was closed before an answer");
    if (!all)
        return DSV_OK;
    switch (dsvi_answer_read(key, &call->challenge, &call->hello, call->in, &answer)) {
    case DSVI_MESSAGE_GOOD: return obey(call, &answer);
    case DSVI_MESSAGE_OTHER_JOB:
        return met_stranger(call, "another job answers, or one with another job word");
    case DSVI_MESSAGE_STRANGE: break;
    }
    return met_stranger(call, STRANGE);
}

DsvStatus dsvi_tcp_call_go_on(DsviTcpCall *call, const DsviJobKey *key, bool ready)
{
    double now = dsvi_clock_seconds();
    if (call->state == DSVI_CALL_IDLE && now >= call->retry_at)
        return connect_now(call);
    if (ready && call->state == DSVI_CALL_CONNECTING)
        return connected(call);
    if (ready && call->state == DSVI_CALL_LISTENING)
        return take_challenge(call);
    if (ready && call->state == DSVI_CALL_GREETED)
        return take_answer(call, key);
    if (call->state == DSVI_CALL_CONNECTING && now > call->until)
        return refused(call, ETIMEDOUT);
    if (call->state == DSVI_CALL_LISTENING && now > call->until)
        return met_stranger(call, "the call is taken, but nothing is said");
    return DSV_OK;
}

/* A hello fits into an empty connection. One that has ended is noticed when the answer does not come. */
void dsvi_tcp_call_greet(DsviTcpCall *call, const DsviJobKey *key, int64_t size, int port)
{
    call->hello = (DsviHello){.rank = call->from, .size = size, .to = call->to, .port = port};
    dsvi_hello_make(key, &call->challenge, &call->hello);
    (void)!send(call->file, &call->hello, sizeof call->hello, MSG_NOSIGNAL);
    call->state = DSVI_CALL_GREETED;
}
