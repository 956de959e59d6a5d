/* See comm_mpi.h. Pieces go as plain messages from rank to rank: the sums are comm.c's, so that their order
 * is ours and not that of an MPI library, and a rank that does not come is known by its number.
 *
 * All waiting is done here, by asking (MPI_Testsome) and pausing: meanwhile failures that other ranks tell,
 * on a communicator of their own, are heard, and ranks of this machine that were killed are seen (peers.h).
 * Groups may be used by several threads at once: each gives way to the others between its questions, and
 * never are two inside MPI.
 * After a failure messages may be under way that will never arrive, and MPI_Finalize might wait for them:
 * the processes then end without it. */
#include "dist/comm_mpi.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mpi.h>

#include "base/host.h"
#include "dist/peers.h"
#include "dist/transport.h"

enum { TAG_FAILURE = 1, TAG_FAREWELL = 2 };
enum { MESSAGE_MOST = 1 << 30 };            /* lengths are int in MPI */
enum { YIELDS = 2000, PAUSE_US = 20 };      /* of a wait: first yielding, then sleeping */
#define LOOK_EVERY_S 0.02                   /* for failures and lost ranks */
#define FAREWELL_S 5.0                      /* how long others wait for rank 0 to report a failure */
#define LEAVE_S 0.1                         /* how long MPI is given to send the last messages */

/* What all groups of this process share: there is one MPI in it. */
static struct {
    pthread_mutex_t lock; /* over MPI and what follows */
    MPI_Comm data, control;
    int rank, size;
    DsvPeers *peers;
    bool failed;
    char sentence[DSVI_MESSAGE_BYTES];
    int64_t last_number;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct MpiComm {
    DsvComm comm;
    int tag;
    int *world_rank;      /* (size) */
    MPI_Request *request; /* (2 size) first those that receive, by rank, then those that send */
    MPI_Status *status;   /* (2 size) */
    int *done;            /* (2 size) */
} MpiComm;

static DsvStatus mpi_failed(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    return DSVI_FAIL(DSV_E_DEVICE, "%s: MPI says: %.*s", what, length, text);
}

/* ---- failure ---- */

/* Tells all ranks. The messages are small enough to leave at once; nobody waits for them to arrive. */
static void tell(int tag, const char *sentence)
{
    for (int r = 0; r < world.size; r++) {
        MPI_Request request;
        if (r == world.rank)
            continue;
        MPI_Isend(sentence, (int)strlen(sentence) + 1, MPI_CHAR, r, tag, world.control, &request);
        MPI_Request_free(&request);
    }
}

static void set_failed(const char *sentence, bool tell_others)
{
    if (world.failed)
        return;
    world.failed = true;
    snprintf(world.sentence, sizeof world.sentence, "%s", sentence);
    if (tell_others)
        tell(TAG_FAILURE, world.sentence);
}

/* Whether any rank has told that it failed, or is seen to have ended. */
static bool hears_failure(void)
{
    int there = 0;
    MPI_Status status;
    if (world.failed)
        return true;
    MPI_Iprobe(MPI_ANY_SOURCE, TAG_FAILURE, world.control, &there, &status);
    if (there) {
        char sentence[DSVI_MESSAGE_BYTES] = "";
        MPI_Recv(sentence, sizeof sentence, MPI_CHAR, status.MPI_SOURCE, TAG_FAILURE, world.control,
                 MPI_STATUS_IGNORE);
        set_failed(sentence, false);
    }
    return there;
}

static void look_for_ended(const char *call)
{
    int64_t ended = dsvi_peers_ended(world.peers);
    char sentence[128];
    if (ended < 0 || hears_failure()) /* it may have told why before it ended */
        return;
    snprintf(sentence, sizeof sentence, "rank %lld has ended, and others wait for it in %s", (long long)ended,
             call);
    set_failed(sentence, true);
}

static void mpi_fail(DsvComm *comm, const char *sentence)
{
    (void)comm;
    pthread_mutex_lock(&world.lock);
    set_failed(sentence, true);
    pthread_mutex_unlock(&world.lock);
}

static DsvStatus mpi_listen(DsvComm *comm)
{
    (void)comm;
    pthread_mutex_lock(&world.lock);
    if (!hears_failure())
        look_for_ended("another call");
    bool failed = world.failed;
    pthread_mutex_unlock(&world.lock);
    return failed ? DSVI_FAIL(DSV_E_RANK, "%s", world.sentence) : DSV_OK;
}

/* ---- exchange ---- */

/* The first rank from which something is still to come, or that has not taken what it was sent. */
static int64_t who_is_missing(const MpiComm *m)
{
    for (int64_t i = 0; i < 2 * m->comm.size; i++)
        if (m->request[i] != MPI_REQUEST_NULL)
            return i % m->comm.size;
    return -1;
}

static DsvStatus wait_failed(MpiComm *m)
{
    /* Memory that nobody may write to any more: the caller goes on with it. */
    for (int64_t r = 0; r < m->comm.size; r++)
        if (m->request[r] != MPI_REQUEST_NULL)
            MPI_Cancel(&m->request[r]);
    return DSVI_FAIL(DSV_E_RANK, "%s", world.sentence);
}

static DsvStatus check_length(const MpiComm *m, int index, const MPI_Status *status, const DsvPiece *receive,
                              size_t at)
{
    int got = 0;
    if (index >= m->comm.size) /* one that sends */
        return DSV_OK;
    size_t wanted = receive[index].bytes - at < MESSAGE_MOST ? receive[index].bytes - at : MESSAGE_MOST;
    MPI_Get_count(status, MPI_BYTE, &got);
    if ((size_t)got == wanted)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: rank %d sends %d bytes, rank %lld expects %zu", m->comm.call, index,
                     got, (long long)m->comm.rank, wanted);
}

static void too_late(const MpiComm *m)
{
    char sentence[128];
    snprintf(sentence, sizeof sentence, "rank %d has not come to %s for %g s",
             m->world_rank[who_is_missing(m)], m->comm.call, m->comm.timeout_s);
    set_failed(sentence, true);
}

/* Others may use MPI meanwhile. */
static void pause_for_a_while(int64_t tries)
{
    pthread_mutex_unlock(&world.lock);
    if (tries < YIELDS)
        sched_yield();
    else
        usleep(PAUSE_US);
    pthread_mutex_lock(&world.lock);
}

/* Waits for all requests. */
static DsvStatus complete(MpiComm *m, const DsvPiece *receive, size_t at)
{
    double start = dsvi_clock_seconds(), looked = start;
    for (int64_t tries = 0;; tries++) {
        int count = 0;
        int code = MPI_Testsome(2 * (int)m->comm.size, m->request, &count, m->done, m->status);
        if (code != MPI_SUCCESS)
            return mpi_failed(m->comm.call, code);
        if (count == MPI_UNDEFINED)
            return DSV_OK;
        for (int i = 0; i < count; i++)
            DSVI_TRY(check_length(m, m->done[i], &m->status[i], receive, at));
        double now = dsvi_clock_seconds();
        if (count > 0)
            start = now;
        if (now - looked > LOOK_EVERY_S) {
            looked = now;
            if (!hears_failure())
                look_for_ended(m->comm.call);
        }
        if (!world.failed && now - start > m->comm.timeout_s)
            too_late(m);
        if (world.failed)
            return wait_failed(m);
        pause_for_a_while(tries);
    }
}

static DsvStatus post(MpiComm *m, const DsvPiece *piece, int64_t rank, size_t at, bool sends)
{
    MPI_Request *request = &m->request[sends ? m->comm.size + rank : rank];
    *request = MPI_REQUEST_NULL;
    if (rank == m->comm.rank || piece->bytes <= at)
        return DSV_OK;
    size_t left = piece->bytes - at;
    int length = left < MESSAGE_MOST ? (int)left : MESSAGE_MOST;
    char *data = (char *)piece->data + at;
    int code = sends ? MPI_Isend(data, length, MPI_BYTE, m->world_rank[rank], m->tag, world.data, request)
                     : MPI_Irecv(data, length, MPI_BYTE, m->world_rank[rank], m->tag, world.data, request);
    return code == MPI_SUCCESS ? DSV_OK : mpi_failed(m->comm.call, code);
}

static size_t longest_of(const MpiComm *m, const DsvPiece *send, const DsvPiece *receive)
{
    size_t longest = 0;
    for (int64_t r = 0; r < m->comm.size; r++) {
        size_t bytes = send[r].bytes > receive[r].bytes ? send[r].bytes : receive[r].bytes;
        longest = r != m->comm.rank && bytes > longest ? bytes : longest;
    }
    return longest;
}

/* With the lock, but for the time it waits. */
static DsvStatus move_all(MpiComm *m, const DsvPiece *send, const DsvPiece *receive)
{
    size_t longest = longest_of(m, send, receive);
    if (world.failed)
        return DSVI_FAIL(DSV_E_RANK, "%s", world.sentence);
    for (size_t at = 0; at < longest; at += MESSAGE_MOST) {
        for (int64_t r = 0; r < m->comm.size; r++)
            DSVI_TRY(post(m, &receive[r], r, at, false));
        for (int64_t r = 0; r < m->comm.size; r++)
            DSVI_TRY(post(m, &send[r], r, at, true));
        DSVI_TRY(complete(m, receive, at));
    }
    return DSV_OK;
}

static DsvStatus mpi_exchange(DsvComm *comm, const DsvPiece *send, const DsvPiece *receive)
{
    pthread_mutex_lock(&world.lock);
    DsvStatus status = move_all((MpiComm *)comm, send, receive);
    pthread_mutex_unlock(&world.lock);
    return status;
}

/* ---- groups and life ---- */

static void free_arrays(MpiComm *m)
{
    free(m->world_rank);
    free(m->request);
    free(m->status);
    free(m->done);
}

/* Whether rank 0's farewell has come. */
static bool hears_farewell(void)
{
    int there = 0;
    char nothing[1];
    MPI_Iprobe(0, TAG_FAREWELL, world.control, &there, MPI_STATUS_IGNORE);
    if (there)
        MPI_Recv(nothing, sizeof nothing, MPI_CHAR, 0, TAG_FAREWELL, world.control, MPI_STATUS_IGNORE);
    return there;
}

static bool mpi_told(DsvComm *comm)
{
    (void)comm;
    if (world.rank == 0)
        tell(TAG_FAREWELL, "");
    double until = dsvi_clock_seconds() + (world.rank == 0 ? LEAVE_S : FAREWELL_S);
    while (dsvi_clock_seconds() < until) {
        bool gone = dsvi_peers_is_gone(world.peers, 0); /* first: what it sent before is there by now */
        if (hears_farewell())
            return true;
        if (gone)
            return false;
        usleep(1000);
    }
    return world.rank == 0;
}

/* After a failure messages may be under way that never arrive, and MPI_Finalize might wait for them. */
static void leave_world(void)
{
    double until = dsvi_clock_seconds() + LEAVE_S;
    dsvi_peers_close(&world.peers);
    if (!world.failed) {
        MPI_Finalize();
        return;
    }
    while (dsvi_clock_seconds() < until) { /* asking is what moves messages */
        (void)hears_farewell();
        usleep(1000);
    }
}

static void mpi_close(DsvComm *comm)
{
    MpiComm *m = (MpiComm *)comm;
    bool last = m->tag == 0;
    free_arrays(m);
    dsvi_comm_release(comm);
    if (last)
        leave_world();
}

static DsvStatus mpi_split(DsvComm *comm, const int64_t *member, int64_t count, int64_t rank,
                           int64_t number, DsvComm **out);

static const DsvTransport MPI = {
    .name = "MPI", .at_once = true, .exchange = mpi_exchange, .split = mpi_split,
    .listen = mpi_listen, .fail = mpi_fail, .told = mpi_told, .close = mpi_close,
};

static DsvStatus make(int64_t rank, int64_t size, int tag, double timeout_s, MpiComm **out)
{
    DsvComm *comm;
    size_t two = 2 * (size_t)size;
    *out = NULL;
    DSVI_TRY(dsvi_comm_make(&MPI, sizeof **out, rank, size, timeout_s, &world.last_number, &comm));
    MpiComm *m = (MpiComm *)comm;
    m->tag = tag;
    m->world_rank = calloc((size_t)size, sizeof *m->world_rank);
    m->request = calloc(two, sizeof *m->request);
    m->status = calloc(two, sizeof *m->status);
    m->done = calloc(two, sizeof *m->done);
    if (!m->world_rank || !m->request || !m->status || !m->done) {
        free_arrays(m);
        dsvi_comm_release(comm);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the messages of %lld ranks", (long long)size);
    }
    *out = m;
    return DSV_OK;
}

/* Groups share MPI's communicator; their numbers, as tags, keep their messages apart. */
static DsvStatus mpi_split(DsvComm *comm, const int64_t *member, int64_t count, int64_t rank,
                           int64_t number, DsvComm **out)
{
    const MpiComm *parent = (const MpiComm *)comm;
    MpiComm *m;
    DSVI_TRY(make(rank, count, (int)(number % 32000) + 1, comm->timeout_s, &m)); /* 32767 is any MPI's */
    for (int64_t r = 0; r < count; r++)
        m->world_rank[r] = parent->world_rank[member[r]];
    *out = &m->comm;
    return DSV_OK;
}

static DsvStatus start(void)
{
    int level = 0, there = 0;
    MPI_Initialized(&there);
    if (there)
        return DSVI_FAIL(DSV_E_USAGE, "ranks of MPI are joined once in the life of a process");
    /* One thread at a time calls, not always the same. */
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (code != MPI_SUCCESS)
        return DSVI_FAIL(DSV_E_DEVICE, "MPI does not start: error %d", code);
    if (level < MPI_THREAD_SERIALIZED)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "this MPI bears no threads (level %d, wanted %d)", level,
                         MPI_THREAD_SERIALIZED);
    MPI_Comm_dup(MPI_COMM_WORLD, &world.data);
    MPI_Comm_dup(MPI_COMM_WORLD, &world.control);
    MPI_Comm_set_errhandler(world.data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(world.control, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world.data, &world.rank);
    MPI_Comm_size(world.data, &world.size);
    return DSV_OK;
}

static DsvStatus meet(DsvComm *comm)
{
    int64_t size = comm->size;
    DsvPeerCard *card = calloc((size_t)size, sizeof *card);
    if (!card)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %lld ranks", (long long)size);
    dsvi_peer_card(&card[comm->rank]);
    DsvStatus status = dsvi_peers_watch(card, size, comm->rank, &world.peers); /* nobody yet */
    if (status == DSV_OK)
        status = dsvi_comm_share(comm, card, sizeof *card);
    dsvi_peers_close(&world.peers);
    if (status == DSV_OK)
        status = dsvi_peers_watch(card, size, comm->rank, &world.peers);
    free(card);
    return status;
}

static DsvStatus join(double timeout_s, DsvStatusRecordOfThread *record, DsvComm **out)
{
    MpiComm *m;
    *out = NULL;
    dsvi_status_share(record);
    DSVI_TRY(start());
    DSVI_TRY(make(world.rank, world.size, 0, timeout_s, &m));
    for (int r = 0; r < world.size; r++)
        m->world_rank[r] = r;
    DSVI_TRY(meet(&m->comm));
    *out = &m->comm;
    return DSV_OK;
}

extern const DsvMpi dsvi_mpi;
const DsvMpi dsvi_mpi = {.version = DSV_VERSION, .comm_bytes = sizeof(DsvComm), .join = join};
