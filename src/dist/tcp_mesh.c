/* See tcp_mesh.h.
 *
 *     rank r > 0                                        rank 0
 *                                                       listens at the address in DsviMeeting
 *     calls rank 0 (dist/tcp_hello.h)       -------->   accepts
 *                                           <--------   TABLE, when all have called: each rank's address
 *     calls ranks 1 .. r - 1, accepts calls
 *     of ranks r + 1 ..., then sends READY  -------->
 *                                           <--------   GO, when all are ready
 *
 * To call means to connect and to perform the handshake. One loop per rank polls everything: callers, calls,
 * and finished connections. Rank 0 watches all ranks that have called it, every other rank watches rank 0:
 * the end of any rank reaches all others through rank 0. */
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

enum { POLL_MS = 50 };    /* timeout of one poll() */
#define FIRST_LOG_S 8.0   /* seconds after which missing ranks are logged first */
#define SECOND_LOG_S 30.0 /* seconds to the second log of missing ranks; later, doubled waits */
#define LINGER_S 5.0      /* seconds that a failed rank waits for ranks that it has not notified yet */

typedef struct Mesh {
    const DsviMeeting *meeting;
    int64_t rank, size;
    DsviJobKey key;
    double begin;            /* clock when dsvi_tcp_mesh_connect was called */
    double log_at;           /* seconds after `begin` at which missing ranks are logged next */
    int *socket;             /* (size) -1: not connected yet */
    DsviTcpPlace *place;     /* (size) address at which each rank listens */
    bool *ready;             /* (size) the rank has sent READY; ranks above 0 use only their own entry */
    bool *notified;          /* (size) whether this rank has sent its failure message to each rank */
    DsviTcpPlaces first;     /* addresses of rank 0 */
    DsviTcpCallers *callers; /* connections of higher ranks during their handshakes */
    DsviTcpCall *call;       /* (rank) calls to lower ranks */
    int64_t calls; /* number of calls begun: 0 on rank 0, otherwise 1, and `rank` once the table of addresses
                      has arrived */
    bool has_table, has_go; /* rank 0 has sent TABLE and GO; on other ranks: they have arrived */
    bool failed;            /* the job has failed: frames are not received any more */
    DsvStatus failure;      /* a failure in the callback of a caller */
    struct pollfd *poller;  /* (DSVI_CALLER_POLLERS + 2 size) */
} Mesh;

/* ---- logging ---- */

DSVI_PRINTF(2, 3)
static void mesh_log(const Mesh *m, const char *format, ...)
{
    char line[1024];
    va_list args;
    if (!m->meeting->log)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    m->meeting->log(m->meeting->context, line);
}

static double seconds_waited(const Mesh *m)
{
    return dsvi_clock_seconds() - m->begin;
}

static bool is_missing(const Mesh *m, int64_t r)
{
    return r != m->rank && (m->rank == 0 && m->has_table ? !m->ready[r] : m->socket[r] < 0);
}

/* Writes the ranks that are missing, as many as fit: "rank 1", "ranks 1, 3 to 7". */
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

/* Writes what this rank waits for, as the end of a sentence that begins with "rank R". */
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

static void log_missing_ranks(Mesh *m)
{
    char wait[512];
    if (seconds_waited(m) < m->log_at)
        return;
    describe_wait(m, wait, sizeof wait);
    mesh_log(m, "for %.0f s rank %" PRId64 " %s", seconds_waited(m), m->rank, wait);
    m->log_at = m->log_at < SECOND_LOG_S ? SECOND_LOG_S : 2 * m->log_at;
}

static DsvStatus mesh_timed_out(const Mesh *m)
{
    char wait[512];
    describe_wait(m, wait, sizeof wait);
    return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " gave up after %g s: it %s", m->rank, m->meeting->timeout_s,
                     wait);
}

/* ---- callers ---- */

/* A DsviTcpCalled: keeps the connection of a higher rank. A rank that is refused learns of the failure from
 * the verdict, so that it counts as notified. */
static DsviVerdict mesh_called(void *context, const DsviHello *hello, int file, const DsviTcpPlace *from)
{
    Mesh *m = context;
    if (hello->rank >= 0 && hello->rank < m->size)
        m->notified[hello->rank] |= hello->size != m->size;
    if (hello->size != m->size) {
        m->failure = DSVI_FAIL(DSV_E_USAGE,
                               "rank %" PRId64 " was started with %" PRId64 " ranks, "
                               "rank %" PRId64 " with %" PRId64,
                               hello->rank, hello->size, m->rank, m->size);
        return DSVI_CALL_OTHER_SIZE;
    }
    if (hello->rank <= m->rank || hello->rank >= m->size || m->socket[hello->rank] >= 0) {
        m->failure = DSVI_FAIL(DSV_E_USAGE, "two processes were started as rank %" PRId64, hello->rank);
        return DSVI_CALL_TWICE;
    }
    m->socket[hello->rank] = file;
    m->place[hello->rank] = *from;
    m->place[hello->rank].port = (uint16_t)hello->port;
    return DSVI_CALL_TAKEN;
}

static void log_dropped(void *context, const char *line)
{
    mesh_log(context, "%s", line);
}

static DsvStatus listen_as_first(Mesh *m)
{
    DsviTcpPlaces all;
    if (!m->first.hides_address)
        return dsvi_tcp_callers_listen(m->callers, &m->first);
    mesh_log(m, "%s is a loopback address on this machine, so rank 0 listens at every address",
             m->meeting->address);
    dsvi_places_all(m->meeting->port, &all);
    return dsvi_tcp_callers_listen(m->callers, &all);
}

/* A rank above 0 listens at the local address of its connection with rank 0. */
static DsvStatus listen_as_other(Mesh *m, int file)
{
    DsviTcpPlaces own = {.place = {dsvi_place_local(file)}, .count = 1};
    own.place[0].port = 0;
    if (m->first.hides_address) /* this rank runs on rank 0's machine, which other machines reach at another
                                   address */
        memset(own.place[0].address, 0, sizeof own.place[0].address);
    return dsvi_tcp_callers_listen(m->callers, &own);
}

/* ---- frames ---- */

/* Fails because the connection with another rank has ended; the message gives that rank's reason if it has
   sent one. */
static DsvStatus lost(const Mesh *m, int64_t rank)
{
    DsviFrameHead head;
    char sentence[DSVI_MESSAGE_BYTES];
    if (dsvi_frame_peek(m->socket[rank], &head) != DSVI_SEEN_HEAD || head.kind != DSVI_FRAME_FAILURE)
        return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " has ended before all ranks had met", rank);
    dsvi_frame_receive_head(m->socket[rank]);
    dsvi_frame_receive_message(m->socket[rank], head.bytes, sentence);
    return DSVI_FAIL(DSV_E_RANK, "%s", sentence);
}

/* Sends or receives all `bytes` bytes and waits as long as that takes: the table of many ranks is larger than
 * the buffer of a connection. */
static DsvStatus transfer_all(const Mesh *m, int64_t rank, void *data, size_t bytes, bool sends)
{
    char *at = data;
    while (bytes > 0) {
        double left = m->begin + m->meeting->timeout_s - dsvi_clock_seconds();
        struct pollfd poller = {m->socket[rank], sends ? POLLOUT : POLLIN, 0};
        if (left < 0)
            return DSVI_FAIL(DSV_E_RANK, "rank %" PRId64 " does not %s the table of ranks", rank,
                             sends ? "take" : "send");
        if (poll(&poller, 1, POLL_MS) <= 0)
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

/* Begins the calls to ranks 1 to rank - 1. A loopback address in the table belongs to a rank on rank 0's
 * machine; from another machine this rank is called at the address of rank 0. */
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

/* Handles a frame of another rank whose head has been received. */
static DsvStatus mesh_handle_frame(Mesh *m, int64_t rank, const DsviFrameHead *head)
{
    if (m->rank == 0 && head->kind == DSVI_FRAME_READY && head->bytes == 0) {
        m->ready[rank] = true;
        return DSV_OK;
    }
    if (rank == 0 && head->kind == DSVI_FRAME_TABLE && head->bytes == table_bytes(m) && !m->has_table) {
        m->has_table = true;
        DSVI_TRY(transfer_all(m, 0, m->place, table_bytes(m), false));
        call_others(m);
        return DSV_OK;
    }
    if (rank == 0 && head->kind == DSVI_FRAME_GO && head->bytes == 0) {
        m->has_go = true;
        return DSV_OK;
    }
    return DSVI_FAIL(DSV_E_INTERNAL,
                     "rank %" PRId64 " sends a frame %08x of %" PRIu64 " bytes while ranks "
                     "meet",
                     rank, head->kind, head->bytes);
}

/* Receives one frame of a watched rank, if one has arrived. `ended`: poll() reported that the rank sends
 * nothing more, so that an incomplete head stays incomplete. */
static DsvStatus mesh_receive_frame(Mesh *m, int64_t rank, bool ended)
{
    DsviFrameHead head;
    switch (dsvi_frame_peek(m->socket[rank], &head)) {
    case DSVI_SEEN_NOTHING: return ended ? lost(m, rank) : DSV_OK;
    case DSVI_SEEN_END: return lost(m, rank);
    case DSVI_SEEN_HEAD: break;
    }
    if (head.kind == DSVI_FRAME_FAILURE)
        return lost(m, rank);
    dsvi_frame_receive_head(m->socket[rank]);
    return mesh_handle_frame(m, rank, &head);
}

/* Sends a frame without payload. Ignores an error: the loop notices a connection that has ended. */
static void signal_rank(const Mesh *m, int64_t rank, uint32_t kind)
{
    (void)dsvi_frame_send(m->socket[rank], kind, NULL, 0);
}

/* ---- the loop ---- */

static DsvStatus advance_call(Mesh *m, DsviTcpCall *call, bool ready)
{
    if (call->state == DSVI_CALL_DONE)
        return DSV_OK;
    DSVI_TRY(dsvi_tcp_call_advance(call, &m->key, ready));
    if (call->state == DSVI_CALL_CHALLENGED) {
        if (m->callers->listeners == 0)
            DSVI_TRY(listen_as_other(m, call->file));
        dsvi_tcp_call_send_hello(call, &m->key, m->size, m->callers->at[0].port);
    }
    if (call->state == DSVI_CALL_DONE)
        m->socket[call->to] = call->file;
    return DSV_OK;
}

/* Returns from how many ranks frames are received, beginning with rank 0: rank 0 receives from all, other
 * ranks from rank 0 only, and no rank receives after a failure. */
static int64_t watched_ranks(const Mesh *m)
{
    return m->failed ? 0 : m->rank == 0 ? m->size : 1;
}

/* Polls once and handles all events. */
static DsvStatus mesh_poll(Mesh *m)
{
    int callers = dsvi_tcp_callers_pollers(m->callers, m->poller);
    struct pollfd *of_calls = m->poller + callers, *of_ranks = of_calls + m->calls;
    for (int64_t to = 0; to < m->calls; to++)
        of_calls[to] = dsvi_tcp_call_poller(&m->call[to]);
    for (int64_t r = 0; r < watched_ranks(m); r++)
        of_ranks[r] = (struct pollfd){m->socket[r], POLLIN | POLLRDHUP, 0};
    int64_t calls = m->calls;
    m->failure = DSV_OK;
    poll(m->poller, (nfds_t)(of_ranks - m->poller + watched_ranks(m)), POLL_MS);
    DSVI_TRY(dsvi_tcp_callers_serve(m->callers, m->poller));
    DSVI_TRY(m->failure);
    for (int64_t r = 0; r < watched_ranks(m); r++)
        if (of_ranks[r].fd >= 0 && of_ranks[r].revents)
            DSVI_TRY(mesh_receive_frame(m, r, (of_ranks[r].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0));
    for (int64_t to = 0; to < calls; to++)
        DSVI_TRY(advance_call(m, &m->call[to], of_calls[to].revents != 0));
    return DSV_OK;
}

static int64_t count_missing(const Mesh *m)
{
    int64_t missing = 0;
    for (int64_t r = 0; r < m->size; r++)
        missing += is_missing(m, r);
    return missing;
}

/* Sends TABLE, READY or GO when no rank is missing for the current phase. */
static DsvStatus take_next_step(Mesh *m)
{
    if (m->rank == 0 && !m->has_table) {
        DsviFrameHead head = {DSVI_FRAME_TABLE, 0, table_bytes(m)};
        m->has_table = true;
        for (int64_t r = 1; r < m->size; r++) {
            DSVI_TRY(transfer_all(m, r, &head, sizeof head, true));
            DSVI_TRY(transfer_all(m, r, m->place, table_bytes(m), true));
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

/* Rank 0 begins to listen; other ranks begin to call rank 0. */
static DsvStatus mesh_begin(Mesh *m)
{
    DSVI_TRY(dsvi_places_resolve(m->meeting->address, m->meeting->port, &m->first));
    if (m->rank == 0)
        return listen_as_first(m);
    dsvi_tcp_call_begin(&m->call[0], m->rank, 0, &m->first);
    m->calls = 1;
    return DSV_OK;
}

static DsvStatus mesh_connect(Mesh *m)
{
    DSVI_TRY(mesh_begin(m));
    while (!m->has_go) {
        if (count_missing(m) == 0)
            DSVI_TRY(take_next_step(m));
        if (m->has_go)
            break;
        if (seconds_waited(m) > m->meeting->timeout_s)
            return mesh_timed_out(m);
        log_missing_ranks(m);
        DSVI_TRY(mesh_poll(m));
    }
    return DSV_OK;
}

/* ---- failure ---- */

/* Returns whether this rank should notify rank r of a failure and has not done so. */
static bool is_unnotified(const Mesh *m, int64_t r)
{
    return r != m->rank && (m->rank == 0 || r == 0) && !m->notified[r];
}

static int64_t count_unnotified(const Mesh *m)
{
    int64_t count = 0;
    for (int64_t r = 0; r < m->size; r++)
        count += is_unnotified(m, r);
    return count;
}

static void notify_connected(Mesh *m, const char *sentence)
{
    for (int64_t r = 0; r < m->size; r++)
        if (m->socket[r] >= 0 && is_unnotified(m, r)) {
            (void)dsvi_frame_send(m->socket[r], DSVI_FRAME_FAILURE, sentence, strlen(sentence));
            shutdown(m->socket[r], SHUT_WR);
            m->notified[r] = true;
        }
}

/* Accepts further calls, or calls rank 0, for up to LINGER_S seconds, to notify ranks that start late,
 * too. */
static void notify_all(Mesh *m, const char *sentence)
{
    double until = dsvi_clock_seconds() + LINGER_S;
    m->failed = true;
    notify_connected(m, sentence);
    while (count_unnotified(m) > 0 && dsvi_clock_seconds() < until) {
        (void)mesh_poll(m);
        notify_connected(m, sentence);
    }
}

/* Sends the recorded failure to the other ranks. After a timeout it does not wait again for missing ranks. */
static void mesh_report_failure(Mesh *m)
{
    DsviStatusRecord own = *dsvi_status_record();
    bool timed_out = seconds_waited(m) > m->meeting->timeout_s;
    notify_connected(m, own.message);
    if (m->rank == 0 && !timed_out && m->callers->listeners > 0 && count_unnotified(m) > 0) {
        mesh_log(m, "%s; rank 0 waits %g s to report this to ranks that have not called yet", own.message,
                 LINGER_S);
        notify_all(m, own.message);
    }
    *dsvi_status_record() = own;
}

/* ---- opening and closing ---- */

/* Checks that the process may open a connection to every rank, some callers, and its other files. */
static DsvStatus check_files(const DsviMeeting *meeting)
{
    enum { OTHERS = 64 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < (rlim_t)meeting->size + OTHERS)
        return DSVI_FAIL(DSV_E_USAGE,
                         "rank %" PRId64 " may open %llu files at once (ulimit -n), and %" PRId64
                         " ranks need %" PRId64,
                         meeting->rank, (unsigned long long)limit.rlim_cur, meeting->size,
                         meeting->size + OTHERS);
    return DSV_OK;
}

static DsvStatus open_mesh(Mesh *m, const DsviMeeting *meeting, int *socket)
{
    size_t size = (size_t)meeting->size;
    *m = (Mesh){.meeting = meeting,
                .rank = meeting->rank,
                .size = meeting->size,
                .socket = socket,
                .begin = dsvi_clock_seconds(),
                .log_at = FIRST_LOG_S};
    m->place = calloc(size, sizeof *m->place);
    m->ready = calloc(size, sizeof *m->ready);
    m->notified = calloc(size, sizeof *m->notified);
    m->callers = calloc(1, sizeof *m->callers);
    m->call = calloc(size, sizeof *m->call);
    m->poller = calloc(DSVI_CALLER_POLLERS + 2 * size, sizeof *m->poller);
    for (size_t r = 0; r < size; r++)
        socket[r] = -1;
    if (!m->place || !m->ready || !m->notified || !m->callers || !m->call || !m->poller)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %zu ranks", size);
    m->callers->key = &m->key;
    m->callers->rank = m->rank;
    m->callers->size = m->size;
    m->callers->log = log_dropped;
    m->callers->called = mesh_called;
    m->callers->context = m;
    return dsvi_job_key_derive(meeting->job_key, &m->key);
}

static void close_mesh(Mesh *m)
{
    for (int64_t to = 0; to < m->calls; to++)
        dsvi_tcp_call_end(&m->call[to]);
    if (m->callers)
        dsvi_tcp_callers_close(m->callers);
    free(m->place);
    free(m->ready);
    free(m->notified);
    free(m->callers);
    free(m->call);
    free(m->poller);
}

static void close_mesh_sockets(const Mesh *m)
{
    for (int64_t r = 0; r < m->size; r++)
        if (m->socket[r] >= 0) {
            close(m->socket[r]);
            m->socket[r] = -1;
        }
}

DsvStatus dsvi_tcp_mesh_connect(const DsviMeeting *meeting, int *socket)
{
    Mesh m;
    DSVI_TRY(check_files(meeting));
    DsvStatus status = open_mesh(&m, meeting, socket);
    if (status == DSV_OK) {
        status = mesh_connect(&m);
        if (status != DSV_OK)
            mesh_report_failure(&m);
    }
    close_mesh(&m);
    if (status != DSV_OK)
        close_mesh_sockets(&m);
    return status;
}

void dsvi_tcp_mesh_decline(const DsviMeeting *meeting, const char *sentence)
{
    DsviStatusRecord own = *dsvi_status_record();
    Mesh m;
    int *socket = calloc((size_t)meeting->size, sizeof *socket);
    if (socket) {
        if (open_mesh(&m, meeting, socket) == DSV_OK && mesh_begin(&m) == DSV_OK)
            notify_all(&m, sentence);
        close_mesh(&m);
        close_mesh_sockets(&m);
    }
    free(socket);
    *dsvi_status_record() = own;
}
