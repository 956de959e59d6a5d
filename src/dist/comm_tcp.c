/* See comm_tcp.h. A connection carries frames (tcp_frame.h), each with a head and a payload. An exchange
 * sends and receives on all connections at the same time with poll(). Every 20 ms all connections are checked
 * for a frame that reports a failure. If a connection ends while data is expected on it, its rank counts as
 * ended. All groups use the same connections: one thread at a time makes calls, and other threads may only
 * call dsvi_comm_check_failure, which takes its turn while the first thread polls. */
#include "dist/comm_tcp.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/host.h"
#include "dist/tcp_frame.h"
#include "dist/tcp_mesh.h"
#include "dist/transport.h"

enum { CHECK_EVERY_MS = 20 }; /* milliseconds between checks of all connections for failures */
#define MEET_S 300.0          /* seconds within which all ranks must connect, at most */
#define FINISH_S 3.0 /* seconds without progress after which a failed rank gives up frames sent in part */

/* Connections of this process, shared by all groups. */
typedef struct World {
    int64_t rank, size;
    pthread_mutex_t lock; /* guards the connections and the fields below */
    int *socket;          /* (size); -1: this rank's own entry, and connections that have ended */
    bool *within;         /* (size) whether a frame to this rank is sent in part */
    bool failed;
    bool found; /* this rank found the failure: no other rank reported it */
    char sentence[DSVI_MESSAGE_BYTES];
    int64_t last_number; /* see DsviComm */
    double checked;      /* clock of the last check of all connections */
} World;

/* A frame that is being sent or received. */
typedef struct Frame {
    DsviFrameHead head;
    const DsviPiece *piece;
    size_t moved; /* bytes of head and piece that are sent or received */
    bool needed;  /* false: nothing is exchanged with this rank */
    bool report;  /* the frame of a failure follows this frame */
} Frame;

typedef struct TcpComm {
    DsviComm comm;
    World *world;
    uint32_t group;
    int64_t *world_rank;   /* (size) rank of each member in World */
    Frame *out, *in;       /* (size) frames to and from each member */
    struct pollfd *poller; /* (size) */
} TcpComm;

/* ---- failure ---- */

/* Sends the failure to one rank, unless a frame to it is incomplete. Ignores an error: a rank whose
 * connection has no space for this short frame cannot be reached. */
static void send_failure(const World *w, int64_t rank)
{
    if (w->socket[rank] >= 0 && !w->within[rank])
        (void)dsvi_frame_send(w->socket[rank], DSVI_FRAME_FAILURE, w->sentence, strlen(w->sentence));
}

/* Records the first failure and sends it to all ranks, also if another rank reported it: this rank ends soon,
 * and a rank that the report has not yet reached would take the end of this rank for the failure. */
static void tcp_set_failed(World *w, const char *sentence, bool found)
{
    if (w->failed)
        return;
    w->failed = true;
    w->found = found;
    snprintf(w->sentence, sizeof w->sentence, "%s", sentence);
    for (int64_t r = 0; r < w->size; r++)
        send_failure(w, r);
}

/* Receives the payload of a DSVI_FRAME_FAILURE whose head has been received. */
static void receive_failure(World *w, int64_t rank, size_t bytes)
{
    char sentence[DSVI_MESSAGE_BYTES];
    dsvi_frame_receive_message(w->socket[rank], bytes, sentence);
    tcp_set_failed(w, sentence, false);
}

/* Receives a failure frame if the rank has sent one; leaves a data frame on the connection, because a later
   exchange expects it. */
static void check_rank(World *w, int64_t rank)
{
    DsviFrameHead head;
    if (w->socket[rank] < 0 || dsvi_frame_peek(w->socket[rank], &head) != DSVI_SEEN_HEAD ||
        head.kind != DSVI_FRAME_FAILURE)
        return;
    dsvi_frame_receive_head(w->socket[rank]);
    receive_failure(w, rank, head.bytes);
}

static void close_connection(World *w, int64_t rank)
{
    if (w->socket[rank] >= 0)
        close(w->socket[rank]);
    w->socket[rank] = -1;
    w->within[rank] = false;
}

/* Records that a rank's connection has ended. If the rank ended because of another rank's failure, the
 * failure frame of that rank has arrived, and its message is kept. */
static void rank_ended(const TcpComm *t, int64_t rank)
{
    char sentence[128];
    World *w = t->world;
    int64_t r = t->world_rank[rank];
    for (int64_t other = 0; other < w->size && !w->failed; other++)
        check_rank(w, other);
    snprintf(sentence, sizeof sentence, "rank %lld has ended, and others wait for it in %s", (long long)r,
             t->comm.call);
    close_connection(w, r);
    tcp_set_failed(w, sentence, true);
}

static void check_all_ranks(World *w)
{
    double now = dsvi_clock_seconds();
    if (now - w->checked < 1e-3 * CHECK_EVERY_MS)
        return;
    w->checked = now;
    for (int64_t r = 0; r < w->size && !w->failed; r++)
        check_rank(w, r);
}

/* Checks for failure frames and for connections of this group that have ended. */
static DsvStatus tcp_listen(DsviComm *comm)
{
    TcpComm *t = (TcpComm *)comm;
    World *w = t->world;
    char byte;
    pthread_mutex_lock(&w->lock);
    check_all_ranks(w);
    for (int64_t r = 0; r < comm->size && !w->failed; r++) {
        int file = w->socket[t->world_rank[r]];
        if (file >= 0 && recv(file, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            rank_ended(t, r);
    }
    bool failed = w->failed;
    pthread_mutex_unlock(&w->lock);
    return failed ? DSVI_FAIL(DSV_E_RANK, "%s", w->sentence) : DSV_OK;
}

static void tcp_fail(DsviComm *comm, const char *sentence)
{
    World *w = ((TcpComm *)comm)->world;
    pthread_mutex_lock(&w->lock);
    tcp_set_failed(w, sentence, true);
    pthread_mutex_unlock(&w->lock);
}

/* ---- exchange ---- */

static bool unfinished(const Frame *frame)
{
    return frame->needed && frame->moved < sizeof frame->head + frame->piece->bytes;
}

/* Returns the rest of the frame's head, or of its piece once the head is complete. */
static DsviPiece rest_of(Frame *frame)
{
    size_t head = sizeof frame->head;
    if (frame->moved < head)
        return (DsviPiece){(char *)&frame->head + frame->moved, head - frame->moved};
    return (DsviPiece){(char *)frame->piece->data + (frame->moved - head),
                       frame->piece->bytes - (frame->moved - head)};
}

/* Sends or receives as much as possible without waiting. Returns false if the connection has ended. */
static bool move_frame(int file, Frame *frame, bool sends)
{
    while (unfinished(frame)) {
        DsviPiece next = rest_of(frame);
        ssize_t moved = sends ? send(file, next.data, next.bytes, MSG_NOSIGNAL)
                              : recv(file, next.data, next.bytes, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (moved <= 0)
            return false;
        frame->moved += (size_t)moved;
        if (!sends && frame->moved == sizeof frame->head)
            return true; /* the caller checks the head before anything is written to the piece */
    }
    return true;
}

static DsvStatus check_head(const TcpComm *t, int64_t rank)
{
    const Frame *in = &t->in[rank];
    if (in->head.kind == DSVI_FRAME_DATA && in->head.group == t->group && in->head.bytes == in->piece->bytes)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL,
                     "%s: rank %lld sends %llu bytes of group %u, rank %lld expects %zu "
                     "of %u",
                     t->comm.call, (long long)rank, (unsigned long long)in->head.bytes, in->head.group,
                     (long long)t->comm.rank, in->piece->bytes, t->group);
}

static DsvStatus receive_more(TcpComm *t, int64_t rank)
{
    Frame *in = &t->in[rank];
    int file = t->world->socket[t->world_rank[rank]];
    bool had_head = in->moved >= sizeof in->head;
    if (!move_frame(file, in, false)) {
        rank_ended(t, rank);
        return DSV_OK;
    }
    if (had_head || in->moved < sizeof in->head)
        return DSV_OK;
    if (in->head.kind == DSVI_FRAME_FAILURE) {
        receive_failure(t->world, t->world_rank[rank], in->head.bytes);
        return DSV_OK;
    }
    DSVI_TRY(check_head(t, rank));
    if (!move_frame(file, in, false))
        rank_ended(t, rank);
    return DSV_OK;
}

static void send_more(TcpComm *t, int64_t rank)
{
    int64_t r = t->world_rank[rank];
    bool connected = move_frame(t->world->socket[r], &t->out[rank], true);
    t->world->within[r] = connected && t->out[rank].moved > 0 && unfinished(&t->out[rank]);
    if (connected)
        return;
    check_rank(t->world, r); /* the rank may have sent its reason before it ended */
    rank_ended(t, rank);
}

/* Prepares poll() for the connections with unfinished frames; returns how many there are. */
static int set_pollers(TcpComm *t)
{
    int moving = 0;
    for (int64_t r = 0; r < t->comm.size; r++) {
        short events = (short)((unfinished(&t->in[r]) ? POLLIN : 0) | (unfinished(&t->out[r]) ? POLLOUT : 0));
        t->poller[r] = (struct pollfd){events ? t->world->socket[t->world_rank[r]] : -1, events, 0};
        moving += events != 0;
    }
    return moving;
}

static void begin_frames(TcpComm *t, const DsviPiece *send, const DsviPiece *receive)
{
    for (int64_t r = 0; r < t->comm.size; r++) {
        bool other = r != t->comm.rank;
        t->out[r] = (Frame){
            {DSVI_FRAME_DATA, t->group, send[r].bytes}, &send[r], 0, other && send[r].bytes > 0, false};
        t->in[r] = (Frame){{0, 0, 0}, &receive[r], 0, other && receive[r].bytes > 0, false};
    }
}

static void tcp_timed_out(TcpComm *t)
{
    char sentence[128];
    int64_t missing = 0;
    while (!unfinished(&t->in[missing]) && !unfinished(&t->out[missing]))
        missing++;
    snprintf(sentence, sizeof sentence, "rank %lld has not come to %s for %g s",
             (long long)t->world_rank[missing], t->comm.call, t->comm.timeout_s);
    tcp_set_failed(t->world, sentence, true);
}

/* Continues a frame that is sent in part. Once the frame is complete and the connection is writable again,
 * which means that a short frame fits, sends the failure. */
static void finish_frame(TcpComm *t, int64_t rank)
{
    World *w = t->world;
    int64_t r = t->world_rank[rank];
    if (!w->within[r]) {
        send_failure(w, r);
        t->out[rank].report = false;
    } else if (move_frame(w->socket[r], &t->out[rank], true)) {
        w->within[r] = unfinished(&t->out[rank]);
    } else {
        close_connection(w, r);
        t->out[rank].report = false;
    }
}

/* Called after a failure, which another thread may have detected. Completes frames that are sent in part,
 * because a receiver would take anything else for their payload; then sends them the failure. Gives up when
 * no receiver has taken anything for FINISH_S, but not earlier: an overloaded machine can stop a receiver for
 * seconds, and without the frame of the failure the receiver would only see that this rank has ended. */
static void finish_frames(TcpComm *t)
{
    World *w = t->world;
    double progress = dsvi_clock_seconds();
    for (int64_t r = 0; r < t->comm.size; r++)
        t->out[r].report = w->socket[t->world_rank[r]] >= 0 && w->within[t->world_rank[r]];
    for (int moving = 1; moving > 0 && dsvi_clock_seconds() - progress < FINISH_S;) {
        moving = 0;
        for (int64_t r = 0; r < t->comm.size; r++) {
            bool report = t->out[r].report;
            t->poller[r] = (struct pollfd){report ? w->socket[t->world_rank[r]] : -1, POLLOUT, 0};
            moving += report;
        }
        if (moving == 0 || poll(t->poller, (nfds_t)t->comm.size, CHECK_EVERY_MS) <= 0)
            continue;
        progress = dsvi_clock_seconds();
        for (int64_t r = 0; r < t->comm.size; r++)
            if (t->poller[r].fd >= 0 && t->poller[r].revents)
                finish_frame(t, r);
    }
    w->found = false;
}

/* Sends and receives all frames of one exchange. Called while holding the lock, which is released during
   poll(). */
static DsvStatus tcp_exchange_frames(TcpComm *t)
{
    World *w = t->world;
    DsvStatus status = DSV_OK;
    double progress = dsvi_clock_seconds(); /* clock of the last event on a connection */
    check_all_ranks(w);
    bool failed_before = w->failed; /* after an earlier failure no frame of this exchange is sent in part */
    while (!w->failed && set_pollers(t) > 0) {
        pthread_mutex_unlock(&w->lock);
        int found = poll(t->poller, (nfds_t)t->comm.size, CHECK_EVERY_MS);
        pthread_mutex_lock(&w->lock);
        if (found > 0)
            progress = dsvi_clock_seconds();
        else if (dsvi_clock_seconds() - progress > t->comm.timeout_s)
            tcp_timed_out(t);
        for (int64_t r = 0; r < t->comm.size && found > 0 && !w->failed; r++) {
            if (t->poller[r].fd >= 0 && t->poller[r].revents && unfinished(&t->in[r]))
                status = receive_more(t, r);
            if (status != DSV_OK)
                tcp_set_failed(w, dsv_error_message(), true);
            if (t->poller[r].fd >= 0 && t->poller[r].revents && !w->failed && unfinished(&t->out[r]))
                send_more(t, r);
        }
        check_all_ranks(w);
    }
    if (w->failed && w->found && !failed_before)
        finish_frames(t);
    if (status != DSV_OK)
        return DSVI_FAIL(status, "%s", w->sentence);
    return w->failed ? DSVI_FAIL(DSV_E_RANK, "%s", w->sentence) : DSV_OK;
}

static DsvStatus tcp_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
{
    TcpComm *t = (TcpComm *)comm;
    begin_frames(t, send, receive);
    pthread_mutex_lock(&t->world->lock);
    DsvStatus status = tcp_exchange_frames(t);
    pthread_mutex_unlock(&t->world->lock);
    return status;
}

/* ---- groups, joining, leaving ---- */

static void free_tcp_world(World *w)
{
    pthread_mutex_destroy(&w->lock);
    for (int64_t r = 0; r < w->size && w->socket; r++)
        if (w->socket[r] >= 0)
            close(w->socket[r]);
    free(w->socket);
    free(w->within);
    free(w);
}

static bool tcp_told(DsviComm *comm)
{
    const World *w = ((TcpComm *)comm)->world;
    if (w->rank > 0)
        return w->socket[0] >= 0 && dsvi_frame_await_goodbye(w->socket[0], DSVI_COMM_REPORT_S);
    for (int64_t r = 1; r < w->size; r++)
        if (w->socket[r] >= 0)
            (void)dsvi_frame_send(w->socket[r], DSVI_FRAME_GOODBYE, NULL, 0);
    return true;
}

static void free_tcp_comm(TcpComm *t)
{
    free(t->world_rank);
    free(t->out);
    free(t->in);
    free(t->poller);
    dsvi_comm_free(&t->comm);
}

static void tcp_close(DsviComm *comm)
{
    TcpComm *t = (TcpComm *)comm;
    World *w = t->world;
    bool last = t->group == 0;
    free_tcp_comm(t);
    if (last)
        free_tcp_world(w);
}

static DsvStatus tcp_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                           DsviComm **out);

static const DsviTransport TCP = {
    .name = "TCP",
    .exchange = tcp_exchange,
    .split = tcp_split,
    .listen = tcp_listen,
    .fail = tcp_fail,
    .told = tcp_told,
    .close = tcp_close,
};

static DsvStatus tcp_comm_make(World *w, int64_t rank, int64_t size, uint32_t group, double timeout_s,
                               TcpComm **out)
{
    DsviComm *comm;
    size_t n = (size_t)size;
    *out = NULL;
    DSVI_TRY(dsvi_comm_alloc(&TCP, sizeof **out, rank, size, timeout_s, &w->last_number, &comm));
    TcpComm *t = (TcpComm *)comm;
    t->world = w;
    t->group = group;
    t->world_rank = calloc(n, sizeof *t->world_rank);
    t->out = calloc(n, sizeof *t->out);
    t->in = calloc(n, sizeof *t->in);
    t->poller = calloc(n, sizeof *t->poller);
    if (!t->world_rank || !t->out || !t->in || !t->poller) {
        free_tcp_comm(t);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the connections of %lld ranks", (long long)size);
    }
    *out = t;
    return DSV_OK;
}

static DsvStatus tcp_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                           DsviComm **out)
{
    const TcpComm *parent = (const TcpComm *)comm;
    TcpComm *t;
    DSVI_TRY(tcp_comm_make(parent->world, rank, count, (uint32_t)number, comm->timeout_s, &t));
    for (int64_t r = 0; r < count; r++)
        t->world_rank[r] = parent->world_rank[member[r]];
    *out = &t->comm;
    return DSV_OK;
}

/* Allocates a World without connections. */
static DsvStatus make_tcp_world(const DsviMeeting *meeting, World **out)
{
    World *w = calloc(1, sizeof *w);
    *out = w;
    if (w) {
        w->socket = malloc((size_t)meeting->size * sizeof *w->socket);
        w->within = calloc((size_t)meeting->size, sizeof *w->within);
    }
    if (!w || !w->socket || !w->within) {
        if (w)
            free(w->socket);
        free(w);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld connections", (long long)meeting->size);
    }
    pthread_mutex_init(&w->lock, NULL);
    w->rank = meeting->rank;
    return DSV_OK;
}

DsvStatus dsvi_comm_tcp_create(const DsviMeeting *meeting, DsviComm **out)
{
    TcpComm *t = NULL;
    World *w;
    DsviMeeting limited = *meeting;
    *out = NULL;
    limited.timeout_s = meeting->timeout_s < MEET_S ? meeting->timeout_s : MEET_S;
    DSVI_TRY(make_tcp_world(meeting, &w));
    DsvStatus status = dsvi_tcp_mesh_connect(&limited, w->socket);
    w->size = status == DSV_OK ? meeting->size : 0;
    if (status == DSV_OK)
        status = tcp_comm_make(w, meeting->rank, meeting->size, 0, meeting->timeout_s, &t);
    if (status != DSV_OK) {
        free_tcp_world(w);
        return status;
    }
    for (int64_t r = 0; r < meeting->size; r++)
        t->world_rank[r] = r;
    *out = &t->comm;
    return DSV_OK;
}
