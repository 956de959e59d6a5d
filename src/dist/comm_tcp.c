/* See comm_tcp.h. A connection carries frames, each a head and its bytes. In an exchange all that go out and
 * all that come in move as the connections allow; now and then every connection is looked at, for a rank
 * that tells of its failure there. A connection that ends while something is awaited on it is a rank that
 * died. All groups use the same connections, so one thread at a time makes calls; others may listen, whenever
 * that one waits. */
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

enum { LOOK_EVERY_MS = 20 };   /* for failures, on all connections */
#define MEET_S 300.0           /* how long ranks wait for each other to be there at all, at most */
#define FAREWELL_S 5.0         /* how long others wait for rank 0 to report a failure */
#define FINISH_S 1.0           /* how long a failed rank goes on sending a frame that it has begun */

/* What all groups of this process share. */
typedef struct World {
    int64_t rank, size;
    pthread_mutex_t lock; /* over the connections and what follows */
    int *socket;        /* (size); -1: this rank's, and those that have ended */
    bool *within;       /* (size) a frame has been sent in part */
    bool failed, tells; /* tells: the failure is this rank's to report to the others */
    char sentence[DSVI_MESSAGE_BYTES];
    int64_t last_number;
    double looked;      /* clock, when all connections were last looked at */
} World;

/* One frame under way. */
typedef struct Frame {
    DsviFrameHead head;
    const DsvPiece *piece;
    size_t moved;       /* of head and piece together */
    bool wanted;
} Frame;

typedef struct TcpComm {
    DsvComm comm;
    World *world;
    uint32_t group;
    int64_t *world_rank;     /* (size) */
    Frame *out, *in;         /* (size) */
    struct pollfd *poller;   /* (size) */
} TcpComm;

/* ---- failure ---- */

/* A rank that has no room for so small a frame is beyond help. */
static void tell_failure(const World *w, int64_t rank)
{
    if (w->socket[rank] >= 0 && !w->within[rank])
        (void)dsvi_frame_send(w->socket[rank], DSVI_FRAME_FAILURE, w->sentence, strlen(w->sentence));
}

static void set_failed(World *w, const char *sentence, bool tell_others)
{
    if (w->failed)
        return;
    w->failed = true;
    w->tells = tell_others;
    snprintf(w->sentence, sizeof w->sentence, "%s", sentence);
    for (int64_t r = 0; r < w->size && tell_others; r++)
        tell_failure(w, r);
}

/* Receives the sentence that follows a head of DSVI_FRAME_FAILURE. */
static void hear_failure(World *w, int64_t rank, size_t bytes)
{
    char sentence[DSVI_MESSAGE_BYTES];
    dsvi_frame_sentence(w->socket[rank], bytes, sentence);
    set_failed(w, sentence, false);
}

/* Whether the rank reports a failure in place of data that nobody expects yet. */
static void look_at(World *w, int64_t rank)
{
    DsviFrameHead head;
    if (w->socket[rank] < 0 || dsvi_frame_peek(w->socket[rank], &head) != DSVI_SEEN_HEAD ||
        head.kind != DSVI_FRAME_FAILURE)
        return;
    dsvi_frame_take_head(w->socket[rank]);
    hear_failure(w, rank, head.bytes);
}

static void hang_up(World *w, int64_t rank)
{
    if (w->socket[rank] >= 0)
        close(w->socket[rank]);
    w->socket[rank] = -1;
    w->within[rank] = false;
}

/* It may have ended because of a third one, which then has told why. */
static void rank_ended(const TcpComm *t, int64_t rank)
{
    char sentence[128];
    World *w = t->world;
    int64_t r = t->world_rank[rank];
    for (int64_t other = 0; other < w->size && !w->failed; other++)
        look_at(w, other);
    snprintf(sentence, sizeof sentence, "rank %lld has ended, and others wait for it in %s", (long long)r,
             t->comm.call);
    hang_up(w, r);
    set_failed(w, sentence, true);
}

static void look_around(World *w)
{
    double now = dsvi_clock_seconds();
    if (now - w->looked < 1e-3 * LOOK_EVERY_MS)
        return;
    w->looked = now;
    for (int64_t r = 0; r < w->size && !w->failed; r++)
        look_at(w, r);
}

/* As above, and a connection that has ended is a failure. */
static DsvStatus tcp_listen(DsvComm *comm)
{
    TcpComm *t = (TcpComm *)comm;
    World *w = t->world;
    char byte;
    pthread_mutex_lock(&w->lock);
    look_around(w);
    for (int64_t r = 0; r < comm->size && !w->failed; r++) {
        int file = w->socket[t->world_rank[r]];
        if (file >= 0 && recv(file, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            rank_ended(t, r);
    }
    bool failed = w->failed;
    pthread_mutex_unlock(&w->lock);
    return failed ? DSVI_FAIL(DSV_E_RANK, "%s", w->sentence) : DSV_OK;
}

static void tcp_fail(DsvComm *comm, const char *sentence)
{
    World *w = ((TcpComm *)comm)->world;
    pthread_mutex_lock(&w->lock);
    set_failed(w, sentence, true);
    pthread_mutex_unlock(&w->lock);
}

/* ---- exchange ---- */

static bool unfinished(const Frame *frame)
{
    return frame->wanted && frame->moved < sizeof frame->head + frame->piece->bytes;
}

/* The next stretch of a frame: of its head, then of its piece. */
static DsvPiece stretch_of(Frame *frame)
{
    size_t head = sizeof frame->head;
    if (frame->moved < head)
        return (DsvPiece){(char *)&frame->head + frame->moved, head - frame->moved};
    return (DsvPiece){(char *)frame->piece->data + (frame->moved - head),
                      frame->piece->bytes - (frame->moved - head)};
}

/* Moves what can be moved now. False: the connection has ended. */
static bool move_frame(int file, Frame *frame, bool sends)
{
    while (unfinished(frame)) {
        DsvPiece next = stretch_of(frame);
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
            return true; /* the head is looked at before anything is written to the piece */
    }
    return true;
}

static DsvStatus check_head(const TcpComm *t, int64_t rank)
{
    const Frame *in = &t->in[rank];
    if (in->head.kind == DSVI_FRAME_DATA && in->head.group == t->group && in->head.bytes == in->piece->bytes)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: rank %lld sends %llu bytes of group %u, rank %lld expects %zu "
                     "of %u", t->comm.call, (long long)rank, (unsigned long long)in->head.bytes,
                     in->head.group, (long long)t->comm.rank, in->piece->bytes, t->group);
}

static DsvStatus serve_in(TcpComm *t, int64_t rank)
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
        hear_failure(t->world, t->world_rank[rank], in->head.bytes);
        return DSV_OK;
    }
    DSVI_TRY(check_head(t, rank));
    if (!move_frame(file, in, false))
        rank_ended(t, rank);
    return DSV_OK;
}

/* A rank that does not take what is sent may have told why. */
static void serve_out(TcpComm *t, int64_t rank)
{
    int64_t r = t->world_rank[rank];
    bool goes_on = move_frame(t->world->socket[r], &t->out[rank], true);
    t->world->within[r] = goes_on && t->out[rank].moved > 0 && unfinished(&t->out[rank]);
    if (goes_on)
        return;
    look_at(t->world, r);
    rank_ended(t, rank);
}

/* Polls the connections on which something is to move; the number of them. */
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

static void begin(TcpComm *t, const DsvPiece *send, const DsvPiece *receive)
{
    for (int64_t r = 0; r < t->comm.size; r++) {
        bool other = r != t->comm.rank;
        t->out[r] = (Frame){{DSVI_FRAME_DATA, t->group, send[r].bytes}, &send[r], 0,
                            other && send[r].bytes > 0};
        t->in[r] = (Frame){{0, 0, 0}, &receive[r], 0, other && receive[r].bytes > 0};
    }
}

static void too_late(TcpComm *t)
{
    char sentence[128];
    int64_t missing = 0;
    while (!unfinished(&t->in[missing]) && !unfinished(&t->out[missing]))
        missing++;
    snprintf(sentence, sizeof sentence, "rank %lld has not come to %s for %g s",
             (long long)t->world_rank[missing], t->comm.call, t->comm.timeout_s);
    set_failed(t->world, sentence, true);
}

/* Called after a failure, which another thread may have found. A frame sent in part is completed first,
 * because the receiver would read anything else as its payload; then the receiver is told of the failure. */
static void finish_frames(TcpComm *t)
{
    World *w = t->world;
    double until = dsvi_clock_seconds() + FINISH_S;
    for (int moving = 1; moving > 0 && dsvi_clock_seconds() < until;) {
        moving = 0;
        for (int64_t r = 0; r < t->comm.size; r++) {
            bool within = w->socket[t->world_rank[r]] >= 0 && w->within[t->world_rank[r]];
            t->poller[r] = (struct pollfd){within ? w->socket[t->world_rank[r]] : -1, POLLOUT, 0};
            moving += within;
        }
        if (moving == 0 || poll(t->poller, (nfds_t)t->comm.size, LOOK_EVERY_MS) <= 0)
            continue;
        for (int64_t r = 0; r < t->comm.size; r++) {
            if (t->poller[r].fd < 0 || !t->poller[r].revents)
                continue;
            if (move_frame(t->poller[r].fd, &t->out[r], true))
                w->within[t->world_rank[r]] = unfinished(&t->out[r]);
            else
                hang_up(w, t->world_rank[r]);
            tell_failure(w, t->world_rank[r]);
        }
    }
    w->tells = false;
}

/* Holds the lock except while it polls. */
static DsvStatus move_all(TcpComm *t)
{
    World *w = t->world;
    DsvStatus status = DSV_OK;
    double heard = dsvi_clock_seconds();
    look_around(w);
    bool failed_before = w->failed; /* then no frame of this exchange has been begun */
    while (!w->failed && set_pollers(t) > 0) {
        pthread_mutex_unlock(&w->lock);
        int found = poll(t->poller, (nfds_t)t->comm.size, LOOK_EVERY_MS);
        pthread_mutex_lock(&w->lock);
        if (found > 0)
            heard = dsvi_clock_seconds();
        else if (dsvi_clock_seconds() - heard > t->comm.timeout_s)
            too_late(t);
        for (int64_t r = 0; r < t->comm.size && found > 0 && !w->failed; r++) {
            if (t->poller[r].fd >= 0 && t->poller[r].revents && unfinished(&t->in[r]))
                status = serve_in(t, r);
            if (status != DSV_OK)
                set_failed(w, dsv_error_message(), true);
            if (t->poller[r].fd >= 0 && t->poller[r].revents && !w->failed && unfinished(&t->out[r]))
                serve_out(t, r);
        }
        look_around(w);
    }
    if (w->failed && w->tells && !failed_before)
        finish_frames(t);
    if (status != DSV_OK)
        return DSVI_FAIL(status, "%s", w->sentence);
    return w->failed ? DSVI_FAIL(DSV_E_RANK, "%s", w->sentence) : DSV_OK;
}

static DsvStatus tcp_exchange(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive)
{
    TcpComm *t = (TcpComm *)comm;
    begin(t, send, receive);
    pthread_mutex_lock(&t->world->lock);
    DsvStatus status = move_all(t);
    pthread_mutex_unlock(&t->world->lock);
    return status;
}

/* ---- groups and life ---- */

static void free_world(World *w)
{
    pthread_mutex_destroy(&w->lock);
    for (int64_t r = 0; r < w->size && w->socket; r++)
        if (w->socket[r] >= 0)
            close(w->socket[r]);
    free(w->socket);
    free(w->within);
    free(w);
}

static bool tcp_told(DsvComm *comm)
{
    const World *w = ((TcpComm *)comm)->world;
    if (w->rank > 0)
        return w->socket[0] >= 0 && dsvi_frame_await_farewell(w->socket[0], FAREWELL_S);
    for (int64_t r = 1; r < w->size; r++)
        if (w->socket[r] >= 0)
            (void)dsvi_frame_send(w->socket[r], DSVI_FRAME_FAREWELL, NULL, 0);
    return true;
}

static void free_comm(TcpComm *t)
{
    free(t->world_rank);
    free(t->out);
    free(t->in);
    free(t->poller);
    dsvi_comm_release(&t->comm);
}

static void tcp_close(DsvComm *comm)
{
    TcpComm *t = (TcpComm *)comm;
    World *w = t->world;
    bool last = t->group == 0;
    free_comm(t);
    if (last)
        free_world(w);
}

static DsvStatus tcp_split(DsvComm *comm, const int64_t *member, int64_t count, int64_t rank,
                           int64_t number, DsvComm **out);

static const DsvTransport TCP = {
    .name = "TCP", .exchange = tcp_exchange, .split = tcp_split,
    .listen = tcp_listen, .fail = tcp_fail, .told = tcp_told, .close = tcp_close,
};

static DsvStatus make(World *w, int64_t rank, int64_t size, uint32_t group, double timeout_s, TcpComm **out)
{
    DsvComm *comm;
    size_t n = (size_t)size;
    *out = NULL;
    DSVI_TRY(dsvi_comm_make(&TCP, sizeof **out, rank, size, timeout_s, &w->last_number, &comm));
    TcpComm *t = (TcpComm *)comm;
    t->world = w;
    t->group = group;
    t->world_rank = calloc(n, sizeof *t->world_rank);
    t->out = calloc(n, sizeof *t->out);
    t->in = calloc(n, sizeof *t->in);
    t->poller = calloc(n, sizeof *t->poller);
    if (!t->world_rank || !t->out || !t->in || !t->poller) {
        free_comm(t);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the connections of %lld ranks", (long long)size);
    }
    *out = t;
    return DSV_OK;
}

static DsvStatus tcp_split(DsvComm *comm, const int64_t *member, int64_t count, int64_t rank,
                           int64_t number, DsvComm **out)
{
    const TcpComm *parent = (const TcpComm *)comm;
    TcpComm *t;
    DSVI_TRY(make(parent->world, rank, count, (uint32_t)number, comm->timeout_s, &t));
    for (int64_t r = 0; r < count; r++)
        t->world_rank[r] = parent->world_rank[member[r]];
    *out = &t->comm;
    return DSV_OK;
}

/* A world whose connections are yet to be made. */
static DsvStatus make_world(const DsviMeeting *meeting, World **out)
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

DsvStatus dsvi_comm_tcp_create(const DsviMeeting *meeting, DsvComm **out)
{
    TcpComm *t = NULL;
    World *w;
    DsviMeeting soon = *meeting;
    *out = NULL;
    soon.timeout_s = meeting->timeout_s < MEET_S ? meeting->timeout_s : MEET_S;
    DSVI_TRY(make_world(meeting, &w));
    DsvStatus status = dsvi_tcp_mesh(&soon, w->socket);
    w->size = status == DSV_OK ? meeting->size : 0;
    if (status == DSV_OK)
        status = make(w, meeting->rank, meeting->size, 0, meeting->timeout_s, &t);
    if (status != DSV_OK) {
        free_world(w);
        return status;
    }
    for (int64_t r = 0; r < meeting->size; r++)
        t->world_rank[r] = r;
    *out = &t->comm;
    return DSV_OK;
}
