/* See tcp_mesh.h.
 *
 *     rank r > 0                                        rank 0
 *                                                       listens at the address that all were told
 *     calls rank 0 (dist/tcp_hello.h)       -------->   takes the call
 *                                           <--------   TABLE, once all have called: where each listens
 *     calls ranks 1 .. r - 1, is called by
 *     ranks r + 1 ..., then READY           -------->
 *                                           <--------   GO, once all are ready
 *
 * One loop per rank polls everything: callers, calls, and connections already made. Rank 0 watches all ranks
 * that have called it, every other rank watches rank 0; so the end of any rank reaches all through rank 0. */
#include "dist/tcp_mesh.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"
#include "dist/tcp_call.h"
#include "dist/tcp_frame.h"

enum { TICK_MS = 50 };       /* the longest wait of one round */
#define FIRST_SAID_S 8.0     /* when it is first said who is missing, */
#define THEN_SAID_S 30.0     /* when next; then each time that the wait has doubled */
#define LINGER_S 5.0         /* how long a failed rank waits for those that it has yet to tell */

typedef struct Mesh {
    const DsviMeeting *meeting;
    int64_t rank, size;
    DsviJobKey key;
    double begin;            /* clock */
    double say_at;           /* seconds after it */
    int *socket;             /* (size) -1: not yet connected */
    DsviTcpPlace *place;     /* (size) where each rank listens */
    bool *ready;             /* (size) has sent READY; known of all by rank 0, of itself by another rank */
    bool *told;              /* (size) of this rank's failure */
    DsviTcpPlaces first;     /* where rank 0 is */
    DsviTcpCallers *callers;
    DsviTcpCall *call;       /* (rank) to lower ranks */
    int64_t calls;           /* of them begun */
    bool has_table, has_go;  /* sent by rank 0, or had from it */
    bool failed;             /* frames are not heard any more */
    DsvStatus failure;       /* found while serving a caller */
    struct pollfd *poller;   /* (DSVI_CALLER_POLLERS + 2 size) */
} Mesh;

/* ---- what is said meanwhile ---- */

DSVI_PRINTF(2, 3)
static void say(const Mesh *m, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!m->meeting->say)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    m->meeting->say(m->meeting->context, line);
}

static double waited(const Mesh *m)
{
    return dsvi_clock_seconds() - m->begin;
}

static bool is_missing(const Mesh *m, int64_t r)
{
    return r != m->rank && (m->rank == 0 && m->has_table ? !m->ready[r] : m->socket[r] < 0);
}

/* "rank 1", "ranks 1, 3 to 7": those from which something is awaited, as far as `text` has room. */
static void name_missing(const Mesh *m, char *text, size_t room)
{
    size_t used = 0;
    int64_t count = 0;
    for (int64_t r = 0; r < m->size; r++)
        count += is_missing(m, r);
    used += (size_t)snprintf(text, room, count == 1 ? "rank" : "ranks");
    for (int64_t r = 0, last; r < m->size && used + 64 < room; r = last + 1) {
        last = r;
        if (!is_missing(m, r))
            continue;
        while (last + 1 < m->size && is_missing(m, last + 1))
            last++;
        used += (size_t)snprintf(text + used, room - used, " %" PRId64, r);
        if (last > r)
            used += (size_t)snprintf(text + used, room - used, " to %" PRId64, last);
        text[used++] = ',';
    }
    text[used - (text[used - 1] == ',')] = 0;
}

/* What this rank waits for, as the end of a sentence that begins with "rank 3". */
static void describe_wait(const Mesh *m, char *text, size_t room)
{
    char names[256], where[DSVI_PLACE_TEXT] = "";
    name_missing(m, names, sizeof names);
    if (m->callers->listeners > 0)
        dsvi_place_text(&m->callers->at[0], where);
    if (m->rank == 0 && !m->has_table) {
        snprintf(text, room, "waits at %s for %s of %" PRId64 " to call", where, names, m->size);
        return;
    }
    if (m->rank == 0) {
        snprintf(text, room, "waits for %s to reach the others", names);
        return;
    }
    for (int64_t to = 0; to < m->calls; to++) {
        const DsviTcpCall *call = &m->call[to];
        if (call->state == DSVI_CALL_DONE)
            continue;
        char there[DSVI_PLACE_TEXT];
        snprintf(text, room, "calls rank %" PRId64 " at %s", to,
                 call->trouble[0] ? call->trouble : dsvi_place_text(&call->places.place[0], there));
        return;
    }
    if (m->has_table && m->calls == m->rank && strcmp(names, "ranks") != 0)
        snprintf(text, room, "waits at %s for %s to call", where, names);
    else
        snprintf(text, room, "has met rank 0, which waits for others");
}

static void say_who_is_missing(Mesh *m)
{
    char wait[512];
    if (waited(m) < m->say_at)
        return;
    describe_wait(m, wait, sizeof wait);
    say(m, "for %.0f s rank %" PRId64 " %s", waited(m), m->rank, wait);
    m->say_at = m->say_at < THEN_SAID_S ? THEN_SAID_S : 2 * m->say_at;
}

static DsvStatus too_late(const Mesh *m)
{
    char wait[512];
    describe_wait(m, wait, sizeof wait);
    return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " gave up after %g s: it %s", m->rank,
                     m->meeting->timeout_s, wait);
}

/* ---- callers ---- */

static DsviVerdict called(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from)
{
    Mesh *m = context;
    if (hello->rank >= 0 && hello->rank < m->size)
        m->told[hello->rank] |= hello->size != m->size;
    if (hello->size != m->size) {
        m->failure = DSVI_FAIL(DSV_E_USAGE, "rank %" PRId64 " was told of %" PRId64 " ranks, rank %" PRId64
                               " of %" PRId64, hello->rank, hello->size, m->rank, m->size);
        return DSVI_CALL_OTHER_SIZE;
    }
    if (hello->rank <= m->rank || hello->rank >= m->size || m->socket[hello->rank] >= 0) {
        m->failure = DSVI_FAIL(DSV_E_USAGE, "two processes were told that they are rank %" PRId64,
                               hello->rank);
        return DSVI_CALL_TWICE;
    }
    m->socket[hello->rank] = file;
    m->place[hello->rank] = *from;
    m->place[hello->rank].port = (uint16_t)hello->port;
    return DSVI_CALL_TAKEN;
}

static void say_dropped(void *context, const char *line)
{
    say(context, "%s", line);
}

static DsvStatus listen_as_first(Mesh *m)
{
    DsviTcpPlaces all;
    if (!m->first.hides_address)
        return dsvi_tcp_callers_listen(m->callers, &m->first);
    say(m, "%s is a loopback address on this machine, so rank 0 listens at every address",
        m->meeting->address);
    dsvi_places_all(m->meeting->port, &all);
    return dsvi_tcp_callers_listen(m->callers, &all);
}

/* A rank listens at the address from which it has reached rank 0. */
static DsvStatus listen_as_other(Mesh *m, int file)
{
    DsviTcpPlaces own = {.place = {dsvi_place_own(file)}, .count = 1};
    own.place[0].port = 0;
    if (m->first.hides_address) /* rank 0's machine: ranks of other machines come by another address */
        memset(own.place[0].address, 0, sizeof own.place[0].address);
    return dsvi_tcp_callers_listen(m->callers, &own);
}

/* ---- frames ---- */

/* A connection that has ended: the rank may have sent its reason before. */
static DsvStatus lost(const Mesh *m, int64_t rank)
{
    DsviFrameHead head;
    char sentence[DSVI_MESSAGE_BYTES];
    if (dsvi_frame_peek(m->socket[rank], &head) != DSVI_SEEN_HEAD || head.kind != DSVI_FRAME_FAILURE)
        return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " has ended before all ranks had met", rank);
    dsvi_frame_take_head(m->socket[rank]);
    dsvi_frame_sentence(m->socket[rank], head.bytes, sentence);
    return DSVI_FAIL(DSV_E_RANK, "%s", sentence);
}

/* All of a message that may be longer than a connection has room for, by waiting for the other side. */
static DsvStatus transfer(const Mesh *m, int64_t rank, void *data, size_t bytes, bool sends)
{
    char *at = data;
    while (bytes > 0) {
        double left = m->begin + m->meeting->timeout_s - dsvi_clock_seconds();
        struct pollfd poller = {m->socket[rank], sends ? POLLOUT : POLLIN, 0};
        if (left < 0)
            return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " does not %s the table of ranks", rank,
                             sends ? "take" : "send");
        if (poll(&poller, 1, TICK_MS) <= 0)
            continue;
        ssize_t done = sends ? send(m->socket[rank], at, bytes, MSG_NOSIGNAL)
                             : recv(m->socket[rank], at, bytes, 0);
        if (done == 0 || (done < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return lost(m, rank);
        at += done > 0 ? done : 0;
        bytes -= done > 0 ? (size_t)done : 0;
    }
    return DSV_OK;
}

static size_t table_bytes(const Mesh *m)
{
    return (size_t)m->size * sizeof *m->place;
}

/* A loopback address in the table means that the rank listens on rank 0's machine. From another machine it is
 * called at the address at which this rank has reached rank 0. */
static void call_others(Mesh *m)
{
    DsviTcpPlace first = dsvi_place_peer(m->socket[0]);
    bool elsewhere = !dsvi_place_is_loopback(&first);
    for (int64_t to = 1; to < m->rank; to++) {
        DsviTcpPlaces places = {.place = {m->place[to]}, .count = 1};
        if (elsewhere && dsvi_place_is_loopback(&m->place[to])) {
            places.place[0] = first;
            places.place[0].port = m->place[to].port;
        }
        dsvi_tcp_call_begin(&m->call[to], m->rank, to, &places);
    }
    m->calls = m->rank;
}

/* A frame of another rank, whose head has been received. */
static DsvStatus obey(Mesh *m, int64_t rank, const DsviFrameHead *head)
{
    if (m->rank == 0 && head->kind == DSVI_FRAME_READY && head->bytes == 0) {
        m->ready[rank] = true;
        return DSV_OK;
    }
    if (rank == 0 && head->kind == DSVI_FRAME_TABLE && head->bytes == table_bytes(m) && !m->has_table) {
        m->has_table = true;
        DSVI_TRY(transfer(m, 0, m->place, table_bytes(m), false));
        call_others(m);
        return DSV_OK;
    }
    if (rank == 0 && head->kind == DSVI_FRAME_GO && head->bytes == 0) {
        m->has_go = true;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_INTERNAL, "rank %" PRId64 " sends a frame %08x of %" PRIu64 " bytes while ranks "
                     "meet", rank, head->kind, head->bytes);
}

/* Takes one frame of a watched rank, if one has come. `ended`: the poll saw that the rank sends no more, so
 * that a part of a head will not be completed. */
static DsvStatus hear(Mesh *m, int64_t rank, bool ended)
{
    DsviFrameHead head;
    switch (dsvi_frame_peek(m->socket[rank], &head)) {
    case DSVI_SEEN_NOTHING: return ended ? lost(m, rank) : DSV_OK;
    case DSVI_SEEN_END: return lost(m, rank);
    case DSVI_SEEN_HEAD: break;
    }
    if (head.kind == DSVI_FRAME_FAILURE)
        return lost(m, rank);
    dsvi_frame_take_head(m->socket[rank]);
    return obey(m, rank, &head);
}

/* Sends a frame without bytes. That a rank has ended is noticed by watching it. */
static void signal_rank(const Mesh *m, int64_t rank, uint32_t kind)
{
    (void)dsvi_frame_send(m->socket[rank], kind, NULL, 0);
}

/* ---- the loop ---- */

static DsvStatus serve_call(Mesh *m, DsviTcpCall *call, bool ready)
{
    if (call->state == DSVI_CALL_DONE)
        return DSV_OK;
    DSVI_TRY(dsvi_tcp_call_go_on(call, &m->key, ready));
    if (call->state == DSVI_CALL_CHALLENGED) {
        if (m->callers->listeners == 0)
            DSVI_TRY(listen_as_other(m, call->file));
        dsvi_tcp_call_greet(call, &m->key, m->size, m->callers->at[0].port);
    }
    if (call->state == DSVI_CALL_DONE)
        m->socket[call->to] = call->file;
    return DSV_OK;
}

/* The ranks whose frames this one hears: rank 0 all, the others rank 0, after a failure none. */
static int64_t watched(const Mesh *m)
{
    return m->failed ? 0 : m->rank == 0 ? m->size : 1;
}

/* Waits for anything to happen, and serves what has. */
static DsvStatus round_of(Mesh *m)
{
    int callers = dsvi_tcp_callers_pollers(m->callers, m->poller);
    struct pollfd *of_calls = m->poller + callers, *of_ranks = of_calls + m->calls;
    for (int64_t to = 0; to < m->calls; to++)
        of_calls[to] = dsvi_tcp_call_poller(&m->call[to]);
    for (int64_t r = 0; r < watched(m); r++)
        of_ranks[r] = (struct pollfd){m->socket[r], POLLIN | POLLRDHUP, 0};
    int64_t calls = m->calls;
    m->failure = DSV_OK;
    poll(m->poller, (nfds_t)(of_ranks - m->poller + watched(m)), TICK_MS);
    DSVI_TRY(dsvi_tcp_callers_serve(m->callers, m->poller));
    DSVI_TRY(m->failure);
    for (int64_t r = 0; r < watched(m); r++)
        if (of_ranks[r].fd >= 0 && of_ranks[r].revents)
            DSVI_TRY(hear(m, r, (of_ranks[r].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0));
    for (int64_t to = 0; to < calls; to++)
        DSVI_TRY(serve_call(m, &m->call[to], of_calls[to].revents != 0));
    return DSV_OK;
}

static int64_t count_missing(const Mesh *m)
{
    int64_t missing = 0;
    for (int64_t r = 0; r < m->size; r++)
        missing += is_missing(m, r);
    return missing;
}

/* What is due once nobody is missing. */
static DsvStatus take_next_step(Mesh *m)
{
    if (m->rank == 0 && !m->has_table) {
        DsviFrameHead head = {DSVI_FRAME_TABLE, 0, table_bytes(m)};
        m->has_table = true;
        for (int64_t r = 1; r < m->size; r++) {
            DSVI_TRY(transfer(m, r, &head, sizeof head, true));
            DSVI_TRY(transfer(m, r, m->place, table_bytes(m), true));
        }
    } else if (m->rank == 0) {
        for (int64_t r = 1; r < m->size; r++)
            signal_rank(m, r, DSVI_FRAME_GO);
        m->has_go = true;
    } else if (m->has_table && !m->ready[m->rank]) {
        signal_rank(m, 0, DSVI_FRAME_READY);
        m->ready[m->rank] = true;
    }
    return DSV_OK;
}

/* Rank 0 begins to listen, another rank to call it. */
static DsvStatus begin(Mesh *m)
{
    DSVI_TRY(dsvi_places_find(m->meeting->address, m->meeting->port, &m->first));
    if (m->rank == 0)
        return listen_as_first(m);
    dsvi_tcp_call_begin(&m->call[0], m->rank, 0, &m->first);
    m->calls = 1;
    return DSV_OK;
}

static DsvStatus meet(Mesh *m)
{
    DSVI_TRY(begin(m));
    while (!m->has_go) {
        if (count_missing(m) == 0)
            DSVI_TRY(take_next_step(m));
        if (m->has_go)
            break;
        if (waited(m) > m->meeting->timeout_s)
            return too_late(m);
        say_who_is_missing(m);
        DSVI_TRY(round_of(m));
    }
    return DSV_OK;
}

/* ---- failure ---- */

/* Whether this rank can tell rank r of a failure, and has not done so. */
static bool is_untold(const Mesh *m, int64_t r)
{
    return r != m->rank && (m->rank == 0 || r == 0) && !m->told[r];
}

static int64_t count_untold(const Mesh *m)
{
    int64_t untold = 0;
    for (int64_t r = 0; r < m->size; r++)
        untold += is_untold(m, r);
    return untold;
}

static void tell(Mesh *m, const char *sentence)
{
    for (int64_t r = 0; r < m->size; r++)
        if (m->socket[r] >= 0 && is_untold(m, r)) {
            (void)dsvi_frame_send(m->socket[r], DSVI_FRAME_FAILURE, sentence, strlen(sentence));
            shutdown(m->socket[r], SHUT_WR);
            m->told[r] = true;
        }
}

/* Goes on taking calls, or calling rank 0, for a while, so that ranks that come late are told as well. */
static void tell_all(Mesh *m, const char *sentence)
{
    double until = dsvi_clock_seconds() + LINGER_S;
    m->failed = true;
    tell(m, sentence);
    while (count_untold(m) > 0 && dsvi_clock_seconds() < until) {
        (void)round_of(m);
        tell(m, sentence);
    }
}

/* The others learn why. Ranks that have been waited for in vain are not waited for again. */
static void fail(Mesh *m)
{
    DsvStatusRecord own = *dsvi_status_record();
    bool late = waited(m) > m->meeting->timeout_s;
    tell(m, own.message);
    if (m->rank == 0 && !late && m->callers->listeners > 0 && count_untold(m) > 0) {
        say(m, "%s; for %g s rank 0 tells this to ranks that are yet to call", own.message, LINGER_S);
        tell_all(m, own.message);
    }
    *dsvi_status_record() = own;
}

/* ---- life ---- */

/* A connection to every rank, callers, and what else a process has open. */
static DsvStatus check_files(const DsviMeeting *meeting)
{
    enum { OTHERS = 64 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)meeting->size + OTHERS)
        return DSVI_FAIL(DSV_E_USAGE, "rank %" PRId64 " may open %llu files at once (ulimit -n), and %" PRId64
                         " ranks need %" PRId64, meeting->rank, (unsigned long long)limit.rlim_cur,
                         meeting->size, meeting->size + OTHERS);
    return DSV_OK;
}

static DsvStatus open_mesh(Mesh *m, const DsviMeeting *meeting, int *socket)
{
    size_t size = (size_t)meeting->size;
    *m = (Mesh){.meeting = meeting, .rank = meeting->rank, .size = meeting->size, .socket = socket,
                .begin = dsvi_clock_seconds(), .say_at = FIRST_SAID_S};
    m->place = calloc(size, sizeof *m->place);
    m->ready = calloc(size, sizeof *m->ready);
    m->told = calloc(size, sizeof *m->told);
    m->callers = calloc(1, sizeof *m->callers);
    m->call = calloc(size, sizeof *m->call);
    m->poller = calloc(DSVI_CALLER_POLLERS + 2 * size, sizeof *m->poller);
    for (size_t r = 0; r < size; r++)
        socket[r] = -1;
    if (!m->place || !m->ready || !m->told || !m->callers || !m->call || !m->poller)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %zu ranks", size);
    m->callers->key = &m->key;
    m->callers->rank = m->rank;
    m->callers->size = m->size;
    m->callers->say = say_dropped;
    m->callers->called = called;
    m->callers->context = m;
    return dsvi_job_key(meeting->word, &m->key);
}

static void close_mesh(Mesh *m)
{
    for (int64_t to = 0; to < m->calls; to++)
        dsvi_tcp_call_end(&m->call[to]);
    if (m->callers)
        dsvi_tcp_callers_close(m->callers);
    free(m->place);
    free(m->ready);
    free(m->told);
    free(m->callers);
    free(m->call);
    free(m->poller);
}

static void hang_up(const Mesh *m)
{
    for (int64_t r = 0; r < m->size; r++)
        if (m->socket[r] >= 0) {
            close(m->socket[r]);
            m->socket[r] = -1;
        }
}

DsvStatus dsvi_tcp_mesh(const DsviMeeting *meeting, int *socket)
{
    Mesh m;
    DSVI_TRY(check_files(meeting));
    DsvStatus status = open_mesh(&m, meeting, socket);
    if (status == DSV_OK) {
        status = meet(&m);
        if (status != DSV_OK)
            fail(&m);
    }
    close_mesh(&m);
    if (status != DSV_OK)
        hang_up(&m);
    return status;
}

void dsvi_tcp_mesh_decline(const DsviMeeting *meeting, const char *sentence)
{
    DsvStatusRecord own = *dsvi_status_record();
    Mesh m;
    int *socket = calloc((size_t)meeting->size, sizeof *socket);
    if (socket && open_mesh(&m, meeting, socket) == DSV_OK) {
        if (begin(&m) == DSV_OK)
            tell_all(&m, sentence);
        close_mesh(&m);
        hang_up(&m);
    }
    free(socket);
    *dsvi_status_record() = own;
}
