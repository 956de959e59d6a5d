/* See comm_mpi.h. Uses only point-to-point messages (MPI_Isend, MPI_Irecv), no collectives of MPI: comm.c
 * forms the sums, so that their order does not depend on the MPI library, and a missing rank is known by its
 * number.
 *
 * Waiting polls with MPI_Testsome and pauses in between. Meanwhile it receives failure messages of other
 * ranks (on a separate communicator) and checks for processes of this machine that have ended (peers.h).
 * Several threads may use different groups: a lock admits one thread to MPI at a time, and pausing releases
 * the lock.
 *
 * After a failure some messages may never arrive, and MPI_Finalize could wait for them: the process then ends
 * without MPI_Finalize. */
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

enum { TAG_FAILURE = 1, TAG_GOODBYE = 2 }; /* tags of messages on the control communicator */
enum { MESSAGE_MAX = 1 << 30 };        /* largest message in bytes, because MPI's lengths are of type int */
enum { YIELDS = 2000, PAUSE_US = 20 }; /* a wait yields so many times, then sleeps between polls */
#define CHECK_EVERY_S 0.02             /* seconds between checks for failures and ended ranks */
#define FLUSH_S 0.1                    /* seconds that MPI is polled to send the last messages */

/* State of MPI in this process, shared by all groups. */
static struct {
    pthread_mutex_t lock; /* guards calls of MPI and the fields below */
    MPI_Comm data, control;
    int rank, size;
    DsviPeers *peers;
    bool failed;
    char sentence[DSVI_MESSAGE_BYTES];
    int64_t last_number;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct MpiComm {
    DsviComm comm;
    int tag;
    int *world_rank;      /* (size) rank of each member in MPI_COMM_WORLD */
    MPI_Request *request; /* (2 size) the receives, by rank, then the sends, by rank */
    MPI_Status *status;   /* (2 size) */
    int *done;            /* (2 size) */
} MpiComm;

static DsvStatus mpi_failed(const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    return DSVI_FAIL(DSV_E_DEVICE, "%s: MPI error: %.*s", what, length, text);
}

/* ---- failure ---- */

/* Sends a control message to all other ranks without waiting. It is short enough for MPI to send it
 * eagerly. */
static void mpi_send_control(int tag, const char *sentence)
{
    for (int r = 0; r < world.size; r++) {
        MPI_Request request;
        if (r == world.rank)
            continue;
        MPI_Isend(sentence, (int)strlen(sentence) + 1, MPI_CHAR, r, tag, world.control, &request);
        MPI_Request_free(&request);
    }
}

static void mpi_set_failed(const char *sentence, bool notify_others)
{
    if (world.failed)
        return;
    world.failed = true;
    snprintf(world.sentence, sizeof world.sentence, "%s", sentence);
    if (notify_others)
        mpi_send_control(TAG_FAILURE, world.sentence);
}

/* Returns whether a failure is known; receives a failure message if one has arrived. */
static bool mpi_receive_failure(void)
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
        mpi_set_failed(sentence, false);
    }
    return there;
}

static void mpi_check_ended(const char *call)
{
    int64_t ended = dsvi_peers_ended(world.peers);
    char sentence[128];
    if (ended < 0 || mpi_receive_failure()) /* the rank may have sent its reason before it ended */
        return;
    snprintf(sentence, sizeof sentence, "rank %lld has ended, and others wait for it in %s", (long long)ended,
             call);
    mpi_set_failed(sentence, true);
}

static void mpi_fail(DsviComm *comm, const char *sentence)
{
    (void)comm;
    pthread_mutex_lock(&world.lock);
    mpi_set_failed(sentence, true);
    pthread_mutex_unlock(&world.lock);
}

static DsvStatus mpi_listen(DsviComm *comm)
{
    (void)comm;
    pthread_mutex_lock(&world.lock);
    if (!mpi_receive_failure())
        mpi_check_ended("another call");
    bool failed = world.failed;
    pthread_mutex_unlock(&world.lock);
    return failed ? DSVI_FAIL(DSV_E_RANK, "%s", world.sentence) : DSV_OK;
}

/* ---- exchange ---- */

/* Returns the first rank with an unfinished receive, or else with an unfinished send. */
static int64_t first_unfinished_rank(const MpiComm *m)
{
    for (int64_t i = 0; i < 2 * m->comm.size; i++)
        if (m->request[i] != MPI_REQUEST_NULL)
            return i % m->comm.size;
    return -1;
}

static DsvStatus wait_failed(MpiComm *m)
{
    /* Cancel the receives: the caller may reuse their memory after this call. */
    for (int64_t r = 0; r < m->comm.size; r++)
        if (m->request[r] != MPI_REQUEST_NULL)
            MPI_Cancel(&m->request[r]);
    return DSVI_FAIL(DSV_E_RANK, "%s", world.sentence);
}

static DsvStatus check_length(const MpiComm *m, int index, const MPI_Status *status, const DsviPiece *receive,
                              size_t at)
{
    int got = 0;
    if (index >= m->comm.size) /* a send */
        return DSV_OK;
    size_t expected = receive[index].bytes - at < MESSAGE_MAX ? receive[index].bytes - at : MESSAGE_MAX;
    MPI_Get_count(status, MPI_BYTE, &got);
    if ((size_t)got == expected)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_INTERNAL, "%s: rank %d sends %d bytes, rank %lld expects %zu", m->comm.call, index,
                     got, (long long)m->comm.rank, expected);
}

static void mpi_timed_out(const MpiComm *m)
{
    char sentence[128];
    snprintf(sentence, sizeof sentence, "rank %d has not come to %s for %g s",
             m->world_rank[first_unfinished_rank(m)], m->comm.call, m->comm.timeout_s);
    mpi_set_failed(sentence, true);
}

/* Pauses between polls, without the lock, so that other threads can use MPI. */
static void mpi_pause(int64_t polls)
{
    pthread_mutex_unlock(&world.lock);
    if (polls < YIELDS)
        sched_yield();
    else
        usleep(PAUSE_US);
    pthread_mutex_lock(&world.lock);
}

/* Waits for all requests, until no request finishes for timeout_s seconds or a rank fails. */
static DsvStatus mpi_await_requests(MpiComm *m, const DsviPiece *receive, size_t at)
{
    double start = dsvi_clock_seconds(), checked = start;
    for (int64_t polls = 0;; polls++) {
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
        if (now - checked > CHECK_EVERY_S) {
            checked = now;
            if (!mpi_receive_failure())
                mpi_check_ended(m->comm.call);
        }
        if (!world.failed && now - start > m->comm.timeout_s)
            mpi_timed_out(m);
        if (world.failed)
            return wait_failed(m);
        mpi_pause(polls);
    }
}

/* Starts a send or receive of at most MESSAGE_MAX bytes of a piece, from its byte `at`. */
static DsvStatus mpi_post(MpiComm *m, const DsviPiece *piece, int64_t rank, size_t at, bool sends)
{
    MPI_Request *request = &m->request[sends ? m->comm.size + rank : rank];
    *request = MPI_REQUEST_NULL;
    if (rank == m->comm.rank || piece->bytes <= at)
        return DSV_OK;
    size_t left = piece->bytes - at;
    int length = left < MESSAGE_MAX ? (int)left : MESSAGE_MAX;
    char *data = (char *)piece->data + at;
    int code = sends ? MPI_Isend(data, length, MPI_BYTE, m->world_rank[rank], m->tag, world.data, request)
                     : MPI_Irecv(data, length, MPI_BYTE, m->world_rank[rank], m->tag, world.data, request);
    return code == MPI_SUCCESS ? DSV_OK : mpi_failed(m->comm.call, code);
}

static size_t longest_of(const MpiComm *m, const DsviPiece *send, const DsviPiece *receive)
{
    size_t longest = 0;
    for (int64_t r = 0; r < m->comm.size; r++) {
        size_t bytes = send[r].bytes > receive[r].bytes ? send[r].bytes : receive[r].bytes;
        longest = r != m->comm.rank && bytes > longest ? bytes : longest;
    }
    return longest;
}

/* Exchanges all pieces of one call. Called while holding the lock world.lock, which is released while
   waiting. */
static DsvStatus mpi_exchange_pieces(MpiComm *m, const DsviPiece *send, const DsviPiece *receive)
{
    size_t longest = longest_of(m, send, receive);
    if (world.failed)
        return DSVI_FAIL(DSV_E_RANK, "%s", world.sentence);
    for (size_t at = 0; at < longest; at += MESSAGE_MAX) {
        for (int64_t r = 0; r < m->comm.size; r++)
            DSVI_TRY(mpi_post(m, &receive[r], r, at, false));
        for (int64_t r = 0; r < m->comm.size; r++)
            DSVI_TRY(mpi_post(m, &send[r], r, at, true));
        DSVI_TRY(mpi_await_requests(m, receive, at));
    }
    return DSV_OK;
}

static DsvStatus mpi_exchange(DsviComm *comm, const DsviPiece *send, const DsviPiece *receive)
{
    pthread_mutex_lock(&world.lock);
    DsvStatus status = mpi_exchange_pieces((MpiComm *)comm, send, receive);
    pthread_mutex_unlock(&world.lock);
    return status;
}

/* ---- groups, joining, leaving ---- */

static void free_mpi_arrays(MpiComm *m)
{
    free(m->world_rank);
    free(m->request);
    free(m->status);
    free(m->done);
}

/* Returns whether rank 0's goodbye message has arrived; receives it. */
static bool mpi_receive_goodbye(void)
{
    int there = 0;
    char nothing[1];
    MPI_Iprobe(0, TAG_GOODBYE, world.control, &there, MPI_STATUS_IGNORE);
    if (there)
        MPI_Recv(nothing, sizeof nothing, MPI_CHAR, 0, TAG_GOODBYE, world.control, MPI_STATUS_IGNORE);
    return there;
}

static bool mpi_told(DsviComm *comm)
{
    (void)comm;
    if (world.rank == 0)
        mpi_send_control(TAG_GOODBYE, "");
    double until = dsvi_clock_seconds() + (world.rank == 0 ? FLUSH_S : DSVI_COMM_REPORT_S);
    while (dsvi_clock_seconds() < until) {
        /* Checked before receiving: if rank 0 has ended, its messages have arrived by now. */
        bool gone = dsvi_peers_has_ended(world.peers, 0);
        if (mpi_receive_goodbye())
            return true;
        if (gone)
            return false;
        usleep(1000);
    }
    return world.rank == 0;
}

/* Skips MPI_Finalize after a failure, when it could wait for messages that never arrive. */
static void leave_mpi(void)
{
    double until = dsvi_clock_seconds() + FLUSH_S;
    dsvi_peers_close(&world.peers);
    if (!world.failed) {
        MPI_Finalize();
        return;
    }
    while (dsvi_clock_seconds() < until) { /* MPI sends pending messages only while it is called */
        (void)mpi_receive_goodbye();
        usleep(1000);
    }
}

static void mpi_close(DsviComm *comm)
{
    MpiComm *m = (MpiComm *)comm;
    bool last = m->tag == 0;
    free_mpi_arrays(m);
    dsvi_comm_free(comm);
    if (last)
        leave_mpi();
}

static DsvStatus mpi_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                           DsviComm **out);

static const DsviTransport MPI = {
    .name = "MPI",
    .at_once = true,
    .exchange = mpi_exchange,
    .split = mpi_split,
    .listen = mpi_listen,
    .fail = mpi_fail,
    .told = mpi_told,
    .close = mpi_close,
};

static DsvStatus mpi_comm_make(int64_t rank, int64_t size, int tag, double timeout_s, MpiComm **out)
{
    DsviComm *comm;
    size_t two = 2 * (size_t)size;
    *out = NULL;
    DSVI_TRY(dsvi_comm_alloc(&MPI, sizeof **out, rank, size, timeout_s, &world.last_number, &comm));
    MpiComm *m = (MpiComm *)comm;
    m->tag = tag;
    m->world_rank = calloc((size_t)size, sizeof *m->world_rank);
    m->request = calloc(two, sizeof *m->request);
    m->status = calloc(two, sizeof *m->status);
    m->done = calloc(two, sizeof *m->done);
    if (!m->world_rank || !m->request || !m->status || !m->done) {
        free_mpi_arrays(m);
        dsvi_comm_free(comm);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the messages of %lld ranks", (long long)size);
    }
    *out = m;
    return DSV_OK;
}

/* All groups use one MPI communicator. The tag, made from the group's number, separates their messages; every
 * MPI supports tags up to 32767. */
static DsvStatus mpi_split(DsviComm *comm, const int64_t *member, int64_t count, int64_t rank, int64_t number,
                           DsviComm **out)
{
    const MpiComm *parent = (const MpiComm *)comm;
    MpiComm *m;
    DSVI_TRY(mpi_comm_make(rank, count, (int)(number % 32000) + 1, comm->timeout_s, &m));
    for (int64_t r = 0; r < count; r++)
        m->world_rank[r] = parent->world_rank[member[r]];
    *out = &m->comm;
    return DSV_OK;
}

static DsvStatus start_mpi(void)
{
    int level = 0, there = 0;
    MPI_Initialized(&there);
    if (there)
        return DSVI_FAIL(DSV_E_USAGE, "MPI is already initialised: a process can join MPI's ranks only once");
    /* SERIALIZED: several threads call MPI, one at a time. */
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (code != MPI_SUCCESS)
        return DSVI_FAIL(DSV_E_DEVICE, "MPI does not start: error %d", code);
    if (level < MPI_THREAD_SERIALIZED)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "this MPI does not support calls from several threads (level %d, "
                         "expected %d)",
                         level, MPI_THREAD_SERIALIZED);
    MPI_Comm_dup(MPI_COMM_WORLD, &world.data);
    MPI_Comm_dup(MPI_COMM_WORLD, &world.control);
    MPI_Comm_set_errhandler(world.data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(world.control, MPI_ERRORS_RETURN);
    MPI_Comm_rank(world.data, &world.rank);
    MPI_Comm_size(world.data, &world.size);
    return DSV_OK;
}

/* Exchanges the ranks' cards (DsviPeerCard: machine and process number) and begins to watch the ranks of this
   machine. */
static DsvStatus mpi_watch_peers(DsviComm *comm)
{
    int64_t size = comm->size;
    DsviPeerCard *card = calloc((size_t)size, sizeof *card);
    if (!card)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to meet %lld ranks", (long long)size);
    dsvi_peer_card_fill(&card[comm->rank]);
    /* The exchange of cards already needs world.peers: one that watches nobody, as all other cards are
     * empty. */
    DsvStatus status = dsvi_peers_watch(card, size, comm->rank, &world.peers);
    if (status == DSV_OK)
        status = dsvi_comm_all_gather_one(comm, card, sizeof *card);
    dsvi_peers_close(&world.peers);
    if (status == DSV_OK)
        status = dsvi_peers_watch(card, size, comm->rank, &world.peers);
    free(card);
    return status;
}

static DsvStatus mpi_join(double timeout_s, DsviStatusRecordOfThread *record, DsviComm **out)
{
    MpiComm *m;
    *out = NULL;
    dsvi_status_use_records_of(record);
    DSVI_TRY(start_mpi());
    DSVI_TRY(mpi_comm_make(world.rank, world.size, 0, timeout_s, &m));
    for (int r = 0; r < world.size; r++)
        m->world_rank[r] = r;
    DSVI_TRY(mpi_watch_peers(&m->comm));
    *out = &m->comm;
    return DSV_OK;
}

extern const DsviMpi dsvi_mpi;
const DsviMpi dsvi_mpi = {.version = DSV_VERSION, .comm_bytes = sizeof(DsviComm), .join = mpi_join};
